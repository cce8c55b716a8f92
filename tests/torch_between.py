"""Checks of torch_process.py: point-to-point messages, monitored barriers, and descriptors and threads of a group."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def check_counted(rank: int, size: int) -> dict[str, Any]:
    """Descriptors and threads of a group: made, and after collectives."""
    found: dict[str, Any] = {}
    for backend in ("gloo", "antiphon"):
        before = _taken()
        group = dist.new_group(backend=backend)
        rows = [_taken()]
        for _ in range(3):
            dist.all_reduce(torch.ones(1000), group=group)
            dist.all_to_all_single(torch.zeros(size), torch.ones(size), group=group)
            dist.barrier(group)
        rows.append(_taken())
        dist.barrier()
        found[backend] = [[now - then for now, then in zip(row, before, strict=True)] for row in rows]
    return found


def _taken() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def check_many(rank: int, size: int) -> dict[str, Any]:
    """Messages of all lengths and some tags between all, drawn alike by all; received in another order than sent, some
    from anybody, while collectives are under way."""
    draw = random.Random(11)
    lengths = (0, 1, 2, 5, 100, 9000, 16_384, 16_385, 300_000)
    drawn = [(*draw.sample(range(size), 2), draw.randrange(3), draw.choice(lengths)) for _ in range(400)]
    anybody = [(src, dst, 7 + dst, 50) for src in range(size) for dst in range(size) if src != dst]
    works = [dist.all_reduce(torch.ones(10), async_op=True)]
    got: list[tuple[int, torch.Tensor]] = []
    mine = sorted(
        ((number, *one) for number, one in enumerate(drawn) if one[1] == rank), key=lambda one: (-one[3], -one[1])
    )  # the order of each tag of each sender stays
    for number, src, _, tag, length in mine:
        into = torch.zeros(length, dtype=torch.int32)
        got.append((number, into))
        works.append(dist.irecv(into, src, tag=tag))
    for number, (src, dst, tag, length) in enumerate(drawn):
        if src == rank:
            works.append(dist.isend(torch.full((length,), number, dtype=torch.int32), dst, tag=tag))
        if number % 100 == rank:
            works.append(dist.all_reduce(torch.ones(10), async_op=True))
    for src, dst, tag, length in anybody:
        if src == rank:
            works.append(dist.isend(torch.full((length,), src, dtype=torch.int32), dst, tag=tag))
    heard = set()
    for _ in range(size - 1):
        into = torch.zeros(50, dtype=torch.int32)
        src = dist.recv(into, tag=7 + rank)
        assert into.eq(src).all()
        heard.add(src)
    draw.shuffle(works)
    for work in works:
        work.wait()
    assert heard == {*range(size)} - {rank}
    assert all(into.eq(number).all() for number, into in got)
    into = torch.zeros(100_000)
    with dist._coalescing_manager(dist.group.WORLD, torch.device("cpu"), async_ops=True) as together:
        dist.irecv(into, (rank - 1) % size)
        dist.isend(torch.full((100_000,), float(rank)), (rank + 1) % size)
    together.wait()
    assert into.eq((rank - 1) % size).all()
    dist.barrier()
    return {"received": len(got)}


def check_monitored(rank: int, size: int) -> dict[str, Any]:
    """Check that a timeout of 0 is one and that rank 0 names the missing rank, as gloo's own barrier does."""
    said = []
    for name in ("gloo", "antiphon"):
        group: Any = dist.new_group(backend=name)
        dist.barrier()
        began = time.monotonic()
        if rank == 0:
            try:
                dist.monitored_barrier(group, timedelta(0))
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
        waited = time.monotonic() - began
        dist.barrier()
        assert waited < 10  # the group's is 20
    assert len({*said}) == int(rank == 0), said
    return {"said": said}


def check_several(rank: int, size: int) -> dict[str, Any]:
    """Check the group's own calls on several tensors, which mean what they mean with gloo."""
    found: dict[str, list[Any]] = {}
    for backend in ("gloo", "antiphon"):
        group: Any = dist.new_group(backend=backend)._get_backend(torch.device("cpu"))
        results: list[Any] = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            tensors = [torch.tensor([float(rank + 1 + 3 * i), 2.0]) for i in range(3)]
            options = dist.AllreduceOptions()
            options.reduceOp = op
            group.allreduce(tensors, options).wait()
            results += [tensor.tolist() for tensor in tensors]
        sparse = [torch.sparse_coo_tensor([[(rank + i) % 5]], [1.0 + i], (5,)) for i in range(2)]
        group.allreduce(sparse).wait()
        results += [tensor.to_dense().tolist() for tensor in sparse]
        for root in range(size):
            tensors = [torch.tensor([10.0 * rank + i]) for i in range(2)]
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = root, root % 2
            group.broadcast(tensors, options).wait()
            results += [tensor.tolist() for tensor in tensors]
        outputs = [[torch.zeros(1) for _ in range(2 * size)] for _ in range(2)]
        group.allgather(outputs, [torch.tensor([10.0 * rank + i]) for i in range(2)]).wait()
        results += [[tensor.item() for tensor in row] for row in outputs]
        results += _refusals(group)
        group._set_default_timeout(timedelta(seconds=30))
        found[backend] = results
    assert found["antiphon"] == found["gloo"], found
    return {}


def _refusals(group: Any) -> list[str]:
    """Return the kind of each refusal, where the words for it are the same as gloo's."""
    one, double, long = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
    options = dist.BroadcastOptions()
    options.rootTensor = 7
    calls = {
        "invalid tensor type": lambda: group.allreduce([one, double]),
        "invalid tensor size": lambda: group.allreduce([one, long]),
        "invalid tensor layout": lambda: group.allreduce([one, torch.sparse_coo_tensor([[0]], [1.0], (1,))]),
        "invalid root tensor": lambda: group.broadcast([one], options),
        "requires non-empty": lambda: group.allreduce([]),
        "invalid output tensor list": lambda: group.allgather([[one]], [one]),
        "requires input/output tensor lists to have the same length": lambda: group.allgather([], [one]),
    }
    refusals = []
    for words, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            refusals.append(words if words in str(error) else f"{words}: {error}")
    return refusals
