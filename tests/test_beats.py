"""Long work is not silent where stderr is no terminal."""

from __future__ import annotations

import threading

import pytest

from antiphon.cli.planning import beats


def test_the_last_that_was_told_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        heard.append(text)
        if sum(line.startswith("1 of 2") for line in heard) == 2:
            twice.set()

    monkeypatch.setattr("antiphon.cli.planning.EVERY", 0.001)
    monkeypatch.setattr("antiphon.cli.planning.say", say)
    with beats() as tell:
        tell("1 of 2")
        assert twice.wait(60)
    count = len(heard)
    assert heard[-1].endswith(" s)")
    assert not any("beat" in thread.name for thread in threading.enumerate())  # nobody is left to tell more
    assert len(heard) == count
