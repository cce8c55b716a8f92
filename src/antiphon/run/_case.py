"""Made-up data, and how far a result may be off by rounding: for all who run a schedule and look at every element.
Also what they are asked for, and taking turns with a library.

    m contributions, combined in any order, are rounded at most m times in the accumulator type and at most m
    times when stored. So the error of a sum is at most ((1 + u)^m (1 + v)^m - 1) * sum |x|, with u and v the
    unit roundoffs of the two types (the second falls away where they are one); of a product, with |product|.

To it comes the rounding of the value compared with, which is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.datatypes import accumulator, combine_of, data_type
from antiphon.errors import Invalid

Array = NDArray[Any]
WINDOW = 2**17  # elements handled at once


def asked(
    nbytes: int | str | Sequence[int | str], dtype: str, op: str, repeat: int
) -> tuple[list[int | str], np.dtype[Any]]:
    """The sizes and the type of a run. Invalid where one of the four makes no sense."""
    kind, _ = data_type(dtype), combine_of(op)
    if kind.kind == "O":
        raise Invalid("data type: object has no size in bytes; choose a type of NCCL, like float32")
    if repeat < 1:
        raise Invalid(f"repeat: expected 1 or more runs, got {repeat}")
    return ([nbytes] if isinstance(nbytes, int | str) else list(nbytes)), kind


def in_turn(once: Callable[[bool], float], repeat: int, theirs: bool) -> Array:
    """Seconds of `repeat` pairs: ours (once(True)) and theirs, each first in turn; zeros for none."""
    spent = np.zeros((2, repeat))
    for turn in range(repeat):
        for ours in (True, False) if turn % 2 else (False, True):
            if ours or theirs:
                spent[0 if ours else 1, turn] = once(ours)
    return spent


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
