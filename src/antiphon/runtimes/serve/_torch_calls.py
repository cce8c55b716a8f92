"""Execute PyTorch's collectives, one at a time, in the worker thread of a group: by the engine, else by gloo.

`Calls` has a method per collective. Each checks its tensors, turns them into flat NumPy views and begins the call: its
kind and size travel with every message, so that different calls of processes are noticed. Then it looks for the page of
the table, which has the program for this collective and size, and runs it. Without a page, or if the engine lacks the
operator or type, gloo (PyTorch's own CPU backend) makes the call. That decision depends only on arguments that are
equal at all processes, so all of them decide alike.

`reduction` is how the engine computes an operator of PyTorch (`_torch_data.Reduction`); `seconds` is the timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ReduceOp

from antiphon.core.choose import Call
from antiphon.runtimes.engine.native import DISAGREED, EVEN, address
from antiphon.runtimes.serve._torch_data import (
    array_of,
    as_contiguous,
    bits_of,
    copy_from_flat,
    find_reduction,
    flatten_all,
    have_equal_sizes,
    operator_name,
    put_back,
)
from antiphon.runtimes.serve.book import Page
from antiphon.runtimes.serve.call_head import type_code
from antiphon.runtimes.serve.ledger import CallLedger
from antiphon.runtimes.serve.serving import SPLIT_KINDS, Serving
from antiphon.runtimes.serve.torch_arguments import WrongCall, require_block_size
from antiphon.runtimes.serve.torch_work import CollectiveFailed

Tensors = Sequence[Tensor]
_GLOO_TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
_GLOO_OPERATORS = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
_NO_DATA = np.empty(0, np.uint8)
_LOCAL_OPERATORS = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}


class Calls:
    """The calls of a process group.

    `serving`: finds and runs the programs of the table; None in a group of one process.
    `gloo`: returns the group of PyTorch's backend gloo among the same processes.
    """

    def __init__(self, serving: Serving | None, gloo: Callable[[], Any], rank: int, ranks: int) -> None:
        self.serving, self.gloo, self.rank, self.ranks = serving, gloo, rank, ranks
        self.ledger = serving.ledger if serving else CallLedger()
        self._why_no_page = ""  # why the table has no page for the last call

    # ---- choosing ----

    def _begin_call(self, kind: str, tensor: Tensor, op: Any = None, root: int = -1, same_size: bool = True) -> None:
        """Begin a call. `same_size`: whether the size of `tensor` must be the same at all processes."""
        if self.serving is not None:
            nbytes = tensor.numel() * tensor.element_size() if same_size else 0
            type_ = type_code(tensor.dtype, tensor.layout is not torch.strided)
            self.serving.begin(kind, nbytes, type_, "" if op is None else operator_name(op), root)

    def _find_page(
        self, kind: str, unit: int, itemsize: int, seconds: float, root: int = -1, library: bool = True
    ) -> Page | None:
        """Return the page for blocks of `unit` elements; None: use gloo. `library`: whether gloo can make this call.

        A group that learns may choose another page than the table's, by the times of earlier calls.
        """
        assert self.serving is not None
        call = Call(kind, self.serving.nbytes(kind, unit, itemsize), root)
        page = self.serving.find(call, seconds, library, learns=True)
        self._why_no_page = "" if page is not None else self.serving.why_not(call)
        return page

    def _by_gloo(self, kind: str, tensors: Tensors, why: str, seconds: float, start: Callable[[], Any]) -> None:
        """Make the call that `start` starts with gloo, and count it. `why`: the reason, for the report."""
        nbytes, began = sum(tensor.numel() * tensor.element_size() for tensor in tensors), time.perf_counter()
        if self.serving is not None:
            why = why or self._why_no_page
            self.serving.agree(seconds)  # all processes begin this call, or an error says which makes another
        start().wait(timedelta(seconds=seconds))
        duration = time.perf_counter() - began
        if self.serving is not None:
            self.serving.record(duration)  # for learning; the ledger is for the report
        # the tensor of SPLIT_KINDS is one rank's block of the call's bytes
        row = self.ledger.row(kind, "gloo", "library", why)
        self.ledger.count(row, nbytes * (self.ranks if kind in SPLIT_KINDS else 1), duration)

    def _run_page(self, page: Page, unit: int, source: Any, target: Any, seconds: float, op: str = "sum") -> None:
        """Run the program of a page from one flat array to another. `source`: None for a call in place."""
        assert self.serving is not None
        self.serving.run(page, unit, source, target, op, seconds)

    def _run_always(self, kind: str, unit: int, source: Any, target: Any, seconds: float, root: int = -1) -> None:
        """Execute a call that never goes to gloo: there is always a page for it."""
        if self.serving is None:
            target[:] = source
            return
        page = self._find_page(kind, unit, target.itemsize, seconds, root, library=False)
        assert page is not None
        self._run_page(page, unit, source, target, seconds)

    def barrier(self, seconds: float) -> None:
        if self.serving is not None:
            self.serving.begin("barrier", 0, 0)
            self.serving.agree(seconds)

    # ---- combining ----

    def _combine_tensors(
        self, kind: str, tensor: Tensor, op: Any, reduction: Any, seconds: float, root: int = -1
    ) -> bool:
        """Combine by the engine, into the root's tensor or, without a root, into all. False if gloo has to do it.

        In a group of one process the result is the tensor itself, scaled as `reduction` says.
        """
        if reduction is None:
            return False
        has_result = root in (-1, self.rank)
        buffer = as_contiguous(reduction.scale(tensor))
        array = array_of(buffer)
        if self.serving is not None:
            page = self._find_page(kind, len(array), array.itemsize, seconds, root, _gloo_supports(op, tensor))
            if page is None:
                return False
            source, target = (None, array) if has_result else (array, _NO_DATA.view(array.dtype))
            self._run_page(page, len(array), source, target, seconds, reduction.op)
        if has_result:
            put_back(buffer, tensor)
        return True

    def allreduce(self, tensor: Tensor, op: Any, seconds: float) -> None:
        self._begin_call("allreduce", tensor, op)
        # sparse tensors go to gloo
        reduction = find_reduction(op, tensor.dtype) if tensor.layout is torch.strided else None
        # If the engine cannot do it, that is so at every process, and all go to gloo together.
        if self._combine_tensors("allreduce", tensor, op, reduction, seconds):
            return
        options = dist.AllreduceOptions()
        options.reduceOp = op
        self._by_gloo(
            "allreduce", [tensor], _why_gloo(reduction), seconds, lambda: self.gloo().allreduce([tensor], options)
        )

    def allreduce_as_one(self, tensors: Tensors, op: Any, seconds: float) -> None:
        """Combine all tensors of all processes into one result, which each of them becomes."""
        first, *rest = tensors
        if rest:
            combine = _LOCAL_OPERATORS.get(operator_name(op))
            # PyTorch can only add sparse tensors
            if combine is None or (first.layout is not torch.strided and combine is not torch.add):
                raise WrongCall(f"allreduce: unsupported reduction operation {operator_name(op)} of several tensors")
            total = first.detach().clone()
            for tensor in rest:
                total = combine(total, tensor)
            self.allreduce(total, op, seconds)
            with torch.no_grad():
                for tensor in tensors:
                    tensor.copy_(total)
        else:
            self.allreduce(first, op, seconds)

    def allreduce_several(self, tensors: Tensors, op: Any, seconds: float) -> None:
        """Combine tensors one by one; those of the same type as one flat tensor."""
        if any(tensor.layout is not torch.strided for tensor in tensors):
            for tensor in tensors:
                self.allreduce(tensor, op, seconds)
            return
        # Types in order of first appearance, which is the same on all processes.
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same_type = [tensor for tensor in tensors if tensor.dtype is dtype]
            if len(same_type) == 1:
                self.allreduce(same_type[0], op, seconds)
            else:
                flat = flatten_all(same_type)
                self.allreduce(flat, op, seconds)
                copy_from_flat(flat, same_type)

    def reduce(self, tensor: Tensor, root: int, op: Any, seconds: float) -> None:
        self._begin_call("reduce", tensor, op, root)
        reduction = find_reduction(op, tensor.dtype)
        if self._combine_tensors("reduce", tensor, op, reduction, seconds, root):
            return
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = op, root
        self._by_gloo("reduce", [tensor], _why_gloo(reduction), seconds, lambda: self.gloo().reduce([tensor], options))

    def reduce_scatter(self, output: Tensor, input: Tensor, op: Any, seconds: float) -> None:
        """Combine the inputs of all processes, a block per process, and write this process's block to the output."""
        require_block_size("reduce_scatter: the input", input, output, self.ranks)
        self._begin_call("reducescatter", output, op)
        reduction = find_reduction(op, input.dtype)
        page = None
        if reduction is not None:
            source, buffer = array_of(as_contiguous(reduction.scale(input))), as_contiguous(output)
            target = array_of(buffer)
            if self.serving is not None:
                page = self._find_page(
                    "reducescatter", len(target), target.itemsize, seconds, library=_gloo_supports(op, input)
                )
                if page is not None and not _share_memory(source, target):
                    self._run_page(page, len(target), source, target, seconds, reduction.op)
                # Overlapping buffers: the engine would overwrite input that it still reads.
                elif page is not None:
                    result = np.empty_like(target)
                    self._run_page(page, len(target), source, result, seconds, reduction.op)
                    target[:] = result
            else:
                target[:] = source
            # made by the engine, or in a group of one process by the copy above; else gloo has to do it
            if page is not None or self.serving is None:
                put_back(buffer, output)
                return
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        # (`chunk` of an empty tensor returns a single block)
        blocks = list(input.reshape(-1).chunk(self.ranks)) if input.numel() else [input.reshape(-1)] * self.ranks
        flat_output = as_contiguous(output).reshape(-1)
        self._by_gloo(
            "reducescatter", [output], _why_gloo(reduction), seconds,
            lambda: self.gloo().reduce_scatter([flat_output], [blocks], options),
        )  # fmt: skip
        put_back(flat_output.view(output.shape), output)

    def reduce_scatter_list(self, output: Tensor, inputs: Tensors, op: Any, seconds: float) -> None:
        """The same with a tensor per block."""
        if have_equal_sizes(inputs):
            self.reduce_scatter(output, flatten_all(inputs), op, seconds)
            return
        require_block_size("reduce_scatter: the output", output, inputs[self.rank])
        # Unequal blocks: one reduce per process.
        for root, block in enumerate(inputs):
            buffer = block.detach().clone()
            self.reduce(buffer, root, op, seconds)
            if root == self.rank:
                copy_from_flat(buffer.reshape(-1), [output])

    # ---- moving ----

    def broadcast(self, tensor: Tensor, root: int, seconds: float) -> None:
        if self.serving is None:
            return
        self._begin_call("broadcast", tensor, op=None, root=root)
        buffer = as_contiguous(tensor)
        array = bits_of(buffer)
        page = self._find_page("broadcast", len(array), array.itemsize, seconds, root)
        if page is not None:
            self._run_page(page, len(array), source=None, target=array, seconds=seconds)
            if self.rank != root:
                put_back(buffer, tensor)
            return
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._by_gloo(
            "broadcast", [tensor], why="", seconds=seconds, start=lambda: self.gloo().broadcast([buffer], options)
        )
        put_back(buffer, tensor)

    def allgather(self, output: Tensor, input: Tensor, seconds: float) -> None:
        """Gather the inputs of all processes into the output, a block per process."""
        require_block_size("all_gather: the output", output, input, self.ranks)
        self._begin_call("allgather", input)
        buffer = as_contiguous(output)
        source, target = bits_of(as_contiguous(input)), bits_of(buffer)
        if self.serving is None:
            target[:] = source
        else:
            unit = len(source)
            page = self._find_page("allgather", unit, source.itemsize, seconds)
            if page is None:
                blocks = list(buffer.reshape(-1).chunk(self.ranks))
                input = input.reshape(-1).clone()  # it may lie in the output
                self._by_gloo(
                    "allgather",
                    [input],
                    why="",
                    seconds=seconds,
                    start=lambda: self.gloo().allgather([blocks], [input]),
                )
            else:
                own_block = target[self.rank * unit : (self.rank + 1) * unit]
                if address(source) != address(own_block) and _share_memory(source, target):
                    source = source.copy()
                self._run_page(page, unit, None if address(source) == address(own_block) else source, target, seconds)
        put_back(buffer, output)

    def allgather_list(self, outputs: Tensors, input: Tensor, seconds: float) -> None:
        """The same with a tensor per block."""
        if have_equal_sizes([*outputs, input]):
            flat = input.new_empty(input.numel() * self.ranks)
            self.allgather(flat, input, seconds)
            copy_from_flat(flat, outputs)
            return
        require_block_size("all_gather: its own output", outputs[self.rank], input)
        # Unequal blocks: one broadcast per process.
        for root, output in enumerate(outputs):
            if root == self.rank:
                copy_from_flat(input.detach().reshape(-1), [output])
            self.broadcast(output, root, seconds)

    def gather(self, outputs: Tensors, input: Tensor, root: int, seconds: float) -> None:
        """Gather the inputs of all processes at the root, a tensor for each; elsewhere `outputs` is empty."""
        source = bits_of(as_contiguous(input))
        flat = input.new_empty(input.numel() * self.ranks if self.rank == root else 0)
        if self.rank == root and not have_equal_sizes([*outputs, input]):
            raise WrongCall("gather: all tensors must have equally many elements")
        self._begin_call("gather", input, op=None, root=root)
        self._run_always("gather", len(source), source, bits_of(flat), seconds, root)
        if self.rank == root:
            copy_from_flat(flat, outputs)

    def scatter(self, output: Tensor, inputs: Tensors, root: int, seconds: float) -> None:
        """Send each process its tensor of the root's `inputs`, which is empty elsewhere."""
        if self.rank == root and not have_equal_sizes([*inputs, output]):
            raise WrongCall("scatter: all tensors must have equally many elements")
        self._begin_call("scatter", output, op=None, root=root)
        buffer = as_contiguous(output)
        target = bits_of(buffer)
        source = bits_of(flatten_all(inputs)) if self.rank == root else _NO_DATA.view(target.dtype)
        self._run_always("scatter", len(target), source, target, seconds, root)
        put_back(buffer, output)

    def alltoall(
        self, output: Tensor, input: Tensor, out_sizes: Sequence[int], in_sizes: Sequence[int], seconds: float
    ) -> None:
        """Exchange blocks. `out_sizes`, `in_sizes`: elements that come from and go to each process.

        If the table plans uneven alltoalls, all processes exchange their sizes first, and such a plan serves sizes that
        are uneven. Otherwise the engine moves the blocks point to point, unless it sees that lengths disagree, which an
        error then explains, or that all are equal: then a plan for even blocks serves the call. Every step that
        communicates has to be begun anew.
        """
        if output.dtype is not input.dtype:
            raise WrongCall(f"all_to_all: the output is of {output.dtype}, the input of {input.dtype}")
        buffer = as_contiguous(output)
        flat_input = as_contiguous(input)
        if self.serving is None:
            bits_of(buffer)[:] = bits_of(flat_input)
            put_back(buffer, output)
            return
        # overlapping buffers: blocks that arrive would overwrite blocks that have yet to be sent
        if (
            flat_input.data_ptr() < buffer.data_ptr() + buffer.nbytes
            and buffer.data_ptr() < flat_input.data_ptr() + flat_input.nbytes
        ):
            flat_input = flat_input.clone()
        self._begin_call("alltoall", input, same_size=False)
        if self.serving.plans_uneven:
            if self._exchange_by_counts(flat_input, buffer, out_sizes, in_sizes, seconds):
                put_back(buffer, output)
                return
            self._begin_call("alltoall", input, same_size=False)
        lengths = np.array([in_sizes, out_sizes], np.uint64) * np.uint64(input.element_size())
        outcome = self.serving.uneven(flat_input.data_ptr(), buffer.data_ptr(), lengths, seconds)
        if outcome == DISAGREED:
            self._begin_call("alltoall", input, same_size=False)
            self._gather_sizes(out_sizes, in_sizes, seconds)  # raises the error that names two processes
        if outcome == EVEN:
            self._exchange_evenly(input, bits_of(flat_input), bits_of(buffer), seconds)
        put_back(buffer, output)

    def _exchange_evenly(self, input: Tensor, source: Any, target: Any, seconds: float) -> None:
        """Exchange blocks that turned out to be equal at all processes, by a plan for alltoall."""
        assert self.serving is not None
        unit = len(source) // self.ranks
        self.serving.begin("alltoall", unit * source.itemsize, type_code(input.dtype))
        self._run_always("alltoall", unit, source, target, seconds)

    def alltoall_list(self, outputs: Tensors, inputs: Tensors, seconds: float) -> None:
        if {len(outputs), len(inputs)} != {self.ranks}:
            raise WrongCall(f"all_to_all: needs {self.ranks} tensors to send and as many to receive")
        sizes = [[tensor.numel() for tensor in side] for side in (outputs, inputs)]
        flat = outputs[0].new_empty(sum(sizes[0]))
        self.alltoall(flat, flatten_all(inputs), sizes[0], sizes[1], seconds)
        copy_from_flat(flat, outputs)

    def _exchange_by_counts(
        self, source: Tensor, target: Tensor, out_sizes: Sequence[int], in_sizes: Sequence[int], seconds: float
    ) -> bool:
        """Exchange blocks by the table's plan for uneven ones; False: they are even, or it has none for this size."""
        assert self.serving is not None
        sizes = self._gather_sizes(out_sizes, in_sizes, seconds)
        if (sizes == sizes[0, 0]).all():
            return False
        source_bytes, target_bytes = (bits_of(tensor).view(np.uint8) for tensor in (source, target))
        return self.serving.run_counts(sizes * source.element_size(), source_bytes, target_bytes, seconds)

    def _gather_sizes(self, out_sizes: Sequence[int], in_sizes: Sequence[int], seconds: float) -> NDArray[Any]:
        """Return the elements that every process (row) expects from every other (column).

        Raises an error that names two processes whose sizes do not agree."""
        assert self.serving is not None
        all_sizes = self.serving.gather(np.array([*in_sizes, *out_sizes], np.int64), seconds)
        assert all_sizes is not None
        # axes: process, whether it sends (0) or expects (1), the other process
        sends, expects = all_sizes.reshape(self.ranks, 2, self.ranks).swapaxes(0, 1)
        for a, b in np.argwhere(sends != expects.T)[:1]:
            raise WrongCall(
                f"all_to_all: rank {a} sends {sends[a, b]} elements to rank {b}, which expects {expects[b, a]} from it"
            )
        return expects


