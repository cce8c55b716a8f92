"""The collectives of PyTorch on a device: what each asks NCCL for, within a group, and what comes behind it.

All of this happens on the stream of a line, so tensors are put in order and brought back there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from antiphon.runtimes.serve._torch_data import (
    dealt_out,
    evenly,
    joined,
    operator_name,
    plain,
    put_back,
    reduction,
)
from antiphon.runtimes.serve.torch_nccl import BYTES, TYPES, Nccl, operator
from antiphon.runtimes.serve.torch_streams import Streams

Tensors = Sequence[Tensor]
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.bool: torch.uint8}


class CallStream:
    """A communicator, and the stream that its calls are asked for on. `members`: which of the group it is between."""

    def __init__(self, nccl: Nccl, streams: Streams, comm: int, members: Sequence[int], rank: int) -> None:
        self.nccl, self.comm, self.ranks, self.rank = nccl, comm, len(members), members.index(rank)
        self.place = {member: place for place, member in enumerate(members)}
        self.stream = streams.fresh()
        self.pointer = streams.pointer(self.stream)
        self.made: list[tuple[str, int]] = []  # the calls of a group: kind, and bytes as a report counts them

    def ask(self, name: str, kind: str, nbytes: int, *arguments: Any) -> None:
        self.nccl.call(name, *arguments, self.comm, self.pointer)
        self.made.append((kind, nbytes))


@dataclass
class Call:
    """`tensors`: whose memory is needed until it is done; `then`: what comes behind the group."""

    ask: Callable[[CallStream, Call], None]
    tensors: list[Tensor]
    results: list[Tensor]
    then: list[Callable[[], None]] = field(default_factory=list)

    def whole(self, tensor: Tensor) -> Tensor:
        """To be read."""
        made = plain(tensor)
        self.tensors.append(made)
        return made

    def into(self, tensor: Tensor) -> Tensor:
        """To be written."""
        made = self.whole(tensor)
        self.then.append(partial(put_back, made, tensor))
        return made


@dataclass(frozen=True)
class Combining:
    """How NCCL does it: its number of the type and of the operator, after what is given was multiplied."""

    type: int
    op: int
    given: Callable[[Tensor], Tensor]


def combining(kind: str, op: Any, dtype: torch.dtype) -> Combining:
    how = reduction(op, dtype)
    number = TYPES.get(_REAL.get(dtype, dtype))
    if how is None or number is None:
        raise ValueError(f"{kind}: NCCL has no {operator_name(op)} of {dtype}")
    return Combining(number, operator(how.op), how.given)


def _elements(tensor: Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


# ---- combining ----


def allreduce(line: CallStream, call: Call, tensors: Tensors, op: Any) -> None:
    for one in tensors:
        how = combining("all_reduce", op, one.dtype)
        source, target = call.whole(how.given(one)), call.into(one)
        places = source.data_ptr(), target.data_ptr()
        line.ask("AllReduce", "allreduce", source.nbytes, *places, _elements(source), how.type, how.op)


def reduce(line: CallStream, call: Call, tensor: Tensor, target: Tensor | None, root: int, op: Any) -> None:
    """`target`: where the result goes, at the root; None: nowhere, though there is room for it."""
    how = combining("reduce", op, tensor.dtype)
    source = call.whole(how.given(tensor))
    into = call.into(target) if target is not None else torch.empty_like(source)
    call.tensors.append(into)
    places = source.data_ptr(), into.data_ptr()
    line.ask("Reduce", "reduce", source.nbytes, *places, _elements(source), how.type, how.op, root)


def reduce_scatter(line: CallStream, call: Call, output: Tensor, given: Tensor, op: Any) -> None:
    how = combining("reduce_scatter", op, given.dtype)
    source, target = call.whole(how.given(given)), call.into(output)
    places = source.data_ptr(), target.data_ptr()
    line.ask("ReduceScatter", "reducescatter", source.nbytes, *places, _elements(target), how.type, how.op)


def reduce_scatter_list(line: CallStream, call: Call, output: Tensor, inputs: Tensors, op: Any) -> None:
    if evenly(inputs):
        reduce_scatter(line, call, output, joined(inputs), op)
        return
    for root, one in enumerate(inputs):
        reduce(line, call, one, output if root == line.rank else None, root, op)


# ---- moving ----


def broadcast(line: CallStream, call: Call, tensors: Tensors, root: int) -> None:
    for one in tensors:
        made = call.whole(one) if line.rank == root else call.into(one)
        line.ask("Broadcast", "broadcast", made.nbytes, made.data_ptr(), made.data_ptr(), made.nbytes, BYTES, root)


def allgather(line: CallStream, call: Call, output: Tensor, given: Tensor) -> None:
    source, target = call.whole(given), call.into(output)
    line.ask("AllGather", "allgather", target.nbytes, source.data_ptr(), target.data_ptr(), source.nbytes, BYTES)


def allgather_list(line: CallStream, call: Call, outputs: Tensors, given: Tensor) -> None:
    if evenly([*outputs, given]):
        made = given.new_empty(given.numel() * line.ranks)
        allgather(line, call, made, given)
        call.then.append(partial(dealt_out, made, outputs))
        return
    dealt_out(given.detach().reshape(-1), [outputs[line.rank]])
    for root, one in enumerate(outputs):
        broadcast(line, call, [one], root)


def gather(line: CallStream, call: Call, outputs: Tensors, given: Tensor, root: int) -> None:
    source = call.whole(given)
    made = call.whole(given.new_empty(given.numel() * line.ranks if line.rank == root else 0))
    if line.rank == root:
        call.then.append(partial(dealt_out, made, outputs))
    nbytes, whole = source.nbytes, source.nbytes * line.ranks
    if line.nccl.has_all:
        line.ask("Gather", "gather", whole, source.data_ptr(), made.data_ptr(), nbytes, BYTES, root)
    else:
        _rooted(line, root, ("Recv", made.data_ptr()), ("Send", source.data_ptr()), nbytes)


def scatter(line: CallStream, call: Call, output: Tensor, given: Tensors, root: int) -> None:
    made = call.whole(joined(given) if line.rank == root else output.new_empty(0))
    target = call.into(output)
    nbytes, whole = target.nbytes, target.nbytes * line.ranks
    if line.nccl.has_all:
        line.ask("Scatter", "scatter", whole, made.data_ptr(), target.data_ptr(), nbytes, BYTES, root)
    else:
        _rooted(line, root, ("Send", made.data_ptr()), ("Recv", target.data_ptr()), nbytes)


def _rooted(line: CallStream, root: int, at_root: tuple[str, int], everywhere: tuple[str, int], nbytes: int) -> None:
    """By messages, where NCCL has no call for it: from or to blocks at the root, for each rank one."""
    if line.rank == root:
        for rank in range(line.ranks):
            line.ask(at_root[0], "", 0, at_root[1] + rank * nbytes, nbytes, BYTES, rank)
    line.ask(everywhere[0], "", 0, everywhere[1], nbytes, BYTES, root)


def alltoall(line: CallStream, call: Call, output: Tensor, given: Tensor) -> None:
    """As much from each to each."""
    source, target = call.whole(given), call.into(output)
    block = source.nbytes // line.ranks
    line.ask("AlltoAll", "alltoall", source.nbytes, source.data_ptr(), target.data_ptr(), block, BYTES)


def exchange(line: CallStream, call: Call, outputs: Tensors, inputs: Tensors) -> None:
    """From each to each what these hold. Those of nothing are not sent, at either end."""
    for rank, (output, given) in enumerate(zip(outputs, inputs, strict=True)):
        source, target = call.whole(given), call.into(output)
        if source.nbytes:
            line.ask("Send", "", 0, source.data_ptr(), source.nbytes, BYTES, rank)
        if target.nbytes:
            line.ask("Recv", "", 0, target.data_ptr(), target.nbytes, BYTES, rank)


def exchange_parts(
    line: CallStream, call: Call, output: Tensor, given: Tensor, sizes: tuple[Sequence[int], Sequence[int]]
) -> None:
    """`sizes`: elements of the parts of both, one for each rank."""
    source, target = call.whole(given).reshape(-1), call.into(output).reshape(-1)
    exchange(line, call, target.split(list(sizes[0])), source.split(list(sizes[1])))


def message(line: CallStream, call: Call, name: str, tensor: Tensor, peer: int) -> None:
    made = call.whole(tensor) if name == "Send" else call.into(tensor)
    line.ask(name, "", 0, made.data_ptr(), made.nbytes, BYTES, line.place[peer])
