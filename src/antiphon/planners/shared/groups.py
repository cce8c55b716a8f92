"""Groups of ranks, and groups of groups, of any sizes: as people write them, as places show them; chains in them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.planners.shared.rows import Order, Seats, lay

MOST_DEPTH = 16
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
    def of_fans(fans: Sequence[int]) -> Groups:
        """Equal groups, the innermost first: [4, 2] is two groups of four ranks."""
        groups = Groups.ring(fans[0])
        for fan in fans[1:]:
            groups = Groups.of([groups] * fan)
        return groups

    @staticmethod
    def ring(size: int) -> Groups:
        return Groups.of([ONE] * size)

    def starts(self) -> list[int]:
        return [0, *accumulate(part.size for part in self.parts)][: len(self.parts)]

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


def chains(collective: Collective, order: Order, groups: Groups, way: int) -> Schedule:
    """From the root around the outermost ring, from each of these within its part. O(P).

    >>> found = chains(Collective("broadcast", 4, roots=(0,)), None, given_groups("2+2", 4), 1)
    >>> list(zip(found.step.tolist(), found.src.tolist(), found.dst.tolist()))
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
