"""Convert a code (the instructions of all thread blocks, code.py) to a schedule, so that foreign files can be verified,
compared with bounds, priced, drawn and run like any plan.

A value of a chunk at a rank is a **version**: its initial value, the content of one message, or the sum of two
versions. Copies within a rank make no new version. A **slot** is the number of a copy of a chunk at a rank, as in
schedules. Two passes over one legal order of the code:

1. `_Replay`: the versions and their times. A message is sent in the first step (of the schedule) in which its data is
   complete and the message before it on its connection has been sent. Semaphores and thread blocks do not determine
   steps.
2. `_Placement`: in which slot of its chunk each version lies. A message that is only added to another version becomes a
   reduction into the slot of that version, if the version alone is not needed later. Else the message becomes a copy
   into a slot whose version is not needed any more. A sum of two versions that both lie in slots becomes a row within
   the rank, between the steps of messages.

Example: rank 0 receives a chunk from rank 1 and adds it to its own. Versions: the initial values a (rank 0) and b (rank
1), the message m with the content of b, the sum a + m. As m is only added to a, and a is not needed alone, the schedule
has one row: reduce from rank 1 into slot 0 of rank 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Longs, as_int32
from antiphon.core.interpret.buffers import Side, sides
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.errors import Invalid
from antiphon.lower.machine.code import INPUT, OUTPUT, Code, Instruction
from antiphon.lower.machine.execute import cells_of_side, execute


class Time(NamedTuple):
    """When a row takes place: first the messages of a step, then the rows within ranks that follow them."""

    step: int
    inner: int = 0  # 0 for messages; 1, 2, ... for rows within a rank


BEFORE_READS = Time(-2)  # earlier than any read, even than NEVER
NEVER = Time(-1)
AT_END = Time(1 << 40)  # after all steps
LAST_INNER = 1 << 20  # after all sums within a rank
Row = tuple[Time, int, int, int, int, int, int]  # time, chunk, src, dst, op, src_slot, dst_slot


@dataclass(eq=False)
class Version:
    """A value of a chunk at a rank, see the module."""

    rank: int
    chunk: int
    time: Time = NEVER  # when it arises; it may be read later than that
    source: Version | None = None  # the version at another rank that a message brought here
    terms: tuple[Version, Version] | None = None  # the two versions that this is the sum of
    last_sent: Time = NEVER  # the last time at which it is sent, or AT_END for an output
    sums: list[Time] = field(default_factory=list)  # the times at which it is added to another version
    sends: int = 0  # the number of times that it is sent, plus 1 for an output
    slot: int = -1  # -1: none

    @property
    def is_only_added(self) -> bool:
        """Whether it came by a message and is only added to one other version: it then needs no slot."""
        return self.source is not None and len(self.sums) == 1 and not self.sends

    @property
    def first_step(self) -> int:
        """The first step in which it can be sent."""
        return self.time.step + 1

    def last_read(self, except_sum: Time | None = None) -> Time:
        """Return the time of its last read; `except_sum`: without the sum of that time."""
        sums = list(self.sums)
        if except_sum is not None:
            sums.remove(except_sum)
        return max([self.last_sent, *sums])


@dataclass(eq=False)
class Slot:
    """The content of a slot so far."""

    version: Version
    last_read: Time = NEVER  # of earlier versions in this slot
    last_copy: Time = BEFORE_READS  # into it
    last_write: Time = BEFORE_READS  # copy or reduction into it


def code_to_schedule(code: Code) -> Schedule:
    """Return the schedule of a code without deadlock or race (judge.py). Takes some microseconds per chunk moved."""
    run = execute(code, seed=None)
    if run.fault is not None:
        raise Invalid(run.fault.what)
    events, outputs = _Replay(code).replay(code.positions(run.order))
    return _Placement(code, events, outputs).make_schedule()


# ---- which versions there are, and when ----


class _Replay:
    """First pass: execute the code with versions as data."""

    def __init__(self, code: Code) -> None:
        self.code = code
        # None: nothing has been written. `execute` has shown that no instruction reads such a cell.
        self.cells: list[Version | None] = [None] * int(code.places.begin[-1])
        self.owner: list[int] = code.places.owner(np.arange(len(self.cells))).tolist()
        self.events: list[Version] = []  # messages and sums
        # By connection: the step of its last message. Keys: (number,) of a queue, and (block, src, dst) of a block's
        # remote accesses. All that a block accesses between two releases of semaphores is one message: of that, the
        # step is under (block, src, dst, number of releases before it).
        self.sent_step: dict[tuple[int, ...], int] = {}
        self.releases: dict[int, int] = {}  # by block: how often it has released a semaphore

    def replay(self, order: list[tuple[int, int]]) -> tuple[list[Version], list[Version]]:
        """Execute the code in this order; return the versions as they arise, and those of the outputs."""
        code = self.code
        input_side, output_side = sides(code.collective, code.in_place)
        for rank, chunk, cell in self._side_chunks(input_side, INPUT):
            self.cells[cell] = Version(rank, chunk)
        queues: list[deque[tuple[int, list[Version | None]]]] = [deque() for _ in code.connections]
        for block, index in order:
            instruction, rank = code.blocks[block].instructions[index], code.blocks[block].rank
            value: list[Version | None] | None = None
            if instruction.pop >= 0:
                step, message = queues[instruction.pop].popleft()
                value = [self._receive_version(version, rank, step) for version in message]
            for cell in instruction.read:
                operand = self._move_remote(block, self.cells[cell : cell + instruction.count], self.owner[cell], rank)
                # The operand is the first term of the sum: where both terms lie in slots that may be reused, the sum
                # takes the slot of the operand.
                value = (
                    operand
                    if value is None
                    else [self._sum_versions(added, so_far) for so_far, added in zip(value, operand, strict=True)]
                )
            if value is None:
                self._count_signal(block, instruction)
                continue
            for cell in instruction.write:
                moved = self._move_remote(block, value, rank, self.owner[cell])
                self.cells[cell : cell + instruction.count] = moved
            if instruction.push >= 0:
                queues[instruction.push].append((self._message_step(value, (instruction.push,), is_new=True), value))
            self._count_signal(block, instruction)
        outputs = []
        for _, _, cell in self._side_chunks(output_side, OUTPUT):
            version = self.cells[cell]
            assert version is not None
            version.last_sent = AT_END
            version.sends += 1
            outputs.append(version)
        return self.events, outputs

    def _side_chunks(self, side: Side, kind: int) -> Iterator[tuple[int, int, int]]:
        """Yield rank, chunk and cell of every chunk of the inputs or outputs; a block has `code.grain` chunks."""
        for rank, block, first_cell in cells_of_side(self.code, side, kind):
            for offset in range(self.code.grain):
                # chunks are numbered as `cut` does: those at offset 0 of all blocks, then those at offset 1
                yield rank, block + offset * self.code.collective.blocks, first_cell + offset

    def _count_signal(self, block: int, instruction: Instruction) -> None:
        if instruction.release:
            self.releases[block] = self.releases.get(block, 0) + 1

    def _message_step(self, value: list[Version | None], key: tuple[int, ...], is_new: bool) -> int:
        """Return the step in which data are sent: as a new message behind the last one of the key, or as part of it.

        `key`: of `sent_step`.
        """
        ready = max((version.first_step for version in value if version is not None), default=0)
        before = self.sent_step.get(key, -1)
        step = max(ready, before + 1 if is_new else before)
        self.sent_step[key] = step
        return step

    def _move_remote(self, block: int, value: list[Version | None], src: int, dst: int) -> list[Version | None]:
        """Turn a remote read or write of a block into part of a message; return the versions that arrive at `dst`."""
        if src == dst:
            return value
        connection, message = (block, src, dst), (block, src, dst, self.releases.get(block, 0))
        # The first access of a message: it is sent later than the last message of the connection.
        if message not in self.sent_step and connection in self.sent_step:
            self.sent_step[message] = self.sent_step[connection] + 1
        step = self._message_step(value, message, is_new=False)
        self.sent_step[connection] = max(self.sent_step.get(connection, -1), step)
        return [self._receive_version(version, dst, step) for version in value]

    def _receive_version(self, version: Version | None, rank: int, step: int) -> Version | None:
        """Return the version as it is at this rank: a new one if it comes from another rank."""
        if version is None or version.rank == rank:
            return version
        received = Version(rank, version.chunk, Time(step), source=version)
        self.events.append(received)
        version.sends += 1
        version.last_sent = max(version.last_sent, received.time)
        return received

    def _sum_versions(self, first: Version | None, second: Version | None) -> Version | None:
        """Return a new version that is the sum of two; None, which no code brings here (see `cells`), adds nothing."""
        if first is None or second is None:
            return first or second
        step, inner = max(first.time, second.time)
        # Two times later, so that `_add_sum` can place a copy of a term in between.
        total = Version(first.rank, first.chunk, Time(step, inner + 2), terms=(first, second))
        self.events.append(total)
        for term in (first, second):
            term.sums.append(total.time)
        return total


# ---- where they lie ----


class _Placement:
    """Second pass: assign versions to slots and write the rows of the schedule."""

    def __init__(self, code: Code, events: list[Version], outputs: list[Version]) -> None:
        self.code, self.outputs = code, outputs
        self.events = sorted(events, key=lambda version: version.time)
        self.slots: dict[tuple[int, int], list[Slot | None]] = {}  # (rank, chunk) -> its slots
        self.rows: list[Row] = []

    def make_schedule(self) -> Schedule:
        """Place all versions and return the schedule."""
        code = self.code
        for version in self._initial_versions():
            self._put_in_slot(version, slot=0)
        for version in self.events:
            if version.terms is not None:
                self._add_sum(version, *version.terms)
            elif not version.is_only_added:
                assert version.source is not None
                self._add_copy(version, version.source, version.time)
        self._move_outputs()
        time, chunk, src, dst, op, src_slot, dst_slot = _step_columns(self.rows)
        has_slots = bool(np.any(src_slot) or np.any(dst_slot))
        schedule = Schedule(
            code.collective, cut(code.collective, code.grain),
            as_int32(time), as_int32(chunk), as_int32(src), as_int32(dst),
            op.astype(np.uint8), src_slot=as_int32(src_slot) if has_slots else None,
            dst_slot=as_int32(dst_slot) if has_slots else None,
        )  # fmt: skip
        return schedule.sorted()

    def _initial_versions(self) -> list[Version]:
        """Return all initial versions that are used."""
        initial_versions: dict[int, Version] = {}  # by identity, so that each comes once
        for version in (*self.events, *self.outputs):
            for before in (version, version.source, *(version.terms or ())):
                if before is not None and before.source is None and before.terms is None:
                    initial_versions[id(before)] = before
        return list(initial_versions.values())

    def _move_outputs(self) -> None:
        """Move outputs to slot 0 at the end: there a schedule's results are."""
        end = max((step for (step, _), *_ in self.rows), default=0)
        for version in self.outputs:
            if version.slot != 0:
                self._add_row(Time(end, LAST_INNER), version, version.rank, COPY, slot=0)

    def _put_in_slot(self, version: Version, slot: int) -> Slot:
        """Store a version in a slot of its chunk; return the slot.

        The reads of the version that was there are recorded, except the sum that now takes the slot: that is no read,
        as its other term is added in place.
        """
        chunk_slots = self.slots.setdefault((version.rank, version.chunk), [None])
        chunk_slots += [None] * (slot + 1 - len(chunk_slots))
        slot_content = chunk_slots[slot]
        version.slot = slot
        if slot_content is None:
            slot_content = chunk_slots[slot] = Slot(version)
        else:
            before = slot_content.version
            in_place = version.time if version.time in before.sums else None
            slot_content.last_read = max(slot_content.last_read, before.last_read(except_sum=in_place))
        slot_content.version = version
        return slot_content

    def _free_slot(self, version: Version, time: Time) -> int:
        """Return the first slot that is not read after this time and was written before it."""
        chunk_slots = self.slots.setdefault((version.rank, version.chunk), [None])
        for number, slot in enumerate(chunk_slots):
            if slot is None or (max(slot.last_read, slot.version.last_read()) <= time and slot.last_write < time):
                return number
        return len(chunk_slots)

    def _add_copy(self, version: Version, source: Version, time: Time) -> None:
        slot = self._free_slot(version, time)
        slot_content = self._put_in_slot(version, slot)
        self._add_row(time, source, version.rank, COPY, slot)
        slot_content.last_copy = slot_content.last_write = time

    def _add_sum(self, total: Version, first: Version, second: Version) -> None:
        """Add the rows of a sum. It takes the slot of one term (`base`) if that is not read later, else a new slot."""
        moving = [term for term in (first, second) if term.slot < 0]  # messages that are only added
        stored = [term for term in (first, second) if term.slot >= 0]
        base = next((term for term in stored if self._is_reusable(term, moving, total)), None)
        # both messages are reduced into a slot that is still empty, which counts as nothing (docs/schedule.md)
        if base is None and len(moving) == 2:
            base = Version(total.rank, total.chunk)
            self._put_in_slot(base, len(self.slots.setdefault((total.rank, total.chunk), [None])))
        elif base is None and moving:  # the stored term is needed later: the message is copied, and the term added
            base = moving.pop()
            assert base.source is not None
            self._add_copy(base, base.source, base.time)
        elif base is None:  # both stored terms are needed later: one is copied, and the other added to the copy
            copied = stored.pop()
            base = Version(total.rank, total.chunk, Time(total.time.step, total.time.inner - 1))
            self._add_copy(base, copied, base.time)
        slot_content = self._put_in_slot(total, base.slot)
        for term in moving:
            assert term.source is not None
            self._add_reduction(slot_content, term.time, term.source, base)
        for term in stored:
            if term is not base:
                self._add_reduction(slot_content, total.time, term, base)

    def _is_reusable(self, base: Version, moving: list[Version], total: Version) -> bool:
        """Return whether the other terms of a sum may be added to this one in place: it is not read later.

        `moving`: the terms that messages bring. `total`: the sum.
        """
        slot_content = self.slots[base.rank, base.chunk][base.slot]
        assert slot_content is not None
        first = min([term.time for term in moving] or [total.time])
        return max(base.last_read(total.time), slot_content.last_read) <= first and slot_content.last_copy < first

    def _add_reduction(self, slot_content: Slot, time: Time, source: Version, base: Version) -> None:
        self._add_row(time, source, base.rank, REDUCE, base.slot)
        slot_content.last_write = max(slot_content.last_write, time)

    def _add_row(self, time: Time, source: Version, dst: int, op: int, slot: int) -> None:
        self.rows.append((time, source.chunk, source.rank, dst, op, source.slot, slot))


