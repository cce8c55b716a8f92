"""Arguments of the calls of a process group, in both forms that PyTorch has, and their checks.

The same broadcast from rank 2 in both forms:

    options object    group.broadcast([tensor], options), where options is a BroadcastOptions with rootRank = 2
    one by one        group.broadcast(tensor, 2) or group.broadcast(tensor, root=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from antiphon.errors import Unsupported

Tensors = Sequence[Any]
# Bytes: up to this size a blocking call runs in the caller's own thread. A larger one would delay signal handlers.
_MAX_CALLER_BYTES = 1 << 20


class WrongCall(ValueError, RuntimeError):
    """The arguments of a call do not fit: a RuntimeError, as with gloo, and a ValueError, as from PyTorch itself."""


def options_of(
    options_class: Any, opts: Any = None, root: int | None = None, op: Any = None, timeout: timedelta | None = None
) -> Any:
    """Return the options of a call as an instance of PyTorch's `options_class`, from either form of the arguments.

    `opts` may also be the root, operator or timeout: in the second form one of these stands in its place.
    """
    if isinstance(opts, timedelta):
        opts, timeout = None, opts
    elif isinstance(opts, int) and not isinstance(opts, bool) and root is None and hasattr(options_class, "rootRank"):
        opts, root = None, opts
    elif isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
        opts, op = None, opts
    if opts is not None or (root is None and op is None and timeout is None):
        return opts
    out = options_class()
    for name, value in (("rootRank", root), ("reduceOp", op), ("timeout", timeout)):
        if value is not None:
            setattr(out, name, value)
    return out


def runs_in_caller(opts: Any, inputs: Tensors, results: Tensors) -> bool:
    """Return whether the call is blocking and small enough to run in the caller's own thread."""
    waits = not getattr(opts, "asyncOp", True)  # without options the call may be asynchronous
    return waits and sum(tensor.numel() * tensor.element_size() for tensor in (inputs or results)) <= _MAX_CALLER_BYTES


def as_list(tensors: Any, tensor: Any = None) -> list[Any]:
    """Return the tensors of a call, given as a list or as one tensor."""
    argument = tensor if tensors is None else tensors
    if argument is None:
        raise TypeError("no tensors are given")
    return [argument] if isinstance(argument, torch.Tensor) else list(argument)


def lists_and_tensors(lists: Any, tensors: Any) -> tuple[list[Any], list[Any]]:
    """Return both arguments as lists: if `tensors` is a single tensor, `lists` is a single list of tensors."""
    if isinstance(tensors, torch.Tensor):
        return [list(lists)], [tensors]
    return list(lists), list(tensors)


def require_cpu(kind: str, tensors: Tensors) -> None:
    """Refuse tensors in the memory of a GPU, and name the route by which those run our plans."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise Unsupported(
                f"{kind}: the tensor is on {tensor.device}, and the backend antiphon communicates CPU tensors only. "
                "For GPU tensors use the backend nccl, with MSCCL++'s NCCL library in its place, which runs exported "
                "plans (docs/gpu.md)"
            )


def require_tensors(kind: str, tensors: Tensors) -> None:
    """Require at least one tensor. Messages begin as gloo's do, as programs may match them."""
    if not tensors:
        raise WrongCall(f"{kind}: requires non-empty tensor list")


def require_alike(kind: str, tensors: Tensors) -> None:
    """Refuse tensors that differ in type, layout or shape from the first."""
    first = tensors[0]
    for number, tensor in enumerate(tensors):
        if tensor.dtype is not first.dtype:
            raise WrongCall(f"{kind}: invalid tensor type at index {number}: {tensor.dtype}, expected {first.dtype}")
        if tensor.layout is not first.layout:
            layouts = f"{tensor.layout}, expected {first.layout}"
            raise WrongCall(f"{kind}: invalid tensor layout at index {number}: {layouts}")
        if tensor.shape != first.shape:
            sizes = f"{tuple(tensor.shape)}, expected {tuple(first.shape)}"
            raise WrongCall(f"{kind}: invalid tensor size at index {number}: {sizes}")


