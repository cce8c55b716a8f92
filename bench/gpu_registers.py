"""What nvcc makes of the GPU kernel: registers, stack, spills, and accesses to memory in its PTX. Needs nvcc, no GPU.

Run: python bench/gpu_registers.py CASE [--sources FOLDER] [--arch sm_90]. The figures are kept in
bench/results/gpu_registers.json as the case of that name, so that a change can be compared with what was before.
`call` is the kernel of a whole call, `step` that of one step. `stores`, `loads`: accesses of 16 bytes, and of 8 bytes
or less, in the functions that copy and sum data; `seconds`: of one processor, to compile both kernels.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from _common import keep, print_machine, print_table

from antiphon.runtimes.engine.build import DEVICE

TYPES = {"float32": 7, "bfloat16": 9, "int8": 0}  # by their numbers in numbers.h
ACCESS = re.compile(r"\b(ld|st)\.(?:global\.)?(v2\.u64|v4\.\w+|v2\.[a-z]\d+|[a-z]\d+)\b")


def compile_kernels(sources: Path, number: int, arch: str) -> tuple[str, str, float]:
    """Return the report of ptxas, the PTX, and the seconds of a processor that it took."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cu"
        source.write_text('#include "cuda_kernels.h"\n', encoding="utf-8")
        command = ["nvcc", "-std=c++17", "-O3", f"-arch={arch}", f"-DTYPES_COMPILED=(1u<<{number})", f"-I{sources}"]
        kept = ["--keep", "--keep-dir", folder, "-o", f"{folder}/kernels.cubin", str(source)]
        done = subprocess.run([*command, "-Xptxas", "-v", "-cubin", *kept], capture_output=True, text=True, check=True)
        ptx = (Path(folder) / "kernels.ptx").read_text(encoding="utf-8")
    return done.stderr, ptx, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began


def read_registers(report: str) -> dict[str, int]:
    """Return registers, stack and spills of both kernels, with the spills of the functions that they call."""
    figures: dict[str, int] = {}
    for section in report.split("Compiling entry function '")[1:]:
        entry = section.split("'")[0]
        name = next((kind for kind in ("call", "step") if f"antiphon_{kind}" in entry), None)
        registers, stack = re.search(r"Used (\d+) registers", section), re.search(r"(\d+) bytes stack frame", section)
        if name is None or registers is None or stack is None:
            continue
        spills = sum(map(int, re.findall(r"(\d+) bytes spill stores", section)))
        figures |= {f"{name}_registers": int(registers[1]), f"{name}_stack": int(stack[1]), f"{name}_spills": spills}
    return figures


def count_accesses(ptx: str) -> dict[str, int]:
    """Return the number of accesses, by width, in `copy_span` and in the `combine` that sums."""
    counts = dict.fromkeys(("loads_16", "loads_8_or_less", "stores_16", "stores_8_or_less"), 0)
    for name, body in re.findall(r"\n\.func[^\n]* (_Z\w+)\((.*?)\n}(?=\n)", ptx, re.S):
        if "copy_span" in name or re.search(r"combine.*3Sum", name):
            for kind, width in ACCESS.findall(body):
                is_wide = width == "v2.u64" or width.startswith("v4")
                counts[f"{'loads' if kind == 'ld' else 'stores'}_{'16' if is_wide else '8_or_less'}"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    parser.add_argument("--sources", type=Path, default=DEVICE)
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    if shutil.which("nvcc") is None:
        parser.error("no nvcc on the PATH; docs/device.md says how to get it")
    print_machine()
    rows: dict[str, Any] = {}
    for dtype, number in TYPES.items():
        report, ptx, seconds = compile_kernels(options.sources, number, options.arch)
        rows[dtype] = {**read_registers(report), **count_accesses(ptx), "seconds": round(seconds, 1)}
    columns = list(next(iter(rows.values())))
    print_table(["", *rows], [[column, *(row[column] for row in rows.values())] for column in columns])
    keep("gpu_registers", {options.case: {"arch": options.arch, **rows}})


if __name__ == "__main__":
    main()
