"""Fast ways with integer columns: checked, sorted, grouped. Everything here is linear or one sort.

A table is columns of equal length; a row is a place in them. What works on tables is made of these:

    order_of    the rows in the order of a key                 starts   where a new value begins in an ordered column
    dense       keys as 0, 1, 2, ... without holes             numbered the same for rows of several columns
    pointers    where each owner's rows begin (CSR)            ranges   the rows of chosen owners, one after another
    packed      several columns as one key                     places   the place of each in its run of equal values
    dense_pairs the same for pairs of values                   blocks   some rows at a time
    sums        whole numbers added up by group                ascends  whether rows are in order
    counts      how often each value is there                  own      an array as a column, without a copy
    taken       values by their places
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.errors import Invalid

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Octets = NDArray[np.uint8]
Bools = NDArray[np.bool_]
AnyInts = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Kind = TypeVar("Kind", bound=np.generic)
AT_ONCE = 2**16  # rows that are worked on while they are in the cache


def column(values: ArrayLike, label: str, low: int, high: int) -> Ints:
    """A read-only int32 column whose every value lies in low..high-1."""
    return _check_bounds(values, label, low, high, np.int32)


def octet_column(values: ArrayLike, label: str, low: int, high: int) -> Octets:
    """The same as uint8."""
    return _check_bounds(values, label, low, high, np.uint8)


def _check_bounds(values: ArrayLike, label: str, low: int, high: int, kind: type[np.integer[Any]]) -> NDArray[Any]:
    array = np.asarray(values)
    if array.size == 0:
        array = np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise Invalid(f"{label}: expected a list of whole numbers")
    if array.size and not _in_bounds(array, low, high):
        at = int(np.flatnonzero((array < low) | (array >= high))[0])
        raise Invalid(f"{label}[{at}] = {array[at]} is out of range ({low} to {high - 1})")
    out: NDArray[Any] = np.ascontiguousarray(array, dtype=kind)
    if out.flags.writeable and (out is values or out.base is not None):
        out = out.copy()  # the caller may go on writing into its own array
    out.setflags(write=False)
    return out


def _in_bounds(array: AnyInts, low: int, high: int) -> bool:
    if low == 0 and array.dtype.kind == "i":  # what is negative is great as a number without sign: one look at all
        array = array.view(np.dtype(f"{array.dtype.byteorder}u{array.dtype.itemsize}"))
    elif int(array.min()) < low:
        return False
    return int(array.max()) < high


def own(values: NDArray[Kind]) -> NDArray[Kind]:
    """An array that was just made for a column, and that nobody else writes into: a column of it needs no copy."""
    values.setflags(write=False)
    return values


def narrow(values: NDArray[Any]) -> Ints:
    """The same whole numbers as int32."""
    return values.astype(np.int32, copy=False)


def order_of(key: AnyInts, bound: int) -> Longs:
    """The stable order of keys in 0..bound-1.

    Keys of 16 bits are sorted by radix, in linear time. Where key and row number fit into 63 bits together they are
    sorted as one number: a plain sort of integers is many times faster than an argsort.

    >>> order_of(np.array([2, 0, 1, 0]), 3)
    array([1, 3, 2, 0])
    """
    if bound <= 2**16:
        return np.argsort(key.astype(np.uint16), kind="stable")
    bits = max(len(key) - 1, 1).bit_length()
    if max(bound - 1, 1).bit_length() + bits > 63:
        return np.argsort(key, kind="stable").astype(np.int64)
    packed = (key.astype(np.int64) << bits) | np.arange(len(key))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def packed(*columns: tuple[NDArray[Any], int]) -> tuple[Longs, int]:
    """Columns (each with a bound of its values) as one number per row in their order, and a bound.

    >>> packed((np.array([1, 0, 1]), 2), (np.array([2, 2, 0]), 3))
    (array([5, 2, 3]), 6)
    """
    first, bound = columns[0]
    key, bound = first.astype(np.int64), max(bound, 1)
    for values, top in columns[1:]:
        high = max(top, 1)
        if bound * high >= 2**62:
            values_used, key = dense(key, bound)
            bound = max(len(values_used), 1)
        key *= high
        key += values
        bound *= high
    return key, bound


def is_ascending(*columns: NDArray[Any]) -> bool:
    """Whether no row of these columns is below the one before it.

    >>> is_ascending(np.array([1, 1, 2]), np.array([3, 4, 0])), is_ascending(np.array([1, 1]), np.array([4, 3]))
    (True, False)
    """
    tied: Bools | np.bool_ = np.True_
    for values in columns:
        if bool((tied & (values[1:] < values[:-1])).any()):
            return False
        tied = tied & (values[1:] == values[:-1])
    return True


def places(group: NDArray[Any]) -> Longs:
    """The place of every element in its run of equal values.

    >>> places(np.array([7, 7, 3, 7, 7, 7]))
    array([0, 1, 0, 0, 1, 2])
    """
    at = np.arange(len(group))
    return at - np.maximum.accumulate(np.where(starts(group), at, 0)) if len(group) else at


def sums(group: AnyInts, values: NDArray[Any], groups: int) -> NDArray[Any]:
    """Whole numbers added up by group: exact, so their order does not matter.

    >>> sums(np.array([1, 0, 1]), np.array([5, 6, 7]), 3)
    array([ 6, 12,  0])
    """
    if values.dtype != object and float(np.abs(values).sum(dtype=np.float64)) < 2.0**53:  # exact, and faster
        return np.bincount(group, weights=values, minlength=groups).astype(np.int64)
    out = np.zeros(groups, values.dtype)
    np.add.at(out, group, values)
    return out


def blocks(rows: int) -> Iterator[slice]:
    """All rows, as many at a time as stay in the cache: intermediate results never take the memory of all rows.

    >>> list(blocks(AT_ONCE + 1))
    [slice(0, 65536, None), slice(65536, 131072, None)]
    """
    return (slice(low, low + AT_ONCE) for low in range(0, rows, AT_ONCE))


def taken(table: NDArray[Kind], index: AnyInts) -> NDArray[Kind]:
    """table[index]; NumPy would write all of a narrow index out as int64.

    >>> taken(np.array([5, 6, 7]), np.array([2, 0, 2], np.int32))
    array([7, 5, 7])
    """
    out = np.empty(len(index), table.dtype)
    for rows in blocks(len(index)):
        out[rows] = table[index[rows]]
    return out


def counts(values: AnyInts, bound: int) -> Longs:
    """How often each of 0..bound-1 is there.

    >>> counts(np.array([2, 0, 2]), 4)
    array([1, 0, 2, 0])
    """
    out = np.zeros(bound, np.int64)
    for rows in blocks(len(values)):
        out += np.bincount(values[rows], minlength=bound)
    return out


def starts(ordered: NDArray[Any]) -> Bools:
    """Where a run of equal values begins in an ordered column.

    >>> starts(np.array([3, 3, 5, 9, 9]))
    array([ True, False,  True,  True, False])
    """
    flags = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=flags[1:])
    return flags


def distinct(key: AnyInts, bound: int | None = None) -> Longs:
    """The distinct values, ascending. `bound` of them, where it is known: where it is small nothing is sorted.

    >>> distinct(np.array([7, 3, 7]))
    array([3, 7])
    """
    if bound is not None and bound <= 4 * len(key):
        present = np.zeros(bound, np.bool_)
        present[key] = True
        return np.flatnonzero(present)
    ordered = np.sort(key.astype(np.int64))
    return ordered[starts(ordered)]


def dense(key: AnyInts, bound: int) -> tuple[Longs, Longs]:
    """The distinct values ascending, and every key's place among them.

    >>> dense(np.array([70, 30, 70, 50]), 100)
    (array([30, 50, 70]), array([2, 0, 2, 1]))
    """
    if bound <= 4 * len(key):  # few enough to mark each in a table instead of sorting
        present = np.zeros(bound, np.bool_)
        present[key] = True
        places: Longs = np.cumsum(present, dtype=np.int64) - 1
        return np.flatnonzero(present), places[key]
    order = order_of(key, bound)
    ordered: Longs = key.astype(np.int64)[order]
    flags = starts(ordered)
    place: Longs = np.empty(len(key), np.int64)
    place[order] = np.cumsum(flags) - 1
    return ordered[flags], place


def dense_pairs(first: Ints, second: Ints, bound: int) -> tuple[Longs, Ints]:
    """The distinct pairs of values below `bound`, ascending, as first * bound + second; and every row's place among
    them.

    >>> dense_pairs(np.array([3, 0, 3]), np.array([1, 2, 1]), 4)
    (array([ 2, 13]), array([1, 0, 1], dtype=int32))
    """
    rows, possible_pairs = len(first), bound * bound
    if possible_pairs > 4 * rows:
        pairs, where = dense(first.astype(np.int64) * bound + second, possible_pairs)
        return pairs, where.astype(np.int32)
    present, out = np.zeros(possible_pairs, np.bool_), np.empty(rows, np.int32)
    for block in blocks(rows):
        present[first[block].astype(np.int64) * bound + second[block]] = True
    pairs = np.flatnonzero(present)
    place = np.empty(possible_pairs, np.int32)
    place[pairs] = np.arange(len(pairs), dtype=np.int32)
    for block in blocks(rows):
        out[block] = place[first[block].astype(np.int64) * bound + second[block]]
    return pairs, out


def ranges(first: Longs, count: Longs) -> Longs:
    """first[0], first[0]+1, ... (count[0] of them), then first[1], ...: the rows of a CSR selection.

    >>> ranges(np.array([10, 4]), np.array([3, 2]))
    array([10, 11, 12,  4,  5])
    """
    total = int(count.sum())
    ends = np.cumsum(count)
    out: Longs = np.arange(total, dtype=np.int64) + np.repeat(first - (ends - count), count)
    return out


def pointers(owner: AnyInts, owners: int) -> Longs:
    """CSR offsets of an ascending column of owners: the rows of owner i are those from the i-th to the next.

    >>> pointers(np.array([0, 0, 2]), 3)
    array([0, 2, 2, 3])
    """
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=owners))]).astype(np.int64)


def numbered(*columns: NDArray[Any]) -> Longs:
    """Whole numbers 0, 1, ... for the distinct rows of these columns, in their order. One sort.

    >>> numbered(np.array([1, 0, 1, 0]), np.array([5, 9, 5, 2]))
    array([2, 1, 2, 0])
    """
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    for values in columns:
        new |= starts(values[order])
    out = np.empty(len(order), np.int64)
    out[order] = np.cumsum(new) - 1
    return out
