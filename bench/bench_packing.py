"""How long tree packing takes, how deep and how many its trees are, and what that was for others.

Run: python bench/bench_packing.py [optimum|forests|dgx1|growth ...]. CPU seconds, medians, everything imported before.
The released ForestColl (networkx, 2 cores like these): 0.10, 3.7, 27.5 and over 300 s for 1, 2, 4 and 8 boxes of A100;
0.45, 27.5 and over 300 s for 1, 2 and 4 boxes of MI250; 68 s for the optimum alone at 256 GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import medians, print_machine, print_table, save

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.reshape import degrade
from antiphon.core.topology import Topology
from antiphon.planners.trees.blink import blink
from antiphon.planners.trees.forest import pack_forests
from antiphon.planners.trees.trees import trees
from antiphon.reproduce.blink_allocations import unique_allocations

A100, MI250 = "cluster:box=dgx-a100,boxes={}", "cluster:box=mi250,boxes={}"
FORESTS = {  # CPU seconds that each may take
    A100.format(4): 0.5, A100.format(8): 3, A100.format(16): 20, A100.format(32): None, MI250.format(4): 10,
    MI250.format(8): None, "cluster:box=dgx1v,boxes=8": None, "torus:dims=8x8": None, "hypercube:ranks=64": None,
}  # fmt: skip
RELEASED = {A100.format(4): 27.5, A100.format(8): "over 300", MI250.format(4): "over 300"}


def schedule_of(planner: Callable[..., Any], topology: Topology, kind: str) -> Any:
    collective = Collective(kind, topology.ranks, (), (0,) if kind == "broadcast" else ())
    return next(planner(Request(topology, collective), pieces=1))


def bench_optimum() -> dict[str, Any]:
    rows, found = [], {}
    for boxes, goal in ((32, 0.1), (128, 2.0)):
        topology = antiphon.topology(A100.format(boxes))
        collective = Collective("allgather", topology.ranks)
        took = medians(lambda t=topology, c=collective: bound(t, c))["cpu_seconds"]
        rows.append([topology.ranks, took, goal])
        found[str(topology.ranks)] = took
    print("\nthe optimum of allgather, proved\n")
    print_table(["GPUs", "CPU s", "goal"], rows)
    return {"optimum": found}


def bench_forests() -> dict[str, Any]:
    rows, found = [], {}
    for spec, goal in FORESTS.items():
        topology = antiphon.topology(spec)
        whole = medians(lambda t=topology: schedule_of(trees, t, "allgather"), 3)["cpu_seconds"]
        schedule = schedule_of(trees, topology, "allgather")
        told = schedule.provenance["found"]
        found[spec] = {"cpu_seconds": whole, "goal": goal, **told}
        proved = "bound" if told["optimal"] else "packing" if told["best_of_its_kind"] else "no"
        few = told["trees"], told["deepest"], proved
        rows.append([spec, topology.ranks, whole, goal or "", RELEASED.get(spec, ""), *few])
        print(*rows[-1], flush=True)
    print("\na whole allgather forest, laid out as a schedule; proved: it meets the bound, or no packing is faster\n")
    print_table(["machine", "GPUs", "CPU s", "goal", "released", "trees per root", "deepest", "proved"], rows)
    return {"forests": found}


def bench_growth() -> dict[str, Any]:
    """The same boxes with one link degraded: no symmetry helps, so that Edmonds' forests must do."""
    rows, found = [], {}
    for boxes in (2, 4, 8, 16):
        topology = antiphon.topology(A100.format(boxes))
        worse = degrade(topology, links=[0], slower=2)
        demand = dict.fromkeys(range(worse.ranks), 1)
        took = medians(lambda t=worse, d=demand: pack_forests(t, d, tuple(d)), 1)["cpu_seconds"]
        result = pack_forests(worse, demand, tuple(demand))
        deepest = None if result is None else max(tree.depth for tree in result[1])
        rows.append([worse.ranks, took, "refused" if result is None else len(result[1]), deepest])
        found[str(worse.ranks)] = {"cpu_seconds": took, "deepest": deepest}
        print(*rows[-1], flush=True)
    print("\nA100 boxes without symmetry\n")
    print_table(["GPUs", "CPU s", "trees", "deepest"], rows)
    return {"growth": found}


def bench_dgx1() -> dict[str, Any]:
    machines = [one.machine for name in ("dgx1v", "dgx1p") for one in unique_allocations(antiphon.topology(name))]
    found = {}
    for planner in (trees, blink):
        took = medians(
            lambda p=planner: [schedule_of(p, t, kind) for t in machines for kind in ("broadcast", "allreduce")], 3
        )["cpu_seconds"]
        found[planner.__name__] = took
        print(f"{len(machines)} allocations of DGX-1, broadcast and allreduce, by {planner.__name__}: {took:.2f} CPU s")
    print("goal: 10")
    return {"dgx1": found}


BENCHES = {"optimum": bench_optimum, "forests": bench_forests, "dgx1": bench_dgx1, "growth": bench_growth}


def main(asked: list[str]) -> None:
    print_machine()
    data: dict[str, Any] = {}
    for name in asked or BENCHES:
        data |= BENCHES[name]()
    if set(data) == set(BENCHES) or not asked:
        save(Path(__file__).stem.removeprefix("bench_"), data)


if __name__ == "__main__":
    main(sys.argv[1:])
