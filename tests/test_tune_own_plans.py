"""Plans of the user's own among the candidates of `tune`."""

import json
from pathlib import Path

import pytest

import antiphon
from antiphon.cli import run
from antiphon.errors import Invalid

MACHINE = "ring:ranks=4"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written() -> str:
    """A broadcast in two steps, where a chain takes three."""
    with antiphon.write("broadcast", MACHINE, root=1) as w:
        w[1, "input", 0].copy_to(2).copy_to(3)
        w[1, "input", 0].copy_to(0)
    antiphon.save(w.plan, "mine.json")
    return "mine.json"


def test_a_plan_of_ones_own_may_win(written: str) -> None:
    found = antiphon.tune(
        "broadcast",
        MACHINE,
        root=1,
        planners="ring",
        nbytes="1KB",
        search=antiphon.Search(plans=written, workers="none"),
    )
    assert {(c.planner, c.status) for c in found.candidates} >= {("plan", "ok"), ("ring", "ok")}
    (best,) = found.ranges
    assert (best.candidate.planner, dict(best.candidate.options)) == ("plan", {"file": "mine.json"})
    assert antiphon.verify(found.plan)


def test_on_the_command_line(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "broadcast:root=1", MACHINE, "--planner", "ring", "--plan", written]
    assert run([*command, "--nbytes", "1KB", "--workers", "1", "-o", "table.json"]) == 0
    assert "plan file=mine.json" in capsys.readouterr().out
    assert json.loads(Path("table.json").read_text())["entries"][0]["claims"]["planner"] == "plan"
    assert run(["verify", "table.json"]) == 0
    capsys.readouterr()
    assert run([*command, "--vary", "ranks=4,8"]) == 2
    assert "--plan: is for one machine" in capsys.readouterr().err


def test_wrong_plans_lose_and_say_why(written: str) -> None:
    plan = json.loads(Path(written).read_text())
    plan["entries"][0]["schedule"]["src"][0] = 3
    Path("wrong.json").write_text(json.dumps(plan))
    found = antiphon.tune(
        "broadcast",
        MACHINE,
        root=1,
        planners="ring",
        nbytes="1KB",
        search=antiphon.Search(plans=[written, "wrong.json"], workers="none"),
    )
    ends = {c.options.get("file"): c.status for c in found.candidates if c.planner == "plan"}
    assert ends == {"mine.json": "ok", "wrong.json": "failed"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topology": "ring:ranks=8"}, "mine.json: is for ring:ranks=4 and not for ring:ranks=8"),
        ({"collective": "allgather", "root": None}, "mine.json: plans broadcast, and not allgather"),
        ({"root": 2}, "mine.json: plans broadcast, and not broadcast among these ranks and roots"),
        ({"plans": "none.json"}, "none.json: cannot be read"),
    ],
)
def test_plans_that_are_for_something_else(written: str, given: dict[str, object], says: str) -> None:
    asked = {"collective": "broadcast", "topology": MACHINE, "root": 1, "plans": written, "nbytes": "1MB", **given}
    search = antiphon.Search(plans=asked.pop("plans"))
    with pytest.raises(Invalid, match=says):
        antiphon.tune(**asked, search=search)  # type: ignore[call-overload]
