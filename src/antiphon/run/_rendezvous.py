"""Processes without MPI: they meet at an address where rank 0 listens, and then connect with each other."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from antiphon.errors import AntiphonError, Invalid, TimedOut, quote
from antiphon.run._build import library
from antiphon.run._group_start import Group, serve
from antiphon.run._interface import interface_address
from antiphon.run._native import Engine, TransportFailed, Wire
from antiphon.run._serving import Serving
from antiphon.run._wires import connect

_LENGTH = struct.Struct("<Q")
_MOST = 2**32  # bytes of a text: more is no message of ours
_HELLO = "antiphon rendezvous 1"


def over_sockets(rank: int, ranks: int, address: str, table: Any, timeout: float, compiler: str) -> Serving:
    """Collective among the `ranks` processes that name the same address. TimedOut where not all come."""
    host, port = _parsed(address)
    with Star(rank, ranks, host, port, timeout) as star:

        def engine() -> Engine:
            return Engine(library("sockets", compiler))

        def wire(made: Engine) -> Wire:
            return connect(made, rank, ranks, star.exchange, address=interface_address(), timeout=timeout)[0]

        group = Group(rank, ranks, star.exchange, range(ranks), ranks)
        return serve(group, table, engine, wire, fill=True)


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise Invalid(f'address: expected "host:port" such as 127.0.0.1:29400, got {quote(address)}')
    return host.strip("[]"), int(port)


class Star:
    """Connections of rank 0 with all others, for texts."""

    def __init__(self, rank: int, ranks: int, host: str, port: int, timeout: float) -> None:
        self.rank, self.ranks, self.timeout = rank, ranks, timeout
        self.end = time.monotonic() + timeout
        self.where = f"{host}:{port}"
        self.stack = contextlib.ExitStack()
        self.others: dict[int, socket.socket] = {}
        try:
            if rank == 0:
                self._listen(host, port)
            else:
                self._join(host, port)
        except BaseException:
            self.stack.close()
            raise

    def __enter__(self) -> Star:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def exchange(self, text: str) -> Sequence[str]:
        """Everybody's text, in the order of the ranks. A collective call."""
        try:
            if self.rank:
                self._send(self.others[0], text)
                found: list[str] = json.loads(self._receive(self.others[0], 0))
                return found
            texts = [text, *(self._receive(self.others[other], other) for other in range(1, self.ranks))]
            for other in range(1, self.ranks):
                self._send(self.others[other], json.dumps(texts))
            return texts
        except TimeoutError:
            raise TimedOut(f"{self.where}: the processes did not all answer in {self.timeout:g} seconds") from None
        except OSError as error:
            raise TransportFailed(f"{self.where}: a process is gone ({error.strerror or error})") from None

    def _listen(self, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            door = self.stack.enter_context(socket.socket(found[0], socket.SOCK_STREAM))
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(found[4])
            door.listen(self.ranks)
        except OSError as error:
            raise Invalid(f"address: {self.where} cannot be listened at ({error.strerror}); choose another") from None
        while len(self.others) < self.ranks - 1:
            try:
                door.settimeout(self._left())
                one, _ = door.accept()
            except TimeoutError:
                missing = sorted({*range(1, self.ranks)} - {*self.others})
                raise TimedOut(
                    f"{self.where}: {len(missing)} of {self.ranks} processes did not come in {self.timeout:g} seconds, "
                    f"the first is rank {missing[0]}"
                ) from None
            self._admit(one)

    def _admit(self, one: socket.socket) -> None:
        """Whoever does not belong here is sent away; a wrong number is told to both."""
        one.settimeout(min(self._left(), 10.0))
        try:
            hello, rank, ranks = json.loads(self._receive(one, -1))
            rank, ranks = int(rank), int(ranks)
        except (OSError, ValueError, TypeError):
            one.close()
            return
        fault = ""
        if hello != _HELLO or ranks != self.ranks:
            fault = f"rank {rank} expects {ranks} processes, rank 0 expects {self.ranks}"
        elif rank in self.others or not 0 < rank < self.ranks:
            fault = f"two processes say that they are rank {rank}"
        with contextlib.suppress(OSError):
            self._send(one, fault)
        if fault:
            one.close()
            raise Invalid(f"{self.where}: {fault}; give every process its own rank and the same ranks")
        self.others[rank] = self.stack.enter_context(one)

    def _join(self, host: str, port: int) -> None:
        """Rank 0 may come later: try until the time is over."""
        while True:
            try:
                one = socket.create_connection((host, port), self._left())
                break
            except OSError as error:
                if time.monotonic() + 0.1 > self.end or isinstance(error, socket.gaierror):
                    raise TimedOut(
                        f"rank 0 does not listen at {self.where} ({error.strerror or error}); start it, or mend it"
                    ) from None
                time.sleep(0.05)
        self.others[0] = self.stack.enter_context(one)
        try:
            self._send(one, json.dumps([_HELLO, self.rank, self.ranks]))
            fault = self._receive(one, 0)
        except (OSError, AntiphonError) as error:
            raise TransportFailed(f"{self.where}: rank 0 did not answer ({error}); is this its address?") from None
        if fault:
            raise Invalid(f"{self.where}: {fault}; give every process its own rank and the same ranks")

    def _left(self) -> float:
        return max(self.end - time.monotonic(), 0.01)

    def _send(self, one: socket.socket, text: str) -> None:
        data = text.encode()
        one.settimeout(self._left())
        one.sendall(_LENGTH.pack(len(data)) + data)

    def _receive(self, one: socket.socket, other: int) -> str:
        if other >= 0:
            one.settimeout(self._left())
        (length,) = _LENGTH.unpack(_exactly(one, _LENGTH.size))
        if length > _MOST:
            raise OSError(f"what came from rank {other} is no message of this program")
        return _exactly(one, length).decode()


def _exactly(one: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = one.recv(min(left, 1 << 20))
        if not part:
            raise ConnectionResetError(104, "it closed its connection")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
