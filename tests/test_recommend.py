"""What is slower by our own model is never recommended: tables, files, reports and exports leave it to the library."""

import json
import re
import runpy
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from pages import Page

import antiphon
from antiphon.api.checking import check
from antiphon.cli import run
from antiphon.cli.tuning_text import tuning_text
from antiphon.core.plan import Entry, Plan
from antiphon.cost.nccl.accuracy import error_at, is_clearly_faster
from antiphon.cost.nccl.library import library, library_here
from antiphon.cost.nccl.model import calls
from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import NotFound, Unsupported
from antiphon.formats.stock.nccl_tuner import TunerRule, rule_of
from antiphon.runtimes.serve.book import make_book
from antiphon.select.candidate import Range
from antiphon.select.prices import ByPlans
from antiphon.select.verdict import verdict_of
from antiphon.units import range_text

HERE = antiphon.Search(workers="none")
TWO_BOXES = "cluster:box=hgx-h100,boxes=2"
CHEAP = ["binomial-tree", "halving-doubling", "nvls", "direct"]


@pytest.fixture(scope="module")
def broadcast() -> antiphon.Tuning:
    """On an HGX H100 ours is clearly faster up to 32 KiB and at 128 KiB."""
    return antiphon.tune("broadcast", "hgx-h100", planners=CHEAP, search=HERE)


def test_at_every_size_what_is_used_is_the_faster(broadcast: antiphon.Tuning) -> None:
    nccl = library("nccl", broadcast.topology)
    for nbytes in broadcast.sizes:
        entry = broadcast.plan.at(nbytes)
        ours = min(c.seconds[nbytes] for c in broadcast.candidates if c.may_win and c.seconds)
        speedup = nccl.at("broadcast", nbytes)[0].seconds / ours
        assert entry.served_by == ("" if is_clearly_faster(speedup, error_at("broadcast", nbytes, 1)) else "nccl"), (
            nbytes
        )
        assert entry.claims["use"] == ("library" if entry.served_by else "ours")
    assert {entry.served_by for entry in broadcast.plan.entries} == {"", "nccl"}
    assert antiphon.verify(broadcast.plan)  # what is left to NCCL stays in the plan, for run and verify


def test_the_choice_among_ours_is_the_fastest_still(broadcast: antiphon.Tuning) -> None:
    for nbytes in broadcast.sizes:
        planner = broadcast.plan.at(nbytes).claims["planner"]
        times = {c.planner: 0.0 for c in broadcast.candidates}
        for c in broadcast.candidates:
            if c.may_win and c.seconds:
                times[c.planner] = min(times[c.planner] or c.seconds[nbytes], c.seconds[nbytes])
        assert times[planner] == min(seconds for seconds in times.values() if seconds)


def test_texts_say_what_to_use(broadcast: antiphon.Tuning) -> None:
    for r in broadcast.ranges:
        row = r.as_json()
        assert (row["use"], row.get("served_by")) == (("library", "nccl") if r.served_by else ("ours", None))
        error = error_at("broadcast", r.at, 1)
        assert error is not None
        assert r.speedup is not None
        assert row["beyond_error"] == (r.speedup > 1 + error) == (not r.served_by)
        assert row["reference"] == "nccl"
    text = tuning_text(broadcast)
    verdict, table = text.split("\n\n")[:2]
    assert " ".join(verdict.split()) == (
        "broadcast on hgx-h100, 1KB to 1GB: use Antiphon's plans from 1KB to 32KiB and at 128KiB (1.09x to 1.24x over "
        "NCCL); elsewhere NCCL is as good or better"
    )
    head, *rows = table.splitlines()
    assert head.split()[:4] == ["from", "to", "use", "algorithm"]
    assert [line.split()[2] for line in rows[:4]] == ["Antiphon", "NCCL", "Antiphon", "NCCL"]  # a row for each verdict
    assert rows[1].split()[-1] == "~1"
    assert broadcast.as_json()["verdict"]["broadcast"] in " ".join(verdict.split())
    explained = tuning_text(broadcast, explain=True)
    assert explained.startswith(text.removesuffix("; --explain shows more."))
    assert "--explain shows more" not in explained
    assert "use NCCL: leave these sizes to it" in explained
    ranges = Page(antiphon.pages.report(broadcast)).data["groups"][0]["ranges"]
    assert [bool(r["served_by"]) for r in ranges] == [bool(r.served_by) for r in broadcast.ranges]
    assert {r["served_by"] for r in ranges} <= {"", "NCCL"}


