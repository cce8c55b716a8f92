"""Stream sockets between the processes of a group, whatever brought these together."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon.errors import Invalid
from antiphon.runtimes.serve.admission import BACKLOG, Knock, Party, gather
from antiphon.runtimes.serve.handshake import derived
from antiphon.runtimes.serve.interface import own_address
from antiphon.runtimes.serve.secret import Secret, hint_of
from antiphon.runtimes.serve.texts import fields_of, hex_of, no_message

Exchange = Callable[[str], Sequence[str]]
_BUFFER = 4 << 20


def mesh(
    rank: int,
    ranks: int,
    exchange: Exchange,
    *,
    address: str = "",
    peers: Collection[int] | None = None,
    timeout: float = 60.0,
    buffer: int | None = None,
    secret: Secret | None = None,
) -> list[socket.socket | None]:
    """A connected socket to every other rank, or to `peers` only (then either side must name the other); None else.

    Collective: `exchange` hands everybody everybody's text, in the order of the ranks. `address`: where others reach
    this process by TCP; without one, processes of one host meet over Unix-domain sockets and others by this host's
    own address. `buffer`: bytes of each socket's buffers, where the system's own are not wanted. `secret`: what all
    must know to be let in, besides what goes by `exchange`.
    """
    if not 0 <= rank < ranks:
        raise Invalid(f"rank {rank}: there are ranks 0 to {ranks - 1}")
    known = secret.data if secret else b""
    with _Door(address, ranks) as door:
        told = exchange(json.dumps(asdict(door.card)))
        if len(told) != ranks:
            raise Invalid(f"{len(told)} processes answered, {ranks} were expected")
        wanted = [r for r in range(ranks) if r != rank and (peers is None or r in peers)]
        cards = {other: _card(told[other], f"rank {other}") for other in wanted}
        knocks = [_knock(other, cards[other], door.card, known) for other in wanted if other < rank]
        party = Party(rank, ranks, f"rank {rank}", timeout, hint_of(secret))
        key = derived(known, door.card.token)
        met = gather(party, door.sockets, key, [r for r in wanted if r > rank], knocks, time.monotonic() + timeout)
    return [_tuned(met[other], buffer) if other in met else None for other in range(ranks)]


@dataclass(frozen=True)
class _Card:
    """What others must know of a door. `path`: of the Unix-domain socket, which processes of the same `host` can see;
    `token`: the random part of the door's key."""

    tcp: tuple[str, int]
    host: str
    path: str
    secret: str

    @property
    def token(self) -> bytes:
        return b"door " + bytes.fromhex(self.secret)


def _card(text: str, who: str) -> _Card:
    found = fields_of(text, who)
    match found:
        case {"tcp": [str(host), int(port)], "host": str(), "path": str(), "secret": str(token)} if 0 < port < 2**16:
            hex_of(token, who)
            if not _is_number(host):
                raise no_message(who, "expected the number of a host")
            return _Card((host, port), found["host"], found["path"], token)
    raise no_message(who, "expected the addresses of its doors")


def _is_number(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return host.isascii()
    return False


class _Door:
    """Where others knock: a TCP socket, and without a given address a Unix-domain one as well."""

    def __init__(self, address: str, ranks: int) -> None:
        self.stack = contextlib.ExitStack()
        host, path = address or own_address(), ""
        try:
            family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
            self.sockets = [self.stack.enter_context(socket.socket(family, socket.SOCK_STREAM))]
            self.sockets[0].bind((host, 0))
        except OSError as error:
            self.stack.close()
            raise Invalid(f"{host}: no address of this host that can be listened at ({error.strerror})") from None
        if not address:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-"))
            path = str(Path(folder) / "door")
            self.sockets.append(self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
            self.sockets[1].bind(path)
        for one in self.sockets:
            one.listen(max(BACKLOG, ranks))
        tcp = self.sockets[0].getsockname()
        self.card = _Card((tcp[0], tcp[1]), _host(), path, secrets.token_hex(32))

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def _knock(other: int, card: _Card, mine: _Card, known: bytes) -> Knock:
    """The higher of two ranks knocks."""
    key = derived(known, card.token)
    if card.path and mine.path and card.host == mine.host and Path(card.path).exists():
        return Knock(other, [(socket.AF_UNIX, card.path)], key, card.path)
    family = socket.AF_INET6 if ":" in card.tcp[0] else socket.AF_INET
    return Knock(other, [(family, card.tcp)], key, ":".join(map(str, card.tcp)))


def _tuned(one: socket.socket, buffer: int | None) -> socket.socket:
    if one.family != socket.AF_UNIX:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size = buffer or (_BUFFER if one.family == socket.AF_UNIX else 0)
    if size:
        for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            one.setsockopt(socket.SOL_SOCKET, which, size)
    one.settimeout(None)
    return one


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
