"""What engines are asked, what they answer, and the schedule that an answer stands for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import narrow
from antiphon.core.ksync.instance import Instance
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Chunks, Schedule, cut
from antiphon.planners.synth.group import Renamings

Table = NDArray[np.int64]
Move = tuple[int, int, tuple[int, ...], int]  # kind, chunk of it, path of bonds, step


@dataclass(frozen=True)
class Task:
    """Is there an algorithm of this many parts, steps and rounds? `split`: with just these rounds in each step."""

    instance: Instance
    parts: int
    steps: int
    rounds: int
    split: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Effort:
    """How much an engine may try, by a measure that is the same on every machine: conflicts (nodes, of `flow`)."""

    conflicts: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """The moves; or none, and whether the engine has shown that there are none (for its symmetry and split). `price`:
    what it took (purse.py)."""

    moves: tuple[Move, ...] | None
    refuted: bool = False
    price: int = field(default=0, compare=False)


Engine = Callable[[Task, Renamings, Effort], Answer]


def tidy(
    instance: Instance, kind: int, moves: Sequence[tuple[tuple[int, ...], int]]
) -> list[tuple[tuple[int, ...], int]]:
    """One chunk's moves (path, step), with only the first into every rank and only those that serve a destination."""
    about = instance.kinds[kind]
    entered_by: dict[int, tuple[int, tuple[int, ...], int]] = {}
    for path, step in sorted(moves, key=lambda move: (move[1], move[0])):
        to = int(instance.head[path[-1]])
        if to not in about.holders and to not in entered_by:
            entered_by[to] = (int(instance.tail[path[0]]), path, step)
    needed: set[int] = set()
    for dest in about.dests:
        node = dest
        while node in entered_by and node not in needed:
            needed.add(node)
            node = entered_by[node][0]
    return [entered_by[node][1:] for node in sorted(needed)]


def images(
    instance: Instance, group: Renamings, kind: int, number: int, moves: Sequence[tuple[tuple[int, ...], int]]
) -> list[Move]:
    """The moves of one chunk under every element of a group. `number`: which orbit of chunks of its kind it is of."""
    all_moves: list[Move] = []
    used: dict[int, int] = defaultdict(int)
    for element in range(len(group)):
        target = int(group.kinds[element, kind])
        keeping = int(np.count_nonzero(group.kinds[:, kind] == target))
        chunk = number * keeping + used[target]
        used[target] += 1
        bonds = group.bonds[element]
        all_moves += [(target, chunk, tuple(bonds[list(path)].tolist()), step) for path, step in moves]
    return all_moves


def rounds_of(instance: Instance, moves: Sequence[Move]) -> list[int]:
    """The rounds that each step needs: the load of its fullest resource."""
    load: dict[tuple[int, int], int] = defaultdict(int)
    for _, _, path, step in moves:
        for bond in path:
            for resource in (bond, *instance.limits_of[bond]):
                load[step, resource] += 1
    need: dict[int, int] = defaultdict(int)
    for (step, resource), amount in load.items():
        need[step] = max(need[step], math.ceil(Fraction(amount) / instance.capacity[resource]))
    return [need[step] for step in range(max(need, default=-1) + 1)]


def schedule_of(instance: Instance, parts: int, moves: Sequence[Move]) -> Schedule:
    """The schedule: every block cut into parts, moves in canonical order, parallel links filled in turn."""
    chunks, first = _chunks(instance, parts)
    number = {}
    for k, kind in enumerate(instance.kinds):
        for i, (block, part_number) in enumerate(instance.chunks(kind, parts)):
            number[k, i] = first(block, part_number)
    rows = sorted((step, number[kind, chunk], path) for kind, chunk, path, step in moves)
    rounds = rounds_of(instance, moves)
    links_used: dict[tuple[int, int], int] = defaultdict(int)
    route_numbers: dict[tuple[int, ...], int] = {}
    route = []
    for step, _, path in rows:
        links = []
        for bond in path:
            links.append(link_of(instance, bond, links_used[step, bond], rounds[step] if step < len(rounds) else 1))
            links_used[step, bond] += 1
        route.append(route_numbers.setdefault(tuple(links), len(route_numbers)))
    plain = not instance.topology.switches and all(len(bond) == 1 for bond in instance.bonds)
    plain = plain and len(set(zip(instance.tail.tolist(), instance.head.tolist(), strict=True))) == len(instance.bonds)
    return Schedule(
        instance.collective, chunks,
        np.array([row[0] for row in rows], np.int32), np.array([row[1] for row in rows], np.int32),
        narrow(instance.tail[[row[2][0] for row in rows]]), narrow(instance.head[[row[2][-1] for row in rows]]),
        np.full(len(rows), COPY, np.uint8),
        route=None if plain else np.array(route, np.int32), routes=Routes.of([] if plain else route_numbers),
    )  # fmt: skip


def _chunks(instance: Instance, parts: int) -> tuple[Chunks, Callable[[int, int], int]]:
    """The chunks of the schedule, and the number of a block's part. A block of weight 0 has no data, so no chunk.

    >>> from types import SimpleNamespace
    >>> from antiphon.core.collective import Collective
    >>> instance = SimpleNamespace(collective=Collective("allgather", 3, weights=np.array([2, 0, 1])))
    >>> chunks, number = _chunks(instance, 2)  # a block of weight 2 has four parts, one of weight 0 none
    >>> chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 0, 0, 0, 2, 2], [0, 1, 2, 3, 0, 2], [1, 1, 1, 1, 2, 2], 4)
    >>> number(2, 1)
    5
    """
    collective = instance.collective
    weights, blocks = collective.weights, collective.blocks
    if bool(np.all(weights == 1)):
        return cut(collective, parts), lambda block, part_number: part_number * blocks + block
    count = weights * parts
    base = np.concatenate([[0], np.cumsum(count)])
    denominator = math.lcm(*(int(c) for c in np.unique(count[count > 0])))
    share = np.repeat(denominator // np.maximum(count, 1), count)
    part_number = np.arange(int(base[-1])) - np.repeat(base[:-1], count)
    table = Chunks(narrow(np.repeat(np.arange(blocks), count)), part_number * share, share, denominator)
    return table, lambda block, part_number: int(base[block]) + part_number


def link_of(instance: Instance, bond: int, place: int, rounds: int) -> int:
    """The link of a bond that its place-th chunk of a step takes: each in turn takes what its rounds allow."""
    links = instance.bonds[bond]
    if len(links) == 1:
        return links[0]
    topology = instance.topology
    for link in links:
        room = int(topology.bandwidth(link) / topology.unit) * rounds
        if place < room:
            return link
        place -= room
    return links[-1]
