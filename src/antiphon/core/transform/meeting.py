"""Derive the collective of composed or merged schedules from their relations (who has and who wants which data).

    line          all data of the composed collective, end to end; every schedule's blocks are intervals of it
    stretch       an interval of the line between two neighbouring borders of blocks, of any schedule
    contribution  one rank's input on a stretch, named by an id; a set of ids is a sum of them, each once
    pre, post     what each rank has of a stretch at the beginning (a row per id), and must have at the end (a set)
    want = -1     in a `Relation`: all ids of the block. In this file it is written out as a set, like any other want

Example: an allreduce of two ranks has one stretch, 0. Pre rows (stretch, rank, id) are (0, 0, 0) and (0, 1, 1). Post
rows (stretch, rank, set) are (0, 0, s) and (0, 1, s), where set s has the ids (0, 1).

A rank's data on a stretch are undefined except for its post rows. The outputs of the first schedule are the inputs of
the second; if they do not match, the error names the stretch, the rank and a fix. The result is a named collective if
there is one, else a custom relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from antiphon.core.collective import Collective, Relation
from antiphon.core.columns import (
    SAFE_INT64,
    Longs,
    concat_ranges,
    distinct,
    pair_keys,
    pointers,
    run_starts,
    unique_inverse,
)
from antiphon.core.transform.staging import Spans
from antiphon.errors import Invalid, Unsupported, list_first

MOST_PAIRS = 2**25  # rows (stretch, rank) of a relation


class RelationRows(NamedTuple):
    """Rows of a relation, one array per column. `content`: an id in pre rows, the number of a set in post rows."""

    stretch: Longs
    rank: Longs
    content: Longs


@dataclass(frozen=True, eq=False)
class RelationStretches:
    """A relation on stretches of the line."""

    edges: Longs  # where the stretches begin, and the end of the last one
    pre: RelationRows  # (stretch, rank, id), sorted
    post: RelationRows  # (stretch, rank, set), sorted
    ids: tuple[tuple[int, ...], ...]  # per set its ids, each once
    name: str  # of the schedule, for messages

    def stretch_text(self, stretch: int) -> str:
        """Describe a stretch."""
        length = int(self.edges[-1])
        low, high = (Fraction(int(self.edges[stretch + i]), length) for i in (0, 1))
        return "all of the data" if high - low == 1 else f"the part from {low} to {high} of the data"


def stretches_of(collective: Collective, spans: Spans, edges: Longs, name: str) -> RelationStretches:
    """Return a collective's relation on the stretches between edges.

    `spans`: intervals of the line; `owner` is the block that lies there."""
    relation = collective.relation
    # `edges` contains every border of `spans`, so both searches hit exactly.
    first_stretch = np.searchsorted(edges, spans.begin)
    stretch_counts = np.searchsorted(edges, spans.end) - first_stretch
    # Of each block's stretches: their number and their block.
    stretch, owner = concat_ranges(first_stretch, stretch_counts), np.repeat(spans.owner, stretch_counts)
    order = np.argsort(owner, kind="stable")
    stretch, ptr = stretch[order], pointers(owner[order], collective.blocks)

    def repeat_rows(block: Longs) -> tuple[Longs, Longs]:
        """Repeat rows for the stretches of their blocks; return the stretch and the old row of each new row."""
        count = ptr[block + 1] - ptr[block]
        if int(count.sum()) > MOST_PAIRS:
            raise Unsupported(f"{name}: {int(count.sum())} pairs of stretches and ranks are too many; compose fewer")
        return stretch[concat_ranges(ptr[block], count)], np.repeat(np.arange(len(block)), count)

    pre_stretch, row = repeat_rows(relation.pre_block.astype(np.int64))
    pre = RelationRows(pre_stretch, relation.pre_rank[row].astype(np.int64), relation.pre_id[row].astype(np.int64))
    # Composition takes sets, not multisets: one holder per contribution, each wanted at most once.
    if len(distinct(pair_keys(relation.pre_block, relation.pre_id))) < len(relation.pre_id) or any(
        len(set(want)) < len(want) for want in relation.wants
    ):
        raise Unsupported(f"{name}: a contribution that several ranks have, or that counts twice, is not composed")
    # A distinct (block, want) is a set; want -1 (all contributions of the block) is coded as 0.
    sets, number = unique_inverse(
        relation.post_block.astype(np.int64) * (len(relation.wants) + 1) + relation.post_want + 1, bound=SAFE_INT64
    )
    pre_ptr = pointers(relation.pre_block, collective.blocks)
    ids = []
    for code in sets.tolist():
        block, want = divmod(code, len(relation.wants) + 1)
        block_ids = relation.pre_id[pre_ptr[block] : pre_ptr[block + 1]].tolist()
        ids.append(tuple(sorted(block_ids if want == 0 else relation.wants[want - 1])))
    post_stretch, row = repeat_rows(relation.post_block.astype(np.int64))
    post = RelationRows(post_stretch, relation.post_rank[row].astype(np.int64), number[row])
    return RelationStretches(edges, _sort_rows(pre), _sort_rows(post), tuple(ids), name)


def _sort_rows(rows: RelationRows) -> RelationRows:
    """Sort rows by their columns, the first column first."""
    order = np.lexsort(rows[::-1])
    return RelationRows(*(column[order] for column in rows))


def relation_after(first: RelationStretches, second: RelationStretches, used: Longs) -> RelationStretches:
    """Return the relation of `second` run after `first`; ranks not in `used` keep the outputs of `first`.

    A loop over sets of contributions, otherwise O(n log n).
    """
    stretch, rank, _ = second.pre
    # Stage 1: join second.pre with first.post on (stretch, rank). Every input of the second must be an output of the
    # first.
    output_keys, input_keys = pair_keys(first.post.stretch, first.post.rank), pair_keys(stretch, rank)
    output = np.searchsorted(output_keys, input_keys)  # per input of the second: the first's output
    is_output = np.zeros(len(stretch), np.bool_)
    inside = output < len(output_keys)
    is_output[inside] = output_keys[output[inside]] == input_keys[inside]
    if not is_output.all():
        missing = int(np.flatnonzero(~is_output)[0])
        raise Invalid(
            f"compose: {second.name} takes {second.stretch_text(int(stretch[missing]))} at rank {int(rank[missing])}, "
            f"where {first.name} does not leave it ({_holders_text(first, int(stretch[missing]))}); end the one where "
            "the other begins, or merge with more groups before composing"
        )
    # Stage 2: translate the sets of the second into unions of sets of the first.
    held_set = first.post.content[output]  # per input of the second: the set of the first that it holds
    begin = pointers(stretch, len(second.edges) - 1)
    sets: dict[tuple[int, ...], int] = {}
    kept_set = np.array([sets.setdefault(ids, len(sets)) for ids in first.ids], np.int64)
    # the distinct (stretch, set) pairs among the outputs of the second, as numbers
    keys, number = unique_inverse(second.post.stretch * len(second.ids) + second.post.content, bound=SAFE_INT64)
    joined_set = np.zeros(len(keys), np.int64)  # per key the number of its set of ids of the first
    for index, key in enumerate(keys.tolist()):
        stretch_number, want = divmod(key, len(second.ids))
        ids = second.pre.content[begin[stretch_number] : begin[stretch_number + 1]].tolist()
        first_set_of_id = dict(
            zip(ids, held_set[begin[stretch_number] : begin[stretch_number + 1]].tolist(), strict=True)
        )
        # A contribution that would be added twice makes the sum wrong: refuse it by name.
        union = sorted(i for id_ in second.ids[want] for i in first.ids[first_set_of_id[id_]])
        repeated = next((a for a, b in pairwise(union) if a == b), None)
        if repeated is not None:
            raise Invalid(
                f"compose: {second.name} would add the contribution {repeated} twice to "
                f"{second.stretch_text(stretch_number)}: more than one of those that it combines has it after "
                f"{first.name}; compose it with what leaves each "
                "of them a sum of its own, or use a collective that copies"
            )
        joined_set[index] = sets.setdefault(tuple(union), len(sets))
    # Stage 3: ranks that the second schedule does not touch keep their results.
    is_kept = ~np.isin(first.post.rank, used)
    post = RelationRows(
        np.concatenate([first.post.stretch[is_kept], second.post.stretch]),
        np.concatenate([first.post.rank[is_kept], second.post.rank]),
        np.concatenate([kept_set[first.post.content[is_kept]], joined_set[number]]),
    )
    return RelationStretches(first.edges, first.pre, _sort_rows(post), tuple(sets), f"{first.name}, {second.name}")


def _holders_text(first: RelationStretches, stretch: int) -> str:
    """Describe the ranks that have a stretch after the first schedule."""
    ranks = first.post.rank[first.post.stretch == stretch].tolist()
    listed = list_first(ranks)
    holders = {0: "no rank", 1: f"rank {listed}"}.get(len(ranks), f"ranks {listed}")
    return f"it leaves that at {holders}"


def join_relations(stretches: Sequence[RelationStretches]) -> RelationStretches:
    """Join relations that hold at the same time, among different ranks or for different stretches."""
    shift = np.cumsum([0, *(len(relation.ids) for relation in stretches)])
    pre = RelationRows(
        *(np.concatenate(column) for column in zip(*(relation.pre for relation in stretches), strict=True))
    )
    # Sets are numbered through all relations.
    shifted = [relation.post._replace(content=relation.post.content + shift[n]) for n, relation in enumerate(stretches)]
    post = RelationRows(*(np.concatenate(column) for column in zip(*shifted, strict=True)))
    ids = tuple(ids for relation in stretches for ids in relation.ids)
    name = " beside ".join(relation.name for relation in stretches[:3]) + (" and more" if len(stretches) > 3 else "")
    return RelationStretches(stretches[0].edges, _sort_rows(pre), _sort_rows(post), ids, name)


def name_collective(stretches: RelationStretches, ranks: int) -> tuple[Collective, Spans]:
    """Return the collective of a relation, and the spans of each of its blocks.

    Reductions are recognised only if every contribution's id is the rank that has it.
    """
    length = np.diff(stretches.edges)
    members = np.union1d(distinct(stretches.pre.rank), distinct(stretches.post.rank))
    named_kind = _recognize_kind(stretches, members)
    if named_kind is None:
        relation = _custom_relation(stretches)
        collective = Collective("custom", ranks, tuple(members.tolist()), weights=length, custom=relation)
        return collective, Spans.side_by_side(length)
    kind, roots, block, blocks = named_kind
    weights = np.bincount(block, length, blocks).astype(np.int64)
    collective = Collective(kind, ranks, tuple(members.tolist()), tuple(roots), weights)
    order = np.argsort(block, kind="stable")
    return collective, Spans.of(block[order], stretches.edges[:-1][order], stretches.edges[1:][order], blocks)


def _recognize_kind(stretches: RelationStretches, members: Longs) -> tuple[str, list[int], Longs, int] | None:
    """Return kind, roots, the block of every stretch and the number of blocks; None if it is no named collective."""
    pre, post, count = stretches.pre, stretches.post, len(stretches.edges) - 1
    pre_ptr, post_ptr = pointers(pre.stretch, count), pointers(post.stretch, count)
    sources, targets = np.diff(pre_ptr), np.diff(post_ptr)
    size = np.array([len(ids) for ids in stretches.ids])
    wants_all = bool((size[post.content] == sources[post.stretch]).all())
    named_by_rank = np.array_equal(pre.rank, pre.content)
    m = len(members)
    if not wants_all or not len(sources) or not sources.all() or not targets.all() or m < 2:
        return None
    source, target = pre.rank[pre_ptr[:-1]], post.rank[post_ptr[:-1]]  # the first one per stretch
    source_place, target_place = np.searchsorted(members, source), np.searchsorted(members, target)
    # Classify by the number of sources and targets per stretch: m is "every member", 1 is "one member".
    one_source, one_target = bool((sources == 1).all()), bool((targets == 1).all())
    named_kind: tuple[str, list[int], Longs, int] | None = None
    if (sources == m).all() and named_by_rank and (targets == m).all():
        named_kind = "allreduce", [], np.zeros(len(sources), np.int64), 1
    elif (sources == m).all() and named_by_rank and one_target:
        named_kind = _block_per_root("reducescatter", "reduce", members, target, target_place)
    elif one_source and (targets == m).all():
        named_kind = _block_per_root("allgather", "broadcast", members, source, source_place)
    elif one_source and one_target and len(distinct(source)) == 1:
        named_kind = "scatter", [int(source[0])], target_place, m
    elif one_source and one_target and len(distinct(target)) == 1:
        named_kind = "gather", [int(target[0])], source_place, m
    elif one_source and one_target:
        named_kind = "alltoall", [], target_place * m + source_place, m * m
    return named_kind


def _block_per_root(
    unrooted: str, rooted: str, members: Longs, root: Longs, place: Longs
) -> tuple[str, list[int], Longs, int]:
    """Return the unrooted kind if every member is a root (a block per member), else the rooted kind (one per root).

    `root`: per stretch its root. `place`: per stretch the position of its root among the members.
    """
    roots = distinct(root)
    if len(roots) == len(members):
        return unrooted, [], place, len(members)
    return rooted, roots.tolist(), np.searchsorted(roots, root), len(roots)


def _custom_relation(stretches: RelationStretches) -> Relation:
    """Return the custom relation; sets that are all contributions of their stretch are not listed."""
    begin = pointers(stretches.pre.stretch, len(stretches.edges) - 1)
    size = np.array([len(ids) for ids in stretches.ids])
    wants_all = size[stretches.post.content] == np.diff(begin)[stretches.post.stretch]
    listed_sets, number = unique_inverse(stretches.post.content[~wants_all], bound=max(len(stretches.ids), 1))
    want = np.full(len(wants_all), -1, np.int64)
    want[~wants_all] = number
    wants = tuple(stretches.ids[i] for i in listed_sets.tolist())
    columns = (*stretches.pre, stretches.post.stretch, stretches.post.rank, want)
    pre_block, pre_rank, pre_id, post_block, post_rank, post_want = (column.astype(np.int32) for column in columns)
    return Relation(pre_block, pre_rank, pre_id, post_block, post_rank, post_want, wants)


def find_overlap(groups: Sequence[Longs]) -> tuple[int, int, int] | None:
    """Return a value that two groups share, and these two groups; None if there is none.

    >>> find_overlap([np.array([0, 2]), np.array([1]), np.array([3, 2])])  # 2 is in group 0 and in group 2
    (2, 0, 2)
    """
    values = np.concatenate(groups)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    # Equal values become neighbours, so a repeat is a row that does not start a new value.
    order = np.lexsort((owner, values))
    repeats = np.flatnonzero(~run_starts(values[order]))
    if not len(repeats):
        return None
    i = int(repeats[0])
    return int(values[order][i]), int(owner[order][i - 1]), int(owner[order][i])
