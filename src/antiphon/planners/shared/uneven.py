"""Pipeline in uneven parts: start schedules in any step, each time with another amount of data.

A pipeline of equal pieces leaves links idle while it fills and drains. Input here: one or several unpipelined schedules
of a collective (plans; for example a deep one of high rate and a shallow one of low rate), and a number N of steps. A
plan may start anew in every step with another part of the data (an uneven part), and then runs through its own steps.
Output (`UnevenStarts`): one schedule of N steps.

The amounts solve a linear program (start_program.py) for the least total time, where each step lasts as long as its
fullest link or shared limit. The chunks of a plan need not start together: they are divided into classes (every chunk
one, if there are few; else by depth) that start independently.

Example: a deep fast plan and a shallow slow one, N steps. The deep plan starts from step 0 on; in the last steps, when
it could no longer finish, the shallow one starts with the remaining data, on links that would otherwise idle.

The solution is rounded to fractions with a common denominator. Long runs of equal starts in consecutive steps become
one chunk in several pieces, so that the schedule stays small (`_list_starts`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Ints, Longs, as_int32, largest_remainders
from antiphon.core.loads import loads
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.start_program import ChunkClass, count_entries, distinct_kinds, merge_kinds, solve_starts

MOST_ALONE = 64  # up to this many chunks, each is a class
MOST_ENTRIES = 50_000  # of a linear program
MOST_ROWS = 3 * 2**19  # transfers of a schedule in uneven parts
NEGLIGIBLE = 1e-9  # amounts below this count as 0
MIN_RUN = 8  # at least this many consecutive equal starts become pieces of one chunk
MAX_SIMPLE_DENOMINATOR = 256  # up to this all are tried first: with one that fits all amounts nothing is rounded
MULTIPLE_TOLERANCE = 1e-7  # an amount this near to a multiple of 1 / denominator counts as one
DENOMINATORS = (*(2**n for n in range(3, 15)), 2**16, 2**18, 2**20)  # to which amounts are rounded in turn
MAX_ROUNDING_LOSS = 5e-4  # fraction of the time that rounding may cost

MergedClass = tuple[ChunkClass, tuple[int, ...]]  # classes that start together, as one class, and their numbers


class PlanRows(NamedTuple):
    """Rows of a plan as they appear in a joint schedule (`join_plans`)."""

    plan: int  # the plan's number
    rows: Longs  # of the plan; the same rows may appear several times
    step: Longs  # by row, its step in the joint schedule
    chunk: Longs  # by row, its chunk: a position in the table of new chunks


@dataclass(frozen=True, eq=False)
class StartSizes:
    """How much starts in each step: `counts[class, step]` / `denominator` of the data.

    `time`: the lengths of all steps together, in seconds per byte of nbytes.
    `latency`: the latencies of all steps together, in seconds.
    """

    counts: NDArray[np.int64]
    denominator: int
    time: float
    latency: float


class UnevenStarts:
    """Plans prepared for uneven parts: divided into classes of chunks; solutions are cached for all message sizes."""

    def __init__(
        self, plans: Sequence[Schedule], topology: Topology, together: bool = False, min_plans: int = 1
    ) -> None:
        """`together`: all chunks of a plan form one class. `min_plans`: if the linear program is too large for all
        plans, leave out the last ones, but at least this many stay.
        """
        self.min_plans = min_plans
        self._cached_sizes: dict[tuple[int, tuple[int, int]], StartSizes | None] = {}  # by steps, quiet
        self.plans = [replace(plan, pieces=1) for plan in plans]
        unmerged_classes = [
            chunk_class
            for n, plan in enumerate(self.plans)
            for chunk_class in _chunk_classes(n, plan, topology, together)
        ]
        # kinds here: resources that every class loads alike
        self.classes = merge_kinds(unmerged_classes) if unmerged_classes else []
        self.kinds = distinct_kinds(self.classes)
        self._deepest = max((chunk_class.steps for chunk_class in self.classes), default=0)
        quickest_paths = [float(chunk_class.latency.min()) for chunk_class in self.classes]
        # Seconds of the quickest path. Sums of floats may differ a little.
        self.quickest = min(quickest_paths, default=0.0) * (1 + NEGLIGIBLE)
        self._any_slow_path = any((chunk_class.latency > self.quickest).any() for chunk_class in self.classes)

    def deepest_of(self, plan: int) -> int:
        """Return the most steps that a chunk of the plan takes from its start."""
        return max((chunk_class.steps for chunk_class in self.classes if chunk_class.plan == plan), default=0)

    @property
    def least_steps(self) -> int:
        """The fewest steps in which some plan finishes."""
        return min((self.deepest_of(plan) for plan in range(len(self.plans))), default=0)

    def count_rows(self, sizes: StartSizes) -> int:
        """Return the number of transfers of the schedule."""
        return sum(rows * len(starts) for rows, starts in zip(self._rows, _list_starts(sizes.counts), strict=True))

    @cached_property
    def _rows(self) -> list[int]:
        """Transfers by class."""
        return [
            int(np.isin(self.plans[chunk_class.plan].chunk, chunk_class.chunks).sum()) for chunk_class in self.classes
        ]

    def sizes_for(self, steps: int, quiet: tuple[int, int] = (0, 0)) -> StartSizes | None:
        """Return the best amounts to start in each of `steps` steps, cached for all message sizes; None if impossible.

        Impossible: no plan finishes in that many steps, the linear program is too large or unsolved, or no denominator
        is small enough. If the linear program would be too large, classes of equal depth are merged, then the last
        plans are left out. `quiet`: numbers of first and of last steps that use only paths of least latency.
        """
        if not self._any_slow_path:  # then quiet steps forbid nothing
            quiet = (0, 0)
        if (steps, quiet) not in self._cached_sizes:
            self._cached_sizes[steps, quiet] = self._solve_and_round(steps, quiet)
        return self._cached_sizes[steps, quiet]

    def _solve_and_round(self, steps: int, quiet: tuple[int, int]) -> StartSizes | None:
        """Solve the linear program and round the amounts to the coarsest denominator that loses little."""
        exact = None
        # each class on its own if the program is small enough, else classes of equal depth together
        for grouping in (self._each_class, self._merged_classes):
            usable = self._usable_plans(steps, grouping)
            if usable:
                exact = self._solve_starts(steps, [merged for merged in grouping if merged[0].plan in usable], quiet)
                break
        if exact is None:
            return None
        time, sizes = self._seconds_per_byte(exact, steps), None
        # the coarsest rounding that loses little: finer ones mean more starts, hence more rows
        for denominator in [*simple_denominator(exact), *DENOMINATORS]:
            if self._common_denominator * denominator >= MAX_DENOMINATOR:
                continue
            rounded = self._round_starts(exact, denominator)
            finer = StartSizes(rounded, denominator, self._seconds_per_byte(rounded / denominator, steps), latency=0.0)
            if sizes is not None and self.count_rows(finer) > MOST_ROWS:
                break
            sizes = finer
            if sizes.time <= time * (1 + MAX_ROUNDING_LOSS):
                break
        # the latency only of the rounding that is used
        return None if sizes is None else replace(sizes, latency=self._latency_seconds(sizes.counts, steps))

    @cached_property
    def _common_denominator(self) -> int:
        return math.lcm(*(plan.chunks.denominator for plan in self.plans))

    @cached_property
    def _each_class(self) -> list[MergedClass]:
        """Every class on its own."""
        return [(chunk_class, (number,)) for number, chunk_class in enumerate(self.classes)]

    @cached_property
    def _merged_classes(self) -> list[MergedClass]:
        """Classes of a plan with equal depth, merged to start together."""
        numbers_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by plan and depth
        for number, chunk_class in enumerate(self.classes):
            numbers_of[chunk_class.plan, chunk_class.steps].append(number)
        merged = []
        for numbers in numbers_of.values():
            load = np.sum([self.classes[n].load for n in numbers], axis=0)
            latency = np.max([self.classes[n].latency for n in numbers], axis=0)
            merged.append((replace(self.classes[numbers[0]], load=load, latency=latency), tuple(numbers)))
        return merged

    def _usable_plans(self, steps: int, grouping: Sequence[MergedClass]) -> list[int]:
        """Return the plans that finish in `steps` steps, as many as fit the linear program.

        Return [] if only fewer than `min_plans` fit.
        """
        usable: list[int] = []
        entries = 0
        for plan in range(len(self.plans)):
            if 0 < self.deepest_of(plan) <= steps:
                plan_classes = [chunk_class for chunk_class, _ in grouping if chunk_class.plan == plan]
                entries += sum(
                    count_entries(chunk_class, self.kinds, steps, self._deepest) for chunk_class in plan_classes
                )
                if entries > MOST_ENTRIES:
                    return usable if plan >= self.min_plans else []
                usable.append(plan)
        return usable

    def _forbidden_starts(self, chunk_class: ChunkClass, steps: int, quiet: tuple[int, int]) -> Bools:
        """Return, by step, whether the class must not start there, since it would use a slow path in a quiet step."""
        slow = chunk_class.latency > self.quickest
        # [start, i]: the steps in which a start at this step uses slow paths
        slow_steps = np.arange(steps - chunk_class.steps + 1)[:, None] + np.flatnonzero(slow)
        quiet_at_start, quiet_at_end = quiet
        return np.asarray(((slow_steps < quiet_at_start) | (slow_steps >= steps - quiet_at_end)).any(axis=1))

    def _latency_seconds(self, counts: NDArray[np.int64], steps: int) -> float:
        """Return the latency of all steps: in each, that of the slowest path in use."""
        slowest = np.zeros(steps)
        for class_parts, chunk_class in zip(counts, self.classes, strict=True):
            for start in np.flatnonzero(class_parts).tolist():
                span = slice(start, start + chunk_class.steps)
                slowest[span] = np.maximum(slowest[span], chunk_class.latency)
        return float(slowest.sum())

    def _solve_starts(self, steps: int, merged_classes: Sequence[MergedClass], quiet: tuple[int, int]) -> Floats | None:
        """Return the fraction of the data that starts, by class and step; None if the program is unsolved."""
        classes = [chunk_class for chunk_class, _ in merged_classes]
        starts = solve_starts(
            classes, self.kinds, steps, [self._forbidden_starts(chunk_class, steps, quiet) for chunk_class in classes]
        )
        if starts is None:
            return None
        fractions = np.zeros((len(self.classes), steps))
        for (_, numbers), class_start in zip(merged_classes, starts, strict=True):
            fractions[list(numbers), : len(class_start)] = class_start
        return fractions

    def _round_starts(self, exact: Floats, denominator: int) -> NDArray[np.int64]:
        """Return the amounts as integers in 1 / denominator. First each plan's amount is rounded, then its starts."""
        # every class of a plan starts the same total, up to the solver's accuracy
        plans = [0.0] * len(self.plans)
        for number, chunk_class in enumerate(self.classes):
            plans[chunk_class.plan] = max(plans[chunk_class.plan], float(exact[number].sum()))
        shares = round_to_total(np.array(plans), denominator)
        counts = np.zeros(exact.shape, np.int64)
        for number, chunk_class in enumerate(self.classes):
            share = int(shares[chunk_class.plan])
            if share:
                counts[number] = round_keeping_run(np.where(exact[number] > NEGLIGIBLE, exact[number], 0.0), share)
        return counts

    def _seconds_per_byte(self, sizes: Floats, steps: int) -> float:
        """Return the sum of the lengths of steps, for fractions by class and step."""
        busy = np.zeros((len(self.classes[0].load), steps))
        for size, chunk_class in zip(sizes, self.classes, strict=True):
            for level in range(min(chunk_class.steps, steps) if size.any() else 0):
                # a start in step s loads links in step s + level as the class's column `level` says
                busy[:, level:] += chunk_class.load[:, level, None] * size[None, : steps - level]
        return float(busy.max(axis=0).sum())

    def to_schedule(self, sizes: StartSizes) -> Schedule:
        """Return the schedule: a copy of every class for each of its starts; a long run of equal starts is one copy in
        pieces."""
        common = self._common_denominator
        # `chunk_table` (`join_plans`) begins with the chunks that no plan moves; `count`: the chunks in it so far
        unmoved_blocks, unmoved_shares = unmoved_chunks(self.plans, sizes.denominator, common)
        chunk_table, rows, count = [(unmoved_blocks, unmoved_shares)], [], len(unmoved_blocks)
        pieces = [np.ones(count, np.int64)]
        for class_parts, starts, chunk_class in zip(
            sizes.counts, _list_starts(sizes.counts), self.classes, strict=True
        ):
            plan = self.plans[chunk_class.plan]
            index_in_class = np.full(len(plan.chunks), -1, np.int64)
            index_in_class[chunk_class.chunks] = np.arange(len(chunk_class.chunks))
            class_rows = np.flatnonzero(index_in_class[plan.chunk] >= 0)
            # by row, its step after the start of its chunk
            level = plan.step[class_rows] - _first_steps(plan)[plan.chunk[class_rows]]
            scale = common // plan.chunks.denominator
            for start, piece_count in starts.items():
                share = plan.chunks.share[chunk_class.chunks] * (scale * int(class_parts[start]) * piece_count)
                chunk_table.append((plan.chunks.block[chunk_class.chunks], share))
                pieces.append(np.full(len(chunk_class.chunks), piece_count))
                new_chunk = index_in_class[plan.chunk[class_rows]] + count
                rows.append(PlanRows(chunk_class.plan, class_rows, level + start, new_chunk))
                count += len(chunk_class.chunks)
        return join_plans(self.plans, chunk_table, rows, common * sizes.denominator, np.concatenate(pieces))


