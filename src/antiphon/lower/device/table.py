"""Write the table of a rank: what its thread blocks do, as the kernel reads it (docs/device.md, native/table.h).

The input is a program (or schedule), whose steps onesided/ computes; the output is 64-bit numbers: a head, then the
cuts of atoms (atoms.py; `parts` in table.h), classes of slots, regions of scratch, thread blocks, steps and arguments.
A table does not depend on message size, datatype or operator. A *class* is a size of slots; a *stream* is a list of
steps (instructions of a rank, onesided/form.py), and each stream is one entry of the thread blocks.

Example: rank 0 puts two atoms of its input into the output of rank 1, and signals.

    steps      (PUT, 0, 2, 0), (SYNC, 2, 0, 0), (SIGNAL, 2, 1, 0)        kind, first argument, their number, `extra`
    arguments  (0, INPUT, 0, 0, 2), (1, OUTPUT, 0, 0, 2), (1, 0, 0, 0, 1)    rank, region, units, cut, number
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.program import Program, layout_of
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.core.transform import unjoined
from antiphon.errors import Unsupported
from antiphon.lower.device.arrival import Arranged, arrivals, cycles
from antiphon.lower.device.atoms import Atoms, atoms
from antiphon.lower.device.packets import Boxes, Opening, by_packets
from antiphon.lower.lowering import MAX_LAG, has_little_scratch, lower
from antiphon.lower.onesided.form import (
    FOLD,
    GET,
    PACKETS,
    PUT,
    SIGNAL,
    SPREAD,
    SWITCH,
    SYNC,
    WAIT,
    Place,
    StreamMove,
    StreamStep,
)
from antiphon.lower.onesided.packets import can_use_packets
from antiphon.lower.onesided.steps import one_sided
from antiphon.lower.onesided.switched import Switched, find_switched

MAGIC, VERSION = int.from_bytes(b"ANTIDEVT", "little"), 2
HEAD = 17  # numbers of the head (`_encode_blocks`), for readers of tables
DIVIDE, PERMUTE = 7, 8  # kinds of steps, after those of `onesided.form`
MOST_OPERANDS = 2**16  # of a fold: in practice no limit, as tables count arguments in 64 bits
MOST_SIGNALS = 2**16 - 1  # from one rank to another in a stream


class Table(NamedTuple):
    """The table of one rank."""

    words: Longs  # the table itself, for the kernel
    streams: int  # their number
    # Whether every atom may be cut into slices that proceed independently. They may not if scratch is reused for data
    # of another place: one slice could overwrite another.
    sliced: bool
    packets: bool = False  # whether messages are packets


class _Argument(NamedTuple):
    """An argument of a step: a place at a rank, or a signal to it, which has no place."""

    rank: int
    region: int = 0
    # The position on the line: the kernel multiplies units by the size of a call.
    units: int = 0
    cut: int = 0
    number: int = 0  # of atoms; of a signal: its number among those of its kind and peer


class _Write(NamedTuple):
    """A write of a stream to a rank's output, in atoms."""

    stream: int
    begin: int
    end: int


class _Division(NamedTuple):
    """A stretch (run of atoms) of an output that an average divides."""

    begin: int
    size: int
    divisor: int


def tables(
    schedule: Schedule, *, in_place: bool = False, streams: int = 4, arrival: bool = False, packets: bool = False,
    pull: bool = False,
) -> list[Table]:  # fmt: skip
    """Return the tables of all ranks, in at most `streams` independent streams.

    Joints that no rank can request from a switch go row by row. `arrival`: buffers are filled in the order of arrival,
    in one stream, and permuted at the end; Unsupported if there is no such order. `packets`: messages are packets, for
    small data. `pull`: receivers read instead of senders writing. With `packets` or `pull`, all joints go row by row.

    Three ranks:

    >>> from antiphon.core.example import star
    >>> [(len(table.words), table.streams, table.sliced) for table in tables(star())]
    [(136, 1, True), (97, 1, True), (97, 1, True)]
    """
    if arrival + packets + pull > 1:
        raise Unsupported(
            "packets lie in boxes, and what is pulled in its place, in no order of arrival: take one of these"
        )
    if arrival:
        return tables_of(_lower_sparing_scratch(schedule, in_place), streams=1, places=arrivals(schedule))
    if packets or pull:
        return tables_of(_lower_sparing_scratch(unjoined(schedule), in_place), streams, packets=packets, pull=pull)
    try:
        return tables_of(_lower_sparing_scratch(schedule, in_place), streams)
    except Unsupported:
        if schedule.joint is None:
            raise
    return tables_of(_lower_sparing_scratch(unjoined(schedule), in_place), streams)


