"""Draw the trees along which data travels: a panel per tree, in the layout of the machine's own picture.

Stages of `trees_svg`: recover the trees (`data_trees_of`), lay out the machine once for all panels
(`_make_panel_layout`), route the arrows of each tree around the nodes (`_route_arrows`), then draw each panel. Links
are grey, arrows coloured by their distance from the root, and the root is filled. Title lines compare the schedule's
rate with the bound; a panel's caption states the share of the data that its tree carries. Numbers without
a name are pixels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from html import escape
from itertools import pairwise

import numpy as np

from antiphon.core.bounds import Bound
from antiphon.core.collective import COMBINING
from antiphon.core.loads import throughput
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.show.pictures._bend import Curve, Floats, arrow_head, control_point, curve_path, trim_curve
from antiphon.show.pictures.data_trees import (
    IN,
    IN_AND_OUT,
    NO_TREE,
    SAME_BOTH_WAYS,
    DataTree,
    DataTrees,
    data_trees_of,
)
from antiphon.show.pictures.graph import RANK, DrawnGraph, graph_of
from antiphon.show.pictures.layout import Drawing, arrange
from antiphon.units import format_bandwidth, plural

MAX_NODES = 128  # more are unreadable
MAX_PANELS = 24  # trees that are drawn; the others are only counted
# All lengths are in pixels.
_WIDTH = 1150.0  # of the whole picture, unless one panel is wider
_NODE_DISTANCE = 62.0  # between the centres of the closest two nodes, to which layouts shrink
_MARGIN = 31.0  # around the nodes of a panel
_CAPTION = 30.0  # height of the text below a panel
_EDGE_MARGIN = 10.0  # between lines and the edge of a panel
# _RAMP: colours of arrows by their number. _GREY: texts, _PALE: ranks that the tree does not reach
_RAMP = ("#12406e", "#1f7fa8", "#2e9e78", "#8aa81c", "#dd9a12", "#d0591f", "#a3243f", "#6d2a76")
_ROOT, _GREY, _PALE, _LINK = "#12406e", "#5b6672", "#8b95a0", "#d5dae0"
_TITLE_STYLE, _SUBTITLE_STYLE = ' font-weight="bold" font-size="15"', ' fill="#3b444d"'


def trees_svg(schedule: Schedule, topology: Topology, limits: Bound | None = None, root: int | None = None) -> str:
    """Return a picture of the trees of a schedule.

    Arrows are coloured by their distance from the root; data that travels along no tree is coloured by step. If there
    are many roots, the trees of `root` are drawn, or of the first. A hop through switches is drawn along its links if
    only one rank sends (or receives) through them, else straight. `limits`: the bound that the title compares the rate
    with. Raises Unsupported above MAX_NODES nodes, which would not be readable.
    """
    check_drawable(topology)
    graph = graph_of(topology)
    data_trees = data_trees_of(schedule, topology, root)
    panel_layout = _make_panel_layout(graph)
    shown = data_trees.trees[:MAX_PANELS]
    colours = _colour_ramp(max((tree.depth for _, tree in shown), default=0))
    title_lines = _title_lines(schedule, topology, limits, data_trees)
    legend, legend_width = _make_legend([tree for _, tree in shown], colours)
    lines = [_route_arrows(panel_layout, tree) for _, tree in shown]
    pad_left, pad_top, pad_right, pad_bottom = _measure_overhang(
        panel_layout, [line.curve for arrows in lines for line in arrows]
    )
    panel_width = pad_left + panel_layout.drawing.width + pad_right
    panel_height = pad_top + panel_layout.drawing.height + pad_bottom + _CAPTION
    # Panels in a grid, below the title lines; a row of captions below each.
    columns, top = _count_columns(panel_width, len(shown)), 16.0 + 20 * len(title_lines)
    width = max(  # a character of the bold title is about 8.6 px wide, one of the other lines 7 px
        panel_width * columns,
        32 + max(legend_width, 8.6 * len(title_lines[0]), *(7.0 * len(text) for text in title_lines)),
    )
    height = top + panel_height * math.ceil(len(shown) / columns) + 46
    first_x = (width - panel_width * columns) / 2
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for i, text in enumerate(title_lines):
        elements.append(f'<text x="16" y="{25 + 20 * i}"{_SUBTITLE_STYLE if i else _TITLE_STYLE}>{escape(text)}</text>')
    for i, ((share, tree), arrows) in enumerate(zip(shown, lines, strict=True)):
        x = first_x + pad_left + panel_width * (i % columns)
        y = top + pad_top + panel_height * (i // columns)
        caption_x, caption_y = panel_layout.drawing.width / 2, panel_layout.drawing.height + pad_bottom + 7
        caption_attributes = f'x="{caption_x:.1f}" y="{caption_y:.1f}" text-anchor="middle"'
        caption = f'<text {caption_attributes} fill="#22282e">{escape(_caption_text(share, data_trees, tree))}</text>'
        elements += [
            f'<g transform="translate({x:.1f} {y:.1f})">',
            *_draw_panel(panel_layout, tree, arrows, colours),
            caption,
            "</g>",
        ]
    return "\n".join([*elements, f'<g transform="translate(16 {height - 22:.0f})">{legend}</g>', "</svg>"]) + "\n"


def check_drawable(topology: Topology) -> None:
    """Raise Unsupported unless every node has room. Called before long work, so that it is not in vain."""
    if topology.nodes > MAX_NODES:
        raise Unsupported(
            f"a picture of trees over {topology.nodes} nodes is unreadable (at most {MAX_NODES}); "
            "keep some of the ranks with TOPO:only=RANKS"
        )


# ---- words ----


def _title_lines(schedule: Schedule, topology: Topology, limits: Bound | None, data_trees: DataTrees) -> list[str]:
    """Return the title: what is drawn, the rate, and how the data travel in the shapes that occur."""
    count, shapes = len(data_trees.trees), {tree.shape for _, tree in data_trees.trees}
    subject = plural(count, "part" if NO_TREE in shapes else "tree")
    if data_trees.has_one_of_roots:
        subject += f" of rank {data_trees.root}, one of {data_trees.roots} roots"
    lines = [f"{schedule.collective.kind} on {topology.name}: {subject}", *_rate_lines(schedule, topology, limits)]
    if shapes == {SAME_BOTH_WAYS}:
        lines.append("each part goes up its tree to the root, adding on the way, and down the same tree again")
    elif shapes == {IN}:
        lines.append("each part goes in to the root" + ", adding on the way" * (schedule.collective.kind in COMBINING))
    elif IN_AND_OUT in shapes and NO_TREE not in shapes:
        lines.append("each part goes in to its root along dashed arrows, adding on the way, and out along full ones")
    elif NO_TREE in shapes:
        lines.append("not all parts travel along trees: colours show the step; dashed arrows add")
    if count > MAX_PANELS:
        undrawn = Fraction(sum(share for share, _ in data_trees.trees[MAX_PANELS:]), data_trees.total)
        lines.append(f"only the {MAX_PANELS} with the most data are drawn; the others have {float(undrawn):.0%} of it")
    return lines


def _rate_lines(schedule: Schedule, topology: Topology, limits: Bound | None) -> list[str]:
    """Return the schedule's rate in the limit of many pieces, compared with the bound."""
    rate = throughput(schedule, topology)
    if rate is None:
        return []
    rate_text = f"rate {rate / topology.unit} unit links, {format_bandwidth(rate)}"
    best = limits.bytes_per_second if limits is not None else None
    if best is None:
        return [rate_text]
    if rate == best:
        return [f"{rate_text}: no schedule is faster"]
    if limits is not None and rate == limits.without_switches:
        return [f"{rate_text}: no schedule is faster without the help of switches"]
    return [f"{rate_text}; bound {best / topology.unit}, {format_bandwidth(best)}"]


