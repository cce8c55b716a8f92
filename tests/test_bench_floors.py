"""What latency adds to a bound: chains come to it, nothing stays below it, and other machines say nothing."""

import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from entries import alpha_beta, direct, shallow, trees
from generate import topology as random_machine
from quick import in_turn

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import timeline
from antiphon.core.request import Request
from antiphon.errors import Infeasible, Unsupported
from antiphon.topologies import topology

BENCH = Path(__file__).resolve().parent.parent / "bench"
GB = 10**9


@pytest.fixture
def floors(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "_floors", raising=False)
    return import_module("_floors")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "_least_steps", raising=False)
    return import_module("_least_steps")


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("spec", "near"), in_turn([("line:ranks=5", 1.001), ("line:ranks=9", 1.001), ("mesh:dims=2x3", 1.1)], 2)
)
def test_chains_come_to_it(floors: Any, spec: str, near: float, kind: str) -> None:
    machine = topology(spec)
    wanted = Collective(kind, machine.ranks)
    made = next(trees(Request(machine, wanted, nbytes=GB)))
    ratio = alpha_beta(made, machine)(GB).seconds / float(bound(machine, wanted).seconds(GB))
    floor = floors.floor(machine, kind, GB)
    assert floor <= ratio <= near * floor


def test_what_is_known_of_a_chain(floors: Any) -> None:
    """line of 5: s = 3, so c pieces in 3 (c - 1) + 1 steps of B / (c - 1)."""
    machine = topology("line:ranks=5")
    seconds = float(bound(machine, Collective("broadcast", 5)).seconds(GB))
    late = machine.types[0].latency
    least = min(seconds * c / (c - 1) + (3 * (c - 1) + 1) * late for c in range(2, 2000))
    assert floors.floor(machine, "broadcast", GB) == pytest.approx(least / seconds, rel=1e-12)


def test_boxes(floors: Any) -> None:
    """Of three other boxes one gets a byte straight from the root's; where there is one other, no more is known."""
    four, two = (topology(f"cluster:box=hgx-h100,boxes={boxes}") for boxes in (4, 2))
    assert 1.04 < floors.floor(four, "broadcast", GB) < 1.05
    assert floors.floor(two, "broadcast", GB) < 1.002


@pytest.mark.parametrize("boxes", [2, 4])
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_little_may_go_between_boxes_in_one_step(floors: Any, kind: str, boxes: int) -> None:
    machine = topology(f"cluster:box=hgx-h100,boxes={boxes}")
    wanted = Collective(kind, machine.ranks)
    priced = alpha_beta(next(direct(Request(machine, wanted))), machine)
    for nbytes in (10**3, 10**5):
        least = floors.floor(machine, kind, nbytes) * float(bound(machine, wanted).seconds(nbytes))
        assert least <= priced(nbytes).seconds


def test_switches_between_boxes_may_make_copies(floors: Any) -> None:
    """Then the root's box sends once what all others get. Those within boxes change nothing."""
    machine = topology("cluster:box=hgx-h100,boxes=4,sharp=true")
    assert floors.floor(machine, "broadcast", GB) < 1.002
    assert floors.floor(machine, "reduce", GB) < 1.002


@pytest.mark.parametrize("ranks", [3, 5])
@pytest.mark.parametrize("steps", [4, 7, 12])
def test_steps_of_a_chain(ways: Any, ranks: int, steps: int) -> None:
    """c pieces in c + h - 1 steps of B / c are the best there is, over h links as wide."""
    machine = topology(f"line:ranks={ranks}")
    seconds = float(bound(machine, Collective("broadcast", ranks)).seconds(1))
    pieces = steps - (ranks - 1) + 1
    assert ways.least(ways.ways(machine), steps) == pytest.approx(seconds * steps / pieces, rel=1e-6)


def test_two_steps_around_a_switch(ways: Any) -> None:
    """R/C 15/8 on 16 ranks, which a scatter and an exchange take and nothing stays below."""
    machine = topology("star:ranks=16")
    assert ways.least(ways.ways(machine), 2) * machine.unit == pytest.approx(15 / 8, rel=1e-6)


@pytest.mark.parametrize(
    "seed", [0, 1, 2, 3, 4, 5, 8, 10, *(pytest.param(s, marks=pytest.mark.slow) for s in (6, 7, 9, 11))]
)
def test_no_plan_takes_less_in_as_many_steps(ways: Any, seed: int) -> None:
    """Trees of all depths, begun unevenly, on random machines with switches and links of any widths."""
    rng = random.Random(seed)
    machine = random_machine(rng, rng.randint(2, 5))
    known = ways.ways(machine)
    if known is None:
        return
    wanted = Collective("broadcast", machine.ranks)
    for steps in range(1, 7):
        try:
            made = next(iter(shallow(Request(machine, wanted), steps=steps)))
        except (Unsupported, Infeasible):
            continue
        taken = float(timeline(made, machine).total)
        assert ways.least(known, steps) <= taken * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "more"),
    [("star:ranks=4", 0.005), pytest.param("cluster:box=mi300x,boxes=3", 0.004, marks=pytest.mark.slow)],
)
def test_where_switches_only_forward(floors: Any, spec: str, more: float) -> None:
    """The program says more than what is known in closed form, and plans come near to it."""
    machine = topology(spec)
    wanted = Collective("broadcast", machine.ranks)
    least = floors.forwarding(machine, "broadcast", GB)
    assert least > floors.floor(machine, "broadcast", GB) + more
    made = next(shallow(Request(machine, wanted, nbytes=GB)))
    assert least <= alpha_beta(made, machine)(GB).seconds / float(bound(machine, wanted).seconds(GB)) <= least + 0.02
