"""Machines as text and as pictures: all is there once, nothing hides another, the shape is the machine's."""

import math
from fractions import Fraction
from xml.etree import ElementTree

import pytest
from quick import in_turn

from antiphon.core.reshape import only
from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.errors import Unsupported
from antiphon.registry import table
from antiphon.show.pictures.graph import RANK, STACK, DrawnGraph, fold_nodes, graph_of
from antiphon.show.pictures.layout import Drawing, arrange
from antiphon.show.pictures.svg import MAX_NODES, topology_svg
from antiphon.show.text import topology_text
from antiphon.topologies import topology

GB = 10**9
EXAMPLES = [entry.can.example for entry in table("topology").values()]
MORE = [
    "ring:ranks=2", "ring:ranks=7,routers=true", "line:ranks=12", "torus:dims=3x3x3", "torus:dims=4x4,routers=true",
    "mesh:dims=4x4x4", "torus:dims=2x3x2x3", "hypercube:ranks=64", "full:ranks=32", "star:ranks=40", "star:ranks=2",
    "tree:fanouts=5x6", "tree:fanouts=2x2x2x3", "tree:fanouts=3x(12+20+8)", "mi250:gcds=8", "dragonfly", "delta",
    "cluster:box=dgx-a100,boxes=4,fabric=leaf-spine", "cluster:box=dgx-a100,boxes=4,fabric=rail",
    "cluster:box=dgx-a100,boxes=8,fabric=fat-tree", "cluster:box=dgx-a100,boxes=8,fabric=rail",
    "cluster:box=dgx2,boxes=3", "cluster:box=pcie8,boxes=2", "cluster:box=torus:dims=2x3,boxes=5",
    "cluster:box=dgx-a100,boxes=32,fabric=fat-tree", "cluster:box=dgx1v,boxes=40", "cluster:box=star:ranks=5,boxes=2",
]  # fmt: skip


def drawn(spec: str) -> tuple[DrawnGraph, Drawing]:
    """The graph that is drawn for a machine, and where its nodes are."""
    graph = graph_of(topology(spec))
    graph = fold_nodes(graph, 64 if graph.is_tree(range(len(graph.nodes))) else MAX_NODES)
    return graph, arrange(graph)


def parsed(machine: Topology) -> ElementTree.Element:
    return ElementTree.fromstring(topology_svg(machine))


