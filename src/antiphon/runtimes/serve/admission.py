"""Who is let in, and how others are reached: one loop for all connections of a process that are being made.

A process listens at its doors and knocks at those of others at the same time, under one deadline. Whoever connects is a
stranger until it has proved that it knows the secret (handshake.py); strangers have little time and few places, none
of them holds up another, and they are counted.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from antiphon.errors import AntiphonError, Invalid, TimedOut
from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve.handshake import OTHER_COUNT, TAKEN, UNWANTED, Stranger, Talk, guest, host

BACKLOG = 1024
_PENDING = 256  # strangers at a time, beside as many as there are ranks; the oldest gives way to the next
PATIENCE = 2.0  # seconds that a stranger has
_AGAIN = 0.05  # seconds until the next try
_BATCH = 64  # connections taken at once, before those that are there are heard
_RESET = struct.pack("ii", 1, 0)  # a stranger's connection is cut off, and leaves nothing behind
_CROWDED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ABSENT = (errno.ECONNREFUSED, errno.ENOENT)
_UNDER_WAY = (0, errno.EINPROGRESS)

Place = tuple[int, Any]  # the family of a socket, and its address


@dataclass
class Knock:
    """Another process that is to be reached. `where`: its address in words. `early`: it may not listen yet.

    `patience`: seconds until it must have answered once something listens there.
    """

    to: int
    places: Sequence[Place]
    key: bytes
    where: str
    early: bool = False
    patience: float = math.inf


@dataclass(frozen=True)
class Party:
    """Who one is. `name`: of the gathering, for messages; `hint`: how a wrong secret is mended."""

    rank: int
    ranks: int
    name: str
    timeout: float
    hint: str


def gather(
    party: Party, doors: Sequence[socket.socket], key: bytes, awaited: Collection[int], knocks: Sequence[Knock],
    end: float,
) -> dict[int, socket.socket]:  # fmt: skip
    """Connections, by rank, with all that are awaited at the doors and with all at whose doors this one knocks.

    `key` opens the doors. TimedOut where they are not there by `end`; Invalid where one that knows the key claims a
    number that it cannot have, which both are told.
    """
    gathering = _Gathering(party, key, awaited, end)
    try:
        for door in doors:
            door.setblocking(False)
            gathering.selector.register(door, selectors.EVENT_READ)
        for knock in knocks:
            gathering.calls.append(_Call(knock))
        while gathering.missing():
            gathering.turn()
    except BaseException:
        for one in gathering.met.values():
            one.close()
        raise
    finally:
        gathering.close()
    _tell(party, gathering.turned)
    return gathering.met


class _Connecting:
    """A connection that is being made. `until`: its time is over then; `call`: ours, else it is a stranger's."""

    def __init__(self, one: socket.socket, talk: Talk, until: float, call: _Call | None) -> None:
        self.socket, self.talk, self.until, self.call = one, talk, until, call
        self.came = bytearray()
        self.wanted = 0
        self.connected = call is None


class _Call:
    """A knock and what became of it so far."""

    def __init__(self, knock: Knock) -> None:
        self.knock, self.tries, self.next, self.done = knock, 0, 0.0, False
        self.first = math.inf  # when something there was reached for the first time
        self.why = ""
        self.line: _Connecting | None = None


