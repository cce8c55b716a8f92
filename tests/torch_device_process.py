"""Processes with tensors on the stand-in for a device: FOLDER SIZE CHECKS..., as torch_process.py does it without one.

PyTorch is loaded once, then the processes are made by fork, before anything of the device is asked for. Each writes
what it found to FOLDER/RANK.json."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_device_env

from antiphon.runtimes.serve.torch_device_watch import Watch
from antiphon.runtimes.serve.torch_streams import Held, Streams

Found = dict[str, Any]
NAME = torch_device_env.NAME
TIMEOUT = int(os.environ.get("ANTIPHON_TEST_TIMEOUT", "60"))  # seconds
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def put(values: Any) -> torch.Tensor:
    return torch.as_tensor(values).to(NAME)


def same(found: torch.Tensor, expected: Any) -> None:
    assert torch.equal(found.cpu(), torch.as_tensor(expected).to(found.dtype)), (found.cpu(), expected)


def rows() -> dict[tuple[str, str], int]:
    import antiphon.torch

    out: dict[tuple[str, str], int] = {}
    for row in antiphon.torch.report():
        if "device" in row:
            key = row["collective"], row["schedule"].split(",")[0].split(" ")[0]
            out[key] = out.get(key, 0) + row["calls"]
    return out


def check_moving(rank: int, size: int) -> Found:
    """Every collective, in memory of every form; what the report says of them."""
    n = 700
    mine, every = torch.arange(n) + 1000 * rank, torch.cat([torch.arange(n) + 1000 * r for r in range(size)])
    out = put(torch.zeros(n * size, dtype=torch.int64))
    dist.all_gather_into_tensor(out, put(mine))
    same(out, every)
    parts = [put(torch.zeros(n, dtype=torch.int64)) for _ in range(size)]
    dist.all_gather(parts, put(mine))
    same(torch.cat(parts), every)
    uneven = [put(torch.zeros(r + 1)) for r in range(size)]
    dist.all_gather(uneven, put(torch.full((rank + 1,), float(rank))))
    same(torch.cat(uneven), torch.cat([torch.full((r + 1,), float(r)) for r in range(size)]))
    one = put(mine)
    dist.broadcast(one, size - 1)
    same(one, torch.arange(n) + 1000 * (size - 1))
    lists = parts if rank == 1 else None
    dist.gather(put(mine), lists, 1)
    if lists:
        same(torch.cat(lists), every)
    dist.scatter(one, [put(torch.full((n,), r)) for r in range(size)] if rank == 0 else None, 0)
    same(one, torch.full((n,), rank))
    out = put(torch.zeros(n * size, dtype=torch.int64))
    dist.all_to_all_single(out, put(torch.arange(n * size) + rank))
    same(out, torch.cat([torch.arange(rank * n, (rank + 1) * n) + r for r in range(size)]))
    counts = [r + 1 for r in range(size)]
    out = put(torch.zeros(size * (rank + 1)))
    dist.all_to_all_single(out, put(torch.full((sum(counts),), float(rank))), [rank + 1] * size, counts)
    same(out, torch.arange(size).repeat_interleave(rank + 1).float())
    outs = [put(torch.zeros(3)) for _ in range(size)]
    dist.all_to_all(outs, [put(torch.full((3,), float(10 * rank + r))) for r in range(size)])
    same(torch.cat(outs), torch.tensor([10.0 * r + rank for r in range(size)]).repeat_interleave(3))
    square = put(torch.zeros(4, 6)).t()  # not contiguous
    dist.broadcast(square.copy_(put(torch.full((6, 4), float(rank)))), 1)
    same(square, torch.ones(6, 4))
    flags = put(torch.tensor([rank == 0, True, False]))
    dist.all_reduce(flags)
    same(flags, torch.tensor([True, True, False]))
    return {"rows": [[*key, count] for key, count in rows().items()]}


def check_reductions(rank: int, size: int) -> Found:
    for dtype in TYPES:
        for op, expected in ((dist.ReduceOp.SUM, size * (size + 1) // 2), (dist.ReduceOp.MAX, size)):
            one = put(torch.full((600,), rank + 1, dtype=dtype))
            dist.all_reduce(one, op)
            same(one, torch.full((600,), expected))
    total = size * (size + 1) / 2
    one = put(torch.full((8, 100), rank + 1.0)).t()
    dist.all_reduce(one, dist.ReduceOp.AVG)
    same(one, torch.full((100, 8), total / size))
    one = put(torch.full((600,), rank + 1.0))
    dist.all_reduce(one, dist._make_nccl_premul_sum(2.0))
    same(one, torch.full((600,), 2 * total))
    one = put(torch.full((600,), complex(rank + 1, 1)))
    dist.reduce(one, 0)
    if rank == 0:
        same(one, torch.full((600,), complex(total, size)))
    out = put(torch.zeros(500))
    dist.reduce_scatter_tensor(out, put(torch.arange(500.0 * size)))
    same(out, size * torch.arange(500.0 * rank, 500.0 * (rank + 1)))
    dist.reduce_scatter(out, [put(torch.full((500,), float(r))) for r in range(size)])
    same(out, torch.full((500,), float(rank * size)))
    small = put(torch.zeros(rank + 1))
    dist.reduce_scatter(small, [put(torch.full((r + 1,), float(r))) for r in range(size)])
    same(small, torch.full((rank + 1,), float(rank * size)))
    with pytest.raises(ValueError, match=r"NCCL has no sum of torch\.int16"):
        dist.all_reduce(put(torch.ones(3, dtype=torch.int16)))
    return {"rows": [[*key, count] for key, count in rows().items()]}


# ---- streams: what each event is for, and that results are wrong without it ----

MANY = 3000


def scenario_before(rank: int, size: int) -> bool:
    """The caller's stream is not through when the call is made."""
    one = put(torch.zeros(MANY))
    for _ in range(30):
        one.add_(1)
    dist.all_reduce(one)
    return bool((one.cpu() == 30 * size).all())


