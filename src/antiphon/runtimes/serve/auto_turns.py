"""Plans that come while a group is at work: when its processes ask for them, and how all take them at the same call.

At some calls, which all know by their numbers, the processes add up a few numbers, by the engine, in which process 0
says whether there is an answer, and by which digest others know it. Who finds it in the file where it is kept takes it
from there; if somebody does not, process 0 hands the bytes on. The call at which all have it is the first that goes by
it, at all.

So no call waits for planning. Some wait for a round of messages of 48 bytes: only calls for which all wait for all in
any case, or that move much; at first all of those, then fewer, one in 64 of the calls that there were.
"""

from __future__ import annotations

from collections.abc import Callable
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


@dataclass
class Turns:
    """`leads`: this is process 0, `apart` what plans for it. `path`: where its answer is kept, "" for nowhere. `row`:
    of the report."""

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
        book = self._book(said, add)
        self.end()
        if self.answer is not None:
            told(self.row, self.answer, number)
        return book

    def _said(self) -> NDArray[np.int64]:
        said = np.zeros(6, np.int64)
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
            said[2:] = np.frombuffer(self.answer.digest, np.int64)
        return said

    def _book(self, said: NDArray[np.int64], add: Sum) -> Book:
        if self.answer is None and self.path:
            found, _ = read_kept(Path(self.path))
            if found is not None and found.digest == said[2:].tobytes():
                self.answer = found
        have = np.array([self.answer is not None], np.int64)
        add(have)
        data = b"" if self.answer is None else self.answer.book
        if have[0] < self.ranks:
            line = np.zeros(int(said[1]), np.uint8)
            if self.leads:
                line[:] = np.frombuffer(data, np.uint8)
            add(line)
            data = line.tobytes()
        return decode_book(data)

    def _never(self) -> None:
        self.row.served_by, self.row.why = "nothing", self.why or "process 0 knows why"
        self.end()

    def end(self) -> None:
        """Nobody asks any more."""
        if not self.over:
            self.over = True
            if self.apart is not None:
                self.apart.end()


def told(row: Row, answer: Answer, number: int) -> None:
    """The row of the report about plans that are used."""
    row.schedule, row.served_by = answer.machine, answer.how
    notes = f" ({answer.notes})" if answer.notes else ""
    row.why = f"from call {number} on; predicted: {answer.gain}{notes}"
