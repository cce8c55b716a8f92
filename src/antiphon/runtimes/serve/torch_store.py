"""Texts between the processes of a group by way of its store, where those of earlier processes may still lie.

After a restart (torchrun --max-restarts, or other members) the processes find each other at the same store as before,
and read what those wrote whose places they took. So a text bears a number that its process drew, those of the second
exchange also what was read in the first one, and who sees that another has read something else reads again."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Any

from antiphon.errors import TimedOut
from antiphon.runtimes.serve.group_start import Outdated

_LONGEST = 0.02  # seconds between two looks
_MARK = 32  # letters


class Exchanges:
    """`generation`: after the second one a text that only these processes of the group have."""

    def __init__(self, store: Any, rank: int, ranks: int, patience: float) -> None:
        self._store, self._rank, self._ranks, self._patience = store, rank, ranks, patience
        self._drawn, self._first = secrets.token_hex(_MARK // 2), ""
        self._number = self._looks = 0
        self._end = 0.0
        self.generation = ""

    def __call__(self, text: str) -> list[str]:
        """Everybody's text. Outdated: begin again with the first, which must be the same text again."""
        self._number += 1
        if self._number == 1:
            if self._first != text:
                self._first = text
                self._write(self._drawn + text)
            found = self._read(1)
            self.generation = _generation(found)
        else:
            self._write(self.generation + text)
            found = self._read(self._number)
            while any(one[:_MARK] != self.generation for one in found):
                self._wait()
                # what is said to others who go on by it is said once: only who read something else begins again
                if self._number == 2 and _generation(self._read(1)) != self.generation:
                    self._number = 0
                    raise Outdated
                found = self._read(self._number)
        return [one[_MARK:] for one in found]

    def _wait(self) -> None:
        """Somebody will yet write. Longer each time, but not for long."""
        self._end = self._end or time.monotonic() + self._patience
        if time.monotonic() > self._end:
            raise TimedOut(
                f"rank {self._rank}: in the store of the group there are texts of processes that are gone, and after "
                f"{self._patience:g} seconds not yet of all {self._ranks} that are to be there"
            )
        self._looks += 1
        time.sleep(min(0.001 * self._looks, _LONGEST))

    def _write(self, text: str) -> None:
        self._store.set(f"antiphon/{self._number}/{self._rank}", text)

    def _read(self, number: int) -> list[str]:
        keys = [f"antiphon/{number}/{other}" for other in range(self._ranks)]
        if self._store.has_extended_api():  # all in one question
            return [text.decode() for text in self._store.multi_get(keys)]
        return [self._store.get(key).decode() for key in keys]


def _generation(texts: Sequence[str]) -> str:
    return hashlib.sha256("".join(one[:_MARK] for one in texts).encode()).hexdigest()[:_MARK]
