"""Search for cuts over time by linear programming over the wire times of the steps, adding violated cuts.

`StepSearch.find_cuts` is called by the search for evidence of a bound by size (by_size.py). Input: a machine, data that
every member needs, and a number of steps N. The wire time t_s of step s is the time of its most loaded link. Output:
`StepCuts`, evidence (steps.py) for a lower bound on the total wire time of any schedule of N steps. The program:

    minimise t_1 + ... + t_N   such that all data can reach every rank that needs them

The data can reach a rank if a maximum flow carries them in the network with one copy of every node for each time 0 ..
N (max-flow min-cut theorem). In it an arc of step s leads from time s - 1 to time s, with capacity bandwidth * t_s;
data may stay at a rank freely. If the flow for the current times is too small, its minimum cut is a violated condition,
linear in t, and joins the program. The dual values of the conditions in the last program are the multipliers of the
evidence. They are rounded to whole numbers; the evidence remains valid, and `steps.proved_times` evaluates it exactly.

Data that are collected (reduce, reducescatter) are spread on the machine with all links reversed, and the cuts are then
reversed in time.

Example: a broadcast of 1 byte on a line 0 - 1 - 2 with unit links, N = 2. At t = (1/2, 1/2) only half a byte can reach
rank 2. The minimum cut says t_2 >= 1 (rank 1 has nothing to send in step 1), a second one t_1 >= 1: sum(t) >= 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.maxflow import MaxFlows
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.steps import RoutedCuts, StepCut, StepCuts, Switches, is_symmetry, pair_images
from antiphon.core.columns import AnyInts, Bools, Floats, Longs
from antiphon.core.reshape import reverse
from antiphon.core.symmetry import automorphisms, orbit_labels
from antiphon.core.topology import Topology


@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search for cuts over time. A search that ends early has valid, weaker evidence."""

    max_demands: int = 64  # pairs of ranks between which cuts are sought, the farthest first
    max_rounds: int = 40  # of the cutting-plane loop
    min_gain: float = 1 + 1e-4  # the solution grows by at least this factor ...
    max_stalled: int = 8  # ... within this many rounds, or the search ends
    max_idle: int = 8  # a condition that has not bound for this many rounds leaves the program
    converged: float = 1 - 1e-4  # the search ends when its solution is this near to wire times that meet all conditions
    outward: float = 0.9  # conditions are sought this far from such wire times towards the solution


LIMITS = SearchLimits()
SAME_FLOW = 1 - 1e-7  # a flow of at least this fraction of the demand serves it
TINY = 2**-20  # a fraction of all data; wire times that move only this much serve no demand
MULTIPLIER_SCALE = 2**16  # the greatest multiplier after rounding to whole numbers


# Collectives whose data spread from their holders, and whose data are collected; an allreduce is seen as an exchange of
# data between all pairs of members. Cuts over time are not sought for alltoall and relations.
SPREADS = ("broadcast", "allgather", "allreduce", "scatter")
COLLECTS = ("reduce", "reducescatter", "gather")


def steps_from(topology: Topology, rank: int | list[int], *, backwards: bool = False) -> Longs:
    """Return the least number of steps from a rank, or the nearest of several, to every rank (or from every rank to
    it); entering a rank costs one.

    Unreachable ranks get `topology.nodes`.
    """
    tail, head = topology.link_src, topology.link_dst
    if backwards:
        tail, head = head, tail
    cost = (head < topology.ranks).astype(np.int64)
    steps = np.full(topology.nodes, topology.nodes, np.int64)
    steps[rank] = 0
    while True:
        relaxed = steps.copy()
        np.minimum.at(relaxed, head, steps[tail] + cost)
        if np.array_equal(relaxed, steps):
            return steps[: topology.ranks]
        steps = relaxed


def find_switch_cut(topology: Topology, near: Bools, far: Bools) -> tuple[int, Switches]:
    """Return the capacity of a minimum cut from the ranks of `near` to those of `far` through switches alone, and the
    switches on its near side. Ranks in neither set are left out. Capacity in units of `resources.scale` bytes/s."""
    if not topology.switches:
        return int(link_capacities(topology)[near[topology.link_src] & far[topology.link_dst]].sum()), ()
    source, sink = topology.nodes, topology.nodes + 1
    node = np.arange(topology.nodes)
    # By node, its number in the flow network as the tail and as the head of a link. Ranks of `near` become the source,
    # ranks of `far` the sink; -1: such links are left out.
    tails, heads = node.copy(), node.copy()
    tails[: topology.ranks] = np.where(near, source, -1)
    heads[: topology.ranks] = np.where(far, sink, -1)
    tail, head = tails[topology.link_src], heads[topology.link_dst]
    usable = (tail >= 0) & (head >= 0)
    flows = MaxFlows(sink + 1, tail[usable].tolist(), head[usable].tolist())
    value, side = flows.cut(link_capacities(topology)[usable].tolist(), source, sink)
    return value, tuple(switch for switch in range(topology.ranks, topology.nodes) if side[switch])


