"""Steps, one after the other: in each, whatever hop is free brings its end a chunk that it lacks.

What a rank passes on in a step it had before. A step lasts so many slots, of one chunk on a link of the narrowest
place: short ones at first, when most ranks have little to give, long ones then, which save latency, and short ones at
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.planners.greedy.bits import Words, any_of, drop, has, put, spot
from antiphon.planners.greedy.hops import Batch, Hops
from antiphon.planners.greedy.islands import Level
from antiphon.planners.greedy.ways import Ways

SHARE = 2  # of the room of a hop: what it takes at once
CELLS = 4096  # chunks that the hops of a batch take at once, unless it has more hops
BATCH, WORDS, PICK = 80, 400, 40  # work of a batch; words for one more; words for each chunk that a hop takes
PASSES = 24  # of the batches of a kind, for each chunk that a hop of it may bring in a step
NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Pace:
    """A step lasts a part `first` of the slots that are over, but no more than a part `last` of those that are left at
    least, and at most `rise` slots more for every step before it: whole slots, and at least one."""

    rise: float
    first: float
    last: float


@dataclass(frozen=True, eq=False)
class Task:
    """Which rank has and which wants each chunk, all of one size; `allowed`: what each may be given (None: all).
    `ways`: where every chunk goes from one rank to one other, the hops that it takes."""

    ranks: int
    chunks: int
    have: Words
    want: Words
    allowed: Words | None = None
    ways: Ways | None = None

    @property
    def missing(self) -> Longs:
        """How many chunks every rank wants and has not."""
        lacking = self.want & ~self.have
        return np.bitwise_count(lacking).sum(axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Run:
    """What went where: step, hop, chunk. `stuck`: ranks that lack something that nobody can bring them. `work`: what it
    took, in units of about a microsecond: so much for each batch looked at, and for each word of its sets."""

    step: Longs
    hop: Longs
    chunk: Longs
    stuck: Longs = field(default_factory=lambda: NOTHING)
    work: int = 0


def work_of(hops: int, words: int, per_hop: int = 1) -> int:
    """The work of letting so many hops of a batch bring so many chunks each."""
    return BATCH + hops * (words + per_hop * PICK) // WORDS


class Spreading:
    """One run of the steps."""

    def __init__(self, hops: Hops, task: Task, levels: tuple[Level, ...], slot: float, seed: int) -> None:
        """`slot`: the capacity that brings a chunk in a slot."""
        self.hops, self.task, self.levels = hops, task, levels
        self.rng = np.random.default_rng(seed)
        self.rate = hops.capacity / slot  # chunks in a slot
        self.had = task.have.copy()  # before the step
        self.lack = ~task.have if task.allowed is None else task.allowed & ~task.have  # now, of what may be given
        island_sets = [task.have if level.trivial else level.gathered(task.have) for level in levels]
        self.alone = [_in_one(sets) for sets in island_sets]
        self.lonely = [bool(alone.any()) for alone in self.alone]
        self.absent = [
            ~sets for sets in island_sets
        ]  # of every kind: what its islands have not; not kept where they are ranks
        self.missing = task.missing
        self.spread = [np.zeros(task.chunks, np.int64) for _ in levels]
        self.rows: list[tuple[Longs, Longs]] = []
        self.work = 0
        widest = max((len(batch.hop) for batches in hops.batches for batch in batches), default=0)
        self.sets = np.empty((2, widest, task.have.shape[1]), np.uint64)  # again and again the same memory

    def run(self, pace: Pace) -> Run:
        """Until nobody lacks anything, or nothing more can be brought. O(chunks brought * chunks / 64) and some columns
        for every batch and step."""
        step: list[Longs] = []
        over, strict, number, min_length = 0.0, True, 0, 1.0
        while self.missing.any():
            longest = min(1 + pace.rise * number, over * pace.first)
            if longest >= 2:
                longest = min(longest, self._left() * pace.last)
            length = max(min_length, float(int(longest)))
            before = len(self.rows)
            self._step(length, strict)
            moved = [len(hop) for hop, _ in self.rows[before:]]
            if moved:
                step.append(np.full(sum(moved), number))
                number += 1
                over += length
                min_length = 1.0
                self._ended(before)
            elif strict:
                strict = False  # an island may have what some of its ranks cannot be given there
            elif np.floor(self.rate * length + 1e-9).min(initial=1) < 1:
                min_length = 2 * length
            else:
                break
        hop = np.concatenate([NOTHING, *(hop for hop, _ in self.rows)])
        chunk = np.concatenate([NOTHING, *(chunk for _, chunk in self.rows)])
        return Run(np.concatenate([NOTHING, *step]), hop, chunk, np.flatnonzero(self.missing), self.work)

    def _left(self) -> float:
        """Slots that it takes at least from now on."""
        needs = (
            level.time(self.missing[level.label.argsort()], self.rate)
            if level.trivial
            else level.slots(self.task.want & self.lack, self.rate)
            for level in self.levels
        )
        return max(needs)

    def _ended(self, before: int) -> None:
        """What came in this step can be passed on."""
        hop, chunk = (np.concatenate(columns) for columns in zip(*self.rows[before:], strict=True))
        to = self.hops.dst[hop]
        put(self.had, to, chunk)
        if self.task.allowed is not None:  # else everyone wants all
            to = to[has(self.task.want, to, chunk)]
        self.missing -= np.bincount(to, minlength=self.task.ranks)

    def _step(self, length: float, strict: bool) -> None:
        room = np.floor(self.rate * length + 1e-9)
        for kind in range(len(self.levels) - 1, -1, -1):
            batches = self.hops.batches[kind]
            max_room = max(1, int(room[batches[0].loaded].max(initial=0)))
            alike = self.levels[kind].trivial and all(batch.plain for batch in batches)
            singly = alike and max_room < 2 * SHARE
            if singly and room[batches[0].loaded[0]] < 1:
                continue
            open_ = [batch.every for batch in batches]  # hops that may bring more in this step
            open_batches = np.arange(len(batches))
            for _ in range(max_room if singly else max_room * max(1, -(-PASSES // len(batches)))):
                before = len(self.rows)
                for at in self.rng.permutation(open_batches)[:PASSES].tolist():
                    if singly:
                        open_[at] = self._singly(kind, batches[at], open_[at])
                    else:
                        open_[at] = self._batch(kind, batches[at], open_[at], room, strict)
                open_batches = np.array([at for at in open_batches.tolist() if len(open_[at])], np.int64)
                if len(self.rows) == before or not len(open_batches):
                    break

    def _singly(self, kind: int, batch: Batch, at: Longs) -> Longs:
        """Lets these hops of a batch, all of which have room and links of their own, bring a chunk each. Which of them
        did; no others can in this step."""
        every_hop = at is batch.every
        dst = batch.dst if every_hop else batch.dst[at]
        offered = self._offered(batch.src if every_hop else batch.src[at], dst)[0]
        self.work += work_of(len(at), offered.shape[1])
        chunk = self._picked(kind, offered, offered, 1)[0]
        if int(chunk.min()) < 0:
            successful = chunk >= 0
            at, dst, chunk, every_hop = at[successful], dst[successful], chunk[successful], False
            if not len(at):
                return at
        place, bit = spot(self.lack, dst, chunk)
        self.lack.reshape(-1)[place] ^= bit
        self._noted(batch.hop if every_hop else batch.hop[at], dst, chunk)
        return at

    def _offered(self, src: Longs, dst: Longs) -> tuple[Words, Words]:
        """What these ranks had that those lack, and as much memory once more."""
        offered, other = self.sets[0, : len(src)], self.sets[1, : len(src)]
        self.had.take(src, axis=0, out=offered, mode="clip")  # clip: straight into that memory
        offered &= self.lack.take(dst, axis=0, out=other, mode="clip")
        return offered, other

    def _batch(self, kind: int, batch: Batch, at: Longs, room: Floats, strict: bool) -> Longs:
        """Lets these hops of a batch bring chunks. Which of them may bring more in this step."""
        space = room[batch.loaded] if batch.plain else np.minimum.reduceat(room[batch.loaded], batch.ptr[:-1])
        at = at[space[at] >= 1]
        if not len(at):
            self.work += BATCH // 10
            return at
        src, dst, space = batch.src[at], batch.dst[at], space[at]
        per_hop = 1 if batch.shared else max(1, min(int(space.max()) // SHARE, CELLS // len(at)))
        offered, other = self._offered(src, dst)
        self.work += BATCH // 2 + work_of(
            len(at), offered.shape[1], per_hop
        )  # more is asked than of links of one hop each
        level = self.levels[kind]
        if level.trivial:
            fresh = offered
        else:
            fresh = self.absent[kind].take(level.label[dst], axis=0, out=other, mode="clip")
            fresh &= offered
            if level.strict and strict:
                offered = fresh
        chunk = self._picked(kind, offered, fresh, per_hop)
        if int(chunk[0].min()) < 0:
            successful = chunk[0] >= 0
            at, space, chunk = at[successful], space[successful], chunk[:, successful]
            if not len(at):
                return at
        self._brought(kind, batch, at, chunk, space, room)
        return at

    def _picked(self, kind: int, offered: Words, fresh: Words, per_hop: int) -> Longs:
        """Of each set so many, some of them perhaps twice: best what no other island has yet, then what this one has
        not, then anything."""
        if not self.lonely[kind]:
            chunk = self._rare(kind, fresh, per_hop)
        else:
            chunk = any_of(fresh & self.alone[kind], self.rng, per_hop)
            flat = chunk.reshape(-1)
            flat[~_first(flat)] = -1
            rest = np.flatnonzero((chunk < 0).any(axis=0))
            if len(rest):
                chunk[:, rest] = np.where(chunk[:, rest] < 0, self._rare(kind, fresh[rest], per_hop), chunk[:, rest])
        if fresh is not offered:
            rest = np.flatnonzero(chunk[0] < 0)
            if len(rest):
                chunk[:, rest] = self._rare(kind, offered[rest], per_hop)
        return chunk

    def _rare(self, kind: int, offered: Words, per_hop: int) -> Longs:
        """Of two that would do the one that fewer have."""
        first, second = any_of(offered, self.rng, 2 * per_hop).reshape(2, per_hop, -1)
        spread = self.spread[kind]
        return np.where(spread[second] < spread[first], second, first)

    def _brought(self, kind: int, batch: Batch, at: Longs, chunk: Longs, space: Floats, room: Floats) -> None:
        """Each of these hops brings of its chunks what it has room for, nothing twice."""
        brought = self._kept(kind, batch, at, chunk, space, room)
        row, column = np.nonzero(brought)
        used = brought.sum(axis=0)
        if batch.plain:
            room[batch.loaded[at]] -= used
        else:
            every = np.zeros(len(batch.hop))
            every[at] = used
            np.subtract.at(room, batch.loaded, np.repeat(every, np.diff(batch.ptr)))
        hop = at[column]
        self._noted(batch.hop[hop], batch.dst[hop], chunk[row, column])

    def _noted(self, hop: Longs, to: Longs, chunk: Longs) -> None:
        """That these hops brought these chunks to those ranks."""
        self.rows.append((hop, chunk))
        for number, level in enumerate(self.levels):
            new = chunk
            if not level.trivial:
                into = level.label[to]
                fresh = has(self.absent[number], into, chunk)
                into, new = into[fresh], chunk[fresh]
                drop(self.absent[number], into, new)
            np.add.at(self.spread[number], new, 1)
            if self.lonely[number]:  # these are now in a second place
                drop(self.alone[number], np.zeros_like(new), new)
                self.lonely[number] = bool(self.alone[number].any())

    def _kept(self, kind: int, batch: Batch, at: Longs, chunk: Longs, space: Floats, room: Floats) -> Bools:
        """Which of these chunks are brought: in a row of them each, one for every hop."""
        brought = np.arange(len(chunk))[:, None] < space
        if batch.shared:
            brought[0] = _within(batch, at, room)
        level, dst = self.levels[kind], batch.dst[at]
        if not level.trivial:  # into an island once
            row, column = np.nonzero(brought)
            named = level.label[dst[column]] * self.task.chunks + chunk[row, column]
            brought[row, column] = _first(named)
        lack = self.lack.reshape(-1)
        for good, place, bit in zip(brought, *spot(self.lack, dst, chunk), strict=True):
            word = lack[place]
            np.logical_and(good, word & bit != 0, out=good)
            lack[place] = word ^ bit * good
        return brought


def _first(values: Longs) -> Bools:
    """Where each value comes first: they are sorted with their places in the lowest bits.

    >>> _first(np.array([7, 2, 7, 2, 5])).tolist()
    [True, True, False, False, True]
    """
    count = len(values)
    low = count.bit_length()
    order = np.sort((values << low) | np.arange(count))
    value, place = order >> low, order & ((1 << low) - 1)
    comes_first = np.zeros(count, np.bool_)
    comes_first[place[np.append(True, value[1:] != value[:-1])[:count]]] = True
    return comes_first


def _in_one(rows: Words) -> Words:
    """The chunks that just one row has, as the only row."""
    in_any, twice = np.zeros_like(rows[:1]), np.zeros_like(rows[:1])
    for row in rows:
        twice |= in_any & row
        in_any |= row
    return in_any & ~twice


def _within(batch: Batch, at: Longs, room: Floats) -> Bools:
    """Which of these hops have room, served in order, where several load the same."""
    picked = np.zeros(len(batch.hop), np.int64)
    picked[at] = 1
    entry = np.repeat(picked, np.diff(batch.ptr))[batch.order]
    loaded = batch.loaded[batch.order]
    so_far = np.cumsum(entry)
    first = np.append(True, loaded[1:] != loaded[:-1])
    base = (so_far - entry)[first][np.cumsum(first) - 1]
    good = np.ones(len(loaded), np.bool_)
    good[batch.order] = so_far - base <= room[loaded]
    return np.logical_and.reduceat(good, batch.ptr[:-1])[at]
