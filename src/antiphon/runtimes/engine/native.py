"""The native engine from Python: its library by ctypes, programs and plans as objects."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import addressof, byref, c_char, c_double, c_int, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import AntiphonError, Invalid, Missing, unknown
from antiphon.runtimes.engine.functions import (  # noqa: F401 (what it raises is known here)
    Facts,
    Failure,
    Functions,
    Mismatch,
    Needs,
    TransportFailed,
    raised,
)
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
MOVED, EVEN, DISAGREED = range(3)
_STOPPED = 8
_NAME = 24  # bytes of an ap_shared_name
_LOST: list[Any] = []


def keep_tables(library: Path, tables: Sequence[str]) -> None:
    """The engine over MPI has each compiled as it does when a job starts."""
    functions = Functions(library)
    for table in tables:
        functions.done("ap_table_keep", os.fsencode(table))


class Engine:
    """One library of the engine, loaded."""

    def __init__(self, path: Path) -> None:
        self.library = Functions(path)
        if self.library.ap_abi() != _ABI:
            raise Missing(f"{path} is of another version of Antiphon; delete it, it is built anew")

    def program(self, data: bytes) -> OpenProgram:
        return OpenProgram(self, data)

    def threads(self, ranks: int) -> list[Wire]:
        """Wires between threads of this process, without buffering; of a library built for threads."""
        wires = (c_void_p * ranks)()
        if not self.library.ap_threads_open(ranks, wires):
            raise MemoryError("no memory for the wires")
        return [Wire(self, int(handle or 0)) for handle in wires]

    def mpi(self, comm: Any, rank_of: Sequence[int], ranks: int) -> Wire:
        """A wire over a duplicate of mpi4py's communicator, whose processes are these ranks. Collective."""
        from mpi4py import MPI

        mine, theirs = self.library.ap_mpi_library().decode(), MPI.Get_library_version()
        if mine.strip("\0 \n") != theirs.strip("\0 \n"):
            raise Missing(
                f"the engine is compiled for {_short(mine)}, but mpi4py uses {_short(theirs)}; "
                "name the mpicc of that one in $MPICC"
            )
        numbers = np.asarray(rank_of, np.int32)
        handle = self.library.made("ap_mpi_open_number", comm.py2f(), numbers.ctypes.data, ranks)
        return Wire(self, handle, lost=_LOST)

    def sockets(self, rank: int, connected: Sequence[int], rails: int = 1) -> Wire:
        """A wire over stream sockets; `connected`: for each rank the numbers of as many as `rails` that are connected
        to it, or -1.

        They belong to the wire. Of a library built for sockets."""
        numbers = np.asarray(connected, np.int32)
        given = rank, len(numbers) // rails, rails, numbers.ctypes.data
        return Wire(self, self.library.made("ap_sockets_open", *given))

    def share(self, ranks: int) -> tuple[int, bytes]:
        """Memory for messages within this host, and what others need to `join` it; 0 where there can be none."""
        name = ctypes.create_string_buffer(_NAME)
        return self.library.ap_shared_make(ranks, name) or 0, name.raw

    def join(self, name: bytes, rank: int) -> int:
        """The memory of that name; 0 where it cannot be seen."""
        return self.library.ap_shared_join(name, rank) or 0 if len(name) == _NAME else 0

    def shared(self, memory: int, polled: Sequence[int]) -> Wire:
        """A wire through that memory. `polled`: for each rank the number of what tells when that one is gone, or -1; at
        this one's place, of what tells that its calls are to end.

        Both belong to it."""
        numbers = np.asarray(polled, np.int32)
        self.library.ap_shared_complete(memory)
        return Wire(self, self.library.made("ap_shared_open", memory, len(numbers), numbers.ctypes.data), near=True)

    def unshare(self, memory: int) -> None:
        """Gives up memory of which no wire was made."""
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
        self.engine.library.done("ap_wire_left", self.handle)

    def close(self) -> None:
        if self.handle:
            self.engine.library.ap_wire_close(self.handle)
        self.handle = 0


class OpenProgram:
    """A program file, checked; the plans of its ranks at a size."""

    def __init__(self, engine: Engine, data: bytes) -> None:
        self.engine, self.handle = engine, 0
        self._data = np.frombuffer(data + bytes(-len(data) % 8), np.uint64).copy()  # aligned, and kept
        self.handle = engine.library.made("ap_open_bytes", self._data.ctypes.data, len(data))
        self.facts = Facts()
        engine.library.ap_describe(self.handle, byref(self.facts))

    def plan(self, rank: int, unit: int, in_place: bool = False, split: int | None = None) -> NativePlan:
        library = self.engine.library
        made = NativePlan(self.engine, library.made("ap_prepare", self.handle, rank, int(in_place), unit))
        if split is not None:
            library.done("ap_split", made.handle, split)
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
