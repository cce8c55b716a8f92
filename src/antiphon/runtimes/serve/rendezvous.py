"""Processes without MPI: they meet at an address where rank 0 listens, and then connect with each other."""

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
from antiphon.runtimes.serve.admission import BACKLOG, Knock, Party, Place, gather
from antiphon.runtimes.serve.auto_begin import auto_or
from antiphon.runtimes.serve.group_start import Processes, serve
from antiphon.runtimes.serve.handshake import derived
from antiphon.runtimes.serve.secret import hint_of, job_secret
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.texts import receive_text, send_text, texts_of
from antiphon.runtimes.serve.wires import Connecting, engine_over_sockets

PATIENCE = 30.0  # seconds until whoever listens at the address must have answered as rank 0 does


def over_sockets(
    rank: int, ranks: int, address: str, table: Any, timeout: float, compiler: str, secret: str | None = None
) -> Serving:
    """Collective among the `ranks` processes that name the same address. TimedOut where not all come."""
    with Star(rank, ranks, address, timeout, secret) as star:
        group = Processes(rank, ranks, star.exchange, range(ranks), ranks, timeout=timeout)
        return serve(
            group, auto_or(table), lambda: engine_over_sockets(compiler),
            lambda: Connecting(rank, ranks, star.exchange, timeout, star.secret), fill=True,
        )  # fmt: skip


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise Invalid(f'address: expected "host:port" such as 127.0.0.1:29400, got {quote(address)}')
    return host.strip("[]"), int(port)


class Star:
    """Connections of rank 0 with all others, for texts."""

    def __init__(self, rank: int, ranks: int, address: str, timeout: float, secret: str | None = None) -> None:
        self.rank, self.ranks, self.timeout = rank, ranks, timeout
        self.end = time.monotonic() + timeout
        host, port = _parsed(address)
        self.where = f"{host}:{port}"
        places = self._places(host, port)
        self.secret = job_secret(secret, all(map(_near, places)), self.where)
        party = Party(rank, ranks, self.where, timeout, hint_of(self.secret))
        key = derived(self.secret.data, b"rendezvous")
        if rank:
            knock = Knock(0, places, key, self.where, early=True, patience=PATIENCE)
            self.others = gather(party, [], b"", (), [knock], self.end)
        else:
            with self._door(places[0]) as door:
                self.others = gather(party, [door], key, range(1, ranks), [], self.end)
        for one in self.others.values():
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a length and its text go one after another

    def __enter__(self) -> Star:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.others.values():
            one.close()

    def exchange(self, text: str) -> Sequence[str]:
        """Everybody's text, in the order of the ranks. A collective call."""
        try:
            if self.rank:
                send_text(self.others[0], text, self.end)
                return texts_of(receive_text(self.others[0], self.end, "rank 0"), self.ranks, "rank 0")
            others = [(self.others[other], f"rank {other}") for other in range(1, self.ranks)]
            texts = [text, *(receive_text(one, self.end, who) for one, who in others)]
            joined = json.dumps(texts)
            for one, _ in others:
                send_text(one, joined, self.end)
            return texts
        except TimeoutError:
            raise TimedOut(f"{self.where}: the processes did not all answer in {self.timeout:g} seconds") from None
        except OSError as error:
            raise TransportFailed(f"{self.where}: a process is gone ({error.strerror or error})") from None

    def _places(self, host: str, port: int) -> list[Place]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "no name of a host"
            raise Invalid(f"address: {self.where} is unknown here ({why}); choose another") from None
        return [(one[0], one[4]) for one in found]

    def _door(self, place: Place) -> socket.socket:
        try:
            with contextlib.ExitStack() as stack:
                door = stack.enter_context(socket.socket(place[0], socket.SOCK_STREAM))
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                door.bind(place[1])
                door.listen(max(BACKLOG, self.ranks))
                stack.pop_all()
                return door
        except OSError as error:
            raise Invalid(f"address: {self.where} cannot be listened at ({error.strerror}); choose another") from None


def _near(place: Place) -> bool:
    """Whether nobody but processes of this host can come there."""
    return ipaddress.ip_address(place[1][0].partition("%")[0]).is_loopback
