"""Messages cut into segments, each moved by one step at either end, and what becomes of them at once.

A message received only to be folded is folded as it comes (**direct**), where all else that the fold waits for is there
at earlier times: so receives still wait for nothing but what is done earlier, and programs cannot deadlock for that
reason (docs/program.md). A segment that is sent on just as it came has the segment that it came by as its **parent**.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND
from antiphon.lower.blocks.operations import Operation, Values
from antiphon.lower.blocks.steps import Step


@dataclass(eq=False, slots=True)
class Piece:
    """A stretch of a fold that is done as messages come, one after another. `memory`: first cells of operands that
    lie somewhere, the result's own first if it is one of them."""

    fold: Operation
    offset: int
    count: int
    cell: int
    memory: list[int]
    chain: list[Segment] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Segment:
    """`src`, `dst`: cells at either end. `step`: what receives it."""

    send: Operation
    receive: Operation
    offset: int
    count: int
    src: int
    dst: int
    piece: Piece | None = None
    parent: Segment | None = None
    child: Segment | None = None
    passing: bool = False  # what it makes is read by its child alone
    lane: int = 0
    step: Step | None = None


@dataclass(eq=False, slots=True)
class Run:
    """Which stretch of a received message one operand of a fold is, and where it lies if it is not folded at once."""

    offset: int
    count: int
    fold: Operation
    receive: Operation
    cell: int


@dataclass(eq=False)
class Flow:
    """All segments by their operations, and the pieces of folds that are done as messages come."""

    sent: dict[Operation, list[Segment]]
    received: dict[Operation, list[Segment]]
    pieces: dict[Operation, list[Piece]]

    def dissolve(self) -> None:
        """No segment knows another any more: so all are freed at once, and not by the collector of circles, which takes
        a third of the time that making them takes."""
        for segments in self.sent.values():
            for segment in segments:
                segment.piece = segment.parent = segment.child = segment.step = None


Part = TypeVar("Part", Piece, Segment)


def flow(values: Values, most: int, fused: bool = True) -> Flow:
    """`most`: chunks of a step. `fused`: what is received only to be added is added as it comes."""
    runs: dict[Operation, list[Run]] = defaultdict(list)
    memory: dict[Operation, list[int]] = {}
    for operations in values.ranks:
        for one in operations:
            if one.kind == FOLD and fused:
                direct, others = _direct(values, one)
                for run in direct:
                    runs[run.receive].append(run)
                if direct:
                    memory[one] = others
    pairs = _pairs(values)
    edges, cuts = _cuts(pairs, runs, memory, most)
    found = Flow({}, {}, {one: _pieces(one, cuts.get(one, set()), memory[one]) for one in memory})
    for send, receive in pairs:
        some = runs.get(receive, [])
        if send not in edges and send.length <= most and not (some and some[0].fold in cuts):  # as nearly all
            piece = found.pieces[some[0].fold][0] if some else None
            segments = [Segment(send, receive, 0, send.length, send.spans[0][0], receive.spans[0][0], piece)]
        else:
            ends = edges.get(send) or {receive.length}
            segments = _segments(send, receive, ends, some, cuts, found.pieces, most)
        found.sent[send] = found.received[receive] = segments
    for operations in values.ranks:  # chains in the order in which messages are received
        for one in operations:
            for segment in found.received.get(one, ()):
                if segment.piece is not None:
                    segment.piece.chain.append(segment)
    _parents(values, found)
    return found


def _cuts(
    pairs: list[tuple[Operation, Operation]], runs: dict[Operation, list[Run]], folds: Iterable[Operation], most: int
) -> tuple[dict[Operation, set[int]], dict[Operation, set[int]]]:
    """Where sends end or are cut, and where these folds are cut: of those that are cut at all."""
    cuts = {one: set(range(most, one.length, most)) for one in folds if one.length > most}
    edges: dict[Operation, set[int]] = {}
    for send, receive in pairs:
        some = runs.get(receive, [])
        if len(send.spans) == len(receive.spans) == 1 and (not some or some[0].count == receive.length):
            continue
        some.sort(key=lambda run: run.offset)
        edges[send] = _ends(send) | _ends(receive)
        for run in some:
            edges[send] |= {run.offset, run.offset + run.count}
            inside = {at - run.offset for at in edges[send] if run.offset < at < run.offset + run.count}
            if inside:
                cuts.setdefault(run.fold, set()).update(inside)
    return edges, cuts


