"""Loads, time at zero latency, rounds and claims: equal to sending every piece one by one, in exact numbers."""

import random
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from threading import Barrier
from typing import Any

import numpy as np
import oracle
import pytest
from entries import alpha_beta, calls, critical_path
from generate import Case, cases
from hypothesis import given
from hypothesis import strategies as st

import antiphon
from antiphon.core import loads as module
from antiphon.core.collective import Collective
from antiphon.core.example import machine, of_rows, star
from antiphon.core.loads import Timeline, claims, loads, pipelined_steps, rounds, throughput, timeline
from antiphon.core.messages import messages, paths
from antiphon.core.schedule import COPY, Chunks, Schedule, cut
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.cost import Predictor
from antiphon.cost.steps import latencies_of
from antiphon.select import exact_rounds, figures_of
from antiphon.topologies import topology

UNIT = LinkType("nvlink", Fraction(1))


def chain(ranks: int, *, limits: tuple[SharedLimit, ...] = ()) -> Topology:
    return build("chain", ranks, both_ways([(r, r + 1) for r in range(ranks - 1)], UNIT), limits=limits)


def ring(ranks: int, bandwidth: Fraction | int = 1) -> Topology:
    kind = LinkType("nvlink", Fraction(bandwidth))
    return build("ring", ranks, [(r, (r + 1) % ranks, kind) for r in range(ranks)])


def broadcast(rows: list[tuple[int, int, int, int]], ranks: int, chunks: Chunks, pieces: Any = 1) -> Schedule:
    """Copies (step, chunk, src, dst) of a broadcast from rank 0; loads do not ask whether it is right."""
    step, chunk, src, dst = np.array(rows, np.int32).reshape(-1, 4).T
    zero = np.zeros(len(rows), np.uint8)
    return Schedule(Collective("broadcast", ranks), chunks, step, chunk, src, dst, zero, pieces=pieces)


def one_by_one(line: Timeline) -> dict[int, Fraction]:
    """Seconds of every single step that is not idle."""
    out: dict[int, Fraction] = {}
    for begin, length, seconds in zip(line.begin.tolist(), line.length.tolist(), line.seconds, strict=True):
        if seconds:
            out |= dict.fromkeys(range(begin, begin + length), seconds)
    return out


def compare(schedule: Schedule, topology: Topology) -> None:
    truth = {step: s for step, s in oracle.step_seconds(schedule, topology).items() if s}
    line = timeline(schedule, topology)
    ends = line.begin + line.length
    assert (line.length > 0).all()
    assert (line.begin[1:] == ends[:-1]).all()
    if sum(line.length.tolist()) < 10**5:
        assert one_by_one(line) == truth
    assert line.total == sum(truth.values())
    for at, step in enumerate(line.begin.tolist()):
        assert line.seconds[at] == truth.get(step, 0)
        if line.seconds[at]:
            assert line.resource[at] in slowest(schedule, topology, step)
        else:
            assert line.resource[at] == -1
    assert claims(schedule, topology) == oracle.figures(schedule, topology)
    assert rounds(schedule, topology, line) == rounds(schedule, topology)


def slowest(schedule: Schedule, topology: Topology, step: int) -> list[int]:
    """The links and limits that take longest in one step, by adding up the load entries one by one."""
    entries = loads(schedule, topology)
    seconds: dict[int, Fraction] = {}
    columns = (entries.resource, entries.step, entries.window, entries.load)
    for resource, begin, window, load in zip(*(column.tolist() for column in columns), strict=True):
        if begin <= step < begin + window:
            time = Fraction(load, entries.scale) / topology.resources.bytes_per_second(resource)
            seconds[resource] = seconds.get(resource, Fraction(0)) + time
    return [resource for resource, time in seconds.items() if time == max(seconds.values())]


@given(cases(most_ranks=6), st.sampled_from([1, 2, 3, 5, 6, 40]))
def test_what_is_kept_is_true_of_any_number_of_pieces(random_case: Case, pieces: int) -> None:
    """The same rows in other pieces, and on a machine whose links are slower to answer."""
    made, machine = random_case.schedule, random_case.topology
    compare(replace(made, pieces=1), machine)
    compare(replace(made, pieces=pieces), machine)
    late = replace(machine, types=tuple(replace(kind, latency=kind.latency + 10) for kind in machine.types))
    far, near = loads(made, late).window_latency, loads(made, machine).window_latency
    assert np.array_equal(far >= 10, far > near)


