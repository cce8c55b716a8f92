"""The planner `gentree`: plans for trees of switches, by GenModel (paper on GenModel and GenTree, section 4).

Input: an allreduce, reducescatter or allgather on a machine whose ranks (servers in the paper) are the leaves of a tree
of switches. Output: a plan per message size, with what each switch does in its provenance.

In a reducescatter each block of the data has an owner, the server that ends with its sum. The work goes bottom-up: at
each switch, after its children (switches or servers directly below) are done, the k children combine their partial sums
by one of several plan types:

    CPS      co-located parameter servers: all send their part of each block directly to its owner; one step, fan-in k
    ring     k - 1 steps, fan-in 1
    RHD      recursive halving, log2 k steps
    a x b    hierarchical CPS with these fan-ins, one step per level
    ACPS     asymmetric CPS, for children with different numbers of servers

GenModel prices latency, bandwidth, memory accesses (delta) and incast (epsilon: a receiver with more than w_t senders
at once loses bandwidth), so the best type depends on the message size and on each switch's links. A switch may also be
skipped ("flat": all servers below exchange directly), or data may first be gathered on fewer servers of each child
("rearrangement"), so that fewer servers send to each receiver. The allgather is the reducescatter backwards.

Example: 2 racks of 16 servers, large vectors: 4 x 4 within racks (16 senders at once would suffer from incast), then
CPS between racks.

Several roots are tried, since the tree of a fabric has no natural one (`candidate_roots`). Stages: `read_tree`
(graph.py), `root_tree` (tree.py), `choose_plans` (choose.py, with cost.py), `plan_rows` (plan_rows.py, with assign.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import pipeline
from antiphon.cost import Profile, as_profile
from antiphon.options import Option
from antiphon.planners.shared.routing import with_routes
from antiphon.planners.shared.rows import Pieces, refuse_too_many_transfers
from antiphon.planners.switchtrees.choose import ALWAYS, AUTO, NEVER, SwitchChoice, choose_plans
from antiphon.planners.switchtrees.cost import SLACK, PartCost
from antiphon.planners.switchtrees.graph import UnrootedTree, read_tree
from antiphon.planners.switchtrees.plan_rows import block_owners, plan_rows, tree_routes
from antiphon.planners.switchtrees.tree import RootedTree, candidate_roots, root_tree
from antiphon.units import parse_size

SIZES = (10**6, 10**8, 10**9)  # bytes: sizes to plan for if none is requested


Parameters = Annotated[
    Profile | str | os.PathLike[str] | None,
    Option("GenModel's parameters (default: those of --profile, else alpha and beta of the links)"),
]
Size = Annotated[int | str | None, Option("plan for this message size (default: that of the request)", unit="bytes")]
Rearrange = Annotated[
    str,
    Option(
        "gather results on fewer servers and choose owners freely where that is fast", choices=(AUTO, NEVER, ALWAYS)
    ),
]


def gentree(
    request: Request, *, profile: Parameters = None, size: Size = None, rearrange: Rearrange = AUTO, pieces: Pieces = 1
) -> Iterator[Schedule]:
    """Yield the plan for each size; without a size those for 1 MB, 100 MB and 1 GB that differ.

    P (P - 1) transfers, twice that for allreduce. O(P^2 + switches * P log P).
    """
    topology, collective = request.topology, request.collective
    profile = request.profile if profile is None else profile
    parameters = as_profile(profile)
    link_parameters = parameters.on(topology)
    count = len(collective.members)
    refuse_too_many_transfers("gentree", request, 2 * count * count)
    graph = read_tree(topology, collective.members)
    sizes: list[int] = []
    for nbytes in request.sizes if size is None else (parse_size(size),):
        sizes += SIZES if nbytes is None else (max(nbytes, 1),)  # None: no size is requested
    trees = [root_tree(graph, root, link_parameters, parameters) for root in candidate_roots(graph, topology)]
    profile_option = {"profile": os.fspath(profile)} if isinstance(profile, str | os.PathLike) else {}
    chosen_before: list[list[SwitchChoice | None]] = []
    # a plan per size, by the root that suits it best
    for nbytes in sizes:
        tree, choices = _best_root(trees, graph, parameters, nbytes, collective.kind, rearrange)
        # Two sizes with the same choices differ only in time: yield the plan once.
        timeless_choices = [(None if choice is None else replace(choice, seconds=0.0)) for choice in choices]
        if timeless_choices in chosen_before:
            continue
        chosen_before.append(timeless_choices)
        options = {"size": nbytes, "rearrange": rearrange, "pieces": pieces, **profile_option}
        findings = {"plan": describe_plan(tree, choices), "seconds": _plan_seconds(choices)}
        schedule = pipeline(_to_schedule(topology, collective, graph, tree, choices), pieces)
        yield replace(schedule, provenance={"planner": "gentree", "options": options, "found": findings})


def _best_root(
    trees: list[RootedTree], graph: UnrootedTree, profile: Profile, nbytes: int, kind: str, rearrange: str
) -> tuple[RootedTree, list[SwitchChoice | None]]:
    """Return the rooted tree with the fastest plan, the first among equals, and the choice at each of its nodes."""
    best: tuple[RootedTree, list[SwitchChoice | None]] | None = None
    for tree in trees:
        # nothing is gathered inside boxes: the tree has only a simple form of the links in a box
        choices = choose_plans(tree, PartCost(tree, profile, nbytes, kind), rearrange, gathers=not graph.boxes)
        # SLACK, a factor just below 1: rounding must not decide between equal roots.
        if best is None or _plan_seconds(choices) < _plan_seconds(best[1]) * SLACK:
            best = tree, choices
    assert best is not None
    return best


def _plan_seconds(choices: list[SwitchChoice | None]) -> float:
    """Return the predicted time of a plan: that at its root."""
    return choices[0].seconds if choices[0] is not None else 0.0


def describe_plan(tree: RootedTree, choices: list[SwitchChoice | None]) -> dict[str, str]:
    """Return the plan type of every switch that has one, in words, by the switch's name."""
    plan_words: dict[str, str] = {}
    pending = [0]
    while pending:
        node = pending.pop()
        choice = choices[node]
        if choice is None:
            continue
        if choice.kind:
            plan_words[tree.names[node]] = _describe_choice(tree, node, choice)
        # A flat switch has no plans below: its servers exchange directly.
        if not choice.flat:
            pending += tree.children[node][::-1]
    return plan_words


