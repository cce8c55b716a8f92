"""Plans that come while a group is at work: when its processes ask for them, and how all take them at the same call.

At some calls, which all know by their numbers, the processes add up a few numbers, by the engine, in which process 0
says whether there is an answer, and by which digest others know it. Once there is, each gets ready, a step at each of
these calls: it takes the answer from the file where it is kept, makes the plans for calls like those that there were,
and has their memory touched. If somebody does not find the file, process 0 hands the bytes on. The call at which all
are ready is the first that goes by the answer, at all.

So no call waits for planning, and none has much more to do than others. Some wait for a round of messages of 64 bytes:
only calls for which all wait for all in any case, or that move much; at first all of those, then fewer, one in 64 of
the calls that there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import AntiphonError, Unsupported
from antiphon.runtimes.serve.auto_apart import Apart
from antiphon.runtimes.serve.auto_kept import Answer, read_kept
from antiphon.runtimes.serve.book import Book, decode_book
from antiphon.runtimes.serve.ledger import Row

Sum = Callable[[NDArray[Any]], None]  # over all processes, in place
TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")  # none ends before all have begun
MUCH = 2**16  # bytes of a process in another call that is as good
LATE = 64  # calls after which any is
SHARE = 64  # one call in so many
_PLANNING, _READY, _NEVER = 0, 1, 2
_LACK, _BUSY = 6, 7  # where it is said how many processes do


def _nothing(book: Book) -> Iterator[None]:
    del book
    yield from ()


@dataclass
class Turns:
    """`leads`: this is process 0, `apart` what plans for it. `path`: where its answer is kept, "" for nowhere. `row`:
    of the report. `ready`: steps that make ready what calls by a book need."""

    ranks: int
    leads: bool
    apart: Apart | None
    path: str
    row: Row
    timeout: float
    next: int = 1
    over: bool = False
    answer: Answer | None = None
    why: str = ""
    ready: Callable[[Book], Iterator[None]] = _nothing
    data: bytes = b""  # of the book, once it is here
    book: Book | None = None
    _steps: Iterator[None] | None = None
    _lacks: bool = False
    _busy: bool = True

    def due(self, number: int, kind: str, nbytes: int) -> bool:
        """Whether all ask at this call."""
        return number >= self.next and (kind in TOGETHER or nbytes >= MUCH or number >= self.next + LATE)

    def turn(self, number: int, add: Sum) -> Book | None:
        """Ask. The book to be used from this call on; None if there is none yet, or never."""
        self.next = number + 1 + number // SHARE
        said = self._said()
        add(said)
        if said[0] == _NEVER:
            self._never()
        if said[0] != _READY:
            return None
        self.next = number + 1
        if self._steps is not None and said[_LACK]:
            self._hand_on(int(said[1]), add)
        elif self._steps is not None and not said[_BUSY]:
            self.over = True
            if self.answer is not None:
                fill_row(self.row, self.answer, number)
            return self.book
        if self._steps is None:
            self._steps = self._get(said[2:_LACK].tobytes())
        self._go_on()
        return None

    def _said(self) -> NDArray[np.int64]:
        said = np.zeros(8, np.int64)
        said[_LACK], said[_BUSY] = self._lacks, self._busy
        if not self.leads:
            return said
        try:
            if self.apart is None:
                raise Unsupported(self.why or "nothing plans")
            self.answer = self.answer or self.apart.look()
        except AntiphonError as error:
            said[0], self.why = _NEVER, str(error)
        if self.answer is not None:
            said[0], said[1] = _READY, len(self.answer.book)
            said[2:_LACK] = np.frombuffer(self.answer.digest, np.int64)
        return said

    def _go_on(self) -> None:
        """A step."""
        assert self._steps is not None
        self._busy = next(self._steps, self) is None

    def _get(self, digest: bytes) -> Iterator[None]:
        if self.answer is None and self.path:
            found, _ = read_kept(Path(self.path))
            if found is not None and found.digest == digest:
                self.answer = found
        self._lacks = self.answer is None
        while self._lacks:
            yield
        yield
        if self.answer is not None:
            self.data, self.book = self.answer.book, self.answer.pages
        assert self.book is not None
        yield from self.ready(self.book)

    def _hand_on(self, size: int, add: Sum) -> None:
        line = np.zeros(size, np.uint8)
        if self.leads and self.answer is not None:
            line[:] = np.frombuffer(self.answer.book, np.uint8)
        add(line)
        if self._lacks:
            self.data = line.tobytes()
            self.book = decode_book(self.data)
        self._lacks = False

    def _never(self) -> None:
        self.row.served_by, self.row.why = "nothing", self.why or "process 0 knows why"
        self.over = True

    def end(self) -> None:
        """Nobody asks any more, and who planned is gone. No call does it: a process may take long to end."""
        self.over = True
        if self.apart is not None:
            self.apart.end()
        self.apart = None


def fill_row(row: Row, answer: Answer, number: int) -> None:
    """The row of the report about plans that are used."""
    row.schedule, row.served_by = answer.machine, answer.how
    notes = f" ({answer.notes})" if answer.notes else ""
    row.why = f"from call {number} on; predicted: {answer.gain}{notes}"
