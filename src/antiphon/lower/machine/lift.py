"""What a code does, as a schedule: so what others wrote is verified, bounded, priced, drawn and run as all else is.

A chunk that a rank holds is a **version**: what it had at first, what one message brought, or the sum of two versions.
Copies within a rank make no new one. Two walks over one legal order of the code:

1. which versions there are, and when each is used for the last time;
2. where each lies (a slot of its chunk) and in which step each row happens: a message whose only use is to be added to
   another version is a reduction into the slot of that; else it is a copy into a slot whose version nobody needs any
   more. Sums of two versions that both lie somewhere are rows within the rank.

Steps are the least that the data allows, not those of the file: blocks and flags of a file say nothing about steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs, narrow
from antiphon.core.interpret.buffers import sides
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.errors import Invalid
from antiphon.lower.machine.code import INPUT, OUTPUT, Code
from antiphon.lower.machine.execute import execute

AT_END = 1 << 62


@dataclass(eq=False)
class Version:
    """`source`: the version at another rank that a message brought here. `terms`: the two that this is the sum of."""

    rank: int
    chunk: int
    source: Version | None = None
    terms: tuple[Version, Version] | None = None
    added: int = 0  # to how many others
    sent: int = 0  # how often, or wanted in the end
    last: int = -1  # the event that needs it last
    slot: int = -1
    ready: int = 0  # the first step that may read it

    @property
    def passing(self) -> bool:
        """Whether it came by a message and is only added to one other."""
        return self.source is not None and self.added == 1 and not self.sent


@dataclass(eq=False)
class Slot:
    """What lies there, and in which steps it was last read, copied into, and written."""

    version: Version
    read: int = -1
    copied: int = -1
    written: int = -1


def schedule_of(code: Code) -> Schedule:
    """The schedule of a code that `judge` found nothing wrong with. O(chunks moved), some microseconds each."""
    run = execute(code, None)
    if run.fault is not None:
        raise Invalid(run.fault.what)
    events, wanted = _Replay(code).go(run.order)
    return _Placing(code, events, wanted).go()


# ---- which versions there are ----


class _Replay:
    """The code once more, with versions in the place of data."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.cells: list[Version | None] = [None] * int(code.places.begin[-1])
        self.events: list[Version] = []  # messages and sums, in the order in which they are needed
        self.wanted: list[Version] = []

    def go(self, order: list[tuple[int, int]]) -> tuple[list[Version], list[Version]]:
        code = self.code
        first, last = sides(code.collective, code.in_place)
        for rank, chunk, cell in self._chunks(first, INPUT):
            self.cells[cell] = Version(rank, chunk)
        owner = code.places.owner(np.arange(len(self.cells))).tolist()
        queues: list[deque[list[Version | None]]] = [deque() for _ in code.ways]
        for block, index in order:
            one, rank = code.blocks[block].instructions[index], code.blocks[block].rank
            value: list[Version | None] | None = None
            if one.pop >= 0:
                value = [self._arrived(version, rank) for version in queues[one.pop].popleft()]
            for cell in one.read:
                here = [self._arrived(version, rank) for version in self.cells[cell : cell + one.count]]
                value = here if value is None else [self._sum(b, a) for a, b in zip(value, here, strict=True)]
            if value is None:
                continue
            for cell in one.write:
                there = [self._arrived(version, owner[cell]) for version in value]
                self.cells[cell : cell + one.count] = there
            if one.push >= 0:
                queues[one.push].append(value)
        for _, _, cell in self._chunks(last, OUTPUT):
            version = self.cells[cell]
            assert version is not None
            version.last = AT_END
            version.sent += 1
            self.wanted.append(version)
        self._note_uses()
        return self.events, self.wanted

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

    def _arrived(self, version: Version | None, rank: int) -> Version | None:
        """The same here: another version where it comes from another rank."""
        if version is None or version.rank == rank:
            return version
        here = Version(rank, version.chunk, source=version)
        self.events.append(here)
        version.sent += 1
        return here

    def _sum(self, one: Version | None, other: Version | None) -> Version | None:
        if one is None or other is None:
            return one or other
        total = Version(one.rank, one.chunk, terms=(one, other))
        self.events.append(total)
        one.added += 1
        other.added += 1
        return total

    def _note_uses(self) -> None:
        """A message that is only added to something happens together with that, so what it brings is used then."""
        for number, version in enumerate(self.events):
            for term in version.terms or ():
                term.last = max(term.last, number)
        for number, version in enumerate(self.events):
            if version.source is not None:
                version.source.last = max(version.source.last, version.last if version.passing else number)


