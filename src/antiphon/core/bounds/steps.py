"""How fast data can move in a given number of steps: cuts over time, each checkable on its own.

A schedule of N steps moves all its bytes in wire times t_1 ... t_N (steps are barriers: step s lasts its latency and
then t_s, the time of its most loaded link). This file proves lower bounds on t_1 + ... + t_N from *evidence* that
`by_size.py`, `step_search.py` and `routed_search.py` find; it checks the evidence by sums alone.

A *cut over time* assigns to every rank the step in which it becomes near, `near_from`: 0 for ranks that are near from
the start, N + 1 for ranks that stay far. In step s, data can get from the ranks with near_from < s to those with
near_from > s only over links between the two sets, which carry C_s bytes per second in all. A rank with near_from == s
may receive anything in that step and has nothing to send yet. So every block that only ranks of near_from 0 hold, and
that a rank of near_from N + 1 needs, must cross:

    sum over s of C_s * t_s  >=  weight of these blocks

This is the cut condition of Ford and Fulkerson in the network that has one copy of every node for each step. Sums of
such conditions with positive multipliers are conditions, too, and bound sum(t) from below.

Example: a line of three ranks 0, 1, 2 with links of 1 byte per second, a broadcast of 1 byte and N = 3 steps. Rank 1
may become near in step 1, 2 or 3, and in that step nothing counts. The three conditions t_2 + t_3 >= 1, t_1 + t_3 >= 1
and t_1 + t_2 >= 1 together say sum(t) >= 3/2, which cutting the data into two pieces attains.

Evidence that states its cuts one by one, for one N:

- `StepCuts`: cuts over time with multipliers, found by linear programming on small machines.
- `RoutedCuts`: the same where switches only forward, with prices of links.
- `OneStep`, for N = 1: in a single step nothing is relayed, copied or combined on the way. So each datum that a rank of
  one set needs of a rank of another crosses by itself, through switches alone: 7 copies leave the root of a broadcast
  to 8 ranks.

Evidence for every N. Let `base_time` be the weight that must cross divided by the capacity of the widest cut, and let
every choice of steps give one condition. Their average says

    sum(t) >= base_time * N / (N - loss),   where `loss` is the number of steps in which nothing crosses.

- `Chain`: cuts between consecutive levels of ranks. Each of the `stages` levels between the first cut and the last
  becomes near in a step of its own, and nothing crosses in it: `loss` is `stages`, or less if links jump over a level.
  (A line of d + 1 links that carries N - d pieces attains it.) With `windows`, the levels become near in consecutive
  steps, so only the first and last cut count. The N steps consist of c = N / stages windows, rounded up; each is lost
  in turn: sum(t) >= base_time * c / (c - 1).
- `Fan`: one rank has data that each of K others needs (or needs data of each). All ranks between become near in one
  step. In this step only what the one rank sends straight to the other crosses, on average over the others 1 / K of
  what it can send: loss = 1 - 1 / K.
- `Exchange`: each of P ranks needs what every other has, which are P (P - 1) pairs. In the step in which the ranks
  between become near, a multicast or reduction serves k <= P - 1 pairs and takes k + 1 sends and receives. P ranks have
  2 P of them at a time, so they serve at most 2 P (P - 1) / P = 2 (P - 1) pairs: loss = 1 - 2 / P.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.counting import capacity_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.witness import Record
from antiphon.core.columns import Bools, Floats, Longs
from antiphon.core.symmetry import link_map, orbit_labels
from antiphon.core.topology import Topology
from antiphon.errors import Invalid

NO_ROUTE = 2**50  # price of a route that does not exist; more than any sum of prices
MAX_INTEGER = 2**32  # prices and multipliers are below it: their sums fit 64 bits
MAX_STEPS = 2**14  # of cuts over time
Switches = tuple[int, ...]  # switches on the near side of a cut


@dataclass(frozen=True)
class StepCut(Record):
    """One cut over time, see the module.

    `near_from`: per rank the step from which on it counts as near. `switches`: per step the switches that count as
    near. `multiplier`: how often its condition is counted in the sum.
    """

    near_from: tuple[int, ...]
    switches: tuple[Switches, ...]
    multiplier: int


@dataclass(frozen=True)
class StepCuts(Record):
    """Cuts over time for schedules of `steps` steps."""

    steps: int
    cuts: tuple[StepCut, ...]

    kind = "step_cuts"


@dataclass(frozen=True)
class RoutedCuts(Record):
    """Cuts over time for schedules of `steps` steps, on a machine whose switches only forward.

    A cut counts what crosses from rank to rank, so a link is counted once for every copy that it carries. `prices`: per
    step a price of every link, then of every shared limit. `symmetries`: permutations of the nodes. The conditions hold
    for the average of a schedule and its images, so what crosses may be averaged over all pairs of ranks of an orbit.
    """

    steps: int
    cuts: tuple[StepCut, ...]
    prices: tuple[tuple[int, ...], ...]
    symmetries: tuple[tuple[int, ...], ...]

    kind = "routed_cuts"


@dataclass(frozen=True)
class Chain(Record):
    """Levels of ranks and the cuts between them; cut i lies between levels first + i and first + i + 1.

    `levels`: per rank its level. `switches`: per cut the switches on its near side. `jumps`: per level first + 1 + i
    the switches that count as lower, to know the links that jump over it from lower to higher levels. `windows`: the
    levels become near in consecutive steps, so only the first and the last cut count.
    """

    levels: tuple[int, ...]
    first: int
    switches: tuple[Switches, ...]
    jumps: tuple[Switches, ...]
    windows: bool = False

    kind = "chain"


@dataclass(frozen=True)
class Fan(Record):
    """Each of `far_ends` needs data that only `center` holds, or `center` needs data of each of them (`inward`)."""

    center: int
    far_ends: tuple[int, ...]
    inward: bool

    kind = "fan"


@dataclass(frozen=True)
class Exchange(Record):
    """Every one of `ranks` must receive the same block's contribution from every other one."""

    ranks: tuple[int, ...]

    kind = "exchange"


