"""Bounds on allreduces by trees and pairs of trees: held against all sets of sends on tiny machines."""

import itertools
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quick import examples
from sccl_cases import topology as random_machine

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import check_certificate
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.ksync.trees import TreeDual, evaluate_tree_dual
from antiphon.errors import Infeasible, Invalid
from antiphon.planners.synth.group import group_of
from antiphon.planners.synth.tree_prices import price_pairs, price_roots
from antiphon.topologies import topology

Move = tuple[int, int]  # arc, step


def allgather(spec: str) -> Instance:
    machine = topology(spec)
    return instance_of(machine, Collective("allgather", machine.ranks))


def spreads(instance: Instance, moves: tuple[Move, ...]) -> bool:
    """Whether every rank's input gets to all ranks over these."""
    held = {rank: {rank} for rank in range(instance.ranks)}
    for step in sorted({step for _, step in moves}):
        before = {rank: set(inputs) for rank, inputs in held.items()}
        for arc, at in moves:
            if at == step:
                held[int(instance.arcs.head[arc])] |= before[int(instance.arcs.tail[arc])]
    return all(len(inputs) == instance.ranks for inputs in held.values())


def least_cost(instance: Instance, steps: int, price: dict[Move, int]) -> int | None:
    """The least that sends cost over which every input gets everywhere, of all sets of sends."""
    moves = list(itertools.product(range(len(instance.arcs)), range(steps)))
    cost = {move: sum(price[bond, move[1]] for bond in instance.arcs.paths[move[0]]) for move in moves}
    least = None
    for chosen in itertools.chain.from_iterable(itertools.combinations(moves, k) for k in range(len(moves) + 1)):
        total = sum(cost[move] for move in chosen)
        if (least is None or total < least) and spreads(instance, chosen):
            least = total
    return least


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 3))
def test_no_set_of_sends_costs_less_than_trees_and_pairs_say(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    machine = random_machine(rng, 3)
    try:
        instance = instance_of(machine, Collective("allgather", 3))
    except Invalid:
        assume(False)  # some rank is out of reach
    assume(instance.arcs.exhaustive and len(instance.arcs) * steps <= 12)
    moves = list(itertools.product(range(len(instance.bonds)), range(steps)))
    lengths = [{move: rng.choice([0, 0, 1, 2, 5]) for move in moves} for _ in range(3)]
    trees = tuple(
        (rng.randrange(3), rng.random() < 0.5, tuple((b, s, n) for (b, s), n in table.items())) for table in lengths
    )
    price = {move: sum(table[move] for table in lengths) for move in moves}
    assume(any(price.values()))
    prices = tuple((b, s, n) for (b, s), n in price.items())
    least = least_cost(instance, steps, price)
    for dual in (TreeDual(steps, prices, trees), TreeDual(steps, prices)):
        try:
            value = evaluate_tree_dual(instance, dual).value
        except Invalid as error:
            assert "out of reach" in str(error)  # noqa: PT017
            assert least is None
        else:
            assert least is None or value <= least


@pytest.mark.parametrize(("spec", "steps"), [("line:ranks=3", 2), ("ring:ranks=3", 2), ("ring:ranks=3", 3)])
def test_with_equal_prices_a_pair_is_as_cheap_as_sends_can_be(spec: str, steps: int) -> None:
    instance = allgather(spec)
    moves = list(itertools.product(range(len(instance.bonds)), range(steps)))
    dual = TreeDual(steps, tuple((bond, step, 1) for bond, step in moves))
    assert evaluate_tree_dual(instance, dual).value == least_cost(instance, steps, dict.fromkeys(moves, 1)) == 4


def test_a_dual_that_breaks_a_rule_is_refused() -> None:
    instance = allgather("ring:ranks=4")
    dual = price_roots(instance, group_of(instance), 2, lambda _: None)
    assert dual is not None
    assert evaluate_tree_dual(instance, dual).rounds_per_part == 1
    root, toward, rows = dual.trees[0]
    (bond, step, length), *others = rows
    for wrong in (
        TreeDual(2, dual.prices, ((root, toward, ((bond, step, length + 1), *others)), *dual.trees[1:])),
        TreeDual(2, dual.prices, ((4, toward, rows), *dual.trees[1:])),
        TreeDual(2, ((0, 0, -1), *dual.prices), dual.trees),
        TreeDual(2, ((0, 2, 1), *dual.prices), dual.trees),
        TreeDual(2, ()),
    ):
        with pytest.raises(Invalid, match="certificate"):
            evaluate_tree_dual(instance, wrong)


def test_pairs_forbid_only_what_does_not_exist() -> None:
    """Two steps on a ring of 4: recursive doubling takes 8 sends; pairs of trees, 6 sends each, need 3 steps."""
    instance = allgather("ring:ranks=4")
    assert price_pairs(instance, (3, 2, 2), None)[0]
    assert price_pairs(instance, (4, 3, 3), None)[0] is None  # exists
    assert price_pairs(instance, (4, 3, 3), 1)[0] is None  # no effort left


@pytest.mark.slow
def test_what_pairs_of_trees_forbid_is_refuted_and_makes_others_optimal() -> None:
    """DGX-1: 24 chunks in 7 rounds fill all links with 14 sends per chunk, but not in 5 steps."""
    figures = {"chunks": 24, "steps": 5, "rounds": 7}
    with pytest.raises(Infeasible, match="each chunk goes up one tree and down another"):
        antiphon.plan("allreduce", "dgx1v_sccl", planner="sccl", options=figures)
    found = antiphon.plan(
        "allreduce", "dgx1v_sccl", planner="sccl", options={"chunks": 17, "steps": 5, "rounds": 5}
    )  # fmt: skip
    assert antiphon.verify(found, proof=True)
    certificate = found.entries[0].schedule.provenance["certificate"]
    assert certificate["proof"] == "proved-optimal-for-k"
    (refuted,) = certificate["refuted"]
    assert (refuted["chunks"], refuted["rounds"]) == (24, 7)
    dual, *others = refuted["duals"]
    cheaper = {**dual, "prices": [[bond, step, 1] for bond, step, _ in dual["prices"]]}
    for change in ({"duals": others}, {"duals": [cheaper, *others]}, {"how": "search"}, {"chunks": 25}):
        wrong = {**certificate, "refuted": [{**refuted, **change}]}
        with pytest.raises(Invalid, match="certificate"):
            check_certificate(found.topology, found.collective, wrong)
