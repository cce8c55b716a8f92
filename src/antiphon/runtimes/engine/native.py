"""The native engine from Python: its library by ctypes, programs and plans as objects."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    Structure,
    addressof,
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
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, Unsupported, unknown
from antiphon.runtimes.engine.hearing import MAIN, Hearing

Array = NDArray[Any]
TYPES = {
    name: number
    for number, name in enumerate(
        (
            "int8",
            "uint8",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "float16",
            "float32",
            "float64",
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "int16",
            "uint16",
        )
    )
}
OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_ABI = 2
_TEXT = 252
MOVED, EVEN, DISAGREED = range(3)
_STOPPED = 8
_NAME = 32  # bytes of an ap_shared_name
_LOST: list[Any] = []


class TransportFailed(AntiphonError):
    """Messages could not be carried: a peer is gone, or MPI failed."""

    exit_code = 1


class Mismatch(TransportFailed):
    """Another process makes another call."""


class Failure(Structure):
    _fields_ = [("code", c_int32), ("text", c_char * _TEXT)]


class Facts(Structure):
    """What a program is for."""

    _fields_ = [
        *((name, c_uint32) for name in ("kind", "ranks", "members", "roots", "blocks", "channels", "variants")),
        ("buffer_weight", c_uint64),
    ]


class Needs(Structure):
    """Elements of input, output and scratch; of the layout last run its instances, messages and sends."""

    _fields_ = [(name, c_uint64) for name in ("input", "output", "scratch", "instances", "messages", "sends")]


def raised(error: Failure) -> AntiphonError:
    text = error.text.decode(errors="replace")
    kinds: dict[int, type[AntiphonError]] = {
        1: Invalid, 2: Unsupported, 4: TransportFailed, 5: TimedOut, 6: Invalid, 7: Mismatch,
    }  # fmt: skip
    if error.code == 3:
        raise MemoryError(text)
    return kinds.get(error.code, Invalid)(text)


class Functions:
    """Those of one library of the engine, by name. It shows a single one, which finds the others (exports.c)."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
            self._find = self._library.antiphon_engine
        except (OSError, AttributeError) as error:
            raise Missing(f"{path}: the engine cannot be loaded ({error}); delete it, it is built anew") from None
        self._find.argtypes, self._find.restype = [c_char_p], c_void_p

    def __getattr__(self, name: str) -> Any:
        address = self._find(name.encode())
        if not address:
            raise AttributeError(f"this library of the engine has no {name}")
        found = ctypes.CFUNCTYPE(c_int)(address)
        setattr(self, name, found)
        return found


def keep_tables(library: Path, tables: Sequence[str]) -> None:
    """The engine over MPI has each compiled as it does when a job starts."""
    keep = Functions(library).ap_table_keep
    keep.argtypes = [c_char_p, POINTER(Failure)]
    for table in tables:
        error = Failure()
        if keep(os.fsencode(table), byref(error)):
            raise raised(error)


