"""Compute the positions of nodes: grids as grids, trees as trees, GPUs around their switch, boxes below their fabric.

Input: a `DrawnGraph`. Output (`arrange`): a `Drawing`, which has the point of every node and the frames around boxes,
in pixels, y downwards. Bottom-up: each box of a cluster is laid out by itself (`lay_out_part`), by the first rule that
matches its structure:

    names of nodes contain coordinates (x1/y2)      a grid; a third axis goes into the depth
    there are no switches                           circles, one per group
    a tree with one or two switches                 ranks around each switch
    a switch with many ranks                        ranks around it in two rings
    any other tree                                  a tree, root on top
    every rank has one switch (router)              routers on a circle, their ranks outside
    else                                            ranks at the bottom, switches in levels above

The boxes are then placed in rows below their fabric (`place_below_fabric`), many of them in a grid (`_place_box_grid`),
or in a circle without one (`place_around`). A `Drawing` is a part of the picture that is moved, flipped and framed as
one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.show.pictures.graph import RANK, SWITCH, DrawnGraph

# All lengths are in pixels; distances and angles were chosen by eye on the machines of the catalogue.
Point = tuple[float, float]
Frame = tuple[float, float, float, float, str]  # left, top, width, height, label
_MARGIN = 26.0
_LEVEL = 84.0  # pixels between levels of switches
MAX_ROW_BOXES = 16  # more boxes stand in a grid instead of in two rows
MAX_TREE_LEAVES = (
    32  # a switch and its ranks stand in rows if they are at most so many nodes; else in a circle around it
)
_AXIS = re.compile(r"(?:[xyzwvu]|a\d+\.)(\d+)")  # a coordinate in a node's name: x3; beyond six axes a7.3
# by the number of layers of a third axis: pixels between nodes, and the shift of a layer as a fraction of that
_DEPTH = {
    1: (84.0, 0.0), 2: (120.0, 0.36), 3: (130.0, 0.3), 4: (170.0, 0.2), 5: (215.0, 0.15), 6: (250.0, 0.13),
    7: (275.0, 0.115), 8: (300.0, 0.105),
}  # fmt: skip


@dataclass
class Drawing:
    """A part of the picture, from (0, 0) to (width, height): the points of nodes and the frames around boxes."""

    position: dict[int, Point]
    frames: list[Frame] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def moved(self, dx: float, dy: float) -> Drawing:
        position = {node: (x + dx, y + dy) for node, (x, y) in self.position.items()}
        frames = [(x + dx, y + dy, w, h, label) for x, y, w, h, label in self.frames]
        return Drawing(position, frames, self.width, self.height)


def fit_drawing(graph: DrawnGraph, position: dict[int, Point], frames: Sequence[Frame] = ()) -> Drawing:
    """Return a drawing just large enough for these nodes and frames, with a margin."""
    left_edges = [x - graph.nodes[n].half[0] for n, (x, _) in position.items()] + [f[0] for f in frames]
    right_edges = [x + graph.nodes[n].half[0] for n, (x, _) in position.items()] + [f[0] + f[2] for f in frames]
    top_edges = [y - graph.nodes[n].half[1] for n, (_, y) in position.items()] + [f[1] for f in frames]
    bottom_edges = [y + graph.nodes[n].half[1] for n, (_, y) in position.items()] + [f[1] + f[3] for f in frames]
    drawing = Drawing(
        position,
        list(frames),
        max(right_edges) - min(left_edges) + 2 * _MARGIN,
        max(bottom_edges) - min(top_edges) + 2 * _MARGIN,
    )
    return drawing.moved(_MARGIN - min(left_edges), _MARGIN - min(top_edges))


def flip_drawing(drawing: Drawing) -> Drawing:
    """Return the drawing upside down; frames stay."""
    position = {node: (x, drawing.height - y) for node, (x, y) in drawing.position.items()}
    return Drawing(position, list(drawing.frames), drawing.width, drawing.height)


def frame_drawing(drawing: Drawing, label: str) -> Drawing:
    """Return the drawing with a frame around it."""
    drawing = drawing.moved(dx=0, dy=8)
    drawing.height += 16
    drawing.frames.insert(0, (4, 4, drawing.width - 8, drawing.height - 8, label))
    return drawing


def arrange(graph: DrawnGraph) -> Drawing:
    """Lay out the whole machine: boxes first, then around or below their fabric."""
    # 1. boxes by the name of their container; a single box, or one tree, is laid out at once
    all_nodes = list(range(len(graph.nodes)))
    boxes: dict[str, list[int]] = defaultdict(list)
    for node in all_nodes:
        if graph.nodes[node].container:
            boxes[graph.nodes[node].container].append(node)
    inside = {node for nodes in boxes.values() for node in nodes}
    if len(boxes) < 2 or graph.is_tree(all_nodes):
        return lay_out_part(graph, all_nodes)
    # 2. without a fabric the boxes face each other, else they hang below it
    outside = [node for node in all_nodes if node not in inside]
    if not outside:
        return place_around(graph, [frame_drawing(lay_out_part(graph, nodes), name) for name, nodes in boxes.items()])
    return place_below_fabric(
        graph, {name: lay_out_part(graph, nodes, facing=True) for name, nodes in boxes.items()}, outside
    )


def lay_out_part(graph: DrawnGraph, nodes: Sequence[int], facing: bool = False) -> Drawing:
    """Lay out a machine, or one box of a cluster; with `facing` its ranks are on top, towards a fabric above it."""
    switches = [n for n in nodes if graph.nodes[n].shape == SWITCH]
    # the order of these rules matters: each assumes that the ones before do not apply
    coordinates = _read_coordinates(graph, nodes)
    if coordinates is not None:
        return _place_grid(graph, coordinates)
    if not switches:
        return _place_circles(graph, nodes)
    if graph.is_tree(nodes):
        # hubs: switch -> its ranks
        hubs = {s: [n for n in graph.neighbours[s] if n in set(nodes) and n not in switches] for s in switches}
        if len(switches) <= 2 and all(3 <= len(ranks) <= 16 for ranks in hubs.values()):
            return _place_ranks_above(graph, hubs) if facing else _place_hubs(graph, hubs)
        if len(switches) == 1 and len(nodes) > MAX_TREE_LEAVES and not facing:
            return _place_rings(graph, switches[0], hubs[switches[0]])
        return _place_tree(graph, nodes)
    owner = {n: [s for s in graph.neighbours[n] if s in set(switches)] for n in nodes if n not in switches}
    if all(len(hubs_of) == 1 and len(graph.neighbours[n]) == 1 for n, hubs_of in owner.items()):
        return _place_routers(graph, switches, {n: hubs_of[0] for n, hubs_of in owner.items()})
    return _place_levels(graph, nodes, switches)


# ---- grids ----


def _read_coordinates(graph: DrawnGraph, nodes: Sequence[int]) -> dict[int, tuple[int, ...]] | None:
    """Return the coordinates of every node, if all places contain as many: x1/y2. Else None."""
    positions: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        levels = graph.nodes[node].place.split("/")
        levels = [level for level in levels if not re.fullmatch(r"(host|box)\d+|rank|router", level)]
        matches = [_AXIS.fullmatch(level) for level in levels]
        if not levels or not all(matches):
            return None
        positions[node] = tuple(int(match[1]) for match in matches if match)
    return positions if len({len(position) for position in positions.values()}) == 1 else None


def _place_grid(graph: DrawnGraph, coordinates: dict[int, tuple[int, ...]]) -> Drawing:
    """Lay out a grid: the last axis runs right, the one before down, the third last into the depth.

    Further axes, and a third with many layers, repeat the drawing to the right or below.
    """
    axes = len(next(iter(coordinates.values())))
    sizes = [1 + max(position[axis] for position in coordinates.values()) for axis in range(axes)][::-1]
    layers = sizes[2] if axes > 2 else 1  # up to 8 are drawn one behind the other (_DEPTH)
    cell, depth = _DEPTH.get(layers, (120.0, 0.0))
    # by axis, the last one first: the distance between neighbours along it
    offset: list[Point] = [(cell, 0.0), (0.0, cell)]
    width, height = cell * sizes[0], cell * (sizes[1] if axes > 1 else 1)
    for axis in range(2, axes):
        if axis == 2 and depth:
            offset.append((depth * cell, -1.2 * depth * cell))
            width, height = width + depth * cell * (layers - 1), height + 1.2 * depth * cell * (layers - 1)
        elif axis % 2 or axis == 2:
            offset.append((width + 40, 0.52 * cell))
            width = (width + 40) * sizes[axis]
        else:
            offset.append((0.52 * cell, height + 40))
            height = (height + 40) * sizes[axis]
    positions = {}
    for node, coordinate in coordinates.items():
        x = sum(offset[i][0] * p for i, p in enumerate(coordinate[::-1]))
        y = sum(offset[i][1] * p for i, p in enumerate(coordinate[::-1]))
        is_beside_router = graph.nodes[node].place.endswith("/rank")  # next to its router
        positions[node] = (x + 26, y + 28) if is_beside_router else (x, y)
    return fit_drawing(graph, positions)


# ---- no switches: circles ----


def _place_circles(graph: DrawnGraph, nodes: Sequence[int]) -> Drawing:
    """Place each group of nodes (those with a common parent in their places) on a circle, the circles in rows."""
    by_place: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        by_place[graph.nodes[node].place.rpartition("/")[0]].append(node)
    groups = list(by_place.values())
    if max(map(len, groups)) <= 2 and len(groups) > 1:  # GPUs with two dies: all dies on one circle, pairs together
        groups = [[node for group in groups for node in group]]
    radius = max(70.0, max(map(len, groups)) * 8.7 + 20)
    columns = min(len(groups), 4)
    cell = 2 * radius + 90
    position: dict[int, Point] = {}
    for number, group in enumerate(groups):
        centre = (cell * (number % columns), cell * (number // columns))
        # a little askew, so that links between groups do not lie on top of each other
        rotation = math.pi / len(group) - (0.22 if len(groups) > 1 else 0.0) if len(group) > 1 else 0.0
        mirror = -1 if number % 2 else 1  # neighbours face each other: links between equal places stay short
        for i, node in enumerate(group):
            angle = -math.pi / 2 - rotation + 2 * math.pi * i / len(group)
            position[node] = (centre[0] + mirror * radius * math.cos(angle), centre[1] + radius * math.sin(angle))
    return fit_drawing(graph, position)


# ---- switches ----


def _place_hubs(graph: DrawnGraph, hubs: dict[int, list[int]]) -> Drawing:
    """Place each switch with its ranks around it, side by side."""
    position: dict[int, Point] = {}
    for number, (switch, ranks) in enumerate(hubs.items()):
        radius = max(88.0, 7.6 * len(ranks) + 30)
        x = number * (2 * radius + 120)
        position[switch] = (x, 0.0)
        for i, node in enumerate(ranks):
            angle = -math.pi / 2 + 2 * math.pi * (i + 0.5) / len(ranks)
            position[node] = (x + radius * math.cos(angle), radius * math.sin(angle))
    return fit_drawing(graph, position)


def _place_rings(graph: DrawnGraph, switch: int, leaves: Sequence[int]) -> Drawing:
    """Place the leaves of a switch in turn on two rings around it, in the order of their ranks from the top on."""
    spacing = 2 * max(graph.nodes[n].half[0] for n in leaves) + 14
    radius = max(len(leaves) / 2 * spacing / (2 * math.pi), 110.0)
    position = {switch: (0.0, 0.0)}
    for i, node in enumerate(sorted(leaves, key=lambda n: graph.nodes[n].ranks[:1])):
        angle, ring = -math.pi / 2 + 2 * math.pi * i / len(leaves), radius + i % 2 * spacing
        position[node] = (ring * math.cos(angle), ring * math.sin(angle))
    return fit_drawing(graph, position)


def _place_ranks_above(graph: DrawnGraph, hubs: dict[int, list[int]]) -> Drawing:
    """Place the ranks of each switch in a row above it, side by side."""
    position: dict[int, Point] = {}
    x = 0.0
    for switch, ranks in hubs.items():
        for i, node in enumerate(ranks):
            position[node] = (x + 40.0 * i, 0.0)
        position[switch] = (x + 20.0 * (len(ranks) - 1), 92.0)
        x += 40.0 * len(ranks) + 24
    return fit_drawing(graph, position)


def _find_roots(graph: DrawnGraph, nodes: Sequence[int]) -> list[int]:
    """Return the switch called root, or the one or two in the middle of the tree."""
    root_switches = [n for n in nodes if graph.nodes[n].label == "root"]
    if len(root_switches) == 1:
        return root_switches
    # peel off leaves layer by layer; the centre of the tree remains
    remaining = set(nodes)
    while len(remaining) > 2:
        leaves = [n for n in remaining if sum(other in remaining for other in graph.neighbours[n]) <= 1]
        remaining.difference_update(leaves)
    return sorted(remaining)


def _place_tree(graph: DrawnGraph, nodes: Sequence[int]) -> Drawing:
    """Lay out a tree, each switch centred above its children."""
    inside, roots = set(nodes), _find_roots(graph, nodes)
    position: dict[int, Point] = {}
    right_edge = [0.0]  # the right edge of what has been placed
    visited = set(roots)
    level_height = min(max(92.0, 3.0 * len(nodes)), 150.0)

    def lowest_rank(node: int, above: int) -> int:
        """Return the lowest rank below a node: children are sorted by it."""
        own = graph.nodes[node].ranks[:1]
        return min(
            [*own, *(lowest_rank(n, node) for n in graph.neighbours[node] if n in inside and n != above)], default=node
        )

    def visit(node: int, depth: int) -> float:
        """Place a node and all below it; return its x."""
        visited.add(node)
        below = [n for n in graph.neighbours[node] if n in inside and n not in visited]
        # children in the order of ranks, so that numbers ascend from left to right
        below.sort(key=lambda n: lowest_rank(n, node))
        half = graph.nodes[node].half[0]
        if below:
            # a parent is centred above its children, a leaf is placed at the right edge
            xs = [visit(n, depth + 1) for n in below]
            x = (xs[0] + xs[-1]) / 2
            right_edge[0] = max(right_edge[0] + (14 if len(below) > 1 else 0), x + half + 8)
        else:
            x = right_edge[0] + half + 4
            right_edge[0] = x + half + 4
        position[node] = (x, depth * level_height)
        return x

    for root in roots:
        visit(root, 0)
    return fit_drawing(graph, position)


def _place_routers(graph: DrawnGraph, switches: Sequence[int], owner: dict[int, int]) -> Drawing:
    """Place switches on a circle, the ranks of each outside of it. `owner`: the switch of each rank."""
    max_ranks = max(sum(s == switch for s in owner.values()) for switch in switches)
    # large enough that neither switches nor the ranks outside overlap
    radius = max(66.0, 14.0 * len(switches), 6.8 * len(switches) * max_ranks - 40)
    position: dict[int, Point] = {}
    for number, switch in enumerate(switches):
        middle = -math.pi / 2 + 2 * math.pi * (number + 0.5) / len(switches)
        position[switch] = (radius * math.cos(middle), radius * math.sin(middle))
        ranks = [n for n, s in owner.items() if s == switch]
        for i, node in enumerate(ranks):
            angle = middle + (i - (len(ranks) - 1) / 2) * 42 / (radius + 58)
            position[node] = ((radius + 58) * math.cos(angle), (radius + 58) * math.sin(angle))
    return fit_drawing(graph, position)


def _place_levels(graph: DrawnGraph, nodes: Sequence[int], switches: Sequence[int]) -> Drawing:
    """Place ranks in rows at the bottom, switches in levels above, by their distance from the ranks."""
    ranks = [n for n in nodes if n not in set(switches)]
    columns = max(1, min(len(ranks), 16 if graph.nodes[ranks[0]].shape == RANK else 12))
    position: dict[int, Point] = {n: (92.0 * (i % columns), 80.0 * (i // columns)) for i, n in enumerate(ranks)}
    placed, row, depth = set(ranks), list(ranks), 0
    while row:
        # the switches adjacent to the level below, not yet placed
        row = sorted({s for n in row for s in graph.neighbours[n] if s in set(switches)} - placed)
        placed.update(row)
        depth += 1
        for i, switch in enumerate(row):
            position[switch] = (92.0 * (columns - 1) * (i + 0.5) / len(row), -96.0 * depth)
    for i, switch in enumerate(s for s in switches if s not in placed):
        position[switch] = (92.0 * i, -96.0 * (depth + 1))
    return fit_drawing(graph, position)


# ---- boxes and their fabric ----


def place_around(graph: DrawnGraph, drawings: Sequence[Drawing]) -> Drawing:
    """Place boxes that are connected directly, without a fabric: in a circle, two side by side."""
    size = max(max(drawing.width, drawing.height) for drawing in drawings)
    count = len(drawings)
    radius = 0.0 if count < 2 else size * 0.56 if count == 2 else size * 0.66 / math.sin(math.pi / count)
    placed = []
    for number, drawing in enumerate(drawings):
        angle = (math.pi if count == 2 else -math.pi / 2) + 2 * math.pi * number / count
        x, y = radius * math.cos(angle), radius * math.sin(angle)
        placed.append(drawing.moved(x - drawing.width / 2, y - drawing.height / 2))
    return _combine_drawings(graph, placed, switches={})


def place_below_fabric(graph: DrawnGraph, boxes: Mapping[str, Drawing], outside: Sequence[int]) -> Drawing:
    """Place up to four boxes in a row below their fabric; more of them in two rows, with the fabric in between."""
    if len(boxes) > MAX_ROW_BOXES:
        return _place_box_grid(graph, boxes, outside)
    # boxes of the upper row are flipped, so that in both rows the side with network cards faces the fabric
    rows = 1 if len(boxes) <= 4 else 2
    columns = -(-len(boxes) // rows)
    drawings = [
        frame_drawing(flip_drawing(drawing) if rows == 2 and i < columns else drawing, name)
        for i, (name, drawing) in enumerate(boxes.items())
    ]
    column_width, row_height = max(b.width for b in drawings) + 18, max(b.height for b in drawings)
    upper = set().union(*(b.position for b in drawings[:columns])) if rows == 2 else set()
    # fabric: rows of switches by their distance from the boxes
    level = _switch_levels(graph, drawings, outside)
    side = _find_box_rows(graph, upper, level, rows)
    two_sided_levels = sorted({level[s] for s in outside if side[s] == "both"})
    max_one_sided_level = max((level[s] for s in outside if side[s] != "both"), default=0)
    # from the lowest switches to the boxes; it grows with the width, so that cables stay steep
    box_distance = min(max(_LEVEL, column_width * columns / 8), 190.0)
    outer_height = (
        box_distance + (max_one_sided_level - 1) * _LEVEL
        if max_one_sided_level and rows == 2
        else box_distance - _LEVEL
    )
    inner_height = (len(two_sided_levels) + 1) * _LEVEL
    # height of the fabric: per row of boxes an outer part, for switches that reach this row only, and between these an
    # inner part, for switches that reach both rows (with one row: all that the boxes reach)
    fabric_height = 2 * outer_height + inner_height if rows == 2 else outer_height + inner_height - _LEVEL * 0.5
    top = row_height if rows == 2 else 0.0
    placed = [
        drawing.moved(
            column_width * (i % columns),
            (top + fabric_height) if rows == 1 or i >= columns else row_height - drawing.height,
        )
        for i, drawing in enumerate(drawings)
    ]
    position = {node: point for drawing in placed for node, point in drawing.position.items()}
    middle = top + (_LEVEL * 0.5 if rows == 1 else outer_height + _LEVEL)
    for number in range(1, max(level.values()) + 1):
        for where in ("upper", "lower", "both"):
            row = [s for s in outside if level[s] == number and side[s] == where]
            if where == "upper":
                y = top + box_distance + (number - 1) * _LEVEL
            elif where == "lower":
                y = top + fabric_height - box_distance - (number - 1) * _LEVEL
            else:
                y = middle + (len(two_sided_levels) - 1 - two_sided_levels.index(number)) * _LEVEL if row else 0.0
            _spread_switches(graph, row, position, y, column_width * columns)
    return _combine_drawings(graph, placed, {s: position[s] for s in outside})


def _place_box_grid(graph: DrawnGraph, boxes: Mapping[str, Drawing], outside: Sequence[int]) -> Drawing:
    """Place many boxes in a grid, about as wide as a screen, below the switches of their fabric."""
    drawings = [frame_drawing(drawing, name) for name, drawing in boxes.items()]
    width, height = max(b.width for b in drawings) + 18, max(b.height for b in drawings) + 18
    columns = math.ceil(math.sqrt(1.7 * len(drawings) * height / width))
    level = _switch_levels(graph, drawings, outside)
    fabric_height = max(level.values()) * _LEVEL * 2
    placed = [b.moved(width * (i % columns), fabric_height + height * (i // columns)) for i, b in enumerate(drawings)]
    position = {node: point for drawing in placed for node, point in drawing.position.items()}
    for number in range(1, max(level.values()) + 1):
        row = [s for s in outside if level[s] == number]
        _spread_switches(graph, row, position, fabric_height - number * _LEVEL * 2 + _LEVEL * 0.6, width * columns)
    return _combine_drawings(graph, placed, {s: position[s] for s in outside})


def _combine_drawings(graph: DrawnGraph, drawings: Sequence[Drawing], switches: dict[int, Point]) -> Drawing:
    position = {node: point for drawing in drawings for node, point in drawing.position.items()} | switches
    return fit_drawing(graph, position, [frame for drawing in drawings for frame in drawing.frames])


def _switch_levels(graph: DrawnGraph, drawings: Sequence[Drawing], outside: Sequence[int]) -> dict[int, int]:
    """Return each switch's distance from the nearest box: 1 if it is connected to one."""
    level = dict.fromkeys((node for drawing in drawings for node in drawing.position), 0)
    row, free = list(level), set(outside)
    while row:
        number = level[row[0]] + 1
        row = sorted({s for node in row for s in graph.neighbours[node] if s in free})
        free.difference_update(row)
        level.update(dict.fromkeys(row, number))
    return level | dict.fromkeys(free, 1)


