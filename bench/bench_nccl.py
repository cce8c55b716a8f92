"""How near the model of NCCL comes to published measurements, those of machines held out above all.

Run: python bench/bench_nccl.py [--svg FILE] [--rows]. Every row of parts `fit` and `held out`: measured, predicted, what NCCL
would choose. --rows prints all of them as Markdown, --svg draws measured against predicted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from _common import print_table
from fit_nccl import LARGE, LEAST, SMALL, algorithms_of

from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.choice import Costs, prices
from antiphon.cost.nccl.place import gpu_of, place_of
from antiphon.cost.nccl.published import FIT, HELD_OUT, ONE_FOR_ALL, published
from antiphon.topologies import topology
from antiphon.units import format_size

BANDS = (("1 KB to 64 KB", LEAST, SMALL), ("between", SMALL + 1, LARGE - 1), ("from 64 MB on", LARGE, 2**62))


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
    for table in published():
        if table.part not in (FIT, HELD_OUT):
            continue
        gpu = known.get(table.gpu) or gpu_of(table.topology, known)
        assert gpu is not None, table.name
        costs = Costs(gpu, known[table.fabric] if table.fabric else None, table.processes == ONE_FOR_ALL)
        place = place_of(topology(table.topology))
        for nbytes, seconds in table.seconds():
            best = prices(place, costs, table.collective, nbytes, algorithms_of(table))[0]
            found.append(Point(table.name, table.part, nbytes, seconds, best.seconds, best.name))
    return found


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


def markdown(all_points: Sequence[Point]) -> None:
    print("| table | part | size | measured us | predicted us | off | choice |\n|---|---|---|---|---|---|---|")
    for row in all_points:
        if row.nbytes >= LEAST:
            times = f"{row.measured * 1e6:.5g} | {row.predicted * 1e6:.5g}"
            print(f"| {row.table} | {row.part} | {format_size(row.nbytes)} | {times} | {row.off:+.0%} | {row.choice} |")


def main() -> None:
    found = points()
    if "--rows" in sys.argv:
        markdown(found)
    else:
        summary(found)


if __name__ == "__main__":
    main()
