"""What a code does, as a schedule: so what others wrote is verified, bounded, priced, drawn and run as all else is.

A chunk that a rank holds is a **version**: what it had at first, what one message brought, or the sum of two versions.
Copies within a rank make no new one. Two walks over one legal order of the code:

1. `_Replay`: which versions there are, and when. A message goes in the first step in which its data is all there and
   the one before it on its way has gone. Flags and blocks say nothing about steps.
2. `_Placing`: where each lies (a slot of its chunk). A message that is only added to another version is a reduction
   into the slot of that, if nobody needs what was there later; else it is a copy into a slot whose version nobody needs
   any more. Sums of two versions that both lie somewhere are rows within the rank, between the steps of messages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import Longs, narrow
from antiphon.core.interpret.buffers import sides
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.errors import Invalid
from antiphon.lower.machine.code import INPUT, OUTPUT, Code, Instruction
from antiphon.lower.machine.execute import execute

Time = tuple[int, int]  # a step of messages (0), and the steps within ranks behind it: 1, 2, ...
AT_END = (1 << 40, 0)


@dataclass(eq=False)
class Version:
    """`source`: the version at another rank that a message brought here. `terms`: the two that this is the sum of.
    `time`: when it comes to be; it may be read later. `last`: when a message takes it last; `sums`: when it is added.
    """

    rank: int
    chunk: int
    time: Time = (-1, 0)
    source: Version | None = None
    terms: tuple[Version, Version] | None = None
    last: Time = (-1, 0)
    sums: list[Time] = field(default_factory=list)
    sent: int = 0  # how often, or wanted in the end
    slot: int = -1

    @property
    def passing(self) -> bool:
        """Whether it came by a message and is only added to one other."""
        return self.source is not None and len(self.sums) == 1 and not self.sent

    @property
    def first_step(self) -> int:
        """In which step a message may take it along."""
        return self.time[0] + 1

    def needed(self, but: Time | None = None) -> Time:
        """When it is read last; `but`: by others than the one sum of that time."""
        sums = list(self.sums)
        if but is not None:
            sums.remove(but)
        return max([self.last, *sums])


@dataclass(eq=False)
class Slot:
    """What lies there; until when what lay there before is read; when it was last copied into, and written."""

    version: Version
    read: Time = (-1, 0)
    copied: Time = (-2, 0)
    written: Time = (-2, 0)


def schedule_of(code: Code) -> Schedule:
    """The schedule of a code that `judge` found nothing wrong with. Some microseconds for each chunk moved."""
    run = execute(code, None)
    if run.fault is not None:
        raise Invalid(run.fault.what)
    events, wanted = _Replay(code).go(code.spots(run.order))
    return _Placing(code, events, wanted).go()


# ---- which versions there are, and when ----


class _Replay:
    """The code once more, with versions in the place of data."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.cells: list[Version | None] = [None] * int(code.places.begin[-1])
        self.owner: list[int] = code.places.owner(np.arange(len(self.cells))).tolist()
        self.events: list[Version] = []  # messages and sums
        self.gone: dict[tuple[int, int, int], int] = {}  # by way: the step of the message that went last
        self.told: dict[int, int] = {}  # by block: how often it has signalled; what goes between is one message

    def go(self, order: list[tuple[int, int]]) -> tuple[list[Version], list[Version]]:
        code = self.code
        first, last = sides(code.collective, code.in_place)
        for rank, chunk, cell in self._chunks(first, INPUT):
            self.cells[cell] = Version(rank, chunk)
        queues: list[deque[tuple[int, list[Version | None]]]] = [deque() for _ in code.ways]
        for block, index in order:
            one, rank = code.blocks[block].instructions[index], code.blocks[block].rank
            value: list[Version | None] | None = None
            if one.pop >= 0:
                step, taken = queues[one.pop].popleft()
                value = [self._arrived(version, rank, step) for version in taken]
            for cell in one.read:
                here = self._moved(block, self.cells[cell : cell + one.count], self.owner[cell], rank)
                value = here if value is None else [self._sum(b, a) for a, b in zip(value, here, strict=True)]
            if value is None:
                self._signalled(block, one)
                continue
            for cell in one.write:
                there = self._moved(block, value, rank, self.owner[cell])
                self.cells[cell : cell + one.count] = there
            if one.push >= 0:
                queues[one.push].append((self._step(value, (-1, one.push, 0), fresh=True), value))
            self._signalled(block, one)
        wanted = []
        for _, _, cell in self._chunks(last, OUTPUT):
            version = self.cells[cell]
            assert version is not None
            version.last = AT_END
            version.sent += 1
            wanted.append(version)
        return self.events, wanted

    def _chunks(self, side: object, kind: int) -> list[tuple[int, int, int]]:
        """Rank, chunk and cell of all that a side of the collective holds."""
        code = self.code
        rank, block, start = (getattr(side, name) for name in ("rank", "block", "start"))
        begin = code.places.begin[rank] if code.in_place else code.places.first[rank, kind]
        part = np.arange(code.grain)
        cell = (begin + start * code.grain)[:, None] + part
        chunk = block[:, None] + part * code.collective.blocks
        columns = (np.repeat(rank, code.grain), chunk.ravel(), cell.ravel())
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _signalled(self, block: int, one: Instruction) -> None:
        if one.release:
            self.told[block] = self.told.get(block, 0) + 1

    def _step(self, value: list[Version | None], way: tuple[int, int, int], fresh: bool) -> int:
        """In which step a message with all that goes: behind the one before it on its way, or with it."""
        ready = max((version.first_step for version in value if version is not None), default=0)
        before = self.gone.get(way, -1)
        step = max(ready, before + 1 if fresh else before)
        self.gone[way] = step
        return step

    def _moved(self, block: int, value: list[Version | None], src: int, dst: int) -> list[Version | None]:
        """What a block reads at another rank, or writes there: a message of its own."""
        if src == dst:
            return value
        told = self.told.get(block, 0)
        way, now = (block, src, dst), (block, src, dst + (told + 1) * self.code.collective.ranks)
        if now not in self.gone and way in self.gone:
            self.gone[now] = self.gone[way] + 1
        step = self._step(value, now, fresh=False)
        self.gone[way] = max(self.gone.get(way, -1), step)
        return [self._arrived(version, dst, step) for version in value]

    def _arrived(self, version: Version | None, rank: int, step: int) -> Version | None:
        """The same here: another version where it comes from another rank."""
        if version is None or version.rank == rank:
            return version
        here = Version(rank, version.chunk, (step, 0), source=version)
        self.events.append(here)
        version.sent += 1
        version.last = max(version.last, here.time)
        return here

    def _sum(self, one: Version | None, other: Version | None) -> Version | None:
        if one is None or other is None:
            return one or other
        step = max(one.time[0], other.time[0])
        within = max(term.time[1] for term in (one, other) if term.time[0] == step)
        total = Version(one.rank, one.chunk, (step, within + 2), terms=(one, other))  # 1 is left for a copy
        self.events.append(total)
        for term in (one, other):
            term.sums.append(total.time)
        return total


