"""What synthesis costs: every row of SCCL's Tables 4 and 5, whole frontiers, larger machines; CPU seconds.

Run: python bench/bench_sccl.py [rows] [frontiers] [scale] [z3] (all but z3 unless named; z3 takes many minutes).
Nothing is taken from a cache. Each group runs in processes of its own; "together" includes starting Python and all
imports. `z3` sets the default engines against SCCL's own encoding on the rows that it finishes in 120 CPU seconds.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from _common import RESULTS, in_child, print_machine, print_table, save

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.reshape import join
from antiphon.core.topology import LinkType, Topology
from antiphon.topologies import topology

REPEATS = 5
ROW_GOAL, ROWS_GOAL, FRONTIERS_GOAL, TIMES_GOAL = 1.0, 12.0, 8.0, 20.0
Z3_LIMIT = 120
SCALE_EFFORT = 60.0
SCALE = [
    *((kind, spec) for spec in ("torus:dims=4x4", "torus:dims=4x8", "hypercube:ranks=16", "hypercube:ranks=32",
                                "2 x dgx1v", "4 x dgx1v", "torus:dims=8x8")
      for kind in ("allgather", "alltoall")),
    ("broadcast", "star:ranks=16"),
]  # fmt: skip
# seconds of the released tool (with Z3 5.4, 2 cores, encoding included)
RELEASED = {
    "allgather (6, 7, 7)": 12.0, "allgather (6, 3, 7)": 5.8, "broadcast (18, 5, 5)": 5.5, "gather (6, 7, 7)": 3.7,
    "gather (6, 3, 7)": 4.3, "alltoall (8, 3, 3)": 3.6, "alltoall (8, 2, 3)": 3.2,
}  # fmt: skip


def cpu() -> float:
    """Of this process and of those that it started and saw end."""
    return sum(os.times()[:4])


def wanted() -> Iterator[tuple[str, Topology, Collective, tuple[int, int, int]]]:
    """Every row of both tables: also for the collective printed with it, and from a root of each orbit."""
    from antiphon.reproduce.sccl_plans import make_family, roots_of
    from antiphon.reproduce.sccl_tables import DGX1, DUALS, Z52, rows_of_kind

    for spec, table in (("dgx1v_sccl", DGX1), ("z52", Z52)):
        machine = topology(spec)
        for kind in [k for printed in table for k in (printed, DUALS.get(printed)) if k is not None]:
            for root in roots_of(machine, kind):
                group = make_family(machine, kind, root)
                for row in rows_of_kind(table, kind, machine.ranks):
                    yield f"{spec} {group.name} {row.point}", machine, group.collective, row.point


def synthesize(machine: Topology, collective: Collective, point: tuple[int, int, int]) -> None:
    from antiphon.core.verify import verify
    from antiphon.planners.synth.sccl import sccl

    chunks, steps, rounds = point
    for schedule in sccl(Request(machine, collective), chunks=chunks, steps=steps, rounds=rounds, cache=False):
        verify(schedule, machine).or_raise()


def child_rows() -> dict[str, Any]:
    """All rows, once."""
    count = 0
    for _, machine, collective, point in wanted():
        synthesize(machine, collective, point)
        count += 1
    return {"rows": count, "cpu_seconds": cpu()}


def child_each() -> dict[str, Any]:
    """Every row, the median of several runs in a process that has imported all."""
    found = {}
    for name, machine, collective, point in wanted():
        if not found:
            synthesize(machine, collective, point)
        runs = []
        for _ in range(REPEATS):
            begin = cpu()
            synthesize(machine, collective, point)
            runs.append(cpu() - begin)
        found[name] = statistics.median(runs)
    return found


def child_frontiers() -> dict[str, Any]:
    from antiphon.reproduce.sccl import frontiers

    rows = list(frontiers())
    if not all(row["ok"] for row in rows):
        sys.exit("a frontier is not reproduced")
    return {"cpu_seconds": cpu(), "each": {row["name"]: row["seconds"] for row in rows}}


def joined_dgx1(count: int) -> Topology:
    """DGX-1s, one unit link each way from GPU i of a box to GPU i of the next; four in a ring."""
    box = topology("dgx1v")
    kind = LinkType("nvlink", box.unit, 1e-6)
    pairs = [(0, 1)] if count == 2 else [(b, (b + 1) % count) for b in range(count)]
    cables = [((a, gpu), (b, gpu), kind) for a, b in pairs for gpu in range(8)]
    return join([box] * count, name=f"{count} x dgx1v", cables=cables, unit=box.unit)


def child_scale(kind: str, spec: str) -> dict[str, Any]:
    """The frontier for that effort: what was found, when, and how far the best is from the bound."""
    from antiphon.core.bounds import bound
    from antiphon.core.verify import verify
    from antiphon.errors import AntiphonError
    from antiphon.planners.synth.sccl import sccl

    machine = joined_dgx1(int(spec[0])) if spec.endswith("x dgx1v") else topology(spec)
    collective = Collective(kind, machine.ranks)
    least = bound(machine, collective)
    points, ended = [], "done"
    begin, started = cpu(), time.monotonic()
    try:
        for schedule in sccl(Request(machine, collective, effort=SCALE_EFFORT), cache=False):
            verify(schedule, machine).or_raise()
            point = schedule.provenance["certificate"]
            points.append({
                **{key: point[key] for key in ("chunks", "steps", "rounds", "proof")},
                "cpu_seconds": cpu() - begin, "seconds": time.monotonic() - started,
            })  # fmt: skip
    except AntiphonError as error:
        ended = str(error)
    best = min((Fraction(p["rounds"], p["chunks"]) for p in points), default=None)
    return {
        "points": points, "best": None if best is None else str(best), "bound": str(least.inverse),
        "latency_steps": least.latency_steps, "gap": None if best is None else float(best / least.inverse),
        "cpu_seconds": cpu() - begin, "seconds": time.monotonic() - started, "ended": ended,
    }  # fmt: skip


def spreading() -> list[tuple[str, Topology, Collective, tuple[int, int, int]]]:
    """The rows for collectives that only spread, from the paper's roots: what an engine is asked for all others."""
    found = []
    for name, machine, collective, point in wanted():
        other_root = machine.name == "dgx1v_sccl" and collective.roots == (0,)
        if not collective.combining and collective.kind != "scatter" and not other_root:
            found.append((name, machine, collective, point))
    return found


