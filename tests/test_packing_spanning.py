"""Undirected trees that attain tau exactly, and the fewest trees: against brute force, and on DGX-1 allocations."""

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from packing_cases import (
    OPTIMA,
    Plain,
    allocations,
    arborescences,
    brute_broadcast,
    brute_tau,
    check_trees,
    connected,
    one_way,
    random_edges,
    spanning_trees,
    torus,
    two_way,
)
from quick import crossed, in_turn

import antiphon
from antiphon.core.bounds.maxflow import MaxFlows
from antiphon.core.reshape import only
from antiphon.core.topology import LinkType, SharedLimit, both_ways, build
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.trees.direct_links import directed_machine, undirected_machine
from antiphon.planners.trees.fewest import Fewest, fewest_broadcast, fewest_spanning
from antiphon.planners.trees.spanning import pack_edges, pack_spanning, weakest_partition_of


def check_packing(vertices: int, edges: Sequence[Plain]) -> list[tuple[int, tuple[int, ...]]]:
    """Pack, and hold the result to what is promised."""
    tau, parts = weakest_partition_of(vertices, edges)
    trees = pack_edges(edges, tau, parts)
    load = [0] * len(edges)
    for weight, chosen in trees:
        assert weight > 0
        assert len(chosen) == vertices - 1
        assert connected(vertices, [edges[e] for e in chosen])
        for e in chosen:
            load[e] += weight
    assert sum(weight for weight, _ in trees) == tau.numerator
    assert all(x <= c * tau.denominator for x, (_, _, c) in zip(load, edges, strict=True))
    return trees


@pytest.mark.parametrize(
    "block", in_turn([pytest.param(n, marks=[pytest.mark.slow] if n % 3 else []) for n in range(10)], 2)
)
def test_tau_is_attained_exactly(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        vertices, edges = random_edges(seed)
        tau, parts = weakest_partition_of(vertices, edges)
        assert tau == brute_tau(vertices, edges), seed
        of = {v: i for i, part in enumerate(parts) for v in part}
        assert tau == Fraction(sum(c for a, b, c in edges if of[a] != of[b]), len(parts) - 1)
        assert len(check_packing(vertices, edges)) <= len(edges) + vertices


def test_capacities_beyond_doubles() -> None:
    edges = [(0, 1, 10**17 + 1), (1, 2, 10**17 + 3), (2, 3, 3 * 10**16), (3, 0, 10**17), (0, 2, 7 * 10**16 + 9)]
    check_packing(4, edges)


def test_flows_of_any_size() -> None:
    tail, head = [0, 0, 2, 3, 2, 3], [2, 3, 3, 2, 1, 1]
    for unit in (1, 10**9, 10**15 + 7, 10**40 + 1):
        capacity = [5 * unit, 3 * unit, unit + 1, 2 * unit, 2 * unit, 7 * unit]
        flows = MaxFlows(4, tail, head)
        flow = flows.arc_flows(capacity, 0, 1).tolist()
        assert all(0 <= x <= c for x, c in zip(flow, capacity, strict=True))
        for v in (2, 3):
            out = sum(x for x, a in zip(flow, tail, strict=True) if a == v)
            assert out == sum(x for x, b in zip(flow, head, strict=True) if b == v)
        assert flow[4] + flow[5] == flows.value(capacity, 0, 1) == flows.cut(capacity, 0, 1)[0]


def test_cuts_of_any_size_are_those_of_small_numbers() -> None:
    """Also where flows may go in circles: arcs there and back, and far from the sink."""
    rng = random.Random(3)
    for unit in [10**17 + 3, 10**40 + 1] * 30:
        nodes = rng.randint(2, 9)
        tail = [rng.randrange(nodes) for _ in range(rng.randint(1, 25))]
        flows = MaxFlows(nodes, tail, [(a + rng.randrange(1, nodes)) % nodes for a in tail])
        capacity = [rng.randint(1, 5) for _ in tail]
        source, sink = rng.sample(range(nodes), 2)
        small, large = flows.smallest_cut(capacity, source, sink), [c * unit for c in capacity]
        assert flows.cut(large, source, sink) == (flows.value(capacity, source, sink) * unit, small.tolist())


def test_trees_hang_from_their_middle() -> None:
    line = build("line", 5, both_ways([(v, v + 1) for v in range(4)], LinkType("x", Fraction(1))))
    (tree,) = pack_spanning(undirected_machine(line))
    assert (tree.root, tree.depth) == (2, 2)


# ---- the fewest ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "loss"),
    [
        ("dgx1p", 14, Fraction(0)), ("dgx1v", 46, Fraction(0)),
        ("dgx1p", 14, Fraction(1, 20)),
        ("dgx1v", 46, Fraction(1, 20)),
    ],
)  # fmt: skip
def test_all_allocations_are_settled(name: str, count: int, loss: Fraction) -> None:
    box = antiphon.topology(name)
    assert len(allocations(name)) == count
    known = {gpus: (rate, Fraction(tau)) for machine, gpus, rate, tau in OPTIMA if machine == name}
    for gpus in allocations(name):
        part = only(box, gpus)
        up_and_down = fewest_spanning(undirected_machine(part, gpus), loss=loss)
        down = fewest_broadcast(directed_machine(part, gpus), gpus[0], loss=loss)
        for found in (up_and_down, down):
            assert found.proved, (name, gpus)
            assert found.optimum * (1 - loss) <= found.rate <= found.optimum
            check_trees(found.trees, part, gpus)
        rates = known.get("".join(map(str, gpus)))
        if rates:
            assert (down.optimum / box.unit, up_and_down.optimum / box.unit) == rates


