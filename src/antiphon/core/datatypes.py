"""The data types and operators of collectives, with the names and the arithmetic of NCCL and C.

Integers wrap around as in C. float16, bfloat16 and float8 are combined in float32 and rounded to the data type once per
combination, to the nearest with ties to even. (float8_e4m3fn has no infinity: values out of range become NaN.) Every
other type is combined in itself. avg is a sum with one division at the end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.errors import Invalid, quote, unknown

# Data types that NumPy has itself
_PLAIN = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # defined by the package ml_dtypes
DATA_TYPES = (*_PLAIN, *_NARROW)
_ALIASES = {
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "f8e4m3": "float8_e4m3fn", "float8_e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "bf16": "bfloat16", "half": "float16", "float": "float32", "double": "float64",
}  # fmt: skip

# The function that combines two operands; avg adds, and `average` divides the result once
_COMBINE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add,
}  # fmt: skip
OPERATORS = tuple(_COMBINE)


def data_type(name: object) -> np.dtype[Any]:
    """Return the NumPy type for a name ("float32", "f32", "bfloat16", ...) or a NumPy type.

    Python integers (NumPy's object type) are accepted, too: tests count contributions with them exactly.
    """
    if isinstance(name, str):
        full = _ALIASES.get(name.lower(), name.lower())
        if full in _NARROW:
            import ml_dtypes

            narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, full))
            return narrow
        if full not in _PLAIN:
            raise unknown("data type", name, DATA_TYPES)
        return np.dtype(full)
    try:
        if not isinstance(name, type | np.dtype):  # np.dtype would accept more, such as None for float64
            raise TypeError
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        raise Invalid(f"data type: expected a name like float32, got {quote(name)}") from None
    return _to_native_order(dtype)


@cache  # NumPy builds the name of a type on each access, which takes longer than a short message
def _to_native_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Check a NumPy type, and return it in the byte order of this machine."""
    if dtype.name not in (*DATA_TYPES, "object"):
        raise unknown("data type", dtype.name, DATA_TYPES)
    return dtype.newbyteorder("=")


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which values of a data type are combined."""
    return np.dtype(np.float32) if dtype.name in ("float16", *_NARROW) else dtype


def combine_of(op: object) -> np.ufunc:
    """Return the function that combines two operands; for avg a sum, which `average` divides at the end."""
    if not isinstance(op, str) or op not in _COMBINE:
        raise unknown("operator", op, OPERATORS)
    return _COMBINE[op]


def average(values: NDArray[Any], count: ArrayLike) -> NDArray[Any]:
    """Return values / count, computed in the accumulator type; integers truncate toward zero as in C.

    `count` is at least 1 and broadcasts against `values`; it need not fit into the data type.
    """
    dtype = values.dtype
    if dtype.kind == "O":
        return _divide_truncating(values, np.asarray(count).astype(object))
    if dtype.kind == "u":
        return np.asarray(values.astype(np.uint64) // np.asarray(count, np.uint64)).astype(dtype)
    if dtype.kind == "i":
        return _divide_truncating(values.astype(np.int64), np.asarray(count, np.int64)).astype(dtype)
    acc = accumulator(dtype)
    return np.asarray(values.astype(acc) / np.asarray(count, acc)).astype(dtype)


def _divide_truncating(values: NDArray[Any], count: NDArray[Any]) -> NDArray[Any]:
    """Divide integers, rounding toward zero."""
    floors = values // count
    return np.asarray(floors + ((values < 0) & (floors * count != values)))
