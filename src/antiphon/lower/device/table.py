"""The table of a rank: what its thread blocks do, as the kernel reads it (docs/device.md, native/table.h).

A table knows no size, type or operator. It holds numbers of 64 bits: a head, then `parts`, classes, regions, blocks,
steps and arguments, one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.program import Program, bind
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.core.transform import unjoined
from antiphon.errors import Unsupported
from antiphon.lower.device.arrival import Arranged, arrivals, cycles
from antiphon.lower.device.atoms import Atoms, atoms
from antiphon.lower.device.packets import Boxes, Opening, by_packets, hears
from antiphon.lower.lowering import lower
from antiphon.lower.onesided.form import FOLD, GET, PACKETS, PUT, SIGNAL, SPREAD, SWITCH, SYNC, WAIT, Move, Place, Step
from antiphon.lower.onesided.steps import one_sided
from antiphon.lower.onesided.switched import Switched, switched

MAGIC, VERSION = int.from_bytes(b"ANTIDEVT", "little"), 2
HEAD = 17  # numbers of the head
DIVIDE, PERMUTE = 7, 8  # what follows the kinds of `onesided.form`
MOST_OPERANDS = 2**16
MOST_SIGNALS = 2**16 - 1  # from one rank to another in a stream
_NEVER = 2**20  # steps until scratch is used again


class Table(NamedTuple):
    """Of one rank: its numbers, and its streams. `sliced`: whether every atom may be cut in slices that go on by
    themselves; where scratch is used again for data of another place they would run over each other. `packets`: whether
    messages go by packets."""

    words: Longs
    streams: int
    sliced: bool
    packets: bool = False


def tables(
    schedule: Schedule, *, in_place: bool = False, streams: int = 4, arrival: bool = False, packets: bool = False,
    pull: bool = False,
) -> list[Table]:  # fmt: skip
    """What every rank does, in at most `streams` streams that need not hear of each other. Joints that no rank can ask
    a switch for go row by row. `arrival`: buffers are filled in the order of arrival, in one stream, and permuted at
    the end; Unsupported where there is no such order. `packets`: messages are
    packets, for small data; joints go row by row. `pull`: who receives reads, where else who sends writes; likewise.

    >>> from antiphon.core.example import star
    >>> [(len(one.words), one.streams, one.sliced) for one in tables(star())]
    [(136, 1, True), (97, 1, True), (97, 1, True)]
    """
    if arrival + packets + pull > 1:
        raise Unsupported(
            "packets lie in boxes, and what is pulled in its place, in no order of arrival: take one of these"
        )
    if arrival:
        return tables_of(_lowered(schedule, in_place), 1, arrivals(schedule))
    if packets or pull:
        return tables_of(_lowered(unjoined(schedule), in_place), streams, packets=packets, pull=pull)
    try:
        return tables_of(_lowered(schedule, in_place), streams)
    except Unsupported:
        if schedule.joint is None:
            raise
    return tables_of(_lowered(unjoined(schedule), in_place), streams)


def _lowered(schedule: Schedule, in_place: bool) -> Program:
    """Scratch is not used again for other data, unless it were more than twice the largest buffer."""
    for lag in (_NEVER, 1):
        program = lower(schedule, in_place=in_place, lag=lag, joints=True)
        bound = bind(program, program.denominator)
        if int(bound.sizes[:, SCRATCH].max()) <= 2 * int(bound.sizes[:, :SCRATCH].max()):
            break
    return program


def tables_of(
    program: Program, streams: int = 4, places: Longs | None = None, packets: bool = False, pull: bool = False
) -> list[Table]:  # fmt: skip
    """`places`: of each rank and block where that arrives (arrival.arrivals), in one stream."""
    known = atoms(program)
    by_switches = switched(program, known.bound, "a device table") if len(program.joint) else Switched.none(program)
    made = one_sided(program, known.bound, streams, by_switches, known.touched, MOST_OPERANDS, pull)
    boxes = None
    if packets:
        made, boxes = by_packets(made, known)
    finish = _Finish(program, known, made)
    block = int(program.collective.weights[:1].sum()) * known.count
    if places is not None:
        arranged = Arranged(places, block)
        made = [[arranged.steps(rank, steps, program.in_place) for rank, steps in enumerate(of)] for of in made]
    found = []
    for rank in range(program.ranks):
        writer = _Writer(program, known, rank, block if places is not None else 0, boxes)
        orders = cycles(places[rank]) if places is not None else []
        found.append(writer.table([of[rank] for of in made], finish.of(rank), orders))
    return found


class _Finish:
    """Which stream divides what at the end of an average: the one that wrote it last."""

    def __init__(self, program: Program, known: Atoms, made: Sequence[Sequence[Sequence[Step]]]) -> None:
        self.program, self.known = program, known
        self.writes: list[list[tuple[int, int, int]]] = [[] for _ in range(program.ranks)]  # stream, begin, end
        if not len(program.finish_begin):
            return
        for number, ranks in enumerate(made):
            for rank, steps in enumerate(ranks):
                for step in steps:
                    for whose, place, size in _written(rank, step):
                        if place[0] == OUTPUT:
                            self.writes[whose].append((number, place[1], place[1] + size))

    def of(self, rank: int) -> dict[int, list[tuple[int, int, int]]]:
        """By stream: begin, size and count of what it divides."""
        p, at, found = self.program, self.known.bound.at, dict[int, list[tuple[int, int, int]]]()
        for row in range(int(p.finish_ptr[rank]), int(p.finish_ptr[rank + 1])):
            base = int(p.base_shift[p.finish_base[row]]) * self.known.count
            low, high = base + int(at[p.finish_begin[row]]), base + int(at[p.finish_end[row]])
            for stream, begin, end in _painted(self.writes[rank], low, high):
                found.setdefault(stream, []).append((begin, end - begin, int(p.finish_count[row])))
        return found


def _written(rank: int, step: Step) -> list[tuple[int, Place, int]]:
    """What a step of a rank writes: at whom, where, and how much."""
    out = [(rank if step.kind == GET else move.peer, move.target, move.size) for move in step.moves]
    if step.kind == FOLD:
        out.append((rank, step.into, step.size))
    if step.kind in (SWITCH, SPREAD):
        out += [(peer, step.into, step.size) for peer in step.peers]
    return out


def _painted(writes: Sequence[tuple[int, int, int]], low: int, high: int) -> list[tuple[int, int, int]]:
    """The stretches of low..high with the number of the stream that writes there; the first where none does. Two
    streams never write at one place: what they do would have to be in an order."""
    some = [(max(begin, low), min(end, high), stream) for stream, begin, end in writes if begin < high and end > low]
    out: list[tuple[int, int, int]] = []
    at = low
    for begin, end, stream in sorted(some):
        if begin > at:
            out.append((0, at, begin))
        if end > at:
            out.append((stream, max(begin, at), end))
            at = end
    return out if at >= high else [*out, (0, at, high)]


class _Writer:
    """Writes the numbers of one rank."""

    def __init__(self, program: Program, known: Atoms, rank: int, block: int, boxes: Boxes | None) -> None:
        self.program, self.known, self.rank, self.block, self.boxes = program, known, rank, block, boxes
        self.regions: dict[tuple[int, int], int] = {}  # of a rank and a row (of Atoms), or -1 and a buffer
        for buffer in (INPUT, OUTPUT):
            self.regions[-1, buffer] = buffer
        self.steps: list[tuple[int, int, int, int]] = []
        self.arguments: list[tuple[int, int, int, int, int]] = []
        self.told: dict[tuple[int, int], int] = {}

    def table(
        self, streams: Sequence[Sequence[Step]], finish: dict[int, list[tuple[int, int, int]]],
        orders: Sequence[Sequence[int]] = (),
    ) -> Table:  # fmt: skip
        """`orders`: cycles of blocks of the output, to be permuted at the end."""
        blocks = []
        for number, some in enumerate(streams):
            first, self.told = len(self.steps), {}
            if self.boxes:
                self._open(self.boxes.openings[number][self.rank])
            for step in some:
                self._step(step)
            if finish.get(number):
                self._add(SYNC)
                for begin, size, count in finish[number]:
                    self._add(DIVIDE, [self._argument(self.rank, (OUTPUT, begin), size)], count)
            if orders:
                self._add(SYNC)
            for cycle in orders:
                self._add(PERMUTE, [self._argument(self.rank, (OUTPUT, at * self.block), self.block) for at in cycle])
            blocks.append((first, len(self.steps) - first))
        return Table(self._words(blocks), len(streams), not self.known.shared.any(), self.boxes is not None)

    def _open(self, opening: Opening) -> None:
        """What has `more` is left out where it is known that all have begun."""
        for kind, peers in ((SIGNAL, opening.told), (WAIT, opening.asked)):
            if peers:
                some = [(peer, 0, 0, 0, self._next(kind, peer)) for peer in peers]
                self._add(kind, some, int(kind == WAIT))
        if opening.asked:
            self._add(SYNC, (), 1)

    def _words(self, blocks: list[tuple[int, int]]) -> Longs:
        p, known, boxes = self.program, self.known, self.boxes
        classes = np.stack([p.class_whole, p.class_part], axis=1)
        if boxes:  # one behind all classes of scratch
            classes = np.concatenate([classes, [[boxes.whole, boxes.part]]]).astype(np.int64)
        regions = np.array([self._region(*key) for key in self.regions], np.int64)
        slots = np.bincount(self._classes(self.rank), minlength=len(classes))
        tables = [
            known.parts, classes, slots, regions, np.array(blocks, np.int64), np.array(self.steps, np.int64),
            np.array(self.arguments, np.int64),
        ]  # fmt: skip
        head = [
            MAGIC, VERSION, p.ranks, self.rank, int(p.in_place), known.denominator, int(p.weights[0][self.rank]),
            int(p.weights[1][self.rank]), len(known.parts), len(classes), len(regions), len(blocks), len(self.steps),
            len(self.arguments), *((boxes.slots[self.rank], boxes.atoms, int(hears(p))) if boxes else (0, 0, 0)),
        ]  # fmt: skip
        return np.concatenate([np.array(head, np.int64), *(table.reshape(-1) for table in tables)])

    def _region(self, rank: int, row: int) -> list[int]:
        """Its buffer, the place of its origin, and how many slots of each class come before it."""
        classes = len(self.program.class_whole) + (self.boxes is not None)
        if rank < 0:
            before = np.zeros(classes, np.int64)
            before[classes - 1 :] = max(row - PACKETS, 0)  # slots of packets
            return [min(row, PACKETS), 0, 0, *before.tolist()]
        found = self._classes(rank)[: int(self.known.slot[row])]
        whole, part = divmod(int(self.known.origin[row]), self.known.count)
        return [SCRATCH, whole, part, *np.bincount(found, minlength=classes).tolist()]

    def _classes(self, rank: int) -> Longs:
        """Of each slot of a rank its class."""
        p = self.program
        return p.slot_class[p.slot_ptr[rank] : p.slot_ptr[rank + 1]]

    def _add(self, kind: int, arguments: Sequence[tuple[int, int, int, int, int]] = (), more: int = 0) -> None:
        self.steps.append((kind, len(self.arguments), len(arguments), more))
        self.arguments += arguments

    def _argument(self, rank: int, place: Place, size: int = 0) -> tuple[int, int, int, int, int]:
        """A place at a rank: the rank, its region, whole units and cuts on the line, and how many atoms."""
        buffer, at = place
        key, line = (-1, buffer), 0
        if buffer == PACKETS:
            key = (-1, PACKETS + at)
        else:
            line = self.known.line(rank, place)
            if buffer == SCRATCH:
                key = (rank, self.known.region(rank, at))
        region = self.regions.setdefault(key, len(self.regions))
        return (rank, region, *divmod(line, self.known.count), size)

    def _step(self, step: Step) -> None:
        make = self._argument
        if step.kind in (SIGNAL, WAIT):
            self._add(step.kind, [(peer, 0, 0, 0, self._next(step.kind, peer)) for peer in step.peers])
        elif step.kind == PUT:
            self._add(PUT, [one for move in step.moves for one in self._move(move)])
        elif step.kind == GET:
            ends = [((move.peer, move.source), (self.rank, move.target), move.size) for move in step.moves]
            self._add(PUT, [make(*end, size) for source, target, size in ends for end in (source, target)])
        elif step.kind == FOLD:
            into = make(self.rank, step.into, step.size)
            operands = [make(self.rank, place) for place in step.operands]
            along = [self._move(move)[1] for move in step.moves]
            self._add(FOLD, [into, *along, *operands], 1 + len(along))
        elif step.kind in (SWITCH, SPREAD):
            sources = step.peers if step.kind == SWITCH else (self.rank,)
            results = [make(peer, step.into, step.size) for peer in step.peers]
            self._add(step.kind, [*results, *(make(peer, step.operands[0]) for peer in sources)], len(results))
        else:
            self._add(step.kind)

    def _next(self, kind: int, peer: int) -> int:
        """The number of this signal among those of its kind and peer, from 1."""
        number = self.told[kind, peer] = self.told.get((kind, peer), 0) + 1
        if number > MOST_SIGNALS:
            raise Unsupported(f"a device table: two ranks exchange more than {MOST_SIGNALS} messages in one stream")
        return number

    def _move(self, move: Move) -> tuple[tuple[int, int, int, int, int], ...]:
        return self._argument(self.rank, move.source, move.size), self._argument(move.peer, move.target, move.size)
