"""Who waits for messages of a process group, and for what: how long, and beside what else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_torch_mail import at_once, closed, good, made  # noqa: E402
from torch_mail_random import LIMIT  # noqa: E402

from antiphon.errors import Missing  # noqa: E402
from antiphon.runtimes.engine.build import library  # noqa: E402
from antiphon.runtimes.serve import torch_mail  # noqa: E402
from antiphon.runtimes.serve.ledger import Ledger  # noqa: E402
from antiphon.torch import CollectiveFailed  # noqa: E402


class Played:
    """Mail whose message has moved as far as is written here, look by look, then is over; it has a clock of its own."""

    def __init__(self, moved: list[int]) -> None:
        self.moved, self.time, self.why = moved, 0.0, ""

    def receive(self, *_: int) -> tuple[int, int]:
        return 1, -1

    def wait(self, _: int, seconds: float) -> tuple[bool, int]:
        if self.why:
            raise CollectiveFailed(self.why)
        self.time += seconds
        return (False, self.moved.pop(0)) if self.moved else (True, 1)

    def end(self, why: str) -> None:
        self.why = why


@pytest.mark.parametrize(
    ("moved", "gives_up_after"),
    [
        ([-1] * 4, None),
        ([-1] * 6, 1.0),  # nobody is there
        ([*range(100)], None),  # for much longer than a second
        ([-1] * 4 + [0, 5, 5, 5, 5, 7, 7, 7, 7], None),
        ([-1] * 4 + [0, 5, 5, 5, 5, 7] + [7] * 6, 3.0),  # it has come to a stop
    ],
)
def test_a_message_has_time_as_long_as_it_moves(
    moved: list[int], gives_up_after: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(moved)
    clock = SimpleNamespace(monotonic=lambda: played.time, perf_counter=lambda: played.time)
    monkeypatch.setattr(torch_mail, "time", clock)
    mails = torch_mail.Mails(lambda: played, 0, 2, lambda: 1.0, Ledger(), lambda do: do())
    message = mails.recv([torch.zeros(1)], 1, 0)
    if gives_up_after is None:
        assert message.wait()
    else:
        with pytest.raises(CollectiveFailed, match="nothing came or went for 1 seconds, the timeout of the group"):
            message.wait()
        assert played.time == pytest.approx(gives_up_after)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    try:
        library("sockets")
    except Missing as error:
        pytest.skip(str(error))
    monkeypatch.delenv("ANTIPHON_TABLE", raising=False)
    groups = made(2)
    yield groups
    closed(groups)


def test_several_messages_as_one_hold_up_no_collective(two: list[Any]) -> None:
    a, b = two
    into, more = torch.zeros(3), torch.zeros(3)
    a._start_coalescing(torch.device("cpu"))
    a.recv([into], 1, 5)
    a.recv([more], 1, 6)
    batch = a._end_coalescing(torch.device("cpu"))
    sums = [torch.ones(2), torch.ones(2)]
    good(at_once(lambda: a.allreduce([sums[0]]).wait(), lambda: b.allreduce([sums[1]]).wait()))
    assert sums[0].tolist() == [2.0, 2.0]
    with pytest.raises(CollectiveFailed, match=r"recv from rank 1, tag 5 was not done within 0\.01 seconds$"):
        batch.wait(timedelta(seconds=0.01))
    assert not batch.is_completed()
    found = batch.get_future()
    good(at_once(b.send([torch.ones(3)], 0, 6).wait, b.send([torch.ones(3)], 0, 5).wait, batch.wait))
    assert [one.tolist() for one in found.wait()] == [one.tolist() for one in batch.result()] == [[1.0] * 3] * 2
    assert batch.is_completed()
    assert batch.is_success()
    assert batch.get_future() is found


def test_who_waits_beside_another_sees_what_has_come(two: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it is on its way from a copy to where it belongs."""
    a, b = two
    into = torch.zeros(3, 2).t()
    one, found, put_back = b.recv([into], 0, 1), [], vars(torch_mail)["put_back"]

    def look() -> None:
        one.wait()
        found.append(into.clone())

    other = threading.Thread(target=look)

    def late(made: Any, tensor: Any) -> None:
        other.start()
        other.join(0.1)  # where it does not wait for this
        put_back(made, tensor)

    monkeypatch.setattr(torch_mail, "put_back", late)
    good(at_once(a.send([torch.ones(2, 3)], 1, 1).wait, one.wait))
    other.join()
    assert found[0].eq(1).all()


