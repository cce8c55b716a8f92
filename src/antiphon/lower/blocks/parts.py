"""What a program is made of on its way to steps: operations by chunk, and what of them goes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.lower.blocks.steps import Block, Step

Span = tuple[int, int]  # first cell, and how many


@dataclass(eq=False, slots=True)
class Operation:
    """`spans`: of a message its stretches in order; of a fold the result and the operands, all of one length.

    `versions`: of what it reads, one per cell: of a send in the order of the stream, of a fold operand by operand.
    `first`: the first version that it writes. `segments`: those of a send, and of its receive. `runs`: which stretches
    of a received message are folded as it comes, `pieces`: which of a fold. `done`: the steps that it ends with, at
    most one of each block. `behind`: by block, steps that a message did not wait for as it went past its own
    place (see `place`): whoever writes there later must. (There are millions of them; what has none has no list.)
    """

    kind: int
    rank: int
    when: int
    peer: int
    channel: int
    spans: list[Span]
    waits: list[Operation]
    length: int  # of what it writes or sends
    versions: Sequence[int] = ()
    first: int = -1
    segments: Sequence[Segment] = ()
    runs: Sequence[Run] = ()
    pieces: Sequence[Piece] = ()
    done: Sequence[Step] = ()
    behind: dict[Block, Step] | None = None


@dataclass(eq=False, slots=True)
class Run:
    """Which stretch of a received message one operand of a fold is, and where it lies if it is not folded at once."""

    offset: int
    count: int
    fold: Operation
    receive: Operation
    cell: int


@dataclass(eq=False, slots=True)
class Piece:
    """A stretch of a fold that is done as messages come, one after another. `memory`: first cells of operands that
    lie somewhere, the result's own first if it is one of them."""

    fold: Operation
    offset: int
    count: int
    cell: int
    memory: list[int]
    chain: list[Segment]


@dataclass(eq=False, slots=True)
class Segment:
    """`src`, `dst`: cells at either end. `step`: what receives it."""

    send: Operation
    receive: Operation
    offset: int
    count: int
    src: int
    dst: int
    piece: Piece | None = None
    parent: Segment | None = None
    child: Segment | None = None
    passing: bool = False  # what it makes is read by its child alone
    lane: int = 0
    step: Step | None = None
