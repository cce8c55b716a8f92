"""The collectives of PyTorch, one at a time, in the thread of a group's worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from antiphon.core.choose import Call
from antiphon.runtimes.engine.native import DISAGREED, EVEN, address
from antiphon.runtimes.serve._torch_data import (
    array_of,
    bits_of,
    dealt_out,
    evenly,
    joined,
    operator_name,
    plain,
    put_back,
    reduction,
)
from antiphon.runtimes.serve.book import Page
from antiphon.runtimes.serve.call_head import type_code
from antiphon.runtimes.serve.ledger import Ledger
from antiphon.runtimes.serve.serving import IN_PARTS, Serving
from antiphon.runtimes.serve.torch_arguments import WrongCall, need_alike, need_fit

Tensors = Sequence[Tensor]
_GLOO_TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
_GLOO_OPERATORS = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
_NOTHING = np.empty(0, np.uint8)
_LOCALLY = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}


class Calls:
    """By the engine where it can, by gloo where not; `serving` is None in a group of one process."""

    def __init__(self, serving: Serving | None, gloo: Callable[[], Any], rank: int, ranks: int) -> None:
        self.serving, self.gloo, self.rank, self.ranks = serving, gloo, rank, ranks
        self.ledger = serving.ledger if serving else Ledger()
        self._left = ""  # why the table has no page for the last call

    # ---- choosing ----

    def _begin(self, kind: str, tensor: Tensor, op: Any = None, root: int = -1, counts: bool = True) -> None:
        """What all must call alike. `tensor`: of one process, as large at each of them, if its elements count."""
        if self.serving is not None:
            nbytes = tensor.numel() * tensor.element_size() if counts else 0
            type_ = type_code(tensor.dtype, tensor.layout is not torch.strided)
            self.serving.begin(kind, nbytes, type_, "" if op is None else operator_name(op), root)

    def _page(
        self, kind: str, unit: int, itemsize: int, seconds: float, root: int = -1, library: bool = True
    ) -> Page | None:
        assert self.serving is not None
        call = Call(kind, self.serving.nbytes(kind, unit, itemsize), root)
        page = self.serving.find(call, seconds, library)
        self._left = "" if page is not None else self.serving.why_not(call)
        return page

    def _by_gloo(self, kind: str, tensors: Tensors, why: str, seconds: float, do: Callable[[], Any]) -> None:
        nbytes, began = sum(one.numel() * one.element_size() for one in tensors), time.perf_counter()
        if self.serving is not None:
            why = why or self._left
            self.serving.agree(seconds)
        do().wait(timedelta(seconds=seconds))
        row = self.ledger.row(kind, "gloo", "library", why)
        self.ledger.count(row, nbytes * (self.ranks if kind in IN_PARTS else 1), time.perf_counter() - began)

    def _run(self, page: Page, unit: int, source: Any, target: Any, seconds: float, op: str = "sum") -> None:
        assert self.serving is not None
        self.serving.run(page, unit, source, target, op, seconds)

    def _moved(self, kind: str, unit: int, source: Any, target: Any, seconds: float, root: int = -1) -> None:
        """What gloo is not asked for: it always has a page."""
        if self.serving is None:
            target[:] = source
            return
        page = self._page(kind, unit, target.itemsize, seconds, root, library=False)
        assert page is not None
        self._run(page, unit, source, target, seconds)

    def barrier(self, seconds: float) -> None:
        if self.serving is not None:
            self.serving.begin("barrier", 0, 0)
            self.serving.agree(seconds)

    # ---- combining ----

    def _combined(self, kind: str, tensor: Tensor, op: Any, how: Any, seconds: float, root: int = -1) -> bool:
        """Whether the engine could: into the root's tensor, where there is none into everybody's."""
        if how is None:
            return False
        mine = root in (-1, self.rank)
        made = plain(how.given(tensor))
        array = array_of(made)
        if self.serving is not None:
            page = self._page(kind, len(array), array.itemsize, seconds, root, _known(op, tensor))
            if page is None:
                return False
            source, target = (None, array) if mine else (array, _NOTHING.view(array.dtype))
            self._run(page, len(array), source, target, seconds, how.op)
        if mine:
            put_back(made, tensor)
        return True

    def allreduce(self, tensor: Tensor, op: Any, seconds: float) -> None:
        self._begin("allreduce", tensor, op)
        how = reduction(op, tensor.dtype) if tensor.layout is torch.strided else None
        if self._combined("allreduce", tensor, op, how, seconds):
            return
        options = dist.AllreduceOptions()
        options.reduceOp = op
        self._by_gloo("allreduce", [tensor], _why(how), seconds, lambda: self.gloo().allreduce([tensor], options))

    def allreduce_as_one(self, tensors: Tensors, op: Any, seconds: float) -> None:
        """Combine all tensors of all processes into one result, which each of them becomes."""
        first, *others = tensors
        if others:
            combine = _LOCALLY.get(operator_name(op))
            if combine is None or (first.layout is not torch.strided and combine is not torch.add):
                raise WrongCall(f"allreduce: unsupported reduction operation {operator_name(op)} of several tensors")
            whole = first.detach().clone()
            for tensor in others:
                whole = combine(whole, tensor)
            self.allreduce(whole, op, seconds)
            with torch.no_grad():
                for tensor in tensors:
                    tensor.copy_(whole)
        else:
            self.allreduce(first, op, seconds)

    def allreduce_several(self, tensors: Tensors, op: Any, seconds: float) -> None:
        """Those of one type as one."""
        if any(one.layout is not torch.strided for one in tensors):
            for one in tensors:
                self.allreduce(one, op, seconds)
            return
        for dtype in dict.fromkeys(one.dtype for one in tensors):
            alike = [one for one in tensors if one.dtype is dtype]
            if len(alike) == 1:
                self.allreduce(alike[0], op, seconds)
            else:
                line = joined(alike)
                self.allreduce(line, op, seconds)
                dealt_out(line, alike)

    def reduce(self, tensor: Tensor, root: int, op: Any, seconds: float) -> None:
        self._begin("reduce", tensor, op, root)
        how = reduction(op, tensor.dtype)
        if self._combined("reduce", tensor, op, how, seconds, root):
            return
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = op, root
        self._by_gloo("reduce", [tensor], _why(how), seconds, lambda: self.gloo().reduce([tensor], options))

    def reduce_scatter(self, output: Tensor, given: Tensor, op: Any, seconds: float) -> None:
        need_fit("reduce_scatter: the input", given, output, self.ranks)
        self._begin("reducescatter", output, op)
        how = reduction(op, given.dtype)
        page = None
        if how is not None:
            source, made = array_of(plain(how.given(given))), plain(output)
            target = array_of(made)
            if self.serving is not None:
                page = self._page("reducescatter", len(target), target.itemsize, seconds, library=_known(op, given))
                if page is not None and not _overlap(source, target):
                    self._run(page, len(target), source, target, seconds, how.op)
                elif page is not None:
                    result = np.empty_like(target)
                    self._run(page, len(target), source, result, seconds, how.op)
                    target[:] = result
            else:
                target[:] = source
            if page is not None or self.serving is None:
                put_back(made, output)
                return
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        parts = list(given.reshape(-1).chunk(self.ranks)) if given.numel() else [given.reshape(-1)] * self.ranks
        whole = plain(output).reshape(-1)
        self._by_gloo(
            "reducescatter", [output], _why(how), seconds, lambda: self.gloo().reduce_scatter([whole], [parts], options)
        )
        put_back(whole.view(output.shape), output)

    def reduce_scatter_list(self, output: Tensor, given: Tensors, op: Any, seconds: float) -> None:
        if evenly(given):
            self.reduce_scatter(output, joined(given), op, seconds)
            return
        need_alike("reduce_scatter: the output", output, given[self.rank])
        for root, one in enumerate(given):
            made = one.detach().clone()
            self.reduce(made, root, op, seconds)
            if root == self.rank:
                dealt_out(made.reshape(-1), [output])

    # ---- moving ----

    def broadcast(self, tensor: Tensor, root: int, seconds: float) -> None:
        if self.serving is None:
            return
        self._begin("broadcast", tensor, None, root)
        made = plain(tensor)
        array = bits_of(made)
        page = self._page("broadcast", len(array), array.itemsize, seconds, root)
        if page is not None:
            self._run(page, len(array), None, array, seconds)
            if self.rank != root:
                put_back(made, tensor)
            return
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._by_gloo("broadcast", [tensor], "", seconds, lambda: self.gloo().broadcast([made], options))
        put_back(made, tensor)

    def allgather(self, output: Tensor, given: Tensor, seconds: float) -> None:
        need_fit("all_gather: the output", output, given, self.ranks)
        self._begin("allgather", given)
        made = plain(output)
        source, target = bits_of(plain(given)), bits_of(made)
        if self.serving is None:
            target[:] = source
        else:
            unit = len(source)
            page = self._page("allgather", unit, source.itemsize, seconds)
            if page is None:
                parts = list(made.reshape(-1).chunk(self.ranks))
                given = given.reshape(-1).clone()
                self._by_gloo("allgather", [given], "", seconds, lambda: self.gloo().allgather([parts], [given]))
            else:
                mine = target[self.rank * unit : (self.rank + 1) * unit]
                if address(source) != address(mine) and _overlap(source, target):
                    source = source.copy()
                self._run(page, unit, None if address(source) == address(mine) else source, target, seconds)
        put_back(made, output)

    def allgather_list(self, outputs: Tensors, given: Tensor, seconds: float) -> None:
        if evenly([*outputs, given]):
            line = given.new_empty(given.numel() * self.ranks)
            self.allgather(line, given, seconds)
            dealt_out(line, outputs)
            return
        need_alike("all_gather: its own output", outputs[self.rank], given)
        for root, one in enumerate(outputs):
            if root == self.rank:
                dealt_out(given.detach().reshape(-1), [one])
            self.broadcast(one, root, seconds)

    def gather(self, outputs: Tensors, given: Tensor, root: int, seconds: float) -> None:
        source = bits_of(plain(given))
        line = given.new_empty(given.numel() * self.ranks if self.rank == root else 0)
        if self.rank == root and not evenly([*outputs, given]):
            raise WrongCall("gather: all tensors must have equally many elements")
        self._begin("gather", given, None, root)
        self._moved("gather", len(source), source, bits_of(line), seconds, root)
        if self.rank == root:
            dealt_out(line, outputs)

    def scatter(self, output: Tensor, given: Tensors, root: int, seconds: float) -> None:
        if self.rank == root and not evenly([*given, output]):
            raise WrongCall("scatter: all tensors must have equally many elements")
        self._begin("scatter", output, None, root)
        made = plain(output)
        target = bits_of(made)
        source = bits_of(joined(given)) if self.rank == root else _NOTHING.view(target.dtype)
        self._moved("scatter", len(target), source, target, seconds, root)
        put_back(made, output)

    def alltoall(
        self, output: Tensor, given: Tensor, out_sizes: Sequence[int], in_sizes: Sequence[int], seconds: float
    ) -> None:
        """`sizes`: elements for every process, all of those there are."""
        if output.dtype is not given.dtype:
            raise WrongCall(f"all_to_all: the output is of {output.dtype}, the input of {given.dtype}")
        made = plain(output)
        line = plain(given)
        if self.serving is None:
            bits_of(made)[:] = bits_of(line)
            put_back(made, output)
            return
        if line.data_ptr() < made.data_ptr() + made.nbytes and made.data_ptr() < line.data_ptr() + line.nbytes:
            line = line.clone()
        self._begin("alltoall", given, counts=False)
        lengths = np.array([in_sizes, out_sizes], np.uint64) * np.uint64(given.element_size())
        found = self.serving.uneven(line.data_ptr(), made.data_ptr(), lengths, seconds)
        if found == DISAGREED:
            self._find_disagreement(given, in_sizes, out_sizes, seconds)
        if found == EVEN:
            self._exchanged(given, bits_of(line), bits_of(made), seconds)
        put_back(made, output)

    def _exchanged(self, given: Tensor, source: Any, target: Any, seconds: float) -> None:
        """As much from each to each."""
        assert self.serving is not None
        unit = len(source) // self.ranks
        self.serving.begin("alltoall", unit * source.itemsize, type_code(given.dtype))
        self._moved("alltoall", unit, source, target, seconds)

    def alltoall_list(self, outputs: Tensors, given: Tensors, seconds: float) -> None:
        if {len(outputs), len(given)} != {self.ranks}:
            raise WrongCall(f"all_to_all: needs {self.ranks} tensors to send and as many to receive")
        sizes = [[one.numel() for one in side] for side in (outputs, given)]
        line = outputs[0].new_empty(sum(sizes[0]))
        self.alltoall(line, joined(given), sizes[0], sizes[1], seconds)
        dealt_out(line, outputs)

    def _find_disagreement(
        self, given: Tensor, in_sizes: Sequence[int], out_sizes: Sequence[int], seconds: float
    ) -> None:
        assert self.serving is not None
        mine = np.array([*in_sizes, *out_sizes], np.int64)
        every = np.empty(self.ranks * len(mine), np.int64)
        self._begin("alltoall", given, counts=False)
        page = self._page("allgather", len(mine), 8, seconds, library=False)
        assert page is not None
        self.serving.run(page, len(mine), mine, every, "sum", seconds, counted=False)
        sends, expects = every.reshape(self.ranks, 2, self.ranks).swapaxes(0, 1)
        a, b = np.argwhere(sends != expects.T)[0]
        raise WrongCall(
            f"all_to_all: rank {a} sends {sends[a, b]} elements to rank {b}, which expects {expects[b, a]} from it"
        )


def _known(op: Any, tensor: Tensor) -> bool:
    """Whether gloo can do it."""
    return tensor.dtype in _GLOO_TYPES and any(op == one for one in _GLOO_OPERATORS)


def _why(how: Any) -> str:
    return "" if how is not None else "an operator or type that the engine has not"


def _overlap(a: Any, b: Any) -> bool:
    return bool(np.may_share_memory(a, b))
