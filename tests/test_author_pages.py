"""The page on writing schedules and its example: what they show runs, and is as good as what planners make."""

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from quick import in_turn

import antiphon
from antiphon.errors import Invalid

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "authoring.md").read_text(encoding="utf-8")
PROGRAMS = {
    found[1]: found[0] for found in re.finditer(r"(?<=```python\n)# file: (\w+)\.py\n.*?(?=```)", PAGE, re.DOTALL)
}
SAME = "every transfer"
ALIKE = "every figure"
BETTER = "no figure worse"
BESIDE: dict[str, tuple[str, dict[str, Any], str]] = {  # planner, its options, and what is said of the two
    "ring": ("ring", {}, ALIKE),
    "doubling": ("recursive-doubling", {}, SAME),
    "two_step": ("colocated-ps", {}, SAME),
    "hierarchical": ("hierarchical-ps", {}, BETTER),
    "in_switch": ("nvls", {"pieces": 8}, ALIKE),
}
FIGURES = ("chunks", "steps", "rounds", "transfers", "bandwidth_gap", "latency_gap")
SIZES = ["1KB", "1MB", "1GB"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str) -> antiphon.Writing:
    names: dict[str, Any] = {}
    exec(compile(PROGRAMS[name], f"{name}.py", "exec"), names)
    found = names["w"]
    assert isinstance(found, antiphon.Writing)
    return found


def seconds(plan: antiphon.Plan) -> list[float]:
    return [row["seconds"] for row in antiphon.predict(plan, SIZES, model="alpha-beta")]


@pytest.mark.parametrize("name", in_turn(sorted(BESIDE), 2))
def test_a_program_of_the_page_beside_a_planner(name: str) -> None:
    planner, options, said = BESIDE[name]
    w = written(name)
    theirs = antiphon.plan(w.collective, w.topology, planner=planner, options=options)
    assert antiphon.verify(w.plan, proof=True)
    assert w.schedule.same_as(theirs.entries[0].schedule) == (said == SAME)
    pairs = [(w.plan.entries[0].claims[key], theirs.entries[0].claims[key]) for key in FIGURES]
    pairs += zip(seconds(w.plan), seconds(theirs), strict=True)
    if said == BETTER:
        assert all(mine <= other for mine, other in pairs)
        assert round(pairs[-1][0] / pairs[-1][1], 2) == 0.87
    else:
        assert all(mine == other for mine, other in pairs)


def test_every_program_is_looked_at() -> None:
    assert set(PROGRAMS) == set(BESIDE)
    assert len(PROGRAMS) == PAGE.count("```python")


def test_the_complaint_is_as_shown() -> None:
    shown = re.search(r"^    (with .*?)\n\n    antiphon\.errors\.Invalid: (.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert shown is not None
    program = "import antiphon\n\n" + re.sub(r"^    ", "", shown[1], flags=re.MULTILINE)
    with pytest.raises(Invalid) as caught:
        exec(compile(program, "wrong.py", "exec"), {})
    assert str(caught.value) == " ".join(shown[2].split())


@pytest.mark.parametrize("told", [antiphon.__doc__, antiphon.write.__doc__])
def test_what_the_help_shows_runs(told: str) -> None:
    lines = inspect.cleandoc(told).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.lstrip().startswith("with antiphon.write("))
    block = [line.removeprefix("    ") for line in lines[begin : lines.index("", begin)]]
    names: dict[str, Any] = {"antiphon": antiphon}
    exec(compile("\n".join(block), "help.py", "exec"), names)
    assert antiphon.verify(names["w"].plan)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "write_a_schedule.py"))
    assert "us down the tree" in capsys.readouterr().out
