"""A start time for every hop of a plan, so that links stay busy while other data are still on their way.

In a pipeline of equal pieces every hop of a piece is scheduled a fixed number of steps after its first. Here each hop
may pause: by the end of step s a fraction f[h, s] of the data of hop h has passed, and

    f[h, s] <= f[p, s - 1]     for every predecessor p (its data must have arrived one step before)
    t[s] >= load of each resource by f[., s] - f[., s - 1]
    minimize sum of t[s]

Chunks are then cut wherever some hop of their class pauses. Overwritten data add constraints without lag: a rank must
have sent a value before another replaces it (`find_constraints`).

Example: data go 0 > 1 > 2 and 0 > 2 alternately. Hop 1 > 2 may start with a small first part, and 0 > 1 may run ahead
while 1 > 2 is shared.

A program over all hops would be too large, so hops are classified. `classify_hops` computes the coarsest classes of
hops, chunks, blocks and resources such that all members of a class meet equally many of every other class (color
refinement, by hashing). A timing that treats a class alike loads a class of resources alike, and the mean over a class
of any timing is no slower. So a program over classes loses nothing, and no symmetry group need be computed. Where even
that is too large, classes are merged (`class_levels`).
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

Counts = NDArray[np.int64]
LABELS = 4  # levels of classes, from fine to coarse
MOST_COMPARED = 2**31  # loads compared to find dominated resources: some CPU seconds
NEAR = 1e-6  # of a part: values this near to a half count as one, so that the solver's last digits are irrelevant
SAME = 1e-9  # relative tolerance when loads are compared
Marks = NDArray[np.uint64]
Span = tuple[Longs, Longs]


@dataclass(frozen=True, eq=False)
class Hops:
    """Classes of hops. `of`: the class of every row.

    By class: `owner`, a label of its chunks; `late`, its latency; `load[class, kind]`, seconds per byte of nbytes that
    all of it puts on each kind of resource; `depth` and `height`, the steps needed before and after it. Constraints:
    class `later[i]` at least `lag[i]` steps after class `earlier[i]`.
    """

    of: Longs
    owner: Longs
    late: Floats
    earlier: Longs
    later: Longs
    lag: Longs
    load: Floats
    depth: Longs
    height: Longs

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def steps(self) -> int:
        """The minimum number of steps."""
        return int((self.depth + self.height).max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class Flow:
    """`parts[class, step]`: units of 1 / `denominator` of every hop that have passed by the end of each step.

    `time`: seconds per byte of nbytes; `latency`: seconds.
    """

    hops: Hops
    counts: Counts
    denominator: int
    time: float
    latency: float


class Waits:
    """A plan as classes of hops, with solved flows cached."""

    def __init__(self, plan: Schedule, topology: Topology) -> None:
        self.plan, self.topology = replace(plan, pieces=1), topology
        self._labelled: dict[int, tuple[Longs, Longs]] = {}
        self._made: dict[int, Hops | None] = {}
        self._flows: dict[tuple[Hops, int], Flow | None] = {}

    @cached_property
    def classes(self) -> Alike:
        return classify_hops(self.plan, self.topology)

    def class_levels(self, max_classes: int) -> Iterator[Hops]:
        """Yield classes of hops, at most `max_classes`, from fine (slow) to coarse.

        The levels: equivalent hops; then hops with the same predecessors of equivalent chunks, of equivalent blocks, of
        any chunks. Computed on demand.
        """
        for level in range(LABELS):
            of, owner = self._label_rows(level)
            if int(of.max(initial=-1)) < max_classes:
                if level not in self._made:
                    self._made[level] = self._make_hops(of, owner)
                hops = self._made[level]
                if hops is not None:
                    yield hops

    def _label_rows(self, level: int) -> tuple[Longs, Longs]:
        """Return the class of every row, and the label of its chunk."""
        if level not in self._labelled:
            classes, chunk = self.classes, self.plan.chunk
            if level < 2:
                owner = classes.chunk[chunk]
            elif level == 2:
                owner = classes.block[self.plan.chunks.block[chunk]]
            else:
                owner = np.zeros(len(chunk), np.int64)
            self._labelled[level] = classes.hop if level == 0 else merge_classes(classes, owner), owner
        return self._labelled[level]

    def _make_hops(self, of: Longs, owner: Longs) -> Hops | None:
        """Return the classes with their loads; None if there are too many kinds of resources."""
        classes, count = self.classes, int(of.max(initial=-1)) + 1
        load = self._class_loads(of, count)
        if load is None:
            return None
        member = np.zeros(count, np.int64)
        member[of] = np.arange(len(of))
        waits = classes.before
        # one constraint per pair of classes and lag, for any number of rows
        first, later, lag = np.unique(np.stack([of[waits.earlier], of[waits.later], waits.lag]), axis=1)
        depth, height = longest_chains(first, later, lag, count), longest_chains(later, first, lag, count)
        return Hops(of, owner[member], classes.late[member], first, later, lag, load, depth, height)

    def _class_loads(self, of: Longs, count: int) -> Floats | None:
        """Return the load by class and kind of resource, without dominated kinds; None if that would take long."""
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
        load = np.bincount(at * count + of[row], weights=classes.weight[row], minlength=len(representatives) * count)
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

    def count_rows(self, flow: Flow) -> int:
        """Return the number of transfers of the schedule."""
        hops_of = np.bincount(flow.hops.of, minlength=len(flow.hops))
        return sum(
            int(hops_of[owned].sum()) * (len(_cut_points(flow.counts[owned])) - 1)
            for owned in _classes_by_owner(flow.hops)
        )

    def flow_for(self, hops: Hops, steps: int) -> Flow | None:
        """Return the best flow for `steps` steps, cached for all sizes; None if impossible.

        Impossible: too few steps, no data, program unsolved, or no common denominator even for the coarsest parts.
        """
        if (hops, steps) not in self._flows:
            self._flows[hops, steps] = self._solve_and_round(hops, steps)
        return self._flows[hops, steps]

    def _solve_and_round(self, hops: Hops, steps: int) -> Flow | None:
        if not hops.load.size or steps < hops.steps:
            return None
        exact = _solve_flow(hops, steps)
        if exact is None:
            return None
        goal, flow = _seconds_per_byte(hops, exact), None
        # the coarsest parts that lose at most LOSS: coarse parts mean few chunks
        for denominator in LEVELS:
            if self.plan.chunks.denominator * denominator >= MAX_DENOMINATOR:
                break
            counts = _round_flow(hops, exact, denominator)
            flow = Flow(
                hops, counts, denominator, _seconds_per_byte(hops, counts / denominator), _latency_seconds(hops, counts)
            )
            if flow.time <= goal * (1 + LOSS):
                break
        return flow

    def to_schedule(self, flow: Flow) -> Schedule:
        """Cut every chunk where some hop of its class pauses, and start every hop when it is due."""
        plan, hops = self.plan, flow.hops
        table, rows = [still_chunks([plan], flow.denominator, plan.chunks.denominator)], []
        count = len(table[0][0])
        for owned in _classes_by_owner(hops):
            place = np.full(len(hops), -1, np.int64)
            place[owned] = np.arange(len(owned))
            hop_rows = np.flatnonzero(place[hops.of] >= 0)
            chunks, number = np.unique(plan.chunk[hop_rows], return_inverse=True)
            for low, high in pairwise(_cut_points(flow.counts[owned])):
                # a hop sends the part (low, high] in the first step by whose end at least `high` units have passed
                due = (flow.counts[owned] < high).sum(axis=1)
                table.append((plan.chunks.block[chunks], plan.chunks.share[chunks] * (high - low)))
                rows.append((0, hop_rows, due[place[hops.of[hop_rows]]], number + count))
                count += len(chunks)
        return join_plans([plan], table, rows, plan.chunks.denominator * flow.denominator, np.ones(count, np.int64))


def _classes_by_owner(hops: Hops) -> Iterator[Longs]:
    """Yield classes of hops whose chunks are cut alike."""
    for owner in np.unique(hops.owner).tolist():
        yield np.flatnonzero(hops.owner == owner)


def _cut_points(counts: Counts) -> list[int]:
    """Return where some of these hops pause, from nothing to all."""
    cuts: list[int] = np.union1d([0], counts).tolist()
    return cuts


def _solve_flow(hops: Hops, steps: int) -> Floats | None:
    """Return the fraction of every class that has passed by the end of every step.

    Variables: these fractions, and the lengths of steps.
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    places, kinds = len(hops) * steps, hops.load.shape[1]
    through, clock = np.arange(places).reshape(len(hops), steps), np.arange(places, places + steps)
    low, high = np.zeros(places + steps), np.full(places + steps, np.inf)
    step = np.arange(steps)
    # nothing can pass before `depth` steps, everything must have passed `height` steps before the end
    high[:places] = np.where(step < hops.depth[:, None], 0.0, 1.0).ravel()
    low[:places] = np.where(step >= steps - 1 - hops.height[:, None], 1.0, 0.0).ravel()
    # what has passed cannot shrink: f[h, s] - f[h, s + 1] <= 0
    rows = _Rows()
    rows.add_rows((through[:, :-1].ravel(), 1.0), (through[:, 1:].ravel(), -1.0))
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
    """Rows of a linear program under construction."""

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[tuple[Longs, Longs, Floats]] = []

    def add_rows(self, *terms: tuple[Longs, float]) -> None:
        """Append as many rows as each term has columns."""
        count = len(terms[0][0])
        for columns, value in terms:
            self.entries.append((self.count + np.arange(count), columns, np.full(count, value)))
        self.count += count

    def add_step_sums(self, through: Longs, load: Floats, clock: Longs) -> None:
        """Append a row per step: the load of what passes in it is at most its length."""
        row_of = np.broadcast_to(self.count + np.arange(len(clock)), through.shape)
        self.entries += [
            (row_of.ravel(), through.ravel(), load.ravel()),
            (row_of[:, 1:].ravel(), through[:, :-1].ravel(), -load[:, 1:].ravel()),
            (self.count + np.arange(len(clock)), clock, np.full(len(clock), -1.0)),
        ]
        self.count += len(clock)

    def to_matrix(self, sp: Any, columns: int) -> Any:
        row, column, value = (np.concatenate(column) for column in zip(*self.entries, strict=True))
        return sp.csr_array((value, (row, column)), shape=(self.count, columns))


