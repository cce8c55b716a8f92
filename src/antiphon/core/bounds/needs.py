"""The needs of a collective: which contribution must get from which holders to which rank. Every bound starts from
them.

A collective is a relation: before, ranks hold numbered contributions to blocks; afterwards, ranks want a block with all
contributions or with some. What a rank has of a block, one contribution or the sum of several, is its value.
`needs_of` joins the two sides: for every wanted contribution that the destination does not hold itself, one row
(block, holders, destination).

Example: a broadcast of one block from rank 0 to ranks 0 to 2 has the rows (0, {0}, 1) and (0, {0}, 2).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.collective import Collective, Relation
from antiphon.core.columns import ROWS_PER_BATCH, Bools, Longs, concat_ranges, order_of, pointers, run_starts
from antiphon.errors import Infeasible


@dataclass(frozen=True, eq=False)
class RowIndex:
    """The rows of every owner, ascending: those of owner i are `rows[pointer[i]:pointer[i + 1]]`."""

    rows: Longs
    pointer: Longs

    @classmethod
    def of(cls, owner: Longs, owners: int) -> RowIndex:
        return cls(order_of(owner, bound=owners), pointers(owner, owners))

    @property
    def owners(self) -> int:
        return len(self.pointer) - 1

    def counts(self, owners: Longs) -> Longs:
        return self.pointer[owners + 1] - self.pointer[owners]

    def of_owners(self, owners: Longs) -> Longs:
        """The rows of these owners, owner by owner."""
        return self.rows[concat_ranges(self.pointer[owners], self.counts(owners))]

    def of_owner(self, owner: int) -> Longs:
        return self.rows[self.pointer[owner] : self.pointer[owner + 1]]


@dataclass(frozen=True, eq=False)
class Needs:
    """Rows (block, holders, dst): a contribution that exactly the ranks `sets[holders]` hold must reach rank dst.

    Blocks of weight 0 (their relative size) and contributions that dst holds itself are omitted. Rows are sorted by
    block. For the built-in kinds sets[r] = (r,). `weights`: of all blocks. `joined`: some value begins with several
    contributions, or one is wanted more than once; then a schedule may have to do more than these rows say, so bounds
    from them may not be attainable.
    """

    block: Longs
    holders: Longs
    dst: Longs
    sets: tuple[tuple[int, ...], ...]
    weights: Longs
    joined: bool = False

    def __len__(self) -> int:
        return len(self.block)

    def crossing(self, side: Bools) -> Longs:
        """Return the rows that must leave a set of nodes: held only inside, wanted outside.

        O(nodes + members of `sets` + the fewer of the rows held only inside and the rows wanted outside) after one
        sort, so that thousands of cuts are cheap.
        """
        flat, first = self._set_members
        inside, outside = np.logical_and.reduceat(side[flat], first), ~side
        by_set, by_dst = self.rows_by_holders, self.rows_by_dst
        # `side` has an entry per node; rows are wanted only at nodes below by_dst.owners
        held_inside, wanted_outside = np.flatnonzero(inside), np.flatnonzero(outside[: by_dst.owners])
        if by_set.counts(held_inside).sum() < by_dst.counts(wanted_outside).sum():
            rows = by_set.of_owners(held_inside)
            return rows[outside[self.dst[rows]]]
        rows = by_dst.of_owners(wanted_outside)
        return rows[inside[self.holders[rows]]]

    @cached_property
    def _set_members(self) -> tuple[Longs, Longs]:
        """The ranks of all sets, one set after the other, and where each set begins."""
        flat = np.array([rank for ranks in self.sets for rank in ranks], np.int64)
        lengths = np.array([len(ranks) for ranks in self.sets], np.int64)
        return flat, np.cumsum(lengths) - lengths

    @cached_property
    def rows_by_holders(self) -> RowIndex:
        return RowIndex.of(self.holders, len(self.sets))

    @cached_property
    def rows_by_dst(self) -> RowIndex:
        return RowIndex.of(self.dst, int(self.dst.max(initial=-1)) + 1)

    def one_per_block(self, rows: Longs) -> Longs:
        """Return the first of these ascending rows for every block."""
        return rows[run_starts(self.block[rows])]


def needs_of(collective: Collective) -> Needs:
    """Join holders and destinations, block by block. O(rows of the join): P^2 for the built-in kinds.

    >>> needs = needs_of(Collective("allgather", 3))
    >>> needs.block.tolist(), needs.holders.tolist(), needs.dst.tolist()
    ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1])
    """
    assert collective.weights is not None
    if collective.groups:
        return _needs_of_groups(collective)
    if collective.custom is not None:
        return _custom_needs(collective)
    relation = collective.relation  # its rows are sorted by block, then rank
    pre_count = np.bincount(relation.pre_block, minlength=collective.blocks)
    first = np.cumsum(pre_count) - pre_count
    holder_count = pre_count[relation.post_block]
    columns, size = np.empty((3, int(holder_count.sum())), np.int64), 0
    # In batches of post rows: intermediate results of all would take several times the memory of the columns.
    batch = max(1, ROWS_PER_BATCH // int(holder_count.max(initial=1)))
    for low in range(0, len(holder_count), batch):
        rows = slice(low, low + batch)
        holders = relation.pre_rank[concat_ranges(first[relation.post_block[rows]], holder_count[rows])]
        block, dst = (np.repeat(c[rows], holder_count[rows]) for c in (relation.post_block, relation.post_rank))
        is_need = (holders != dst) & (collective.weights[block] > 0)
        end = size + int(np.count_nonzero(is_need))
        for column, values in zip(columns, (block, holders, dst), strict=True):
            column[size:end] = values[is_need]
        size = end
    sets = tuple((rank,) for rank in range(collective.ranks))
    block, holders, dst = columns[:, :size]
    return Needs(block, holders, dst, sets, collective.weights)


def _needs_of_groups(collective: Collective) -> Needs:
    """Return the needs of a collective of several process groups at the same time, group after group."""
    # all groups are of built-in kinds on the same machine: their `sets` are equal, and none is `joined`
    group_needs = [needs_of(group) for group in collective.groups]
    first = [blocks.start for blocks in collective.group_blocks]
    block = np.concatenate([needs.block + start for needs, start in zip(group_needs, first, strict=True)])
    holders, dst = (np.concatenate([getattr(needs, name) for needs in group_needs]) for name in ("holders", "dst"))
    return Needs(block, holders, dst, group_needs[0].sets, collective.weights)


Holders = dict[int, tuple[set[int], tuple[int, ...]]]  # contribution -> the ranks that hold it, as a set and sorted


def _custom_needs(collective: Collective) -> Needs:
    """Return the needs of a custom collective.

    Values are only ever added to, so a value with a contribution that dst does not want is of no use to dst.
    """
    assert collective.weights is not None
    relation = collective.relation
    initial: dict[int, dict[int, Counter[int]]] = {}
    for block, rank, contribution in zip(
        relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True
    ):
        initial.setdefault(block, {}).setdefault(rank, Counter())[contribution] += 1
    index: dict[tuple[int, ...], int] = {}  # set of holders -> its number in `Needs.sets`
    rows: set[tuple[int, int, int]] = set()  # (block, number of the set of holders, destination)
    usable: dict[tuple[int, int], Holders] = {}  # by (block, want)
    for block, rank, want in zip(
        relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True
    ):
        if not collective.weights[block]:
            continue
        if (block, want) not in usable:
            usable[block, want] = _usable_holders(initial.get(block, {}), None if want < 0 else relation.wants[want])
        for contribution, (holder_set, holders) in usable[block, want].items():
            if not holders:
                raise Infeasible(
                    f"rank {rank} can never have what it wants of block {block}: every rank that begins with "
                    f"contribution {contribution} has it joined with what rank {rank} does not want; let some rank "
                    f"begin with it alone, or rank {rank} want the rest too"
                )
            if rank not in holder_set:
                rows.add((block, index.setdefault(holders, len(index)), rank))
    block_of, holders_of, dst_of = np.array(sorted(rows), np.int64).reshape(-1, 3).T
    return Needs(block_of, holders_of, dst_of, tuple(index), collective.weights, _begins_joined(relation))


def _usable_holders(values: dict[int, Counter[int]], wanted_ids: tuple[int, ...] | None) -> Holders:
    """Return, per wanted contribution, the ranks whose initial value has it and nothing that is not wanted.

    `values`: per rank, how often its initial value of the block has each contribution. `wanted_ids`: the wanted
    contributions; None: all.
    """
    present = {contribution for value in values.values() for contribution in value}
    target = Counter(present if wanted_ids is None else wanted_ids)
    holders_of: dict[int, set[int]] = {contribution: set() for contribution in target}
    for rank, value in values.items():
        if value <= target:  # of Counters: it has no contribution more often than wanted
            for contribution in value:
                holders_of[contribution].add(rank)
    return {contribution: (ranks, tuple(sorted(ranks))) for contribution, ranks in holders_of.items()}


def _begins_joined(relation: Relation) -> bool:
    """Whether a value begins with several contributions, or one is wanted more than once."""
    block, rank = relation.pre_block, relation.pre_rank
    # rows are sorted by block, then rank: equal neighbours are contributions of one value
    has_joined_value = bool(np.any((block[1:] == block[:-1]) & (rank[1:] == rank[:-1])))
    return has_joined_value or any(len(set(ids)) < len(ids) for ids in relation.wants)
