"""What ANTIPHON_TABLE=auto costs the calls of a program while plans are made: every call's time beside that without.

Run: python bench/bench_auto.py [TURNS] (default 5). Four processes, allreduces one after another, with and without in
turn; each time nothing is kept, so that plans are made during the job. Of every call the slowest process counts. Told
are the median, the 99th percentile and the longest of the calls of all turns, those before the plans came; when that
was; and how much later than the run without the k-th fastest call was at most, of all k but one in a hundred.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import _common

from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import consent

BIN = Path(sys.executable).parent
CASES = {  # count, bytes, microseconds of pause
    "64 KB, 10 ms between": (400, 64_000, 10_000),
    "1 MB, 10 ms between": (400, 1_000_000, 10_000),
    "64 KB, one after another": (20_000, 64_000, 0),
}
NAMED = {"ANTIPHON_TOPOLOGY": "dgx1v", "ANTIPHON_RANKS": "1,4,5,6", "ANTIPHON_AUTO_WAIT": "0"}
Calls = list[tuple[float, float]]  # when a call began, and how long it took: seconds


def job(program: Path, case: tuple[int, int, int], settings: dict[str, str]) -> tuple[float, Calls]:
    """Seconds that MPI_Init took, and the calls."""
    launcher = [str(BIN / "mpiexec"), *consent(str(BIN / "mpiexec"), 2**20), "-n", "4"]
    done = subprocess.run(
        [*launcher, str(program), *map(str, case)], env={**os.environ, **settings}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    right, ready, *calls = done.stdout.split()
    if right != "right":
        sys.exit("a result is wrong")
    parts = (one.split(":") for one in calls)
    return float(ready), [(float(at), float(took) * 1e-6) for at, took in parts]


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    _common.print_machine()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "times")
        source = Path(__file__).with_name("auto_times.c")
        subprocess.run([str(BIN / "mpicc"), "-O2", str(source), "-o", str(program)], check=True)
        engine = str(library("mpi"))
        for name, case in CASES.items():
            plain: list[float] = []
            ours: list[float] = []
            later: list[float] = []
            starts: list[tuple[float, float]] = []
            came: list[float] = []
            for turn in range(turns):
                started, calls = job(program, case, {})
                report = Path(folder, "report.json")
                auto = {"ANTIPHON_TABLE": "auto", "LD_PRELOAD": engine, "ANTIPHON_REPORT": str(report), **NAMED}
                ready, mine = job(program, case, {**auto, "ANTIPHON_CACHE": str(Path(folder, f"{turn}-{case}"))})
                starts.append((started, ready))
                since = int(json.loads(report.read_text())["auto"]["since"]) or len(mine) + 1
                came.append(mine[since - 1][0] if since <= len(mine) else float("nan"))
                plain += [took for _, took in calls[: since - 1]]
                ours += [took for _, took in mine[: since - 1]]
                later += [took for _, took in mine[since - 1 : since]]
            count = len(ours) * 99 // 100
            worst = max(b - a for a, b in zip(sorted(plain)[:count], sorted(ours)[:count], strict=True))
            print(f"{name}: {len(ours)} calls before plans came, after {at(came, 0.5):.2f} s")
            for label, values in (("without", plain), ("auto", ours), ("the first by plans", later)):
                figures = " ".join(f"{1e6 * at(values, share):10.0f}" for share in (0.5, 0.99, 1)) if values else ""
                print(f"  {label:20s} median, 99 %, longest, us: {figures}")
            begun = " and ".join(f"{at([pair[i] for pair in starts], 0.5):.3f} s" for i in (0, 1))
            print(f"  the k-th of each at most {1e6 * worst:.0f} us later; MPI_Init {begun}")


main()
