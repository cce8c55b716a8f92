"""Switches that can multicast or reduce: machines say so and keep it, and bounds say what they assume."""

import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture, answer, text
from generate import topologies
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.bounds import MULTICAST, REDUCTION, bound, conditions_text, recheck
from antiphon.core.collective import Collective
from antiphon.core.reshape import degrade, join, keep, only, relabel, reverse
from antiphon.core.serialize import dumps, loads
from antiphon.core.symmetry import canonical
from antiphon.core.topology import FORWARD_ONLY, Ability, LinkType, Topology, both_ways, build
from antiphon.cost import Profile
from antiphon.errors import Invalid

pytestmark = pytest.mark.usefixtures("own_folder")
BOTH = Ability(multicast=True, reduce=True)
ABILITIES = [
    FORWARD_ONLY, BOTH, Ability(multicast=True), Ability(reduce=True), Ability(True, True, through=True, at_once=3),
    Ability(True, True, own=True, operators=("sum", "max"), types=("float32",)), Ability(reduce=True, types=("int8",)),
]  # fmt: skip
LINK = LinkType("nvlink", Fraction(10**9), 1e-6)


@st.composite
def able(draw: st.DrawFn) -> Topology:
    """Two random machines and a new switch between them; every switch with an ability of its own."""
    boxes = [draw(topologies(5)) for _ in range(2)]
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    boxes = [_able(box, [rng.choice(ABILITIES) for _ in range(box.switches)]) for box in boxes]
    cables = [((b, 0), "new", LINK) for b in (0, 1)]
    return join(boxes, switches=["new"], cables=cables, ability=rng.choice(ABILITIES))


def _able(machine: Topology, abilities: list[Ability]) -> Topology:
    return Topology(
        machine.name, machine.ranks, machine.switches, machine.link_src, machine.link_dst, machine.link_type,
        machine.types, machine.limits, machine.places, machine.unit, tuple(abilities),
    )  # fmt: skip


def abilities_by_place(machine: Topology) -> dict[str, Ability]:
    return {machine.places[n]: machine.ability(n) for n in range(machine.ranks, machine.nodes)}


# ---- machines say it, and keep it ----


@settings(max_examples=examples(60), deadline=None)
@given(able(), st.randoms(use_true_random=False))
def test_every_change_keeps_what_switches_can_do(machine: Topology, rng: random.Random) -> None:
    told = abilities_by_place(machine)
    assert loads(dumps(machine)) == machine
    ranks = list(range(machine.ranks))
    order = [*rng.sample(ranks, len(ranks)), *rng.sample(range(machine.ranks, machine.nodes), machine.switches)]
    moved = relabel(machine, order)
    assert abilities_by_place(moved) == told
    assert relabel(moved, np.argsort(order)) == machine
    assert canonical(moved)[1] == canonical(machine)[1]
    some = sorted(rng.sample(ranks, rng.randint(1, len(ranks))))
    part = keep(machine, some).topology
    assert abilities_by_place(part).items() <= told.items()
    assert abilities_by_place(only(machine, some)) == told
    assert abilities_by_place(degrade(machine, links=[0], slower=2)) == told
    turned = reverse(machine)
    assert abilities_by_place(turned) == {place: ability.with_links_reversed() for place, ability in told.items()}
    assert reverse(turned) == machine
    assert Profile(name="x").on(machine).abilities == machine.abilities


def test_what_cannot_be_is_refused() -> None:
    text = json.loads(dumps(antiphon.topology("hgx-h100")))
    types = ["bfloat16", "float16", "float32", "float64", "int32", "int64", "uint32", "uint64"]
    compared = [f"{op} of {dtype}" for op in ("max", "min") for dtype in types if dtype not in ("float32", "float64")]
    able_to = {"operators": [*compared, "sum"], "types": types}
    assert text["abilities"] == [{"switches": [8], "multicast": True, "reduce": True, "own": True, **able_to}]
    wrong: list[tuple[Any, str]] = [
        ([{"switches": [8]}], "says nothing"),
        ([{"switches": [8], "through": True}], "set multicast or reduce"),
        ([{"switches": [8], "reduce": True, "at_once": -1}], "at_once: expected a whole number"),
        ([{"switches": [8], "reduce": True, "types": ["\n"]}], "ability types"),
        ([{"switches": [0], "reduce": True}], "node 0 is no switch"),
        ([{"switches": [9], "reduce": True}], "node 9 is no switch"),
        ([{"switches": [8, 8], "reduce": True}], "switch 8 is named twice"),
        ([{"switches": [8], "reduces": True}], "reduce"),
    ]
    for given_, said in wrong:
        with pytest.raises(Invalid, match=said):
            loads(json.dumps({**text, "abilities": given_}).encode())
    with pytest.raises(Invalid, match="expected 1, one per switch"):
        build("x", 2, both_ways([(0, 2), (1, 2)], LINK), switches=1, abilities=[BOTH, BOTH])


def test_a_switch_that_joins_nobody_helps_nobody() -> None:
    machine = antiphon.topology("cluster:box=hgx-h100,boxes=2")
    assert (
        only(machine, [0, 8]).joint_abilities == FORWARD_ONLY
    )  # one rank of each box is left: its NVSwitch has one neighbour
    assert keep(machine, [0, 1]).topology.joint_abilities == BOTH


