"""Learning under MPICH in the emulated DGX-1V, in three phases: quiet, a link at half its rate, quiet.

Run as root: python bench/bench_learn.py [CALLS]. An allreduce of 64 KiB and of 1 MiB, CALLS times per phase: by the
table's plan, by MPICH, and with ANTIPHON_LEARN=1. In the second phase the link from rank 0 to rank 3 (two NVLinks) has
the rate of one, as if a neighbour used the other. Medians of the calls after the first 60 of a phase, and totals.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import _common

import antiphon
from antiphon.runtimes.engine.build import library

MPICH = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
NAME, MACHINE, RANKS, PHASES, SEARCH = "learn-calls", "dgx1v", 8, 3, 60
SIZES = (1 << 16, 1 << 20)
HALVE = "class change dev r3 parent 1: classid 1:1 htb burst 16k rate"


def run_phases(command: list[str], settings: dict[str, str]) -> tuple[list[list[float]], list[str]]:
    """Return the seconds of the calls of each phase, and what the library reported."""
    lab = [sys.executable, "-m", "antiphon", "lab", "run", NAME, "--timeout", "900s", "--"]
    done = subprocess.run(
        [*lab, *command], env={**os.environ, **settings}, capture_output=True, text=True, timeout=1000, check=False
    )
    if done.returncode:
        sys.exit(f"the program failed: {done.stderr[-800:]}")
    phases: list[list[float]] = [[] for _ in range(PHASES)]
    for word, *numbers in map(str.split, done.stdout.splitlines()):
        if word == "call":
            phases[int(numbers[0])].append(float(numbers[1]))
    return phases, [line for line in done.stderr.splitlines() if line.startswith("antiphon: ")]


def main() -> None:
    calls = int(sys.argv[1]) if sys.argv[1:] else 300
    _common.print_machine()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program, table, shape = Path(folder, "times"), Path(folder, "table.json"), Path(folder, "shape")
        source = Path(__file__).with_name("learn_times.c")
        subprocess.run([str(MPICH / "mpicc"), "-O2", str(source), "-o", str(program)], check=True)
        shape.write_text(f'#!/bin/sh\n[ "$1" = 1 ] && rate=40mbit || rate=80mbit\nexec tc {HALVE} $rate\n')
        shape.chmod(0o755)
        tune = [sys.executable, "-m", "antiphon", "tune", "allreduce", MACHINE, "-o", str(table)]
        subprocess.run(tune, check=True, stdout=subprocess.DEVNULL)
        preload = {"LD_PRELOAD": str(library("mpi", str(MPICH / "mpicc"))), "ANTIPHON_TABLE": str(table)}
        ways = {
            "plan": {**preload, "ANTIPHON_LEAST": "0"}, "MPICH": {},
            "learning": {**preload, "ANTIPHON_LEARN": "1", "ANTIPHON_REPORT": "1"},
        }  # fmt: skip
        antiphon.native.build("mpi", str(MPICH / "mpicc"), [table])
        antiphon.lab.up(MACHINE, scale="link=40Mbit", name=NAME)
        try:
            for nbytes in SIZES:
                for way, settings in ways.items():
                    command = [str(MPICH / "mpiexec"), "-n", str(RANKS), str(program), str(calls), str(nbytes)]
                    phases, report = run_phases([*command, str(shape)], settings)
                    print("\n".join(line for line in report if way == "learning"))
                    medians = [median(phase[SEARCH:]) * 1e3 for phase in phases]
                    rows.append({"nbytes": nbytes, "way": way, "medians": medians, "total": sum(map(sum, phases))})
        finally:
            antiphon.lab.down(NAME)
    head = ["nbytes", "way", "quiet ms", "busy ms", "quiet again ms", "total s"]
    _common.print_table(head, [[r["nbytes"], r["way"], *r["medians"], r["total"]] for r in rows])
    _common.save("learn", {"calls": calls, "rows": rows})


if __name__ == "__main__":
    main()