def _caption_text(share: int, data_trees: DataTrees, tree: DataTree) -> str:
    """Return the share of the data that a tree carries, as a fraction, and its depth."""
    data = "its data" if data_trees.has_one_of_roots else "the data"
    share_text = f"all of {data}" if share == data_trees.total else f"{share}/{data_trees.total} of {data}"
    return f"{share_text}, {plural(tree.depth, 'step') if tree.shape == NO_TREE else f'{tree.depth} deep'}"


def _make_legend(shown: Sequence[DataTree], colours: Sequence[str]) -> tuple[str, float]:
    """Return the legend of colours as SVG, and its width."""
    has_steps = any(tree.shape == NO_TREE for tree in shown)
    words = "steps:" if has_steps else "root, and hops from it:"
    text_x = 0 if has_steps else 25
    elements = [] if has_steps else [f'<circle cx="8" cy="0" r="8" fill="{_ROOT}"/>']
    elements.append(f'<text x="{text_x}" y="4" fill="{_GREY}">{words}</text>')
    x = text_x + 6.3 * len(words) + 14
    for number in range(1, len(colours) + 1, max(1, math.ceil(len(colours) / 12))):
        paint = colours[number - 1]
        elements.append(f'<path d="M{x:.0f} 0 h20" stroke="{paint}" stroke-width="2.6"/>')
        elements.append(f'<polygon points="{x + 28:.0f},0 {x + 18:.0f},4.5 {x + 18:.0f},-4.5" fill="{paint}"/>')
        elements.append(f'<text x="{x + 33:.0f}" y="4" fill="{_GREY}">{number}</text>')
        x += 62
    return "".join(elements), x


# ---- panels ----


