"""Thread blocks as a file has them: numbers, the one dependency of a step, and flags where others wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Unsupported
from antiphon.lower.blocks.limits import Limits
from antiphon.lower.blocks.operations import Values, bases
from antiphon.lower.blocks.steps import RECEIVES, SENDS, Block, Step

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
