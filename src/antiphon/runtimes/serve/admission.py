"""Connect processes and authenticate them: one event loop for all connections that a process makes or accepts.

`connect_all` gets listening sockets, the ranks whose connections are awaited there, and the connections to make to
other ranks' listening sockets (`PeerConnection`). It returns a connected, authenticated socket per rank, or raises when
the deadline is over. One selector loop serves all of them at the same time.

An accepted connection belongs to a stranger until its other end has proved that it knows the secret. Strangers have
little time, their number is limited, they do not delay each other, and they are counted.

The handshake has four frames of fixed lengths. The connector is the process that connects, the listener the other one.

    connector: hello     its rank, the number of ranks, the rank it wants, a nonce
    listener:  answer    a nonce, its proof
    connector: proof
    listener:  verdict   0 or a fault (such as a rank that is taken), and a proof

A proof is the HMAC-SHA256 of the role and everything sent before, so it is worthless on another connection, for another
rank or in the other direction. Until the connector has proved that it knows the secret, only hello and proof are read
from it: 88 bytes. Both sides are generators that yield frames (`connector_handshake`, `listener_handshake`); they use
no socket.
"""

from __future__ import annotations

import errno
import hmac
import math
import os
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from antiphon.errors import AntiphonError, Invalid, TimedOut
from antiphon.runtimes.engine.native import TransportFailed

BACKLOG = 1024  # connections that wait to be accepted
_MAX_STRANGERS = 256  # at a time, besides one per rank; the oldest is dropped for the next
HANDSHAKE_TIMEOUT = 2.0  # seconds in which a stranger must complete the handshake
_RETRY = 0.05  # seconds until the next try
_ACCEPTS = 64  # connections accepted at once, before others are read
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER that resets a stranger's connection, without TIME_WAIT
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_LISTENING = (errno.ECONNREFUSED, errno.ENOENT)
_CONNECTING = (0, errno.EINPROGRESS)  # results of a non-blocking connect that goes well so far

SocketAddress = tuple[int, Any]  # the family of a socket, and its address


@dataclass
class PeerConnection:
    """A connection to make to another rank."""

    to: int  # the rank
    addresses: Sequence[SocketAddress]  # it listens at one of them; they are tried in turn
    key: bytes  # of the handshake
    where: str  # the address as shown in messages
    may_start_later: bool = False  # whether it may not listen yet
    answer_timeout: float = math.inf  # seconds in which it must answer once something has accepted the connection


@dataclass(frozen=True)
class LocalProcess:
    """This process."""

    rank: int
    ranks: int  # number of processes
    name: str  # prefix of messages, such as "rank 3" or the address of the rendezvous
    timeout: float  # seconds, as shown in messages
    hint: str  # how to fix a wrong secret


def connect_all(
    this_process: LocalProcess, listeners: Sequence[socket.socket], key: bytes, awaited: Collection[int],
    peer_connections: Sequence[PeerConnection],
    deadline: float,
) -> dict[int, socket.socket]:  # fmt: skip
    """Return connections by rank: from the ranks `awaited` at the listeners, and to those of `peer_connections`.

    `key`: of the handshake at the listeners; `deadline`: by `time.monotonic`. TimedOut if connections are missing then;
    Invalid, at both sides, if a process that knows the key claims a rank that it cannot have.
    """
    loop = _EventLoop(this_process, key, awaited, deadline)
    try:
        for listener in listeners:
            listener.setblocking(False)
            loop.selector.register(listener, selectors.EVENT_READ)
        for peer_connection in peer_connections:
            loop.attempts.append(_Attempt(peer_connection))
        while loop.missing():
            loop.handle_next_event()
    except BaseException:
        for connection in loop.connections.values():
            connection.close()
        raise
    finally:
        loop.close()
    _report_strangers(this_process, loop.rejected)
    return loop.connections


class _PendingConnection:
    """A connection during its handshake, until a deadline. `attempt`: the attempt it belongs to; None if accepted."""

    def __init__(
        self, connection: socket.socket, handshake: Handshake, deadline: float, attempt: _Attempt | None
    ) -> None:
        self.socket, self.handshake, self.deadline, self.attempt = connection, handshake, deadline, attempt
        self.received = bytearray()
        self.frame_bytes = 0  # length of the frame being received; 0: none is expected
        self.connected = attempt is None