def scenario_behind(rank: int, size: int) -> bool:
    """What the caller's stream does with the result."""
    one = put(torch.full((MANY,), rank + 1.0))
    work = dist.all_reduce(one, async_op=True)
    work.wait()
    return bool(((one * 2).cpu() == size * (size + 1)).all())


def scenario_future(rank: int, size: int) -> bool:
    one = put(torch.full((MANY,), rank + 1.0))
    (found,) = dist.all_reduce(one, async_op=True).get_future().wait()
    return bool(((found * 2).cpu() == size * (size + 1)).all())


def scenario_hold(rank: int, size: int) -> bool:
    """What was given is let go of, and its memory used anew, before the call is done."""
    given, out = put(torch.full((MANY,), rank + 1.0)), put(torch.zeros(size * MANY))
    work = dist.all_gather_into_tensor(out, given, async_op=True)
    del given
    other = torch.full((MANY,), -1.0, device=NAME)
    work.wait()
    return bool((out.cpu() == torch.arange(1.0, size + 1).repeat_interleave(MANY)).all()) and other.numel() == MANY


def scenario_waited(rank: int, size: int) -> bool:
    """Another stream than that of the call waits for it."""
    given, out = put(torch.full((MANY,), rank + 1.0)), put(torch.zeros(size * MANY))
    work = dist.all_gather_into_tensor(out, given, async_op=True)
    side = torch.Stream(device=NAME)
    with side:
        work.wait()
    del given
    other = torch.full((MANY,), -1.0, device=NAME)
    torch.accelerator.current_stream().wait_stream(side)
    return bool((out.cpu() == torch.arange(1.0, size + 1).repeat_interleave(MANY)).all()) and other.numel() == MANY


def scenario_through(rank: int, size: int) -> bool:
    """A barrier is also for what was asked of streams before it."""
    one = put(torch.zeros(MANY))
    dist.all_reduce(one)
    for _ in range(30):
        one.add_(1)
    until = torch.accelerator.current_stream().record_event()
    dist.barrier()
    return bool(until.query())


