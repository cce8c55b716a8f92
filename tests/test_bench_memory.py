"""What adding vectors takes on a device: the engine's folds, told apart from the messages before them."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from antiphon.cli import run
from antiphon.cost.fit import fit_memory, read_addition_times
from antiphon.errors import Invalid
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.measure import bench_memory as bench
from antiphon.runtimes.measure.case import Case, How, RowCallback, Runnable, Runtime
from antiphon.runtimes.measure.loop import measured_row

GAMMA, DELTA, MESSAGE, CALL, NOISE = 3e-12, 8e-13, 4e-11, 2e-5, 0.01


class Device(Runtime):
    """Messages one after another, then a fold of all; runs are disturbed by some per cent."""

    wrong = 0

    def __init__(self) -> None:
        self.random = np.random.default_rng(1)

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, heard: RowCallback,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        for number, case in enumerate(cases):
            schedule, size = programs[case.program].schedule, case.unit * 4
            assert len(set(schedule.step.tolist())) == 1
            seconds = CALL + len(schedule.src) * size * MESSAGE
            if schedule.collective.kind == "reduce":
                x = len(schedule.src) + 1
                seconds += (x + 1) * size * DELTA + (x - 1) * size * GAMMA
            noise = 1 + NOISE * np.abs(self.random.standard_normal(case.repeat))
            heard(number, measured_row(seconds * noise, None, self.wrong))


def test_the_figures_of_a_known_device_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.STEPWISE, "threads", Device)  # type: ignore[arg-type, misc]
    monkeypatch.setattr("test_bench_memory.MESSAGE", 1e-12)
    told: list[str] = []
    rows = bench.bench_memory(12, 2**26, repeat=40, on="threads", progress=told.append)
    assert [row.vectors for row in rows] == list(range(2, 13))
    assert told[-1] == "adding 12 vectors of 64MiB on threads"
    found = fit_memory(rows).parameters
    assert found["gamma"].value == pytest.approx(GAMMA, rel=0.03, abs=0)
    assert found["delta"].value == pytest.approx(DELTA, rel=0.06, abs=0)


def test_what_noise_makes_of_nothing_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.STEPWISE, "threads", Device)  # type: ignore[arg-type, misc]
    monkeypatch.setattr("test_bench_memory.DELTA", -2 * GAMMA / 5)  # adding two costs less than nothing
    monkeypatch.setattr("test_bench_memory.NOISE", 0.0)
    told: list[str] = []
    rows = bench.bench_memory(6, 2**26, repeat=1, on="threads", progress=told.append)
    assert [row.vectors for row in rows] == [3, 4, 5, 6]
    assert all(row.seconds > 0 for row in rows)
    assert [text for text in told if "left out" in text] == [
        "2 vectors of 64MiB are left out: with their sum they took no longer than without"
    ]
    monkeypatch.setattr("test_bench_memory.GAMMA", 0.0)
    with pytest.raises(Invalid, match="took no longer with their sums than without: take longer ones"):
        bench.bench_memory(6, 2**26, repeat=1, on="threads")


def test_lost_data_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.STEPWISE, "threads", Device)  # type: ignore[arg-type, misc]
    monkeypatch.setattr(Device, "wrong", 3)
    with pytest.raises(Failed, match="3 elements of 2 vectors were wrong"):
        bench.bench_memory(3, 2**16, on="threads")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_engine_for_gpus_is_measured_on_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "added.csv"
    line = f"fit memory --on threads --nbytes 2MiB --vectors 8 --repeat 3 -o {path}"
    assert run(line.split()) == 0
    assert "vectors of 2MiB" in capsys.readouterr().out
    # where others have the cores some may be left out
    found = [(row.vectors, row.nbytes) for row in read_addition_times(path)]
    assert len(found) >= 3
    assert set(found) <= {(x, 2**21) for x in range(2, 9)}


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(Invalid, match="unknown device 'mpi'"):
        bench.bench_memory(on="mpi")
    with pytest.raises(Invalid, match="threads: mean nothing to --on threads"):
        bench.bench_memory(on="threads", threads=2)
