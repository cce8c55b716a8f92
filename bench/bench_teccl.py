"""Finishing times beside those that TE-CCL published (SIGCOMM 2024): 154 solved cases on NDv2 and DGX-2 boxes.

Run: python bench/bench_teccl.py [ndv2] [dgx2]

`data/teccl.csv` has the finishing times of TE-CCL's repository (teccl/examples/experiments/output_provided): each case
is one machine, collective and size, solved with an epoch (time step) as long as a chunk takes on the fastest or slowest
link, or stopped early. The machines are built as its topologies/ndv2.py and dgx2.py build them, slips included: with
two NDv2 boxes GPU 0 counts as a switch, so 15 ranks take part; "early stop" on DGX-2 has chunks twice as large.

Both columns follow the same rules (`finish`): a link carries one message after the other at its bandwidth, which then
arrives after the link's latency; switches copy, and forward a message once all of it is there. What differs:

- TE-CCL counts whole epochs and leaves a latency out that is below a tenth of an epoch, so its time may be below what
  its own machine allows. `bound` is the lower bound of every schedule, latencies included.
- TE-CCL sends each block whole; ours may be cut into pieces.

`ours` is the best plan of the planners that are quick; `sccl`, which counts steps and rounds, is not among them. 150 of
154 cases are met or beaten. The other four, allgathers of 16 MB or more on DGX-2, are below the bound: TE-CCL leaves
latencies out there. At sizes where latency and bandwidth both matter the best plans are those of `dispatch`.

A second table has ours beside the bound for the collectives that TE-CCL's cases lack, too: at 1 KB, 1 MB and 1 GB. It
is kept after each collective; `cpu_seconds` are those of all three sizes.
"""

from __future__ import annotations

import csv
import sys
import time
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from _common import keep, print_machine, print_table

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.routes import resolve
from antiphon.core.schedule import COPY, Schedule
from antiphon.core.topology import Ability, Link, LinkType, Topology, both_ways, build
from antiphon.core.transform import expand
from antiphon.core.verify import verify
from antiphon.cost import prepare
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.model_bound import model_bound
from antiphon.errors import AntiphonError
from antiphon.registry import call, find, table

DATA = Path(__file__).parent / "data" / "teccl.csv"
PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
SIZES = {"1KB": 10**3, "1MB": 10**6, "1GB": 10**9}
MOST_ROWS = 2**18  # of a schedule with all pieces
NEAR = 1.0005  # "met": equal up to the four digits that are compared
_GB, _US = 10**9, 1e-6
NVLINK, NVLINK2 = (LinkType(f"nvlink{n}", Fraction(25 * n * _GB), 0.7 * _US) for n in (1, 2))
CROSS = LinkType("infiniband", Fraction(25 * _GB, 2), 1.3 * _US)
NVSWITCH = LinkType("nvswitch", Fraction(125 * _GB), 0.35 * _US)
DGX2_CROSS = LinkType("infiniband", Fraction(25 * _GB, 2), 2.6 * _US)
# links within an NDv2 box, both ways
DOUBLE = [(0, 1), (0, 4), (1, 3), (2, 3), (4, 5), (5, 7), (6, 7), (2, 6)]
SINGLE = [(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)]
COPIES = Ability(multicast=True)


def ndv2(boxes: int) -> Topology:
    """NDv2 boxes: two joined by a link each way, four through a switch."""
    first = 0 if boxes == 2 else 1  # number of the first GPU; node 0 is a switch, or counts as one
    links: list[Link] = []
    for box in range(boxes):
        for pairs, kind in ((DOUBLE, NVLINK2), (SINGLE, NVLINK)):
            links += both_ways([(first + 8 * box + a, first + 8 * box + b) for a, b in pairs], kind)
        if boxes > 2:
            links += [(8 * box + 1, 0, CROSS), (0, 8 * box + 2, CROSS)]
    if boxes == 2:
        links += [(8, 1, CROSS), (0, 9, CROSS)]
    nodes = 8 * boxes + first
    number = {node: node - 1 if node else nodes - 1 for node in range(nodes)}  # switches come last
    return build(
        f"NDv2 x {boxes}", nodes - 1, [(number[a], number[b], kind) for a, b, kind in links], switches=1,
        abilities=[COPIES],
    )  # fmt: skip


def dgx2() -> Topology:
    """Two DGX-2: eight links each way between boxes, from the odd to the even GPUs."""
    links: list[Link] = []
    for box in (0, 1):
        links += both_ways([(16 * box + gpu, 32 + box) for gpu in range(16)], NVSWITCH)
        links += [(16 * box + gpu, 16 * (1 - box) + gpu - 1, DGX2_CROSS) for gpu in range(1, 16, 2)]
    return build("DGX2 x 2", 32, links, switches=2, abilities=[COPIES, COPIES])


