"""Data types that all search engines of synthesis share, and conversion of an engine's answer to a schedule.

A search engine (flow, SAT, ...) receives a `Task` (instance, parts, steps, rounds) and a group of symmetries, and
returns an `Answer`: a tuple of moves, or None. Parts are chunks per block. A move is (kind, chunk, path, step): chunk
number `chunk` of kind `kind` (all blocks with the same holders and destinations are one kind) travels over the bonds of
`path` in step `step`. A bond is a bundle of parallel links, so `schedule_of` still has to choose links: in each step
they are filled in order.

Engines that use symmetry search one chunk per orbit (chunks that symmetries map to each other); `orbit_moves` applies
every group element to its moves to get the others. `drop_useless_moves` removes moves that no destination depends on.

Example: a broadcast from rank 0 on the path 0 - 1 - 2 in two steps, bonds a and b: moves (0, 0, (a,), 0) and
(0, 0, (b,), 1), hence the transfers 0 -> 1 in step 0 and 1 -> 2 in step 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import as_int32
from antiphon.core.ksync.instance import Instance
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Chunks, Schedule, check_denominator, cut
from antiphon.planners.synth.group import SymmetryGroup

Move = tuple[int, int, tuple[int, ...], int]  # kind, chunk of it, path of bonds, step


@dataclass(frozen=True)
class Task:
    """The question: is there an algorithm with this many parts, steps and rounds? `split`: rounds of each step; None:
    free.
    """

    instance: Instance
    parts: int
    steps: int
    rounds: int
    split: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Effort:
    """How much an engine may try, in machine-independent units.

    `conflicts`: of a SAT solver, or search nodes of `solve_flow` (flow.py). None: no limit of conflicts, the usual one
    of nodes. `seed`: of the order in which it tries.
    """

    conflicts: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """The moves, or None; `refuted` if the engine showed that there are none (under its symmetry and split).

    `price`: the effort that it took (effort_budget.py).
    """

    moves: tuple[Move, ...] | None
    refuted: bool = False
    price: int = field(default=0, compare=False)


# The interface of an engine; `solve_flow` and `solve_sat` take further arguments, which have defaults.
Engine = Callable[[Task, SymmetryGroup, Effort], Answer]


def drop_useless_moves(
    instance: Instance, kind: int, moves: Sequence[tuple[tuple[int, ...], int]]
) -> list[tuple[tuple[int, ...], int]]:
    """Return those of one chunk's moves (path, step) that a destination depends on: first arrivals only."""
    chunk_kind = instance.kinds[kind]
    entered_by: dict[int, tuple[int, tuple[int, ...], int]] = {}  # by rank, its first arrival: sender, path, step
    for path, step in sorted(moves, key=lambda move: (move[1], move[0])):
        to = int(instance.head[path[-1]])
        if to not in chunk_kind.holders and to not in entered_by:
            entered_by[to] = (int(instance.tail[path[0]]), path, step)
    # walk back from each destination over the arrivals until a holder or a visited rank
    needed: set[int] = set()
    for dest in chunk_kind.dests:
        node = dest
        while node in entered_by and node not in needed:
            needed.add(node)
            node, _, _ = entered_by[node]
    return [(path, step) for _, path, step in (entered_by[node] for node in sorted(needed))]


def orbit_moves(
    group: SymmetryGroup, kind: int, number: int, moves: Sequence[tuple[tuple[int, ...], int]]
) -> list[Move]:
    """Return the images of one chunk's moves under every element of a group.

    `number`: index of the chunk's orbit among its kind's chunks.
    """
    all_moves: list[Move] = []
    used: dict[int, int] = defaultdict(int)
    for element in range(len(group)):
        target = int(group.kinds[element, kind])
        # chunks of a kind are numbered orbit by orbit: `fixing` elements fix the kind, so an orbit has that many of
        # its chunks
        fixing = int(np.count_nonzero(group.kinds[:, kind] == target))
        # the orbit's chunks of kind `target` are numbered in the order of the elements
        chunk = number * fixing + used[target]
        used[target] += 1
        bonds = group.bonds[element]
        all_moves += [(target, chunk, tuple(bonds[list(path)].tolist()), step) for path, step in moves]
    return all_moves


