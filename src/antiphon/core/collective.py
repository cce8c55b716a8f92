"""The collective: blocks of data, which ranks contribute to each block and which ranks must end with it.

A block is the unit in which a collective is defined (in an allgather, one rank's data); schedules cut blocks into
chunks. A contribution is named by (block, id). Values with the same id are replicas of the same data; different ids of
a block are combined by the reduction. Built-in kinds use the contributing rank as the id.

A `Relation` lists both sides: `pre` rows state which rank has which contribution at the start, `post` rows which rank
wants which block in the end, with all its contributions or with some. Example, an allgather on 2 ranks: pre (block 0,
rank 0, id 0), (1, 1, 1); post (block 0, rank 0), (0, 1), (1, 0), (1, 1). A *weight* is the relative size of a block, a
whole number.

Several groups that work at the same time are one *joint* collective (`joint`): a custom one whose blocks are those of
its `groups`, one group after the other.

Blocks are numbered as in SCCL's Tables 1 and 2, so that cutting every block into m parts and numbering chunk = part *
blocks + block gives exactly its Scattered and Transpose relations.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.columns import (
    SAFE_INT64,
    AnyInts,
    Ints,
    Longs,
    distinct,
    distinct_pairs,
    is_ascending,
    pair_keys,
    run_starts,
)
from antiphon.core.topology import MAX_NODES
from antiphon.errors import Invalid, Unsupported, quote, unknown

ROOTED = ("broadcast", "reduce", "scatter", "gather")
KINDS = (*ROOTED, "allgather", "reducescatter", "allreduce", "alltoall")
COMBINING = ("reduce", "reducescatter", "allreduce")  # kinds that combine data
# Kind -> the kind that it becomes if all transfers are reversed
DUAL = {"broadcast": "reduce", "scatter": "gather", "allgather": "reducescatter", "alltoall": "alltoall"}
DUAL |= {dual: kind for kind, dual in DUAL.items()}
MAX_BLOCKS = 2**25  # an alltoall of 5,793 ranks; its columns take 128 MiB each
MAX_PAIRS = 2**27  # (block, rank) rows of a relation

# What MPI, NCCL and PyTorch put before and behind the name of a collective; the suffixes name the buffer convention.
_PREFIX = re.compile("^(mpi|nccl|rccl)")
_SUFFIX = re.compile("(intotensor|tensor|single|base|coalesced|oop|block)+$")


def kind_named(name: str) -> str | None:
    """Return the kind of collective with this name in MPI, NCCL, PyTorch or here; None if there is none.

    Variants with counts per rank (MPI_Allgatherv) are not included: they need their counts.

    >>> [kind_named(name) for name in ("all-reduce", "ncclReduceScatter", "MPI_Bcast", "all_to_all_single", "ring")]
    ['allreduce', 'reducescatter', 'broadcast', 'alltoall', None]
    """
    letters = re.sub("[^a-z0-9]", "", name.lower())
    bare_name = _SUFFIX.sub("", _PREFIX.sub("", letters))
    kind = "broadcast" if bare_name == "bcast" else bare_name
    return kind if kind in KINDS else None


@dataclass(frozen=True, eq=False)
class Relation:
    """What ranks have at the start and must have at the end; rows of both sides are sorted by block, then rank."""

    pre_block: Ints  # `pre` rows: this block has at this rank the contribution with this id; two rows: it has it twice
    pre_rank: Ints
    pre_id: Ints
    post_block: Ints  # `post` rows: this block must have at this rank the contributions of this want
    post_rank: Ints
    post_want: Ints  # -1: every id of the block exactly once; else an index into `wants`
    wants: tuple[tuple[int, ...], ...] = ()  # multisets of ids

    def key(self) -> tuple[object, ...]:
        """Return a hashable value that is equal for equal relations."""
        columns = (self.pre_block, self.pre_rank, self.pre_id, self.post_block, self.post_rank)
        # By value: two relations may number the same wants differently.
        wants = tuple(None if want < 0 else self.wants[want] for want in self.post_want.tolist())
        return (*(c.tobytes() for c in columns), wants)


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective among some ranks of a machine; the other ranks may relay."""

    kind: str  # one of KINDS, or "custom"
    ranks: int  # of the machine
    members: tuple[int, ...] = ()  # the ranks that take part; (): all
    roots: tuple[int, ...] = ()  # of a kind in ROOTED; (): the first member
    # The relative size of every block; uneven weights make MPI's v-variants. Empty: all blocks are equal.
    weights: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    custom: Relation | None = None  # the relation of kind "custom"; for all others it follows from the kind
    groups: tuple[Collective, ...] = ()  # of a joint collective: those of its groups, whose blocks follow each other
    nbytes_weight: int = 0  # the weight that `nbytes` measures; 0: that of the largest buffer of any rank
    ordered: bool = False  # combine contributions in ascending order of their ids: the operator need not commute

    def __post_init__(self) -> None:
        if self.kind != "custom":
            kind = kind_named(self.kind) if isinstance(self.kind, str) else None
            if kind is None:
                raise unknown("collective", self.kind, KINDS)
            object.__setattr__(self, "kind", kind)
        if isinstance(self.ranks, bool) or not isinstance(self.ranks, int) or not 1 <= self.ranks <= MAX_NODES:
            raise Invalid(f"collective ranks: expected a whole number from 1, got {quote(self.ranks)}")
        object.__setattr__(self, "members", _check_ranks(self.members or range(self.ranks), self.ranks, "members"))
        if len(self.members) < 2 and self.kind != "custom":
            raise Invalid(f"{self.kind} needs at least 2 ranks, got {len(self.members)}")
        object.__setattr__(self, "members", tuple(sorted(self.members)))
        self._check_roots()
        if (self.kind == "custom") != (self.custom is not None):
            raise Invalid("a custom collective needs its relation, and only a custom one takes it")
        if self.blocks > MAX_BLOCKS:
            raise Invalid(f"{self.kind} on {len(self.members)} ranks has {self.blocks} blocks; at most {MAX_BLOCKS}")
        object.__setattr__(self, "weights", _check_weights(self.weights, self.blocks))
        if self.nbytes_weight:
            self._check_nbytes_weight()
        # where nothing is combined, there is nothing to order: equal collectives compare equal
        object.__setattr__(self, "ordered", bool(self.ordered) and self.combining)

    def _check_nbytes_weight(self) -> None:
        """Refuse a weight above all buffers; that of the largest is stored as 0, so that equal ones compare equal."""
        greatest = self._largest_buffer
        if self.kind != "custom" or not 0 < self.nbytes_weight <= greatest:
            raise Invalid(f"nbytes_weight: expected a weight from 1 to that of the largest buffer, {greatest}")
        object.__setattr__(self, "nbytes_weight", self.nbytes_weight % greatest)

    def _check_roots(self) -> None:
        """Set the roots: those given, by default the first member, and none for collectives without a root."""
        if self.kind in ROOTED:
            roots = _check_ranks(self.roots or self.members[:1], self.ranks, "root")
            outside = sorted(set(roots) - set(self.members))
            if outside:
                raise Invalid(f"root {outside[0]} is not among the ranks of the collective; choose one of them")
        else:
            if self.roots:
                raise Invalid(f"{self.kind} has no root; leave it out")
            roots = ()
        object.__setattr__(self, "roots", roots)

    @property
    def combining(self) -> bool:
        """Whether data of different ranks must be combined."""
        if self.custom is None:
            return self.kind in COMBINING
        return bool(np.any(self.contributions_per_block > 1))

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        members, roots = len(self.members), len(self.roots)
        if self.custom is not None:
            block_counts = [int(c[-1]) + 1 for c in (self.custom.pre_block, self.custom.post_block) if len(c)]
            return max(block_counts, default=0)
        return {
            "broadcast": roots, "reduce": roots, "scatter": roots * members, "gather": roots * members,
            "allgather": members, "reducescatter": members, "allreduce": 1, "alltoall": members * members,
        }[self.kind]  # fmt: skip

    @cached_property
    def relation(self) -> Relation:
        """Which ranks hold and want which block."""
        return self.custom if self.custom is not None else _builtin_relation(self)

    @cached_property
    def contributions_per_block(self) -> Longs:
        """The number of distinct contributions of each block."""
        if self.custom is None:
            count = len(self.members) if self.kind in COMBINING else 1
            return np.full(self.blocks, count, np.int64)
        block, _ = distinct_pairs(self.relation.pre_block, self.relation.pre_id)
        return np.bincount(block, minlength=self.blocks).astype(np.int64)

    @cached_property
    def input_weights(self) -> Longs:
        """The summed weight of the blocks each rank contributes to."""
        if self.kind in COMBINING:
            return self._all_blocks()
        return self._side_weights(self.relation.pre_block, self.relation.pre_rank)

    @cached_property
    def output_weights(self) -> Longs:
        """The summed weight of the blocks each rank must end with."""
        if self.kind in ("broadcast", "allgather", "allreduce"):
            return self._all_blocks()
        return self._side_weights(self.relation.post_block, self.relation.post_rank)

    def _all_blocks(self) -> Longs:
        """Return per rank the weight of all blocks if it is a member, else 0: the sums where every member has every
        block. Adding up the (block, member) pairs one by one would take too long."""
        sums = np.zeros(self.ranks, np.int64)
        sums[list(self.members)] = int(self.weights.sum())
        return sums

    def _side_weights(self, block: Ints, rank: Ints) -> Longs:
        """Return per rank the total weight of its blocks on one side of the relation."""
        block_of_pair, rank_of_pair = distinct_pairs(block, rank)
        sums = np.zeros(self.ranks, np.int64)
        np.add.at(sums, rank_of_pair, self.weights[block_of_pair])
        return sums

    @cached_property
    def buffer_weight(self) -> int:
        """The weight of the buffer that `nbytes` measures: the largest of any rank; of a joint collective, of any
        group."""
        return self.nbytes_weight or self._largest_buffer

    @property
    def _largest_buffer(self) -> int:
        return max(int(self.input_weights.max()), int(self.output_weights.max()), 1)

    @cached_property
    def input_weight(self) -> int:
        """The weight of the largest input of any rank: L in SCCL's (R/C) * L * beta."""
        return max(int(self.input_weights.max()), 1)

    def key(self) -> tuple[object, ...]:
        """Return a hashable value that is equal for equal collectives."""
        custom = self.custom.key() if self.custom is not None else None
        sizes = self.weights.tobytes(), self.nbytes_weight
        return (self.kind, self.ranks, self.members, self.roots, *sizes, custom, self.ordered)

    @property
    def title(self) -> str:
        """The name for people: the kind; of a joint collective the number and kinds of its groups.

        >>> joint([Collective("allreduce", 4, (0, 1)), Collective("allreduce", 4, (2, 3))]).title
        '2 x allreduce of 2'
        """
        group_names = [f"{group.kind} of {len(group.members)}" for group in self.groups]
        return " + ".join(f"{group_names.count(name)} x {name}" for name in dict.fromkeys(group_names)) or self.kind

    @property
    def group_blocks(self) -> list[slice]:
        """The blocks of each group of a joint collective."""
        ends = np.cumsum([0, *(group.blocks for group in self.groups)]).tolist()
        return [slice(low, high) for low, high in itertools.pairwise(ends)]

    @property
    def group_sizes(self) -> list[int]:
        """The sizes of the buffers of the groups of a joint collective, relative to each other."""
        # The quotient below is a whole number: a group's own weights have no common divisor, and `joint` multiplied
        # them by a number that the common divisor of all weights, by which `Collective` divides, therefore divides.
        sizes = [
            int(self.weights[blocks].sum()) // int(group.weights.sum()) * group.buffer_weight
            for group, blocks in zip(self.groups, self.group_blocks, strict=True)
        ]
        return [size // math.gcd(*sizes) for size in sizes]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collective) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        root = f", roots={self.roots}" if self.roots else ""
        group = f", members={self.members}" if len(self.members) < self.ranks else ""
        order = ", ordered=True" if self.ordered else ""
        return f"Collective({self.title!r}, ranks={self.ranks}{root}{group}{order})"


def _check_ranks(values: Sequence[int] | range, ranks: int, label: str) -> tuple[int, ...]:
    """Return ranks as a tuple, checked to be in range and distinct."""
    members: list[int] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < ranks:
            raise Invalid(f"{label}: rank {quote(value)} is out of range (0 to {ranks - 1})")
        members.append(int(value))
    if len(set(members)) != len(members):
        raise Invalid(f"{label}: rank {Counter(members).most_common(1)[0][0]} is named twice")
    return tuple(members)


def _check_weights(weights: ArrayLike | None, blocks: int) -> Longs:
    """Return the relative sizes of blocks, divided by their greatest common divisor; without `weights`, 1 each."""
    array = np.array([] if weights is None else weights)
    if array.size == 0:
        array = np.ones(blocks, np.int64)
    if array.shape != (blocks,) or (array.size and array.dtype.kind not in "iu"):
        raise Invalid(f"weights: expected {blocks} whole numbers, one per block")
    if array.size and (int(array.min()) < 0 or float(array.sum(dtype=np.float64)) >= SAFE_INT64):
        raise Invalid("weights: must be 0 or more, and their sum below 2^62")
    array = array.astype(np.int64)
    common = int(np.gcd.reduce(array)) if array.size else 1
    if common > 1:  # only proportions count; small weights let small sizes be divided, too
        array //= common
    array.setflags(write=False)
    return array


def _builtin_relation(collective: Collective) -> Relation:
    """Return the relation of a built-in kind: who has each block at the start, and who must have it in the end.

    A scatter from rank 1 to three ranks: block i is for rank i; all are at rank 1, as its contribution:

    >>> relation = _builtin_relation(Collective("scatter", 3, roots=(1,)))
    >>> relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist()
    ([0, 1, 2], [1, 1, 1], [1, 1, 1])
    >>> relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist()
    ([0, 1, 2], [0, 1, 2], [-1, -1, -1])
    """
    members, roots = np.array(collective.members, np.int32), np.array(collective.roots, np.int32)
    kind, blocks, m, r = collective.kind, collective.blocks, len(members), len(roots)
    if blocks * m > MAX_PAIRS and kind not in ("scatter", "gather", "alltoall"):
        raise Unsupported(f"{kind} among {m} ranks relates {blocks * m} blocks and ranks; at most {MAX_PAIRS}")
    block = np.arange(blocks, dtype=np.int32)
    # All members for each block, as (block, rank). Scatter, gather and alltoall have one rank per block on both sides.
    rows_with_all = 0 if kind in ("scatter", "gather", "alltoall") else blocks
    all_pairs = np.repeat(block[:rows_with_all], m), np.tile(members, rows_with_all)
    # Per block its only rank on the side that has one rank per block: of a broadcast the holder, of a reduce the
    # receiver. An allreduce has no such side.
    one_rank_side = {
        "broadcast": lambda: roots, "reduce": lambda: roots, "allgather": lambda: members,
        "reducescatter": lambda: members, "allreduce": lambda: members[:0],
        "scatter": lambda: np.tile(roots, m), "gather": lambda: np.tile(members, r),
        "alltoall": lambda: np.tile(members, m),
    }[kind]()  # fmt: skip
    if kind in ("broadcast", "allgather"):
        pre, post = (block, one_rank_side), all_pairs
    elif kind in ("reduce", "reducescatter"):
        pre, post = all_pairs, (block, one_rank_side)
    elif kind == "allreduce":
        pre = post = all_pairs
    else:  # blocks are numbered by destination, then by origin
        destinations = {
            "scatter": np.repeat(members, r),
            "gather": np.repeat(roots, m),
            "alltoall": np.repeat(members, m),
        }
        pre, post = (block, one_rank_side), (block, destinations[kind])
    (pre_block, pre_rank), (post_block, post_rank) = pre, post
    want: NDArray[np.int32] = np.full(len(post_block), -1, np.int32)
    # The id of a contribution is the rank that begins with it.
    return Relation(pre_block, pre_rank, pre_rank, post_block, post_rank, want)


def joint(groups: Sequence[Collective], sizes: Sequence[int] = ()) -> Collective:
    """Return the collective of several groups at the same time; groups may have ranks in common.

    `sizes`: of the groups' buffers, relative to each other. Default: `nbytes` is the size of each group's buffer, as if
    it worked alone; with `sizes`, that of the largest.

    >>> both = joint([Collective("allgather", 4, (0, 1)), Collective("allreduce", 4, (1, 2, 3))])
    >>> both.members, both.weights.tolist(), both.buffer_weight, both.relation.post_rank.tolist()
    ((0, 1, 2, 3), [1, 1, 2], 2, [0, 1, 0, 1, 1, 2, 3])
    """
    if len({group.ranks for group in groups}) != 1 or any(group.kind == "custom" for group in groups):
        raise Invalid("joint: expected collectives of a named kind, all for one machine")
    sizes = tuple(sizes) or (1,) * len(groups)
    if len(sizes) != len(groups) or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes):
        raise Invalid(f"sizes: expected {len(groups)} whole numbers from 1, one for each group")
    if any(group.ordered for group in groups):
        raise Unsupported(
            "joint: groups that combine in the order of ranks cannot be planned together; plan them apart"
        )
    if not all(group.weights.any() for group in groups):
        raise Invalid("joint: all blocks of a group are empty; leave it out")
    # Scale the weights of each group so that its buffer weighs `common` times its size.
    common = math.lcm(*(group.buffer_weight for group in groups))
    scales = [common * size // group.buffer_weight for group, size in zip(groups, sizes, strict=True)]
    total = sum(scale * int(group.weights.sum()) for scale, group in zip(scales, groups, strict=True))
    if total >= SAFE_INT64:
        raise Unsupported("joint: the weights of the groups have no common measure below 2^62; use rounder sizes")
    weights = np.concatenate([group.weights * scale for group, scale in zip(groups, scales, strict=True)])
    first = np.cumsum([0, *(group.blocks for group in groups)]).tolist()
    # The blocks of a group come after those of earlier groups; ranks and ids are the same in all.
    columns = [
        np.concatenate([getattr(group.relation, name) + shift for group, shift in zip(groups, shifts, strict=True)])
        for names, shifts in ((("pre_block", "post_block"), first[:-1]), (_RANKS_AND_IDS, [0] * len(groups)))
        for name in names
    ]
    pre_block, post_block, pre_rank, pre_id, post_rank, post_want = (np.asarray(c, np.int32) for c in columns)
    members = tuple(sorted({rank for group in groups for rank in group.members}))
    return Collective(
        "custom", groups[0].ranks, members, weights=weights, groups=tuple(groups),
        custom=Relation(pre_block, pre_rank, pre_id, post_block, post_rank, post_want),
        nbytes_weight=common * max(sizes) // int(np.gcd.reduce(weights)),  # `Collective` divides weights by their gcd
    )  # fmt: skip


_RANKS_AND_IDS = ("pre_rank", "pre_id", "post_rank", "post_want")  # columns that `joint` copies unchanged


def custom_relation(
    pre: Sequence[tuple[int, int, int]], post: Sequence[tuple[int, int, tuple[int, ...] | None]], ranks: int
) -> Relation:
    """Build a checked relation from (block, rank, id) rows and (block, rank, wanted ids or None for all) rows."""
    wants: dict[tuple[int, ...], int] = {}
    post_indices = [
        (block, rank, -1 if ids is None else wants.setdefault(tuple(sorted(ids)), len(wants)))
        for block, rank, ids in post
    ]
    pre_rows, post_rows = (np.array(rows, np.int64).reshape(-1, 3) for rows in (pre, post_indices))
    return relation_of(pre_rows, post_rows, tuple(wants), ranks)


def relation_of(pre_rows: AnyInts, post_rows: AnyInts, wants: tuple[tuple[int, ...], ...], ranks: int) -> Relation:
    """Build a checked relation from columns: (block, rank, id) rows and (block, rank, index into `wants` or -1 for all)
    rows."""
    for side, rows in (("pre", pre_rows), ("post", post_rows)):
        block, rank, _ = rows.T
        if rows.size and (min(block.min(), rank.min()) < 0 or rank.max() >= ranks or block.max() >= MAX_BLOCKS):
            raise Invalid(f"custom collective, {side}: a block or rank is out of range (ranks are 0 to {ranks - 1})")
    _, _, ids = pre_rows.T
    if ids.size and (ids.min() < 0 or ids.max() >= 2**31):
        raise Invalid("custom collective, pre: contribution ids must be from 0 to 2^31-1")
    # The unsorted rows serve the last error, which names the first faulty row in the order of the input.
    unsorted_post, pre_rows, post_rows = post_rows, _order_rows(pre_rows), _order_rows(post_rows)
    block, rank, _ = post_rows.T
    if not run_starts(pair_keys(block, rank)).all():
        raise Invalid("custom collective, post: a (block, rank) is named twice")
    pre_block, _, ids = pre_rows.T
    post_block, _, want_of = unsorted_post.T
    unsourced = ~np.isin(post_block, pre_block)
    block_wants = {*zip(post_block[want_of >= 0].tolist(), want_of[want_of >= 0].tolist(), strict=True)}
    contributed = distinct(pair_keys(pre_block, ids)) if block_wants else np.zeros(0, np.int64)
    unmet = {(block, want) for block, want in block_wants if not _all_contributed(block, wants[want], contributed)}
    if unmet or unsourced.any():
        faulty_block, faulty_rank = next(
            (block, rank)
            for (block, rank, want), lacks_source in zip(unsorted_post.tolist(), unsourced.tolist(), strict=True)
            if lacks_source or (block, want) in unmet
        )
        raise Invalid(f"custom collective: rank {faulty_rank} wants of block {faulty_block} what no rank contributes")
    pre, post = (np.ascontiguousarray(rows.T, np.int32) for rows in (pre_rows, post_rows))
    (pre_block, pre_rank, pre_id), (post_block, post_rank, post_want) = pre, post
    return Relation(pre_block, pre_rank, pre_id, post_block, post_rank, post_want, wants)


def _all_contributed(block: int, ids: tuple[int, ...], contributed: Longs) -> bool:
    """Return whether all these ids of a block are contributed by some rank.

    `contributed`: the (block, id) pairs of all contributions, as keys. No rank contributes an id that keys cannot hold
    (they hold int32).
    """
    if not ids or min(ids) < 0 or max(ids) >= 2**31:
        return False
    return bool(np.isin(pair_keys(np.full(len(ids), block), np.array(ids)), contributed).all())


def _order_rows(rows: AnyInts) -> AnyInts:
    """Sort rows by block, rank and the last column; rows from files are mostly in order already."""
    return rows if is_ascending(*rows.T) else rows[np.lexsort(rows.T[::-1])]
