"""The programs that measure for `fit genmodel`: over real MPI where there is one, and what is said where it fails."""

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
from antiphon.cost.fit import read_measured
from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut
from antiphon.run import bench_genmodel as bench
from antiphon.run._genmodel_mpi import Colocated, Incast, Ring
from antiphon.run._launch import LAUNCHED, MARK, consent

HAS_MPI = find_spec("mpi4py") is not None and (Path(sys.executable).with_name("mpiexec").exists())
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec: pip install 'antiphon[mpi]'")


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
    assert [(r.plan.name, r.seconds) for r in read_measured(path)] == [(r["plan"], r["seconds"]) for r in rows]
    assert run(["fit", "genmodel", str(path)]) == 0


@needs_mpi
def test_a_launcher_may_start_the_command_itself(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    mpiexec = Path(sys.executable).with_name("mpiexec")
    own = [sys.executable, "-m", "antiphon", "bench", "genmodel", "--nbytes", "1001", "--iterations", "1", "-o"]
    command = [str(mpiexec), *consent(str(mpiexec), 2**20), "-n", "2", *own, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("every result was right") == 1
    assert [(r.plan.name, r.ranks, r.nbytes) for r in read_measured(path)] == [("cps", 2, 1000), ("incast", 2, 1000)]


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
    return f"echo '{MARK}{json.dumps({'plan': 'cps', 'ranks': 2, 'nbytes': 64, 'seconds': 0.5, **more})}'"


def test_rows_are_read_among_other_lines(launcher: Any) -> None:
    told: list[str] = []
    script = launcher("echo hello", row(), "echo warning >&2", row(plan="incast"))
    found = bench.bench_genmodel(2, [66], mpiexec=script, progress=told.append)
    assert found is not None
    assert [(r.plan.name, r.ranks, r.nbytes, r.seconds) for r in found] == [("cps", 2, 64, 0.5), ("incast", 2, 64, 0.5)]
    assert told == ["cps, 2 ranks, 64B: 500 ms", "incast, 2 ranks, 64B: 500 ms"]


@pytest.mark.parametrize(
    ("lines", "kind", "complaint"),
    [
        (["echo no slots >&2", "exit 3"], AntiphonError, "failed with exit code 3: no slots"),
        ([row()], AntiphonError, "ended after 1 of 2 measurements"),
        ([row(fault="wrong")], AntiphonError, "plan cps on 2 ranks gave a wrong result"),
        ([f"echo '{MARK}{json.dumps({'fault': 'alone', 'processes': 1})}'"], Missing, "do not fit together: 1 of 2"),
        (["sleep 60"], TimedOut, "not done within 300 ms"),
    ],
)
def test_what_goes_wrong_is_said(launcher: Any, lines: list[str], kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        bench.bench_genmodel(2, [64], mpiexec=launcher(*lines), timeout=0.3 if "sleep 60" in lines else 60)


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"ranks": 1}, "ranks: expected 2 to"),
        ({"ranks": 10**6}, "ranks: expected 2 to"),
        ({"sizes": [3]}, "sizes from 4 bytes"),
        ({"plans": ["cpx"]}, "unknown plan"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_impossible_wishes_are_refused(launcher: Any, wish: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        bench.bench_genmodel(**{"ranks": 2, **wish})


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert run(["bench", "genmodel"]) == 2
    assert "pip install 'antiphon[mpi]'" in capsys.readouterr().err
    monkeypatch.setattr(bench, "find_spec", lambda name: object())
    with pytest.raises(Missing, match="no such program"):
        bench.bench_genmodel(2, [64], mpiexec="no-such-launcher")


@pytest.mark.parametrize("kind", [Colocated, Ring, Incast])
def test_wrong_results_are_noticed(kind: type[Any]) -> None:
    made = kind(SimpleNamespace(rank=1, size=3), None, 400)
    assert not made.correct()
    for other in (0, 2):
        made.inbox[other][:] = made.given(other, made.inbox.shape[1])
    made.out[:] = sum(made.given(rank, len(made.data)) for rank in range(3)) if kind is not Incast else 0
    assert made.correct()
    (made.inbox[2] if kind is Incast else made.out)[-1] += np.float32(1)
    assert not made.correct()
