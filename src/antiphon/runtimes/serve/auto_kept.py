"""An answer to the question of a job, and the file that keeps it: a line of words, then a book (see `book`).

The words are parted by tabs: how it came to be ("planned", or "alike": found for a machine like this one), the machine,
what the plans are predicted to gain, notes. A file is believed if it and its folder belong to this user or root and
nobody else may write there; the bytes of the book have been proven by who wrote them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.core.files import is_ours, one_line
from antiphon.errors import Invalid
from antiphon.runtimes.serve.book import decode_book

PLANNED, ALIKE, KEPT = "planned", "alike", "kept"
_WORDS = 4
MOST_BYTES = 2**28


@dataclass(frozen=True)
class Answer:
    """`book`: its bytes; `how`: planned, alike or kept."""

    how: str
    machine: str
    gain: str
    notes: str
    book: bytes

    def encode(self) -> bytes:
        words = (one_line(word, 1000).replace("\t", " ") for word in (self.how, self.machine, self.gain, self.notes))
        return "\t".join(words).encode() + b"\n" + self.book

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.book).digest()


def decode_answer(data: bytes) -> Answer:
    """Invalid where it is damaged."""
    line, mark, book = data.partition(b"\n")
    words = line.decode("utf-8", "replace").split("\t")
    if not mark or len(words) != _WORDS:
        raise Invalid("it is cut off or damaged")
    decode_book(book)
    how, machine, gain, notes = words
    return Answer(how, machine, gain, notes, book)


def read_kept(path: Path) -> tuple[Answer | None, str]:
    """What is kept there, and what is wrong with it; neither where nothing is there."""
    try:
        path.lstat()
    except OSError:
        return None, ""
    if not is_ours(path.parent, folder=True) or not is_ours(path):
        return None, f"{path} is not believed: others may write there"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Invalid("it is too large")
        return replace(decode_answer(path.read_bytes()), how=KEPT), ""
    except (OSError, Invalid) as error:
        return None, f"{path} is not used: {error}"