def elements(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def titled(root: ElementTree.Element, tag: str) -> list[tuple[ElementTree.Element, str]]:
    found = [(element, elements(element, "title")) for element in elements(root, tag)]
    return [(element, title[0].text or "") for element, title in found if title]


@pytest.mark.parametrize("spec", in_turn(EXAMPLES + MORE, 6))
def test_a_picture_shows_everything_once(spec: str) -> None:
    machine = topology(spec)
    text = topology_svg(machine)
    assert text == topology_svg(topology(spec))
    root = ElementTree.fromstring(text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
    graph, _ = drawn(spec)
    labels = [element.text for element in elements(root, "text")]
    assert machine.name in labels
    ranks = sorted(rank for node in graph.nodes for rank in node.ranks)
    assert ranks == list(range(machine.ranks))
    for node in graph.nodes:
        if node.shape == RANK:
            assert labels.count(node.label) == 1
        elif node.shape == STACK:
            assert f"{node.ranks[0]}-{node.ranks[-1]}" in labels
    assert len(titled(root, "path")) == len(graph.edges)
    assert {edge.kind for edge in graph.edges} <= set(labels)
    width, height = (float(root.attrib[key]) for key in ("width", "height"))
    for element in elements(root, "circle"):
        assert 17 <= float(element.attrib["cx"]) <= width - 17
        assert 17 <= float(element.attrib["cy"]) <= height - 17
    assert max(width, height) < 4000


@pytest.mark.parametrize("spec", in_turn(EXAMPLES + MORE, 3))
def test_no_node_lies_on_another(spec: str) -> None:
    graph, block = drawn(spec)
    assert set(block.position) == set(range(len(graph.nodes)))
    order = sorted(block.position, key=lambda n: block.position[n])
    for i, a in enumerate(order):
        for b in order[i + 1 :]:
            dx = abs(block.position[a][0] - block.position[b][0])
            dy = abs(block.position[a][1] - block.position[b][1])
            wide, high = (graph.nodes[a].half[k] + graph.nodes[b].half[k] for k in (0, 1))
            round_ones = graph.nodes[a].shape == graph.nodes[b].shape == RANK
            assert math.hypot(dx, dy) >= 34 if round_ones else dx >= wide or dy >= high, (a, b)
    for x, y, w, h, label in block.frames:
        for node, (nx, ny) in block.position.items():
            inside = x <= nx <= x + w and y <= ny <= y + h
            assert inside == (graph.nodes[node].container == label)


# ---- the shape is the machine's ----


def test_a_cube_has_depth_and_two_cubes_stand_side_by_side() -> None:
    _, block = drawn("hypercube:ranks=16")
    shifts = {
        tuple(round(block.position[n + 4][k] - block.position[n][k]) for k in (0, 1))
        for n in (0, 1, 2, 3, 8, 9, 10, 11)
    }
    assert len(shifts) == 1
    assert all(x > 0 > y for x, y in shifts)
    assert max(block.position[n][0] for n in range(8)) < min(block.position[n][0] for n in range(8, 16))


def test_boxes_stand_below_their_fabric_and_on_both_sides_of_it() -> None:
    graph, block = drawn("cluster:box=dgx-a100,boxes=4,fabric=leaf-spine")
    y = {node.label: block.position[n][1] for n, node in enumerate(graph.nodes) if not node.container}
    assert y["spine0"] < y["leaf0"] == y["leaf1"] < min(block.position[rank][1] for rank in range(32))
    assert [frame[4] for frame in block.frames] == ["host0", "host1", "host2", "host3"]
    graph, block = drawn("cluster:box=dgx-a100,boxes=8,fabric=fat-tree")
    y = {node.label: block.position[n][1] for n, node in enumerate(graph.nodes) if not node.container}
    upper = max(block.position[rank][1] for rank in range(32))
    lower = min(block.position[rank][1] for rank in range(32, 64))
    assert upper < y["leaf0"] < y["pod0"] < y["core0"] < y["pod2"] < y["leaf4"] < lower


def test_only_ranks_with_equal_links_of_every_kind_are_folded() -> None:
    """Ranks 0 and 1 have equal links; 2 and 3 have the same slow link, but a faster second one."""
    slow, fast, faster = (LinkType(kind, rate, 1e-6) for kind, rate in (("b", 10**9), ("a", 10**10), ("a", 10**11)))
    pairs = [(rank, 4, kind) for rank in range(4) for kind in (slow, fast if rank < 2 else faster)]
    machine = build("mixed", 4, [link for a, b, kind in pairs for link in ((a, b, kind), (b, a, kind))], switches=1)
    assert [node.ranks for node in fold_nodes(graph_of(machine), 3).nodes] == [(0, 1), (2, 3), ()]


@pytest.mark.slow
def test_large_machines_are_folded_and_larger_ones_refused() -> None:
    graph, _ = drawn("sym384")
    assert [node.label for node in graph.nodes if node.shape == STACK] == ["24 ranks"] * 16
    assert {edge.speed() for edge in graph.edges} == {"24 x 625 MB/s", "6.25 GB/s"}
    graph, _ = drawn("cluster:box=dgx1v,boxes=40")
    assert [node.label for node in graph.nodes if node.shape == STACK] == [f"host{i}" for i in range(40)]
    assert len(graph.nodes) == 41
    for spec in ("ring:ranks=200", "cluster:boxes=200", "full:ranks=130"):
        with pytest.raises(Unsupported, match="unreadable"):
            topology_svg(topology(spec))


# ---- links ----


def test_one_way_links_are_dashed_and_unequal_ways_told() -> None:
    slow, fast = LinkType("x", Fraction(GB)), LinkType("x", Fraction(2 * GB))
    machine = build("odd", 3, [(0, 1, slow), (1, 2, slow), (2, 1, fast), (0, 2, slow), (2, 0, slow)])
    dashed = {title for element, title in titled(parsed(machine), "path") if "stroke-dasharray" in element.attrib}
    assert dashed == {"rank 0 to rank 1: x, 1 GB/s", "rank 1 to rank 2: x, 1 GB/s, rank 2 to rank 1: x, 2 GB/s"}


def test_shared_limits_are_bands_and_in_the_legend() -> None:
    root = parsed(topology("z52-pcie"))
    bands = [path for path in elements(root, "path") if path.attrib.get("stroke-linecap") == "round"]
    assert len(bands) == 6
    assert len({path.attrib["stroke"] for path in bands}) == 2  # one tint per socket
    words = [element.text for element in elements(root, "text")]
    assert "socket* pcie: 27 GB/s shared by 6 links (2 of them)" in words
    words = [element.text for element in elements(parsed(topology("delta:nodes=4")), "text")]
    assert "host*/nic*: 25 GB/s shared by 4 links, each way (4 of them)" in words
    words = [element.text for element in elements(parsed(topology("pcie8")), "text")]
    assert "bridge* in: 63.02 GB/s shared by 3 links (2 of them)" in words  # inward only


def test_odd_names_are_escaped() -> None:
    kind = LinkType('<b "&', Fraction(GB))
    limit = SharedLimit("<limit> & co", (0,), Fraction(GB))
    machine = build("a <b> & 'c'", 2, [(0, 1, kind), (1, 0, kind)], places=["<x>", "&y"], limits=[limit])
    words = [element.text for element in elements(parsed(machine), "text")]
    assert "a <b> & 'c'" in words
    assert '<b "&' in words


def test_machines_without_links_can_be_drawn() -> None:
    parsed(build("alone", 1, []))
    parsed(build("apart", 3, [], switches=2))
    assert "3 ranks, 2 switches, 0 directed links" in topology_text(build("apart", 3, [], switches=2))
    assert ": 8 ranks (5 of them without links), 4 directed" in topology_text(only(topology("dgx1v"), [0, 1, 4]))


# ---- text ----


def test_text_of_small_machines_is_a_matrix() -> None:
    lines = topology_text(topology("dgx1v")).splitlines()
    assert "  0  .  1  1  2  2  .  .  .  host0/quad0/gpu0" in lines
    assert any(
        line.split()[:9] == ["nvswitch"] + ["12"] * 8 for line in topology_text(topology("dgx-a100")).splitlines()
    )


def test_text_of_large_machines_counts_what_is_alike() -> None:
    lines = [" ".join(line.split()) for line in topology_text(topology("cluster:box=dgx1v,boxes=4")).splitlines()]
    assert "host*/quad*/gpu* host*/quad*/gpu* nvlink 50 GB/s 64" in lines
    assert "fabric host*/quad*/gpu* ib 12.5 GB/s 32 each way" in lines
    assert "host*/nic* in 12.5 GB/s 2 16" in lines
    one_way = build("circle", 20, [(i, (i + 1) % 20, LinkType("x", Fraction(GB))) for i in range(20)])
    assert "rank* rank* x 1 GB/s 20" in [" ".join(line.split()) for line in topology_text(one_way).splitlines()]
    kind = LinkType("x", Fraction(GB))
    places = [f"{'z' if i < 10 else 'a'}{i}" for i in range(20)]
    downhill = build("slope", 20, [(i, i + 10, kind) for i in range(10)], places=places)
    assert "z* a* x 1 GB/s 10" in [" ".join(line.split()) for line in topology_text(downhill).splitlines()]
