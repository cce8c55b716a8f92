"""Render a tuning as one self-contained HTML page.

At the top the machine and a summary; then for each collective, as tabs: the chart of time by size, the ranges of sizes
with the best plan of each, the effect of swept options, the chosen plans step by step (`_steps`), and all candidates.
page.css and page.js are written into the page; what the pointer shows on the chart is JSON in it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from antiphon import __version__
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.select import DEFINITIONS, Candidate, Range, Tuning, uses_text
from antiphon.show.pages._steps import as_script, plan_section
from antiphon.show.pictures.chart import chart, chart_svg, frame_of, legend, line_styles, value_scale
from antiphon.show.pictures.heatmap import heatmap_svg
from antiphon.show.words import (
    all_notes,
    baseline_text,
    ends_text,
    library_name,
    loss_text,
    model_text,
    options_text,
    plural,
    ratio,
    speedup_text,
    stopped_text,
    unaided_bound_text,
    use_lines,
    use_text,
)
from antiphon.units import format_bandwidth, format_seconds, format_size

__all__ = ["chart_svg", "heatmap_svg", "report_html"]

WIDE_CHART, NARROW_CHART = (1040, 430), (400, 340)  # pixels of the chart, width and height
TERM_COLOURS = (
    "#b9b2a3",
    "#2f6fab",
    "#c2573a",
    "#7a9a3a",
    "#8a63a8",
    "#3aa39a",
)  # of the terms of a time, such as latency
BOX = "background:var(--paper);border:1px solid var(--line);border-radius:8px"
WIDEST_HALF = 640  # pixels of a machine's picture that stands beside the summary


Draw = Callable[[Topology], str]


def report_html(tuning: Tuning, draw: Draw, describe: Draw, origin: str = "") -> str:
    """Return the whole page. Every name in it is escaped; it loads nothing.

    `draw` draws the machine as SVG, `describe` describes in text one that is too large to draw. `origin`: when and by
    what command it was made, for the last line.
    """
    kinds = [kind for kind in tuning.collectives if any(c.collective == kind for c in tuning.candidates)]
    name = escape(tuning.topology.name)
    title = f"{escape(kinds[0]) if len(kinds) == 1 else 'Collectives'} on {name}"
    folder = Path(__file__).parent
    style, script = ((folder / f).read_text(encoding="utf-8") for f in ("page.css", "page.js"))
    machine = _machine_picture(tuning, draw, describe)
    proof = _bound_proof(tuning, kinds[0]) if len(kinds) == 1 else ""
    body = [
        f"<header><h1>{title}</h1>{_verdict_text(tuning, kinds)}<p class='lead'>{_lead_text(tuning)}</p></header>",
        f'<section class="split machine{" wide" if _is_wide(machine) else ""}"><div>{machine}</div>',
        f"<div>{_summary_table(tuning, kinds)}{proof}</div></section>",
        _tab_buttons(kinds),
        *(_collective_section(tuning, kind, number) for number, kind in enumerate(kinds)),
        _footer_text(origin),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>\n{style}</style></head>\n<body>",
            *body,
            f"<script>\n{script}</script>\n</body></html>\n",
        ]
    )


def _verdict_text(tuning: Tuning, kinds: list[str]) -> str:
    """Return the conclusion in one sentence; with several collectives it stands in the section of each."""
    verdict = tuning.verdicts.get(kinds[0], "") if len(kinds) == 1 else ""
    return f"<p class='verdict'>{escape(verdict)}</p>" if verdict else ""


def _lead_text(tuning: Tuning) -> str:
    """Return the line below the title: sizes, numbers of schedules and planners, model, and early ends."""
    ok = [c for c in tuning.candidates if c.status == "ok"]
    planners = len({c.planner for c in ok})
    low, high = (format_size(size) for size in tuning.span)
    facts = [
        f"{low} to {high}",
        f"{plural(len(ok), 'schedule')} by {plural(planners, 'planner')}, every one verified",
        f"times predicted by {escape(model_text(tuning))}",
    ]
    ended = escape(stopped_text([tuning]))
    facts.append(f"<strong>{ended}</strong>" if tuning.ended_early else ended)
    if not tuning.complete:
        facts.append("<strong>interrupted: not everything was tried</strong>")
    return " · ".join(facts)


def _machine_picture(tuning: Tuning, draw: Draw, describe: Draw) -> str:
    """Return the machine drawn, or described if it is too large."""
    try:
        return draw(tuning.topology)
    except Unsupported:
        return f"<pre>{escape(describe(tuning.topology))}</pre>"


def _is_wide(machine: str) -> bool:
    """Return whether half of the page is too narrow for the picture of the machine."""
    width = re.search(r'<svg [^>]*width="(\d+)"', machine)
    return width is not None and int(width[1]) > WIDEST_HALF


def _summary_table(tuning: Tuning, kinds: list[str]) -> str:
    """Return the bounds and the best plan of each collective at the largest size, and the losses by failures."""
    top = tuning.sizes[-1]
    heads = ["", f"best at {format_size(top)}", "bound", "gap", "most over NCCL"]
    rows = []
    for kind in kinds:
        ranges = [r for r in tuning.ranges if r.collective == kind]
        limit = tuning.limits.get(kind)
        rate = format_bandwidth(limit.bytes_per_second) if limit and limit.bytes_per_second else "-"
        best = [format_bandwidth(r.at / r.seconds) for r in ranges[-1:] if r.seconds] or ["-"]
        if ranges and ranges[-1].served_by:
            best[0] += f"; leave it to {library_name(ranges[-1].served_by)}"
        speedups = [r.speedup for r in ranges if r.speedup is not None]
        cells = [
            kind,
            best[0],
            rate,
            ratio(ranges[-1].gap if ranges else None),
            ratio(max(speedups, default=None)),
        ]
        rows.append(_table_row(cells, labels=heads))
    head = _table_row(heads, "th")
    losses = "".join(f"<li>{escape(loss_text(loss))}</li>" for loss in tuning.losses)
    losses_list = f"<h3>What was lost</h3><ul>{losses}</ul>" if losses else ""
    items = "".join(f"<li>{escape(note)}</li>" for note in all_notes(tuning))
    notes_list = f"<h3>To know</h3><ul>{items}</ul>" if items else ""
    return (
        f'<h3>In short</h3><div class="scroll"><table class="cards"><thead>{head}</thead>'
        f"{''.join(rows)}</table></div>{losses_list}{notes_list}"
    )


def _table_row(cells: list[str], tag: str = "td", text_cells: int = 1, labels: Sequence[str] = ()) -> str:
    """Return a row whose first `text_cells` cells hold text, the others figures.

    `labels`: the heads of the columns, shown beside each cell on narrow pages, where rows are cards.
    """
    inner = ""
    for i, cell in enumerate(cells):
        label = f' data-head="{escape(labels[i])}"' if labels and labels[i] else ""
        inner += f"<{tag}{' class=n' if i >= text_cells else ''}{label}>{escape(cell)}</{tag}>"
    return f"<tr>{inner}</tr>"


def _tab_buttons(kinds: list[str]) -> str:
    """Return the tabs that choose a collective, if there are several."""
    if len(kinds) == 1:
        return ""
    tabs = "".join(
        f'<button type="button" role="tab" data-tab="c{i}" aria-selected="{"true" if i == 0 else "false"}">'
        f"{escape(kind)}</button>"
        for i, kind in enumerate(kinds)
    )
    return f'<nav role="tablist">{tabs}</nav>'


def _collective_section(tuning: Tuning, kind: str, number: int) -> str:
    """Return the section of a collective: chart, ranges, sweep, plans and candidates."""
    candidates = tuning.of(kind)
    hidden = " hidden" if number else ""
    elements = [f'<section class="collective" id="c{number}"{hidden}>']
    if len(tuning.collectives) > 1:
        elements += [_verdict_text(tuning, [kind]), _bound_proof(tuning, kind)]
    if any(c.seconds for c in candidates):
        elements += [_chart_figures(tuning, kind), _ranges_table(tuning, kind, number), _sweep_section(tuning, kind)]
        elements.append(_plan_sections(tuning, kind, number))
    else:
        elements.append(f"<p>No planner could plan {escape(kind)} here.</p>")
    return "\n".join([*elements, _candidates_table(candidates, tuning.sizes), "</section>"])


_CHART_HEAD = """<div class="head"><h2>Time by size</h2><div class="switch" role="group">
<button type="button" data-show="time" aria-pressed="true">time</button>
<button type="button" data-show="gap" aria-pressed="false">times the bound</button></div></div>"""


def _bound_proof(tuning: Tuning, kind: str) -> str:
    """Return what proves the bound, as text."""
    limit = tuning.limits.get(kind)
    lines = "".join(f"<li>{escape(line)}</li>" for line in (limit.because if limit is not None else ()))
    unaided_text = unaided_bound_text(limit) if limit is not None else ""
    lines += f"<li>{escape(unaided_text)}</li>" if unaided_text else ""
    head = f"No {escape(kind)} is faster than the bound"
    return f"<div class='because'><h3>{head}</h3><ul>{lines}</ul></div>"


def _chart_figures(tuning: Tuning, kind: str) -> str:
    """Return the chart four times, for wide and narrow pages, as time and as multiple of the bound; one is visible."""
    figures, frames = [], {}
    for relative in (False, True):
        for name, (width, height) in (("wide", WIDE_CHART), ("narrow", NARROW_CHART)):
            view = f"{'gap' if relative else 'time'} {name}"
            drawn = chart(tuning, kind, width, height, relative)
            figures.append(f'<div class="chart {view}" data-frame="{view}">{drawn}</div>')
            frames[view] = frame_of(tuning, kind, width, height, relative).as_json()
    data = {"frames": frames, "sizes": [format_size(s) for s in tuning.sizes], "bytes": list(tuning.sizes)}
    data["candidates"] = {
        i: _hover_data(tuning, kind, candidate) for i, candidate in enumerate(tuning.of(kind)) if candidate.seconds
    }
    data["colours"] = {i: colour for i, (_, colour) in line_styles(tuning, kind).items()}
    key = "".join(
        f'<li><svg width="30" height="8"><path d="M0 4 h30" stroke="{colour}" stroke-width="2.6" '
        f'stroke-dasharray="{dash}"/></svg>{escape(words)}</li>'
        for colour, dash, words in legend(tuning, kind)
    )
    return "\n".join(
        [
            _CHART_HEAD,
            f'<figure class="charts" data-show="time">{"".join(figures)}<div class="tip" hidden></div></figure>',
            f'<ul class="key">{key}</ul>',
            f'<script type="application/json" class="data">{as_script(data)}</script>',
        ]
    )


def _hover_data(tuning: Tuning, kind: str, candidate: Candidate) -> dict[str, Any]:
    """Return a candidate's name and per size: seconds, times the bound, the bottleneck (numbered) and the terms."""
    gap = value_scale(tuning, kind, True)
    names = list(dict.fromkeys(bottleneck for bottleneck, _ in candidate.why.values()))
    terms = list(dict.fromkeys(term for _, values in candidate.why.values() for term in values))
    return {
        "who": candidate.planner,
        "options": options_text(candidate.options, candidate.variant),
        "seconds": [float(f"{s:.5g}") for s in candidate.seconds.values()],
        "gap": [float(f"{gap(size, s):.4g}") for size, s in candidate.seconds.items()] if kind in tuning.limits else [],
        "names": names,
        "held": [names.index(bottleneck) for bottleneck, _ in candidate.why.values()],
        "terms": {t: [float(f"{values.get(t, 0.0):.4g}") for _, values in candidate.why.values()] for t in terms},
    }


