"""Start a group of processes: its engine, its book and its wire, in the same way under MPI, PyTorch and alone.

The engine is the C library that runs programs; the book holds the programs and the sizes they serve; the wire is the
connections between the processes. `start_serving` returns a `Serving` made of the three, at every process.

It needs only an exchange, by which every process gets the texts of all processes (`Processes.exchange`: an allgather of
MPI, the store of PyTorch, or sockets), and calls it twice:

    1. each process sends its version and how it can be reached; process 0 also its book
    2. each process sends what the others need to connect to it (`WireSetup.answer`), or the error that it had

So an error of one process (a missing compiler, a wrong table) is raised at all of them, instead of leaving the others
waiting. With the table `auto`, process 0 also looks for cached plans for the processes of the job, or starts a
subprocess that makes them (docs/auto.md).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from antiphon import __version__
from antiphon.core.cache import cache_folder
from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, Unsupported, quote
from antiphon.runtimes.engine.learned import LearnedLine, format_learned, parse_learned, read_learned
from antiphon.runtimes.engine.native import Engine, TransportFailed, Wire
from antiphon.runtimes.serve.auto_question import (
    AUTO,
    TABLE,
    AutoAnswer,
    build_question,
    kept_name,
    process_line,
    read_kept,
    read_processes,
)
from antiphon.runtimes.serve.auto_turns import PlanningProcess, Turns, fill_row
from antiphon.runtimes.serve.book import Book, decode_book, encode_book
from antiphon.runtimes.serve.group_book import base_program, default_book, group_book, read_any
from antiphon.runtimes.serve.ledger import watch_calls
from antiphon.runtimes.serve.mesh import Exchange
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.texts import base64_of, fields_of, no_message, text_of
from antiphon.units import parse_seconds

_ERRORS = {error.__name__: error for error in (Invalid, Missing, Unsupported, TimedOut, TransportFailed)}


class Outdated(Exception):
    """The texts of the first exchange came from processes of an earlier start of the job, as its store outlives them:
    repeat it."""


@dataclass(frozen=True)
class Processes:
    """The processes of a group."""

    rank: int  # of this process in the group
    ranks: int  # number of processes of the group
    exchange: Exchange  # gives every process the texts of all; it may raise Outdated the second time
    places: Sequence[int]  # per process of the group its number among all processes of the job
    job_size: int  # number of processes of the job
    strict: bool = True  # whether a table without a plan for this group is an error; else it starts without plans
    timeout: float = 1800.0  # seconds without any progress while asking for plans (table "auto")


class WireSetup(Protocol):
    """Connect the processes in three stages; the texts of the first two travel by the exchanges of `start_serving`."""

    def offer(self, engine: Engine | None) -> str:
        """Return how this process can be reached. `engine`: None except at process 0."""

    def answer(self, engine: Engine, offers: Sequence[str]) -> str:
        """After reading the offers of all, return what the other processes need to know."""

    def connect(self, engine: Engine, answers: Sequence[str]) -> Wire:
        """Return the wire, once no process has reported a fault."""

    def close(self) -> None:
        """Free everything but the wire, in any case."""


def start_serving(
    group: Processes, table: Any, engine_of: Callable[[], Engine], setup_of: Callable[[], WireSetup], fill: bool
) -> Serving:
    """Start serving a group. Collective; only process 0 reads the table, and an error of one process is raised at all.

    `engine_of` and `setup_of` create the engine and the wire's setup; their errors count as this process's. `fill`:
    make plans at once for calls that have no page, instead of leaving them to the MPI or PyTorch library.
    """
    engine: Engine | None = None
    fields: dict[str, str] = {}
    with ExitStack() as stack:
        try:
            if group.rank == 0:
                engine = engine_of()  # compiles if necessary, while the others wait
                fields |= _leader_fields(group, table, fill)
            setup = setup_of()
            stack.callback(setup.close)
            fields["setup"] = setup.offer(engine)
        except (AntiphonError, OSError) as error:
            fields = _fault_fields(error)
        # the first exchange: every process reports its offer, or its fault
        first_fields = {**fields, "version": version()}
        while True:
            offers, fields = _exchange_fields(group, first_fields), {}
            try:
                if not any("fault" in message for message in offers):
                    engine = engine or engine_of()
                    fields["setup"] = setup.answer(engine, _setup_texts(offers))
            except (AntiphonError, OSError) as error:
                fields = _fault_fields(error)
            # the second exchange; repeated from the start if the first one read texts of earlier processes
            with suppress(Outdated):
                answers = _exchange_fields(group, fields)
                break
        # faults are raised only now, when all processes have received them
        _raise_fault(group, offers)
        _raise_fault(group, answers)
        setup_answers = _setup_texts(answers)
        assert engine is not None
        leader_fields = offers[0]  # `_leader_fields`
        book, base = (base64_of(leader_fields.get(name)) for name in ("book", "base"))
        auto = start_auto(group) if leader_fields.get("auto") else None
        try:
            # a cached answer for table `auto` replaces the book of process 0
            first_book = decode_book(book) if auto is None or auto.book is None else auto.book
            serving = Serving(engine, setup.connect(engine, setup_answers), group.rank, first_book, base, fill)
        except BaseException:
            if auto is not None and auto.planning is not None:
                auto.planning.end()
            raise
    if auto is not None:
        _ask_for_plans(auto, serving, group)
    serving.agrees = bool(leader_fields.get("agree"))
    if leader_fields.get("learn"):
        path = os.environ.get(LEARNED, "") if group.rank == 0 else ""
        lines = parse_learned(str(leader_fields.get("learned", "")))
        serving.learn(base64_of(leader_fields["learn"]), lines, path)
    watch_calls(engine, serving.ledger, group.places, group.rank)
    return serving


def _leader_fields(group: Processes, table: Any, fill: bool) -> dict[str, str]:
    """Return what process 0 adds to the first exchange: the book, and programs that all need from the start.

    "learn": the allreduce by which learners compare times, "" unless they learn; "learned": results of earlier jobs.
    "agree": not empty if a call ends only when all processes have succeeded. "base": see `base_program`.
    """
    auto = isinstance(table, str | os.PathLike) and os.fspath(table) == AUTO
    learns = os.environ.get(LEARN, "") not in ("", "0") and group.ranks > 1
    path = os.environ.get(LEARNED, "")
    earlier: list[LearnedLine] = []
    try:
        if learns and path and os.path.exists(path):
            earlier = read_learned(path, skip_damaged=True)
    except AntiphonError as error:  # the job goes on without it
        print(f"antiphon: ANTIPHON_LEARNED: {error}", file=sys.stderr)
    return {
        "learn": text_of(default_book("allreduce", group.ranks).programs[0]) if learns else "",
        "learned": format_learned(earlier),
        "agree": os.environ.get(AGREE, "").removeprefix("0"),  # "0" is off, too
        "book": text_of(encode_book(_read_book(group, None if auto else table))),
        "base": text_of(base_program(group.ranks)) if fill else "",
        # plans are made for all processes of the job, not for subgroups
        "auto": "1" if auto and group.ranks == group.job_size else "",
    }


def _setup_texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return the texts of `WireSetup` in the messages of all processes."""
    texts = []
    for rank, message in enumerate(messages):
        text = message.get("setup")
        if not isinstance(text, str):
            raise no_message(f"process {rank}", "expected how it can be reached")
        texts.append(text)
    return texts


