"""The tables against each other: every machine of the catalogue, every collective, every planner, every model.

Up to 16 ranks each planner with the options it declares worth trying; up to 64 with its defaults. Each machine meets
some of the collectives, in turn, and a schedule every third model; the slow set has all of them, and adds every depth
of pipelining, all options on all machines, more sizes, and machines of up to 512 ranks. A new entry of a table is in
here by itself.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import quick
from contract import (
    PHRASES,
    Judge,
    Members,
    Setting,
    able,
    examples,
    machine,
    misrun,
    plans,
    setting,
    sizes_of_catalogue,
    solves,
    sweep_of,
)

from antiphon.core.collective import KINDS, Collective
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, Schedule
from antiphon.cost import Prediction
from antiphon.errors import Unsupported
from antiphon.registry import ModelCapabilities, PlannerCapabilities, table
from antiphon.select import plan

MODELS = table("model")
SMALL, MEDIUM = 16, 64
SOLVED = 8  # ranks up to which planners that work in solvers are held to it; their own tests go further

# besides the catalogue's examples
SHAPES = [
    "full:ranks=2", "star:ranks=2", "ring:ranks=2", "mesh:dims=3x3", "mesh:dims=2x2x3", "torus:dims=2x3",
    "mi250:gcds=8", "tree:fanouts=2x2x2", "cluster:box=z52-pcie,boxes=2,fabric=leaf-spine",
    "cluster:box=mi300x,boxes=2,fabric=fat-tree,oversubscription=2", "dragonfly:groups=3,routers=2,hosts=2",
    "cluster:box=mi250:gcds=8,boxes=2,fabric=rail,spines=2", "cluster:box=ring:ranks=4,boxes=3,nics=2",
    "cluster:box=hgx-h100,boxes=2,fabric=rail,spines=0",
]  # fmt: skip
WIDE = [
    "ring:ranks=33", "line:ranks=33", "mesh:dims=5x7", "torus:dims=8x8", "hypercube:ranks=32", "full:ranks=32",
    "star:ranks=33", "torus:dims=6x6,routers=true", "tree:fanouts=4x4x4",
    "cluster:box=dgx-a100,boxes=8,fabric=fat-tree,oversubscription=2",
]  # fmt: skip
SLOW_WIDE = [
    "star:ranks=64", "torus:dims=4x4x4", "hypercube:ranks=64", "line:ranks=48,routers=true",
    "dragonfly:groups=8,routers=4,hosts=2", "cluster:box=pcie8,boxes=4",
    "cluster:box=dgx1v,boxes=8", "cluster:box=mi250,boxes=2,fabric=rail", "delta:nodes=16", "polaris:nodes=16",
    "cluster:box=mi300x,boxes=4,fabric=leaf-spine,spines=4",
]  # fmt: skip
LARGE = ["torus:dims=8x8x8", "cluster:box=dgx-a100,boxes=64", "cluster:box=full:ranks=4,boxes=64,fabric=fat-tree"]
GROUPS: dict[str, Members] = {
    "ring:ranks=8": (2, 3, 4, 5), "torus:dims=4x4": (0, 1, 4, 5, 9), "dgx1v": (1, 4, 5, 6), "pcie8": (1, 2, 6),
    "cluster:box=dgx1v,boxes=2": (0, 1, 2, 4, 9, 10), "mesh:dims=3x4,routers=true": (2, 3, 7, 8, 9, 11),
}  # fmt: skip

EXAMPLES = list(examples())
TURNS = 6 if quick.ordinary else 1


@cache
def catalogue(low: int, high: int, *counts: int) -> list[str]:
    return [spec for spec in sizes_of_catalogue(counts) if low < machine(spec).ranks <= high]


def cases(specs: list[str]) -> list[Any]:
    """Every machine with every collective."""
    return [pytest.param(spec, kind, id=f"{spec}-{kind}") for spec in dict.fromkeys(specs) for kind in KINDS]


def hold(at: Setting, judge: Judge, how: str) -> None:
    """All planners that declare this collective to what they declare, with these of their options."""
    most = SOLVED if how == "all" and judge.variants is None else 0  # they take long: in the slow set
    planners = [one for one in able(at.wanted.kind) if not solves(one[1]) or at.machine.ranks <= most]
    faults = [fault for name, entry in planners for fault in judge.faults(at, name, entry, sweep_of(entry, how))]
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


def spread(specs: list[str], every: int, start: int, first: int = 0) -> list[Any]:
    """Each second, third machine, from the first one on, with one kind, in turn, from where this starts, so that each
    kind is met in one of these tests; the rest in the slow set."""
    found = []
    for number, spec in enumerate(dict.fromkeys(specs)):
        kept = {KINDS[(start + 3 * (number // every)) % len(KINDS)]} if number % every == first else set()
        for case in cases([spec]):
            slow = () if case.values[1] in kept else (pytest.mark.slow,)
            found.append(pytest.param(*case.values, id=case.id, marks=slow))
    return found


@pytest.mark.parametrize(
    ("spec", "kind"), spread([spec for spec in EXAMPLES if machine(spec).ranks <= SMALL], 12, 0, 1)
)
def test_options_on_every_machine(spec: str, kind: str) -> None:
    judge = Judge(MODELS, variants=1 if quick.ordinary else None, turns=TURNS)
    hold(setting(spec, kind, root=2 * machine(spec).ranks // 3), judge, "most")


@pytest.mark.parametrize(
    ("spec", "kind"), spread([spec for spec in [*catalogue(1, SMALL, 3), *SHAPES] if spec not in EXAMPLES], 32, 1)
)
def test_other_sizes(spec: str, kind: str) -> None:
    hold(setting(spec, kind), Judge(MODELS, turns=TURNS), "defaults")


@pytest.mark.parametrize(
    ("spec", "kind"), spread([*(spec for spec in EXAMPLES if SMALL < machine(spec).ranks <= MEDIUM), *WIDE], 24, 2, 2)
)
def test_up_to_64_ranks(spec: str, kind: str) -> None:
    hold(setting(spec, kind, root=machine(spec).ranks - 1), Judge(MODELS, variants=2, unit=3), "defaults")


@pytest.mark.parametrize(("spec", "kind"), spread([*GROUPS], 6, 5))
def test_groups_of_ranks(spec: str, kind: str) -> None:
    """The others may relay; or are gone; or some are gone, and some of those left take no part."""
    members = GROUPS[spec]
    left = f"{spec} only {','.join(map(str, members))}"
    asked = [(spec, members), (left, members), (left, members[:2])]
    for where, who in asked if kind in ("allreduce", "gather") else asked[:2]:
        hold(setting(where, kind, root=who[-1], members=who), Judge(MODELS, turns=TURNS), "defaults")


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "kind"), cases([*catalogue(1, SMALL, 2, 5, 9), *SHAPES]))
def test_every_option_on_other_sizes(spec: str, kind: str) -> None:
    hold(setting(spec, kind), Judge(MODELS, expanding=2**14), "all")


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "kind"), cases([*catalogue(SMALL, MEDIUM), *WIDE, *SLOW_WIDE]))
def test_every_option_up_to_64_ranks(spec: str, kind: str) -> None:
    hold(setting(spec, kind, root=machine(spec).ranks // 2), Judge(MODELS, variants=3, unit=5), "all")


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "kind"), cases([*catalogue(MEDIUM, 512), *LARGE]))
def test_up_to_512_ranks(spec: str, kind: str) -> None:
    hold(setting(spec, kind), Judge(MODELS, variants=1, expanding=2**15, unit=2), "defaults")


# ---- what is declared ----


@pytest.mark.parametrize("planner", sorted(table("planner")))
def test_what_is_not_declared_is_refused(planner: str) -> None:
    for kind in set(KINDS) - set(table("planner")[planner].can.collectives):
        at = setting("full:ranks=4", kind)
        with pytest.raises(Unsupported) as refusal:
            plan(at.wanted, at.machine, planner=planner)
        named = re.findall(r"[a-z0-9-]+", str(refusal.value).rpartition(":")[2])
        assert named == [name for name, _ in able(kind)]
        assert any(plans(at, name) for name in named)


@pytest.mark.parametrize("planner", sorted(table("planner")))
def test_nothing_is_declared_in_vain(planner: str) -> None:
    machines = ["full:ranks=4", "star:ranks=4", "mesh:dims=2x2", "cluster:box=hgx-h100,boxes=2,sharp=true", *EXAMPLES]
    for kind in set(table("planner")[planner].can.collectives) - {"custom"}:
        assert any(plans(setting(spec, kind), planner) for spec in machines), kind


def test_every_kind_of_machine_that_is_declared_means_something() -> None:
    for name, entry in table("planner").items():
        if entry.where.startswith("antiphon."):
            assert entry.can.topologies in PHRASES, f"{name}: say in contract.PHRASES what its machines are"


def test_the_phrases() -> None:
    linked, circled, levelled, connected, *_ = PHRASES.values()
    whole = {spec: tuple(range(machine(spec).ranks)) for spec in EXAMPLES}
    says = {
        "ring:ranks=8": (False, True, False, True), "line:ranks=5": (False, False, False, True),
        "mesh:dims=3x4": (False, True, False, True), "torus:dims=4x4": (False, True, True, True),
        "full:ranks=6": (True, True, True, True), "star:ranks=8": (True, True, True, True),
    }  # fmt: skip
    for spec, expected in says.items():
        found = tuple(phrase(machine(spec), whole[spec]) for phrase in (linked, circled, levelled, connected))
        assert found == expected, spec
    assert not circled(machine("mesh:dims=3x3"), tuple(range(9)))  # an odd chessboard
    assert not connected(machine("ring:ranks=8 only 0,1,4"), (0, 1, 4))
    assert connected(machine("ring:ranks=8 only 0,1,2"), (0, 1, 2))


def test_the_example_is_of_its_family() -> None:
    for name, entry in table("topology").items():
        if entry.where.startswith("antiphon."):
            assert str(entry.can.example).partition(":")[0] == name
    counts = catalogue(1, SMALL, 3)
    assert {"ring:ranks=3", "ring:ranks=8,routers=true", "polaris:nodes=3"} <= set(counts)


# ---- the judge itself ----


def faults_of(schedules: Any, spec: str = "ring:ranks=4", kind: str = "allgather", **models: Any) -> list[str]:
    """What is said of a planner that declares all, and does this."""
    phrase = next(iter(PHRASES))
    entry = SimpleNamespace(load=lambda: schedules, can=PlannerCapabilities(tuple(KINDS), phrase))
    known = {name: SimpleNamespace(load=lambda f=f: f, can=ModelCapabilities()) for name, f in models.items()}
    return list(Judge(known or MODELS).faults(setting(spec, kind), "ring", entry))  # type: ignore[arg-type]


def from_ring(change: Any) -> Any:
    def planner(request: Request) -> Iterator[Schedule]:
        yield from (change(schedule) for schedule in table("planner")["ring"].load()(request))

    return planner


def test_a_right_planner_is_left_alone() -> None:
    assert faults_of(from_ring(lambda schedule: schedule)) == []


def test_wrong_rows_are_found() -> None:
    def drop(schedule: Schedule) -> Schedule:
        rows = {name: column[:-1] for name, column in schedule.columns().items()}
        return replace(schedule, **rows)

    (fault,) = faults_of(from_ring(drop))
    assert "is wrong" in fault


def test_wrong_data_is_found() -> None:
    for kind in KINDS:
        right, *_ = table("planner")["relay"].load()(
            Request(machine("mesh:dims=2x3"), setting("mesh:dims=2x3", kind, 4).wanted)
        )
        assert misrun(right) is None
    (right,) = table("planner")["ring"].load()(Request(machine("ring:ranks=4"), Collective("reducescatter", 4)))
    assert "rank" in str(misrun(replace(right, op=np.full_like(right.op, COPY))))  # a legal schedule that adds nothing


def test_refusals_and_crashes_are_found() -> None:
    def refusing(says: str) -> Any:
        def planner(request: Request) -> Iterator[Schedule]:
            raise Unsupported(says)
            yield

        return planner

    def crashing(request: Request) -> Iterator[Schedule]:
        raise KeyError(request.collective.kind)
        yield

    good = "planner ring: not on this one; use planner relay"
    assert faults_of(refusing(good)) == []  # the phrase declares only machines on which all are linked
    assert "refuses what it claims" in faults_of(refusing(good), "full:ranks=3")[0]
    assert "none would do" in faults_of(refusing("planner ring: no; use planner direct"))[0]
    assert "who does" in faults_of(refusing("no; use planner relay"))[0]
    assert "KeyError" in faults_of(crashing)[0]
    assert "yields nothing" in faults_of(lambda request: iter(()))[0]
    uneven = Collective("allgather", 4, weights=np.array([1, 2, 3, 4]))
    assert "another collective" in faults_of(from_ring(lambda schedule: replace(schedule, collective=uneven)))[0]


def test_predictions_below_the_bound_are_found() -> None:
    at = setting("ring:ranks=4", "allgather")
    right = from_ring(lambda schedule: schedule)

    def model(seconds: Any) -> Any:
        return lambda schedule, topology: lambda nbytes: Prediction(seconds(nbytes), {}, "")

    assert faults_of(right, exact=model(at.least)) == []
    assert len(faults_of(right, quick=model(lambda n: at.least(n) * 0.999))) == 2
    assert "bytes; the bound" in faults_of(right, instant=model(lambda n: at.least(n) - at.latency))[0]
    assert faults_of(right, lost=model(lambda n: float("nan")))
