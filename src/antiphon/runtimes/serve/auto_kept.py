"""An answer to the question of a job, and the file that keeps it: a line of words, then a book (see `book`).

The words are parted by tabs: how it came to be ("planned", or "alike": found for a machine like this one), the machine,
what the plans are predicted to gain, notes. A file is believed if it and its folder belong to this user or root and
nobody else may write there; the bytes of the book have been proven by who wrote them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from antiphon.core.files import is_ours, one_line
from antiphon.errors import Invalid
from antiphon.runtimes.serve.book import Book, decode_book

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

    @cached_property
    def pages(self) -> Book:
        """What the book holds."""
        return decode_book(self.book)

    def encode(self) -> bytes:
        words = (one_line(word, 1000).replace("\t", " ") for word in (self.how, self.machine, self.gain, self.notes))
        return "\t".join(words).encode() + b"\n" + self.book

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.book).digest()


def decode_answer(data: bytes, how: str = "") -> Answer:
    """Invalid where it is damaged. `how` it came to be, if not as it says."""
    line, mark, book = data.partition(b"\n")
    words = line.decode("utf-8", "replace").split("\t")
    if not mark or len(words) != _WORDS:
        raise Invalid("it is cut off or damaged")
    said, machine, gain, notes = words
    answer = Answer(how or said, machine, gain, notes, book)
    _ = answer.pages  # Invalid where they are damaged
    return answer


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
        return decode_answer(path.read_bytes(), KEPT), ""
    except (OSError, Invalid) as error:
        return None, f"{path} is not used: {error}"
