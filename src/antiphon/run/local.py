"""Runs a schedule on this machine: all ranks in one process, real data, every element checked.

The expected result is computed apart from the interpreter: straight from the collective's relation, with
plain NumPy, in float64 (whole numbers: modulo their size). Whole numbers, minima, maxima and data that is
only moved must agree exactly. Sums and products of floating-point numbers may differ by rounding (`_case` says how
far).

Whether ranks that must end with the same agree in every bit is told apart: a schedule may add the same numbers up
in another shape on another rank.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, distinct, pointers
from antiphon.core.datatypes import combine_of
from antiphon.core.interpret import Analysis, analyse, block_elements, busbw_factor, run
from antiphon.core.interpret.buffers import Side, sides
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid
from antiphon.run._case import WINDOW, asked, growth, random_values, smallest
from antiphon.units import parse_size

Array = NDArray[Any]
Key = tuple[int, int]  # (block, want): something that a rank can be promised


def run_local(
    schedule: Schedule,
    nbytes: int | str | Sequence[int | str],
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
) -> list[dict[str, Any]]:
    """Run a schedule on random data of each size and check every element.

    One row per size: `nbytes` (what was really moved: rounded down as nccl-tests does), `seconds` (median of
    `repeat` runs after one to warm up), `algbw` and `busbw` (bytes per second), `reference_seconds` (plain
    NumPy, same results), `correct`, `wrong` (elements that are wrong), `agree` (ranks that must end with the same
    agree in every bit), and dtype, op and in_place as given.
    Invalid where a row of the schedule is illegal.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise Invalid(f"seed: expected a whole number from 0, got {seed!r}")
    sizes, kind = asked(nbytes, dtype, op, repeat)
    analysis = analyse(schedule)
    return [_row(analysis, parse_size(size, "nbytes"), kind, op, seed, repeat, in_place) for size in sizes]


def _row(
    analysis: Analysis, nbytes: int, dtype: np.dtype[Any], op: str, seed: int, repeat: int, in_place: bool
) -> dict[str, Any]:
    collective = analysis.schedule.collective
    case = _Case(collective, nbytes, dtype, op, seed)
    seconds: list[float] = []
    inputs: list[Array] = []
    outputs: list[Array] = []
    for _ in range(repeat + 1):
        outputs = []  # let go of the last ones first
        if in_place or not inputs:  # out of place they stay as they are
            inputs = case.inputs(in_place)
        begin = time.perf_counter()
        outputs = run(analysis, inputs, op=op, dtype=dtype, in_place=in_place)
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    values, _ = case.reference()
    reference = time.perf_counter() - begin
    wrong, differing = case.count_wrong(outputs, values, in_place)
    middle, used = median(seconds[1:]), case.unit * collective.buffer_weight * dtype.itemsize
    return {
        "nbytes": used,
        "seconds": middle,
        "algbw": used / middle,
        "busbw": used / middle * busbw_factor(collective),
        "reference_seconds": reference,
        "correct": wrong == 0,
        "wrong": wrong,
        "agree": differing == 0,
        "dtype": dtype.name,
        "op": op,
        "in_place": in_place,
    }


@dataclass(frozen=True, eq=False)
class _Contributions:
    """One random array per (block, id), all in one: those of a block stand together."""

    data: Array
    id: Longs
    bounds: Longs  # per block, in id
    ends: Longs  # per (block, id), in data

    def of(self, block: int, ids: Sequence[int] | None = None) -> Array:
        """Rows: these contributions of a block, or all of it."""
        first, last = int(self.bounds[block]), int(self.bounds[block + 1])
        whole = self.data[self.ends[first] : self.ends[last]].reshape(last - first, -1)
        return whole if ids is None else np.asarray(whole[np.searchsorted(self.id[first:last], ids)])