def _ranges_table(tuning: Tuning, kind: str, number: int) -> str:
    """Return the table of ranges with the best plan of each; a click on a row shows that plan."""
    ranges = [r for r in tuning.ranges if r.collective == kind]
    colour = {c: line_styles(tuning, kind)[i][1] for i, c in enumerate(tuning.of(kind)) if c.seconds}
    head = (
        "<tr><th>sizes</th><th>use</th><th>best of ours</th><th class=n>at</th><th class=n>time</th><th>made of</th>"
        "<th class=n>gap</th><th class=n>over NCCL</th><th>calibration</th></tr>"
    )
    rows = []
    shades = _term_shades(ranges)
    for i, r in enumerate(ranges):
        planner, span = escape(r.candidate.planner), _span_text(r)
        options = escape(options_text(r.candidate.options, r.candidate.variant))
        use = f"<strong>leave it to {library_name(r.served_by)}</strong>" if r.served_by else escape(use_text(r))
        uses = f"<br><small>uses {escape(uses_text(r.candidate.uses))}</small>" if r.candidate.uses else ""
        over = f"<br><small>{escape(r.over)}</small>" if r.over else ""
        rows.append(
            f'<tr data-plan="p{number}-{i}" tabindex="0"><td class="span">{span}</td><td data-head="use">{use}</td>'
            f'<td data-head="best of ours"><span><span class="dot" style="background:{colour[r.candidate]}"></span>'
            f"{planner} <small>{options}</small>{uses}</span></td>"
            f'<td class=n data-head="at">{format_size(r.at)}</td>'
            f'<td class=n data-head="time">{format_seconds(r.seconds)}</td>'
            f'<td data-head="made of">{_terms_bar(r, shades)}</td><td class=n data-head="gap">{ratio(r.gap)}</td>'
            f'<td class=n data-head="over NCCL"><span>{speedup_text(r)}{over}</span></td>'
            f'<td data-head="calibration">{escape(r.rests_on)}</td></tr>'
        )
    names = tuning.baselines.get(kind, ())
    nccl = ("the better of " if len(names) > 1 else "") + " and ".join(names)
    note = "Figures hold at the size under \u201cat\u201d, the greatest priced in the range."
    terms_text = ", ".join(f'<i class="dot" style="background:{shade}"></i>{escape(t)}' for t, shade in shades.items())
    note += f" Time is made of {terms_text}." if shades else ""
    if tuning.library is not None:
        nccl = baseline_text(tuning, (kind,))
    note += f" Speedups are over {escape(nccl)}." if names else ""
    note += "".join(f"<br>{escape(line)}." for line in use_lines(tuning, kind))
    return (
        f'<h2>What to use when</h2><div class="scroll"><table class="ranges cards"><thead>{head}</thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="note">{note}</p>'
    )


