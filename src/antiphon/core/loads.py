"""Exact load of every link and shared limit over time, and the time of a schedule at zero latency.

Input: a schedule and a topology. Output: `loads` (bytes per resource and step, a *resource* being a link or a shared
limit), `timeline` (exact seconds per byte of each step), `throughput` and `rounds` (SCCL's R).

Pipelined chunks are never expanded into one row per piece. A chunk of p pieces sends one p-th of its data in each of
the p steps from the row's step on. So every row loads its links during a *window* of p steps, and the load of one link
over time is a staircase with two corners per row. The time of a step is its greatest load over capacity; the time of
the schedule is the sum over steps, i.e. the area under the upper envelope of the staircases of all resources
(stairs.py).

Example. One link carries chunk A (1/2 of the data, 2 pieces) from step 0 and chunk B (the same) from step 1. Each loads
1/4 per step: A in steps 0 and 1, B in steps 1 and 2. The staircase is 1/4, 2/4, 1/4; its sum is 1, as all data cross
the link once. With a second link of half the speed that carries 1/4 in step 0, step 0 takes as long as 1/2 on the first
link.

Stages:

1. `_compute_traffic` adds up the load per (resource, step, window). The result depends neither on link speeds nor on a
   number of pieces that all chunks share.
2. `compute_envelopes` computes the greatest load over time per class of resources with equal capacity.
3. `timeline` compares the classes by exact fractions.

The results of the first two stages are cached, as pricing tries the same rows with several piece counts and speeds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np

from antiphon.core.columns import (
    SAFE_INT64,
    Floats,
    Ints,
    Longs,
    concat_ranges,
    distinct,
    order_of,
    pack_columns,
    pointers,
    run_starts,
    unique_inverse,
)
from antiphon.core.joints import crossed_links
from antiphon.core.routes import Resolved, Routes, latencies, resolve
from antiphon.core.schedule import Schedule
from antiphon.core.stairs import Exact, add_equal_keys, build_staircase, merge_equal_runs, upper_envelope
from antiphon.core.topology import Topology
from antiphon.errors import Invalid


@dataclass(frozen=True, eq=False)
class Timeline:
    """Runs of consecutive steps with the same load, exact; one entry per run, in order of steps."""

    begin: Longs  # the first step of the run
    length: Longs  # steps in the run
    seconds: tuple[Fraction, ...]  # time of one step of the run, per byte of nbytes
    resource: Longs  # the link (from topology.links on, the shared limit) that takes longest; -1: nothing is loaded

    @property
    def total(self) -> Fraction:
        """Seconds per byte of nbytes at zero latency."""
        tally: dict[Fraction, int] = {}
        for length, seconds in zip(self.length.tolist(), self.seconds, strict=True):
            tally[seconds] = tally.get(seconds, 0) + length
        return sum((seconds * length for seconds, length in tally.items()), Fraction(0))


@dataclass(frozen=True, eq=False)
class Loads:
    """Load entries: `load[i] / scale` of nbytes is on `resource[i]` in each of `window[i]` steps from `step[i]` on.

    The three columns `window_...` list every distinct window (step and number of steps), for the latency of steps.
    """

    resource: Longs
    step: Longs
    window: Longs  # number of steps
    load: Exact  # int64, or Python integers where sums could overflow
    scale: int
    window_step: Longs  # the step in which the window begins
    window_length: Longs  # its number of steps
    window_latency: Floats  # latency of the slowest route used in it, in seconds


@dataclass(frozen=True, eq=False)
class _Envelopes:
    """The greatest load over time, per class of resources with equal capacity."""

    marks: Longs  # the steps at which some load changes, ascending: no load changes between two marks
    by_class: tuple[tuple[int, Exact, Longs], ...]  # (class, greatest load from each mark on, its resource or -1)


@dataclass(frozen=True, eq=False)
class _Traffic:
    """Loads on any machine with the same links and limits, at any speed.

    Routes over links of the same types in the same order are of one *kind*: they have equal latency on any machine.
    The columns `window_index` and `kind_in_use` are pairs: in this window, a route of this kind is used.
    """

    # Loads without a number of pieces that all chunks share; if chunks differ, each has its own. `window_latency` is
    # not filled in, as it depends on the machine.
    unpipelined: Loads
    window_index: Longs  # index into the columns `window_...` of `unpipelined`
    kind_in_use: Longs  # index into `kind_routes`; -1: the data stay within a rank
    kind_routes: Routes  # one route of every kind
    # The last results of `envelopes`, by number of pieces and classes
    cached_envelopes: list[tuple[tuple[int, bytes], _Envelopes]] = field(default_factory=list)

    def loads_on(self, topology: Topology, pieces: int) -> Loads:
        """Return the loads on this topology, with every chunk cut into this many pieces."""
        loads, latency = self.unpipelined, self.latency_on(topology)
        window = loads.window if pieces == 1 else loads.window * pieces
        return replace(
            loads,
            window=window,
            scale=loads.scale * pieces,
            window_length=loads.window_length * pieces,
            window_latency=latency,
        )

    def latency_on(self, topology: Topology) -> Floats:
        """Return the greatest latency, in seconds, of the routes in use in each window of `unpipelined`."""
        latency = np.zeros(len(self.unpipelined.window_step))
        kind_latency = np.append(latencies(topology, self.kind_routes), 0.0)  # the last for kind -1, within a rank
        np.maximum.at(latency, self.window_index, kind_latency[self.kind_in_use])
        return latency

    def envelopes(self, class_of: Ints, pieces: int) -> _Envelopes:
        """Return the envelope per class of capacity; machines that differ only in speeds often have the same
        classes."""
        key = pieces, class_of.tobytes()
        # A copy of the list, as other threads may change it.
        cached = next((envelopes for cached_key, envelopes in self.cached_envelopes[:] if cached_key == key), None)
        if cached is None:
            cached = compute_envelopes(self.unpipelined, pieces, class_of)
            self.cached_envelopes.append((key, cached))
            del self.cached_envelopes[:-MAX_CACHED]
        return cached


def pieces_of(schedule: Schedule) -> Longs:
    """Return the number of pieces of every chunk."""
    return np.broadcast_to(np.asarray(schedule.pieces, np.int64), len(schedule.chunks))


def pipelined_steps(schedule: Schedule) -> int:
    """Return the number of steps with pipelining: S + p - 1 if all chunks have p pieces."""
    if not schedule.transfers:
        return 0
    if isinstance(schedule.pieces, int):
        return schedule.steps - 1 + schedule.pieces
    return int((schedule.step + schedule.pieces[schedule.chunk]).max())


MAX_CACHED = 4  # schedules, and envelopes of each, in a cache
MAX_CACHED_ENTRIES = 2**20  # load entries of a schedule that stays in the cache
MAX_LAST_ENTRIES = 2**23  # load entries of the most recent schedule, which stays until the next one is added
ROWS_PER_BATCH = 2**19  # rows of a long schedule that are timed together; a schedule with more is long
MIN_ROWS_PER_STEP = 64  # rows per step of a long schedule from which on equal steps are looked for
Value = TypeVar("Value")


class _WeakCache(Generic[Value]):
    """The last MAX_CACHED results for some objects (compared by identity) and a key, while all the objects exist."""

    def __init__(self) -> None:
        self.entries: list[tuple[tuple[weakref.ref[Any] | None, ...], tuple[Any, ...], Value]] = []

    def get(self, objects: Sequence[Any], key: tuple[Any, ...]) -> Value | None:
        """Return the result for these objects (None: an absent column) and this key, or None if it is not cached."""
        # A copy of the list, as other threads may change it.
        for references, cached_key, value in self.entries[:]:
            if cached_key == key and all(map(_is_same_object, objects, references)):
                return value
        return None

    def put(self, objects: Sequence[Any], key: tuple[Any, ...], value: Value) -> None:
        """Add a result; the oldest beyond MAX_CACHED goes."""
        references = tuple(None if x is None else weakref.ref(x, self._drop_dead) for x in objects)
        self.entries.append((references, key, value))
        del self.entries[:-MAX_CACHED]

    def _drop_dead(self, _: object) -> None:
        """Remove entries with an object that no longer exists."""
        self.entries[:] = [
            (references, key, value)
            for references, key, value in self.entries
            if all(reference is None or reference() is not None for reference in references)
        ]


def _is_same_object(value: object, reference: weakref.ref[Any] | None) -> bool:
    """Return whether the reference (None: of None) is of this object, which still exists."""
    if reference is None or value is None:
        return reference is None and value is None
    return value is reference()


# The rate, time and pipelining of one schedule are computed in several consecutive calls.
_traffic_cache = _WeakCache["_Traffic"]()


def loads(schedule: Schedule, topology: Topology) -> Loads:
    """Return the load of every link and shared limit in every step: O(n log n) in rows times links per route."""
    return traffic_of(schedule, topology).loads_on(topology, _uniform_pieces(schedule))


def _uniform_pieces(schedule: Schedule) -> int:
    """Return the number of pieces if all chunks have the same; else 1, and the traffic then accounts for each
    chunk's."""
    return schedule.pieces if isinstance(schedule.pieces, int) else 1


