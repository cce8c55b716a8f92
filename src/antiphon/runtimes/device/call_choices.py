"""Choose how to make a call on a device: the tables, one kernel or step by step, and the number of thread blocks.

A stream is a sequence of steps of the plan at a rank; one or more thread blocks execute it: its lanes. A rank's slice
of the data may be sent in several rounds, one after another.

As SCCL finds its block counts by a loop at install time (section 4), every choice is timed on the machine itself, once
for a plan and a size. Concurrent computation cannot use the thread blocks of a call. So among the choices that are
about as fast as the best, the one with the fewest lanes is selected.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from antiphon.lower.device.packets import PACKED

SLACK = 1.03  # a choice counts as about as fast as the best up to this factor on the best's seconds, as times vary
TRIES = 5  # calls timed after one warm-up; the median counts
ROUNDS = (1, 4, 16)  # numbers of rounds that are tried: with more, a long message is on several links at once
SMALL = 2**16  # bytes per lane, below which more than one round does not pay off


class CallChoice(NamedTuple):
    """How to make a call."""

    way: str = "kernel"  # one of group.WAYS: kernel, steps, copies, staged
    lanes: int = 1  # thread blocks of each stream
    rounds: int = 1  # slices of each thread block, one after another
    tables: str = "plain"  # one of TABLES


# How data travels. Values: arguments of lower.device.table.tables.
TABLES = {
    "plain": {},  # written by the sender, followed by signals
    "packets": {"packets": True},  # as packets with flags in the data
    "arrival": {"arrival": True},  # as plain, but the output is filled in the order of arrival and permuted at the end
    "pull": {"pull": True},  # read by the receiver instead of written by the sender
}


def list_choices(
    streams: int, blocks: int, sliced: bool, nbytes: int, tables: str = "plain", way: str = ""
) -> Iterator[CallChoice]:
    """Yield the choices to try for these tables, with at most `blocks` thread blocks per rank.

    `streams`: streams of the plan at a rank. `sliced`: whether the data of one kernel may be divided among lanes and
    rounds. `nbytes`: of the call. `way`: try only this one; "": kernel, steps and copies.

    Two streams in eight blocks: 1, 2 or 4 lanes by one kernel, the same step by step, then copies.

    >>> [choice.lanes for choice in list_choices(2, 8, True, 1000)]
    [1, 2, 4, 1, 2, 4, 1]
    >>> list(list_choices(4, 8, True, 2**20, "packets"))
    []
    >>> list(list_choices(4, 8, True, 2**20, "pull", "copies"))
    [CallChoice(way='copies', lanes=1, rounds=1, tables='pull')]
    """
    # the powers of two with lanes * streams <= blocks, at least 1
    lane_counts = [1 << power for power in range(max(1, blocks // max(streams, 1)).bit_length())]
    if tables == "packets":  # only one kernel can send packets, for calls of at most PACKED bytes, in one round
        yield from (
            CallChoice("kernel", lane_count, rounds=1, tables=tables)
            for lane_count in (lane_counts if sliced else [1])
            if nbytes <= PACKED
        )
        return
    for lane_count in (lane_counts if sliced else [1]) if way in ("", "kernel") else ():
        for rounds in ROUNDS if sliced and nbytes // lane_count >= SMALL else (1,):
            yield CallChoice("kernel", lane_count, rounds, tables)
    # when the host drives the steps, pulling and pushing take about as long, so pulling is tried on request only
    if tables == "pull" and not way:
        return
    # a step's kernel ends before the next begins, so lanes may divide the data even if it is not `sliced`
    for lane_count in lane_counts if way in ("", "steps") else ():
        yield CallChoice("steps", lane_count, rounds=1, tables=tables)
    if way in ("", "copies"):
        yield CallChoice("copies", lanes=1, rounds=1, tables=tables)


def time_choices(
    call: Callable[[CallChoice], None], candidates: Iterator[CallChoice]
) -> list[tuple[CallChoice, float]]:
    """Return the median seconds of each choice; `call` makes a call and waits for its end."""
    measured = []
    for choice in candidates:
        call(choice)
        samples = []
        for _ in range(TRIES):
            began = time.perf_counter()
            call(choice)
            samples.append(time.perf_counter() - began)
        measured.append((choice, statistics.median(samples)))
    return measured


def pareto_frontier(measured: Sequence[tuple[CallChoice, float]]) -> list[tuple[CallChoice, float]]:
    """Return the choices that are faster than all others with as many lanes or fewer, from few to many lanes.

    >>> one, two, four = CallChoice(lanes=1), CallChoice(lanes=2), CallChoice(lanes=4)
    >>> [choice.lanes for choice, _ in pareto_frontier([(four, 3.0), (one, 9.0), (two, 3.0)])]
    [1, 2]
    """
    best: list[tuple[CallChoice, float]] = []
    for choice, seconds in sorted(measured, key=lambda pair: (pair[0].lanes, pair[1])):
        if not best or seconds < best[-1][1]:
            best.append((choice, seconds))
    return best


def select_choice(measured: Sequence[tuple[CallChoice, float]]) -> CallChoice:
    """Return the choice with the fewest lanes that is about as fast as the best.

    >>> select_choice([(CallChoice(lanes=8), 1.0), (CallChoice(lanes=2), 1.02), (CallChoice(lanes=1), 1.9)]).lanes
    2
    """
    frontier = pareto_frontier(measured)
    *_, (_, fastest_seconds) = frontier
    return next(choice for choice, seconds in frontier if seconds <= SLACK * fastest_seconds)
