"""What schedules make together, told by relations: who must have what in between, and what comes of it.

All data lie on one line, cut wherever any of them has a border between blocks. On every stretch a rank holds a multiset
of contributions or nothing dependable; what the first leaves is what the second takes. Where they do not meet, that is
said: which stretch, which rank, and what would mend it. What comes of it is named as the collective that it is, if it
has a name, else it is a custom relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from antiphon.core.collective import Collective, Relation
from antiphon.core.columns import Longs, dense, distinct, pointers, ranges, starts
from antiphon.core.transform.staging import Spans
from antiphon.errors import Invalid, Unsupported

MOST_PAIRS = 2**25  # of a stretch and a rank


@dataclass(frozen=True, eq=False)
class Stretches:
    """A relation on stretches of the line: pre rows (stretch, rank, id) and post rows (stretch, rank, set), sorted;
    set s has the ids ids[s], each once. `edges`: where the stretches begin, and the end of the last."""

    edges: Longs
    pre: tuple[Longs, Longs, Longs]
    post: tuple[Longs, Longs, Longs]
    ids: tuple[tuple[int, ...], ...]
    name: str

    def part(self, stretch: int) -> str:
        """A stretch as people say it."""
        whole = int(self.edges[-1])
        low, high = (Fraction(int(self.edges[stretch + i]), whole) for i in (0, 1))
        return "all of the data" if high - low == 1 else f"the part from {low} to {high} of the data"


def stretches_of(collective: Collective, where: Spans, edges: Longs, name: str) -> Stretches:
    """What a collective says, whose block b is owner b of `where`, on the stretches between edges."""
    relation = collective.relation
    first = np.searchsorted(edges, where.begin)
    many = np.searchsorted(edges, where.end) - first
    stretch, owner = ranges(first, many), np.repeat(where.owner, many)  # of each block's stretches
    order = np.argsort(owner, kind="stable")
    stretch, ptr = stretch[order], pointers(owner[order], collective.blocks)

    def spread(block: Longs) -> tuple[Longs, Longs]:
        count = ptr[block + 1] - ptr[block]
        if int(count.sum()) > MOST_PAIRS:
            raise Unsupported(f"{name}: {int(count.sum())} pairs of stretches and ranks are too many; compose fewer")
        return stretch[ranges(ptr[block], count)], np.repeat(np.arange(len(block)), count)

    at, row = spread(relation.pre_block.astype(np.int64))
    pre = at, relation.pre_rank[row].astype(np.int64), relation.pre_id[row].astype(np.int64)
    if len(distinct((relation.pre_block.astype(np.int64) << 32) | relation.pre_id)) < len(relation.pre_id) or any(
        len(set(want)) < len(want) for want in relation.wants
    ):
        raise Unsupported(f"{name}: a contribution that several ranks have, or that counts twice, is not composed")
    sets, number = dense(
        relation.post_block.astype(np.int64) * (len(relation.wants) + 1) + relation.post_want + 1, 2**62
    )
    own = pointers(relation.pre_block, collective.blocks)
    ids = []
    for code in sets.tolist():
        block, want = divmod(code, len(relation.wants) + 1)
        all_of_it = relation.pre_id[own[block] : own[block + 1]].tolist()
        ids.append(tuple(sorted(all_of_it if want == 0 else relation.wants[want - 1])))
    at, row = spread(relation.post_block.astype(np.int64))
    post = at, relation.post_rank[row].astype(np.int64), number[row]
    return Stretches(edges, _sorted(pre), _sorted(post), tuple(ids), name)


def _sorted(rows: tuple[Longs, Longs, Longs]) -> tuple[Longs, Longs, Longs]:
    order = np.lexsort(rows[::-1])
    return rows[0][order], rows[1][order], rows[2][order]


def after(first: Stretches, second: Stretches, used: Longs) -> Stretches:
    """What comes of the second after the first. The ranks that it does not use keep what the first left. A loop over
    sets of contributions, otherwise O(n log n)."""
    stretch, rank, _ = second.pre
    left = first.post[0] * 2**32 + first.post[1]
    at = np.searchsorted(left, stretch * 2**32 + rank)
    met = np.zeros(len(stretch), np.bool_)
    inside = at < len(left)
    met[inside] = left[at[inside]] == (stretch * 2**32 + rank)[inside]
    if not met.all():
        missing = int(np.flatnonzero(~met)[0])
        raise Invalid(
            f"compose: {second.name} takes {second.part(int(stretch[missing]))} at rank {int(rank[missing])}, where "
            f"{first.name} does not leave it ({_leaves(first, int(stretch[missing]))}); end the one where the other "
            "begins, or merge with more groups before composing"
        )
    value = first.post[2][at]  # of every contribution to the second the set that it is
    begin = pointers(stretch, len(second.edges) - 1)
    sets: dict[tuple[int, ...], int] = {}
    same = np.array([sets.setdefault(ids, len(sets)) for ids in first.ids], np.int64)
    keys, number = dense(second.post[0] * len(second.ids) + second.post[2], 2**62)
    for place, key in enumerate(keys.tolist()):
        here, want = divmod(key, len(second.ids))
        names = second.pre[2][begin[here] : begin[here + 1]].tolist()
        held = dict(zip(names, value[begin[here] : begin[here + 1]].tolist(), strict=True))
        union = sorted(i for name in second.ids[want] for i in first.ids[held[name]])
        twice = next((a for a, b in pairwise(union) if a == b), None)
        if twice is not None:
            raise Invalid(
                f"compose: {second.name} would add the contribution {twice} twice to {second.part(here)}: more than "
                f"one of those that it combines has it after {first.name}; compose it with what leaves each of them a "
                "sum of its own, or use a collective that copies"
            )
        keys[place] = sets.setdefault(tuple(union), len(sets))
    stay = ~np.isin(first.post[1], used)
    post = (
        np.concatenate([first.post[0][stay], second.post[0]]), np.concatenate([first.post[1][stay], second.post[1]]),
        np.concatenate([same[first.post[2][stay]], keys[number]]),
    )  # fmt: skip
    return Stretches(first.edges, first.pre, _sorted(post), tuple(sets), f"{first.name}, {second.name}")


def _leaves(first: Stretches, stretch: int) -> str:
    ranks = first.post[1][first.post[0] == stretch].tolist()
    some = ", ".join(map(str, ranks[:8]))
    where = {0: "no rank", 1: f"rank {some}"}.get(len(ranks), f"ranks {some}")
    return f"it leaves that at {where}{', ...' if len(ranks) > 8 else ''}"


def beside(some: Sequence[Stretches]) -> Stretches:
    """All at once, among different ranks or for different stretches."""
    shift = np.cumsum([0, *(len(one.ids) for one in some)])
    pre = [np.concatenate([one.pre[i] for one in some]) for i in range(3)]
    post = [np.concatenate([one.post[i] + (shift[n] if i == 2 else 0) for n, one in enumerate(some)]) for i in range(3)]
    ids = tuple(ids for one in some for ids in one.ids)
    name = " beside ".join(one.name for one in some[:3]) + (" and more" if len(some) > 3 else "")
    return Stretches(some[0].edges, _sorted((pre[0], pre[1], pre[2])), _sorted((post[0], post[1], post[2])), ids, name)


def named(one: Stretches, ranks: int) -> tuple[Collective, Spans]:
    """The collective that it is, and where each of its blocks lies. Contributions are called by the ranks that have
    them, where each has its own."""
    length = np.diff(one.edges)
    count = len(length)
    at = pointers(one.pre[0], count), pointers(one.post[0], count)
    members = np.union1d(distinct(one.pre[1]), distinct(one.post[1]))
    known = _known(one, at, members)
    if known is None:
        relation = _relation(one)
        collective = Collective("custom", ranks, tuple(members.tolist()), weights=length, custom=relation)
        return collective, Spans.side_by_side(length)
    kind, roots, block, blocks = known
    weights = np.bincount(block, length, blocks).astype(np.int64)
    collective = Collective(kind, ranks, tuple(members.tolist()), tuple(roots), weights)
    order = np.argsort(block, kind="stable")
    return collective, Spans.of(block[order], one.edges[:-1][order], one.edges[1:][order], blocks)


def _known(one: Stretches, at: tuple[Longs, Longs], members: Longs) -> tuple[str, list[int], Longs, int] | None:
    """Kind, roots, of every stretch its block, and how many blocks there are; None where it is none with a name."""
    sources, targets = np.diff(at[0]), np.diff(at[1])
    size = np.array([len(ids) for ids in one.ids])
    full = bool((size[one.post[2]] == sources[one.post[0]]).all())
    named_by_rank = np.array_equal(one.pre[1], one.pre[2])
    m = len(members)
    if not full or not len(sources) or not sources.all() or not targets.all() or m < 2:
        return None
    source, target = one.pre[1][at[0][:-1]], one.post[1][at[1][:-1]]  # of every stretch the first
    place = np.searchsorted(members, source), np.searchsorted(members, target)
    each, to_each = bool((sources == 1).all()), bool((targets == 1).all())
    found: tuple[str, list[int], Longs, int] | None = None
    if (sources == m).all() and named_by_rank and (targets == m).all():
        found = "allreduce", [], np.zeros(len(sources), np.int64), 1
    elif (sources == m).all() and named_by_rank and to_each:
        found = _of_all("reducescatter", "reduce", members, target, place[1])
    elif each and (targets == m).all():
        found = _of_all("allgather", "broadcast", members, source, place[0])
    elif each and to_each and len(distinct(source)) == 1:
        found = "scatter", [int(source[0])], place[1], m
    elif each and to_each and len(distinct(target)) == 1:
        found = "gather", [int(target[0])], place[0], m
    elif each and to_each:
        found = "alltoall", [], place[1] * m + place[0], m * m
    return found


def _of_all(every: str, some: str, members: Longs, root: Longs, place: Longs) -> tuple[str, list[int], Longs, int]:
    """Of each member a block, or of each of some roots."""
    roots = distinct(root)
    if len(roots) == len(members):
        return every, [], place, len(members)
    return some, roots.tolist(), np.searchsorted(roots, root), len(roots)


def _relation(one: Stretches) -> Relation:
    """Sets that are all contributions of their stretch need no name."""
    begin = pointers(one.pre[0], len(one.edges) - 1)
    size = np.array([len(ids) for ids in one.ids])
    full = size[one.post[2]] == np.diff(begin)[one.post[0]]
    used, number = dense(one.post[2][~full], max(len(one.ids), 1))
    want = np.full(len(full), -1, np.int64)
    want[~full] = number
    pre, post = [column.astype(np.int32) for column in one.pre], [column.astype(np.int32) for column in one.post[:2]]
    wants = tuple(one.ids[i] for i in used.tolist())
    return Relation(pre[0], pre[1], pre[2], post[0], post[1], want.astype(np.int32), wants)


def overlap(groups: Sequence[Longs]) -> tuple[int, int, int] | None:
    """A value that two of these have, and which two; None where there is none.

    >>> overlap([np.array([0, 2]), np.array([1]), np.array([3, 2])])  # 2 is in group 0 and in group 2
    (2, 0, 2)
    """
    values = np.concatenate(groups)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.lexsort((owner, values))
    again = np.flatnonzero(~starts(values[order]))
    if not len(again):
        return None
    i = int(again[0])
    return int(values[order][i]), int(owner[order][i - 1]), int(owner[order][i])
