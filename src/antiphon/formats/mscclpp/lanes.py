"""The operations of a thread block as blocks of the machine, with no more order among them than the executor gives.

All threads of a block go through its operations, each on its own: a signal or a wait on the i-th of several channels is
done by thread i, data by all of them, a part each. Only a sync (nop, barrier) has all wait for all. So of what stands
between two syncs

- data is not behind a wait, and a signal is not behind data: other threads may be ahead, or not there yet;
- what thread i does is in order, and it cannot pass data that waits for packets before its own part has come.

Where nothing of this makes a difference, which is nearly everywhere, the operations follow each other in one block of
the machine. Elsewhere every thread that signals or waits, and all data, is a block of its own from sync to sync.

A port hands what it is asked for to a proxy, which does it later, in order: one block of the machine for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon.lower.machine.code import Block, Instruction

Spot = tuple[int, int]  # a block of the machine, and an instruction of it
Cells = tuple[int, int]  # the first, and how many


@dataclass(slots=True)
class Lane:
    """What one thread does: take, give, have a `port` (a block of the machine) do something `later`, or wait until that
    has done all it was asked for (`flush`)."""

    acquire: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    port: int = -1
    later: Instruction | None = None
    flush: bool = False


class Threads:
    """The lanes of the first threads. `taken`, `given`: of all, where they only take or give (`plain`): then they are
    one instruction."""

    __slots__ = ("given", "gives", "lanes", "plain", "taken", "takes")

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        self.taken = tuple(semaphore for lane in lanes for semaphore in lane.acquire)
        self.given = tuple(semaphore for lane in lanes for semaphore in lane.release)
        self.plain = all(lane.port < 0 for lane in lanes) and len(set(self.taken)) == len(self.taken)
        self.takes = bool(self.taken) or any(lane.flush for lane in lanes)
        self.gives = bool(self.given) or any(lane.later is not None for lane in lanes)


@dataclass(slots=True)
class Item:
    """An operation: data, or what threads do. `flags`: packets that it waits for; `marks`: that it writes."""

    one: Instruction
    threads: Threads | None = None
    flags: Sequence[Cells] = ()
    marks: Sequence[Cells] = ()


def _telling(one: Instruction, taken: tuple[int, ...], given: tuple[int, ...], wait: tuple[Spot, ...]) -> Instruction:
    """The same, which takes and gives. (`replace` takes far longer.)"""
    return Instruction(
        one.number, one.verb, one.count, one.read, one.write, one.pop, one.push, wait, taken, given, one.loose,
        one.ahead,
    )  # fmt: skip


@dataclass
class Machine:
    """Blocks as they come to be; who writes which packets, and who waits for them."""

    blocks: list[Block] = field(default_factory=list)
    writers: dict[int, list[Spot]] = field(default_factory=dict)  # by cell
    readers: list[tuple[Spot, Sequence[Cells]]] = field(default_factory=list)
    asked: dict[int, Spot] = field(default_factory=dict)  # of each port who asked it last
    inorder: list[tuple[Spot, Spot]] = field(default_factory=list)  # who must ask a port before whom
    held: list[tuple[Spot, Spot]] = field(default_factory=list)  # data, and data before it: no thread passes its part

    def block(self, rank: int, name: str, *, beside: bool = False) -> int:
        self.blocks.append(Block(rank, name, [], beside))
        return len(self.blocks) - 1

    def add(self, block: int, one: Instruction) -> Spot:
        made = self.blocks[block].instructions
        made.append(one)
        return block, len(made) - 1

    def last(self, block: int) -> tuple[Spot, ...]:
        made = self.blocks[block].instructions
        return ((block, len(made) - 1),) if made else ()

    def wait_more(self, spot: Spot, more: tuple[Spot, ...]) -> None:
        one = self.blocks[spot[0]].instructions[spot[1]]
        one.wait = (*one.wait, *more)

    def settle(self) -> None:
        """Who waits for packets waits for all that write them. A packet that nobody writes never comes."""
        for spot, flags in self.readers:
            found: dict[Spot, None] = {}
            for first, count in flags:
                for cell in range(first, first + count):
                    for writer in self.writers.get(cell, ((spot[0], len(self.blocks[spot[0]].instructions)),)):
                        found[writer] = None
            self.wait_more(spot, tuple(found))


class Lanes:
    """One thread block, operation by operation."""

    def __init__(self, machine: Machine, rank: int, name: str) -> None:
        self.machine, self.rank, self.name = machine, rank, name
        self.main = machine.block(rank, name)
        self.beside: list[int] = []  # blocks of the machine for what is not in line
        self.open: list[Item] = []
        self.loose: list[Spot] = []  # what the next sync must wait for

    def sync(self, number: int, verb: str, *, always: bool = False) -> None:
        """All threads wait for each other."""
        self.close()
        if self.loose or always:
            self.machine.add(self.main, Instruction(number, verb, wait=tuple(self.loose)))
            self.loose = []

    def close(self) -> None:
        items, self.open = self.open, []
        if not _in_line(items):
            _Apart(self, items).go()
            return
        made = self.machine.blocks[self.main].instructions
        for item in items:
            threads = item.threads
            if threads is None:
                made.append(item.one)
                if item.flags or item.marks:
                    note(self.machine, (self.main, len(made) - 1), item.flags, item.marks)
            elif threads.plain:
                made.append(_telling(item.one, threads.taken, threads.given, ()))
            else:
                for lane in threads.lanes:
                    self.lane(self.main, item.one, lane, ())

    def lane(self, block: int, one: Instruction, lane: Lane, wait: tuple[Spot, ...]) -> Spot:
        """Gives where it stands."""
        spot = self.machine.add(block, _telling(one, lane.acquire, lane.release, wait))
        if lane.later is not None:
            self.machine.add(lane.port, replace(lane.later, wait=(spot,)))
            before = self.machine.asked.get(lane.port, spot)
            if before[0] != block:
                self.machine.inorder.append((before, spot))
            self.machine.asked[lane.port] = spot
        if lane.flush and self.machine.last(lane.port):
            spot = self.machine.add(block, replace(one, wait=self.machine.last(lane.port)))
        return spot

    def spare(self, number: int) -> int:
        """The machine's block for the n-th thing that is not in line."""
        while len(self.beside) <= number:
            self.beside.append(self.machine.block(self.rank, self.name))
        return self.beside[number]