def without(name: str) -> Any:
    """Streams that leave out one thing."""
    instead: dict[str, Any] = {
        "before": lambda self, ours: None,
        "behind": lambda self, mark: None,
        "hold": lambda self, mark, tensors: Held(mark, self.current(), ()),
        "waited": lambda self, held: setattr(held, "tensors", ()),
        "through": lambda self, mark: None,
    }
    return mock.patch.object(Streams, name, instead[name])


def check_events(rank: int, size: int) -> Found:
    """How often each scenario came out wrong: as it is, and without what it is about."""
    found: Found = {}
    times = int(os.environ.get("ANTIPHON_TEST_TIMES", "12"))
    for name, about in (
        ("before", "before"), ("behind", "behind"), ("future", "behind"), ("hold", "hold"), ("waited", "waited"),
        ("through", "through"),
    ):  # fmt: skip
        scenario: Callable[[int, int], bool] = globals()[f"scenario_{name}"]
        right = [scenario(rank, size) for _ in range(times)]
        dist.barrier()
        with without(about):
            wrong = [scenario(rank, size) for _ in range(times)]
        torch.accelerator.synchronize()
        dist.barrier()
        found[name] = [right.count(False), wrong.count(False)]
    return found


# ---- several as one, between two, groups ----


def check_together(rank: int, size: int) -> Found:
    group = dist.group.WORLD
    ones = [put(torch.full((300 + i,), rank + i)) for i in range(4)]
    with dist._coalescing_manager(group, device=ones[0].device, async_ops=True) as together:
        for one in ones:
            dist.all_reduce(one)
    together.wait()
    for i, one in enumerate(ones):
        same(one, torch.full((300 + i,), sum(r + i for r in range(size))))
    with dist._coalescing_manager(group):
        for one in ones:
            dist.all_reduce(one)
    same(ones[1], torch.full((301,), size * sum(r + 1 for r in range(size))))
    outs = [put(torch.zeros(4 * size, dtype=torch.int64)) for _ in range(2)]
    with dist._coalescing_manager(group):
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, put(torch.full((4,), rank + i)))
    same(outs[1], (torch.arange(size) + 1).repeat_interleave(4))
    device = ones[0].device
    for out in outs:
        out.zero_()
    with dist._coalescing_manager(group, device=device):  # several within what is open
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, put(torch.full((4,), rank + i)))
    same(outs[1], (torch.arange(size) + 1).repeat_interleave(4))
    with dist._coalescing_manager(group, device=device, async_ops=True) as together:
        for out in (sums := [put(torch.zeros(6)) for _ in range(2)]):
            dist.reduce_scatter_tensor(out, put(torch.full((6 * size,), float(rank))))
    together.wait()
    same(sums[1], torch.full((6,), float(sum(range(size)))))
    for where in (None, device):  # one of several is refused: what comes later is made
        with pytest.raises(ValueError, match="all_gather"), dist._coalescing_manager(group, device=where):  # noqa: PT012
            for out in (outs[0], put(torch.zeros(1, dtype=torch.int64))):
                dist.all_gather_into_tensor(out, put(torch.full((4,), rank)))
        dist.broadcast(one := put(torch.full((9,), rank)), 1)
        same(one, torch.ones(9))
    looked = threading.Event()
    watch = Watch(mock.Mock(side_effect=RuntimeError("broken")), lambda: None, lambda seconds: looked.set())
    watch.add(None, 10.0 * TIMEOUT)
    assert looked.wait(TIMEOUT)
    return {}


