"""Assemble a schedule from placements: copies of small schedules, each on certain ranks and stretches of the data, from
a certain step on.

All data are laid end to end on one *line*. A `Placement` works on stretches of the line (`Spans`), so it is independent
of how other placements cut the data: `assemble_parts` cuts the chunks wherever any placement has a border, and repeats
all rows for the finer chunks. Whether the outputs of one placement are the inputs of the next is not checked here;
`verify` checks the result.

Example: an allgather of 4 ranks from swaps. Placement 1, step 0: two copies of a swap of 2 ranks, (0, 1) and (2, 3), on
the blocks of their ranks. Placement 2, step 1: two copies, (0, 2) and (1, 3), each on both blocks of either half. The
result has 4 chunks and 4 + 8 rows (see `assemble_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import (
    Ints,
    Longs,
    as_int32,
    concat_ranges,
    distinct,
    freeze,
    number_rows,
    pointers,
)
from antiphon.core.loads import pieces_of
from antiphon.core.routes import Routes
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Schedule
from antiphon.core.transform.cutting import MAX_ROWS, expand
from antiphon.core.transform.tidying import plain_copies
from antiphon.errors import Unsupported

TOO_FINE = "compose: the shares of the chunks have no common denominator below 2^62; use rounder shares or fewer parts"


@dataclass(frozen=True, eq=False)
class Spans:
    """Nonempty stretches of the line; those of owner i are ptr[i] to ptr[i + 1] - 1, in order.

    An owner is anything with a list of stretches: a block of a collective, or a block in one copy of a placement.
    """

    ptr: Longs
    begin: Longs
    end: Longs

    @staticmethod
    def of(owner: Longs, begin: Longs, end: Longs, owners: int) -> Spans:
        """Build from owners in ascending order; drop empty stretches and join adjacent ones. O(spans).

        >>> spans = Spans.of(np.array([0, 0, 1]), np.array([0, 3, 7]), np.array([3, 5, 9]), 2)
        >>> spans.ptr.tolist(), spans.begin.tolist(), spans.end.tolist()
        ([0, 1, 2], [0, 7], [5, 9])
        """
        nonempty = begin < end
        owner, begin, end = owner[nonempty], begin[nonempty], end[nonempty]
        is_new = np.ones(len(owner), np.bool_)
        is_new[1:] = (owner[1:] != owner[:-1]) | (begin[1:] != end[:-1])
        first = np.flatnonzero(is_new)
        last = np.append(first[1:], len(owner)) - 1 if len(first) else first
        return Spans(pointers(owner[first], owners), begin[first], end[last])

    @staticmethod
    def side_by_side(lengths: Longs) -> Spans:
        """Return one stretch per owner, one after another."""
        end = np.cumsum(lengths)
        return Spans.of(np.arange(len(lengths)), end - lengths, end, len(lengths))

    @property
    def owner(self) -> Longs:
        """The owner of every stretch."""
        return np.repeat(np.arange(len(self)), np.diff(self.ptr))

    @cached_property
    def lengths(self) -> Longs:
        """The total length of each owner."""
        total: Longs = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        return total[self.ptr[1:]] - total[self.ptr[:-1]]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def take(self, owners: Longs) -> Spans:
        """Return the stretches of these owners, in this order. O(spans taken)."""
        count = np.diff(self.ptr)[owners]
        span = concat_ranges(self.ptr[owners], count)
        return Spans(np.concatenate([[0], np.cumsum(count)]), self.begin[span], self.end[span])

    def grouped(self, ptr: Longs) -> Spans:
        """Merge owners: new owner i gets the stretches of owners ptr[i] to ptr[i + 1] - 1, in order. O(spans)."""
        owner = np.repeat(np.arange(len(ptr) - 1), np.diff(self.ptr[ptr]))
        return Spans.of(owner, self.begin, self.end, len(ptr) - 1)

    def scaled(self, factor: int) -> Spans:
        """Return the spans on a line that is `factor` times as long."""
        return self if factor == 1 else Spans(self.ptr, self.begin * factor, self.end * factor)

    def cut(self, owner: Longs, low: Longs, high: Longs) -> Spans:
        """Return per row the stretches from `low` to `high` within its owner's stretches laid end to end. O(rows and
        spans).

        Of stretches from 0 to 4 and from 10 to 14 the part from 3 to 6:

        >>> both = Spans(np.array([0, 2]), np.array([0, 10]), np.array([4, 14]))
        >>> part = both.cut(np.array([0]), np.array([3]), np.array([6]))
        >>> part.begin.tolist(), part.end.tolist()
        ([3, 10], [4, 12])
        """
        size = self.end - self.begin
        stop = np.cumsum(size)  # `start` to `stop`: each stretch, counted along all stretches laid end to end
        start = stop - size
        base = np.concatenate([[0], stop])[self.ptr[:-1]][owner] if len(size) else np.zeros(len(owner), np.int64)
        low, high = low + base, high + base
        first = np.searchsorted(stop, low, side="right")
        count = np.maximum(np.searchsorted(start, high, side="left") - first, 0) * (low < high)
        span, row = concat_ranges(first, count), np.repeat(np.arange(len(owner)), count)
        begin = self.begin[span] + np.maximum(low[row] - start[span], 0)
        end = self.end[span] - np.maximum(stop[span] - high[row], 0)
        return Spans.of(row, begin, end, len(owner))


@dataclass(frozen=True, eq=False)
class Placement:
    """Copies of a schedule that run at the same time."""

    schedule: Schedule
    ranks: Longs  # in copy g, rank i of the schedule is ranks[g, i]
    where: Spans  # in copy g, block b of the schedule is the data of owner g * blocks + b
    links: Ints | None = None  # in copy g, link l of the schedule is links[g, l]; None: links keep their numbers
    start: int = 0  # the first step

    @staticmethod
    def single_copy(schedule: Schedule, where: Spans) -> Placement:
        """Return a placement of one copy, with the ranks as the schedule numbers them."""
        return Placement(schedule, np.arange(schedule.collective.ranks)[None], where)

    @property
    def stop(self) -> int:
        """The first step after the placement."""
        return self.start + self.schedule.steps

    @property
    def grain(self) -> int:
        """The factor by which the line must be refined for all borders of chunks to be whole numbers."""
        denominator = self.schedule.chunks.denominator
        return denominator // math.gcd(denominator, int(np.gcd.reduce(self.where.lengths)))

    def bounds(self) -> tuple[Longs, Longs]:
        """Return begin and end of every chunk of every copy (number g * chunks + c), counted along the spans of
        `where` without the gaps between them: with spans 0-4 and 10-14, position 5 is point 11 of the line."""
        chunks, blocks = self.schedule.chunks, self.schedule.collective.blocks
        owner = (np.arange(len(self.ranks))[:, None] * blocks + chunks.block).ravel()
        lengths = self.where.lengths
        unit = lengths[owner] // chunks.denominator
        low = (np.cumsum(lengths) - lengths)[owner] + np.tile(chunks.offset, len(self.ranks)) * unit
        return low, low + np.tile(chunks.share, len(self.ranks)) * unit


def assemble_parts(placements: Sequence[Placement], target: Collective, spans: Spans, pieces: int = 1) -> Schedule:
    """Assemble placements into a schedule of `target`, whose block b is owner b of `spans`.

    The owners of `spans` cover the whole line, each stretch once. If all placements have the same number of pieces it
    is kept; otherwise every piece becomes rows of its own, and each new row is sent in `pieces` slices. O(n log n) in
    new rows and in spans, and a loop over placements.

    Ranks 0 and 1 exchange their blocks, and 2 and 3; then 0 and 2, and 1 and 3, exchange both.

    >>> from antiphon.core.example import of_rows
    >>> swap = of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)])
    >>> line = Spans.side_by_side(np.ones(4, np.int64))
    >>> near = Placement(swap, np.array([[0, 1], [2, 3]]), line)
    >>> halves = Spans.side_by_side(np.array([2, 2])).take(np.array([0, 1, 0, 1]))
    >>> far = Placement(swap, np.array([[0, 2], [1, 3]]), halves)
    >>> schedule = assemble_parts([near, replace(far, start=1)], Collective("allgather", 4), line)
    >>> [column.tolist() for column in (schedule.step[4:], schedule.chunk[4:], schedule.src[4:], schedule.dst[4:])]
    [[1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 2, 2, 1, 1, 3, 3], [2, 2, 0, 0, 3, 3, 1, 1]]
    """
    # Equal numbers of pieces can stay implicit; otherwise every placement is expanded.
    piece_counts = {int(p) for placement in placements for p in np.unique(pieces_of(placement.schedule))}
    common_pieces = piece_counts.pop() if len(piece_counts) == 1 else 0
    placements = [_as_plain_copies(placement, bool(common_pieces)) for placement in placements]
    # Refine the line until all borders of all placements are whole numbers, then collect these borders.
    scale = math.lcm(*(placement.grain for placement in placements))
    if int(spans.end.max(initial=0)) * scale >= MAX_DENOMINATOR:
        raise Unsupported(TOO_FINE)
    spans = spans.scaled(scale)
    placements = [replace(placement, where=placement.where.scaled(scale)) for placement in placements]
    cuts = distinct(
        np.concatenate(
            [spans.begin, spans.end, *(border for placement in placements for border in _find_borders(placement))]
        )
    )
    tables: list[tuple[Longs, Ints]] = []
    before = {"route": 0, "joint": 0}
    columns = [_cut_rows(placement, cuts, before, tables) for placement in placements]
    joined_columns: dict[str, Any] = {name: freeze(np.concatenate([c[name] for c in columns])) for name in columns[0]}
    chunks = _target_chunks(spans, cuts)
    return Schedule(target, chunks, **joined_columns, routes=_join_routes(tables), pieces=common_pieces or pieces)


def _as_plain_copies(placement: Placement, keep_pieces: bool) -> Placement:
    """Make copies of reductions that find their cell empty if the schedule runs alone: after an earlier placement the
    cell may hold data, which a reduction would add.

    Expand the pieces unless `keep_pieces`, in which case the caller restores their number.
    """
    schedule = plain_copies(placement.schedule) if placement.start else placement.schedule
    if keep_pieces:
        schedule = replace(schedule, pieces=1)
    return replace(placement, schedule=schedule if keep_pieces else expand(schedule))


def _find_borders(placement: Placement) -> tuple[Longs, Longs, Longs]:
    """Return the points of the line at which spans begin and end, and at which chunks begin."""
    where = placement.where
    low, high = placement.bounds()
    low = low[low < high]
    stop = np.cumsum(where.end - where.begin)
    # From positions along the spans to points of the line.
    span = np.searchsorted(stop, low, side="right")
    return where.begin, where.end, (where.end[span] - (stop[span] - low)).astype(np.int64)


def _cut_rows(
    placement: Placement, cuts: Longs, before: dict[str, int], tables: list[tuple[Longs, Ints]]
) -> dict[str, NDArray[Any]]:
    """Return the columns of one placement, with every chunk cut at all of `cuts`. O(new rows).

    `before`: the numbers of routes and joints of earlier placements; increased here. `tables`: the placement's routes
    are appended, as (links per route, all links).
    """
    schedule, copies = placement.schedule, len(placement.ranks)
    first = np.searchsorted(cuts, placement.where.begin)
    count = np.searchsorted(cuts, placement.where.end) - first
    # An atom is the interval between two neighbouring cuts; a row is repeated for every atom that its chunk covers.
    atom = concat_ranges(first, count)  # the atoms of `where`, in order
    start = np.concatenate([[0], np.cumsum(cuts[atom + 1] - cuts[atom])])
    low, high = (np.searchsorted(start, bound) for bound in placement.bounds())
    # Rows for every copy of the placement: (copy, chunk) -> range of atoms. `row`, `copy`: per new row the row that it
    # repeats, and its copy.
    row: Any = slice(None)
    copy: Any = 0
    if copies == 1 and schedule.joint is None and bool((high - low == 1).all()):  # every row stays a single row
        total, chunk = schedule.transfers, atom[low[schedule.chunk]]
    else:
        copy = np.repeat(np.arange(copies), schedule.transfers)
        key = copy * len(schedule.chunks) + np.tile(schedule.chunk, copies)
        repeats = (high - low)[key]
        total = int(repeats.sum())
        if total > MAX_ROWS:
            raise Unsupported(f"compose: there would be {total} transfers; at most {MAX_ROWS}")
        row = np.repeat(np.tile(np.arange(schedule.transfers), copies), repeats)
        copy = np.repeat(copy, repeats)
        chunk = atom[concat_ranges(low[key], repeats)]

    def numbers_of(column: Ints | None) -> NDArray[Any]:
        """Return the numbers of a column for the new rows; -1: none."""
        return np.full(total, -1, np.int64) if column is None else column[row].astype(np.int64)

    route, joint = numbers_of(schedule.route), numbers_of(schedule.joint)
    link_counts, links = np.diff(schedule.routes.ptr), schedule.routes.links
    if placement.links is not None:  # every copy has routes of its own
        link_counts, links = np.tile(link_counts, copies), placement.links[:, links].ravel()
        route = np.where(route < 0, -1, route + copy * len(schedule.routes))
    route = np.where(route < 0, -1, route + before["route"])
    tables.append((link_counts, links))
    before["route"] += len(link_counts)  # also if no row names a route, as the table has them all
    if schedule.joint is not None:  # a joint becomes one per copy and new chunk
        joint = np.where(joint < 0, -1, number_rows(joint, copy, chunk) + before["joint"])
        before["joint"] = max(before["joint"], int(joint.max(initial=-1)) + 1)
    return {
        "step": as_int32(schedule.step[row] + placement.start), "chunk": as_int32(chunk),
        "src": as_int32(placement.ranks[copy, schedule.src[row]]),
        "dst": as_int32(placement.ranks[copy, schedule.dst[row]]),
        "op": schedule.op[row], "src_slot": schedule.slot("src")[row], "dst_slot": schedule.slot("dst")[row],
        "route": as_int32(route), "joint": as_int32(joint),
    }  # fmt: skip


def _join_routes(tables: Sequence[tuple[Longs, Ints]]) -> Routes:
    """Return all placements' routes, (links per route, all links) each, in one table."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(lengths for lengths, _ in tables)])
    links = np.concatenate([np.zeros(0, np.int32), *(links for _, links in tables)])
    return Routes(np.cumsum(lengths), links.astype(np.int32))


