"""Allocate memory for the ranks of a group: private to a rank, accessible to all ranks, or with a multicast address.

`Memory` is the base of `Group`. If all ranks are in this process, any address can be used by all of them. Otherwise a
process exports its memory as a token (an IPC handle), all processes exchange tokens by `tell` (an allgather), and each
maps the memory of the others. Memory with a multicast address (here: a joint, its memory is joined) is one allocation
of all ranks that a switch can multicast to and reduce from; it is made in steps; after each, all processes give up if
one failed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

from numpy.typing import NDArray

from antiphon.errors import Invalid, Unsupported
from antiphon.runtimes.device.functions import Device

Array = NDArray[Any]
Tell = Callable[[bytes], Sequence[bytes]]  # an allgather of a message per process
_RANK, _TOKEN = 8, 64  # bytes of a rank's number and of a handle to memory (TOKEN in device.h), as messages hold them
_OTHER_FAILED = "another process has no such memory that all reach"


class Memory:
    """Memory that a group allocates on its device and frees.

    `own_ranks`: the ranks of this process (None: all, and `tell` is not needed). `handles`: the native library's handle
    of each of them, which `Group` fills in. Addresses: `_joined`, one of each joint, by which it is freed; `_memory`
    (with the handle) of all other; `_reached` of other processes' memory, mapped here."""

    def __init__(self, device: Device, ranks: int, own_ranks: Sequence[int] | None, tell: Tell | None) -> None:
        self.device, self.ranks = device, ranks
        self.own_ranks = list(range(ranks) if own_ranks is None else own_ranks)
        self._allgather = tell
        self.handles: dict[int, int] = {}
        self._joined: list[int] = []
        self._memory: list[tuple[int, int]] = []
        self._reached: list[int] = []
        if tell is None and self.own_ranks != list(range(ranks)):
            raise Invalid("ranks that are not in this process need `tell` to be reached")

    def everywhere(self, values: Mapping[int, Array]) -> list[int]:
        """Return addresses, valid in this process, of new memory of every rank; that of own ranks has these values."""
        if self._allgather is None:
            return [self.memory(rank, values[rank]) for rank in range(self.ranks)]
        own_addresses, message = dict[int, int](), b""
        for rank in self.own_ranks:
            token = ctypes.create_string_buffer(_TOKEN)
            memory = self.device.call.ad_memory_shared(self.handles[rank], values[rank].nbytes, token)
            own_addresses[rank] = self._note_memory(rank, memory, values[rank])
            message += rank.to_bytes(_RANK, "little") + token.raw
        return self._map_remote(own_addresses, self._allgather(message))

    def _map_remote(self, rank_addresses: dict[int, int], messages: Sequence[bytes]) -> list[int]:
        """Return an address per rank: those of `rank_addresses`, and those of other processes' memory, mapped here.

        `messages`: of each process, the number of each of its ranks followed by the token of its memory.
        """
        for rank, token in _split_tokens(messages):
            if rank in rank_addresses:
                continue
            memory = self.device.call.ad_memory_reached(self._any, token)
            if not memory:
                raise Unsupported(f"memory of rank {rank}: {self.device.why()}")
            self._reached.append(int(memory))
            rank_addresses[rank] = int(memory)
        if sorted(rank_addresses) != list(range(self.ranks)):
            raise Invalid(f"ranks {sorted(rank_addresses)} told of their memory, of {self.ranks} ranks")
        return [rank_addresses[rank] for rank in range(self.ranks)]

    @property
    def _any(self) -> int:
        """The handle of some rank of this process, for functions that need a device."""
        return self.handles[self.own_ranks[0]]

    def memory(self, rank: int, values: Array) -> int:
        """Return the address of new memory of a rank with these values, until the group is closed or it is freed."""
        return self._note_memory(rank, self.device.call.ad_memory_new(self.handles[rank], values.nbytes), values)

    def _note_memory(self, rank: int, address: int | None, values: Array) -> int:
        """Note new memory to free it later, and fill it. Unsupported if there was none."""
        if not address:
            raise Unsupported(f"{values.nbytes} bytes for rank {rank}: {self.device.why()}")
        self._memory.append((self.handles[rank], int(address)))
        self.bring(rank, int(address), values)
        return int(address)

    def joined(self, values: Sequence[Array] | Mapping[int, Array]) -> list[int]:
        """Return addresses of new memory of all ranks that switches can reduce and multicast.

        Unsupported without such switches. With several processes, each passes the values of its own ranks."""
        if self._allgather is not None:
            own_values = {rank: values[rank] for rank in self.own_ranks}
            try:
                return self._joined_everywhere(own_values)
            except Unsupported:
                self.device.call.ad_joint_dropped()  # abandons the steps that succeeded here
                raise
        assert not isinstance(values, Mapping)  # all ranks are here: values come in their order
        addresses, handles = (c_void_p * self.ranks)(), (c_void_p * self.ranks)(*self.handles.values())
        if self.device.call.ad_joint_new(self.ranks, handles, max(array.nbytes for array in values), addresses):
            raise Unsupported(self.device.why())
        rank_addresses = [int(address or 0) for address in addresses]
        self._joined.append(rank_addresses[0])
        for rank, (rank_address, array) in enumerate(zip(rank_addresses, values, strict=True)):
            self.bring(rank, rank_address, array)
        return rank_addresses

    def _joined_everywhere(self, values: Mapping[int, Array]) -> list[int]:
        """Allocate in steps (device.h): rank 0's process makes a joint, all enter it, add their memory, map that of the
        others, and list all addresses. An exchange after each step has all give up if one failed."""
        call = self.device.call
        sizes = self._exchange_checked(max(array.nbytes for array in values.values()).to_bytes(8, "little"))
        max_bytes = max(int.from_bytes(size_bytes, "little") for size_bytes in sizes)
        token, succeeded = ctypes.create_string_buffer(_TOKEN), True
        if 0 in self.handles:
            succeeded = not call.ad_joint_make(self.handles[0], self.ranks, max_bytes, token)
        tokens = self._exchange_checked((token.raw if 0 in self.handles else b"") if succeeded else None)
        first_token = next(filter(None, tokens))  # only the process of rank 0 has made one; it names the joint
        succeeded = not any(call.ad_joint_enter(handle, first_token) for handle in self.handles.values())
        self._exchange_checked(b"" if succeeded else None)
        address_of_rank, own_tokens = dict[int, int](), b""
        for rank, handle in self.handles.items():
            address_of_rank[rank] = int(call.ad_joint_own(handle, token) or 0)
            own_tokens += rank.to_bytes(_RANK, "little") + token.raw
        messages = self._exchange_checked(own_tokens if all(address_of_rank.values()) else None)
        for rank, other_token in _split_tokens(messages):
            if rank not in address_of_rank:
                address_of_rank[rank] = int(call.ad_joint_reached(self._any, other_token) or 0)
        succeeded = all(address_of_rank.values())
        all_addresses = [address_of_rank[rank] for rank in range(self.ranks)]
        self._exchange_checked(b"" if succeeded else None)
        if call.ad_joint_all(self.ranks, (c_void_p * self.ranks)(*all_addresses)):
            succeeded = False
        self._exchange_checked(b"" if succeeded else None)
        self._joined.append(all_addresses[0])
        for rank, array in values.items():
            self.bring(rank, all_addresses[rank], array)
        return all_addresses

    def _exchange_checked(self, data: bytes | None) -> list[bytes]:
        """Return the messages of all processes; Unsupported if one of them failed (None)."""
        assert self._allgather is not None
        # an empty message: failed; "+": a message without data is not empty
        messages = self._allgather(b"" if data is None else b"+" + data)
        if not all(messages):
            raise Unsupported(self.device.why() if data is None else _OTHER_FAILED)
        return [message[1:] for message in messages]

    def bring(self, rank: int, memory: int, values: Array) -> None:
        """Copy an array to device memory."""
        if self.device.call.ad_bring(self.handles[rank], memory, values.ctypes.data, values.nbytes):
            raise Unsupported(self.device.why())

    def fetch(self, rank: int, memory: int, into: Array) -> None:
        """Copy device memory to an array."""
        if self.device.call.ad_fetch(self.handles[rank], into.ctypes.data, memory, into.nbytes):
            raise Unsupported(self.device.why())

    def copy(self, rank: int, to: int, memory: int, nbytes: int) -> None:
        """Copy by the device within the memory of a rank, and wait for it: measurements compare calls with that."""
        if self.device.call.ad_copy(self.handles[rank], to, memory, nbytes):
            raise Unsupported(self.device.why())

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """Free memory that is allocated within the block at its end."""
        memory_count, joint_count = len(self._memory), len(self._joined)
        try:
            yield
        finally:
            self._free_down_to(memory_count, joint_count)

    def _free_down_to(self, memory_count: int = 0, joint_count: int = 0) -> None:
        """Free the latest memory, until this many pieces and joints are left."""
        while len(self._joined) > joint_count:
            self.device.call.ad_joint_free(self._any, self._joined.pop())
        while len(self._memory) > memory_count:
            self.device.call.ad_memory_free(*self._memory.pop())

    def _free_all(self) -> None:
        """Free everything, as `Group` does when it is closed."""
        while self._reached:
            self.device.call.ad_memory_left(self._any, self._reached.pop())
        self._free_down_to()


def _split_tokens(messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the ranks in these messages, each with the handle to its memory."""
    for data in messages:
        for at in range(0, len(data), _RANK + _TOKEN):
            token = at + _RANK
            yield int.from_bytes(data[at:token], "little"), data[token : token + _TOKEN]
