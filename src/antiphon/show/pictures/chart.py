"""Plot time against size as SVG: all candidates in grey, the best ones in colour, and the lower bound.

`chart` draws one collective of a tuning, predicted seconds on logarithmic axes. Each line is a candidate, with a style
by its role: "best" if it is fastest at some size, "nccl" if it stands for what NCCL would do, else "other".
`chart_svg`, which `tune -o FILE.svg` writes, returns a file of all collectives, with legends. Numbers without a name
are pixels (y downwards), such as the place of a text beside its mark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from antiphon.select import Candidate, Tuning
from antiphon.show.words import model_text, options_text
from antiphon.units import format_seconds, format_size, plural

COLOURS = ("#2f6fab", "#c2622d", "#3c8d5a", "#8456a8", "#b8860b", "#a8333f", "#2a8c8c", "#d1578f")
GREY, DARK, BOUND = "#c9c6bf", "#77736a", "#1d1d1b"
ROUNDING = 1e-9  # of logarithms: the ends of an axis belong to it
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Frame:
    """Where the axes lie, in pixels, and the values at their ends, as logarithms to base 10."""

    left: float
    top: float
    width: float
    height: float
    min_x: float
    max_x: float
    min_y: float
    max_y: float

    def x(self, size: float) -> float:
        """Return the pixel of a message size."""
        return self.left + self.width * (math.log10(size) - self.min_x) / ((self.max_x - self.min_x) or 1)

    def y(self, value: float) -> float:
        """Return the pixel of a value; values beyond the axis lie on its edge."""
        share = (math.log10(value) - self.min_y) / ((self.max_y - self.min_y) or 1)
        return self.top + self.height * (1 - min(max(share, 0.0), 1.0))


def line_styles(tuning: Tuning, kind: str) -> dict[int, tuple[str, str]]:
    """Return (role, colour) per candidate that has times, by its number in tuning.of(kind).

    "best": wins somewhere; "nccl": the baseline's best at the greatest size; "other".
    """
    candidates = tuning.of(kind)
    best: dict[int, str] = {}
    for range_ in tuning.ranges:
        if range_.collective == kind:
            number = next(i for i, c in enumerate(candidates) if c is range_.candidate)
            best.setdefault(number, COLOURS[len(best) % len(COLOURS)])
    timed = [i for i, c in enumerate(candidates) if c.seconds]
    baseline_planners, max_size = tuning.baselines.get(kind, ()), tuning.sizes[-1]
    # the number of the candidate that stands for NCCL; -1: none
    # among equals, prefer a candidate that is best somewhere: one line then shows both
    nccl = min(
        (i for i in timed if candidates[i].planner in baseline_planners),
        key=lambda i: (candidates[i].seconds[max_size], i not in best),
        default=-1,
    )
    style_of = dict.fromkeys(timed, ("other", GREY))
    if nccl >= 0:
        style_of[nccl] = ("nccl", DARK)
    never_best = {i: style for i, style in style_of.items() if i not in best}
    return {i: ("best", colour) for i, colour in best.items()} | never_best


def frame_of(tuning: Tuning, kind: str, width: float, height: float) -> Frame:
    """Return axes that hold every candidate."""
    bound = tuning.limits.get(kind)
    values = [s for c in tuning.of(kind) for s in c.seconds.values()]
    if bound is not None:
        values += bound.times.values()
    values = [v for v in values if v > 0] or [1.0]
    min_value, max_value = math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.05  # with margins, in decades
    left = 64.0 if width > 600 else 54.0
    min_size, max_size = math.log10(tuning.sizes[0]), math.log10(tuning.sizes[-1])
    # 14 pixels are free above the axes, 16 to the right, and 46 for the sizes below
    return Frame(
        left, top=14, width=width - left - 16, height=height - 14 - 46, min_x=min_size, max_x=max_size,
        min_y=min_value, max_y=max_value,
    )  # fmt: skip


def chart(tuning: Tuning, kind: str, width: int = 900, height: int = 460) -> str:
    """Return one chart: axes, the candidates that are nowhere best in grey, then NCCL's, the best, and the bound."""
    frame = frame_of(tuning, kind, width, height)
    candidates, bound = tuning.of(kind), tuning.limits.get(kind)
    roles = ("other", "nccl", "best")  # grey lines first: later lines lie on top
    lines = []
    styles = [(roles.index(role), i, role, colour) for i, (role, colour) in line_styles(tuning, kind).items()]
    for _, i, role, colour in sorted(styles):
        dash = ' stroke-dasharray="7 4"' if role == "nccl" else ""
        stroke_width = {"other": 1.0, "nccl": 2.0, "best": 2.6}[role]
        # data-c: the number of the candidate
        style = f'{dash} stroke="{colour}" stroke-width="{stroke_width}" data-c="{i}"'
        lines.append(_draw_line(frame, candidates[i].seconds, style, candidates[i]))
    if bound is not None:
        style = f' stroke="{BOUND}" stroke-width="1.6" stroke-dasharray="2 3"'
        lines.append(_draw_line(frame, bound.times, style, candidate=None))
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f"{escape(kind)}: time by size"
    head = f'<svg {size} font-family="{FONT}" font-size="12" role="img" aria-label="{label}">'
    return "\n".join([head, *_draw_axes(frame, height), *lines, "</svg>"])


