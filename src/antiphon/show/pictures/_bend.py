"""Route lines between nodes around other nodes, and draw arrowheads.

A line is a quadratic Bezier curve: start, control point, end. The control point lies beside the middle of the straight
line; several distances ("bends", in pixels to the left) are tried, from none to large, and the first curve that hides
behind no other node is taken. If all do, it is the one that is hidden least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats, Floats]  # start, control point, end: quadratic
# pixels, tried in this order
_BENDS = (0, 24, -24, 40, -40, 56, -56, 80, -80, 110, -110, 140, -140, 170, -170)


def least_hidden_bend(
    start: Floats, end: Floats, centres: Floats, radii: Floats, side: float, bends: Sequence[float], samples: int
) -> tuple[float, Floats]:
    """Return the best bend (`side` plus one of `bends`) and its control point.

    That is the first whose curve passes by all obstacles, else the one that overlaps them least at `samples` points.
    Obstacles are circles with these centres and radii. O(bends * samples * obstacles).
    """
    normal = np.array([end[1] - start[1], start[0] - end[0]]) / (math.dist(start, end) or 1.0)  # to the left; y is down
    t = np.linspace(0, 1, samples)[1:-1, None]  # without the ends
    best, least_overlap = (side, start), math.inf  # replaced by the first bend
    for bend in bends:
        control = (start + end) / 2 + normal * (side + bend)
        # per sample and obstacle, the distance from its rim; below 0 within it
        gaps = np.linalg.norm(curve_points(start, control, end, t)[:, None] - centres[None], axis=2) - radii
        overlap = float(np.maximum(-gaps, 0).sum())
        if overlap < least_overlap:
            best, least_overlap = (side + bend, control), overlap
        if not overlap:
            break
    return best


def control_point(a: int, b: int, centres: Floats, radii: Floats, side: float = 0.0) -> Floats:
    """Return the control point of the curve from node a to node b, bent as little as needed to pass by other nodes.

    `side`: pixels to the left by which the line is moved before it is bent. O(nodes).
    """
    is_obstacle = np.ones(len(centres), bool)
    is_obstacle[[a, b]] = False
    _, control = least_hidden_bend(
        centres[a], centres[b], centres[is_obstacle], radii[is_obstacle] + 4, side, _BENDS, samples=33
    )
    return control


def curve_points(start: Floats, control: Floats, end: Floats, t: Floats) -> Floats:
    """Return the points of a quadratic curve at `t`, from 0 (start) to 1 (end)."""
    position: Floats = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
    return position


def trim_curve(start: Floats, control: Floats, end: Floats, gaps: tuple[float, float]) -> Curve:
    """Return the part of the curve that is farther than `gaps` pixels from its start and its end."""
    samples, (start_gap, end_gap) = np.linspace(0, 1, 257)[:, None], gaps
    curve = curve_points(start, control, end, samples)
    inside = np.flatnonzero(
        (np.linalg.norm(curve - start, axis=1) >= start_gap) & (np.linalg.norm(curve - end, axis=1) >= end_gap)
    )
    if len(inside) < 2:
        return start, control, end
    # the control point of a part of the curve follows from de Casteljau's construction
    low, high = float(samples[inside[0], 0]), float(samples[inside[-1], 0])
    part_control = (1 - low) * ((1 - high) * start + high * control) + low * ((1 - high) * control + high * end)
    ends = curve_points(start, control, end, np.array([[low], [high]]))
    return ends[0], part_control, ends[1]


def arrow_head(tip: Floats, before: Floats) -> str:
    """Return a triangle that points from `before` to its tip, as the points of an SVG polygon."""
    ahead = (tip - before) / (math.dist(tip, before) or 1.0)
    side = np.array([-ahead[1], ahead[0]])
    foot = tip - ahead * 10  # pixels
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, foot + side * 4.5, foot - side * 4.5))


def curve_path(curve: Curve) -> str:
    """Return the curve as the path of an SVG element."""
    (ax, ay), (mx, my), (bx, by) = curve
    return f"M{ax:.1f} {ay:.1f} Q{mx:.1f} {my:.1f} {bx:.1f} {by:.1f}"
