"""Tensors as the engine's arrays, and PyTorch's operators as its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ReduceOp

Array = NDArray[Any]
_OWN = {
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.float32, torch.float64,
}  # fmt: skip
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOAT8 = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_OPERATORS = (
    (ReduceOp.SUM, "sum"), (ReduceOp.AVG, "avg"), (ReduceOp.MAX, "max"), (ReduceOp.MIN, "min"),
    (ReduceOp.PRODUCT, "prod"), (ReduceOp.PREMUL_SUM, "sum"),
)  # fmt: skip
_NAMES = {
    **dict(_OPERATORS), ReduceOp.BAND: "band", ReduceOp.BOR: "bor", ReduceOp.BXOR: "bxor",
}  # fmt: skip
_OF_BOOLEANS = {"sum": "max", "max": "max", "min": "min", "prod": "min"}


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a contiguous tensor, flat, where they are: for combining."""
    line = tensor.detach().reshape(-1)
    if line.dtype is torch.bfloat16:
        return np.asarray(line.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    if line.dtype in _FLOAT8:
        return np.asarray(line.view(torch.uint8).numpy().view(_FLOAT8[line.dtype]))
    if line.dtype is torch.bool:
        return np.asarray(line.view(torch.uint8).numpy())
    if line.dtype in _REAL:
        line = torch.view_as_real(line).reshape(-1)
    return np.asarray(line.numpy())


def bits_of(tensor: torch.Tensor) -> Array:
    """Likewise of any type, for moving only: as whole numbers of its size."""
    line = tensor.detach().reshape(-1)
    if line.dtype in _OWN:
        return np.asarray(line.numpy())
    if line.is_complex():
        return array_of(tensor)
    return np.asarray(line.view(_BITS[line.dtype.itemsize]).numpy())


@dataclass(frozen=True)
class Reduction:
    """How the engine does it: `op`, after every process has multiplied what it gives by `factor`."""

    op: str
    factor: Any = None

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.factor is None else tensor * self.factor


def reduction(op: Any, dtype: torch.dtype) -> Reduction | None:
    """None: an operator or a type that is not the engine's."""
    name = next((name for one, name in _OPERATORS if op == one), "")
    if not name:
        return None
    factor = op.__getstate__()[1] if op == ReduceOp.PREMUL_SUM else None
    if factor is not None and not dtype.is_floating_point:
        return None
    if dtype in _OWN or dtype is torch.bfloat16:
        return Reduction(name, factor)
    if dtype in _FLOAT8 and factor is None:  # PyTorch multiplies none
        return Reduction(name)
    if dtype in (torch.complex64, torch.complex128):  # the parts of a sum are sums
        return Reduction(name) if name in ("sum", "avg") else None
    if dtype is torch.bool and name in _OF_BOOLEANS:
        return Reduction(_OF_BOOLEANS[name])
    return None


def operator_name(op: Any) -> str:
    """For messages; two that combine differently have different ones."""
    return _NAMES.get(getattr(op, "op", op), "another operator")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where the engine can work in its memory, else a copy that is contiguous."""
    made = tensor.detach().resolve_conj().resolve_neg()
    return made if made.is_contiguous() else made.contiguous()


def put_back(made: torch.Tensor, tensor: torch.Tensor) -> None:
    """The elements of a copy into the tensor that it was made of."""
    if made.data_ptr() != tensor.data_ptr() or made.stride() != tensor.stride() or made.is_conj() != tensor.is_conj():
        with torch.no_grad():
            tensor.detach().copy_(made.view(tensor.shape))


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All elements of all of them, one after another."""
    return torch.cat([one.detach().reshape(-1) for one in tensors])


def dealt_out(line: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """The elements of a flat tensor to all of them, in order."""
    at = 0
    with torch.no_grad():
        for one in tensors:
            one.detach().copy_(line[at : at + one.numel()].view(one.shape))
            at += one.numel()


def evenly(tensors: Sequence[torch.Tensor]) -> bool:
    return len({one.numel() for one in tensors}) == 1
