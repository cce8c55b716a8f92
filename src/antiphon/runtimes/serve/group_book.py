"""The book of one group of processes: what of a table is for it, numbered as the group numbers itself."""

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
from antiphon.runtimes.serve.files import keep

# Plans for processes that are all linked alike: up to so many bytes one planner, from there on the other.
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
# On one host, where a message costs little and the same data for several is copied once: the fewest steps.
NEAR: dict[str, tuple[tuple[int, str], ...]] = {
    **DEFAULTS,
    "allreduce": ((0, "direct"), (10_000, "colocated-ps")),
    "allgather": ((0, "direct"),),
    "reducescatter": ((0, "direct"),),
    "broadcast": ((0, "direct"),),
}
MOST_NEAR = 32  # ranks: beyond, so many messages are slower than more steps
SMALL = 16  # ranks: books for no more are kept, at most 0.2 MB each
MOST_DEFAULTS = 512  # files


def default_book(kind: str, ranks: int, root: int = -1, near: bool = False) -> Book:
    """Plans for a kind of call on a machine in which all ranks are linked with each other, or on one host (`near`).

    Those of small groups are kept, in memory and as files: with the modules that plan they are most of what a group
    takes to start."""
    given = kind, ranks, root if kind in ROOTED else -1, near and ranks <= MOST_NEAR
    return _kept_default(*given) if ranks <= SMALL else _default_book(*given)


@lru_cache(maxsize=128)
def _kept_default(kind: str, ranks: int, root: int, near: bool) -> Book:
    name = hashlib.sha256(f"{__version__} {DEFAULTS} {NEAR} {kind} {ranks} {root} {near}".encode()).hexdigest()
    folder = cache_folder("defaults")
    path = folder / f"{name}.book" if folder else None
    if path is not None and is_ours(path.parent, folder=True) and is_ours(path):
        with suppress(OSError, Invalid):  # a damaged one is made anew
            return proven_book(path.read_bytes())
    book = _default_book(kind, ranks, root, near)
    if path is not None:
        with suppress(OSError):
            keep(encode_book(book), path, most=MOST_DEFAULTS)
    return book


def _default_book(kind: str, ranks: int, root: int, near: bool) -> Book:
    from antiphon.select import plan
    from antiphon.topologies import topology

    machine = topology(f"full:ranks={ranks}")
    who: dict[str, Any] = {"root": root} if kind in ROOTED else {}
    pages: list[Page] = []
    programs: list[bytes] = []
    choices = (NEAR if near else DEFAULTS)[kind]
    for number, (start, planner) in enumerate(choices):
        made = make_book([plan(kind, machine, planner=planner, **who)], every_root=False)
        stop = choices[number + 1][0] if number + 1 < len(choices) else None
        pages.append(replace(made.pages[0], start=start, stop=stop, planner=f"{planner} (default)", program=number))
        programs += made.programs
    return Book(machine.name, ranks, (), tuple(pages), tuple(programs))


def base_program(ranks: int) -> bytes:
    """A broadcast from process 0."""
    return default_book("broadcast", ranks, 0).programs[0]


def read_any(table: Any) -> Book:
    """The book of whatever stands for a table: a path, a book or its bytes, a plan, plans, a mapping of them, or what
    `tune` gave. Its programs are proven, here or before."""
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


def group_book(book: Book, ranks: int, places: Sequence[int], everyone: int) -> Book:
    """The pages for a group of so many processes, which sit at these places among all that there are.

    A group as large as the machine takes its ranks in order. Where the processes are as many as the machine has ranks,
    a group of some takes the plans for its places, in ascending order. Else it takes plans for any process group of its
    size, process i being the i-th member. Empty where nothing fits.
    """
    members: tuple[int, ...] | None = None
    if ranks == book.ranks:
        members = tuple(range(ranks))
    elif everyone == book.ranks:
        members = tuple(places)
    else:
        members = next((page.members for page in book.pages if len(page.members) == ranks), None)
    number = {member: i for i, member in enumerate(members or ())}
    pages: list[Page] = []
    programs: dict[int, int] = {}
    for page in book.pages:
        if page.members != members:
            continue
        at = programs.setdefault(page.program, len(programs)) if page.program >= 0 else -1
        root = -1 if page.root < 0 else number[page.root]
        pages.append(replace(page, members=tuple(range(ranks)), root=root, program=at))
    small = [renumbered(book.programs[i], members or ()) if ranks < book.ranks else book.programs[i] for i in programs]
    return Book(book.machine, ranks, (), tuple(pages), tuple(small))


def renumbered(data: bytes, members: Sequence[int]) -> bytes:
    """A program file for a process group as one for a machine of just these ranks, in their order."""
    return encode([among(program, members) for program in decode(data)])
