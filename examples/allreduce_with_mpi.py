"""Time an allreduce of 1 MB, with mpi4py alone: nothing in it knows of Antiphon.

    mpiexec -n 4 python examples/allreduce_with_mpi.py

To run it by a table: ANTIPHON_TABLE=table.json LD_PRELOAD=$(antiphon build mpi) before the command.
"""

import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
data = np.full(250_000, world.rank + 1, np.float32)
total = np.empty_like(data)
world.Allreduce(data, total)  # connections are made

times = []
for _ in range(5):
    world.Barrier()
    began = time.perf_counter()
    world.Allreduce(data, total)
    times.append(time.perf_counter() - began)

assert (total == sum(range(1, world.size + 1))).all()
if world.rank == 0:
    print(f"allreduce of 1 MB on {world.size} processes: {sorted(times)[2] * 1e3:.1f} ms")