def _lower_sparing_scratch(schedule: Schedule, in_place: bool) -> Program:
    """Return the program; scratch is reused only if it would otherwise exceed twice the largest buffer."""
    # Without reuse slices of atoms may run ahead independently (`Table.sliced`).
    program = lower(schedule, in_place=in_place, lag=MAX_LAG, joints=True)
    if has_little_scratch(layout_of(program, program.denominator)):
        return program
    return lower(schedule, in_place=in_place, lag=1, joints=True)


def tables_of(
    program: Program, streams: int = 4, places: Longs | None = None, packets: bool = False, pull: bool = False
) -> list[Table]:  # fmt: skip
    """Return the tables of a program. `places`: where each block arrives at each rank (arrival.arrivals), in one
    stream.
    """
    addresses = atoms(program)
    by_switches = (
        find_switched(program, addresses.layout, "a device table") if len(program.joint) else Switched.none(program)
    )
    streams_of_steps = one_sided(
        program, addresses.layout, streams, by_switches, addresses.access_range, MOST_OPERANDS, pull
    )
    boxes = None
    if packets:
        streams_of_steps, boxes = by_packets(streams_of_steps, addresses)
    finish = _Finish(program, addresses, streams_of_steps)
    # atoms of one block of the collective; all are equal where an order of arrival exists (0 without blocks)
    block = int(program.collective.weights[:1].sum()) * addresses.count
    if places is not None:
        arranged = Arranged(places, block)
        streams_of_steps = [
            [arranged.steps(rank, steps, program.in_place) for rank, steps in enumerate(by_rank)]
            for by_rank in streams_of_steps
        ]
    rank_tables = []
    for rank in range(program.ranks):
        writer = _Writer(program, addresses, rank, block if places is not None else 0, boxes)
        orders = cycles(places[rank]) if places is not None else []
        rank_tables.append(writer.table([by_rank[rank] for by_rank in streams_of_steps], finish.of(rank), orders))
    return rank_tables


class _Finish:
    """Which stream divides which stretch of an output for an average: the one that writes it last."""

    def __init__(
        self, program: Program, addresses: Atoms, streams_of_steps: Sequence[Sequence[Sequence[StreamStep]]]
    ) -> None:
        self.program, self.addresses = program, addresses
        self.writes: list[list[_Write]] = [[] for _ in range(program.ranks)]  # by rank whose output is written
        if not len(program.finish_begin):
            return
        for stream, steps_of_ranks in enumerate(streams_of_steps):
            for rank, steps in enumerate(steps_of_ranks):
                for step in steps:
                    for owner, (buffer, begin), size in _stretches_written(rank, step):
                        if buffer == OUTPUT:
                            self.writes[owner].append(_Write(stream, begin, begin + size))

    def of(self, rank: int) -> dict[int, list[_Division]]:
        """Return by stream what it divides, at a rank."""
        program, place_of_point = self.program, self.addresses.layout.at
        by_stream = dict[int, list[_Division]]()
        for row in range(int(program.finish_ptr[rank]), int(program.finish_ptr[rank + 1])):
            # from the line to the output, in atoms (`count` per unit of the line)
            base = int(program.base_shift[program.finish_base[row]]) * self.addresses.count
            low, high = (
                base + int(place_of_point[points[row]]) for points in (program.finish_begin, program.finish_end)
            )
            divisor = int(program.finish_count[row])
            # A stream divides what it wrote itself, so no sync between streams is needed.
            for stream, begin, end in _last_writers(self.writes[rank], low, high):
                by_stream.setdefault(stream, []).append(_Division(begin, end - begin, divisor))
        return by_stream


def _stretches_written(rank: int, step: StreamStep) -> list[tuple[int, Place, int]]:
    """Return the stretches that a step of a rank writes: rank, place and size."""
    stretches = [(rank if step.kind == GET else move.peer, move.target, move.size) for move in step.moves]
    if step.kind == FOLD:
        stretches.append((rank, step.into, step.size))
    if step.kind in (SWITCH, SPREAD):
        stretches += [(peer, step.into, step.size) for peer in step.peers]
    return stretches


