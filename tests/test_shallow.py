"""Planner `shallow`: what two steps around a switch come to, depths, random machines, what it refuses."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from entries import alpha_beta, shallow
from generate import collective as random_collective
from generate import topology as random_machine
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quick import crossed, examples, in_turn, some

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Invalid, Unsupported
from antiphon.planners.shared.reach import Hop
from antiphon.planners.shared.tree_schedules import spread_trees
from antiphon.planners.trees.bounded import BOUNDED, PricedTreeGrower, pack_bounded, symmetries_fixing_root
from antiphon.planners.trees.shallow import delay_hops, quick_links
from antiphon.planners.trees.to_schedule import SymmetricTrees
from antiphon.select.limits import least_times
from antiphon.topologies import topology

GB = 10**9


def planned(machine: Topology, wanted: Collective, nbytes: int | None = None, **options: int) -> Schedule:
    made = next(shallow(Request(machine, wanted, nbytes=nbytes), **options))
    verify(made, machine).or_raise()
    return made


def inverse(made: Schedule, machine: Topology) -> Fraction:
    """SCCL's R/C."""
    wanted = made.collective
    return timeline(made, machine).total * machine.unit * wanted.buffer_weight / wanted.input_weight


@pytest.mark.parametrize(
    ("spec", "ratio"),
    in_turn(
        [
            ("dgx-a100", Fraction(7, 48)),
            ("star:ranks=5", Fraction(8, 5)),
            pytest.param("star:ranks=16", Fraction(15, 8), marks=pytest.mark.slow),
        ]
    ),
)
@pytest.mark.parametrize("kind", in_turn(["broadcast", "reduce"], 2))
def test_two_steps_around_a_switch(spec: str, ratio: Fraction, kind: str) -> None:
    """A scatter of equal parts, then each rank (the root, too) sends its part to all: 2 (P - 1) / P of the data."""
    machine = topology(spec)
    made = planned(machine, Collective(kind, machine.ranks), steps=2)
    assert made.steps == 2
    assert inverse(made, machine) == ratio


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "kind", "most"),
    in_turn(
        [
            ("ss24", "broadcast", 1.25),
            ("dgx1v", "broadcast", 1.05),
            ("dgx-a100", "reduce", 1.05),
            ("ss24", "reduce", 1.25),
        ],
        4,
    ),
)
def test_a_gigabyte(spec: str, kind: str, most: float) -> None:
    machine = topology(spec)
    wanted = Collective(kind, machine.ranks)
    made = planned(machine, wanted, GB)
    assert alpha_beta(made, machine)(GB).seconds <= most * float(bound(machine, wanted).seconds(GB))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "nbytes"), crossed(["broadcast", "reduce"], [2**20, 2**22]))
def test_a_ring_at_its_bound(kind: str, nbytes: int) -> None:
    """The shorter branch of a tree may start later, so that no link idles."""
    machine = topology("ring:ranks=8")
    wanted = Collective(kind, machine.ranks)
    least = least_times(wanted, machine, bound(machine, wanted), [nbytes], "alpha-beta")[nbytes]
    made = planned(machine, wanted, nbytes)
    assert least <= alpha_beta(made, machine)(nbytes).seconds * (1 + 1e-9) <= 1.004 * least


def test_hops_are_delayed_to_the_last_step_that_serves_all_below() -> None:
    """0 -> 1 -> 2 -> 3 and 0 -> 4 -> 5, 4 -> 6, 0 -> 7."""
    parents = {1: 0, 2: 1, 3: 2, 4: 0, 5: 4, 6: 4, 7: 0}
    depths = {1: 1, 2: 2, 3: 3, 4: 1, 5: 2, 6: 2, 7: 1}
    delayed = delay_hops(tuple((rank, Hop(parent, (), depths[rank])) for rank, parent in parents.items()))
    assert {rank: hop.depth for rank, hop in delayed} == {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3, 7: 3}
    assert [(rank, hop.parent) for rank, hop in delayed] == list(parents.items())


