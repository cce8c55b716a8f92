"""The model `calls`: ours pays what NCCL pays, and speedups are over what NCCL itself would choose."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entries import calls
from published import published
from quick import in_turn

import antiphon
from antiphon.core.reshape import degrade, keep
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology, build, hosts
from antiphon.cost import Profile, predict, usual_model
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.library import library_here
from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import Invalid, Unsupported
from antiphon.select import Tuning, collective, plan, tune
from antiphon.select.prices import ByLibrary
from antiphon.topologies import topology


def seconds(machine: str, planner: str, nbytes: int, model: str = "calls") -> float:
    (row,) = predict(plan("allreduce", machine, planner=planner), nbytes, model=model)
    return float(row["seconds"])


def own(machine: str, nbytes: int, algorithm: str) -> float:
    (row,) = antiphon.predict("allreduce", nbytes, topology=machine, library=f"nccl:algorithm={algorithm}")
    return float(row["seconds"])


@pytest.mark.parametrize("nbytes", in_turn([1000, 10**6, 10**9], 2))
@pytest.mark.parametrize(
    ("machine", "planner"), [("hgx-h100", "ring"), ("dgx-a100", "ring"), ("hgx-h100", "nvls"), ("hgx-b200", "nvls")]
)
def test_ours_pays_what_nccl_pays(machine: str, planner: str, nbytes: int) -> None:
    assert seconds(machine, planner, nbytes) == pytest.approx(own(machine, nbytes, planner), rel=0.01)


@pytest.mark.slow
def test_between_nodes_rings_do_not_wait_for_the_slowest_hop_at_every_step() -> None:
    machine = "cluster:box=hgx-h100,boxes=2"
    barriers, path = seconds(machine, "ring", 1000), seconds(machine, "ring", 1000, "calls:by=critical-path")
    assert own(machine, 1000, "ring") * 0.9 < path < barriers


def test_all_to_all_twice_is_what_msccl_took_for_it() -> None:
    (table,) = [one for one in published() if one.name == "a100-ndv4-msccl"]
    measured = {row[0]: row[3] * 1e-6 for row in table.rows if 1024 <= row[0] <= 2**18}  # in place: by allpairs
    off = [seconds("dgx-a100", "colocated-ps", nbytes) / took - 1 for nbytes, took in measured.items()]
    assert len(off) == 9
    assert max(map(abs, off)) < 0.4
    assert abs(sorted(off)[len(off) // 2]) < 0.15


@pytest.mark.slow
def test_several_messages_at_once_to_other_nodes_take_longer_than_one() -> None:
    (all_at_once,) = predict(plan("allreduce", "cluster:box=hgx-h100,boxes=2", planner="direct"), 8, model="calls")
    assert all_at_once["terms"]["messages"] == pytest.approx(7 * 5e-6)  # to the eight of the other box
    assert "several messages at once not calibrated" in all_at_once["note"]
    (one,) = predict(plan("allreduce", "cluster:box=hgx-h100,boxes=2", planner="ring"), 8, model="calls")
    assert one["terms"]["messages"] == 0
    assert predict(plan("allreduce", "hgx-h100", planner="direct"), 8, model="calls")[0]["terms"]["messages"] == 0


def at_once(schedule: Schedule, node: Sequence[int]) -> tuple[float, float]:
    """Messages and copies beyond the first, summed over the steps: one row after the other."""
    far, near = defaultdict(set), defaultdict(set)
    columns = (schedule.step, schedule.src, schedule.dst, schedule.chunk)
    for step, src, dst, chunk in zip(*(column.tolist() for column in columns), strict=True):
        if node[src] != node[dst]:
            far["out", step, src].add(dst)
            far["in", step, dst].add(src)
        else:
            near["out", step, src, chunk].add(dst)
            near["in", step, dst, chunk].add(src)
    most: dict[Any, int] = defaultdict(int)
    for found in (far, near):
        for (side, step, *_), others in found.items():
            most[found is far, side, step] = max(most[found is far, side, step], len(others) - 1)
    steps = range(schedule.steps)
    out, in_ = (sum(most[True, side, step] for step in steps) for side in ("out", "in"))
    fan = sum(max(most[False, side, step] for side in ("out", "in")) for step in steps)
    passes = (schedule.steps + schedule.pieces - 1) / schedule.steps
    return max(out, in_) * passes, fan * passes


@pytest.mark.parametrize("planner", ["direct", "pairwise", "kring", "halving-doubling", "parameter-server"])
def test_what_goes_at_once_is_what_rows_say_one_by_one(planner: str) -> None:
    machine = topology("cluster:box=hgx-h100,boxes=2")
    made = plan("reducescatter", machine, planner=planner).entries[0].schedule
    some = np.random.default_rng(5).permutation(made.transfers)
    messages, fan = at_once(made, hosts(machine))
    for schedule in (made, made.take(some), made.take(np.repeat(some, 2))):
        terms = calls(schedule, machine)(8).terms
        assert terms["messages"] == pytest.approx(messages * 5e-6)
        assert terms["fan"] == pytest.approx(fan * shipped_calls()["h100"].message)


@pytest.mark.parametrize(
    ("machine", "options", "said"),
    [
        ("ring:ranks=4", {"model": "calls"}, "no figures are known of its GPUs"),
        ("hgx-h100", {"model": "calls", "profile": "genmodel-table5"}, "figures of its own"),
        ("hgx-h100", {"model": "calls:by=flows"}, "alpha-beta or critical-path"),
        ("hgx-h100", {"model": "calls:gpu=z"}, "figures are known of"),
    ],
)
def test_what_is_refused(machine: str, options: dict[str, str], said: str) -> None:
    with pytest.raises((Invalid, Unsupported), match=said):
        predict(plan("allreduce", machine, planner="ring"), 8, **options)


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    return tune(
        "allreduce", "hgx-h100", nbytes="1KB:1GB:1000", model="calls", workers="none", planners=("direct", "nvls")
    )


def test_a_speedup_is_over_what_nccl_would_choose(tuned: Tuning) -> None:
    for r in tuned.ranges:
        (row,) = antiphon.predict("allreduce", r.at, topology="hgx-h100", library="nccl")
        assert r.over == f"{row['algorithm']} {row['protocol']}"
        assert r.speedup == pytest.approx(row["seconds"] / r.seconds)
        assert r.seconds > 5e-6  # never what the wire alone would allow
    assert (tuned.ranges[0].speedup or 0) < 4
    assert tuned.ranges[-1].speedup == pytest.approx(1, abs=0.02)


def test_every_line_says_what_it_rests_on(tuned: Tuning) -> None:
    told = tuned.as_json()["ranges"]
    more = "; several messages at once not calibrated"
    assert {row["planner"]: row["rests_on"] for row in told} == {
        "direct": "calibrated by h100" + more, "nvls": "calibrated by h100",
    }  # fmt: skip
    assert [row["over"] for row in told] == [r.over for r in tuned.ranges]
    assert antiphon.pages.report(tuned).count("calibrated by h100") >= len(told)
    plain = tune("allreduce", "hgx-h100", nbytes="1KB", workers="none", planners="direct")
    assert [row["rests_on"] for row in plain.as_json()["ranges"]] == ["not calibrated"]
    assert repr(plain.ranges[0]).endswith(", not calibrated)")
    assert "over" not in plain.as_json()["ranges"][0]


@pytest.mark.slow
def test_another_generation_and_another_collective_say_so() -> None:
    new = tune("allreduce", "hgx-b200", nbytes="1KB", model="calls", workers="none", planners="direct")
    assert new.ranges[0].rests_on == "b200 not calibrated; several messages at once not calibrated"
    each = tune("alltoall", "dgx-a100", nbytes="1KB", model="calls", workers="none", planners="pairwise")
    assert each.ranges[0].rests_on == "calibrated by a100; sends not calibrated"


@pytest.mark.slow
def test_among_some_ranks_nccl_is_that_of_the_machine_they_make_up() -> None:
    some = tune("allreduce", "hgx-h100", nbytes="1KB", model="calls", workers="none", planners="ring", ranks=[0, 1])
    assert some.library is not None
    assert some.library.layout.ranks == 2
    assert (some.ranges[0].rests_on, some.ranges[0].speedup) == ("calibrated by h100", pytest.approx(1, abs=0.02))
    odd = tune(  # two of one node, one of another: no model of NCCL is calibrated there
        "allreduce", "cluster:box=hgx-h100,boxes=2", nbytes="1KB", model="calls", workers="none", planners="ring",
        ranks=[0, 1, 8],
    )  # fmt: skip
    assert odd.library is None
    more = "; share ll of ib not calibrated; what NCCL would do here not calibrated"
    assert odd.ranges[0].rests_on == f"calibrated by h100, ib{more}"


@pytest.mark.parametrize(
    ("machine", "more", "model"),
    in_turn(
        [
            ("hgx-h100", {}, "calls"),
            ("hgx-h100", {"model": "alpha-beta"}, "alpha-beta"),
            ("hgx-h100", {"ranks": [0, 1]}, "calls"),
            ("hgx-h100", {"profile": Profile(alpha={"nvlink": 1e-6})}, "alpha-beta"),
            ("cluster:box=mi300x,boxes=2", {}, "calls"),
            ("mi250", {}, "alpha-beta"),
            ("ring:ranks=4", {}, "alpha-beta"),
            ("cluster:box=hgx-h100,boxes=2", {"ranks": [0, 1, 8]}, "alpha-beta"),
        ],
        6,
    ),
)
def test_the_model_where_none_is_asked_for(machine: str, more: dict[str, Any], model: str) -> None:
    assert (
        antiphon.tune(
            "allreduce", machine, nbytes="1KB", planners="ring", search=antiphon.Search(workers="none"), **more
        ).model
        == model
    )


# ---- every figure says what it rests on ----


@pytest.mark.parametrize(
    ("machine", "profile", "models", "told"),
    [
        ("hgx-h100", None, ("calls", "calls:by=critical-path"), "calibrated by h100"),
        ("dgx-a100", None, ("calls", "calls:by=critical-path"), "calibrated by a100"),
        pytest.param(
            "cluster:box=mi300x,boxes=2",
            None,
            ("calls", "calls:by=critical-path"),
            "calibrated by mi300x, roce",
            marks=pytest.mark.slow,
        ),
        ("hgx-b200", None, ("calls", "calls:by=critical-path"), "b200 not calibrated"),
        ("hgx-h100", Profile(alpha={"nvlink": 1e-6}), ("alpha-beta", "critical-path"), "profile (unnamed)"),
        ("ring:ranks=4", None, ("alpha-beta", "critical-path"), "not calibrated"),
    ],
)
def test_a_plan_is_priced_by_the_figures_of_its_machine(
    machine: str, profile: Profile | None, models: tuple[str, str], told: str
) -> None:
    plan = antiphon.plan("allgather", machine, planner="ring")
    (priced,) = antiphon.predict(plan, "1MB", profile=profile)
    (followed,) = antiphon.traces.simulate(plan, "1MB", profile=profile)
    assert (priced["model"], followed["model"]) == models
    assert [row["rests_on"].partition("; share")[0] for row in (priced, followed)] == [told, told]
    assert followed["seconds"] <= priced["seconds"] * 1.0001


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "ranks", "model"),
    [
        ("cluster:box=hgx-h100,boxes=2", [0, 1, 8], "alpha-beta"),
        *((machine, ranks, "calls") for machine, ranks in (("dgx1v", [0, 5]), ("dgx1v", [0, 1]), ("hgx-h100", [2, 5]))),
    ],
)
def test_a_plan_for_some_ranks_is_priced_as_it_was_tuned(machine: str, ranks: list[int], model: str) -> None:
    found = tune("allreduce", machine, nbytes="1MB", model="", ranks=ranks, workers="none", planners=("ring", "relay"))
    (row,) = antiphon.predict(found.plan, "1MB")
    assert found.model == row["model"] == model
    assert row["seconds"] == pytest.approx(found.ranges[0].seconds)
    assert antiphon.traces.simulate(found.plan, "1MB")[0]["model"].startswith("calls") == (model == "calls")


@pytest.mark.parametrize("model", ["calls", "lowering:kind=kernel"])
def test_the_bottleneck_names_the_greatest_term_also_one_that_the_call_adds(model: str) -> None:
    plan = antiphon.plan("allreduce", "dgx1v", planner="ring")
    greatest_terms = set()
    for row in antiphon.predict(plan, "1KB:1GB", model=model):
        greatest = max(row["terms"], key=row["terms"].__getitem__)
        greatest_terms.add(greatest)
        names = {"latency": "latency of 14 steps", "bandwidth": "link ", "steps": "14 steps by kernel"}
        assert row["bottleneck"].startswith(names.get(greatest, f"{greatest}: "))
    assert ("ramp" in greatest_terms) == (model == "calls")


def test_a_trace_begins_after_the_launch(tmp_path: Path) -> None:
    plan = antiphon.plan("allgather", "hgx-h100", planner="ring")
    (row,) = antiphon.traces.simulate(plan, "1MB", trace=tmp_path / "trace.json")
    events = [one for one in json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"] if one["ph"] == "X"]
    assert row["rests_on"] == "calibrated by h100"
    assert min(one["ts"] for one in events) == pytest.approx(
        (row["terms"]["launch"] + row["terms"]["ramp"]) * 1e6, abs=1e-3
    )
    assert max(one["ts"] + one["dur"] for one in events) == pytest.approx(row["seconds"] * 1e6, abs=1e-3)


@pytest.mark.slow
def test_a_trace_of_what_switches_reduce_is_by_another_model_and_the_figure_is_not(tmp_path: Path) -> None:
    plan = antiphon.plan("allreduce", "hgx-h100", planner="nvls")
    (alone,) = antiphon.traces.simulate(plan, "1MB")
    (row,) = antiphon.traces.simulate(plan, "1MB", trace=tmp_path / "trace.json")
    assert alone["rests_on"] == "calibrated by h100"
    told = "; the trace is by model critical-path, not calibrated, and takes times of its own"
    assert row == {**alone, "note": alone["note"] + told}
    assert "model critical-path" in (tmp_path / "trace.json").read_text()


# ---- machines that are not all alike: nodes that differ, networks cut in two, switches of no host ----

UNEVEN = keep(topology("cluster:box=hgx-h100,boxes=2"), range(12)).topology  # 8 ranks and 4


def test_links_that_only_the_rest_of_the_machine_has_are_named() -> None:
    """Rank 2 is of a node of its own, on links of which nothing is known; the group sends by way of it."""
    near, far = LinkType("nvlink", 450 * 10**9, 1e-6), LinkType("ethernet", 10**9, 1e-5)
    links = [(a, b, near) for a, b in ((0, 3), (3, 0), (1, 3), (3, 1))]
    links += [(a, b, far) for a, b in ((0, 2), (2, 0), (1, 2), (2, 1))]
    places = ["host0/gpu0", "host0/gpu1", "host1/gpu0", "host0/switch"]
    machine = build("hgx-h100", 3, links, switches=1, places=places)
    plan = antiphon.plan("broadcast", machine, planner="ring", ranks=[0, 1])
    (row,) = antiphon.predict(plan, "1MB", model="calls")
    assert row["rests_on"].startswith("calibrated by h100")
    assert "links of kind" not in row["rests_on"]
    entry = plan.entries[0]
    shape = entry.schedule.columns()
    assert len(shape["src"])
    by_host = replace(
        entry.schedule, step=np.array([0, 1]), chunk=np.zeros(2, np.int64), src=np.array([0, 2]), dst=np.array([2, 1]),
        op=np.zeros(2, np.int64), route=np.full(2, -1), pieces=1,
    )  # fmt: skip
    other = replace(plan, entries=(replace(entry, schedule=by_host),))
    assert "links of kind ethernet not calibrated" in antiphon.predict(other, "1MB", model="calls")[0]["rests_on"]


# ---- what is cut in two ----


def _cut() -> Topology:
    whole = topology("cluster:box=hgx-h100,boxes=8,fabric=leaf-spine")
    trunk = next(i for i, kind in enumerate(whole.types) if kind.kind == "trunk")
    leaf = int(whole.link_src[np.flatnonzero(whole.link_type == trunk)[0]])
    ends = (whole.link_src == leaf) | (whole.link_dst == leaf)
    return degrade(whole, links=np.flatnonzero((whole.link_type == trunk) & ends).tolist(), remove=True)


@pytest.mark.slow
def test_a_network_cut_in_two_is_refused() -> None:
    machine = _cut()
    with pytest.raises(Unsupported, match=r"no link leads out of \S*host\S* and \d nodes with it"):
        antiphon.predict("allreduce", "1MB", topology=machine, library="nccl")
    assert usual_model(machine, wanted=[collective("allreduce", machine)]) == "alpha-beta"
    price = ByLibrary(machine)
    every, near = ProcessGroup("0", machine.ranks, tuple(range(machine.ranks))), ProcessGroup("1", 16, tuple(range(16)))
    assert price.price("allreduce", 10**6, 0, every) is None
    assert price.price("allreduce", 10**6, 0, near) is not None  # on one leaf


def test_one_way_out_is_not_enough() -> None:
    two = topology("cluster:box=hgx-h100,boxes=2")
    kind = next(i for i, one in enumerate(two.types) if one.kind == "ib")
    into = np.flatnonzero((two.link_type == kind) & (two.link_src >= two.ranks) & (two.link_dst < 8)).tolist()
    assert into
    machine = degrade(two, links=into, remove=True)
    with pytest.raises(Unsupported, match="no link leads out of"):
        library_here(machine)


# ---- a switch that is below no host ----


def _box(switch: str) -> Topology:
    """Eight GPUs, whose places tell their host, on one switch."""
    kind = LinkType("nvlink", 450 * 10**9, 1e-6)
    links = [(a, b, kind) for rank in range(8) for a, b in ((rank, 8), (8, rank))]
    return build("hgx-h100", 8, links, switches=1, places=[*(f"host0/gpu{i}" for i in range(8)), switch])


def test_the_switch_of_a_single_host_is_within_it_wherever_its_place_is() -> None:
    rows = []
    for switch in ("nvswitch", "host0/nvswitch"):
        machine = _box(switch)
        (row,) = antiphon.predict(antiphon.plan("allreduce", machine, planner="ring"), "1GB")
        rows.append(
            (row["seconds"], row["rests_on"], antiphon.predict("allreduce", "1GB", topology=machine, library="nccl"))
        )
    assert rows[0] == rows[1]
    assert rows[0][0] > 1.2 * 2 * 7 / 8 * 1e9 / 450e9  # not all of the wire


def test_what_has_no_link_within_its_node_is_refused_before_anything_is_planned() -> None:
    """Two hosts of two GPUs, which meet in the network alone: model, library and the usual model say the same."""
    kind = LinkType("ib", 50 * 10**9, 1e-6)
    links = [(a, b, kind) for rank in range(4) for a, b in ((rank, 4), (4, rank))]
    places = [*(f"host{rank // 2}/gpu{rank}" for rank in range(4)), "leaf"]
    machine = build("cluster:box=hgx-h100,boxes=2", 4, links, switches=1, places=places)
    with pytest.raises(Unsupported, match="no link to others of its node"):
        library_here(machine, gpu="h100")
    plan = antiphon.plan("allreduce", machine, planner="ring")
    with pytest.raises(Unsupported, match="no link to others of its node"):
        antiphon.predict(plan, "1MB", model="calls:gpu=h100")
    assert antiphon.predict(plan, "1MB")[0]["model"] == "alpha-beta"
    found = antiphon.tune("allreduce", machine, nbytes="1KB", planners="ring", search=antiphon.Search(workers="none"))
    assert found.model == "alpha-beta"
