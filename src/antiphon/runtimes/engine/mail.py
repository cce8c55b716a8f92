"""Messages with tags from one process to another, beside all calls of a group (native/mail.h)."""

from __future__ import annotations

from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

from antiphon.runtimes.engine.native import Failure, Wire, raised

ANYBODY = 2**32 - 1
_TIMEOUT = 5


class Mail:
    """Of one process, beside the calls of a wire, with which it ends. Any thread may use it. Where calls go over
    sockets all processes make theirs, or none, before anything goes by the wire."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._library = call = wire.engine.library
        failure, under_way = POINTER(Failure), POINTER(c_void_p)
        call.ap_mail_open.argtypes, call.ap_mail_open.restype = [c_void_p, c_uint32, failure], c_void_p
        message = [c_void_p, c_uint32, c_int32, c_void_p, c_uint64, under_way]
        call.ap_mail_send.argtypes = [*message, failure]
        call.ap_mail_receive.argtypes = [*message, POINTER(c_uint32), failure]
        call.ap_mail_wait.argtypes = [c_void_p, c_void_p, c_double, POINTER(c_uint32), POINTER(c_int64), failure]
        call.ap_mail_end.argtypes, call.ap_mail_end.restype = [c_void_p, c_char_p, c_int], None
        call.ap_mail_free.argtypes, call.ap_mail_free.restype = [c_void_p], None
        error = Failure()
        self._handle = call.ap_mail_open(wire.handle, rank, byref(error))
        if not self._handle:
            raise raised(error)
        wire.ends_with.append(self.close)

    def send(self, to: int, tag: int, data: int, size: int) -> int:
        """From this address. 0 where it is over at once, else what `wait` takes; the memory stays so until then."""
        error, under_way = Failure(), c_void_p()
        if self._library.ap_mail_send(self._handle, to, tag, data, size, byref(under_way), byref(error)):
            raise raised(error)
        return under_way.value or 0

    def receive(self, of: int, tag: int, data: int, size: int) -> tuple[int, int]:
        """To this address, of a rank or ANYBODY: as `send`, and whose it is where it is over."""
        error, under_way, source = Failure(), c_void_p(), c_uint32()
        given = self._handle, of, tag, data, size
        if self._library.ap_mail_receive(*given, byref(under_way), byref(source), byref(error)):
            raise raised(error)
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