def check_devices(rank: int, size: int) -> Found:
    """Each process has two; a call is on one of them."""
    import antiphon.torch

    group = dist.new_group()
    devices = [torch.device(NAME, rank), torch.device(NAME, rank + 4)]
    for turn in range(2):
        for number, device in enumerate(devices):
            here = torch.accelerator.device_index(device.index)  # where the stand-in does what we ask of it
            with here:
                one, other = put(torch.full((MANY,), rank + number + 1.0)), put(torch.full((90,), rank + turn))
                for _ in range(20):  # the call waits for the stream of that device
                    one.add_(1)
            dist.all_reduce(one, group=group)
            if rank < 2:
                dist.send(other, 1, group) if rank == 0 else dist.recv(other, 0, group)
            with here:
                same(one.add_(1), torch.full((MANY,), sum(r + number + 21.0 for r in range(size)) + 1))
                same(other, torch.full((90,), rank + turn if rank > 1 else turn))
            until = torch.accelerator.current_stream(device).record_event()
            dist.barrier(group)
            assert until.query()
    told = {row["device"] for row in antiphon.torch.report(group) if "device" in row}
    assert told == {str(one) for one in devices}
    with pytest.raises(ValueError, match="on one device"):
        dist.all_gather_into_tensor(torch.zeros(3 * size).to(devices[0]), torch.zeros(3).to(devices[1]), group)
    return {}


def check_messages(rank: int, size: int) -> Found:
    """Rings of messages that only go on together; two alone, before and beside the others."""
    after, before = (rank + 1) % size, (rank - 1) % size
    if rank < 2:  # on a communicator of their own
        one = put(torch.full((50_000,), 7.0 * rank))
        dist.send(one, 1) if rank == 0 else dist.recv(one, 0)
        same(one, torch.zeros(50_000))
    got, gives = put(torch.zeros(20_000)), put(torch.full((20_000,), float(rank)))
    ops = [dist.P2POp(dist.isend, gives, after), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, torch.full((20_000,), float(before)))
    with pytest.raises(ValueError, match="from whom"):
        dist.recv(got)
    return {}


def check_captured(rank: int, size: int) -> Found:
    """A call within a graph of the program, which is made again and again."""
    runtime = ctypes.CDLL(str(torch_device_env.compiled() / "libnccl.so.2"))
    one, out = put(torch.ones(800)), put(torch.zeros(800 * size))
    dist.all_reduce(one)
    torch.accelerator.synchronize()
    stream, graph, made = torch.Stream(device=NAME), ctypes.c_void_p(), ctypes.c_void_p()
    handle = ctypes.c_void_p(stream.native_handle)
    with stream:
        assert runtime.cudaStreamBeginCapture(handle, 0) == 0
        assert stream.is_capturing()
        dist.all_reduce(one)
        work, side = dist.all_gather_into_tensor(out, one, async_op=True), torch.Stream(device=NAME)
        with side:  # what is held stays held
            work.wait()
        stream.wait_stream(side)
        assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
    assert runtime.cudaGraphInstantiate(ctypes.byref(made), graph, ctypes.c_ulonglong(0)) == 0
    same(one, torch.full((800,), size))  # nothing has run yet
    for _ in range(2):
        assert runtime.cudaGraphLaunch(made, handle) == 0
    torch.accelerator.synchronize()
    same(out, torch.full((800 * size,), size**3))
    dist.all_reduce(one)  # and calls go on
    same(one, torch.full((800,), size**4))
    return {}


def check_more(rank: int, size: int) -> Found:
    """Objects, nothing at all, groups of one, functional collectives, several threads."""
    said: list[Any] = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    assert said == [{"rank": r} for r in range(size)]
    box = [rank]
    dist.broadcast_object_list(box, 1, device=torch.device(NAME, rank))
    assert box == [1]
    for one in (put(torch.zeros(0)), put(torch.zeros(0, 3))):
        dist.all_reduce(one)
        dist.broadcast(one, 0)
    dist.all_gather_into_tensor(put(torch.zeros(0)), put(torch.zeros(0)))
    alone = [dist.new_group([r]) for r in range(size)][rank]
    one = put(torch.full((5,), float(rank)))
    dist.all_reduce(one, dist.ReduceOp.AVG, group=alone)
    dist.all_gather_into_tensor(out := put(torch.zeros(5)), one, group=alone)
    same(out, torch.full((5,), float(rank)))
    group = dist.group.WORLD
    same(functional.all_reduce(put(torch.ones(9)), "sum", group) * 2, torch.full((9,), 2 * size))
    several = [put(torch.arange(6.0 * size)), put(torch.ones(2 * size))]
    parts = functional.reduce_scatter_tensor_coalesced(several, "sum", [0, 0], group)
    same(parts[0], size * torch.arange(6.0 * rank, 6.0 * (rank + 1)))
    host, there = torch.ones(7), put(torch.ones(7))
    works = [dist.all_reduce(host, async_op=True), dist.all_reduce(there, async_op=True)]
    for work in works:
        work.wait()
    same(there, host)
    groups = [dist.new_group() for _ in range(3)]

    def calls(number: int) -> None:
        """On a stream of its own: on one for all groups would wait for each other, as each process has them."""
        torch.accelerator.set_device_index(rank)
        with torch.Stream(device=NAME):
            for turn in range(5):
                mine = torch.full((400,), rank + turn).to(NAME)
                dist.all_reduce(mine, group=groups[number])
                same(mine, torch.full((400,), sum(r + turn for r in range(size))))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(calls, range(3)))
    return {}