# ---- what bounds assume ----

KINDS = {
    "allreduce": (REDUCTION, MULTICAST), "reducescatter": (REDUCTION,), "reduce": (REDUCTION,),
    "allgather": (MULTICAST,), "broadcast": (MULTICAST,), "alltoall": (), "gather": (), "scatter": (),
}  # fmt: skip


def test_a_bound_that_hides_what_it_assumes_is_refused() -> None:
    machine, wanted = antiphon.topology("hgx-h100"), Collective("allreduce", 8)
    found = bound(machine, wanted)
    assert found.unaided is not None
    for other in (replace(found, assumes=(REDUCTION,)), replace(found, unaided=replace(found.unaided, assumes=()))):
        with pytest.raises(Invalid, match="assumes other things of switches"):
            recheck(machine, wanted, other)
    for other, where in ((replace(found, unaided=None), machine), (found, antiphon.topology("dgx-a100"))):
        with pytest.raises(Invalid, match="without the help of switches"):
            recheck(where, wanted, other)
    with pytest.raises(Invalid, match="every switch that helps, exactly once"):
        recheck(machine, wanted, replace(found.unaided, assumes=(), unaided=found.unaided))


def _in_network(kind: str, sides: list[tuple[int, Fraction]], ranks: int) -> Fraction:
    """Seconds for a buffer of 1 on a tree of switches that all multicast and reduce: a link carries a block once.
    `sides`: per link, one way, how many ranks are behind it, and its bandwidth."""
    share = {
        "allgather": lambda behind: Fraction(behind, ranks),  # their blocks go out
        "reducescatter": lambda behind: Fraction(ranks - behind, ranks),  # the others' go out, combined
    }.get(kind, lambda behind: Fraction(1))
    return max(share(behind) / speed for behind, speed in sides)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(set(KINDS) - {"alltoall", "gather", "scatter"})))