def root_tensor_of(opts: Any, tensors: Tensors) -> int:
    """Return which of the root's tensors is broadcast: the first, if the options do not say."""
    number = int(getattr(opts, "rootTensor", 0))
    if not 0 <= number < len(tensors):
        raise WrongCall(f"broadcast: invalid root tensor: {number}; {len(tensors)} tensors were passed")
    return number


def require_one_tensor(kind: str, tensors: Tensors) -> None:
    if len(tensors) != 1:
        raise WrongCall(f"{kind}: requires a single-element tensor list, not {len(tensors)} tensors")


def require_root(kind: str, root: int, ranks: int) -> None:
    if not 0 <= root < ranks:
        raise WrongCall(f"{kind}: invalid root rank: {root}; the group has {ranks} processes, numbered from 0")


def require_same_count(kind: str, outputs: Tensors, inputs: Tensors) -> None:
    """Require at least one input, and as many outputs as inputs."""
    require_tensors(kind, inputs)
    if len(outputs) != len(inputs):
        raise WrongCall(
            f"{kind}: requires input/output tensor lists to have the same length, not {len(inputs)} and {len(outputs)}"
        )


def require_per_process(kind: str, name: str, tensors: Tensors, ranks: int, inputs: int = 1) -> None:
    """Require `inputs` tensors for each process: as many as a process has inputs."""
    if len(tensors) != ranks * inputs:
        count = "one" if inputs == 1 else str(inputs)
        raise WrongCall(
            f"{kind}: invalid {name} tensor list: it has {len(tensors)} tensors, {count} for each of {ranks} processes "
            "needed"
        )


def require_lists_at_root(kind: str, name: str, lists: Tensors, at_root: bool, ranks: int) -> None:
    """Require one list of a tensor per process at the root, and none at any other process."""
    if at_root:
        if len(lists) != 1:
            raise WrongCall(
                f"{kind}: requires a single-element {name} list containing a list with {ranks} tensors, not "
                f"{len(lists)} lists"
            )
        require_per_process(kind, name, lists[0], ranks)
    elif lists and any(map(len, lists)):
        raise WrongCall(f"{kind}: requires empty {name} on non-root")


def require_block_size(name: str, tensor: Any, block: Any, ranks: int = 1) -> None:
    """Require that a tensor has the type of `block` and `ranks` times its elements."""
    elements = ranks * block.numel()
    if tensor.numel() != elements or tensor.dtype is not block.dtype:
        raise WrongCall(
            f"{name} has {tensor.numel()} elements of {tensor.dtype}, needed are {elements} of {block.dtype}"
        )


def operator_of(opts: Any) -> Any:
    """Return the reduction operator of a call's options; default: sum."""
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)  # it may be the operator itself


def root_of(opts: Any) -> int:
    """Return the root of a call's options, or the options themselves if they are a root; default: rank 0."""
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def elements_of(tensor: Any, splits: Sequence[int], ranks: int) -> list[int]:
    """Return the number of elements of each block of a tensor that is split along its first dimension.

    `splits`: rows of each block; empty: all blocks have the same number of rows.
    """
    rows = int(tensor.shape[0]) if tensor.dim() else 1
    if not splits:
        if rows % ranks:
            raise WrongCall(f"all_to_all_single: {rows} rows cannot be dealt out evenly to {ranks} processes")
        return [tensor.numel() // ranks] * ranks
    if len(splits) != ranks or sum(splits) != rows or min(splits) < 0:
        raise WrongCall(f"all_to_all_single: the {len(splits)} parts do not make up the {rows} rows")
    row_elements = tensor.numel() // rows if rows else 0
    return [int(split) * row_elements for split in splits]
