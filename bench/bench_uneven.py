"""How near to the lower bound plans are on uneven machines: 7 + 8 ranks, 5 of 8 GPUs, boxes of different kinds.

Run: python bench/bench_uneven.py [--kinds allreduce,alltoall] [--sizes 1GB] [--planners trees] [--again] [NAME ...].
Every case is one `tune` by model alpha-beta: printed is best plan / bound at each size, and which planner made what is
above 1.05. --likely asks the planners that usually win, and all only for what is above then. Cases are kept in
results/uneven.json and not done again unless asked for (--again, or --planners, which keeps nothing). --table prints
what is kept.

A machine is a name of the catalogue, the ranks that take part, and whether the others may relay: `ranks` leaves them as
relays (allgather:ranks=0-4), `only` takes them away (TOPO:only=0-4).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from _common import keep, kept, print_machine, print_table

import antiphon
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.reshape import only
from antiphon.core.topology import Topology
from antiphon.select.limits import least_times
from antiphon.units import format_size, parse_ranks, parse_size

ABOVE = 1.05


class Uneven(NamedTuple):
    """A machine and its group of ranks."""

    machine: str
    ranks: str = ""  # that take part; "": all
    relays: bool = False  # whether the others may relay


MACHINES = {
    "7+8 H100": Uneven("cluster:box=hgx-h100,boxes=2", "0-6,8-15"),
    "7+8 A100": Uneven("cluster:box=dgx-a100,boxes=2", "0-6,8-15"),
    "7+8 A100, relays": Uneven("cluster:box=dgx-a100,boxes=2", "0-6,8-15", relays=True),
    "5+8 V100": Uneven("cluster:box=dgx1v,boxes=2", "0-4,8-15"),
    "5 of 8 V100": Uneven("dgx1v", "0-4"),
    "5 of 8 V100, relays": Uneven("dgx1v", "0-4", relays=True),
    "5 of 8 H100": Uneven("hgx-h100", "0-4"),
    "3+4 A100 on 2 cards": Uneven("polaris:nodes=2", "0-2,4-7"),
    "7+8 on PCIe": Uneven("cluster:box=pcie8,boxes=2", "0-6,8-15"),
    "3+5 in a tree": Uneven("tree:fanouts=2x(3+5)"),
    "11 of 4x4, relays": Uneven("torus:dims=4x4", "0-10", relays=True),
    "V100 + A100": Uneven("cluster:box=dgx1v+dgx-a100"),
    "A100 + H100": Uneven("cluster:box=dgx-a100+hgx-h100"),
    "5 V100 + 7 A100": Uneven("cluster:box=dgx1v+dgx-a100", "0-4,8-14"),
}
KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall")
LIKELY = {"alltoall": ["flows"], "broadcast": ["shallow"], "allreduce": ["trees", "nvls-tree"]}  # else trees


def request_of(case: Uneven, kind: str) -> tuple[Topology, Collective]:
    machine = antiphon.topology(case.machine)
    ranks = parse_ranks(case.ranks, "ranks") if case.ranks else range(machine.ranks)
    if not case.relays and len(ranks) < machine.ranks:
        machine = only(machine, ranks)
    roots = (min(ranks),) if kind in ROOTED else ()
    return machine, Collective(kind, machine.ranks, tuple(ranks), roots)


def measure(case: Uneven, kind: str, sizes: Sequence[int], planners: Sequence[str]) -> dict[str, Any]:
    """Return CPU seconds, and by size the time over the bound with the planner."""
    begin = time.process_time()
    machine, collective = request_of(case, kind)
    tuning = antiphon.tune(
        collective, machine, nbytes=list(sizes), planners=planners, model="alpha-beta", nccl=False,
        search=antiphon.Search(workers="none"),
    )  # fmt: skip
    bound = antiphon.bound(collective, machine)
    least = least_times(collective, machine, bound, sizes, "alpha-beta")
    row: dict[str, Any] = {"cpu": round(time.process_time() - begin, 1), "tight": bound.tight, "planners": [*planners]}
    for size in sizes:
        priced = [candidate for candidate in tuning.candidates if size in candidate.seconds]
        if priced:
            best = min(priced, key=lambda candidate: candidate.seconds[size])
            options = " ".join(f"{key}={value}" for key, value in best.options.items())
            row[format_size(size)] = {
                "ratio": round(best.seconds[size] / least[size], 4), "by": f"{best.planner} {options}".strip()
            }  # fmt: skip
    return row


def print_cases(cases: dict[str, dict[str, Any]], sizes: Sequence[str]) -> None:
    rows, above = [], []
    for name, case in cases.items():
        by_size = [case.get(size, {}) for size in sizes]
        rows.append([name, *(f"{cell['ratio']:.3f}" if cell else "-" for cell in by_size), str(case["cpu"])])
        above += [f"  {name} {size}: {cell['ratio']:.3f} by {cell['by']}"
                  for size, cell in zip(sizes, by_size, strict=True) if cell.get("ratio", 0) > ABOVE]  # fmt: skip
    print_table(["case", *sizes, "CPU s"], rows)
    print("\n".join([f"above {ABOVE}:", *above] if above else [f"none above {ABOVE}"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default="1KB,1MB,1GB")
    parser.add_argument("--planners", default="")
    parser.add_argument("--likely", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    print_machine()
    sizes = [parse_size(text) for text in args.sizes.split(",")]
    planners = [name for name in args.planners.split(",") if name]
    cases = kept("uneven")
    wanted = [(name, kind) for name in args.names or MACHINES for kind in args.kinds.split(",")]
    for name, kind in () if args.table else wanted:
        key = f"{name}: {kind}"
        if key in cases and not args.again and not planners:
            continue
        row = measure(MACHINES[name], kind, sizes, planners or (LIKELY.get(kind, ["trees"]) if args.likely else []))
        if args.likely and any(row.get(format_size(size), {"ratio": ABOVE + 1})["ratio"] > ABOVE for size in sizes):
            row = measure(MACHINES[name], kind, sizes, [])
        print_cases({key: row}, [format_size(size) for size in sizes])
        cases = {**cases, key: row} if planners else keep("uneven", {key: row})
    keys = [f"{name}: {kind}" for name, kind in wanted]
    print_cases({key: cases[key] for key in keys if key in cases}, [format_size(size) for size in sizes])


if __name__ == "__main__":
    main()
