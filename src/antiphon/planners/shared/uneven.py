"""How much of a plan starts in which step: uneven parts avoid the idle ends of a pipeline of equal pieces.

Input: plans of one collective (deep fast ones, shallow quick ones), each a schedule that its chunks pass through once.
A plan may start anew in every step, each time with another part of the data; it then occupies its links for its depth.
The amounts solve a linear program (start_program.py) for the least time in N steps, where each step lasts as long as
its fullest link or shared limit. Chunks of one class (with few chunks: every chunk) start independently of others.

Example: a deep fast plan and a shallow slow one, N steps. The deep plan starts from step 0 on; in the last steps, when
it could no longer finish, the shallow one starts with the remaining data, on links that would otherwise idle.

The solution is rounded to fractions with a common denominator; long runs of equal starts become pieces of one chunk, so
that the schedule stays small (`_starts_of`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.core.loads import loads
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.start_program import Class, count_entries, distinct_kinds, merge_kinds, solve_starts

MOST_ALONE = 64  # up to this many chunks, each is a class
MOST_CELLS = 50_000  # of a linear program
MOST_ROWS = 3 * 2**19  # transfers of a schedule that begins unevenly
NOTHING = 1e-9
LONG = 8  # at least this many consecutive equal starts become pieces of one chunk
SIMPLE, NEAR = 256, 1e-7
LEVELS = (*(2**n for n in range(3, 15)), 2**16, 2**18, 2**20)  # denominators to which sizes are rounded
LOSS = 5e-4  # of the time, that rounding them may cost


@dataclass(frozen=True, eq=False)
class Sizes:
    """Per class the units of 1 / `denominator` that start in each step; seconds per byte of nbytes, and of latency."""

    counts: NDArray[np.int64]
    denominator: int
    time: float
    latency: float


class Uneven:
    """Plans divided into classes of chunks, with the load of each."""

    def __init__(
        self, plans: Sequence[Schedule], topology: Topology, together: bool = False, min_plans: int = 1
    ) -> None:
        """`together`: chunks of a plan have equal depth and start together. `min_plans`: use at least this many of
        the first plans.
        """
        self.min_plans = min_plans
        self._known: dict[tuple[int, tuple[int, int]], Sizes | None] = {}
        self.plans = [replace(plan, pieces=1) for plan in plans]
        found_classes = [
            chunk_class
            for n, plan in enumerate(self.plans)
            for chunk_class in _chunk_classes(n, plan, topology, together)
        ]
        self.classes = merge_kinds(found_classes) if found_classes else []
        self.some = distinct_kinds(self.classes)
        self._deepest = max((chunk_class.steps for chunk_class in self.classes), default=0)
        quickest_paths = [float(chunk_class.latency.min()) for chunk_class in self.classes]
        self.quickest = min(quickest_paths, default=0.0) * (1 + NOTHING)

    def deepest_of(self, plan: int) -> int:
        """Return the depth of a plan in steps."""
        return max((chunk_class.steps for chunk_class in self.classes if chunk_class.plan == plan), default=0)

    @property
    def least_steps(self) -> int:
        return min((self.deepest_of(plan) for plan in range(len(self.plans))), default=0)

    def count_rows(self, sizes: Sizes) -> int:
        """Return the number of transfers of the schedule."""
        return sum(rows * len(begun) for rows, begun in zip(self._rows, _starts_of(sizes.counts), strict=True))

    @cached_property
    def _rows(self) -> list[int]:
        """Transfers of every class."""
        return [
            int(np.isin(self.plans[chunk_class.plan].chunk, chunk_class.chunks).sum()) for chunk_class in self.classes
        ]

    def sizes_for(self, steps: int, quiet: tuple[int, int] = (0, 0)) -> Sizes | None:
        """Return the best sizes for `steps` steps, cached for all message sizes; None if impossible.

        Impossible: no plan finishes in time, the program is too large or unsolved, or there is no common denominator.
        Where the program would be too large, classes of equal depth start together, then the last plans are left out.
        `quiet`: numbers of first and last steps that use only the quickest paths.
        """
        if (steps, quiet) not in self._known:
            self._known[steps, quiet] = self._solve_and_round(steps, quiet)
        return self._known[steps, quiet]

    def _solve_and_round(self, steps: int, quiet: tuple[int, int]) -> Sizes | None:
        exact = None
        # each class on its own if the program is small enough, else classes of equal depth together
        for grouping in (self._each_class, self._merged_classes):
            usable = self._usable_plans(steps, grouping)
            if usable:
                exact = self._solve_starts(steps, [tied for tied in grouping if tied[0].plan in usable], quiet)
                break
        if exact is None:
            return None
        time, sizes = self._seconds_per_byte(exact, steps), None
        # the coarsest rounding that loses little: finer ones mean more starts, hence more rows
        for denominator in [*simple_denominator(exact), *LEVELS]:
            if self._common * denominator >= MAX_DENOMINATOR:
                continue
            rounded = self._round_starts(exact, denominator)
            finer = Sizes(
                rounded,
                denominator,
                self._seconds_per_byte(rounded / denominator, steps),
                self._latency_seconds(rounded, steps),
            )
            if sizes is not None and self.count_rows(finer) > MOST_ROWS:
                break  # too many rows
            sizes = finer
            if sizes.time <= time * (1 + LOSS):
                break
        return sizes

    @cached_property
    def _common(self) -> int:
        """Denominator of the chunks of all plans."""
        return math.lcm(*(plan.chunks.denominator for plan in self.plans))

    @cached_property
    def _each_class(self) -> list[Tied]:
        return [(chunk_class, (number,)) for number, chunk_class in enumerate(self.classes)]

    @cached_property
    def _merged_classes(self) -> list[Tied]:
        """Classes of a plan with equal depth, merged to start together."""
        numbers_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number, chunk_class in enumerate(self.classes):
            numbers_of[chunk_class.plan, chunk_class.steps].append(number)
        out = []
        for numbers in numbers_of.values():
            load = np.sum([self.classes[n].load for n in numbers], axis=0)
            late = np.max([self.classes[n].latency for n in numbers], axis=0)
            out.append((replace(self.classes[numbers[0]], load=load, latency=late), tuple(numbers)))
        return out

    def _usable_plans(self, steps: int, grouping: Sequence[Tied]) -> list[int]:
        """Return the plans that finish in `steps` steps, as many as fit the linear program."""
        usable: list[int] = []
        cells = 0
        for plan in range(len(self.plans)):
            if 0 < self.deepest_of(plan) <= steps:
                plan_classes = [chunk_class for chunk_class, _ in grouping if chunk_class.plan == plan]
                cells += sum(
                    count_entries(chunk_class, self.some, steps, self._deepest) for chunk_class in plan_classes
                )
                if cells > MOST_CELLS:
                    return usable if plan >= self.min_plans else []
                usable.append(plan)
        return usable

    def _forbidden_starts(self, chunk_class: Class, steps: int, quiet: tuple[int, int]) -> Bools:
        """Return by starting step whether a slow path would be used in a quiet step."""
        slow = chunk_class.latency > self.quickest
        starts = np.arange(steps - chunk_class.steps + 1)[:, None] + np.flatnonzero(slow)
        return np.asarray(((starts < quiet[0]) | (starts >= steps - quiet[1])).any(axis=1))

    def _latency_seconds(self, counts: NDArray[np.int64], steps: int) -> float:
        slowest = np.zeros(steps)
        for class_parts, chunk_class in zip(counts, self.classes, strict=True):
            for start in np.flatnonzero(class_parts).tolist():
                span = slice(start, start + chunk_class.steps)
                slowest[span] = np.maximum(slowest[span], chunk_class.latency)
        return float(slowest.sum())

    def _solve_starts(self, steps: int, tied_classes: Sequence[Tied], quiet: tuple[int, int]) -> Floats | None:
        classes = [chunk_class for chunk_class, _ in tied_classes]
        begun = solve_starts(
            classes, self.some, steps, [self._forbidden_starts(chunk_class, steps, quiet) for chunk_class in classes]
        )
        if begun is None:
            return None
        out = np.zeros((len(self.classes), steps))
        for (_, numbers), class_start in zip(tied_classes, begun, strict=True):
            out[list(numbers), : len(class_start)] = class_start
        return out

    def _round_starts(self, exact: Floats, denominator: int) -> NDArray[np.int64]:
        """Round by largest remainders: first the fraction of every plan, then the starts of its classes in every
        step.
        """
        plans = [0.0] * len(self.plans)
        for number, chunk_class in enumerate(self.classes):
            plans[chunk_class.plan] = max(plans[chunk_class.plan], float(exact[number].sum()))
        shares = whole_numbers(np.array(plans), denominator)
        out = np.zeros(exact.shape, np.int64)
        for number, chunk_class in enumerate(self.classes):
            share = int(shares[chunk_class.plan])
            if share:
                out[number] = whole_alike(np.where(exact[number] > NOTHING, exact[number], 0.0), share)
        return out

    def _seconds_per_byte(self, sizes: Floats, steps: int) -> float:
        busy = np.zeros((len(self.classes[0].load), steps))
        for size, chunk_class in zip(sizes, self.classes, strict=True):
            for level in range(min(chunk_class.steps, steps) if size.any() else 0):
                # what starts in step s loads step s + level as the class's level demands
                busy[:, level:] += chunk_class.load[:, level, None] * size[None, : steps - level]
        return float(busy.max(axis=0).sum())

    def to_schedule(self, sizes: Sizes) -> Schedule:
        """Return one schedule with every class started in its steps; equal consecutive parts become pieces."""
        common = self._common
        table, rows = [still_chunks(self.plans, sizes.denominator, common)], []
        count = len(table[0][0])
        pieces = [np.ones(count, np.int64)]
        for class_parts, begun, chunk_class in zip(sizes.counts, _starts_of(sizes.counts), self.classes, strict=True):
            plan = self.plans[chunk_class.plan]
            number = np.full(len(plan.chunks), -1, np.int64)
            number[chunk_class.chunks] = np.arange(len(chunk_class.chunks))
            class_rows = np.flatnonzero(number[plan.chunk] >= 0)
            level = plan.step[class_rows] - _first_steps(plan)[plan.chunk[class_rows]]
            scale = common // plan.chunks.denominator
            for start, piece_count in begun.items():
                share = plan.chunks.share[chunk_class.chunks] * (scale * int(class_parts[start]) * piece_count)
                table.append((plan.chunks.block[chunk_class.chunks], share))
                pieces.append(np.full(len(chunk_class.chunks), piece_count))
                rows.append((chunk_class.plan, class_rows, level + start, number[plan.chunk[class_rows]] + count))
                count += len(chunk_class.chunks)
        return join_plans(self.plans, table, rows, common * sizes.denominator, np.concatenate(pieces))


def _chunk_classes(plan: int, schedule: Schedule, topology: Topology, together: bool) -> list[Class]:
    """Divide the moving chunks into classes: each its own if there are few, else by depth (`together`: one class)."""
    first, last = _first_steps(schedule), np.full(len(schedule.chunks), -1, np.int64)
    np.maximum.at(last, schedule.chunk, schedule.step)
    moving = np.flatnonzero(last >= 0)
    label = moving if len(moving) <= MOST_ALONE else last[moving] - first[moving]
    label = np.zeros(len(moving), np.int64) if together else label
    classes = []
    for class_label in np.unique(label).tolist():
        chunks = moving[label == class_label]
        rows = np.flatnonzero(np.isin(schedule.chunk, chunks))
        class_schedule = schedule.take(rows, step=schedule.step[rows] - first[schedule.chunk[rows]])
        steps = int((last - first)[chunks].max()) + 1
        classes.append(Class(plan, chunks, *load_by_step(class_schedule, topology, steps)))
    return classes


def longest_chunk(schedule: Schedule) -> int:
    """Return the most steps from the first move of a chunk to its last."""
    return int((schedule.step - _first_steps(schedule)[schedule.chunk]).max(initial=-1)) + 1


def _first_steps(schedule: Schedule) -> Longs:
    """Return the step in which each chunk first moves."""
    first = np.full(len(schedule.chunks), np.iinfo(np.int32).max, np.int64)
    np.minimum.at(first, schedule.chunk, schedule.step)
    return first


def load_by_step(schedule: Schedule, topology: Topology, steps: int) -> tuple[Floats, Floats]:
    """Return seconds per byte of nbytes by resource and step, and by step the latency of the slowest path."""
    crossings, resources = loads(schedule, topology), topology.resources
    capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
    load, latency = np.zeros((len(capacity), steps)), np.zeros(steps)
    load[crossings.resource, crossings.step] = crossings.load.astype(float) / float(crossings.scale)
    latency[crossings.begins] = crossings.slowest
    return load / capacity[:, None], latency


def _starts_of(counts: NDArray[np.int64]) -> list[dict[int, int]]:
    """Return by class the starting steps with their pieces.

    Pieces: 1, or the length of the shortest long run of equal parts, the same number in all classes.
    """
    runs = [longest_run(row) for row in counts]
    # equal parts in consecutive steps are what `pieces` expresses; all classes must have the same number
    pieces = min((length for _, length in runs if length >= LONG), default=1)
    out = []
    for row, (start, length) in zip(counts, runs, strict=True):
        begun = dict.fromkeys(np.flatnonzero(row).tolist(), 1)
        if 1 < pieces <= length:
            begun = {at: 1 for at in begun if not start < at < start + pieces} | {start: pieces}
        out.append(begun)
    return out


def simple_denominator(sizes: Floats) -> list[int]:
    """Return the smallest number of parts that makes all sizes whole, if there is one (a list of at most one)."""
    nonzero_sizes = sizes[sizes > NOTHING]
    return [
        k
        for k in range(1, SIMPLE + 1)
        if np.abs(nonzero_sizes * k - np.round(nonzero_sizes * k)).max(initial=0) < NEAR * k
    ][:1]


def whole_numbers(values: Floats, total: int) -> NDArray[np.int64]:
    """Return integers near these proportions that sum to the total, by largest remainders."""
    exact = values / values.sum() * total
    counts = np.floor(exact + NOTHING).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def whole_alike(values: Floats, total: int) -> NDArray[np.int64]:
    """Round like `whole_numbers`, but keep a long run of equal values equal."""
    start, length = longest_run(values)
    # the run gets equal integers; the remainder goes to the other values
    each = round(float(values[start] / values.sum()) * total)
    rest = total - each * length
    other_values = values.copy()
    other_values[start : start + length] = 0
    if length < LONG or rest < 0 or not (each and other_values.any()):
        return whole_numbers(values, total)
    counts = whole_numbers(other_values, rest)
    counts[start : start + length] = each
    return counts


def longest_run(values: NDArray[Any]) -> tuple[int, int]:
    """Return the start and length of the longest run of equal nonzero values."""
    edges = np.flatnonzero(np.diff(values, prepend=-1, append=-1))
    lengths = np.where(values[edges[:-1]] > 0, np.diff(edges), 0)
    at = int(lengths.argmax())
    return int(edges[at]), int(lengths[at])


def still_chunks(plans: Sequence[Schedule], parts_per_share: int, common: int) -> tuple[NDArray[np.int32], Longs]:
    """Return blocks and shares (in units of 1 / (common * parts_per_share)) of the first plan's chunks that never move.

    Of an allgather in which only block 1 moves:

    >>> from antiphon.core.example import of_rows
    >>> still_chunks([of_rows("allgather", 3, [(0, 1, 1, 0, 0), (0, 1, 1, 2, 0)])], parts_per_share=4, common=1)
    (array([0, 2], dtype=int32), array([4, 4]))
    """
    moving = np.zeros(plans[0].collective.blocks, bool)
    for plan in plans:
        moving[plan.chunks.block[plan.chunk]] = True
    chunks = plans[0].chunks
    rest = np.flatnonzero(~moving[chunks.block])
    return chunks.block[rest], chunks.share[rest] * (common // chunks.denominator * parts_per_share)


def join_plans(
    plans: Sequence[Schedule],
    table: Sequence[tuple[NDArray[np.int32], Longs]],
    rows: Sequence[tuple[int, Longs, Longs, Longs]],
    denominator: int,
    pieces: Longs,
) -> Schedule:
    """Join rows of several plans into one schedule; chunks are sorted by block and renumbered.

    `table`: blocks and shares of chunks, in units of 1 / denominator; `rows`: (plan, its rows, their new steps, their
    new chunks).

    Two broadcasts to rank 1, one with the first quarter of the block, the other, a step later, with the rest:

    >>> from antiphon.core.example import of_rows
    >>> plans = [of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,))] * 2
    >>> table = [(np.array([0], np.int32), np.array([share])) for share in (1, 3)]
    >>> rows = [(n, np.array([0]), np.array([n]), np.array([n])) for n in (0, 1)]
    >>> joint = join_plans(plans, table, rows, 4, np.array([1, 1]))
    >>> joint.step.tolist(), joint.chunk.tolist(), joint.chunks.offset.tolist(), joint.chunks.share.tolist()
    ([0, 1], [0, 1], [0, 1], [1, 3])
    """
    block = np.concatenate([column_part for column_part, _ in table])
    share = np.concatenate([column_part for _, column_part in table]).astype(np.int64)
    order = np.argsort(block, kind="stable")
    place = np.argsort(order)
    block, share = block[order], share[order]
    # a chunk's offset: what precedes it in its block
    before = np.cumsum(share) - share
    first = np.searchsorted(block, block)
    shrink = math.gcd(denominator, *np.unique(share).tolist())
    chunks = Chunks(block, (before - before[first]) // shrink, share // shrink, denominator // shrink)
    base = np.cumsum([0, *(len(plan.routes) for plan in plans)])
    routes = plans[0].routes
    for plan in plans[1:]:
        routes = routes.join(plan.routes)

    def column(name: str) -> NDArray[np.int32]:
        return np.concatenate([getattr(plans[n], name)[row_numbers] for n, row_numbers, _, _ in rows])

    def route(n: int, row_numbers: Longs) -> Longs:
        routes_of_plan = plans[n].route
        if routes_of_plan is None:
            return np.full(len(row_numbers), -1, np.int64)
        return np.where(routes_of_plan[row_numbers] < 0, -1, routes_of_plan[row_numbers] + base[n])

    return Schedule(
        plans[0].collective, chunks, np.concatenate([step for _, _, step, _ in rows]),
        place[np.concatenate([chunk for *_, chunk in rows])], column("src"), column("dst"),
        column("op").astype(np.uint8), route=np.concatenate([route(n, row_numbers) for n, row_numbers, _, _ in rows]),
        routes=routes, pieces=pieces[order],
    )  # fmt: skip


Tied = tuple[Class, tuple[int, ...]]  # classes that begin together, as one, and their numbers
