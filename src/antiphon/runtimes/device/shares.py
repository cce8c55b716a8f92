"""How a call is made on a device: by which tables, by one kernel or step by step, with how many blocks. Tried where it
will run.

As SCCL finds its block counts by a loop at install time (section 4), every choice is timed on the machine itself, once
for a plan and a size. Blocks are taken from whoever computes meanwhile: so of those that are about as fast as the best,
the one with the fewest is taken.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from antiphon.lower.device.packets import PACKED

SLACK = 1.03  # about as fast
TRIES = 5  # of which the median counts, behind one that does not
SMALL = 2**16  # bytes: below that no round is worth it


class Choice(NamedTuple):
    """`way`: of group.WAYS. `lanes`: blocks of each stream; `rounds`: slices that each of them does in turn. `tables`:
    of TABLES."""

    way: str = "kernel"
    lanes: int = 1
    rounds: int = 1
    tables: str = "plain"


# How data travels: with signals behind it; as packets, with flags in the data; in the order of arrival; read by who
# receives instead of written by who sends. What each asks of lower.device.table.tables.
TABLES = {"plain": {}, "packets": {"packets": True}, "arrival": {"arrival": True}, "pull": {"pull": True}}


def choices(streams: int, blocks: int, sliced: bool, nbytes: int, tables: str = "plain") -> Iterator[Choice]:
    """All that is worth trying of these tables, with `blocks` at most.

    >>> [one.lanes for one in choices(2, 8, True, 1000)]
    [1, 2, 4, 1, 2, 4, 1]
    >>> list(choices(4, 8, True, 2**20, "packets"))
    []
    """
    lanes = [1 << power for power in range(max(1, blocks // max(streams, 1)).bit_length())]
    if tables == "packets":
        yield from (Choice("kernel", many, 1, tables) for many in (lanes if sliced else [1]) if nbytes <= PACKED)
        return
    for many in lanes if sliced else [1]:
        for rounds in (1, 4, 16) if sliced and nbytes // many >= SMALL else (1,):
            yield Choice("kernel", many, rounds, tables)
    if tables == "pull":  # step by step and by copies nobody waits in either direction
        return
    for many in lanes:
        yield Choice("steps", many, 1, tables)
    yield Choice("copies", 1, 1, tables)


def timed(call: Callable[[Choice], None], some: Iterator[Choice]) -> list[tuple[Choice, float]]:
    """Seconds of each."""
    found = []
    for one in some:
        call(one)
        spent = []
        for _ in range(TRIES):
            began = time.perf_counter()
            call(one)
            spent.append(time.perf_counter() - began)
        found.append((one, statistics.median(spent)))
    return found


def frontier(measured: Sequence[tuple[Choice, float]]) -> list[tuple[Choice, float]]:
    """Those that no other beats with as few blocks, from few to many.

    >>> one, two, four = Choice(lanes=1), Choice(lanes=2), Choice(lanes=4)
    >>> [found.lanes for found, _ in frontier([(four, 3.0), (one, 9.0), (two, 3.0)])]
    [1, 2]
    """
    found: list[tuple[Choice, float]] = []
    for one, seconds in sorted(measured, key=lambda pair: (pair[0].lanes, pair[1])):
        if not found or seconds < found[-1][1]:
            found.append((one, seconds))
    return found


def chosen(measured: Sequence[tuple[Choice, float]]) -> Choice:
    """The fewest blocks that are about as fast as the best.

    >>> chosen([(Choice(lanes=8), 1.0), (Choice(lanes=2), 1.02), (Choice(lanes=1), 1.9)]).lanes
    2
    """
    line = frontier(measured)
    return next(one for one, seconds in line if seconds <= SLACK * line[-1][1])
