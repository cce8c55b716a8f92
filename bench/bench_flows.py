"""How fast the flow-level simulator is: prepared once, then simulated a size at a time, on GenTree's networks.

Run: python bench/bench_flows.py. Each row is measured in a process of its own, in CPU seconds: planning is not
counted. The targets are for 512 servers. `growth` is the exponent of simulation time in messages, against the row of
the same plan before; `us/moment` is what a moment costs at which flows begin or end.
"""

from __future__ import annotations

import json
import math
import sys
import time

from _common import in_child, peak_mb, print_machine, print_table, save

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.cost import prepare
from antiphon.registry import table
from antiphon.topologies import topology

TARGET = 30.0  # CPU seconds, prepared and simulated
NBYTES = 4 * 10**8
MACHINES = {
    "": ("tree:fanouts=16x8", "tree:fanouts=16x16", "sym512"),
    "genmodel-table5": ("sym512", "asy384", "cdc384"),
}
PLANS = ("ring", "colocated-ps", "hierarchical-ring", "halving-doubling", "gentree")


def child(machine: str, planner: str, profile: str) -> None:
    here = topology(machine)
    entry = table("planner")[planner]
    made = next(iter(entry.load()(Request(here, Collective("allreduce", here.ranks), nbytes=NBYTES))))
    before = time.process_time()
    ready = prepare("flows", made, here, profile=profile or None)
    prepared = time.process_time()
    found = ready.run(NBYTES)  # type: ignore[attr-defined]
    done = time.process_time()
    print(json.dumps(
        {"ranks": here.ranks, "rows": made.transfers, "steps": made.steps, "messages": len(found.sent),
         "moments": found.count, "prepare": prepared - before, "simulate": done - prepared, "seconds": found.last,
         "peak_mb": peak_mb()}
    ))  # fmt: skip


def main() -> None:
    print_machine()
    results, rows, missed, last = [], [], [], {}
    for profile, machines in MACHINES.items():
        for planner in PLANS:
            for machine in machines:
                print(f"{planner} on {machine} ...", file=sys.stderr, flush=True)
                one = in_child(__file__, machine, planner, profile)
                growth = ""
                if (planner, profile) in last:
                    messages, seconds = last[planner, profile]
                    if abs(math.log(one["messages"] / messages)) > 0.1:
                        growth = f"{math.log(one['simulate'] / seconds) / math.log(one['messages'] / messages):.2f}"
                last[planner, profile] = (one["messages"], one["simulate"])
                results.append({"machine": machine, "planner": planner, "profile": profile, **one})
                rows.append(
                    [f"{planner} {machine}{' *' if profile else ''}", one["messages"], one["moments"], one["prepare"],
                     one["simulate"], growth, one["simulate"] / one["moments"] * 1e6, round(one["peak_mb"])]
                )  # fmt: skip
                if machine == "sym512" and one["prepare"] + one["simulate"] > TARGET:
                    missed.append(f"{planner}: {one['prepare'] + one['simulate']:.1f} s (target {TARGET})")
    print_table(["plan (*: genmodel-table5)", "messages", "moments", "prepare s", "simulate s", "growth",
                 "us/moment", "peak MB"], rows)  # fmt: skip
    for line in missed:
        print(f"MISSED {line}")
    save("flows", {"rows": results})


if __name__ == "__main__":
    if len(sys.argv) == 4:
        child(*sys.argv[1:])
    else:
        main()
