"""Decompose flows into paths, and round their shares to a common denominator.

Input: how much of each demand flows over which link. (A demand is the data that one rank, its root, sends or receives;
its ends are the ranks at the other side. A row is a link, a shared limit, or an orbit of these.) Output: paths between
senders and receivers with amounts (`paths_of`), then their shares of the data between the two as small fractions
(`shares_of`).

A flow is decomposed from its ends backwards: follow the links that carry most back to the root, subtract the least
amount on the way, repeat. Cycles met on the way are removed. A demand has at most as many paths as ends and links
together, since each path uses up a link or an end.

Chunks are fractions of a block, so the shares of the paths between a pair become integers over one denominator. That is
the least one that represents all shares exactly, if it is small; else the one of several that costs least time, as
rounding moves load to other links.

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
from antiphon.planners.flows.demands import RootDemand
from antiphon.planners.flows.linear_program import Floats, Flow, FlowProblem

NOISE = 1e-7  # amounts below this fraction of an end's weight are solver noise
MOST_EXACT = 1024  # the greatest denominator that may represent all shares exactly
INTEGER_TOLERANCE = 1e-6  # numbers this near to integers count as integers
SMALL_DENOMINATORS = (*range(1, 17), 32, 64, 128, 256, 512, MOST_EXACT)  # tried if none represents all shares exactly
LARGE_DENOMINATORS = (2048, 4096, 8192, 16384)  # tried if these lose more than MAX_LOSS
MAX_LOSS = 1e-3  # fraction of the time
TIE = 1e-9  # relative: for less time saved than this, the smaller denominator stays

Hops = tuple[tuple[int, ...], ...]  # rank to rank, each by links through switches


@dataclass(frozen=True)
class Path:
    """A path from a sender to a receiver, and the amount that it carries.

    `pair`: the sender (or all ranks that hold the data), and the receiver.
    """

    pair: tuple[tuple[int, ...], int]
    hops: Hops
    amount: float


@dataclass(frozen=True, eq=False)
class Shares:
    """By path, its share of the data between its pair of ranks: `counts` / `denominator`; some are 0.

    `time`: load over capacity of the fullest row.
    """

    counts: Longs
    denominator: int
    time: float


def paths_of(problem: FlowProblem, flow: Flow) -> list[Path]:
    """Return the paths of a flow, at most as many per demand as ends and links. O(paths * hops)."""
    paths = []
    for demand, amounts in zip(problem.demands, flow.amount, strict=True):
        paths += _FlowDecomposition(problem, demand, amounts).paths()
    return paths


class _FlowDecomposition:
    """One demand's flow, decomposed from its ends back to its root."""

    def __init__(self, problem: FlowProblem, demand: RootDemand, amounts: Floats) -> None:
        self.problem, self.demand, self.topology = problem, demand, problem.topology
        tail, head = problem.ends_of(demand)  # as the flow leads away from the root: reversed if the root receives
        self.tail = tail.tolist()
        # by node, the links into it that still carry flow, with their amounts
        self.remaining: dict[int, dict[int, float]] = defaultdict(dict)
        for link in np.flatnonzero(amounts > 0).tolist():
            self.remaining[int(head[link])][link] = float(amounts[link])

    def paths(self) -> list[Path]:
        """Return the paths of all ends."""
        paths: list[Path] = []
        for end, weight in self.demand.ends:
            paths += self._decompose_end(end, weight)
        return paths

    def _decompose_end(self, end: tuple[int, ...], weight: float) -> list[Path]:
        """Return paths that together carry an end's weight, and subtract them from the flow."""
        merged: dict[tuple[int, ...], float] = {}  # links from the root on -> amount
        remaining = float(weight)
        while remaining > NOISE * weight:
            route = self._trace_route(self.problem.node_of(end))
            if route is None:
                break
            amount = min(remaining, *(self.remaining[node][link] for node, link in route))
            for node, link in route:
                self.remaining[node][link] -= amount
                if self.remaining[node][link] <= NOISE * weight:
                    del self.remaining[node][link]
            remaining -= amount
            # without the extra link to the node of a set of holders
            links = tuple(link for _, link in reversed(route) if link < self.topology.links)
            merged[links] = merged.get(links, 0.0) + amount
        assert merged, "a flow does not serve its end"
        return [self._to_path(end, links, amount) for links, amount in merged.items()]

    def _trace_route(self, node: int) -> list[tuple[int, int]] | None:
        """Return a path back to the root as (node, link into it), by the links that carry most; None if there is none.

        Cycles are removed from the flow.
        """
        route: list[tuple[int, int]] = []
        position = {node: 0}
        while node != self.demand.root:
            carrying = self.remaining[node]
            if not carrying:
                return None
            # go back over the link that carries most
            link = max(carrying, key=lambda candidate: (carrying[candidate], -candidate))
            route.append((node, link))
            node = self.tail[link]
            # the walk is back at a node (solvers may leave cycles in a flow): remove the cycle, and go on from there
            if node in position:
                cycle = route[position[node] :]
                amount = min(self.remaining[at][link] for at, link in cycle)
                for at, link in cycle:
                    self.remaining[at][link] -= amount
                    if self.remaining[at][link] <= 0:
                        del self.remaining[at][link]
                del route[position[node] :]
                position = {at: number for number, (at, _) in enumerate(route)}
            position[node] = len(route)
        return route

    def _to_path(self, end: tuple[int, ...], links: tuple[int, ...], amount: float) -> Path:
        """Return a path of these links, divided into hops from rank to rank.

        `links`: in order away from the root; a demand whose root receives uses them in reverse.
        """
        demand = self.demand
        hops: list[tuple[int, ...]] = []
        hop: list[int] = []
        for link in links if demand.out else links[::-1]:
            hop.append(link)
            if int(self.topology.link_dst[link]) < self.topology.ranks:
                hops.append(tuple(hop))
                hop = []
        # a root that sends has single ranks as ends; only senders may be sets of holders
        pair = ((demand.root,), end[0]) if demand.out else (end, demand.root)
        return Path(pair, tuple(hops), amount)


