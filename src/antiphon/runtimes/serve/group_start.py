"""How a group of processes gets its engine, its book and its wire: the same way under MPI, PyTorch and alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon import __version__
from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, Unsupported, quote
from antiphon.runtimes.engine.native import Engine, TransportFailed, Wire
from antiphon.runtimes.serve._told_once import told_once
from antiphon.runtimes.serve.auto_begin import begin, follow, is_auto
from antiphon.runtimes.serve.book import Book, decode_book, encode_book
from antiphon.runtimes.serve.group_book import base_program, group_book, read_any
from antiphon.runtimes.serve.mesh import Exchange
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.texts import base64_of, fields_of, no_message, text_of

_KINDS = {kind.__name__: kind for kind in (Invalid, Missing, Unsupported, TimedOut, TransportFailed)}


class Outdated(Exception):
    """What was heard first was not of those who take part: hear it again."""


@dataclass(frozen=True)
class Processes:
    """Who takes part. `places`: of every process its number among all `everyone` processes; `exchange`: hands everybody
    everybody's text, and may raise Outdated the second time. `strict`: a table that is not for this group is an error,
    else it is as if there were none."""

    rank: int
    ranks: int
    exchange: Exchange
    places: Sequence[int]
    everyone: int
    strict: bool = True
    timeout: float = 1800.0  # seconds without any progress in which plans are asked for (table "auto")


class Way(Protocol):
    """How processes come to a wire. Two texts of each go along with what a group tells anyway."""

    def tells(self, engine: Engine | None) -> str:
        """Process 0 has its engine then, the others may not."""

    def answers(self, engine: Engine, told: Sequence[str]) -> str:
        """What follows from what all have told."""

    def wire(self, engine: Engine, answers: Sequence[str]) -> Wire:
        """After nobody had anything to complain about."""

    def close(self) -> None:
        """Whatever became of it; the wire stays."""


def serve(
    group: Processes, table: Any, engine_of: Callable[[], Engine], way_of: Callable[[], Way], fill: bool
) -> Serving:
    """Collective. Only the table of process 0 is looked at; what goes wrong at one process is an error at all.

    Everybody hears from everybody twice: what there is, and whether all can go by it. `fill`: calls that no page is for
    get plans made at once, instead of being left to the library.
    """
    engine: Engine | None = None
    mine: dict[str, str] = {}
    with ExitStack() as stack:
        try:
            if group.rank == 0:
                engine = engine_of()  # compiles where that is still to be done, while the others wait
                mine |= _first_words(group, table, fill)
            way = way_of()
            stack.callback(way.close)
            mine["way"] = way.tells(engine)
        except (AntiphonError, OSError) as error:
            mine = _fault(error)
        opening = {**mine, "version": version()}
        while True:
            said, mine = _heard(group, opening), {}
            try:
                if not any("fault" in one for one in said):
                    engine = engine or engine_of()
                    mine["way"] = way.answers(engine, [_text(one, rank) for rank, one in enumerate(said)])
            except (AntiphonError, OSError) as error:
                mine = _fault(error)
            with suppress(Outdated):
                second = _heard(group, mine)
                break
        _complain(group, said)
        _complain(group, second)
        told, answers = said[0], [_text(one, rank) for rank, one in enumerate(second)]
        assert engine is not None
        book, base = (base64_of(told.get(name), "process 0") for name in ("book", "base"))
        begun = begin(group, lambda mine: _all_agreed(group, mine)) if told.get("auto") else None
        try:
            first = decode_book(book) if begun is None or begun.book is None else begun.book
            serving = Serving(engine, way.wire(engine, answers), group.rank, first, base, fill)
        except BaseException:
            if begun is not None and begun.apart is not None:
                begun.apart.end()
            raise
    if begun is not None:
        follow(begun, serving, group)
    return serving


def _first_words(group: Processes, table: Any, fill: bool) -> dict[str, str]:
    """By process 0."""
    auto = is_auto(table)
    return {
        "book": text_of(encode_book(_book(group, None if auto else table))),
        "base": text_of(base_program(group.ranks)) if fill else "",
        "auto": "1" if auto and group.ranks == group.everyone else "",
    }


def _text(one: dict[str, str], rank: int) -> str:
    found = one.get("way")
    if not isinstance(found, str):
        raise no_message(f"process {rank}", "expected how it can be reached")
    return found


def version() -> str:
    return __version__


def _book(group: Processes, table: Any) -> Book:
    if table is None:
        return Book("", group.ranks, (), (), ())
    whole = read_any(table)
    book = group_book(whole, group.ranks, group.places, group.everyone)
    if group.strict and not book.pages:
        name = os.fspath(table) if isinstance(table, str | os.PathLike) else "table"
        raise Invalid(
            f"{name}: {'; '.join(whole.left)}"
            if whole.left and not whole.pages
            else f"{name}: is for {whole.ranks} ranks ({quote(whole.machine)}), but there are {group.ranks} processes; "
            f"start {whole.ranks}, or make one for these: antiphon tune all full:ranks={group.ranks} -o table.json"
        )
    return book


def _fault(error: Exception) -> dict[str, str]:
    return {"fault": str(error), "kind": type(error).__name__}


def _all_agreed(group: Processes, mine: dict[str, str]) -> list[dict[str, str]]:
    """What everybody says, if nobody has anything to complain about."""
    said = _heard(group, mine)
    _complain(group, said)
    return said


def _complain(group: Processes, said: Sequence[dict[str, str]]) -> None:
    for rank, one in enumerate(said):
        if "fault" in one:
            where = "" if rank in (0, group.rank) else f"process {rank}: "
            error = _KINDS.get(str(one.get("kind")), Invalid)(where + str(one["fault"]))
            told_once(error, speaks=rank == group.rank)
            raise error


def _heard(group: Processes, mine: dict[str, str]) -> list[dict[str, str]]:
    """What everybody says; where nobody has anything to complain about, they are all of one version."""
    said = [fields_of(text, f"process {rank}") for rank, text in enumerate(group.exchange(json.dumps(mine)))]
    first: dict[str, str] = said[0]
    for rank, one in enumerate(said):
        if (theirs := one.get("version")) != first.get("version") and not any("fault" in other for other in said):
            raise Invalid(
                f"process {rank} runs version {theirs} of Antiphon, process 0 version {first.get('version')}; "
                "install the same for all"
            )
    return said
