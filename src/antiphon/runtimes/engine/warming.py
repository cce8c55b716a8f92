"""The memory of plans, touched before their first runs, beside what the program does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import Structure, byref, c_int

from antiphon.runtimes.engine.native import NativePlan

_BY_BYTES = {1: 1, 2: 10, 4: 7, 8: 8}  # a type of the engine of each size: memory does not hang on which


class _Pace(Structure):
    """As in native/prefault.h."""

    _fields_ = [("stop", c_int), ("gentle", c_int)]


class Warming:
    """A thread that has each plan take and touch the memory that a run with elements of so many bytes needs. It is
    nearly always asleep, and holds nothing that Python's other threads wait for."""

    def __init__(self, plans: Sequence[tuple[NativePlan, int]]) -> None:
        self._pace = _Pace(0, 1)
        self._plans = list(plans)
        self._thread = threading.Thread(target=self._run, name="antiphon-warming", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for plan, itemsize in self._plans:
            warm = plan.engine.library.ap_warm
            if self._pace.stop or warm(plan.handle, _BY_BYTES[itemsize], byref(self._pace), None):
                break  # what it lacks the run says

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._pace.stop = 1
        self._thread.join()
