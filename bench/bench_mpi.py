"""Our engine against the MPI library's own allreduce and allgather, on the processes of one machine.

Run: python bench/bench_mpi.py [RANKS ...] (default 4 8). Ratios are ours over theirs, medians of pairs that take turns
in one run; below 64 KB a pair is two times 50 calls. With more processes than cores the scheduler has a large part.
"""

from __future__ import annotations

import sys
from typing import Any

import _common

import antiphon
from antiphon.core.program import encode
from antiphon.formats.program import lower
from antiphon.runtimes.measure.case import Case
from antiphon.runtimes.measure.mpi import run_cases

PLANS = {
    "allreduce": ("recursive-doubling", "halving-doubling", "direct", "colocated-ps", "ring"),
    "allgather": ("recursive-doubling", "bruck", "direct", "ring"),
}
SIZES = {8: 50, 1000: 50, 64_000: 20, 1_000_000: 1, 8_000_000: 1}
PAIRS = 20


def measure(ranks: int, pairs: int = PAIRS) -> list[dict[str, Any]]:
    machine = antiphon.topology(f"full:ranks={ranks}")
    programs, cases, names = [], [], []
    for kind, planners in PLANS.items():
        for planner in planners:
            schedule = antiphon.plan(kind, machine, planner=planner).at(0).schedule
            weight = schedule.collective.buffer_weight * 4
            programs.append(encode([lower(schedule)]))
            for nbytes, inner in SIZES.items():
                unit = max(nbytes // weight, 1)
                cases.append(
                    Case(len(programs) - 1, [*range(ranks)], unit, unit * weight, repeat=pairs, warmup=3, inner=inner)
                )
                names.append((kind, planner, nbytes))
    rows = run_cases(programs, cases)
    out = []
    for (kind, planner, nbytes), row in zip(names, rows, strict=True):
        if row["wrong"]:
            sys.exit(f"{kind} by {planner}, {nbytes} bytes: {row['wrong']} elements are wrong")
        keys = ("seconds", "reference_seconds", "over_library", "messages")
        out.append(
            {"ranks": ranks, "collective": kind, "planner": planner, "nbytes": nbytes, **{k: row[k] for k in keys}}
        )
    return out


def main() -> None:
    _common.print_machine()
    found = [row for ranks in map(int, sys.argv[1:] or ["4", "8"]) for row in measure(ranks)]
    _common.print_table(
        ["ranks", "collective", "planner", "nbytes", "ours us", "library us", "ratio"],
        [
            [
                r["ranks"],
                r["collective"],
                r["planner"],
                r["nbytes"],
                r["seconds"] * 1e6,
                r["reference_seconds"] * 1e6,
                r["over_library"],
            ]
            for r in found
        ],
    )
    best: dict[str, float] = {}
    for r in found:
        key = f"{r['collective']} {r['nbytes']} {r['ranks']}"
        best[key] = min(best.get(key, 1e9), r["over_library"])
    for key, ratio in best.items():
        print(f"best of {key}: {ratio:.2f}")
    _common.save("mpi", {"rows": found})


if __name__ == "__main__":
    main()
