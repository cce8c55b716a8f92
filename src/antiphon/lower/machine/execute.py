"""Execute a code (code.py) once: thread blocks in a random legal order, with queues and semaphores, on symbolic data.

A code is the instructions of the thread blocks of all ranks. The input is a code, the output is the order of execution
and the first fault: a hang, a read of an empty cell, a wrong result. A *cell* is one chunk of a buffer. It holds a
multiset of contributions (ranks' inputs), represented by two sums of random 64-bit numbers, one pair per contribution,
and the number of contributions. Two different multisets are equal in this form with a probability below 2^-100.

Example: two thread blocks that each first take a message from the other and then send one. In any order both
sleep on an empty queue: the run ends with the fault "hang".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

import numpy as np

from antiphon.core.columns import Longs, concat_ranges
from antiphon.core.interpret.buffers import Side, sides
from antiphon.lower.machine.code import INPUT, OUTPUT, Code, Instruction, Spot

# A value is one integer, so that adding two values adds all three: number of contributions | sum | sum.
WORD = 2**64 - 1  # mask of the lowest 64 bits
SUM_BITS = 96  # bits of each of the two sums: room for 2^32 random numbers of 64 bits
COUNT_SHIFT = 2 * SUM_BITS  # the bits above hold the number of contributions
# Limits of the instructions that a drawn block executes at once: blocks interleave finely, coarsely, or in between.
# Successive seeds take one after another.
_MAX_TURNS = (1, 64, 4)


@dataclass(frozen=True)
class CodeFault:
    """A fault of a code.

    Kinds: "hang" (an instruction never begins), "race" (accesses that nothing orders, see judge.py), "wrong" (a result
    or the length of a message), "empty" (a read of a cell without data), "input" (a user's input is overwritten),
    "left" (a message is never taken, or a semaphore does not end at its start value).
    """

    kind: str
    what: str  # a sentence that describes and locates the fault

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class CodeCase:
    """The initial and the required final values of cells, as indices into `values`."""

    values: list[int]  # values[0] stands for an empty cell
    initial: Longs  # per cell
    cells: Longs  # the cells whose final value is required: first user inputs that are no results, then results
    required: Longs  # per entry of `cells`, its final value
    input_count: int  # the number of user inputs, with which `cells` begins

    @staticmethod
    def of(code: Code, random: Random) -> CodeCase:
        """Draw random contributions for a code, and compute initial and required values."""
        relation = code.collective.relation
        cell_counts = (code.collective.weights * code.grain).tolist()  # of each block; grain: cells per weight 1
        # Every contribution gets a random value per cell of its block; index 0 means empty.
        # A contribution is a pair: a block of the collective and its number there (`name`).
        input_side, output_side = sides(code.collective, code.in_place)
        values = [0]
        index_of = dict[tuple[int, int], int]()  # of a contribution: index of the first of its values
        of_block = dict[int, list[int]]()  # the same by block: of all its contributions
        for block, name in set(zip(relation.pre_block.tolist(), relation.pre_id.tolist(), strict=True)):
            index_of[block, name] = len(values)
            of_block.setdefault(block, []).append(len(values))
            values += [_draw_contribution(random.getrandbits(128)) for _ in range(cell_counts[block])]
        sums: dict[tuple[int, ...], int] = {}  # the contributions of a sum -> its index

        def index_of_sum(block: int, contributions: list[int]) -> int:
            """Return the index of the first of the sums, one per cell, of these contributions to a block."""
            if len(contributions) == 1:
                return contributions[0]
            # Equal sums share an index, so that memory is linear in distinct sums.
            key = tuple(contributions)
            if key not in sums:
                sums[key] = len(values)
                terms = (values[first : first + cell_counts[block]] for first in contributions)
                values.extend(map(sum, zip(*terms, strict=True)))
            return sums[key]

        # What `want` -1 stands for: the sum of all contributions to the block.
        sum_of_block = {block: index_of_sum(block, contributions) for block, contributions in of_block.items()}
        held: dict[tuple[int, int], list[int]] = {}  # (rank, block) -> the contributions that the rank begins with
        columns = (relation.pre_rank, relation.pre_block, relation.pre_id)
        for rank, block, name in zip(*(column.tolist() for column in columns), strict=True):
            held.setdefault((rank, block), []).append(index_of[block, name])
        initial_index = {
            (rank, block): index_of_sum(block, contributions) for (rank, block), contributions in held.items()
        }
        required_index: dict[tuple[int, int], int] = {}  # (rank, block) -> the index of the required value
        columns = (relation.post_rank, relation.post_block, relation.post_want)
        for rank, block, want in zip(*(column.tolist() for column in columns), strict=True):
            contributions = [index_of[block, name] for name in relation.wants[want]] if want >= 0 else []
            required_index[rank, block] = index_of_sum(block, contributions) if want >= 0 else sum_of_block[block]

        def expand_to_cells(side: Side, kind: int, block_index: dict[tuple[int, int], int]) -> tuple[Longs, Longs]:
            """Return all cells of the inputs or outputs, and the index of the value of each."""
            rows = [
                (cell, block_index[rank, block], cell_counts[block])
                for rank, block, cell in cells_of_side(code, side, kind)
            ]
            cells, indices, counts = np.array(rows, np.int64).reshape(-1, 3).T
            return concat_ranges(cells, counts), concat_ranges(indices, counts)

        inputs, input_values = expand_to_cells(input_side, INPUT, initial_index)
        initial = np.zeros(int(code.places.begin[-1]), np.int64)
        initial[inputs] = input_values
        results, result_values = expand_to_cells(output_side, OUTPUT, required_index)
        # User inputs that are no results must keep their values.
        is_no_result = np.ones(len(initial), bool)
        is_no_result[results] = False
        inputs = inputs[is_no_result[inputs]]
        required = np.concatenate([initial[inputs], result_values])
        return CodeCase(values, initial, np.concatenate([inputs, results]), required, len(inputs))


def _draw_contribution(random_bits: int) -> int:
    """Return the value of one contribution, from 128 random bits."""
    return (1 << COUNT_SHIFT) + (random_bits >> 64 << SUM_BITS) + (random_bits & WORD)


def cells_of_side(code: Code, side: Side, kind: int) -> list[tuple[int, int, int]]:
    """Return rank, block and first cell of every block of the inputs or outputs (`kind`: INPUT or OUTPUT)."""
    # In place, input and output are one region, and `side.start` counts from its beginning.
    begin = code.places.begin[side.rank] if code.in_place else code.places.first[side.rank, kind]
    cells = begin + side.start * code.grain
    return list(zip(side.rank.tolist(), side.block.tolist(), cells.tolist(), strict=True))


@dataclass
class Execution:
    """The result of a run. `order`: instructions in the order of their execution, numbered over all blocks."""

    fault: CodeFault | None
    order: list[int]


def execute(code: Code, seed: int | None = 0, *, delayed: Spot | None = None, until: Spot | None = None) -> Execution:
    """Execute the code once, in an order drawn by `seed` (None: the blocks take turns).

    `seed` also selects the number of instructions that a block may execute at once. Instruction `delayed` is executed
    after instruction `until`, if that is possible.
    """
    random = Random(seed or 0)
    simulation = _Simulation(code, CodeCase.of(code, random), random if seed is not None else None)
    # with a delay one at a time, so that `run` sees each instruction before it and `until` right after it
    max_turns = 1 if seed is None or delayed is not None else _MAX_TURNS[seed % len(_MAX_TURNS)]
    return simulation.run(max_turns, delayed, until)


Sleepers = dict[int, list[int]]
_NOTHING: list[int] = []


class _Simulation:
    """The state of a run: cells, queues, semaphores, and the position of every block."""

    def __init__(self, code: Code, case: CodeCase, random: Random | None) -> None:
        self.code, self.case, self.random = code, case, random
        self.cells = [case.values[index] for index in case.initial.tolist()]
        self.blocks = [block.instructions for block in code.blocks]
        self.begin = code.begin.tolist()
        self.next_index = [0] * len(code.blocks)  # per block, of the instruction that it executes next
        self.queues: list[deque[list[int]]] = [deque() for _ in code.connections]
        self.counters = list(code.start)  # per semaphore
        # Sleeping blocks, by the number of the block, semaphore or queue that they wait for.
        self.awaiting_block: Sleepers = {}  # until that block has executed more instructions
        self.awaiting_semaphore: Sleepers = {}  # until it is above 0
        self.awaiting_message: Sleepers = {}  # until the queue is no longer empty
        self.awaiting_room: Sleepers = {}  # until the queue is no longer full
        self.order: list[int] = []
        self.fault: CodeFault | None = None

    def run(self, max_turns: int, delayed: Spot | None, until: Spot | None) -> Execution:
        """Draw blocks that can proceed; a block that cannot sleeps on its first missing condition.

        A block that is drawn executes up to `max_turns` instructions.
        """
        ready = [block for block, instructions in enumerate(self.blocks) if instructions]
        delayed_blocks: list[int] = []  # the block whose next instruction is `delayed`, once it is drawn
        random = self.random.random if self.random is not None else None
        while (ready or delayed_blocks) and self.fault is None:
            # No other block can proceed: `delayed` cannot come after `until`, so give up the delay.
            if not ready:
                ready, delayed_blocks, delayed = delayed_blocks, [], None
            if random is None:
                block = ready.pop(0)
            else:
                position = int(random() * len(ready))
                # Draw and remove in O(1): the last ready block fills the gap.
                block, ready[position] = ready[position], ready[-1]
                ready.pop()
            if delayed is not None and delayed == (block, self.next_index[block]):
                delayed_blocks.append(block)
                continue
            turns = int(random() * max_turns) + 1 if random is not None and max_turns > 1 else 1
            if self._advance_block(block, turns, ready):
                ready.append(block)
            # `until` is done, and so is the delay.
            if delayed is not None and until == (block, self.next_index[block] - 1):
                ready, delayed_blocks, delayed = ready + delayed_blocks, [], None
        return Execution(self.fault or self._find_hang() or self._find_wrong(), self.order)

    def _advance_block(self, block: int, turns: int, ready: list[int]) -> bool:
        """Execute up to `turns` instructions of a block; return whether it can proceed.

        If not, it has ended, sleeps, or a fault was recorded. Blocks that wake up are added to `ready`.
        """
        instructions, next_index, counters = self.blocks[block], self.next_index, self.counters
        index = next_index[block]
        # A block in `ready` has at least one instruction left. The usual case, a single turn, avoids a slice.
        for instruction in instructions[index : index + turns] if turns > 1 else (instructions[index],):
            # Check all conditions before any effect: a blocked instruction changes nothing.
            for awaited_block, awaited_index in instruction.wait:
                if next_index[awaited_block] <= awaited_index:
                    self.awaiting_block.setdefault(awaited_block, []).append(block)
                    return False
            for number in instruction.acquire:
                if not counters[number]:
                    self.awaiting_semaphore.setdefault(number, []).append(block)
                    return False
            pop, push = instruction.pop, instruction.push
            if pop >= 0 and not self.queues[pop]:
                self.awaiting_message.setdefault(pop, []).append(block)
                return False
            if push >= 0 and self.code.slots and len(self.queues[push]) >= self.code.slots:
                self.awaiting_room.setdefault(push, []).append(block)
                return False
            if (instruction.read or pop >= 0) and not self._move_data(block, index, instruction, ready):
                return False
            for number in instruction.acquire:
                counters[number] -= 1
            for number in instruction.release:
                counters[number] += 1
                # Wake all sleepers; those that still cannot proceed go to sleep again.
                if number in self.awaiting_semaphore:
                    ready += self.awaiting_semaphore.pop(number)
            self.order.append(self.begin[block] + index)
            index += 1
            next_index[block] = index
            if block in self.awaiting_block:
                ready += self.awaiting_block.pop(block)
        return index < len(instructions)

    def _move_data(self, block: int, index: int, instruction: Instruction, ready: list[int]) -> bool:
        """Combine an instruction's message and operands, write and send the result. False: a cell is empty, or the
        message has another length."""
        cells, count, value = self.cells, instruction.count, _NOTHING
        if instruction.pop >= 0:
            value = self.queues[instruction.pop].popleft()
            if instruction.pop in self.awaiting_room:
                ready += self.awaiting_room.pop(instruction.pop)
            if len(value) != count:
                return self._record_fault("wrong", block, index, f"takes {count} chunks from a message of {len(value)}")
        # The common case, one chunk, without slices of lists.
        if count == 1:
            total = value[0] if value else 0
            for first in instruction.read:
                if not cells[first]:
                    return self._fail_empty(block, index, first)
                total += cells[first]
            for first in instruction.write:
                cells[first] = total
            value = [total]
        else:
            for first in instruction.read:
                operand = cells[first : first + count]
                if 0 in operand:
                    return self._fail_empty(block, index, first + operand.index(0))
                value = [a + b for a, b in zip(value, operand, strict=True)] if value else operand
            for first in instruction.write:
                cells[first : first + count] = value
        if instruction.push >= 0:
            self.queues[instruction.push].append(value)
            if instruction.push in self.awaiting_message:
                ready += self.awaiting_message.pop(instruction.push)
        return True

    def _fail_empty(self, block: int, index: int, cell: int) -> bool:
        where = self.code.places.describe(cell)
        return self._record_fault("empty", block, index, f"reads {where}, where nothing has been written yet")

    def _record_fault(self, kind: str, block: int, index: int, message: str) -> bool:
        """Record the fault of an instruction; return False, as the block cannot proceed."""
        self.fault = CodeFault(kind, f"{self.code.describe(block, index)}: {message}")
        return False

    def _find_hang(self) -> CodeFault | None:
        """Return a hang: a sleeping block and its missing condition; if possible one that waits for no stuck block."""
        # stuck block -> (kind of condition, number of the block, semaphore or queue)
        condition_of = {
            block: (kind, number)
            for kind, sleepers in (
                ("block", self.awaiting_block), ("semaphore", self.awaiting_semaphore),
                ("message", self.awaiting_message), ("room", self.awaiting_room),
            )
            for number, sleeping in sleepers.items()
            for block in sleeping
        }  # fmt: skip
        if not condition_of:
            return None
        stuck_blocks = sorted(condition_of)
        # Report a root cause: a block whose missing condition is not itself a stuck block.
        roots = (
            block
            for block, (kind, number) in sorted(condition_of.items())
            if kind != "block" or number not in condition_of
        )
        block = next(roots, stuck_blocks[0])
        kind, number = condition_of[block]
        if kind == "block":
            reason = f"waits for {self.code.blocks[number].name}, which never gets so far"
        elif kind == "semaphore":
            names = self.code.semaphore_names
            reason = f"waits for {names[number] if names else 'a signal'}, which never comes"
        else:
            source, target, _ = self.code.connections[number]
            reason = (
                f"waits for a message from rank {source} that is never sent" if kind == "message"
                else f"waits for rank {target} to take one of the {self.code.slots} messages under way"
            )  # fmt: skip
        others_text = f"; {len(stuck_blocks) - 1} more blocks are stuck" if len(stuck_blocks) > 1 else ""
        stuck_instruction = self.code.describe(block, self.next_index[block])
        return CodeFault("hang", f"{stuck_instruction}: never done: {reason}{others_text}")

    def _find_wrong(self) -> CodeFault | None:
        """Return a fault if a message was never taken, a result is wrong, or an input was overwritten."""
        for number, queue in enumerate(self.queues):
            if queue:
                source, target, channel = self.code.connections[number]
                pushes = [spot for spot in self.code.positions(self.order) if self._instruction_at(spot).push == number]
                first_untaken = pushes[-len(queue)]
                message = f"rank {target} never takes this message on channel {channel}"
                message += f"; {len(queue)} of rank {source} are left"
                return CodeFault("left", f"{self.code.describe(*first_untaken)}: {message}")
        case = self.case
        required = {
            cell: case.values[index] for cell, index in zip(case.cells.tolist(), case.required.tolist(), strict=True)
        }
        wrong = {cell for cell, value in required.items() if self.cells[cell] != value}
        if not wrong:
            return None
        cell, writer = self._first_written(wrong)
        writer_text = (
            self.code.describe(*writer) if writer else f"rank {self.code.places.rank(cell)}, no step of any block"
        )
        if cell in case.cells[case.input_count :]:
            message_end = f"ends with {self._content_text(cell, required[cell])}"
            return CodeFault("wrong", f"{writer_text}: {self.code.places.describe(cell)} {message_end}")
        return CodeFault("input", f"{writer_text}: {self.code.places.describe(cell)} is written over, and is no result")

    def _instruction_at(self, spot: Spot) -> Instruction:
        block, index = spot
        return self.code.blocks[block].instructions[index]

    def _first_written(self, cells: set[int]) -> tuple[int, Spot | None]:
        """Return the cell that got its present value first, and the instruction that wrote it.

        Errors in the other cells may follow from that one. Cells that were never written come last: if no cell was
        written, return the lowest, and None.
        """
        remaining = set(cells)
        first_written: tuple[int, Spot | None] = (min(remaining), None)
        # Backwards through the run, so the first write that is met of a cell gave it its present value.
        for spot in reversed(self.code.positions(self.order)):
            instruction = self._instruction_at(spot)
            for first in instruction.write:
                written = remaining.intersection(range(first, first + instruction.count))
                if written:
                    first_written = min(written), spot
                    remaining -= written
        return first_written

    def _content_text(self, cell: int, required: int) -> str:
        """Describe what a cell holds instead of the required value."""
        count = self.cells[cell] >> COUNT_SHIFT
        if not count:
            return "nothing"
        if count != required >> COUNT_SHIFT:
            return f"{count} contributions instead of {required >> COUNT_SHIFT}"
        return "other contributions than it should"
