"""The instructions of thread blocks on an abstract machine: the common form into which readers of runtimes' files
convert.

A rank has three buffers, input, output and scratch, cut into **cells** of one size; a chunk of the file is one or more
cells. A thread block (`CodeBlock`) executes its instructions one after another. A **connection** is a queue from one
rank to another on one channel, with `slots` slots (0: no limit); a slot holds the value of one instruction. A
**semaphore** is a counter that begins at its `start`.

An instruction begins when all its conditions hold, and is atomic:

1. it waits until other instructions are done (`wait`), takes one from every semaphore of `acquire`, needs a full slot
   of the connection `pop` and an empty slot of the connection `push`;
2. its value, cell by cell of its `count` cells, combines the message from `pop` with the cells of `read`;
3. the value is written to all cells of `write` and put into `push`; every semaphore of `release` gets one.

Example: a local reduction reads its destination and its source, and writes its destination. Cells of other ranks may be
read and written, too: by puts, by gets and by switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.interpret.buffers import sides

INPUT, OUTPUT, SCRATCH = range(3)
Spot = tuple[int, int]  # an instruction: its block (of `Code.blocks`) and its index there


@dataclass(frozen=True, eq=False)
class CellPlaces:
    """Where buffers lie among the cells of all ranks. In place the input and the output of a rank share cells."""

    first: Longs  # by (rank, kind of buffer): its first cell
    size: Longs  # by (rank, kind of buffer): its number of cells
    begin: Longs  # per rank its first cell; last, the number of all cells
    cells_per_chunk: tuple[int, int, int] = (1, 1, 1)  # by kind of buffer: cells of a chunk of the file

    @staticmethod
    def of(collective: Collective, in_place: bool, grain: int, scratch: Sequence[int]) -> CellPlaces:
        """Return the places for a collective: rank by rank, its input, output and scratch.

        `grain`: cells per weight 1 of a block. `scratch`: cells of scratch of each rank.

        In place, the input of an allgather is a part of the output:

        >>> places = CellPlaces.of(Collective("allgather", 2), in_place=True, grain=3, scratch=[0, 1])
        >>> places.first.tolist(), places.begin.tolist()
        ([[0, 0, 6], [9, 6, 12]], [0, 6, 13])
        """
        scratch_cells = np.asarray(scratch, np.int64)
        input_side, output_side = sides(collective, in_place)
        size = [
            np.bincount(side.rank, collective.weights[side.block], collective.ranks).astype(np.int64) * grain
            for side in (input_side, output_side)
        ]
        # in place `output_side.size` is that of the one buffer (`sides`)
        data_cells = (size[INPUT] + size[OUTPUT]) if not in_place else output_side.size * grain
        begin = np.concatenate([[0], np.cumsum(data_cells + scratch_cells)]).astype(np.int64)
        buffer_begin = [begin[:-1].copy(), begin[:-1] + (0 if in_place else size[INPUT]), begin[:-1] + data_cells]
        if in_place:
            # `side.start`: where a row begins in the one buffer; the first row of a rank is where its side begins
            for kind, side in enumerate((input_side, output_side)):
                ranks, row = np.unique(side.rank, return_index=True)
                buffer_begin[kind][ranks] += side.start[row] * grain
        return CellPlaces(np.stack(buffer_begin, axis=1), np.stack([*size, scratch_cells], axis=1), begin)

    def owner(self, cell: Longs) -> Longs:
        """Return the rank of each cell."""
        ranks: Longs = np.searchsorted(self.begin, cell, side="right") - 1
        return ranks

    def rank(self, cell: int) -> int:
        return int(self.owner(np.array([cell]))[0])

    def describe(self, cell: int) -> str:
        """Describe a cell in the user's terms."""
        rank = self.rank(cell)
        for kind, name in ((OUTPUT, "output"), (INPUT, "input"), (SCRATCH, "scratch")):
            offset = cell - int(self.first[rank, kind])
            if 0 <= offset < int(self.size[rank, kind]):
                chunk, part_number = divmod(offset, self.cells_per_chunk[kind])
                part_text = (
                    f", part {part_number} of {self.cells_per_chunk[kind]}," if self.cells_per_chunk[kind] > 1 else ""
                )
                return f"chunk {chunk}{part_text} of the {name} of rank {rank}"
        return f"cell {cell} of rank {rank}"


@dataclass(slots=True)
class Instruction:
    """An instruction of a thread block.

    Not frozen: there are millions, and frozen objects take longer to create.
    """

    number: int  # in the file
    verb: str  # the file's name for what it does
    count: int = 1  # cells; 0: it moves no data (MSCCL's nop)
    read: tuple[int, ...] = ()  # first cells of its operands, of `count` cells each
    write: tuple[int, ...] = ()  # first cells of its targets, of `count` cells each
    pop: int = -1  # the connection from which it takes a message; -1: none
    push: int = -1  # the connection into which it puts one; -1: none
    wait: tuple[Spot, ...] = ()  # the instructions that must be done before it
    acquire: tuple[int, ...] = ()  # semaphores
    release: tuple[int, ...] = ()  # semaphores
    loose: bool = False  # its semaphores order execution, but do not make writes visible (relaxed memory order)
    # It may write at other ranks before they begin this call: data with flags (as in NCCL's LL), into scratch buffers
    # that alternate from call to call. For that, its rank must receive from these ranks before the call ends.
    ahead: bool = False


