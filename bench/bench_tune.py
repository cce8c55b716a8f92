"""What `tune` costs, and how that grows: CPU seconds of it and of its workers, and the most memory of any of them.

Run: python bench/bench_tune.py. Each row is measured in a process of its own. `growth` is the exponent of CPU time in
ranks, against the row above it. Growth is told of the planners that construct: those that search (SEARCHING) spend up
to their effort whatever the ranks.

With --commands [NUMBER ...] [--old SRC] it is the command line (COMMANDS, from 0), whole processes: seconds on the
wall and CPU seconds until the end, and CPU seconds until the first line that names a result. --old: the folder `src`
of another version, measured beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from _common import in_child, peak_mb, print_machine, print_table, save

from antiphon.registry import table
from antiphon.select import tune
from antiphon.select.ledger import BEST_SO_FAR
from antiphon.topologies import topology

SEARCHING = ("sccl",)
CASES = [
    ("allreduce", "dgx1v", "all"),
    *(("all", f"cluster:box=dgx-a100,boxes={boxes}", "constructing") for boxes in (1, 2, 4, 8)),
    ("all", "cluster:box=dgx-a100,boxes=8", "all"),
    *(("allreduce", f"cluster:box=dgx-a100,boxes={boxes}", "constructing") for boxes in (8, 16, 32)),
]  # fmt: skip
GOALS = {"dgx1v": 20.0, "cluster:box=dgx-a100,boxes=8": 180.0}  # seconds on the wall, with 2 cores to itself
# command, seconds on the wall with 2 cores to itself, CPU seconds until the first result
COMMANDS = (
    ("tune allreduce dgx1v", 4.0, 1.0),
    ("tune all hgx-h100", 10.0, 1.0),
    ("tune allreduce cluster:box=hgx-h100,boxes=4", 15.0, 1.0),
    ("tune allreduce cluster:box=hgx-h100,boxes=16", 40.0, 1.0),
    ("tune allreduce cluster:box=hgx-h100,boxes=128", 120.0, 3.0),
)


def time_command(words: str, source: str = "") -> list[float | None]:
    """Return CPU seconds until the first result is printed, CPU seconds in all, and seconds on the wall."""
    environment = {**os.environ, **({"PYTHONPATH": source} if source else {})}
    begin, first = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon", *words.split()],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if first is None and BEST_SO_FAR in line:
            ticks = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            first = sum(map(int, ticks[11:15])) / os.sysconf("SC_CLK_TCK")  # user and system, of it and its children
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{words}: failed")
    return [first, used.ru_utime + used.ru_stime, time.perf_counter() - begin]


def time_commands(numbers: list[int], old: str) -> None:
    rows: list[list[object]] = []
    for words, goal, first_goal in [COMMANDS[number] for number in numbers or range(len(COMMANDS))]:
        before = time_command(words, old) if old else [None] * 3
        after = time_command(words)
        pairs = [cell for pair in zip(before, after, strict=True) for cell in pair]
        rows.append([words, *("-" if cell is None else cell for cell in pairs), goal, first_goal])
    print_table(
        ["command", "first CPU s old", "new", "CPU s old", "new", "wall s old", "new", "goal wall s", "goal first"],
        rows,
    )


def child(wanted: str, spec: str, who: str) -> None:
    begin = time.perf_counter()
    machine = topology(spec)
    planners = [name for name in table("planner") if who == "all" or name not in SEARCHING]
    found = tune(wanted, machine, planners=planners)
    wall = time.perf_counter() - begin
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    most = max(peak_mb(), spent[1].ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))
    told = {status: sum(c.status == status for c in found.candidates) for status in ("ok", "timed out", "failed")}
    cpu = sum(used.ru_utime + used.ru_stime for used in spent)
    print(json.dumps({"ranks": machine.ranks, "cpu_seconds": cpu, "seconds": wall, "peak_mb": most, **told}))


def main() -> None:
    print_machine()
    results, rows, last = [], [], {}
    for wanted, spec, who in CASES:
        one = in_child(__file__, wanted, spec, who)
        growth = ""
        if (wanted, who) in last:
            ranks, seconds = last[wanted, who]
            growth = f"{math.log(one['cpu_seconds'] / seconds) / math.log(one['ranks'] / ranks):.2f}"
        last[wanted, who] = (one["ranks"], one["cpu_seconds"])
        told = {"wanted": wanted, "topology": spec, "planners": who, **one}
        results.append({**told, "growth": float(growth) if growth else None})
        rows.append(
            [f"{wanted} {spec}, {who} planners", one["ranks"], one["cpu_seconds"], growth, one["seconds"],
             GOALS.get(spec, "") if who == "all" else "",
             round(one["peak_mb"]), one["ok"], one["timed out"]]
        )  # fmt: skip
    print_table(["tune", "ranks", "CPU s", "growth", "wall s", "goal s", "peak MB", "schedules", "timed out"], rows)
    save("tune", {"rows": results})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--commands"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--commands", type=int, nargs="*")
        parser.add_argument("--old", default="")
        given = parser.parse_args()
        print_machine()
        time_commands(given.commands, given.old)
    elif len(sys.argv) == 4:
        child(*sys.argv[1:])
    else:
        main()
