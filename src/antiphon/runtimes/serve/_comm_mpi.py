"""A group of processes that MPI started: the engine over it, and the library's own collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.datatypes import accumulator, average
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine, Wire
from antiphon.runtimes.serve.auto_begin import auto_or
from antiphon.runtimes.serve.group_start import Processes, serve
from antiphon.runtimes.serve.serving import Serving

Array = NDArray[Any]
_NARROW = ("int8", "int16", "uint8", "uint16")  # Open MPI's vectors add these with saturation; C wraps around
_TYPES = {
    "int32": "INT32_T", "uint32": "UINT32_T", "int64": "INT64_T", "uint64": "UINT64_T", "float32": "FLOAT",
    "float64": "DOUBLE",
}  # fmt: skip
_OPERATORS = {"sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


def over_mpi(who: Any, table: Any, compiler: str, timeout: float) -> Serving:
    """Collective over the communicator, of two processes or more."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    places = MPI.Group.Translate_ranks(who.group, list(range(who.size)), world.group)

    def exchange(text: str) -> Sequence[str]:
        found: list[str] = who.allgather(text)
        return found

    def engine() -> Engine:
        return Engine(library("mpi", compiler))

    group = Processes(who.rank, who.size, exchange, places, world.size, timeout=timeout)
    return serve(group, auto_or(table), engine, lambda: _Duplicate(who), fill=False)


class _Duplicate:
    """The way to a wire (group_start) over a duplicate of a communicator."""

    def __init__(self, who: Any) -> None:
        self._who = who

    def tells(self, engine: Engine | None) -> str:
        return ""

    def answers(self, engine: Engine, told: Sequence[str]) -> str:
        return ""

    def wire(self, engine: Engine, answers: Sequence[str]) -> Wire:
        return engine.mpi(self._who, list(range(self._who.size)), self._who.size)

    def close(self) -> None:
        pass


class MpiLibrary:
    """The library's own collectives with the meaning that the engine's have: types, operators, in place."""

    def __init__(self, mpi: Any, who: Any) -> None:
        self.mpi, self.who = mpi, who

    def run(self, kind: str, unit: int, source: Array | None, target: Array, op: str, root: int) -> None:
        """Without a source it is in place, as the engine means it."""
        if not unit:
            return
        if kind in ("allreduce", "reduce", "reducescatter"):
            self._combined(kind, unit, source, target, op, root)
        else:
            self._moved(kind, unit, source, target, root)

    def _combined(self, kind: str, unit: int, source: Array | None, target: Array, op: str, root: int) -> None:
        given = target if source is None else source
        wide = np.dtype(np.int32) if target.dtype.name in _NARROW else accumulator(target.dtype)
        given = given.astype(wide) if wide != target.dtype else given.copy() if source is None else given
        here = kind != "reduce" or self.who.rank == root
        result = np.empty(unit, wide) if here else np.empty(0, wide)
        there, mpi_op = self._typed(result), getattr(self.mpi, _OPERATORS[op])
        if kind == "allreduce":
            self.who.Allreduce(self._typed(given), there, mpi_op)
        elif kind == "reduce":
            self.who.Reduce(self._typed(given), there if here else None, mpi_op, root)
        else:
            self.who.Reduce_scatter_block(self._typed(given), there, mpi_op)
        if not here:
            return
        with np.errstate(all="ignore"):
            done = result.astype(target.dtype)
            if op == "avg":
                done = average(done if wide.kind in "iu" else result, self.who.size).astype(target.dtype)
        if kind == "reducescatter" and source is None:
            target = self._block(target, unit)
        target[:] = done

    def _moved(self, kind: str, unit: int, source: Array | None, target: Array, root: int) -> None:
        here, mpi, who = self.who.rank == root, self.mpi, self.who
        if source is None and kind == "alltoall":  # MPI wants it in place at all processes, or at none
            source = target.copy()
        elif source is None and kind == "allgather":
            source = self._block(target, unit).copy()
        place = mpi.IN_PLACE if source is None else self._bytes(source)
        there = self._bytes(target)
        if kind == "broadcast":
            who.Bcast(there, root)
        elif kind == "allgather":
            who.Allgather(place, there)
        elif kind == "gather":
            who.Gather(place, there if here else None, root)
        elif kind == "scatter" and here:
            who.Scatter(there if source is None else place, mpi.IN_PLACE if source is None else there, root)
        elif kind == "scatter":
            who.Scatter(None, there, root)
        else:
            who.Alltoall(place, there)

    def _typed(self, data: Array) -> Any:
        return [data, getattr(self.mpi, _TYPES[data.dtype.name])]

    def _bytes(self, data: Array) -> Any:
        return [data.view(np.uint8), self.mpi.BYTE]

    def _block(self, data: Array, unit: int) -> Array:
        return data[self.who.rank * unit : (self.who.rank + 1) * unit]
