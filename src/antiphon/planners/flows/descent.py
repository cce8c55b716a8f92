"""Approximate the fastest flows on machines that are too large for a linear program (Frank and Wolfe 1956).

Input: a `FlowProgram`, that is, a machine and its wants (who sends how much to whom). Output of `descend`: how much of
each want goes over which link, such that the fullest row (link or shared limit) is nearly as empty as possible.

The largest relative load, max over r of load_r / capacity_r, is not smooth, so it is replaced by the soft maximum

    log of sum over r of exp(sharp * load_r / capacity_r)

whose gradient is a price per row: full rows are expensive. Repeat: route every want along a tree of cheapest paths at
these prices, and move the current flow towards that by the best of a few step sizes. If no step helps, increase
`sharp`. The number of rounds is fixed, so results are the same on every machine.

Example: two parallel paths, all flow on the first. Its price is high, so the cheapest path is the second; step 1/2
moves half of the flow there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.portable import exp
from antiphon.planners.flows.program import Floats, Flow, FlowProgram

ROUNDS = 48  # of routing and moving
SHARP = 24.0  # the fullest row costs e^SHARP times an empty one
SHARPER = 2.0  # factor on that exponent when no step improves
HOP = 1e-3  # surcharge per link, relative to the mean price: of equally good paths the shortest is taken


def descend(program: FlowProgram) -> Flow:
    """Return flows near the minimum time, and their time. O(ROUNDS * wants * links log links)."""
    amount = _route_cheapest(program, 1 / program.capacity)
    load, sharp = program.row_loads(amount), SHARP
    for _ in range(ROUNDS):
        full = load / program.capacity
        # the gradient of the soft maximum: cheapest paths are the steepest direction
        price = exp(sharp * (full / full.max() - 1)) / program.capacity
        better = _route_cheapest(program, price)
        toward = program.row_loads(better)
        step = _choose_step(program.capacity, load, toward)
        # no step improves the true maximum: follow it more closely
        if not step:
            sharp *= SHARPER
            continue
        amount = (1 - step) * amount + step * better
        load = (1 - step) * load + step * toward
    return Flow(amount, float((load / program.capacity).max()))


def _choose_step(capacity: Floats, load: Floats, toward: Floats) -> float:
    """Return the step from `load` towards `toward`, 0 or 2^-k, that gives the smallest maximum of relative loads."""
    sizes = np.concatenate([[0.0], 2.0 ** -np.arange(9)])
    loads = (1 - sizes)[:, None] * load + sizes[:, None] * toward
    return float(sizes[int((loads / capacity).max(axis=1).argmin())])


def _route_cheapest(program: FlowProgram, price: Floats) -> Floats:
    """Return the amounts by want and link if every want takes its cheapest paths at these prices of rows."""
    cost = program.link_prices(price)
    cost = cost + HOP * float(cost[: program.topology.links].mean())
    amount = np.zeros((len(program.wants), program.links))
    for out in (True, False):
        numbers = [number for number, want in enumerate(program.wants) if want.out is out]
        if numbers:
            amount[numbers] = _along_trees(program, numbers, cost)
    return amount


def _along_trees(program: FlowProgram, numbers: list[int], cost: Floats) -> Floats:
    """Return the amounts of wants in one direction, each along the tree of its cheapest paths.

    `numbers`: of these wants; `cost`: by link.
    """
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
    for place in range(program.nodes - 1, -1, -1):  # the farthest nodes first: what they need passes nearer ones
        node = order[:, place]
        parent = before[rows, node]
        moving = np.flatnonzero((parent >= 0) & (needed[rows, node] > 0))
        movers, node, parent = rows[moving], node[moving], parent[moving]
        amount[movers, link_of[parent, node]] += needed[movers, node]
        needed[movers, parent] += needed[movers, node]
    return amount


def _build_graph(nodes: int, tail: Longs, head: Longs, cost: Floats) -> tuple[Any, Longs]:
    """Return the graph of the cheapest link of every pair of nodes, and the numbers of these links by ends."""
    import scipy.sparse as sp

    order = np.lexsort((cost, head, tail))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(tail[order]) != 0) | (np.diff(head[order]) != 0)
    cheapest = order[first]
    link_of = np.full((nodes, nodes), -1, np.int64)
    link_of[tail[cheapest], head[cheapest]] = cheapest
    return sp.csr_array((cost[cheapest], (tail[cheapest], head[cheapest])), shape=(nodes, nodes)), link_of
