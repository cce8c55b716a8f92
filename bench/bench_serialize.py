"""How fast a plan of a million transfers is saved and loaded, plain and compressed.

Run: python bench/bench_serialize.py. A ring allgather on 1001 ranks, and a plan of the same size with random columns
(which compress badly). The baseline is the standard library's json, with lists for columns, in the same run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import in_child, median_seconds, medians, peak_mb, print_machine, print_table, save

from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule, cut
from antiphon.core.serialize import dumps, load_plan, save_plan
from antiphon.core.topology import LinkType, build

TARGET = 1.2  # seconds for a million transfers: "about a second"
RANKS = 1001
CASES = [("ring", ".json"), ("ring", ".json.gz"), ("random", ".json"), ("random", ".json.gz")]


def make(kind: str) -> Plan:
    """A million transfers: a ring allgather, or random numbers in all columns."""
    machine = build("ring", RANKS, [(i, (i + 1) % RANKS, LinkType("nvlink", 25 * 10**9, 1e-6)) for i in range(RANKS)])
    wanted = Collective("allgather", RANKS)
    rows = RANKS * (RANKS - 1)
    if kind == "ring":
        step, src = np.repeat(np.arange(RANKS - 1), RANKS), np.tile(np.arange(RANKS), RANKS - 1)
        chunk, dst, op = (src - step) % RANKS, (src + 1) % RANKS, np.zeros(rows, np.int64)
    else:
        rng = np.random.default_rng(1)
        step, chunk, src, dst = (rng.integers(0, RANKS, rows) for _ in range(4))
        op = rng.integers(0, 2, rows)
    return Plan.of(machine, Schedule(wanted, cut(wanted, 1), step, chunk, src, dst, op), {"planner": kind})


def child(kind: str, suffix: str) -> None:
    plan = make(kind)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan" + suffix)
        saving = medians(lambda: save_plan(path, plan))
        size = path.stat().st_size
        before = peak_mb()
        loading = medians(lambda: load_plan(path))
        if not load_plan(path).entries[0].schedule.same_as(plan.entries[0].schedule):
            sys.exit("what was loaded is not what was saved")
    figures = {"save": saving, "load": loading, "bytes": size, "before_mb": before, "peak_mb": peak_mb()}
    print(json.dumps({"rows": plan.entries[0].schedule.transfers, **figures}))


def main() -> None:
    print_machine()
    text = dumps(make("random"))
    plain = json.loads(text)
    base = {"save": median_seconds(lambda: json.dumps(plain), 3), "load": median_seconds(lambda: json.loads(text), 3)}
    results, rows, missed = [], [], []
    for kind, suffix in CASES:
        one = in_child(__file__, kind, suffix)
        results.append({"plan": kind, "file": suffix, **one})
        times = [one[what][clock] for what in ("save", "load") for clock in ("seconds", "cpu_seconds")]
        rows.append([f"{kind} {suffix}", one["rows"], round(one["bytes"] / 1e6, 1), *times, round(one["peak_mb"])])
        for what in ("save", "load"):
            million = one[what]["cpu_seconds"] / one["rows"] * 1e6
            if million > TARGET:
                missed.append(
                    f"{kind} {suffix}: {what} takes {million:.2f} s for a million transfers (target {TARGET})"
                )
    headers = ["plan", "transfers", "MB", "save s", "of it cpu", "load s", "of it cpu", "peak MB"]
    print_table(headers, rows)
    print(f"json of the standard library, unchecked, in memory: dumps {base['save']:.2f} s, loads {base['load']:.2f} s")
    for line in missed:
        print(f"MISSED {line}")
    save("serialize", {"standard_json_seconds": base, "rows": results})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(sys.argv[1], sys.argv[2])
    else:
        main()
