"""Everything under real MPIs: collective x planner x size x type x operator x placement on 2 to 16 ranks, each checked.

Run: python bench/bench_mpi_product.py [PART] (default 1: all; 20: a twentieth, drawn by chance). Takes hours on a few
cores. Open MPI and, where it is there, MPICH (tests/mpi_env.py says where it is looked for). Results are held against
float64 with the tolerance of runtimes/measure/random_data.py, against the library's own, and, where small, bit by bit
against the interpreter.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import _common
import mpi_env
from mpi_cases import check_cases, everything

from antiphon.runtimes.measure.case import Case

AT_ONCE = 400  # cases of one launch
MOST = 2**26  # bytes on all ranks


def some(part: int) -> list[Case]:
    found = everything(MOST, timeout=120.0)
    return sorted(random.Random(part).sample(found, len(found) // part), key=lambda case: len(case.ranks))


def run_all(name: str, part: int) -> dict[str, object]:
    cases, began, bits = some(part), time.monotonic(), 0
    groups: list[list[Case]] = []
    for case in cases:  # a launch has as many processes as its cases need
        if not groups or len(groups[-1]) == AT_ONCE or len(groups[-1][0].ranks) != len(case.ranks):
            groups.append([])
        groups[-1].append(case)
    done = 0
    for group in groups:
        bits += sum("digests" in row for row in check_cases(group))
        done += len(group)
        spent = time.monotonic() - began
        print(
            f"{name}: {done} of {len(cases)}, {len(group[0].ranks)} ranks, {spent:.0f} s", file=sys.stderr, flush=True
        )
    print(f"{name}: {len(cases)} cases right, {bits} of them bit by bit as the interpreter")
    return {"mpi": name, "cases": len(cases), "bitwise": bits, "part": part, "seconds": time.monotonic() - began}


def main() -> None:
    part = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    if len(sys.argv) > 2:  # within the other MPI's Python
        run_all(sys.argv[2], part)
        return
    _common.print_machine()
    rows = [run_all("openmpi", part)] if mpi_env.openmpi() is not None else []
    other = mpi_env.mpich()
    if other is not None:
        subprocess.run([other.python, __file__, str(part), "mpich"], check=True, env=other.env)
        rows.append({"mpi": "mpich", "cases": len(some(part)), "part": part})
    _common.save("mpi_product", {"rows": rows})


if __name__ == "__main__":
    main()
