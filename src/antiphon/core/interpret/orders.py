"""Compare the orders in which schedules combine: the same for every element, and the same as another schedule's?

The value of a cell is a tree: leaves are inputs, nodes are combinations with their operands in the order in which they
are combined (see `interpret`). A combination rounds once, when it is stored, so a node of three operands and two nodes
of two are different trees. Equal trees give the same bits in floating point, independent of size, split and program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import pointers, ranges
from antiphon.core.interpret.analysis import Analysis, analyse, least_ids
from antiphon.core.joints import MULTICAST, joints_of
from antiphon.core.schedule import Schedule

Marks = NDArray[np.uint64]
NOTHING = ""  # the order of what combines nothing
_LANES = np.array([[0x9E3779B97F4A7C15], [0xC2B2AE3D27D4EB4F]], np.uint64)  # two marks of 64 bits each: one of 128


def order_of_combining(schedule: Schedule | Analysis) -> str | None:
    """A name for the one tree by which every element of every rank is combined; None where there is more than one.

    Equal names: equal trees (marks of 128 bits are compared; that two trees share one by chance is out of the
    question). Leaves are identified by contribution, not by block: all blocks of a reducescatter must have one tree.
    "" where nothing is combined. O(n) for n transfers beside `analyse`, some array operations per level.

    All three ranks of `core.example.star` end with one sum of three; a chain adds 0 to (1 and 2), another tree:

    >>> from antiphon.core.example import of_rows, star
    >>> chain = of_rows("allreduce", 3, [(0, 0, 2, 1, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (3, 0, 1, 2, 0)])
    >>> order_of_combining(star()) == order_of_combining(chain), order_of_combining(star()) is None
    (False, False)
    """
    groups = schedule if isinstance(schedule, Analysis) else analyse(schedule)
    joints = joints_of(groups.schedule)
    if joints is not None and bool((joints.kind != MULTICAST).any()):
        return None  # in which order a switch combines is not ours to say
    combined = groups.outputs.count > 1
    if not combined.any():
        return NOTHING
    ends = _mark_cells(groups)[:, groups.outputs.cell[combined]]
    if np.any(ends != ends[:, :1]):
        return None
    return "".join(f"{int(mark):016x}" for mark in ends[:, 0])


def _mark_cells(groups: Analysis) -> Marks:
    """The mark of what every cell holds at the end, in two columns. O(operands).

    >>> from antiphon.core.example import star
    >>> first, second = _mark_cells(analyse(star()))
    >>> len(first), len(set(first.tolist())), len(set(second.tolist()))  # three cells, the same in all
    (3, 1, 1)
    """
    marks = np.zeros((2, len(groups.cell_chunk)), np.uint64)
    leaves = least_ids(groups.schedule)[groups.inputs.pair].astype(np.uint64)
    marks[:, groups.inputs.cell] = _mix_bits(np.add(leaves, _LANES))
    bounds = pointers(groups.level, groups.levels)
    # A node's mark mixes its operands' marks with their places: a different order gives a different mark.
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        count, begin = groups.count[first:last], groups.first[first:last]
        place = ranges(np.zeros(len(count), np.int64), count).astype(np.uint64)
        read = marks[:, groups.operand[ranges(begin, count)]]
        head = np.cumsum(count) - count
        sums: Marks = np.add.reduceat(_mix_bits(read + (place + np.uint64(1)) * _LANES), head, axis=1)
        node = _mix_bits(np.bitwise_xor(sums, count.astype(np.uint64)))
        marks[:, groups.dst[first:last]] = np.where(count > 1, node, read[:, head])
    return marks


def _mix_bits(marks: Marks) -> Marks:
    """A permutation of the numbers of 64 bits that leaves no trace of sums and small differences (SplitMix64)."""
    marks = (marks ^ (marks >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    marks = (marks ^ (marks >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return marks ^ (marks >> np.uint64(31))
