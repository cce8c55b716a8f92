"""Convert the steps of ranks to packets for small data: data with flags next to it, which show when it has arrived.

Input are steps (instructions of ranks) with puts, signals and waits (onesided.form); output are steps with packets. A
**box** is a rank's buffer for packets. Every message has a **slot** of its own in the box of its receiver. So it needs
neither a credit (the receiver's signal that the place is free) nor a signal that data have arrived. Puts write packets,
and where a rank waited for a signal it now takes the data out of its box. Folds add packets on arrival, and results to
be forwarded leave as they are computed.

    rank 0: put x into scratch of rank 1; signal 1    becomes    put x as packets into slot 0 of rank 1's box
    rank 1: wait for 0; fold scratch + y into z                  fold slot 0 + y into z

Boxes are reused by later calls. At the beginning of a call a rank signals to all its senders that it has begun. They
wait for it, unless the call before has shown them that the box is free (`receives_all`; boxes.h of the GPU engine).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from antiphon.core.program import Program
from antiphon.core.program.kinds import SCRATCH
from antiphon.lower.device.atoms import Atoms
from antiphon.lower.onesided import packets as onesided_packets
from antiphon.lower.onesided.form import FOLD, PACKETS, PUT, SIGNAL, SYNC, WAIT, Place, StreamMove, Streams, StreamStep
from antiphon.lower.onesided.steps import RankSteps

PACKED = 2**18  # bytes of a call above which packets are not tried: they take twice the space of their data
MAX_FORWARDED_STEPS = 2_000  # steps of a rank above which results are not forwarded as they are computed

_Arrival = tuple[int, Place, int]  # a slot, and the place and size where its data are needed


class Opening(NamedTuple):
    """The beginning of a call at a rank: the ranks that it notifies, and those whose notification it awaits."""

    notified: tuple[int, ...]
    awaited: tuple[int, ...]


@dataclass(eq=False)
class Boxes:
    """The boxes of all ranks. All slots have the length of the longest message."""

    slots: list[int]  # per rank the number of its slots
    units: int = 0  # the length of a slot: whole units of weight ...
    numerator: int = 0  # ... and a numerator over the program's denominator
    atoms: int = 1  # the greatest number of atoms in a slot
    openings: list[list[Opening]] = field(default_factory=list)  # by stream, then by rank


def receives_all(program: Program) -> bool:
    """Return whether a rank that ends has received from all others at every size, and so knows that all have begun."""
    # The kinds that can use packets bring data of every rank to every rank; only blocks of weight 0 are not sent.
    return onesided_packets.can_use_packets(program) and bool((program.collective.weights > 0).all())


def by_packets(streams: Streams, addresses: Atoms) -> tuple[Streams, Boxes]:
    """Convert steps (without switches) to packets. Linear in steps, but for forwarding (MAX_FORWARDED_STEPS)."""
    boxes, packet_streams = Boxes([0] * (len(addresses.region_ptr) - 1)), list[list[list[StreamStep]]]()
    for ranks in streams:
        # Per connection the messages in order, each with the slots of its packets.
        sent: dict[tuple[int, int], list[list[_Arrival]]] = defaultdict(list)
        sent_steps = [_Sender(addresses, boxes, rank, sent).steps(steps) for rank, steps in enumerate(ranks)]
        unpacked = [_insert_unpacks(rank, steps, sent) for rank, steps in enumerate(sent_steps)]
        packet_streams.append(
            [
                _insert_syncs(rank, _shorten_steps(rank, steps, addresses), addresses)
                for rank, steps in enumerate(unpacked)
            ]
        )
        connections = sorted(connection for connection, messages in sent.items() if any(messages))
        boxes.openings.append(
            [
                Opening(tuple(a for a, b in connections if b == rank), tuple(b for a, b in connections if a == rank))
                for rank in range(len(ranks))
            ]
        )
    return packet_streams, boxes


@dataclass(eq=False)
class _Sender:
    """Turns the puts of a rank into packets; its signals only mark the end of each message, and are dropped."""

    addresses: Atoms
    boxes: Boxes
    rank: int
    sent: dict[tuple[int, int], list[list[_Arrival]]]
    pending: dict[int, list[_Arrival]] = field(default_factory=lambda: defaultdict(list))

    def steps(self, steps: Sequence[StreamStep]) -> list[StreamStep]:
        """Return the steps with packets for puts."""
        new_steps = []
        for step in steps:
            # A signal ends a message: everything pending for that peer belongs to it.
            if step.kind == SIGNAL:
                for peer in step.peers:
                    self.sent[self.rank, peer].append(self.pending.pop(peer, []))
            elif step.kind in (PUT, FOLD, WAIT):
                new_steps.append(step._replace(moves=tuple(map(self._pack_move, step.moves))))
            elif step.kind != SYNC:
                raise ValueError("switches know no packets")
        return new_steps

    def _pack_move(self, move: StreamMove) -> StreamMove:
        """Return the move of a put as packets into a slot of the receiver's box."""
        boxes, count = self.boxes, self.addresses.count
        slot = boxes.slots[move.peer]
        boxes.slots[move.peer] += 1
        self.pending[move.peer].append((slot, move.target, move.size))
        first = self.addresses.line(self.rank, move.source) % count  # within its unit: all are cut into `count` atoms
        # The length of a slot in units and cuts of a unit; all slots get the longest.
        last_unit, last = divmod(first + move.size, count)
        cuts, denominator = self.addresses.cuts, self.addresses.denominator
        length = last_unit * denominator + int(cuts[last]) - int(cuts[first])
        longest = max(length, boxes.units * denominator + boxes.numerator)
        boxes.units, boxes.numerator = divmod(longest, denominator)
        boxes.atoms = max(boxes.atoms, move.size)
        return move._replace(target=(PACKETS, slot))


