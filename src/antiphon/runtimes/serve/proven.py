"""Whether the programs of a book are what its pages say; and the marks of those books that were found right before.

A mark is an empty file of this user whose name is the SHA-256 of the book and of the text of what proves it. They lie
in $ANTIPHON_CACHE/proven, else in antiphon/proven of $XDG_CACHE_HOME or ~/.cache; ANTIPHON_CACHE=off keeps none. A mark
inside of a book could be forged, and one that others may write is not believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

import antiphon.core
from antiphon.core.cache import cache_folder
from antiphon.core.files import is_ours, within
from antiphon.core.program import Program, decode, prove
from antiphon.errors import Invalid
from antiphon.runtimes.serve.pages import Book, Page

MOST_MARKS = 4096


def refuse_wrong(book: Book) -> None:
    """Invalid, naming the page, where a program is not the collective that a page lists it for. Each is proven once."""
    listed: dict[int, list[Page]] = {}
    for page in book.pages:
        if page.program >= 0:
            listed.setdefault(page.program, []).append(page)
    for number, pages in listed.items():
        with within(f"the program for {pages[0].kind} ({pages[0].planner})"):
            programs = decode(book.programs[number])
            for page in pages:
                _refuse_misfit(book, page, programs)
            prove(*programs)


def _refuse_misfit(book: Book, page: Page, programs: Sequence[Program]) -> None:
    collective = programs[0].collective
    roots = (page.root,) if page.root >= 0 else ()
    facts = collective.kind, collective.ranks, collective.members, collective.roots
    if facts != (page.kind, book.ranks, page.members, roots) or np.any(collective.weights != 1):
        raise Invalid(
            f"it is {collective.kind} among other ranks, with another root or with uneven blocks than its page says"
            if collective.kind == page.kind
            else f"it is {collective.kind}, which is not what its page says"
        )


def refuse_unmarked(book: Book, data: bytes) -> None:
    """As `refuse_wrong`, but not for bytes that this user's own mark says were proven."""
    folder = cache_folder("proven")
    mark = folder / _name(data) if folder else None
    if mark and is_ours(mark.parent, folder=True) and is_ours(mark):
        return
    refuse_wrong(book)
    if mark:
        with contextlib.suppress(OSError):
            _put(mark)


def _put(mark: Path) -> None:
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(mark.parent, folder=True):
        return
    os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    marks = list(mark.parent.iterdir())
    if len(marks) > MOST_MARKS:
        for old in sorted(marks, key=lambda one: one.stat().st_mtime)[: len(marks) // 2]:
            old.unlink(missing_ok=True)


def _name(data: bytes) -> str:
    return hashlib.sha256(judge() + data).hexdigest()


@cache
def judge() -> bytes:
    """The text of what proves: another proof believes no marks of this one."""
    core = Path(str(antiphon.core.__file__)).parent
    texts = [
        Path(__file__),
        core / "collective.py",
        core / "interpret" / "buffers.py",
        *sorted((core / "program").glob("*.py")),
    ]
    return hashlib.sha256(b"\0".join(text.read_bytes() for text in texts)).digest()