# ---- where they lie ----


class _Placing:
    def __init__(self, code: Code, events: list[Version], wanted: list[Version]) -> None:
        self.code, self.wanted = code, wanted
        self.events = sorted(events, key=lambda version: version.time)
        self.slots: dict[tuple[int, int], list[Slot | None]] = {}
        self.rows: list[tuple[Time, int, int, int, int, int, int]] = []

    def go(self) -> Schedule:
        code = self.code
        for version in self._first():
            self._lay(version, 0)
        for version in self.events:
            if version.terms is not None:
                self._add(version, *version.terms)
            elif not version.passing:
                assert version.source is not None
                self._copy(version, version.source, version.time)
        self._settle()
        time, chunk, src, dst, op, src_slot, dst_slot = _columns(self.rows)
        some = bool(np.any(src_slot) or np.any(dst_slot))
        made = Schedule(
            code.collective, cut(code.collective, code.grain), narrow(time), narrow(chunk), narrow(src), narrow(dst),
            op.astype(np.uint8), src_slot=narrow(src_slot) if some else None,
            dst_slot=narrow(dst_slot) if some else None,
        )  # fmt: skip
        return made.sorted()

    def _first(self) -> list[Version]:
        """All versions that were there in the beginning and are used."""
        found: dict[int, Version] = {}
        for version in (*self.events, *self.wanted):
            for before in (version, version.source, *(version.terms or ())):
                if before is not None and before.source is None and before.terms is None:
                    found[id(before)] = before
        return list(found.values())

    def _settle(self) -> None:
        """What is wanted lies in slot 0 in the end."""
        end = max((row[0][0] for row in self.rows), default=0)
        for version in self.wanted:
            if version.slot != 0:
                self._row((end, 1 << 20), version, version.rank, COPY, 0)

    def _lay(self, version: Version, slot: int) -> Slot:
        mine = self.slots.setdefault((version.rank, version.chunk), [None])
        mine += [None] * (slot + 1 - len(mine))
        there = mine[slot]
        version.slot = slot
        if there is None:
            there = mine[slot] = Slot(version)
        else:
            there.read = max(there.read, there.version.last)
        there.version = version
        return there

    def _free(self, version: Version, time: Time) -> int:
        """The first slot that nobody reads after this, and that was written before."""
        mine = self.slots.setdefault((version.rank, version.chunk), [None])
        for number, slot in enumerate(mine):
            if slot is None or (max(slot.read, slot.version.needed()) <= time and slot.written < time):
                return number
        return len(mine)

    def _copy(self, version: Version, source: Version, time: Time) -> None:
        slot = self._free(version, time)
        there = self._lay(version, slot)
        self._row(time, source, version.rank, COPY, slot)
        there.copied = there.written = time

    def _add(self, total: Version, one: Version, other: Version) -> None:
        """The sum, in the slot of one of the two if nobody reads that later, else in a new one."""
        moving = [term for term in (one, other) if term.slot < 0]
        lying = [term for term in (one, other) if term.slot >= 0]
        base = next((term for term in lying if self._may_go(term, moving, total)), None)
        if base is None and len(moving) == 2:
            base = Version(total.rank, total.chunk)
            self._lay(base, len(self.slots.setdefault((total.rank, total.chunk), [None])))  # nothing is there
        elif base is None and moving:
            base = moving.pop()
            assert base.source is not None
            self._copy(base, base.source, base.time)
        elif base is None:  # both are needed later: a copy of one, to which the other is added
            first = lying.pop()
            base = Version(total.rank, total.chunk, (total.time[0], total.time[1] - 1))
            self._copy(base, first, base.time)
        there = self._lay(total, base.slot)
        for term in moving:
            assert term.source is not None
            self._reduce(there, term.time, term.source, base)
        for term in lying:
            if term is not base:
                self._reduce(there, total.time, term, base)

    def _may_go(self, base: Version, moving: list[Version], total: Version) -> bool:
        """Whether what is added to this may be added where it lies: nobody reads it later."""
        there = self.slots[base.rank, base.chunk][base.slot]
        assert there is not None
        first = min([term.time for term in moving] or [total.time])
        return max(base.needed(total.time), there.read) <= first and there.copied < first

    def _reduce(self, there: Slot, time: Time, source: Version, base: Version) -> None:
        self._row(time, source, base.rank, REDUCE, base.slot)
        there.written = max(there.written, time)

    def _row(self, time: Time, source: Version, dst: int, op: int, slot: int) -> None:
        self.rows.append((time, source.chunk, source.rank, dst, op, source.slot, slot))


