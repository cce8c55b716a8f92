"""The instructions of thread blocks on an abstract machine: the common form into which readers of runtimes' files
convert.

A rank has three buffers, input, output and scratch, cut into chunks of one size; every chunk is a **cell**. A block
executes its instructions one after another. An instruction begins when all its conditions hold, and is atomic:

1. it waits until other instructions are done (`wait`), takes one from every semaphore of `acquire`, needs a full slot
   of the connection `pop` and an empty one of the connection `push`;
2. its value, chunk by chunk of `count`, combines the message from `pop` with the cells of `read`;
3. the value is written at all places of `write` and put into `push`; every semaphore of `release` gets one.

Example: a local reduction reads its destination and its source, and writes its destination. A **connection** is a queue
from one rank to another on one channel, with `slots` slots (0: no limit); a slot holds the value of one instruction. A
**semaphore** is a counter that begins at its `start`. Cells of other ranks may be read and written: by puts, gets, and
switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.interpret.buffers import sides

INPUT, OUTPUT, SCRATCH = range(3)


@dataclass(frozen=True, eq=False)
class Places:
    """Where buffers lie among the cells: that of rank r and kind b begins at first[r, b] and has size[r, b]. In place
    the input and the output of a rank share cells."""

    first: Longs
    size: Longs
    begin: Longs  # of each rank its first cell, and behind the last rank their number
    cells_per_chunk: tuple[int, int, int] = (1, 1, 1)  # by kind: cells of a chunk of the file

    @staticmethod
    def of(collective: Collective, in_place: bool, grain: int, scratch: Sequence[int]) -> Places:
        """Return the places for a collective. `grain`: chunks of every block; `scratch`: chunks of each rank.

        In place, the input of an allgather is a part of the output:

        >>> places = Places.of(Collective("allgather", 2), True, 3, [0, 1])
        >>> places.first.tolist(), places.begin.tolist()
        ([[0, 0, 6], [9, 6, 12]], [0, 6, 13])
        """
        room = np.asarray(scratch, np.int64)
        first, last = sides(collective, in_place)
        size = [np.bincount(side.rank, minlength=collective.ranks) * grain for side in (first, last)]
        data_cells = (size[0] + size[1]) if not in_place else last.size * grain
        begin = np.concatenate([[0], np.cumsum(data_cells + room)]).astype(np.int64)
        lies = [begin[:-1].copy(), begin[:-1] + (0 if in_place else size[0]), begin[:-1] + data_cells]
        if in_place:
            for at, side in enumerate((first, last)):
                ranks, row = np.unique(side.rank, return_index=True)
                lies[at][ranks] += side.start[row] * grain
        return Places(np.stack(lies, axis=1), np.stack([*size, room], axis=1), begin)

    def owner(self, cell: Longs) -> Longs:
        """Return the rank of each cell."""
        ranks: Longs = np.searchsorted(self.begin, cell, side="right") - 1
        return ranks

    def rank(self, cell: int) -> int:
        return int(self.owner(np.array([cell]))[0])

    def tell(self, cell: int) -> str:
        """Describe a cell in the user's terms."""
        rank = self.rank(cell)
        for kind, name in ((OUTPUT, "output"), (INPUT, "input"), (SCRATCH, "scratch")):
            at = cell - int(self.first[rank, kind])
            if 0 <= at < int(self.size[rank, kind]):
                chunk, part_number = divmod(at, self.cells_per_chunk[kind])
                part_text = (
                    f", part {part_number} of {self.cells_per_chunk[kind]}," if self.cells_per_chunk[kind] > 1 else ""
                )
                return f"chunk {chunk}{part_text} of the {name} of rank {rank}"
        return f"cell {cell} of rank {rank}"


@dataclass(slots=True)
class Instruction:
    """An instruction of a block.

    `number`: its number in the file. `read`, `write`: first cells of stretches of `count` cells. `wait`: (block, index
    of the instruction in that block). `pop`, `push`: connections, -1 if none. `loose`: its semaphores order execution,
    but do not make writes visible. `ahead`: it may write at other ranks before these have begun, if its rank receives
    from them before it ends (data with flags, into one of two scratch buffers that alternate). Not frozen: there are
    millions, and frozen objects take longer to create.
    """

    number: int
    verb: str
    count: int = 1
    read: tuple[int, ...] = ()
    write: tuple[int, ...] = ()
    pop: int = -1
    push: int = -1
    wait: tuple[tuple[int, int], ...] = ()
    acquire: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    loose: bool = False
    ahead: bool = False


