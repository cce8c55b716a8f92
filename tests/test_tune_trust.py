"""What tuning tells can be trusted: speedups, times at the ends of a range, the latency bound, refusals, losses."""

import json
import random
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import igraph
import numpy as np
import pytest
from entries import multi_ring
from generate import Case, cases
from hypothesis import given

import antiphon
from antiphon.core import loads
from antiphon.core.bounds import bound
from antiphon.core.bounds.latency_seconds import find_slowest_need
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.reshape import degrade, only
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.cost import Profile, predict, prepare
from antiphon.errors import Invalid, NotFound, TimedOut, Unsupported
from antiphon.registry import Entry, PlannerCapabilities, find
from antiphon.select import Tuning, collective, pool, schedule_cache, tune, tuner
from antiphon.select import task as _task
from antiphon.select.libraries import BASELINES, find_baseline, list_stand_ins
from antiphon.select.limits import compare_links
from antiphon.select.schedule_cache import ScheduleCache, fingerprint
from antiphon.select.task import WARM_UP_PLANNERS, Context, Done, Message, Task, run_task
from antiphon.show.words import loss_text
from antiphon.topologies import topology


def quick(kind: str = "allreduce", spec: str = "ring:ranks=4", **options: Any) -> Tuning:
    return tune(kind, topology(spec), **{"nbytes": "1KB:1MB", "workers": "none", **options})


# ---- speedups ----


def ended(*statuses: str, kind: str = "allreduce") -> tuple[list[Task], dict[int, Done]]:
    entry = find("planner", "ring")
    names = [name for group in BASELINES[kind] for name in group]
    tasks = [Task(0, kind), *(Task(i, kind, name, entry) for i, name in enumerate(names, 1))]
    return tasks, {i: Done(i, status, "so it is") for i, status in enumerate(statuses, 1) if status}


def test_no_speedup_where_nccl_had_not_its_say() -> None:
    everyone = {"multi-ring", "double-binary-tree", "ring"}
    assert find_baseline("allreduce", *ended("ok", "ok", "ok"), everyone) == (("multi-ring", "double-binary-tree"), "")
    assert find_baseline("allreduce", *ended("refused", "ok", "ok"), everyone - {"multi-ring"})[0] == (
        "double-binary-tree",
    )
    assert find_baseline("allreduce", *ended("refused", "refused", "ok"), {"ring"}) == (("ring",), "")
    for bad in ("failed", "timed out"):
        able = {"double-binary-tree", "ring"}
        assert find_baseline("allreduce", *ended(bad, "ok", "ok"), able) == ((), f"multi-ring {bad}: so it is")
        assert find_baseline("allreduce", *ended(bad, "refused", "ok"), {"ring"})[0] == ()
        assert find_baseline("allreduce", *ended("ok", "ok", bad), everyone)[1] == ""  # ring is not asked for then
    assert (
        find_baseline("allreduce", *ended("ok", "", "ok"), everyone)[1] == "double-binary-tree was not tried to the end"
    )
    assert (
        "none of direct, pairwise, ring"
        in find_baseline("gather", *ended("refused", "refused", "refused", kind="gather"), ())[1]
    )
    groups = list_stand_ins(topology("ring:ranks=4"), "custom")
    for stand_ins in (groups, None):
        assert find_baseline("custom", [], {}, (), stand_ins)[1] == "nothing stands for NCCL in a custom collective"


def its_own(monkeypatch: pytest.MonkeyPatch, planner: Any, can: PlannerCapabilities) -> Entry:
    """This function as a planner of somebody's."""
    monkeypatch.setitem(sys.modules, "its_planner", types.SimpleNamespace(planner=planner))
    return Entry("its_planner:planner", "somebody's", can)


@pytest.mark.slow
def test_a_speedup_over_what_timed_out_is_not_told(monkeypatch: pytest.MonkeyPatch, added: Callable[..., None]) -> None:
    def slow(request: Request, **options: Any) -> Any:
        if options == {"pieces": 8}:
            raise TimedOut("stopped after 6.5 s")
        return multi_ring(request, **options)

    added(**{"multi-ring": its_own(monkeypatch, slow, find("planner", "multi-ring").can)})
    found = quick(spec="dgx1v", planners=["trees", "double-binary-tree"])
    assert found.baselines == {"allreduce": ()}
    assert found.no_speedup == {"allreduce": "multi-ring pieces=8 timed out: stopped after 6.5 s"}
    assert all(r.speedup is None for r in found.ranges)
    told = found.as_json()
    assert told["no_speedup"] == found.no_speedup
    assert told["notes"] == ["no speedup for allreduce: multi-ring pieces=8 timed out: stopped after 6.5 s"]
    assert quick(spec="dgx1v", planners="ring").no_speedup == found.no_speedup


# ---- the result is one and the same, however it came about ----


