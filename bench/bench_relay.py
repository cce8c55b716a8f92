"""Two of eight MI350X reduce, the six idle ones relay: our plans beside times that Meta measured with RCCL and RCCLX.

Run: python bench/bench_relay.py [--svg FILE]. An allreduce between GPUs 0 and 1 at every size of the published sweep
(`published.py`, relay_sweep). Measured, by Meta: RCCL on the two GPUs, RCCLX's hand-made relay, its pipelined version.
Modelled, here: our plans, which have not run on a GPU. Nothing is fitted to the rows of this allreduce. Two prices:

    at RCCL's rate     model `calls`: launch, hops and the share of a link as fitted to RCCL's times of the other tables
    at RCCLX's rate    a link carries what it carries in RCCLX's relays of the three other collectives, and a call takes
                       as long to start: two figures, by least squares

The second is the price to expect of a like implementation: it predicts RCCLX's own relay of this allreduce within 5 %.
Those relays take two steps (to the relays, and on to the other GPU), each with an eighth of the data on every link:

    seconds = start + 2 * (share of the link in a step) * nbytes / rate,   share = 1/8 (1/16: half of the input is sent)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from _common import print_table, save
from published import RELAY_SOURCE, relay_sweep, relay_tables

import antiphon
from antiphon.cost import Profile, prepare
from antiphon.cost.nccl.calls import SIMPLE, shipped_calls
from antiphon.cost.nccl.choice import Costs, price_options
from antiphon.show.pictures.chart import DARK, FONT, GREY, Frame
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size

MACHINE, BUSY = "mi350x", (0, 1)
LINK_SHARE = {"allreduce": 1 / 8, "allgather": 1 / 8, "alltoall": 1 / 16, "reducescatter": 1 / 16}
# Sizes from which RCCLX relays, in the version of this sweep (torchcomms, pull request 3681); below it sends directly.
RELAYS_FROM = {"allreduce": 9 << 20, "allgather": 9 << 20, "alltoall": 27 << 20, "reducescatter": 27 << 20}
STEPS = 2  # of RCCLX's relays
LINK = 56e9  # bytes per second of a link, as Meta measured it (torchcomms, pull request 3676); nominal: 76.8


def fitted_relays() -> tuple[float, float]:
    """Start in seconds and bytes per second of a link, from RCCLX's relays of the other collectives."""
    rows = [
        row
        for row in relay_sweep()
        if row.busy == len(BUSY) and row.collective != "allreduce" and row.nbytes >= RELAYS_FROM[row.collective]
    ]
    # Relative errors: each row is divided by its time.
    left = np.array([[1 / r.relay, STEPS * LINK_SHARE[r.collective] * r.nbytes / r.relay] for r in rows])
    (start, per_byte), *_ = np.linalg.lstsq(left, np.ones(len(rows)), rcond=None)
    return float(start), float(1 / per_byte)


Row = dict[str, Any]


def compared() -> list[Row]:
    """A row per size: measured times, and those of the model, in seconds."""
    machine = topology(MACHINE)
    each = float(machine.unit)
    sweep = [row for row in relay_sweep() if (row.collective, row.busy) == ("allreduce", len(BUSY))]
    tuning = antiphon.tune(
        "allreduce", machine, nbytes=[row.nbytes for row in sweep], ranks=BUSY, search=antiphon.Search(workers="none")
    )
    start, rate = fitted_relays()
    hop = shipped_calls()[MACHINE].hop[SIMPLE]
    layout = next(table.layout for table in relay_tables() if table.ranks == len(BUSY))
    costs = Costs(shipped_calls()[MACHINE], None, False)
    links = Profile(alpha={"xgmi": hop}, bandwidth_factor={"xgmi": Fraction(rate / each)})
    found: list[Row] = []
    for row in sweep:
        entry = tuning.plan.at(row.nbytes)
        ours = prepare("calls", entry.schedule, machine)(row.nbytes).seconds
        as_relays = prepare("alpha-beta", entry.schedule, machine, profile=links)(row.nbytes).seconds
        found.append({
            "nbytes": row.nbytes, "rccl_measured": row.nccl, "relay_measured": row.relay,
            "pipelined_relay_measured": row.pipelined,
            "rccl_modelled": price_options(layout, costs, "allreduce", row.nbytes)[0].seconds,
            "relay_modelled": start + STEPS * LINK_SHARE["allreduce"] * row.nbytes / rate,
            "ours_at_rccl_rate": ours, "ours_at_rcclx_rate": start - STEPS * hop + as_relays,
            "links_alone": row.nbytes / 7 / LINK, "planner": entry.schedule.provenance["planner"],
            "use": "ours" if not entry.served_by else entry.served_by,
        })  # fmt: skip
    return found