def _round_flow(hops: Hops, exact: Floats, denominator: int) -> Counts:
    """Round to multiples of 1 / denominator; halves go down, independent of the solver's last digits.

    Rounding is monotone, so orders are preserved; where the solver falls short, predecessors are raised to their
    successors.
    """
    counts = np.clip(np.floor(exact * denominator + (0.5 - NEAR)), 0, denominator).astype(np.int64)
    counts[:, -1] = denominator
    counts = np.maximum.accumulate(counts, axis=1)
    steps = counts.shape[1]
    while True:
        # raising a predecessor may violate its own predecessors' constraints: repeat until nothing changes. Counts only
        # rise and are at most the denominator, so this ends
        before = counts.copy()
        for lag in (0, 1):
            with_lag = hops.lag == lag
            need = np.zeros_like(counts)
            np.maximum.at(need, hops.earlier[with_lag], counts[hops.later[with_lag]])
            counts[:, : steps - lag] = np.maximum(counts[:, : steps - lag], need[:, lag:])
        if (counts == before).all():
            return counts


def _seconds_per_byte(hops: Hops, through: Floats) -> float:
    """Return seconds per byte of nbytes: the lengths of all steps together."""
    moved = np.diff(through, axis=1, prepend=0.0)
    return float(np.einsum("hk,hs->ks", hops.load, moved).max(axis=0).sum())  # no BLAS: its sums vary by machine