@dataclass(frozen=True)
class OneStep(Record):
    """All data that ranks of `far` need of ranks of `near` cross in one step. `switches`: on the near side."""

    near: tuple[int, ...]
    far: tuple[int, ...]
    switches: Switches

    kind = "one_step"


Evidence = StepCuts | RoutedCuts | Chain | Fan | Exchange | OneStep
KINDS: dict[str, type[Evidence]] = {cls.kind: cls for cls in (StepCuts, RoutedCuts, Chain, Fan, Exchange, OneStep)}


@dataclass(frozen=True)
class StepTimes:
    """Least seconds per unit of weight as a function of the number of steps N, as one evidence proves it.

    If `steps` is not 0: `base_time` for N <= `steps` (fewer steps are `steps` with some empty ones), and nothing for
    more steps. Else with `windows`: `base_time` * c / (c - 1), c = N / `stages` rounded up. Else
    `base_time` * N / (N - `loss`), where fewer than `stages` steps count as `stages`.
    """

    base_time: Fraction
    stages: int = 0
    loss: Fraction = Fraction(0)
    windows: bool = False
    steps: int = 0

    def per_weight(self, steps: Floats) -> Floats:
        """Return the least seconds per unit of weight for these numbers of steps; infinite for too few to get there."""
        base_time = float(self.base_time)
        if not base_time:
            return np.zeros(len(steps))
        if self.steps:
            return np.where(steps <= self.steps, base_time, 0.0)
        if self.windows:
            # no link jumps over a level, so data need more than `stages` steps; at least 2: no division by 0
            window_count = np.maximum(np.ceil(steps / self.stages), 2)
            return np.where(steps > self.stages, base_time * window_count / (window_count - 1), np.inf)
        # a step per stage is needed to choose; fewer steps take no less time than `stages` of them
        usable = np.maximum(steps, self.stages)
        with np.errstate(divide="ignore"):  # every step is lost: infinite
            return np.asarray(base_time * usable / np.maximum(usable - float(self.loss), 0.0))