def version() -> str:
    """Return our version; a function, as tests replace it."""
    return __version__


def table_or_auto(table: Any) -> Any:
    """Return the table, or `auto` if there is none and $ANTIPHON_TABLE is that."""
    return AUTO if table is None and os.environ.get(TABLE) == AUTO else table


def _read_book(group: Processes, table: Any) -> Book:
    """Return the pages of a table that serve the group; without a table a book without pages."""
    if table is None:
        return Book(machine="", ranks=group.ranks, hosts=(), pages=(), programs=())
    full_book = read_any(table)
    book = group_book(full_book, group.ranks, group.places, group.job_size)
    # a table may have plans for subgroups only; the group of all ranks then uses default plans
    serves_subgroups = full_book.ranks == group.ranks and bool(full_book.pages)
    if group.strict and not book.pages and not serves_subgroups:
        name = os.fspath(table) if isinstance(table, str | os.PathLike) else "table"
        raise Invalid(
            f"{name}: {'; '.join(full_book.omissions)}"
            if full_book.omissions and not full_book.pages
            else f"{name}: is for {full_book.ranks} ranks ({quote(full_book.machine)}), but there are {group.ranks} "
            f"processes; start {full_book.ranks}, or make one for these: antiphon tune all full:ranks={group.ranks} "
            "-o table.json"
        )
    return book


