"""What communicators cost under LD_PRELOAD: made, called, freed; and a thousand of them at once.

Run: python bench/bench_communicators.py [RANKS [FOLDER]] (default 4, and the MPI beside this Python; FOLDER: of the
mpicc and mpiexec of another). "by default": the first 8 calls of each are MPI's; "at once": ANTIPHON_AFTER=0. Medians
of 200. Where processes are more than processors MPI is told to let others work while it waits, preloaded or not: MPICH
else keeps the processors from those that it waits for, and makes a communicator in 36 ms instead of 2; its collectives
within a host do so even then, and 700 allreduces of 100 KB did not end in a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import _common

import antiphon
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import open_mpi_options
from antiphon.select import save_plans

WAYS: dict[str, dict[str, str] | None] = {"without": None, "by default": {}, "at once": {"ANTIPHON_AFTER": "0"}}
CASES = ((200, 1000, 1), (50, 100, 12))  # freed, alive, calls of each
YIELDS = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_DEVICE_COLLECTIVES": "none", "POSIX_POLL_FREQUENCY": "1",
}  # fmt: skip


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    folder_of_mpi = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(sys.executable).parent
    mpicc, mpiexec = str(folder_of_mpi / "mpicc"), str(folder_of_mpi / "mpiexec")
    _common.print_machine()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program, table = Path(folder, "communicators"), Path(folder, "table.json")
        source = Path(__file__).with_name("communicators.c")
        subprocess.run([mpicc, "-O2", str(source), "-o", str(program)], check=True)
        made = antiphon.plan("allreduce", f"full:ranks={ranks}", planner="direct")
        save_plans(table, {"allreduce": made}, table=True)
        preload = {"LD_PRELOAD": str(library("mpi", mpicc)), "ANTIPHON_TABLE": str(table)}
        for case in CASES:
            for way, settings in WAYS.items():
                command = [mpiexec, *open_mpi_options(mpiexec, 2**20), "-n", str(ranks), str(program), *map(str, case)]
                yields = YIELDS if ranks > (os.cpu_count() or 1) else {}
                env = {**os.environ, **yields, **({} if settings is None else {**preload, **settings})}
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=True)
                rows.append([way, case[2], *map(float, done.stdout.split()), case[1]])
    _common.print_table(
        ["preloaded", "calls", "made to freed, us", "processor time, us", "MB alive", "of how many"], rows
    )


main()
