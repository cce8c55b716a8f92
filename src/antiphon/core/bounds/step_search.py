"""Search for cuts over time by linear programming over the wire times of the steps, adding violated cuts.

`find_step_cuts` is called by the search for evidence of a bound by size (by_size.py). Input: a machine, data that every
member needs, and a number of steps N. The wire time t_s of step s is the time of its most loaded link. Output:
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

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.maxflow import Flows
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.steps import StepCut, StepCuts, Switches
from antiphon.core.columns import Bools, Floats, Longs
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology

MAX_ROUNDS = 40  # of the cutting-plane loop; the cuts until then are valid evidence, only weaker
SAME_FLOW = 1 - 1e-7  # a flow of at least this fraction of the demand serves it
MULTIPLIER_SCALE = 2**16  # the greatest multiplier after rounding to whole numbers


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


def nearest_side(topology: Topology, near: Bools, far: Bools) -> tuple[int, Switches]:
    """Return the least capacity from the ranks of `near` to those of `far` through switches alone, and the switches on
    the near side of such a minimum cut. Capacity in units of `resources.scale` bytes/s."""
    if not topology.switches:
        return int(link_capacities(topology)[near[topology.link_src] & far[topology.link_dst]].sum()), ()
    source, sink = topology.nodes, topology.nodes + 1
    node = np.arange(topology.nodes)
    tails, heads = node.copy(), node.copy()
    tails[: topology.ranks] = np.where(near, source, -1)
    heads[: topology.ranks] = np.where(far, sink, -1)
    tail, head = tails[topology.link_src], heads[topology.link_dst]
    usable = (tail >= 0) & (head >= 0)
    flows = Flows(topology.nodes + 2, tail[usable].tolist(), head[usable].tolist())
    value, side = flows.cut(link_capacities(topology)[usable].tolist(), source, sink)
    return value, tuple(switch for switch in range(topology.ranks, topology.nodes) if side[switch])


@dataclass(frozen=True, eq=False)
class Spread:
    """Data that ranks hold and members need.

    `supply`: per rank the weight of the data that it holds. `members`: ranks that need all data. `collects`: the data
    are collected rather than spread, so the search runs on the machine with all links reversed. `shares`: for scatter
    and gather, where one rank has all data, the weight that each rank needs; None: every member needs all.
    """

    machine: Topology
    supply: Longs
    members: tuple[int, ...]
    collects: bool
    shares: Longs | None = None

    @cached_property
    def topology(self) -> Topology:
        return reverse(self.machine) if self.collects else self.machine

    @property
    def sinks(self) -> list[int]:
        """Members that do not hold all data from the start."""
        return [rank for rank in self.members if self.supply.sum() > self.supply[rank]]

    def least_steps(self) -> int:
        """Return the greatest distance from a rank with data to a member."""
        return max(int(steps_from(self.topology, int(rank))[self.sinks].max()) for rank in np.flatnonzero(self.supply))

    def weight_per_capacity(self) -> float:
        """Return the time that the cut around one member, or around the only rank with data, proves for any N."""
        capacity, scale = link_capacities(self.topology), float(self.topology.resources.scale)
        into, out = np.zeros(self.topology.nodes), np.zeros(self.topology.nodes)
        np.add.at(into, self.topology.link_dst, capacity.astype(np.float64))
        np.add.at(out, self.topology.link_src, capacity.astype(np.float64))
        total = float(self.supply.sum())
        needed = total - self.supply if self.shares is None else self.shares
        rates = [float(needed[rank]) / into[rank] for rank in self.sinks if into[rank]]
        rates += [total / out[rank] for rank in np.flatnonzero(self.supply == total).tolist() if out[rank]]
        return max(rates, default=0.0) / scale


@dataclass(frozen=True)
class _Condition:
    """The condition sum over s of capacity[s] * t_s >= weight, of the cut that `near_from` and `switches` describe."""

    capacity: Floats
    weight: float
    near_from: tuple[int, ...]  # per rank the time from which on it is on the near side; N + 1: never
    switches: tuple[Switches, ...]  # per step the switches on the near side


class _TimedNetwork:
    """The network with one copy of every rank for each time 0 .. N, and of every switch for each step."""

    def __init__(self, spread: Spread, steps: int) -> None:
        topology = spread.topology
        self.spread, self.steps, self.topology = spread, steps, topology
        self.capacity = link_capacities(topology).astype(np.float64)
        ranks, nodes = topology.ranks, topology.nodes
        self.source = (steps + 1) * nodes
        sends_as_rank = topology.link_src < ranks
        step = np.arange(1, steps + 1)[:, None]
        # The copy of node v at time s has the number s * nodes + v. A rank sends in step s what it had at time s - 1; a
        # switch forwards within the step.
        tail = (step - sends_as_rank) * nodes + topology.link_src
        head = step * nodes + topology.link_dst
        waiting = (np.arange(steps)[:, None] * nodes + np.arange(ranks)).ravel()
        self.holders = np.flatnonzero(spread.supply)
        # Where every rank needs a share of its own, one more node, the drain, takes each rank's share at time N.
        self.drain, self.shares = self.source + 1, spread.shares if spread.shares is not None else np.zeros(0, np.int64)
        last = steps * nodes + np.arange(len(self.shares))
        # Arcs: the links in every step, data that stay at a rank, the source to the holders, the ranks to the drain.
        self.tail = np.concatenate([tail.ravel(), waiting, np.full(len(self.holders), self.source), last])
        self.head = np.concatenate([head.ravel(), waiting + nodes, self.holders, np.full(len(last), self.drain)])
        self.flows = Flows(self.drain + 1, self.tail.tolist(), self.head.tolist())
        self.total = float(spread.supply.sum())

    def find_violated(self, times: Floats) -> list[_Condition]:
        """Return conditions that these wire times violate; none if all data can reach every rank that needs them."""
        widths = (np.array(times)[:, None] * self.capacity).ravel()
        waiting = np.full(self.steps * self.topology.ranks, self.total * 2)  # more than all data: unbounded
        supply = self.spread.supply[self.holders]
        capacity = np.concatenate([widths, waiting, supply, self.shares]).astype(np.float64)
        last = self.steps * self.topology.nodes
        sinks = [self.drain] if len(self.shares) else [last + sink for sink in self.spread.sinks]
        conditions = []
        for sink in sinks:
            value, side = self.flows.cut_floats(capacity, self.source, sink)
            if value < self.total * SAME_FLOW:
                near = np.array(side[: self.source], bool).reshape(self.steps + 1, self.topology.nodes)
                conditions.append(self._describe_cut(near))
        return conditions

    def _describe_cut(self, near: NDArray[np.bool_]) -> _Condition:
        """Return the condition of a cut; `near`: per time and node whether it is on the source's side."""
        topology, ranks = self.topology, self.topology.ranks
        near_from = np.where(near[:, :ranks].any(axis=0), near[:, :ranks].argmax(axis=0), self.steps + 1)
        switches = [tuple((np.flatnonzero(near[step, ranks:]) + ranks).tolist()) for step in range(1, self.steps + 1)]
        capacity = np.zeros(self.steps)
        for step in range(1, self.steps + 1):
            near_nodes = np.concatenate([near_from < step, near[step, ranks:]])
            far_nodes = np.concatenate([near_from > step, ~near[step, ranks:]])
            crossing = near_nodes[topology.link_src] & far_nodes[topology.link_dst]
            capacity[step - 1] = self.capacity[crossing].sum()
        never = near_from > self.steps
        weight = float(self.shares[never].sum() if len(self.shares) else self.spread.supply[near_from == 0].sum())
        return _Condition(capacity, weight, tuple(near_from.tolist()), tuple(switches))


