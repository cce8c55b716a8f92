"""Connect processes and authenticate them: one event loop for all connections that a process makes or accepts.

`connect_all` gets listening sockets ("doors"), the ranks awaited there, and the connections to make to other ranks'
doors ("knocks"). It returns a connected, authenticated socket per rank, or raises when the deadline is over. One
selector loop serves all of them at the same time.

An accepted connection belongs to a stranger until its other end has proved that it knows the secret. Strangers have
little time and few places, they do not delay each other, and they are counted.

The handshake has four frames of fixed lengths. The guest is the process that connects, the host the one that listens.

    guest: hello     its rank, the number of ranks, the rank it wants, a nonce
    host:  answer    a nonce, its proof
    guest: proof
    host:  verdict   0 or a fault (such as a rank that is taken), and a proof

A proof is the HMAC-SHA256 of the role and everything sent before, so it is worthless on another connection, for another
rank or in the other direction. Until the guest has proved that it knows the secret, only hello and proof are read from
it: 88 bytes. Both sides are generators that yield frames (`guest_handshake`, `host_handshake`), free of any socket.
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
PATIENCE = 2.0  # seconds in which a stranger must complete the handshake
_RETRY = 0.05  # seconds until the next try
_ACCEPTS = 64  # connections accepted at once, before others are read
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER that resets a stranger's connection, without TIME_WAIT
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_LISTENING = (errno.ECONNREFUSED, errno.ENOENT)
_CONNECTING = (0, errno.EINPROGRESS)

Place = tuple[int, Any]  # the family of a socket, and its address


@dataclass
class Knock:
    """A connection to make to rank `to`, which listens at one of `places`; they are tried in turn.

    `key`: of the handshake; `where`: the address as shown in messages. `early`: it may not listen yet. `patience`:
    seconds in which it must answer once something has accepted the connection.
    """

    to: int
    places: Sequence[Place]
    key: bytes
    where: str
    early: bool = False
    patience: float = math.inf


@dataclass(frozen=True)
class Party:
    """This process. `name`: what the processes connect for, as shown in messages; `hint`: how to fix a wrong secret."""

    rank: int
    ranks: int
    name: str
    timeout: float
    hint: str


def connect_all(
    party: Party, doors: Sequence[socket.socket], key: bytes, awaited: Collection[int], knocks: Sequence[Knock],
    end: float,
) -> dict[int, socket.socket]:  # fmt: skip
    """Return connections by rank: from the ranks `awaited` at the doors, and to those of the knocks.

    `key`: of the handshake at the doors; `end`: the deadline, by `time.monotonic`. TimedOut if connections are missing
    then; Invalid, at both sides, if a process that knows the key claims a rank that it cannot have.
    """
    meeting = _Meeting(party, key, awaited, end)
    try:
        for door in doors:
            door.setblocking(False)
            meeting.selector.register(door, selectors.EVENT_READ)
        for knock in knocks:
            meeting.calls.append(_Call(knock))
        while meeting.missing():
            meeting.turn()
    except BaseException:
        for connection in meeting.met.values():
            connection.close()
        raise
    finally:
        meeting.close()
    _report_strangers(party, meeting.rejected)
    return meeting.met


class _Connecting:
    """A connection during its handshake, until a deadline. `call`: the attempt it belongs to; None if accepted."""

    def __init__(self, connection: socket.socket, handshake: Handshake, deadline: float, call: _Call | None) -> None:
        self.socket, self.handshake, self.deadline, self.call = connection, handshake, deadline, call
        self.received = bytearray()
        self.frame_bytes = 0  # of the frame that is being received
        self.connected = call is None


class _Call:
    """The attempts to make a connection. `next`: when to try again; `why`: why the last one failed."""

    def __init__(self, knock: Knock) -> None:
        self.knock, self.tries, self.next, self.done = knock, 0, 0.0, False
        self.first = math.inf  # when something first accepted the connection: the start of the knock's patience
        self.why = ""
        self.line: _Connecting | None = None


class _Meeting:
    """The event loop: connections made so far (`met`), attempts, and accepted connections under way (`lines`)."""

    def __init__(self, party: Party, key: bytes, awaited: Collection[int], end: float) -> None:
        self.party, self.key, self.awaited, self.end = party, key, {*awaited}, end
        self.selector = selectors.DefaultSelector()
        self.met: dict[int, socket.socket] = {}
        self.calls: list[_Call] = []
        self.lines: dict[int, _Connecting] = {}  # of strangers, by file descriptor, oldest first
        self.rejected = 0
        self.claimed: set[int] = set()  # ranks that strangers claimed
        self.max_strangers = _MAX_STRANGERS + party.ranks

    def missing(self) -> bool:
        """Return whether a connection is still missing."""
        return bool(self.awaited - self.met.keys()) or not all(call.done for call in self.calls)

    def close(self) -> None:
        for line in [*self.lines.values(), *(call.line for call in self.calls if call.line)]:
            line.socket.close()
        self.selector.close()

    def turn(self) -> None:
        """Wait for the next event or deadline, and handle it."""
        now = time.monotonic()
        if now >= self.end:
            raise self._timeout_error()
        next_time = self.end
        # strangers have equal time, so the oldest is the first to run out of it
        while self.lines:
            oldest = next(iter(self.lines.values()))
            if oldest.deadline > now:
                next_time = min(next_time, oldest.deadline)
                break
            self._reject_stranger(oldest)
        for call in self.calls:
            if not call.done and call.line is None and call.next <= now:
                self._start_connecting(call, now)
            if not call.done:
                next_time = min(next_time, call.line.deadline if call.line else call.next)
                if call.line and call.line.deadline <= now:
                    self._retry_handshake(call, f"it says nothing for {call.knock.patience:g} seconds")
        for key, _ in self.selector.select(max(next_time - time.monotonic(), 0.0)):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._accept_strangers(key.fileobj)
            elif key.data.call is not None or self.lines.get(key.fd) is key.data:  # it may just have been dropped
                self._receive_frame(key.data)

    # ---- connections accepted at the doors ----

    def _accept_strangers(self, door: socket.socket) -> None:
        """Accept waiting connections and start their handshakes."""
        for _ in range(_ACCEPTS):
            try:
                connection, _ = door.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._make_room()
                    return
                continue  # it has closed already
            if len(self.lines) >= self.max_strangers:
                self._make_room()
            connection.setblocking(False)
            handshake = host_handshake(self.party.rank, self.party.ranks, self.key, self._check_claim, self._note_claim)
            line = _Connecting(connection, handshake, time.monotonic() + PATIENCE, None)
            line.frame_bytes = next(handshake)[1]
            self.lines[connection.fileno()] = line
            self.selector.register(connection, selectors.EVENT_READ, line)

    def _make_room(self) -> None:
        """Drop the oldest stranger; without any, wait until file descriptors may be free."""
        if self.lines:
            self._reject_stranger(next(iter(self.lines.values())))
        else:
            time.sleep(_RETRY)  # others of this process or host hold all descriptors

    def _check_claim(self, rank: int, count: int) -> tuple[int, int]:
        """Return the fault of a guest that says it is `rank` of `count`, and its number; (0, 0) if it is welcome."""
        if count != self.party.ranks:
            return OTHER_COUNT, self.party.ranks
        if rank in self.met:
            return RANK_TAKEN, 0
        return (0, 0) if rank in self.awaited else (UNWANTED, 0)

    def _note_claim(self, rank: int) -> None:
        if rank in self.awaited:
            self.claimed.add(rank)

    def _reject_stranger(self, line: _Connecting) -> None:
        """Reset and count the connection of a stranger."""
        self.selector.unregister(line.socket)
        del self.lines[line.socket.fileno()]
        with suppress(OSError):
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        line.socket.close()
        self.rejected += 1

    # ---- connections made to other doors ----

    def _start_connecting(self, call: _Call, now: float) -> None:
        """Start a non-blocking connect to the next of the knock's addresses."""
        knock = call.knock
        family, address = knock.places[call.tries % len(knock.places)]
        call.tries += 1
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # others of this process or host hold all descriptors
            call.why, call.next = error.strerror or "", now + _RETRY
            return
        connection.setblocking(False)
        handshake = guest_handshake(self.party.rank, self.party.ranks, knock.to, knock.key)
        call.line = _Connecting(connection, handshake, min(call.first, now) + knock.patience, call)
        self.selector.register(connection, selectors.EVENT_WRITE, call.line)
        try:
            code = connection.connect_ex(address)
        except OSError as error:  # no such address
            code = error.errno or errno.EINVAL
        if code not in _CONNECTING:
            self._retry_connect(call, code)

    def _retry_connect(self, call: _Call, code: int) -> None:
        """Try again after a connect failed with this errno, unless nobody listens who should."""
        why = os.strerror(code)
        if code in _NOT_LISTENING and not call.knock.early:
            raise TransportFailed(f"{self._cannot_reach(call)}: {why}")
        call.first = math.inf
        self._drop_connection(call, why)

    def _retry_handshake(self, call: _Call, why: str) -> None:
        """Try again after something accepted but did not answer as it should, within the patience of the knock."""
        if time.monotonic() - call.first >= call.knock.patience:
            raise TransportFailed(f"{self._cannot_reach(call)}: {why}; is this its address?")
        self._drop_connection(call, why)

    def _drop_connection(self, call: _Call, why: str) -> None:
        assert call.line is not None
        self.selector.unregister(call.line.socket)
        call.line.socket.close()
        call.line, call.why, call.next = None, why, time.monotonic() + _RETRY

    def _cannot_reach(self, call: _Call) -> str:
        return f"rank {self.party.rank} cannot reach rank {call.knock.to} at {call.knock.where}"

    # ---- both ----

    def _receive_frame(self, line: _Connecting) -> None:
        """Handle an event of a connection: it is established, or bytes of a frame have arrived, or it is broken."""
        try:
            if not line.connected:
                if not self._finish_connect(line):
                    return
            else:
                data = line.socket.recv(line.frame_bytes - len(line.received))
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "it closes the connection")
                line.received += data
                if len(line.received) == line.frame_bytes:
                    self._advance_handshake(line)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if line.call is None:
                self._reject_stranger(line)
            else:
                self._retry_handshake(line.call, error.strerror or str(error))
        except Stranger as stranger:
            if line.call is None:
                self._reject_stranger(line)
            elif stranger.secret:
                raise Invalid(f"{self._cannot_reach(line.call)}: {stranger}; {self.party.hint}") from None
            else:
                raise TransportFailed(f"{self._cannot_reach(line.call)}: {stranger}; is this its address?") from None

    def _finish_connect(self, line: _Connecting) -> bool:
        """Return whether a connection of ours is made; else it is tried again."""
        call = line.call
        assert call is not None
        code = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._retry_connect(call, code)
            return False
        if line.socket.family != socket.AF_UNIX and line.socket.getsockname() == line.socket.getpeername():
            self._drop_connection(call, "nobody listens")  # TCP connects a port with itself if both ends are the same
            return False
        call.first = min(call.first, time.monotonic())
        line.connected = True
        self.selector.modify(line.socket, selectors.EVENT_READ, line)
        self._advance_handshake(line)
        return True

    def _advance_handshake(self, line: _Connecting) -> None:
        """Handle a complete frame: send the next one, and finish the handshake after the last."""
        frame_received = bytes(line.received) if line.frame_bytes else None
        line.received.clear()
        try:
            while True:
                frame, line.frame_bytes = line.handshake.send(frame_received)  # type: ignore[arg-type]  # None starts it
                if line.socket.send(frame) < len(frame):
                    raise ConnectionResetError(errno.ECONNRESET, "it does not read")
                if line.frame_bytes:
                    return
                frame_received = b""
        except StopIteration as over:
            rank, fault = over.value
        self.selector.unregister(line.socket)
        if line.call is None:
            del self.lines[line.socket.fileno()]
        else:
            line.call.line, line.call.done = None, True
        if fault:
            line.socket.close()
            raise Invalid(f"{self.party.name}: {fault}; give every process its own rank and the same ranks")
        self.met[rank] = line.socket
        self.claimed.discard(rank)

    def _timeout_error(self) -> AntiphonError:
        for call in self.calls:
            if not call.done and call.first == math.inf and call.knock.early:
                why = call.why or "no answer"
                return TimedOut(
                    f"rank {call.knock.to} does not listen at {call.knock.where} ({why}); start it, or fix it"
                )
        absent = sorted(self.awaited - self.met.keys())
        if not absent:
            call = next(call for call in self.calls if not call.done)
            return TimedOut(f"{self._cannot_reach(call)} in {self.party.timeout:g} seconds: {call.why or 'no answer'}")
        text = (
            f"{self.party.name}: {len(absent)} of {self.party.ranks} processes did not come in "
            f"{self.party.timeout:g} seconds, the first is rank {absent[0]}"
        )
        if self.rejected:
            text += f"; {_count_strangers(self.rejected)} turned away"
        claimed = sorted(self.claimed & {*absent})
        if claimed:
            text += f", one that did not prove to be rank {claimed[0]} among them: {self.party.hint}"
        return TimedOut(text)


