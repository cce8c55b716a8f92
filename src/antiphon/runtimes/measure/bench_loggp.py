"""Measurements for `fit loggp`: parametrized round trips between two ranks, as schedules that a runtime runs.

    trip(n, k)   n messages from rank 0 to rank 1, before each but the first k copies of the data within rank 0; the
                 last one comes back. Without messages but the last: the copies alone.
    pings(r)     one message goes there and back r times.
    busy(n, k)   rank 1 is at work on k copies while n messages arrive, completes these, and sends the last one back.

What follows from what is a chain of data, so no order of execution can shorten it. Each figure but the first is a
difference of two schedules, so what a call itself costs is in none of them; of the first, a sixteenth of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.cost.fit import RoundTrip
from antiphon.errors import Invalid
from antiphon.runtimes.engine.launch import Failed, launched, processes
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.rows import can, first_on, runtime
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size

SIZES = tuple(2**i for i in range(21))  # 1 B to 1 MiB
LARGEST, MOST_BUFFERS, MOST_MESSAGES = 2**30, 2**32, 4096
PINGS = 16
COVER = 1.5  # a delay is so many gaps long: o_s + d >= g + (s-1) G whatever o_s is, with some room
TRIED, MOST_COPIES, LONGEST = 4, 64, 2**11  # copies: to see what one takes; before a message; of `busy`
SERVER = ("idle", "busy")  # schedules of the receiver's side
LEAST = 1e-12  # seconds: what noise alone makes less than nothing
Move = tuple[int, int, int, int, int]  # chunk, src, dst, src_slot, dst_slot


def trip(n: int, copies: int = 0, alone: bool = False) -> Schedule:
    """See above. `alone`: the copies, and the last message only."""
    moves: list[Move] = []
    at = 0
    for i in range(n):
        for _ in range(copies if i else 0):
            moves.append((0, 0, 0, at, 1 - at))
            at = 1 - at
        last = i == n - 1
        if last or not alone:
            moves.append((0, 0, 1, at, 0 if last else i + 1))
    return _chain([*moves, (0, 1, 0, 0, 0)])


def pings(rounds: int) -> Schedule:
    return _chain([move for _ in range(rounds) for move in ((0, 0, 1, 0, 0), (0, 1, 0, 0, 0))])


def busy(n: int, copies: int) -> Schedule:
    """The answer of rank 1 stands behind its own block in their way back, so it waits for the copies."""
    there: list[Move] = [(0, 0, 1, 0, 0 if i == n - 1 else i + 1) for i in range(n)]
    work: list[Move] = [(1, 1, 1, i % 2, 1 - i % 2) for i in range(copies)]
    return _chain([*there, *work, (1, 1, 0, copies % 2, 0), (0, 1, 0, 0, 0)], blocks=2)


def _chain(moves: Sequence[Move], blocks: int = 1) -> Schedule:
    """A step for each: of block 0, which rank 0 has, and of block 1, which rank 1 has; both end with block 0."""
    have, want = [(0, 0, 0), (1, 1, 1)][:blocks], [(0, 0, None), (0, 1, None), (1, 0, None)][: blocks + 1]
    collective = Collective("custom", 2, custom=custom_relation(have, want, 2))
    chunk, src, dst, here, there = np.array(moves, np.int32).T
    step, op = np.arange(len(moves), dtype=np.int32), np.full(len(moves), COPY, np.uint8)
    return Schedule(collective, cut(collective, 1), step, chunk, src, dst, op, src_slot=here, dst_slot=there)


@dataclass(frozen=True)
class _Chains:
    """Copies for one size: before each message, and at the busy rank."""

    delay: int = TRIED
    busy: int = 0


def bench_loggp(
    sizes: Sequence[int] = SIZES,
    *,
    n: int = 16,
    repetitions: int = 7,
    iterations: int = 20,
    warmup: int = 3,
    on: str = "mpi",
    mpiexec: str = "",
    timeout: float = 600.0,
    progress: Callable[[str], None] | None = None,
) -> list[RoundTrip] | None:
    """PRTT(1,0,s), PRTT(n,0,s), PRTT(n,d,s) and the receiver's side between two ranks, for each size.

    d covers the gap (o_s + d >= g + (s-1) G) and is the delay there really was. Each row is of first quartiles of
    `iterations` runs; all sizes are measured once before any is measured again. What arrives is checked in every byte.
    Under a launcher only the first process has rows (the other None). Missing where something that it needs is.
    """
    how = How(mpiexec=mpiexec, timeout=timeout)
    how.refuse_unless(on, can(on)["options"])
    whole = _checked(sizes, n, repetitions, iterations, warmup)
    with first_on(on, how) as deciding:
        if not deciding:
            return None
        if launched() and (there := processes(None)) != 2:
            raise Invalid(f"the launcher started {there} processes: this is measured between 2; give it -n 2")
        usual = Case(0, [0, 1], 0, 0, "uint8", repeat=iterations, warmup=warmup, split=0)
        work = _ChainsMeasured(on, how, n, usual)
        chains: list[tuple[int, _Chains]] = []
        work.measure([(size, _Chains()) for size in whole], lambda size, one: chains.append((size, _lengths(one, n))))
        found: list[RoundTrip] = []

        def heard(size: int, seconds: Mapping[str, float]) -> None:
            found.extend(_rows(seconds, size, n))
            if progress is not None:
                turn, one = (len(found) // 4 - 1) // len(whole) + 1, format_seconds(found[-4].seconds / 2)
                progress(f"{format_size(size)}: {one} one way (repetition {turn} of {repetitions})")

        work.measure(chains * repetitions, heard)
    return found


class _ChainsMeasured:
    """Sizes as cases of schedules: each schedule is lowered once."""

    def __init__(self, on: str, how: How, n: int, usual: Case) -> None:
        self.on, self.how, self.n, self.usual = on, how, n, usual
        self.machine = topology("full:ranks=2")

    def measure(self, wanted: Sequence[tuple[int, _Chains]], tell: Callable[[int, Mapping[str, float]], None]) -> None:
        """Of each size and its chains the seconds of every schedule, by name: told as soon as these are there."""
        programs: dict[tuple[str, int], int] = {}
        runnables, cases = list[Runnable](), list[Case]()
        names: list[tuple[int, str]] = []
        for place, (size, chains) in enumerate(wanted):
            for name, copies in self._schedules(chains):
                if (name, copies) not in programs:
                    programs[name, copies] = len(runnables)
                    runnables.append(Runnable(self._schedule(name, copies), self.machine))
                heat = 2 * place + (name in SERVER)  # schedules of one collective take turns: all meet the same noise
                cases.append(self._case(programs[name, copies], size, heat))
                names.append((place, name))
        seconds: list[dict[str, float]] = [{} for _ in wanted]

        def heard(number: int, row: Row) -> None:
            place, name = names[number]
            if row["wrong"]:
                size = format_size(wanted[place][0])
                raise Failed(f"messages of {size} did not arrive as they were sent: this runtime lost data")
            seconds[place][name] = row["quartiles"][0]  # what disturbs a run only makes it longer
            if len(seconds[place]) == len(self._schedules(wanted[place][1])):
                tell(wanted[place][0], seconds[place])

        runtime(self.on).run(runnables, cases, self.how, heard)

    def _schedules(self, chains: _Chains) -> list[tuple[str, int]]:
        server = [(name, chains.busy) for name in SERVER] if chains.busy else []
        return [("one", 0), ("pings", 0), ("many", 0), ("delayed", chains.delay), ("alone", chains.delay), *server]

    def _schedule(self, name: str, copies: int) -> Schedule:
        n = self.n
        if name in SERVER:
            return busy(n if name == "busy" else 1, copies)
        if name == "pings":
            return pings(PINGS)
        return trip(1 if name == "one" else n, copies, alone=name == "alone")

    def _case(self, program: int, size: int, heat: int) -> Case:
        return replace(
            self.usual, program=program, unit=size, nbytes=size, inner=inner_of(size), race=heat, knockout=False
        )


def _lengths(seconds: Mapping[str, float], n: int) -> _Chains:
    """How many copies cover a gap, and how many the arrival of all messages."""
    copy = max((seconds["alone"] - seconds["one"]) / ((n - 1) * TRIED), 1e-9)
    arrival = max(seconds["many"] - seconds["one"], 0.0)
    delay = min(ceil(COVER * arrival / (n - 1) / copy) + 1, MOST_COPIES)
    return _Chains(delay, min(ceil(COVER * (arrival + seconds["one"]) / copy) + 1, LONGEST))


def _rows(seconds: Mapping[str, float], size: int, n: int) -> list[RoundTrip]:
    """The four rows of a size from differences between schedules; what noise makes impossible is the least possible."""
    one = seconds["pings"] / PINGS
    delay = max((seconds["alone"] - seconds["one"]) / (n - 1), LEAST)
    received = max((seconds["busy"] - seconds["idle"]) * n / (n - 1), LEAST)
    return [
        RoundTrip("rtt", 1, 0.0, size, one),
        RoundTrip("rtt", n, 0.0, size, max(one + seconds["many"] - seconds["one"], LEAST)),
        RoundTrip("rtt", n, delay, size, one + max(seconds["delayed"] - seconds["one"], (n - 1) * delay)),
        RoundTrip("server", n, 0.0, size, received),
    ]


def _checked(sizes: Sequence[int], n: int, repetitions: int, iterations: int, warmup: int) -> list[int]:
    whole = list(dict.fromkeys(sizes))
    if not whole or not 1 <= min(whole) <= max(whole) <= LARGEST:
        raise Invalid(f"nbytes: expected sizes from 1 byte to {format_size(LARGEST)}")
    if not 2 <= n <= MOST_MESSAGES or n * max(whole) > MOST_BUFFERS:
        raise Invalid(
            f"messages: expected 2 to {MOST_MESSAGES}, and at most {format_size(MOST_BUFFERS)} together, got {n} of "
            f"{format_size(max(whole))}"
        )
    if repetitions < 1 or iterations < 1 or warmup < 0:
        raise Invalid(
            "repetitions, iterations and warm-up: expected 1 or more, 1 or more and 0 or more, got "
            f"{repetitions}, {iterations} and {warmup}"
        )
    return whole
