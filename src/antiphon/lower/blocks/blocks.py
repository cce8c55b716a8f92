"""From a program to thread blocks: operations, segments, lanes, placing, a test for deadlocks, and numbers.

`blocks` runs these stages and is what formats call. It makes `Blocks`, which a format writes as they stand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH, chunked
from antiphon.errors import Unsupported
from antiphon.lower.blocks.operations import RECEIVES, SENDS, Block, Step, Values, bases, dissolve_blocks, values
from antiphon.lower.blocks.place import Full, Limits, place
from antiphon.lower.blocks.segments import Turn, by_channel, dissolve_segments, flow, lanes
from antiphon.lower.uncollected import uncollected


def find_stuck(blocks: list[list[Block]], slots: int) -> list[Block]:
    """Blocks that never come to their end. Linear in steps, unless queues are often full."""
    every = [block for mine in blocks for block in mine]
    at = dict.fromkeys(every, 0)
    left = {block: block.steps[0].count for block in every if block.steps}
    sent: dict[tuple[int, int, int], int] = defaultdict(int)
    taken: dict[tuple[int, int, int], int] = defaultdict(int)
    sleepers: dict[object, list[Block]] = defaultdict(list)
    work = [block for block in every if block.steps]
    while work:
        block = work.pop()
        come = (block.recv, block.rank, block.channel)
        go = (block.rank, block.send, block.channel)
        steps, here, rest = block.steps, at[block], left[block]
        while here < len(steps):
            step = steps[here]
            missing = None
            for one in step.waits:
                if (here if one.block is block else at[one.block]) <= one.place:
                    missing = one.block
                    break
            if missing is not None:
                sleepers[missing].append(block)
                break
            many = rest
            if step.verb in RECEIVES:
                full = sent[come] - taken[come]
                if not full:
                    sleepers[come, "full"].append(block)
                    break
                many = min(many, full)
            if step.verb in SENDS:
                empty = slots - (sent[go] - taken[go])
                if empty <= 0:
                    sleepers[go, "empty"].append(block)
                    break
                many = min(many, empty)
                sent[go] += many
                if (go, "full") in sleepers:
                    work += sleepers.pop((go, "full"))
            if step.verb in RECEIVES:
                taken[come] += many
                if (come, "empty") in sleepers:
                    work += sleepers.pop((come, "empty"))
            rest -= many
            if not rest:
                here += 1
                at[block] = here
                rest = steps[here].count if here < len(steps) else 0
                if block in sleepers:
                    work += sleepers.pop(block)
        left[block] = rest
    return [block for block in every if at[block] < len(block.steps)]


# ---- numbers ----


FUSED_REDUCTIONS = 16
Place = tuple[int, int]  # a buffer and the chunk in it


@dataclass(slots=True)
class Row:
    """A step. `src`, `dst`: None where it has none. `after`: block and step that it waits for. `flag`: whether others
    may wait for it."""

    verb: str
    src: Place | None
    dst: Place | None
    count: int
    after: tuple[int, int] | None
    flag: bool


@dataclass(slots=True)
class Numbered:
    channel: int
    send: int
    recv: int
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of all ranks, in their numbers. `sizes`: per rank chunks of input, output and scratch. `unit`: chunks of a
    unit of weight."""

    program: Program
    unit: int
    sizes: list[tuple[int, int, int]]
    ranks: list[list[Numbered]]
    channels: int


def numbered(program: Program, bound: Bound, values: Values, blocks: list[list[Block]], limits: Limits) -> Blocks:
    """Linear in steps and cells."""
    ranks, sizes = [], []
    for rank, mine in enumerate(blocks):
        size = [int(each) for each in bound.sizes[rank]]
        used = _scratch(mine, values.scratch[rank], size[SCRATCH])
        where = _Cells(size, used)
        ranks.append(_rank(rank, [block for block in mine if block.steps], where, limits))
        sizes.append((size[INPUT], size[OUTPUT], max(used, default=-1) + 1))
    return Blocks(program, bound.unit, sizes, ranks, 1 + max((b.channel for mine in ranks for b in mine), default=0))


@dataclass(frozen=True)
class _Cells:
    sizes: list[int]
    scratch: list[int]  # per chunk of scratch as it was its place now

    def place(self, cell: int) -> Place | None:
        if cell < 0:
            return None
        first = bases(self.sizes)
        buffer = SCRATCH if cell >= first[SCRATCH] else OUTPUT if cell >= first[OUTPUT] else INPUT
        at = cell - first[buffer]
        return buffer, self.scratch[at] if buffer == SCRATCH else at


def _scratch(blocks: list[Block], first: int, size: int) -> list[int]:
    """Chunks of scratch that nothing touches are left out: per chunk its place among those that are used."""
    touched = bytearray(size)
    for block in blocks:
        for step in block.steps:
            for cell in (step.src, step.dst):
                if cell >= first:
                    touched[cell - first : cell - first + step.count] = b"\1" * step.count
    places, at = [], -1
    for one in touched:
        at += one
        places.append(at)
    return places


