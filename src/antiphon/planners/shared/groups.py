"""Rings within groups and among them where groups differ in size: whoever is in a smaller group carries more.

What a group of s ranks holds of a content [0, 1) lies with its rank number floor(x * s) at x: everyone has 1/s. So
groups of 3 and 4 ranks pass a content on in 6 stretches, each from its holder here to its holder there, and both
groups are loaded evenly. Groups may consist of groups; where all are equally large this is the usual scheme by digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, narrow
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.routing import joined
from antiphon.planners.shared.rows import Order, Seats, backwards, lay, per_root, refuse_more_than_fits

MOST_DEPTH = 16
MOST_WHOLE = 2**62
MOST_ROWS = 2**24


@dataclass(frozen=True)
class Groups:
    """A run of seats: a ring of parts that are groups in turn, or, without parts, one rank."""

    size: int
    parts: tuple[Groups, ...] = ()

    @staticmethod
    def of(parts: Sequence[Groups]) -> Groups:
        return parts[0] if len(parts) == 1 else Groups(sum(part.size for part in parts), tuple(parts))

    @staticmethod
    def ring(size: int) -> Groups:
        return Groups.of([ONE] * size)

    def starts(self) -> list[int]:
        return [sum(part.size for part in self.parts[:i]) for i in range(len(self.parts))]

    def steps(self) -> int:
        return len(self.parts) - 1 + max(part.steps() for part in self.parts) if self.parts else 0

    def even(self) -> bool:
        """Whether each level has one fan-in."""
        return not self.parts or (len(set(self.parts)) == 1 and self.parts[0].even())

    def __str__(self) -> str:
        if all(part == ONE for part in self.parts):
            return str(self.size)
        words: list[tuple[str, int]] = []
        for part in self.parts:
            inner = str(part) if all(p == ONE for p in part.parts) else f"({part})"
            words = (
                [*words[:-1], (inner, words[-1][1] + 1)] if words and words[-1][0] == inner else [*words, (inner, 1)]
            )
        return "+".join(word if times == 1 else f"{times}*{word}" for word, times in words)


ONE = Groups(1)


def given_groups(text: str, ranks: int) -> Groups:
    """An option such as "3+4", "8*32+8*16" or "(2+3)+2*4": groups of so many ranks, one after the other."""
    words = re.findall(r"\d{1,9}|\S", text)
    try:
        groups = _parse(words, ranks, 0)
    except (ValueError, IndexError):
        groups = None
    if words or groups is None:
        raise Invalid(f"option fanins: expected groups such as 3+4, 2*3+4 or (2+3)+4, got {quote(text)}")
    if groups.size != ranks:
        raise Invalid(f"option fanins: the groups of {quote(text)} have {groups.size} ranks together, not {ranks}")
    return groups


def _parse(words: list[str], ranks: int, depth: int) -> Groups:
    """Takes groups off the front of the words; ValueError or IndexError where none are."""
    parts: list[Groups] = []
    while not parts or (words and words[0] == "+" and words.pop(0)):
        times = int(words.pop(0)) if words[1:2] == ["*"] and words.pop(1) else 1
        if words[0] == "(":
            words.pop(0)
            part = _parse(words, ranks, depth + 1)
            closed = words.pop(0) == ")"
        else:
            size, closed = int(words.pop(0)), True
            part = Groups.ring(size) if 1 <= size <= ranks else ONE
            closed = 1 <= size <= ranks
        if not closed or depth > MOST_DEPTH or not 1 <= times <= ranks:
            raise ValueError
        parts += [part] * times
    return Groups.of(parts)


def placed_groups(topology: Topology, members: Sequence[int]) -> tuple[Groups, list[int]]:
    """The groups that the places of the ranks show, and the ranks in an order in which groups are runs. O(P * depth).

    >>> from antiphon.core.topology import build
    >>> hosts = build("hosts", 5, [], places=["a/gpu0", "b/gpu0", "a/gpu1", "b/gpu1", "b/gpu2"])
    >>> groups, order = placed_groups(hosts, range(5))
    >>> str(groups), order
    ('2+3', [0, 2, 1, 3, 4])
    """
    paths = {rank: topology.places[rank].split("/") for rank in members}

    def tree(ranks: list[int], depth: int) -> tuple[Groups, list[int]]:
        if len(ranks) == 1 or all(len(paths[rank]) <= depth for rank in ranks):
            return Groups.ring(len(ranks)), ranks
        by_place: dict[str, list[int]] = {}
        for rank in ranks:
            by_place.setdefault("/".join(paths[rank][: depth + 1]), []).append(rank)
        below = [tree(group, depth + 1) for group in by_place.values()]
        return Groups.of([groups for groups, _ in below]), [rank for _, order in below for rank in order]

    return tree(list(members), 0)


def goes(topology: Topology, seating: Sequence[int], groups: Groups) -> bool:
    """Whether every hop, both ways round, has a link or a path through switches; no where there would be far too
    many transfers."""
    cuts, rank = _stretches(groups), np.array(seating, np.int32)
    if groups.size * len(groups.parts) * len(cuts) > MOST_ROWS:
        return False
    for way in (1, -1):
        rows = _rows(groups, cuts, way)
        keys = np.unique(rows.src * groups.size + rows.dst)
        if not joined(topology, rank[keys // groups.size], rank[keys % groups.size]):
            return False
    return True


def plan_groups(collective: Collective, order: Order, groups: Groups, way: int) -> Schedule:
    """Allgather, reducescatter, allreduce, broadcast or reduce; `way`: 1 or -1, which way round.

    Steps: the parts of a group less one, summed along the longest branch; allreduce twice that. A row per rank and
    item, of which there are as many as parts of the outermost ring times stretches.

    Groups of one and two ranks: rank 0 passes half of its block to each of the others.

    >>> ring = plan_groups(Collective("allgather", 3), None, given_groups("1+2", 3), 1)
    >>> ring.chunks.block.tolist(), ring.chunks.share.tolist(), ring.chunks.denominator
    ([0, 0, 1, 2], [1, 1, 2, 2], 2)
    """
    kind = collective.kind
    if kind == "broadcast":
        return per_root(collective, lambda one: _chains(one, order, groups, way))
    if kind in ("reducescatter", "reduce"):
        return backwards(collective, lambda one: plan_groups(one, order, groups, way))
    seats, cuts = Seats.of(collective, order), _stretches(groups)
    chunks_each = len(cuts) * len(groups.parts)
    refuse_more_than_fits("hierarchical-ring", collective, 2 * groups.size * chunks_each)
    rows = _rows(groups, cuts, way)
    if kind == "allreduce":
        whole, last = rows, groups.steps() - 1
        step = np.concatenate([last - rows.step, rows.step + last + 1])
        op = np.repeat(np.array([REDUCE, COPY], np.uint8), len(rows.step))
        src, dst = np.concatenate([whole.dst, whole.src]), np.concatenate([whole.src, whole.dst])
        chunk = np.tile(whole.item, 2)
    else:
        step, chunk, src, dst = rows.step, rows.item, rows.src, rows.dst
        op = np.full(len(step), COPY, np.uint8)
    return Schedule(
        collective, _chunks(collective, seats, groups, cuts), narrow(step), narrow(chunk), seats.rank[src],
        seats.rank[dst], op,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Rows:
    """At `step` a stretch goes from seat to seat. Item = part of the outermost ring * stretches + stretch."""

    step: Longs
    item: Longs
    src: Longs
    dst: Longs


def _stretches(groups: Groups) -> list[Fraction]:
    """Where the content of any part of the outermost ring is cut: at every border between two holders, later on.

    >>> [str(cut) for cut in _stretches(given_groups("2+3", 5))]
    ['0', '1/3', '1/2', '2/3']
    """
    return sorted(set().union(*(_borders(part) for part in set(groups.parts))))


def _borders(groups: Groups) -> set[Fraction]:
    """Where the content changes hands between the ranks of a group, which have 1 / size each."""
    if not groups.parts:
        return {Fraction(0)}
    inner = set().union(*(_borders(part) for part in set(groups.parts)))
    return {
        (start + part.size * y) / groups.size
        for start, part in zip(groups.starts(), groups.parts, strict=True)
        for y in inner
    }


def _chunks(collective: Collective, seats: Seats, groups: Groups, cuts: list[Fraction]) -> Chunks:
    """Allreduce: every part of the outermost ring stands for an equal part of the data. Allgather: for the blocks of
    its ranks. O(parts * stretches).

    >>> collective, groups = Collective("allreduce", 3), given_groups("1+2", 3)
    >>> chunks = _chunks(collective, Seats.of(collective), groups, _stretches(groups))
    >>> chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 1, 2, 3], [1, 1, 1, 1], 4)
    """
    block, begin, share = [], [], []
    sizes = [end - start for start, end in zip(cuts, [*cuts[1:], Fraction(1)], strict=True)]
    for number, (first, part) in enumerate(zip(groups.starts(), groups.parts, strict=True)):
        for start, size in zip(cuts, sizes, strict=True):
            if collective.kind == "allreduce":
                where, scale, offset = 0, Fraction(1, len(groups.parts)), Fraction(number, len(groups.parts))
            else:
                inside = math.floor(start * part.size)
                where, scale, offset = int(seats.member[first + inside]), Fraction(part.size), Fraction(-inside)
            block.append(where)
            begin.append(offset + start * scale)
            share.append(size * scale)
    common = math.lcm(*(x.denominator for x in (*begin, *share)))
    if common >= MOST_WHOLE:
        raise Unsupported("planner hierarchical-ring: groups of so many different sizes share no common measure below "
                          "2^62; give --option fanins=... with fewer sizes")  # fmt: skip
    return Chunks(
        np.array(block, np.int32), np.array([int(x * common) for x in begin], np.int64),
        np.array([int(x * common) for x in share], np.int64), common,
    )  # fmt: skip


def _rows(groups: Groups, cuts: list[Fraction], way: int) -> _Rows:
    """Around the outermost ring first, while there is little to send, then within each part. O(rows).

    Rank 0 passes items 0 and 1 to 1 and 2, which pass on theirs (2 and 3); then they exchange.

    >>> groups = given_groups("1+2", 3)
    >>> rows = _rows(groups, _stretches(groups), 1)
    >>> list(zip(rows.step.tolist(), rows.item.tolist(), rows.src.tolist(), rows.dst.tolist()))
    [(0, 0, 0, 1), (0, 1, 0, 2), (0, 2, 1, 0), (0, 3, 2, 0), (1, 0, 1, 2), (1, 1, 2, 1), (1, 2, 1, 2), (1, 3, 2, 1)]
    """
    middles = [(a + b) / 2 for a, b in zip(cuts, [*cuts[1:], Fraction(1)], strict=True)]
    whole = math.lcm(*(x.denominator for x in middles))
    scaled = np.array([int(x * whole) for x in middles], object)
    parts = len(groups.parts)
    holder = np.repeat(np.arange(parts), len(cuts))
    columns = list(_around(groups, 0, 0, holder, np.tile(scaled, parts), whole, np.arange(parts * len(cuts)), way))
    return _Rows(*(np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True)))


def _around(
    groups: Groups, first: int, step: int, holder: Longs, at: NDArray[np.object_], whole: int, item: Longs, way: int
) -> Iterator[tuple[Longs, ...]]:
    """Columns (step, item, src, dst): part `holder` has `item`, at `at` / `whole` of what it has: pass it around, then
    on within the parts. O(rows)."""
    parts, starts = groups.parts, first + np.array(groups.starts())
    sizes = np.array([part.size for part in parts])
    turn = (holder + way * np.arange(len(parts))[:, None]) % len(parts)
    seat = starts[turn] + (at * sizes[turn] // whole).astype(np.int64)
    hop = np.broadcast_to(np.arange(len(parts) - 1)[:, None], (len(parts) - 1, len(item)))
    items = np.broadcast_to(item, hop.shape)
    yield (step + hop).ravel(), items.ravel(), seat[:-1].ravel(), seat[1:].ravel()
    for start, part in zip(starts.tolist(), parts, strict=True):
        if part.parts:
            edges = np.array(part.starts())
            here = at * part.size
            inner = np.searchsorted(edges, (here // whole).astype(np.int64), side="right") - 1
            widths = np.array([p.size for p in part.parts])
            common = math.lcm(*widths.tolist())
            there = (here - edges[inner].astype(object) * whole) * (common // widths[inner]).astype(object)
            yield from _around(part, start, step + len(parts) - 1, inner, there, whole * common, item, way)


def _chains(collective: Collective, order: Order, groups: Groups, way: int) -> Schedule:
    """From the root around the outermost ring, from each of these within its part. O(P).

    >>> chains = _chains(Collective("broadcast", 4, roots=(0,)), None, given_groups("2+2", 4), 1)
    >>> list(zip(chains.step.tolist(), chains.src.tolist(), chains.dst.tolist()))
    [(0, 0, 2), (0, 0, 1), (1, 2, 3)]
    """
    seats = Seats.of(collective, order)
    rows: list[tuple[int, int, int]] = []

    def go(here: Groups, first: int, seat: int, step: int) -> None:
        parts, starts = here.parts, here.starts()
        if not parts:
            return
        mine = max(i for i, start in enumerate(starts) if first + start <= seat)
        middle = Fraction(2 * (seat - first - starts[mine]) + 1, 2 * parts[mine].size)
        places = [first + start + math.floor(middle * p.size) for start, p in zip(starts, parts, strict=True)]
        turn = [(mine + way * i) % len(parts) for i in range(len(parts))]
        for hop, (a, b) in enumerate(pairwise(turn)):
            rows.append((step + hop, places[a], places[b]))
        for hop, part in enumerate(turn):
            # the last of the chain has nobody to pass on to: it goes on in the very next step
            go(parts[part], first + starts[part], places[part], step + hop)

    go(groups, 0, int(np.flatnonzero(seats.rank == collective.roots[0])[0]), 0)
    when, src, dst = (np.array(column) for column in zip(*rows, strict=True))
    return lay(collective, seats, when, np.zeros_like(when), src, dst)
