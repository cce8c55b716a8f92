"""The public functions as their users see them: types, help, and what they take."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import listed

import antiphon
from antiphon.deprecations import MOVED
from antiphon.errors import Invalid

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """\
import antiphon

machine = antiphon.topology("dgx1v", only=[0, 1, 2, 3])
limits = antiphon.bound("allreduce", machine)
plan: antiphon.Plan = antiphon.plan("allreduce", machine, planner="ring", nbytes="64MiB")
report = antiphon.verify(plan, proof=True)
right: bool = report.ok and report.fault is None
best = antiphon.tune("allreduce", machine, nbytes="1KB:1MB", planners=["ring"], search=antiphon.Search(budget="2s"))
first = best.ranges[0]
who, seconds = first.candidate.planner, first.seconds
measured = antiphon.measure.tune("allreduce", machine, on="mpi", factor=4)
rows = antiphon.predict(best.plan, "1KB:1GB", model="alpha-beta")
(row,) = antiphon.predict(best.plan, "64MiB", trace="trace.json")
page = antiphon.pages.report(best)
points = antiphon.frontier.find("allgather", machine, budget=10).points
done = antiphon.run(plan, "64KiB", dtype="int8", repeat=1)
files = antiphon.export(plan, "goal", nbytes="64MiB", options={"order": "rounds"})
again = antiphon.load("plan.json", antiphon.Plan)
antiphon.save(again, "copy.json.gz")
alpha = antiphon.fit.genmodel("times.csv", beta=1e-10).parameters["alpha"].value
times = antiphon.measure.memory(max_vectors=3)


def hop(c: antiphon.Places, rank: int) -> antiphon.Places:
    return c.copy_to(rank, "scratch", 0)


with antiphon.write("broadcast", machine, chunks=2, pieces=8) as w, w.together():
    hop(w[0, "input", 0], 1).copy_to([2, 3])
    w[0, "input", 1:].reduce_to(range(1, 4), via=[0])
lines: tuple[str, ...] = w.lines
antiphon.save(w.plan, "written.json")
"""

# Each is caught where it stands; some show that values are looked at, too. `on="mpo"` would not be: which runtimes
# installed packages bring is only known when it runs.
TYPOS = listed("typos")


def mypy(folder: Path, programs: dict[str, str]) -> str:
    for name, text in programs.items():
        (folder / name).write_text(text)
    (folder / "mypy.ini").write_text("[mypy]\nignore_missing_imports = true\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--num-workers", "0", "--config-file", "mypy.ini", "--no-incremental"]
    done = subprocess.run(
        [*command, *programs], cwd=folder, capture_output=True, text=True, check=False, timeout=500,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_finds_every_typo_in_a_users_program(tmp_path: Path) -> None:
    programs = {"right.py": PROGRAM}
    for number, (right, wrong) in enumerate(TYPOS):
        assert PROGRAM.count(right) == 1, right
        programs[f"typo{number}.py"] = PROGRAM.replace(right, wrong)
    said = mypy(tmp_path, programs)
    complaints = {line.partition(":")[0] for line in said.splitlines() if ": error: " in line}
    assert complaints == {name for name in programs if name != "right.py"}, said


MODULES = (
    "available", "comm", "fit", "frontier", "lab", "machines", "measure", "native", "pages", "papers", "replay",
    "traces",
)  # fmt: skip


def public() -> dict[str, Callable[..., Any]]:
    """All functions that users call, of the package and of its modules."""
    found = {name: getattr(antiphon, name) for name in antiphon.__all__}
    for module in MODULES:
        shown = getattr(antiphon, module)
        assert inspect.getdoc(shown)
        found |= {f"{module}.{name}": getattr(shown, name) for name in shown.__all__}
    return {name: one for name, one in found.items() if inspect.isfunction(one)}


@pytest.mark.parametrize("name", sorted(public()))
def test_help_tells_every_option(name: str) -> None:
    function = public()[name]
    told = inspect.getdoc(function) or ""
    parameters = told.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    listed = {name for line in parameters.splitlines() if not line.startswith(" ") for name in line.split(", ")}
    asked = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert told
    assert [option for option in asked if option not in listed] == []


def test_what_the_package_exports() -> None:
    functions = [
        "topology",
        "collective",
        "bound",
        "plan",
        "tune",
        "compose",
        "write",
        "verify",
        "predict",
        "run",
        "export",
        "load",
        "save",
    ]
    types = ["Bound", "Collective", "Places", "Plan", "Profile", "Report", "Search", "Topology", "Tuning", "Writing"]
    assert sorted(antiphon.__all__) == sorted([*functions, *types, "errors"])
    assert set(antiphon.__all__) <= set(dir(antiphon))


def test_tune_takes_at_most_twelve_parameters() -> None:
    assert len(inspect.signature(antiphon.tune).parameters) == 12
    assert all(len(inspect.signature(getattr(antiphon, name)).parameters) <= 17 for name in ("plan", "verify", "run"))


def test_import_loads_nothing_and_sets_nothing() -> None:
    """No signal handler, no module put in the place of another, nothing heavy; also in a program named antiphon."""
    program = """
