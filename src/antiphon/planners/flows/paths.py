"""Decompose flows into paths, and round their shares to a common denominator.

A flow from a root is decomposed from its ends backwards: follow links that carry flow to the root, subtract the
bottleneck, repeat. Cycles met on the way are cancelled. At most ends + links paths per want: each step uses up a link
or an end.

Chunks are fractions of a block, so the shares of the paths between a pair become integers over one denominator:
first the least that represents all exactly, else several, and the one with the least time is taken (rounding moves load
to other links).

Example: 0 sends weight 1 to 3, 2/3 over 1 and 1/3 over 2. From 3 back: the link from 1 carries most, path 0 > 1 > 3
with 2/3; the remainder is 0 > 2 > 3 with 1/3. Denominator 3: chunks of 2/3 and 1/3 of the block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.planners.flows.program import Floats, Flow, FlowProgram
from antiphon.planners.flows.wants import Want

NOTHING = 1e-7  # of an end's weight: below this is solver noise
MOST = 1024  # the greatest denominator
EXACT = 1e-6  # shares this near to integers count as integers
COARSE = (*range(1, 17), 32, 64, 128, 256, 512, MOST)
FINE = (2048, 4096, 8192, 16384)  # tried where the coarse ones lose more than LOSS
LOSS = 1e-3  # of the time

Hops = tuple[tuple[int, ...], ...]  # rank to rank, each by links through switches


@dataclass(frozen=True)
class Path:
    """A path from a sender to a receiver, with its share of the weight between `pair`."""

    pair: tuple[tuple[int, ...], int]
    hops: Hops
    amount: float


@dataclass(frozen=True, eq=False)
class Shares:
    """For every path its units of 1 / `denominator` of its pair's data; some have none."""

    counts: Longs
    denominator: int
    time: float  # weight over capacity of the fullest row


def paths_of(program: FlowProgram, flow: Flow) -> list[Path]:
    """Decompose the flow; at most as many paths per want as ends and links. O(paths * hops)."""
    paths = []
    for want, amounts in zip(program.wants, flow.amount, strict=True):
        paths += _Taken(program, want, amounts).paths()
    return paths


class _Taken:
    """One want's flow, decomposed from its ends back to its root."""

    def __init__(self, program: FlowProgram, want: Want, amounts: Floats) -> None:
        self.program, self.want, self.topology = program, want, program.topology
        tail, head = program.ends_of(want)
        self.tail = tail.tolist()
        self.left: dict[int, dict[int, float]] = defaultdict(dict)  # of every node the links into it that still carry
        for link in np.flatnonzero(amounts > 0).tolist():
            self.left[int(head[link])][link] = float(amounts[link])

    def paths(self) -> list[Path]:
        paths: list[Path] = []
        for end, weight in self.want.ends:
            paths += self._decompose_end(end, weight)
        return paths

    def _decompose_end(self, end: tuple[int, ...], weight: float) -> list[Path]:
        merged: dict[tuple[int, ...], float] = {}
        remaining = float(weight)
        while remaining > NOTHING * weight:
            route = self._trace_route(self.program.node_of(end))
            if route is None:
                break
            amount = min(remaining, *(self.left[node][link] for node, link in route))
            for node, link in route:
                self.left[node][link] -= amount
                if self.left[node][link] <= NOTHING * weight:
                    del self.left[node][link]
            remaining -= amount
            links = tuple(link for _, link in reversed(route) if link < self.topology.links)
            merged[links] = merged.get(links, 0.0) + amount
        assert merged, "a flow does not serve its end"
        return [self._path(end, links, amount) for links, amount in merged.items()]

    def _trace_route(self, node: int) -> list[tuple[int, int]] | None:
        """Trace back to the root by the links that carry most, removing cycles. Returns (node, link into it)."""
        route: list[tuple[int, int]] = []
        place = {node: 0}
        while node != self.want.root:
            carrying = self.left[node]
            if not carrying:
                return None
            link = max(carrying, key=lambda candidate: (carrying[candidate], -candidate))
            route.append((node, link))
            node = self.tail[link]
            # the walk met itself: solvers may leave circulations in a flow. Remove this one and go on from the node
            # where it closed
            if node in place:
                circle = route[place[node] :]
                amount = min(self.left[at][by] for at, by in circle)
                for at, by in circle:
                    self.left[at][by] -= amount
                    if self.left[at][by] <= 0:
                        del self.left[at][by]
                del route[place[node] :]
                place = {at: number for number, (at, _) in enumerate(route)}
            place[node] = len(route)
        return route

    def _path(self, end: tuple[int, ...], links: tuple[int, ...], amount: float) -> Path:
        """`links`: as seen from the root."""
        want = self.want
        hops: list[tuple[int, ...]] = []
        hop: list[int] = []
        for link in links if want.out else links[::-1]:
            hop.append(link)
            if int(self.topology.link_dst[link]) < self.topology.ranks:
                hops.append(tuple(hop))
                hop = []
        pair = ((want.root,), end[0]) if want.out else (end, want.root)
        return Path(pair, tuple(hops), amount)


