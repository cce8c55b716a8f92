"""Give every hop of a plan its own start times, so that links stay busy while other data are still on their way.

Input: an unpipelined schedule (the plan), whose rows are called hops here, and a number of steps. Output
(`HopTimer.to_schedule`): the same hops in that many steps, each chunk cut into parts that pass a hop at different
times. A linear program chooses for every hop h the fraction f[h, s] of its data that has passed by the end of step s:

    minimize sum of t[s]                                     (the lengths of the steps)
    f[h, s] <= f[p, s - 1]     for every hop p that h needs data from: they must have arrived one step before
    f[h, s] <= f[p, s]         for every hop p whose data h overwrites: they must have been sent (`find_constraints`)
    t[s] >= load of each resource (link or shared limit) by f[., s] - f[., s - 1]

In a pipeline of equal pieces every hop of a piece comes a fixed number of steps after the first; here it may pause.
Chunks are cut wherever one of their hops pauses. (`uneven.py` is the alternative in which hops do not pause.)

Example: an allgather on two boxes. Data from the other box arrive late, and until then the links inside a box would be
idle. With hop timing each rank sends its own block inside the box first and forwards the other box's data later.

A program over all hops would be too large, so it is solved over classes of hops. `classify_hops` computes the coarsest
classes of hops, chunks, blocks and resources such that all members of a class meet equally many members of every other
class (color refinement, by hashing). A timing that treats the hops of a class alike loads the resources of a class
alike, and averaging any timing over classes makes it no slower. So a program over classes loses nothing, and no
symmetry group need be computed. If even that is too large, classes are merged (`HopTimer.class_levels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import HASH_MULTIPLIER, Bools, Floats, Longs, concat_ranges
from antiphon.core.dependencies import versions
from antiphon.core.routes import latencies, resolve
from antiphon.core.schedule import MAX_DENOMINATOR, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.uneven import (
    DENOMINATORS,
    MAX_ROUNDING_LOSS,
    PlanRows,
    join_plans,
    unmoved_chunks,
)

Counts = NDArray[np.int64]  # [class, step]
LEVELS_OF_CLASSES = 4  # from the finest classes to the coarsest, see `HopTimer.class_levels`
MOST_COMPARED = 2**31  # loads compared to find dominated resources: some CPU seconds
# values this near to a half, in units of rounding, count as a half, so that the solver's last digits do not matter
HALF_TOLERANCE = 1e-6
LOAD_TOLERANCE = 1e-9  # relative tolerance when loads are compared: they are sums of floats
Hashes = NDArray[np.uint64]


class GroupSpans(NamedTuple):
    """Where the items of each group begin and end in a list of `items`."""

    items: Longs
    begin: Longs
    end: Longs

    def of_groups(self, groups: Longs) -> GroupSpans:
        """Return the spans of these groups, in this order."""
        return GroupSpans(self.items, self.begin[groups], self.end[groups])


@dataclass(frozen=True, eq=False)
class HopClasses:
    """Classes of hops, as the linear program sees them.

    `class_of`: by row of the plan, its class.
    `chunk_label`: by class, the label of its chunks; chunks of one label are cut alike.
    `latency`: by class, the latency of its paths in seconds.
    `earlier`, `later`, `lag`: class later[i] starts at least lag[i] steps after class earlier[i].
    `load[class, kind]`: seconds per byte of nbytes that the hops of a class together put on a resource of this kind.
    `depth`, `height`: by class, the steps needed before it and after it.
    """

    class_of: Longs
    chunk_label: Longs
    latency: Floats
    earlier: Longs
    later: Longs
    lag: Longs
    load: Floats
    depth: Longs
    height: Longs

    def __len__(self) -> int:
        """Return the number of classes."""
        return len(self.chunk_label)

    @property
    def steps(self) -> int:
        """The minimum number of steps."""
        return int((self.depth + self.height).max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class HopProgress:
    """How far hops are by the end of each step: `counts[class, step]` / `denominator` of their data have passed.

    `time`: the lengths of all steps together, in seconds per byte of nbytes.
    `latency`: the latencies of all steps together, in seconds.
    """

    hops: HopClasses
    counts: Counts
    denominator: int
    time: float
    latency: float


class HopTimer:
    """A plan prepared for hop timing; classes and solutions are cached for all message sizes."""

    def __init__(self, plan: Schedule, topology: Topology) -> None:
        self.plan, self.topology = replace(plan, pieces=1), topology
        self._row_labels: dict[int, tuple[Longs, Longs]] = {}  # by level
        self._hop_classes: dict[int, HopClasses | None] = {}  # by level
        self._progress: dict[tuple[HopClasses, int], HopProgress | None] = {}  # by classes and number of steps

    @cached_property
    def classes(self) -> Classification:
        """The finest classes."""
        return classify_hops(self.plan, self.topology)

    def class_levels(self, max_classes: int) -> Iterator[HopClasses]:
        """Yield classifications of at most `max_classes` classes, from fine (exact, slow) to coarse.

        Level 0 has the classes of `classify_hops`. The other levels merge hops of equal latency that need data from the
        same classes, provided that they move
        level 1: chunks of the same class,
        level 2: chunks of blocks of the same class,
        level 3: any chunks.
        """
        for level in range(LEVELS_OF_CLASSES):
            class_of, chunk_label = self._label_rows(level)
            if int(class_of.max(initial=-1)) < max_classes:
                if level not in self._hop_classes:
                    self._hop_classes[level] = self._make_hops(class_of, chunk_label)
                hops = self._hop_classes[level]
                if hops is not None:
                    yield hops

    def _label_rows(self, level: int) -> tuple[Longs, Longs]:
        """Return, by row, its class at this level and the label of its chunk."""
        if level not in self._row_labels:
            classes, chunk = self.classes, self.plan.chunk
            if level < 2:
                chunk_label = classes.chunk[chunk]
            elif level == 2:
                chunk_label = classes.block[self.plan.chunks.block[chunk]]
            else:
                chunk_label = np.zeros(len(chunk), np.int64)
            self._row_labels[level] = classes.hop if level == 0 else merge_classes(classes, chunk_label), chunk_label
        return self._row_labels[level]

    def _make_hops(self, class_of: Longs, chunk_label: Longs) -> HopClasses | None:
        """Return these classes of rows with their loads; None if there are too many kinds of resources."""
        classes, count = self.classes, int(class_of.max(initial=-1)) + 1
        load = self._class_loads(class_of, count)
        if load is None:
            return None
        member_row = np.zeros(count, np.int64)  # by class, any one of its rows
        member_row[class_of] = np.arange(len(class_of))
        start_order = classes.order
        # the rows' constraints as constraints of classes, each once
        first, later, lag = np.unique(
            np.stack([class_of[start_order.earlier], class_of[start_order.later], start_order.lag]), axis=1
        )
        depth, height = longest_chains(first, later, lag, count), longest_chains(later, first, lag, count)
        return HopClasses(
            class_of, chunk_label=chunk_label[member_row], latency=classes.latency[member_row],
            earlier=first, later=later, lag=lag, load=load, depth=depth, height=height,
        )  # fmt: skip

    def _class_loads(self, class_of: Longs, count: int) -> Floats | None:
        """Return the load by class of hops and kind (class of resources), or None if that would take too long.

        Kinds that another one exceeds in every class are left out: they never decide the length of a step.
        """
        classes, resources = self.classes, self.topology.resources
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.class_of]
        row, resource = classes.crossings
        _, representatives = np.unique(classes.resource, return_index=True)
        representatives = representatives[np.isin(representatives, resource)]  # unused resources have a class, too
        if len(representatives) ** 2 * count > MOST_COMPARED:
            return None
        kind_of = np.full(len(capacity), -1)
        kind_of[representatives] = np.arange(len(representatives))
        on_representative = kind_of[resource] >= 0
        row, kind = row[on_representative], kind_of[resource[on_representative]]
        # bytes of each class on each kind's representative, then seconds: divided by its capacity
        load = np.bincount(
            kind * count + class_of[row], weights=classes.weight[row], minlength=len(representatives) * count
        )
        load = load.reshape(len(representatives), count) / capacity[representatives][:, None]
        load = load[load.any(axis=1)]
        # heaviest first: a resource can only be dominated by a heavier one
        load = load[np.argsort(-load.sum(axis=1), kind="stable")]
        heavy = np.empty_like(load)
        heavy_count = 0
        for kind_load in load:
            if not (heavy[:heavy_count] >= kind_load * (1 - LOAD_TOLERANCE)).all(axis=1).any():
                heavy[heavy_count] = kind_load
                heavy_count += 1
        return np.ascontiguousarray(heavy[:heavy_count].T)

    def count_rows(self, progress: HopProgress) -> int:
        """Return the number of transfers of the schedule."""
        hops_of = np.bincount(progress.hops.class_of, minlength=len(progress.hops))
        return sum(
            int(hops_of[alike].sum()) * (len(_cut_points(progress.counts[alike])) - 1)
            for alike in _classes_by_label(progress.hops)
        )

    def progress_for(self, hops: HopClasses, steps: int) -> HopProgress | None:
        """Return the best timing of these classes in `steps` steps, cached for all sizes, or None.

        None: too few steps, no data, program unsolved, or no common denominator below MAX_DENOMINATOR.
        """
        if (hops, steps) not in self._progress:
            self._progress[hops, steps] = self._solve_and_round(hops, steps)
        return self._progress[hops, steps]

    def _solve_and_round(self, hops: HopClasses, steps: int) -> HopProgress | None:
        """Solve the linear program and round the fractions to the coarsest denominator that loses little."""
        if not hops.load.size or steps < hops.steps:
            return None
        exact = _solve_progress(hops, steps)
        if exact is None:
            return None
        goal, progress = _seconds_per_byte(hops, exact), None
        # coarse fractions mean few chunks
        for denominator in DENOMINATORS:
            if self.plan.chunks.denominator * denominator >= MAX_DENOMINATOR:
                break
            counts = _round_progress(hops, exact, denominator)
            progress = HopProgress(
                hops, counts, denominator, _seconds_per_byte(hops, counts / denominator), _latency_seconds(hops, counts)
            )
            if progress.time <= goal * (1 + MAX_ROUNDING_LOSS):
                break
        return progress

    def to_schedule(self, progress: HopProgress) -> Schedule:
        """Return the schedule: each chunk cut where some hop of chunks of its label pauses, each hop when it is due."""
        plan, hops = self.plan, progress.hops
        # new chunks, their shares in units of 1 / (both denominators): first those that no hop moves
        unmoved_blocks, unmoved_shares = unmoved_chunks([plan], progress.denominator, plan.chunks.denominator)
        chunk_table, rows, count = [(unmoved_blocks, unmoved_shares)], [], len(unmoved_blocks)
        for alike in _classes_by_label(hops):
            index_of = np.full(len(hops), -1, np.int64)
            index_of[alike] = np.arange(len(alike))
            hop_rows = np.flatnonzero(index_of[hops.class_of] >= 0)
            chunks, number = np.unique(plan.chunk[hop_rows], return_inverse=True)
            for low, high in pairwise(_cut_points(progress.counts[alike])):
                # a hop sends the part (low, high] in the first step by whose end at least `high` units have passed
                due_step = (progress.counts[alike] < high).sum(axis=1)
                chunk_table.append((plan.chunks.block[chunks], plan.chunks.share[chunks] * (high - low)))
                step = due_step[index_of[hops.class_of[hop_rows]]]
                rows.append(PlanRows(plan=0, rows=hop_rows, step=step, chunk=number + count))
                count += len(chunks)
        denominator = plan.chunks.denominator * progress.denominator
        return join_plans([plan], chunk_table, rows, denominator, pieces=np.ones(count, np.int64))


def _classes_by_label(hops: HopClasses) -> Iterator[Longs]:
    """Yield, per label of chunks, the classes of hops of these chunks, which are cut alike."""
    for label in np.unique(hops.chunk_label).tolist():
        yield np.flatnonzero(hops.chunk_label == label)


def _cut_points(counts: Counts) -> list[int]:
    """Return the amounts of data after which some of these hops pause, from 0 to the denominator."""
    cuts: list[int] = np.union1d([0], counts).tolist()
    return cuts


def _solve_progress(hops: HopClasses, steps: int) -> Floats | None:
    """Return the optimal f[class, step] of the linear program in the file's docstring, or None.

    Variables: f, then the lengths t of steps.
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    progress_count = len(hops) * steps
    f_columns = np.arange(progress_count).reshape(len(hops), steps)
    length_columns = progress_count + np.arange(steps)
    low, high = np.zeros(progress_count + steps), np.full(progress_count + steps, np.inf)
    step = np.arange(steps)
    # nothing can pass before step `depth`, and everything must have passed `height` steps before the end
    high[:progress_count] = np.where(step < hops.depth[:, None], 0.0, 1.0).ravel()
    low[:progress_count] = np.where(step >= steps - 1 - hops.height[:, None], 1.0, 0.0).ravel()
    # progress never falls: f[h, s] - f[h, s + 1] <= 0
    rows = _Rows()
    rows.add_rows((f_columns[:, :-1].ravel(), 1.0), (f_columns[:, 1:].ravel(), -1.0))
    # f[later, s] - f[earlier, s - lag] <= 0
    for lag in (0, 1):
        after, first = f_columns[hops.later[hops.lag == lag]], f_columns[hops.earlier[hops.lag == lag]]
        rows.add_rows((after[:, lag:].ravel(), 1.0), (first[:, : steps - lag].ravel(), -1.0))
    # t[s] >= load of each kind of resource, relative to the largest load so that the solver's tolerances suit it
    for kind_load in hops.load.T:
        loading = np.flatnonzero(kind_load)
        load = kind_load[loading][:, None] / hops.load.max()
        rows.add_step_sums(f_columns[loading], np.broadcast_to(load, (len(loading), steps)), length_columns)
    cost = np.zeros(progress_count + steps)
    cost[length_columns] = 1
    solution = linprog(
        cost, A_ub=rows.to_matrix(sp, len(cost)), b_ub=np.zeros(rows.count), bounds=np.stack([low, high], axis=1),
        method="highs-ipm",
    )  # fmt: skip
    return np.asarray(solution.x[:progress_count].reshape(len(hops), steps)) if solution.status == 0 else None


