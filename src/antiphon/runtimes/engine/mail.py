"""Messages with tags from one process to another, beside all calls of a group (native/mail.h)."""

from __future__ import annotations

from ctypes import byref, c_int64, c_uint32, c_void_p

from antiphon.runtimes.engine.functions import Failure, raised
from antiphon.runtimes.engine.native import Wire

ANYBODY = 2**32 - 1
_TIMEOUT = 5


class Mail:
    """Of one process, beside the calls of a wire, with which it ends. Any thread may use it. Where calls go over
    sockets all processes make theirs, or none, before anything goes by the wire."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._library = wire.engine.library
        self._handle = self._library.made("ap_mail_open", wire.handle, rank)
        wire.ends_with.append(self.close)

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

    def end(self, why: str) -> None:
        """All that is under way fails, here and at the others, whom what was sent before still reaches."""
        self._library.ap_mail_end(self._handle, why.encode(), 0)

    def close(self) -> None:
        """With the wire: memory of messages may be gone."""
        self._library.ap_mail_end(self._handle, b"the group was closed", 1)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()
            self._library.ap_mail_free(self._handle)
