"""Memory of the ranks of a group: their own, what all of them reach, and what switches know."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

from numpy.typing import NDArray

from antiphon.errors import Invalid, Unsupported
from antiphon.runtimes.device.functions import Device

Array = NDArray[Any]
Tell = Callable[[bytes], Sequence[bytes]]  # what this process tells all others, and what each of them told
_TOKEN = 64  # bytes that stand for memory
_NOT_THERE = "another process has no such memory that all reach"


class Memory:
    """What a group asks of its device, and gives back. `handles`: of the ranks of this process."""

    def __init__(self, device: Device, ranks: int, mine: Sequence[int] | None, tell: Tell | None) -> None:
        self.device, self.ranks = device, ranks
        self.mine, self._tell = list(range(ranks) if mine is None else mine), tell
        self.handles: dict[int, int] = {}
        self._joined: list[int] = []
        self._memory: list[tuple[int, int]] = []
        self._reached: list[int] = []
        if tell is None and self.mine != list(range(ranks)):
            raise Invalid("ranks that are not in this process need `tell` to be reached")

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
    def devices(self) -> str:
        """All devices of the ranks of this process, in words."""
        told = (self.device.call.ad_rank_device(handle) for handle in self.handles.values())
        return "; ".join(dict.fromkeys((one or b"").decode(errors="replace") for one in told))

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
            raise Unsupported(self.device.why() if data is None else _NOT_THERE)
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

    def _let_go(self) -> None:
        """All of it, but for what all processes give back together."""
        while self._reached:
            self.device.call.ad_memory_left(self._any, self._reached.pop())
        self._give_back()