@dataclass(frozen=True)
class PanelLayout:
    """Common to all panels: the positions and radii of nodes, and the machine's links, drawn behind the tree."""

    graph: DrawnGraph
    drawing: Drawing
    centres: Floats
    radii: Floats
    links: tuple[Curve, ...]

    def line(self, a: int, b: int, side: float = 0.0) -> Curve:
        """Return the line from centre to centre; there and back are the same line unless moved to a `side`."""
        low, high = min(a, b), max(a, b)
        middle = control_point(low, high, self.centres, self.radii, side if a == low else -side)
        return self.centres[a], middle, self.centres[b]


def _make_panel_layout(graph: DrawnGraph) -> PanelLayout:
    """Return the layout of the machine's picture, with nodes closer together if there is room."""
    drawing = arrange(graph)
    centres = np.array([drawing.position[n] for n in range(len(graph.nodes))])
    # by pair the distance; on the diagonal 1e9, so that no node is the closest to itself
    gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2) + 1e9 * np.eye(len(centres))
    # Scale the layout down until the closest two nodes are _NODE_DISTANCE apart, but to no less than 45 % of its size.
    # A layout with frames (around boxes) keeps its size, as frames are not scaled.
    factor = 1.0 if drawing.frames else min(1.0, max(0.45, _NODE_DISTANCE / float(gaps.min())))
    if factor < 1:
        centres = (centres - centres.min(axis=0)) * factor + _MARGIN
        width, height = (float(v) for v in centres.max(axis=0) + _MARGIN)
        drawing = Drawing(
            {n: (x, y) for n, (x, y) in enumerate(centres.tolist())}, frames=[], width=width, height=height
        )
    radii = np.array([min(node.half) for node in graph.nodes])
    without_links = PanelLayout(graph, drawing, centres, radii, links=())
    pairs = sorted({(edge.a, edge.b) for edge in graph.edges})
    return replace(without_links, links=tuple(without_links.line(*pair) for pair in pairs))


def _measure_overhang(panel_layout: PanelLayout, curves: Sequence[Curve]) -> list[float]:
    """Return the pixels by which lines reach beyond the drawing of nodes: to the left, above, to the right, below."""
    control_points = np.array([*panel_layout.links, *curves]).reshape(-1, 3, 2)
    if not len(control_points):
        return [0.0] * 4
    start, middle, end = control_points.transpose(1, 0, 2)
    # The extreme of a quadratic curve is near its point at t = 1/2: (start + 2 control + end) / 4.
    extremes = np.concatenate([start, (start + 2 * middle + end) / 4, end])
    size = np.array([panel_layout.drawing.width, panel_layout.drawing.height])
    overhang = np.concatenate([_EDGE_MARGIN - extremes.min(axis=0), extremes.max(axis=0) + _EDGE_MARGIN - size])
    return [max(0.0, float(value)) for value in overhang]