def check_eager(rank: int, size: int) -> Found:
    """Connected when it is made; a part of it by split_group; a group of some."""
    (planned,) = dist.group.WORLD.elsewhere.planned.values()
    assert planned.eager
    one = put(torch.full((900,), float(rank)))
    if rank < 2:
        dist.send(one, 1) if rank == 0 else dist.recv(one, 0)
        same(one, torch.zeros(900))
    halves = [[r for r in range(size) if r % 2 == half] for half in (0, 1)] if size > 3 else [[0, 1]]
    part = dist.split_group(split_ranks=halves)
    mine = next((half for half in halves if rank in half), None)
    assert (part is None) == (mine is None)
    if part is not None:
        one = put(torch.full((900,), float(rank)))
        dist.all_reduce(one, group=part)
        same(one, torch.full((900,), float(sum(mine))))
        host = torch.full((5,), float(rank))
        dist.all_reduce(host, group=part)
        assert (host == sum(mine)).all()
    some = dist.new_group(list(range(1, size)))
    if rank:
        dist.all_reduce(one := put(torch.ones(700)), group=some)
        same(one, torch.full((700,), size - 1))
    own = torch.device(NAME, rank + 4)  # where nothing was connected, nor split off
    for group in (dist.group.WORLD, part):
        if group is not None:
            with torch.accelerator.device_index(own.index):
                dist.all_reduce(one := put(torch.ones(700)), group=group)
                same(one, torch.full((700,), group.size()))
    return {}


def check_wrong(rank: int, size: int) -> Found:
    """One calls what the others do not: given up by who waits, or by itself, or aborted; then nothing goes on in that
    group."""
    import antiphon.torch

    for how in ("late", "watched", "aborted"):
        group: Any = dist.new_group()
        same_(group, size)
        group.set_timeout(timedelta(seconds=0.5 if how == "watched" else TIMEOUT))
        if rank == 0:
            work = dist.all_reduce(put(torch.ones(MANY)), group=group, async_op=True)
            assert not work.is_completed()
            if how == "late":
                with pytest.raises(antiphon.torch.CollectiveFailed, match="not done within"):
                    work.wait(timedelta(seconds=0.3))
            elif how == "watched":
                for _ in range(100 * TIMEOUT):
                    if work.is_completed():
                        break
                    time.sleep(0.01)
                assert "not done within 0.5 seconds" in str(work.exception())
            else:
                group.abort()
        else:
            group.abort()
        with pytest.raises(antiphon.torch.CollectiveFailed, match="an earlier call failed"):
            dist.all_reduce(put(torch.ones(3)), group=group)
        if rank == 0:
            assert work.is_completed()
            assert not work.is_success()
            with pytest.raises(antiphon.torch.CollectiveFailed):
                work.wait()
    return {}


def same_(group: Any, size: int) -> None:
    one = put(torch.ones(500))
    dist.all_reduce(one, group=group)
    same(one, torch.full((500,), size))


# ---- training ----


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    wide = torch.nn.Sequential(torch.nn.Linear(16, 48), torch.nn.GELU(), torch.nn.Linear(48, 24))
    return torch.nn.Sequential(wide, torch.nn.LayerNorm(24), torch.nn.Linear(24, 4)).double()


