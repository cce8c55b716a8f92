"""Second stage of the compilation to thread blocks: cut messages into segments, each moved by one instruction of a
thread block at the sender and one at the receiver; decide which segments are folded or forwarded on arrival, and which
share channels.

Every operation of the program has a time (`Operation.when`) that orders the operations of all ranks. A message that is
received only to be folded (reduced into other data) is folded on arrival (**direct**) if everything else that the fold
waits for has a smaller time than the receive. So receives wait only for operations of smaller times, and programs
cannot deadlock for that reason (docs/program.md). A **stretch** is a range of a fold's result that is computed in this
way. A segment that is forwarded exactly as it arrived has the segment by which it arrived as its **parent**; segments
linked in this way form a chain.

A thread block receives from one rank and sends to one rank, on one channel. So a **track** gives, for each rank, a
one-to-one map from the source that it receives from to the destination that it forwards to. Chains that agree on these
maps share a track, and thereby channels. A chain that fits no track is cut.

Example: rank 1 forwards chunks from rank 0 to rank 2, and other chunks from rank 0 to rank 3. The chains 0, 1, 2 and 0,
1, 3 disagree at rank 1 (source 0), so they need two tracks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeVar

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND
from antiphon.lower.blocks.operations import DirectOperand, FoldStretch, Operation, ProgramValues, Segment

Interval = TypeVar("Interval", FoldStretch, Segment)


def cut_segments(values: ProgramValues, max_chunks: int, fused: bool = True) -> None:
    """Set the segments of all messages and the stretches of all folds on arrival.

    `max_chunks`: maximum number of chunks of an instruction. `fused`: whether messages are folded on arrival. The
    caller frees the segments by `dissolve_segments`.
    """
    if fused:
        for operation in values.operations():
            if operation.kind == FOLD:
                _find_direct(values, operation)
    # Stage 1: where messages and folds must be cut.
    edges, cuts = _find_cuts(values, max_chunks)
    for fold, fold_cuts in cuts.items():
        fold.fold_stretches = _cut_fold(fold, fold_cuts, fold.fold_stretches[0].stored_operands)
    for send, receive in values.messages:
        operands = receive.direct_operands
        # The usual case: nothing to cut. (A message without edges has at most one direct operand.)
        if send not in edges and send.length <= max_chunks and not (operands and operands[0].fold in cuts):
            stretch = operands[0].fold.fold_stretches[0] if operands else None
            src, dst = _first_cell(send), _first_cell(receive)
            segments = [Segment(send, receive, offset=0, count=send.length, src=src, dst=dst, fold_stretch=stretch)]
        else:
            # a message without edges is cut only where its fold is, and at the maximum size
            segments = _cut_message(send, receive, edges.get(send) or {receive.length}, cuts, max_chunks)
        send.segments = receive.segments = segments
    for operation in values.operations():  # chains in the order in which messages are received
        if operation.kind == RECEIVE:
            for segment in operation.segments:
                if segment.fold_stretch is not None:
                    segment.fold_stretch.chain.append(segment)
    _find_parents(values)


def dissolve_segments(values: ProgramValues) -> None:
    """Break the reference cycles of segments and operations, so that the garbage collector is not needed."""
    for operation in values.operations():
        if operation.kind == SEND:
            for segment in operation.segments:
                segment.fold_stretch = segment.parent = segment.child = segment.step = None
        operation.segments = operation.direct_operands = operation.fold_stretches = ()


def _find_cuts(values: ProgramValues, max_chunks: int) -> tuple[dict[Operation, set[int]], dict[Operation, set[int]]]:
    """Return the offsets of the borders of each send that must be cut, and the cuts of each fold that must be cut.

    Borders include the end of the message; cuts lie strictly inside the fold.

    A side effect: the direct operands of these messages are sorted by offset.
    """
    cuts = {
        operation: set(range(max_chunks, operation.length, max_chunks))
        for operation in values.operations()
        if operation.fold_stretches and operation.length > max_chunks
    }
    edges: dict[Operation, set[int]] = {}
    for send, receive in values.messages:
        operands = receive.direct_operands
        # One span at either end, and the message is no operand, or one as a whole: nothing to cut.
        if len(send.spans) == len(receive.spans) == 1 and (not operands or operands[0].count == receive.length):
            continue
        operands = receive.direct_operands = sorted(operands, key=lambda operand: operand.offset)
        edges[send] = _span_ends(send) | _span_ends(receive)
        for operand in operands:
            begin, end = operand.offset, operand.offset + operand.count
            edges[send] |= {begin, end}
            inner_cuts = {edge - begin for edge in edges[send] if begin < edge < end}
            if inner_cuts:
                cuts.setdefault(operand.fold, set()).update(inner_cuts)
    return edges, cuts


def _find_direct(values: ProgramValues, fold: Operation) -> None:
    """Find the operands of a fold that are folded on arrival, if any.

    Each is appended to the direct operands of its receive. The fold gets one stretch, which lists the cells of the
    other operands, the result's own first. A version is the number of a value that an operation writes into a cell; -1
    stands for a user's input.
    """
    length, versions, writers = fold.length, fold.versions, values.writer
    candidates: list[DirectOperand] = []  # operands that a receive brings, for this fold alone
    other_cells: list[int] = []
    stored_writers: set[Operation] = set()  # operations whose values must be stored
    (result, _), *operand_spans = fold.spans
    for begin, (cell, _) in zip(range(0, len(versions), length), operand_spans, strict=True):
        operand_versions = versions[begin : begin + length]
        first = operand_versions[0]
        writer = writers[first] if first >= 0 else None
        if (
            writer is not None and writer.kind == RECEIVE and first + length <= writer.first + writer.length
            and (length == 1 or operand_versions == list(range(first, first + length)))
            and values.is_only_reader(first, length, fold)
        ):  # fmt: skip
            offset = first - writer.first
            candidates.append(DirectOperand(offset, count=length, fold=fold, receive=writer, cell=cell))
        else:
            other_cells.append(cell)
            stored_writers.update([writers[version] for version in operand_versions if version >= 0])
    if not candidates:
        return
    # A message that another operand also needs must be stored, so it cannot be folded on arrival.
    direct_receives = {operand.receive for operand in candidates} - stored_writers
    awaited = [operation for operation in waits_through_joins(fold) if operation not in direct_receives]
    for operand in candidates:
        # A receive into the result's own cell waits for readers of that cell. The fold's first instruction writes that
        # cell instead, so it must wait for them.
        if operand.cell == result and operand.receive in direct_receives:
            awaited += waits_through_joins(operand.receive)
    latest = max([operation.when for operation in awaited], default=-1)
    for operand in candidates:
        # Receives must not wait for operations of later times.
        if operand.receive in direct_receives and operand.receive.when > latest:
            operand.receive.direct_operands = [*operand.receive.direct_operands, operand]
        else:
            other_cells.append(operand.cell)
    if len(other_cells) < len(operand_spans):
        stored_operands = sorted(other_cells, key=lambda cell: cell != result)  # the result's own cell first
        fold.fold_stretches = [
            FoldStretch(fold, offset=0, count=length, cell=result, stored_operands=stored_operands, chain=[])
        ]


def waits_through_joins(operation: Operation) -> Iterable[Operation]:
    """Return the operations that an operation waits for, directly or through joins (which only wait)."""
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


def _first_cell(operation: Operation) -> int:
    (cell, _), *_ = operation.spans
    return cell


def _span_ends(message: Operation) -> set[int]:
    """Return the offsets in a message at which its spans of cells end."""
    return set(accumulate(count for _, count in message.spans))


def _cut_fold(fold: Operation, cuts: set[int], stored_operands: list[int]) -> list[FoldStretch]:
    """Return the stretches of a fold between these cuts. `stored_operands`: their first cells for the whole fold."""
    edges = sorted(cuts | {0, fold.length})
    return [
        FoldStretch(
            fold, offset=low, count=high - low, cell=_first_cell(fold) + low,
            stored_operands=[cell + low for cell in stored_operands], chain=[],
        )
        for low, high in pairwise(edges)
    ]  # fmt: skip


def _find_beginning(intervals: Sequence[Interval], offset: int) -> Interval | None:
    """Return the interval that begins at this offset, or None."""
    for interval in intervals:
        if interval.offset == offset:
            return interval
    return None


def _cut_message(
    send: Operation, receive: Operation, edges: set[int], cuts: dict[Operation, set[int]], max_chunks: int
) -> list[Segment]:  # fmt: skip
    """Return the segments of a message, cut at these offsets and at the maximum size."""
    edges = edges | {0}
    for operand in receive.direct_operands:
        edges |= {operand.offset + fold_cut for fold_cut in cuts.get(operand.fold, ())}
    segments: list[Segment] = []
    operand_at = {operand.offset: operand for operand in receive.direct_operands}
    current: DirectOperand | None = None  # the operand that the data at `low` are part of
    source_cells, target_cells = _Walk(send), _Walk(receive)
    for low, high in pairwise(sorted(edges)):
        if current is not None and low >= current.offset + current.count:
            current = None
        current = operand_at.get(low, current)
        src, dst = source_cells.cell_at(low), target_cells.cell_at(low)
        if current is not None:
            stretch = _find_beginning(current.fold.fold_stretches, low - current.offset)
            segments.append(Segment(send, receive, low, count=high - low, src=src, dst=dst, fold_stretch=stretch))
            continue
        for offset in range(low, high, max_chunks):
            count, shift = min(max_chunks, high - offset), offset - low
            segments.append(Segment(send, receive, offset, count, src=src + shift, dst=dst + shift))
    return segments


class _Walk:
    """Finds the cell at an offset of a message; offsets must ascend."""

    def __init__(self, operation: Operation) -> None:
        self.spans = iter(operation.spans)
        self.begin = self.end = self.cell = 0  # of the current span: offsets in the message, and its first cell

    def cell_at(self, offset: int) -> int:
        while offset >= self.end:
            self.cell, count = next(self.spans)
            self.begin, self.end = self.end, self.end + count
        return self.cell + offset - self.begin


def _find_parents(values: ProgramValues) -> None:
    """Link each segment to its parent: the segment that brought exactly the same data to the sender, if any."""
    for operation in values.operations():
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
                if parent is not None and parent.fold_stretch is not None:
                    parent = None
            elif (stretch := _find_beginning(writer.fold_stretches, first - writer.first)) is not None:
                # The last receive of a fold completes the result, unless more than one stored operand remains to be
                # added after it; then the result cannot be forwarded by that receive.
                parent = stretch.chain[-1] if len(stretch.stored_operands) <= 1 else None
                in_scratch = stretch.cell >= values.scratch[operation.rank]
                segment.only_forwarded = in_scratch and values.is_only_reader(first, segment.count, operation)
            if parent is None or parent.count != segment.count or parent.child is not None:
                segment.only_forwarded = False
                continue
            segment.parent, parent.child = parent, segment


# ---- tracks ----


Turn = tuple[int, int, int]  # a rank that forwards, the rank it receives from, the rank it sends to


@dataclass(eq=False)
class Track:
    """For each rank, to which rank it forwards data from which rank, on the channels of this track."""

    after: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, from): to
    before: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, to): from; the inverse

    def fits(self, turn: Turn) -> bool:
        rank, source, target = turn
        return self.after.get((rank, source), target) == target and self.before.get((rank, target), source) == source

    def add(self, turn: Turn) -> None:
        rank, source, target = turn
        self.after[rank, source], self.before[rank, target] = target, source


def assign_tracks(values: ProgramValues, max_tracks: int, refused: set[Turn]) -> list[Track]:
    """Assign every segment one of at most `max_tracks` tracks. Linear in segments, times tracks for each new path.

    `refused`: turns in which no rank may forward, since a block got stuck there (blocks.py).
    """
    open_tracks = [Track()]
    track_of_path: dict[tuple[int, ...], int] = {}  # by the ranks that a chain passes
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
        # Chains along the same ranks share a track; a new path takes the first track where all its turns fit.
        if path not in track_of_path:
            number, turns_taken = _choose_track(open_tracks, [_turn_of(segment) for segment in chain[1:]], max_tracks)
            if turns_taken < len(chain) - 1:
                work.append(_detach_from_parent(chain[turns_taken + 1]))
                chain = chain[: turns_taken + 1]
            track_of_path[(*(segment.send.rank for segment in chain), chain[-1].receive.rank)] = number
        else:
            number = track_of_path[path]
        for segment in chain:
            segment.track = number
    return open_tracks


def tracks_by_channel(values: ProgramValues, channels: int) -> list[Track]:
    """Return one track per channel of the program, and assign every segment to that of its channel; nothing
    forwards."""
    for operation in values.operations():
        if operation.kind == SEND:
            for segment in operation.segments:
                segment.track, segment.only_forwarded = operation.channel, False
                segment.parent = segment.child = None
    return [Track() for _ in range(channels)]


def _chain_heads(values: ProgramValues) -> Iterator[Segment]:
    for operation in values.operations():
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
    segment.only_forwarded = False
    return segment


def _choose_track(open_tracks: list[Track], turns: list[Turn], max_tracks: int) -> tuple[int, int]:
    """Choose the track of a chain, and add the turns of the chain to it; return it and the number of turns added.

    If no track fits and no further one may be opened, the last one takes the turns up to the first that does not fit.
    """
    number = next(
        (i for i, track in enumerate(open_tracks) if all(track.fits(turn) for turn in turns)), len(open_tracks)
    )
    if number == len(open_tracks) and number < max_tracks:
        open_tracks.append(Track())
    number, turns_taken = min(number, len(open_tracks) - 1), 0
    for turn in turns:
        if not open_tracks[number].fits(turn):
            break
        open_tracks[number].add(turn)
        turns_taken += 1
    return number, turns_taken
