"""The groups of commands, and the spellings of the version before: each works, with a warning, and is in no help."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Capture, complaint
from tables import listed, refused

import antiphon
from antiphon.cli import application, run
from antiphon.cli.old_spellings import COMMANDS, respell
from antiphon.errors import Invalid

pytestmark = pytest.mark.usefixtures("own_folder")
HEADINGS = {
    "Machines": ["topology", "doctor"],
    "Plan": ["bound", "plan", "frontier", "tune", "sweep", "verify", "predict", "explore", "check-log"],
    "Run": ["run", "bench", "build", "export", "watch", "lab"],
    "More": ["list", "fit", "replay", "table", "store", "reproduce", "trace"],
}


def answer(capsys: Capture, line: str, code: int = 0) -> tuple[Any, str]:
    """The JSON that a command prints, and its lines on stderr."""
    capsys.readouterr()
    assert run([*line.split(), "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_help_lists_commands_under_four_headings(capsys: Capture) -> None:
    assert run(["--help"]) == 0
    listed: dict[str, list[str]] = {}
    heading = ""
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line[:-1]
        elif line.startswith("  ") and heading in HEADINGS:
            listed.setdefault(heading, []).append(line.split()[0])
    assert {heading: [name for name in names if name.islower()] for heading, names in listed.items()} == HEADINGS


def test_old_commands_are_hidden_and_the_others_are_not() -> None:
    commands = application().commands
    shown = {name for name, command in commands.items() if not command.hidden}
    assert shown == {name for names in HEADINGS.values() for name in names}
    assert {name for name, old in COMMANDS.items() if old.words is None} == commands.keys() - shown


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("topologies", "list topologies"),
        ("topology list ring", "list topologies ring"),
        ("topologies ring", "list topologies ring"),
        ("planners", "list planners"),
        ("models loggp", "list models loggp"),
        ("backends goal", "list formats goal"),
        ("store ls --store .", "store list --store ."),
        ("runtimes", "list runtimes"),
        ("predict allreduce hgx-h100 --as nccl --nbytes 1MB", "predict allreduce hgx-h100 --library nccl --nbytes 1MB"),
        ("predict allreduce hgx-h100 --as=nccl --nbytes 1MB", "predict allreduce hgx-h100 --library nccl --nbytes 1MB"),
    ],
)
def test_an_old_spelling_does_the_same_with_one_line_of_warning(capsys: Capture, old: str, new: str) -> None:
    expected, silence = answer(capsys, new)
    assert silence == ""
    value, warning = answer(capsys, old)
    assert value == expected
    assert warning.count("\n") == 1
    assert warning.startswith(f"antiphon: warning: `antiphon {old.split(maxsplit=1)[0]}")
    assert "is now `antiphon " in warning


def test_old_options_that_an_argument_has_now(capsys: Capture) -> None:
    """They are hidden, and print one line on stderr."""
    for old, new in [
        ("bound allgather dgx1v --only 0,1,2", "bound allgather dgx1v:only=0,1,2"),
        ("bound allgather ring:ranks=8 --only=0-3", "bound allgather ring:ranks=8,only=0-3"),
        ("plan allgather ring:ranks=4 --planner ring --option directions=1",
         "plan allgather ring:ranks=4 --planner ring:directions=1"),
    ]:  # fmt: skip
        value, warning = answer(capsys, old)
        assert (value, "") == answer(capsys, new)
        assert warning.count("\n") == 1
        assert "is now `" in warning


@pytest.mark.parametrize("old", ["planners", "backends", "compose", "simulate", "check"])
def test_help_of_an_old_spelling(capsys: Capture, old: str) -> None:
    assert run(["help", old]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: antiphon ")
    assert f"`antiphon {old}` is now" in err


def test_compose_is_plan_from(capsys: Capture) -> None:
    for kind in ("reducescatter", "allgather"):
        assert run(["plan", kind, "ring:ranks=4", "-o", f"{kind}.json"]) == 0
    old, warning = answer(capsys, "compose reducescatter.json allgather.json -o old.json")
    assert "plan --from A.json B.json" in warning
    new, silence = answer(capsys, "plan --from reducescatter.json allgather.json -o new.json")
    assert (new, silence) == (old, "")
    assert new["collective"] == "allreduce"
    assert Path("new.json").read_bytes() == Path("old.json").read_bytes()
    again, _ = answer(capsys, "plan MPI_Allreduce ring:ranks=4 --from=reducescatter.json --from allgather.json")
    assert again == new


@pytest.mark.parametrize(("line", "says"), refused("plan --from"))
def test_what_plan_from_refuses(capsys: Capture, line: str, says: str) -> None:
    for kind, name in (("reducescatter", "a"), ("allgather", "b")):
        assert run(["plan", kind, "ring:ranks=4", "-o", f"{name}.json"]) == 0
    assert says in complaint(capsys, *line.split())


def test_simulate_is_predict_with_a_trace(capsys: Capture) -> None:
    assert run(["plan", "allreduce", "dgx1v", "-o", "plan.json"]) == 0
    old, warning = answer(capsys, "simulate plan.json --nbytes 1MB --trace old.json")
    assert "predict PLAN --nbytes SIZE --trace FILE" in warning
    new, silence = answer(capsys, "predict plan.json --nbytes 1MB --trace new.json")
    assert (new, silence) == (old, "")
    assert Path("new.json").read_bytes() == Path("old.json").read_bytes()


def test_check_is_verify_for_a_runtime(capsys: Capture) -> None:
    assert run(["plan", "allreduce", "full:ranks=4", "--planner", "direct", "-o", "plan.json"]) == 0
    old, warning = answer(capsys, "check plan.json --for rccl-6 --nbytes 63", 1)
    assert "verify PLAN --for RUNTIME" in warning
    assert old["runs"] is False
    new, silence = answer(capsys, "verify plan.json --for rccl-6 --nbytes 63", 1)
    assert (new["ok"], new["fault"], new["will_run"], silence) == (True, None, False, "")
    findings = [finding for row in old["files"] for finding in row["findings"]]
    assert [(row["what"], row["why"], row["instead"]) for row in new["reasons"]] == [
        (finding["outcome"], finding["why"], finding["instead"]) for finding in findings
    ]
    served, _ = answer(capsys, "verify plan.json --for rccl-6 --nbytes 64KiB")
    assert (served["ok"], served["will_run"]) == (True, True)
    plain, _ = answer(capsys, "verify plan.json")
    assert plain == {"ok": True, "fault": None}


def test_a_wrong_plan_runs_nowhere(capsys: Capture) -> None:
    assert run(["plan", "allreduce", "full:ranks=4", "--planner", "direct", "-o", "plan.json"]) == 0
    plan = json.loads(Path("plan.json").read_text())
    plan["entries"][0]["schedule"]["dst"][0] = plan["entries"][0]["schedule"]["src"][0]
    Path("plan.json").write_text(json.dumps(plan))
    value, _ = answer(capsys, "verify plan.json --for rccl-6 --nbytes 64KiB", 1)
    assert (value["ok"], value["will_run"], value["reasons"]) == (False, False, [])


def test_for_a_runtime_only_plans_of_its_calls_are_verified(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of other collectives, nor those for failures."""
    monkeypatch.setattr("antiphon.select.proofs.list_failures", lambda path: pytest.fail("failures are read"))
    plans = {kind: antiphon.plan(kind, "full:ranks=4", planner="direct") for kind in ("allreduce", "allgather")}
    antiphon.save(plans, "plan.json")
    tree = json.loads(Path("plan.json").read_text())
    tree["plans"]["allgather"]["entries"][0]["claims"]["steps"] = 2
    Path("plan.json").write_text(json.dumps(tree))
    report, _ = answer(capsys, "verify plan.json:allreduce --for rccl-6 --nbytes 64KiB")
    assert (report["ok"], report["will_run"]) == (True, True)
    in_python = antiphon.verify("plan.json", runtime="rccl-6", nbytes="64KiB", collective="allreduce")
    assert in_python.as_json() == report


