"""Call the native engine from Python: its library by ctypes, with programs, plans and wires as objects.

    engine = Engine(library("sockets"))            # the library, loaded
    wire = engine.sockets(rank, descriptors)       # the connections of this rank to all others
    plan = engine.program(data).plan(rank, unit)   # a program checked by the engine, and its operations at one size
    plan.run(source, target, wire)                 # collective: all ranks call it

A handle is the address of a C object, 0 if there is none; the Python object that holds it frees it. Python's lock is
released during a call; the main thread still runs signal handlers, which C calls back for (`SignalChecks`). `timeout`:
seconds that a call may wait without progress; 0: no limit. Words of the engine (native/api.h): a *unit* is the elements
of a block of weight 1.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from ctypes import Structure, addressof, byref, c_char, c_double, c_int, c_int32, c_uint64, c_void_p, cast, pythonapi
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import AntiphonError, Invalid, Missing, unknown
from antiphon.runtimes.engine.functions import (  # noqa: F401 (importers of Engine find its exceptions here)
    Facts,
    Failure,
    Functions,
    Mismatch,
    ProgramNeeds,
    TransportFailed,
    make_error,
)
from antiphon.runtimes.engine.learner import PLANNED_SLICES

MAIN = threading.main_thread().ident  # the thread in which Python runs signal handlers
_PYTHON_CALLS = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")


class SignalChecks(Structure):
    """How a call that waits on a wire lets Python run signal handlers, and what a handler raised (native/wire.c)."""

    _fields_ = [
        *((name, c_void_p) for name in ("ensure", "check", "fetch", "release")),  # functions, as in _PYTHON_CALLS
        *((name, c_void_p) for name in ("kind", "value", "trace")),  # of the exception that a handler raised
        ("enabled", c_int32),
    ]

    def __init__(self) -> None:
        super().__init__(*(cast(getattr(pythonapi, name), c_void_p).value for name in _PYTHON_CALLS))

    def reraise(self) -> None:
        """Raise the exception of a handler that ran during the last call."""
        restore = pythonapi.PyErr_Restore
        restore.argtypes, restore.restype = [c_void_p] * 3, None
        restore(self.kind, self.value, self.trace)


Array = NDArray[Any]
_TYPE_NAMES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    "float8_e5m2", "int16", "uint16",
)  # fmt: skip
TYPES = {name: number for number, name in enumerate(_TYPE_NAMES)}  # as in the engine
OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_ABI = 3  # version of the interface in native/api.h
MOVED, EVEN, DISAGREED = range(3)  # outcomes of `Wire.uneven`
_STOPPED = 8  # AP_STOPPED, an error code: a signal handler raised
_NAME = 24  # bytes of an ap_shared_name
_LOST: list[Any] = []  # buffers of failed runs over MPI, in which messages may still arrive


def keep_tables(library: Path, tables: Sequence[str]) -> None:
    """Have the engine over MPI compile and cache tables, as it does when a job starts."""
    functions = Functions(library)
    for table in tables:
        functions.check("ap_table_store", os.fsencode(table))


class Engine:
    """One library of the engine, loaded."""

    def __init__(self, path: Path) -> None:
        self.library = Functions(path)
        if self.library.ap_abi() != _ABI:
            raise Missing(f"{path} is of another version of Antiphon; delete it, it is built anew")

    def program(self, data: bytes) -> OpenProgram:
        return OpenProgram(self, data)

    def threads(self, ranks: int) -> list[Wire]:
        """Return wires between threads of this process, without buffering. Needs a library built for threads."""
        wires = (c_void_p * ranks)()
        if not self.library.ap_threads_open(ranks, wires):
            raise MemoryError("no memory for the wires")
        return [Wire(self, int(handle or 0)) for handle in wires]

    def mpi(self, comm: Any, rank_of: Sequence[int], ranks: int) -> Wire:
        """Return a wire over a duplicate of a communicator of mpi4py. Collective.

        `rank_of`: per process of the communicator its rank. `ranks`: the number of ranks of the program.
        """
        from mpi4py import MPI

        engine_version, mpi4py_version = self.library.ap_mpi_library().decode(), MPI.Get_library_version()
        if engine_version.strip("\0 \n") != mpi4py_version.strip("\0 \n"):
            raise Missing(
                f"the engine is compiled for {_short_version(engine_version)}, but mpi4py uses "
                f"{_short_version(mpi4py_version)}; name the mpicc of that one in $MPICC"
            )
        numbers = np.asarray(rank_of, np.int32)
        # py2f: the communicator as an integer, as for Fortran
        handle = self.library.create("ap_mpi_open_number", comm.py2f(), numbers.ctypes.data, ranks)
        return Wire(self, handle, lost=_LOST)

    def sockets(self, rank: int, connected: Sequence[int], rails: int = 1) -> Wire:
        """Return a wire over stream sockets, which it then owns. Needs a library built for sockets.

        `connected`: for each rank `rails` descriptors of connections to it, or -1."""
        numbers = np.asarray(connected, np.int32)
        arguments = rank, len(numbers) // rails, rails, numbers.ctypes.data
        return Wire(self, self.library.create("ap_sockets_open", *arguments))

    def share(self, ranks: int) -> tuple[int, bytes]:
        """At rank 0: create shared memory for messages within this host.

        Return its handle, which `shared` or `unshare` takes (0 if impossible), and its name for `join`.
        """
        name = ctypes.create_string_buffer(_NAME)
        return self.library.ap_shared_make(ranks, name) or 0, name.raw

    def join(self, name: bytes, rank: int) -> int:
        """At other ranks: return a handle of the shared memory of that name; 0 if it is not accessible.

        If it is 0 at some rank, no rank may use the memory.
        """
        if len(name) != _NAME:
            return 0
        return self.library.ap_shared_join(name, rank) or 0

    def shared(self, memory: int, polled: Sequence[int]) -> Wire:
        """Return a wire through that memory; the wire then owns the memory and the descriptors.

        `polled`: for each other rank a descriptor that becomes readable when its process ends, or -1. For this rank: a
        descriptor that ends its own calls when it becomes readable."""
        numbers = np.asarray(polled, np.int32)
        self.library.ap_shared_complete(memory)
        return Wire(self, self.library.create("ap_shared_open", memory, len(numbers), numbers.ctypes.data), near=True)

    def unshare(self, memory: int) -> None:
        """Free shared memory that no wire owns; 0 is ignored."""
        if memory:
            self.library.ap_shared_close(memory)

    def fold(self, result: Array, operands: Sequence[Array], op: str) -> None:
        """Combine the operands from the left into `result`."""
        addresses = (c_void_p * len(operands))(*(operand.ctypes.data for operand in operands))
        self.library.ap_fold(
            result.ctypes.data, addresses, len(operands), len(result), type_number(result.dtype), OPERATORS[op]
        )

    def divide(self, values: Array, count: int) -> None:
        """Divide the values by `count` in place, as "avg" does after its sum."""
        self.library.ap_divide(values.ctypes.data, len(values), count, type_number(values.dtype))


def address(array: Array) -> int:
    """Return the address of the elements: like `array.ctypes.data`, in an eighth of the time for writable arrays."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, empty, or of a type unknown to Python's buffers
        return array.ctypes.data


