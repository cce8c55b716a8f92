"""How near to the lower bound by size the best plan comes: machines x collectives x sizes, by `tune`, model alpha-beta.

Run: python bench/bench_zoo.py [--kinds gather,alltoall] [--sizes 1GB] [--engine processes:2] [SPEC ...]. Without specs
all machines of the catalogue of up to 64 ranks, and clusters of 2, 4 and 8 boxes in three fabrics, smallest first; some
--planners alone for runs that must be short. Cases are run by an engine, as those of `antiphon sweep`. Printed is best
plan / bound, for every machine and size; what is above 1.05 with the planner. The bound is that of `antiphon bound
--nbytes`.

Planners are asked in three rounds: those that usually win, then others that are quick, then all that are left. A case
is done as soon as its best plan is within 1 % of the bound at all sizes; --rounds 1 stops after the first round. All
cases have had one round before any has the next.

Every case is kept in results/zoo.json after each round, with what was asked (nothing said: all planners), and what is
done is not done again unless it is asked for (--again): a run that was stopped goes on where it was, and several may
run at once. What some --planners find is printed, not kept. --bounds computes the bounds of kept cases anew. --table
prints what is kept, first as docs/data/zoo.csv.

--safety asks every planner of the table, with all its options and little effort, for every collective, by default on
the machines that have results for small messages, and compares each schedule with the bound at 12 sizes. Cases are kept
in results/safety.json. A schedule below the bound is printed, and then the code is 1.

--attained prints best plan / bound at 10 sizes for broadcast, allgather and allreduce on a star, a ring, a full mesh, a
tree of switches and a hypercube, or on the SPECs.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from _common import keep, kept, print_machine

import antiphon
from antiphon.core.collective import KINDS, Collective
from antiphon.core.request import Request
from antiphon.core.topology import Topology
from antiphon.cost import prepare
from antiphon.errors import AntiphonError, EffortSpent, TimedOut
from antiphon.isolate import interrupted_after, run_each, run_jobs
from antiphon.registry import call, find, table
from antiphon.select.limits import least_times
from antiphon.select.schedule_cache import add_pieces, digest_rows
from antiphon.select.uses import has_helpful_switches, needs_switches
from antiphon.units import format_size, parse_size

BOXES = ("dgx-a100", "hgx-h100", "dgx1v", "mi250", "mi300x", "pcie8", "z52-pcie")
FABRICS = ("switch", "rail", "fat-tree")
MOST_RANKS = 64
ABOVE, ENOUGH = 1.05, 1.01
MOVES, ONE_ROOT, ALL_ROOTS = ("scatter", "gather", "alltoall"), ("broadcast", "reduce"), ("allgather", "reducescatter")
USUAL = {
    **dict.fromkeys(MOVES, ("flows",)),
    **dict.fromkeys(ONE_ROOT, ("shallow",)),
    **dict.fromkeys(ALL_ROOTS, ("trees",)),
    "allreduce": ("trees",),
}
QUICK = ("direct", "ring", "multi-ring", "compose")
SAFETY_EFFORT = 0.1  # of a planner, where schedules are only compared with the bound
SAFETY_LIMIT = 30.0  # CPU seconds of a planner there
SAFETY_SIZES = (*(4**exponent for exponent in range(4, 15)), 10**9)  # 256 B to 1 GB
ATTAINED = ("star:ranks=8", "ring:ranks=8", "full:ranks=8", "tree:fanouts=3x(4+2+0)", "hypercube:ranks=8")
ATTAINED_SIZES = tuple(4**exponent for exponent in range(5, 15))  # 1 KiB to 256 MiB
ROUNDS = 3  # of planners: those that usually win, the quick ones, all others


def machines() -> Iterator[str]:
    """The catalogue's examples, tori and meshes of 64, then clusters."""
    yield from (str(entry.can.example) for entry in table("topology").values())
    yield from ("mesh:dims=8x8", "torus:dims=8x8", "torus:dims=4x4x4", "star:ranks=16", "hypercube:ranks=64")
    for boxes in (2, 4, 8):
        yield from (f"cluster:box={box},boxes={boxes},fabric={fabric}" for box in BOXES for fabric in FABRICS)


