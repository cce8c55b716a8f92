"""One run of a code: blocks in a random legal order, queues and semaphores as they are, contributions as sums.

What a cell holds is a multiset of contributions: the sum of a random number of 128 bits for each, and above these bits
the number of contributions. Two different multisets that occur pass for equal with a probability below 2^-100.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

from antiphon.core.interpret.buffers import sides
from antiphon.lower.machine.code import INPUT, OUTPUT, Code, Instruction

BITS = 160  # for sums of up to 2^32 contributions of 128 bits; their number stands above


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where: which of `kind` (hang, race, wrong, empty, input, left) it is, and a sentence."""

    kind: str
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Case:
    """What all cells hold at first (0: nothing), and what they must hold in the end, by cell."""

    given: list[int]
    wanted: dict[int, int]
    kept: dict[int, int]  # what the user handed over, and is no result

    @staticmethod
    def of(code: Code, random: Random) -> Case:
        collective, grain, places = code.collective, code.grain, code.places
        relation = collective.relation
        first, last = sides(collective, code.in_place)
        names: dict[tuple[int, int], list[int]] = {}
        for block, name in set(zip(relation.pre_block.tolist(), relation.pre_id.tolist(), strict=True)):
            names[block, name] = [(1 << BITS) + random.getrandbits(128) for _ in range(grain)]
        held: dict[tuple[int, int], list[int]] = {}
        columns = (relation.pre_rank, relation.pre_block, relation.pre_id)
        for rank, block, name in zip(*(column.tolist() for column in columns), strict=True):
            before = held.get((rank, block), [0] * grain)
            held[rank, block] = [a + b for a, b in zip(before, names[block, name], strict=True)]
        given = [0] * int(places.begin[-1])
        kept = {}
        for rank, block, at in _cells(code, first, INPUT):
            for chunk, value in enumerate(held[rank, block]):
                given[at + chunk] = kept[at + chunk] = value
        every: dict[int, list[int]] = {}
        for (block, _), values in names.items():
            every[block] = [a + b for a, b in zip(every.get(block, [0] * grain), values, strict=True)]
        wants = {}
        columns = (relation.post_rank, relation.post_block, relation.post_want)
        for rank, block, want in zip(*(column.tolist() for column in columns), strict=True):
            if want < 0:
                wants[rank, block] = every[block]
            else:
                several = [names[block, name] for name in relation.wants[want]]
                wants[rank, block] = [sum(column) for column in zip(*several, strict=True)]
        wanted = {}
        for rank, block, at in _cells(code, last, OUTPUT):
            for chunk, value in enumerate(wants[rank, block]):
                wanted[at + chunk] = value
                kept.pop(at + chunk, None)
        return Case(given, wanted, kept)


def _cells(code: Code, side: object, kind: int) -> list[tuple[int, int, int]]:
    """Rank, block and first cell of every block of a side."""
    rank, block, start = (getattr(side, name) for name in ("rank", "block", "start"))
    begin = code.places.begin[rank] if code.in_place else code.places.first[rank, kind]
    cells = begin + start * code.grain
    return list(zip(rank.tolist(), block.tolist(), cells.tolist(), strict=True))


@dataclass
class Run:
    """How a run ended. `order`: instructions as they happened, as (block, index)."""

    fault: Fault | None
    order: list[tuple[int, int]]


def execute(
    code: Code, seed: int | None = 0, *, last: tuple[int, int] | None = None, until: tuple[int, int] | None = None
) -> Run:
    """A run in an order drawn by `seed`; None: blocks by turns. With `last` and `until`, the one comes after the other,
    where it can."""
    random = Random(seed or 0)
    return _Machine(code, Case.of(code, random), random if seed is not None else None).go(last, until)


_ONCE = range(1)


