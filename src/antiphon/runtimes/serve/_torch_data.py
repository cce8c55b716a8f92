"""Convert tensors to arrays of the engine, and operators of PyTorch to those of the engine.

Arrays are views of the memory of contiguous tensors; types that NumPy lacks are those of ml_dtypes.
"""

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
# types that NumPy has, too
_NUMPY_TYPES = {
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.float32, torch.float64,
}  # fmt: skip
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOAT8 = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
_REAL_TYPES = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_OPERATORS = (
    (ReduceOp.SUM, "sum"), (ReduceOp.AVG, "avg"), (ReduceOp.MAX, "max"), (ReduceOp.MIN, "min"),
    (ReduceOp.PRODUCT, "prod"), (ReduceOp.PREMUL_SUM, "sum"),
)  # fmt: skip
_OPERATOR_NAMES = {
    **dict(_OPERATORS), ReduceOp.BAND: "band", ReduceOp.BOR: "bor", ReduceOp.BXOR: "bxor",
}  # fmt: skip
_BOOLEAN_OPERATORS = {"sum": "max", "max": "max", "min": "min", "prod": "min"}  # on 0 and 1: or is max, and is min


def array_of(tensor: torch.Tensor) -> Array:
    """Return a flat view of a contiguous tensor, for combining."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype is torch.bfloat16:
        return np.asarray(flat.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    if flat.dtype in _FLOAT8:
        return np.asarray(flat.view(torch.uint8).numpy().view(_FLOAT8[flat.dtype]))
    if flat.dtype is torch.bool:
        return np.asarray(flat.view(torch.uint8).numpy())
    if flat.dtype in _REAL_TYPES:
        flat = torch.view_as_real(flat).reshape(-1)
    return np.asarray(flat.numpy())


def bits_of(tensor: torch.Tensor) -> Array:
    """Return a flat view of a contiguous tensor of any type, for moving only.

    It has the tensor's own type if NumPy has that, floats if it is complex, else integers of its size.
    """
    flat = tensor.detach().reshape(-1)
    if flat.dtype in _NUMPY_TYPES:
        return np.asarray(flat.numpy())
    if flat.is_complex():
        return array_of(tensor)
    return np.asarray(flat.view(_INTEGER_OF_SIZE[flat.dtype.itemsize]).numpy())


@dataclass(frozen=True)
class Reduction:
    """The operator of the engine, applied after every process has multiplied its input by `factor`."""

    op: str
    factor: Any = None

    def scale(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.factor is None else tensor * self.factor


def find_reduction(op: Any, dtype: torch.dtype) -> Reduction | None:
    """Return how the engine reduces this type by this operator; None if it cannot."""
    # `op` may be a ReduceOp, which equals its kind but is not found by it in a dictionary
    name = next((name for operator, name in _OPERATORS if op == operator), "")
    if not name:
        return None
    # the state of an operator is (kind, factor); only PREMUL_SUM has a factor
    _, factor = op.__getstate__() if op == ReduceOp.PREMUL_SUM else (op, None)
    if factor is not None and not dtype.is_floating_point:
        return None
    if dtype in _NUMPY_TYPES or dtype is torch.bfloat16:
        return Reduction(name, factor)
    if dtype in _FLOAT8 and factor is None:  # PyTorch cannot multiply these
        return Reduction(name)
    if dtype in (torch.complex64, torch.complex128):  # real and imaginary parts are summed separately
        return Reduction(name) if name in ("sum", "avg") else None
    if dtype is torch.bool and name in _BOOLEAN_OPERATORS:
        return Reduction(_BOOLEAN_OPERATORS[name])
    return None


def operator_name(op: Any) -> str:
    """Return the name of an operator, for messages; operators that combine differently have different names."""
    return _OPERATOR_NAMES.get(getattr(op, "op", op), "another operator")


def as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if the engine can work in its memory, else a contiguous copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def put_back(copy: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy the elements of `copy` (by `as_contiguous`) back to `tensor`, unless both are the same memory."""
    if copy.data_ptr() != tensor.data_ptr() or copy.stride() != tensor.stride() or copy.is_conj() != tensor.is_conj():
        with torch.no_grad():
            tensor.detach().copy_(copy.view(tensor.shape))


def flatten_all(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors, one after another."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def copy_from_flat(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the elements of a flat tensor to these tensors, in order."""
    start = 0
    with torch.no_grad():
        for tensor in tensors:
            tensor.detach().copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()


def have_equal_sizes(tensors: Sequence[torch.Tensor]) -> bool:
    return len({tensor.numel() for tensor in tensors}) == 1
