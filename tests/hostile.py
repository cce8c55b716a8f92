"""What strangers do to a port at which processes of a job are awaited: for tests, a bench and a fuzzer."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable

MARK, VERSION = b"antiphon", 2
HELLO, ANSWER, PROOF, VERDICT = 56, 76, 32, 40  # bytes of the frames
Address = tuple[str, int]
Act = Callable[[socket.socket, random.Random], None]


def hello(rank: int, ranks: int, to: int = 0, version: int = VERSION) -> bytes:
    """As the first frame is documented, written down once more here."""
    return struct.pack("<8sIIII32s", MARK, version, rank, ranks, to, b"once" * 8)


def _older(text: str) -> bytes:
    """How a text looked in earlier versions, and still does among processes that know each other."""
    return struct.pack("<Q", len(text)) + text.encode()


def _silent(one: socket.socket, draw: random.Random) -> None:
    """Connects and holds."""


def _gone(one: socket.socket, draw: random.Random) -> None:
    one.close()


def _reset(one: socket.socket, draw: random.Random) -> None:
    """As scanners of ports do."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def _half_open(one: socket.socket, draw: random.Random) -> None:
    one.sendall(hello(1, 4)[: draw.randrange(HELLO)])
    one.shutdown(socket.SHUT_WR)


def _slow(one: socket.socket, draw: random.Random) -> None:
    """The first of the bytes that come one by one; `drip` sends the others."""
    one.sendall(hello(1, 4)[:1])


def _impersonates(one: socket.socket, draw: random.Random) -> None:
    one.sendall(hello(1, 4) + draw.randbytes(PROOF))


def _wrong_number(one: socket.socket, draw: random.Random) -> None:
    one.sendall(hello(draw.choice([0, 1, 7, 2**32 - 1]), draw.choice([0, 1, 99, 2**32 - 1])) + draw.randbytes(PROOF))


def _long(one: socket.socket, draw: random.Random) -> None:
    one.sendall(struct.pack("<Q", draw.choice([2**32, 2**32 - 1, 2**63, 2**64 - 1])) + bytes(4096))


def _deep(one: socket.socket, draw: random.Random) -> None:
    one.sendall(_older("[" * 100_000))


def _number(one: socket.socket, draw: random.Random) -> None:
    one.sendall(_older('["antiphon rendezvous 1", 1e999, 4]'))


def _older_hello(one: socket.socket, draw: random.Random) -> None:
    one.sendall(_older('["antiphon rendezvous 1", 1, 4]'))


def _http(one: socket.socket, draw: random.Random) -> None:
    one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def _tls(one: socket.socket, draw: random.Random) -> None:
    one.sendall(bytes.fromhex("1603010200010001fc0303") + draw.randbytes(501))


def _garbage(one: socket.socket, draw: random.Random) -> None:
    one.sendall(draw.randbytes(draw.randrange(1, 4096)))


def _other_version(one: socket.socket, draw: random.Random) -> None:
    one.sendall(hello(1, 4, version=draw.choice([0, 1, 3, 2**32 - 1])))


ACTS: dict[str, Act] = {
    "holds": _silent,
    "goes": _gone,
    "resets": _reset,
    "half open": _half_open,
    "byte by byte": _slow,
    "claims rank 1": _impersonates,
    "wrong number": _wrong_number,
    "huge length": _long,
    "deep JSON": _deep,
    "1e999": _number,
    "earlier version": _older_hello,
    "later version": _other_version,
    "HTTP": _http,
    "TLS": _tls,
    "garbage": _garbage,
}


def commit(act: str, address: Address, draw: random.Random, timeout: float = 5.0) -> socket.socket | None:
    """Does it, and gives the connection, which is still to be closed; None where none came about."""
    one = None
    with contextlib.suppress(OSError):
        one = socket.create_connection(address, timeout)
        ACTS[act](one, draw)
    return one


def drip(one: socket.socket, seconds: float) -> int:
    """The rest of a hello, a byte a second; how many were taken."""
    end, sent = time.monotonic() + seconds, 0
    with contextlib.suppress(OSError):
        for byte in hello(1, 4)[1:]:
            if time.monotonic() > end:
                break
            time.sleep(1.0)
            one.sendall(bytes([byte]))
            sent += 1
    return sent
