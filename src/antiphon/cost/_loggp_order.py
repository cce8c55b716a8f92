"""Rows to messages, and rounds: the loops over millions of rows that prepare a LogGP simulation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Ints, Longs
from antiphon.cost._compiled import compiled


@compiled
def runs(step: Ints, src: Ints, dst: Ints, route: Ints) -> Ints:
    """Where a run of rows with equal (step, src, dst, route) begins, and how many rows there are. `route` may be empty.

    Planners mostly lay the rows of a message side by side: what follows need not look at each of them.
    """
    rows, count, routed = len(step), 0, len(route) > 0
    out = np.empty(rows + 1, np.int32)
    for i in range(rows):
        if (
            i == 0 or src[i] != src[i - 1] or dst[i] != dst[i - 1] or step[i] != step[i - 1]
            or (routed and route[i] != route[i - 1])
        ):  # fmt: skip
            out[count] = i
            count += 1
    out[count] = rows
    return out[: count + 1].copy()


@compiled
def ascends(step: Ints) -> bool:
    """Whether rows come by step already."""
    for i in range(1, len(step)):  # noqa: SIM110 (compiled: no generators)
        if step[i] < step[i - 1]:
            return False
    return True


@compiled
def counted(key: Ints, bound: int, order: Ints) -> Ints:
    """The stable order by key of what `order` lists: a counting sort, O(rows + bound)."""
    at = np.zeros(bound + 1, np.int64)
    for i in range(len(key)):
        at[key[i] + 1] += 1
    for i in range(bound):
        at[i + 1] += at[i]
    out = np.empty(len(order), np.int32)
    for i in range(len(order)):
        row = order[i]
        out[at[key[row]]] = row
        at[key[row]] += 1
    return out


@compiled
def grouped(step: Ints, src: Ints, way: Ints, ways: int, ranks: int, order: Ints) -> tuple[Ints, int]:
    """Per run its message: runs with equal (step, src, way), numbered as they come in `order`, which is by step.

    `way`: a number for (dst, route) below `ways`. An empty `order` stands for the order they are in. Needs memory for
    the pairs of ranks that ever meet.
    """
    of_run = np.empty(len(step), np.int32)
    seen = np.zeros(ranks * ways, np.int32)  # the last step of each, less one
    message = np.empty(ranks * ways, np.int32)
    count, plain = 0, len(order) == 0
    for i in range(len(step)):
        run = i if plain else order[i]
        pair = src[run] * ways + way[run]
        if seen[pair] != step[run] + 1:
            seen[pair] = step[run] + 1
            message[pair] = count
            count += 1
        of_run[run] = message[pair]
    return of_run, count


@compiled
def classes(rows: Ints, reduces: Ints, level: Ints, most: int) -> tuple[Ints, Longs, int]:
    """Per message the number of its (rows, reduces, level), and these; their count, which is above `most` where they
    are too many to be looked for one by one. `rows` empty: 1 each; `reduces` empty: 0 each."""
    klass, kinds = np.empty(len(level), np.int32), np.empty((most, 3), np.int64)
    count, last = 0, 0
    for m in range(len(level)):
        a = rows[m] if len(rows) else 1
        b = reduces[m] if len(reduces) else 0
        c = level[m]
        if count == 0 or kinds[last, 0] != a or kinds[last, 1] != b or kinds[last, 2] != c:
            last = 0
            while last < count and (kinds[last, 0] != a or kinds[last, 1] != b or kinds[last, 2] != c):
                last += 1
            if last == count:
                if count == most:
                    return klass, kinds, most + 1
                kinds[last, 0], kinds[last, 1], kinds[last, 2] = a, b, c
                count += 1
        klass[m] = last
    return klass, kinds, count


@compiled
def many_ways(src: Ints, dst: Ints, route: Ints, ranks: int) -> bool:
    """Whether two ranks are joined by more than one route: else the receiver tells it."""
    known = np.zeros(ranks * ranks, np.int32)  # less two; memory is taken for pairs that meet
    for i in range(len(route)):
        pair = src[i] * ranks + dst[i]
        if known[pair] == 0:
            known[pair] = route[i] + 2
        elif known[pair] != route[i] + 2:
            return True
    return False


@compiled
def counts(of_run: Ints, first: Ints, op: NDArray[np.uint8], count: int) -> tuple[Ints, Ints]:
    """How many rows every message has, and how many of them combine (`op` empty: none)."""
    rows, reduces = np.zeros(count, np.int32), np.zeros(count, np.int32)
    for run in range(len(of_run)):
        m = of_run[run]
        rows[m] += first[run + 1] - first[run]
        if len(op):
            for i in range(first[run], first[run + 1]):
                reduces[m] += op[i]
    return rows, reduces


@compiled
def counted_waits(gives: Ints, before: Ints) -> Ints:
    """How many each condition waits for: those that give to it, and the one before it."""
    out = np.zeros(len(before), np.int32)
    for i in range(len(gives)):
        out[gives[i]] += 1
    for c in range(len(before)):
        if before[c] >= 0:
            out[c] += 1
    return out


@compiled
def rounds(
    step: Ints, src: Ints, dst: Ints, src_key: Ints, dst_key: Ints, keys: int
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """A round = what one key (a rank, or a rank on a level) sends and receives in one step. Messages by step.

    Per message the round its start waits for (-1: none) and the rounds of its two ends; per round the one before.
    """
    count = len(step)
    needs, gives = np.empty(count, np.int32), np.empty(2 * count, np.int32)
    before = np.empty(2 * count, np.int32)
    now, when = np.full(keys, -1, np.int32), np.full(keys, -1, np.int64)
    found = 0
    for m in range(count):
        for end in range(2):
            key = src_key[m] if end == 0 else dst_key[m]
            if when[key] != step[m]:
                before[found] = now[key]
                now[key], when[key] = found, step[m]
                found += 1
            gives[2 * m + end] = now[key]
        needs[m] = before[now[src_key[m]]]
    after = np.full(found, -1, np.int32)
    for n in range(found):
        if before[n] >= 0:
            after[before[n]] = n
    return needs, gives, before[:found], after, found


@compiled
def released(needs: Ints, count: int) -> tuple[Ints, Ints]:
    """CSR: the messages that wait for each condition, where each waits for one (-1: none)."""
    pointer = np.zeros(count + 1, np.int32)
    for m in range(len(needs)):
        if needs[m] >= 0:
            pointer[needs[m] + 1] += 1
    for n in range(count):
        pointer[n + 1] += pointer[n]
    at = pointer[:count].copy()
    out = np.empty(pointer[count], np.int32)
    for m in range(len(needs)):
        n = needs[m]
        if n >= 0:
            out[at[n]] = m
            at[n] += 1
    return pointer, out


@compiled
def levels(src: Ints, dst: Ints, group: Longs) -> Ints:
    """Per message the inmost level whose place both ends share (group[level, rank], -1: none)."""
    out = np.empty(len(src), np.int32)
    for m in range(len(src)):
        a, b = src[m], dst[m]
        level = 0
        while level < len(group) and (group[level, a] < 0 or group[level, a] != group[level, b]):
            level += 1
        out[m] = level
    return out
