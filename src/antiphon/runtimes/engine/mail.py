"""Messages with tags from one process to another, beside all calls of a group (native/mail.h)."""

from __future__ import annotations

from ctypes import byref, c_int64, c_uint32, c_void_p

from antiphon.runtimes.engine.functions import Failure, raised
from antiphon.runtimes.engine.native import Engine, Wire

ANYBODY = 2**32 - 1
_TIMEOUT = 5
_SHORTLY, _LONG = 1.0, 10.0  # seconds at most until others have what was sent: where it fails, and at its close


class Mail:
    """Of one process, over a wire. Any thread may use it."""

    def __init__(self, engine: Engine, wire: int, rank: int) -> None:
        self._library = engine.library
        self._handle = engine.library.made("ap_mail_open", wire, rank)

    def send(self, to: int, tag: int, data: int, size: int) -> int:
        """From this address. 0 where it is over at once, else what `wait` takes; the memory stays so until then."""
        under_way = c_void_p()
        self._library.done("ap_mail_send", self._handle, to, tag, data, size, byref(under_way))
        return under_way.value or 0

    def receive(self, of: int, tag: int, data: int, size: int) -> tuple[int, int]:
        """To this address, of a rank or ANYBODY: as `send`, and whose it is where it is over."""
        under_way, source = c_void_p(), c_uint32()
        given = self._handle, of, tag, data, size
        self._library.done("ap_mail_receive", *given, byref(under_way), byref(source))
        return under_way.value or 0, source.value

    def wait(self, message: int, seconds: float) -> tuple[bool, int]:
        """Whether it is over after so long at most, and then is no more; whose it is. Where it is not: -1 until it has
        met its other end, then another number whenever something has moved its way between the two. Raises what became
        of it.
        """
        error, source, moved = Failure(), c_uint32(), c_int64()
        given = self._handle, message, seconds
        if self._library.ap_mail_wait(*given, byref(source), byref(moved), byref(error)):
            if error.code != _TIMEOUT:
                raise raised(error)
            return False, moved.value
        return True, source.value

    def meet(self, rank: int, socket: int) -> None:
        """That one is connected by this socket from now on, which belongs to the wire."""
        self._library.done("ap_mail_meet", self._handle, rank, socket)

    def miss(self, rank: int) -> None:
        """That one never comes: what has to do with it fails, and all else goes on."""
        self._library.ap_mail_miss(self._handle, rank)

    def end(self, why: str, seconds: float = _SHORTLY) -> None:
        """All that is under way fails, here and at the others; what was sent before reaches these, in so long at
        most."""
        self._library.ap_mail_end(self._handle, why.encode(), seconds)

    def close(self) -> None:
        self.end("the group was closed", _LONG)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()
            self._library.ap_mail_free(self._handle)


def mail_beside(wire: Wire, rank: int) -> Mail:
    """Through the memory of a wire that is near; it ends with that wire."""
    return _ending_with(wire, wire.engine.library.made("ap_shared_beside", wire.handle), rank)


def mail_over_sockets(wire: Wire, rank: int, ranks: int) -> Mail:
    """To nobody yet (Mail.meet); it ends with that wire, which it has nothing else to do with."""
    return _ending_with(wire, wire.engine.library.made("ap_sockets_for_mail", rank, ranks), rank)


def _ending_with(wire: Wire, handle: int, rank: int) -> Mail:
    made = Mail(wire.engine, handle, rank)
    wire.ends_with.append(made.close)
    return made