def child_engine(engine: str, number: int) -> dict[str, Any]:
    """One row by one engine. The process is ended from outside, or by the limit on its CPU time."""
    from antiphon.core.ksync.instance import instance_of
    from antiphon.planners.synth.auto import Solved, decide_candidate
    from antiphon.planners.synth.group import trivial_group
    from antiphon.planners.synth.search import SearchState
    from antiphon.planners.synth.task import Effort, Task

    _, machine, collective, (chunks, steps, rounds) = spreading()[number]
    instance = instance_of(machine, collective)
    parts = instance.parts_of(chunks)
    import pysat.solvers  # noqa: F401 - all imports before the clock starts
    import scipy.optimize  # noqa: F401

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from reference_engines import z3

    runs = []
    for _ in range(REPEATS if engine == "auto" else 1):
        begin = cpu()
        if engine == "auto":
            found = isinstance(
                decide_candidate(SearchState(instance_of(machine, collective)), parts, steps, rounds), Solved
            )
        else:
            found = z3(Task(instance, parts, steps, rounds), trivial_group(instance), Effort()).moves is not None
        if not found:
            sys.exit(f"{engine} did not find row {number}")
        runs.append(cpu() - begin)
    return {"cpu_seconds": statistics.median(runs)}


def limited(engine: str, number: int) -> dict[str, Any] | None:
    """The same in a process that may use Z3_LIMIT CPU seconds; None where these did not do."""
    command = [sys.executable, __file__, "child", "engine", engine, str(number)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (Z3_LIMIT + 5, Z3_LIMIT + 5))

    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None
    if done.returncode:
        sys.exit(done.stderr)
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def bench_rows() -> dict[str, Any]:
    each = in_child(__file__, "child", "each")
    whole = [in_child(__file__, "child", "rows") for _ in range(REPEATS)]
    together = statistics.median(run["cpu_seconds"] for run in whole)
    slowest = sorted(each, key=each.__getitem__, reverse=True)[:6]
    print_table(["the slowest rows", "CPU s", "goal"], [[name, each[name], ROW_GOAL] for name in slowest])
    print_table(
        ["all rows", "rows", "CPU s", "goal"],
        [
            ["one by one", len(each), sum(each.values()), ""],
            ["together, imports included", len(each), together, ROWS_GOAL],
        ],
    )
    return {"rows": {"each": each, "together": together}}


