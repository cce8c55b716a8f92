"""Represent sets of chunks as bits: a row of 64-bit words per rank, one bit per chunk.

All operations work on many rows at once, since the simulation of planner `greedy` asks the same question for thousands
of hops: which chunks does the sender have that the receiver lacks, and what is a random one of them?

A random member is drawn in two levels: first a random nonzero word, by a bitmap of the nonzero words (more levels for
more than 64 words), then a random bit in it. "Random" means the first set bit from a random position on, cyclically.
That is not uniform, but needs only shifts and a population count: the bits below the lowest set bit are as many as its
position.

Example: the set of chunks 3 and 129, of 192, is the words (8, 0, 2). Words 0 and 2 are nonzero, so the bitmap is 101.
From word 1 on, the first nonzero word is 2; in it, from bit 40 on cyclically, the first set bit is 1: chunk 2 * 64 + 1
= 129.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import WORD_BITS, AnyInts, Bools, Longs, word_count

Words = NDArray[np.uint64]
_ONE = np.uint64(1)
_POSITION_BITS = np.uint64(6)  # a word has 2^6 bits
_POSITION_MASK = np.uint64(63)
_HALF = np.uint64(32)  # half of the bits of a random number


def add_chunks(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """Add these chunks to the sets of these rows.

    >>> sets = np.zeros((2, 2), np.uint64)
    >>> add_chunks(sets, np.array([0, 0, 1]), np.array([1, 0, 69]))
    >>> sets.tolist()
    [[3, 0], [0, 32]]
    """
    np.bitwise_or.at(sets.reshape(-1), *locate_bits(sets, row, chunk))  # ufunc.at is fastest along one axis


def remove_chunks(sets: Words, row: AnyInts, chunk: AnyInts) -> None:
    """Remove these chunks from the sets of these rows.

    >>> sets = np.array([[3, 0], [0, 32]], np.uint64)
    >>> remove_chunks(sets, np.array([0, 1, 1]), np.array([1, 0, 69]))
    >>> sets.tolist()
    [[1, 0], [0, 0]]
    """
    word_index, mask = locate_bits(sets, row, chunk)
    np.bitwise_and.at(sets.reshape(-1), word_index, ~mask)


def contains_chunks(sets: Words, row: AnyInts, chunk: AnyInts) -> Bools:
    """Return whether these chunks are in the sets of these rows."""
    word_index, mask = locate_bits(sets, row, chunk)
    present: Bools = (sets.reshape(-1).take(word_index) & mask) != 0
    return present


def locate_bits(sets: Words, row: AnyInts, chunk: AnyInts) -> tuple[Longs, Words]:
    """Return where these chunks are in the sets of these rows: the index of the word, counted over all rows, and a mask
    with the one bit of the chunk set.

    >>> word_index, mask = locate_bits(np.zeros((2, 2), np.uint64), np.array([0, 1]), np.array([1, 69]))
    >>> word_index.tolist(), mask.tolist()
    ([0, 3], [2, 32])
    """
    number = np.asarray(chunk, np.int64)
    words_per_row = sets.shape[1]
    return row * words_per_row + number // WORD_BITS, _ONE << (number.view(np.uint64) & _POSITION_MASK)


def draw_chunks(sets: Words, rng: np.random.Generator, draws: int = 1) -> Longs:
    """Return `draws` random chunks of every row's set (a row per draw), -1 where the set is empty.

    Layer 0 is the sets themselves; each further layer is the bitmap of the nonzero words of the one below, until one
    word per row is left (the top). Draw a bit of the top: it is the index of a word in the layer below. Draw a bit of
    that word, and so on down to a chunk.

    >>> sets = np.zeros((3, 3), np.uint64)
    >>> add_chunks(sets, np.array([0, 2]), np.array([129, 64]))
    >>> draw_chunks(sets, np.random.default_rng(0), 2).tolist()
    [[129, -1, 64], [129, -1, 64]]
    """
    rows = len(sets)
    # 64 random bits for every draw: faster than drawing integers of a range
    random_bits = rng.bit_generator.random_raw(rows * draws).reshape(draws, rows)
    layers = [sets]
    while layers[-1].shape[1] > 1:
        layers.append(_nonzero_words(layers[-1]))  # choosing a word is the same problem one level up
    top = layers.pop().reshape(-1)
    # The top has a bit for each word of the layer below. The upper half of the random bits, scaled to the number of the
    # top's bits, is where to start; the lower half serves the other layers, six random bits each.
    top_bits = np.uint64(layers[-1].shape[1] if layers else WORD_BITS)
    index = _first_set_bit(top, ((random_bits >> _HALF) * top_bits) >> _HALF)
    while layers:
        layer = layers.pop()
        # `index` is that of a word in this layer, within its row. An empty row takes some other word: its result is
        # replaced by -1 below.
        word = layer.reshape(-1).take(index + np.arange(0, layer.size, layer.shape[1]), mode="clip")
        index *= WORD_BITS
        index += _first_set_bit(word, random_bits & _POSITION_MASK)
        if layers:
            random_bits >>= _POSITION_BITS
    return index if top.all() else np.where(top != 0, index, -1)


def _first_set_bit(word: Words, start: Words) -> Longs:
    """Return the number of the first set bit from bit `start` on, cyclically; 64 where none is set.

    >>> _first_set_bit(np.array([5, 5, 0], np.uint64), np.array([1, 3, 0], np.uint64)).tolist()
    [2, 0, 64]
    """
    # clear the bits below `start`; if none is left, start again from bit 0
    later = word >> start
    later <<= start
    np.copyto(later, word, where=later == 0)
    below = later - _ONE  # turns the lowest set bit off, and all bits below it on
    below &= ~later
    return np.bitwise_count(below).astype(np.int64)


def _nonzero_words(sets: Words) -> Words:
    """Return for each row a bitmap of its nonzero words.

    >>> _nonzero_words(np.array([[0, 5, 0], [1, 0, 2]], np.uint64)).tolist()
    [[2], [5]]
    """
    rows, words = sets.shape
    # Pad to 8, 16, 32 or 64 flags, or a multiple of 64, so that packed flags form whole words.
    width = next((width for width in (8, 16, 32, 64) if words <= width), word_count(words) * WORD_BITS)
    is_nonzero = sets != 0
    if width > words:
        is_nonzero, unpadded = np.zeros((rows, width), np.bool_), is_nonzero
        is_nonzero[:, :words] = unpadded
    octets = np.packbits(is_nonzero.reshape(-1), bitorder="little")
    return octets.view(f"<u{min(width, WORD_BITS) // 8}").astype(np.uint64).reshape(rows, -1)
