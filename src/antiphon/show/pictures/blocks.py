"""Parts of a picture: nodes and frames with their places, to be moved, flipped and framed as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.show.pictures.graph import Graph

Point = tuple[float, float]
Frame = tuple[float, float, float, float, str]  # left, top, width, height, label
_MARGIN = 26.0


@dataclass
class Drawing:
    """Nodes and frames with their places, from (0, 0) to (width, height)."""

    at: dict[int, Point]
    frames: list[Frame] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def moved(self, dx: float, dy: float) -> Drawing:
        at = {node: (x + dx, y + dy) for node, (x, y) in self.at.items()}
        frames = [(x + dx, y + dy, w, h, label) for x, y, w, h, label in self.frames]
        return Drawing(at, frames, self.width, self.height)


def fitted(graph: Graph, at: dict[int, Point], frames: Sequence[Frame] = ()) -> Drawing:
    """A block just large enough, with a margin."""
    left = [x - graph.nodes[n].half[0] for n, (x, _) in at.items()] + [f[0] for f in frames]
    right = [x + graph.nodes[n].half[0] for n, (x, _) in at.items()] + [f[0] + f[2] for f in frames]
    top = [y - graph.nodes[n].half[1] for n, (_, y) in at.items()] + [f[1] for f in frames]
    low = [y + graph.nodes[n].half[1] for n, (_, y) in at.items()] + [f[1] + f[3] for f in frames]
    block = Drawing(at, list(frames), max(right) - min(left) + 2 * _MARGIN, max(low) - min(top) + 2 * _MARGIN)
    return block.moved(_MARGIN - min(left), _MARGIN - min(top))


def flipped(block: Drawing) -> Drawing:
    """Upside down, labels of frames aside."""
    at = {node: (x, block.height - y) for node, (x, y) in block.at.items()}
    return Drawing(at, list(block.frames), block.width, block.height)


def framed(block: Drawing, label: str) -> Drawing:
    block = block.moved(0, 8)
    block.height += 16
    block.frames.insert(0, (4, 4, block.width - 8, block.height - 8, label))
    return block
