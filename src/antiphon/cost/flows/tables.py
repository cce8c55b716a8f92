"""Prepare a schedule for flow-level simulation (run.py): dependencies as counters, and the links of each message.

A version is the value of a cell (a rank's copy of a chunk) between two writes. A message waits for the versions that it
reads; `reads` counts them. A version can be written when all of these events, its *gates*, have happened: all messages
that write it have arrived, the previous version of its cell is written, and all messages that read that previous
version have been sent. `gates` counts them. All of this is independent of the size, so it is computed once per
schedule. `Crowds` lists where incast (many senders to one receiver) is possible, `Combining` the costs of the ranks'
additions and memory accesses.

Example (`core.example.star`: ranks 1 and 2 send to 0, which copies the sum back): the sum has 2 gates, the arrivals of
two messages; both copies read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.memory import list_reductions
from antiphon.core.columns import (
    Bools,
    Floats,
    Ints,
    Longs,
    concat_ranges,
    distinct,
    index_in_run,
    order_of,
    pointers,
    run_starts,
    unique_inverse,
)
from antiphon.core.dependencies import Versions, versions
from antiphon.core.loads import pieces_of
from antiphon.core.messages import Messages, Paths, messages, paths, seconds_per_byte
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.genmodel.work import Incasts
from antiphon.cost.profile import Profile

# Of core.columns: order_of(keys, bound) returns the row numbers, stably sorted by keys below `bound`; pointers(owners,
# count) where the rows of each owner begin (CSR); index_in_run the position of each element in its run of equal values,
# run_starts where these runs begin; unique_inverse(keys, bound) the distinct keys, ascending, and each key's index
# among them.

NEVER_ZERO = np.int32(2**30)  # counter of the sentinel "no message", "no version": more than can be subtracted from it


@dataclass(frozen=True, eq=False)
class Crowds:
    """Possible incast: the pairs (link or limit, receiver) over which more than w_t ranks may send at once.

    `pair` and `sender` have the shape of `FlowTables.uses`.
    """

    epsilon: Floats  # per resource, and one for "none": seconds per byte and sender beyond w_t
    w_t: Longs  # the same: number of senders that cost nothing
    pairs: int  # number of pairs
    pair: Ints  # per message and column of `uses`: the number of the pair; `pairs` if incast is impossible there
    first: Longs  # pairs are sorted by resource: the first pair of each resource in `resource`
    resource: Longs  # the resources that have pairs
    # In the shape of `pair`, the number of (pair, sender), so that a sender with several routes counts once. None if no
    # rank has several routes to another.
    sender: Ints | None
    sender_pair: Longs  # per (pair, sender): its pair


@dataclass(frozen=True, eq=False)
class Combining:
    """Per version, the work of its rank to reduce it, in seconds per byte of nbytes."""

    adding: Floats  # additions
    access: Floats  # memory accesses

    @cached_property
    def seconds(self) -> Floats:
        return self.adding + self.access


@dataclass(frozen=True, eq=False)
class FlowTables:
    """Everything about a simulated schedule that does not depend on the size.

    Messages are given by number, and n, if there are n messages, means "none"; the same for versions and for resources
    (links and limits). Counters have an extra element for "none", which never falls to zero.
    """

    paths: Paths  # the messages, and their uses: `use_message` and `use_resource` (a link or limit) per use
    versions: Versions  # `read`, `write`: the version that each row of the schedule reads, and writes
    uses: Ints  # per message a row of the resources that it uses, padded with "none"
    cost: Floats  # per resource, and 0 for "none": seconds per byte
    crowds: Crowds | None  # None: incast is not possible
    after: Longs  # message -> the next message of its connection (src, dst, route)
    waits: NDArray[np.int32]  # counter per message: 1 for its latency, and 1 if another precedes it on its connection
    reads: NDArray[np.int32]  # counter per message: its rows that wait for a version
    gates: NDArray[np.int32]  # counter per version: the events before it can be written
    row_ptr: Longs  # message -> its rows, as a range of the three columns below
    by_message: Longs  # the number of the row in the schedule
    writes: Ints  # the version that the row writes
    frees: Ints  # the version after the one that the row reads: it may be written once the row is sent
    reader_ptr: Longs  # version -> the messages that read it, as a range of `readers`
    readers: Longs
    follows: Ints  # version -> the next version of its cell
    rank: Longs  # version -> its rank
    work: Combining | None  # None: combining takes no time

    @property
    def messages(self) -> Messages:
        return self.paths.messages

    @cached_property
    def preceding(self) -> Longs:
        """Return per message the previous message on the same connection, or -1."""
        previous = np.full(len(self.messages) + 1, -1, np.int64)
        previous[self.after[:-1]] = np.arange(len(self.messages))
        return previous[:-1]

    @property
    def resources(self) -> int:
        return len(self.cost) - 1

    def rows_of(self, message: int) -> Longs:
        """Return the rows of the schedule that form this message."""
        return self.by_message[self.row_ptr[message] : self.row_ptr[message + 1]]

    def rows_of_messages(self, numbers: Longs) -> Longs:
        """Return the rows of these messages, as indices into `writes` and `frees`. O(rows)."""
        if self.row_ptr[-1] == len(self.messages):
            return numbers  # each message has one row
        first = self.row_ptr[numbers]
        return concat_ranges(first, self.row_ptr[numbers + 1] - first)

    def readers_of(self, numbers: Longs) -> Longs:
        """Return the messages that read these versions."""
        first = self.reader_ptr[numbers]
        return self.readers[concat_ranges(first, self.reader_ptr[numbers + 1] - first)]


def prepare_tables(schedule: Schedule, topology: Topology, profile: Profile, steps: Ints | None = None) -> FlowTables:
    """Build the counters and their dependents of a schedule with expanded pieces and sorted rows. O(n log n) in rows
    times links per route.

    `steps`: the step numbers to report, if they differ from the schedule's.

    In `core.example.star` versions 0 and 1 are of rank 0, 2 and 3 of rank 1, 4 and 5 of rank 2: messages 2 and 3 read
    version 1, for which two rows must have arrived; version 3 waits for its row and for row 1, which reads 2.

    >>> from antiphon.core.example import machine, star
    >>> tables = prepare_tables(star().sorted(), machine(), Profile())
    >>> tables.reads[:-1].tolist(), tables.gates[:-1].tolist()
    ([0, 0, 1, 1], [0, 2, 0, 2, 0, 2])
    >>> tables.writes.tolist(), tables.frees.tolist(), tables.readers_of(np.array([1])).tolist()
    ([1, 1, 3, 5], [5, 3, 6, 6], [2, 3])
    """
    table, version_table = messages(schedule), versions(schedule)
    routing, of_row = paths(table, topology), table.of_row.astype(np.int64)
    count, message_count = len(version_table), len(table)
    by_message = order_of(table.of_row, max(message_count, 1))
    row_ptr = pointers(table.of_row[by_message], message_count)
    # From here on rows are in the order of messages (CSR row_ptr): each reads a version and writes one. The versions of
    # a cell have consecutive numbers.
    read, write = version_table.read[by_message], version_table.write[by_message]
    follows = np.where(version_table.final, count, np.arange(1, count + 1)).astype(np.int32)
    waiting = ~version_table.initial[read]  # rows that have to wait until the version that they read is written
    # CSR from a version to the messages that read it, without initial versions, which exist from the start.
    by_version = order_of(read.astype(np.int64), max(count, 1))
    by_version = by_version[waiting[by_version]]
    reads = np.bincount(table.of_row[by_message[waiting]], minlength=message_count + 1).astype(np.int32)
    # A version waits for: each write into it, each read of its predecessor, and the predecessor itself (unless that is
    # initial data, which is there from the start).
    gates = np.bincount(write, minlength=count + 1) + np.bincount(follows[read], minlength=count + 1)
    successors = follows[~version_table.initial & ~version_table.final] if count else follows
    gates[successors] += 1
    # The sentinel behind the last entry absorbs decrements for "no successor" and never reaches 0.
    gates[count], reads[message_count] = NEVER_ZERO, NEVER_ZERO
    after, first, has_parallel_routes = _find_connections(routing)
    uses = _list_uses(routing)
    if steps is not None:
        routing = replace(routing, messages=replace(table, step=steps[table.step]))
    return FlowTables(
        routing, version_table, uses, cost=np.append(seconds_per_byte(topology), 0.0),
        crowds=find_crowds(table, uses, topology, profile, has_parallel_routes),
        after=after, waits=np.append(np.where(first, 1, 2), NEVER_ZERO).astype(np.int32), reads=reads,
        gates=gates.astype(np.int32), row_ptr=row_ptr, by_message=by_message, writes=write, frees=follows[read],
        reader_ptr=pointers(read[by_version].astype(np.int64), count), readers=of_row[by_message[by_version]],
        follows=follows, rank=version_table.rank, work=combining_costs(schedule, version_table, profile),
    )  # fmt: skip


def _list_uses(routing: Paths) -> Ints:
    """Return an array with a row per message, its links and limits, padded with "none". O(uses).

    They ascend; one that a message crosses twice is listed twice.

    Through a switch (node 3), by link 1 to rank 0, 3 to rank 1, 5 to rank 2:

    >>> from antiphon.core.example import star
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> switched = build("switched", 3, both_ways([(0, 3), (1, 3), (2, 3)], LinkType("wire", "1GB/s")), switches=1)
    >>> _list_uses(paths(messages(star()), switched))
    array([[1, 4],
           [1, 2],
           [0, 3],
           [0, 5]], dtype=int32)
    """
    message_count = len(routing.messages)
    order = order_of(routing.use_message, max(message_count, 1))
    owner = routing.use_message[order]
    column = index_in_run(owner)
    table = np.full((message_count, int(column.max(initial=-1)) + 1), routing.resources, np.int32)
    table[owner, column] = routing.use_resource[order]
    return table


def _find_connections(routing: Paths) -> tuple[Longs, Bools, bool]:
    """Return per message the next with the same (src, dst, route); per message whether it is the first of these; and
    whether any two ranks have several routes. One sort.

    Messages 0 and 2 go from 0 to 1; the number of messages, 3, stands for none:

    >>> from antiphon.core.example import machine, of_rows
    >>> rows = [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (1, 1, 0, 1, 0)]
    >>> table = messages(of_rows("broadcast", 3, rows, roots=(0,), parts=2))
    >>> _find_connections(paths(table, machine()))
    (array([2, 3, 3, 3]), array([ True,  True, False]), False)
    """
    table, route = routing.messages, routing.route
    order = np.lexsort((np.arange(len(table)), route, table.dst, table.src))
    # within a connection messages are in order of their numbers, and so of steps
    pair = (table.src * np.int64(table.ranks) + table.dst)[order]
    same_pair = pair[1:] == pair[:-1]
    same_route = same_pair & (route[order][1:] == route[order][:-1])
    after = np.full(len(table) + 1, len(table), np.int64)
    after[order[:-1][same_route]] = order[1:][same_route]
    first = np.ones(len(table), np.bool_)
    first[order[1:][same_route]] = False
    return after, first, bool((same_pair & ~same_route).any())


def find_crowds(
    sent: Messages, uses: Ints, topology: Topology, profile: Profile, has_parallel_routes: bool
) -> Crowds | None:
    """Return the pairs over which more than w_t ranks send in the whole schedule, or None if there are none. O(uses).

    `has_parallel_routes`: some rank sends to another by more than one route.

    Ranks 1 and 2 send to 0 over link 1, from a switch (node 3) to 0, which has the threshold w_t = 1:

    >>> from antiphon.core.example import star
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> from antiphon.cost.profile import Incast
    >>> switched = build("switched", 3, both_ways([(0, 3), (1, 3), (2, 3)], LinkType("wire", "1GB/s")), switches=1)
    >>> table = messages(star())
    >>> profile = Profile(incast={"wire": Incast(epsilon=1e-9, w_t=1)})
    >>> crowd = find_crowds(table, _list_uses(paths(table, switched)), switched, profile, has_parallel_routes=False)
    >>> crowd.pairs, crowd.resource, crowd.pair.tolist()
    (1, array([1]), [[0, 1], [0, 1], [1, 1], [1, 1]])
    """
    figures = Incasts.of(profile, topology)
    resources, ranks = len(figures.epsilon), np.int64(topology.ranks)
    epsilon, w_t = np.append(figures.epsilon, 0.0), np.append(figures.w_t, 0)
    senders = np.bincount(distinct(sent.dst * ranks + sent.src) // ranks, minlength=topology.ranks)
    # Incast is possible only where a receiver has more senders than the threshold of some link.
    is_possible = (epsilon[uses] > 0) & (senders[sent.dst][:, None] > w_t[uses])
    message, column = np.nonzero(is_possible)
    if not len(message):
        return None
    resource = uses[message, column].astype(np.int64)
    # A crowd is a pair (resource, receiver); count its distinct senders over the whole schedule as a bound.
    pairs, pair = unique_inverse(resource * ranks + sent.dst[message], int(resources * ranks))
    sender_count = np.bincount(distinct(pair * ranks + sent.src[message]) // ranks, minlength=len(pairs))
    is_crowd = sender_count > w_t[pairs // ranks]
    if not is_crowd.any():
        return None
    count = int(is_crowd.sum())
    number = np.where(is_crowd, np.cumsum(is_crowd) - 1, count)[pair]
    table = np.full(uses.shape, count, np.int32)
    table[message, column] = number
    table[:, 1:][uses[:, 1:] == uses[:, :-1]] = count  # crossed twice (uses ascend): one sender
    crowd_resource = pairs[is_crowd] // ranks
    first = np.flatnonzero(run_starts(crowd_resource))
    # Where routes differ, a sender may cross a resource in several flows at once: count it once by (pair, sender).
    triples, triple = unique_inverse(number * ranks + sent.src[message], int((count + 1) * ranks))
    sender = None
    if has_parallel_routes:
        sender = np.full(uses.shape, len(triples), np.int32)
        sender[message, column] = triple
    return Crowds(
        epsilon, w_t, pairs=count, pair=table, first=first, resource=crowd_resource[first], sender=sender,
        sender_pair=np.append(triples // ranks, count),
    )  # fmt: skip


def combining_costs(schedule: Schedule, version_table: Versions, profile: Profile) -> Combining | None:
    """Return the cost of every reduction (GenModel, section 3.1), or None if all are free. O(n log n).

    Combining f inputs of B bytes at once, the rank's own among them, adds (f - 1) B and reads or writes (f + 1) B. A
    single value that arrives in an empty cell is no reduction. A copy between slots of a rank reads and writes (f = 1).

    The sum of three (version 1) adds 2 B and reads or writes 4 B:

    >>> from antiphon.core.example import star
    >>> costs = combining_costs(star(), versions(star()), Profile(gamma=1.0, delta=1.0))
    >>> costs.adding.tolist(), costs.access.tolist()
    ([0.0, 2.0, 0.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0, 0.0, 0.0])
    """
    gamma, delta, count = float(profile.gamma), float(profile.delta), len(version_table)
    if not (gamma or delta) or not count:
        return None
    reductions = list_reductions(schedule)
    weights, scale = schedule.chunks.weights(schedule.collective)
    share = (weights / (scale * pieces_of(schedule))).astype(np.float64)[reductions.chunk]
    # `row`: one of the transfers that a reduction combines; all of them write the same version
    costs, target = Combining(np.zeros(count), np.zeros(count)), version_table.write[reductions.row]
    costs.adding[target], costs.access[target] = (
        share * gamma * (reductions.fanin - 1),
        share * delta * (reductions.fanin + 1),
    )
    return costs if costs.seconds.any() else None


# The type of functions to which run.py reports changed loads: (seconds, resources, their loads in bytes per second)
Watch = Callable[[float, Longs, Floats], None]