def test_slow_ways_are_left_out_where_quick_ones_do() -> None:
    """On rails no spine is needed; nor is anything quicker than the rest where all ways take as long."""
    rails = topology("cluster:box=hgx-h100,boxes=2,fabric=rail")
    ranks = list(range(rails.ranks))
    goal = float(bound(rails, Collective("broadcast", rails.ranks)).bytes_per_second or 0)
    links = quick_links(rails, 0, ranks, goal)
    assert links is not None
    spine = {node for node, name in enumerate(rails.places) if "spine" in name}
    assert spine
    left = set(range(rails.links)) - set(links.tolist())
    assert left == {
        link for link in range(rails.links) if {int(rails.link_src[link]), int(rails.link_dst[link])} & spine
    }
    found = pack_bounded(PricedTreeGrower(rails, 0, ranks, symmetries_fixing_root(rails, 0, ranks), links), 4, goal)
    assert found is not None
    assert found.rate >= goal * 0.999
    assert not {link for tree in found.representatives for _, hop in tree.hops for link in hop.path} & left
    assert quick_links(topology("dgx1v"), 0, list(range(8)), 1.0) is None


@pytest.mark.slow
def test_128_and_512_ranks() -> None:
    machine = topology("cluster:box=dgx-a100,boxes=16")
    wanted = Collective("broadcast", 128)
    for nbytes, seconds in ((2**20, 18e-6), (GB, 5.3e-3)):
        assert alpha_beta(planned(machine, wanted, nbytes), machine)(nbytes).seconds <= seconds
    large = topology("cluster:box=dgx-a100,boxes=64")
    made = planned(large, Collective("broadcast", 512), pieces=1)
    assert made.steps <= 8


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@example(1032732)  # links a millionth as wide as the unit
@given(st.integers(0, 2**32 - 1))
def test_random_machines(seed: int) -> None:
    """Switches, shared limits, one-way links, groups with relays; any options."""
    rng = random.Random(seed)
    machine = random_machine(rng, rng.randint(2, 6))
    wanted = random_collective(rng, machine.ranks, rng.choice(["broadcast", "reduce", "allreduce"]))
    options = rng.choice([{}, {"pieces": 3}, {"steps": rng.randint(1, 9)}, {"depth": rng.randint(1, 4)}])
    try:
        found = list(shallow(Request(machine, wanted, nbytes=rng.choice([None, 1000, 10**8])), **options))
    except (Unsupported, Infeasible):
        assert options or len(wanted.roots) > 1
        return
    most = bound(machine, wanted).bytes_per_second
    for made in found:
        verify(made, machine).or_raise()
        rate = throughput(made, machine)
        assert most is None or (rate is not None and rate <= most)
        assert made.steps <= options.get("steps", made.steps)
    forests = found[0].provenance["found"]["forests"]
    assert [one["depth"] for one in forests] == sorted((one["depth"] for one in forests), reverse=True)
    assert all(one["depth"] <= options.get("depth", one["depth"]) for one in forests)


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_images_in_columns_are_images_one_by_one(seed: int) -> None:
    """The schedule of trees and their images is that of all trees, and different images are counted once."""
    rng = random.Random(seed)
    machine = topology(rng.choice(["star:ranks=6", "mesh:dims=3x3", "hypercube:ranks=8", "pcie8", "dgx1v"]))
    ranks = list(range(machine.ranks))
    group = symmetries_fixing_root(machine, 0, ranks)
    plain = pack_bounded(PricedTreeGrower(machine, 0, ranks), rng.randint(2, 4), 0.0)
    if plain is None:
        return
    simple = [replace(tree, rate=Fraction(number)) for number, tree in enumerate(plain.trees, 1)]  # shares not rounded
    found = SymmetricTrees.of_trees(machine, simple, group)
    trees = found.trees
    assert len({tree.hops for tree in trees}) == len(trees) == len(found)
    assert sum((tree.rate for tree in trees), Fraction(0)) == found.rate == sum(tree.rate for tree in simple)
    wanted = Collective("broadcast", machine.ranks)
    made, other = found.to_schedule(wanted), spread_trees(wanted, trees)
    verify(made, machine).or_raise()
    assert made.transfers == other.transfers
    assert throughput(made, machine) == throughput(other, machine)