def _span_text(r: Range) -> str:
    start, stop = ends_text(r.start, r.stop)
    return start if stop == "-" else f"{start} – {stop}"


def _sweep_section(tuning: Tuning, kind: str) -> str:
    """Return the effect of the swept options at each size; nothing without a sweep."""
    gains = [gain for gain in tuning.gains if gain.collective == kind]
    if not gains:
        return ""
    head = _table_row(["planner", "over", "on average", "at most", "at", "calibration"], "th", 2)
    rows = [
        _table_row(
            [g.planner, options_text(dict(g.first)), ratio(g.mean), ratio(g.most), format_size(g.at), g.rests_on],
            text_cells=2,
        )
        for g in gains
    ]
    options = escape(", ".join(tuning.sweep))
    return (
        f'<h2>Choosing {options}</h2><div class="scroll" style="{BOX}">'
        f"{heatmap_svg(tuning, kind, standalone=False, max_width=WIDE_CHART[0])}</div>"
        f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'
        '<p class="note">Speedup of the best value for each size over the first one of the sweep.</p>'
    )


def _terms_of(r: Range) -> Mapping[str, float]:
    """Return the terms of the time of a range's best plan, in seconds, at the largest size priced there."""
    priced = [size for size in r.candidate.why if r.start <= size <= r.stop]
    return {t: value for t, value in r.candidate.why[max(priced)][1].items() if value > 0} if priced else {}