_NOTHING = c_void_p(None), c_uint64(0)  # address and bytes of no buffer: a run in place has no input


def _buffer_arguments(array: Array) -> tuple[c_void_p, c_uint64]:
    """Return the address and the number of bytes of an array."""
    return c_void_p(address(array)), c_uint64(array.nbytes)


def _short_version(text: str) -> str:
    """Return the beginning of an MPI's description of itself, such as "Open MPI v5.0.3"."""
    return " ".join(text.partition(",")[0].split()[:4])


@cache  # NumPy builds the name each time, which takes longer than a short message
def type_number(dtype: np.dtype[Any]) -> int:
    if dtype.name not in TYPES:
        raise unknown("data type", dtype.name, TYPES)
    return TYPES[dtype.name]


class Wire:
    """A connection of one rank to all others; one thread at a time uses it, and all ranks `close` it.

    `near`: all ranks share memory. `lost`: over MPI, a list that keeps the buffers of failed runs alive, as messages
    may still arrive in them.
    """

    def __init__(self, engine: Engine, handle: int, near: bool = False, lost: list[Any] | None = None) -> None:
        self.engine, self.handle, self.near, self.lost = engine, handle, near, lost
        self.trace: Any = None  # the records of runs (engine/trace.py)
        self.stopped = False  # whether a signal handler has ended a call by an exception
        self._signals = SignalChecks()
        engine.library.ap_wire_set_signals(handle, byref(self._signals))

    def calls(self, memory: ctypes.Array[c_char]) -> None:
        """Compare calls between processes from now on. `memory`: holds the header of the current call (CallHead)."""
        self._call = memory  # keeps it alive
        self.engine.library.ap_wire_call(self.handle, memory)

    def enable_signals(self) -> bool:
        """Before each call: enable signal handlers during the call in the main thread; return whether they are."""
        self._signals.enabled = enabled = get_ident() == MAIN
        return enabled

    def exception_of(self, error: Failure) -> AntiphonError:
        """Return the exception of a failed call; if a signal handler ended the call, raise the handler's exception."""
        if error.code == _STOPPED:
            self.stopped = True
            self._signals.reraise()
        return make_error(error)

    def other_call(self) -> bytes:
        """Return the header of the other call after Mismatch."""
        header = ctypes.create_string_buffer(len(self._call))
        self.engine.library.ap_wire_other_call(self.handle, header)
        return header.raw

    def agree(self, timeout: float) -> None:
        """Wait until all ranks have begun the same call."""
        error = Failure()
        self.enable_signals()
        if self.engine.library.ap_agree(self.handle, timeout, byref(error)):
            raise self.exception_of(error)

    def uneven(self, source: int, target: int, lengths: Array, timeout: float) -> int:
        """Exchange bytes with each rank without a plan: an alltoall of uneven lengths.

        `source`, `target`: addresses of the blocks for, and from, each rank, one behind the other. `lengths`: 2 x ranks
        uint64, the bytes sent to each rank, then the bytes received from each. Returns MOVED; or, without moving
        anything, EVEN if all lengths are equal, or DISAGREED if a rank does not send what another expects."""
        error, outcome = Failure(), c_int()
        sent_lengths = address(lengths)
        received_lengths = sent_lengths + lengths.nbytes // 2
        arguments = self.handle, source, sent_lengths, target, received_lengths
        self.enable_signals()
        if self.engine.library.ap_run_uneven(*arguments, timeout, byref(outcome), byref(error)):
            raise self.exception_of(error)
        return outcome.value

    def refuse_unreceived(self) -> None:
        """Before closing: raise Mismatch if a message has arrived that no call received."""
        self.engine.library.check("ap_wire_check_unreceived", self.handle)

    def close(self) -> None:
        if self.handle:
            self.engine.library.ap_wire_close(self.handle)
        self.handle = 0


