"""The engine over stream sockets, and how processes that know only each other's number get these."""

import array
import contextlib
import fcntl
import json
import random
import resource
import shutil
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from meetings import Meeting
from quick import in_turn
from small_plans import planned
from test_native import inputs_of, run_threads, same

from antiphon.core.interpret import interpret
from antiphon.core.program import encode
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, TimedOut
from antiphon.formats.program import both, lower
from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.native import OPERATORS, TYPES, Engine, OpenProgram, TransportFailed, Wire
from antiphon.runtimes.serve.mesh import connect_mesh, detach_all

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
HEAD = 56  # bytes before the elements of a message
Meshed = list[list[socket.socket | None]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(build.library("sockets"))


def meshed(ranks: int, star: int | None = None, **options: Any) -> Meshed:
    meeting, found, errors = Meeting(ranks), Meshed(), list[Exception]()
    found.extend([None] for _ in range(ranks))

    def go(rank: int) -> None:
        try:
            peers = None if star is None else range(1, ranks) if rank == star else [star]
            found[rank] = connect_mesh(rank, ranks, meeting.of(rank), peers=peers, **options)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if errors:
        raise errors[0]
    return found


def wires_by_rails(engine: Engine, ranks: int, rails: int, **options: Any) -> list[Wire]:
    """Every two are connected so many times."""
    found = [[detach_all(one) for one in meshed(ranks, **options)] for _ in range(rails)]
    rows = [
        [number for row in zip(*(one[rank] for one in found), strict=True) for number in row] for rank in range(ranks)
    ]
    return [engine.sockets(rank, row, rails) for rank, row in enumerate(rows)]


def wires_of(engine: Engine, ranks: int, **options: Any) -> list[Wire]:
    return [engine.sockets(rank, detach_all(one)) for rank, one in enumerate(meshed(ranks, **options))]


PLANS = [
    ("allreduce", "ring:ranks=5", "ring"),
    ("allreduce", "full:ranks=8", "halving-doubling"),
    ("allreduce", "full:ranks=6", "direct"),
    ("allgather", "dgx1v", "trees"),
    ("alltoall", "full:ranks=5", "bruck"),
    ("scatter", "full:ranks=4", "direct"),
]


@pytest.mark.parametrize(("kind", "machine", "planner"), in_turn(PLANS))
@pytest.mark.parametrize("address", ["", pytest.param("127.0.0.1", marks=pytest.mark.slow)])
def test_every_rank_ends_with_what_the_interpreter_says(
    engine: Engine, kind: str, machine: str, planner: str, address: str
) -> None:
    schedule = planned(kind, machine, planner)
    ranks, draw = schedule.collective.ranks, random.Random(f"{kind} {planner} {address}")
    data = encode(both(schedule))
    for unit in (0, 7, 20001):
        dtype, op, in_place = draw.choice([*TYPES]), draw.choice([*OPERATORS]), draw.random() < 0.5
        given = inputs_of(schedule, unit, dtype, in_place, unit)
        want = interpret(schedule, [one.copy() for one in given], op=op, dtype=dtype, in_place=in_place)
        split = draw.choice([None, 64, 1000])
        options = {"address": address, "buffer": draw.choice([None, 4096])}
        wires = wires_of(engine, ranks, **options)
        found = run_threads(engine, data, given, unit, op, [in_place] * ranks, split, runs=3, wires=wires)
        assert all(map(same, found, want)), (unit, dtype, op, in_place, split)


def test_messages_on_other_channels_wait_aside(engine: Engine) -> None:
    """Chunks dealt to many channels, in pieces: what comes first is not what is wanted first."""
    schedule = pipeline(planned("allreduce", "full:ranks=4", "direct"), 3)
    data = encode([lower(schedule, channels=7)])
    for unit in (5, 40000):
        given = inputs_of(schedule, unit, "float32", False, unit)
        want = interpret(schedule, given)
        found = run_threads(engine, data, given, unit, "sum", [False] * 4, runs=4, wires=wires_of(engine, 4))
        assert all(map(same, found, want))


@pytest.mark.parametrize("rails", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("buffer", [None, pytest.param(4096, marks=pytest.mark.slow)])
def test_messages_go_round_over_several_sockets(engine: Engine, rails: int, buffer: int | None) -> None:
    """Short and long ones, so that heads come before those of other sockets which were sent before them."""
    schedule = pipeline(planned("allreduce", "full:ranks=3", "direct"), 3)
    data = encode([lower(schedule, channels=5)])
    for unit, split in ((5, None), (40_000, 9_000), (40_001, None)):
        given = inputs_of(schedule, unit, "float32", False, unit)
        want = interpret(schedule, given)
        wires = wires_by_rails(engine, 3, rails, address="127.0.0.1", buffer=buffer)
        found = run_threads(engine, data, given, unit, "sum", [False] * 3, split, runs=4, wires=wires)
        assert all(map(same, found, want)), (unit, split)


def test_all_sockets_to_a_rank_must_be_there(engine: Engine) -> None:
    mine, theirs = socket.socketpair()
    with pytest.raises(Invalid, match="rank 0: its socket to rank 1 is not usable"):
        engine.sockets(0, [-1, -1, mine.detach(), -1], rails=2)
    theirs.close()


def ring(engine: Engine) -> tuple[Any, np.ndarray[Any, Any]]:
    return engine.program(encode([lower(planned("allreduce", "ring:ranks=3", "ring"))])), np.zeros(300000, np.float32)


def test_a_peer_that_goes_is_told(engine: Engine) -> None:
    program, zeros = ring(engine)
    wires = wires_of(engine, 3)
    wires[2].close()
    plan = program.plan(0, len(zeros))
    with pytest.raises(TransportFailed, match="connection to rank 2 is lost"):
        plan.run(zeros, zeros.copy(), wires[0], timeout=20.0)
    with pytest.raises(TransportFailed, match="an earlier run failed"):
        program.plan(0, 5).run(zeros[:5], zeros[:5].copy(), wires[0])
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("calls", [2, 5])
def test_what_was_sent_before_the_end_comes_by_any_of_several_sockets(engine: Engine, calls: int) -> None:
    program = engine.program(encode([lower(planned("broadcast", "full:ranks=2", "direct", root=1))]))
    wires, given = wires_by_rails(engine, 2, 3), np.arange(5, dtype=np.float32)
    for _ in range(calls):
        program.plan(1, 5).run(given, given.copy(), wires[1])
    wires[1].close()
    for _ in range(calls):
        target = np.zeros(5, np.float32)
        program.plan(0, 5).run(target, target, wires[0], timeout=20.0)
        assert np.array_equal(target, given)
    with pytest.raises(TransportFailed, match="the connection to rank 1 is lost"):
        program.plan(0, 5).run(target, target, wires[0], timeout=20.0)
    wires[0].close()


def test_nobody_answers(engine: Engine) -> None:
    program, zeros = ring(engine)
    wires = wires_of(engine, 3)
    with pytest.raises(TimedOut, match=r"nothing came or went for 0\.05 seconds"):
        program.plan(1, 7).run(zeros[:7], zeros[:7].copy(), wires[1], timeout=0.05)
    for wire in wires:
        wire.close()


def test_what_is_no_message_is_refused(engine: Engine) -> None:
    program, zeros = ring(engine)
    mine, theirs = socket.socketpair()
    other, _ = socket.socketpair()
    wire = engine.sockets(0, [-1, mine.detach(), other.detach()])
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    wires = [wire]
    with pytest.raises(TransportFailed, match=r"rank [12] (sent what is no message|.*lost)"):
        program.plan(0, 7).run(zeros[:7], zeros[:7].copy(), wire, timeout=5.0)
    for one in wires:
        one.close()
    theirs.close()


def said(engine: Engine, program: OpenProgram, unit: int) -> bytes:
    """What the root, rank 1 of a broadcast among two, sends."""
    mine, theirs = socket.socketpair()
    wire = engine.sockets(1, [mine.detach(), -1])
    numbers = np.arange(unit, dtype=np.float32)
    program.plan(1, unit).run(numbers, numbers.copy(), wire)
    wire.close()
    with theirs:
        return b"".join(iter(lambda: theirs.recv(2**20), b""))


def listener(engine: Engine) -> tuple[OpenProgram, Wire, socket.socket, socket.socket]:
    """Rank 0 of that broadcast: its wire, its socket once more, and the other end."""
    program = engine.program(encode([lower(planned("broadcast", "full:ranks=2", "direct", root=1))]))
    with socket.create_server(("127.0.0.1", 0)) as door:
        theirs = socket.create_connection(door.getsockname())
        mine, _ = door.accept()
    return program, engine.sockets(0, [-1, mine.dup().detach()]), mine, theirs


def unread(one: socket.socket) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(one, termios.FIONREAD, found)
    return found[0]


LONG = 25_000  # elements, of 100 KB


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere single bytes are reported")
def test_a_long_message_is_waited_for_as_a_whole(engine: Engine) -> None:
    """And a short one after it is not waited for in vain."""
    program, wire, mine, theirs = listener(engine)

    def least() -> int:
        return mine.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    for unit, waits in ((LONG, HEAD + 4 * LONG), (2, 1), (LONG, HEAD + 4 * LONG)):
        found = np.zeros(unit, np.float32)
        call = program.plan(0, unit).bound(np.zeros(unit, np.float32), found, wire, timeout=20.0)
        thread = threading.Thread(target=call)
        thread.start()
        end = time.monotonic() + 10
        while least() != waits and time.monotonic() < end:
            time.sleep(0.001)
        assert least() == waits
        theirs.sendall(said(engine, program, unit))
        thread.join()
        assert np.array_equal(found, np.arange(unit))
    for one in (wire, mine, theirs):
        one.close()


def test_less_than_is_waited_for_is_read_all_the_same(engine: Engine) -> None:
    program, wire, mine, theirs = listener(engine)
    zeros = np.zeros(LONG, np.float32)
    theirs.sendall(said(engine, program, LONG)[:5000])
    with pytest.raises(TimedOut):
        program.plan(0, LONG).run(zeros, zeros.copy(), wire, timeout=0.1)
    assert unread(mine) == 0
    for one in (wire, mine, theirs):
        one.close()


def test_a_short_message_for_a_long_one_is_told(engine: Engine) -> None:
    program, wire, mine, theirs = listener(engine)
    zeros = np.zeros(LONG, np.float32)
    theirs.sendall(said(engine, program, 2))
    with pytest.raises(TransportFailed, match="rank 1 sent a message of 8 bytes where 100000 are expected"):
        program.plan(0, LONG).run(zeros, zeros.copy(), wire, timeout=0.1)
    for one in (wire, mine, theirs):
        one.close()


@pytest.mark.parametrize(
    ("claims", "comes", "times"),
    [(2**40, 2**21, 1), (2**64 - 1, 2**17, 1), (2**19, 2**19, 8), (0, 0, 200_000)],
    ids=["a terabyte", "all that there can be", "many", "many of nothing"],
)
def test_what_nobody_expects_is_not_kept(engine: Engine, claims: int, comes: int, times: int) -> None:
    """On a channel that this run does not use: no memory is taken for what is only claimed."""
    program, wire, mine, theirs = listener(engine)
    head = bytearray(said(engine, program, 1)[:-4])
    struct.pack_into("<I", head, 0, 99)
    struct.pack_into("<Q", head, 8, claims)
    zeros, strange = np.zeros(LONG, np.float32), (bytes(head) + bytes(comes)) * times

    def send() -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(strange)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TransportFailed, match=f"rank 1 sent a message of {claims} bytes that nobody expects"):
        program.plan(0, LONG).run(zeros, zeros.copy(), wire, timeout=20.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
    for one in (mine, theirs):
        with contextlib.suppress(OSError):  # it may have ended already
            one.shutdown(socket.SHUT_RDWR)
    sender.join()
    wire.close()
    mine.close()
    theirs.close()


@pytest.mark.parametrize("most", [3, LONG])
def test_what_is_of_the_next_call_waits_aside(engine: Engine, most: int) -> None:
    """Calls of growing and shrinking sizes, whose sender is several of them ahead."""
    program, wire, mine, theirs = listener(engine)
    units = [2, most, 5, most + 9, 1]
    all_of_them = b"".join(said(engine, program, unit) for unit in units)
    sender = threading.Thread(target=lambda: theirs.sendall(all_of_them), daemon=True)
    sender.start()
    for unit in units:
        found = np.zeros(unit, np.float32)
        program.plan(0, unit).run(np.zeros(unit, np.float32), found, wire, timeout=20.0)
        assert np.array_equal(found, np.arange(unit))
    sender.join()
    for one in (wire, mine, theirs):
        one.close()


def test_a_missing_connection_is_named(engine: Engine) -> None:
    program, zeros = ring(engine)
    wire = engine.sockets(0, [-1, -1, -1])
    with pytest.raises(Invalid, match="no connection to rank"):
        program.plan(0, 7).run(zeros[:7], zeros[:7].copy(), wire)
    wire.close()
    with pytest.raises(Invalid, match="is not usable"):
        engine.sockets(0, [-1, 12345])


def test_only_the_peers_that_are_wanted() -> None:
    rows = [[one is not None for one in row] for row in meshed(3, star=0)]
    assert rows == [[False, True, True], [True, False, False], [True, False, False]]
    assert [sum(one is not None for one in row) for row in meshed(4)] == [3] * 4


def test_who_does_not_come_is_named() -> None:
    card: list[str] = []

    def exchange(text: str) -> Sequence[str]:
        card.append(text)
        return [text, text, text]

    with pytest.raises(TimedOut, match=r"rank 0: 2 of 3 processes did not come in 0\.05 seconds, the first is rank 1"):
        connect_mesh(0, 3, exchange, timeout=0.05)
    with pytest.raises(TransportFailed, match="rank 1 cannot reach rank 0"):
        connect_mesh(1, 2, lambda text: [json.dumps({**json.loads(text), "path": "", "tcp": ["127.0.0.1", 1]})] * 2)


def test_addresses_of_others_are_refused() -> None:
    with pytest.raises(Invalid, match=r"198\.51\.100\.1: no address of this host"):
        connect_mesh(0, 2, lambda text: [text, text], address="198.51.100.1")
    with pytest.raises(Invalid, match="rank 5: there are ranks 0 to 1"):
        connect_mesh(5, 2, lambda text: [text, text])
