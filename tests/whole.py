"""All tests, the slow ones too, file by file: what `make test-all` runs.

A file that has passed is not run again while sources and tests stay as they are: so this may be ended at any time, and
goes on where it was. Those that take least come first; one that fails does not keep the others from being run.

    make test-all                                          what has not passed yet
    make test-all ARGS=--list                              what that is, and what it takes
    make test-all ARGS="tests/test_goal.py tests/test_sccl*.py"    these files, whether they have passed or not
    make test-all ARGS="-k ring"                           any other words are for pytest; what passes so does not count
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = ROOT / "build" / "test-all.json"
# Seconds of a processor, where nobody has run it here: of those that take minutes, and of any other file.
SECONDS = {
    "test_mpi4py_suite": 2700, "test_contract": 950, "test_planners": 900, "test_device_written": 800,
    "test_msccl": 600, "test_device_sweep": 500, "test_device_packets": 450, "test_torch_suite": 300,
    "test_device": 250, "test_device_model": 200, "test_preload": 200,
    "test_sccl_engines": 160, "test_run_mpi": 150, "test_device_proof": 150, "test_loader_memory": 150,
    "test_fuzz": 150, "test_trees": 120, "test_mscclpp": 100, "test_mscclpp_switch": 100,
    "test_interrupts": 100, "test_loggp_radix": 60,
}  # fmt: skip
OTHERS = 10


def main(command: list[str], words: list[str]) -> int:
    """`command`: that of pytest; the files to run and other words for it follow."""
    kept, state = read(), tree()
    named = [ROOT / word for word in words if (ROOT / word).is_file()]
    more = [word for word in words if not (ROOT / word).is_file() and word != "--list"]
    if any("::" in word for word in words):
        print('one test is run by: build/venv/bin/python -m pytest -n 0 -m "" tests/FILE.py::TEST', file=sys.stderr)
        return 2
    files = sorted(named or HERE.glob("test_*.py"), key=lambda file: (expected(file, kept), file.name))
    if not named and not more:
        files = [file for file in files if kept.get(file.name, {}).get("passed") != state]
    left = sum(expected(file, kept) for file in files)
    print(f"{len(files)} files are to be run: some {left / 60:.0f} minutes of a processor", flush=True)
    if "--list" in words:
        print("\n".join(f"{expected(file, kept):7.0f} s  tests/{file.name}" for file in files))
        return 0
    failed = []
    for file in files:
        print(f"\n== tests/{file.name}: some {expected(file, kept):.0f} s of {left / 60:.0f} minutes left", flush=True)
        left -= expected(file, kept)
        code, seconds = run([*command, "-q", "-m", "", *more, str(file)])
        if code not in (0, 5):  # 5: it has no test of that name
            failed.append(f"tests/{file.name}")
        if not more:
            kept[file.name] = {"passed": state if code == 0 else "", "seconds": round(seconds, 1)}
            write(kept)
    print("\nfailed: " + " ".join(failed) if failed else "\nall of these have passed")
    return 1 if failed else 0


def run(command: list[str]) -> tuple[int, float]:
    """The exit code, and the seconds of a processor that it took with all that it has started."""
    before = used()
    return subprocess.run(command, cwd=ROOT, check=False).returncode, used() - before


def used() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def expected(file: Path, kept: dict[str, Any]) -> float:
    """Seconds of a processor: those of the last time, else those that are written down above."""
    return float(kept.get(file.name, {}).get("seconds", SECONDS.get(file.stem, OTHERS)))


def tree() -> str:
    """What sources and tests say, in short."""
    found = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for folder in (ROOT / "src", HERE):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def read() -> dict[str, Any]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def write(kept: dict[str, Any]) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    part = KEPT.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1, sort_keys=True))
    part.replace(KEPT)


if __name__ == "__main__":
    cut = sys.argv.index("--")
    try:
        sys.exit(main(sys.argv[1:cut], sys.argv[cut + 1 :]))
    except KeyboardInterrupt:
        sys.exit("ended; what has passed is kept, and the next call goes on from there")
