"""What a rank does one after another: with a sync wherever something needs it, and folds side by side as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.lower.onesided.form import MOST_PEERS, SYNC, Move, Place, Step

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
        some = [(*touched(rank, place, size), False) for place, size in reads]
        some += [(*touched(rank, place, size), True) for place, size in writes]
        if self.awaited or self._meets(some):
            self.sync()
        self.made.append(step)
        for buffer, begin, end, writes_it in some:
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
            some = [move for move in moves if move.source[0] == buffer]
            for low in range(0, len(some), MOST_PEERS):
                batch = tuple(some[low : low + MOST_PEERS])
                self.touch(Step(kind, (), batch), [(move.source, move.size) for move in batch])

    def _meets(self, some: list[tuple[int, int, int, bool]]) -> bool:
        ones, wide = self.ones, self.wide
        for buffer, begin, end, writes in some:
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