def shares_of(problem: FlowProblem, paths: Sequence[Path], time: float) -> Shares:
    """Return rounded shares: over the smallest denominator that represents all exactly, or the one that loses least.

    `time`: the time of the exact flow.
    """
    if not paths:
        return Shares(np.zeros(0, np.int64), denominator=1, time=0.0)
    pair = _number_pairs(paths)
    amount = np.array([path.amount for path in paths])
    share = amount / np.bincount(pair, weights=amount)[pair]
    weight = np.bincount(pair, weights=amount)[pair]
    best: Shares | None = None
    for denominator in _candidate_denominators(share):
        units = _round_shares(share, pair, denominator)
        needed_time = _max_load_time(problem, paths, units / denominator * weight)
        if best is None or needed_time < best.time * (1 - TIE):
            best = Shares(units, denominator, needed_time)
        # a small denominator must lose nothing (but for rounding); from MOST_EXACT on a loss of MAX_LOSS will do
        if best.time <= time * (1 + (MAX_LOSS if denominator >= MOST_EXACT else INTEGER_TOLERANCE)):
            break
    assert best is not None
    return best


def _max_load_time(problem: FlowProblem, paths: Sequence[Path], amounts: Floats) -> float:
    """Return load over capacity of the fullest row if the paths (and their images) carry these amounts."""
    lengths = [sum(map(len, path.hops)) for path in paths]
    link_of_hop = np.array([link for path in paths for hop in path.hops for link in hop], np.int64)
    load = np.bincount(link_of_hop, weights=np.repeat(amounts, lengths), minlength=problem.links).astype(np.float64)
    return float((problem.row_loads(load) / problem.capacity).max(initial=0.0))


def _candidate_denominators(share: Floats) -> list[int]:
    """Return the denominators to try; the smallest that represents all shares exactly comes first, if there is one."""
    # noise in share * k grows with k; the tolerance grows less, since by chance large k nearly fit any share
    exact = [
        k
        for k in range(1, MOST_EXACT + 1)
        if np.abs(share * k - np.round(share * k)).max(initial=0) < INTEGER_TOLERANCE * k**0.5
    ]
    return [*exact[:1], *SMALL_DENOMINATORS, *LARGE_DENOMINATORS]


def _number_pairs(paths: Sequence[Path]) -> Longs:
    """Return the number of every path's pair."""
    number: dict[tuple[tuple[int, ...], int], int] = {}
    return np.array([number.setdefault(path.pair, len(number)) for path in paths], np.int64)


def _round_shares(share: Floats, pair: Longs, denominator: int) -> Longs:
    """Return the shares as integers that sum to the denominator for every pair, by largest remainders."""
    exact = share * denominator
    # every share rounded down; the units that are lacking go to the largest remainders
    units = np.floor(exact + INTEGER_TOLERANCE).astype(np.int64)
    lacking = denominator - np.bincount(pair, weights=units).astype(np.int64)
    order = np.lexsort((np.arange(len(share)), units - exact, pair))
    first = np.searchsorted(pair[order], np.arange(len(lacking)))
    remainder_rank: NDArray[np.int64] = np.empty(len(share), np.int64)
    remainder_rank[order] = np.arange(len(share)) - first[pair[order]]
    return units + (remainder_rank < lacking[pair])
