"""Ranks of a group on devices: their memory, and calls by tables. All are in this process, or each process has some."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Invalid, TimedOut, Unsupported
from antiphon.lower.device.table import Table
from antiphon.runtimes.device.functions import Device
from antiphon.runtimes.engine.native import OPERATORS, type_number

Array = NDArray[Any]
Tell = Callable[[bytes], Sequence[bytes]]  # what this process tells all others, and what each of them told
CALLS = 2**36  # are counted in so many numbers, and begin again at 0
_CALL = 28  # bits of a signal below that number
_TOKEN = 64  # bytes that stand for memory
ONCE = "this table uses scratch again for other data: it runs in one lane and one round"
# How a call is made: one kernel for all of it, or by the host: a kernel for each step, or copies for what is put, or
# such through memory of the host.
WAYS = ("kernel", "steps", "copies", "staged")


class Group:
    """Ranks with `blocks` blocks of `threads` threads each, which wait for calls. `call`: the number of the first.

    `tell`: where ranks are in several processes: gives every process what each has told, in any order (as allgather of
    mpi4py does); `mine` are then the ranks of this one. All processes make the same calls of a group, in one order.
    """

    def __init__(
        self, device: Device, ranks: int, blocks: int = 4, threads: int = 1, call: int = 0, *,
        mine: Sequence[int] | None = None, tell: Tell | None = None,
    ) -> None:  # fmt: skip
        self.device, self.ranks, self.blocks, self.number = device, ranks, blocks, call
        self.mine, self._tell = list(range(ranks) if mine is None else mine), tell
        self.handles: dict[int, int] = {}
        self._boxes = False
        self._joined: list[int] = []
        self._memory: list[tuple[int, int]] = []
        self._reached: list[int] = []
        if tell is None and self.mine != list(range(ranks)):
            raise Invalid("ranks that are not in this process need `tell` to be reached")
        for rank in self.mine:
            handle = device.call.ad_rank_new(rank, ranks, blocks, threads)
            if not handle:
                raise Unsupported(f"rank {rank} of {ranks}, with {blocks} blocks of {threads} threads: {device.why()}")
            self.handles[rank] = handle
        before = np.full(blocks * ranks, ((call - 1) % CALLS) << _CALL, np.uint64)
        for rank, signals in enumerate(self.everywhere(dict.fromkeys(self.mine, before))):
            for handle in self.handles.values():
                device.call.ad_rank_signals(handle, rank, signals)

    def everywhere(self, values: Mapping[int, Array]) -> list[int]:
        """Memory of every rank as this process sees it: of its own ranks with these values."""
        if self._tell is None:
            return [self.memory(rank, values[rank]) for rank in range(self.ranks)]
        own, told = dict[int, int](), b""
        for rank in self.mine:
            token = ctypes.create_string_buffer(_TOKEN)
            memory = self.device.call.ad_memory_shared(self.handles[rank], values[rank].nbytes, token)
            own[rank] = self._kept(rank, memory, values[rank])
            told += rank.to_bytes(8, "little") + token.raw
        return self._reach(own, self._tell(told))

    def _reach(self, known: dict[int, int], told: Sequence[bytes]) -> list[int]:
        """Memory of the ranks of other processes, too."""
        size = 8 + _TOKEN
        for data in told:
            for at in range(0, len(data), size):
                rank = int.from_bytes(data[at : at + 8], "little")
                if rank in known:
                    continue
                memory = self.device.call.ad_memory_reached(self._any, data[at + 8 : at + size])
                if not memory:
                    raise Unsupported(f"memory of rank {rank}: {self.device.why()}")
                self._reached.append(int(memory))
                known[rank] = int(memory)
        if sorted(known) != list(range(self.ranks)):
            raise Invalid(f"ranks {sorted(known)} told of their memory, of {self.ranks} ranks")
        return [known[rank] for rank in range(self.ranks)]

    @property
    def _any(self) -> int:
        return self.handles[self.mine[0]]

    def memory(self, rank: int, values: Array) -> int:
        """Memory of a rank with these values, until the group is closed or it is given back."""
        return self._kept(rank, self.device.call.ad_memory_new(self.handles[rank], values.nbytes), values)

    def _kept(self, rank: int, found: int | None, values: Array) -> int:
        if not found:
            raise Unsupported(f"{values.nbytes} bytes for rank {rank}: {self.device.why()}")
        self._memory.append((self.handles[rank], int(found)))
        self.bring(rank, int(found), values)
        return int(found)

    def joined(self, values: Sequence[Array] | Mapping[int, Array]) -> list[int]:
        """Memory of all ranks that lies alike at all of them: what switches do, they do there. Until the group is
        closed or it is given back. Unsupported where there are no such switches. Of several processes each gives the
        values of its ranks."""
        if self._tell is not None:
            mine = {rank: values[rank] for rank in self.mine}
            try:
                return self._joined_everywhere(mine)
            except Unsupported:
                self.device.call.ad_joint_dropped()
                raise
        assert not isinstance(values, Mapping)
        found, ranks = (c_void_p * self.ranks)(), (c_void_p * self.ranks)(*self.handles.values())
        if self.device.call.ad_joint_new(self.ranks, ranks, max(one.nbytes for one in values), found):
            raise Unsupported(self.device.why())
        self._joined.append(int(found[0] or 0))
        places = [int(one or 0) for one in found]
        for rank, (place, one) in enumerate(zip(places, values, strict=True)):
            self.bring(rank, place, one)
        return places

    def _joined_everywhere(self, values: Mapping[int, Array]) -> list[int]:
        """Step by step; where one process cannot, none can."""
        call, size = self.device.call, 8 + _TOKEN
        told = self._agreed(max(one.nbytes for one in values.values()).to_bytes(8, "little"))
        most = max(int.from_bytes(one, "little") for one in told)
        token, good = ctypes.create_string_buffer(_TOKEN), True
        if 0 in self.handles:
            good = not call.ad_joint_make(self.handles[0], self.ranks, most, token)
        made = next(one for one in self._agreed((token.raw if 0 in self.handles else b"") if good else None) if one)
        good = not any(call.ad_joint_enter(handle, made) for handle in self.handles.values())
        self._agreed(b"" if good else None)
        known, own = dict[int, int](), b""
        for rank, handle in self.handles.items():
            known[rank] = int(call.ad_joint_own(handle, token) or 0)
            own += rank.to_bytes(8, "little") + token.raw
        for data in self._agreed(own if all(known.values()) else None):
            for at in range(0, len(data), size):
                rank = int.from_bytes(data[at : at + 8], "little")
                if rank not in known:
                    known[rank] = int(call.ad_joint_reached(self._any, data[at + 8 : at + size]) or 0)
        good = all(known.values())
        places = [known[rank] for rank in range(self.ranks)]
        self._agreed(b"" if good else None)
        if call.ad_joint_all(self.ranks, (c_void_p * self.ranks)(*places)):
            good = False
        self._agreed(b"" if good else None)
        self._joined.append(places[0])
        for rank, one in values.items():
            self.bring(rank, places[rank], one)
        return places

    def _agreed(self, data: bytes | None) -> list[bytes]:
        """What all tell; Unsupported where one of them cannot (None)."""
        assert self._tell is not None
        told = self._tell(b"" if data is None else b"+" + data)
        if not all(told):
            raise Unsupported(self.device.why() if data is None else "another process has no memory that switches know")
        return [one[1:] for one in told]

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
        """In all processes: the first by packets needs boxes that all reach."""
        if any(one.packets for one in tables) and not self._boxes:
            self._boxes = True
            empty = np.zeros(self.device.call.ad_box_bytes(), np.uint8)
            for rank, box in enumerate(self.everywhere(dict.fromkeys(self.mine, empty))):
                for handle in self.handles.values():
                    self.device.call.ad_rank_box(handle, rank, box)
        return DevicePlan(self, tables)

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
        if not plan.sliced and lanes * rounds > 1:
            raise Unsupported(ONCE)
        number, self.number = self.number % CALLS, self.number + 1
        begun: list[int] = []
        for rank, handle in self.handles.items():
            if self.device.call.ad_start(
                handle, plan.handles[rank], number, unit, type_number(dtype), OPERATORS[op], lanes, rounds,
                where.ctypes.data, lengths.ctypes.data,
            ):  # fmt: skip
                why = self.device.why()
                for one in begun:
                    self.device.call.ad_wait(one, 1e-9)
                raise Invalid(f"rank {rank}: {why}")
            begun.append(handle)
        self._await(timeout)

    def _await(self, timeout: float) -> None:
        """Until all ranks of this process are through."""
        failed = [rank for rank, handle in self.handles.items() if self.device.call.ad_wait(handle, timeout)]
        if failed:
            raise TimedOut(f"ranks {failed}: {self.device.why()} ({timeout} seconds)")

    def capture(
        self, plan: DevicePlan, unit: int, where: NDArray[np.uintp], lengths: NDArray[np.int64], dtype: np.dtype[Any],
        op: str = "sum", *, lanes: int = 1, rounds: int = 1,
    ) -> Captured:  # fmt: skip
        """A call as for `go`, which is not made: to be made again and again on the same memory, in turn with others. On
        GPUs it is a graph of theirs. All processes capture the same."""
        if not plan.sliced and lanes * rounds > 1:
            raise Unsupported(ONCE)
        mine = len(self.handles)
        ranks, plans = ((c_void_p * mine)(*some.values()) for some in (self.handles, plan.handles))
        found = self.device.call.ad_graph_new(
            mine, ranks, plans, unit, type_number(dtype), OPERATORS[op], lanes, rounds, where.ctypes.data,
            lengths.ctypes.data,
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
        mine, number = len(self.handles), self.number % CALLS
        self.number += self._tell is not None  # they hear of it
        ranks, plans = ((c_void_p * mine)(*some.values()) for some in (self.handles, plan.handles))
        code = self.device.call.ad_by_host(
            mine, ranks, plans, number, unit, type_number(dtype), OPERATORS[op], lanes, WAYS.index(way) - 1,
            where.ctypes.data, lengths.ctypes.data, timeout,
        )  # fmt: skip
        if code < 0:
            raise TimedOut(f"ranks {self.mine}: {self.device.why()} ({timeout} seconds)")
        if code:
            raise Invalid(self.device.why())

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """Memory that is asked for within is given back behind."""
        kept, joined = len(self._memory), len(self._joined)
        try:
            yield
        finally:
            self._give_back(kept, joined)

    def _give_back(self, kept: int = 0, joined: int = 0) -> None:
        while len(self._joined) > joined:
            self.device.call.ad_joint_free(self._any, self._joined.pop())
        while len(self._memory) > kept:
            self.device.call.ad_memory_free(*self._memory.pop())

    def close(self) -> None:
        """In all processes: nobody gives memory back that another may still reach."""
        if self._tell is not None and self.handles:
            self._tell(b"")
        self._close()

    def _close(self) -> None:
        while self._reached:
            self.device.call.ad_memory_left(self._any, self._reached.pop())
        self._give_back()
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
        """Once these streams are through: how many calls they made, behind which the group goes on."""
        group, found = self._group, c_uint64()
        if group.device.call.ad_graph_counted(self._handle, ctypes.byref(found)):
            raise Invalid(group.device.why())
        many = (found.value - group.number) % CALLS
        group.number += many
        return many

    def close(self) -> None:
        if self._handle:
            self._group.device.call.ad_graph_free(self._handle)
            self._handle = 0


class DevicePlan:
    """The tables of all ranks of a group, those of its own ranks as its device has them."""

    def __init__(self, group: Group, tables: Sequence[Table]) -> None:
        self._device = group.device
        self.streams, self.sliced = max(one.streams for one in tables), all(one.sliced for one in tables)
        self.packets = any(one.packets for one in tables)
        self.handles: dict[int, int] = {}
        for rank in group.mine:
            words = np.ascontiguousarray(tables[rank].words, np.int64)
            handle = self._device.call.ad_plan_new(group.handles[rank], words.ctypes.data, len(words))
            if not handle:
                raise Invalid(f"the device table of rank {rank}: {self._device.why()}")
            self.handles[rank] = handle

    def fits(self, unit: int, dtype: np.dtype[Any]) -> bool:
        """Whether its packets have room in the boxes of these ranks."""
        call, most = self._device.call, self._device.call.ad_box_bytes() // 2
        return all(call.ad_plan_box(one, unit, type_number(dtype)) <= most for one in self.handles.values())

    def scratch(self, rank: int, unit: int) -> int:
        """Elements of scratch at a rank, where a unit of weight has so many."""
        return int(self._device.call.ad_plan_scratch(self.handles[rank], unit))

    def __del__(self) -> None:
        for handle in getattr(self, "handles", {}).values():
            self._device.call.ad_plan_free(handle)