@dataclass(frozen=True)
class CodeBlock:
    """A thread block. In `Code`, blocks are numbered over all ranks."""

    rank: int
    name: str  # in the file
    instructions: list[Instruction] = field(default_factory=list)
    detached: bool = False  # it runs by itself, such as a proxy; its rank may end before it


@dataclass(frozen=True, eq=False)
class Code:
    """All thread blocks of all ranks.

    With `independent_ranks`, ranks begin and end independently. Outside its run the cells of a rank belong to the user,
    so other ranks must synchronize with it before they access them; and semaphores must end at their start value, for
    the next call.
    """

    collective: Collective
    in_place: bool
    grain: int  # cells per weight 1 of a block of the collective
    places: CellPlaces
    blocks: list[CodeBlock]
    connections: list[tuple[int, int, int]] = field(default_factory=list)  # (from, to, channel)
    slots: int = 0  # of a connection; 0: no limit
    start: list[int] = field(default_factory=list)  # the initial value of each semaphore
    independent_ranks: bool = False
    # chunks of an instruction that travel as one message, however large chunks are; a chunk is one cell in all files
    # with connections (MSCCL's)
    message_chunks: int = 1
    semaphore_names: list[str] = field(default_factory=list)  # in the file
    # (earlier, later): the runtime relies on this order of the two in every run; judge.py checks that the code forces
    # it
    inorder: list[tuple[Spot, Spot]] = field(default_factory=list)
    # (later, earlier): the later one cannot end before the earlier one has, though it may begin and send some of its
    # data (MSCCL++'s packets, written by many threads); this orders no data, but may cause a hang
    delays: list[tuple[Spot, Spot]] = field(default_factory=list)

    @property
    def begin(self) -> Longs:
        """Return the first row (instruction number over all blocks) of each block, and the number of rows."""
        return np.concatenate([[0], np.cumsum([len(block.instructions) for block in self.blocks])]).astype(np.int64)

    def positions(self, rows: Sequence[int]) -> list[Spot]:
        """Return the instructions with these numbers (rows) over all blocks."""
        begin, row = self.begin, np.asarray(rows, np.int64)
        block = np.searchsorted(begin, row, side="right") - 1
        return list(zip(block.tolist(), (row - begin[block]).tolist(), strict=True))

    def describe(self, block: int, index: int) -> str:
        """Describe an instruction in the user's terms."""
        thread_block = self.blocks[block]
        instruction = thread_block.instructions[index]
        return f"rank {thread_block.rank}, {thread_block.name}, step {instruction.number} ({instruction.verb})"


def with_delays(code: Code) -> Code:
    """Return the code with a wait for each of its `delays`: if the result hangs, the code may hang."""
    blocks = [CodeBlock(block.rank, block.name, list(block.instructions), block.detached) for block in code.blocks]
    for (block, index), earlier in code.delays:
        instructions = blocks[block].instructions
        instructions[index] = replace(instructions[index], wait=(*instructions[index].wait, earlier))
    return replace(code, blocks=blocks)


def split_into_messages(code: Code) -> Code:
    """Split instructions on a connection into messages of `message_chunks` chunks, as runtimes do for large chunks.

    An instruction waits and acquires before its first message, and releases after its last. If the split code ends
    without deadlock, so does the code with larger messages: let each of its instructions happen when its first message
    does in the run of the split code. All that it waits for, takes or needs has then happened, as it releases earlier
    than in the split code, and its queues hold no more.

    Only files with connections (MSCCL's) are split: they have no `inorder`, and `delays` order no data.
    """
    blocks = []
    begins = [_begins_after_split(block, code.message_chunks) for block in code.blocks]
    for block in code.blocks:
        instructions: list[Instruction] = []
        for instruction in block.instructions:
            instructions += _split_messages(instruction, begins, code.message_chunks)
        blocks.append(CodeBlock(block.rank, block.name, instructions, block.detached))
    return replace(code, blocks=blocks, delays=[])


def _message_starts(instruction: Instruction, message_chunks: int) -> range:
    """Return the first chunk of each message of an instruction; without a connection it is not split."""
    count = max(instruction.count, 1)
    return range(0, count, message_chunks if instruction.pop >= 0 or instruction.push >= 0 else count)


def _begins_after_split(block: CodeBlock, message_chunks: int) -> list[int]:
    """Return the index of each instruction's first message in the split block, and the length of the split block."""
    begins = [0]
    for instruction in block.instructions:
        begins.append(begins[-1] + len(_message_starts(instruction, message_chunks)))
    return begins


def _split_messages(instruction: Instruction, begins: list[list[int]], message_chunks: int) -> Iterable[Instruction]:
    """Yield an instruction per message; it waits for the last messages of others, which `begins` (by block) locates."""
    wait = tuple((block, begins[block][index + 1] - 1) for block, index in instruction.wait)  # their last messages
    chunk_starts = _message_starts(instruction, message_chunks)
    for chunk in chunk_starts:
        count = instruction.count if len(chunk_starts) == 1 else min(message_chunks, instruction.count - chunk)
        yield Instruction(
            instruction.number,
            instruction.verb,
            count,
            read=tuple(cell + chunk for cell in instruction.read),
            write=tuple(cell + chunk for cell in instruction.write),
            pop=instruction.pop,
            push=instruction.push,
            wait=wait if chunk == 0 else (),
            acquire=instruction.acquire if chunk == 0 else (),
            release=instruction.release if chunk == chunk_starts[-1] else (),
            loose=instruction.loose,
            ahead=instruction.ahead,
        )