def _find_box_rows(graph: DrawnGraph, upper: set[int], level: dict[int, int], rows: int) -> dict[int, str]:
    """Return whether all boxes below a switch are in the "upper" row, in the "lower" one, or in "both"."""
    if rows == 1:
        return dict.fromkeys(level, "both")
    side = {node: "upper" if node in upper else "lower" for node, number in level.items() if number == 0}
    for node in sorted(level, key=lambda n: level[n]):
        if level[node]:
            row_sides = {side[n] for n in graph.neighbours[node] if level[n] < level[node]}
            side[node] = row_sides.pop() if len(row_sides) == 1 else "both"
    return side


def _spread_switches(graph: DrawnGraph, row: Sequence[int], position: dict[int, Point], y: float, width: float) -> None:
    """Place each switch of a row at the mean x of its placed neighbours, as far as switches do not overlap."""
    if not row:
        return
    target_x = {}
    for switch in row:
        xs = [position[n][0] for n in graph.neighbours[switch] if n in position]
        target_x[switch] = sum(xs) / len(xs) if xs else width / 2
    order = sorted(row, key=lambda s: (target_x[s], s))
    spacing = max(2 * graph.nodes[s].half[0] for s in row) + 22
    # too narrow: centre the row with equal gaps
    if target_x[order[-1]] - target_x[order[0]] < spacing * (len(row) - 1):
        centre = sum(target_x.values()) / len(row)
        spacing = max(spacing, min(130.0, 0.8 * width / len(row)))
        for i, switch in enumerate(order):
            position[switch] = (centre + (i - (len(row) - 1) / 2) * spacing, y)
        return
    previous_x = -math.inf
    # else keep each above its neighbours, pushed right where the previous one is too close
    for switch in order:
        previous_x = max(target_x[switch], previous_x + spacing)
        position[switch] = (previous_x, y)
