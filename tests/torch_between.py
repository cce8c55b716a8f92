"""Checks of torch_process.py: messages between all, and where a process has died; what a group takes of the system."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import torch
import torch.distributed as dist


def after_a_death(group: Any, rank: int, dead: int) -> list[str]:
    """What those say who wait for it, or send to it; the others, all before it, go on talking to each other."""
    said = []
    one = torch.full((5,), float(rank))
    for do in (lambda: dist.recv(one, dead, group), lambda: dist.send(one, dead, group)):
        try:
            do()
        except RuntimeError as error:
            said.append(str(error))
    got = torch.zeros(5)
    work = dist.irecv(got, (rank - 1) % dead, group)
    dist.send(torch.full((5,), float(rank)), (rank + 1) % dead, group)
    work.wait()
    assert got.eq((rank - 1) % dead).all()
    return said


def check_counted(rank: int, size: int) -> dict[str, Any]:
    """Descriptors and threads of a group: made, after collectives, after messages with all others."""
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
        for length in (1, 100_000):
            everybody(group, rank, size, length)
        for thread in threading.enumerate():
            if thread.name == "antiphon-lines":  # it has connected all
                thread.join(20)
        rows.append(_taken())
        dist.barrier()
        found[backend] = [[now - then for now, then in zip(row, before, strict=True)] for row in rows]
    return found


def everybody(group: Any, rank: int, size: int, length: int) -> None:
    others = [other for other in range(size) if other != rank]
    got = {other: torch.zeros(length) for other in others}
    works = [dist.irecv(got[other], other, group) for other in others]
    works += [dist.isend(torch.full((length,), float(rank)), other, group) for other in others]
    for work in works:
        work.wait()
    assert all(one.eq(other).all() for other, one in got.items())


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
