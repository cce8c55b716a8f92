"""Lowerings of SCCL's section 4 as choices: plans run and are exported by each of them, and each has its price."""

import dataclasses
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import ordinary

import antiphon
from antiphon.cli import run
from antiphon.cost import load_profile, prepare
from antiphon.cost.fit import LoweringTime, read_lowering_times, write_lowering_times
from antiphon.cost.lowering import costs_on, count_work
from antiphon.cost.lowering_costs import LOWERINGS, LoweringCosts
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.profile import Profile, save_profile
from antiphon.cost.steps import Barriers
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.device.launches import cut_launches
from antiphon.formats.device.statements import statements
from antiphon.lower.device.table import tables

PLANS = [
    ("allreduce", "ring:ranks=3", "ring", {}), ("allreduce", "dgx1v", "trees", {}),
    ("allgather", "full:ranks=4", "direct", {}), ("reducescatter", "full:ranks=8", "halving-doubling", {}),
    ("alltoall", "full:ranks=4", "pairwise", {}), ("reduce", "full:ranks=3", "direct", {"root": 1}),
    ("allreduce", "hgx-h100", "nvls", {}),
]  # fmt: skip


@cache
def made(kind: str, spec: str, planner: str, **options: Any) -> antiphon.Plan:
    return antiphon.plan(kind, antiphon.topology(spec), planner=planner, nbytes="1MB", **options)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_plans_run_by_each_lowering(lowering: str) -> None:
    for kind, spec, planner, root in PLANS[::2] if ordinary else PLANS:
        for size in (400, 40_000):
            row = antiphon.run(made(kind, spec, planner, **root), size, on="threads", repeat=1, lowering=lowering)[0]
            assert row["correct"], (kind, size)
            assert row["lowering"] == lowering