def _count_strangers(count: int) -> str:
    return "1 stranger was" if count == 1 else f"{count} strangers were"


REPORTED: list[int] = []  # the number of strangers reported: once in a process


def _report_strangers(party: Party, count: int) -> None:
    """Print, once in a process, the number of rejected connections: no error, but worth knowing."""
    if count and not REPORTED and sys.stderr is not None:
        REPORTED.append(count)
        with suppress(OSError, ValueError):
            print(
                f"antiphon: {party.name}: {_count_strangers(count)} turned away while the processes met",
                file=sys.stderr, flush=True,
            )  # fmt: skip


# ---- the handshake ----

_HELLO = struct.Struct("<8sIIII32s")  # mark, version, rank, ranks, wanted rank, nonce
_ANSWER = struct.Struct("<8sI32s32s")  # mark, version, nonce, proof
_VERDICT = struct.Struct("<II32s")  # fault or 0, its number, proof
_MARK, _VERSION, _NONCE, _PROOF = b"antiphon", 2, 32, 32

OTHER_COUNT, RANK_TAKEN, UNWANTED = 1, 2, 3  # faults of a process that knows the secret
CheckClaim = Callable[[int, int], tuple[int, int]]  # (rank, its number of ranks) -> (fault or 0, a number)
Handshake = Generator[tuple[bytes, int], bytes, tuple[int, str]]
"""Yields (frame to send, bytes to receive next), and returns (the other's rank, the fault or "")."""


