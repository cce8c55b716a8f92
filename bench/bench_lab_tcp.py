"""A C program with MPICH over TCP in the emulated DGX-1V, preloaded: calls by a tuned table beside MPICH's own.

Run as root: python bench/bench_lab_tcp.py [COLLECTIVE...]. The MPI is MPICH, from the environment
$ANTIPHON_TEST_MPICH, else the folder mpich of this one. Bytes are those of the call as nccl-tests counts: an allgather
of 4 MiB is 512 KiB of each of the eight ranks. Medians of 21 pairs that take turns, the slowest rank's time. What else
the computer has to do shows in all of them: each rank is a process, and every packet goes through a shaper.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _common

import antiphon
from antiphon.runtimes.engine.build import library

ROOT = Path(__file__).resolve().parent.parent
MPICH = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
NAME, MACHINE, RANKS = "tcp-calls", "dgx1v", 8
KINDS = ("allreduce", "allgather", "alltoall", "broadcast")  # as preload_times.c numbers them
SIZES = {8: 5, 64: 5, 1024: 5, 8192: 3, 65536: 2, 262144: 1, 1 << 20: 1}  # and calls that are timed together
MORE = {"allgather": {4 << 20: 1}}
WANTED = {("allreduce", 65536): 0.012, ("allgather", 4194304): 0.150}  # seconds, at most


def times(command: list[str], settings: dict[str, str]) -> list[list[str]]:
    lab = [sys.executable, "-m", "antiphon", "lab", "run", NAME, "--timeout", "250s", "--"]
    done = subprocess.run(
        [*lab, *command], env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        sys.exit(f"the program failed: {done.stderr[-800:]}")
    return [line.split() for line in done.stdout.splitlines() if line.startswith(KINDS)]


def asked(kind: str) -> list[str]:
    sizes = {**SIZES, **MORE.get(kind, {})}
    return [f"{nbytes},{calls},{KINDS.index(kind)}" for nbytes, calls in sizes.items()]


def main() -> None:
    kinds = [kind for kind in KINDS if kind in sys.argv[1:]] or KINDS
    if not (MPICH / "mpicc").exists():
        sys.exit(f"no MPICH in {MPICH}")
    _common.print_machine()
    with tempfile.TemporaryDirectory() as folder:
        program, tables = Path(folder, "times"), [Path(folder, f"{kind}.json") for kind in kinds]
        source = Path(__file__).with_name("preload_times.c")
        subprocess.run([str(MPICH / "mpicc"), "-O2", str(source), "-o", str(program)], check=True)
        for kind, path in zip(kinds, tables, strict=True):
            subprocess.run(
                [sys.executable, "-m", "antiphon", "tune", kind, MACHINE, "-o", str(path)],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        settings = {
            "LD_PRELOAD": str(library("mpi", str(MPICH / "mpicc"))), "ANTIPHON_TABLE": ":".join(map(str, tables)),
            "ANTIPHON_LEAST": os.environ.get("ANTIPHON_LEAST", ""),
        }  # fmt: skip
        antiphon.native.build("mpi", str(MPICH / "mpicc"), tables)
        antiphon.lab.up(MACHINE, scale="link=40Mbit", name=NAME)
        try:
            command = [str(MPICH / "mpiexec"), "-n", str(RANKS), str(program)]
            found = [row for kind in kinds for row in times([*command, *asked(kind)], settings)]
        finally:
            antiphon.lab.down(NAME)
    rows: list[dict[str, Any]] = [
        {"collective": kind, "nbytes": int(nbytes), "ranks": RANKS, "seconds": float(ours),
         "reference_seconds": float(theirs), "ratio": float(ratio), "wanted": WANTED.get((kind, int(nbytes)))}
        for kind, nbytes, ours, theirs, ratio in found
    ]  # fmt: skip
    before = _common.RESULTS / "lab_tcp.json"  # of a run for other collectives
    kept = json.loads(before.read_text(encoding="utf-8"))["rows"] if before.exists() else []
    _common.print_table(
        ["collective", "nbytes", "call ms", "MPICH ms", "ratio", "at most ms"],
        [
            [r["collective"], r["nbytes"], r["seconds"] * 1e3, r["reference_seconds"] * 1e3, r["ratio"],
             "" if r["wanted"] is None else r["wanted"] * 1e3]
            for r in rows
        ],
    )  # fmt: skip
    _common.save("lab_tcp", {"rows": [row for row in kept if row["collective"] not in kinds] + rows})


if __name__ == "__main__":
    main()