def _describe_choice(tree: RootedTree, node: int, choice: SwitchChoice) -> str:
    """Return a choice in words, such as "ACPS among 2 of 8 (3 times)": in each of 3 children, 2 of its 8 servers hold
    the partial sums."""
    if choice.flat:
        return f"{choice.kind} of all {tree.high[node] - tree.low[node]} below"
    text = choice.kind
    # servers are numbered so that those below a node are low .. high - 1
    sizes = [int(tree.high[c] - tree.low[c]) for c in tree.children[node]]
    if choice.holder_counts:
        groups: dict[tuple[int, int], int] = {}
        for pair in zip(choice.holder_counts, sizes, strict=True):
            groups[pair] = groups.get(pair, 0) + 1
        groupings = [
            f"{holders} of {size}" + (f" ({times} times)" if times > 1 else "")
            for (holders, size), times in groups.items()
        ]
        text += f" among {', '.join(groupings)}"
    elif choice.owned:
        text += ", every child owning as much"
    return text


def _to_schedule(
    topology: Topology,
    collective: Collective,
    graph: UnrootedTree,
    tree: RootedTree,
    choices: list[SwitchChoice | None],
) -> Schedule:
    """Return the schedule of a plan, with routes."""
    kind, count = collective.kind, tree.servers
    server_of_member = np.argsort(tree.member)  # the inverse permutation
    # by block, the server that ends with its sum; only an allreduce may choose it
    owner = server_of_member if kind != "allreduce" else block_owners(tree, choices[0])
    # The reducescatter half; an allgather runs it backwards.
    half = plan_rows(tree, choices, owner)
    rank = np.array(collective.members, np.int32)[tree.member]
    gather_step = np.int32(half.steps - 1) - half.step
    halves = {  # by collective: (step, src, dst, op) of each half
        "reducescatter": [(half.step, half.src, half.dst, REDUCE)],
        "allgather": [(gather_step, half.dst, half.src, COPY)],
    }
    # Both halves, the second after the first.
    halves["allreduce"] = [*halves["reducescatter"], (gather_step + np.int32(half.steps), half.dst, half.src, COPY)]
    steps, senders, receivers, ops = zip(*halves[kind], strict=True)
    step, src, dst = (np.concatenate(columns) for columns in (steps, senders, receivers))
    op = np.repeat(np.array(ops, np.uint8), len(half.step))
    schedule = Schedule(
        collective, cut(collective, count if kind == "allreduce" else 1), step, np.tile(half.block, len(halves[kind])),
        rank[src], rank[dst], op,
    )  # fmt: skip
    # a route follows from the tree only if its links are those of the machine, one for each pair of neighbours
    if not graph.plain:
        return with_routes(schedule, topology, "gentree")
    table, route = tree_routes(tree, src, dst)
    return replace(schedule, route=as_int32(route), routes=table)