def proved_times(topology: Topology, needs: Needs, evidence: Evidence, switches_help: bool) -> StepTimes:
    """Return what a piece of evidence proves, from sums alone; raise Invalid if it proves nothing.

    `switches_help`: whether some switch multicasts or reduces for this collective, which invalidates `RoutedCuts`, a
    `Fan` and a `OneStep`. For an `Exchange` the caller (by_size.py) makes sure that no switch reduces and multicasts
    what it reduced.
    """
    if isinstance(evidence, StepCuts):
        return _prove_cuts(topology, needs, evidence)
    if isinstance(evidence, Chain):
        return _prove_chain(topology, needs, evidence)
    if isinstance(evidence, Exchange):
        return _prove_exchange(topology, needs, evidence)
    _require(not switches_help, "a switch may serve several ranks at once")
    if isinstance(evidence, RoutedCuts):
        return _prove_routed_cuts(topology, needs, evidence)
    if isinstance(evidence, Fan):
        return _prove_fan(topology, needs, evidence)
    return _prove_one_step(topology, needs, evidence)


def _require(condition: bool, failure: str) -> None:
    """Raise Invalid, with `failure` as the reason, unless the condition holds."""
    if not condition:
        raise Invalid(f"this bound's evidence does not hold: {failure}; compute the bound anew")


def crossing_weight(needs: Needs, near: Bools, far: Bools) -> int:
    """Return the weight of the blocks that only ranks of `near` hold and some rank of `far` needs."""
    is_set_near = np.array([all(near[rank] for rank in ranks) for ranks in needs.sets], bool)
    if not len(needs):
        return 0
    blocks = np.unique(needs.block[is_set_near[needs.holders] & far[needs.dst]])
    return int(needs.weights[blocks].sum())


def step_capacity(topology: Topology, near: Bools, far: Bools, switches: Sequence[int]) -> Fraction:
    """Return bytes per second from the ranks of `near` to those of `far` within a step.

    `switches` count as near, all others as far. Routes pass only through switches, so links at other ranks do not
    count.
    """
    _require(all(topology.ranks <= s < topology.nodes for s in switches), "it names a switch that is not there")
    is_far_switch = np.ones(topology.switches, bool)
    is_far_switch[np.array(switches, np.int64) - topology.ranks] = False
    near_nodes, far_nodes = np.concatenate([near, ~is_far_switch]), np.concatenate([far, is_far_switch])
    return capacity_of(topology, near_nodes[topology.link_src] & far_nodes[topology.link_dst])


def _prove_cuts(topology: Topology, needs: Needs, evidence: StepCuts) -> StepTimes:
    """Sum the conditions: the total weight over the greatest total capacity of any step bounds sum(t)."""
    steps = evidence.steps
    _require(0 < steps <= MAX_STEPS and len(evidence.cuts) > 0, "it has no cuts, or too many steps")
    weight, load = 0, [Fraction(0)] * steps
    for cut in evidence.cuts:
        near_from = np.array(cut.near_from, np.int64)
        _require(len(near_from) == topology.ranks and len(cut.switches) == steps, "a cut has another shape")
        _require(cut.multiplier >= 0, "a multiplier is negative")
        weight += cut.multiplier * crossing_weight(needs, near_from <= 0, near_from > steps)
        for s in range(1, steps + 1):
            load[s - 1] += cut.multiplier * step_capacity(topology, near_from < s, near_from > s, cut.switches[s - 1])
    _require(max(load, default=Fraction(0)) > 0, "its cuts have no capacity")
    return StepTimes(weight / max(load), steps=steps)


