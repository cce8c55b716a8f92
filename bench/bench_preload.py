"""What a call costs in a program under LD_PRELOAD, beside the MPI library's own in the same run.

Run: python bench/bench_preload.py [RANKS] (default 8). Ratios are medians of 21 pairs that take turns. "by default":
small calls are left to the library; "forced": every call goes by the plan (ANTIPHON_LEAST=0).

With --lookup: nanoseconds that the preload library adds to a call that it leaves to MPI, without MPI's part; with what
the call needs in the caches of the processor, and without (`cold`); beside the least that a library in LD_PRELOAD adds.
With --table FILE, for each table: calls as the OSU benchmarks time them (a barrier before each, the mean of
what the processes spend within it) by these tables, from `antiphon tune ... --on mpi`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _common

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import open_mpi_options
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


def lookup(ranks: int, folder: Path) -> None:
    """Print what a call that is left to MPI costs."""
    program, least, table = folder / "lookup", folder / "least.so", folder / "left.json"
    compile_c = [str(BIN / "mpicc"), "-O2", str(Path(__file__).with_name("preload_lookup.c")), "-o"]
    subprocess.run([*compile_c, str(program), "-rdynamic", "-ldl"], check=True)
    subprocess.run([*compile_c, str(least), "-DPASS_ON", "-shared", "-fPIC"], check=True)
    machine, plans = antiphon.topology(f"full:ranks={ranks}"), {}
    for kind in ("broadcast", "allreduce", "alltoall"):
        entry = antiphon.plan(kind, machine, planner="direct").at(0)
        claims = {**entry.claims, "measured": True, "served_by": "library"}
        plans[kind] = Plan(machine, entry.schedule.collective, (Entry(0, None, entry.schedule, claims),))
    save_plans(table, plans, table=True)
    ours = run(program, ranks, [], {"LD_PRELOAD": str(library()), "ANTIPHON_TABLE": str(table)})
    emptiest = run(program, ranks, [], {"LD_PRELOAD": str(least)})
    _common.print_table(
        ["collective", "elements", "added ns", "cold", "least added ns", "cold"],
        [
            [kind, int(count), *(float(seconds) * 1e9 for seconds in (*added, *least_added))]
            for (kind, count, *added), (_, _, *least_added) in zip(ours, emptiest, strict=True)
        ],
    )


EACH = {  # bytes (of all blocks) and calls, by the number of the collective in preload_times.c
    "broadcast": (3, (8, 16, 32, 64, 128, 256, 512, 1024, 8192, 65536, 524288, 4194304)),
    "allreduce": (0, (8, 16, 32, 64, 128, 256, 512, 1024, 8192, 65536, 524288, 4194304)),
    "alltoall": (2, (8, 16, 32, 64, 128, 256, 512, 1024, 8192, 65536, 131072, 524288)),
    "reducescatter": (4, (64, 128, 256, 512, 1024, 8192, 65536, 524288, 4194304)),
}


def by_tables(ranks: int, tables: list[str], folder: Path) -> None:
    """Print calls by tables beside the MPI library's own."""
    program = folder / "times"
    source = Path(__file__).with_name("preload_times.c")
    subprocess.run([str(BIN / "mpicc"), "-O2", str(source), "-o", str(program)], check=True)
    sizes = [
        f"{nbytes * (ranks if kind == 'alltoall' else 1)},{max(2, min(100, 10**6 // nbytes))},{number}"
        for kind, (number, every) in EACH.items() for nbytes in every
    ]  # fmt: skip
    settings = {"LD_PRELOAD": str(library()), "ANTIPHON_TABLE": ":".join(tables)}
    means, least = (run(program, ranks, [mode, *sizes], settings) for mode in ("each", "least"))
    _common.print_table(
        ["collective", "nbytes", "mean us", "library us", "ratio", "least us", "library us", "ratio"],
        [
            [
                kind,
                int(nbytes),
                *(x for one in (mean, fastest) for x in (float(one[0]) * 1e6, float(one[1]) * 1e6, float(one[2]))),
            ]
            for (kind, nbytes, *mean), (_, _, *fastest) in zip(means, least, strict=True)
        ],
    )


def run(program: Path, ranks: int, arguments: Sequence[str], settings: dict[str, str]) -> list[list[str]]:
    """The words of each line that the program prints."""
    launcher = [str(BIN / "mpiexec"), *open_mpi_options(str(BIN / "mpiexec"), 2**20), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, str(program), *arguments], env={**os.environ, **settings}, capture_output=True, text=True,
        timeout=600, check=True,
    )  # fmt: skip
    return [line.split() for line in done.stdout.splitlines()]


def times(program: Path, ranks: int, settings: dict[str, str]) -> list[list[str]]:
    return run(program, ranks, SIZES, settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", nargs="?", type=int, default=8)
    parser.add_argument("--lookup", action="store_true")
    parser.add_argument("--table", action="append", default=[])
    given = parser.parse_args()
    ranks = given.ranks
    _common.print_machine()
    if given.lookup or given.table:
        with tempfile.TemporaryDirectory() as folder:
            lookup(ranks, Path(folder)) if given.lookup else by_tables(ranks, given.table, Path(folder))
        return
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