def _latency_seconds(hops: Hops, counts: Counts) -> float:
    moving = np.diff(counts, axis=1, prepend=0) > 0
    return float(np.where(moving, hops.late[:, None], 0.0).max(axis=0).sum())


@dataclass(frozen=True, eq=False)
class Before:
    """Hop `later[i]` starts at least `lag[i]` steps after hop `earlier[i]`.

    Lag 1 for data it needs, 0 for data sent before it is overwritten.
    """

    earlier: Longs
    later: Longs
    lag: Longs


def find_constraints(schedule: Schedule) -> Before:
    """Return the order that any timing of the rows must keep. Contributions to a sum that is not read may arrive in any
    order.

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
    every, later = (
        np.arange(len(begin)),
        np.flatnonzero(~first[begin]),
    )  # versions that replace an earlier one of their cell
    unread = later[read[0][later - 1] == read[1][later - 1]]
    # the three hazards of a processor pipeline: true dependence, antidependence, output dependence
    pairs = [
        # read after write; write after read; write after write of a version that nothing reads
        (_all_pairs(writers, wrote, every, readers, read, every), 1),
        (_all_pairs(readers, read, later - 1, writers, wrote, later), 0),
        (_all_pairs(writers, wrote, unread - 1, writers, wrote, unread), 1),
    ]
    # a row that reads and writes one cell need not wait for itself
    earlier, after = (np.concatenate([pair[side] for pair, _ in pairs]) for side in (0, 1))
    lag = np.concatenate([np.full(len(pair[0]), late, np.int64) for pair, late in pairs])
    apart = earlier != after
    return Before(earlier[apart], after[apart], lag[apart])


def _all_pairs(
    left_items: Longs, of_left: Span, left_groups: Longs, right: Longs, of_right: Span, right_groups: Longs
) -> tuple[Longs, Longs]:
    """Pair every item of a left group with every item of the matching right group."""
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
class Alike:
    """Classes of one schedule by number: of every row, chunk, block and resource.

    `crossed`: row and resource of every crossing. By row: `late`, the latency of its path; `weight`, its fraction of
    nbytes; `adds`, whether it contributes to a sum.
    """

    hop: Longs
    chunk: Longs
    block: Longs
    resource: Longs
    crossed: tuple[Longs, Longs]
    late: Floats
    weight: Floats
    adds: Bools
    before: Before


def classify_hops(schedule: Schedule, topology: Topology) -> Alike:
    """Return the coarsest classes that counting distinguishes: color refinement until the number of classes is stable.

    O(rounds * rows * hops).
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
    late = np.append(latencies(topology, resolved.table), 0.0)[resolved.route]
    weights, scale = schedule.chunks.weights(schedule.collective)
    waits = find_constraints(schedule)
    chunk = schedule.chunk.astype(np.int64)
    mark = _hash_rows(_number_values(weights)[chunk], _number_values(late), schedule.op.astype(np.uint64))
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
            _sum_hashes(_hash_rows(mark[waits.earlier], waits.lag.astype(np.uint64)), waits.later, rows),
            _sum_hashes(_hash_rows(mark[waits.later], waits.lag.astype(np.uint64)), waits.earlier, rows),
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
    return Alike(hop, owners, blocks, places, (row, on), late, weight, schedule.op == REDUCE, waits)