class _Rows:
    """Rows of a linear program under construction; each says that a sum of columns times values is <= 0."""

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[tuple[Longs, Longs, Floats]] = []  # row, column, value

    def add_rows(self, *terms: tuple[Longs, float]) -> None:
        """Append rows: the i-th is the sum, over the terms (columns, value), of value * columns[i]."""
        (first_columns, _), *_ = terms
        count = len(first_columns)
        for columns, value in terms:
            self.entries.append((self.count + np.arange(count), columns, np.full(count, value)))
        self.count += count

    def add_step_sums(self, f_columns: Longs, load: Floats, length_columns: Longs) -> None:
        """Append a row per step s: sum of load * (f[., s] - f[., s - 1]) - t[s] <= 0.

        `f_columns`: columns of f by class and step; `length_columns`: columns of t.
        """
        row_of = np.broadcast_to(self.count + np.arange(len(length_columns)), f_columns.shape)
        self.entries += [
            (row_of.ravel(), f_columns.ravel(), load.ravel()),
            (row_of[:, 1:].ravel(), f_columns[:, :-1].ravel(), -load[:, 1:].ravel()),
            (self.count + np.arange(len(length_columns)), length_columns, np.full(len(length_columns), -1.0)),
        ]
        self.count += len(length_columns)

    def to_matrix(self, sp: Any, columns: int) -> Any:
        """Return the rows as a sparse matrix. `sp`: the module scipy.sparse."""
        row, column, value = (np.concatenate(column) for column in zip(*self.entries, strict=True))
        return sp.csr_array((value, (row, column)), shape=(self.count, columns))


