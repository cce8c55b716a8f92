"""The PyTorch backend "antiphon": collectives by the plans of a table, everything else by gloo (docs/torch.md).

After `register`, `dist.init_process_group("antiphon")` makes an `AntiphonGroup`. PyTorch calls its methods, one per
collective, with lists of tensors and an options object; each checks the arguments (torch_arguments), packs the work
into a function without arguments (`do`) and queues it (`QueuedGroup._submit_call`), which returns PyTorch's work
object. What `do` executes is in `_torch_calls.Calls`. Names and signatures of the methods are PyTorch's, of several
versions: it passes some arguments by name (`tensor`, `root`), others within `opts`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from antiphon.errors import Invalid
from antiphon.runtimes.serve import torch_arguments as arguments
from antiphon.runtimes.serve._torch_data import operator_name
from antiphon.runtimes.serve.torch_group import DEVICES, NAME, QueuedGroup


def report(group: Any = None) -> list[dict[str, Any]]:
    """Return the statistics of a group's calls, a row per collective and schedule. Default: the default group."""
    process_group = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(process_group, AntiphonGroup):
        raise Invalid("report: this process group is not of the backend antiphon")
    return process_group.calls.ledger.as_json()


def register() -> None:
    """Register the backend, also where PyTorch's import has done so already (torch_autoload)."""
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)
    _extend_monitored_barrier()


def _extend_monitored_barrier() -> None:
    """Let `dist.monitored_barrier` take our groups: PyTorch's own refuses all backends but those called gloo."""
    torch_barrier = distributed_c10d.monitored_barrier
    if getattr(torch_barrier, "takes_antiphon", False):
        return

    @wraps(torch_barrier)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        process_group = dist.group.WORLD if group is None else group
        if not isinstance(process_group, AntiphonGroup):
            return torch_barrier(group, timeout, wait_all_ranks)
        if isinstance(timeout, float | int):
            timeout = timedelta(seconds=timeout)
        return process_group.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.takes_antiphon = True  # type: ignore[attr-defined]
    dist.monitored_barrier = distributed_c10d.monitored_barrier = monitored_barrier


def create(options: Any, _: Any = None) -> AntiphonGroup:
    """Return a new group; PyTorch calls this. Options without ranks stand for the group of all processes."""
    world_ranks = list(options.global_ranks_in_group)
    is_world = not world_ranks
    world_size = options.group_size if is_world else dist.get_world_size()
    try:
        return AntiphonGroup(
            options.store, options.group_rank, options.group_size, options.timeout,
            world_ranks or list(range(options.group_size)), world_size, is_world,
        )  # fmt: skip
    except BaseException:
        # PyTorch names the default group by a count of attempts, and processes meet under that name. If others succeed
        # where this one failed, and destroy their group to try again, their count is reset. So reset it here, too.
        if is_world and not dist.is_initialized():
            distributed_c10d._world.group_count = 0
        raise


