"""SCCL's problem as a linear program over time: the fewest rounds per part, for a number of steps.

Variables: rounds r_s; per commodity the amount x on every bond in every step; for chunks with several destinations
a flow f per destination that must fit under x, since one move serves them all (at a switch, which cannot copy,
x itself is conserved). Ranks keep what they have. All that moves over a resource in a step fits in r_s rounds.
The size does not depend on the number of chunks. Averaged over symmetries it shrinks: variables are shared by
orbits, and of commodities and destinations that are alike only one is held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.group import Renamings, orbits

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Commodity:
    """Kinds that flow as one: a kind with several destinations, or kinds with one each and one source or end.

    `supply`: what each holder must send, or None where holders send what is asked of them.
    """

    holders: tuple[int, ...]
    supply: dict[int, int] | None
    demand: dict[int, int]
    kinds: tuple[int, ...]

    @property
    def spreading(self) -> bool:
        return self.supply is None and len(self.kinds) == 1 and len(self.demand) > 1


def commodities(instance: Instance) -> list[Commodity]:
    """Kinds with one destination are joined by source, or by end where that makes fewer."""
    by_source: dict[tuple[int, ...], list[int]] = defaultdict(list)
    by_end: dict[int, list[int]] = defaultdict(list)
    commodity_list, simple = [], True
    for i, kind in enumerate(instance.kinds):
        if len(kind.dests) > 1:
            commodity_list.append(Commodity(kind.holders, None, dict.fromkeys(kind.dests, kind.weight), (i,)))
        else:
            by_source[kind.holders].append(i)
            by_end[kind.dests[0]].append(i)
            simple &= len(kind.holders) == 1
    weight = [kind.weight for kind in instance.kinds]
    if simple and len(by_end) < len(by_source):
        for end, members in by_end.items():
            supply = {instance.kinds[i].holders[0]: weight[i] for i in members}
            commodity_list.append(Commodity(tuple(supply), supply, {end: sum(supply.values())}, tuple(members)))
    else:
        for source, members in by_source.items():
            demand = {instance.kinds[i].dests[0]: weight[i] for i in members}
            commodity_list.append(Commodity(source, None, demand, tuple(members)))
    return commodity_list


@dataclass(eq=False)
class _Rows:
    """Rows of a sparse matrix, gathered piece by piece."""

    row: list[Table] = field(default_factory=list)
    column: list[Table] = field(default_factory=list)
    value: list[NDArray[np.float64]] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, plus: Table, minus: Table, right: float = 0.0) -> int:
        """One row: the sum of some variables less that of others; -1 stands for no variable. Returns its number."""
        plus, minus = plus[plus >= 0], minus[minus >= 0]
        number = len(self.right)
        if not len(plus) + len(minus) and not right:
            return -1
        self.row.append(np.full(len(plus) + len(minus), number))
        self.column.append(np.concatenate([plus, minus]))
        self.value.append(np.repeat([1.0, -1.0], [len(plus), len(minus)]))
        self.right.append(right)
        return number

    def matrix(self, columns: int) -> Any:
        from scipy.sparse import csr_array

        if not self.right:
            return csr_array((0, columns))
        flat = [np.concatenate(arrays) for arrays in (self.value, self.row, self.column)]
        return csr_array((flat[0], (flat[1], flat[2])), shape=(len(self.right), columns))


@dataclass(frozen=True, eq=False)
class Orbit:
    """A commodity that stands for all that are alike: `members` (with an element that leads there), its keepers."""

    commodity: int
    members: dict[int, int]
    keepers: Table


@dataclass(frozen=True, eq=False)
class Share:
    """Rows "flow <= amount" of one destination: from `first` on, one per (bond, step); and the bonds' orbits."""

    orbit: int
    dest: int
    first: int
    bond: Table
    step: Table
    orbit_of: Table
    size: int  # of the destination's orbit