def _prove_routed_cuts(topology: Topology, needs: Needs, evidence: RoutedCuts) -> StepTimes:
    """Sum the conditions; a step's prices must pay for everything that crosses in it.

    Let m(k) be the multiplier of cut k and w(k) the weight that must cross it. Let p(a, b, s) be the weight that goes
    from rank a to rank b in step s, averaged over all images of the schedule under the symmetries.

    1. For cut k and all its images, the sum of p over the pairs (a, b) that it separates in step s, and over all s, is
       at least w(k).
    2. p is equal for all pairs of an orbit. Let x(a, b, s) be the sum of m(k) over the cuts that separate a pair in
       step s, averaged over the orbit of (a, b). Then sum over k of m(k) w(k) <= sum over a, b, s of x p.
    3. Let route(a, b, s) be the least price of a route, and ratio(s) the greatest x(a, b, s) / route(a, b, s).
       Then x p <= ratio(s) route(a, b, s) p, and what goes from rank to rank pays for every link that it loads:
       sum over a, b of x p <= ratio(s) times sum over resources e of price(e, s) load(e, s).
    4. load(e, s) <= capacity(e) t_s. With cost(s) = ratio(s) times sum over e of price(e, s) capacity(e):
       sum over k of m(k) w(k) <= sum over s of cost(s) t_s,   so   sum(t) >= sum of m(k) w(k) / greatest cost(s).
    """
    ranks, steps = topology.ranks, evidence.steps
    _require(len(evidence.prices) == steps, "it has not one set of prices per step")
    generators = [np.array(image, np.int64) for image in evidence.symmetries]
    if not all(is_symmetry(topology, needs, image) for image in generators):
        return StepTimes(Fraction(0))  # with other bandwidths than in the search, the machine may lack these symmetries
    pair_orbit = orbit_labels(pair_images(generators, ranks), ranks * ranks)
    crossing = np.zeros((steps, ranks * ranks), np.int64)  # by step and orbit: the sum of m(k) over separated pairs
    weight = 0
    for cut in evidence.cuts:
        near_from = np.array(cut.near_from, np.int64)
        _require(len(near_from) == ranks, "a cut has another shape")
        _require(0 <= cut.multiplier < MAX_INTEGER, "a multiplier is negative or too large")
        weight += cut.multiplier * crossing_weight(needs, near_from <= 0, near_from > steps)
        for s in range(1, steps + 1):
            separated = np.flatnonzero(np.logical_and.outer(near_from < s, near_from > s))
            crossing[s - 1] += cut.multiplier * np.bincount(pair_orbit[separated], minlength=ranks * ranks)
    step_costs = [
        _cost_of_step(topology, pair_orbit, by_orbit, prices)
        for by_orbit, prices in zip(crossing, evidence.prices, strict=True)
    ]
    _require(max(step_costs, default=0) > 0, "its cuts have no capacity")
    return StepTimes(weight / max(step_costs), steps=steps)


def _cost_of_step(topology: Topology, pair_orbit: Longs, crossing: Longs, prices: Sequence[int]) -> Fraction:
    """Return cost(s) of `_prove_routed_cuts`. `crossing`: per orbit of pairs the sum of x over its pairs."""
    _require(len(prices) == topology.links + len(topology.limits), "a price is missing")
    _require(min(prices) >= 0 and max(prices) < MAX_INTEGER, "a price is negative or too large")
    orbit_size = np.bincount(pair_orbit)
    route = route_prices(topology, np.array(prices, np.int64)).ravel()  # by pair, numbered as in `pair_images`
    ratio = Fraction(0)
    for pair in np.flatnonzero((crossing[pair_orbit] > 0) & (route < NO_ROUTE)).tolist():
        _require(route[pair] > 0, "something crosses without a price")
        orbit = pair_orbit[pair]
        ratio = max(ratio, Fraction(int(crossing[orbit]), int(orbit_size[orbit] * route[pair])))
    resources = topology.resources
    scaled_sum = sum(price * resources.scaled_capacity(e) for e, price in enumerate(prices))
    return ratio * scaled_sum * resources.scale  # capacities are whole numbers of `scale` bytes per second


def pair_images(symmetries: Sequence[Longs], ranks: int) -> list[Longs]:
    """Return symmetries as permutations of the pairs of ranks, numbered a * ranks + b."""
    return [np.add.outer(image[:ranks] * ranks, image[:ranks]).ravel() for image in symmetries]


