"""Compute addresses of a program that hold at every message size.

A program addresses fractions of blocks on a line on which all blocks stand. The unit of that line (weight 1) is cut at
all fractions that occur in the program; the interval between two cuts is an **atom**. Atoms differ in length, and some
are empty at small sizes, but their order is the same at every size, and so is which intervals overlap. So places are
counted in atoms: with `count` atoms per unit, place `whole * count + index` is the point whole + cuts[index] /
denominator.

Example: the fractions 1/3 and 1/2 occur. The cuts of a unit are 0, 1/3 and 1/2, so it has 3 atoms; the point 1 + 1/2 is
place 1 * 3 + 2 = 5.

Scratch is divided into slots, which are reused for data from different places of the line (origins); these cannot be
compared in atoms. So each pair of slot and origin is a **region** with places of its own; if a slot has several
regions, an access to one of them counts as an access to the whole slot.

Columns of a program (core/program/kinds.py): a *part*, the data of an operation, lies between two *points* of the line,
in the buffer or slot that its *base* names; `base_shift` units of weight are added to the place on the line to get that
in the buffer. *finish* lists intervals of the output that an average divides.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Unsupported
from antiphon.lower.onesided.form import Place

MAX_PLACES = 2**62  # limit of the line's length in atoms, as places are int64


@dataclass(frozen=True, eq=False)
class Atoms:
    """The cuts of a unit, the regions of scratch, and all addresses in atoms."""

    denominator: int
    cuts: Longs  # the numerators of all cuts of a unit, ascending from 0
    region_ptr: Longs  # rank r has the regions region_ptr[r] to region_ptr[r + 1] - 1
    slot: Longs  # per region: its slot
    origin: Longs  # per region: the place on the line of the first data in it
    first: Longs  # per region: its first place in scratch
    shared: Longs  # per region: 1 if its slot has other regions, too, else 0
    layout: BufferLayout  # all addresses, at a size of `count` elements per unit

    @property
    def count(self) -> int:
        """The atoms of a unit."""
        return len(self.cuts)

    def region(self, rank: int, place: int) -> int:
        """Return the number of the region that contains a place of scratch."""
        low, high = int(self.region_ptr[rank]), int(self.region_ptr[rank + 1])
        return low + bisect_right(self.first[low:high].tolist(), place) - 1

    def line(self, rank: int, place: Place) -> int:
        """Return the position of a place on the line, in atoms."""
        buffer, begin = place
        if buffer != SCRATCH:
            return begin
        region = self.region(rank, begin)
        return begin + int(self.origin[region] - self.first[region])

    def access_range(self, rank: int, place: Place, size: int) -> tuple[int, int, int]:
        """Return (buffer, begin, end) of an access. If accesses overlap at any message size, their ranges do.

        A slot with several regions counts as a buffer of its own, with one place: buffer SCRATCH + 1 + slot."""
        buffer, begin = place
        if buffer == SCRATCH:
            region = self.region(rank, begin)
            if self.shared[region]:
                return SCRATCH + 1 + int(self.slot[region]), 0, 1
        return buffer, begin, begin + size


def atoms(program: Program) -> Atoms:
    """Return the atoms of a program. Linear in the program, except for sorting its fractions.

    Two ranks that swap their blocks, half after half: a unit is two atoms.

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> rows = [(0, 0, 0, 1, 0), (1, 2, 0, 1, 0), (0, 1, 1, 0, 0), (1, 3, 1, 0, 0)]
    >>> halves = atoms(lower(of_rows("allgather", 2, rows, parts=2)))
    >>> halves.cuts.tolist(), halves.denominator
    ([0, 1], 2)
    """
    points = np.unique(
        np.concatenate(
            [program.part_begin, program.part_end, program.finish_begin, program.finish_end, program.base_origin]
        )
    )
    cuts = np.unique(np.concatenate([[0], program.point_numerator[points]]))
    count = len(cuts)
    total_weight = max(int(program.collective.weights.sum()), 1)
    if (total_weight + 1) * count >= MAX_PLACES:
        raise Unsupported(
            f"a device table: {total_weight} units of weight, cut into {count} each, are too many; scale them"
        )
    # points that nothing uses may lie beyond the last cut
    place_of_point = program.point_whole * count + np.minimum(np.searchsorted(cuts, program.point_numerator), count - 1)
    rank = np.repeat(np.arange(program.ranks), np.diff(program.base_ptr))
    scratch = np.flatnonzero(program.base_buffer == SCRATCH)
    # regions: the distinct (rank, slot, place of the origin) of scratch bases
    origin = place_of_point[program.base_origin[scratch]]
    keys = np.stack([rank[scratch], program.base_slot[scratch], origin], axis=1)
    regions, region_of = np.unique(keys, axis=0, return_inverse=True)
    region_rank, region_slot, region_origin = regions.T
    region_of = region_of.reshape(-1)
    region = np.full(len(rank), -1, np.int64)  # per base; -1: it is not in scratch
    region[scratch] = region_of
    # the length of each region: as far as any part reaches
    reach = np.zeros(len(regions), np.int64)
    part_region = region[program.part_base]
    in_scratch = part_region >= 0
    part_ends = place_of_point[program.part_end[in_scratch]]
    np.maximum.at(reach, part_region[in_scratch], part_ends - region_origin[part_region[in_scratch]])
    first, ptr = _lay_out_regions(region_rank, reach, program.ranks)
    offset = program.base_shift * count  # per base: its place in the buffer minus that on the line
    offset[scratch] = (first - region_origin)[region_of]
    begin, base = place_of_point[program.part_begin], program.part_base
    sizes = np.zeros((program.ranks, 3), np.int64)
    input_weight, output_weight = program.weights
    sizes[:, INPUT], sizes[:, OUTPUT] = input_weight * count, output_weight * count
    np.maximum.at(sizes[:, SCRATCH], region_rank, first + reach)
    length = place_of_point[program.part_end] - begin
    stride = np.zeros_like(length)  # between the pieces of a part, which have no addresses here
    layout = BufferLayout(
        unit=count, at=place_of_point, buffer=program.base_buffer[base], begin=offset[base] + begin, length=length,
        stride=stride, sizes=sizes,
    )  # fmt: skip
    shared = np.zeros(0, bool)
    if len(regions):
        rank_and_slot = regions[:, :2]
        _, slot_of, region_counts = np.unique(rank_and_slot, axis=0, return_inverse=True, return_counts=True)
        shared = region_counts[slot_of.reshape(-1)] > 1
    return Atoms(program.denominator, cuts, ptr, region_slot, region_origin, first, shared.astype(np.int64), layout)


def _lay_out_regions(rank: Longs, reach: Longs, ranks: int) -> tuple[Longs, Longs]:
    """Place the regions of each rank one after the other with an unused place between, so that accesses to two regions
    are never contiguous. Return the first place of each region, and where each rank's regions begin (region_ptr).
    """
    ends = np.concatenate([[0], np.cumsum(reach + 1)])
    ptr = np.searchsorted(rank, np.arange(ranks + 1))
    first = ends[:-1] - ends[ptr[rank]] if len(rank) else np.zeros(0, np.int64)
    return first, ptr.astype(np.int64)
