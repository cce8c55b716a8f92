"""What every process of a test under PyTorch does: `python torch_process.py FOLDER PROCESSES CHECK...`.

PyTorch is loaded once, then the processes are made by fork. Each writes what it found to FOLDER/RANK.json. The checks
ask for all that the backend must do; every result is held against gloo's, or against what is known.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loaded by optimizers and meshes: here once instead of in every process
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_at_once import check_at_once  # noqa: F401 (by name)
from torch_between import check_counted, check_many, check_monitored, check_several  # noqa: F401 (by name)

import antiphon.torch
from antiphon.errors import AntiphonError
from antiphon.select import load_plans, plan  # noqa: F401  (by groups: likewise loaded once)

TIMEOUT = 20.0
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
Found = dict[str, Any]


def numbers(rank: int, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Small whole numbers, so that every sum is exact in every type."""
    line = torch.arange(count) * 3 % 5 + rank % 3
    return (line % 2).bool() if dtype is torch.bool else line.to(dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    assert torch.equal(got, want), (got, want)


def calls(collective: str, by: str = "antiphon", group: Any = None) -> int:
    rows = antiphon.torch.report(group)
    return sum(row["calls"] for row in rows if row["collective"] == collective and row["served_by"] == by)


@contextmanager
def served(collective: str, least: int, group: Any = None) -> Iterator[None]:
    """Ours must have served so many calls, and gloo none of them."""
    ours, theirs = calls(collective, group=group), calls(collective, "library", group)
    yield
    assert calls(collective, group=group) - ours >= least, antiphon.torch.report(group)
    assert calls(collective, "library", group) == theirs, antiphon.torch.report(group)


def wanted(rows: list[torch.Tensor], op: Any) -> torch.Tensor:
    whole = torch.stack(rows)
    wide = whole.to(torch.float64) if whole.is_floating_point() else whole.to(torch.int64)
    if op == ReduceOp.AVG:
        total = wide.sum(0)
        return ((total / len(rows)) if whole.is_floating_point() else total.div(len(rows), rounding_mode="trunc")).to(
            whole.dtype
        )
    ways: tuple[tuple[Any, Callable[[], torch.Tensor]], ...] = (
        (ReduceOp.SUM, lambda: wide.sum(0)), (ReduceOp.PRODUCT, lambda: wide.prod(0)),
        (ReduceOp.MAX, lambda: wide.amax(0)), (ReduceOp.MIN, lambda: wide.amin(0)),
    )  # fmt: skip
    return next(way for one, way in ways if op == one)().to(whole.dtype)


# ---- single calls ----


def check_reductions(rank: int, size: int) -> Found:
    ops, roots = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG), cycle(range(size))
    with served("allreduce", 72), served("reduce", 45), served("reducescatter", 144):
        for dtype in (*FLOATING, *WHOLE):
            for count in (0, 1, 7, 1001):
                for op in ops if count == 7 else ops[:1]:
                    rows = [numbers(r, count, dtype) for r in range(size)]
                    got = rows[rank].clone()
                    dist.all_reduce(got, op)
                    same(got, wanted(rows, op))
                    many = [numbers(r, count * size, dtype) for r in range(size)]
                    part = wanted(many, op)[rank * count : (rank + 1) * count]
                    got = torch.empty(count, dtype=dtype)
                    dist.reduce_scatter_tensor(got, many[rank], op)
                    same(got, part)
                    got = torch.empty(count, dtype=dtype)
                    dist.reduce_scatter(got, list(many[rank].reshape(size, count)), op)
                    same(got, part)
                    if count == 7:
                        root = next(roots)
                        got = rows[rank].clone()
                        dist.reduce(got, root, op)
                        same(got, wanted(rows, op) if rank == root else rows[rank])
    check_unusual_operators(rank, size)
    return {}