def _chunk_classes(plan: int, schedule: Schedule, topology: Topology, together: bool) -> list[ChunkClass]:
    """Divide a plan's moving chunks into classes: each its own if there are few, else by depth (`together`: one class).

    `plan`: the plan's number.
    """
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
        classes.append(ChunkClass(plan, chunks, *load_by_step(class_schedule, topology, steps)))
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
    capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.class_of]
    load, latency = np.zeros((len(capacity), steps)), np.zeros(steps)
    load[crossings.resource, crossings.step] = crossings.load.astype(float) / float(crossings.scale)
    latency[crossings.window_step] = crossings.window_latency  # unpipelined, a window of loads is one step
    return load / capacity[:, None], latency


def _list_starts(counts: NDArray[np.int64]) -> list[dict[int, int]]:
    """Return, by class, the starting steps, each with its number of pieces.

    Pieces of one chunk start in consecutive steps with equal amounts. So the longest run of such starts of a class
    becomes one start in several pieces, and the others are starts of 1 piece. All classes use the same number of
    pieces: the length of the shortest such run of MIN_RUN or more.
    """
    runs = [longest_run(row) for row in counts]
    pieces = min((length for _, length in runs if length >= MIN_RUN), default=1)
    starts_of_classes = []
    for row, (start, length) in zip(counts, runs, strict=True):
        starts = dict.fromkeys(np.flatnonzero(row).tolist(), 1)
        if 1 < pieces <= length:
            starts = {at: 1 for at in starts if not start < at < start + pieces} | {start: pieces}
        starts_of_classes.append(starts)
    return starts_of_classes


