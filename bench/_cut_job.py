"""One rank of a job whose links are cut: checked allreduces until FOLDER/stop exists, a new group after an error.

Run in a lab: python _cut_job.py mpi|torch FOLDER SECONDS. Rank 0 appends a line per call to FOLDER/calls: when it
ended, and how it went by rank, "right", "wrong" or "error". Ranks compare that over the MPI library or the store, whose
messages go on when the lab has found another path. SECONDS is the timeout of a call.
"""

import faulthandler
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.errors import AntiphonError

COUNT = 50_000  # elements: 200 KB


def numbers(call: int, rank: int) -> Any:
    return np.random.default_rng([call, rank]).integers(-1000, 1000, COUNT, dtype=np.int32)


class MpiGroup:
    """The processes of an MPI job; the calls are on a duplicate of MPI_COMM_WORLD."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.world = MPI, MPI.COMM_WORLD
        self.rank, self.ranks = self.world.rank, self.world.size
        self.control, self.data = self.world.Dup(), None
        self.in_use: list[Any] = []

    def renew(self, seconds: float) -> None:
        if self.data is not None:
            self.data.Free()
        self.data = self.world.Dup()
        self.data.Set_errhandler(self.mpi.ERRORS_RETURN)

    def allreduce(self, values: Any) -> Any:
        result = np.empty_like(values)
        try:
            self.data.Allreduce(values, result)
        except self.mpi.Exception as error:
            print(f"rank {self.rank}: {error}", file=sys.stderr, flush=True)
            self.in_use += [values, result]  # messages under way may still read and write there
            return None
        return result

    def exchange(self, value: Any) -> list[Any]:
        return list(self.control.allgather(value))

    def close(self) -> None:
        self.data.Free()


class TorchGroup:
    """The processes of a job of PyTorch; a new process group after an error, with keys of its own in the same store."""

    def __init__(self) -> None:
        import os

        import torch
        import torch.distributed as dist

        import antiphon.torch  # noqa: F401  registers the backend

        self.torch, self.dist, self.number = torch, dist, 0
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port = int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], port, self.ranks, self.rank == 0, timedelta(seconds=120))
        self.exchanges = 0

    def renew(self, seconds: float) -> None:
        started = [False]
        while not all(started):  # a group cannot start while there is no path to a process
            if self.dist.is_initialized():
                self.dist.destroy_process_group()
            self.number += 1
            store = self.dist.PrefixStore(f"group{self.number}", self.store)
            try:
                self.dist.init_process_group(
                    "antiphon", store=store, rank=self.rank, world_size=self.ranks, timeout=timedelta(seconds=seconds)
                )
                started = self.exchange(True)
            except (AntiphonError, RuntimeError) as error:
                print(f"rank {self.rank}: no group: {error}", file=sys.stderr, flush=True)
                started = self.exchange(False)

    def allreduce(self, values: Any) -> Any:
        result = self.torch.from_numpy(values.copy())
        try:
            self.dist.all_reduce(result)
        except self.dist.DistBackendError as error:
            print(f"rank {self.rank}: {error}", file=sys.stderr, flush=True)
            return None
        return result.numpy()

    def exchange(self, value: Any) -> list[Any]:
        self.exchanges += 1
        self.store.set(f"exchange{self.exchanges}/{self.rank}", json.dumps(value))
        keys = [f"exchange{self.exchanges}/{rank}" for rank in range(self.ranks)]
        return [json.loads(self.store.get(key)) for key in keys]

    def close(self) -> None:
        self.dist.destroy_process_group()
        self.store.set(f"left/{self.rank}", "")
        for rank in range(self.ranks) if self.rank == 0 else ():  # the store ends with rank 0
            self.store.get(f"left/{rank}")


def main(kind: str, folder: Path, seconds: float) -> None:
    group: Any = {"mpi": MpiGroup, "torch": TorchGroup}[kind]()
    group.renew(seconds)
    call = 0
    while True:
        faulthandler.dump_traceback_later(45)  # where a rank waits that makes no progress
        result = group.allreduce(numbers(call, group.rank))
        expected = sum(numbers(call, rank) for rank in range(group.ranks))
        how = "error" if result is None else "right" if np.array_equal(result, expected) else "wrong"
        told = group.exchange((how, (folder / "stop").exists() and group.rank == 0))
        if group.rank == 0:
            with (folder / "calls").open("a", encoding="utf-8") as out:
                out.write(json.dumps({"call": call, "at": time.monotonic(), "how": [each[0] for each in told]}) + "\n")
        if any(each[1] for each in told):
            break
        if any(each[0] == "error" for each in told):
            group.renew(seconds)
        call += 1
    group.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
