"""What benches keep: cases of several runs beside each other, and none of a run with only some planners."""

import sys
from pathlib import Path
from typing import Any

import _common
import bench_scale
import bench_zoo
import pytest

CASE = {"cpu": 1.0, "tight": True, "1KB": {"seconds": 2e-6, "ratio": 2.0, "by": "ring"}}


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_common, "RESULTS", tmp_path)
    return _common, bench_zoo, bench_scale


def test_two_runs_of_the_zoo_at_once_keep_both(benches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    common, zoo, _ = benches

    def measured(*_: Any) -> dict[str, Any]:
        common.keep("zoo", {"other kind": CASE})  # another run, while this one measures
        return CASE

    monkeypatch.setattr(zoo, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["zoo", "ring:ranks=4", "--kinds", "allgather", "--sizes", "1KB"])
    zoo.main()
    assert list(common.kept("zoo")) == ["other kind", "ring:ranks=4 allgather"]


def test_some_planners_are_told_and_not_kept(
    benches: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common, zoo, _ = benches
    monkeypatch.setattr(zoo, "measured", lambda *_: CASE)
    asked = ["zoo", "ring:ranks=4", "--kinds", "allgather", "--sizes", "1KB", "--planners", "ring"]
    monkeypatch.setattr(sys, "argv", asked)
    zoo.main()
    assert "ring:ranks=4 allgather 2.000" in capsys.readouterr().out
    assert common.kept("zoo") == {}


def test_a_part_of_the_scales_leaves_the_others(benches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    common, _, scale = benches
    common.keep("scale", {"other": {"ratio": 1.0}})
    row = {"ratio": 1.0, "plan_seconds": 1.0, "verify_seconds": 1.0, "peak_mb": 1.0, "transfers": 1}
    monkeypatch.setattr(scale, "in_child", lambda *_: row)
    monkeypatch.setattr(scale, "CASES", (scale.Case("ring:ranks=4", "allgather", "compose", "1GB"),))
    monkeypatch.setattr(sys, "argv", ["scale", "--only", "ring"])
    scale.main()
    assert list(common.kept("scale")) == ["other", "ring:ranks=4 allgather compose 1GB"]
