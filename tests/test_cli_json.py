"""Under --json every command writes one JSON value to stdout: its result, or {"error": {...}}."""

import json
import shlex
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from commands import Capture
from tables import listed

from antiphon.cli import application, run

pytestmark = pytest.mark.usefixtures("own_folder")

# A call of each command that is refused for what it was given, and the kind of its error.
REFUSED = {name: tuple(rest) for name, *rest in listed("refused-json")}
CANNOT_FAIL = {"lab status", "doctor"}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its words."""
    for name, command in application().commands.items():
        if command.hidden:  # an old spelling
            continue
        if hasattr(command, "commands"):
            for inner, found in command.commands.items():
                yield (name if found.hidden else f"{name} {inner}"), found
        else:
            yield name, command


def failure(capsys: Capture, words: list[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, the error on stdout, the line on stderr."""
    capsys.readouterr()
    code = run(words)
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert value.keys() == {"error"}
    assert value["error"].keys() == {"kind", "message", "exit_code"}
    return code, value["error"], err


def test_every_command_is_here() -> None:
    assert {name for name, _ in commands()} == (REFUSED.keys() | CANNOT_FAIL)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refusal(capsys: Capture, name: str) -> None:
    call, kind = REFUSED[name]
    if name in ("lab down", "lab cut") and None in (shutil.which("ip"), shutil.which("tc")):
        pytest.skip("needs ip and tc: apt install iproute2")
    call, dash, program = call.partition(" -- ")
    words = [*name.split(), *shlex.split(call), "--json", *((["--", program]) if dash else [])]
    code, error, err = failure(capsys, words)
    assert (code, error["kind"], error["exit_code"]) == (2, kind, 2)
    assert err == f"antiphon: {error['message']}\n"


@pytest.mark.parametrize("name", sorted(REFUSED.keys() | CANNOT_FAIL))
def test_wrong_usage(capsys: Capture, name: str) -> None:
    code, error, err = failure(capsys, [*name.split(), "--json", "--frobnicate"])
    assert (code, error["kind"], error["exit_code"]) == (2, "Usage", 2)
    assert err == f"antiphon: {error['message']}\n"


@pytest.mark.parametrize(
    "words", ["--json", "frobnicate --json", "topology --json", "tune allreduce dgx1v --json --output="]
)
def test_wrong_usage_of_no_command(capsys: Capture, words: str) -> None:
    code, error, _ = failure(capsys, words.split())
    assert (code, error["exit_code"]) == (2, 2)


def test_what_is_proved_impossible_ends_with_1(capsys: Capture) -> None:
    code, error, _ = failure(capsys, ["frontier", "allgather", "ring:ranks=6", "--planner", "sccl:steps=2", "--json"])
    assert (code, error["kind"], error["exit_code"]) == (1, "Infeasible", 1)


@pytest.mark.parametrize(
    "words", ["--json bound allgather {}", "bound --json allgather {}", "bound allgather {} --json"]
)
def test_json_may_stand_anywhere(capsys: Capture, words: str) -> None:
    assert run(words.format("ring:ranks=4").split()) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["latency_steps"], err) == (2, "")


def test_json_is_of_one_command(capsys: Capture) -> None:
    assert run(["list", "models", "alpha-beta", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "alpha-beta"
    assert run(["list", "models", "alpha-beta"]) == 0
    assert not capsys.readouterr().out.startswith("{")


def test_json_is_no_value_of_an_option(capsys: Capture) -> None:
    code, error, _ = failure(capsys, ["plan", "allreduce", "ring:ranks=4", "-o", "--json"])
    assert (code, error["kind"]) == (2, "Usage")


@pytest.mark.parametrize("words", ["", "tune", "topology", "topology show", "bench", "bench micro", "fit", "lab run"])
def test_each_help_names_it(capsys: Capture, words: str) -> None:
    assert run([*words.split(), "--help"]) == 0
    assert "Every command: --json prints one JSON object" in " ".join(capsys.readouterr().out.split())


def test_the_json_of_another_program_is_its_own(capsys: Capture) -> None:
    assert run(["lab", "run", "none.json", "--", "program", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_without_json_nothing_is_on_stdout(capsys: Capture) -> None:
    assert run(["verify", "none.json"]) == 2
    assert capsys.readouterr() == ("", "antiphon: none.json: cannot be read: No such file or directory\n")