def check_unusual_operators(rank: int, size: int) -> None:
    with served("allreduce", 6):
        for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
            narrow = torch.full((3,), float(rank + 1)).to(kind)
            dist.all_reduce(narrow)
            same(narrow.float(), torch.full((3,), size * (size + 1) / 2).to(kind).float())
        got = torch.full((5,), float(rank + 1))
        dist.all_reduce(got, dist._make_nccl_premul_sum(0.5))
        same(got, torch.full((5,), size * (size + 1) / 4))
        got = torch.full((3,), complex(rank, 1))
        dist.all_reduce(got)
        same(got, torch.full((3,), complex(size * (size - 1) / 2, size)))
        flag = torch.tensor([rank == 1, True, False])
        either, both = flag.clone(), flag.clone()
        dist.all_reduce(either, ReduceOp.MAX)
        dist.all_reduce(both, ReduceOp.MIN)
        assert either.tolist() == [True, True, False]
        assert both.tolist() == [False, True, False]
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, ReduceOp.BOR)  # gloo's
    assert bits.item() == 2**size - 1
    assert calls("allreduce", "library") == 1
    try:
        dist.all_reduce(torch.zeros(2, dtype=torch.complex64), ReduceOp.MAX)
    except (RuntimeError, ValueError):
        pass
    else:
        raise AssertionError("the maximum of complex numbers is no number")


def check_moving(rank: int, size: int) -> Found:
    kinds = (*FLOATING, *WHOLE, torch.bool, torch.complex64, torch.float8_e4m3fn)
    with served("allgather", 96), served("broadcast", 44), served("alltoall", 44):
        for dtype in kinds:
            for count in (0, 1, 7, 1001):
                rows = [numbers(r, count, torch.float64).to(dtype) for r in range(size)]
                bits = [row.view(torch.uint8) if dtype == torch.float8_e4m3fn else row for row in rows]
                got = [torch.empty(count, dtype=dtype) for _ in range(size)]
                dist.all_gather(got, rows[rank])
                line = torch.empty(count * size, dtype=dtype)
                dist.all_gather_into_tensor(line, rows[rank])
                views = [one.view(torch.uint8) if dtype == torch.float8_e4m3fn else one for one in (*got, line)]
                same(torch.cat(views[:-1]), torch.cat(bits))
                same(views[-1], torch.cat(bits))
                if dtype == torch.float8_e4m3fn:
                    continue
                one = rows[rank].clone()
                dist.broadcast(one, 1)
                same(one, rows[1])
                line = torch.cat([rows[rank] + (j if dtype != torch.bool else 0) for j in range(size)]).to(dtype)
                out = torch.empty_like(line)
                dist.all_to_all_single(out, line)
                want = [(row + (rank if dtype != torch.bool else 0)).to(dtype) for row in rows]
                same(out, torch.cat(want))
    with served("gather", size), served("scatter", size):
        for root in range(size):
            rows = [numbers(r, 9) for r in range(size)]
            lists = [torch.empty(9, dtype=torch.float64) for _ in range(size)] if rank == root else None
            dist.gather(rows[rank], lists, dst=root)
            for got_one, want_one in zip(lists or [], rows, strict=False):
                same(got_one, want_one)
            mine = torch.empty(9, dtype=torch.float64)
            dist.scatter(mine, rows if rank == root else None, src=root)
            same(mine, rows[rank])
    return {}


