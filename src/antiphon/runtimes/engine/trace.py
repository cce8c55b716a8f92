"""What the engine did over a wire and when: the records of native/api.h (ap_record), as arrays."""

from __future__ import annotations

import platform
from contextlib import suppress
from ctypes import Structure, byref, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from antiphon.runtimes.engine.native import Array, Wire

LEAST, MOST = 2**8, 2**20  # records that are kept: 40 bytes each
RECORD = np.dtype(
    [
        ("begin", np.int64), ("end", np.int64), ("bytes", np.uint64), ("peer", np.uint32), ("when", np.uint32),
        ("instance", np.uint32), ("channel", np.uint16), ("kind", np.uint8), ("unused", np.uint8),
    ]
)  # fmt: skip
SEND, RECEIVE, FOLD, CALL = 0, 1, 2, 4


class _Ring(Structure):
    _fields_ = [
        ("record", c_void_p), ("room", c_uint64), ("count", c_uint64), ("calls", c_uint32), ("ticks", c_uint32),
    ]  # fmt: skip


def keeps_time() -> bool:
    """Whether the counter of the processor is what the kernel itself keeps time by, alike on all of them."""
    with suppress(OSError):
        told = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text(encoding="ascii")
        return platform.machine() == "x86_64" and told.strip() == "tsc"
    return False


class Trace:
    """Records of the runs over a wire from now on; the newest take the place of the oldest.

    `room`: how many are kept, a power of two; with few of them they stay in the processor's cache."""

    def __init__(self, wire: Wire, room: int = LEAST) -> None:
        self._wire, library = wire, wire.engine.library
        self._tell, self._moment = library.ap_wire_trace, library.ap_trace_moment
        self._ring = _Ring(ticks=int(keeps_time()))
        self._make(room)
        self._began = self.moment()
        self.start()

    def _make(self, room: int) -> None:
        self._records = np.empty(room, RECORD)
        self._records.view(np.uint8)[:] = 0  # all of the memory is there before the next run
        self._ring.record, self._ring.room, self._ring.count = self._records.ctypes.data, room, 0

    def start(self) -> None:
        """Go on, after `stop`."""
        self._tell(self._wire.handle, byref(self._ring))
        self._wire.trace = self  # it lives as long as the wire writes into it

    def stop(self) -> None:
        """Before the wire is closed."""
        self._tell(self._wire.handle, None)
        self._wire.trace = None

    def fit(self, calls: int) -> None:
        """Between two runs: room for so many calls like those up to now (MOST at most); what was recorded is gone."""
        each = self._ring.count // max(self._ring.calls, 1)
        self._make(min(max(1 << (each * calls - 1).bit_length(), LEAST), MOST))
        self._ring.calls = 0

    def moment(self) -> Array:
        """Now by the clock of the records, and in nanoseconds of CLOCK_MONOTONIC."""
        both = np.zeros(2, np.int64)
        self._moment(byref(self._ring), both.ctypes.data)
        return both

    @property
    def calls(self) -> int:
        """How many there were."""
        return int(self._ring.calls)

    def kept(self) -> int:
        """How many of the last calls are there whole."""
        return int(np.count_nonzero(self._in_order()["kind"] == CALL))

    def call(self, back: int) -> Array:
        """The records of a call, its own first, in nanoseconds: the last one (0), the one before (1), and so on."""
        there = self._in_order()
        begins = np.append(np.flatnonzero(there["kind"] == CALL), len(there))
        first = len(begins) - 2 - back
        if back < 0 or first < 0:
            raise IndexError(f"call {back} from the end: {len(begins) - 1} are kept")
        found = there[begins[first] : begins[first + 1]].copy()
        if self._ring.ticks:
            (clock, ns), passed = self._began, self.moment() - self._began
            for name in ("begin", "end"):
                found[name] = ns + np.rint((found[name] - clock) * (passed[1] / passed[0])).astype(np.int64)
        return found

    def _in_order(self) -> Array:
        count, room = int(self._ring.count), int(self._ring.room)
        if count <= room:
            return self._records[:count]
        at = count % room
        return np.concatenate([self._records[at:], self._records[:at]])
