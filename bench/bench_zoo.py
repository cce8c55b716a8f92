"""How near to the bound the best plan comes: machines x collectives x sizes, by `tune` with model alpha-beta.

Run: python bench/bench_zoo.py [--kinds gather,alltoall] [--sizes 1GB] [--part 0/8] [SPEC ...]. Without specs all
machines of the catalogue of up to 64 ranks, and clusters of 2, 4 and 8 boxes in three fabrics; a part of them with
--part, or some --planners alone, for runs that must be short. Told is best plan / bound, for every machine and size;
what is above 1.05 with the planner. The bound is that of `antiphon bound`, which knows no latency: for small messages
the ratio says more about latency than about plans.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

from _common import print_machine, print_table, save

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


def cases(specs: list[str], kinds: list[str], part: str) -> list[tuple[str, str]]:
    small = [spec for spec in dict.fromkeys(specs) if antiphon.topology(spec).ranks <= MOST_RANKS]
    mine, parts = (int(number) for number in part.split("/"))
    return [(spec, kind) for spec in small for kind in kinds][mine::parts]


def ratios(spec: str, kind: str, sizes: list[int], planners: list[str]) -> dict[int, tuple[float, str]]:
    """Of every size best plan / bound, and who made it."""
    machine = antiphon.topology(spec)
    found = antiphon.tune(kind, machine, nbytes=sizes, planners=planners, workers="none", nccl=False)
    limit = antiphon.bound(kind, machine)
    out = {}
    for size in sizes:
        best = min((one for one in found.candidates if size in one.seconds), key=lambda one: one.seconds[size])
        options = " ".join(f"{key}={value}" for key, value in best.options.items())
        out[size] = best.seconds[size] / float(limit.seconds(size)), f"{best.planner} {options}".strip()
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("specs", nargs="*")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default="1KB,1MB,1GB")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--planners", default="")
    given = parser.parse_args()
    sizes = [parse_size(text) for text in given.sizes.split(",")]
    print_machine()
    rows: list[list[Any]] = []
    kept: dict[str, Any] = {}
    for spec, kind in cases(given.specs or list(machines()), given.kinds.split(","), given.part):
        begin = time.process_time()
        found = ratios(spec, kind, sizes, [name for name in given.planners.split(",") if name])
        took = time.process_time() - begin
        who = "; ".join(by for ratio, by in found.values() if ratio > ABOVE)
        rows.append([spec, kind, *(round(ratio, 3) for ratio, _ in found.values()), round(took, 1), who])
        kept[f"{spec} {kind}"] = {format_size(size): ratio for size, (ratio, _) in found.items()}
        print(*rows[-1], flush=True)
    print_table(["machine", "collective", *(format_size(size) for size in sizes), "CPU s", "by"], rows)
    for column, size in enumerate(sizes, 2):
        values = [float(row[column]) for row in rows]
        above = sum(value > ABOVE for value in values)
        median = statistics.median(values)
        told = f"median {median:.3f}, worst {max(values):.3f}, above {ABOVE}: {above} of {len(values)}"
        print(f"{format_size(size)}: {told}")
    save("zoo", kept)


if __name__ == "__main__":
    main()
