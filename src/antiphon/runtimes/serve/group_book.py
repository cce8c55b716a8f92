"""The book of one group of processes: the pages of a table that fit it, with ranks renumbered as in the group.

For instance, a plan for the ranks 2 and 3 of a machine serves a group of these two processes, as ranks 0 and 1. For
kinds of calls without a plan in the table, `default_book` makes plans by standard algorithms.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from antiphon import __version__
from antiphon.core.cache import cache_folder
from antiphon.core.collective import ROOTED
from antiphon.core.files import is_ours
from antiphon.core.plan import Plan
from antiphon.core.program import among, decode, encode
from antiphon.errors import Invalid, quote
from antiphon.runtimes.serve.book import Book, Page, encode_book, make_book, proven_book, read_table
from antiphon.runtimes.serve.files import write_cache_file

# Planners for fully connected processes, each with the size in bytes from which it is used: few steps for small calls,
# few bytes per process for large ones.
DEFAULTS: dict[str, tuple[tuple[int, str], ...]] = {
    "allreduce": ((0, "recursive-doubling"), (65536, "ring")),
    "allgather": ((0, "bruck"), (65536, "ring")),
    "reducescatter": ((0, "direct"), (65536, "ring")),
    "broadcast": ((0, "binomial-tree"),),
    "reduce": ((0, "binomial-tree"),),
    "gather": ((0, "direct"),),
    "scatter": ((0, "direct"),),
    "alltoall": ((0, "direct"),),
}
# The same for processes on one host. Messages cost little there, and data for several processes is copied only once, so
# the algorithms with the fewest steps are the fastest.
NEAR: dict[str, tuple[tuple[int, str], ...]] = {
    **DEFAULTS,
    "allreduce": ((0, "direct"), (10_000, "colocated-ps")),
    "allgather": ((0, "direct"),),
    "reducescatter": ((0, "direct"),),
    "broadcast": ((0, "direct"),),
}
MAX_NEAR_RANKS = 32  # beyond, the many messages of NEAR are slower than more steps
MAX_CACHED_RANKS = 16  # larger books than for these (0.2 MB) are not cached
MAX_CACHED_FILES = 512  # in the folder; the oldest are removed


def default_book(kind: str, ranks: int, root: int = -1, near: bool = False) -> Book:
    """Return plans for a kind of call among fully connected ranks, or on one host (`near`).

    Books of small groups are cached, in memory and as files: without that, importing the planners and planning would
    take most of the time in which a group starts."""
    key = kind, ranks, root if kind in ROOTED else -1, near and ranks <= MAX_NEAR_RANKS
    return _cached_default_book(*key) if ranks <= MAX_CACHED_RANKS else _make_default_book(*key)


@lru_cache(maxsize=128)
def _cached_default_book(kind: str, ranks: int, root: int, near: bool) -> Book:
    name = hashlib.sha256(f"{__version__} {DEFAULTS} {NEAR} {kind} {ranks} {root} {near}".encode()).hexdigest()
    folder = cache_folder("defaults")
    path = folder / f"{name}.book" if folder else None
    if path is not None and is_ours(path.parent, folder=True) and is_ours(path):
        with suppress(OSError, Invalid):  # a damaged file is replaced
            return proven_book(path.read_bytes())
    book = _make_default_book(kind, ranks, root, near)
    if path is not None:
        with suppress(OSError):
            write_cache_file(encode_book(book), path, limit=MAX_CACHED_FILES)
    return book


def _make_default_book(kind: str, ranks: int, root: int, near: bool) -> Book:
    """Plan for a kind of call: a page per planner of DEFAULTS or NEAR."""
    from antiphon.select import plan
    from antiphon.topologies import topology

    machine = topology(f"full:ranks={ranks}")
    options: dict[str, Any] = {"root": root} if kind in ROOTED else {}
    pages: list[Page] = []
    programs: list[bytes] = []
    choices = (NEAR if near else DEFAULTS)[kind]
    stops = [*(start for start, _ in choices[1:]), None]
    for number, ((start, planner), stop) in enumerate(zip(choices, stops, strict=True)):
        single = make_book([plan(kind, machine, planner=planner, **options)], every_root=False)
        pages.append(replace(single.pages[0], start=start, stop=stop, planner=f"{planner} (default)", program=number))
        programs += single.programs
    return Book(machine.name, ranks, hosts=(), pages=tuple(pages), programs=tuple(programs))


def base_program(ranks: int) -> bytes:
    """Return the program by which process 0 broadcasts plans that it makes later: a broadcast."""
    return default_book("broadcast", ranks, root=0).programs[0]


def read_any(table: Any) -> Book:
    """Return the book of a table: a path, a book or its bytes, plans, a mapping of plans, or the result of `tune`.

    Its programs are verified, here or before."""
    if isinstance(table, Book | bytes):
        return proven_book(encode_book(table) if isinstance(table, Book) else table)
    if isinstance(table, str | os.PathLike):
        return read_table(table)
    if isinstance(table, Plan):
        return make_book([table])
    plans = getattr(table, "plans", table)
    plans = list(plans.values()) if isinstance(plans, Mapping) else plans
    if isinstance(plans, Iterable):
        plans = list(plans)
        if plans and all(isinstance(plan, Plan) for plan in plans):
            return make_book(plans)
    raise Invalid(f"table: expected a file, a plan, plans, a tuning or a book, got {quote(type(table).__name__)}")


def group_book(book: Book, ranks: int, places: Sequence[int], job_size: int) -> Book:
    """Return the pages for a group of `ranks` processes, at these places among the `job_size` processes of the job.

    A group as large as the machine uses its ranks in order. If the job has as many processes as the machine has ranks,
    a smaller group uses the plans for its places. Members of pages ascend, so no page fits places that do not ascend.
    In a job of another size it uses plans for any process group of the group's size, process i as the i-th member.
    Empty if nothing fits.
    """
    members: tuple[int, ...] | None = None
    if ranks == book.ranks:
        members = tuple(range(ranks))
    elif job_size == book.ranks:
        members = tuple(places)
    else:
        members = next((page.members for page in book.pages if len(page.members) == ranks), None)
    rank_of = {member: rank for rank, member in enumerate(members or ())}
    pages: list[Page] = []
    programs: dict[int, int] = {}  # number in `book` -> number in the new book
    for page in book.pages:
        if page.members != members:
            continue
        # -1: no program, the MPI library is faster
        program = programs.setdefault(page.program, len(programs)) if page.program >= 0 else -1
        root = -1 if page.root < 0 else rank_of[page.root]
        pages.append(replace(page, members=tuple(range(ranks)), root=root, program=program))
    used_programs = [
        renumber_program(book.programs[i], members or ()) if ranks < book.ranks else book.programs[i] for i in programs
    ]
    return Book(book.machine, ranks, hosts=(), pages=tuple(pages), programs=tuple(used_programs))


def renumber_program(data: bytes, members: Sequence[int]) -> bytes:
    """Return a program file for a process group as one for a machine of just these ranks, in their order.

    A file holds up to two programs, the variants in place and out of place; all are renumbered.
    """
    return encode([among(program, members) for program in decode(data)])