def bench_frontiers() -> dict[str, Any]:
    runs = [in_child(__file__, "child", "frontiers") for _ in range(REPEATS)]
    together = statistics.median(run["cpu_seconds"] for run in runs)
    each = {name: statistics.median(run["each"][name] for run in runs) for name in runs[0]["each"]}
    print_table(["frontiers, k = 4", "CPU s", "goal"], [[name, seconds, ""] for name, seconds in each.items()])
    print_table(["", "CPU s", "goal"], [["together, imports and checks included", together, FRONTIERS_GOAL]])
    return {"frontiers": {"each": each, "together": together}}


def bench_scale() -> dict[str, Any]:
    found, rows = {}, []
    for kind, spec in SCALE:
        one = in_child(__file__, "child", "scale", kind, spec)
        found[f"{spec} {kind}"] = one
        points = " ".join(f"({p['chunks']}, {p['steps']}, {p['rounds']})" for p in one["points"])
        gap = "-" if one["gap"] is None else f"{one['gap']:.4g}"
        rows.append([f"{spec} {kind}", one["cpu_seconds"], one["seconds"], one["best"], one["bound"], gap, points])
        print(*rows[-1], flush=True)
    print_table([f"effort {SCALE_EFFORT:g}", "CPU s", "wall s", "best R/C", "bound", "gap", "points"], rows)
    return {"scale": found}


def bench_z3() -> dict[str, Any]:
    found, rows = {}, []
    for number, (name, _, _, _) in enumerate(spreading()):
        theirs = limited("z3", number)
        mine = limited("auto", number)
        if mine is None:
            sys.exit(f"auto takes more than {Z3_LIMIT} s for {name}")
        ours = mine["cpu_seconds"]
        z3 = None if theirs is None else theirs["cpu_seconds"]
        short = name.removeprefix("dgx1v_sccl ").replace(" (root 1)", "")
        found[name] = {"auto": ours, "z3": z3, "released": RELEASED.get(short)}
        rows.append([name, ours, "-" if z3 is None else z3, RELEASED.get(short, "")])
        print(*rows[-1], flush=True)
    both = [one for one in found.values() if one["z3"] is not None]
    ours, theirs = sum(one["auto"] for one in both), sum(one["z3"] for one in both)
    print_table(["row", "auto CPU s", f"z3 (up to {Z3_LIMIT})", "released tool"], rows)
    print(f"{len(both)} rows that z3 finishes: auto {ours:.2f} s, z3 {theirs:.1f} s")
    print(f"{theirs / ours:.1f} times; goal {TIMES_GOAL:g}")
    slower = {n: o["z3"] / o["released"] for n, o in found.items() if o["released"] and o["z3"]}
    print(f"z3 over the released tool: at most {max(slower.values(), default=0):.2f} times; goal 1.5")
    return {"z3": {"rows": found, "auto": ours, "z3": theirs, "times": theirs / ours}}


def main(asked: list[str]) -> None:
    print_machine()
    parts = {"rows": bench_rows, "frontiers": bench_frontiers, "scale": bench_scale, "z3": bench_z3}
    unknown = [name for name in asked if name not in parts]
    if unknown:
        sys.exit(f"unknown part {unknown[0]}; there are {', '.join(parts)}")
    old = RESULTS / "sccl.json"
    found = json.loads(old.read_text(encoding="utf-8")) if old.exists() else {}
    found.pop("machine", None)
    for name in asked or ("rows", "frontiers", "scale"):
        found |= parts[name]()
        save("sccl", found)


if __name__ == "__main__":
    children = {
        "rows": child_rows, "each": child_each, "frontiers": child_frontiers, "scale": child_scale,
        "engine": lambda engine, number: child_engine(engine, int(number)),
    }  # fmt: skip
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(children[sys.argv[2]](*sys.argv[3:])))
    else:
        main(sys.argv[1:])