class Engine:
    """One library of the engine, loaded."""

    def __init__(self, path: Path) -> None:
        self.library = call = Functions(path)
        failure = POINTER(Failure)
        if call.ap_abi() != _ABI:
            raise Missing(f"{path} is of another version of Antiphon; delete it, it is built anew")
        call.ap_open_bytes.argtypes, call.ap_open_bytes.restype = [c_void_p, c_size_t, failure], c_void_p
        call.ap_close.argtypes, call.ap_close.restype = [c_void_p], None
        call.ap_describe.argtypes, call.ap_describe.restype = [c_void_p, POINTER(Facts)], None
        call.ap_prepare.argtypes = [c_void_p, c_uint32, c_int, c_uint64, failure]
        call.ap_prepare.restype = c_void_p
        call.ap_release.argtypes, call.ap_release.restype = [c_void_p], None
        call.ap_ask.argtypes, call.ap_ask.restype = [c_void_p, POINTER(Needs)], None
        call.ap_split.argtypes = [c_void_p, c_uint64, failure]
        buffers = [c_void_p, c_uint64, c_void_p, c_uint64]
        call.ap_run.argtypes = [c_void_p, *buffers, c_int, c_int, c_void_p, c_double, failure]
        call.ap_wire_call.argtypes, call.ap_wire_call.restype = [c_void_p, c_void_p], None
        call.ap_wire_theirs.argtypes, call.ap_wire_theirs.restype = [c_void_p, c_void_p], None
        call.ap_wire_hear.argtypes, call.ap_wire_hear.restype = [c_void_p, c_void_p], None
        call.ap_agree.argtypes = [c_void_p, c_double, failure]
        call.ap_uneven.argtypes = [c_void_p] * 5 + [c_double, POINTER(c_int), failure]
        call.ap_wire_left.argtypes = [c_void_p, failure]
        call.ap_wire_close.argtypes, call.ap_wire_close.restype = [c_void_p], None
        call.ap_fold.argtypes = [c_void_p, POINTER(c_void_p), c_size_t, c_size_t, c_int, c_int]
        call.ap_fold.restype = None
        call.ap_divide.argtypes, call.ap_divide.restype = [c_void_p, c_size_t, c_uint64, c_int], None

    def program(self, data: bytes) -> Program:
        return Program(self, data)

    def threads(self, ranks: int) -> list[Wire]:
        """Wires between threads of this process, without buffering; of a library built for threads."""
        wires = (c_void_p * ranks)()
        if not self.library.ap_threads_open(c_uint32(ranks), wires):
            raise MemoryError("no memory for the wires")
        return [Wire(self, int(handle or 0)) for handle in wires]

    def mpi(self, comm: Any, rank_of: Sequence[int], ranks: int) -> Wire:
        """A wire over a duplicate of mpi4py's communicator, whose processes are these ranks. Collective."""
        from mpi4py import MPI

        self.library.ap_mpi_library.restype = ctypes.c_char_p
        mine, theirs = self.library.ap_mpi_library().decode(), MPI.Get_library_version()
        if mine.strip("\0 \n") != theirs.strip("\0 \n"):
            raise Missing(
                f"the engine is compiled for {_short(mine)}, but mpi4py uses {_short(theirs)}; "
                "name the mpicc of that one in $MPICC"
            )
        error = Failure()
        self.library.ap_mpi_open_number.argtypes = [c_int, c_void_p, c_uint32, POINTER(Failure)]
        self.library.ap_mpi_open_number.restype = c_void_p
        numbers = np.asarray(rank_of, np.int32)
        handle = self.library.ap_mpi_open_number(comm.py2f(), numbers.ctypes.data, ranks, byref(error))
        if not handle:
            raise raised(error)
        return Wire(self, handle, lost=_LOST)

    def sockets(self, rank: int, connected: Sequence[int], rails: int = 1) -> Wire:
        """A wire over stream sockets; `connected`: for each rank the numbers of as many as `rails` that are connected
        to it, or -1.

        They belong to the wire. Of a library built for sockets."""
        error, numbers = Failure(), np.asarray(connected, np.int32)
        self.library.ap_sockets_open.argtypes = [c_uint32, c_uint32, c_uint32, c_void_p, POINTER(Failure)]
        self.library.ap_sockets_open.restype = c_void_p
        handle = self.library.ap_sockets_open(rank, len(numbers) // rails, rails, numbers.ctypes.data, byref(error))
        if not handle:
            raise raised(error)
        return Wire(self, handle)

    def share(self, ranks: int) -> tuple[int, bytes]:
        """Memory for messages within this host, and what others need to `join` it; 0 where there can be none."""
        name = ctypes.create_string_buffer(_NAME)
        self.library.ap_shared_make.argtypes = [c_uint32, c_uint32, c_void_p]
        self.library.ap_shared_make.restype = c_void_p
        return self.library.ap_shared_make(ranks, 2, name) or 0, name.raw

    def join(self, name: bytes, rank: int) -> int:
        """The memory of that name; 0 where it cannot be seen."""
        self.library.ap_shared_join.argtypes = [c_char_p, c_uint32]
        self.library.ap_shared_join.restype = c_void_p
        return self.library.ap_shared_join(name, rank) or 0 if len(name) == _NAME else 0

    def shared(self, memory: int, polled: Sequence[int]) -> Wire:
        """A wire through that memory. `polled`: for each rank the number of what tells when that one is gone, or -1; at
        this one's place, of what tells that its calls are to end.

        Both belong to it."""
        error, numbers = Failure(), np.asarray(polled, np.int32)
        self.library.ap_shared_complete.argtypes, self.library.ap_shared_complete.restype = [c_void_p], None
        self.library.ap_shared_open.argtypes = [c_void_p, c_uint32, c_void_p, POINTER(Failure)]
        self.library.ap_shared_open.restype = c_void_p
        self.library.ap_shared_complete(memory)
        handle = self.library.ap_shared_open(memory, len(numbers), numbers.ctypes.data, byref(error))
        if not handle:
            raise raised(error)
        return Wire(self, handle, near=True)

    def unshare(self, memory: int) -> None:
        """Gives up memory of which no wire was made."""
        self.library.ap_shared_close.argtypes, self.library.ap_shared_close.restype = [c_void_p], None
        if memory:
            self.library.ap_shared_close(memory)

    def fold(self, result: Array, operands: Sequence[Array], op: str) -> None:
        """result = operands combined from the left."""
        addresses = (c_void_p * len(operands))(*(one.ctypes.data for one in operands))
        self.library.ap_fold(
            result.ctypes.data, addresses, len(operands), len(result), type_number(result.dtype), OPERATORS[op]
        )

    def divide(self, values: Array, count: int) -> None:
        self.library.ap_divide(values.ctypes.data, len(values), count, type_number(values.dtype))


def address(array: Array) -> int:
    """Where the elements lie: `array.ctypes.data` in an eighth of the time, where the array can be written to."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, empty, or of a type that Python's buffers do not know
        return array.ctypes.data


_NOTHING = c_void_p(None), c_uint64(0)


def _memory(array: Array) -> tuple[c_void_p, c_uint64]:
    """Where it lies and how many bytes it has."""
    return c_void_p(address(array)), c_uint64(array.nbytes)


def _short(text: str) -> str:
    return " ".join(text.partition(",")[0].split()[:4])


@cache  # NumPy makes the name anew each time, which takes longer than a short message
def type_number(dtype: np.dtype[Any]) -> int:
    if dtype.name not in TYPES:
        raise unknown("data type", dtype.name, TYPES)
    return TYPES[dtype.name]


class Wire:
    """A connection of one rank to the others; closed with `close`, on all of them. `near`: all share memory.

    `lost`: buffers of runs that failed, kept while the process lives where messages may still be under way: over MPI.
    """

    def __init__(self, engine: Engine, handle: int, near: bool = False, lost: list[Any] | None = None) -> None:
        self.engine, self.handle, self.near, self.lost = engine, handle, near, lost
        self.trace: Any = None  # where runs are recorded (engine/trace.py)
        self.ends_with: list[Callable[[], None]] = []  # what is to end before it does
        self.stopped = False  # a call by what a handler of a signal raised
        self._hearing = Hearing()
        engine.library.ap_wire_hear(handle, byref(self._hearing))

    def calls(self, memory: ctypes.Array[c_char]) -> None:
        """From now on every run is the call that stands there (CallHead), and is compared with the others'."""
        self._call = memory  # kept as long as it may be read
        self.engine.library.ap_wire_call(self.handle, memory)

    def hear(self) -> bool:
        """Before each call: whether it is to hear of signals."""
        self._hearing.wanted = found = get_ident() == MAIN
        return found

    def raised(self, error: Failure) -> AntiphonError:
        if error.code == _STOPPED:
            self.stopped = True
            self._hearing.again()
        return raised(error)

    def theirs(self) -> bytes:
        """After Mismatch: the call of another."""
        theirs = ctypes.create_string_buffer(len(self._call))
        self.engine.library.ap_wire_theirs(self.handle, theirs)
        return theirs.raw

    def agree(self, timeout: float) -> None:
        """Until all have begun the same call."""
        error = Failure()
        self.hear()
        if self.engine.library.ap_agree(self.handle, timeout, byref(error)):
            raise self.raised(error)

    def uneven(self, source: int, target: int, lengths: Array, timeout: float) -> int:
        """By no plan: from and to these addresses so many bytes for each rank (`lengths`: those sent, those that come),
        one after another. MOVED; or nothing moves, as all find that those of all are EVEN, or DISAGREED."""
        error, found, at = Failure(), c_int(), address(lengths)
        places = self.handle, source, at, target, at + lengths.nbytes // 2
        self.hear()
        if self.engine.library.ap_uneven(*places, timeout, byref(found), byref(error)):
            raise self.raised(error)
        return found.value

    def left(self) -> None:
        """Before the end: Mismatch where a message of another's call came that no call here took."""
        error = Failure()
        if self.engine.library.ap_wire_left(self.handle, byref(error)):
            raise raised(error)

    def close(self) -> None:
        while self.ends_with:
            self.ends_with.pop()()
        if self.handle:
            self.engine.library.ap_wire_close(self.handle)
        self.handle = 0


class Program:
    """A program file, checked; the plans of its ranks at a size."""

    def __init__(self, engine: Engine, data: bytes) -> None:
        error = Failure()
        self.engine, self.handle = engine, 0
        self._data = np.frombuffer(data + bytes(-len(data) % 8), np.uint64).copy()  # aligned, and kept
        self.handle = engine.library.ap_open_bytes(self._data.ctypes.data, len(data), byref(error))
        if not self.handle:
            raise raised(error)
        self.facts = Facts()
        engine.library.ap_describe(self.handle, byref(self.facts))

    def plan(self, rank: int, unit: int, in_place: bool = False, split: int | None = None) -> NativePlan:
        error = Failure()
        handle = self.engine.library.ap_prepare(self.handle, rank, int(in_place), unit, byref(error))
        if not handle:
            raise raised(error)
        made = NativePlan(self.engine, handle)
        if split is not None and self.engine.library.ap_split(handle, split, byref(error)):
            raise raised(error)
        return made

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.ap_close(self.handle)


class NativePlan:
    """What one rank does at one size."""

    def __init__(self, engine: Engine, handle: int) -> None:
        self.engine, self.handle = engine, handle
        self._error = Failure()
        self._call = engine.library.ap_run
        self._plan, self._failure = c_void_p(handle), byref(self._error)  # made once: that takes as long as a call

    @property
    def needs(self) -> Needs:
        needs = Needs()
        self.engine.library.ap_ask(self.handle, byref(needs))
        return needs

    def run(self, source: Array | None, target: Array, wire: Wire, op: str = "sum", timeout: float = 0.0) -> None:
        """Take part in one run; in place the source is not looked at. Other threads go on meanwhile."""
        wire.hear()
        if self._call(*self._arguments(source, target, wire, op, timeout)):
            self._failed(source, target, wire)

    def bound(
        self, source: Array | None, target: Array, wire: Wire, op: str = "sum", timeout: float = 0.0
    ) -> Callable[[], None]:
        """`run` on these buffers, to be called as often as wanted."""
        arguments = self._arguments(source, target, wire, op, timeout)

        def run() -> None:
            if self._call(*arguments):
                self._failed(source, target, wire)

        return run

    def _arguments(self, source: Array | None, target: Array, wire: Wire, op: str, timeout: float) -> tuple[Any, ...]:
        """Of ap_run, which holds the lengths of the buffers against its plan."""
        for name, array in (("input", source), ("output", target)):
            if array is not None and not array.flags.c_contiguous:
                raise Invalid(f"{name}: its elements do not stand one after another; give a contiguous array")
        if source is not None and source.dtype != target.dtype:
            raise Invalid(f"input and output are of two types, {source.dtype} and {target.dtype}; convert one")
        given = _NOTHING if source is None else _memory(source)
        kind = c_int(type_number(target.dtype)), c_int(OPERATORS[op])
        return self._plan, *given, *_memory(target), *kind, c_void_p(wire.handle), c_double(timeout), self._failure

    def _failed(self, source: Array | None, target: Array, wire: Wire) -> None:
        if wire.lost is not None:
            wire.lost.append((self, source, target, wire))
        raise wire.raised(self._error)

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.ap_release(self.handle)
