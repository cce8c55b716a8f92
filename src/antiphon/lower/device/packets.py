"""Convert the steps of ranks to packets for small data: data with flags next to it, which show when it has arrived.

The input is steps (instructions of ranks) with puts, signals and waits (onesided.form); the output is steps with
packets. A **box** is a rank's buffer for packets. Every message has a **slot** of its own in the box of its receiver.
So it needs neither a credit (the receiver's signal that the place is free) nor a signal that data have arrived. Puts
write packets, and where a rank waited for a signal it now takes the data out of its box. Folds add packets on arrival,
and results to be forwarded leave as they are computed.

    rank 0: put x into scratch of rank 1; signal 1    becomes    put x as packets into slot 0 of rank 1's box
    rank 1: wait for 0; fold scratch + y into z                  fold slot 0 + y into z

Boxes are reused by later calls. At the beginning of a call a rank signals to all its senders that it has begun. They
wait for it, unless the call before has shown them that the box is free (`receives_all` in its table; boxes.h of the
GPU engine).

Addresses and sizes are counted in atoms (atoms.py). A *connection* is a pair (sender, receiver).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from antiphon.core.program.kinds import SCRATCH
from antiphon.lower.device.atoms import Atoms
from antiphon.lower.onesided.form import FOLD, PACKETS, PUT, SIGNAL, SYNC, WAIT, Place, StreamMove, Streams, StreamStep
from antiphon.lower.onesided.steps import RankSteps

PACKED = 2**18  # bytes of a call above which callers do not try packets: they take twice the space of their data
# In a stream of a rank with more steps than this, results are not forwarded as they are computed: the search for them
# is quadratic.
MAX_FORWARDED_STEPS = 2_000


class _Arrival(NamedTuple):
    """The packets of one slot, and where their receiver needs the data."""

    slot: int
    target: Place
    size: int


# By connection its messages in order, each with its packets.
_SentMessages = defaultdict[tuple[int, int], list[list[_Arrival]]]


class Opening(NamedTuple):
    """The beginning of a call at a rank: the ranks that it notifies, and those whose notification it awaits."""

    notified: tuple[int, ...]
    awaited: tuple[int, ...]


@dataclass(eq=False)
class Boxes:
    """The boxes of all ranks. All slots have the length of the longest message."""

    slots: list[int]  # per rank the number of its slots
    # The length of a slot is `units + numerator / denominator` units of weight (`Atoms.denominator`).
    units: int = 0
    numerator: int = 0
    atoms: int = 1  # the greatest number of atoms in a slot
    openings: list[list[Opening]] = field(default_factory=list)  # by stream, then by rank


def by_packets(streams: Streams, addresses: Atoms) -> tuple[Streams, Boxes]:
    """Convert steps (without switches) to packets. Linear in steps, but for forwarding (MAX_FORWARDED_STEPS)."""
    ranks = len(addresses.region_ptr) - 1
    boxes, packet_streams = Boxes(slots=[0] * ranks), list[list[list[StreamStep]]]()
    for steps_of_ranks in streams:
        sent: _SentMessages = defaultdict(list)
        # All ranks' puts first: they number the slots that the receivers then unpack.
        sending = [_Sender(addresses, boxes, rank, sent).pack(steps) for rank, steps in enumerate(steps_of_ranks)]
        packet_steps = []
        for rank, steps in enumerate(sending):
            unpacking = _insert_unpacks(rank, steps, sent)
            shortened = _add_as_packets(rank, _forward_results(rank, unpacking, addresses), addresses)
            packet_steps.append(_insert_syncs(rank, shortened, addresses))
        packet_streams.append(packet_steps)
        connections = sorted(connection for connection, messages in sent.items() if any(messages))
        boxes.openings.append(
            [
                Opening(
                    notified=tuple(sender for sender, receiver in connections if receiver == rank),
                    awaited=tuple(receiver for sender, receiver in connections if sender == rank),
                )
                for rank in range(ranks)
            ]
        )
    return packet_streams, boxes


@dataclass(eq=False)
class _Sender:
    """Turns the puts of a rank into packets; its signals only mark the end of each message, and are dropped."""

    addresses: Atoms
    boxes: Boxes
    rank: int
    sent: _SentMessages  # filled by all senders
    pending: dict[int, list[_Arrival]] = field(default_factory=lambda: defaultdict(list))  # by peer: not yet signaled

    def pack(self, steps: Sequence[StreamStep]) -> list[StreamStep]:
        """Return the steps with packets for puts, without signals and syncs (`_insert_syncs` adds those needed)."""
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
        boxes, atoms_per_unit = self.boxes, self.addresses.count
        slot = boxes.slots[move.peer]
        boxes.slots[move.peer] += 1
        self.pending[move.peer].append(_Arrival(slot, move.target, move.size))
        # Where the data begin and end: all units are cut alike, so count from the beginning of the first one.
        begin = self.addresses.line(self.rank, move.source) % atoms_per_unit
        whole_units, end = divmod(begin + move.size, atoms_per_unit)
        cuts, denominator = self.addresses.cuts, self.addresses.denominator
        length = whole_units * denominator + int(cuts[end]) - int(cuts[begin])  # units of weight times denominator
        longest = max(length, boxes.units * denominator + boxes.numerator)  # all slots get the longest
        boxes.units, boxes.numerator = divmod(longest, denominator)
        boxes.atoms = max(boxes.atoms, move.size)
        return move._replace(target=(PACKETS, slot))


def _insert_unpacks(rank: int, steps: Sequence[StreamStep], sent: _SentMessages) -> list[StreamStep]:
    """Replace each wait for a signal by unpacking the data that came with it: folds of one operand, its packets."""
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


def _forward_results(rank: int, steps: list[StreamStep], addresses: Atoms) -> list[StreamStep]:
    """Move puts of an unchanged result into the step that computes it. All steps are puts and folds by now."""
    if len(steps) > MAX_FORWARDED_STEPS:
        return steps
    new_steps = list[StreamStep]()
    step_of_result = dict[tuple[Place, int], int]()  # (place, size) of an unchanged result -> index of its new step
    for step in steps:
        if step.kind == PUT:
            remaining = []
            for move in step.moves:
                index = step_of_result.get((move.source, move.size))
                if index is None:
                    remaining.append(move)
                else:
                    new_steps[index] = new_steps[index]._replace(moves=(*new_steps[index].moves, move))
            if remaining:
                new_steps.append(step._replace(moves=tuple(remaining)))
            continue
        # A later write to its place ends the possibility to send a result from the step that computes it.
        written = addresses.access_range(rank, step.into, step.size)
        step_of_result = {
            (place, size): index
            for (place, size), index in step_of_result.items()
            if not _ranges_overlap(addresses.access_range(rank, place, size), written)
        }
        step_of_result[step.into, step.size] = len(new_steps)
        new_steps.append(step)
    return new_steps


def _ranges_overlap(first: tuple[int, int, int], second: tuple[int, int, int]) -> bool:
    (buffer, begin, end), (other_buffer, other_begin, other_end) = first, second
    return buffer == other_buffer and begin < other_end and other_begin < end


def _add_as_packets(rank: int, steps: list[StreamStep], addresses: Atoms) -> list[StreamStep]:
    """Let a fold add packets directly where it alone reads them from scratch: drop the unpack that writes them there.

    Not in slots `shared` by several regions: those overlap in memory, which counts per place do not see.
    """
    scratch_end = 1 + max((begin + size for step in steps for (_, begin), size in _places_touched(step)), default=0)
    # Difference arrays over atoms of scratch: their running sums are how often each is read, and written.
    read, written = (np.zeros(scratch_end + 1, np.int64) for _ in range(2))
    for step in steps:
        for (buffer, begin), size in _places_read(step):
            if buffer == SCRATCH:
                read[[begin, begin + size]] += [1, -1]
        buffer, begin = step.into
        if step.kind == FOLD and buffer == SCRATCH:
            written[[begin, begin + step.size]] += [1, -1]
    is_used_once = (np.cumsum(read) == 1) & (np.cumsum(written) == 1)
    fold_operands = {(place, step.size) for step in steps if step.kind == FOLD for place in step.operands}
    packets_of = dict[Place, Place]()  # place of scratch -> the packets that a fold reads instead
    for step in steps:
        buffer, begin = step.into
        if (
            _is_unpack(step) and not step.moves and buffer == SCRATCH and (step.into, step.size) in fold_operands
            and is_used_once[begin : begin + step.size].all() and not addresses.shared[addresses.region(rank, begin)]
        ):  # fmt: skip
            packets_of[step.into] = step.operands[0]
    return [
        step._replace(operands=tuple(packets_of.get(place, place) for place in step.operands))
        for step in steps
        if step.kind != FOLD or step.into not in packets_of
    ]


def _is_unpack(step: StreamStep) -> bool:
    return step.kind == FOLD and [buffer for buffer, _ in step.operands] == [PACKETS]


def _places_read(step: StreamStep) -> Iterator[tuple[Place, int]]:
    """Yield the (place, size) of data that a step reads from memory, not from packets."""
    for move in step.moves if step.kind == PUT else ():
        yield move.source, move.size
    for buffer, begin in step.operands if step.kind == FOLD else ():
        if buffer != PACKETS:
            yield (buffer, begin), step.size


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
