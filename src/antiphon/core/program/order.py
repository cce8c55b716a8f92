"""Whether operations of a rank wait for each other, directly or through others."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Bools, Longs, distinct, ranges, starts
from antiphon.core.program.kinds import Program
from antiphon.errors import Unsupported

MOST_STEPS = 2**24  # waits that are followed, for all pairs together
MOST_LEVELS = 1000  # waits from one to the other


def unordered(program: Program, earlier: Longs, later: Longs, piecewise: Bools) -> Bools:
    """For every pair whether the later one may start before the earlier one is done.

    `piecewise`: it is enough that piece i waits for piece i. Waits count through other operations; where one has other
    pieces than the next, or none, all waits for all. One look-up for direct waits; the others are followed side by
    side. Unsupported where that takes too long: lowering makes ways of two waits, seldom three.

    Operation 1 waits for 0, 2 for 1; so 2 comes after 0, but nothing keeps 3 from overtaking 2:

    >>> from types import SimpleNamespace as Namespace
    >>> waits = {"wait_ptr": np.array([0, 0, 1, 2, 2]), "wait": np.array([0, 1]), "wait_op": np.array([1, 2])}
    >>> program = Namespace(operations=4, pieces=np.ones(4, np.int64), **waits)
    >>> unordered(program, np.array([0, 0, 2]), np.array([1, 2, 3]), np.zeros(3, bool))
    array([False, False,  True])
    """
    pieces, count = program.pieces, max(program.operations, 1)
    edges = np.sort(program.wait_op * count + program.wait)
    open_ = np.flatnonzero(~_direct(edges, later * count + earlier))
    coarse = pieces[earlier] > 1
    coarse &= (pieces[earlier] == pieces[later]) & ~piecewise  # a direct wait would be of pieces only
    todo = np.union1d(open_, np.flatnonzero(coarse))
    missing = np.zeros(len(earlier), bool)
    missing[todo] = True
    pair, at = todo, later[todo]
    whole = np.zeros(len(todo), bool)
    first, many = program.wait_ptr[:-1], np.diff(program.wait_ptr)
    steps = levels = 0
    while len(pair):
        each = many[at]
        steps, levels = steps + int(each.sum()), levels + 1
        if steps > MOST_STEPS or levels > MOST_LEVELS:
            raise Unsupported("it has too many waits that lead from one to the next; not proven")
        to = program.wait[ranges(first[at], each)]
        before, pair, whole = np.repeat(at, each), np.repeat(pair, each), np.repeat(whole, each)
        whole |= (pieces[to] != pieces[before]) | (pieces[to] == 1)
        missing[pair[(to == earlier[pair]) & (whole | piecewise[pair])]] = False
        go = (to > earlier[pair]) & missing[pair]
        key = distinct((pair[go] * count + to[go]) * 2 + whole[go])
        pair, at, whole = key // 2 // count, key // 2 % count, key % 2 == 1
    return missing


def _direct(among: Longs, wanted: Longs) -> Bools:
    """Which of these are there; `among` ascends. O(wanted log among).

    >>> _direct(np.array([3, 5, 9]), np.array([5, 4, 9]))
    array([ True, False,  True])
    """
    if not len(among):
        return np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return np.asarray(among[at] == wanted)


def pairs_of(earlier: Longs, later: Longs, piecewise: Bools, operations: int) -> tuple[Longs, Longs, Bools]:
    """The distinct pairs of two operations; where one of equal pairs asks for more, that. One sort.

    >>> pairs_of(np.array([0, 2, 0]), np.array([1, 3, 1]), np.array([True, True, False]), 4)
    (array([0, 2]), array([1, 3]), array([False,  True]))
    """
    count = max(operations, 1)
    key = np.sort((later * count + earlier) * 2 + piecewise)
    key = key[starts(key // 2)]
    return key // 2 % count, key // 2 // count, key % 2 == 1
