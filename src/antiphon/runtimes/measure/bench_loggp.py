"""Measurements for `fit loggp`: parametrized round trips between two ranks, as schedules on a runtime.

Output: rows `RoundTrip`, from which the fit derives LogGP's parameters at each message size s: PRTT(n, d, s) is the
time of n messages with a delay d between them, the last of which is answered. A delay is made of copies within the
sender, since a schedule can only move data. (PRTT: parametrized round-trip time; Hoefler, Lichei and Rehm, 2007.)
Stages of `bench_loggp`: measure all schedules once with few copies; choose the number of copies that cover the gap
between two messages; measure again with these, repeatedly.

    trip(n, k)   n messages from rank 0 to rank 1, with k copies of the data within rank 0 before each but the first;
                 the last one comes back. With `alone`: the copies, and the last message only.
    pings(r)     one message goes there and back r times.
    busy(n, k)   rank 1 makes k copies while n messages arrive, receives them, and sends the last one back.

Each schedule is a chain, so no order of execution can shorten it: a move needs the data of an earlier one, or follows
it between the same two ranks, where runtimes keep the order of steps. PRTT(1, 0, s) contains a sixteenth of the cost of
a call; every other figure is a difference of two schedules, without that cost.

With more ranks, for the radices that `fit loggp` finds, also 1, 2, 3, ... messages at once:

    burst     n messages from one rank to another, the last one comes back (`trip`)
    fan-out   rank 0 sends to n others
    fan-in    n others send to rank 0
    pairs     n ranks of the first half each send to one of the other half

All ranks take part in each of them, so the cost of a call and of beginning together is the same in all. In the code,
`far` is the rank that plays rank 1, and `cover` the number of gaps that a delay must last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.cost.fit import BURST, FAN_IN, FAN_OUT, PAIRS, RoundTrip, fit_simultaneous
from antiphon.errors import Invalid
from antiphon.registry import find
from antiphon.runtimes.engine.launch import Failed, count_processes, is_launched
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.rows import deciding_process, load_runtime
from antiphon.topologies import topology
from antiphon.units import format_seconds, format_size

SIZES = tuple(2**i for i in range(21))  # 1 B to 1 MiB
LARGEST, MAX_BUFFERS, MAX_MESSAGES = 2**30, 2**32, 4096  # bytes of a message, and of all; messages
PINGS = 16  # round trips of the schedule `pings`
COVER = 1.5  # gaps that a delay lasts: o_s + d >= g + (s-1) G for any o_s, with some margin
# Mean gaps that a delay lasts if messages may use p ports. Each port gets a message every p delays, so a delay must
# cover a port's gap / p. That is less than twice the mean, as n messages arrive within floor((n-1)/p) gaps of a port.
COVER_PORTS = 3.0
TRIAL_COPIES, MAX_COPIES, MAX_BUSY = 4, 256, 2**11  # copies: to time one; before a message; of `busy`
SERVER = ("idle", "busy")  # schedules of the receiver's side
MIN_SECONDS = 1e-12  # replaces differences that noise makes negative, and receivers' times that cannot be measured
MIN_COPY_SECONDS = 1e-9  # the same for the time of a copy, by which others are divided
MAX_RANKS = 4096
Move = tuple[int, int, int, int, int]  # chunk, src, dst, src_slot, dst_slot


def trip(n: int, copies: int = 0, alone: bool = False, ranks: int = 2, far: int = 1) -> Schedule:
    """Return the schedule `trip`. `far`: the rank that plays rank 1.

    No copy waits for a message, as no copy writes a slot that an earlier message is sent from: with copies, each
    message has its own source slot. Without, all are sent from slot 0.
    """
    moves: list[Move] = []
    slot = 0  # where the data for the next message are in rank 0
    for i in range(n):
        for copy in range(copies if i else 0):
            # copies alternate between two slots; the last one writes the message's own slot
            target_slot = i + 2 if copy == copies - 1 else 1 + copy % 2
            moves.append((0, 0, 0, slot, target_slot))
            slot = target_slot
        last = i == n - 1
        # each message arrives in a slot of its own, the last one in slot 0, from which it is sent back
        if last or not alone:
            moves.append((0, 0, 1, slot, 0 if last else i + 1))
    return _chain_schedule([*moves, (0, 1, 0, 0, 0)], blocks=1, ranks=ranks, far=far)


def pings(rounds: int, ranks: int = 2, far: int = 1) -> Schedule:
    """Return the schedule `pings`."""
    there_and_back: list[Move] = [(0, 0, 1, 0, 0), (0, 1, 0, 0, 0)]
    return _chain_schedule(there_and_back * rounds, blocks=1, ranks=ranks, far=far)


def busy(n: int, copies: int, ranks: int = 2, far: int = 1) -> Schedule:
    """Return the schedule `busy`.

    The answer of rank 1 waits for the copies: before it rank 1 sends its own block, the result of the copies, to the
    same rank, and messages between two ranks keep their order.
    """
    arrivals: list[Move] = [(0, 0, 1, 0, 0 if i == n - 1 else i + 1) for i in range(n)]
    work: list[Move] = [(1, 1, 1, i % 2, 1 - i % 2) for i in range(copies)]
    return _chain_schedule([*arrivals, *work, (1, 1, 0, copies % 2, 0), (0, 1, 0, 0, 0)], 2, ranks, far)


def _chain_schedule(moves: Sequence[Move], blocks: int, ranks: int, far: int) -> Schedule:
    """Return a schedule with a step per move, of block 0 (of rank 0) and block 1 (of rank 1).

    Both ranks end with block 0, and rank 0 also with block 1 if `blocks` is 2.
    """
    # The relation of a custom collective: rows (block, rank, contribution) and (block, rank, wanted ones; None: all)
    have, want = [(0, 0, 0), (1, far, 1)][:blocks], [(0, 0, None), (0, far, None), (1, 0, None)][: blocks + 1]
    collective = Collective("custom", ranks, custom=custom_relation(have, want, ranks))
    chunk, src, dst, src_slot, dst_slot = np.array(moves, np.int32).T
    step, op = np.arange(len(moves), dtype=np.int32), np.full(len(moves), COPY, np.uint8)
    src, dst = (np.where(ends == 1, far, ends).astype(np.int32) for ends in (src, dst))
    return Schedule(
        collective, cut(collective, parts=1), step, chunk, src, dst, op, src_slot=src_slot, dst_slot=dst_slot
    )


@dataclass(frozen=True)
class _Chains:
    """The numbers of copies for one size: before each message, and at the busy rank (0: do not measure `busy`)."""

    delay: int = TRIAL_COPIES
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
    """Measure PRTT(1,0,s), PRTT(n,0,s), PRTT(n,d,s) and the receiver's side between two ranks, for each size.

    d covers the gap (o_s + d >= g + (s-1) G) and is the actual delay. Each row has first quartiles of `iterations`
    runs; all sizes are measured once before any is repeated. Every byte that arrives is checked. `ranks`: among these,
    also measure messages at once, for the radices. `between`: measure from the first half of the ranks to the second,
    which is on another host. Under a launcher only the first process returns rows, all others None. Raises Missing if
    the runtime lacks something it needs.
    """
    how = How(mpiexec=mpiexec, timeout=timeout)
    how.refuse_unless(on, find("runtime", on).can.options)
    checked_sizes = _check_arguments(sizes, n, repetitions, iterations, warmup)
    with deciding_process(on, how) as deciding:
        if not deciding:
            return None
        setup = MeasurementSetup(on, how, topology(f"full:ranks={_count_ranks(ranks, between)}"), between)
        # split=0: messages are not cut
        base_case = Case(ranks=[*range(setup.ranks)], dtype="uint8", repeat=iterations, warmup=warmup, split=0)
        work = _ChainMeasurement(setup, n, base_case)
        chains: list[tuple[int, _Chains]] = []
        one_way: dict[int, float] = {}  # seconds of a message, by size

        def choose_lengths(size: int, seconds: Mapping[str, float]) -> None:
            chains.append((size, _choose_lengths(seconds, n, COVER if ranks is None else COVER_PORTS)))
            one_way[size] = seconds["pings"] / (2 * PINGS)

        # 1. Time copies and gaps, and choose the numbers of copies for each size.
        work.measure([(size, _Chains()) for size in checked_sizes], choose_lengths)
        rows: list[RoundTrip] = []
        bursts: list[RoundTrip] = []
        # 2. Time messages at once.
        if ranks is not None:
            bursts = _measure_bursts(setup, one_way, n, repetitions, base_case, progress or (lambda _: None))
            work.n = _last_alone(n, bursts)

        def on_sizes_measured(size: int, seconds: Mapping[str, float]) -> None:
            rows.extend(_make_rows(seconds, size, work.n))
            if progress is not None:  # each size has four rows; the first of them is the round trip
                repetition = (len(rows) // 4 - 1) // len(checked_sizes) + 1
                round_trip = rows[-4]
                latency = format_seconds(round_trip.seconds / 2)
                progress(f"{format_size(size)}: {latency} one way (repetition {repetition} of {repetitions})")

        # 3. Measure with the chosen numbers of copies, repeatedly.
        work.measure(chains * repetitions, on_sizes_measured)
    return rows + bursts


def _measure_bursts(
    setup: MeasurementSetup,
    one_way: Mapping[int, float],
    n: int,
    repetitions: int,
    base_case: Case,
    progress: Callable[[str], None],
) -> list[RoundTrip]:  # fmt: skip
    """Time 1, 2, ... messages that begin at once: small ones, and large ones."""
    burst_messages = min(n, MAX_AT_ONCE)
    max_messages = max(burst_messages, len(setup.peers))
    # sender and receiver have a buffer for each message
    large = large_size(one_way, max_messages, min(one_way), min(LARGEST, MAX_BUFFERS // (2 * max_messages)))
    schedules = [trip(number + 1, ranks=setup.ranks, far=setup.far) for number in range(burst_messages)]
    return radix_rows(setup, schedules, (min(one_way), large), repetitions, base_case, progress)


def _last_alone(n: int, rows: Sequence[RoundTrip]) -> int:
    """Return the greatest number of messages, up to n, that leaves 1 when it is divided by the number of ports.

    The ports send as many messages at once as there are ports, so the last of these messages is sent alone.
    """
    burst = next(figure for figure in fit_simultaneous(rows) if figure.kind == BURST)  # of small messages
    ports = burst.count or 1
    return n - (n - 1) % ports if ports < n else n


class _ChainMeasurement:
    """Measures all schedules at each size, with the numbers of copies for that size; lowers each schedule once."""

    def __init__(self, setup: MeasurementSetup, n: int, base_case: Case) -> None:
        self.setup, self.n, self.base_case = setup, n, base_case

    def measure(
        self, chains_of_sizes: Sequence[tuple[int, _Chains]], on_seconds: Callable[[int, Mapping[str, float]], None]
    ) -> None:
        """Measure each size with its chains; pass the seconds of every schedule, by name, to `on_seconds` at once."""
        programs: dict[tuple[str, int], int] = {}
        runnables, cases = list[Runnable](), list[Case]()
        names: list[tuple[int, str]] = []
        for index, (size, chains) in enumerate(chains_of_sizes):
            for name, copies in self._list_schedules(chains):
                if (name, copies) not in programs:
                    programs[name, copies] = len(runnables)
                    runnables.append(Runnable(self._make_schedule(name, copies), self.setup.machine))
                # Cases with the same `race` are measured in turn, one run of each, so that noise hits all alike. They
                # must be of one collective: those of two blocks have odd numbers.
                race = 2 * index + (name in SERVER)
                cases.append(self._make_chain_case(programs[name, copies], size, race))
                names.append((index, name))
        seconds: list[dict[str, float]] = [{} for _ in chains_of_sizes]

        def on_row(number: int, row: Row) -> None:
            index, name = names[number]
            if row["wrong"]:
                size = format_size(chains_of_sizes[index][0])
                raise Failed(f"messages of {size} did not arrive as they were sent: this runtime lost data")
            seconds[index][name] = row["quartiles"][0]  # the first: disturbances only make a run longer
            if len(seconds[index]) == len(self._list_schedules(chains_of_sizes[index][1])):
                on_seconds(chains_of_sizes[index][0], seconds[index])

        load_runtime(self.setup.on).run(runnables, cases, self.setup.how, on_row)

    def _list_schedules(self, chains: _Chains) -> list[tuple[str, int]]:
        """Return the schedules of a size as (name, number of copies).

        one: trip(1, 0); many: trip(n, 0); delayed: trip(n, k); alone: trip(n, k) with `alone`; idle: busy(1, k)."""
        server = [(name, chains.busy) for name in SERVER] if chains.busy else []
        return [("one", 0), ("pings", 0), ("many", 0), ("delayed", chains.delay), ("alone", chains.delay), *server]

    def _make_schedule(self, name: str, copies: int) -> Schedule:
        """Return the schedule that `_list_schedules` lists by this name."""
        n, where = self.n, (self.setup.ranks, self.setup.far)
        if name in SERVER:
            return busy(n if name == "busy" else 1, copies, *where)
        if name == "pings":
            return pings(PINGS, *where)
        ranks, far = where
        return trip(1 if name == "one" else n, copies, alone=name == "alone", ranks=ranks, far=far)

    def _make_chain_case(self, program: int, size: int, race: int) -> Case:
        nbytes = size * (2 if race % 2 else 1)  # a server has its own block, too
        # inner: calls that are timed together. Every schedule is measured to the end: differences need slow ones, too.
        return replace(
            self.base_case, program=program, unit=size, nbytes=nbytes, inner=inner_of(size), race=race, knockout=False
        )


def _choose_lengths(seconds: Mapping[str, float], n: int, cover: float) -> _Chains:
    """Return the number of copies that last `cover` gaps, and the number that covers the arrival of all messages."""
    # seconds of one copy, from the difference of schedules with and without copies
    copy = max((seconds["alone"] - seconds["one"]) / ((n - 1) * TRIAL_COPIES), MIN_COPY_SECONDS)
    arrival = max(seconds["many"] - seconds["one"], 0.0)  # of n - 1 messages, with a gap before each
    # a copy more than computed, as the time of a copy is measured with noise
    delay = min(ceil(cover * arrival / (n - 1) / copy) + 1, MAX_COPIES)
    # half more than the arrival of all takes, as a margin
    return _Chains(delay, min(ceil(COVER * (arrival + seconds["one"]) / copy) + 1, MAX_BUSY))


def _make_rows(seconds: Mapping[str, float], size: int, n: int) -> list[RoundTrip]:
    """Return the four rows of a size, from differences between schedules, at least MIN_SECONDS."""
    # PRTT(1, 0, s)
    round_trip = seconds["pings"] / PINGS
    delay = max((seconds["alone"] - seconds["one"]) / (n - 1), MIN_SECONDS)
    # with the same copies `busy` receives n messages and `idle` one: the difference is the receiver's time for n - 1
    received = max((seconds["busy"] - seconds["idle"]) * n / (n - 1), MIN_SECONDS)
    # The copies do not keep this receiver busy until everything has arrived, so its time is not known. The fit leaves
    # out receivers' times that are as short as this.
    if seconds["idle"] < seconds["many"]:
        received = MIN_SECONDS
    return [
        RoundTrip("rtt", n=1, delay=0.0, nbytes=size, seconds=round_trip),
        RoundTrip(
            "rtt", n, delay=0.0, nbytes=size, seconds=max(round_trip + seconds["many"] - seconds["one"], MIN_SECONDS)
        ),
        RoundTrip("rtt", n, delay, size, round_trip + max(seconds["delayed"] - seconds["one"], (n - 1) * delay)),
        RoundTrip("server", n, delay=0.0, nbytes=size, seconds=received),
    ]


def _count_ranks(ranks: int | None, between: bool) -> int:
    """Return the number of ranks. Invalid if a launcher started another number."""
    if ranks is not None and not 2 <= ranks <= MAX_RANKS:
        raise Invalid(f"ranks: expected 2 to {MAX_RANKS}, got {ranks}")
    if between and (ranks is None or ranks % 2):
        raise Invalid("between: needs an even number of ranks: messages go from one half to the other")
    count = ranks or 2
    if is_launched() and (started := count_processes(ranks=None)) != count:
        hint = "" if ranks else f" (more of them, for the radices, by --ranks {started})"
        raise Invalid(
            f"the launcher started {started} processes: this is measured between {count}; give it -n {count}{hint}"
        )
    return count


def _check_arguments(sizes: Sequence[int], n: int, repetitions: int, iterations: int, warmup: int) -> list[int]:
    sizes_once = list(dict.fromkeys(sizes))
    if not sizes_once or not 1 <= min(sizes_once) <= max(sizes_once) <= LARGEST:
        raise Invalid(f"nbytes: expected sizes from 1 byte to {format_size(LARGEST)}")
    if not 2 <= n <= MAX_MESSAGES or n * max(sizes_once) > MAX_BUFFERS:
        raise Invalid(
            f"messages: expected 2 to {MAX_MESSAGES}, and at most {format_size(MAX_BUFFERS)} together, got {n} of "
            f"{format_size(max(sizes_once))}"
        )
    if repetitions < 1 or iterations < 1 or warmup < 0:
        raise Invalid(
            "repetitions, iterations and warm-up: expected 1 or more, 1 or more and 0 or more, got "
            f"{repetitions}, {iterations} and {warmup}"
        )
    return sizes_once


# ---- messages at once ----

MAX_AT_ONCE = 64  # messages
ROOM = 2.0  # a large message takes this many times as long as sending all small ones


def fan_out(targets: Sequence[int], ranks: int) -> Schedule:
    """Return a schedule that sends the block of rank 0 to these ranks."""
    return _messages_at_once([(0, target) for target in targets], ranks, same_block=True)


def fan_in(sources: Sequence[int], ranks: int) -> Schedule:
    """Return a schedule that sends a block of each of these ranks to rank 0."""
    return _messages_at_once([(source, 0) for source in sources], ranks)


def pairs(count: int, far: int, ranks: int) -> Schedule:
    """Return a schedule in which each rank i < `count` sends to rank i + `far`."""
    return _messages_at_once([(rank, far + rank) for rank in range(count)], ranks)


def _messages_at_once(messages: Sequence[tuple[int, int]], ranks: int, same_block: bool = False) -> Schedule:
    """Return a schedule of these (src, dst) in one step. `same_block`: they carry one block."""
    blocks = [0 if same_block else number for number in range(len(messages))]
    have = sorted({(block, src, block) for block, (src, _) in zip(blocks, messages, strict=True)})
    want = [(block, dst, None) for block, (_, dst) in zip(blocks, messages, strict=True)]
    collective = Collective("custom", ranks, custom=custom_relation(have, want, ranks))
    src, dst = np.array(messages, np.int32).T
    step = np.zeros(len(messages), np.int32)
    return Schedule(
        collective, cut(collective, parts=1), step, np.array(blocks, np.int32), src, dst, np.full(len(messages), COPY)
    )


@dataclass(frozen=True)
class MeasurementSetup:
    """Where to measure: a runtime and machine. `between`: from the first half of the ranks to the second half."""

    on: str
    how: How
    machine: Topology
    between: bool = False

    @property
    def ranks(self) -> int:
        return self.machine.ranks

    @property
    def far(self) -> int:
        """The rank that rank 0 exchanges messages with."""
        return self.ranks // 2 if self.between else 1

    @property
    def peers(self) -> list[int]:
        return list(range(self.far, self.ranks))[:MAX_AT_ONCE]


def large_size(one_way: Mapping[int, float], max_messages: int, min_size: int, limit: int) -> int:
    """Return a size at which a message takes much longer than a processor needs to send `max_messages` of them.

    `one_way`: seconds from rank to rank (half round trips), by size."""
    low, high = min(one_way), max(one_way)
    # seconds per byte; a message of `size` takes ROOM times as long as sending all small ones
    slope = (one_way[high] - one_way[low]) / (high - low) if high > low else 0.0
    size = ROOM * max_messages * one_way[low] / slope if slope > 0 else float(high)
    return int(min(max(2 ** round(log2(max(size, 1.0))), min_size), limit))


def radix_rows(
    setup: MeasurementSetup, bursts: Sequence[Schedule], sizes: tuple[int, int], repetitions: int, base_case: Case,
    progress: Callable[[str], None],
) -> list[RoundTrip]:  # fmt: skip
    """Measure messages at once. `bursts`: schedules of 1, 2, ... messages. `sizes`: a small one, where only gaps count,
    and a large one. All are measured once before any is repeated."""
    large = max(sizes)
    bursts_of_kinds = [  # (kind, number of messages, bytes of each, schedule)
        (BURST, n + 1, size, schedule) for size in dict.fromkeys(sizes) for n, schedule in enumerate(bursts)
    ]
    peers, ranks = setup.peers, setup.ranks
    for n in range(1, len(peers) + 1):
        bursts_of_kinds.append((FAN_OUT, n, large, fan_out(peers[:n], ranks)))
        bursts_of_kinds.append((FAN_IN, n, large, fan_in(peers[:n], ranks)))
        if setup.between and n <= setup.far:
            bursts_of_kinds.append((PAIRS, n, large, pairs(n, setup.far, ranks)))
    runnables = [Runnable(schedule, setup.machine) for *_, schedule in bursts_of_kinds]
    cases = [
        _make_case(base_case, number, size, schedule) for number, (_, _, size, schedule) in enumerate(bursts_of_kinds)
    ]
    rows: list[RoundTrip] = []

    def on_row(number: int, row: Row) -> None:
        kind, n, size, _ = bursts_of_kinds[number % len(bursts_of_kinds)]
        if row["wrong"]:
            raise Failed(f"messages of {format_size(size)} did not arrive as they were sent: this runtime lost data")
        rows.append(RoundTrip(kind, n, delay=0.0, nbytes=size, seconds=row["quartiles"][0]))
        if len(rows) % len(bursts_of_kinds) == 0:
            repetition = len(rows) // len(bursts_of_kinds)
            progress(
                f"up to {max(len(bursts), len(peers))} messages at once (repetition {repetition} of {repetitions})"
            )

    load_runtime(setup.on).run(runnables, cases * repetitions, setup.how, on_row)
    return rows


def _make_case(base_case: Case, program: int, size: int, schedule: Schedule) -> Case:
    nbytes = size * schedule.collective.buffer_weight
    return replace(base_case, program=program, unit=size, nbytes=nbytes, inner=inner_of(size))
