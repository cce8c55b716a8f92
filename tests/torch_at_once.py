"""A check of torch_process.py: calls that are waited for at once are carried out by who makes them, in turn, and hear
of signals while they wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import antiphon.torch
from antiphon.runtimes.serve import torch_arguments as asked


class Handled(Exception):
    pass


def check_at_once(rank: int, size: int) -> dict[str, Any]:
    found = {"threads": by_whom(rank, size), "heard": heard(rank, size)}
    stopped(rank)
    calls_within(rank)
    aborted_within(rank)
    dist.barrier()
    return found


def by_whom(rank: int, size: int) -> list[str]:
    """The threads that carried out calls: one alone, one that is not waited for, one after such a one, a large one."""
    group: Any = dist.new_group()
    real, rule, threads, asked_for = group.calls.allreduce_as_one, asked.runs_in_caller, list[str](), threading.Event()

    def seen(*given: Any) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == 2:  # not before the next one is made
            assert asked_for.wait(20)
            time.sleep(0.05)
        real(*given)

    def ruled(*given: Any) -> bool:
        found = rule(*given)
        if threads:
            asked_for.set()
        return found

    group.calls.allreduce_as_one = seen
    lines = [torch.full((count,), float(rank + number)) for number, count in enumerate((3, 3, 3, 1 << 18))]
    dist.all_reduce(lines[0], group=group)
    work = dist.all_reduce(lines[1], group=group, async_op=True)
    with mock.patch.object(asked, "runs_in_caller", ruled):
        dist.all_reduce(lines[2], group=group)
    assert work is not None
    assert work.is_completed(), "calls are done in the order in which they are made"
    group.calls.allreduce_as_one = real
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
        real = group.calls.allreduce_as_one

        def seen(*given: Any) -> None:
            real(*given)
            count.append("over")

        group.calls.allreduce_as_one = seen
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

    def call() -> None:
        with pytest.raises(Handled):
            dist.all_reduce(torch.ones(3), group=group)

    if rank:
        left_alone(group)
    else:
        assert when_alarmed(handle, call) < 14, "nobody waits until the timeout"
        with pytest.raises(antiphon.torch.CollectiveFailed, match="a handler of a signal ended it"):
            dist.barrier(group)


def left_alone(group: Any) -> None:
    """A call whose first process begins it and then is gone: what it had sent may have been all that is needed here."""

    def both() -> None:
        dist.all_reduce(torch.ones(3), group=group)
        dist.barrier(group)

    time.sleep(0.3)
    began = time.monotonic()
    with pytest.raises(antiphon.torch.CollectiveFailed):
        both()
    assert time.monotonic() - began < 14, "nobody waits until the timeout"


def when_alarmed(handle: Callable[..., Any], do: Callable[[], Any]) -> float:
    """Seconds that it took."""
    old, began = signal.signal(signal.SIGALRM, handle), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        do()
    finally:
        signal.signal(signal.SIGALRM, old)
    return time.monotonic() - began


def calls_within(rank: int) -> None:
    """A handler that makes a call of the group whose call waits is told so; the call goes on."""
    group, told = dist.new_group(), list[str]()
    dist.barrier(group)

    def handle(*_: Any) -> None:
        try:
            dist.barrier(group)
        except antiphon.torch.CollectiveFailed as error:
            told.append(str(error))

    if rank:
        time.sleep(0.4)
        dist.barrier(group)
    else:
        when_alarmed(handle, lambda: dist.barrier(group))
        assert ["within a call" in one for one in told] == [True]


def aborted_within(rank: int) -> None:
    """A handler may end the group whose call waits, and waits for nothing."""
    group: Any = dist.new_group(timeout=timedelta(seconds=15))
    dist.barrier(group)

    def call() -> None:
        with pytest.raises(antiphon.torch.CollectiveFailed):
            dist.all_reduce(torch.ones(3), group=group)

    if rank:
        left_alone(group)
    else:
        assert when_alarmed(lambda *_: group.abort(), call) < 14
