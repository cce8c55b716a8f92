"""Describe a machine for the page: its links, and drawings of it at up to three levels of detail.

Level 0 has every node, level 1 the equal ranks of a switch as one node, level 2 every box of a cluster as one
(`fold_levels`). Levels that fold nothing, or have more than MAX_NODES nodes, are left out. Positions are those of the
machine's picture (pictures/layout.py). Each edge of a level lists the links that it stands for, by direction, so that
the page can sum their loads: 128 boxes of 8 GPUs are 128 nodes, and the edge from one to its switch stands for 8 links.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from antiphon.core.bounds import Cut, Partition
from antiphon.core.topology import Topology
from antiphon.select import Limit
from antiphon.show.explorer.packing import Pack
from antiphon.show.pictures.graph import DrawnGraph, fold_levels, graph_of
from antiphon.show.pictures.layout import arrange
from antiphon.show.pictures.svg import kind_colours, label_points, link_curves, stroke_widths

MAX_NODES = 1600  # of a level, unless it is the coarsest; more would overlap on the page
MAX_BENT = 160  # nodes up to which lines are bent around nodes, as that is slow


def machine_json(topology: Topology) -> dict[str, Any]:
    """Return names, links and drawings of a machine.

    Links are packed columns. By position: "kinds" are [name, colour], "limits" [name, bytes per second, links].
    """
    graph = graph_of(topology)
    kinds = sorted({edge.kind for edge in graph.edges})
    colours = kind_colours(graph)
    # levels by number of nodes, which decreases; a level that folds nothing has as many as the one before, and takes
    # its place
    distinct = {len(level.nodes): level for level in fold_levels(graph)}
    # if all levels are too large, or of one node, the coarsest
    drawn = [level for count, level in distinct.items() if 1 < count <= MAX_NODES] or [*distinct.values()][-1:]
    links = Pack()
    links.add("src", topology.link_src)
    links.add("dst", topology.link_dst)
    links.add("kind", np.array([kinds.index(t.kind) for t in topology.types], np.int64)[topology.link_type])
    links.add("type", topology.link_type)
    return {
        "name": topology.name,
        "ranks": topology.ranks,
        "nodes": [topology.node_name(node) for node in range(topology.nodes)],
        "places": list(topology.places),
        "kinds": [[kind, colours[kind]] for kind in kinds],
        "speeds": [float(t.bandwidth) for t in topology.types],
        "latencies": [t.latency for t in topology.types],
        "limits": [[limit.name, float(limit.bandwidth), list(limit.links)] for limit in topology.limits],
        "levels": [_level_json(level, topology, kinds) for level in drawn],
        "links": links.as_json(),
    }


def _level_json(graph: DrawnGraph, topology: Topology, kinds: list[str]) -> dict[str, Any]:
    """Return the drawing of one level; machine.js names the fields of nodes, edges and frames."""
    drawing, stroke = arrange(graph), stroke_widths(graph, topology.unit)
    node_of = np.empty(topology.nodes, np.int64)  # in this level, by node of the machine
    for number, node in enumerate(graph.nodes):
        node_of[list(node.members or (number,))] = number
    links_of: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    columns = (node_of[topology.link_src], node_of[topology.link_dst], topology.link_type)
    link_ends = zip(*(column.tolist() for column in columns), strict=True)
    for link, (a, b, kind) in enumerate(link_ends):
        links_of[a, b, topology.types[kind].kind].append(link)
    if len(graph.nodes) <= MAX_BENT:
        curves = [(edge, middle) for edge, (_, middle, _) in link_curves(graph, drawing)]
    else:
        curves = [(edge, None) for edge in sorted(graph.edges, key=lambda e: -e.bandwidth)]
    edges = []
    for edge, middle in curves:
        # Edges of several speeds between two nodes share their links: the first of them gets all.
        forward = links_of.pop((edge.a, edge.b, edge.kind), [])
        backward = links_of.pop((edge.b, edge.a, edge.kind), [])
        speed = f"{edge.speed()} each way" if edge.symmetric else f"{edge.speed()}, back {edge.speed(back=True)}"
        bend = None if middle is None else [round(float(c), 1) for c in middle]
        edges.append(
            [edge.a, edge.b, kinds.index(edge.kind), speed, round(stroke[edge.bandwidth], 2), bend, forward, backward]
        )
    nodes = [
        [node.shape, node.label, node.place, *(round(c, 1) for c in drawing.position[number]), *node.half,
         list(node.ranks), list(node.members or (number,))]
        for number, node in enumerate(graph.nodes)
    ]  # fmt: skip
    frames = []
    for (x, y, width, height, label), point in zip(drawing.frames, label_points(graph, drawing), strict=True):
        frames.append([*(round(c, 1) for c in (x, y, width, height)), label, *(round(c, 1) for c in point)])
    return {"nodes": nodes, "edges": edges, "frames": frames, "size": [drawing.width, drawing.height]}


def cut_json(topology: Topology, limit: Limit | None) -> dict[str, Any] | None:
    """Return a bound's witness for drawing: sides of a cut or partition, or links with a price; None without one."""
    if limit is None or limit.witness is None:
        return None
    witness = limit.witness
    words = next((line for line in limit.because if line.startswith(witness.kind)), witness.kind)
    value: dict[str, Any] = {"kind": witness.kind, "text": words, "parts": [], "links": []}
    if isinstance(witness, Cut | Partition):
        sides = [list(witness.side)] if isinstance(witness, Cut) else [list(side) for side in witness.parts]
        part_of = np.full(topology.nodes, -1)
        for number, side in enumerate(sides):
            part_of[side] = number
        crossing = part_of[topology.link_src] != part_of[topology.link_dst]
        if isinstance(witness, Cut):  # only data that leave side 0 count
            crossing &= part_of[topology.link_src] == 0
        value |= {"parts": sides, "links": np.flatnonzero(crossing).tolist()}
    else:
        value["links"] = [resource for resource, price in witness.prices if price]
    return value
