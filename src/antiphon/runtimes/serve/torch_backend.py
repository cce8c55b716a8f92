"""The PyTorch backend "antiphon": collectives by the plans of a table, all else by gloo (docs/torch.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore

from antiphon.errors import Invalid
from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve import torch_arguments as asked
from antiphon.runtimes.serve import torch_detail
from antiphon.runtimes.serve._torch_calls import Calls
from antiphon.runtimes.serve._torch_data import operator_name
from antiphon.runtimes.serve.book import encode_book
from antiphon.runtimes.serve.group_start import Processes, serve
from antiphon.runtimes.serve.secret import given_secret
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.torch_about import NAME, About
from antiphon.runtimes.serve.torch_batched import batched
from antiphon.runtimes.serve.torch_far import Elsewhere, Far, devices
from antiphon.runtimes.serve.torch_gloo import Late
from antiphon.runtimes.serve.torch_monitored import Monitored
from antiphon.runtimes.serve.torch_profiled import Profiled
from antiphon.runtimes.serve.torch_store import Exchanges
from antiphon.runtimes.serve.torch_work import CollectiveFailed, Worker
from antiphon.runtimes.serve.wires import Connecting, engine_over_sockets

_SETUP = 300.0  # seconds in which all processes of a group must have come together
_chosen: dict[str, Any] = {"table": None}


def use(table: Any) -> None:
    """The table for groups that are made from now on, instead of $ANTIPHON_TABLE: a file, a plan, plans, a tuning or a
    book; None for what the environment says. Only process 0 of a group looks at it."""
    _chosen["table"] = table


def report(group: Any = None) -> list[dict[str, Any]]:
    """What became of the calls of a group (left out: of the default one): a row for each collective and schedule."""
    found = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, AntiphonGroup):
        raise Invalid("report: this process group is not of the backend antiphon")
    return found.calls.ledger.as_json() + found.elsewhere.rows()


def register() -> None:
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices())
    batched(AntiphonGroup)


def _create(options: Any, _: Any = None) -> AntiphonGroup:
    places = list(options.global_ranks_in_group)
    whole = not places
    everyone = options.group_size if whole else dist.get_world_size()
    return AntiphonGroup(
        options.store, options.group_rank, options.group_size, options.timeout,
        places or list(range(options.group_size)), everyone, whole,
    )  # fmt: skip


class AntiphonGroup(About):
    """A process group. Its calls are carried out by one thread, in the order in which they were made."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, places: Sequence[int], everyone: int, whole: bool
    ) -> None:
        super().__init__(rank, size)
        self._own, self._places, self._made = (rank, size), list(places), 0
        self._timeout = timeout
        self._names = ["", "undefined"]
        self._together: list[Any] | None = None
        self._far_together: Far | None = None
        self._connecting: Connecting | None = None
        patience = timeout.total_seconds()
        self._exchange = Exchanges(store, rank, size, min(patience, _SETUP))
        group = Processes(rank, size, self._exchange, places, everyone, whole, patience)
        serving = self._serving(group) if size > 1 else None
        self._store = PrefixStore(self._exchange.generation, store)  # where nothing of earlier processes lies
        self._monitored = Monitored(PrefixStore("monitored", self._store), rank, size)
        self._gloo = Late(PrefixStore("gloo", self._store), rank, size, timeout)
        self.calls = Calls(serving, self._gloo, rank, size)
        self._worker = Worker()
        book = encode_book(serving.book) if serving is not None and serving.book.pages else b""
        apart = PrefixStore("device", self._store)
        self.elsewhere = Elsewhere(apart, rank, size, lambda: self._timeout, lambda: book, self._worker.submit)
        self._profiled = Profiled(size, places)
        self._detail = torch_detail.wanted()

    # ---- setting up and closing ----

    def _serving(self, group: Processes) -> Serving:
        table = _chosen["table"] or os.environ.get("ANTIPHON_TABLE") or None
        return serve(group, table, engine_over_sockets, self._way, fill=True)

    def _way(self) -> Connecting:
        patience = min(self._timeout.total_seconds(), _SETUP)
        self._connecting = Connecting(*self._own, self._exchange, patience, given_secret())
        return self._connecting

    def shutdown(self, check: bool = True) -> None:
        serving = self.calls.serving
        done = self._worker.close(self._timeout.total_seconds() if not (serving and serving.broken) else 1.0)
        try:
            if done and serving and check:
                serving.finish()
        except TransportFailed as error:
            raise CollectiveFailed(str(error)) from None
        finally:
            if done and serving:
                serving.close()
            for one in self.elsewhere.groups():
                one.shutdown()

    def abort(self) -> None:
        """What is under way fails at once, here and at the others."""
        for one in self.elsewhere.groups():
            one.abort()
        serving = self.calls.serving
        if serving is not None and not serving.broken and self._connecting is not None:
            self._connecting.cut()
        self.shutdown(check=False)

    def split_group(
        self, ranks: list[int], timeout: Any = None, opts: Any = None, group_name: Any = None, group_desc: Any = None,
        device_types: Any = None,
    ) -> AntiphonGroup | None:  # fmt: skip
        """Collective of this group, which is connected on a device; None where this process is not in the new one."""
        made = None
        if self._own[0] in ranks:
            made = AntiphonGroup(
                PrefixStore(f"split/{group_name}", self._store), ranks.index(self._own[0]), len(ranks),
                timeout or self._timeout, [self._places[rank] for rank in ranks], dist.get_world_size(), False,
            )  # fmt: skip
            made._set_group_name(group_name)
            made._set_group_desc(group_desc or "undefined")
        self.elsewhere.split(None if made is None else made.elsewhere, ranks[0])
        return made

    # ---- making calls ----

    def _submit(
        self, kind: str, given: Sequence[Any], results: list[Any], do: Callable[[], None], seconds: float,
        opts: Any, more: str = "", alike: Sequence[Any] | None = None,
    ) -> Any:  # fmt: skip
        """`kind` and `given` are for a profiler, if one listens; with `more` and `alike`, tensors of which all have as
        many of the same shapes (left out: the results), for who compares calls."""
        self._made += 1
        serving = self.calls.serving
        if self._detail and serving is not None:
            text, then = torch_detail.told(kind + more, results if alike is None else alike), do

            def do() -> None:
                torch_detail.compare(serving, text, seconds)
                then()

        moments = self._profiled.called(kind, self._made, self._names[0], given, results)
        at_once = self._together is None and asked.at_once(opts, given)
        work = self._worker.submit(results, do, moments and self._profiled, moments, at_once)
        if self._together is not None:
            self._together.append(work)
        return work

    def _root(self, kind: str, opts: Any) -> int:
        root = asked.root_of(opts)
        asked.need_root(kind, root, self._own[1])
        return root

    def _seconds(self, options: Any) -> float:
        """Without any progress."""
        given = getattr(options, "timeout", None)
        own = given.total_seconds() if isinstance(given, timedelta) else 0.0
        return own if own > 0 else self._timeout.total_seconds()

    def _elsewhere(self, tensors: Sequence[Any], peer: int | None = None) -> Far | None:
        """What serves tensors that are not in the memory of the processor, or None."""
        device = next((one.device for one in tensors if one.device.type != "cpu"), None)
        return None if device is None else self.elsewhere.far(device, peer)

    def _start_coalescing(self, device: Any) -> None:
        self._together = []
        far = None if device is None or device.type == "cpu" else self.elsewhere.far(device)
        self._far_together = far if far is not None and far.start() else None

    def _end_coalescing(self, device: Any) -> Any:
        works, self._together = self._together or [], None
        far, self._far_together = self._far_together, None
        if far is not None:
            return far.end()
        return self._worker.submit([], lambda: _wait_for(works))

    # ---- the collectives ----

    def allreduce(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, op: Any = None
    ) -> Any:
        tensors, opts = asked.listed(tensors, tensor), asked.options_of(c10d.AllreduceOptions, opts, None, op, timeout)
        asked.need_some("allreduce", tensors)
        if far := self._elsewhere(tensors):
            return far.call("allreduce", tensors, opts)
        how, seconds = asked.operator_of(opts), self._seconds(opts)
        more = f" ({operator_name(how)})"
        return self._submit(
            "all_reduce",
            tensors,
            tensors,
            lambda: self.calls.allreduce_several(tensors, how, seconds),
            seconds,
            opts,
            more,
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        asked.need_some("allreduce_coalesced", tensors)
        if far := self._elsewhere(tensors):
            return far.call("allreduce_coalesced", tensors, opts)
        return self.allreduce(list(tensors), opts)

    def reduce(
        self, tensors: Any = None, opts: Any = None, op: Any = None, timeout: Any = None, *, tensor: Any = None,
        root: Any = None,
    ) -> Any:  # fmt: skip
        tensors, opts = asked.listed(tensors, tensor), asked.options_of(c10d.ReduceOptions, opts, root, op, timeout)
        asked.need_one("reduce", tensors)
        place = self._root("reduce", opts)
        if far := self._elsewhere(tensors):
            return far.call("reduce", tensors, opts)
        how, seconds = asked.operator_of(opts), self._seconds(opts)
        more = f" ({operator_name(how)}) to rank {place}"
        return self._submit(
            "reduce", tensors, tensors, lambda: self.calls.reduce(tensors[0], place, how, seconds), seconds, opts, more
        )

    def broadcast(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, root: Any = None
    ) -> Any:
        tensors, opts = (
            asked.listed(tensors, tensor),
            asked.options_of(c10d.BroadcastOptions, opts, root, None, timeout),
        )
        asked.need_some("broadcast", tensors)
        place = self._root("broadcast", opts)
        if far := self._elsewhere(tensors):
            return far.call("broadcast", tensors, opts)
        seconds = self._seconds(opts)

        def do() -> None:
            for one in tensors:
                self.calls.broadcast(one, place, seconds)

        return self._submit("broadcast", tensors, tensors, do, seconds, opts, f" from rank {place}")

    def allgather(
        self, output_tensors: Any, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        input_tensor: Any = None,
    ) -> Any:  # fmt: skip
        given = input_tensor if input_tensors is None else input_tensors
        output_lists, inputs = asked.lists_and_tensors(output_tensors, given)
        opts = asked.options_of(c10d.AllgatherOptions, opts, timeout=timeout)
        asked.need_as_many("allgather", output_lists, inputs)
        for outputs in output_lists:
            asked.need_per_process("allgather", "output", outputs, self._own[1])
        if far := self._elsewhere(inputs):
            return far.call("allgather", output_lists, inputs, opts)
        seconds = self._seconds(opts)

        def do() -> None:
            for outputs, one in zip(output_lists, inputs, strict=True):
                self.calls.allgather_list(outputs, one, seconds)

        return self._submit(
            "all_gather", inputs, [one for outputs in output_lists for one in outputs], do, seconds, opts
        )

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Here a list of results is for one process: of each of its inputs."""
        asked.need_some("allgather_coalesced", inputs)
        asked.need_per_process("allgather_coalesced", "output", output_lists, self._own[1])
        by_input = [[one[number] for one in output_lists] for number in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        asked.need_as_many("all_gather_single", output_lists, input_list)
        if far := self._elsewhere(input_list):
            return far.several("_allgather_base", output_lists, input_list, opts)
        seconds = self._seconds(opts)

        def do() -> None:
            for output, given in zip(output_lists, input_list, strict=True):
                self.calls.allgather(output, given, seconds)

        return self._submit("all_gather_single", input_list, list(output_lists), do, seconds, opts)

    def reduce_scatter(
        self, output_tensors: Any = None, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        output: Any = None, input: Any = None, op: Any = None,
    ) -> Any:  # fmt: skip
        several = input if input_tensors is None else input_tensors
        input_lists, outputs = asked.lists_and_tensors(several, output if output_tensors is None else output_tensors)
        opts = asked.options_of(c10d.ReduceScatterOptions, opts, None, op, timeout)
        asked.need_as_many("reduce_scatter", input_lists, outputs)
        for inputs in input_lists:
            asked.need_per_process("reduce_scatter", "input", inputs, self._own[1])
        if far := self._elsewhere(outputs):
            return far.call("reduce_scatter", outputs, input_lists, opts)
        how, seconds = asked.operator_of(opts), self._seconds(opts)

        def do() -> None:
            for one, given in zip(outputs, input_lists, strict=True):
                self.calls.reduce_scatter_list(one, given, how, seconds)

        flat = [one for inputs in input_lists for one in inputs]
        return self._submit("reduce_scatter", flat, list(outputs), do, seconds, opts, f" ({operator_name(how)})", flat)

    def reduce_scatter_single(self, outputTensor: Any, inputTensor: Any, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(self, outputTensors: Any, inputTensors: Any, opts: Any = None) -> Any:
        asked.need_as_many("reduce_scatter_single", outputTensors, inputTensors)
        if far := self._elsewhere(inputTensors):
            return far.several("_reduce_scatter_base", outputTensors, inputTensors, opts)
        op, seconds = asked.operator_of(opts), self._seconds(opts)

        def do() -> None:
            for output, given in zip(outputTensors, inputTensors, strict=True):
                self.calls.reduce_scatter(output, given, op, seconds)

        more = f" ({operator_name(op)})"
        return self._submit("reduce_scatter_single", inputTensors, list(outputTensors), do, seconds, opts, more)

    def gather(
        self, output_tensors: Any, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        input_tensor: Any = None, root: Any = None,
    ) -> Any:  # fmt: skip
        given = input_tensor if input_tensors is None else input_tensors
        output_lists, inputs = asked.lists_and_tensors(output_tensors, given)
        opts = asked.options_of(c10d.GatherOptions, opts, root, None, timeout)
        asked.need_one("gather", inputs)
        place = self._root("gather", opts)
        asked.need_lists_at("gather", "output", output_lists, place == self._own[0], self._own[1])
        if far := self._elsewhere(inputs):
            return far.call("gather", output_lists, inputs, opts)
        seconds = self._seconds(opts)
        outputs = list(output_lists[0]) if output_lists else []
        return self._submit(
            "gather", inputs, outputs, lambda: self.calls.gather(outputs, inputs[0], place, seconds), seconds,
            opts, f" to rank {place}", inputs,
        )  # fmt: skip

    def scatter(
        self, output_tensors: Any = None, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        output_tensor: Any = None, root: Any = None,
    ) -> Any:  # fmt: skip
        one = output_tensor if output_tensors is None else output_tensors
        input_lists, outputs = asked.lists_and_tensors(input_tensors, one)
        opts = asked.options_of(c10d.ScatterOptions, opts, root, None, timeout)
        asked.need_one("scatter", outputs)
        place = self._root("scatter", opts)
        asked.need_lists_at("scatter", "input", input_lists, place == self._own[0], self._own[1])
        if far := self._elsewhere(outputs):
            return far.call("scatter", outputs, input_lists, opts)
        seconds = self._seconds(opts)
        given = list(input_lists[0]) if input_lists else []
        return self._submit(
            "scatter", given, list(outputs), lambda: self.calls.scatter(outputs[0], given, place, seconds), seconds,
            opts, f" from rank {place}",
        )  # fmt: skip

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        opts = asked.options_of(c10d.AllToAllOptions, opts, timeout=timeout)
        for what, tensors in (("output", output_tensors), ("input", input_tensors)):
            asked.need_per_process("alltoall", what, tensors, self._own[1])
        if far := self._elsewhere(input_tensors):
            return far.call("alltoall", output_tensors, input_tensors, opts)
        seconds = self._seconds(opts)
        return self._submit(
            "all_to_all",
            input_tensors,
            list(output_tensors),
            lambda: self.calls.alltoall_list(output_tensors, input_tensors, seconds),
            seconds,
            opts,
            alike=(),
        )

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any = (), input_split_sizes: Any = (),
        opts: Any = None, timeout: Any = None,
    ) -> Any:  # fmt: skip
        opts = asked.options_of(c10d.AllToAllOptions, opts, timeout=timeout)
        if far := self._elsewhere([input]):
            return far.call("alltoall_base", output, input, output_split_sizes, input_split_sizes, opts)
        seconds, ranks = self._seconds(opts), self._own[1]
        sizes = [
            asked.elements_of(output, output_split_sizes, ranks),
            asked.elements_of(input, input_split_sizes, ranks),
        ]
        return self._submit(
            "all_to_all_single",
            [input],
            [output],
            lambda: self.calls.alltoall(output, input, sizes[0], sizes[1], seconds),
            seconds,
            opts,
            alike=(),
        )

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Also for what streams have been asked for until now, where this group has tensors on a device."""
        opts = asked.options_of(c10d.BarrierOptions, opts, timeout=timeout)
        seconds = self._seconds(opts)
        until = self.elsewhere.until_now()

        def do() -> None:
            until()
            self.calls.barrier(seconds)

        return self._submit("barrier", [], [], do, seconds, opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """As gloo means it: a timeout of 0 is one."""
        self._monitored.wait(self._timeout if timeout is None else timeout, wait_all_ranks)

    # the names of earlier versions
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- from one to another ----

    def _between(self, tensors: Any, peer: int | None = None) -> Any:
        together = self._far_together is not None and self._far_together.open
        far = self._elsewhere(tensors, None if together else peer)
        return self._gloo() if far is None else far.group

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._between(tensors, peer).send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._between(tensors, peer).recv(tensors, peer, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._between(tensors).recv_anysource(tensors, tag)


def _wait_for(works: Sequence[Any]) -> None:
    for one in works:
        one.wait()
