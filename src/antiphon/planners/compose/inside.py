"""Plans for groups of ranks: groups that are alike are planned once, by every planner of the table that can.

A group has the links among its ranks, and the switches between them; only those that nobody else needs, if they are
enough: what a box does within itself is not to load what leads out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

import numpy as np

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.columns import Bools, Ints, Longs
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.reshape import between, degrade, keep, relabel
from antiphon.core.schedule import Schedule
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.core.transform import Part, Spans, laid
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Unsupported
from antiphon.planners.shared.groups import delay_after
from antiphon.registry import call, effort_of_planner, find, table

MOST_VARIANTS = 4  # of what one planner yields
MOST_EFFORT = 4_000_000  # of a planner in a group, where another has a plan: trees on 298 ranks
RELAYED = 16  # times the effort where some ranks only relay: trees are then grown rank by rank, without symmetries
FEW_RANKS = 32  # of a group; in larger ones just the first that each planner yields
_ALONE, _PIPED = attrgetter("alone", "steps", "piped"), attrgetter("piped", "alone", "steps")


@dataclass(frozen=True, eq=False)
class Way:
    """A plan for a group: in one piece so many seconds per byte, in ever finer pieces so many."""

    schedule: Schedule
    planner: str
    steps: int
    alone: Fraction
    piped: Fraction


@dataclass(frozen=True, eq=False)
class Alike:
    """Groups for which one plan will do: which they are, and of each the links of the whole that its links are."""

    machine: Topology
    groups: Longs
    links: Ints


@dataclass(frozen=True, eq=False)
class _Group:
    """One group: what is left of the machine (its link l is link links[l] of the whole), its nodes as they are numbered
    in all that are alike, its links in an order in which those of all that are alike correspond; a name for it."""

    machine: Topology
    links: Ints
    order: Longs
    key: Any


class Inside:
    """Plans within groups of one machine, each made once."""

    def __init__(self, request: Request, planners: Sequence[str]) -> None:
        self.request = request
        self.planners = planners
        self._ways: dict[tuple[int, Collective], list[Way]] = {}
        self._alike: dict[tuple[tuple[int, ...], bytes], list[Alike]] = {}
        self._known: dict[Any, _Group] = {}
        self.tried = 0  # kinds of groups that were planned

    def alike(self, groups: Longs) -> list[Alike]:
        """Groups (a row each, of ranks) as classes. Unsupported where the ranks of one are not joined among themselves.
        O(groups * links), and a run of BLISS for each group with switches."""
        mark = groups.shape, groups.tobytes()
        if mark not in self._alike:
            self._alike[mark] = list(self._classes(groups))
        return self._alike[mark]

    def _classes(self, groups: Longs) -> Iterator[Alike]:
        rows, number = np.unique(groups, axis=0, return_inverse=True)
        all_groups = [_group(self.request.topology, row) for row in rows]
        classes: dict[Any, list[int]] = {}
        for at, group in enumerate(all_groups):
            classes.setdefault(group.key, []).append(at)
        for key, alike in classes.items():
            first = self._known.setdefault(key, all_groups[alike[0]])
            members = np.flatnonzero(np.isin(number.ravel(), alike))
            images = {at: _images(first, all_groups[at]) for at in alike}
            yield Alike(first.machine, members, np.array([images[int(at)] for at in number.ravel()[members]], np.int32))

    def ways(self, machine: Topology, target: Collective) -> list[Way]:
        """What the planners of the table make of it there: none that another beats in everything. All are verified."""
        key = (id(machine), target)
        if key not in self._ways:
            self.tried += 1
            self._ways[key] = self._tried(machine, target)
        return self._ways[key]

    def _tried(self, machine: Topology, target: Collective) -> list[Way]:
        limit = bound(machine, target)
        candidates: list[Way] = []
        met = False
        for name in sorted(self.planners, key=lambda name: _effort(name, machine, target) > MOST_EFFORT):
            if candidates and _effort(name, machine, target) > MOST_EFFORT:
                break
            candidates += self._made(name, machine, target)
            met = any(_no_better(way, limit) for way in candidates)
            if met:
                break
        dealt = list(self._shared(machine, target)) if target.kind == "broadcast" and not met else []
        best = [way for way in _best([*dealt, *candidates]) if not verify(way.schedule, machine).fault]
        if not best:
            raise Unsupported(f"planner compose: no planner can do {target.kind} on {machine.name}; try relay")
        return best

    def _made(self, name: str, machine: Topology, target: Collective) -> Iterator[Way]:
        entry = find("planner", name)
        if target.kind not in entry.can.collectives:
            return
        request = replace(self.request, topology=machine, collective=target, nbytes=None, also=(), effort=None)
        try:
            for number, schedule in enumerate(call("planner", name, entry.load(), {}, request)):
                yield _way(replace(schedule, pieces=1), machine, name)
                if number + 1 >= MOST_VARIANTS or machine.ranks > FEW_RANKS:
                    return
        except AntiphonError:
            return

    def _shared(self, machine: Topology, target: Collective) -> Iterator[Way]:
        """A broadcast in which all others get an equal part each, and gather those of each other. The root sends
        everything once, as it must; in a scatter and an allgather of all ranks it would send its own part to each."""
        receivers = np.setdiff1d(np.arange(target.ranks), target.roots)
        if len(receivers) < 2 or len(target.roots) > 1:
            return
        weights = np.isin(np.arange(target.ranks), receivers).astype(np.int64)
        scatter = Collective("scatter", target.ranks, roots=target.roots, weights=weights)
        gather = Collective("allgather", target.ranks, tuple(receivers.tolist()))
        try:
            each = [self.ways(machine, half) for half in (scatter, gather)]
        except Unsupported:
            return
        line = Spans.side_by_side(np.array([len(receivers)]))
        for first, second in {tuple(min(ways, key=by) for ways in each): None for by in (_ALONE, _PIPED)}:
            early = Part.alone(first.schedule, Spans.side_by_side(weights))
            late = Part.alone(second.schedule, Spans.side_by_side(np.ones(len(receivers), np.int64)))
            schedule = laid([early, *delay_after([late], [early])], target, line)
            yield _way(schedule, machine, f"scatter by {first.planner}, allgather by {second.planner}")


def _way(plain: Schedule, machine: Topology, planner: str) -> Way:
    rate = throughput(plain, machine)
    piped = 1 / rate if rate else Fraction(0)
    return Way(plain, planner, plain.steps, timeline(plain, machine).total, piped)


def _effort(name: str, machine: Topology, target: Collective) -> float:
    """What a planner may take there, in transfers."""
    relayed = RELAYED if len(target.members) < machine.ranks else 1
    return relayed * effort_of_planner(name, find("planner", name)) * machine.ranks**2


def usual() -> tuple[str, ...]:
    """The planners of the table that are quick, and that `tune` asks: none that searches, nor one like this."""
    abilities = {name: entry.can for name, entry in table("planner").items()}
    return tuple(
        name for name, can in abilities.items() if can.tuned and not (can.process or can.costly or can.composes)
    )


def _no_better(way: Way, limit: Bound) -> bool:
    """Whether nothing takes fewer steps or less time."""
    rate = limit.bytes_per_second
    return way.steps <= limit.latency_steps and rate is not None and way.alone * rate <= 1


def _best(candidates: Sequence[Way]) -> list[Way]:
    """Those that no other beats or equals in steps and in both times; of equals the first."""
    undominated: list[Way] = []
    figures = attrgetter("steps", "alone", "piped")
    for way in sorted(candidates, key=figures):
        if not any(all(a <= b for a, b in zip(figures(other), figures(way), strict=True)) for other in undominated):
            undominated.append(way)
    return undominated


def _group(whole: Topology, ranks: Longs) -> _Group:
    """With ranks numbered as the group lists them."""
    allocation = keep(whole, ranks.tolist())
    number = np.empty(allocation.topology.nodes, np.int64)
    number[: len(ranks)] = np.argsort(ranks)
    number[len(ranks) :] = np.arange(len(ranks), allocation.topology.nodes)
    machine, links = relabel(allocation.topology, number), np.array(allocation.links, np.int32)
    apart = _others_need(whole, ranks)[np.array(allocation.nodes, np.int64)]
    if apart.any():
        leads_out = np.flatnonzero(apart[allocation.topology.link_src] | apart[allocation.topology.link_dst])
        if len(leads_out) < machine.links:
            own = degrade(machine, links=leads_out.tolist(), remove=True, name=machine.name)
            if _joined(own):
                links = links[np.setdiff1d(np.arange(machine.links), leads_out)]
                joined_part = keep(own, range(own.ranks), name=machine.name)
                machine, links = joined_part.topology, links[list(joined_part.links)]
    if not _joined(machine):
        listed = ", ".join(map(str, ranks[:8].tolist())) + (", ..." if len(ranks) > 8 else "")
        raise Unsupported(
            f"planner compose: ranks {listed} of {whole.name} are a group whose ranks "
            "are not joined among themselves; give --option groups=... (4x2, 3+4), or use planner relay or trees"
        )
    label, key = _name(machine)
    kind = {value: i for i, value in enumerate(sorted({repr(t) for t in whole.types}))}
    types = np.array([kind[repr(t)] for t in whole.types])[whole.link_type[links]]
    order = np.lexsort((np.arange(machine.links), types, label[machine.link_dst], label[machine.link_src]))
    at = np.argsort(order)
    limits = sorted((str(limit.bandwidth), tuple(sorted(at[list(limit.links)].tolist()))) for limit in machine.limits)
    ends = label[machine.link_src[order]], label[machine.link_dst[order]], types[order]
    return _Group(machine, links, order, (key, machine.ranks, tuple(limits), *(column.tobytes() for column in ends)))


def _others_need(whole: Topology, ranks: Longs) -> Bools:
    """The switches that may lie on paths between ranks outside of a group."""
    if not whole.switches:
        return np.zeros(whole.nodes, np.bool_)
    needed = between(whole, ~np.isin(np.arange(whole.ranks), ranks))
    needed[: whole.ranks] = False
    return needed


def _name(machine: Topology) -> tuple[Longs, str]:
    """Nodes as they are numbered in all machines alike, ranks as they are; equal for such machines."""
    if not machine.switches:
        return np.arange(machine.nodes), ""
    label, key = canonical(machine, [*range(1, machine.ranks + 1), *[0] * machine.switches])
    named = label.astype(np.int64)
    named[: machine.ranks] = np.arange(machine.ranks)
    return named, key


def _images(first: _Group, other: _Group) -> Ints:
    """The links of the whole that links of `first` are in `other`."""
    out = np.empty(len(first.order), np.int32)
    out[first.order] = other.links[other.order]
    return out


def _joined(machine: Topology) -> bool:
    """Whether every rank reaches every other."""
    for src, dst in ((machine.link_src, machine.link_dst), (machine.link_dst, machine.link_src)):
        reached = np.zeros(machine.nodes, np.bool_)
        reached[0] = True
        before = 0
        while before < (now := int(reached.sum())):
            before = now
            reached[dst[reached[src]]] = True
        if not reached[: machine.ranks].all():
            return False
    return True
