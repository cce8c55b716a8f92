"""What every rank does in every stream: step by step, so that nobody waits for what comes later.

In a step a rank first tells who may write into its places (a credit), then waits for its own credits, puts, signals,
and waits for what is put into its places; then it folds. What it asks switches for it does before it puts, once all
who are concerned have given their credit. Everything that a rank waits for is done by others in the
same step or earlier, and credits and puts wait only for earlier steps: so among the ranks that are behind all others
one can always go on.

Between two ranks signals are only counted. They are sent and awaited in the same order: by step, credits first.

`RankSteps` writes the steps of a rank down, with a sync wherever one needs it. `OneSided` says which they are.

Pulled instead of pushed, a step has no credits: a rank signals who may read its places, waits until it may read those
of others, gets what it needs into places of its own, signals that it has, and waits until others have. So in a step
nobody waits for what somebody does later in it, and behind it all of its places are its own again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Bools, Longs, pointers
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import FOLD as FOLDS
from antiphon.lower.onesided.form import (
    FOLD,
    GET,
    MOST_OPERANDS,
    MOST_PEERS,
    PUT,
    SIGNAL,
    SPREAD,
    SWITCH,
    SYNC,
    WAIT,
    Move,
    Moves,
    Place,
    Step,
    Streams,
    joined,
)
from antiphon.lower.onesided.streams import credits, streams
from antiphon.lower.onesided.switched import Switched

# ---- the steps of a rank, with syncs ----

_SYNC = Step(SYNC)
Touched = Callable[[int, Place, int], tuple[int, int, int]]


def plainly(rank: int, place: Place, size: int) -> tuple[int, int, int]:
    return place[0], place[1], place[1] + size


@dataclass(eq=False)
class RankSteps:
    """Of a rank. `touched`: the buffer, and from where to where, that it touches by a place and a size. `ones`, `wide`:
    what it touched since the last sync, and whether it wrote there: single chunks by their places, and all else.
    `awaited`: it has waited for something since then."""

    rank: int
    touched: Touched = plainly
    made: list[Step] = field(default_factory=list)
    ones: dict[Place, bool] = field(default_factory=dict)
    wide: list[tuple[int, int, int, bool]] = field(default_factory=list)
    awaited: bool = False

    @property
    def fresh(self) -> bool:
        return bool(self.ones or self.wide)

    def sync(self) -> None:
        self.made.append(_SYNC)
        self.ones, self.wide, self.awaited = {}, [], False

    def touch(self, step: Step, reads: Sequence[tuple[Place, int]], writes: Sequence[tuple[Place, int]] = ()) -> None:
        """Append a step that reads and writes places and sizes, behind a sync where it meets what is not yet done."""
        touched, rank = self.touched, self.rank
        accesses = [(*touched(rank, place, size), False) for place, size in reads]
        accesses += [(*touched(rank, place, size), True) for place, size in writes]
        if self.awaited or self._meets(accesses):
            self.sync()
        self.made.append(step)
        for buffer, begin, end, writes_it in accesses:
            if end - begin == 1:
                self.ones[buffer, begin] = writes_it or self.ones.get((buffer, begin), False)
            else:
                self.wide.append((buffer, begin, end, writes_it))

    def touch_ones(self, step: Step, reads: Sequence[Place], writes: Sequence[Place] = ()) -> None:
        """The same of single chunks, as nearly all are."""
        if self.wide or self.touched is not plainly:
            self.touch(step, [(place, 1) for place in reads], [(place, 1) for place in writes])
            return
        ones, meets = self.ones, self.awaited
        for place in reads:
            if ones.get(place):
                meets = True
        for place in writes:
            if place in ones:
                meets = True
        if meets:
            self.sync()
            ones = self.ones
        self.made.append(step)
        for place in reads:
            ones.setdefault(place, False)
        for place in writes:
            ones[place] = True

    def combine(self, step: Step, reads: Sequence[Place]) -> None:
        """Append a step that makes of what it reads what it writes at `into`."""
        if step.size == 1:
            self.touch_ones(step, reads, (step.into,))
        else:
            self.touch(step, [(place, step.size) for place in reads], [(step.into, step.size)])

    def put(self, kind: int, moves: list[Move]) -> None:
        """Append steps that write at others what is here: each from one buffer, as many moves as a step takes."""
        if len(moves) == 1 and moves[0].size == 1:  # as nearly always
            self.touch_ones(Step(kind, (), tuple(moves)), (moves[0].source,))
            return
        for buffer in sorted({move.source[0] for move in moves}):
            from_buffer = [move for move in moves if move.source[0] == buffer]
            for low in range(0, len(from_buffer), MOST_PEERS):
                batch = tuple(from_buffer[low : low + MOST_PEERS])
                self.touch(Step(kind, (), batch), [(move.source, move.size) for move in batch])

    def _meets(self, accesses: list[tuple[int, int, int, bool]]) -> bool:
        ones, wide = self.ones, self.wide
        for buffer, begin, end, writes in accesses:
            if end - begin == 1:
                wrote = ones.get((buffer, begin))
                if wrote or (writes and wrote is not None):
                    return True
            else:
                for (other, at), wrote in ones.items():
                    if (writes or wrote) and buffer == other and begin <= at < end:
                        return True
            for other, start, stop, wrote in wide:
                if (writes or wrote) and buffer == other and begin < stop and start < end:
                    return True
        return False


class Fold(NamedTuple):
    """`size` chunks at each of `operands`, combined at `into`; `rows` of the program."""

    rows: tuple[int, ...]
    into: Place
    operands: tuple[Place, ...]
    size: int


def together(folds: list[Fold]) -> list[Fold]:
    """Folds whose result and operands all go on where those of the one before end, as one."""
    out: list[Fold] = []
    for fold in folds:
        if out:
            last = out[-1]
            behind = [(place[0], place[1] + last.size) for place in (last.into, *last.operands)]
            if behind == [fold.into, *fold.operands]:
                out[-1] = Fold((*last.rows, *fold.rows), last.into, last.operands, last.size + fold.size)
                continue
        out.append(fold)
    return out


# ---- who does what, step by step ----


def one_sided(
    program: Program, bound: Bound, most: int, known: Switched | None = None, touched: Touched = plainly,
    operands: int = MOST_OPERANDS, pull: bool = False,
) -> Streams:  # fmt: skip
    """The steps of a program, its addresses counted in chunks, in at most `most` streams; what is `known` of it is done
    by switches. `touched`: the buffer, and from where to where, that a rank touches by a place and a size. `operands`:
    of a fold that is one step. `pull`: who receives gets, of what no switch does. O(n log n)."""
    whole = OneSided(program, bound, known, touched, operands)
    dealt = _Pulled(whole, streams(program, most, whole.known)) if pull else whole.dealt(most)
    every = [dealt.steps(rank) for rank in range(program.ranks)]
    return [[every[rank][number] for rank in range(program.ranks)] for number in range(dealt.count)]


class OneSided:
    """The same for whoever tries several numbers of streams, and needs one rank after another."""

    def __init__(
        self, program: Program, bound: Bound, known: Switched | None = None, touched: Touched = plainly,
        operands: int = MOST_OPERANDS,
    ) -> None:  # fmt: skip
        self.program, self.bound, self.touched, self.operands = program, bound, touched, operands
        self.known = known or Switched.none(program)
        self.moves = Moves(program, bound)
        send, receive = program.pairs
        self.receive = receive.tolist()
        credit = credits(program, farther=not self.known.switches)
        self.told: Bools = credit | self.known.bare[send]  # what must be told before
        self.credit = self.told.tolist()
        self.bare = self.known.bare[send].tolist()
        self.wait, self.wait_ptr = program.wait.tolist(), program.wait_ptr.tolist()
        self.part = list(zip(bound.buffer.tolist(), bound.begin.tolist(), strict=True))
        self.length, self.ptr = bound.length.tolist(), program.part_ptr.tolist()
        folds = np.flatnonzero((program.kind == FOLDS) & ~self.known.gone)
        self.folds = folds[np.argsort(program.rank[folds], kind="stable")]
        self.fold_ptr = pointers(program.rank[self.folds], program.ranks)

    def dealt(self, most: int) -> _Dealt:
        return _Dealt(self, streams(self.program, most, self.known))


@dataclass(eq=False, slots=True)
class _Turn:
    """What a rank does in one step of a stream."""

    moves: list[Move] = field(default_factory=list)
    to: list[int] = field(default_factory=list)  # to whom it puts
    awaited: list[int] = field(default_factory=list)  # who puts to it
    asked: list[int] = field(default_factory=list)  # whose credit it needs first
    credits: list[int] = field(default_factory=list)  # to whom it gives one
    after: set[int] = field(default_factory=set)  # folds that must be done before these credits
    folds: list[Fold] = field(default_factory=list)
    switches: list[Step] = field(default_factory=list)


@dataclass(eq=False)
class _RankTurns:
    turns: dict[int, _Turn] = field(default_factory=lambda: defaultdict(_Turn))
    begun: list[int] = field(default_factory=list)  # who must know that this rank has begun


class _Dealt:
    """To so many streams. Messages between two ranks in one step are one put and one signal: a group.

    `group`: (stream, step, source, target, whether it is the first of its way, whether a credit comes before); the
    groups of rank r are `groups` from group_ptr[r] on. The star in one stream:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> from antiphon.core.program import bind
    >>> program = lower(star())
    >>> dealt = OneSided(program, bind(program, 1)).dealt(1)
    >>> dealt.group[:2]
    [(0, 0, 1, 0, True, False), (0, 0, 2, 0, True, False)]
    >>> dealt.group[2:]
    [(0, 1, 0, 1, False, False), (0, 1, 0, 2, False, False)]
    >>> dealt.groups, dealt.group_ptr.tolist()
    ([0, 1, 2, 3, 0, 2, 1, 3], [0, 4, 6, 8])
    """

    def __init__(self, whole: OneSided, stream: Longs) -> None:
        self.whole, self.stream = whole, stream
        self.count = int(stream.max(initial=-1)) + 1
        program, send = whole.program, whole.program.pairs.send
        number, step = stream[send], program.when[send] // 2
        source, target = program.rank[send], program.peer[send]
        order = np.lexsort((target, source, step, number))
        order = order[~(whole.known.gone[send] | whole.moves.empty)[order]]
        columns = np.stack([column[order] for column in (number, step, source, target)])
        edge = np.ones(len(order), bool)
        edge[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
        self.first = np.append(np.flatnonzero(edge), len(order)).tolist()
        self.rows = order.tolist()
        groups = columns[:, edge]
        fresh = _fresh(program.ranks, groups)
        told = np.flatnonzero(edge)
        asked = np.logical_or.reduceat(whole.told[order], told) if len(told) else edge
        self.group = list(zip(*(column.tolist() for column in (*groups, fresh, asked)), strict=True))
        ends = groups[2:].T.ravel()  # of each group its two ranks
        by = np.argsort(ends, kind="stable")
        self.groups, self.group_ptr = (by // 2).tolist(), pointers(ends, program.ranks)

    def steps(self, rank: int) -> list[list[Step]]:
        """What a rank does in each stream."""
        work = [_RankTurns() for _ in range(self.count)]
        self._deal_messages(rank, work)
        self._deal_folds(rank, work)
        known = self.whole.known
        for number, switch in zip(self.stream[known.asked].tolist(), known.switches, strict=True):
            if switch.rank == rank:
                kind = SWITCH if switch.combines else SPREAD
                step = Step(kind, switch.ranks, (), switch.target, (switch.source,), switch.size)
                work[number].turns[switch.step].switches.append(step)
        return [self._written(rank, turns).steps() for turns in work]

    def _written(self, rank: int, work: _RankTurns) -> _Rank:
        return _Rank(rank, work, self.whole.touched, self.whole.operands)

    def _deal_messages(self, rank: int, work: list[_RankTurns]) -> None:
        """Before the first message the sender must know that the receiver has begun: it says so, unless a credit does,
        or what the sender has had from there in an earlier step.

        What a switch multicasts is no put, but a credit before and a signal behind: that the receiver's place is free,
        and what it gives to the sum is there."""
        whole, bare, moves = self.whole, self.whole.bare, self.whole.moves.of(rank)
        for group in self.groups[self.group_ptr[rank] : self.group_ptr[rank + 1]]:
            number, step, source, target, fresh, told = self.group[group]
            rows = self.rows[self.first[group] : self.first[group + 1]]
            turn = work[number].turns[step]
            if source == rank:
                if len(rows) == 1 and not told:
                    turn.moves += moves(rows[0])
                else:
                    turn.moves += joined([move for at in rows if not bare[at] for move in moves(at)])
                turn.to.append(target)
                if told or fresh:
                    turn.asked.append(target)
                continue
            turn.awaited.append(source)
            if told:
                turn.credits.append(source)
                self._after([at for at in rows if whole.credit[at]], turn)
            elif fresh:
                work[number].begun.append(source)

    def _after(self, rows: list[int], turn: _Turn) -> None:
        whole = self.whole
        for at in rows:
            receive = whole.receive[at]
            for row in {receive, whole.known.send_of.get(receive, receive)}:
                turn.after.update(whole.wait[whole.wait_ptr[row] : whole.wait_ptr[row + 1]])

    def _deal_folds(self, rank: int, work: list[_RankTurns]) -> None:
        whole = self.whole
        rows = whole.folds[whole.fold_ptr[rank] : whole.fold_ptr[rank + 1]]
        columns = (rows, self.stream[rows], whole.program.when[rows] // 2)
        for row, number, step in zip(*(column.tolist() for column in columns), strict=True):
            first = whole.ptr[row]
            if whole.length[first]:
                into, *operands = whole.part[first : whole.ptr[row + 1]]
                work[number].turns[step].folds.append(Fold((row,), into, tuple(operands), whole.length[first]))


class _Pulled(_Dealt):
    """The same where who receives gets."""

    def __init__(self, whole: OneSided, stream: Longs) -> None:
        super().__init__(whole, stream)
        self.of = [whole.moves.of(rank) for rank in range(whole.program.ranks)]

    def _deal_messages(self, rank: int, work: list[_RankTurns]) -> None:
        for group in self.groups[self.group_ptr[rank] : self.group_ptr[rank + 1]]:
            number, step, source, target, _, _ = self.group[group]
            turn = work[number].turns[step]
            if source == rank:
                turn.to.append(target)
                continue
            rows = self.rows[self.first[group] : self.first[group + 1]]
            turn.moves += joined([move._replace(peer=source) for at in rows for move in self.of[source](at)])
            turn.awaited.append(source)

    def _written(self, rank: int, work: _RankTurns) -> _Rank:
        return _Puller(rank, work, self.whole.touched, self.whole.operands)


def _fresh(ranks: int, groups: Longs) -> Bools:
    """Of each group (stream, step, source, target), in order, whether it is the first of its way, and nothing came back
    on that way in an earlier step.

    In step 0 from 0 to 1, in step 1 back, which is known to be ready, and from 1 to 2:

    >>> _fresh(3, np.array([[0, 0, 0], [0, 1, 1], [0, 1, 1], [1, 0, 2]]))
    array([ True, False,  True])
    """
    number, step, source, target = groups
    forth, back = (number * ranks + source) * ranks + target, (number * ranks + target) * ranks + source
    unique_ways, first = np.unique(forth, return_index=True)
    begin = np.zeros(len(forth), bool)
    begin[first] = True
    at = np.searchsorted(unique_ways, back).clip(max=max(len(unique_ways) - 1, 0))
    has_answer = (unique_ways[at] == back) & (step[first][at] < step) if len(unique_ways) else begin
    is_first_unheard: Bools = begin & ~has_answer
    return is_first_unheard


class _Rank:
    """Writes the steps of a rank, with a sync wherever something needs it."""

    def __init__(self, rank: int, work: _RankTurns, touched: Touched, operands: int) -> None:
        self.work, self.operands = work, operands
        self.line = RankSteps(rank, touched)
        self.held: list[Fold] = []  # what the next puts may take along

    def steps(self) -> list[Step]:
        self._tell(SIGNAL, self.work.begun)
        for number in sorted(self.work.turns):
            turn = self.work.turns[number]
            if turn.after and any(not turn.after.isdisjoint(fold.rows) for fold in self.held):
                self._fold([])
            if turn.credits:
                self._tell(SIGNAL, turn.credits)
            if turn.asked:
                self._tell(WAIT, turn.asked)
            remaining = self._fold(turn.moves) if self.held else turn.moves
            for step in turn.switches:
                self.line.combine(step, step.operands[:1])
            if remaining:
                self.line.put(PUT, remaining)
            if turn.to:
                self._tell(SIGNAL, turn.to)
            if turn.awaited:
                self._tell(WAIT, turn.awaited)
            self.held = together(turn.folds) if turn.folds else []
        self._fold([])
        return self.line.made

    def _tell(self, kind: int, peers: list[int]) -> None:
        if not peers:
            return
        if kind == SIGNAL and (self.line.fresh or self.line.awaited):
            self.line.sync()
        for low in range(0, len(peers), MOST_PEERS):
            self.line.made.append(Step(kind, tuple(peers[low : low + MOST_PEERS])))
        self.line.awaited |= kind == WAIT

    def _fold(self, moves: list[Move]) -> list[Move]:
        """Do the folds that were held, with the puts of what they make; gives the puts that are left."""
        remaining = moves
        for fold in self.held:
            along = [move for move in remaining if (move.source, move.size) == (fold.into, fold.size)][:MOST_PEERS]
            if len(fold.operands) == 1:
                along = []
            remaining = [move for move in remaining if move not in along] if along else remaining
            self._combine(fold.into, fold.operands, fold.size, tuple(along))
        self.held = []
        return remaining

    def _combine(self, into: Place, operands: tuple[Place, ...], count: int, along: tuple[Move, ...]) -> None:
        """Where there are more operands than a step takes, what has been combined so far is one of the next."""
        if len(operands) <= self.operands:
            self.line.combine(Step(FOLD, (), along, into, operands, count), operands)
            return
        rest = sorted(operands, key=lambda place: place != into)
        while rest:
            now, rest = rest[: self.operands], rest[self.operands :]
            self.line.combine(Step(FOLD, (), along if not rest else (), into, tuple(now), count), now)
            if rest:
                rest = [into, *rest]


class _Puller(_Rank):
    """The same where who receives gets."""

    def steps(self) -> list[Step]:
        for number in sorted(self.work.turns):
            turn = self.work.turns[number]
            self._fold([])
            self._tell(SIGNAL, turn.to)
            self._tell(WAIT, turn.awaited)
            for low in range(0, len(turn.moves), MOST_PEERS):
                batch = tuple(turn.moves[low : low + MOST_PEERS])
                self.line.touch(Step(GET, (), batch), [], [(move.target, move.size) for move in batch])
            self._tell(SIGNAL, turn.awaited)
            self._tell(WAIT, turn.to)
            self.held = together(turn.folds) if turn.folds else []
        self._fold([])
        return self.line.made
