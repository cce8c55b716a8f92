"""How fast schedules are proved right, and in how much memory: rings from 64 to 4096 ranks, exchanges on 1024.

Run: python bench/bench_verify.py. Each row is measured in a process of its own. The baseline is the plain
loop over rows of fuzz/_meaning.py, on a small ring, in the same run.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

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

from antiphon.core.collective import Collective
from antiphon.core.schedule import Schedule, cut
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify

UNIT = LinkType("nvlink", Fraction(1))
TARGETS = {"ring-allgather": 8.0, "ring-allreduce": 4.0}  # million transfers/s on 1024 ranks
MOST_MB = 1024

CASES = [
    *(("ring-allgather", P) for P in (64, 128, 256, 512, 1024, 2048, 4096)),
    *(("ring-allreduce", P) for P in (64, 128, 256, 512, 1024, 2048)),
    ("doubling-allreduce", 1024),
    ("direct-allreduce", 1024),
]


def ring_topology(P: int) -> Topology:
    return build("ring", P, [(r, (r + 1) % P, UNIT) for r in range(P)])


def full_topology(P: int) -> Topology:
    src, dst = (x.ravel() for x in np.divmod(np.arange(P * P), P))
    keep = src != dst
    return Topology("full", P, 0, src[keep], dst[keep], np.zeros(P * (P - 1), np.int32), (UNIT,))


def make(kind: str, P: int) -> tuple[Schedule, Topology]:
    shape, what = kind.split("-")
    collective = Collective(what, P)
    if shape == "ring":
        steps = P - 1 if what == "allgather" else 2 * (P - 1)
        step, chunk = (x.ravel() for x in np.divmod(np.arange(steps * P, dtype=np.int32), np.int32(P)))
        src = (chunk + step + (what == "allreduce")) % P  # partial sums of an allreduce begin one after the owner
        op = (what == "allreduce") & (step < P - 1)
        return Schedule(
            collective, cut(collective, P if what == "allreduce" else 1), step, chunk, src, (src + 1) % P,
            op.astype(np.uint8),
        ), ring_topology(P)  # fmt: skip
    if shape == "doubling":
        step, src = (x.ravel() for x in np.divmod(np.arange((P.bit_length() - 1) * P), P))
        dst = src ^ (1 << step)
        links = [(int(a), int(b), UNIT) for a, b in zip(src, dst, strict=True)]
        topology = build("hypercube", P, links)
    else:
        topology = full_topology(P)
        src, dst, step = topology.link_src, topology.link_dst, np.zeros(topology.links, np.int32)
    ones = np.ones(len(step), np.uint8)
    return Schedule(collective, cut(collective, 1), step, np.zeros_like(step), src, dst, ones), topology


def child(kind: str, P: int) -> None:
    schedule, topology = make(kind, P)
    before = peak_mb()
    report = verify(schedule, topology)
    assert report.ok, report
    alone = peak_mb()
    times = medians(lambda: verify(schedule, topology))
    print(json.dumps({"rows": schedule.transfers, **times, "before_mb": before, "peak_mb": alone}))


def plain_loop(kind: str, P: int) -> float:
    """Million transfers/s of the plain loop over rows."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fuzz"))
    from _meaning import Judge

    schedule, topology = make(kind, P)
    judge = Judge(topology)
    return schedule.transfers / median_seconds(lambda: judge.judge(schedule), 3) / 1e6


def main() -> None:
    print_machine()
    copies = copy_gb_per_second()
    print(f"NumPy copies {copies:.1f} GB/s (read + write)")
    base = {kind: plain_loop(kind, 64) for kind in TARGETS}
    results, rows, missed = [], [], []
    for kind, P in CASES:
        one = in_child(__file__, kind, P)
        speed = one["rows"] / one["seconds"] / 1e6
        ratio = speed / base[kind] if kind in base else None
        cpu = one["rows"] / one["cpu_seconds"] / 1e6
        results.append({
            "schedule": kind, "ranks": P, **one, "million_per_second": speed, "million_per_cpu_second": cpu,
            "over_plain_loop": ratio,
        })  # fmt: skip
        rows.append(
            [f"{kind} {P}", one["rows"], one["seconds"], speed, cpu, 1e9 * one["seconds"] / one["rows"],
             round(one["peak_mb"]), round(one["before_mb"]), "" if ratio is None else f"{ratio:.0f}x"]
        )  # fmt: skip
        if P == 1024 and kind in TARGETS and (speed < TARGETS[kind] or one["peak_mb"] > MOST_MB):
            missed.append(f"{kind} 1024: {speed:.1f} M/s (target {TARGETS[kind]}), {one['peak_mb']:.0f} MB")
    headers = [
        "schedule",
        "transfers",
        "seconds",
        "M/s",
        "M/cpu s",
        "ns each",
        "peak MB",
        "of it input",
        "over plain loop",
    ]
    print_table(headers, rows)
    print("plain loop on 64 ranks: " + ", ".join(f"{kind} {speed:.2f} M/s" for kind, speed in base.items()))
    for line in missed:
        print(f"MISSED {line}")
    save("verify", {"copy_gb_per_second": copies, "plain_loop_million_per_second": base, "rows": results})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(sys.argv[1], int(sys.argv[2]))
    else:
        main()