def _term_shades(ranges: Sequence[Range]) -> dict[str, str]:
    names = dict.fromkeys(term for r in ranges for term in _terms_of(r))
    return dict(zip(names, itertools.cycle(TERM_COLOURS)))


def _terms_bar(r: Range, shades: Mapping[str, str]) -> str:
    """Draw a stacked bar of the terms."""
    terms = _terms_of(r)
    total = sum(terms.values()) or 1.0
    segments = [
        f'<i style="flex:{value / total:.4f};background:{shades[t]}" title="{escape(t)} {value / total:.0%}"></i>'
        for t, value in terms.items()
    ]
    label = ", ".join(f"{t} {value / total:.0%}" for t, value in terms.items())
    return f'<span class="parts" role="img" aria-label="{escape(label)}">{"".join(segments)}</span>'


def _plan_sections(tuning: Tuning, kind: str, number: int) -> str:
    """Return the plans of all ranges; a menu shows one of them."""
    ranges = [r for r in tuning.ranges if r.collective == kind]
    options = "".join(
        f'<option value="p{number}-{i}">{_span_text(r)}: {escape(r.candidate.planner)} '
        f"{escape(options_text(r.candidate.options))}</option>"
        for i, r in enumerate(ranges)
    )
    sections = [plan_section(f"p{number}-{i}", tuning.plans[kind], i, r) for i, r in enumerate(ranges)]
    return (
        f'<div class="head"><h2>The plan for</h2><select aria-label="plan">{options}</select></div>'
        f'<div class="plans">{"".join(sections)}</div>'
    )


