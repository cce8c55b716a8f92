"""What every rank does in every stream: step by step, so that nobody waits for what comes later.

In a step a rank first tells who may write into its places (a credit), then waits for its own credits, puts, signals,
and waits for what is put into its places; then it folds. What it asks switches for it does before it puts, once all
who are concerned have given their credit. Everything that a rank waits for is done by others in the
same step or earlier, and credits and puts wait only for earlier steps: so among the ranks that are behind all others
one can always go on.

Between two ranks signals are only counted. They are sent and awaited in the same order: by step, credits first.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import FOLD as FOLDS
from antiphon.lower.onesided.form import (
    FOLD,
    MOST_OPERANDS,
    MOST_PEERS,
    PUT,
    SIGNAL,
    SPREAD,
    SWITCH,
    WAIT,
    Move,
    Place,
    Step,
    Streams,
)
from antiphon.lower.onesided.line import Fold, Line, Touched, plainly, together
from antiphon.lower.onesided.messages import Messages, joined, messages, moves
from antiphon.lower.onesided.streams import streams
from antiphon.lower.onesided.switched import Switched


def one_sided(
    program: Program, bound: Bound, most: int, known: Switched | None = None, touched: Touched = plainly,
    operands: int = MOST_OPERANDS,
) -> Streams:  # fmt: skip
    """The steps of a program, its addresses counted in chunks, in at most `most` streams; what is `known` of it is done
    by switches. `touched`: the buffer, and from where to where, that a rank touches by a place and a size. `operands`:
    of a fold that is one step. O(n log n)."""
    found = messages(program)
    known = known or Switched.none(program)
    stream = streams(program, found, most, known)
    count = int(stream.max(initial=-1)) + 1
    work = [[_Work() for _ in range(program.ranks)] for _ in range(count)]
    _deal_messages(program, bound, found, stream, work, known)
    _deal_folds(program, bound, stream, work, known)
    for number, one in zip(stream[known.asked].tolist(), known.switches, strict=True):
        work[number][one.rank].turns[one.step].switches.append(
            Step(SWITCH if one.combines else SPREAD, one.ranks, (), one.target, (one.source,), one.size)
        )
    return [
        [_Rank(rank, of, touched, operands).steps() for rank, of in enumerate(work[number])] for number in range(count)
    ]


@dataclass(eq=False)
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
class _Work:
    turns: dict[int, _Turn] = field(default_factory=lambda: defaultdict(_Turn))
    begun: list[int] = field(default_factory=list)  # who must know that this rank has begun


def _deal_messages(
    program: Program, bound: Bound, found: Messages, stream: Longs, work: list[list[_Work]], known: Switched
) -> None:
    """Messages between two ranks in one step are one put and one signal. Before the first the sender must know that the
    receiver has begun: it says so, unless a credit does, or what the sender has had from there in an earlier step.

    What a switch multicasts is no put, but a credit before and a signal behind: that the receiver's place is free, and
    what it gives to the sum is there."""
    columns = (program.rank[found.send], program.peer[found.send], program.when[found.send] // 2, stream[found.send])
    between = list(zip(*(values.tolist() for values in columns), strict=True))
    made = moves(program, bound, found)
    groups: dict[tuple[int, int, int, int], tuple[list[Move], bool, set[int]]] = {}
    wait, ptr = program.wait.tolist(), program.wait_ptr.tolist()
    rows, credits = found.receive.tolist(), found.credit.tolist()
    gone, bare = known.gone[found.send].tolist(), known.bare[found.send].tolist()
    for at, (source, target, step, number) in enumerate(between):
        if gone[at] or not made[at]:
            continue
        receive, credit, some = rows[at], credits[at] or bare[at], [] if bare[at] else made[at]
        before = groups.get((number, step, source, target), ([], False, set()))
        waiting = [receive, known.send_of.get(receive, receive)] if credit else []
        after = before[2].union(*(wait[ptr[row] : ptr[row + 1]] for row in waiting))
        groups[number, step, source, target] = (before[0] + some, before[1] or credit, after)
    heard: dict[tuple[int, int, int], int] = {}  # the first step in which one puts to another
    for (number, step, source, target), (some, credit, after) in sorted(groups.items(), key=lambda group: group[0]):
        mine, theirs = work[number][source].turns[step], work[number][target].turns[step]
        mine.moves += joined(some)
        mine.to.append(target)
        theirs.awaited.append(source)
        fresh = (number, source, target) not in heard and heard.get((number, target, source), step) == step
        heard.setdefault((number, source, target), step)
        if credit:
            theirs.credits.append(source)
            theirs.after |= after
        elif fresh:
            work[number][target].begun.append(source)
        if credit or fresh:
            mine.asked.append(target)


def _deal_folds(program: Program, bound: Bound, stream: Longs, work: list[list[_Work]], known: Switched) -> None:
    parts = list(zip(bound.buffer.tolist(), bound.begin.tolist(), strict=True))
    ptr = program.part_ptr.tolist()
    length = bound.length[program.part_ptr[:-1].clip(max=max(len(bound.length) - 1, 0))].tolist()
    kind, rank, when, of = (values.tolist() for values in (program.kind, program.rank, program.when, stream))
    for row in np.flatnonzero(~known.gone).tolist():
        if kind[row] == FOLDS and length[row]:
            into, *operands = parts[ptr[row] : ptr[row + 1]]
            work[of[row]][rank[row]].turns[when[row] // 2].folds.append(
                Fold((row,), into, tuple(operands), length[row])
            )


class _Rank:
    """Writes the steps of a rank, with a sync wherever something needs it."""

    def __init__(self, rank: int, work: _Work, touched: Touched, operands: int) -> None:
        self.work, self.operands = work, operands
        self.line = Line(rank, touched)
        self.held: list[Fold] = []  # what the next puts may take along

    def steps(self) -> list[Step]:
        self._tell(SIGNAL, self.work.begun)
        for number in sorted(self.work.turns):
            turn = self.work.turns[number]
            if any(not turn.after.isdisjoint(fold.rows) for fold in self.held):
                self._fold([])
            self._tell(SIGNAL, turn.credits)
            self._tell(WAIT, turn.asked)
            left = self._fold(turn.moves)
            for step in turn.switches:
                place, into = step.operands[0], step.into
                self.line.touch(step, [(place, step.size)], [(into, step.size)])
            self._put(left)
            self._tell(SIGNAL, turn.to)
            self._tell(WAIT, turn.awaited)
            self.held = together(turn.folds)
        self._fold([])
        return self.line.made

    def _tell(self, kind: int, peers: list[int]) -> None:
        if peers and kind == SIGNAL and (self.line.fresh or self.line.awaited):
            self.line.sync()
        for low in range(0, len(peers), MOST_PEERS):
            self.line.made.append(Step(kind, tuple(peers[low : low + MOST_PEERS])))
        self.line.awaited |= bool(peers) and kind == WAIT

    def _fold(self, asked: list[Move]) -> list[Move]:
        """Do the folds that were held, with the puts of what they make; gives the puts that are left."""
        left = asked
        for fold in self.held:
            along = [move for move in left if (move.source, move.size) == (fold.into, fold.size)][:MOST_PEERS]
            if len(fold.operands) == 1:
                along = []
            left = [move for move in left if move not in along] if along else left
            self._combine(fold.into, fold.operands, fold.size, tuple(along))
        self.held = []
        return left

    def _combine(self, into: Place, operands: tuple[Place, ...], count: int, along: tuple[Move, ...]) -> None:
        """Where there are more operands than a step takes, what has been combined so far is one of the next."""
        rest = sorted(operands, key=lambda place: place != into) if len(operands) > self.operands else list(operands)
        while rest:
            now, rest = rest[: self.operands], rest[self.operands :]
            step = Step(FOLD, (), along if not rest else (), into, tuple(now), count)
            self.line.touch(step, [(place, count) for place in now], [(into, count)])
            if rest:
                rest = [into, *rest]

    def _put(self, moves: list[Move]) -> None:
        for buffer in sorted({move.source[0] for move in moves}):
            some = [move for move in moves if move.source[0] == buffer]
            for low in range(0, len(some), MOST_PEERS):
                batch = some[low : low + MOST_PEERS]
                self.line.touch(Step(PUT, moves=tuple(batch)), [(move.source, move.size) for move in batch])