def shares_of(program: FlowProgram, paths: Sequence[Path], time: float) -> Shares:
    """Round shares to the smallest denominator that represents them exactly, or to the one that loses least time."""
    if not paths:
        return Shares(np.zeros(0, np.int64), 1, 0.0)
    pair = _number_pairs(paths)
    amount = np.array([path.amount for path in paths])
    share = amount / np.bincount(pair, weights=amount)[pair]
    weight = np.bincount(pair, weights=amount)[pair]
    best: Shares | None = None
    for denominator in _candidate_denominators(share):
        units = _round_shares(share, pair, denominator)
        needed_time = _max_load_time(program, paths, units / denominator * weight)
        if best is None or needed_time < best.time * (1 - 1e-9):
            best = Shares(units, denominator, needed_time)
        if best.time <= time * (1 + (LOSS if denominator >= MOST else EXACT)):
            break
    assert best is not None
    return best


def _max_load_time(program: FlowProgram, paths: Sequence[Path], amounts: Floats) -> float:
    """Return the time of the most loaded row where paths (and their images) carry these amounts."""
    lengths = [sum(map(len, path.hops)) for path in paths]
    crossed = np.array([link for path in paths for hop in path.hops for link in hop], np.int64)
    load = np.bincount(crossed, weights=np.repeat(amounts, lengths), minlength=program.links).astype(np.float64)
    return float((program.row_loads(load) / program.capacity).max(initial=0.0))


def _candidate_denominators(share: Floats) -> list[int]:
    """Yield candidates; those that represent all shares exactly come first."""
    exact = [k for k in range(1, MOST + 1) if np.abs(share * k - np.round(share * k)).max(initial=0) < EXACT * k**0.5]
    return [*exact[:1], *COARSE, *FINE]


def _number_pairs(paths: Sequence[Path]) -> Longs:
    number: dict[tuple[tuple[int, ...], int], int] = {}
    return np.array([number.setdefault(path.pair, len(number)) for path in paths], np.int64)


def _round_shares(share: Floats, pair: Longs, denominator: int) -> Longs:
    """Round by largest remainders: the units of every pair sum to the denominator."""
    exact = share * denominator
    # every share rounded down; what is lacking goes to the largest remainders
    units = np.floor(exact + EXACT).astype(np.int64)
    lacking = denominator - np.bincount(pair, weights=units).astype(np.int64)
    order = np.lexsort((np.arange(len(share)), units - exact, pair))
    first = np.searchsorted(pair[order], np.arange(len(lacking)))
    place: NDArray[np.int64] = np.empty(len(share), np.int64)
    place[order] = np.arange(len(share)) - first[pair[order]]
    return units + (place < lacking[pair])
