"""Plans for 64 to 4096 ranks: CPU seconds, memory, and how near to the bound.

Run: python bench/bench_scale.py [--most 1024] [--only torus] [--tuned] [--commands] [--to FILE]. Every row is measured
in a process of its own: planned for the size, verified, and priced by model alpha-beta. Goals are for best plan / bound
and for CPU seconds of planning, where there are any; what misses one is named at the end. Every row is kept in
results/FILE.json as soon as it is done, beside those of earlier runs.

With --tuned it is `tune` as a user types it, with all planners, from 1 KB to 1 GB by the usual model of the machine,
and nothing else: CPU seconds of all its processes, the most memory of one, how many candidates were stopped, and how
near to the bound of the wire the best for 1 GB is: in time (a wire gives its share of what is nominal, and hops take
time), and in what it moves over its busiest link.

With --commands it is the command line on 4096 ranks (COMMANDS), whole processes, beside the CPU seconds that each took
before 2026-11-29 (None: `plan` had not ended after 175 s, so that there was no file to read; `bound` was not timed).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from _common import in_child, keep, peak_mb, print_machine, print_table

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.request import Request
from antiphon.core.verify import verify
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.registry import find
from antiphon.topologies import topology
from antiphon.units import format_size, parse_size

MOST_GB = 16.0


@dataclass(frozen=True)
class Case:
    """A plan, and what is asked of it: at most so many times the bound, planned in so many CPU seconds."""

    spec: str
    kind: str
    planner: str
    size: str
    ratio: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Command:
    """A command on 4096 ranks, the CPU seconds that it took before, and its goal. FILE: the plan written last."""

    words: str
    before: float | None
    seconds: float


MACHINE = "delta:nodes=1024"
COMMANDS = (
    Command(f"bound allgather {MACHINE}", None, 10),
    Command(f"bound allreduce {MACHINE}", None, 10),
    Command(f"plan broadcast {MACHINE} --planner kring -o FILE", 13.5, 20),
    Command(f"plan allreduce {MACHINE} --planner recmult -o FILE", None, 20),
    Command(f"plan allgather {MACHINE} --planner recmult -o FILE", None, 20),
    Command(f"plan allgather {MACHINE} --planner kring -o FILE", None, 20),
    Command("predict FILE --nbytes 1GB", None, 15),
    Command("verify FILE", None, 20),
)


def boxes(number: int) -> str:
    return f"cluster:box=dgx-a100,boxes={number}"


CASES = (
    Case(boxes(16), "broadcast", "compose", "1GB", 1.06),
    Case(boxes(64), "broadcast", "compose", "1GB", 1.05),
    *(Case(boxes(128), kind, "compose", "1GB", 1.05, 30) for kind in ("allreduce", "allgather", "broadcast", "reduce")),
    Case(boxes(128), "allgather", "greedy", "1GB", 1.05, 30),
    *(Case(boxes(128), kind, "trees", "1GB", 1.05, 30) for kind in ("allreduce", "allgather")),
    *(Case("torus:dims=8x8x16", kind, "trees", "1GB", 1.05, 30) for kind in ("allreduce", "allgather")),
    Case("mesh:dims=32x32", "allgather", "greedy", "1GB", 1.02, 4),
    Case("mesh:dims=32x32", "allgather", "compose", "1GB", 1.02),
    Case("torus:dims=10x10x10", "allgather", "greedy", "1GB", 1.02, 4),
    Case("torus:dims=8x8x8", "allgather", "compose", "1GB", 1.02),
    Case("torus:dims=8x8x8", "allgather", "compose", "64MiB", 1.15),
    Case("torus:dims=8x8x8", "alltoall", "compose", "1GB", 1.1, 60),
    Case("mesh:dims=8x8", "alltoall", "compose", "1GB", 1.05),
    Case("mesh:dims=16x16", "alltoall", "compose", "1GB"),
    Case("torus:dims=16x16x16", "allgather", "greedy", "1GB"),
    *(Case(boxes(512), kind, "compose", "1GB") for kind in ("allgather", "allreduce", "broadcast")),
)

TUNED = tuple((boxes(128), kind) for kind in ("allreduce", "allgather", "broadcast"))
TUNED_SECONDS = 300


def tuned(number: int) -> None:
    spec, kind = TUNED[number]
    begin = time.perf_counter()
    found = antiphon.tune(kind, spec)
    wall = time.perf_counter() - begin
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    most = max(peak_mb(), spent[1].ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))
    last, claims = found.ranges[-1], found.plans[kind].at(10**9).claims
    told = {"ranks": found.topology.ranks, "ok": sum(c.status == "ok" for c in found.candidates)}
    best = {"gap": last.gap, "bandwidth_gap": claims["bandwidth_gap"], "planner": last.candidate.planner}
    cpu = sum(used.ru_utime + used.ru_stime for used in spent)
    print(json.dumps({**told, "stopped": found.stopped, "cpu_seconds": cpu, "seconds": wall, "peak_mb": most, **best}))


def child(number: int) -> None:
    case = CASES[number]
    machine, nbytes = topology(case.spec), parse_size(case.size)
    target = Collective(case.kind, machine.ranks, roots=(0,) if case.kind in ROOTED else ())
    limit = bound(machine, target).without_help
    begin = time.process_time()
    (made,) = find("planner", case.planner).load()(Request(machine, target, nbytes=nbytes))
    planned = time.process_time()
    verify(made, machine).or_raise()
    done = time.process_time()
    ratio = alpha_beta(made, machine)(nbytes).seconds / float(limit.seconds(nbytes))
    told = {"ranks": machine.ranks, "transfers": made.transfers, "steps": made.steps, "tight": limit.tight}
    times = {"plan_seconds": planned - begin, "verify_seconds": done - planned, "peak_mb": peak_mb()}
    print(json.dumps({"ratio": ratio, **times, **told}))


def missed(case: Case, found: dict[str, Any]) -> list[str]:
    """What falls short of the goals of a case."""
    out = []
    if case.ratio is not None and found["ratio"] > case.ratio:
        out.append(f"{found['ratio']:.4f} times the bound (goal {case.ratio})")
    if case.seconds is not None and found["plan_seconds"] > case.seconds:
        out.append(f"{found['plan_seconds']:.1f} CPU s (goal {case.seconds})")
    if found["peak_mb"] > MOST_GB * 1000:
        out.append(f"{found['peak_mb'] / 1000:.1f} GB (goal {MOST_GB})")
    return [f"{case.spec} {case.kind} by {case.planner}: {what}" for what in out]


def tunings(only: str, most: int, to: str) -> None:
    rows = []
    for number, (spec, kind) in enumerate(TUNED):
        if only in spec and topology(spec).ranks <= most:
            found = in_child(__file__, "--tuned-child", number)
            told = [found["gap"], found["bandwidth_gap"], found["cpu_seconds"], found["peak_mb"] / 1000]
            rows.append([spec, kind, *told, found["ok"], found["stopped"]])
            keep(to, {f"{spec} tune {kind}": found})
            if found["cpu_seconds"] > TUNED_SECONDS:
                print(f"MISSED {spec} {kind}: {found['cpu_seconds']:.0f} CPU s (goal {TUNED_SECONDS})")
    print_table(["tune", "collective", "gap", "bandwidth gap", "CPU s", "GB", "schedules", "stopped"], rows)


def time_commands(to: str) -> None:
    """Run COMMANDS one after the other in processes of their own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, command in enumerate(COMMANDS):
            found = in_child(__file__, "--command-child", number, f"{folder}/plan.json.gz")
            keep(to, {f"command {command.words}": {**found, "before_cpu_seconds": command.before}})
            rows.append([command.words, str(command.before), found["cpu_seconds"], found["peak_mb"] / 1000])
            if found["cpu_seconds"] > command.seconds:
                print(f"MISSED {command.words}: {found['cpu_seconds']:.0f} CPU s (goal {command.seconds:.0f})")
    print_table(["command", "before CPU s", "CPU s", "GB"], rows)


