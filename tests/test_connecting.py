"""Processes of one host come to their wire by what all tell: memory, pipes, and proofs that they know the secret."""

import json
import os
import select
import shutil
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from antiphon.errors import AntiphonError, Invalid
from antiphon.runtimes.engine.native import Engine, TransportFailed, Wire
from antiphon.runtimes.serve.group_book import base_program
from antiphon.runtimes.serve.secret import Secret
from antiphon.runtimes.serve.wires import AlivePipes, Connecting, engine_over_sockets

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not os.path.isdir("/proc/self/fd"), reason="needs a C compiler and /proc"
)
Heard = Callable[[int, list[str]], list[str]]  # what a rank is handed of what all told


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_over_sockets()


class Stopped(Exception):
    """Sockets would be connected now, among other processes."""


def by_sockets(text: str) -> list[str]:
    raise Stopped


def wires(engine: Engine, *secrets: str, heard: Heard = lambda rank, told: told) -> tuple[list[Any], list[Connecting]]:
    """The wire of each, or what it raised. Nobody waits for anybody, so they go one after another."""
    given = [Secret(text.encode(), "here") if text else None for text in secrets]
    ways = [Connecting(rank, len(given), by_sockets, 5.0, secret) for rank, secret in enumerate(given)]
    try:
        told = [way.offer(engine if rank == 0 else None) for rank, way in enumerate(ways)]
        answers = [way.answer(engine, heard(rank, told)) for rank, way in enumerate(ways)]
        return [outcome(way, engine, answers) for way in ways], ways
    finally:
        for way in ways:
            way.close()


def outcome(way: Connecting, engine: Engine, answers: list[str]) -> Wire | str:
    try:
        return way.connect(engine, answers)
    except (AntiphonError, Stopped) as error:
        return str(error) or "sockets"


def test_who_knows_the_secret_gets_a_wire_without_being_connected(engine: Engine) -> None:
    before = len(os.listdir("/proc/self/fd"))
    found, _ = wires(engine, "one", "one", "one")
    assert [one.near for one in found] == [True] * 3
    assert len(os.listdir("/proc/self/fd")) == before + 9  # each its own pipe, and those of two others
    for one in found:
        one.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("secrets", [("one", "one", "other"), ("other", "one", "one"), ("", "", "one")])
def test_who_knows_another_secret_is_told_to_all(engine: Engine, secrets: tuple[str, ...]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    found, _ = wires(engine, *secrets)
    assert all(
        "does not know the secret of rank" in one and "give every process the same secret" in one for one in found
    )
    assert len(os.listdir("/proc/self/fd")) == before


def test_texts_that_were_changed_on_the_way_are_noticed(engine: Engine) -> None:
    """As by one who can write to the store, but does not know the secret."""

    def heard(rank: int, told: list[str]) -> list[str]:
        return [told[0], json.dumps({**json.loads(told[1]), "once": "00"}), told[2]] if rank == 0 else told

    found, _ = wires(engine, "one", "one", "one", heard=heard)
    assert all("does not know the secret" in one for one in found)


@pytest.mark.parametrize("what", ["life", "memory"])
def test_who_cannot_see_another_keeps_all_from_sharing(engine: Engine, what: str) -> None:
    """As in a container whose processes are numbered otherwise."""

    def heard(rank: int, told: list[str]) -> list[str]:
        if rank != 1:
            return told
        one = json.loads(told[0])
        other = [one["life"][0], one["life"][1], one["life"][2] + 1] if what == "life" else "00" * 24
        return [json.dumps({**one, what: other}), *told[1:]]

    before = len(os.listdir("/proc/self/fd"))
    found, _ = wires(engine, "one", "one", "one", heard=heard)
    assert found == ["sockets"] * 3
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("name", "value"), [("ANTIPHON_SHARED", "0"), ("ANTIPHON_INTERFACE", "lo")])
def test_what_one_process_does_not_want_no_process_does(
    engine: Engine, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Connecting.__init__

    def made(self: Connecting, rank: int, *given: Any) -> None:
        with monkeypatch.context() as patch:
            if rank == 1:
                patch.setenv(name, value)
            usual(self, rank, *given)

    monkeypatch.setattr(Connecting, "__init__", made)
    assert wires(engine, "one", "one", "one")[0] == ["sockets"] * 3


def test_what_is_no_way_is_told_by_its_rank(engine: Engine) -> None:
    with closing(Connecting(0, 2, by_sockets, 5.0, None)) as way:
        for text in (
            '{"once": "", "life": [1, 2], "memory": ""}',
            '{"once": "", "memory": ""}',
            "[]",
            '{"once": "", "life": null, "memory": "", "rails": 9}',
        ):
            with pytest.raises(Invalid, match="rank 1 sent what is no message of this program"):
                way.answer(engine, [way.offer(engine), text])
        huge = '{"once": "", "life": [99999999999999999999, 1, 1], "memory": "", "rails": 1}'
        assert way.answer(engine, [way.offer(None), huge]).startswith("no ")


# ---- who is gone ----


def test_a_pipe_tells_that_a_process_is_gone() -> None:
    first, second = AlivePipes(0, 2), AlivePipes(1, 2)
    assert second.open_other(0, first.address)
    end = second.release()[0]
    poll = select.poll()
    poll.register(end, select.POLLIN)
    assert poll.poll(0) == []
    first.close()
    assert poll.poll(0)
    os.close(end)
    os.close(second.release()[1])


def test_what_was_closed_or_is_another_pipe_is_not_seen() -> None:
    first, second, third = AlivePipes(0, 3), AlivePipes(1, 3), AlivePipes(2, 3)
    assert not second.open_other(0, (*first.address[:2], third.address[2]))
    address = first.address
    first.close()
    assert not third.open_other(0, address)
    second.close()
    third.close()


def pending(engine: Engine, found: list[Wire]) -> Callable[[int], str]:
    """A broadcast from rank 0, of which the others wait for what does not come."""

    def call(rank: int) -> str:
        plan = engine.program(base_program(len(found))).plan(rank, 8, True)
        with pytest.raises(TransportFailed) as told:
            plan.run(None, np.zeros(8, np.uint8), found[rank], "sum", 20.0)
        return str(told.value)

    return call


def test_a_cut_ends_calls_here_and_at_the_others_also_where_a_child_holds_its_pipe(engine: Engine) -> None:
    found, ways = wires(engine, "one", "one", "one")
    call = pending(engine, found)
    child = os.fork()
    if not child:
        select.select([], [], [], 30)
        os._exit(0)
    try:
        ways[0].cut()
        assert call(1) == "the connection to rank 0 is lost: it has been closed"
        assert call(2) == "the connection to rank 0 is lost: it has been closed"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        for one in found:
            one.close()


def test_who_has_cut_is_told_so(engine: Engine) -> None:
    found, ways = wires(engine, "one", "one")
    ways[1].cut()
    assert pending(engine, found)(1) == "the group has been aborted here"
    for one in found:
        one.close()