def _direct(values: Values, fold: Operation) -> tuple[list[Run], list[int]]:
    """Operands that can be folded as they come, and cells of the others, the result's own first."""
    length = fold.length
    candidates: list[Run] = []
    others: list[int] = []
    busy: set[Operation] = set()
    for number, (cell, _) in enumerate(fold.spans[1:]):
        versions = fold.versions[number * length : (number + 1) * length]
        first = versions[0]
        writer = values.writer[first] if first >= 0 else None
        if (
            writer is not None and writer.kind == RECEIVE and first + length <= writer.first + writer.length
            and (length == 1 or versions == list(range(first, first + length))) and values.only(first, length, fold)
        ):  # fmt: skip
            candidates.append(Run(first - writer.first, length, fold, writer, cell))
        else:
            others.append(cell)
            busy.update(values.writer[version] for version in versions if version >= 0)
    if not candidates:
        return [], others
    mine = {run.receive for run in candidates} - busy
    latest = max((one.when for one in unjoined(fold) if one not in mine), default=-1)
    direct = [run for run in candidates if run.receive in mine and run.receive.when > latest]
    others += [run.cell for run in candidates if run not in direct]
    result = fold.spans[0][0]
    return direct, sorted(others, key=lambda cell: cell != result)


def unjoined(one: Operation) -> set[Operation]:
    """What it waits for, through joins."""
    if not any(other.kind == JOIN for other in one.waits):
        return set(one.waits)
    found: set[Operation] = set()
    work = deque(one.waits)
    while work:
        other = work.popleft()
        if other not in found:
            found.add(other)
            if other.kind == JOIN:
                work.extend(other.waits)
    return {other for other in found if other.kind != JOIN}


def _pairs(values: Values) -> list[tuple[Operation, Operation]]:
    """Sends with their receives: the k-th of a way with the k-th."""
    ways: dict[tuple[int, int, int], deque[Operation]] = defaultdict(deque)
    for operations in values.ranks:
        for one in operations:
            if one.kind == RECEIVE:
                ways[one.peer, one.rank, one.channel].append(one)
    return [
        (one, ways[one.rank, one.peer, one.channel].popleft())
        for operations in values.ranks
        for one in operations
        if one.kind == SEND
    ]


def _ends(one: Operation) -> set[int]:
    """Where its stretches end within its stream."""
    if len(one.spans) == 1:
        return {one.spans[0][1]}
    found, at = set(), 0
    for _, count in one.spans:
        at += count
        found.add(at)
    return found


def _pieces(fold: Operation, cuts: set[int], memory: list[int]) -> list[Piece]:
    edges = sorted(cuts | {0, fold.length})
    return [
        Piece(fold, low, high - low, fold.spans[0][0] + low, [cell + low for cell in memory])
        for low, high in pairwise(edges)
    ]


def _beginning(some: Sequence[Part], offset: int) -> Part | None:
    """The one that begins there."""
    return next((one for one in some if one.offset == offset), None)


def _segments(
    send: Operation, receive: Operation, edges: set[int], runs: list[Run],
    cuts: dict[Operation, set[int]], pieces: dict[Operation, list[Piece]], most: int,
) -> list[Segment]:  # fmt: skip
    edges = edges | {0}
    for run in runs:
        edges |= {run.offset + at for at in cuts.get(run.fold, ())}
    ordered = sorted(edges)
    made: list[Segment] = []
    of_run = {run.offset: run for run in runs}
    current: Run | None = None
    source, target = _Walk(send), _Walk(receive)
    for low, high in pairwise(ordered):
        if current is not None and low >= current.offset + current.count:
            current = None
        current = of_run.get(low, current)
        src, dst = source.cell(low), target.cell(low)
        if current is not None:
            piece = _beginning(pieces[current.fold], low - current.offset)
            made.append(Segment(send, receive, low, high - low, src, dst, piece))
            continue
        for at in range(low, high, most):
            made.append(Segment(send, receive, at, min(most, high - at), src + at - low, dst + at - low))
    return made


class _Walk:
    """Cells of a stream by offset, asked for in ascending order."""

    def __init__(self, one: Operation) -> None:
        self.spans, self.number, self.start = one.spans, 0, 0

    def cell(self, offset: int) -> int:
        while offset >= self.start + self.spans[self.number][1]:
            self.start += self.spans[self.number][1]
            self.number += 1
        return self.spans[self.number][0] + offset - self.start


def _parents(values: Values, found: Flow) -> None:
    """Which segments are just what came by another one."""
    for operations in values.ranks:
        for one in operations:
            for segment in found.sent.get(one, ()):
                first = one.versions[segment.offset]
                if first < 0:
                    continue
                if segment.count > 1:
                    read = one.versions[segment.offset : segment.offset + segment.count]
                    if read != list(range(first, first + segment.count)):
                        continue
                writer = values.writer[first]
                parent: Segment | None = None
                if writer.kind == RECEIVE:
                    parent = _beginning(found.received[writer], first - writer.first)
                    if parent is not None and parent.piece is not None:
                        parent = None
                elif (piece := _beginning(found.pieces.get(writer, ()), first - writer.first)) is not None:
                    after = len(piece.memory) > 1
                    parent = None if after else piece.chain[-1]
                    segment_passes = piece.cell >= values.scratch[one.rank]
                    segment.passing = segment_passes and values.only(first, segment.count, one)
                if parent is None or parent.count != segment.count or parent.child is not None:
                    segment.passing = False
                    continue
                segment.parent, parent.child = parent, segment
