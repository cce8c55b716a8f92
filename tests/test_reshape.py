"""Machines made from machines."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from generate import topologies
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.reshape import Card, degrade, join, keep, only, relabel, reverse
from antiphon.core.routes import switch_path
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import AntiphonError, Invalid

FAST = LinkType("nvlink", Fraction(50 * 10**9), 1e-6)
SLOW = LinkType("pcie", Fraction(10 * 10**9), 2e-6)


def ring(ranks: int = 4) -> Topology:
    return build("ring", ranks, both_ways([(i, (i + 1) % ranks) for i in range(ranks)], FAST))


def racks() -> Topology:
    """Ranks 0-1 below switch 4, ranks 2-3 below switch 5, both below switch 6; each rack's uplink is limited."""
    up = both_ways([(0, 4), (1, 4), (2, 5), (3, 5)], FAST) + both_ways([(4, 6), (5, 6)], SLOW)
    limits = [SharedLimit("rack0", (8, 9), Fraction(10**10)), SharedLimit("rank0", (0, 1, 2), Fraction(10**10))]
    places = [*(f"rack{i // 2}/gpu{i % 2}" for i in range(4)), "rack0/top", "rack1/top", "spine"]
    return build("racks", 4, up, switches=3, limits=limits, places=places)


def rows(topology: Topology, name: Any = None) -> Counter[tuple[int, int, LinkType]]:
    """The links as a multiset, with nodes under other names."""
    columns = (topology.link_src, topology.link_dst, topology.link_type)
    called = range(topology.nodes) if name is None else name
    return Counter(
        (called[a], called[b], topology.types[t]) for a, b, t in zip(*(c.tolist() for c in columns), strict=True)
    )


# ---- keep and only ----


def test_keep_renumbers_and_drops_switches_that_lead_nowhere() -> None:
    part = keep(racks(), [1, 0])
    assert (part.topology.ranks, part.topology.switches) == (2, 1)  # the spine and rack 1 lead nowhere now
    assert part.nodes == (0, 1, 4)
    assert part.links == (0, 1, 2, 3)
    assert part.topology.places == ("rack0/gpu0", "rack0/gpu1", "rack0/top")
    assert part.topology.limits == (SharedLimit("rank0", (0, 1, 2), Fraction(10**10)),)
    assert part.topology.types == (FAST,)
    assert part.topology.unit == racks().unit
    assert part.topology.name == "racks only 0,1"
    assert part.number(4) == 2
    with pytest.raises(Invalid, match="node 3 is not part of racks only 0,1"):
        part.number(3)


@given(topologies(), st.randoms(use_true_random=False))
def test_keep_and_only_agree_and_lose_nothing(machine: Topology, rng: Any) -> None:
    ranks = rng.sample(range(machine.ranks), rng.randint(1, machine.ranks))
    part = keep(machine, ranks)
    assert part.nodes[: len(ranks)] == tuple(sorted(ranks))
    same = rows(part.topology, part.nodes)
    assert same == rows(only(machine, ranks))
    assert same <= rows(machine)
    columns = ((machine.link_src, part.topology.link_src), (machine.link_dst, part.topology.link_dst))
    for all_ends, ends in columns:
        assert [part.nodes[node] for node in ends] == all_ends[list(part.links)].tolist()
    for a in range(len(ranks)):  # whoever could be reached through switches still can, in as few links
        for b in range(len(ranks)):
            if a != b:
                was = switch_path(machine, part.nodes[a], part.nodes[b])
                now = switch_path(part.topology, a, b)
                assert (was and len(was)) == (now and len(now))
    by_name = {limit.name: limit for limit in machine.limits}
    for limit in part.topology.limits:
        whole = by_name.pop(limit.name)
        assert [part.links[i] for i in limit.links] == [i for i in whole.links if i in part.links]
    assert not any(set(limit.links) & set(part.links) for limit in by_name.values())


@pytest.mark.parametrize(
    ("ranks", "complaint"), [([], "at least one"), ([0, 0], "twice"), ([4], "range"), ([-1], "range")]
)
@pytest.mark.parametrize("function", [keep, only])
def test_a_wrong_allocation_is_refused(function: Any, ranks: list[int], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        function(ring(), ranks)


# ---- degrade ----


def test_selections_narrow_each_other() -> None:
    both = build("two", 2, [(0, 1, FAST), (0, 1, SLOW), (1, 0, SLOW)])
    left = degrade(both, pairs=[(0, 1)], kind="pcie", links=[0, 1], remove=True)
    assert rows(left) == Counter({(0, 1, FAST): 1, (1, 0, SLOW): 1})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"pairs": [(0, 1)]}, "exactly one of"),
        ({"pairs": [(0, 1)], "remove": True, "slower": 2}, "exactly one of"),
        ({"remove": True}, "say which links"),
        ({"pairs": [(0, 3)], "remove": True}, "no link joins rank 0 and rank 3 of racks"),
        ({"pairs": [(0, 4), (5, 4)], "remove": True}, "no link joins switch rack1/top and switch rack0/top"),
        ({"pairs": [(0, 9)], "remove": True}, "node 9 is out of range"),
        ({"kind": "pcei", "remove": True}, "did you mean 'pcie'"),
        ({"links": [12], "remove": True}, r"link 12 is out of range \(0 to 11\)"),
        ({"links": [0], "kind": "pcie", "remove": True}, "no link of racks is named by every selection"),
        ({"links": [0], "slower": 1}, "greater than 1"),
        ({"links": [0], "slower": "x"}, "cannot read"),
        ({"links": [0], "to": "60GB/s"}, "as fast as '60GB/s' already"),
        ({"links": [0], "to": 0}, "greater than 0"),
    ],
)
def test_a_wrong_degradation_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(AntiphonError, match=complaint):
        degrade(racks(), **options)