@pytest.mark.slow
def test_the_json_does_not_depend_on_the_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tuner.run_tasks

    def told(shuffle: int | None) -> str:
        def late(context: Context, tasks: Any, workers: int, tell: Any, *rest: Any) -> None:
            heard: list[Message] = []
            real(context, tasks, workers, heard.append)
            if shuffle is not None:
                random.Random(shuffle).shuffle(heard)
            for message in heard:
                tell(message)

        monkeypatch.setattr(tuner, "run_tasks", late)
        return json.dumps(quick("all", planners=["ring", "direct"], nbytes="1KB:4KB").as_json())

    assert told(None) == told(1) == told(2)


def test_marks_tell_schedules_apart() -> None:
    plan = antiphon.plan("allreduce", topology("ring:ranks=4")).entries[0].schedule
    assert fingerprint(plan) == fingerprint(plan.take(np.arange(plan.transfers), provenance={"planner": "another"}))
    others = [
        plan.take(np.arange(plan.transfers), pieces=2),
        plan.take(np.arange(plan.transfers), pieces=np.arange(len(plan.chunks)) + 1),
        plan.take(np.arange(plan.transfers)[::-1]),
        plan.take(np.arange(plan.transfers), src=plan.dst, dst=plan.src),
        plan.take(np.arange(plan.transfers), route=np.arange(plan.transfers)),
        antiphon.plan("allreduce", topology("ring:ranks=5")).entries[0].schedule,
    ]
    assert len({fingerprint(one) for one in [plan, *others]}) == 1 + len(others)


@pytest.mark.slow
def test_the_same_rows_in_other_pieces_are_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And cost what they cost when each is looked at alone."""
    verified: list[Schedule] = []
    real = schedule_cache.verify

    def noted(schedule: Schedule, machine: Topology) -> Any:
        verified.append(schedule)
        return real(schedule, machine)

    monkeypatch.setattr(schedule_cache, "verify", noted)
    swept = quick(planners=["ring"], sweep={"pieces": "1:5"}, nccl=False)
    assert len(verified) == 1
    for found in swept.candidates[::2]:
        (alone,) = quick(planners=["ring"], sweep={"pieces": found.options["pieces"]}, nccl=False).candidates
        assert (alone.seconds, alone.figures, alone.why) == (found.seconds, found.figures, found.why)


@pytest.mark.slow
def test_what_was_proved_last_is_not_sent_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    proved: list[int] = []
    sent: list[ScheduleCache] = []
    real, given = pool.as_done, schedule_cache.verify

    def noted(tasks: Any, terms: Any) -> Any:
        sent.append(terms.work.args[1])
        return real(tasks, terms)

    def seen(schedule: Schedule, machine: Topology) -> Any:
        proved.append(schedule.transfers)
        return given(schedule, machine)

    monkeypatch.setattr(pool, "as_done", noted)
    monkeypatch.setattr(schedule_cache, "verify", seen)
    quick(planners=["ring", "sccl"], effort=0.01, workers=1)
    assert proved
    assert [replace(cache, evaluations={}) for cache in sent] == [ScheduleCache()]


@pytest.mark.slow
def test_loads_are_found_once_per_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for them, and also where there are more than are kept of several."""
    asked: list[int] = []
    real = resolve

    def noted(machine: Topology, src: Any, *rest: Any) -> Any:
        asked.append(len(src))
        return real(machine, src, *rest)

    monkeypatch.setattr(loads, "resolve", noted)
    for most in (loads.MAX_CACHED_ENTRIES, 1):
        asked.clear()
        monkeypatch.setattr(loads, "MAX_CACHED_ENTRIES", most)
        found = quick("allgather", planners=["ring"])
        assert 1 < len(asked) <= sum(c.status == "ok" for c in found.candidates)
        asked.clear()
        by_calls = quick("allgather", spec="dgx-a100", planners=["ring"], model="calls")
        assert 1 < len(asked) <= sum(c.status == "ok" for c in by_calls.candidates) + len(WARM_UP_PLANNERS)


def test_the_last_timeline_is_that_of_the_very_schedule_and_machine() -> None:
    machine = topology("ring:ranks=4")
    schedule = antiphon.plan("allreduce", machine).entries[0].schedule
    faster = topology("ring:ranks=4,bandwidth=400GB/s")
    one = loads.timeline(schedule, machine)
    assert loads.timeline(schedule, machine) is one
    assert loads.timeline(schedule, faster).total < one.total
    assert loads.timeline(schedule.take(np.arange(3)), faster).total < loads.timeline(schedule, faster).total
    assert loads.timeline(schedule, machine).total == one.total
    kept = weakref.ref(loads.timeline(schedule, machine))
    assert kept() is not None
    del schedule, one
    assert kept() is None


# ---- the latency bound ----


