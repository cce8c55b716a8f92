"""The planner `multi-ring`: many rings at once, as NCCL forms them (Blink, sections 2 and 5.1).

Input: any collective. Output: one schedule in which several rings (cycles through all members) carry equal shares of
the data at the same time (circles.py plans each), so that all links work.

Over direct links the rings are edge-disjoint cycles (most_rings.py, edge_disjoint.py). On the DGX-1V these are 3 cycles
in both directions, 6 rings: (C, S, R) = (6, 7, 7) for allgather, (48, 14, 14) for allreduce and (6m, 6+m, 6+m) for
broadcast in m pieces (SCCL, Table 3).

Over switches rings are logical: any order of ranks is possible, and rings go from host to host. Each ring leaves a host
at another rank, so that all network cards are in use. Every other host is passed in the opposite order, so that a ring
leaves one host and enters the next at ranks of the same number (on the same rail).

Example: 2 hosts of 4 ranks: rings 0123 7654, 1230 4765, 2301 5476, 3012 6547: each NIC pair is used once per direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32, concat_ranges, unique_inverse
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.rings.bound import least_time_per_byte
from antiphon.planners.rings.circles import (
    CHAIN_PIECES,
    CHAINS,
    count_transfers,
    plan_around,
    plan_both_ways,
    refuse_too_long,
)
from antiphon.planners.rings.edge_disjoint import capacities, pack_cycles
from antiphon.planners.rings.most_rings import most_rings
from antiphon.planners.shared.groups import ranks_by_host
from antiphon.planners.shared.routing import find_paths
from antiphon.planners.shared.rows import ChainPieces, finish_schedule

MOST_RINGS = 64  # the most rings by default
MAX_LOGICAL_RINGS = 32  # the most rings over switches
MAX_HOST_CYCLES = 8  # different cycles used inside a host
TIE = 1 + 1e-6  # factor: of costs that differ by less, the smaller number of rings wins
NEARLY_LEAST = 1 + 1e-5  # factor: a cost within it of the least time is proved to be the least
DEFAULT_TRANSFERS = 2**22  # transfers of a schedule that limit the default number of rings


@dataclass(frozen=True)
class Rings:
    """Cycles of ranks. `over`: "direct links", or "routes" through switches. `facts`: for the provenance."""

    cycles: list[list[int]]
    over: str
    facts: dict[str, Any] = field(default_factory=dict)


RingCount = Annotated[
    int | None,
    Option("number of rings (default: as many as are fastest together, 64 at most, fewer on many ranks)", minimum=1),
]


def multi_ring(request: Request, *, rings: RingCount = None, pieces: ChainPieces = None) -> Iterator[Schedule]:
    """Yield one schedule: every ring carries an equal share. O(P^2) transfers per ring; broadcast and reduce O(P)."""
    topology, collective = request.topology, request.collective
    is_alltoall = collective.kind == "alltoall"
    refuse_too_long("multi-ring", request, rings or 1)
    # an alltoall uses a cycle and its reverse, so by default at least two rings
    max_rings = rings or max(2 if is_alltoall else 1, min(MOST_RINGS, DEFAULT_TRANSFERS // count_transfers(collective)))
    rings_used = _choose_rings(
        topology, collective.members, max_rings, request.seed, exactly=rings is not None, in_pairs=is_alltoall
    )
    slices = pieces if pieces is not None else CHAIN_PIECES if collective.kind in CHAINS else 1
    options = {"rings": len(rings_used.cycles), "pieces": slices}
    findings: dict[str, Any] = {
        "over": rings_used.over,
        "rings": [",".join(map(str, cycle)) for cycle in rings_used.cycles],
    }
    yield finish_schedule(
        _share_rings(collective, rings_used.cycles), request, "multi-ring", options, slices, findings | rings_used.facts
    )


def _share_rings(collective: Collective, cycles: list[list[int]]) -> Schedule:
    """Return the schedule in which every cycle carries an equal share.

    In an alltoall a cycle and its reverse are planned together, so that each block takes the shorter direction.
    """
    rings_left = Counter(map(tuple, cycles))
    if collective.kind != "alltoall":
        by_cycle = {cycle: plan_around(collective, cycle) for cycle in rings_left}
        return merge([by_cycle[tuple(cycle)] for cycle in cycles])
    shares: list[tuple[Schedule, int]] = []  # a schedule, and the number of rings whose share of the data it carries
    for cycle in list(rings_left):
        mirrored = (cycle[0], *cycle[:0:-1])
        pair_count = min(rings_left[cycle], rings_left[mirrored]) if cycle != mirrored else rings_left[cycle] // 2
        if pair_count:
            shares.append((plan_both_ways(collective, cycle), 2 * pair_count))
            rings_left[cycle] -= pair_count
            rings_left[mirrored] -= pair_count
        if rings_left[cycle]:
            shares.append((plan_around(collective, cycle), rings_left[cycle]))
            rings_left[cycle] = 0
    return merge([schedule for schedule, _ in shares], [share for _, share in shares])


def _choose_rings(
    topology: Topology, members: tuple[int, ...], max_rings: int, seed: int, *, exactly: bool, in_pairs: bool
) -> Rings:
    """Return the rings that load the busiest link or shared limit least when they share the data; ties: the fewest.

    `exactly`: return `max_rings` rings, if there are that many. `in_pairs`: prefer rings that come in both directions,
    even if that finds one ring fewer.
    """
    rings_held = most_rings(capacities(topology, members), members, seed)
    cycles = pack_cycles(capacities(topology, members), members, seed).cycles if in_pairs else rings_held.cycles
    findings: dict[str, Any] = {"rings found": len(rings_held.cycles), "no more exist": rings_held.proved}
    if rings_held.cycles:
        findings["because"] = (
            rings_held.because if rings_held.proved else f"at most {rings_held.at_most}: {rings_held.because}"
        )
    # candidates: rings over direct links; over switches, logical rings; each with its `keep_order`
    candidates = [(Rings(cycles[:max_rings], "direct links", findings), True)]
    if topology.switches:
        candidates += [(Rings(cycles, "routes"), False) for cycles in _logical_rings(topology, members, seed)]
    best_cost, best_count, best_rings = inf, 0, Rings([], "")
    # edge-disjoint rings keep their order; rings over routes are chosen one by one so that they load links evenly.
    # costs[n - 1]: of the first n of them
    for rings, keep_order in candidates:
        loads = step_loads(topology, rings.cycles)
        chosen, costs = _best_order(loads, min(max_rings, MAX_LOGICAL_RINGS), keep_order)
        for count, cost in enumerate(costs, 1):
            if (not exactly or count == len(costs)) and (cost * TIE, count) < (best_cost, best_count):
                best_cost, best_count = cost, count
                best_rings = Rings([rings.cycles[i] for i in chosen[:count]], rings.over, rings.facts)
    if not best_rings.cycles:
        raise Unsupported(
            f"planner multi-ring: topology {topology.name} shows no cycle of direct links through all ranks that take "
            "part, and no switches join them; use planner relay, or a machine with switches"
        )
    return _proved_rings(topology, members, best_cost, best_rings)


def _proved_rings(topology: Topology, members: tuple[int, ...], cost: float, rings: Rings) -> Rings:
    """Return the rings; those over routes with a fact: whether the bound of bound.py proves that none are faster.

    `cost`: seconds per byte of a step, that of the busiest link or limit.
    """
    if rings.over != "routes":
        return rings
    min_time, because = least_time_per_byte(topology, members)
    proved = bool(min_time > 0 and cost <= min_time * NEARLY_LEAST)
    facts: dict[str, Any] = {"none are faster": proved}
    return Rings(rings.cycles, rings.over, facts | {"because": because} if proved else facts)


def step_loads(topology: Topology, cycles: list[list[int]]) -> NDArray[np.float64]:
    """Return [ring, link or limit]: the seconds per byte that a step of the ring takes there.

    If two consecutive ranks of some ring have no path, the array has no rows.

    >>> from antiphon.core.example import machine
    >>> step_loads(machine(), [[0, 1], [0, 2]])  # of links 0 to 3, each of 1 GB/s
    array([[1.e-09, 1.e-09, 0.e+00, 0.e+00],
           [0.e+00, 0.e+00, 1.e-09, 1.e-09]])
    """
    resources = topology.resources
    if not cycles:
        return np.zeros((0, 1))
    cycle_ranks = np.array(cycles, np.int32)
    src, dst = cycle_ranks.ravel(), np.roll(cycle_ranks, -1, axis=1).ravel()
    # the distinct pairs of ranks as numbers, and by hop (ring by ring) the index of its pair
    keys, pair_of_hop = unique_inverse(src.astype(np.int64) * topology.nodes + dst, topology.nodes**2)
    routing = find_paths(topology, as_int32(keys // topology.nodes), as_int32(keys % topology.nodes))
    if len(routing.unreachable):
        return np.zeros((0, 1))
    # every hop of every ring as its links, and these links' shared limits as well
    link_counts = np.diff(routing.table.ptr)[pair_of_hop]
    link = routing.table.links[concat_ranges(routing.table.ptr[pair_of_hop], link_counts)]
    ring = np.repeat(np.arange(cycle_ranks.size) // cycle_ranks.shape[1], link_counts)
    index, loaded = resources.with_limits(link.astype(np.int64))
    # bytes/s: resources keep one capacity per class of equal ones, in units of `scale`
    capacity = np.array(resources.capacity, float)[resources.class_of] * float(resources.scale)
    loads = np.zeros((len(cycles), len(capacity)))
    np.add.at(loads, (ring[index], loaded), 1.0)
    loads /= capacity
    return loads


def _best_order(loads: NDArray[np.float64], max_rings: int, keep_order: bool) -> tuple[list[int], list[float]]:
    """Return the order in which to use rings, and for 1, 2, ... of them the time per byte if they share the data.

    The next ring is always the one with which loads are most even; a ring may be chosen again. `keep_order`: use the
    order of `loads` instead. The time is that of the busiest link or limit.
    """
    total = np.zeros(loads.shape[1])
    chosen: list[int] = []
    costs: list[float] = []
    for position in range(len(loads) if keep_order else min(max_rings, len(loads))):
        if keep_order:
            pick = position
        else:
            # the sum of a high power of the relative loads compares their maxima and, at ties, the next loads; rounded,
            # as the last digits differ between machines
            new_totals = total + loads
            pick = int(np.argmin(((new_totals / new_totals.max()) ** 8).sum(axis=1).round(9)))
        total = total + loads[pick]
        chosen.append(pick)
        costs.append(float(total.max()) / len(chosen))
    return chosen, costs


def _logical_rings(topology: Topology, members: tuple[int, ...], seed: int) -> list[list[list[int]]]:
    """Return two choices of rings over switches: one ring, host by host; or rings that enter hosts at different ranks
    (only for several hosts with equally many ranks).

    Rings of the second choice pass a host along the rings of its direct links, if there are any, else in the order of
    ranks; one ring begins at each rank. They pass every other host in the opposite order: see the top of this file.
    """
    groups = ranks_by_host(topology, members)
    single_ring = [[rank for group in groups for rank in group]]
    size = len(groups[0])
    if len(groups) < 2 or size < 2 or any(len(group) != size for group in groups):
        return [single_ring]
    number = {rank: i for i, rank in enumerate(groups[0])}
    inner_rings = most_rings(capacities(topology, tuple(groups[0])), tuple(groups[0]), seed).cycles or [groups[0]]
    inner_orders = [[number[rank] for rank in cycle] for cycle in dict.fromkeys(map(tuple, inner_rings))][
        :MAX_HOST_CYCLES
    ]
    # each order of a host's ranks, begun at each of them
    orders = [[*order[at:], *order[:at]] for order in inner_orders for at in range(size)]
    rings = [
        [group[i] for host, group in enumerate(groups) for i in (order if host % 2 == 0 else order[::-1])]
        for order in orders
    ]
    return [single_ring, rings]
