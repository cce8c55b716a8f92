"""Compute the positions of nodes: grids as grids, trees as trees, GPUs around their switch, boxes below their fabric.

Input: a `DrawnGraph`, whose nodes are switches (without `ranks`), ranks, and stacks of several ranks. Output
(`arrange`): a `Drawing`, which has the point of every node and the frames around boxes.
Each box of a cluster is laid out by itself (`lay_out_part`), by the first rule that matches its structure:

    names of nodes contain coordinates (x1/y2)      a grid; a third axis goes into the depth
    there are no switches                           circles, one per group
    a tree with one or two switches                 ranks around each switch
    a switch with many ranks                        ranks around it in two rings
    any other tree                                  a tree, root on top
    every rank has one switch (router)              routers on a circle, their ranks outside
    else                                            ranks at the bottom, switches in levels above

The boxes are then placed in rows below their fabric (`place_below_fabric`), many of them in a grid (`_place_box_grid`);
without a fabric they stand in a circle (`place_around`). A `Drawing` is a part of the picture that is moved, flipped
and framed as one. A node is a switch, a rank, or a stack of ranks drawn as one; its `ranks` are those that it stands
for, none for a switch.

All lengths are in pixels, y grows downwards, and angles are in radians, clockwise from the right. Lengths and angles
without another reason were chosen by eye on the machines of the catalogue.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.show.pictures.graph import RANK, SWITCH, DrawnGraph

Point = tuple[float, float]
_MARGIN = 26.0  # around a drawing
_LEVEL = 84.0  # between levels of switches
_TOP = -math.pi / 2  # the angle of the point above the centre of a circle
MAX_ROW_BOXES = 16  # more boxes stand in a grid instead of in two rows
MAX_TREE_NODES = 32  # a tree of one switch with more nodes, itself included, is drawn as rings around it, not in rows
_AXIS = re.compile(r"(?:[xyzwvu]|a\d+\.)(\d+)")  # a coordinate in a node's name: x3; beyond six axes a7.3
# by the number of layers of a third axis: the distance between nodes, and the shift of a layer as a fraction of that
_DEPTH = {
    1: (84.0, 0.0), 2: (120.0, 0.36), 3: (130.0, 0.3), 4: (170.0, 0.2), 5: (215.0, 0.15), 6: (250.0, 0.13),
    7: (275.0, 0.115), 8: (300.0, 0.105),
}  # fmt: skip
_FLAT = (120.0, 0.0)  # distance and shift for more layers, which are drawn side by side


class Frame(NamedTuple):
    """The frame around a box, with the box's name."""

    x: float  # of the corner on the upper left
    y: float
    width: float
    height: float
    label: str


@dataclass
class Drawing:
    """A part of the picture, from (0, 0) to (width, height): the points of nodes and the frames around boxes."""

    position: dict[int, Point]
    frames: list[Frame] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def moved(self, dx: float, dy: float) -> Drawing:
        position = {node: (x + dx, y + dy) for node, (x, y) in self.position.items()}
        frames = [frame._replace(x=frame.x + dx, y=frame.y + dy) for frame in self.frames]
        return Drawing(position, frames, self.width, self.height)


def fit_drawing(graph: DrawnGraph, position: dict[int, Point], frames: Sequence[Frame] = ()) -> Drawing:
    """Return a drawing just large enough for these nodes and frames, with a margin."""
    outlines = list(frames)  # of nodes, too
    for node, (x, y) in position.items():
        half_width, half_height = graph.nodes[node].half
        outlines.append(Frame(x - half_width, y - half_height, 2 * half_width, 2 * half_height, label=""))
    min_x, min_y = min(outline.x for outline in outlines), min(outline.y for outline in outlines)
    max_x = max(outline.x + outline.width for outline in outlines)
    max_y = max(outline.y + outline.height for outline in outlines)
    drawing = Drawing(position, list(frames), max_x - min_x + 2 * _MARGIN, max_y - min_y + 2 * _MARGIN)
    return drawing.moved(_MARGIN - min_x, _MARGIN - min_y)


def flip_drawing(drawing: Drawing) -> Drawing:
    """Return the drawing upside down, before it gets a frame (frames are not flipped)."""
    position = {node: (x, drawing.height - y) for node, (x, y) in drawing.position.items()}
    return Drawing(position, list(drawing.frames), drawing.width, drawing.height)


