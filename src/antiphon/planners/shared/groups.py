"""Nested groups of ranks, such as boxes in racks, and collectives that work level by level through them.

Groups come from options (`parse_groups`, `parse_fanins`) or from the ranks' places in the machine
(`groups_from_places`, `nested_groups`, `ranks_by_host`). A level is a depth of nesting; its fan-in is the number of
subgroups per group. The members of a collective are put in an order in which every group is contiguous; a seat is a
position in that order.

`list_exchanges` plans an allgather among groups of any sizes. Draw the data that a group of s ranks holds together (its
content) as the interval [0, 1), such that rank number floor(x * s) of the group has the data at x: each rank has 1/s.
At every level, the outermost first, the subgroups of a group exchange their contents, after which each has them all. If
all subgroups have the same size, rank i of one exchanges with rank i of the others. If sizes differ, the interval is
cut wherever the holder changes in any subgroup (`find_stretches`), and each stretch is exchanged among its holders. In
the end every rank has everything. Run backwards this is a reducescatter; both together are an allreduce.

Example: groups of 2 and 3 ranks change holders at 1/3, 1/2 and 2/3, so there are 4 stretches, of 2, 1, 1 and 2 sixths.
The first is exchanged between rank 0 of the pair and rank 0 of the triple, the second between rank 0 and rank 1, and
so on. All ranks of a group carry equal loads.

All data side by side are called the line. A `Spans` (core.transform) says for each of several owners which stretches of
the line it has. A `Placement` is a schedule together with the stretches that it moves and the step in which it starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.schedule import Schedule
from antiphon.core.topology import HOST_PREFIXES, Topology
from antiphon.core.transform import Placement, Spans, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.rows import Order, Seats, rows_to_schedule

MAX_DEPTH = 16  # levels of nesting in an option
MOST_WHOLE = 2**62  # integers stay below this, so that sums fit int64
SizePath = tuple[tuple[int, ...], ...]  # relative sizes of the groups that exchange, from the outermost level inwards
MAX_FACTORISATIONS = 64  # of the number of ranks: candidates of fan-ins


@dataclass(frozen=True)
class Groups:
    """A group of consecutive seats, divided into subgroups; without subgroups it is one rank."""

    size: int
    subgroups: tuple[Groups, ...] = ()

    @staticmethod
    def of_subgroups(subgroups: Sequence[Groups]) -> Groups:
        """Return the group of these subgroups; of a single one, itself."""
        return subgroups[0] if len(subgroups) == 1 else Groups(sum(group.size for group in subgroups), tuple(subgroups))

    @staticmethod
    def of_fans(fans: Sequence[int]) -> Groups:
        """Return equal groups, the innermost first: [4, 2] is two groups of four ranks."""
        groups = Groups.ring(fans[0])
        for fan in fans[1:]:
            groups = Groups.of_subgroups([groups] * fan)
        return groups

    @staticmethod
    def ring(size: int) -> Groups:
        """Return a group of single ranks."""
        return Groups.of_subgroups([SINGLE_RANK] * size)

    def subgroup_starts(self) -> list[int]:
        """Return the first seat of every subgroup, relative to the group's."""
        return [0, *accumulate(group.size for group in self.subgroups)][: len(self.subgroups)]

    def is_even(self) -> bool:
        """Return whether all groups of a level have the same fan-in."""
        return not self.subgroups or (len(set(self.subgroups)) == 1 and self.subgroups[0].is_even())

    def __str__(self) -> str:
        """Return the groups as `parse_groups` reads them."""
        if all(group == SINGLE_RANK for group in self.subgroups):
            return str(self.size)
        words: list[tuple[str, int]] = []  # a subgroup in words, and its repetitions
        for group in self.subgroups:
            inner = str(group) if all(p == SINGLE_RANK for p in group.subgroups) else f"({group})"
            words = (
                [*words[:-1], (inner, words[-1][1] + 1)] if words and words[-1][0] == inner else [*words, (inner, 1)]
            )
        return "+".join(word if times == 1 else f"{times}*{word}" for word, times in words)


def parse_groups(text: str, ranks: int, option: str = "fanins") -> Groups:
    """Parse an option such as "3+4", "8*32+8*16" or "(2+3)+2*4": consecutive groups of ranks.

    `option`: its name, for errors.
    """
    words = re.findall(r"\d{1,9}|\S", text)
    try:
        groups = _parse_words(words, ranks, depth=0)
    except (ValueError, IndexError):
        groups = None
    if words or groups is None:
        raise Invalid(f"option {option}: expected groups such as 3+4, 2*3+4 or (2+3)+4, got {quote(text)}")
    if groups.size != ranks:
        raise Invalid(f"option {option}: the groups of {quote(text)} have {groups.size} ranks together, not {ranks}")
    return groups


