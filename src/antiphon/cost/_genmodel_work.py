"""What GenModel needs to know of a schedule: its messages, their links, who sends to whom at once, what is combined."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.memory import reductions
from antiphon.core.columns import Longs, dense, distinct, order_of, starts
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost._genmodel_runs import Numbers, Runs, Segments, alone, beside, highest, once, segments, summed
from antiphon.cost._messages import Floats, latencies, resolved, seconds_per_byte, uses_of
from antiphon.cost._profile import Incast, Profile

NONE = Incast()


@dataclass(frozen=True, eq=False)
class Sent:
    """Messages: rows that are under way over the same segments, from and to the same ranks by the same route."""

    row: Longs  # one row of each
    low: Longs
    high: Longs
    src: Longs
    dst: Longs
    weight: Numbers  # in each step
    alpha: Floats
    use_message: Longs
    use_resource: Longs


@dataclass(frozen=True, eq=False)
class Incasts:
    """Of every link and shared limit: seconds more per byte for each sender beyond so many."""

    epsilon: Floats
    w_t: Longs

    @staticmethod
    def of(profile: Profile, topology: Topology) -> Incasts:
        """A shared limit has that of its links, the greatest where it joins several kinds."""
        kinds = [profile.incast.get(t.kind, NONE) for t in topology.types]
        of_limits = []
        for limit in topology.limits:
            joined = [kinds[int(topology.link_type[link])] for link in limit.links]
            of_limits.append(max(joined, key=lambda seen: (seen.epsilon, -seen.w_t)))
        every = [*kinds, *of_limits]
        index = np.concatenate([topology.link_type, len(kinds) + np.arange(len(of_limits))]).astype(np.int64)
        epsilon = np.array([seen.epsilon for seen in every], np.float64)
        return Incasts(epsilon[index], np.array([seen.w_t for seen in every], np.int64)[index])


@dataclass(frozen=True, eq=False)
class Work:
    """A schedule on a machine, as GenModel sees it."""

    schedule: Schedule
    topology: Topology
    profile: Profile

    @cached_property
    def segments(self) -> Segments:
        return segments(self.schedule)

    @cached_property
    def _weights(self) -> tuple[Numbers, float]:
        """Per chunk what one of its pieces weighs, over the returned scale; whole numbers where they fit."""
        weights, scale = self.schedule.chunks.weights(self.schedule.collective)
        pieces = pieces_of(self.schedule)
        common = math.lcm(*np.unique(pieces).tolist()) if len(pieces) else 1
        top = float(weights.max(initial=0)) * common * 3 * max(self.schedule.transfers, 1)
        if top < 2**62:
            return weights.astype(np.int64) * (common // pieces), float(scale * common)
        return (weights / pieces).astype(np.float64), float(scale)

    @cached_property
    def sent(self) -> Sent:
        """O(n log n) in rows times hops."""
        schedule, span = self.schedule, self.segments
        found = resolved(schedule, self.topology)
        moved = np.flatnonzero(found.route >= 0)
        ranks, route = schedule.collective.ranks, found.route[moved]
        key, bound = (schedule.src[moved] * np.int64(ranks) + schedule.dst[moved]), ranks * ranks
        columns: list[tuple[NDArray[np.integer[Any]], int]] = [(route, len(found.table)), (span.low[moved], len(span))]
        if not span.single:
            columns.append((span.high[moved], len(span) + 1))
        for column, more in columns:
            names, key = dense(key, bound)
            bound = max(len(names) * more, 1)
            key = key * more + column
        order = order_of(key, bound)
        first = np.flatnonzero(starts(key[order]))
        per_row = self._weights[0][schedule.chunk[moved]]
        weight = np.add.reduceat(per_row[order], first) if len(first) else per_row
        row = moved[order[first]]
        route = found.route[row]
        message, resource = uses_of(self.topology, found.table, route)
        src, dst = (column[row].astype(np.int64) for column in (schedule.src, schedule.dst))
        alpha = latencies(self.topology, found.table)[route]
        return Sent(row, span.low[row], span.high[row], src, dst, weight, alpha, message, resource)

    @cached_property
    def senders(self) -> Runs:
        """Of every link and limit that may suffer: how many send over it to one receiver at once, at most."""
        sent, count, incasts = self.sent, len(self.segments), Incasts.of(self.profile, self.topology)
        nothing = np.zeros(0, np.int64)
        suffering = incasts.epsilon > 0
        if not suffering.any() or not len(sent.row):
            return Runs(nothing, nothing, nothing, (nothing,))
        crowded = self._crowded(int(incasts.w_t[suffering].min()))
        kept = np.flatnonzero(crowded[sent.use_message] & suffering[sent.use_resource])
        message, resource = sent.use_message[kept], sent.use_resource[kept]
        if not len(message):
            return Runs(nothing, nothing, nothing, (nothing,))
        ranks = self.schedule.collective.ranks
        pair, low, high = resource * ranks + sent.dst[message], sent.low[message], sent.high[message]
        if not self._single:
            pairs, place = dense(pair, (int(resource.max()) + 1) * ranks)
            three, low, high = once(place * ranks + sent.src[message], low, high, count)
            pair = pairs[three // ranks]
        if alone(low, high):
            places, which = dense(pair * count + low, (int(pair.max()) + 1) * count)
            together = Runs(places // count // ranks, places % count, places % count + 1, (np.bincount(which),))
        else:
            to_one = summed(pair, low, high, (np.ones(len(pair), np.int64),), count)
            together = Runs(to_one.key // ranks, to_one.low, to_one.high, to_one.values)
        return highest(together, count)

    @cached_property
    def _single(self) -> bool:
        """No rank sends to another by two messages at once, and none crosses a resource twice."""
        sent = self.sent
        if len(self.topology.limits) or not self.segments.single:
            return False
        ranks = self.schedule.collective.ranks
        key = (sent.src * ranks + sent.dst) * len(self.segments) + sent.low
        return len(distinct(key)) == len(key)

    def _crowded(self, w_t: int) -> Numbers:
        """Messages whose receiver has more senders than that; with pieces, all of its senders count."""
        sent, ranks = self.sent, self.schedule.collective.ranks
        if self.segments.single:
            place, which = dense(sent.dst * len(self.segments) + sent.low, ranks * len(self.segments))
            return (np.bincount(which, minlength=len(place)) > w_t)[which]
        pairs = distinct(sent.dst * ranks + sent.src)
        return (np.bincount(pairs // ranks, minlength=ranks) > w_t)[sent.dst]

    @cached_property
    def loads(self) -> Runs:
        """Of every link and limit, per step: its part of nbytes, and the senders to one receiver (`senders`)."""
        sent = self.sent
        at = sent.use_message
        found = summed(sent.use_resource, sent.low[at], sent.high[at], (sent.weight[at],), len(self.segments))
        part = found.values[0] / self._weights[1]
        return beside(Runs(found.key, found.low, found.high, (part,)), self.senders, len(self.segments))

    def carried(self) -> tuple[Floats, Floats]:
        """Of the runs of `loads`, in seconds per byte of nbytes: by bandwidth, and by incast on top of it."""
        incasts, at = Incasts.of(self.profile, self.topology), self.loads.key
        part, senders = self.loads.values
        beyond = np.maximum(senders - incasts.w_t[at], 0)
        return part * seconds_per_byte(self.topology)[at], part * incasts.epsilon[at] * beyond

    @cached_property
    def combined(self) -> Runs:
        """Of every rank, per step: the parts of nbytes that it adds, and that it reads and writes."""
        found = reductions(self.schedule)
        pieces = pieces_of(self.schedule)[found.chunk]
        marks = np.append(self.segments.begin, self.segments.begin[-1:] + self.segments.length[-1:])
        low, high = np.searchsorted(marks, found.step), np.searchsorted(marks, found.step + pieces)
        weight = self._weights[0][found.chunk]
        columns = (weight * (found.fanin - 1), weight * (found.fanin + 1))
        runs = summed(found.rank, low, high, columns, len(self.segments))
        return Runs(runs.key, runs.low, runs.high, tuple(column / self._weights[1] for column in runs.values))
