"""Plan within groups of ranks; isomorphic groups are planned once and relabelled.

The input is groups of ranks of a machine and a collective within each; the output is verified plans for each class of
isomorphic groups. A group's machine has the links among its ranks and the switches between them. Switches that other
ranks may need are left out if the group stays connected, since traffic within a box should not load the links out of
it. Groups are brought into a canonical form (by BLISS, which numbers isomorphic graphs equally), so that all boxes of a
cluster are one class, even if their links are numbered differently.

`plans_for` calls the planners of the table one after the other and keeps the undominated plans: those for which no
other is at least as good in steps, time and rate (bandwidth with many slices). It stops when a plan meets the lower
bounds. All plans are verified.

Example: 32 boxes of 8 GPUs with equal NVLinks: one machine of 8 ranks is planned, and its plan is placed 32 times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

import numpy as np

from antiphon.core.bounds import Bound, bound
from antiphon.core.bounds.latency import latency_of
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import Bools, Ints, Longs, reached_nodes
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.reshape import degrade, keep, nodes_between, relabel, reverse
from antiphon.core.schedule import Schedule
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.core.transform import Placement, Spans, assemble_parts
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid, Unsupported, list_first
from antiphon.planners.shared.groups import delay_after
from antiphon.registry import call, effort_of_planner, find, table

MOST_VARIANTS = 4  # plans used of one planner
MOST_EFFORT = 4_000_000  # planners above this `_planner_effort` are called last, and only if no other has a plan
RELAY_FACTOR = 16  # on `_planner_effort` if some ranks only relay: then trees are packed without use of symmetries
FEW_RANKS = 32  # in larger groups, use only the first plan of each planner
# sort keys of plans: best unpipelined, and best with many slices
_BY_TIME, _BY_RATE = attrgetter("unpipelined", "steps", "pipelined"), attrgetter("pipelined", "unpipelined", "steps")


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """A schedule for one group, and its seconds per byte: `unpipelined`, and `pipelined` with many slices."""

    schedule: Schedule
    planner: str
    steps: int
    unpipelined: Fraction
    pipelined: Fraction


@dataclass(frozen=True, eq=False)
class GroupClass:
    """Isomorphic groups. `machine`: one machine that stands for all of them. `groups`: their row numbers.

    `links[i, l]`: the link of the whole machine that is link l of `machine` in the i-th group.
    """

    machine: Topology
    groups: Longs
    links: Ints


@dataclass(frozen=True, eq=False)
class _Group:
    """One group. `machine`: its machine, whose link l is link links[l] of the whole machine.

    `order`: its links in canonical order. `key`: equal for isomorphic groups.
    """

    machine: Topology
    links: Ints
    order: Longs
    key: Any


_Key = tuple[int, Collective]  # the machine of a class of groups, by id, and the collective that is planned on it


class GroupPlanner:
    """Plans within groups of one machine, each computed once.

    `planners`: names. `mirror`: the planner for the machine with all links reversed; groups are extracted once for
    both, and a group that is isomorphic to its own reverse is planned once.
    """

    def __init__(self, request: Request, planners: Sequence[str], mirror: GroupPlanner | None = None) -> None:
        self.request = request
        self.planners = planners
        self.mirror = mirror
        # Classes by the groups; plans by machine and collective; by the key of isomorphic groups the first one met,
        # whose machine stands for all. A planner and its mirror share plans and first groups.
        self._classes: dict[tuple[tuple[int, ...], bytes], list[GroupClass]] = {}
        self._plans: dict[_Key, list[GroupPlan]] = {} if mirror is None else mirror._plans
        self._first_of_class: dict[Any, _Group] = {} if mirror is None else mirror._first_of_class
        self._extracted: dict[bytes, tuple[Topology, Ints]] = {}  # by the ranks of the group
        self._counted: set[_Key] = set()  # those that `tried` counts
        self.tried = 0  # classes of groups planned, once per collective: the effort of planner `compose`

    def classify_groups(self, groups: Longs) -> list[GroupClass]:
        """Return the classes of these groups (one row of ranks each); Unsupported if one is not connected in itself.

        O(groups * links), and a run of BLISS for each group with switches.
        """
        key = groups.shape, groups.tobytes()
        if key not in self._classes:
            self._classes[key] = list(self._list_classes(groups))
        return self._classes[key]

    def _list_classes(self, groups: Longs) -> Iterator[GroupClass]:
        """Yield the classes of isomorphic groups."""
        rows, number = np.unique(groups, axis=0, return_inverse=True)  # the distinct groups, and by group its row
        all_groups = [_to_canonical_form(self.request.topology, *self._extract(row)) for row in rows]
        classes: dict[Any, list[int]] = {}  # key -> rows of `all_groups`
        for row, group in enumerate(all_groups):
            classes.setdefault(group.key, []).append(row)
        for key, class_rows in classes.items():
            first = self._first_of_class.setdefault(key, all_groups[class_rows[0]])
            class_groups = np.flatnonzero(np.isin(number.ravel(), class_rows))
            images = {row: _map_links(first, all_groups[row]) for row in class_rows}
            links = np.array([images[int(row)] for row in number.ravel()[class_groups]], np.int32)
            yield GroupClass(first.machine, class_groups, links)

    def _extract(self, ranks: Longs) -> tuple[Topology, Ints]:
        """Return a group's machine and its links, extracted once: the stages of a plan have many groups in common."""
        if self.mirror is not None:
            machine, links = self.mirror._extract(ranks)
            return reverse(machine), links
        key = ranks.tobytes()
        if key not in self._extracted:
            self._extracted[key] = _extract_group(self.request.topology, ranks)
        return self._extracted[key]

    def plans_for(self, machine: Topology, target: Collective) -> list[GroupPlan]:
        """Return the planners' undominated plans of a collective on a group's machine, verified."""
        key = (id(machine), target)
        self.tried += key not in self._counted
        if key not in self._plans:
            self._plans[key] = self._try_planners(machine, target)
        self._counted.add(key)
        return self._plans[key]

    def _try_planners(self, machine: Topology, target: Collective) -> list[GroupPlan]:
        """Call the planners until one meets the bounds; return the undominated plans."""
        lower_bound: Bound | None = None
        latency = latency_of(machine, needs_of(target))
        least_steps = 0 if latency is None else latency.steps
        candidates: list[GroupPlan] = []
        is_met = False
        for name in sorted(self.planners, key=lambda name: _planner_effort(name, machine, target) > MOST_EFFORT):
            if candidates and _planner_effort(name, machine, target) > MOST_EFFORT:
                break
            candidates += self._call_planner(name, machine, target)
            # a plan that meets both bounds is the best of all in both; of large groups the bound takes seconds
            least_time = min((plan.unpipelined for plan in candidates), default=Fraction(0))
            promising = [plan for plan in candidates if plan.steps <= least_steps and plan.unpipelined == least_time]
            lower_bound = bound(machine, target) if promising and lower_bound is None else lower_bound
            is_met = lower_bound is not None and any(_is_optimal(plan, lower_bound) for plan in promising)
            if is_met:  # no other planner can be better
                break
        scattered = list(self._scatter_and_gather(machine, target)) if target.kind == "broadcast" and not is_met else []
        best = [
            plan for plan in _undominated_plans([*scattered, *candidates]) if not verify(plan.schedule, machine).fault
        ]
        if not best:
            raise Unsupported(f"planner compose: no planner can do {target.kind} on {machine.name}; try relay")
        return best

    def _call_planner(self, name: str, machine: Topology, target: Collective) -> Iterator[GroupPlan]:
        """Yield the plans of one planner; none if it cannot plan this."""
        entry = find("planner", name)
        if target.kind not in entry.can.collectives:
            return
        request = replace(self.request, topology=machine, collective=target, nbytes=None, also=(), effort=None)
        try:
            for number, schedule in enumerate(call("planner", name, entry.load(), {}, request)):  # {}: default options
                yield _measure_schedule(replace(schedule, pieces=1), machine, name)
                if number + 1 >= MOST_VARIANTS or machine.ranks > FEW_RANKS:
                    return
        except AntiphonError:
            return

    def _scatter_and_gather(self, machine: Topology, target: Collective) -> Iterator[GroupPlan]:
        """Yield a broadcast as a scatter to all others and an allgather among them.

        The root sends everything once, as it must; in a scatter and an allgather of all ranks it would send its own
        block to each of them, too.
        """
        receivers = tuple(member for member in target.members if member not in target.roots)
        if len(receivers) < 2 or len(target.roots) > 1:
            return
        weights = np.isin(target.members, receivers).astype(np.int64)
        scatter = Collective("scatter", target.ranks, target.members, roots=target.roots, weights=weights)
        gather = Collective("allgather", target.ranks, receivers)
        try:
            plans_of_halves = [self.plans_for(machine, half) for half in (scatter, gather)]
        except (Unsupported, Invalid):  # Invalid: on one-way links the receivers may not reach each other
            return
        whole_buffer = Spans.side_by_side(np.array([len(receivers)]))
        # by time and by rate, often the same pair of plans: a dictionary as an ordered set
        for first, second in {
            tuple(min(plans, key=sort_key) for plans in plans_of_halves): None for sort_key in (_BY_TIME, _BY_RATE)
        }:
            scatter_rows = Placement.single_copy(first.schedule, Spans.side_by_side(weights))
            gather_rows = Placement.single_copy(second.schedule, Spans.side_by_side(np.ones(len(receivers), np.int64)))
            schedule = assemble_parts([scatter_rows, *delay_after([gather_rows], [scatter_rows])], target, whole_buffer)
            yield _measure_schedule(schedule, machine, f"scatter by {first.planner}, allgather by {second.planner}")