class AntiphonGroup(QueuedGroup):
    """The collectives of a process group, as methods that PyTorch calls.

    All return a work object, except monitored_barrier. `opts` is PyTorch's options object of the collective, or
    None for its defaults. `compared`: tensors whose shapes and types must agree at all processes (default: the
    results). Methods named `..._coalesced` and `..._single` are PyTorch's calls with lists of tensors, and with one
    tensor for all ranks.
    """

    def allreduce(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, op: Any = None
    ) -> Any:
        tensors, opts = (
            arguments.as_list(tensors, tensor),
            arguments.options_of(c10d.AllreduceOptions, opts, root=None, op=op, timeout=timeout),
        )
        arguments.require_tensors("allreduce", tensors)
        arguments.require_alike("allreduce", tensors)
        op, seconds = arguments.operator_of(opts), self._timeout_seconds(opts)
        do = lambda: self.calls.allreduce_as_one(tensors, op, seconds)  # noqa: E731
        return self._submit_call("all_reduce", tensors, tensors, do, seconds, opts, f" ({operator_name(op)})")

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        arguments.require_tensors("allreduce_coalesced", tensors)
        op, seconds = arguments.operator_of(opts), self._timeout_seconds(opts)
        do = lambda: self.calls.allreduce_several(tensors, op, seconds)  # noqa: E731
        return self._submit_call("all_reduce", tensors, list(tensors), do, seconds, opts, f" ({operator_name(op)})")

    def reduce(
        self, tensors: Any = None, opts: Any = None, op: Any = None, timeout: Any = None, *, tensor: Any = None,
        root: Any = None,
    ) -> Any:  # fmt: skip
        tensors, opts = (
            arguments.as_list(tensors, tensor),
            arguments.options_of(c10d.ReduceOptions, opts, root, op, timeout),
        )
        arguments.require_one_tensor("reduce", tensors)
        root_rank = self._root_rank("reduce", opts)
        op, seconds = arguments.operator_of(opts), self._timeout_seconds(opts)
        detail = f" ({operator_name(op)}) to rank {root_rank}"
        return self._submit_call(
            "reduce", tensors, tensors, lambda: self.calls.reduce(tensors[0], root_rank, op, seconds), seconds, opts,
            detail,
        )  # fmt: skip

    def broadcast(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, root: Any = None
    ) -> Any:
        tensors, opts = (
            arguments.as_list(tensors, tensor),
            arguments.options_of(c10d.BroadcastOptions, opts, root, op=None, timeout=timeout),
        )
        root_rank = self._root_rank("broadcast", opts)
        root_index = arguments.root_tensor_of(opts, tensors)
        arguments.require_alike("broadcast", tensors)
        seconds = self._timeout_seconds(opts)

        def do() -> None:
            """Copy one tensor of the root into all tensors, here and at the other processes."""
            self.calls.broadcast(tensors[root_index], root_rank, seconds)
            for other in tensors:
                if other is not tensors[root_index]:
                    other.detach().copy_(tensors[root_index])

        return self._submit_call("broadcast", tensors, tensors, do, seconds, opts, f" from rank {root_rank}")

    def allgather(
        self, output_tensors: Any, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        input_tensor: Any = None,
    ) -> Any:  # fmt: skip
        tensors = input_tensor if input_tensors is None else input_tensors
        output_lists, inputs = arguments.lists_and_tensors(output_tensors, tensors)
        opts = arguments.options_of(c10d.AllgatherOptions, opts, timeout=timeout)
        arguments.require_same_count("allgather", output_lists, inputs)
        for outputs in output_lists:
            arguments.require_per_process("allgather", "output", outputs, self._size, len(inputs))
        if len(inputs) > 1:
            arguments.require_alike("allgather", inputs)
            return self._allgather_copies(output_lists, inputs, opts)
        return self._allgather_each(output_lists, inputs, opts)

    def _allgather_copies(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        """Gather several inputs of each process into every list: those of process 0, those of process 1, ..."""
        seconds, count = self._timeout_seconds(opts), len(inputs)

        def do() -> None:
            for number, tensor in enumerate(inputs):
                indices = range(number, count * self._size, count)
                self.calls.allgather_list([output_lists[0][index] for index in indices], tensor, seconds)
            for outputs in output_lists[1:]:
                for output, gathered in zip(outputs, output_lists[0], strict=True):
                    output.detach().copy_(gathered)

        results = [output for outputs in output_lists for output in outputs]
        return self._submit_call("all_gather", inputs, results, do, seconds, opts)

    def _allgather_each(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        """Gather every input from all processes into its own list."""
        seconds = self._timeout_seconds(opts)

        def do() -> None:
            for outputs, tensor in zip(output_lists, inputs, strict=True):
                self.calls.allgather_list(outputs, tensor, seconds)

        return self._submit_call(
            "all_gather", inputs, [output for outputs in output_lists for output in outputs], do, seconds, opts
        )

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather several inputs of each process. `output_lists`: a list per process, with a tensor for each input."""
        arguments.require_tensors("allgather_coalesced", inputs)
        arguments.require_per_process("allgather_coalesced", "output", output_lists, self._size)
        by_input = [[outputs[number] for outputs in output_lists] for number in range(len(inputs))]
        for outputs in output_lists:
            arguments.require_same_count("allgather_coalesced", outputs, inputs)
        return self._allgather_each(by_input, inputs, arguments.options_of(c10d.AllgatherOptions, opts))

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        arguments.require_same_count("all_gather_single", output_lists, input_list)
        seconds = self._timeout_seconds(opts)

        def do() -> None:
            for output, tensor in zip(output_lists, input_list, strict=True):
                self.calls.allgather(output, tensor, seconds)

        return self._submit_call("all_gather_single", input_list, list(output_lists), do, seconds, opts)

    def reduce_scatter(
        self, output_tensors: Any = None, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        output: Any = None, input: Any = None, op: Any = None,
    ) -> Any:  # fmt: skip
        lists = input if input_tensors is None else input_tensors
        input_lists, outputs = arguments.lists_and_tensors(lists, output if output_tensors is None else output_tensors)
        opts = arguments.options_of(c10d.ReduceScatterOptions, opts, root=None, op=op, timeout=timeout)
        arguments.require_same_count("reduce_scatter", input_lists, outputs)
        for inputs in input_lists:
            arguments.require_per_process("reduce_scatter", "input", inputs, self._size)
        op, seconds = arguments.operator_of(opts), self._timeout_seconds(opts)

        def do() -> None:
            for result, inputs in zip(outputs, input_lists, strict=True):
                self.calls.reduce_scatter_list(result, inputs, op, seconds)

        flat = [tensor for inputs in input_lists for tensor in inputs]
        return self._submit_call(
            "reduce_scatter", flat, list(outputs), do, seconds, opts, f" ({operator_name(op)})", compared=flat
        )

    def reduce_scatter_single(self, outputTensor: Any, inputTensor: Any, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(self, outputTensors: Any, inputTensors: Any, opts: Any = None) -> Any:
        arguments.require_same_count("reduce_scatter_single", outputTensors, inputTensors)
        op, seconds = arguments.operator_of(opts), self._timeout_seconds(opts)

        def do() -> None:
            for output, tensor in zip(outputTensors, inputTensors, strict=True):
                self.calls.reduce_scatter(output, tensor, op, seconds)

        detail = f" ({operator_name(op)})"
        return self._submit_call("reduce_scatter_single", inputTensors, list(outputTensors), do, seconds, opts, detail)

    def gather(
        self, output_tensors: Any, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        input_tensor: Any = None, root: Any = None,
    ) -> Any:  # fmt: skip
        tensors = input_tensor if input_tensors is None else input_tensors
        output_lists, inputs = arguments.lists_and_tensors(output_tensors, tensors)
        opts = arguments.options_of(c10d.GatherOptions, opts, root, op=None, timeout=timeout)
        arguments.require_one_tensor("gather", inputs)
        root_rank = self._root_rank("gather", opts)
        arguments.require_lists_at_root("gather", "output", output_lists, root_rank == self._rank, self._size)
        seconds = self._timeout_seconds(opts)
        outputs = list(output_lists[0]) if output_lists else []
        return self._submit_call(
            "gather", inputs, outputs, lambda: self.calls.gather(outputs, inputs[0], root_rank, seconds), seconds,
            opts, f" to rank {root_rank}", compared=inputs,
        )  # fmt: skip

    def scatter(
        self, output_tensors: Any = None, input_tensors: Any = None, opts: Any = None, timeout: Any = None, *,
        output_tensor: Any = None, root: Any = None,
    ) -> Any:  # fmt: skip
        tensors = output_tensor if output_tensors is None else output_tensors
        input_lists, outputs = arguments.lists_and_tensors(input_tensors, tensors)
        opts = arguments.options_of(c10d.ScatterOptions, opts, root, op=None, timeout=timeout)
        arguments.require_one_tensor("scatter", outputs)
        root_rank = self._root_rank("scatter", opts)
        arguments.require_lists_at_root("scatter", "input", input_lists, root_rank == self._rank, self._size)
        seconds = self._timeout_seconds(opts)
        inputs = list(input_lists[0]) if input_lists else []
        return self._submit_call(
            "scatter", inputs, list(outputs), lambda: self.calls.scatter(outputs[0], inputs, root_rank, seconds),
            seconds, opts, f" from rank {root_rank}",
        )  # fmt: skip

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        opts = arguments.options_of(c10d.AllToAllOptions, opts, timeout=timeout)
        for name, tensors in (("output", output_tensors), ("input", input_tensors)):
            arguments.require_per_process("alltoall", name, tensors, self._size)
        seconds = self._timeout_seconds(opts)
        # Nothing to compare: the shapes of an alltoall may differ between processes.
        return self._submit_call(
            "all_to_all", input_tensors, list(output_tensors),
            lambda: self.calls.alltoall_list(output_tensors, input_tensors, seconds), seconds, opts, compared=(),
        )  # fmt: skip

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any = (), input_split_sizes: Any = (),
        opts: Any = None, timeout: Any = None,
    ) -> Any:  # fmt: skip
        opts = arguments.options_of(c10d.AllToAllOptions, opts, timeout=timeout)
        seconds, ranks = self._timeout_seconds(opts), self._size
        out_sizes = arguments.elements_of(output, output_split_sizes, ranks)
        in_sizes = arguments.elements_of(input, input_split_sizes, ranks)
        return self._submit_call(
            "all_to_all_single", [input], [output],
            lambda: self.calls.alltoall(output, input, out_sizes, in_sizes, seconds), seconds, opts, compared=(),
        )  # fmt: skip

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = arguments.options_of(c10d.BarrierOptions, opts, timeout=timeout)
        seconds = self._timeout_seconds(opts)
        return self._submit_call(
            "barrier", inputs=[], results=[], do=lambda: self.calls.barrier(seconds), seconds=seconds, opts=opts
        )

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait as gloo does; with a timeout of 0, fail unless all processes are here already."""
        self._monitored.wait(self._timeout if timeout is None else timeout, wait_all_ranks)

    # names by which earlier versions of PyTorch call the same methods
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
