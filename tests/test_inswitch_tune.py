"""What plan, tune and the report say of schedules that use switches, and what there is without them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_ground
import pytest

import antiphon
from antiphon.cli import run
from antiphon.cli.tuning_text import tuning_text
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.topology import Topology
from antiphon.core.transform import unjoined
from antiphon.cost import prepare
from antiphon.registry import table
from antiphon.runtimes.measure.choose import tune_measured
from antiphon.select import Tuning, format_switch_uses, list_switch_uses, tune
from antiphon.topologies import topology

BOTH = ["multicast in switches", "reduction in switches"]
pytestmark = pytest.mark.usefixtures("own_folder")


def tuned(machine: str, kind: str = "allreduce", **options: Any) -> Tuning:
    given: dict[str, Any] = {"nbytes": "64MB:256MB", "workers": "none", **options}
    return tune(kind, machine, **given)


def page(found: Tuning) -> str:
    return antiphon.pages.report(found)


def test_what_a_schedule_uses() -> None:
    machine = topology("cluster:box=hgx-h100,boxes=2,fabric=rail,sharp=true")

    def used(planner: str, kind: str, on: Topology = machine) -> tuple[str, ...]:
        return list_switch_uses(next(table("planner")[planner].load()(Request(on, Collective(kind, on.ranks)))))

    assert used("sharp", "allreduce") == used("nvls-tree", "allreduce") == tuple(BOTH)
    box = topology("hgx-h100")
    assert used("nvls", "broadcast", box) == used("nvls", "allgather", box) == (BOTH[0],)
    assert used("nvls", "reduce", box) == used("nvls", "reducescatter", box) == (BOTH[1],)
    assert used("ring", "allreduce", box) == ()
    assert format_switch_uses(BOTH) == "multicast and reduction in switches"


def test_a_plan_says_and_claims_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "allreduce", "hgx-h100", "--planner", "nvls", "-o", "plan.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["uses"] == BOTH
    # alone the parts take 2 * 7/8 in 512 pieces and one step more at its ends; the bound is 9/8
    assert told["bandwidth_gap_alone"] == pytest.approx((2 * 7 / 8) / (9 / 8), rel=0.01)
    assert run(["plan", "allreduce", "hgx-h100", "--planner", "nvls"]) == 0
    assert "uses:      multicast and reduction in switches; with every row alone 1.55" in capsys.readouterr().out
    assert run(["verify", "plan.json"]) == 0
    file = json.loads(Path("plan.json").read_text())
    file["entries"][0]["claims"]["uses"] = BOTH[:1]
    Path("plan.json").write_text(json.dumps(file))
    assert run(["verify", "plan.json"]) == 1
    assert run(["plan", "allreduce", "hgx-h100", "-o", "ring.json", "--json"]) == 0
    file = json.loads(Path("ring.json").read_text())
    assert "uses" not in file["entries"][0]["claims"]
    file["entries"][0]["claims"]["uses"] = BOTH
    Path("ring.json").write_text(json.dumps(file))
    assert run(["verify", "ring.json"]) == 1


def test_tune_tells_what_there_is_without() -> None:
    found = tuned("hgx-h100", planners=["nvls", "ring", "direct"])
    last = found.ranges[-1]
    assert (last.candidate.planner, last.candidate.uses) == ("nvls", tuple(BOTH))
    assert last.without is not None
    others = [c for c in found.candidates if c.planner in ("ring", "direct") and c.seconds]
    assert last.without.seconds == min(c.seconds[last.at] for c in others)
    assert last.without.planner == "ring"
    schedule = found.plan.entries[-1].schedule
    alone = prepare("alpha-beta", unjoined(schedule), found.topology)(last.at).seconds
    assert last.without.alone == alone > last.seconds
    told = found.as_json()
    assert told["ranges"][-1]["uses"] == BOTH
    assert told["ranges"][-1]["without_switches"] == {
        "alone": alone, "planner": "ring", "options": dict(last.without.options or {}), "seconds": last.without.seconds,
    }  # fmt: skip
    assert found.plan.entries[-1].claims["uses"] == BOTH
    text = " ".join(tuning_text(found).split())
    assert "Plans for allreduce by nvls use multicast and reduction in switches;" in text
    said = " ".join(tuning_text(found, explain=True).split())
    assert "uses multicast and reduction in switches; where a runtime cannot, the same schedule with every row" in said
    assert "and the best that does without, ring" in said
    assert "uses multicast and reduction in switches" in page(found)
    found.save("table.json")
    assert run(["verify", "table.json"]) == 0


def test_of_planners_that_all_use_them_none_is_told() -> None:
    found = tuned("hgx-h100", planners="nvls", nccl=False)
    assert all(r.without is not None and r.without.planner is None for r in found.ranges)
    assert "no planner here does without" in " ".join(tuning_text(found, explain=True).split())


def test_tuning_by_measuring_asks_what_the_runtime_can(monkeypatch: pytest.MonkeyPatch) -> None:
    able = replace(fake_ground.ENTRY, can=replace(fake_ground.ENTRY.can, in_switches=True))
    monkeypatch.setitem(table("runtime"), "fake", fake_ground.ENTRY)
    monkeypatch.setitem(table("runtime"), "able", able)
    monkeypatch.setattr(fake_ground, "wrong", lambda wanted: 0)
    given: dict[str, Any] = {"nbytes": "64MB", "planners": ("nvls", "ring"), "workers": "none", "iterations": 1}
    for on, expected in (("fake", {"ring"}), ("able", {"nvls", "ring"})):
        found = tune_measured("allreduce", topology("hgx-h100"), on=on, **given)
        assert found is not None
        listed = {c.planner for c in found.tuning.candidates if c.status == "ok"}
        assert listed == expected
        refused = [c.reason for c in found.tuning.candidates if c.planner == "nvls" and c.status == "refused"]
        assert ["which the chosen runtime cannot" in why for why in refused] == [True] * (on == "fake")


def test_the_best_for_a_size() -> None:
    best = antiphon.plan("allreduce", "hgx-h100", planner="nvls", nbytes="1GB")
    small = antiphon.plan("allreduce", "hgx-h100", planner="nvls", nbytes="1KB")
    assert best.entries[0].schedule.pieces > small.entries[0].schedule.pieces == 1
