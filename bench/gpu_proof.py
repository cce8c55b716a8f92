"""All that the kernel of GPUs promises, on the GPUs of this machine: right, for ever, and how far from a plain copy.

Run: make gpu-proof, or python bench/gpu_proof.py [--on cuda|hip|threads] [--machines SPEC ...]. All ranks are in this
process and go round the GPUs; with one GPU all are on it. Every planner and collective is run at several sizes, types,
operators, lanes and rounds, with signals, as packets and in the order of arrival, by one kernel, by steps, by copies
and captured, held against the interpreter; then a thousand calls one after another; then times, each in the way that
is found best there, beside the device's own copy and the library's collective (NCCL, RCCL; where each rank has a GPU).
The result is dated: bench/results/gpu-proof-cuda-DATE.json. Exit code 1 where anything is wrong, 2 where there is no
GPU.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import _common
import numpy as np

import antiphon
from antiphon.core.collective import COMBINING, ROOTED
from antiphon.core.datatypes import data_type
from antiphon.core.schedule import Schedule
from antiphon.errors import AntiphonError, TimedOut, Unsupported
from antiphon.lower.device.table import tables
from antiphon.planners.table import TABLE
from antiphon.runtimes.device.call_choices import TABLES, Choice, list_choices
from antiphon.runtimes.device.functions import Device, device
from antiphon.runtimes.device.group import WAYS, DevicePlan, Group
from antiphon.runtimes.device.nccl_library import Library
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.measure.case import How, Runtime
from antiphon.runtimes.measure.device import Cuda, Hip, Threads
from antiphon.runtimes.measure.random_data import RandomData

MACHINES = ["full:ranks=2", "full:ranks=5", "ring:ranks=4", "full:ranks=8", "dgx1v", "hgx-h100", "full:ranks=16"]
TYPES = ["float32", "int8", "bfloat16", "float64", "uint16", "float16", "int64"]
OPERATORS = ["sum", "max", "avg", "prod", "min"]
UNITS = (0, 1, 7, 1000, 65537)
BLOCKS = {"threads": 8}  # of all ranks together there must be room on one device
TIMED = [2**10, 2**14, 2**18, 2**22, 2**26]
RUNTIMES: dict[str, type[Runtime]] = {"cuda": Cuda, "hip": Hip, "threads": Threads}
LIBRARIES = {"cuda": "libnccl.so.2", "hip": "librccl.so.1", "threads": ""}


def blocks_of(on: str, ranks: int) -> int:
    return BLOCKS.get(on, max(1, 96 // ranks))


def threads_of(on: str) -> int:
    return 1 if on == "threads" else 256


def plans_of(machine: antiphon.Topology) -> Iterator[tuple[str, str, Schedule]]:
    for name, entry in TABLE.items():
        for kind in entry.can.collectives:
            if kind == "custom" or name == "sccl":
                continue
            try:
                plan = antiphon.plan(kind, machine, planner=name, root=0 if kind in ROOTED else None)
            except AntiphonError:
                continue
            yield name, kind, plan.at(2**16).schedule


def one(group: Group, plan: DevicePlan, schedule: Schedule, unit: int, in_place: bool, dice: Any) -> str:
    """What became of one call, with a type, an operator, lanes and rounds by chance."""
    dtype = data_type(str(dice.choice(TYPES)))
    op = str(dice.choice(OPERATORS)) if schedule.collective.kind in COMBINING else "sum"
    made = RandomData(schedule.collective, unit, dtype, op, in_place, 3, keep=True)
    ranks = [made.rank(rank) for rank in range(schedule.collective.ranks)]
    given = [np.zeros(rank.sizes[0], dtype) for rank in ranks]
    for rank, values in zip(ranks, given, strict=True):
        rank.fill(values)
    outputs = [values.copy() for values in given] if in_place else [np.zeros(rank.sizes[1], dtype) for rank in ranks]
    most = group.blocks // max(plan.streams, 1) if plan.sliced else 1
    lanes, rounds = int(dice.integers(1, most + 1)), int(dice.integers(1, 5)) if plan.sliced else 1
    way = "kernel" if plan.packets else str(dice.choice(WAYS))
    if not plan.fits(unit, dtype):
        return "no room for packets"
    try:
        group.run(
            plan, unit, None if in_place else given, outputs, op, lanes=lanes, rounds=rounds if way == "kernel" else 1,
            timeout=20, way=way,
        )  # fmt: skip
    except TimedOut:
        return "hangs"
    except AntiphonError as error:
        return f"refused: {error}"
    return "wrong" if sum(rank.count_wrong(out) for rank, out in zip(ranks, outputs, strict=True)) else "right"


def all_right(on: str, where: Device, machines: list[str]) -> list[dict[str, Any]]:
    rows = []
    for spec in machines:
        machine, dice, counts, began = antiphon.topology(spec), np.random.default_rng(1), Counter[str](), time.time()
        bad = []
        with Group(where, machine.ranks, blocks_of(on, machine.ranks), threads_of(on)) as group:
            for name, kind, schedule in plans_of(machine):
                for in_place in (False, True):
                    for form, asked in TABLES.items():
                        try:
                            made = tables(schedule, in_place=in_place, streams=min(4, group.blocks), **asked)
                        except AntiphonError:
                            counts[f"no {form} tables"] += 1
                            continue
                        plan = group.plan(made)
                        for unit in UNITS:
                            what = one(group, plan, schedule, unit, in_place, dice)
                            counts[what.partition(":")[0]] += 1
                            if what not in ("right", "no room for packets"):
                                bad.append(f"{kind} {name} {form} in_place={in_place} unit={unit}: {what}")
        rows.append({"machine": spec, **counts, "faults": len(bad), "bad": bad[:20], "seconds": time.time() - began})
        print(rows[-1], flush=True)
    return rows


def for_ever(on: str, where: Device, calls: int = 1000) -> dict[str, Any]:
    """Calls one after another on the same group, two plans in turn."""
    machine, dice = antiphon.topology("full:ranks=8"), np.random.default_rng(2)
    some = [antiphon.plan(k, machine, planner=p).at(2**16).schedule
            for k, p in (("allreduce", "ring"), ("alltoall", "pairwise"))]  # fmt: skip
    with Group(where, 8, blocks_of(on, 8), threads_of(on)) as group:
        plans = [group.plan(tables(schedule, streams=2)) for schedule in some]
        told = Counter(
            one(group, plans[i % 2], some[i % 2], int(dice.integers(0, 300)), False, dice) for i in range(calls)
        )
    return dict(told)


def captured(on: str, where: Device, calls: int = 200) -> dict[str, Any]:
    """Calls made again and again as they stand, with signals and as packets, what they add being other each time."""
    machine, told, unit, kind = antiphon.topology("full:ranks=4"), Counter[str](), 500, np.dtype(np.int32)
    schedule = antiphon.plan("allreduce", machine, planner="ring").at(2**16).schedule
    with Group(where, 4, blocks_of(on, 4), threads_of(on)) as group:
        for form in ("plain", "packets"):
            plan = group.plan(tables(schedule, streams=2, **TABLES[form]))
            lengths = np.array([[unit, unit, plan.scratch(rank, unit)] for rank in range(4)], np.int64)
            rows = [[group.memory(rank, np.zeros(count, kind)) for count in lengths[rank]] for rank in range(4)]
            graph = group.capture(plan, unit, np.array(rows, np.uintp), lengths, kind)
            for call in range(calls // 2):
                given = [np.arange(unit, dtype=kind) * (rank + call) for rank in range(4)]
                for rank in range(4):
                    group.bring(rank, rows[rank][0], given[rank])
                graph.replay(20)
                outputs = [np.zeros(unit, kind) for _ in range(4)]
                for rank in range(4):
                    group.fetch(rank, rows[rank][1], outputs[rank])
                told["right" if all((one == sum(given)).all() for one in outputs) else "wrong"] += 1
            graph.close()
    return dict(told)


def by_switches(on: str, where: Device) -> dict[str, Any]:
    """Sums by switches, where all ranks have memory that they know; else why not."""
    machine, told = antiphon.topology("hgx-h100"), Counter[str]()
    schedule = antiphon.plan("allreduce", machine, planner="nvls").at(2**20).schedule
    try:
        with Group(where, 8, blocks_of(on, 8), threads_of(on)) as group:
            plan = group.plan(tables(schedule, streams=2))
            for unit in (1000, 4096):
                for dtype in ("int32", "float32", "float16", "bfloat16"):
                    made = RandomData(schedule.collective, unit, data_type(dtype), "sum", False, 3, keep=True)
                    ranks = [made.rank(rank) for rank in range(8)]
                    given = [np.zeros(rank.sizes[0], data_type(dtype)) for rank in ranks]
                    for rank, values in zip(ranks, given, strict=True):
                        rank.fill(values)
                    outputs = [np.zeros(rank.sizes[1], data_type(dtype)) for rank in ranks]
                    group.run(plan, unit, given, outputs, "sum", timeout=20, joined=True)
                    wrong = sum(rank.count_wrong(out) for rank, out in zip(ranks, outputs, strict=True))
                    told["wrong" if wrong else "right"] += 1
    except AntiphonError as error:
        return {"not run": str(error)}
    return dict(told)


def seconds(call: Callable[[], None], repeat: int) -> float:
    spent = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[repeat // 5 :])


def times(on: str, where: Device, ranks: int = 8) -> list[dict[str, Any]]:
    """Allreduces in the way found best, beside the device's own copy of as many bytes and the library's allreduce."""
    machine, rows = antiphon.topology(f"full:ranks={ranks}"), []
    for planner in ("ring", "direct", "halving-doubling"):
        schedule = antiphon.plan("allreduce", machine, planner=planner).at(2**26).schedule
        for nbytes in TIMED[: 4 if on == "threads" else 5]:
            with Group(where, ranks, blocks_of(on, ranks), threads_of(on)) as group:
                rows.append(
                    {
                        "planner": planner,
                        "ranks": ranks,
                        "nbytes": nbytes,
                        **timed(group, schedule, nbytes, LIBRARIES[on]),
                    }
                )
            print(rows[-1], flush=True)
    return rows


def timed(group: Group, schedule: Schedule, nbytes: int, library: str) -> dict[str, Any]:
    unit, kind, streams = nbytes // 4, np.dtype("float32"), min(4, group.blocks)
    plans = dict[str, DevicePlan]()
    for form in ("plain", "packets"):
        plan = group.plan(tables(schedule, streams=streams, **TABLES[form]))
        if plan.fits(unit, kind):
            plans[form] = plan
    scratch = [max(plan.scratch(rank, unit) for plan in plans.values()) for rank in range(group.ranks)]
    lengths = np.array([[unit, unit, count] for count in scratch], np.int64)
    where = np.array(
        [[group.memory(rank, np.zeros(count, kind)) for count in row] for rank, row in enumerate(lengths.tolist())],
        np.uintp,
    )
    found: dict[str, Any] = {
        "copy_seconds": seconds(lambda: group.copy(0, int(where[0, 1]), int(where[0, 0]), nbytes), 30),
        "library_seconds": by_library(group, schedule, unit, where, kind, library),
    }  # fmt: skip
    tried = dict[Choice, float]()
    for form, plan in plans.items():
        for how in list_choices(plan.streams, group.blocks, plan.sliced, nbytes, form):
            if how.way == "kernel":
                call = partial(group.go, lanes=how.lanes, rounds=how.rounds)
            else:
                call = partial(group.go_by_host, lanes=how.lanes, way=how.way)
            tried[how] = seconds(partial(call, plan, unit, where, lengths, kind, timeout=30), 15)
    best = min(tried, key=lambda how: tried[how])
    return {"seconds": tried[best], **best._asdict(), **found}


def by_library(
    group: Group, schedule: Schedule, unit: int, where: np.ndarray[Any, Any], kind: np.dtype[Any], name: str
) -> float | None:  # fmt: skip
    """Seconds of its own collective on the same buffers; None where it cannot be had."""
    if not name:
        return None
    try:
        library = Library(group, name)
        call = library.call(schedule.collective, unit, where, kind, "sum", False)
    except Unsupported as error:
        print(error, flush=True)
        return None
    found = seconds(call, 15)
    library.close()
    return found


def said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def ready(on: str, compiler: str) -> Device:
    """Its driver first: to compile takes half a minute."""
    RUNTIMES[on]().ready(How(compiler=compiler))
    return device(library("device" if on == "threads" else on, compiler))


def main() -> int:
    try:
        return proof()
    except AntiphonError as error:
        print(f"gpu-proof: {error}", file=sys.stderr)
        return error.exit_code


def proof() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=("cuda", "hip", "threads"), default="cuda")
    parser.add_argument("--machines", nargs="+", default=MACHINES)
    parser.add_argument("--compiler", default="")
    parser.add_argument("--save", action="store_true", help="to bench/results, with the date")
    asked = parser.parse_args()
    _common.print_machine()
    began = time.perf_counter()
    where = ready(asked.on, asked.compiler)
    found: dict[str, Any] = {
        "on": asked.on, "gpus": said("nvidia-smi", "-L") or said("rocm-smi", "-i"),
        "compiler": said("nvcc", "--version"),
        "compiled_seconds": time.perf_counter() - began,
    }  # fmt: skip
    parts: dict[str, Callable[[], Any]] = {
        "right": lambda: all_right(asked.on, where, asked.machines),
        "calls_one_after_another": lambda: for_ever(asked.on, where), "captured": lambda: captured(asked.on, where),
        "by_switches": lambda: by_switches(asked.on, where), "times": lambda: times(asked.on, where),
    }  # fmt: skip
    broken = False
    for name, part in parts.items():
        try:
            found[name] = part()
        except AntiphonError as error:
            found[name], broken = {"broken off": str(error)}, True
            print(f"{name}: {error}", file=sys.stderr)
    if asked.save:
        _common.save(f"gpu-proof-{asked.on}-{datetime.date.today().isoformat()}", found)
    if broken:
        return 1
    wrong = sum(row["faults"] for row in found["right"])
    other = set(found["calls_one_after_another"]) | set(found["captured"]) | set(found["by_switches"]) - {"not run"}
    return int(wrong > 0 or other != {"right"})


if __name__ == "__main__":
    sys.exit(main())