def _last_writers(writes: Sequence[_Write], low: int, high: int) -> list[_Write]:
    """Return the stretches that low..high (atoms of the output) consists of, each with the stream that writes it last;
    0 if none does.

    Two streams never write at one place, as their steps would need an order: so each atom has one stream, or none.
    """
    overlaps = [
        (max(begin, low), min(end, high), stream) for stream, begin, end in writes if begin < high and end > low
    ]
    intervals: list[_Write] = []
    done = low
    # Sweep from `low` to `high`; gaps between writes go to stream 0.
    for begin, end, stream in sorted(overlaps):
        if begin > done:
            intervals.append(_Write(0, done, begin))
        if end > done:
            intervals.append(_Write(stream, max(begin, done), end))
            done = end
    return intervals if done >= high else [*intervals, _Write(0, done, high)]


class _Writer:
    """Writes the table of one rank. `block`: atoms of a block of the collective, 0 if none are permuted at the end."""

    def __init__(self, program: Program, addresses: Atoms, rank: int, block: int, boxes: Boxes | None) -> None:
        self.program, self.addresses, self.rank, self.block, self.boxes = program, addresses, rank, block, boxes
        # The number of each region in the table. Keys: (rank, region of Atoms) in scratch; (-1, buffer) in users'
        # buffers; (-1, PACKETS + slot) for packets. Numbers are in the order of first use.
        self.regions: dict[tuple[int, int], int] = {}
        for buffer in (INPUT, OUTPUT):
            self.regions[-1, buffer] = buffer
        self.steps: list[tuple[int, int, int, int]] = []  # kind, first argument, their number, `extra`
        self.arguments: list[_Argument] = []
        self.signal_counts: dict[tuple[int, int], int] = {}  # by (kind, peer), in the current stream

    def table(
        self, streams: Sequence[Sequence[StreamStep]], finish: dict[int, list[_Division]],
        orders: Sequence[Sequence[int]] = (),
    ) -> Table:  # fmt: skip
        """Return the table. `finish`: from `_Finish.of`. `orders`: cycles of output blocks that are permuted last."""
        blocks = []
        for number, steps in enumerate(streams):
            # Signals are numbered per stream.
            first, self.signal_counts = len(self.steps), {}
            if self.boxes:
                self._append_opening(self.boxes.openings[number][self.rank])
            for step in steps:
                self._append_step(step)
            # Division and permutation read what all threads wrote: a sync before each.
            if finish.get(number):
                self._append(SYNC)
                for begin, size, divisor in finish[number]:
                    self._append(DIVIDE, [self._encode_argument(self.rank, (OUTPUT, begin), size)], divisor)
            if orders:
                self._append(SYNC)
            for cycle in orders:
                places = [(OUTPUT, block * self.block) for block in cycle]
                self._append(PERMUTE, [self._encode_argument(self.rank, place, self.block) for place in places])
            blocks.append((first, len(self.steps) - first))
        return Table(
            words=self._encode_blocks(blocks),
            streams=len(streams),
            sliced=not self.addresses.shared.any(),  # shared: slots of scratch with data of several places
            packets=self.boxes is not None,
        )

    def _append_opening(self, opening: Opening) -> None:
        """Append the opening (packets.py). Steps with `extra` 1 are skipped if all ranks are known to have begun."""
        for kind, peers in ((SIGNAL, opening.notified), (WAIT, opening.awaited)):
            if peers:
                self._append(kind, self._signal_arguments(kind, peers), extra=int(kind == WAIT))
        if opening.awaited:
            self._append(SYNC, extra=1)

    def _encode_blocks(self, blocks: list[tuple[int, int]]) -> Longs:
        """Return the words of the table. `blocks`: per stream the first step and the number of steps."""
        program, addresses, boxes = self.program, self.addresses, self.boxes
        # Sections in the order in which the kernel reads them (native/table.h).
        classes = np.stack([program.class_whole, program.class_numerator], axis=1)
        if boxes:  # packets have the last class
            classes = np.concatenate([classes, [[boxes.units, boxes.numerator]]]).astype(np.int64)
        regions = np.array([self._encode_region(*key) for key in self.regions], np.int64)
        slots = np.bincount(self._slot_classes(self.rank), minlength=len(classes))
        tables = [
            addresses.cuts, classes, slots, regions, np.array(blocks, np.int64), np.array(self.steps, np.int64),
            np.array(self.arguments, np.int64),
        ]  # fmt: skip
        input_weight, output_weight = (int(weights[self.rank]) for weights in program.weights)
        of_packets = (boxes.slots[self.rank], boxes.atoms, int(can_use_packets(program))) if boxes else (0, 0, 0)
        head = [
            MAGIC, VERSION, program.ranks, self.rank, int(program.in_place), addresses.denominator, input_weight,
            output_weight, len(addresses.cuts), len(classes), len(regions), len(blocks), len(self.steps),
            len(self.arguments), *of_packets,
        ]  # fmt: skip
        return np.concatenate([np.array(head, np.int64), *(table.reshape(-1) for table in tables)])

    def _encode_region(self, rank: int, row: int) -> list[int]:
        """Return a region: its buffer, the units and cut of its origin, and the number of slots of each class before
        it. The arguments are a key of `regions`."""
        classes = len(self.program.class_whole) + (self.boxes is not None)
        if rank < 0:
            slots_before = np.zeros(classes, np.int64)
            slots_before[classes - 1 :] = max(row - PACKETS, 0)  # packets have the last class; users' buffers no slots
            return [min(row, PACKETS), 0, 0, *slots_before.tolist()]
        earlier_classes = self._slot_classes(rank)[: int(self.addresses.slot[row])]
        units, cut = divmod(int(self.addresses.origin[row]), self.addresses.count)
        return [SCRATCH, units, cut, *np.bincount(earlier_classes, minlength=classes).tolist()]

    def _slot_classes(self, rank: int) -> Longs:
        """Return the class of each slot of a rank."""
        slot_ptr = self.program.slot_ptr
        return self.program.slot_class[slot_ptr[rank] : slot_ptr[rank + 1]]

    def _append(self, kind: int, arguments: Sequence[_Argument] = (), extra: int = 0) -> None:
        """Append a step.

        `extra` (`more` in native/table.h): of a fold, switch or spread the number of results, which precede the
        operands; of a division the divisor; of a wait or sync 1 if it is skipped once all ranks are known to have
        begun.
        """
        self.steps.append((kind, len(self.arguments), len(arguments), extra))
        self.arguments += arguments

    def _encode_argument(self, rank: int, place: Place, size: int = 0) -> _Argument:
        """Encode `size` atoms at a place; of packets, the place is their slot."""
        buffer, begin = place
        key, line = (-1, buffer), 0
        if buffer == PACKETS:
            key = (-1, PACKETS + begin)
        else:
            line = self.addresses.line(rank, place)
            if buffer == SCRATCH:
                key = (rank, self.addresses.region(rank, begin))
        region = self.regions.setdefault(key, len(self.regions))
        units, cut = divmod(line, self.addresses.count)
        return _Argument(rank, region, units, cut, size)

    def _append_step(self, step: StreamStep) -> None:
        encode = self._encode_argument
        if step.kind in (SIGNAL, WAIT):
            self._append(step.kind, self._signal_arguments(step.kind, step.peers))
        elif step.kind == PUT:
            self._append(PUT, [argument for move in step.moves for argument in self._move_arguments(move)])
        # A get is a put whose source is remote: pairs (source, target) with the ranks exchanged.
        elif step.kind == GET:
            arguments = []
            for move in step.moves:
                arguments += [encode(move.peer, move.source, move.size), encode(self.rank, move.target, move.size)]
            self._append(PUT, arguments)
        elif step.kind == FOLD:
            into = encode(self.rank, step.into, step.size)
            operands = [encode(self.rank, place) for place in step.operands]
            # A fold writes its result to further targets, too; their source is the result itself, and not encoded.
            targets = [target for _, target in map(self._move_arguments, step.moves)]
            self._append(FOLD, [into, *targets, *operands], extra=1 + len(targets))
        elif step.kind in (SWITCH, SPREAD):
            (operand,) = step.operands
            sources = step.peers if step.kind == SWITCH else (self.rank,)
            results = [encode(peer, step.into, step.size) for peer in step.peers]
            self._append(step.kind, [*results, *(encode(peer, operand) for peer in sources)], extra=len(results))
        else:
            self._append(step.kind)

    def _signal_arguments(self, kind: int, peers: Sequence[int]) -> list[_Argument]:
        """Return the arguments of a signal or wait, whose numbers count those of its kind and peer from 1."""
        arguments = []
        for peer in peers:
            number = self.signal_counts[kind, peer] = self.signal_counts.get((kind, peer), 0) + 1
            if number > MOST_SIGNALS:
                raise Unsupported(f"a device table: two ranks exchange more than {MOST_SIGNALS} messages in one stream")
            arguments.append(_Argument(peer, number=number))
        return arguments

    def _move_arguments(self, move: StreamMove) -> tuple[_Argument, _Argument]:
        """Return the arguments for the source and for the target of a move."""
        source = self._encode_argument(self.rank, move.source, move.size)
        return source, self._encode_argument(move.peer, move.target, move.size)
