"""The frontier on the command line and in Python: points, proofs that are rechecked, refusals, and early ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from commands import Capture, printed
from entries import ring
from quick import in_turn

import antiphon
from antiphon import registry
from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, TimedOut
from antiphon.planners.synth import work
from antiphon.select import make_point, proofs
from antiphon.show.frontier import POINT_HEAD, frontier_text, point_line, point_rows
from antiphon.units import parse_size

MACHINE = "dgx1v_sccl"
pytestmark = pytest.mark.usefixtures("own_folder")


def text(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What a person reads: nothing wider than a terminal."""
    out = printed(capsys, *arguments, code=code)
    assert all(len(line) <= 80 for line in out.splitlines())
    return " ".join(out.split())


def answer(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints; its progress is on stderr."""
    return json.loads(printed(capsys, *arguments, "--json", code=code))


def complaint(capsys: Capture, *arguments: str, code: int) -> str:
    capsys.readouterr()
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    (last,) = [line for line in err.splitlines() if line.startswith("antiphon: ")]
    return last


# ---- the points ----


def test_points_of_the_dgx1(capsys: Capture) -> None:
    found = answer(capsys, "frontier", "allgather", MACHINE, "--planner", "sccl:k=4", "-o", "plan.json")
    assert [(p["chunks"], p["steps"], p["rounds"], p["proof"]) for p in found["points"]] == [
        (2, 2, 3, "proved-optimal"), (6, 3, 7, "proved-optimal"),
    ]  # fmt: skip
    assert [p["ratio"] for p in found["points"]] == ["3/2", "7/6"]
    assert [p["bandwidth_gap"] for p in found["points"]] == [pytest.approx(9 / 7), 1.0]
    assert (found["complete"], found["stopped"], found["latency_steps"]) == (True, None, 2)
    assert found["impossible"] == [
        {"collective": "allgather", "steps": 2, "ratio_below": "3/2"},
        {"collective": "allgather", "steps": 3, "ratio_below": "7/6"},
    ]
    assert all(p["proved"] and p["engine"] and not p["trusted"] for p in found["points"])
    told = answer(capsys, "verify", "plan.json", "--proof")
    assert (told["ok"], len(told["proved"]), told["trusted"]) == (True, 4, [])


@pytest.mark.slow
def test_the_plan_takes_the_point_that_is_fastest_for_a_size(capsys: Capture) -> None:
    run(["frontier", "allgather", MACHINE, "-o", "plan.json"])
    entries = json.loads(Path("plan.json").read_text())["entries"]
    assert [(e["claims"]["steps"], e["claims"]["optimality"]) for e in entries] == [
        (2, "proved-optimal"), (3, "proved-optimal"),
    ]  # fmt: skip
    border = entries[0]["to"]
    assert (entries[0]["from"], entries[1]["from"], entries[1]["to"]) == (0, border, None)
    loaded = antiphon.frontier.find("allgather", MACHINE).plan()
    few, much = (Plan(loaded.topology, loaded.collective, (Entry(0, None, e.schedule, {}),)) for e in loaded.entries)

    def seconds(plan: Plan, nbytes: int) -> float:
        (row,) = antiphon.predict(plan, nbytes)
        return float(row["seconds"])

    assert seconds(few, border // 2) < seconds(much, border // 2)
    assert seconds(few, border) > seconds(much, border)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "points"),
    in_turn([
        ("reducescatter", [(16, 2, 3), (48, 3, 7)]), ("gather", [(6, 2, 7)]),
        pytest.param("reduce", [(2, 2, 2)], marks=pytest.mark.slow),
        pytest.param("scatter", [(48, 2, 7)], marks=pytest.mark.slow),
        pytest.param("allreduce", [(2, 2, 2), (6, 3, 3), (12, 4, 4)], marks=pytest.mark.slow),
    ]),
)  # fmt: skip
def test_other_collectives(capsys: Capture, kind: str, points: list[tuple[int, int, int]]) -> None:
    steps = {"reduce": "2", "allreduce": "4", "reducescatter": "3"}.get(kind, "2")
    found = answer(capsys, "frontier", kind, MACHINE, "--steps", steps, "-o", "plan.json")
    mine = [(p["chunks"], p["steps"], p["rounds"]) for p in found["points"]]
    assert mine == points
    assert answer(capsys, "verify", "plan.json", "--proof")["ok"]
    for point in found["points"]:
        assert point["least_ratio"] is None or Fraction(point["least_ratio"]) <= Fraction(point["ratio"])


def test_from_which_size_a_point_is_the_best() -> None:
    """By the formula below the table, just above each size that it states and just below."""
    found = antiphon.frontier.find("broadcast", "full:ranks=4", steps=3)
    points, starts = found.points, [row[POINT_HEAD.index("best from")] for row in point_rows(found)]

    def best_at(nbytes: float) -> int:
        times = [point.steps * 1e-6 + float(point.ratio) * nbytes / 25e9 for point in points]
        return times.index(min(times))

    assert starts[0] == "0B"
    for number, start in enumerate(starts[1:], 1):
        assert best_at(parse_size(start) * 1.05) == number
        assert best_at(parse_size(start) * 0.95) == number - 1


@pytest.mark.slow
def test_an_allreduce_is_proved_by_the_broadcasts_and_reduces_that_it_contains(capsys: Capture) -> None:
    """Every point of the DGX-1 is optimal in any form; two halves are best only where they meet the machine's bound."""
    found = answer(capsys, "frontier", "allreduce", MACHINE, "--planner", "sccl:steps=6", "-o", "plan.json")
    assert [(p["chunks"], p["steps"], p["rounds"], p["proof"]) for p in found["points"]] == [
        (2, 2, 2, "proved-optimal"), (6, 3, 3, "proved-optimal"), (12, 4, 4, "proved-optimal"),
        (16, 5, 5, "best-found-in-budget"), (48, 6, 14, "proved-optimal"),
    ]  # fmt: skip
    assert [p["least_ratio"] for p in found["points"]] == ["1", "1/2", "1/3", "7/24", "7/24"]
    assert all(p["about"].startswith(("broadcast from", "reduce to")) for p in found["points"][:3])
    assert found["points"][4]["about"] == "halves"
    assert "an allreduce contains a " in text(capsys, "verify", "plan.json", "--proof")
    rewrite(json.loads(Path("plan.json").read_text()), lambda plan: certificate(plan).update(about="broadcast from 8"))
    found = answer(capsys, "verify", "plan.json", "--proof", code=1)
    assert "broadcast from or reduce to a rank" in found["fault"]["message"]


@pytest.mark.slow
def test_what_is_proved_of_halves_is_not_said_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """On machines that are too large for the search in every form."""
    monkeypatch.setattr(work, "SUM_LIMITS", replace(work.SUM_LIMITS, max_ranks=7))
    found = antiphon.frontier.find("allreduce", MACHINE, steps=4)
    half = found.points[-1]
    assert (half.chunks, half.steps, half.about, half.least) == (16, 4, "halves", None)
    assert "halves" in half.meaning
    said = " ".join(frontier_text(found).split())
    assert "proved-optimal, of halves" in said
    assert "no allgather with S = 2 has R/C below 3/2" in said
    assert "An allreduce that is made otherwise may be better" in said
    assert "halves of 2 steps" in point_line(half)  # no proof about all allreduces


@pytest.mark.slow
def test_what_no_algorithm_can_do_is_told(capsys: Capture) -> None:
    said = text(capsys, "frontier", "broadcast:root=1", MACHINE, "--planner", "sccl:steps=3")
    assert "no broadcast has S below 2: rank 1 is 2 steps from rank 4" in said
    assert "no broadcast with S = 2 has R/C below 1 " in said
    assert "no broadcast at all has R/C below 1/6: rank 1 can send out only 150 GB/s" in said
    assert "option steps=N lets it take more steps" in said


@pytest.mark.slow
def test_groups_and_parts_of_machines(capsys: Capture) -> None:
    here = answer(capsys, "frontier", "allgather", f"{MACHINE}:only=0-3")
    assert here["points"][0]["steps"] == 1
    group = answer(capsys, "frontier", "allgather:ranks=0,2,4", "line:ranks=5", "--planner", "sccl:steps=4")
    assert [p["steps"] for p in group["points"]] == [4]


def test_in_python_the_same() -> None:
    heard: list[Any] = []
    told: list[str] = []
    found = antiphon.frontier.find("allgather", MACHINE, k=4, progress=told.append, on_point=heard.append)
    assert [(p.chunks, p.steps, p.rounds) for p in found.points] == [(2, 2, 3), (6, 3, 7)]
    assert heard == list(found.points)
    assert any("proved for S = 2: R/C >= 3/2" in line for line in told)
    plan = found.plan()
    assert antiphon.verify(plan, proof=True)
    found.save("plan.json")
    assert antiphon.topology(MACHINE) == plan.topology
    wrong: tuple[dict[str, Any], ...] = ({"k": -1}, {"steps": True}, {"memory": 0}, {"budget": 0})
    for options in wrong:
        with pytest.raises(Invalid):
            antiphon.frontier.find("allgather", MACHINE, **options)


@pytest.mark.slow
def test_the_command_that_checks_a_certificate_quotes_its_path(capsys: Capture) -> None:
    assert run(["frontier", "allgather", "ring:ranks=2", "--certificate", "of two.json"]) == 0
    assert capsys.readouterr().out.endswith("check_certificate.py 'of two.json'\n")


@pytest.mark.slow
def test_progress_is_on_stderr(capsys: Capture) -> None:
    assert run(["frontier", "reducescatter", MACHINE, "--planner", "sccl:steps=2"]) == 0
    err = capsys.readouterr().err
    assert "planned as an allgather of the machine with all links turned" in err
    assert "trying allgather: C = 2, S = 2, R = 3; proved for S = 2: R/C >= 3/2" in err
    assert "found (C, S, R) = (16, 2, 3), R/C = 3/16: proved-optimal" in err


def test_any_planner_has_a_frontier_of_its_own(capsys: Capture) -> None:
    found = answer(capsys, "frontier", "allgather", "ring:ranks=4", "--planner", "ring")
    (point,) = found["points"]
    assert (point["proof"], point["least_ratio"]) == ("proved-optimal", "3/2")  # by the bound alone
    assert "no option k" in complaint(capsys, "frontier", "allgather", MACHINE, "--planner", "ring:k=4", code=2)


@pytest.mark.slow
def test_points_without_a_certificate_say_so(capsys: Capture) -> None:
    asked = ("frontier", "allgather", "mesh:dims=2x3", "--planner", "greedy:parts=1")
    (point,) = answer(capsys, *asked)["points"]
    assert (point["ratio"], point["least_ratio"], point["proof"]) == ("3", None, "best-found-in-budget")
    assert point["meaning"] == "a better one may exist; no certificate bounds R/C of 3 steps"
    assert run(list(asked)) == 0
    text = capsys.readouterr().out
    assert "best-found-in-budget, no certificate" in text
    assert "nothing for that many steps" in text


# ---- one point, or why there is none ----


@pytest.mark.parametrize("how", [["--chunks", "6"], ["--option", "chunks=6"], ["--option=chunks=6"]])
def test_a_point_that_cannot_be_says_which_bound_forbids_it(capsys: Capture, how: list[str]) -> None:
    wish = ["plan", "allgather", MACHINE, "--planner", "sccl:steps=2,rounds=7", *how]
    said = text(capsys, *wish, code=1)
    assert "no algorithm with S = 2 and R/C below 3/2 exists" in said
    assert "the chunks of one part must pass 12 times, and a round has room for 8" in said
    found = answer(capsys, *wish, code=1)
    assert found["feasible"] is False
    assert found["asked"] == {"chunks": 6, "steps": 2, "rounds": 7}
    assert "R/C below 3/2" in found["why"]


def test_a_point_that_can_be_is_planned(capsys: Capture) -> None:
    wish = f"plan allgather {MACHINE} --planner sccl:steps=3,rounds=7,chunks=6".split()
    found = answer(capsys, *wish, "-o", "plan.json")
    assert (found["chunks"], found["steps"], found["rounds"]) == (6, 3, 7)
    assert (found["optimality"], found["proof"]) == ("proved-optimal", "bandwidth")
    assert "proof: proved-optimal: no algorithm of as many steps has a smaller R/C" in text(capsys, *wish)
    assert "given twice" in complaint(capsys, *wish[:-1], f"{wish[-1]},steps=3", code=2)


def test_without_a_point_the_best_of_the_frontier(capsys: Capture) -> None:
    found = answer(capsys, "plan", "allgather", MACHINE, "--planner", "sccl")
    assert (found["chunks"], found["steps"], found["rounds"], found["bandwidth_gap"]) == (6, 3, 7, 1.0)


def test_fewer_steps_than_the_distance(capsys: Capture) -> None:
    said = complaint(capsys, "plan", "allgather", MACHINE, "--planner", "sccl:steps=1", code=1)
    assert "has S = 1 or less: rank 5 is 2 steps from rank 0" in said


@pytest.mark.parametrize(
    "wrong",
    [
        ["--planner", "sccl:k=-1"],
        ["--planner", "sccl:steps=0"],
        ["--planner", "sccl:memory=0"],
        ["-o", "nowhere/plan.json"],
    ],
)
def test_wrong_options(capsys: Capture, wrong: list[str]) -> None:
    complaint(capsys, "frontier", "allgather", MACHINE, *wrong, code=2)


# ---- proofs are rechecked ----


@cache
def made(*arguments: str) -> str:
    """The file that a command writes: once for all tests that change it."""
    assert run([*arguments, "-o", "plan.json"]) == 0
    return Path("plan.json").read_text()


def written(capsys: Capture, *arguments: str) -> dict[str, Any]:
    Path("plan.json").write_text(made(*arguments))
    capsys.readouterr()
    loaded: dict[str, Any] = json.loads(made(*arguments))
    return loaded


def rewrite(plan: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    change(plan)
    Path("plan.json").write_text(json.dumps(plan))


def certificate(plan: dict[str, Any], entry: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = plan["entries"][entry]["schedule"]["provenance"]["certificate"]
    return found


def _price(plan: dict[str, Any]) -> None:
    certificate(plan)["least"]["prices"][0][2] += 1


def _label(plan: dict[str, Any]) -> None:
    certificate(plan)["proof"] = "proved-optimal-for-k"


def _claim(plan: dict[str, Any]) -> None:
    plan["entries"][0]["claims"]["optimality"] = "best-found-in-budget"


def _told(plan: dict[str, Any]) -> None:
    plan["entries"][0]["schedule"]["provenance"]["found"]["proof"] = "proved-optimal-for-k"


def _other_point(plan: dict[str, Any]) -> None:
    provenance = [entry["schedule"]["provenance"] for entry in plan["entries"]]
    provenance[0]["certificate"], provenance[1]["certificate"] = (p["certificate"] for p in provenance[::-1])


def _twice(plan: dict[str, Any]) -> None:
    """As true as before, but of another point: with twice the chunks and rounds."""
    for key in ("chunks", "rounds"):
        certificate(plan)[key] *= 2


def _missing(plan: dict[str, Any]) -> None:
    del certificate(plan)["least"]


def _no_object(plan: dict[str, Any]) -> None:
    plan["entries"][0]["schedule"]["provenance"]["certificate"] = "believe me"


@pytest.mark.parametrize(
    "change", in_turn([_price, _label, _claim, _told, _other_point, _twice, _missing, _no_object], 4)
)
def test_a_certificate_that_does_not_hold_is_a_fault(capsys: Capture, change: Callable[[dict[str, Any]], None]) -> None:
    rewrite(written(capsys, "frontier", "allgather", MACHINE, "--planner", "sccl:steps=3"), change)
    assert answer(capsys, "verify", "plan.json")["ok"]
    found = answer(capsys, "verify", "plan.json", "--proof", code=1)
    assert found["fault"]["kind"] == "proof"
    assert "(C, S, R) = (2, 2, 3): certificate: " in found["fault"]["message"]


@pytest.mark.slow
def test_of_halves_the_point_is_checked_too(capsys: Capture) -> None:
    plan = written(capsys, "plan", "allreduce", MACHINE, "--planner", "sccl:steps=4,rounds=6,chunks=16")  # fmt: skip
    assert answer(capsys, "verify", "plan.json", "--proof")["ok"]
    rewrite(plan, _twice)
    assert "schedule is (16, 4, 6)" in answer(capsys, "verify", "plan.json", "--proof", code=1)["fault"]["message"]


def test_what_an_engine_alone_says_is_called_that(capsys: Capture) -> None:
    """A claim that (3, 2, 5) does not exist, of which nothing but a search is told."""
    plan = written(capsys, "plan", "gather", MACHINE, "--planner", "sccl:steps=2,rounds=3,chunks=2")  # fmt: skip

    def change(plan: dict[str, Any]) -> None:
        mine = certificate(plan)
        assert mine["proof"] == "best-found-in-budget"
        mine["proof"], mine["k"] = "proved-optimal-for-k", 3
        mine["refuted"] = [{"chunks": 3, "rounds": 5, "how": "search"}]
        plan["entries"][0]["claims"]["optimality"] = "proved-optimal-for-k"
        plan["entries"][0]["schedule"]["provenance"]["found"]["proof"] = "proved-optimal-for-k"

    rewrite(plan, change)
    found = answer(capsys, "verify", "plan.json", "--proof")
    assert found["trusted"] == [
        "(C, S, R) = (2, 2, 3): (C, S, R) = (3, 2, 5) does not exist: a solver reported it",
    ]
    said = text(capsys, "verify", "plan.json", "--proof")
    assert "its proofs in part" in said
    assert "NOT rechecked, a solver reported it: (C, S, R) = (2, 2, 3): (C, S, R) = (3, 2, 5)" in said


def test_a_label_without_a_certificate_is_not_believed(capsys: Capture) -> None:
    plan = written(capsys, "frontier", "allgather", MACHINE)
    rewrite(plan, lambda p: p["entries"][0]["schedule"]["provenance"].pop("certificate"))
    fault = answer(capsys, "verify", "plan.json", "--proof", code=1)["fault"]
    assert fault["message"].startswith(
        "up to 2MiB, (C, S, R) = (2, 2, 3): certificate: the schedule is called 'proved-optimal', but the plan"
    )


def test_a_wrong_certificate_costs_a_point_its_label(added: Callable[..., None]) -> None:
    (good,) = antiphon.frontier.find("allgather", MACHINE, steps=2).points
    lie = {**good.schedule.provenance["certificate"], "k": 4, "proof": "proved-optimal", "steps": 3}

    def boasts(request: Request, **options: Any) -> Iterator[Schedule]:
        yield replace(good.schedule, provenance={**good.schedule.provenance, "certificate": lie})

    added(**made_planners(boasts=boasts))
    found = antiphon.frontier.find("allgather", MACHINE, planner="boasts")
    assert [p.proof for p in found.points] == ["best-found-in-budget"]
    assert "a certificate does not hold" in found.notes[0]
    assert antiphon.verify(found.plan(), proof=True)


def test_the_end_of_the_budget_is_no_wrong_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> NoReturn:
        raise TimedOut("stopped")

    (good,) = antiphon.frontier.find("allgather", MACHINE, steps=2).points
    monkeypatch.setattr(proofs, "check_certificate", stop)
    notes: list[str] = []
    machine = antiphon.topology(MACHINE)
    point = make_point(good.schedule, machine, bound(machine, good.schedule.collective), notes)
    assert point.proof == "best-found-in-budget"
    assert notes == ["the budget ended before a certificate was checked; its point counts as best found"]


# ---- early ends ----


def made_planners(**functions: Any) -> dict[str, registry.Entry]:
    """Entries for functions of these tests, which no worker process needs to import."""

    class Made(registry.Entry):
        def load(self) -> Any:
            return functions[self.where]

    can = registry.PlannerCapabilities(("allgather",))
    return {name: Made(name, "", can) for name in functions}


def _ends(how: BaseException, first: bool) -> Callable[..., Iterator[Schedule]]:
    def planner(request: Request, **options: Any) -> Iterator[Schedule]:
        if first:
            yield from ring(request)
        raise how

    return planner


@pytest.mark.parametrize(
    ("how", "why"), [(KeyboardInterrupt(), "interrupted"), (TimedOut("the budget is used up"), "the budget is used up")]
)
def test_what_was_found_before_the_end_is_kept(added: Callable[..., None], how: BaseException, why: str) -> None:
    added(**made_planners(some=_ends(how, True), none=_ends(how, False)))
    found = antiphon.frontier.find("allgather", "ring:ranks=4", planner="some")
    assert (len(found.points), found.stopped) == (1, why)
    with pytest.raises(TimedOut, match=why):
        antiphon.frontier.find("allgather", "ring:ranks=4", planner="none")


@pytest.mark.parametrize(
    ("name", "points", "why"),
    [
        pytest.param("hangs", 1, "the budget is used up", marks=pytest.mark.slow),
        pytest.param("lingers", 1, "the budget is used up", marks=pytest.mark.slow),
        ("dies", 0, "ended with exit code 7"), pytest.param("exits", 1, "sys.exit: 3", marks=pytest.mark.slow),
        ("raises", 1, "the planner failed: ZeroDivisionError"),
        pytest.param("hides", 0, "not to be", marks=pytest.mark.slow),
        *(pytest.param(name, 1, "", marks=pytest.mark.slow) for name in ("chatters", "listens")),
    ],
)  # fmt: skip
def test_a_process_apart_may_hang_or_die(
    capsys: Capture, added: Callable[..., None], name: str, points: int, why: str
) -> None:
    added(name)
    wish = ["frontier", "allgather", "ring:ranks=4", "--planner", name, "--budget", "1s", "-o", "plan.json"]
    if not points:
        assert why in complaint(capsys, *wish, code=1)
        return
    found = answer(capsys, *wish)
    assert len(found["points"]) == points
    assert why in (found["stopped"] or "")
    assert found["complete"] is not bool(why)
    assert answer(capsys, "verify", "plan.json")["ok"]


@pytest.mark.slow
def test_memory_is_limited(capsys: Capture, added: Callable[..., None]) -> None:
    added("eats")
    wish = "frontier allgather ring:ranks=4 --planner eats:memory=0.5 --budget 20s"
    found = answer(capsys, *wish.split())
    assert (len(found["points"]), found["stopped"]) == (1, "its 0.5 GiB of memory are used up")


@pytest.mark.slow
@pytest.mark.parametrize("after", ["found", "trying"])
def test_ctrl_c_tells_and_writes_the_best_so_far(after: str) -> None:
    """A broadcast of many steps: the first points come at once, the last would take very long."""
    words = f"frontier broadcast {MACHINE} --planner sccl:steps=60 -o plan.json"
    command = [sys.executable, "-m", "antiphon", *words.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stderr is not None
    found = False
    for line in process.stderr:
        found = found or line.startswith("found")
        if found and line.startswith(after):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=1000)
    assert process.returncode == 0
    assert "stopped early: interrupted; the best so far follows" in err
    assert "stopped early (interrupted): the best so far" in out
    assert run(["verify", "plan.json", "--proof"]) == 0