def off(rows: Sequence[Row], modelled: str, measured: str) -> str:
    """By how much a model misses: the median, and the most, from 9 MiB on."""
    errors = [abs(row[modelled] / row[measured] - 1) for row in rows if row["nbytes"] >= RELAYS_FROM["allreduce"]]
    return f"{np.median(errors):.1%} (at most {max(errors):.1%})"


LINES = (  # of the picture: column, text, colour, dashes
    ("rccl_measured", "RCCL, measured", DARK, ""),
    ("relay_measured", "RCCLX's relay, measured", "#b3541e", ""),
    ("pipelined_relay_measured", "RCCLX's pipelined relay, measured", "#d99a2b", ""),
    ("ours_at_rcclx_rate", "our plan, modelled at RCCLX's rate per link", "#1f6f8b", "6 3"),
    ("ours_at_rccl_rate", "our plan, modelled at RCCL's rate per link", "#1f6f8b", "2 3"),
    ("links_alone", "seven links alone, 56 GB/s each", GREY, "1 4"),
)


def svg(rows: Sequence[Row]) -> str:
    """Time by size, both logarithmic."""
    rows = [row for row in rows if row["nbytes"] >= 4 << 20]
    low, high = 4 << 20, 1 << 30
    frame = Frame(
        70, 40, 520, 360, min_x=np.log10(low), max_x=np.log10(high), min_y=-5, max_y=np.log10(3e-2)
    )  # fmt: skip
    size = 'viewBox="0 0 900 460" width="900" height="460"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">',
        '<rect width="900" height="460" fill="#ffffff"/>',
        '<text x="16" y="24" font-size="15" font-weight="600">Allreduce between two of eight MI350X, six idle</text>',
    ]
    for power in range(22, 31, 2):
        x = frame.x(2**power)
        out.append(f'<path d="M{x:.1f} 40 V400" stroke="#ebe8e1"/>')
        out.append(f'<text x="{x:.1f}" y="418" text-anchor="middle">{format_size(2**power)}</text>')
    for seconds in (1e-5, 1e-4, 1e-3, 1e-2):
        y = frame.y(seconds)
        out.append(f'<path d="M70 {y:.1f} H590" stroke="#ebe8e1"/>')
        out.append(f'<text x="64" y="{y + 4:.1f}" text-anchor="end">{format_seconds(seconds)}</text>')
    for number, (column, text, colour, dashes) in enumerate(LINES):
        points = " ".join(f"{frame.x(row['nbytes']):.1f},{frame.y(row[column]):.1f}" for row in rows)
        style = f'fill="none" stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        at = 60 + 26 * number
        out.append(f'<polyline points="{points}" {style}/>')
        out.append(f'<path d="M608 {at} H636" {style}/><text x="644" y="{at + 4}">{escape(text)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    rows = compared()
    start, rate = fitted_relays()
    print(f"RCCLX's relays of other collectives: start {start * 1e6:.1f} us, {rate / 1e9:.1f} GB/s per link")
    columns = ("rccl_measured", "relay_measured", "pipelined_relay_measured", "ours_at_rcclx_rate", "ours_at_rccl_rate")
    heads = ("RCCL ms", "relay ms", "pipelined ms", "ours, RCCLX's rate ms", "ours, RCCL's rate ms", "links ms")
    print_table(
        ["size", *heads, "plan"],
        [
            [format_size(row["nbytes"]), *(row[column] * 1e3 for column in columns), row["links_alone"] * 1e3,
             row["planner"] if row["use"] == "ours" else f"leave to {row['use'].upper()}"]
            for row in rows
        ],
    )  # fmt: skip
    misses = {
        "rccl": off(rows, "rccl_modelled", "rccl_measured"), "relay": off(rows, "relay_modelled", "relay_measured"),
    }  # fmt: skip
    print(f"not fitted, from 9 MiB on: RCCL off by {misses['rccl']}, RCCLX's relay by {misses['relay']}")
    save("relay", {
        "source": RELAY_SOURCE, "start_seconds": start, "bytes_per_second": rate, "off": misses, "rows": rows,
    })  # fmt: skip
    if "--svg" in sys.argv:
        Path(sys.argv[sys.argv.index("--svg") + 1]).write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
