"""Symmetries and canonical forms, judged by trying all permutations of small machines."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from generate import topologies
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn
from small_plans import full

from antiphon.core.reshape import Card, degrade, join, relabel
from antiphon.core.symmetry import automorphisms, canonical, link_map
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import Invalid

LINK = LinkType("nvlink", Fraction(25 * 10**9))
OTHER = LinkType("pcie", Fraction(25 * 10**9))

# How many links join each pair of GPUs of an eight-GPU machine, in two numberings, and of its predecessor.
DGX1V = ("01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120")


def box(rows: tuple[str, ...]) -> Topology:
    return build(
        "box", 8, [(a, b, LINK) for a, row in enumerate(rows) for b, n in enumerate(row) for _ in range(int(n))]
    )


def torus(*dims: int) -> Topology:
    size = int(np.prod(dims))
    pairs = []
    for node in range(size):
        at = np.unravel_index(node, dims)
        for axis, length in enumerate(dims):
            to = [(x + 1) % length if i == axis else x for i, x in enumerate(at)]
            pairs.append((node, int(np.ravel_multi_index(to, dims))))
    return build("torus", size, both_ways(pairs, LINK))


def shape(machine: Topology, to: tuple[int, ...]) -> tuple[object, ...]:
    """All that counts of a machine after renumbering, by brute force: links grouped by the limits they are under.

    Limits are told apart by what they hold; that is the same under all renumberings of parallel links.
    """
    names = sorted(
        (limit.bandwidth, sorted((to[machine.link_src[i]], to[machine.link_dst[i]]) for i in limit.links))
        for limit in machine.limits
    )
    links = Counter(
        (to[machine.link_src[i]], to[machine.link_dst[i]], machine.types[machine.link_type[i]])
        for i in range(machine.links)
    )
    return tuple(map(repr, names)), frozenset(links.items())


def permutations(machine: Topology) -> Iterator[tuple[int, ...]]:
    for ranks in itertools.permutations(range(machine.ranks)):
        for switches in itertools.permutations(range(machine.ranks, machine.nodes)):
            yield (*ranks, *switches)


def group(generators: tuple[np.ndarray, ...], nodes: int) -> set[tuple[int, ...]]:
    """All products of the generators."""
    found = {tuple(range(nodes))}
    todo = list(found)
    while todo:
        at = todo.pop()
        for generator in generators:
            product = tuple(int(generator[node]) for node in at)
            if product not in found:
                found.add(product)
                todo.append(product)
    return found


def is_symmetry(machine: Topology, to: tuple[int, ...]) -> bool:
    """By exhaustive search for a matching of links (parallel ones in any order) that takes limits to limits."""
    if shape(machine, to) != shape(machine, tuple(range(machine.nodes))):
        return False
    wanted = Counter((limit.bandwidth, frozenset(limit.links)) for limit in machine.limits)
    if not wanted:
        return True
    bundles: dict[tuple[int, int, LinkType], list[int]] = {}
    for i in range(machine.links):
        ends = (int(machine.link_src[i]), int(machine.link_dst[i]), machine.types[machine.link_type[i]])
        bundles.setdefault(ends, []).append(i)
    choices = []
    for (a, b, kind), links in bundles.items():
        choices.append([list(zip(links, p, strict=True)) for p in itertools.permutations(bundles[to[a], to[b], kind])])
    for choice in itertools.product(*choices):
        image = dict(itertools.chain.from_iterable(choice))
        moved = Counter((x.bandwidth, frozenset(image[i] for i in x.links)) for x in machine.limits)
        if moved == wanted:
            return True
    return False


def small(seed: int) -> Topology:
    """Small machines with many symmetries, parallel links of two types and limits."""
    rng = random.Random(seed)
    ranks, switches = rng.choice([(3, 0), (4, 0), (3, 1), (2, 2), (5, 0)])
    nodes, links = ranks + switches, []
    for a in range(nodes):
        for b in range(nodes):
            if a != b and rng.random() < 0.7:
                links += [(a, b, rng.choice([LINK, LINK, LINK, OTHER])) for _ in range(rng.choice([1, 1, 1, 2]))]
    if rng.random() < 0.5:  # make it even
        links += [(b, a, kind) for a, b, kind in links]
        links = links[:24]
    links = links or [(0, 1, LINK)]
    limits = []
    for _ in range(rng.choice([0, 0, 1, 2])):
        chosen = rng.sample(range(len(links)), rng.randint(1, min(3, len(links))))
        limits.append(SharedLimit("x", tuple(chosen), Fraction(rng.choice([5, 5, 7]))))
    return build("small", ranks, links, switches=switches, limits=limits)


@pytest.mark.parametrize("block", in_turn([0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))], 2))
def test_symmetries_are_exactly_those_found_by_trying_all_permutations(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        machine = small(seed)
        expected = {to for to in permutations(machine) if is_symmetry(machine, to)}
        assert group(automorphisms(machine), machine.nodes) == expected, seed
        for to in permutations(machine):
            if to in expected:
                check_link_map(machine, np.array(to))
            else:
                with pytest.raises(Invalid, match="not a symmetry"):
                    link_map(machine, to)


def check_link_map(machine: Topology, to: np.ndarray) -> None:
    image = link_map(machine, to)
    assert sorted(image) == list(range(machine.links))
    assert np.array_equal(machine.link_src[image], to[machine.link_src])
    assert np.array_equal(machine.link_dst[image], to[machine.link_dst])
    assert [machine.types[t] for t in machine.link_type[image]] == [machine.types[t] for t in machine.link_type]
    before = Counter((limit.bandwidth, frozenset(limit.links)) for limit in machine.limits)
    assert Counter((x.bandwidth, frozenset(image[list(x.links)].tolist())) for x in machine.limits) == before


@settings(max_examples=examples(150))
@given(topologies(10), st.randoms(use_true_random=False))
def test_renumbered_machines_have_one_key_and_one_form(machine: Topology, rng: random.Random) -> None:
    ranks, switches = list(range(machine.ranks)), list(range(machine.ranks, machine.nodes))
    rng.shuffle(ranks)
    rng.shuffle(switches)
    order = list(range(machine.links))
    rng.shuffle(order)
    place = np.argsort(order)
    limits = [replace(x, links=tuple(int(place[i]) for i in x.links), name="other") for x in machine.limits]
    rng.shuffle(limits)
    shuffled = build(
        "other",
        machine.ranks,
        [(int(machine.link_src[i]), int(machine.link_dst[i]), machine.types[machine.link_type[i]]) for i in order],
        switches=machine.switches,
        limits=limits,
    )
    moved = relabel(shuffled, [*ranks, *switches])
    (first, key), (second, other) = canonical(machine), canonical(moved)
    assert key == other
    assert shape(machine, tuple(first.tolist())) == shape(moved, tuple(second.tolist()))
    assert sorted(first[: machine.ranks]) == list(range(machine.ranks))


@settings(max_examples=examples(100))
@given(topologies(6), st.integers(0, 10**6))
def test_a_changed_machine_has_another_key(machine: Topology, pick: int) -> None:
    """Changes that no renumbering undoes: they alter a count or a multiset of bandwidths."""
    link = pick % machine.links
    key = canonical(machine)[1]
    slower = degrade(machine, links=[link], slower=1000003)
    fewer = degrade(machine, links=[link], remove=True)
    limited = replace(machine, limits=(*machine.limits, SharedLimit("new", (link,), Fraction(1, 977))))
    keys = {key, *(canonical(changed)[1] for changed in (slower, fewer, limited))}
    assert len(keys) == 4
    renamed = replace(machine, name="n", places=tuple(map(str, range(machine.nodes))), unit=Fraction(5))
    assert canonical(renamed)[1] == key


def test_large_machines_are_within_reach() -> None:
    assert len(group(automorphisms(torus(4, 4)), 16)) == 384  # the 4 x 4 torus is the four-cube
    wide = torus(8, 8, 8)
    orbit = {0}
    while len(more := orbit | {int(g[node]) for g in automorphisms(wide) for node in orbit}) > len(orbit):
        orbit = more
    assert len(orbit) == 512
    mesh = full(64)
    order = np.random.default_rng(1).permutation(64)
    assert len(automorphisms(mesh)) == 63  # transpositions, one per further rank
    assert canonical(mesh)[1] == canonical(relabel(mesh, order))[1]
    check_link_map(mesh, order)
    both = {tuple(np.sort(order)[g].tolist()) for g in automorphisms(torus(3, 5))}
    assert len(group(tuple(np.array(g) for g in both), 15)) == 6 * 10


def cluster(boxes: int, order: list[int]) -> Topology:
    """Eight-GPU machines at one switch, the boxes in some order, each with a card."""
    ib = LinkType("ib", Fraction(12_500_000_000))
    return join(
        [box(DGX1V)] * boxes,
        switches=["ib"],
        cables=[((b, g), "ib", ib) for b in order for g in range(8)],
        cards=[Card(f"nic{b}", tuple((b, g) for g in range(8)), "12.5GB/s") for b in order],
    )


def test_a_cluster_of_equal_boxes_does_not_explode() -> None:
    """Without telling orbits apart beforehand, each box more doubles the time: 2^40 here."""
    machine = cluster(40, list(range(40)))
    rng = np.random.default_rng(3)
    ranks = (rng.permutation(40)[:, None] * 8 + np.arange(8)).reshape(-1)
    moved = relabel(cluster(40, rng.permutation(40).tolist()), [*ranks, 320])
    assert canonical(machine)[1] == canonical(moved)[1]
    check_link_map(machine, automorphisms(machine)[-1])