def small(specs: list[str]) -> list[str]:
    return [spec for spec in dict.fromkeys(specs) if antiphon.topology(spec).ranks <= MOST_RANKS]


def cases(specs: list[str], kinds: list[str]) -> list[tuple[str, str]]:
    mixed = sorted(small(specs), key=lambda spec: antiphon.topology(spec).ranks)
    return [(spec, kind) for spec in mixed for kind in kinds]


def results_of(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], engine: str) -> Iterator[tuple[str, Any]]:
    """Yield cases by name with their results, as the engine computes them. A job begins with the machine and the
    collective."""
    for number, result in run_jobs(function, dict(enumerate(jobs)), engine):
        if isinstance(result, AntiphonError):
            raise result
        yield " ".join(jobs[number][:2]), result


def everyone(machine: Topology, kind: str) -> list[str]:
    """The planners that `tune` asks for this collective on this machine."""
    usual = [name for name, entry in table("planner").items() if entry.can.tuned]
    able = [name for name in usual if kind in find("planner", name).can.collectives]
    return [name for name in able if has_helpful_switches(machine) or not needs_switches(find("planner", name))]


def in_round(number: int, kind: str, left: list[str]) -> list[str]:
    """Those of the planners not yet asked whose turn it is."""
    first = [name for name in left if name in USUAL[kind] or needs_switches(find("planner", name))]
    return (first, [name for name in left if name in QUICK], left)[number]


def one_round(spec: str, kind: str, case: dict[str, Any], sizes: list[int], number: int) -> dict[str, Any]:
    """What of a case is new after a round: nothing where no planner has its turn, or all sizes are near the bound."""
    machine = antiphon.topology(spec)
    out: dict[str, Any] = {}
    for size in sizes:
        name = format_size(size)
        before = case.get(name, {"left": everyone(machine, kind)})
        left = before.get("left", [])
        planners = in_round(number, kind, left) if before.get("ratio", ABOVE) > ENOUGH else []
        if planners:
            found = measured(spec, kind, [size], planners)
            best = min((before, found.get(name, {})), key=lambda one: one.get("ratio", math.inf))
            out[name] = {**best, "left": [one for one in left if one not in planners]}
            out["tight"] = found["tight"]
            out["cpu"] = round(out.get("cpu", case.get("cpu", 0.0)) + found["cpu"], 1)
    return out


def measured(spec: str, kind: str, sizes: list[int], planners: list[str]) -> dict[str, Any]:
    """CPU seconds, whether the bandwidth bound is known to be attained, and of every size for which there is a plan
    the seconds of the best, over the bound, and who made it."""
    begin = time.process_time()
    machine = antiphon.topology(spec)
    found = antiphon.tune(
        kind,
        machine,
        nbytes=sizes,
        planners=planners,
        model="alpha-beta",
        nccl=False,
        search=antiphon.Search(workers="none"),
    )
    limit = antiphon.bound(kind, machine)
    least = least_times(Collective(kind, machine.ranks), machine, limit, sizes, "alpha-beta")
    out: dict[str, Any] = {"cpu": round(time.process_time() - begin, 1), "tight": limit.tight}
    for size in sizes:
        some = [one for one in found.candidates if size in one.seconds]
        if not some:
            continue
        best = min(some, key=lambda one: one.seconds[size])
        options = " ".join(f"{key}={value}" for key, value in best.options.items())
        out[format_size(size)] = {
            "seconds": best.seconds[size],
            "ratio": round(best.seconds[size] / least[size], 4),
            "by": f"{best.planner} {options}".strip(),
        }
    return out


def bounded_anew(spec: str, kind: str, case: dict[str, Any]) -> dict[str, Any]:
    """The ratios of a kept case by the bound as it is now."""
    machine, collective = antiphon.topology(spec), Collective(kind, antiphon.topology(spec).ranks)
    sizes = [name for name in case if "seconds" in (case[name] if isinstance(case[name], dict) else {})]
    numbers = [parse_size(name) for name in sizes]
    least = least_times(collective, machine, antiphon.bound(kind, machine), numbers, "alpha-beta")
    return {
        name: {**case[name], "ratio": round(case[name]["seconds"] / least[number], 4)}
        for name, number in zip(sizes, numbers, strict=True)
    }


