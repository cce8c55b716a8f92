"""Second stage of the compilation to thread blocks: cut messages into segments, each moved by one step at sender and
receiver; decide which are folded or forwarded on arrival, and which share channels.

A message that is received only to be folded (reduced into other data) is folded on arrival (**direct**) if all else
that the fold waits for is done at earlier times. So receives wait only for what is done earlier, and programs cannot
deadlock for that reason (docs/program.md). A segment that is forwarded exactly as it arrived has the segment by which
it arrived as its **parent**; segments linked so form a chain.

A block receives from one rank and sends to one rank, on one channel. So a **lane** maps (rank, source) to the
destination to which that rank forwards, each destination at most once; chains that agree on this share a lane, and
thereby channels. A chain that fits no lane is cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND
from antiphon.lower.blocks.operations import Operation, Piece, Run, Segment, Values

Part = TypeVar("Part", Piece, Segment)


def cut_segments(values: Values, max_chunks: int, fused: bool = True) -> None:
    """Set the segments and pieces of all operations.

    `max_chunks`: maximum number of chunks of a step; `fused`: whether messages are folded on arrival.
    """
    if fused:
        for operation in values.every():
            if operation.kind == FOLD:
                _find_direct(values, operation)
    # Stage 1: where messages and folds must be cut.
    edges, cuts = _find_cuts(values, max_chunks)
    for fold, fold_cuts in cuts.items():
        fold.pieces = _cut_fold(fold, fold_cuts, fold.pieces[0].memory)
    for send, receive in values.messages:
        runs = receive.runs
        if send not in edges and send.length <= max_chunks and not (runs and runs[0].fold in cuts):  # as nearly all
            piece = runs[0].fold.pieces[0] if runs else None
            segments = [Segment(send, receive, 0, send.length, send.spans[0][0], receive.spans[0][0], piece)]
        else:
            segments = _cut_message(send, receive, edges.get(send) or {receive.length}, cuts, max_chunks)
        send.segments = receive.segments = segments
    for operation in values.every():  # chains in the order in which messages are received
        if operation.kind == RECEIVE:
            for segment in operation.segments:
                if segment.piece is not None:
                    segment.piece.chain.append(segment)
    _find_parents(values)


def dissolve_segments(values: Values) -> None:
    """Break the reference cycles of segments and operations, so that the garbage collector is not needed."""
    for operation in values.every():
        if operation.kind == SEND:
            for segment in operation.segments:
                segment.piece = segment.parent = segment.child = segment.step = None
        operation.segments = operation.runs = operation.pieces = ()


def _find_cuts(values: Values, max_chunks: int) -> tuple[dict[Operation, set[int]], dict[Operation, set[int]]]:
    """Return where sends end or are cut, and where folds with pieces are cut; only for those that are cut."""
    cuts = {
        operation: set(range(max_chunks, operation.length, max_chunks))
        for operation in values.every()
        if operation.pieces and operation.length > max_chunks
    }
    edges: dict[Operation, set[int]] = {}
    for send, receive in values.messages:
        runs = receive.runs
        if len(send.spans) == len(receive.spans) == 1 and (not runs or runs[0].count == receive.length):
            continue
        runs = receive.runs = sorted(runs, key=lambda run: run.offset)
        edges[send] = _stretch_ends(send) | _stretch_ends(receive)
        for run in runs:
            edges[send] |= {run.offset, run.offset + run.count}
            inside = {at - run.offset for at in edges[send] if run.offset < at < run.offset + run.count}
            if inside:
                cuts.setdefault(run.fold, set()).update(inside)
    return edges, cuts


def _find_direct(values: Values, fold: Operation) -> None:
    """Set which operands of a fold are folded on arrival: their runs, and the piece with the cells of the other
    operands, the result's own first.
    """
    length, versions, writers = fold.length, fold.versions, values.writer
    runs: list[Run] = []
    other_cells: list[int] = []
    busy: set[Operation] = set()
    for at, (cell, _) in zip(range(0, len(versions), length), fold.spans[1:], strict=True):
        first = versions[at]
        writer = writers[first] if first >= 0 else None
        if (
            writer is not None and writer.kind == RECEIVE and first + length <= writer.first + writer.length
            and (length == 1 or versions[at : at + length] == list(range(first, first + length)))
            and values.only(first, length, fold)
        ):  # fmt: skip
            runs.append(Run(first - writer.first, length, fold, writer, cell))
        else:
            other_cells.append(cell)
            busy.update([writers[version] for version in versions[at : at + length] if version >= 0])
    if not runs:
        return
    # A message that is also read elsewhere must be stored, so it cannot be folded as it comes.
    direct = {run.receive for run in runs} - busy
    result = fold.spans[0][0]
    awaited = [operation for operation in waits_through_joins(fold) if operation not in direct]
    for run in runs:
        if run.cell == result and run.receive in direct:  # which the first step then waits for
            awaited += waits_through_joins(run.receive)
    latest = max([operation.when for operation in awaited], default=-1)
    for run in runs:
        # Only if all else that the fold waits for is done earlier: receives must not wait for later times.
        if run.receive in direct and run.receive.when > latest:
            run.receive.runs = [*run.receive.runs, run]
        else:
            other_cells.append(run.cell)
    if len(other_cells) < len(fold.spans) - 1:
        fold.pieces = [Piece(fold, 0, length, result, sorted(other_cells, key=lambda cell: cell != result), [])]


def waits_through_joins(operation: Operation) -> Iterable[Operation]:
    """Return the operations that it waits for, directly or through joins."""
    for other in operation.waits:
        if other.kind == JOIN:
            break
    else:
        return operation.waits
    visited: dict[Operation, None] = {}
    work = deque(operation.waits)
    while work:
        other = work.popleft()
        if other not in visited:
            visited[other] = None
            if other.kind == JOIN:
                work.extend(other.waits)
    return [other for other in visited if other.kind != JOIN]


def _stretch_ends(message: Operation) -> set[int]:
    """Return the ends of its stretches within its stream."""
    if len(message.spans) == 1:
        return {message.spans[0][1]}
    offsets, at = set(), 0
    for _, count in message.spans:
        at += count
        offsets.add(at)
    return offsets


def _cut_fold(fold: Operation, cuts: set[int], memory: list[int]) -> list[Piece]:
    edges = sorted(cuts | {0, fold.length})
    return [
        Piece(fold, low, high - low, fold.spans[0][0] + low, [cell + low for cell in memory], [])
        for low, high in pairwise(edges)
    ]


def _find_beginning(stretches: Sequence[Part], offset: int) -> Part | None:
    """Return the part that begins at this offset, or None."""
    for stretch in stretches:
        if stretch.offset == offset:
            return stretch
    return None


def _cut_message(
    send: Operation, receive: Operation, edges: set[int], cuts: dict[Operation, set[int]], max_chunks: int
) -> list[Segment]:  # fmt: skip
    """Return the segments of a message, cut at these offsets and at the maximum size."""
    edges = edges | {0}
    for run in receive.runs:
        edges |= {run.offset + at for at in cuts.get(run.fold, ())}
    ordered = sorted(edges)
    segments: list[Segment] = []
    of_run = {run.offset: run for run in receive.runs}
    current: Run | None = None
    source, target = _Walk(send), _Walk(receive)
    for low, high in pairwise(ordered):
        if current is not None and low >= current.offset + current.count:
            current = None
        current = of_run.get(low, current)
        src, dst = source.cell(low), target.cell(low)
        if current is not None:
            piece = _find_beginning(current.fold.pieces, low - current.offset)
            segments.append(Segment(send, receive, low, high - low, src, dst, piece))
            continue
        for at in range(low, high, max_chunks):
            segments.append(Segment(send, receive, at, min(max_chunks, high - at), src + at - low, dst + at - low))
    return segments


class _Walk:
    """Finds the cell at an offset of a message; offsets must ascend."""

    def __init__(self, operation: Operation) -> None:
        self.spans, self.number, self.start = operation.spans, 0, 0

    def cell(self, offset: int) -> int:
        while offset >= self.start + self.spans[self.number][1]:
            self.start += self.spans[self.number][1]
            self.number += 1
        return self.spans[self.number][0] + offset - self.start


def _find_parents(values: Values) -> None:
    """Link each segment that is exactly what another segment brought to that one as its parent."""
    for operation in values.every():
        if operation.kind != SEND:
            continue
        for segment in operation.segments:
            first = operation.versions[segment.offset]
            if first < 0:
                continue
            # Forwarding needs the same versions in the same order.
            if segment.count > 1:
                read = operation.versions[segment.offset : segment.offset + segment.count]
                if read != list(range(first, first + segment.count)):
                    continue
            writer = values.writer[first]
            parent: Segment | None = None
            if writer.kind == RECEIVE:
                parent = _find_beginning(writer.segments, first - writer.first)
                if parent is not None and parent.piece is not None:
                    parent = None
            elif (piece := _find_beginning(writer.pieces, first - writer.first)) is not None:
                after = len(piece.memory) > 1
                parent = None if after else piece.chain[-1]
                segment_passes = piece.cell >= values.scratch[operation.rank]
                segment.passing = segment_passes and values.only(first, segment.count, operation)
            if parent is None or parent.count != segment.count or parent.child is not None:
                segment.passing = False
                continue
            segment.parent, parent.child = parent, segment


# ---- lanes ----


Turn = tuple[int, int, int]  # a rank that forwards, the rank it receives from, the rank it sends to


@dataclass(eq=False)
class Lane:
    """Where each rank forwards what it receives from each other rank, on channels of this lane."""

    after: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, from): to
    before: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, to): from

    def fits(self, turn: Turn) -> bool:
        rank, source, target = turn
        return self.after.get((rank, source), target) == target and self.before.get((rank, target), source) == source

    def add(self, turn: Turn) -> None:
        rank, source, target = turn
        self.after[rank, source], self.before[rank, target] = target, source


def assign_lanes(values: Values, max_lanes: int, refused: set[Turn]) -> list[Lane]:
    """Assign every segment a lane; no rank forwards in the turns of `refused`. Linear in segments and lanes."""
    open_lanes = [Lane()]
    lane_of_path: dict[tuple[int, ...], int] = {}
    work = list(_chain_heads(values))
    work.reverse()
    while work:
        chain = [work.pop()]
        while (child := chain[-1].child) is not None:
            if _turn_of(child) in refused:
                work.append(_detach_from_parent(child))
            else:
                chain.append(child)
        path = (*(segment.send.rank for segment in chain), chain[-1].receive.rank)
        # Chains along the same ranks share a lane; a new path takes the first lane where all its turns fit.
        if path not in lane_of_path:
            number, turns_taken = _choose_lane(open_lanes, [_turn_of(segment) for segment in chain[1:]], max_lanes)
            if turns_taken < len(chain) - 1:
                work.append(_detach_from_parent(chain[turns_taken + 1]))
                chain = chain[: turns_taken + 1]
            lane_of_path[(*(segment.send.rank for segment in chain), chain[-1].receive.rank)] = number
        else:
            number = lane_of_path[path]
        for segment in chain:
            segment.lane = number
    return open_lanes


def by_channel(values: Values, channels: int) -> list[Lane]:
    """Use a lane for each channel of a program that has several, without forwarding."""
    for operation in values.every():
        if operation.kind == SEND:
            for segment in operation.segments:
                segment.lane, segment.parent, segment.child, segment.passing = operation.channel, None, None, False
    return [Lane() for _ in range(channels)]


def _chain_heads(values: Values) -> Iterator[Segment]:
    for operation in values.every():
        if operation.kind == SEND:
            for segment in operation.segments:
                if segment.parent is None:
                    yield segment


def _turn_of(segment: Segment) -> Turn:
    assert segment.parent is not None
    return segment.send.rank, segment.parent.send.rank, segment.receive.rank


def _detach_from_parent(segment: Segment) -> Segment:
    assert segment.parent is not None
    segment.parent.child = None
    segment.parent = None
    segment.passing = False
    return segment


def _choose_lane(open_lanes: list[Lane], turns: list[Turn], max_lanes: int) -> tuple[int, int]:
    """Choose the lane of a chain; return it and the number of turns that fit."""
    number = next((at for at, lane in enumerate(open_lanes) if all(lane.fits(turn) for turn in turns)), len(open_lanes))
    if number == len(open_lanes) < max_lanes:
        open_lanes.append(Lane())
    number, turns_taken = min(number, len(open_lanes) - 1), 0
    for turn in turns:
        if not open_lanes[number].fits(turn):
            break
        open_lanes[number].add(turn)
        turns_taken += 1
    return number, turns_taken