def _columns(rows: list[tuple[Time, int, int, int, int, int, int]]) -> tuple[Longs, ...]:
    """Times become steps, without gaps. What ranks do within themselves is counted for each of their chunks: the third
    thing that happens to one of them need not wait for the second of another.

    >>> times = [(0, 0), (2, 5), (2, 0), (2, 9)]
    >>> rows = [(time, chunk, 0, 1, 0, 0, 0) for time, chunk in zip(times, [0, 0, 1, 1])]
    >>> step, chunk, *_ = _columns(rows)
    >>> step.tolist(), chunk.tolist()
    ([0, 2, 1, 2], [0, 0, 1, 1])
    """
    within: dict[tuple[int, int, int], set[int]] = {}
    for (step, inner), chunk, _, rank, *_ in rows:
        if inner:
            within.setdefault((rank, chunk, step), set()).add(inner)
    place = {(*key, inner): number for key, some in within.items() for number, inner in enumerate(sorted(some), 1)}
    times = [(step, place[rank, chunk, step, inner] if inner else 0) for (step, inner), chunk, _, rank, *_ in rows]
    number = {time: at for at, time in enumerate(sorted(set(times)))}
    table = np.array([(number[time], *row[1:]) for time, row in zip(times, rows, strict=True)], np.int64).reshape(-1, 7)
    return tuple(table[:, column] for column in range(7))
