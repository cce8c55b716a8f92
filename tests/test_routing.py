"""Paths through switches against a plain search, and work in blocks of rows against the same done at once."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from antiphon.core import columns
from antiphon.core.topology import LinkType, Topology, build
from antiphon.planners.shared.routing import find_paths

KINDS = (LinkType("thin", "1GB/s"), LinkType("wide", "2GB/s"))


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    ranks, switches = draw(st.integers(2, 6)), draw(st.integers(1, 6))
    nodes = st.integers(0, ranks + switches - 1)
    ends = st.tuples(nodes, nodes, st.sampled_from(KINDS), st.integers(1, 3)).filter(lambda link: link[0] != link[1])
    drawn = draw(st.lists(ends, min_size=1, max_size=30))
    links = [(a, b, kind) for a, b, kind, many in drawn if max(a, b) >= ranks for _ in range(many)]
    return build("drawn", ranks, links or [(0, ranks, KINDS[0])], switches=switches)


def good_links(machine: Topology, node: int, target: int) -> tuple[int, list[int]]:
    """Hops from a node to a rank (-1: none), and the links that begin a shortest path: the widest, in order."""
    hops, now = {target: 0}, [target]
    ends = list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    through = [i for i, (a, b) in enumerate(ends) if max(a, b) >= machine.ranks]
    while now:
        found = {ends[i][0] for i in through if ends[i][1] in now} - set(hops)
        hops |= dict.fromkeys(found, hops[now[0]] + 1)
        now = [a for a in found if a >= machine.ranks]
    good = [i for i in through if ends[i][0] == node and ends[i][1] in hops]
    good = [i for i in good if ends[i][1] >= machine.ranks or ends[i][1] == target]
    least = min((hops[ends[i][1]] for i in good), default=-2)
    good = [i for i in good if hops[ends[i][1]] == least]
    most = max((machine.bandwidth(i) for i in good), default=0)
    return least + 1, [i for i in good if machine.bandwidth(i) == most]


@settings(max_examples=examples(150), deadline=None)
@given(machines(), st.integers(0, 3))
def test_paths_are_the_shortest_by_the_widest_links_and_take_their_turn(machine: Topology, turn: int) -> None:
    src, dst = (side.ravel() for side in np.meshgrid(np.arange(machine.ranks), np.arange(machine.ranks)))
    src, dst = (side[src != dst].astype(np.int32) for side in (src, dst))
    found = find_paths(machine, src, dst, turn)
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        hops, good = good_links(machine, a, b)
        path = found.table[i]
        assert len(path) == max(hops, 0)
        assert (i in found.unreachable) == (hops < 0)
        if hops < 0:
            continue
        assert found.equal_links[i] == len(good)
        assert path[0] == good[(b + turn) % len(good)]
        for link, after in pairwise(path):
            node = int(machine.link_dst[link])
            assert machine.link_src[after] == node
            assert after in good_links(machine, node, b)[1]
        assert machine.link_dst[path[-1]] == b


def test_destinations_take_equal_links_in_turn_on_every_hop() -> None:
    """Three links each from rank 0 to a switch, from there to another, and from that, a level higher,
    to every other rank."""
    ends = [(0, 4), (4, 5), (5, 1), (5, 2), (5, 3)]
    machine = build("bundles", 4, [(*pair, KINDS[0]) for pair in ends for _ in range(3)], switches=2)
    src, dst = np.zeros(3, np.int32), np.array([1, 2, 3], np.int32)
    assert [find_paths(machine, src, dst).table[i] for i in range(3)] == [(1, 4, 6), (2, 5, 9), (0, 3, 13)]
    assert [find_paths(machine, src, dst, 1).table[i] for i in range(3)] == [(2, 4, 6), (0, 5, 9), (1, 3, 13)]


def test_a_column_is_copied_unless_it_was_handed_over() -> None:
    mine = np.arange(3, dtype=np.int32)
    made = columns.column(mine, "mine", 0, 3)
    mine[0] = 2
    assert made.tolist() == [0, 1, 2]
    handed = columns.freeze(np.arange(3, dtype=np.int32))
    assert columns.column(handed, "handed", 0, 3) is handed
