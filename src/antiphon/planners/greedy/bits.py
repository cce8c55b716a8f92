"""Sets of chunks as bits: a row of 64-bit words per rank, one bit per chunk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import AnyInts, Bools, Longs

Words = NDArray[np.uint64]
_ONE, _PLACE = np.uint64(1), np.uint64(6)


def put(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """These chunks into the sets of these rows.

    >>> sets = np.zeros((2, 2), np.uint64)
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


def any_of(sets: Words, rng: np.random.Generator, draws: int = 1) -> Longs:
    """So many chunks of every row's set, a row of them each, -1 where the set is empty: the first from places chosen at
    random on.

    >>> sets = np.zeros((3, 3), np.uint64)
    >>> put(sets, np.array([0, 2]), np.array([129, 64]))
    >>> any_of(sets, np.random.default_rng(0), 2).tolist()
    [[129, -1, 64], [129, -1, 64]]
    """
    rows, words = sets.shape
    drawn = rng.bit_generator.random_raw(rows * draws).reshape(draws, rows)  # quicker than integers of a range
    at = _bit_of(sets, drawn, 64 * words)
    return np.where(sets[np.arange(rows), at >> 6] != 0, at, -1)


def _bit_of(sets: Words, drawn: Words, bits: int) -> Longs:
    """The first bit that is set, from the place on that is drawn: of these rows, for every row of draws. Which word is
    the same question again, to the bits that say which words are not 0. `bits`: how many there are; any, where none is
    set.

    >>> sets = np.array([[0, 5, 0], [1, 0, 2]], np.uint64)  # one set: bits 64 and 66; the other: 0 and 129
    >>> _filled(sets).tolist()
    [[2], [5]]
    >>> _bit_of(sets, np.array([[0, 65]], np.uint64), 192).tolist()  # from word 0, bit 0 on; from word 1, bit 1 on
    [[64, 129]]
    """
    words, width = sets.shape[1], np.uint64(min(bits, 64))
    at = _bit_of(_filled(sets), drawn >> _PLACE, words) if words > 1 else np.zeros(drawn.shape, np.int64)
    word: Words = sets[np.arange(len(sets)), at]
    by = drawn % width
    turned = (word >> by) | (word << (width - by))  # all of a word that is shifted by 64 is gone
    first = np.bitwise_count(~turned & (turned - _ONE)) + by
    return np.minimum(64 * at + (first % width).astype(np.int64), bits - 1)


def _filled(sets: Words) -> Words:
    """Which words are not 0, as bits."""
    rows, words = sets.shape
    full = np.zeros((rows, -(-words // 64) * 64), np.bool_)
    full[:, :words] = sets != 0
    return np.packbits(full, bitorder="little").view(np.uint64).reshape(rows, -1)