def _measure_schedule(plain: Schedule, machine: Topology, planner: str) -> GroupPlan:
    """Return the plan of a schedule without pipelining, with its exact times."""
    rate = throughput(plain, machine)
    pipelined = 1 / rate if rate else Fraction(0)
    return GroupPlan(plain, planner, plain.steps, timeline(plain, machine).total, pipelined)


def _planner_effort(name: str, machine: Topology, target: Collective) -> float:
    """Return a planner's declared effort per pair of ranks, times the number of pairs."""
    relayed = RELAY_FACTOR if len(target.members) < machine.ranks else 1
    return relayed * effort_of_planner(name, find("planner", name)) * machine.ranks**2


def usual_planners() -> tuple[str, ...]:
    """Return the planners of the table that `tune` uses and that are quick: none that searches or composes."""
    abilities = {name: entry.can for name, entry in table("planner").items()}
    return tuple(
        name for name, can in abilities.items() if can.tuned and not (can.process or can.costly or can.composes)
    )


def _is_optimal(plan: GroupPlan, lower_bound: Bound) -> bool:
    """Return whether no plan has fewer steps or takes less time."""
    rate = lower_bound.bytes_per_second
    return plan.steps <= lower_bound.latency_steps and rate is not None and plan.unpipelined * rate <= 1


