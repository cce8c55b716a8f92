"""Shares of trees over one small denominator: exact packings may have denominators of many digits.

The shares of every group of trees (those of one root) become whole numbers over k that add up to k, by largest
remainders. Of the denominators up to the greatest allowed those that come nearest to the shares are tried against the
loads of links and shared limits; where trees are few, units are moved from the fullest links; what loses least stays.
What it loses is exact, and told.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.portable import dot
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.planners.shared.orbits import Table, rows_of
from antiphon.planners.trees.lay import leading_to
from antiphon.planners.trees.tree import Tree

MOST = 1024
MOST_LOSS = Fraction(1, 200)  # where no denominator is asked for, greater ones are tried until no more is lost
HIGHEST = 2**20
TRIED = 64  # denominators that are held against the loads
EVENED = 8  # the best of them are improved, where there are few
MOST_PARTS, MOST_CELLS, MOST_MOVES = 256, 2**18, 100
BETTER = 1e-9  # of the time, which greater denominators must save


@dataclass(frozen=True)
class Part:
    """A tree's part of the data of its group, of which `share` of the whole goes along `links`; `weight`: the group's
    data, relative to other groups."""

    group: Hashable
    share: Fraction
    weight: int
    links: tuple[int, ...]


@dataclass(frozen=True)
class Rounding:
    """`counts`: per part its share, over `denominator`; `rate`: bytes per second of a weight of 1 that can then go
    along all of them; `loss`: the share of the exact rate that is given up."""

    counts: tuple[int, ...]
    denominator: int
    rate: Fraction
    loss: Fraction

    def describe(self) -> str:
        lost = f"{float(self.loss):.2g} of the rate lost" if self.loss else "nothing lost"
        return f"shares rounded to 1/{self.denominator}, {lost}"


def denominator_of(asked: object) -> int | None:
    """What the option `denominator` means."""
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= HIGHEST:
        raise Invalid(f"option denominator: expected a whole number from 1 to {HIGHEST}, got {quote(asked)}")
    return asked


@dataclass(frozen=True, eq=False)
class Room:
    """What links and shared limits can carry, in bytes per second: `of[link]` are the places in `capacity` that a link
    loads. Seen through symmetries a place is an orbit, with the room that a tree has there while all its images use
    it, too."""

    capacity: tuple[Fraction, ...]
    of: tuple[tuple[int, ...], ...]

    @staticmethod
    def seen(topology: Topology, group: Table | None = None) -> Room:
        every = [topology.bandwidth(link) for link in range(topology.links)]
        every += [limit.bandwidth for limit in topology.limits]
        rows = np.arange(len(every)) if group is None else rows_of(topology, group)
        size, first = np.bincount(rows), np.unique(rows, return_index=True)[1]
        alike = 1 if group is None else len(group)
        capacity = [every[at] * int(many) / alike for at, many in zip(first.tolist(), size.tolist(), strict=True)]
        of = [[row] for row in rows[: topology.links].tolist()]
        for limit, row in zip(topology.limits, rows[topology.links :].tolist(), strict=True):
            for link in limit.links:
                of[link].append(row)
        return Room(tuple(capacity), tuple(map(tuple, of)))


def rounded(parts: Sequence[Part], room: Room, asked: int | None = None) -> Rounding | None:
    """None where the exact shares have a denominator within the limit. `asked`: the greatest; else 1024, or as much
    more as it takes to lose no more than MOST_LOSS. O(TRIED * hops), twice that again for each doubling.
    """
    most = asked or MOST
    exact = math.lcm(*{part.share.denominator for part in parts})
    if exact <= most:
        return None
    loads = _Loads(parts, room)
    best = loads.time([part.share.numerator * (exact // part.share.denominator) for part in parts], exact)
    while True:
        counts, denominator = loads.nearest(most)
        time = loads.time(counts, denominator)
        loss = 1 - best / time
        if asked is not None or loss <= MOST_LOSS or most >= HIGHEST:
            return Rounding(tuple(counts), denominator, 1 / time, loss)
        most *= 2


class _Loads:
    """What every part puts on which link or shared limit."""

    def __init__(self, parts: Sequence[Part], room: Room) -> None:
        from scipy.sparse import csr_array

        self._parts, self._room = parts, room
        self._capacity = room.capacity
        row, column, value = [], [], []
        for number, part in enumerate(parts):
            for resource in self._loaded(part):
                row.append(resource)
                column.append(number)
                value.append(part.weight / float(self._capacity[resource]))
        self._matrix = csr_array((value, (row, column)), shape=(len(self._capacity), len(parts)))
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, part in enumerate(parts):
            groups[part.group].append(number)
        self._exact = np.array([float(part.share) for part in parts])
        self._group = np.zeros(len(parts), np.int64)
        for number, members in enumerate(groups.values()):
            self._group[members] = number
        alike: dict[tuple[Fraction, ...], list[list[int]]] = defaultdict(list)
        for members in groups.values():
            alike[tuple(parts[number].share for number in members)].append(members)
        self._alike = [
            (np.array([float(share) for share in shares]), np.array(members)) for shares, members in alike.items()
        ]

    def _loaded(self, part: Part) -> list[int]:
        return [resource for link in part.links for resource in self._room.of[link]]

    def time(self, counts: Sequence[int], denominator: int) -> Fraction:
        """The least seconds per byte of a weight of 1, exactly."""
        crossed: dict[int, int] = defaultdict(int)
        for part, count in zip(self._parts, counts, strict=True):
            amount = count * part.weight
            for link in part.links:
                crossed[link] += amount
        load: dict[int, int] = defaultdict(int)
        for link, amount in crossed.items():
            for resource in self._room.of[link]:
                load[resource] += amount
        return max(amount / (denominator * self._capacity[resource]) for resource, amount in load.items())

    def nearest(self, most: int) -> tuple[list[int], int]:
        """The counts and the denominator up to `most` that lose least, as far as floats tell; of equals the least."""
        off = [(self._off(denominator), denominator) for denominator in range(1, most + 1)]
        tried = []
        for _, denominator in sorted(off)[:TRIED]:
            counts = self._counts(denominator)
            tried.append((float((self._matrix @ counts).max()) / denominator, denominator, counts))
        tried.sort(key=lambda one: one[:2])
        if len(self._parts) <= MOST_PARTS and len(self._parts) * len(self._capacity) <= MOST_CELLS:
            tried = [(*self._evened(counts, denominator), counts) for _, denominator, counts in tried[:EVENED]]
        least = min(time for time, *_ in tried)
        enough = [one for one in tried if one[0] <= least * (1 + BETTER)]
        _, denominator, counts = min(enough, key=lambda one: one[1])
        return [int(count) for count in counts], denominator

    def _evened(self, counts: Longs, denominator: int) -> tuple[float, int]:
        """Move units, in place, from trees on the fullest link to others of their group while that makes it, or all
        that are fuller than they were exactly, less full. Returns the time and the denominator."""
        use = self._matrix.toarray() / denominator
        load = dot(use, counts)
        target = (self._matrix @ self._exact).max()

        def worth(loads: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            return loads.max(axis=0), np.square(np.maximum(loads - target, 0)).sum(axis=0)

        for _ in range(MOST_MOVES):
            now = worth(load[:, None])
            best: tuple[float, float, int, int] = (float(now[0][0]), float(now[1][0]) * (1 - BETTER), -1, -1)
            for giver in np.flatnonzero((use[np.argmax(load)] > 0) & (counts > 0)).tolist():
                takers = np.flatnonzero(self._group == self._group[giver])
                full, over = worth((load - use[:, giver])[:, None] + use[:, takers])
                at = int(np.lexsort((over, full))[0])
                best = min(best, (float(full[at]), float(over[at]), giver, int(takers[at])))
            if best[2] < 0:
                break
            counts[best[2]] -= 1
            counts[best[3]] += 1
            load = dot(use, counts)
        return float(load.max()), denominator

    def _off(self, denominator: int) -> float:
        """How far from the shares, summed over all parts."""
        return sum(
            float(np.abs(_by_remainders(shares, denominator) / denominator - shares).sum()) * len(members)
            for shares, members in self._alike
        )

    def _counts(self, denominator: int) -> Longs:
        found = np.zeros(len(self._parts), np.int64)
        for shares, members in self._alike:
            found[members] = _by_remainders(shares, denominator)
        return found


def _by_remainders(shares: NDArray[np.float64], denominator: int) -> Longs:
    """Whole numbers near the shares times the denominator that add up to it."""
    whole = np.floor(shares * denominator).astype(np.int64)
    order = np.argsort(whole - shares * denominator, kind="stable")
    whole[order[: denominator - int(whole.sum())]] += 1
    return whole


# ---- of trees ----


def parts_of(trees: Sequence[Tree], weight: Mapping[int, int], ends: Collection[int], side: str = "") -> list[Part]:
    """Every root's trees carry as much as its weight says; without weights all share 1. Hops that lead to none of the
    `ends` are not used."""
    kept = frozenset(ends)
    whole: dict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        whole[tree.root if weight else 0] += tree.rate
    found = []
    for tree in trees:
        group = tree.root if weight else 0
        hops = leading_to(dict(tree.hops), tree.root, kept)
        links = tuple(link for _, hop in hops for link in (*hop.path, *hop.back))
        found.append(Part((side, group), tree.rate / whole[group], weight.get(group, 1), links))
    return found


def with_shares(trees: Sequence[Tree], rounding: Rounding | None, first: int = 0) -> tuple[Tree, ...]:
    """The trees with their counts, from the `first` on, for rates: those of one root are shares; what got none is left
    out."""
    if rounding is None:
        return tuple(trees)
    counts = rounding.counts[first : first + len(trees)]
    return tuple(replace(tree, rate=Fraction(count)) for tree, count in zip(trees, counts, strict=True) if count)


def rounded_trees(
    trees: Sequence[Tree], weight: Mapping[int, int], ends: Collection[int], topology: Topology, asked: int | None,
    group: Table | None = None,
) -> tuple[tuple[Tree, ...], Rounding | None]:  # fmt: skip
    """One set of trees, with `weight` of each root (empty: all share one), at rates that fit all links. `group`: the
    trees stand for their images by these symmetries, too."""
    parts = parts_of(trees, weight, ends)
    rounding = rounded(parts, Room.seen(topology, group), asked)
    if rounding is None:
        return tuple(trees), None
    rates = [Fraction(n * part.weight, rounding.denominator) * rounding.rate
             for n, part in zip(rounding.counts, parts, strict=True)]  # fmt: skip
    return tuple(replace(tree, rate=rate) for tree, rate in zip(trees, rates, strict=True) if rate), rounding
