"""Groups of ranks on devices, and calls by tables; a process has all ranks of a group, or some of them.

A table (lower/device) lists the operations of a rank for any size; `DevicePlan` holds those of a group on the device.

    group = Group(device, ranks)
    plan = group.plan(tables(schedule))
    group.run(plan, unit, inputs, outputs)    # NumPy arrays, copied to the device and back; `go`: on device memory

A call binds the tables to `unit` (elements per weight 1 of a block) and to buffer addresses, launches one cooperative
kernel per device and waits for its stream. Calls are numbered, and signals carry the number, so that no signal is ever
reset. `Captured` is such a call recorded as a CUDA graph. With ranks in several processes, handles to memory travel by
`tell`, an allgather of bytes. `device.call` is the C library: device.h says what its functions ad_... do.
"""

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
from antiphon.runtimes.engine.native import OPERATORS, type_number


def handles_of(rank_handles: Mapping[int, int]) -> ctypes.Array[c_void_p]:
    """Return the handles (the values) in their order as an array for device.h."""
    return (c_void_p * len(rank_handles))(*rank_handles.values())


def kernel_type(dtype: np.dtype[Any]) -> int:
    """Return the number by which the kernel knows a data type; it has no float8."""
    if dtype.name.startswith("float8"):
        raise Unsupported(f"the kernel for GPUs does not support {dtype.name}; use float16 or bfloat16")
    return type_number(dtype)


class DevicePlan:
    """The tables of a group, loaded on the device for the ranks of this process.

    `ranks`: by rank its handle (ad_rank_new), the dictionary of the group itself. `tables`: of all ranks. `handles`: by
    rank the handle of its loaded table. `streams`: the most of any rank. `sliced`: whether all ranks may cut a call
    into slices (`Table.sliced`)."""

    def __init__(self, device: Device, ranks: Mapping[int, int], tables: Sequence[Table]) -> None:
        self._device, self.ranks = device, ranks
        self.streams, self.sliced = max(table.streams for table in tables), all(table.sliced for table in tables)
        self.packets = any(table.packets for table in tables)
        self.handles: dict[int, int] = {}
        for rank, rank_handle in ranks.items():
            words = np.ascontiguousarray(tables[rank].words, np.int64)
            handle = self._device.call.ad_plan_new(rank_handle, words.ctypes.data, len(words))
            if not handle:
                raise Invalid(f"the device table of rank {rank}: {self._device.why()}")
            self.handles[rank] = handle
        self.handle_array = handles_of(self.handles)

    def fits(self, unit: int, dtype: np.dtype[Any]) -> bool:
        """Return whether the plan's packets fit into the boxes (memory for incoming packets) of these ranks."""
        # a call has half a box: calls of odd and even numbers alternate
        library, box_bytes = self._device.call, self._device.call.ad_box_bytes() // 2
        return all(
            library.ad_plan_box(handle, unit, kernel_type(dtype)) <= box_bytes for handle in self.handles.values()
        )

    def scratch(self, rank: int, unit: int) -> int:
        """Return the elements of scratch at a rank, for `unit` elements per weight."""
        return int(self._device.call.ad_plan_scratch(self.handles[rank], unit))

    def __del__(self) -> None:
        for handle in getattr(self, "handles", {}).values():
            self._device.call.ad_plan_free(handle)


CALLS = 2**36  # call numbers wrap around at this: a signal has 64 - 28 bits for them
_CALL_SHIFT = 28  # CALL_BITS of signals.h: bits of a signal below the call number
_ADDRESS_TYPE, _LENGTH_TYPE = np.dtype(np.uintp), np.dtype(np.int64)  # of the arrays `where` and `lengths` of calls
_STOPPED = 2  # result of ad_graph_counted
_NOT_SLICED = "this table uses scratch again for other data: it runs in one lane and one round"
# How a call is made: by one kernel; or by the host, with a kernel for each step, or with copies for puts (writes to
# other ranks), or with copies through host memory.
WAYS = ("kernel", "steps", "copies", "staged")


