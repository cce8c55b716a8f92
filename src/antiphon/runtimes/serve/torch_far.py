"""Who serves tensors that are elsewhere than in memory: plans over NCCL's messages, or a group of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from antiphon.errors import AntiphonError, Unsupported
from antiphon.runtimes.serve.torch_device_calls import CallStream
from antiphon.runtimes.serve.torch_nccl import KINDS, Nccl, opened
from antiphon.runtimes.serve.torch_planned import Planned
from antiphon.runtimes.serve.torch_streams import Streams
from antiphon.runtimes.serve.torch_work import CollectiveFailed


def devices() -> list[str]:
    """Those that the backend is for. Counting GPUs starts nothing on them, so processes may still be made by fork."""
    there = torch.backends.cuda.is_built() and torch.cuda.device_count() > 0
    return ["cpu", *(kind for kind in KINDS if kind != "cuda" or there)]


class Far:
    """Calls by the names that backends have in PyTorch 2.13, which are not all those of process groups: the single ones
    are `_allgather_base` and `_reduce_scatter_base`; several at once are what is started between two marks.

    `later`: a work out of something to wait for.
    """

    def __init__(self, group: Any, later: Callable[[list[Any], Callable[[], None]], Any]) -> None:
        self.group, self._later = group, later
        self.open = False  # between the two marks

    def call(self, name: str, *arguments: Any) -> Any:
        """The last argument: the options, or None."""
        given = arguments[:-1] if arguments[-1] is None else arguments
        try:
            return getattr(self.group, name)(*given)
        except BaseException:
            self.abandon()
            raise

    def several(self, name: str, outputs: Sequence[Any], inputs: Sequence[Any], options: Any) -> Any:
        pairs = list(zip(outputs, inputs, strict=True))
        if len(pairs) == 1:
            return self.call(name, *pairs[0], options)
        within = self.open  # a part of what is open already
        together = not within and self.start()
        works = [self.call(name, output, given, options) for output, given in pairs]
        if within:
            return works[-1]
        return self.end() if together else self._later(list(outputs), lambda: _wait_for(works))

    def start(self) -> bool:
        """What follows is one; False where the group has no such thing."""
        if self.group.supports_coalescing:
            self.group._start_coalescing()
            self.open = True
        return self.open

    def end(self) -> Any:
        if not self.open:
            raise CollectiveFailed("one of several calls was refused, so none of them was made")
        self.open = False
        return self.group._end_coalescing()

    def abandon(self) -> None:
        """A call was refused: nobody will say where several of them end."""
        if self.open:
            self.open = False
            (self.group.abandon if isinstance(self.group, Planned) else self.group._end_coalescing)()


def _wait_for(works: Sequence[Any]) -> None:
    for one in works:
        one.wait()


class Elsewhere:
    """Where a group of processes goes with tensors on a device. All of it find the same, or two that have to do with
    each other alone.

    `book`: the plans for this group, as bytes, of which only its rank 0 is asked."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: Callable[[], timedelta], book: Callable[[], bytes],
        later: Callable[[list[Any], Callable[[], None]], Any],
    ) -> None:  # fmt: skip
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._book, self._later = book, later
        self.split_from: Callable[[Nccl, bytes], int] | None = None
        self._agreed: dict[tuple[tuple[int, ...], torch.device], Far] = {}
        self._devices: dict[tuple[int, ...], list[torch.device]] = {}  # those of ours, in the order of first calls
        self.planned: dict[torch.device, Planned] = {}
        self._own: Any = None
        self._device: torch.device | None = None  # where all are connected

    def far(self, device: torch.device, peer: int | None = None) -> Far:
        """What serves tensors there, for all of the group or for these two."""
        if device.index is None:
            device = torch.device(device.type, torch.accelerator.current_device_index())
        members = self._members(peer)
        if (members, device) not in self._agreed:
            self._agreed[members, device] = Far(self._group(device, members), self._later)
        return self._agreed[members, device]

    def groups(self) -> list[Any]:
        return [*self.planned.values(), *([] if self._own is None else [self._own])]

    def rows(self) -> list[dict[str, Any]]:
        """Of a report: what became of calls on the device."""
        there = list(self.planned.items())
        return [{**row, "device": str(device)} for device, one in there for row in one.ledger.as_json()]

    def until_now(self) -> Callable[[], None]:
        """Waits for what the caller's stream and ours have been asked for before this call."""
        waits = [one.until_now() for one in list(self.planned.values()) if not one.broken]

        def wait() -> None:
            for one in waits:
                one()

        return wait

    # ---- connected at once, and split ----

    def connect_now(self, device: torch.device) -> None:
        group = self.far(device).group
        if isinstance(group, Planned):
            group.connect_now()
        else:
            group.eager_connect_single_device(device)
        self._device = device

    def split(self, child: Elsewhere | None, color: int) -> None:
        """What is made for `child`, if this process is in it, is a part of what is here."""
        if self._device is None or self._device not in self.planned:
            raise Unsupported("split_group: name the device when the group is made: init_process_group(device_id=...)")
        whole = self.planned[self._device].line()
        if child is None:
            whole.nccl.split(whole.comm, b"", None, 0)
        else:
            key = child._rank
            child.split_from = lambda nccl, book: nccl.split(whole.comm, book, color, key)
            child.connect_now(self._device)

    def _group(self, device: torch.device, members: tuple[int, ...]) -> Any:
        kind, why = KINDS.get(device.type), f"nothing is known of {device.type}"
        if kind is not None:
            try:
                nccl, why = opened(kind), ""
            except (AntiphonError, OSError) as error:
                why = str(error)
        why = self._all_can(self._name(members, device), len(members), why)
        if not why:
            if device not in self.planned:
                streams = Streams(device)
                self.planned[device] = Planned(
                    streams, self._size, self._rank, lambda peer: self._line(nccl, streams, peer),
                    lambda: self._timeout().total_seconds(),
                )  # fmt: skip
            return self.planned[device]
        if device.type != "cuda" or not dist.is_nccl_available():
            raise Unsupported(f"antiphon: tensors on {device} need NCCL, which is not to be had ({why}); "
                              "move them to the CPU")  # fmt: skip
        if self._own is None:
            self._own = _own_of_pytorch(PrefixStore("nccl", self._store), self._rank, self._size, self._timeout())
        return self._own

    def _all_can(self, name: str, many: int, why: str) -> str:
        """Nothing, if none of so many has anything to say."""
        store = PrefixStore(f"can/{name}", self._store)
        if why:
            store.set("not", why)
        if store.add("came", 1) == many:
            store.set("all", "1")
        store.wait(["all"], self._timeout())
        return str(store.get("not").decode()) if store.check(["not"]) else ""

    def _line(self, nccl: Nccl, streams: Streams, peer: int | None) -> CallStream:
        members = self._members(peer)
        place = members.index(self._rank)
        book = self._book() if peer is None and place == 0 else b""
        if peer is None and self.split_from is not None:
            split, self.split_from = self.split_from, None  # other devices have communicators of their own
            comm = split(nccl, book)
        else:
            key = f"{'id' if peer is None else 'two'}/{self._name(members, streams.device)}"  # two may be all, too
            if place == 0:
                self._store.set(key, nccl.new_id().hex())
            self._store.wait([key], self._timeout())
            name = bytes.fromhex(self._store.get(key).decode())
            comm = nccl.connect(book, len(members), place, name)
        return CallStream(nccl, streams, comm, members, self._rank)

    def _members(self, peer: int | None) -> tuple[int, ...]:
        return tuple(range(self._size)) if peer is None else tuple(sorted((self._rank, peer)))

    def _name(self, members: tuple[int, ...], device: torch.device) -> str:
        """Short: two of them, or all. Each has a device of its own, so it goes by which one it is in turn: all of them
        come to their devices in the same order."""
        known = self._devices.setdefault(members, [])
        if device not in known:
            known.append(device)
        return f"{members[0]}-{members[-1]}-{len(members)}-{known.index(device)}"


def _own_of_pytorch(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
