"""Combine schedules: one after the other (`compose`) or side by side (`merge`).

Schedules cut the same data differently: a reducescatter among 8 ranks has 8 blocks, an allgather in halves 16 chunks.
So `compose` and `merge` lay all data end to end on one *line*, mark every border of a block or chunk of either
schedule, and cut the chunks of both schedules at all marks. Then the rows of both refer to the same chunks and can be
concatenated.

Example: a reducescatter with chunks [0, 1/2), [1/2, 1) followed by an allgather with thirds. The marks are 0, 1/3, 1/2,
2/3; the first schedule's chunk 0 becomes [0, 1/3) and [1/3, 1/2). The second schedule's steps come after the first's.

The result needs a collective. Well-known pairs (reducescatter + allgather = allreduce) are named by a table; for others
meeting.py derives the collective from the relations, and staging.py assembles the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective, joint
from antiphon.core.columns import Ints, Longs, as_int32, distinct, freeze, unique_inverse
from antiphon.core.loads import pieces_of
from antiphon.core.routes import NO_ROUTES, Routes
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Local, Schedule
from antiphon.core.transform.cutting import expand, round_borders
from antiphon.core.transform.meeting import find_overlap, join_relations, name_collective, relation_after, stretches_of
from antiphon.core.transform.staging import TOO_FINE, Placement, Spans, assemble_parts
from antiphon.errors import Invalid, Unsupported, list_first

# The collective of two in sequence: a shortcut for `relation_after`, which derives it from each rank's data.
_SEQUENCES = {
    ("reducescatter", "allgather"): "allreduce",
    ("reduce", "broadcast"): "allreduce",
    ("scatter", "allgather"): "broadcast",
    ("reducescatter", "gather"): "reduce",
    ("gather", "broadcast"): "allgather",
    ("reduce", "scatter"): "reducescatter",
}


def _named_target(first: Collective, second: Collective) -> Collective | None:
    """Return the collective of two named ones among the same ranks if their kinds decide it, else None."""
    kind = _SEQUENCES.get((first.kind, second.kind))
    roots = {*first.roots, *second.roots}
    if kind is None or first.ranks != second.ranks or first.members != second.members or len(roots) > 1:
        return None
    if first.blocks == second.blocks and not np.array_equal(first.weights, second.weights):
        return None
    per_block = first if first.blocks > 1 else second  # the one with a block per rank, whose sizes the weights state
    # the other kinds have one block, whose weight does not matter
    weights = per_block.weights if kind in ("allgather", "reducescatter") else np.zeros(0, np.int64)
    if weights.size and not weights.all():
        return None  # an empty block would get no chunk
    return Collective(
        kind, first.ranks, first.members, tuple(roots) if kind in ("broadcast", "reduce") else (), weights
    )


def compose(first: Schedule, second: Schedule) -> Schedule:
    """Run one schedule after the other, for the collective of both in sequence.

    The inputs of the second must be outputs of the first; Invalid names the place where they are not. Among the same
    ranks: reducescatter then allgather is an allreduce. Among groups, side by side by `merge`: reducescatters within
    boxes, then allreduces among ranks with the same share, then allgathers within boxes. The result is a named
    collective if there is one, else a custom relation: ranks that the second uses have its outputs, all others keep
    those of the first.

    Equal numbers of pieces are retained (one pipeline over both schedules is faster than two pipelines one after the
    other); different numbers are expanded. O(n log n) in new rows.

    Rows of the example are (step, chunk, source, destination, 1 to reduce):

    >>> from antiphon.core.example import of_rows
    >>> to_one = of_rows("reduce", 3, [(0, 0, 1, 0, 1), (0, 0, 2, 0, 1)], roots=(0,))
    >>> to_all = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0)], roots=(0,))
    >>> both = compose(to_one, to_all)
    >>> both.collective.kind, both.step.tolist(), both.src.tolist(), both.dst.tolist()
    ('allreduce', [0, 0, 1, 1], [1, 2, 0, 0], [0, 0, 1, 2])
    """
    before_collective, after_collective = first.collective, second.collective
    target = _named_target(before_collective, after_collective)
    if target is None:
        _require_same_machine("compose", [first, second])
    lines, edges = _place_on_line("compose", [first, second], shares=None)
    if target is not None:
        # Length of weight 1. It is whole: the line's length is a multiple of the total weight of either collective, and
        # the target has the weights of one of them, or a single block.
        unit = int(lines[0].end[-1]) // int(target.weights.sum())
        target_spans = Spans.side_by_side(target.weights * unit)
    else:
        before, after = (
            stretches_of(collective, line, edges, _collective_text(collective))
            for collective, line in zip((before_collective, after_collective), lines, strict=True)
        )
        used_ranks = distinct(np.concatenate([second.src, second.dst, np.array(after_collective.members, np.int32)]))
        target, target_spans = name_collective(relation_after(before, after, used_ranks), before_collective.ranks)
    # `assemble_parts` expands pieces that differ; then the second begins after the expanded steps of the first.
    second_placement = replace(
        Placement.single_copy(second, lines[1]),
        start=expand(first).steps if _pieces_differ([first, second]) else first.steps,
    )
    schedule = assemble_parts([Placement.single_copy(first, lines[0]), second_placement], target, target_spans)
    # no runtime does local work, it is only priced: so it does not matter that the first's comes before the second
    return replace(schedule, local=first.local + second.local)


def _collective_text(collective: Collective) -> str:
    """Return the name of a collective and its ranks for messages."""
    members = collective.members
    ranks = "all ranks" if len(members) == collective.ranks else f"ranks {list_first(members)}"
    return f"the {collective.kind} among {ranks}"


def _require_same_machine(operation: str, schedules: Sequence[Schedule]) -> None:
    """Raise unless all schedules have equally many ranks and none has local work (`Local`, a rotation) at the end."""
    ranks = {s.collective.ranks for s in schedules}
    if len(ranks) > 1:
        counts = ", ".join(map(str, sorted(ranks)))
        raise Invalid(
            f"{operation}: the schedules are for machines of {counts} ranks; plan all of them on the same machine"
        )
    if any(s.local for s in schedules):
        raise Unsupported(
            f"{operation}: a schedule with local work at the end is not put together with other collectives"
        )


def _pieces_differ(schedules: Sequence[Schedule]) -> bool:
    """Return whether the schedules have different numbers of pieces, which are then expanded."""
    return len({int(p) for s in schedules for p in np.unique(pieces_of(s))}) > 1


def _place_on_line(
    operation: str, schedules: Sequence[Schedule], shares: Sequence[Fraction] | None
) -> tuple[list[Spans], Longs]:
    """Place the blocks of each schedule on one line; return their spans, and all points at which any of them begins or
    ends.

    Without `shares` each schedule has the whole line; with shares each has its stretch, one after another.
    """
    totals = [int(s.collective.weights.sum()) for s in schedules]
    if not all(totals):
        raise Unsupported(f"{operation}: all blocks of a schedule are empty")
    fractions = [Fraction(1)] * len(schedules) if shares is None else list(shares)
    length = math.lcm(*(fraction.denominator * total for fraction, total in zip(fractions, totals, strict=True)))
    if length * math.ceil(sum(fractions)) >= MAX_DENOMINATOR:
        raise Unsupported(TOO_FINE)
    lines, start = [], 0
    for schedule, fraction, total in zip(schedules, fractions, totals, strict=True):
        spans = Spans.side_by_side(schedule.collective.weights * int(length * fraction / total))
        lines.append(Spans(spans.ptr, spans.begin + start, spans.end + start))
        start += 0 if shares is None else int(length * fraction)
    return lines, distinct(np.concatenate([*(line.begin for line in lines), *(line.end for line in lines)]))


def merge(schedules: Sequence[Schedule], shares: Sequence[Fraction | int] | None = None) -> Schedule:
    """Run schedules side by side, in the same steps. O(rows).

    If all have the same collective, schedule i moves its share of every block (equal shares by default). If they
    differ, as among groups of ranks: with `shares` each has its stretch of the data, one after the other; without,
    every group has all of the data, and no rank may belong to two of them. The result is a named collective or a custom
    relation, which `compose` accepts.

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
    fractions = [Fraction(share) for share in shares] if shares is not None else [Fraction(1)] * len(schedules)
    if len(fractions) != len(schedules) or min(fractions) <= 0:
        raise Invalid("merge: needs one share per schedule, each greater than 0")
    if any(s.collective != schedules[0].collective for s in schedules[1:]):
        return _merge_different(schedules, fractions if shares is not None else None)
    if any(s.local != schedules[0].local for s in schedules[1:]):
        raise Unsupported("merge: the schedules differ in their local work at the end")
    total = sum(fractions)
    # Schedule i moves the stretch [ends[i] - fractions[i] / total, ends[i]) of every block.
    ends = [sum(fractions[: i + 1], Fraction(0)) / total for i in range(len(fractions))]
    denominators = [
        s.chunks.denominator * (fraction / total).denominator for s, fraction in zip(schedules, fractions, strict=True)
    ]
    denominator = math.lcm(*denominators, *(end.denominator for end in ends))
    if denominator >= MAX_DENOMINATOR:
        raise Unsupported("merge: the shares have no common denominator below 2^62; use rounder shares")
    block, offset, share, pieces, renumbered = [], [], [], [], []
    first_chunk = 0
    for schedule, fraction, end in zip(schedules, fractions, ends, strict=True):
        scale = int(fraction / total * denominator / schedule.chunks.denominator)  # whole, by the choice of denominator
        block.append(schedule.chunks.block)
        offset.append(schedule.chunks.offset * scale + int((end - fraction / total) * denominator))
        share.append(schedule.chunks.share * scale)
        pieces.append(pieces_of(schedule))
        renumbered.append(
            replace(
                schedule,
                chunk=schedule.chunk + np.int32(first_chunk),
                chunks=_placeholder_chunks(first_chunk + len(schedule.chunks)),
                pieces=1,
            )
        )
        first_chunk += len(schedule.chunks)
    chunks = Chunks(np.concatenate(block), np.concatenate(offset), np.concatenate(share), denominator)
    return _stack_rows(renumbered, schedules[0].collective, chunks, np.concatenate(pieces), schedules[0].local)


