"""Simulate how a collective that copies (broadcast, allgather) spreads: in each step every hop brings chunks that are
missing.

Input are the hops of a machine (hops.py: paths from rank to rank without a rank in between, by kind, in batches where
no rank sends or receives twice) and a task: which rank has and which needs each chunk. Output are transfers: step, hop,
chunk. A rank forwards in a step only chunks that it had before the step. A step lasts a number of slots; a slot is the
time of one chunk on a link of the bottleneck kind. Steps are short at first, when few ranks have anything to forward,
long in the middle, which saves latency, and short again at the end (`Pace`).

Within a step, kinds of hops are served from the narrowest to the widest, batches in random order. Which chunk a hop
brings (`_pick_chunks`): one that only a single island (islands.py: ranks joined by wider hops) has, else one new to the
destination's island, else any. Of two random candidates it is the one with fewer copies ("power of two choices", an
inexpensive form of rarest first).

State: `had`, the chunks of each rank before the step; `lack`, those that it lacks now; `absent`, per kind, those that
each island lacks; `copies`, per kind, the number of islands that have received each chunk since the start. A level (the
islands of a kind) is trivial if every rank is an island of its own. A batch is plain if each hop is one link that no
other hop loads, shared if several of its hops load the same resource.

Example: three chunks a, b, c from rank 0 along 0 - 1 - 2. Step 0 brings a to 1, step 1 b to 1 and a to 2, step 2 c to 1
and b to 2, step 3 c to 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.planners.greedy.bits import Words, add_chunks, contains_chunks, draw_chunks, locate_bits, remove_chunks
from antiphon.planners.greedy.chunk_routes import ChunkRoutes
from antiphon.planners.greedy.hops import Batch, Hops
from antiphon.planners.greedy.islands import IslandLevel

ROOM_DIVISOR = 2  # a hop takes this fraction (1/2) of its remaining room at once
ROUNDING = 1e-9  # chunks; added before room is rounded down to whole chunks, as it is a product of floats
MAX_CHUNKS_AT_ONCE = 4096  # chunks that a batch takes at once, unless it has more hops
# Effort, counted by `work_of` in units of about a microsecond:
BATCH_EFFORT = 80  # units per batch
WORDS_PER_UNIT = 400  # words of sets that are processed in a unit
WORDS_PER_PICK = 40  # choosing a chunk takes as long as so many words
VISITS = 24  # batches of a kind that are visited in a round, at most (see `_run_step`)
NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Pace:
    """Limits of the length of a step, in whole slots, at least one.

    A step lasts at most
        `first` times the time elapsed,
        `last` times the least time remaining,
        1 + `rise` times the number of the step.
    """

    rise: float
    first: float
    last: float


@dataclass(frozen=True, eq=False)
class SpreadTask:
    """Which rank has and which needs each chunk; all chunks count as equal in size. Sets are rows of bits, per rank."""

    ranks: int
    chunks: int
    have: Words
    want: Words
    allowed: Words | None = None  # the chunks that each rank may be given; None: all, and it needs all
    routes: ChunkRoutes | None = None  # fixed routes of the chunks, if any: then `Moving` (moves.py) simulates instead

    @property
    def missing(self) -> Longs:
        """By rank, the number of chunks that it needs and lacks."""
        lacking = self.want & ~self.have
        return np.bitwise_count(lacking).sum(axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class SimulatedTransfers:
    """The transfers of a simulation, as columns."""

    step: Longs
    hop: Longs  # its number in `Hops`
    chunk: Longs
    stuck: Longs = field(default_factory=lambda: NOTHING)  # ranks that lack something that no hop can bring them
    work: int = 0  # effort: a constant per batch, plus the words of its sets


def work_of(hops: int, words: int, per_hop: int = 1) -> int:
    """Return the effort of letting this many hops of a batch bring `per_hop` chunks each; `words`: size of a set."""
    return BATCH_EFFORT + hops * (words + per_hop * WORDS_PER_PICK) // WORDS_PER_UNIT


class Spreading:
    """One run of the simulation."""

    def __init__(
        self, hops: Hops, task: SpreadTask, levels: tuple[IslandLevel, ...], slot_capacity: float, seed: int
    ) -> None:
        """`slot_capacity`: of a link that carries one chunk in a slot."""
        self.hops, self.task, self.levels = hops, task, levels
        self.rng = np.random.default_rng(seed)
        self.rate = hops.capacity / slot_capacity  # chunks in a slot
        self.had = task.have.copy()  # before the step
        # by rank, the chunks that it lacks now and may be given
        self.lack = ~task.have if task.allowed is None else task.allowed & ~task.have
        island_sets = [task.have if level.trivial else level.island_sets(task.have) for level in levels]
        # per kind: the chunks that only a single island has; these are the most urgent
        self.unique = [_held_once(sets) for sets in island_sets]
        self.has_unique = [bool(chunks.any()) for chunks in self.unique]
        # by kind: the chunks that each of its islands lacks; unused where islands are single ranks
        self.absent = [~sets for sets in island_sets]
        self.missing = task.missing
        self.copies = [np.zeros(task.chunks, np.int64) for _ in levels]
        self.rows: list[tuple[Longs, Longs]] = []
        self.work = 0
        widest = max((len(batch.hop) for batches in hops.batches for batch in batches), default=0)
        self.sets = np.empty((2, widest, task.have.shape[1]), np.uint64)  # buffers, reused

    def run(self, pace: Pace) -> SimulatedTransfers:
        """Run until no rank lacks anything, or nothing more can be brought.

        O(chunks brought * chunks / 64), and some columns for every batch and step.
        """
        step: list[Longs] = []
        elapsed, strict, number, min_length = 0.0, True, 0, 1.0
        while self.missing.any():
            # the step length: limited by the time elapsed (a long step early would leave most ranks without anything to
            # give) and by the time remaining (a long last step would leave most links idle)
            longest = min(1 + pace.rise * number, elapsed * pace.first)
            if longest >= 2:  # below 2 the step has one slot anyway
                longest = min(longest, self._slots_left() * pace.last)
            length = max(min_length, float(int(longest)))
            before = len(self.rows)
            self._run_step(length, strict)
            moved = [len(hop) for hop, _ in self.rows[before:]]
            if moved:
                step.append(np.full(sum(moved), number))
                number += 1
                elapsed += length
                min_length = 1.0
                self._end_step(before)
            elif strict:
                # some ranks of an island may not be reachable from within it: allow chunks to enter it again
                strict = False
            # nothing moved, perhaps because a link has no room for a whole chunk in so short a step: double it
            elif np.floor(self.rate * length + ROUNDING).min(initial=1) < 1:
                min_length = 2 * length
            else:
                break
        hop = np.concatenate([NOTHING, *(hop for hop, _ in self.rows)])
        chunk = np.concatenate([NOTHING, *(chunk for _, chunk in self.rows)])
        return SimulatedTransfers(np.concatenate([NOTHING, *step]), hop, chunk, np.flatnonzero(self.missing), self.work)

    def _slots_left(self) -> float:
        """Return the least number of slots that are still needed."""
        needs = (
            # `missing` by island: label.argsort() lists the rank of every island
            level.least_time(self.missing[level.label.argsort()], self.rate)
            if level.trivial
            else level.least_time_for_sets(self.task.want & self.lack, self.rate)
            for level in self.levels
        )
        return max(needs)

    def _end_step(self, before: int) -> None:
        """Make the chunks that came in this step available for forwarding. `before`: number of `rows` before it."""
        hop, chunk = (np.concatenate(columns) for columns in zip(*self.rows[before:], strict=True))
        receiver = self.hops.dst[hop]
        add_chunks(self.had, receiver, chunk)
        if self.task.allowed is not None:  # otherwise every chunk that comes is needed
            receiver = receiver[contains_chunks(self.task.want, receiver, chunk)]
        self.missing -= np.bincount(receiver, minlength=self.task.ranks)

    def _run_step(self, length: float, strict: bool) -> None:
        """Simulate one step of this many slots.

        `strict`: no chunk may enter an island twice if the links into it are the bottleneck.
        """
        room = np.floor(self.rate * length + ROUNDING)
        # the widest kind last: narrow hops between islands choose first, since the chunks that they bring are spread
        # inside the islands in later steps
        for kind in range(len(self.levels) - 1, -1, -1):
            batches = self.hops.batches[kind]
            max_room = max(1, int(room[batches[0].loaded].max(initial=0)))
            is_uniform = self.levels[kind].trivial and all(batch.plain for batch in batches)
            # the common simple case: every hop has links of its own and brings at most one chunk at a time
            # (max_room // ROOM_DIVISOR is 0 or 1). Each of the `max_room` rounds brings at most one chunk per hop,
            # so there is no room to account for
            one_at_a_time = is_uniform and max_room < 2 * ROOM_DIVISOR
            if one_at_a_time and room[batches[0].loaded[0]] < 1:  # the first hop's link: those of a kind are as wide
                continue
            open_hops = [batch.every for batch in batches]  # by batch: indices of hops that may bring more in this step
            open_batches = np.arange(len(batches))
            # a round visits VISITS batches, or all if they are fewer: then there are more rounds, so that VISITS visits
            # or more are made per chunk of room in any case
            rounds = max_room if one_at_a_time else max_room * -(-VISITS // len(batches))
            for _ in range(rounds):
                before = len(self.rows)
                for i in self.rng.permutation(open_batches)[:VISITS].tolist():
                    if one_at_a_time:
                        open_hops[i] = self._send_single(kind, batches[i], open_hops[i])
                    else:
                        open_hops[i] = self._send_batch(kind, batches[i], open_hops[i], room, strict)
                open_batches = np.array([i for i in open_batches.tolist() if len(open_hops[i])], np.int64)
                if len(self.rows) == before or not len(open_batches):
                    break

    def _send_single(self, kind: int, batch: Batch, index: Longs) -> Longs:
        """Let these hops of a batch, which have room and links of their own, bring a chunk each; return those that did.

        `index`, here and in the other methods: the positions of these hops in the columns of the batch.
        """
        # identity, not equality: the first visit of a step serves all hops of the batch, and then no column need be
        # gathered
        every_hop = index is batch.every
        dst = batch.dst if every_hop else batch.dst[index]
        offered, _ = self._offered_chunks(batch.src if every_hop else batch.src[index], dst)
        self.work += work_of(len(index), offered.shape[1])
        [chunk] = self._pick_chunks(kind, offered, offered, per_hop=1)
        if int(chunk.min()) < 0:
            successful = chunk >= 0
            index, dst, chunk, every_hop = index[successful], dst[successful], chunk[successful], False
            if not len(index):
                return index
        word_index, mask = locate_bits(self.lack, dst, chunk)
        self.lack.reshape(-1)[word_index] ^= mask
        self._note_arrivals(batch.hop if every_hop else batch.hop[index], dst, chunk)
        return index

    def _offered_chunks(self, src: Longs, dst: Longs) -> tuple[Words, Words]:
        """Return, per hop, the chunks that src[i] had and dst[i] lacks, and a second buffer of this shape."""
        offered, other = self.sets[0, : len(src)], self.sets[1, : len(src)]
        self.had.take(src, axis=0, out=offered, mode="clip")  # mode clip writes straight into the buffer
        offered &= self.lack.take(dst, axis=0, out=other, mode="clip")
        return offered, other

    def _send_batch(self, kind: int, batch: Batch, index: Longs, room: Floats, strict: bool) -> Longs:
        """Let these hops of a batch bring chunks; return those that may bring more in this step."""
        # room of a hop: that of its only resource, or the least of all its resources
        space = room[batch.loaded] if batch.plain else np.minimum.reduceat(room[batch.loaded], batch.ptr[:-1])
        index = index[space[index] >= 1]
        if not len(index):
            self.work += BATCH_EFFORT // 10  # only looked at
            return index
        src, dst, space = batch.src[index], batch.dst[index], space[index]
        # half of a hop's room at most, so that the batches served later still find chunks worth bringing
        per_hop = 1 if batch.shared else max(1, min(int(space.max()) // ROOM_DIVISOR, MAX_CHUNKS_AT_ONCE // len(index)))
        offered, other = self._offered_chunks(src, dst)
        # `_accept_chunks` tests room and islands, which `_send_single` need not
        self.work += BATCH_EFFORT // 2 + work_of(len(index), offered.shape[1], per_hop)
        level = self.levels[kind]
        if level.trivial:
            preferred = offered
        else:
            # chunks that the whole island of the destination lacks: they serve all its ranks, by the links inside
            preferred = self.absent[kind].take(level.label[dst], axis=0, out=other, mode="clip")
            preferred &= offered
            if level.strict and strict:
                offered = preferred
        chunk = self._pick_chunks(kind, offered, preferred, per_hop)
        if int(chunk[0].min()) < 0:
            successful = chunk[0] >= 0
            index, space, chunk = index[successful], space[successful], chunk[:, successful]
            if not len(index):
                return index
        self._bring_chunks(kind, batch, index, chunk, space, room)
        return index

    def _pick_chunks(self, kind: int, offered: Words, preferred: Words, per_hop: int) -> Longs:
        """Pick `per_hop` chunks (maybe repeated) per hop from its sets `offered` and `preferred`; -1: none left.

        Returns an array [pick, hop].

        A chunk that only one island has comes first, then one that is new to the destination's island, then any.
        """
        if not self.has_unique[kind]:
            chunk = self._pick_rarer(kind, preferred, per_hop)
        else:
            chunk = draw_chunks(preferred & self.unique[kind], self.rng, per_hop)
            # two hops must not both bring the same such chunk: the second draws again from all of `preferred`
            flat = chunk.reshape(-1)
            flat[~_first_occurrences(flat)] = -1
            unpicked = np.flatnonzero((chunk < 0).any(axis=0))
            if len(unpicked):
                chunk[:, unpicked] = np.where(
                    chunk[:, unpicked] < 0, self._pick_rarer(kind, preferred[unpicked], per_hop), chunk[:, unpicked]
                )
        if preferred is not offered:
            unpicked = np.flatnonzero(chunk[0] < 0)
            if len(unpicked):
                chunk[:, unpicked] = self._pick_rarer(kind, offered[unpicked], per_hop)
        return chunk

    def _pick_rarer(self, kind: int, offered: Words, per_hop: int) -> Longs:
        """Draw two candidates and return the one with fewer `copies`."""
        first, second = draw_chunks(offered, self.rng, 2 * per_hop).reshape(2, per_hop, -1)
        copies = self.copies[kind]
        # for an empty set both candidates are -1, and so is the result
        return np.where(copies[second] < copies[first], second, first)

    def _bring_chunks(self, kind: int, batch: Batch, index: Longs, chunk: Longs, space: Floats, room: Floats) -> None:
        """Let each hop bring those of its picked chunks that it has room for, no chunk twice to a rank."""
        brought = self._accept_chunks(kind, batch, index, chunk, space, room)
        row, column = np.nonzero(brought)
        used = brought.sum(axis=0)
        if batch.plain:
            room[batch.loaded[index]] -= used
        else:
            used_by_hop = np.zeros(len(batch.hop))
            used_by_hop[index] = used
            np.subtract.at(room, batch.loaded, np.repeat(used_by_hop, np.diff(batch.ptr)))
        hop = index[column]
        self._note_arrivals(batch.hop[hop], batch.dst[hop], chunk[row, column])

    def _note_arrivals(self, hop: Longs, receiver: Longs, chunk: Longs) -> None:
        """Record that hop[i] brought chunk[i] to rank receiver[i]."""
        self.rows.append((hop, chunk))
        for number, level in enumerate(self.levels):
            new = chunk
            if not level.trivial:
                into = level.label[receiver]
                is_new = contains_chunks(self.absent[number], into, chunk)
                into, new = into[is_new], chunk[is_new]
                remove_chunks(self.absent[number], into, new)
            np.add.at(self.copies[number], new, 1)
            if self.has_unique[number]:  # no longer in a single island
                remove_chunks(self.unique[number], np.zeros_like(new), new)  # zeros: `unique` has a single row
                self.has_unique[number] = bool(self.unique[number].any())

    def _accept_chunks(self, kind: int, batch: Batch, index: Longs, chunk: Longs, space: Floats, room: Floats) -> Bools:
        """Return which of these chunks (a row per draw, a column per hop) are brought."""
        brought = np.arange(len(chunk))[:, None] < space
        if batch.shared:
            brought[0] = _hops_with_room(batch, index, room)
        level, dst = self.levels[kind], batch.dst[index]
        if not level.trivial:  # by these hops, each chunk enters an island once
            row, column = np.nonzero(brought)
            # one number for each pair (island, chunk)
            island_and_chunk = level.label[dst[column]] * self.task.chunks + chunk[row, column]
            brought[row, column] = _first_occurrences(island_and_chunk)
        lack = self.lack.reshape(-1)
        # draw by draw, since a later draw may repeat a chunk of an earlier one: after the first it is no longer lacking
        for is_brought, word_index, mask in zip(brought, *locate_bits(self.lack, dst, chunk), strict=True):
            word = lack[word_index]
            np.logical_and(is_brought, word & mask != 0, out=is_brought)
            lack[word_index] = word ^ mask * is_brought
        return brought


def _first_occurrences(values: Longs) -> Bools:
    """Return where each value occurs first. Values are sorted with their positions in the lowest bits.

    >>> _first_occurrences(np.array([7, 2, 7, 2, 5])).tolist()
    [True, True, False, False, True]
    """
    count = len(values)
    low = count.bit_length()
    order = np.sort((values << low) | np.arange(count))
    value, position = order >> low, order & ((1 << low) - 1)
    comes_first = np.zeros(count, np.bool_)
    comes_first[position[np.append(True, value[1:] != value[:-1])[:count]]] = True
    return comes_first


def _held_once(rows: Words) -> Words:
    """Return the chunks that exactly one row has, as a single row."""
    in_any, twice = np.zeros_like(rows[:1]), np.zeros_like(rows[:1])
    for row in rows:
        twice |= in_any & row
        in_any |= row
    return in_any & ~twice


def _hops_with_room(batch: Batch, index: Longs, room: Floats) -> Bools:
    """Return which of these hops have room if they are served in order and several may load the same resource."""
    # along the batch's entries, sorted by resource: `so_far` - `base` picked hops load this resource up to this entry
    picked = np.zeros(len(batch.hop), np.int64)
    picked[index] = 1
    is_picked = np.repeat(picked, np.diff(batch.ptr))[batch.order]
    loaded = batch.loaded[batch.order]
    so_far = np.cumsum(is_picked)
    first = np.append(True, loaded[1:] != loaded[:-1])
    base = (so_far - is_picked)[first][np.cumsum(first) - 1]
    fits = np.ones(len(loaded), np.bool_)
    fits[batch.order] = so_far - base <= room[loaded]
    return np.logical_and.reduceat(fits, batch.ptr[:-1])[index]