def merge_classes(classes: Alike, owner: Longs) -> Longs:
    """Merge classes of hops of equally labelled chunks that have one latency and wait for the same classes.

    For sums before they are complete, the direction is reversed: those that the same classes wait for. `owner`: by row
    the label of its chunk.
    """
    waits, rows = classes.before, len(classes.hop)
    mixed = ~classes.adds[waits.earlier] & classes.adds[waits.later]  # a sum waits for a copy
    adds = np.zeros(rows, bool) if mixed.any() else classes.adds
    inside = adds[waits.earlier] == adds[waits.later]
    first, after, lag = waits.earlier[inside], waits.later[inside], waits.lag[inside]
    # sums flow towards a root: reversed, they look like copies from it
    first, after = np.where(adds[first], after, first), np.where(adds[first], first, after)
    base = _hash_rows(_number_values(owner), _number_values(classes.late), adds.astype(np.uint64))
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


def _number_values(values: NDArray[Any]) -> Marks:
    return np.unique(values, return_inverse=True)[1].astype(np.uint64)


def _hash_rows(*columns: Marks) -> Marks:
    """Return a 64-bit hash of the values side by side."""
    with np.errstate(over="ignore"):
        out = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
        for values in columns:
            out = (out ^ values) * np.uint64(0xD6E8FEB86659FD93)
            out ^= out >> np.uint64(32)
            out *= np.uint64(0xD6E8FEB86659FD93)
            out ^= out >> np.uint64(29)
        return out


def _sum_hashes(values: Marks, at: Longs, size: int) -> Marks:
    """Return the sum of values by place, modulo 2^64: independent of their order."""
    out = np.zeros(size, np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(out, at, values)
    return out
