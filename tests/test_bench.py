"""Measuring plans, and tuning by measuring: on made-up times, and once each under a real MPI."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import fake_ground
import mpi_env
import pytest
from fake_ground import Wanted
from lab_env import why_no_lab
from quick import ordinary
from tables import refused

import antiphon
from antiphon.cli import run
from antiphon.cli.measured_text import measured_text
from antiphon.core.collective import KINDS
from antiphon.core.plan import Entry, Plan
from antiphon.cost.fit import read_plan_times
from antiphon.errors import Invalid
from antiphon.formats.benchmark_log import read_runs
from antiphon.planners.rings.ring import ring
from antiphon.registry import table
from antiphon.runtimes.measure.bench import bench_plans, plans_of
from antiphon.runtimes.measure.choose import MeasuredTuning, tune_measured

FULL4 = antiphon.topology("full:ranks=4")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(table("runtime"), "fake", fake_ground.ENTRY)  # type: ignore[arg-type]
    monkeypatch.setattr(fake_ground, "speed", lambda wanted: (1e-6 * (wanted.nbytes + 1), 2e-6 * (wanted.nbytes + 1)))
    monkeypatch.setattr(fake_ground, "wrong", lambda wanted: 0)
    for kept in (fake_ground.asked, fake_ground.launches, fake_ground.stop_after, fake_ground.done):
        kept.clear()
    return fake_ground


def two_ranges() -> Plan:
    ring = antiphon.plan("allreduce", FULL4, planner="ring").at(0).schedule
    direct = antiphon.plan("allreduce", FULL4, planner="direct").at(0).schedule
    library = {"planner": "ring", "served_by": "library"}
    return Plan(
        FULL4, ring.collective, (Entry(0, 1000, direct, {"planner": "direct"}), Entry(1000, None, ring, library))
    )


def gather() -> Plan:
    made: Plan = antiphon.plan("gather", FULL4, planner="direct", root=2)
    return made


# ---- bench ----


def test_the_command_tells_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from antiphon.select import save_plans

    table = tmp_path / "table.json"
    save_plans(table, {"allreduce": two_ranges(), "gather": gather()}, table=True)
    path = tmp_path / "all.csv"
    common = ["bench", str(table), "--on", "fake", "--nbytes", "8:8KiB:32"]
    assert run([*common, "-o", str(path)]) == 0
    out = capfd.readouterr().out
    lines = [line for line in out.splitlines() if not line.startswith("#") and line]
    assert len(lines) == 6
    assert lines[0].split()[:5] == ["8", "2", "float32", "sum", "-1"]
    assert lines[3].split()[3:5] == ["none", "2"]
    assert lines[3].count("N/A") == 0
    assert "leaves this to the library" in lines[2]
    assert "# out of bounds values: 0 OK" in out
    assert "average bus bandwidth" in out
    cells = [*csv.DictReader(path.read_text().splitlines())]
    assert len(cells) == 12
    assert [cell["in_place"] for cell in cells[:2]] == ["False", "True"]
    assert float(cells[0]["over_library"]) == pytest.approx(0.5)
    assert run(["bench", f"{table}:gather", *common[2:], "--json"]) == 0
    assert [row["collective"] for row in json.loads(capfd.readouterr().out)["rows"]] == ["gather"] * 6
    line = "bench allreduce full:ranks=4,only=0-2 --planner direct --on fake --nbytes 3KB --json"
    assert run(line.split()) == 0
    assert {row["ranks"] for row in json.loads(capfd.readouterr().out)["rows"]} == {3}
    assert run(["bench", f"{table}:reduce", *common[2:]]) == 2
    assert "did you mean" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ("-b 8 -e 128 -f 4", [8, 32, 128]),
        ("--nbytes 8:128:4", [8, 32, 128]),
        ("--nbytes 8:128", [8, 32, 128]),
        ("--nbytes 8:128 -f 16", [8, 128]),
        ("--nbytes 1KB", [1000]),
    ],
)
def test_sizes_by_nbytes_or_as_nccl_tests(capfd: pytest.CaptureFixture[str], sizes: str, measured: list[int]) -> None:
    common = ["bench", "allreduce", "full:ranks=4", "--planner", "direct", "--on", "fake"]
    assert run([*common, *sizes.split(), "--json"]) == 0
    assert [row["nbytes"] for row in json.loads(capfd.readouterr().out)["rows"][::2]] == measured


def test_a_plan_is_measured_on_its_own_machine_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from antiphon.select import save_plans

    path = tmp_path / "plan.json"
    save_plans(path, {"allreduce": two_ranges()}, table=False)
    common = ["--on", "fake", "-b", "8", "-e", "8"]
    assert run(["bench", str(path), "full:ranks=4", *common]) == 0
    capfd.readouterr()
    assert run(["bench", str(path), "ring:ranks=4", *common]) == 2
    err = capfd.readouterr().err
    assert "is for full:ranks=4 (4 ranks) and not for ring:ranks=4" in err
    assert "leave ring:ranks=4 out" in err


def test_long_work_says_in_a_log_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    common = ["allreduce", "full:ranks=4", "--on", "fake", "--planner", "direct"]
    tune = ["tune", *common, "--nbytes", "1KB:8KB:8", "--workers", "1"]
    bench = ["bench", *common, "--nbytes", "8:32:4"]
    monkeypatch.setattr("antiphon.cli.planning.LOG_INTERVAL", 0.0)
    assert run(tune) == run(bench) == 0
    err = capfd.readouterr().err
    assert "2 of 2: allreduce of 8KB: direct is measured\n" in err
    assert "allreduce of 32B by direct is done\n" in err
    monkeypatch.setattr("antiphon.cli.planning.LOG_INTERVAL", 1e9)
    assert run(tune) == run(bench) == 0
    assert capfd.readouterr().err == ""


def test_what_it_prints_and_writes_is_a_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.csv"
    common = ["bench", "all", "full:ranks=3", "--on", "fake", "--planner", "direct", "--nbytes", "6KB:24KB"]
    assert run([*common, "-o", str(path)]) == run([*common, "--json"]) == 0
    printed, _, as_json = capfd.readouterr().out.partition("\n{")
    logs = [[*read_runs(text)] for text in (path.read_text(), "{" + as_json, printed)]
    for runs in logs:
        assert [one.kind for one in runs] == [*KINDS]
        assert {(one.program, one.ranks, one.garbled) for one in runs} == {("antiphon bench", 3, 0)}
        for one in runs:
            assert dict(one.points(in_place=True)) == pytest.approx(dict(one.points()))
            assert dict(one.points()) == pytest.approx(dict(logs[0][0].points()), rel=1e-3)
    assert run(["check-log", str(path), "--topology", "dgx1v:only=0-2"]) == 1
    out, _ = capfd.readouterr()
    assert "allreduce of 3 ranks (antiphon bench)" in out
    assert "antiphon bench measures Antiphon's plans; its times are compared with what NCCL would take" in " ".join(
        out.split()
    )
    path.write_text(path.read_text().replace("algbw", "rate"))
    assert run(["check-log", str(path), "--topology", "full:ranks=3"]) == 2
    assert "is no file of bench: KeyError" in capfd.readouterr().err


def test_what_can_be_fitted_is_written_for_fit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.csv"
    common = ["bench", "allreduce", "full:ranks=4", "--on", "fake", "--nbytes", "1KB:4KB", "--planner"]
    assert run([*common, "ring:directions=1", "--fit", str(path)]) == 0
    assert [(one.plan.name, one.ranks, one.nbytes) for one in read_plan_times(path)] == [
        ("ring", 4, 1000),
        ("ring", 4, 4000),
    ]
    assert run([*common, "colocated-ps", "--fit", str(path)]) == 0
    assert {one.plan.name for one in read_plan_times(path)} == {"cps"}
    capfd.readouterr()
    assert run(["bench", "allgather", *common[2:], "direct", "--op", "max", "--fit", str(path)]) == 0
    fake_ground.asked.clear()
    path.unlink()
    for unfittable in ("ring", "ring:directions=1 --miad", "ring:directions=1 -d int8", "ring:pieces=2,directions=1"):
        assert run([*common, *unfittable.split(), "--fit", str(path)]) == 2
        assert "directions=1" in capfd.readouterr().err
    assert not fake_ground.asked  # refused before anything is measured
    assert not path.exists()


@pytest.mark.parametrize(("arguments", "said"), refused("bench"))
def test_wrong_usage_is_told_in_a_line(arguments: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    on = [] if "--on" in arguments else ["--on", "fake"]
    assert run(["bench", *arguments.split(), *on]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_wrong_element_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fake_ground, "wrong", lambda wanted: 3 if wanted.in_place else 0)
    assert run(["bench", "allreduce", "full:ranks=4", "--on", "fake", "--planner", "ring", "-b", "8", "-e", "8"]) == 1
    assert "# out of bounds values: 3 FAILED" in capfd.readouterr().out


def command(text: str) -> int:
    return run(text.split())


def test_what_was_measured_before_ctrl_c_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    fake_ground.stop_after.append(5)
    assert command("bench allreduce full:ranks=4 --on fake --planner ring -b 8 -e 8KB -f 8 --json") == 130
    out, err = capfd.readouterr()
    assert [row["nbytes"] for row in json.loads(out)["rows"]] == [8, 8, 64, 64, 512]
    assert "interrupted" in err


def test_the_depth_is_driven_by_throughput(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def pipelined(wanted: Wanted) -> tuple[float, None]:
        pieces = int(wanted.schedule.pieces)
        return (pieces + 6) * (2e-5 + wanted.nbytes / pieces / 1e9), None

    monkeypatch.setattr(fake_ground, "speed", pipelined)
    best = min(range(1, 65), key=lambda pieces: (pieces + 6) * (2e-5 + 2**22 / pieces / 1e9))

    def driven(nbytes: int) -> int:
        rows = bench_plans(antiphon.plan("allreduce", FULL4, planner="ring"), nbytes, on="fake", miad=True)
        (pieces,) = {row["pieces"] for row in rows or []}
        return int(pieces)

    found = driven(2**22)
    assert found == pytest.approx(best, rel=0.4)
    assert len(fake_ground.launches) <= 16 + 1  # and what it came to is measured
    assert driven(400) == 1
    assert command("bench allreduce full:ranks=4 --on fake --planner ring -b 4MiB -e 4MiB --miad") == 0
    assert f"pieces={found}" in capfd.readouterr().out


def test_plans_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    antiphon.plan("allreduce", FULL4, planner="ring")
    with pytest.raises(Invalid, match="o such file"):
        plans_of(str(path))
    with pytest.raises(Invalid, match="iterations"):
        bench_plans(two_ranges(), 8, on="fake", iterations=0)
    with pytest.raises(Invalid, match="nothing to measure"):
        bench_plans([], 8, on="fake")


# ---- tune by measuring ----


def tuned(speed: Callable[[Wanted], tuple[float, float | None]], monkeypatch: Any, **options: Any) -> MeasuredTuning:
    monkeypatch.setattr(fake_ground, "speed", speed)
    # one schedule of each planner, so that the speed by planner decides
    monkeypatch.setattr(sys.modules[ring.__module__], "MOST_UNDIVIDED_RANKS", 0)
    usual = {"nbytes": "1KB:4MB", "factor": 4, "planners": ("ring", "direct", "halving-doubling"), "workers": "none"}
    found = tune_measured("allreduce", FULL4, on="fake", **{**usual, **options})
    assert found is not None
    return found


def by_steps(wanted: Wanted, library: float) -> tuple[float, float]:
    """Ring is fastest from 50 KB on, direct below 5 KB; the library takes so many times the best."""
    times = {"ring": 0.5 if wanted.nbytes > 50_000 else 3.0, "direct": 0.6 if wanted.nbytes < 5_000 else 3.0}
    ours = times.get(wanted.schedule.provenance["planner"], 1.0) * wanted.nbytes * 1e-9
    best = (0.5 if wanted.nbytes > 50_000 else 0.6 if wanted.nbytes < 5_000 else 1.0) * wanted.nbytes * 1e-9
    return ours, best * library


@pytest.mark.parametrize("slow_launch", [1, 2, 3, 4])
def test_a_plan_that_a_single_launch_favours_is_left_to_the_library(
    slow_launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 16 KB ours takes half the library's time, but twice as long where a launch places its processes badly."""

    def speed(wanted: Wanted) -> tuple[float, float]:
        bad = len(fake_ground.launches) == slow_launch and wanted.nbytes == 16_000
        return (2.0 if bad else 0.5) * wanted.nbytes * 1e-9, wanted.nbytes * 1e-9

    found = tuned(speed, monkeypatch, planners=("ring",), nbytes="16KB:64KB")
    assert [entry.claims.get("served_by") for entry in found.plan.entries] == ["library", "library", None, "library"]
    assert found.plan.entries[1].claims["over_library"] == pytest.approx(2.0)


