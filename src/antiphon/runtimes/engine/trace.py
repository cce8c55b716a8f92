"""Read the records of the engine (native/api.h, ap_record) as arrays: what ran on a wire
(a rank's connections to its peers), and when.

While a `Trace` is started, the engine writes a record per send, receive, combination (fold) and call into a ring of
memory, with begin and end by the processor's time stamp counter where that is reliable. `call(0)` returns the records
of the last call in nanoseconds of CLOCK_MONOTONIC: two moments read by both clocks give the conversion.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from ctypes import Structure, byref, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np

from antiphon.runtimes.engine.native import Array, Wire

MIN_RECORDS, MAX_RECORDS = 2**8, 2**20  # records of a ring, 40 bytes each
# `peer`: the other rank of a message. `when`: 2 s for messages of step s, 2 s + 1 for its folds. `instance`: number of
# the message or fold in the rank's plan. `kind`: SEND, ...
RECORD = np.dtype(
    [
        ("begin", np.int64), ("end", np.int64), ("bytes", np.uint64), ("peer", np.uint32), ("when", np.uint32),
        ("instance", np.uint32), ("channel", np.uint16), ("kind", np.uint8), ("unused", np.uint8),
    ]
)  # fmt: skip
SEND, RECEIVE, FOLD, CALL = 0, 1, 2, 4  # 3 would be a join (native/program.h), which is not recorded


class _Ring(Structure):
    """ap_trace of native/api.h. `record`: the ring's memory; `count`: records written so far, of `calls` calls;
    `ticks`: whether times are those of the time stamp counter."""

    _fields_ = [
        ("record", c_void_p), ("room", c_uint64), ("count", c_uint64), ("calls", c_uint32), ("ticks", c_uint32),
    ]  # fmt: skip


def is_tsc_reliable() -> bool:
    """Return whether the kernel itself uses the time stamp counter, which then is the same on all processors."""
    with suppress(OSError):
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text(encoding="ascii")
        return platform.machine() == "x86_64" and source.strip() == "tsc"
    return False


class ClockMoment(NamedTuple):
    """One moment by two clocks."""

    ticks: int  # of the records' clock
    nanoseconds: int  # of CLOCK_MONOTONIC


class Trace:
    """Records of the runs on a wire from now on; new ones replace the oldest.

    `room`: number of records in the ring, a power of two; a small ring stays in the processor's cache."""

    def __init__(self, wire: Wire, room: int = MIN_RECORDS) -> None:
        self._wire, library = wire, wire.engine.library
        self._set_trace, self._read_clocks = library.ap_wire_trace, library.ap_trace_moment
        self._ring = _Ring(ticks=int(is_tsc_reliable()))
        self._allocate_records(room)
        self._began = self.moment()
        self.start()

    def _allocate_records(self, room: int) -> None:
        """Start with an empty ring of `room` records."""
        self._records = np.empty(room, RECORD)
        self._records.view(np.uint8)[:] = 0  # touches all pages before the next run
        self._ring.record, self._ring.room, self._ring.count = self._records.ctypes.data, room, 0

    def start(self) -> None:
        """Start recording, or continue after `stop`."""
        self._set_trace(self._wire.handle, byref(self._ring))
        self._wire.trace = self  # keeps it alive while the wire writes into it

    def stop(self) -> None:
        """Stop recording; necessary before the wire is closed."""
        self._set_trace(self._wire.handle, None)
        self._wire.trace = None

    def fit(self, calls: int) -> None:
        """Drop all records, and make room for `calls` more calls, at most MAX_RECORDS. Between two runs only."""
        records_per_call = self._ring.count // max(self._ring.calls, 1)
        power_of_two = 1 << (records_per_call * calls - 1).bit_length()
        self._allocate_records(min(max(power_of_two, MIN_RECORDS), MAX_RECORDS))
        self._ring.calls = 0

    def moment(self) -> ClockMoment:
        """Return the present time by both clocks."""
        times = np.zeros(2, np.int64)
        self._read_clocks(byref(self._ring), times.ctypes.data)
        return ClockMoment(*times.tolist())

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return int(self._ring.calls)

    def count_complete(self) -> int:
        """Return the number of latest calls whose records are all in the ring still."""
        return int(np.count_nonzero(self._in_order()["kind"] == CALL))

    def call(self, back: int) -> Array:
        """Return the records of a call, its own first, in nanoseconds. `back`: 0 for the last call."""
        records = self._in_order()
        begins = np.flatnonzero(records["kind"] == CALL)
        number = len(begins) - 1 - back
        if back < 0 or number < 0:
            raise IndexError(f"call {back} from the end: {len(begins)} are kept")
        ends = np.append(begins[1:], len(records))
        call_records = records[begins[number] : ends[number]].copy()
        if self._ring.ticks:
            began, now = self._began, self.moment()
            nanoseconds_per_tick = (now.nanoseconds - began.nanoseconds) / (now.ticks - began.ticks)
            for name in ("begin", "end"):
                nanoseconds = np.rint((call_records[name] - began.ticks) * nanoseconds_per_tick)
                call_records[name] = began.nanoseconds + nanoseconds.astype(np.int64)
        return call_records

    def _in_order(self) -> Array:
        """Return the records in the ring, the oldest first."""
        count, room = int(self._ring.count), int(self._ring.room)
        if count <= room:
            return self._records[:count]
        oldest = count % room
        return np.concatenate([self._records[oldest:], self._records[:oldest]])
