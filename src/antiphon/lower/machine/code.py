"""What blocks of all ranks do, in the words of the machine: readers of runtimes' files make it, and nobody else.

A rank has three buffers, input, output and scratch, cut into chunks of one size; every chunk is a **cell**. A block
does its instructions one after another. An instruction begins when all that it waits for is there, and happens at once:

1. it waits until other instructions are done (`wait`), takes one from every semaphore of `acquire`, needs a full slot
   of the way `pop` and an empty one of the way `push`;
2. its value, chunk by chunk of `count`, is what it takes from `pop` and what it reads at places of `read`, combined;
3. the value is written at all places of `write` and put into `push`; every semaphore of `release` gets one.

So a local reduction reads its destination and its source, and writes its destination. A **way** is a queue from one
rank to another on one channel, with `slots` slots (0: no limit); a slot holds the value of one instruction. A
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
    parts: tuple[int, int, int] = (1, 1, 1)  # of each kind how many cells are a chunk of the file

    @staticmethod
    def of(collective: Collective, in_place: bool, grain: int, scratch: Sequence[int]) -> Places:
        """`grain`: into how many chunks every block is cut; all weigh the same. `scratch`: chunks of each rank.

        In place, the input of an allgather is a part of the output:

        >>> places = Places.of(Collective("allgather", 2), True, 3, [0, 1])
        >>> places.first.tolist(), places.begin.tolist()
        ([[0, 0, 6], [9, 6, 12]], [0, 6, 13])
        """
        room = np.asarray(scratch, np.int64)
        first, last = sides(collective, in_place)
        size = [np.bincount(side.rank, minlength=collective.ranks) * grain for side in (first, last)]
        both = (size[0] + size[1]) if not in_place else last.size * grain
        begin = np.concatenate([[0], np.cumsum(both + room)]).astype(np.int64)
        lies = [begin[:-1].copy(), begin[:-1] + (0 if in_place else size[0]), begin[:-1] + both]
        if in_place:
            for at, side in enumerate((first, last)):
                ranks, row = np.unique(side.rank, return_index=True)
                lies[at][ranks] += side.start[row] * grain
        return Places(np.stack(lies, axis=1), np.stack([*size, room], axis=1), begin)

    def owner(self, cell: Longs) -> Longs:
        """The rank of each cell."""
        found: Longs = np.searchsorted(self.begin, cell, side="right") - 1
        return found

    def rank(self, cell: int) -> int:
        return int(self.owner(np.array([cell]))[0])

    def tell(self, cell: int) -> str:
        """A cell in the user's terms."""
        rank = self.rank(cell)
        for kind, name in ((OUTPUT, "output"), (INPUT, "input"), (SCRATCH, "scratch")):
            at = cell - int(self.first[rank, kind])
            if 0 <= at < int(self.size[rank, kind]):
                chunk, part = divmod(at, self.parts[kind])
                some = f", part {part} of {self.parts[kind]}," if self.parts[kind] > 1 else ""
                return f"chunk {chunk}{some} of the {name} of rank {rank}"
        return f"cell {cell} of rank {rank}"


@dataclass(slots=True)
class Instruction:
    """One of a block; `number` is what the file calls it. Cells of `read` and `write` are the first of `count`.
    `wait`: (block, index of its instruction within that block). `pop` and `push`: -1 where there is none. `loose`: what
    it acquires and releases says that something is done, but does not make visible what was written. `ahead`: it may
    write at other ranks before these have begun, if its rank hears from them before it ends (flagged data, into one of
    two scratch buffers that take turns). There are millions of them: what is frozen takes longer to make."""

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
    """`name`: what the file calls it. `beside`: it goes on for its rank by itself, and does not hold up its end."""

    rank: int
    name: str
    instructions: list[Instruction] = field(default_factory=list)
    beside: bool = False


