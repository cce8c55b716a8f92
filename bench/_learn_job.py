"""One rank of a job of allreduces in three phases, for bench_learn.py; what learn_times.c is for MPI.

Run in a lab: python _learn_job.py torch | gloo | comm CALLS BYTES COMMAND. Rank 0 runs COMMAND with the number of the
phase before each, and prints the phase and the slowest rank's seconds of each call.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

PHASES = 3


def over_torch(backend: str, nbytes: int) -> tuple[Callable[[], object], Callable[[np.ndarray], np.ndarray]]:
    """Return the call, and what returns the maximum of an array over all ranks."""
    import torch
    import torch.distributed as dist

    import antiphon.torch  # noqa: F401  (registers the backend where PyTorch does not load it)

    dist.init_process_group("antiphon" if backend == "torch" else backend)
    buffer = torch.zeros(nbytes // 4, dtype=torch.int32)

    def maximum(values: np.ndarray) -> np.ndarray:
        out = torch.from_numpy(values.copy())
        dist.all_reduce(out, dist.ReduceOp.MAX)
        return out.numpy()

    return lambda: dist.all_reduce(buffer), maximum


def over_comm(nbytes: int) -> tuple[Callable[[], object], Callable[[np.ndarray], np.ndarray]]:
    import antiphon

    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    group = antiphon.comm.connect(
        rank=int(os.environ["RANK"]), ranks=int(os.environ["WORLD_SIZE"]), address=address,
        table=os.environ["ANTIPHON_TABLE"],
    )  # fmt: skip
    buffer, out = np.zeros(nbytes // 4, np.int32), np.zeros(nbytes // 4, np.int32)
    return lambda: group.allreduce(buffer, out=out), lambda values: group.allreduce(values, op="max")


def main() -> None:
    runtime, calls, nbytes, command = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    call, maximum = over_comm(nbytes) if runtime == "comm" else over_torch(runtime, nbytes)
    rank, seconds = int(os.environ["RANK"]), np.zeros(PHASES * calls)
    for i in range(PHASES * calls):
        if rank == 0 and i % calls == 0:
            subprocess.run([command, str(i // calls)], check=True)
        maximum(np.zeros(1))  # a barrier that carries eight bytes
        begin = time.perf_counter()
        call()
        seconds[i] = time.perf_counter() - begin
    slowest = maximum(seconds)
    if rank == 0:
        for i, value in enumerate(slowest):
            print(f"call {i // calls} {value:.6f}")


main()
