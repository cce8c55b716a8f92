"""What processes do that make different calls: `mismatch_process.py comm RANKS ADDRESS...`, `mpi TABLE` under mpiexec, or
`torch FOLDER RANKS`. The last rank makes the wrong call of a case, the others the right one; then all make one alike.
Prints JSON lines: what became of each rank in each case."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

import antiphon

TIMEOUT = 10.0
Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """`right` and `wrong`: what is called. `warm`: the same calls, made before by all (else their plans are made in the case)."""

    name: str
    right: Call
    wrong: Call
    warm: bool = True


def line(count: int = 240, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


def part(count: int = 240, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


PAIRS: tuple[tuple[str, Call, Call], ...] = (
    ("other collective", lambda c: c.allgather(line()), lambda c: c.allreduce(line())),
    ("other collective, to one", lambda c: c.reduce(line()), lambda c: c.gather(line())),
    ("other collective, from one", lambda c: c.broadcast(line()), lambda c: c.scatter(None, out=line())),
    ("other collective, in parts", lambda c: c.alltoall(line()), lambda c: c.reducescatter(line())),
    ("operator", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(), "max")),
    ("operator, in parts", lambda c: c.reducescatter(line()), lambda c: c.reducescatter(line(), "min")),
    ("operator, to one", lambda c: c.reduce(line()), lambda c: c.reduce(line(), "prod")),
    ("operator, average", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(), "avg")),
    ("type of the same size", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(240, np.int32))),
    ("type of the same size, moved", lambda c: c.broadcast(line()), lambda c: c.broadcast(line(240, np.int32))),
    ("type of another size", lambda c: c.allgather(line()), lambda c: c.allgather(line(240, np.float64))),
    ("type of another size, as many bytes", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(120, np.float64))),
    ("size", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(252))),
    ("size, across a border", lambda c: c.allreduce(line(3)), lambda c: c.allreduce(line(4))),
    ("size, long", lambda c: c.allgather(line(50000)), lambda c: c.allgather(line(50001))),
    ("size, in parts", lambda c: c.alltoall(line()), lambda c: c.alltoall(line(480))),
    ("size, none", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(0))),
    ("size, from one", lambda c: c.broadcast(line()), lambda c: c.broadcast(line(239))),
    ("root", lambda c: c.broadcast(line()), lambda c: c.broadcast(line(), c.rank)),
    ("root, to one", lambda c: c.gather(line()), lambda c: c.gather(line(), c.rank)),
    ("root, combined", lambda c: c.reduce(line()), lambda c: c.reduce(line(), root=c.rank)),
    ("every root", lambda c: c.broadcast(line(), (c.rank + 1) % c.ranks), lambda c: c.broadcast(line(), 0)),
    ("a skipped call", lambda c: (c.allreduce(line()), c.allgather(line())), lambda c: c.allgather(line())),
)  # fmt: skip


def cases() -> Iterable[Case]:
    for name, right, wrong in PAIRS:
        for warm in (False, True):
            yield Case(name, right, wrong, warm)


def tell(row: dict[str, Any]) -> None:
    """In one piece, whoever else is writing."""
    os.write(1, json.dumps(row).encode() + b"\n")


def warm_up(c: Any) -> None:
    """All calls of the cases, with their plans."""
    for root in range(c.ranks):
        c.broadcast(line(), root)
        c.reduce(line(), root=root)
        c.gather(line(), root)
        c.scatter(line(240 * c.ranks) if c.rank == root else None, root, out=line())
    c.allreduce(line())
    c.allgather(line())
    c.reducescatter(line())
    c.alltoall(line())


def one_case(c: Any, case: Case) -> dict[str, Any]:
    """What became of this rank: the calls that it completed, and the error."""
    done = 0
    try:
        if case.warm:
            warm_up(c)
        (case.wrong if c.rank == c.ranks - 1 else case.right)(c)
        done = 1
        c.allreduce(line())
        done = 2
        c.barrier() if hasattr(c, "barrier") else c.allgather(line())
        done = 3
    except Exception as error:
        return {"done": done, "kind": type(error).__name__, "error": str(error)}
    return {"done": done, "kind": "", "error": ""}


def in_comm(rank: int, ranks: int, addresses: list[str]) -> None:
    for number, (case, address) in enumerate(zip(cases(), addresses, strict=False)):
        size = 2 + number % (ranks - 1)
        if rank >= size:
            continue
        with antiphon.comm(rank=rank, ranks=size, address=address, timeout=TIMEOUT) as c:
            found = one_case(c, case)
        tell({"case": case.name, "warm": case.warm, "rank": rank, "ranks": size, **found})


def in_mpi(table: str) -> None:
    from mpi4py import MPI

    for case in cases():
        for given in ((table, None) if case.warm else (table,)):
            c = antiphon.comm(MPI.COMM_WORLD, given, timeout=TIMEOUT)
            found = one_case(c, case)
            tell({"case": case.name, "warm": given is None, "rank": c.rank, "ranks": c.ranks, **found})
            c.close()
    MPI.COMM_WORLD.Barrier()
    os._exit(0)  # messages of broken calls may be under way for ever


def forked(ranks: int, do: Callable[[int], None]) -> None:
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            code = 1
            try:
                do(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    tell({"codes": codes})


if __name__ == "__main__":
    if sys.argv[1] == "mpi":
        in_mpi(sys.argv[2])
    else:
        forked(int(sys.argv[2]), lambda rank: in_comm(rank, int(sys.argv[2]), sys.argv[3:]))
