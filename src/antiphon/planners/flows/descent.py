"""Approximate flows where a linear program would be too large: Frank and Wolfe (1956), one shortest-path tree per want.

The maximum relative load max_r load_r / capacity_r is not smooth, so it is replaced by the soft maximum

    log sum_r exp(sharp * load_r / capacity_r)

whose gradient is a price per row: the fullest rows are expensive. Repeat: route everything along the cheapest paths at
these prices, and move the current flow towards that by the best of a few step sizes. If no step helps, sharpen. The
number of rounds is fixed, so results are the same on every machine.

Example: two parallel paths, all flow on the first: its price is high, the tree uses the second, step 1/2 balances them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.portable import exp
from antiphon.planners.flows.program import Floats, Flow, FlowProgram

ROUNDS = 48
SHARP = 24.0  # the fullest row costs e^SHARP times an empty one
SHARPER = 2.0  # factor on SHARP when no step improves
HOP = 1e-3  # surcharge per link, of the mean price: prefers shorter of equally good paths


def descend(program: FlowProgram) -> Flow:
    """Return flows near the minimum time, and their time. O(ROUNDS * wants * links log links)."""
    amount = _route_cheapest(program, 1 / program.capacity)
    load, sharp = program.row_loads(amount), SHARP
    for _ in range(ROUNDS):
        full = load / program.capacity
        # soft maximum of the loads: its gradient are these prices, so cheapest paths are the steepest direction
        # (Frank-Wolfe)
        price = exp(sharp * (full / full.max() - 1)) / program.capacity
        better = _route_cheapest(program, price)
        toward = program.row_loads(better)
        step = _choose_step(program.capacity, load, toward)
        # no step improves the true maximum: sharpen, to follow it more closely
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
    cost = program.link_prices(price)
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
