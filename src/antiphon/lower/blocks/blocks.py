"""A program as thread blocks."""

from __future__ import annotations

from antiphon.core.program import Program
from antiphon.errors import Unsupported
from antiphon.lower.blocks.lanes import Turn, by_channel, lanes
from antiphon.lower.blocks.limits import Limits
from antiphon.lower.blocks.numbered import Blocks, numbered
from antiphon.lower.blocks.operations import values
from antiphon.lower.blocks.place import Block, Full, place
from antiphon.lower.blocks.queues import stuck
from antiphon.lower.blocks.segments import flow
from antiphon.lower.grain import chunked

MOST_TRIED = 3


def blocks(program: Program, limits: Limits | None = None, *, apart: bool = False, what: str = "blocks") -> Blocks:
    """Thread blocks that do what a program does, within the limits of a runtime; `what` asks for them.

    First with blocks that send on what they receive. Where these get stuck, because each waits for an empty slot of the
    next, they are parted, and where channels do not suffice, all are: without them nothing gets stuck, as messages and
    waits go by the times of the program. `apart`: no step reaches over the end of a block of the collective.
    """
    limits = limits or Limits()
    bound = chunked(program, limits.chunks, what)
    refused: set[Turn] = set()
    most, tried = limits.channels, 0
    while True:
        known = values(program, bound, apart)
        moving = flow(known, limits.count)
        fused = most > 0 and program.channels == 1
        ways = lanes(known, moving, most, refused) if fused else by_channel(known, moving, program.channels)
        try:
            made = place(known, moving, ways, limits)
        except Full:
            if not fused:
                raise Unsupported(
                    f"{what}: it needs more than {limits.channels} channels with blocks of {limits.steps} steps; take "
                    "a planner with fewer steps, or fewer chunks"
                ) from None
            most = min(most - 1, 1)
            continue
        waiting = stuck(made, limits.slots)
        if not waiting:
            return numbered(program, bound, known, made, limits)
        refused |= {_turn(block) for block in waiting if block.send >= 0 and block.recv >= 0}
        tried += 1
        most = 0 if tried == MOST_TRIED else most


def _turn(block: Block) -> Turn:
    return block.rank, block.recv, block.send