def test_no_bound_is_beaten_by_switches(seed: int, kind: str) -> None:
    """On trees of switches the best possible with their help is plain: a bound above it must say what it assumes."""
    rng = random.Random(seed)
    leaves, each = rng.randint(2, 4), rng.randint(1, 3)
    ranks = leaves * each
    speeds = [LinkType("link", Fraction(rng.randint(1, 9)), 0.0) for _ in range(leaves + 1)]
    links = both_ways([(rank, ranks + rank // each) for rank in range(ranks)], speeds[-1])
    links += [x for i in range(leaves) for x in both_ways([(ranks + i, ranks + leaves)], speeds[i])]
    machine = build("tree", ranks, links, switches=leaves + 1, abilities=[BOTH] * (leaves + 1))
    sides = [(1, speeds[-1].bandwidth), (ranks - 1, speeds[-1].bandwidth)]
    sides += [(behind, speeds[i].bandwidth) for i in range(leaves) for behind in (each, ranks - each)]
    found = bound(machine, Collective(kind, ranks))
    assert found.bytes_per_second is not None
    best = _in_network(kind, sides, ranks)
    alone = found.without_help
    assert alone.bytes_per_second is not None
    assert (found.assumes, alone.assumes in ((), KINDS[kind])) == ((), True)
    assert 1 / found.bytes_per_second <= best
    assert alone.assumes or 1 / alone.bytes_per_second <= best


GB = 10**9


@pytest.mark.parametrize(
    ("spec", "own", "through", "best", "alone"),
    in_turn([("hgx-h100", True, False, 400, Fraction(1800, 7)), ("hgx-h100", False, False, 450, Fraction(1800, 7)),
     ("hgx-h100", True, True, 450, Fraction(1800, 7)), ("hgx-b200", True, False, 800, Fraction(3600, 7)),
     ("gb200-nvl72", True, False, Fraction(900 * 72, 73), Fraction(900 * 36, 71))], 2),
)  # fmt: skip
def test_an_allreduce_in_nvswitches(spec: str, own: bool, through: bool, best: Fraction, alone: Fraction) -> None:
    """NCCL with NVLink SHARP moves 275 GB/s of nbytes among eight H100, where 257.1 is the most without."""
    made = antiphon.topology(spec)
    machine = replace(made, abilities=(replace(made.ability(made.ranks), own=own, through=through),))
    found = bound(machine, Collective("allreduce", machine.ranks))
    assert (found.bytes_per_second, found.without_switches, found.tight) == (best * GB, alone * GB, True)
    assert found.without_help.assumes == (REDUCTION, MULTICAST)
    assert conditions_text(found.without_help.assumes) == "without reduction or multicast in switches"
    few = replace(machine, abilities=(replace(machine.ability(machine.ranks), at_once=1),))
    assert bound(few, Collective("allreduce", machine.ranks)).tight is None or machine.ranks > 8


# ---- what is told ----


def test_bound_says_what_it_assumes(capsys: Capture) -> None:
    said = text(capsys, "bound", "allreduce", "hgx-h100")
    assert "bandwidth: at most 400 GB/s algbw (R/C = 1/16)" in said
    assert "without reduction or multicast in switches: 257.1 GB/s algbw" in said
    assert "without reduction in switches combining costs some rank" in said
    told = answer(capsys, "bound", "allreduce", "hgx-h100")
    assert (told["assumes"], told["unaided"]["assumes"]) == ([], [REDUCTION, MULTICAST])
    assert told["bandwidth"]["bytes_per_second"] == 400 * GB
    assert told["bandwidth"]["without_switches"] == told["unaided"]["bytes_per_second"] == "1800000000000/7"
    for name in ("dgx-a100", "hgx-h100:sharp=false"):
        assert "without" not in text(capsys, "bound", "allreduce", name)
        told = answer(capsys, "bound", "allreduce", name)
        assert told["assumes"] == []
        assert not {"unaided", "without_switches"} & {*told, *told["bandwidth"]}
        assert set(told["memory"]) == {"accesses", "senders"}


def test_plan_says_it_beside_its_gaps_and_verify_holds_it_against_the_machine(capsys: Capture) -> None:
    said = text(capsys, "plan", "allreduce", "hgx-h100", "--planner", "trees")
    assert "1.556 times the least time for large messages" in said
    assert "1 times the least time if switches only forward" in said
    assert "no schedule is faster without the help of switches" in said
    told = answer(capsys, "plan", "allreduce", "hgx-h100", "--planner", "trees", "-o", "plan.json")
    assert (told["assumes"], told["bandwidth_gap_without_switches"]) == ([], 1.0)
    assert told["bandwidth_gap"] == float(Fraction(14, 9))
    proved = text(capsys, "verify", "plan.json", "--proof")
    assert "R/C is 1/16 or more" in proved
    assert "without reduction or multicast in switches R/C of allreduce on hgx-h100 is 7/72 or more" in proved
    assert "by its partition without reduction or multicast in switches no schedule exceeds 72/7" in proved
    file = json.loads(Path("plan.json").read_text())
    carried = file["entries"][0]["schedule"]["provenance"]["bound"]
    carried["assumes"] = []  # as if it held with the help of switches
    Path("plan.json").write_text(json.dumps(file))
    assert run(["verify", "plan.json", "--proof"]) == 1
    del carried["assumes"]  # as plans were before
    Path("plan.json").write_text(json.dumps(file))
    assert run(["verify", "plan.json", "--proof"]) == 0
    file["entries"][0]["claims"]["bandwidth_gap_without_switches"] = 0.9
    Path("plan.json").write_text(json.dumps(file))
    assert run(["verify", "plan.json"]) == 1
    assert answer(capsys, "plan", "allreduce", "dgx-a100")["assumes"] == []


@pytest.mark.slow
def test_where_a_switch_joins_all_nothing_is_said_of_rings() -> None:
    """NVLinks reach everywhere through it, whatever those that stand for NCCL are refused for."""
    from antiphon.cli.tuning_text import tuning_text

    how: dict[str, Any] = {"nbytes": "1MB", "workers": "none", "deterministic": True, "model": "alpha-beta"}
    found = antiphon.tune("allreduce", "hgx-h100", **how)
    assert found.no_speedup
    said = tuning_text(found, explain=True)
    assert "no speedup for allreduce: none of multi-ring" in said
    assert "PCIe" not in said


def test_the_machine_is_shown_with_it(capsys: Capture) -> None:
    assert "can multicast and reduce: host0/nvswitch" in text(capsys, "topology", "show", "hgx-h100")
    assert "can multicast" not in text(capsys, "topology", "show", "dgx-a100")
    many = text(capsys, "topology", "show", "cluster:box=hgx-h100,boxes=9")
    assert "can multicast and reduce: host*/nvswitch" in many


@pytest.mark.slow
def test_text_and_report_of_a_tuning_say_so() -> None:
    how: dict[str, Any] = {
        "nbytes": "1MB:2MB",
        "planners": ["direct", "ring"],
        "search": antiphon.Search(workers="none"),
        "model": "alpha-beta",
    }
    found = antiphon.tune("allreduce", "hgx-h100", **how)
    from antiphon.cli.tuning_text import tuning_text

    said = " ".join(tuning_text(found, explain=True).split())
    assert "(bandwidth bound without the help of switches: 257.1 GB/s for allreduce)" in said
    assert "speedup: over multi-ring or double-binary-tree or nvls, as NCCL would do" in said
    assert "falls back to PCIe" not in said
    page = antiphon.pages.report(found)
    assert "without the help of switches no schedule moves more than 257.1 GB/s" in page
    assert "multi-ring or double-binary-tree or nvls" in page
    plain = antiphon.tune(
        "allreduce", "dgx-a100", nbytes="1MB:2MB", planners=["direct", "ring"], search=antiphon.Search(workers="none")
    )
    assert "without" not in tuning_text(plain, explain=True)
    assert "help of switches" not in antiphon.pages.report(plain)


@pytest.mark.slow
def test_the_frontier_says_so() -> None:
    found = antiphon.frontier.find("allgather", "hgx-h100", steps=1, budget="20s")
    assert found.as_json()["assumes"] == [MULTICAST]