@pytest.mark.parametrize("spec", in_turn(["torus:dims=4x4", "cluster:box=pcie8,boxes=2,fabric=rail"], 2))
def test_known_trees_are_gone_on_from(spec: str) -> None:
    """What symmetries find from trees that were found without them is no slower than these."""
    machine = topology(spec)
    ranks = list(range(machine.ranks))
    goal = float(bound(machine, Collective("broadcast", machine.ranks)).bytes_per_second or 0)
    plain = pack_bounded(PricedTreeGrower(machine, 0, ranks), 5, goal)
    assert plain is not None
    found = pack_bounded(
        PricedTreeGrower(machine, 0, ranks, symmetries_fixing_root(machine, 0, ranks)), 5, goal, plain.representatives
    )
    assert found is not None
    assert found.rate >= plain.rate * Fraction(9999, 10000)


def test_the_search_ends_when_its_effort_is_spent() -> None:
    machine = topology("torus:dims=4x4")
    ranks = list(range(machine.ranks))
    view = PricedTreeGrower(machine, 0, ranks)
    view.spent = BOUNDED.max_effort
    found = pack_bounded(view, 6, float("inf"))
    assert found is not None
    assert len(found) == 1


@pytest.mark.slow
def test_options_give_the_schedule_again() -> None:
    machine = topology("star:ranks=5")
    wanted = Collective("broadcast", 5)
    for made in some([*shallow(Request(machine, wanted))]):
        assert next(shallow(Request(machine, wanted), **made.provenance["options"])).same_as(made)


@pytest.mark.slow
def test_an_allreduce_where_no_link_has_one_back() -> None:
    """Both forests are then looked for, each on its own machine."""
    wire = LinkType("nvlink", Fraction(1), 1e-6)
    machine = build("one way", 5, [*((a, (a + 1) % 5, wire) for a in range(5)), (0, 3, wire), (3, 1, wire)])
    for options in ({"pieces": 2}, {"steps": 12}, {"depth": 4}):
        made = planned(machine, Collective("allreduce", 5), GB, **options)
        assert max(one["depth"] for one in made.provenance["found"]["forests"]) <= 4


@pytest.mark.slow
def test_relays_pass_on_what_they_do_not_want() -> None:
    machine = topology("ring:ranks=8")
    made = planned(machine, Collective("broadcast", 8, (0, 2, 4), (0,)), pieces=4)
    assert {1, 3} & set(made.src.tolist())


def test_what_is_refused() -> None:
    machine = topology("ring:ranks=4")
    with pytest.raises(Unsupported, match="within depth 1"):
        planned(machine, Collective("broadcast", 4), depth=1)
    with pytest.raises(Unsupported, match="one root"):
        planned(machine, Collective("broadcast", 4, roots=(0, 1)))
    with pytest.raises(Invalid, match="option depth"):
        planned(machine, Collective("broadcast", 4), depth=0)


def test_small_messages_leave_slow_paths_to_the_last_step_without_a_size() -> None:
    """No broadcast of 64 KiB is faster on this tree of switches, by a linear program over all trees in time."""
    machine = topology("tree:fanouts=3x(4+2+0)")
    optimum = 6e-6 + 48 / 23 * 2**16 / 25e9  # a step over two links of 1 us, then one over four
    seconds = [
        alpha_beta(made, machine)(2**16).seconds for made in shallow(Request(machine, Collective("broadcast", 7)))
    ]
    assert min(seconds) == pytest.approx(optimum, rel=1e-3)
