"""The public functions as their users see them: types, help, and what they take."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """\
import antiphon

machine = antiphon.topology("dgx1v", only=[0, 1, 2, 3])
limits = antiphon.bound("allreduce", machine)
plan: antiphon.Plan = antiphon.plan("allreduce", machine, planner="ring", nbytes="64MiB")
report = antiphon.verify(plan, proof=True)
right: bool = report.ok and report.fault is None
best = antiphon.tune("allreduce", machine, nbytes="1KB:1MB", planners=["ring"], budget="2s")
first = best.ranges[0]
who, seconds = first.candidate.planner, first.seconds
measured = antiphon.tune("allreduce", machine, on="mpi", factor=4)
rows = antiphon.predict(best.plan, "1KB:1GB", model="alpha-beta")
(row,) = antiphon.simulate(best.plan, "64MiB", trace="trace.json")
page = antiphon.report(best)
points = antiphon.frontier("allgather", machine, budget=10).points
done = antiphon.run(plan, "64KiB", dtype="int8", repeat=1)
files = antiphon.export(plan, "goal", nbytes="64MiB", options={"order": "rounds"})
again = antiphon.load("plan.json", antiphon.Plan)
antiphon.save(again, "copy.json.gz")
alpha = antiphon.fit("genmodel", "times.csv", beta=1e-10).parameters["alpha"].value
times = antiphon.bench("memory", most=3)


def hop(c: antiphon.Places, rank: int) -> antiphon.Places:
    return c.copy_to(rank, "scratch", 0)


with antiphon.write("broadcast", machine, chunks=2, pieces=8) as w, w.together():
    hop(w[0, "input", 0], 1).copy_to([2, 3])
    w[0, "input", 1:].reduce_to(range(1, 4), via=[0])
lines: tuple[str, ...] = w.lines
antiphon.save(w.plan, "written.json")
"""

TYPOS = [
    ('planner="ring", nbytes', 'planer="ring", nbytes'),
    ('best = antiphon.tune("allreduce", machine, nbytes=', 'best = antiphon.tune("allreduce", machine, nbyte='),
    ("best.ranges", "best.rangs"),
    ("first.candidate.planner", "first.candidate.planer"),
    ("antiphon.frontier(", "antiphon.frontiers("),
    ('on="mpi"', "on=1"),  # a name of an installed package's runtime is only known when it runs
    ("limits = antiphon.bound", "limits: int = antiphon.bound"),
    ("antiphon.load(", "antiphon.loads("),
    ('antiphon.fit("genmodel"', 'antiphon.fit("gemodel"'),
    ("repeat=1", 'repeat="1"'),
    ("chunks=2", "chunk=2"),
    ("copy_to([2, 3])", "copyto([2, 3])"),
    ('hop(w[0, "input", 0], 1)', 'hop(w[0, "input"], "1")'),
    ('w[0, "input", 1:]', 'w["input", 0, 1:]'),
    ("w.plan", "w.plans"),
]  # each caught where it stands; some show that values are looked at, too


def mypy(folder: Path, programs: dict[str, str]) -> str:
    for name, text in programs.items():
        (folder / name).write_text(text)
    (folder / "mypy.ini").write_text("[mypy]\nignore_missing_imports = true\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--num-workers", "0", "--config-file", "mypy.ini", "--no-incremental"]
    done = subprocess.run(
        [*command, *programs], cwd=folder, capture_output=True, text=True, check=False, timeout=500,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_finds_every_typo_in_a_users_program(tmp_path: Path) -> None:
    programs = {"right.py": PROGRAM}
    for number, (right, wrong) in enumerate(TYPOS):
        assert PROGRAM.count(right) == 1, right
        programs[f"typo{number}.py"] = PROGRAM.replace(right, wrong)
    said = mypy(tmp_path, programs)
    complaints = {line.partition(":")[0] for line in said.splitlines() if ": error: " in line}
    assert complaints == {name for name in programs if name != "right.py"}, said


def public() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(antiphon, name) for name in antiphon.__all__}
    return {name: one for name, one in found.items() if not isinstance(one, type)}


@pytest.mark.parametrize("name", sorted(public()))
def test_help_tells_every_option(name: str) -> None:
    function = public()[name]
    told = inspect.getdoc(function) or ""
    listed = set(re.findall(r"`(\w+)`", "\n".join(line for line in told.splitlines() if line.lstrip().startswith("`"))))
    asked = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert told
    assert [option for option in asked if option not in listed] == []


def test_the_options_of_every_form_are_told() -> None:
    """Of what is called in several forms the options stand in the overloads, and in the text."""
    from typing import get_overloads

    for name in ("bench", "fit", "lab", "tune", "export", "load"):
        forms = get_overloads(inspect.unwrap(public()[name]))
        assert len(forms) > 1
        told = inspect.getdoc(public()[name]) or ""
        for form in forms:
            for option in inspect.signature(form).parameters:
                assert f"`{option}`" in told, (name, option)
