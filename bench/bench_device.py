"""What the engine for GPUs costs its host: uploading a plan, and beginning a call. On threads of this processor.

Run: python bench/bench_device.py [--compile [--archs]]. CPU time. `upload`: the tables of all ranks, read, held
against limits, and copied to the device, and the addresses of a first size. `begin`: what the thread that calls spends
until a rank has begun, ctypes included; the call before is done; `first`: the first call of a size, of all ranks, by
one rank. `all`: what it spends for a call of all ranks of this process, from Group.go to its end, by one rank, too.
`write`: generated code, and with --compile what compilers take for it; with --archs for every kind of GPU, of the
plans of 64 ranks.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from ctypes import c_int
from pathlib import Path
from typing import Any

import numpy as np
from _common import medians, print_machine, print_table, save

import antiphon
from antiphon.core.program.kinds import OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.formats.device.write import HIP_FLAGS, source
from antiphon.lower.device.table import Table, tables
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import Group, handles_of
from antiphon.runtimes.engine.native import OPERATORS, type_number

CASES = (
    ("allreduce", "dgx1v", "trees"), ("allreduce", "full:ranks=8", "ring"), ("alltoall", "full:ranks=8", "direct"),
    ("allreduce", "full:ranks=64", "ring"), ("allreduce", "full:ranks=64", "direct"),
    ("alltoall", "full:ranks=64", "pairwise"), ("allreduce", "full:ranks=64", "halving-doubling"),
    ("allreduce", "full:ranks=64", "double-binary-tree"),
)  # fmt: skip
UNIT, CALLS = 64, 300


def uploaded(group: Group, made: list[Table]) -> dict[str, float]:
    def upload() -> None:
        plan = group.plan(made)
        for rank in range(group.ranks):
            plan.scratch(rank, UNIT)

    return medians(upload, 9)


def begun(group: Group, made: list[Table], schedule: Schedule) -> dict[str, float]:
    """CPU microseconds of this thread, each for one rank: where ranks begin alone, and where all do together."""
    plan, kind = group.plan(made), np.dtype(np.float32)
    sides = schedule.collective.input_weights, schedule.collective.output_weights
    lengths = np.zeros((group.ranks, 3), np.int64)
    lengths[:, 0], lengths[:, OUTPUT] = sides[0] * UNIT, sides[1] * UNIT
    lengths[:, SCRATCH] = [plan.scratch(rank, UNIT) for rank in range(group.ranks)]
    where = np.array(
        [[group.memory(rank, np.zeros(int(one), kind)) for one in lengths[rank]] for rank in range(group.ranks)],
        np.uintp,
    )
    call, alone, together = group.device.call, list[float](), list[float]()
    how = (UNIT, type_number(kind), OPERATORS["sum"], 1, 1, where.ctypes.data, lengths.ctypes.data)
    every = [
        (handles_of({rank: group.handles[rank]}), handles_of({rank: plan.handles[rank]})) for rank in range(group.ranks)
    ]
    ranks, failed = handles_of(group.handles), (c_int * group.ranks)()
    for _ in range(CALLS):
        for one, held in every:
            began = time.thread_time()
            code = call.ad_start(1, one, held, group.number, *how)
            alone.append(time.thread_time() - began)
            if code:
                raise SystemExit(group.device.why())
        call.ad_wait(group.ranks, ranks, 60.0, failed)
        group.number += 1
    for _ in range(CALLS):
        began = time.thread_time()
        group.go(plan, UNIT, where, lengths, kind)
        together.append(time.thread_time() - began)
    first = sum(alone[: group.ranks]) / group.ranks
    spent = {"begin": statistics.median(alone), "all": statistics.median(together) / group.ranks, "first": first}
    return {f"{name}_us": 1e6 * seconds for name, seconds in spent.items()}


def compile_seconds(text: str, command: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.cu"
        file.write_text(text)
        before = os.times()
        subprocess.run([*command, "-c", "-o", f"{folder}/plan.o", str(file)], check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    print_machine()
    compilers = {
        "c++": ["c++", "-x", "c++", "-std=c++17", "-O2", "-pthread"],
        "nvcc": ["nvcc", "-std=c++17", "-O3", "-arch=sm_90"],
        "hipcc": ["hipcc", "-std=c++17", "-O3", "-x", "hip", "--offload-arch=gfx90a", *HIP_FLAGS.split()],
    }  # fmt: skip
    cases = CASES
    if "--archs" in sys.argv:
        nvcc, hipcc = compilers["nvcc"][:-1], compilers["hipcc"]
        compilers = {f"sm_{arch}": [*nvcc, f"-arch=sm_{arch}"] for arch in (75, 80, 90, 100)}
        for arch in ("gfx906", "gfx90a"):
            compilers[arch] = [f"--offload-arch={arch}" if "offload" in one else one for one in hipcc]
        cases = tuple(case for case in CASES if case[1] == "full:ranks=64")
    rows: list[dict[str, Any]] = []
    for kind, spec, planner in cases:
        schedule = antiphon.plan(kind, antiphon.topology(spec), planner=planner).at(2**20).schedule
        began = time.process_time()
        made = tables(schedule)
        row: dict[str, Any] = {"case": f"{kind} {planner} {spec}", "tables_s": time.process_time() - began}
        with Group(threads(), schedule.collective.ranks, max(one.streams for one in made)) as group:
            row["upload_ms"] = 1e3 * uploaded(group, made)["cpu_seconds"]
            row |= begun(group, made, schedule)
        began = time.process_time()
        text = source(schedule, spec)
        row |= {"write_s": time.process_time() - began, "kib": len(text) / 1024}
        for name, command in compilers.items():
            if "--compile" in sys.argv and shutil.which(command[0]):
                row[f"{name}_s"] = compile_seconds(text, command)
        rows.append(row)
        print(row, flush=True)
    titles = list(rows[0])
    print_table(titles, [[row.get(title, "") for title in titles] for row in rows])
    save("device-archs" if "--archs" in sys.argv else "device", {"rows": rows})


if __name__ == "__main__":
    main()
