"""Collectives on NumPy arrays by the plans of a table, over MPI or over sockets (docs/numpy.md).

`comm` connects the processes: those of an MPI communicator, or processes that meet at an address. Every method of
`Comm` is a collective call: it checks the arrays, finds the page (the schedule for this collective and size) in the
group's `Serving`, and has the engine run its program on the arrays' memory. A call without a page goes to the MPI
library (`MpiLibrary`); over sockets, where there is none, a plan is made at once.

    c = comm(table="table.json")       # under mpirun
    total = c.allreduce(x)             # x: a NumPy array, of the same size at all processes

In every method `elements` is the flat input, `target` the flat result, and `unit` the number of elements of a block.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antiphon.core.choose import Call
from antiphon.core.datatypes import accumulator, average, combine_of, data_type
from antiphon.errors import Invalid, Missing, quote
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine, Wire, address
from antiphon.runtimes.serve.call_head import type_code
from antiphon.runtimes.serve.group_start import Processes, start_serving, table_or_auto
from antiphon.runtimes.serve.ledger import CallLedger
from antiphon.runtimes.serve.rendezvous import over_sockets
from antiphon.runtimes.serve.serving import Serving

Array = NDArray[Any]
MAX_TIMEOUT = 1e9  # seconds; Python counts timeouts in nanoseconds of 64 bits, so those of sockets end at 9.2e9
MAX_RANKS = 2**16  # of an address: a sanity check, as every process has a connection to every other


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
    """Connect processes that make the same calls in the same order. Collective.

    They are those of an MPI communicator, or `ranks` processes that find each other at `address` ("host:port", where
    rank 0 listens).

    Parameters
    ----------
    communicator
        mpi4py's; default: MPI.COMM_WORLD.
    table
        A file (table, plan or book), a plan, plans, the result of `tune`, or a book. Only process 0 reads it. Calls
        without a schedule go to the MPI library; over sockets they get a plan made at once.
    timeout
        Seconds without any progress after which a call fails.
    compiler
        The command that compiles the engine where it is not compiled yet; default: as `engine.build.library` says.
    secret
        What processes must know to be let in; default: $ANTIPHON_SECRET, else the content of $ANTIPHON_SECRET_FILE.
    """
    if not 0 < timeout <= MAX_TIMEOUT:
        raise Invalid(f"timeout: expected seconds above 0, got {quote(timeout)}")
    if rank is None and ranks is None and not address and secret is None:
        return _connect_by_mpi(communicator, table, timeout, compiler)
    if communicator is not None:
        raise Invalid("comm: give a communicator of MPI, or rank, ranks and address, not both")
    if rank is None or ranks is None or not address:
        raise Invalid('comm: without MPI it needs all of rank=, ranks= and address="host:port"')
    for name, value, low, high in (("ranks", ranks, 1, MAX_RANKS), ("rank", rank, 0, ranks - 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{name}: expected a whole number from {low} to {high}, got {quote(value)}")
    serving = over_sockets(rank, ranks, address, table, timeout, compiler, secret) if ranks > 1 else None
    return Comm(rank, ranks, serving, library=None, timeout=timeout)


def _connect_by_mpi(communicator: Any, table: Any, timeout: float, compiler: str) -> Comm:
    """Return the processes of an MPI communicator, default MPI.COMM_WORLD. Collective."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise Missing(
            f"comm needs mpi4py and an MPI ({error}): pip install 'antiphon[mpi]', or give rank=, ranks= and address="
        ) from None
    group = MPI.COMM_WORLD if communicator is None else communicator
    if not isinstance(group, MPI.Comm) or group == MPI.COMM_NULL or group.Is_inter():
        raise Invalid(f"comm: expected a communicator of mpi4py among one group, got {quote(group)}")
    serving = _serve_over_mpi(group, table, compiler, timeout) if group.size > 1 else None
    return Comm(group.rank, group.size, serving, MpiLibrary(MPI, group), timeout)


