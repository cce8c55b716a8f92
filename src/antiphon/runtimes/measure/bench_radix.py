"""Measurements for the radices that `fit loggp` finds: 1, 2, 3, ... messages at once, as schedules that a runtime runs.

    burst     n messages from one rank to another, of which the last one comes back (`bench_loggp.trip`)
    fan-out   rank 0 sends to n others
    fan-in    n others send to rank 0
    pairs     n ranks of the first half each send to one of the other half

All ranks take part in every one, so that what a call costs, and what it is to begin together, is the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.cost.fit import BURST, FAN_IN, FAN_OUT, PAIRS, RoundTrip
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.rows import runtime
from antiphon.units import format_size

MOST_AT_ONCE = 64  # messages: who takes more at once is not told apart
ROOM = 2.0  # of one large message all small ones together take so small a part


def fan_out(targets: Sequence[int], ranks: int) -> Schedule:
    """Rank 0 has a block, and each of these ends with it."""
    return _at_once([(0, target) for target in targets], ranks, one=True)


def fan_in(sources: Sequence[int], ranks: int) -> Schedule:
    """Rank 0 ends with a block of each of these."""
    return _at_once([(source, 0) for source in sources], ranks)


def pairs(some: int, far: int, ranks: int) -> Schedule:
    return _at_once([(rank, far + rank) for rank in range(some)], ranks)


def _at_once(messages: Sequence[tuple[int, int]], ranks: int, one: bool = False) -> Schedule:
    """`one`: it is the same block in all of them."""
    blocks = [0 if one else number for number in range(len(messages))]
    have = sorted({(block, src, block) for block, (src, _) in zip(blocks, messages, strict=True)})
    want = [(block, dst, None) for block, (_, dst) in zip(blocks, messages, strict=True)]
    collective = Collective("custom", ranks, custom=custom_relation(have, want, ranks))
    src, dst = np.array(messages, np.int32).T
    step = np.zeros(len(messages), np.int32)
    return Schedule(
        collective, cut(collective, 1), step, np.array(blocks, np.int32), src, dst, np.full(len(messages), COPY)
    )


@dataclass(frozen=True)
class Place:
    """Where it is measured. `between`: from the first half of the ranks to the other half, which is elsewhere."""

    on: str
    how: How
    machine: Topology
    between: bool = False

    @property
    def ranks(self) -> int:
        return self.machine.ranks

    @property
    def far(self) -> int:
        """The rank that rank 0 exchanges with."""
        return self.ranks // 2 if self.between else 1

    @property
    def others(self) -> list[int]:
        return list(range(self.far, self.ranks))[:MOST_AT_ONCE]


def large_size(halves: Mapping[int, float], most: int, least: int, limit: int) -> int:
    """A size of which a message takes much longer than sending so many takes a processor, by half round trips."""
    low, high = min(halves), max(halves)
    slope = (halves[high] - halves[low]) / (high - low) if high > low else 0.0
    wanted = ROOM * most * halves[low] / slope if slope > 0 else float(high)
    return int(min(max(2 ** round(log2(max(wanted, 1.0))), least), limit))


def radix_rows(
    place: Place, bursts: Sequence[Schedule], sizes: tuple[int, int], repetitions: int, usual: Case,
    tell: Callable[[str], None],
) -> list[RoundTrip]:  # fmt: skip
    """`bursts`: of 1, 2, ... messages. `sizes`: a small one, where only gaps count, and a large one. All are measured
    once before any is measured again."""
    large = max(sizes)
    wanted = [(BURST, n + 1, size, one) for size in dict.fromkeys(sizes) for n, one in enumerate(bursts)]
    others, ranks = place.others, place.ranks
    for n in range(1, len(others) + 1):
        wanted.append((FAN_OUT, n, large, fan_out(others[:n], ranks)))
        wanted.append((FAN_IN, n, large, fan_in(others[:n], ranks)))
        if place.between and n <= place.far:
            wanted.append((PAIRS, n, large, pairs(n, place.far, ranks)))
    runnables = [Runnable(schedule, place.machine) for *_, schedule in wanted]
    cases = [_case(usual, number, size, one) for number, (_, _, size, one) in enumerate(wanted)]
    found: list[RoundTrip] = []

    def heard(number: int, row: Row) -> None:
        kind, n, size, _ = wanted[number % len(wanted)]
        if row["wrong"]:
            raise Failed(f"messages of {format_size(size)} did not arrive as they were sent: this runtime lost data")
        found.append(RoundTrip(kind, n, 0.0, size, row["quartiles"][0]))
        if len(found) % len(wanted) == 0:
            turn = len(found) // len(wanted)
            tell(f"up to {max(len(bursts), len(others))} messages at once (repetition {turn} of {repetitions})")

    runtime(place.on).run(runnables, cases * repetitions, place.how, heard)
    return found


def _case(usual: Case, program: int, size: int, schedule: Schedule) -> Case:
    nbytes = size * schedule.collective.buffer_weight
    return replace(usual, program=program, unit=size, nbytes=nbytes, inner=inner_of(size))
