"""Read the files of calls that processes of a running job write (ANTIPHON_WATCH; native/watch.c explains them)."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import Invalid

# As in native/watch.c: rows and latest calls of a file; the state of a row whose names are written.
_MAGIC, _ROWS, _CALLS, _READY = b"antiphon-watch1", 256, 1024, 2
_WRITTEN = np.uint64(2**64 - 1)  # number of an entry that a thread is writing
# A kind of calls. `group`: identifies its processes; `rank`: in the group; `scale`: log2 of the size class in bytes;
# `nbytes`: of the latest call; `nanoseconds`: of all calls.
_ROW = np.dtype(
    [(name, "<u4") for name in ("state", "group", "ranks", "rank", "scale", "unused")]
    + [(name, "<u8") for name in ("calls", "nbytes", "nanoseconds")]
    + [("collective", "S16"), ("schedule", "S64")]
)
# One of the latest calls. `number`: among all calls of the process, from 1; `call`: among those of its row.
_MOMENT = np.dtype([("number", "<u8"), ("call", "<u8"), ("row", "<u8"), ("began", "<f8"), ("ended", "<f8")])
# `numbers`: calls of the process so far; `missed`: those for which there was no row.
_FILE = np.dtype(
    [("magic", "S16"), ("process", "<i4"), ("rank", "<i4"), ("began", "<f8"), ("numbers", "<u8"), ("missed", "<u8"),
     ("table", "S1024"), ("rows", _ROW, _ROWS), ("moments", _MOMENT, _CALLS)]
)  # fmt: skip


class ProcessCalls(NamedTuple):
    """A process: its calls so far (`rows`), and the latest ones. `missed`: calls for which there was no row."""

    rank: int  # of the job, -1: unknown
    began: float  # of a monotonic clock, as all times
    table: str  # ANTIPHON_TABLE
    missed: int
    rows: NDArray[Any]  # of type _ROW
    moments: NDArray[Any]  # of type _MOMENT


class _Member(NamedTuple):
    """A process of a group, and the number of its row for the calls that are summarized."""

    process: ProcessCalls
    row: int


def read_watched(folder: str | os.PathLike[str]) -> list[ProcessCalls]:
    """Return the processes that are alive now, by rank. Invalid if there is no such folder."""
    if not os.path.isdir(folder):
        raise Invalid(f"{os.fspath(folder)}: no such folder; start the job with ANTIPHON_WATCH={os.fspath(folder)}")
    paths = [path for path in Path(folder).iterdir() if re.fullmatch(r"\d+\.[0-9a-f]+", path.name)]
    processes = [read_process(path) for path in paths if os.path.exists(f"/proc/{path.stem}")]
    return sorted(filter(None, processes), key=lambda process: (process.rank, process.began))


def count_calls(folder: str | os.PathLike[str], since: float) -> int:
    """Return the most calls of any process that began after `since`, a time of time.monotonic().

    Such a process may be in another namespace, so nothing checks whether it is alive.
    """
    processes = filter(None, (read_process(path) for path in Path(folder).glob("*")))
    return max((int(process.rows["calls"].sum()) for process in processes if process.began > since), default=0)


def read_process(path: Path) -> ProcessCalls | None:
    """Return what a file holds; None if it is no such file, not complete, or removed meanwhile."""
    with suppress(OSError, ValueError), open(path, "rb") as file:
        with mmap.mmap(file.fileno(), _FILE.itemsize, prot=mmap.PROT_READ) as memory:
            # Entries that changed while they were copied have another number before or afterwards.
            (before,), (content,), (after,) = (np.frombuffer(bytes(memory), _FILE) for _ in range(3))
        if content["magic"] == _MAGIC:
            numbers = content["moments"]["number"]
            steady = (numbers > 0) & (numbers != _WRITTEN)
            steady &= (numbers == before["moments"]["number"]) & (numbers == after["moments"]["number"])
            facts = int(content["rank"]), float(content["began"]), content["table"].decode(errors="replace")
            return ProcessCalls(*facts, int(content["missed"]), content["rows"], content["moments"][steady])
    return None


def summarize_calls(processes: Sequence[ProcessCalls], now: float) -> list[dict[str, Any]]:
    """Return a row for each group, collective, size class and schedule, those that take most of the time first.

    Keys: `group`, `collective`, `ranks`, `least` (bytes of the size class), `nbytes` (of the latest call), `schedule`;
    `calls` of the group so far; `total`: seconds of all calls, mean over processes, and `share` of that in the time of
    the job until `now`. Of the latest calls that all processes here have made: `seconds` from the last beginning to the
    last end (median), `wait` for the last process to begin (mean over calls and processes), `last`: the rank in the
    group that began last most often, with `last_share`; null if there is no such call. `processes`: per process `rank`
    (in the group), `calls`, `seconds`, `wait`.
    """
    groups: dict[tuple[Any, ...], dict[int, _Member]] = {}  # by kind of calls, then by rank in the group
    for process in processes:
        for number in np.flatnonzero(process.rows["state"] == _READY):
            row = process.rows[number]
            key = tuple(row[name].item() for name in ("group", "ranks", "scale", "collective", "schedule"))
            groups.setdefault(key, {})[int(row["rank"])] = _Member(process, int(number))
    rows = [_summarize_group(dict(sorted(members.items())), now) for members in groups.values()]
    return sorted(rows, key=lambda row: (-row["total"], row["collective"], row["nbytes"], row["schedule"]))


def _summarize_group(members: dict[int, _Member], now: float) -> dict[str, Any]:
    """Return the row of one kind of calls. `members`: by rank in the group, ascending."""
    counters = np.array([process.rows[number] for process, number in members.values()])
    seconds = 1e-9 * counters["nanoseconds"]
    recent = [process.moments[process.moments["row"] == number] for process, number in members.values()]
    common = set.intersection(*(set(moments["call"].tolist()) for moments in recent))  # calls that all have made
    # a row per process, its columns in the order of the calls
    spans = np.array([np.sort(moments[np.isin(moments["call"], list(common))], order="call") for moments in recent])
    any_member = counters[0]  # fields that define the kind of calls are equal at all
    row: dict[str, Any] = {
        **{name: int(any_member[name]) for name in ("group", "ranks")}, "least": 2 ** int(any_member["scale"]),
        **{name: any_member[name].decode(errors="replace") for name in ("collective", "schedule")},
        **{name: int(counters[name].max()) for name in ("nbytes", "calls")}, "total": float(seconds.mean()),
        "share": float(np.mean(seconds / [max(now - process.began, 1e-9) for process, _ in members.values()])),
        "seconds": None, "wait": None, "last": None, "last_share": None,
    }  # fmt: skip
    waits = [None] * len(members)
    if common:
        last = spans["began"].max(axis=0)  # per call, when the last process began it
        # A process whose part ends before the last one begins, as the root of a broadcast, waits no longer than that.
        wait = np.minimum(last, spans["ended"]) - spans["began"]
        # the position in `members` of the process that began last most often, and the number of these calls
        (position, times), *_ = Counter(spans["began"].argmax(axis=0).tolist()).most_common(1)
        row |= {"seconds": float(np.median(spans["ended"].max(axis=0) - last)), "wait": float(wait.mean())}
        row |= {"last": list(members)[position], "last_share": times / len(last)}
        waits = wait.mean(axis=1).tolist()
    columns = zip(members, counters["calls"].tolist(), seconds.tolist(), waits, strict=True)
    row["processes"] = [dict(zip(("rank", "calls", "seconds", "wait"), values, strict=True)) for values in columns]
    return row