def test_the_verdict_is_of_all_sizes_evaluated(broadcast: antiphon.Tuning) -> None:
    """Not of the sizes of the rows alone, at which a range may be better than at others."""
    limits, ours = broadcast.limits["broadcast"].times, {}
    for r in broadcast.ranges:
        sizes = [size for size in broadcast.sizes if r.start <= size < r.stop or size == r.at]
        assert r.largest_gap == pytest.approx(max(r.candidate.seconds[size] / limits[size] for size in sizes))
        if not r.served_by:
            for size in sizes:
                seconds = broadcast.baseline("broadcast", size)
                assert seconds is not None
                ours[size] = seconds / r.candidate.seconds[size]
    least, largest = min(ours.values()), max(ours.values())
    assert f"({least:.3g}x to {largest:.3g}x over NCCL)" in broadcast.verdicts["broadcast"]
    assert least < min(r.speedup or 0 for r in broadcast.ranges if not r.served_by)  # else this machine shows nothing
    rows = [Range.from_claims("broadcast", e.start, e.stop or e.start, e.claims) for e in broadcast.plan.entries]
    assert verdict_of(rows).partition("(")[2] == broadcast.verdicts["broadcast"].partition("(")[2]


def test_the_errors_that_decide_are_printed(broadcast: antiphon.Tuning) -> None:
    """They differ by size, and so may the advice for sizes next to each other."""
    assert broadcast.library is not None
    errors = [error_at("broadcast", size, broadcast.library.layout.nodes) for size in broadcast.sizes]
    texts = dict.fromkeys(f"{error * 100:.0f} %" for error in errors if error is not None)
    assert len(texts) > 1
    said = " ".join(tuning_text(broadcast).split())
    assert all(text in said.partition("model's error")[2] for text in texts)


def test_nothing_is_left_to_a_library_of_which_no_model_is_known() -> None:
    """Ours stand in for NCCL there: what they take says nothing of NCCL's own times."""
    for options in ({"model": "alpha-beta"}, {"nccl": False}):
        found = antiphon.tune("alltoall", "hgx-h100", nbytes="1MB", planners=["direct"], search=HERE, **options)
        assert [r.as_json()["use"] for r in found.ranges] == ["ours"]
        assert not found.plan.at(10**6).served_by


def test_mpi_and_gloo_are_not_nccl(broadcast: antiphon.Tuning) -> None:
    """A model of NCCL says nothing of the library beside which the engine for processors runs."""
    assert all(page.program >= 0 for page in make_book([broadcast.plan]).pages)
    group = ProcessGroup("0", 8, tuple(range(8)))
    prices = ByPlans(broadcast.topology, broadcast.plans, None, "")
    assert prices.price("broadcast", 2**18, 0, group) is None  # a job on GPUs keeps NCCL there
    assert prices.price("broadcast", 2**14, 0, group) is not None


# ---- exports that take the place of NCCL ----


@pytest.mark.parametrize("name", ["mscclpp-json", "msccl-xml"])
def test_exports_leave_out_what_is_left_to_nccl(broadcast: antiphon.Tuning, name: str) -> None:
    files = antiphon.export(broadcast, name)
    numbers = {file.removeprefix("plan")[:1] if name == "mscclpp-json" else file.split("-")[-1][:1] for file in files}
    served = [i for i, entry in enumerate(broadcast.plan.entries) if entry.served_by]
    assert served
    assert not numbers & set(map(str, served))
    assert any(note.startswith("left to NCCL, which is as good: broadcast ") for note in files.notes)
    runs = [start for before, start in pairwise([-2, *served]) if start != before + 1]
    (note,) = [note for note in files.notes if note.startswith("left to NCCL")]
    assert note.count(", ") - 1 == len(runs) - 1  # neighbouring ranges are one
    left = [replace(e, claims={**e.claims, "served_by": "nccl"}) for e in broadcast.plan.entries]
    with pytest.raises(NotFound, match="NCCL's own choice is as good for broadcast at all sizes: nothing to write"):
        antiphon.export(replace(broadcast.plan, entries=tuple(left)), name)


@cache
def tuned_reduce() -> antiphon.Tuning:
    return antiphon.tune(
        "reduce", "hgx-h100", nbytes="1MB", planners=["nvls", "binomial-tree"], model="alpha-beta", search=HERE
    )


