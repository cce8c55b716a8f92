"""Declare the C functions of the engine's library, and convert their error structs to exceptions.

`Functions(path)` loads a library; its attributes are the C functions, with argument types from `_FUNCTIONS`. `check`
and `create` call one with an error struct as last argument and raise the matching exception of this package.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)  # fmt: skip
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, Unsupported

_TEXT = 252  # bytes of an error message: ap_error of native/api.h


class TransportFailed(AntiphonError):
    """Messages could not be delivered: a peer has ended, or MPI failed."""

    exit_code = 1


class Mismatch(TransportFailed):
    """Another process makes a different call."""


class Failure(Structure):
    """The error struct of a call: its code, 0 for none, and a message."""

    _fields_ = [("code", c_int32), ("text", c_char * _TEXT)]


class Facts(Structure):
    """The collective of a program: ap_facts of native/api.h. `variants`: bit 0: out of place, bit 1: in place."""

    _fields_ = [
        *((name, c_uint32) for name in ("kind", "ranks", "members", "roots", "blocks", "channels", "variants")),
        ("buffer_weight", c_uint64),
    ]


class ProgramNeeds(Structure):
    """Elements of input, output and scratch. Of the last run: numbers of instances (operations, sliced), of messages,
    and of those that this rank sends."""

    _fields_ = [(name, c_uint64) for name in ("input", "output", "scratch", "instances", "messages", "sends")]


_FAILURE = POINTER(Failure)
# Types of the result, then of the arguments. Their meaning is in native/api.h (transports: transport_*.h, shared.h).
# A library has the functions of the sources that it was built from.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ap_abi": (c_int,),
    "ap_open_bytes": (c_void_p, c_void_p, c_size_t, _FAILURE),
    "ap_close": (None, c_void_p),
    "ap_describe": (None, c_void_p, POINTER(Facts)),
    "ap_prepare_sliced": (c_void_p, c_void_p, c_uint32, c_int, c_uint64, c_uint32, _FAILURE),
    "ap_prepare_counts": (c_void_p, c_void_p, c_uint32, c_void_p, _FAILURE),
    "ap_release": (None, c_void_p),
    "ap_get_needs": (None, c_void_p, POINTER(ProgramNeeds)),
    "ap_split": (c_int, c_void_p, c_uint64, _FAILURE),
    "ap_run": (
        c_int, c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_int, c_int, c_void_p, c_double, _FAILURE,
    ),
    "ap_warm": (c_int, c_void_p, c_int, c_void_p, c_void_p),
    "ap_fold": (None, c_void_p, POINTER(c_void_p), c_size_t, c_size_t, c_int, c_int),
    "ap_divide": (None, c_void_p, c_size_t, c_uint64, c_int),
    "ap_table_store": (c_int, c_char_p, _FAILURE),
    # learner.py
    "ap_learner_open": (c_void_p, c_uint32, c_uint32, c_int, c_int),
    "ap_learner_close": (None, c_void_p),
    "ap_learner_recall": (None, c_void_p, c_void_p),
    "ap_learner_report": (c_int, c_void_p, c_void_p),
    "ap_learner_update": (c_int, c_void_p, c_void_p),
    "ap_learner_exchanged": (None, c_void_p, c_double),
    "ap_learner_begin": (POINTER(c_double), c_void_p, c_void_p, c_void_p),
    "ap_learner_refuse": (None, c_void_p),
    "ap_learner_restart": (None, c_void_p),
    "ap_learner_arms": (c_uint32, c_void_p, c_void_p),
    "ap_learner_choices": (c_uint32, c_void_p, c_void_p),
    "ap_watch_open": (c_int, c_char_p, c_int32),
    "ap_watch_call": (None, c_void_p, c_uint64, c_double),
    "ap_watch_close": (None,),
    # wires
    "ap_wire_call": (None, c_void_p, c_void_p),
    "ap_wire_other_call": (None, c_void_p, c_void_p),
    "ap_wire_set_signals": (None, c_void_p, c_void_p),
    "ap_wire_check_unreceived": (c_int, c_void_p, _FAILURE),
    "ap_wire_close": (None, c_void_p),
    "ap_wire_trace": (None, c_void_p, c_void_p),
    "ap_trace_moment": (None, c_void_p, c_void_p),
    "ap_agree": (c_int, c_void_p, c_double, _FAILURE),
    "ap_run_uneven": (c_int, *[c_void_p] * 5, c_double, POINTER(c_int), _FAILURE),
    "ap_threads_open": (c_int, c_uint32, c_void_p),
    "ap_mpi_library": (c_char_p,),
    "ap_mpi_open_number": (c_void_p, c_int, c_void_p, c_uint32, _FAILURE),
    "ap_measure_open": (c_void_p, c_int, c_void_p, c_uint32, _FAILURE),
    "ap_measure_calls": (c_int, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, _FAILURE),
    "ap_measure_close": (None, c_void_p),
    "ap_sockets_open": (c_void_p, c_uint32, c_uint32, c_uint32, c_void_p, _FAILURE),
    "ap_shared_make": (c_void_p, c_uint32, c_void_p),
    "ap_shared_join": (c_void_p, c_char_p, c_uint32),
    "ap_shared_complete": (None, c_void_p),
    "ap_shared_open": (c_void_p, c_void_p, c_uint32, c_void_p, _FAILURE),
    "ap_shared_close": (None, c_void_p),
}  # fmt: skip


_OUT_OF_MEMORY = 3  # AP_MEMORY of native/api.h, as are the codes below
_ERRORS: dict[int, type[AntiphonError]] = {
    1: Invalid,  # AP_INVALID
    2: Unsupported,  # AP_UNSUPPORTED
    4: TransportFailed,  # AP_TRANSPORT
    5: TimedOut,  # AP_TIMEOUT
    6: Invalid,  # AP_STUCK: the program waits for itself
    7: Mismatch,  # AP_MISMATCH
}


def make_error(error: Failure) -> AntiphonError:
    """Return the exception for an error struct; MemoryError is raised at once."""
    text = error.text.decode(errors="replace")
    if error.code == _OUT_OF_MEMORY:
        raise MemoryError(text)
    return _ERRORS.get(error.code, Invalid)(text)


class Functions:
    """The functions of a library of the engine, by name. It exports only `antiphon_engine`, which finds them."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
            self._find = self._library.antiphon_engine
        except (OSError, AttributeError) as error:
            raise Missing(f"{path}: the engine cannot be loaded ({error}); delete it, it is built anew") from None
        self._find.argtypes, self._find.restype = [c_char_p], c_void_p

    def __getattr__(self, name: str) -> Any:
        # Resolved on first use and stored as an attribute, so later calls skip this method.
        address = self._find(name.encode())
        if not address:
            raise AttributeError(f"this library of the engine has no {name}")
        function = ctypes.CFUNCTYPE(c_int)(address)  # with types that _FUNCTIONS replaces
        # All functions that the package calls are listed. Tests call others, too, and state their types.
        if name in _FUNCTIONS:
            function.restype, *function.argtypes = _FUNCTIONS[name]
        setattr(self, name, function)
        return function

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function whose last argument is an error, and raise that error."""
        error = Failure()
        if getattr(self, name)(*arguments, byref(error)):
            raise make_error(error)

    def create(self, name: str, *arguments: Any) -> int:
        """Return the handle that a function creates, or raise its error."""
        error = Failure()
        handle: int | None = getattr(self, name)(*arguments, byref(error))
        if not handle:
            raise make_error(error)
        return handle
