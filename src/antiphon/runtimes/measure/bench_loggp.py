"""Measurements for `fit loggp`: parametrized round trips between two ranks, as schedules that a runtime runs; and, of
more ranks, how many messages go at once (`bench_radix`).

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
from antiphon.cost.fit import BURST, RoundTrip, at_once
from antiphon.errors import Invalid
from antiphon.runtimes.engine.launch import Failed, launched, processes
from antiphon.runtimes.measure.bench_radix import MOST_AT_ONCE, Place, large_size, radix_rows
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.rows import can, first_on, runtime
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size

SIZES = tuple(2**i for i in range(21))  # 1 B to 1 MiB
LARGEST, MOST_BUFFERS, MOST_MESSAGES = 2**30, 2**32, 4096
PINGS = 16
COVER = 1.5  # a delay is so many gaps long: o_s + d >= g + (s-1) G whatever o_s is, with some room
COVER_PORTS = 3.0  # of the mean gap where messages may go by several ports: the longest is less than twice as long
TRIED, MOST_COPIES, LONGEST = 4, 256, 2**11  # copies: to see what one takes; before a message; of `busy`
SERVER = ("idle", "busy")  # schedules of the receiver's side
LEAST = 1e-12  # seconds: what noise alone makes less than nothing
MOST_RANKS = 4096
Move = tuple[int, int, int, int, int]  # chunk, src, dst, src_slot, dst_slot


def trip(n: int, copies: int = 0, alone: bool = False, ranks: int = 2, far: int = 1) -> Schedule:
    """See above. `alone`: the copies, and the last message only. Each message leaves from a place of its own: no copy
    waits until one has left. `far`: the rank that plays rank 1."""
    moves: list[Move] = []
    at = 0
    for i in range(n):
        for copy in range(copies if i else 0):
            to = i + 2 if copy == copies - 1 else 1 + copy % 2
            moves.append((0, 0, 0, at, to))
            at = to
        last = i == n - 1
        if last or not alone:
            moves.append((0, 0, 1, at, 0 if last else i + 1))
    return _chain([*moves, (0, 1, 0, 0, 0)], 1, ranks, far)


def pings(rounds: int, ranks: int = 2, far: int = 1) -> Schedule:
    there_and_back: list[Move] = [(0, 0, 1, 0, 0), (0, 1, 0, 0, 0)]
    return _chain(there_and_back * rounds, 1, ranks, far)


def busy(n: int, copies: int, ranks: int = 2, far: int = 1) -> Schedule:
    """The answer of rank 1 stands behind its own block in their way back, so it waits for the copies."""
    there: list[Move] = [(0, 0, 1, 0, 0 if i == n - 1 else i + 1) for i in range(n)]
    work: list[Move] = [(1, 1, 1, i % 2, 1 - i % 2) for i in range(copies)]
    return _chain([*there, *work, (1, 1, 0, copies % 2, 0), (0, 1, 0, 0, 0)], 2, ranks, far)


def _chain(moves: Sequence[Move], blocks: int, ranks: int, far: int) -> Schedule:
    """A step for each: of block 0, which rank 0 has, and of block 1, which rank 1 has; both end with block 0."""
    have, want = [(0, 0, 0), (1, far, 1)][:blocks], [(0, 0, None), (0, far, None), (1, 0, None)][: blocks + 1]
    collective = Collective("custom", ranks, custom=custom_relation(have, want, ranks))
    chunk, src, dst, here, there = np.array(moves, np.int32).T
    step, op = np.arange(len(moves), dtype=np.int32), np.full(len(moves), COPY, np.uint8)
    src, dst = (np.where(ends == 1, far, ends).astype(np.int32) for ends in (src, dst))
    return Schedule(collective, cut(collective, 1), step, chunk, src, dst, op, src_slot=here, dst_slot=there)


@dataclass(frozen=True)
class _Chains:
    """Copies for one size: before each message, and at the busy rank."""

    delay: int = TRIED
    busy: int = 0


def bench_loggp(  # noqa: PLR0913
    sizes: Sequence[int] = SIZES,
    *,
    n: int = 16,
    repetitions: int = 7,
    iterations: int = 20,
    warmup: int = 3,
    on: str = "mpi",
    mpiexec: str = "",
    timeout: float = 600.0,
    ranks: int | None = None,
    between: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[RoundTrip] | None:
    """PRTT(1,0,s), PRTT(n,0,s), PRTT(n,d,s) and the receiver's side between two ranks, for each size.

    d covers the gap (o_s + d >= g + (s-1) G) and is the delay there really was. Each row is of first quartiles of
    `iterations` runs; all sizes are measured once before any is measured again. What arrives is checked in every byte.
    `ranks`: among so many also what goes at once, for the radices. `between`: the second half of them is elsewhere, and
    everything is measured from half to half.
    Under a launcher only the first process has rows (the others None). Missing where something that it needs is.
    """
    how = How(mpiexec=mpiexec, timeout=timeout)
    how.refuse_unless(on, can(on)["options"])
    whole = _checked(sizes, n, repetitions, iterations, warmup)
    with first_on(on, how) as deciding:
        if not deciding:
            return None
        place = Place(on, how, topology(f"full:ranks={_count(ranks, between)}"), between)
        usual = Case(0, [*range(place.ranks)], 0, 0, "uint8", repeat=iterations, warmup=warmup, split=0)
        work = _ChainsMeasured(place, n, usual)
        chains: list[tuple[int, _Chains]] = []
        halves: dict[int, float] = {}

        def tried(size: int, seconds: Mapping[str, float]) -> None:
            chains.append((size, _lengths(seconds, n, COVER if ranks is None else COVER_PORTS)))
            halves[size] = seconds["pings"] / (2 * PINGS)

        work.measure([(size, _Chains()) for size in whole], tried)
        found: list[RoundTrip] = []
        together: list[RoundTrip] = []
        if ranks is not None:
            together = _at_once(place, halves, n, repetitions, usual, progress or (lambda _: None))
            work.n = _last_alone(n, together)

        def heard(size: int, seconds: Mapping[str, float]) -> None:
            found.extend(_rows(seconds, size, work.n))
            if progress is not None:
                turn, one = (len(found) // 4 - 1) // len(whole) + 1, format_seconds(found[-4].seconds / 2)
                progress(f"{format_size(size)}: {one} one way (repetition {turn} of {repetitions})")

        work.measure(chains * repetitions, heard)
    return found + together


def _at_once(
    place: Place, halves: Mapping[int, float], n: int, repetitions: int, usual: Case, tell: Callable[[str], None]
) -> list[RoundTrip]:
    """What 1, 2, ... messages take that begin at once: small ones, and large ones."""
    some = min(n, MOST_AT_ONCE)
    most = max(some, len(place.others))
    large = large_size(halves, most, min(halves), min(LARGEST, MOST_BUFFERS // (2 * most)))
    bursts = [trip(number + 1, ranks=place.ranks, far=place.far) for number in range(some)]
    return radix_rows(place, bursts, (min(halves), large), repetitions, usual, tell)


def _last_alone(n: int, rows: Sequence[RoundTrip]) -> int:
    """At most n messages, of which the last goes alone where others go by several ports at once: so that what they take
    is turns and nothing else."""
    burst = next(one for one in at_once(rows) if one.kind == BURST)  # of the small ones
    ports = burst.count or 1
    return n - (n - 1) % ports if ports < n else n


class _ChainsMeasured:
    """Sizes as cases of schedules: each schedule is lowered once."""

    def __init__(self, place: Place, n: int, usual: Case) -> None:
        self.place, self.n, self.usual = place, n, usual

    def measure(self, wanted: Sequence[tuple[int, _Chains]], tell: Callable[[int, Mapping[str, float]], None]) -> None:
        """Of each size and its chains the seconds of every schedule, by name: told as soon as these are there."""
        programs: dict[tuple[str, int], int] = {}
        runnables, cases = list[Runnable](), list[Case]()
        names: list[tuple[int, str]] = []
        for place, (size, chains) in enumerate(wanted):
            for name, copies in self._schedules(chains):
                if (name, copies) not in programs:
                    programs[name, copies] = len(runnables)
                    runnables.append(Runnable(self._schedule(name, copies), self.place.machine))
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

        runtime(self.place.on).run(runnables, cases, self.place.how, heard)

    def _schedules(self, chains: _Chains) -> list[tuple[str, int]]:
        server = [(name, chains.busy) for name in SERVER] if chains.busy else []
        return [("one", 0), ("pings", 0), ("many", 0), ("delayed", chains.delay), ("alone", chains.delay), *server]

    def _schedule(self, name: str, copies: int) -> Schedule:
        n, where = self.n, (self.place.ranks, self.place.far)
        if name in SERVER:
            return busy(n if name == "busy" else 1, copies, *where)
        if name == "pings":
            return pings(PINGS, *where)
        return trip(1 if name == "one" else n, copies, name == "alone", *where)

    def _case(self, program: int, size: int, heat: int) -> Case:
        nbytes = size * (2 if heat % 2 else 1)  # a server has a block of its own, too
        return replace(
            self.usual, program=program, unit=size, nbytes=nbytes, inner=inner_of(size), race=heat, knockout=False
        )


def _lengths(seconds: Mapping[str, float], n: int, cover: float) -> _Chains:
    """How many copies cover a gap, and how many the arrival of all messages."""
    copy = max((seconds["alone"] - seconds["one"]) / ((n - 1) * TRIED), 1e-9)
    arrival = max(seconds["many"] - seconds["one"], 0.0)
    delay = min(ceil(cover * arrival / (n - 1) / copy) + 1, MOST_COPIES)
    return _Chains(delay, min(ceil(COVER * (arrival + seconds["one"]) / copy) + 1, LONGEST))


def _rows(seconds: Mapping[str, float], size: int, n: int) -> list[RoundTrip]:
    """The four rows of a size from differences between schedules; what noise makes impossible is the least possible."""
    one = seconds["pings"] / PINGS
    delay = max((seconds["alone"] - seconds["one"]) / (n - 1), LEAST)
    received = max((seconds["busy"] - seconds["idle"]) * n / (n - 1), LEAST)
    if seconds["idle"] < seconds["many"]:  # no copies keep this receiver busy until all is there
        received = LEAST
    return [
        RoundTrip("rtt", 1, 0.0, size, one),
        RoundTrip("rtt", n, 0.0, size, max(one + seconds["many"] - seconds["one"], LEAST)),
        RoundTrip("rtt", n, delay, size, one + max(seconds["delayed"] - seconds["one"], (n - 1) * delay)),
        RoundTrip("server", n, 0.0, size, received),
    ]


def _count(ranks: int | None, between: bool) -> int:
    """How many ranks take part: as many as a launcher started."""
    if ranks is not None and not 2 <= ranks <= MOST_RANKS:
        raise Invalid(f"ranks: expected 2 to {MOST_RANKS}, got {ranks}")
    if between and (ranks is None or ranks % 2):
        raise Invalid("between: from half to half of the ranks; say how many these are, an even number")
    wanted = ranks or 2
    if launched() and (there := processes(None)) != wanted:
        more = "" if ranks else f" (more of them, for the radices, by --ranks {there})"
        raise Invalid(
            f"the launcher started {there} processes: this is measured between {wanted}; give it -n {wanted}{more}"
        )
    return wanted


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
