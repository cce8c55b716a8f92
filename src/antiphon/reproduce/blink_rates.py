"""Rates of trees and rings on machines of direct links (Blink, 5.1), in theory and of verified plans.

The rate is the data per second in the limit of large messages, divided by the bandwidth of one link. Trees
reach the bound of the collective (`rate_bound`). Rings of an allreduce on N ranks reach N / (2 (N - 1)) per ring: each
rank sends 2 (N - 1) / N of the data. Where links form no ring, NCCL uses one over PCIe, which counts as half a link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from antiphon.core.bounds import Bound, Cut, Partition, bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.planners.rings.edge_disjoint import Capacity, CyclePacking, pack_cycles

Planner = Callable[..., Iterator[Schedule]]
PCIE = Fraction(1, 2)  # rate of a ring over PCIe, in links (5.1)


def collective_from_rank_0(kind: str, ranks: int) -> Collective:
    """Return the collective, with root 0 if it has a root; on symmetric links every root has the same rate."""
    return Collective(kind, ranks, members=(), roots=(0,) if kind in ROOTED else ())


class RateBound(NamedTuple):
    """An upper bound on the rate of any schedule, in links, with its proof."""

    rate: Fraction
    proof: Bound


def rate_bound(machine: Topology, kind: str) -> RateBound:
    """Return the bound on the rate for a collective from rank 0."""
    limit = bound(machine, collective_from_rank_0(kind, machine.ranks))
    # None: nothing must move, as on a single rank
    return RateBound((limit.bytes_per_second or Fraction(0)) / machine.unit, limit)


def explain_bound(limit: Bound, gpus: Sequence[int]) -> str:
    """Return the witness of a bound as text: the sets of GPUs between which the links are too few.

    `gpus`: by rank, the number of its GPU.
    """
    witness = limit.witness
    if isinstance(witness, Cut):
        inside = [rank for rank in witness.side if rank < len(gpus)]
        sides = [inside, sorted(set(range(len(gpus))) - set(inside))]
        return "cut " + " | ".join(_join_gpus(side, gpus) for side in sides)
    if isinstance(witness, Partition):
        return "parts " + " | ".join(_join_gpus(ranks, gpus) for ranks in witness.parts)
    return "prices of links"


def _join_gpus(ranks: Sequence[int], gpus: Sequence[int]) -> str:
    """Return the numbers of the GPUs of these nodes as text, without switches, whose numbers follow those of ranks."""
    return ",".join(str(gpus[rank]) for rank in ranks if rank < len(gpus))


def pack_rings(machine: Topology) -> CyclePacking:
    """Pack as many directed rings as possible, each with the bandwidth of one unit link.

    Their number is twice that of undirected rings.
    """
    # capacity of each pair of ranks in unit links
    capacity: Capacity = {}
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    for link, pair in enumerate(ends):
        capacity[pair] = capacity.get(pair, 0) + int(machine.bandwidth(link) / machine.unit)
    return pack_cycles(capacity, tuple(range(machine.ranks)))


def ring_rate(kind: str, count: int, ranks: int) -> Fraction:
    """Return the rate of `count` rings at one link each, or of one over PCIe if there are none.

    In an allreduce each of N ranks sends 2 (N-1)/N of the data. In a broadcast each rank but the last sends all of it
    once; the paper writes ceil((N-1)/N), which is 1 for any N (3.3).
    """
    speed = Fraction(count) or PCIE
    return speed * ranks / (2 * (ranks - 1)) if kind == "allreduce" else speed


def speedup(machine: Topology, kind: str) -> Fraction:
    """Return the speedup of packed trees over rings in theory."""
    return rate_bound(machine, kind).rate / ring_rate(kind, len(pack_rings(machine).cycles), machine.ranks)


def summarize(values: Sequence[Fraction]) -> dict[str, float]:
    """Return minimum, median, 95th percentile (interpolated linearly), maximum and geometric mean."""
    ordered = sorted(values)
    geometric_mean = math.exp(math.fsum(math.log(value) for value in ordered) / len(ordered))
    return {
        "min": float(ordered[0]),
        "median": float(_interpolate_percentile(ordered, Fraction(1, 2))),
        "p95": float(_interpolate_percentile(ordered, Fraction(95, 100))),
        "max": float(ordered[-1]),
        "mean": round(geometric_mean, 4),
    }


def _interpolate_percentile(ordered: Sequence[Fraction], share: Fraction) -> Fraction:
    """Return the value at this share of sorted values, interpolated linearly."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


# ---- plans ----


@dataclass(frozen=True)
class RatedPlan:
    """A verified schedule along trees, with its rate as computed from its loads."""

    schedule: Schedule
    rate: Fraction  # in links
    count: int  # number of trees
    # the planner's words on its number of trees, such as "4 trees, the fewest: proved"; they end in "proved" only if
    # fewer trees are impossible (`Fewest.describe`)
    summary: str

    @property
    def proved(self) -> bool:
        return self.summary.endswith("proved")

    @property
    def weights(self) -> str:
        """The rates of the trees as text, in links; each tree carries one chunk."""
        chunks = self.schedule.chunks
        return join_rates(self.rate * int(share) / chunks.denominator for share in chunks.share.tolist())


def join_rates(rates: Iterable[Fraction]) -> str:
    """Return rates as text, the greatest first."""
    return ", ".join(map(str, sorted(rates, reverse=True)))


def plan_and_rate(planner: Planner, machine: Topology, kind: str) -> RatedPlan:
    """Plan and verify a collective of this kind; compute its rate from the schedule, not from the planner's claim."""
    # a single piece: rates are those of the unpipelined schedule's loads
    schedule = next(iter(planner(Request(machine, collective_from_rank_0(kind, machine.ranks)), pieces=1)))
    verify(schedule, machine).or_raise()
    rate = throughput(schedule, machine) or Fraction(0)
    details = schedule.provenance["found"]
    # "few": the planner's words on the number of trees, if it minimized it; "how": how it packed them
    return RatedPlan(schedule, rate / machine.unit, int(details["trees"]), str(details.get("few") or details["how"]))