class OpenProgram:
    """A program file, checked by the engine, from which plans are made."""

    def __init__(self, engine: Engine, data: bytes) -> None:
        self.engine, self.handle = engine, 0  # 0: nothing to close if the lines below raise
        self._data = np.frombuffer(data + bytes(-len(data) % 8), np.uint64).copy()  # aligned, and kept alive
        self.handle = engine.library.create("ap_open_bytes", self._data.ctypes.data, len(data))
        self.facts = Facts()
        engine.library.ap_describe(self.handle, byref(self.facts))

    def plan(
        self, rank: int, unit: int, in_place: bool = False, split: int | None = None, slices: int = PLANNED_SLICES
    ) -> NativePlan:
        """Return the operations of a rank for `unit` elements per weight 1.

        `split`: cut messages into pieces of this size in bytes (0: never; None: the engine chooses). `slices`: quarters
        of the planned number of slices; the same at all ranks."""
        library = self.engine.library
        arguments = self.handle, rank, int(in_place), unit, slices
        plan = NativePlan(self.engine, library.create("ap_prepare_sliced", *arguments))
        if split is not None:
            library.check("ap_split", plan.handle, split)
        return plan

    def plan_counts(self, rank: int, counts: Array) -> NativePlan:
        """Return the operations of a rank of an alltoall, out of place, for blocks of uneven length.

        `counts[r, s]`: elements from member s to member r, the same at all ranks."""
        numbers = np.ascontiguousarray(counts, np.uint64)
        if numbers.size != self.facts.members**2:
            raise Invalid(f"counts: {self.facts.members} members exchange {self.facts.members**2} blocks")
        handle = self.engine.library.create("ap_prepare_counts", self.handle, rank, numbers.ctypes.data)
        return NativePlan(self.engine, handle)

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.ap_close(self.handle)


