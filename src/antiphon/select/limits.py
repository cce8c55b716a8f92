"""Compute the lower bound of a collective by size, and what a degraded machine has lost compared with the intact one.

No schedule of n bytes takes less than max(latency, n / rate): the latency is that of the quickest paths by which every
rank can get what it needs, the rate that of the tightest cut (core.bounds). Example: 10 us and 100 GB/s give 10 us up
to 1 MB, and 100 us at 10 MB.

Losses are reported by links, as the bandwidth between every two nodes before and after (`compare_links`), and by
collectives, since a lost link may cost nothing, or half of the rate (`compare_bounds`): three bounds of each.

    all      on the intact machine, among all its ranks
    among    on the intact machine, among the ranks that remain in the degraded one; the others may relay
    left     on the degraded machine

Example: a box of eight GPUs, one of them gone. Between `all` and `among` an allreduce changes only in its number of
ranks; between `among` and `left` it loses the links of the missing GPU, over which others could have relayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds import Bound, Witness, bound
from antiphon.core.bounds.latency_seconds import Quickest, find_slowest_need
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.plan import Plan
from antiphon.core.reshape import linked_ranks
from antiphon.core.topology import Topology
from antiphon.cost import Profile, model_of
from antiphon.cost.bound_evaluator import BoundEvaluator, EvidenceByHelp
from antiphon.cost.model_bound import BOUNDS, model_bound
from antiphon.errors import Invalid, Unsupported
from antiphon.units import format_bandwidth

MAX_SHOWN_LINKS = 10  # lost links that are listed
MAX_RANKS_GAP = 64  # on these the bound takes some 0.3 s at most; on larger machines a prediction states no gap
SAME_BANDWIDTH = 1e-12  # relative: sums of bandwidths may differ by rounding


@dataclass(frozen=True, eq=False)
class Limit:
    """The lower bounds of a collective on a machine."""

    steps: int  # least number of steps
    latency: float  # least latency in seconds
    bytes_per_second: Fraction | None  # greatest rate; None: no link limits it
    because: tuple[str, ...] = ()  # the witnesses in words
    without_switches: Fraction | None = None  # greatest rate if switches that can multicast or reduce only forward
    model: str = ""  # the cost model of `times`; "" if these are unknown
    times: Mapping[int, float] = field(default_factory=dict)  # size -> least seconds under the cost model
    evidence: EvidenceByHelp = field(default_factory=dict)  # the witnesses of `times`, as far as they are known
    witness: Witness | None = None  # the proof of `bytes_per_second`, for pictures

    @staticmethod
    def of(
        bound: Bound, topology: Topology, collective: Collective, latency: Quickest | None = None, model: str = "",
        times: Mapping[int, float] | None = None, evidence: EvidenceByHelp | None = None,
    ) -> Limit:  # fmt: skip
        """Return the limits from a bound.

        `latency`: the bound on latency, computed here if None. `model`, `times`: the least times under a cost model.
        `evidence`: their witnesses.
        """
        if latency is None:
            latency = find_slowest_need(topology, needs_of(collective), bound.latency_witness)
        reasons = (*bound.describe(topology, collective), *([latency.describe()] if latency else []))
        seconds = latency.seconds if latency else 0.0
        # `unaided` is None where no switch can multicast or reduce: then there is nothing to compare
        forwarding_rate = bound.without_switches if bound.unaided is not None else None
        return Limit(
            bound.latency_steps, latency=seconds, bytes_per_second=bound.bytes_per_second, because=reasons,
            without_switches=forwarding_rate, model=model if times else "", times=times or {},
            evidence=evidence or {}, witness=bound.witness,
        )  # fmt: skip

    def gap(self, nbytes: int, seconds: float) -> float | None:
        """Return a time divided by the least time under the same model; None if that is unknown or 0."""
        lower_bound = self.times.get(nbytes)
        return seconds / lower_bound if lower_bound else None

    def rates(self) -> dict[str, Any]:
        """Return steps and bandwidth as JSON: bytes per second as a number, and exactly, as a text such as "7/3"."""
        rate = self.bytes_per_second
        exact: dict[str, Any] = {"bytes_per_second": float(rate), "bytes_per_second_exact": str(rate)} if rate else {}
        without_rate = self.without_switches
        if without_rate is not None:
            exact |= {"without_switches": float(without_rate), "without_switches_exact": str(without_rate)}
        return {"latency_steps": self.steps, "bytes_per_second": None, "bytes_per_second_exact": None, **exact}

    def as_json(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            **self.rates(),
            "latency_seconds": self.latency,
            "because": list(self.because),
            "assumes": [],  # always: these bounds hold for any behaviour of switches. Keys are stable
            "model": self.model or None,
            "seconds": {str(size): self.times[size] for size in sizes if size in self.times},
        }


def least_times(
    collective: Collective, topology: Topology, bound: Bound, sizes: Sequence[int], model: str,
    profile: Profile | None = None,
) -> dict[int, float]:  # fmt: skip
    """Return the least seconds of any schedule by size under a model. Raises Unsupported if none are known."""
    _, options = model_of(model)
    model_name, _, _ = model.partition(":")
    lower_bound = model_bound(model_name, options, BoundEvaluator(topology, collective, bound), profile)
    if lower_bound is None:
        raise Unsupported(
            f"no lower bound is known under model {model} on {topology.name}; models with one: {', '.join(BOUNDS)}"
        )
    return {nbytes: lower_bound(nbytes) for nbytes in sizes}


def add_gaps(plan: Plan, rows: Sequence[dict[str, Any]], profile: Profile | None) -> list[dict[str, Any]]:
    """Return predictions of a plan with `gap`, the time over the lower bound by the model of the row (None: unknown),
    and `gap_model`.
    """
    sizes, model = [row["nbytes"] for row in rows], rows[0]["model"] if rows else ""
    times: Mapping[int, float] = {}
    if plan.topology.ranks <= MAX_RANKS_GAP and model.partition(":")[0] in BOUNDS:
        with suppress(Invalid, Unsupported):  # no bound of this collective is known
            proved = bound(plan.topology, plan.collective)
            times = least_times(plan.collective, plan.topology, proved, sizes, model, profile)
    gaps = [row["seconds"] / least if (least := times.get(row["nbytes"])) else None for row in rows]
    return [
        {**row, "gap": gap, "gap_model": None if gap is None else model} for row, gap in zip(rows, gaps, strict=True)
    ]


@dataclass(frozen=True)
class LinkLoss:
    """Lost bandwidth of a shared limit, or of all links between two nodes."""

    name: str
    src: int | None  # None: a shared limit
    dst: int | None
    both_ways: bool  # whether both directions lost the same
    before: Fraction  # bytes per second
    after: Fraction

    def describe(self) -> str:
        state = f"{format_bandwidth(self.after)} left of" if self.after else "gone, was"
        return f"{self.name}: {state} {format_bandwidth(self.before)}"

    def as_json(self) -> dict[str, Any]:
        sides = {"before": float(self.before), "after": float(self.after)}
        return {"name": self.name, "src": self.src, "dst": self.dst, "both_ways": self.both_ways, **sides}


@dataclass(frozen=True, eq=False)
class Loss:
    """The bounds of a collective on the intact and on the degraded machine; None: no bound is known."""

    collective: str
    whole: str  # name of the intact machine
    all: Limit | None  # on the intact machine, among all its ranks
    among: Limit | None  # on the intact machine, among the ranks that remain; the others may relay
    left: Limit | None  # on the degraded machine

    def as_json(self) -> dict[str, Any]:
        def side(limit: Limit | None) -> dict[str, Any] | None:
            return limit.rates() if limit is not None else None

        sides = {name: side(getattr(self, name)) for name in ("all", "among", "left")}
        return {"collective": self.collective, "whole": self.whole, **sides}


@dataclass(frozen=True)
class Damage:
    """The links that are missing or slower than on the intact machine."""

    whole: str  # name of the intact machine
    total: int  # number of lost links; two directions with equal loss count once
    links: tuple[LinkLoss, ...]  # the first of them

    def describe(self) -> str:
        """Return one line; "" where no link was lost."""
        if not self.total:
            return ""
        listed = "; ".join(link.describe() for link in self.links)
        unlisted = f"; and {self.total - len(self.links)} more" if self.total > len(self.links) else ""
        return f"links compared with {self.whole}: {listed}{unlisted}"

    def as_json(self) -> dict[str, Any]:
        return {"whole": self.whole, "total": self.total, "links": [link.as_json() for link in self.links]}


def compare_links(intact: Topology, degraded: Topology, members: frozenset[int]) -> Damage:
    """Compare the bandwidth between every two nodes, and of every shared limit by its name. O(links log links).

    Ranks of both machines correspond by number, switches by place. A rank that has no links in the degraded machine and
    is not among `members` was left out on purpose: its links are not reported. If there is such a rank, the links of
    switches that have none left are not reported either, as they may have served that rank alone.
    """
    relevant = _relevant_nodes(intact, degraded, members)
    # a pair of nodes is src * nodes + dst; bandwidths in bytes per second
    pair, before = _pair_bandwidth(intact, np.arange(intact.nodes), intact.nodes)
    remaining_pair, remaining = _pair_bandwidth(degraded, _intact_numbers(intact, degraded), intact.nodes)
    after = np.zeros(len(pair))
    # pairs without a link in the degraded machine stay at 0; -1, which is no pair, stands behind the last one
    position = np.searchsorted(remaining_pair, pair)
    linked = np.flatnonzero(np.append(remaining_pair, -1)[position] == pair)
    after[linked] = remaining[position[linked]]
    src, dst = pair // intact.nodes, pair % intact.nodes
    lost = np.flatnonzero((after < before * (1 - SAME_BANDWIDTH)) & relevant[src] & relevant[dst])
    change = {(int(src[i]), int(dst[i])): (float(before[i]), float(after[i])) for i in lost.tolist()}
    # Two directions with the same loss count once, as the one from the lower to the higher number.
    pairs = [
        (src_node, dst_node)
        for src_node, dst_node in change
        if not (src_node > dst_node and change.get((dst_node, src_node)) == change[src_node, dst_node])
    ]
    limits = _limit_losses(intact, degraded)
    shown = tuple(_link_loss(intact, ends, change) for ends in pairs[:MAX_SHOWN_LINKS])
    return Damage(intact.name, len(pairs) + len(limits), (*shown, *limits)[:MAX_SHOWN_LINKS])


def _relevant_nodes(intact: Topology, degraded: Topology, members: frozenset[int]) -> NDArray[np.bool_]:
    """Return a mask of the nodes of the intact machine whose lost links are reported."""
    had_links, has_links = np.zeros(intact.nodes, bool), np.zeros(intact.nodes, bool)
    had_links[intact.link_src], had_links[intact.link_dst] = True, True
    node = _intact_numbers(intact, degraded)
    ends = node[np.concatenate([degraded.link_src, degraded.link_dst])]
    has_links[ends[ends >= 0]] = True
    has_links[list(members)] = True
    # ranks were left out on purpose; else a switch without links is a failure, and all lost links are reported
    excludes_ranks = bool((had_links & ~has_links)[: intact.ranks].any())
    return has_links if excludes_ranks else np.ones(intact.nodes, bool)


def _intact_numbers(intact: Topology, degraded: Topology) -> Longs:
    """Return for every node of the degraded machine its number in the intact one; -1 if it has none."""
    number = {place: i for i, place in enumerate(intact.places) if i >= intact.ranks}
    switches = [number.get(place, -1) for place in degraded.places[degraded.ranks :]]
    return np.array([*range(degraded.ranks), *switches], np.int64)


def _pair_bandwidth(topology: Topology, node: Longs, nodes: int) -> tuple[Longs, NDArray[np.float64]]:
    """Return two columns: pairs of nodes that have links, as src * nodes + dst, ascending; and the total bandwidth of
    these links in bytes per second.

    `node`: the number of each node of `topology` in the intact machine, -1 if none.
    """
    src, dst = node[topology.link_src], node[topology.link_dst]
    numbered = np.flatnonzero((src >= 0) & (dst >= 0))
    pair, index = np.unique(src[numbered] * nodes + dst[numbered], return_inverse=True)
    bandwidth = np.array([float(t.bandwidth) for t in topology.types], np.float64)[topology.link_type[numbered]]
    return pair, np.bincount(index, weights=bandwidth, minlength=len(pair)).astype(np.float64, copy=False)


def _link_loss(
    intact: Topology, ends: tuple[int, int], change: Mapping[tuple[int, int], tuple[float, float]]
) -> LinkLoss:
    """Return the loss between two nodes. `change`: by (src, dst) the bandwidth before and after."""
    src, dst = ends
    both_ways = change.get((dst, src)) == change[ends]
    name = f"{intact.node_name(src)} {'and' if both_ways else 'to'} {intact.node_name(dst)}"
    before, after = change[ends]
    return LinkLoss(name, src, dst, both_ways, before=Fraction(before), after=Fraction(after))


def _limit_losses(intact: Topology, degraded: Topology) -> list[LinkLoss]:
    """Return the shared limits that have less bandwidth than on the intact machine, by their names."""
    after = {limit.name: limit.bandwidth for limit in degraded.limits}
    return [
        LinkLoss(
            f"limit {limit.name}", src=None, dst=None, both_ways=False, before=limit.bandwidth, after=after[limit.name]
        )
        for limit in intact.limits
        # a limit that is missing lost all its links, which are reported themselves
        if after.get(limit.name, limit.bandwidth) < limit.bandwidth
    ]


def compare_bounds(
    collectives: Mapping[str, Collective], limits: Mapping[str, Limit], intact: Topology
) -> tuple[Loss, ...]:  # fmt: skip
    """Return the bounds of each collective on the intact machine, beside those on the degraded machine (`limits`).

    If members contribute uneven counts, no counts are known of the other ranks: then `all` is `among`.
    """
    rows = []
    for kind, collective in collectives.items():
        if collective.custom is None:
            remaining_limit = _limit_or_none(intact, collective)
            is_uneven = bool(np.any(collective.weights != collective.weights[:1]))
            every_rank = _among_all(kind, collective.roots, intact)
            rows.append(
                Loss(
                    kind,
                    intact.name,
                    all=remaining_limit if is_uneven or every_rank is None else _limit_or_none(intact, every_rank),
                    among=remaining_limit,
                    left=limits.get(kind),
                )
            )
    return tuple(rows)


def _among_all(kind: str, roots: tuple[int, ...], intact: Topology) -> Collective | None:
    """Return the collective among all ranks of the intact machine that have links; None if a root has none.

    Ranks without links are those that an allocation (TOPO:only=RANKS) leaves out.
    """
    members = tuple(linked_ranks(intact))
    if len(members) < 2 or not {*roots} <= {*members}:
        return None
    return Collective(kind, intact.ranks, members=members, roots=roots)


def _limit_or_none(topology: Topology, collective: Collective) -> Limit | None:
    """Return the bounds of a collective; None if its ranks do not reach each other, or it is too large for a bound."""
    try:
        return Limit.of(bound(topology, collective), topology, collective)
    except (Invalid, Unsupported):
        return None