def check_uneven(rank: int, size: int) -> Found:
    rows = [numbers(r, r + 2) for r in range(size)]
    got = [torch.empty(r + 2, dtype=torch.float64) for r in range(size)]
    dist.all_gather(got, rows[rank])
    for one, want in zip(got, rows, strict=True):
        same(one, want)
    given = [numbers(rank, r + 2) for r in range(size)]
    mine = torch.empty(rank + 2, dtype=torch.float64)
    dist.reduce_scatter(mine, given)
    same(mine, torch.stack([numbers(r, rank + 2) for r in range(size)]).sum(0))
    counts = [(rank + j) % 3 for j in range(size)]  # symmetric: as many both ways
    line = torch.full((sum(counts), 2), float(rank))
    out = torch.empty(sum(counts), 2)
    dist.all_to_all_single(out, line, counts, counts)
    same(out, torch.cat([torch.full((count, 2), float(j)) for j, count in enumerate(counts)]))
    parts = [torch.full((rank + 1,), float(10 * rank + j)) for j in range(size)]
    outs = [torch.empty(j + 1) for j in range(size)]
    dist.all_to_all(outs, parts)
    for j, one in enumerate(outs):
        same(one, torch.full((j + 1,), float(10 * j + rank)))
    # as uneven as can be, though two processes see nothing of it
    counts = [5 if {rank, j} == {0, 1} else 2 for j in range(size)]
    line, out = torch.full((sum(counts),), float(rank)), torch.empty(sum(counts))
    dist.all_to_all_single(out, line, counts, counts)
    same(out, torch.cat([torch.full((count,), float(j)) for j, count in enumerate(counts)]))
    kinds = (1, torch.bool), (1, torch.bfloat16), (9, torch.complex128), (500, torch.int64), (1500, torch.float64)
    for many, kind in kinds:
        table = [[(many * (3 * i + j)) % (4 * many + 1) for j in range(size)] for i in range(size)]
        line = torch.cat([torch.full((table[rank][j],), 10 * rank + j).to(kind) for j in range(size)])
        back = [table[j][rank] for j in range(size)]
        out = torch.zeros(sum(back), dtype=kind)
        with served("alltoall", 1):
            dist.all_to_all_single(out, line, back, table[rank])
        same(out, torch.cat([torch.full((back[j],), 10 * j + rank).to(kind) for j in range(size)]))
    with served("alltoall", 1):
        outs = [torch.empty(3) for _ in range(size)]
        dist.all_to_all(outs, [torch.full((3,), float(rank)) for _ in range(size)])
    for j, one in enumerate(outs):
        same(one, torch.full((3,), float(j)))
    return {}


def check_layouts(rank: int, size: int) -> Found:
    """Tensors whose elements do not stand one after another, and results that stand among other things."""
    whole = torch.zeros(6, 8)
    view = whole[1:5, ::2]
    view += rank
    dist.all_reduce(view)
    total = size * (size - 1) / 2
    assert whole.sum().item() == total * view.numel()
    assert (view == total).all()
    turned = torch.full((3, 5), float(rank)).t()
    dist.broadcast(turned, 2)
    assert (turned == 2).all()
    table = torch.full((size, 4), -1.0)
    table[rank] = rank
    dist.all_gather_into_tensor(table, table[rank])  # in place
    same(table, torch.arange(float(size)).repeat_interleave(4).view(size, 4))
    line = torch.arange(float(size * 3)) + rank
    dist.reduce_scatter_tensor(line[rank * 3 : rank * 3 + 3], line.clone())
    same(line[rank * 3 : rank * 3 + 3], (torch.arange(float(size * 3)) * size + total)[rank * 3 : rank * 3 + 3])
    spread = torch.zeros(size * 2, 3)[:, 1]
    dist.all_gather_into_tensor(spread, torch.full((2,), float(rank)))
    assert spread.tolist() == [r for r in range(size) for _ in range(2)]
    leaf = torch.full((4,), float(rank), requires_grad=True)
    dist.all_reduce(leaf.data)
    assert (leaf == total).all()
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == total
    return {}


def check_wrong_calls(rank: int, size: int) -> Found:
    """A call that cannot be is refused at once, at all processes; the group goes on."""
    wrong: tuple[Callable[[], Any], ...] = (
        lambda: dist.all_gather_into_tensor(torch.empty(3), torch.empty(5)),
        lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.empty(5)),
        lambda: dist.all_to_all_single(torch.empty(size + 1), torch.empty(size + 1)),
    )
    for do in wrong:
        try:
            do()
        except (ValueError, RuntimeError):
            continue
        raise AssertionError("was not refused")
    messages = []
    far = torch.zeros(3, device="meta")
    for do in (lambda: dist.all_reduce(far), lambda: dist.send(far, (rank + 1) % size)):
        try:
            do()
        except AntiphonError as error:
            messages.append(str(error))
    return {"messages": messages}


