"""The kernel on threads of this process: all ranks of a group, their memory, and calls by tables."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Invalid, TimedOut, Unsupported
from antiphon.lower.device.table import Table
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import OPERATORS, type_number

Array = NDArray[Any]
LAST_CALL = 2**24  # calls are counted in so many numbers, and begin again at 0


@cache
def _loaded(path: Path) -> Any:
    found = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("ad_rank_new", c_void_p, (c_uint32, c_uint32, c_uint32, c_uint32)),
        ("ad_rank_free", None, (c_void_p,)),
        ("ad_rank_signals", None, (c_void_p, c_uint32, c_void_p)),
        ("ad_plan_new", c_void_p, (c_void_p, c_int64, POINTER(c_char_p))),
        ("ad_plan_free", None, (c_void_p,)),
        ("ad_plan_scratch", c_int64, (c_void_p, c_int64)),
        ("ad_start", c_int,
         (c_void_p, c_void_p, c_uint64, c_int64, c_int, c_int, c_uint32, c_uint32, c_void_p, c_void_p)),
        ("ad_wait", c_int, (c_void_p, c_double)),
    ):  # fmt: skip
        function = getattr(found, name)
        function.restype, function.argtypes = result, list(arguments)
    return found


class DevicePlan:
    """The tables of all ranks, as the kernel has them."""

    def __init__(self, tables: Sequence[Table], compiler: str = "") -> None:
        self._native = _loaded(library("device", compiler))
        self.streams, self.sliced = max(one.streams for one in tables), all(one.sliced for one in tables)
        self.handles: list[int] = []
        for rank, one in enumerate(tables):
            why, words = c_char_p(), np.ascontiguousarray(one.words, np.int64)
            handle = self._native.ad_plan_new(words.ctypes.data, len(words), ctypes.byref(why))
            if not handle:
                raise Invalid(f"the device table of rank {rank}: {(why.value or b'').decode()}")
            self.handles.append(handle)

    def scratch(self, rank: int, unit: int) -> int:
        """Elements of scratch at a rank, where a unit of weight has so many."""
        return int(self._native.ad_plan_scratch(self.handles[rank], unit))

    def __del__(self) -> None:
        for handle in getattr(self, "handles", ()):
            self._native.ad_plan_free(handle)


class Group:
    """Ranks with `blocks` blocks of `threads` threads each, which wait for calls. `call`: the number of the first."""

    def __init__(self, ranks: int, blocks: int = 4, threads: int = 1, compiler: str = "", call: int = 0) -> None:
        self._native, self.ranks, self.blocks, self.call = _loaded(library("device", compiler)), ranks, blocks, call
        self.signals = np.zeros((ranks, blocks * ranks), np.uint64)
        self.signals[:] = ((call - 1) % LAST_CALL) << 40
        self.handles: list[int] = []
        for rank in range(ranks):
            handle = self._native.ad_rank_new(rank, ranks, blocks, threads)
            if not handle:
                raise Unsupported(f"{ranks} ranks of {blocks * threads} threads: no more threads can be started")
            self.handles.append(handle)
            for peer in range(ranks):
                self._native.ad_rank_signals(handle, peer, self.signals[peer].ctypes.data)

    def run(
        self, plan: DevicePlan, unit: int, inputs: Sequence[Array] | None, outputs: Sequence[Array], op: str = "sum", *,
        lanes: int = 1, rounds: int = 1, timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """One call of all ranks; without inputs it is in place. TimedOut where `timeout` seconds were not enough."""
        dtype = outputs[0].dtype
        scratch = [np.empty(plan.scratch(rank, unit), dtype) for rank in range(self.ranks)]
        buffers = np.zeros((self.ranks, 3), np.uintp)
        lengths = np.zeros((self.ranks, 3), np.int64)
        for place, arrays in ((INPUT, inputs or []), (OUTPUT, outputs), (SCRATCH, scratch)):
            for rank, one in enumerate(arrays):
                buffers[rank, place], lengths[rank, place] = one.ctypes.data, one.size
        if not plan.sliced and lanes * rounds > 1:
            raise Unsupported("this table uses scratch again for other data: it runs in one lane and one round")
        call, self.call = self.call % LAST_CALL, self.call + 1
        started: list[int] = []
        for rank, handle in enumerate(self.handles):
            code = self._native.ad_start(
                handle, plan.handles[rank], call, unit, type_number(dtype), OPERATORS[op], lanes, rounds,
                buffers.ctypes.data, lengths.ctypes.data,
            )  # fmt: skip
            if code:
                self._stop(started)
                raise Invalid(
                    f"rank {rank}: a buffer is too short"
                    if code == 1
                    else f"{plan.streams} streams in {lanes} lanes need more than {self.blocks} blocks"
                )
            started.append(handle)
        failed = [rank for rank, handle in enumerate(self.handles) if self._native.ad_wait(handle, timeout)]
        if failed:
            raise TimedOut(f"ranks {failed} were not done within {timeout} seconds")

    def _stop(self, started: Sequence[int]) -> None:
        for handle in started:
            self._native.ad_wait(handle, 1e-9)

    def close(self) -> None:
        while self.handles:
            self._native.ad_rank_free(self.handles.pop())

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