# ---- messages of the exchanges ----


def _exchange_fields(group: Processes, fields: dict[str, str]) -> list[dict[str, Any]]:
    """Return the messages of all processes. Invalid where versions differ, unless a message reports a fault."""
    messages = [fields_of(text, f"process {rank}") for rank, text in enumerate(group.exchange(json.dumps(fields)))]
    # formats of messages and books may differ between versions
    leader_version = messages[0].get("version")
    if not any("fault" in message for message in messages):
        for rank, message in enumerate(messages):
            if (own_version := message.get("version")) != leader_version:
                raise Invalid(
                    f"process {rank} runs version {own_version} of Antiphon, process 0 version {leader_version}; "
                    "install the same for all"
                )
    return messages


def _fault_fields(error: Exception) -> dict[str, str]:
    return {"fault": str(error), "kind": type(error).__name__}


def _raise_fault(group: Processes, messages: Sequence[dict[str, Any]]) -> None:
    """Raise the first fault that a process reported, at all processes alike."""
    for rank, message in enumerate(messages):
        if "fault" in message:
            where = "" if rank in (0, group.rank) else f"process {rank}: "
            error = _ERRORS.get(str(message.get("kind")), Invalid)(where + str(message["fault"]))
            print_once(error, prints=rank == group.rank)
            raise error


# Environment variables: choose among candidates for each call; the file of what was learned; see `Serving.agrees`
LEARN, LEARNED, AGREE = "ANTIPHON_LEARN", "ANTIPHON_LEARNED", "ANTIPHON_AGREE"

# ---- table auto ----

WAIT = "ANTIPHON_AUTO_WAIT"  # environment variable: seconds to wait for plans before the program starts
_DEFAULT_WAIT = 4.0  # seconds, where planning has no processor of its own
_POLL = 0.005  # seconds


@dataclass
class AutoStart:
    """How a group with table `auto` starts: with a cached book, or planning while it runs."""

    book: Book | None  # plans from the cache
    program: bytes  # of an allreduce, by which the processes ask whether plans are ready (auto_turns)
    path: str  # the cache file
    planning: PlanningProcess | None = None  # the subprocess that plans; at process 0 only
    answer: AutoAnswer | None = None  # the plans, if process 0 has them already
    why: str = ""  # the reason why there are no plans


def start_auto(group: Processes) -> AutoStart:
    """Find or start planning for the processes of the group. Collective."""

    def exchange(fields: dict[str, str]) -> list[dict[str, Any]]:
        messages = _exchange_fields(group, fields)
        _raise_fault(group, messages)
        return messages

    # process 0 describes host and GPUs of every process in the question (auto_question)
    messages = exchange({"facts": process_line()})
    fields: dict[str, str] = {}
    start = AutoStart(book=None, program=b"", path="")
    if group.rank == 0:
        start = _find_or_plan(build_question([str(message.get("facts", "")) for message in messages]))
        book = "" if start.answer is None else text_of(start.answer.book)
        program = "" if book else text_of(default_book("allreduce", group.ranks).programs[0])
        fields = {"book": book, "path": start.path, "program": program}
    leader, *_ = exchange(fields)
    cached, start.program = (base64_of(leader.get(name)) for name in ("book", "program"))
    start.book, start.path = decode_book(cached) if cached else None, str(leader.get("path", ""))
    return start