def _round_progress(hops: HopClasses, exact: Floats, denominator: int) -> Counts:
    """Return f in integers over the denominator; halves are rounded down, independent of the solver's last digits.

    Rounding is monotone, so a constraint f <= f' stays satisfied. Where the solver violates it by its tolerance, f' is
    raised.
    """
    # 0.5: to the nearest number
    counts = np.clip(np.floor(exact * denominator + (0.5 - HALF_TOLERANCE)), 0, denominator).astype(np.int64)
    counts[:, -1] = denominator
    counts = np.maximum.accumulate(counts, axis=1)
    steps = counts.shape[1]
    while True:
        # raising one count may violate the constraints of those before it: repeat until nothing changes. Counts only
        # rise and are at most the denominator, so this ends
        before = counts.copy()
        for lag in (0, 1):
            with_lag = hops.lag == lag
            need = np.zeros_like(counts)
            np.maximum.at(need, hops.earlier[with_lag], counts[hops.later[with_lag]])
            counts[:, : steps - lag] = np.maximum(counts[:, : steps - lag], need[:, lag:])
        if (counts == before).all():
            return counts


def _seconds_per_byte(hops: HopClasses, fraction: Floats) -> float:
    """Return seconds per byte of nbytes, the sum of the lengths of steps, for f (`fraction`)."""
    moved = np.diff(fraction, axis=1, prepend=0.0)
    return float(np.einsum("hk,hs->ks", hops.load, moved).max(axis=0).sum())  # no BLAS: its sums vary by machine


