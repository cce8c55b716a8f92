"""Whether a program is right: its form, its messages, its order, its hazards, and what comes out of it.

It shares nothing with the lowering. Form, order and messages are judged by columns; hazards by addresses at a size
without empty chunks; the outcome by runs on random whole numbers with no buffering.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Longs, distinct, starts
from antiphon.core.interpret.buffers import sides
from antiphon.core.program.hazards import refuse_hazards
from antiphon.core.program.kinds import FOLD, INPUT, JOIN, RECEIVE, SCRATCH, SEND, Bound, Program, bind
from antiphon.core.program.run import run_program, told
from antiphon.errors import Invalid

Array = NDArray[Any]
ODD = 1_000_003  # a size at which nothing is round


def check(program: Program, *, seeds: Sequence[int] = (0, 1, 2, 3)) -> None:
    """Invalid, naming rank and operation, if anything is wrong; else nothing.

    Structure; every wait leads to an earlier time, so nothing deadlocks; every send has its receive of the same time,
    pieces and elements; all addresses inside their buffers; whatever touches the same elements is ordered by waits;
    for every seed a random run with zero buffering gives what the collective defines. Form and messages: O(n log n);
    hazards and runs: Python for every piece of every operation, for programs of up to some 10^5 of them.
    """
    _refuse_columns(program)
    _refuse_form(program)
    small = _filling(program)
    for unit in (0, 1, small, ODD):
        _refuse_addresses(program, bind(program, unit))
    _refuse_messages(program, [bind(program, unit) for unit in (1, small, ODD)])
    refuse_hazards(program, bind(program, small))
    for seed in seeds:
        _refuse_outcome(program, small if seed % 2 == 0 else 1 + seed, seed)


def _filling(program: Program) -> int:
    """So many elements that no piece of any part is empty, where its part is none."""
    weight = (program.point_whole[program.part_end] - program.point_whole[program.part_begin]).astype(np.float64)
    weight += (program.point_part[program.part_end] - program.point_part[program.part_begin]) / program.denominator
    pieces = program.pieces[program.part_op]
    some = weight > 0
    return int(np.ceil((pieces[some] / weight[some]).max(initial=1.0))) + 1


def _first(program: Program, bad: Bools, what: str) -> None:
    """Complain of the first operation for which this is so."""
    if bad.any():
        raise Invalid(f"{told(program, int(np.argmax(bad)))}: {what}")


def _refuse_columns(p: Program) -> None:
    """Every number must name something that is there."""
    ranks, counts = p.ranks, (p.operations, len(p.part_begin), len(p.base_shift), len(p.slot_class))
    pointers = {
        "op_ptr": (p.op_ptr, ranks, counts[0]), "part_ptr": (p.part_ptr, counts[0], counts[1]),
        "wait_ptr": (p.wait_ptr, counts[0], len(p.wait)), "base_ptr": (p.base_ptr, ranks, counts[2]),
        "slot_ptr": (p.slot_ptr, ranks, counts[3]), "finish_ptr": (p.finish_ptr, ranks, len(p.finish_count)),
    }  # fmt: skip
    for name, (ptr, owners, total) in pointers.items():
        if len(ptr) != owners + 1 or ptr[0] != 0 or ptr[-1] != total or np.any(np.diff(ptr) < 0):
            raise Invalid(f"{name} does not share out its {total} rows among {owners}")
    scratch = p.base_buffer == SCRATCH
    slots = np.repeat(np.diff(p.slot_ptr), np.diff(p.base_ptr))
    named: dict[str, tuple[Longs, Any]] = {
        name: (getattr(p, name), len(p.point_whole))
        for name in ("part_begin", "part_end", "finish_begin", "finish_end")
    }
    named |= {
        "base_buffer": (p.base_buffer, SCRATCH + 1), "base_slot": (p.base_slot[scratch], slots[scratch]),
        "base_origin": (p.base_origin[scratch], len(p.point_whole)), "slot_class": (p.slot_class, len(p.class_pieces)),
        "part_base": (p.part_base, counts[2]), "finish_base": (p.finish_base, counts[2]), "wait": (p.wait, counts[0]),
    }  # fmt: skip
    for name, (values, bound) in named.items():
        bad = (values < 0) | (values >= bound)
        if bad.any():
            raise Invalid(f"{name}[{int(np.argmax(bad))}] names what is not there")
    if np.any(p.class_pieces < 1) or np.any((p.point_part < 0) | (p.point_part >= p.denominator)):
        raise Invalid("a class has no pieces, or a point lies outside of its unit")


def _refuse_form(program: Program) -> None:
    count, rank, kind = program.operations, program.rank, program.kind
    parts = np.diff(program.part_ptr)
    _first(program, (kind < 0) | (kind > JOIN) | (program.pieces < 1), "its kind or pieces make no sense")
    _first(program, (program.channel < 0) | (program.channel >= program.channels), "its channel is not there")
    crossing = (kind == SEND) | (kind == RECEIVE)
    there = (program.peer >= 0) & (program.peer < program.ranks)
    _first(program, crossing & (~there | (program.peer == rank)), "it has no other rank as its peer")
    _first(program, crossing & (parts < 1) | (kind == FOLD) & (parts < 2), "it has too few parts")
    _first(program, (kind == JOIN) & (parts > 0), "it has parts")
    base_rank = np.repeat(np.arange(program.ranks), np.diff(program.base_ptr))
    of = program.part_op
    bad = np.zeros(count, bool)
    bad[of[base_rank[program.part_base] != rank[of]]] = True
    _first(program, bad, "a part has a base of another rank")
    falls = np.zeros(count, bool)
    falls[1:] = (rank[1:] == rank[:-1]) & (program.when[1:] < program.when[:-1])
    _first(program, falls, "its time is before that of the operation before it")
    later, earlier = program.wait_op, program.wait
    whole = program.pieces[later] != program.pieces[earlier]
    last = program.when[earlier] + np.where(whole, 2 * (program.pieces[earlier] - 1), 0)
    bad[later[(rank[earlier] != rank[later]) | (earlier >= later)]] = True
    _first(program, bad, "it waits for an operation that is not before it in its rank")
    bad[later[last >= program.when[later]]] = True
    _first(program, bad, "it waits for something that is not at an earlier time")


def _refuse_addresses(program: Program, bound: Bound) -> None:
    of, rank = program.part_op, program.rank
    lacking = np.zeros(program.operations, bool)
    pieces, length, buffer = program.pieces[of], bound.length, bound.buffer
    several = (buffer == SCRATCH) & (pieces > 1)
    reach = np.where(several, (pieces - 1) * bound.stride + length - length * (pieces - 1) // pieces, length)
    outside = (length < 0) | (bound.begin < 0) | (bound.begin + reach > bound.sizes[rank[of], buffer])
    base = program.part_base
    scratch = np.flatnonzero(buffer == SCRATCH)
    slot = program.slot_ptr[rank[of[scratch]]] + program.base_slot[base[scratch]]
    ends = np.append(0, np.cumsum(_room(program, bound)))
    first = ends[program.slot_ptr[rank[of[scratch]]]]
    low, high = ends[slot] - first, ends[slot + 1] - first
    outside[scratch] |= (bound.begin[scratch] < low) | (bound.begin[scratch] + reach[scratch] > high)
    wide = -(-length[scratch] // pieces[scratch]) > bound.stride[scratch]
    own = program.class_pieces[program.slot_class[slot]] != pieces[scratch]
    outside[scratch] |= several[scratch] & (wide | own | (bound.begin[scratch] != low))
    lacking[of[outside]] = True
    _first(program, lacking, f"a part leaves its buffer or slot (at {bound.unit} elements a unit)")
    writes = (program.kind[of] == RECEIVE) | ((program.kind[of] == FOLD) & starts(of))
    lacking[of[writes & (buffer == INPUT)]] = True
    _first(program, lacking, "it writes into the input")
    fold = program.kind[of] == FOLD
    head = program.part_ptr[:-1][of]
    lacking[of[fold & (length != length[head])]] = True
    _first(program, lacking, "its result and operands are not of one length")
    same = buffer == buffer[head]
    meet = same & (bound.begin < bound.begin[head] + reach[head]) & (bound.begin[head] < bound.begin + reach)
    lacking[of[fold & ~starts(of) & meet & (bound.begin != bound.begin[head])]] = True
    _first(program, lacking, "its result stands partly on an operand")


def _room(program: Program, bound: Bound) -> Longs:
    """Elements of every slot, from the program alone."""
    whole = program.class_whole.astype(object) * program.denominator + program.class_part
    size = np.array([-(-bound.unit * w // program.denominator) for w in whole], np.int64)
    stride = -(-size // program.class_pieces)
    return np.asarray((stride * program.class_pieces)[program.slot_class])


def _refuse_messages(program: Program, bounds: list[Bound]) -> None:
    """The sends of a way and its receives, both in order, must be the same messages."""
    sends, receives = (np.flatnonzero(program.kind == kind) for kind in (SEND, RECEIVE))
    ways = []
    for rows, ends in ((sends, (program.rank, program.peer)), (receives, (program.peer, program.rank))):
        order = np.lexsort((rows, program.when[rows], program.channel[rows], ends[1][rows], ends[0][rows]))
        ways.append(rows[order])
    if len(sends) != len(receives):
        raise Invalid(f"{len(sends)} sends and {len(receives)} receives; every send needs its receive")
    mine, theirs = ways
    columns: list[tuple[Longs, Longs]] = [
        (program.rank[mine], program.peer[theirs]), (program.peer[mine], program.rank[theirs]),
        (program.channel[mine], program.channel[theirs]), (program.when[mine], program.when[theirs]),
        (program.pieces[mine], program.pieces[theirs]),
    ]  # fmt: skip
    for bound in bounds:
        total = np.zeros(program.operations, np.int64)
        np.add.at(total, program.part_op, bound.length)
        columns.append((total[mine], total[theirs]))
    bad = np.zeros(program.operations, bool)
    for a, b in columns:
        bad[mine[a != b]] = True
    _first(program, bad, "no receive of this time, pieces and elements takes what it sends")
    several = np.flatnonzero(program.pieces[mine] > 1)
    for bound in bounds:
        for m, t in zip(mine[several].tolist(), theirs[several].tolist(), strict=True):
            own, other = (bound.length[program.part_ptr[o] : program.part_ptr[o + 1]] for o in (m, t))
            if not np.array_equal(own, other):
                raise Invalid(f"{told(program, m)}: its receive cuts its pieces otherwise")


# ---- the outcome ----


def _refuse_outcome(program: Program, unit: int, seed: int) -> None:
    given, right = _case(program, unit, seed)
    kept = [array.copy() for array in given]
    found = run_program(program, given, seed=seed)
    _, last = sides(program.collective, program.in_place)
    weights = program.collective.weights
    ends: dict[int, Bools] = defaultdict(lambda: np.zeros(0, bool))
    for rank, block, start in zip(last.rank.tolist(), last.block.tolist(), last.start.tolist(), strict=True):
        here = slice(start * unit, (start + int(weights[block])) * unit)
        if not np.array_equal(found[rank][here], right[rank, block]):
            raise Invalid(f"rank {rank} ends with wrong data in block {block} (run {seed}, {unit} elements a unit)")
        if program.in_place:
            ends.setdefault(rank, np.zeros(len(found[rank]), bool))[here] = True
    for rank, array in enumerate(kept):
        touched = ends[rank] if program.in_place and rank in ends else np.zeros(len(array), bool)
        if not np.array_equal(given[rank][~touched], array[~touched]):
            raise Invalid(f"rank {rank}: what is no result was written over (run {seed})")


def _case(program: Program, unit: int, seed: int) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Random inputs of all ranks, and by the collective's relation what each must end with of each block."""
    collective = program.collective
    relation, weights = collective.relation, collective.weights
    first, _ = sides(collective, program.in_place)
    random = np.random.default_rng(seed)
    named: dict[tuple[int, int], Array] = {}
    for block, name in _pairs(relation.pre_block, relation.pre_id):
        named[block, name] = random.integers(-(2**63), 2**63 - 1, int(weights[block]) * unit)
    held: dict[tuple[int, int], list[int]] = defaultdict(list)
    every: dict[int, list[int]] = defaultdict(list)
    for block, name in named:
        every[block].append(name)
    for block, rank, name in zip(
        *(c.tolist() for c in (relation.pre_block, relation.pre_rank, relation.pre_id)), strict=True
    ):
        held[rank, block].append(name)
    buffers = [random.integers(0, 99, int(weight) * unit) for weight in first.size]
    for rank, block, start in zip(first.rank.tolist(), first.block.tolist(), first.start.tolist(), strict=True):
        here = slice(start * unit, (start + int(weights[block])) * unit)
        buffers[rank][here] = _sum([named[block, name] for name in held[rank, block]])
    sums: dict[tuple[int, int], Array] = {}
    right = {}
    columns = (relation.post_block, relation.post_rank, relation.post_want)
    for block, rank, want in zip(*(c.tolist() for c in columns), strict=True):
        if (block, want) not in sums:
            names = every[block] if want < 0 else relation.wants[want]
            sums[block, want] = _sum([named[block, name] for name in names])
        right[rank, block] = sums[block, want]
    return buffers, right


def _pairs(block: Any, name: Any) -> list[tuple[int, int]]:
    pairs = distinct((block.astype(np.int64) << 32) | name)
    return list(zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True))


def _sum(arrays: list[Array]) -> Array:
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            total += array
    return total
