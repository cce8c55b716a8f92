"""What so many steps take at least: a linear program that no broadcast gets around, latency left out.

A plan sends data along ways from rank to rank, through switches alone. Let x(p, s) be what it sends along way p in step
s, and t(s) what that takes. For every rank v follow each byte back from v to the root: of all bytes so much comes along
way p in step s, f(v, p, s). Then

    the sum of x(p, s) over the ways through a link <= its width times t(s)
    f(v, p, s) <= x(p, s), as what is sent once is sent once, to whomever it goes on
    what f(v) takes out of a rank in a step it brought there in earlier steps; all of it leaves the root and ends at v

The least sum of t is what N steps take at least, whatever the plan. Symmetries that keep the root take plans to plans,
and the mean of all images is a solution, too: so ways are counted by orbits, ranks v one of each orbit, and of v the
ways by orbits of the symmetries that keep v as well. This holds of plans in which switches only forward, and says
nothing of shared limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.symmetry import automorphisms, link_map
from antiphon.core.topology import Topology

MOST_WAYS, MOST_VARIABLES, NARROW = 10_000, 20_000, 1e-6
Longs = NDArray[np.int64]
Way = tuple[int, int, tuple[int, ...]]  # from a rank to a rank by links


@dataclass(frozen=True, eq=False)
class Ways:
    """`alike`: of every way its orbit; `ends`: ranks v, one of each orbit, with the orbits of ways and of ranks around
    each."""

    machine: Topology
    every: list[Way]
    alike: Longs
    ends: list[tuple[int, Longs, Longs]]

    def variables(self, steps: int) -> int:
        return steps * (1 + _many(self.alike) + sum(_many(ways) + _many(ranks) for _, ways, ranks in self.ends))


def _many(orbits: Longs) -> int:
    return len(np.unique(orbits))


def ways(machine: Topology) -> Ways | None:
    """Out of rank 0; None where nothing is said."""
    if machine.limits:
        return None
    every = _every(machine)
    if len(every) > MOST_WAYS:
        return None
    colour = [2, *[0] * (machine.ranks - 1), *[1] * machine.switches]
    ranks, alike = _orbits(machine, colour, every)
    ends = []
    for end in np.unique(ranks[1:], return_index=True)[1] + 1:
        colour[end] = 3
        around, mine = _orbits(machine, colour, every)
        ends.append((int(end), mine, around))
        colour[end] = 0
    return Ways(machine, every, alike, ends)


def _every(machine: Topology) -> list[Way]:
    leaving: list[list[int]] = [[] for _ in range(machine.nodes)]
    for link, tail in enumerate(machine.link_src.tolist()):
        leaving[tail].append(link)
    found: list[Way] = []
    for start in range(machine.ranks):
        todo: list[tuple[int, tuple[int, ...], frozenset[int]]] = [(start, (), frozenset())]
        while todo and len(found) <= MOST_WAYS:
            node, path, seen = todo.pop()
            for link in leaving[node]:
                head = int(machine.link_dst[link])
                if head >= machine.ranks and head not in seen:
                    todo.append((head, (*path, link), seen | {head}))
                elif head < machine.ranks and head != start:
                    found.append((start, head, (*path, link)))
    return found


def _orbits(machine: Topology, colour: Sequence[int], every: Sequence[Way]) -> tuple[Longs, Longs]:
    """Of ranks and of ways, by symmetries that keep colours."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    place = {path: number for number, (_, _, path) in enumerate(every)}
    size, ends = machine.nodes + len(every), []
    for one in automorphisms(machine, list(colour)):
        link = link_map(machine, one[: machine.nodes]).tolist()
        ends += list(enumerate(one[: machine.nodes].tolist()))
        ends += [(machine.nodes + n, machine.nodes + place[tuple(link[x] for x in path)])
                 for n, (_, _, path) in enumerate(every)]  # fmt: skip
    first, then = np.array(ends, np.int64).reshape(-1, 2).T
    joined = coo_array((np.ones(len(first)), (first, then)), shape=(size, size))
    orbit = np.asarray(connected_components(joined, directed=False)[1], np.int64)
    return orbit[: machine.ranks], orbit[machine.nodes :]


