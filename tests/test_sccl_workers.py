"""Engines in processes of their own may die, and the search goes on; its effort and its budget end it."""

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
from entries import sccl as synthesize

from antiphon.core.ksync.instance import instance_of
from antiphon.core.request import Request
from antiphon.core.verify import verify
from antiphon.errors import EffortSpent, TimedOut
from antiphon.planners.synth import auto, effort_budget
from antiphon.planners.synth import sccl as sccl_planner
from antiphon.planners.synth.auto import Solved, decide_candidate
from antiphon.planners.synth.search import SearchState
from antiphon.select import collective
from antiphon.topologies import topology


def a_search(spec: str = "dgx1v", kind: str = "allgather") -> SearchState:
    machine = topology(spec)
    return SearchState(instance_of(machine, collective(kind, machine)))


def test_a_crashed_engine_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tries crash; what comes after them finds the point all the same."""
    real = auto.solve_sat

    def sometimes(*args: Any) -> Any:
        if args[2].seed == 0:  # the first try has its variables as they come
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    monkeypatch.setattr(auto, "solve_sat", sometimes)
    every_try_in_a_process = replace(auto.TURN_LIMITS, quick_conflicts=0)
    monkeypatch.setattr(auto, "TURN_LIMITS", every_try_in_a_process)
    said: list[str] = []
    found = decide_candidate(a_search(), 6, 3, 7, tell=said.append)
    assert isinstance(found, Solved)
    assert any("SIGKILL" in line and "going on" in line for line in said)


def test_the_budget_ends_the_search_and_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processor works until the first schedule is there, and then the budget is used up."""
    now = [0.0]
    monkeypatch.setattr(effort_budget, "cpu_clock", lambda: now[0])
    monkeypatch.setattr(sccl_planner, "cpu_clock", lambda: now[0])
    machine = topology("dgx1v")
    stream = synthesize(Request(machine, collective("broadcast", machine), budget=4), steps=40, cache=False)
    made = next(stream)
    assert verify(made, machine).fault is None
    now[0] = 5.0
    with pytest.raises(TimedOut, match="the budget is used up") as told:
        next(stream)
    assert not isinstance(told.value, EffortSpent)


@pytest.mark.parametrize(("given", "end"), [({"budget": 0}, TimedOut), ({"effort": 1e-9}, EffortSpent)])
def test_too_little_to_find_anything_says_so(given: dict[str, float], end: type[TimedOut]) -> None:
    machine = topology("dgx1v")
    target = collective("broadcast", machine)
    with pytest.raises(end, match="nothing"):
        list(synthesize(Request(machine, target, **given), cache=False))