class NativePlan:
    """The operations of one rank at one size, with their scratch, for any number of runs."""

    def __init__(self, engine: Engine, handle: int) -> None:
        self.engine, self.handle = engine, handle
        self._error = Failure()
        self._call = engine.library.ap_run
        self._plan, self._failure = c_void_p(handle), byref(self._error)  # created once: that takes as long as a call

    @property
    def needs(self) -> ProgramNeeds:
        needs = ProgramNeeds()
        self.engine.library.ap_get_needs(self.handle, byref(needs))
        return needs

    def run(self, source: Array | None, target: Array, wire: Wire, op: str = "sum", timeout: float = 0.0) -> None:
        """Take part in one run; without a source it is in place. Releases the interpreter's lock."""
        wire.enable_signals()
        if self._call(*self._run_arguments(source, target, wire, op, timeout)):
            self._raise_failure(source, target, wire)

    def bound(
        self, source: Array | None, target: Array, wire: Wire, op: str = "sum", timeout: float = 0.0
    ) -> Callable[[], None]:
        """Return a function that takes part in one run on these buffers; converts the arguments once.

        The caller enables signals itself (`Wire.enable_signals`), once for many runs."""
        arguments = self._run_arguments(source, target, wire, op, timeout)

        def run() -> None:
            if self._call(*arguments):
                self._raise_failure(source, target, wire)

        return run

    def _run_arguments(
        self, source: Array | None, target: Array, wire: Wire, op: str, timeout: float
    ) -> tuple[Any, ...]:
        """Return the arguments of ap_run, which checks the lengths of the buffers."""
        for name, array in (("input", source), ("output", target)):
            if array is not None and not array.flags.c_contiguous:
                raise Invalid(f"{name}: its elements do not stand one after another; give a contiguous array")
        if source is not None and source.dtype != target.dtype:
            raise Invalid(f"input and output are of two types, {source.dtype} and {target.dtype}; convert one")
        input_memory = _NOTHING if source is None else _buffer_arguments(source)
        return (
            self._plan,
            *input_memory,
            *_buffer_arguments(target),
            c_int(type_number(target.dtype)),
            c_int(OPERATORS[op]),
            c_void_p(wire.handle),
            c_double(timeout),
            self._failure,
        )

    def _raise_failure(self, source: Array | None, target: Array, wire: Wire) -> None:
        if wire.lost is not None:
            wire.lost.append((self, source, target, wire))
        raise wire.exception_of(self._error)

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.ap_release(self.handle)


# ---- touching the memory of plans before their first runs, while the program continues ----

# bytes of an element -> number of a type of that size: warming reads no values, so any will do
TYPE_OF_SIZE = {1: TYPES["uint8"], 2: TYPES["uint16"], 4: TYPES["uint32"], 8: TYPES["uint64"]}


class _Pace(Structure):
    """ap_pace of native/prefault.h: `stop` ends the work; if `gentle`, it sleeps most of the time."""

    _fields_ = [("stop", c_int), ("gentle", c_int)]


class Warming:
    """A thread that allocates and touches the memory of plans, each for elements of a size in bytes.

    It sleeps most of the time, and holds no lock that other threads of Python need. `plans`: (plan, bytes of an
    element); none of them may run until the thread is `done`."""

    def __init__(self, plans: Sequence[tuple[NativePlan, int]]) -> None:
        self._pace = _Pace(stop=0, gentle=1)
        self._plans = list(plans)
        self._thread = threading.Thread(target=self._run_warming, name="antiphon-warming", daemon=True)
        self._thread.start()

    def _run_warming(self) -> None:
        for plan, itemsize in self._plans:
            warm = plan.engine.library.ap_warm
            # without an error struct (None): the run itself will raise the error
            if self._pace.stop or warm(plan.handle, TYPE_OF_SIZE[itemsize], byref(self._pace), None):
                break

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._pace.stop = 1
        self._thread.join()