# ---- where they lie, and when they move ----


class _Placing:
    def __init__(self, code: Code, events: list[Version], wanted: list[Version]) -> None:
        self.code, self.events, self.wanted = code, events, wanted
        self.slots: dict[tuple[int, int], list[Slot | None]] = {}
        self.rows: list[tuple[int, int, int, int, int, int, int]] = []

    def go(self) -> Schedule:
        code = self.code
        for version in self._first():
            self._lay(version, 0)
        for number, version in enumerate(self.events):
            if version.terms is not None:
                self._add(number, version, *version.terms)
            elif not version.passing:
                self._copy(number, version, self._free(number, version))
        for version in self.wanted:
            if version.slot != 0:
                mine = self.slots[version.rank, version.chunk]
                there = mine[0]
                step = max(version.ready, 0 if there is None else max(there.read, there.written + 1))
                self._row(step, version, version.rank, COPY, 0)
        at, chunk, src, dst, op, src_slot, dst_slot = _columns(self.rows)
        chunks = cut(code.collective, code.grain)
        some = bool(np.any(src_slot) or np.any(dst_slot))
        made = Schedule(
            code.collective, chunks, narrow(at), narrow(chunk), narrow(src), narrow(dst), op.astype(np.uint8),
            src_slot=narrow(src_slot) if some else None, dst_slot=narrow(dst_slot) if some else None,
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

    def _lay(self, version: Version, slot: int) -> Slot:
        mine = self.slots.setdefault((version.rank, version.chunk), [None])
        mine += [None] * (slot + 1 - len(mine))
        there = mine[slot]
        version.slot = slot
        if there is None:
            there = mine[slot] = Slot(version)
        there.version = version
        return there

    def _free(self, event: int, version: Version) -> int:
        """The first slot of which nobody needs what is in it. Slot 0 holds the input of a rank that has one."""
        mine = self.slots.setdefault((version.rank, version.chunk), [None])
        for number, slot in enumerate(mine):
            if slot is None or slot.version.last <= event:
                return number
        return len(mine)

    def _copy(self, event: int, version: Version, slot: int) -> None:
        assert version.source is not None
        there = self._lay(version, slot)
        step = max(version.source.ready, there.read, there.written + 1)
        self._row(step, version.source, version.rank, COPY, slot)
        there.copied = there.written = step
        version.ready = step + 1

    def _add(self, event: int, total: Version, one: Version, other: Version) -> None:
        """The sum, in the slot of one of the two where nobody needs it any more, else in a new one."""
        moving = [term for term in (one, other) if term.slot < 0]
        lying = [term for term in (one, other) if term.slot >= 0]
        base = next((term for term in lying if term.last <= event), None)
        if base is None and lying:
            if moving:  # a new slot for what comes, to which what is kept is added
                self._copy(event, moving[0], self._free(event, total))
                moving, base = [], moving[0]
            else:
                copied = Version(one.rank, one.chunk, source=one)
                self._copy(event, copied, self._free(event, total))
                lying, base = [copied, other], copied
        if base is None:
            slot = self._free(event, total)
            mine = self.slots[total.rank, total.chunk]
            if slot < len(mine) and mine[slot] is not None:  # what is left there must go first
                self._copy(event, moving[0], slot)
                base = moving.pop(0)
        else:
            slot = base.slot
        ready = base.ready if base is not None else 0
        there = self._lay(total, slot)
        begin = max(there.copied + 1, there.read)
        for term in (*moving, *(term for term in lying if term is not base)):
            source = term.source if term.slot < 0 else term
            assert source is not None
            step = max(source.ready, begin)
            self._row(step, source, total.rank, REDUCE, slot)
            there.written = max(there.written, step)
            ready = max(ready, step + 1)
        total.ready = ready

    def _row(self, step: int, source: Version, dst: int, op: int, slot: int) -> None:
        self.rows.append((step, source.chunk, source.rank, dst, op, source.slot, slot))
        there = self.slots[source.rank, source.chunk][source.slot]
        assert there is not None
        there.read = max(there.read, step)


def _columns(rows: list[tuple[int, int, int, int, int, int, int]]) -> tuple[Longs, ...]:
    table = np.array(rows, np.int64).reshape(-1, 7)
    return tuple(table[:, column] for column in range(7))
