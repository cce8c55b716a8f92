"""Print and draw fits of cost models to measurements: the parameters, their confidence intervals, and the residuals.

A fit (cost/fit) estimates a model's parameters from measured times; an `Estimate` has a name, a value, an interval and
a state (determined, weak, given ...). For each of the models GenModel, memory access (GenModel's gamma and delta) and
LogGP there is a text for the terminal (`*_text`) and a picture (`*_svg`). The picture's upper part has measured times
as points and fitted times as lines, with a logarithmic axis of time; its lower part shows by how much each measurement
exceeds the fit. Numbers in the code that draws are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np

from antiphon.cost.fit import (
    SIMULTANEOUS,
    UNDETERMINED,
    Estimate,
    GenmodelFit,
    LogGPFit,
    LoweringFit,
    MemoryFit,
    RoundTrip,
)
from antiphon.errors import list_first
from antiphon.show.columns import paragraph, table
from antiphon.show.pictures.chart import COLOURS, svg_file
from antiphon.units import format_seconds, format_size, plural

# Pixels of a picture
WIDTH = 900
TOP, LEFT, RIGHT = 60, 74, 16  # margins
INSET = 12  # from the left and the right end of a plot to the first and the last point
UPPER, SPACE, LOWER = 330, 34, 110  # heights of the upper plot, the space below it, and the lower plot
# Parameters that are printed with their definition
_DEFINITIONS = {"G": "G = 2 beta + gamma"}
_MARKS = (  # shapes of points, as SVG paths: dot, square, triangle, diamond
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0", "M-3-3h6v6h-6z", "M0-4l4 7h-8z",
    "M0-4.4l4.4 4.4-4.4 4.4-4.4-4.4z",
)  # fmt: skip

ToPixels = Callable[[float], float]  # from a position on the x axis to pixels
LabelOf = Callable[[int], str]  # label of an integer on the x axis


class Point(NamedTuple):
    """A measurement and what the fit gives for it, in seconds, at a position on the x axis (such as ranks)."""

    x: float
    measured: float
    fitted: float


@dataclass(frozen=True)
class Series:
    """Measurements that differ in one number only, which is the x axis; drawn in one colour with one mark."""

    label: str
    colour: str
    mark: str
    points: Sequence[Point]


def genmodel_text(fit: GenmodelFit) -> str:
    """Return a fit of GenModel as text."""
    rows = fit.measured
    plans = ", ".join(dict.fromkeys(row.plan.name for row in rows))
    ranks, sizes = [row.ranks for row in rows], {row.nbytes for row in rows}
    scope = f"{plans}; {min(ranks)} to {max(ranks)} ranks; {plural(len(sizes), 'size')}"
    summary = f"{plural(len(rows), 'measurement')} ({scope})"
    # w_t: the number of senders beyond which incast slows a receiver. Where the measurements do not determine single
    # parameters, `combinations` has sums of these that they determine, such as G = 2 beta + gamma.
    parameters = [*fit.parameters.values(), fit.w_t]
    plain_errors = "{:.2%} on average, {:.2%} at most".format(*fit.plain_relative_errors)
    return "\n".join(
        [
            *paragraph(f"GenModel fitted to {summary}", first=""),
            *_estimates_table(parameters, fit.combinations),
            *_errors_text(fit.relative_errors),
            *paragraph(f"the best fit without incast and memory access: {plain_errors}"),
            *_notes_text(fit.notes),
        ]
    )


def memory_text(fit: MemoryFit) -> str:
    """Return a fit of the costs of memory access as text."""
    rows = fit.measured
    vectors, sizes = [row.vectors for row in rows], sorted({row.nbytes for row in rows})
    size_names = list_first(map(format_size, sizes), limit=4)
    summary = f"adding {min(vectors)} to {max(vectors)} vectors of {size_names} at once"
    return "\n".join(
        [
            *paragraph(f"gamma and delta from {plural(len(rows), 'measurement')}: {summary}", first=""),
            *_estimates_table(fit.parameters.values(), fit.combinations),
            *_errors_text(fit.relative_errors),
            *_notes_text(fit.notes),
        ]
    )


def lowering_text(fit: LoweringFit) -> str:
    """Return a fit of the costs of lowerings as text."""
    cells = []
    for lowering, estimates in fit.parameters.items():
        for number, (name, estimate) in enumerate(estimates.items()):
            title = "" if number else lowering
            value = _number_text(estimate, estimate.value)
            cells.append([title, name, value, _interval_text(estimate), estimate.state])
    # `costs` has the lowerings all of whose costs have a value
    missing = [lowering for lowering in fit.models if lowering not in fit.costs]
    errors = [models.solution.relative_errors for models in fit.models.values()]  # (rms, greatest) of each lowering
    return "\n".join(
        [
            *paragraph(f"costs of {', '.join(fit.models)} from {plural(len(fit.measured), 'measurement')}", first=""),
            *table(["lowering", "", "value", "between", "state"], cells),
            *paragraph("start, step and copy in seconds; wire: time of the bytes over that at nominal bandwidth"),
            *(paragraph(f"not in a profile: {', '.join(missing)}") if missing else []),
            *_errors_text((max(rms for rms, _ in errors), max(greatest for _, greatest in errors))),
            *_notes_text(fit.notes),
        ]
    )


def loggp_text(fit: LogGPFit) -> str:
    """Return a fit of LogGP as text. A regime is a range of sizes with parameters of its own."""
    rows, sizes = fit.measured, fit.medians.sizes
    summary = f"{plural(len(rows), 'measurement')} ({plural(len(sizes), 'size')}, {plural(len(fit.regimes), 'regime')})"
    cells = []
    for regime in fit.regimes:
        size_range = f"{format_size(regime.low)} to {format_size(regime.high)}"
        for name, figure in regime.figures.items():
            cells.append([size_range, name, _number_text(figure, figure.value), _interval_text(figure), figure.state])
            size_range = ""
            if name in regime.growth:  # the figure grows linearly with the size within the regime
                growth = regime.growth[name]
                cells.append(
                    [
                        "",
                        f"{name} per byte more",
                        _number_text(growth, growth.value),
                        _interval_text(growth),
                        growth.state,
                    ]
                )
    note = (
        "L, o_s, o_r and g in seconds (L, o_s and o_r as at the regime's first size), G in seconds per byte; intervals "
        "(t) hold in 95 of 100 cases"
    )
    return "\n".join(
        [
            *paragraph(f"LogGP fitted to {summary}", first=""),
            *table(["sizes", "", "value", "between", "state"], cells),
            *paragraph(note),
            *_radices_table(fit),
            *_errors_text(fit.relative_errors),
            *_notes_text(fit.notes),
        ]
    )


def _radices_table(fit: LogGPFit) -> list[str]:
    """Return the numbers of messages that go at the same time without delay (radices), where they were measured."""
    if not fit.simultaneous:
        return []
    labels = {
        "device": "device_radix: a rank sends, and receives, at once",
        "send": "  sends", "receive": "  receives", "node": "node_radix: a node sends to another at once",
    }  # fmt: skip
    rows = []
    for name, label in labels.items():
        radix = fit.radices[name]
        if radix.state != UNDETERMINED:
            # count None: no limit was seen
            rows.append([label, str(radix.count or f"no limit up to {radix.up_to}"), radix.state])
    return table(["messages", "", "state"], rows)


def round_trips_text(rows: Sequence[RoundTrip]) -> str:
    """Return measured round trips as text: the medians over repetitions, a line for each size."""
    single, several, delayed, receiving = columns = "one there and back", "several", "with delays", "receiving several"
    seconds_by_size: dict[int, dict[str, list[float]]] = {}
    # n: messages of a round trip; delay: seconds between two of them; "server": what n messages take their receiver
    for row in rows:
        if row.kind in SIMULTANEOUS:  # kinds of experiments with messages that begin at once
            continue
        column = receiving if row.kind == "server" else single if row.n == 1 else delayed if row.delay else several
        seconds_by_size.setdefault(row.nbytes, {name: [] for name in columns})[column].append(row.seconds)
    cells = [
        [format_size(size), *(format_seconds(float(np.median(c))) if c else "-" for c in by_column.values())]
        for size, by_column in sorted(seconds_by_size.items())
    ]
    return "\n".join([*table(["size", *columns], cells), *_simultaneous_text(rows)])


def _simultaneous_text(rows: Sequence[RoundTrip]) -> list[str]:
    """Return the medians of messages that begin at once, a line for each number of them."""
    seconds_by_count: dict[tuple[str, int], dict[int, list[float]]] = {}
    for row in rows:
        if row.kind in SIMULTANEOUS:
            seconds_by_count.setdefault((row.kind, row.nbytes), {}).setdefault(row.n, []).append(row.seconds)
    if not seconds_by_count:
        return []
    numbers = sorted({n for by_count in seconds_by_count.values() for n in by_count})
    head = ["at once", *(f"{kind}, {format_size(size)}" for kind, size in seconds_by_count)]
    cells = [
        [
            str(n),
            *(
                format_seconds(float(np.median(by_count[n]))) if n in by_count else "-"
                for by_count in seconds_by_count.values()
            ),
        ]
        for n in numbers
    ]
    return table(head, cells)


def _estimates_table(parameters: Iterable[Estimate], combinations: Sequence[Estimate]) -> list[str]:
    """Return a table of parameters with their intervals and states."""
    rows = [
        [
            _DEFINITIONS.get(estimate.name, estimate.name),
            _number_text(estimate, estimate.value),
            _interval_text(estimate),
            estimate.state,
        ]
        for estimate in [*parameters, *combinations]
    ]
    note = (
        "alpha in seconds per step, w_t in senders, all others in seconds per byte; intervals hold in 95 of 100 cases"
    )
    return [*table(["", "value", "between", "state"], rows), *paragraph(note)]


def _errors_text(relative_errors: tuple[float, float]) -> list[str]:
    """Return the relative errors of the fit, root mean square and greatest, as text."""
    rms, greatest = relative_errors
    return paragraph(f"the fit misses the measurements by {rms:.2%} on average (rms), {greatest:.2%} at most")


def _notes_text(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in paragraph(f"note: {note}", rest="    ")]


def _number_text(estimate: Estimate, value: float | None) -> str:
    """Return a value of an estimate as text; w_t is a whole number."""
    if value is None:
        return "-"
    return str(int(value)) if estimate.name == "w_t" else f"{value:.4g}"


def _interval_text(estimate: Estimate) -> str:
    """Return the confidence interval; - if there is none, or if the user gave the value."""
    if estimate.low is None or estimate.high is None or estimate.state == "given":
        return "-"
    return f"{_number_text(estimate, estimate.low)} .. {_number_text(estimate, estimate.high)}"


# ---- pictures ----


def genmodel_svg(fit: GenmodelFit) -> str:
    """Plot time by number of ranks, one line per plan and size, and the relative error of each measurement below."""
    grouped: dict[tuple[str, str, int], list[Point]] = {}
    for row, fitted in zip(fit.measured, fit.fitted.tolist(), strict=True):
        key = (row.plan.name, row.plan.collective, row.nbytes)
        grouped.setdefault(key, []).append(Point(row.ranks, row.seconds, fitted))
    sizes = sorted({nbytes for _, _, nbytes in grouped})
    plans = list(dict.fromkeys((plan, collective) for plan, collective, _ in grouped))
    series = []
    for (plan, collective, nbytes), points in sorted(grouped.items(), key=lambda item: item[0][2]):  # by nbytes
        label = f"{plan}{'' if collective == 'allreduce' else ' ' + collective}, {format_size(nbytes)}"
        colour = COLOURS[sizes.index(nbytes) % len(COLOURS)]
        series.append(Series(label, colour, _MARKS[plans.index((plan, collective)) % len(_MARKS)], sorted(points)))
    w_t = "" if fit.w_t.value is None else f", w_t = {int(fit.w_t.value)}"
    title = f"GenModel fitted to {plural(len(fit.measured), 'measurement')}{w_t}"
    return _draw_fit(title, "ranks", "time", series)


def memory_svg(fit: MemoryFit) -> str:
    """Plot the time per addition by the number of vectors added at once: Figure 4 of the GenModel paper."""
    grouped: dict[int, list[Point]] = {}
    for row, fitted in zip(fit.measured, fit.fitted.tolist(), strict=True):
        adds = row.vectors - 1
        grouped.setdefault(row.nbytes, []).append(Point(row.vectors, row.seconds / adds, fitted / adds))
    series = [
        Series(f"vectors of {format_size(nbytes)}", COLOURS[i % len(COLOURS)], _MARKS[0], sorted(points))
        for i, (nbytes, points) in enumerate(sorted(grouped.items()))
    ]
    return _draw_fit("Adding x vectors at once: time per addition", "vectors", "time per addition", series)


def loggp_svg(fit: LogGPFit) -> str:
    """Plot the measured medians by message size, and the fitted lines of every regime."""
    sizes = fit.medians.sizes
    regimes = [fit.regime_of(size) for size in sizes]
    fitted = {
        "half": [r.half_round_trip(np.array([s])).item() for r, s in zip(regimes, sizes, strict=True)],
        # the model's time between two messages; `start`: the parameters at the regime's first size
        "gap": [r.start["g"] + (s - 1) * r.start["G"] for r, s in zip(regimes, sizes, strict=True)],
        **{
            name: [r.line(name, np.array([s])).item() for r, s in zip(regimes, sizes, strict=True)]
            for name in ("o_s", "o_r")
        },
    }
    labels = {"half": "one way: o_s + (s-1) G + L + o_r", "gap": "a message more: g + (s-1) G"}
    series = []
    for n, (name, line) in enumerate(fitted.items()):  # signal: the measured seconds at each size
        columns = zip(np.log2(sizes).tolist(), fit.medians.signal(name).tolist(), line, strict=True)
        points = [point for point in (Point(*row) for row in columns) if point.measured > 0 and point.fitted > 0]
        if points:
            series.append(Series(labels.get(name, name), COLOURS[n % len(COLOURS)], _MARKS[n % len(_MARKS)], points))
    # `before`: the first measured size of the later regime
    breaks = ", ".join(format_size(regime_break.before) for regime_break in fit.breaks)
    title = f"LogGP fitted to {plural(len(fit.measured), 'measurement')}"
    title += f", regimes from {format_size(fit.regimes[0].low)}, {breaks} on" if breaks else ""
    # the x axis is log2 of the size, so an integer x is a power of two
    return _draw_fit(title, "size of a message", "time", series, lambda x: format_size(2**x), max_labels=14)


def _draw_fit(
    title: str, x_title: str, quantity: str, series: Sequence[Series], label_of: LabelOf = str, max_labels: int = 28
) -> str:
    """Return a picture: points are measured, lines are fitted. At most `max_labels` labels stand at the x axis."""
    points = [point for entry in series for point in entry.points]
    low, high = math.floor(min(p.x for p in points)), math.ceil(max(p.x for p in points))
    pixels_per_unit = (WIDTH - LEFT - RIGHT - 2 * INSET) / ((high - low) or 1)
    first_x = LEFT + INSET if high > low else (LEFT + WIDTH - RIGHT) / 2

    def x(number: float) -> float:
        return first_x + (number - low) * pixels_per_unit

    body = [f'<text x="16" y="26" font-size="15" font-weight="600">{escape(title)}</text>']
    body += (
        _draw_x_axis(x, (low, high), x_title, label_of, max_labels)
        + _draw_times(x, quantity, series, points)
        + _draw_deviations(x, series, points)
    )
    bottom = TOP + UPPER + SPACE + LOWER + 56  # below the x axis with its title; then the legend, three to a row
    for n, entry in enumerate(series):
        at, y = LEFT + 270 * (n % 3), bottom + 20 * (n // 3)
        body.append(f'<path d="M{at} {y} h30" stroke="{entry.colour}" stroke-width="1.8"/>')
        body.append(f'<path d="{entry.mark}" transform="translate({at + 15} {y})" fill="{entry.colour}"/>')
        body.append(f'<text x="{at + 40}" y="{y + 4}">{escape(entry.label[:34])}</text>')
    height = bottom + 20 * math.ceil(len(series) / 3) + 4
    return svg_file(WIDTH, height, body, f' role="img" aria-label="{escape(title)}"')


def _draw_x_axis(x: ToPixels, ends: tuple[int, int], quantity: str, label_of: LabelOf, max_labels: int) -> list[str]:
    """Draw the labels of the x axis, and a line up from each."""
    low, high = ends
    bottom = TOP + UPPER + SPACE + LOWER
    spacing = next((n for n in (1, 2, 5, 10, 20, 50, 100, 1000, 10000) if (high - low) / n <= max_labels), 100000)
    out = []
    for number in range(low, high + 1):
        if number % spacing == 0 or high == low:
            at = f"{x(number):.1f}"
            out.append(f'<path d="M{at} {TOP} V{bottom}" stroke="#f3f1ec"/>')
            out.append(
                f'<text x="{at}" y="{bottom + 18}" text-anchor="middle" fill="#55524b">{label_of(number)}</text>'
            )
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*out, f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle" fill="#55524b">{quantity}</text>']


def _draw_times(x: ToPixels, quantity: str, series: Sequence[Series], points: Sequence[Point]) -> list[str]:
    """Draw the upper plot, of times on a logarithmic axis."""
    values = [value for point in points for value in (point.measured, point.fitted) if value > 0]
    low, high = math.log10(min(values)) - 0.06, math.log10(max(values)) + 0.06  # a margin of 15 %

    def y(value: float) -> float:
        return TOP + UPPER * (1 - (math.log10(max(value, 10**low)) - low) / (high - low))

    out = [f'<text x="{LEFT}" y="{TOP - 8}" fill="#55524b">{quantity}; points measured, lines fitted</text>']
    mantissas = (1, 2, 5) if high - low < 3 else (1,)
    for decade in range(math.floor(low), math.ceil(high) + 1):
        for tick in (mantissa * 10.0**decade for mantissa in mantissas):
            if low <= math.log10(tick) <= high:
                # a little more: if 10.0**-6 is rounded down, it would be written as 1000 ns
                out += _draw_level(y(tick), format_seconds(tick * (1 + 1e-12)))
    for entry in series:
        line = [(x(number), y(fitted)) for number, _, fitted in entry.points]
        path = "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in line)
        style = f'fill="none" stroke="{entry.colour}" stroke-width="1.8" stroke-linejoin="round"'
        out.append(f'<path d="{path}" {style}><title>{escape(entry.label)}</title></path>')
        out += [_draw_mark(entry, x(number), y(measured)) for number, measured, _ in entry.points]
    return out


def _draw_deviations(x: ToPixels, series: Sequence[Series], points: Sequence[Point]) -> list[str]:
    """Draw the lower plot, of the relative residual of each measurement."""
    top = TOP + UPPER + SPACE
    greatest = max((abs(measured / fitted - 1) for _, measured, fitted in points if fitted > 0), default=0.0)
    y_range = next((r for r in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if r >= greatest), 1.0)

    def y(deviation: float) -> float:
        return top + LOWER * (0.5 - 0.5 * min(max(deviation / y_range, -1.0), 1.0))

    out = [f'<text x="{LEFT}" y="{top - 6}" fill="#55524b">measured above the fit by</text>']
    for deviation in (-y_range, -y_range / 2, 0.0, y_range / 2, y_range):
        out += _draw_level(y(deviation), f"{100 * deviation:+.3g}%" if deviation else "0")
    for entry in series:
        out += [
            _draw_mark(entry, x(n), y(measured / fitted - 1 if fitted > 0 else math.inf))  # y clips to the plot
            for n, measured, fitted in entry.points
        ]
    return out


def _draw_mark(series: Series, x: float, y: float) -> str:
    return (
        f'<path d="{series.mark}" transform="translate({x:.1f} {y:.1f})" fill="{series.colour}" fill-opacity="0.75"/>'
    )


def _draw_level(y: float, text: str) -> list[str]:
    """Draw a horizontal line across a plot, with its label."""
    return [
        f'<path d="M{LEFT} {y:.1f} H{WIDTH - RIGHT}" stroke="#ebe8e1"/>',
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#55524b">{escape(text)}</text>',
    ]
