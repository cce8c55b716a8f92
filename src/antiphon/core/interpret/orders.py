"""Compare the orders in which schedules combine operands: of all elements of a schedule, and of different schedules.

Floating-point sums depend on the order of additions. The value of a cell (one rank's copy of a chunk) is a tree: leaves
are inputs, nodes are combinations with their operands in the order in which they are combined (see `interpret`). A
combination rounds once, when it is stored, so one node of three operands and two nodes of two operands are different
trees. Equal trees give the same bits in floating point, independent of message size, chunks and program.

Trees are compared by hashes of 128 bits: a leaf's hash follows from its contribution, a node's from its operands'
hashes and positions. Example: (0 + 1 + 2) at rank 0 of a star and 0 + (1 + 2) on a chain have different hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import concat_ranges, pointers
from antiphon.core.interpret.analysis import Analysis, analyse, least_ids
from antiphon.core.joints import MULTICAST, joints_of
from antiphon.core.schedule import Schedule

Hashes = NDArray[np.uint64]
NOTHING = ""  # the order of a schedule that combines nothing
_SEEDS = np.array([[0x9E3779B97F4A7C15], [0xC2B2AE3D27D4EB4F]], np.uint64)  # seeds of the two 64-bit halves of a hash


def order_of_combining(schedule: Schedule | Analysis) -> str | None:
    """Return a name for the one tree by which every element of every rank is combined; None if there are several trees.

    Equal names mean equal trees (up to collisions of 128-bit hashes, which do not happen in practice). Leaves are
    identified by contribution, not by block, so all blocks of a reducescatter must have one tree. "" if nothing is
    combined. O(n) for n transfers besides `analyse`, some array operations per level.

    All three ranks of `core.example.star` end with one sum of three; a chain adds 0 to (1 and 2), another tree:

    >>> from antiphon.core.example import of_rows, star
    >>> chain = of_rows("allreduce", 3, [(0, 0, 2, 1, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (3, 0, 1, 2, 0)])
    >>> order_of_combining(star()) == order_of_combining(chain), order_of_combining(star()) is None
    (False, False)
    """
    analysis = schedule if isinstance(schedule, Analysis) else analyse(schedule)
    joints = joints_of(analysis.schedule)
    if joints is not None and bool((joints.kind != MULTICAST).any()):
        return None  # the order in which a switch combines is not known
    is_combined = analysis.outputs.count > 1
    if not is_combined.any():
        return NOTHING
    final_hashes = _hash_cells(analysis)[:, analysis.outputs.cell[is_combined]]
    if np.any(final_hashes != final_hashes[:, :1]):
        return None
    return "".join(f"{int(half):016x}" for half in final_hashes[:, 0])


def _hash_cells(analysis: Analysis) -> Hashes:
    """Return the hash of every cell's final value, as two rows of 64 bits. O(operands).

    >>> from antiphon.core.example import star
    >>> low, high = _hash_cells(analyse(star()))
    >>> len(low), len(set(low.tolist())), len(set(high.tolist()))  # three cells, the same in all
    (3, 1, 1)
    """
    hashes = np.zeros((2, len(analysis.cell_chunk)), np.uint64)
    # An input is identified by its contribution number, in a reducescatter the rank, which is the same for all blocks.
    # `least_ids`: by (rank, block) pair of the input, the least contribution number among those that the rank holds
    leaves = least_ids(analysis.schedule)[analysis.inputs.pair].astype(np.uint64)
    hashes[:, analysis.inputs.cell] = _mix_bits(np.add(leaves, _SEEDS))
    bounds = pointers(analysis.level, analysis.levels)
    # A node's hash mixes its operands' hashes with their positions, so a different order gives a different hash.
    # Levels follow a chunk's steps, and each reads its operands before it writes: `hashes` is of the current values.
    for begin_group, end_group in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        count, begin = analysis.count[begin_group:end_group], analysis.first[begin_group:end_group]
        position = concat_ranges(np.zeros(len(count), np.int64), count).astype(np.uint64)
        operand_hash = hashes[:, analysis.operand[concat_ranges(begin, count)]]
        first_operand = np.cumsum(count) - count
        sums: Hashes = np.add.reduceat(
            _mix_bits(operand_hash + (position + np.uint64(1)) * _SEEDS), first_operand, axis=1
        )
        node = _mix_bits(np.bitwise_xor(sums, count.astype(np.uint64)))
        # A group of one operand is a copy, which keeps the operand's hash.
        hashes[:, analysis.dst[begin_group:end_group]] = np.where(count > 1, node, operand_hash[:, first_operand])
    return hashes


def _mix_bits(hashes: Hashes) -> Hashes:
    """Permute the 64-bit numbers so that sums and small differences leave no pattern (SplitMix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
