"""What choosing parameters by simulation costs: the whole sweep of the parameterized collectives on 64 devices.

Run: python bench/bench_parameters.py. 16 nodes of four GPUs, allgather and allreduce, k-ring, recursive multiplying and
permuted recursive multiplying, 21 sizes from 16 B to 16 MiB, by `antiphon.tune`: all k from 2 to 64 by whole messages,
then the factors of 64 by packets. Each collective is measured in a process of its own; CPU seconds are those of it and
of its workers. A warm-up before it compiles what Numba has to compile once (its cache stays on disk).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from _common import in_child, peak_mb, print_machine, print_table, save

import antiphon

MACHINE, PROFILE = "delta:nodes=16", "loggp-delta"
PLANNERS = ("kring", "recmult", "permrecmult")
KINDS = ("allgather", "allreduce")
NBYTES, SIZES = "16B:16MiB", 21  # the powers of two between
SWEEPS = {"message": "2:64", "packet": "factors"}
GOAL = 60.0  # seconds on the wall, both collectives together, with 2 cores
BUDGET = 60.0  # for one candidate: none is to be stopped


def model_of(fidelity: str) -> str:
    return f"loggp:fidelity={fidelity}"


def child(kind: str, fidelity: str) -> None:
    first = antiphon.Search(sweep={"k": [4]}, workers="none", budget=BUDGET)
    how: dict[str, Any] = {"model": model_of(fidelity), "planners": PLANNERS, "profile": PROFILE, "nccl": False}
    antiphon.tune(kind, "delta:nodes=2", nbytes="16B:1MiB", search=first, **how)
    heard: list[int] = []

    def progress(done: int, total: int, last: str) -> None:
        heard.append(done)

    before, begin = cpu_seconds(), time.perf_counter()
    search = antiphon.Search(sweep={"k": SWEEPS[fidelity]}, budget=BUDGET)
    found = antiphon.tune(kind, MACHINE, nbytes=NBYTES, progress=progress, search=search, **how)
    wall, cpu = time.perf_counter() - begin, cpu_seconds() - before
    assert len(found.sizes) == SIZES
    priced = [one for one in found.candidates if one.status == "ok"]
    calls = len(found.candidates) + sum(len(one.also) for one in found.candidates)
    out: dict[str, Any] = {
        "seconds": wall, "cpu_seconds": cpu, "peak_mb": peak_mb(), "planner_calls": calls, "schedules": len(priced),
        "model_calls": len(priced) * SIZES, "progress_told": len(heard),
        "not_ok": [f"{one.planner} {dict(one.options)}: {one.reason}" for one in found.candidates if one not in priced],
        "best": [
            {"from": r.start, "to": r.stop, "planner": r.candidate.planner, "options": dict(r.candidate.options)}
            for r in found.ranges
        ],
    }  # fmt: skip
    print(json.dumps(out))


def cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in spent)


def main() -> None:
    print_machine()
    results, rows = [], []
    for fidelity, values in SWEEPS.items():
        whole: list[dict[str, Any]] = []
        for kind in KINDS:
            one = in_child(__file__, kind, fidelity)
            whole.append(one)
            results.append({"collective": kind, "fidelity": fidelity, "k": values, **one})
            rows.append([f"{kind}, k={values}, by {fidelity}", *figures(one), ""])
        both = {key: sum(one[key] for one in whole) for key in COUNTED} | {
            "peak_mb": max(one["peak_mb"] for one in whole)
        }
        results.append({"collective": "both", "fidelity": fidelity, "k": values, "goal_seconds": GOAL, **both})
        rows.append([f"both, k={values}, by {fidelity}", *figures(both), GOAL])
    print_table(["tune", "wall s", "CPU s", "planner calls", "schedules", "model calls", "peak MB", "goal s"], rows)
    save("parameters", {"rows": results})


COUNTED = ("seconds", "cpu_seconds", "planner_calls", "schedules", "model_calls")


def figures(one: dict[str, Any]) -> list[object]:
    return [*(one[key] for key in COUNTED), round(one["peak_mb"])]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(*sys.argv[1:])
    else:
        main()
