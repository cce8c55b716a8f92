"""What processes do that make different calls: `mismatch_process.py comm RANKS ADDRESS...`, `mpi TABLE...` under
mpiexec, or `torch RANKS FOLDER`. The last rank makes the wrong call of a case, the others the right one; then all make
some alike. Prints JSON lines: what became of each rank in each case.

$MISMATCH_NEAR: 1, all groups share memory; 0, none; else every second, so that of the runs of a case some do.
$MISMATCH_EACH: one of so many cases, else all."""

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
    """`right` and `wrong`: what is called. `warm`: all plans are there, else some are made when the processes part."""

    name: str
    right: Call
    wrong: Call
    warm: bool = True


def line(count: int = 240, dtype: Any = np.float32) -> Any:
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
    ("type of another size, as long", lambda c: c.allreduce(line()), lambda c: c.allreduce(line(120, np.float64))),
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
    for name, right, wrong in PAIRS[:: int(os.environ.get("MISMATCH_EACH", "1"))]:
        for warm in (False, True):
            yield Case(name, right, wrong, warm)


def nearness(number: int) -> None:
    """Says to the group that is made next whether it may share memory. The runs of a case are numbered one after
    another, and begin in turn with and without."""
    os.environ["ANTIPHON_SHARED"] = os.environ["MISMATCH_NEAR"] or str((number // 2 + number) % 2)


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


def outcome(case: Case, c: Any, together: Call) -> dict[str, Any]:
    """What became of this rank: how many of the three calls it completed, and the error."""
    done = 0
    try:
        for call in (case.wrong if c.rank == c.ranks - 1 else case.right, together, together):
            call(c)
            done += 1
    except Exception as error:
        return {"done": done, "kind": type(error).__name__, "error": str(error)}
    return {"done": done, "kind": "", "error": ""}


def together(c: Any) -> None:
    """Alike at all."""
    got = c.allreduce(line())
    assert (got == c.ranks).all(), "wrong numbers"


def row(case: Case, c: Any, how: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"case": case.name, "how": how, "rank": c.rank, "ranks": c.ranks, **found}


def in_comm(rank: int, ranks: int, addresses: list[str]) -> None:
    for number, (case, address) in enumerate(zip(cases(), addresses, strict=True)):
        size = 2 + number % (ranks - 1)
        if rank >= size:
            continue
        nearness(number)
        with antiphon.comm.connect(rank=rank, ranks=size, address=address, timeout=TIMEOUT) as c:
            if case.warm:
                warm_up(c)
            found = outcome(case, c, together)
        tell(row(case, c, "warm" if case.warm else "cold", found))


def in_mpi(tables: list[str]) -> None:
    """Each case by each table, and with all left to the library."""
    from mpi4py import MPI

    for number, case in enumerate(case for case in cases() if case.warm):
        for way, table in enumerate((*tables, "")):
            nearness(number + way)
            c = antiphon.comm.connect(MPI.COMM_WORLD, table or None, timeout=TIMEOUT)
            warm_up(c)
            found = outcome(case, c, together)
            tell(row(case, c, table, found))
            c.close()
    MPI.COMM_WORLD.Barrier()
    os._exit(0)  # messages of broken calls may be under way for ever


def torch_cases() -> list[Case]:
    import torch
    import torch.distributed as dist

    def tensor(count: int = 240, dtype: Any = torch.float32) -> Any:
        return torch.ones(count, dtype=dtype)

    def reduced(count: int = 240, dtype: Any = torch.float32, op: Any = dist.ReduceOp.SUM) -> Call:
        return lambda c: dist.all_reduce(tensor(count, dtype), op, group=c.group)

    def gathered(count: int = 240) -> Call:
        return lambda c: dist.all_gather_into_tensor(tensor(count * c.ranks), tensor(count), group=c.group)

    def lists(*more: int) -> Call:
        """all_gather of lists: rank i has 5 + i elements, and so many more or fewer."""

        def call(c: Any) -> None:
            counts = [5 + i + (more[i] if i < len(more) else 0) for i in range(c.ranks)]
            dist.all_gather([tensor(count) for count in counts], tensor(5 + c.rank), group=c.group)

        return call

    def scattered(more: int) -> Call:
        def call(c: Any) -> None:
            counts = [5 + i + (more if i == 0 else 0) for i in range(c.ranks)]
            dist.reduce_scatter(tensor(counts[c.rank]), [tensor(count) for count in counts], group=c.group)

        return call

    def dealt(sends: int, expects: int) -> Call:
        """all_to_all: 3 elements to each, but so many to, or from, the first."""

        def call(c: Any) -> None:
            out, into = [expects] + [3] * (c.ranks - 1), [sends] + [3] * (c.ranks - 1)
            if c.rank == 0:
                out = into = [3] * c.ranks
            dist.all_to_all_single(tensor(sum(out)), tensor(sum(into)), out, into, group=c.group)

        return call

    def sent(root: int, dtype: Any = torch.float32) -> Call:
        return lambda c: dist.broadcast(tensor(dtype=dtype), group=c.group, group_src=root % c.ranks)

    sparse = torch.sparse_coo_tensor([[0]], [1.0], (240,))
    ops = dist.ReduceOp
    pairs: list[tuple[str, Call, Call]] = [
        ("all_gather_into_tensor for all_reduce", reduced(), gathered()),
        ("barrier for all_reduce", reduced(), lambda c: dist.barrier(group=c.group)),
        ("maximum for sum", reduced(), reduced(op=ops.MAX)),
        ("by gloo for ours", reduced(dtype=torch.int32), reduced(dtype=torch.int32, op=ops.BOR)),
        ("both by gloo", reduced(dtype=torch.int32, op=ops.BAND), reduced(dtype=torch.int32, op=ops.BOR)),
        ("sparse for dense", reduced(), lambda c: dist.all_reduce(sparse.clone(), group=c.group)),
        ("int32 for float32", reduced(), reduced(dtype=torch.int32)),
        ("bfloat16 for float16", reduced(dtype=torch.float16), reduced(dtype=torch.bfloat16)),
        ("booleans for bytes", sent(0, torch.uint8), sent(0, torch.bool)),
        ("another size", reduced(), reduced(241)),
        ("none for some", gathered(), gathered(0)),
        ("another root", sent(0), sent(-1)),
        ("a skipped call", lambda c: (reduced()(c), gathered()(c)), gathered()),
        ("uneven all_gather", lists(), lists(1)),
        ("uneven reduce_scatter", scattered(0), scattered(1)),
        ("uneven for even", lists(), gathered()),
        ("all_to_all sends more", dealt(3, 3), dealt(4, 3)),
        ("all_to_all expects more", dealt(3, 3), dealt(3, 2)),
        ("all_to_all for all_reduce", reduced(), dealt(3, 3)),
    ]
    return [Case(*pair, warm) for pair in pairs for warm in (False, True)]


@dataclass(frozen=True)
class Torch:
    """A group as the cases know it."""

    group: Any
    rank: int
    ranks: int


def in_torch(rank: int, ranks: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("antiphon", store=store, rank=rank, world_size=ranks)

    def together(c: Any) -> None:
        got = torch.ones(240)
        dist.all_reduce(got, group=c.group)
        assert (got == c.ranks).all(), "wrong numbers"

    for number, case in enumerate(torch_cases()):
        members = range(ranks - number % (ranks - 1))
        nearness(number)
        group = dist.new_group(members, timeout=timedelta(seconds=TIMEOUT))
        if rank not in members:
            continue
        c = Torch(group, rank, len(members))
        if case.warm:
            for root in range(c.ranks):
                dist.broadcast(torch.ones(240), group=group, group_src=root)
            together(c)
            dist.all_gather_into_tensor(torch.ones(240 * c.ranks), torch.ones(240), group=group)
        tell(row(case, c, "warm" if case.warm else "cold", outcome(case, c, together)))
        dist.destroy_process_group(group)
    dist.destroy_process_group()


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
        in_mpi(sys.argv[2:])
    elif sys.argv[1] == "torch":
        import antiphon.torch  # once for all

        forked(int(sys.argv[2]), lambda rank: in_torch(rank, int(sys.argv[2]), sys.argv[3]))
    else:
        forked(int(sys.argv[2]), lambda rank: in_comm(rank, int(sys.argv[2]), sys.argv[3:]))