@pytest.mark.parametrize("line", ["--for rccl-6", "--nbytes 1MB", "--all", "--in-place"])
def test_options_of_for_need_it(capsys: Capture, line: str) -> None:
    assert "--for" in complaint(capsys, "verify", "plan.json", *line.split())


@pytest.mark.parametrize(("words", "respelled"), listed("respelled"))
def test_words_that_are_respelled(words: str, respelled: str) -> None:
    spelled, warnings = respell(words.split())
    assert spelled == respelled.split()
    assert bool(warnings) == (words != respelled)


def test_verify_in_python_returns_a_report(capsys: Capture) -> None:
    """It is true or false, never None, and says of a runtime what the command says."""
    plan = antiphon.plan("allreduce", "full:ranks=4", planner="direct")
    antiphon.save(plan, "plan.json")
    report = antiphon.verify(plan, proof=True)
    assert report
    assert (report.ok, report.fault, report.will_run, report.reasons) == (True, None, None, ())
    assert report.proved
    assert antiphon.verify(plan).as_json() == answer(capsys, "verify plan.json")[0]
    refused = antiphon.verify(plan, runtime="rccl-6", nbytes=63)
    assert (bool(refused), refused.ok, refused.will_run) == (False, True, False)
    assert refused.as_json() == answer(capsys, "verify plan.json --for rccl-6 --nbytes 63", 1)[0]
    assert antiphon.verify(plan, runtime="rccl-6", nbytes="64KiB").will_run is True
    wrong = antiphon.verify(antiphon.plan("allreduce", "ring:ranks=4"), "line:ranks=4")
    assert not wrong
    assert wrong.fault is not None
    assert wrong.as_json()["fault"]["message"] == wrong.fault.message
    for given in ({"runtime": "rccl-6"}, {"nbytes": "1KB"}):
        with pytest.raises(Invalid, match="give both, or neither"):
            antiphon.verify(plan, **given)


def test_the_command_line_has_no_more_parameters() -> None:
    """An option that several commands share counts once: it has one name and one meaning."""
    parameters, by_command = set(), 0
    pending = [application()]
    while pending:
        command: Any = pending.pop()
        for option in command.params:
            if not getattr(option, "hidden", False):
                by_command += 1
                name = option.opts[-1] if option.param_type_name == "option" else option.name
                parameters.add((name, "" if name == "--output" else option.help))  # -o: the ending says what is written
        pending += [inner for inner in getattr(command, "commands", {}).values() if inner.name not in COMMANDS]
    assert 100 < len(parameters) <= 142
    assert by_command <= 240
