"""Compile a program to thread blocks (MSCCL): operations, segments, tracks, placement, a test for deadlocks, numbering.

MSCCL's executor runs on each GPU a set of thread blocks. In this file a *block* is a thread block, and a *step* is one
of its instructions (MSCCL's word). A block has one peer to send to, one to receive from, one channel, and executes its
steps in order. Messages between two blocks go through a queue of a few slots. `compile_to_blocks`, which
formats call, chooses all of these in stages:

    operations.py   the program's operations chunk by chunk, and which of them reads what another wrote
    segments.py     messages cut into segments, each moved by one step; chains of segments that are forwarded without
                    being stored first; tracks, sets of chains that may share channels
    place.py        assign steps to blocks and channels, with the steps that each waits for
    find_stuck      simulate the queues of finite depth: does every block reach its end?
    number_*        numbers of blocks, steps and scratch as a file has them

A block that forwards (sends what it receives in the same step) saves steps, but such blocks may deadlock, each waiting
for a free slot of the next. The turns of stuck blocks (a turn: the rank that forwards, its source, its destination) are
then refused and placement is repeated. After MAX_FORWARDING_ATTEMPTS no block forwards, which cannot deadlock.

Verbs of steps, as in MSCCL: s send, r receive, rcs receive-copy-send, rrc receive-reduce-copy (into a buffer), rrs
receive-reduce-send, rrcs receive-reduce-copy-send, cpy copy and re reduce inside a rank, nop only wait.

Example: a ring allgather on 4 GPUs needs one block per GPU: receive from the left, copy, send to the right (`rcs`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH, chunked
from antiphon.errors import Unsupported
from antiphon.lower.blocks.operations import (
    RECEIVES,
    SENDS,
    Block,
    BlockStep,
    ProgramValues,
    dissolve_blocks,
    first_cells_of,
    read_values,
)
from antiphon.lower.blocks.place import Full, RuntimeLimits, place_steps
from antiphon.lower.blocks.segments import Turn, assign_tracks, cut_segments, dissolve_segments, tracks_by_channel
from antiphon.lower.without_gc import without_gc


def find_stuck(blocks_of_rank: list[list[Block]], slots: int) -> list[Block]:
    """Return the blocks that never reach their end with queues of `slots` slots.

    A slot holds one chunk. Linear in steps, unless queues are often full.
    """
    all_blocks = [block for rank_blocks in blocks_of_rank for block in rank_blocks]
    current_index = dict.fromkeys(all_blocks, 0)  # per block the index of its current step
    remaining = {block: block.steps[0].count for block in all_blocks if block.steps}  # chunks of the current step
    # Chunks put into and taken from each queue, which is named by (from, to, channel).
    sent: dict[tuple[int, int, int], int] = defaultdict(int)
    received: dict[tuple[int, int, int], int] = defaultdict(int)
    # What a block waits for (a block to proceed, or a filled or free slot of a queue) -> the blocks that sleep on it.
    sleepers: dict[object, list[Block]] = defaultdict(list)
    work = [block for block in all_blocks if block.steps]
    # Simulate until no block can proceed. A block sleeps on the one condition that it lacks and is woken by it.
    while work:
        block = work.pop()
        incoming = (block.recv, block.rank, block.channel)
        outgoing = (block.rank, block.send, block.channel)
        steps, index, chunks_left = block.steps, current_index[block], remaining[block]
        while index < len(steps):
            step = steps[index]
            unfinished = None  # the block that this step waits for
            for awaited in step.waits:
                if (index if awaited.block is block else current_index[awaited.block]) <= awaited.index:
                    unfinished = awaited.block
                    break
            if unfinished is not None:
                sleepers[unfinished].append(block)
                break
            count = chunks_left
            if step.verb in RECEIVES:
                filled_slots = sent[incoming] - received[incoming]
                if not filled_slots:
                    sleepers[incoming, "filled"].append(block)
                    break
                count = min(count, filled_slots)
            if step.verb in SENDS:
                free_slots = slots - (sent[outgoing] - received[outgoing])
                if free_slots <= 0:
                    sleepers[outgoing, "free"].append(block)
                    break
                count = min(count, free_slots)
                sent[outgoing] += count
                if (outgoing, "filled") in sleepers:
                    work += sleepers.pop((outgoing, "filled"))
            if step.verb in RECEIVES:
                received[incoming] += count
                if (incoming, "free") in sleepers:
                    work += sleepers.pop((incoming, "free"))
            chunks_left -= count
            if not chunks_left:
                index += 1
                current_index[block] = index
                chunks_left = steps[index].count if index < len(steps) else 0
                if block in sleepers:
                    work += sleepers.pop(block)
        remaining[block] = chunks_left
    return [block for block in all_blocks if current_index[block] < len(block.steps)]


# ---- numbers ----


FUSED_REDUCTIONS = 16  # successive local reductions that MSCCL's runtime fuses at most
Place = tuple[int, int]  # a buffer and the chunk in it


@dataclass(slots=True)
class NumberedStep:
    """A step as a file has it."""

    verb: str  # see the opening of this file
    src: Place | None
    dst: Place | None
    count: int  # chunks
    after: tuple[int, int] | None  # the block and the step that it waits for
    flag: bool  # whether other steps may wait for it


@dataclass(slots=True)
class NumberedBlock:
    """A thread block as a file has it."""

    channel: int
    send: int  # the rank that it sends to, -1: none
    recv: int  # the rank that it receives from, -1: none
    rows: list[NumberedStep] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Thread blocks of all ranks, numbered."""

    program: Program
    unit: int  # chunks per weight 1 of a block of the collective
    sizes: list[tuple[int, int, int]]  # per rank: chunks of input, output and scratch
    ranks: list[list[NumberedBlock]]  # per rank its thread blocks
    channels: int  # their number


