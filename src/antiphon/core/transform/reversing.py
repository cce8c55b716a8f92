"""Run a schedule backwards (SCCL, section 3.5): copies to several become reductions from several, and vice versa.

Reading a broadcast backwards gives a reduce: receivers now send, the last step comes first, and a rank that
sent to several ranks now combines from several. The collective becomes its dual: broadcast / reduce, allgather /
reducescatter, scatter / gather, alltoall with both coordinates of its blocks swapped.

    broadcast  step 0: 0 -> 1    step 1: 1 -> 2        reduce  step 0: 2 -> 1 (add)    step 1: 1 -> 0 (add)

This is right only if data flow along trees: each cell of spread data is written once, each cell of gathered data is
read once and after all its writes. `_check_invertible` verifies that; `invert` first drops redundant and dead
transfers, which would break it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from antiphon.core.collective import DUAL, Collective, custom_relation
from antiphon.core.columns import Bools, Ints, Longs, as_int32, distinct_pairs
from antiphon.core.dependencies import Versions, versions
from antiphon.core.loads import pieces_of, pipelined_steps
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.transform.tidying import clean, initial_with_data, plain_copies
from antiphon.errors import Unsupported


class DualCollective(NamedTuple):
    """The collective of the backward run, and for each block its number there."""

    collective: Collective
    block: Longs


def dual(collective: Collective) -> DualCollective:
    """Return the collective of the backward run. O(blocks).

    An alltoall has blocks (to, from), which change places:

    >>> dual(Collective("alltoall", 3)).block.reshape(3, 3).tolist()
    [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    """
    blocks = np.arange(collective.blocks)
    if collective.kind == "custom":
        return DualCollective(_dual_custom(collective), blocks)
    if collective.kind not in DUAL:
        raise Unsupported(
            f"{collective.kind} has no inverse of its own; invert its parts (reducescatter, allgather) and compose"
        )
    m, r = len(collective.members), len(collective.roots)
    # Blocks numbered by two coordinates change from member-major to root-major or back.
    if collective.kind == "scatter":  # numbered member-major, its dual root-major
        blocks = blocks % r * m + blocks // r
    elif collective.kind == "gather":
        blocks = blocks % m * r + blocks // m
    elif collective.kind == "alltoall":
        blocks = blocks % m * m + blocks // m
    weights = np.empty(collective.blocks, np.int64)
    weights[blocks] = collective.weights
    kind = DUAL[collective.kind]
    return DualCollective(Collective(kind, collective.ranks, collective.members, collective.roots, weights), blocks)


def _dual_custom(collective: Collective) -> Collective:
    """Swap the ranks that have a block with those that need it; supported if either is a single rank. O(pairs).

    Ranks 1 and 2 want the block of rank 0; backwards they contribute to it:

    >>> spread = Collective("custom", 3, custom=custom_relation([(0, 0, 0)], [(0, 1, None), (0, 2, None)], 3))
    >>> relation = _dual_custom(spread).relation
    >>> relation.pre_rank.tolist(), relation.pre_id.tolist(), relation.post_rank.tolist()
    ([1, 2], [1, 2], [0])
    """
    relation = collective.relation
    have = np.bincount(relation.pre_block, minlength=collective.blocks)
    need = np.bincount(relation.post_block, minlength=collective.blocks)
    block_of_holder, _ = distinct_pairs(relation.pre_block, relation.pre_rank)
    holders = np.bincount(block_of_holder, minlength=len(have))
    # A contribution that several ranks have, or several contributions that one rank has.
    replicas = (have > 1) & ((collective.contributions_per_block < have) | (holders < have))
    if len(relation.wants) or (((have > 1) & (need > 1)) | replicas).any():
        raise Unsupported("only a custom collective whose blocks go from one rank or to one rank can be inverted")
    # Backwards, the receivers of a block from one rank contribute to it, each with its rank as id. A block that several
    # ranks contribute to begins at one rank then, as a single contribution, 0.
    one_source = need[relation.post_block] > 1
    ids = np.where(one_source | (have[relation.post_block] == 1), relation.post_rank, 0)
    pre = zip(relation.post_block.tolist(), relation.post_rank.tolist(), ids.tolist(), strict=True)
    post = [(b, rank, None) for b, rank in zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True)]
    custom = custom_relation(list(pre), post, collective.ranks)
    return replace(collective, custom=custom, groups=())


def _refuse_rows(schedule: Schedule, rows: Longs, why: str) -> None:
    """Raise Unsupported for the earliest of these rows, if any."""
    if len(rows):
        row = rows[np.lexsort((schedule.chunk[rows], schedule.step[rows]))[0]]
        where = f"step {schedule.step[row]}, chunk {schedule.chunk[row]}"
        ends = f"from rank {schedule.src[row]} to rank {schedule.dst[row]}"
        raise Unsupported(f"cannot be inverted: {where}: the transfer {ends} {why}")


def _check_invertible(schedule: Schedule, history: Versions, gathers: Bools, spreads: Bools) -> None:
    """Check that the backward run is right. `gathers`, `spreads`: per block, which of the two rules hold for it.

    Every cell of spread data must be written once, and every cell of gathered data read once, after all its writes. (A
    cell is one rank's copy of a chunk.)
    """
    # The versions of a cell are consecutive, its initial one first: counting initial versions numbers the cells.
    cell = np.cumsum(history.initial) - 1  # version -> cell
    block = schedule.chunks.block[schedule.chunk]
    writes = np.bincount(cell[history.write], minlength=int(history.initial.sum()))
    # `write - 1`: the version of the cell before the row's write
    twice = (writes[cell[history.write]] > 1) | initial_with_data(schedule, history)[history.write - 1]
    _refuse_rows(schedule, np.flatnonzero(twice & spreads[block]), "writes a cell that holds something else already")
    reads = np.bincount(cell[history.read], minlength=int(history.initial.sum()))
    read_again = (reads[cell[history.read]] > 1) & gathers[block]
    _refuse_rows(schedule, np.flatnonzero(read_again), "reads a cell that another transfer reads too")
    early = ~history.final[history.read] & gathers[block]
    _refuse_rows(schedule, np.flatnonzero(early), "reads a cell that is written again later")


def invert(schedule: Schedule, links: Ints | None = None) -> Schedule:
    """Return the schedule run backwards, for the dual collective; redundant and dead transfers are dropped first.

    Routes are reversed for the reversed machine (reshape.reverse), whose links keep their numbers. To stay on one
    machine whose links all have an opposite link, give its routes.opposite_links as `links`.

    Backwards, a copy to several becomes a reduction from several and vice versa. A single arrival at a rank with
    nothing of its own stays a copy. Pieces are kept: the last piece then goes first. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> back = invert(of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0)], roots=(0,)))
    >>> back.collective.kind, [c.tolist() for c in (back.step, back.src, back.dst, back.op)]
    ('reduce', [[1, 0], [1, 2], [0, 1], [1, 1]])
    """
    # `plain_copies` makes a copy of each reduction that alone writes into an empty cell: it combines nothing
    schedule = clean(plain_copies(schedule))
    target, block = dual(schedule.collective)
    combines = schedule.collective.contributions_per_block > 1
    will_combine = target.contributions_per_block[block] > 1
    # Backwards, what is only copied must be written once: forwards it must be read once, like what is combined.
    _check_invertible(schedule, versions(schedule), gathers=combines | ~will_combine, spreads=~combines)
    # A row in flight during [step, step + pieces) is in flight during [end - step - pieces, end - step) backwards.
    pieces, end = pieces_of(schedule), pipelined_steps(schedule)
    chunks = schedule.chunks
    op = np.where(will_combine[chunks.block[schedule.chunk]], REDUCE, COPY)
    reversed_schedule = replace(
        schedule,
        collective=target,
        chunks=Chunks(as_int32(block[chunks.block]), chunks.offset, chunks.share, chunks.denominator),
        step=as_int32(end - pieces[schedule.chunk] - schedule.step),
        src=schedule.dst,
        dst=schedule.src,
        src_slot=schedule.dst_slot,
        dst_slot=schedule.src_slot,
        op=op.astype(np.uint8),
        routes=schedule.routes.backwards(links),
        provenance={},
    )
    return plain_copies(reversed_schedule)