@dataclass(frozen=True, eq=False)
class DataDelivery:
    """Data that ranks hold and members need.

    `supply`: per rank the weight of the data that it holds. `members`: ranks that need all data. `collects`: the data
    are collected rather than spread, so the search runs on the machine with all links reversed. `shares`: for scatter
    and gather, where one rank has all data, the weight that each rank needs; None: every member needs all. `exchanged`:
    every member has data as large as those of `supply`, and needs those of all others (allreduce). `symmetries`:
    generators of symmetries of the machine that keep all of this.
    """

    machine: Topology
    supply: Longs
    members: tuple[int, ...]
    collects: bool
    shares: Longs | None = None
    exchanged: bool = False
    symmetries: tuple[Longs, ...] = ()

    @cached_property
    def topology(self) -> Topology:
        return reverse(self.machine) if self.collects else self.machine

    @property
    def total(self) -> float:
        """Return the weight of all data of `supply`: what each member needs, unless there are `shares`."""
        return float(self.supply.sum())

    @property
    def sinks(self) -> list[int]:
        """Members that do not hold all data from the start."""
        return [rank for rank in self.members if self.supply.sum() > self.supply[rank]]

    @cached_property
    def demands(self) -> list[tuple[Longs, int]]:
        """Return pairs (supply by rank, rank that needs all of it), one pair for each orbit of the symmetries; rank -1:
        each rank needs its share.
        """
        if self.shares is not None:
            return [(self.supply, -1)]
        ranks = self.topology.ranks
        if not self.exchanged:
            representative = orbit_labels(self.symmetries, self.topology.nodes)  # per node the least of its orbit
            return [(self.supply, sink) for sink in self.sinks if representative[sink] == sink]
        steps = np.array([steps_from(self.topology, rank) for rank in range(ranks)])
        representatives = np.unique(orbit_labels(pair_images(self.symmetries, ranks), ranks * ranks))
        pairs = [divmod(int(i), ranks) for i in representatives]
        pairs = [(a, b) for a, b in pairs if a != b and {a, b} <= {*self.members}]
        pairs.sort(key=lambda pair: (-int(steps[pair]), pair))  # the farthest first
        weight = int(self.supply.max())  # of any one member's data
        return [(weight * (np.arange(ranks) == a), b) for a, b in pairs[: LIMITS.max_demands]]

    def least_steps(self) -> int:
        """Return the greatest distance from a rank with data to a member."""
        holders = self.members if self.exchanged else np.flatnonzero(self.supply).tolist()
        return max(int(steps_from(self.topology, rank)[list(self.members)].max()) for rank in holders)