def find_step_cuts(spread: Spread, steps: int) -> StepCuts | None:
    """Return cuts over time that bound the wire time of any schedule of `steps` steps, or None if there are none."""
    network = _TimedNetwork(spread, steps)
    conditions: list[_Condition] = []
    times = np.full(steps, spread.weight_per_capacity() / steps * float(spread.topology.resources.scale))
    multipliers = np.zeros(0)
    for _ in range(MAX_ROUNDS):
        violated = network.find_violated(times)
        listed = {(c.near_from, c.switches) for c in conditions}
        added = {(c.near_from, c.switches): c for c in violated if (c.near_from, c.switches) not in listed}
        if not added:
            break
        conditions += added.values()
        if any(not c.capacity.any() for c in conditions):
            return None  # some member cannot be reached in so few steps
        times, multipliers = _solve(conditions, network.capacity.max())
    return _round_evidence(spread, steps, conditions, multipliers)


def _solve(conditions: list[_Condition], scale: float) -> tuple[Floats, Floats]:
    """Return the least wire times that meet the conditions, and the dual value of each condition.

    `scale`: a capacity by which all are divided, so that the program is well scaled.
    """
    from scipy.optimize import linprog

    matrix = np.array([c.capacity for c in conditions]) / scale
    weight = np.array([c.weight for c in conditions])
    top = weight.max() or 1.0
    solution: Any = linprog(np.ones(matrix.shape[1]), A_ub=-matrix, b_ub=-weight / top, method="highs-ds")
    return solution.x * top / scale, -solution.ineqlin.marginals


def _round_evidence(spread: Spread, steps: int, conditions: list[_Condition], multipliers: Floats) -> StepCuts | None:
    """Round the multipliers to whole numbers and build the evidence; None if no condition counts."""
    if not len(multipliers) or not multipliers.max() > 0:
        return None
    rounded = np.rint(multipliers / multipliers.max() * MULTIPLIER_SCALE).astype(np.int64).tolist()
    pairs = [(condition, multiplier) for condition, multiplier in zip(conditions, rounded, strict=True) if multiplier]
    to_cut = _reverse_in_time if spread.collects else _as_cut
    return StepCuts(steps, tuple(to_cut(spread, steps, condition, multiplier) for condition, multiplier in pairs))


def _as_cut(spread: Spread, steps: int, condition: _Condition, multiplier: int) -> StepCut:
    """Return a condition as a cut."""
    return StepCut(condition.near_from, condition.switches, multiplier)


def _reverse_in_time(spread: Spread, steps: int, condition: _Condition, multiplier: int) -> StepCut:
    """Return a cut of the reversed machine as one of the machine: nodes that are far at the end are near from the
    start."""
    near_from = tuple(steps + 1 - start for start in condition.near_from)
    all_switches = range(spread.topology.ranks, spread.topology.nodes)
    switches = tuple(tuple(s for s in all_switches if s not in near) for near in reversed(condition.switches))
    return StepCut(near_from, switches, multiplier)
