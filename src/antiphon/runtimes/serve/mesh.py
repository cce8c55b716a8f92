"""Connect the processes of a group by stream sockets, over any channel that exchanges a string per process.

Each process opens listening sockets (TCP, and a Unix-domain socket for processes of its host) and sends
their addresses to all others by the channel. Then of each two processes the higher rank connects to the lower
one, with a handshake that proves that both belong to the job (`admission`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon.errors import Invalid, quote
from antiphon.runtimes.serve.admission import BACKLOG, LocalProcess, PeerConnection, connect_all, derive_key
from antiphon.runtimes.serve.secret import Secret, secret_hint
from antiphon.runtimes.serve.texts import fields_of, hex_of, no_message

Exchange = Callable[[str], Sequence[str]]  # an allgather of a text per process
_BUFFER = 4 << 20  # bytes of a Unix-domain socket's buffers


def connect_mesh(
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
    """Return a connected socket per rank; None for this one, and for others than `peers` (which both sides must name).

    Collective. `exchange`: returns the texts of all ranks in their order. `address`: where others reach this process by
    TCP; default: Unix-domain sockets within a host, and the host's own address from other hosts. `buffer`: bytes of
    each socket's buffers instead of the default. `secret`: both sides of a connection prove that they know it; it does
    not go by `exchange`.
    """
    if not 0 <= rank < ranks:
        raise Invalid(f"rank {rank}: there are ranks 0 to {ranks - 1}")
    secret_data = secret.data if secret else b""
    with _Listeners(address, ranks) as listeners:
        texts = exchange(json.dumps(asdict(listeners.card)))
        if len(texts) != ranks:
            raise Invalid(f"{len(texts)} processes answered, {ranks} were expected")
        # exchange done: every process knows how to reach every other one
        neighbors = [r for r in range(ranks) if r != rank and (peers is None or r in peers)]
        cards = {peer: _read_card(texts[peer], f"rank {peer}") for peer in neighbors}
        # the higher of two ranks connects to the lower
        peer_connections = [
            _peer_connection(peer, cards[peer], listeners.card, secret_data) for peer in neighbors if peer < rank
        ]
        this_process = LocalProcess(rank, ranks, f"rank {rank}", timeout, secret_hint(secret))
        key = derive_key(secret_data, listeners.card.token)
        sockets = connect_all(
            this_process,
            listeners.sockets,
            key,
            awaited=[r for r in neighbors if r > rank],
            peer_connections=peer_connections,
            deadline=time.monotonic() + timeout,
        )
    return [_configure_socket(sockets[peer], buffer) if peer in sockets else None for peer in range(ranks)]


@dataclass(frozen=True)
class _Card:
    """How to reach the listening sockets of a process.

    `host`: identifies the kernel; `path`: of the Unix-domain socket, which processes of the same `host` can see.
    `secret`: random, in hexadecimal; with the job's secret it gives the key of handshakes with this process.
    """

    tcp: tuple[str, int]  # address and port
    host: str
    path: str
    secret: str

    @property
    def token(self) -> bytes:
        # "door" separates this use of the job's secret from others (derive_key)
        return b"door " + bytes.fromhex(self.secret)


def _read_card(text: str, sender: str) -> _Card:
    """Return the card that a process sent; Invalid if it is none."""
    fields = fields_of(text, sender)
    match fields:
        case {"tcp": [str(host), int(port)], "host": str(), "path": str(), "secret": str(secret)} if 0 < port < 2**16:
            hex_of(secret, sender)
            if not _is_ip_address(host):
                raise no_message(sender, "expected a numeric IP address")
            return _Card((host, port), fields["host"], fields["path"], secret)
    raise no_message(sender, "expected the addresses of its listening sockets")


def _is_ip_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return host.isascii()  # the scope of an IPv6 address (behind %) may be any text
    return False


class _Listeners:
    """The sockets that others connect to: a TCP one, and unless an address is given a Unix-domain one."""

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
            path = str(Path(folder) / "sock")
            self.sockets.append(self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
            self.sockets[1].bind(path)
        # listen before the addresses are exchanged, so that no connection is refused
        for listener in self.sockets:
            listener.listen(max(BACKLOG, ranks))
        tcp_host, tcp_port, *_ = self.sockets[0].getsockname()
        self.card = _Card((tcp_host, tcp_port), _host_name(), path, secrets.token_hex(32))

    def __enter__(self) -> _Listeners:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def _peer_connection(peer: int, card: _Card, own_card: _Card, secret_data: bytes) -> PeerConnection:
    """Return how to connect to a peer by its card: within a host by the Unix-domain socket, else by TCP."""
    key = derive_key(secret_data, card.token)
    # same kernel and a visible folder: a Unix-domain socket is faster than TCP
    if card.path and own_card.path and card.host == own_card.host and Path(card.path).exists():
        return PeerConnection(peer, [(socket.AF_UNIX, card.path)], key, card.path)
    tcp_host, _ = card.tcp
    family = socket.AF_INET6 if ":" in tcp_host else socket.AF_INET
    return PeerConnection(peer, [(family, card.tcp)], key, ":".join(map(str, card.tcp)))


def _configure_socket(connection: socket.socket, buffer: int | None) -> socket.socket:
    """Set the options of a connected socket, which blocks from now on. `buffer`: bytes; None: the default."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # TCP tunes its buffers by itself; those of Unix-domain sockets are small by default.
    size = buffer or (_BUFFER if connection.family == socket.AF_UNIX else 0)
    if size:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, size)
    connection.settimeout(None)
    return connection


def _host_name() -> str:
    """Return a text that is the same for all processes of a kernel, also in different containers: these cannot see each
    other's Unix-domain sockets, which `_peer_connection` checks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def detach_all(sockets: Sequence[socket.socket | None]) -> list[int]:
    """Detach the sockets and return their file descriptors, which the engine's wire (transport.h) then owns."""
    return [-1 if connection is None else connection.detach() for connection in sockets]


# ---- addresses ----


NAMES = ("ANTIPHON_INTERFACE", "GLOO_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915  # ioctl of Linux that reads an interface's IPv4 address
_ELSEWHERE = "192.0.2.1"  # reserved for documentation (RFC 5737): reached by the default route


def interface_addresses() -> list[str]:
    """Return the addresses of the interfaces in $ANTIPHON_INTERFACE (separated by commas), one for each network (rail).

    Else the address of the first one in $GLOO_SOCKET_IFNAME; empty if neither is set."""
    for variable, limit in zip(NAMES, (None, 1), strict=True):
        names = [name.strip() for name in os.environ.get(variable, "").split(",")[:limit]]
        if any(names):
            return [interface_address(name) for name in names if name]
    return []


def interface_address(name: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise Invalid(f"{quote(name)}: no interface with an IPv4 address ({error.strerror}); see ip addr") from None
    return socket.inet_ntoa(reply[20:24])  # struct ifreq: a name of 16 bytes, then family, port (2 bytes each), address


def own_address() -> str:
    """Return the address of this host towards others, or the loopback's. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ELSEWHERE, 9))  # any port: connecting a UDP socket only selects the local address
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
