"""Commands run in this process: what they print, and the one line that they say where something is wrong."""

import json
from typing import Any

import pytest

from antiphon.cli import planning, run
from antiphon.select.ledger import BEST_SO_FAR

Capture = pytest.CaptureFixture[str]

# On a busy machine a command may take longer than the seconds after which it says that it goes on.
planning.LOG_INTERVAL = 3600.0


def answer(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints; beside it `tune` at most names its first result."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert not [line for line in err.splitlines() if BEST_SO_FAR not in line]
    return json.loads(out)


def printed(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What a person reads."""
    capsys.readouterr()
    assert run(arguments) == code
    return capsys.readouterr().out


def text(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """The same as one line, wherever it is broken."""
    return " ".join(printed(capsys, *arguments, code=code).split())


def complaint(capsys: Capture, *arguments: str, code: int = 2) -> str:
    """The one line that a wrong command gives, and nothing on stdout."""
    capsys.readouterr()
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("antiphon: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err