def command_child(number: int, path: str) -> None:
    words = COMMANDS[number].words.replace("FILE", path).split()
    subprocess.run([sys.executable, "-m", "antiphon", *words], check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    most = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps({"cpu_seconds": used.ru_utime + used.ru_stime, "peak_mb": most}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=4096, help="ranks of the largest machine")
    parser.add_argument("--only", default="", help="machines with this in their names")
    parser.add_argument("--to", default="scale", help="the file in bench/results")
    parser.add_argument("--tuned", action="store_true", help="tune, and nothing else")
    parser.add_argument("--commands", action="store_true", help="the command line on 4096 ranks, and nothing else")
    given = parser.parse_args()
    print_machine()
    if given.commands:
        time_commands(given.to)
        return
    if given.tuned:
        tunings(given.only, given.most, given.to)
        return
    rows, short = [], []
    for number, case in enumerate(CASES):
        if given.only not in case.spec or topology(case.spec).ranks > given.most:
            continue
        found = in_child(__file__, "--child", number)
        told = [found["ratio"], found["plan_seconds"], found["verify_seconds"], found["peak_mb"] / 1000]
        name = [case.spec, case.kind, case.planner, format_size(parse_size(case.size))]
        rows.append([*name, f"{told[0]:.4f}", *(f"{x:.1f}" for x in told[1:]), found["transfers"]])
        print(*rows[-1], flush=True)
        keep(given.to, {" ".join(name): found})
        short += missed(case, found)
    print_table(
        ["machine", "collective", "planner", "size", "best / bound", "plan s", "verify s", "GB", "transfers"], rows
    )
    for line in short:
        print(f"MISSED {line}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--command-child"]:
        command_child(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["--tuned-child"]:
        tuned(int(sys.argv[2]))
    else:
        main()