def _undominated_plans(candidates: Sequence[GroupPlan]) -> list[GroupPlan]:
    """Return the plans for which no other is at least as good in steps and both times; of equal plans the first."""
    undominated: list[GroupPlan] = []
    figures = attrgetter("steps", "unpipelined", "pipelined")
    for plan in sorted(candidates, key=figures):
        if not any(all(a <= b for a, b in zip(figures(other), figures(plan), strict=True)) for other in undominated):
            undominated.append(plan)
    return undominated


def _extract_group(topology: Topology, ranks: Longs) -> tuple[Topology, Ints]:
    """Return a group's machine, with ranks numbered as the group lists them; and its links' numbers in the whole."""
    allocation = keep(topology, ranks.tolist())
    # `keep` numbers ranks in ascending order; `number` takes these to their positions in `ranks`
    number = np.empty(allocation.topology.nodes, np.int64)
    number[: len(ranks)] = np.argsort(ranks)
    number[len(ranks) :] = np.arange(len(ranks), allocation.topology.nodes)
    machine, links = relabel(allocation.topology, number), np.array(allocation.links, np.int32)
    # drop switches that other ranks may need, if the group stays connected without them
    needed_outside = _others_need(topology, ranks)[np.array(allocation.nodes, np.int64)]
    if needed_outside.any():
        # links have the same numbers in `machine` as in the allocation's topology, as `relabel` renumbers nodes only
        leads_out = np.flatnonzero(
            needed_outside[allocation.topology.link_src] | needed_outside[allocation.topology.link_dst]
        )
        if len(leads_out) < machine.links:
            own_machine = degrade(machine, links=leads_out.tolist(), remove=True, name=machine.name)
            if _is_connected(own_machine):
                links = links[np.setdiff1d(np.arange(machine.links), leads_out)]
                connected = keep(own_machine, range(own_machine.ranks), name=machine.name)
                machine, links = connected.topology, links[list(connected.links)]
    if not _is_connected(machine):
        raise Unsupported(
            f"planner compose: ranks {list_first(ranks.tolist())} of {topology.name} are a group whose ranks "
            "are not joined among themselves; give option groups=... (4x2, 3+4), or use planner relay or trees"
        )
    return machine, links


