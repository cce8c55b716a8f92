"""Packing by linear programming: against brute force over all trees, cuts, and known rates of machines."""

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import _forest as forest
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from packing_cases import check_trees, overloaded
from quick import examples, in_turn

import antiphon
from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.exact_solve import solve_exactly
from antiphon.core.bounds.master import Master
from antiphon.core.bounds.network import network_of
from antiphon.core.reshape import reverse
from antiphon.core.symmetry import link_map
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import Infeasible, Invalid
from antiphon.planners.shared import orbits
from antiphon.planners.shared.orbits import find_rotations, free_group
from antiphon.planners.trees.columns import InAndOut, TreePacking, pack_allreduce_lp, pack_lp, pack_orbits
from antiphon.planners.trees.pricing import cheapest_tree


def kind(bandwidth: int) -> LinkType:
    return LinkType("link", Fraction(bandwidth))


def odd_machine(rng: random.Random) -> Topology:
    """A few ranks, perhaps switches (most unbalanced), parallel links, shared limits; capacities up to 10^6."""
    ranks, switches = rng.randint(2, 4), rng.choice([0, 0, 1, 2])
    top = rng.choice([1, 3, 10, 10**6])
    many = [0, 1, 1] if switches else [0, 1, 1, 2]
    pairs = itertools.permutations(range(ranks + switches), 2)
    links = [(a, b, kind(rng.randint(1, top))) for a, b in pairs for _ in range(rng.choice(many))]
    limits = []
    for number in range(rng.choice([0, 0, 1, 2]) if len(links) > 2 else 0):
        some = rng.sample(range(len(links)), rng.randint(2, min(5, len(links))))
        limits.append(SharedLimit(f"limit{number}", tuple(some), Fraction(rng.randint(1, 2 * top))))
    return build("odd", ranks, links, switches=switches, limits=limits)


def check(topology: Topology, packing: TreePacking, demand: dict[int, int], sinks: Sequence[int]) -> None:
    """Feasible, complete, and as fast as it says."""
    check_trees(packing.trees, topology, sinks)
    for root, weight in demand.items():
        assert sum((t.rate for t in packing.trees if t.root == root), Fraction(0)) == weight * packing.rate


def check_brute(seed: int, relays: bool) -> None:
    rng = random.Random(seed)
    topology = odd_machine(rng)
    ranks = range(topology.ranks)
    demand = {root: rng.randint(1, 3) for root in rng.sample(ranks, rng.randint(1, len(ranks)))}
    sinks = rng.sample(ranks, rng.randint(1, len(ranks))) if relays else list(ranks)
    needs = [(weight, "out", root, set(sinks)) for root, weight in demand.items() if {root} != set(sinks)]
    seconds = forest.time_of_tasks(topology, needs)
    try:
        packing = pack_lp(topology, demand, sinks)
    except (Infeasible, Invalid):
        assert not seconds  # None: out of reach; 0: nothing to do
        return
    check(topology, packing, demand, sinks)
    assert seconds
    best = 1 / seconds
    network = network_of(topology)
    _, cut = tightest_cut(network, {(r,): w for r, w in demand.items()}, sinks)
    assert packing.rate <= packing.bound <= cut * topology.resources.scale
    assert best <= float(packing.bound) * (1 + 1e-6)
    assert float(packing.rate) <= best * (1 + 1e-6)
    if not relays:
        assert packing.proved
        assert float(packing.rate) == pytest.approx(best, rel=1e-6)
        if not topology.limits and network.balanced:
            assert packing.rate == cut * topology.resources.scale


@pytest.mark.parametrize("seed", range(examples(40)))
def test_all_trees_give_the_same_rate(seed: int) -> None:
    check_brute(seed, relays=False)


@pytest.mark.parametrize("seed", range(examples(20)))
def test_relays_never_beat_all_trees_nor_the_bound(seed: int) -> None:
    check_brute(seed, relays=True)


