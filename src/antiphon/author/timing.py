"""Assign a step to every transfer of a user-written schedule: list scheduling in program order.

A transfer gets the earliest step that is (1) after the step in which the data that it reads arrive and (2) not before
the step that last reads the data that it overwrites. `Clock` remembers per place the last step that wrote it and the
last step that read it, so each statement costs O(places). Example, with a line of three ranks:

    w[0, "input", 0].copy_to(1)    # step 0
    w[1, "output", 0].copy_to(2)   # step 1: reads what step 0 wrote
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PlaceKey(NamedTuple):
    """Identifies a place. A chunk's places in a rank's input and output are one, so these have the same key."""

    rank: int
    scratch: str  # name of the scratch buffer; "": input and output
    number: int  # index in scratch; in input and output the number of the chunk


class Move(NamedTuple):
    """A transfer without its step. `copy`: it replaces the data at `dst`; otherwise it is added to them."""

    src: PlaceKey
    dst: PlaceKey
    copy: bool


class Clock:
    """Assigns steps to transfers in the order in which the user's program has them.

    A transfer that reads what an earlier one wrote comes in a later step. One that overwrites what an earlier one read
    may share its step, since all transfers of a step read first. Reductions into one place may be in any order, so they
    do not wait for each other.
    """

    def __init__(self) -> None:
        self.floor = 0  # no further transfer is before this step; the end of a `w.step()` raises it
        self.end = 0  # the step after the last that has transfers
        # By place, the last step that wrote it, that copied into it, and that read it
        self._written: dict[PlaceKey, int] = {}
        self._copied: dict[PlaceKey, int] = {}
        self._read: dict[PlaceKey, int] = {}

    def earliest_step(self, move: Move) -> int:
        """Return the earliest step at which a transfer can read and write its places."""
        # A copy replaces the data, so it comes after all writes of its place; reductions commute, so one need only come
        # after the last copy.
        ordered_writes = self._written if move.copy else self._copied
        last_conflict = max(self._written.get(move.src, -1), ordered_writes.get(move.dst, -1))
        # the step that last reads `dst` may be shared: it reads before it writes
        return max(self.floor, last_conflict + 1, self._read.get(move.dst, -1))

    def schedule_moves(self, moves: Sequence[Move], step: int | None = None) -> int:
        """Put transfers into one step and return it: `step`, or the earliest that is possible for all of them.

        A chain of two copies, then a reduction into the place where it began:

        >>> clock, places = Clock(), [PlaceKey(rank, "", 0) for rank in range(3)]
        >>> moves = [(0, 1, True), (1, 2, True), (2, 0, False)]
        >>> [clock.schedule_moves([Move(places[src], places[dst], copy)]) for src, dst, copy in moves]
        [0, 1, 2]
        """
        chosen_step = max(map(self.earliest_step, moves), default=self.floor) if step is None else step
        for move in moves:
            self._read[move.src] = max(self._read.get(move.src, -1), chosen_step)
        for move in moves:
            self._written[move.dst] = max(self._written.get(move.dst, -1), chosen_step)
            if move.copy:
                self._copied[move.dst] = chosen_step
        self.end = max(self.end, chosen_step + 1 if moves else 0)
        return chosen_step
