"""Schedules one after the other, or side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, Longs, distinct, narrow, own
from antiphon.core.loads import pieces_of
from antiphon.core.routes import NO_ROUTES, Routes
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Local, Schedule
from antiphon.core.transform.cutting import expand, spread
from antiphon.core.transform.meeting import after, beside, named, overlap, stretches_of
from antiphon.core.transform.staging import TOO_FINE, Part, Spans, laid
from antiphon.core.transform.tidying import plain_copies
from antiphon.errors import Invalid, Unsupported

# what two collectives make, done one after the other: as `after` says of any two, without a look at each rank's data
_MAKES = {
    ("reducescatter", "allgather"): "allreduce",
    ("reduce", "broadcast"): "allreduce",
    ("scatter", "allgather"): "broadcast",
    ("reducescatter", "gather"): "reduce",
    ("gather", "broadcast"): "allgather",
    ("reduce", "scatter"): "reducescatter",
}


def _target(first: Collective, second: Collective) -> Collective | None:
    """What two with names make among the same ranks, where their names alone tell; None where `after` must say."""
    kind = _MAKES.get((first.kind, second.kind))
    roots = {*first.roots, *second.roots}
    if kind is None or first.ranks != second.ranks or first.members != second.members or len(roots) > 1:
        return None
    if first.blocks == second.blocks and not np.array_equal(first.weights, second.weights):
        return None
    many = first if first.blocks > 1 else second
    weights = many.weights if kind in ("allgather", "reducescatter") else np.zeros(0, np.int64)
    if weights.size and not weights.all():
        return None  # an empty block would get no chunk
    return Collective(
        kind, first.ranks, first.members, tuple(roots) if kind in ("broadcast", "reduce") else (), weights
    )


def _line(collective: Collective, chunks: Chunks) -> tuple[Longs, Longs, int]:
    """Begin and end of every chunk on the line of all blocks laid side by side, over the returned length. O(chunks).

    Blocks of weight 1 and 3 in halves:

    >>> _line(Collective("allgather", 2, weights=[1, 3]), Chunks([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1], 2))
    (array([0, 1, 2, 5]), array([1, 2, 5, 8]), 8)
    """
    length = int(collective.weights.sum())
    if chunks.denominator * max(length, 1) >= MAX_DENOMINATOR:
        raise Unsupported("compose: the shares of the chunks have no common denominator below 2^62")
    if length == 0:
        raise Unsupported("compose: all blocks are empty")
    weight = collective.weights[chunks.block]
    base = (np.cumsum(collective.weights) - collective.weights)[chunks.block] * chunks.denominator
    begin = base + chunks.offset * weight
    return begin, begin + chunks.share * weight, length * chunks.denominator


def _recut(schedule: Schedule, target: Collective, cuts: Longs, length: int) -> Schedule:
    """The schedule with its chunks cut at all of `cuts` on the line, as chunks of the target's blocks. O(new rows).

    An allgather of two blocks, cut at the quarters of the one block of an allreduce:

    >>> from antiphon.core.example import of_rows
    >>> halves = of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)])
    >>> quarters = _recut(halves, Collective("allreduce", 2), np.arange(4), 4)
    >>> quarters.chunk.tolist(), quarters.src.tolist(), quarters.chunks.offset.tolist()
    ([0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 2, 3])
    """
    begin, end, mine = _line(schedule.collective, schedule.chunks)
    scale = length // mine
    first = np.searchsorted(cuts, begin * scale)
    count = np.searchsorted(cuts, end * scale) - first
    return spread(schedule, first, count, collective=target, chunks=_target_chunks(target, cuts, length), pieces=1)


def _target_chunks(target: Collective, cuts: Longs, length: int) -> Chunks:
    """A chunk from each cut of the line to the next, in the block of the target in which it lies. O(cuts log blocks).

    A line of four, cut at 0, 1 and 2, for blocks from 0 to 2 and from 2 to 4:

    >>> chunks = _target_chunks(Collective("allgather", 2), np.array([0, 1, 2]), 4)
    >>> chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 0, 1], [0, 1, 0], [1, 1, 2], 2)
    """
    begin, size = cuts, np.diff(np.append(cuts, length))
    total = int(target.weights.sum())
    unit = length // total
    edge = np.cumsum(target.weights) * unit
    block = np.searchsorted(edge, begin, side="right")
    weight = target.weights[block]
    # offset within the block is (begin - edge) / (weight * unit): bring all blocks over one denominator
    common = math.lcm(*np.unique(weight).tolist())
    if common * unit >= MAX_DENOMINATOR:
        raise Unsupported("compose: the shares of the chunks have no common denominator below 2^62")
    factor = common // weight
    return Chunks(narrow(block), (begin - (edge[block] - weight * unit)) * factor, size * factor, common * unit)


def compose(first: Schedule, second: Schedule) -> Schedule:
    """First the one, then the other, for the collective that they make together.

    The data of both lie on one line, their blocks side by side in the order of their numbers; chunks are cut at the
    borders of both. What the second takes the first must leave there, else Invalid says where they do not meet.
    Among the same ranks: reducescatter then allgather is an allreduce. Among groups, side by side by `merge`:
    reducescatters within boxes, then allreduces among those who hold the same part, then allgathers within boxes.
    What comes of any two that meet is a collective with a name where it is one, else a custom relation: who used a part
    of the data has of it what the second gives, the others what the first left.

    Equal pieces are kept (composed first, pipelined after, which is faster than one pipeline after the other);
    different ones are expanded. O(n log n) in new rows.

    >>> from antiphon.core.example import of_rows
    >>> to_one = of_rows("reduce", 3, [(0, 0, 1, 0, 1), (0, 0, 2, 0, 1)], roots=(0,))
    >>> to_all = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0)], roots=(0,))
    >>> whole = compose(to_one, to_all)
    >>> whole.collective.kind, whole.step.tolist(), whole.src.tolist(), whole.dst.tolist()
    ('allreduce', [0, 0, 1, 1], [1, 2, 0, 0], [0, 0, 1, 2])
    """
    one, other = first.collective, second.collective
    known = _target(one, other)
    if known is not None:
        return _composed(first, second, known)
    _same_machine("compose", [first, second])
    lines, edges = _one_line("compose", [first, second], None)
    before = stretches_of(one, lines[0], edges, _said(one))
    used = distinct(np.concatenate([second.src, second.dst, np.array(other.members, np.int32)]))
    made, where = named(after(before, stretches_of(other, lines[1], edges, _said(other)), used), one.ranks)
    late = replace(Part.alone(second, lines[1]), start=expand(first).steps if _differ([first, second]) else first.steps)
    return laid([Part.alone(first, lines[0]), late], made, where)


def _said(collective: Collective) -> str:
    """As an error names it."""
    members = collective.members
    some = ", ".join(map(str, members[:8]))
    who = "all ranks" if len(members) == collective.ranks else f"ranks {some}{', ...' if len(members) > 8 else ''}"
    return f"the {collective.kind} among {who}"


def _same_machine(what: str, schedules: Sequence[Schedule]) -> None:
    ranks = {s.collective.ranks for s in schedules}
    if len(ranks) > 1:
        some = ", ".join(map(str, sorted(ranks)))
        raise Invalid(f"{what}: the schedules are for machines of {some} ranks; plan all of them on the same machine")
    if any(s.local for s in schedules):
        raise Unsupported(f"{what}: a schedule with local work at the end is not put together with other collectives")


def _differ(schedules: Sequence[Schedule]) -> bool:
    """Whether pieces are written out."""
    return len({int(p) for s in schedules for p in np.unique(pieces_of(s))}) > 1


def _one_line(what: str, schedules: Sequence[Schedule], shares: Sequence[Fraction] | None) -> tuple[list[Spans], Longs]:
    """Where the blocks of each lie, on one line: each on all of it, or, with shares, one after the other; and where any
    of them begins or ends."""
    totals = [int(s.collective.weights.sum()) for s in schedules]
    if not all(totals):
        raise Unsupported(f"{what}: all blocks of a schedule are empty")
    parts = [Fraction(1)] * len(schedules) if shares is None else list(shares)
    length = math.lcm(*(part.denominator * total for part, total in zip(parts, totals, strict=True)))
    if length * math.ceil(sum(parts)) >= MAX_DENOMINATOR:
        raise Unsupported(TOO_FINE)
    lines, start = [], 0
    for schedule, part, total in zip(schedules, parts, totals, strict=True):
        where = Spans.side_by_side(schedule.collective.weights * int(length * part / total))
        lines.append(Spans(where.ptr, where.begin + start, where.end + start))
        start += 0 if shares is None else int(length * part)
    return lines, distinct(np.concatenate([*(line.begin for line in lines), *(line.end for line in lines)]))


def _composed(first: Schedule, second: Schedule, target: Collective) -> Schedule:
    """Two that both have names, among the same ranks."""
    alike = isinstance(first.pieces, int) and isinstance(second.pieces, int) and first.pieces == second.pieces
    pieces = first.pieces if alike else 1
    if pieces == 1:
        first, second = expand(first), expand(second)
    second = plain_copies(second)  # what the first left in a relay must not be added to
    a, b = _line(first.collective, first.chunks), _line(second.collective, second.chunks)
    total = int(target.weights.sum())
    length = math.lcm(a[2], b[2], total)
    if length >= MAX_DENOMINATOR:
        raise Unsupported("compose: the shares of the chunks have no common denominator below 2^62")
    edges = np.cumsum(target.weights)[:-1] * (length // total)
    cuts = distinct(np.concatenate([a[0] * (length // a[2]), b[0] * (length // b[2]), edges]))
    cuts = cuts[cuts < length]
    early, late = _recut(first, target, cuts, length), _recut(second, target, cuts, length)
    late = replace(late, step=own(late.step + np.int32(early.steps)))
    return _stack([early, late], target, early.chunks, pieces, first.local + second.local)


def merge(schedules: Sequence[Schedule], shares: Sequence[Fraction | int] | None = None) -> Schedule:
    """Side by side, in the same steps. O(rows).

    Of one collective schedule i moves its share of every block (equal shares by default). Of different ones, among
    groups of ranks: with shares each has its stretch of the data, one after the other; without, every group has all of
    the data, and no rank may be of two of them. What that is as a whole is told as a custom relation, unless it has a
    name, to be composed with more.

    Two broadcasts, a third of the data by way of rank 1, the rest by way of rank 2:

    >>> from antiphon.core.example import of_rows
    >>> one = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0)], roots=(0,))
    >>> other = of_rows("broadcast", 3, [(0, 0, 0, 2, 0), (1, 0, 2, 1, 0)], roots=(0,))
    >>> both = merge([one, other], [1, 2])
    >>> both.chunk.tolist(), both.dst.tolist(), both.chunks.share.tolist(), both.chunks.denominator
    ([0, 0, 1, 1], [1, 2, 2, 1], [1, 2], 3)
    """
    if not schedules:
        raise Invalid("merge: needs one schedule or more")
    parts = [Fraction(share) for share in shares] if shares is not None else [Fraction(1)] * len(schedules)
    if len(parts) != len(schedules) or min(parts) <= 0:
        raise Invalid("merge: needs one share per schedule, each greater than 0")
    if any(s.collective != schedules[0].collective for s in schedules[1:]):
        return _beside(schedules, parts if shares is not None else None)
    if any(s.local != schedules[0].local for s in schedules[1:]):
        raise Unsupported("merge: the schedules differ in their local work at the end")
    total = sum(parts)
    ends = [sum(parts[: i + 1], Fraction(0)) / total for i in range(len(parts))]
    cuts = [s.chunks.denominator * (p / total).denominator for s, p in zip(schedules, parts, strict=True)]
    denominator = math.lcm(*cuts, *(end.denominator for end in ends))
    if denominator >= MAX_DENOMINATOR:
        raise Unsupported("merge: the shares have no common denominator below 2^62; use rounder shares")
    block, offset, share, pieces, moved = [], [], [], [], []
    base = 0
    for schedule, part, end in zip(schedules, parts, ends, strict=True):
        scale = int(part / total * denominator / schedule.chunks.denominator)
        block.append(schedule.chunks.block)
        offset.append(schedule.chunks.offset * scale + int((end - part / total) * denominator))
        share.append(schedule.chunks.share * scale)
        pieces.append(pieces_of(schedule))
        moved.append(
            replace(
                schedule,
                chunk=schedule.chunk + np.int32(base),
                chunks=_room(base + len(schedule.chunks)),
                pieces=1,
            )
        )
        base += len(schedule.chunks)
    joint = Chunks(np.concatenate(block), np.concatenate(offset), np.concatenate(share), denominator)
    return _stack(moved, schedules[0].collective, joint, np.concatenate(pieces), schedules[0].local)


def _beside(schedules: Sequence[Schedule], shares: Sequence[Fraction] | None) -> Schedule:
    """Different collectives at once. Each on its stretch of the data, or each on all of them among ranks of its own."""
    _same_machine("merge", schedules)
    if shares is None:
        used = [distinct(np.concatenate([s.src, s.dst, list(s.collective.members)])) for s in schedules]
        both = overlap(used)
        if both is not None:
            rank, *which = both
            one, other = (f"schedule {number + 1} ({_said(schedules[number].collective)})" for number in which)
            raise Invalid(
                f"merge: rank {rank} is used by {one} and by {other}, which both have all of the data; give every "
                "schedule its share of the data, or compose them, one after the other"
            )
    lines, edges = _one_line("merge", schedules, shares)
    each = [stretches_of(s.collective, at, edges, _said(s.collective)) for s, at in zip(schedules, lines, strict=True)]
    made, where = named(beside(each), schedules[0].collective.ranks)
    return laid([Part.alone(s, line) for s, line in zip(schedules, lines, strict=True)], made, where)


def _room(chunks: int) -> Chunks:
    """A table that only makes room for this many chunks, until the joint one replaces it."""
    nothing = np.zeros(chunks, np.int64)
    return Chunks(narrow(nothing), nothing, nothing, 1)


def _stack(
    schedules: Sequence[Schedule], collective: Collective, chunks: Chunks, pieces: int | Longs, local: tuple[Local, ...]
) -> Schedule:
    """The rows of all, one schedule after the other, with their routes in one table. O(rows)."""
    table: Routes = NO_ROUTES
    tables, joints = [], []  # how many routes, and how many joints, are before those of each schedule
    for schedule in schedules:
        tables.append(len(table))
        table = table.join(schedule.routes)
        joints.append(0 if schedule.joint is None else int(schedule.joint.max(initial=-1)) + 1)

    def both(name: str) -> NDArray[Any]:
        return own(np.concatenate([getattr(s, name) for s in schedules]))

    def slots(side: str) -> Ints | None:
        some = any(getattr(s, f"{side}_slot") is not None for s in schedules)
        return own(np.concatenate([s.slot(side) for s in schedules])) if some else None

    return Schedule(
        collective, chunks, both("step"), both("chunk"), both("src"), both("dst"), both("op"),
        route=_numbered_on([s.route for s in schedules], tables, schedules),
        src_slot=slots("src"), dst_slot=slots("dst"),
        joint=_numbered_on([s.joint for s in schedules], [0, *np.cumsum(joints[:-1]).tolist()], schedules),
        routes=table, pieces=pieces, local=local,
    )  # fmt: skip


def _numbered_on(
    columns: Sequence[Ints | None], before: Sequence[int], schedules: Sequence[Schedule]
) -> NDArray[Any] | None:
    """Numbers (-1: none) of all schedules, those of each after so many before; None where no schedule has any."""
    if all(column is None for column in columns):
        return None
    parts = []
    for column, base, schedule in zip(columns, before, schedules, strict=True):
        numbers = np.full(schedule.transfers, -1, np.int32) if column is None else column
        parts.append(np.where(numbers >= 0, numbers + np.int64(base), -1))
    return np.concatenate(parts)
