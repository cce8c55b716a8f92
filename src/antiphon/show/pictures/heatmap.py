"""Plot, per planner, sizes against values of an option: the time of each value relative to the best at that size.

`tune --sweep pieces=1,4,16` tries several values of an option. `heatmap_svg` draws a panel per planner: a column per
size, a row per value, and each cell in a colour by how much slower than the best value of the column it is. A
dot marks the best value. Few cells carry their time as a tooltip; more than MAX_TITLES are drawn as one shape per
colour. Numbers without a name are pixels (y downwards), such as the place of a text beside its mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import NamedTuple

from antiphon.errors import Invalid
from antiphon.select import Setting, Tuning, settings
from antiphon.select.ranges import TIE
from antiphon.show.pictures.chart import FONT
from antiphon.show.words import model_text, options_text
from antiphon.units import format_seconds, format_size


class Level(NamedTuple):
    """A colour, for the cells that are slower than those of the level before."""

    max_ratio: float  # of a cell's seconds to the best of its column
    light: str  # the colour on light pages
    dark: str
    label: str


LEVELS = (
    Level(1.02, "#0d3f73", "#a9d4ff", "2 %"),
    Level(1.05, "#2f6fab", "#6fb0ee", "5 %"),
    Level(1.10, "#6697c6", "#478ac9", "10 %"),
    Level(1.25, "#9dbfdd", "#2f6799", "25 %"),
    Level(1.5, "#c6d8e8", "#254a6c", "50 %"),
    Level(2.0, "#e2e6e8", "#263543", "100 %"),
    Level(float("inf"), "#f3f0e9", "#22262b", "more"),
)
MAX_ROWS = 160  # of a panel
MAX_TITLES = 1500  # cells with tooltips; more of them are drawn as one shape per colour
MAX_WIDTH = 1400  # pixels
LEGEND_WIDTH = 770.0  # pixels of its colours and their labels, with the margin; no picture is narrower
# pixels: above the panels of a collective, below a panel, between panels, at the edges
TITLE_HEIGHT, FOOT_HEIGHT, PANEL_GAP, EDGE_MARGIN = 40, 34, 30, 16
MAX_SHORT_LABEL = 5  # characters of a value that fits above a column
DARK = """<style>@media (prefers-color-scheme: dark) {
.hm-back { fill: #17181a } .hm-ink { fill: #e9e6df } .hm-soft { fill: #a5a199 } .hm-line { stroke: #55524b }
.hm-dot { fill: #17181a } %s }</style>"""


@dataclass(frozen=True)
class Panel:
    """One planner: the settings (values of options) that were tried, as rows, and their times."""

    planner: str
    rows: tuple[Setting, ...]  # each a pair (option, value) for every swept option that the candidate has; not empty
    seconds: tuple[tuple[float, ...], ...]  # per row and size
    best: tuple[int, ...]  # per size, the row of the fastest setting
    wins: tuple[bool, ...]  # per size: whether the planner is also the fastest of all
    key: str  # the option, if only one was swept: then the labels are its values alone; else ""
    labels: tuple[str, ...]
    total_rows: int  # number of rows, drawn or not
    cell_width: float  # pixels, as all lengths
    cell_height: float
    labels_width: float  # of the labels to the left of the cells

    def x_of(self, size: float) -> float:
        """Return the left edge of a column, by the number of its size; a half more is its middle."""
        return self.labels_width + self.cell_width * size

    def y_of(self, row: float) -> float:
        """Return the top of a row; a half more is its middle."""
        return self.head + self.cell_height * row

    @property
    def width(self) -> float:
        return self.x_of(len(self.best))

    @property
    def has_short_labels(self) -> bool:
        return bool(self.key) and max(map(len, self.labels)) <= MAX_SHORT_LABEL

    @property
    def head(self) -> float:
        """Height above the cells, for the planner and the labels of the best values."""
        return 44.0 if self.has_short_labels else 22.0

    @property
    def height(self) -> float:
        return self.y_of(len(self.rows)) + FOOT_HEIGHT


def heatmap_svg(tuning: Tuning, kind: str = "", standalone: bool = True, max_width: float = MAX_WIDTH) -> str:
    """Return a picture: for every collective (or just `kind`) a panel per planner that was swept, side by side.

    Rows: the values; columns: sizes; colour: seconds divided by those of the planner's best value at this size, which
    is marked. O(cells).

    `standalone`: with titles, and in dark colours on a dark screen; else it is part of a page.
    `max_width`: pixels, unless one panel needs more.
    """
    kinds = [kind] if kind else list(tuning.collectives)
    panels_of = {collective: panels(tuning, collective) for collective in kinds}
    if not any(panels_of.values()):
        raise Invalid("there is no heat map without a sweep that gave something; try --sweep pieces=1,4,16")
    cells = sum(len(panel.rows) * len(panel.best) for panel in chain.from_iterable(panels_of.values()))
    body: list[str] = []
    y, width = 0.0, LEGEND_WIDTH
    for collective, collective_panels in panels_of.items():
        if not collective_panels:
            continue
        options = ", ".join(tuning.sweep)
        basis = tuning.rests_on(collective)  # a text: what calibrates the times, or that nothing does
        title = f"{collective} on {tuning.topology.name}: choosing {options}, {model_text(tuning)}; {basis}"
        if standalone:
            body.append(_draw_text(EDGE_MARGIN, y + 26, title, "ink", 'font-size="15" font-weight="600"'))
            width = max(width, 2 * EDGE_MARGIN + 9.0 * len(title))  # 9 pixels per character of the title
        y += TITLE_HEIGHT if standalone else 12
        for line in _break_lines(collective_panels, max_width):
            x = float(EDGE_MARGIN)
            for panel in line:
                body += [f'<g transform="translate({x:.1f} {y:.1f})">', *_draw_panel(tuning, panel, cells), "</g>"]
                x += panel.width + PANEL_GAP
            width = max(width, x - PANEL_GAP + EDGE_MARGIN)
            y += max(panel.height for panel in line) + 10
    body += _draw_legend(y + 8)
    return "\n".join([*_svg_head(width, y + 62, standalone), *body, "</svg>"]) + "\n"


def _svg_head(width: float, height: float, themed: bool) -> list[str]:
    """Return the beginning of the picture; `themed`: with dark colours for dark screens."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    shades = " ".join(f".hm-{i} {{ fill: {level.dark} }}" for i, level in enumerate(LEVELS))
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12" role="img">',
        *([DARK % shades] if themed else []),
        f'<rect class="hm-back" width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]


def panels(tuning: Tuning, kind: str) -> list[Panel]:
    """Return a panel for every planner with schedules from more than one setting."""
    # per size, of all planners; 0 where no candidate has a time
    fastest = [
        min((c.seconds[size] for c in tuning.of(kind) if c.may_win and c.seconds), default=0.0) for size in tuning.sizes
    ]
    swept = settings(tuning.of(kind), tuning.sweep, tuning.sizes)  # planner -> setting -> seconds per size
    return [_panel_of(planner, by_setting, fastest) for planner, by_setting in swept.items() if len(by_setting) > 1]


def _panel_of(planner: str, by_setting: Mapping[Setting, tuple[float, ...]], fastest: Sequence[float]) -> Panel:
    """Return the panel of a planner. `fastest`: seconds of the best candidate of all planners, per size."""
    seconds, sizes = list(by_setting.values()), range(len(fastest))
    # Per size the row of the fastest value, the first among equals.
    best = [min(range(len(seconds)), key=lambda row: seconds[row][size]) for size in sizes]
    shown = _shown_rows(len(seconds), set(best))
    rows = tuple(list(by_setting)[row] for row in shown)
    keys = {key for setting in by_setting for key, _ in setting}
    key, labels = "", tuple(options_text(dict(setting)) for setting in rows)
    if len(keys) == 1:  # only one option was swept: its values alone are the labels
        (key,), labels = keys, tuple(str(value) for ((_, value),) in rows)
    longest = max(map(len, labels))
    # Cells as wide as the label of the best value above them, if it is short: some 6.8 pixels per character.
    cell_width = max(18.0, 6.8 * longest + 6) if key and longest <= MAX_SHORT_LABEL else 20.0
    # The more rows, the lower, so that a panel fits a screen as long as possible.
    cell_height = 20.0 if len(rows) <= 16 else 14.0 if len(rows) <= 32 else 9.0 if len(rows) <= 80 else 6.0
    return Panel(
        planner, rows, seconds=tuple(seconds[row] for row in shown), best=tuple(shown.index(row) for row in best),
        wins=tuple(seconds[row][size] <= fastest[size] * (1 + TIE) for size, row in enumerate(best)),
        key=key, labels=labels, total_rows=len(seconds), cell_width=cell_width, cell_height=cell_height,
        labels_width=6.3 * max(longest, len(key)) + 10,
    )  # fmt: skip


def _shown_rows(count: int, best: set[int]) -> list[int]:
    """Return all rows, or if they are too many, those that are best somewhere and others evenly between."""
    if count <= MAX_ROWS:
        return list(range(count))
    return sorted(best | {i * (count - 1) // (MAX_ROWS - 1) for i in range(MAX_ROWS)})


def _break_lines(panels: Sequence[Panel], max_width: float) -> Iterator[list[Panel]]:
    """Yield lines of panels, as many beside each other as fit the width."""
    line: list[Panel] = []
    for panel in panels:
        if line and sum(p.width + PANEL_GAP for p in [*line, panel]) > max_width:
            yield line
            line = []
        line.append(panel)
    yield line


def _draw_panel(tuning: Tuning, panel: Panel, cells: int) -> list[str]:
    """Draw a panel. `cells`: their number in the whole picture."""
    bottom = panel.y_of(len(panel.rows))
    shown_text = f" ({len(panel.rows)} of {panel.total_rows} values)" if panel.total_rows > len(panel.rows) else ""
    out = [
        _draw_text(panel.labels_width, 14, panel.planner + shown_text, "ink", 'font-weight="600"'),
        _draw_text(panel.labels_width - 6, panel.head - 7, panel.key, "soft", 'text-anchor="end" font-size="10.5"'),
        *(_draw_cells if cells <= MAX_TITLES else _draw_shapes)(tuning, panel),
        *_draw_best(tuning, panel),
        *_row_labels(panel),
    ]
    # label every n-th column, so that each label has 46 pixels
    label_spacing = next((n for n in (1, 2, 3, 4, 5, 8, 10) if n * panel.cell_width >= 46), 16)
    for i in range(0, len(tuning.sizes), label_spacing):
        x = panel.x_of(i + 0.5)
        out.append(f'<path class="hm-line" d="M{x:.1f} {bottom + 2:.1f} v4" stroke="#b9b4a8"/>')
        out.append(
            _draw_text(x, bottom + 17, format_size(tuning.sizes[i]), "soft", 'text-anchor="middle" font-size="11"')
        )
    out.append(_draw_text(panel.x_of(len(panel.best) / 2), bottom + 31, "size (nbytes)", "soft", _MIDDLE))
    return out


# style of a label that is centred below the cells
_MIDDLE = 'text-anchor="middle" font-size="11"'


def _level_of(panel: Panel, row: int, size: int) -> int:
    """Return the number in LEVELS of a cell."""
    fastest = panel.seconds[panel.best[size]][size]
    ratio = panel.seconds[row][size] / fastest if fastest > 0 else 1.0
    # TIE: the relative difference up to which times count as equal
    return next(i for i, level in enumerate(LEVELS) if ratio <= level.max_ratio * (1 + TIE))


def _draw_cells(tuning: Tuning, panel: Panel) -> Iterator[str]:
    """Draw every cell as a shape with its time as a tooltip."""
    for row in range(len(panel.rows)):
        for size in range(len(panel.best)):
            level = _level_of(panel, row, size)
            corner = f'x="{panel.x_of(size):.1f}" y="{panel.y_of(row):.1f}"'
            box = f'{corner} width="{panel.cell_width - 1:.1f}" height="{panel.cell_height - 1:.1f}"'
            title = escape(_cell_text(tuning, panel, row, size))
            yield f'<rect class="hm-{level}" {box} fill="{LEVELS[level].light}"><title>{title}</title></rect>'


def _draw_shapes(tuning: Tuning, panel: Panel) -> Iterator[str]:
    """Draw one shape per colour, of all its cells."""
    width, height = panel.cell_width - 1, panel.cell_height - 1
    shapes: dict[int, list[str]] = {}
    for row in range(len(panel.rows)):
        for size in range(len(panel.best)):
            cell = f"M{panel.x_of(size):.1f} {panel.y_of(row):.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"
            shapes.setdefault(_level_of(panel, row, size), []).append(cell)
    for level, drawn in sorted(shapes.items()):
        yield f'<path class="hm-{level}" fill="{LEVELS[level].light}" d="{"".join(drawn)}"/>'


def _cell_text(tuning: Tuning, panel: Panel, row: int, size: int) -> str:
    """Return the tooltip of a cell. `size`: its column."""
    seconds, best = panel.seconds[row][size], panel.best[size]
    ratio = seconds / (panel.seconds[best][size] or seconds or 1.0)
    than = "the best" if row == best else f"{ratio:.3g} times the best ({options_text(dict(panel.rows[best]))})"
    return (
        f"{options_text(dict(panel.rows[row]))} at {format_size(tuning.sizes[size])}: {format_seconds(seconds)}, {than}"
    )


def _draw_best(tuning: Tuning, panel: Panel) -> Iterator[str]:
    """Draw a dot on the best cell of every column, and its value above the column if values are short."""
    radius = min(panel.cell_width, panel.cell_height) * 0.24
    for size, row in enumerate(panel.best):
        x, y = panel.x_of(size + 0.5) - 0.5, panel.y_of(row + 0.5) - 0.5  # a cell is drawn 1 pixel smaller
        title = escape(_cell_text(tuning, panel, row, size))
        yield (
            f'<circle class="hm-dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#ffffff">'
            f"<title>{title}</title></circle>"
        )
        if panel.has_short_labels:
            weight = ' font-weight="700"' if panel.wins[size] else ""
            tone = "ink" if panel.wins[size] else "soft"
            yield _draw_text(
                x, panel.head - 7, panel.labels[row], tone, f'text-anchor="middle" font-size="10.5"{weight}'
            )


def _row_labels(panel: Panel) -> Iterator[str]:
    """Draw the labels of the best rows, and as many others as there is room for."""
    best, min_distance = set(panel.best), 10.5 / panel.cell_height  # in rows; a label is 10.5 pixels high
    shown: list[int] = []
    # Labels by priority: rows best most often, then the ends, then all others, as far as there is room.
    for row in [*sorted(best, key=lambda row: -panel.best.count(row)), 0, len(panel.rows) - 1, *range(len(panel.rows))]:
        if all(abs(row - other) >= min_distance for other in shown):
            shown.append(row)
    for row in sorted(shown):
        weight = ' font-weight="700"' if row in best else ""
        style = f'text-anchor="end" font-size="10.5"{weight}'
        y = panel.y_of(row + 0.5) + 3.2
        yield _draw_text(panel.labels_width - 6, y, panel.labels[row], "ink" if row in best else "soft", style)


def _draw_legend(y: float) -> list[str]:
    out = [_draw_text(EDGE_MARGIN, y + 11, "slower than the best value by up to", "soft")]
    x = EDGE_MARGIN + 245.0
    for i, level in enumerate(LEVELS):
        box = f'x="{x:.0f}" y="{y:.0f}" width="26" height="13"'
        out.append(f'<rect class="hm-{i} hm-line" {box} fill="{level.light}"/>')
        out.append(_draw_text(x + 31, y + 11, level.label, "soft"))
        x += 31 + 7.2 * len(level.label) + 14
    explanation = "dot, and figure above: the best value at this size; bold: it is the fastest of all planners"
    dot = (
        f'<circle cx="{EDGE_MARGIN + 5}" cy="{y + 32:.0f}" r="3.2" fill="#ffffff" stroke="#2f6fab" stroke-width="2.4"/>'
    )
    return [*out, dot, _draw_text(EDGE_MARGIN + 16, y + 36, explanation, "soft")]


def _draw_text(x: float, y: float, words: str, tone: str, style: str = "") -> str:
    fill = {"ink": "#23211d", "soft": "#6d6961"}[tone]
    return f'<text class="hm-{tone}" x="{x:.1f}" y="{y:.1f}" fill="{fill}" {style}>{escape(words)}</text>'
