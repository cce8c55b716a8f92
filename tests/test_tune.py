"""Tuning: every planner, every size; what goes wrong is reported; the result does not depend on the workers."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stubborn_planners
from entries import blink, compose
from hypothesis import given
from hypothesis import strategies as st
from quick import in_turn

import antiphon
from antiphon import registry
from antiphon.cli import planning, run
from antiphon.core.collective import KINDS, Collective
from antiphon.core.request import Request
from antiphon.core.reshape import only
from antiphon.core.serialize import dumps
from antiphon.core.verify import verify
from antiphon.cost import predict
from antiphon.errors import AntiphonError, Invalid
from antiphon.registry import Entry, PlannerCapabilities
from antiphon.select import Limit, Tuning, dump_tables, load_plans, pool, sizes_of, tune, tuner
from antiphon.select.ranges import Key, choose_winners, worth_keeping
from antiphon.select.schedule_cache import fingerprint
from antiphon.select.task import Done, Priced
from antiphon.topologies import topology

Capture = pytest.CaptureFixture[str]
RELAY = Entry(
    "antiphon.planners.relations.relay:relay", "shortest paths",
    PlannerCapabilities(tuple(KINDS), sweep=({}, {"by": "tree"})),
)  # fmt: skip


def quick(kind: str = "allreduce", spec: str = "ring:ranks=4", **options: Any) -> Tuning:
    return tune(kind, topology(spec), **{"nbytes": "1KB:1MB", "workers": "none", **options})


# ---- sizes and ranges ----


def test_sizes_are_the_ends_of_the_range_and_the_powers_of_two_in_it() -> None:
    assert sizes_of("1KB:1MB") == ((1000, 10**6), (1000, *(2**k for k in range(10, 20)), 10**6))
    assert sizes_of("3KB:4KB")[1] == (3000, 4000)
    assert sizes_of("1KiB:4KiB")[1] == (1024, 2048, 4096)
    assert sizes_of("1KB:10KB:4") == ((1000, 10_000), (1000, 4000, 10_000))
    assert sizes_of((3, 3)) == ((3, 3), (3,))
    assert sizes_of((3, 10)) == ((3, 10), (3, 10))
    assert sizes_of("5:7")[1] == (5, 7)
    assert sizes_of(64)[1] == (64,)
    assert sizes_of(np.int64(64))[1] == (64,)
    for wrong in ("0:1KB", "2KB:1KB", "1:2:1", "1KB:", "0", "", 1.5, None, True, [], ["1KB", 2.5], np.ones(2)):
        with pytest.raises(Invalid):
            sizes_of(wrong)  # type: ignore[arg-type]


@given(st.lists(st.lists(st.sampled_from([1.0, 1.0 + 1e-12, 2.0, 3.0]), min_size=3, max_size=3), min_size=1))
def test_what_is_dropped_on_the_way_never_wins(rows: list[list[float]]) -> None:
    times: dict[Key, list[float]] = {Key(i, 0): row for i, row in enumerate(rows)}
    kept: set[Key] = set()
    for key in times:  # as they come
        kept = worth_keeping({k: times[k] for k in kept | {key}})
    assert choose_winners({k: times[k] for k in kept}) == choose_winners(times)
    assert choose_winners(times) == choose_winners(dict(reversed(times.items())))


# ---- what it finds ----


@pytest.mark.parametrize(
    ("kind", "spec"),
    in_turn(
        [
            ("allgather", "full:ranks=3"),
            ("broadcast", "ring:ranks=5"),
            pytest.param("allreduce", "dgx1v", marks=pytest.mark.slow),
        ]
    ),
)
def test_the_best_for_every_size(kind: str, spec: str) -> None:
    found = quick(kind, spec)
    good = [c for c in found.candidates if c.status == "ok"]
    assert good
    assert [found.ranges[0].start, found.ranges[-1].stop, found.ranges[-1].at] == [1000, 10**6, 10**6]
    assert all(a.stop == b.start for a, b in zip(found.ranges, found.ranges[1:], strict=False))
    for size in found.sizes:
        (r,) = [r for r in found.ranges if r.start <= size < r.stop + (r is found.ranges[-1])]
        assert r.candidate.seconds[size] <= min(c.seconds[size] for c in good) * (1 + 1e-9)
        entry = found.plan.at(size)
        assert entry.claims["planner"] == r.candidate.planner
        assert verify(entry.schedule, found.topology).ok
        (row,) = predict(found.plan, size, model=found.model)
        assert row["seconds"] == pytest.approx(r.candidate.seconds[size])
        gap = found.limits[kind].gap(size, r.candidate.seconds[size])
        assert gap is None or gap >= 1 - 1e-9
    assert antiphon.verify(found.plan)


@pytest.mark.slow
def test_one_size_alone_is_never_worse_than_beside_another() -> None:
    asked = {"planners": ("trees", "relay"), "model": "critical-path", "nccl": False}
    alone = quick("broadcast", "torus:dims=2x3", nbytes=[10**6], **asked)
    beside = quick("broadcast", "torus:dims=2x3", nbytes=[10**6, 10**9], **asked)
    assert alone.ranges[0].seconds <= min(c.seconds[10**6] for c in beside.candidates if c.seconds)
    told = [(c.planner, *c.options.items()) for c in alone.candidates]
    assert len(set(told)) == len(told)  # nothing twice


def test_greedy_is_asked_on_large_machines_alone() -> None:
    assert "greedy" not in tuner.usual_planners(topology("torus:dims=8x8"))
    assert "greedy" in tuner.usual_planners(topology("torus:dims=8x9"))


@pytest.mark.slow
def test_the_split_of_blink_is_for_a_size_too() -> None:
    machine, wanted = topology("dgx1v:pcie=yes"), Collective("broadcast", 8, roots=(0,))

    def made(**asked: Any) -> set[bytes]:
        found = blink(Request(machine, wanted, **asked), hybrid=True, t_dpa=0.001)
        return {fingerprint(one) for one in found}

    assert made(nbytes=10**8, also=(None,)) == made(nbytes=10**8) | made()


def test_gap_and_speedup_are_what_their_definitions_say() -> None:
    found = quick("allgather", "dgx1v", planners=["ring", "multi-ring", "direct", "relay", "trees"])
    assert found.limits["allgather"].steps == 2
    for r in found.ranges:
        assert r.at in found.sizes
        # Two steps, and at least the bandwidth bound: alpha-beta counts both, so a plan is at most their sum away.
        least = found.limits["allgather"].times[r.at]
        assert 2 * 0.7e-6 + r.at / (1.2e12 / 7) <= least * (1 + 1e-12)
        assert r.gap == pytest.approx(r.seconds / least)
        assert r.as_json()["gap_model"] == found.model
        names = found.baselines["allgather"]
        nccl = min(c.seconds[r.at] for c in found.candidates if c.planner in names and c.seconds)
        assert r.speedup == pytest.approx(nccl / r.seconds)
    assert quick("alltoall", "full:ranks=4").baselines["alltoall"][0] in ("direct", "pairwise", "ring")


def test_json_keys() -> None:
    told = json.loads(json.dumps(quick("allreduce", "ring:ranks=4", nbytes="1MB").as_json(), allow_nan=False))
    assert {"topology", "model", "ranges", "candidates", "bound", "baseline", "lost", "definitions"} <= set(told)
    keys = {"collective", "from", "to", "planner", "options", "seconds", "gap", "speedup"}
    assert all(keys <= set(r) for r in told["ranges"])
    keys = {"collective", "planner", "options", "status", "reason", "seconds"}
    assert all(keys <= set(c) for c in told["candidates"])
    declared = {name: entry.can for name, entry in registry.table("planner").items()}
    usual = {name for name, can in declared.items() if can.tuned and not (can.in_switches or can.timed)}
    assert "allreduce" not in tuple(declared["shallow"].tuned)
    usual -= {"shallow", *(name for name, can in declared.items() if can.tuned_from > 2)}
    assert {c["planner"] for c in told["candidates"]} == usual
    for c in told["candidates"]:
        assert (c["status"] == "ok") == bool(c["seconds"]) == (not c["reason"])
    limit = told["bound"]["allreduce"]
    assert (limit["bytes_per_second"], limit["bytes_per_second_exact"]) == (pytest.approx(1e11 / 3), "100000000000/3")
    whole = quick("broadcast", "ring:ranks=4,bandwidth=1GB/s", planners=["ring"]).as_json()["bound"]["broadcast"]
    assert (whole["bytes_per_second"], whole["bytes_per_second_exact"]) == (2e9, "2000000000")
    assert type(whole["bytes_per_second"]) is float


def test_only_some_planners_with_what_stands_for_nccl_beside_them() -> None:
    found = quick("allreduce", "dgx1v", planners=["ring"])
    assert {r.candidate.planner for r in found.ranges} == {"ring"}
    beside = {c.planner for c in found.candidates} - {"ring"}
    assert beside <= {"multi-ring", "double-binary-tree"}
    if "multi-ring" in registry.table("planner"):
        assert (found.ranges[-1].speedup or 9) < 1


def test_groups_roots_and_collectives_made_by_hand() -> None:
    machine = topology("full:ranks=4")
    few: Any = {"nbytes": "4KB", "workers": "none", "planners": ["direct", "relay"]}
    found = tune("broadcast", machine, ranks=[0, 1, 3], root=3, **few)
    assert found.plan.collective == Collective("broadcast", 4, (0, 1, 3), (3,))
    again = tune(found.plan.collective, machine, **few)
    assert again.as_json() == found.as_json()
    for wrong in ({"nbytes": "x"}, {"budget": 0}, {"model": "nope"}, {"planners": ["rong"]}, {"root": 9}):
        with pytest.raises(Invalid):
            tune("broadcast", machine, **{"workers": "none", **wrong})
    with pytest.raises(Invalid, match="like with like"):
        quick(against=topology("ring:ranks=5"))


# ---- workers, and planners that misbehave ----


def test_the_result_does_not_depend_on_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    planners = ["ring", "direct", "relay", "trees", "halving-doubling"]
    alone = quick("allreduce", "ring:ranks=3", nbytes="4KB:64KB", planners=planners)
    monkeypatch.setattr(pool, "HEAD_START", -1.0)
    spread = quick("allreduce", "ring:ranks=3", nbytes="4KB:64KB", workers=2, planners=planners)
    assert spread.as_json() == alone.as_json()
    assert dumps(spread.plan) == dumps(alone.plan)


def test_planners_that_misbehave_are_reported_and_the_rest_goes_on(
    added: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("raises", "refuses", "hangs", "dies", "chatters", "lies", "strange", "nothing", "late")
    added(*names)
    told: list[tuple[int, int]] = []
    found = quick(
        "allgather",
        planners=[*names, "ring"],
        workers=2,
        budget=0.75,
        progress=lambda done, total, _: told.append((done, total)),
    )
    assert capfd.readouterr().out == ""
    rows = {name: [(c.status, c.reason) for c in found.candidates if c.planner == name] for name in names}
    assert rows["raises"] == [("ok", ""), ("failed", "ZeroDivisionError: in the middle of things")]
    assert rows["refuses"] == [("refused", "planner refuses: never does anything")]
    assert [status for status, _ in rows["hangs"]] == ["ok", "timed out"]
    assert "budget" in rows["hangs"][1][1]
    assert rows["dies"] == [("failed", "its process ended with exit code 7")]
    assert rows["chatters"] == [("ok", "")]
    assert [status for status, _ in rows["lies"]] == ["failed"]
    assert "the schedule is wrong" in rows["lies"][0][1]
    assert [status for status, _ in rows["strange"]] == ["failed"]
    assert [status for status, _ in rows["nothing"]] == ["refused"]
    assert rows["late"] == [("ok", ""), ("timed out", "the budget is used up")]
    assert found.complete
    assert found.plans
    total = told[-1][1]
    assert told[-1] == (total, total)
    assert {done for done, _ in told} >= set(range(1, total))


def test_a_worker_that_cannot_start_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "HEAD_START", -1.0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = quick(workers=2, planners=["ring"])
    assert found.plan.entries


def interrupted_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as a candidate is done that found something."""
    real = tuner.run_tasks

    def until(context: Any, tasks: Any, workers: int, tell: Any, *rest: Any) -> None:
        heard = []

        def hear(message: Any) -> None:
            tell(message)
            if heard and isinstance(message, Done):
                raise KeyboardInterrupt
            heard.extend([message] if isinstance(message, Priced) else [])

        real(context, tasks, 0, hear)

    monkeypatch.setattr(tuner, "run_tasks", until)


