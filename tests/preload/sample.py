"""An mpi4py program that knows nothing of Antiphon: every collective, in place and not, by types, operators and sizes.

    mpiexec -n N python sample.py SIZES TYPES OUT.json

Every result is held against what it must be. Rank 0 writes which calls were wrong, and a checksum of all results.
"""

import itertools
import json
import sys
import zlib

import numpy as np
from mpi4py import MPI

TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
OPERATORS = {"sum": (MPI.SUM, np.add), "prod": (MPI.PROD, np.multiply), "max": (MPI.MAX, np.maximum)}
OPERATORS["min"] = (MPI.MIN, np.minimum)

comm = MPI.COMM_WORLD
me, ranks = comm.rank, comm.size
wrong: list[str] = []
checks: list[int] = [0]


def data(rank: int, count: int, dtype: str, op: str = "sum") -> np.ndarray:
    """Small whole numbers: sums and products are exact, in whatever order."""
    values = (np.arange(count) * 7 + rank * 3) % 5
    if op == "prod":
        values = values % 2 + 1
        values[(np.arange(count) + rank) % 3 == 0] = 1
    return values.astype(dtype) if dtype[0] != "i" else (values - (op != "prod")).astype(dtype)


def same(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    checks.append(zlib.crc32(found.tobytes(), checks[-1]))
    if not np.array_equal(found, expected):
        bad = int(np.flatnonzero(found != expected)[0])
        wrong.append(f"{name} on rank {me}: element {bad} of {len(found)} is {found[bad]}, not {expected[bad]}")


def combining(count: int, dtype: str, name: str, in_place: bool) -> None:
    op, combine = OPERATORS[name]
    case = f"{dtype} {name} {count} {in_place}"
    every = [data(r, count, dtype, name) for r in range(ranks)]
    total = every[0]
    for one in every[1:]:
        total = combine(total, one)
    out = every[me].copy() if in_place else np.zeros(count, dtype)
    comm.Allreduce(MPI.IN_PLACE if in_place else every[me], out, op)
    same(f"allreduce {case}", out, total)
    root = (count + len(name)) % ranks
    out = every[me].copy() if in_place else np.zeros(count, dtype)
    if me == root:
        comm.Reduce(MPI.IN_PLACE if in_place else every[me], out, op, root)
        same(f"reduce {case}", out, total)
    else:
        comm.Reduce(every[me], None, op, root)
    every = [data(r, count * ranks, dtype, name) for r in range(ranks)]
    total = every[0]
    for one in every[1:]:
        total = combine(total, one)
    mine = total[me * count : (me + 1) * count]
    for block in (True, False):
        out = every[me].copy() if in_place else np.zeros(count, dtype)
        given = MPI.IN_PLACE if in_place else every[me]
        if block:
            comm.Reduce_scatter_block(given, out, op)
        else:
            comm.Reduce_scatter(given, out, [count] * ranks, op)
        same(f"reduce_scatter {block} {case}", out[:count], mine)


def moving(count: int, dtype: str, in_place: bool) -> None:
    case = f"{dtype} {count} {in_place}"
    every = [data(r, count, dtype) for r in range(ranks)]
    whole = np.concatenate(every)
    mine = slice(me * count, (me + 1) * count)
    root = count % ranks
    out = every[root].copy() if me == root else np.zeros(count, dtype)
    comm.Bcast(out, root)
    same(f"bcast {case}", out, every[root])
    out = np.zeros(count * ranks, dtype)
    out[mine] = every[me]
    comm.Allgather(MPI.IN_PLACE if in_place else every[me], out)
    same(f"allgather {case}", out, whole)
    if me == root:
        out = np.zeros(count * ranks, dtype)
        out[mine] = every[me]
        comm.Gather(MPI.IN_PLACE if in_place else every[me], out, root)
        same(f"gather {case}", out, whole)
    else:
        comm.Gather(every[me], None, root)
    out = np.zeros(count, dtype)
    if me == root:
        given = whole.copy()
        comm.Scatter(given, MPI.IN_PLACE if in_place else out, root)
        same(f"scatter {case}", given if in_place else out, whole if in_place else every[me])
    else:
        comm.Scatter(None, out, root)
        same(f"scatter {case}", out, every[me])
    send = np.concatenate([data(me * ranks + r, count, dtype) for r in range(ranks)])
    expected = np.concatenate([data(r * ranks + me, count, dtype) for r in range(ranks)])
    out = send.copy() if in_place else np.zeros(count * ranks, dtype)
    comm.Alltoall(MPI.IN_PLACE if in_place else send, out)
    same(f"alltoall {case}", out, expected)


def main() -> None:
    sizes = [int(s) for s in sys.argv[1].split(",")]
    types = sys.argv[2].split(",") if sys.argv[2] else TYPES
    for number, (count, dtype) in enumerate(itertools.product(sizes, types)):
        for in_place in (False, True):
            moving(count, dtype, in_place)
            names = [*OPERATORS] if count <= 1000 else [[*OPERATORS][number % 4]]
            for name in names:
                combining(count, dtype, name, in_place)
    found = comm.gather((wrong, checks[-1], len(checks)))
    if found is not None:
        about = {"wrong": [text for one in found for text in one[0]], "check": [one[1] for one in found]}
        with open(sys.argv[3], "w") as file:
            json.dump({**about, "calls": sum(one[2] for one in found)}, file)


main()
