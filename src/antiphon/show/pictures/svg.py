"""Draw a machine as SVG: ranks and switches at their positions, links as wide as their bandwidth.

Stages of `topology_svg`: merge links and fold large machines (`graph`), compute positions (`layout`), route lines
around nodes (`_bend`), then write elements from back to front: frames of boxes, bands of shared limits, links, nodes,
labels, and a legend of colours and widths below. Numbers without a name are pixels, as in `layout`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from fractions import Fraction
from html import escape

import numpy as np

from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.show.pictures._bend import Floats, curve_path, least_hidden_bend
from antiphon.show.pictures.graph import RANK, STACK, DrawnEdge, DrawnGraph, fold_nodes, graph_of
from antiphon.show.pictures.layout import Drawing, Point, arrange

MAX_NODES = 128  # more are folded (`fold_nodes`)
MAX_TREE_NODES = 64  # of a tree, which gets wide
_KIND_COLOURS = {
    "nvlink": "#5d8f1f", "xgmi": "#c8502d", "pcie": "#4a6fa5", "ib": "#7b4ea3", "ethernet": "#2b8a8a", "wan": "#b3263a",
    "trunk": "#3d4f66", "uplink": "#3d4f66", "slingshot": "#0e7c66", "socket": "#8a6d3b", "link": "#2f6fab",
    "port": "#9aa5b1", "local": "#2f6fab", "global": "#c2622d",
}  # fmt: skip
_MORE_COLOURS = ("#2f6fab", "#c2622d", "#3c8d5a", "#8456a8", "#a8333f", "#6b6b6b")
_BAND_COLOURS = ("#e8a33d", "#e2c044", "#d98a6a", "#d7b98e")
_BENDS = (0, 30, -30, 52, -52, 80, -80, 120, -120, 170, -170)  # pixels to the side, tried in this order
MAX_WIDTH_RATIO = 5.5  # of the widest line to the thinnest: 10 pixels to 1.8
_ROW = 24.0  # pixels between rows of the legend
_BEND_SAMPLES = 25  # points of a curve at which its distance from other nodes is tested


def topology_svg(topology: Topology) -> str:
    """Return a picture. Both directions of a link are one line, dashed if they differ; shared limits are bands below.

    Above MAX_NODES nodes equal ranks of a switch, then boxes, are drawn as one.
    """
    graph = graph_of(topology)
    tree = graph.is_tree(range(len(graph.nodes)))
    graph = fold_nodes(graph, MAX_TREE_NODES if tree else MAX_NODES)
    if len(graph.nodes) > MAX_NODES:
        raise Unsupported(
            f"a picture of {topology.nodes} nodes is unreadable (at most {MAX_NODES}); "
            "keep some ranks with TOPO:only=RANKS, or use --json"
        )
    colour, stroke = kind_colours(graph), stroke_widths(graph, topology.unit)
    drawing = arrange(graph).moved(dx=0, dy=34)
    legend = _make_legend(graph, colour, stroke)
    width = max(drawing.width, 16 + max(_text_width(text) for text in (topology.name, *(t for t, _ in legend))))
    drawing = drawing.moved((width - drawing.width) / 2, dy=0)
    legend_top = drawing.height + 40
    height = legend_top + _ROW * len(legend) + 6
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-weight="bold">{escape(topology.name)}</text>',
        *_draw_frames(drawing),
        *_draw_links(graph, drawing, colour, stroke),
        *_draw_nodes(graph, drawing),
        *_draw_labels(graph, drawing),
        *(
            f'<g transform="translate(16 {legend_top + _ROW * (i + 0.5):.0f})">{row}</g>'
            for i, (_, row) in enumerate(legend)
        ),
        "</svg>",
    ]
    return "\n".join(elements) + "\n"


def _text_width(text: str) -> float:
    """Return about the width of a text in the legend, with a margin."""
    return 7.4 * len(text) + 20


def kind_colours(graph: DrawnGraph) -> dict[str, str]:
    """Return a colour for each kind of link; kinds without one of their own take _MORE_COLOURS in turn."""
    kinds = sorted({edge.kind for edge in graph.edges})
    unnamed = [kind for kind in kinds if kind not in _KIND_COLOURS]
    return {kind: _KIND_COLOURS.get(kind) or _MORE_COLOURS[unnamed.index(kind) % len(_MORE_COLOURS)] for kind in kinds}


def stroke_widths(graph: DrawnGraph, unit: Fraction) -> dict[Fraction, float]:
    """Return the width of a line, in pixels, by its bytes per second.

    Widths are proportional to bandwidths if the greatest is at most MAX_WIDTH_RATIO times the least, else to a power of
    them, so that their widths have this ratio. The widest line has at most 10 pixels.
    """
    speeds = sorted({edge.bandwidth for edge in graph.edges})
    if not speeds:
        return {}
    ratio = float(speeds[-1] / speeds[0])
    power = 1.0 if ratio <= MAX_WIDTH_RATIO else math.log(MAX_WIDTH_RATIO) / math.log(ratio)
    # the thinnest line: 1.8 pixels for a unit link, more for a faster one, but less if the widest had over 10 pixels
    thin = min(max(1.8, 1.8 * math.sqrt(speeds[0] / unit)), 10 / ratio**power)
    return {speed: thin * float(speed / speeds[0]) ** power for speed in speeds}


def _draw_frames(drawing: Drawing) -> list[str]:
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="12" fill="#f7f8fa" stroke="#b9c2cc"/>'
        for x, y, w, h, _label in drawing.frames
    ]


def _draw_labels(graph: DrawnGraph, drawing: Drawing) -> list[str]:
    """Draw the names of the frames, on the side away from the fabric, with a rim, to be readable on links."""
    rim = 'fill="#5b6672" font-size="12" stroke="#f7f8fa" stroke-width="5" paint-order="stroke" stroke-linejoin="round"'
    return [
        f'<text x="{x:.1f}" y="{y:.1f}" {rim}>{escape(frame.label)}</text>'
        for (x, y), frame in zip(label_points(graph, drawing), drawing.frames, strict=True)
    ]


def label_points(graph: DrawnGraph, drawing: Drawing) -> list[Point]:
    """Return where the name of each frame begins: on the side away from the fabric."""
    outside = [y for n, (_, y) in drawing.position.items() if not graph.nodes[n].container]
    fabric_y = sum(outside) / len(outside) if outside else 0.0  # without a fabric, names are at the bottom
    return [
        (frame.x + 10, frame.y + frame.height - 9 if frame.y > fabric_y else frame.y + 17) for frame in drawing.frames
    ]


def _draw_links(
    graph: DrawnGraph, drawing: Drawing, colour: dict[str, str], stroke: dict[Fraction, float]
) -> list[str]:
    """Draw bands of shared limits first, then the links, the slow ones on top."""
    band_colour = {name: _BAND_COLOURS[i % len(_BAND_COLOURS)] for i, name in enumerate(graph.limits)}
    bands, lines = [], []
    for edge, curve in link_curves(graph, drawing):
        (ax, ay), middle, (bx, by) = curve
        line = f"M{ax:.1f} {ay:.1f} L{bx:.1f} {by:.1f}" if middle is None else curve_path((curve[0], middle, curve[2]))
        thick = stroke[edge.bandwidth]
        title = "; ".join([_link_title(graph, edge), *(f"{name}: {graph.limits[name]}" for name in edge.limits)])
        if edge.limits:
            bands.append(
                f'<path d="{line}" fill="none" stroke="{band_colour[edge.limits[0]]}" stroke-width="{thick + 8:.1f}" '
                f'stroke-opacity="0.45" stroke-linecap="round"/>'
            )
        dash = "" if edge.symmetric else ' stroke-dasharray="8 3"'
        lines.append(
            f'<path d="{line}" fill="none" stroke="{colour[edge.kind]}" stroke-width="{thick:.1f}" '
            f'stroke-opacity="0.8"{dash}><title>{escape(title)}</title></path>'
        )
    return bands + lines


def link_curves(graph: DrawnGraph, drawing: Drawing) -> list[tuple[DrawnEdge, tuple[Floats, Floats | None, Floats]]]:
    """Return the line of each edge, the widest first: from centre to centre, bent as little as needed to pass by the
    other nodes (start, control point, end; None: it is straight)."""
    centres = np.array([drawing.position[n] for n in range(len(graph.nodes))])
    radii = np.array([min(node.half) for node in graph.nodes])
    drawn: dict[tuple[int, int], int] = defaultdict(int)
    curves: list[tuple[DrawnEdge, tuple[Floats, Floats | None, Floats]]] = []
    for edge in sorted(graph.edges, key=lambda e: -e.bandwidth):
        parallel = drawn[edge.a, edge.b]  # lines of other kinds between the same nodes, so far
        drawn[edge.a, edge.b] += 1
        a, b = centres[edge.a], centres[edge.b]
        is_obstacle = np.ones(len(centres), bool)
        is_obstacle[[edge.a, edge.b]] = False
        # lines of several kinds lie side by side; one of unequal directions (dashed) is bent as well
        side = 14.0 * parallel + (0 if edge.symmetric else 8)
        bend, middle = least_hidden_bend(
            a, b, centres[is_obstacle], radii[is_obstacle] + 3, side, bends=_BENDS, samples=_BEND_SAMPLES
        )
        curves.append((edge, (a, middle if bend else None, b)))
    return curves


def _link_title(graph: DrawnGraph, edge: DrawnEdge) -> str:
    """Return the tooltip of a line: its ends, its kind, and its bandwidth in each direction that has one."""
    a, b = (_node_name(graph, node) for node in (edge.a, edge.b))
    if edge.symmetric:
        return f"{a} and {b}: {edge.kind}, {edge.speed()} each way"
    directions = [(a, b, edge.forward, False), (b, a, edge.backward, True)]
    return ", ".join(
        f"{x} to {y}: {edge.kind}, {edge.speed(backwards)}" for x, y, speed, backwards in directions if speed
    )


def _node_name(graph: DrawnGraph, node: int) -> str:
    drawn = graph.nodes[node]
    return f"rank {drawn.label}" if drawn.shape == RANK else drawn.place


def _draw_nodes(graph: DrawnGraph, drawing: Drawing) -> list[str]:
    shapes = []
    for number, node in enumerate(graph.nodes):
        x, y = drawing.position[number]
        title = f"<title>{escape(node.place)}</title>"
        if node.shape == RANK:
            circle = f'cx="{x:.1f}" cy="{y:.1f}" r="{node.half[0]:.0f}" fill="#f4f1ea" stroke="#333"'
            shape = f"<circle {circle}>{title}</circle>"
        elif node.shape == STACK:
            shape = _draw_box(x + 4, y - 4, *node.half, "#e9e4d8", "") + _draw_box(x, y, *node.half, "#f4f1ea", title)
            span = f"{node.ranks[0]}-{node.ranks[-1]}" if len(node.ranks) > 1 else str(node.ranks[0])
            shape += _draw_text((x, y - 3), node.label) + _draw_text((x, y + 13), span, "#5b6672", size=11)
        else:
            shape = _draw_box(x, y, *node.half, "#dde6ee", title)
        shapes.append(shape + (_draw_text((x, y + 4.5), node.label) if node.shape != STACK and node.label else ""))
    return shapes


def _draw_box(x: float, y: float, half_width: float, half_height: float, fill: str, title: str) -> str:
    corner = f'x="{x - half_width:.1f}" y="{y - half_height:.1f}"'
    size = f'width="{2 * half_width:.1f}" height="{2 * half_height:.1f}"'
    return f'<rect {corner} {size} rx="4" fill="{fill}" stroke="#333">{title}</rect>'


def _draw_text(position: Point, text: str, fill: str = "#111", size: int = 13) -> str:
    x, y = position
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{fill}" font-size="{size}"'
    return f"<text {attributes}>{escape(text)}</text>"


def _make_legend(graph: DrawnGraph, colour: dict[str, str], stroke: dict[Fraction, float]) -> list[tuple[str, str]]:
    """Return the legend as rows of (plain text, SVG): a row per kind of link with a sample of each width, then one per
    kind of shared limit. The plain text, with spaces in place of samples, gives the width of the row."""
    rows = []
    for kind, fill in colour.items():
        # the width and the text are those of the faster direction
        samples = {(e.bandwidth, e.speed(e.backward > e.forward)) for e in graph.edges if e.kind == kind}
        shown = sorted(samples)[:5]
        elements = [f'<text font-weight="bold" y="4" fill="{fill}">{escape(kind)}</text>']
        x, plain = 7.6 * len(kind) + 18, kind
        for number, (speed, written) in enumerate(shown):
            words = written + (" each way" if number == len(shown) - 1 else "")
            elements.append(f'<path d="M{x:.0f} 0 h34" stroke="{fill}" stroke-width="{stroke[speed]:.1f}"/>')
            elements.append(f'<text x="{x + 40:.0f}" y="4">{escape(words)}</text>')
            x, plain = x + 40 + _text_width(words), plain + " " * 8 + words
        rows.append((plain, "".join(elements)))
    count_of_limit: dict[tuple[str, str], int] = defaultdict(int)
    for name, description in graph.limits.items():
        count_of_limit[re.sub(r"\d+", "*", name), description] += 1
    for (name, description), count in count_of_limit.items():
        words = f"{name}: {description}" + (f" ({count} of them)" if count > 1 else "")
        band = f'<path d="M0 0 h34" stroke="{_BAND_COLOURS[0]}" stroke-opacity="0.45" stroke-width="10"/>'
        rows.append((" " * 6 + words, band + f'<text x="44" y="4">{escape(words)}</text>'))
    return rows
