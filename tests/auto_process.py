"""A program that knows nothing of plans: `auto_process.py torch|comm|mpi4py COUNT PAUSE`, COUNT allreduces of 2 MB and
as many broadcasts, PAUSE seconds after each; or, where $AUTO_UNTIL names a folder, until a file .plan is in it,
and some more. Process 0 prints a line of JSON: whether all was right; of each call its number, when it began
(seconds since the start) and how long it took; and the report."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

BEGAN = time.perf_counter()
WORDS = 500_000
MORE, MOST = 10, 2000  # turns


def by_torch() -> tuple[int, int, Any, Any, Any]:
    import torch
    import torch.distributed as dist

    import antiphon.torch

    dist.init_process_group("antiphon")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def allreduce(x: Any) -> Any:
        dist.all_reduce(torch.from_numpy(x))
        return x

    def broadcast(x: Any, root: int) -> Any:
        dist.broadcast(torch.from_numpy(x), root)
        return x

    def end() -> Any:
        rows = antiphon.torch.report()
        dist.destroy_process_group()
        return rows

    return rank, ranks, allreduce, broadcast, end


def by_comm() -> tuple[int, int, Any, Any, Any]:
    import antiphon

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    c = antiphon.comm.connect(
        rank=rank, ranks=ranks, address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    )

    def end() -> Any:
        rows = c.report()
        c.close()
        return rows

    return rank, ranks, lambda x: c.allreduce(x, out=x), c.broadcast, end


def by_mpi4py() -> tuple[int, int, Any, Any, Any]:
    from mpi4py import MPI

    c = MPI.COMM_WORLD

    def allreduce(x: Any) -> Any:
        c.Allreduce(MPI.IN_PLACE, x)
        return x

    def broadcast(x: Any, root: int) -> Any:
        c.Bcast(x, root)
        return x

    return c.rank, c.size, allreduce, broadcast, list


def main(how: str, count: int, pause: float) -> None:
    rank, ranks, allreduce, broadcast, end = {"torch": by_torch, "comm": by_comm, "mpi4py": by_mpi4py}[how]()
    ready, right, calls, until = time.perf_counter() - BEGAN, True, [], os.environ.get("AUTO_UNTIL")
    number = turn = 0
    seen = 0  # turns since the file has been there
    while (turn < count) if not until else (seen < MORE and turn < MOST):
        for kind in ("allreduce", "broadcast"):
            number += 1
            x = np.full(WORDS, rank + turn, np.float32)
            began = time.perf_counter()
            if kind == "allreduce":
                right &= bool((allreduce(x) == ranks * (ranks - 1) // 2 + ranks * turn).all())
            else:
                right &= bool((broadcast(x, turn % ranks) == turn % ranks + turn).all())
            calls.append((number, round(began - BEGAN, 4), round(time.perf_counter() - began, 6)))
            time.sleep(pause)
        turn += 1
        if until:
            number += 1
            there = np.full(1, bool(rank == 0 and list(Path(until).glob("*.plan"))), np.float32)
            seen += int(broadcast(there, 0)[0])
    rows = end()
    if not right:
        sys.exit("a result is wrong")
    if rank == 0:
        print(json.dumps({"right": right, "ready": ready, "calls": calls, "report": rows}), flush=True)


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