def rounds_of(instance: Instance, moves: Sequence[Move]) -> list[int]:
    """Return the rounds that each step needs: the load of its fullest resource over that resource's capacity."""
    load: dict[tuple[int, int], int] = defaultdict(int)
    for _, _, path, step in moves:
        for bond in path:
            for resource in (bond, *instance.limits_of[bond]):
                load[step, resource] += 1
    need: dict[int, int] = defaultdict(int)
    for (step, resource), amount in load.items():
        capacity = instance.capacity[resource]
        need[step] = max(need[step], -(-amount * capacity.denominator // capacity.numerator))
    return [need[step] for step in range(max(need, default=-1) + 1)]


def schedule_of(instance: Instance, parts: int, moves: Sequence[Move]) -> Schedule:
    """Build the schedule: blocks cut into parts, moves in canonical order, parallel links filled in turn."""
    chunks, number_of = cut_by_weight(instance, parts)
    number = {}
    for k, kind in enumerate(instance.kinds):
        for i, (block, part_number) in enumerate(instance.chunks_of_kind(kind, parts)):
            number[k, i] = number_of(block, part_number)
    rows = sorted((step, number[kind, chunk], path) for kind, chunk, path, step in moves)
    rounds = rounds_of(instance, moves)
    links_used: dict[tuple[int, int], int] = defaultdict(int)
    route_numbers: dict[tuple[int, ...], int] = {}
    route = []
    for step, _, path in rows:
        links = []
        for bond in path:
            links.append(link_of(instance, bond, links_used[step, bond], rounds[step]))
            links_used[step, bond] += 1
        route.append(route_numbers.setdefault(tuple(links), len(route_numbers)))
    # with at most one link per pair of ranks and no switches, source and destination determine the route: no column
    # needed
    no_routes = not instance.topology.switches and all(len(bond) == 1 for bond in instance.bonds)
    pairs = set(zip(instance.tail.tolist(), instance.head.tolist(), strict=True))
    no_routes = no_routes and len(pairs) == len(instance.bonds)
    return Schedule(
        instance.collective, chunks,
        np.array([step for step, _, _ in rows], np.int32), np.array([chunk for _, chunk, _ in rows], np.int32),
        as_int32(instance.tail[[path[0] for _, _, path in rows]]),
        as_int32(instance.head[[path[-1] for _, _, path in rows]]),
        np.full(len(rows), COPY, np.uint8),
        route=None if no_routes else np.array(route, np.int32), routes=Routes.of([] if no_routes else route_numbers),
    )  # fmt: skip


def cut_by_weight(instance: Instance, parts: int) -> tuple[Chunks, Callable[[int, int], int]]:
    """Return the chunks of the schedule, and a function (block, part) -> chunk number. Blocks of weight 0 get no chunk.

    >>> from types import SimpleNamespace
    >>> from antiphon.core.collective import Collective
    >>> instance = SimpleNamespace(collective=Collective("allgather", 3, weights=np.array([2, 0, 1])))
    >>> chunks, number = cut_by_weight(instance, 2)  # weight 2: four parts; weight 0: none
    >>> chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 0, 0, 0, 2, 2], [0, 1, 2, 3, 0, 2], [1, 1, 1, 1, 2, 2], 4)
    >>> number(2, 1)
    5
    """
    collective = instance.collective
    weights, blocks = collective.weights, collective.blocks
    if bool(np.all(weights == 1)):
        # `cut` numbers the first parts of all blocks, then the second parts of all, ...
        return cut(collective, parts), lambda block, part_number: part_number * blocks + block
    count = weights * parts
    first_chunk = np.concatenate([[0], np.cumsum(count)])
    # block b has weight * parts chunks of equal size; share and offset count units of 1 / denominator of a block
    denominator = math.lcm(*(int(c) for c in np.unique(count[count > 0])))
    check_denominator(denominator)  # before NumPy divides it
    share = np.repeat(denominator // np.maximum(count, 1), count)
    part_number = np.arange(int(first_chunk[-1])) - np.repeat(first_chunk[:-1], count)
    table = Chunks(as_int32(np.repeat(np.arange(blocks), count)), part_number * share, share, denominator)
    return table, lambda block, part_number: int(first_chunk[block]) + part_number


def link_of(instance: Instance, bond: int, position: int, rounds: int) -> int:
    """Return the link for a bond's chunk in this position of a step: links are filled in order, up to capacity.

    `rounds`: of the step. Links of one bond have whole capacities, or the bond is a single link.
    """
    links = instance.bonds[bond]
    if len(links) == 1:
        return links[0]
    topology = instance.topology
    for link in links:
        room = int(topology.bandwidth(link) / topology.unit) * rounds
        if position < room:
            return link
        position -= room
    return links[-1]
