"""How near the best plans come to the lower bound by size, under model alpha-beta.

Tunes machines x 8 collectives x 8 sizes, and keeps the gap of the best plan of every case in results/by_size.json. A
case that is already kept is skipped. Prints the median and the worst gap for each size.

Run: python bench/bench_by_size.py [SPEC ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from _common import in_child, keep, kept, print_machine, print_table

from antiphon.units import format_size

MACHINES = (
    "ring:ranks=8", "star:ranks=8", "full:ranks=6", "hypercube:ranks=8", "mesh:dims=3x4", "torus:dims=4x4", "dgx1v",
    "hgx-h100", "dgx-a100", "cluster:box=hgx-h100,boxes=2",
)  # fmt: skip
COLLECTIVES = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")
SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 23, 1 << 26, 1 << 30)


def tune_case(collective: str, spec: str) -> None:
    """Print the gap of the best plan and its planner, by size, as JSON."""
    from antiphon.select import tune

    tuned = tune(collective, spec, nbytes=SIZES, model="alpha-beta")
    best = {}
    for size in SIZES:
        seconds, planner = min((c.seconds[size], c.planner) for c in tuned.candidates if size in c.seconds)
        best[str(size)] = {"gap": tuned.limits[collective].gap(size, seconds), "planner": planner}
    print(json.dumps(best))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", default=MACHINES)
    specs = parser.parse_args().specs
    print_machine()
    for spec in specs:
        for collective in COLLECTIVES:
            key = f"{collective} {spec}"
            if key not in kept("by_size"):
                keep("by_size", {key: in_child(__file__, "case", collective, spec)})
                print(key, flush=True)
    cases = kept("by_size")
    rows = []
    for size in SIZES:
        gaps = [(case[str(size)]["gap"], key) for key, case in cases.items()]
        worst = max(gaps)
        rows.append([format_size(size), statistics.median(gap for gap, _ in gaps), *worst])
    print_table(["size", "median gap", "worst", "case"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["case"]:
        tune_case(*sys.argv[2:4])
    else:
        main()
