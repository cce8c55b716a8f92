"""Time an allreduce of 1 MB, with mpi4py alone: nothing in it knows of Antiphon.

    mpiexec -n 4 python examples/allreduce_with_mpi.py

To run it with a table: ANTIPHON_TABLE=table.json LD_PRELOAD=$(antiphon build mpi) before the command.
"""

import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
data = np.full(250_000, world.rank + 1, np.float32)
total = np.empty_like(data)

for _ in range(8):  # connections are opened, and an unmeasured table is compared with the library
    world.Allreduce(data, total)

times = []
for _ in range(5):
    world.Barrier()
    start = time.perf_counter()
    world.Allreduce(data, total)
    times.append(time.perf_counter() - start)

assert (total == sum(range(1, world.size + 1))).all()
if world.rank == 0:
    print(f"allreduce of 1 MB on {world.size} processes: {sorted(times)[2] * 1e3:.1f} ms")
