"""antiphon models, predict, simulate: stable keys, exit codes, one clear line for what is wrong."""

import json
from pathlib import Path

import pytest
from commands import Capture, answer, complaint
from tables import refused

import antiphon
from antiphon.cli import run
from antiphon.cli.costs import rows_text


@pytest.fixture(autouse=True)
def _with_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "dgx1v", "--planner", "ring", "-o", "plan.json"]) == 0
    capsys.readouterr()


def test_predict_keys(capsys: Capture) -> None:
    rows = answer(capsys, "predict", "plan.json", "--nbytes", "1KB:1GB")["rows"]
    assert [row["nbytes"] for row in rows] == [*(1000 * 2**k for k in range(20)), 10**9]
    for row in rows:
        assert set(row) >= {"nbytes", "seconds", "algbw", "busbw", "terms", "bottleneck"}
        assert row["algbw"] == pytest.approx(row["nbytes"] / row["seconds"])
        assert row["busbw"] == pytest.approx(row["algbw"] * 7 / 4)
        assert row["seconds"] == pytest.approx(sum(row["terms"].values()))
        assert row["gap_model"] == "calls"
    assert rows[0]["bottleneck"] == "latency of 14 steps, 601 ns each"
    assert (rows[0]["collective"], rows[0]["topology"], rows[0]["planner"]) == ("allreduce", "dgx1v", "ring")
    assert rows[-1]["bottleneck"].startswith("link ")
    assert rows[-1]["bottleneck"].endswith(", nvlink)")
    (one,) = answer(capsys, "predict", "plan.json", "--nbytes", "1KB")["rows"]
    assert one == rows[0]
    assert (one["model"], one["rests_on"]) == ("calls", "calibrated by v100")
    plain, *others = (
        answer(capsys, "predict", "plan.json", "--nbytes", "1KB", "--model", model)["rows"][0]
        for model in ("alpha-beta", "critical-path", "sccl")
    )
    assert plain["seconds"] < one["seconds"]  # without launch and protocols
    for other in others:
        assert other["seconds"] == pytest.approx(plain["seconds"])  # a ring has no slack


@pytest.mark.parametrize(("line", "says"), refused("predict"))
def test_bad_input(capsys: Capture, line: str, says: str) -> None:
    assert says in complaint(capsys, *line.split())


def test_a_plan_for_a_missing_link_is_refused(capsys: Capture) -> None:
    plan = json.loads(Path("plan.json").read_text())
    schedule = plan["entries"][0]["schedule"]
    schedule["dst"][0] = (schedule["src"][0] + 6) % 8
    Path("bad.json").write_text(json.dumps(plan))
    for more in ("", " --trace trace.json"):
        assert "transfer has no link" in complaint(capsys, *f"predict bad.json --nbytes 1KB{more}".split())


def test_sizes_are_printed_as_they_were_asked_for_and_the_end_is_among_them(capsys: Capture) -> None:
    assert run(["predict", "plan.json", "--nbytes", "1KB:1GB"]) == 0
    text = capsys.readouterr().out
    sizes = [line.split()[0] for line in text.splitlines()[2:23]]
    assert sizes[6:12] == ["64KB", "128KB", "256KB", "512KB", "1.024MB", "2.048MB"]
    assert sizes[-2:] == ["524.288MB", "1GB"]
    assert "KiB" not in text
    assert "to 1GB: link" in text
    assert run(["predict", "allreduce", "hgx-h100", "--library", "nccl", "--nbytes", "1KB:1MB:8"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:6]] == [
        "1KB", "8KB", "64KB", "512KB", "1MB",
    ]  # fmt: skip
    assert run(["predict", "allreduce", "hgx-h100", "--library", "nccl"]) == 2
    assert "--nbytes is missing: give a size or a range" in capsys.readouterr().err


def test_plans_together_have_a_gap() -> None:
    """Two broadcasts over one link take twice the time of one, and nothing is faster."""
    one = antiphon.plan("broadcast", "line:ranks=2", planner="direct")
    (alone,) = antiphon.predict(one, "1GB", model="alpha-beta")
    (row,) = antiphon.predict([one, one], "1GB", model="alpha-beta")
    assert row["seconds"] == pytest.approx(2 * alone["seconds"], rel=1e-3)
    assert (alone["gap"], row["gap"], row["gap_model"]) == (pytest.approx(1), pytest.approx(1), "alpha-beta")


def test_gaps_are_those_of_tune(capsys: Capture) -> None:
    words = ["allreduce", "dgx1v", "--planner", "ring", "--nbytes", "1KB:1MB:1000"]
    tuned = answer(capsys, "tune", *words, "-o", "tuned.json")
    for row in answer(capsys, "predict", "tuned.json", "--nbytes", "1KB:1MB:1000")["rows"]:
        least = tuned["bound"]["allreduce"]["seconds"][str(row["nbytes"])]
        assert row["gap"] == pytest.approx(row["seconds"] / least)
    (row,) = answer(capsys, "predict", "plan.json", "--nbytes", "1KB", "--model", "loggp")["rows"]
    assert row["gap"] is None
    assert row["gap_model"] is None


def test_messages_of_loggp_are_not_explained_as_those_of_calls(capsys: Capture) -> None:
    (row,) = answer(capsys, "predict", "plan.json", "--nbytes", "1KB", "--model", "loggp")["rows"]
    row["terms"] = {"messages": row["seconds"]}  # as for plans of very many messages
    assert "to other nodes" not in rows_text([row])
    assert "to other nodes" in rows_text([row | {"model": "calls"}])
