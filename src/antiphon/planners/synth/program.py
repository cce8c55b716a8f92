"""SCCL's problem as a time-expanded linear program: the fewest rounds per part for a given number of steps.

Each block is cut into parts (chunks). All variables, rounds included, are divided by the number of parts: an amount of
1 is a block of weight 1, and a resource of capacity c carries at most the amount c * r_s in step s. search.py solves it
for lower bounds, flow.py with integral amounts of chunks. A commodity is a set of blocks that flow as one, such as all
blocks from one source; a bond is a bundle of parallel links.

Variables
    r_s          rounds of step s
    x[c, b, s]   amount of commodity c on bond b in step s
    f[c, d, b, s]  only for commodities with several destinations: the flow of c towards destination d

Constraints
    f <= x                      one copy on a bond serves all destinations behind it (multicast)
    conservation of f (or x)    at every rank and time; ranks may also keep data (a "waiting" arc to the next time).
                                At switches x itself is conserved, since a plain switch cannot copy
    sum of x over a resource    <= capacity * r_s, for every link bundle and shared limit

The objective is to minimize the sum of r_s. The minimum is a lower bound on R / parts for every algorithm with S steps,
because an integral algorithm, divided by its number of parts, is a feasible point. The program's size does not depend
on the number of chunks.

Example: broadcast from rank 0 on the path 0 - 1 - 2 with unit links. In S = 2 steps all data cross each link, one link
per step: r_1 = r_2 = 1, R / parts = 2. In S = 3 half of the data follow a step behind: r = 1/2 each, R / parts = 3/2.

Symmetry shrinks the program, since averaging a solution over the symmetry group gives another one. So all bonds of an
orbit (bonds that symmetries map to each other) share their variables, and only one commodity and one destination of
each orbit have any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.group import SymmetryGroup, orbits

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Commodity:
    """Kinds (blocks with equal holders and destinations) that flow as one: a single kind with several destinations, or
    kinds of one destination each with a common source or destination.

    `demand`: amount per destination, in blocks of weight 1. `supply`: what each holder must send, or None where holders
    send as much as is demanded.
    """

    holders: tuple[int, ...]
    supply: dict[int, int] | None
    demand: dict[int, int]
    kinds: tuple[int, ...]

    @property
    def spreading(self) -> bool:
        """Whether one copy can serve several destinations, so that flows per destination are needed."""
        return self.supply is None and len(self.kinds) == 1 and len(self.demand) > 1


def group_commodities(instance: Instance) -> list[Commodity]:
    """Merge kinds into commodities: kinds of one destination by holders, or by destination if that makes fewer."""
    by_source: dict[tuple[int, ...], list[int]] = defaultdict(list)
    by_end: dict[int, list[int]] = defaultdict(list)
    # have_single_holders: whether every kind of one destination has one holder
    commodity_list, have_single_holders = [], True
    for i, kind in enumerate(instance.kinds):
        if len(kind.dests) > 1:
            commodity_list.append(
                Commodity(kind.holders, supply=None, demand=dict.fromkeys(kind.dests, kind.weight), kinds=(i,))
            )
        else:
            by_source[kind.holders].append(i)
            by_end[kind.dests[0]].append(i)
            have_single_holders &= len(kind.holders) == 1
    # by destination: the holders have different data, so each has a supply of its own
    weight = [kind.weight for kind in instance.kinds]
    if have_single_holders and len(by_end) < len(by_source):
        for end, members in by_end.items():
            supply = {instance.kinds[i].holders[0]: weight[i] for i in members}
            commodity_list.append(Commodity(tuple(supply), supply, {end: sum(supply.values())}, tuple(members)))
    else:
        for source, members in by_source.items():
            demand = {instance.kinds[i].dests[0]: weight[i] for i in members}
            commodity_list.append(Commodity(source, supply=None, demand=demand, kinds=tuple(members)))
    return commodity_list


@dataclass(eq=False)
class _Rows:
    """Sparse matrix under construction, one row at a time."""

    row: list[Table] = field(default_factory=list)
    column: list[Table] = field(default_factory=list)
    value: list[NDArray[np.float64]] = field(default_factory=list)
    right: list[float] = field(default_factory=list)  # right-hand side

    def add_row(self, plus: Table, minus: Table, right: float = 0.0) -> int:
        """Append the row `sum of plus - sum of minus` (variable numbers; -1 is ignored) and return its number.

        A row without variables is left out (-1) if its right side is 0. Else it stays, as it makes the program
        infeasible.
        """
        plus, minus = plus[plus >= 0], minus[minus >= 0]
        number = len(self.right)
        if not len(plus) + len(minus) and not right:
            return -1
        self.row.append(np.full(len(plus) + len(minus), number))
        self.column.append(np.concatenate([plus, minus]))
        self.value.append(np.repeat([1.0, -1.0], [len(plus), len(minus)]))
        self.right.append(right)
        return number

    def to_matrix(self, columns: int) -> Any:
        """Return the rows as a sparse matrix with this number of columns."""
        from scipy.sparse import csr_array

        if not self.right:
            return csr_array((0, columns))
        value, row, column = (np.concatenate(arrays) for arrays in (self.value, self.row, self.column))
        return csr_array((value, (row, column)), shape=(len(self.right), columns))


@dataclass(frozen=True, eq=False)
class Orbit:
    """An orbit of commodities, represented by number `commodity`.

    `members`: by number of each commodity of the orbit, a group element that maps the representative to it. `keepers`:
    the elements that fix the representative.
    """

    commodity: int
    members: dict[int, int]
    keepers: Table


@dataclass(frozen=True, eq=False)
class Share:
    """The rows "flow <= amount" of one destination of an orbit of commodities; linear.py reads their dual values.

    They begin at row `first` of the inequalities, one per entry of `bond` and `step`. `orbit_of`: per bond, the least
    bond of its orbit under the symmetries that fix the commodity and the destination.
    """

    orbit: int
    dest: int
    first: int
    bond: Table
    step: Table
    orbit_of: Table


@dataclass(eq=False)
class StepProgram:
    """The linear program for one number of steps, built once: rows of `inequalities` are <= 0, rows of
    `equalities` are equal to `equality_values`.

    The first variables are the rounds r_s. O(steps * bonds * destinations) after symmetry reduction.
    """

    instance: Instance
    steps: int
    group: SymmetryGroup

    def __post_init__(self) -> None:
        self.commodities = group_commodities(self.instance)
        self.orbits = _orbits_of(self.commodities, self.group)
        self.resource_orbit = orbits(self.group.resources)
        self.resources = np.unique(self.resource_orbit)
        self._equal_rows, self._fits_rows = _Rows(), _Rows()
        self.amounts: list[Table] = []  # per orbit of commodities, the variable of every bond and step, or -1
        self.shares: list[Share] = []
        self.switch_rows: list[tuple[int, int, int, int]] = []  # (orbit, switch, step, row)
        self.variables = self.steps
        # load rows first, so that load_row can compute their number: -capacity * r_s + (loads, added below) <= 0
        for s in range(self.steps):
            for r in self.resources.tolist():
                # so far `value` has one array per row
                number = self._fits_rows.add_row(np.zeros(0, np.int64), np.array([s]))
                self._fits_rows.value[number] *= float(self.instance.capacity[r])
        self._loaded_by = [self._bonds_of(r) for r in self.resources.tolist()]
        for number in range(len(self.orbits)):
            self._add_commodity(number)
        self.equalities = self._equal_rows.to_matrix(self.variables)
        self.equality_values = np.array(self._equal_rows.right)
        self.inequalities = self._fits_rows.to_matrix(self.variables)

    def load_row(self, index: int, step: int) -> int:
        """Return the row that bounds the load of `self.resources[index]` in this step."""
        return step * len(self.resources) + index

    def _bonds_of(self, resource: int) -> Table:
        """Return the bonds that load a resource: a bond itself, or all bonds under a shared limit."""
        if resource < len(self.instance.bonds):
            return np.array([resource])
        return np.array([b for b, limits in enumerate(self.instance.limits_of) if resource in limits])

    def _number_variables(self, orbit_of: Table, used: NDArray[np.bool_]) -> Table:
        """Number a new variable for every orbit of bonds and step in use; -1 elsewhere.

        `orbit_of`: by bond, the least bond of its orbit, which represents it. `used`: bonds x steps.
        """
        in_use = np.zeros(used.shape, bool)
        bond, step = np.nonzero(used)
        in_use[orbit_of[bond], step] = True
        number = np.full(used.shape, -1, np.int64)
        number.T[in_use.T] = self.variables + np.arange(int(in_use.sum()))  # numbered step by step
        self.variables += int(in_use.sum())
        return number[orbit_of]  # every bond has the variables of the bond that represents it

    def _useful_steps(self, commodity: Commodity, ends: Sequence[int]) -> NDArray[np.bool_]:
        """Return a table bonds x steps: whether data can have reached the bond before this step, and can still reach
        one of the destinations `ends` after it.
        """
        instance, distance = self.instance, self.instance.distance
        first_step = distance[list(commodity.holders)].min(axis=0)[instance.tail]
        steps_to_end = distance[:, list(ends)].min(axis=1)[instance.head]
        # arriving at a rank takes a step; passing a switch does not
        last_step = self.steps - steps_to_end - (instance.head < instance.ranks)
        time = np.arange(self.steps)
        useful = (first_step[:, None] <= time) & (time <= last_step[:, None])
        # Nothing needs to return to a holder (with `supply`, holders have different data, and may relay those of
        # others), or to leave the only destination.
        if commodity.supply is None:
            useful &= ~np.isin(instance.head, commodity.holders)[:, None]
        if len(ends) == 1:
            useful &= (instance.tail != ends[0])[:, None]
        return np.asarray(useful)

    def _add_commodity(self, number: int) -> None:
        """Add the variables and rows of one orbit of commodities."""
        orbit = self.orbits[number]
        commodity = self.commodities[orbit.commodity]
        keepers = self.group.take(orbit.keepers)
        ends = list(commodity.demand)
        amount = self._number_variables(orbits(keepers.bonds), self._useful_steps(commodity, ends))
        self.amounts.append(amount)
        for index, bonds in enumerate(self._loaded_by):
            # every member loads the resource with what the representative moves over the preimage of its bonds
            preimages = np.array([np.argsort(self.group.bonds[e])[bonds] for e in orbit.members.values()])
            for s in range(self.steps):
                moved = amount[preimages, s].ravel()
                moved = moved[moved >= 0]
                # further entries of a row that exists
                self._fits_rows.row.append(np.full(len(moved), self.load_row(index, s)))
                self._fits_rows.column.append(moved)
                self._fits_rows.value.append(np.ones(len(moved)))
        if not commodity.spreading:
            self._add_conservation(commodity, commodity.demand, keepers, amount)
            return
        # a switch cannot copy: the amount itself, not only each destination's flow, is conserved there
        for switch in np.unique(orbits(keepers.nodes)[self.instance.ranks :]).tolist():
            for s in range(self.steps):
                row = self._equal_rows.add_row(
                    amount[self.instance.head == switch, s], amount[self.instance.tail == switch, s]
                )
                if row >= 0:
                    self.switch_rows.append((number, switch, s, row))
        # one flow per orbit of destinations, bounded by the amount on every bond and step
        end_orbit = orbits(keepers.nodes)
        for dest in np.unique(end_orbit[ends]).tolist():
            fixing = keepers.take(np.flatnonzero(keepers.nodes[:, dest] == dest))
            orbit_of = orbits(fixing.bonds)
            flow = self._number_variables(orbit_of, self._useful_steps(commodity, [dest]))
            # a row per orbit: for the bonds that represent theirs
            bond, step = np.nonzero((flow >= 0) & (orbit_of == np.arange(len(orbit_of)))[:, None])
            first = len(self._fits_rows.right)
            for b, s in zip(bond.tolist(), step.tolist(), strict=True):
                self._fits_rows.add_row(flow[b, s : s + 1], amount[b, s : s + 1])
            self.shares.append(Share(number, dest, first, bond, step, orbit_of))
            self._add_conservation(commodity, {dest: commodity.demand[dest]}, fixing, flow)

    def _add_conservation(
        self, commodity: Commodity, demand: dict[int, int], keepers: SymmetryGroup, amount: Table
    ) -> None:
        """Add flow conservation at one node of every orbit, at every time. Ranks may wait; switches may not. Time t is
        after t steps.

        `demand`: amount per destination. `amount`: the variable of every bond and step, or -1. `keepers`: symmetries
        that keep this flow.
        """
        instance, steps = self.instance, self.steps
        # by node: the first time at which data can be there, and the last from which they still reach a destination
        first = instance.distance[list(commodity.holders)].min(axis=0)
        last = steps - instance.distance[:, list(demand)].min(axis=1)
        no_variables = np.zeros(0, np.int64)
        for node in np.unique(orbits(keepers.nodes)).tolist():
            into, out = np.flatnonzero(instance.head == node), np.flatnonzero(instance.tail == node)
            if node >= instance.ranks:
                for s in range(steps):
                    self._equal_rows.add_row(amount[into, s], amount[out, s])
                continue
            # waiting: the variable of what stays from one time to the next
            is_source, waiting = node in commodity.holders, no_variables
            for time in range(int(first[node]), int(last[node]) + 1):
                coming = [waiting, amount[into, time - 1] if time else no_variables]
                leaving = [amount[out, time] if time < steps else no_variables]
                if time < last[node]:
                    waiting = np.array([self.variables])
                    self.variables += 1
                    leaving.append(waiting)
                # an unlimited source: what leaves it at time 0 is free
                if is_source and time == 0 and commodity.supply is None:
                    continue
                # what comes + supplied = what leaves + demanded
                supplied = commodity.supply[node] if is_source and time == 0 and commodity.supply is not None else 0
                demanded = demand.get(node, 0) if time == steps else 0
                self._equal_rows.add_row(np.concatenate(coming), np.concatenate(leaving), float(demanded - supplied))


def _orbits_of(commodities: list[Commodity], group: SymmetryGroup) -> list[Orbit]:
    """Group commodities into orbits; the first of each orbit represents it."""
    commodity_of_kind = np.empty(group.kinds.shape[1], np.int64)
    for number, commodity in enumerate(commodities):
        commodity_of_kind[list(commodity.kinds)] = number
    orbit_list: list[Orbit] = []
    done: set[int] = set()
    for number, commodity in enumerate(commodities):
        if number in done:
            continue
        # a symmetry maps commodities to commodities, so one kind shows where it goes
        images = commodity_of_kind[group.kinds[:, commodity.kinds[0]]]
        members, element = np.unique(images, return_index=True)
        done.update(members.tolist())
        keepers = np.flatnonzero(images == number)
        orbit_list.append(Orbit(number, dict(zip(members.tolist(), element.tolist(), strict=True)), keepers))
    return orbit_list
