"""The machine that judges what is written for GPU runtimes, against every order that there is, on small codes.

The oracle knows the docstring of `lower/machine/code.py` and nothing else: it goes through all states that any order
leads to, with plain tuples of contributions, and says whether all of them end as they should.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from small_plans import run_local

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.interpret.buffers import sides
from antiphon.core.verify import verify
from antiphon.lower.machine.code import INPUT, OUTPUT, SCRATCH, CellPlaces, Code, CodeBlock, Instruction
from antiphon.lower.machine.judge import judge
from antiphon.lower.machine.to_schedule import code_to_schedule
from antiphon.topologies import topology

Cells = tuple[tuple[str, ...], ...]


# ---- the oracle ----


def always_right(code: Code) -> bool:
    """Whether every legal order ends, and with what the collective says."""
    given, wanted = _ends(code)
    first = (tuple(0 for _ in code.blocks), given, tuple(() for _ in code.connections), tuple(code.start))
    seen, work = {first}, [first]
    while work:
        state = work.pop()
        at, cells, queues, _ = state
        if all(index == len(block.instructions) for index, block in zip(at, code.blocks, strict=True)):
            if any(queues) or any(cells[cell] != held for cell, held in wanted.items()):
                return False
            continue
        after = list(_after(code, state))
        if not after or None in after:
            return False
        for one in after:
            if one not in seen:
                seen.add(one)
                work.append(one)
    return True


def _ends(code: Code) -> tuple[Cells, dict[int, tuple[str, ...]]]:
    """What cells hold at first; and in the end those that matter: results, and inputs that are none."""
    relation, first, last = code.collective.relation, *sides(code.collective, code.in_place)
    cells: list[tuple[str, ...]] = [()] * int(code.places.begin[-1])
    rows = list(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True))

    def place(side: Any, kind: int, i: int, chunk: int) -> int:
        rank = int(side.rank[i])
        begin = code.places.begin[rank] if code.in_place else code.places.first[rank, kind]
        return int(begin) + int(side.start[i]) * code.grain + chunk

    wanted: dict[int, tuple[str, ...]] = {}
    for i in range(len(first.rank)):
        for chunk in range(code.grain):
            mine = sorted(f"{b}.{chunk}.{n}" for b, r, n in rows if (b, r) == (first.block[i], first.rank[i]))
            cells[place(first, INPUT, i, chunk)] = wanted[place(first, INPUT, i, chunk)] = tuple(mine)
    for i in range(len(last.rank)):
        for chunk in range(code.grain):
            every = sorted({f"{b}.{chunk}.{n}" for b, _, n in rows if b == last.block[i]})
            wanted[place(last, OUTPUT, i, chunk)] = tuple(every)
    return tuple(cells), wanted


def _after(code: Code, state: Any) -> Iterator[Any]:
    at, cells, queues, counters = state
    for number, block in enumerate(code.blocks):
        if at[number] == len(block.instructions):
            continue
        one = block.instructions[at[number]]
        stuck = any(at[b] <= i for b, i in one.wait) or any(not counters[s] for s in one.acquire)
        stuck |= one.pop >= 0 and not queues[one.pop]
        stuck |= one.push >= 0 and 0 < code.slots <= len(queues[one.push])
        if stuck:
            continue
        lines, now = [list(queue) for queue in queues], list(cells)
        operands = [lines[one.pop].pop(0)] if one.pop >= 0 else []
        operands += [tuple(cells[cell + i] for i in range(one.count)) for cell in one.read]
        if any(len(operand) != one.count or not all(operand) for operand in operands):
            yield None
            continue
        value = tuple(tuple(sorted(sum(chunk, ()))) for chunk in zip(*operands, strict=True))
        if operands:
            for cell in one.write:
                now[cell : cell + one.count] = value
            if one.push >= 0:
                lines[one.push].append(value)
        count = [c - (s in one.acquire) + (s in one.release) for s, c in enumerate(counters)]
        there = tuple(index + (b == number) for b, index in enumerate(at))
        yield there, tuple(now), tuple(tuple(line) for line in lines), tuple(count)


# ---- small codes that are right ----


def allgather(n: int, in_place: bool, slots: int = 2) -> Code:
    """Around a ring: a block copies and sends, another receives, and one sends on what has come."""
    wanted = Collective("allgather", n)
    places = CellPlaces.of(wanted, in_place, 1, [0] * n)
    ways = [(rank, (rank + 1) % n, 0) for rank in range(n)]
    own, out = places.first[:, INPUT].tolist(), places.first[:, OUTPUT].tolist()
    blocks = []
    for rank in range(n):
        send = [Instruction(0, "s", read=(own[rank],), push=rank)]
        take = []
        for k in range(1, n):
            cell = out[rank] + (rank - k) % n
            take.append(Instruction(k - 1, "r", pop=(rank - 1) % n, write=(cell,)))
            if k < n - 1:
                send.append(Instruction(k, "s", read=(cell,), push=rank, wait=((3 * rank + 1, k - 1),)))
        blocks += [CodeBlock(rank, "block 0", send), CodeBlock(rank, "block 1", take)]
        copy = [] if in_place else [Instruction(0, "cpy", read=(own[rank],), write=(out[rank] + rank,))]
        blocks.append(CodeBlock(rank, "block 2", copy))
    return Code(wanted, in_place, 1, places, blocks, ways, slots)


def allreduce(slots: int = 2) -> Code:
    """Two ranks, two chunks: each combines one in its scratch, and both exchange the results."""
    wanted = Collective("allreduce", 2)
    places = CellPlaces.of(wanted, False, 2, [1, 1])
    own, out, room = (places.first[:, kind].tolist() for kind in (INPUT, OUTPUT, SCRATCH))
    blocks = []
    for rank in range(2):
        peer = 1 - rank
        blocks.append(
            CodeBlock(rank, "block 0", [
                Instruction(0, "s", read=(own[rank] + peer,), push=rank),
                Instruction(1, "s", read=(out[rank] + rank,), push=rank, wait=((3 * rank + 2, 1),)),
            ])
        )  # fmt: skip
        blocks.append(
            CodeBlock(rank, "block 1", [
                Instruction(0, "r", pop=peer, write=(room[rank],)),
                Instruction(1, "r", pop=peer, write=(out[rank] + peer,)),
            ])
        )  # fmt: skip
        blocks.append(
            CodeBlock(rank, "block 2", [
                Instruction(0, "cpy", read=(own[rank] + rank,), write=(out[rank] + rank,)),
                Instruction(1, "re", read=(out[rank] + rank, room[rank]), write=(out[rank] + rank,),
                            wait=((3 * rank + 1, 0),)),
            ])
        )  # fmt: skip
    return Code(wanted, False, 2, places, blocks, [(0, 1, 0), (1, 0, 0)], slots)


def puts() -> Code:
    """An allgather of two ranks by puts: each says that it has begun, puts, and says that it has put."""
    wanted = Collective("allgather", 2)
    places = CellPlaces.of(wanted, False, 1, [0, 0])
    own, out = places.first[:, INPUT].tolist(), places.first[:, OUTPUT].tolist()
    blocks = []
    for rank in range(2):
        peer = 1 - rank
        there = [
            Instruction(0, "signal", release=(peer,)),
            Instruction(1, "copy", read=(own[rank],), write=(out[rank] + rank,)),
            Instruction(2, "wait", acquire=(rank,)),
            Instruction(3, "put", read=(own[rank],), write=(out[peer] + rank,), release=(2 + peer,)),
            Instruction(4, "wait", acquire=(2 + rank,)),
        ]
        blocks.append(CodeBlock(rank, "block 0", there))
    return Code(wanted, False, 1, places, blocks, start=[0] * 4, independent_ranks=True)


RIGHT = [
    allgather(2, False), allgather(3, False), allgather(3, True), allgather(3, True, 1), allreduce(), allreduce(1),
    puts(),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_what_is_right(number: int) -> None:
    code = RIGHT[number]
    assert judge(code) is None
    assert always_right(code)
    schedule = code_to_schedule(code)
    assert verify(schedule, topology(f"full:ranks={code.collective.ranks}")).fault is None
    assert run_local(schedule, 4 * 7 * 12, repeat=1)[0]["correct"]


def test_a_sum_in_place_waits_for_the_reads_of_all_versions_before_it() -> None:
    """Rank 0 adds to its value m3 in step 1 (a result of rank 3), m1 in step 2, in place, and then m2, which is there
    from step 0 on: if that is added as early, the sum for rank 3 has it, too."""
    wanted = Collective("custom", 4, custom=custom_relation(
        [(0, rank, rank) for rank in range(4)], [(0, 0, (0, 1, 2)), (0, 3, (0, 3))], 4
    ))  # fmt: skip
    places = CellPlaces.of(wanted, False, 1, [4, 0, 0, 0])
    own, out, room = (places.first[:, kind].tolist() for kind in (INPUT, OUTPUT, SCRATCH))
    unused, first, second = room[0], room[0] + 1, room[0] + 2
    blocks = [
        CodeBlock(0, "block 0", [
            Instruction(0, "r", pop=2, write=(unused,)),
            Instruction(1, "r", pop=0, write=(unused,)),
            Instruction(2, "r", pop=0, write=(unused,)),
            Instruction(3, "rrc", pop=2, read=(own[0],), write=(first,)),
            Instruction(4, "rrc", pop=0, read=(own[0],), write=(second,)),
            Instruction(5, "rrc", pop=1, read=(second,), write=(out[0],)),
            Instruction(6, "s", read=(first,), push=3),
        ]),
        *(
            CodeBlock(rank, "block 0", [Instruction(i, "s", read=(own[rank],), push=rank - 1) for i in range(sends)])
            for rank, sends in ((1, 3), (2, 1), (3, 2))
        ),
        CodeBlock(3, "block 1", [Instruction(0, "r", pop=3, write=(out[3],))]),
    ]  # fmt: skip
    code = Code(wanted, False, 1, places, blocks, [(1, 0, 0), (2, 0, 0), (3, 0, 0), (0, 3, 0)], 4)
    assert judge(code) is None
    assert verify(code_to_schedule(code), topology("full:ranks=4")).fault is None


# ---- and codes that may not be ----


def mutated(code: Code, random: Random) -> Code:
    blocks = [CodeBlock(block.rank, block.name, list(block.instructions)) for block in code.blocks]
    block = random.choice([one for one in blocks if one.instructions]).instructions
    at = random.randrange(len(block))
    one = block[at]
    cells, ways = int(code.places.begin[-1]), len(code.connections)
    what = random.randrange(8)
    if what == 0:
        block[at] = replace(one, wait=())
    elif what == 1:
        block[at] = replace(one, read=tuple(random.randrange(cells) for _ in one.read))
    elif what == 2:
        block[at] = replace(one, write=tuple(random.randrange(cells) for _ in one.write))
    elif what == 3:
        del block[at]
    elif what == 4:
        other = random.randrange(len(block))
        block[at], block[other] = block[other], block[at]
    elif what == 5 and ways:
        block[at] = replace(one, push=random.randrange(-1, ways)) if one.push >= 0 else replace(one, pop=-1)
    elif what == 6:
        there = random.randrange(len(blocks))
        if blocks[there].instructions:
            index = random.randrange(len(blocks[there].instructions))
            block[at] = replace(one, wait=(*one.wait, (there, index)))
    else:
        block.insert(random.randrange(len(block) + 1), one)
    kept = [len(changed.instructions) for changed in blocks]
    for changed in blocks:
        changed.instructions[:] = [
            replace(one, wait=tuple((b, i) for b, i in one.wait if i < kept[b])) for one in changed.instructions
        ]
    return replace_blocks(code, blocks)


def replace_blocks(code: Code, blocks: list[CodeBlock]) -> Code:
    return Code(
        code.collective, code.in_place, code.grain, code.places, blocks, code.connections, code.slots, code.start, False
    )


@given(st.integers(0, len(RIGHT) - 1), st.integers(0, 2**32), st.integers(1, 2))
@settings(max_examples=examples(400))
def test_the_verdict_is_that_of_all_orders(number: int, seed: int, times: int) -> None:
    random = Random(seed)
    code = RIGHT[number]
    for _ in range(times):
        code = mutated(code, random)
    fault = judge(code, seed=seed)
    assert (fault is None) == always_right(code), fault
    if fault is None:
        assert verify(code_to_schedule(code), topology(f"full:ranks={code.collective.ranks}")).fault is None