def test_one_of_several_fails(two: list[Any]) -> None:
    a, b = two
    b._start_coalescing(torch.device("cpu"))
    b.recv([torch.zeros(1)], 0, 1)
    b.recv([torch.zeros(1)], 0, 2)
    batch = b._end_coalescing(torch.device("cpu"))
    good(at_once(a.send([torch.ones(1)], 1, 1).wait, a.send([torch.ones(3)], 1, 2).wait))
    with pytest.raises(ValueError, match="rank 0 sends 12 bytes where 4 are expected"):
        batch.wait()
    assert isinstance(batch.exception(), ValueError)
    assert not batch.is_success()
    with pytest.raises(RuntimeError, match="rank 0 sends 12 bytes where 4 are expected"):
        batch.get_future().wait()


def used(groups: list[Any], before: int) -> list[int]:
    """Descriptors of this process when they are made, after collectives, and after messages from each to each."""

    def counted() -> int:
        return len(os.listdir("/proc/self/fd")) - before

    def summed(group: Any) -> None:
        group.allreduce([torch.ones(1000)]).wait()

    def talk(group: Any) -> None:
        others = [other for other in range(group.size()) if other != group.rank()]
        for length in (1, 100_000):
            works = [group.recv([torch.empty(length)], other, 0) for other in others]
            works += [group.send([torch.ones(length)], other, 0) for other in others]
            for work in works:
                work.wait()

    found = [counted()]
    for do in (summed, talk):
        good(at_once(*(partial(do, group) for group in groups)))
        found.append(counted())
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
@pytest.mark.parametrize("size", [2, pytest.param(5, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("way", ["ANTIPHON_INTERFACE=lo", pytest.param("ANTIPHON_SHARED=0", marks=pytest.mark.slow)])
def test_fewer_descriptors_than_gloo_between_hosts(way: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        library("sockets")
    except Missing as error:
        pytest.skip(str(error))
    monkeypatch.delenv("ANTIPHON_TABLE", raising=False)
    monkeypatch.setenv(*way.split("="))
    store, seconds = dist.HashStore(), timedelta(seconds=60)
    at_once(lambda: None)  # what is opened once in a process
    before = len(os.listdir("/proc/self/fd"))
    gloo = good(at_once(*(partial(dist.ProcessGroupGloo, store, rank, size, seconds) for rank in range(size))))
    theirs = used(gloo, before)
    between = len(os.listdir("/proc/self/fd"))
    groups = made(size)
    ours = used(groups, between)
    closed(groups)
    assert all(one < other for one, other in zip(ours, theirs, strict=True)), (ours, theirs)
    assert ours == [size * (size + 1)] * 3  # in each process a socket to each other, and two bells
    assert len(os.listdir("/proc/self/fd")) == between
    del gloo


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("way", ["", "ANTIPHON_SHARED=0", "ANTIPHON_INTERFACE=lo", "ANTIPHON_INTERFACE=lo,lo"])
def test_messages_in_random_order_while_some_are_killed(way: str, seed: int) -> None:
    """Nothing is delivered wrong, nobody hangs, what was sent before an end is received, others go on."""
    library("sockets")
    own = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_TABLE")}
    own |= dict([way.split("=")]) if way else {}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("torch_mail_random.py")), str(seed), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT + 20, check=False, env=own)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
