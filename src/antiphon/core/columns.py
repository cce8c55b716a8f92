"""Operations on integer columns: check, sort, group, count. Each is linear or one sort.

A table (of links, transfers, messages) is stored as NumPy columns of equal length; a row is an index into all of them.
Code on tables of millions of rows is made of these operations instead of Python loops:

    column, op_column     check values and freeze them as int32 or uint8
    freeze, as_int32      make an array read-only, or int32, without a check
    order_of              the stable order of rows by a key
    is_ascending          whether rows are in order
    pack_columns          several columns as one integer key per row
    pair_keys, split_keys the same for two int32 columns, and back
    distinct              the distinct values
    distinct_pairs        the distinct rows of two int32 columns
    are_among             which values occur in an ascending column
    unique_inverse        the distinct values, and the index of every row's value among them
    number_rows           the same index for rows of several columns
    run_starts            where a run of equal values begins
    index_in_run          each row's index within its run of equal values
    pointers              where each owner's rows begin (CSR offsets), if rows are in order of owners
    concat_ranges         the rows of chosen owners, one owner after another
    sums_by_group         sums of whole numbers by group
    largest_remainders    round numbers so that they keep their sum
    word_count, set_bits  sets of small numbers as bits of 64-bit words
    reached_nodes         the nodes of a graph that can be reached from start nodes
    row_batches           slices of rows that fit the cache

An argument `bound` is a number above all values of a column (values are 0..bound-1). It decides whether a table of all
possible values is small enough to replace a sort, and whether several columns fit into one int64.

Example: the total load per link of transfers (link, bytes) in the columns link = [7, 3, 7], size = [1, 2, 4]:
`unique_inverse(link, 10)` returns the links [3, 7] and the groups [1, 0, 1]; `sums_by_group(groups, size, 2)` returns
[2, 5].
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
ROWS_PER_BATCH = 2**16  # so that the intermediate results of one batch stay in the processor's cache
TABLE_PER_ROW = 4  # a table of all possible values replaces a sort if it has at most this many entries per row
WORD_BITS = 64
SAFE_INT64 = 2**62  # two whole numbers below it still fit int64 when added
# For multiply-xorshift hashes in other files: odd, so that no bit is lost; overflow wraps on purpose
HASH_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)


def column(values: ArrayLike, label: str, low: int, high: int) -> Ints:
    """Return a read-only int32 column; raise Invalid unless every value lies in low..high-1."""
    return _check_bounds(values, label, low, high, np.int32)


def op_column(values: ArrayLike) -> Octets:
    """Return a read-only uint8 column; raise Invalid unless every value is 0 or 1."""
    return _check_bounds(values, "op (0 = copy, 1 = reduce)", 0, 2, np.uint8)


def _check_bounds(values: ArrayLike, label: str, low: int, high: int, kind: type[np.integer[Any]]) -> NDArray[Any]:
    """Return values as a read-only column of this type, checked to be whole numbers from low to high - 1."""
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
        out = out.copy()  # the caller may still write into its own array
    out.setflags(write=False)
    return out


def _in_bounds(array: AnyInts, low: int, high: int) -> bool:
    """Return whether all values of an array, which is not empty, lie in low..high-1."""
    if low == 0 and array.dtype.kind == "i":  # viewed as unsigned, a negative number is huge: one comparison suffices
        array = array.view(np.dtype(f"{array.dtype.byteorder}u{array.dtype.itemsize}"))
    elif int(array.min()) < low:
        return False
    return int(array.max()) < high


def freeze(values: NDArray[Kind]) -> NDArray[Kind]:
    """Make a new array read-only. Only for arrays that no other code writes into: `column` then need not copy them."""
    values.setflags(write=False)
    return values


def as_int32(values: NDArray[Any]) -> Ints:
    """Return the same whole numbers as int32."""
    return values.astype(np.int32, copy=False)


def order_of(key: AnyInts, bound: int) -> Longs:
    """Return the row numbers in ascending order of the keys, which are in 0..bound-1; equal keys keep their order.

    Keys of 16 bits are sorted by radix, in linear time. If key and row number fit into 63 bits together they are sorted
    as one number: a plain sort of integers is many times faster than an argsort.

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


