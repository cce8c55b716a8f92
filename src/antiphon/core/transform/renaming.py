"""The same schedule for other ranks: relabelled, copied by a symmetry, or restricted to fewer members.

Relabelling permutes ranks and, with them, blocks: the block of rank r in an allgather becomes the block of name[r].
Scatter, gather and alltoall number their blocks by two coordinates (sender and receiver); both are permuted.

Example: in an allgather among 3 ranks, relabelled r -> r + 1 (mod 3), the row "block 0 from rank 0 to 1" becomes "block
1 from rank 1 to 2".

`restrict` drops the blocks of ranks that leave the group and then every transfer that is no longer needed; ranks that
left may still relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.collective import Collective, Relation
from antiphon.core.columns import Bools, Longs, as_int32
from antiphon.core.dependencies import Versions, versions
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.transform.tidying import by_step, clean, initial_with_data
from antiphon.errors import Invalid, Unsupported


def relabel_collective(collective: Collective, name: Longs) -> tuple[Collective, Longs]:
    """Renumber rank r as name[r]; return the collective, and the new number of each of its blocks. O(blocks).

    >>> relabel_collective(Collective("allgather", 3, weights=[5, 6, 7]), np.array([2, 0, 1]))[1]
    array([2, 0, 1])
    """
    if collective.custom is not None:
        custom = _relabel_relation(collective.custom, name)
        members = tuple(name[list(collective.members)].tolist())
        renamed = replace(collective, members=members, custom=custom, groups=())
        return renamed, np.arange(collective.blocks)
    renamed_members = name[list(collective.members)]
    # Member i -> its place among the renamed members, which are sorted.
    place = np.empty(len(renamed_members), np.int64)
    place[np.argsort(renamed_members)] = np.arange(len(renamed_members))
    roots = tuple(name[list(collective.roots)].tolist())
    m, r = len(renamed_members), max(len(roots), 1)
    block = np.arange(collective.blocks)
    if collective.kind in ("allgather", "reducescatter"):
        block = place
    elif collective.kind == "scatter":
        block = place[block // r] * r + block % r
    elif collective.kind == "gather":
        block = block // m * m + place[block % m]
    elif collective.kind == "alltoall":
        block = place[block // m] * m + place[block % m]
    # Scatter the weights to the new block numbers.
    weights = np.empty(collective.blocks, np.int64)
    weights[block] = collective.weights
    return Collective(collective.kind, collective.ranks, tuple(renamed_members.tolist()), roots, weights), block


def _relabel_relation(relation: Relation, name: Longs) -> Relation:
    """Renumber the ranks of a custom relation."""
    pre_rank, post_rank = name[relation.pre_rank], name[relation.post_rank]
    pre = np.lexsort((relation.pre_id, pre_rank, relation.pre_block))
    post = np.lexsort((post_rank, relation.post_block))
    return Relation(
        relation.pre_block[pre], pre_rank[pre].astype(np.int32), relation.pre_id[pre],
        relation.post_block[post], post_rank[post].astype(np.int32), relation.post_want[post], relation.wants,
    )  # fmt: skip


def relabel(schedule: Schedule, names: ArrayLike, links: ArrayLike | None = None) -> Schedule:
    """Renumber rank r as names[r] (names of switches may follow) and, if given, link i as links[i].

    For a relabelled topology the links keep their numbers; for a symmetry of one topology, give its link map. O(rows).

    >>> from antiphon.core.example import of_rows
    >>> chain = of_rows("allgather", 3, [(0, 0, 0, 1, 0), (0, 1, 1, 2, 0), (1, 0, 1, 2, 0)])
    >>> turned = relabel(chain, [1, 2, 0])
    >>> turned.chunk.tolist(), turned.chunks.block.tolist(), turned.src.tolist(), turned.dst.tolist()
    ([0, 1, 0], [1, 2, 0], [1, 2, 2], [2, 0, 0])
    """
    name = np.asarray(names, np.int64)
    ranks = schedule.collective.ranks
    if len(name) < ranks or not np.array_equal(np.sort(name[:ranks]), np.arange(ranks)):
        raise Invalid(f"relabel: expected a permutation of the {ranks} ranks")
    collective, block = relabel_collective(schedule.collective, name[:ranks])
    routes, chunks = schedule.routes, schedule.chunks
    if links is not None:
        routes = Routes(routes.ptr, np.asarray(links, np.int32)[routes.links])
    return replace(
        schedule,
        collective=collective,
        chunks=Chunks(as_int32(block[chunks.block]), chunks.offset, chunks.share, chunks.denominator),
        src=as_int32(name[schedule.src]),
        dst=as_int32(name[schedule.dst]),
        routes=routes,
    )


def _sub_collective(collective: Collective, members: tuple[int, ...]) -> tuple[Collective, Longs]:
    """Return the same kind of collective among fewer members, and each old block's new number (-1: dropped). O(blocks).

    An alltoall among 3 ranks has 9 blocks, (to, from):

    >>> _sub_collective(Collective("alltoall", 3), (0, 2))[1].reshape(3, 3).tolist()
    [[0, -1, 1], [-1, -1, -1], [2, -1, 3]]
    """
    old = list(collective.members)
    outside = sorted(set(members) - set(old))
    if outside:
        raise Invalid(f"restrict: rank {outside[0]} does not take part in the schedule")
    if collective.kind == "custom":
        raise Unsupported("restrict: a custom collective says itself who takes part; edit its relation")
    place = {rank: i for i, rank in enumerate(sorted(members))}
    stay = np.array([place.get(rank, -1) for rank in old], np.int64)
    roots = tuple(root for root in collective.roots if root in place)
    if collective.roots and not roots:
        raise Invalid("restrict: the root must be among the ranks that remain")
    root_stay = np.array([roots.index(root) if root in place else -1 for root in collective.roots], np.int64)
    m, r = len(old), len(collective.roots)
    block = np.arange(collective.blocks)
    if collective.kind in ("broadcast", "reduce"):
        new = root_stay[block]
    elif collective.kind in ("allgather", "reducescatter"):
        new = stay[block]
    elif collective.kind == "allreduce":
        new = block
    else:  # two coordinates: the sender (or receiver) and the other end
        slow, fast = {
            "scatter": (stay[block // max(r, 1)], root_stay[block % max(r, 1)]) if r else (block, block),
            "gather": (root_stay[block // m], stay[block % m]) if r else (block, block),
            "alltoall": (stay[block // m], stay[block % m]),
        }[collective.kind]
        width = {"scatter": len(roots), "gather": len(members), "alltoall": len(members)}[collective.kind]
        new = np.where((slow < 0) | (fast < 0), -1, slow * width + fast)
    weights = np.zeros(int(new.max()) + 1, np.int64)
    weights[new[new >= 0]] = collective.weights[new >= 0]
    return Collective(collective.kind, collective.ranks, members, roots, weights), new


def restrict(schedule: Schedule, members: Sequence[int]) -> Schedule:
    """Restrict a schedule to these members; other ranks only relay. Transfers that are no longer needed are dropped.

    O(n log n). Rank 1 relays the data of rank 2:

    >>> from antiphon.core.example import of_rows
    >>> chain = of_rows("broadcast", 4, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0), (2, 0, 2, 3, 0)], roots=(0,))
    >>> fewer = restrict(chain, [0, 2])
    >>> fewer.src.tolist(), fewer.dst.tolist(), fewer.collective.members
    ([0, 1], [1, 2], (0, 2))
    """
    collective, new = _sub_collective(schedule.collective, tuple(members))
    stays = new[schedule.chunks.block] >= 0
    number = np.cumsum(stays) - 1
    rows = np.flatnonzero(stays[schedule.chunk])
    chunks = schedule.chunks
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else schedule.pieces[stays]
    fewer = schedule.take(
        rows,
        collective=collective,
        chunk=number[schedule.chunk[rows]],
        chunks=Chunks(
            as_int32(new[chunks.block[stays]]), chunks.offset[stays], chunks.share[stays], chunks.denominator
        ),
        pieces=pieces,
        provenance={},
    )
    return clean(fewer.take(np.flatnonzero(_rows_with_data(fewer, versions(fewer)))))


def _rows_with_data(schedule: Schedule, history: Versions) -> Bools:
    """Return the rows that read data; senders whose contributions were dropped hold nothing. A loop over steps, O(n log
    n).

    Only rank 0 has anything; rank 2 sends nothing in step 0:

    >>> from antiphon.core.example import of_rows
    >>> rows = of_rows("broadcast", 3, [(0, 0, 2, 1, 0), (1, 0, 0, 1, 0), (2, 0, 1, 2, 0)], roots=(0,))
    >>> _rows_with_data(rows, versions(rows))
    array([False,  True,  True])
    """
    has_data = initial_with_data(schedule, history)
    reads_data = np.zeros(schedule.transfers, np.bool_)
    # Forward pass. Invariant: has_data[v] is true if version v holds data, for all versions written so far. The version
    # before v in its cell is v - 1.
    for rows in by_step(schedule):
        read, write = history.read[rows], history.write[rows]
        reads_data[rows] = has_data[read]
        has_data[write[has_data[read]]] = True
        # The old value stays in the cell if the row adds to it, or copies nothing.
        for retains in (schedule.op[rows] == REDUCE, (schedule.op[rows] == COPY) & ~has_data[read]):
            has_data[write[retains]] |= has_data[write[retains] - 1]
    return reads_data
