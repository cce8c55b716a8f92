"""How near the model of NCCL comes to published measurements, those of machines held out above all.

Run: python bench/bench_nccl.py [--svg FILE] [--rows] [--tables] [--write]. Every row of parts `fit` and `held out`:
measured, predicted, and what NCCL would choose. --rows and --tables print points and tables as CSV, --svg draws
measured against predicted, --write writes the errors that decide between plans and NCCL
(src/antiphon/cost/nccl/errors.json).
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from colorsys import hls_to_rgb
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _common import print_table
from fit_nccl import LARGE, LEAST, SMALL, algorithms_of
from published import FIT, HELD_OUT, ONE_FOR_ALL, Published, published, xla_tables

from antiphon.cost.nccl.accuracy import FILE, FORMAT, PLACES, RANGES, VERSION
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.choice import Costs, price_options
from antiphon.cost.nccl.gpus import gpu_of
from antiphon.cost.nccl.layout import layout_of
from antiphon.show.pictures.chart import DARK, FONT, GREY, Frame
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size

BANDS = (("1 KB to 64 KB", LEAST, SMALL), ("between", SMALL + 1, LARGE - 1), ("from 64 MB on", LARGE, 2**62))
LEAST_ROWS = 3  # of an error: fewer measurements say nothing

MOST_SMALL, MOST_LARGE = 0.30, 0.15  # what medians are held to


class Point(NamedTuple):
    table: str
    part: str
    nbytes: int
    measured: float
    predicted: float
    choice: str

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1


def points() -> list[Point]:
    known, found = shipped_calls(), []
    for table in tables():
        gpu = known.get(table.gpu) or gpu_of(table.topology, known)
        assert gpu is not None, table.name
        costs = Costs(gpu, known[table.fabric] if table.fabric else None, table.processes == ONE_FOR_ALL)
        layout = layout_of(topology(table.topology))
        for nbytes, seconds in table.seconds():
            best = price_options(layout, costs, table.collective, nbytes, algorithms_of(table))[0]
            found.append(Point(table.name, table.part, nbytes, seconds, best.seconds, best.name))
    return found


def tables() -> list[Published]:
    return [table for table in (*published(), *xla_tables()) if table.part in (FIT, HELD_OUT)]


def errors(all_points: Sequence[Point]) -> list[dict[str, object]]:
    """By collective, place and range: the median over held-out machines of each machine's median error."""
    by_name = {table.name: table for table in tables()}
    by_machine: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for row in all_points:
        table = by_name[row.table]
        for sizes, (_, low, high) in zip(RANGES, BANDS, strict=True):
            if row.part == HELD_OUT and low <= row.nbytes <= high:
                key = table.collective, PLACES[table.nodes > 1], sizes
                by_machine.setdefault(key, {}).setdefault(table.machine, []).append(abs(row.off))
    return [
        {
            "collective": kind, "place": place, "range": sizes,
            "error": round(float(np.median([np.median(errors) for errors in found.values()])), 4),
            "rows": sum(map(len, found.values())), "machines": len(found),
        }
        for (kind, place, sizes), found in sorted(by_machine.items())
        if sum(map(len, found.values())) >= LEAST_ROWS
    ]  # fmt: skip


def within(rows: Sequence[Point], low: int, high: int) -> str:
    errors = [abs(row.off) for row in rows if low <= row.nbytes <= high]
    return f"{np.median(errors):.1%} ({len(errors)})" if errors else ""


def summary(all_points: Sequence[Point]) -> None:
    for part in (FIT, HELD_OUT):
        mine = [row for row in all_points if row.part == part]
        names = list(dict.fromkeys(row.table for row in mine))
        rows = [[name, *(within([r for r in mine if r.table == name], a, b) for _, a, b in BANDS)] for name in names]
        rows.append([f"all {part}", *(within(mine, a, b) for _, a, b in BANDS)])
        print(f"\n{part}: median of |predicted / measured - 1| (rows)")
        print_table(["table", *(name for name, _, _ in BANDS)], rows)


def machines(all_points: Sequence[Point]) -> None:
    """Machine by machine of those held out: whether each is within what the model is held to."""
    names = {table.name: table.machine for table in tables()}
    mine = [row for row in all_points if row.part == HELD_OUT]
    rows = []
    for machine in dict.fromkeys(names[row.table] for row in mine):
        here = [row for row in mine if names[row.table] == machine]
        cells, said = [], []
        for (_, low, high), most in ((BANDS[0], MOST_SMALL), (BANDS[2], MOST_LARGE)):
            errors = [abs(row.off) for row in here if low <= row.nbytes <= high]
            cells.append(within(here, low, high))
            said += [float(np.median(errors)) <= most] if errors else []
        rows.append([machine, *cells, "yes" if all(said) else "no"])
    print(f"\nheld out, by machine: within {MOST_SMALL:.0%} at small sizes and {MOST_LARGE:.0%} at large ones")
    print_table(["machine", BANDS[0][0], BANDS[2][0], "within"], rows)