def pack_columns(*columns: tuple[NDArray[Any], int]) -> tuple[Longs, int]:
    """Combine (column, bound of its values) pairs into one number per row that sorts like the rows; return a bound of
    the numbers, too.

    >>> pack_columns((np.array([1, 0, 1]), 2), (np.array([2, 2, 0]), 3))
    (array([5, 2, 3]), 6)
    """
    first, bound = columns[0]
    key, bound = first.astype(np.int64), max(bound, 1)
    for values, values_bound in columns[1:]:
        size = max(values_bound, 1)
        if bound * size >= SAFE_INT64:  # would overflow int64: renumber the key so far without gaps
            values_used, key = unique_inverse(key, bound=bound)
            bound = max(len(values_used), 1)
        key *= size
        key += values
        bound *= size
    return key, bound


def pair_keys(high: NDArray[Any], low: NDArray[Any]) -> Longs:
    """Combine two columns, `low` in 0..2^32 - 1, into one key per row that sorts like the pairs."""
    keys: Longs = (high.astype(np.int64) << 32) | low
    return keys


def split_keys(keys: Longs) -> tuple[Longs, Longs]:
    """Return the two columns of `pair_keys`."""
    return keys >> 32, keys & 0xFFFFFFFF


def is_ascending(*columns: NDArray[Any]) -> bool:
    """Return whether no row of these columns is below the one before it.

    >>> is_ascending(np.array([1, 1, 2]), np.array([3, 4, 0])), is_ascending(np.array([1, 1]), np.array([4, 3]))
    (True, False)
    """
    tied: Bools | np.bool_ = np.True_
    for values in columns:
        if bool((tied & (values[1:] < values[:-1])).any()):
            return False
        tied = tied & (values[1:] == values[:-1])
    return True


def index_in_run(group: NDArray[Any]) -> Longs:
    """Return the index of every element within its run of equal values.

    >>> index_in_run(np.array([7, 7, 3, 7, 7, 7]))
    array([0, 1, 0, 0, 1, 2])
    """
    index = np.arange(len(group))
    return index - np.maximum.accumulate(np.where(run_starts(group), index, 0)) if len(group) else index


def sums_by_group(group: AnyInts, values: NDArray[Any], groups: int) -> NDArray[Any]:
    """Return the sums of whole numbers by group, exact in any order.

    >>> sums_by_group(np.array([1, 0, 1]), np.array([5, 6, 7]), 3)
    array([ 6, 12,  0])
    """
    # bincount adds in float64, which is exact for whole numbers below 2^53, and is faster than np.add.at.
    if values.dtype != object and float(np.abs(values).sum(dtype=np.float64)) < 2.0**53:
        return np.bincount(group, weights=values, minlength=groups).astype(np.int64)
    out = np.zeros(groups, values.dtype)
    np.add.at(out, group, values)
    return out


def row_batches(rows: int) -> Iterator[slice]:
    """Return slices of at most ROWS_PER_BATCH rows that together cover all rows.

    Code that works batch by batch keeps its intermediate results in the cache.

    >>> list(row_batches(ROWS_PER_BATCH + 1))
    [slice(0, 65536, None), slice(65536, 131072, None)]
    """
    return (slice(low, low + ROWS_PER_BATCH) for low in range(0, rows, ROWS_PER_BATCH))


def run_starts(ordered: NDArray[Any]) -> Bools:
    """Return where a run of equal values begins in an ordered column.

    >>> run_starts(np.array([3, 3, 5, 9, 9]))
    array([ True, False,  True,  True, False])
    """
    flags = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=flags[1:])
    return flags


def distinct(key: AnyInts, bound: int | None = None) -> Longs:
    """Return the distinct values, ascending. With a small `bound` of the values nothing is sorted.

    >>> distinct(np.array([7, 3, 7]))
    array([3, 7])
    """
    if bound is not None and bound <= TABLE_PER_ROW * len(key):
        present = np.zeros(bound, np.bool_)
        present[key] = True
        return np.flatnonzero(present)
    ordered = np.sort(key.astype(np.int64))
    return ordered[run_starts(ordered)]


def distinct_pairs(high: NDArray[Any], low: NDArray[Any]) -> tuple[Longs, Longs]:
    """Return the distinct rows of two columns, ascending; `low` is in 0..2^32 - 1.

    >>> distinct_pairs(np.array([1, 0, 1]), np.array([2**31, 5, 2**31]))
    (array([0, 1]), array([         5, 2147483648]))
    """
    return split_keys(distinct(pair_keys(high, low)))