def test_the_command_runs_and_exports_by_a_lowering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "ring:ranks=3", "--planner", "ring", "-o", "plan.json"]) == 0
    on = "threads:lowering=copies-pull,timeout=60"
    assert run(["run", "plan.json", "--on", on, "--nbytes", "3KB", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["rows"][0]["lowering"] == "copies-pull"
    for line, said in (
        ("run plan.json --nbytes 1KB --on threads:lowering=dma", "lowering 'dma' (known: copies, copies-pull,"),
        ("run plan.json --nbytes 1KB --on local:lowering=steps", "unknown option of runtime local 'lowering'"),
        ("export plan.json --to cuda:lowering=dma -o no.cu", "lowering 'dma' (known: copies, kernel, steps)"),
        ("export plan.json --to hip:lowering=steps,packets=yes -o no.cpp", "packets need one kernel"),
        ("predict plan.json --nbytes 1KB --model lowering", "ring:ranks=3"),
        ("predict plan.json --nbytes 1KB --model lowering:kind=dma", "unknown kind of lowering 'dma'"),
    ):
        assert run(line.split()) != 0, line
        assert said in " ".join(capsys.readouterr().err.split()), line
    assert not Path("no.cu").exists()
    for lowering in ("steps",) if ordinary else ("steps", "copies"):
        line = f"export plan.json --to cuda:lowering={lowering},pull=yes -o {lowering}.cu"
        assert run(line.split()) == 0
        command = ["c++", "-x", "c++", "-std=c++17", "-O0", "-pthread", "-Wall", "-Wextra", "-Werror", f"{lowering}.cu"]
        subprocess.run([*command, "-o", lowering], check=True)
        done = subprocess.run(
            [f"./{lowering}", "-b", "1", "-e", "9000", "-f", "30"], capture_output=True, text=True, check=True
        )
        rows = [line.split() for line in done.stdout.splitlines() if line[:1] == " "]
        assert {row[6] for row in rows} == {lowering}
        assert done.stdout.endswith("# all right\n")


@pytest.mark.parametrize(("kind", "spec", "planner", "root"), PLANS)
@pytest.mark.parametrize("copies", [False, True])
def test_launches_hold_all_that_one_kernel_does(
    kind: str, spec: str, planner: str, root: dict[str, int], copies: bool
) -> None:
    """No statement is lost, launches of a stream ascend, and there are about as many as the schedule has steps."""
    schedule = made(kind, spec, planner, **root).at(1 << 20).schedule
    ranks = [statements(table) for table in tables(schedule)]
    launches = cut_launches(ranks, copies)
    waits = {"signal", "wait", "sync", "step"}

    def work(streams: Any) -> int:
        return sum(statement.form[0] not in waits for of in streams for stream in of for statement in stream)

    assert work(launches.ranks) + len(launches.copies) == work(rank.streams for rank in ranks)
    assert bool(launches.copies) == (copies and planner != "nvls")
    for streams in launches.ranks:
        for stream in streams:
            steps = [statement.values[0] for statement in stream if statement.form == ("step",)]
            assert steps == sorted(set(steps))
    assert 1 <= len(launches.kernels) <= (2 if copies else 1) * schedule.steps + 1


def test_what_a_lowering_costs() -> None:
    machine, gpu = antiphon.topology("dgx1v"), shipped_calls()["v100"]
    plan = made("allreduce", "dgx1v", "ring").at(1 << 20)
    assert gpu.copies is not None
    barriers = Barriers(plan.schedule, machine)
    work = {lowering: count_work(plan.schedule, barriers, lowering) for lowering in LOWERINGS}
    assert (work["kernel"].steps, work["kernel"].copies) == (14, 0)
    assert (work["steps"].steps, work["copies"].steps, work["copies"].copies) == (
        14,
        21,
        28,
    )  # 7 combine; two ways round
    costs = costs_on(gpu)
    assert costs["steps"].step == pytest.approx(gpu.launch + gpu.hop["ll"])
    assert costs["copies"].copy == gpu.copies.latency
    for lowering in ("kernel", "steps", "copies"):
        pushed, pulled = (
            prepare("lowering", plan.schedule, machine, options={"kind": lowering + pull}) for pull in ("", "-pull")
        )
        assert 1.0 < pulled(1 << 30).seconds / pushed(1 << 30).seconds < 1.11
        assert pulled(1000).terms["steps"] > pushed(1000).terms["steps"]
        assert sum(pushed(10**6).terms.values()) == pytest.approx(pushed(10**6).seconds)
    best = prepare("lowering", plan.schedule, machine)
    assert (best(1000).note, best(1 << 32).note) == ("lowering kernel", "lowering copies")
    assert "calibrated by v100" in best(1000).rests_on
    with pytest.raises(Unsupported, match="one host only"):
        antiphon.predict(made("allreduce", "delta:nodes=2", "ring"), "1KB", model="lowering")
    with pytest.raises(Unsupported, match="switches that multicast or reduce"):
        antiphon.predict(made("allreduce", "hgx-h100", "nvls"), "1KB", model="lowering")


def test_costs_in_a_profile(tmp_path: Path) -> None:
    costs = {"copies": LoweringCosts(5e-6, 4e-6, 2e-6, 0.5), "steps-pull": LoweringCosts(0, 1e-5)}
    save_profile(Profile("mine", lowerings=costs), tmp_path / "mine.json")
    profile = load_profile(tmp_path / "mine.json")
    assert profile.lowerings == costs
    machine = antiphon.topology("ring:ranks=4")  # of which no GPUs are known
    schedule = made("allgather", "ring:ranks=4", "ring").at(1000).schedule
    row = prepare("lowering", schedule, machine, profile=profile, options={"kind": "copies"})(10**6)
    work = count_work(schedule, Barriers(schedule, machine), "copies")
    assert row.seconds == pytest.approx(5e-6 + 3 * 4e-6 + work.copies * 2e-6 + work.seconds_per_byte * 10**6 / 0.5)
    assert row.rests_on == "profile mine"
    with pytest.raises(Unsupported, match="profile mine: no costs of kernel; it has copies, steps-pull"):
        prepare("lowering", schedule, machine, profile=profile, options={"kind": "kernel"})
    for text, said in (
        ('"dma": {}', "unknown lowering of a profile 'dma'"), ('"steps": {"step": -1}', "lowerings.steps: step"),
        ('"steps": {"share": 0}', "lowerings.steps: share"), ('"steps": {"stop": 1}', "stop"),
        ('"steps": {"step": "soon"}', "lowerings.steps: step"), ('"steps": 3', "lowerings"),
    ):  # fmt: skip
        head = '"format": "antiphon-profile", "version": 1'
        (tmp_path / "wrong.json").write_text(f'{{{head}, "lowerings": {{{text}}}}}')
        with pytest.raises(Invalid, match=said):
            load_profile(tmp_path / "wrong.json")


TRUE = {
    "kernel": LoweringCosts(6e-6, 4e-6, 0.0, 0.8), "copies-pull": LoweringCosts(5e-6, 7e-6, 2e-6, 0.9),
}  # fmt: skip


def times(error: float = 0.0) -> list[LoweringTime]:
    """Of plans with several numbers of steps and copies, at several sizes, by the true costs."""
    random, rows = np.random.default_rng(1), []
    for lowering, costs in TRUE.items():
        for steps, copies in ((1, 3), (3, 3), (2, 4), (7, 28)):
            for wire in (1e-8, 1e-6, 1e-4, 1e-2):
                many = copies if "copies" in lowering else 0
                seconds = costs.start + costs.step * steps + costs.copy * many + wire / costs.share
                rows.append(LoweringTime(lowering, steps, many, wire, seconds * (1 + error * random.normal())))
    return rows


def test_the_costs_are_found_from_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lowering_times(times(), "times.csv")
    assert [dataclasses.replace(row, line=0) for row in read_lowering_times("times.csv")] == times()
    assert run(["fit", "lowering", "times.csv", "-o", "mine.json"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("costs of kernel, copies-pull from 32 measurements")
    assert all(len(line) <= 80 for line in text.splitlines())
    profile = load_profile("mine.json")
    for lowering, costs in TRUE.items():
        for name, value in dataclasses.asdict(costs).items():
            assert getattr(profile.lowerings[lowering], name) == pytest.approx(value, rel=1e-6), (lowering, name)
    noisy = antiphon.fit.lowering(times(error=0.01))
    for lowering, costs in TRUE.items():
        assert noisy.costs[lowering].share == pytest.approx(costs.share, rel=0.03)
        assert noisy.costs[lowering].step == pytest.approx(costs.step, rel=0.1)
    alike = [row for row in times() if row.steps == 1]  # one number of steps: start and step are not told apart
    fit = antiphon.fit.lowering(alike)
    assert fit.parameters["kernel"]["step"].state == "undetermined"
    assert fit.costs == {}
    assert "kernel: start, step undetermined: measure plans with other numbers of steps" in fit.notes[0]
    write_lowering_times(alike, "alike.csv")
    assert run(["fit", "lowering", "alike.csv", "-o", "no.json"]) != 0
    assert "nothing to write into a profile" in capsys.readouterr().err
    for line, said in (
        ("dma,1,0,1,1", "line 2: unknown lowering 'dma'"), ("steps,-1,0,1,1", "line 2: steps: expected a number"),
        ("steps,1,x,1,1", "line 2: copies"), ("steps,1,0,1,0", "seconds: expected more than 0"),
        ("steps,1,0,1,1", "1 measurements are too few for 3 costs"), (",1,0,1,1", "line 2: lowering: expected"),
    ):  # fmt: skip
        Path("wrong.csv").write_text(f"lowering,steps,copies,wire,seconds\n{line}\n")
        assert run(["fit", "lowering", "wrong.csv"]) != 0, line
        assert said in capsys.readouterr().err, line


def test_bench_writes_what_the_fit_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allgather", "full:ranks=4", "--planner", "ring", "-o", "ring.json"]) == 0
    line = "bench ring.json --on threads:lowering=copies --nbytes 1KB:4KB:4 --iterations 1 --warmup 0 --fit times.csv"
    assert run(line.split()) == 0
    capsys.readouterr()
    rows = read_lowering_times("times.csv")
    assert [(row.lowering, row.steps, row.copies) for row in rows] == [("copies", 3, 6)] * 2
    assert rows[1].wire == pytest.approx(4 * rows[0].wire, rel=0.02)
    Path("joined.csv").write_text(2 * Path("times.csv").read_text())
    assert len(read_lowering_times("joined.csv")) == 4
    bench = antiphon.measure.bench("ring.json", nbytes="1KB:1MB:8", on="threads", lowering="steps", iterations=1)
    assert bench is not None
    assert len(antiphon.fit.lowering(bench).measured) == 5
    for wrong in ([{"lowering": "steps"}], [*bench, "a row of something else"]):
        with pytest.raises(Invalid, match="measurements: expected rows"):
            antiphon.fit.lowering(wrong)
