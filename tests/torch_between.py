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
