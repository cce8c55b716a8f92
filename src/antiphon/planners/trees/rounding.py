"""Round the shares of packed trees to a small common denominator, so that schedules have small numbers.

Input: trees with exact rates, whose shares of the data may have denominators of a hundred digits. Output
(`rounded_trees`): the same trees at rounded rates that still fit all links, and what was lost (`Rounding`). Trees whose
share becomes 0 are dropped.

For a denominator k the shares of each root's trees become integers over k that sum to k, by largest remainders. All k
up to the limit are ordered by how near the rounded shares are to the exact shares; of the best 64, the one with the
lowest loads of links and shared limits is taken. With few trees, units are then moved from trees on the fullest link to
others of the same root. The rate that is lost is computed exactly.

Example: rates 1/3, 1/3, 1/3 need k = 3, nothing lost. Rates 0.501 and 0.499 become 1/2 and 1/2 with k = 2: the second
tree's links are loaded by 0.5 / 0.499, so 0.2 % of the rate is lost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs, largest_remainders
from antiphon.core.portable import row_dot
from antiphon.core.topology import Topology
from antiphon.planners.shared.orbits import Symmetries, orbit_rows
from antiphon.planners.shared.tree_schedules import SpanningTree, leading_to

DEFAULT_LIMIT = 1024  # the largest denominator by default; doubled ...
MOST_LOSS = Fraction(1, 200)  # ... while more than this fraction of the rate is lost ...
HIGHEST = 2**20  # ... up to this one
MOST_TRIED = 64  # denominators whose loads are computed
MOST_EVENED = 8  # the best of these, for which units are then moved between trees, if there are at most ...
MOST_TREES = 256  # ... this many trees
MOST_ENTRIES = 2**18  # ... and this many trees times links
MOST_MOVES = 100  # moves of a unit between trees, per denominator
MIN_GAIN = 1e-9  # fraction of the time that a larger denominator must save


@dataclass(frozen=True)
class Portion:
    """A tree whose share of the data is to be rounded.

    `group`: names the data that this is a share of, usually those of one root; the shares of a group sum to 1.
    `share`: the exact share.
    `weight`: the group's amount of data, relative to other groups.
    `links`: the links that the tree loads, as often as it does.
    """

    group: Hashable
    share: Fraction
    weight: int
    links: tuple[int, ...]


@dataclass(frozen=True)
class Rounding:
    """Rounded shares: `counts` over `denominator`, in the order of the portions.

    `rate`: the greatest rate of a group of weight 1 that fits all links, in bytes per second. `loss`: the fraction of
    the exact rate that is lost.
    """

    counts: tuple[int, ...]
    denominator: int
    rate: Fraction
    loss: Fraction

    def describe(self) -> str:
        """Return in words to what shares were rounded and what was lost."""
        lost = f"{float(self.loss):.2g} of the rate lost" if self.loss else "nothing lost"
        return f"shares rounded to 1/{self.denominator}, {lost}"


@dataclass(frozen=True, eq=False)
class Capacities:
    """What links and shared limits can carry.

    `capacity`: by row, bytes per second. A row is a link, a shared limit, or an orbit of these under symmetries; of an
    orbit a tree has its total capacity divided by the number of images, since all images of the tree load it alike.
    `rows_of_link`: by link, the rows that it loads.
    """

    capacity: tuple[Fraction, ...]
    rows_of_link: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_topology(topology: Topology, group: Symmetries | None = None) -> Capacities:
        """Return a machine's capacities. `group`: symmetries by which links and limits form orbits (default: none)."""
        bandwidths = [topology.bandwidth(link) for link in range(topology.links)]
        bandwidths += [limit.bandwidth for limit in topology.limits]
        rows = np.arange(len(bandwidths)) if group is None else orbit_rows(topology, group)
        size = np.bincount(rows)
        _, first = np.unique(rows, return_index=True)  # by row, a resource of it: all of an orbit have equal bandwidth
        images = 1 if group is None else len(group)
        capacity = [bandwidths[at] * n / images for at, n in zip(first.tolist(), size.tolist(), strict=True)]
        limits_of = topology.resources.limits_of
        rows_of_link = [tuple(rows[[link, *limits_of(link)]].tolist()) for link in range(topology.links)]
        return Capacities(tuple(capacity), tuple(rows_of_link))