def traffic_of(schedule: Schedule, topology: Topology) -> _Traffic:
    """Return the traffic of a schedule on this topology, cached while its columns are alive.

    A uniform number of pieces p needs no recomputation: each row loads a p-th in p steps. The result also holds on the
    same machine with other link speeds, which pricing by several protocols asks for.
    """
    uniform = isinstance(schedule.pieces, int)
    # Columns are compared by identity, which costs nothing, the rest by value.
    rows = (topology.link_src, topology.link_dst, topology.link_type, *_columns_of(schedule))
    structure = (topology.ranks, topology.switches, topology.abilities, *(limit.links for limit in topology.limits))
    cached = _traffic_cache.get(rows, structure)
    if cached is None:
        # A large result stays only until the next one is computed.
        _traffic_cache.entries[:] = [
            (references, key, traffic)
            for references, key, traffic in _traffic_cache.entries
            if _entry_count(traffic) <= MAX_CACHED_ENTRIES
        ]
        unpipelined = replace(schedule, pieces=1) if uniform and schedule.pieces != 1 else schedule
        cached = _compute_traffic(unpipelined, topology, resolve_routes(schedule, topology))
        if _entry_count(cached) <= MAX_LAST_ENTRIES:
            _traffic_cache.put(rows, structure, cached)
    return cached