def _to_canonical_form(topology: Topology, machine: Topology, links: Ints) -> _Group:
    """Bring an extracted group into the canonical form. `machine`, `links`: as `_extract_group` returns them."""
    label, key = _canonical_nodes(machine)
    # by link, the number of its type among the machine's types in the order of their texts
    kind = {value: i for i, value in enumerate(sorted({repr(t) for t in topology.types}))}
    types = np.array([kind[repr(t)] for t in topology.types])[topology.link_type[links]]
    # links by their canonical ends, then by type, then by number
    order = np.lexsort((np.arange(machine.links), types, label[machine.link_dst], label[machine.link_src]))
    position = np.argsort(order)  # by link, where it is in canonical order
    limits = sorted(
        (str(limit.bandwidth), tuple(sorted(position[list(limit.links)].tolist()))) for limit in machine.limits
    )
    ends = label[machine.link_src[order]], label[machine.link_dst[order]], types[order]
    return _Group(machine, links, order, (key, machine.ranks, tuple(limits), *(column.tobytes() for column in ends)))


def _others_need(machine: Topology, ranks: Longs) -> Bools:
    """Return which switches may lie on paths between ranks outside the group."""
    if not machine.switches:
        return np.zeros(machine.nodes, np.bool_)
    needed = nodes_between(machine, ~np.isin(np.arange(machine.ranks), ranks))
    needed[: machine.ranks] = False
    return needed


def _canonical_nodes(machine: Topology) -> tuple[Longs, str]:
    """Return canonical numbers of the nodes (ranks keep theirs), and a key that is equal for isomorphic machines."""
    if not machine.switches:
        return np.arange(machine.nodes), ""
    label, key = canonical(machine, [*range(1, machine.ranks + 1), *[0] * machine.switches])
    numbers = label.astype(np.int64)
    numbers[: machine.ranks] = np.arange(machine.ranks)
    return numbers, key


def _map_links(first: _Group, other: _Group) -> Ints:
    """Return the whole machine's links in `other` that correspond to those of `first`."""
    corresponding_links = np.empty(len(first.order), np.int32)
    corresponding_links[first.order] = other.links[other.order]
    return corresponding_links


def _is_connected(machine: Topology) -> bool:
    """Return whether every rank reaches every other."""
    is_first, ends = np.arange(machine.nodes) == 0, (machine.link_src, machine.link_dst)
    return all(reached_nodes(is_first, *pair)[: machine.ranks].all() for pair in (ends, ends[::-1]))
