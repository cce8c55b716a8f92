"""Solver `flow`: if every chunk has one destination (scatter, gather, alltoall), solve for integer flows over time.

Input is a task (parts, steps, rounds, perhaps a split of the rounds) and a symmetry group; output is an algorithm, as
moves of chunks, or that there is none.

Chunks of one source (or of one destination) are interchangeable, so they form one commodity, and the size of the
integer program does not depend on the number of chunks. Its variables are the numbers of chunks on each bond (parallel
links) in each step; the constraints are those of the linear program (program.py), with integer variables. With a single
commodity and no shared limits it is a network flow, whose solutions are integral anyway; otherwise HiGHS branches. The
integral flow is then decomposed into one path per chunk: `_trace_chunk` walks back in time from the destination, takes
one unit of flow wherever it came from, and removes it.

Example: two chunks from rank 0 to rank 3 over a square 0-1-3, 0-2-3 in two steps: flow 1 on each of the four bonds,
decomposed into 0-1-3 and 0-2-3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.effort_budget import LIMIT_REACHED, mixed_price, nodes_for
from antiphon.planners.synth.group import SymmetryGroup
from antiphon.planners.synth.program import Commodity, StepProgram
from antiphon.planners.synth.task import Answer, Effort, Move, Task

Table = NDArray[np.int64]
_MOST_NODES = 20000  # branch-and-bound nodes without an effort limit


def has_single_destinations(instance: Instance) -> bool:
    """Return whether every chunk has one destination."""
    return all(len(kind.dests) == 1 for kind in instance.kinds)


def solve_flow(task: Task, group: SymmetryGroup, effort: Effort, effort_left: int | None = None) -> Answer:
    """Find an integral flow of chunks that every element of the group maps to itself.

    The answer "refuted" holds for such flows with this split only. `Answer.price` is the effort spent: all of
    `effort_left` if that limit ended the search.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    if task.steps < task.instance.least_steps:
        return Answer(moves=None, refuted=True)
    program = StepProgram(task.instance, task.steps, group)
    low, high = np.zeros(program.variables), np.full(program.variables, np.inf)
    # the first variables are the rounds of each step: at least one; with a split, exactly its rounds
    low[: task.steps] = 1.0
    if task.split is not None:
        low[: task.steps] = high[: task.steps] = task.split
    total = np.zeros((1, program.variables))
    total[0, : task.steps] = 1.0
    equality_values = program.equality_values * task.parts
    rows = [
        LinearConstraint(program.inequalities, -np.inf, 0.0),
        LinearConstraint(program.equalities, equality_values, equality_values),
        LinearConstraint(total, -np.inf, task.rounds),
    ]
    # effort is priced by matrix entries and nodes
    entries = program.inequalities.nnz + program.equalities.nnz
    max_nodes = effort.conflicts or _MOST_NODES  # branch-and-bound nodes take the place of a SAT solver's conflicts
    nodes = nodes_for(effort_left, entries, max_nodes)
    result = milp(
        np.zeros(program.variables), constraints=rows, integrality=np.ones(program.variables),
        bounds=Bounds(low, high), options={"node_limit": nodes},
    )  # fmt: skip
    price = mixed_price(entries, result.mip_node_count or 0)
    if result.x is None:
        if result.status == LIMIT_REACHED and nodes < max_nodes:
            price = effort_left or 0
        return Answer(moves=None, refuted=result.status == 2, price=price)  # SciPy's status 2: infeasible
    moves: list[Move] = []
    for number, orbit in enumerate(program.orbits):
        variable = program.amounts[number]  # per bond and step; -1: none
        values = np.where(variable >= 0, np.round(result.x[variable]).astype(np.int64), 0)
        # the commodity `member` is an image of the orbit's first: the same flow on the images of its bonds
        for member, element in orbit.members.items():
            moved = np.empty_like(values)
            moved[group.bonds[element]] = values
            moves += split_into_paths(task, program.commodities[member], moved)
    return Answer(tuple(moves), price=price)