class StoppedError(TimedOut):
    """The CPU seconds of a planner are over."""

    def __init__(self) -> None:
        super().__init__("stopped")


def check_safety(spec: str, kind: str) -> dict[str, Any]:
    """The number of schedules held against the bound at all sizes, a line for each that is predicted faster, and the
    planners that were stopped. A planner plans for some of the sizes, like `tune`; each schedule counts at all."""
    begin = time.process_time()
    machine = antiphon.topology(spec)
    target = Collective(kind, machine.ranks)
    limit = antiphon.bound(kind, machine)
    least = least_times(target, machine, limit, SAFETY_SIZES, "alpha-beta") if limit.bytes_per_second else {}
    seen, below, asked, stopped = set[bytes](), list[str](), list[str](), list[str]()
    request = Request(machine, target, nbytes=None, also=SAFETY_SIZES[-1:3:-2], effort=SAFETY_EFFORT)
    for name, entry in table("planner").items():
        for options in entry.can.sweep if kind in entry.can.collectives else ():
            label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
            try:
                with interrupted_after(SAFETY_LIMIT, StoppedError):
                    for schedule in call("planner", name, entry.load(), options, request):
                        digest = add_pieces(digest_rows(schedule), schedule.pieces)
                        if digest not in seen:
                            seen.add(digest)
                            predict = prepare("alpha-beta", schedule, machine)
                            times = {size: predict(size).seconds for size in SAFETY_SIZES}
                            faster = [size for size in least if times[size] < least[size] * (1 - 1e-9)]
                            below += [f"{label}: below the bound at {faster}"] if faster else []
                asked.append(label)
            except EffortSpent:
                asked.append(label)
            except TimedOut:
                stopped.append(label)
            except AntiphonError:
                continue
    cpu = round(time.process_time() - begin, 1)
    return {"schedules": len(seen), "planners": len(asked), "below": below, "stopped": stopped, "cpu": cpu}


def print_safety(wanted: list[tuple[str, str]], again: bool, engine: str) -> int:
    """Check the cases that no earlier run has checked, and print all; 1 if a schedule is below its bound."""
    known = kept("safety")
    missing = [case for case in wanted if again or " ".join(case) not in known]
    for key, result in results_of(check_safety, missing, engine):
        known = keep("safety", {key: result})
        print(f"checked: {key}", file=sys.stderr)
    for spec, kind in wanted:
        key = f"{spec} {kind}"
        case = known[key]
        notes = [f"stopped: {', '.join(case['stopped'])}"] if case["stopped"] else []
        print(f"{key}: {case['schedules']} schedules, {case['cpu']} s", *case["below"], *notes, sep="\n  ", flush=True)
    checked = [known[f"{spec} {kind}"] for spec, kind in wanted]
    faults = sum(len(case["below"]) for case in checked)
    total = sum(case["schedules"] for case in checked)
    print(f"{len(checked)} cases, {len(SAFETY_SIZES)} sizes, {total} schedules, {faults} below the bound")
    return int(faults > 0)


def attained(spec: str, kind: str) -> list[float]:
    """Best plan over bound, each size tuned alone."""
    planners = everyone(antiphon.topology(spec), kind)
    return [measured(spec, kind, [size], planners)[format_size(size)]["ratio"] for size in ATTAINED_SIZES]


def print_attained(specs: list[str], engine: str) -> None:
    """Print best plan over bound of collectives that spread or sum all data."""
    print("machine collective", *(format_size(size) for size in ATTAINED_SIZES))
    wanted = [(spec, kind) for spec in specs for kind in ("broadcast", "allgather", "allreduce")]
    for (spec, kind), ratios in zip(wanted, run_each(attained, wanted, engine), strict=True):
        print(spec, kind, *(f"{ratio:.3f}" for ratio in ratios), flush=True)


def told(name: str, case: dict[str, Any], sizes: list[str]) -> str:
    """A line of a case; who made what is above."""
    some = [case.get(size, {}) for size in sizes]
    ratios = [f"{one['ratio']:.3f}" if "ratio" in one else "-" for one in some]
    above = [one for one in some if one.get("ratio", 0.0) > ABOVE]
    who = "; ".join(one["by"] for one in above)
    return " ".join([name, *ratios, f"{case['cpu']:.1f}s", who]).strip()


