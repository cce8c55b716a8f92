"""What latency adds to the bound of a broadcast: a time that no plan stays below, by model alpha-beta.

A step takes its latency, then as long as its fullest link; t_1 .. t_N is what N steps take but for that. Let B be the
bound, and a the least latency of a step.

Two cuts. All data leave a set S that has the root by links that B is just enough for, and enter a set V by such links;
what leaves S in a step enters V s steps later at the earliest. What left S by step k, and what enters V after step
k + s, is all: B <= t_1 + .. + t_k + t_(k+s+1) + .. + t_N, for every k. Without any s steps on end there is B still, and
with c = N / s, rounded up, the sum is B c / (c - 1) at least.

Boxes. All data leave the root's box by links that B is just enough for, and enter each of K other boxes by such links.
Of the K copies by step k at most one per byte came straight from the root's box; the others had left it a step before,
unless a switch between boxes makes copies: then nothing is said.
So K B <= K (t_1 + .. + t_N) - (K - 1) t_k, and the sum is B / (1 - f / N) at least, with f = 1 - 1 / K. Steps are those
in which data go between boxes, and have the latency of such a way.

Ways. Where switches only forward, N steps take at least what a linear program says (_least_steps.py). Of N some, M, are
such in which data go between boxes; M and N together cost at least the greater of that and B / (1 - f / M), and the
latency of M such ways and N - M quick ones. The least over all M and N is what no such plan stays below; between the
numbers of steps for which the program is asked the next greater one stands, as more steps never take longer.

The same holds of a reduce, on the machine with all links turned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import igraph
import numpy as np
from _least_steps import least, ways
from numpy.typing import NDArray

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology, hosts

FULL = 1 + 1e-9
FIRST, FINE, MOST_STEPS = 24, 16, 400  # numbers of steps for which a program is asked, one in so many apart
Side = NDArray[np.bool_]


@cache
def floor(machine: Topology, kind: str, nbytes: int) -> float:
    """Least time over the bound of a broadcast or reduce from or to rank 0; 1 where nothing is known."""
    seconds = float(bound(machine, Collective(kind, machine.ranks)).seconds(nbytes))
    seen = reverse(machine) if kind == "reduce" else machine
    rate = nbytes / seconds
    found = [_windows(seconds, 1.0, steps, _quickest(seen)) for steps in _apart(seen, rate)]
    fan = _fan(seen, rate)
    if fan:
        found.append(_windows(seconds, 1 - 1 / fan[0], 1, fan[1]))
    return max(found, default=seconds) / seconds


@cache
def forwarding(machine: Topology, kind: str, nbytes: int) -> float:
    """The same of plans in which switches only forward: all plans, where no switch does more."""
    seconds = float(bound(machine, Collective(kind, machine.ranks)).seconds(nbytes))
    seen = reverse(machine) if kind == "reduce" else machine
    known, quick = ways(seen), _quickest(seen)
    if known is None:
        return floor(machine, kind, nbytes)
    boxes, late = _fan(seen, nbytes / seconds, True) or (1, quick)
    best, before, steps = math.inf, 0, FIRST
    while seconds + before * quick < best and steps < MOST_STEPS:
        taken = max(least(known, steps) * nbytes, seconds)
        for between in range(1, steps + 1):
            fewest = between * late + max(before + 1 - between, 0) * quick
            best = min(best, max(taken, seconds / (1 - (1 - 1 / boxes) / between)) + fewest)
        before, steps = steps, steps + 1 + steps // FINE
    best = min(best, seconds + before * quick)  # what takes more steps
    return max(best / seconds, floor(machine, kind, nbytes))


def _windows(seconds: float, part: float, apart: int, latency: float) -> float:
    """The least of latency and sum, over the number of steps: that of `apart` steps on end is `part` of them short."""
    if not apart:
        return seconds + latency
    least = math.inf
    for runs in range(1 if part < 1 else 2, 100_000):  # where all of one step is missing it takes two
        steps = (runs - 1) * apart + 1
        if steps * latency > least:
            break
        least = min(least, seconds / (1 - part / runs) + steps * latency)
    return least


def _capacity(machine: Topology) -> list[float]:
    return [float(machine.bandwidth(link)) for link in range(machine.links)]


def _apart(machine: Topology, rate: float) -> Iterable[int]:
    """Steps from a full cut around the root to one around each rank, the nearest to them of the narrowest."""
    capacity, arcs = _capacity(machine), list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    graph = igraph.Graph(machine.nodes, arcs, directed=True)
    for rank in range(1, machine.ranks):
        found = graph.maxflow(0, rank, capacity)
        if found.value > rate * FULL:
            continue
        free = [np.array(capacity) - found.flow > rate * 1e-9, np.array(found.flow) > rate * 1e-9]
        yield _steps(machine, _reached(machine, 0, free, False), _reached(machine, rank, free, True))


def _reached(machine: Topology, start: int, free: list[Side], back: bool) -> Side:
    """Where more could flow to from a node; `back`: from where it could flow to it."""
    ends = np.concatenate([machine.link_src, machine.link_dst]), np.concatenate([machine.link_dst, machine.link_src])
    tail, head = ends[::-1] if back else ends
    usable = np.concatenate(free)
    inside = np.arange(machine.nodes) == start
    while True:
        more = np.unique(head[usable & inside[tail] & ~inside[head]])
        if not len(more):
            return inside
        inside[more] = True


def _steps(machine: Topology, first: Side, last: Side) -> int:
    """From the step in which data leave `first` to that in which they enter `last`: each leads from rank to rank."""
    tail, head = machine.link_src, machine.link_dst
    enters = ~last[tail] & last[head]
    if (enters & first[tail] & ~first[head]).any() or (first & last).any():
        return 0
    far = np.full(machine.nodes, machine.nodes)
    far[head[first[tail] & ~first[head]]] = 0
    cost = (tail < machine.ranks).astype(int)
    while True:
        reached = far.copy()
        np.minimum.at(reached, head, far[tail] + cost)
        if (reached == far).all():
            return int((far[tail] + cost)[enters].min())
        far = reached


def _fan(machine: Topology, rate: float, forward: bool = False) -> tuple[int, float] | None:
    """How many boxes there are but the root's, and the least latency of a way between boxes; None where more than just
    enough leads out of the root's or into another, or where a switch between boxes makes copies; `forward`: none
    does."""
    box = hosts(machine)
    if not box or (not forward and _copied(machine, np.array(box))):
        return None
    inside = [np.array([*(one == name for one in box), *[False] * machine.switches]) for name in range(max(box) + 1)]
    ranks = np.arange(machine.nodes) < machine.ranks
    for name, mine in enumerate(inside):
        others = ranks & ~mine
        if _between(machine, *((mine, others) if name == box[0] else (others, mine))) > rate * FULL:
            return None
    return len(inside) - 1, min(_latency(machine, mine, ranks & ~mine) for mine in inside)


def _copied(machine: Topology, box: NDArray[np.int_]) -> bool:
    """Whether a switch that multicasts stands on a way, through switches alone, from a box to another."""
    able = [node for node in range(machine.ranks, machine.nodes) if machine.ability(node).multicast]
    before, behind = (_met(machine, box, back)[able] for back in (False, True))
    return bool((before.any(axis=1) & behind.any(axis=1) & ((before | behind).sum(axis=1) > 1)).any())


def _met(machine: Topology, box: NDArray[np.int_], back: bool) -> Side:
    """By node and box whether a way from there leads to it through switches alone; `back`: from it to there."""
    tail, head = (machine.link_dst, machine.link_src) if back else (machine.link_src, machine.link_dst)
    on = head >= machine.ranks
    found = np.zeros((machine.nodes, box.max() + 1), bool)
    found[np.arange(machine.ranks), box] = True
    while True:
        more = found.copy()
        np.logical_or.at(more, head[on], found[tail[on]])
        if (more == found).all():
            return found
        found = more


def _between(machine: Topology, sources: Side, ends: Side) -> float:
    """What can flow from these ranks to those, together."""
    arcs, capacity = list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)), _capacity(machine)
    more = [(machine.nodes, rank) for rank in np.flatnonzero(sources).tolist()]
    more += [(rank, machine.nodes + 1) for rank in np.flatnonzero(ends).tolist()]
    graph = igraph.Graph(machine.nodes + 2, [*arcs, *more], directed=True)
    return float(graph.maxflow_value(machine.nodes, machine.nodes + 1, [*capacity, *[sum(capacity)] * len(more)]))


def _quickest(machine: Topology) -> float:
    """The least latency of a way from a rank to another."""
    ranks = np.arange(machine.nodes) < machine.ranks
    return _latency(machine, ranks, ranks)


def _latency(machine: Topology, sources: Side, ends: Side) -> float:
    """The least of a way from one of these ranks to one of those, through switches alone."""
    late = np.array([kind.latency for kind in machine.types])[machine.link_type]
    far = np.where(sources, 0.0, math.inf)
    best = math.inf
    for _ in range(machine.switches + 1):
        arrived = far[machine.link_src] + late
        best = min(best, float(arrived[ends[machine.link_dst]].min(initial=math.inf)))
        far = np.where(np.arange(machine.nodes) < machine.ranks, math.inf, far)
        np.minimum.at(far, machine.link_dst, np.where(machine.link_dst < machine.ranks, math.inf, arrived))
    return best