def _columns_of(schedule: Schedule) -> tuple[Any, ...]:
    """Return the objects that a schedule's loads depend on, apart from a uniform number of pieces."""
    return (
        schedule.collective, schedule.chunks, schedule.routes, schedule.step, schedule.chunk, schedule.src,
        schedule.dst, schedule.op, schedule.route, schedule.joint,
        None if isinstance(schedule.pieces, int) else schedule.pieces,
    )  # fmt: skip


def _entry_count(traffic: _Traffic) -> int:
    """Return the number of load entries, or of windows if there are more."""
    return max(len(traffic.unpipelined.load), len(traffic.window_index))


def resolve_routes(schedule: Schedule, topology: Topology, rows: Ints | None = None) -> Resolved:
    """Return the path of every row, or of `rows` alone; Invalid if one has none."""
    src, dst, route = schedule.src, schedule.dst, schedule.route
    if rows is not None:
        src, dst, route = src[rows], dst[rows], None if route is None else route[rows]
    resolved = resolve(topology, src, dst, route, schedule.routes)
    if len(resolved.faulty_rows):
        row = int(resolved.faulty_rows[0] if rows is None else rows[resolved.faulty_rows[0]])
        raise Invalid(f"step {schedule.step[row]}, chunk {schedule.chunk[row]}: the transfer {resolved.faults[0]}")
    return resolved


