"""The same schedule for other ranks: relabelled, or copied by a symmetry.

Relabelling permutes ranks and, with them, blocks: the block of rank r in an allgather becomes the block of new_rank[r].
An alltoall numbers its blocks by sender and receiver, which are both permuted. Scatter and gather number them by root
and member; only the member is permuted, as roots keep their order.

Example: in an allgather among 3 ranks, relabelled r -> r + 1 (mod 3), the row "block 0 from rank 0 to 1" becomes "block
1 from rank 1 to 2".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.collective import Collective, Relation
from antiphon.core.columns import Longs, as_int32
from antiphon.core.routes import Routes
from antiphon.core.schedule import Chunks, Schedule
from antiphon.errors import Invalid


def relabel_collective(collective: Collective, new_rank: Longs) -> tuple[Collective, Longs]:
    """Renumber rank r as new_rank[r]; return the collective, and the new number of each of its blocks. O(blocks).

    >>> relabel_collective(Collective("allgather", 3, weights=[5, 6, 7]), np.array([2, 0, 1]))[1]
    array([2, 0, 1])
    """
    if collective.custom is not None:
        custom = _relabel_relation(collective.custom, new_rank)
        members = tuple(new_rank[list(collective.members)].tolist())
        # `groups` has the old numbers and goes; the relation says all that is needed
        renamed = replace(collective, members=members, custom=custom, groups=())
        return renamed, np.arange(collective.blocks)
    renamed_members = new_rank[list(collective.members)]
    # Member i -> its position among the renamed members in ascending order, in which Collective keeps them.
    position = np.empty(len(renamed_members), np.int64)
    position[np.argsort(renamed_members)] = np.arange(len(renamed_members))
    roots = tuple(new_rank[list(collective.roots)].tolist())
    m, r = len(renamed_members), max(len(roots), 1)
    # Numbers of blocks, with positions among members and roots. Scatter: member * r + root; gather: root * m + member;
    # alltoall: receiver * m + sender.
    block = np.arange(collective.blocks)
    if collective.kind in ("allgather", "reducescatter"):
        block = position
    elif collective.kind == "scatter":
        block = position[block // r] * r + block % r
    elif collective.kind == "gather":
        block = block // m * m + position[block % m]
    elif collective.kind == "alltoall":
        block = position[block // m] * m + position[block % m]
    # Scatter the weights to the new block numbers.
    weights = np.empty(collective.blocks, np.int64)
    weights[block] = collective.weights
    members = tuple(renamed_members.tolist())
    return replace(collective, members=members, roots=roots, weights=weights), block


def _relabel_relation(relation: Relation, new_rank: Longs) -> Relation:
    """Renumber the ranks of a custom relation."""
    pre_rank, post_rank = new_rank[relation.pre_rank], new_rank[relation.post_rank]
    pre = np.lexsort((relation.pre_id, pre_rank, relation.pre_block))
    post = np.lexsort((post_rank, relation.post_block))
    return Relation(
        relation.pre_block[pre], pre_rank[pre].astype(np.int32), relation.pre_id[pre],
        relation.post_block[post], post_rank[post].astype(np.int32), relation.post_want[post], relation.wants,
    )  # fmt: skip


def relabel(schedule: Schedule, new_number: ArrayLike, links: ArrayLike | None = None) -> Schedule:
    """Renumber rank r as new_number[r] (entries for switches may follow) and, if given, link i as links[i].

    For a relabelled topology the links keep their numbers; for a symmetry of one topology, give its link map. O(rows).

    >>> from antiphon.core.example import of_rows
    >>> chain = of_rows("allgather", 3, [(0, 0, 0, 1, 0), (0, 1, 1, 2, 0), (1, 0, 1, 2, 0)])
    >>> relabelled = relabel(chain, [1, 2, 0])
    >>> [c.tolist() for c in (relabelled.chunk, relabelled.chunks.block, relabelled.src, relabelled.dst)]
    [[0, 1, 0], [1, 2, 0], [1, 2, 2], [2, 0, 0]]
    """
    new_number = np.asarray(new_number, np.int64)
    ranks = schedule.collective.ranks
    if len(new_number) < ranks or not np.array_equal(np.sort(new_number[:ranks]), np.arange(ranks)):
        raise Invalid(f"relabel: expected a permutation of the {ranks} ranks")
    collective, block = relabel_collective(schedule.collective, new_number[:ranks])
    routes, chunks = schedule.routes, schedule.chunks
    if links is not None:
        routes = Routes(routes.ptr, np.asarray(links, np.int32)[routes.links])
    return replace(
        schedule,
        collective=collective,
        chunks=Chunks(as_int32(block[chunks.block]), chunks.offset, chunks.share, chunks.denominator),
        src=as_int32(new_number[schedule.src]),
        dst=as_int32(new_number[schedule.dst]),
        routes=routes,
    )
