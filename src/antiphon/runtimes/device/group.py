"""Ranks of a group on devices: their memory, and calls by tables. All are in this process, or each process has some."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Invalid, TimedOut, Unsupported
from antiphon.lower.device.table import Table
from antiphon.runtimes.device.functions import Device
from antiphon.runtimes.device.memory import Array, Memory, Tell
from antiphon.runtimes.device.plans import DevicePlan, handles_of, kernel_type
from antiphon.runtimes.engine.native import OPERATORS

CALLS = 2**36  # are counted in so many numbers, and begin again at 0
_CALL = 28  # bits of a signal below that number
_PLACES, _LENGTHS = np.dtype(np.uintp), np.dtype(np.int64)
_STOPPED = 2  # of ad_graph_counted
ONCE = "this table uses scratch again for other data: it runs in one lane and one round"
# How a call is made: one kernel for all of it, or by the host: a kernel for each step, or copies for what is put, or
# such through memory of the host.
WAYS = ("kernel", "steps", "copies", "staged")


class Group(Memory):
    """Ranks with `blocks` blocks of `threads` threads each, which wait for calls. `call`: the number of the first.

    `tell`: where ranks are in several processes: gives every process what each has told, in any order (as allgather of
    mpi4py does); `mine` are then the ranks of this one. All processes make the same calls of a group, in one order.
    """

    def __init__(
        self, device: Device, ranks: int, blocks: int = 4, threads: int = 1, call: int = 0, *,
        mine: Sequence[int] | None = None, tell: Tell | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, ranks, mine, tell)
        self.blocks, self.threads, self.number = blocks, threads, call
        self._boxes = False
        for rank in self.mine:
            handle = device.call.ad_rank_new(rank, ranks, blocks, threads)
            if not handle:
                raise Unsupported(f"rank {rank} of {ranks}, with {blocks} blocks of {threads} threads: {device.why()}")
            self.handles[rank] = handle
        self._ranks, self._failed = handles_of(self.handles), (c_int * len(self.handles))()
        before = np.full(blocks * ranks, ((call - 1) % CALLS) << _CALL, np.uint64)
        for rank, signals in enumerate(self.everywhere(dict.fromkeys(self.mine, before))):
            for handle in self.handles.values():
                device.call.ad_rank_signals(handle, rank, signals)

    def plan(self, tables: Sequence[Table]) -> DevicePlan:
        """In all processes: the first by packets needs boxes that all reach."""
        if len(tables) != self.ranks:
            raise Invalid(f"tables of {len(tables)} ranks, for {self.ranks}")
        if any(one.packets for one in tables) and not self._boxes:
            self._boxes = True
            empty = np.zeros(self.device.call.ad_box_bytes(), np.uint8)
            for rank, box in enumerate(self.everywhere(dict.fromkeys(self.mine, empty))):
                for handle in self.handles.values():
                    self.device.call.ad_rank_box(handle, rank, box)
        return DevicePlan(self.device, self.handles, tables)

    def run(  # noqa: PLR0913
        self, plan: DevicePlan, unit: int, inputs: Sequence[Array] | None, outputs: Sequence[Array], op: str = "sum", *,
        lanes: int = 1, rounds: int = 1, timeout: float = 0.0, way: str = "kernel", joined: bool = False,
    ) -> None:  # fmt: skip
        """One call of all ranks, which are in this process, on copies of these arrays; without inputs it is in place.
        TimedOut where `timeout` seconds were not enough. `way`: of WAYS. `joined`: in memory that switches know."""
        dtype = outputs[0].dtype
        try:
            scratch = [np.empty(plan.scratch(rank, unit), dtype) for rank in range(self.ranks)]
        except (MemoryError, ValueError):
            raise Unsupported(f"there is no memory for its scratch where a unit has {unit} elements") from None
        where, lengths = np.zeros((self.ranks, 3), np.uintp), np.zeros((self.ranks, 3), np.int64)
        with self.for_a_while():
            for place, arrays in ((INPUT, inputs or []), (OUTPUT, outputs), (SCRATCH, scratch)):
                alike = self.joined(arrays) if joined and arrays else []
                for rank, one in enumerate(arrays):
                    found = alike[rank] if joined else self.memory(rank, one)
                    where[rank, place], lengths[rank, place] = found, one.size
            if way == "kernel":
                self.go(plan, unit, where, lengths, dtype, op, lanes=lanes, rounds=rounds, timeout=timeout)
            else:
                self.go_by_host(plan, unit, where, lengths, dtype, op, lanes=lanes, way=way, timeout=timeout)
            for rank, one in enumerate(outputs):
                self.fetch(rank, int(where[rank, OUTPUT]), one)

    def go(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, rounds: int = 1, timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """One call of the ranks of this process; input, output and scratch of all ranks are there, with so many
        elements."""
        places = self._held(plan, where, lengths, lanes * rounds)
        number, self.number = self.number % CALLS, self.number + 1
        code = self.device.call.ad_start(
            len(self.handles), self._ranks, plan.every, number, unit, kernel_type(dtype), OPERATORS[op], lanes, rounds,
            *places,
        )  # fmt: skip
        if code:
            raise Invalid(f"rank {list(self.handles)[code - 1]}: {self.device.why()}")
        self._await(timeout)

    def _held(
        self, plan: DevicePlan, where: NDArray[np.uintp], lengths: NDArray[np.int64], slices: int = 1
    ) -> tuple[int, int]:  # fmt: skip
        """The addresses of both; refuses what this group cannot call, or not in so many slices."""
        if plan.ranks is not self.handles:
            raise Invalid("this plan is one of another group")
        for one, kind in ((where, _PLACES), (lengths, _LENGTHS)):
            if one.shape != (self.ranks, 3) or one.dtype != kind or not one.flags.c_contiguous:
                raise Invalid(f"{self.ranks} ranks have 3 places and 3 lengths each, as uintp and int64")
        if not plan.sliced and slices > 1:
            raise Unsupported(ONCE)
        return where.ctypes.data, lengths.ctypes.data

    def _await(self, timeout: float) -> None:
        """Until all ranks of this process are through."""
        if self.device.call.ad_wait(len(self.handles), self._ranks, timeout, self._failed):
            failed = [rank for rank, code in zip(self.handles, self._failed, strict=True) if code]
            raise TimedOut(f"ranks {failed}: {self.device.why()} ({timeout} seconds)")

    def capture(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, rounds: int = 1,
    ) -> Captured:  # fmt: skip
        """A call as for `go`, which is not made: to be made again and again on the same memory, in turn with others. On
        GPUs it is a graph of theirs. All processes capture the same."""
        places = self._held(plan, where, lengths, lanes * rounds)
        found = self.device.call.ad_graph_new(
            len(self.handles), self._ranks, plan.every, unit, kernel_type(dtype), OPERATORS[op], lanes, rounds, *places,
        )  # fmt: skip
        if not found:
            raise Invalid(f"this call cannot be captured: {self.device.why()}")
        return Captured(self, plan, found)

    def go_by_host(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, way: str = "steps", timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """The same step by step: every step a kernel of `lanes` blocks, or what is put copies (`way`). Among the
        ranks of this process no signal is waited for within a kernel, so that nothing can hang; others may make the
        call their way, in one lane and one round."""
        places = self._held(plan, where, lengths)
        number = self.number % CALLS
        self.number += self._tell is not None  # they hear of it
        code = self.device.call.ad_by_host(
            len(self.handles), self._ranks, plan.every, number, unit, kernel_type(dtype), OPERATORS[op], lanes,
            WAYS.index(way) - 1, *places, timeout,
        )  # fmt: skip
        if code < 0:
            raise TimedOut(f"ranks {self.mine}: {self.device.why()} ({timeout} seconds)")
        if code:
            raise Invalid(self.device.why())

    def close(self) -> None:
        """In all processes: nobody gives memory back that another may still reach."""
        if self._tell is not None and self.handles:
            self._tell(b"")
        self._close()

    def _close(self) -> None:
        self._let_go()
        while self.handles:
            self.device.call.ad_rank_free(self.handles.popitem()[1])

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close()


class Captured:
    """A call of the ranks of this process, with its memory, as the device has it. Until it is closed, or the group."""

    def __init__(self, group: Group, plan: DevicePlan, handle: int) -> None:
        self._group, self._plan, self._handle = group, plan, handle  # the tables stay where they are

    def replay(self, timeout: float = 0.0) -> None:
        """The next call of the group."""
        group = self._group
        number, group.number = group.number % CALLS, group.number + 1
        if group.device.call.ad_graph_begin(self._handle, number):
            raise Invalid(group.device.why())
        group._await(timeout)

    def count(self) -> None:
        """Before calls on streams of a program: from here on the device counts them."""
        group = self._group
        if group.device.call.ad_graph_count(self._handle, group.number % CALLS):
            raise Invalid(group.device.why())

    def ask(self, streams: Mapping[int, int]) -> None:
        """The next call on streams of a program (as cudaStream_t), one for each rank of this process; of ranks on one
        device that of the first. Nothing but kernels is asked for, and nothing waited for: so a program may capture it
        in a graph of its own, and make that again and again. Between `count` and `counted` the group makes no
        others."""
        group = self._group
        given = (c_void_p * len(group.handles))(*(streams[rank] for rank in group.handles))
        if group.device.call.ad_graph_ask(self._handle, given):
            raise Invalid(group.device.why())

    def counted(self) -> int:
        """Once these streams are through: how many calls they made, behind which the group goes on. TimedOut where
        they were stopped; Invalid where some rank made fewer than others: then it goes on behind the last of all."""
        group, found = self._group, c_uint64(self._group.number % CALLS)
        code = group.device.call.ad_graph_counted(self._handle, ctypes.byref(found))
        many = (found.value - group.number) % CALLS
        group.number += many
        if code:
            raise (TimedOut if code == _STOPPED else Invalid)(group.device.why())
        return many

    def stop(self) -> None:
        """By any thread, a timer above all: calls on streams of a program that wait for what does not come end, and so
        do those behind them, until `count` is told again. What they were to write is not whole. On a GPU all else that
        runs there by this package ends, too."""
        self._group.device.call.ad_graph_stop(self._handle)

    def close(self) -> None:
        if self._handle:
            self._group.device.call.ad_graph_free(self._handle)
            self._handle = 0