class _Machine:
    def __init__(self, code: Code, case: Case, random: Random | None) -> None:
        self.code, self.case, self.random = code, case, random
        self.cells = list(case.given)
        self.at = [0] * len(code.blocks)
        self.queues: list[deque[list[int]]] = [deque() for _ in code.ways]
        self.counters = list(code.start)
        self.sleepers: dict[tuple[str, int], list[int]] = {}
        self.order: list[tuple[int, int]] = []
        self.fault: Fault | None = None

    def go(self, last: tuple[int, int] | None, until: tuple[int, int] | None) -> Run:
        """Blocks that can go on are drawn; one that cannot sleeps on the first thing that it lacks. A block that is
        drawn does one instruction, or goes on for some, so that orders differ in how far ahead some blocks are."""
        blocks = [there.instructions for there in self.code.blocks]
        ready = [block for block, there in enumerate(blocks) if there]
        held: list[int] = []
        longest = self.random.choice((1, 1, 4, 64)) if self.random else 1
        at, sleepers, once = self.at, self.sleepers, longest == 1
        while (ready or held) and self.fault is None:
            if not ready:
                ready, held, last = held, [], None
            block = self._drawn(ready)
            instructions = blocks[block]
            for _ in _ONCE if once else range(self._below(longest) + 1):
                index = at[block]
                if index == len(instructions):
                    break
                if last == (block, index):
                    held.append(block)
                    break
                one = instructions[index]
                lacks = self._lacks(one)
                if lacks is not None:
                    sleepers.setdefault(lacks, []).append(block)
                    break
                self._do(block, index, one, ready)
                if self.fault is not None:
                    break
                if until == (block, index):
                    last = None
                    ready += held
                    held = []
            else:
                if at[block] < len(instructions):
                    ready.append(block)
        return Run(self.fault or self._unfinished() or self._outcome(), self.order)

    def _drawn(self, ready: list[int]) -> int:
        if self.random is None:
            return ready.pop(0)
        place = int(self.random.random() * len(ready)) if len(ready) > 1 else 0
        ready[place], ready[-1] = ready[-1], ready[place]
        return ready.pop()

    def _below(self, count: int) -> int:
        """A number below, drawn fast: even enough for orders."""
        return int(self.random.random() * count) if self.random is not None and count > 1 else 0

    def _lacks(self, one: Instruction) -> tuple[str, int] | None:
        """What it must still wait for."""
        for block, index in one.wait:
            if self.at[block] <= index:
                return "block", block
        for number in one.acquire:
            if not self.counters[number]:
                return "semaphore", number
        if one.pop >= 0 and not self.queues[one.pop]:
            return "full", one.pop
        slots = self.code.slots
        if one.push >= 0 and slots and len(self.queues[one.push]) >= slots:
            return "empty", one.push
        return None

    def _do(self, block: int, index: int, one: Instruction, ready: list[int]) -> None:
        cells, sleepers = self.cells, self.sleepers
        value: list[int] | None = None
        if one.pop >= 0:
            value = self.queues[one.pop].popleft()
            if ("empty", one.pop) in sleepers:
                self._wake(("empty", one.pop), ready)
            if len(value) != one.count:
                self._fail("wrong", block, index, f"takes {one.count} chunks from a message of {len(value)}")
                return
        for first in one.read:
            here = cells[first : first + one.count]
            if 0 in here:
                place = self.code.places.tell(first + here.index(0))
                self._fail("empty", block, index, f"reads {place}, where nothing has been written yet")
                return
            value = here if value is None else [a + b for a, b in zip(value, here, strict=True)]
        if value is not None:
            for first in one.write:
                cells[first : first + one.count] = value
            if one.push >= 0:
                self.queues[one.push].append(value)
                if ("full", one.push) in sleepers:
                    self._wake(("full", one.push), ready)
        for number in one.acquire:
            self.counters[number] -= 1
        for number in one.release:
            self.counters[number] += 1
            if ("semaphore", number) in sleepers:
                self._wake(("semaphore", number), ready)
        self.at[block] = index + 1
        self.order.append((block, index))
        if ("block", block) in sleepers:
            self._wake(("block", block), ready)

    def _wake(self, thing: tuple[str, int], ready: list[int]) -> None:
        if thing in self.sleepers:
            ready += self.sleepers.pop(thing)

    def _fail(self, kind: str, block: int, index: int, what: str) -> None:
        self.fault = Fault(kind, f"{self.code.tell(block, index)}: {what}")

    def _unfinished(self) -> Fault | None:
        """A hang: a block that cannot go on, and what it lacks; one that waits for no other such block, if there is."""
        stuck = [b for b, there in enumerate(self.code.blocks) if self.at[b] < len(there.instructions)]
        if not stuck:
            return None
        lacking = {b: self._lacks(self.code.blocks[b].instructions[self.at[b]]) for b in stuck}
        block = next((b for b in stuck if lacking[b] not in [("block", other) for other in stuck]), stuck[0])
        thing = lacking[block]
        assert thing is not None
        kind, number = thing
        reason = {
            "block": lambda: f"waits for {self.code.blocks[number].name}, which never gets so far",
            "semaphore": lambda: (
                f"waits for {self.code.named[number] if self.code.named else 'a signal'}, which never comes"
            ),
            "full": lambda: f"waits for a message from rank {self.code.ways[number][0]} that is never sent",
            "empty": lambda: (
                f"waits for rank {self.code.ways[number][1]} to take one of the {self.code.slots} messages under way"
            ),
        }[kind]()
        others = f"; {len(stuck) - 1} more blocks are stuck" if len(stuck) > 1 else ""
        return Fault("hang", f"{self.code.tell(block, self.at[block])}: never done: {reason}{others}")

    def _outcome(self) -> Fault | None:
        for number, queue in enumerate(self.queues):
            if queue:
                source, target, channel = self.code.ways[number]
                puts = [row for row in self.order if self._at(row).push == number]
                what = f"rank {target} never takes this message on channel {channel}"
                what += f"; {len(queue)} of rank {source} are left"
                return Fault("left", f"{self.code.tell(*puts[-len(queue)])}: {what}")
        wrong = {cell for cell, value in {**self.case.kept, **self.case.wanted}.items() if self.cells[cell] != value}
        if not wrong:
            return None
        cell, writer = self._first_written(wrong)
        who = self.code.tell(*writer) if writer else f"rank {self.code.places.rank(cell)}, no step of any block"
        if cell in self.case.wanted:
            said = f"ends with {self._said(cell, self.case.wanted[cell])}"
            return Fault("wrong", f"{who}: {self.code.places.tell(cell)} {said}")
        return Fault("input", f"{who}: {self.code.places.tell(cell)} is written over, and is no result")

    def _at(self, row: tuple[int, int]) -> Instruction:
        return self.code.blocks[row[0]].instructions[row[1]]

    def _first_written(self, cells: set[int]) -> tuple[int, tuple[int, int] | None]:
        """Of these cells the one that got what it has first, and from whom: what others got wrong may come from there.
        Nobody, where none was ever written."""
        left = set(cells)
        found: tuple[int, tuple[int, int] | None] = (min(left), None)
        for row in reversed(self.order):
            one = self._at(row)
            for first in one.write:
                mine = left.intersection(range(first, first + one.count))
                if mine:
                    found = min(mine), row
                    left -= mine
        return found

    def _said(self, cell: int, wanted: int) -> str:
        have = self.cells[cell] >> BITS
        if not have:
            return "nothing"
        if have != wanted >> BITS:
            return f"{have} contributions instead of {wanted >> BITS}"
        return "other contributions than it should"