class _Gathering:
    def __init__(self, party: Party, key: bytes, awaited: Collection[int], end: float) -> None:
        self.party, self.key, self.awaited, self.end = party, key, {*awaited}, end
        self.selector = selectors.DefaultSelector()
        self.met: dict[int, socket.socket] = {}
        self.calls: list[_Call] = []
        self.lines: dict[int, _Connecting] = {}  # strangers by the number of their socket, the oldest first
        self.turned = 0
        self.without: set[int] = set()  # ranks that strangers claimed
        self.most = _PENDING + party.ranks

    def missing(self) -> bool:
        return bool(self.awaited - self.met.keys()) or not all(call.done for call in self.calls)

    def close(self) -> None:
        for line in [*self.lines.values(), *(call.line for call in self.calls if call.line)]:
            line.socket.close()
        self.selector.close()

    def turn(self) -> None:
        """Wait until something can be done, and do it."""
        now = time.monotonic()
        if now >= self.end:
            raise self._late()
        next_time = self.end
        while self.lines:
            oldest = next(iter(self.lines.values()))
            if oldest.until > now:
                next_time = min(next_time, oldest.until)
                break
            self._turn_away(oldest)
        for call in self.calls:
            if not call.done and call.line is None and call.next <= now:
                self._knock(call, now)
            if not call.done:
                next_time = min(next_time, call.line.until if call.line else call.next)
                if call.line and call.line.until <= now:
                    self._failed(call, f"it says nothing for {call.knock.patience:g} seconds")
        for key, _ in self.selector.select(max(next_time - time.monotonic(), 0.0)):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._answer(key.fileobj)
            elif key.data.call is not None or self.lines.get(key.fd) is key.data:  # it may just have given way
                self._hear(key.data)

    # ---- those that come ----

    def _answer(self, door: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                one, _ = door.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _CROWDED:
                    self._make_room()
                    return
                continue  # it has left already
            if len(self.lines) >= self.most:
                self._make_room()
            one.setblocking(False)
            talk = host(self.party.rank, self.party.ranks, self.key, self._judged, self._said)
            line = _Connecting(one, talk, time.monotonic() + PATIENCE, None)
            line.wanted = next(talk)[1]
            self.lines[one.fileno()] = line
            self.selector.register(one, selectors.EVENT_READ, line)

    def _make_room(self) -> None:
        if self.lines:
            self._turn_away(next(iter(self.lines.values())))
        else:
            time.sleep(_AGAIN)  # not for us to mend: others of this process or host hold all there are

    def _judged(self, who: int, count: int) -> tuple[int, int]:
        if count != self.party.ranks:
            return OTHER_COUNT, self.party.ranks
        if who in self.met:
            return TAKEN, 0
        return (0, 0) if who in self.awaited else (UNWANTED, 0)

    def _said(self, who: int) -> None:
        if who in self.awaited:
            self.without.add(who)

    def _turn_away(self, line: _Connecting) -> None:
        self.selector.unregister(line.socket)
        del self.lines[line.socket.fileno()]
        with suppress(OSError):
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        line.socket.close()
        self.turned += 1

    # ---- those that are called ----

    def _knock(self, call: _Call, now: float) -> None:
        knock = call.knock
        family, address = knock.places[call.tries % len(knock.places)]
        call.tries += 1
        try:
            one = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # others of this process or host hold all there are
            call.why, call.next = error.strerror or "", now + _AGAIN
            return
        one.setblocking(False)
        talk = guest(self.party.rank, self.party.ranks, knock.to, knock.key)
        call.line = _Connecting(one, talk, min(call.first, now) + knock.patience, call)
        self.selector.register(one, selectors.EVENT_WRITE, call.line)
        try:
            code = one.connect_ex(address)
        except OSError as error:  # no such address
            code = error.errno or errno.EINVAL
        if code not in _UNDER_WAY:
            self._unreached(call, code)

    def _unreached(self, call: _Call, code: int) -> None:
        why = os.strerror(code)
        if code in _ABSENT and not call.knock.early:
            raise TransportFailed(f"{self._to(call)}: {why}")
        call.first = math.inf
        self._drop(call, why)

    def _failed(self, call: _Call, why: str) -> None:
        """It was reached, and then not as it should be: once more, while there is patience."""
        if time.monotonic() - call.first >= call.knock.patience:
            raise TransportFailed(f"{self._to(call)}: {why}; is this its address?")
        self._drop(call, why)

    def _drop(self, call: _Call, why: str) -> None:
        assert call.line is not None
        self.selector.unregister(call.line.socket)
        call.line.socket.close()
        call.line, call.why, call.next = None, why, time.monotonic() + _AGAIN

    def _to(self, call: _Call) -> str:
        return f"rank {self.party.rank} cannot reach rank {call.knock.to} at {call.knock.where}"

    # ---- both ----

    def _hear(self, line: _Connecting) -> None:
        try:
            if not line.connected:
                if not self._reached(line):
                    return
            else:
                part = line.socket.recv(line.wanted - len(line.came))
                if not part:
                    raise ConnectionResetError(errno.ECONNRESET, "it closes the connection")
                line.came += part
                if len(line.came) == line.wanted:
                    self._on(line)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if line.call is None:
                self._turn_away(line)
            else:
                self._failed(line.call, error.strerror or str(error))
        except Stranger as stranger:
            if line.call is None:
                self._turn_away(line)
            elif stranger.secret:
                raise Invalid(f"{self._to(line.call)}: {stranger}; {self.party.hint}") from None
            else:
                raise TransportFailed(f"{self._to(line.call)}: {stranger}; is this its address?") from None

    def _reached(self, line: _Connecting) -> bool:
        """A connection of ours is there, or cannot be."""
        call = line.call
        assert call is not None
        code = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._unreached(call, code)
            return False
        if line.socket.family != socket.AF_UNIX and line.socket.getsockname() == line.socket.getpeername():
            self._drop(call, "nobody listens")  # TCP connects a port with itself if it happens to be one's own
            return False
        call.first = min(call.first, time.monotonic())
        line.connected = True
        self.selector.modify(line.socket, selectors.EVENT_READ, line)
        self._on(line)
        return True

    def _on(self, line: _Connecting) -> None:
        """The next frame has come: answer it, and go on or be done."""
        heard = bytes(line.came) if line.wanted else None
        line.came.clear()
        try:
            while True:
                frame, line.wanted = line.talk.send(heard)  # type: ignore[arg-type]  # None begins it
                if line.socket.send(frame) < len(frame):
                    raise ConnectionResetError(errno.ECONNRESET, "it does not read")
                if line.wanted:
                    return
                heard = b""
        except StopIteration as over:
            who, fault = over.value
        self.selector.unregister(line.socket)
        if line.call is None:
            del self.lines[line.socket.fileno()]
        else:
            line.call.line, line.call.done = None, True
        if fault:
            line.socket.close()
            raise Invalid(f"{self.party.name}: {fault}; give every process its own rank and the same ranks")
        self.met[who] = line.socket
        self.without.discard(who)

    def _late(self) -> AntiphonError:
        for call in self.calls:
            if not call.done and call.first == math.inf and call.knock.early:
                why = call.why or "no answer"
                return TimedOut(
                    f"rank {call.knock.to} does not listen at {call.knock.where} ({why}); start it, or mend it"
                )
        absent = sorted(self.awaited - self.met.keys())
        if not absent:
            call = next(call for call in self.calls if not call.done)
            return TimedOut(f"{self._to(call)} in {self.party.timeout:g} seconds: {call.why or 'no answer'}")
        text = (
            f"{self.party.name}: {len(absent)} of {self.party.ranks} processes did not come in "
            f"{self.party.timeout:g} seconds, the first is rank {absent[0]}"
        )
        if self.turned:
            text += f"; {_counted(self.turned)} turned away"
        claimed = sorted(self.without & {*absent})
        if claimed:
            text += f", one that did not prove to be rank {claimed[0]} among them: {self.party.hint}"
        return TimedOut(text)


def _counted(turned: int) -> str:
    return "1 stranger was" if turned == 1 else f"{turned} strangers were"


TOLD: list[int] = []  # how many were turned away when that was told: once in a process


def _tell(party: Party, turned: int) -> None:
    """Once in a process: who was not let in is no error, but somebody may want to know."""
    if turned and not TOLD and sys.stderr is not None:
        TOLD.append(turned)
        with suppress(OSError, ValueError):
            print(
                f"antiphon: {party.name}: {_counted(turned)} turned away while the processes met",
                file=sys.stderr, flush=True,
            )  # fmt: skip
