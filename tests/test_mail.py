"""Messages from one to another over sockets, as the engine has them: how they end. Processes are handles here."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.errors import Missing
from antiphon.runtimes.engine.mail import Mail, mail_over_sockets
from antiphon.runtimes.engine.native import Engine, TransportFailed
from antiphon.runtimes.serve.wires import engine_over_sockets

LONG = 8 << 20


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return engine_over_sockets()
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def make(engine: Engine) -> Iterator[Any]:
    made: list[Mail] = []

    def one(rank: int, ranks: int) -> Mail:
        made.append(mail_over_sockets(SimpleNamespace(engine=engine, ends_with=[]), rank, ranks))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for mail in made:
        mail.close()


def connected(a: Mail, rank_a: int, b: Mail, rank_b: int) -> None:
    one, other = socket.socketpair()
    a.meet(rank_b, one.detach())
    b.meet(rank_a, other.detach())


def line(size: int, value: int = 1) -> Any:
    return np.full(size, value, "uint8")


def send(mail: Mail, to: int, tag: int, data: Any) -> int:
    return mail.send(to, tag, data.ctypes.data, data.nbytes)


def receive(mail: Mail, of: int, tag: int, data: Any) -> int:
    return mail.receive(of, tag, data.ctypes.data, data.nbytes)[0]


def pumped(a: Mail, rank_a: int, b: Mail, rank_b: int, most: int) -> threading.Event:
    """Connects them. From b to a only so many bytes come until the event is set."""
    (mine, left), (right, other) = socket.socketpair(), socket.socketpair()
    goes_on = threading.Event()

    def forth() -> None:
        come = 0
        while part := right.recv(50_000):
            come += len(part)
            if come > most:
                goes_on.wait()
            left.sendall(part)

    def back() -> None:
        while part := left.recv(50_000):
            right.sendall(part)

    def pump(do: Callable[[], None]) -> None:
        with suppress(OSError):
            do()

    for do in (forth, back):
        threading.Thread(target=pump, args=(do,), daemon=True).start()
    a.meet(rank_b, mine.detach())
    b.meet(rank_a, other.detach())
    return goes_on


def outcome(mail: Mail, message: int) -> str:
    """What became of it; the words of what it raised."""
    try:
        while not mail.wait(message, 0.05)[0]:
            pass
    except TransportFailed as error:
        return str(error)
    return ""


def test_after_the_end_nothing_is_written(make: Any) -> None:
    """Where somebody else does not take what is for him, too."""
    a, c = make(0, 3), make(2, 3)
    goes_on = pumped(a, 0, c, 2, 2 << 20)
    mine, deaf = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    a.meet(1, mine.detach())
    short, long, into = line(60_000), line(LONG), line(LONG, 0)
    assert send(a, 1, 0, short)
    assert send(c, 0, 5, long)
    asked = receive(a, 2, 5, into)
    while not into[1 << 20]:
        assert not a.wait(asked, 0.001)[0]
    ending = threading.Thread(target=a.end, args=("it ends",))
    ending.start()
    assert "it ends" in outcome(a, asked)
    into[:] = 7  # the program's again
    goes_on.set()
    ending.join()
    assert (into == 7).all()
    deaf.close()


@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_more_than_may_come_unasked_is_no_note(make: Any, size: int) -> None:
    """Whatever another says: what nobody has asked for takes no more memory than is set apart for it."""
    mail, (one, other) = make(0, 2), socket.socketpair()
    mail.meet(1, one.detach())
    awaited = receive(mail, 1, 99, line(4))
    other.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        for number in range(8):  # heads of messages: that a note follows; the note; that so many bytes follow; some
            note = struct.pack("<IiQQ", 1, 5, size, number) + bytes(16)
            other.sendall(struct.pack("<IIQ", 0, 0x41504D32, 40) + bytes(40) + note)
            other.sendall(struct.pack("<IIQ", 1, 0x41504D32, size) + bytes(40) + bytes(min(size, 1 << 20)))
    with pytest.raises(TransportFailed, match="rank 1 sent what is no note"):
        mail.wait(awaited, 20.0)
    other.close()