def allreduce_checked(topology: Topology, packing: InAndOut) -> None:
    assert overloaded([*packing.trees_in, *packing.trees_out], topology) == []
    for rank in range(topology.ranks):
        weights = [sum(t.rate for t in trees if t.root == rank) for trees in (packing.trees_in, packing.trees_out)]
        assert weights[0] == weights[1]
    assert sum(tree.rate for tree in packing.trees_in) == packing.rate
    for machine, trees in ((reverse(topology), packing.trees_in), (topology, packing.trees_out)):
        check_trees(trees, machine, range(topology.ranks))


@pytest.mark.parametrize("seed", range(examples(25)))
def test_allreduce_meets_all_pairs_of_trees(seed: int) -> None:
    topology = odd_machine(random.Random(seed))
    try:
        packing = pack_allreduce_lp(topology, range(topology.ranks))
    except Infeasible:
        return
    allreduce_checked(topology, packing)
    assert packing.proved
    seconds = forest.time_of_tasks(topology, [(1, "both", -1, {*range(topology.ranks)})])
    assert seconds
    assert float(packing.rate) == pytest.approx(1 / seconds, rel=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_cheapest_tree_is_the_cheapest_of_all(seed: int) -> None:
    cost = np.random.default_rng(seed).integers(1, 9, (4, 4))
    found = cheapest_tree(cost, 0, 99)
    assert found is not None
    trees = [up for up in itertools.product(range(4), repeat=3) if all(leads(up, rank) for rank in (1, 2, 3))]
    assert tuple(found[1:]) in trees
    assert price(cost, found[1:]) == min(price(cost, up) for up in trees)


def leads(up: Sequence[int], rank: int) -> bool:
    """Whether three hops up from the rank lead to rank 0, for parents of ranks 1, 2, 3."""
    for _ in up:
        rank = up[rank - 1] if rank else 0
    return rank == 0


def price(cost: NDArray[np.int64], up: Sequence[int]) -> int:
    return sum(int(cost[parent, rank]) for rank, parent in enumerate(up, 1))


def test_errors_name_who_is_cut_off() -> None:
    one_way = build("one way", 3, [(0, 1, kind(1)), (1, 0, kind(1)), (2, 0, kind(1))])
    with pytest.raises(Infeasible, match="from rank 0 to rank 2"):
        pack_lp(one_way, {0: 1}, range(3))
    with pytest.raises(Infeasible, match="from rank 0 to rank 2"):
        pack_allreduce_lp(one_way, range(3))
    with pytest.raises(Infeasible, match="from rank 2 to rank 0"):
        pack_allreduce_lp(reverse(one_way), range(3))
    with pytest.raises(Infeasible, match="at least 2 hops"):
        pack_lp(antiphon.topology("ring:ranks=4"), {0: 1}, range(4), hops=1)
    with pytest.raises(Invalid, match="nothing must move"):
        pack_lp(one_way, {0: 1}, [0])
    with pytest.raises(Invalid, match="fewer than 2"):
        pack_allreduce_lp(one_way, [1])


def test_the_depth_asked_for_is_kept() -> None:
    topology = antiphon.topology("dgx1v")
    found = [pack_lp(topology, {0: 1}, range(8), hops=hops) for hops in (2, 3, 4)]
    assert [packing.depth for packing in found] == [2, 3, 4]
    rates = [packing.rate / topology.unit for packing in found]
    assert rates[0] == 2  # the most that trees of two hops carry, by a linear program over all of them
    assert rates[1] <= 5  # the same of three hops
    assert rates == sorted(rates)
    assert [packing.proved for packing in found] == [False, False, True]


@pytest.mark.parametrize(
    "name", in_turn(["ring:ranks=6", "star:ranks=5", "dgx1p", "mi250:gcds=8", "z52-pcie", "pcie8"], 6)
)
def test_orbits_lose_nothing(name: str) -> None:
    topology = antiphon.topology(name)
    demand = dict.fromkeys(range(topology.ranks), 1)
    whole, orbits = (pack(topology, demand, range(topology.ranks)) for pack in (pack_lp, pack_orbits))
    assert orbits is not None
    check(topology, orbits, demand, range(topology.ranks))
    assert whole is not None
    assert whole.rate == orbits.rate == whole.bound == orbits.bound


@pytest.mark.parametrize(("name", "tau"), in_turn([("dgx1v", "24/7"), ("dgx1p", "16/7"), ("ring:ranks=6", "6/5")], 2))
def test_allreduce_on_machines_alike_both_ways_is_tau(name: str, tau: str) -> None:
    topology = antiphon.topology(name)
    packing = pack_allreduce_lp(topology, range(topology.ranks))
    allreduce_checked(topology, packing)
    assert packing.proved
    assert packing.rate / topology.unit == Fraction(tau)


def test_exact_solutions_with_large_denominators() -> None:
    rng = random.Random(7)
    rows = np.array([[rng.randint(-9, 9) for _ in range(30)] for _ in range(30)])
    right = [rng.randint(0, 10**6) for _ in range(30)]
    found = solve_exactly(rows, right)
    assert found is not None
    assert max(v.denominator for v in found) > 10**20
    assert [sum(int(a) * v for a, v in zip(row, found, strict=True)) for row in rows] == right
    assert solve_exactly(np.vstack([rows, rows[:1]]), [*right, right[0] + 1]) is None
    assert solve_exactly(rows[:, [0, *range(29)]], right) is None


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("cluster:box=dgx-a100,boxes=4,fabric=fat-tree", 32), ("cluster:box=dgx1v,boxes=3", 6), ("mesh:dims=3x4", 1),
        ("cluster:box=hgx-h100,boxes=2,fabric=rail", 16), ("torus:dims=3x4x2", 24),
    ],
)  # fmt: skip
def test_turns_are_symmetries_by_place(name: str, order: int) -> None:
    """Boxes, cards within them and rows of a grid go round; together they take each rank to so many."""
    topology = antiphon.topology(name)
    reached, todo = {0}, [0]
    found = list(find_rotations(topology, [0] * topology.ranks + [1] * topology.switches, range(topology.ranks)))
    for element in found:
        link_map(topology, element)
    for rank in todo:
        more = {int(element[rank]) for element in found} - reached
        reached |= more
        todo += sorted(more)
    assert len(reached) == order


