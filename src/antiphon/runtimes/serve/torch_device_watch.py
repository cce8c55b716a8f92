"""Whether calls on a device come to their end in time: a thread looks, as nobody else waits for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_LONGEST = 1.0  # seconds between two looks


class Watch:
    """From the first call on. `relax`: what the thread does first; `late`: what it does when a call takes longer than
    so many seconds."""

    def __init__(
        self, reached: Callable[[Any], bool], relax: Callable[[], None], late: Callable[[float], None]
    ) -> None:
        self._reached, self._relax, self._late = reached, relax, late
        self._open: deque[tuple[float, float, Any]] = deque()  # when it must be over, its seconds, its mark
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, mark: Any, seconds: float) -> None:
        with self._changed:
            self._open.append((time.monotonic() + seconds, seconds, mark))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="antiphon-device", daemon=True)
                self._thread.start()
            elif len(self._open) == 1:
                self._changed.notify()

    def _run(self) -> None:
        self._relax()
        while True:
            with self._changed:
                while not self._open and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                end, seconds, mark = self._open[0]
            try:
                done, broken = self._reached(mark), False
            except Exception:  # the device is broken: what it was asked for will not be done
                done, broken = False, True
            if done:
                with self._changed:
                    if not self._closed:
                        self._open.popleft()
            elif broken or time.monotonic() > end:
                self._late(seconds)
                return
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, min(seconds / 4, _LONGEST))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._open.clear()
            self._changed.notify_all()
