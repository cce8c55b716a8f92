"""The beginning of a group whose table is `auto`: all say where they are, and process 0 finds the plans that are kept
for that, or starts what makes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon.core.cache import cache_folder
from antiphon.errors import AntiphonError
from antiphon.runtimes.serve.auto_apart import Apart
from antiphon.runtimes.serve.auto_kept import Answer, read_kept
from antiphon.runtimes.serve.auto_question import AUTO, TABLE, facts, kept_name, processes, question
from antiphon.runtimes.serve.auto_turns import Turns, fill_row
from antiphon.runtimes.serve.book import Book, decode_book
from antiphon.runtimes.serve.group_book import default_book
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.texts import base64_of, text_of
from antiphon.units import parse_seconds

WAIT = "ANTIPHON_AUTO_WAIT"
USUAL_WAIT, _PAUSE = 4.0, 0.005  # seconds
Agreed = Callable[[dict[str, str]], Sequence[dict[str, str]]]


class RankGroup(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def timeout(self) -> float: ...


@dataclass
class Begun:
    """`book`: what was kept; else the `program` of a sum, by which all ask for what `apart`, at process 0, makes."""

    book: Book | None
    program: bytes
    path: str
    apart: Apart | None = None
    answer: Answer | None = None
    why: str = ""


def auto_or(table: Any) -> Any:
    """Where no table is given, `auto` if the environment says so."""
    return AUTO if table is None and os.environ.get(TABLE) == AUTO else table


def is_auto(table: object) -> bool:
    return isinstance(table, str | os.PathLike) and os.fspath(table) == AUTO


def begin(group: RankGroup, agreed: Agreed) -> Begun:
    """Collective: `agreed` hands everybody what everybody says."""
    said = agreed({"facts": facts()})
    mine: dict[str, str] = {}
    begun = Begun(None, b"", "")
    if group.rank == 0:
        begun = _kept_or_planned(question([str(one.get("facts", "")) for one in said]))
        book = "" if begun.answer is None else text_of(begun.answer.book)
        program = "" if book else text_of(default_book("allreduce", group.ranks).programs[0])
        mine = {"kept": book, "path": begun.path, "sum": program}
    first = agreed(mine)[0]
    kept, begun.program = (base64_of(first.get(name), "process 0") for name in ("kept", "sum"))
    begun.book, begun.path = decode_book(kept) if kept else None, str(first.get("path", ""))
    return begun


def _kept_or_planned(text: str) -> Begun:
    """At process 0."""
    place = cache_folder("auto")
    path = None if place is None else place / kept_name(text)
    answer, why = (None, "") if path is None else read_kept(path)
    begun = Begun(None, b"", "" if path is None else str(path), None, answer, why)
    if answer is None:
        try:
            begun.apart = Apart(text, path)
            begun.answer = _waited(begun.apart, text)
            begun.apart.lower()
        except AntiphonError as error:
            begun.why = str(error)
    if begun.apart is not None and begun.answer is not None:
        begun.apart.end()
    return begun


def _waited(apart: Apart, text: str) -> Answer | None:
    """The answer, if it comes before the program starts, in as many seconds as there are for that. Where the processes
    of this host leave no processor to who plans, there are some: they are busy while they wait, most of them."""
    who = processes(text)
    full = sum(one.boot == who[0].boot for one in who) >= (os.cpu_count() or 1)
    told = os.environ.get(WAIT)
    end = time.monotonic() + (parse_seconds(told, WAIT, bare=True) if told else USUAL_WAIT if full else 0.0)
    while (found := apart.look()) is None and time.monotonic() < end:
        time.sleep(_PAUSE)
    return found


def follow(begun: Begun, serving: Serving, group: RankGroup) -> None:
    """What the report says, and that the group asks."""
    row = serving.ledger.row(AUTO, "", "nothing", begun.why or "planning has not ended")
    if begun.answer is not None:
        fill_row(row, begun.answer, 1)
    elif begun.book is not None:
        row.served_by, row.why = "kept", "from call 1 on"
    else:
        turns = Turns(group.ranks, group.rank == 0, begun.apart, begun.path, row, group.timeout, why=begun.why)
        serving.later(turns, begun.program)