def _find_or_plan(text: str) -> AutoStart:
    """Answer a question (a text that describes the job's processes; auto_question) from the cache, else by planning."""
    folder = cache_folder("auto")
    path = None if folder is None else folder / kept_name(text)
    answer, why = (None, "") if path is None else read_kept(path)
    start = AutoStart(
        book=None, program=b"", path="" if path is None else str(path), planning=None, answer=answer, why=why
    )
    if answer is None:
        try:
            start.planning = PlanningProcess(text, path)
            start.answer = _await_answer(start.planning, text)
            start.planning.lower()  # its priority: from here on planning competes with the job
        except AntiphonError as error:
            start.why = str(error)
    if start.planning is not None and start.answer is not None:
        start.planning.end()
    return start


def _await_answer(planning: PlanningProcess, text: str) -> AutoAnswer | None:
    """Wait for the answer before the program starts, for $ANTIPHON_AUTO_WAIT seconds.

    By default it waits only where the processes of this host occupy all processors: then they would slow planning down
    later, while now most of them only wait.
    """
    job = read_processes(text)
    # processes with the same boot id are on one host
    occupied = sum(process.boot == job[0].boot for process in job) >= (os.cpu_count() or 1)
    setting = os.environ.get(WAIT)
    seconds = parse_seconds(setting, WAIT, bare=True) if setting else _DEFAULT_WAIT if occupied else 0.0
    end = time.monotonic() + seconds
    while (answer := planning.poll()) is None and time.monotonic() < end:
        time.sleep(_POLL)
    return answer


def _ask_for_plans(start: AutoStart, serving: Serving, group: Processes) -> None:
    """Fill the row of the report, and have the group ask for plans unless it has them already."""
    row = serving.ledger.row(AUTO, schedule="", served_by="nothing", why=start.why or "planning has not ended")
    if start.answer is not None:
        fill_row(row, start.answer, number=1)  # used from the first call on
    elif start.book is not None:
        row.served_by, row.why = "kept", "from call 1 on"
    else:
        turns = Turns(group.rank == 0, start.planning, start.path, row, group.timeout, why=start.why)
        serving.ask_for_plans(turns, start.program)


# ---- errors that all processes have at the same time ----

_PRINTS_ERROR = "_antiphon_prints"
_SILENT_DELAY = 0.5  # seconds that the silent processes wait: launchers end all when the first has ended


def print_once(error: Exception, prints: bool) -> None:
    """Mark an error that is about to be raised everywhere, so that one process prints it if nothing catches it.

    The process that `prints` shows one line, the others end silently, with the usual exit code. ANTIPHON_DEBUG=1 shows
    the tracebacks of all. The first process that torchrun started on a host always prints: every host has its own log.
    """
    setattr(error, _PRINTS_ERROR, prints or os.environ.get("LOCAL_RANK") == "0")
    if getattr(sys.excepthook, "__module__", "") != __name__:
        _install_hook(sys.excepthook)


def _install_hook(usual: object) -> None:
    """Replace `sys.excepthook`, which is `usual`; errors that `print_once` did not mark still go there."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        prints = getattr(error, _PRINTS_ERROR, None)
        if prints is None or os.environ.get("ANTIPHON_DEBUG"):
            usual(kind, error, trace)  # type: ignore[operator]
        elif prints:
            print(f"antiphon: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(_SILENT_DELAY)

    sys.excepthook = hook