def list_deliveries(topology: Topology, kind: str, needs: Needs, members: list[int]) -> Iterator[DataDelivery]:
    """Yield the sub-problems of the collective for `StepSearch.find_cuts`.

    In each, some ranks have data that all members need; or, for scatter and gather, one rank has (or needs) a share for
    each member.
    """

    def symmetries_of(weights: Longs) -> tuple[Longs, ...]:
        """Return generators of the symmetries that keep these weights, the members and all needs."""
        member = np.isin(np.arange(topology.ranks), members)
        # ranks of equal weight and membership have equal colours, and all switches one more
        colour = np.unique(np.stack([weights, member]), axis=1, return_inverse=True)[1].ravel().tolist()
        images = automorphisms(topology, [*colour, *[max(colour) + 1] * topology.switches])
        longs = (image.astype(np.int64) for image in images)
        return tuple(image for image in longs if is_symmetry(topology, needs, image))

    for collects in (False, True):
        if kind not in (COLLECTS if collects else SPREADS):
            continue
        supply = np.zeros(topology.ranks, np.int64)
        # The first holder of every need: in the built-in kinds each datum has only one (an allreduce does not use it).
        sole_holder = np.array([holders[0] for holders in needs.sets])[needs.holders]
        if kind in ("scatter", "gather"):
            root, ends = (needs.dst, sole_holder) if collects else (sole_holder, needs.dst)
            shares = np.bincount(ends, needs.weights[needs.block], topology.ranks).astype(np.int64)
            supply[root[0]] = shares.sum()
            # With several roots or with replicas there is no delivery: `supply` has one root's data.
            if len(set(root.tolist())) == 1 and all(len(holders) == 1 for holders in needs.sets):
                symmetries = symmetries_of(shares)
                yield DataDelivery(topology, supply, tuple(members), collects, shares=shares, symmetries=symmetries)
            continue
        if kind == "allreduce":
            supply[members[0]] = needs.weights[needs.block[0]]  # an allreduce has one block
        else:
            ends = needs.dst if collects else sole_holder
            for block, end in set(zip(needs.block.tolist(), ends.tolist(), strict=True)):
                supply[end] += needs.weights[block]
        # Symmetries need not keep the supply of an allreduce: members[0] stands for any member.
        kept_supply = supply * (kind != "allreduce")
        yield DataDelivery(
            topology,
            supply,
            tuple(members),
            collects,
            exchanged=kind == "allreduce",
            symmetries=symmetries_of(kept_supply),
        )


@dataclass(frozen=True, eq=False)
class Condition:
    """A cut over time, given by `near_from` and `switches`: the arcs that cross it must carry `weight` in all."""

    crossing: NDArray[np.bool_]  # by step and arc: whether the arc crosses the cut in that step
    weight: float
    near_from: tuple[int, ...]  # per rank the time from which on it is on the near side; N + 1: never
    switches: tuple[Switches, ...]  # per step the switches on the near side

    @property
    def key(self) -> tuple[Any, ...]:
        return self.near_from, self.switches