def _latency_seconds(hops: HopClasses, counts: Counts) -> float:
    """Return the latency of all steps: in each, that of the slowest class of hops that moves data."""
    moving = np.diff(counts, axis=1, prepend=0) > 0
    return float(np.where(moving, hops.latency[:, None], 0.0).max(axis=0).sum())


@dataclass(frozen=True, eq=False)
class StartOrder:
    """Hop `later[i]` starts at least `lag[i]` steps after hop `earlier[i]`.

    The lag is 1 if the later hop needs data of the earlier one, and 0 if it overwrites what the earlier one sends.
    """

    earlier: Longs
    later: Longs
    lag: Longs


def find_constraints(schedule: Schedule) -> StartOrder:
    """Return the order that any timing of the rows must keep.

    A row waits for the rows whose data it sends, and for those that read or write what it overwrites. Contributions to
    a sum may arrive in any order unless a row reads the sum between them.

    Rank 0 receives from 1 and 2 (rows 0 and 1), then sends to both (rows 2 and 3):

    >>> from antiphon.core.example import star
    >>> constraints = find_constraints(star())
    >>> list(zip(constraints.earlier.tolist(), constraints.later.tolist(), constraints.lag.tolist()))
    [(0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1), (0, 2, 0), (1, 3, 0)]
    """
    # a version is the value of one cell between two writes, and knows which rows write and read it (`writers` and
    # `readers`: offsets by version, and rows; `write`: by row, its version). The versions of a cell have consecutive
    # numbers in order of time; the first, `initial`, is the value before any row
    history = versions(schedule)
    read_at, readers = history.readers
    write_at, writers = history.writers
    copied = np.zeros(len(history), bool)
    copied[history.write[schedule.op != REDUCE]] = True
    first, is_unread = history.initial, np.diff(read_at) == 0
    joins = np.zeros(len(history), bool)  # consecutive additions to an unread sum form one group of versions
    # a group is broken by the initial value, by a copy, and by any reader between two additions
    joins[1:] = ~first[1:] & ~first[:-1] & is_unread[:-1] & ~copied[1:] & ~copied[:-1]
    begin = np.flatnonzero(~joins)
    end = np.append(begin[1:], len(history))
    # by group of versions: the rows that write it, and those that read it
    writes = GroupSpans(writers, write_at[begin], write_at[end])
    reads = GroupSpans(readers, read_at[begin], read_at[end])
    later = np.flatnonzero(~first[begin])  # groups that replace an earlier one of their cell
    unread = later[reads.begin[later - 1] == reads.end[later - 1]]
    # the three hazards of a processor pipeline: read after write, write after read, and write after write of a version
    # that nothing reads
    pairs = [
        _pair_items(writes, reads, lag=1),
        _pair_items(reads.of_groups(later - 1), writes.of_groups(later), lag=0),
        _pair_items(writes.of_groups(unread - 1), writes.of_groups(unread), lag=1),
    ]
    earlier, after, lag = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    are_distinct = earlier != after  # a row that reads and writes one cell need not wait for itself
    return StartOrder(earlier[are_distinct], after[are_distinct], lag[are_distinct])