@dataclass(frozen=True)
class Block:
    """A thread block. `name`: its name in the file; `beside`: it runs by itself, and its rank may end before it."""

    rank: int
    name: str
    instructions: list[Instruction] = field(default_factory=list)
    beside: bool = False


@dataclass(frozen=True, eq=False)
class Code:
    """All blocks of all ranks.

    `connections`: (from, to, channel). `start`: the initial value of each semaphore. `apart`: ranks begin and end
    independently; outside its run the cells of a rank belong to the user, so other ranks must synchronize with it
    before they access them, and semaphores must end at their start value, for the next call. `message_chunks`: how many
    chunks of an instruction are one message, at every size of the data.
    """

    collective: Collective
    in_place: bool
    grain: int
    places: Places
    blocks: list[Block]
    connections: list[tuple[int, int, int]] = field(default_factory=list)
    slots: int = 0
    start: list[int] = field(default_factory=list)
    apart: bool = False
    message_chunks: int = 1
    named: list[str] = field(default_factory=list)  # the name of each semaphore in the file
    # pairs of (block, index): the reader of the file relies on the first coming before the second in every order
    inorder: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    # pairs of (block, index): the first instruction cannot end before the second has ended, though it does not wait for
    # it as a whole; this orders no data, but may cause a hang
    delays: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)

    @property
    def begin(self) -> Longs:
        """Return the first row (instruction number over all blocks) of each block, and the number of rows."""
        return np.concatenate([[0], np.cumsum([len(block.instructions) for block in self.blocks])]).astype(np.int64)

    def spots(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Convert rows to (block, index)."""
        begin, row = self.begin, np.asarray(rows, np.int64)
        block = np.searchsorted(begin, row, side="right") - 1
        return list(zip(block.tolist(), (row - begin[block]).tolist(), strict=True))

    def tell(self, block: int, index: int) -> str:
        """Describe an instruction in the user's terms."""
        its_block = self.blocks[block]
        instruction = its_block.instructions[index]
        return f"rank {its_block.rank}, {its_block.name}, step {instruction.number} ({instruction.verb})"


def held_up(code: Code) -> Code:
    """Return the code with a wait for each of its `delays`: if that hangs, the code may hang."""
    blocks = [Block(block.rank, block.name, list(block.instructions), block.beside) for block in code.blocks]
    for (block, index), before in code.delays:
        instructions = blocks[block].instructions
        instructions[index] = replace(instructions[index], wait=(*instructions[index].wait, before))
    return replace(code, blocks=blocks)


def spread(code: Code) -> Code:
    """Split instructions on a connection into messages of `message_chunks` chunks, as runtimes do for large chunks.

    Each waits and acquires before the first of them, and releases after the last. A code that ends this way ends with
    more chunks in a message, too: leave out the later messages of each instruction.
    """
    blocks = []
    begins = [_spread_begins(block, code.message_chunks) for block in code.blocks]
    for block in code.blocks:
        instructions: list[Instruction] = []
        for instruction in block.instructions:
            instructions += _split_messages(instruction, begins, code.message_chunks)
        blocks.append(Block(block.rank, block.name, instructions, block.beside))
    return replace(code, blocks=blocks, delays=[])


def _message_starts(instruction: Instruction, message_chunks: int) -> range:
    """Return the first chunks of its messages."""
    return range(
        0,
        max(instruction.count, 1),
        message_chunks if instruction.pop >= 0 or instruction.push >= 0 else max(instruction.count, 1),
    )


def _spread_begins(block: Block, message_chunks: int) -> list[int]:
    """Return the begin of each instruction once split into messages, and the end of the last."""
    begins = [0]
    for instruction in block.instructions:
        begins.append(begins[-1] + len(_message_starts(instruction, message_chunks)))
    return begins


def _split_messages(instruction: Instruction, begins: list[list[int]], message_chunks: int) -> Iterable[Instruction]:
    """Yield the parts of an instruction, one per message."""
    wait = tuple((block, begins[block][index + 1] - 1) for block, index in instruction.wait)
    chunk_starts = _message_starts(instruction, message_chunks)
    for chunk in chunk_starts:
        count = instruction.count if len(chunk_starts) == 1 else min(message_chunks, instruction.count - chunk)
        yield Instruction(
            instruction.number, instruction.verb, count, tuple(cell + chunk for cell in instruction.read),
            tuple(cell + chunk for cell in instruction.write), instruction.pop, instruction.push,
            wait if chunk == 0 else (), instruction.acquire if chunk == 0 else (),
            instruction.release if chunk == chunk_starts[-1] else (), instruction.loose, instruction.ahead,
        )  # fmt: skip
