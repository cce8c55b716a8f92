"""A check of torch_process.py: calls that are waited for at once are carried out by who makes them, in turn, and hear
of signals while they wait."""

from __future__ import annotations

import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import antiphon.torch


class Handled(Exception):
    pass


def check_at_once(rank: int, size: int) -> dict[str, Any]:
    found = {"threads": by_whom(rank, size), "heard": heard(rank, size)}
    stopped(rank)
    dist.barrier()
    return found


def by_whom(rank: int, size: int) -> list[str]:
    """The threads that carried out calls: one alone, one that is not waited for, one after such a one, a large one."""
    group: Any = dist.new_group()
    real, threads = group.calls.allreduce_several, list[str]()

    def seen(*given: Any) -> None:
        threads.append(threading.current_thread().name)
        time.sleep(0.02)  # so that the next call comes before it is done
        real(*given)

    group.calls.allreduce_several = seen
    lines = [torch.full((count,), float(rank + number)) for number, count in enumerate((3, 3, 3, 1 << 18))]
    dist.all_reduce(lines[0], group=group)
    work = dist.all_reduce(lines[1], group=group, async_op=True)
    dist.all_reduce(lines[2], group=group)
    assert work is not None
    assert work.is_completed(), "calls are done in the order in which they are made"
    group.calls.allreduce_several = real
    dist.all_reduce(lines[3], group=group)
    for number, line in enumerate(lines):
        assert (line == sum(range(size)) + size * number).all()
    return threads


def heard(rank: int, size: int) -> int:
    """A handler that raises nothing runs while its process waits for the others."""
    group, line, count = dist.new_group(), torch.full((3,), float(rank)), []
    dist.barrier(group)
    old = signal.signal(signal.SIGALRM, lambda *_: count.append(group.calls.serving.broken))
    try:
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            time.sleep(0.6)
        real = group.calls.allreduce_several

        def seen(*given: Any) -> None:
            real(*given)
            count.append("over")

        group.calls.allreduce_several = seen
        dist.all_reduce(line, group=group)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert (line == sum(range(size))).all()
    return count.index("over")


def stopped(rank: int) -> None:
    """What a handler raises ends the call at once, and with it the group; the others are told."""
    group: Any = dist.new_group(timeout=timedelta(seconds=15))
    dist.barrier(group)

    def handle(*_: Any) -> None:
        raise Handled

    old, began = signal.signal(signal.SIGALRM, handle), time.monotonic()
    try:
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            time.sleep(0.3)
        dist.all_reduce(torch.ones(3), group=group)
    except Handled:
        assert rank == 0
        with pytest.raises(antiphon.torch.CollectiveFailed, match="a handler of a signal ended it"):
            dist.barrier(group)
    except antiphon.torch.CollectiveFailed:
        assert rank
    else:
        raise AssertionError("the call had an end")
    finally:
        signal.signal(signal.SIGALRM, old)
    assert time.monotonic() - began < 14, "nobody waits until the timeout"
