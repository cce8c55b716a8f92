"""Runs of a code whose order is known: many instructions at a time, in columns.

What must come before what is the same in every run. So of the instructions for which nothing is missing a random share
is done at once, which stands for any order among them: no two of them touch a cell that one of them writes (`Order`
knows). What follows from them may come next.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs, pointers, ranges, starts
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.execute import Case, words
from antiphon.lower.machine.order import Order, listed

Words = NDArray[np.uint64]
MANY = 2**13  # instructions from which on columns are faster


@dataclass(frozen=True, eq=False)
class _Moves:
    """What the rows move. `slot`: where the value of each begins among those of all. `reads`, `writes`: first cells, by
    row; `source`: the row whose message it takes, or -1."""

    count: Longs
    slot: Longs
    reads: tuple[Longs, Longs]  # pointers, first cells
    writes: tuple[Longs, Longs]
    source: Longs

    @staticmethod
    def of(code: Code) -> _Moves:
        """Of all instructions, block by block.

        A put of two cells into way 0, then a copy of one; in the next block what takes that put:

        >>> from types import SimpleNamespace as Some
        >>> from antiphon.lower.machine.code import Instruction
        >>> put, copy = Instruction(0, "put", 2, read=(4,), push=0), Instruction(1, "copy", 1, read=(6,), write=(7,))
        >>> take = Instruction(0, "take", 2, write=(9,), pop=0)
        >>> moves = _Moves.of(Some(blocks=[Some(instructions=[put, copy]), Some(instructions=[take])]))
        >>> moves.count.tolist(), moves.slot.tolist(), moves.source.tolist()
        ([2, 1, 2], [0, 2, 3, 5], [-1, -1, 0])
        >>> [column.tolist() for column in moves.writes]
        [[0, 0, 1, 2], [7, 9]]
        """
        every = [one for block in code.blocks for one in block.instructions]
        pop, push = (np.array([getattr(one, name) for one in every], np.int64) for name in ("pop", "push"))
        takes, puts = (np.flatnonzero(way >= 0) for way in (pop, push))
        takes, puts = takes[np.argsort(pop[takes], kind="stable")], puts[np.argsort(push[puts], kind="stable")]
        source = np.full(len(every), -1, np.int64)
        many = min(len(takes), len(puts))  # the same, unless the code never ends
        source[takes[:many]] = puts[:many]  # the k-th put into a way is the k-th taken
        moves = [one.count if one.read or one.pop >= 0 else 0 for one in every]
        count = np.array(moves, np.int64)
        return _Moves(
            count, np.concatenate([[0], np.cumsum(count)]), listed([one.read for one in every]),
            listed([one.write for one in every]), source,
        )  # fmt: skip


class Waves:
    def __init__(self, order: Order) -> None:
        self.code, rows = order.code, len(order.flat.block)
        src, dst = _edges(order)
        by = np.argsort(src, kind="stable")
        self.ptr, self.after = pointers(src[by], rows), dst[by]
        self.before = np.bincount(dst, minlength=rows)
        self.moves = _Moves.of(order.code)
        self.order = np.zeros(0, np.int64)  # rows as they happened in the last run

    def right(self, seed: int) -> bool:
        """Whether a run in an order drawn by `seed` ends as it should."""
        random = Random(seed)
        case = Case.of(self.code, random)
        held, share = words(case.values), random.choice((1.0, 0.5, 0.25))
        cells = held[case.given]
        values = np.zeros((int(self.moves.slot[-1]), cells.shape[1]), np.uint64)
        draw = np.random.default_rng(seed)
        left, ready, done = self.before.copy(), np.flatnonzero(self.before == 0), list[Longs]()
        while len(ready):
            now = draw.random(len(ready)) < share
            if not now.any():
                now[int(draw.integers(len(ready)))] = True
            some = ready[now]
            if not self._move(some, cells, values):
                return False
            done.append(some)
            after = self.after[ranges(self.ptr[some], self.ptr[some + 1] - self.ptr[some])]
            np.subtract.at(left, after, 1)
            ready = np.concatenate([ready[~now], np.unique(after[left[after] == 0])])
        self.order = np.concatenate([self.order[:0], *done])
        return len(self.order) == len(left) and bool((cells[case.cells] == held[case.ends]).all())

    def _move(self, rows: Longs, cells: Words, values: Words) -> bool:
        """False where there is nothing to read, or a message is of another length."""
        moves = self.moves
        rows = rows[moves.count[rows] > 0]
        count, slot = moves.count[rows], moves.slot[rows]
        takes = moves.source[rows] >= 0
        source = moves.source[rows[takes]]
        if (moves.count[source] != count[takes]).any():
            return False
        values[ranges(slot[takes], count[takes])] = values[ranges(moves.slot[source], count[takes])]
        ptr, first = moves.reads
        number, end = ptr[rows], ptr[rows + 1]
        while (more := number < end).any():  # one operand of all rows after another
            found = cells[ranges(first[number[more]], count[more])]
            if not found[:, -1].all():
                return False
            values[ranges(slot[more], count[more])] += found
            number, end, slot, count = number[more] + 1, end[more], slot[more], count[more]
        ptr, first = moves.writes
        many = ptr[rows + 1] - ptr[rows]
        targets = first[ranges(ptr[rows], many)]
        length = np.repeat(moves.count[rows], many)
        cells[ranges(targets, length)] = values[ranges(np.repeat(moves.slot[rows], many), length)]
        return True


def _edges(order: Order) -> tuple[Longs, Longs]:
    """Those of the order, and from each row to the next of its block."""
    follows = np.flatnonzero(~starts(order.flat.block))
    return np.concatenate([follows - 1, order.src]), np.concatenate([follows, order.dst])


def ends(order: Order, more: list[tuple[int, int]]) -> bool:
    """Whether a code that gets through does so where these rows come before those, too: nothing goes around."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    rows, extra = len(order.flat.block), np.array(more, np.int64).reshape(-1, 2)
    src, dst = (np.concatenate([some, extra[:, at]]) for at, some in enumerate(_edges(order)))
    graph = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=(rows, rows))
    return int(connected_components(graph, connection="strong", return_labels=False)) == rows
