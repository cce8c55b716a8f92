"""How fast the LogGP simulator is: from a schedule to seconds, preparation and simulation apart, in CPU seconds.

Run: python bench/bench_loggp.py. Each row is a process of its own that has simulated something small before, so
compiled code is loaded; what the first use costs is measured last, with an empty cache. Ranks are around a switch, four
to a host (or one) by their places: building that is not counted, and planning is shown apart. `M/s`: million messages
(or, for packets, packets between nodes) per second of simulation; `whole`: the same, preparation included.
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


@dataclass(frozen=True)
class Row:
    """A plan, a model, a size; `most`: goals, CPU seconds by what is measured, MB of memory, or least of a rate."""

    planner: str
    ranks: int
    per_host: int
    nbytes: int
    model: str
    kind: str = "allgather"
    k: int = 0
    record: bool = False
    most: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        k = f" k={self.k}" if self.k else ""
        return f"{self.planner}{k} {self.kind} {self.ranks}/{self.per_host} {self.model.partition(':')[2] or 'message'}"


# ring 64: PICCL takes 87 s. ring 512: LogGOPSim 0.33 s, 0.79 M messages/s; recursive multiplying on 4096: 21 s.
ROWS = (
    Row("ring", 64, 4, 64 * 2 * MIB, "loggp:fidelity=packet", most=(("whole", 0.6),)),
    Row("ring", 64, 1, 64 * 2 * MIB, "loggp:fidelity=packet", most=(("whole", 0.6),)),
    Row("ring", 512, 4, 512 * 65536, "loggp", most=(("least rate", 3e6),)),
    Row("ring", 1619, 4, 1619 * 65536, "loggp", most=(("least rate", 3e6),)),
    Row("ring", 4096, 4, 4096 * 65536, "loggp", most=(("whole", 6.0), ("peak_mb", 4096.0))),
    Row("ring", 512, 4, 512 * 65536, "loggp", record=True),
    Row("recmult", 4096, 4, 4096 * 65536, "loggp", k=64, most=(("plan", 6.0), ("whole", 1.0))),
    Row("recmult", 4096, 4, 4096 * 65536, "loggp", kind="allreduce", k=64, most=(("whole", 1.0),)),
    Row("recmult", 4096, 4, 4096 * 65536, "loggp:order=data", kind="allreduce", k=64),
    Row("ring", 512, 4, 512 * 65536, "loggp:contention=off"),
    Row("ring", 4096, 4, 4096 * 65536, "loggp:contention=off", most=(("least rate", 30e6),)),
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
    begin = time.process_time()
    made = planned(here, row)
    before = time.process_time()
    ready: Any = prepare(row.model, made, here, profile=PROFILE)
    prepared = time.process_time()
    found = ready.run(row.nbytes, row.record)
    done = time.process_time()
    count = len(ready.work)
    if "packet" in row.model:
        node, sent = ready.work.node, ready.work.sent
        size = ready.work.share[ready.work.klass] * row.nbytes
        count = int(np.ceil(size / ready.options.limits.packet)[node[sent.src] != node[sent.dst]].sum())
    print(json.dumps(
        {"messages": len(ready.work), "counted": count, "rows": made.transfers, "plan": before - begin,
         "prepare": prepared - before, "simulate": done - prepared, "whole": done - before, "seconds": found.seconds,
         "done": found.done, "peak_mb": peak_mb()}
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


def goals(row: Row, one: dict[str, Any]) -> list[str]:
    missed = []
    for what, goal in row.most:
        if what == "least rate":
            rate = one["counted"] / one["simulate"]
            if rate < goal:
                missed.append(f"{row.name}: {rate / 1e6:.2f} M/s (goal {goal / 1e6:g})")
        elif one[what] > goal:
            missed.append(f"{row.name}: {what} {one[what]:.2f} (goal {goal:g})")
    return missed


def main() -> None:
    print_machine()
    results, rows, missed = [], [], []
    for number, row in enumerate(ROWS):
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        one = in_child(__file__, number)
        results.append({"row": row.name, "record": row.record, **one})
        missed += goals(row, one)
        if one["done"] != one["messages"]:
            missed.append(f"{row.name}: {one['done']} of {one['messages']} messages were done")
        rate, whole = (one["counted"] / one[what] / 1e6 for what in ("simulate", "whole"))
        rows.append([row.name + (" log" if row.record else ""), one["counted"], one["plan"], one["prepare"],
                     one["simulate"], rate, whole, round(one["peak_mb"])])  # fmt: skip
    print_table(["plan, ranks/per host, model", "counted", "plan s", "prepare s", "simulate s", "M/s", "whole M/s",
                 "peak MB"], rows)  # fmt: skip
    names = [row.name for row in ROWS]
    small, great = (results[names.index(f"ring allgather {ranks}/4 message")] for ranks in (512, 1619))
    growth = great["whole"] / great["messages"] / (small["whole"] / small["messages"])
    print(f"\nten times the messages (ring 512 to ring 1619): {growth:.2f} times the cost per message")
    if growth > GROWTH:
        missed.append(f"cost per message grows by {growth:.2f} (goal {GROWTH})")
    compiled = first_use()
    for when, seconds in compiled.items():
        print(f"{when}: {seconds:.2f} s")
    for line in missed:
        print(f"MISSED {line}")
    save("loggp", {"rows": results, "growth": growth, "first_use": compiled})


if __name__ == "__main__":
    if len(sys.argv) == 2:
        child(int(sys.argv[1]))
    else:
        main()
