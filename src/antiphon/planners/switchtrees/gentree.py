"""GenTree: plans for trees of switches by GenModel (GenModel and GenTree paper, section 4, Algorithms 1 and 2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import narrow
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import pipeline
from antiphon.cost import Profile, as_profile
from antiphon.errors import Invalid, quote
from antiphon.planners.shared.routing import routed
from antiphon.planners.shared.rows import refuse_more_than_fits
from antiphon.planners.switchtrees._lay import owners, rows, ways
from antiphon.planners.switchtrees.choose import ALWAYS, AUTO, NEVER, Choice, choose
from antiphon.planners.switchtrees.cost import SLACK, Cost
from antiphon.planners.switchtrees.graph import Graph, read
from antiphon.planners.switchtrees.tree import Tree, rooted, roots
from antiphon.units import parse_size

SIZES = (10**6, 10**8, 10**9)  # planned for where no size is given


def gentree(
    request: Request,
    *,
    profile: Profile | str | os.PathLike[str] | None = None,
    size: int | str | None = None,
    rearrange: str = AUTO,
    pieces: int = 1,
) -> Iterator[Schedule]:
    """Yields the plan for `nbytes`; without it those for 1 MB, 100 MB and 1 GB that differ. P (P - 1) transfers, twice
    that for allreduce.

    `size`: plan for this many bytes, whatever the request says. `rearrange`: auto, never or always gather results on
    fewer servers and choose owners freely where that is fast. `profile`: GenModel's parameters, before those of the
    request; without, alpha and beta of the links. O(P^2 + switches * P log P).
    """
    topology, collective = request.topology, request.collective
    if rearrange not in (AUTO, NEVER, ALWAYS):
        raise Invalid(f"option rearrange: expected {AUTO}, {NEVER} or {ALWAYS}, got {quote(rearrange)}")
    profile = request.profile if profile is None else profile
    known = as_profile(profile)
    seen = known.on(topology)
    count = len(collective.members)
    refuse_more_than_fits("gentree", topology, collective, 2 * count * count)
    graph = read(topology, collective.members)
    wanted = request.sizes if size is None else (parse_size(size),)
    sizes = [each for one in wanted for each in (SIZES if one is None else (max(one, 1),))]
    trees = [rooted(graph, root, seen, known) for root in roots(graph, topology)]
    named = {"profile": os.fspath(profile)} if isinstance(profile, str | os.PathLike) else {}
    told: list[list[Choice | None]] = []
    for each in sizes:
        tree, choices = _best(trees, graph, known, each, collective.kind, rearrange)
        same = [_without_time(choice) for choice in choices]
        if same in told:
            continue
        told.append(same)
        options = {"size": each, "rearrange": rearrange, "pieces": pieces, **named}
        found = {"plan": words(tree, choices), "seconds": _seconds(choices)}
        made = pipeline(_schedule(topology, collective, graph, tree, choices), pieces)
        yield replace(made, provenance={"planner": "gentree", "options": options, "found": found})


def _best(
    trees: list[Tree], graph: Graph, profile: Profile, nbytes: int, kind: str, rearrange: str
) -> tuple[Tree, list[Choice | None]]:
    """Of all roots tried the one whose plan is fastest, the first among equals."""
    best: tuple[Tree, list[Choice | None]] | None = None
    for tree in trees:
        choices = choose(tree, Cost(tree, profile, nbytes, kind), rearrange, gathers=not graph.boxes)
        if best is None or _seconds(choices) < _seconds(best[1]) * SLACK:
            best = tree, choices
    assert best is not None
    return best


def _seconds(choices: list[Choice | None]) -> float:
    return choices[0].seconds if choices[0] is not None else 0.0


def _without_time(choice: Choice | None) -> Choice | None:
    return None if choice is None else replace(choice, seconds=0.0)


def words(tree: Tree, choices: list[Choice | None]) -> dict[str, str]:
    """The plan of every switch that has one, in words."""
    found: dict[str, str] = {}
    ahead = [0]
    while ahead:
        node = ahead.pop()
        choice = choices[node]
        if choice is None:
            continue
        if choice.kind:
            found[tree.names[node]] = _word(tree, node, choice)
        if not choice.flat:
            ahead += tree.children[node][::-1]
    return found


def _word(tree: Tree, node: int, choice: Choice) -> str:
    if choice.flat:
        return f"{choice.kind} of all {tree.high[node] - tree.low[node]} below"
    told = choice.kind
    sizes = [int(tree.high[c] - tree.low[c]) for c in tree.children[node]]
    if choice.held:
        groups: dict[tuple[int, int], int] = {}
        for pair in zip(choice.held, sizes, strict=True):
            groups[pair] = groups.get(pair, 0) + 1
        parts = [
            f"{some} of {size}" + (f" ({many} times)" if many > 1 else "") for (some, size), many in groups.items()
        ]
        told += f" among {', '.join(parts)}"
    elif choice.owned:
        told += ", every child owning as much"
    return told


def _schedule(
    topology: Topology, collective: Collective, graph: Graph, tree: Tree, choices: list[Choice | None]
) -> Schedule:
    """The rows of a plan between ranks, with routes."""
    kind, count = collective.kind, tree.servers
    server = np.argsort(tree.member)  # of each member
    owner = server if kind != "allreduce" else owners(tree, choices[0])
    half = rows(tree, choices, owner)
    rank = np.array(collective.members, np.int32)[tree.member]
    back = np.int32(half.steps - 1) - half.step
    parts = {
        "reducescatter": [(half.step, half.src, half.dst, REDUCE)],
        "allgather": [(back, half.dst, half.src, COPY)],
    }
    parts["allreduce"] = [*parts["reducescatter"], (back + np.int32(half.steps), half.dst, half.src, COPY)]
    step, src, dst = (np.concatenate([part[i] for part in parts[kind]]) for i in range(3))
    op = np.repeat(np.array([part[3] for part in parts[kind]], np.uint8), len(half.step))
    made = Schedule(
        collective, cut(collective, count if kind == "allreduce" else 1), step, np.tile(half.block, len(parts[kind])),
        rank[src], rank[dst], op,
    )  # fmt: skip
    if not graph.plain:
        return routed(made, topology, "gentree")
    table, route = ways(tree, src, dst)
    return replace(made, route=narrow(route), routes=table)
