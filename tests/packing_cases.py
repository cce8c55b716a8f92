"""Machines for the tests of tree packing: the allocations of DGX-1 boxes, random graphs, and slow truths about them."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache

from tables import listed

import antiphon
from antiphon.core.topology import Topology
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.direct_links import Directed, DirectLink, LinkPair, Undirected
from antiphon.reproduce.blink_allocations import unique_allocations

Plain = tuple[int, int, int]  # a, b, capacity

# machine, GPUs, greatest broadcast rate, greatest allreduce rate (both in single links)
OPTIMA = tuple((name, gpus, int(rate), tau) for name, gpus, rate, tau in listed("blink-optima"))


@cache
def allocations(name: str) -> tuple[tuple[int, ...], ...]:
    """All sets of 3 to 8 GPUs of a box that NVLinks connect, one of each kind (up to renumbering)."""
    return tuple(one.gpus for one in unique_allocations(antiphon.topology(name)))


def connected(vertices: int, edges: Sequence[Plain]) -> bool:
    reached = {0}
    for _ in range(vertices):
        reached |= {w for a, b, _ in edges for v, w in ((a, b), (b, a)) if v in reached}
    return len(reached) == vertices


def two_way(vertices: int, edges: Sequence[Plain]) -> Undirected:
    return Undirected(
        tuple(range(vertices)),
        Fraction(1),
        tuple(LinkPair(a, b, c, 2 * i, 2 * i + 1) for i, (a, b, c) in enumerate(edges)),
    )


def one_way(vertices: int, arcs: Sequence[Plain]) -> Directed:
    return Directed(
        tuple(range(vertices)), Fraction(1), tuple(DirectLink(a, b, c, (i,)) for i, (a, b, c) in enumerate(arcs))
    )


def random_edges(seed: int, most_vertices: int = 6, most_more: int = 8) -> tuple[int, list[Plain]]:
    """A connected multigraph; capacities small, or up to a million."""
    draw = random.Random(seed)
    vertices = draw.randint(2, most_vertices)
    top = draw.choice((1, 3, 10, 10**6))
    edges = [(draw.randrange(v), v, draw.randint(1, top)) for v in range(1, vertices)]
    for _ in range(draw.randint(0, most_more)):
        a, b = draw.sample(range(vertices), 2)
        edges.append((a, b, draw.randint(1, top)))
    return vertices, edges


def torus(*dims: int) -> tuple[int, list[Plain]]:
    points = list(itertools.product(*map(range, dims)))
    number = {point: i for i, point in enumerate(points)}
    pairs = set()
    for point in points:
        for axis, size in enumerate(dims):
            step = tuple((x + (i == axis)) % size for i, x in enumerate(point))
            pairs.add((min(number[point], number[step]), max(number[point], number[step])))
    return len(points), [(a, b, 1) for a, b in sorted(pairs)]


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All partitions of a set."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        for i, part in enumerate(smaller):
            yield [*smaller[:i], [first, *part], *smaller[i + 1 :]]
        yield [[first], *smaller]


def brute_tau(vertices: int, edges: Sequence[Plain]) -> Fraction:
    """Capacity between the parts over (parts - 1), the least over all partitions."""
    best = None
    for parts in partitions(range(vertices)):
        if len(parts) > 1:
            of = {v: i for i, part in enumerate(parts) for v in part}
            value = Fraction(sum(c for a, b, c in edges if of[a] != of[b]), len(parts) - 1)
            best = value if best is None else min(best, value)
    assert best is not None
    return best


def brute_broadcast(vertices: int, arcs: Sequence[Plain], root: int) -> int:
    """The least capacity out of a set with the root."""
    others = [v for v in range(vertices) if v != root]
    sides = ({root, *some} for size in range(vertices - 1) for some in itertools.combinations(others, size))
    return min(sum(c for a, b, c in arcs if a in side and b not in side) for side in sides)


def spanning_trees(vertices: int, edges: Sequence[Plain]) -> list[tuple[int, ...]]:
    return [
        chosen
        for chosen in itertools.combinations(range(len(edges)), vertices - 1)
        if connected(vertices, [edges[e] for e in chosen])
    ]


def arborescences(vertices: int, arcs: Sequence[Plain], root: int) -> list[tuple[int, ...]]:
    into = [[e for e, arc in enumerate(arcs) if arc[1] == v] for v in range(vertices) if v != root]
    return [
        tuple(sorted(chosen)) for chosen in itertools.product(*into) if connected(vertices, [arcs[e] for e in chosen])
    ]


def overloaded(trees: Iterable[SpanningTree], topology: Topology) -> list[str]:
    """Links and shared limits that carry more than they can: empty for a packing. O(hops)."""
    load = [Fraction(0)] * topology.links
    for tree in trees:
        for _, hop in tree.hops:
            for link in (*hop.path, *hop.back):
                load[link] += tree.rate
    speed = [topology.bandwidth(link) for link in range(topology.links)]
    wrong = [f"link {i}: {load[i]} of {speed[i]}" for i in range(topology.links) if load[i] > speed[i]]
    for limit in topology.limits:
        total = sum((load[link] for link in limit.links), Fraction(0))
        if total > limit.bandwidth:
            wrong.append(f"limit {limit.name}: {total} of {limit.bandwidth}")
    return wrong


def check_trees(trees: Iterable[SpanningTree], topology: Topology, sinks: Iterable[int]) -> None:
    """Each reaches all sinks, every rank once and by way of switches, both ways where links back are named; all fit."""
    trees = list(trees)
    for tree in trees:
        assert tree.rate > 0
        depth = {tree.root: 0, **{rank: hop.depth for rank, hop in tree.hops}}
        assert len(depth) == len(tree.hops) + 1
        assert depth.keys() >= set(sinks)
        for rank, hop in tree.hops:
            assert hop.depth == depth[hop.parent] + 1
            for links, ends in ((hop.path, (hop.parent, rank)), (hop.back, (rank, hop.parent))):
                if links:
                    nodes = [int(topology.link_src[links[0]]), *(int(topology.link_dst[link]) for link in links)]
                    assert [int(topology.link_src[link]) for link in links] == nodes[:-1]
                    assert (nodes[0], nodes[-1]) == ends
                    assert all(node >= topology.ranks for node in nodes[1:-1])
                    assert len(set(nodes)) == len(nodes)
    assert not overloaded(trees, topology)
