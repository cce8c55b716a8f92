"""Good flows where a linear program would be too large: steepest descent, whose every step is a tree per want.

Frank and Wolfe's method on a smooth stand-in of the greatest load, the logarithm of a sum of exponentials: at the
prices that are its slope every want goes along its cheapest paths, and the flow moves towards that. All is counted:
so many rounds, each one search per want.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.portable import exp
from antiphon.planners.flows.program import Floats, Flow, FlowProgram

ROUNDS = 48
SHARP = 24.0  # how much the fullest row's price outdoes that of the empty: e to this
SHARPER = 2.0  # times that, where it leads no further
HOP = 1e-3  # of the mean price, for every link: of ways as good the shorter


def descended(program: FlowProgram, rounds: int = ROUNDS) -> Flow:
    """Return flows near the minimum time, and their time. O(rounds * wants * links log links)."""
    amount = _route_cheapest(program, 1 / program.capacity)
    load, sharp = program.loads(amount), SHARP
    for _ in range(rounds):
        full = load / program.capacity
        price = exp(sharp * (full / full.max() - 1)) / program.capacity
        better = _route_cheapest(program, price)
        toward = program.loads(better)
        step = _choose_step(program.capacity, load, toward)
        if not step:
            sharp *= SHARPER
            continue
        amount = (1 - step) * amount + step * better
        load = (1 - step) * load + step * toward
    return Flow(amount, float((load / program.capacity).max()))


def _choose_step(capacity: Floats, load: Floats, toward: Floats) -> float:
    """Return the step size, of a few, with the smallest maximum load."""
    sizes = np.concatenate([[0.0], 2.0 ** -np.arange(9)])
    loads = (1 - sizes)[:, None] * load + sizes[:, None] * toward
    return float(sizes[int((loads / capacity).max(axis=1).argmin())])


def _route_cheapest(program: FlowProgram, price: Floats) -> Floats:
    """Route every want along its cheapest paths at these prices of rows."""
    cost = program.priced(price)
    cost = cost + HOP * float(cost[: program.topology.links].mean())
    amount = np.zeros((len(program.wants), program.links))
    for out in (True, False):
        numbers = [number for number, want in enumerate(program.wants) if want.out is out]
        if numbers:
            amount[numbers] = _along_trees(program, numbers, cost)
    return amount


def _along_trees(program: FlowProgram, numbers: list[int], cost: Floats) -> Floats:
    from scipy.sparse.csgraph import dijkstra

    tail, head = program.ends_of(program.wants[numbers[0]])
    graph, link_of = _build_graph(program.nodes, tail, head, cost)
    roots = np.array([program.wants[number].root for number in numbers])
    far, before = dijkstra(graph, indices=roots, return_predecessors=True)
    needed = np.zeros((len(numbers), program.nodes))
    for row, number in enumerate(numbers):
        for end, weight in program.wants[number].ends:
            needed[row, program.node_of(end)] += weight
    amount = np.zeros((len(numbers), program.links))
    order = np.argsort(np.where(np.isfinite(far), far, -1.0), axis=1, kind="stable")
    rows = np.arange(len(numbers))
    for place in range(program.nodes - 1, -1, -1):  # the farthest first: what they need goes through nearer ones
        node = order[:, place]
        parent = before[rows, node]
        moving = np.flatnonzero((parent >= 0) & (needed[rows, node] > 0))
        movers, node, parent = rows[moving], node[moving], parent[moving]
        amount[movers, link_of[parent, node]] += needed[movers, node]
        needed[movers, parent] += needed[movers, node]
    return amount


def _build_graph(nodes: int, tail: Longs, head: Longs, cost: Floats) -> tuple[Any, Longs]:
    """Return the cheapest link of every pair of nodes, and its number."""
    import scipy.sparse as sp

    order = np.lexsort((cost, head, tail))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(tail[order]) != 0) | (np.diff(head[order]) != 0)
    cheapest = order[first]
    link_of = np.full((nodes, nodes), -1, np.int64)
    link_of[tail[cheapest], head[cheapest]] = cheapest
    return sp.csr_array((cost[cheapest], (tail[cheapest], head[cheapest])), shape=(nodes, nodes)), link_of
