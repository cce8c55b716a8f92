"""The program that measures for `fit loggp`: the whole loop over real MPI, and what is said where it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.cli import run
from antiphon.cost.fit import RoundTrip, fit_loggp, loggp_level, read_round_trips
from antiphon.cost.loggp_forms import message
from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut
from antiphon.run import bench_loggp as bench
from antiphon.run._launch import LAUNCHED, MARK, consent
from antiphon.run._loggp_mpi import Pair, given

HAS_MPI = find_spec("mpi4py") is not None and (Path(sys.executable).with_name("mpiexec").exists())
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec: pip install 'antiphon[mpi]'")
UNSEEN = (24, 700, 3000, 24000, 100000)  # sizes that the fit does not see


@needs_mpi
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


@needs_mpi
def test_the_delay_covers_the_gap() -> None:
    rows = bench.bench_loggp([1, 65536], n=4, repetitions=1, iterations=4, warmup=1)
    assert rows is not None
    for one, many, delayed, _ in zip(*[iter(rows)] * 4, strict=True):
        assert (one.n, many.n, delayed.n, many.delay) == (1, 4, 4, 0)
        assert delayed.delay >= 1.4 * max(many.seconds - one.seconds, 0) / 3
        assert delayed.seconds > 3 * delayed.delay


@needs_mpi
def test_a_launcher_may_start_the_command_itself(tmp_path: Path) -> None:
    path = tmp_path / "trips.csv"
    mpiexec = Path(sys.executable).with_name("mpiexec")
    own = [sys.executable, "-m", "antiphon", "bench", "loggp", "--nbytes", "9", "--repeat", "1", "-o", str(path)]
    command = [str(mpiexec), *consent(str(mpiexec), 2**20), "-n", "2", *own]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all that arrived was right") == 1
    assert [(r.kind, r.n, r.nbytes) for r in read_round_trips(path)] == [
        ("rtt", 1, 9), ("rtt", 16, 9), ("rtt", 16, 9), ("server", 16, 9),
    ]  # fmt: skip


# ---- what fails, without MPI ----


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for mpiexec that runs these lines."""
    monkeypatch.setattr(bench, "find_spec", lambda name: object())
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)

    def make(*lines: str) -> str:
        path = tmp_path / "launch"
        path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        path.chmod(0o755)
        return str(path)

    return make


def row(**more: Any) -> str:
    return f"echo '{MARK}{json.dumps({'kind': 'rtt', 'n': 1, 'delay': 0.0, 'nbytes': 64, 'seconds': 0.5, **more})}'"


def test_rows_are_read_among_other_lines(launcher: Any) -> None:
    told: list[str] = []
    rest = [row(n=16), row(n=16, delay=0.1, seconds=2.5), row(kind="server", n=16)]
    found = bench.bench_loggp([64], repetitions=1, mpiexec=launcher("echo hello", row(), *rest), progress=told.append)
    assert found is not None
    assert [(r.kind, r.n, r.delay) for r in found] == [
        ("rtt", 1, 0.0), ("rtt", 16, 0.0), ("rtt", 16, 0.1), ("server", 16, 0.0),
    ]  # fmt: skip
    assert told == ["64B: 250 ms one way (repetition 1 of 1)"]


@pytest.mark.parametrize(
    ("lines", "kind", "complaint"),
    [
        (["echo no slots >&2", "exit 3"], AntiphonError, "failed with exit code 3: no slots"),
        ([row()], AntiphonError, "ended after 1 of 28 measurements"),
        ([row(fault="wrong")], AntiphonError, "64B did not arrive as they were sent"),
        ([f"echo '{MARK}{json.dumps({'fault': 'alone', 'processes': 1})}'"], Missing, "do not fit together: 1 of 2"),
        (["sleep 60"], TimedOut, "not done within 300 ms"),
    ],
)
def test_what_goes_wrong_is_said(launcher: Any, lines: list[str], kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        bench.bench_loggp([64], mpiexec=launcher(*lines), timeout=0.3 if "sleep 60" in lines else 60)


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"sizes": []}, "sizes from 1 byte"),
        ({"sizes": [0]}, "sizes from 1 byte"),
        ({"n": 1}, "messages: expected 2 to"),
        ({"sizes": [2**30], "n": 64}, "at most 4GiB together"),
        ({"iterations": 0}, "iterations"),
        ({"repetitions": 0}, "repetitions"),
    ],
)
def test_impossible_wishes_are_refused(launcher: Any, wish: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        bench.bench_loggp(**wish)


def test_it_is_measured_between_two(launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setattr(bench, "processes", lambda ranks: 3)
    with pytest.raises(Invalid, match="the launcher started 3 processes: this is measured between 2"):
        bench.bench_loggp([64])


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert run(["bench", "loggp"]) == 2
    assert "pip install 'antiphon[mpi]'" in capsys.readouterr().err
    assert run(["bench", "loggp", "--on", "local"]) == 2
    assert run(["bench", "loggp", "-o", str(tmp_path / "no" / "x.csv")]) == 2
    monkeypatch.setattr(bench, "find_spec", lambda name: object())
    with pytest.raises(Missing, match="no such program"):
        bench.bench_loggp([64], mpiexec="no-such-launcher")


@pytest.mark.parametrize("rank", [0, 1])
def test_wrong_bytes_are_noticed(rank: int) -> None:
    pair = Pair(SimpleNamespace(rank=rank), None, 40, 3)
    assert not pair.correct(2)
    pair.answer[:] = given(1 - rank, 40)
    pair.inbox[:2] = given(1 - rank, 40)
    assert pair.correct(2)
    assert rank == 0 or not pair.correct(3)
    (pair.answer if rank == 0 else pair.inbox[1])[-1] += 1
    assert not pair.correct(2)
