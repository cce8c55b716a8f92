"""How much of a plan begins in which step: what a pipeline of equal pieces wastes at its ends, uneven ones need not.

Given are plans of one collective (deep ones that are fast, shallow ones that are soon done), each a schedule whose
chunks go through it once. A plan begins anew in every step, each time with a part of the data; how large a part is the
answer of a linear program, which asks for the least time of N steps, each as long as its fullest link or shared limit.
Chunks of one class (where there are few: every chunk) begin when they like.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Longs
from antiphon.core.loads import loads
from antiphon.core.schedule import MAX_DENOMINATOR, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.ends import latency_by_step
from antiphon.planners.shared.parts import LEVELS, LOSS, joined, still
from antiphon.planners.shared.rounding import LONG, NOTHING, longest_run, simple, whole_alike, whole_numbers

Floats = NDArray[np.float64]
MOST_ALONE = 64  # chunks up to which each is a class
MOST_CELLS = 50_000  # of a linear program
ALIKE = 0.01  # of the greatest load of a plan: kinds of resources that differ by less are one to the program
EDGE = 12  # steps beyond the deepest in which what begins is still its own: with 4, 0.7 % of the time is lost at worst
MANY = 1000  # variables from which the interior point method (then a basis, as ever) takes half the time


@dataclass(frozen=True, eq=False)
class Class:
    """Chunks of a plan that begin together; `load[kind, step]`: seconds per byte of nbytes, by kinds of resources;
    `latency`: that of the slowest way taken in each step."""

    plan: int
    chunks: Longs
    load: Floats
    latency: Floats

    @property
    def steps(self) -> int:
        return self.load.shape[1]


Tied = tuple[Class, tuple[int, ...]]  # classes that begin together, as one, and their numbers


@dataclass(frozen=True, eq=False)
class Sizes:
    """Per class what begins in each step, in whole parts of `whole`; seconds per byte of nbytes, and of latency."""

    parts: NDArray[np.int64]
    whole: int
    time: float
    latency: float


class _Line:
    """Steps as the linear program sees them: in the middle of many every step is like the others, one to the program.

    While pipelines fill and empty, every step is its own. `kind`: of every step; `shown`: whether its loads stand for
    those of its kind.
    """

    def __init__(self, steps: int, deepest: int) -> None:
        """`deepest`: the most steps that anything takes."""
        self.steps, self.edge = steps, deepest + EDGE
        low, high = self.edge + deepest - 1, steps - deepest + 1 - self.edge
        every = np.arange(steps)
        if high - low < 2:
            self.edge = steps
            low = high = steps
        self.kind = np.where(every < low, every, np.maximum(every - (high - low) + 1, low)) if low < steps else every
        self.shown: Bools = (every <= low) | (every >= high)
        self.kinds = int(self.kind[-1]) + 1

    def begins(self, depth: int) -> Longs:
        """Of what takes so many steps, by the step in which it begins: the number of the variable for how much."""
        every = np.arange(self.steps - depth + 1)
        last = len(every) - self.edge
        if last <= self.edge:
            return every
        return np.where(every < self.edge, every, np.maximum(every - (last - self.edge) + 1, self.edge))


class Uneven:
    """Plans taken apart into classes, with what each loads."""

    def __init__(self, plans: Sequence[Schedule], topology: Topology, whole: bool = False, least: int = 1) -> None:
        """`whole`: the chunks of a plan take as many steps, and begin together. `least`: so many of the first plans
        are worth a linear program, not fewer."""
        self.least = least
        self._known: dict[tuple[int, tuple[int, int]], Sizes | None] = {}
        self.plans = [replace(plan, pieces=1) for plan in plans]
        found = [one for n, plan in enumerate(self.plans) for one in _classes(n, plan, topology, whole)]
        self.classes = _by_kinds(found) if found else []
        self.some = _apart(self.classes)
        ways = [float(one.latency.min()) for one in self.classes]
        self.quickest = min(ways, default=0.0) * (1 + NOTHING)

    def deepest(self, plan: int) -> int:
        return max((one.steps for one in self.classes if one.plan == plan), default=0)

    @property
    def least_steps(self) -> int:
        return min((self.deepest(plan) for plan in range(len(self.plans))), default=0)

    def cells(self, one: Class, steps: int) -> int:
        """Entries of the linear program."""
        if one.steps > steps:
            return 0
        line = _Line(steps, max(other.steps for other in self.classes))
        return int((one.load[self.some] > 0).sum()) * (int(line.begins(one.steps)[-1]) + 1)

    def rows(self, sizes: Sizes) -> int:
        """How many transfers that will be."""
        per = [int(np.isin(self.plans[one.plan].chunk, one.chunks).sum()) for one in self.classes]
        return sum(rows * len(begun) for rows, begun in zip(per, _begun(sizes.parts), strict=True))

    def sizes(self, steps: int, quiet: tuple[int, int] = (0, 0)) -> Sizes | None:
        """The best for so many steps; None where no plan is done in them, or the program is too large or not solved, or
        where even the coarsest parts of the chunks would have no denominator.

        Where it would be too large classes that take as many steps begin together, then the last plans are left out.
        `quiet`: so many steps at the beginning and at the end in which nothing takes a way slower than the quickest.
        Kept: it serves all sizes.
        """
        if (steps, quiet) not in self._known:
            self._known[steps, quiet] = self._found(steps, quiet)
        return self._known[steps, quiet]

    def _found(self, steps: int, quiet: tuple[int, int]) -> Sizes | None:
        exact = None
        for some in (self._alone, self._tied):
            usable = self._usable(steps, some)
            if usable:
                exact = self._solved(steps, usable, [one for one in some if one[0].plan in usable], quiet)
                break
        if exact is None:
            return None
        time, made = self._time(exact, steps), None
        for whole in [*simple(exact), *LEVELS]:
            if self._common * whole >= MAX_DENOMINATOR:
                continue
            rounded = self._rounded(exact, whole)
            made = Sizes(rounded, whole, self._time(rounded / whole, steps), self._latency(rounded, steps))
            if made.time <= time * (1 + LOSS):
                break
        return made

    @cached_property
    def _common(self) -> int:
        """Denominator of the chunks of all plans."""
        return math.lcm(*(plan.chunks.denominator for plan in self.plans))

    @cached_property
    def _alone(self) -> list[Tied]:
        return [(one, (number,)) for number, one in enumerate(self.classes)]

    @cached_property
    def _tied(self) -> list[Tied]:
        """Classes of a plan that take as many steps begin together."""
        some: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number, one in enumerate(self.classes):
            some[one.plan, one.steps].append(number)
        out = []
        for numbers in some.values():
            load = np.sum([self.classes[n].load for n in numbers], axis=0)
            late = np.max([self.classes[n].latency for n in numbers], axis=0)
            out.append((replace(self.classes[numbers[0]], load=load, latency=late), tuple(numbers)))
        return out

    def _usable(self, steps: int, some: Sequence[Tied]) -> list[int]:
        """Plans that are done in so many steps, as many as a linear program has room for."""
        usable: list[int] = []
        cells = 0
        for plan in range(len(self.plans)):
            if 0 < self.deepest(plan) <= steps:
                cells += sum(self.cells(one, steps) for one, _ in some if one.plan == plan)
                if cells > MOST_CELLS:
                    return usable if plan >= self.least else []
                usable.append(plan)
        return usable

    def _loud(self, one: Class, steps: int, quiet: tuple[int, int]) -> Bools:
        """By the step in which it begins: whether a slow way would be taken in a quiet one."""
        slow = one.latency > self.quickest
        starts = np.arange(steps - one.steps + 1)[:, None] + np.flatnonzero(slow)
        return np.asarray(((starts < quiet[0]) | (starts >= steps - quiet[1])).any(axis=1))

    def _latency(self, parts: NDArray[np.int64], steps: int) -> float:
        slowest = np.zeros(steps)
        for part, one in zip(parts, self.classes, strict=True):
            for start in np.flatnonzero(part).tolist():
                span = slice(start, start + one.steps)
                slowest[span] = np.maximum(slowest[span], one.latency)
        return float(slowest.sum())

    def _solved(self, steps: int, usable: Sequence[int], mine: Sequence[Tied], quiet: tuple[int, int]) -> Floats | None:
        """Variables: what begins of every class in every step, how long steps take, what goes by every plan."""
        import scipy.sparse as sp
        from scipy.optimize import linprog

        classes = [one for one, _ in mine]
        line = _Line(steps, max(one.steps for one in classes))
        kinds, places = len(self.some), [line.begins(one.steps) for one in classes]
        first = np.cumsum([0, *(int(place[-1]) + 1 for place in places)])
        clock, choice = int(first[-1]), int(first[-1]) + line.kinds
        top = max(float(one.load.max()) for one in classes) or 1.0
        rows, columns, values = [], [], []
        for begin, place, one in zip(first.tolist(), places, classes, strict=False):
            load = one.load[self.some]
            kind, level = np.nonzero(load)
            at = level[:, None] + np.arange(len(place))
            shown = line.shown[at]
            rows.append((kind[:, None] * line.kinds + line.kind[at])[shown])
            columns.append(np.broadcast_to(begin + place, at.shape)[shown])
            values.append(np.broadcast_to((load[kind, level] / top)[:, None], at.shape)[shown])
        rows.append(np.arange(kinds * line.kinds))
        columns.append(clock + np.tile(np.arange(line.kinds), kinds))
        values.append(np.full(kinds * line.kinds, -1.0))
        shape = (kinds * line.kinds, choice + len(usable))
        upper = sp.csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)
        equal = np.zeros((len(classes) + 1, shape[1]))
        for number, (one, begin, place) in enumerate(zip(classes, first.tolist(), places, strict=False)):
            equal[number, begin : begin + int(place[-1]) + 1] = np.bincount(place)
            equal[number, choice + usable.index(one.plan)] = -1
        equal[-1, choice:] = 1
        cost = np.zeros(shape[1])
        cost[clock:choice] = np.bincount(line.kind)
        right = np.append(np.zeros(len(classes)), 1.0)
        most = np.full(shape[1], np.inf)
        for one, begin, place in zip(classes, first.tolist(), places, strict=False):
            most[begin + place[self._loud(one, steps, quiet)]] = 0
        found = linprog(
            cost,
            A_ub=upper,
            b_ub=np.zeros(shape[0]),
            A_eq=sp.csr_array(equal),
            b_eq=right,
            bounds=np.stack([np.zeros(shape[1]), most], axis=1),
            method="highs" if shape[1] < MANY else "highs-ipm",
        )
        if found.status != 0:
            return None
        out = np.zeros((len(self.classes), steps))
        for (_, numbers), begin, place in zip(mine, first.tolist(), places, strict=False):
            out[list(numbers), : len(place)] = found.x[begin + place]
        return out

    def _rounded(self, exact: Floats, whole: int) -> NDArray[np.int64]:
        """By largest remainders: first what goes by every plan, then what begins of its classes in every step."""
        plans = [max((float(exact[n].sum()) for n, one in enumerate(self.classes) if one.plan == plan), default=0.0)
                 for plan in range(len(self.plans))]  # fmt: skip
        shares = whole_numbers(np.array(plans), whole)
        out = np.zeros(exact.shape, np.int64)
        for number, one in enumerate(self.classes):
            share = int(shares[one.plan])
            if share:
                out[number] = whole_alike(np.where(exact[number] > NOTHING, exact[number], 0.0), share)
        return out

    def _time(self, sizes: Floats, steps: int) -> float:
        busy = np.zeros((len(self.classes[0].load), steps))
        for size, one in zip(sizes, self.classes, strict=True):
            for level in range(min(one.steps, steps)):
                busy[:, level:] += one.load[:, level, None] * size[None, : steps - level]
        return float(busy.max(axis=0).sum())

    def schedule(self, sizes: Sizes) -> Schedule:
        """One schedule: every class from every step on, with its part; equal parts one after the other are pieces."""
        common = self._common
        table, rows = [still(self.plans, sizes.whole, common)], []
        count = len(table[0][0])
        pieces = [np.ones(count, np.int64)]
        for part, begun, one in zip(sizes.parts, _begun(sizes.parts), self.classes, strict=True):
            plan = self.plans[one.plan]
            number = np.full(len(plan.chunks), -1, np.int64)
            number[one.chunks] = np.arange(len(one.chunks))
            mine = np.flatnonzero(number[plan.chunk] >= 0)
            level = plan.step[mine] - _first(plan)[plan.chunk[mine]]
            scale = common // plan.chunks.denominator
            for start, many in begun.items():
                share = plan.chunks.share[one.chunks] * (scale * int(part[start]) * many)
                table.append((plan.chunks.block[one.chunks], share))
                pieces.append(np.full(len(one.chunks), many))
                rows.append((one.plan, mine, level + start, number[plan.chunk[mine]] + count))
                count += len(one.chunks)
        return joined(self.plans, table, rows, common * sizes.whole, np.concatenate(pieces))


def _classes(plan: int, schedule: Schedule, topology: Topology, whole: bool) -> list[Class]:
    first, last = _first(schedule), np.full(len(schedule.chunks), -1, np.int64)
    np.maximum.at(last, schedule.chunk, schedule.step)
    moving = np.flatnonzero(last >= 0)
    label = moving if len(moving) <= MOST_ALONE else last[moving] - first[moving]
    label = np.zeros(len(moving), np.int64) if whole else label
    found = []
    for one in np.unique(label).tolist():
        chunks = moving[label == one]
        rows = np.flatnonzero(np.isin(schedule.chunk, chunks))
        part = schedule.take(rows, step=schedule.step[rows] - first[schedule.chunk[rows]])
        steps = int((last - first)[chunks].max()) + 1
        found.append(Class(plan, chunks, *_loads(part, topology, steps)))
    return found


def longest(schedule: Schedule) -> int:
    """The most steps from the first move of a chunk to its last."""
    return int((schedule.step - _first(schedule)[schedule.chunk]).max(initial=-1)) + 1


def _first(schedule: Schedule) -> Longs:
    """The step in which each chunk first moves."""
    first = np.full(len(schedule.chunks), np.iinfo(np.int32).max, np.int64)
    np.minimum.at(first, schedule.chunk, schedule.step)
    return first


def _loads(part: Schedule, topology: Topology, steps: int) -> tuple[Floats, Floats]:
    """Seconds per byte by resource and step, and by step those of latency."""
    found, resources = loads(part, topology), topology.resources
    capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
    out = np.zeros((len(capacity), steps))
    out[found.resource, found.step] = found.load.astype(float) / float(found.scale)
    return out / capacity[:, None], latency_by_step(found, steps)


def _by_kinds(classes: Sequence[Class]) -> list[Class]:
    """Resources that all classes load alike are one kind; those that another outdoes everywhere are left out."""
    whole = np.concatenate([one.load for one in classes], axis=1)
    if not whole.any():
        return []  # what weighs nothing is not worth a pipeline
    top = whole.max()
    _, first = np.unique(np.round(whole / top, 10), axis=0, return_index=True)
    order = first[np.argsort(-whole[first].sum(axis=1), kind="stable")]
    kept: list[int] = []
    for row in order.tolist():
        if whole[row].any() and not (kept and (whole[kept] >= whole[row]).all(axis=1).any()):
            kept.append(row)
    return [replace(one, load=one.load[kept]) for one in classes]


def _apart(classes: Sequence[Class]) -> list[int]:
    """Some kinds of resources, none near another."""
    if not classes:
        return []
    tops = {one.plan: 0.0 for one in classes}
    for one in classes:
        tops[one.plan] = max(tops[one.plan], float(one.load.max()))
    loads = np.concatenate([one.load / tops[one.plan] for one in classes], axis=1)
    kept: list[int] = []
    for number, row in enumerate(loads):
        if not kept or np.abs(loads[kept] - row).max(axis=1).min() > ALIKE:
            kept.append(number)
    return kept


def _begun(parts: NDArray[np.int64]) -> list[dict[int, int]]:
    """By class where chunks begin, with their pieces: 1, or as many as the shortest of the long runs of equal parts,
    the same number in all classes."""
    runs = [longest_run(row) for row in parts]
    pieces = min((length for _, length in runs if length >= LONG), default=1)
    out = []
    for row, (start, length) in zip(parts, runs, strict=True):
        begun = dict.fromkeys(np.flatnonzero(row).tolist(), 1)
        if 1 < pieces <= length:
            begun = {at: 1 for at in begun if not start < at < start + pieces} | {start: pieces}
        out.append(begun)
    return out
