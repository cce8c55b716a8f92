"""What must reach whom: the rows every bound is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs


@dataclass(frozen=True, eq=False)
class Needs:
    """Rows (block, holders, dst): the contribution that exactly `sets[holders]` hold must reach rank dst.

    Blocks of weight 0 and contributions that dst holds itself are left out. Rows are sorted by block.
    For the built-in kinds sets[r] = (r,).
    """

    block: Longs
    holders: Longs
    dst: Longs
    sets: tuple[tuple[int, ...], ...]
    weights: Longs

    def __len__(self) -> int:
        return len(self.block)

    def one_per_block(self, rows: Longs) -> Longs:
        """The first of these rows of every block."""
        return rows[np.unique(self.block[rows], return_index=True)[1]]


def needs_of(collective: Collective) -> Needs:
    """Join who has with who wants, block by block. O(rows of the join): P^2 for the built-in kinds."""
    assert collective.weights is not None
    if collective.custom is not None:
        return _custom(collective)
    relation = collective.relation
    count = np.bincount(relation.pre_block, minlength=collective.blocks)
    first = np.cumsum(count) - count
    per_post = count[relation.post_block]
    total = int(per_post.sum())
    within = np.arange(total) - np.repeat(np.cumsum(per_post) - per_post, per_post)
    pre = np.repeat(first[relation.post_block], per_post) + within
    block = np.repeat(relation.post_block, per_post)
    holders = relation.pre_rank[pre]
    dst = np.repeat(relation.post_rank, per_post)
    keep = (holders != dst) & (collective.weights[block] > 0)
    sets = tuple((rank,) for rank in range(collective.ranks))
    kept = [c[keep].astype(np.int64) for c in (block, holders, dst)]
    return Needs(kept[0], kept[1], kept[2], sets, collective.weights)


def _custom(collective: Collective) -> Needs:
    assert collective.weights is not None
    relation = collective.relation
    held: dict[int, dict[int, set[int]]] = {}
    for block, rank, name in zip(
        relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True
    ):
        held.setdefault(block, {}).setdefault(name, set()).add(rank)
    index: dict[tuple[int, ...], int] = {}
    rows: set[tuple[int, int, int]] = set()
    for block, rank, want in zip(
        relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True
    ):
        if not collective.weights[block]:
            continue
        names = held.get(block, {})
        for name in names if want < 0 else relation.wants[want]:
            if rank not in names[name]:
                holders = tuple(sorted(names[name]))
                rows.add((block, index.setdefault(holders, len(index)), rank))
    table = np.array(sorted(rows), np.int64).reshape(-1, 3)
    return Needs(table[:, 0], table[:, 1], table[:, 2], tuple(index), collective.weights)
