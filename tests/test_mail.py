"""Messages from one to another over sockets, as the engine has them: how they end. Processes are handles here."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_native import planned

from antiphon.core.program import encode
from antiphon.errors import Missing
from antiphon.formats.program import lower
from antiphon.runtimes.engine.mail import ANYBODY, Mail
from antiphon.runtimes.engine.native import Engine, TransportFailed, Wire
from antiphon.runtimes.serve.wires import engine_over_sockets

LONG = 8 << 20
FRAME, ROOM = 1 << 20, 1 << 22  # bytes of a frame, and of calls that come unasked (native/sockets_types.h)


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return engine_over_sockets()
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def make(engine: Engine) -> Iterator[Any]:
    made: list[Wire] = []
    silent: list[tuple[socket.socket, socket.socket]] = []

    def one(rank: int, *given: socket.socket | None) -> Mail:
        """`given`: to each rank; for those left out one by which nothing comes."""
        pairs = [socket.socketpair() for each in given if each is None]
        silent.extend(pairs)
        nothing = iter([here for here, _ in pairs])
        sockets = [each or next(nothing) for each in given]
        made.append(engine.sockets(rank, [-1 if to == rank else each.detach() for to, each in enumerate(sockets)]))
        mail = Mail(made[-1], rank)
        mail.wire = made[-1]  # type: ignore[attr-defined]
        return mail

    yield one
    for wire in made:
        wire.close()


def line(size: int, value: int = 1) -> Any:
    return np.full(size, value, "uint8")


def send(mail: Mail, to: int, tag: int, data: Any) -> int:
    return mail.send(to, tag, data.ctypes.data, data.nbytes)


def receive(mail: Mail, of: int, tag: int, data: Any) -> int:
    return mail.receive(of, tag, data.ctypes.data, data.nbytes)[0]


class Pump(threading.Event):
    most = 0


def pumped(most: int) -> tuple[Pump, socket.socket, socket.socket]:
    """Two that are connected. From the second to the first only so many bytes come until the event is set."""
    (mine, left), (right, other) = socket.socketpair(), socket.socketpair()
    goes_on = Pump()
    goes_on.most = most

    def forth() -> None:
        come = 0
        while part := right.recv(50_000 if come >= most else min(50_000, most - come)):
            come += len(part)
            left.sendall(part)
            if come == most:
                goes_on.wait()

    def back() -> None:
        while part := left.recv(50_000):
            right.sendall(part)

    def pump(do: Callable[[], None]) -> None:
        with suppress(OSError):
            do()

    for do in (forth, back):
        threading.Thread(target=pump, args=(do,), daemon=True).start()
    return goes_on, mine, other


def outcome(mail: Mail, message: int) -> str:
    """What became of it; the words of what it raised."""
    try:
        while not mail.wait(message, 0.05)[0]:
            pass
    except TransportFailed as error:
        return str(error)
    return ""


def waited(mail: Mail, of: int, tag: int, into: Any) -> str:
    """By who waits again and again, for a short time; he may learn it at once, too."""
    try:
        asked = receive(mail, of, tag, into)
        while not mail.wait(asked, 0.002)[0]:
            pass
    except TransportFailed as error:
        return str(error)
    return ""


def test_after_the_end_nothing_is_written(make: Any) -> None:
    """Where somebody else does not take what is for him, too."""
    goes_on, left, right = pumped(2 << 20)
    mine, deaf = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    a, c = make(0, None, mine, left), make(2, right, None, None)
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


@pytest.mark.parametrize("comes", [1 << 20, 3 << 20])
def test_the_end_is_told_by_who_makes_no_call(make: Any, comes: int) -> None:
    """The frame that has begun is ended, however late the other's system takes it."""
    goes_on, left, right = pumped(comes)
    right.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    a, b = make(0, None, left), make(1, right, None)
    long, into = line(LONG), line(LONG, 0)
    asked = receive(a, 1, 3, into)
    sent = send(b, 0, 3, long)
    while not into[comes // 2]:
        for mail, one in (a, asked), (b, sent):
            assert not mail.wait(one, 0.001)[0]
    b.end("it ends")
    goes_on.set()
    with pytest.raises(TransportFailed, match="the connection to rank 1 is lost"):
        a.wait(asked, 10.0)
    assert "it ends" in outcome(b, sent)


def framed(data: bytes, of: int = 1) -> bytes:
    """As it goes over a socket: of calls (0), or of mail."""
    return struct.pack("<IIQ", 0x41504630 + of, len(data), 0) + data


def frame(channel: int, data: bytes) -> bytes:
    """A message, whose elements go in frames of their own."""
    parts = [data[at : at + FRAME] for at in range(0, len(data), FRAME)]
    head = struct.pack("<IIQ", channel, 0x41504D32, len(data)) + bytes(40)
    return framed(head) + b"".join(map(framed, parts))


def note(kind: int, tag: int, size: int, number: int = 1) -> bytes:
    return frame(0, struct.pack("<IiQQ", kind, tag, size, number) + bytes(16))


ASKS, GO_BYTES = 2, 16 + 56 + 40


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_what_was_sent_before_the_end_comes_though_nothing_goes_back(make: Any, family: str) -> None:
    """A receiver tells what it has taken, which he who has ended does not hear."""
    one, other = socket.socketpair() if family == "unix" else over_tcp()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sent = [line(60_000, number) for number in range(1, 5)]
    a = make(0, None, one)
    assert [send(a, 1, 1, data) for data in sent] == [0] * 4
    ending = threading.Thread(target=a.wire.close)
    ending.start()
    ending.join(0.2)  # over TCP it waits until the other reads
    places = [line(60_000, 0) for _ in sent]
    b = make(1, other, None)
    asked = [receive(b, 0, 1, into) for into in places]
    assert [outcome(b, one) if one else "" for one in asked] == [""] * 4
    assert all((into == data).all() for into, data in zip(places, sent, strict=True))
    assert "the connection to rank 0 is lost" in waited(b, 0, 1, places[0])
    ending.join()


def over_tcp() -> tuple[socket.socket, socket.socket]:
    """Of which much lies with who sends it until the other begins to read."""
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        door.bind(("127.0.0.1", 0))
        door.listen()
        one = socket.create_connection(door.getsockname())
        return one, door.accept()[0]


def test_only_messages_with_who_is_gone_fail(make: Any) -> None:
    """Also where a part of one was under way; and what has come in full from there is still received."""
    (mine, dying), (left, right) = socket.socketpair(), socket.socketpair()
    a, c = make(0, None, mine, left), make(2, right, None, None)
    into, from_c, given, short = line(LONG, 0), line(LONG, 0), line(LONG, 3), line(8)
    asked, other = receive(a, 1, 5, into), receive(a, 2, 6, from_c)
    there = receive(a, 1, 9, short)
    dying.sendall(note(1, 7, 8) + note(ASKS, 8, LONG, 2) + note(1, 8, 8, 3) + note(ASKS, 5, LONG))
    while len(dying.recv(GO_BYTES, socket.MSG_PEEK)) < GO_BYTES:
        assert not a.wait(asked, 0.001)[0]
    dying.sendall(frame(2, bytes(LONG))[:100_000])
    sent = send(a, 1, 7, given)
    assert sent
    dying.close()
    for one in (asked, there, sent):
        assert "the connection to rank 1 is lost" in outcome(a, one)
    assert not receive(a, 1, 7, short)  # it is here
    with pytest.raises(TransportFailed, match="the connection to rank 1 is lost"):
        receive(a, 1, 8, into)  # which never came, unlike what was sent behind it
    assert not receive(a, ANYBODY, 8, short)
    into[:] = 7
    sent = send(c, 0, 6, given)
    assert outcome(a, other) == outcome(c, sent) == ""
    assert (from_c == 3).all()
    assert (into == 7).all()


def goes_to_sleep() -> None:
    """For a process of its own, in which no other thread begins meanwhile."""
    mine, other = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    third, _kept = socket.socketpair()
    wire = engine_over_sockets().sockets(0, [-1, mine.detach(), third.detach()])
    mail = Mail(wire, 0)
    before = {*os.listdir("/proc/self/task")}
    given = line(60_000)
    lost = send(mail, 1, 1, given)
    assert lost
    (thread,) = {*os.listdir("/proc/self/task")} - before
    other.close()
    assert "the connection to rank 1 is lost" in outcome(mail, lost)

    def woken() -> str:
        return Path(f"/proc/self/task/{thread}/status").read_text().split("\nvoluntary_ctxt_switches:")[1]

    for _ in range(100):
        then = woken()
        time.sleep(0.1)
        if woken() == then:
            break
    else:
        pytest.fail("it wakes again and again")
    wire.close()


@pytest.mark.usefixtures("engine")
def test_nothing_is_done_for_who_is_gone() -> None:
    """The thread that carries on what nobody waits for goes to sleep."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", "import test_mail\ntest_mail.goes_to_sleep()"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=1000
    )
    assert done.returncode == 0, done.stderr


def test_how_much_has_moved_is_told(make: Any) -> None:
    goes_on, left, right = pumped(2 << 20)
    a, b = make(0, None, left), make(1, right, None)
    into, given, short = line(LONG, 0), line(LONG), line(9)
    asked = receive(a, 1, 5, into)
    assert a.wait(asked, 0.0) == (False, -1)
    sent = send(b, 0, 5, given)
    while not into[1 << 20]:
        assert not a.wait(asked, 0.001)[0]
    heads = 16 * (goes_on.most // FRAME + 4)  # those of frames do not count
    while (then := a.wait(asked, 0.01)[1]) < goes_on.most - heads:
        assert then < goes_on.most
    then = a.wait(asked, 0.1)[1]
    assert b.wait(sent, 0.0)[1] > 1 << 20
    back = receive(b, 0, 7, short)
    assert not send(a, 1, 7, given[:9])
    assert outcome(b, back) == ""
    assert a.wait(asked, 0.0)[1] == then, "what goes the other way does not count"
    goes_on.set()
    while not (now := a.wait(asked, 0.001))[0]:
        assert now[1] >= then
        then = now[1]
    assert outcome(b, sent) == ""


@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_more_than_may_come_unasked_is_no_note(make: Any, size: int) -> None:
    """Whatever another says: what nobody has asked for takes no more memory than is set apart for it."""
    one, other = socket.socketpair()
    mail = make(0, None, one)
    awaited = receive(mail, 1, 99, line(4))
    other.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        for number in range(8):  # heads of messages: that a note follows; the note; that so many bytes follow; some
            other.sendall(note(1, 5, size, number))
            other.sendall(framed(struct.pack("<IIQ", 1, 0x41504D32, size) + bytes(40)))
            other.sendall(framed(bytes(min(size, FRAME))))
    with pytest.raises(TransportFailed, match="rank 1 sent what is no note"):
        mail.wait(awaited, 20.0)
    other.close()


@pytest.mark.parametrize("size", range(0, 24, 2))
def test_a_fault_leaves_no_frame_without_its_end(make: Any, size: int) -> None:
    """Of messages with one: what has begun to go to another is ended, as his calls come behind it."""
    _, left, right = pumped(1 << 40)
    right.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    mine, other = socket.socketpair()
    a, b = make(2, left, None, None), make(0, None, mine, right)
    long, into = line(LONG), line(LONG, 0)
    asked = receive(a, 0, 3, into)
    sent = send(b, 2, 3, long)
    while not into[LONG // 2 + (size << 16)]:
        for mail, one in (a, asked), (b, sent):
            assert not mail.wait(one, 0.001)[0]
    place = line(8)
    assert receive(b, 1, 4, place)
    other.sendall(framed(bytes(100)))
    assert "rank 1 sent what is no message" in outcome(b, sent)
    with pytest.raises(TransportFailed, match="the connection to rank 0 is lost"):
        a.wait(asked, 10.0)
    other.close()


UNASKED = 64 << 20


def broadcasts(engine: Engine, wire: Wire, rank: int, data: Any) -> None:
    """From rank 0 to rank 1."""
    program = engine.program(encode([lower(planned("broadcast", "full:ranks=2", "direct", root=0))]))
    program.plan(rank, len(data)).run(data, data, wire, "sum", 60.0)


def grown() -> int:
    """KB of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_a_message_passes_by_a_call_that_nobody_has_asked_for(engine: Engine, make: Any, family: str) -> None:
    """It takes no memory but what is set apart for it; and what was sent ahead is received as if it had not been."""
    one, other = socket.socketpair() if family == "unix" else over_tcp()
    a, b = make(0, None, one), make(1, other, None)
    given = np.arange(UNASKED // 4, dtype=np.int32).view(np.uint8)
    calls = threading.Thread(target=broadcasts, args=(engine, a.wire, 0, given), daemon=True)
    found, into, before = np.zeros(UNASKED, np.uint8), line(LONG, 0), 0
    found[:] = 1  # it is there
    calls.start()
    for turn in range(16):
        long = turn % 6 == 0
        sent, place = line(LONG if long else 9 + turn, turn), into[: LONG if long else 9 + turn]
        before = before or grown()
        asked, message = receive(b, 0, turn, place), send(a, 1, turn, sent)
        assert outcome(b, asked) == (outcome(a, message) if message else "") == ""
        assert (place == turn).all()
        back = receive(a, 1, turn, into[:5])
        assert not send(b, 0, turn, sent[:5])
        assert outcome(a, back) == ""
    assert calls.is_alive()
    assert grown() - before < (3 * ROOM + LONG) >> 10
    broadcasts(engine, b.wire, 1, found)
    calls.join()
    assert np.array_equal(found, given)