def frame_drawing(drawing: Drawing, label: str) -> Drawing:
    """Return the drawing with a frame around it."""
    drawing = drawing.moved(dx=0, dy=8)
    drawing.height += 16  # 8 above, 8 below; 4 remain outside of the frame
    drawing.frames.insert(0, Frame(4, 4, drawing.width - 8, drawing.height - 8, label))
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
    # 2. without a fabric the boxes stand in a circle, else they hang below it and their ranks face it
    outside = [node for node in all_nodes if node not in inside]
    if not outside:
        return place_around(graph, [frame_drawing(lay_out_part(graph, nodes), name) for name, nodes in boxes.items()])
    return place_below_fabric(
        graph, {name: lay_out_part(graph, nodes, facing=True) for name, nodes in boxes.items()}, outside
    )


def lay_out_part(graph: DrawnGraph, nodes: Sequence[int], facing: bool = False) -> Drawing:
    """Lay out a machine, or one box of a cluster.

    `facing`: for a box below a fabric; the ranks of one or two switches then stand above these, towards it.
    """
    switches = [n for n in nodes if graph.nodes[n].shape == SWITCH]
    # the order of these rules matters: each assumes that the ones before do not apply
    coordinates = _read_coordinates(graph, nodes)
    if coordinates is not None:
        return _place_grid(graph, coordinates)
    if not switches:
        return _place_circles(graph, nodes)
    if graph.is_tree(nodes):
        ranks_of = {s: [n for n in graph.neighbours[s] if n in set(nodes) and n not in switches] for s in switches}
        # with fewer ranks a circle looks like a row, with more it is too wide to stand beside another
        if len(switches) <= 2 and all(3 <= len(ranks) <= 16 for ranks in ranks_of.values()):
            return _place_ranks_above(graph, ranks_of) if facing else _place_hubs(graph, ranks_of)
        if len(switches) == 1 and len(nodes) > MAX_TREE_NODES and not facing:
            (switch,) = switches
            return _place_rings(graph, switch, ranks_of[switch])
        return _place_tree(graph, nodes)
    neighbours = {n: graph.neighbours[n] for n in nodes if n not in switches}
    if all(len(around) == 1 and set(around) <= set(switches) for around in neighbours.values()):
        return _place_routers(graph, switches, {n: router for n, (router,) in neighbours.items()})
    return _place_levels(graph, nodes, switches)


# ---- grids ----


def _read_coordinates(graph: DrawnGraph, nodes: Sequence[int]) -> dict[int, tuple[int, ...]] | None:
    """Return the coordinates of every node, if all places contain equally many: x1/y2. Else None."""
    positions: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        levels = graph.nodes[node].place.split("/")
        # the box, and whether a node is a rank or its router, are no coordinates
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
    columns, rows, layers = [*sizes, 1, 1][:3]
    pitch, shift = _DEPTH.get(layers, _FLAT)
    gap = 40.0  # between copies of a drawing
    width, height = pitch * columns, pitch * rows
    # by axis, the last one first: from a node to the next along it
    steps: list[Point] = [(pitch, 0.0), (0.0, pitch)]
    for axis, size in enumerate(sizes[2:], 2):
        if axis == 2 and shift:  # layers, one behind the other
            shift_right, shift_up = shift * pitch, 1.2 * shift * pitch
            steps.append((shift_right, -shift_up))
            width, height = width + shift_right * (size - 1), height + shift_up * (size - 1)
        elif axis == 2 or axis % 2:  # copies beside each other, each about half a node lower
            steps.append((width + gap, 0.52 * pitch))
            width = (width + gap) * size
        else:  # copies below each other, each about half a node further right
            steps.append((0.52 * pitch, height + gap))
            height = (height + gap) * size
    positions = {}
    for node, coordinate in coordinates.items():
        # strict=False: `steps` has two entries even if there is one axis
        x = sum(dx * index for (dx, _), index in zip(steps, coordinate[::-1], strict=False))
        y = sum(dy * index for (_, dy), index in zip(steps, coordinate[::-1], strict=False))
        is_beside_router = graph.nodes[node].place.endswith("/rank")  # next to its router
        positions[node] = (x + 26, y + 28) if is_beside_router else (x, y)
    return fit_drawing(graph, positions)