def _candidates_table(candidates: tuple[Candidate, ...], sizes: tuple[int, ...]) -> str:
    """Return a table of all candidates with their times at three sizes, and of those that failed."""
    at = list(dict.fromkeys([sizes[0], sizes[len(sizes) // 2], sizes[-1]]))
    head = _table_row(["planner", "options", *(format_size(s) for s in at)], "th", 2)
    good = [
        _table_row(
            [c.planner, options_text(c.options, c.variant), *(format_seconds(c.seconds[s]) for s in at)], text_cells=2
        ).replace("<tr>", f'<tr data-order="{",".join(f"{c.seconds[s]:.6g}" for s in at)}">', 1)
        for c in sorted((c for c in candidates if c.seconds), key=lambda c: c.seconds[sizes[-1]])
    ]
    failed = [
        f"<tr><td>{escape(c.planner)}</td><td>{escape(options_text(c.options))}</td><td>{escape(c.status)}</td>"
        f"<td>{escape(c.reason)}</td></tr>"
        for c in candidates
        if c.status != "ok"
    ]
    refused = (
        '<div class="scroll"><table class="refused"><tr><th>planner</th><th>options</th><th></th><th>why</th></tr>'
        f"{''.join(failed)}</table></div>"
        if failed
        else ""
    )
    return (
        f"<details><summary>All {len(good) + len(failed)} candidates</summary>"
        '<p class="note"><input type="search" class="filter" placeholder="filter, e.g. ring" aria-label="filter '
        'candidates"> A click on a head sorts.</p>'
        f'<div class="scroll"><table class="sortable"><thead>{head}</thead><tbody>{"".join(good)}</tbody></table></div>'
        f"{refused}</details>"
    )


def _footer_text(origin: str) -> str:
    entries = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in DEFINITIONS.items())
    origin_text = f", {escape(origin)}" if origin else ""
    return f"<footer><dl>{entries}</dl><p>Antiphon {escape(__version__)}{origin_text}</p></footer>"
