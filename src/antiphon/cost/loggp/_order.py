"""The loops over millions of messages that prepare a LogGP simulation."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Ints, Longs
from antiphon.cost.loggp.compiled import compiled


@compiled
def classes(weight: Longs, combined: Longs, level: Ints, most: int) -> tuple[Ints, Longs, int]:
    """Per message the number of its (weight, combined, level), and these; their count, which is above `most` where they
    are too many to be looked for one by one. One weight stands for all."""
    klass, kinds = np.empty(len(level), np.int32), np.empty((most, 3), np.int64)
    count, last = 0, 0
    for m in range(len(level)):
        a = weight[m] if len(weight) > 1 else weight[0]
        b = combined[m] if len(combined) > 1 else combined[0]
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
def chained(done: Ints, left: Ints, before: Ints) -> tuple[Ints, Ints]:
    """How many each condition waits for: those that give to it, and the one before it; and the one after it, -1."""
    out, after = np.zeros(len(before), np.int32), np.full(len(before), -1, np.int32)
    for i in range(len(done)):
        out[done[i]] += 1
    for i in range(len(left)):
        out[left[i]] += 1
    for c in range(len(before)):
        if before[c] >= 0:
            out[c] += 1
            after[before[c]] = c
    return out, after


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
def at_once(step: Ints, src: Ints, dst: Ints, node: Longs, most: int) -> tuple[int, int]:
    """The most messages that some rank can send, or receive, at once, and the most between some node and others, where
    ranks go on when all of a round is received: of a rank's messages only those of one round are under way then, and to
    a receiver one from each of its sources. Above `most` where it is more than that, or not known. Messages by step.
    O(messages * most).
    """
    ranks, nodes, unknown = len(node), int(node.max()) + 1, most + 1
    sources, known = np.empty((ranks, most), np.int32), np.zeros(ranks, np.int32)
    when, sends, leaves = np.full(ranks, -1, np.int32), np.zeros(ranks, np.int32), np.zeros(ranks, np.int32)
    rank_most, leaves_most, comes = 0, np.zeros(ranks, np.int32), np.zeros(nodes + 1, np.int32)
    for m in range(len(src)):
        a, b = src[m], dst[m]
        crosses = node[a] != node[b]
        if when[a] != step[m]:
            when[a], sends[a], leaves[a] = step[m], 0, 0
        sends[a] += 1
        leaves[a] += crosses
        leaves_most[a] = max(leaves_most[a], leaves[a])
        i = 0
        while i < known[b] and sources[b, i] != a:
            i += 1
        again = m > 0 and src[m - 1] == a and dst[m - 1] == b and step[m - 1] == step[m]
        if i == most or sends[a] > most or again:
            return unknown, unknown
        if i == known[b]:
            sources[b, i] = a
            known[b] += 1
            comes[node[b]] += crosses  # of ranks in no node, which share nothing, the last
        rank_most = max(rank_most, sends[a], known[b])
    node_most, goes = 0, np.zeros(nodes + 1, np.int32)
    for a in range(ranks):
        goes[node[a]] += leaves_most[a]
    for n in range(nodes):
        node_most = max(node_most, goes[n], comes[n])
    return rank_most, node_most


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
