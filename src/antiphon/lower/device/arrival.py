"""An allgather whose buffers are filled in the order of arrival, and put in order in place at the end.

What permuted recursive multiplying sends is then one run of memory on both sides (parameterized collectives, section
III.C, Figure 3b; docs/planners/radix.md), where the same plan in order sends many: copies by a device's engines
are few and large. The cycles of the permutation are found here, once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.program.kinds import OUTPUT
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported
from antiphon.lower.onesided.form import FOLD, SYNC, Move, Place, Step, joined
from antiphon.planners.radix.permrecmult import layout
from antiphon.planners.shared.rows import Seats


def arrivals(schedule: Schedule) -> Longs:
    """Of each rank and block the place where it arrives. Unsupported where the schedule says nothing of that.

    >>> from antiphon.core.collective import Collective
    >>> from antiphon.core.request import Request
    >>> from antiphon.planners.radix.permrecmult import permrecmult
    >>> from antiphon.topologies.spec import machine_of as machine
    >>> made = next(permrecmult(Request(machine("full:ranks=9"), Collective("allgather", 9)), k=3))
    >>> np.argsort(arrivals(made)[4]).tolist()
    [4, 7, 1, 5, 8, 2, 3, 6, 0]
    """
    collective, rule = schedule.collective, schedule.provenance.get("layout")
    weights = collective.weights
    if collective.kind != "allgather" or rule is None or len(collective.members) != collective.ranks:
        raise Unsupported("no order of arrival: only allgathers of all ranks by planner permrecmult have one")
    if (weights != weights[0]).any():
        raise Unsupported("blocks of several lengths have no places to arrive at that are as long")
    order = (schedule.provenance.get("options") or {}).get("order")
    seating = [int(one) for one in str(order).split(",")] if order else list(collective.members)
    member = Seats.of(collective, seating).member
    found = np.empty((collective.ranks, collective.ranks), np.int64)
    for seat in range(collective.ranks):
        blocks = member[layout(rule["radices"], seat, rule["ranks"])]
        found[seating[seat], blocks] = np.arange(len(blocks))
    return found


def cycles(place: Longs) -> list[list[int]]:
    """What stands at place[b] is to come to b: along each cycle everything moves to where the one before it is.

    >>> cycles(np.array([2, 0, 1, 3]))
    [[0, 2, 1]]
    """
    found, done = [], np.zeros(len(place), np.bool_)
    for first in range(len(place)):
        at, cycle = first, list[int]()
        while not done[at]:
            done[at] = True
            cycle.append(at)
            at = int(place[at])
        if len(cycle) > 1:
            found.append(cycle)
    return found


class Arranged:
    """Steps of ranks with all places of outputs as they are filled. `block`: atoms of one."""

    def __init__(self, places: Longs, block: int) -> None:
        self.places, self.block = places, block

    def steps(self, rank: int, steps: Sequence[Step], in_place: bool) -> list[Step]:
        """In place, what the rank itself has first goes to where it arrives: at the beginning of its buffer."""
        own = Step(FOLD, (), (), (OUTPUT, 0), ((OUTPUT, rank * self.block),), self.block)
        made = [own, Step(SYNC)] if in_place and rank else []
        return [*made, *(one for step in steps for one in self._step(rank, step))]

    def _step(self, rank: int, step: Step) -> list[Step]:
        moves = tuple(joined(sorted((one for move in step.moves for one in self._moves(rank, move)), key=_where)))
        if step.kind != FOLD:
            return [step._replace(moves=moves)]
        if len(step.operands) != 1 or step.moves:
            raise Unsupported("what is combined does not arrive in an order of its own")
        return [
            step._replace(into=into, operands=(source,), size=size)
            for source, into, size in self._cut(rank, step.operands[0], rank, step.into, step.size)
        ]

    def _moves(self, rank: int, move: Move) -> list[Move]:
        return [
            Move(move.peer, source, target, size)
            for source, target, size in self._cut(rank, move.source, move.peer, move.target, move.size)
        ]

    def _cut(self, rank: int, source: Place, peer: int, target: Place, size: int) -> list[tuple[Place, Place, int]]:
        """Within blocks of both sides, each where it arrives."""
        found, done = [], 0
        while done < size:
            (one, room), (other, more) = self._at(rank, source, done), self._at(peer, target, done)
            count = min(size - done, room, more)
            found.append((one, other, count))
            done += count
        return found

    def _at(self, rank: int, place: Place, done: int) -> tuple[Place, int]:
        """Where a place is, and how much of it lies in one piece."""
        buffer, begin = place[0], place[1] + done
        if buffer != OUTPUT:
            return (buffer, begin), self.block * len(self.places)
        block, within = divmod(begin, self.block)
        return (buffer, int(self.places[rank, block]) * self.block + within), self.block - within


def _where(move: Move) -> tuple[int, Place]:
    return move.peer, move.target
