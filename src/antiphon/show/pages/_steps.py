"""Render a chosen plan for the report as HTML: its figures, steps, link loads, timeline and traffic between pairs.

The steps go into the page as JSON (`message_rows`), which page.js plays back; everything else is drawn here.
"""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any

import numpy as np

from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import step_times
from antiphon.select import Range, uses_text
from antiphon.show.pages.flow import MAX_LANES, busiest_links, message_rows, send_lanes, traffic_matrix
from antiphon.show.words import options_text, plural, ratio
from antiphon.units import format_seconds, format_size

COPY_COLOUR, REDUCE_COLOUR = "#2f6fab", "#c2622d"
MAX_MATRIX_RANKS = 64  # ranks in the matrix of traffic; a larger matrix is left out


_PLAYER = """<div><h4>Step by step</h4><div class="player"><div class="stage"></div>
<div class="controls"><button type="button" class="play" aria-label="play">▶</button>
<input type="range" min="0" max="{last}" value="0" aria-label="step"><span class="where"></span></div>
<div class="said"></div></div></div>"""


def as_script(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plan_section(name: str, plan: Plan, number: int, chosen: Range) -> str:
    """Return the section for entry `number` of a plan; hidden unless it is the first. `chosen`: the range it serves."""
    entry, topology = plan.entries[number], plan.topology
    table = message_rows(entry.schedule)
    members = plan.collective.members
    places = [topology.places[rank].rpartition("/")[0] for rank in members]
    data = {**table, "ranks": list(members), "places": places}
    elements = [
        f'<div class="plan" id="{escape(name)}"{"" if number == 0 else " hidden"}>',
        _facts_list(entry, chosen),
        '<div class="split">',
        _PLAYER.format(last=max(table["shown"] - 1, 0)),
        f"<div><h4>When each rank sends</h4>{_draw_timeline(entry.schedule, topology, chosen.at)}",
        f"<h4>The busiest links</h4>{_busiest_table(entry.schedule, topology)}</div>",
        "</div>",
        _draw_matrix(entry.schedule),
        f'<script type="application/json" class="steps">{as_script(data)}</script>',
        "</div>",
    ]
    return "\n".join(elements)


def _facts_list(entry: Entry, chosen: Range) -> str:
    """Return the planner and the figures of a plan as a list of definitions."""
    claims = entry.claims
    facts = [
        ("planner", f"{chosen.candidate.planner} {options_text(chosen.candidate.options)}".strip()),
        ("steps", f"{claims['steps']:,}"),
        ("chunks per rank", f"{claims['chunks']:,}"),
        ("transfers", f"{claims['transfers']:,}"),
    ]
    if "bandwidth_gap" in claims:
        facts.append(("bandwidth gap", ratio(claims["bandwidth_gap"])))
        facts.append(("latency gap", ratio(claims["latency_gap"])))
    if claims.get("uses"):
        facts.append(("uses", uses_text(claims["uses"])))
    facts.append((f"at {format_size(chosen.at)}", format_seconds(chosen.seconds)))
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return f'<dl class="facts">{cells}</dl>'


def _draw_timeline(schedule: Schedule, topology: Topology, nbytes: int) -> str:
    """Draw a horizontal lane per rank with a bar while it sends, at this size, with a barrier after every step.

    Copies are in the lower half of a lane, reductions in the upper half.
    """
    marks, times = step_times(schedule, topology, nbytes)
    total = float(times[-1]) or 1.0
    rows = send_lanes(schedule)
    ranks = sorted({rank for rank, _, _ in rows})
    row_of_rank = {rank: i for i, rank in enumerate(ranks)}
    lane = 16 if len(ranks) <= 24 else 9
    lanes_x, width, top = 34, 480, 4
    height = top + lane * len(ranks) + 22

    def x(step: int) -> float:
        return lanes_x + (width - lanes_x - 8) * float(np.interp(step, marks, times)) / total

    out = [f'<svg class="lanes" viewBox="0 0 {width} {height}" role="img" aria-label="timeline" font-size="10">']
    for rank, i in row_of_rank.items():
        if lane > 9 or i % 4 == 0:
            out.append(f'<text x="{lanes_x - 6}" y="{top + lane * i + lane * 0.7:.1f}" text-anchor="end">{rank}</text>')
    for rank, op, runs in rows:
        y, bar = top + lane * row_of_rank[rank] + (1 if op else lane / 2), lane / 2 - 1
        colour = REDUCE_COLOUR if op else COPY_COLOUR
        for begin, end in runs:
            box = f'x="{x(begin):.1f}" y="{y:.1f}" width="{max(x(end) - x(begin) - 0.4, 0.6):.1f}" height="{bar:.1f}"'
            action = "reduces" if op else "copies"
            title = f"rank {rank} sends {action}: steps {begin} to {end - 1}"
            out.append(f'<rect {box} fill="{colour}"><title>{title}</title></rect>')
    if len(marks) - 1 <= 80 and int(marks[-1]) <= 80:
        out += [
            f'<path d="M{x(s):.1f} {top} V{height - 20}" stroke="#fff" stroke-opacity="0.8"/>'
            for s in range(int(marks[-1]) + 1)
        ]
    foot = height - 6
    out.append(f'<text x="{lanes_x}" y="{foot}">0</text>')
    out.append(f'<text x="{width - 8}" y="{foot}" text-anchor="end">end</text>')
    out.append("</svg>")
    hidden = len(schedule.collective.members) - MAX_LANES
    note = f" The first {MAX_LANES} ranks of {MAX_LANES + hidden}." if hidden > 0 else ""
    key = (
        f'<span class="dot" style="background:{COPY_COLOUR}"></span>copy '
        f'<span class="dot" style="background:{REDUCE_COLOUR}"></span>reduce'
    )
    return (
        "".join(out)
        + f'<p class="note">{key}. At {format_size(nbytes)}: the share of the time that each step takes by its '
        f"greatest latency and load, with a barrier after it.{note}</p>"
    )


def _busiest_table(schedule: Schedule, topology: Topology) -> str:
    """Return a table of the busiest links, with bars."""
    usage = busiest_links(schedule, topology)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class='bar'><i style='width:{100 * busy:.1f}%'></i></td>"
        f"<td class='n'>{busy:.0%}</td></tr>"
        for name, busy, _ in usage["bars"]
    )
    text = (
        f"{usage['used']:,} of {plural(usage['links'], 'link')} used; on average busy {usage['mean']:.0%} of the "
        "time at zero latency."
    )
    return f'<table class="bars"><tbody>{rows}</tbody></table><p class="note">{text}</p>'


