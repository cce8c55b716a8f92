"""A program as thread blocks."""

from __future__ import annotations

from antiphon.core.program import Bound, Program
from antiphon.errors import Unsupported
from antiphon.lower.blocks.lanes import Turn, by_channel, lanes
from antiphon.lower.blocks.limits import Limits
from antiphon.lower.blocks.numbered import Blocks, numbered
from antiphon.lower.blocks.operations import Values, values
from antiphon.lower.blocks.place import Full, place
from antiphon.lower.blocks.queues import stuck
from antiphon.lower.blocks.segments import dissolve as unbound
from antiphon.lower.blocks.segments import flow
from antiphon.lower.blocks.steps import Block, dissolve
from antiphon.lower.grain import chunked
from antiphon.lower.uncollected import uncollected

MOST_TRIED = 3


@uncollected()
def blocks(program: Program, limits: Limits | None = None, *, apart: bool = False, what: str = "blocks") -> Blocks:
    """Thread blocks that do what a program does, within the limits of a runtime; `what` asks for them.

    First with blocks that send on what they receive, on as many lanes as that takes, and on one; what takes fewer
    blocks is taken. Where channels do not suffice, no block sends on. `apart`: no step reaches over the end of a block
    of the collective.
    """
    limits = limits or Limits()
    bound = chunked(program, limits.chunks, what)
    best: tuple[int, Values, list[list[Block]]] | None = None
    for most in (limits.channels, 1, 0) if program.channels == 1 and limits.fused else (0,):
        if most == 0 and best is not None:
            break
        try:
            found, lanes_used = _placed(program, bound, limits, apart, most)
        except Full:
            continue
        many = max(len(mine) for mine in found[1])
        if best is None or many < best[0]:
            if best is not None:
                dissolve(best[2])
            best = many, *found
        else:
            dissolve(found[1])
        if lanes_used == 1:
            break
    if best is None:
        raise Unsupported(
            f"{what}: it needs more than {limits.channels} channels with blocks of {limits.steps} steps; take a "
            "planner with fewer steps, or fewer chunks"
        )
    done = numbered(program, bound, best[1], best[2], limits)
    dissolve(best[2])
    return done


def _placed(
    program: Program, bound: Bound, limits: Limits, apart: bool, most: int
) -> tuple[tuple[Values, list[list[Block]]], int]:  # fmt: skip
    """Blocks on so many lanes, and how many are used. With 0, and where blocks that send on what they receive get stuck
    again and again because each waits for an empty slot of the next, none does so: then nothing gets stuck, as messages
    and waits go by the times of the program."""
    refused: set[Turn] = set()
    for tried in range(MOST_TRIED + 1):
        known = values(program, bound, apart)
        flow(known, limits.count, limits.fused)
        alone = not most or tried == MOST_TRIED
        ways = by_channel(known, program.channels) if alone else lanes(known, most, refused)
        made = place(known, ways, limits)
        waiting = stuck(made, limits.slots)
        unbound(known)
        if not waiting:
            return (known, made), len(ways)
        refused |= {_turn(block) for block in waiting if block.send >= 0 and block.recv >= 0}
    raise AssertionError("blocks that only send or only receive never get stuck")


def _turn(block: Block) -> Turn:
    return block.rank, block.recv, block.send
