"""Hostile frames at the ports of a job: mutated hellos, answers, proofs, texts and messages, over real sockets.

    python fuzz/frames.py --count 2000 --seed 1

What the program says itself is recorded and then changed. Judged: the job starts, whoever else connects; a process
whose rank 0 is false ends with an error of ours; so does one to whom a process that is known sends what is wrong; no
memory is taken for what is only claimed. A case is a frame or a text.
"""

from __future__ import annotations

import base64
import json
import os
import random
import resource
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import cache
from itertools import chain, repeat
from typing import Any

import numpy as np
from _harness import CASES, Found, main

from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine, OpenProgram, Wire
from antiphon.runtimes.serve import admission, rendezvous
from antiphon.runtimes.serve.admission import connector_handshake, listener_handshake
from antiphon.runtimes.serve.book import encode_book
from antiphon.runtimes.serve.group_book import base_program, default_book
from antiphon.runtimes.serve.group_start import Processes, start_serving, version
from antiphon.runtimes.serve.mesh import connect_mesh
from antiphon.runtimes.serve.rendezvous import Star
from antiphon.runtimes.serve.wires import Connecting

import hostile  # isort: skip  # of tests/, which _harness has put on the path

NAME = "frames"
SECRET = "what the processes of this job know"
MOST_MB = 64  # that this process may grow by
SECONDS = 20.0  # a job that has not started by then has failed
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (
    "[" * 100_000,
    '{"a":' * 50_000,
    "1e999",
    "-1e999",
    "NaN",
    "9" * 5000,
    "null",
    "true",
    '"',
    "\0",
    "\ud800",
    "{}",
)