def simple_denominator(sizes: Floats) -> list[int]:
    """Return the smallest denominator up to MAX_SIMPLE_DENOMINATOR that fits all these fractions, alone in a list; []
    if none fits.
    """
    nonzero_sizes = sizes[sizes > NEGLIGIBLE]
    return [
        k
        for k in range(1, MAX_SIMPLE_DENOMINATOR + 1)
        if np.abs(nonzero_sizes * k - np.round(nonzero_sizes * k)).max(initial=0) < MULTIPLE_TOLERANCE * k
    ][:1]


def round_to_total(values: Floats, total: int) -> NDArray[np.int64]:
    """Return integers near these proportions that sum to the total (method of largest remainders)."""
    return largest_remainders(values / values.sum() * total, total, NEGLIGIBLE)


def round_keeping_run(values: Floats, total: int) -> NDArray[np.int64]:
    """Return the same as `round_to_total`, except that a long run of equal values stays equal."""
    start, length = longest_run(values)
    # the run gets equal integers; the other values share what remains
    equal_share = round(float(values[start] / values.sum()) * total)
    remainder = total - equal_share * length
    other_values = values.copy()
    other_values[start : start + length] = 0
    if length < MIN_RUN or remainder < 0 or not (equal_share and other_values.any()):
        return round_to_total(values, total)
    counts = round_to_total(other_values, remainder)
    counts[start : start + length] = equal_share
    return counts