class Group(Memory):
    """Ranks with `blocks` thread blocks of `threads` threads each. `call`: the number of the first call.

    If the ranks are in several processes, `own_ranks` are those of this process (None: all), and `tell` (kept as
    `_allgather`) sends a message and returns those of all processes in any order (like mpi4py's allgather). All
    processes make the same calls of a group in one order.
    """

    def __init__(
        self, device: Device, ranks: int, blocks: int = 4, threads: int = 1, call: int = 0, *,
        own_ranks: Sequence[int] | None = None, tell: Tell | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, ranks, own_ranks, tell)
        self.blocks, self.threads, self.number = blocks, threads, call  # number: that of the next call
        self._has_boxes = False
        for rank in self.own_ranks:
            handle = device.call.ad_rank_new(rank, ranks, blocks, threads)
            if not handle:
                raise Unsupported(f"rank {rank} of {ranks}, with {blocks} blocks of {threads} threads: {device.why()}")
            self.handles[rank] = handle
        self._handle_array = handles_of(self.handles)
        self._failed = (c_int * len(self.handles))()  # by rank of this process, filled by ad_wait
        # `everywhere` copies arrays to where all ranks may access them, and returns the address of every rank's.
        # Signals start as if the previous call had completed.
        before = np.full(blocks * ranks, ((call - 1) % CALLS) << _CALL_SHIFT, np.uint64)
        for rank, signals in enumerate(self.everywhere(dict.fromkeys(self.own_ranks, before))):
            for handle in self.handles.values():
                device.call.ad_rank_signals(handle, rank, signals)

    def plan(self, tables: Sequence[Table]) -> DevicePlan:
        """Load tables. All processes do this together, as the first plan with packets allocates boxes for all ranks."""
        if len(tables) != self.ranks:
            raise Invalid(f"tables of {len(tables)} ranks, for {self.ranks}")
        # all processes load the same plans, so all get here together
        if any(table.packets for table in tables) and not self._has_boxes:
            self._has_boxes = True
            empty = np.zeros(self.device.call.ad_box_bytes(), np.uint8)
            for rank, box in enumerate(self.everywhere(dict.fromkeys(self.own_ranks, empty))):
                for handle in self.handles.values():
                    self.device.call.ad_rank_box(handle, rank, box)
        return DevicePlan(self.device, self.handles, tables)

    def run(  # noqa: PLR0913
        self, plan: DevicePlan, unit: int, inputs: Sequence[Array] | None, outputs: Sequence[Array], op: str = "sum", *,
        lanes: int = 1, rounds: int = 1, timeout: float = 0.0, way: str = "kernel", joined: bool = False,
    ) -> None:  # fmt: skip
        """Make a call of a group whose ranks are all in this process. Without `inputs` it is in place.

        `inputs`, `outputs`: an array per rank, copied to the device and back. The data are cut into `lanes` slices
        for thread blocks in parallel, times `rounds` one after another. TimedOut after `timeout` seconds (0: no limit).
        `way`: one of WAYS. `joined`: use memory with a multicast address."""
        dtype = outputs[0].dtype
        try:
            scratch = [np.empty(plan.scratch(rank, unit), dtype) for rank in range(self.ranks)]
        except (MemoryError, ValueError):
            raise Unsupported(f"there is no memory for its scratch where a unit has {unit} elements") from None
        # addresses and elements by [rank, buffer], as for `go`
        where, lengths = np.zeros((self.ranks, 3), np.uintp), np.zeros((self.ranks, 3), np.int64)
        with self.for_a_while():  # memory that is allocated within is freed at the end
            for buffer, arrays in ((INPUT, inputs or []), (OUTPUT, outputs), (SCRATCH, scratch)):
                joint_addresses = self.joined(arrays) if joined and arrays else []
                for rank, array in enumerate(arrays):
                    address = joint_addresses[rank] if joined else self.memory(rank, array)
                    where[rank, buffer], lengths[rank, buffer] = address, array.size
            if way == "kernel":
                self.go(plan, unit, where, lengths, dtype, op, lanes=lanes, rounds=rounds, timeout=timeout)
            else:
                self.go_by_host(plan, unit, where, lengths, dtype, op, lanes=lanes, way=way, timeout=timeout)
            for rank, array in enumerate(outputs):
                self.fetch(rank, int(where[rank, OUTPUT]), array)

    def go(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, rounds: int = 1, timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """Make a call of the ranks of this process, and wait for its end. `where`, `lengths`: addresses (valid in this
        process) and elements by [rank, buffer], for the buffers INPUT, OUTPUT and SCRATCH of all ranks of the group."""
        places = self._check_call(plan, where, lengths, lanes * rounds)
        # signals encode the number modulo CALLS
        number, self.number = self.number % CALLS, self.number + 1
        code = self.device.call.ad_start(
            len(self.handles), self._handle_array, plan.handle_array, number, unit, kernel_type(dtype), OPERATORS[op],
            lanes, rounds, *places,
        )  # fmt: skip
        if code:  # the number, from 1, of a rank of this process that cannot make the call
            raise Invalid(f"rank {list(self.handles)[code - 1]}: {self.device.why()}")
        self._await_ranks(timeout)

    def _check_call(
        self, plan: DevicePlan, where: NDArray[np.uintp], lengths: NDArray[np.int64], slices: int = 1
    ) -> tuple[int, int]:  # fmt: skip
        """Return the addresses of `where` and `lengths` for C. Refuse plans of other groups, and unsupported slices."""
        if plan.ranks is not self.handles:
            raise Invalid("this plan is one of another group; make one by plan() of this group")
        for array, kind in ((where, _ADDRESS_TYPE), (lengths, _LENGTH_TYPE)):
            if array.shape != (self.ranks, 3) or array.dtype != kind or not array.flags.c_contiguous:
                raise Invalid(f"{self.ranks} ranks have 3 places and 3 lengths each, as uintp and int64")
        if not plan.sliced and slices > 1:
            raise Unsupported(_NOT_SLICED)
        return where.ctypes.data, lengths.ctypes.data

    def _await_ranks(self, timeout: float) -> None:
        """Wait until all ranks of this process are done."""
        if self.device.call.ad_wait(len(self.handles), self._handle_array, timeout, self._failed):
            failed = [rank for rank, code in zip(self.handles, self._failed, strict=True) if code]
            raise TimedOut(f"ranks {failed}: {self.device.why()} ({timeout} seconds)")

    def capture(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, rounds: int = 1,
    ) -> Captured:  # fmt: skip
        """Capture a call like that of `go`, to be replayed on the same memory, in any order with others.

        On GPUs it is a graph. All processes capture the same call."""
        places = self._check_call(plan, where, lengths, lanes * rounds)
        handle = self.device.call.ad_graph_new(
            len(self.handles), self._handle_array, plan.handle_array, unit, kernel_type(dtype), OPERATORS[op], lanes,
            rounds, *places,
        )  # fmt: skip
        if not handle:
            raise Invalid(f"this call cannot be captured: {self.device.why()}")
        return Captured(self, plan, handle)

    def go_by_host(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, way: str = "steps", timeout: float = 0.0,
    ) -> None:  # fmt: skip
        """Make the call of `go` step by step: each step is a kernel of `lanes` blocks, or puts are copies (`way`).

        Kernels do not wait for signals of ranks of this process, so nothing can hang. Other processes may make the same
        call in another way, provided that all use one lane and one round.
        """
        # The lanes share the work of one step, and the next step begins after it: any table may have several.
        places = self._check_call(plan, where, lengths)
        number = self.number % CALLS
        self.number += self._allgather is not None  # only other processes need signals, which carry the number
        code = self.device.call.ad_by_host(
            len(self.handles), self._handle_array, plan.handle_array, number, unit, kernel_type(dtype), OPERATORS[op],
            lanes, WAYS.index(way) - 1, *places, timeout,  # numbered from 0 without "kernel", as in device.h
        )  # fmt: skip
        if code < 0:
            raise TimedOut(f"ranks {self.own_ranks}: {self.device.why()} ({timeout} seconds)")
        if code:
            raise Invalid(self.device.why())

    def close(self) -> None:
        """Close the group, in all processes: no memory is freed while another process may access it."""
        # an empty exchange is a barrier
        if self._allgather is not None and self.handles:
            self._allgather(b"")
        self._close_handles()

    def _close_handles(self) -> None:
        self._free_all()
        while self.handles:
            _, handle = self.handles.popitem()
            self.device.call.ad_rank_free(handle)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_handles()


class Captured:
    """A captured call of the ranks of this process, with its memory. Valid until it or the group is closed."""

    def __init__(self, group: Group, plan: DevicePlan, handle: int) -> None:
        self._group, self._plan, self._handle = group, plan, handle  # _plan: keeps the tables alive

    def replay(self, timeout: float = 0.0) -> None:
        """Make the captured call as the next call of the group."""
        group = self._group
        number, group.number = group.number % CALLS, group.number + 1
        if group.device.call.ad_graph_begin(self._handle, number):
            raise Invalid(group.device.why())
        group._await_ranks(timeout)

    def count(self) -> None:
        """Have the device number the calls on the application's streams from now on, from the group's next number."""
        group = self._group
        if group.device.call.ad_graph_count(self._handle, group.number % CALLS):
            raise Invalid(group.device.why())

    def ask(self, streams: Mapping[int, int]) -> None:
        """Enqueue the call on the application's streams: by rank of this process a cudaStream_t.

        Ranks on one device use the stream of the first. It only launches kernels and waits for nothing: so an
        application may capture it in its own graph and replay that. Between `count` and `counted` the group makes no
        other calls."""
        group = self._group
        handles = (c_void_p * len(group.handles))(*(streams[rank] for rank in group.handles))
        if group.device.call.ad_graph_enqueue(self._handle, handles):
            raise Invalid(group.device.why())

    def counted(self) -> int:
        """Return the number of calls that these streams made, once they are done; the group continues after these.

        TimedOut if they were stopped; Invalid if ranks made different numbers: then the group continues after the
        highest."""
        group, end = self._group, c_uint64(self._group.number % CALLS)
        code = group.device.call.ad_graph_counted(self._handle, ctypes.byref(end))
        calls = (end.value - group.number) % CALLS
        group.number += calls
        if code:
            raise (TimedOut if code == _STOPPED else Invalid)(group.device.why())
        return calls

    def stop(self) -> None:
        """End hanging calls on the application's streams, and those after them, until the next `count`. Any thread may.

        Their outputs are incomplete. On a GPU all other kernels of this package end, too."""
        self._group.device.call.ad_graph_stop(self._handle)

    def close(self) -> None:
        if self._handle:
            self._group.device.call.ad_graph_free(self._handle)
            self._handle = 0