def _draw_matrix(schedule: Schedule) -> str:
    """Draw the matrix of traffic, sender by receiver, in ten shades; "" beyond MAX_MATRIX_RANKS ranks."""
    members = schedule.collective.members
    traffic = traffic_matrix(schedule)
    if len(members) > MAX_MATRIX_RANKS or not traffic:
        return ""
    row_of_rank = {rank: i for i, rank in enumerate(sorted({*members, *(r for pair in traffic for r in pair)}))}
    if len(row_of_rank) > MAX_MATRIX_RANKS:
        return ""
    cell = 22 if len(row_of_rank) <= 16 else 8
    matrix_x = 30
    side = matrix_x + cell * len(row_of_rank) + 2
    top = max(traffic.values())
    out = [f'<svg class="heat" viewBox="0 0 {side} {side}" width="{side}" height="{side}" font-size="10" role="img">']
    for rank, i in row_of_rank.items():
        if cell > 8 or i % 8 == 0:
            at = matrix_x + cell * i + cell / 2
            out.append(f'<text x="{at:.0f}" y="{matrix_x - 8}" text-anchor="middle">{rank}</text>')
            out.append(f'<text x="{matrix_x - 6}" y="{at + 3.5:.1f}" text-anchor="end">{rank}</text>')
    shapes: dict[int, list[str]] = {}
    for (src, dst), amount in sorted(traffic.items()):
        x, y = matrix_x + cell * row_of_rank[dst], matrix_x + cell * row_of_rank[src]
        # Ten levels of opacity, relative to the largest amount.
        level = math.ceil(amount / top * 10)
        if cell > 8:
            title = f"rank {src} sends {amount:.4g} of nbytes to rank {dst}"
            out.append(
                f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" rx="2" fill="{COPY_COLOUR}" '
                f'fill-opacity="{0.1 + 0.09 * level:.2f}"><title>{title}</title></rect>'
            )
        else:  # thousands of cells: one path per level
            shapes.setdefault(level, []).append(f"M{x} {y}h7v7h-7z")
    for level, drawn in sorted(shapes.items()):
        out.append(f'<path fill="{COPY_COLOUR}" fill-opacity="{0.1 + 0.09 * level:.2f}" d="{"".join(drawn)}"/>')
    out.append("</svg>")
    return (
        "<details><summary>Who sends how much to whom, in all</summary>"
        f'<div class="scroll">{"".join(out)}</div><p class="note">Row: sender; column: receiver; darkest: '
        f"{top:.4g} of nbytes.</p></details>"
    )
