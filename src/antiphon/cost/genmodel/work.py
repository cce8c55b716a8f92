"""What GenModel needs of a schedule: per step the load of each link, its simultaneous senders, and each rank's
reductions.

Everything is a piecewise constant function over steps, held as runs over *segments* (runs.py): stretches of steps in
which the same messages are in progress. Without pieces each step is a segment. `loads` has per link or shared limit
its share of nbytes, and the number of ranks that send to one receiver over it at once (*incast*, which slows the
receiver beyond a threshold w_t); `combined` has per rank the shares of nbytes that it adds, and that it reads or writes
in memory. `price_loads` turns loads into seconds per byte.

Example (`core.example.star` on links of 1 GB/s): in step 0 the links from ranks 1 and 2 to rank 0 carry 1.0 of nbytes
each, and rank 0 adds 2.0 of nbytes and accesses 4.0 (reads three values, writes one).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.bounds.memory import list_reductions
from antiphon.core.columns import (
    Floats,
    Longs,
    distinct,
    unique_inverse,
)
from antiphon.core.joints import refuse_joints
from antiphon.core.loads import pieces_of
from antiphon.core.messages import Paths, messages, paths, seconds_per_byte
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.genmodel.runs import (
    Numbers,
    Runs,
    Segments,
    align_runs,
    are_single_segments,
    highest_per_key,
    merge_runs,
    segments,
    sum_runs,
)
from antiphon.cost.profile import Incast, Profile

# Of core.columns: unique_inverse(keys, bound) returns the distinct keys below `bound`, ascending, and each key's index
# among them.

NO_INCAST = Incast()


@dataclass(frozen=True, eq=False)
class Incasts:
    """Per link and shared limit: the additional seconds per byte for each sender beyond its threshold w_t."""

    epsilon: Floats
    w_t: Longs

    @staticmethod
    def of(profile: Profile, topology: Topology) -> Incasts:
        """Look up incast per link; a shared limit has that of its worst link. O(links).

        >>> from antiphon.core.example import machine
        >>> Incasts.of(Profile(incast={"wire": Incast(1e-9, 1)}), machine()).w_t
        array([1, 1, 1, 1])
        """
        kinds = [profile.incast.get(t.kind, NO_INCAST) for t in topology.types]
        entries_of_limits = []
        for limit in topology.limits:
            incasts_of_links = [kinds[int(topology.link_type[link])] for link in limit.links]
            # The worst link decides: greatest epsilon, and for equal ones the smallest threshold.
            entries_of_limits.append(max(incasts_of_links, key=lambda incast: (incast.epsilon, -incast.w_t)))
        incasts = [*kinds, *entries_of_limits]  # per link type, then per shared limit
        index = np.concatenate([topology.link_type, len(kinds) + np.arange(len(entries_of_limits))]).astype(np.int64)
        epsilon = np.array([incast.epsilon for incast in incasts], np.float64)
        return Incasts(epsilon[index], np.array([incast.w_t for incast in incasts], np.int64)[index])


@dataclass(frozen=True, eq=False)
class Work:
    """A schedule on a topology, as GenModel sees it; everything is computed on first use."""

    schedule: Schedule
    topology: Topology
    profile: Profile

    def __post_init__(self) -> None:
        refuse_joints(self.schedule, "model genmodel", "models alpha-beta, critical-path and flows price it")

    @cached_property
    def paths(self) -> Paths:
        return paths(messages(self.schedule), self.topology)

    @cached_property
    def segments(self) -> Segments:
        return segments(self.paths.messages)

    @cached_property
    def senders(self) -> Runs:
        """Per link and limit with incast: the greatest number of ranks that send over it to one receiver at once.

        O(n log n).

        Ranks 1 and 2 send over links 2 and 4 to a switch (node 3), from which link 1 leads to rank 0, in segment 0:

        >>> from antiphon.core.example import star
        >>> from antiphon.core.topology import LinkType, both_ways, build
        >>> switched = build("switched", 3, both_ways([(0, 3), (1, 3), (2, 3)], LinkType("wire", "1GB/s")), switches=1)
        >>> senders = Work(star(), switched, Profile(incast={"wire": Incast(1e-9, 1)})).senders
        >>> senders.key.tolist(), senders.low.tolist(), senders.values[0].tolist()
        ([1, 2, 4], [0, 0, 0], [2, 1, 1])
        """
        routing, span, incasts = self.paths, self.segments, Incasts.of(self.profile, self.topology)
        nothing = np.zeros(0, np.int64)
        has_incast = incasts.epsilon > 0
        if not has_incast.any() or not len(routing.use_message):
            return Runs(nothing, nothing, nothing, (nothing,))
        # Filter first: only messages to receivers with more senders than the smallest threshold can have incast.
        is_crowded = self._find_crowded(int(incasts.w_t[has_incast].min()))
        # (a use: one message on one link or limit)
        uses = np.flatnonzero(is_crowded[routing.use_message] & has_incast[routing.use_resource])
        message, resource = routing.use_message[uses], routing.use_resource[uses]
        if not len(message):
            return Runs(nothing, nothing, nothing, (nothing,))
        ranks, count, src, dst = routing.messages.ranks, len(span), routing.messages.src, routing.messages.dst
        pair, low, high = resource * ranks + dst[message], span.low[message], span.high[message]
        if not self._is_simple:
            # Overlapping messages of one sender over a resource count as one sender: merge their runs.
            pairs, position = unique_inverse(pair, (int(resource.max()) + 1) * ranks)
            triples, low, high = merge_runs(position * ranks + src[message], low, high, count)
            pair = pairs[triples // ranks]
        if are_single_segments(low, high):
            positions, position_index = unique_inverse(pair * count + low, (int(pair.max()) + 1) * count)
            senders_to_one = Runs(
                positions // count // ranks, positions % count, positions % count + 1, (np.bincount(position_index),)
            )
        else:
            senders_per_pair = sum_runs(pair, low, high, (np.ones(len(pair), np.int64),), count)
            senders_to_one = Runs(
                senders_per_pair.key // ranks, senders_per_pair.low, senders_per_pair.high, senders_per_pair.values
            )
        return highest_per_key(senders_to_one, count)

    @cached_property
    def _is_simple(self) -> bool:
        """Whether no rank sends two messages to another at once, and no message crosses a resource twice."""
        table = self.paths.messages
        # A message crosses a link once, but a shared limit by each of its links under it.
        if len(self.topology.limits) or not self.segments.is_unpipelined:
            return False
        key = (table.src.astype(np.int64) * table.ranks + table.dst) * len(self.segments) + self.segments.low
        return len(distinct(key)) == len(key)

    def _find_crowded(self, w_t: int) -> Numbers:
        """Return per message whether its receiver has more than `w_t` senders at once. O(n).

        With pieces, all senders of the receiver count, at once or not: an upper bound is enough for a filter.

        >>> from antiphon.core.example import machine, star
        >>> Work(star(), machine(), Profile())._find_crowded(1)
        array([ True,  True, False, False])
        """
        table, ranks = self.paths.messages, self.paths.messages.ranks
        is_between_ranks, span = table.src != table.dst, self.segments
        if span.is_unpipelined:
            receptions, reception_index = unique_inverse(
                table.dst.astype(np.int64) * len(span) + span.low, ranks * len(span)
            )
            return (np.bincount(reception_index, weights=is_between_ranks, minlength=len(receptions)) > w_t)[
                reception_index
            ]
        pairs = distinct((table.dst.astype(np.int64) * ranks + table.src)[is_between_ranks])
        return (np.bincount(pairs // ranks, minlength=ranks) > w_t)[table.dst]

    @cached_property
    def loads(self) -> Runs:
        """Per link and limit, over steps: its share of nbytes, and the senders to one receiver (`senders`). O(n log n).

        >>> from antiphon.core.example import machine, star
        >>> loads = Work(star(), machine(), Profile()).loads
        >>> loads.key.tolist(), loads.low.tolist(), [column.tolist() for column in loads.values]
        ([0, 1, 2, 3], [1, 0, 1, 0], [[1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0]])
        """
        routing, span = self.paths, self.segments
        message = routing.use_message
        runs = sum_runs(
            routing.use_resource, span.low[message], span.high[message], (self._weight[message],), len(span)
        )
        share = runs.values[0] / self._scale
        return align_runs(Runs(runs.key, runs.low, runs.high, (share,)), self.senders, len(self.segments))

    @property
    def _scale(self) -> float:
        return float(self.paths.messages.scale)

    @property
    def _weight(self) -> Numbers:
        """The weight of every message, over `_scale`; whole numbers if they fit int64."""
        exact = self.paths.messages.weight
        return exact.astype(np.float64) if exact.dtype == object else exact

    def price_loads(self) -> tuple[Floats, Floats]:
        """Return the seconds per byte of nbytes of each run of `loads` in two columns: by bandwidth, added by incast.

        O(runs).

        >>> from antiphon.core.example import machine, star
        >>> Work(star(), machine(), Profile()).price_loads()
        (array([1.e-09, 1.e-09, 1.e-09, 1.e-09]), array([0., 0., 0., 0.]))
        """
        incasts, resource = Incasts.of(self.profile, self.topology), self.loads.key
        share, senders = self.loads.values
        beyond = np.maximum(senders - incasts.w_t[resource], 0)
        return share * seconds_per_byte(self.topology)[resource], share * incasts.epsilon[resource] * beyond

    @cached_property
    def combined(self) -> Runs:
        """Per rank, over steps: the shares of nbytes that it adds, and that it reads and writes in memory. O(n log n).

        Rank 0 adds two values to its own, and reads three and writes one:

        >>> from antiphon.core.example import machine, star
        >>> combined = Work(star(), machine(), Profile()).combined
        >>> combined.key.tolist(), combined.low.tolist(), [column.tolist() for column in combined.values]
        ([0], [0], [[2.0], [4.0]])
        """
        # a row per reduction: in `step`, `rank` combines `fanin` values of `chunk`, its own value included
        reductions = list_reductions(self.schedule)
        pieces = pieces_of(self.schedule)[reductions.chunk]
        # The begins of all segments and the end of the last (none without segments). A chunk of n pieces is combined in
        # n steps, from `step` on.
        marks = np.append(self.segments.begin, self.segments.begin[-1:] + self.segments.length[-1:])
        low, high = np.searchsorted(marks, reductions.step), np.searchsorted(marks, reductions.step + pieces)
        weight_per_chunk = self.paths.messages.per_chunk
        weight = (weight_per_chunk.astype(np.float64) if weight_per_chunk.dtype == object else weight_per_chunk)[
            reductions.chunk
        ]
        columns = (weight * (reductions.fanin - 1), weight * (reductions.fanin + 1))
        runs = sum_runs(reductions.rank, low, high, columns, len(self.segments))
        return Runs(runs.key, runs.low, runs.high, tuple(column / self._scale for column in runs.values))