class Comm:
    """Connected processes, as returned by `comm`; all of them close it, by `close` or a `with` block.

    Arrays are contiguous, of one type at all processes: int8 to int64, uint8 to uint64, float16 to float64, bfloat16,
    float8_e4m3fn and float8_e5m2. All methods are collective, except `report`.

    Notes
    -----
    The arguments of the methods have the same meaning everywhere. `op`: sum, prod, max, min or avg. `root`: a rank.
    `out`: array of the result's size; default: a new array. A call is in place if `out` is the input. For allgather and
    gather it is in place if the input is the process's own block of `out`; for reducescatter and scatter, if `out` is
    its own block of the input.

    Examples
    --------
    >>> with Comm(0, 1, None, None, 60.0) as c:  # a single process
    ...     c.allreduce(np.array([1.0, 2.0]))
    array([1., 2.])
    """

    def __init__(self, rank: int, ranks: int, serving: Serving | None, library: Any, timeout: float) -> None:
        # `serving`: None for a single process; `library`: the MpiLibrary for calls without a page, None over sockets
        self.rank, self.ranks, self.timeout = rank, ranks, timeout
        self._serving, self._library = serving, library
        self._ledger = serving.ledger if serving else CallLedger()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end_calls(check=kind is None)  # after an exception, messages that nobody received are no surprise

    def close(self) -> None:
        """Close the connections, after all calls of this process have returned."""
        self._end_calls(check=True)

    def _end_calls(self, check: bool) -> None:
        """Close the group. `check`: raise if a message has arrived that no call received."""
        with self._lock:
            self._closed = True
            if self._serving is not None:
                try:
                    if check:
                        self._serving.finish()
                finally:
                    self._serving.close()

    def report(self) -> list[dict[str, Any]]:
        """Return a row per collective and schedule: calls, nbytes, seconds, what served them, and why."""
        return self._ledger.as_json()

    # ---- the collectives ----

    def allreduce(self, x: Array, op: str = "sum", out: Array | None = None) -> Array:
        """Combine the arrays of all processes, at all of them."""
        elements = _flatten_array(x, "x")
        return self._fill_array("allreduce", len(elements), elements, x.shape, out, op=op)

    def reduce(self, x: Array, op: str = "sum", root: int = 0, out: Array | None = None) -> Array | None:
        """Combine the arrays of all processes at the root; None at the others, whose arrays stay as they are."""
        elements = _flatten_array(x, "x")
        if self.rank != self._check_root(root):
            self._serve_call("reduce", len(elements), elements, elements[:0], op, root)
            return None
        return self._fill_array("reduce", len(elements), elements, x.shape, out, op=op, root=root)

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """Copy the root's array into the arrays of all others, of the same length. Return x."""
        elements = _flatten_array(x, "x")
        if self.rank != self._check_root(root):
            _refuse_read_only(elements, "x")
        self._serve_call("broadcast", len(elements), source=None, target=elements, op="sum", root=root)
        return x

    def allgather(self, x: Array, out: Array | None = None) -> Array:
        """Concatenate the arrays of all processes along the first axis, at all of them."""
        return self._gather_arrays("allgather", _flatten_array(x, "x"), x.shape, out)

    def gather(self, x: Array, root: int = 0, out: Array | None = None) -> Array | None:
        """Concatenate the arrays of all processes along the first axis, at the root; None at the others."""
        elements = _flatten_array(x, "x")
        if self.rank == self._check_root(root):
            return self._gather_arrays("gather", elements, x.shape, out, root)
        self._serve_call("gather", len(elements), elements, elements[:0], "sum", root)
        return None

    def _gather_arrays(
        self, kind: str, elements: Array, shape: tuple[int, ...], out: Array | None, root: int = -1
    ) -> Array:
        """Gather equal arrays, at the root or (-1) at all processes. `shape`: of the input."""
        shape = (self.ranks * shape[0], *shape[1:]) if shape else (self.ranks,)
        offset, block_name = self.rank * len(elements), "its own block of out"
        return self._fill_array(
            kind, len(elements), elements, shape, out, root=root, offset=offset, block_name=block_name
        )

    def _fill_array(
        self, kind: str, unit: int, elements: Array, shape: tuple[int, ...], out: Array | None, *, op: str = "sum",
        root: int = -1, offset: int = 0, block_name: str = "out",
    ) -> Array:  # fmt: skip
        """Serve a call whose result has this shape, and return the result.

        In place the input is the result from element `offset` on; `block_name` names that block in errors.
        """
        result = _result_array(out, shape, elements)
        target = _check_target(result, math.prod(shape), elements.dtype)
        in_place = _in_place(elements, target, offset, block_name)
        self._serve_call(kind, unit, None if in_place else elements, target, op, root)
        return result

    def reducescatter(self, x: Array, op: str = "sum", out: Array | None = None) -> Array:
        """Combine the arrays of all processes and split the result along the first axis: each gets its own block."""
        return self._scatter_array("reducescatter", x, out, op)

    def scatter(self, x: Array | None, root: int = 0, out: Array | None = None) -> Array:
        """Split the root's array along the first axis: each process gets its own block.

        At the other processes x is None, and `out` is required, as its size is that of the block.
        """
        if self.rank == self._check_root(root):
            if x is None:
                raise Invalid("scatter: x is None at the root, which passes the data of all ranks as x")
            return self._scatter_array("scatter", x, out, "sum", root)
        if out is None:
            raise Invalid("scatter: at all processes but the root, out= must be given")
        target = _check_target(out, out.size, data_type(out.dtype))
        self._serve_call("scatter", len(target), target[:0], target, "sum", root)
        return out

    def _scatter_array(self, kind: str, x: Array, out: Array | None, op: str, root: int = -1) -> Array:
        """Split x, or (reducescatter) the combination of all x, and return the block of this process."""
        elements = _flatten_array(x, "x")
        result = _result_array(out, self._block_shape(x.shape), elements)
        unit = len(elements) // self.ranks
        target = _check_target(result, unit, elements.dtype)
        if not _in_place(target, elements, self.rank * unit, "its own block of x"):
            self._serve_call(kind, unit, elements, target, op, root)
            return result
        if kind == "reducescatter":  # the engine combines in the memory of x
            _refuse_read_only(elements, "x")
        self._serve_call(kind, unit, source=None, target=elements, op=op, root=root)
        return result

    def alltoall(self, x: Array, out: Array | None = None) -> Array:
        """Send block j of x, split along the first axis, to process j; return the blocks received, in rank order."""
        elements = _flatten_array(x, "x")
        self._block_shape(x.shape)
        return self._fill_array("alltoall", len(elements) // self.ranks, elements, x.shape, out)

    def alltoallv(self, x: Array, counts: Sequence[int]) -> Array:
        """Send the first counts[0] rows of x to process 0, the next counts[1] to process 1, ...; return those received.

        Rows lie along the first axis and have one shape at all processes; those received are in the order of their
        senders. First the processes exchange their counts.
        """
        elements = _flatten_array(x, "x")
        are_counts = all(isinstance(n, int | np.integer) and n >= 0 for n in counts)
        if not x.shape or not are_counts or len(counts) != self.ranks or sum(map(int, counts)) != len(x):
            raise Invalid(
                f"counts: expected the rows for each of {self.ranks} processes, as whole numbers that add up to the "
                f"{len(x) if x.shape else 0} rows of x, got {quote(list(counts))}"
            )
        row_size = math.prod(x.shape[1:])
        rows = self._gather_rows(np.array(counts, np.int64), row_size, elements.dtype)
        result = np.empty((int(rows[self.rank].sum()), *x.shape[1:]), elements.dtype)
        target, sizes = result.reshape(-1), rows * row_size
        if (sizes == sizes[0, 0]).all():
            self._serve_call("alltoall", int(sizes[0, 0]), elements, target)
            return result
        assert self._serving is not None  # a single process has a single size
        with self._lock:
            self._begin_uneven(elements.dtype)
            source, nbytes = elements.view(np.uint8), sizes * elements.itemsize
            # without a plan for uneven blocks of this size, the engine moves the blocks point to point
            if not self._serving.run_counts(nbytes, source, target.view(np.uint8), self.timeout):
                # bytes to every process, then from every process: `nbytes` has a row per receiver
                lengths = np.stack([nbytes[:, self.rank], nbytes[self.rank]]).astype(np.uint64)
                self._serving.uneven(address(source), address(target), lengths, self.timeout)
        return result

    def _begin_uneven(self, dtype: np.dtype[Any]) -> None:
        """Begin a call of an alltoall in which sizes may differ between processes."""
        if self._closed:
            raise Invalid("comm: called after close(); make another by antiphon.comm.connect")
        if self._serving is not None:
            self._serving.begin("alltoall", 0, type_code(dtype))

    def _gather_rows(self, rows: Array, row_size: int, dtype: np.dtype[Any]) -> Array:
        """Return the numbers of rows that every process (first axis) receives from every process (second axis).

        `rows`: numbers of rows from this process to each. `row_size`: elements of a row; Invalid where it differs."""
        with self._lock:
            self._begin_uneven(dtype)
            own_shape = np.array([*rows, row_size], np.int64)
            if self._serving is None:
                return rows.reshape(1, 1)
            everyone = self._serving.gather(own_shape, self.timeout, library=self._library is not None)
            if everyone is None:  # no program serves this size, at any process: the MPI library gathers
                everyone = np.empty((self.ranks, len(own_shape)), np.int64)
                self._serving.agree(self.timeout)
                self._library.run("allgather", len(own_shape), own_shape, everyone.reshape(-1), "sum", -1)
        # every process has sent its numbers of rows, then its row size
        for other in np.flatnonzero(everyone[:, -1] != row_size)[:1].tolist():
            raise Invalid(f"x: its rows have {row_size} elements, those of process {other} have {everyone[other, -1]}")
        return everyone[:, :-1].T

    # ---- making a call ----

    def _serve_call(
        self, kind: str, unit: int, source: Array | None, target: Array, op: str = "sum", root: int = -1
    ) -> None:
        """Serve a call by a plan, else by the MPI library. `unit`: elements of a block; no `source`: in place.

        `source`, `target`: empty where a process has no input or output. In place `target` is the larger of the two:
        of a scatter (at its root) and a reducescatter the input. `op`: of no effect if the collective does not combine.
        `root`: -1 if it has none.
        """
        combine_of(op)
        with self._lock:
            if self._closed:
                raise Invalid("comm: called after close(); make another by antiphon.comm.connect")
            if self._serving is None:  # a single process: every collective is a copy
                if source is not None and len(target):
                    target[:] = source
                return
            nbytes = self._serving.nbytes(kind, unit, target.dtype.itemsize)
            self._serving.begin(kind, unit * target.dtype.itemsize, type_code(target.dtype), op, root)
            call = Call(kind, nbytes, root)
            page = self._serving.find(call, self.timeout, library=self._library is not None, learns=True)
            if page is not None:
                self._serving.run(page, unit, source, target, op, self.timeout)
                return
            why = self._serving.why_not(call)
            began = time.perf_counter()
            # Also calls of the library are compared across processes, so that a mismatch is an error, not a hang.
            self._serving.agree(self.timeout)
            self._library.run(kind, unit, source, target, op, root)
            row = self._ledger.row(kind, "the library", "library", why)
            seconds = time.perf_counter() - began
            self._serving.record(seconds)
            self._ledger.count(row, nbytes, seconds)

    def _check_root(self, root: int) -> int:
        if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < self.ranks:
            raise Invalid(f"root: expected a rank from 0 to {self.ranks - 1}, got {quote(root)}")
        return int(root)

    def _block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a block of an array that is split along its first axis."""
        if not shape or shape[0] % self.ranks:
            raise Invalid(f"x: its first axis must be cut into {self.ranks} equal parts, but its shape is {shape}")
        return (shape[0] // self.ranks, *shape[1:])


# ---- arrays ----


def _flatten_array(x: Any, name: str) -> Array:
    """Return a flat view of a contiguous array."""
    if not isinstance(x, np.ndarray):
        raise Invalid(f"{name}: expected a NumPy array, got {quote(type(x).__name__)}; np.asarray makes one")
    if not x.dtype.isnative or data_type(x.dtype).kind == "O":
        raise Invalid(f"{name}: elements of type {x.dtype} cannot be sent; convert it, say by x.astype(np.float64)")
    if not x.flags.c_contiguous:
        raise Invalid(f"{name}: its elements do not stand one after another; give np.ascontiguousarray of it")
    return x.reshape(-1)


def _refuse_read_only(x: Array, name: str) -> None:
    if not x.flags.writeable:
        raise Invalid(f"{name}: it cannot be written to; give a copy")


def _result_array(out: Array | None, shape: tuple[int, ...], expected: Array) -> Array:
    return np.empty(shape, expected.dtype) if out is None else out


def _check_target(out: Array, size: int, dtype: np.dtype[Any]) -> Array:
    """Return a flat view of an array that can take a result of this size and type."""
    elements = _flatten_array(out, "out")
    _refuse_read_only(elements, "out")
    if len(elements) != size or elements.dtype != dtype:
        raise Invalid(f"out: has {len(elements)} elements of {elements.dtype}, needed are {size} of {dtype}")
    return elements


def _in_place(block: Array, array: Array, offset: int, name: str) -> bool:
    """Return whether `block` is the memory of `array` from element `offset` on; Invalid if they overlap otherwise.

    `name`: what the block must be for a call in place, for the error.
    """
    # Three cases: disjoint, exactly the expected block, or a wrong overlap.
    block_address, array_address = address(block), address(array)
    if not len(block) or block_address >= array_address + array.nbytes or array_address >= block_address + block.nbytes:
        return False
    if block_address != array_address + offset * array.itemsize:
        raise Invalid(f"x and out overlap; for a call in place the one is {name}, else give separate arrays")
    return True


# ---- over MPI ----

_NARROW = ("int8", "int16", "uint8", "uint16")  # Open MPI's vectors add these with saturation; C wraps around
_TYPES = {
    "int32": "INT32_T", "uint32": "UINT32_T", "int64": "INT64_T", "uint64": "UINT64_T", "float32": "FLOAT",
    "float64": "DOUBLE",
}  # fmt: skip
_OPERATORS = {"sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


def _serve_over_mpi(group: Any, table: Any, compiler: str, timeout: float) -> Serving:
    """Start serving the processes of a communicator, two or more. Collective."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world_ranks = MPI.Group.Translate_ranks(group.group, list(range(group.size)), world.group)

    def exchange(text: str) -> Sequence[str]:
        texts: list[str] = group.allgather(text)
        return texts

    def engine() -> Engine:
        return Engine(library("mpi", compiler))

    processes = Processes(
        group.rank, group.size, exchange, places=world_ranks, job_size=world.size, timeout=timeout
    )  # fmt: skip
    # fill=False: calls without a page go to the MPI library
    return start_serving(processes, table_or_auto(table), engine, lambda: _DuplicateSetup(group), fill=False)


class _DuplicateSetup:
    """Set up the engine's connections (a `Wire`; see group_start.WireSetup) over a duplicate of a communicator.

    Its texts are empty, as MPI has connected the processes already."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def offer(self, engine: Engine | None) -> str:
        return ""

    def answer(self, engine: Engine, offers: Sequence[str]) -> str:
        return ""

    def connect(self, engine: Engine, answers: Sequence[str]) -> Wire:
        return engine.mpi(self._group, list(range(self._group.size)), self._group.size)

    def close(self) -> None:
        pass


class MpiLibrary:
    """The MPI library's own collectives, with the types, operators and in-place forms of the engine."""

    def __init__(self, mpi: Any, group: Any) -> None:
        self.mpi, self.group = mpi, group

    def run(self, kind: str, unit: int, source: Array | None, target: Array, op: str, root: int) -> None:
        """Make the call; without a source it is in place, as the engine defines it."""
        if not unit:  # the call is empty at all processes
            return
        if kind in ("allreduce", "reduce", "reducescatter"):
            self._combine_by_mpi(kind, unit, source, target, op, root)
        else:
            self._move_by_mpi(kind, unit, source, target, root)

    def _combine_by_mpi(self, kind: str, unit: int, source: Array | None, target: Array, op: str, root: int) -> None:
        """Combine in the accumulator type, then round once to the type of `target`."""
        operand = target if source is None else source
        # the accumulator: a wider type in which the values are combined
        wide = np.dtype(np.int32) if target.dtype.name in _NARROW else accumulator(target.dtype)
        # In place MPI must not read the buffer that it writes: copy unless the conversion does already.
        operand = operand.astype(wide) if wide != target.dtype else operand.copy() if source is None else operand
        has_result = kind != "reduce" or self.group.rank == root
        result = np.empty(unit if has_result else 0, wide)
        send, receive, mpi_op = (
            self._typed_buffer(operand),
            self._typed_buffer(result),
            getattr(self.mpi, _OPERATORS[op]),
        )
        if kind == "allreduce":
            self.group.Allreduce(send, receive, mpi_op)
        elif kind == "reduce":
            self.group.Reduce(send, receive if has_result else None, mpi_op, root)
        else:
            self.group.Reduce_scatter_block(send, receive, mpi_op)
        if not has_result:
            return
        with np.errstate(all="ignore"):
            rounded = result.astype(target.dtype)
            if op == "avg":
                # as in the engine: integer sums wrap around before they are divided; others stay wide
                total = rounded if wide.kind in "iu" else result
                rounded = average(total, self.group.size).astype(target.dtype)
        if kind == "reducescatter" and source is None:
            target = self._own_block(target, unit)
        target[:] = rounded

    def _move_by_mpi(self, kind: str, unit: int, source: Array | None, target: Array, root: int) -> None:
        """Make a call that only moves data, as bytes, whose MPI types need no conversion.

        Without a source `target` is the largest buffer: of scatter the input of the root, else the output."""
        at_root, mpi, group = self.group.rank == root, self.mpi, self.group
        if source is None and kind == "alltoall":  # MPI wants it in place at all processes, or at none
            source = target.copy()
        elif source is None and kind == "allgather":
            source = self._own_block(target, unit).copy()
        send = mpi.IN_PLACE if source is None else self._byte_buffer(source)
        receive = self._byte_buffer(target)
        if kind == "broadcast":
            group.Bcast(receive, root)
        elif kind == "allgather":
            group.Allgather(send, receive)
        elif kind == "gather":
            group.Gather(send, receive if at_root else None, root)
        elif kind == "scatter" and at_root:
            group.Scatter(receive if source is None else send, mpi.IN_PLACE if source is None else receive, root)
        elif kind == "scatter":
            group.Scatter(None, receive, root)
        else:
            group.Alltoall(send, receive)

    def _typed_buffer(self, data: Array) -> Any:
        return [data, getattr(self.mpi, _TYPES[data.dtype.name])]

    def _byte_buffer(self, data: Array) -> Any:
        return [data.view(np.uint8), self.mpi.BYTE]

    def _own_block(self, data: Array, unit: int) -> Array:
        return data[self.group.rank * unit : (self.group.rank + 1) * unit]
