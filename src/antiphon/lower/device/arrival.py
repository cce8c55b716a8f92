"""Plan an allgather whose output is filled in the order of arrival and permuted in place at the end.

For planner `permrecmult` (permuted recursive multiplying) every message is then one contiguous run of memory at sender
and receiver, so a GPU's copies are few and large. In the usual order a message has many runs. (Paper on parameterized
collectives, section III.C, Figure 3b; docs/planners/radix.md.) table.py passes in the steps (instructions) of all ranks
(onesided/form.py), and writes into the table the steps with changed places and the cycles of the permutation.

Example: a rank receives the blocks of ranks 2, 0 and 1 in this order, so its buffer holds 2, 0, 1. Block 0 arrives at
place 1, block 1 at place 2, block 2 at place 0. The permutation has one cycle; along it each block moves to its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.program.kinds import OUTPUT
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported
from antiphon.lower.onesided.form import FOLD, SYNC, Place, StreamMove, StreamStep, join_neighbours
from antiphon.planners.radix.permrecmult import layout
from antiphon.planners.shared.rows import Seats


def arrivals(schedule: Schedule) -> Longs:
    """Return by (rank, block) the place of arrival, counted in blocks. Unsupported if the schedule defines none.

    The blocks of rank 4 in the order of arrival, its own first:

    >>> from antiphon.core.collective import Collective
    >>> from antiphon.core.request import Request
    >>> from antiphon.planners.radix.permrecmult import permrecmult
    >>> from antiphon.topologies.spec import machine_of as machine
    >>> schedule = next(permrecmult(Request(machine("full:ranks=9"), Collective("allgather", 9)), k=3))
    >>> np.argsort(arrivals(schedule)[4]).tolist()
    [4, 7, 1, 5, 8, 2, 3, 6, 0]
    """
    collective, rule = schedule.collective, schedule.provenance.get("layout")
    weights = collective.weights
    if collective.kind != "allgather" or rule is None or len(collective.members) != collective.ranks:
        raise Unsupported("no order of arrival: only allgathers of all ranks by planner permrecmult have one")
    if (weights != weights[0]).any():
        # a block would arrive at a place of another length
        raise Unsupported("blocks of several lengths have no places to arrive at that are as long")
    # `rule`: {"rule": "arrival", "radices": [3, 3], "ranks": 9}, a layout by seat; `order` names the rank of each seat
    order = (schedule.provenance.get("options") or {}).get("order")
    seating = [int(rank_text) for rank_text in str(order).split(",")] if order else list(collective.members)
    member = Seats.in_order(collective, seating).member
    places = np.empty((collective.ranks, collective.ranks), np.int64)
    for seat in range(collective.ranks):
        blocks = member[layout(rule["radices"], seat, rule["ranks"])]
        places[seating[seat], blocks] = np.arange(len(blocks))
    return places


def cycles(place: Longs) -> list[list[int]]:
    """Return the cycles of a permutation that moves place[b] to b: along a cycle each element moves to its predecessor.

    Cycles of one element, which stays in its place, are left out.

    >>> cycles(np.array([2, 0, 1, 3]))
    [[0, 2, 1]]
    """
    permutation_cycles, done = [], np.zeros(len(place), np.bool_)
    for first in range(len(place)):
        element, cycle = first, list[int]()
        while not done[element]:
            done[element] = True
            cycle.append(element)
            element = int(place[element])
        if len(cycle) > 1:
            permutation_cycles.append(cycle)
    return permutation_cycles


class Arranged:
    """Changes steps so that outputs are filled in order of arrival.

    `places`: from `arrivals`, counted in blocks; `block`: atoms (atoms.py) of one block. All else is counted in atoms.
    """

    def __init__(self, places: Longs, block: int) -> None:
        self.places, self.block = places, block

    def steps(self, rank: int, steps: Sequence[StreamStep], in_place: bool) -> list[StreamStep]:
        """Return the changed steps. In place, the rank's own block first moves to the beginning of its buffer, where
        that of rank 0 is already: a rank's own block arrives first."""
        own_fold = StreamStep(
            FOLD, peers=(), moves=(), into=(OUTPUT, 0), operands=((OUTPUT, rank * self.block),), size=self.block
        )
        first_steps = [own_fold, StreamStep(SYNC)] if in_place and rank else []
        return [*first_steps, *(arranged for step in steps for arranged in self._arrange_step(rank, step))]

    def _arrange_step(self, rank: int, step: StreamStep) -> list[StreamStep]:
        """Return a step with its output places changed, as several steps if it is cut."""
        if step.kind != FOLD:
            cut_moves = [cut_move for move in step.moves for cut_move in self._cut_move(rank, move)]
            return [step._replace(moves=tuple(join_neighbours(sorted(cut_moves, key=_by_peer_and_target))))]
        if len(step.operands) != 1 or step.moves:  # a sum, or a result sent on: no step of an allgather
            raise Unsupported("what is combined does not arrive in an order of its own")
        return [
            step._replace(into=into, operands=(source,), size=size)
            for source, into, size in self._cut_by_blocks(rank, step.operands[0], rank, step.into, step.size)
        ]

    def _cut_move(self, rank: int, move: StreamMove) -> list[StreamMove]:
        return [
            StreamMove(move.peer, source, target, size)
            for source, target, size in self._cut_by_blocks(rank, move.source, move.peer, move.target, move.size)
        ]

    def _cut_by_blocks(
        self, rank: int, source: Place, peer: int, target: Place, size: int
    ) -> list[tuple[Place, Place, int]]:
        """Cut a stretch at the block borders of both sides; return source, target and size of each interval.

        Places in outputs are those of arrival in the intervals, those of the usual order in the arguments.
        """
        intervals, done = [], 0
        while done < size:
            source_place, source_room = self._locate_place(rank, source, done)
            target_place, target_room = self._locate_place(peer, target, done)
            count = min(size - done, source_room, target_room)
            intervals.append((source_place, target_place, count))
            done += count
        return intervals

    def _locate_place(self, rank: int, place: Place, done: int) -> tuple[Place, int]:
        """Return where the data `done` atoms behind a place lie, and the number of atoms contiguous from there."""
        buffer, begin = place
        begin += done
        if buffer != OUTPUT:
            # no border in other buffers: as many atoms as the whole output has, which no message exceeds
            return (buffer, begin), self.block * len(self.places)
        block, within = divmod(begin, self.block)
        return (buffer, int(self.places[rank, block]) * self.block + within), self.block - within


def _by_peer_and_target(move: StreamMove) -> tuple[int, Place]:
    return move.peer, move.target