def _draw_line(frame: Frame, times: Mapping[int, float], style: str, candidate: Candidate | None) -> str:
    """Draw seconds by size. `candidate`: None for the bound."""
    points = [(frame.x(size), frame.y(value)) for size, value in times.items() if value > 0]
    title = "the bound" if candidate is None else f"{candidate.planner} {options_text(candidate.options)}".strip()
    # A single size is drawn as a short horizontal line.
    if len(points) == 1:
        ((x, y),) = points
        points = [(x - 6, y), (x + 6, y)]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""
    return f'<path d="{path}" fill="none" stroke-linejoin="round"{style}><title>{escape(title)}</title></path>'


def _draw_axes(frame: Frame, height: float) -> list[str]:
    """Draw grid lines with labels, and the title of the x axis at the bottom of the picture, `height`."""
    bottom, right = frame.top + frame.height, frame.left + frame.width
    out = []
    for value, text in _y_ticks(frame):
        y = frame.y(value)
        out.append(f'<path d="M{frame.left:.1f} {y:.1f} H{right:.1f}" stroke="#ebe8e1"/>')
        out.append(f'<text x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end" fill="#55524b">{text}</text>')
    # Grid lines with labels at powers of two (all, every second, ...), at least 58 pixels apart.
    octave = math.log10(2)  # a power of two, in decades
    powers = range(math.ceil(frame.min_x / octave - ROUNDING), math.floor(frame.max_x / octave + ROUNDING) + 1)
    spacing = next((n for n in (1, 2, 5, 10) if len(powers) / n * 58 <= frame.width), 10)
    for k in powers:
        x = frame.x(2**k)
        if k % spacing == 0:
            out.append(f'<path d="M{x:.1f} {frame.top} V{bottom:.1f}" stroke="#f3f1ec"/>')
            label = f'x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle" fill="#55524b"'
            out.append(f"<text {label}>{format_size(2**k)}</text>")
    out.append(f'<path d="M{frame.left:.1f} {bottom:.1f} H{right:.1f}" stroke="#8d897f"/>')
    middle = f'x="{frame.left + frame.width / 2:.1f}" y="{height - 8:.1f}" text-anchor="middle" fill="#55524b"'
    out.append(f"<text {middle}>size (nbytes)</text>")
    return out


def _y_ticks(frame: Frame) -> list[tuple[float, str]]:
    """Return the values marked on the y axis, with their labels."""
    ticks = []
    decades = range(math.floor(frame.min_y), math.ceil(frame.max_y) + 1)
    # Few decades have room for more ticks.
    mantissas = (1, 2, 5) if len(decades) <= 3 else (1,)
    for decade in decades:
        for mantissa in mantissas:
            value = mantissa * 10.0**decade
            if frame.min_y - ROUNDING <= math.log10(value) <= frame.max_y + ROUNDING:
                # a little more: if 10.0**-6 is rounded down, it would be written as 1000 ns
                ticks.append((value, format_seconds(value * (1 + 1e-12))))
    return ticks


def legend(tuning: Tuning, kind: str) -> list[tuple[str, str, str]]:
    """Return the rows of a chart's legend: (colour, dash pattern, text)."""
    candidates, style_of = tuning.of(kind), line_styles(tuning, kind)
    rows = []
    for role in ("best", "nccl"):
        for i, (style_role, colour) in style_of.items():
            if style_role == role:
                name = f"{candidates[i].planner} {options_text(candidates[i].options, candidates[i].variant)}".strip()
                nccl = " (as NCCL does)" if candidates[i].planner in tuning.baselines.get(kind, ()) else ""
                rows.append((colour, "" if role == "best" else "7 4", name + nccl))
    unmarked = sum(role == "other" for role, _ in style_of.values())
    if unmarked:
        rows.append((GREY, "", plural(unmarked, "other schedule")))
    if kind in tuning.limits:
        rows.append((BOUND, "2 3", "the bound: no schedule is faster"))
    return rows


def chart_svg(tuning: Tuning) -> str:
    """Return a whole SVG file: one chart for each collective, below each other, with title and legend."""
    width, chart_height = 900, 460
    body: list[str] = []
    y = 0
    for kind in tuning.collectives:
        if not any(c.seconds for c in tuning.of(kind)):
            continue
        rows = legend(tuning, kind)
        title = f"{kind} on {tuning.topology.name}: time by size, {model_text(tuning)}; {tuning.rests_on(kind)}"
        body.append(f'<text x="16" y="{y + 26}" font-size="15" font-weight="600">{escape(title)}</text>')
        inner = chart(tuning, kind, width, chart_height).replace("<svg ", f'<svg y="{y + 40}" ', 1)
        body.append(inner)
        y += 40 + chart_height
        for n, (colour, dash, words) in enumerate(rows):
            x, row_y = 70 + 410 * (n % 2), y + 14 + 20 * (n // 2)  # two columns
            body.append(f'<path d="M{x} {row_y} h30" stroke="{colour}" stroke-width="2.6" stroke-dasharray="{dash}"/>')
            body.append(f'<text x="{x + 40}" y="{row_y + 4}">{escape(words[:58])}</text>')  # what fits a column
        y += 20 * math.ceil(len(rows) / 2) + 30
    return svg_file(width, y, body)


def svg_file(width: int, height: int, body: Iterable[str], attributes: str = "") -> str:
    """Return a whole SVG file with these elements on white. `attributes`: further ones of the outermost element."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    background = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="{FONT}" font-size="12"{attributes}>', background, *body, "</svg>"]) + "\n"
