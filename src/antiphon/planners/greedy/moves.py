"""Simulate collectives where each chunk has one source and one destination: fixed routes, longest remaining route
first.

The input is the routes of all chunks (hops from rank to rank); the output is the transfers of each step. In every step
the chunks under way are served by number of remaining hops, the most first (ties at random); a chunk advances one hop
if the links of that hop have room for it in this step. Serving the farthest first is the classic rule for
store-and-forward routing: chunks with few remaining hops can wait, those with many would arrive last.

Example: on a line 0 - 1 - 2 - 3, chunk a goes from 0 to 3 and chunk b from 0 to 1. The link 0 - 1 takes a first, then
b: both have arrived after three steps. With b first, a would need a fourth.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs, concat_ranges, index_in_run
from antiphon.planners.greedy.chunk_routes import ChunkRoutes
from antiphon.planners.greedy.hops import Hops
from antiphon.planners.greedy.spread import ROUNDING, Pace, SimulatedTransfers


class Moving:
    """One run of the simulation. `slot`: the capacity of a link that carries one chunk per slot, the unit of time."""

    def __init__(self, hops: Hops, routes: ChunkRoutes, slot: float, seed: int) -> None:
        self.hops, self.routes = hops, routes
        self.rng = np.random.default_rng(seed)
        self.rate = hops.capacity / slot

    def run(self, pace: Pace) -> SimulatedTransfers:
        """Run until all chunks have arrived. O(steps * chunks under way).

        A step lasts at most 1 + `pace.first` times the time elapsed, and `pace.last` times the least time remaining.
        `pace.rise` is not used.
        """
        # per chunk, where the hops that remain of its route begin and end in `routes.hop`
        begin, end = self.routes.ptr[:-1].copy(), self.routes.ptr[1:]
        loaded, _ = self._loads_of(self.routes.hop)
        load = np.bincount(loaded, minlength=len(self.rate)).astype(np.float64)
        steps: list[Longs] = []
        hops: list[Longs] = []
        chunks: list[Longs] = []
        elapsed, min_length, number, work = 0.0, 1.0, 0, 0
        while True:
            active = np.flatnonzero(begin < end)
            if not len(active):
                break
            work += len(active)
            # Lengths are whole numbers of slots. The least time for the remaining load shortens steps again towards the
            # end.
            time_left = float((load[load > 0] / self.rate[load > 0]).max(initial=0.0))
            length = max(min_length, float(int(min(1 + elapsed * pace.first, time_left * pace.last))))
            order = active[np.lexsort((self.rng.random(len(active)), begin[active] - end[active]))]
            hop = self.routes.hop[begin[order]]
            has_room = self._has_room(hop, np.floor(self.rate * length + ROUNDING))
            if not has_room.any():
                min_length = 2 * length  # no hop has room for a whole chunk in so short a step
                continue
            chunk, hop = order[has_room], hop[has_room]
            begin[chunk] += 1
            loaded, _ = self._loads_of(hop)
            load -= np.bincount(loaded, minlength=len(load))
            steps.append(np.full(len(chunk), number))
            hops.append(hop)
            chunks.append(chunk)
            elapsed, min_length, number = elapsed + length, 1.0, number + 1
        empty = np.zeros(0, np.int64)
        step, hop_numbers, chunk_numbers = (np.concatenate([empty, *columns]) for columns in (steps, hops, chunks))
        return SimulatedTransfers(step, hop_numbers, chunk_numbers, work=work)

    def _loads_of(self, hop: Longs) -> tuple[Longs, Longs]:
        """Return the resources that these hops load, and for each of these the position of its hop in `hop`."""
        load_counts = self.hops.ptr[hop + 1] - self.hops.ptr[hop]
        return self.hops.loaded[concat_ranges(self.hops.ptr[hop], load_counts)], np.repeat(
            np.arange(len(hop)), load_counts
        )

    def _has_room(self, hop: Longs, room: Floats) -> Bools:
        """Return which of these hops have room, served in this order."""
        loaded, owner = self._loads_of(hop)
        order = np.argsort(loaded, kind="stable")
        without_room = index_in_run(loaded[order]) >= room[loaded[order]]
        has_room = np.ones(len(hop), np.bool_)
        has_room[owner[order[without_room]]] = False
        return has_room