def _insert_unpacks(
    rank: int, steps: Sequence[StreamStep], sent: dict[tuple[int, int], list[list[_Arrival]]]
) -> list[StreamStep]:
    """Replace each wait for a signal by unpacking the data that came with it."""
    all_steps, signal_counts = list[StreamStep](), Counter[int]()
    for step in steps:
        if step.kind != WAIT:
            all_steps.append(step)
            continue
        for peer in step.peers:
            # The n-th wait for a peer takes the packets of its n-th message.
            for slot, target, size in sent[peer, rank][signal_counts[peer]]:
                all_steps.append(StreamStep(FOLD, into=target, operands=((PACKETS, slot),), size=size))
            signal_counts[peer] += 1
    return all_steps


def _shorten_steps(rank: int, steps: list[StreamStep], addresses: Atoms) -> list[StreamStep]:
    return _add_as_packets(rank, _forward_results(rank, steps, addresses), addresses)


def _forward_results(rank: int, steps: list[StreamStep], addresses: Atoms) -> list[StreamStep]:
    """Move puts of an unchanged result into the step that computes it."""
    if len(steps) > MAX_FORWARDED_STEPS:
        return steps
    new_steps, step_of_result = list[StreamStep](), dict[tuple[Place, int], int]()
    for step in steps:
        if step.kind == PUT:
            remaining = []
            for move in step.moves:
                at = step_of_result.get((move.source, move.size))
                if at is None:
                    remaining.append(move)
                else:
                    new_steps[at] = new_steps[at]._replace(moves=(*new_steps[at].moves, move))
            if remaining:
                new_steps.append(step._replace(moves=tuple(remaining)))
            continue
        # A later write to its place ends the possibility to send a result from the step that computes it.
        written = addresses.access_range(rank, step.into, step.size)
        step_of_result = {
            key: at
            for key, at in step_of_result.items()
            if not _places_overlap(addresses.access_range(rank, *key), written)
        }
        step_of_result[step.into, step.size] = len(new_steps)
        new_steps.append(step)
    return new_steps


def _places_overlap(first: tuple[int, int, int], second: tuple[int, int, int]) -> bool:
    (rank, begin, end), (other_rank, other_begin, other_end) = first, second
    return rank == other_rank and begin < other_end and other_begin < end


def _add_as_packets(rank: int, steps: list[StreamStep], addresses: Atoms) -> list[StreamStep]:
    """Let a fold add packets directly where it alone reads them from scratch.

    Not in slots `shared` by several regions: those overlap in memory, which counts per place do not see.
    """
    scratch_size = 1 + max((place[1] + size for step in steps for place, size in _places_touched(step)), default=0)
    # Difference arrays over atoms of scratch: how often each is read, and written.
    read, written = (np.zeros(scratch_size + 1, np.int64) for _ in range(2))
    for step in steps:
        for place, size in _places_read(step):
            if place[0] == SCRATCH:
                read[[place[1], place[1] + size]] += [1, -1]
        if step.kind == FOLD and step.into[0] == SCRATCH:
            written[[step.into[1], step.into[1] + step.size]] += [1, -1]
    is_used_once = (np.cumsum(read) == 1) & (np.cumsum(written) == 1)
    fold_operands = {(place, step.size) for step in steps if step.kind == FOLD for place in step.operands}
    packets_of = dict[Place, Place]()
    for step in steps:
        place = step.into
        if (
            step.kind == FOLD and step.operands[0][0] == PACKETS and len(step.operands) == 1 and not step.moves
            and place[0] == SCRATCH and (place, step.size) in fold_operands
            and is_used_once[place[1] : place[1] + step.size].all()
            and not addresses.shared[addresses.region(rank, place[1])]
        ):  # fmt: skip
            packets_of[place] = step.operands[0]
    return [
        step._replace(operands=tuple(packets_of.get(place, place) for place in step.operands))
        for step in steps
        if step.kind != FOLD or step.into not in packets_of
    ]


def _places_read(step: StreamStep) -> Iterator[tuple[Place, int]]:
    for move in step.moves if step.kind == PUT else ():
        yield move.source, move.size
    for place in step.operands if step.kind == FOLD else ():
        if place[0] != PACKETS:
            yield place, step.size


def _places_touched(step: StreamStep) -> Iterator[tuple[Place, int]]:
    yield from _places_read(step)
    if step.kind == FOLD:
        yield step.into, step.size


def _insert_syncs(rank: int, steps: Sequence[StreamStep], addresses: Atoms) -> list[StreamStep]:
    """Insert syncs for data; threads wait for packets themselves."""
    rank_steps = RankSteps(rank, addresses.access_range)
    for step in steps:
        rank_steps.touch(step, list(_places_read(step)), [(step.into, step.size)] if step.kind == FOLD else ())
    return rank_steps.steps
