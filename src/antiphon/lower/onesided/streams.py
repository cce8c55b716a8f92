"""What a program does in parts that never touch each other: they may go on side by side without a word between them."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs, dense, distinct, pointers
from antiphon.core.program import Program
from antiphon.core.program.kinds import JOIN
from antiphon.lower.onesided.switched import Switched


def streams(program: Program, most: int, known: Switched) -> Longs:
    """Of each operation its stream, of at most `most`. What waits for each other, a send and its receive, and what one
    switch does are in the same; the rest is dealt out so that every rank has about as much to do in each.

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]))
    >>> program.rank.tolist(), program.kind.tolist(), program.peer.tolist()
    ([0, 0, 0, 1, 1, 1], [1, 0, 2, 1, 0, 2], [1, 1, 0, 0, 0, 1])
    >>> streams(program, 2, Switched.none(program)).tolist()
    [0, 0, 1, 0, 0, 1]
    """
    part = _parts(program, known)
    parts = int(part.max(initial=-1)) + 1
    if parts <= most:
        return part
    return _dealt(program, part, parts, most)[part]


def _parts(program: Program, known: Switched) -> Longs:
    """Connected components, numbered by their first operation."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    helped = np.flatnonzero(known.part >= 0)
    asked = np.array([*known.asked, 0], np.int64)[known.part[helped]]
    src = np.concatenate([program.wait_op, program.pairs.send, helped])
    dst = np.concatenate([program.wait, program.pairs.receive, asked])
    shape = (program.operations, program.operations)
    joined = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=shape)
    label = connected_components(joined, directed=False)[1].astype(np.int64)
    _, first = np.unique(label, return_index=True)
    number = np.empty(len(first), np.int64)
    order = np.lexsort((first, program.when[first]))
    number[order] = np.arange(len(first))
    return number[label]


def _dealt(program: Program, part: Longs, parts: int, most: int) -> Longs:
    """Of each part its stream: the one where its busiest rank has the least to do. Parts between two ranks go by pairs:
    a channel serves both ways."""
    rank, work = program.rank, np.where(program.kind == JOIN, 0, 1)
    keys = distinct(part * program.ranks + rank)
    of, who = keys // program.ranks, keys % program.ranks
    ptr = pointers(of, parts)
    pair = np.arange(parts) + program.ranks**2
    two = np.flatnonzero(np.diff(ptr) == 2)
    pair[two] = who[ptr[two]] * program.ranks + who[ptr[two] + 1]
    group = dense(pair, int(pair.max()) + 1)[1]
    load_keys, at = np.unique(group[part] * program.ranks + rank, return_inverse=True)
    load = np.bincount(at, weights=work).astype(np.int64)
    groups, ranks = load_keys // program.ranks, load_keys % program.ranks
    begin = pointers(groups, int(group.max()) + 1)
    loads = np.zeros((most, program.ranks), np.int64)
    stream = np.empty(len(begin) - 1, np.int64)
    first = np.unique(group, return_index=True)[1]
    for number in np.argsort(first, kind="stable").tolist():
        rows = slice(int(begin[number]), int(begin[number + 1]))
        here = ranks[rows]
        busiest = loads[:, here].max(axis=1)
        chosen = int(np.argmin(busiest))
        loads[chosen, here] += load[rows]
        stream[number] = chosen
    return stream[group]
