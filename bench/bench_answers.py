"""Check that a change of the planners or of `tune` makes no answer worse.

Tunes 19 machines x 8 collectives x 5 sizes and keeps, for every case, the fastest time of each planner and the CPU
seconds that `tune` took. Run it before a change, with a name for the state, and again after it:

    python bench/bench_answers.py run before
    python bench/bench_answers.py run after
    python bench/bench_answers.py compare before after    # exit status 1 if an answer is more than 2 % slower
    python bench/bench_answers.py planners before         # by how much answers get slower without each planner

Cases that are already measured under a name are skipped, so an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from typing import Any

from _common import in_child, keep, kept, print_machine, print_table

MACHINES = (
    "ring:ranks=8", "mesh:dims=3x4", "torus:dims=4x4", "hypercube:ranks=16", "full:ranks=6", "star:ranks=8",
    "tree:fanouts=3x(4+2+0)", "dragonfly:groups=5,routers=2,hosts=2", "dgx1p", "dgx1v", "dgx2", "dgx-a100", "hgx-h100",
    "z52", "mi250", "mi300x", "pcie8", "cluster:box=dgx1v,boxes=2", "delta:nodes=4",
)  # fmt: skip
COLLECTIVES = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")
SIZES = (1 << 10, 32 << 10, 1 << 20, 32 << 20, 1 << 30)
MAX_SLOWDOWN = 1.02  # ratio of predicted times above which an answer counts as worse


def tune_case(collective: str, spec: str) -> None:
    """Print the result of one tuning as JSON: by size and planner the least seconds, and the CPU time it took."""
    from antiphon.select import tune
    from antiphon.topologies import topology

    result = tune(collective, topology(spec), nbytes=SIZES)
    fastest: dict[str, dict[str, float]] = {str(size): {} for size in SIZES}
    for candidate in result.candidates:
        if not candidate.may_win:
            continue
        for size, seconds in candidate.seconds.items():
            by_planner = fastest[str(size)]
            by_planner[candidate.planner] = min(seconds, by_planner.get(candidate.planner, seconds))
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(used.ru_utime + used.ru_stime for used in usage)
    stopped = [f"{c.planner} {dict(c.options)}" for c in result.candidates if c.ended_by]
    print(json.dumps({"fastest": fastest, "cpu_seconds": cpu_seconds, "stopped": stopped}))


def run_all(state: str, machines: list[str]) -> None:
    print_machine()
    for spec in machines:
        for collective in COLLECTIVES:
            key = f"{collective} {spec}"
            if key in kept(f"answers-{state}"):
                continue
            case = in_child(__file__, "case", collective, spec)
            keep(f"answers-{state}", {key: case})
            print(f"{key}: {case['cpu_seconds']:.1f} CPU s", flush=True)


def compare_states(before: str, after: str) -> int:
    """Print slower answers and the CPU time per machine; return the exit status."""
    old, new = kept(f"answers-{before}"), kept(f"answers-{after}")
    shared = [key for key in old if key in new]
    slower, ratios = [], []
    for key in shared:
        for size in old[key]["fastest"]:
            times = [min(case[key]["fastest"][size].values(), default=float("inf")) for case in (old, new)]
            if times[0] == float("inf"):
                continue
            ratios.append(times[1] / times[0])
            if ratios[-1] > MAX_SLOWDOWN:
                winner = min(old[key]["fastest"][size], key=old[key]["fastest"][size].__getitem__)
                slower.append([key, size, ratios[-1], winner])
    print_table(["slower answers", "bytes", "ratio", "planner before"], slower)
    rows = []
    for spec in dict.fromkeys(key.split(" ", 1)[1] for key in shared):
        cpu = [sum(case[key]["cpu_seconds"] for key in shared if key.endswith(f" {spec}")) for case in (old, new)]
        rows.append([spec, *cpu, cpu[1] / cpu[0]])
    print_table(["machine", "CPU s before", "after", "ratio"], rows)
    print(f"{len(ratios)} answers in {len(shared)} cases: {len(slower)} slower by more than 2 %")
    return 1 if slower else 0


def rank_planners(state: str) -> None:
    """Print for each planner how often it wins, and how much slower the answers are without it."""
    cases: dict[str, dict[str, Any]] = kept(f"answers-{state}")
    losses: dict[str, list[tuple[float, str]]] = {}
    for key, case in cases.items():
        for size, by_planner in case["fastest"].items():
            for planner, seconds in by_planner.items():
                others = [value for name, value in by_planner.items() if name != planner]
                loss = min(others, default=float("inf")) / seconds
                losses.setdefault(planner, []).append((loss, f"{key} {size}"))
    rows = []
    for planner, entries in sorted(losses.items(), key=lambda item: max(item[1])):
        wins = [entry for entry in entries if entry[0] > 1]
        over = [entry for entry in entries if entry[0] > MAX_SLOWDOWN]
        median = statistics.median(loss for loss, _ in wins) if wins else 1.0
        rows.append([planner, len(entries), len(wins), len(over), median, *max(entries)])
    print_table(["without", "answers", "alone best", "> 2 %", "median loss", "greatest", "case"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("state")
    run.add_argument("machines", nargs="*", default=list(MACHINES))
    comparison = commands.add_parser("compare")
    comparison.add_argument("before")
    comparison.add_argument("after")
    commands.add_parser("planners").add_argument("state")
    case = commands.add_parser("case")
    case.add_argument("collective")
    case.add_argument("spec")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run_all(arguments.state, arguments.machines)
    elif arguments.command == "case":
        tune_case(arguments.collective, arguments.spec)
    elif arguments.command == "planners":
        rank_planners(arguments.state)
    else:
        return compare_states(arguments.before, arguments.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
