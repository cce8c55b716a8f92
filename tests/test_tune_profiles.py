"""Tuning by measured latencies and bandwidths: times and bounds follow them, what plans claim does not."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.cli import run
from antiphon.cost import Profile, predict
from antiphon.errors import Invalid
from antiphon.select import Tuning, tune
from antiphon.topologies import topology

Capture = pytest.CaptureFixture[str]


def quick(kind: str = "allreduce", spec: str = "ring:ranks=4", **options: Any) -> Tuning:
    return tune(kind, topology(spec), **{"nbytes": "1KB:1MB", "workers": "none", **options})


SLOW = Profile("slow network", alpha={"nvlink": 1e-4}, bandwidth_factor={"nvlink": Fraction(1, 2)})


def test_a_profile_changes_times_and_the_bound_but_not_what_plans_claim() -> None:
    plain, slow = (quick(spec="dgx1v", planners=["ring"], profile=p) for p in (None, SLOW))
    for r in slow.ranges:
        (row,) = predict(slow.plan, r.at, profile=SLOW)
        assert row["seconds"] == pytest.approx(r.seconds)
        assert r.seconds > 2 * predict(plain.plan, r.at)[0]["seconds"]
        assert r.gap is not None
        assert r.gap >= 1
    before, after = plain.limits["allreduce"], slow.limits["allreduce"]
    assert (after.latency, after.steps) == (pytest.approx(2e-4), 2) == (pytest.approx(2e-4), before.steps)
    assert before.bytes_per_second is not None
    assert after.bytes_per_second == before.bytes_per_second / 2
    assert antiphon.verify(slow.plan)  # gaps and rounds are those of the topology
    assert {e.claims["profile"] for e in slow.plan.entries} == {"slow network"}
    assert (plain.as_json()["profile"], slow.as_json()["profile"]) == (None, "slow network")
    assert "slow network" in antiphon.pages.report(slow)


def test_a_fast_profile_lowers_the_bound_too() -> None:
    fast = quick(planners=["ring"], profile=Profile(alpha={"link": 0.0}, bandwidth_factor={"link": Fraction(100)}))
    assert all(r.gap is not None and r.gap >= 1 for r in fast.ranges)
    assert fast.profile == "(unnamed)"


def test_the_profile_goes_to_the_workers_and_to_what_was_lost() -> None:
    here = quick(kind="allgather", spec="dgx1v", planners=["ring"], profile=SLOW, against=topology("dgx1v"))
    there = quick(kind="allgather", spec="dgx1v", planners=["ring"], profile=SLOW, workers=2)
    assert [r.as_json() for r in here.ranges] == [r.as_json() for r in there.ranges]
    (loss,) = here.losses
    assert loss.all is not None
    assert loss.left is not None
    assert loss.all.rates() == loss.left.rates() == here.limits["allgather"].rates()
    assert loss.all.latency == here.limits["allgather"].latency


def test_profiles_that_cannot_be_used_are_refused_at_once(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(Invalid, match="is for links of kind ib"):
        quick(profile=Profile("mine", alpha={"ib": 1e-6}))
    with pytest.raises(Invalid, match="expected a Profile"):
        quick(profile=3)
    (tmp_path / "bad.json").write_text('{"format": "antiphon-profile", "version": 1, "alfa": {}}')
    for name, says in (("bad.json", "alfa"), ("nowhere.json", "cannot be read")):
        assert run(["tune", "allreduce", "ring:ranks=3", "--profile", str(tmp_path / name)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert says in err


def test_the_command_takes_a_profile(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "slow.json"
    file.write_text('{"format": "antiphon-profile", "version": 1, "name": "slow", "alpha": {"link": "1ms"}}')
    line = ["tune", "allgather", "ring:ranks=3", "--nbytes", "1KB", "--planner", "ring", "--profile", str(file)]
    assert run(line) == 0
    assert "the model `alpha-beta` with profile slow" in " ".join(capsys.readouterr().out.split())
    assert run([*line, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["profile"] == "slow"
    (r,) = told["ranges"]
    same = antiphon.tune("allgather", topology("ring:ranks=3"), nbytes="1KB", planners=["ring"], profile=str(file))
    assert r == same.ranges[0].as_json()
    assert r["rests_on"] == "profile slow"
    assert r["seconds"] > 1e-3