def farthest(machine: Topology, pairs: Sequence[tuple[Sequence[int], int]]) -> float:
    each = np.array([kind.latency for kind in machine.types])[machine.link_type].tolist()
    links = list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    graph = igraph.Graph(machine.nodes, links, True)
    return max(min(graph.distances(holders, [dst], weights=each, mode="out"))[0] for holders, dst in pairs)


@given(cases())
def test_the_latency_bound_is_the_quickest_way_and_no_model_beats_it(random: Case) -> None:
    needs = needs_of(random.collective)
    found = find_slowest_need(random.topology, needs, bound(random.topology, random.collective).latency_witness)
    if found is None:
        assert not len(needs)
        return
    pairs = [(needs.sets[h], d) for h, d in zip(needs.holders.tolist(), needs.dst.tolist(), strict=True)]
    assert found.seconds == pytest.approx(farthest(random.topology, pairs), rel=1e-9, abs=1e-15)
    for model in ("alpha-beta", "critical-path", "sccl"):
        try:
            ready = prepare(model, random.schedule, random.topology)
        except Unsupported:
            continue
        assert ready(1).seconds >= found.seconds * (1 - 1e-9)


# ---- what the model refuses ----


@pytest.mark.slow
def test_what_the_model_cannot_price_is_refused_in_one_voice() -> None:
    found = quick("allgather", "delta:nodes=2", model="sccl", nbytes="1KB:4KB", planners=["ring", "direct", "bruck"])
    assert not found.plans
    assert {c.status for c in found.candidates} == {"refused"}
    said = [c.reason for c in found.candidates if c.reason.startswith("model sccl cannot price this on delta")]
    assert len(said) > len(found.candidates) / 2
    assert found.unpriced in said
    assert found.unpriced in found.as_json()["notes"]
    with pytest.raises(NotFound, match="model sccl cannot price this on delta"):
        found.plan  # noqa: B018
    assert quick(spec="dgx1v", planners=["ring"], model="sccl").unpriced == ""


def test_one_schedule_that_cannot_be_priced_does_not_end_its_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = topology("full:ranks=4")
    targets = {"allreduce": collective("allreduce", machine)}
    context = Context(machine, targets, "mine", find("model", "alpha-beta"), None, (1, 2), 5.0, 0)
    real = _task.as_cut

    def picky(make: Any, schedule: Any, cuts: Any) -> Any:
        if schedule.pieces == 1:
            raise Unsupported("model mine: no pieces")
        return real(make, schedule, cuts)

    made = antiphon.plan("allreduce", machine).entries[0].schedule
    monkeypatch.setattr(_task, "as_cut", picky)
    variants = [made.take(np.arange(made.transfers), pieces=p) for p in (1, 2, 1, 3)]
    entry = its_own(monkeypatch, lambda request: iter(variants), PlannerCapabilities(("allreduce",)))
    *rows, end = run_task(context, ScheduleCache(), Task(0, "allreduce", "its", entry))
    assert [getattr(row, "variant", None) for row in rows] == [1, 3]
    assert end == Done(0, "refused", f"model mine cannot price this on {machine.name}: no pieces")


# ---- what was lost ----


@pytest.mark.slow
def test_a_slower_link_is_named() -> None:
    whole = topology("dgx1v")
    found = quick(spec="dgx1v", planners=["ring"], against="dgx1v", nbytes="1KB")
    assert found.damage is not None
    assert (found.damage.total, found.damage.describe(), found.notes) == (0, "", [])
    slow = degrade(whole, pairs=[(0, 4)], to="10GB/s")
    found = tune("allreduce", slow, nbytes="1KB", planners=["ring"], workers="none", against=whole)
    (link,) = found.damage.links if found.damage is not None else ()
    assert (link.src, link.dst, link.both_ways, link.after) == (0, 4, True, 10**10)
    assert found.as_json()["lost_links"] == {
        "whole": "dgx1v",
        "total": 1,
        "links": [{"name": "rank 0 and rank 4", "src": 0, "dst": 4, "both_ways": True, "before": 5e10, "after": 1e10}],
    }
    said = "links compared with dgx1v: rank 0 and rank 4: 10 GB/s left of 50 GB/s"
    assert found.notes == [said]
    assert quick(planners=["ring"], nbytes="1KB").as_json()["lost_links"] is None


def test_what_hangs_on_ranks_left_out_is_no_loss() -> None:
    whole = topology("cluster:box=dgx-a100,boxes=2")
    kept = only(whole, [0, 1, 2, 3])
    assert compare_links(whole, kept, frozenset(range(4))).total == 0
    assert compare_links(whole, whole, frozenset(range(16))).total == 0
    link = int(np.flatnonzero(kept.link_src == 2)[0])
    worse = compare_links(whole, degrade(kept, links=[link], slower=2), frozenset(range(4)))
    assert [(x.src, x.before / x.after) for x in worse.links] == [(2, 2)]