def number_blocks(
    program: Program,
    layout: BufferLayout,
    values: ProgramValues,
    blocks_of_rank: list[list[Block]],
    limits: RuntimeLimits,
) -> Blocks:
    """Number blocks, steps and scratch of all ranks. Linear in steps and cells."""
    ranks, sizes = [], []
    for rank, rank_blocks in enumerate(blocks_of_rank):
        size = [int(chunks) for chunks in layout.sizes[rank]]
        scratch_number = _number_scratch(rank_blocks, values.scratch[rank], size[SCRATCH])
        cells = _Cells(size, scratch_number)
        ranks.append(_number_rank(rank, [block for block in rank_blocks if block.steps], cells, limits))
        sizes.append((size[INPUT], size[OUTPUT], max(scratch_number, default=-1) + 1))
    last_channel = max((block.channel for rank_blocks in ranks for block in rank_blocks), default=0)
    return Blocks(program, layout.unit, sizes, ranks, 1 + last_channel)


@dataclass(frozen=True)
class _Cells:
    """Converts cells of a rank to places (buffer, chunk)."""

    sizes: list[int]  # chunks of input, output and scratch
    scratch_number: list[int]  # per chunk of scratch its new number

    def place_of(self, cell: int) -> Place | None:
        if cell < 0:  # a step without source, or without destination
            return None
        first = first_cells_of(self.sizes)
        buffer = SCRATCH if cell >= first[SCRATCH] else OUTPUT if cell >= first[OUTPUT] else INPUT
        offset = cell - first[buffer]
        return buffer, self.scratch_number[offset] if buffer == SCRATCH else offset


def _number_scratch(rank_blocks: list[Block], first: int, size: int) -> list[int]:
    """Return the new number of each chunk of scratch: only used chunks are counted. Entries of unused ones are void.

    `first`: the first cell of scratch. `size`: chunks of scratch.
    """
    used_cells = bytearray(size)
    for block in rank_blocks:
        for step in block.steps:
            for cell in (step.src, step.dst):
                if cell >= first:
                    used_cells[cell - first : cell - first + step.count] = b"\1" * step.count
    numbers, number = [], -1
    for is_used in used_cells:
        number += is_used
        numbers.append(number)
    return numbers


def _number_rank(rank: int, rank_blocks: list[Block], cells: _Cells, limits: RuntimeLimits) -> list[NumberedBlock]:
    """Return the numbered blocks of a rank. Waits beyond the first of a step become steps of their own (nop)."""
    awaited_steps = {awaited for block in rank_blocks for step in block.steps for awaited in step.waits}
    awaited_blocks = {step.block for step in awaited_steps}
    if len(awaited_blocks) > limits.waited:
        raise Unsupported(
            f"rank {rank} waits for {len(awaited_blocks)} thread blocks (each receives from one rank); MSCCL can wait "
            f"only for the first {limits.waited} of a rank; take a planner with fewer partners (recmult, "
            "halving-doubling, ring) or fewer ranks"
        )
    # Blocks that others wait for come first: only the first `limits.waited` numbers can be waited for.
    rank_blocks = sorted(rank_blocks, key=lambda block: block not in awaited_blocks)
    number_of = {block: number for number, block in enumerate(rank_blocks)}
    row_of: dict[BlockStep, int] = {}  # its row in its block; the rows of its further waits precede it
    for block in rank_blocks:
        row = 0
        for step in block.steps:
            row += max(len(step.waits), 1)
            row_of[step] = row - 1
    numbered_blocks = []
    for block in rank_blocks:
        verbs = {step.verb for step in block.steps}
        send = block.send if verbs & set(SENDS) else -1
        recv = block.recv if verbs & set(RECEIVES) else -1
        numbered_block = NumberedBlock(block.channel if send >= 0 or recv >= 0 else 0, send, recv)
        for step in block.steps:
            waits = [(number_of[awaited_step.block], row_of[awaited_step]) for awaited_step in step.waits]
            numbered_block.rows += [
                NumberedStep("nop", src=None, dst=None, count=0, after=awaited, flag=False) for awaited in waits[:-1]
            ]
            src, dst = cells.place_of(step.src), cells.place_of(step.dst)
            numbered_block.rows.append(
                NumberedStep(step.verb, src, dst, step.count, waits[-1] if waits else None, flag=step in awaited_steps)
            )
        separate_reductions(numbered_block.rows)
        numbered_blocks.append(numbered_block)
    return numbered_blocks


