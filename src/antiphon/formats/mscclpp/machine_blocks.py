"""Turn the operations of an MSCCL++ thread block into blocks of the abstract machine that checks files (lower/machine).

An instruction reads and writes cells, acquires and releases semaphores, and waits for other instructions. Instructions
of one block follow each other; those of different blocks are ordered only as far as the executor orders the operations.

All threads of a block go through its operations independently: a signal or a wait on the i-th of several channels is
performed by thread i, data by all of them, a share each. Only a sync (nop, barrier) makes all wait for all. So among
the operations between two syncs

- data need not come after a wait, nor a signal after data: other threads may be ahead or behind;
- each thread keeps its own order, and cannot pass an operation that waits for packets before its packets have come;
- every operation on the same number of packets deals them to threads alike: the n-th is always the same thread's.

Example: a copy, then signals to two ranks, without a sync. Thread 1 signals the second rank when its own share of the
copy is done; the shares of other threads may come later.

Nearly everywhere this makes no difference, and the operations follow each other in one block of the machine. Elsewhere
every thread that signals or waits, and all data, is a block of its own from sync to sync.

A port passes its requests to a proxy, which performs them later, in order: one block of the machine for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon.errors import Invalid
from antiphon.lower.machine.code import CodeBlock, Instruction

# Operations on packets, which deal these to threads alike
BY_PACKET = frozenset(("ppkt", "rppkt", "upkt", "cpkt", "repkt", "respkt", "recpkt", "recspkt", "gstorepkt"))
Spot = tuple[int, int]  # numbers of a block of the machine and of an instruction in it
Cells = tuple[int, int]  # the first cell, and the number of cells


@dataclass(slots=True)
class ThreadTask:
    """What one thread does: acquire semaphores, release semaphores, or use a port.

    `port` is the port's block of the machine (-1: none), which runs the instruction `later`. With `flush` the thread
    waits until the port has completed all requests. `marks`: packets that the port writes.
    """

    acquire: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    port: int = -1
    later: Instruction | None = None
    flush: bool = False
    marks: Sequence[Cells] = ()


class ThreadTasks:
    """The tasks of a block's first threads, one each.

    `acquired`, `released`: semaphores of all tasks. `fits_one`: one instruction serves all tasks, for none uses a port
    and no two acquire the same semaphore. `can_wait`, `can_signal`: whether any task waits, or has an effect on others.
    """

    __slots__ = ("acquired", "can_signal", "can_wait", "fits_one", "released", "tasks")

    def __init__(self, tasks: list[ThreadTask]) -> None:
        self.tasks = tasks
        self.acquired = tuple(semaphore for task in tasks for semaphore in task.acquire)
        self.released = tuple(semaphore for task in tasks for semaphore in task.release)
        self.fits_one = all(task.port < 0 for task in tasks) and len(set(self.acquired)) == len(self.acquired)
        self.can_wait = bool(self.acquired) or any(task.flush for task in tasks)
        self.can_signal = bool(self.released) or any(task.later is not None for task in tasks)


@dataclass(slots=True)
class BlockItem:
    """An operation on data, or signals and waits of `threads`. It waits for the packets `flags` and writes `marks`."""

    instruction: Instruction
    threads: ThreadTasks | None = None
    flags: Sequence[Cells] = ()
    marks: Sequence[Cells] = ()


def _with_semaphores(
    instruction: Instruction, acquire: tuple[int, ...], release: tuple[int, ...], wait: tuple[Spot, ...]
) -> Instruction:
    """Return the instruction with these semaphores and waits. (`replace` is far slower.)"""
    return Instruction(
        instruction.number, instruction.verb, instruction.count, instruction.read, instruction.write, instruction.pop,
        instruction.push, wait, acquire, release, instruction.loose, instruction.ahead,
    )  # fmt: skip


@dataclass
class Machine:
    """The blocks built so far, and what relates them: writers and readers of packets, and operations in order."""

    blocks: list[CodeBlock] = field(default_factory=list)
    writers: dict[int, list[Spot]] = field(default_factory=dict)  # by cell
    readers: list[tuple[Spot, Sequence[Cells]]] = field(default_factory=list)
    last_request: dict[int, Spot] = field(default_factory=dict)  # the last request to each port
    inorder: list[tuple[Spot, Spot]] = field(default_factory=list)  # pairs of requests to a port that must be in order
    # the last instructions of main blocks before work of separate threads; blocks of that work wait for them, so
    # read.py must not drop them when it drops idle visits of barriers
    fences: set[Spot] = field(default_factory=set)
    # pairs (later, earlier) of operations on data: each thread finishes its share of the earlier before it begins its
    # share of the later
    delays: list[tuple[Spot, Spot]] = field(default_factory=list)

    def block(self, rank: int, name: str, *, detached: bool = False) -> int:
        """Add a block without instructions; return its number. `detached`: it may run on after its rank has ended."""
        self.blocks.append(CodeBlock(rank, name, instructions=[], detached=detached))
        return len(self.blocks) - 1

    def add(self, block: int, instruction: Instruction) -> Spot:
        instructions = self.blocks[block].instructions
        instructions.append(instruction)
        return block, len(instructions) - 1

    def last(self, block: int) -> tuple[Spot, ...]:
        """Return the last instruction of a block, () if it has none."""
        instructions = self.blocks[block].instructions
        return ((block, len(instructions) - 1),) if instructions else ()

    def add_waits(self, spot: Spot, spots: tuple[Spot, ...]) -> None:
        """Make the instruction at `spot` wait for those at `spots`, too."""
        block, number = spot
        instruction = self.blocks[block].instructions[number]
        instruction.wait = (*instruction.wait, *spots)

    def resolve_packets(self) -> None:
        """Make readers of packets wait for their writers; without a writer they wait forever. Refuse two writers: a
        reader would take the packet that comes first."""
        for last_block, last_number in (spots[-1] for spots in self.writers.values() if len(set(spots)) > 1):
            block = self.blocks[last_block]
            where = f"rank {block.rank}, {block.name}, step {block.instructions[last_number].number}"
            raise Invalid(f"{where}: writes packets where others of the same call are written; give each their place")
        for spot, flags in self.readers:
            # a packet without a writer never comes: wait for an instruction that never runs, after the block's last one
            own_block, _ = spot
            never = own_block, len(self.blocks[own_block].instructions)
            writers: dict[Spot, None] = {}  # a dictionary as an ordered set
            for first, count in flags:
                for cell in range(first, first + count):
                    for writer in self.writers.get(cell, (never,)):
                        writers[writer] = None
            self.add_waits(spot, tuple(writers))


class BlockBuilder:
    """Builds the blocks of the machine for one thread block, operation by operation."""

    def __init__(self, machine: Machine, rank: int, name: str) -> None:
        self.machine, self.rank, self.name = machine, rank, name
        self.main = machine.block(rank, name)
        self.beside: list[int] = []  # blocks of the machine for threads and data that `main` does not order
        self.open: list[BlockItem] = []  # items since the last sync
        self.unsynced: list[Spot] = []  # the next sync must wait for these

    def sync(self, number: int, verb: str, *, always: bool = False) -> None:
        """Make all threads wait for each other.

        `always`: add an instruction even if nobody has to wait, such as the arrival at a barrier.
        """
        self.close()
        # if `unsynced` is empty, nothing runs beside the main block, which is in order anyway: nobody has to wait
        if self.unsynced or always:
            self.machine.add(self.main, Instruction(number, verb, wait=tuple(self.unsynced)))
            self.unsynced = []

    def close(self) -> None:
        """Add the items since the last sync to the machine."""
        items, self.open = self.open, []
        # slow path: the threads could overtake each other in a way that matters
        if not _is_in_line(items):
            _SeparateThreads(self, items).add_items()
            return
        instructions = self.machine.blocks[self.main].instructions
        for item in items:
            threads = item.threads
            if threads is None:
                instructions.append(item.instruction)
                if item.flags or item.marks:
                    record_packets(self.machine, (self.main, len(instructions) - 1), item.flags, item.marks)
            elif threads.fits_one:
                instructions.append(_with_semaphores(item.instruction, threads.acquired, threads.released, wait=()))
            else:
                for task in threads.tasks:
                    self.add_task(self.main, item.instruction, task, wait=())

    def add_task(self, block: int, instruction: Instruction, task: ThreadTask, wait: tuple[Spot, ...]) -> Spot:
        """Add what one thread does; return the instruction that completes it."""
        spot = self.machine.add(block, _with_semaphores(instruction, task.acquire, task.release, wait))
        if task.later is not None:
            record_packets(
                self.machine, self.machine.add(task.port, replace(task.later, wait=(spot,))), flags=(), marks=task.marks
            )
            # two threads that use one port may issue in either order: record that the order must be proven
            before = self.machine.last_request.get(task.port, spot)  # the first request to a port follows none
            before_block, _ = before
            if before_block != block:
                self.machine.inorder.append((before, spot))
            self.machine.last_request[task.port] = spot
        if task.flush and self.machine.last(task.port):  # a port without requests has nothing to complete
            spot = self.machine.add(block, replace(instruction, wait=self.machine.last(task.port)))
        return spot

    def extra_block(self, number: int) -> int:
        """Return block `number` of those beside the main one; add blocks up to it."""
        while len(self.beside) <= number:
            self.beside.append(self.machine.block(self.rank, self.name))
        return self.beside[number]


def record_packets(machine: Machine, spot: Spot, flags: Sequence[Cells], marks: Sequence[Cells]) -> None:
    """Record that the instruction reads the packets `flags` and writes the packets `marks`."""
    if flags:
        machine.readers.append((spot, flags))
    for first, count in marks:
        for cell in range(first, first + count):
            machine.writers.setdefault(cell, []).append(spot)


class _SeparateThreads:
    """Adds the operations between two syncs, with a block of the machine for each thread and each operation on data."""

    def __init__(self, builder: BlockBuilder, items: list[BlockItem]) -> None:
        self.builder, self.machine, self.items = builder, builder.machine, items
        self.fence = self.machine.last(builder.main)  # () at the start of a thread block
        self.machine.fences.update(self.fence)
        self.used = 0  # of the builder's extra blocks, which serve again after every sync
        self.block: dict[int, int] = {0: builder.main}  # by thread
        self.last_spot: dict[int, Spot] = {}  # by thread: its last instruction
        self.flags: list[Cells] = []  # packets that all threads have waited for
        self.last_data: list[Spot] = []  # the latest operation on data; [] before the first
        self.data_operations: list[tuple[Instruction, Spot]] = []  # all operations on data

    def add_items(self) -> None:
        for item in self.items:
            if item.threads is None:
                self._add_data(item)
                continue
            for thread, task in enumerate(item.threads.tasks):
                self._add_task(item, thread, task)
        # thread 0 is the main block itself
        self.builder.unsynced += [spot for thread, spot in self.last_spot.items() if thread]

    def _add_data(self, item: BlockItem) -> None:
        """Add an operation on data; each thread does a part when it comes to it.

        The first thread may do so before any thread has waited; the last comes after all earlier waits.
        """
        block = self._new_block()
        alike_spots = [spot for other, spot in self.data_operations if _are_dealt_alike(other, item.instruction)]
        item.instruction.wait = (*self.fence, *alike_spots)
        spot = self.machine.add(block, item.instruction)
        self.data_operations.append((item.instruction, spot))
        record_packets(self.machine, spot, item.flags, marks=())
        self.machine.delays += [(spot, before) for before in self.last_data]
        # packets are complete only when the last thread has written its part, after all its earlier waits
        if item.marks and self.last_spot:
            spot = self.machine.add(
                block, Instruction(item.instruction.number, item.instruction.verb, wait=tuple(self.last_spot.values()))
            )
        record_packets(self.machine, spot, flags=(), marks=item.marks)
        self.builder.unsynced.append(spot)
        self.flags += item.flags
        self.last_data = [spot]

    def _add_task(self, item: BlockItem, thread: int, task: ThreadTask) -> None:
        """Add what one thread does to the block of the machine for this thread."""
        if thread not in self.block:
            self.block[thread] = self._new_block()
        block = self.block[thread]
        # a new thread starts at the last sync
        wait = () if thread in self.last_spot or not thread else self.fence
        first_number = len(self.machine.blocks[block].instructions)  # of the first instruction of this task
        self.last_spot[thread] = self.builder.add_task(block, item.instruction, task, wait)
        # a thread signals after its part of earlier data, so also after the packets that these waited for
        record_packets(self.machine, (block, first_number), list(self.flags), marks=())

    def _new_block(self) -> int:
        self.used += 1
        return self.builder.extra_block(self.used - 1)


def _is_in_line(items: list[BlockItem]) -> bool:
    """Return whether the operations can follow each other in one block: no thread can break an order that matters."""
    # one pass: operations on data since the last sync; whether any thread has waited; whether several threads have
    data: list[Instruction] = []
    has_wait = waited_by_several = False
    for item in items:
        threads = item.threads
        if threads is None:
            # data may overtake a wait of another thread, or data of the same cells
            if has_wait or (data and any(_are_in_conflict(item.instruction, other) for other in data)):
                return False
            data.append(item.instruction)
            has_wait = has_wait or bool(item.flags)
            continue
        several = len(threads.tasks) > 1
        # a signal may overtake data, and waits of other threads
        if threads.can_signal and (data or (has_wait and (waited_by_several or several))):
            return False
        if threads.can_wait:
            has_wait, waited_by_several = True, waited_by_several or several
    return True


def _are_in_conflict(first: Instruction, second: Instruction) -> bool:
    """Return whether both touch a cell that one of them writes, and not by the same thread."""
    return bool(_shared_cells(first, second)) and not _are_dealt_alike(first, second)


def _are_dealt_alike(first: Instruction, second: Instruction) -> bool:
    """Return whether both are on packets and, in both, each cell that they share is the same thread's."""
    shared = _shared_cells(first, second)
    is_by_packet = {first.verb, second.verb} <= BY_PACKET and first.count == second.count
    return is_by_packet and bool(shared) and all(a == b for a, b in shared)


def _shared_cells(first: Instruction, second: Instruction) -> list[tuple[int, int]]:
    """Return pairs of places, one of each instruction, that share cells which one of the two writes."""
    return [
        (a, b)
        for own_cells, other_cells in ((first.write, (*second.read, *second.write)), (first.read, second.write))
        for a in own_cells
        for b in other_cells
        if a < b + second.count and b < a + first.count
    ]
