"""Blink's packing: least-cost trees against listing, weights within epsilon, few trees within the threshold."""

from collections import Counter
from fractions import Fraction

import pytest
from packing_cases import (
    allocations,
    brute_broadcast,
    brute_tau,
    one_way,
    overloaded,
    random_edges,
    torus,
    two_way,
)
from quick import examples, in_turn

import antiphon
from antiphon.core.reshape import only
from antiphon.errors import Invalid
from antiphon.planners.trees.blink_packing import (
    blink_allreduce,
    blink_broadcast,
    select_few_trees,
)
from antiphon.planners.trees.direct_links import directed_machine, undirected_machine


@pytest.mark.parametrize("seed", in_turn(range(examples(30)), 2))
def test_within_epsilon_of_the_optimum(seed: int) -> None:
    vertices, edges = random_edges(seed, 6, 8)
    arcs = [*edges, *((b, a, c) for a, b, c in edges)]
    for found, optimum, capacity in (
        (blink_allreduce(two_way(vertices, edges)), brute_tau(vertices, edges), edges),
        (blink_broadcast(one_way(vertices, arcs), 0), Fraction(brute_broadcast(vertices, arcs, 0)), arcs),
    ):
        assert found.optimum == optimum
        assert found.optimum * Fraction(95, 100) <= found.packed_rate * (1 + Fraction(1, 10**9))
        assert found.packed_rate <= found.optimum
        assert found.rate == sum(tree.rate for tree in found.trees) <= found.optimum
        assert found.rate >= min(found.packed_rate, found.optimum * Fraction(19, 20))
        load: dict[int, Fraction] = {}
        for tree in found.trees:
            for _, hop in tree.hops:
                for link in (*hop.path, *hop.back):
                    load[link] = load.get(link, Fraction(0)) + tree.rate
        per_edge = 2 if capacity is edges else 1  # links
        assert all(x <= capacity[link // per_edge][2] for link, x in load.items())


@pytest.mark.slow
def test_all_allocations() -> None:
    literal = Counter[tuple[str, str]]()
    for name in ("dgx1v", "dgx1p"):
        box = antiphon.topology(name)
        for gpus in allocations(name):
            part = only(box, gpus)
            for kind, found in (
                ("broadcast", blink_broadcast(directed_machine(part, gpus, box.unit), gpus[0])),
                ("allreduce", blink_allreduce(undirected_machine(part, gpus, box.unit))),
            ):
                assert found.rate >= found.optimum * Fraction(19, 20), (name, gpus, kind)
                assert not overloaded(found.trees, part)
                literal[name, kind] += found.weights != "0 or 1"
    assert literal["dgx1p", "broadcast"] == 0
    assert literal["dgx1v", "broadcast"] <= 4
    assert 12 <= literal["dgx1v", "allreduce"] <= 20
    assert 7 <= literal["dgx1p", "allreduce"] <= 11


def test_a_smaller_epsilon_comes_nearer() -> None:
    vertices, edges = torus(3, 3)
    rates = [blink_allreduce(two_way(vertices, edges), epsilon=eps).packed_rate for eps in (0.3, 0.01)]
    assert rates[0] <= Fraction(9, 4)
    assert rates[1] >= Fraction(9, 4) * Fraction(99, 100)


def test_weights_are_relaxed_step_by_step() -> None:
    triangle = [(Fraction(1, 2), (0, 1)), (Fraction(1, 2), (1, 2)), (Fraction(1, 2), (0, 2))]
    assert select_few_trees(triangle, [1, 1, 1], Fraction(3, 2))[1] == "1/2"
    assert select_few_trees(triangle, [1, 1, 1], Fraction(3, 2), Fraction(1, 3))[1] == "0 or 1"
    one = [(Fraction(3), (0,))]
    assert select_few_trees(one, [3], Fraction(3)) == ([(Fraction(3), (0,))], "whole")
    wide = [(Fraction(1, 13), (0,)), (Fraction(12, 13), (1,))]
    few, how = select_few_trees(wide, [1, 1], Fraction(2), Fraction(0))
    assert (sum(w for w, _ in few), how) == (2, "0 or 1")


def test_fractions_when_nothing_coarser_will_do() -> None:
    """Eleven edges, each tree all but one: weights of tenths, which no ninth part of a unit comes near enough to."""
    trees = [(Fraction(1, 10), tuple(e for e in range(11) if e != i)) for i in range(11)]
    few, how = select_few_trees(trees, [1] * 11, Fraction(11, 10), Fraction(1, 1000))
    assert how == "fractions"
    total = sum(w for w, _ in few)
    assert Fraction(11, 10) * Fraction(999, 1000) <= total <= Fraction(11, 10)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0])
def test_a_wrong_epsilon(epsilon: float) -> None:
    with pytest.raises(Invalid, match="epsilon"):
        blink_allreduce(two_way(2, [(0, 1, 1)]), epsilon=epsilon)


def test_a_wrong_threshold() -> None:
    with pytest.raises(Invalid, match="threshold"):
        blink_allreduce(two_way(2, [(0, 1, 1)]), threshold=Fraction(1))
