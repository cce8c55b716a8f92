"""Run the parts of a GPU kit on one GPU, within 180 seconds: generated programs, calls of the kernel, its copies.

Run on the machine with the GPU, in the folder that bench/gpu_kit.py wrote: python3 gpu_smoke.py [--out FILE]. It needs
Python 3.8 and nothing else. Each part is a process of its own with a time limit, so a fault of one leaves the others
untouched, and the results file is complete after each. Exit code: 0 if all is right, 1 if not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Part = dict  # of kit.json: name, command, seconds; `needs`: a tool without which it is not run
Result = dict
KIT = Path(__file__).resolve().parent
SECONDS = 180.0  # for all parts of this script
KILL_SECONDS = 5.0  # a process that waits for a GPU may not end even when killed
OUTPUT_LINES = 20  # kept of what a part prints, besides its rows
STATES = {0: "right", 1: "wrong"}  # exit codes of the programs; others are failures
ACCEPTED = ("right", "not run: ")


def read_kit() -> dict[str, Any]:
    try:
        return json.loads((KIT / "kit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{KIT}/kit.json cannot be read ({error}); make a kit with: python bench/gpu_kit.py FOLDER")


def find_tool(name: str) -> str:
    """Return the path of a program on the PATH or in CUDA's usual folder; empty if it is missing."""
    return shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin") or ""


def print_of(name: str, *arguments: str) -> str:
    """Return what a tool prints; empty if it is missing or fails."""
    command = [find_tool(name), *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()


def run_part(command: list[str], seconds: float) -> Result:
    """Run a command for at most so many seconds; its process group is killed after that."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command, cwd=KIT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return {"state": f"cannot start: {error}"}
    output, state = b"", ""
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        state = f"timed out after {seconds:.0f} s"
        os.killpg(process.pid, signal.SIGKILL)
        try:
            output = process.communicate(timeout=KILL_SECONDS)[0]
        except subprocess.TimeoutExpired:
            state += " and could not be killed"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        sys.exit("interrupted; the results so far are kept")
    lines, rows = output.decode(errors="replace").splitlines(), []
    for line in [line for line in lines if line.startswith("{")]:
        try:
            rows.append(json.loads(line))
        except ValueError:  # cut off by the time limit
            continue
    state = state or STATES.get(process.returncode, f"failed with exit code {process.returncode}")
    text = [line for line in lines if not line.startswith("{")][-OUTPUT_LINES:]
    return {"state": state, "seconds": round(time.monotonic() - began, 2), "rows": rows, "output": text}


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the results so far, whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)


def run_parts(parts: list[Part], seconds: float, path: Path, kit: dict[str, Any]) -> list[Result]:
    """Run parts in turn, print a line for each, and write the results after each."""
    if kit["on"] == "cuda" and not print_of("nvidia-smi", "-L"):
        sys.stderr.write(
            "no NVIDIA GPU here: nvidia-smi -L lists none. Not yet run on a GPU; a kit for threads of the processor: "
            "python bench/gpu_kit.py FOLDER --on threads\n"
        )
        sys.exit(2)
    about = ("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,ecc.mode.current", "--format=csv,noheader")
    results: dict[str, Any] = {
        "kit": kit["about"], "on": kit["on"], "gpus": print_of(*about).splitlines(),
        "links": print_of("nvidia-smi", "topo", "-m"), "began": time.strftime("%Y-%m-%d %H:%M:%S"), "parts": [],
    }  # fmt: skip
    end = time.monotonic() + seconds
    for part in parts:
        remaining = end - time.monotonic()
        tool = find_tool(part["needs"]) if "needs" in part else ""
        if "needs" in part and not tool:
            result = {"state": f"not run: no {part['needs']} on the PATH"}
        elif remaining < 1:
            result = {"state": f"out of time: {seconds:.0f} s for all parts"}
        else:
            command = [tool, *part["command"][1:]] if tool else part["command"]
            result = run_part(command, min(remaining, part["seconds"]))
        results["parts"].append({"name": part["name"], "command": part["command"], **result})
        print(f"{part['name']:40} {result['state']}", flush=True)
        write_results(path, results)
    return results["parts"]


def say_where(kit: dict[str, Any]) -> str:
    """Return what to add to a verdict: results of threads prove nothing about GPUs."""
    return "" if kit["on"] == "cuda" else "; by threads of the processor, not yet run on a GPU"


def is_accepted(result: Result) -> bool:
    """Return whether nothing speaks against this part."""
    return result["state"].startswith(ACCEPTED)


def print_copies(results: list[Result]) -> None:
    """Print the rates of the kernel's copies, for the most blocks of each size."""
    widest: dict[tuple[str, int], Any] = {}  # of a size the first row has the most blocks
    for row in [row for result in results for row in result.get("rows", []) if "after_gb_per_second" in row]:
        widest.setdefault((row["to"], row["nbytes"]), row)
    if widest:
        print(f"\n{'copy to':12} {'bytes':>10} {'kernel GB/s':>12} {'before GB/s':>12} {'device GB/s':>12}")
    for row in widest.values():
        rates = [f"{row[name + '_gb_per_second']:12.1f}" for name in ("after", "before", "device")]
        print(f"{row['to']:12} {row['nbytes']:10}", *rates)


def main(name: str = "smoke", seconds: float = SECONDS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(f"gpu-{name}.json"), help="results (default: %(default)s)")
    options = parser.parse_args()
    kit = read_kit()
    results = run_parts(kit["parts"][name], seconds, options.out, kit)
    bad = [result["name"] for result in results if not is_accepted(result)]
    right = sum(result["state"] == "right" for result in results)
    see = f"; see: {', '.join(bad)}" if bad else ""
    print(f"{right} of {len(results)} parts right{see}{say_where(kit)}. Results: {options.out}")
    print_copies(results)
    return int(bool(bad) or not right)


if __name__ == "__main__":
    sys.exit(main())
