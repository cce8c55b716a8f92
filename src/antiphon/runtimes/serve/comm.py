"""Collectives on NumPy arrays by the plans of a table, over MPI or over sockets (docs/numpy.md)."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antiphon.core.choose import Call
from antiphon.core.datatypes import combine_of, data_type
from antiphon.errors import Invalid, Missing, quote
from antiphon.runtimes.engine.native import address
from antiphon.runtimes.serve._comm_mpi import MpiLibrary, over_mpi
from antiphon.runtimes.serve.call_head import type_code
from antiphon.runtimes.serve.ledger import Ledger
from antiphon.runtimes.serve.rendezvous import over_sockets
from antiphon.runtimes.serve.serving import Serving

Array = NDArray[Any]


def comm(
    communicator: Any = None,
    table: Any = None,
    *,
    rank: int | None = None,
    ranks: int | None = None,
    address: str = "",
    timeout: float = 1800.0,
    compiler: str = "",
    secret: str | None = None,
) -> Comm:
    """Processes that make the same calls in the same order: those of an MPI communicator, or `ranks` processes that
    find each other at `address` ("host:port", where rank 0 listens). Collective.

    `communicator`: mpi4py's, left out MPI.COMM_WORLD. `table`: a file (table, plan or book), a plan, plans, what `tune`
    gave, or a book; only process 0 looks at it. What no schedule of it is for goes to the MPI library, and over
    sockets by a plan made at once. `timeout`: seconds without any progress that end a call with an error. `secret`:
    what processes must know to take part, left out $ANTIPHON_SECRET or what is in the file $ANTIPHON_SECRET_FILE.
    """
    if not 0 < timeout <= 1e9:
        raise Invalid(f"timeout: expected seconds above 0, got {quote(timeout)}")
    if rank is None and ranks is None and not address and secret is None:
        return over_mpi_comm(communicator, table, timeout, compiler)
    if communicator is not None:
        raise Invalid("comm: give a communicator of MPI, or rank, ranks and address, not both")
    if rank is None or ranks is None or not address:
        raise Invalid('comm: without MPI it needs all of rank=, ranks= and address="host:port"')
    for what, value, low, high in (("ranks", ranks, 1, 2**16), ("rank", rank, 0, ranks - 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{what}: expected a whole number from {low} to {high}, got {quote(value)}")
    serving = over_sockets(rank, ranks, address, table, timeout, compiler, secret) if ranks > 1 else None
    return Comm(rank, ranks, serving, None, timeout)


def over_mpi_comm(communicator: Any, table: Any, timeout: float, compiler: str) -> Comm:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise Missing(
            f"comm needs mpi4py and an MPI ({error}): pip install 'antiphon[mpi]', or give rank=, ranks= and address="
        ) from None
    who = MPI.COMM_WORLD if communicator is None else communicator
    if not isinstance(who, MPI.Comm) or who == MPI.COMM_NULL or who.Is_inter():
        raise Invalid(f"comm: expected a communicator of mpi4py among one group, got {quote(who)}")
    serving = over_mpi(who, table, compiler, timeout) if who.size > 1 else None
    return Comm(who.rank, who.size, serving, MpiLibrary(MPI, who), timeout)


class Comm:
    """Made by `antiphon.comm`; closed by `close` or at the end of a `with` block, by all processes.

    Arrays are contiguous, of one type at all processes: int8 to int64, uint8 to uint64, float16 to float64, bfloat16,
    float8_e4m3fn and float8_e5m2.
    `op`: sum, prod, max, min or avg. `out`: where the result goes, of fitting size; made where it is left out. A call
    is in place if `out` is the input (of an allgather or gather: if the input is its own block of `out`, of a
    reducescatter or scatter: if `out` is its own block of the input).
    """

    def __init__(self, rank: int, ranks: int, serving: Serving | None, library: Any, timeout: float) -> None:
        self.rank, self.ranks, self.timeout = rank, ranks, timeout
        self._serving, self._library = serving, library
        self._ledger = serving.ledger if serving else Ledger()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(check=kind is None)

    def close(self) -> None:
        """Let go of the connections. No call of this process may be under way."""
        self._end(check=True)

    def _end(self, check: bool) -> None:
        with self._lock:
            self._closed = True
            if self._serving is not None:
                try:
                    if check:
                        self._serving.finish()
                finally:
                    self._serving.close()

    def report(self) -> list[dict[str, Any]]:
        """A row for each collective and schedule: calls, nbytes, seconds, by whom they were served, and why so."""
        return self._ledger.as_json()

    # ---- the collectives ----

    def allreduce(self, x: Array, op: str = "sum", out: Array | None = None) -> Array:
        """The combination of all processes' arrays, at all of them."""
        given = _taken(x, "x")
        result = _result_array(out, x.shape, given)
        target = _target(result, len(given), given.dtype)
        place = _in_place(given, target, 0, "out")
        self._call("allreduce", len(given), None if place else given, target, op)
        return result

    def reduce(self, x: Array, op: str = "sum", root: int = 0, out: Array | None = None) -> Array | None:
        """The combination at the root; None at the others, whose arrays stay as they are."""
        given = _taken(x, "x")
        if self.rank != self._root(root):
            self._call("reduce", len(given), given, given[:0], op, root)
            return None
        result = _result_array(out, x.shape, given)
        target = _target(result, len(given), given.dtype)
        self._call("reduce", len(given), None if _in_place(given, target, 0, "out") else given, target, op, root)
        return result

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """The root's array into those of all others, which must be as long. The same array comes back."""
        given = _taken(x, "x")
        if self.rank != self._root(root):
            _writable(given, "x")
        self._call("broadcast", len(given), None, given, "sum", root)
        return x

    def allgather(self, x: Array, out: Array | None = None) -> Array:
        """All processes' arrays one after another along the first axis, at all of them."""
        given = _taken(x, "x")
        result = _result_array(out, self._joined(x.shape), given)
        target = _target(result, len(given) * self.ranks, given.dtype)
        place = _in_place(given, target, self.rank * len(given), "its own block of out")
        self._call("allgather", len(given), None if place else given, target)
        return result

    def reducescatter(self, x: Array, op: str = "sum", out: Array | None = None) -> Array:
        """The combination of all processes' arrays, cut along the first axis: its own block at each."""
        given = _taken(x, "x")
        result = _result_array(out, self._cut(x.shape), given)
        unit = len(given) // self.ranks
        target = _target(result, unit, given.dtype)
        if _in_place(target, given, self.rank * unit, "its own block of x"):
            _writable(given, "x")
            self._call("reducescatter", unit, None, given, op)
        else:
            self._call("reducescatter", unit, given, target, op)
        return result

    def gather(self, x: Array, root: int = 0, out: Array | None = None) -> Array | None:
        """All processes' arrays one after another along the first axis, at the root; None at the others."""
        given = _taken(x, "x")
        if self.rank != self._root(root):
            self._call("gather", len(given), given, given[:0], "sum", root)
            return None
        result = _result_array(out, self._joined(x.shape), given)
        target = _target(result, len(given) * self.ranks, given.dtype)
        place = _in_place(given, target, self.rank * len(given), "its own block of out")
        self._call("gather", len(given), None if place else given, target, "sum", root)
        return result

    def scatter(self, x: Array | None, root: int = 0, out: Array | None = None) -> Array:
        """The root's array, cut along the first axis: its own block at each. At the others x is None, and `out` says
        how much comes."""
        if self.rank != self._root(root):
            if out is None:
                raise Invalid("scatter: at all processes but the root, out= must be given")
            target = _target(out, out.size, data_type(out.dtype))
            self._call("scatter", len(target), target[:0], target, "sum", root)
            return out
        if x is None:
            raise Invalid("scatter: the root must give x")
        given = _taken(x, "x")
        result = _result_array(out, self._cut(x.shape), given)
        unit = len(given) // self.ranks
        target = _target(result, unit, given.dtype)
        if _in_place(target, given, self.rank * unit, "its own block of x"):
            self._call("scatter", unit, None, given, "sum", root)
        else:
            self._call("scatter", unit, given, target, "sum", root)
        return result

    def alltoall(self, x: Array, out: Array | None = None) -> Array:
        """x cut along the first axis, block j for process j; what the others have for this one, in their order."""
        given = _taken(x, "x")
        self._cut(x.shape)
        result = _result_array(out, x.shape, given)
        target = _target(result, len(given), given.dtype)
        place = _in_place(given, target, 0, "out")
        self._call("alltoall", len(given) // self.ranks, None if place else given, target)
        return result

    # ---- carrying it out ----

    def _call(self, kind: str, unit: int, source: Array | None, target: Array, op: str = "sum", root: int = -1) -> None:
        combine_of(op)
        with self._lock:
            if self._closed:
                raise Invalid("comm: it has been closed")
            if self._serving is None:
                if source is not None and len(target):
                    target[:] = source
                return
            nbytes = self._serving.nbytes(kind, unit, target.dtype.itemsize)
            self._serving.begin(kind, unit * target.dtype.itemsize, type_code(target.dtype), op, root)
            call = Call(kind, nbytes, root)
            page = self._serving.find(call, self.timeout, self._library is not None)
            if page is not None:
                self._serving.run(page, unit, source, target, op, self.timeout)
                return
            why = self._serving.why_not(call)
            began = time.perf_counter()
            self._serving.agree(self.timeout)
            self._library.run(kind, unit, source, target, op, root)
            row = self._ledger.row(kind, "the library", "library", why)
            self._ledger.count(row, nbytes, time.perf_counter() - began)

    def _root(self, root: int) -> int:
        if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < self.ranks:
            raise Invalid(f"root: expected a rank from 0 to {self.ranks - 1}, got {quote(root)}")
        return int(root)

    def _joined(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self.ranks * shape[0], *shape[1:]) if shape else (self.ranks,)

    def _cut(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] % self.ranks:
            raise Invalid(f"x: its first axis must be cut into {self.ranks} equal parts, but its shape is {shape}")
        return (shape[0] // self.ranks, *shape[1:])


def _taken(x: Any, what: str) -> Array:
    """The elements of a contiguous array, flat, where they are."""
    if not isinstance(x, np.ndarray):
        raise Invalid(f"{what}: expected a NumPy array, got {quote(type(x).__name__)}; np.asarray makes one")
    if not x.dtype.isnative or data_type(x.dtype).kind == "O":
        raise Invalid(f"{what}: elements of type {x.dtype} cannot be sent; convert it, say by x.astype(np.float64)")
    if not x.flags.c_contiguous:
        raise Invalid(f"{what}: its elements do not stand one after another; give np.ascontiguousarray of it")
    return x.reshape(-1)


def _writable(x: Array, what: str) -> None:
    if not x.flags.writeable:
        raise Invalid(f"{what}: it cannot be written to; give a copy")


def _result_array(out: Array | None, shape: tuple[int, ...], like: Array) -> Array:
    return np.empty(shape, like.dtype) if out is None else out


def _target(out: Array, size: int, dtype: np.dtype[Any]) -> Array:
    line = _taken(out, "out")
    _writable(line, "out")
    if len(line) != size or line.dtype != dtype:
        raise Invalid(f"out: has {len(line)} elements of {line.dtype}, needed are {size} of {dtype}")
    return line


def _in_place(part: Array, whole: Array, at: int, what: str) -> bool:
    """Whether a part stands just there in the whole; Invalid where it overlaps otherwise."""
    here, there = address(part), address(whole)
    if not len(part) or here >= there + whole.nbytes or there >= here + part.nbytes:
        return False
    if here != there + at * whole.itemsize:
        raise Invalid(f"x and out overlap; for a call in place the one is {what}, else give separate arrays")
    return True
