"""How long it takes to write what GPU runtimes read, to read it back, and to judge it: CPU seconds of this process.

Run: python bench/bench_gpu.py [RANKS ...]: 64 if left out; the longest cases of 512, the rings, take a minute each and
4 GB of memory. Beyond 64 ranks without everyone sending to everyone at once, and out of place alone, once each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from _common import medians, print_machine, print_table, save

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.formats.msccl.code import code_of
from antiphon.formats.msccl.read import read_msccl
from antiphon.formats.msccl.write import xml_of
from antiphon.formats.mscclpp.read import plan_of
from antiphon.formats.mscclpp.write import json_of
from antiphon.formats.program import lower
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.judge import judge
from antiphon.registry import find

ONCE = 2**20  # steps until scratch is used again
CASES = (
    ("allreduce", "full", "recursive-doubling"),
    ("allreduce", "full", "halving-doubling"),
    ("allreduce", "full", "recmult"),
    ("allreduce", "full", "double-binary-tree"),
    ("allreduce", "full", "direct"),
    ("allgather", "full", "bruck"),
    ("allgather", "full", "direct"),
    ("broadcast", "full", "binomial-tree"),
    ("alltoall", "full", "direct"),
    ("allgather", "ring", "ring"),
    ("alltoall", "full", "pairwise"),
    ("reducescatter", "full", "pairwise"),
    ("allreduce", "ring", "ring"),
)


def _msccl(data: bytes) -> Code:
    found = read_msccl(data)
    return code_of(found, found.in_place)


def _mscclpp(data: bytes) -> Code:
    return plan_of(data).code


FORMATS: dict[str, tuple[Callable[[Schedule, bool], bytes], Callable[[bytes], Code]]] = {
    "msccl-xml": (lambda schedule, place: xml_of(lower(schedule, in_place=place)), _msccl),
    "mscclpp-json": (lambda schedule, place: json_of(lower(schedule, in_place=place, lag=ONCE)), _mscclpp),
    "by packets": (lambda schedule, place: json_of(lower(schedule, in_place=place, lag=ONCE), packets=True), _mscclpp),
}


def measured(
    schedule: Schedule,
    in_place: bool,
    write: Callable[[Schedule, bool], bytes],
    read: Callable[[bytes], Code],
    times: int,
) -> Any:
    """Seconds of each part, and bytes; a program is made before a file is written."""
    made: dict[str, Any] = {}

    def wrote() -> None:
        made["data"] = write(schedule, in_place)

    def was_read() -> None:
        made["code"] = read(made["data"])

    def judged() -> None:
        made["fault"] = judge(made["code"])

    seconds = [round(medians(part, times)["cpu_seconds"], 2) for part in (wrote, was_read, judged)]
    if made["fault"] is not None:
        raise SystemExit(f"it is wrong: {made['fault']}")
    return seconds, len(made["data"])


def schedule_of(kind: str, machine: Topology, planner: str) -> Schedule:
    """What the planner makes, without its bounds, which take longer."""
    made: Iterator[Schedule] = find("planner", planner).load()(Request(machine, Collective(kind, machine.ranks)))
    return next(made)


def main() -> None:
    print_machine()
    rows: list[dict[str, Any]] = []
    for ranks in [int(text) for text in sys.argv[1:]] or [64]:
        few = ranks <= 64
        for kind, shape, planner in CASES:
            if planner == "direct" and not few:
                continue
            schedule = schedule_of(kind, antiphon.topology(f"{shape}:ranks={ranks}"), planner)
            for in_place in (False, True) if few else (False,):
                for name, (write, read) in FORMATS.items():
                    case = f"{kind} {planner} {ranks}" + " in place" * in_place
                    row: dict[str, Any] = {"format": name, "case": case}
                    try:
                        seconds, size = measured(schedule, in_place, write, read, 3 if few else 1)
                        row |= dict(zip(("write", "read", "judge"), seconds, strict=True))
                        row |= {"total": round(sum(seconds), 2), "mib": round(size / 2**20, 1)}
                    except Unsupported as error:
                        row["refused"] = str(error)
                    rows.append(row)
                    print(row, flush=True)
                    save("gpu", {"rows": rows})
    titles = ["format", "case", "write", "read", "judge", "total", "mib"]
    print_table(titles, [[row.get(title, "refused") for title in titles] for row in rows])


if __name__ == "__main__":
    main()