def _count_columns(panel_width: float, count: int) -> int:
    """Return the number of columns: as many panels as fit, then as few as need no more rows."""
    fitting = max(1, int(_WIDTH // panel_width))
    return max(1, math.ceil(count / max(1, math.ceil(count / fitting))))


def _draw_panel(
    panel_layout: PanelLayout, tree: DataTree, lines: Sequence[DrawnArrow], colours: Sequence[str]
) -> list[str]:
    """Draw frames, links, arrows and nodes, each over those before."""
    frames = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="12" fill="#f7f8fa" stroke="{_LINK}"/>'
        for x, y, w, h, _label in panel_layout.drawing.frames
    ]
    ends = {node for line in lines for node in line.ends}  # switches among these are drawn over the lines' ends
    switches = [n for n, node in enumerate(panel_layout.graph.nodes) if node.shape != RANK]
    return [
        *frames,
        f'<path d="{" ".join(map(curve_path, panel_layout.links))}" fill="none" stroke="{_LINK}" stroke-width="1.4"/>',
        *(_draw_switch(panel_layout, n) for n in switches if n not in ends),
        *(_draw_arrow(panel_layout, line, colours[line.number - 1]) for line in lines),
        *(_draw_switch(panel_layout, n) for n in switches if n in ends),
        *_draw_ranks(panel_layout, tree, colours),
    ]


def _unambiguous_switches(tree: DataTree) -> set[int]:
    """Return the switches through which all arrows come from one parent: only there may arrows share a line."""
    if tree.shape == NO_TREE:
        return set()
    parents: dict[int, set[int]] = defaultdict(set)
    for arrow in tree.arrows:
        for switch in arrow.via:
            parents[switch].add(arrow.parent)
    return {switch for switch, switch_parents in parents.items() if len(switch_parents) == 1}


@dataclass(frozen=True)
class DrawnArrow:
    """An arrow as it is drawn between the nodes `ends`: from rim to rim, with a head if it ends at a rank."""

    ends: tuple[int, int]
    curve: Curve
    number: int  # hop from the root, or step: gives the colour
    dashed: bool
    title: str


def _route_arrows(panel_layout: PanelLayout, tree: DataTree) -> list[DrawnArrow]:
    """Return the arrows to draw, those farthest from the root first; a line that several hops share is drawn once."""
    shared_switches = _unambiguous_switches(tree)
    drawn: dict[tuple[int, int, int, bool], DrawnArrow] = {}
    for arrow in reversed(tree.arrows):
        nodes = [arrow.src, *(arrow.via if shared_switches.issuperset(arrow.via) else ()), arrow.dst]
        title = f"{'step' if tree.shape == NO_TREE else 'hop'} {arrow.number}: rank {arrow.src} to rank {arrow.dst}"
        # what goes in is added; a tree that only leads in needs no mark
        dashed = arrow.inwards and tree.shape != IN
        # Bend arrows of the two directions to different sides, so that they do not cover each other.
        bend = -34.0 if tree.shape == IN_AND_OUT and dashed else 14.0 if tree.shape in (IN_AND_OUT, NO_TREE) else 0.0
        for a, b in pairwise(nodes):
            key = (a, b, arrow.number, arrow.inwards)
            if key not in drawn:
                gaps = [
                    panel_layout.radii[n] + 1.5 if panel_layout.graph.nodes[n].shape == RANK else 0.0 for n in (a, b)
                ]
                curve = trim_curve(*panel_layout.line(a, b, bend), (float(gaps[0]), float(gaps[1])))
                drawn[key] = DrawnArrow((a, b), curve, arrow.number, dashed, title)
    return list(drawn.values())


def _draw_arrow(panel_layout: PanelLayout, line: DrawnArrow, colour: str) -> str:
    """Draw an arrow; one that ends at a switch goes on from there, so that it has no head."""
    shaft, point = line.curve, ""
    if panel_layout.graph.nodes[line.ends[1]].shape == RANK:
        shaft = trim_curve(*line.curve, (0.0, 7.0))
        point = f'<polygon points="{arrow_head(line.curve[2], shaft[2])}" fill="{colour}"/>'
    dash = ' stroke-dasharray="5 3"' if line.dashed else ""
    return (
        f'<path d="{curve_path(shaft)}" fill="none" stroke="{colour}" stroke-width="2.6"{dash}>'
        f"<title>{line.title}</title></path>{point}"
    )


def _draw_switch(panel_layout: PanelLayout, number: int) -> str:
    (x, y), node = panel_layout.centres[number], panel_layout.graph.nodes[number]
    half_width, half_height = node.half
    corner = f'x="{x - half_width:.1f}" y="{y - half_height:.1f}" rx="4"'
    size = f'width="{2 * half_width:.1f}" height="{2 * half_height:.1f}"'
    words = f'x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle" fill="{_GREY}"'
    return f'<rect {corner} {size} fill="#f4f6f8" stroke="#c3cad2"/><text {words}>{escape(node.label)}</text>'


def _draw_ranks(panel_layout: PanelLayout, tree: DataTree, colours: Sequence[str]) -> list[str]:
    """Draw ranks: the root filled, ranks of the tree rimmed in the colour of their hop, all others pale."""
    # of several arrows to a rank the one nearest to the root gives the colour: it comes last
    rims = {(a.src if a.inwards else a.dst): colours[a.number - 1] for a in reversed(tree.arrows)}
    shapes = []
    for number, node in enumerate(panel_layout.graph.nodes):
        if node.shape != RANK:
            continue
        x, y = panel_layout.centres[number]
        fill, rim, ink, thick, bold = "#ffffff", rims.get(number, "#c3cad2"), "#111", 2.2, ""
        if number == tree.root:
            fill, rim, ink, bold = _ROOT, _ROOT, "#ffffff", ' font-weight="bold"'
        elif number in rims and tree.shape == NO_TREE:
            rim = _GREY
        elif number not in rims:
            ink, thick = _PALE, 1.2
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{node.half[0]:.0f}" fill="{fill}" stroke="{rim}" '
            f'stroke-width="{thick}"/><text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle" fill="{ink}"{bold}>'
            f"{node.label}</text>"
        )
    return shapes


def _colour_ramp(count: int) -> list[str]:
    """Return `count` colours, mixed between those of _RAMP, from dark blue on."""
    if count <= len(_RAMP):
        return list(_RAMP[:count])
    fixed = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in _RAMP])
    positions = np.linspace(0, len(_RAMP) - 1, count)
    mixed = np.array([np.interp(positions, np.arange(len(_RAMP)), fixed[:, i]) for i in range(3)]).T
    return ["#{:02x}{:02x}{:02x}".format(*(round(channel) for channel in colour)) for colour in mixed.tolist()]
