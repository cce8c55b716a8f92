"""How long GenTree takes to plan, and how large its plans are. Growth with the number of servers.

Run: python bench/bench_gentree.py. CPU seconds of one run each, in a process of its own so that memory is its own;
reading the machine, choosing, laying out rows and routes, for allreduce; imports and making the machine are not
counted. Verifying is told beside. Goals: 512 servers in 10 s, 4096 in 120 s.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from _common import in_child, peak_mb, print_machine, print_table, save

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.verify import verify
from antiphon.cost import Profile, as_profile
from antiphon.cost.profile import Incast
from antiphon.planners.switchtrees.gentree import gentree

CASES = {  # CPU seconds that each may take
    "sym384": None, "asy384": None, "cdc384": None, "sym512": 10, "star:ranks=512": 10,
    "tree:fanouts=8x8x8": 10, "tree:fanouts=32x(16*64+16*32)": None, "tree:fanouts=64x32": None,
    "tree:fanouts=128x32": 120, "tree:fanouts=16x16x16": 120, "star:ranks=4096": 120,
}  # fmt: skip
FLAT = "tree:fanouts=128x32 flat"  # no incast: co-located PS among all, past the switches; the most routes
NBYTES = 4 * 10**8
MOST_VERIFIED = 2048  # servers


def profile_of(spec: str, topology: Any) -> Profile | None:
    """Table 5's, by the kinds of link that there are; none for the flat case."""
    table5 = as_profile("genmodel-table5")
    if spec == FLAT:
        return None
    kinds = {t.kind for t in topology.types}
    if "ethernet" in kinds:
        return table5
    incast = {kind: Incast(1e-12, 9) for kind in kinds}
    return Profile(incast=incast, gamma=table5.gamma, delta=table5.delta)


def one(spec: str) -> dict[str, Any]:
    topology = antiphon.topology(spec.removesuffix(" flat"))
    wanted = Collective("allreduce", topology.ranks)
    profile = profile_of(spec, topology)
    began = time.process_time()
    schedule = next(gentree(Request(topology, wanted, nbytes=NBYTES, profile=profile)))
    took, most = time.process_time() - began, peak_mb()
    told = schedule.provenance["found"]["plan"]
    found: dict[str, Any] = {
        "servers": topology.ranks, "cpu_seconds": took, "rows": schedule.transfers, "steps": schedule.steps,
        "routes": len(schedule.routes), "peak_mb": most, "plan": ", ".join(dict.fromkeys(told.values())),
    }  # fmt: skip
    if topology.ranks <= MOST_VERIFIED:
        began = time.process_time()
        assert verify(schedule, topology).ok
        found["verify_cpu_seconds"] = time.process_time() - began
    return found


def main() -> None:
    print_machine()
    results: dict[str, Any] = {}
    rows = []
    for spec, goal in {**CASES, FLAT: 120}.items():
        found = results[spec] = {**in_child(__file__, spec), "goal": goal}
        keys = ("servers", "cpu_seconds", "rows", "steps", "peak_mb", "plan")
        rows.append([spec, *(found[key] for key in keys), goal or ""])
        print(*rows[-1], flush=True)
    print()
    print_table(["machine", "servers", "CPU s", "rows", "steps", "peak MB", "plans", "goal"], rows)
    save("gentree", {"cases": results})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1])))
    else:
        main()