def print_kept(cases: dict[str, dict[str, Any]], size: str, specs: list[str]) -> None:
    """Print ratios as CSV, a row per machine, then a line for every case above the limit."""
    table_writer = csv.writer(sys.stdout, lineterminator="\n")
    table_writer.writerow(["machine", *KINDS, "cpu_seconds"])
    for spec in specs:
        row = [cases.get(f"{spec} {kind}", {}) for kind in KINDS]
        if any("ratio" in case.get(size, {}) for case in row):
            ratios = [f"{case[size]['ratio']:.3f}" if "ratio" in case.get(size, {}) else "" for case in row]
            table_writer.writerow([spec, *ratios, f"{sum(case.get('cpu', 0) for case in row):.0f}"])
    print()
    for name, case in cases.items():
        one = case.get(size, {})
        if one.get("ratio", 0.0) > ABOVE:
            print(f"- `{name}` {cell(one)} by {one['by']}", flush=True)


def cell(one: dict[str, Any]) -> str:
    if "ratio" not in one:
        return ""
    return f"{one['ratio']:.3f}{'*' if one.get('left') and one['ratio'] > ENOUGH else ''}"


def summary(cases: dict[str, dict[str, Any]], size: str) -> str:
    some = [case for case in cases.values() if "ratio" in case.get(size, {})]
    if not some:
        return f"{size}: no case"
    values = [case[size]["ratio"] for case in some]
    above = sum(value > ABOVE for value in values)
    attained = [case[size]["ratio"] for case in some if case["tight"]]
    return (
        f"{size}: {len(values)} cases, median {statistics.median(values):.3f}, worst {max(values):.3f}, above {ABOVE}: "
        f"{above}; where the bound is known to be attained {len(attained)}, worst {max(attained, default=0):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("specs", nargs="*")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default="1KiB,64KiB,1MiB,1GB")
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--planners", default="")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--safety", action="store_true")
    parser.add_argument("--attained", action="store_true")
    given = parser.parse_args()
    sizes = [parse_size(text) for text in given.sizes.split(",")]
    names = [format_size(size) for size in sizes]
    print_machine()
    known = kept("zoo")
    specs = given.specs or list(machines())
    if given.safety and not given.specs:
        specs = list(dict.fromkeys(key.rsplit(" ", 1)[0] for key, case in known.items() if "1KiB" in case))
    wanted = cases(specs, given.kinds.split(","))
    planners = [name for name in given.planners.split(",") if name]
    if given.safety:
        sys.exit(print_safety(wanted, given.again, given.engine))
    if given.attained:
        print_attained(given.specs or list(ATTAINED), given.engine)
        return
    if planners:
        for key, result in results_of(measured, [(*case, sizes, planners) for case in wanted], given.engine):
            known[key] = result
            print(told(key, result, names), flush=True)
    elif given.bounds:
        jobs = [(*case, known[" ".join(case)]) for case in wanted if " ".join(case) in known]
        for key, result in results_of(bounded_anew, jobs, given.engine):
            known = keep("zoo", {key: result})
    elif not given.table:
        known = in_rounds(wanted, sizes, given.rounds, given.again, given.engine)
    if given.table:
        print_kept(known, names[-1], small(given.specs or list(machines())))
    mine = {f"{spec} {kind}": known[f"{spec} {kind}"] for spec, kind in wanted if f"{spec} {kind}" in known}
    for name in names:
        print(summary(mine, name))


def in_rounds(
    wanted: list[tuple[str, str]], sizes: list[int], rounds: int, again: bool, engine: str
) -> dict[str, dict[str, Any]]:
    """Asks for what is missing, and tells all that is kept then."""
    names = [format_size(size) for size in sizes]
    known = kept("zoo")
    for number in range(rounds):
        olds = [{} if again and not number else known.get(" ".join(case), {}) for case in wanted]
        jobs = [(*case, old, sizes, number) for case, old in zip(wanted, olds, strict=True)]
        for key, new in results_of(one_round, jobs, engine):
            if new:
                known = keep("zoo", {key: new})
            if new or number == rounds - 1:
                print(told(key, known[key], names), flush=True)
    return known


if __name__ == "__main__":
    main()
