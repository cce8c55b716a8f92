"""Calls of MPI timed in C: by a plan as under the preload library, or by the MPI library."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_double, c_int32, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.runtimes.engine.native import OPERATORS, Engine, OpenProgram, type_number

Array = NDArray[Any]


class _Call(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("kind", "root", "type", "op", "count")),
        ("send", c_void_p), ("recv", c_void_p),
    ]  # fmt: skip


class MpiCall:
    """One call on buffers of this process. `kind`: the engine's number of the collective; `root`: a process of the
    communicator, -1 where there is none; `count`: elements of a block."""

    def __init__(self, kind: int, root: int, op: str, count: int, source: Array, target: Array) -> None:
        self.buffers = source, target  # kept as long as their addresses
        where = source.ctypes.data, target.ctypes.data
        self.structure = _Call(kind, root, type_number(target.dtype), OPERATORS[op], count, *where)


class MpiCalls:
    """Calls on a copy of a communicator of mpi4py, whose processes are these of `ranks` ranks. All methods are
    collective."""

    def __init__(self, engine: Engine, comm: Any, rank_of: Sequence[int], ranks: int) -> None:
        self.engine = engine
        numbers = np.asarray(rank_of, np.int32)
        self.handle = engine.library.made("ap_measure_open", comm.py2f(), numbers.ctypes.data, ranks)

    def measure(self, program: OpenProgram | None, call: MpiCall, count: int) -> float:
        """Seconds of a call by this program, None: by the MPI library; a barrier precedes each of `count` calls.

        The mean over calls and processes of the time within the call, the same at all processes."""
        seconds = c_double()
        chosen = program.handle if program is not None else None
        self.engine.library.done(
            "ap_measure_calls", self.handle, chosen, byref(call.structure), count, byref(seconds)
        )  # fmt: skip
        return seconds.value

    def close(self) -> None:
        if self.handle:
            self.engine.library.ap_measure_close(self.handle)
        self.handle = 0