def are_among(values: Longs, ascending: Longs) -> Bools:
    """Return which values are in an ascending column. One binary search per value; np.isin would sort or hash both.

    >>> are_among(np.array([5, 2, 9]), np.array([2, 3, 5]))
    array([ True,  True, False])
    """
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[at] == values)


def unique_inverse(key: AnyInts, bound: int) -> tuple[Longs, Longs]:
    """Return the distinct values, ascending, and the index of every key among them.

    >>> unique_inverse(np.array([70, 30, 70, 50]), 100)
    (array([30, 50, 70]), array([2, 0, 2, 1]))
    """
    if bound <= TABLE_PER_ROW * len(key):  # mark each value in a table instead of sorting
        present = np.zeros(bound, np.bool_)
        present[key] = True
        index_of_value: Longs = np.cumsum(present, dtype=np.int64) - 1
        return np.flatnonzero(present), index_of_value[key]
    order = order_of(key, bound=bound)
    ordered: Longs = key.astype(np.int64)[order]
    begins = run_starts(ordered)
    index: Longs = np.empty(len(key), np.int64)
    index[order] = np.cumsum(begins) - 1
    return ordered[begins], index


def concat_ranges(first: Longs, count: Longs) -> Longs:
    """Return first[0], first[0]+1, ... (count[0] numbers), then first[1], first[1]+1, ... (count[1]), and so on.

    With CSR offsets `ptr`, the rows of some owners are `concat_ranges(ptr[owners], np.diff(ptr)[owners])`.

    >>> concat_ranges(np.array([10, 4]), np.array([3, 2]))
    array([10, 11, 12,  4,  5])
    """
    total = int(count.sum())
    ends = np.cumsum(count)
    out: Longs = np.arange(total, dtype=np.int64) + np.repeat(first - (ends - count), count)
    return out


def pointers(owner: AnyInts, owners: int) -> Longs:
    """Return the CSR offsets of an ascending column of owners: the rows of owner i are out[i] to out[i + 1].

    >>> pointers(np.array([0, 0, 2]), 3)
    array([0, 2, 2, 3])
    """
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=owners))]).astype(np.int64)


def number_rows(*columns: NDArray[Any]) -> Longs:
    """Return the number of every row among the distinct rows of these columns, in ascending order. One sort.

    >>> number_rows(np.array([1, 0, 1, 0]), np.array([5, 9, 5, 2]))
    array([2, 1, 2, 0])
    """
    order = np.lexsort(columns[::-1])
    begins_row = np.zeros(len(order), bool)
    for values in columns:
        begins_row |= run_starts(values[order])
    out = np.empty(len(order), np.int64)
    out[order] = np.cumsum(begins_row) - 1
    return out


def largest_remainders(exact: Floats, total: int, tolerance: float = 0.0) -> Longs:
    """Return integers near these numbers that sum to `total`: rounded down, the largest remainders then up.

    The numbers themselves must sum to `total`, but for errors of rounding.

    `tolerance`: a number at most this much below an integer counts as that integer.

    >>> largest_remainders(np.array([1.5, 1.75, 1.75]), 5).tolist()
    [1, 2, 2]
    """
    counts = np.floor(exact + tolerance).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")  # by descending remainder
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def word_count(bits: Any) -> Any:
    """Return the number of words of WORD_BITS bits that hold `bits` bits."""
    return (bits + WORD_BITS - 1) // WORD_BITS


def set_bits(words: NDArray[np.uint64], row: NDArray[Any], number: NDArray[Any]) -> None:
    """Set a bit per element: number % 64 of words[row, number // 64].

    >>> words = np.zeros((2, word_count(66)), np.uint64)
    >>> set_bits(words, np.array([0, 1, 1]), np.array([2, 0, 65]))
    >>> words.tolist()
    [[4, 0], [1, 2]]
    """
    bit = np.uint64(1) << (number % WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(words, (row, number // WORD_BITS), bit)


def reached_nodes(start: Bools, src: NDArray[Any], dst: NDArray[Any]) -> Bools:
    """Return the start nodes and all nodes that links src -> dst lead to from them. O(links) per breadth-first layer.

    >>> reached_nodes(np.array([True, False, False]), np.array([0, 2]), np.array([1, 1]))
    array([ True,  True, False])
    """
    reached = start.copy()
    while True:
        new = dst[reached[src] & ~reached[dst]]
        if not len(new):
            return reached
        reached[new] = True