def split_into_paths(task: Task, commodity: Commodity, moved: Table) -> Iterator[Move]:
    """Decompose an integral flow (bonds x steps) into one path per chunk, traced back in time from its destination."""
    instance, remaining = task.instance, moved.copy()
    into: dict[int, list[int]] = defaultdict(list)
    for bond, head in enumerate(instance.head.tolist()):
        into[head].append(bond)
    supply = None
    if commodity.supply is not None:
        supply = {holder: amount * task.parts for holder, amount in commodity.supply.items()}
    # (destination, source) -> kind: in a commodity of several kinds each pair has one kind
    kind_of = {(instance.kinds[k].dests[0], holder): k for k in commodity.kinds for holder in instance.kinds[k].holders}
    used: dict[int, int] = defaultdict(int)  # by kind, the chunks that have a path
    for dest, amount in commodity.demand.items():
        for _ in range(amount * task.parts):
            source, hops = _trace_chunk(instance, into, remaining, dest, task.steps, supply)
            if supply is not None:
                supply[source] -= 1
            kind = kind_of[dest, source]
            chunk = used[kind]
            used[kind] += 1
            yield from ((kind, chunk, path, step) for path, step in hops)


def _trace_chunk(
    instance: Instance,
    into: dict[int, list[int]],
    remaining: Table,
    node: int,
    time: int,
    supply: dict[int, int] | None,
) -> tuple[int, list[tuple[tuple[int, ...], int]]]:
    """Trace one unit of the remaining flow back from a rank at a time to a holder, and remove it from the flow.

    Flow present at a rank either arrived in the last step or waited there, so following any incoming flow, the latest
    first, ends at a holder. `supply`: chunks that each holder still has to send, so the trace ends at one with supply
    left; None: the holders send as much as is demanded. `into`: by node, the bonds that lead there. Return the holder
    and the hops, each a path and its step.
    """
    hops: list[tuple[tuple[int, ...], int]] = []
    while time > 0:
        step = time - 1
        bond = next((b for b in into[node] if remaining[b, step] > 0), None)
        if bond is None:
            time -= 1
            continue
        path = [bond]
        remaining[bond, step] -= 1
        # a switch does not store: continue back through it within the same step
        while (tail := int(instance.tail[path[0]])) >= instance.ranks:
            # as much flow enters a switch in a step as leaves it, so some bond into it has flow left
            before = next(b for b in into[tail] if remaining[b, step] > 0)
            remaining[before, step] -= 1
            path.insert(0, before)
        if straight := _drop_switch_cycles(instance, path):  # empty: the path returned to its start
            hops.append((straight, step))
        node, time = tail, time - 1
    if supply is not None and not supply.get(node):
        raise RuntimeError(f"the flow traced back to node {node}, which has no supply left")
    return node, _drop_rank_cycles(instance, node, hops[::-1])


def _drop_switch_cycles(instance: Instance, path: list[int]) -> tuple[int, ...]:
    """Return a path through switches without cycles."""
    acyclic: list[int] = []
    nodes = [int(instance.tail[path[0]])]
    for bond in path:
        head = int(instance.head[bond])
        if head in nodes:
            i = nodes.index(head)
            del nodes[i + 1 :], acyclic[i:]
        else:
            nodes.append(head)
            acyclic.append(bond)
    return tuple(acyclic)


def _drop_rank_cycles(
    instance: Instance, source: int, hops: list[tuple[tuple[int, ...], int]]
) -> list[tuple[tuple[int, ...], int]]:
    """Return the hops without cycles: a chunk that returns to a rank may as well wait there."""
    acyclic: list[tuple[tuple[int, ...], int]] = []
    ranks = [source]
    for path, step in hops:
        head = int(instance.head[path[-1]])
        if head in ranks:
            i = ranks.index(head)
            del ranks[i + 1 :], acyclic[i:]
        else:
            ranks.append(head)
            acyclic.append((path, step))
    return acyclic
