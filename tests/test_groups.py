"""Several groups at the same time: how they are named, stored, bounded and planned."""

from __future__ import annotations

import itertools
import json
import random
import runpy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from _forest import least_time
from commands import answer, complaint
from quick import in_turn

import antiphon
from antiphon import cli
from antiphon.core.bounds import JointDual, bound, recheck, witness_of
from antiphon.core.bounds.joint import JointProgram
from antiphon.core.collective import Collective, custom_relation, joint
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request
from antiphon.core.schedule import Chunks
from antiphon.core.serialize import dumps, loads
from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.core.transform import round_borders, run_together, split_groups
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.registry import find as find_planner
from antiphon.runtimes.serve.book import make_book

CHECKER = Path(antiphon.__file__).parent / "certificates" / "check_certificate.py"


# ---- names ----

NAMES = [
    ("allreduce@every=2", "ring:ranks=4", None, [(0, 2), (1, 3)]),
    ("allreduce@0,1;3-5", "ring:ranks=6", None, [(0, 1), (3, 4, 5)]),
    ("allgather@rows", "mesh:dims=2x3", None, [(0, 1, 2), (3, 4, 5)]),
    ("allgather@columns", "mesh:dims=2x3", None, [(0, 3), (1, 4), (2, 5)]),
    ("allgather@rows", "cluster:box=dgx1v,boxes=2", None, [tuple(range(8)), tuple(range(8, 16))]),
    ("allreduce@b", "ring:ranks=8", "a=2,b=2,c=2", [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ("allreduce@a,c", "ring:ranks=8", {"a": 2, "b": 2, "c": 2}, [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ("allreduce@a + alltoall@b", "ring:ranks=4", "a=2,b=2", [(0, 2), (1, 3), (0, 1), (2, 3)]),
]


@pytest.mark.parametrize(("spec", "machine", "mesh", "groups"), NAMES)
def test_names_of_groups(spec: str, machine: str, mesh: object, groups: list[tuple[int, ...]]) -> None:
    target = antiphon.collective(spec, machine, mesh=mesh)
    assert [group.members for group in target.groups] == groups
    assert target.members == tuple(sorted({rank for group in groups for rank in group}))


@pytest.mark.parametrize(
    ("spec", "mesh", "message"),
    [
        ("allreduce@0-3;3-7", None, "rank 3 is in group 0 and in group 1"),
        ("allreduce@0-3;4-9", None, "rank 8 is not there; ring:ranks=8 has ranks 0 to 7"),
        ("allreduce@0-3;4", None, "group 1 has only rank 4"),
        ("allreduce@every=5", None, "group 3 has only rank 3"),
        ("allreduce@every=0", None, "stride from 1"),
        ("allreduce@rows", None, "ring:ranks=8 has one row"),
        ("allreduce@data", None, "a dimension of --mesh"),
        ("allreduce@data", "data=3,tensor=2", "3*2 = 6, but there are 8 ranks"),
        ("allreduce@date", "data=4,tensor=2", "did you mean 'data'"),
        ("allreduce@data,data", "data=4,tensor=2", "twice"),
        ("allreduce@data", "data=4,tensor=x", "dimensions with their sizes"),
        ("allreduce", "data=4,tensor=2", "names no dimension"),
        ("allreduce@0-3 + ", None, "COLL@GROUPS"),
        ("allreduce+allgather@rows", None, "COLL@GROUPS"),
        ("0*allreduce@0-3", None, "at least 1"),
        ("broadcasts@0-3", None, "did you mean 'broadcast'"),
    ],
)
def test_errors_of_names(spec: str, mesh: str | None, message: str) -> None:
    with pytest.raises(Invalid, match=message.replace("*", r"\*").replace("+", r"\+")):
        antiphon.collective(spec, "ring:ranks=8", mesh=mesh)


def test_options_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["ring:ranks=4", "--mesh", "data=2,tensor=2"]
    both = answer(capsys, "bound", "allreduce", *options, "--along", "data+tensor")
    assert both == answer(capsys, "bound", "allreduce@data + allreduce@tensor", *options)
    along = answer(capsys, "bound", "allreduce", *options, "--along", "data")
    assert along == answer(capsys, "bound", "allreduce", "ring:ranks=4", "--groups", "every=2")


# ---- storage ----


def test_sizes_and_files() -> None:
    target = antiphon.collective("allreduce@a + 3*alltoall@b", "ring:ranks=6", mesh="a=3,b=2")
    assert target.title == "2 x allreduce of 3 + 3 x alltoall of 2"
    assert target.group_sizes == [1, 1, 3, 3, 3]
    # nbytes is the buffer of the largest group; the others have a third of that
    assert target.weights.tolist() == [2, 2] + [3] * 12
    assert target.buffer_weight == 6
    again = loads(dumps(target))
    assert again == target
    assert isinstance(again, Collective)
    assert again.groups == target.groups
    assert again.group_sizes == target.group_sizes


def test_a_group_whose_rank_has_no_links_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer(capsys, "topology", "degrade", "mesh:dims=2x2", "--drop", "ranks=0", "-o", "broken.json")
    for command in ("plan", "bound"):
        assert "rank 0 cannot be reached" in complaint(capsys, command, "allreduce@rows", "broken.json")


def test_groups_of_all_collectives_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "tune", "all", "ring:ranks=4", "--groups", "0-1;2-3")
    assert "--groups: takes one collective, such as allreduce, not all" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": []}, "at least one group"),
        ({"kind": "allreduce"}, "groups"),
        ({"blocks": []}, "groups"),
        ({"members": [0, 1]}, "members"),
        ({"groups": [{"kind": "allreduce", "members": [0, 9]}]}, r"groups\[0\].*out of range"),
        ({"groups": [{"kind": "custom", "members": [0, 1]}]}, r"groups\[0\]"),
        ({"groups": [{"kind": "allreduce", "members": [0, 1], "size": 0}]}, "sizes"),
        ({"groups": [{"kind": "allreduce", "members": [0, 1], "weights": [0]}]}, "empty"),
    ],
)
def test_wrong_files(change: dict[str, object], message: str) -> None:
    body = json.loads(dumps(joint([Collective("allreduce", 4, (0, 1)), Collective("gather", 4, (2, 3))])))
    with pytest.raises(AntiphonError, match=message):
        loads(json.dumps({**body, **change}).encode())


# ---- bounds and plans ----

PLANS = [  # collective, machine, mesh, bytes per second of nbytes at the bound, greatest gap of the plan
    ("allreduce@every=8", "cluster:box=dgx-a100,boxes=2", None, 25 * 10**9, 1.0),
    ("allreduce@every=2", "ring:ranks=4", None, 25 * 10**9, 1.01),
    pytest.param("allreduce@rows + allreduce@columns", "mesh:dims=2x3", None, None, 1.1, marks=pytest.mark.slow),
    pytest.param(  # links between the groups help: a joint dual
        "allreduce@0-2;3-5", "full:ranks=6", None, 75 * 10**9, 1.1, marks=pytest.mark.slow
    ),
    ("allgather@a + alltoall@b", "full:ranks=6", "a=2,b=3", None, 1.1),
    ("reducescatter@a + broadcast@b", "ring:ranks=6", "a=3,b=2", None, 1.1),
    ("alltoall@0,1;3,5", "ring:ranks=6", None, None, 1.1),  # ranks 2 and 4 relay
    ("broadcast@0-3;4,5", "full:ranks=7", None, 125 * 10**9, 1.1),  # relays; one-way links between some receivers
]


@pytest.mark.parametrize(("spec", "machine", "mesh", "rate", "gap"), in_turn(PLANS, 2))
def test_joint_plan_is_near_the_joint_bound(
    spec: str, machine: str, mesh: str | None, rate: int | None, gap: float
) -> None:
    target = antiphon.collective(spec, machine, mesh=mesh)
    best = antiphon.plan(target, machine, planner="groups", options={"pieces": 256})
    limits = bound(best.topology, target)
    assert rate in (None, limits.bytes_per_second)
    assert antiphon.verify(best, proof=True)
    assert best.entries[0].claims["bandwidth_gap"] <= gap
    (row,) = antiphon.run(best, "60KB", dtype="int32")
    assert row["correct"]


@pytest.mark.slow
def test_unequal_groups_share_links_at_a_size() -> None:
    """Alone, the larger pairs are as slow as their own cards; shared, they use what the smaller ones leave."""
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=2")
    sizes = [12_345_678, 9_999_999] * 4
    target = joint([Collective("allreduce", 16, (i, i + 8)) for i in range(8)], sizes)
    best = antiphon.plan(target, machine, planner="groups", nbytes=max(sizes))
    assert best.entries[0].schedule.provenance["found"]["links"] == "shared"
    (row,) = antiphon.predict(best, max(sizes), model="alpha-beta")
    assert row["seconds"] < 0.95 * max(sizes) / 25e9


def test_boxes_apart_need_no_linear_program(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=4")
    target = antiphon.collective("allreduce@rows", machine)

    def refuse(*_: object) -> None:
        raise AssertionError("a program was built")

    monkeypatch.setattr(JointProgram, "solve", refuse)
    limits = bound(machine, target)
    assert limits.tight
    recheck(machine, target, limits)
    box = antiphon.topology(machine.name, only=range(8))
    alone = bound(box, antiphon.collective("allreduce", box, ranks=range(8)))
    assert limits.bytes_per_second == alone.bytes_per_second
    with pytest.raises(AssertionError, match="a program was built"):  # columns help the rows
        bound(antiphon.topology("torus:dims=3x4"), antiphon.collective("allreduce@rows", "torus:dims=3x4"))


@pytest.mark.slow
def test_groups_too_large_for_a_linear_program_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.core.bounds.joint.MOST_VARIABLES", 10)
    target = antiphon.collective("allreduce@rows + allgather@columns", "torus:dims=3x3")
    assert "too large for a linear program" in bound(antiphon.topology("torus:dims=3x3"), target).note
    messages: list[str] = []
    machine = antiphon.topology("torus:dims=3x3")
    assert list(find_planner("planner", "groups").load()(Request(machine, target, tell=messages.append)))
    assert [text for text in messages if text.startswith("links=shared") and "too many for one linear program" in text]


def test_planner_groups_refuses_a_single_collective() -> None:
    single = Collective("custom", 2, custom=custom_relation([(0, 0, 0)], [(0, 1, None)], 2))
    with pytest.raises(Unsupported, match="allreduce@rows"):
        antiphon.plan(single, "ring:ranks=2", planner="groups")
    with pytest.raises(Invalid, match="compose composes itself"):
        antiphon.plan("allreduce@0,1", "ring:ranks=2", planner="groups", options={"inside": "compose"})


def test_a_wrong_joint_witness_is_refused() -> None:
    machine = antiphon.topology("full:ranks=6")
    target = antiphon.collective("allreduce@0-2;3-5", machine)
    limits = bound(machine, target)
    witness = limits.witness
    assert isinstance(witness, JointDual)
    assert witness_of(json.loads(json.dumps(witness.as_json()))) == witness
    recheck(machine, target, limits)
    first = witness.groups[0]
    doubled = replace(first, partitions=tuple((part, 2 * times) for part, times in first.partitions))
    for wrong in (
        replace(witness, groups=(doubled, *witness.groups[1:])),
        replace(witness, groups=witness.groups[:1]),
        replace(witness, prices=witness.prices[1:]),
    ):
        with pytest.raises(Invalid):
            recheck(machine, target, replace(limits, witness=wrong))


def test_certificates_of_groups(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bounds.json"
    machine = ["mesh:dims=2x3", "--certificate", str(file)]
    answer(capsys, "bound", "alltoall@0-2;3-5 + allgather@rows", *machine)
    assert runpy.run_path(str(CHECKER))["main"](file) == 0
    capsys.readouterr()
    answer(capsys, "verify", str(file))
    answer(capsys, "plan", "alltoall@0-2;3-5", "mesh:dims=2x3", "-o", str(tmp_path / "plan.json"))
    assert cli.run(["verify", str(tmp_path / "plan.json")]) == 0
    assert capsys.readouterr().out.startswith("right: 2 x alltoall of 3 on mesh:dims=2x3, 1 schedule by groups:")
    assert "partitions" in complaint(capsys, "bound", "allreduce@0-2;3-5", "full:ranks=6", "--certificate", str(file))


# ---- each group by its own plan ----


@pytest.mark.parametrize("links", ["alone", "shared"])
def test_a_joint_plan_is_a_plan_for_each_group(links: str) -> None:
    machine = antiphon.topology("mesh:dims=2x3")
    target = antiphon.collective("allreduce@rows + 2*alltoall@columns", machine)
    whole = antiphon.plan(target, machine, planner="groups", options={"links": links, "pieces": 4}).entries[0].schedule
    own = split_groups(whole)
    assert [schedule.collective for schedule in own] == list(target.groups)
    assert sum(schedule.transfers for schedule in own) == whole.transfers
    assert all(verify(schedule, machine).ok for schedule in own)
    assert verify(run_together(own), machine).ok


def test_shares_without_a_common_denominator_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = antiphon.topology("mesh:dims=2x2")
    target = antiphon.collective("alltoall@rows + broadcast@0,3", machine)
    options = {"links": "shared", "inside": "relay", "pieces": 1}
    exact = antiphon.plan(target, machine, options=options)
    monkeypatch.setattr("antiphon.planners.compose.groups.MAX_DENOMINATOR", 1)
    monkeypatch.setattr("antiphon.planners.compose.groups.round_borders", lambda each: round_borders(each, 1001))
    rounded = antiphon.plan(target, machine, options=options)
    denominators = [plan.entries[0].schedule.chunks.denominator for plan in (exact, rounded)]
    gaps = [plan.entries[0].claims["bandwidth_gap"] for plan in (exact, rounded)]
    assert denominators == [2, 1001]
    assert gaps[1] == pytest.approx(gaps[0], rel=2e-3)


@pytest.mark.parametrize(("share", "fits"), [(1, False), (2**30, True)])
def test_plans_apart_are_priced_with_rounded_shares(share: int, fits: bool) -> None:
    machine = antiphon.topology("full:ranks=2")
    whole = antiphon.plan("broadcast", machine, planner="direct").entries[0].schedule
    primes = (2**31 - 1, 2**31 + 11, 2**31 - 19)  # denominators whose product exceeds 64 bits
    parts = [
        whole.take(np.array([0, 0]), chunk=[0, 1], chunks=Chunks([0, 0], [0, share], [share, prime - share], prime))
        for prime in primes
    ]
    if fits:
        assert verify(run_together(parts), machine).ok
    else:  # the first part would be empty
        with pytest.raises(Unsupported, match="cannot be rounded"):
            run_together(parts)


def test_pages_of_groups_begin_and_end_at_the_sizes_of_their_buffers() -> None:
    machine = antiphon.topology("mesh:dims=2x2")
    target = antiphon.collective("allreduce@rows + 4*allgather@columns", machine)
    schedules = [antiphon.plan(target, machine, options={"pieces": n}).entries[0].schedule for n in (1, 2)]
    entries = (Entry(0, 1001, schedules[0], {"planner": "a"}), Entry(1001, None, schedules[1], {"planner": "b"}))
    pages = make_book([Plan(machine, target, entries)]).pages
    assert {(page.kind, page.members) for page in pages} == {(g.kind, g.members) for g in target.groups}
    spans = {(page.kind, page.planner): (page.start, page.stop) for page in pages}
    assert spans == {
        ("allreduce", "a"): (0, 251), ("allreduce", "b"): (251, None),
        ("allgather", "a"): (0, 1001), ("allgather", "b"): (1001, None),
    }  # fmt: skip


def test_a_group_that_needs_others_to_relay_has_no_page() -> None:
    plan = antiphon.plan(antiphon.collective("allreduce@every=2", "ring:ranks=4"), "ring:ranks=4")
    book = make_book([plan])
    assert book.pages == ()
    assert "which is not in the group, would have to help; plan with option links=alone" in book.omissions[0]


# ---- bounds against a linear program over all trees ----


def random_machine(rng: random.Random) -> Topology:
    """Return a strongly connected machine of 3 to 5 ranks with random links, sometimes with a shared limit."""
    ranks = rng.randint(3, 5)
    order = rng.sample(range(ranks), ranks)
    ends = {(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True)}
    ends |= {pair for pair in itertools.permutations(range(ranks), 2) if rng.random() < 0.35}
    links = [(a, b, LinkType(f"l{w}", w * 10**9)) for a, b in sorted(ends) for w in [rng.randint(1, 4)]]
    limits = []
    if rng.random() < 0.4:
        own = tuple(i for i, (a, _, _) in enumerate(links) if a == order[0])
        limits.append(SharedLimit("out", own, Fraction(rng.randint(1, 4) * 10**9)))
    return build("random", ranks, links, limits=limits)


def random_groups(rng: random.Random, ranks: int) -> Collective:
    groups = []
    for _ in range(rng.randint(2, 3)):
        kind = rng.choice(["allreduce", "allgather", "alltoall", "broadcast", "reduce", "reducescatter", "scatter"])
        groups.append(Collective(kind, ranks, tuple(rng.sample(range(ranks), rng.randint(2, ranks)))))
    return joint(groups, [rng.randint(1, 2) for _ in groups])


def check_random_bounds(seeds: range) -> list[float]:
    """Check that bounds are at most the time of a schedule that exists; return how close they are."""
    ratios = []
    for seed in seeds:
        rng = random.Random(seed)
        machine = random_machine(rng)
        target = random_groups(rng, machine.ranks)
        limits = bound(machine, target)
        proved = float(target.buffer_weight / limits.bytes_per_second) if limits.bytes_per_second else 0.0
        exists = least_time(machine, target, proved)
        assert exists is not None
        assert proved <= exists * (1 + 1e-7), (seed, machine, target.title)
        ratios.append(proved / exists)
    return ratios


def test_joint_bounds_against_all_trees() -> None:
    assert np.median(check_random_bounds(range(10))) > 0.95


@pytest.mark.slow
def test_joint_bounds_against_all_trees_500() -> None:
    ratios = check_random_bounds(range(100, 600))
    assert np.median(ratios) > 0.99
    assert np.mean([ratio > 1 - 1e-6 for ratio in ratios]) > 0.6
