"""How fast the versions of cells are derived: a million transfers of a ring, of shuffled rows, and all to all.

Run: python bench/bench_versions.py. Each row is measured in a process of its own. The baseline is a plain
derivation with dictionaries, in the same run.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

import numpy as np
from _common import (
    copy_gb_per_second,
    in_child,
    median_seconds,
    medians,
    peak_mb,
    print_machine,
    print_table,
    save,
)
from bench_verify import make

from antiphon.core.dependencies import versions
from antiphon.core.schedule import Schedule

TARGET = 0.3  # seconds for a million transfers
CASES = [
    ("ring-allgather", 1024), ("ring-allreduce", 724), ("ring-allreduce-shuffled", 724),
    ("direct-allreduce", 1024), ("ring-allgather", 2048),
]  # fmt: skip


def prepared(kind: str, P: int) -> Schedule:
    schedule, _ = make(kind.removesuffix("-shuffled"), P)
    return schedule.take(np.random.default_rng(1).permutation(schedule.transfers)) if "shuffled" in kind else schedule


def child(kind: str, P: int) -> None:
    schedule = prepared(kind, P)
    before = peak_mb()
    count = len(versions(schedule))
    alone = peak_mb()
    times = medians(lambda: versions(schedule))
    print(json.dumps(
        {"rows": schedule.transfers, "versions": count, **times, "before_mb": before, "peak_mb": alone}
    ))  # fmt: skip


def plainly(schedule: Schedule) -> int:
    """The same by dictionaries, step by step: per row the version it reads and the one it writes."""
    by_step = defaultdict(list)
    columns = (schedule.step, schedule.chunk, schedule.src, schedule.dst)
    for row, (step, chunk, src, dst) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        by_step[step].append((row, (chunk, src), (chunk, dst)))
    current: dict[tuple[int, int], int] = defaultdict(int)
    read, write = [0] * schedule.transfers, [0] * schedule.transfers
    for step in sorted(by_step):
        for row, src, _ in by_step[step]:
            read[row] = current[src]
        for cell in {dst for _, _, dst in by_step[step]}:
            current[cell] += 1
        for row, _, dst in by_step[step]:
            write[row] = current[dst]
    return sum(write) + sum(read)


def main() -> None:
    print_machine()
    copies = copy_gb_per_second()
    print(f"NumPy copies {copies:.1f} GB/s (read + write)")
    small = prepared("ring-allreduce", 256)
    base = small.transfers / median_seconds(lambda: plainly(small), 3) / 1e6
    results, rows, missed = [], [], []
    for kind, P in CASES:
        one = in_child(__file__, kind, P)
        million = one["seconds"] / one["rows"] * 1e6
        cpu = one["cpu_seconds"] / one["rows"] * 1e6
        results.append({"schedule": kind, "ranks": P, **one, "seconds_per_million": million})
        rows.append(
            [f"{kind} {P}", one["rows"], one["versions"], one["seconds"], million, cpu, round(one["peak_mb"]),
             round(one["before_mb"]), f"{1 / million / base:.0f}x"]
        )  # fmt: skip
        if one["rows"] < 2e6 and million > TARGET:
            missed.append(f"{kind} {P}: {million:.2f} s for a million transfers (target {TARGET})")
    headers = [
        "schedule",
        "transfers",
        "versions",
        "seconds",
        "s per million",
        "cpu s per million",
        "peak MB",
        "of it input",
        "over plain loop",
    ]
    print_table(headers, rows)
    print(f"plain derivation with dictionaries: {base:.2f} M/s")
    for line in missed:
        print(f"MISSED {line}")
    save("versions", {"copy_gb_per_second": copies, "plain_million_per_second": base, "rows": results})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(sys.argv[1], int(sys.argv[2]))
    else:
        main()
