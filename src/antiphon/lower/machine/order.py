"""Compute the happens-before order of a code, and races: unordered accesses to a cell, at least one a write.

A code (code.py) is the instructions of every GPU thread block of every rank, as runtimes' files state them.

Which instruction happens before which is the same in every run, because no instruction depends on data (Lamport 1978):

- an instruction happens before those behind it in its thread block, and before those that wait for it;
- the k-th put into a queue happens before the k-th take; with n slots, the k-th take before the (k+n)-th put;
- the k-th release of a semaphore (which adds one) happens before its k-th acquire (which takes one), where it is known
  which release is the k-th.

So one complete run together with this order decides for all runs. A race is a pair of accesses to one cell, at least
one a write, that the order does not relate.

Example: block A writes a cell and puts a message; block B takes it and reads the cell. Write -> put -> take -> read:
ordered. If B reads before it takes, write and read are unordered: a race.

There are millions of pairs, so cheap tests come first (`Order.unordered`): the same *line* (here: thread blocks of a
rank that run one after the other), one direct edge, and last reachability with bit sets, MOST_BITS pairs per pass. A
*row* is the number of an instruction over all thread blocks; an *edge* is a pair of rows: the first happens before the
second. Semaphores bring most of the difficulty: several blocks may release or acquire one, in any order, so edges are
added only where it is sure which release an acquire needs (`Order.of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Bools, Longs, concat_ranges
from antiphon.lower.machine.code import Code

Edge = tuple[int, int]  # rows (before, after)
MOST_BITS = 2**12  # pairs that are decided in one pass


@dataclass(frozen=True, eq=False)
class Flat:
    """The instructions of all blocks as rows."""

    ptr: Longs  # block b has the rows ptr[b] to ptr[b + 1] - 1
    block: Longs  # per row
    when: Longs  # per row its position in one complete run (its time)

    @staticmethod
    def of(code: Code, order: Sequence[int] | Longs) -> Flat:
        """Return the rows of a code. `order`: all rows in the order of one complete run."""
        ptr = code.begin  # first row of each block, and their number
        when = np.empty(len(order), np.int64)
        when[np.asarray(order, np.int64)] = np.arange(len(order))
        return Flat(ptr, np.repeat(np.arange(len(code.blocks)), np.diff(ptr)), when)


def edges(code: Code, flat: Flat) -> tuple[Longs, Longs]:
    """Return the edges between blocks by waits and queues, as two columns; `Order` adds those of semaphores.

    A row that waits for something that never comes gets an edge from itself to itself.
    """
    ptr = flat.ptr.tolist()
    src: list[int] = []
    dst: list[int] = []
    puts: list[list[int]] = [[] for _ in code.connections]  # by connection: rows
    takes: list[list[int]] = [[] for _ in code.connections]
    for number, block in enumerate(code.blocks):
        for row, instruction in enumerate(block.instructions, ptr[number]):
            for other, index in instruction.wait:
                awaited_row = ptr[other] + index
                src.append(awaited_row if awaited_row < ptr[other + 1] else row)
                dst.append(row)
            if instruction.pop >= 0:
                takes[instruction.pop].append(row)
            if instruction.push >= 0:
                puts[instruction.push].append(row)
    # FIFO queues: the k-th put meets the k-th take. A take without a put waits forever, so for itself. A put without a
    # take gets the same edge: it is an error, too.
    for put, take in zip(puts, takes, strict=True):
        src += put[: len(take)]
        dst += take[: len(put)]
        if code.slots:  # 0: queues without limit
            src += take[: max(len(put) - code.slots, 0)]
            dst += put[code.slots :][: len(take)]
        unpaired = put[len(take) :] + take[len(put) :]
        src += unpaired
        dst += unpaired
    return _across_blocks(flat, np.array(src, np.int64), np.array(dst, np.int64))


def _across_blocks(flat: Flat, src: Longs, dst: Longs) -> tuple[Longs, Longs]:
    """Return the edges without those within one block, where the order is known anyway."""
    # src >= dst: a row that waits for itself or for a later one of its block, so that no run ends; these edges stay
    crosses = (flat.block[src] != flat.block[dst]) | (src >= dst)
    return src[crosses], dst[crosses]


class Semaphore(NamedTuple):
    """A semaphore, with the rows that use it."""

    releases: list[int]
    acquires: list[int]
    start: int  # its initial value


class _SureRelease(NamedTuple):
    """An acquire, and releases that surely precede it: the first `preceding` of `rows`, which are in order."""

    rows: list[int]
    preceding: int
    acquire: int  # a row


def semaphore_rows(code: Code, flat: Flat) -> list[Semaphore]:
    """Return the rows that release and that acquire each semaphore."""
    releases: list[list[int]] = [[] for _ in code.start]
    acquires: list[list[int]] = [[] for _ in code.start]
    ptr = flat.ptr.tolist()
    for number, block in enumerate(code.blocks):
        for row, instruction in enumerate(block.instructions, ptr[number]):
            for semaphore in instruction.release:
                releases[semaphore].append(row)
            for semaphore in instruction.acquire:
                acquires[semaphore].append(row)
    return list(map(Semaphore, releases, acquires, code.start))


def _semaphore_edges(sure_releases: list[_SureRelease], loose: set[int]) -> list[Edge]:
    """Return edges (releasing row, acquiring row) by semaphores.

    An edge leaves the last of the releases that precede; `loose` rows, whose signals do not make data visible, are
    passed over.
    """
    semaphore_edges = []
    for rows, preceding, acquire in sure_releases:
        last = (
            next((row for row in reversed(rows[:preceding]) if row not in loose), None)
            if loose
            else rows[preceding - 1]
        )
        if last is not None and acquire not in loose:
            semaphore_edges.append((last, acquire))
    return semaphore_edges


def _sure_releases(semaphore: Semaphore, line: list[int]) -> Iterator[_SureRelease]:
    """Yield which releases of a semaphore surely precede which acquires. `line`: per row.

    The j-th release of a line precedes an acquire if all releases of other lines and the first j - 1 of this line do
    not suffice for that acquire. Acquires of several lines may come in any order.

    Two lines release a semaphore that starts at 0: rows 0 and 1 are of one line, row 2 of another; rows 3, 4 and 5 of a
    third acquire it. The second acquire (4) needs one release by rows 0 and 1, the third (5) both of them and row 2:

    >>> semaphore = Semaphore(releases=[0, 1, 2], acquires=[3, 4, 5], start=0)
    >>> list(map(tuple, _sure_releases(semaphore, [0, 0, 1, 2, 2, 2])))
    [([0, 1], 1, 4), ([0, 1], 2, 5), ([2], 1, 5)]
    """
    releases, acquires, start = semaphore
    releasing_lines, acquiring_lines = _group_by_line(releases, line), _group_by_line(acquires, line)
    max_acquires = max(map(len, acquiring_lines), default=0)
    for rows in releasing_lines:
        supply_of_others = start + len(releases) - len(rows)  # what all other lines can supply together
        if supply_of_others < max_acquires:
            for acquiring_rows in acquiring_lines:
                # The number-th acquire of a line needs at least number - supply_of_others releases of this line.
                last_number = min(len(acquiring_rows), supply_of_others + len(rows))
                for number in range(supply_of_others + 1, last_number + 1):
                    yield _SureRelease(rows, number - supply_of_others, acquiring_rows[number - 1])


def _group_by_line(rows: list[int], line: list[int]) -> list[list[int]]:
    by_line: dict[int, list[int]] = {}
    for row in rows:
        by_line.setdefault(line[row], []).append(row)
    return list(by_line.values())


def to_csr(cells: list[tuple[int, ...]]) -> tuple[Longs, Longs]:
    """Return tuples of different lengths as pointers and one column.

    >>> to_csr([(5, 6), (), (7,)])
    (array([0, 2, 2, 3]), array([5, 6, 7]))
    """
    lengths = np.array([len(row_cells) for row_cells in cells], np.int64)
    return np.concatenate([[0], np.cumsum(lengths)]), np.array(
        [cell for row_cells in cells for cell in row_cells], np.int64
    )


@dataclass(frozen=True, eq=False)
class Accesses:
    """Accesses by cell, then by time in the run. An instruction that reads and writes a cell has two: read, write."""

    cell: Longs
    row: Longs  # of the instruction in `Flat`
    write: Bools

    @staticmethod
    def of(code: Code, flat: Flat) -> Accesses:
        """Return the accesses of all instructions in a run."""
        instructions = [instruction for block in code.blocks for instruction in block.instructions]
        count = np.array([instruction.count for instruction in instructions], np.int64)
        (reads, read), (writes, written) = (
            to_csr([getattr(instruction, name) for instruction in instructions]) for name in ("read", "write")
        )
        # `read` and `written` are the first of as many neighbouring cells as the instruction counts
        rows = np.concatenate([np.repeat(np.arange(len(instructions)), np.diff(ptr)) for ptr in (reads, writes)])
        counts = count[rows]
        cell = concat_ranges(np.concatenate([read, written]), counts)
        # `rows` has a row per operand read, then one per target written.
        access_row, is_write = np.repeat(rows, counts), np.repeat(np.arange(len(rows)) >= len(read), counts)
        # Sort by cell, then time; within one instruction the write comes last.
        order = np.lexsort((is_write, flat.when[access_row], cell))
        return Accesses(cell[order], access_row[order], is_write[order])

    def pairs(self) -> tuple[Longs, Longs, Longs, Bools]:
        """Return the pairs of accesses to a cell that must be ordered.

        These are each access with the write before it, and each read with the next write. Columns: the row of the
        access that came first in the run, the row of the other, their cell, and whether the first is a write.
        """
        cell, row, write = self.cell, self.row, self.write
        if not len(cell):
            return row, row, cell, write
        position = np.arange(len(cell))
        begins_cell = np.ones(len(cell), bool)  # whether the accesses of another cell begin here
        begins_cell[1:] = cell[1:] != cell[:-1]
        start = np.maximum.accumulate(np.where(begins_cell, position, 0))
        last_write = np.maximum.accumulate(np.where(write, position, -1))
        before = np.concatenate([[-1], last_write[:-1]])
        after_write = before >= start
        later = [position[after_write]]
        earlier = [before[after_write]]
        # Every read, with the next write of its cell.
        next_write = np.minimum.accumulate(np.where(write, position, len(cell))[::-1])[::-1]
        ends = np.append(np.flatnonzero(begins_cell)[1:], len(cell))
        end = ends[np.cumsum(begins_cell) - 1]
        reads = np.flatnonzero(~write & (next_write < end))
        earlier.append(reads)
        later.append(next_write[reads])
        first, second = np.concatenate(earlier), np.concatenate(later)
        is_pair = row[first] != row[second]  # not the two accesses of one instruction
        return row[first[is_pair]], row[second[is_pair]], cell[first[is_pair]], write[first[is_pair]]


@dataclass(eq=False)
class Order:
    """The happens-before order: decides whether one row comes before another in every run."""

    code: Code
    flat: Flat
    src: Longs  # edges between blocks: row src[i] happens before row dst[i]
    dst: Longs
    # Whether it is known of every semaphore which release comes before which acquire: then any order that respects the
    # edges is legal.
    complete: bool = True

    @cached_property
    def lines(self) -> tuple[Longs, Longs]:
        """Per row its line (the number of its first block), and its position among all rows in the order of lines.

        A block whose first instruction waits for the last instruction of another block of its rank continues that
        block: both are one line.
        """
        ptr, block = self.flat.ptr, self.flat.block
        # edges from the last instruction of a block to the first one of another
        ends = (self.src == ptr[1:][block[self.src]] - 1) & (self.dst == ptr[:-1][block[self.dst]])
        after: dict[int, int] = {}  # block -> the block that continues it
        before: dict[int, int] = {}  # the inverse
        # detached: a block that runs beside its rank's kernel, such as a proxy thread
        rank_of = [(block.rank, block.detached) for block in self.code.blocks]
        for first, second in zip(block[self.src[ends]].tolist(), block[self.dst[ends]].tolist(), strict=True):
            if first not in after and second not in before and rank_of[first] == rank_of[second]:
                after[first], before[second] = second, first
        line, position = np.empty(len(block), np.int64), np.empty(len(block), np.int64)
        counted = 0
        for first in range(len(ptr) - 1):
            current: int | None = None if first in before else first
            while current is not None:
                low, high = int(ptr[current]), int(ptr[current + 1])
                line[low:high] = first
                position[low:high] = np.arange(counted, counted + high - low)
                counted += high - low
                current = after.get(current)
        return line, position

    @staticmethod
    def of(code: Code, flat: Flat, visible_only: bool = False) -> Order:
        """Return the order of a code. `visible_only`: leave out semaphores' edges that do not make data visible.

        Several blocks that release (or acquire) one semaphore count as one block if they do so one after another.
        Whether they do follows from the order known so far, so edges are added until the order no longer changes.
        """
        order = Order(code, flat, *edges(code, flat))
        line, position = (column.tolist() for column in order.lines)
        instructions = (instruction for block in code.blocks for instruction in block.instructions)
        loose = {row for row, instruction in enumerate(instructions) if visible_only and instruction.loose}
        sure: list[_SureRelease] = []
        undecided: list[Semaphore] = []
        for semaphore in semaphore_rows(code, flat):
            releases, acquires, start = semaphore
            for rows in (releases, acquires):
                rows.sort(key=position.__getitem__)
            sure += _sure_releases(semaphore, line)
            # Undecided if several lines release or acquire, or if releases are too few, so that no run ends.
            if len(acquires) > start + len(releases) or any(
                line[rows[0]] != line[row] for rows in (releases, acquires) for row in rows
            ):  # fmt: skip
                undecided.append(semaphore)
        order = order._with_edges(_semaphore_edges(sure, loose))
        # Fixed point: every decided semaphore adds edges, which may order the releases of others.
        while undecided:
            # Decided: its releases come in one order in every run, and so do its acquires.
            have_ordered_releases = order._are_chained([semaphore.releases for semaphore in undecided])
            have_ordered_acquires = order._are_chained([semaphore.acquires for semaphore in undecided])
            is_decided = list(map(all, zip(have_ordered_releases, have_ordered_acquires, strict=True)))
            if not any(is_decided):
                order.complete = False
                return order
            sure = []
            for semaphore, decided in zip(undecided, is_decided, strict=True):
                if decided:
                    releases = sorted(semaphore.releases, key=flat.when.__getitem__)
                    acquires = sorted(semaphore.acquires, key=flat.when.__getitem__)
                    # The first `start` acquires need no release; the k-th after them needs the k-th release.
                    acquires = acquires[semaphore.start : semaphore.start + len(releases)]
                    sure += [_SureRelease(releases, k, acquire) for k, acquire in enumerate(acquires, 1)]
            order = order._with_edges(_semaphore_edges(sure, loose))
            undecided = [semaphore for semaphore, decided in zip(undecided, is_decided, strict=True) if not decided]
        return order

    def _with_edges(self, new_edges: list[Edge]) -> Order:
        src, dst = _across_blocks(self.flat, *np.array(new_edges, np.int64).reshape(-1, 2).T)
        src, dst = np.concatenate([self.src, src]), np.concatenate([self.dst, dst])
        return Order(self.code, self.flat, src, dst)

    def _are_chained(self, row_sets: list[list[int]]) -> list[bool]:
        """Return for each set of rows whether it is totally ordered."""
        by_time = [sorted(rows, key=self.flat.when.__getitem__) for rows in row_sets]
        set_of_pair = np.repeat(np.arange(len(row_sets)), [max(len(rows) - 1, 0) for rows in row_sets])
        before = np.array([row for rows in by_time for row in rows[:-1]], np.int64)
        after = np.array([row for rows in by_time for row in rows[1:]], np.int64)
        unordered = self.unordered(before, after)
        unordered_count: Longs = np.bincount(set_of_pair, weights=unordered, minlength=len(row_sets))
        return (unordered_count == 0).tolist()

    def unordered(self, before: Longs, after: Longs) -> Bools:
        """Return which pairs of rows (before[i], after[i]) are unordered; the first of each came earlier in the run.

        Most pairs are of one block, or ordered by one edge; only for the others, paths are searched.
        """
        line, position = self.lines
        # From cheap to expensive; each test only sees what the ones before left undecided.
        undecided = ~((line[before] == line[after]) & (position[before] < position[after]))
        undecided[undecided] = ~self._ordered_by_edge(before[undecided], after[undecided])
        undecided[undecided] = ~self._ordered_by_path(before[undecided], after[undecided])
        return undecided

    def _ordered_by_edge(self, before: Longs, after: Longs) -> Bools:
        """Return which pairs are ordered by a single edge between their lines.

        Such an edge leaves the line of `before` at this row or later, and enters that of `after` at its row or earlier.
        """
        line, position = self.lines
        rows, block_count = len(line), len(self.code.blocks)
        lines_of_edge = line[self.src] * block_count + line[self.dst]  # (line, line) as one number
        order = np.lexsort((position[self.dst], lines_of_edge))
        src, dst = position[self.src[order]], position[self.dst[order]]
        # Per pair of lines keep the latest source over all edges up to a target: one binary search decides a pair.
        # The factor `rows` separates the pairs: no maximum is carried from one into the next, and keys ascend.
        line_pairs, pair_of_edge = np.unique(lines_of_edge[order], return_inverse=True)
        latest_src = np.maximum.accumulate(pair_of_edge * rows + src) - pair_of_edge * rows
        asked_pair = line[before] * block_count + line[after]
        line_pair = np.searchsorted(line_pairs, asked_pair)
        has_edge = np.append(line_pairs, -1)[line_pair] == asked_pair
        edge = np.searchsorted(pair_of_edge * rows + dst, line_pair * rows + position[after], side="right") - 1
        ordered = has_edge & (edge >= 0)
        edge = edge[ordered]
        ordered[ordered] = (pair_of_edge[edge] == line_pair[ordered]) & (latest_src[edge] >= position[before[ordered]])
        return ordered

    def _ordered_by_path(self, before: Longs, after: Longs) -> Bools:
        """Return which pairs are ordered by any path: earlier rows are propagated as bits, in the order of the run."""
        when = self.flat.when
        ordered = np.zeros(len(before), bool)
        if not len(before):
            return ordered
        by_time = np.argsort(when[self.src], kind="stable")
        src, dst = self.src[by_time], self.dst[by_time]
        src_time, dst_time = when[src], when[dst]
        questions = np.argsort(when[before], kind="stable")
        for low in range(0, len(questions), MOST_BITS):
            batch = questions[low : low + MOST_BITS]
            end_time = int(when[after[batch]].max())
            first, end = np.searchsorted(src_time, (when[before[batch[0]]], end_time)).tolist()
            inside = first + np.flatnonzero(dst_time[first:end] <= end_time)  # edges between the batch's first and last
            ordered[batch] = self._answer_by_bits(before[batch], after[batch], src[inside], dst[inside])
        return ordered

    def _answer_by_bits(self, before: Longs, after: Longs, src: Longs, dst: Longs) -> list[bool]:
        """Return which pairs are ordered by these edges. In a run every row comes after the rows that it waits for.

        Question i: does row before[i] happen before row after[i]? Each row of `before` has a bit.
        """
        rows, bit_of_question = np.unique(before, return_inverse=True)
        bit_of_row = {row: 1 << bit for bit, row in enumerate(rows.tolist())}
        sources_of: dict[int, list[int]] = {}  # row -> the rows from which edges lead to it
        for source, target in zip(src.tolist(), dst.tolist(), strict=True):
            sources_of.setdefault(target, []).append(source)
        questions_at: dict[int, list[int]] = {}  # row of `after` -> its questions
        for question, row in enumerate(after.tolist()):
            questions_at.setdefault(row, []).append(question)
        ordered_rows = np.unique(np.concatenate([rows, after, src, dst]))
        ordered_rows = ordered_rows[np.argsort(self.flat.when[ordered_rows])]
        source_rows = set(src.tolist())
        bits = dict.fromkeys(range(len(self.code.blocks)), 0)  # by line, which is the number of its first block
        bits_at_leave = dict[int, int]()  # by row that an edge leaves
        answers, bit_numbers = [False] * len(before), bit_of_question.tolist()
        line_of, _ = self.lines
        # In the order of the run: bits[line] are the questions' rows that happen before the current row of that line.
        for row, line in zip(ordered_rows.tolist(), line_of[ordered_rows].tolist(), strict=True):
            current = bits[line]
            for source in sources_of.get(row, ()):
                current |= bits_at_leave.get(source, 0)
            for question in questions_at.get(row, ()):
                answers[question] = bool(current >> bit_numbers[question] & 1)
            current |= bit_of_row.get(row, 0)
            bits[line] = current
            if current and row in source_rows:
                bits_at_leave[row] = current
        return answers
