"""Give every hop of a plan its own start times, so that links stay busy while other data are still on their way.

Input: an unpipelined schedule (the plan), whose rows are called hops here, and a number of steps. Output
(`HopTimer.to_schedule`): the same hops in that many steps, each chunk cut into parts that pass a hop at different
times. A linear program chooses for every hop h the fraction f[h, s] of its data that has passed by the end of step s:

    minimize sum of t[s]                                     (the lengths of the steps)
    f[h, s] <= f[p, s - 1]     for every hop p that h needs data from: they must have arrived one step before
    f[h, s] <= f[p, s]         for every hop p whose data h overwrites: they must have been sent (`find_constraints`)
    t[s] >= load of each resource (link or shared limit) by f[., s] - f[., s - 1]

In a pipeline of equal pieces every hop of a piece comes a fixed number of steps after the first; here it may pause.
Chunks are cut wherever one of their hops pauses.

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Longs, ranges
from antiphon.core.dependencies import versions
from antiphon.core.routes import latencies, resolve
from antiphon.core.schedule import MAX_DENOMINATOR, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.uneven import LEVELS, LOSS, join_plans, still_chunks

Counts = NDArray[np.int64]  # [class, step]
LABELS = 4  # levels of merging classes
MOST_COMPARED = 2**31  # loads compared to find dominated resources: some CPU seconds
NEAR = 1e-6  # in units of rounding: values this near to a half count as a half, whatever the solver's last digits are
SAME = 1e-9  # relative tolerance when loads are compared
Hashes = NDArray[np.uint64]
Span = tuple[Longs, Longs]  # by group: first item, and end


@dataclass(frozen=True, eq=False)
class HopClasses:
    """Classes of hops, as the linear program sees them. `class_of`: by row, its class.

    By class: `owner`, the label of its chunks (chunks of one label are cut alike); `latency`, in seconds; `load[class,
    kind]`, seconds per byte of nbytes that the whole class puts on each kind of resource; `depth` and `height`, the
    steps needed before and after it. Constraints: class `later[i]` at least `lag[i]` steps after class `earlier[i]`.
    """

    class_of: Longs
    owner: Longs
    latency: Floats
    earlier: Longs
    later: Longs
    lag: Longs
    load: Floats
    depth: Longs
    height: Longs

    def __len__(self) -> int:
        """Return the number of classes."""
        return len(self.owner)

    @property
    def steps(self) -> int:
        """The minimum number of steps."""
        return int((self.depth + self.height).max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class HopProgress:
    """How far hops are by the end of each step: `counts[class, step]` / `denominator` of their data have passed.

    `time`: seconds per byte of nbytes; `latency`: seconds, of all steps together.
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
        self._row_labels: dict[int, tuple[Longs, Longs]] = {}
        self._hop_classes: dict[int, HopClasses | None] = {}
        self._progress: dict[tuple[HopClasses, int], HopProgress | None] = {}

    @cached_property
    def classes(self) -> Classification:
        """The finest classes."""
        return classify_hops(self.plan, self.topology)

    def class_levels(self, max_classes: int) -> Iterator[HopClasses]:
        """Yield classifications of at most `max_classes` classes, from fine (exact, slow) to coarse.

        Level 0 has the classes of `classify_hops`. The others merge hops of one latency that need data from the same
        classes: of chunks of a class (1), of chunks of a class of blocks (2), of any chunks (3).
        """
        for level in range(LABELS):
            class_of, owner = self._label_rows(level)
            if int(class_of.max(initial=-1)) < max_classes:
                if level not in self._hop_classes:
                    self._hop_classes[level] = self._make_hops(class_of, owner)
                hops = self._hop_classes[level]
                if hops is not None:
                    yield hops

    def _label_rows(self, level: int) -> tuple[Longs, Longs]:
        """Return, by row, its class at this level and the label of its chunk."""
        if level not in self._row_labels:
            classes, chunk = self.classes, self.plan.chunk
            if level < 2:
                owner = classes.chunk[chunk]
            elif level == 2:
                owner = classes.block[self.plan.chunks.block[chunk]]
            else:
                owner = np.zeros(len(chunk), np.int64)
            self._row_labels[level] = classes.hop if level == 0 else merge_classes(classes, owner), owner
        return self._row_labels[level]

    def _make_hops(self, class_of: Longs, owner: Longs) -> HopClasses | None:
        """Return the classes with their loads; None if there are too many kinds of resources."""
        classes, count = self.classes, int(class_of.max(initial=-1)) + 1
        load = self._class_loads(class_of, count)
        if load is None:
            return None
        member = np.zeros(count, np.int64)
        member[class_of] = np.arange(len(class_of))
        start_order = classes.before
        # one constraint per pair of classes and lag, for any number of rows
        first, later, lag = np.unique(
            np.stack([class_of[start_order.earlier], class_of[start_order.later], start_order.lag]), axis=1
        )
        depth, height = longest_chains(first, later, lag, count), longest_chains(later, first, lag, count)
        return HopClasses(class_of, owner[member], classes.latency[member], first, later, lag, load, depth, height)

    def _class_loads(self, class_of: Longs, count: int) -> Floats | None:
        """Return the load by class and kind (class of resources), or None if that would take too long.

        Kinds that another one exceeds in every class are left out: they never decide the length of a step.
        """
        classes, resources = self.classes, self.topology.resources
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
        row, on = classes.crossed
        representatives = np.unique(classes.resource, return_index=True)[1]
        representatives = representatives[np.isin(representatives, on)]  # unused resources have a class, too
        if len(representatives) ** 2 * count > MOST_COMPARED:
            return None
        place = np.full(len(capacity), -1)
        place[representatives] = np.arange(len(representatives))
        crosses_one = place[on] >= 0
        row, at = row[crosses_one], place[on[crosses_one]]
        # bytes of each class on each kind's representative, then seconds: divided by its capacity
        load = np.bincount(
            at * count + class_of[row], weights=classes.weight[row], minlength=len(representatives) * count
        )
        load = load.reshape(len(representatives), count) / capacity[representatives][:, None]
        # heaviest first: a resource can only be dominated by a heavier one
        order = np.argsort(-load.sum(axis=1), kind="stable")
        load = load[order[load[order].any(axis=1)]]
        heavy = np.empty_like(load)
        heavy_count = 0
        for kind_load in load:
            if not (heavy[:heavy_count] >= kind_load * (1 - SAME)).all(axis=1).any():
                heavy[heavy_count] = kind_load
                heavy_count += 1
        return np.ascontiguousarray(heavy[:heavy_count].T)

    def count_rows(self, progress: HopProgress) -> int:
        """Return the number of transfers of the schedule."""
        hops_of = np.bincount(progress.hops.class_of, minlength=len(progress.hops))
        return sum(
            int(hops_of[owned].sum()) * (len(_cut_points(progress.counts[owned])) - 1)
            for owned in _classes_by_owner(progress.hops)
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
        for denominator in LEVELS:
            if self.plan.chunks.denominator * denominator >= MAX_DENOMINATOR:
                break
            counts = _round_progress(hops, exact, denominator)
            progress = HopProgress(
                hops, counts, denominator, _seconds_per_byte(hops, counts / denominator), _latency_seconds(hops, counts)
            )
            if progress.time <= goal * (1 + LOSS):
                break
        return progress

    def to_schedule(self, progress: HopProgress) -> Schedule:
        """Return the schedule: every chunk cut where some hop of its chunks' label pauses, every hop when it is due."""
        plan, hops = self.plan, progress.hops
        table, rows = [still_chunks([plan], progress.denominator, plan.chunks.denominator)], []
        count = len(table[0][0])
        for owned in _classes_by_owner(hops):
            place = np.full(len(hops), -1, np.int64)
            place[owned] = np.arange(len(owned))
            hop_rows = np.flatnonzero(place[hops.class_of] >= 0)
            chunks, number = np.unique(plan.chunk[hop_rows], return_inverse=True)
            for low, high in pairwise(_cut_points(progress.counts[owned])):
                # a hop sends the part (low, high] in the first step by whose end at least `high` units have passed
                due = (progress.counts[owned] < high).sum(axis=1)
                table.append((plan.chunks.block[chunks], plan.chunks.share[chunks] * (high - low)))
                rows.append((0, hop_rows, due[place[hops.class_of[hop_rows]]], number + count))
                count += len(chunks)
        return join_plans([plan], table, rows, plan.chunks.denominator * progress.denominator, np.ones(count, np.int64))


def _classes_by_owner(hops: HopClasses) -> Iterator[Longs]:
    """Yield, per label of chunks, the classes of hops of these chunks, which are cut alike."""
    for owner in np.unique(hops.owner).tolist():
        yield np.flatnonzero(hops.owner == owner)


def _cut_points(counts: Counts) -> list[int]:
    """Return the amounts after which some of these hops pause, from 0 to the denominator."""
    cuts: list[int] = np.union1d([0], counts).tolist()
    return cuts


def _solve_progress(hops: HopClasses, steps: int) -> Floats | None:
    """Return the optimal f[class, step] of the linear program above, or None.

    Variables: f, then the lengths t of steps.
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    places, kinds = len(hops) * steps, hops.load.shape[1]
    through, clock = np.arange(places).reshape(len(hops), steps), np.arange(places, places + steps)
    low, high = np.zeros(places + steps), np.full(places + steps, np.inf)
    step = np.arange(steps)
    # nothing can pass before step `depth`, and everything must have passed `height` steps before the end
    high[:places] = np.where(step < hops.depth[:, None], 0.0, 1.0).ravel()
    low[:places] = np.where(step >= steps - 1 - hops.height[:, None], 1.0, 0.0).ravel()
    # what has passed cannot shrink: f[h, s] - f[h, s + 1] <= 0
    rows = _Rows()
    rows.add_rows((through[:, :-1].ravel(), 1.0), (through[:, 1:].ravel(), -1.0))
    # f[later, s] - f[earlier, s - lag] <= 0
    for lag in (0, 1):
        after, first = through[hops.later[hops.lag == lag]], through[hops.earlier[hops.lag == lag]]
        rows.add_rows((after[:, lag:].ravel(), 1.0), (first[:, : steps - lag].ravel(), -1.0))
    for kind in range(kinds):
        loading = np.flatnonzero(hops.load[:, kind])
        load = hops.load[loading, kind][:, None] / hops.load.max()
        rows.add_step_sums(through[loading], np.broadcast_to(load, (len(loading), steps)), clock)
    cost = np.zeros(places + steps)
    cost[clock] = 1
    solution = linprog(
        cost, A_ub=rows.to_matrix(sp, len(cost)), b_ub=np.zeros(rows.count), bounds=np.stack([low, high], axis=1),
        method="highs-ipm",
    )  # fmt: skip
    return np.asarray(solution.x[:places].reshape(len(hops), steps)) if solution.status == 0 else None


class _Rows:
    """Rows of a linear program under construction: all are sums of columns times values <= 0."""

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[tuple[Longs, Longs, Floats]] = []

    def add_rows(self, *terms: tuple[Longs, float]) -> None:
        """Append rows: the i-th is the sum over terms of value * columns[i]."""
        count = len(terms[0][0])
        for columns, value in terms:
            self.entries.append((self.count + np.arange(count), columns, np.full(count, value)))
        self.count += count

    def add_step_sums(self, through: Longs, load: Floats, clock: Longs) -> None:
        """Append a row per step s: sum of load * (f[., s] - f[., s - 1]) - t[s] <= 0.

        `through`: columns of f by class and step; `clock`: columns of t.
        """
        row_of = np.broadcast_to(self.count + np.arange(len(clock)), through.shape)
        self.entries += [
            (row_of.ravel(), through.ravel(), load.ravel()),
            (row_of[:, 1:].ravel(), through[:, :-1].ravel(), -load[:, 1:].ravel()),
            (self.count + np.arange(len(clock)), clock, np.full(len(clock), -1.0)),
        ]
        self.count += len(clock)

    def to_matrix(self, sp: Any, columns: int) -> Any:
        """Return the rows as a sparse matrix. `sp`: the module scipy.sparse."""
        row, column, value = (np.concatenate(column) for column in zip(*self.entries, strict=True))
        return sp.csr_array((value, (row, column)), shape=(self.count, columns))


def _round_progress(hops: HopClasses, exact: Floats, denominator: int) -> Counts:
    """Return f in integers over the denominator; halves are rounded down, independent of the solver's last digits.

    Rounding is monotone, so constraints f <= f' stay satisfied; where the solver violates one by its tolerance, the
    larger side is raised.
    """
    counts = np.clip(np.floor(exact * denominator + (0.5 - NEAR)), 0, denominator).astype(np.int64)
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


def _seconds_per_byte(hops: HopClasses, through: Floats) -> float:
    """Return seconds per byte of nbytes, the sum of the lengths of steps, for f (`through`)."""
    moved = np.diff(through, axis=1, prepend=0.0)
    return float(np.einsum("hk,hs->ks", hops.load, moved).max(axis=0).sum())  # no BLAS: its sums vary by machine


def _latency_seconds(hops: HopClasses, counts: Counts) -> float:
    """Return the latency of all steps: in each, that of the slowest class of hops that moves data."""
    moving = np.diff(counts, axis=1, prepend=0) > 0
    return float(np.where(moving, hops.latency[:, None], 0.0).max(axis=0).sum())


@dataclass(frozen=True, eq=False)
class StartOrder:
    """Hop `later[i]` starts at least `lag[i]` steps after hop `earlier[i]`.

    Lag 1 for data it needs, 0 for data sent before it is overwritten.
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
    history = versions(schedule)
    read_at, readers = history.readers
    write_at, writers = history.writers
    copied = np.zeros(len(history), bool)
    copied[history.write[schedule.op != REDUCE]] = True
    first, idle = history.initial, np.diff(read_at) == 0
    joins = np.zeros(len(history), bool)  # consecutive additions to an unread sum form one group of writes
    # a group is broken by the initial value, by a copy, and by any reader between two additions
    joins[1:] = ~first[1:] & ~first[:-1] & idle[:-1] & ~copied[1:] & ~copied[:-1]
    begin = np.flatnonzero(~joins)
    end = np.append(begin[1:], len(history))
    wrote, read = (write_at[begin], write_at[end]), (read_at[begin], read_at[end])
    every = np.arange(len(begin))
    later = np.flatnonzero(~first[begin])  # versions that replace an earlier one of their cell
    unread = later[read[0][later - 1] == read[1][later - 1]]
    # the three hazards of a processor pipeline: read after write, write after read, and write after write of a version
    # that nothing reads
    pairs = [
        (_all_pairs(writers, wrote, every, readers, read, every), 1),
        (_all_pairs(readers, read, later - 1, writers, wrote, later), 0),
        (_all_pairs(writers, wrote, unread - 1, writers, wrote, unread), 1),
    ]
    # a row that reads and writes one cell need not wait for itself
    earlier, after = (np.concatenate([pair[side] for pair, _ in pairs]) for side in (0, 1))
    lag = np.concatenate([np.full(len(pair[0]), distance, np.int64) for pair, distance in pairs])
    apart = earlier != after
    return StartOrder(earlier[apart], after[apart], lag[apart])


def _all_pairs(
    left_items: Longs, of_left: Span, left_groups: Longs, right: Longs, of_right: Span, right_groups: Longs
) -> tuple[Longs, Longs]:
    """Return all pairs of an item of a left group and an item of the right group beside it.

    `of_left`, `of_right`: where each group's items begin and end in `left_items` and `right`. `left_groups[i]` is
    matched with `right_groups[i]`.
    """
    low, left_count = of_left[0][left_groups], (of_left[1] - of_left[0])[left_groups]
    start, right_count = of_right[0][right_groups], (of_right[1] - of_right[0])[right_groups]
    each = left_count * right_count
    owner = np.repeat(np.arange(len(left_groups)), each)
    place = ranges(np.zeros(len(each), np.int64), each)
    across = right_count[owner]
    return left_items[low[owner] + place // across].astype(np.int64), right[start[owner] + place % across].astype(
        np.int64
    )


@dataclass(frozen=True, eq=False)
class Classification:
    """The class (a number) of every row (`hop`), chunk, block and resource of a schedule, and what `HopClasses` needs.

    `crossed`: pairs of a row and a resource that it uses. By row: `latency`, that of its path; `weight`, its
    fraction of nbytes; `adds`, whether it is a reduction. `before`: the order of rows.
    """

    hop: Longs
    chunk: Longs
    block: Longs
    resource: Longs
    crossed: tuple[Longs, Longs]
    latency: Floats
    weight: Floats
    adds: Bools
    before: StartOrder


def classify_hops(schedule: Schedule, topology: Topology) -> Classification:
    """Return the coarsest classes whose members have equally many neighbours of every other class.

    Color refinement: colors start from the properties of each item (amount, latency, operation, bandwidth). In each
    round an item's color becomes a hash of its own and its neighbours' colors, until the number of colors is stable.
    O(rounds * rows * links per row).
    """
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    rows, resources = schedule.transfers, topology.resources
    hops = np.diff(resolved.table.ptr)[resolved.route]
    row = np.repeat(np.arange(rows), hops)
    on = resolved.table.links[ranges(resolved.table.ptr[resolved.route], hops)].astype(np.int64)
    # a crossing of a link is also a crossing of every shared limit that the link is in
    limits_per_link = (
        (resources.limit_ptr[on + 1] - resources.limit_ptr[on]) if len(resources.limit_of) else np.zeros_like(on)
    )
    row = np.concatenate([row, np.repeat(row, limits_per_link)])
    if limits_per_link.any():
        on = np.concatenate([on, resources.limit_of[ranges(resources.limit_ptr[on], limits_per_link)]])
    latency = np.append(latencies(topology, resolved.table), 0.0)[resolved.route]
    weights, scale = schedule.chunks.weights(schedule.collective)
    start_order = find_constraints(schedule)
    chunk = schedule.chunk.astype(np.int64)
    # first colors: of rows by amount, latency and operation; of resources by capacity; of chunks and blocks by weight
    mark = _hash_rows(_number_values(weights)[chunk], _number_values(latency), schedule.op.astype(np.uint64))
    place = _hash_rows(_number_values(resources.klass))
    owner = _hash_rows(_number_values(weights))
    home = _hash_rows(_number_values(schedule.collective.weights))
    block = schedule.chunks.block.astype(np.int64)
    kinds = 0
    while True:
        # one round: hash each item's color with the multiset of its neighbours' colors
        place = _hash_rows(place, _sum_hashes(_hash_rows(mark[row]), on, len(place)))
        owner = _hash_rows(owner, _sum_hashes(_hash_rows(mark), chunk, len(owner)), home[block])
        home = _hash_rows(home, _sum_hashes(_hash_rows(owner), block, len(home)))
        mark = _hash_rows(
            mark,
            owner[chunk],
            _sum_hashes(_hash_rows(place[on]), row, rows),
            _sum_hashes(
                _hash_rows(mark[start_order.earlier], start_order.lag.astype(np.uint64)), start_order.later, rows
            ),
            _sum_hashes(
                _hash_rows(mark[start_order.later], start_order.lag.astype(np.uint64)), start_order.earlier, rows
            ),
        )
        # classes only split (each hash includes the old color), so an unchanged number means a stable partition
        now = sum(len(np.unique(marks)) for marks in (mark, place, owner, home))
        if now <= kinds:
            break
        kinds = now
    hop, owners, blocks, places = (
        np.unique(marks, return_inverse=True)[1].astype(np.int64) for marks in (mark, owner, home, place)
    )
    weight = np.asarray(weights, np.float64)[chunk] / float(scale)
    return Classification(hop, owners, blocks, places, (row, on), latency, weight, schedule.op == REDUCE, start_order)


def merge_classes(classes: Classification, owner: Longs) -> Longs:
    """Return coarser classes of rows: of equally labelled chunks, one latency, and with the same classes before them.

    For reductions "before" becomes "after": data flow to a root, so run backwards they look like copies from it.
    `owner`: by row, the label of its chunk.
    """
    start_order, rows = classes.before, len(classes.hop)
    mixed = ~classes.adds[start_order.earlier] & classes.adds[start_order.later]  # a sum order for a copy
    adds = np.zeros(rows, bool) if mixed.any() else classes.adds
    inside = adds[start_order.earlier] == adds[start_order.later]
    first, after, lag = start_order.earlier[inside], start_order.later[inside], start_order.lag[inside]
    # sums progress towards a root: reversed, they look like copies from it
    first, after = np.where(adds[first], after, first), np.where(adds[first], first, after)
    base = _hash_rows(_number_values(owner), _number_values(classes.latency), adds.astype(np.uint64))
    mark, kinds = base, 0
    # refine from the sources on: after i rounds, classes distinguish what lies up to i hops before
    while (now := len(np.unique(mark))) > kinds:
        kinds, predecessor_mark = now, _hash_rows(mark[first], lag.astype(np.uint64))
        order = np.lexsort((predecessor_mark, after))
        fresh = np.ones(len(order), bool)
        fresh[1:] = (np.diff(after[order]) != 0) | (predecessor_mark[order][1:] != predecessor_mark[order][:-1])
        distinct = order[fresh]  # count each class once, not its members
        mark = _hash_rows(base, _sum_hashes(predecessor_mark[distinct], after[distinct], rows))
    return np.unique(mark, return_inverse=True)[1].astype(np.int64)


def longest_chains(first: Longs, after: Longs, lag: Longs, count: int) -> Longs:
    """Return for each item the largest total lag of a chain of items before it."""
    depth = np.zeros(count, np.int64)
    while True:
        reached = depth.copy()
        np.maximum.at(reached, after, depth[first] + lag)
        if (reached == depth).all():
            return depth
        depth = reached


def _number_values(values: NDArray[Any]) -> Hashes:
    """Return for each value its position among the distinct values, ascending."""
    return np.unique(values, return_inverse=True)[1].astype(np.uint64)


def _hash_rows(*columns: Hashes) -> Hashes:
    """Return a 64-bit hash of the values side by side."""
    with np.errstate(over="ignore"):
        out = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
        for values in columns:
            out = (out ^ values) * np.uint64(0xD6E8FEB86659FD93)
            out ^= out >> np.uint64(32)
            out *= np.uint64(0xD6E8FEB86659FD93)
            out ^= out >> np.uint64(29)
        return out


def _sum_hashes(values: Hashes, at: Longs, size: int) -> Hashes:
    """Return the sum of values by place, modulo 2^64: independent of their order."""
    out = np.zeros(size, np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(out, at, values)
    return out
