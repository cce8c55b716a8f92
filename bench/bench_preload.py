"""What a call costs in a program under LD_PRELOAD, beside the MPI library's own in the same run.

Run: python bench/bench_preload.py [RANKS] (default 8). Ratios are medians of 21 pairs that take turns. "by default":
small calls are left to the library; "forced": every call goes by the plan (ANTIPHON_LEAST=0).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _common

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import consent
from antiphon.select import save_plans

BIN = Path(sys.executable).parent
# By size, as bench_mpi.py finds them on shared memory.
PLANS = {
    "allreduce": ((0, "direct"), (10_000, "colocated-ps")),
    "allgather": ((0, "direct"),),
}
SIZES = ("8,200", "64000,20", "1000000,1", "8000000,1")


def write_table(ranks: int, path: Path) -> None:
    machine = antiphon.topology(f"full:ranks={ranks}")
    plans = {}
    for kind, parts in PLANS.items():
        entries = []
        for (start, planner), stop in zip(parts, [*(one[0] for one in parts[1:]), None], strict=True):
            made = antiphon.plan(kind, machine, planner=planner).at(0)
            entries.append(Entry(start, stop, made.schedule, made.claims))
        plans[kind] = Plan(machine, entries[0].schedule.collective, tuple(entries))
    save_plans(path, plans, table=True)


def times(program: Path, ranks: int, settings: dict[str, str]) -> list[list[str]]:
    launcher = [str(BIN / "mpiexec"), *consent(str(BIN / "mpiexec"), 2**20), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, str(program), *SIZES], env={**os.environ, **settings}, capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    return [line.split() for line in done.stdout.splitlines() if line.startswith("all")]


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    _common.print_machine()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        program, table = Path(folder, "times"), Path(folder, "table.json")
        source = Path(__file__).with_name("preload_times.c")
        subprocess.run([str(BIN / "mpicc"), "-O2", str(source), "-o", str(program)], check=True)
        write_table(ranks, table)
        preload = {"LD_PRELOAD": str(library()), "ANTIPHON_TABLE": str(table)}
        for way, settings in (
            ("without", {}),
            ("by default", preload),
            ("forced", {**preload, "ANTIPHON_LEAST": "0"}),
        ):
            for kind, nbytes, ours, theirs, ratio in times(program, ranks, settings):
                rows.append(
                    {"way": way, "collective": kind, "nbytes": int(nbytes), "ranks": ranks, "seconds": float(ours),
                     "reference_seconds": float(theirs), "ratio": float(ratio)}
                )  # fmt: skip
    _common.print_table(
        ["preloaded", "collective", "nbytes", "call us", "library us", "ratio"],
        [
            [r["way"], r["collective"], r["nbytes"], r["seconds"] * 1e6, r["reference_seconds"] * 1e6, r["ratio"]]
            for r in rows
        ],
    )
    _common.save("preload", {"rows": rows})


if __name__ == "__main__":
    main()
