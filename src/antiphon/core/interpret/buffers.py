"""Where the blocks of a collective are in the users' buffers, out of place and in place, and checks of user-supplied
inputs.

Out of place, the input of a rank is the blocks it contributes to, one after another in the order of their numbers, each
once; its output is the blocks it must end with, likewise. Example, allgather of one block per rank on 3 ranks: the
input is one block, at 0; the output is the blocks at 0, 1, 2.

In place, a rank has one buffer: its input and output blocks together in the order of their numbers, each once. So the
input of an allgather is at its place in the output, and the result of a reducescatter at its place in the input. Those
of allreduce, broadcast and reduce are the same buffer. The root of a gather or scatter leaves its own block where it
is, as with MPI_IN_PLACE and in NCCL. Only an alltoall differs: the block for the j-th rank is at position j and is
replaced by the j-th rank's block, which must be as long. Input blocks that are no output keep their contents.

A block has a weight, its relative size. Positions are sums of weights, to be multiplied by the *unit*: elements per
weight 1, which follows from the length of the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import SAFE_INT64, Ints, Longs, distinct_pairs, pair_keys
from antiphon.core.datatypes import data_type
from antiphon.core.schedule import Chunks
from antiphon.errors import Invalid, Unsupported

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Side:
    """One side (input or output) of a collective: distinct (rank, block) pairs, sorted by rank, then block.

    `start`: where the block begins in the buffer of its rank. `size`: per rank the length of that buffer. Both in
    weights.
    """

    rank: Longs
    block: Longs
    start: Longs
    size: Longs


def _make_side(collective: Collective, rank: Ints, block: Ints) -> Side:
    """Return the side with these (rank, block) pairs, each once, and where each is in the buffer of its rank.

    O(n log n).

    Blocks of weights 2, 1, 3; rank 0 has 0 and 2, rank 1 has 1:

    >>> side = _make_side(Collective("allgather", 3, weights=[2, 1, 3]), np.array([1, 0, 0]), np.array([1, 2, 0]))
    >>> side.rank, side.block, side.start, side.size
    (array([0, 0, 1]), array([0, 2, 1]), array([0, 2, 0]), array([5, 1, 0]))
    """
    ranks, blocks = distinct_pairs(rank, block)
    # All buffers end to end: where each pair begins, then where each rank's buffer begins.
    begins = np.concatenate([[0], np.cumsum(collective.weights[blocks])])
    buffer_begins = begins[np.searchsorted(ranks, np.arange(collective.ranks + 1))]
    return Side(ranks, blocks, start=begins[:-1] - buffer_begins[ranks], size=np.diff(buffer_begins))


def sides(collective: Collective, in_place: bool = False) -> tuple[Side, Side]:
    """Return the input and the output side. In place both have the `size` of the single buffer. O(n log n).

    The input of an allgather is a buffer of one block; in place it is where the output has it:

    >>> [sides(Collective("allgather", 3), in_place)[0].start.tolist() for in_place in (False, True)]
    [[0, 0, 0], [0, 1, 2]]
    """
    relation = collective.relation
    pre = _make_side(collective, relation.pre_rank, relation.pre_block)
    post = _make_side(collective, relation.post_rank, relation.post_block)
    if not in_place:
        return pre, post
    if collective.kind == "alltoall":
        if not np.array_equal(pre.start, post.start) or not np.array_equal(pre.size, post.size):
            raise Unsupported(
                "an alltoall in place needs equal counts both ways between any two ranks; run it out of place"
            )
        return pre, post
    combined = _make_side(
        collective,
        np.concatenate([relation.pre_rank, relation.post_rank]),
        np.concatenate([relation.pre_block, relation.post_block]),
    )
    return _place_within(pre, combined), _place_within(post, combined)


def _place_within(side: Side, combined: Side) -> Side:
    """Return a side with positions in the combined buffer, which has all its pairs."""
    index = np.searchsorted(pair_keys(combined.rank, combined.block), pair_keys(side.rank, side.block))
    return Side(side.rank, side.block, combined.start[index], combined.size)


def elements_of(collective: Collective, unit: int) -> Longs:
    """Return the elements of each block for a unit of this many elements; 0 if too heavy for any buffer. O(blocks).

    >>> elements_of(Collective("allgather", 3, weights=[2, 1, 3]), 10)
    array([20, 10, 30])
    """
    # A block that is heavier than every buffer is in none; its elements might not fit int64.
    in_some_buffer = collective.weights <= collective.buffer_weight
    return np.where(in_some_buffer, collective.weights, 0) * np.int64(unit)


def block_elements(collective: Collective, nbytes: int, itemsize: int) -> Longs:
    """Return the number of elements of each block if the largest buffer of a rank has `nbytes`, rounded down.

    All blocks are rounded alike, to a whole number of elements per unit of weight, as in nccl-tests: an allgather of 10
    elements on 4 ranks moves 2 per rank.

    >>> block_elements(Collective("allgather", 4), 40, 4)
    array([2, 2, 2, 2])
    """
    if nbytes < 0 or itemsize < 1:
        raise Invalid(f"a buffer of {nbytes} bytes with items of {itemsize} makes no sense; give 0 bytes or more")
    return elements_of(collective, nbytes // itemsize // collective.buffer_weight)


def busbw_factor(collective: Collective) -> float:
    """Return busbw / algbw as nccl-tests defines it; 1 for custom collectives."""
    n = len(collective.members)
    if collective.kind == "allreduce":
        return 2 * (n - 1) / n
    if collective.kind in ("allgather", "reducescatter", "alltoall", "gather", "scatter"):
        return (n - 1) / n
    return 1.0


def chunk_bounds(chunks: Chunks, elements: Longs) -> tuple[Longs, Longs]:
    """Return where each chunk begins and ends in its block: floor(n * offset), floor(n * (offset + share)). O(chunks).

    A block of ten elements in thirds:

    >>> chunk_bounds(Chunks([0, 0, 0], [0, 1, 2], [1, 1, 1], 3), np.array([10]))
    (array([0, 3, 6]), array([ 3,  6, 10]))
    """
    n: Array = elements[chunks.block]
    # As fractions of the block, over `denominator`
    begins: Array = chunks.offset
    ends: Array = chunks.offset + chunks.share
    if float(n.max(initial=0)) * chunks.denominator >= SAFE_INT64:  # n * offset could overflow: use Python ints
        n, begins, ends = n.astype(object), begins.astype(object), ends.astype(object)
    low, high = n * begins // chunks.denominator, n * ends // chunks.denominator
    return low.astype(np.int64), high.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Buffers:
    """The checked inputs of one run, and where blocks are in inputs and outputs."""

    arrays: list[Array]  # per rank
    dtype: np.dtype[Any]
    unit: int  # elements per weight 1
    input_side: Side
    output_side: Side


def take_inputs(collective: Collective, inputs: Sequence[Any], dtype: object = None, in_place: bool = False) -> Buffers:
    """Check user-supplied inputs: one 1-D array per rank (None: nothing), of one type, of fitting lengths.

    `dtype`: the type that they must have (None: that of the first array; float32 if there is none). Arrays are not
    copied; an empty sequence that is no array counts as None.
    """
    if len(inputs) != collective.ranks:
        raise Invalid(f"inputs: expected one per rank ({collective.ranks}), got {len(inputs)}")
    pre, post = sides(collective, in_place)
    element_type = None if dtype is None else data_type(dtype)
    array_of_rank: dict[int, Array] = {}
    for rank, buffer in enumerate(inputs):
        if buffer is None or (not isinstance(buffer, np.ndarray) and len(buffer) == 0):
            continue
        if in_place and not (isinstance(buffer, np.ndarray) and buffer.flags.writeable):
            raise Invalid(f"rank {rank}: its buffer must be a writable NumPy array to run in place")
        array = np.asarray(buffer)
        if array.ndim != 1:
            raise Invalid(f"rank {rank}: its input has {array.ndim} dimensions; flatten it to 1")
        array_of_rank[rank] = array
        element_type = data_type(array.dtype) if element_type is None else element_type
        if array.dtype != element_type:
            raise Invalid(f"rank {rank}: its input is of type {array.dtype}, not {element_type}; convert it first")
    element_type = np.dtype(np.float32) if element_type is None else element_type
    arrays = [array_of_rank.get(rank, np.zeros(0, element_type)) for rank in range(collective.ranks)]
    return Buffers(arrays, element_type, _find_unit(pre.size, arrays), pre, post)


def _find_unit(buffer_weights: Longs, arrays: list[Array]) -> int:
    """Return the elements per weight 1; raise Invalid if the buffers' lengths do not fit together.

    `buffer_weights`: per rank. The first rank with a buffer decides the unit.
    """
    unit, first_rank = 0, -1
    for rank, array in enumerate(arrays):
        weight = int(buffer_weights[rank])
        if first_rank < 0 and weight:
            unit, first_rank = len(array) // weight, rank
        if len(array) != weight * unit:
            if first_rank == rank:
                raise Invalid(f"rank {rank}: its buffer has {len(array)} elements, not a multiple of {weight}")
            reason = f" as rank {first_rank} has {len(arrays[first_rank])}" if weight else ": it has no part in this"
            raise Invalid(f"rank {rank}: its buffer has {len(array)} elements, expected {weight * unit}{reason}")
    return unit
