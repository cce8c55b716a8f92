"""How near to the bound the best plan comes: machines x collectives x sizes, by `tune` with model alpha-beta.

Run: python bench/bench_zoo.py [--kinds gather,alltoall] [--sizes 1GB] [--part 0/8] [SPEC ...]. Without specs all
machines of the catalogue of up to 64 ranks, and clusters of 2, 4 and 8 boxes in three fabrics; a part of them with
--part, or some --planners alone, for runs that must be short. Told is best plan / bound, for every machine and size;
what is above 1.05 with the planner, and which part of the time is latency. The bound is that of `antiphon bound`,
which knows no latency: for small messages the ratio says more about latency than about plans.

Every case is kept in results/zoo.json as soon as it is done, and one that is kept is not done again unless it is asked
for (--again): a run that was stopped goes on where it was, and several may run at once. What some --planners find is
told, and not kept. --table prints what is kept, as docs/zoo.md has it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

from _common import keep, kept, print_machine

import antiphon
from antiphon.core.collective import KINDS
from antiphon.registry import table
from antiphon.units import format_size, parse_size

BOXES = ("dgx-a100", "hgx-h100", "dgx1v", "mi250", "mi300x", "pcie8", "z52-pcie")
FABRICS = ("switch", "rail", "fat-tree")
MOST_RANKS = 64
ABOVE = 1.05


def machines() -> Iterator[str]:
    """The catalogue's examples, tori and meshes of 64, then clusters."""
    yield from (str(entry.can["example"]) for entry in table("topology").values())
    yield from ("mesh:dims=8x8", "torus:dims=8x8", "torus:dims=4x4x4", "star:ranks=16", "hypercube:ranks=64")
    for boxes in (2, 4, 8):
        yield from (f"cluster:box={box},boxes={boxes},fabric={fabric}" for box in BOXES for fabric in FABRICS)


def small(specs: list[str]) -> list[str]:
    return [spec for spec in dict.fromkeys(specs) if antiphon.topology(spec).ranks <= MOST_RANKS]


def cases(specs: list[str], kinds: list[str], part: str) -> list[tuple[str, str]]:
    mine, parts = (int(number) for number in part.split("/"))
    return [(spec, kind) for spec in small(specs) for kind in kinds][mine::parts]


def measured(spec: str, kind: str, sizes: list[int], planners: list[str]) -> dict[str, Any]:
    """CPU seconds, whether the bound is known to be attained, and of every size best plan / bound, who made it, and
    the part of its time that is latency."""
    begin = time.process_time()
    machine = antiphon.topology(spec)
    found = antiphon.tune(
        kind, machine, nbytes=sizes, planners=planners, model="alpha-beta", workers="none", nccl=False
    )
    took = time.process_time() - begin
    limit = antiphon.bound(kind, machine)
    out: dict[str, Any] = {"cpu": round(took, 1), "tight": limit.tight}
    for size in sizes:
        best = min((one for one in found.candidates if size in one.seconds), key=lambda one: one.seconds[size])
        options = " ".join(f"{key}={value}" for key, value in best.options.items())
        out[format_size(size)] = {
            "ratio": round(best.seconds[size] / float(limit.seconds(size)), 4),
            "by": f"{best.planner} {options}".strip(),
            "latency": round(best.why[size][1].get("latency", 0.0) / best.seconds[size], 4),
        }
    return out


def told(spec: str, kind: str, case: dict[str, Any], sizes: list[str]) -> str:
    """A line of a case; who made what is above."""
    who = "; ".join(
        f"{case[size]['by']} (latency {case[size]['latency']:.0%})" for size in sizes if case[size]["ratio"] > ABOVE
    )
    return " ".join([spec, kind, *(f"{case[size]['ratio']:.3f}" for size in sizes), f"{case['cpu']:.1f}s", who]).strip()


def print_kept(cases: dict[str, dict[str, Any]], size: str, specs: list[str]) -> None:
    """As a table of machines and collectives, then what is above."""
    print(f"| machine | {' | '.join(KINDS)} | CPU s |\n|---|{'---|' * (len(KINDS) + 1)}")
    for spec in specs:
        row = [cases.get(f"{spec} {kind}", {}) for kind in KINDS]
        if any(row):
            cells = [f"{case[size]['ratio']:.3f}" if size in case else "" for case in row]
            print(f"| `{spec}` | {' | '.join(cells)} | {sum(case.get('cpu', 0) for case in row):.0f} |")
    print()
    for name, case in cases.items():
        if case.get(size, {}).get("ratio", 0) > ABOVE:
            known = "attained" if case["tight"] else "not known to be attained"
            one = case[size]
            print(f"- `{name}` {one['ratio']:.3f} by {one['by']}, latency {one['latency']:.1%}; {known}")


def summary(cases: dict[str, dict[str, Any]], size: str) -> str:
    values = [case[size]["ratio"] for case in cases.values() if size in case]
    above = sum(value > ABOVE for value in values)
    attained = [case[size]["ratio"] for case in cases.values() if size in case and case["tight"]]
    return (
        f"{size}: {len(values)} cases, median {statistics.median(values):.3f}, worst {max(values):.3f}, above {ABOVE}: "
        f"{above}; where the bound is known to be attained {len(attained)}, worst {max(attained, default=0):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("specs", nargs="*")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default="1KB,1MB,1GB")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--planners", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    sizes = [parse_size(text) for text in given.sizes.split(",")]
    names = [format_size(size) for size in sizes]
    print_machine()
    known = kept("zoo")
    wanted = cases(given.specs or list(machines()), given.kinds.split(","), given.part)
    planners = [name for name in given.planners.split(",") if name]
    for spec, kind in [] if given.table else wanted:
        key = f"{spec} {kind}"
        if planners:
            known[key] = measured(spec, kind, sizes, planners)
        elif given.again or not all(name in known.get(key, {}) for name in names):
            known = keep("zoo", {key: measured(spec, kind, sizes, planners)})
        print(told(spec, kind, known[key], names), flush=True)
    if given.table:
        print_kept(known, names[-1], small(given.specs or list(machines())))
    mine = {f"{spec} {kind}": known[f"{spec} {kind}"] for spec, kind in wanted if f"{spec} {kind}" in known}
    for name in names:
        print(summary(mine, name))


if __name__ == "__main__":
    main()