def fewest_by_listing(trees: Sequence[tuple[int, ...]], capacity: Sequence[int], wanted: float) -> int:
    """The least number of these trees that carries so much, all choices tried."""
    from scipy.optimize import linprog

    for count in itertools.count(1):
        for some in itertools.combinations(trees, count):
            rows = [[float(e in tree) for tree in some] for e in range(len(capacity))]
            if -linprog([-1.0] * count, A_ub=rows, b_ub=capacity).fun >= wanted - 1e-6:
                return count
    raise AssertionError


def settled(found: Fewest, fewest: int) -> None:
    assert len(found.trees) >= fewest >= found.at_least
    assert found.proved
    assert len(found.trees) == fewest


SMALL = [
    seed
    for seed in range(200)
    if random_edges(seed, 4, 4)[0] > 2 and max(c for *_, c in random_edges(seed, 4, 4)[1]) < 11
]


@pytest.mark.parametrize(
    ("seed", "loss"),
    crossed(
        [pytest.param(n, marks=pytest.mark.slow) if n == 35 or n % 6 else n for n in SMALL[:20]],
        [Fraction(0), Fraction(1, 10)],
        2,
    ),
)
def test_the_fewest_against_listing(seed: int, loss: Fraction) -> None:
    vertices, edges = random_edges(seed, 4, 4)
    capacity = [c for *_, c in edges]
    tau = brute_tau(vertices, edges)
    truth = fewest_by_listing(spanning_trees(vertices, edges), capacity, float(tau * (1 - loss)))
    settled(fewest_spanning(two_way(vertices, edges), loss=loss, effort=400_000), truth)

    arcs = [*edges, *((b, a, c) for a, b, c in edges[: len(edges) // 2 + 1])]
    if not arborescences(vertices, arcs, 0):
        return
    rate = brute_broadcast(vertices, arcs, 0)
    found = fewest_broadcast(one_way(vertices, arcs), 0, loss=loss, effort=400_000)
    assert found.optimum == rate
    truth = fewest_by_listing(arborescences(vertices, arcs, 0), [c for *_, c in arcs], float(rate * (1 - loss)))
    settled(found, truth)


def test_large_machines_get_the_exact_packing_and_a_bound() -> None:
    vertices, edges = torus(6, 6)
    found = fewest_spanning(two_way(vertices, edges))
    assert found.rate == found.optimum == Fraction(72, 35)
    assert 1 < found.at_least <= len(found.trees) < 36
    assert "at least" in found.describe()
    within = fewest_spanning(two_way(vertices, edges), loss=Fraction(1, 10))
    assert len(within.trees) < len(found.trees)
    assert within.rate >= within.optimum * Fraction(9, 10)


# ---- what does not fit ----

ONE = LinkType("x", Fraction(1))


def test_a_link_without_a_way_back() -> None:
    machine = build("odd", 3, [*both_ways([(0, 1), (1, 2)], ONE), (0, 2, ONE)])
    with pytest.raises(Unsupported, match=r"link 4 .*rank 0 to 2.*reducescatter"):
        undirected_machine(machine)


def test_parts_without_links_between() -> None:
    machine = build("apart", 4, both_ways([(0, 1), (2, 3)], ONE))
    with pytest.raises(Invalid, match=r"rank 0 to ranks 2, 3"):
        undirected_machine(machine)
    with pytest.raises(Invalid, match=r"rank 1 cannot reach ranks 2, 3"):
        fewest_broadcast(directed_machine(machine), 1)


def test_one_rank() -> None:
    with pytest.raises(Invalid, match="at least two ranks"):
        pack_spanning(undirected_machine(build("one", 1, [])))


def test_switches_and_narrow_limits() -> None:
    star = build("star", 3, both_ways([(0, 3), (1, 3), (2, 3)], ONE), switches=1)
    with pytest.raises(Unsupported, match="switch"):
        undirected_machine(star)
    shared = build("shared", 2, both_ways([(0, 1)], ONE), limits=[SharedLimit("bus", (0, 1), Fraction(1))])
    with pytest.raises(Unsupported, match="bus"):
        undirected_machine(shared)
    wide = build("wide", 2, both_ways([(0, 1)], ONE), limits=[SharedLimit("bus", (0, 1), Fraction(2))])
    assert [tree.rate for tree in pack_spanning(undirected_machine(wide))] == [1]


def test_a_loss_of_all() -> None:
    with pytest.raises(Invalid, match="loss"):
        fewest_spanning(two_way(2, [(0, 1, 1)]), loss=Fraction(1))
