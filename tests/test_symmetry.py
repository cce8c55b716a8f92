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
DGX1V_OTHERWISE = ("02112000", "20120100", "11020020", "12200001", "20000211", "01002012", "00201102", "00011220")
DGX1P = ("01111000", "10110100", "11010010", "11100001", "10000111", "01001011", "00101101", "00011110")


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


def test_keys_agree_exactly_with_brute_force_over_many_small_machines() -> None:
    """Equal keys exactly where some permutation takes one machine to the other."""
    rng = random.Random(5)
    by_key: dict[str, set[object]] = {}
    by_form: dict[object, set[str]] = {}
    for _ in range(examples(400)):
        pairs = [(a, b) for a in range(4) for b in range(4) if a != b and rng.random() < 0.5]
        machine = build("four", 4, [(a, b, rng.choice([LINK, LINK, OTHER])) for a, b in pairs] or [(0, 1, LINK)])
        form = min(str(sorted(map(str, shape(machine, to)[1]))) for to in permutations(machine))  # type: ignore[call-overload]
        key = canonical(machine)[1]
        by_key.setdefault(key, set()).add(form)
        by_form.setdefault(form, set()).add(key)
    assert len(by_key) > examples(100)
    assert all(len(forms) == 1 for forms in by_key.values())
    assert all(len(keys) == 1 for keys in by_form.values())


def test_all_of_a_link_type_and_the_bandwidth_of_a_limit_count() -> None:
    kinds = [LINK, replace(LINK, kind="x"), replace(LINK, bandwidth=Fraction(3)), replace(LINK, latency=1e-9)]
    keys = {canonical(build("pair", 2, [(0, 1, kind)]))[1] for kind in kinds}
    assert len(keys) == 4
    two_types = build("two", 4, both_ways([(0, 1)], LINK) + both_ways([(2, 3)], kinds[3]))
    assert len(group(automorphisms(two_types), 4)) == 4
    pair = build("pair", 2, both_ways([(0, 1)], LINK))
    even, odd = (
        replace(pair, limits=(SharedLimit("a", (0,), Fraction(5)), SharedLimit("b", (1,), Fraction(other))))
        for other in (5, 7)
    )
    assert canonical(even)[1] != canonical(odd)[1]
    assert (len(automorphisms(even)), len(automorphisms(odd))) == (1, 0)


def test_ranks_and_switches_are_told_apart() -> None:
    line = both_ways([(0, 1), (1, 2)], LINK)
    end, middle = build("a", 2, line, switches=1), build("b", 2, both_ways([(0, 2), (1, 2)], LINK), switches=1)
    assert canonical(end)[1] != canonical(middle)[1]
    assert automorphisms(end) == ()
    assert [g.tolist() for g in automorphisms(middle)] == [[1, 0, 2]]


def test_which_parallel_link_is_limited_counts() -> None:
    links = [(0, 1, LINK), (0, 1, OTHER), (1, 0, LINK), (1, 0, OTHER)]
    one, other = (build("x", 2, links, limits=[SharedLimit("l", (i,), Fraction(7))]) for i in (0, 1))
    assert canonical(one)[1] != canonical(other)[1]
    assert canonical(one)[1] == canonical(build("x", 2, links, limits=[SharedLimit("l", (2,), Fraction(7))]))[1]
    together = [SharedLimit("l", (0, 1), Fraction(7))], [SharedLimit("l", (0, 3), Fraction(7))]
    keys = {canonical(build("x", 2, links, limits=limits))[1] for limits in together}
    assert len(keys) == 2


def test_the_eight_gpu_machine_in_two_numberings() -> None:
    first, second, older = box(DGX1V), box(DGX1V_OTHERWISE), box(DGX1P)
    assert canonical(first)[1] == canonical(second)[1] != canonical(older)[1]
    assert len(group(automorphisms(first), 8)) == len(group(automorphisms(second), 8)) == 4
    to = np.argsort(canonical(second)[0])[canonical(first)[0]]
    assert shape(first, tuple(to.tolist())) == shape(second, tuple(range(8)))


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


def test_the_direction_of_the_library_is_learnt() -> None:
    """Vertices of three colours must be numbered by colour, whichever way the library tells it."""
    machine = build("none", 3, [])
    label, key = canonical(machine, [1, 2, 0])
    assert label.tolist() == [1, 2, 0]
    assert key == canonical(machine, [0, 1, 2])[1] != canonical(machine, [0, 1, 1])[1]


def test_a_machine_without_links() -> None:
    machine = build("none", 3, [])
    assert len(group(automorphisms(machine), 3)) == 6
    assert canonical(machine)[1] != canonical(build("none", 2, []))[1]
    assert link_map(machine, [1, 2, 0]).tolist() == []
