"""Messages with tags from one process to another, beside all calls of a group (native/mail.h)."""

from __future__ import annotations

from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

from antiphon.runtimes.engine.native import Engine, Failure, Wire, raised

ANYBODY = 2**32 - 1
_TIMEOUT = 5
_SHORTLY, _LONG = 1.0, 10.0  # seconds at most until others have what was sent: where it fails, and at its close


class Mail:
    """Of one process, over a wire. Any thread may use it."""

    def __init__(self, engine: Engine, wire: int, rank: int) -> None:
        self._library = call = engine.library
        failure, under_way = POINTER(Failure), POINTER(c_void_p)
        call.ap_mail_open.argtypes, call.ap_mail_open.restype = [c_void_p, c_uint32, failure], c_void_p
        message = [c_void_p, c_uint32, c_int32, c_void_p, c_uint64, under_way]
        call.ap_mail_send.argtypes = [*message, failure]
        call.ap_mail_receive.argtypes = [*message, POINTER(c_uint32), failure]
        call.ap_mail_wait.argtypes = [c_void_p, c_void_p, c_double, POINTER(c_uint32), POINTER(c_int64), failure]
        call.ap_mail_meet.argtypes = [c_void_p, c_uint32, c_int, failure]
        for name, given in (("miss", [c_uint32]), ("end", [c_char_p, c_double]), ("free", [])):
            function = getattr(call, f"ap_mail_{name}")
            function.argtypes, function.restype = [c_void_p, *given], None
        error = Failure()
        self._handle = call.ap_mail_open(wire, rank, byref(error))
        if not self._handle:
            raise raised(error)

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

    def meet(self, rank: int, socket: int) -> None:
        """That one is connected by this socket from now on, which belongs to the wire."""
        error = Failure()
        if self._library.ap_mail_meet(self._handle, rank, socket, byref(error)):
            raise raised(error)

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
    call, error = wire.engine.library, Failure()
    call.ap_shared_beside.argtypes, call.ap_shared_beside.restype = [c_void_p, POINTER(Failure)], c_void_p
    handle = call.ap_shared_beside(wire.handle, byref(error))
    if not handle:
        raise raised(error)
    made = Mail(wire.engine, handle, rank)
    wire.ends_with.append(made.close)
    return made


def mail_over_sockets(wire: Wire, rank: int, ranks: int) -> Mail:
    """To nobody yet (Mail.meet); it ends with that wire, which it has nothing else to do with."""
    call, error = wire.engine.library, Failure()
    call.ap_sockets_for_mail.argtypes = [c_uint32, c_uint32, POINTER(Failure)]
    call.ap_sockets_for_mail.restype = c_void_p
    handle = call.ap_sockets_for_mail(rank, ranks, byref(error))
    if not handle:
        raise raised(error)
    made = Mail(wire.engine, handle, rank)
    wire.ends_with.append(made.close)
    return made
