"""Steps, one after the other: in each, whatever hop is free brings its end a chunk that it lacks.

What a rank passes on in a step it had before. A step lasts so many slots, of one chunk on a link of the narrowest
place: short ones at first, when most ranks have little to give, long ones then, which save latency, and short ones at
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.planners.greedy.bits import Words, any_of, has, put, put_one
from antiphon.planners.greedy.hops import Batch, Hops
from antiphon.planners.greedy.islands import Level
from antiphon.planners.greedy.ways import Ways

DRAWS = 2  # of chunks that would do, of which the one that fewest have is taken
BATCH, WORDS = 100, 100  # work of a batch, and words for one more
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


class Spreading:
    """One run of the steps."""

    def __init__(self, hops: Hops, task: Task, levels: tuple[Level, ...], slot: float, seed: int) -> None:
        """`slot`: the capacity that brings a chunk in a slot."""
        self.hops, self.task, self.levels = hops, task, levels
        self.rng = np.random.default_rng(seed)
        self.rate = hops.capacity / slot  # chunks in a slot
        self.now = task.have.copy()
        self.held = [level.gathered(self.now) for level in levels]  # of every kind: what its islands have
        self.alone = [_in_one(held) for held in self.held]
        self.missing = task.missing
        self.spread = [np.zeros(task.chunks, np.int64) for _ in levels]
        self.rows: list[tuple[Longs, Longs]] = []
        self.work = 0

    def run(self, pace: Pace) -> Run:
        """Until nobody lacks anything, or nothing more can be brought. O(chunks brought * chunks / 64) and some columns
        for every batch and step."""
        step: list[Longs] = []
        over, strict, number, least = 0.0, True, 0, 1.0
        while self.missing.any():
            left = max(level.slots(self.task.want & ~self.now, self.rate) for level in self.levels)
            length = max(least, float(int(min(1 + pace.rise * number, over * pace.first, left * pace.last))))
            before = len(self.rows)
            self._step(length, strict)
            moved = sum(len(hop) for hop, _ in self.rows[before:])
            step += [np.full(len(hop), number) for hop, _ in self.rows[before:]]
            if moved:
                number += 1
                over += length
                least = 1.0
            elif strict:
                strict = False  # an island may have what some of its ranks cannot be given there
            elif np.floor(self.rate * length + 1e-9).min(initial=1) < 1:
                least = 2 * length
            else:
                break
        hop = np.concatenate([NOTHING, *(hop for hop, _ in self.rows)])
        chunk = np.concatenate([NOTHING, *(chunk for _, chunk in self.rows)])
        return Run(np.concatenate([NOTHING, *step]), hop, chunk, np.flatnonzero(self.missing), self.work)

    def _step(self, length: float, strict: bool) -> None:
        room = np.floor(self.rate * length + 1e-9)
        start = self.now.copy()
        for kind in range(len(self.levels) - 1, -1, -1):
            batches = self.hops.batches[kind]
            most = max(1, int(room[batches[0].loaded].max(initial=0)))
            for _ in range(most * max(1, -(-PASSES // len(batches)))):
                moved = 0
                for at in self.rng.permutation(len(batches))[:PASSES].tolist():
                    moved += self._batch(kind, batches[at], start, room, strict)
                if not moved:
                    break

    def _batch(self, kind: int, batch: Batch, start: Words, room: Floats, strict: bool) -> int:
        """How many chunks the hops of a batch bring, at most one each."""
        free = np.minimum.reduceat(room[batch.loaded], batch.ptr[:-1]) >= 1
        at = np.flatnonzero(free)
        if not len(at):
            self.work += BATCH // 10
            return 0
        self.work += BATCH + len(at) * self.now.shape[1] // WORDS
        level = self.levels[kind]
        src, dst = batch.src[at], batch.dst[at]
        offered = start[src] & ~self.now[dst]
        if self.task.allowed is not None:
            offered &= self.task.allowed[dst]
        fresh = offered if level.trivial else offered & ~self.held[kind][level.label[dst]]
        if level.strict and strict:
            offered = fresh
        chunk = self._picked(kind, offered, fresh)
        kept = chunk >= 0
        if batch.shared:
            kept[kept] = _within(batch, at[kept], room)
        if not level.trivial and kept.any():  # into an island once
            named = np.flatnonzero(kept)
            _, first = np.unique(level.label[dst[named]] * self.task.chunks + chunk[named], return_index=True)
            kept[:] = False
            kept[named[first]] = True
        at, dst, chunk = at[kept], dst[kept], chunk[kept]
        if len(at):
            self._brought(batch, at, dst, chunk, room)
        return len(at)

    def _picked(self, kind: int, offered: Words, fresh: Words) -> Longs:
        """Best what no other island has yet, then what this one has not, then anything."""
        chunk = np.full(len(offered), -1)
        if self.alone[kind].any():
            chunk = any_of(fresh & self.alone[kind], self.rng)[0]
            _, first = np.unique(chunk, return_index=True)
            once = np.zeros(len(chunk), np.bool_)
            once[first] = True
            chunk[~once] = -1
        for choice in (fresh,) if fresh is offered else (fresh, offered):
            rest = np.flatnonzero(chunk < 0)
            if len(rest):
                chunk[rest] = self._rare(kind, choice[rest])
        return chunk

    def _rare(self, kind: int, offered: Words) -> Longs:
        drawn = any_of(offered, self.rng, DRAWS)
        return drawn[self.spread[kind][drawn].argmin(axis=0), np.arange(len(offered))]

    def _brought(self, batch: Batch, at: Longs, dst: Longs, chunk: Longs, room: Floats) -> None:
        put_one(self.now, dst, chunk)
        self.missing[dst] -= has(self.task.want, dst, chunk)
        if len(at) == len(batch.hop):
            used = batch.loaded
        else:
            picked = np.zeros(len(batch.hop), np.bool_)
            picked[at] = True
            used = batch.loaded[np.repeat(picked, np.diff(batch.ptr))]
        if batch.shared:
            np.subtract.at(room, used, 1)
        else:
            room[used] -= 1
        for kind, level in enumerate(self.levels):
            if level.trivial and not kind:
                known = self.alone[kind]
                _spoilt(known, chunk)
                np.add.at(self.spread[kind], chunk, 1)
                continue
            into = level.label[dst]
            new = ~has(self.held[kind], into, chunk)
            _spoilt(self.alone[kind], chunk[new])
            np.add.at(self.spread[kind], chunk[new], 1)
            put(self.held[kind], into[new], chunk[new])
        self.rows.append((batch.hop[at], chunk))


def _in_one(held: Words) -> Words:
    """The chunks that just one row has."""
    seen, twice = np.zeros_like(held[0]), np.zeros_like(held[0])
    for row in held:
        twice |= seen & row
        seen |= row
    return seen & ~twice


def _spoilt(alone: Words, chunk: Longs) -> None:
    """These are now in a second place."""
    np.bitwise_and.at(alone, chunk >> 6, ~(np.uint64(1) << (chunk & 63).astype(np.uint64)))


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
