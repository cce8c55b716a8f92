"""Planners that misbehave cost themselves alone: what they start, raise, print, read or hide harms nobody else."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import Invalid
from antiphon.registry import Entry, PlannerCapabilities, call
from antiphon.select import Candidate, Tuning, pool, tune
from antiphon.select.task import Task, one_line

Add = Callable[..., None]


def told(name: str, found: Tuning) -> list[tuple[str, str]]:
    def short(c: Candidate) -> tuple[str, str]:
        return c.status, c.reason

    return [short(c) for c in found.candidates if c.planner == name]


def asked(names: list[str], **options: Any) -> Tuning:
    given = {"nbytes": "1KB", "workers": 1, "budget": 5.0, **options}
    return tune("allgather", "ring:ranks=4", planners=[*names, "ring"], **given)


def test_whatever_they_raise_or_hide_is_told_and_no_more(added: Add) -> None:
    names = ["exits", "interrupts", "boasts", "hides", "colours", "listens", "anything"]
    added(*names)
    found = asked(names)
    assert told("exits", found) == [("ok", ""), ("failed", "it asked to end the whole process (sys.exit: 3)")]
    assert told("interrupts", found) == [("failed", "KeyboardInterrupt:")]
    ((status, reason),) = told("boasts", found)
    assert (status, "provenance.how" in reason) == ("failed", True)
    assert told("hides", found) == [("failed", "what it made cannot be handed over: TypeError: not to be[31m told")]
    assert told("colours", found) == [("failed", "ValueError: [31mred[0m and blue")]
    assert told("listens", found) == told("anything", found) == told("ring", found)[:1] == [("ok", "")]
    assert found.plans
    assert found.complete


def test_within_this_process_they_end_nothing_either(added: Add) -> None:
    names = ["exits", "boasts", "colours", "anything"]
    added(*names)
    here, there = (asked(names, workers=workers) for workers in ("none", 1))
    for name in names:
        assert told(name, here) == told(name, there)


def alive(process: int) -> bool:
    """Whether it runs; a zombie that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_what_a_planner_started_ends_with_it(added: Add, tmp_path: Path) -> None:
    note = tmp_path / "child"
    can = PlannerCapabilities(("allgather",), sweep=({"note": str(note)},))
    added(parent=Entry("stubborn_planners:parent", "", can))
    found = asked(["parent"], budget=0.3)
    assert [status for status, _ in told("parent", found)] == ["ok", "timed out"]
    child = int(note.read_text())
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.05)
    assert not alive(child)


def test_a_process_that_leaves_a_child_with_its_pipes_is_missed(added: Add) -> None:
    added("forks")
    found = asked(["forks"], budget=100.0)
    assert told("forks", found) == [("failed", "its process ended with exit code 9")]


def test_a_planner_may_ask_for_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, added: Add) -> None:
    """One that is not built in gets it unasked. Bounds, which have no planner, need none, nor do those that ask not."""

    def entry(where: str, **more: Any) -> Entry:
        return Entry(where, "", PlannerCapabilities(("allgather",), **more))

    here: list[str] = []
    real = pool.run_task

    def noted(context: Any, cache: Any, task: Task) -> Any:
        here.append(task.planner)
        yield from real(context, cache, task)

    monkeypatch.setattr(pool, "run_task", noted)
    monkeypatch.setattr(pool, "HEAD_START", 600.0)  # else what comes last may be left to others for want of time
    ours = "antiphon.planners.rings.ring:ring"
    added(solver=entry(ours, process=True), plain=entry(ours), foreign=entry("stubborn_planners:anything"))
    found = asked(["solver", "plain", "foreign"], nccl=False)
    for name in ("solver", "plain", "foreign"):
        assert told(name, found)[0] == ("ok", "")
    assert set(here) == {"", "plain", "ring"}
    assert found.plans


def test_planners_that_take_any_options_get_them() -> None:
    def open_to_all(*, pieces: int = 1, **rest: Any) -> Any:
        return pieces, rest

    def closed(*, pieces: int = 1) -> Any:
        return pieces

    given = {"pieces": 2, "nbytes": 3}
    assert call("planner", "x", open_to_all, given) == (2, {"nbytes": 3})
    with pytest.raises(Invalid, match="unknown option of planner x 'nbytes'"):
        call("planner", "x", closed, given)
    with pytest.raises(Invalid, match="takes no options"):
        call("planner", "x", lambda: None, given)


def test_reasons_are_one_plain_line() -> None:
    assert one_line("a\n\tb\x1b[2J\x00\x9b1m\u202e\ud800 c") == "a b[2J1m c"
    assert one_line("got <object at 0x7f00ab>") == "got <object>"
    assert one_line("x" * 600) == "x" * 497 + "..."
