"""How fast schedules are priced: prepared once, then a size at a time, by steps as barriers and without barriers.

Run: python bench/bench_cost.py. Each row is measured in a process of its own. The targets are for a schedule of a
million rows. `growth` is the exponent of preparation time in rows, against the row of the same schedule before.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import numpy as np
from _common import in_child, median_seconds, medians, peak_mb, print_machine, print_table, save
from bench_verify import make

from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology
from antiphon.cost import prepare

PREPARE, SIZE = 1.0, 1e-3  # seconds, for a million rows and steps as barriers
KIND = LinkType("nvlink", 25 * 10**9, 7e-7)
CASES = [
    ("ring-allreduce", 181, 1), ("ring-allreduce", 362, 1), ("ring-allreduce", 724, 1), ("ring-allreduce", 1448, 1),
    ("direct-allreduce", 256, 1), ("direct-allreduce", 512, 1), ("direct-allreduce", 1024, 1),
    ("doubling-allreduce", 1024, 1), ("ring-allreduce", 181, 32), ("ring-allreduce", 724, 32),
]  # fmt: skip
MODELS = ("alpha-beta", "critical-path")


def case(kind: str, ranks: int, pieces: int) -> tuple[Schedule, Topology]:
    schedule, machine = make(kind, ranks)
    return replace(schedule, pieces=pieces), replace(machine, types=(KIND,), unit=KIND.bandwidth)


def child(model: str, kind: str, ranks: int, pieces: int) -> None:
    schedule, machine = case(kind, ranks, pieces)
    before = peak_mb()
    ready = prepare(model, schedule, machine)
    ready(10**6)
    peak = peak_mb()
    spent = medians(lambda: prepare(model, schedule, machine), 3)
    fresh = iter(np.random.default_rng(1).integers(1, 10**9, 100).tolist())
    pass_seconds = median_seconds(lambda: prepared_pass(ready, next(fresh)), 5)
    if model == "critical-path":
        ready(1), ready(10**9)
    sizes = [1000 * 2**k for k in range(20)]
    answers = median_seconds(lambda: [ready(size) for size in sizes], 3) / len(sizes)
    print(json.dumps(
        {"rows": schedule.transfers, "steps": schedule.steps, **spent, "pass_seconds": pass_seconds,
         "size_seconds": answers, "before_mb": before, "peak_mb": peak}
    ))  # fmt: skip


def prepared_pass(ready: object, nbytes: int) -> None:
    """One size for which nothing is known yet."""
    run = getattr(ready, "run", ready)  # critical-path keeps answers; run is the pass itself
    run(nbytes)


def main() -> None:
    print_machine()
    results, table, missed, last = [], [], [], {}
    for model in MODELS:
        for kind, ranks, pieces in CASES:
            one = in_child(__file__, model, kind, ranks, pieces)
            key = (model, kind, pieces)
            growth = ""
            if key in last:
                rows, seconds = last[key]
                growth = f"{math.log(one['seconds'] / seconds) / math.log(one['rows'] / rows):.2f}"
            last[key] = (one["rows"], one["seconds"])
            results.append({"model": model, "schedule": kind, "ranks": ranks, "pieces": pieces, **one})
            table.append(
                [f"{model} {kind} {ranks}", pieces, one["rows"], one["steps"], one["seconds"], growth,
                 one["pass_seconds"] * 1e3, one["size_seconds"] * 1e3, round(one["peak_mb"]), round(one["before_mb"])]
            )  # fmt: skip
            if model == "alpha-beta" and 0.9e6 < one["rows"] < 1.2e6:
                if one["seconds"] > PREPARE:
                    missed.append(f"{kind} {ranks}: prepared in {one['seconds']:.2f} s (target {PREPARE})")
                if one["size_seconds"] > SIZE:
                    missed.append(f"{kind} {ranks}: {one['size_seconds'] * 1e3:.2f} ms per size (target {SIZE * 1e3})")
    headers = [
        "schedule",
        "pieces",
        "rows",
        "steps",
        "prepare s",
        "growth",
        "pass ms",
        "size ms",
        "peak MB",
        "of it input",
    ]
    print_table(headers, table)
    for line in missed:
        print(f"MISSED {line}")
    save("cost", {"rows": results})


if __name__ == "__main__":
    if len(sys.argv) == 5:
        child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