# ---- join ----


def test_boxes_joined_over_switches_and_directly() -> None:
    ib = LinkType("ib", Fraction(12_500_000_000), 5e-6)
    star = build(
        "star", 2, both_ways([(0, 2), (1, 2)], SLOW), switches=1, limits=[SharedLimit("bus", (0, 2), Fraction(9))]
    )
    whole = join(
        [ring(3), star],
        name="pair",
        switches=["leaf"],
        cables=[((0, 0), "leaf", ib), ((1, 2), "leaf", ib)],
        links=[((0, 1), (1, 1), FAST)],
        cards=[Card("nic", ((0, 0), (1, 2)), "10GB/s"), Card("host", ((0, 0), (0, 1)), 8, duplex=False)],
    )
    assert (whole.name, whole.ranks, whole.switches) == ("pair", 5, 2)
    expected = rows(ring(3)) + rows(star, [3, 4, 5])
    expected += Counter([(0, 6, ib), (6, 0, ib), (5, 6, ib), (6, 5, ib), (1, 4, FAST)])
    assert rows(whole) == expected
    assert whole.places == (
        "box0/rank0",
        "box0/rank1",
        "box0/rank2",
        "box1/rank0",
        "box1/rank1",
        "box1/switch0",
        "leaf",
    )
    assert whole.limits == (
        SharedLimit("box1/bus", (6, 8), Fraction(9)),
        SharedLimit("nic out", (10, 12), Fraction(10**10)),
        SharedLimit("nic in", (11, 13), Fraction(10**10)),
        SharedLimit("host", (10, 14, 11), Fraction(8)),
    )
    assert [int(whole.link_src[i]) for i in whole.limits[1].links] == [0, 5]
    assert whole.unit == 10**10  # the slowest link
    inside = Card("one card", ((0, 0), (1, 0)), 7)  # traffic between its own ends stays on the card
    beside = join([star, star], cables=[((0, 0), (1, 0), ib), ((0, 1), (1, 0), ib)], cards=[inside])
    assert beside.limits[2:] == (
        SharedLimit("one card out", (11,), Fraction(7)),
        SharedLimit("one card in", (10,), Fraction(7)),
    )
    assert join([star], names=["a"], unit=Fraction(3)).places[2] == "a/switch0"
    assert join([star], unit=Fraction(3)).unit == 3


@given(topologies(), topologies())
def test_a_box_can_be_taken_out_again(a: Topology, b: Topology) -> None:
    whole = join([a, b])
    part = keep(whole, range(a.ranks, a.ranks + b.ranks), name=b.name).topology
    alone = keep(b, range(b.ranks), name=b.name).topology  # without switches that lead nowhere
    assert rows(part) == rows(alone)
    assert [limit.links for limit in part.limits] == [limit.links for limit in alone.limits]
    assert part.places == tuple(f"box1/{place}" for place in alone.places)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"names": ["a"]}, "expected a name for each of 2 boxes"),
        ({"names": ["a", "a"]}, "same name"),
        ({"switches": ["s", "s"]}, "same name"),
        ({"cables": [((0, 0), "x", FAST)], "switches": ["leaf"]}, "unknown switch to join at 'x'"),
        ({"cables": [((2, 0), (0, 0), FAST)]}, "box 2 is out of range"),
        ({"cables": [((0, 4), (1, 0), FAST)]}, "node of box 0 4 is out of range"),
        ({"cables": [(3, (1, 0), FAST)]}, r"expected \(box, node\)"),
        ({"cards": [Card("nic", ((0, 0),), 1)]}, "no new link leaves or reaches the ends of card 'nic'"),
        ({"links": [((0, 0), (0, 0), FAST)]}, "to itself"),
    ],
)
def test_a_wrong_joint_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        join([ring(), ring()], **options)


def test_joining_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="at least 1"):
        join([])


# ---- reverse and relabel ----


@given(topologies())
def test_reverse_turns_every_link_and_twice_is_nothing(machine: Topology) -> None:
    turned = reverse(machine)
    assert Counter((b, a, t) for a, b, t in rows(turned).elements()) == rows(machine)
    assert turned.limits == machine.limits
    assert reverse(turned) == machine


@given(topologies(), st.randoms(use_true_random=False))
def test_relabel_moves_nodes_places_and_nothing_else(machine: Topology, rng: Any) -> None:
    ranks, switches = list(range(machine.ranks)), list(range(machine.ranks, machine.nodes))
    rng.shuffle(ranks)
    rng.shuffle(switches)
    to = [*ranks, *switches]
    moved = relabel(machine, to)
    assert moved.link_src.tolist() == [to[node] for node in machine.link_src]
    assert moved.link_dst.tolist() == [to[node] for node in machine.link_dst]
    assert [moved.places[to[i]] for i in range(machine.nodes)] == list(machine.places)
    assert relabel(moved, np.argsort(to)) == machine


@pytest.mark.parametrize(
    ("permutation", "complaint"),
    [
        ([0, 1, 2, 3, 4, 5], "expected 7"),
        ([0, 0, 2, 3, 4, 5, 6], "exactly once"),
        ([0, 1, 2, 4, 3, 5, 6], "rank 3 becomes node 4, a switch"),
        ([0.0, 1, 2, 3, 4, 5, 6], "whole numbers"),
        ([[0], [1, 2]], "expected 7"),
    ],
)
def test_a_wrong_permutation_is_refused(permutation: Any, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        relabel(racks(), permutation)
