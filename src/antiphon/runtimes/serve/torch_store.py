"""Exchanges and barriers by way of PyTorch's store of a group, which may still hold texts of earlier processes.

After a restart (torchrun --max-restarts, or other members) processes meet at the same store as before, and may read
texts of the processes that they replace. So in the first exchange each text begins with a random mark of its process,
and in later ones with a digest of all marks that the process read in the first. A process that reads another digest
than its own has met earlier texts and reads again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from antiphon.errors import TimedOut
from antiphon.runtimes.serve.group_start import Outdated

_MAX_PAUSE = 0.02  # seconds between two reads
_FIRST_PAUSE = 0.0005  # seconds
_MARK_LETTERS = 32  # of a mark, or of a digest of marks: hexadecimal


class Exchanges:
    """Exchange a text between all processes by calling this object.

    `generation`: after the second exchange, a text that only these processes of the group have, not earlier ones.
    `timeout`: seconds until processes that have not come count as missing.
    """

    def __init__(self, store: Any, rank: int, ranks: int, timeout: float) -> None:
        self._store, self._rank, self._ranks, self._timeout = store, rank, ranks, timeout
        self._own_mark, self._first_text = secrets.token_hex(_MARK_LETTERS // 2), ""
        self._number = self._reads = 0  # the number of the current exchange, from 1; repeated reads so far
        self._end = 0.0  # when processes count as missing, by time.monotonic; 0: not yet set
        self.generation = ""

    def __call__(self, text: str) -> list[str]:
        """Return the texts of all processes.

        Raises Outdated, in the second exchange, if the first read texts of earlier processes: the caller must then
        repeat both, the first with the same text.
        """
        self._number += 1
        if self._number == 1:
            if self._first_text != text:  # texts are never empty; a repeat has written it already
                self._first_text = text
                self._write_text(self._own_mark + text)
            texts = self._read_texts(1)
            self.generation = _digest_marks(texts)
        else:
            self._write_text(self.generation + text)
            texts = self._read_texts(self._number)
            while any(other[:_MARK_LETTERS] != self.generation for other in texts):
                self._pause_or_time_out()
                # Another process has read other marks, or its text is of an earlier one. Start anew only in the second
                # exchange, and only if the marks of the first have changed since this process read them there; after
                # the second exchange all processes have agreed.
                if self._number == 2 and _digest_marks(self._read_texts(1)) != self.generation:
                    self._number = 0
                    raise Outdated
                texts = self._read_texts(self._number)
        return [other[_MARK_LETTERS:] for other in texts]

    def _pause_or_time_out(self) -> None:
        """Pause before reading again, longer each time. TimedOut if processes are still missing."""
        self._end = self._end or time.monotonic() + self._timeout
        if time.monotonic() > self._end:
            raise TimedOut(
                f"rank {self._rank}: in the store of the group there are texts of processes that are gone, and after "
                f"{self._timeout:g} seconds not yet of all {self._ranks} that are to be there"
            )
        self._reads += 1
        time.sleep(min(2 * _FIRST_PAUSE * self._reads, _MAX_PAUSE))

    def _write_text(self, text: str) -> None:
        self._store.set(f"antiphon/{self._number}/{self._rank}", text)

    def _read_texts(self, number: int) -> list[str]:
        keys = [f"antiphon/{number}/{other}" for other in range(self._ranks)]
        if self._store.has_extended_api():  # a single request
            return [text.decode() for text in self._store.multi_get(keys)]
        return [self._store.get(key).decode() for key in keys]


def _digest_marks(texts: Sequence[str]) -> str:
    return hashlib.sha256("".join(text[:_MARK_LETTERS] for text in texts).encode()).hexdigest()[:_MARK_LETTERS]


class MonitoredBarrier:
    """`torch.distributed.monitored_barrier` by the store alone: it works while collectives hang.

    Process 0 reports the process that did not come in time, or with `wait_all_ranks` all of them. The others report
    that process 0 did not let them continue. With a timeout of 0 all others must have come already. Keys in `store`
    begin with the group's generation (the caller's PrefixStore), so those of earlier jobs are not met.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._barrier_count = 0

    def wait(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Wait until all processes have come; RuntimeError after the timeout."""
        self._barrier_count += 1
        end = time.monotonic() + timeout.total_seconds()
        milliseconds = round(timeout.total_seconds() * 1000)
        if self._rank:
            self._store.set(f"{self._barrier_count}/{self._rank}", "here")
            if not self._wait_for_key("go", end):
                raise RuntimeError(
                    f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received "
                    f"errors while waiting for send/recv from rank 0: no answer in {milliseconds} ms. See which ranks "
                    "rank 0 reports as missing."
                )
            return
        missing: list[str] = []
        for other in range(1, self._size):
            if not self._wait_for_key(str(other), end):
                missing.append(str(other))
                if not wait_all_ranks:
                    break
        if missing:
            label = f"Ranks {', '.join(missing)}" if wait_all_ranks else f"Rank {missing[0]}"
            raise RuntimeError(
                f"[Rank 0]: {label} failed to pass monitoredBarrier in {milliseconds} ms\n"
                f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms."
            )
        self._store.set(f"{self._barrier_count}/go", "go")
        # All processes have left the previous barrier, so its keys can go; not all stores can delete keys.
        with suppress(RuntimeError, NotImplementedError):
            for name in ("go", *map(str, range(1, self._size))):
                self._store.delete_key(f"{self._barrier_count - 1}/{name}")

    def _wait_for_key(self, name: str, end: float) -> bool:
        """Wait until the store has this key; False after `end`."""
        key = [f"{self._barrier_count}/{name}"]
        for pause in _growing_pauses():
            if self._store.check(key):
                return True
            seconds = end - time.monotonic()
            if seconds <= 0:
                return False
            time.sleep(min(pause, seconds))
        raise AssertionError("pauses have no end")


def _growing_pauses() -> Iterator[float]:
    """Yield seconds to sleep between two reads, doubling up to _MAX_PAUSE."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _MAX_PAUSE)
