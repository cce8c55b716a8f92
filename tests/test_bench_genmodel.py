"""The programs that measure for `fit genmodel`: over real MPI where there is one, and what is said where it fails."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fake_ground
import numpy as np
import pytest

from antiphon.cli import run
from antiphon.core.verify import verify
from antiphon.cost.fit import plan_of, read_plan_times
from antiphon.cost.fit.plans import derive_factors
from antiphon.errors import AntiphonError, Invalid, Missing
from antiphon.registry import table
from antiphon.runtimes.engine.launch import LAUNCHED
from antiphon.runtimes.measure import bench_genmodel as bench
from antiphon.runtimes.measure import mpi as mpi_runtime
from antiphon.topologies import topology

HAS_MPI = find_spec("mpi4py") is not None and (Path(sys.executable).with_name("mpiexec").exists())
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec: pip install 'antiphon[mpi]'")


@pytest.mark.slow
@needs_mpi
def test_measurements_over_mpi_can_be_fitted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.csv"
    plans = "--plan cps --plan incast --plan ring"
    line = f"bench genmodel --on mpi -n 3 --nbytes 4KB:100KB:5 {plans} --iterations 2 --warmup 1 --json -o {path}"
    assert run(line.split()) == 0
    out, err = capfd.readouterr()
    rows = json.loads(out)["rows"]
    assert [(r["plan"], r["ranks"], r["nbytes"]) for r in rows] == [
        (plan, ranks, size) for ranks in (2, 3) for plan in ("cps", "incast", "ring") for size in (4000, 20000, 100000)
    ]
    assert all(r["correct"] and r["seconds"] > 0 for r in rows)
    assert err.count("ranks,") == len(rows)
    assert [(r.plan.name, r.seconds) for r in read_plan_times(path)] == [(r["plan"], r["seconds"]) for r in rows]
    assert run(["fit", "genmodel", str(path)]) == 0


# ---- without MPI ----


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table("runtime"), "fake", fake_ground.ENTRY)  # type: ignore[arg-type]
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_it_runs_on_every_runtime(fake: None) -> None:
    told: list[str] = []
    found = bench.bench_genmodel(3, [66], on="fake", iterations=1, progress=told.append)
    assert found is not None
    assert [(r.plan.name, r.ranks, r.nbytes) for r in found] == [
        (name, ranks, 64) for ranks in (2, 3) for name in ("cps", "incast")
    ]
    assert told[0].startswith("cps, 2 ranks, 64B: ")
    (first, *_) = bench.bench_genmodel(2, [4096], on="local", iterations=1) or []
    assert first.seconds > 0


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", bench.PLANS)
def test_schedules_are_what_the_formulas_count(name: str, ranks: int) -> None:
    """Of its messages, and of what each rank receives of nbytes: the formula's bytes, as genmodel itself has them."""
    schedule, machine = bench.schedule_of(name, ranks), topology(f"star:ranks={ranks},latency=0us")
    assert verify(schedule, machine).ok
    counted = derive_factors(plan_of(name, ranks), ranks)
    into = np.bincount(schedule.dst, weights=np.ones(schedule.transfers), minlength=ranks)
    share = schedule.chunks.weights(schedule.collective)
    received = into[0] * float(share[0][0]) / share[1]
    assert received == pytest.approx(counted.beta)
    assert schedule.steps == counted.alpha


def test_a_wrong_result_is_told(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_ground, "wrong", lambda wanted: 3)
    with pytest.raises(AntiphonError, match="cps, 2 ranks, 64B: 3 elements were wrong"):
        bench.bench_genmodel(2, [64], on="fake")


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"ranks": 1}, "ranks: expected 2 to"),
        ({"ranks": 10**6}, "ranks: expected 2 to"),
        ({"sizes": [3]}, "sizes from 4 bytes"),
        ({"plans": ["cpx"]}, "unknown plan"),
        ({"iterations": 0}, "iterations"),
        ({"mpiexec": "mpirun"}, "mpiexec: means nothing to runtime fake"),
    ],
)
def test_impossible_wishes_are_refused(fake: None, wish: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        bench.bench_genmodel(**{"ranks": 2, "on": "fake", **wish})


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mpi_runtime, "find_spec", lambda name: None)
    for measurement in ("genmodel", "loggp"):
        assert run(["bench", measurement]) == 2
        assert "pip install 'antiphon[mpi]'" in capsys.readouterr().err
    monkeypatch.setattr(mpi_runtime, "find_spec", lambda name: object())
    with pytest.raises(Missing, match="no such program"):
        bench.bench_genmodel(2, [64], mpiexec="no-such-launcher")
