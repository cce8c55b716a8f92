"""Calls beside messages over several sockets for each two: leave to send, in the order of sending."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, POINTER, byref, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p, cast
from typing import Any

import numpy as np
import pytest
from test_sockets import wires_by_rails

from antiphon.errors import Missing
from antiphon.runtimes.engine.functions import Failure
from antiphon.runtimes.engine.mail import Mail
from antiphon.runtimes.engine.native import Engine, Wire
from antiphon.runtimes.serve.wires import engine_over_sockets

SEND = CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint32, c_void_p, c_size_t, c_uint32, POINTER(Failure))
COMPLETED = CFUNCTYPE(c_int, c_void_p, c_int, c_double, POINTER(c_uint32), c_int, POINTER(c_int), POINTER(Failure))
LONG = 64 << 20
TIMEOUT = 60.0  # where nothing moves for so long it is a deadlock, not a busy machine


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return engine_over_sockets()
    except Missing as error:
        pytest.skip(str(error))


class Bare:
    """The first functions of a wire (native/transport.h), for messages that no program of a call would send so."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.mail, self.wire, self.failure = Mail(wire, rank), wire, Failure()
        table = cast(wire.handle, POINTER(c_void_p))
        self._send, self._receive, self._completed = SEND(table[0]), SEND(table[1]), COMPLETED(table[2])
        cast(wire.handle + 4 * 8, POINTER(c_uint64))[0] = 2 * LONG  # `expected`
        self.over = 0

    def checked(self, code: int) -> None:
        assert not code, self.failure.text

    def send(self, data: Any) -> None:
        self.checked(self._send(self.wire.handle, 1, 0, data.ctypes.data, data.nbytes, 1, byref(self.failure)))

    def receive(self, data: Any) -> None:
        self.checked(self._receive(self.wire.handle, 0, 0, data.ctypes.data, data.nbytes, 1, byref(self.failure)))

    def wait(self, messages: int) -> None:
        numbers, count = (c_uint32 * 16)(), c_int()
        while messages > 0:
            given = self.wire.handle, 1, TIMEOUT, numbers, 16, byref(count), byref(self.failure)
            self.checked(self._completed(*given))
            messages -= count.value


def run(engine: Engine, rails: int, *what: Callable[[Bare], None]) -> None:
    wires = wires_by_rails(engine, 2, rails, address="127.0.0.1")
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(go, Bare(wire, rank)) for rank, (go, wire) in enumerate(zip(what, wires, strict=True))]
    for wire in wires:
        wire.close()
    for one in done:
        one.result()


@pytest.mark.parametrize("rails", [1, 2, 3])
def test_leave_to_send_comes_by_another_socket(engine: Engine, rails: int) -> None:
    """What is sent by the last socket is asked for by the first, of which nothing else is wanted."""
    short, long = np.ones(8, np.uint8), np.arange(LONG // 4, dtype=np.int32)
    into, found = np.zeros_like(short), np.zeros_like(long)

    def root(end: Bare) -> None:
        for _ in range(rails - 1):
            end.send(short)
            end.wait(1)
        end.send(long)
        end.wait(1)

    def leaf(end: Bare) -> None:
        for _ in range(rails - 1):
            end.receive(into)
            end.wait(1)
        time.sleep(0.3)  # the other runs out of leave
        end.receive(found)
        end.wait(1)

    run(engine, rails, root, leaf)
    assert np.array_equal(found, long)


@pytest.mark.parametrize("rails", [1, 2, 3])
def test_leave_to_send_is_for_what_was_sent_first(engine: Engine, rails: int) -> None:
    sent = [np.arange(size >> 2, dtype=np.int32) for size in (LONG // 2, LONG, LONG // 4, LONG // 8)]
    found = [np.zeros_like(one) for one in sent]

    def root(end: Bare) -> None:
        for one in sent:
            end.send(one)
        end.wait(len(sent))

    def leaf(end: Bare) -> None:
        time.sleep(0.3)
        for one in found:
            end.receive(one)
            end.wait(1)

    run(engine, rails, root, leaf)
    assert all(map(np.array_equal, found, sent))