def mutated(data: bytes, draw: random.Random) -> bytes:
    for _ in range(draw.choice([1, 1, 2, 4])):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(7):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + draw.randbytes(draw.randrange(1, 40)) + data[at:]
            case 3:
                form = draw.choice(["<I", "<Q", ">I", ">Q"])
                word = struct.pack(form, draw.choice(EXTREMES) % 2 ** (8 * struct.calcsize(form)))
                data = data[: at // 4 * 4] + word + data[at // 4 * 4 + len(word) :]
            case 4:
                data += data[at:] * draw.randrange(1, 5)
            case 5:
                data = draw.randbytes(draw.randrange(300))
            case 6:
                data = data[at:]
    return data


def worded(text: str, draw: random.Random) -> str:
    """JSON with one of its words changed, or what is none."""
    word = draw.choice(WORDS)
    match draw.randrange(5):
        case 0:
            return word
        case 1:
            at = draw.randrange(len(text) + 1)
            return text[:at] + word + text[at:]
        case 2:
            return mutated(text.encode(), draw).decode(errors="replace")
        case 3:
            found = json.loads(text)
            found[draw.choice(list(found) or ["a"])] = draw.choice([None, 5, -1.5, [], {}, "", "=", [1], True])
            return json.dumps(found)
    found = json.loads(text)
    found.pop(draw.choice(list(found)), None)
    return json.dumps(found)


@cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


@cache
def engine() -> Engine:
    return Engine(library("sockets"))


@cache
def program() -> OpenProgram:
    return engine().program(base_program(2))  # a broadcast from rank 0


def address_of_nobody() -> tuple[str, int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        name, port = one.getsockname()
        return name, port


def exchanged(rank: int, ranks: int, address: tuple[str, int]) -> list[str]:
    with Star(rank, ranks, f"{address[0]}:{address[1]}", SECONDS, SECRET) as star:
        return [*star.exchange(f"from {rank}")]


def words_of_a_connector(draw: random.Random) -> bytes:
    """Hello and proof of one that knows another secret, so that what is not changed is wrong as well."""
    talk = connector_handshake(draw.choice([0, 1, 2, 7, 2**32 - 1]), draw.choice([2, 3, 99]), 0, b"another")
    hello = next(talk)[0]
    other = listener_handshake(0, 2, b"another", lambda who, count: (0, 0), lambda who: None)
    next(other)
    answer = other.send(hello)[0] if struct.unpack_from("<I", hello, 20)[0] == 0 else b""
    return hello + (talk.send(answer)[0] if answer else b"")


def knock(address: tuple[str, int] | str, draw: random.Random, held: ExitStack) -> None:
    """One stranger, who stays or goes in one way or another."""
    with suppress(OSError):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        one = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
        one.settimeout(1.0)
        one.connect(address)
        if draw.random() < 0.3:
            hostile.ACTS[draw.choice(sorted(hostile.ACTS))](one, draw)
        else:
            data = mutated(words_of_a_connector(draw), draw)
            one.sendall(data[: hostile.HELLO])
            if draw.random() < 0.5:
                one.sendall(data[hostile.HELLO :])
        match draw.randrange(4):
            case 0:
                one.shutdown(socket.SHUT_WR)
            case 1:
                one.close()


def at_the_door(draw: random.Random, counts: Counter[str]) -> None:
    address, strangers = address_of_nobody(), draw.randrange(1, 30)
    first = pool().submit(exchanged, 0, 2, address)
    with ExitStack() as held:
        second = None
        when = draw.randrange(strangers + 1)
        for turn in range(strangers + 1):
            if turn == when:
                second = pool().submit(exchanged, 1, 2, address)
            else:
                knock(address, draw, held)
        assert second is not None
        started(first, second)
    counts["at the address of rank 0"] += strangers
    counts[CASES] += strangers


def started(*ranks: Future[list[str]]) -> None:
    try:
        found = [one.result(SECONDS) for one in ranks]
    except AntiphonError as error:
        raise Found(f"the job did not start: {error}") from None
    if found != [["from 0", "from 1"]] * 2:
        raise Found(f"the job started wrongly: {found}")


def at_the_mesh(draw: random.Random, counts: Counter[str]) -> None:
    strangers, cards, gate = draw.randrange(1, 12), ["", ""], threading.Barrier(2, timeout=SECONDS)
    address = draw.choice(["", "127.0.0.1"])
    with ExitStack() as held:

        def exchange(rank: int, text: str) -> list[str]:
            cards[rank] = text
            if not gate.wait():
                for _ in range(strangers):
                    card = json.loads(draw.choice(cards))
                    knock(card["path"] if card["path"] and draw.random() < 0.5 else tuple(card["tcp"]), draw, held)
            gate.wait()
            return [*cards]

        def go(rank: int) -> list[str]:
            found = connect_mesh(rank, 2, lambda text: exchange(rank, text), address=address, timeout=SECONDS)
            one = held.enter_context(found[1 - rank])  # type: ignore[arg-type]
            one.sendall(f"from {rank}".encode())
            texts = [f"from {rank}", one.recv(6, socket.MSG_WAITALL).decode()]
            return sorted(texts)

        started(pool().submit(go, 0), pool().submit(go, 1))
    counts["at the doors of the mesh"] += strangers
    counts[CASES] += strangers


def false_rank_0(draw: random.Random, counts: Counter[str]) -> None:
    """It may have heard the truth elsewhere, but does not know the secret."""

    def serve_once(door: socket.socket) -> None:
        with suppress(OSError):
            one, _ = door.accept()
            with one:
                one.settimeout(1.0)
                hello = one.recv(1000)
                talk = listener_handshake(0, 2, b"another", lambda who, count: (0, 0), lambda who: None)
                next(talk)
                answer = talk.send(hello)[0]
                one.sendall(mutated(answer + draw.randbytes(hostile.VERDICT), draw))
                if draw.random() < 0.7:
                    one.shutdown(socket.SHUT_WR)
                one.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(1.0)
        false = pool().submit(serve_once, door)
        said = ""
        try:
            exchanged(1, 2, door.getsockname())
        except AntiphonError as error:
            said = str(error)
        door.close()
        false.result()
    if "rank 1 cannot reach rank 0" not in said:
        raise Found(f"a false rank 0 was believed: {said or 'no error'}")
    counts["of false ranks 0"] += 1
    counts[CASES] += 1


def ours(what: str, do: Callable[[], Any], case: bytes | str) -> str:
    """Nothing is raised but errors of ours."""
    try:
        do()
    except AntiphonError:
        return f"{what}: refused"
    except Exception as error:
        raise Found(f"{what}: {type(error).__name__}: {error}", {"case": case}) from error
    return f"{what}: taken"


def texts(draw: random.Random, counts: Counter[str]) -> None:
    """Of processes that are known: cards, what is agreed on, and texts as they stand on the wire."""
    card = {"tcp": ["127.0.0.1", 1], "host": "a", "path": "", "secret": "00" * 32}
    for _ in range(6):
        text = worded(json.dumps(card), draw)
        counts[ours("cards", lambda text=text: connect_mesh(1, 2, lambda mine: [text, mine], timeout=0.02), text)] += 1
        text = worded(
            json.dumps({"once": "00" * 32, "life": [os.getpid(), 1, 1], "memory": "00" * 24, "rails": 1}),
            draw,
        )
        counts[ours("ways", lambda text=text: near(text), text)] += 1
        text = worded(agreed(), draw)
        counts[ours("books", lambda text=text: start(text), text)] += 1
        data = text.encode(errors="replace")[:2000]
        data = mutated(struct.pack("<Q", len(data)) + data, draw)
        counts[ours("texts on the wire", lambda data=data: wired(data), data)] += 1
        counts[CASES] += 4


@cache
def agreed() -> str:
    made = {"book": encode_book(default_book("allreduce", 2)), "base": base_program(2)}
    told = {name: base64.b64encode(data).decode() for name, data in made.items()}
    return json.dumps({**told, "auto": "", "version": version(), "way": ""})


class NoWay:
    """To a wire whose other end is gone."""

    def offer(self, engine: Engine | None) -> str:
        return ""

    def answer(self, engine: Engine, offers: Sequence[str]) -> str:
        return ""

    def connect(self, engine: Engine, answers: Sequence[str]) -> Wire:
        mine, theirs = socket.socketpair()
        theirs.close()
        return engine.sockets(1, [mine.detach(), -1])

    def close(self) -> None:
        pass


def start(text: str) -> None:
    """As rank 1, to whom rank 0 says this."""
    said = chain([text], repeat('{"way": ""}'))
    start_serving(Processes(1, 2, lambda mine: [next(said), mine], range(2), 2), None, engine, NoWay, fill=True).close()


def near(text: str) -> None:
    """As rank 1, to whom rank 0 says this of memory and pipes."""
    way = Connecting(1, 2, lambda mine: [text, mine], 0.02, None)
    with closing(way):
        way.answer(engine(), [text, way.offer(None)])


def wired(data: bytes) -> None:
    address = address_of_nobody()
    first = pool().submit(exchanged, 0, 2, address)
    with Star(1, 2, f"{address[0]}:{address[1]}", SECONDS, SECRET) as star, suppress(OSError):
        star.connections[0].settimeout(5.0)
        star.connections[0].sendall(data)
        star.connections[0].shutdown(socket.SHUT_WR)
        while star.connections[0].recv(1000):
            pass
    first.result()


def messages(draw: random.Random, counts: Counter[str]) -> None:
    """Of a process that is known, to the engine: heads and elements as a broadcast sends them, changed."""
    for _ in range(6):
        unit = draw.choice([1, 9, 5000])
        data = recorded(unit)
        edge = draw.choice([len(data), 64])  # the head more often than the elements
        data = mutated(data[:edge], draw) + data[edge:]
        if draw.random() < 0.3:
            data += draw.choice([data, draw.randbytes(2000)]) * draw.randrange(1, 50)
        mine, theirs = socket.socketpair()
        wire = engine().sockets(1, [mine.detach(), -1])
        with theirs:
            sender = pool().submit(send_all, theirs, data)
            plan, found = program().plan(1, unit, True), np.zeros(unit, np.uint8)
            try:
                counts[ours("messages", lambda p=plan, f=found, w=wire: p.run(None, f, w, "sum", 5.0), data)] += 1
            finally:
                wire.close()
            sender.result()
        counts[CASES] += 1


def send_all(one: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)


@cache
def recorded(unit: int) -> bytes:
    """Return what rank 0 of 2 sends in a broadcast of so many bytes."""
    mine, theirs = socket.socketpair()
    wire = engine().sockets(0, [-1, mine.detach()])
    data = np.random.default_rng(unit).integers(0, 256, unit).astype(np.uint8)
    program().plan(0, unit, True).run(None, data, wire, "sum", 5.0)
    wire.close()
    with theirs:
        return b"".join(iter(lambda: theirs.recv(2**20), b""))


WAYS = (at_the_door, at_the_door, at_the_mesh, false_rank_0, false_rank_0, texts, messages, messages)


@cache
def memory_at_first() -> int:
    """Once everything has been there."""
    draw, counts = random.Random(0), Counter[str]()
    for way in WAYS:
        way(draw, counts)
    return peak_kb()


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def one(seed: int, counts: Counter[str]) -> None:
    admission.REPORTED.append(0)  # strangers are expected here
    admission.HANDSHAKE_TIMEOUT, rendezvous.ANSWER_TIMEOUT = 0.5, 0.3
    before = memory_at_first()
    draw = random.Random(f"{NAME} {seed}")
    draw.choice(WAYS)(draw, counts)
    if peak_kb() - before > MOST_MB * 1024:
        raise Found(f"memory grew by {(peak_kb() - before) // 1024} MB")


if __name__ == "__main__":
    main(NAME, one, 2_000, __doc__)
