"""What must happen before what, whatever the order: and which accesses to a cell, one of them a write, nothing orders.

An instruction happens before those of its block behind it; before what waits for it; the k-th put into a way before the
k-th taken from it, and where the way has n slots the k-th taken before the (k+n)-th put; a semaphore's k-th gain before
its k-th loss. All this is the same in every run, because no instruction depends on data: so one complete run, and this
order, decide for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import Bools, Longs, pointers, ranges
from antiphon.lower.machine.code import Code

Row = tuple[int, int]  # block and index
MOST_BITS = 2**12  # questions that are answered in one pass


@dataclass(frozen=True, eq=False)
class Flat:
    """Instructions of all blocks as rows: those of block b are ptr[b] to ptr[b + 1]. `when` is empty where no run is
    known yet."""

    ptr: Longs
    block: Longs
    when: Longs  # in which place each happened in one complete run

    @staticmethod
    def of(code: Code, order: Sequence[int] | Longs) -> Flat:
        ptr = code.begin
        when = np.empty(len(order), np.int64)
        when[np.asarray(order, np.int64)] = np.arange(len(order))
        return Flat(ptr, np.repeat(np.arange(len(code.blocks)), np.diff(ptr)), when)


def edges(code: Code, flat: Flat) -> tuple[Longs, Longs]:
    """Rows that come before others of other blocks, each with that other; those of semaphores are left to `Order`. What
    never comes is awaited by a row that comes before itself."""
    ptr = flat.ptr.tolist()
    src: list[int] = []
    dst: list[int] = []
    puts: list[list[int]] = [[] for _ in code.ways]
    takes: list[list[int]] = [[] for _ in code.ways]
    for number, block in enumerate(code.blocks):
        for row, one in enumerate(block.instructions, ptr[number]):
            for other, index in one.wait:
                there = ptr[other] + index
                src.append(there if there < ptr[other + 1] else row)
                dst.append(row)
            if one.pop >= 0:
                takes[one.pop].append(row)
            if one.push >= 0:
                puts[one.push].append(row)
    for put, taken in zip(puts, takes, strict=True):
        src += put[: len(taken)]
        dst += taken[: len(put)]
        if code.slots:
            src += taken[: max(len(put) - code.slots, 0)]
            dst += put[code.slots :][: len(taken)]
        alone = put[len(taken) :] + taken[len(put) :]
        src += alone
        dst += alone
    return _between(flat, np.array(src, np.int64), np.array(dst, np.int64))


def _between(flat: Flat, src: Longs, dst: Longs) -> tuple[Longs, Longs]:
    """Without those that the order within their block says already."""
    kept = (flat.block[src] != flat.block[dst]) | (src >= dst)
    return src[kept], dst[kept]


Counted = tuple[list[int], list[int], int]  # rows that give to a semaphore, rows that take from it, where it begins


def counted(code: Code, flat: Flat) -> list[Counted]:
    """Who gives to each semaphore, and who takes."""
    gains: list[list[int]] = [[] for _ in code.start]
    losses: list[list[int]] = [[] for _ in code.start]
    ptr = flat.ptr.tolist()
    for number, block in enumerate(code.blocks):
        for row, one in enumerate(block.instructions, ptr[number]):
            for semaphore in one.release:
                gains[semaphore].append(row)
            for semaphore in one.acquire:
                losses[semaphore].append(row)
    return list(zip(gains, losses, code.start, strict=True))


def _firm(pairs: list[tuple[list[int], int, int]], loose: set[int]) -> list[Row]:
    """Rows that give one after another, how many of them are surely before a row that takes, and that row: with the
    last of these that makes visible what was written, where the other is to see it."""
    found = []
    for rows, sure, after in pairs:
        last = next((row for row in reversed(rows[:sure]) if row not in loose), None) if loose else rows[sure - 1]
        if last is not None and after not in loose:
            found.append((last, after))
    return found


def _counted(gain: list[int], loss: list[int], start: int, line: list[int]) -> Iterator[tuple[list[int], int, int]]:
    """Which gains of a semaphore are surely before which losses: of a line that gives n of all, its j-th is before a
    loss when all others and its first j - 1 are not enough. Losses of several lines may come in any order."""
    givers, takers = _by_line(gain, line), _by_line(loss, line)
    longest = max(map(len, takers), default=0)
    for rows in givers:
        others = start + len(gain) - len(rows)
        if others < longest:
            for mine in takers:
                for number in range(others + 1, min(len(mine), others + len(rows)) + 1):
                    yield rows, number - others, mine[number - 1]


def _by_line(rows: list[int], line: list[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(line[row], []).append(row)
    return list(found.values())


def listed(cells: list[tuple[int, ...]]) -> tuple[Longs, Longs]:
    """Tuples of different lengths as pointers and one column.

    >>> listed([(5, 6), (), (7,)])
    (array([0, 2, 2, 3]), array([5, 6, 7]))
    """
    many = np.array([len(some) for some in cells], np.int64)
    return np.concatenate([[0], np.cumsum(many)]), np.array([cell for some in cells for cell in some], np.int64)


@dataclass(frozen=True, eq=False)
class Accesses:
    """Who touches which cell, by cell, then as they happened in the run; an instruction that does both writes."""

    cell: Longs
    row: Longs
    write: Bools

    @staticmethod
    def of(code: Code, flat: Flat) -> Accesses:
        every = [one for block in code.blocks for one in block.instructions]
        count = np.array([one.count for one in every], np.int64)
        (reads, read), (writes, written) = (listed([getattr(one, name) for one in every]) for name in ("read", "write"))
        rows = np.concatenate([np.repeat(np.arange(len(every)), np.diff(ptr)) for ptr in (reads, writes)])
        many = count[rows]
        cell = ranges(np.concatenate([read, written]), many)
        each, write = np.repeat(rows, many), np.repeat(np.arange(len(rows)) >= len(read), many)
        by = np.lexsort((write, flat.when[each], cell))
        return Accesses(cell[by], each[by], write[by])

    def pairs(self) -> tuple[Longs, Longs, Longs, Bools]:
        """Accesses that must be ordered, as rows, the one that came first before the other, their cell, and whether the
        first is a write: each with the write before it, and every write with all that read since the one before it."""
        cell, row, write = self.cell, self.row, self.write
        place = np.arange(len(cell))
        fresh = np.ones(len(cell), bool)
        fresh[1:] = cell[1:] != cell[:-1]
        start = np.maximum.accumulate(np.where(fresh, place, 0))
        seen = np.maximum.accumulate(np.where(write, place, -1))
        before = np.concatenate([[-1], seen[:-1]])
        after_write = before >= start
        latter = [place[after_write]]
        former = [before[after_write]]
        # every read, with the next write of its cell
        upcoming = np.minimum.accumulate(np.where(write, place, len(cell))[::-1])[::-1] if len(cell) else place
        ends = np.append(np.flatnonzero(fresh)[1:], len(cell))
        end = ends[np.cumsum(fresh) - 1] if len(cell) else place
        reads = np.flatnonzero(~write & (upcoming < end))
        former.append(reads)
        latter.append(upcoming[reads])
        a, b = np.concatenate(former), np.concatenate(latter)
        apart = row[a] != row[b]
        return row[a[apart]], row[b[apart]], cell[a[apart]], write[a[apart]]


@dataclass(eq=False)
class Order:
    """Asks of rows whether one comes before another in every run. `whole`: of every semaphore it is known which gain
    comes before which loss, so any order that keeps to this one is legal."""

    code: Code
    flat: Flat
    src: Longs
    dst: Longs
    whole: bool = True

    @cached_property
    def lines(self) -> tuple[Longs, Longs]:
        """Of each row its line, and its number among all rows line by line. A block whose first instruction waits for
        the last of another of its rank goes on where that ends: both are one line."""
        ptr, block = self.flat.ptr, self.flat.block
        ends = (self.src == ptr[1:][block[self.src]] - 1) & (self.dst == ptr[:-1][block[self.dst]])
        after: dict[int, int] = {}
        before: dict[int, int] = {}
        home = [(block.rank, block.beside) for block in self.code.blocks]
        for one, other in zip(block[self.src[ends]].tolist(), block[self.dst[ends]].tolist(), strict=True):
            if one not in after and other not in before and home[one] == home[other]:
                after[one], before[other] = other, one
        line, at = np.empty(len(block), np.int64), np.empty(len(block), np.int64)
        done = 0
        for first in range(len(ptr) - 1):
            here: int | None = None if first in before else first
            while here is not None:
                low, high = int(ptr[here]), int(ptr[here + 1])
                line[low:high] = first
                at[low:high] = np.arange(done, done + high - low)
                done += high - low
                here = after.get(here)
        return line, at

    @staticmethod
    def of(code: Code, flat: Flat, firm: bool = False) -> Order:
        """`firm`: only what makes visible what was written.

        Where several blocks give to one semaphore, or take from it, but one after another, they count as one: who they
        are is asked of the order that is known without it, again and again while something comes of it.
        """
        order = Order(code, flat, *edges(code, flat))
        line, place = (column.tolist() for column in order.lines)
        every = (one for block in code.blocks for one in block.instructions)
        loose = {row for row, one in enumerate(every) if one.loose} if firm else set[int]()
        sure: list[tuple[list[int], int, int]] = []
        left: list[Counted] = []
        for gain, loss, start in counted(code, flat):
            for rows in (gain, loss):
                rows.sort(key=place.__getitem__)
            sure += _counted(gain, loss, start, line)
            if len(loss) > start + len(gain) or any(
                line[rows[0]] != line[row] for rows in (gain, loss) for row in rows
            ):  # fmt: skip
                left.append((gain, loss, start))
        order = order._with(_firm(sure, loose))
        while left:
            if not len(flat.when):
                order.whole = False
                return order
            chained = order._chained([rows for gain, loss, _ in left for rows in (gain, loss)])
            ready = [chained[2 * i] and chained[2 * i + 1] for i in range(len(left))]
            if not any(ready):
                order.whole = False
                return order
            sure = []
            for (gain, loss, start), known in zip(left, ready, strict=True):
                if known:
                    given, taken = (sorted(rows, key=flat.when.__getitem__) for rows in (gain, loss))
                    sure += [(given, k, after) for k, after in enumerate(taken[start:], 1) if k <= len(given)]
            order = order._with(_firm(sure, loose))
            left = [one for one, known in zip(left, ready, strict=True) if not known]
        return order

    def _with(self, pairs: list[Row]) -> Order:
        rows = np.array(pairs, np.int64).reshape(-1, 2)
        src, dst = _between(self.flat, rows[:, 0], rows[:, 1])
        src, dst = np.concatenate([self.src, src]), np.concatenate([self.dst, dst])
        return Order(self.code, self.flat, src, dst)

    def _chained(self, several: list[list[int]]) -> list[bool]:
        """Of each set of rows, whether one comes after another."""
        inorder = [sorted(rows, key=self.flat.when.__getitem__) for rows in several]
        of = np.repeat(np.arange(len(several)), [max(len(rows) - 1, 0) for rows in several])
        before = np.array([row for rows in inorder for row in rows[:-1]], np.int64)
        after = np.array([row for rows in inorder for row in rows[1:]], np.int64)
        loose = self.unordered(before, after)
        bad: Longs = np.bincount(of, weights=loose, minlength=len(several))
        return (bad == 0).tolist()

    def unordered(self, before: Longs, after: Longs) -> Bools:
        """For which pairs nothing says so. Most are of one block, or ordered within their rank; only for the others
        ways over other ranks are looked for."""
        line, at = self.lines
        left = ~((line[before] == line[after]) & (at[before] < at[after]))
        left[left] = ~self._directly(before[left], after[left])
        left[left] = ~self._within(before[left], after[left])
        left[left] = ~self._afar(before[left], after[left])
        return left

    def _directly(self, before: Longs, after: Longs) -> Bools:
        """Whether one edge leads from behind the one to before the other."""
        line, place = self.lines
        rows, many = len(line), len(self.code.blocks)
        between = line[self.src] * many + line[self.dst]
        order = np.lexsort((place[self.dst], between))
        src, dst = place[self.src[order]], place[self.dst[order]]
        key, number = np.unique(between[order], return_inverse=True)
        latest = np.maximum.accumulate(number * rows + src) - number * rows
        asked = line[before] * many + line[after]
        group = np.searchsorted(key, asked)
        known = np.append(key, -1)[group] == asked
        at = np.searchsorted(number * rows + dst, group * rows + place[after], side="right") - 1
        found = known & (at >= 0)
        found[found] = (number[at[found]] == group[found]) & (latest[at[found]] >= place[before[found]])
        return found

    def _within(self, before: Longs, after: Longs) -> Bools:
        """Whether a way leads there within their rank, by clocks of its blocks: how far each block surely is."""
        code, flat = self.code, self.flat
        found = np.zeros(len(before), bool)
        home = np.array([block.rank for block in code.blocks], np.int64)
        rank_of = home[flat.block]
        same = rank_of[self.src] == rank_of[self.dst]
        src, dst = self.src[same], self.dst[same]
        order = np.argsort(flat.when[dst], kind="stable")
        src, dst = src[order], dst[order]
        edge_ptr = pointers(np.sort(rank_of[dst]), code.collective.ranks)
        by_rank = np.argsort(rank_of[dst], kind="stable")
        asked = np.flatnonzero(rank_of[before] == rank_of[after])
        asked = asked[np.lexsort((flat.when[after[asked]], rank_of[after[asked]]))]
        ask_ptr = pointers(rank_of[after[asked]], code.collective.ranks)
        for rank in range(code.collective.ranks):
            ask = asked[ask_ptr[rank] : ask_ptr[rank + 1]]
            mine = by_rank[edge_ptr[rank] : edge_ptr[rank + 1]]
            if len(ask) and len(mine):
                blocks = np.flatnonzero(home == rank)
                found[ask] = _clocked(flat, blocks, src[mine], dst[mine], before[ask], after[ask])
        return found

    def _afar(self, before: Longs, after: Longs) -> Bools:
        """Whether a way leads there, over whatever blocks: what came before is handed on, as bits, as it happened."""
        when = self.flat.when
        found = np.zeros(len(before), bool)
        if not len(before):
            return found
        leave = np.argsort(when[self.src], kind="stable")
        src, dst = self.src[leave], self.dst[leave]
        left_at, came_at = when[src], when[dst]
        asked = np.argsort(when[before], kind="stable")
        for low in range(0, len(asked), MOST_BITS):
            some = asked[low : low + MOST_BITS]
            ends = int(when[after[some]].max())
            among = slice(*np.searchsorted(left_at, (when[before[some[0]]], ends)).tolist())
            near = came_at[among] <= ends
            found[some] = self._handed(before[some], after[some], src[among][near], dst[among][near])
        return found

    def _handed(self, before: Longs, after: Longs, src: Longs, dst: Longs) -> list[bool]:
        """The same by these edges. In the order of one run nothing comes before what it waits for."""
        rows, number = np.unique(before, return_inverse=True)
        begun = {row: 1 << bit for bit, row in enumerate(rows.tolist())}
        into: dict[int, list[int]] = {}
        for one, other in zip(src.tolist(), dst.tolist(), strict=True):
            into.setdefault(other, []).append(one)
        asked: dict[int, list[int]] = {}
        for question, row in enumerate(after.tolist()):
            asked.setdefault(row, []).append(question)
        every = np.unique(np.concatenate([rows, after, src, dst]))
        every = every[np.argsort(self.flat.when[every])]
        leaving = set(src.tolist())
        bits, kept = dict.fromkeys(range(len(self.code.blocks)), 0), dict[int, int]()
        answers, number = [False] * len(before), number.tolist()
        for row, line in zip(every.tolist(), self.lines[0][every].tolist(), strict=True):
            here = bits[line]
            for one in into.get(row, ()):
                here |= kept.get(one, 0)
            for question in asked.get(row, ()):
                answers[question] = bool(here >> number[question] & 1)
            here |= begun.get(row, 0)
            bits[line] = here
            if here and row in leaving:
                kept[row] = here
        return answers


def _clocked(flat: Flat, blocks: Longs, src: Longs, dst: Longs, before: Longs, after: Longs) -> Bools:
    """For questions of one rank, in the order in which `after` happened; edges in that of `dst`."""
    local = {block: i for i, block in enumerate(blocks.tolist())}
    clocks = {block: np.full(len(blocks), -1, np.int64) for block in local}  # by block: of each block the last row seen
    kept: dict[int, Longs] = {}  # clocks as they were when an edge left
    sources = set(src.tolist())
    owner = flat.block
    # What happens, by time: 0 an edge arrives, 1 an edge's row is done, 2 a question.
    events = [(int(flat.when[d]), 0, s, d) for s, d in zip(src.tolist(), dst.tolist(), strict=True)]
    events += [(int(flat.when[s]), 1, s, s) for s in sources]
    events += [(int(flat.when[a]), 2, i, a) for i, a in enumerate(after.tolist())]
    events.sort()
    answers = np.zeros(len(before), bool)
    for _, kind, what, row in events:
        block = int(owner[row])
        if kind == 0:
            clock = np.maximum(clocks[block], kept[what])
            clock[local[int(owner[what])]] = max(int(clock[local[int(owner[what])]]), what)
            clocks[block] = clock
        elif kind == 1:
            kept[row] = clocks[block]
        else:
            answers[what] = clocks[block][local[int(owner[before[what]])]] >= before[what]
    return answers
