"""Any collective in one step: each rank that has data sends them directly to each rank that needs them.

Used by planners `direct` and by parameter servers, whose halves take one step each.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.collective import COMBINING, Collective
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.planners.shared.rows import Seats, rows_to_schedule


def one_step(collective: Collective) -> Schedule:
    """Return a row per block, holder and receiver other than the holder, for any built-in collective.

    O(P) rows per root, O(P^2) without roots.
    """
    relation, members = collective.relation, len(collective.members)
    # rows of a relation are sorted by block: count those of each block
    holder_counts, receiver_counts = (
        np.bincount(b, minlength=collective.blocks) for b in (relation.pre_block, relation.post_block)
    )
    if collective.kind == "allreduce":
        src, dst = (x.ravel() for x in np.meshgrid(relation.pre_rank, relation.post_rank, indexing="ij"))
        block = np.zeros(members * members, np.int32)
    elif collective.kind in COMBINING:  # many holders, one receiver
        src, block = relation.pre_rank, relation.pre_block
        dst = np.repeat(relation.post_rank, holder_counts)
    else:  # one holder
        dst, block = relation.post_rank, relation.post_block
        src = np.repeat(relation.pre_rank, receiver_counts)
    moving = np.flatnonzero(src != dst)
    ranks = np.arange(collective.ranks, dtype=np.int32)
    seats = Seats(rank=ranks, member=ranks.astype(np.int64))  # every rank sits at its number: rows name ranks already
    op = REDUCE if collective.kind in COMBINING else COPY
    return rows_to_schedule(
        collective, seats, np.zeros(len(moving), np.int32), block[moving], src[moving], dst[moving], op
    )
