"""Stream sockets between the processes of a group, whatever brought these together."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from antiphon.errors import Invalid, TimedOut
from antiphon.run._native import TransportFailed

Exchange = Callable[[str], Sequence[str]]
_HELLO = struct.Struct("<16sI")
_BUFFER = 4 << 20
_ELSEWHERE = "192.0.2.1"  # an address that is nobody's (RFC 5737): the route to it is the usual one


def mesh(
    rank: int,
    ranks: int,
    exchange: Exchange,
    *,
    address: str = "",
    peers: Collection[int] | None = None,
    timeout: float = 60.0,
    buffer: int | None = None,
) -> list[socket.socket | None]:
    """A connected socket to every other rank, or to `peers` only (then either side must name the other); None else.

    Collective: `exchange` hands everybody everybody's text, in the order of the ranks. `address`: where others reach
    this process by TCP; without one, processes of one host meet over Unix-domain sockets and others by this host's
    own address. `buffer`: bytes of each socket's buffers, where the system's own are not wanted.
    """
    if not 0 <= rank < ranks:
        raise Invalid(f"rank {rank}: there are ranks 0 to {ranks - 1}")
    with _Door(address, ranks) as door:
        told = [json.loads(text) for text in exchange(json.dumps(door.card))]
        if len(told) != ranks:
            raise Invalid(f"{len(told)} processes answered, {ranks} were expected")
        wanted = [r for r in range(ranks) if r != rank and (peers is None or r in peers)]
        return _meet(rank, ranks, door, told, wanted, time.monotonic() + timeout, buffer)


class _Door:
    """Where others knock: a TCP socket, and without a given address a Unix-domain one as well."""

    def __init__(self, address: str, ranks: int) -> None:
        self.stack = contextlib.ExitStack()
        self.secret = secrets.token_bytes(16)
        host = address or _own_address()
        try:
            family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
            self.sockets = [self.stack.enter_context(socket.socket(family, socket.SOCK_STREAM))]
            self.sockets[0].bind((host, 0))
        except OSError as error:
            self.stack.close()
            raise Invalid(f"{host}: no address of this host that can be listened at ({error.strerror})") from None
        self.card: dict[str, Any] = {
            "tcp": list(self.sockets[0].getsockname()[:2]), "host": _host(), "path": "", "secret": self.secret.hex(),
        }  # fmt: skip
        if not address:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-"))
            self.card["path"] = str(Path(folder) / "door")
            self.sockets.append(self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
            self.sockets[1].bind(self.card["path"])
        for one in self.sockets:
            one.listen(ranks)

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def _meet(
    rank: int, ranks: int, door: _Door, told: list[Any], wanted: list[int], end: float, buffer: int | None
) -> list[socket.socket | None]:
    """The higher of two ranks knocks; what knocks elsewhere by mistake does not know the secret."""
    found: list[socket.socket | None] = [None] * ranks
    try:
        for other in wanted:
            if other < rank:
                found[other] = _knock(rank, other, told[other], door.card, end, buffer)
        missing = {other for other in wanted if other > rank}
        while missing:
            who, one = _open(door, missing, end)
            if who in missing:
                found[who] = _tuned(one, buffer)
                missing.discard(who)
            else:
                one.close()
    except BaseException:
        for each in found:
            if each is not None:
                each.close()
        raise
    return found


def _knock(rank: int, other: int, card: Any, mine: Any, end: float, buffer: int | None) -> socket.socket:
    near = bool(card["path"] and mine["path"]) and card["host"] == mine["host"] and Path(card["path"]).exists()
    where: Any = card["path"] if near else tuple(card["tcp"])
    family = socket.AF_UNIX if near else socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    while True:
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.settimeout(max(end - time.monotonic(), 0.01))
            one.connect(where)
            one.sendall(_HELLO.pack(bytes.fromhex(card["secret"]), rank))
            return _tuned(one, buffer)
        except OSError as error:
            one.close()
            if time.monotonic() > end or isinstance(error, ConnectionRefusedError | FileNotFoundError):
                place = where if near else ":".join(map(str, where))
                raise TransportFailed(
                    f"rank {rank} cannot reach rank {other} at {place}: {error.strerror or error}"
                ) from None
            time.sleep(0.05)


def _open(door: _Door, missing: Collection[int], end: float) -> tuple[int, socket.socket]:
    """The next that knocks, and who says it is: -1 for a stranger."""
    import selectors

    with selectors.DefaultSelector() as selector:
        for each in door.sockets:
            selector.register(each, selectors.EVENT_READ)
        ready = selector.select(max(end - time.monotonic(), 0.0))
    if not ready:
        raise TimedOut(f"{len(missing)} processes did not connect in time, the first is rank {min(missing)}")
    listening = ready[0][0].fileobj
    assert isinstance(listening, socket.socket)
    one, _ = listening.accept()
    one.settimeout(max(end - time.monotonic(), 0.01))
    try:
        text = b""
        while len(text) < _HELLO.size:
            more = one.recv(_HELLO.size - len(text))
            if not more:
                return -1, one
            text += more
    except OSError:
        return -1, one
    secret, who = _HELLO.unpack(text)
    return (int(who) if secrets.compare_digest(secret, door.secret) else -1), one


def _tuned(one: socket.socket, buffer: int | None) -> socket.socket:
    if one.family != socket.AF_UNIX:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size = buffer or (_BUFFER if one.family == socket.AF_UNIX else 0)
    if size:
        for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, which, size)
    one.settimeout(None)
    return one


def _own_address() -> str:
    """The address that this host has towards others; the loopback's where it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect((_ELSEWHERE, 9))
            return str(one.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _host() -> str:
    """One text for all processes that share a kernel and its files; containers and namespaces tell themselves apart by
    the folder of a door, which others of them cannot see."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def handed_over(found: Sequence[socket.socket | None]) -> list[int]:
    """Their numbers, for a wire that takes them over: the Python objects let go of them."""
    return [-1 if one is None else one.detach() for one in found]
