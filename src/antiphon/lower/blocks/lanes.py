"""Which chains of segments share channels: on one channel, all that a block receives and sends on goes one way.

A block has one rank to receive from and one to send to. So a **lane** tells for a rank and the one that it receives
from whom it sends on to, each at most once; chains that agree share a lane. A chain that fits none is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon.core.program import SEND
from antiphon.lower.blocks.operations import Values
from antiphon.lower.blocks.parts import Segment

Turn = tuple[int, int, int]  # a rank, whom it receives from, and whom it sends on to


@dataclass(eq=False)
class Lane:
    after: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, from): to
    before: dict[tuple[int, int], int] = field(default_factory=dict)  # (rank, to): from

    def fits(self, turn: Turn) -> bool:
        rank, source, target = turn
        return self.after.get((rank, source), target) == target and self.before.get((rank, target), source) == source

    def add(self, turn: Turn) -> None:
        rank, source, target = turn
        self.after[rank, source], self.before[rank, target] = target, source


def lanes(values: Values, most: int, refused: set[Turn]) -> list[Lane]:
    """Every segment gets its lane; turns of `refused` are none. Linear in segments and lanes."""
    made = [Lane()]
    known: dict[tuple[int, ...], int] = {}
    work = list(_heads(values))
    work.reverse()
    while work:
        chain = [work.pop()]
        while (child := chain[-1].child) is not None:
            if _turn(child) in refused:
                work.append(_cut(child))
            else:
                chain.append(child)
        path = (*(one.send.rank for one in chain), chain[-1].receive.rank)
        if path not in known:
            number, kept = _lane(made, [_turn(one) for one in chain[1:]], most)
            if kept < len(chain) - 1:
                work.append(_cut(chain[kept + 1]))
                chain = chain[: kept + 1]
            known[(*(one.send.rank for one in chain), chain[-1].receive.rank)] = number
        else:
            number = known[path]
        for one in chain:
            one.lane = number
    return made


def by_channel(values: Values, channels: int) -> list[Lane]:
    """A lane for each channel of a program that has several: messages on different ones have no order."""
    for one in values.every():
        if one.kind == SEND:
            for segment in one.segments:
                segment.lane, segment.parent, segment.child, segment.passing = one.channel, None, None, False
    return [Lane() for _ in range(channels)]


def _heads(values: Values) -> Iterator[Segment]:
    for one in values.every():
        if one.kind == SEND:
            for segment in one.segments:
                if segment.parent is None:
                    yield segment


def _turn(segment: Segment) -> Turn:
    assert segment.parent is not None
    return segment.send.rank, segment.parent.send.rank, segment.receive.rank


def _cut(segment: Segment) -> Segment:
    assert segment.parent is not None
    segment.parent.child = None
    segment.parent = None
    segment.passing = False
    return segment


def _lane(made: list[Lane], turns: list[Turn], most: int) -> tuple[int, int]:
    """The lane that a chain goes on, and how many of its turns are kept."""
    number = next((at for at, lane in enumerate(made) if all(lane.fits(turn) for turn in turns)), len(made))
    if number == len(made) < most:
        made.append(Lane())
    number, kept = min(number, len(made) - 1), 0
    for turn in turns:
        if not made[number].fits(turn):
            break
        made[number].add(turn)
        kept += 1
    return number, kept
