"""Sets of chunks as bits: a row of 64-bit words per rank, one bit per chunk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import AnyInts, Bools, Longs

Words = NDArray[np.uint64]
_ONE, _PLACE, _PLACES = np.uint64(1), np.uint64(6), np.uint64(63)
_HALF = np.uint64(32)


def put(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """These chunks into the sets of these rows.

    >>> sets = np.zeros((2, 2), np.uint64)
    >>> put(sets, np.array([0, 0, 1]), np.array([1, 0, 69]))
    >>> sets.tolist()
    [[3, 0], [0, 32]]
    """
    np.bitwise_or.at(sets.reshape(-1), *spot(sets, row, chunk))  # at is quick along one axis


def drop(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """These chunks out of the sets of these rows.

    >>> sets = np.array([[3, 0], [0, 32]], np.uint64)
    >>> drop(sets, np.array([0, 1, 1]), np.array([1, 0, 69]))
    >>> sets.tolist()
    [[1, 0], [0, 0]]
    """
    place, bit = spot(sets, row, chunk)
    np.bitwise_and.at(sets.reshape(-1), place, ~bit)


def has(sets: Words, row: AnyInts, chunk: AnyInts) -> Bools:
    """Whether these chunks are in the sets of these rows."""
    place, bit = spot(sets, row, chunk)
    present: Bools = sets.reshape(-1).take(place) & bit != 0
    return present


def spot(sets: Words, row: AnyInts, chunk: AnyInts) -> tuple[Longs, Words]:
    """In which word of all, and which bit of it, these chunks are in the sets of these rows.

    >>> place, bit = spot(np.zeros((2, 2), np.uint64), np.array([0, 1]), np.array([1, 69]))
    >>> place.tolist(), bit.tolist()
    ([0, 3], [2, 32])
    """
    at = np.asarray(chunk, np.int64)
    return row * sets.shape[1] + (at >> 6), _ONE << (at.view(np.uint64) & _PLACES)


def any_of(sets: Words, rng: np.random.Generator, draws: int = 1) -> Longs:
    """So many chunks of every row's set, a row of them each, -1 where the set is empty: the first from places chosen at
    random on, of words that are not 0, and then of bits.

    >>> sets = np.zeros((3, 3), np.uint64)
    >>> put(sets, np.array([0, 2]), np.array([129, 64]))
    >>> any_of(sets, np.random.default_rng(0), 2).tolist()
    [[129, -1, 64], [129, -1, 64]]
    """
    rows = len(sets)
    drawn = rng.bit_generator.random_raw(rows * draws).reshape(draws, rows)  # quicker than integers of a range
    layers = [sets]
    while layers[-1].shape[1] > 1:
        layers.append(_filled(layers[-1]))  # which word is the same question as which bit
    top = layers.pop().reshape(-1)
    at = _first(top, (drawn >> _HALF) * np.uint64(layers[-1].shape[1] if layers else 64) >> _HALF)
    while layers:
        layer = layers.pop()
        word = layer.reshape(-1).take(at + np.arange(0, layer.size, layer.shape[1]), mode="clip")  # any, where none is
        at <<= 6
        at += _first(word, drawn & _PLACES)
        if layers:
            drawn >>= _PLACE
    return at if top.all() else np.where(top != 0, at, -1)


def _first(word: Words, place: Words) -> Longs:
    """The first bit that is set, from this place on, or else from the beginning on; 64 where none is.

    >>> _first(np.array([5, 5, 0], np.uint64), np.array([1, 3, 0], np.uint64)).tolist()
    [2, 0, 64]
    """
    later = word >> place
    later <<= place
    np.copyto(later, word, where=later == 0)
    below = later - _ONE
    below &= ~later
    return np.bitwise_count(below).astype(np.int64)


def _filled(sets: Words) -> Words:
    """Which words are not 0, as bits.

    >>> _filled(np.array([[0, 5, 0], [1, 0, 2]], np.uint64)).tolist()
    [[2], [5]]
    """
    rows, words = sets.shape
    width = 8 << max(0, (words - 1).bit_length() - 3) if words <= 64 else -(-words // 64) * 64
    full = sets != 0
    if width > words:
        full, narrow_flags = np.zeros((rows, width), np.bool_), full
        full[:, :words] = narrow_flags
    octets = np.packbits(full.reshape(-1), bitorder="little")
    return octets.view(f"<u{min(width, 64) // 8}").astype(np.uint64).reshape(rows, -1)