def round_shares(
    portions: Sequence[Portion], capacities: Capacities, max_denominator: int | None = None
) -> Rounding | None:
    """Round the shares; None if the exact shares already have a common denominator within the limit.

    `max_denominator`: the limit; by default 1024, doubled while more than MOST_LOSS is lost. O(MOST_TRIED * hops) per
    limit.
    """
    limit = max_denominator or DEFAULT_LIMIT
    exact = math.lcm(*{portion.share.denominator for portion in portions})
    if exact <= limit:
        return None
    loads = _RoundingLoads(portions, capacities)
    best = loads.seconds_per_byte(
        [portion.share.numerator * (exact // portion.share.denominator) for portion in portions], exact
    )
    while True:
        counts, denominator = loads.find_nearest(limit)
        time = loads.seconds_per_byte(counts, denominator)
        loss = 1 - best / time
        if max_denominator is not None or loss <= MOST_LOSS or limit >= HIGHEST:
            return Rounding(tuple(counts), denominator, 1 / time, loss)
        limit *= 2


class _RoundingLoads:
    """The loads that portions put on links and shared limits, prepared to compare many denominators."""

    def __init__(self, portions: Sequence[Portion], capacities: Capacities) -> None:
        from scipy.sparse import csr_array

        self._portions, self._capacities = portions, capacities
        self._capacity = capacities.capacity
        rows, columns, values = [], [], []
        for number, portion in enumerate(portions):
            for resource in (resource for link in portion.links for resource in capacities.rows_of_link[link]):
                rows.append(resource)
                columns.append(number)
                values.append(portion.weight / float(self._capacity[resource]))
        # [row, portion]: seconds per byte of a group of weight 1, if the portion has all of its group
        self._matrix = csr_array((values, (rows, columns)), shape=(len(self._capacity), len(portions)))
        # number the groups, for moves within a group
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, portion in enumerate(portions):
            groups[portion.group].append(number)
        self._exact = np.array([float(portion.share) for portion in portions])
        self._group = np.zeros(len(portions), np.int64)
        for number, members in enumerate(groups.values()):
            self._group[members] = number
        # groups with equal shares round alike, so each pattern of shares is rounded once
        groups_by_shares: dict[tuple[Fraction, ...], list[list[int]]] = defaultdict(list)
        for members in groups.values():
            groups_by_shares[tuple(portions[number].share for number in members)].append(members)
        self._groups_by_shares = [
            (np.array([float(share) for share in shares]), np.array(members))
            for shares, members in groups_by_shares.items()
        ]

    def seconds_per_byte(self, counts: Sequence[int], denominator: int) -> Fraction:
        """Return, exactly, the seconds that the fullest row needs per byte of a group of weight 1."""
        crossed: dict[int, int] = defaultdict(int)
        for portion, count in zip(self._portions, counts, strict=True):
            amount = count * portion.weight
            for link in portion.links:
                crossed[link] += amount
        load: dict[int, int] = defaultdict(int)
        for link, amount in crossed.items():
            for resource in self._capacities.rows_of_link[link]:
                load[resource] += amount
        return max(amount / (denominator * self._capacity[resource]) for resource, amount in load.items())

    def find_nearest(self, max_denominator: int) -> tuple[list[int], int]:
        """Return the counts and denominator, up to the maximum, with the least loss in floats; ties: the smallest."""
        by_distance = [
            (self._rounding_distance(denominator), denominator) for denominator in range(1, max_denominator + 1)
        ]
        attempts = []
        for _, denominator in sorted(by_distance)[:MOST_TRIED]:
            counts = self._round_all(denominator)
            attempts.append((float((self._matrix @ counts).max()) / denominator, denominator, counts))
        # by time, then denominator; only the best few are evened out, since that takes longer
        attempts.sort(key=lambda attempt: attempt[:2])
        if len(self._portions) <= MOST_TREES and len(self._portions) * len(self._capacity) <= MOST_ENTRIES:
            attempts = [
                (*self._even_out(counts, denominator), counts) for _, denominator, counts in attempts[:MOST_EVENED]
            ]
        least_time = min(time for time, *_ in attempts)
        near_best = {
            denominator: counts for time, denominator, counts in attempts if time <= least_time * (1 + MIN_GAIN)
        }
        smallest = min(near_best)
        return [int(count) for count in near_best[smallest]], smallest

    def _even_out(self, counts: Longs, denominator: int) -> tuple[float, int]:
        """Improve `counts` in place by moving units between trees of a group; return time per byte and denominator.

        Each move takes a unit from a tree on the fullest row, if that lowers the highest load. If the highest load
        stays the same, it must lower the sum of (load - highest load of the exact shares)^2 over all rows above that
        load.
        """
        use = self._matrix.toarray() / denominator  # [row, tree]: seconds per byte for each unit of the tree's count
        load = row_dot(use, counts)
        target = (self._matrix @ self._exact).max()

        def excess(loads: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            """Return, by column, the highest load and the sum of squares of loads above the target."""
            return loads.max(axis=0), np.square(np.maximum(loads - target, 0)).sum(axis=0)

        for _ in range(MOST_MOVES):
            current_highest, current_squares = (float(column[0]) for column in excess(load[:, None]))
            # highest load and squares after a move, the tree that gives a unit and the one that takes it (-1: no move)
            best = (current_highest, current_squares * (1 - MIN_GAIN), -1, -1)
            # move one unit from a tree on the fullest link to another of its group
            for giver in np.flatnonzero((use[np.argmax(load)] > 0) & (counts > 0)).tolist():
                takers = np.flatnonzero(self._group == self._group[giver])
                highest, squares = excess((load - use[:, giver])[:, None] + use[:, takers])
                at = int(np.lexsort((squares, highest))[0])
                best = min(best, (float(highest[at]), float(squares[at]), giver, int(takers[at])))
            *_, giver, taker = best
            if giver < 0:
                break
            counts[giver] -= 1
            counts[taker] += 1
            load = row_dot(use, counts)
        return float(load.max()), denominator

    def _rounding_distance(self, denominator: int) -> float:
        """Return the distance of the rounded shares from the exact ones, summed over all portions."""
        return sum(
            float(np.abs(largest_remainders(shares * denominator, denominator) / denominator - shares).sum())
            * len(members)
            for shares, members in self._groups_by_shares
        )

    def _round_all(self, denominator: int) -> Longs:
        """Return the counts of all portions for this denominator."""
        counts = np.zeros(len(self._portions), np.int64)
        for shares, members in self._groups_by_shares:
            counts[members] = largest_remainders(shares * denominator, denominator)
        return counts


def tree_portions(
    trees: Sequence[SpanningTree], weight: Mapping[int, int], ends: Collection[int], side: str = ""
) -> list[Portion]:
    """Return a portion per tree. The trees of a root form a group of its weight; without weights, all trees form one.

    Hops that do not lead to any of the `ends` are left out. `side`: a label that distinguishes the groups of different
    forests, such as trees out of a root and in to it.
    """
    receivers = frozenset(ends)
    total: dict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        total[tree.root if weight else 0] += tree.rate
    portions = []
    for tree in trees:
        group = tree.root if weight else 0
        hops = leading_to(dict(tree.hops), tree.root, receivers)
        links = tuple(link for _, hop in hops for link in (*hop.path, *hop.back))
        portions.append(Portion((side, group), tree.rate / total[group], weight.get(group, 1), links))
    return portions


def with_shares(trees: Sequence[SpanningTree], rounding: Rounding | None, first: int = 0) -> tuple[SpanningTree, ...]:
    """Return the trees with their counts as rates, without trees of count 0; unchanged if `rounding` is None.

    `first`: position of the first of these trees among the rounded portions.
    """
    if rounding is None:
        return tuple(trees)
    counts = rounding.counts[first : first + len(trees)]
    return tuple(replace(tree, rate=Fraction(count)) for tree, count in zip(trees, counts, strict=True) if count)


def rounded_trees(
    trees: Sequence[SpanningTree], weight: Mapping[int, int], ends: Collection[int], topology: Topology,
    max_denominator: int | None, group: Symmetries | None = None,
) -> tuple[tuple[SpanningTree, ...], Rounding | None]:  # fmt: skip
    """Round the shares of a packing; return its trees at rates that fit all links, and the rounding (None: exact).

    `weight`: amount of each root's data (empty: all trees share one amount). `ends`: the ranks that receive. `group`:
    each tree also stands for its images by these symmetries.
    """
    portions = tree_portions(trees, weight, ends)
    rounding = round_shares(portions, Capacities.of_topology(topology, group), max_denominator)
    if rounding is None:
        return tuple(trees), None
    unit = rounding.rate / rounding.denominator
    rates = [n * portion.weight * unit for n, portion in zip(rounding.counts, portions, strict=True)]
    return tuple(replace(tree, rate=rate) for tree, rate in zip(trees, rates, strict=True) if rate), rounding
