"""What a step waits for: of every block the last step that must be done, and what is known or implied already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from antiphon.lower.blocks.parts import Operation
from antiphon.lower.blocks.steps import Block, Step

Wanted = dict[Block, Step]


class Needs(NamedTuple):
    """What a step waits for, and whether something of that is still missing."""

    wanted: Wanted
    missing: bool


def add(wanted: Wanted, step: Step) -> None:
    known = wanted.get(step.block)
    if known is None or known.place < step.place:
        wanted[step.block] = step


def latest(waits: Iterable[Operation]) -> Wanted:
    """Of every block the last step that belongs to any of these operations."""
    found: Wanted = {}
    for one in waits:
        for step in one.done:
            known = found.get(step.block)
            if known is None or known.place < step.place:
                found[step.block] = step
    return found


def before(waits: Iterable[Operation]) -> Wanted:
    """Which steps come before one that writes."""
    wanted = latest(waits)
    add_behind(wanted, waits)
    return wanted


def add_behind(wanted: Wanted, waits: Iterable[Operation]) -> None:
    for one in waits:
        if one.behind:
            for step in one.behind.values():
                add(wanted, step)


def inherit(one: Operation) -> None:
    """What is behind it: its own, and that of all that it waits for, as far as the steps that it ends with do not imply
    it."""
    left = one.behind or {}
    add_behind(left, one.waits)
    if left:
        one.behind = {block: step for block, step in left.items() if not any(_implies(end, step) for end in one.done)}


def _implies(end: Step, step: Step) -> bool:
    return (end.block is step.block and step.place <= end.place) or end.seen.get(step.block, -1) >= step.place


def ends(steps: list[Step]) -> list[Step]:
    if len(steps) == 1:
        return steps
    found: Wanted = {}
    for step in steps:
        add(found, step)
    return list(found.values())


def needed(block: Block, wanted: Wanted) -> list[Step]:
    """What of it the block does not know yet, and what none of the others implies."""
    seen = block.seen
    need = [one for one in wanted.values() if one.block is not block and seen.get(one.block, -1) < one.place]
    if len(need) < 2:
        return need
    return [
        one
        for one in need
        if not any(other is not one and other.seen.get(one.block, -1) >= one.place for other in need)
    ]