def _parse_words(words: list[str], ranks: int, depth: int) -> Groups:
    """Parse groups off the front of the words; raises ValueError or IndexError for bad syntax."""
    subgroups: list[Groups] = []
    while not subgroups or words[:1] == ["+"]:
        if subgroups:
            words.pop(0)  # the "+"
        times = 1
        if words[1:2] == ["*"]:  # a repetition "n*"
            times = int(words[0])
            del words[:2]
        if words[0] == "(":
            words.pop(0)
            group = _parse_words(words, ranks, depth + 1)
            is_valid = words.pop(0) == ")"
        else:
            size = int(words.pop(0))
            is_valid = 1 <= size <= ranks
            group = Groups.ring(size) if is_valid else SINGLE_RANK
        if not is_valid or depth > MAX_DEPTH or not 1 <= times <= ranks:
            raise ValueError
        subgroups += [group] * times
    return Groups.of_subgroups(subgroups)


def groups_from_places(topology: Topology, members: Sequence[int]) -> tuple[Groups, list[int]]:
    """Return the groups that the ranks' places show, and the ranks in an order where groups are contiguous.

    >>> from antiphon.core.topology import build
    >>> hosts = build("hosts", 5, [], places=["a/gpu0", "b/gpu0", "a/gpu1", "b/gpu1", "b/gpu2"])
    >>> groups, order = groups_from_places(hosts, range(5))
    >>> str(groups), order
    ('2+3', [0, 2, 1, 3, 4])
    """
    return nest_by_labels(list(members), {rank: topology.places[rank].split("/") for rank in members})


def nest_by_labels(ranks: list[int], labels: Mapping[int, Sequence[Any]], depth: int = 0) -> tuple[Groups, list[int]]:
    """Return groups within groups, and the ranks in an order where groups are contiguous.

    Ranks with equal `labels` at `depth` form a group, in order of first appearance; the labels after that divide it
    further.
    """
    if len(ranks) == 1 or all(len(labels[rank]) <= depth for rank in ranks):
        return Groups.ring(len(ranks)), ranks
    by_label: dict[Any, list[int]] = {}
    for rank in ranks:
        by_label.setdefault(labels[rank][depth] if depth < len(labels[rank]) else None, []).append(rank)
    nested = [nest_by_labels(group, labels, depth + 1) for group in by_label.values()]
    return Groups.of_subgroups([groups for groups, _ in nested]), [rank for _, order in nested for rank in order]


def plan_chains(collective: Collective, order: Order, groups: Groups, direction: int) -> Schedule:
    """Plan a broadcast by chains: along the outermost subgroups, one rank each, and from these inside each subgroup.

    `order`: the members by seat (default: by number). `direction`: 1, or -1 for chains that visit subgroups backwards.

    >>> schedule = plan_chains(Collective("broadcast", 4, roots=(0,)), None, parse_groups("2+2", 4), 1)
    >>> list(zip(schedule.step.tolist(), schedule.src.tolist(), schedule.dst.tolist()))
    [(0, 0, 2), (0, 0, 1), (1, 2, 3)]
    """
    seats = Seats.in_order(collective, order)
    rows: list[tuple[int, int, int]] = []  # step, sending seat, receiving seat

    def add_chain(group: Groups, first: int, seat: int, step: int) -> None:
        """Add the rows of a group whose seats begin at `first`; the data are at `seat` from `step` on."""
        subgroups, starts = group.subgroups, group.subgroup_starts()
        if not subgroups:
            return
        own_subgroup = max(i for i, start in enumerate(starts) if first + start <= seat)
        # in each subgroup the rank at the same relative position as the current one, counted by the middles of seats
        relative_position = Fraction(2 * (seat - first - starts[own_subgroup]) + 1, 2 * subgroups[own_subgroup].size)
        entry_seats = [
            first + start + math.floor(relative_position * subgroup.size)
            for start, subgroup in zip(starts, subgroups, strict=True)
        ]
        subgroup_order = [(own_subgroup + direction * i) % len(subgroups) for i in range(len(subgroups))]
        for hop, (a, b) in enumerate(pairwise(subgroup_order)):
            rows.append((step + hop, entry_seats[a], entry_seats[b]))
        for hop, number in enumerate(subgroup_order):
            # a rank sends along this chain and within its subgroup in the same step; the row of the chain comes first
            add_chain(subgroups[number], first + starts[number], entry_seats[number], step + hop)

    add_chain(groups, 0, int(np.flatnonzero(seats.rank == collective.roots[0])[0]), 0)
    when, src, dst = (np.array(column) for column in zip(*rows, strict=True))
    chunk = np.zeros_like(when)  # each block is one chunk
    return rows_to_schedule(collective, seats, when, chunk, src, dst)


