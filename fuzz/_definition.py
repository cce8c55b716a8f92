"""What a collective gives, by definition, in plain NumPy: buffers before and after, for every rank.

Written from docs/schedule.md, docs/program.md and docs/numpy.md. Who has and wants what is `_meaning`'s; here are where
blocks stand in the buffers, data that every order of combining gives the same result of, and the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _meaning import Value, builtin, custom

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "bfloat16")
TYPES = (*INTEGERS, *FLOATS)
OPERATORS = ("sum", "prod", "max", "min", "avg")
POISON = 77
Array = np.ndarray[Any, Any]


def type_of(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class Definition:
    """One collective at one size. `unit`: how many elements a block of weight 1 has."""

    def __init__(self, collective: Any, unit: int, dtype: str, op: str, seed: int) -> None:
        self.ranks, self.unit, self.op, self.dtype = collective.ranks, unit, op, type_of(dtype)
        self.have, self.want = custom(collective.custom) if collective.custom is not None else builtin(collective)
        self.weights = collective.weights.tolist()
        self.alltoall = collective.kind == "alltoall"
        random = np.random.default_rng(seed)
        ids = sorted({(b, i) for b, at in self.have.items() for value in at.values() for i in value})
        self.data = {(b, i): self._values(random, self.weights[b] * unit) for b, i in ids}

    def _values(self, random: np.random.Generator, count: int) -> Array:
        """Whole numbers of all sizes, which wrap around alike in any order; floats that add and multiply exactly."""
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            return random.integers(limits.min, limits.max, count, self.dtype, endpoint=True)
        small = [1, -1, 1, -1, 2] if self.op == "prod" else [-3, -2, -1, 0, 1, 2, 3]
        return random.choice(np.array(small), count).astype(self.dtype)

    def combined(self, block: int, value: Value, divide: bool) -> Array:
        """A multiset of contributions as one array."""
        wide = self.dtype if self.dtype.kind in "iu" else np.dtype(np.float64)
        rows = [self.data[block, i].astype(wide) for i, times in sorted(value.items()) for _ in range(times)]
        with np.errstate(all="ignore"):
            if self.op in ("max", "min"):
                total = np.max(rows, axis=0) if self.op == "max" else np.min(rows, axis=0)
            elif self.op == "prod":
                total = np.prod(np.array(rows), axis=0, dtype=wide)
            else:
                total = np.sum(np.array(rows), axis=0, dtype=wide)
            if self.op == "avg" and divide and len(rows) > 1:
                total = self._divided(total, len(rows))
            return np.asarray(total).astype(self.dtype)

    def _divided(self, total: Array, count: int) -> Array:
        """Whole numbers toward zero; the others once, in the type in which they were added."""
        if self.dtype.kind in "iu":
            return np.array([abs(x) // count * (1 if x > 0 else -1) for x in total.tolist()], self.dtype)
        added: Any = np.float64 if self.dtype.itemsize == 8 else np.float32
        return np.asarray(total.astype(added) / added(count))

    # ---- buffers ----

    def blocks(self, rank: int, in_place: bool) -> tuple[list[int], list[int], list[int], list[int]]:
        """The blocks of a rank's input and of its output, and those that the two buffers hold, in their order."""
        mine = sorted(b for b, at in self.have.items() if rank in at)
        wanted = sorted(b for b, at in self.want.items() if rank in at)
        if not in_place or self.alltoall:
            return mine, wanted, mine, wanted
        both = sorted({*mine, *wanted})
        return mine, wanted, both, both

    def fits_in_place(self) -> bool:
        """An alltoall in place needs blocks of one length, one by one."""
        sizes = ([[self.weights[b] for b in self.blocks(r, True)[side]] for r in range(self.ranks)] for side in (0, 1))
        return not self.alltoall or next(sizes) == next(sizes)

    def before(self, rank: int, in_place: bool) -> Array:
        """The input; in place the one buffer, poisoned where nothing is yet."""
        mine, _, held, _ = self.blocks(rank, in_place)
        parts = [np.zeros(0, self.dtype)]
        for b in held:
            if b in mine:
                parts.append(self.combined(b, self.have[b][rank], False))
            else:
                parts.append(np.full(self.weights[b] * self.unit, POISON, self.dtype))
        return np.concatenate(parts)

    def after(self, rank: int, in_place: bool) -> Array:
        """The output; in place with all that stays as it was."""
        mine, wanted, _, held = self.blocks(rank, in_place)
        parts = [np.zeros(0, self.dtype)]
        for b in held:
            if b in wanted:
                parts.append(self.combined(b, self.want[b][rank], True))
            elif b in mine:
                parts.append(self.combined(b, self.have[b][rank], False))
        return np.concatenate(parts)
