"""The program that measures for `fit loggp`: the whole loop over real MPI, and what is said where it fails."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fake_ground
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from antiphon.cli import run
from antiphon.core.program import prove
from antiphon.core.schedule import Schedule
from antiphon.core.verify import verify
from antiphon.cost.fit import RoundTrip, fit_loggp, loggp_level, read_round_trips
from antiphon.cost.loggp.forms import message
from antiphon.errors import AntiphonError, Invalid
from antiphon.formats.program import lower
from antiphon.registry import table
from antiphon.runtimes.engine.launch import LAUNCHED
from antiphon.runtimes.measure import bench_loggp as bench
from antiphon.topologies import topology

HAS_MPI = find_spec("mpi4py") is not None and (Path(sys.executable).with_name("mpiexec").exists())
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec: pip install 'antiphon[mpi]'")
UNSEEN = (24, 700, 3000, 24000, 100000)  # sizes that the fit does not see


@needs_mpi
@pytest.mark.slow
def test_measure_fit_and_predict_what_the_fit_has_not_seen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trips.csv"
    held = " ".join(f"--nbytes {size}" for size in UNSEEN)
    line = f"bench loggp --nbytes 1:256KiB:4 {held} --messages 8 --repeat 3 --iterations 8 --warmup 2 --json -o {path}"
    assert run(line.split()) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)["rows"]
    rows = read_round_trips(path)
    assert [(r.kind, r.n, r.delay, r.nbytes, r.seconds) for r in rows] == [
        (r["kind"], r["n"], r["delay"], r["nbytes"], r["seconds"]) for r in told
    ]
    assert len(rows) == 4 * 3 * (10 + len(UNSEEN))
    assert all(r["correct"] for r in told)
    assert err.count("one way (repetition 3 of 3)") == 10 + len(UNSEEN)
    level = loggp_level(fit_loggp([row for row in rows if row.nbytes not in UNSEEN]))
    off = [abs(np.log(2 * message(level, size) / pings(rows, size))) for size in UNSEEN]
    assert np.median(off) < np.log(3)  # others may use this machine meanwhile; bench/bench_loggp_fit.py tells how near


def pings(rows: list[RoundTrip], nbytes: int) -> float:
    return float(np.median([r.seconds for r in rows if (r.kind, r.n, r.nbytes) == ("rtt", 1, nbytes)]))


# ---- on made-up times ----


class Machine:
    """LogGP by hand: a rank does one thing at a time; a message leaves g + (s-1) G after the last one or later."""

    latency, send, receive, gap, per_byte = 5e-6, 1e-6, 1.5e-6, 2e-6, 1e-9

    def copy(self, nbytes: int) -> float:
        return 1e-7 + 2e-10 * nbytes

    def seconds(self, schedule: Schedule, nbytes: int) -> float:
        """Of a chain: every message and copy waits for the last one of its chunk where it begins, and each rank takes
        what has come before it sends what stands behind its copies."""
        free, leaves, ready = [0.0, 0.0], [0.0, 0.0], {(0, 0): 0.0, (1, 1): 0.0}
        coming: list[list[tuple[float, int]]] = [[], []]
        columns = (schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist())
        for chunk, src, dst in zip(*columns, strict=True):
            if src == dst:
                free[src] = ready[chunk, src] = max(free[src], ready[chunk, src]) + self.copy(nbytes)
                continue
            for arrival, what in coming[src]:
                free[src] = max(free[src], arrival) + self.receive
                ready[what, src] = free[src]
            coming[src] = []
            free[src] = max(free[src], ready[chunk, src]) + self.send
            start = max(free[src], leaves[src])
            leaves[src] = start + self.gap + (nbytes - 1) * self.per_byte
            coming[dst].append((start + (nbytes - 1) * self.per_byte + self.latency, chunk))
        for arrival, _ in coming[0]:
            free[0] = max(free[0], arrival) + self.receive
        return free[0]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setitem(table("runtime"), "fake", fake_ground.ENTRY)  # type: ignore[arg-type]
    monkeypatch.setattr(fake_ground, "speed", lambda one: (machine.seconds(one.schedule, one.nbytes), None))
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    return machine


def test_the_figures_of_a_known_machine_come_out(fake: Machine) -> None:
    """Every row is what its definition says, and the fit finds the figures that the machine has."""
    told: list[str] = []
    sizes = [2**i for i in range(0, 21, 2)]
    rows = bench.bench_loggp(sizes, n=8, repetitions=2, iterations=1, on="fake", progress=told.append)
    assert rows is not None
    assert len(told) == len(rows) // 4 == 2 * len(sizes)
    for one, many, delayed, server in zip(*[iter(rows)] * 4, strict=True):
        size, gap = one.nbytes, fake.gap + (one.nbytes - 1) * fake.per_byte
        single = 2 * (fake.send + (size - 1) * fake.per_byte + fake.latency + fake.receive)
        assert (one.n, many.n, delayed.n, many.delay, server.kind) == (1, 8, 8, 0, "server")
        assert one.seconds == pytest.approx(single)
        assert many.seconds == pytest.approx(single + 7 * max(gap, fake.send, fake.receive))
        assert delayed.delay >= 1.4 * gap - fake.send or delayed.delay == pytest.approx(256 * fake.copy(size))
        assert delayed.seconds == pytest.approx(single + 7 * (fake.send + delayed.delay))
        assert server.seconds == pytest.approx(8 * fake.receive)
    (regime,) = fit_loggp(rows).regimes
    for name, value in (("L", fake.latency), ("o_s", fake.send), ("o_r", fake.receive), ("G", fake.per_byte)):
        assert regime.figures[name].value == pytest.approx(value, rel=0.02), name


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_the_schedules_are_right_and_their_programs_are_proven(n: int, copies: int, alone: bool) -> None:
    for schedule in (bench.trip(n, copies, alone), bench.busy(n, copies), bench.pings(n)):
        assert verify(schedule, topology("full:ranks=2")).ok
        prove(lower(schedule))


def test_lost_data_is_told(fake: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_ground, "wrong", lambda wanted: 1)
    with pytest.raises(AntiphonError, match="64B did not arrive as they were sent"):
        bench.bench_loggp([64], on="fake")


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"sizes": []}, "sizes from 1 byte"),
        ({"sizes": [0]}, "sizes from 1 byte"),
        ({"n": 1}, "messages: expected 2 to"),
        ({"sizes": [2**30], "n": 64}, "at most 4GiB together"),
        ({"iterations": 0}, "iterations"),
        ({"repetitions": 0}, "repetitions"),
        ({"mpiexec": "mpirun"}, "mpiexec: means nothing to runtime fake"),
    ],
)
def test_impossible_wishes_are_refused(fake: Machine, wish: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        bench.bench_loggp(**{"on": "fake", **wish})


def test_it_is_measured_between_two(fake: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setattr(bench, "count_processes", lambda ranks: 3)
    with pytest.raises(Invalid, match="the launcher started 3 processes: this is measured between 2"):
        bench.bench_loggp([64], on="fake")