def _step_columns(rows: list[Row]) -> tuple[Longs, ...]:
    """Convert times to steps without gaps. Rows within a rank are numbered per chunk, so that chunks do not wait for
    each other.

    >>> times = [(0, 0), (2, 5), (2, 0), (2, 9)]
    >>> rows = [(time, chunk, 0, 1, 0, 0, 0) for time, chunk in zip(times, [0, 0, 1, 1])]
    >>> step, chunk, *_ = _step_columns(rows)
    >>> step.tolist(), chunk.tolist()
    ([0, 2, 1, 2], [0, 0, 1, 1])
    """
    inner_times_of: dict[tuple[int, int, int], set[int]] = {}  # by (rank, chunk, step)
    for (step, inner), chunk, _, rank, *_ in rows:
        if inner:
            inner_times_of.setdefault((rank, chunk, step), set()).add(inner)
    new_inner = {
        (*key, inner): number
        for key, inner_times in inner_times_of.items()
        for number, inner in enumerate(sorted(inner_times), 1)
    }
    times = [(step, new_inner[rank, chunk, step, inner] if inner else 0) for (step, inner), chunk, _, rank, *_ in rows]
    index = {time: step for step, time in enumerate(sorted(set(times)))}
    table = np.array([(index[time], *row[1:]) for time, row in zip(times, rows, strict=True)], np.int64)
    return tuple(table.reshape(-1, 7).T)  # step, then as in `rows`
