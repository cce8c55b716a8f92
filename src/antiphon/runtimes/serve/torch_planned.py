"""Calls on tensors of a device, by NCCL's messages as the plans of a table say, or by NCCL itself (docs/torch.md).

Each communicator has a stream of ours. A call waits there for what the caller's stream was asked for, and whoever waits
for the call has the stream wait that is his current one then. The host waits only while communicators are made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from antiphon.runtimes.serve import torch_device_calls as ask
from antiphon.runtimes.serve._torch_data import evenly
from antiphon.runtimes.serve.ledger import Ledger
from antiphon.runtimes.serve.torch_arguments import elements_of, need_alike, need_fit, operator_of, root_of
from antiphon.runtimes.serve.torch_device_calls import Call, CallStream, combining
from antiphon.runtimes.serve.torch_device_watch import Watch
from antiphon.runtimes.serve.torch_device_work import DeviceWork
from antiphon.runtimes.serve.torch_streams import Streams
from antiphon.runtimes.serve.torch_work import CollectiveFailed

Tensors = Sequence[Tensor]
_NAP = 0.001  # seconds between two looks at the end


class Planned:
    """The calls of a group of so many ranks, by the names that backends have in PyTorch.

    `connect` gives a line to all of the group (None), or to one other of it: collective of those."""

    supports_coalescing = True

    def __init__(
        self,
        streams: Streams,
        ranks: int,
        rank: int,
        connect: Callable[[int | None], CallStream],
        timeout: Callable[[], float],
    ) -> None:
        self.streams, self.ranks, self.rank = streams, ranks, rank
        self._connect, self._timeout = connect, timeout
        self._lines: dict[int | None, CallStream] = {}
        self._watch = Watch(streams.reached, self._relax, self._too_late)
        self.ledger = Ledger()
        self._lock, self._ending = threading.RLock(), threading.Lock()
        self._several: list[Call] | None = None
        self._together: DeviceWork | None = None
        self.eager = False
        self.broken = ""

    # ---- making calls ----

    def line(self, peer: int | None = None) -> CallStream:
        with self._lock:
            if peer not in self._lines:
                with self.streams.at_device():
                    self._lines[peer] = self._connect(peer)
            return self._lines[peer]

    def connect_now(self) -> None:
        """Messages between two go by the communicator of all from now on."""
        self.eager = True
        self.line()

    def until_now(self) -> Callable[[], None]:
        streams = self.streams
        marks = [streams.mark(streams.current()), *(streams.mark(line.stream) for line in list(self._lines.values()))]

        def wait() -> None:
            for mark in marks:
                streams.through(mark)

        return wait

    def _go(
        self, tensors: Tensors, results: Tensors, do: Callable[[CallStream, Call], None], peer: int | None = None
    ) -> Any:
        where = {one.device for one in tensors}
        if where != {self.streams.device}:
            raise ValueError(f"the tensors of a call must be on one device: {', '.join(sorted(map(str, where)))}")
        call = Call(do, list(tensors), list(results))
        with self._lock:
            if self._several is not None:
                self._several.append(call)
                return self._together
            line = self.line(peer)
            return self._made([call], line, self._work(line, call.results))

    def _work(self, line: CallStream, results: list[Tensor]) -> DeviceWork:
        return DeviceWork(self.streams, results, partial(self.fault, line), self.fail)

    def _made(self, calls: list[Call], line: CallStream, work: DeviceWork) -> DeviceWork:
        if self.broken:
            raise CollectiveFailed(f"an earlier call failed: {self.broken}")
        streams, began = self.streams, time.perf_counter()
        streams.let_go()
        with streams.at_device():
            streams.before(line.stream)
            with streams.on(line.stream):
                self._ask(calls, line)
                mark = streams.mark(line.stream)
        self._count(line, time.perf_counter() - began)
        if not streams.captured():
            self._watch.add(mark, self._timeout())
        work.begun(mark, streams.hold(mark, [tensor for call in calls for tensor in call.tensors]))
        return work

    def _ask(self, calls: list[Call], line: CallStream) -> None:
        line.made = []
        try:
            with line.nccl.group():
                for call in calls:
                    call.ask(line, call)
        except CollectiveFailed as error:
            self.fail(str(error))
            raise
        for call in calls:
            for then in call.then:
                then()

    def _count(self, line: CallStream, seconds: float) -> None:
        for (kind, nbytes), (served, told) in zip(line.made, line.nccl.became(len(line.made)), strict=True):
            if kind:
                row = self.ledger.row(
                    kind, told if served else "nccl", *(("antiphon",) if served else ("library", told))
                )
                self.ledger.count(row, nbytes, seconds / len(line.made))

    def _start_coalescing(self) -> None:
        with self._lock:
            self._several, self._together = [], self._work(self.line(), [])

    def abandon(self) -> None:
        """What was to be made together is not made."""
        with self._lock:
            self._several = self._together = None

    def _end_coalescing(self) -> DeviceWork:
        with self._lock:
            calls, work = self._several or [], self._together
            self._several = self._together = None
            assert work is not None
            work.results.extend(tensor for call in calls for tensor in call.results)
            return self._made(calls, self.line(), work)

    # ---- what goes wrong, and the end ----

    def fault(self, line: CallStream) -> str:
        if not self.broken and (told := line.nccl.fault(line.comm)):
            self.fail(told)
        return self.broken

    def fail(self, why: str) -> None:
        """Nothing more is made, and what is under way ends."""
        with self._ending:  # a call that holds the other lock may be waiting for ever
            if not self.broken:
                self.broken = why
                self._end("CommAbort")

    def _too_late(self, seconds: float) -> None:
        self.fail(f"a collective was not done within {seconds:g} seconds")

    def _relax(self) -> None:
        for line in list(self._lines.values()):
            line.nccl.relax()
            return

    def abort(self) -> None:
        self._watch.close()
        self.fail("it was aborted")

    def _end(self, how: str) -> None:
        for line in list(self._lines.values()):
            with suppress(CollectiveFailed), self.streams.at_device():
                line.nccl.call(how, line.comm)

    def shutdown(self) -> None:
        """What is under way is waited for, but not for ever."""
        end = time.monotonic() + self._timeout()
        for line in list(self._lines.values()):
            mark = None if self.broken else self.streams.mark(line.stream)
            while mark is not None and not self.streams.reached(mark):
                if self.fault(line) or time.monotonic() > end:
                    self.fail("it was closed while a call was under way")
                    return
                time.sleep(_NAP)
        with self._ending:
            if not self.broken:
                self.broken = "the group was closed"
                self._end("CommDestroy")
        self._watch.close()
        self.streams.forget()

    # ---- combining ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        op = operator_of(opts)
        for one in tensors:
            combining("all_reduce", op, one.dtype)
        return self._go(tensors, tensors, partial(ask.allreduce, tensors=tensors, op=op))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        (tensor,), op, root = tensors, operator_of(opts), root_of(opts)
        combining("reduce", op, tensor.dtype)
        target = tensor if self.rank == root else None
        return self._go(tensors, tensors, partial(ask.reduce, tensor=tensor, target=target, root=root, op=op))

    def _reduce_scatter_base(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        need_fit("reduce_scatter: the input", given, output, self.ranks)
        op = operator_of(opts)
        combining("reduce_scatter", op, given.dtype)
        return self._go([output, given], [output], partial(ask.reduce_scatter, output=output, given=given, op=op))

    def reduce_scatter(self, outputs: Tensors, lists: Sequence[Tensors], opts: Any = None) -> Any:
        op = operator_of(opts)
        for output, inputs in zip(outputs, lists, strict=True):
            need_alike("reduce_scatter: the output", output, inputs[self.rank])
            combining("reduce_scatter", op, output.dtype)

        def do(line: CallStream, call: Call) -> None:
            for output, inputs in zip(outputs, lists, strict=True):
                ask.reduce_scatter_list(line, call, output, inputs, op)

        return self._go([*outputs, *(one for inputs in lists for one in inputs)], outputs, do)

    # ---- moving ----

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        return self._go(tensors, tensors, partial(ask.broadcast, tensors=tensors, root=root_of(opts)))

    def _allgather_base(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        need_fit("all_gather: the output", output, given, self.ranks)
        return self._go([output, given], [output], partial(ask.allgather, output=output, given=given))

    def allgather(self, lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        for outputs, given in zip(lists, inputs, strict=True):
            need_alike("all_gather: its own output", outputs[self.rank], given)

        def do(line: CallStream, call: Call) -> None:
            for outputs, given in zip(lists, inputs, strict=True):
                ask.allgather_list(line, call, outputs, given)

        results = [one for outputs in lists for one in outputs]
        return self._go([*results, *inputs], results, do)

    def gather(self, lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        (given,), root = inputs, root_of(opts)
        outputs = list(lists[0]) if lists else []
        if not evenly([*outputs, given]):
            raise ValueError("gather: all tensors must have equally many elements")
        do = partial(ask.gather, outputs=outputs, given=given, root=root)
        return self._go([given, *outputs], outputs, do)

    def scatter(self, outputs: Tensors, lists: Sequence[Tensors], opts: Any = None) -> Any:
        (output,), root = outputs, root_of(opts)
        given = list(lists[0]) if lists else []
        if not evenly([*given, output]):
            raise ValueError("scatter: all tensors must have equally many elements")
        do = partial(ask.scatter, output=output, given=given, root=root)
        return self._go([output, *given], [output], do)

    def alltoall_base(
        self, output: Tensor, given: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], opts: Any = None
    ) -> Any:
        """By a plan where nobody gives sizes: nobody knows alone whether those of all are equal."""
        if output.dtype is not given.dtype:
            raise ValueError(f"all_to_all: the output is of {output.dtype}, the input of {given.dtype}")
        sizes = elements_of(output, out_splits, self.ranks), elements_of(given, in_splits, self.ranks)
        told = bool(out_splits) or bool(in_splits)

        def do(line: CallStream, call: Call) -> None:
            if told or not line.nccl.has_all:
                ask.exchange_parts(line, call, output, given, sizes)
            else:
                ask.alltoall(line, call, output, given)

        return self._go([output, given], [output], do)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        return self._go([*outputs, *inputs], outputs, partial(ask.exchange, outputs=outputs, inputs=inputs))

    # ---- from one to another ----

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        return self._between("Send", tensors, peer)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        return self._between("Recv", tensors, peer)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        raise ValueError("recv: from whom must be said where tensors are on a device")

    def _between(self, name: str, tensors: Tensors, peer: int) -> Any:
        """By itself on a communicator of these two, unless that of all is there at all: as with NCCL in PyTorch."""
        (tensor,) = tensors
        do = partial(ask.message, name=name, tensor=tensor, peer=peer)
        return self._go(tensors, tensors, do, None if self.eager else peer)