@dataclass(frozen=True, eq=False)
class Code:
    """All blocks of all ranks. `ways`: (from, to, channel). `start`: of each semaphore. `apart`: ranks begin and end on
    their own, and before and after a rank's cells are the user's: who touches them from elsewhere must know; and
    semaphores end as they began, because the next call finds them so. `least`: so many chunks of an instruction are one
    message, at whatever size the code is run."""

    collective: Collective
    in_place: bool
    grain: int
    places: Places
    blocks: list[Block]
    ways: list[tuple[int, int, int]] = field(default_factory=list)
    slots: int = 0
    start: list[int] = field(default_factory=list)
    apart: bool = False
    least: int = 1
    named: list[str] = field(default_factory=list)  # of each semaphore what the file calls it
    inorder: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)  # (block, index): the first
    # must come before the second in every order; what stands here relies on it
    held: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)  # an instruction that is not over
    # before another is, though no part of it waits for all of that: so data is in no order, but what waits may hang

    @property
    def begin(self) -> Longs:
        """Of each block the first of its instructions if all are rows, and how many there are."""
        return np.concatenate([[0], np.cumsum([len(block.instructions) for block in self.blocks])]).astype(np.int64)

    def spots(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Rows as (block, index)."""
        begin, row = self.begin, np.asarray(rows, np.int64)
        block = np.searchsorted(begin, row, side="right") - 1
        return list(zip(block.tolist(), (row - begin[block]).tolist(), strict=True))

    def tell(self, block: int, index: int) -> str:
        """An instruction in the user's terms."""
        there = self.blocks[block]
        one = there.instructions[index]
        return f"rank {there.rank}, {there.name}, step {one.number} ({one.verb})"


def held_up(code: Code) -> Code:
    """The same where instructions wait for what holds them up: what hangs so, hangs."""
    blocks = [Block(block.rank, block.name, list(block.instructions), block.beside) for block in code.blocks]
    for (block, index), before in code.held:
        made = blocks[block].instructions
        made[index] = replace(made[index], wait=(*made[index].wait, before))
    return replace(code, blocks=blocks)


def spread(code: Code) -> Code:
    """The same with every instruction on a way done by `least` chunks at a time: what runtimes do of large chunks. What
    it waits for and takes comes before the first of them, and what it gives after the last. Whatever gets through
    queues so, does with more chunks in a message, too: leave out the later messages of each instruction."""
    blocks = []
    begins = [_begins(block, code.least) for block in code.blocks]
    for block in code.blocks:
        made: list[Instruction] = []
        for one in block.instructions:
            made += _chunkwise(one, begins, code.least)
        blocks.append(Block(block.rank, block.name, made, block.beside))
    return Code(
        code.collective, code.in_place, code.grain, code.places, blocks, code.ways, code.slots, code.start, code.apart,
        code.least, code.named, code.inorder,
    )  # fmt: skip


def _parts(one: Instruction, least: int) -> range:
    """Where its messages begin."""
    return range(0, max(one.count, 1), least if one.pop >= 0 or one.push >= 0 else max(one.count, 1))


def _begins(block: Block, least: int) -> list[int]:
    """Where each instruction begins once they are done message by message, and where the last ends."""
    found = [0]
    for one in block.instructions:
        found.append(found[-1] + len(_parts(one, least)))
    return found


def _chunkwise(one: Instruction, begins: list[list[int]], least: int) -> Iterable[Instruction]:
    wait = tuple((block, begins[block][index + 1] - 1) for block, index in one.wait)
    parts = _parts(one, least)
    for chunk in parts:
        count = one.count if len(parts) == 1 else min(least, one.count - chunk)
        yield Instruction(
            one.number, one.verb, count, tuple(cell + chunk for cell in one.read),
            tuple(cell + chunk for cell in one.write), one.pop, one.push, wait if chunk == 0 else (),
            one.acquire if chunk == 0 else (), one.release if chunk == parts[-1] else (), one.loose,
            one.ahead,
        )  # fmt: skip