def separate_reductions(rows: list[NumberedStep]) -> None:
    """Set flags that separate local reductions which the runtime must not fuse.

    The runtime fuses successive reductions that have one destination, up to FUSED_REDUCTIONS or up to a reduction with
    a flag; the count of the final one then holds for all.
    """
    group = 0
    # Invariant: the runtime would fuse `previous` with the `group` rows before it.
    for previous, row in pairwise(rows):
        group += 1
        is_reduction = previous.verb == row.verb == "re"
        would_fuse = is_reduction and previous.dst == row.dst and row.after is None and not previous.flag
        if would_fuse and (previous.count != row.count or group >= FUSED_REDUCTIONS):
            previous.flag, would_fuse = True, False
        if not would_fuse:
            group = 0


# ---- all stages ----


MAX_FORWARDING_ATTEMPTS = 3  # placements with blocks that forward, for each limit of tracks


@without_gc()  # millions of objects; the dissolve_* functions break their cycles
def compile_to_blocks(
    program: Program, limits: RuntimeLimits | None = None, *, split_blocks: bool = False, format_name: str = "blocks"
) -> Blocks:
    """Compile a program to thread blocks within the limits of a runtime.

    Tries thread blocks that forward what they receive, on as many tracks as needed and on one track (segments.py), and
    returns the attempt with fewer thread blocks. If channels do not suffice, no thread block forwards. `split_blocks`:
    no step crosses the end of a block of the collective. Raises Unsupported in the name of `format_name`.
    """
    limits = limits or RuntimeLimits()
    layout = chunked(program, limits.chunks, format_name)  # its addresses, counted in chunks
    best: _PlacedBlocks | None = None
    # Try many tracks, then one, then no forwarding; keep the attempt with the fewest blocks. Forwarding takes a runtime
    # with steps that both receive and send (`fused_receives`), and a program whose channels are not chosen already.
    for track_limit in (limits.channels, 1, 0) if program.channels == 1 and limits.fused_receives else (0,):
        if track_limit == 0 and best is not None:
            break
        try:
            placement = _place_blocks(program, layout, limits, split_blocks, track_limit)
        except Full:
            continue
        if best is None or placement.most_blocks < best.most_blocks:
            if best is not None:
                dissolve_blocks(best.blocks_of_rank)
            best = placement
        else:
            dissolve_blocks(placement.blocks_of_rank)
        if placement.tracks == 1:  # a limit of one track would give the same
            break
    if best is None:
        raise Unsupported(
            f"{format_name}: it needs more than {limits.channels} channels with blocks of {limits.steps} steps; take a "
            "planner with fewer steps, or fewer chunks"
        )
    result = number_blocks(program, layout, best.values, best.blocks_of_rank, limits)
    dissolve_blocks(best.blocks_of_rank)
    return result


class _PlacedBlocks(NamedTuple):
    """The program's operations, and the blocks that execute them."""

    values: ProgramValues
    blocks_of_rank: list[list[Block]]
    tracks: int  # used

    @property
    def most_blocks(self) -> int:
        """The thread blocks of the rank that has most."""
        return max(map(len, self.blocks_of_rank))


def _place_blocks(
    program: Program, layout: BufferLayout, limits: RuntimeLimits, split_blocks: bool, track_limit: int
) -> _PlacedBlocks:  # fmt: skip
    """Place thread blocks on up to `track_limit` tracks.

    No block forwards if `track_limit` is 0, or after MAX_FORWARDING_ATTEMPTS in which forwarding blocks got stuck. Then
    no block gets stuck, as messages and waits follow the order of steps in the program.
    """
    refused: set[Turn] = set()
    for attempt in range(MAX_FORWARDING_ATTEMPTS + 1):
        values = read_values(program, layout, split_blocks)
        cut_segments(values, limits.count, limits.fused_receives)
        if not track_limit or attempt == MAX_FORWARDING_ATTEMPTS:
            tracks = tracks_by_channel(values, program.channels)
        else:
            tracks = assign_tracks(values, track_limit, refused)
        blocks_of_rank = place_steps(values, tracks, limits)
        stuck = find_stuck(blocks_of_rank, limits.slots)
        dissolve_segments(values)
        if not stuck:
            return _PlacedBlocks(values, blocks_of_rank, len(tracks))
        refused |= {(block.rank, block.recv, block.send) for block in stuck if block.send >= 0 and block.recv >= 0}
    raise AssertionError("blocks that only send or only receive never get stuck")