class Stranger(Exception):
    """The other end does not belong to this job. `secret`: it follows our protocol, but does not know our secret."""

    def __init__(self, why: str, secret: bool = False) -> None:
        super().__init__(why)
        self.secret = secret


def derive_key(secret: bytes, use: bytes) -> bytes:
    """Return the key for one use of a secret."""
    return hmac.digest(secret, b"antiphon: " + use, "sha256")


def guest_handshake(rank: int, ranks: int, to: int, key: bytes) -> Handshake:
    """Run the handshake of the process that connects, `rank` of `ranks`, to rank `to`."""
    hello = _HELLO.pack(_MARK, _VERSION, rank, ranks, to, secrets.token_bytes(_NONCE))
    mark, version, nonce, proof = _ANSWER.unpack((yield hello, _ANSWER.size))
    if mark != _MARK:
        raise Stranger("what answers there is not this program")
    if version != _VERSION:
        raise Stranger("what answers there is another version of this program")
    if not hmac.compare_digest(proof, _make_proof(key, b"host", hello, nonce)):
        raise Stranger("what answers there does not know the secret of this process", secret=True)
    own_proof = _make_proof(key, b"guest", hello, nonce)
    fault, number, proof = _VERDICT.unpack((yield own_proof, _VERDICT.size))
    if not hmac.compare_digest(proof, _make_proof(key, b"verdict", hello, nonce, struct.pack("<II", fault, number))):
        raise Stranger("what answers there does not know the secret of this process", secret=True)
    return to, _fault_text(fault, number, rank, ranks, to)


