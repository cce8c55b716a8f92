"""Connect processes without MPI: all connect to rank 0's address, which collects and redistributes their strings.

This star of connections (`Star`) exists only until the group has started; calls go over the wire that is set up by it
(`wires`). Both sides prove that they know the secret before anything else is read.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Sequence
from typing import Any

from antiphon.errors import Invalid, TimedOut, quote
from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve.admission import (
    BACKLOG,
    LocalProcess,
    PeerConnection,
    SocketAddress,
    connect_all,
    derive_key,
)
from antiphon.runtimes.serve.group_start import Processes, start_serving, table_or_auto
from antiphon.runtimes.serve.secret import job_secret, secret_hint
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.texts import receive_text, send_text, texts_of
from antiphon.runtimes.serve.wires import Connecting, engine_over_sockets

ANSWER_TIMEOUT = 30.0  # seconds in which a listener at the address must answer as rank 0 does


def over_sockets(
    rank: int, ranks: int, address: str, table: Any, timeout: float, compiler: str, secret: str | None = None
) -> Serving:
    """Connect the `ranks` processes that name the same address. Collective; TimedOut if not all come."""
    with Star(rank, ranks, address, timeout, secret) as star:
        # the group is the whole job
        group = Processes(rank, ranks, star.exchange, places=range(ranks), job_size=ranks, timeout=timeout)
        return start_serving(
            group, table_or_auto(table), lambda: engine_over_sockets(compiler),
            lambda: Connecting(rank, ranks, star.exchange, timeout, star.secret),
            fill=True,  # there is no library: calls without a page get plans at once
        )  # fmt: skip


def _parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise Invalid(f'address: expected "host:port" such as 127.0.0.1:29400, got {quote(address)}')
    return host.strip("[]"), int(port)


class Star:
    """Connections of rank 0 with all others, on which they exchange texts. The constructor returns once all exist."""

    def __init__(self, rank: int, ranks: int, address: str, timeout: float, secret: str | None = None) -> None:
        self.rank, self.ranks, self.timeout = rank, ranks, timeout
        self.deadline = time.monotonic() + timeout
        host, port = _parse_address(address)
        self.address_text = f"{host}:{port}"
        addresses = self._resolve_addresses(host, port)
        self.secret = job_secret(secret, all(map(_is_loopback, addresses)), self.address_text)
        this_process = LocalProcess(rank, ranks, self.address_text, timeout, secret_hint(self.secret))
        key = derive_key(self.secret.data, b"rendezvous")
        if rank:
            peer_connection = PeerConnection(
                to=0,
                addresses=addresses,
                key=key,
                where=self.address_text,
                may_start_later=True,
                answer_timeout=ANSWER_TIMEOUT,
            )
            self.connections = connect_all(
                this_process,
                listeners=[],
                key=b"",
                awaited=(),
                peer_connections=[peer_connection],
                deadline=self.deadline,
            )
        else:
            with self._open_listener(addresses[0]) as listener:
                self.connections = connect_all(
                    this_process, [listener], key, range(1, ranks), peer_connections=[], deadline=self.deadline
                )
        for connection in self.connections.values():
            # a length and its text are sent one after another: do not delay the text
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Star:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections.values():
            connection.close()

    def exchange(self, text: str) -> Sequence[str]:
        """Return the texts of all ranks in their order. Collective."""
        try:
            if self.rank:
                send_text(self.connections[0], text, self.deadline)
                return texts_of(receive_text(self.connections[0], self.deadline, "rank 0"), self.ranks, "rank 0")
            peers = range(1, self.ranks)
            texts = [text, *(receive_text(self.connections[rank], self.deadline, f"rank {rank}") for rank in peers)]
            joined = json.dumps(texts)
            for rank in peers:
                send_text(self.connections[rank], joined, self.deadline)
            return texts
        except TimeoutError:
            raise TimedOut(
                f"{self.address_text}: the processes did not all answer in {self.timeout:g} seconds"
            ) from None
        except OSError as error:
            raise TransportFailed(f"{self.address_text}: a process is gone ({error.strerror or error})") from None

    def _resolve_addresses(self, host: str, port: int) -> list[SocketAddress]:
        """Return the addresses of a host, the preferred one first."""
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "no name of a host"
            raise Invalid(f"address: {self.address_text} is unknown here ({why}); choose another") from None
        return [(family, socket_address) for family, _, _, _, socket_address in rows]

    def _open_listener(self, socket_address: SocketAddress) -> socket.socket:
        family, address = socket_address
        try:
            with contextlib.ExitStack() as stack:
                listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(max(BACKLOG, self.ranks))
                stack.pop_all()  # the caller closes it
                return listener
        except OSError as error:
            raise Invalid(
                f"address: {self.address_text} cannot be listened at ({error.strerror}); choose another"
            ) from None


def _is_loopback(socket_address: SocketAddress) -> bool:
    """Return whether only processes of this host can connect there."""
    _, (host, *_) = socket_address
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
