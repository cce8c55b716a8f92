"""Approximate the fastest flows on machines that are too large for a linear program (Frank and Wolfe 1956).

Input: a `FlowProblem`, that is, a machine and its demands (who sends how much to whom). Output of `descend`: how much
of each demand goes over which link, such that the load of the fullest row (link or shared limit) is nearly minimal.

The largest relative load, max over r of load_r / capacity_r, is not smooth, so it is replaced by the soft maximum

    log of sum over r of exp(sharpness * load_r / capacity_r)

whose gradient is a price per row: full rows are expensive. Repeat: route every demand along a tree of cheapest paths at
these prices, and move the current flow towards the new one by the best of a few step sizes. If no step is better than
none, increase `sharpness`. The number of rounds is fixed, so results are the same on every computer.

Example: two parallel paths, all flow on the first. Its price is high, so the cheapest path is the second; step 1/2
moves half of the flow there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.portable import exp
from antiphon.planners.flows.linear_program import Floats, Flow, FlowProblem

ROUNDS = 48  # each routes all demands and moves the flow towards the result
FIRST_SHARPNESS = 24.0  # the fullest row costs e^24 times an empty row
SHARPNESS_FACTOR = 2.0  # increase of the sharpness when no step improves
LINK_SURCHARGE = 1e-3  # per link, relative to the mean price: of equally cheap paths the one of fewest links is taken


def descend(problem: FlowProblem) -> Flow:
    """Return flows that nearly minimize the load of the fullest row. O(ROUNDS * demands * links log links)."""
    amount = _route_cheapest(problem, 1 / problem.capacity)
    load, sharpness = problem.row_loads(amount), FIRST_SHARPNESS
    for _ in range(ROUNDS):
        fill = load / problem.capacity
        # prices are the gradient of the soft maximum, so cheapest paths are the steepest direction
        price = exp(sharpness * (fill / fill.max() - 1)) / problem.capacity
        target = _route_cheapest(problem, price)
        target_load = problem.row_loads(target)
        step = _choose_step(problem.capacity, load, target_load)
        # if no step improves the true maximum, approximate it more closely
        if not step:
            sharpness *= SHARPNESS_FACTOR
            continue
        amount = (1 - step) * amount + step * target
        load = (1 - step) * load + step * target_load
    return Flow(amount, float((load / problem.capacity).max()))


def _choose_step(capacity: Floats, load: Floats, target_load: Floats) -> float:
    """Return the step from `load` towards `target_load`, 0 or 2^-k, with the smallest maximum of relative loads."""
    steps = np.concatenate([[0.0], 2.0 ** -np.arange(9)])  # down to 1/256
    loads = (1 - steps)[:, None] * load + steps[:, None] * target_load
    return float(steps[int((loads / capacity).max(axis=1).argmin())])


def _route_cheapest(problem: FlowProblem, price: Floats) -> Floats:
    """Return amounts[demand, link] if every demand takes its cheapest paths at these prices of rows."""
    # `problem.links`: the machine's links, then further ones that join sets of possible holders to a node each
    cost = problem.link_prices(price)
    cost = cost + LINK_SURCHARGE * float(cost[: problem.topology.links].mean())
    amount = np.zeros((len(problem.demands), problem.links))
    # demands that leave their root, then those that end at it, for which links are reversed
    for leaves_root in (True, False):
        numbers = [number for number, demand in enumerate(problem.demands) if demand.out is leaves_root]
        if numbers:
            amount[numbers] = _route_along_trees(problem, numbers, cost)
    return amount


def _route_along_trees(problem: FlowProblem, numbers: list[int], cost: Floats) -> Floats:
    """Return amounts[i, link] of the demands `numbers[i]`, each along the tree of its cheapest paths.

    All must have the same direction. `cost`: by link.
    """
    from scipy.sparse.csgraph import dijkstra

    tail, head = problem.ends_of(problem.demands[numbers[0]])
    graph, link_of = _build_graph(problem.nodes, tail, head, cost)
    roots = np.array([problem.demands[number].root for number in numbers])
    distance, predecessor = dijkstra(graph, indices=roots, return_predecessors=True)
    needed = np.zeros((len(numbers), problem.nodes))
    for i, number in enumerate(numbers):
        for end, weight in problem.demands[number].ends:
            needed[i, problem.node_of(end)] += weight
    amount = np.zeros((len(numbers), problem.links))
    order = np.argsort(np.where(np.isfinite(distance), distance, -1.0), axis=1, kind="stable")
    indices = np.arange(len(numbers))
    # per demand, the farthest nodes first: the data that they need pass through nearer ones (unreachable nodes last)
    for position in range(problem.nodes - 1, -1, -1):
        node = order[:, position]
        parent = predecessor[indices, node]
        moving = np.flatnonzero((parent >= 0) & (needed[indices, node] > 0))
        movers, node, parent = indices[moving], node[moving], parent[moving]
        amount[movers, link_of[parent, node]] += needed[movers, node]
        needed[movers, parent] += needed[movers, node]
    return amount


def _build_graph(nodes: int, tail: Longs, head: Longs, cost: Floats) -> tuple[Any, Longs]:
    """Return the graph of the cheapest link of every pair of nodes, and the numbers of these links by ends."""
    import scipy.sparse as sp

    order = np.lexsort((cost, head, tail))
    is_cheapest = np.ones(len(order), bool)
    is_cheapest[1:] = (np.diff(tail[order]) != 0) | (np.diff(head[order]) != 0)
    cheapest = order[is_cheapest]
    link_of = np.full((nodes, nodes), -1, np.int64)
    link_of[tail[cheapest], head[cheapest]] = cheapest
    return sp.csr_array((cost[cheapest], (tail[cheapest], head[cheapest])), shape=(nodes, nodes)), link_of