def _gloo_supports(op: Any, tensor: Tensor) -> bool:
    return tensor.dtype in _GLOO_TYPES and any(op == operator for operator in _GLOO_OPERATORS)


def _why_gloo(reduction: Any) -> str:
    """Return why gloo makes a call; "" if the reason is that the table has no page (`Calls._why_no_page`)."""
    return "" if reduction is not None else "an operator or type that the engine has not"


def _share_memory(a: Any, b: Any) -> bool:
    return bool(np.may_share_memory(a, b))


# ---- TORCH_DISTRIBUTED_DEBUG=DETAIL: compare calls, with the shapes of their tensors, before they are made ----

_TEXT_BYTES = 1024  # of the description of a call
_SETTING = "TORCH_DISTRIBUTED_DEBUG=DETAIL"


def compares_calls() -> bool:
    """Return whether calls are to be compared."""
    return bool(dist.get_debug_level() == dist.DebugLevel.DETAIL)


def call_text(kind: str, tensors: Sequence[Any]) -> str:
    """Return a description of a call, such as "all_reduce of float32 [4, 2]"."""
    shapes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors)
    return f"{kind} of {shapes}" if shapes else kind


def compare_calls(serving: Serving, text: str, seconds: float) -> None:
    """Raise CollectiveFailed at all processes, before any data moves, if one of them makes a different call."""
    data = text.encode()
    if len(data) > _TEXT_BYTES:
        data = data[: _TEXT_BYTES - 3] + b"..."
    serving.begin("allgather", _TEXT_BYTES, type_code(torch.uint8))
    rows = serving.gather(np.frombuffer(data.ljust(_TEXT_BYTES, b"\0"), np.uint8), seconds)
    assert rows is not None
    texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    other = next((rank for rank, other_text in enumerate(texts) if other_text != texts[0]), 0)  # 0: none differs
    if other:
        raise CollectiveFailed(f"{_SETTING}: rank 0 calls {texts[0]}, rank {other} {texts[other]}")
