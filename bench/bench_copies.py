"""What moving data between processes of one host costs at least: reading others' memory by the kernel, or sharing some.

Run: python bench/bench_copies.py. Nothing but copies and barriers, 8 processes, an allgather: the floor of what any
library can reach either way (docs/decisions.md). Needs Linux and a C compiler.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import _common

PROCESSES = 8
SIZES = ((8_000, 400), (125_000, 200), (1_000_000, 50))


def main() -> None:
    _common.print_machine()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "copies")
        source = Path(__file__).with_name("copies.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O3", "-std=c11", "-Wall", "-Wextra", "-o", str(program), str(source)], check=True)
        for nbytes, turns in SIZES:
            done = subprocess.run(
                [str(program), str(PROCESSES), str(nbytes), str(turns)], capture_output=True, text=True, check=True
            )
            for line in done.stdout.splitlines():
                way, median, least = line.split()
                rows.append({"way": way, "bytes": nbytes, "seconds": float(median), "least": float(least)})
    _common.print_table(
        ["way", "bytes of each", "us", "least us"],
        [[r["way"], r["bytes"], 1e6 * float(r["seconds"]), 1e6 * float(r["least"])] for r in rows],
    )
    _common.save("copies", {"processes": PROCESSES, "rows": rows})


if __name__ == "__main__":
    main()
