"""Calls that no plan is for, under LD_PRELOAD, beside the MPI library's own in the same run.

Run: python bench/bench_general.py [RANKS [MPICC]] (default 4). Bytes are those of a process. Ratios are medians of 21
pairs that take turns: of what a call takes, and of the processor time of all processes, which holds where the computer
has much else to do. "Iallreduce" and the like: our call that waits beside MPI's that does not, waited for at once.
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
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import consent
from antiphon.select import save_plans

BIN = Path(sys.executable).parent
PLANNERS = {
    "allreduce": "direct", "allgather": "direct", "reducescatter": "direct", "reduce": "binomial-tree",
    "broadcast": "binomial-tree", "gather": "direct", "scatter": "direct", "alltoall": "pairwise",
}  # fmt: skip
SIZES = ("256,50", "4096,20", "32000,10", "1000000,2")


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    mpicc = sys.argv[2] if len(sys.argv) > 2 else str(BIN / "mpicc")
    launcher = str(Path(mpicc).with_name("mpiexec"))
    _common.print_machine()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder, "times"), Path(folder, "table.json")
        source = Path(__file__).with_name("general_times.c")
        subprocess.run([mpicc, "-O2", str(source), "-o", str(program)], check=True)
        machine = antiphon.topology(f"full:ranks={ranks}")
        save_plans(path, {k: antiphon.plan(k, machine, planner=p) for k, p in PLANNERS.items()}, table=True)
        preload = {"LD_PRELOAD": str(library("mpi", mpicc)), "ANTIPHON_TABLE": str(path), "ANTIPHON_LEAST": "0"}
        command = [launcher, *consent(launcher, 2**20), "-n", str(ranks), str(program), *SIZES]
        done = subprocess.run(
            command, env={**os.environ, **preload}, capture_output=True, text=True, timeout=300, check=True
        )
    for line in done.stdout.splitlines():
        if not line.startswith("all "):
            continue
        _, call, nbytes, ours, theirs, ratio, worked = line.split()
        rows.append(
            {"call": call, "nbytes": int(nbytes), "ranks": ranks, "seconds": float(ours),
             "reference_seconds": float(theirs), "ratio": float(ratio), "processor_ratio": float(worked)}
        )  # fmt: skip
    _common.print_table(
        ["call", "nbytes", "call us", "library us", "ratio", "of processor time"],
        [
            [r["call"], r["nbytes"], r["seconds"] * 1e6, r["reference_seconds"] * 1e6, r["ratio"], r["processor_ratio"]]
            for r in rows
        ],
    )
    _common.save("general", {"rows": rows})


if __name__ == "__main__":
    main()
