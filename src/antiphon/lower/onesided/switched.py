"""Find the operations of a program that switches can perform, for runtimes with multicast memory (NVLS).

`find_switched` returns the operations that switches perform and those of the program that they replace. A joint is a
multicast or reduction in switches (see the glossary). Two forms can be performed on the memory of a group of ranks:

- A reduction to a rank, then the multicast of just its result from there: the rank reads one place at all ranks
  through the switch, which adds, and writes one place at all of them.
- A multicast alone: the rank reads a place of its own and writes one place at all ranks.

A place is a buffer and its first chunk. A group has one address for all its ranks, so the place must be the same at all
of them; the rank that performs the operation is one of them. `BufferLayout` states where a program's data lie.

Example, an allreduce of ranks 0, 1 and 2: ranks 1 and 2 send their inputs to rank 0, which folds them with its own and
multicasts the sum. The switch reduces and multicasts at once, so only the messages of the multicast remain, as signals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Bools, Longs
from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import FOLD, SCRATCH, SEND
from antiphon.errors import Unsupported
from antiphon.lower.onesided.form import Place

ADVICE = "take a planner that does without switches"
NO_COMMON_PLACE = "switches find data at one place that is the same at all ranks, and here it is not"


class Switch(NamedTuple):
    """An operation of a switch: `rank` writes `size` chunks at `target` of all `ranks`."""

    rank: int
    ranks: tuple[int, ...]
    source: Place
    target: Place
    size: int
    step: int  # that of the multicast in the schedule
    combines: bool  # the data are the sum of the data of all `ranks` at `source`; else those of `rank` alone


@dataclass(frozen=True, eq=False)
class Switched:
    """The operations of a program that switches perform."""

    switches: list[Switch]
    requests: list[int]  # per switch operation, one of the sends whose data it moves: both run in the same stream
    switch_of: Longs  # per operation, the switch that performs it or that it signals for; -1: none
    dropped: Bools  # per operation, whether a switch replaces it
    signal_only: Bools  # per operation: a send or receive that moves no data any more and only signals completion
    # Receive that only signals -> the send of the same rank into the reduction that the switch replaces.
    send_of: dict[int, int]

    @staticmethod
    def none(program: Program) -> Switched:
        """Return the value for a program without switches."""
        nothing = np.zeros(program.operations, bool)
        return Switched(
            switches=[],
            requests=[],
            switch_of=np.full(program.operations, -1, np.int64),
            dropped=nothing,
            signal_only=nothing.copy(),
            send_of={},
        )

    @property
    def groups(self) -> list[tuple[tuple[int, ...], int]]:
        """Return (ranks, buffer) of all groups, in the order in which all ranks must create them."""
        # A switch that only multicasts reads at its own rank alone.
        places = [(switch.ranks, switch.target) for switch in self.switches]
        places += [(switch.ranks, switch.source) for switch in self.switches if switch.combines]
        return sorted({(ranks, buffer) for ranks, (buffer, _) in places})


def find_switched(program: Program, layout: BufferLayout, format_name: str) -> Switched:
    """Return the operations of switches for all joints of a program. O(n log n).

    Raises Unsupported, in the name of `format_name`, if a joint cannot be performed by a switch.
    """
    if int(program.joint.max(initial=-1)) < 0:
        return Switched.none(program)
    return _Finder(program, layout, format_name).find_switches()


def drop_unused_scratch(program: Program, layout: BufferLayout, switched: Switched) -> BufferLayout:
    """Return the addresses without the scratch that only dropped operations used.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.program.kinds import layout_of
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(star())
    >>> layout, nothing = layout_of(program, 1), Switched.none(program)
    >>> smaller = drop_unused_scratch(program, layout, replace(nothing, dropped=program.rank == 0))  # all of rank 0
    >>> layout.sizes.tolist(), smaller.sizes.tolist()
    ([[1, 1, 2], [1, 1, 0], [1, 1, 0]], [[1, 1, 0], [1, 1, 0], [1, 1, 0]])
    """
    # A place that a switch uses must keep its address, which is the same at all ranks.
    places = [place for switch in switched.switches for place in (switch.source, switch.target)]
    if any(buffer == SCRATCH for buffer, _ in places):
        return layout
    # Mark used cells by a difference array over the scratch of all ranks laid end to end.
    is_used = (layout.buffer == SCRATCH) & ~switched.dropped[program.part_op]
    scratch_sizes, part_rank = layout.sizes[:, SCRATCH], program.rank[program.part_op]
    scratch_begin = np.concatenate([[0], np.cumsum(scratch_sizes)])
    cell = scratch_begin[part_rank[is_used]] + layout.begin[is_used]
    change = np.zeros(int(scratch_begin[-1]) + 1, np.int64)
    np.add.at(change, cell, 1)
    np.add.at(change, cell + layout.length[is_used], -1)
    # `used_before[cell]`: the used cells in front of it, which is its new address.
    used_before = np.concatenate([[0], np.cumsum(np.cumsum(change[:-1]) > 0)])
    begin, sizes = layout.begin.copy(), layout.sizes.copy()
    begin[is_used] = used_before[cell] - used_before[scratch_begin[part_rank[is_used]]]
    sizes[:, SCRATCH] = used_before[scratch_begin[1:]] - used_before[scratch_begin[:-1]]
    return replace(layout, begin=begin, sizes=sizes)


class _Joint(NamedTuple):
    """The operations of a joint, as rows of the program, in order of ranks."""

    sends: list[int]
    receives: list[int]
    sources: list[int]  # the ranks of the sends, each once
    targets: list[int]  # the ranks of the receives, each once


class _Finder:
    """Searches a program for the operations of switches."""

    def __init__(self, program: Program, layout: BufferLayout, format_name: str) -> None:
        self.program, self.format_name = program, format_name
        self.rank, self.kind = program.rank.tolist(), program.kind.tolist()  # per row
        self.ptr = program.part_ptr.tolist()  # row r has the parts ptr[r] to ptr[r + 1] - 1
        self.part: list[Place] = list(zip(layout.buffer.tolist(), layout.begin.tolist(), strict=True))
        self.length: list[int] = layout.length.tolist()  # per part
        self.switched = Switched.none(program)
        self.readers: dict[tuple[int, Place], list[int]] = {}  # folds, by rank and the places of their operands
        self.writers: dict[tuple[int, Place], list[int]] = {}  # folds, by rank and the place of their result
        # The first part of a fold is its result, the others are its operands.
        for row in np.flatnonzero(program.kind == FOLD).tolist():
            into, *operands = self._places_of(row)
            self.writers.setdefault((self.rank[row], into), []).append(row)
            for place in operands:
                self.readers.setdefault((self.rank[row], place), []).append(row)

    def find_switches(self) -> Switched:
        """Return the operations of switches for all joints."""
        joints = self._collect_joints()
        # Joints of several sources reduce, those of one source multicast.
        reductions = {self._fold_of(joint): joint for joint in joints if len(joint.sources) > 1}
        for joint in joints:
            if len(joint.sources) == 1:
                self._add_multicast(joint, reductions)
        # A multicast removes the reduction that it belongs to.
        if reductions:
            raise self._make_refusal(
                "has no reduction by switches without the multicast of its sum to all who gave to it"
            )
        self._check_order()
        return self.switched

    def _make_refusal(self, why: str) -> Unsupported:
        return Unsupported(f"{self.format_name}: {why}; {ADVICE}")

    def _collect_joints(self) -> list[_Joint]:
        """Return the joints of more than one row; one row alone is an ordinary message."""
        program = self.program
        rows = np.flatnonzero(program.joint >= 0)
        # By joint, then rank, so that repeated ranks are adjacent.
        rows = rows[np.lexsort((rows, program.rank[rows], program.joint[rows]))]
        by_number: dict[int, _Joint] = {}
        for row, number in zip(rows.tolist(), program.joint[rows].tolist(), strict=True):
            joint = by_number.setdefault(number, _Joint(sends=[], receives=[], sources=[], targets=[]))
            is_send = self.kind[row] == SEND
            (joint.sends if is_send else joint.receives).append(row)
            ends = joint.sources if is_send else joint.targets
            if ends[-1:] != [self.rank[row]]:
                ends.append(self.rank[row])
        return [joint for joint in by_number.values() if len(joint.sends) > 1]

    def _places_of(self, row: int) -> list[Place]:
        """Return the places of an operation's parts: of a fold its result, then its operands."""
        return self.part[self.ptr[row] : self.ptr[row + 1]]

    def _place_of_message(self, row: int) -> Place:
        """Return the place of a message's first part."""
        return self.part[self.ptr[row]]

    def _common_place(self, rows: list[int]) -> tuple[Place, int]:
        """Return the one place that all these messages use, and its size."""
        places = {(self._place_of_message(row), self.length[self.ptr[row]]) for row in rows}
        if len(places) > 1:
            raise self._make_refusal(NO_COMMON_PLACE)
        return places.pop()

    def _fold_of(self, joint: _Joint) -> int:
        """Return the fold that adds the arriving operands of a reduction to one operand of the rank itself."""
        if len(joint.targets) > 1:
            raise self._make_refusal("has no reduction by switches that is sent on from there without touching a rank")
        [target] = joint.targets
        arriving = {self._place_of_message(row) for row in joint.receives}
        any_arriving = min(arriving)  # the fold reads them all, so any of them finds it
        for fold in self.readers.get((target, any_arriving), []):
            _, *operands = self._places_of(fold)
            # The sum must contain every arriving operand and exactly one operand of the rank's own.
            if (
                arriving < set(operands)
                and self._waits_for(fold, joint.receives)
                and len(operands) == len(arriving) + 1
            ):
                return fold
        raise self._make_refusal(
            "has no reduction by switches to which its end adds anything but one operand of its own"
        )

    def _waits_for(self, row: int, rows: list[int]) -> bool:
        """Return whether an operation waits for all of these, directly."""
        wait_ptr = self.program.wait_ptr
        return set(rows) <= set(self.program.wait[wait_ptr[row] : wait_ptr[row + 1]].tolist())

    def _add_multicast(self, joint: _Joint, reductions: dict[int, _Joint]) -> None:
        """Add the switch operation of a multicast, with the reduction whose result it sends if there is one."""
        [rank] = joint.sources
        source, size = self._common_place(joint.sends)
        target, _ = self._common_place(joint.receives)
        fold = next(
            (
                writer
                for writer in self.writers.get((rank, source), [])
                if self._feeds_reduction(writer, joint, reductions)
            ),
            None,
        )
        dropped: list[int] = []
        # Reduction and multicast in one: the switch reads `place` at all ranks and writes `target` at all of them.
        if fold is not None:
            reduction = reductions.pop(fold)
            place, _ = self._common_place(reduction.sends)
            _, *operands = self._places_of(fold)
            own_operands = set(operands) - {self._place_of_message(row) for row in reduction.receives}
            if source != target or own_operands != {place}:
                raise self._make_refusal(NO_COMMON_PLACE)
            dropped = [fold, *reduction.sends, *reduction.receives]
            send = {self.rank[row]: row for row in reduction.sends}
            self.switched.send_of.update((row, send[self.rank[row]]) for row in joint.receives)
            source = place
        # Multicast alone: a copy that puts the rank's own data at the target is done by the switch, too.
        elif source != target:
            dropped = [
                writer for writer in self.writers.get((rank, target), []) if self._places_of(writer) == [target, source]
            ]
            if len(dropped) != 1:
                raise self._make_refusal(
                    "switches write at the rank that asks them, too, and it has something else there"
                )
        # The messages remain as signals of completion, without data.
        signal_only = joint.sends + joint.receives
        self.switched.dropped[dropped] = True
        self.switched.signal_only[signal_only] = True
        self.switched.switch_of[dropped + signal_only] = len(self.switched.switches)
        # The time of a message is twice its step, that of a fold one more.
        ranks, step = tuple(sorted([rank, *joint.targets])), int(self.program.when[signal_only[0]]) // 2
        self.switched.requests.append(joint.sends[0])
        self.switched.switches.append(Switch(rank, ranks, source, target, size, step, fold is not None))

    def _feeds_reduction(self, fold: int, joint: _Joint, reductions: dict[int, _Joint]) -> bool:
        """Return whether the sum of a reduction, and nothing else, is sent to all its contributors."""
        reduction = reductions.get(fold)
        return (
            reduction is not None
            and reduction.sources == joint.targets
            and all(self._waits_for(send, [fold]) for send in joint.sends)
        )

    def _check_order(self) -> None:
        """Raise Unsupported if the program orders other operations between those that a switch replaces.

        A switch reads and writes all its places at once, in the step of the multicast. An operation that a replaced one
        waited for must be done in an earlier step. An operation that waited for a replaced one must come later: in a
        later step, or after it in this step (folds, and sends of the switch's own rank).
        """
        program, switch_of = self.program, self.switched.switch_of
        if not self.switched.switches:
            return
        step_of_switch = np.array([switch.step for switch in self.switched.switches])
        rank_of_switch = np.array([switch.rank for switch in self.switched.switches])
        # Per operation the step in which it takes place, by itself or by a switch.
        # (-1, no switch, takes the last entry of an array of switches; each use below excludes it.)
        step = np.where(switch_of >= 0, step_of_switch[switch_of], program.when // 2)
        waiter, awaited = program.wait_op, program.wait  # per dependency
        differ = switch_of[waiter] != switch_of[awaited]
        # Dependencies into a switch must end in an earlier step, those out of it may not begin before it.
        too_early = differ & (switch_of[waiter] >= 0) & (step[awaited] >= step[waiter])
        is_own_send = (program.kind[waiter] == SEND) & (program.rank[waiter] == rank_of_switch[switch_of[awaited]])
        is_behind = (program.kind[waiter] == FOLD) | is_own_send
        too_late = differ & (switch_of[awaited] >= 0) & (switch_of[waiter] < 0)
        too_late &= (step[waiter] < step[awaited]) | ((step[waiter] == step[awaited]) & ~is_behind)
        if np.any(too_early | too_late):
            raise self._make_refusal("what switches add they multicast at once, and here something comes between")