def test_between_a_size_of_ours_and_one_of_the_library_the_library_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 KB and 256 KB were measured to be faster by ours, the sizes beside them not."""
    faster = (4000, 256_000)
    found = tuned(
        lambda w: (w.nbytes * 1e-9, w.nbytes * (4e-9 if w.nbytes in faster else 1.02e-9)),
        monkeypatch,
        planners=("ring",),
    )
    ours = [(one.start, one.stop) for one in found.plan.entries if "served_by" not in one.claims]
    assert ours == [(size, size + 1) for size in faster]


def test_a_difference_within_the_spread_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes half the time, in a quarter of the runs twice the time: eight runs are too few to know."""

    def speed(wanted: Wanted) -> tuple[float, float]:
        return (2 if wanted.round % 4 == 3 else 0.5) * wanted.nbytes * 1e-9, wanted.nbytes * 1e-9

    for iterations, served in ((1, "library"), (20, None)):
        found = tuned(speed, monkeypatch, planners=("ring",), iterations=iterations, nbytes="64KB")
        assert {row["over_library"] for row in found.rows} == {0.5}
        assert [entry.claims.get("served_by") for entry in found.plan.entries[1:-1]] == [served]


def test_a_library_that_is_slow_only_at_small_sizes_serves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a call of 16 KB takes it less time than one of 4 KB, something else slowed it down there."""
    times = {1000: (3e-6, 30e-6), 4000: (4e-6, 40e-6), 16_000: (5e-6, 2e-6), 64_000: (6e-6, 60e-6)}
    found = tuned(lambda w: times[w.nbytes], monkeypatch, planners=("ring",), nbytes="1KB:64KB")
    served = [(one.start, "served_by" in one.claims) for one in found.plan.entries]
    assert served == [(0, True), (1000, True), (64_000, False), (64_001, True)]


def test_one_order_of_combining_and_never_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(lambda wanted: by_steps(wanted, 0.1), monkeypatch, deterministic=True)
    entries = found.plan.entries
    assert {entry.claims["planner"] for entry in entries} <= {"direct", "halving-doubling"}  # a ring has several orders
    assert len({entry.claims["order"] for entry in entries}) == 1
    assert not any("served_by" in entry.claims for entry in entries)


def test_what_was_not_measured_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ladder that was not finished: from the least to the greatest size that was measured, and no further."""
    fake_ground.stop_after.append(4)
    found = tuned(lambda wanted: by_steps(wanted, 2.0), monkeypatch)
    assert found.interrupted
    assert not found.complete
    assert found.unmeasured > 0
    sizes = {row["nbytes"] for row in found.rows}
    assert sorted(sizes) == [1000, 4000, 16_000, 64_000]
    measured = [one for one in found.ranges if "measurements" in one]
    rest = [one for one in found.ranges if "measurements" not in one]
    assert (measured[0]["from"], measured[-1]["to"]) == (min(sizes), max(sizes) + 1)
    assert {one["nbytes"] for entry in measured for one in entry["measurements"]} == sizes
    assert [(one["served_by"], one["measured"]) for one in rest] == [("library", False)] * 2
    assert not any({"seconds", "reference_seconds", "at"} & set(one) for one in rest)
    assert antiphon.verify(found.plan)
    fake_ground.stop_after.clear()
    found = tuned(lambda wanted: by_steps(wanted, 2.0), monkeypatch, limit=0.0)
    assert not found.complete
    assert not found.interrupted
    assert found.rows == ()
    (only,) = found.ranges
    assert (only["from"], only["to"], only["served_by"], only["measured"]) == (0, None, "library", False)
    assert "sizes that were not measured are left to the library" in measured_text(found)


