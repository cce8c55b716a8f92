"""A schedule as a LogGP simulation sees it: messages in classes of equal cost, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Ints, Longs, dense, distinct, pointers
from antiphon.core.dependencies import Versions, versions
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.cost import _loggp_order as loops
from antiphon.cost._graph import MessageGraph
from antiphon.cost._loggp_figures import LogGP
from antiphon.cost._loggp_messages import Graph
from antiphon.cost._messages import Floats, latencies, resolved, seconds_per_byte, uses_of
from antiphon.errors import Invalid, quote

ORDERS = ("rounds", "streams", "data")
NONE = np.empty(0, np.int32)
MOST_PAIRS = 2**26  # of ranks, to be marked in a table
FEW_CLASSES = 64


@dataclass(frozen=True, eq=False)
class Sent:
    """The messages of a schedule, by step; runs of rows side by side belong to one message each."""

    step: Ints
    src: Ints
    dst: Ints
    first: Ints  # the first row of every run, and the number of rows
    of_run: Ints

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def of_row(self) -> Ints:
        return np.repeat(self.of_run, np.diff(self.first))


@dataclass(frozen=True, eq=False)
class Work:
    """Messages by step; per class its level, its part of nbytes, and the part that is combined on arrival.

    Level -1: within a rank, which costs nothing. `latency`, `per_byte`: per level, where no profile gives figures.
    `before`: the condition before each. `one_round`: every message waits for one condition and gives to two.
    """

    sent: Sent
    klass: Ints
    level: Longs
    share: Floats
    combined: Floats
    node: Longs
    graph: Graph
    needs: Ints
    before: Ints
    latency: Floats
    per_byte: Floats
    capacity: float  # seconds per byte of nbytes that the busiest link takes alone, where no profile gives figures
    busiest: int

    def __len__(self) -> int:
        return len(self.sent)


def work_of(schedule: Schedule, topology: Topology, given: LogGP | None, order: str, left: bool = False) -> Work:
    """Every piece is a row here: expand first. O(rows) for order "rounds" (rows by step), else a sort of them.

    `left`: for its own later rounds it is enough for a rank that what it sent has left.
    """
    if order not in ORDERS:
        raise Invalid(f"option order: expected one of {', '.join(ORDERS)}, got {quote(order)}")
    ranks, found = schedule.collective.ranks, sent(schedule)
    if given is None:
        level, latency, per_byte, capacity, busiest = _from_links(schedule, topology, found)
        node = np.full(ranks, -1, np.int64)
    else:
        level = loops.levels(found.src, found.dst, np.stack(given.groups(topology)))
        _refuse_missing(level, found.src, found.dst, given, topology)
        node, latency, per_byte, capacity, busiest = given.nodes(topology), np.empty(0), np.empty(0), 0.0, -1
    level[found.src == found.dst] = -1
    klass, levels, share, combined = _classes(schedule, level, found)
    graph, needs, before = _graph(schedule, found, level, klass, order, left)
    return Work(found, klass, levels, share, combined, node, graph, needs, before, latency, per_byte, capacity, busiest)


def work_of_messages(graph: MessageGraph, topology: Topology, given: LogGP, left: bool = False) -> Work:
    """The same of a graph of messages; shares are bytes: ask for one byte. O(messages + dependencies).

    Condition i: message i is done; with `left` condition count + i: it has left, for those that the same rank sends.
    """
    count = len(graph)
    level = loops.levels(graph.src, graph.dst, np.stack(given.groups(topology)))
    _refuse_missing(level, graph.src, graph.dst, given, topology)
    level[graph.src == graph.dst] = -1
    keys = np.stack([level.astype(np.int64), graph.nbytes, graph.combined], axis=1)
    kinds, klass = np.unique(keys, axis=0, return_inverse=True)
    each = np.arange(count, dtype=np.int32)
    waiting, wanted = np.repeat(each, np.diff(graph.deps_ptr)), graph.deps
    conditions, early = count, (NONE, NONE)
    if left:
        own = (graph.src[waiting] == graph.src[wanted]) & (graph.src[wanted] != graph.dst[wanted])
        wanted, conditions = np.where(own, wanted + np.int32(count), wanted), 2 * count
        early = (np.arange(count + 1, dtype=np.int32), each + np.int32(count))
    order = np.argsort(wanted, kind="stable")
    made = Graph(
        graph.src, graph.dst, klass.ravel().astype(np.int32), np.diff(graph.deps_ptr).astype(np.int32),
        np.arange(count + 1, dtype=np.int32), each, *early, pointers(wanted[order], conditions).astype(np.int32),
        waiting[order], np.ones(conditions, np.int32), np.full(conditions, -1, np.int32),
    )  # fmt: skip
    columns = (np.zeros(count, np.int32), graph.src, graph.dst, np.arange(count + 1, dtype=np.int32), each)
    return Work(
        Sent(*columns), made.klass, kinds[:, 0], kinds[:, 1].astype(np.float64), kinds[:, 2].astype(np.float64),
        given.nodes(topology), made, NONE, NONE, np.empty(0), np.empty(0), 0.0, -1,
    )  # fmt: skip


def sent(schedule: Schedule) -> Sent:
    """O(rows), and counting sorts of the runs where they are not by step."""
    ranks = schedule.collective.ranks
    step, src, dst = schedule.step, schedule.src, schedule.dst
    route = NONE if schedule.route is None else schedule.route
    first = loops.runs(step, src, dst, _fixed(route))
    if len(first) <= len(step):
        at = first[:-1]
        step, src, dst = (_fixed(column[at]) for column in (step, src, dst))
        route = route[at] if len(route) else route
    way, ways = dst, ranks
    if len(route) and (ranks * ranks > MOST_PAIRS or loops.many_ways(src, dst, _fixed(route), ranks)):
        numbers = int(route.max()) + 2
        kinds, place = dense(dst * np.int64(numbers) + route + 1, ranks * numbers)
        way, ways = place.astype(np.int32), len(kinds)
    order = NONE
    if not loops.ascends(step):
        times, time = dense(step.astype(np.int64), schedule.steps or 1)
        order = loops.counted(time.astype(np.int32), max(len(times), 1), np.arange(len(step), dtype=np.int32))
    ends = ranks
    if ranks * ways > MOST_PAIRS:  # number the pairs that there are
        pairs, place = dense(src * np.int64(ways) + way, ranks * ways)
        src_of, way, ways, ends = np.zeros(len(step), np.int32), place.astype(np.int32), len(pairs), 1
    else:
        src_of = src
    of_run, count = loops.grouped(step, _fixed(src_of), _fixed(way), max(ways, 1), ends, order)
    if count < len(step) or len(order):
        column = np.empty(count, np.int32)
        column[of_run] = np.arange(len(step), dtype=np.int32)
        step, src, dst = (_fixed(one[column]) for one in (step, src, dst))
    return Sent(step, src, dst, first, of_run)


def _fixed(column: Ints) -> Ints:
    """A column nobody writes to, as those of a schedule are: loops are compiled once for each kind of array."""
    column.flags.writeable = False
    return column


def _classes(schedule: Schedule, level: Ints, found: Sent) -> tuple[Ints, Longs, Floats, Floats]:
    """Class of every message; level, share and combined share of every class."""
    weights, scale = schedule.chunks.weights(schedule.collective)
    parts = (weights / (scale * pieces_of(schedule))).astype(np.float64)
    levels, count = int(level.max(initial=-1)) + 2, len(found)
    if len(parts) and bool(np.all(parts == parts[0])):  # then counting rows is enough
        op = schedule.op if bool(schedule.op.any()) else np.empty(0, np.uint8)
        rows, reduces = NONE, NONE
        if count < schedule.transfers or len(op):
            rows, reduces = loops.counts(found.of_run, found.first, op, count)
        klass, kinds, several = loops.classes(rows, reduces, level, FEW_CLASSES)
        if several > FEW_CLASSES:
            columns = [rows if len(rows) else np.ones(count, np.int32), reduces if len(reduces) else 0 * level, level]
            few, place = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
            klass, kinds, several = place.ravel().astype(np.int32), few.astype(np.int64), len(few)
        kinds = kinds[:several]
        shares: Floats = kinds[:, :2] * np.float64(parts[0])
        return klass, kinds[:, 2].astype(np.int64), shares[:, 0], shares[:, 1]
    taken, of_row = parts[schedule.chunk], found.of_row
    share = np.bincount(of_row, weights=taken, minlength=count).astype(np.float64, copy=False)
    combined = np.bincount(of_row, weights=taken * (schedule.op == REDUCE), minlength=count).astype(np.float64)
    unlike, first = np.unique(share, return_inverse=True)
    sums, second = np.unique(combined, return_inverse=True)
    _, place = dense((first * len(sums) + second) * np.int64(levels) + level + 1, len(unlike) * len(sums) * levels)
    values, place = np.unique(place, return_inverse=True)
    at = np.zeros(len(values), np.int64)
    at[place] = np.arange(count)
    return place.astype(np.int32), level[at].astype(np.int64), share[at], combined[at]


def _refuse_missing(level: Ints, src: Ints, dst: Ints, given: LogGP, topology: Topology) -> None:
    missing = np.flatnonzero((level == len(given.levels)) & (src != dst))
    if len(missing):
        a, b = int(src[missing[0]]), int(dst[missing[0]])
        known = ", ".join(one.within for one in given.levels)
        raise Invalid(
            f"profile loggp: has figures within {known} only, but ranks {a} and {b} of {topology.name} (at "
            f'{topology.places[a]} and {topology.places[b]}) share none; add a level without "within"'
        )


def _from_links(schedule: Schedule, topology: Topology, messages: Sent) -> tuple[Ints, Floats, Floats, float, int]:
    """Without figures: as many levels as routes differ in latency and least bandwidth; and the busiest link."""
    found = resolved(schedule, topology)
    alpha = latencies(topology, found.table)
    links = np.arange(len(found.table), dtype=np.int32)
    owner, resource = uses_of(topology, found.table, links)
    slowness = seconds_per_byte(topology)
    beta = np.zeros(len(found.table))
    np.maximum.at(beta, owner, slowness[resource])
    kinds, kind = np.unique(np.stack([alpha, beta], axis=1), axis=0, return_inverse=True)
    level = np.zeros(len(messages), np.int32)
    level[messages.of_row] = np.where(found.route >= 0, kind.ravel()[found.route], -1)
    weights, scale = schedule.chunks.weights(schedule.collective)
    parts = (weights / (scale * pieces_of(schedule))).astype(np.float64)
    per_route = np.bincount(
        found.route[found.route >= 0], weights=parts[schedule.chunk][found.route >= 0], minlength=len(found.table)
    )
    load = np.bincount(resource, weights=per_route[owner], minlength=len(slowness)) * slowness
    busiest = int(load.argmax()) if len(load) else -1
    return level, kinds[:, 0], kinds[:, 1], float(load[busiest]) if len(load) else 0.0, busiest


# ---- what waits for what ----


def _graph(
    schedule: Schedule, found: Sent, level: Ints, klass: Ints, order: str, left: bool
) -> tuple[Graph, Ints, Ints]:
    """With `left` the round of a message's sender is told when its last byte has left, else when it is done."""
    step, src, dst, ranks = found.step, found.src, found.dst, schedule.collective.ranks
    if order == "rounds":
        needs, gives, before, later, count = loops.rounds(step, src, dst, src, dst, ranks)
        pointer, release = loops.released(needs, count)
        waits = loops.counted_waits(gives, before)
        needed, each = (needs >= 0).astype(np.int32), np.arange(len(step) + 1, dtype=np.int32)
        if left:
            ends = (each, gives[1::2].copy(), each, gives[::2].copy())
            return Graph(src, dst, klass, needed, *ends, pointer, release, waits, later), NONE, NONE
        graph = Graph(src, dst, klass, needed, NONE, gives, NONE, NONE, pointer, release, waits, later)
        return graph, needs, before
    known = versions(schedule)
    give, need, early = _by_versions(known, found.of_row, len(step))
    after: Longs
    after, offset = _next_versions(known), len(known)
    if order == "streams":
        width = int(level.max(initial=0)) + 2
        key = [end * np.int32(width) + level + np.int32(1) for end in (src, dst)]
        needs, gives, _, later, count = loops.rounds(step, src, dst, _fixed(key[0]), _fixed(key[1]), ranks * width)
        messages, rounds = np.arange(len(step)), gives.astype(np.int64) + offset
        give = _joined(give, (messages, rounds[1::2]))
        if left:
            early = _joined(early, (messages, rounds[::2]))
        else:
            give = _joined(give, (messages, rounds[::2]))
        need = _joined(need, (messages[needs >= 0], needs[needs >= 0].astype(np.int64) + offset))
        after = np.concatenate([after, np.where(later >= 0, later + offset, -1)])
        offset += count
    waits = np.bincount(give[1], minlength=offset) + np.bincount(early[1], minlength=offset)
    waits += np.bincount(after[after >= 0], minlength=offset)
    order_of_needs = np.argsort(need[1], kind="stable")
    graph = Graph(
        src, dst, klass, np.bincount(need[0], minlength=len(step)).astype(np.int32), *_csr(give, len(step)),
        *(_csr(early, len(step)) if len(early[0]) else (NONE, NONE)),
        pointers(need[1][order_of_needs], offset).astype(np.int32), need[0][order_of_needs].astype(np.int32),
        waits.astype(np.int32), after.astype(np.int32),
    )  # fmt: skip
    return graph, NONE, NONE


