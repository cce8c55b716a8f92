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
from antiphon.planners.shared.begins import Class, Floats, begins, by_kinds, distinct, entries
from antiphon.planners.shared.ends import latency_by_step
from antiphon.planners.shared.parts import LEVELS, LOSS, joined, still
from antiphon.planners.shared.rounding import LONG, NOTHING, longest_run, simple, whole_alike, whole_numbers

MOST_ALONE = 64  # chunks up to which each is a class
MOST_CELLS = 50_000  # of a linear program
MOST_ROWS = 3 * 2**19  # transfers of a schedule that begins unevenly


Tied = tuple[Class, tuple[int, ...]]  # classes that begin together, as one, and their numbers


@dataclass(frozen=True, eq=False)
class Sizes:
    """Per class what begins in each step, in whole parts of `whole`; seconds per byte of nbytes, and of latency."""

    parts: NDArray[np.int64]
    whole: int
    time: float
    latency: float


class Uneven:
    """Plans taken apart into classes, with what each loads."""

    def __init__(self, plans: Sequence[Schedule], topology: Topology, whole: bool = False, least: int = 1) -> None:
        """`whole`: the chunks of a plan take as many steps, and begin together. `least`: so many of the first plans
        are worth a linear program, not fewer."""
        self.least = least
        self._known: dict[tuple[int, tuple[int, int]], Sizes | None] = {}
        self.plans = [replace(plan, pieces=1) for plan in plans]
        found = [one for n, plan in enumerate(self.plans) for one in _classes(n, plan, topology, whole)]
        self.classes = by_kinds(found) if found else []
        self.some = distinct(self.classes)
        self._deepest = max((one.steps for one in self.classes), default=0)
        ways = [float(one.latency.min()) for one in self.classes]
        self.quickest = min(ways, default=0.0) * (1 + NOTHING)

    def deepest(self, plan: int) -> int:
        return max((one.steps for one in self.classes if one.plan == plan), default=0)

    @property
    def least_steps(self) -> int:
        return min((self.deepest(plan) for plan in range(len(self.plans))), default=0)

    def rows(self, sizes: Sizes) -> int:
        """How many transfers that will be."""
        return sum(rows * len(begun) for rows, begun in zip(self._rows, _begun(sizes.parts), strict=True))

    @cached_property
    def _rows(self) -> list[int]:
        """Transfers of every class."""
        return [int(np.isin(self.plans[one.plan].chunk, one.chunks).sum()) for one in self.classes]

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
            finer = Sizes(rounded, whole, self._time(rounded / whole, steps), self._latency(rounded, steps))
            if made is not None and self.rows(finer) > MOST_ROWS:
                break  # finer parts are more of them
            made = finer
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
                mine = [one for one, _ in some if one.plan == plan]
                cells += sum(entries(one, self.some, steps, self._deepest) for one in mine)
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
        classes = [one for one, _ in mine]
        begun = begins(classes, self.some, steps, [self._loud(one, steps, quiet) for one in classes])
        if begun is None:
            return None
        out = np.zeros((len(self.classes), steps))
        for (_, numbers), part in zip(mine, begun, strict=True):
            out[list(numbers), : len(part)] = part
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
            for level in range(min(one.steps, steps) if size.any() else 0):
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
