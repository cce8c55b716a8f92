"""A barrier that names who does not come, by way of the store of a group: no process has to be there for another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

_LONGEST = 0.02  # seconds between two looks into the store


class Monitored:
    """As `torch.distributed.monitored_barrier` means it: process 0 tells which process did not come in time, or with
    `wait_all_ranks` all of them; the others, that it did not tell them to go on. A timeout of 0 is one."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._passed = 0

    def wait(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        self._passed += 1
        end = time.monotonic() + timeout.total_seconds()
        milliseconds = round(timeout.total_seconds() * 1000)
        if self._rank:
            self._store.set(f"{self._passed}/{self._rank}", "here")
            if not self._there("go", end):
                raise RuntimeError(
                    f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received "
                    f"errors while waiting for send/recv from rank 0: no answer in {milliseconds} ms. See which ranks "
                    "rank 0 reports as missing."
                )
            return
        missing: list[str] = []
        for other in range(1, self._size):
            if not self._there(str(other), end):
                missing.append(str(other))
                if not wait_all_ranks:
                    break
        if missing:
            named = f"Ranks {', '.join(missing)}" if wait_all_ranks else f"Rank {missing[0]}"
            raise RuntimeError(
                f"[Rank 0]: {named} failed to pass monitoredBarrier in {milliseconds} ms\n"
                f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms."
            )
        self._store.set(f"{self._passed}/go", "go")
        with suppress(RuntimeError, NotImplementedError):  # all have left the one before
            for name in ("go", *map(str, range(1, self._size))):
                self._store.delete_key(f"{self._passed - 1}/{name}")

    def _there(self, name: str, end: float) -> bool:
        """Whether it is in the store by then."""
        key = [f"{self._passed}/{name}"]
        for pause in _pauses():
            if self._store.check(key):
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
        raise AssertionError("pauses have no end")


def _pauses() -> Iterator[float]:
    pause = 0.0005
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST)