def _pair_items(before: GroupSpans, after: GroupSpans, lag: int) -> tuple[Longs, Longs, Longs]:
    """Return all pairs of an item of group i of `before` and one of group i of `after`, and the lag for each pair."""
    after_sizes = after.end - after.begin
    pair_counts = (before.end - before.begin) * after_sizes
    group = np.repeat(np.arange(len(pair_counts)), pair_counts)
    # the pairs of a group are numbered: each item before in turn with all items after
    number = concat_ranges(np.zeros(len(pair_counts), np.int64), pair_counts)
    earlier = before.items[before.begin[group] + number // after_sizes[group]]
    later = after.items[after.begin[group] + number % after_sizes[group]]
    return earlier.astype(np.int64), later.astype(np.int64), np.full(len(group), lag, np.int64)


@dataclass(frozen=True, eq=False)
class Classification:
    """The class (a number) of every row (`hop`), chunk, block and resource of a schedule, and what `HopClasses` needs.

    `crossings`: pairs of a row and a resource that it uses, as two columns.
    `latency`: by row, the latency of its path in seconds.
    `weight`: by row, its fraction of nbytes.
    `is_sum`: by row, whether it is a reduction.
    `order`: the constraints between rows.
    """

    hop: Longs
    chunk: Longs
    block: Longs
    resource: Longs
    crossings: tuple[Longs, Longs]
    latency: Floats
    weight: Floats
    is_sum: Bools
    order: StartOrder


def classify_hops(schedule: Schedule, topology: Topology) -> Classification:
    """Return the coarsest classes whose members have equally many neighbours of every other class.

    Neighbours are a row and its resources, its chunk and the rows ordered before and after it; a chunk and its block.
    Color refinement: colors start from the properties of each item (amount, latency, operation, bandwidth). In each
    round an item's color becomes a hash of its own and its neighbours' colors, until the number of colors is stable.
    O(rounds * rows * links per row).
    """
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    rows, resources = schedule.transfers, topology.resources
    link_counts = np.diff(resolved.table.ptr)[resolved.route]
    crossing_row = np.repeat(np.arange(rows), link_counts)
    crossed = resolved.table.links[concat_ranges(resolved.table.ptr[resolved.route], link_counts)].astype(np.int64)
    # a crossing of a link is also a crossing of every shared limit that the link is in
    index, crossed = resources.with_limits(crossed)
    crossing_row = crossing_row[index]
    latency = np.append(latencies(topology, resolved.table), 0.0)[resolved.route]
    weights, scale = schedule.chunks.weights(schedule.collective)
    start_order = find_constraints(schedule)
    chunk = schedule.chunk.astype(np.int64)
    # first colors: of rows by amount, latency and operation; of resources by capacity; of chunks and blocks by weight
    row_color = _hash_rows(_number_values(weights)[chunk], _number_values(latency), schedule.op.astype(np.uint64))
    resource_color = _hash_rows(_number_values(resources.class_of))
    chunk_color = _hash_rows(_number_values(weights))
    block_color = _hash_rows(_number_values(schedule.collective.weights))
    block = schedule.chunks.block.astype(np.int64)
    earlier, later, lag = start_order.earlier, start_order.later, start_order.lag.astype(np.uint64)
    color_count = 0
    while True:
        # one round: hash each item's color with the multiset of its neighbours' colors
        crossing_rows = _sum_hashes(_hash_rows(row_color[crossing_row]), crossed, len(resource_color))
        resource_color = _hash_rows(resource_color, crossing_rows)
        rows_of_chunk = _sum_hashes(_hash_rows(row_color), chunk, len(chunk_color))
        chunk_color = _hash_rows(chunk_color, rows_of_chunk, block_color[block])
        block_color = _hash_rows(block_color, _sum_hashes(_hash_rows(chunk_color), block, len(block_color)))
        crossed_resources = _sum_hashes(_hash_rows(resource_color[crossed]), crossing_row, rows)
        rows_before = _sum_hashes(_hash_rows(row_color[earlier], lag), later, rows)
        rows_after = _sum_hashes(_hash_rows(row_color[later], lag), earlier, rows)
        row_color = _hash_rows(row_color, chunk_color[chunk], crossed_resources, rows_before, rows_after)
        # classes only split (each hash includes the old color), so an unchanged number means a stable partition
        new_count = sum(len(np.unique(colors)) for colors in (row_color, resource_color, chunk_color, block_color))
        if new_count <= color_count:
            break
        color_count = new_count
    hop, chunks, blocks, resources_of = (
        _number_values(colors).astype(np.int64) for colors in (row_color, chunk_color, block_color, resource_color)
    )
    weight = np.asarray(weights, np.float64)[chunk] / float(scale)
    return Classification(
        hop=hop, chunk=chunks, block=blocks, resource=resources_of, crossings=(crossing_row, crossed), latency=latency,
        weight=weight, is_sum=schedule.op == REDUCE, order=start_order,
    )  # fmt: skip


def merge_classes(classes: Classification, chunk_label: Longs) -> Longs:
    """Return coarser classes of rows: rows of a class have equally labelled chunks, equal latency, and rows of the same
    classes before them.

    For reductions "before" becomes "after": data flow to a root, so run backwards they look like copies from it.
    `chunk_label`: by row, the label of its chunk.
    """
    start_order, rows = classes.order, len(classes.hop)
    # where a reduction follows a copy, data do not flow first to roots and then from them: then nothing is reversed
    sum_after_copy = ~classes.is_sum[start_order.earlier] & classes.is_sum[start_order.later]
    is_sum = np.zeros(rows, bool) if sum_after_copy.any() else classes.is_sum
    is_kept = is_sum[start_order.earlier] == is_sum[start_order.later]
    first, after, lag = start_order.earlier[is_kept], start_order.later[is_kept], start_order.lag[is_kept]
    first, after = np.where(is_sum[first], after, first), np.where(is_sum[first], first, after)
    base = _hash_rows(_number_values(chunk_label), _number_values(classes.latency), is_sum.astype(np.uint64))
    color, color_count = base, 0
    # refine from the sources on: after i rounds, rows of a class agree in the classes of all rows up to i hops before
    while (new_count := len(np.unique(color))) > color_count:
        color_count, predecessor_color = new_count, _hash_rows(color[first], lag.astype(np.uint64))
        order = np.lexsort((predecessor_color, after))
        is_new = np.ones(len(order), bool)
        is_new[1:] = (np.diff(after[order]) != 0) | (predecessor_color[order][1:] != predecessor_color[order][:-1])
        distinct = order[is_new]  # count each class once, not its members
        color = _hash_rows(base, _sum_hashes(predecessor_color[distinct], after[distinct], rows))
    return _number_values(color).astype(np.int64)


def longest_chains(first: Longs, after: Longs, lag: Longs, count: int) -> Longs:
    """Return for each item the largest total lag of a chain before it: after[i] comes lag[i] steps after first[i]."""
    depth = np.zeros(count, np.int64)
    while True:
        reached = depth.copy()
        np.maximum.at(reached, after, depth[first] + lag)
        if (reached == depth).all():
            return depth
        depth = reached


def _number_values(values: NDArray[Any]) -> Hashes:
    """Return for each value its position among the distinct values, ascending."""
    _, position = np.unique(values, return_inverse=True)
    return position.astype(np.uint64)


def _hash_rows(*columns: Hashes) -> Hashes:
    """Return a 64-bit hash of the values side by side."""
    with np.errstate(over="ignore"):
        hashes = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)  # any start but 0
        for values in columns:  # twice multiply-xorshift
            hashes = (hashes ^ values) * HASH_MULTIPLIER
            hashes ^= hashes >> np.uint64(32)
            hashes *= HASH_MULTIPLIER
            hashes ^= hashes >> np.uint64(29)
        return hashes


def _sum_hashes(values: Hashes, at: Longs, size: int) -> Hashes:
    """Return, for each of `size` items, the sum of the values at it modulo 2^64: independent of their order."""
    sums = np.zeros(size, np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(sums, at, values)
    return sums
