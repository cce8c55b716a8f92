"""Parts of links for trees in and out, by cuts: held against trees packed one by one; machines with dead links."""

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from entries import trees
from generate import topology as random_machine
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packing_cases import check_trees, overloaded
from quick import examples

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.reshape import degrade, reverse
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees import portions
from antiphon.planners.trees.columns import pack_allreduce_lp, pack_lp
from antiphon.planners.trees.portions import ROUNDED_DENOMINATOR, Portioned, at_full_rate, pack_by_cuts
from antiphon.topologies import topology

NEAR = Fraction(97, 100)  # rounding to parts loses some


def machines(seed: int) -> Topology:
    rng = random.Random(seed)
    return random_machine(rng, rng.randint(2, 6))


def weights(trees: Sequence[SpanningTree], ranks: int) -> list[Fraction]:
    return [sum((tree.rate for tree in trees if tree.root == rank), Fraction(0)) for rank in range(ranks)]


def rate_of(machine: Topology, made: Portioned) -> Fraction:
    fast = at_full_rate(machine, [tree for some in made.trees.values() for tree in some])
    assert not overloaded(fast, machine)
    return sum((tree.rate for tree in fast), Fraction(0)) / len(made.trees)


def too_narrow(machine: Topology, rate: Fraction) -> bool:
    """Whether some link carries less than a part of what the parts are of, so that rounding may lose a cut."""
    return min(kind.bandwidth for kind in machine.types) * ROUNDED_DENOMINATOR < rate * machine.ranks


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1))
@example(1645)
def test_in_and_out_as_fast_as_trees_packed_one_by_one(seed: int) -> None:
    """Switches, shared limits, one-way links: the trees share the links, roots weigh the same both ways."""
    machine = machines(seed)
    made = pack_by_cuts(machine, None, (False, True))
    exact = pack_allreduce_lp(machine, range(machine.ranks))
    if made is None:
        assert too_narrow(machine, exact.rate)
        return
    for turned, some in made.trees.items():
        way = reverse(machine) if turned else machine
        check_trees(at_full_rate(way, some), way, range(machine.ranks))
    assert weights(made.trees[False], machine.ranks) == weights(made.trees[True], machine.ranks)
    assert sum(weights(made.trees[False], machine.ranks)) == made.total
    assert exact.rate * NEAR <= rate_of(machine, made) <= exact.bound


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_out_of_several_roots_as_fast_as_trees_packed_one_by_one(seed: int) -> None:
    machine = machines(seed)
    rng = random.Random(seed)
    roots = rng.sample(range(machine.ranks), rng.randint(1, machine.ranks))
    demand = {root: rng.randint(1, 3) for root in roots}
    made = pack_by_cuts(machine, demand, (False,))
    exact = pack_lp(machine, demand, range(machine.ranks))
    if made is None:
        assert too_narrow(machine, exact.rate)
        return
    whole = sum(demand.values())
    assert weights(made.trees[False], machine.ranks) == [
        Fraction(demand.get(rank, 0) * made.total, whole) for rank in range(machine.ranks)
    ]
    assert exact.rate * NEAR <= rate_of(machine, made) / whole <= exact.bound


def test_two_gpus_off_their_switch() -> None:
    """They have their card alone: what goes in to it and what goes out of it are two things, so that sums and results
    go at once, at the speed of a card."""
    whole = topology("cluster:box=dgx-a100,boxes=2")
    ends = np.stack([whole.link_src, whole.link_dst])
    wide = np.array([kind.kind != "ib" for kind in whole.types])[whole.link_type]
    off = np.flatnonzero(((ends == 3) | (ends == 13)).any(axis=0) & wide)
    machine = degrade(whole, links=off.tolist(), remove=True)
    made = pack_by_cuts(machine, None, (False, True))
    assert made is not None
    most = bound(machine, Collective("allreduce", 16)).bytes_per_second
    assert most is not None
    assert rate_of(machine, made) >= most * NEAR


def test_a_switch_that_more_leaves_than_enters() -> None:
    """A switch copies nothing: of what it could pass on only what enters it is of use."""
    narrow, wide = LinkType("in", Fraction(1)), LinkType("out", Fraction(10))
    links = [(0, 12, narrow), *((12, rank, wide) for rank in range(1, 12))]
    ring = both_ways([(rank, (rank + 1) % 12) for rank in range(12)], LinkType("ring", Fraction(1, 100)))
    machine = build("odd", 12, [*links, *ring], switches=1)
    made = pack_by_cuts(machine, {0: 1}, (False,))
    exact = pack_lp(machine, {0: 1}, range(12))
    assert made is not None
    assert exact.rate * NEAR <= rate_of(machine, made) <= exact.rate


@pytest.mark.slow
def test_what_is_too_much_work_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network without any order needs ever more cuts; what was found before stands."""
    rng = random.Random(1)
    pairs = {(rank, (rank + 1) % 44) for rank in range(44)} | {
        (rank, other) for rank in range(44) for other in rng.sample([*{*range(44)} - {rank}], 2)
    }
    machine = build("any", 44, [(*pair, LinkType("wire", 10**9, 1e-6)) for pair in sorted(pairs)])
    assert pack_by_cuts(machine, None, (False, True)) is not None
    monkeypatch.setattr(portions, "MOST_WORK", 1000)
    assert pack_by_cuts(machine, None, (False, True)) is None
    made = next(trees(Request(machine, Collective("allreduce", 44))))
    assert verify(made, machine).fault is None
