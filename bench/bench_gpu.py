"""How long it takes to write what GPU runtimes read, to read it back, and to judge it: CPU seconds of this process.

Run: python bench/bench_gpu.py [RANKS ...]: 64 if left out; 512 takes some minutes, and 5 GB of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from _common import medians, print_machine, print_table, save

import antiphon
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported
from antiphon.formats.msccl.code import code_of
from antiphon.formats.msccl.read import read_msccl
from antiphon.formats.msccl.write import xml_of
from antiphon.formats.mscclpp.read import plan_of
from antiphon.formats.mscclpp.write import json_of
from antiphon.formats.program import lower
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.judge import judge

ONCE = 2**20  # steps until scratch is used again
CASES = (
    ("allreduce", "ring", "ring"),
    ("allreduce", "full", "recursive-doubling"),
    ("allreduce", "full", "halving-doubling"),
    ("allreduce", "full", "recmult"),
    ("allreduce", "full", "double-binary-tree"),
    ("allreduce", "full", "direct"),
    ("allgather", "ring", "ring"),
    ("allgather", "full", "bruck"),
    ("allgather", "full", "direct"),
    ("reducescatter", "full", "pairwise"),
    ("broadcast", "full", "binomial-tree"),
    ("alltoall", "full", "pairwise"),
    ("alltoall", "full", "direct"),
)


def _msccl(data: bytes) -> Code:
    found = read_msccl(data)
    return code_of(found, found.in_place)


def _mscclpp(data: bytes) -> Code:
    return plan_of(data).code


FORMATS: dict[str, tuple[Callable[[Schedule, bool], bytes], Callable[[bytes], Code]]] = {
    "msccl-xml": (lambda schedule, place: xml_of(lower(schedule, in_place=place)), _msccl),
    "mscclpp-json": (lambda schedule, place: json_of(lower(schedule, in_place=place)), _mscclpp),
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


def main() -> None:
    print_machine()
    rows = []
    for ranks in [int(text) for text in sys.argv[1:]] or [64]:
        for kind, shape, planner in CASES:
            schedule = antiphon.plan(kind, antiphon.topology(f"{shape}:ranks={ranks}"), planner=planner).at(0).schedule
            for in_place in (False, True):
                for name, (write, read) in FORMATS.items():
                    case = f"{kind} {planner} {ranks}" + " in place" * in_place
                    row: dict[str, Any] = {"format": name, "case": case}
                    try:
                        seconds, size = measured(schedule, in_place, write, read, 3 if ranks <= 64 else 1)
                        row |= dict(zip(("write", "read", "judge"), seconds, strict=True))
                        row |= {"total": round(sum(seconds), 2), "mib": round(size / 2**20, 1)}
                    except Unsupported as error:
                        row["refused"] = str(error)
                    rows.append(row)
                    print(row, flush=True)
    titles = ["format", "case", "write", "read", "judge", "total", "mib"]
    print_table(titles, [[row.get(title, "refused") for title in titles] for row in rows])
    save("gpu", {"rows": rows})


if __name__ == "__main__":
    main()
