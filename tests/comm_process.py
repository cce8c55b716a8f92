"""What processes of a test of antiphon.comm do: `comm_process.py mpi TABLE` under mpiexec, or
`comm_process.py sockets RANKS ADDRESS TABLE CHECK...`, which makes the processes by fork. Prints JSON lines."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import antiphon
from antiphon.errors import AntiphonError, Invalid

TYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    ml_dtypes.bfloat16,
)  # fmt: skip
Array = np.ndarray[Any, Any]


def tell(row: dict[str, Any]) -> None:
    """In one piece, whoever else is writing."""
    os.write(1, json.dumps(row).encode() + b"\n")


def combined(rows: list[Array], op: str) -> Array:
    """Of small whole numbers, exact in every type; whole numbers wrap around."""
    dtype = rows[0].dtype
    whole = np.stack(rows).astype(np.int64)
    combine: Any = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    total = combine.reduce(whole)
    if op != "avg":
        return total.astype(dtype)
    return (np.trunc(total / len(rows)) if dtype.kind in "iu" else total / len(rows)).astype(dtype)


def same(got: Array | None, want: Array) -> None:
    assert got is not None
    assert got.dtype == want.dtype
    assert np.array_equal(got, want), (got, want)


def check_combining(c: Any, rows: list[Array], op: str) -> None:
    mine, size, want = rows[c.rank], len(rows[0]), combined(rows, op)
    same(c.allreduce(mine, op), want)
    own = mine.copy()
    assert c.allreduce(own, op, out=own) is own
    same(own, want)
    many = np.concatenate([mine] * c.ranks)
    same(c.reducescatter(many, op), want)
    block = many[c.rank * size : (c.rank + 1) * size]
    c.reducescatter(many, op, out=block)
    same(block, want)
    for root in (0, c.ranks - 1):
        got = c.reduce(mine, op, root)
        own = mine.copy()
        c.reduce(own, op, root, out=own)
        if c.rank == root:
            same(got, want)
            same(own, want)
        else:
            assert got is None
            same(own, mine)


def check_moving(c: Any, rows: list[Array]) -> None:
    mine, size, every = rows[c.rank], len(rows[0]), np.concatenate(rows)
    same(c.allgather(mine), every)
    line = np.zeros_like(every)
    block = line[c.rank * size : (c.rank + 1) * size]
    block[:] = mine
    same(c.allgather(block, out=line), every)
    for root in range(c.ranks) if size == 7 else (size % c.ranks,):
        own = mine.copy()
        same(c.broadcast(own, root), rows[root])
        here = c.rank == root
        got = c.gather(mine, root)
        line[:] = 0
        block[:] = mine
        c.gather(block, root, out=line if here else None)
        if here:
            same(got, every)
            same(line, every)
        same(c.scatter(every if here else None, root, out=np.empty_like(mine)), mine)
        whole = every.copy()
        same(c.scatter(whole if here else None, root, out=whole[c.rank * size : (c.rank + 1) * size]), mine)
    given = np.concatenate([mine + mine.dtype.type(j) for j in range(c.ranks)])
    want = np.concatenate([row + row.dtype.type(c.rank) for row in rows])
    same(c.alltoall(given), want)
    c.alltoall(given, out=given)
    same(given, want)


def check_counts(c: Any) -> None:
    """Random counts, zeros, one receiver of nearly all, equal ones; rows of several shapes."""
    for call in range(15):
        draw = np.random.default_rng(call)
        counts = draw.integers(0, (1, 5, 400)[call % 3], (c.ranks, c.ranks)) + (call % 5 == 4)
        counts[:, -1] *= 1 + 50 * (call % 2)
        shape, dtype = ((), (3,), (2, 0))[(call + call // 3) % 3], (np.float32, np.int8, ml_dtypes.bfloat16)[call // 5]
        rows = [[np.full((n, *shape), 10 * i + j, dtype) for j, n in enumerate(line)] for i, line in enumerate(counts)]
        got = c.alltoallv(np.concatenate(rows[c.rank]), counts[c.rank].tolist())
        same(got, np.concatenate([row[c.rank] for row in rows]))
    for wrong in ([1] * c.ranks, [2 * c.ranks], [-1, 2 * c.ranks + 1, *[0] * (c.ranks - 2)], [0.5] * c.ranks):
        refused("the rows for each of", lambda wrong=wrong: c.alltoallv(np.zeros(2 * c.ranks), wrong))
    refused("its rows have", lambda: c.alltoallv(np.zeros((c.ranks, 2 if c.rank else 3)), [1] * c.ranks))


def check_all(c: Any, types: tuple[Any, ...] = TYPES, sizes: tuple[int, ...] = (0, 1, 7, 1000)) -> None:
    """All types, operators, sizes, in place and not."""
    for dtype in types:
        for size in sizes:
            rows = [((np.arange(size) + 2 * r) % 3 + 1).astype(dtype) for r in range(c.ranks)]
            for op in ("sum", "prod", "max", "min", "avg") if size == 7 else ("sum",):
                check_combining(c, rows, op)
            check_moving(c, rows)
    check_combining(c, [np.full(5, 100 + r, np.int8) for r in range(c.ranks)], "sum")  # wraps around
    check_combining(c, [np.arange(150001, dtype=np.float64) + r for r in range(c.ranks)], "sum")


def check_shapes(c: Any) -> None:
    table = np.arange(6.0).reshape(2, 3) + c.rank
    assert c.allreduce(table).shape == (2, 3)
    assert c.allgather(table).shape == (2 * c.ranks, 3)
    assert c.allgather(np.array(3, np.float32)).shape == (c.ranks,)
    assert c.reducescatter(np.zeros((2 * c.ranks, 3))).shape == (2, 3)


def check_learning(c: Any, calls: int = 500) -> None:
    """Calls of three sizes, in place and not, with delays that each process draws: all right, whatever is tried."""
    draw = np.random.default_rng(c.rank)
    for call in range(calls):
        row = np.arange(50_000 if call % 2 else 300 + call // 200, dtype=np.float32)
        want = c.ranks * row + call * c.ranks * (c.ranks - 1) // 2
        given = row + call * c.rank
        if draw.random() < 0.05:
            time.sleep(draw.random() * 1e-3)
        got = c.allreduce(given, out=given if call % 3 else None)
        assert np.array_equal(got, want), call


def refused(what: str, call: Any) -> None:
    said = "nothing"
    try:
        call()
    except AntiphonError as error:
        said = str(error)
    assert what in said, (what, said)


def check_wrong_calls(c: Any) -> None:
    line, n = np.zeros(4 * c.ranks), 4 * c.ranks
    refused("NumPy array", lambda: c.allreduce([1.0]))
    refused("one after another", lambda: c.allreduce(line[::2]))
    refused("cannot be sent", lambda: c.allreduce(line.astype(">f8")))
    refused("data type", lambda: c.allreduce(line.astype(complex)))
    refused("operator", lambda: c.allreduce(line, "mean"))
    refused("root", lambda: c.broadcast(line, c.ranks))
    refused("needed are", lambda: c.allreduce(line, out=np.zeros(n + 1)))
    refused("needed are", lambda: c.allreduce(line, out=np.zeros(n, np.float32)))
    refused("overlap", lambda: c.allreduce(line[1:], out=line[:-1]))
    refused("equal parts", lambda: c.alltoall(np.zeros(4 * c.ranks + 1)))
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    refused("cannot be written", lambda: c.allreduce(line[:4], out=fixed))


def run_mpi(table: str) -> None:
    """The world by a table, by none; a group of some by a plan for them; groups that fit nothing."""
    from mpi4py import MPI

    world, told = MPI.COMM_WORLD, dict[str, Any]()
    if os.environ.get("ANTIPHON_LEARN"):
        with antiphon.comm.connect(world, table) as c:
            check_learning(c)
            if world.rank == 0:
                tell({"report": c.report()})
        return
    with antiphon.comm.connect(world, table) as c:
        check_all(c)
        check_shapes(c)
        check_wrong_calls(c)
        told["table"] = c.report()
    with antiphon.comm.connect(None) as c:
        check_all(c, ("uint16", "float16", ml_dtypes.bfloat16), (0, 7))
        told["none"] = c.report()
        check_counts(c)
        told["counts"] = c.report()
    some = world.Split(int(world.rank == 1), world.rank)
    with antiphon.comm.connect(some, table if world.rank != 1 else None) as c:
        rows = [np.full(9, float(r)) for r in range(c.ranks)]
        same(c.allgather(rows[c.rank]), np.concatenate(rows))
        told["some"] = c.report()
    two = world.Split(world.rank % 2, world.rank)
    refused("ranks", lambda: antiphon.comm.connect(two, table))  # it has no plan for such a group
    turned = world.Split(0, -world.rank)
    with antiphon.comm.connect(turned, table) as c:
        rows = [np.full(3, float(r)) for r in range(c.ranks)]
        same(c.allreduce(rows[c.rank]), combined(rows, "sum"))
    refused("after close()", lambda: c.allreduce(np.ones(1)))
    os.chdir(Path(table).parent)
    page = Path(__file__).parent.parent / "docs" / "numpy.md"
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(page.read_text().split("```python\n")[1].partition("```")[0], str(page), "exec"), {})
    if world.rank == 0:
        tell(told)


def run_one(rank: int, ranks: int, address: str, table: str, checks: list[str]) -> None:
    timeout = 1.0 if {"lonely", "odd"} & {*checks} else 20.0
    if "odd" in checks and rank == 1:
        ranks += 1
    table_given: Any = table if rank == 0 and table else None
    with antiphon.comm.connect(rank=rank, ranks=ranks, address=address, table=table_given, timeout=timeout) as c:
        if "all" in checks:
            check_all(c)
            check_shapes(c)
            check_wrong_calls(c)
        if "counts" in checks:
            check_counts(c)
        if "learns" in checks:
            check_learning(c)
        if "watched" in checks:
            for _ in range(7):
                c.allreduce(np.ones(50_000))
            if rank == 0:
                tell(antiphon.measure.watch(os.environ["ANTIPHON_WATCH"]))
            c.allreduce(np.ones(2))
        if "killed" in checks:
            if rank == ranks - 1:
                os.kill(os.getpid(), 9)
            began = time.monotonic()
            for _ in range(100):
                c.allreduce(np.ones(50_000))
            raise Invalid(f"nobody noticed in {time.monotonic() - began}")
        if rank == 0:
            tell({"report": c.report()})


def run_sockets(ranks: int, address: str, table: str, checks: list[str]) -> None:
    children = []
    for rank in range(ranks - int("lonely" in checks)):
        child = os.fork()
        if not child:
            code = 1
            try:
                run_one(rank, ranks, address, table, checks)
                code = 0
            except AntiphonError as error:
                tell({"rank": rank, "error": str(error), "kind": type(error).__name__})
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    tell({"codes": codes})


if __name__ == "__main__":
    if sys.argv[1] == "mpi":
        run_mpi(sys.argv[2])
    else:
        run_sockets(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
