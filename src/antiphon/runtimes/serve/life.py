"""How processes of one host notice that one of them is gone, without being connected: each has a pipe, and the others
open its reading end by its number. Nothing is written to it until it is cut."""

from __future__ import annotations

import os
from contextlib import suppress

Place = tuple[int, int, int]  # a process, the number of its pipe there, and among all pipes


class Life:
    """One's own pipe, of which it has both ends as one, and those of others: for each rank a number. OSError where the
    system cannot open pipes by their numbers."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ends, self._mine = rank, [-1] * ranks, True
        ends = os.pipe()
        try:
            self._ends[rank] = _opened(os.getpid(), ends[0], os.O_RDWR)
        finally:
            for end in ends:
                os.close(end)
        self._device, number = _about(self._ends[rank])
        self.place: Place = (os.getpid(), self._ends[rank], number)

    def sees(self, other: int, place: Place) -> bool:
        """Open that of another. Where processes are numbered otherwise, its number is of something else."""
        try:
            self._ends[other] = _opened(place[0], place[1], os.O_RDONLY)
        except (OSError, OverflowError):
            return False
        return _about(self._ends[other]) == (self._device, place[2])

    def forget(self) -> None:
        """All others."""
        for rank, end in enumerate(self._ends):
            if end >= 0 and rank != self._rank:
                os.close(end)
                self._ends[rank] = -1

    def handed_over(self) -> list[int]:
        """All of them, to who closes them from now on."""
        self._mine = False
        return [*self._ends]

    def cut(self) -> None:
        """The others notice, also where a child of this process holds its end, too."""
        with suppress(OSError):
            os.write(self._ends[self._rank], b".")

    def close(self) -> None:
        for end in self._ends if self._mine else ():
            if end >= 0:
                os.close(end)
        self._mine = False


def _opened(process: int, number: int, how: int) -> int:
    return os.open(f"/proc/{process}/fd/{number}", how | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _about(end: int) -> tuple[int, int]:
    about = os.fstat(end)
    return about.st_dev, about.st_ino
