"""What all benches share: the machine, medians, peak memory of a child process, tables, results as JSON."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.core.files import write_bytes

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass  # not Linux
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def print_machine() -> None:
    m = machine()
    print(f"{m['cpu']}, {m['cores']} cores, Python {m['python']}, NumPy {m['numpy']}; load at the start {m['load']}")


def median_seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Median over several runs by the clock on the wall."""
    return medians(function, repeats)["seconds"]


def medians(function: Callable[[], object], repeats: int = 5) -> dict[str, float]:
    """Medians over several runs: `seconds` on the wall, and `cpu_seconds` that the process itself had.

    Where others use the machine at the same time, the second tells more of the code.
    """
    wall, cpu = [], []
    for _ in range(repeats):
        gc.collect()
        begin, used = time.perf_counter(), time.process_time()
        function()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
    return {"seconds": statistics.median(wall), "cpu_seconds": statistics.median(cpu)}


def peak_mb() -> float:
    """The most memory that this process ever held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def copy_gb_per_second() -> float:
    """How fast NumPy copies an array far larger than the caches: bytes read plus bytes written.

    In a process of its own: peak memory is handed down to children.
    """
    return float(in_child(__file__)["copy_gb_per_second"])


def _copy_gb_per_second() -> float:
    source = np.ones(2**25)
    target = np.empty_like(source)
    np.copyto(target, source)
    return 2 * source.nbytes / median_seconds(lambda: np.copyto(target, source)) / 1e9


def in_child(script: str, *args: object) -> dict[str, Any]:
    """Run `script args...` in a process of its own, so that its peak memory is its own; its last line is JSON."""
    command = [sys.executable, script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )


def save(name: str, data: dict[str, Any]) -> None:
    """Write bench/results/NAME.json, the machine included."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **data}, indent=1) + "\n", encoding="utf-8")
    print(f"-> {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def kept(name: str) -> dict[str, dict[str, Any]]:
    """The cases of bench/results/NAME.json, as earlier runs left them."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")).get("cases", {})
    return found


def keep(name: str, cases: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Put these cases to those that are kept, and tell all: read anew under a lock, as other runs may have kept some in
    the meantime; written wholly or not at all."""
    RESULTS.mkdir(exist_ok=True)
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = kept(name)
        for key, case in cases.items():
            found[key] = {**found.get(key, {}), **case}
        text = json.dumps({"machine": machine(), "cases": found}, indent=1)
        write_bytes(RESULTS / f"{name}.json", (text + "\n").encode())
    finally:
        os.close(folder)
    return found


if __name__ == "__main__":
    print(json.dumps({"copy_gb_per_second": _copy_gb_per_second()}))
