"""Execute a code (code.py) once: blocks in a random legal order, with its queues and semaphores, on symbolic data.

Input is a code, output the order of execution and the first fault: a hang, a read of an empty cell, a wrong result. A
cell holds a multiset of contributions (ranks' inputs), represented by two sums of random 64-bit numbers, one pair per
contribution, and the number of contributions. Two different multisets are equal in this form with a probability below
2^-100.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs, ranges
from antiphon.core.interpret.buffers import Side, sides
from antiphon.lower.machine.code import INPUT, OUTPUT, Code, Instruction

WORD = 2**64 - 1
APART = 96  # bits of each of the two sums in a value: room for 2^32 contributions
BITS = 2 * APART  # the bits above hold the number of contributions


@dataclass(frozen=True)
class Fault:
    """A fault: its `kind` (hang, race, wrong, empty, input, left), and a sentence that describes and locates it."""

    kind: str
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Case:
    """The initial and the required final values of cells, as indices into `values`, whose first is empty. `cells`: the
    cells with a required value, in `ends`; the first `preserved` of them are user inputs that are no results."""

    values: list[int]
    initial: Longs
    cells: Longs
    ends: Longs
    preserved: int

    @staticmethod
    def of(code: Code, random: Random) -> Case:
        """Draw random contributions for a code, and compute initial and required values."""
        grain, relation = code.grain, code.collective.relation
        # Every contribution (block, name) gets `grain` random values, one per cell; index 0 means empty.
        first, last = sides(code.collective, code.in_place)
        values, names, of_block = [0], dict[tuple[int, int], int](), dict[int, list[int]]()
        for block, name in set(zip(relation.pre_block.tolist(), relation.pre_id.tolist(), strict=True)):
            names[block, name] = len(values)
            of_block.setdefault(block, []).append(len(values))
            values += [_draw_contribution(random.getrandbits(128)) for _ in range(grain)]
        sums: dict[tuple[int, ...], int] = {}

        def total(several: list[int]) -> int:
            """Return the index of the sum of these."""
            if len(several) == 1:
                return several[0]
            # Equal sums share an index, so that memory is linear in distinct sums.
            key = tuple(several)
            if key not in sums:
                sums[key] = len(values)
                values.extend(map(sum, zip(*(values[at : at + grain] for at in several), strict=True)))
            return sums[key]

        # Wanted by -1: the sum of all contributions to the block.
        every = {block: total(several) for block, several in of_block.items()}
        by_place: dict[tuple[int, int], list[int]] = {}
        columns = (relation.pre_rank, relation.pre_block, relation.pre_id)
        for rank, block, name in zip(*(column.tolist() for column in columns), strict=True):
            by_place.setdefault((rank, block), []).append(names[block, name])
        holds = {place: total(several) for place, several in by_place.items()}
        wants: dict[tuple[int, int], int] = {}
        columns = (relation.post_rank, relation.post_block, relation.post_want)
        for rank, block, want in zip(*(column.tolist() for column in columns), strict=True):
            contributions = [names[block, name] for name in relation.wants[want]] if want >= 0 else []
            wants[rank, block] = total(contributions) if want >= 0 else every[block]

        def columns_of(side: Side, kind: int, has: dict[tuple[int, int], int]) -> tuple[Longs, Longs]:
            rows = [(cell, has[rank, block]) for rank, block, cell in cells_of_side(code, side, kind)]
            table, counts = np.array(rows, np.int64).reshape(-1, 2), np.full(len(rows), grain)
            return ranges(table[:, 0], counts), ranges(table[:, 1], counts)

        cells, ends = columns_of(first, INPUT, holds)
        initial = np.zeros(int(code.places.begin[-1]), np.int64)
        initial[cells] = ends
        results, required = columns_of(last, OUTPUT, wants)
        # User inputs that are no results must keep their values.
        preserved = np.ones(len(initial), bool)
        preserved[results] = False
        cells = cells[preserved[cells]]
        return Case(
            values, initial, np.concatenate([cells, results]), np.concatenate([initial[cells], required]), len(cells)
        )  # fmt: skip


def _draw_contribution(drawn: int) -> int:
    """Return the value of one contribution, from 128 random bits."""
    return (1 << BITS) + (drawn >> 64 << APART) + (drawn & WORD)


def sum_words(sums: list[int]) -> NDArray[np.uint64]:
    """Return values as columns: each sum modulo 2^64, last the number of contributions."""
    columns = [[value >> shift & WORD for value in sums] for shift in (0, APART, BITS)]
    return np.array(columns, np.uint64).T.copy()


def cells_of_side(code: Code, side: Side, kind: int) -> list[tuple[int, int, int]]:
    """Return rank, block and first cell of every block of the inputs or outputs."""
    begin = code.places.begin[side.rank] if code.in_place else code.places.first[side.rank, kind]
    cells = begin + side.start * code.grain
    return list(zip(side.rank.tolist(), side.block.tolist(), cells.tolist(), strict=True))


@dataclass
class Run:
    """The result of a run. `order`: instructions in the order of their execution, as rows (`Code.begin`)."""

    fault: Fault | None
    order: list[int]


def execute(
    code: Code, seed: int | None = 0, *, last: tuple[int, int] | None = None, until: tuple[int, int] | None = None
) -> Run:
    """Execute the code once, in an order drawn by `seed` (None: the blocks take turns).

    `seed` also selects the number of instructions that a block may execute at once. With `last` and `until`,
    instruction `last` is delayed until `until` is done, if that is possible.
    """
    random = Random(seed or 0)
    longest = 1 if seed is None or last is not None else (1, 64, 4)[seed % 3]
    return _Machine(code, Case.of(code, random), random if seed is not None else None).run(longest, last, until)


Sleepers = dict[int, list[int]]
_NOTHING: list[int] = []


class _Machine:
    """The state of a run: cells, queues, semaphores, and the position of every block."""

    def __init__(self, code: Code, case: Case, random: Random | None) -> None:
        self.code, self.case, self.random = code, case, random
        self.cells = [case.values[at] for at in case.initial.tolist()]
        self.blocks = [block.instructions for block in code.blocks]
        self.begin = code.begin.tolist()
        self.at = [0] * len(code.blocks)
        self.queues: list[deque[list[int]]] = [deque() for _ in code.connections]
        self.counters = list(code.start)
        # Blocks asleep until another block is farther, a semaphore gets one, a queue is no longer empty, or full.
        self.on_block: Sleepers = {}
        self.on_semaphore: Sleepers = {}
        self.on_full: Sleepers = {}
        self.on_empty: Sleepers = {}
        self.order: list[int] = []
        self.fault: Fault | None = None

    def run(self, longest: int, last: tuple[int, int] | None, until: tuple[int, int] | None) -> Run:
        """Draw blocks that can proceed; one that cannot sleeps on its first missing condition. A block that is
        drawn executes one instruction, or up to `longest`."""
        ready = [block for block, instructions in enumerate(self.blocks) if instructions]
        delayed: list[int] = []
        random = self.random.random if self.random is not None else None
        while (ready or delayed) and self.fault is None:
            # Only delayed blocks are left: `last` cannot come after `until`, so give up the delay.
            if not ready:
                ready, delayed, last = delayed, [], None
            if random is None:
                block = ready.pop(0)
            else:
                place = int(random() * len(ready))
                # Draw and remove in O(1): the last ready block fills the gap.
                block, ready[place] = ready[place], ready[-1]
                ready.pop()
            if last is not None and last == (block, self.at[block]):
                delayed.append(block)
                continue
            turns = int(random() * longest) + 1 if random is not None and longest > 1 else 1
            if self._advance_block(block, turns, ready):
                ready.append(block)
            # `until` is done: release the delayed blocks.
            if last is not None and until == (block, self.at[block] - 1):
                ready, delayed, last = ready + delayed, [], None
        return Run(self.fault or self._find_hang() or self._find_wrong(), self.order)

    def _advance_block(self, block: int, turns: int, ready: list[int]) -> bool:
        """Execute up to `turns` instructions of a block; return whether it can proceed; else it has ended or sleeps."""
        instructions, at, counters, index = self.blocks[block], self.at, self.counters, self.at[block]
        for instruction in instructions[index : index + turns] if turns > 1 else (instructions[index],):
            # Check all conditions before any effect: a blocked instruction changes nothing.
            for other, step in instruction.wait:
                if at[other] <= step:
                    self.on_block.setdefault(other, []).append(block)
                    return False
            for number in instruction.acquire:
                if not counters[number]:
                    self.on_semaphore.setdefault(number, []).append(block)
                    return False
            pop, push = instruction.pop, instruction.push
            if pop >= 0 and not self.queues[pop]:
                self.on_full.setdefault(pop, []).append(block)
                return False
            if push >= 0 and self.code.slots and len(self.queues[push]) >= self.code.slots:
                self.on_empty.setdefault(push, []).append(block)
                return False
            if (instruction.read or pop >= 0) and not self._move_data(block, index, instruction, ready):
                return False
            for number in instruction.acquire:
                counters[number] -= 1
            for number in instruction.release:
                counters[number] += 1
                # Wake all sleepers; those that still cannot proceed go to sleep again.
                if number in self.on_semaphore:
                    ready += self.on_semaphore.pop(number)
            self.order.append(self.begin[block] + index)
            index += 1
            at[block] = index
            if block in self.on_block:
                ready += self.on_block.pop(block)
        return index < len(instructions)

    def _move_data(self, block: int, index: int, instruction: Instruction, ready: list[int]) -> bool:
        """Combine its message and operands and write the result; False if one is empty or of the wrong length."""
        cells, count, value = self.cells, instruction.count, _NOTHING
        if instruction.pop >= 0:
            value = self.queues[instruction.pop].popleft()
            if instruction.pop in self.on_empty:
                ready += self.on_empty.pop(instruction.pop)
            if len(value) != count:
                return self._record_fault("wrong", block, index, f"takes {count} chunks from a message of {len(value)}")
        # The common case, without slices.
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
            if instruction.push in self.on_full:
                ready += self.on_full.pop(instruction.push)
        return True

    def _fail_empty(self, block: int, index: int, cell: int) -> bool:
        place = self.code.places.tell(cell)
        return self._record_fault("empty", block, index, f"reads {place}, where nothing has been written yet")

    def _record_fault(self, kind: str, block: int, index: int, message: str) -> bool:
        self.fault = Fault(kind, f"{self.code.tell(block, index)}: {message}")
        return False

    def _find_hang(self) -> Fault | None:
        """Return a hang: a blocked block and its missing condition; if possible one that waits for no blocked block."""
        lacking = {
            block: (lack, number)
            for lack, sleepers in (
                ("block", self.on_block), ("semaphore", self.on_semaphore), ("full", self.on_full),
                ("empty", self.on_empty),
            )
            for number, asleep in sleepers.items()
            for block in asleep
        }  # fmt: skip
        if not lacking:
            return None
        stuck = sorted(lacking)
        # Report a root cause: a block whose missing condition is not itself a blocked block.
        first = (b for b in stuck if lacking[b][0] != "block" or lacking[b][1] not in lacking)
        block = next(first, stuck[0])
        kind, number = lacking[block]
        reason = {
            "block": lambda: f"waits for {self.code.blocks[number].name}, which never gets so far",
            "semaphore": lambda: (
                f"waits for {self.code.named[number] if self.code.named else 'a signal'}, which never comes"
            ),
            "full": lambda: f"waits for a message from rank {self.code.connections[number][0]} that is never sent",
            "empty": lambda: (
                f"waits for rank {self.code.connections[number][1]} to take one of the {self.code.slots} messages "
                "under way"
            ),
        }[kind]()
        others_text = f"; {len(stuck) - 1} more blocks are stuck" if len(stuck) > 1 else ""
        return Fault("hang", f"{self.code.tell(block, self.at[block])}: never done: {reason}{others_text}")

    def _find_wrong(self) -> Fault | None:
        """Return a fault if a message was never taken, a result is wrong, or an input was overwritten."""
        for number, queue in enumerate(self.queues):
            if queue:
                source, target, channel = self.code.connections[number]
                puts = [row for row in self.code.spots(self.order) if self._instruction_at(row).push == number]
                message = f"rank {target} never takes this message on channel {channel}"
                message += f"; {len(queue)} of rank {source} are left"
                return Fault("left", f"{self.code.tell(*puts[-len(queue)])}: {message}")
        case, values = self.case, self.case.values
        required = {cell: values[at] for cell, at in zip(case.cells.tolist(), case.ends.tolist(), strict=True)}
        wrong = {cell for cell, value in required.items() if self.cells[cell] != value}
        if not wrong:
            return None
        cell, writer = self._first_written(wrong)
        who = self.code.tell(*writer) if writer else f"rank {self.code.places.rank(cell)}, no step of any block"
        if cell in case.cells[case.preserved :]:
            message_end = f"ends with {self._content_text(cell, required[cell])}"
            return Fault("wrong", f"{who}: {self.code.places.tell(cell)} {message_end}")
        return Fault("input", f"{who}: {self.code.places.tell(cell)} is written over, and is no result")

    def _instruction_at(self, row: tuple[int, int]) -> Instruction:
        return self.code.blocks[row[0]].instructions[row[1]]

    def _first_written(self, cells: set[int]) -> tuple[int, tuple[int, int] | None]:
        """Return, of these cells, the one that got its present value first, and the row that wrote it (None: no row).
        Errors in the other cells may follow from it.
        """
        remaining = set(cells)
        first_written: tuple[int, tuple[int, int] | None] = (min(remaining), None)
        for row in reversed(self.code.spots(self.order)):
            instruction = self._instruction_at(row)
            for first in instruction.write:
                written = remaining.intersection(range(first, first + instruction.count))
                if written:
                    first_written = min(written), row
                    remaining -= written
        return first_written

    def _content_text(self, cell: int, required: int) -> str:
        have = self.cells[cell] >> BITS
        if not have:
            return "nothing"
        if have != required >> BITS:
            return f"{have} contributions instead of {required >> BITS}"
        return "other contributions than it should"