def check_asynchronous(rank: int, size: int) -> Found:
    total = size * (size - 1) // 2
    lines = [torch.full((n % 7,), rank * n) for n in range(300)]
    works = [dist.all_reduce(line, async_op=True) for line in lines]
    for number in sorted(range(300), key=lambda n: n * 7919 % 300):  # in another order than they were made
        works[number].wait()
        assert works[number].is_completed()
        assert works[number].exception() is None
        assert (lines[number] == total * number).all()
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    doubled = future.then(lambda done: 2 * done.value()[0])
    assert doubled.wait().tolist() == [2.0 * size] * 3

    def again(done: Any) -> torch.Tensor:  # a collective that waits, hung on another's future
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    chains = [dist.all_reduce(torch.ones(2), async_op=True).get_future() for _ in range(1)]
    assert chains[0].then(again).wait().tolist() == [float(size * size)] * 2
    return {}


def check_together(rank: int, size: int) -> Found:
    """Several calls as one, from one to another, objects, barriers."""
    total = float(size * (size - 1) // 2)
    lines = [torch.full((n,), float(rank)) for n in (1, 0, 5)]
    with dist._coalescing_manager():
        for line in lines:
            dist.all_reduce(line)
    assert all((line == total).all() for line in lines)
    outs = [torch.empty(size * n) for n in (2, 3)]
    with dist._coalescing_manager():
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // size,), float(rank)))
    assert outs[1].tolist() == [r for r in range(size) for _ in range(3)]
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(4)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.full((4,), float(rank)), after), dist.P2POp(dist.irecv, got, before)]
    )
    for work in works:
        work.wait()
    assert (got == before).all()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert [one["rank"] for one in found] == list(range(size))
    said = [{"of": rank}]
    dist.broadcast_object_list(said, 1)
    assert said == [{"of": 1}]
    dist.barrier()
    return {}


def check_groups(rank: int, size: int) -> Found:
    """Process groups: reordered, overlapping, alone; a mesh in two dimensions; functional collectives."""
    some = dist.new_group([3, 0, 2])
    alone = [dist.new_group([r]) for r in range(size)][rank]
    assert isinstance(alone, antiphon.torch.AntiphonGroup)
    one = torch.full((2,), float(rank + 1))
    dist.all_reduce(one, ReduceOp.AVG, group=alone)
    dist.all_gather_into_tensor(one, one, group=alone)
    dist.barrier(group=alone)
    assert (one == rank + 1).all()
    if rank != 1:
        line = torch.empty(3)
        dist.all_gather_into_tensor(line, torch.tensor([float(rank)]), group=some)
        assert line.tolist() == [0.0, 2.0, 3.0]
        got = torch.tensor([float(rank)])
        dist.broadcast(got, src=2, group=some)
        assert got.item() == 2.0
        assert calls("broadcast", group=some) == 1
        if "ANTIPHON_TABLE" in os.environ:  # a plan for these ranks, but for less than 8 bytes
            short = torch.empty(3, dtype=torch.int8)
            dist.all_gather_into_tensor(short, torch.tensor([rank], dtype=torch.int8), group=some)
            assert short.tolist() == [0, 2, 3]
            rows = {row["schedule"]: row for row in antiphon.torch.report(some) if row["collective"] == "allgather"}
            assert {name: row["calls"] for name, row in rows.items()} == {"bruck": 1, "gloo": 1}
            assert rows["gloo"]["why"] == "measured to be slower than the library"
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    total = functional.all_reduce(torch.tensor([float(rank)]), "sum", mesh["column"])
    assert total.item() == (1.0 if rank < 2 else 5.0)
    if "ANTIPHON_TABLE" in os.environ:  # a plan for both dimensions at work
        report = antiphon.torch.report(mesh["column"].get_group())
        assert [row["schedule"] for row in report if row["collective"] == "allreduce"] == ["groups"], report
    gathered = functional.all_gather_tensor(torch.tensor([float(rank)]), 0, mesh["row"])
    assert gathered.tolist() == [rank % 2, rank % 2 + 2]
    part = functional.reduce_scatter_tensor(torch.arange(4.0), "avg", 0, dist.group.WORLD)
    assert part.item() == rank
    turned = functional.all_to_all_single(torch.arange(4.0) + 10 * rank, None, None, dist.group.WORLD)
    assert turned.tolist() == [rank, 10 + rank, 20 + rank, 30 + rank]
    dist.barrier()
    return {}


