"""The least time of a collective on a tiny machine by a linear program over all branchings: all ways there are to
bring every block where it is wanted, listed one by one. Written apart from antiphon.core.bounds; only the lists of a
topology and the words of a collective are used.

Out of one rank to many a block goes by a tree, whatever the schedule: of all transfers of one element, those by which
each rank first gets it. Into one rank likewise. Of allreduce only one form is listed: into some rank by a tree, and out
of it by another; schedules of other forms may be faster, never slower.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

MOST_TREES = 4000
MOST_PATHS = 60

Hop = tuple[int, int]
Trees = list[tuple[Hop, ...]]
Task = tuple[int, str, int, set[int]]  # weight, "out" | "in" | "both", root, ends


class TooLargeError(Exception):
    """More trees than are worth listing."""


def paths(topology: Any) -> dict[Hop, list[tuple[int, ...]]]:
    """All ways from rank to rank through switches alone, none of them twice, as links."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    found: dict[Hop, list[tuple[int, ...]]] = {}

    def walk(first: int, node: int, links: tuple[int, ...], seen: frozenset[int]) -> None:
        for link, (a, b) in enumerate(ends):
            if a != node:
                continue
            if b >= topology.ranks and b not in seen:
                walk(first, b, (*links, link), seen | {b})
            elif b < topology.ranks and b != first:
                listed = found.setdefault((first, b), [])
                listed.append((*links, link))
                if len(listed) > MOST_PATHS:
                    raise TooLargeError

    for rank in range(topology.ranks):
        walk(rank, rank, (), frozenset())
    return found


def branchings(ranks: int, hops: set[Hop], root: int, ends: set[int]) -> Iterator[tuple[Hop, ...]]:
    """All trees out of a root whose leaves are all wanted: a parent for every rank that takes part."""
    others = [r for r in range(ranks) if r != root]
    parents = [[None, *(a for a in range(ranks) if (a, r) in hops)] if r not in ends else
               [a for a in range(ranks) if (a, r) in hops] for r in others]  # fmt: skip
    for chosen in itertools.product(*parents):
        up = {r: a for r, a in zip(others, chosen, strict=True) if a is not None}
        used = set(up.values())
        if any(r not in used for r in up if r not in ends):
            continue  # a relay that leads nowhere
        if all(joined(r, root, up) for r in up):
            yield tuple(sorted((a, r) for r, a in up.items()))


def joined(rank: int, root: int, up: dict[int, int]) -> bool:
    """Whether parents lead to the root, and not in a circle or to a relay that has none."""
    for _ in range(len(up)):
        if rank not in up:
            return False
        rank = up[rank]
        if rank == root:
            return True
    return False


def tasks(collective: Any) -> list[Task]:
    """(weight, "out" | "in" | "both", root, ends) of every block that has data, by the table of docs/schedule.md."""
    listed = [need for group in collective.groups or (collective,) for need in needs(group)]
    return [(w, *need) for w, need in zip(collective.weights.tolist(), listed, strict=True) if w and need[2]]


def needs(collective: Any) -> list[tuple[str, int, set[int]]]:
    """("out" | "in" | "both", root, ends) of every block."""
    members, roots, kind = list(collective.members), list(collective.roots), collective.kind
    listed: list[tuple[str, int, set[int]]]
    if kind in ("broadcast", "allgather"):
        listed = [("out", r, set(members) - {r}) for r in (roots if kind == "broadcast" else members)]
    elif kind in ("reduce", "reducescatter"):
        listed = [("in", r, set(members) - {r}) for r in (roots if kind == "reduce" else members)]
    elif kind == "allreduce":
        listed = [("both", -1, set(members))]
    elif kind == "scatter":
        listed = [("out", root, {m} - {root}) for m in members for root in roots]
    elif kind == "gather":
        listed = [("out", m, {root} - {m}) for root in roots for m in members]
    else:
        listed = [("out", sender, {receiver} - {sender}) for receiver in members for sender in members]
    return listed


def least_time(topology: Any, collective: Any, about: float | None = None) -> float | None:
    """Weight over bytes per second; None where something cannot be reached. TooLargeError beyond MOST_TREES.

    `about`: what it may be, only so that the program is solved in handy numbers.
    """
    return time_of_tasks(topology, tasks(collective), about)


def time_of_tasks(topology: Any, listed: list[Task], about: float | None = None) -> float | None:
    """Return the least time in which all of this is done, as `tasks` lists it."""
    ways = paths(topology)
    hops = set(ways)
    turned = {(b, a) for a, b in hops}
    pairs = {pair: at for at, pair in enumerate(sorted(hops))}
    columns: list[tuple[dict[int, float], tuple[Hop, ...]]] = []  # entries of equations, and hops
    right: list[float] = []

    def trees(way: str, root: int, ends: set[int]) -> Trees:
        graph = hops if way == "out" else turned
        found = list(itertools.islice(branchings(topology.ranks, graph, root, ends - {root}), MOST_TREES + 1))
        return found if way == "out" else [tuple((b, a) for a, b in tree) for tree in found]

    for weight, way, root, ends in listed:
        row = len(right)
        right.append(float(weight))
        if way != "both":
            columns += [({row: 1.0}, tree) for tree in trees(way, root, ends)]
        else:
            for center in range(topology.ranks):
                right.append(0.0)
                balance = len(right) - 1
                columns += [({balance: 1.0}, tree) for tree in trees("in", center, ends)]
                columns += [({row: 1.0, balance: -1.0}, tree) for tree in trees("out", center, ends)]
        if len(columns) > MOST_TREES:
            raise TooLargeError
    if not right:
        return 0.0
    scale = max(right)
    found = solved(topology, ways, pairs, columns, [x / scale for x in right], (about or scale) / scale)
    return found if found is None else found * scale


def solved(topology: Any, ways: Any, pairs: Any, columns: Any, right: list[float], about: float) -> float | None:
    """Variables: a rate for every tree, one for every path, the time. A pair's paths carry what its trees send."""
    from scipy.optimize import linprog

    routes = [(pair, path) for pair in pairs for path in ways[pair]]
    trees, width = len(columns), len(columns) + len(routes) + 1
    capacity = [float(topology.bandwidth(link)) for link in range(topology.links)]
    capacity += [float(limit.bandwidth) for limit in topology.limits]
    level = np.zeros((len(right) + len(pairs), width))
    for at, (entries, hops) in enumerate(columns):
        for row, value in entries.items():
            level[row, at] = value
        for hop in hops:
            level[len(right) + pairs[hop], at] = 1
    above = np.zeros((len(capacity), width))
    for at, (pair, path) in enumerate(routes, start=trees):
        level[len(right) + pairs[pair], at] = -1
        for link in path:
            above[link, at] += 1
            for number, limit in enumerate(topology.limits, start=topology.links):
                above[number, at] += link in limit.links
    above[:, -1] = [-c * about for c in capacity]
    above /= np.maximum(-above[:, -1:], 1)
    cost = np.zeros(width)
    cost[-1] = 1
    found = linprog(
        cost, A_ub=above, b_ub=np.zeros(len(above)), A_eq=level, b_eq=[*right, *[0.0] * len(pairs)], method="highs"
    )
    if found.status == 2:
        return None
    if found.status:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return float(found.fun) * about