@dataclass(frozen=True, eq=False)
class SeatExchange:
    """Exchanges of one level whose rows have the same `sizes`: an allgather among the seats of each row of `seats`.

    The i-th seat of row g begins with the data of owner g * width + i of `where`, and ends with those of all seats of
    its row. What the seats of a row begin with is in proportion to `sizes`.
    `path`: the sizes at all levels from the outermost to this one.
    """

    path: SizePath
    seats: Longs
    where: Spans

    @property
    def sizes(self) -> tuple[int, ...]:
        """Amounts of the seats of a row, relative to each other."""
        return self.path[-1]

    @property
    def width(self) -> int:
        """Seats per row."""
        return len(self.sizes)


def list_exchanges(groups: Groups, line: Spans) -> list[SeatExchange]:
    """Return the exchanges of an allgather, the outermost level first. O(seats^2) spans at most; a loop over groups.

    `line`: all data. If it has one owner, every seat holds an equal fraction of it, in order: a multiple of
    `units_per_seat(groups)` units. Otherwise, for unequal groups only, it has an owner per outermost group: the data
    that the group holds, also such a multiple.

    >>> from antiphon.planners.shared.groups import parse_groups
    >>> line = Spans.side_by_side(np.array([4]))
    >>> for exchange in list_exchanges(parse_groups("2+2", 4), line):
    ...     print(exchange.path, exchange.seats.tolist(), exchange.where.begin.tolist(), exchange.where.end.tolist())
    ((1, 1),) [[0, 2], [1, 3]] [0, 2, 1, 3] [1, 3, 2, 4]
    ((1, 1), (1, 1)) [[0, 1], [2, 3]] [0, 2, 1, 3, 0, 2, 1, 3] [1, 3, 2, 4, 1, 3, 2, 4]
    """
    exchanges_of: dict[SizePath, list[SeatExchange]] = {}
    for exchange in (
        _exchanges_within(groups, first=0, path=(), contents=line) if len(line) == 1 else _exchanges_among(groups, line)
    ):
        exchanges_of.setdefault(exchange.path, []).append(exchange)
    return [_stack_exchanges(exchanges_of[path]) for path in sorted(exchanges_of, key=len)]


def reverse_placements(placements: Sequence[Placement]) -> list[Placement]:
    """Return the placements of a reducescatter from those of an allgather on the reversed machine: each run backwards,
    the last first."""
    end = max((placement.stop for placement in placements), default=0)
    return [
        replace(placement, schedule=_invert_once(placement.schedule), start=end - placement.stop)
        for placement in placements
    ]


_inverses: WeakKeyDictionary[Schedule, Schedule] = WeakKeyDictionary()


def _invert_once(schedule: Schedule) -> Schedule:
    """Return the schedule run backwards, computed once while it exists: several plans contain that of one group."""
    if schedule not in _inverses:
        _inverses[schedule] = invert(schedule)
    return _inverses[schedule]


def delay_after(placements: Sequence[Placement], before: Sequence[Placement]) -> list[Placement]:
    """Return `placements` with later starts: after the end of all of `before`."""
    base = max((placement.stop for placement in before), default=0)
    return [replace(placement, start=placement.start + base) for placement in placements]


def units_per_seat(groups: Groups) -> int:
    """Return the number of units per seat with which all stretches begin and end at whole units."""
    # each level may divide stretches by every group size once more; equal groups divide evenly as they are
    units = (
        math.lcm(*_group_sizes(groups)) ** _nesting_depth(groups) if groups.subgroups and not groups.is_even() else 1
    )
    if units * groups.size >= MOST_WHOLE:
        raise Unsupported("the sizes of these groups have no common measure below 2^62; give options with fewer sizes")
    return units


def _group_sizes(groups: Groups) -> Iterator[int]:
    """Yield the sizes of a group and of all groups inside."""
    yield groups.size
    for subgroup in set(groups.subgroups):
        yield from _group_sizes(subgroup)


def _nesting_depth(groups: Groups) -> int:
    """Return the number of levels, that of single ranks included."""
    return 1 + max((_nesting_depth(subgroup) for subgroup in groups.subgroups), default=0)


