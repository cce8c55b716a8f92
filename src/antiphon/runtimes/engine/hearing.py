"""Signals while a call waits in the engine: their handlers run, and what these raise ends the call (native/wire.c)."""

from __future__ import annotations

import threading
from ctypes import Structure, c_int32, c_void_p, cast, pythonapi

MAIN = threading.main_thread().ident  # Python runs handlers there
_ASKED = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")


class Hearing(Structure):
    """Of one wire."""

    _fields_ = [
        *((name, c_void_p) for name in ("ensure", "check", "fetch", "release", "kind", "value", "trace")),
        ("wanted", c_int32),
    ]

    def __init__(self) -> None:
        super().__init__(*(cast(getattr(pythonapi, name), c_void_p).value for name in _ASKED))

    def again(self) -> None:
        """Raises what a handler raised while the last call waited."""
        restore = pythonapi.PyErr_Restore
        restore.argtypes, restore.restype = [c_void_p] * 3, None
        restore(self.kind, self.value, self.trace)