def test_a_runner_up_is_written_for_what_a_back_end_cannot_write(tmp_path: Path) -> None:
    """MSCCL++ has no reduction by switches alone; the note says what the runner-up costs."""
    made = tuned_reduce()
    assert made.ranges[0].candidate.planner == "nvls"
    files = antiphon.export(made, "mscclpp-json", tmp_path)
    (note,) = files.notes
    tree = next(one for one in made.ranges[0].runners_up if one.planner == "binomial-tree")
    slower = tree.seconds[10**6] / made.ranges[0].seconds - 1
    assert note.startswith("reduce from 0B: nvls cannot be written; binomial-tree")
    assert f" instead, {slower:.0%} slower (" in note
    assert antiphon.verify(tmp_path / "plan0.json", topology="hgx-h100")
    rows = check(made.plan, "mscclpp-0.9", "1MB")
    assert [row["file"] for row in rows] == sorted(file.name for file in tmp_path.glob("plan*.json"))[::-1]
    assert note in [finding["why"] for finding in rows[0]["findings"]]


def test_a_range_that_is_left_to_nccl_stops_no_runner_up() -> None:
    """By plain data the trees of small calls are no faster than NCCL; nvls, behind them, cannot be written."""
    tuning = tuned_reduce()
    tree = antiphon.plan("reduce", "hgx-h100", planner="binomial-tree")
    seconds = antiphon.predict(tree, 512, model="calls")[0]["seconds"]
    claims = {"model": "calls", "at": 512, "seconds": seconds, "speedup": 1.01, "reference": "nccl"}
    small = replace(tree.entries[0], stop=2**10, claims=claims)
    entries = (small, replace(tuning.plan.entries[0], start=2**10))
    files = antiphon.export(replace(tuning.plan, entries=entries), "mscclpp-json")
    assert {name for name in files if name.startswith("plan")} == {"plan1.json", "plan1-in-place.json"}
    assert "nvls cannot be written; binomial-tree" in files.notes[0]
    assert files.notes[1].endswith("left to NCCL")


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["dgx1v", "hgx-h100", TWO_BOXES, "cluster:box=hgx-h100,boxes=4", "mi300x"])
def test_no_plan_is_written_by_a_slower_protocol_unsaid(spec: str, tmp_path: Path) -> None:
    """Of tables of `tune` alone: each size is served by the protocol that is fastest there, or a note says so."""
    for kind in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"):
        tuning = antiphon.tune(kind, spec, nbytes="128B:1GiB:8", search=antiphon.Search(budget=5, workers=1))
        try:
            files = antiphon.export(tuning, "mscclpp-json", tmp_path / kind)
        except NotFound as error:
            assert "nothing to write" in str(error)  # noqa: PT017 (or it is written, and checked below)
            continue
        module = runpy.run_path(str(tmp_path / kind / "register.py"))
        path_of = {row[1]: tmp_path / kind / row[0] for row in module["PLANS"]}
        for nbytes in (2**power for power in range(7, 31)):
            fitting = module["fitting"](kind, nbytes, in_place=False, root=0)
            if fitting is not None:
                entry, protocol = (
                    tuning.plan.at(nbytes),
                    json.loads(path_of[fitting].read_text())["protocol"].lower(),
                )
                prices = calls(entry.schedule, tuning.topology).seconds_by_protocol(nbytes)
                slower = prices[protocol] / min(prices.values())
                label = re.escape(f"{kind} {range_text(entry.start, entry.stop)}")
                stated = re.search(f"{label}: at .*? takes ([0-9.]+) times", str(files.notes))
                assert slower <= 1.005 or (stated and slower <= 1.01 * float(stated[1])), nbytes
                assert prices[protocol] <= 1.005 * library_here(tuning.topology).at(kind, nbytes)[0].seconds, nbytes


def test_sizes_between_the_tuned_ones_are_left_to_a_faster_library(tmp_path: Path) -> None:
    """Packets win up to 16 KiB; beyond, plain data takes 46 us, RCCL 14."""
    tuning = antiphon.tune("allreduce", "mi300x", nbytes=["8KiB", "64KiB"], planners=["recursive-doubling", "direct"])
    assert tuning.ranges[0].candidate.planner == "recursive-doubling"
    files = antiphon.export(tuning, "mscclpp-json", tmp_path)
    fitting = runpy.run_path(str(tmp_path / "register.py"))["fitting"]
    served = [nbytes for nbytes in (2**power for power in range(7, 17)) if fitting("allreduce", nbytes, False, 0)]
    assert served == [2**power for power in range(7, 15)]
    assert "protocol Simple takes" in files.notes[0]
    assert files.notes[0].endswith("left to RCCL")
    antiphon.export(tuning, "msccl-xml", tmp_path / "msccl")  # which has LL128, as the predictions
    texts = {file.stem.removesuffix("-in-place"): file.read_text() for file in (tmp_path / "msccl").glob("*.xml")}
    for name, protocol in (("allreduce-recursive-doubling-0", "LL"), ("allreduce-direct-1", "LL128")):
        assert f' proto="{protocol}" ' in texts[name]
    with pytest.raises(NotFound, match=r"left to RCCL; allreduce from 64KiB: .*left to RCCL"):
        antiphon.export(tuning, "msccl-xml", tmp_path / "forced", options={"proto": "Simple"})


