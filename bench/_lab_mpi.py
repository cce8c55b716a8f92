"""An MPI program that knows nothing of Antiphon: the library's own collectives, timed. Prints one line of JSON.

python _lab_mpi.py KIND NBYTES REPEAT, under mpiexec; NBYTES as nccl-tests counts.
"""

import json
import sys
import time
from statistics import median

import numpy as np
from mpi4py import MPI


def main() -> None:
    comm = MPI.COMM_WORLD
    kind, nbytes, repeat = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    count = nbytes // 4 // (comm.size if kind == "allgather" else 1)
    source = np.full(count, comm.rank + 1, np.float32)
    target = np.zeros(count * comm.size if kind == "allgather" else count, np.float32)
    call = {
        "allgather": lambda: comm.Allgather(source, target),
        "allreduce": lambda: comm.Allreduce(source, target),
        "broadcast": lambda: comm.Bcast(source),
    }[kind]
    spent = []
    for turn in range(repeat + 1):
        comm.Barrier()
        began = time.perf_counter()
        call()
        slowest = comm.allreduce(time.perf_counter() - began, MPI.MAX)
        if turn:
            spent.append(slowest)
    right = {
        "allgather": lambda: target.reshape(comm.size, -1) == np.arange(1, comm.size + 1)[:, None],
        "allreduce": lambda: target == comm.size * (comm.size + 1) // 2,
        "broadcast": lambda: source == 1,
    }[kind]()
    if not comm.allreduce(bool(right.all()), MPI.LAND):
        sys.exit("a result is wrong")
    if comm.rank == 0:
        print(json.dumps({"seconds": median(spent), "least": min(spent), "most": max(spent)}), flush=True)


main()
