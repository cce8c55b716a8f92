"""Signals while a call waits in the engine: over sockets and in shared memory."""

import gc
import shutil
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon.errors import TimedOut
from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.native import Engine, TransportFailed, Wire
from antiphon.runtimes.serve.call_head import CallHead
from antiphon.runtimes.serve.mesh import detach_all

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


class Handled(Exception):
    pass


def by_sockets(engine: Engine) -> list[Wire]:
    left, right = socket.socketpair()
    return [engine.sockets(0, [-1, detach_all([None, left])[1]]), engine.sockets(1, [detach_all([right])[0], -1])]


def by_memory(engine: Engine) -> list[Wire]:
    memory, name = engine.share(2)
    pairs = socket.socketpair(), socket.socketpair()
    ends = [[pairs[0][0].detach(), pairs[1][0].detach()], [pairs[1][1].detach(), pairs[0][1].detach()]]
    joined = engine.join(name, 1)
    found: list[Wire] = []
    other = threading.Thread(target=lambda: found.append(engine.shared(joined, ends[1])))
    other.start()
    wire = engine.shared(memory, ends[0])
    other.join()
    return [wire, *found]


@pytest.fixture(params=[by_sockets, pytest.param(by_memory, marks=pytest.mark.slow)])
def wires(request: pytest.FixtureRequest) -> Iterator[list[Wire]]:
    made = request.param(Engine(build.library("sockets")))
    for rank, wire in enumerate(made):
        head = CallHead(rank, b"")
        wire.calls(head.memory)
        head.begin("barrier", 0, 0)
    yield made
    for wire in made:
        wire.close()


def when_alarmed(handle: Callable[..., Any], do: Callable[[], Any]) -> float:
    """Seconds until the end."""
    old, began = signal.signal(signal.SIGALRM, handle), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        do()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    return time.monotonic() - began


def test_a_handler_runs_and_the_call_goes_on(wires: list[Wire]) -> None:
    heard = []
    other = threading.Thread(target=wires[1].agree, args=(20.0,))

    def handle(*_: Any) -> None:
        heard.append(threading.current_thread())
        other.start()  # only now the other comes

    when_alarmed(handle, lambda: wires[0].agree(20.0))
    other.join()  # its wire is closed behind the test
    assert heard == [threading.main_thread()]
    assert not wires[0].stopped


def test_what_it_raises_ends_the_call(wires: list[Wire]) -> None:
    raised = []

    def handle(*_: Any) -> None:
        error = Handled()
        raised.append(weakref.ref(error))
        raise error

    with pytest.raises(Handled) as caught:
        when_alarmed(handle, lambda: wires[0].agree(60.0))
    assert wires[0].stopped
    with pytest.raises(TransportFailed, match="an earlier run failed"):
        wires[0].agree(1.0)
    assert caught.value is raised[0]()
    del caught
    gc.collect()
    assert raised[0]() is None, "nothing is left of it"


def test_other_threads_hear_of_none(wires: list[Wire]) -> None:
    """They wait until their time is over, and nothing of it reaches the main thread's handlers' place."""
    found: list[BaseException] = []

    assert wires[0].enable_signals()

    def wait() -> None:
        try:
            assert not wires[0].enable_signals(), "who asks for Python's lock may wait long for it"
            wires[0].agree(0.4)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    heard = []
    when_alarmed(lambda *_: heard.append(threading.current_thread()), thread.join)
    assert heard == [threading.main_thread()]
    assert [type(one) for one in found] == [TimedOut]