def test_shared_limits_are_compared_by_name() -> None:
    kind = LinkType("pcie", Fraction(10**10), 1e-6)
    links = both_ways([(0, 1), (1, 2)], kind)
    before, after = (
        build("m", 3, links, limits=[SharedLimit("bus", (0, 2), Fraction(b)), SharedLimit("nic", (1,), Fraction(5))])
        for b in (8 * 10**9, 10**9)
    )
    (bus,) = compare_links(before, after, frozenset(range(3))).links
    assert (bus.describe(), bus.src) == ("limit bus: 1 GB/s left of 8 GB/s", None)
    assert compare_links(after, before, frozenset(range(3))).total == 0


def test_uneven_counts_are_compared_with_the_same_counts() -> None:
    whole = topology("full:ranks=4")
    weights = np.array([5, 1, 1, 1])
    uneven = Collective("allgather", 4, (), (), weights)
    found = tune(uneven, whole, nbytes="1KB", planners=["ring"], workers="none", against=whole)
    (loss,) = found.losses
    assert loss.all is not None
    assert loss.among is not None
    assert loss.left is not None
    assert loss.all.bytes_per_second == loss.among.bytes_per_second == loss.left.bytes_per_second
    part = Collective("allgather", 4, (0, 1, 2), (), weights[:3])
    (loss,) = tune(part, whole, nbytes="1KB", planners=["ring"], workers="none", against=whole).losses
    assert loss.all is loss.among


def test_an_allocation_is_compared_with_a_larger_one() -> None:
    larger = only(topology("dgx1v"), [0, 1, 2, 3])
    smaller = only(topology("dgx1v"), [0, 1, 2])
    part = Collective("allreduce", 8, (0, 1, 2))
    (loss,) = tune(part, smaller, nbytes="1KB", planners=["ring"], workers="none", against=larger).losses
    assert loss.all is not None
    assert loss.all.bytes_per_second == bound(larger, Collective("allreduce", 8, (0, 1, 2, 3))).bytes_per_second
    assert "all its ranks 75 GB/s" in loss_text(loss)


# ---- how it is called ----


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("nbytes", 1.5), ("nbytes", None), ("nbytes", {}), ("budget", "fast"), ("budget", -1), ("budget", "0s"),
        ("budget", None), ("budget", float("nan")), ("against", "dgx1w"), ("against", 3), ("profile", 3),
        ("profile", "nowhere.json"), ("profile", {}), ("workers", -1), ("workers", 1.5), ("workers", "many"),
        ("workers", True), ("model", None), ("model", "alpha"), ("planners", "rang"), ("planners", [3]),
        ("root", "0"), ("root", 1.5), ("ranks", 3), ("ranks", ["a"]), ("ranks", [0.5, 1]), ("topology", 3),
        ("topology", None), ("topology", "dgx1w"), ("wanted", 3), ("wanted", None), ("wanted", "allreduse"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_invalid_in_one_line(option: str, value: Any) -> None:
    given: dict[str, Any] = {"wanted": "broadcast", "topology": "ring:ranks=4", "nbytes": "1KB", option: value}
    with pytest.raises(Invalid) as caught:
        tune(given.pop("wanted"), given.pop("topology"), **given)
    assert "\n" not in str(caught.value)


def test_predict_refuses_what_is_no_size() -> None:
    plan = antiphon.plan("allreduce", "ring:ranks=3")
    assert predict(plan, np.int64(1024)) == predict(plan, 1024)  # type: ignore[arg-type]
    for wrong in (1.5, None, True, [1.5], {}.keys, "x"):
        with pytest.raises(Invalid):
            predict(plan, wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            antiphon.traces.simulate(plan, wrong)  # type: ignore[arg-type]
    for strange in ({"alpha": 3}, {"alpha": {"nvlink": "x"}}, {"bandwidth_factor": [1]}):
        with pytest.raises(Invalid):
            Profile(**strange)  # type: ignore[arg-type]
    for bad in (3, "nowhere.json", {"alpha": {}}):
        with pytest.raises(Invalid):
            antiphon.predict(plan, 1, profile=bad)


def test_short_words_for_what_was_found() -> None:
    found = quick(spec="dgx1v", nbytes="1KB:4KB", planners=["ring"])
    assert repr(found).startswith("Tuning(allreduce on dgx1v, 1KB to 4KB: ")
    assert repr(found.ranges[0]).startswith("Range(allreduce, 1KB to ")
    assert "speedup" in repr(found.ranges[-1])
    assert repr(found.candidates[0]) == f"Candidate(allreduce by {found.candidates[0].planner}: 4 sizes)"
    assert max(len(repr(x)) for x in (found, *found.ranges, *found.candidates)) < 300
