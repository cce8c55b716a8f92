"""Made-up data, and how far a result may be off by rounding: for all who run a schedule and look at every element.

    m contributions, combined in any order, are rounded at most m times in the accumulator type and at most m
    times when stored. So the error of a sum is at most ((1 + u)^m (1 + v)^m - 1) * sum |x|, with u and v the
    unit roundoffs of the two types (the second falls away where they are one); of a product, with |product|.

To it comes the rounding of the value compared with, which is computed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.datatypes import accumulator

Array = NDArray[Any]
WINDOW = 2**17  # elements handled at once


def growth(dtype: np.dtype[Any], m: int) -> float:
    """The greatest relative error of a sum of m numbers of this type against the same in float64."""
    stored, held = (float(_finfo(one).eps) / 2 for one in (dtype, accumulator(dtype)))
    own = m * np.log1p(stored) + (m * np.log1p(held) if held != stored else 0.0)
    return float(np.expm1(own) + np.expm1(m * np.log1p(2.0**-53)))


def smallest(dtype: np.dtype[Any]) -> float:
    """The smallest number above 0: what underflows may lose so much each time."""
    return float(_finfo(dtype).smallest_subnormal)


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.name == "bfloat16":
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        return finfo(dtype)
    return np.finfo(dtype)


def random_values(random: np.random.Generator, count: int, dtype: np.dtype[Any], op: str, contributions: int) -> Array:
    """Numbers with all bits in use, so that rounding and wrapping around matter; no combination overflows."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        found = random.integers(limits.min, limits.max, count, dtype, endpoint=True)
        return found | dtype.type(1) if op == "prod" else found  # products of even numbers soon are 0
    if op == "prod":
        size = np.exp(random.uniform(-1.0, 1.0, count) * min(1.0, 8.0 / contributions))
        return np.asarray(np.where(random.random(count) < 0.5, -size, size).astype(dtype))
    drawn = np.float64 if dtype.itemsize == 8 else np.float32
    scale = 0.9876 * min(1.0, 2.0**14 / contributions)  # what is drawn are multiples of one number: adding is exact
    out = np.empty(count, dtype)
    for low in range(0, count, WINDOW):
        here = out[low : low + WINDOW]
        here[:] = (random.random(len(here), drawn) * 2.0 - 1.0) * scale
    return out