class Case(NamedTuple):
    """A published case: `chunk` bytes per block, seconds."""

    machine: str
    collective: str
    epochs: str
    total: str
    chunk: float
    epoch: float
    finish: float


def published() -> list[Case]:
    """Return the published cases."""
    with DATA.open() as file:
        return [
            Case(r["machine"], r["collective"], r["epochs"], r["total"], float(r["chunk_bytes"]),
                 float(r["epoch_us"]) * 1e-6, float(r["finish_us"]) * 1e-6)
            for r in csv.DictReader(file)
        ]  # fmt: skip


def candidates(topology: Topology, collective: Collective, sizes: list[int]) -> list[Schedule]:
    """Return the plans of every planner that is quick, in several numbers of pieces."""
    schedules: dict[object, Schedule] = {}
    for name, entry in table("planner").items():
        if collective.kind not in entry.can.collectives or entry.can.process:
            continue
        for options in entry.can.sweep or ({},):
            request = Request(topology, collective, budget=20, nbytes=sizes[0], also=(*sizes[1:], None))
            try:
                for schedule in call("planner", name, find("planner", name).load(), options, request):
                    rows = schedule.transfers
                    for pieces in (1,) if entry.can.timed else PIECES:  # in time: the size decides on pieces
                        if rows * pieces <= MOST_ROWS or pieces == 1:
                            # the greatest number of pieces decides for plans with several
                            schedules.setdefault(
                                (name, rows, schedule.steps, pieces, schedule.step.tobytes(), schedule.src.tobytes()),
                                replace(schedule, pieces=pieces),
                            )
            except AntiphonError:
                continue
    return list(schedules.values())


def finish(schedule: Schedule, topology: Topology, nbytes: float) -> float:
    """Return when the last message has arrived, in seconds, by the rules above. Written apart from the cost models."""
    fine = expand(schedule).sorted()
    paths = resolve(topology, fine.src, fine.dst, fine.route, fine.routes)
    weights, denominator = fine.chunks.weights(fine.collective)
    joints = fine.joint.tolist() if fine.joint is not None else [-1] * fine.transfers
    speed = [float(topology.bandwidth(link)) for link in range(topology.links)]
    latency = [float(topology.types[topology.link_type[link]].latency) for link in range(topology.links)]
    # (chunk, rank, slot) -> since when its value is there; at the beginning: nothing recorded
    there: dict[tuple[int, int, int], float] = {}
    arrived: dict[tuple[int, int, int], list[tuple[int, float]]] = defaultdict(list)  # in this step: operation, time
    free: dict[int, float] = defaultdict(float)
    copied: dict[tuple[int, int, int], float] = {}  # a joint's message crosses each link once
    columns = (fine.step, fine.chunk, fine.op, fine.src, fine.slot("src"), fine.dst, fine.slot("dst"), paths.route)
    step_before = 0
    for step, chunk, op, src, src_slot, dst, dst_slot, route, joint in zip(
        *(column.tolist() for column in columns), joints, strict=True
    ):
        if step > step_before:  # rows read what earlier steps wrote
            write(there, arrived)
            step_before = step
        size = nbytes * float(weights[chunk]) / denominator
        now = there.get((chunk, src, src_slot), 0.0)
        for link in paths.table[route] if route >= 0 else ():
            key = (joint, chunk, link)
            if joint >= 0 and key in copied:
                now = copied[key]
                continue
            free[link] = max(now, free[link]) + size / speed[link]
            now = copied[key] = free[link] + latency[link]
        arrived[chunk, dst, dst_slot].append((op, now))
    write(there, arrived)
    return max(there[cell] for cell in there if cell[2] == 0)


def write(
    there: dict[tuple[int, int, int], float], arrived: dict[tuple[int, int, int], list[tuple[int, float]]]
) -> None:
    """Put what arrived in a step where it belongs: a sum is there when all of it is, a copy when it comes first."""
    for cell, messages in arrived.items():
        times = [now for _, now in messages]
        if any(op == COPY for op, _ in messages):
            there[cell] = min(times)
        else:
            there[cell] = max(there.get(cell, 0.0), *times)
    arrived.clear()