class _Case:
    """Random data for one collective and size, and what must come out."""

    def __init__(self, collective: Collective, nbytes: int, dtype: np.dtype[Any], op: str, seed: int) -> None:
        self.collective, self.dtype, self.op = collective, dtype, op
        self.elements = block_elements(collective, nbytes, dtype.itemsize)
        self.unit = nbytes // dtype.itemsize // collective.buffer_weight
        relation = collective.relation
        pairs = distinct(relation.pre_block.astype(np.int64) << 32 | relation.pre_id)
        block = pairs >> 32
        bounds = pointers(block, collective.blocks)
        ends = np.concatenate([[0], np.cumsum(self.elements[block])])
        random = np.random.default_rng(seed)
        most = int(np.diff(bounds).max(initial=1))
        self.given = _Contributions(
            random_values(random, int(ends[-1]), dtype, op, most), pairs & 0xFFFFFFFF, bounds, ends
        )

    def inputs(self, in_place: bool) -> list[Array]:
        """Fresh buffers for all ranks, their inputs in place."""
        first, _ = sides(self.collective, in_place)
        buffers = [np.zeros(int(weight) * self.unit, self.dtype) for weight in first.size]
        relation = self.collective.relation
        order = np.lexsort((relation.pre_id, relation.pre_block, relation.pre_rank))
        key = (relation.pre_rank.astype(np.int64) << 32 | relation.pre_block)[order]
        ids = relation.pre_id[order]
        head = [*np.flatnonzero(np.append(True, key[1:] != key[:-1])).tolist(), len(key)] if len(key) else []
        for pair, (rank, block, place) in enumerate(self._places(first)):
            rows = self.given.of(block, ids[head[pair] : head[pair + 1]].tolist())
            value = rows[0] if len(rows) == 1 else self._combined(rows).astype(self.dtype)
            buffers[rank][place] = value
        return buffers

    def _places(self, side: Side) -> Iterator[tuple[int, int, slice]]:
        start = side.start * self.unit
        ends = start + self.elements[side.block]
        columns = (side.rank.tolist(), side.block.tolist(), start.tolist(), ends.tolist())
        for rank, block, begin, end in zip(*columns, strict=True):
            yield rank, block, slice(begin, end)

    def _combined(self, rows: Array) -> Array:
        """The rows as one, in float64 or modulo the size of whole numbers."""
        combine = combine_of(self.op)
        total = rows[0].astype(np.float64 if self._floating else self.dtype)
        with np.errstate(all="ignore"):
            for row in rows[1:]:  # row by row: wide copies of all rows would be many times the data
                combine(total, row, out=total)
        return total

    @property
    def _floating(self) -> bool:
        return self.dtype.kind not in "iu"

    def _wanted(self) -> dict[int, list[Key]]:
        """What each rank must end with, by block."""
        wanted: dict[int, list[Key]] = {}
        relation = self.collective.relation
        order = np.lexsort((relation.post_block, relation.post_rank))
        columns = (relation.post_rank, relation.post_block, relation.post_want)
        for rank, block, want in zip(*(c[order].tolist() for c in columns), strict=True):
            wanted.setdefault(rank, []).append((block, want))
        return wanted

    def _rows(self, key: Key) -> Array:
        block, want = key
        return self.given.of(block, None if want < 0 else self.collective.relation.wants[want])

    def reference(self) -> tuple[dict[Key, Array], list[Array]]:
        """By plain NumPy: every promised value (float64 where floating), and the outputs of all ranks."""
        wanted = self._wanted()
        values = {key: self._value(key) for key in {key: 0 for keys in wanted.values() for key in keys}}
        stored = {key: value.astype(self.dtype, copy=False) for key, value in values.items()}
        empty = np.zeros(0, self.dtype)
        everyone = range(self.collective.ranks)
        return values, [np.concatenate([empty, *map(stored.__getitem__, wanted.get(r, []))]) for r in everyone]

    def _value(self, key: Key) -> Array:
        rows = self._rows(key)
        if len(rows) == 1:
            return np.asarray(rows[0])
        total = self._combined(rows)
        return _divided(total, len(rows)) if self.op == "avg" else total

    def count_wrong(self, outputs: list[Array], values: dict[Key, Array], in_place: bool) -> tuple[int, int]:
        """How many elements of the outputs are wrong, and how many right ones differ in a bit between ranks."""
        _, last = sides(self.collective, in_place)
        wanted = self._wanted()
        keys = iter([key for rank in sorted(wanted) for key in wanted[rank]])
        limits = {key: self._tolerance(key, value) for key, value in values.items()}
        agreed: dict[Key, tuple[Array, NDArray[np.bool_]]] = {}  # the first result, and where it is no use
        wrong = differing = 0
        for (rank, _, place), key in zip(self._places(last), keys, strict=True):
            got, limit = outputs[rank][place], limits[key]
            if limit is None:
                wrong += int(np.count_nonzero(got != values[key]))
                continue
            apart = _apart(got, values[key], limit)
            first, useless = agreed.get(key, (got, apart))
            wrong += int(np.count_nonzero(apart))
            differing += int(np.count_nonzero(_differ(got, first) & ~useless & ~apart))
            agreed[key] = (np.where(useless, got, first), useless & apart) if useless.any() else (first, useless)
        return wrong, differing

    def _tolerance(self, key: Key, value: Array) -> Array | None:
        """How far each element may be off by rounding, or None where all must be exact."""
        rows = self._rows(key)
        if not self._floating or len(rows) == 1 or self.op in ("min", "max"):
            return None
        m, relative = len(rows), growth(self.dtype, len(rows))
        size = np.abs(value)
        if self.op != "prod":
            size = np.zeros(len(value))
            for row in rows:
                size += np.abs(row)
        size *= relative / m if self.op == "avg" else relative
        size += m * smallest(self.dtype)
        return size


def _apart(got: Array, value: Array, limit: Array) -> NDArray[np.bool_]:
    """Where they are further apart than the limit (or not a number): in windows that stay in the caches."""
    out = np.empty(len(got), np.bool_)
    for low in range(0, len(got), WINDOW):
        here = slice(low, low + WINDOW)
        np.less_equal(np.abs(got[here].astype(np.float64) - value[here]), limit[here], out=out[here])
    return np.logical_not(out, out=out)


def _differ(a: Array, b: Array) -> NDArray[np.bool_]:
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return np.asarray(np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits))


def _divided(total: Array, count: int) -> Array:
    """total / count; whole numbers by magnitude, so that they truncate toward zero."""
    if total.dtype.kind == "f":
        return np.asarray(total / count)
    wide = total.astype(np.int64 if total.dtype.kind == "i" else np.uint64)
    negative = wide < 0
    size = wide.view(np.uint64)
    quotient = np.where(negative, np.uint64(0) - size, size) // np.uint64(count)
    return np.where(negative, np.uint64(0) - quotient, quotient).astype(total.dtype)
