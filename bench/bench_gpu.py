"""How long it takes to write what GPU runtimes read, to read it back, and to judge it: CPU seconds of this process.

Run: python bench/bench_gpu.py [RANKS ...]: 64 if left out; 512 takes some minutes, and 5 GB of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from _common import medians, print_machine, print_table, save

import antiphon
from antiphon.core.program import Program
from antiphon.errors import Unsupported
from antiphon.formats.msccl.code import code_of
from antiphon.formats.msccl.read import read_msccl
from antiphon.formats.msccl.write import xml_of
from antiphon.formats.mscclpp.read import plan_of
from antiphon.formats.mscclpp.write import json_of
from antiphon.formats.program import lower
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.judge import judge

CASES = (
    ("allreduce", "ring", "ring"),
    ("allreduce", "full", "halving-doubling"),
    ("allreduce", "full", "recmult"),
    ("allreduce", "full", "direct"),
    ("allgather", "full", "direct"),
    ("alltoall", "full", "direct"),
)


def _msccl(data: bytes) -> Code:
    found = read_msccl(data)
    return code_of(found, found.in_place)


FORMATS: dict[str, tuple[Callable[[Program], bytes], Callable[[bytes], Code]]] = {
    "msccl-xml": (xml_of, _msccl),
    "mscclpp-json": (json_of, lambda data: plan_of(data).code),
}


def measured(program: Program, write: Callable[[Program], bytes], read: Callable[[bytes], Code], times: int) -> Any:
    """Seconds of each part, and bytes."""
    data, code = write(program), read(write(program))
    fault = judge(code)
    if fault is not None:
        raise SystemExit(f"it is wrong: {fault}")
    parts: tuple[Callable[[], object], ...] = (lambda: write(program), lambda: read(data), lambda: judge(code))
    return [round(medians(part, times)["cpu_seconds"], 2) for part in parts], len(data)


def main() -> None:
    print_machine()
    rows = []
    for ranks in [int(text) for text in sys.argv[1:]] or [64]:
        for kind, shape, planner in CASES:
            schedule = antiphon.plan(kind, antiphon.topology(f"{shape}:ranks={ranks}"), planner=planner).at(0).schedule
            for in_place in (False, True):
                program = lower(schedule, in_place=in_place)
                for name, (write, read) in FORMATS.items():
                    case = f"{kind} {planner} {ranks}" + " in place" * in_place
                    row: dict[str, Any] = {"format": name, "case": case}
                    try:
                        seconds, size = measured(program, write, read, 3 if ranks <= 64 else 1)
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
