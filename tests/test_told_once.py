"""What is wrong with a table is an error at every process of a group; where nobody handles it, one of them tells it."""

import json
import sys
import time
from typing import Any
from unittest.mock import Mock

import pytest

from antiphon.errors import Invalid
from antiphon.runtimes.serve.group_start import Processes, start_serving

Capture = pytest.CaptureFixture[str]
FAULT = json.dumps({"fault": "nowhere.json: cannot be read: No such file or directory", "kind": "Invalid"})


@pytest.fixture(autouse=True)
def _own_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # so long the silent ones leave the word to who speaks
    for name in ("LOCAL_RANK", "ANTIPHON_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def ended(rank: int, capsys: Capture) -> str:
    """What a process says that does not handle the error; of the exchange the other's part is made up."""

    def exchange(text: str) -> list[str]:
        return [text, "{}"] if rank == 0 else [FAULT, text]

    unused: Any = None
    way = Mock(**{"offer.return_value": ""})
    with pytest.raises(Invalid, match="cannot be read") as caught:
        start_serving(Processes(rank, 2, exchange, [0, 1], 2), "nowhere.json", lambda: unused, lambda: way, fill=False)
    assert way.close.called == (rank == 1)  # process 0 had not come to it
    sys.excepthook(caught.type, caught.value, caught.tb)
    return capsys.readouterr().err


def test_one_process_tells_it(capsys: Capture) -> None:
    assert ended(0, capsys) == "antiphon: nowhere.json: cannot be read: No such file or directory\n"
    assert ended(1, capsys) == ""


def test_one_of_every_host_tells_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert ended(1, capsys).startswith("antiphon: nowhere.json")


def test_all_tell_all_where_asked_to(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_DEBUG", "1")
    assert ended(1, capsys).startswith("Traceback")


def test_other_errors_are_told_as_ever(capsys: Capture) -> None:
    ended(1, capsys)
    sys.excepthook(ValueError, ValueError("of the program's own"), None)
    assert capsys.readouterr().err == "ValueError: of the program's own\n"
