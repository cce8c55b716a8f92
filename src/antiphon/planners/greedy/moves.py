"""What one rank has and one other wants: every part along its own way, those with the longest way left first."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs, places, ranges
from antiphon.planners.greedy.hops import Hops
from antiphon.planners.greedy.spread import Pace, Run
from antiphon.planners.greedy.ways import Ways


class Moving:
    """One run of the steps."""

    def __init__(self, hops: Hops, ways: Ways, slot: float, seed: int) -> None:
        self.hops, self.ways = hops, ways
        self.rng = np.random.default_rng(seed)
        self.rate = hops.capacity / slot

    def run(self, pace: Pace) -> Run:
        """O(steps * chunks under way)."""
        begin, end = self.ways.ptr[:-1].copy(), self.ways.ptr[1:]
        load = np.bincount(self._loaded(self.ways.hop)[0], minlength=len(self.rate)).astype(np.float64)
        steps: list[Longs] = []
        hops: list[Longs] = []
        chunks: list[Longs] = []
        over, min_length, number, work = 0.0, 1.0, 0, 0
        while True:
            active = np.flatnonzero(begin < end)
            if not len(active):
                break
            work += len(active)
            time_left = float((load[load > 0] / self.rate[load > 0]).max(initial=0.0))
            length = max(min_length, float(int(min(1 + over * pace.first, time_left * pace.last))))
            order = active[np.lexsort((self.rng.random(len(active)), begin[active] - end[active]))]
            hop = self.ways.hop[begin[order]]
            has_room = self._room(hop, np.floor(self.rate * length + 1e-9))
            if not has_room.any():
                min_length = 2 * length
                continue
            chunk, hop = order[has_room], hop[has_room]
            begin[chunk] += 1
            load -= np.bincount(self._loaded(hop)[0], minlength=len(load))
            steps.append(np.full(len(chunk), number))
            hops.append(hop)
            chunks.append(chunk)
            over, min_length, number = over + length, 1.0, number + 1
        nothing = np.zeros(0, np.int64)
        step, by, chunk_numbers = (np.concatenate([nothing, *columns]) for columns in (steps, hops, chunks))
        return Run(step, by, chunk_numbers, work=work)

    def _loaded(self, hop: Longs) -> tuple[Longs, Longs]:
        """What these hops load, and the place of the hop among them."""
        load_counts = self.hops.ptr[hop + 1] - self.hops.ptr[hop]
        return self.hops.loaded[ranges(self.hops.ptr[hop], load_counts)], np.repeat(np.arange(len(hop)), load_counts)

    def _room(self, hop: Longs, room: Floats) -> Bools:
        """Which of these have room, served in this order."""
        loaded, owner = self._loaded(hop)
        order = np.argsort(loaded, kind="stable")
        late = places(loaded[order]) >= room[loaded[order]]
        has_room = np.ones(len(hop), np.bool_)
        has_room[owner[order[late]]] = False
        return has_room