Pairs = tuple[Longs, Longs]  # message, condition


def _by_versions(known: Versions, of_row: Ints, count: int) -> tuple[Pairs, Pairs, Pairs]:
    """A version is a condition: who writes it gives to it, who reads it needs it; and who reads the version before it
    gives to it as soon as its last byte has left (the old value is then free to go)."""
    rows = of_row.astype(np.int64)
    give = _distinct(rows, known.write.astype(np.int64), count, len(known))
    made = ~known.initial[known.read]
    need = _distinct(rows[made], known.read[made].astype(np.int64), count, len(known))
    last = known.final[known.read]
    early = _distinct(rows[~last], known.read[~last].astype(np.int64) + 1, count, len(known))
    return give, need, early


def _distinct(message: Longs, condition: Longs, messages: int, conditions: int) -> Pairs:
    keys = distinct(message * np.int64(max(conditions, 1)) + condition)
    return keys // max(conditions, 1), keys % max(conditions, 1)


def _next_versions(known: Versions) -> Longs:
    """The next version of the same cell comes after: except that the first one holds from the beginning."""
    if not len(known):
        return np.zeros(0, np.int64)
    out = np.arange(1, len(known) + 1)
    out[known.final | known.initial] = -1
    return out


def _joined(a: Pairs, b: Pairs) -> Pairs:
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def _csr(pairs: Pairs, messages: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    order = np.argsort(pairs[0], kind="stable")
    return pointers(pairs[0][order], messages).astype(np.int32), pairs[1][order].astype(np.int32)


def levels_named(given: LogGP) -> Sequence[str]:
    """What each level is called in words."""
    return [f"within {level.within}" if level.within else "beyond" for level in given.levels]