@dataclass(eq=False)
class StepProgram:
    """The linear program for one number of steps, built once: O(steps * bonds * destinations) after symmetry."""

    instance: Instance
    steps: int
    group: Renamings

    def __post_init__(self) -> None:
        self.commodities = commodities(self.instance)
        self.orbits = _orbits_of(self.commodities, self.group)
        self.resource_orbit = orbits(self.group.resources)
        self.resources = np.unique(self.resource_orbit)
        self._held, self._under = _Rows(), _Rows()
        self.amounts: list[Table] = []  # per orbit of commodities, the variable of every bond and step, or -1
        self.shares: list[Share] = []
        self.switch_rows: list[tuple[int, int, int, int]] = []  # (orbit, switch, step, row)
        self.variables = self.steps
        for s in range(self.steps):
            for r in self.resources.tolist():
                number = self._under.add(np.zeros(0, np.int64), np.array([s]))
                self._under.value[number] *= float(self.instance.capacity[r])
        self._loaded_by = [self._bonds_of(r) for r in self.resources.tolist()]
        for number in range(len(self.orbits)):
            self._commodity(number)
        self.equal = self._held.matrix(self.variables)
        self.right = np.array(self._held.right)
        self.fits = self._under.matrix(self.variables)

    def load_row(self, place: int, step: int) -> int:
        """The row of "what moves over resource self.resources[place] in this step fits"."""
        return step * len(self.resources) + place

    def _bonds_of(self, resource: int) -> Table:
        if resource < len(self.instance.bonds):
            return np.array([resource])
        return np.array([b for b, limits in enumerate(self.instance.limits_of) if resource in limits])

    def _numbered(self, orbit_of: Table, used: NDArray[np.bool_]) -> Table:
        """A variable per orbit of bonds and step in use; -1 elsewhere. `used`: bonds x steps."""
        which = np.zeros(used.shape, bool)
        bond, step = np.nonzero(used)
        which[orbit_of[bond], step] = True
        number = np.full(used.shape, -1, np.int64)
        number.T[which.T] = self.variables + np.arange(int(which.sum()))
        self.variables += int(which.sum())
        return number[orbit_of]

    def _window(self, commodity: Commodity, ends: Sequence[int]) -> NDArray[np.bool_]:
        """Which bond can be of use in which step: reached in time, and in time for some end. bonds x steps."""
        instance, far = self.instance, self.instance.distance
        early = far[list(commodity.holders)].min(axis=0)[instance.tail]
        steps_to_end = far[:, list(ends)].min(axis=1)[instance.head]
        late = self.steps - steps_to_end - (instance.head < instance.ranks)
        time = np.arange(self.steps)
        useful = (early[:, None] <= time) & (time <= late[:, None])
        if commodity.supply is None:
            useful &= ~np.isin(instance.head, commodity.holders)[:, None]
        if len(ends) == 1:
            useful &= (instance.tail != ends[0])[:, None]
        return np.asarray(useful)

    def _commodity(self, number: int) -> None:
        orbit = self.orbits[number]
        commodity = self.commodities[orbit.commodity]
        keepers = self.group.take(orbit.keepers)
        ends = list(commodity.demand)
        amount = self._numbered(orbits(keepers.bonds), self._window(commodity, ends))
        self.amounts.append(amount)
        for place, bonds in enumerate(self._loaded_by):
            back = np.array([np.argsort(self.group.bonds[e])[bonds] for e in orbit.members.values()])
            for s in range(self.steps):
                moved = amount[back, s].ravel()
                moved = moved[moved >= 0]
                self._under.row.append(np.full(len(moved), self.load_row(place, s)))
                self._under.column.append(moved)
                self._under.value.append(np.ones(len(moved)))
        if not commodity.spreading:
            self._flow(commodity, commodity.demand, keepers, amount)
            return
        for switch in np.unique(orbits(keepers.nodes)[self.instance.ranks :]).tolist():
            for s in range(self.steps):
                row = self._held.add(amount[self.instance.head == switch, s], amount[self.instance.tail == switch, s])
                if row >= 0:
                    self.switch_rows.append((number, switch, s, row))
        end_orbit = orbits(keepers.nodes)
        for dest in np.unique(end_orbit[ends]).tolist():
            staying = keepers.take(np.flatnonzero(keepers.nodes[:, dest] == dest))
            orbit_of = orbits(staying.bonds)
            flow = self._numbered(orbit_of, self._window(commodity, [dest]))
            bond, step = np.nonzero((flow >= 0) & (orbit_of == np.arange(len(orbit_of)))[:, None])
            first = len(self._under.right)
            for b, s in zip(bond.tolist(), step.tolist(), strict=True):
                self._under.add(flow[b, s : s + 1], amount[b, s : s + 1])
            size = int(np.count_nonzero(end_orbit == dest))
            self.shares.append(Share(number, dest, first, bond, step, orbit_of, size))
            self._flow(commodity, {dest: commodity.demand[dest]}, staying, flow)

    def _flow(self, commodity: Commodity, demand: dict[int, int], keepers: Renamings, amount: Table) -> None:
        """Conservation at one node of every orbit, at every time; ranks may wait."""
        instance, steps = self.instance, self.steps
        first = instance.distance[list(commodity.holders)].min(axis=0)
        last = steps - instance.distance[:, list(demand)].min(axis=1)
        none = np.zeros(0, np.int64)
        for node in np.unique(orbits(keepers.nodes)).tolist():
            into, out = np.flatnonzero(instance.head == node), np.flatnonzero(instance.tail == node)
            if node >= instance.ranks:
                for s in range(steps):
                    self._held.add(amount[into, s], amount[out, s])
                continue
            source, waiting = node in commodity.holders, none
            for time in range(int(first[node]), int(last[node]) + 1):
                coming = [waiting, amount[into, time - 1] if time else none]
                leaving = [amount[out, time] if time < steps else none]
                if time < last[node]:
                    waiting = np.array([self.variables])
                    self.variables += 1
                    leaving.append(waiting)
                if source and time == 0 and commodity.supply is None:
                    continue
                supplied = commodity.supply[node] if source and time == 0 and commodity.supply is not None else 0
                demanded = demand.get(node, 0) if time == steps else 0
                self._held.add(np.concatenate(coming), np.concatenate(leaving), float(demanded - supplied))


def _orbits_of(all_of: list[Commodity], group: Renamings) -> list[Orbit]:
    of_kind = np.empty(group.kinds.shape[1], np.int64)
    for number, commodity in enumerate(all_of):
        of_kind[list(commodity.kinds)] = number
    orbit_list: list[Orbit] = []
    done: set[int] = set()
    for number, commodity in enumerate(all_of):
        if number in done:
            continue
        images = of_kind[group.kinds[:, commodity.kinds[0]]]
        members, element = np.unique(images, return_index=True)
        done.update(members.tolist())
        keepers = np.flatnonzero(images == number)
        orbit_list.append(Orbit(number, dict(zip(members.tolist(), element.tolist(), strict=True)), keepers))
    return orbit_list
