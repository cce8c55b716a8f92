"""All fuzzers, one after another: what `make fuzz` runs.

    python fuzz/run_all.py             some minutes
    python fuzz/run_all.py --short     a minute: what CI runs
    python fuzz/run_all.py --long      hours; with --save bench/results/fuzz.json its counts are kept

One that finds a fault ends there, and says where the case is kept and how to make it again; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = ("short", "usual", "long")


@dataclass(frozen=True)
class Fuzzer:
    """A file, its judge, and how many cases it takes: short, usual, long (0: left out)."""

    name: str
    judge: str
    counts: tuple[int, int, int]
    count: str = "--count"
    more: tuple[str, ...] = ()
    of_long: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return ROOT / "fuzz" / f"{self.name}.py"


FUZZERS = (
    Fuzzer(
        "schedules", "the meaning of docs/schedule.md in dictionaries, with its own search of routes",
        (3_000, 15_000, 1_000_000), more=("--json",),
    ),
    Fuzzer(
        "joints", "the section on joints of docs/schedule.md, one joint and switch after the other; the interpreter",
        (500, 6_000, 200_000), more=("--json",),
    ),
    Fuzzer(
        "msccl", "what MSCCL's executor does, every step held back in turn", (500, 5_000, 200_000), more=("--json",),
    ),
    Fuzzer(
        "mscclpp", "the executor of MSCCL++, thread by thread", (300, 5_000, 100_000), more=("--json",),
    ),
    Fuzzer("machines", "a linear program over all branchings (HiGHS)", (200, 1_200, 10_000), more=("--json",)),
    Fuzzer(
        "bounds_by_size", "the alpha-beta time of verified schedules, summed by docs/models.md", (50, 600, 50_000),
        more=("--json",),
    ),
    Fuzzer("runs", "the definition of every collective in NumPy", (600, 3_000, 100_000), more=("--json",)),
    Fuzzer(
        "loaders", "only a refusal in one line, or what reads back as the same; CPU time and address space are limited",
        (2_500, 12_000, 1_000_000), more=("--json",),
    ),
    Fuzzer(
        "native/build_and_run", "AddressSanitizer and UndefinedBehaviorSanitizer", (15_000, 25_000, 10_000_000),
        count="--executions", more=("--keep", "build/fuzz"),
    ),
    Fuzzer("frames", "the job starts, or ends with an error of ours; memory is limited", (75, 400, 20_000),
           more=("--json",)),
    Fuzzer(
        "interrupts", "no traceback, no process and no file is left; the exit code is that of the signal",
        (0, 10, 1_000), of_long=("--busy", "4"),
    ),
)  # fmt: skip


def told(output: str) -> dict[str, Any]:
    """The last line: as JSON where it is, else as it stands."""
    lines = [line for line in output.splitlines() if line.strip()] or [""]
    try:
        found = json.loads(lines[-1])
    except ValueError:
        found = {}
    return found if isinstance(found, dict) and found else {"said": lines[-1]}


def go(fuzzer: Fuzzer, length: str, seed: int, times: int) -> dict[str, Any]:
    """A row of what was tried. A fuzzer that fails has said what and how on stderr."""
    count = fuzzer.counts[LENGTHS.index(length)] * times
    command = [sys.executable, str(fuzzer.path), fuzzer.count, str(count), "--seed", str(seed), *fuzzer.more]
    command += fuzzer.of_long if length == "long" else ()
    begin = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    row: dict[str, Any] = {
        "fuzzer": fuzzer.name,
        "judge": fuzzer.judge,
        "length": length,
        "asked": count,
        "seed": seed,
        "faults": int(process.returncode != 0),
    }
    row |= {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "seconds": round(time.monotonic() - begin, 1),
        **told(output),
    }
    shown = row.get("said") or ", ".join(f"{number} {what}" for what, number in dict(row.get("counts", row)).items())
    print(f"{fuzzer.name}: {shown}; {row['seconds']:.0f} s{', FAULT' if row['faults'] else ''}", flush=True)
    return row


def versions() -> dict[str, str]:
    """Of the judges: what they are made of."""
    found = {name: version(name) for name in ("numpy", "scipy", "ml_dtypes")}
    for compiler in ("clang", "cc"):
        if shutil.which(compiler):
            said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
            found[compiler] = said.stdout.splitlines()[0]
    return {"python": platform.python_version(), **found}


def _others(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the file says of fuzzers that did not run now."""
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return [row for row in kept if row["fuzzer"] not in {new["fuzzer"] for new in rows}]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = ask.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_const", const="short", dest="length")
    which.add_argument("--long", action="store_const", const="long", dest="length")
    ask.add_argument("--only", nargs="+", choices=[f.name for f in FUZZERS], help="just these")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--times", type=int, default=1, help="so many times as many cases")
    ask.add_argument("--jobs", type=int, default=1, help="so many at a time")
    ask.add_argument("--save", type=Path, help="the counts as JSON; those of fuzzers that do not run now stay")
    given = ask.parse_args()
    length = given.length or "usual"
    chosen = [f for f in FUZZERS if (not given.only or f.name in given.only) and f.counts[LENGTHS.index(length)]]
    missing = [f.name for f in chosen if not f.path.exists()]
    if missing:
        print(f"there is no fuzz/{missing[0]}.py; mend the table of fuzz/run_all.py", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(lambda fuzzer: go(fuzzer, length, given.seed, given.times), chosen))
    faults = sum(row["faults"] for row in rows)
    if given.save:
        machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        body = {"machine": machine, "versions": versions(), "rows": [*_others(given.save, rows), *rows]}
        given.save.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(f"fuzz: {len(rows)} fuzzers, {faults or 'no'} fault{'s' if faults > 1 else ''}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
