"""What it costs that every message tells which call it is of: this tree against another commit, call by call.

    python bench/bench_mismatch.py --against REV            # the commit before calls were compared
    python bench/bench_mismatch.py --against REV --ways torch --pairs 5

Processes of the one tree and of the other run in turns; in each turn every process makes many calls of 1 KB and tells
the median time of one, and the processor time of all. Of each pair of turns the ratio is taken (their order changes
from pair to pair), and of all pairs the median. On a busy machine the processor time tells more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import print_machine, print_table, save

HERE = Path(__file__).resolve()
WAYS = {  # where messages go, and what else must be set for it
    "shared memory": {"ANTIPHON_SHARED": "1"},
    "sockets": {"ANTIPHON_SHARED": "0"},
    "mpi": {"ANTIPHON_SHARED": "1"},
    "mpi, no shared memory": {"ANTIPHON_SHARED": "0"},
    "mpi, the library": {"ANTIPHON_SHARED": "1"},
    "torch": {"ANTIPHON_SHARED": "1"},
}
KINDS = ("allreduce", "allgather", "broadcast")
FLOATS = 256  # 1 KB


# ---- what the processes do ----


def timed(calls: dict[str, Any], count: int) -> dict[str, Any]:
    """Of each kind the median of the wall, and what the processor had for one call, in microseconds."""
    found = {}
    for name, call in calls.items():
        for _ in range(count // 10 + 5):
            call()
        each, used = [], time.process_time()
        for _ in range(count):
            began = time.perf_counter()
            call()
            each.append(time.perf_counter() - began)
        found[name] = {"wall": statistics.median(each) * 1e6, "cpu": (time.process_time() - used) / count * 1e6}
    return found


def calls_of(c: Any) -> dict[str, Any]:
    import numpy as np

    x, whole = np.ones(FLOATS, np.float32), np.ones(FLOATS * c.ranks, np.float32)
    return {
        "allreduce": lambda: c.allreduce(x, out=x),
        "allgather": lambda: c.allgather(x, out=whole),
        "broadcast": lambda: c.broadcast(x),
    }


def as_process(way: str, count: int, where: list[str]) -> None:
    import antiphon

    if way.startswith("mpi"):
        table = None if "library" in way else where[0]
        with antiphon.comm.connect(table=table) as c:
            found = timed(calls_of(c), count)
            rank = c.rank
    elif way == "torch":
        rank, found = in_torch(count, int(where[0]), where[1])
    else:
        ranks = int(where[0])
        rank = next((rank for rank in range(1, ranks) if not os.fork()), 0)
        with antiphon.comm.connect(rank=rank, ranks=ranks, address=where[1]) as c:
            found = timed(calls_of(c), count)
    if rank == 0:
        print(json.dumps(found), flush=True)


def in_torch(count: int, ranks: int, address: str) -> tuple[int, dict[str, Any]]:
    import torch
    import torch.distributed as dist

    import antiphon.torch  # noqa: F401 (registers the backend)

    torch.set_num_threads(1)
    rank = next((rank for rank in range(1, ranks) if not os.fork()), 0)
    dist.init_process_group("antiphon", init_method=f"tcp://{address}", rank=rank, world_size=ranks)
    x, whole = torch.ones(FLOATS), torch.ones(FLOATS * ranks)
    calls = {
        "allreduce": lambda: dist.all_reduce(x),
        "allgather": lambda: dist.all_gather_into_tensor(whole, x),
        "broadcast": lambda: dist.broadcast(x, 0),
    }
    found = timed(calls, count)
    dist.destroy_process_group()
    return rank, found


# ---- turns ----


def one_turn(tree: Path, way: str, ranks: int, count: int, table: Path) -> dict[str, Any]:
    me = [sys.executable, str(HERE), "--process", way, "--calls", str(count)]
    if way.startswith("mpi"):
        beside = Path(sys.executable).with_name("mpiexec")
        launcher = [str(beside), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
        command = [*launcher, *me, "--where", str(table)]
    else:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{one.getsockname()[1]}"
        command = [*me, "--where", str(ranks), address]
    env = {**os.environ, **WAYS[way], "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def compare(old: Path, new: Path, way: str, ranks: int, pairs: int, count: int, table: Path) -> list[dict[str, Any]]:
    turns: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}
    for number in range(pairs):
        order = ("old", "new") if number % 2 else ("new", "old")
        for which in order:
            turns[which].append(one_turn(old if which == "old" else new, way, ranks, count, table))
    rows = []
    for kind in KINDS:
        row: dict[str, Any] = {"way": way, "ranks": ranks, "kind": kind, "pairs": pairs}
        for clock in ("wall", "cpu"):
            ratios = [b[kind][clock] / a[kind][clock] for a, b in zip(turns["old"], turns["new"], strict=True)]
            row[f"old_{clock}_us"] = statistics.median(one[kind][clock] for one in turns["old"])
            row[f"new_{clock}_us"] = statistics.median(one[kind][clock] for one in turns["new"])
            row[f"{clock}_ratio"] = statistics.median(ratios)
        rows.append(row)
    return rows


def checked_out(revision: str, folder: Path) -> Path:
    root = HERE.parent.parent
    packed = subprocess.run(["git", "archive", revision, "src"], cwd=root, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", help="a revision of git")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--save", action="store_true", help="to bench/results/mismatch.json")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("--where", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        return as_process(given.process, given.calls, given.where)
    if not given.against:
        parser.error("--against is needed: the commit to compare with")
    print_machine()
    folder = Path(tempfile.mkdtemp(prefix="antiphon-bench-"))
    try:
        old, new = checked_out(given.against, folder), HERE.parent.parent
        table = folder / "table.json"
        tune = [sys.executable, "-m", "antiphon", "tune", "all", f"full:ranks={given.ranks}", "-o", str(table)]
        subprocess.run(tune, env={**os.environ, "PYTHONPATH": str(new / "src")}, check=True, capture_output=True)
        rows = []
        for way in given.ways:
            rows += compare(old, new, way, given.ranks, given.pairs, given.calls, table)
    finally:
        shutil.rmtree(folder)
    heads = ["way", "kind", "old us", "new us", "ratio", "old cpu us", "new cpu us", "cpu ratio"]
    keys = ["way", "kind", "old_wall_us", "new_wall_us", "wall_ratio", "old_cpu_us", "new_cpu_us", "cpu_ratio"]
    print_table(heads, [[row[key] for key in keys] for row in rows])
    if given.save:
        save("mismatch", {"against": given.against, "calls": given.calls, "rows": rows})
    return None


if __name__ == "__main__":
    main()