def best_plans(topology: Topology, kind: str, chunks: set[float]) -> dict[float, tuple[float, float, str]]:
    """Return by bytes of a block: seconds of the best plan, the bound on seconds, the plan's name."""
    collective = Collective(kind, topology.ranks)
    bytes_of = {chunk: max(1, round(chunk * topology.ranks)) for chunk in sorted(chunks)}
    schedules = candidates(topology, collective, sorted(set(bytes_of.values())))
    prices = [prepare("critical-path", schedule, topology) for schedule in schedules]
    limit_of = model_bound("critical-path", {}, BoundEvaluator(topology, collective, bound(topology, collective)))
    assert limit_of is not None
    ours: dict[float, tuple[float, float, str]] = {}
    for chunk, nbytes in bytes_of.items():
        order = sorted(range(len(schedules)), key=lambda i: float(prices[i](nbytes).seconds))[:3]
        times = [(finish(schedules[i], topology, chunk * topology.ranks), i) for i in order]
        seconds, i = min(times)
        limit = float(limit_of(nbytes))
        assert not verify(schedules[i], topology).fault
        assert seconds >= limit / NEAR
        ours[chunk] = seconds, limit, f"{schedules[i].provenance.get('planner', '?')} x {schedules[i].pieces}"
    return ours


def compare(topology: Topology, kind: str, cases: list[Case]) -> list[dict[str, object]]:
    """Return a row per published case: ours, the bound, theirs."""
    ours = best_plans(topology, kind, {case.chunk for case in cases})
    return [
        {"machine": case.machine, "collective": kind, "epochs": case.epochs, "total": case.total,
         "ours_us": ours[case.chunk][0] * 1e6, "bound_us": ours[case.chunk][1] * 1e6, "teccl_us": case.finish * 1e6,
         "plan": ours[case.chunk][2]}
        for case in cases
    ]  # fmt: skip


def compare_bounds(topology: Topology, kind: str) -> list[dict[str, object]]:
    """Return a row per size of SIZES: ours and the bound."""
    begin = time.process_time()
    ours = best_plans(topology, kind, {nbytes / topology.ranks for nbytes in SIZES.values()})
    cpu_seconds = round(time.process_time() - begin, 1)
    return [
        {"machine": topology.name, "collective": kind, "total": total, "ours_us": seconds * 1e6,
         "bound_us": limit * 1e6, "plan": name, "cpu_seconds": cpu_seconds}
        for total, (seconds, limit, name) in zip(SIZES, ours.values(), strict=True)
    ]  # fmt: skip


def main() -> None:
    """Compare all cases, print a table, save the figures."""
    print_machine()
    chosen = [name.lower() for name in sys.argv[1:]]
    machines = {"NDv2 x 2": ndv2(2), "NDv2 x 4": ndv2(4), "DGX2 x 2": dgx2()}
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in published():
        if not chosen or any(case.machine.lower().startswith(name) for name in chosen):
            groups[case.machine, case.collective].append(case)
    rows = [row for (name, kind), cases in groups.items() for row in compare(machines[name], kind, cases)]
    print_table(
        ["machine", "collective", "epochs", "total", "ours us", "bound us", "TE-CCL us", "TE-CCL / ours"],
        [[r["machine"], r["collective"], r["epochs"], r["total"], f"{r['ours_us']:.5g}", f"{r['bound_us']:.5g}",
          f"{r['teccl_us']:.5g}", f"{r['teccl_us'] / r['ours_us']:.3f}"] for r in rows],
    )  # fmt: skip
    met = [r for r in rows if r["ours_us"] <= NEAR * r["teccl_us"]]
    below = [r for r in rows if r["teccl_us"] < r["bound_us"] and r not in met]
    print(f"{len(met)} of {len(rows)} met or beaten; of the others {len(below)} are below the bound with latencies")
    chosen_machines = [
        m for name, m in machines.items() if not chosen or any(name.lower().startswith(c) for c in chosen)
    ]
    table_rows = {" ".join(map(str, (r["machine"], r["collective"], r["epochs"], r["total"]))): r for r in rows}
    keep("teccl", table_rows)
    limits: list[dict[str, object]] = []
    for m in chosen_machines:
        for kind in ("allgather", "alltoall", "allreduce"):
            of_kind = compare_bounds(m, kind)
            limits += of_kind
            keep("teccl", {f"bound {m.name} {kind} {r['total']}": r for r in of_kind})
    print_table(
        ["machine", "collective", "total", "ours us", "bound us", "ours / bound", "plan"],
        [[r["machine"], r["collective"], r["total"], f"{r['ours_us']:.5g}", f"{r['bound_us']:.5g}",
          f"{r['ours_us'] / r['bound_us']:.3f}", r["plan"]] for r in limits],
    )  # fmt: skip


if __name__ == "__main__":
    main()
