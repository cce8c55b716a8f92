"""Shares of trees over a small denominator: what is lost is little and told; and how deep trees need be."""

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from entries import trees
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.rows import schedule_of
from antiphon.planners.trees.rounding import HIGHEST, MOST_LOSS
from antiphon.select import check
from antiphon.topologies import topology

KINDS = ["allgather", "reducescatter", "allreduce", "broadcast"]
QUICK = (5, "allgather")


@pytest.mark.parametrize(
    ("spec", "kind"),
    in_turn(
        [
            pytest.param(
                f"torus:dims={k}x{k}x{k}", kind, marks=pytest.mark.slow if k > 3 and (k, kind) != QUICK else ()
            )
            for k in (3, 5, 6, 8)
            for kind in KINDS
        ],
        6,
    ),
)
def test_tori_of_three_dimensions(spec: str, kind: str) -> None:
    plan_of(spec, kind)


@pytest.mark.slow
def test_six_by_six_by_six(capsys: pytest.CaptureFixture[str]) -> None:
    """The shares of its exact packing have a denominator of fifty digits."""
    assert run(["plan", "allgather", "torus:dims=6x6x6", "--planner", "trees:pieces=1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rounding = told["found"]["rounding"]
    assert rounding["denominator"] <= 1024
    assert 0 <= rounding["loss"] <= 0.005
    exact = Fraction(rounding["exact_rate"])
    assert exact == Fraction(216, 215) * 6
    assert float(1 - Fraction(told["rate"]) / exact) == pytest.approx(rounding["loss"])
    assert not told["found"]["optimal"]


def plan_of(spec: str, kind: str, **options: Any) -> Any:
    """Verified with its proofs; what it says of its rate and its shares is true."""
    machine = topology(spec)
    plan = antiphon.plan(kind, machine, planner="trees", options={"pieces": 1, **options})
    assert check(plan, machine, proof=True) is None
    (entry,) = plan.entries
    found = entry.schedule.provenance["found"]
    limit = bound(machine, plan.collective).bytes_per_second
    rate = throughput(entry.schedule, machine)
    assert rate is not None
    assert limit is not None
    assert found["rate"] == entry.claims["rate"] == str(rate / machine.unit)
    cut = machine.ranks if kind == "allreduce" else 1  # halves are of that many parts, each with trees of its own
    if "rounding" not in found:
        assert entry.schedule.chunks.denominator <= 1024 * cut
        return found
    told = found["rounding"]
    exact = Fraction(told["exact_rate"])
    assert float(1 - rate / machine.unit / exact) == pytest.approx(told["loss"], abs=1e-12)
    assert found["optimal"] == (rate == limit)
    assert rate / machine.unit <= exact <= limit / machine.unit
    whole = math.lcm(*{entry.schedule.chunks.part(c).denominator for c in range(len(entry.schedule.chunks))})
    assert told["denominator"] * cut % whole == 0
    if "denominator" not in options:
        assert told["loss"] <= MOST_LOSS
        assert told["denominator"] <= 1024
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["broadcast", "allgather", "allreduce"])
def test_a_machine_with_limits(kind: str) -> None:
    """Its linear program has a denominator of six digits."""
    assert "rounding" in plan_of("dgx1v:pcie=true", kind)


@pytest.mark.parametrize(
    "spec",
    in_turn(
        [
            "torus:dims=3x3",
            "dgx1v",
            "dgx1p",
            pytest.param("mi250", marks=pytest.mark.slow),
            "cluster:box=dgx-a100,boxes=2",
        ],
        4,
    ),
)
@pytest.mark.parametrize("kind", [pytest.param("broadcast", marks=pytest.mark.slow), "allreduce"])
def test_small_denominators_stay_exact(spec: str, kind: str) -> None:
    found = plan_of(spec, kind)
    assert "rounding" not in found
    assert found["optimal"]


@pytest.mark.slow
def test_the_limit_can_be_chosen() -> None:
    coarse = plan_of("dgx1v:pcie=true", "broadcast", denominator=64)
    fine = plan_of("dgx1v:pcie=true", "broadcast", denominator=4096)
    assert coarse["rounding"]["denominator"] <= 64
    assert coarse["rounding"]["loss"] > fine["rounding"]["loss"]
    assert plan_of("dgx1v:pcie=true", "broadcast", denominator=HIGHEST)["rounding"]["loss"] < 1e-6
    assert "1/" in coarse["how"]
    assert "of the rate lost" in coarse["how"]
    for wrong in (0, -1, True, 1.5, "many", HIGHEST + 1):
        with pytest.raises(Invalid, match="option denominator: expected a whole number"):
            next(trees(Request(topology("ring:ranks=3"), Collective("broadcast", 3)), denominator=wrong))  # type: ignore[arg-type]


@pytest.mark.slow
def test_uneven_weights_and_groups() -> None:
    machine = topology("torus:dims=3x3x3")
    for collective in (
        Collective("allgather", 27, weights=[1 + 7 * rank for rank in range(27)]),  # type: ignore[arg-type]
        Collective("allgather", 27, members=tuple(range(0, 27, 5))),
        Collective("allreduce", 27, members=tuple(range(0, 27, 4))),
    ):
        schedule = next(trees(Request(machine, collective), pieces=1, denominator=50))
        verify(schedule, machine).or_raise()
        told = schedule.provenance["found"]
        assert "rounding" in told
        assert told["rounding"]["denominator"] <= 50
        limit = bound(machine, collective).bytes_per_second
        assert limit is not None
        assert Fraction(told["rounding"]["exact_rate"]) <= limit / machine.unit


def test_shares_without_a_common_denominator_are_refused() -> None:
    primes = [1000003, 1000033, 1000037, 1000039]
    shares = [(block, Fraction(part, p)) for block, p in enumerate(primes) for part in (1, p - 1)]
    with pytest.raises(Unsupported, match="no common denominator"):
        schedule_of(Collective("allgather", 4), shares, [])