def _compute_traffic(schedule: Schedule, topology: Topology, resolved: Resolved) -> _Traffic:
    """Add up the load per (resource, step, window), and list the kinds of routes used in each window."""
    weights, scale = schedule.chunks.weights(schedule.collective)
    pieces = pieces_of(schedule)
    common: int = math.lcm(*np.unique(pieces).tolist()) if len(pieces) else 1
    # An upper bound of any sum below, to choose between int64 and Python integers.
    max_sum = float(weights.max(initial=0)) * common * max(len(resolved.route), 1) * _max_path_links(resolved)
    # Load of one piece, over the common denominator of all piece counts. Python integers where int64 could overflow.
    per_chunk = weights * (common // pieces) if max_sum < SAFE_INT64 else weights.astype(object) * [
        common // int(p) for p in pieces
    ]  # fmt: skip
    # Number the distinct window lengths and step numbers without gaps, so that (resource, step, window) fits into one
    # key. A *time window* is a (step, window) pair, as the number time * len(windows) + window, which is below `bound`.
    windows, window = unique_inverse(pieces[schedule.chunk], bound=int(pieces.max(initial=0)) + 1)
    times, time = unique_inverse(schedule.step.astype(np.int64), bound=schedule.steps or 1)
    time_window, bound = time * len(windows) + window, len(times) * len(windows)
    # Add up rows with the same route, step and window first: there may be a hundred times as many rows as such triples.
    route_times, load = add_equal_keys(
        (resolved.route + 1).astype(np.int64) * bound + time_window,
        per_chunk[schedule.chunk],
        (len(resolved.table) + 1) * bound,
    )
    used_time_window, kind_in_use, kind_routes = _times_and_kinds(route_times, bound, resolved.table, topology)
    # Expand routes into links: from here on `time_window` and `load` have an entry per link crossed. Rows joined in a
    # switch (multicast, reduction) cross a shared link once, not once per row.
    if schedule.joint is None:
        resource, time_window, load = _by_link(resolved.table, route_times, load, bound)
    else:
        resource, row = crossed_links(schedule, resolved, topology)
        time_window, load = time_window[row], per_chunk[schedule.chunk[row]]
    # Every link also loads its shared limits: append one entry per (link, limit).
    if topology.limits:
        index, resource = topology.resources.with_limits(resource)
        time_window, load = time_window[index], load[index]
    key, load = add_equal_keys(resource * bound + time_window, load, (topology.links + len(topology.limits)) * bound)
    distinct_time_windows = distinct(used_time_window)
    window_index: Longs = np.searchsorted(distinct_time_windows, used_time_window).astype(np.int64)
    resource, time_window = np.divmod(key, bound)
    total = Loads(
        resource, step=times[time_window // len(windows)], window=windows[time_window % len(windows)],
        load=load, scale=scale * common,
        window_step=times[distinct_time_windows // len(windows)],
        window_length=windows[distinct_time_windows % len(windows)],
        window_latency=np.zeros(len(distinct_time_windows)),  # `loads_on` fills it in
    )  # fmt: skip
    return _Traffic(total, window_index, kind_in_use, kind_routes)


def _max_path_links(resolved: Resolved) -> int:
    """Return the greatest number of links in a route."""
    return int(np.diff(resolved.table.ptr).max(initial=1))


def _by_link(table: Routes, route_times: Longs, load: Exact, bound: int) -> tuple[Longs, Longs, Exact]:
    """Expand routes into links: return link, time window and load for every link of every (route, time window) pair.

    `route_times`: (route + 1) * bound + time window, ascending, each once.
    """
    first = int(np.searchsorted(route_times, bound))  # entries below belong to route -1: data that stay within a rank
    route, load = route_times[first:] // bound - 1, load[first:]
    hops = table.ptr[route + 1] - table.ptr[route]
    link = table.links[concat_ranges(table.ptr[route], hops)].astype(np.int64)
    return link, np.repeat(route_times[first:] % bound, hops), np.repeat(load, hops)


def _times_and_kinds(route_times: Longs, bound: int, table: Routes, topology: Topology) -> tuple[Longs, Longs, Routes]:
    """Return the distinct pairs of time window and kind of route (-1: within a rank), and one route of every kind."""
    used_routes, route_index = unique_inverse(route_times // bound, bound=len(table) + 1)
    within_rank = int(len(used_routes) > 0 and used_routes[0] == 0)  # 1 if route -1 is among them
    routes = table.take(used_routes[within_rank:] - 1)
    kind, example = _route_kinds(routes, topology)
    # Numbers of kinds in the key: 0 within a rank, then each kind + 1.
    kind_number = np.concatenate([np.full(within_rank, 0), kind + 1])[route_index]
    pair = distinct(route_times % bound * (len(example) + 1) + kind_number, bound * (len(example) + 1))
    return pair // (len(example) + 1), pair % (len(example) + 1) - 1, routes.take(example)


def _route_kinds(routes: Routes, topology: Topology) -> tuple[Longs, Longs]:
    """Return the kind of every route, and the index of one route of every kind; a kind is a sequence of link types."""
    hops = np.diff(routes.ptr)
    key, bound = pack_columns((hops, int(hops.max(initial=0)) + 1))
    # Fold the link types hop by hop into one number: routes with equal numbers have equal latency on any machine.
    for hop in range(int(hops.max(initial=0))):
        routes_with_hop = np.flatnonzero(hops > hop)
        kind = np.zeros(len(hops), np.int64)
        kind[routes_with_hop] = topology.link_type[routes.links[routes.ptr[routes_with_hop] + hop]]
        key, bound = pack_columns((key, bound), (kind, len(topology.types)))
    kinds, of_route = unique_inverse(key, bound=bound)
    example = np.zeros(len(kinds), np.int64)
    example[of_route] = np.arange(len(hops))
    return of_route, example


_Latencies = tuple[Longs, Longs, Floats]  # `window_step`, `window_length` and `window_latency` of `Loads`
_Totals = tuple[Exact, int]  # the load of every resource in all steps together, and its scale


@dataclass(frozen=True, eq=False)
class _Timing:
    """A timeline; of a long schedule also its latencies and totals, so that its traffic is computed once."""

    line: Timeline
    latency_columns: _Latencies | None
    totals: _Totals | None


# Pricing a schedule, its rate, its claims and its gap all ask for the same timeline.
_timing_cache = _WeakCache[_Timing]()


def timeline(schedule: Schedule, topology: Topology) -> Timeline:
    """Return the time of every step at zero latency, pipelining included but not expanded.

    O(E log E) in load entries E (the rows of `Loads`).

    The last few results are cached while their columns and topology exist.
    """
    return _time_steps(schedule, topology).line


def _time_steps(schedule: Schedule, topology: Topology) -> _Timing:
    """Return the cached timing of this topology and these columns, or compute it."""
    columns = (topology, *_columns_of(schedule))
    pieces = (schedule.pieces,) if isinstance(schedule.pieces, int) else ()
    timing = _timing_cache.get(columns, pieces)
    if timing is None:
        if _is_long(schedule):  # its traffic is not cached, so all results come from one pass
            timing = _time_long(schedule, topology)
        else:
            line = _compute_line(traffic_of(schedule, topology), _uniform_pieces(schedule), topology)
            timing = _Timing(line, latency_columns=None, totals=None)
        _timing_cache.put(columns, pieces, timing)
    return timing


def _time_long(schedule: Schedule, topology: Topology) -> _Timing:
    """Time a schedule whose rows load no step but their own: one step of every pattern, some steps at a time.

    Batches need little memory and fit into the processor's caches.
    """
    resolved = resolve_routes(schedule, topology)
    patterns = _group_steps(schedule, resolved)
    seconds, resource = [Fraction(0)], [-1]  # distinct step times and their resources; index 0: nothing is loaded
    time_index, latency = np.zeros(len(patterns.step), np.int64), np.zeros(len(patterns.step))
    totals = _no_totals(topology)
    for rows in patterns.batches:
        traffic = _compute_traffic(schedule.take(rows), topology, replace(resolved, route=resolved.route[rows]))
        pattern_index = np.searchsorted(patterns.step, traffic.unpipelined.step)
        totals = _add_totals(totals, traffic, patterns.count[pattern_index])
        latency[np.searchsorted(patterns.step, traffic.unpipelined.window_step)] = traffic.latency_on(topology)
        line = _compute_line(traffic, pieces=1, topology=topology)
        busy = np.flatnonzero(line.resource >= 0)
        pattern_index = np.searchsorted(patterns.step, concat_ranges(line.begin[busy], line.length[busy]))
        time_index[pattern_index] = np.repeat(busy + len(seconds), line.length[busy])
        seconds += line.seconds
        resource += line.resource.tolist()
    time_index, latency = time_index[patterns.first], latency[patterns.first]
    # Join consecutive steps with the same time, and add the idle steps between. A run begins where the time index
    # changes or a step is missing, which shifts step - position.
    loaded = np.flatnonzero(time_index)
    step, time_index = patterns.step[loaded], time_index[loaded]
    run = np.flatnonzero(run_starts(time_index) | run_starts(step - np.arange(len(step))))
    begin, end = step[run], (step[np.append(run[1:], len(step)) - 1] if len(step) else step) + 1
    idle = np.flatnonzero(begin[1:] > end[:-1]) + 1
    begin, end = np.insert(begin, idle, end[idle - 1]), np.insert(end, idle, begin[idle])
    indices = np.insert(time_index[run], idle, 0).tolist()
    run_seconds, run_resource = tuple(seconds[i] for i in indices), np.array([resource[i] for i in indices], np.int64)
    line = Timeline(begin, length=end - begin, seconds=run_seconds, resource=run_resource)
    return _Timing(line, (patterns.step, np.ones(len(patterns.step), np.int64), latency), totals)


@dataclass(frozen=True, eq=False)
class _StepPatterns:
    """The steps of a long schedule by *pattern*: steps with the same routes and weights load the same links equally."""

    step: Longs  # the steps that have rows, ascending
    first: Longs  # for each of them the first step that has its pattern, as an index into `step`
    count: Longs  # for each of them, if it is the first of its pattern, the number of steps with that pattern; else 0
    batches: list[Longs]  # the rows of the first step of every pattern, in order of steps, some steps at a time


def _group_steps(schedule: Schedule, resolved: Resolved) -> _StepPatterns:
    """Group the steps of a long schedule by pattern: one sort of all rows by step, and of each step by route."""
    steps, step_index = unique_inverse(schedule.step, bound=schedule.steps)
    order, step_ptr = order_of(step_index, bound=len(steps)), pointers(step_index, len(steps))
    weights, _ = schedule.chunks.weights(schedule.collective)
    weight_kinds = np.unique(weights)
    weight_kind = np.searchsorted(weight_kinds, weights)
    # Rows joined in a switch share links, which routes do not show; for short steps the search costs too much.
    may_repeat = schedule.joint is None and schedule.transfers >= MIN_ROWS_PER_STEP * len(steps)
    first, first_of_pattern = np.arange(len(steps)), dict[bytes, int]()
    batches, batch, size = list[Longs](), list[Longs](), 0
    for i in range(len(steps)):
        rows = order[step_ptr[i] : step_ptr[i + 1]]
        if may_repeat:
            sent = resolved.route[rows].astype(np.int64) * len(weight_kinds) + weight_kind[schedule.chunk[rows]]
            sent.sort()
            # Digests are long enough that equal ones mean equal patterns.
            first[i] = first_of_pattern.setdefault(blake2b(sent.tobytes()).digest(), i)
        if first[i] < i:
            continue
        batch.append(rows)
        size += len(rows)
        if size >= ROWS_PER_BATCH:
            batches.append(np.concatenate(batch))
            batch, size = [], 0
    batches += [np.concatenate(batch)] if batch else []
    return _StepPatterns(steps, first, np.bincount(first, minlength=len(steps)), batches)


def _no_totals(topology: Topology) -> _Totals:
    """Return zero loads for all resources."""
    return np.zeros(topology.links + len(topology.limits), object), 1


def _add_totals(totals: _Totals, traffic: _Traffic, steps: Longs) -> _Totals:
    """Return the totals with further loads added. `steps`: per load entry, the number of steps that have this load.

    All traffic of one schedule has the same scale, so that totals can be added.
    """
    per_step = traffic.unpipelined
    max_sum = float(per_step.load.astype(float).sum()) * int(steps.max(initial=1))
    load = per_step.load if max_sum < SAFE_INT64 else per_step.load.astype(object)
    added = np.zeros(len(totals[0]), load.dtype)
    np.add.at(added, per_step.resource, load * steps)
    return totals[0] + added, per_step.scale


def _is_long(schedule: Schedule) -> bool:
    """Return whether the schedule is timed some steps at a time: it has many rows, each of one piece."""
    return schedule.transfers > ROWS_PER_BATCH and isinstance(schedule.pieces, int) and schedule.pieces == 1


def route_latencies(schedule: Schedule, topology: Topology) -> tuple[Longs, Longs, Floats]:
    """Return `window_step`, `window_length` and `window_latency` of `Loads`, without the loads themselves."""
    latency_columns = _time_steps(schedule, topology).latency_columns if _is_long(schedule) else None
    if latency_columns is not None:
        return latency_columns
    traffic, pieces = traffic_of(schedule, topology), _uniform_pieces(schedule)
    return traffic.unpipelined.window_step, traffic.unpipelined.window_length * pieces, traffic.latency_on(topology)


def _compute_line(traffic: _Traffic, pieces: int, topology: Topology) -> Timeline:
    """Return the timeline of known loads: the envelope of each class of capacities, and the slowest of them."""
    resources = topology.resources
    envelopes = traffic.envelopes(resources.class_of, pieces)
    if not envelopes.by_class:
        nothing = np.zeros(0, np.int64)
        return Timeline(nothing, nothing, seconds=(), resource=nothing)
    # Compare loads of different capacities without fractions: scale each by common / capacity.
    common = math.lcm(*resources.capacity)
    best: Exact = np.zeros(len(envelopes.marks), object)
    best_resource = np.full(len(envelopes.marks), -1, np.int64)
    for capacity_class, top, winner in envelopes.by_class:
        scaled = top.astype(object) * (common // resources.capacity[capacity_class])
        better = (winner >= 0) & (scaled > best)
        best[better], best_resource[better] = scaled[better], winner[better]
    # Seconds per byte of nbytes of a scaled load of 1: loads are in units of nbytes / (scale * pieces), capacities in
    # units of `resources.scale` bytes per second.
    unit = 1 / (resources.scale * common * traffic.unpipelined.scale * pieces)
    # The last mark is the end of all loads: no run begins there.
    value = {load: load * unit for load in set(best[:-1].tolist())}
    step_seconds = tuple(value[x] for x in best[:-1].tolist())
    return Timeline(
        envelopes.marks[:-1], length=np.diff(envelopes.marks), seconds=step_seconds, resource=best_resource[:-1]
    )


def compute_envelopes(total: Loads, pieces: int, class_of: Ints) -> _Envelopes:
    """Return the envelope of the staircases of all resources, per class of equal capacity."""
    resource, begin, end, load = build_staircase(total.resource, total.step, total.window * pieces, total.load)
    if not len(resource):
        return _Envelopes(np.zeros(0, np.int64), by_class=())
    # Between two neighbouring marks no load changes.
    marks = distinct(np.concatenate([begin, end]), int(end.max()) + 1)
    resource, begin, end, load = merge_equal_runs(resource, begin, end, load)
    low, high = np.searchsorted(marks, begin).astype(np.int64), np.searchsorted(marks, end).astype(np.int64)
    by_class = []
    # Within one class of equal capacity the envelope of loads is the envelope of times.
    for capacity_class in np.unique(class_of[resource]).tolist():
        rows_of_class = np.flatnonzero(class_of[resource] == capacity_class)
        top, winner = upper_envelope(low[rows_of_class], high[rows_of_class], load[rows_of_class], len(marks))
        by_class.append((capacity_class, top, np.where(winner >= 0, resource[rows_of_class[winner]], -1)))
    return _Envelopes(marks, tuple(by_class))


def throughput(schedule: Schedule, topology: Topology) -> Fraction | None:
    """Return the bytes of nbytes per second that ever finer pieces approach, or None if nothing moves. O(E log E).

    With all steps overlapping, the link or limit with the greatest total load over capacity decides.
    """
    unpipelined = replace(schedule, pieces=1) if isinstance(schedule.pieces, int) else schedule
    timing = _time_steps(unpipelined, topology) if _is_long(unpipelined) else None
    if timing is None or timing.totals is None:
        traffic = traffic_of(unpipelined, topology)
        totals, scale = _add_totals(_no_totals(topology), traffic, traffic.unpipelined.window)
    else:
        totals, scale = timing.totals
    capacity, class_of = topology.resources.capacity, topology.resources.class_of
    classes = np.unique(class_of[totals != 0]).tolist()
    shares = [Fraction(int(totals[class_of == number].max()), capacity[number]) for number in classes]
    return topology.resources.scale * scale / max(shares) if shares else None


def rounds(schedule: Schedule, topology: Topology, line: Timeline | None = None) -> int:
    """Return SCCL's R: per step the most chunks per unit link, rounded up, summed over (pipelined) steps."""
    line = line or timeline(schedule, topology)
    chunk = schedule.mean_chunk
    # `topology.unit`: bytes per second of a unit link, so seconds * unit is the share of nbytes that it carries.
    rounds_in = {seconds: math.ceil(seconds * topology.unit / chunk) for seconds in set(line.seconds)}
    return sum(rounds_in[s] * length for s, length in zip(line.seconds, line.length.tolist(), strict=True))


def claims(schedule: Schedule, topology: Topology) -> Mapping[str, Any]:
    """Return the figures that a plan states about its schedule, pipelining included."""
    return {
        "chunks": schedule.chunks_per_rank,
        "steps": pipelined_steps(schedule),
        "rounds": rounds(schedule, topology),
        "transfers": schedule.transfers * schedule.pieces
        if isinstance(schedule.pieces, int)
        else int(schedule.pieces[schedule.chunk].sum()),
    }