# ---- training ----


def model(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(4)
    layers = [
        torch.nn.Linear(12, 33),
        torch.nn.Tanh(),
        torch.nn.Linear(33, 33),
        torch.nn.Tanh(),
        torch.nn.Linear(33, 3),
    ]
    return torch.nn.Sequential(*layers).to(dtype)


def trained(made: torch.nn.Module, rank: int, steps: int, dtype: torch.dtype) -> list[float]:
    """The losses of this process over some steps on data of its own."""
    draw = torch.Generator().manual_seed(100 + rank)
    given = torch.randn(16, 12, generator=draw, dtype=dtype)
    want = torch.randn(16, 3, generator=draw, dtype=dtype)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.2, momentum=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(made(given), want)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def data_parallel(group: Any, dtype: torch.dtype) -> torch.nn.Module:
    return DistributedDataParallel(model(dtype), process_group=group, bucket_cap_mb=0.003)


def fully_sharded(group: Any, dtype: torch.dtype) -> torch.nn.Module:
    made, mesh = model(dtype), DeviceMesh.from_group(group, "cpu")
    for layer in made.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return made


def check_training(rank: int, size: int) -> Found:
    """Losses by ours and by gloo: 10 steps in float32, more in float64."""
    every = {torch.float32: 10, torch.float64: 200}
    return compared(rank, "ddp", data_parallel, every) | compared(rank, "fsdp", fully_sharded, every)


def compared(rank: int, name: str, build: Callable[..., torch.nn.Module], steps: dict[torch.dtype, int]) -> Found:
    """The greatest difference of any loss, by type."""
    theirs, ours = dist.new_group(backend="gloo"), dist.group.WORLD
    collective = "allreduce" if name == "ddp" else "reducescatter"
    found: Found = {}
    for dtype, count in steps.items():
        with served(collective, count):
            mine = trained(build(ours, dtype), rank, count, dtype)
        other = trained(build(theirs, dtype), rank, count, dtype)
        assert mine[-1] < 0.9 * mine[0], mine
        assert len(mine) == len(other) == count
        found[f"{name} {dtype}"] = max(abs(a - b) for a, b in zip(mine, other, strict=True))
    return found


def check_compiled(rank: int, size: int) -> Found:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(2 * x, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(y + 1, 0, dist.group.WORLD)

    made = torch.compile(step, fullgraph=True, backend=os.environ.get("ANTIPHON_TEST_COMPILER", "aot_eager"))
    with served("allreduce", 1), served("allgather", 1):
        same(made(torch.full((3,), float(rank))), torch.full((3 * size,), size * (size - 1.0) + 1))
    return {}


def check_tables(rank: int, size: int) -> Found:
    """A table that is not for this machine, or is no table, is told to all processes of the default group."""
    said = []
    for table in ("other.json", "broken.json", "absent.json"):
        antiphon.torch.use(Path(os.environ["ANTIPHON_TABLE"]).with_name(table) if rank == 0 else None)
        store = dist.PrefixStore(table, dist.distributed_c10d._get_default_store())
        try:
            antiphon.torch.AntiphonGroup(store, rank, size, timedelta(seconds=TIMEOUT), range(size), size, True)
        except AntiphonError as error:
            said.append(str(error))
    antiphon.torch.use(Path(os.environ["ANTIPHON_TABLE"]).with_name("subgroups.json") if rank == 0 else None)
    store = dist.PrefixStore("subgroups", dist.distributed_c10d._get_default_store())
    antiphon.torch.AntiphonGroup(store, rank, size, timedelta(seconds=TIMEOUT), range(size), size, True)
    antiphon.torch.use(None)
    return {"said": said}


def check_learns(rank: int, size: int) -> Found:
    """In pairs that learn (ANTIPHON_LEARN=1), sums are right, whatever is tried."""
    os.environ["ANTIPHON_LEARN"] = "1"
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    del os.environ["ANTIPHON_LEARN"]
    pair = pairs[rank // 2]
    for call in range(240):
        for count in (100, 60_000):
            tensor = torch.arange(count, dtype=torch.float32) + call * (rank % 2)
            dist.all_reduce(tensor, group=pair)
            same(tensor, 2 * torch.arange(count, dtype=torch.float32) + call)
    return {"report": antiphon.torch.report(pair)}


def check_watched(rank: int, size: int) -> Found:
    """ANTIPHON_WATCH: what another program would see."""
    for _ in range(5):
        dist.all_reduce(torch.ones(1000))
    calls = antiphon.measure.watch(os.environ["ANTIPHON_WATCH"])
    dist.barrier()
    return {"calls": calls}


def check_killed(rank: int, size: int) -> Found:
    """The last process is killed in the middle of a step: the others' step ends with an error."""
    made = data_parallel(dist.group.WORLD, torch.float32)
    began = 0.0

    def stop(gradient: torch.Tensor) -> None:
        if began and rank == size - 1:
            os.kill(os.getpid(), 9)

    next(made.parameters()).register_hook(stop)
    trained(made, rank, 2, torch.float32)
    began = time.monotonic()
    try:
        trained(made, rank, 5, torch.float32)
    except RuntimeError as error:
        message = str(error)
    else:
        raise AssertionError("nobody noticed")
    spent = time.monotonic() - began
    try:
        dist.all_reduce(torch.ones(1))
    except antiphon.torch.CollectiveFailed as error:
        return {"message": message, "seconds": spent, "again": str(error)}
    raise AssertionError("a group that has failed went on")


def check_late(rank: int, size: int) -> Found:
    """One process does not come: the others stop waiting after the timeout of the group."""
    group = dist.new_group(timeout=timedelta(seconds=1.0))
    if rank:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        try:
            work.wait(timedelta(seconds=0.05))
        except antiphon.torch.CollectiveFailed:
            pass
        else:
            raise AssertionError("the wait had no end")
        try:
            work.wait()
        except antiphon.torch.CollectiveFailed as error:
            dist.barrier()
            return {"message": str(error)}
        raise AssertionError("the collective had no end")
    dist.barrier()
    return {}


def one_process(folder: Path, rank: int, size: int, checks: list[str]) -> int:
    found: Found = {}
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group(
            os.environ.get("ANTIPHON_TEST_BACKEND", "antiphon"), store=store, rank=rank, world_size=size,
            timeout=timedelta(seconds=TIMEOUT),
        )  # fmt: skip
        for name in checks:
            began = time.monotonic()
            found[name] = globals()[f"check_{name}"](rank, size)
            found[name]["took"] = time.monotonic() - began
        found["report"] = antiphon.torch.report()
        dist.destroy_process_group()
    except BaseException:
        found["error"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    return int("error" in found)


def one_script(rank: int, size: int, scripts: list[str]) -> int:
    """Scripts as torchrun starts them, one after another."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    try:
        for number, script in enumerate(scripts):
            os.environ["MASTER_PORT"] = str(int(os.environ["ANTIPHON_TEST_PORT"]) + number)
            exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(folder: Path, size: int, checks: list[str]) -> None:
    children = []
    scripts = checks[1:] if checks[0] == "scripts" else []
    for rank in range(size):
        child = os.fork()
        if not child:
            code = 3
            try:
                code = one_script(rank, size, scripts) if scripts else one_process(folder, rank, size, checks)
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
