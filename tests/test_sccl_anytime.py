"""Frontiers while effort is short: every number of steps has its turn; and the same, however many workers there are."""

import json
import os
import signal
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from quick import in_turn

from antiphon.core.ksync.instance import instance_of
from antiphon.errors import EffortSpent
from antiphon.planners.synth import candidate_order
from antiphon.planners.synth.auto import decide_candidate
from antiphon.planners.synth.effort_budget import UNIT, EffortBudget
from antiphon.planners.synth.frontier import Limits, Point, find_frontier, usual_steps
from antiphon.planners.synth.points import build_certificate
from antiphon.planners.synth.search import SearchState
from antiphon.select import collective
from antiphon.topologies import topology

FAR = 10**9 * UNIT


def a_search(spec: str, kind: str, effort: int = FAR) -> SearchState:
    machine = topology(spec)
    return SearchState(instance_of(machine, collective(kind, machine)), budget=EffortBudget(effort))


def told(points: list[Point]) -> list[tuple[object, ...]]:
    return [
        (p.chunks, p.steps, p.rounds, p.moves, p.engine, p.open, json.dumps(build_certificate(p, "plan", 4)))
        for p in points
    ]


def last(points: list[Point]) -> dict[int, tuple[Fraction, str]]:
    """Of every number of steps what was said last."""
    return {p.steps: (p.ratio, p.proof) for p in points}


# ---- however many workers ----


@pytest.mark.parametrize(("spec", "kind"), [
    pytest.param("hypercube:ranks=8", "broadcast", marks=pytest.mark.slow), ("dgx1v_sccl", "allgather"),
])  # fmt: skip
@pytest.mark.slow
def test_workers_change_nothing(spec: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in processes of their own; here one candidate after the other gives the same frontier, too."""
    here = list(find_frontier(a_search(spec, kind), Fraction(0), Limits(steps=4)))
    monkeypatch.setattr(candidate_order, "TURN_LIMITS", replace(candidate_order.TURN_LIMITS, small_variables=0))
    apart = [list(find_frontier(a_search(spec, kind), Fraction(0), Limits(steps=4, workers=n))) for n in (1, 3)]
    assert len(here) >= 2
    assert told(apart[0]) == told(apart[1])
    assert last(apart[0]) == last(here)


def test_small_frontiers_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(candidate_order, "run_in_order", refused)
    points = list(find_frontier(a_search("dgx1v_sccl", "allgather"), Fraction(7, 6), Limits()))
    assert [(p.chunks, p.steps, p.rounds) for p in points] == [(2, 2, 3), (6, 3, 7)]


def test_a_candidate_that_kills_its_process_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def deadly(search: SearchState, parts: int, steps: int, rounds: int, **more: Any) -> Any:
        if (parts, steps, rounds) == (6, 3, 7):
            os.kill(os.getpid(), signal.SIGKILL)
        return decide_candidate(search, parts, steps, rounds, **more)

    monkeypatch.setattr(candidate_order, "TURN_LIMITS", replace(candidate_order.TURN_LIMITS, small_variables=0))
    monkeypatch.setattr(candidate_order, "decide_candidate", deadly)
    said: list[str] = []
    points = list(find_frontier(a_search("dgx1v_sccl", "allgather"), Fraction(0), Limits(steps=3), said.append))
    assert [p.steps for p in points][:2] == [2, 3]
    assert points[-1].proof == "best-found-in-budget"
    assert (6, 7) in points[-1].open
    assert any("C = 6, S = 3, R = 7" in line and "SIGKILL" in line for line in said)


# ---- effort is short ----


class Hard:
    """The first candidate that is asked for in each number of steps takes more effort than there is for one.

    So it does as often as is told.
    """

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.first: dict[int, tuple[int, int]] = {}

    def __call__(self, search: SearchState, parts: int, steps: int, rounds: int, **more: Any) -> Any:
        hard = self.first.setdefault(steps, (parts, rounds)) == (parts, rounds)
        if hard and self.calls:
            self.calls -= 1
            raise EffortSpent("its effort is spent")
        return decide_candidate(search, parts, steps, rounds, **more)


def squeezed(monkeypatch: pytest.MonkeyPatch, calls: int) -> list[Point]:
    """Broadcast on a ring, where the first candidate of each number of steps is the best."""
    monkeypatch.setattr(candidate_order, "decide_candidate", Hard(calls))
    monkeypatch.setattr(candidate_order, "can_fork", lambda: False)  # to count calls here
    search = a_search("ring:ranks=8", "broadcast")
    return list(find_frontier(search, Fraction(0), Limits(steps=usual_steps(4))))


@pytest.mark.slow
def test_every_number_of_steps_has_its_easiest_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the first candidate of each takes more than its share, always. Better ones that do not come after that."""
    points = squeezed(monkeypatch, 10**6)
    assert [p.steps for p in points[:5]] == [4, 5, 6, 7, 8]
    assert (points[0].parts, points[0].rounds) == (1, 4)
    assert {p.proof for p in points[:5]} == {"best-found-in-budget"}
    assert all(p.open for p in points[:5])
    assert len(points) > 5
    assert all(last(points)[p.steps][0] <= p.ratio for p in points)


@pytest.mark.parametrize("calls", in_turn([1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 8))], 2))
def test_what_was_put_off_is_made_up_for(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is enough the frontier is the same, whatever came first."""
    whole = last(squeezed(monkeypatch, 0))
    points = squeezed(monkeypatch, calls)
    assert len(points) > len(whole)
    assert {steps: last(points)[steps] for steps in whole} == whole
    first = points[: len(whole)]
    assert [p.steps for p in first] == sorted(p.steps for p in first)