def run_together(schedules: Sequence[Schedule], sizes: Sequence[int] = ()) -> Schedule:
    """Run schedules of several collectives at the same time, each on data of its own. O(rows).

    The result is for the joint collective of all their groups; `sizes`: the relative sizes of the schedules'
    collectives (default: equal); `nbytes` is that of the largest.

    >>> from antiphon.core.example import of_rows
    >>> pair = of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,))
    >>> both = run_together([pair, pair])
    >>> both.collective.title, both.chunk.tolist(), both.step.tolist()
    ('2 x broadcast of 2', [0, 1], [0, 0])
    """
    _require_same_machine("run together", schedules)
    if math.lcm(*(s.chunks.denominator for s in schedules)) >= MAX_DENOMINATOR:
        return run_together([round_borders(s) for s in schedules], sizes)
    if any(s.collective.custom is not None and not s.collective.groups for s in schedules):
        raise Unsupported("run together: a custom collective has no name and groups; use compose(..., at_once=True)")
    # Per schedule the sizes of its groups: divided by the largest, they are parts of the schedule's own size.
    own_sizes = [s.collective.group_sizes or [1] for s in schedules]
    common = math.lcm(*(max(own_size) for own_size in own_sizes))
    target = joint(
        [group for s in schedules for group in s.collective.groups or (s.collective,)],
        [
            size * common // max(own_size) * relative
            for own_size, relative in zip(own_sizes, sizes or [1] * len(schedules), strict=True)
            for size in own_size
        ],
    )
    denominator = math.lcm(*(s.chunks.denominator for s in schedules))
    first_chunks = np.cumsum([0, *(len(s.chunks) for s in schedules)]).tolist()
    first_blocks = np.cumsum([0, *(s.collective.blocks for s in schedules)]).tolist()
    scales = [denominator // s.chunks.denominator for s in schedules]
    chunks = Chunks(
        # Not strict: the last entry of `first_blocks`, as of `first_chunks`, is the total.
        np.concatenate([s.chunks.block + np.int32(base) for s, base in zip(schedules, first_blocks, strict=False)]),
        np.concatenate([s.chunks.offset * scale for s, scale in zip(schedules, scales, strict=True)]),
        np.concatenate([s.chunks.share * scale for s, scale in zip(schedules, scales, strict=True)]),
        denominator,
    )
    renumbered = [
        replace(s, chunk=s.chunk + np.int32(base), chunks=_placeholder_chunks(base + len(s.chunks)), pieces=1)
        for s, base in zip(schedules, first_chunks, strict=False)
    ]
    pieces = np.concatenate([pieces_of(s) for s in schedules])
    return _stack_rows(
        renumbered, target, chunks, int(pieces[0]) if len(set(pieces.tolist())) == 1 else pieces, local=()
    )


def split_groups(schedule: Schedule) -> list[Schedule]:
    """Return the schedule of every group of a joint collective: the reverse of `run_together`. O(rows) per group.

    Groups with equal collectives yield one schedule, the first's, as callers look schedules up by collective.

    >>> from antiphon.core.example import of_rows
    >>> pair = of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,))
    >>> [group_schedule.collective.kind for group_schedule in split_groups(run_together([pair, pair]))]
    ['broadcast']
    """
    joint_collective = schedule.collective
    by_collective: dict[Collective, Schedule] = {}
    pieces = np.asarray(schedule.pieces)
    for group, blocks in zip(joint_collective.groups, joint_collective.group_blocks, strict=True):
        block = schedule.chunks.block
        chunks_in = np.flatnonzero((block >= blocks.start) & (block < blocks.stop))
        new_chunk = np.full(len(block), -1, np.int32)
        new_chunk[chunks_in] = np.arange(len(chunks_in), dtype=np.int32)
        rows = np.flatnonzero(new_chunk[schedule.chunk] >= 0)
        chunks = Chunks(
            block[chunks_in] - np.int32(blocks.start), schedule.chunks.offset[chunks_in],
            schedule.chunks.share[chunks_in],
            schedule.chunks.denominator,
        )  # fmt: skip
        # numbered without gaps: in some steps only other groups may send
        _, step = unique_inverse(schedule.step[rows].astype(np.int64), bound=schedule.steps or 1)
        by_collective.setdefault(group, schedule.take(
            rows, collective=group, chunks=chunks, chunk=new_chunk[schedule.chunk[rows]],
            step=as_int32(step),
            pieces=pieces[chunks_in] if pieces.ndim else schedule.pieces, provenance={},
        ))  # fmt: skip
    return list(by_collective.values())


def _merge_different(schedules: Sequence[Schedule], shares: Sequence[Fraction] | None) -> Schedule:
    """Merge different collectives: each on its stretch of the data, or each on all data among ranks of its own."""
    _require_same_machine("merge", schedules)
    if shares is None:
        ranks_of_schedules = [distinct(np.concatenate([s.src, s.dst, list(s.collective.members)])) for s in schedules]
        overlapping = find_overlap(ranks_of_schedules)
        if overlapping is not None:
            rank, *schedule_numbers = overlapping
            first, other = (
                f"schedule {number + 1} ({_collective_text(schedules[number].collective)})"
                for number in schedule_numbers
            )
            raise Invalid(
                f"merge: rank {rank} is used by {first} and by {other}, which both have all of the data; give every "
                "schedule its share of the data, or compose them, one after the other"
            )
    lines, edges = _place_on_line("merge", schedules, shares)
    relations = [
        stretches_of(s.collective, line, edges, _collective_text(s.collective))
        for s, line in zip(schedules, lines, strict=True)
    ]
    collective, spans = name_collective(join_relations(relations), schedules[0].collective.ranks)
    return assemble_parts(
        [Placement.single_copy(s, line) for s, line in zip(schedules, lines, strict=True)], collective, spans
    )


def _placeholder_chunks(chunks: int) -> Chunks:
    """Return a table of this many empty chunks, which is replaced when the rows are stacked."""
    nothing = np.zeros(chunks, np.int64)
    return Chunks(as_int32(nothing), nothing, nothing, denominator=1)


def _stack_rows(
    schedules: Sequence[Schedule], collective: Collective, chunks: Chunks, pieces: int | Longs, local: tuple[Local, ...]
) -> Schedule:
    """Concatenate the rows of all schedules, and their routes in one table. O(rows)."""
    table: Routes = NO_ROUTES
    routes_before, joint_counts = [], []  # per schedule: routes of the schedules before it, and its own joints
    for schedule in schedules:
        routes_before.append(len(table))
        table = table.join(schedule.routes)
        joint_counts.append(0 if schedule.joint is None else int(schedule.joint.max(initial=-1)) + 1)

    columns: dict[str, Any] = {
        name: freeze(np.concatenate([getattr(s, name) for s in schedules]))
        for name in ("step", "chunk", "src", "dst", "op")
    }

    def slots(side: str) -> Ints | None:
        has_slots = any(getattr(s, f"{side}_slot") is not None for s in schedules)
        return freeze(np.concatenate([s.slot(side) for s in schedules])) if has_slots else None

    return Schedule(
        collective, chunks, **columns,
        route=_offset_numbers([s.route for s in schedules], routes_before, schedules),
        src_slot=slots("src"), dst_slot=slots("dst"),
        joint=_offset_numbers([s.joint for s in schedules], [0, *np.cumsum(joint_counts[:-1]).tolist()], schedules),
        routes=table, pieces=pieces, local=local,
    )  # fmt: skip


def _offset_numbers(
    columns: Sequence[Ints | None], before: Sequence[int], schedules: Sequence[Schedule]
) -> NDArray[Any] | None:
    """Concatenate numbers (-1: none) of all schedules, offset by `before`; None where no schedule has any."""
    if all(column is None for column in columns):
        return None
    numbered_columns = []
    for column, base, schedule in zip(columns, before, schedules, strict=True):
        numbers = np.full(schedule.transfers, -1, np.int32) if column is None else column
        numbered_columns.append(np.where(numbers >= 0, numbers + np.int64(base), -1))
    return np.concatenate(numbered_columns)
