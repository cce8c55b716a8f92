"""Allocate memory for the ranks of a group: private to a rank, accessible to all ranks, or with a multicast address.

`Memory` is the base of `Group`. If all ranks are in this process, any address can be used by all of them. Otherwise a
process exports its memory as a token (an IPC handle), all processes exchange tokens by `tell` (an allgather), and each
maps the memory of the others. A joint is memory of all ranks with one multicast address, by which a switch writes to
all and reduces from all; here such memory is called joined. Several processes make it in steps, and after each step all
of them give up if one has failed.
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
# A message holds for each rank of its sender the rank's number and a handle to memory: bytes of these (device.h: TOKEN)
_RANK, _TOKEN = 8, 64
_OTHER_FAILED = "another process has no such memory that all reach"


class Memory:
    """Memory that a group allocates on its device and frees.

    `own_ranks`: the ranks of this process (None: all, and `tell` is not needed). `handles`: the native library's handle
    of each of them, which `Group` fills in. To be freed: `_joined` has the address of rank 0's memory of each joint,
    `_memory` (rank handle, address) of all other memory, `_reached` addresses of other processes' memory, mapped here.
    """

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
        """Return by rank the address, valid in this process, of new memory. `values`: its contents, for own ranks."""
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
        """Return an address per rank: `rank_addresses` (own ranks), and those of other processes' memory, mapped here.

        `messages`: a message of each process, with the number of each of its ranks and the token of that rank's memory.
        """
        for rank, token in _split_tokens(messages):
            if rank in rank_addresses:
                continue
            memory = self.device.call.ad_memory_reached(self._any_handle, token)
            if not memory:
                raise Unsupported(f"memory of rank {rank}: {self.device.why()}")
            self._reached.append(int(memory))
            rank_addresses[rank] = int(memory)
        if sorted(rank_addresses) != list(range(self.ranks)):
            raise Invalid(f"ranks {sorted(rank_addresses)} told of their memory, of {self.ranks} ranks")
        return [rank_addresses[rank] for rank in range(self.ranks)]

    @property
    def _any_handle(self) -> int:
        """The handle of some rank of this process, for functions that need a device."""
        return self.handles[self.own_ranks[0]]

    def memory(self, rank: int, values: Array) -> int:
        """Return the address of new memory of a rank with these values. It is freed at the end of the `for_a_while`
        block around the call, or when the group is closed.
        """
        return self._note_memory(rank, self.device.call.ad_memory_new(self.handles[rank], values.nbytes), values)

    def _note_memory(self, rank: int, address: int | None, values: Array) -> int:
        """Note new memory to free it later, and fill it. Unsupported if there was none."""
        if not address:
            raise Unsupported(f"{values.nbytes} bytes for rank {rank}: {self.device.why()}")
        self._memory.append((self.handles[rank], int(address)))
        self.bring(rank, int(address), values)
        return int(address)

    def joined(self, values: Sequence[Array] | Mapping[int, Array]) -> list[int]:
        """Return by rank the address of new memory that switches can reduce from and multicast to.

        `values`: the contents by rank; with several processes, each passes those of its own ranks. Unsupported without
        such switches."""
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
        others, and map the multicast address. After each step an exchange makes all give up if one failed."""
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
                address_of_rank[rank] = int(call.ad_joint_reached(self._any_handle, other_token) or 0)
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
        """Return the data of all processes; Unsupported if one of them failed. `data`: None if this one did."""
        assert self._allgather is not None
        # an empty message means that its sender failed; any other begins with "+", so that it is not empty without data
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
        """Copy within the memory of a rank by the device, and wait for it. Measurements compare calls with this."""
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
        """Free the latest memory until only the first `memory_count` pieces and `joint_count` joints are left."""
        while len(self._joined) > joint_count:
            self.device.call.ad_joint_free(self._any_handle, self._joined.pop())
        while len(self._memory) > memory_count:
            self.device.call.ad_memory_free(*self._memory.pop())

    def _free_all(self) -> None:
        """Free everything, as `Group` does when it is closed."""
        while self._reached:
            self.device.call.ad_memory_left(self._any_handle, self._reached.pop())
        self._free_down_to()


def _split_tokens(messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the ranks in these messages, each with the token of its memory."""
    for data in messages:
        for at in range(0, len(data), _RANK + _TOKEN):
            token_at = at + _RANK
            yield int.from_bytes(data[at:token_at], "little"), data[token_at : token_at + _TOKEN]
