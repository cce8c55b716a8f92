"""What was lost against the whole machine: its links one by one, and what its bounds were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported
from antiphon.select.limits import Limit
from antiphon.select.task import Context
from antiphon.units import format_bandwidth

SHOWN = 10
_EQUAL = 1e-12  # relatively: of sums of bandwidths


@dataclass(frozen=True)
class LinkLoss:
    """All links between two nodes (one way, or both where they lost alike), or a shared limit, that lost bandwidth."""

    name: str
    src: int | None
    dst: int | None
    both_ways: bool
    before: Fraction
    after: Fraction

    def describe(self) -> str:
        now = f"{format_bandwidth(self.after)} left of" if self.after else "gone, was"
        return f"{self.name}: {now} {format_bandwidth(self.before)}"

    def as_json(self) -> dict[str, Any]:
        sides = {"before": float(self.before), "after": float(self.after)}
        return {"name": self.name, "src": self.src, "dst": self.dst, "both_ways": self.both_ways, **sides}


@dataclass(frozen=True, eq=False)
class Loss:
    """What a collective has lost against the whole machine: bounds in bytes per second of nbytes, and in steps.

    `all`: all ranks of the whole machine; `among`: the ranks that are left, the others relaying; `left`: here.
    """

    collective: str
    whole: str
    all: Limit | None
    among: Limit | None
    left: Limit | None

    def as_json(self) -> dict[str, Any]:
        def side(limit: Limit | None) -> dict[str, Any] | None:
            return limit.rates() if limit is not None else None

        sides = {name: side(getattr(self, name)) for name in ("all", "among", "left")}
        return {"collective": self.collective, "whole": self.whole, **sides}


@dataclass(frozen=True)
class Damage:
    """The links that are gone or slower: how many in all (both ways counts once), and the first of them."""

    whole: str
    total: int
    links: tuple[LinkLoss, ...]

    def describe(self) -> str:
        """One line; nothing where no link was lost."""
        if not self.total:
            return ""
        more = f"; and {self.total - len(self.links)} more" if self.total > len(self.links) else ""
        return f"links slower than those of {self.whole}, or gone: {'; '.join(x.describe() for x in self.links)}{more}"

    def as_json(self) -> dict[str, Any]:
        return {"whole": self.whole, "total": self.total, "links": [x.as_json() for x in self.links]}


def damage(whole: Topology, here: Topology, members: frozenset[int]) -> Damage:
    """Compare the bandwidth between every two nodes, and of every shared limit by its name. O(links log links).

    Ranks are the same by number, switches by place. Where ranks are left out (they have no links here, and take no
    part), what hung on them is no loss worth telling, nor is what hung on switches that have none left either.
    """
    alive = _alive(whole, here, members)
    key, before = _between(whole, np.arange(whole.nodes), whole.nodes)
    mine, after = _between(here, _places(whole, here), whole.nodes)
    now = np.zeros(len(key))
    at = np.searchsorted(mine, key)
    same = np.flatnonzero(np.append(mine, -1)[at] == key) if len(mine) else np.zeros(0, np.int64)
    now[same] = after[at[same]]
    src, dst = key // whole.nodes, key % whole.nodes
    lost = np.flatnonzero((now < before * (1 - _EQUAL)) & alive[src] & alive[dst])
    found = {(int(src[i]), int(dst[i])): (float(before[i]), float(now[i])) for i in lost.tolist()}
    pairs = [(a, b) for a, b in found if not (a > b and found.get((b, a)) == found[a, b])]
    limits = _limits(whole, here)
    shown = tuple(_link(whole, pair, found) for pair in pairs[:SHOWN])
    return Damage(whole.name, len(pairs) + len(limits), (*shown, *limits)[:SHOWN])


def _alive(whole: Topology, here: Topology, members: frozenset[int]) -> NDArray[np.bool_]:
    """Nodes of the whole machine whose links count."""
    had, has = np.zeros(whole.nodes, bool), np.zeros(whole.nodes, bool)
    had[whole.link_src], had[whole.link_dst] = True, True
    node = _places(whole, here)
    ends = node[np.concatenate([here.link_src, here.link_dst])]
    has[ends[ends >= 0]] = True
    has[list(members)] = True
    return has if bool((had & ~has)[: whole.ranks].any()) else np.ones(whole.nodes, bool)


def _places(whole: Topology, here: Topology) -> Longs:
    """For every node here its number in the whole machine; -1: it is not there."""
    number = {place: i for i, place in enumerate(whole.places) if i >= whole.ranks}
    switches = [number.get(place, -1) for place in here.places[here.ranks :]]
    return np.array([*range(here.ranks), *switches], np.int64)


def _between(topology: Topology, node: Longs, nodes: int) -> tuple[Longs, NDArray[np.float64]]:
    """(src * nodes + dst, ascending; bytes per second of all links from src to dst together)."""
    src, dst = node[topology.link_src], node[topology.link_dst]
    there = np.flatnonzero((src >= 0) & (dst >= 0))
    key, index = np.unique(src[there] * nodes + dst[there], return_inverse=True)
    each = np.array([float(t.bandwidth) for t in topology.types], np.float64)[topology.link_type[there]]
    return key, np.bincount(index, weights=each, minlength=len(key)).astype(np.float64, copy=False)


def _link(whole: Topology, pair: tuple[int, int], found: Mapping[tuple[int, int], tuple[float, float]]) -> LinkLoss:
    src, dst = pair
    both = found.get((dst, src)) == found[pair]
    name = f"{whole.node_name(src)} {'and' if both else 'to'} {whole.node_name(dst)}"
    return LinkLoss(name, src, dst, both, *(Fraction(value) for value in found[pair]))


def _limits(whole: Topology, here: Topology) -> list[LinkLoss]:
    now = {limit.name: limit.bandwidth for limit in here.limits}
    return [
        LinkLoss(f"limit {limit.name}", None, None, False, limit.bandwidth, now[limit.name])
        for limit in whole.limits
        if now.get(limit.name, limit.bandwidth) < limit.bandwidth
    ]


def losses(context: Context, limits: Mapping[str, Limit], whole: Topology) -> tuple[Loss, ...]:
    """Bounds on the whole machine, for all its ranks and for those that are left, beside those here.

    Where counts are uneven those of ranks that take no part are not known: then the first is that of the second.
    """
    rows, before = [], context.seen(whole)
    for kind, target in context.collectives.items():
        if target.custom is None:
            among = _limit(before, target)
            uneven = bool(np.any(target.weights != target.weights[:1]))
            every = among if uneven else _limit(before, Collective(kind, whole.ranks, (), target.roots))
            rows.append(Loss(kind, whole.name, every, among, limits.get(kind)))
    return tuple(rows)


def _limit(topology: Topology, target: Collective) -> Limit | None:
    try:
        return Limit.of(bound(topology, target), topology, target)
    except (Invalid, Unsupported):
        return None
