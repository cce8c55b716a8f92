"""Read traces in Chrome's format, ours and others, and merge them into one file, each starting at time 0.

Such a trace is JSON: a list of events with a phase ("ph": X is a complete event, with a begin and a length, M names a
process or thread, others are arrows and marks), a process and a thread ("pid", "tid") and times in microseconds.
`ChromeTrace` checks one. `merge_traces` puts several side by side, to compare runs. It renumbers pids and the ids of
arrows, puts the title of its trace before each process name, and sorts the first processes of all traces before their
second ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from antiphon.core.files import name_of, read_bytes, reading
from antiphon.core.jsontext import decode
from antiphon.errors import Invalid, Unsupported

MAX_FILES, MAX_EVENTS = 64, 2**22  # events of all files together: some 2 GB as Python objects
# A small file that expands to many objects could exhaust the memory, as an object takes some 20 times its text.
FREE_OBJECTS = 2**13  # lists and objects that any file may have
MIN_OBJECT = 24  # bytes of the file for each further list or object
_TIMES = ("ts", "dur", "tts", "tdur")  # begin and length of an event, then the same by the clock of its thread
_MAX_TIME = 2.0**53  # microseconds; in nanoseconds these still fit into 64 bits


class _Trace(msgspec.Struct):
    """The JSON of a trace."""

    events: list[dict[str, Any]] = msgspec.field(name="traceEvents")
    about: dict[str, Any] = msgspec.field(name="otherData", default_factory=dict)  # metadata
    # by PyTorch's profiler: the rank, its job and process groups; the name of the computer
    distributed_info: Any = msgspec.field(name="distributedInfo", default=None)
    host: Any = msgspec.field(name="host_name", default=None)


class ChromeTrace:
    """The events of one trace, each checked.

    `about`: its metadata ("otherData"). `title`: from the metadata, else the name of its file.
    """

    def __init__(self, name: str, data: bytes) -> None:
        objects = data.count(b"{") + data.count(b"[")
        if objects > FREE_OBJECTS + len(data) // MIN_OBJECT:
            raise Invalid(
                f"has {objects} lists and objects in {len(data)} bytes: {MIN_OBJECT} bytes for each are usual"
            )
        is_list = data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        trace = _Trace(decode(data, list[dict[str, Any]])) if is_list else decode(data, _Trace)
        self.events, self.about = trace.events, trace.about
        self.distributed_info, self.host = trace.distributed_info, trace.host
        title = self.about.get("title")
        self.title = title if isinstance(title, str) and title else name
        if len(self.events) > MAX_EVENTS:
            raise Unsupported(f"has {len(self.events)} events; at most {MAX_EVENTS} are supported")
        for number, event in enumerate(self.events):
            _check_event(event, number)

    @cached_property
    def start(self) -> float:
        """Return when the first event begins, in microseconds."""
        return min((event["ts"] for event in self.events if event["ph"] != "M" and "ts" in event), default=0.0)


def _check_event(event: dict[str, Any], number: int) -> None:
    """Raise Invalid if an event lacks what viewers need, or has it in another type."""
    if not isinstance(event.get("ph"), str):
        raise Invalid(f"event {number}: has no phase (ph)")
    for key in _TIMES:
        value = event.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_TIME:
            raise Invalid(f"event {number}: {key} is no time in microseconds")
    if event["ph"] == "X" and ("ts" not in event or event.get("dur", 0) < 0):
        raise Invalid(f"event {number}: a slice needs when it begins (ts) and a length (dur) of 0 or more")
    for key in ("pid", "tid"):
        if not isinstance(event.get(key, 0), int | str):
            raise Invalid(f"event {number}: {key} is neither a number nor a name")
    if not isinstance(event.get("args", {}), dict):
        raise Invalid(f"event {number}: args are no object")


def merge_traces(files: Sequence[str | os.PathLike[str]]) -> tuple[bytes, list[dict[str, Any]]]:
    """Merge traces into one; return it, and a row for each of them (file, title, events, start_us).

    Each trace starts at 0, and the names of its processes begin with its title. The first processes of all traces come
    first, then the second ones: corresponding processes are next to each other. Ids are made unique per trace, so that
    arrows remain within it.
    """
    if not 2 <= len(files) <= MAX_FILES:
        raise Invalid(f"expected 2 to {MAX_FILES} traces, got {len(files)}")
    traces = []
    for path in files:
        with reading(name_of(path)):
            traces.append(ChromeTrace(name_of(path), read_bytes(path)))
    total = sum(len(trace.events) for trace in traces)
    if total > MAX_EVENTS:
        raise Unsupported(f"these traces have {total} events; at most {MAX_EVENTS} are put side by side")
    titles = _unique_titles([trace.title for trace in traces])
    rows = [
        {"file": name_of(path), "title": title, "events": len(trace.events), "start_us": trace.start}
        for path, title, trace in zip(files, titles, traces, strict=True)
    ]
    events: list[dict[str, Any]] = []
    ids: dict[tuple[int, str, str], int] = {}
    processes = 0
    for number, trace in enumerate(traces):
        pids = {pid: processes + index for index, pid in enumerate(_sort_processes(trace.events), 1)}  # old -> new
        processes += len(pids)
        start = trace.start
        name_events = _name_processes(trace, titles[number], pids, number, len(traces))
        events += [_shift_event(event, number, pids, start, ids) for event in trace.events if not _names_process(event)]
        events += name_events
    about = {"title": " beside ".join(titles), "traces": [{**trace.about, "start_us": trace.start} for trace in traces]}
    merged = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}
    return msgspec.json.encode(merged) + b"\n", rows


def _unique_titles(titles: Sequence[str]) -> list[str]:
    """Return the titles, with numbers added to equal ones."""
    return [
        title if titles.count(title) == 1 else f"{title} ({titles[: index + 1].count(title)})"
        for index, title in enumerate(titles)
    ]


def _pid_of(event: Mapping[str, Any]) -> int | str:
    """Return the process of an event; 0 if it names none, as viewers take it."""
    pid: int | str = event.get("pid", 0)
    return pid


def _sort_processes(events: Sequence[Mapping[str, Any]]) -> list[int | str]:
    """Return the processes of a trace in the order of their sort indices."""
    sort_key: dict[int | str, float] = {}
    for event in events:
        sort_key.setdefault(_pid_of(event), math.inf)
        if event["ph"] == "M" and event.get("name") == "process_sort_index":
            sort_index = event.get("args", {}).get("sort_index")
            sort_key[_pid_of(event)] = sort_index if isinstance(sort_index, int | float) else math.inf
    return sorted(sort_key, key=lambda pid: sort_key[pid])


def _names_process(event: Mapping[str, Any]) -> bool:
    """Return whether an event names or orders a process; `_name_processes` writes these anew."""
    return event["ph"] == "M" and event.get("name") in ("process_name", "process_sort_index")


def _name_processes(
    trace: ChromeTrace, title: str, pids: Mapping[int | str, int], number: int, traces: int
) -> list[dict[str, Any]]:
    """Return events that name and order the processes of trace `number` of `traces`. `pids`: new pid by old one."""
    names = {
        _pid_of(event): str(event.get("args", {}).get("name", ""))
        for event in trace.events
        if event["ph"] == "M" and event.get("name") == "process_name"
    }
    events = []
    for index, (old_pid, new_pid) in enumerate(pids.items()):
        name_args = {"name": f"{title}: {names[old_pid]}" if names.get(old_pid) else title}
        order_args = {"sort_index": index * traces + number}
        for name, args in (("process_name", name_args), ("process_sort_index", order_args)):
            events.append({"name": name, "ph": "M", "pid": new_pid, "tid": 0, "args": args})
    return events


def _shift_event(
    event: dict[str, Any],
    number: int,
    pids: Mapping[int | str, int],
    start: float,
    ids: dict[tuple[int, str, str], int],
) -> dict[str, Any]:
    """Return an event with its new pid, time and ids. It is changed in place, as there may be millions.

    `number`: of the trace; `start`: its first time; `ids`: the new id by (trace, category, old id).
    """
    event["pid"] = pids[_pid_of(event)]
    if "ts" in event and event["ph"] != "M":
        event["ts"] -= start
    for key in ("id", "bind_id"):
        if key in event:  # ids are distinct per category
            event[key] = ids.setdefault((number, str(event.get("cat", "")), repr(event[key])), len(ids) + 1)
    # an id in "id2" is unique in the whole trace ("global") or within its process ("local", which may stay)
    if isinstance(event.get("id2"), dict) and "global" in event["id2"]:
        event["id2"] = {"global": f"{number + 1}.{event['id2']['global']}"}
    return event
