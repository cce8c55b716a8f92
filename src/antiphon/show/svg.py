"""A machine as a picture: ranks and switches by their place, links as wide as they are fast."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from html import escape

from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.units import format_bandwidth

MOST_NODES = 128
_COLOURS = ("#2f6fab", "#c2622d", "#3c8d5a", "#8456a8", "#a8333f", "#6b6b6b")
_NODE = 17  # radius in pixels

Point = tuple[float, float]


def topology_svg(topology: Topology) -> str:
    """One self-contained SVG; both ways of a pair of links are one line, a one-way link is dashed."""
    if topology.nodes > MOST_NODES:
        raise Unsupported(
            f"a picture of {topology.nodes} nodes is unreadable (at most {MOST_NODES}); "
            "keep some ranks with --only, or use --json"
        )
    at, width, height = _layout(topology)
    kinds = sorted({t.kind for t in topology.types})
    colour = {kind: _COLOURS[i % len(_COLOURS)] for i, kind in enumerate(kinds)}
    height += 24 * len(kinds)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-weight="bold">{escape(topology.name)}</text>',
        *_lines(topology, at, colour),
        *_nodes(topology, at),
        *_legend(topology, colour, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _groups(topology: Topology) -> list[list[int]]:
    """Ranks by the place they share; switches are a group of their own."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in range(topology.ranks):
        found[topology.places[rank].rpartition("/")[0]].append(rank)
    return list(found.values())


def _layout(topology: Topology) -> tuple[dict[int, Point], float, float]:
    """Each group on a circle of its own, the groups in rows; switches in a row above them."""
    groups = _groups(topology)
    radius = max(70.0, max(len(g) for g in groups) * 3.2 * _NODE / (2 * math.pi) + 20)
    columns = min(len(groups), 4)
    top = 60.0 + (70 if topology.switches else 0)
    cell = 2 * radius + 90
    at: dict[int, Point] = {}
    for number, group in enumerate(groups):
        centre = (cell * (number % columns + 0.5), top + cell * (number // columns + 0.5) - 20)
        # a little askew, so that links between groups do not lie on top of each other
        turn = math.pi / len(group) - 0.22 if len(group) > 1 else 0.0
        mirror = -1 if number % 2 else 1  # neighbours face each other: links between equal places stay short
        for i, rank in enumerate(group):
            angle = -math.pi / 2 - turn + 2 * math.pi * i / len(group)
            at[rank] = (centre[0] + mirror * radius * math.cos(angle), centre[1] + radius * math.sin(angle))
    width = max(cell * columns, 60.0 * (topology.switches + 1), 320.0)
    for i in range(topology.switches):
        at[topology.ranks + i] = (width * (i + 1) / (topology.switches + 1), 75.0)
    return at, width, top + cell * math.ceil(len(groups) / columns)


def _lines(topology: Topology, at: dict[int, Point], colour: dict[str, str]) -> list[str]:
    wide: dict[tuple[int, int, str], Fraction] = defaultdict(Fraction)
    for link in range(topology.links):
        kind = topology.types[topology.link_type[link]].kind
        wide[int(topology.link_src[link]), int(topology.link_dst[link]), kind] += topology.bandwidth(link)
    lines = []
    for (a, b, kind), bandwidth in sorted(wide.items()):
        back = wide.get((b, a, kind))
        if back == bandwidth and b < a:
            continue  # drawn with its other way
        two_way = back == bandwidth
        stroke = min(1.7 * float(bandwidth / topology.unit), 10)
        title = f"{a} {'and' if two_way else 'to'} {b}: {kind}, {format_bandwidth(bandwidth)}"
        dash = "" if two_way else ' stroke-dasharray="8 3"'
        lines.append(
            f'<path d="{_curve(at[a], at[b], kind, colour, two_way)}" fill="none" stroke="{colour[kind]}" '
            f'stroke-width="{stroke:.1f}" stroke-opacity="0.75"{dash}><title>{escape(title)}</title></path>'
        )
    return lines


def _curve(a: Point, b: Point, kind: str, colour: dict[str, str], two_way: bool) -> str:
    """A straight line, bent for the second kind of link on, and for links that go one way."""
    bend = 14.0 * list(colour).index(kind) + (0 if two_way else 8)
    length = math.dist(a, b) or 1.0
    across = ((b[1] - a[1]) / length * bend, (a[0] - b[0]) / length * bend)
    middle = ((a[0] + b[0]) / 2 + across[0], (a[1] + b[1]) / 2 + across[1])
    return f"M{a[0]:.1f} {a[1]:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {b[0]:.1f} {b[1]:.1f}"


def _nodes(topology: Topology, at: dict[int, Point]) -> list[str]:
    shapes = []
    for node, (x, y) in at.items():
        title = f"<title>{escape(topology.places[node])}</title>"
        if node < topology.ranks:
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE}" fill="#f4f1ea" stroke="#333">{title}</circle>'
            label = str(node)
        else:
            box = f'x="{x - 26:.1f}" y="{y - 13:.1f}" width="52" height="26" rx="4"'
            shape = f'<rect {box} fill="#dde6ee" stroke="#333">{title}</rect>'
            label = topology.places[node].rpartition("/")[2][:8]
        shapes.append(shape + f'<text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{escape(label)}</text>')
    return shapes


def _legend(topology: Topology, colour: dict[str, str], height: float) -> list[str]:
    lines = []
    for i, (kind, paint) in enumerate(colour.items()):
        y = height - 24 * (len(colour) - i) + 6
        speeds = sorted({t.bandwidth for t in topology.types if t.kind == kind})
        text = f"{kind}: {', '.join(format_bandwidth(s) for s in speeds)} each way"
        lines.append(f'<path d="M16 {y - 4:.0f} h34" stroke="{paint}" stroke-width="4"/>')
        lines.append(f'<text x="60" y="{y:.0f}">{escape(text)}</text>')
    return lines