class TimedNetwork:
    """Ranks with one copy for each time 0 .. N, switches with one for each step, joined by arcs tail -> head.

    `nodes`, `tail`, `head`: of the network of one step (`StepSearch.arcs`).
    """

    def __init__(self, delivery: DataDelivery, steps: int, nodes: int, tail: AnyInts, head: AnyInts) -> None:
        ranks = delivery.topology.ranks
        self.delivery, self.steps, self.nodes, self.arcs = delivery, steps, nodes, (tail, head)
        self.source = (steps + 1) * nodes
        step = np.arange(1, steps + 1)[:, None]
        # The copy of node v at time s has the number s * nodes + v. A rank sends in step s what it had at time s - 1; a
        # switch forwards within the step.
        tails, heads = (step - (tail < ranks)) * nodes + tail, step * nodes + head
        waiting = (np.arange(steps)[:, None] * nodes + np.arange(ranks)).ravel()
        # Where every rank needs a share of its own, one more node, the drain, takes each rank's share at time N.
        self.drain = self.source + 1
        self.shares = delivery.shares if delivery.shares is not None else np.zeros(0, np.int64)
        last = steps * nodes + np.arange(len(self.shares))
        # Arcs: `tail` to `head` in every step; each rank to itself, where data stay; the source to the ranks; the ranks
        # to the drain.
        self.tail = np.concatenate([tails.ravel(), waiting, np.full(ranks, self.source), last])
        self.head = np.concatenate([heads.ravel(), waiting + nodes, np.arange(ranks), np.full(len(last), self.drain)])
        self.flows = MaxFlows(self.drain + 1, self.tail.tolist(), self.head.tolist())

    def find_violated(self, widths: Floats) -> list[Condition]:
        """Return conditions that these widths (the weight that an arc carries in a step, by step and arc) violate; none
        if all data can reach every rank that needs them."""
        cuts = (self._find_cut(widths, *demand) for demand in self.delivery.demands)
        return [condition for condition in cuts if condition is not None]

    def _find_cut(self, widths: Floats, supply: Longs, sink: int) -> Condition | None:
        """Return the condition of a minimum cut for one demand, or None if these widths serve it."""
        total = float(supply.sum())
        waiting = np.full(self.steps * len(supply), total * 2)  # more than all data: unbounded
        capacity = np.concatenate([widths.ravel(), waiting, supply, self.shares]).astype(np.float64)
        end = self.drain if sink < 0 else self.steps * self.nodes + sink  # the rank's copy at time N
        value, side = self.flows.cut_floats(capacity, self.source, end)
        if value >= total * SAME_FLOW:
            return None
        near = np.array(side[: self.source], bool).reshape(self.steps + 1, self.nodes)
        return self._describe_cut(near, supply)

    def _describe_cut(self, near: NDArray[np.bool_], supply: Longs) -> Condition:
        """Return the condition of a cut; `near`: per time and node whether it is on the source's side."""
        ranks = len(supply)
        near_from = np.where(near[:, :ranks].any(axis=0), near[:, :ranks].argmax(axis=0), self.steps + 1)
        switches = [tuple((np.flatnonzero(near[step, ranks:]) + ranks).tolist()) for step in range(1, self.steps + 1)]
        never_near = near_from > self.steps
        # must cross: the shares of the ranks that never become near, or the data of the ranks that are near at time 0
        weight = float(self.shares[never_near].sum() if len(self.shares) else supply[near_from == 0].sum())
        return self.condition(near_from, tuple(switches), weight)

    def condition(self, near_from: Longs, switches: tuple[Switches, ...], weight: float) -> Condition:
        """Return a cut over time as a condition on what the arcs carry that cross it."""
        (tail, head), ranks = self.arcs, len(near_from)
        step = np.arange(1, self.steps + 1)[:, None]
        near_nodes, far_nodes = np.zeros((2, self.steps, self.nodes), bool)
        near_nodes[:, :ranks], far_nodes[:, :ranks] = near_from < step, near_from > step
        for number, near_switches in enumerate(switches):
            near_nodes[number, list(near_switches)] = True
        far_nodes[:, ranks:] = ~near_nodes[:, ranks:]
        return Condition(near_nodes[:, tail] & far_nodes[:, head], weight, tuple(near_from.tolist()), switches)

    def insert_steps(self, condition: Condition, count: int) -> Iterator[Condition]:
        """Yield a condition for `count` steps fewer with `count` steps inserted: before each of its steps in turn, then
        after the last. No rank becomes near in an inserted step; its switches are those of the step that it precedes
        (or of the last step)."""
        for at in range(1, self.steps - count + 2):
            near_from = np.array(condition.near_from)
            near_from += count * (near_from >= at)
            switches = condition.switches
            added = switches[min(at, len(switches)) - 1 :][:1] * count
            yield self.condition(near_from, (*switches[: at - 1], *added, *switches[at - 1 :]), condition.weight)


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of the program over some conditions.

    `point`: the wire times, then any other variables. `multipliers`: the dual values of the conditions that bind.
    `prices`: the dual values of links and limits by step, where routes are variables; else empty.
    """

    point: Floats
    binding: list[Condition]
    multipliers: Floats
    prices: Floats


class StepSearch:
    """The search on one machine, for growing numbers of steps: each begins with the conditions that bind for fewer.

    The program's solutions are too short until the last round, and jump from round to round. So conditions are sought
    not there but on the line to `inner`, the shortest wire times known to meet all (in-out separation: Ben-Ameur and
    Neto 2007), which takes a third of the rounds.

    `RoutedSearch` (routed_search.py) overrides `_first_point`, `_widths`, `_solve`, `_add_routes` and `_to_evidence`:
    there what goes from rank to rank is a variable, too.
    """

    def __init__(self, delivery: DataDelivery) -> None:
        self.delivery, self.topology = delivery, delivery.topology
        self.link_capacity = link_capacities(self.topology).astype(np.float64)
        # the network of one step: number of nodes, tail and head of every arc
        self.arcs: tuple[int, AnyInts, AnyInts] = (self.topology.nodes, self.topology.link_src, self.topology.link_dst)
        self.binding, self.last_steps = list[Condition](), 0  # conditions that bound in the last call, and its N

    def find_cuts(self, steps: int) -> StepCuts | RoutedCuts | None:
        """Return cuts over time that bound the wire time of every schedule of `steps` steps; None if there are none."""
        network = TimedNetwork(self.delivery, steps, *self.arcs)
        conditions = dict[tuple[Any, ...], Condition]()

        def stretch(point: Floats) -> Floats:
            """Return the least multiple of a point that meets all conditions; infinite if none does (Newton's
            iteration)."""
            while violated := network.find_violated(widths := self._widths(point, steps)):
                conditions.update((c.key, c) for c in violated)
                if not all(c.crossing.any() for c in violated):  # no arc crosses: the rank is out of reach
                    return np.full(len(point), np.inf)
                point = point * max(c.weight / float(widths[c.crossing].sum()) for c in violated)
            return point

        inner = stretch(self._first_point(steps))
        if np.isinf(inner[0]):
            return None  # some member cannot be reached in so few steps
        for condition in self.binding:
            longer = network.insert_steps(condition, steps - self.last_steps)
            conditions.update((c.key, c) for c in longer)
        # `outer`: the last solution of the program. `inner`: wire times (a point) that meet all conditions.
        outer, total = Solution(inner, [], np.zeros(0), np.zeros(0)), 0.0
        last_gain, last_bound = 0, dict[Any, int]()  # rounds: of the last gain; by condition, in which it last bound
        for number in range(LIMITS.max_rounds):
            solution = self._solve([*conditions.values()], steps)
            if solution is None:
                break
            outer, previous_total, total = solution, total, float(solution.point[:steps].sum())
            if self._add_routes(outer) or total > previous_total * LIMITS.min_gain:
                last_gain = number
            elif number - last_gain >= LIMITS.max_stalled or total >= inner[:steps].sum() * LIMITS.converged:
                break
            # Drop conditions that do not bind: the program is solved sooner and has the same solution. A condition that
            # never bound counts as binding in the round of its first solution (`setdefault`).
            last_bound.update((c.key, number) for c in outer.binding)
            oldest = number - LIMITS.max_idle
            conditions = {key: c for key, c in conditions.items() if last_bound.setdefault(key, number) > oldest}
            inner = np.append(inner, np.zeros(len(outer.point) - len(inner)))  # routes may have joined
            point = stretch(LIMITS.outward * outer.point + (1 - LIMITS.outward) * inner)
            inner = min(inner, point, key=lambda meets_all: float(meets_all[:steps].sum()))
        if not outer.binding:
            return None
        self.binding, self.last_steps = outer.binding, steps
        return self._to_evidence(outer, steps)

    def _first_point(self, steps: int) -> Floats:
        """Return wire times, all equal, in which no member can get all data."""
        return np.full(steps, TINY * self.delivery.total / self.link_capacity.sum() / steps)

    def _widths(self, point: Floats, steps: int) -> Floats:
        """Return the weight that each arc can carry in each step, by step and arc. `steps`: for `RoutedSearch`, whose
        points have more than wire times."""
        return np.multiply.outer(point, self.link_capacity)

    def _solve(self, conditions: list[Condition], steps: int) -> Solution | None:
        """Find the least wire times that meet the conditions; None if the solver fails."""
        from scipy.optimize import linprog

        scale = self.link_capacity.max()
        matrix = np.array([np.where(c.crossing, self.link_capacity, 0.0).sum(axis=1) for c in conditions]) / scale
        weight = np.array([c.weight for c in conditions])
        max_weight = weight.max(initial=0) or 1.0
        solution: Any = linprog(np.ones(steps), A_ub=-matrix, b_ub=-weight / max_weight, method="highs-ds")
        if solution.status:
            return None
        duals = -solution.ineqlin.marginals
        binding = [condition for condition, dual in zip(conditions, duals, strict=True) if dual > 0]
        return Solution(solution.x * max_weight / scale, binding, duals[duals > 0], np.zeros(0))

    def _add_routes(self, solution: Solution) -> bool:
        """Add routes to the program that would shorten the wire times; return whether there was one (here none)."""
        return False

    def _to_evidence(self, solution: Solution, steps: int) -> StepCuts | RoutedCuts | None:
        """Round the multipliers to whole numbers and build the evidence."""
        rounded = np.rint(solution.multipliers / solution.multipliers.max() * MULTIPLIER_SCALE).astype(np.int64)
        multipliers = zip(solution.binding, rounded.tolist(), strict=True)
        return StepCuts(
            steps,
            tuple(
                cut_from_condition(self.delivery, steps, condition, multiplier)
                for condition, multiplier in multipliers
                if multiplier
            ),
        )


def cut_from_condition(delivery: DataDelivery, steps: int, condition: Condition, multiplier: int) -> StepCut:
    """Return a condition as a cut. A cut of the reversed machine is reversed in time: nodes that are far at the end
    are near from the start."""
    if not delivery.collects:
        return StepCut(condition.near_from, condition.switches, multiplier)
    near_from = tuple(steps + 1 - start for start in condition.near_from)
    all_switches = range(delivery.topology.ranks, delivery.topology.nodes)
    switches = tuple(tuple(s for s in all_switches if s not in near) for near in reversed(condition.switches))
    return StepCut(near_from, switches, multiplier)