def test_bits_are_the_same_also_where_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(lambda wanted: by_steps(wanted, 0.1), monkeypatch, deterministic=True, nbytes="4KB:16KB")
    assert not any("served_by" in one for one in found.ranges)
    assert [one["measured"] for one in found.ranges][:: len(found.ranges) - 1] == [False, False]
    assert len({entry.claims["order"] for entry in found.plan.entries}) == 1
    assert "not measured use the nearest plan" in " ".join(measured_text(found).split())


def test_a_group_leaves_to_the_library_what_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says why."""
    from antiphon.core.choose import Call
    from antiphon.runtimes.serve.book import make_book
    from antiphon.runtimes.serve.serving import SLOWER, UNMEASURED, Serving

    found = tuned(lambda w: by_steps(w, 1.04 if w.nbytes > 50_000 else 1.06), monkeypatch)
    unused: Any = mock.Mock()  # the engine and the wire: nothing is run
    serving = Serving(unused, unused, 0, make_book([found.plan]), b"", fill=False)
    assert serving.find(Call("allreduce", 2000)) is not None
    whys = {size: serving.why_not(Call("allreduce", size)) for size in (8, 64_000, 2**30)}
    assert whys == {8: UNMEASURED, 64_000: SLOWER, 2**30: UNMEASURED}
    assert [serving.find(Call("allreduce", size)) for size in whys] == [None] * 3


def test_tune_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    common = ["tune", "allreduce", "full:ranks=4", "--planner", "ring", "--planner", "direct"]
    own = ["--on", "fake", "--nbytes", "1KB:64KB:8", "-o", str(path), "--workers", "1"]
    assert run([*common, *own]) == 0
    out = capfd.readouterr().out
    assert "measured on fake" in out
    assert "use Antiphon's plans from 1KB to 64KB (2x over the library); elsewhere the library" in " ".join(out.split())
    assert set(plans_of(str(path))[0].entries[1].claims) > {"reference_seconds", "measured_on"}
    assert "sizes that were not measured are left to the library" in out
    assert run([*common, "--on", "fake", "-o", "x.html"]) == 2
    assert "-o x.html: cannot be combined with --on" in capfd.readouterr().err
    assert run([*common, "--on", "nowhere"]) == 2
    capfd.readouterr()
    assert run([*common, "--iterations", "8"]) == 2
    assert "--iterations: is only for measuring" in capfd.readouterr().err


# ---- under MPI ----


@pytest.mark.slow  # docs/bench.md runs both commands in the ordinary set
def test_bench_and_tune_under_open_mpi(openmpi: mpi_env.Mpi, tmp_path: Path) -> None:
    """Started here, the commands start the processes; under mpiexec they are the processes."""
    table = tmp_path / "table.json"
    tune = "tune allreduce full:ranks=2 --planner ring --planner direct --nbytes 1KB:32KB:32 --iterations 3"
    done = antiphon_under([], openmpi, [*tune.split(), "--on", "mpi", "-o", str(table)])
    assert done.returncode == 0, done.stderr
    below, *measured, above = json.loads(table.read_text())["entries"]
    assert (below["to"], above["from"]) == (1000, 32001)
    assert all(one["claims"]["served_by"] == "library" for one in (below, above))
    assert all(one["claims"]["reference_seconds"] > 0 for one in measured)
    assert {one["claims"]["measured_on"] for one in measured} == {"mpi"}
    bench = ["bench", str(table), "--nbytes", "1KB:32KB:32", "-n", "3", "-w", "1", "--json"]
    done = antiphon_under(openmpi.mpiexec(2), openmpi, bench)
    assert done.returncode == 0, done.stderr
    check_rows(json.loads(done.stdout)["rows"])


@pytest.mark.parametrize("which", ["openmpi", pytest.param("mpich", marks=pytest.mark.slow)])
def test_every_collective_is_raced_as_programs_call_it(request: pytest.FixtureRequest, which: str) -> None:
    """Plans and the library's own are called in C, and give what they should."""
    mpi = request.getfixturevalue(which)
    ranks = 2 if ordinary else 3
    tune = f"tune all full:ranks={ranks} --planner direct --nbytes 4KB --iterations 2 --on mpi --json"
    done = antiphon_under([], mpi, tune.split())
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert sorted({row["collective"] for row in rows}) == sorted(KINDS)
    assert all(row["wrong"] == row["reference_wrong"] == 0 for row in rows)
    assert all(row["reference_least"] > 0 and row["messages"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None or shutil.which("cc") is None, reason="needs torch and a compiler")
def test_bench_under_pytorch(capfd: pytest.CaptureFixture[str]) -> None:
    common = ["bench", "allreduce", "full:ranks=2", "--planner", "direct", "--on", "torch"]
    assert run([*common, "--nbytes", "1KB:32KB:32", "-n", "2", "-w", "1", "--json"]) == 0
    check_rows(json.loads(capfd.readouterr().out)["rows"])
    group = ["bench", "allgather:ranks=0,2", "ring:ranks=4", "--planner", "relay"]
    assert run([*group, "--on", "torch", "-b", "8", "-e", "8"]) == 2
    assert "among all ranks" in capfd.readouterr().err


@pytest.mark.slow
def test_bench_in_the_lab(capfd: pytest.CaptureFixture[str]) -> None:
    if why := why_no_lab():
        pytest.skip(why)
    common = ["bench", "allgather", "ring:ranks=3", "--planner", "ring", "--on", "lab"]
    assert run([*common, "-b", "90KB", "-e", "90KB", "-n", "2", "--json"]) == 0
    row, inside = json.loads(capfd.readouterr().out)["rows"]
    assert row["correct"]
    assert inside["correct"]
    assert row["over_library"] is None
    assert row["predicted_seconds"] > 0


def check_rows(rows: list[dict[str, Any]]) -> None:
    assert [(row["nbytes"], row["in_place"]) for row in rows] == [
        (size, place) for size in (1000, 32000) for place in (False, True)
    ]
    for row in rows:
        assert row["correct"]
        assert row["reference_wrong"] == 0
        assert row["quartiles"][0] <= row["seconds"] <= row["quartiles"][1]
        assert row["over_library"] > 0


def antiphon_under(launcher: list[str], mpi: mpi_env.Mpi, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*launcher, mpi.python, "-m", "antiphon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False, env=mpi.env)