def is_symmetry(topology: Topology, needs: Needs, image: Longs) -> bool:
    """Return whether a permutation of the nodes leaves the machine, and what ranks need of each other, unchanged."""
    try:
        link_map(topology, image)
    except Invalid:
        return False

    def count_blocks(to: Longs) -> Counter[Any]:
        """Count blocks by weight and by their needs (holders, destination), with node v renumbered to[v]."""
        rows: dict[int, list[Any]] = {}
        for block, holders, dst in zip(needs.block.tolist(), needs.holders.tolist(), needs.dst.tolist(), strict=True):
            rows.setdefault(block, []).append((sorted(to[list(needs.sets[holders])].tolist()), int(to[dst])))
        return Counter((int(needs.weights[block]), repr(sorted(row))) for block, row in rows.items())

    return count_blocks(image) == count_blocks(np.arange(topology.nodes))


def route_prices(topology: Topology, prices: NDArray[Any]) -> NDArray[Any]:
    """Return the price of the cheapest route from every rank to every other, through switches alone.

    `prices`: of every link, then of every shared limit. `NO_ROUTE` where there is none, and from a rank to itself.
    """
    cost = prices[: topology.links].copy()
    for number, limit in enumerate(topology.limits):
        np.add.at(cost, np.array(limit.links), prices[topology.links + number])
    tail, head = topology.link_src, topology.link_dst
    total = np.full((topology.nodes, topology.ranks), NO_ROUTE, cost.dtype)  # by node reached and sending rank
    from_rank, from_switch = np.flatnonzero(tail < topology.ranks), np.flatnonzero(tail >= topology.ranks)
    np.minimum.at(total, (head[from_rank], tail[from_rank]), cost[from_rank])
    for _ in range(topology.switches):
        before = total.copy()
        np.minimum.at(total, head[from_switch], total[tail[from_switch]] + cost[from_switch, None])
        if np.array_equal(before, total):
            break
    routes = np.minimum(total[: topology.ranks].T, NO_ROUTE)
    np.fill_diagonal(routes, NO_ROUTE)
    return routes


def _prove_chain(topology: Topology, needs: Needs, evidence: Chain) -> StepTimes:
    """Check the cuts between levels.

    With J the greatest capacity of the links that jump over a level, J / `max_capacity` of its step is not lost.
    """
    levels, first, switches = np.array(evidence.levels, np.int64), evidence.first, evidence.switches
    _require(len(levels) == topology.ranks and len(switches) >= 1, "its levels are not one per rank")
    stages = len(switches) - 1
    last = first + stages  # the level below the last cut
    _require(len(evidence.jumps) == stages, "it has not one set of jumps per level")
    cut_capacities = [
        step_capacity(topology, levels <= level, levels > level, near_switches)
        for level, near_switches in enumerate(switches, first)
    ]
    jump_capacities = [
        step_capacity(topology, levels < level, levels > level, lower_switches)
        for level, lower_switches in enumerate(evidence.jumps, first + 1)
    ]
    if evidence.windows:
        _require(stages > 0 and not any(jump_capacities), "a link jumps over a level")
        cut_capacities = [cut_capacities[0], cut_capacities[-1]]
    max_capacity = max(cut_capacities)
    _require(max_capacity > 0, "nothing can cross")
    weight = crossing_weight(needs, levels <= first, levels > last)
    # the share of a stage's step that is lost
    lost_share = max(Fraction(0), 1 - max(jump_capacities, default=Fraction(0)) / max_capacity)
    base_time = Fraction(weight) / max_capacity
    return StepTimes(base_time, stages=stages, loss=stages * lost_share, windows=evidence.windows)


