"""Sets of chunks as bits: a row of 64-bit words per rank, one bit per chunk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import AnyInts, Bools, Longs

Words = NDArray[np.uint64]
_ONE, _WORD = np.uint64(1), np.uint64(64)


def no_bits(rows: int, chunks: int) -> Words:
    """Rows of empty sets."""
    return np.zeros((rows, -(-chunks // 64)), np.uint64)


def put(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """These chunks into the sets of these rows.

    >>> sets = no_bits(2, 70)
    >>> put(sets, np.array([0, 0, 1]), np.array([1, 0, 69]))
    >>> sets.tolist()
    [[3, 0], [0, 32]]
    """
    at = np.asarray(chunk, np.int64)
    np.bitwise_or.at(sets, (row, at >> 6), _ONE << (at & 63).astype(np.uint64))


def put_one(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """The same where no row comes twice."""
    at = np.asarray(chunk, np.int64)
    sets[row, at >> 6] |= _ONE << (at & 63).astype(np.uint64)


def has(sets: Words, row: AnyInts, chunk: AnyInts) -> Bools:
    """Whether these chunks are in the sets of these rows."""
    at = np.asarray(chunk, np.int64)
    found: Bools = (sets[row, at >> 6] >> (at & 63).astype(np.uint64)) & _ONE != 0
    return found


def any_of(sets: Words, rng: np.random.Generator) -> Longs:
    """A chunk of every row's set, -1 where it is empty: the first from a place chosen at random on.

    >>> sets = no_bits(3, 130)
    >>> put(sets, np.array([0, 2]), np.array([129, 64]))
    >>> any_of(sets, np.random.default_rng(0)).tolist()
    [129, -1, 64]
    """
    rows, words = sets.shape
    filled = sets != 0
    later = filled & (np.arange(words) >= rng.integers(0, words, (rows, 1)))
    here, at = np.arange(rows), later.argmax(axis=1)
    at = np.where(later[here, at], at, filled.argmax(axis=1))
    word: Words = sets[here, at]
    by = rng.integers(0, 64, rows).astype(np.uint64)
    turned = (word >> by) | (word << ((_WORD - by) & np.uint64(63)))
    lowest = turned & (~turned + _ONE)
    bit = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    return np.where(word != 0, 64 * at + ((bit + by.astype(np.int64)) & 63), -1)
