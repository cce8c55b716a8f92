"""send and recv of a process group: matching, lengths, threads, what ends them. Processes are threads here."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from antiphon.errors import Missing  # noqa: E402
from antiphon.runtimes.engine.build import library  # noqa: E402
from antiphon.torch import AntiphonGroup, CollectiveFailed  # noqa: E402

LONG = 3 << 20
UNASKED, HERE = 1 << 16, 16  # bytes up to which a message is not asked for, and is in its note (native/mail_types.h)


@pytest.fixture(scope="module", autouse=True)
def _engine() -> None:
    try:
        library("sockets")
    except Missing as error:
        pytest.skip(str(error))


def at_once(*does: Callable[[], Any], seconds: float = 60.0) -> list[Any]:
    """All in threads; what one raises is its result. None of them hangs."""
    found: list[Any] = [None] * len(does)

    def one(place: int) -> None:
        try:
            found[place] = does[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(len(does))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
    return found


def good(found: list[Any]) -> list[Any]:
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def made(size: int, seconds: float = 30.0, stores: Sequence[Any] = ()) -> list[Any]:
    stores, patience = stores or [dist.HashStore()] * size, timedelta(seconds=seconds)

    def one(rank: int) -> Any:
        return AntiphonGroup(stores[rank], rank, size, patience, range(size), size, True)

    return good(at_once(*(partial(one, rank) for rank in range(size))))


def closed(groups: list[Any]) -> None:
    at_once(*(group.shutdown for group in groups))


@pytest.fixture(scope="module", params=["memory", pytest.param("sockets", marks=pytest.mark.slow)])
def three(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ANTIPHON_TABLE", raising=False)
        patch.setenv("ANTIPHON_SHARED", str(int(request.param == "memory")))
        groups = made(3)
    yield groups
    good(at_once(*(group.shutdown for group in groups)))


@pytest.fixture(params=["memory", "sockets"])
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """For tests after which they are of no use. They know each other."""
    monkeypatch.delenv("ANTIPHON_TABLE", raising=False)
    monkeypatch.setenv("ANTIPHON_SHARED", str(int(request.param == "memory")))
    groups = made(2, seconds=20.0)
    good(at_once(groups[0].send([torch.ones(1)], 1).wait, groups[1].recv([torch.ones(1)], 0).wait))
    for group in groups:
        group.set_timeout(timedelta(seconds=0.5))
    yield groups
    closed(groups)


def line(size: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 200, size, "uint8"))


@pytest.mark.parametrize("size", [0, 1, HERE, HERE + 1, UNASKED, UNASKED + 1, LONG])
def test_every_length_whoever_is_first(three: list[Any], size: int) -> None:
    a, b, _ = three
    given, got = line(size, size), [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    first = a.send([given], 1, 7)  # before anybody receives
    good(at_once(lambda: b.recv([got[0]], 0, 7).wait(), first.wait))
    second = b.recv([got[1]], 0, 7)  # before anybody sends
    assert not second.is_completed()
    good(at_once(lambda: a.send([given], 1, 7).wait(), second.wait))
    assert all(torch.equal(one, given) for one in got)
    assert second.source_rank() == 0
    assert second.is_success()


def test_each_tag_has_an_order_of_its_own(three: list[Any]) -> None:
    a, b, _ = three
    draw = random.Random(5)
    sizes = [draw.choice([3, 40, 5000, UNASKED, UNASKED + 9]) for _ in range(60)]
    given = [(number % 3, line(size, number)) for number, size in enumerate(sizes)]
    sent = [a.send([one], 1, tag) for tag, one in given]
    got = [(tag, one, torch.zeros_like(one)) for tag, one in sorted(given, key=lambda pair: -pair[0])]
    asked = [b.recv([into], 0, tag) for tag, _, into in got]
    good(at_once(*(one.wait for one in [*sent[::-1], *asked[::7]])))
    for work in asked:
        work.wait()
    assert all(torch.equal(one, into) for _, one, into in got)


def test_many_that_nobody_asked_for_wait_their_turn(three: list[Any]) -> None:
    """More than a receiver keeps for others, and than a queue has places."""
    a, b, _ = three
    given = [torch.full((150,), float(number)) for number in range(1500)]
    works = [a.send([one], 1, 1) for one in given]
    got = torch.zeros(150)
    for _ in range(100):  # meanwhile both carry on what can be
        b.send([got[:1]], 0, 2).wait()
        a.recv([got[:1]], 1, 2).wait()
    assert not works[-1].is_completed()
    for number in range(len(given)):
        b.recv([got], 0, 1).wait()
        assert got.eq(number).all()
    for work in works:
        work.wait()


def test_from_anybody(three: list[Any]) -> None:
    given = [line(size, size) for size in (10, 5000, LONG)]
    for number, one in enumerate(given):
        works = [three[who].send([one + who], 0, number) for who in (1, 2)]
        found = set()
        for _ in range(2):
            into = torch.zeros_like(one)
            work = three[0].recv_anysource([into], number)
            work.wait()
            found.add(work.source_rank())
            assert torch.equal(into, one + work.source_rank())
        good(at_once(*(work.wait for work in works)))
        assert found == {1, 2}


def test_beside_collectives_and_with_nobody_waiting(three: list[Any]) -> None:
    """A message gets through while its sender is in a call that its receiver comes to later, and who sent and who
    receives a long one may both do something else."""
    a, b, c = three
    total, into, long = [torch.full((4,), float(r)) for r in range(3)], torch.zeros(4), line(LONG)
    got = torch.zeros_like(long)
    begun = a.allreduce([total[0]])
    a.send([torch.arange(4.0)], 1).wait()
    sent, other = a.send([long], 1, 3), c.allreduce([total[2]])
    b.recv([into], 0).wait()
    b.recv([got], 0, 3)
    end = time.monotonic() + 30
    while not torch.equal(got, long) and time.monotonic() < end:  # nobody carries it on but the thread for that
        time.sleep(0.002)
    assert torch.equal(got, long)
    last = b.allreduce([total[1]])
    for work in (begun, other, last, sent):
        work.wait()
    assert into.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert torch.equal(got, long)
    assert [one.tolist() for one in total] == [[3.0] * 4] * 3


def test_many_threads_of_each(three: list[Any]) -> None:
    def talk(who: int, peer: int, tag: int) -> None:
        draw = random.Random(tag)
        for turn in range(15):
            size = draw.choice([1, 30, 3000, UNASKED + 5])
            given, got = torch.full((size,), who + turn, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
            asked = three[who].recv([got], peer, tag)
            three[who].send([given], peer, tag).wait()
            asked.wait()
            assert got.eq(peer + turn).all()

    talks = [(who, peer, tag) for who in range(3) for peer in range(3) if who != peer for tag in range(3)]
    good(at_once(*(partial(talk, *one) for one in talks)))


def test_tensors_of_every_form(three: list[Any]) -> None:
    a, b, _ = three
    for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.float64):
        given = torch.arange(24).reshape(4, 6).to(dtype)
        for view in (lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1]):
            got = view(torch.zeros(4, 6, dtype=dtype))
            a.send([view(given)], 1).wait()
            b.recv([got], 0).wait()
            assert torch.equal(got, view(given))


def test_what_cannot_be_is_refused_where_it_is_said(three: list[Any]) -> None:
    a, b, _ = three
    one = torch.zeros(2)
    for do, why in (
        (lambda: a.send([one], 0), "no other process of the group is rank 0"),
        (lambda: a.recv([one], 3), "no other process of the group is rank 3"),
        (lambda: a.send([one, one], 1), "single-element"),
        (lambda: a.send([one], 1, -1), "tags are not negative"),
        (lambda: a.send([one.to_sparse()], 1), "sparse"),
    ):
        with pytest.raises(ValueError, match=why):
            do()
    for size in (3, 300, UNASKED):  # floats: too many for who receives, who then goes on
        sent = a.send([torch.ones(size)], 1, 5)
        with pytest.raises(ValueError, match=f"rank 0 sends {4 * size} bytes where 8 are expected"):
            b.recv([one], 0, 5).wait()
        if 4 * size > UNASKED:
            with pytest.raises(ValueError, match=f"rank 1 expects 8 bytes where {4 * size} are sent"):
                sent.wait()
    a.send([torch.ones(2)], 1, 5).wait()
    b.recv([one], 0, 5).wait()
    assert one.tolist() == [1.0, 1.0]


def test_a_wait_of_its_own_time_leaves_the_message(three: list[Any]) -> None:
    a, b, _ = three
    one = torch.zeros(2)
    asked = b.recv([one], 0, 9)
    with pytest.raises(CollectiveFailed, match=r"recv from rank 0, tag 9 was not done within 0\.01 seconds"):
        asked.wait(timedelta(seconds=0.01))
    a.send([torch.ones(2)], 1, 9)
    assert asked.get_future().wait()[0].tolist() == [1.0, 1.0]


def test_messages_that_nobody_waits_for_arrive(three: list[Any]) -> None:
    a, b, _ = three
    for number in range(20):
        a.send([torch.full((40_000,), float(number))], 1, 11)
    for number in range(20):
        one = torch.zeros(40_000)
        b.recv([one], 0, 11).wait()
        assert one.eq(number).all()


@pytest.mark.slow
def test_many_threads_look_at_those_that_nobody_waits_for(three: list[Any]) -> None:
    """Each finds as many as there were when it began to look, or fewer."""
    a, b, _ = three
    one = torch.zeros(40_000)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(60):
            for _ in range(4):
                a.send([torch.ones(40_000)], 1, 12)
            for _ in range(4):
                b.recv([one], 0, 12).wait()
            ready = threading.Barrier(3)

            def talk(ready: threading.Barrier = ready) -> None:
                ready.wait()
                a.send([torch.ones(1)], 1, 13)

            good(at_once(talk, talk, talk))
            for _ in range(3):
                b.recv([one[:1]], 0, 13).wait()
    finally:
        sys.setswitchinterval(switch)


def test_the_report_has_them(three: list[Any]) -> None:
    a, b, _ = three
    before = {row["collective"]: row["calls"] for row in a.calls.ledger.as_json()}
    a.send([torch.ones(2)], 1).wait()
    b.recv([torch.ones(2)], 0).wait()
    row = next(row for row in a.calls.ledger.as_json() if row["collective"] == "send")
    assert row["calls"] == before.get("send", 0) + 1
    assert (row["schedule"], row["served_by"]) == ("messages", "antiphon")


@pytest.mark.parametrize("size", [4, LONG])
def test_nobody_comes_within_the_timeout_of_the_group(two: list[Any], size: int) -> None:
    a, b = two
    b.set_timeout(timedelta(seconds=60))  # it is to hear of the other's, however late
    asked = b.recv([torch.zeros(4)], 0, 1)
    with pytest.raises(CollectiveFailed, match=r"nothing came or went for 0\.5 seconds, the timeout of the group"):
        (a.recv([torch.zeros(4)], 1) if size == 4 else a.send([line(size)], 1)).wait()
    with pytest.raises(CollectiveFailed, match="the connection to rank 0 is lost"):  # it gave up, and says so
        asked.wait()
    with pytest.raises(CollectiveFailed, match="nothing came or went"):
        a.send([torch.zeros(4)], 1).wait()


@pytest.mark.parametrize("end", ["abort", "shutdown"])
def test_the_end_of_a_group_ends_its_messages(two: list[Any], end: str) -> None:
    a, _b = two
    for group in two:
        group.set_timeout(timedelta(seconds=60))
    asked = [group.recv([torch.zeros(4)], 1 - who, 1) for who, group in enumerate(two)]
    waiting = threading.Timer(0.05, lambda: a.abort() if end == "abort" else a.shutdown(check=False))
    waiting.start()
    found = at_once(*(one.wait for one in asked), seconds=20)
    waiting.join()
    assert [type(one) for one in found] == [CollectiveFailed] * 2
    assert "the group has been aborted here" in str(found[0]) or "the group was closed" in str(found[0])
    with pytest.raises(CollectiveFailed):
        a.send([torch.zeros(4)], 1).wait()


def test_what_was_sent_before_the_end_is_received(two: list[Any]) -> None:
    a, b = two
    for group in two:
        group.set_timeout(timedelta(seconds=20))
    for number in range(30):
        a.send([torch.full((500,), float(number))], 1).wait()
    announced = a.send([line(LONG)], 1, 5)
    for size in (5, 500):
        a.send([line(size, size)], 1, 5).wait()
    a.shutdown(check=False)
    for number in range(30):
        one = torch.zeros(500)
        b.recv([one], 0).wait()
        assert one.eq(number).all()
    with pytest.raises(CollectiveFailed, match="the connection to rank 0 is lost"):
        b.recv([torch.zeros(1)], 0).wait()
    with pytest.raises(CollectiveFailed, match="all others are gone"):
        b.recv_anysource([torch.zeros(1)]).wait()
    into = line(LONG, 1)
    with pytest.raises(CollectiveFailed, match="the connection to rank 0 is lost"):
        b.recv([into], 0, 5).wait()  # what was sent behind it is not for this one
    assert not announced.is_success()
    assert torch.equal(into, line(LONG, 1))
    for size in (5, 500):
        b.recv([into[:size]], 0, 5).wait()
        assert torch.equal(into[:size], line(size, size))
    with pytest.raises(CollectiveFailed, match="the connection to rank 0 is lost"):
        b.send([torch.zeros(1)], 0).wait()


def test_who_has_left_is_missed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_TABLE", raising=False)
    monkeypatch.setenv("ANTIPHON_SHARED", "0")
    a, b, c = groups = made(3)
    lost = b.recv([torch.zeros(1)], 0)
    b.shutdown(check=False)
    with pytest.raises(CollectiveFailed):
        lost.wait()
    got = torch.zeros(1)
    from_it, anybody = c.recv([torch.zeros(1)], 1), c.recv_anysource([got])
    with pytest.raises(CollectiveFailed, match="the connection to rank 1 is lost"):
        from_it.wait()
    with pytest.raises(CollectiveFailed, match="the connection to rank 1 is lost"):
        c.send([torch.zeros(1)], 1).wait()
    good(at_once(a.send([torch.ones(1)], 2).wait, anybody.wait))
    assert (got.item(), anybody.source_rank()) == (1.0, 0)
    closed(groups)


def test_a_process_made_by_fork_lets_go_of_it(three: list[Any]) -> None:
    """It has neither the thread nor a lock that anybody will open."""
    a, b, _ = three
    asked = b.recv([torch.zeros(1)], 0, 20)
    time.sleep(0.01)  # the thread has begun to look
    child = os.fork()
    if not child:
        signal.alarm(20)
        b.calls.serving.wire.ends_with.pop()()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    a.send([torch.ones(1)], 1, 20).wait()
    asked.wait()


def test_nobody_else_is_in_the_group() -> None:
    alone = made(1)[0]
    with pytest.raises(CollectiveFailed, match="nobody else"):
        alone.recv_anysource([torch.zeros(1)])
    alone.shutdown()