def _prove_fan(topology: Topology, needs: Needs, evidence: Fan) -> StepTimes:
    """Check that the center serves (or is served by) each far end.

    The wider of the center's links and those of any far end sets `base_time`. Of this width, the center's links carry a
    share to one far end, on average over all K: center_capacity / (K * max_capacity) of a step is not lost.
    """
    center, far_ends = evidence.center, evidence.far_ends
    _require(len(far_ends) > 0 and len(set(far_ends) - {center}) == len(far_ends), "its ranks are not distinct")
    _require(all(0 <= rank < topology.ranks for rank in (center, *far_ends)), "it names a rank that is not there")
    center_end, far_end = topology.link_src, topology.link_dst
    sole_holder = _sole_holders(needs)
    near_rank, far_rank = sole_holder, needs.dst  # per need its rank at the center, and its rank at a far end
    if evidence.inward:  # the center receives: links and needs with their ends exchanged
        center_end, far_end, near_rank, far_rank = far_end, center_end, far_rank, near_rank
    center_capacity = capacity_of(topology, center_end == center)
    max_capacity = max(center_capacity, _widest(topology, far_end, far_ends))
    _require(center_capacity > 0, "nothing can cross")
    ranks, blocks = np.unique(np.stack([far_rank, needs.block])[:, near_rank == center], axis=1)
    weights = np.zeros(topology.ranks + 1, np.int64)  # per far rank; index -1 collects data that several ranks hold
    np.add.at(weights, ranks, needs.weights[blocks])
    least_weight = int(weights[list(far_ends)].min())
    loss = 1 - center_capacity / (len(far_ends) * max_capacity)
    return StepTimes(Fraction(least_weight) / max_capacity, stages=1, loss=loss)


def _prove_exchange(topology: Topology, needs: Needs, evidence: Exchange) -> StepTimes:
    """Check that all ranks need each other's contribution to one block."""
    ranks = evidence.ranks
    _require(len(ranks) > 1 and len(set(ranks)) == len(ranks), "its ranks are not distinct")
    _require(all(0 <= rank < topology.ranks for rank in ranks), "it names a rank that is not there")
    max_capacity = max(_widest(topology, end, ranks) for end in (topology.link_src, topology.link_dst))
    _require(max_capacity > 0, "nothing can cross")
    sole_holder = _sole_holders(needs)
    is_pair = np.isin(sole_holder, ranks) & np.isin(needs.dst, ranks) & (sole_holder != needs.dst)
    holder_of_pair, _ = np.unique(np.stack([sole_holder, needs.dst])[:, is_pair], axis=1)
    blocks = np.unique(needs.block)
    all_pairs = len(ranks) * (len(ranks) - 1)
    _require(len(blocks) == 1 and len(holder_of_pair) == all_pairs, "its ranks do not all need each other")
    weight = int(needs.weights[blocks[0]])
    return StepTimes(Fraction(weight) / max_capacity, stages=1, loss=1 - Fraction(2, len(ranks)))


def _prove_one_step(topology: Topology, needs: Needs, evidence: OneStep) -> StepTimes:
    """Count every (block, holder, destination) from the near set to the far set by itself."""
    near, far = (np.isin(np.arange(topology.ranks), ranks) for ranks in (evidence.near, evidence.far))
    _require(not (near & far).any(), "a rank is on both sides")
    capacity = step_capacity(topology, near, far, evidence.switches)
    _require(capacity > 0, "nothing can cross")
    sole_holder = _sole_holders(needs)
    is_crossing = (sole_holder >= 0) & near[sole_holder] & far[needs.dst]
    blocks, _, _ = np.unique(np.stack([needs.block, sole_holder, needs.dst])[:, is_crossing], axis=1)
    return StepTimes(int(needs.weights[blocks].sum()) / capacity, steps=1)


def _sole_holders(needs: Needs) -> NDArray[np.int64]:
    """Return the rank that alone holds what is needed, for every need; -1 where several do."""
    return np.array([holders[0] if len(holders) == 1 else -1 for holders in needs.sets], np.int64)[needs.holders]


def _widest(topology: Topology, ends: NDArray[Any], ranks: Sequence[int]) -> Fraction:
    """Return the greatest capacity out of (or into) one of these ranks. `ends`: per link its tail (or its head)."""
    if topology.limits:
        return max(capacity_of(topology, ends == rank) for rank in ranks)
    capacity = link_capacities(topology)
    total = np.zeros(topology.nodes, capacity.dtype)
    np.add.at(total, ends, capacity)
    return int(total[list(ranks)].max()) * topology.resources.scale  # in bytes per second