def test_a_runner_up_that_nccl_beats_is_not_written(broadcast: antiphon.Tuning) -> None:
    """MSCCL's XML has no switches; runners-up without them are taken to be slower than NCCL."""
    entries = list(broadcast.plan.entries)
    (number,) = [i for i, e in enumerate(entries) if e.claims["planner"] == "nvls" and not e.served_by]
    slow = [{**row, "seconds": 2 * row["seconds"]} for row in entries[number].claims["runners_up"]]
    entries[number] = replace(entries[number], claims={**entries[number].claims, "runners_up": slow})
    files = antiphon.export(replace(broadcast.plan, entries=tuple(entries)), "msccl-xml")
    assert not any(f"-{number}.xml" in file for file in files)
    assert (
        "nvls cannot be written, and no runner-up that can be is clearly faster than NCCL: left to NCCL"
        in files.notes[0]
    )
    alone = replace(broadcast.plan, entries=(replace(entries[number], start=0, stop=None),))
    with pytest.raises(
        NotFound, match="nothing to write: broadcast from 0B: nvls cannot be written"
    ):  # why, not "as good"
        antiphon.export(alone, "msccl-xml")


def test_the_price_of_row_by_row_stands_beside_its_option() -> None:
    machine = replace(antiphon.topology("hgx-h100"), name="a box of nobody's")  # no figures of NCCL
    plan = antiphon.plan("reduce", machine, planner="nvls")
    with pytest.raises(Unsupported, match=r"option alone=yes writes it row by row, which takes \d.* times as long at "):
        antiphon.export(plan, "mscclpp-json")
    nccl = antiphon.plan("allreduce", "hgx-h100", planner="nvls")
    with pytest.raises(Unsupported, match="NCCL's own choice is as good as what can be written of it row by row") as e:
        antiphon.export(nccl, "msccl-xml")
    assert "alone" not in str(e.value)


# ---- rules for NCCL's own choice ----


def test_no_rule_by_which_nccl_gets_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forcing what NCCL would choose gains nothing, and all else is slower by its own model."""
    monkeypatch.chdir(tmp_path)
    planners = "--planner ring --planner double-binary-tree --planner nvls"
    assert run(f"tune allreduce hgx-h100 {planners} --nbytes 1KB:1GB --workers 0 -o table.json".split()) == 0
    capsys.readouterr()
    assert run("export table.json --to nccl-tuner -o tuner".split()) == 1  # noqa: SIM905
    assert "no setting is known to beat NCCL's own choice: nothing to write (" in capsys.readouterr().err
    assert not Path("tuner").exists()
    assert run("export table.json --to nccl-tuner:unproven=yes -o tuner --json".split()) == 0  # noqa: SIM905
    notes = json.loads(capsys.readouterr().out)["notes"]
    text = Path("tuner/nccl-tuner.txt").read_text()
    assert notes == [f"rules written: {text.count('allreduce')}"]
    assert "# by the model nvls is no faster than NCCL's own choice\nallreduce 33554432 - nvls auto 0 8 1\n" in text
    assert "# the model has no figures of NCCL's tree here\nallreduce 0 " in text


def test_what_each_rule_would_cost() -> None:
    ring = antiphon.plan("allreduce", "hgx-h100", planner="ring").entries[0]
    nccl = library("nccl", antiphon.topology("hgx-h100"))
    rule = rule_of(ring, nccl, "auto", unproven=True)
    assert rule == TunerRule("ring", "by the model ring is no faster than NCCL's own choice, up to 38% slower (128KiB)")
    assert rule_of(ring, nccl, "auto", unproven=False) == TunerRule("", rule.reason)
    assert "slower (" in rule_of(Entry(0, 65536, ring.schedule, ring.claims), nccl, "simple", unproven=True).reason


def test_no_figures_no_rule() -> None:
    plan = antiphon.plan("allreduce", "full:ranks=8", planner="ring")
    with pytest.raises(NotFound, match="the model has no figures of NCCL's ring here"):
        antiphon.export(plan, "nccl-tuner")
    assert isinstance(plan, Plan)