class _Attempt:
    """The attempts to make a connection. `next_try`: when to try again; `last_failure`: why the last one failed."""

    def __init__(self, peer_connection: PeerConnection) -> None:
        self.peer_connection, self.try_count, self.next_try, self.done = peer_connection, 0, 0.0, False
        self.accepted_at = math.inf  # when something first accepted the connection: `answer_timeout` runs from here
        self.last_failure = ""
        self.pending_connection: _PendingConnection | None = None


class _EventLoop:
    """The event loop: connections made so far (`connections`), attempts, and accepted connections in their handshake
    (`pending`)."""

    def __init__(self, this_process: LocalProcess, key: bytes, awaited: Collection[int], deadline: float) -> None:
        self.this_process, self.key, self.awaited, self.deadline = this_process, key, {*awaited}, deadline
        self.selector = selectors.DefaultSelector()
        self.connections: dict[int, socket.socket] = {}
        self.attempts: list[_Attempt] = []
        self.pending: dict[int, _PendingConnection] = {}  # of strangers, by file descriptor, oldest first
        self.rejected = 0
        self.claimed: set[int] = set()  # ranks that strangers claimed
        self.max_strangers = _MAX_STRANGERS + this_process.ranks

    def missing(self) -> bool:
        """Return whether a connection is still missing."""
        return bool(self.awaited - self.connections.keys()) or not all(attempt.done for attempt in self.attempts)

    def close(self) -> None:
        for pending_connection in [
            *self.pending.values(),
            *(attempt.pending_connection for attempt in self.attempts if attempt.pending_connection),
        ]:
            pending_connection.socket.close()
        self.selector.close()

    def handle_next_event(self) -> None:
        """Wait for the next event or deadline, and handle it."""
        now = time.monotonic()
        if now >= self.deadline:
            raise self._timeout_error()
        next_time = self.deadline
        # strangers have equal time, so the oldest is the first to run out of it
        while self.pending:
            oldest = next(iter(self.pending.values()))
            if oldest.deadline > now:
                next_time = min(next_time, oldest.deadline)
                break
            self._reject_stranger(oldest)
        for attempt in self.attempts:
            if not attempt.done and attempt.pending_connection is None and attempt.next_try <= now:
                self._start_connecting(attempt, now)
            if not attempt.done:
                next_time = min(
                    next_time, attempt.pending_connection.deadline if attempt.pending_connection else attempt.next_try
                )
                if attempt.pending_connection and attempt.pending_connection.deadline <= now:
                    self._retry_handshake(
                        attempt, f"it says nothing for {attempt.peer_connection.answer_timeout:g} seconds"
                    )
        for key, _ in self.selector.select(max(next_time - time.monotonic(), 0.0)):
            if key.data is None:  # registered by `connect_all`
                assert isinstance(key.fileobj, socket.socket)
                self._accept_strangers(key.fileobj)
            # a stranger may just have been dropped for another; a connection of ours ends by its own events only
            elif key.data.attempt is not None or self.pending.get(key.fd) is key.data:
                self._receive_frame(key.data)

    # ---- accepted connections ----

    def _accept_strangers(self, listener: socket.socket) -> None:
        """Accept waiting connections and start their handshakes."""
        for _ in range(_ACCEPTS):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._drop_oldest_stranger()
                    return
                continue  # it has closed already
            if len(self.pending) >= self.max_strangers:
                self._drop_oldest_stranger()
            connection.setblocking(False)
            handshake = listener_handshake(
                self.this_process.rank, self.this_process.ranks, self.key, self._check_claim, self._note_claim
            )
            pending_connection = _PendingConnection(
                connection, handshake, time.monotonic() + HANDSHAKE_TIMEOUT, attempt=None
            )
            _, pending_connection.frame_bytes = next(handshake)  # the listener sends nothing before hello
            self.pending[connection.fileno()] = pending_connection
            self.selector.register(connection, selectors.EVENT_READ, pending_connection)

    def _drop_oldest_stranger(self) -> None:
        """Drop the oldest stranger; without any, wait until file descriptors may be free."""
        if self.pending:
            self._reject_stranger(next(iter(self.pending.values())))
        else:
            time.sleep(_RETRY)  # others of this process or host hold all descriptors

    def _check_claim(self, rank: int, count: int) -> tuple[int, int]:
        """Return the fault of a connector that claims to be `rank` of `count`, and a number for its message; (0, 0):
        none.
        """
        if count != self.this_process.ranks:
            return OTHER_COUNT, self.this_process.ranks
        if rank in self.connections:
            return RANK_TAKEN, 0
        return (0, 0) if rank in self.awaited else (UNWANTED, 0)

    def _note_claim(self, rank: int) -> None:
        if rank in self.awaited:
            self.claimed.add(rank)

    def _reject_stranger(self, pending_connection: _PendingConnection) -> None:
        """Reset and count the connection of a stranger."""
        self.selector.unregister(pending_connection.socket)
        del self.pending[pending_connection.socket.fileno()]
        with suppress(OSError):
            pending_connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        pending_connection.socket.close()
        self.rejected += 1

    # ---- connections to other ranks ----

    def _start_connecting(self, attempt: _Attempt, now: float) -> None:
        """Start a non-blocking connect to the next of the peer's addresses."""
        peer_connection = attempt.peer_connection
        family, address = peer_connection.addresses[attempt.try_count % len(peer_connection.addresses)]
        attempt.try_count += 1
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # others of this process or host hold all descriptors
            attempt.last_failure, attempt.next_try = error.strerror or "", now + _RETRY
            return
        connection.setblocking(False)
        handshake = connector_handshake(
            self.this_process.rank, self.this_process.ranks, peer_connection.to, peer_connection.key
        )
        # further tries do not extend the time to answer, which runs from the first accepted connection
        answer_deadline = min(attempt.accepted_at, now) + peer_connection.answer_timeout
        attempt.pending_connection = _PendingConnection(connection, handshake, answer_deadline, attempt)
        self.selector.register(connection, selectors.EVENT_WRITE, attempt.pending_connection)
        try:
            code = connection.connect_ex(address)
        except OSError as error:  # no such address
            code = error.errno or errno.EINVAL
        if code not in _CONNECTING:
            self._retry_connect(attempt, code)

    def _retry_connect(self, attempt: _Attempt, code: int) -> None:
        """Try again after a connect failed with this errno, unless nobody listens who should."""
        reason = os.strerror(code)
        if code in _NOT_LISTENING and not attempt.peer_connection.may_start_later:
            raise TransportFailed(f"{self._cannot_reach(attempt)}: {reason}")
        attempt.accepted_at = math.inf  # nothing accepts any more: the time to answer begins anew
        self._drop_connection(attempt, reason)

    def _retry_handshake(self, attempt: _Attempt, reason: str) -> None:
        """Try again after something accepted but did not answer as it should, within `answer_timeout`."""
        if time.monotonic() - attempt.accepted_at >= attempt.peer_connection.answer_timeout:
            raise TransportFailed(f"{self._cannot_reach(attempt)}: {reason}; is this its address?")
        self._drop_connection(attempt, reason)

    def _drop_connection(self, attempt: _Attempt, reason: str) -> None:
        assert attempt.pending_connection is not None
        self.selector.unregister(attempt.pending_connection.socket)
        attempt.pending_connection.socket.close()
        attempt.pending_connection, attempt.last_failure, attempt.next_try = None, reason, time.monotonic() + _RETRY

    def _cannot_reach(self, attempt: _Attempt) -> str:
        return (
            f"rank {self.this_process.rank} cannot reach rank {attempt.peer_connection.to} at "
            f"{attempt.peer_connection.where}"
        )

    # ---- both ----

    def _receive_frame(self, pending_connection: _PendingConnection) -> None:
        """Handle an event of a connection: it is established, or bytes of a frame have arrived, or it is broken."""
        try:
            if not pending_connection.connected:
                if not self._finish_connect(pending_connection):
                    return
            else:
                data = pending_connection.socket.recv(pending_connection.frame_bytes - len(pending_connection.received))
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "it closes the connection")
                pending_connection.received += data
                if len(pending_connection.received) == pending_connection.frame_bytes:
                    self._advance_handshake(pending_connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if pending_connection.attempt is None:
                self._reject_stranger(pending_connection)
            else:
                self._retry_handshake(pending_connection.attempt, error.strerror or str(error))
        except Stranger as stranger:
            if pending_connection.attempt is None:
                self._reject_stranger(pending_connection)
            elif stranger.has_other_secret:
                raise Invalid(
                    f"{self._cannot_reach(pending_connection.attempt)}: {stranger}; {self.this_process.hint}"
                ) from None
            else:
                raise TransportFailed(
                    f"{self._cannot_reach(pending_connection.attempt)}: {stranger}; is this its address?"
                ) from None

    def _finish_connect(self, pending_connection: _PendingConnection) -> bool:
        """Return whether a connection of ours is made; else it is tried again."""
        attempt = pending_connection.attempt
        assert attempt is not None
        code = pending_connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._retry_connect(attempt, code)
            return False
        if (
            pending_connection.socket.family != socket.AF_UNIX
            and pending_connection.socket.getsockname() == pending_connection.socket.getpeername()
        ):
            # TCP connects a port with itself if both ends are the same
            self._drop_connection(attempt, "nobody listens")
            return False
        attempt.accepted_at = min(attempt.accepted_at, time.monotonic())
        pending_connection.connected = True
        self.selector.modify(pending_connection.socket, selectors.EVENT_READ, pending_connection)
        self._advance_handshake(pending_connection)
        return True

    def _advance_handshake(self, pending_connection: _PendingConnection) -> None:
        """Handle a complete frame: send the next one, and finish the handshake after the last."""
        # None starts the generator of a connector; a listener's was started when the connection was accepted
        frame_received = bytes(pending_connection.received) if pending_connection.frame_bytes else None
        pending_connection.received.clear()
        try:
            while True:
                frame, pending_connection.frame_bytes = pending_connection.handshake.send(frame_received)  # type: ignore[arg-type]
                # a frame is far smaller than an empty send buffer
                if pending_connection.socket.send(frame) < len(frame):
                    raise ConnectionResetError(errno.ECONNRESET, "it does not read")
                if pending_connection.frame_bytes:
                    return
                frame_received = b""  # nothing is expected: the generator goes on to its end
        except StopIteration as stop:  # the handshake returns
            rank, fault = stop.value
        self.selector.unregister(pending_connection.socket)
        if pending_connection.attempt is None:
            del self.pending[pending_connection.socket.fileno()]
        else:
            pending_connection.attempt.pending_connection, pending_connection.attempt.done = None, True
        if fault:
            pending_connection.socket.close()
            raise Invalid(f"{self.this_process.name}: {fault}; give every process its own rank and the same ranks")
        self.connections[rank] = pending_connection.socket
        self.claimed.discard(rank)

    def _timeout_error(self) -> AntiphonError:
        """Return the error for connections that are missing at the deadline, with the likeliest cause."""
        # where nothing listens at an address, other connections are missing for that reason
        for attempt in self.attempts:
            if not attempt.done and attempt.accepted_at == math.inf and attempt.peer_connection.may_start_later:
                reason = attempt.last_failure or "no answer"
                return TimedOut(
                    f"rank {attempt.peer_connection.to} does not listen at "
                    f"{attempt.peer_connection.where} ({reason}); start it, or fix it"
                )
        absent = sorted(self.awaited - self.connections.keys())
        if not absent:
            attempt = next(attempt for attempt in self.attempts if not attempt.done)
            return TimedOut(
                f"{self._cannot_reach(attempt)} in {self.this_process.timeout:g} seconds: "
                f"{attempt.last_failure or 'no answer'}"
            )
        text = (
            f"{self.this_process.name}: {len(absent)} of {self.this_process.ranks} processes did not come in "
            f"{self.this_process.timeout:g} seconds, the first is rank {absent[0]}"
        )
        if self.rejected:
            text += f"; {_count_strangers(self.rejected)} turned away"
        claimed = sorted(self.claimed & {*absent})
        if claimed:
            text += f", one that did not prove to be rank {claimed[0]} among them: {self.this_process.hint}"
        return TimedOut(text)


def _count_strangers(count: int) -> str:
    return "1 stranger was" if count == 1 else f"{count} strangers were"


REPORTED: list[int] = []  # the number of strangers reported: once in a process


def _report_strangers(this_process: LocalProcess, count: int) -> None:
    """Print, once in a process, the number of rejected connections: no error, but worth knowing."""
    if count and not REPORTED and sys.stderr is not None:
        REPORTED.append(count)
        with suppress(OSError, ValueError):
            print(
                f"antiphon: {this_process.name}: {_count_strangers(count)} turned away while the processes met",
                file=sys.stderr, flush=True,
            )  # fmt: skip


# ---- the handshake ----

_HELLO = struct.Struct("<8sIIII32s")  # mark, version, rank, ranks, wanted rank, nonce
_ANSWER = struct.Struct("<8sI32s32s")  # mark, version, nonce, proof
_VERDICT = struct.Struct("<II32s")  # fault or 0, a number for its message, proof
_MARK, _VERSION = b"antiphon", 2  # of the protocol
_NONCE, _PROOF = 32, 32  # bytes

OTHER_COUNT, RANK_TAKEN, UNWANTED = 1, 2, 3  # faults of a process that knows the secret
CheckClaim = Callable[[int, int], tuple[int, int]]  # (rank, its number of ranks) -> (fault or 0, a number)
Handshake = Generator[tuple[bytes, int], bytes, tuple[int, str]]
"""Yields (frame to send, bytes to receive next), and returns (the other's rank, the fault or "")."""


class Stranger(Exception):
    """The other end does not belong to this job. `has_other_secret`: it follows our protocol with another secret."""

    def __init__(self, reason: str, has_other_secret: bool = False) -> None:
        super().__init__(reason)
        self.has_other_secret = has_other_secret


def derive_key(secret: bytes, use: bytes) -> bytes:
    """Return the key for one use of a secret."""
    return hmac.digest(secret, b"antiphon: " + use, "sha256")


def connector_handshake(rank: int, ranks: int, to: int, key: bytes) -> Handshake:
    """Run the handshake of the process that connects, `rank` of `ranks`, to rank `to`."""
    hello = _HELLO.pack(_MARK, _VERSION, rank, ranks, to, secrets.token_bytes(_NONCE))
    mark, version, nonce, proof = _ANSWER.unpack((yield hello, _ANSWER.size))
    if mark != _MARK:
        raise Stranger("what answers there is not this program")
    if version != _VERSION:
        raise Stranger("what answers there is another version of this program")
    if not hmac.compare_digest(proof, _make_proof(key, b"host", hello, nonce)):
        raise Stranger("what answers there does not know the secret of this process", has_other_secret=True)
    own_proof = _make_proof(key, b"guest", hello, nonce)
    fault, number, proof = _VERDICT.unpack((yield own_proof, _VERDICT.size))
    if not hmac.compare_digest(proof, _make_proof(key, b"verdict", hello, nonce, struct.pack("<II", fault, number))):
        raise Stranger("what answers there does not know the secret of this process", has_other_secret=True)
    return to, _fault_text(fault, number, rank, ranks, to)


def listener_handshake(
    rank: int, ranks: int, key: bytes, check_claim: CheckClaim, note_claim: Callable[[int], None]
) -> Handshake:
    """Run the handshake of the process that listens. `note_claim` gets the rank that the connector claims, unproved."""
    hello = yield b"", _HELLO.size
    mark, version, claimed, count, to, _ = _HELLO.unpack(hello)
    if mark != _MARK or version != _VERSION or to != rank:
        raise Stranger("it does not speak as this program does")
    note_claim(claimed)
    nonce = secrets.token_bytes(_NONCE)
    answer = _ANSWER.pack(_MARK, _VERSION, nonce, _make_proof(key, b"host", hello, nonce))
    proof = yield answer, _PROOF
    if not hmac.compare_digest(proof, _make_proof(key, b"guest", hello, nonce)):
        raise Stranger("it does not know the secret", has_other_secret=True)
    fault, number = check_claim(claimed, count)
    verdict = struct.pack("<II", fault, number)
    yield verdict + _make_proof(key, b"verdict", hello, nonce, verdict), 0
    return claimed, _fault_text(fault, number, claimed, count, rank)


def _make_proof(key: bytes, *frames: bytes) -> bytes:
    """Return the proof that its sender knows the key and saw these frames.

    The first names its role: "guest" is the connector, "host" the listener.
    """
    return hmac.digest(key, b"".join(frames), "sha256")


def _fault_text(fault: int, number: int, claimed: int, count: int, to: int) -> str:
    """Return the message that both ends show."""
    if fault == OTHER_COUNT:
        return f"rank {claimed} expects {count} processes, rank {to} expects {number}"
    if fault == RANK_TAKEN:
        return f"two processes say that they are rank {claimed}"
    return f"rank {to} does not expect rank {claimed}" if fault else ""
