"""What `tune` costs, and how that grows: CPU seconds of it and of its workers, and the most memory of any of them.

Run: python bench/bench_tune.py. Each row is measured in a process of its own. `growth` is the exponent of CPU time in
ranks, against the row above it. Growth is told of the planners that construct: those that search (SEARCHING) spend up
to their effort whatever the ranks.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time

from _common import in_child, peak_mb, print_machine, print_table, save

from antiphon.registry import table
from antiphon.select import tune
from antiphon.topologies import topology

SEARCHING = ("sccl",)
CASES = [
    ("allreduce", "dgx1v", "all"),
    *(("all", f"cluster:box=dgx-a100,boxes={boxes}", "constructing") for boxes in (1, 2, 4, 8)),
    ("all", "cluster:box=dgx-a100,boxes=8", "all"),
    *(("allreduce", f"cluster:box=dgx-a100,boxes={boxes}", "constructing") for boxes in (8, 16, 32)),
]  # fmt: skip
GOALS = {"dgx1v": 20.0, "cluster:box=dgx-a100,boxes=8": 180.0}  # seconds on the wall, with 2 cores to itself


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
    if len(sys.argv) == 4:
        child(*sys.argv[1:])
    else:
        main()
