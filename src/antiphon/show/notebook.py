"""Results in notebooks: a conclusion in bold, then a small picture or a table, as HTML without scripts.

`html_of` is what `_repr_html_` of every result returns (core/display.py). A picture is SVG on white, readable on dark
pages, too; one that is too large to draw, or has more than MAX_LINES lines of text, is left out. Tables have at most
MAX_ROWS rows. Text takes the colours of the notebook.

Example: a bound is `<p><b>No schedule takes fewer than 2 steps ...</b></p>` and a table of two rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from html import escape
from typing import Any

from antiphon.core.bounds import Bound, conditions_text
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError
from antiphon.select import Frontier, Tuning
from antiphon.show import words
from antiphon.show.frontier import POINT_HEAD, point_rows
from antiphon.show.machines import conclusions, machine_table
from antiphon.show.pictures.chart import chart
from antiphon.show.pictures.pareto import pareto_svg
from antiphon.show.pictures.svg import topology_svg
from antiphon.show.ranges import group_ranges, range_cells
from antiphon.show.text import KIND_HEAD, kind_rows, summary_text
from antiphon.sweeps.results import SweepResult
from antiphon.units import format_bandwidth, format_ends, format_seconds, format_size

MAX_LINES = 130  # of the text of an SVG
MAX_ROWS = 20  # of a table
CHART_SIZE = (640, 300)  # pixels, width and height


@singledispatch
def html_of(value: Any) -> str:
    """Return a result as HTML."""
    raise AssertionError(f"no HTML for {type(value).__name__}")


@html_of.register
def _(machine: Topology) -> str:
    return _page(
        [summary_text(machine)], _picture(lambda: topology_svg(machine)), _table(KIND_HEAD, kind_rows(machine))
    )


@html_of.register
def _(bound: Bound) -> str:
    rate = format_bandwidth(bound.bytes_per_second) if bound.bytes_per_second else "any rate"
    steps = words.plural(bound.latency_steps, "step")
    rows = [["latency", steps, ""], ["bandwidth", f"{rate} algbw", f"R/C = {bound.inverse}; {bound.note}"]]
    # The bound without the help of switches, if it is another one.
    if bound.unaided is not None and bound.without_switches not in (None, bound.bytes_per_second):
        unaided = format_bandwidth(bound.without_switches or 0)  # it is not None here; `or` is for the type checker
        rows.append([conditions_text(bound.unaided.assumes), f"{unaided} algbw", f"R/C = {bound.unaided.inverse}"])
    return _page([f"No schedule takes fewer than {steps}, or moves more than {rate}"], _table(["", "bound", ""], rows))


@html_of.register
def _(plan: Plan) -> str:
    planners = list(dict.fromkeys(str(entry.claims.get("planner", "your own")) for entry in plan.entries))
    verdict = f"{plan.collective.title} on {plan.topology.name}: {words.plural(len(plan.entries), 'range')} of sizes"
    rows = []
    for entry in plan.entries:
        gap = entry.claims.get("gap", entry.claims.get("bandwidth_gap"))  # a plan that was not tuned has the latter
        figures = [str(entry.claims.get(name, "-")) for name in ("steps", "chunks", "transfers")]
        ends = format_ends(entry.start, entry.stop)
        name = str(entry.claims.get("planner", "your own"))
        rows.append([*ends, name, *figures, words.ratio(gap if isinstance(gap, int | float) else None)])
    head = ["from", "to", "planner", "steps", "chunks", "transfers", "gap"]
    return _page([f"{verdict}, by {', '.join(planners[:4])}"], _table(head, rows))


@html_of.register
def _(tuning: Tuning) -> str:
    lines = [f"{kind} on {tuning.topology.name}: {text}" for kind, text in tuning.verdicts.items()]
    if not tuning.ranges:
        return _page(lines or [f"{tuning.topology.name}: nothing could be planned"])
    kinds = [kind for kind in tuning.collectives if kind in tuning.plans]
    rows = []
    for kind in kinds:
        # the head is the same for all collectives
        head, cells = range_cells(group_ranges([r for r in tuning.ranges if r.collective == kind]))
        rows += [[*([kind] if len(kinds) > 1 else []), *row] for row in cells]
    picture = _picture(lambda: chart(tuning, kinds[0], *CHART_SIZE)) if len(kinds) == 1 else ""
    caption = _note("in colour the best plans, dashed what stands for NCCL, dotted the lower bound") if picture else ""
    return _page(lines, picture, caption, _table([*(["collective"] if len(kinds) > 1 else []), *head], rows))


@html_of.register
def _(frontier: Frontier) -> str:
    count = words.plural(len(frontier.points), "point")
    verdict = f"{frontier.collective.kind} on {frontier.topology.name}: {count} of the latency-bandwidth frontier"
    stopped = f" (stopped early: {frontier.stopped})" if frontier.stopped else ""
    note = "C chunks of each rank's input, S steps, R rounds: time S * latency + R/C * (input / unit link)"
    return _page([verdict + stopped], _table(POINT_HEAD, point_rows(frontier)), _note(note))


@html_of.register
def _(result: SweepResult) -> str:
    head, rows = machine_table(result, limit=len(result.answers))  # all: `_table` shortens it
    picture = _picture(lambda: pareto_svg(result)) if result.request.prices else ""
    refused = sum(bool(m.refused) for m in result.machines())
    note = _note(f"{words.plural(refused, 'machine')} without all plans: see .machines()") if refused else ""
    return _page(
        conclusions(result) or ["no machine has a plan for every collective"], picture, _table(head, rows), note
    )


def recording_html(plan: Plan | None, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the calls of a trace by collective and size, and the plan that it contains (None: none)."""
    durations: dict[tuple[str, int], list[float]] = defaultdict(list)  # seconds of each call
    for row in calls:
        durations[row["collective"], row["nbytes"]].append(float(row["duration_us"] or 0) * 1e-6)
    ranks = words.plural(len({row["rank"] for row in calls}), "rank")
    total = sum(map(sum, durations.values()))
    verdict = f"{words.plural(len(calls), 'call')} of collectives at {ranks}, {format_seconds(total)} in all"
    if not calls:
        verdict = "The messages of a plan" if plan is not None else "No calls of collectives"
    by_time = sorted(durations.items(), key=lambda item: -sum(item[1]))
    rows = [
        [
            kind,
            format_size(nbytes),
            str(len(times)),
            format_seconds(sum(times) / len(times)),
            format_seconds(max(times)),
        ]
        for (kind, nbytes), times in by_time
    ]
    head = ["collective", "nbytes", "calls", "mean time", "longest"]
    return _page([verdict], _table(head, rows) if rows else "", html_of(plan) if plan is not None else "")


# ---- elements ----


def _page(conclusions: Sequence[str], *elements: str) -> str:
    """Return conclusions in bold, then the elements that are not empty."""
    lines = [f"<p><b>{escape(line)}</b></p>" for line in conclusions]
    return "\n".join(["<div>", *lines, *filter(None, elements), "</div>"])


def _note(text: str) -> str:
    return f"<p><small>{escape(text)}</small></p>"


def _picture(draw: Callable[[], str]) -> str:
    """Return a picture on white; "" if it is too large, or cannot be drawn."""
    try:
        svg = draw()
    except AntiphonError:
        return ""
    if svg.count("\n") > MAX_LINES:
        return ""
    return f'<div style="background:#fff;width:fit-content;max-width:100%;overflow-x:auto">{svg}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; rows beyond MAX_ROWS are counted."""
    lines = ["<table>", _row("th", head), *(_row("td", row) for row in rows[:MAX_ROWS]), "</table>"]
    return "\n".join(lines) + (_note(f"... {len(rows) - MAX_ROWS} more") if len(rows) > MAX_ROWS else "")


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
