"""Count the calls of a group: for its report, and in a file that other programs read meanwhile (native/watch.c)."""

from __future__ import annotations

import atexit
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_char_p, c_uint32
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.runtimes.engine.native import Engine


@dataclass
class LedgerRow:
    """Calls of one kind that were served alike.

    `schedule`: what served, by name. `served_by`: "antiphon", "library", "nothing" (no plans yet), or the origin of
    plans: "planned", "alike", "kept" (auto_question.py), "learned". `why`: a reason in words."""

    collective: str
    schedule: str
    served_by: str
    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


class CallLedger:
    """The rows of a report, in the order of their first calls."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str, str], LedgerRow] = {}
        # if set (`watch_calls`), called for each call with its row, bytes and seconds
        self.enter_call: Callable[[LedgerRow, int, float], None] | None = None

    def row(self, collective: str, schedule: str, served_by: str, why: str = "") -> LedgerRow:
        """Return the row of such calls, added if it is new."""
        key = (collective, schedule, served_by, why)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = LedgerRow(collective, schedule, served_by, why=why)
        return row

    def count(self, row: LedgerRow, nbytes: int, seconds: float) -> None:
        """Add a call to a row of this ledger."""
        row.calls += 1
        row.nbytes += nbytes
        row.seconds += seconds
        if self.enter_call is not None:
            self.enter_call(row, nbytes, seconds)

    def as_json(self) -> list[dict[str, Any]]:
        return [row.as_json() for row in list(self.rows.values())]


class _Watched(Structure):
    """ap_watched of native/watch.h."""

    _fields_ = [
        *((name, c_uint32) for name in ("group", "ranks", "rank")), ("collective", c_char_p), ("schedule", c_char_p),
    ]  # fmt: skip


def watch_calls(engine: Engine, ledger: CallLedger, places: Sequence[int], rank: int) -> None:
    """Enter each call in a file if $ANTIPHON_WATCH names a folder. `places`: of the group among all processes."""
    folder, functions = os.environ.get("ANTIPHON_WATCH", ""), engine.library
    if not folder:
        return
    if code := functions.ap_watch_open(os.fsencode(folder), places[rank]):
        print(f"antiphon: ANTIPHON_WATCH: {folder}: {os.strerror(code)}", file=sys.stderr)
        return
    atexit.register(functions.ap_watch_close)
    # as native/preload_report.c computes it, where 0 stands for a number that is not yet computed
    group = 1 | zlib.crc32(np.array(places, np.int32).tobytes())
    about: dict[int, _Watched] = {}  # by id of the row, which the ledger keeps

    def enter_call(row: LedgerRow, nbytes: int, seconds: float) -> None:
        if id(row) not in about:
            about[id(row)] = _Watched(group, len(places), rank, row.collective.encode(), row.schedule.encode())
        functions.ap_watch_call(byref(about[id(row)]), nbytes, seconds)

    ledger.enter_call = enter_call
