"""Blocks of a buffer put in another order in place: along the cycles of the permutation, with no second buffer.

A permutation falls apart into cycles; along each, every block moves to where the next one came from, and only one
block must be kept aside (parameterized collectives, section III.C; docs/permutation.md).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.columns import AnyInts, Bools, Longs
from antiphon.errors import Invalid, quote

WINDOW = 1024  # positions looked at together
SHORT = 32  # cycles up to this long are moved many at a time
SCRATCH = 2**16  # bytes that may be aside at once, unless a single block is larger


def permute_in_place(buffer: NDArray[Any], order: ArrayLike, block: int = 1) -> None:
    """Block i of the buffer becomes what was block order[i], as `blocks[:] = blocks[order]` would have it.

    `buffer`: an array whose first axis holds len(order) blocks of `block` entries each; any dtype, any strides: what is
    behind a view is changed. Aside are one block or 64 KiB, and a mark per block. Linear in bytes moved; a random
    permutation of n blocks costs O(n log n) looks besides.
    """
    source = checked_order(order)
    blocks = _blocks(buffer, len(source), block)
    if not buffer.size:
        return
    if np.may_share_memory(buffer, source):
        source = source.copy()  # else the order would change under our feet
    todo = _moving(source)
    aside = max(1, SCRATCH // max(blocks[0].nbytes, 1))
    for low in range(0, len(source), WINDOW):
        window = todo[low : low + WINDOW]
        if not window.any():
            continue
        leaders, length = _short_cycles(source, low + np.flatnonzero(window))
        for first in range(0, len(leaders), aside):
            _together(blocks, source, todo, leaders[first : first + aside], length[first : first + aside])
        for at in np.flatnonzero(window).tolist():
            if todo[low + at]:
                _one(blocks, source, todo, low + at, aside)


def permuted_share(order: ArrayLike) -> Fraction:
    """The part of the blocks that `permute_in_place` moves: 0 if all are in order already."""
    source = checked_order(order)
    return Fraction(int(np.count_nonzero(_moving(source))), max(len(source), 1))


def checked_order(order: ArrayLike) -> AnyInts:
    """A permutation as an array; Invalid names the first entry that is wrong."""
    try:
        array = np.asarray(order)
    except ValueError:
        array = np.zeros((0, 0))  # ragged
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise Invalid(f"order: expected a list of whole numbers, each of 0 to n-1 once, got {quote(order)}")
    outside = (array < 0) | (array >= len(array))
    if outside.any():
        at = int(np.argmax(outside))
        raise Invalid(f"order[{at}] = {array[at]} is out of range; it must name each of 0 to {len(array) - 1} once")
    seen = np.zeros(len(array), np.bool_)
    seen[array] = True
    if not seen.all():
        raise Invalid(f"order: {int(np.argmin(seen))} is missing; it must name each of 0 to {len(array) - 1} once")
    return array


def _moving(source: AnyInts) -> Bools:
    """Per block whether another takes its place. Window by window, so that nothing but marks is as long as `order`."""
    marks = np.empty(len(source), np.bool_)
    for low in range(0, len(source), SCRATCH):
        high = min(low + SCRATCH, len(source))
        np.not_equal(source[low:high], np.arange(low, high), out=marks[low:high])
    return marks


def _blocks(buffer: NDArray[Any], count: int, block: int) -> NDArray[Any]:
    """The buffer by block: a view, as splitting an axis never copies."""
    if not isinstance(buffer, np.ndarray) or buffer.ndim < 1:
        raise Invalid(f"buffer: expected a NumPy array of one axis or more, got {quote(type(buffer).__name__)}")
    if isinstance(block, bool) or not isinstance(block, int | np.integer) or block < 1:
        raise Invalid(f"block: expected a whole number of entries from 1, got {quote(block)}")
    if len(buffer) != count * block:
        raise Invalid(
            f"buffer: has {len(buffer)} entries, but order names {count} blocks of {block}, which are {count * block}"
        )
    if not buffer.flags.writeable:
        raise Invalid("buffer: is read-only; give a writeable array, or a copy")
    return buffer.reshape(count, int(block), *buffer.shape[1:])


def _short_cycles(source: AnyInts, start: Longs) -> tuple[Longs, Longs]:
    """Which of these positions are the least of a cycle of at most SHORT blocks, and how long it is.

    All are followed at once; one that meets a lesser position is not the least. Whatever is still to be moved lies in
    cycles that are still whole, so the least position of each is met in its window.
    """
    leaders: list[Longs] = []
    lengths: list[Longs] = []
    at = source[start].astype(np.int64)
    for length in range(1, SHORT + 1):
        back = at == start
        leaders.append(start[back])
        lengths.append(np.full(len(leaders[-1]), length))
        on = at > start
        start, at = start[on], source[at[on]].astype(np.int64)
        if not len(start):
            break
    return np.concatenate(leaders), np.concatenate(lengths)


def _together(blocks: NDArray[Any], source: AnyInts, todo: Bools, leaders: Longs, length: Longs) -> None:
    """Many short cycles, a block of each aside. `length` ascends."""
    first = blocks[leaders]
    here = leaders.copy()
    for moved in range(1, int(length[-1]) if len(length) else 0):
        going = int(np.searchsorted(length, moved, side="right"))  # cycles that are longer than what has moved
        there = source[here[going:]].astype(np.int64)
        blocks[here[going:]] = blocks[there]
        todo[here[going:]] = False
        here[going:] = there
    blocks[here] = first
    todo[here] = False


def _one(blocks: NDArray[Any], source: AnyInts, todo: Bools, leader: int, aside: int) -> None:
    """A long cycle, so many of its blocks at a time."""
    first = blocks[leader].copy()
    here = [leader]
    while True:
        after = int(source[here[-1]])
        if after != leader:
            here.append(after)
        if after == leader or len(here) > aside:
            blocks[here[:-1]] = blocks[here[1:]]
            todo[here] = False
            here = here[-1:]
        if after == leader:
            blocks[here[0]] = first
            return
