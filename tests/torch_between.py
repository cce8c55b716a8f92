"""Checks of torch_process.py: messages from one to another where a process has died; what a group takes of the system."""

from __future__ import annotations

import os
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
