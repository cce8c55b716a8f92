"""One process of a launch of runs.py: `python _runs_mpi.py LIBRARY SEED` under mpiexec."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
from _definition import POISON, Definition
from mpi4py import MPI
from runs import MPI_RANKS, MPI_RUNS, NAME, asked, drawn

from antiphon.core.program import encode
from antiphon.errors import AntiphonError, Unsupported
from antiphon.formats.program import both
from antiphon.runtimes.engine.native import Engine


def go(path: str, seed: int) -> int:
    """How many were run. Whether a rank runs in place is its own affair where the schedule can be run both ways."""
    rng, own = random.Random(f"{NAME} under MPI {seed}"), random.Random(f"{seed} {MPI.COMM_WORLD.rank}")
    rank, engine, done = MPI.COMM_WORLD.rank, Engine(Path(path)), 0
    wire = engine.mpi(MPI.COMM_WORLD, range(MPI_RANKS), MPI_RANKS)
    while done < MPI_RUNS:
        base = drawn(rng, MPI_RANKS)
        unit, dtype, op, of_data = asked(rng)
        if base is None or base[0].collective.ranks != MPI_RANKS:
            continue
        definition = Definition(base[0].collective, unit, dtype, op, of_data)
        try:
            programs = both(base[0])
        except Unsupported:
            continue
        in_place = definition.fits_in_place() and len(programs) > 1 and own.random() < 0.5
        plan = engine.program(encode(programs)).plan(rank, unit, in_place)
        given = definition.before(rank, in_place)
        target = given if in_place else np.full(plan.needs.output, POISON, definition.dtype)
        plan.run(None if in_place else given, target, wire, op, 60.0)
        wanted = definition.after(rank, in_place)
        if not np.array_equal(target, wanted) or not (
            in_place or np.array_equal(given, definition.before(rank, False))
        ):
            print(f"run {done}, rank {rank}: {target[:20].tolist()}, not {wanted[:20].tolist()}", flush=True)
            MPI.COMM_WORLD.Abort(1)
        done += 1
    MPI.COMM_WORLD.Barrier()
    wire.close()
    return done


if __name__ == "__main__":
    try:
        count = go(sys.argv[1], int(sys.argv[2]))
    except AntiphonError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        MPI.COMM_WORLD.Abort(1)
    else:
        if MPI.COMM_WORLD.rank == 0:
            print(f"runs {count}", flush=True)
