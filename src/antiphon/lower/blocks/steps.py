"""Steps and thread blocks, while they are being placed."""

from __future__ import annotations

from dataclasses import dataclass, field

RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
SENDS = ("s", "rcs", "rrs", "rrcs")


@dataclass(eq=False, slots=True)
class Block:
    rank: int
    channel: int
    send: int
    recv: int
    steps: list[Step] = field(default_factory=list)
    seen: dict[Block, int] = field(default_factory=dict)  # of other blocks, up to which step they are surely done
    load: int = 0  # steps of the file that it has or that are promised to it
    sent: int = -1  # its last step that sends


@dataclass(eq=False, slots=True)
class Step:
    """`src` and `dst` are cells, -1 where there is none."""

    verb: str
    src: int
    dst: int
    count: int
    block: Block
    place: int = -1
    waits: list[Step] = field(default_factory=list)
    seen: dict[Block, int] = field(default_factory=dict)


def dissolve(blocks: list[list[Block]]) -> None:
    """Blocks no longer know their steps: so all are freed at once, and not by the collector of circles."""
    for mine in blocks:
        for block in mine:
            for step in block.steps:
                step.waits, step.seen = [], {}
            block.steps, block.seen = [], {}