@given(cases(most_ranks=6), st.randoms())
def test_a_long_schedule_is_timed_some_steps_at_a_time(random_case: Case, rng: random.Random) -> None:
    """In any order of rows, with idle steps between and steps that recur: every step as in one go."""
    rows, times = list(range(random_case.schedule.transfers)), rng.randint(1, 3)
    repeats = rng.sample([(row, turn) for row in rows for turn in range(times)], len(rows) * times)
    made, machine = replace(random_case.schedule, pieces=1), random_case.topology
    turns = np.array([turn for _, turn in repeats], np.int32)
    made = made.take(np.array([row for row, _ in repeats], np.int64))
    made = replace(
        made, step=(made.step + turns * (random_case.schedule.steps + rng.randint(0, 1))) * rng.choice([1, 3]) + 2
    )
    lines = []
    for together in (module.ROWS_PER_BATCH, rng.randint(0, 9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ROWS_PER_BATCH", together)
            patch.setattr(module, "MIN_ROWS_PER_STEP", rng.choice([0, 1, 64]))
            again = made.take(np.arange(made.transfers))  # other columns: results are cached by column
            line, late, rate = timeline(again, machine), latencies_of(again, machine), throughput(again, machine)
        columns = zip(line.begin.tolist(), line.length.tolist(), line.seconds, line.resource.tolist(), strict=True)
        moments = [column.tolist() for column in (late.begin, late.length, late.seconds)]
        busy = [(begin + i, *load) for begin, length, *load in columns for i in range(length) if load[1] >= 0]
        lines.append((busy, moments, rate))
    assert lines[0] == lines[1]


def test_threads_that_ask_at_once_keep_no_more_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broadcast([(0, 0, 0, 1), (1, 0, 1, 2)], 3, cut(Collective("broadcast", 3), 1))
    many = [replace(made, pieces=pieces) for pieces in range(1, 2 * module.MAX_CACHED + 1)]
    alone = [timeline(one, chain(3)).total for one in many]
    machine, meet, real = chain(3), Barrier(len(many), timeout=60), module.compute_envelopes

    def together(*asked: Any) -> Any:
        meet.wait()
        return real(*asked)

    traffic = module.traffic_of(made, machine)
    monkeypatch.setattr(module, "compute_envelopes", together)
    with ThreadPoolExecutor(len(many)) as threads:
        assert list(threads.map(lambda one: timeline(one, machine).total, many)) == alone
    assert len(traffic.cached_envelopes) == module.MAX_CACHED


@given(cases(most_ranks=6))
def test_latencies_of_steps_are_those_of_messages(random_case: Case) -> None:
    made, machine = random_case.schedule, random_case.topology
    for schedule in (made, replace(made, pieces=3)):
        slowest: dict[int, float] = {}
        for one in [paths(messages(schedule), machine)]:
            rows = zip(one.messages.step.tolist(), one.messages.pieces.tolist(), one.alpha.tolist(), strict=True)
            for begin, pieces, seconds in rows:
                for step in range(begin, begin + pieces):
                    slowest[step] = max(slowest.get(step, 0.0), seconds)
        late, here = latencies_of(schedule, machine), {}
        for begin, length, seconds in zip(
            late.begin.tolist(), late.length.tolist(), late.seconds.tolist(), strict=True
        ):
            here |= dict.fromkeys(range(begin, begin + length), seconds)
        assert here == slowest


@pytest.mark.parametrize("by", [alpha_beta, critical_path, partial(calls, gpu="h100")])
def test_idle_steps_take_no_memory(by: Callable[..., Predictor]) -> None:
    made = star()
    late = replace(made, step=np.where(made.step == 0, 0, 10**7).astype(np.int32))
    expected = by(made, machine())(1000).seconds  # and what the model imports is loaded
    tracemalloc.start()
    try:
        seconds = by(late, machine())(1000).seconds
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds == expected
    assert most < 10**7


@given(cases(most_ranks=6))
def test_equal_sending_every_piece(random_case: Case) -> None:
    compare(random_case.schedule, random_case.topology)


def test_numbers_beyond_int64() -> None:
    """Big weights, big denominators and pieces without a small common multiple: still exact."""
    primes = [2**31 - 1, 2**19 - 1, 999_983, 7]
    whole = 2**61 - 1
    shares = np.array([whole // 3, whole // 5, 1, 0], np.int64)
    shares[3] = whole - shares.sum()
    chunks = Chunks(np.zeros(4, np.int32), np.append(0, np.cumsum(shares)[:-1]), shares, whole)
    collective = Collective("broadcast", 3, weights=np.array([2**61 - 3]))
    rows = [(0, 0, 0, 1), (1, 0, 1, 2), (0, 1, 0, 1), (2, 2, 0, 1), (5, 3, 0, 1), (5, 3, 1, 2)]
    pieces = np.array([5, 2**19 - 1, 999_983, 7], np.int64)
    schedule = replace(broadcast(rows, 3, chunks, pieces), collective=collective)
    slow = LinkType("wan", Fraction(primes[0], primes[1]))
    topology = build("odd", 3, [(0, 1, slow), (1, 2, LinkType("ib", Fraction(primes[2], 11)))])
    assert timeline(schedule, topology).total == by_corners(schedule, topology)
    few = replace(schedule, pieces=np.array([5, 3, 11, 7], np.int64))
    compare(few, topology)


@pytest.mark.parametrize("pieces", [1, 256, 1024])
def test_rates_beyond_int64(pieces: int) -> None:
    heavy = Collective("allgather", 2, weights=np.array([2**55, 2**55 - 1]))
    line = topology("line:ranks=2")
    both = replace(of_rows("allgather", 2, [(0, 0, 0, 1, COPY), (0, 1, 1, 0, COPY)]), collective=heavy)
    assert throughput(replace(both, pieces=pieces), line) == throughput(both, line)
    assert 1 / timeline(replace(both, pieces=pieces), line).total == throughput(both, line)


def by_corners(schedule: Schedule, topology: Topology) -> Fraction:
    """Time by looking at every interval between the first and last pieces of all rows."""
    pieces = np.broadcast_to(np.asarray(schedule.pieces), len(schedule.chunks)).tolist()
    ways, spans = oracle.Ways(topology), []
    for row in oracle.rows_of(schedule):
        for link in ways.path(row, schedule) or ():
            part = schedule.chunks.part(row.chunk) / pieces[row.chunk]
            spans.append((row.step, row.step + pieces[row.chunk], link, part / topology.bandwidth(link)))
    marks = sorted({mark for begin, end, _, _ in spans for mark in (begin, end)})
    total = Fraction(0)
    for a, b in pairwise(marks):
        links: dict[int, Fraction] = {}
        for begin, end, link, seconds in spans:
            if begin <= a < end:
                links[link] = links.get(link, Fraction(0)) + seconds
        total += (b - a) * max(links.values(), default=Fraction(0))
    return total


def test_idle_steps_cost_nothing() -> None:
    two = Chunks(np.zeros(2, np.int32), np.array([0, 1]), np.array([1, 3]), 4)
    schedule = broadcast([(3, 0, 0, 1), (10**9, 1, 0, 1)], 2, two, np.array([2, 1]))
    timeline(schedule, chain(2))  # what it imports is not counted
    tracemalloc.start()
    try:
        line = timeline(schedule, chain(2))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert line.begin.tolist() == [3, 5, 10**9]
    assert line.length.tolist() == [2, 10**9 - 5, 1]
    assert line.seconds == (Fraction(1, 8), Fraction(0), Fraction(3, 4))
    assert line.resource.tolist() == [0, -1, 0]
    assert line.total == 1
    assert pipelined_steps(schedule) == 10**9 + 1
    assert rounds(schedule, chain(2)) == 1 + 1 + 3  # chunks per rank: 2 + 1 pieces, each a third of the block


def test_nothing_to_send() -> None:
    for rows in ([], [(0, 0, 1, 1)]):
        schedule = broadcast(rows, 2, cut(Collective("broadcast", 2), 1))
        line = timeline(schedule, chain(2))
        assert line.total == len(line.seconds) == 0
        assert claims(schedule, chain(2))["rounds"] == 0
    weightless = replace(
        broadcast([(0, 0, 0, 1)], 2, cut(Collective("broadcast", 2), 1), 3),
        collective=Collective("broadcast", 2, weights=np.array([0])),
    )
    assert timeline(weightless, chain(2)).total == 0
    assert claims(weightless, chain(2)) == {"chunks": 3, "steps": 3, "rounds": 0, "transfers": 3}


@pytest.mark.parametrize(
    ("kind", "machine", "planner"), [("alltoall", "mesh:dims=3x3", "flows"), ("allreduce", "dgx1v", "trees")]
)
def test_rounds_that_are_not_rounded_up_are_the_time_on_the_links(kind: str, machine: str, planner: str) -> None:
    """Of unequal chunks R/C is more than that."""
    plan = antiphon.plan(kind, machine, planner=planner, options={"steps": 7})
    figures, schedule = figures_of(plan), plan.entries[0].schedule
    exact = exact_rounds(schedule, plan.topology)
    assert exact <= figures["rounds"]
    bound = antiphon.bound(kind, machine)
    assert float(exact / figures["chunks"] / bound.inverse) == pytest.approx(figures["bandwidth_gap"])
