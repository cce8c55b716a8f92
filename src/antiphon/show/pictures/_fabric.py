"""Boxes of a cluster in the picture: below and above the switches that join them, or in a circle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from antiphon.show.pictures.blocks import Drawing, Point, fitted, flipped, framed
from antiphon.show.pictures.graph import Graph

_LEVEL = 84.0


def around(graph: Graph, blocks: Sequence[Drawing]) -> Drawing:
    """Boxes that are joined directly: in a circle, two side by side."""
    size = max(max(block.width, block.height) for block in blocks)
    count = len(blocks)
    radius = 0.0 if count < 2 else size * 0.56 if count == 2 else size * 0.66 / math.sin(math.pi / count)
    found = []
    for number, block in enumerate(blocks):
        angle = (math.pi if count == 2 else -math.pi / 2) + 2 * math.pi * number / count
        x, y = radius * math.cos(angle), radius * math.sin(angle)
        found.append(block.moved(x - block.width / 2, y - block.height / 2))
    return _together(graph, found, {})


def below(graph: Graph, boxes: Mapping[str, Drawing], outside: Sequence[int]) -> Drawing:
    """Up to four boxes in a row below their fabric; more of them in two rows, with the fabric in between."""
    rows = 1 if len(boxes) <= 4 else 2
    columns = -(-len(boxes) // rows)
    blocks = [
        framed(flipped(block) if rows == 2 and i < columns else block, name)
        for i, (name, block) in enumerate(boxes.items())
    ]
    wide, high = max(b.width for b in blocks) + 18, max(b.height for b in blocks)
    upper = set().union(*(b.at for b in blocks[:columns])) if rows == 2 else set()
    level = _levels(graph, blocks, outside)
    side = _sides(graph, upper, level, rows)
    shared = sorted({level[s] for s in outside if side[s] == "both"})
    alone = max((level[s] for s in outside if side[s] != "both"), default=0)
    drop = min(max(_LEVEL, wide * columns / 8), 190.0)  # from the lowest switches to the boxes: cables stay steep
    above = drop + (alone - 1) * _LEVEL if alone and rows == 2 else drop - _LEVEL
    inner = (len(shared) + 1) * _LEVEL
    band = 2 * above + inner if rows == 2 else above + inner - _LEVEL * 0.5
    top = high if rows == 2 else 0.0
    found = [
        block.moved(wide * (i % columns), (top + band) if rows == 1 or i >= columns else high - block.height)
        for i, block in enumerate(blocks)
    ]
    at = {node: point for block in found for node, point in block.at.items()}
    middle = top + (_LEVEL * 0.5 if rows == 1 else above + _LEVEL)
    for number in range(1, max(level.values()) + 1):
        for where in ("upper", "lower", "both"):
            row = [s for s in outside if level[s] == number and side[s] == where]
            if where == "upper":
                y = top + drop + (number - 1) * _LEVEL
            elif where == "lower":
                y = top + band - drop - (number - 1) * _LEVEL
            else:
                y = middle + (len(shared) - 1 - shared.index(number)) * _LEVEL if row else 0.0
            _spread(graph, row, at, y, wide * columns)
    return _together(graph, found, {s: at[s] for s in outside})


def _together(graph: Graph, blocks: Sequence[Drawing], more: dict[int, Point]) -> Drawing:
    at = {node: point for block in blocks for node, point in block.at.items()} | more
    return fitted(graph, at, [frame for block in blocks for frame in block.frames])


def _levels(graph: Graph, blocks: Sequence[Drawing], outside: Sequence[int]) -> dict[int, int]:
    """How many switches away from a box each switch is: 1 where a box hangs on it."""
    level = dict.fromkeys((node for block in blocks for node in block.at), 0)
    row, free = list(level), set(outside)
    while row:
        number = level[row[0]] + 1
        row = sorted({s for node in row for s in graph.near[node] if s in free})
        free.difference_update(row)
        level.update(dict.fromkeys(row, number))
    return level | dict.fromkeys(free, 1)


def _sides(graph: Graph, upper: set[int], level: dict[int, int], rows: int) -> dict[int, str]:
    """Whether what hangs below a switch is all in the upper row of boxes, all in the lower one, or in both."""
    if rows == 1:
        return dict.fromkeys(level, "both")
    side = {node: "upper" if node in upper else "lower" for node, number in level.items() if number == 0}
    for node in sorted(level, key=lambda n: level[n]):
        if level[node]:
            under = {side[n] for n in graph.near[node] if level[n] < level[node]}
            side[node] = under.pop() if len(under) == 1 else "both"
    return side


def _spread(graph: Graph, row: Sequence[int], at: dict[int, Point], y: float, width: float) -> None:
    """Each switch over the middle of what hangs on it, as far as they do not overlap."""
    if not row:
        return
    over = {}
    for switch in row:
        xs = [at[n][0] for n in graph.near[switch] if n in at]
        over[switch] = sum(xs) / len(xs) if xs else width / 2
    order = sorted(row, key=lambda s: (over[s], s))
    room = max(2 * graph.nodes[s].half[0] for s in row) + 22
    if over[order[-1]] - over[order[0]] < room * (len(row) - 1):
        centre = sum(over.values()) / len(row)
        room = max(room, min(130.0, 0.8 * width / len(row)))
        for i, switch in enumerate(order):
            at[switch] = (centre + (i - (len(row) - 1) / 2) * room, y)
        return
    last = -math.inf
    for switch in order:
        last = max(over[switch], last + room)
        at[switch] = (last, y)