def _stack_exchanges(exchanges: Sequence[SeatExchange]) -> SeatExchange:
    """Return one exchange with the rows of all these, whose paths are equal."""
    if len(exchanges) == 1:
        return exchanges[0]
    spans = [exchange.where for exchange in exchanges]
    offsets = np.cumsum([0, *(len(s.begin) for s in spans[:-1])])
    ptr = np.concatenate([[0], *(s.ptr[1:] + b for s, b in zip(spans, offsets, strict=True))])
    where = Spans(ptr, np.concatenate([s.begin for s in spans]), np.concatenate([s.end for s in spans]))
    return SeatExchange(exchanges[0].path, np.concatenate([exchange.seats for exchange in exchanges]), where)


def _exchanges_within(groups: Groups, first: int, path: SizePath, contents: Spans) -> Iterator[SeatExchange]:
    """Yield the exchanges inside a group from seat `first` on, level by level. O(spans).

    `contents`: an owner per content; of each, every rank of the group has an equal part, in order. (After an exchange
    of k groups, a group has k contents.)
    """
    subgroups = groups.subgroups
    if not subgroups:
        return
    sizes, starts = np.array([subgroup.size for subgroup in subgroups]), np.array(groups.subgroup_starts())
    edges, scale = find_stretches(subgroups)  # where holders change in any subgroup, over `scale`
    # in the shapes below: q stretches, k subgroups
    # stretch q of subgroup j begins at (starts[j] + sizes[j] * edges[q] / scale) / groups.size of each content
    contents_count, q, k = len(contents), len(edges) - 1, len(subgroups)
    # [stretch, subgroup, content], in units of 1 / (groups.size * scale)
    stretch_begin = (starts * scale + sizes * edges[:-1, None])[:, :, None]
    size = np.broadcast_to((sizes * np.diff(edges)[:, None])[:, :, None], (q, k, contents_count))
    # All divisions are exact, as the line has `units_per_seat` units per seat. For equal groups that is one, and
    # lengths need not be multiples of groups.size * scale, so numerators and denominator are divided by `common` first.
    common = math.gcd(groups.size * scale, int(np.gcd.reduce(stretch_begin.ravel())), int(np.gcd.reduce(size.ravel())))
    unit = contents.lengths // (groups.size * scale // common)
    low = (stretch_begin // common * unit).ravel()
    owner = np.broadcast_to(np.arange(contents_count), (q, k, contents_count)).ravel()
    stretches = contents.cut(owner, low, low + (size // common * unit).ravel())
    yield from _exchange_stretches(groups, first, (*path, _smallest_ratio(sizes)), stretches, contents_count)


def _exchanges_among(groups: Groups, shares: Spans) -> Iterator[SeatExchange]:
    """Yield the exchanges among the outermost groups, then those inside.

    `shares`: owner j is group j and has the data of that group, which need not be in proportion to its size.
    """
    edges, scale = find_stretches(groups.subgroups)
    q, k = len(edges) - 1, len(groups.subgroups)
    unit = shares.lengths // scale  # exact, as every group has a multiple of `units_per_seat` units (list_exchanges)
    low = (edges[:-1, None] * unit).ravel()
    stretches = shares.cut(np.tile(np.arange(k), q), low, (edges[1:, None] * unit).ravel())
    yield from _exchange_stretches(
        groups, first=0, path=(_smallest_ratio(shares.lengths),), stretches=stretches, contents_count=1
    )


def _exchange_stretches(
    groups: Groups, first: int, path: SizePath, stretches: Spans, contents_count: int
) -> Iterator[SeatExchange]:
    """Yield the exchange of all stretches among the subgroups, then the exchanges inside the subgroups.

    `first`: the first seat of `groups`. `stretches`: an owner per stretch, subgroup and content, in this order of
    nesting: the data that are exchanged.
    """
    subgroups = groups.subgroups
    sizes, starts = np.array([subgroup.size for subgroup in subgroups]), np.array(groups.subgroup_starts())
    edges, scale = find_stretches(subgroups)
    q, k = len(edges) - 1, len(subgroups)
    yield SeatExchange(
        path,
        first + starts + edges[:-1, None] * sizes // scale,
        stretches.grouped(np.arange(q * k + 1) * contents_count),
    )
    if all(not subgroup.subgroups for subgroup in subgroups):
        return
    # every subgroup now holds the contents of all of them: content c of subgroup j, its stretches in order
    order = np.arange(q * k * contents_count).reshape(q, k, contents_count).transpose(1, 2, 0).ravel()
    inner = stretches.take(order).grouped(np.arange(k * contents_count + 1) * q)
    for subgroup, start in zip(subgroups, starts.tolist(), strict=True):
        yield from _exchanges_within(subgroup, first + start, path, inner)


def _smallest_ratio(sizes: Longs) -> tuple[int, ...]:
    """Return the sizes divided by their greatest common divisor."""
    return tuple((sizes // np.gcd.reduce(sizes)).tolist())


def find_stretches(groups: Sequence[Groups]) -> tuple[Longs, int]:
    """Return where in [0, scale] the holder changes in any of these groups, from 0 to `scale`, and the scale.

    >>> from antiphon.planners.shared.groups import parse_groups
    >>> find_stretches(parse_groups("2+3", 5).subgroups)
    (array([0, 2, 3, 4, 6]), 6)
    """
    scale = math.lcm(*(group.size for group in groups))
    # a group of `size` ranks changes its holder at every multiple of 1 / size
    edges = {i * (scale // size) for size in {group.size for group in groups} for i in range(size)}
    return np.array([*sorted(edges), scale]), scale


def groups_at(topology: Topology, members: Sequence[int], depth: int) -> list[list[int]]:
    """Return the ranks grouped by the first `depth` components of their places, in order of first appearance."""
    by_place: dict[tuple[str, ...], list[int]] = {}
    for rank in members:
        by_place.setdefault(tuple(topology.places[rank].split("/")[:depth]), []).append(rank)
    return list(by_place.values())


def nested_groups(topology: Topology, members: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the fan-ins (innermost first) of the levels of places with equal groups, and the ranks ordered by groups.

    4 boxes of 8 GPUs give [8, 4]. Without such levels, the only fan-in is the number of ranks.
    """
    deepest = max(topology.places[rank].count("/") for rank in members)
    order = list(members)
    sizes: list[int] = []  # of groups, from the innermost
    # from the innermost level: stable sorting by ever shorter prefixes; levels with unequal groups are skipped
    for depth in range(deepest, 0, -1):
        order = [rank for group in groups_at(topology, order, depth) for rank in group]
        lengths = {len(group) for group in groups_at(topology, order, depth)}
        if len(lengths) == 1 and (size := lengths.pop()) > (sizes[-1] if sizes else 1):
            sizes.append(size)
    if not sizes or sizes[-1] < len(members):
        sizes.append(len(members))
    return [size // below for size, below in zip(sizes, [1, *sizes[:-1]], strict=True)], order


def ranks_by_host(topology: Topology, members: Sequence[int]) -> list[list[int]]:
    """Return the ranks grouped by host.

    A host is all places with the same first `depth` components. That is the least depth at which the component of every
    member begins with host, box, server or node; without such a depth, one less than that of the longest place.
    """
    paths = [topology.places[rank].split("/") for rank in members]
    for depth in range(1, max(map(len, paths)) + 1):
        if all(len(path) >= depth and path[depth - 1].startswith(HOST_PREFIXES) for path in paths):
            return groups_at(topology, members, depth)
    return groups_at(topology, members, max(max(map(len, paths)) - 1, 0))


def list_factorizations(number: int) -> list[list[int]]:
    """Return ordered factorizations into factors of 2 or more: fewest factors first, then the largest first factor.

    At most MAX_FACTORISATIONS of them; a prime has only itself. The number itself comes first.

    >>> list_factorizations(12)
    [[12], [6, 2], [4, 3], [3, 4], [2, 6], [3, 2, 2], [2, 3, 2], [2, 2, 3]]
    """
    lists: list[list[int]] = []
    level: list[tuple[list[int], int]] = [([], number)]  # first factors, and the cofactor that remains
    while level and len(lists) < MAX_FACTORISATIONS:
        lists += [[*head, cofactor] for head, cofactor in level]
        level = [
            ([*head, factor], cofactor // factor)
            for head, cofactor in level
            for factor in range(cofactor // 2, 1, -1)
            if cofactor % factor == 0
        ]  # fmt: skip
    return lists[:MAX_FACTORISATIONS]


def parse_fanins(fanins: str | int | Sequence[int], ranks: int, name: str = "fanins") -> list[int]:
    """Parse an option of fan-ins such as "4x2": integers of 2 or more whose product is the number of members.

    `name`: the option's name, for error messages.
    """
    try:
        fans = [int(f) for f in (str(fanins).split("x") if isinstance(fanins, str | int) else fanins)]
    except ValueError:
        raise Invalid(f"option {name}: expected numbers such as 4x2, got {quote(fanins)}") from None
    if not fans or min(fans) < 2 or math.prod(fans) != ranks:
        raise Invalid(f"option {name}: the product of {quote(fanins)} must be {ranks}, each factor 2 or more")
    return fans


SINGLE_RANK = Groups(1)