import signal, sys
sys.argv = ["/usr/bin/antiphon"]
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
import antiphon
assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "antiphon")
assert loaded == ["antiphon"], loaded
import antiphon.planners.table, antiphon.topologies.table
assert antiphon.planners is sys.modules["antiphon.planners"]
assert antiphon.topologies.table.__name__ == "antiphon.topologies.table"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", sorted(MOVED))
def test_every_old_name_is_there_with_a_warning(name: str) -> None:
    if name in ("lab", "comm", "replay", "reproduce", "bench", "fit", "frontier"):  # called as functions below
        assert callable(getattr(antiphon, name))
        return
    with pytest.warns(DeprecationWarning, match=re.escape(f"antiphon.{name} is now {MOVED[name].new}")) as warned:
        _ = value() if inspect.ismodule(value := getattr(antiphon, name)) else value  # type: ignore[operator]
    assert {warning.filename for warning in warned} == {__file__}


def test_old_keywords_work_with_a_warning() -> None:
    old: Any = antiphon
    said: list[str] = []
    with pytest.warns(DeprecationWarning, match=r"tell=\.\.\. of plan is now progress=\.\.\.; .*next version"):
        plan = old.plan(wanted="allreduce", topology="ring:ranks=4", tell=said.append, planner="ring")
    assert plan == antiphon.plan("allreduce", "ring:ranks=4", planner="ring")
    with pytest.raises(Invalid, match="option of bound 'tell'"):  # which never had it
        old.bound("allreduce", "ring:ranks=4", tell=print)
    with pytest.raises(Invalid, match="option of bound 'wanted'"):  # both
        old.bound(collective="allreduce", topology="ring:ranks=4", wanted="broadcast")


@pytest.mark.filterwarnings("ignore:antiphon.* is now antiphon:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:most=:DeprecationWarning")
def test_old_functions_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old: Any = antiphon
    plan = antiphon.plan("allreduce", "dgx1v")
    assert old.simulate(plan, "1MB") == antiphon.traces.simulate(plan, "1MB")
    assert old.predict_library("allreduce", "hgx-h100", "1MB") == antiphon.predict(
        "allreduce", "1MB", topology="hgx-h100", library="nccl"
    )
    assert old.reproduce() == antiphon.papers.papers()
    points = antiphon.frontier.find("allgather", "ring:ranks=4", k=0).as_json()
    assert old.frontier("allgather", "ring:ranks=4", k=0).as_json() == points
    assert isinstance(old.frontier("allgather", "ring:ranks=4", k=0), old.Frontier)
    assert old.degrade("dgx1v", drop_links="0-3") == antiphon.machines.degrade("dgx1v", drop_links="0-3")
    rows = old.bench("memory", most=4, nbytes=4096, repeat=1)
    antiphon.save(rows, "times.csv")
    assert old.fit("memory", "times.csv").as_json() == antiphon.fit.memory("times.csv").as_json()


def test_old_parameters_of_tune_are_those_of_search() -> None:
    old: Any = antiphon
    search = antiphon.Search(seed=3, workers="none", budget="30s", deterministic=True)
    given = {"nbytes": "1KB:4KB", "planners": ["ring", "direct"]}
    new = antiphon.tune("allreduce", "full:ranks=4", search=search, **given)
    with pytest.warns(DeprecationWarning, match=r"search=antiphon.Search\(budget=..., seed=...") as warned:
        same = old.tune(
            "allreduce", "full:ranks=4", seed=3, workers="none", budget="30s", deterministic=True, sweep=None, **given
        )
    assert [warning.filename for warning in warned] == [__file__]
    assert [(r.start, r.candidate.planner, r.seconds) for r in same.ranges] == [
        (r.start, r.candidate.planner, r.seconds) for r in new.ranges
    ]
    with pytest.raises(Invalid, match="is only for measuring; give on"):
        old.tune("allreduce", "full:ranks=4", factor=2)


@pytest.mark.parametrize(
    "wrong", [{"effort": "x"}, {"budget": 0}, {"seed": -1}, {"deterministic": 1}, {"shortlist": -1}]
)
def test_a_search_is_checked_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(wrong))):
        antiphon.Search(**wrong)


def test_the_options_of_every_form_are_told() -> None:
    """Of what is called in several forms the options stand in the overloads, and in the text."""
    from typing import get_overloads

    for name in ("export", "load"):
        forms = get_overloads(inspect.unwrap(public()[name]))
        assert len(forms) > 1
        told = inspect.getdoc(public()[name]) or ""
        for form in forms:
            for option in inspect.signature(form).parameters:
                assert re.search(rf"^(\w+, )*{option}(, \w+)*$", told, re.MULTILINE), (name, option)


def test_ranks_to_keep_are_an_argument_in_python() -> None:
    """`dgx1v:only=0,1` is a spelling of the command line."""
    with pytest.raises(Invalid, match=r"pass antiphon.topology\(NAME, only="):
        antiphon.topology("dgx1v:only=0,1")


def test_collective_and_machine_that_were_swapped() -> None:
    for function in (antiphon.bound, antiphon.plan, antiphon.tune):
        with pytest.raises(Invalid, match="'all_reduce': this is a collective, which comes first"):
            function("ring:ranks=4", "all_reduce")


@pytest.mark.parametrize("module", [antiphon.machines, antiphon.measure, antiphon.sweep, antiphon.lab, antiphon.fit])
def test_functions_are_called_in_errors_as_users_call_them(module: Any) -> None:
    functions = {name: getattr(module, name) for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    assert [function.__name__ for function in functions.values()] == list(functions)