def test_rounding_is_feasible_where_no_exact_basis_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Master, "solve_exactly", lambda self, point: None)
    topology = antiphon.topology("dgx1v")
    demand = {0: 1, 3: 2}
    packing = pack_lp(topology, demand, range(8))
    check(topology, packing, demand, range(8))
    assert packing.rate <= packing.bound <= packing.rate * Fraction(1001, 1000)


@pytest.mark.slow
def test_symmetries_that_commute_on_the_roots_only_make_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotations along two axes of the ranks, which exchange switches 0 and 1, and 1 and 2."""
    ranks, switches = 264, 3
    pairs = [(rank, ranks + switch) for rank in range(ranks) for switch in range(switches)]
    machine = build("star", ranks, both_ways(pairs, kind(1)), switches=switches)
    grid = np.arange(ranks).reshape(6, 44)
    rotations = []
    for axis, images in enumerate(([1, 0, 2], [0, 2, 1])):
        rotation = np.arange(ranks + switches)
        rotation[grid.ravel()] = np.roll(grid, -1, axis).ravel()
        rotation[ranks:] = ranks + np.array(images)
        rotations.append(rotation)
    monkeypatch.setattr(orbits, "find_rotations", lambda *_: iter(rotations))
    group = free_group(machine, dict.fromkeys(range(ranks), 1), range(ranks))
    members = {row.tobytes() for row in group}
    assert len(group) > 1
    assert all(a[b].tobytes() in members for a in group for b in group[:20])