def _target_chunks(spans: Spans, cuts: Longs) -> Chunks:
    """Return a chunk from each cut to the next, in the block that contains it: owner b of `spans` is block b.

    O(cuts log blocks).

    >>> line = Spans.side_by_side(np.array([2, 2]))
    >>> chunks = _target_chunks(line, np.array([0, 1, 2, 4]))
    >>> chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 0, 1], [0, 1, 0], [1, 1, 2], 2)
    """
    size = spans.end - spans.begin
    # where each stretch begins within its owner
    inside = np.cumsum(size) - size - np.repeat((np.cumsum(spans.lengths) - spans.lengths), np.diff(spans.ptr))
    order = np.argsort(spans.begin)
    span = order[np.searchsorted(spans.begin[order], cuts[:-1], side="right") - 1]
    block = spans.owner[span]
    length, offset, share = spans.lengths[block], inside[span] + cuts[:-1] - spans.begin[span], np.diff(cuts)
    # Fractions in lowest terms first: the lengths of blocks may have no small common multiple.
    divisor = np.gcd(np.gcd(length, offset), share)
    common = math.lcm(*np.unique(length // divisor).tolist())
    if common >= MAX_DENOMINATOR:
        raise Unsupported(TOO_FINE)
    factor = common // (length // divisor)
    return Chunks(as_int32(block), offset // divisor * factor, share // divisor * factor, common)
