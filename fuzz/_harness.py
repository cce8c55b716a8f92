"""What every fuzzer here shares: cases by seed, counts, one line at the end, and a failing case kept with the command
that makes it again.

A fuzzer gives a function `one(seed, counts)` that makes everything from one seed, counts what it judged, and raises
`Found` where two judges differ. Seeds S, S+1, ... are taken until `--count` cases are judged or `--seconds` of CPU
time are spent; so the seed of a fault alone makes it again.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from antiphon.errors import UnlikelyInput

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # for its generators of machines, collectives and schedules
FAULTS = ROOT / "build" / "fuzz"
CASES = "cases"  # what --count counts


class Found(Exception):
    """Two judges differ. `files`: the case, name -> content."""

    def __init__(self, message: str, files: dict[str, bytes | str] | None = None) -> None:
        super().__init__(message)
        self.files = files or {}


One = Callable[[int, Counter[str]], None]


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def run(name: str, one: One, count: int, seed: int, seconds: float | None = None) -> tuple[Counter[str], int, float]:
    """Counts, the seed after the last one, and CPU seconds. The first fault is raised, with its seed in a note."""
    warnings.simplefilter("ignore", UnlikelyInput)  # most of what is made here is
    counts: Counter[str] = Counter()
    begin, at = cpu_seconds(), seed
    while counts[CASES] < count and (seconds is None or cpu_seconds() - begin < seconds):
        before = counts[CASES]
        try:
            one(at, counts)
        except Exception as error:
            error.add_note(f"again: python fuzz/{name}.py --count 1 --seed {at}")
            raise
        at += 1
        if counts[CASES] == before:
            counts["seeds without a case"] += 1
    return counts, at, cpu_seconds() - begin


def keep(name: str, error: Exception, folder: Path) -> Path:
    """The case of a fault as files in a folder of its own."""
    seed = error.__notes__[-1].rsplit(" ", 1)[-1]
    place = folder / f"{name}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    files = error.files if isinstance(error, Found) else {}
    for at, content in files.items():
        (place / at).write_bytes(content.encode() if isinstance(content, str) else content)
    (place / "fault.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return place


def main(name: str, one: One, count: int, about: str | None) -> None:
    """The command line of one fuzzer."""
    parser = argparse.ArgumentParser(
        prog=f"fuzz/{name}.py", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=count, help=f"cases to judge (default {count})")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--seconds", type=float, help="stop after so much CPU time, however many were judged")
    parser.add_argument("--json", action="store_true", help="the line of counts as JSON")
    parser.add_argument("--faults", type=Path, default=FAULTS, help="where a failing case is kept (default build/fuzz)")
    asked = parser.parse_args()
    try:
        counts, after, spent = run(name, one, asked.count, asked.seed, asked.seconds)
    except Exception as error:
        place = keep(name, error, asked.faults)
        what = str(error) if isinstance(error, Found) else f"{type(error).__name__}: {error}"
        print(f"{name}: FAULT {what}\n  kept in {place}\n  {error.__notes__[-1]}", file=sys.stderr)
        sys.exit(1)
    if asked.json:
        told = {
            "fuzzer": name,
            "seeds": [asked.seed, after - 1],
            "cpu_seconds": round(spent, 1),
            "counts": dict(counts),
        }
        print(json.dumps(told))
    else:
        words = ", ".join(f"{number} {what}" for what, number in counts.items())
        print(f"{name}: {words}; seeds {asked.seed} to {after - 1}, {spent:.1f} CPU seconds, no fault")
