"""Allgathers of products, from those of their factors."""

import random
from fractions import Fraction

import pytest
import quick
from entries import sccl
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import check_certificate
from antiphon.core.ksync.instance import instance_of
from antiphon.core.request import Request
from antiphon.core.reshape import join, relabel
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.planners.synth.product import by_product, factor_machine
from antiphon.planners.synth.search import SearchState
from antiphon.planners.synth.task import rounds_of, schedule_of

Edge = tuple[int, int]


def product_of(first: dict[Edge, int], second: dict[Edge, int], sizes: tuple[int, int], seed: int) -> Topology:
    """The product of two machines given by undirected edges with units, its ranks in random order."""
    m, n = sizes
    name = list(range(m * n))
    random.Random(seed).shuffle(name)
    links = []
    for (a, b), units in first.items():
        for h in range(n):
            links += both_ways([(name[a * n + h], name[b * n + h])], LinkType("link", Fraction(units)))
    for (a, b), units in second.items():
        for g in range(m):
            links += both_ways([(name[g * n + a], name[g * n + b])], LinkType("link", Fraction(units)))
    return build("product", m * n, links, unit=1)


def machine(ranks: int, picked: list[int], units: list[int]) -> dict[Edge, int]:
    """A connected machine: a tree by `picked`, and units for its edges in turn."""
    edges = {(picked[i] % (i + 1), i + 1) for i in range(ranks - 1)} | {(0, ranks - 1)}
    return {edge: units[i % len(units)] for i, edge in enumerate(sorted(edges))}


def boxes_in_a_ring(boxes: int, units: int = 1) -> Topology:
    box = antiphon.topology("dgx1v_sccl")
    link = LinkType("ib", box.unit * units)
    pairs = [(0, 1)] if boxes == 2 else [(i, (i + 1) % boxes) for i in range(boxes)]
    return join([box] * boxes, cables=[((a, g), (b, g), link) for a, b in pairs for g in range(8)])


def search_of(topology: Topology) -> SearchState:
    return SearchState(instance_of(topology, Collective("allgather", topology.ranks)))


@pytest.mark.parametrize(
    ("topology", "sizes"),
    [
        ("torus:dims=3x5", {3, 5}),
        ("torus:dims=4x4", {4}),
        ("mesh:dims=2x3", {2, 3}),
        ("hypercube:ranks=16", {4}),
        ("hypercube:ranks=32", {4, 8}),
    ],
)
def test_factors_of_grids(topology: str, sizes: set[int]) -> None:
    found = factor_machine(search_of(antiphon.topology(topology)).instance)
    assert found is not None
    assert set(found.sizes) == sizes


@pytest.mark.parametrize("topology", ["ring:ranks=5", "full:ranks=7", "dgx1v_sccl", "star:ranks=4", "dgx1v"])
def test_what_is_no_product_is_seen_as_none(topology: str) -> None:
    assert factor_machine(search_of(antiphon.topology(topology)).instance) is None


def test_one_wider_link_makes_it_no_product() -> None:
    grid = antiphon.topology("mesh:dims=3x3")
    ends = zip(grid.link_src.tolist(), grid.link_dst.tolist(), strict=True)
    links = [(a, b, LinkType("link", Fraction(2 if i == 0 else 1))) for i, (a, b) in enumerate(ends)]
    assert factor_machine(search_of(build("grid", 9, links, unit=1)).instance) is None


sizes = st.integers(2, 3 if quick.ordinary else 4)


@settings(max_examples=examples(10))
@given(
    sizes,
    sizes,
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_any_product_gets_a_right_allgather(m: int, n: int, picked: list[int], units: list[int], seed: int) -> None:
    """Found in whatever numbering, right by the verifier, and its proof holds."""
    topology = product_of(machine(m, picked, units), machine(n, picked[::-1], units[::-1]), (m, n), seed)
    search = search_of(topology)
    assert factor_machine(search.instance) is not None
    point = by_product(search)
    if point is None:  # whole numbers of chunks do not always work out within bounds
        return
    assert sum(rounds_of(search.instance, point.moves)) == point.rounds
    assert not verify(schedule_of(search.instance, point.parts, point.moves), topology).fault
    floor = bound(topology, search.instance.collective).inverse
    assert point.bound_proof is not None
    assert point.bound_proof.worth.rounds_per_part == floor
    assert point.ratio >= floor


@pytest.mark.parametrize(
    "topology", in_turn(["torus:dims=3x5", "torus:dims=4x4", "hypercube:ranks=16", "torus:dims=2x3x4"], 6)
)
def test_products_of_optimal_allgathers_are_optimal(topology: str) -> None:
    search = search_of(antiphon.topology(topology))
    point = by_product(search)
    assert point is not None
    assert point.ratio == bound(search.instance.topology, search.instance.collective).inverse
    assert point.proof == "proved-optimal"


def test_two_boxes_joined_by_single_links() -> None:
    """Every link full in every round: 15 / 7."""
    search = search_of(boxes_in_a_ring(2))
    point = by_product(search)
    assert point is not None
    assert point.ratio == Fraction(15, 7)


@pytest.mark.slow
def test_four_boxes_in_a_ring_meet_the_bound() -> None:
    """What search alone does not find in minutes, whatever the ranks are called."""
    topology = boxes_in_a_ring(4)
    order = list(range(32))
    random.Random(5).shuffle(order)
    topology = relabel(topology, order)
    collective = Collective("allgather", 32)
    *_, last = sccl(Request(topology, collective, budget=60), cache=False)
    told = last.provenance["certificate"]
    assert Fraction(told["rounds"], told["chunks"]) == Fraction(31, 8)
    assert check_certificate(topology, collective, told).proved
    assert not verify(last, topology).fault
