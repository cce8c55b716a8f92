"""Where everything stands: grids as grids, trees as trees, GPUs around their switch, boxes below their fabric."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from antiphon.show.pictures._fabric import around, below
from antiphon.show.pictures.blocks import Drawing, Point, fitted, framed
from antiphon.show.pictures.graph import RANK, SWITCH, Graph

_AXIS = re.compile(r"(?:[xyzwvu]|a\d+\.)(\d+)")
_DEPTH = {1: (84.0, 0.0), 2: (120.0, 0.36), 3: (130.0, 0.3), 4: (170.0, 0.2), 5: (215.0, 0.15)}  # cell, shift


def arrange(graph: Graph) -> Drawing:
    """The whole picture."""
    everything = list(range(len(graph.nodes)))
    boxes: dict[str, list[int]] = defaultdict(list)
    for node in everything:
        if graph.nodes[node].container:
            boxes[graph.nodes[node].container].append(node)
    inside = {node for nodes in boxes.values() for node in nodes}
    if len(boxes) < 2 or graph.is_tree(everything):
        return inner(graph, everything)
    outside = [node for node in everything if node not in inside]
    if not outside:
        return around(graph, [framed(inner(graph, nodes), name) for name, nodes in boxes.items()])
    return below(graph, {name: inner(graph, nodes, facing=True) for name, nodes in boxes.items()}, outside)


def inner(graph: Graph, nodes: Sequence[int], facing: bool = False) -> Drawing:
    """A machine by itself, or one box of a cluster; `facing` a fabric above it, its ranks stand in front."""
    switches = [n for n in nodes if graph.nodes[n].shape == SWITCH]
    where = _coordinates(graph, nodes)
    if where is not None:
        return _grid(graph, where)
    if not switches:
        return _circles(graph, nodes)
    if graph.is_tree(nodes):
        hubs = {s: [n for n in graph.near[s] if n in set(nodes) and n not in switches] for s in switches}
        if len(switches) <= 2 and all(3 <= len(ends) <= 16 for ends in hubs.values()):
            return _fronts(graph, hubs) if facing else _hubs(graph, hubs)
        return _tree(graph, nodes)
    owner = {n: [s for s in graph.near[n] if s in set(switches)] for n in nodes if n not in switches}
    if all(len(found) == 1 and len(graph.near[n]) == 1 for n, found in owner.items()):
        return _routers(graph, switches, {n: found[0] for n, found in owner.items()})
    return _levels(graph, nodes, switches)


# ---- grids ----


def _coordinates(graph: Graph, nodes: Sequence[int]) -> dict[int, tuple[int, ...]] | None:
    """The position of every node where places tell it: x1/y2."""
    found: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        parts = graph.nodes[node].place.split("/")
        parts = [part for part in parts if not re.fullmatch(r"(host|box)\d+|rank|router", part)]
        matches = [_AXIS.fullmatch(part) for part in parts]
        if not parts or not all(matches):
            return None
        found[node] = tuple(int(match[1]) for match in matches if match)
    return found if len({len(where) for where in found.values()}) == 1 else None


def _grid(graph: Graph, where: dict[int, tuple[int, ...]]) -> Drawing:
    """The last axis runs across, the one before down, the third last into the depth, further ones in blocks."""
    axes = len(next(iter(where.values())))
    sizes = [1 + max(at[axis] for at in where.values()) for axis in range(axes)][::-1]
    layers = sizes[2] if axes > 2 else 1  # drawn one behind the other where they are few
    cell, depth = _DEPTH.get(layers, (120.0, 0.0))
    step: list[Point] = [(cell, 0.0), (0.0, cell)]
    wide, high = cell * sizes[0], cell * (sizes[1] if axes > 1 else 1)
    for axis in range(2, axes):
        if axis == 2 and depth:
            step.append((depth * cell, -1.2 * depth * cell))
            wide, high = wide + depth * cell * (layers - 1), high + 1.2 * depth * cell * (layers - 1)
        elif axis % 2 or axis == 2:
            step.append((wide + 40, 0.52 * cell))
            wide = (wide + 40) * sizes[axis]
        else:
            step.append((0.52 * cell, high + 40))
            high = (high + 40) * sizes[axis]
    at = {}
    for node, position in where.items():
        x = sum(step[i][0] * p for i, p in enumerate(position[::-1]))
        y = sum(step[i][1] * p for i, p in enumerate(position[::-1]))
        beside = graph.nodes[node].place.endswith("/rank")  # next to its router
        at[node] = (x + 26, y + 28) if beside else (x, y)
    return fitted(graph, at)


# ---- no switches: circles ----


def _circles(graph: Graph, nodes: Sequence[int]) -> Drawing:
    """Each group on a circle of its own, the groups in rows."""
    found: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        found[graph.nodes[node].place.rpartition("/")[0]].append(node)
    groups = list(found.values())
    if max(map(len, groups)) <= 2 and len(groups) > 1:  # dies of packages: all on one circle, partners together
        groups = [[node for group in groups for node in group]]
    radius = max(70.0, max(map(len, groups)) * 8.7 + 20)
    columns = min(len(groups), 4)
    cell = 2 * radius + 90
    at: dict[int, Point] = {}
    for number, group in enumerate(groups):
        centre = (cell * (number % columns), cell * (number // columns))
        # a little askew, so that links between groups do not lie on top of each other
        askew = math.pi / len(group) - (0.22 if len(groups) > 1 else 0.0) if len(group) > 1 else 0.0
        mirror = -1 if number % 2 else 1  # neighbours face each other: links between equal places stay short
        for i, node in enumerate(group):
            angle = -math.pi / 2 - askew + 2 * math.pi * i / len(group)
            at[node] = (centre[0] + mirror * radius * math.cos(angle), centre[1] + radius * math.sin(angle))
    return fitted(graph, at)


# ---- switches ----


def _hubs(graph: Graph, hubs: dict[int, list[int]]) -> Drawing:
    """Each switch with its ranks around it, side by side."""
    at: dict[int, Point] = {}
    for number, (switch, ends) in enumerate(hubs.items()):
        radius = max(88.0, 7.6 * len(ends) + 30)
        x = number * (2 * radius + 120)
        at[switch] = (x, 0.0)
        for i, node in enumerate(ends):
            angle = -math.pi / 2 + 2 * math.pi * (i + 0.5) / len(ends)
            at[node] = (x + radius * math.cos(angle), radius * math.sin(angle))
    return fitted(graph, at)


def _fronts(graph: Graph, hubs: dict[int, list[int]]) -> Drawing:
    """The ranks of each switch in a row above it, side by side."""
    at: dict[int, Point] = {}
    x = 0.0
    for switch, ends in hubs.items():
        for i, node in enumerate(ends):
            at[node] = (x + 40.0 * i, 0.0)
        at[switch] = (x + 20.0 * (len(ends) - 1), 92.0)
        x += 40.0 * len(ends) + 24
    return fitted(graph, at)


def _roots(graph: Graph, nodes: Sequence[int]) -> list[int]:
    """The switch called root, or the one or two in the middle of the tree."""
    named = [n for n in nodes if graph.nodes[n].label == "root"]
    if len(named) == 1:
        return named
    left = set(nodes)
    while len(left) > 2:
        ends = [n for n in left if sum(other in left for other in graph.near[n]) <= 1]
        left.difference_update(ends)
    return sorted(left)


def _tree(graph: Graph, nodes: Sequence[int]) -> Drawing:
    """Switches over what hangs on them."""
    inside, roots = set(nodes), _roots(graph, nodes)
    at: dict[int, Point] = {}
    edge = [0.0]  # how far to the right it is drawn already
    seen = set(roots)
    level = min(max(92.0, 3.0 * len(nodes)), 150.0)

    def least(node: int, above: int) -> int:
        """The lowest rank below a node: children stand in this order."""
        own = graph.nodes[node].ranks[:1]
        return min([*own, *(least(n, node) for n in graph.near[node] if n in inside and n != above)], default=node)

    def visit(node: int, depth: int) -> float:
        seen.add(node)
        below = [n for n in graph.near[node] if n in inside and n not in seen]
        below.sort(key=lambda n: least(n, node))
        half = graph.nodes[node].half[0]
        if below:
            xs = [visit(n, depth + 1) for n in below]
            x = (xs[0] + xs[-1]) / 2
            edge[0] = max(edge[0] + (14 if len(below) > 1 else 0), x + half + 8)
        else:
            x = edge[0] + half + 4
            edge[0] = x + half + 4
        at[node] = (x, depth * level)
        return x

    for root in roots:
        visit(root, 0)
    return fitted(graph, at)


def _routers(graph: Graph, switches: Sequence[int], owner: dict[int, int]) -> Drawing:
    """Switches on a circle, the ranks of each outside of it."""
    most = max(sum(s == switch for s in owner.values()) for switch in switches)
    radius = max(66.0, 14.0 * len(switches), 6.8 * len(switches) * most - 40)
    at: dict[int, Point] = {}
    for number, switch in enumerate(switches):
        middle = -math.pi / 2 + 2 * math.pi * (number + 0.5) / len(switches)
        at[switch] = (radius * math.cos(middle), radius * math.sin(middle))
        mine = [n for n, s in owner.items() if s == switch]
        for i, node in enumerate(mine):
            angle = middle + (i - (len(mine) - 1) / 2) * 42 / (radius + 58)
            at[node] = ((radius + 58) * math.cos(angle), (radius + 58) * math.sin(angle))
    return fitted(graph, at)


def _levels(graph: Graph, nodes: Sequence[int], switches: Sequence[int]) -> Drawing:
    """Ranks in rows at the bottom, switches in levels above."""
    ranks = [n for n in nodes if n not in set(switches)]
    columns = max(1, min(len(ranks), 16 if graph.nodes[ranks[0]].shape == RANK else 12))
    at: dict[int, Point] = {n: (92.0 * (i % columns), 80.0 * (i // columns)) for i, n in enumerate(ranks)}
    level, row, depth = set(ranks), list(ranks), 0
    while row:
        row = sorted({s for n in row for s in graph.near[n] if s in set(switches)} - level)
        level.update(row)
        depth += 1
        for i, switch in enumerate(row):
            at[switch] = (92.0 * (columns - 1) * (i + 0.5) / len(row), -96.0 * depth)
    for i, switch in enumerate(s for s in switches if s not in level):
        at[switch] = (92.0 * i, -96.0 * (depth + 1))
    return fitted(graph, at)