def print_points(all_points: Sequence[Point]) -> None:
    """What bench/results/nccl-points.csv holds."""
    print("table,part,size,measured us,predicted us,off,choice")
    for row in all_points:
        if row.nbytes >= LEAST:
            times = f"{row.measured * 1e6:.5g},{row.predicted * 1e6:.5g}"
            print(f"{row.table},{row.part},{format_size(row.nbytes)},{times},{row.off:+.0%},{row.choice}")


def print_tables(all_points: Sequence[Point]) -> None:
    """What docs/data/nccl-error.csv holds."""
    print(
        "# Median of |predicted / measured - 1| per published table. Source: python bench/bench_nccl.py; every point: "
        "bench/results/nccl-points.csv"
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    spans = ("1KB-64KB", "between", "from 64MB")
    writer.writerow(["table", "part", "machine", "collective", *(c for s in spans for c in (f"{s} %", "rows"))])
    for table in sorted(tables(), key=lambda table: table.part):
        cells: list[object] = []
        for _, low, high in BANDS:
            off = [abs(row.off) for row in all_points if row.table == table.name and low <= row.nbytes <= high]
            cells += [f"{np.median(off) * 100:.1f}" if off else "", len(off)]
        writer.writerow([table.name, table.part, table.machine, table.collective, *cells])


def svg(all_points: Sequence[Point]) -> str:
    """Measured across, predicted up; a line where they are equal, and one each 30 % away."""
    rows = [row for row in all_points if row.nbytes >= LEAST]
    held = list(dict.fromkeys(row.table for row in rows if row.part == HELD_OUT))
    times = [value for row in rows for value in (row.measured, row.predicted)]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    frame = Frame(84, 44, 560, 560, min_x=low, max_x=high, min_y=low, max_y=high)
    width, height = 980, 670
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="24" font-size="15" font-weight="600">NCCL and RCCL: predicted against measured</text>',
    ]
    for power in range(low, high + 1):
        x, y = frame.x(10.0**power), frame.y(10.0**power)
        out += [
            f'<path d="M{x:.1f} 44 V604 M84 {y:.1f} H644" stroke="#ebe8e1"/>',
            f'<text x="{x:.1f}" y="622" text-anchor="middle">{format_seconds(10.0**power)}</text>',
            f'<text x="78" y="{y + 4:.1f}" text-anchor="end">{format_seconds(10.0**power)}</text>',
        ]
    ends = 10.0**low, 10.0**high
    for factor, dash in ((1.0, ""), (1.3, ' stroke-dasharray="3 4"'), (1 / 1.3, ' stroke-dasharray="3 4"')):
        (x1, y1), (x2, y2) = ((frame.x(t), frame.y(t * factor)) for t in ends)
        out.append(f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="{DARK}"{dash}/>')
    for row in sorted(rows, key=lambda row: row.part):
        out.append(_dot(frame, row, held))
    out.append('<text x="364" y="646" text-anchor="middle">measured (dashed: 30 % off)</text>')
    for number, name in enumerate(["calibrated by (all of part fit)", *held]):
        fill, at = _colour(name, held), 60 + 24 * number
        out.append(f'<circle cx="668" cy="{at}" r="5" fill="{fill}"/><text x="682" y="{at + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _colour(table: str, held: Sequence[str]) -> str:
    if table not in held:
        return GREY
    red, green, blue = hls_to_rgb(held.index(table) / len(held), 0.42, 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _dot(frame: Frame, row: Point, held: Sequence[str]) -> str:
    """Small sizes are hollow, large ones full, those between are small."""
    fill, x, y = _colour(row.table, held), frame.x(row.measured), frame.y(row.predicted)
    told = f"{row.table}, {format_size(row.nbytes)}: {format_seconds(row.measured)}, {format_seconds(row.predicted)}"
    small = row.nbytes <= SMALL
    look = f'r="4" fill="none" stroke="{fill}"' if small else f'r="{3.5 if row.nbytes >= LARGE else 2}" fill="{fill}"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{escape(told)}</title></circle>'


def main() -> None:
    found = points()
    if "--svg" in sys.argv:
        Path(sys.argv[sys.argv.index("--svg") + 1]).write_text(svg(found), encoding="utf-8")
    elif "--rows" in sys.argv:
        print_points(found)
    elif "--tables" in sys.argv:
        print_tables(found)
    else:
        if "--write" in sys.argv:
            rows = {"format": FORMAT, "version": VERSION, "errors": errors(found)}
            FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        summary(found)
        machines(found)


if __name__ == "__main__":
    main()