def host_handshake(
    rank: int, ranks: int, key: bytes, check_claim: CheckClaim, note_claim: Callable[[int], None]
) -> Handshake:
    """Run the handshake of the process that listens. `note_claim` gets the rank that the guest claims, unproved."""
    hello = yield b"", _HELLO.size
    mark, version, claimed, count, to, _ = _HELLO.unpack(hello)
    if mark != _MARK or version != _VERSION or to != rank:
        raise Stranger("it does not speak as this program does")
    note_claim(claimed)
    nonce = secrets.token_bytes(_NONCE)
    answer = _ANSWER.pack(_MARK, _VERSION, nonce, _make_proof(key, b"host", hello, nonce))
    proof = yield answer, _PROOF
    if not hmac.compare_digest(proof, _make_proof(key, b"guest", hello, nonce)):
        raise Stranger("it does not know the secret", secret=True)
    fault, number = check_claim(claimed, count)
    verdict = struct.pack("<II", fault, number)
    yield verdict + _make_proof(key, b"verdict", hello, nonce, verdict), 0
    return claimed, _fault_text(fault, number, claimed, count, rank)


def _make_proof(key: bytes, *frames: bytes) -> bytes:
    """Return the proof that its sender knows the key and saw these frames; the first names its role."""
    return hmac.digest(key, b"".join(frames), "sha256")


def _fault_text(fault: int, number: int, claimed: int, count: int, to: int) -> str:
    """Return the message that both ends show."""
    if fault == OTHER_COUNT:
        return f"rank {claimed} expects {count} processes, rank {to} expects {number}"
    if fault == RANK_TAKEN:
        return f"two processes say that they are rank {claimed}"
    return f"rank {to} does not expect rank {claimed}" if fault else ""