def test_what_was_found_before_an_interruption_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    interrupted_after_one(monkeypatch)
    found = quick()
    assert not found.complete
    assert len(found.candidates) == 1 + sum(c.status != "ok" for c in found.candidates)
    assert found.ranges[0].gap is None  # the bound was not reached
    assert found.plan.entries
    out, page = tmp_path / "plan.json", tmp_path / "page.html"
    assert run(["tune", "allreduce", "ring:ranks=4", "-o", str(out), "-o", str(page)]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert run(["verify", str(out)]) == 0
    assert "interrupted" in page.read_text()


def test_what_takes_least_comes_first_and_the_best_so_far_is_told() -> None:
    """A tree of few transfers before rings and packed trees, whatever their order in the table or the call."""
    told: list[str] = []
    found = tune(
        "broadcast", "star:ranks=9", planners=["trees", "ring", "binomial-tree"], nbytes=[1000, 10**6], workers="none",
        nccl=False, progress=lambda done, total, what: told.append(what),
    )  # fmt: skip
    assert any(what.startswith("running: ring (0 CPU s)") for what in told)
    told = [what for what in told if not what.startswith("running")]
    order = list(dict.fromkeys(what.partition(";")[0].split()[-1] for what in told))
    assert order == ["binomial-tree", "ring", "trees", "bounds"]
    best = min((c.seconds[10**6], c.planner) for c in found.candidates if c.status == "ok")
    assert f"; best so far for 1MB: {best[1]}, " in told[-1]
    assert re.search(r", gap [0-9.]+x \([0-9.]+x at 1KB\)$", told[-1])
    assert "gap" not in told[0]  # the bound is not known yet


# ---- allocations and machines that lost links ----


def rate(limit: Limit | None) -> Fraction:
    assert limit is not None
    assert limit.bytes_per_second is not None
    return limit.bytes_per_second


@pytest.mark.slow
def test_an_irregular_allocation_says_what_was_lost(added: Callable[..., None]) -> None:
    added(relay=RELAY)
    whole = topology("dgx1v")
    machine = only(whole, [1, 4, 5, 6])
    found = tune(
        "all", machine, ranks=[1, 4, 5, 6], nbytes="4KB:4MB", planners=["relay", "trees"], workers="none", against=whole
    )
    assert set(found.plans) == set(KINDS)
    for plan in found.plans.values():
        assert antiphon.verify(plan)
        used = {int(r) for e in plan.entries for r in (*e.schedule.src, *e.schedule.dst)}
        assert used == {1, 4, 5, 6}
    for loss in found.losses:
        assert rate(loss.left) < rate(loss.among)
        assert rate(loss.left) == rate(found.limits[loss.collective])
        assert set(loss.as_json()) == {"collective", "whole", "all", "among", "left"}


# ---- files and the command line ----


@pytest.fixture(scope="module")
def table_of_all() -> Tuning:
    return quick("all", "ring:ranks=3", nbytes="1KB", planners=["ring"])


@pytest.fixture(scope="module")
def table_bytes(table_of_all: Tuning) -> bytes:
    return dump_tables(table_of_all.plans, "alpha-beta")


def test_a_table_comes_back_as_it_was(tmp_path: Path, table_of_all: Tuning, table_bytes: bytes) -> None:
    found = table_of_all
    for name in ("table.json", "table.json.gz"):
        found.save(tmp_path / name)
        loaded = load_plans(tmp_path / name)
        assert {k: dumps(p) for k, p in loaded.items()} == {k: dumps(p) for k, p in found.plans.items()}
    assert (tmp_path / "table.json").read_bytes() == table_bytes
    quick("allgather", planners=["ring"]).save(tmp_path / "plan.json")
    assert list(load_plans(tmp_path / "plan.json")) == ["allgather"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"version": 1', b'"version": 2', "version 2 of antiphon-table"),
        (b'"antiphon-table"', b'"antiphon-tabel"', "did you mean 'antiphon-table'|unknown format"),
        (b'"plans"', b'"palns"', "unknown field|did you mean"),
        (b'"allgather": {', b'"gather": {', "holds a plan for allgather|stands twice"),
        (b'"ring:ranks=3"', b'"another"', "different machines"),
        (b'"model"', b'"version"', "version|twice"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, table_bytes: bytes, old: bytes, new: bytes, says: str) -> None:
    path = tmp_path / "t.json"
    assert old in table_bytes
    path.write_bytes(table_bytes.replace(old, new, 1))
    with pytest.raises(Invalid, match=says) as caught:
        load_plans(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "LOG_INTERVAL", 1e9)  # a log has one line, for the first result
    command = ["tune", "allreduce", "ring:ranks=4", "--nbytes", "1KB:64KB:8", "--planner", "relay", "--planner", "ring"]
    assert run([*command, "-o", "plan.json", "-o", "r.html", "-o", "c.svg", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == err.count("best so far for 64KB") == 1
    told = json.loads(out)
    assert told["ranges"][0]["from"] == 1000
    assert run(["verify", "plan.json", "--proof"]) == 0
    assert run(["run", "plan.json", "--nbytes", "10KB"]) == 0
    assert run(command) == 0
    text = capsys.readouterr().out
    assert "ring" in text
    assert "1KB" in text
    line = "tune all ring:ranks=3 --planner ring --nbytes 1KB -o table.json"
    assert run(line.split()) == 0
    assert {"allreduce", "allgather", "broadcast"} <= set(load_plans(tmp_path / "table.json"))
    assert run(["verify", "table.json"]) == 0
    assert run(["run", "table.json:allgather", "--nbytes", "1KB"]) == 0
    assert run(["run", "table.json", "--nbytes", "1KB"]) == 2
    assert "choose one by FILE:COLL" in capsys.readouterr().err
    for wrong in ("-o no/such/x.json", f"--nbytes {'9' * 99}"):
        assert run([*command, *wrong.split()]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)


def test_nothing_found_is_an_answer_with_its_reasons(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert run(["tune", "allreduce", "dgx1v:only=1,4,6", "--planner", "ring", "-o", str(out)]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("effort", ["much", -1, float("nan"), True])
def test_what_an_entry_says_of_its_effort_is_checked(added: Callable[..., None], effort: object) -> None:
    made = stubborn_planners.entry("anything")
    added(odd=Entry(made.where, made.about, replace(made.can, effort=effort)))
    with pytest.raises(Invalid, match=r"planner odd: .*its entry"):
        quick(planners=["odd", "ring"], nccl=False)
    machine = topology("torus:dims=2x2")
    with pytest.raises(AntiphonError, match=r"planner odd: .*its entry"):  # compose reads it likewise
        list(compose(Request(machine, Collective("allgather", 4)), groups="2x2", inside="odd"))
