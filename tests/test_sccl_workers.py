"""Work in processes of their own: they may be late, die, take too much memory; the search goes on."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

import pytest

from antiphon.core.ksync.instance import instance_of
from antiphon.core.request import Request
from antiphon.core.verify import verify
from antiphon.errors import Invalid, TimedOut
from antiphon.planners.sccl import _auto
from antiphon.planners.sccl import sccl as synthesize
from antiphon.planners.sccl._auto import Found, decide
from antiphon.planners.sccl._search import Search
from antiphon.planners.sccl._worker import Late, Lost, apart
from antiphon.select import collective
from antiphon.topologies import topology


def a_search(spec: str = "dgx1v", kind: str = "allgather") -> Search:
    machine = topology(spec)
    return Search(instance_of(machine, collective(kind, machine)))


def test_what_a_worker_returns_or_raises_comes_back() -> None:
    def refuse() -> None:
        raise Invalid("no such thing; ask for another")

    assert apart(lambda x: x + 1, 1) == 2
    with pytest.raises(Invalid, match="no such thing"):
        apart(refuse)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(Lost, match="SIGKILL"):
        apart(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(Lost, match="ZeroDivisionError"):
        apart(lambda: 1 // 0)


def test_a_worker_is_stopped_at_the_end_of_its_time() -> None:
    """It would wait for ever; once it is gone nobody holds the other end of the pipe any more."""
    mine, theirs = os.pipe()
    with pytest.raises(Late):
        apart(signal.pause, seconds=0.0)
    os.close(theirs)
    assert select.select([mine], [], [], 60)[0], "the worker still runs"
    assert os.read(mine, 1) == b""
    os.close(mine)


def test_memory_has_a_limit() -> None:
    def hoard() -> int:
        return len([bytearray(2**20) for _ in range(4096)])

    with pytest.raises(Lost, match="out of memory"):
        apart(hoard, memory=2**28)


def test_a_crashed_engine_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tries crash; what comes after them finds the point all the same."""
    real = _auto.sat

    def sometimes(*args: Any) -> Any:
        if args[2].seed == 0:  # the first try has its variables as they come
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    monkeypatch.setattr(_auto, "sat", sometimes)
    monkeypatch.setattr(_auto, "QUICK", 0)  # all of them in processes of their own
    said: list[str] = []
    found = decide(a_search(), 6, 3, 7, tell=said.append)
    assert isinstance(found, Found)
    assert any("SIGKILL" in line and "going on" in line for line in said)


def test_the_budget_ends_the_search_and_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still until the first schedule is there, and then the budget is spent."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    machine = topology("dgx1v")
    stream = synthesize(Request(machine, collective("broadcast", machine), budget=4), steps=40, cache=False)
    made = next(stream)
    assert verify(made, machine).fault is None
    now[0] = 5.0
    with pytest.raises(TimedOut, match="the budget is spent"):
        next(stream)


def test_a_budget_that_finds_nothing_says_so() -> None:
    machine = topology("dgx1v")
    with pytest.raises(TimedOut, match="nothing"):
        list(synthesize(Request(machine, collective("broadcast", machine), budget=0), cache=False))