def _rank(rank: int, blocks: list[Block], where: _Cells, limits: Limits) -> list[Numbered]:
    awaited = {one.block for block in blocks for step in block.steps for one in step.waits}
    if len(awaited) > limits.waited:
        raise Unsupported(
            f"rank {rank} waits for {len(awaited)} thread blocks, and only {limits.waited} have numbers that can be "
            "waited for (a block receives from one rank, so what so many send cannot all be added up); take a planner "
            "with fewer partners (recmult, halving-doubling, ring) or fewer ranks"
        )
    blocks = sorted(blocks, key=lambda block: block not in awaited)
    number = {block: at for at, block in enumerate(blocks)}
    at: dict[Step, int] = {}
    for block in blocks:
        row = 0
        for step in block.steps:
            row += max(len(step.waits), 1)
            at[step] = row - 1
    flags = {one for block in blocks for step in block.steps for one in step.waits}
    made = []
    for block in blocks:
        verbs = {step.verb for step in block.steps}
        send = block.send if verbs & set(SENDS) else -1
        recv = block.recv if verbs & set(RECEIVES) else -1
        here = Numbered(block.channel if send >= 0 or recv >= 0 else 0, send, recv)
        for step in block.steps:
            after = [(number[one.block], at[one]) for one in step.waits]
            here.rows += [Row("nop", None, None, 0, one, False) for one in after[:-1]]
            src, dst = where.place(step.src), where.place(step.dst)
            here.rows.append(Row(step.verb, src, dst, step.count, after[-1] if after else None, step in flags))
        part_reductions(here.rows)
        made.append(here)
    return made


def part_reductions(rows: list[Row]) -> None:
    """The runtime takes local reductions into one place from one buffer as one, with the count of the last, until one
    of them has a flag; and has room for so many. So a flag ends those that must not be one."""
    group = 0
    for last, row in pairwise(rows):
        group += 1
        together = last.verb == row.verb == "re" and last.dst == row.dst and row.after is None and not last.flag
        if together and (last.count != row.count or group >= FUSED_REDUCTIONS):
            last.flag, together = True, False
        if not together:
            group = 0


# ---- all stages ----


MOST_TRIED = 3


@uncollected()
def blocks(program: Program, limits: Limits | None = None, *, apart: bool = False, what: str = "blocks") -> Blocks:
    """Thread blocks that do what a program does, within the limits of a runtime; `what` asks for them.

    First with blocks that send on what they receive, on as many lanes as that takes, and on one; what takes fewer
    blocks is taken. Where channels do not suffice, no block sends on. `apart`: no step reaches over the end of a block
    of the collective.
    """
    limits = limits or Limits()
    bound = chunked(program, limits.chunks, what)
    best: tuple[int, Values, list[list[Block]]] | None = None
    for most in (limits.channels, 1, 0) if program.channels == 1 and limits.fused else (0,):
        if most == 0 and best is not None:
            break
        try:
            found, lanes_used = _placed(program, bound, limits, apart, most)
        except Full:
            continue
        many = max(len(mine) for mine in found[1])
        if best is None or many < best[0]:
            if best is not None:
                dissolve_blocks(best[2])
            best = many, *found
        else:
            dissolve_blocks(found[1])
        if lanes_used == 1:
            break
    if best is None:
        raise Unsupported(
            f"{what}: it needs more than {limits.channels} channels with blocks of {limits.steps} steps; take a "
            "planner with fewer steps, or fewer chunks"
        )
    done = numbered(program, bound, best[1], best[2], limits)
    dissolve_blocks(best[2])
    return done


def _placed(
    program: Program, bound: Bound, limits: Limits, apart: bool, most: int
) -> tuple[tuple[Values, list[list[Block]]], int]:  # fmt: skip
    """Blocks on so many lanes, and how many are used. With 0, and where blocks that send on what they receive get stuck
    again and again because each waits for an empty slot of the next, none does so: then nothing gets stuck, as messages
    and waits go by the times of the program."""
    refused: set[Turn] = set()
    for tried in range(MOST_TRIED + 1):
        known = values(program, bound, apart)
        flow(known, limits.count, limits.fused)
        alone = not most or tried == MOST_TRIED
        ways = by_channel(known, program.channels) if alone else lanes(known, most, refused)
        made = place(known, ways, limits)
        waiting = find_stuck(made, limits.slots)
        dissolve_segments(known)
        if not waiting:
            return (known, made), len(ways)
        refused |= {_turn(block) for block in waiting if block.send >= 0 and block.recv >= 0}
    raise AssertionError("blocks that only send or only receive never get stuck")


def _turn(block: Block) -> Turn:
    return block.rank, block.recv, block.send