def trained(made: torch.nn.Module, device: Any, rank: int, steps: int) -> list[float]:
    """The losses of a process, each with data of its own."""
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.01, foreach=False)
    draws = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(steps):
        batch = torch.randn(8, 16, dtype=torch.float64, generator=draws).to(device)
        loss = ((made(batch) - batch[:, :4]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_gloo(rank: int, steps: int) -> list[float]:
    """The same on the processor, and its gradients by gloo."""
    gloo = dist.new_group(backend="gloo")
    return trained(torch.nn.parallel.DistributedDataParallel(model(), process_group=gloo), "cpu", rank, steps)


def furthest(ours: list[float], theirs: list[float]) -> float:
    assert len(ours) == len(theirs)
    assert ours[-1] < 0.9 * ours[0], ours
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


STEPS = int(os.environ.get("ANTIPHON_TEST_STEPS", "8"))


def check_ddp(rank: int, size: int) -> Found:
    device = torch.device(NAME, rank)
    theirs = by_gloo(rank, STEPS)
    far = []
    for more in ({"bucket_cap_mb": 0.005}, {"find_unused_parameters": True, "gradient_as_bucket_view": True}):
        made = torch.nn.parallel.DistributedDataParallel(model().to(device), **more)
        far.append(furthest(trained(made, device, rank, STEPS), theirs))
    return {"furthest": max(far)}


def check_fsdp(rank: int, size: int) -> Found:
    """In one dimension, and where there are enough in two, of which one has copies."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    theirs = by_gloo(rank, STEPS)
    far = []
    for shape in ((size,), (2, size // 2))[: 1 + (size > 3)]:
        mesh = init_device_mesh(NAME, shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
        made = model().to(torch.device(NAME, rank))
        for part in (made[0], made[2], made):  # type: ignore[index]
            fully_shard(part, mesh=mesh)
        far.append(furthest(trained(made, torch.device(NAME, rank), rank, STEPS), theirs))
    return {"furthest": max(far)}


def check_tensors(rank: int, size: int) -> Found:
    """DTensor: columns, then rows of two layers; all processes have the same data."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(NAME, (size,))
    made = model().to(torch.device(NAME, rank))
    plan = {"0.0": ColwiseParallel(), "0.2": RowwiseParallel()}
    made = parallelize_module(made, mesh, plan)
    ours, alone = trained(made, torch.device(NAME, rank), 0, STEPS), trained(model(), "cpu", 0, STEPS)
    sharded = distribute_tensor(torch.arange(12.0).view(6, 2), mesh, [Shard(0)])
    same(sharded.redistribute(placements=[Shard(1)]).full_tensor(), torch.arange(12.0).view(6, 2))
    return {"furthest": furthest(ours, alone), "rows": [[*key, count] for key, count in rows().items()]}


def one_process(folder: Path, rank: int, size: int, checks: list[str]) -> int:
    found: Found = {}
    faulthandler.dump_traceback_later(3 * TIMEOUT)  # a test says where it hangs
    try:
        torch_device_env.use(torch_device_env.compiled())
        torch.accelerator.set_device_index(rank)
        import antiphon.torch  # noqa: F401

        store = dist.FileStore(str(folder / "store"), size)
        bound = {"device_id": torch.device(NAME, rank)} if "eager" in checks else {}
        dist.init_process_group(
            "antiphon", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT), **bound
        )
        for check in checks:
            make: Callable[[int, int], Found] | None = globals().get(f"check_{check}")
            if make is not None:
                found[check] = make(rank, size)
                dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        found["error"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    return 3 if "error" in found else 0


def main(folder: Path, size: int, checks: list[str]) -> None:
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            code = 3
            try:
                code = one_process(folder, rank, size, checks)
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [0] * size
    for _ in range(size):
        child, status = os.wait()
        codes[children.index(child)] = os.waitstatus_to_exitcode(status)
        if status:  # the others would wait for it
            for one in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
