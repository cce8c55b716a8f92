"""All ranks of a group in this process, on a device: their memory, and calls by tables."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
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
CALLS = 2**36  # are counted in so many numbers, and begin again at 0
_CALL = 28  # bits of a signal below that number
_FUNCTIONS = {  # device.h
    "ad_why": (c_char_p,),
    "ad_rank_new": (c_void_p, c_uint32, c_uint32, c_uint32, c_uint32),
    "ad_rank_free": (None, c_void_p),
    "ad_memory_new": (c_void_p, c_void_p, c_size_t),
    "ad_memory_free": (None, c_void_p, c_void_p),
    "ad_fetch": (c_int, c_void_p, c_void_p, c_void_p, c_size_t),
    "ad_bring": (c_int, c_void_p, c_void_p, c_void_p, c_size_t),
    "ad_copy": (c_int, c_void_p, c_void_p, c_void_p, c_size_t),
    "ad_rank_signals": (None, c_void_p, c_uint32, c_void_p),
    "ad_plan_new": (c_void_p, c_void_p, c_void_p, c_int64),
    "ad_plan_free": (None, c_void_p),
    "ad_plan_scratch": (c_int64, c_void_p, c_int64),
    "ad_start": (c_int, c_void_p, c_void_p, c_uint64, c_int64, c_int, c_int, c_uint32, c_uint32, c_void_p, c_void_p),
    "ad_wait": (c_int, c_void_p, c_double),
}


class Device:
    """What gives the functions of device.h."""

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(self._native, name)
            function.restype, function.argtypes = result, arguments
        self.call = self._native

    def why(self) -> str:
        return (self._native.ad_why() or b"").decode(errors="replace")


device = cache(Device)


def threads(compiler: str = "") -> Device:
    """The kernel on threads of this machine's processor."""
    return device(library("device", compiler))


class Group:
    """Ranks with `blocks` blocks of `threads` threads each, which wait for calls. `call`: the number of the first."""

    def __init__(self, device: Device, ranks: int, blocks: int = 4, threads: int = 1, call: int = 0) -> None:
        self.device, self.ranks, self.blocks, self.number = device, ranks, blocks, call
        self.handles: list[int] = []
        self._memory: list[tuple[int, int]] = []
        for rank in range(ranks):
            handle = device.call.ad_rank_new(rank, ranks, blocks, threads)
            if not handle:
                raise Unsupported(f"rank {rank} of {ranks}, with {blocks} blocks of {threads} threads: {device.why()}")
            self.handles.append(handle)
        before = np.full(blocks * ranks, ((call - 1) % CALLS) << _CALL, np.uint64)
        for rank in range(ranks):
            signals = self.memory(rank, before)
            for handle in self.handles:
                device.call.ad_rank_signals(handle, rank, signals)

    def memory(self, rank: int, values: Array) -> int:
        """Memory of a rank with these values, until the group is closed or it is given back."""
        handle = self.handles[rank]
        found = self.device.call.ad_memory_new(handle, values.nbytes)
        if not found:
            raise Unsupported(f"{values.nbytes} bytes for rank {rank}: {self.device.why()}")
        self._memory.append((handle, int(found)))
        self.bring(rank, int(found), values)
        return int(found)

    def bring(self, rank: int, memory: int, values: Array) -> None:
        if self.device.call.ad_bring(self.handles[rank], memory, values.ctypes.data, values.nbytes):
            raise Unsupported(self.device.why())

    def fetch(self, rank: int, memory: int, into: Array) -> None:
        if self.device.call.ad_fetch(self.handles[rank], into.ctypes.data, memory, into.nbytes):
            raise Unsupported(self.device.why())

    def copy(self, rank: int, to: int, memory: int, nbytes: int) -> None:
        """By the device itself, within the memory of a rank: until it is done."""
        if self.device.call.ad_copy(self.handles[rank], to, memory, nbytes):
            raise Unsupported(self.device.why())

    def plan(self, tables: Sequence[Table]) -> DevicePlan:
        return DevicePlan(self, tables)

    def run(
        self, plan: DevicePlan, unit: int, inputs: Sequence[Array] | None, outputs: Sequence[Array], op: str = "sum", *,
        lanes: int = 1, rounds: int = 1, timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """One call of all ranks on copies of these arrays; without inputs it is in place. TimedOut where `timeout`
        seconds were not enough."""
        kept, dtype = len(self._memory), outputs[0].dtype
        scratch = [np.empty(plan.scratch(rank, unit), dtype) for rank in range(self.ranks)]
        where, lengths = np.zeros((self.ranks, 3), np.uintp), np.zeros((self.ranks, 3), np.int64)
        try:
            for place, arrays in ((INPUT, inputs or []), (OUTPUT, outputs), (SCRATCH, scratch)):
                for rank, one in enumerate(arrays):
                    where[rank, place], lengths[rank, place] = self.memory(rank, one), one.size
            self.go(plan, unit, where, lengths, dtype, op, lanes=lanes, rounds=rounds, timeout=timeout)
            for rank, one in enumerate(outputs):
                self.fetch(rank, int(where[rank, OUTPUT]), one)
        finally:
            self._give_back(kept)

    def go(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, rounds: int = 1, timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """One call of all ranks, whose input, output and scratch are there, with so many elements."""
        if not plan.sliced and lanes * rounds > 1:
            raise Unsupported("this table uses scratch again for other data: it runs in one lane and one round")
        number, self.number = self.number % CALLS, self.number + 1
        begun: list[int] = []
        for rank, handle in enumerate(self.handles):
            if self.device.call.ad_start(
                handle, plan.handles[rank], number, unit, type_number(dtype), OPERATORS[op], lanes, rounds,
                where.ctypes.data, lengths.ctypes.data,
            ):  # fmt: skip
                why = self.device.why()
                for one in begun:
                    self.device.call.ad_wait(one, 1e-9)
                raise Invalid(f"rank {rank}: {why}")
            begun.append(handle)
        failed = [rank for rank, handle in enumerate(self.handles) if self.device.call.ad_wait(handle, timeout)]
        if failed:
            raise TimedOut(f"ranks {failed}: {self.device.why()} ({timeout} seconds)")

    def _give_back(self, kept: int = 0) -> None:
        while len(self._memory) > kept:
            self.device.call.ad_memory_free(*self._memory.pop())

    def close(self) -> None:
        self._give_back()
        while self.handles:
            self.device.call.ad_rank_free(self.handles.pop())

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class DevicePlan:
    """The tables of all ranks of a group, as its device has them."""

    def __init__(self, group: Group, tables: Sequence[Table]) -> None:
        self._device = group.device
        self.streams, self.sliced = max(one.streams for one in tables), all(one.sliced for one in tables)
        self.handles: list[int] = []
        for rank, one in enumerate(tables):
            words = np.ascontiguousarray(one.words, np.int64)
            handle = self._device.call.ad_plan_new(group.handles[rank], words.ctypes.data, len(words))
            if not handle:
                raise Invalid(f"the device table of rank {rank}: {self._device.why()}")
            self.handles.append(handle)

    def scratch(self, rank: int, unit: int) -> int:
        """Elements of scratch at a rank, where a unit of weight has so many."""
        return int(self._device.call.ad_plan_scratch(self.handles[rank], unit))

    def __del__(self) -> None:
        for handle in getattr(self, "handles", ()):
            self._device.call.ad_plan_free(handle)
