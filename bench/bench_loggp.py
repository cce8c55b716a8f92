"""How fast the LogGP simulator is: from a schedule to seconds, preparation and simulation apart, in CPU seconds.

Run: python bench/bench_loggp.py. Each row is a process of its own that has simulated something small before, so
compiled code is loaded; what the first use costs is measured last, with an empty cache. Ranks are around a switch, four
to a host (or one) by their places: building that is not counted, and planning is shown apart. `M/s`: million messages
(or, for packets, packets between nodes) per second of simulation; `whole`: from the schedule on, preparation included;
`in all`: from the machine on, planning included. What was reached stands beside each goal at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from _common import in_child, peak_mb, print_machine, print_table, save

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import prepare
from antiphon.registry import table
from antiphon.topologies import topology

PROFILE = "loggp-delta"
MIB = 2**20
GROWTH = 1.3  # cost per message at ten times as many
UNITS = {"plan": "s", "whole": "s", "in all": "s", "wall": "s", "peak MB": "MB", "M/s": "M/s", "whole M/s": "M/s"}
AT_LEAST = ("M/s", "whole M/s")


@dataclass(frozen=True)
class Row:
    """A plan, a model, a size; `goals`: the most (of a rate the least) by what is measured, a name of UNITS: CPU
    seconds, seconds in all by the clock on the wall, which says much only where nothing else runs, memory, or a rate.
    """

    planner: str
    ranks: int
    per_host: int
    nbytes: int
    model: str
    kind: str = "allgather"
    k: int = 0
    record: bool = False
    goals: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        k = f" k={self.k}" if self.k else ""
        return f"{self.planner}{k} {self.kind} {self.ranks}/{self.per_host} {self.model.partition(':')[2] or 'message'}"


IN_ALL = (("in all", 6.0), ("wall", 6.0), ("peak MB", 4096.0))

# ring 64: PICCL takes 87 s. ring 512: LogGOPSim 0.33 s, 0.79 M messages/s; recursive multiplying on 4096: 21 s.
ROWS = (
    Row("ring", 64, 4, 64 * 2 * MIB, "loggp:fidelity=packet", goals=(("whole", 0.6),)),
    Row("ring", 64, 1, 64 * 2 * MIB, "loggp:fidelity=packet", goals=(("whole", 0.6),)),
    Row("ring", 512, 4, 512 * 65536, "loggp", goals=(("whole M/s", 4.0),)),
    Row("ring", 1619, 4, 1619 * 65536, "loggp", goals=(("M/s", 3.0),)),
    Row("ring", 4096, 4, 4096 * 65536, "loggp", goals=IN_ALL),
    Row("ring", 4096, 4, 4096 * 65536, "loggp", kind="allreduce", goals=IN_ALL),
    Row("ring", 512, 4, 512 * 65536, "loggp", record=True),
    Row("recmult", 4096, 4, 4096 * 65536, "loggp", k=64, goals=(("plan", 6.0), ("whole", 1.0))),
    Row("recmult", 4096, 4, 4096 * 65536, "loggp", kind="allreduce", k=64, goals=(("whole", 1.0),)),
    Row("recmult", 4096, 4, 4096 * 65536, "loggp:order=data", kind="allreduce", k=64),
    Row("ring", 512, 4, 512 * 65536, "loggp:contention=off"),
    Row("ring", 4096, 4, 4096 * 65536, "loggp:contention=off"),
)


def hosts_of(ranks: int, per_host: int) -> Topology:
    made = topology(f"star:ranks={ranks}")
    places = tuple(f"host{rank // per_host}/gpu{rank % per_host}" for rank in range(ranks))
    return replace(made, places=places + made.places[ranks:])


def planned(here: Topology, row: Row) -> Schedule:
    options: dict[str, Any] = {"k": row.k} if row.k else {"directions": 1}
    made = table("planner")[row.planner].load()(
        Request(here, Collective(row.kind, here.ranks), nbytes=row.nbytes), **options
    )
    return next(iter(made))  # type: ignore[no-any-return]


def child(number: int) -> None:
    row = ROWS[number]
    small = hosts_of(8, row.per_host)
    warm: Any = prepare(row.model, planned(small, replace(row, k=min(row.k, 2))), small, profile=PROFILE)
    for record in (False, True):
        warm.run(1000, record)
    here = hosts_of(row.ranks, row.per_host)
    clock, begin = time.perf_counter(), time.process_time()
    made = planned(here, row)
    before = time.process_time()
    ready: Any = prepare(row.model, made, here, profile=PROFILE)
    prepared = time.process_time()
    found = ready.run(row.nbytes, row.record)
    done, wall = time.process_time(), time.perf_counter() - clock
    count = len(ready.work)
    if "packet" in row.model:
        node, sent = ready.work.node, ready.work.sent
        size = ready.work.share[ready.work.cost_class] * row.nbytes
        count = int(np.ceil(size / ready.options.limits.packet)[node[sent.src] != node[sent.dst]].sum())
    print(json.dumps(
        {"messages": len(ready.work), "counted": count, "rows": made.transfers, "plan": before - begin,
         "prepare": prepared - before, "simulate": done - prepared, "whole": done - before, "in all": done - begin,
         "wall": wall, "seconds": found.seconds, "done": found.done, "peak MB": peak_mb(),
         "M/s": count / (done - prepared) / 1e6, "whole M/s": count / (done - before) / 1e6}
    ))  # fmt: skip


def first_use() -> dict[str, float]:
    """CPU seconds of a small prediction at the first use, with nothing compiled, and at the second."""
    out = {}
    code = (
        "import time; begin = time.process_time()\n"
        "from antiphon import plan, predict\n"
        "made = plan('allgather', 'delta:nodes=2', planner='kring')\n"
        "before = time.process_time()\n"
        "for model in ('loggp:fidelity={0}',): predict(made, '1MB', model=model, profile='loggp-delta')\n"
        "print(time.process_time() - before)"
    )
    with tempfile.TemporaryDirectory() as cache:
        for when in ("first use", "second use"):
            for fidelity in ("message", "packet"):
                ran = subprocess.run(
                    [sys.executable, "-c", code.format(fidelity)], capture_output=True, text=True, check=True,
                    env={**os.environ, "NUMBA_CACHE_DIR": cache},
                )  # fmt: skip
                out[f"{when}, {fidelity}"] = float(ran.stdout)
    return out


@dataclass(frozen=True)
class Reached:
    """What was measured, beside its goal: at most so much, or at least."""

    row: str
    what: str
    found: float
    goal: float
    unit: str = ""
    least: bool = False

    @property
    def missed(self) -> bool:
        return self.found < self.goal if self.least else self.found > self.goal

    def cells(self) -> list[object]:
        bound = f"{'>=' if self.least else '<='} {self.goal:g}"
        return [self.row, self.what, f"{self.found:.4g}", bound, self.unit, "MISSED" if self.missed else ""]


def reached(row: Row, one: dict[str, Any]) -> list[Reached]:
    found = [Reached(row.name, what, one[what], goal, UNITS[what], what in AT_LEAST) for what, goal in row.goals]
    return [*found, Reached(row.name, "messages done", one["done"], one["messages"], least=True)]


def main() -> None:
    print_machine()
    results, rows, found = [], [], []
    for number, row in enumerate(ROWS):
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        one = in_child(__file__, number)
        results.append({"row": row.name, "record": row.record, **one})
        found += reached(row, one)
        rows.append([row.name + (" log" if row.record else ""), one["counted"], one["plan"], one["prepare"],
                     one["simulate"], one["in all"], one["wall"], one["M/s"], one["whole M/s"],
                     round(one["peak MB"])])  # fmt: skip
    print_table(["plan, ranks/per host, model", "counted", "plan s", "prepare s", "simulate s", "in all s", "wall s",
                 "M/s", "whole M/s", "peak MB"], rows)  # fmt: skip
    names = [row.name for row in ROWS]
    small, great = (results[names.index(f"ring allgather {ranks}/4 message")] for ranks in (512, 1619))
    growth = great["whole"] / great["messages"] / (small["whole"] / small["messages"])
    print(f"\nten times the messages (ring 512 to ring 1619): {growth:.2f} times the cost per message")
    found.append(Reached("ring 512 to ring 1619", "growth of the cost per message", growth, GROWTH))
    compiled = first_use()
    for when, seconds in compiled.items():
        print(f"{when}: {seconds:.2f} s")
    print()
    print_table(["plan", "what", "reached", "goal", "unit", ""], [one.cells() for one in found])
    save("loggp", {"rows": results, "growth": growth, "first_use": compiled, "goals": [vars(one) for one in found]})


if __name__ == "__main__":
    if len(sys.argv) == 2:
        child(int(sys.argv[1]))
    else:
        main()