def _point_at(centre: Point, radius: float, angle: float) -> Point:
    """Return a point of a circle."""
    x, y = centre
    return x + radius * math.cos(angle), y + radius * math.sin(angle)


# ---- no switches: circles ----


def _place_circles(graph: DrawnGraph, nodes: Sequence[int]) -> Drawing:
    """Place each group of nodes (those with a common parent in their places) on a circle, the circles in rows."""
    by_place: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        by_place[graph.nodes[node].place.rpartition("/")[0]].append(node)
    groups = list(by_place.values())
    if max(map(len, groups)) <= 2 and len(groups) > 1:  # GPUs with two dies: all dies on one circle, pairs together
        groups = [[node for group in groups for node in group]]
    radius = max(70.0, 20 + 8.7 * max(map(len, groups)))  # so that neighbours do not touch
    cell = 2 * radius + 90
    columns = min(len(groups), 4)
    # several circles are turned a little, so that links between them do not lie on top of each other
    turn = 0.22 if len(groups) > 1 else 0.0
    position: dict[int, Point] = {}
    for number, group in enumerate(groups):
        centre = (cell * (number % columns), cell * (number // columns))
        # apart from the turn, the top is midway between the first two nodes
        first_angle = _TOP - (math.pi / len(group) - turn) if len(group) > 1 else _TOP
        mirrored = number % 2 == 1  # neighbours face each other: links between equal places stay short
        for i, node in enumerate(group):
            angle = first_angle + 2 * math.pi * i / len(group)
            position[node] = _point_at(centre, radius, math.pi - angle if mirrored else angle)
    return fit_drawing(graph, position)


# ---- switches ----


def _place_hubs(graph: DrawnGraph, ranks_of: dict[int, list[int]]) -> Drawing:
    """Place each switch with its ranks around it, side by side."""
    position: dict[int, Point] = {}
    for number, (switch, ranks) in enumerate(ranks_of.items()):
        radius = max(88.0, 30 + 7.6 * len(ranks))  # so that neighbours do not touch
        centre = (number * (2 * radius + 120), 0.0)
        position[switch] = centre
        for i, node in enumerate(ranks):
            position[node] = _point_at(centre, radius, _TOP + 2 * math.pi * (i + 0.5) / len(ranks))
    return fit_drawing(graph, position)


def _place_rings(graph: DrawnGraph, switch: int, leaves: Sequence[int]) -> Drawing:
    """Place the leaves of a switch in turn on two rings around it, in the order of their ranks from the top on."""
    spacing = _max_width(graph, leaves) + 14
    # the inner ring has every other leaf: its circumference is their number times the spacing
    inner_radius = max(len(leaves) / 2 * spacing / (2 * math.pi), 110.0)
    centre = (0.0, 0.0)
    position = {switch: centre}
    for i, node in enumerate(sorted(leaves, key=lambda n: graph.nodes[n].ranks[:1])):
        radius = inner_radius if i % 2 == 0 else inner_radius + spacing
        position[node] = _point_at(centre, radius, _TOP + 2 * math.pi * i / len(leaves))
    return fit_drawing(graph, position)


def _max_width(graph: DrawnGraph, nodes: Sequence[int]) -> float:
    """Return the width of the widest of these nodes."""
    return 2 * max(half_width for half_width, _ in (graph.nodes[n].half for n in nodes))


def _place_ranks_above(graph: DrawnGraph, ranks_of: dict[int, list[int]]) -> Drawing:
    """Place the ranks of each switch in a row above it, side by side."""
    pitch, gap = 40.0, 24  # between neighbouring ranks; between the ranks of two switches
    position: dict[int, Point] = {}
    first_x = 0.0
    for switch, ranks in ranks_of.items():
        for i, node in enumerate(ranks):
            position[node] = (first_x + pitch * i, 0.0)
        position[switch] = (first_x + pitch / 2 * (len(ranks) - 1), 92.0)
        first_x += pitch * len(ranks) + gap
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
    right_edge = 0.0  # of what has been placed
    visited = set(roots)
    level_height = min(max(92.0, 3.0 * len(nodes)), 150.0)

    def lowest_rank(node: int, parent: int) -> int:
        """Return the lowest rank below a node: children are sorted by it."""
        own_rank = graph.nodes[node].ranks[:1]
        return min(
            [*own_rank, *(lowest_rank(n, node) for n in graph.neighbours[node] if n in inside and n != parent)],
            default=node,  # no rank below: sorted by its own number
        )

    def visit(node: int, depth: int) -> float:
        """Place a node and all below it; return its x."""
        nonlocal right_edge
        visited.add(node)
        unvisited = [n for n in graph.neighbours[node] if n in inside and n not in visited]
        # children in the order of ranks, so that numbers ascend from left to right
        unvisited.sort(key=lambda n: lowest_rank(n, node))
        half_width, _ = graph.nodes[node].half
        if unvisited:
            # a parent is centred above its children, a leaf is placed at the right edge
            xs = [visit(n, depth + 1) for n in unvisited]
            x = (xs[0] + xs[-1]) / 2
            gap_to_cousins = 14 if len(unvisited) > 1 else 0  # a chain of single children needs no room of its own
            right_edge = max(right_edge + gap_to_cousins, x + half_width + 8)
        else:
            x = right_edge + half_width + 4
            right_edge = x + half_width + 4
        position[node] = (x, depth * level_height)
        return x

    for root in roots:
        visit(root, 0)
    return fit_drawing(graph, position)


def _place_routers(graph: DrawnGraph, switches: Sequence[int], owner: dict[int, int]) -> Drawing:
    """Place switches on a circle, the ranks of each outside of it. `owner`: the switch of each rank."""
    ranks_of = {switch: [n for n, router in owner.items() if router == switch] for switch in switches}
    distance, pitch = 58, 42  # of ranks from their switch, and between ranks of a switch
    # large enough that neither switches nor the ranks outside overlap
    max_ranks = max(map(len, ranks_of.values()))
    radius = max(66.0, 14.0 * len(switches), 6.8 * len(switches) * max_ranks - 40)
    centre = (0.0, 0.0)
    position: dict[int, Point] = {}
    for number, (switch, ranks) in enumerate(ranks_of.items()):
        middle = _TOP + 2 * math.pi * (number + 0.5) / len(switches)
        position[switch] = _point_at(centre, radius, middle)
        for i, node in enumerate(ranks):
            angle = middle + (i - (len(ranks) - 1) / 2) * pitch / (radius + distance)
            position[node] = _point_at(centre, radius + distance, angle)
    return fit_drawing(graph, position)


def _place_levels(graph: DrawnGraph, nodes: Sequence[int], switches: Sequence[int]) -> Drawing:
    """Place ranks in rows at the bottom, switches in levels above, by their distance from the ranks."""
    ranks = [n for n in nodes if n not in set(switches)]
    pitch, row_height, level_height = 92.0, 80.0, 96.0
    # there is a rank: `lay_out_part` has other rules for switches alone; stacks of ranks are wider than ranks
    max_columns = 16 if graph.nodes[ranks[0]].shape == RANK else 12
    columns = max(1, min(len(ranks), max_columns))
    position: dict[int, Point] = {n: (pitch * (i % columns), row_height * (i // columns)) for i, n in enumerate(ranks)}
    placed, row, depth = set(ranks), list(ranks), 0
    while row:
        # the switches adjacent to the level below, not yet placed
        row = sorted({s for n in row for s in graph.neighbours[n] if s in set(switches)} - placed)
        placed.update(row)
        depth += 1
        for i, switch in enumerate(row):
            position[switch] = (pitch * (columns - 1) * (i + 0.5) / len(row), -level_height * depth)
    # connected to no rank: above a free level (`depth` also counts the empty row that ended the loop)
    for i, switch in enumerate(s for s in switches if s not in placed):
        position[switch] = (pitch * i, -level_height * (depth + 1))
    return fit_drawing(graph, position)


# ---- boxes and their fabric ----


def place_around(graph: DrawnGraph, drawings: Sequence[Drawing]) -> Drawing:
    """Place boxes that are connected directly, without a fabric: in a circle, two side by side."""
    size = max(max(drawing.width, drawing.height) for drawing in drawings)
    count = len(drawings)
    radius, first_angle = 0.0, _TOP
    if count == 2:
        radius, first_angle = 0.56 * size, math.pi  # a little more than half a box each, left and right
    elif count > 2:
        radius = size * 0.66 / math.sin(math.pi / count)  # neighbours are 1.32 boxes apart
    placed = []
    for number, drawing in enumerate(drawings):
        x, y = _point_at((0.0, 0.0), radius, first_angle + 2 * math.pi * number / count)
        placed.append(drawing.moved(x - drawing.width / 2, y - drawing.height / 2))
    return _combine_drawings(graph, placed, switches={})


@dataclass(frozen=True)
class _FabricRows:
    """The rows of switches between boxes. With two rows of boxes (`is_between`), outer parts of the fabric have the
    switches that reach one row only, the inner part between them those that reach both; else all are in the inner part.

    From top to bottom, with neighbouring levels `_LEVEL` apart:

        two rows    boxes, box_distance, outer levels, inner levels, outer levels, box_distance, boxes
        one row     half a level, inner levels, box_distance, boxes
    """

    is_between: bool
    box_distance: float  # from the boxes to the nearest switches
    inner_levels: list[int]  # levels with switches in the inner part
    outer_levels: int  # number of levels in an outer part

    @property
    def outer_height(self) -> float:
        """From a row of boxes to one level before the nearest switches of the inner part: with an outer part this is
        where its last level stands.
        """
        has_outer_part = self.outer_levels and self.is_between
        return self.box_distance + (self.outer_levels - 1 if has_outer_part else -1) * _LEVEL

    @property
    def height(self) -> float:
        """From the boxes above (without any, from the top of the picture) to the boxes below."""
        inner_height = (len(self.inner_levels) + 1) * _LEVEL
        # without boxes above, the highest level stands half a level below the top of the picture (`y_of`)
        return inner_height + (2 * self.outer_height if self.is_between else self.outer_height - _LEVEL * 0.5)

    def y_of(self, level: int, side: str) -> float:
        """Return the y of the switches of a level that reach this side; in the inner part the highest is on top."""
        from_boxes = self.box_distance + (level - 1) * _LEVEL
        if side == "upper":
            return from_boxes
        if side == "lower":
            return self.height - from_boxes
        inner_top = self.outer_height + _LEVEL if self.is_between else _LEVEL * 0.5
        levels_above = len(self.inner_levels) - 1 - self.inner_levels.index(level)
        return inner_top + levels_above * _LEVEL


def place_below_fabric(graph: DrawnGraph, boxes: Mapping[str, Drawing], outside: Sequence[int]) -> Drawing:
    """Place up to four boxes in a row below their fabric; more of them in two rows, with the fabric in between."""
    if len(boxes) > MAX_ROW_BOXES:
        return _place_box_grid(graph, boxes, outside)
    two_rows = len(boxes) > 4
    columns = math.ceil(len(boxes) / 2) if two_rows else len(boxes)
    # boxes of the upper row are flipped, so that in both rows the side with network cards faces the fabric
    drawings = [
        frame_drawing(flip_drawing(drawing) if two_rows and i < columns else drawing, name)
        for i, (name, drawing) in enumerate(boxes.items())
    ]
    upper, lower = (drawings[:columns], drawings[columns:]) if two_rows else ([], drawings)
    column_width, row_height = max(b.width for b in drawings) + 18, max(b.height for b in drawings)
    level = _switch_levels(graph, drawings, outside)
    upper_nodes = {node for drawing in upper for node in drawing.position}
    side = _find_box_rows(graph, upper_nodes, level) if two_rows else dict.fromkeys(level, "both")
    fabric = _FabricRows(
        is_between=two_rows,
        # grows with the width, so that cables stay steep
        box_distance=min(max(_LEVEL, column_width * columns / 8), 190.0),
        inner_levels=sorted({level[s] for s in outside if side[s] == "both"}),
        outer_levels=max((level[s] for s in outside if side[s] != "both"), default=0),
    )
    fabric_top = row_height if two_rows else 0.0
    lower_top = fabric_top + fabric.height
    placed = [box.moved(column_width * i, row_height - box.height) for i, box in enumerate(upper)]
    placed += [box.moved(column_width * i, lower_top) for i, box in enumerate(lower)]
    position = {node: point for drawing in placed for node, point in drawing.position.items()}
    for number in range(1, max(level.values()) + 1):
        for reached in ("upper", "lower", "both"):
            row = [s for s in outside if level[s] == number and side[s] == reached]
            if row:  # `y_of` knows only levels that have switches
                y = fabric_top + fabric.y_of(number, reached)
                _spread_switches(graph, row, position, y, column_width * columns)
    return _combine_drawings(graph, placed, {s: position[s] for s in outside})


def _place_box_grid(graph: DrawnGraph, boxes: Mapping[str, Drawing], outside: Sequence[int]) -> Drawing:
    """Place many boxes in a grid, about as wide as a screen, below the switches of their fabric."""
    drawings = [frame_drawing(drawing, name) for name, drawing in boxes.items()]
    width, height = max(b.width for b in drawings) + 18, max(b.height for b in drawings) + 18
    # columns * width = screen_shape * rows * height, where columns * rows is the number of boxes
    screen_shape = 1.7
    columns = math.ceil(math.sqrt(screen_shape * len(drawings) * height / width))
    level = _switch_levels(graph, drawings, outside)
    level_height = 2 * _LEVEL
    fabric_height = max(level.values()) * level_height
    placed = [b.moved(width * (i % columns), fabric_height + height * (i // columns)) for i, b in enumerate(drawings)]
    position = {node: point for drawing in placed for node, point in drawing.position.items()}
    for number in range(1, max(level.values()) + 1):
        row = [s for s in outside if level[s] == number]
        y = fabric_height - number * level_height + 0.6 * _LEVEL
        _spread_switches(graph, row, position, y, width * columns)
    return _combine_drawings(graph, placed, {s: position[s] for s in outside})


def _combine_drawings(graph: DrawnGraph, drawings: Sequence[Drawing], switches: dict[int, Point]) -> Drawing:
    """Return one drawing of boxes that are at their places already, and of the switches between them."""
    position = {node: point for drawing in drawings for node, point in drawing.position.items()} | switches
    return fit_drawing(graph, position, [frame for drawing in drawings for frame in drawing.frames])


def _switch_levels(graph: DrawnGraph, drawings: Sequence[Drawing], outside: Sequence[int]) -> dict[int, int]:
    """Return the level of each node: 0 in a box; of a switch outside, its distance in links from the nearest box."""
    level = dict.fromkeys((node for drawing in drawings for node in drawing.position), 0)
    row, free = list(level), set(outside)
    number = 0
    while row:
        number += 1
        row = sorted({s for node in row for s in graph.neighbours[node] if s in free})
        free.difference_update(row)
        level.update(dict.fromkeys(row, number))
    return level | dict.fromkeys(free, 1)  # connected to no box: drawn with those next to the boxes


def _find_box_rows(graph: DrawnGraph, upper: set[int], level: dict[int, int]) -> dict[int, str]:
    """Return whether all boxes below a switch are in the "upper" row, in the "lower" one, or in "both"."""
    side = {node: "upper" if node in upper else "lower" for node, number in level.items() if number == 0}
    for node in sorted(level, key=lambda n: level[n]):
        if level[node]:
            row_sides = {side[n] for n in graph.neighbours[node] if level[n] < level[node]}
            side[node] = row_sides.pop() if len(row_sides) == 1 else "both"  # none: it is connected to no box
    return side


def _spread_switches(graph: DrawnGraph, row: Sequence[int], position: dict[int, Point], y: float, width: float) -> None:
    """Place each switch of a row at the mean x of its placed neighbours, as far as switches do not overlap."""
    if not row:
        return
    target_x = {}
    for switch in row:
        xs = [x for x, _ in (position[n] for n in graph.neighbours[switch] if n in position)]
        target_x[switch] = sum(xs) / len(xs) if xs else width / 2
    order = sorted(row, key=lambda s: (target_x[s], s))
    spacing = _max_width(graph, row) + 22
    # too narrow: centre the row with equal gaps
    if target_x[order[-1]] - target_x[order[0]] < spacing * (len(row) - 1):
        centre = sum(target_x.values()) / len(row)
        spacing = max(spacing, min(130.0, 0.8 * width / len(row)))
        for i, switch in enumerate(order):
            position[switch] = (centre + (i - (len(row) - 1) / 2) * spacing, y)
        return
    # else keep each above its neighbours, pushed right where the previous one is too close
    previous_x = -math.inf
    for switch in order:
        previous_x = max(target_x[switch], previous_x + spacing)
        position[switch] = (previous_x, y)
