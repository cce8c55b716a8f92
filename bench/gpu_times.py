"""Time calls of the GPU kernel on the GPUs of one machine beside NCCL, each in CUDA graphs of 20 calls.

Run on the machine with the GPUs (8 are best), in the folder that bench/gpu_kit.py wrote: python3 gpu_times.py
[--nccl PATH] [--out FILE]. It needs Python 3.8 and nothing else; NCCL is taken from the wheels of this Python (nvidia-
nccl-cu13, as PyTorch brings it) or from the system. First calls are checked bit by bit across the GPUs. The kernel gets
half of the processors of each GPU, so the figures are those of a job that computes at the same time.
"""

from __future__ import annotations

import argparse
import ctypes.util
import sys
from pathlib import Path

from gpu_smoke import Result, is_accepted, print_copies, read_kit, run_parts, say_where

SECONDS = 900.0
NAME = "libnccl.so.2"


def find_nccl() -> str:
    """Return the path of NCCL in a wheel, or its name if the system has it; "-" if there is none."""
    for folder in sys.path:
        path = Path(folder or ".") / "nvidia" / "nccl" / "lib" / NAME
        if path.is_file():
            return str(path)
    return NAME if ctypes.util.find_library("nccl") else "-"


def print_times(results: list[Result]) -> None:
    """Print the fastest choice for each size beside NCCL's time."""
    timed = [(result["name"], row) for result in results for row in result.get("rows", []) if row.get("best")]
    if timed:
        print(f"\n{'':28} {'bytes':>10} {'us':>10} {'NCCL us':>10} {'NCCL / ours':>11}  choice")
    for name, row in timed:
        best, beside = row["best"], row["library_seconds"]
        figures = [f"{beside * 1e6:10.1f}", f"{beside / best['seconds']:11.2f}"] if beside else [" " * 10, " " * 11]
        choice = f" {best['form']}, {best['lanes']} lanes, {best['rounds']} rounds"
        wrong = ("" if row["right"] else ", WRONG") + ("" if row["library_right"] else ", NCCL WRONG")
        print(f"{name:28} {row['nbytes']:10} {best['seconds'] * 1e6:10.1f}", *figures, choice + wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl", default="", help=f"path of {NAME} (default: that of a wheel, else the system's)")
    parser.add_argument("--out", type=Path, default=Path("gpu-times.json"), help="results (default: %(default)s)")
    options = parser.parse_args()
    kit = read_kit()
    library = options.nccl or find_nccl()
    parts = [
        {**part, "command": [library if word == "NCCL" else word for word in part["command"]]}
        for part in kit["parts"]["times"]
    ]
    results = run_parts(parts, SECONDS, options.out, kit)
    bad = [result["name"] for result in results if not is_accepted(result)]
    rows = [row for result in results for row in result.get("rows", []) if row.get("best") and row["library_seconds"]]
    faster = sum(row["best"]["seconds"] < row["library_seconds"] for row in rows)
    beside = f"faster than NCCL at {faster} of {len(rows)} rows" if rows else f"no NCCL beside ({library})"
    see = f"; see: {', '.join(bad)}" if bad else "; all right"
    print(f"{beside}{see}{say_where(kit)}. Results: {options.out}")
    print_copies(results)
    print_times(results)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