def longest_run(values: NDArray[Any]) -> tuple[int, int]:
    """Return the start and length of the longest run of equal nonzero values."""
    edges = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1, [len(values)]])
    lengths = np.where(values[edges[:-1]] > 0, edges[1:] - edges[:-1], 0)
    at = int(lengths.argmax())
    return int(edges[at]), int(lengths[at])


def unmoved_chunks(plans: Sequence[Schedule], parts_per_share: int, common: int) -> tuple[NDArray[np.int32], Longs]:
    """Return the blocks and shares of chunks that no plan moves, such as blocks that are already in place.

    Shares are in units of 1 / (common * parts_per_share) of a block. `common`: a common denominator of all plans.

    Of an allgather in which only block 1 moves:

    >>> from antiphon.core.example import of_rows
    >>> unmoved_chunks([of_rows("allgather", 3, [(0, 1, 1, 0, 0), (0, 1, 1, 2, 0)])], parts_per_share=4, common=1)
    (array([0, 2], dtype=int32), array([4, 4]))
    """
    moving = np.zeros(plans[0].collective.blocks, bool)
    for plan in plans:
        moving[plan.chunks.block[plan.chunk]] = True
    chunks = plans[0].chunks  # any plan's would do: all divide the same blocks
    unmoved = np.flatnonzero(~moving[chunks.block])
    return chunks.block[unmoved], chunks.share[unmoved] * (common // chunks.denominator * parts_per_share)


def join_plans(
    plans: Sequence[Schedule],
    chunk_table: Sequence[tuple[NDArray[np.int32], Longs]],
    rows: Sequence[PlanRows],
    denominator: int,
    pieces: Longs,
) -> Schedule:
    """Join rows of several plans into one schedule; chunks are sorted by block and renumbered.

    `chunk_table`: blocks and shares of the new chunks; shares are in units of 1 / denominator of a block.
    `pieces`: by new chunk, its number of pieces.

    Two broadcasts to rank 1, one with the first quarter of the block, the other, a step later, with the rest:

    >>> from antiphon.core.example import of_rows
    >>> plans = [of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,))] * 2
    >>> chunk_table = [(np.array([0], np.int32), np.array([share])) for share in (1, 3)]
    >>> rows = [PlanRows(n, np.array([0]), np.array([n]), np.array([n])) for n in (0, 1)]
    >>> joint = join_plans(plans, chunk_table, rows, 4, np.array([1, 1]))
    >>> joint.step.tolist(), joint.chunk.tolist(), joint.chunks.offset.tolist(), joint.chunks.share.tolist()
    ([0, 1], [0, 1], [0, 1], [1, 3])
    """
    # sort the chunks by block; new_number[i] is the new number of chunk i
    block = np.concatenate([column_part for column_part, _ in chunk_table])
    share = np.concatenate([column_part for _, column_part in chunk_table]).astype(np.int64)
    order = np.argsort(block, kind="stable")
    new_number = np.argsort(order)
    block, share = block[order], share[order]
    # a chunk's offset: what precedes it in its block
    before = np.cumsum(share) - share
    first = np.searchsorted(block, block)
    divisor = math.gcd(denominator, *np.unique(share).tolist())
    chunks = Chunks(block, (before - before[first]) // divisor, share // divisor, denominator // divisor)
    # one table of routes; those of plan n begin at base[n]
    base = np.cumsum([0, *(len(plan.routes) for plan in plans)])
    routes = plans[0].routes
    for plan in plans[1:]:
        routes = routes.join(plan.routes)

    def column(name: str) -> NDArray[np.int32]:
        """Return a column of the rows of all plans."""
        return np.concatenate([getattr(plans[n], name)[row_numbers] for n, row_numbers, _, _ in rows])

    def route(n: int, row_numbers: Longs) -> Longs:
        """Return the routes of a plan's rows, renumbered in the joint table (-1: none)."""
        routes_of_plan = plans[n].route
        if routes_of_plan is None:
            return np.full(len(row_numbers), -1, np.int64)
        return np.where(routes_of_plan[row_numbers] < 0, -1, routes_of_plan[row_numbers] + base[n])

    return Schedule(
        plans[0].collective, chunks, np.concatenate([step for _, _, step, _ in rows]),
        new_number[np.concatenate([chunk for *_, chunk in rows])], column("src"), column("dst"),
        column("op").astype(np.uint8), route=np.concatenate([route(n, row_numbers) for n, row_numbers, _, _ in rows]),
        joint=_number_joints(plans, rows), routes=routes, pieces=pieces[order],
    )  # fmt: skip


def _number_joints(plans: Sequence[Schedule], rows: Sequence[PlanRows]) -> Ints | None:
    """Return the joints of these rows of plans, those of every copy with numbers of their own; None without any."""
    if all(plan.joint is None for plan in plans):
        return None
    columns, used = [], 0
    for number, row_numbers, _, _ in rows:
        joint = plans[number].joint
        column = np.full(len(row_numbers), -1) if joint is None else joint[row_numbers].astype(np.int64)
        columns.append(np.where(column >= 0, column + used, -1))
        used += int(column.max(initial=-1)) + 1
    return as_int32(np.concatenate(columns))
