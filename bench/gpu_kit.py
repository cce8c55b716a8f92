"""Build a folder with all that proves the GPU kernel on another machine, which needs a GPU and Python and nothing else.

Run: python bench/gpu_kit.py FOLDER [--arch sm_90] [--on threads]. Then, on the machine with the GPUs, in that folder:

    python3 gpu_smoke.py     one GPU, at most 180 seconds: are results right?
    python3 gpu_times.py     8 GPUs, at most 15 minutes: how long do calls take, beside NCCL?

The folder has eight generated programs (formats/device), `gpu_calls` with the calls of 4 data types on 3 machines and
the results that they must have, bit by bit, `gpu_copy`, which compares the copy of the kernel with that before, and
kit.json, which lists the parts. CUDA's runtime is linked in; the driver must be as new as the nvcc of this machine.
With --on threads everything is compiled for threads of the processor: that tries the kit, and says nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import antiphon
from antiphon.core.collective import COMBINING, ROOTED
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import analyse
from antiphon.core.interpret import run as interpret
from antiphon.core.interpret.buffers import sides
from antiphon.core.schedule import Schedule
from antiphon.core.transform import unjoined
from antiphon.errors import AntiphonError, Missing, Unsupported
from antiphon.formats.device.write import source
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.call_choices import TABLES
from antiphon.runtimes.device.nccl_library import KINDS
from antiphon.runtimes.engine.build import DEVICE
from antiphon.runtimes.engine.native import OPERATORS, type_number

BENCH = Path(__file__).resolve().parent
CHECKED_BLOCKS, STREAMS = 8, 2  # as in gpu_calls.cu; of these blocks each stream has as many lanes as there is room for
UNITS = {"plain": (1, 1000), "packets": (0, 7), "arrival": (7,), "pull": (7,)}  # elements per weight
SIZES = [str(2**power) for power in (10, 13, 16, 19, 22, 25, 28)]
HOST_FLAGS = ("-std=c++17", "-O0", "-pthread", "-D_GNU_SOURCE", "-x", "c++")  # compiling takes longer than running
# Seconds for a part: a program makes 5 x 25 calls, the sanitizer slows them 20 to 50 times.
PROGRAM_SECONDS, CHECK_SECONDS, COPY_SECONDS, SANITIZER_SECONDS, TIMES_SECONDS = 12, 15, 20, 45, 120


class Program(NamedTuple):
    """A plan to write as one file, with the options of the export."""

    kind: str
    machine: str
    planner: str
    options: dict[str, Any] = {}  # noqa: RUF012

    @property
    def name(self) -> str:
        return "-".join((self.kind, self.machine.partition(":")[0], self.planner))


PROGRAMS = (
    Program("allreduce", "full:ranks=8", "ring"),
    Program("allreduce", "dgx1v", "trees", {"dtype": "bfloat16"}),
    Program("allreduce", "hgx-h100", "nvls", {"dtype": "float16", "op": "max"}),
    Program("allreduce", "full:ranks=4", "direct", {"in_place": True, "pull": True}),
    Program("allgather", "full:ranks=5", "bruck", {"dtype": "int8"}),
    Program("alltoall", "full:ranks=8", "pairwise", {"dtype": "int64"}),
    Program("reducescatter", "full:ranks=8", "halving-doubling", {"op": "avg"}),
    Program("broadcast", "full:ranks=7", "double-binary-tree", {"dtype": "float64"}),
)
MACHINES = {
    "full:ranks=5": (
        ("allreduce", "ring"),
        ("alltoall", "pairwise"),
        ("allgather", "permrecmult"),
        ("reduce", "direct"),
    ),
    "dgx1v": (("allreduce", "trees"), ("allgather", "multi-ring"), ("broadcast", "trees")),
    "hgx-h100": (("allreduce", "nvls"), ("reducescatter", "halving-doubling"), ("allgather", "direct")),
}
DTYPES = ("float32", "bfloat16", "int8", "int64")
TIMED = (("allreduce", "direct"), ("allreduce", "halving-doubling"), ("allreduce", "ring"), ("allgather", "direct"),
         ("reducescatter", "direct"))  # fmt: skip


def find_schedule(kind: str, machine: str, planner: str) -> Schedule:
    root = 0 if kind in ROOTED else None
    return antiphon.plan(kind, antiphon.topology(machine), planner=planner, root=root).at(2**20).schedule


def encode_case(
    schedule: Schedule, unit: int, dtype: str, op: str, in_place: bool, form: str, timed: bool = False
) -> bytes:
    """Return a case as gpu_calls.cu reads it: numbers, and of each rank its table, input and expected output."""
    rank_tables = tables(schedule, in_place=in_place, streams=STREAMS, **TABLES[form])
    sliced, number_type = all(table.sliced for table in rank_tables), data_type(dtype)
    if timed:
        lanes, rounds = (0, 0) if sliced else (1, 1)
    else:
        lanes, rounds = (CHECKED_BLOCKS // STREAMS, 3) if sliced else (1, 1)
    inputs: list[Any] = [np.zeros(0, number_type)] * len(rank_tables)
    outputs = inputs
    if not timed:
        random, sizes = np.random.default_rng(unit), sides(schedule.collective, in_place)[0].size
        inputs = [random.integers(1, 5, int(size) * unit).astype(number_type) for size in sizes]
        buffers = [values.copy() for values in inputs]
        outputs = interpret(analyse(unjoined(schedule)), buffers, op=op, dtype=number_type, in_place=in_place)
    kind = KINDS.index(schedule.collective.kind)
    numbers = (kind, unit, type_number(number_type), OPERATORS[op], in_place, lanes, rounds, number_type.itemsize)
    data = struct.pack("<8q", *numbers)
    for table, values, expected in zip(rank_tables, inputs, outputs, strict=True):
        for array in (np.ascontiguousarray(table.words, np.int64), values, expected):
            data += struct.pack("<q", array.nbytes) + array.tobytes()
    return data


def encode_checks(machine: str, plans: Sequence[tuple[str, str]], dtype: str) -> Iterator[bytes]:
    """Yield the cases of a machine: all plans, in and out of place, in all forms of their tables."""
    for number, (kind, planner) in enumerate(plans):
        schedule = find_schedule(kind, machine, planner)
        op = ("sum", "max", "avg")[number % 3] if kind in COMBINING else "sum"
        for in_place in (False, True):
            for form, units in UNITS.items():
                for unit in units if not in_place else units[-1:]:
                    try:
                        yield encode_case(schedule, unit, dtype, op, in_place, form)
                    except Unsupported:  # there is no such table of this plan
                        continue


def write_cases(path: Path, ranks: int, cases: Sequence[bytes]) -> None:
    path.write_bytes(struct.pack("<2q", ranks, len(cases)) + b"".join(cases))


def compile_program(on: str, arch: str, source_path: Path, path: Path, *flags: str) -> None:
    command = ["nvcc", "-std=c++17", "-O3", f"-arch={arch}"] if on == "cuda" else ["c++", *HOST_FLAGS]
    command += [*flags, f"-I{DEVICE}", str(source_path), "-o", str(path), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{' '.join(command)} fails:\n{done.stderr[-2000:]}")


def build_kit(
    folder: Path, on: str = "cuda", arch: str = "sm_90", programs: Sequence[Program] = PROGRAMS,
    machines: Sequence[str] = tuple(MACHINES), dtypes: Sequence[str] = DTYPES, timed: Sequence[tuple[str, str]] = TIMED,
    sizes: Sequence[str] = tuple(SIZES),
) -> None:  # fmt: skip
    """Write the folder. A part is {"name", "command", "seconds"}, and "needs" if it needs a tool."""
    compiler = "nvcc" if on == "cuda" else "c++"
    if shutil.which(compiler) is None:
        raise Missing(f"no {compiler} on the PATH; docs/device.md says how to get it")
    folder.mkdir(parents=True, exist_ok=True)
    smoke: list[dict[str, Any]] = []
    for program in programs:
        print(f"compiling {program.name}", flush=True)
        text = source(find_schedule(*program[:3]), program.machine, **program.options)
        (folder / f"{program.name}.cu").write_text(text, encoding="utf-8")
        compile_program(on, arch, folder / f"{program.name}.cu", folder / program.name)
        sweep = f"./{program.name} -b 1K -e {'16M' if on == 'cuda' else '64K'} -f 64 -n 20 -w 5".split()
        smoke.append({"name": program.name, "command": sweep, "seconds": PROGRAM_SECONDS})
    print("compiling gpu_calls and gpu_copy", flush=True)
    compiled = sum(1 << type_number(data_type(dtype)) for dtype in {"float32", *dtypes})
    compile_program(on, arch, BENCH / "gpu_calls.cu", folder / "gpu_calls", f"-DTYPES_COMPILED={compiled}")
    compile_program(on, arch, BENCH / "gpu_copy.cu", folder / "gpu_copy")
    checks = []
    for machine in machines:
        for dtype in dtypes:
            name = f"{machine.partition(':')[0]}-{dtype}"
            cases = list(encode_checks(machine, MACHINES[machine], dtype))
            write_cases(folder / f"{name}.calls", antiphon.topology(machine).ranks, cases)
            check = ["./gpu_calls", "check", f"{name}.calls"]
            checks.append({"name": f"calls {name}", "command": check, "seconds": CHECK_SECONDS})
    copies = [{"name": "copies", "command": ["./gpu_copy", *([] if on == "cuda" else ["1000004"])],
               "seconds": COPY_SECONDS}]  # fmt: skip
    sanitizer: list[dict[str, Any]] = []
    for program in programs[:1]:
        command = f"compute-sanitizer --error-exitcode 4 ./{program.name} -b 64K -e 64K -n 1 -w 0 -l 1".split()
        sanitizer.append({"name": f"sanitizer {program.name}", "command": command, "seconds": SANITIZER_SECONDS,
                          "needs": command[0]})  # fmt: skip
    times = []
    for kind, planner in timed:
        schedule, name = find_schedule(kind, "full:ranks=8", planner), f"{kind}-{planner}"
        cases = [encode_case(schedule, 0, "float32", "sum", False, form, timed=True) for form in ("plain", "packets")]
        write_cases(folder / f"{name}.plans", schedule.collective.ranks, cases)
        command = ["./gpu_calls", "time", f"{name}.plans", "NCCL", *sizes]
        times.append({"name": f"{kind} {planner}", "command": command, "seconds": TIMES_SECONDS})
    for script in ("gpu_smoke.py", "gpu_times.py"):
        shutil.copy(BENCH / script, folder)
    about = {"arch": arch, "built": time.strftime("%Y-%m-%d %H:%M:%S"), "antiphon": antiphon.__version__}
    parts = {"smoke": [*smoke, *checks, *copies, *sanitizer], "times": [*checks, *copies, *times]}
    kit = {"on": on, "about": about, "parts": parts}
    (folder / "kit.json").write_text(json.dumps(kit, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on", choices=("cuda", "threads"), default="cuda")
    parser.add_argument("--arch", default="sm_90", help="for nvcc (default: %(default)s, H100 and H200)")
    options = parser.parse_args()
    try:
        build_kit(options.folder, options.on, options.arch)
    except AntiphonError as error:
        print(f"gpu-kit: {error}", file=sys.stderr)
        return error.exit_code
    total = sum(os.path.getsize(path) for path in options.folder.iterdir()) / 2**20
    print(f"{options.folder}: {total:.0f} MiB. Copy it to the machine with the GPU; there: python3 gpu_smoke.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
