"""Run a code (code.py) whose happens-before order is known and has no races: many instructions at a time, in columns.

The order (order.py) is the same in every run. Of the instructions whose predecessors are all done, a random share is
executed at once (a wave). A wave stands for any order among its instructions, since no two of them touch a cell that
one of them writes. Then their successors become ready. Example: 1,000 thread blocks that each copy one cell and then
send it take a few waves instead of 2,000 single instructions.

A *row* is the number of an instruction over all thread blocks. A *value* is the data that one instruction moves, as
columns of words: random sums, and last the number of contributions, which is 0 in an empty cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs, concat_ranges, pointers, run_starts
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.execute import Case, sum_words
from antiphon.lower.machine.order import Order, to_csr

Words = NDArray[np.uint64]
MIN_INSTRUCTIONS = 2**13  # with fewer, running them one by one is faster


@dataclass(frozen=True, eq=False)
class _Moves:
    """The data that rows move."""

    count: Longs  # per row the cells that it moves
    slot: Longs  # per row the index of its first cell among the values of all rows
    reads: tuple[Longs, Longs]  # pointers by row, and the first cell of each operand
    writes: tuple[Longs, Longs]  # pointers by row, and the first cell of each target
    source: Longs  # per row, the row whose message it takes; -1: none

    @staticmethod
    def of(code: Code) -> _Moves:
        """Return the data that all instructions move, block by block.

        A put of two cells into connection 0, then a copy of one cell; in the next block a take of that put:

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
        instructions = [instruction for block in code.blocks for instruction in block.instructions]
        pop, push = (
            np.array([getattr(instruction, name) for instruction in instructions], np.int64) for name in ("pop", "push")
        )
        takes, puts = (np.flatnonzero(queue >= 0) for queue in (pop, push))
        takes, puts = takes[np.argsort(pop[takes], kind="stable")], puts[np.argsort(push[puts], kind="stable")]
        source = np.full(len(instructions), -1, np.int64)
        paired = min(len(takes), len(puts))  # equally many, unless the code never ends
        source[takes[:paired]] = puts[:paired]  # the k-th put into a connection is the k-th taken
        moves = [instruction.count if instruction.read or instruction.pop >= 0 else 0 for instruction in instructions]
        count = np.array(moves, np.int64)
        return _Moves(
            count, np.concatenate([[0], np.cumsum(count)]), to_csr([instruction.read for instruction in instructions]),
            to_csr([instruction.write for instruction in instructions]), source,
        )  # fmt: skip


class Waves:
    """A code prepared for runs in waves."""

    def __init__(self, order: Order) -> None:
        self.code, rows = order.code, len(order.flat.block)
        src, dst = _all_edges(order)
        by_source = np.argsort(src, kind="stable")
        self.ptr, self.after = pointers(src[by_source], rows), dst[by_source]
        self.before = np.bincount(dst, minlength=rows)
        self.moves = _Moves.of(order.code)
        self.order = np.zeros(0, np.int64)  # rows as they happened in the last run

    def ends_right(self, seed: int) -> bool:
        """Return whether a run in an order drawn by `seed` ends with the right result."""
        random = Random(seed)
        case = Case.of(self.code, random)
        values_as_words, share = sum_words(case.values), random.choice((1.0, 0.5, 0.25))
        cells = values_as_words[case.initial]
        values = np.zeros((int(self.moves.slot[-1]), cells.shape[1]), np.uint64)
        draw = np.random.default_rng(seed)
        # pending: per row the number of predecessors that are not done
        pending, ready, done = self.before.copy(), np.flatnonzero(self.before == 0), list[Longs]()
        while len(ready):
            is_drawn = draw.random(len(ready)) < share
            if not is_drawn.any():
                is_drawn[int(draw.integers(len(ready)))] = True
            wave = ready[is_drawn]
            if not self._move_data(wave, cells, values):
                return False
            done.append(wave)
            successors = self.after[concat_ranges(self.ptr[wave], self.ptr[wave + 1] - self.ptr[wave])]
            np.subtract.at(pending, successors, 1)
            ready = np.concatenate([ready[~is_drawn], np.unique(successors[pending[successors] == 0])])
        self.order = np.concatenate([self.order[:0], *done])
        return len(self.order) == len(pending) and bool((cells[case.cells] == values_as_words[case.required]).all())

    def _move_data(self, rows: Longs, cells: Words, values: Words) -> bool:
        """Move the data of these rows; return False if a cell is empty or a message has another length."""
        moves = self.moves
        rows = rows[moves.count[rows] > 0]
        count, slot = moves.count[rows], moves.slot[rows]
        takes = moves.source[rows] >= 0
        source = moves.source[rows[takes]]
        if (moves.count[source] != count[takes]).any():
            return False
        values[concat_ranges(slot[takes], count[takes])] = values[concat_ranges(moves.slot[source], count[takes])]
        ptr, first = moves.reads
        operand_index, end = ptr[rows], ptr[rows + 1]
        while (has_operand := operand_index < end).any():  # one operand of all rows after another
            operand = cells[concat_ranges(first[operand_index[has_operand]], count[has_operand])]
            if not operand[:, -1].all():
                return False
            values[concat_ranges(slot[has_operand], count[has_operand])] += operand
            operand_index, end = operand_index[has_operand] + 1, end[has_operand]
            slot, count = slot[has_operand], count[has_operand]
        ptr, first = moves.writes
        target_counts = ptr[rows + 1] - ptr[rows]
        targets = first[concat_ranges(ptr[rows], target_counts)]
        length = np.repeat(moves.count[rows], target_counts)
        cells[concat_ranges(targets, length)] = values[
            concat_ranges(np.repeat(moves.slot[rows], target_counts), length)
        ]
        return True


def _all_edges(order: Order) -> tuple[Longs, Longs]:
    """Return the edges of the order, and those from each row to the next of its block."""
    follows = np.flatnonzero(~run_starts(order.flat.block))
    return np.concatenate([follows - 1, order.src]), np.concatenate([follows, order.dst])


def ends(order: Order, extra_edges: list[tuple[int, int]]) -> bool:
    """Return whether a code that ends also ends with these edges in addition: they close no cycle."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    rows, extra = len(order.flat.block), np.array(extra_edges, np.int64).reshape(-1, 2)
    src, dst = (np.concatenate([column, extra[:, at]]) for at, column in enumerate(_all_edges(order)))
    graph = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=(rows, rows))
    return int(connected_components(graph, connection="strong", return_labels=False)) == rows
