"""Memory of the ranks of a group: their own, what all of them reach, and what switches know."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any, TypeVar

from numpy.typing import NDArray

from antiphon.errors import Invalid, Unsupported
from antiphon.runtimes.device.functions import Device
from antiphon.runtimes.device.symmetric import Source, Symmetric

Array = NDArray[Any]
Tell = Callable[[bytes], Sequence[bytes]]  # what this process tells all others, and what each of them told
_TOKEN = 64  # bytes that stand for memory
_NOT_THERE = "another process has no such memory that all reach"
Found = TypeVar("Found")


def _tried(do: Callable[[], Found]) -> tuple[Found | None, str]:
    """What it gives, and why it could not."""
    try:
        return do(), ""
    except Unsupported as error:
        return None, str(error) or "it is refused"


class Memory:
    """What a group asks of its device, and gives back. `handles`: of the ranks of this process."""

    def __init__(
        self, device: Device, ranks: int, mine: Sequence[int] | None, tell: Tell | None, source: Source | None
    ) -> None:
        self.device, self.ranks = device, ranks
        self.mine, self._tell = list(range(ranks) if mine is None else mine), tell
        self.handles: dict[int, int] = {}
        self._joined: list[int] = []
        self._source, self._known = source, list[tuple[Symmetric, bool]]()  # and whether it is of this source
        self._memory: list[tuple[int, int]] = []
        self._reached: list[int] = []
        if tell is None and self.mine != list(range(ranks)):
            raise Invalid("ranks that are not in this process need `tell` to be reached")
        if source is not None and (tell is None or len(self.mine) != 1):
            raise Invalid("memory of another source: a process has one rank, and needs `tell`")

    def everywhere(self, values: Mapping[int, Array]) -> list[int]:
        """Memory of every rank as this process sees it: of its own ranks with these values."""
        if self._tell is None:
            return [self.memory(rank, values[rank]) for rank in range(self.ranks)]
        if self._source is not None:
            return self._of_source(self._source, values)
        own, told = dict[int, int](), b""
        for rank in self.mine:
            token = ctypes.create_string_buffer(_TOKEN)
            memory = self.device.call.ad_memory_shared(self.handles[rank], values[rank].nbytes, token)
            own[rank] = self._kept(rank, memory, values[rank])
            told += rank.to_bytes(8, "little") + token.raw
        return self._reach(own, self._tell(told))

    def _of_source(self, source: Source, values: Mapping[int, Array], joined: bool = False) -> list[int]:
        """As long at all ranks as the longest of them. Where one process cannot have it, none has it."""
        rank, one = next((rank, values[rank]) for rank in self.mine)
        told = self._agreed(one.nbytes.to_bytes(8, "little"))
        found = self._taken(source, max(1, *(int.from_bytes(size, "little") for size in told)))
        _, why = _tried(lambda: found.reached(self.ranks))
        if joined and not why and not found.multicast:
            why = "this memory has no multicast address"
        if any(self._agreed(why.encode())):
            source.given_back(found)
            raise Unsupported(why or _NOT_THERE)
        self.known(found, own=True)
        _, why = _tried(lambda: self.bring(rank, found.places[rank], one))
        self._agreed(None if why else b"", why)  # all of it has its values
        return list(found.places)

    def _taken(self, source: Source, nbytes: int) -> Symmetric:
        """What all processes have, or none: it is not asked for before each has done what it can fail in alone."""
        begun, why = _tried(lambda: source.begun(nbytes))
        try:
            self._agreed(None if why else b"", why)
        except Unsupported:
            if not why:
                source.dropped(begun)
            raise
        found, why = _tried(lambda: source.taken(begun, nbytes))
        self._agreed(None if why else b"", why)  # what some have is left there: they would wait for the others
        assert found is not None
        return found

    def known(self, memory: Symmetric, own: bool = False) -> list[int]:
        """Memory that a program gives, where each rank has it: from here on its multicast address is known, where it
        has one. Until the group is closed. `own`: it goes back to the source of the group then."""
        places = memory.reached(self.ranks).places
        if memory.multicast:
            self.device.call.ad_joint_known(
                self.ranks, (c_void_p * self.ranks)(*places), memory.nbytes, memory.multicast
            )
        self._known.append((memory, own))
        return list(places)

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
            if self._source is not None:
                return self._of_source(self._source, mine, joined=True)
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

    def _agreed(self, data: bytes | None, why: str = "") -> list[bytes]:
        """What all tell; Unsupported where one of them cannot (None)."""
        assert self._tell is not None
        told = self._tell(b"" if data is None else b"+" + data)
        if not all(told):
            mine = why or self.device.why()
            raise Unsupported(mine if data is None else _NOT_THERE)
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
        kept, joined, known = len(self._memory), len(self._joined), len(self._known)
        try:
            yield
        finally:
            self._give_back(kept, joined)
            self._forget(known)

    def _forget(self, known: int = 0, ours: bool = True) -> None:
        while len(self._known) > known:
            memory, own = self._known.pop()
            if memory.multicast:
                self.device.call.ad_joint_gone(memory.places[0])
            if own and ours and self._source is not None:
                self._source.given_back(memory)

    def _give_back(self, kept: int = 0, joined: int = 0) -> None:
        while len(self._joined) > joined:
            self.device.call.ad_joint_free(self._any, self._joined.pop())
        while len(self._memory) > kept:
            self.device.call.ad_memory_free(*self._memory.pop())

    def _let_go(self) -> None:
        """All of it, but for what all processes give back together."""
        self._forget(ours=False)
        while self._reached:
            self.device.call.ad_memory_left(self._any, self._reached.pop())
        self._give_back()