class _Rows:
    """Rows of a linear program, one for each step: of each term its variables by step, and a factor."""

    def __init__(self, steps: int) -> None:
        self.steps, self.count = steps, 0
        self.entries: list[tuple[Longs, Longs, NDArray[np.float64]]] = []

    def add(self, *terms: tuple[Longs, float], late: Longs | None = None) -> None:
        """`late`: variables of which that of the step before counts, with -1."""
        for columns, factor in terms:
            self._put(np.arange(self.steps), columns, factor)
        if late is not None:
            self._put(np.arange(1, self.steps), late[:-1], -1.0)
        self.count += self.steps

    def total(self, *terms: tuple[Longs, float]) -> None:
        """One row for all steps."""
        for columns, factor in terms:
            self._put(np.zeros(self.steps, np.int64), columns, factor)
        self.count += 1

    def _put(self, rows: Longs, columns: Longs, factor: float) -> None:
        self.entries.append((self.count + rows, columns, np.full(len(columns), factor)))

    def matrix(self, columns: int) -> object:
        from scipy.sparse import csr_array

        row, column, value = (np.concatenate(some) for some in zip(*self.entries, strict=True))
        return csr_array((value, (row, column)), shape=(self.count, columns))


def _counted(orbits: Longs) -> list[tuple[int, int]]:
    """Each orbit, and how often.

    >>> _counted(np.array([3, 5, 3]))
    [(3, 2), (5, 1)]
    """
    some, times = np.unique(orbits, return_counts=True)
    return list(zip(some.tolist(), times.tolist(), strict=True))


def least(known: Ways, steps: int) -> float:
    """Seconds per byte that so many steps take at least; 0 where nothing is said: too few steps, a program too large,
    or links a millionth as wide as others, which the solver would not see."""
    from scipy.optimize import linprog

    machine = known.machine
    width = np.array([float(machine.bandwidth(link)) for link in range(machine.links)])
    if known.variables(steps) > MOST_VARIABLES or width.min() < NARROW * width.max():
        return 0.0
    tail, head = (np.array([way[at] for way in known.every]) for at in (0, 1))
    fresh = iter(np.arange(known.variables(steps)).reshape(-1, steps))
    clock = next(fresh)
    sent = {orbit: next(fresh) for orbit in np.unique(known.alike).tolist()}
    upper, equal, ones, nothing = _Rows(steps), _Rows(steps), [], []
    crossing: dict[tuple[tuple[int, int], ...], float] = {}
    through: list[dict[int, int]] = [{} for _ in range(machine.links)]
    for orbit, (_, _, path) in zip(known.alike.tolist(), known.every, strict=True):
        for link in path:
            through[link][orbit] = through[link].get(orbit, 0) + 1
    for link, some in enumerate(through):
        key = tuple(sorted(some.items()))
        crossing[key] = min(crossing.get(key, np.inf), width[link] / width.max())
    for orbits, wide in crossing.items():
        upper.add(*((sent[orbit], times) for orbit, times in orbits), (clock, -wide))
    for end, mine, around in known.ends:
        flow = {orbit: next(fresh) for orbit in np.unique(mine).tolist()}
        for orbit, one in np.column_stack(np.unique(mine, return_index=True)).tolist():
            upper.add((flow[orbit], 1), (sent[int(known.alike[one])], -1))
            if head[one] == 0 or tail[one] == end:
                nothing.append(flow[orbit])
        for rank in np.unique(around, return_index=True)[1].tolist():
            stored = next(fresh)
            into, out = ([(flow[orbit], float(times)) for orbit, times in _counted(mine[side == rank])]
                         for side in (head, tail))  # fmt: skip
            if rank == 0:
                equal.total(*out)
                ones.append(equal.count - 1)
            elif rank != end:
                equal.add((stored, 1), *((some, -times) for some, times in into), *out, late=stored)
                upper.add(*out, late=stored)
                nothing.append(stored[-1:])
    right, most = np.zeros(equal.count), np.full(known.variables(steps), np.inf)
    right[ones] = 1
    most[np.concatenate(nothing)] = 0
    cost = np.zeros(len(most))
    cost[clock] = 1
    found = linprog(
        cost, A_ub=upper.matrix(len(cost)), b_ub=np.zeros(upper.count), A_eq=equal.matrix(len(cost)), b_eq=right,
        bounds=np.column_stack([np.zeros(len(cost)), most]), method="highs-ipm",
    )  # fmt: skip
    return float(found.fun) / width.max() if found.status == 0 else 0.0
