"""What ANTIPHON_TABLE=auto costs the calls of a program while plans are made: every call's time beside that without.

Run: python bench/bench_auto.py [TURNS [FOLDER]] (default 5, and the MPI beside this Python; FOLDER: of the mpicc and
mpiexec of another). Four processes, allreduces one after another, with and without in turn; nothing is kept, so that
plans are made during the job. Of every call the slowest process counts. Told are the median, the 99th percentile and
the longest of the calls of all turns, those before the plans came, the ten before that, in which they are made ready,
the first by plans, and those after it: how long they took, and the processor time of the thread that calls; when plans
came; and how much later than the run without the k-th fastest call was at most, of all k but one in a hundred.
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
from antiphon.runtimes.engine.launch import open_mpi_options

BIN = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(sys.executable).parent
READY = 10  # calls before the first by plans, in which all get ready
CASES = {  # count, bytes, microseconds of pause
    "64 KB, 10 ms between": (400, 64_000, 10_000),
    "1 MB, 10 ms between": (400, 1_000_000, 10_000),
    "8 MB, 10 ms between": (200, 8_000_000, 10_000),
    "64 KB, one after another": (20_000, 64_000, 0),
}
NAMED = {"ANTIPHON_TOPOLOGY": "dgx1v", "ANTIPHON_RANKS": "1,4,5,6", "ANTIPHON_AUTO_WAIT": "0"}
Calls = list[tuple[float, ...]]  # when a call began, how long it took, and worked: seconds


def job(program: Path, case: tuple[int, int, int], settings: dict[str, str]) -> tuple[float, Calls]:
    """Seconds that MPI_Init took, and the calls."""
    launcher = [str(BIN / "mpiexec"), *open_mpi_options(str(BIN / "mpiexec"), 2**20), "-n", "4"]
    done = subprocess.run(
        [*launcher, str(program), *map(str, case)], env={**os.environ, **settings}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    right, ready, *calls = done.stdout.split()
    if right != "right":
        sys.exit("a result is wrong")
    parts = ([float(part) for part in one.split(":")] for one in calls)
    return float(ready), [(at, took * 1e-6, worked * 1e-6) for at, took, worked in parts]


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def tell(label: str, calls: Calls) -> None:
    if not calls:
        return
    both = [" ".join(f"{1e6 * at([one[i] for one in calls], share):8.0f}" for share in (0.5, 0.99, 1)) for i in (1, 2)]
    print(f"  {label:16s} median, 99 %, longest, us: {both[0]}; processor time: {both[1]}")


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    _common.print_machine()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "times")
        source = Path(__file__).with_name("auto_times.c")
        subprocess.run([str(BIN / "mpicc"), "-O2", str(source), "-o", str(program)], check=True)
        engine = str(library("mpi", str(BIN / "mpicc")))
        for name, case in CASES.items():
            found: dict[str, Calls] = {way: [] for way in ("without", "auto", "getting ready", "the first", "by plans")}
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
                found["without"] += calls[: since - 1]
                found["auto"] += mine[: since - 1]
                found["getting ready"] += mine[max(0, since - 1 - READY) : since - 1]
                found["the first"] += mine[since - 1 : since]
                found["by plans"] += mine[since:]
            pair = [sorted(one[1] for one in found[way]) for way in ("without", "auto")]
            count = len(pair[0]) * 99 // 100
            worst = max(b - a for a, b in zip(pair[0][:count], pair[1][:count], strict=True))
            print(f"{name}: {len(pair[1])} calls before plans came, after {at(came, 0.5):.2f} s")
            for label, values in found.items():
                tell(label, values)
            begun = " and ".join(f"{at([pair[i] for pair in starts], 0.5):.3f} s" for i in (0, 1))
            print(f"  the k-th of each at most {1e6 * worst:.0f} us later; MPI_Init {begun}")


main()