def note(machine: Machine, spot: Spot, flags: Sequence[Cells], marks: Sequence[Cells]) -> None:
    if flags:
        machine.readers.append((spot, flags))
    for first, count in marks:
        for cell in range(first, first + count):
            machine.writers.setdefault(cell, []).append(spot)


class _Apart:
    """Operations between two syncs, each thread and all data on its own."""

    def __init__(self, lanes: Lanes, items: list[Item]) -> None:
        self.lanes, self.machine, self.items = lanes, lanes.machine, items
        self.fence = self.machine.last(lanes.main)
        self.used = 0
        self.block: dict[int, int] = {0: lanes.main}  # of each thread
        self.seen: dict[int, Spot] = {}  # of each thread, where it stands
        self.flags: list[Cells] = []  # what all threads have waited for
        self.data: list[Spot] = []  # the data before

    def go(self) -> None:
        for item in self.items:
            if item.threads is None:
                self._data(item)
                continue
            for thread, lane in enumerate(item.threads.lanes):
                self._thread(item, thread, lane)
        self.lanes.loose += [spot for thread, spot in self.seen.items() if thread]

    def _data(self, item: Item) -> None:
        """Each thread does its part when it gets there: so none need have waited for anything, and the last comes when
        all have."""
        block = self._fresh()
        item.one.wait = self.fence
        spot = self.machine.add(block, item.one)
        note(self.machine, spot, item.flags, [])
        self.machine.held += [(spot, before) for before in self.data]
        if item.marks and self.seen:
            spot = self.machine.add(block, Instruction(item.one.number, item.one.verb, wait=tuple(self.seen.values())))
        note(self.machine, spot, [], item.marks)
        self.lanes.loose.append(spot)
        self.flags += item.flags
        self.data = [spot]

    def _thread(self, item: Item, thread: int, lane: Lane) -> None:
        if thread not in self.block:
            self.block[thread] = self._fresh()
        block = self.block[thread]
        wait = () if thread in self.seen or not thread else self.fence
        before = len(self.machine.blocks[block].instructions)
        self.seen[thread] = self.lanes.lane(block, item.one, lane, wait)
        note(self.machine, (block, before), list(self.flags), [])

    def _fresh(self) -> int:
        self.used += 1
        return self.lanes.spare(self.used - 1)


def _in_line(items: list[Item]) -> bool:
    """Whether the order of these operations makes no difference that their threads could not keep."""
    data: list[Instruction] = []
    taken = wide = False
    for item in items:
        threads = item.threads
        if threads is None:
            if taken or (data and any(_meet(item.one, other) for other in data)):
                return False
            data.append(item.one)
            taken = taken or bool(item.flags)
            continue
        several = len(threads.lanes) > 1
        if threads.gives and (data or (taken and (wide or several))):
            return False
        if threads.takes:
            taken, wide = True, wide or several
    return True


def _meet(one: Instruction, other: Instruction) -> bool:
    """Whether both touch a cell, and one of them writes it."""
    return any(
        a < b + other.count and b < a + one.count
        for mine, theirs in ((one.write, (*other.read, *other.write)), (one.read, other.write))
        for a in mine
        for b in theirs
    )
