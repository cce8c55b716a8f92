"""Read the output of NCCL's profilers: the example plugin (Chrome's events, a file per rank) and Inspector (JSON
lines).

Both record collectives, but neither computation nor dependencies, so a job from them consists of collectives that are
waited for. Both count elements or bytes of one rank; sizes are converted to those of nccl-tests. The formats are those
of github.com/NVIDIA/nccl: ext-profiler/example (print_event.cc), ext-profiler/inspector (README.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.core.jsontext import decode
from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import RankCall, RankTrace
from antiphon.errors import Invalid, Unsupported, quote

MAX_LINES, MAX_LINE = 2**20, 2**16
FEW_LINES, LEAST_LINE = 2**10, 60  # bytes of a line of the Inspector
_US = 1e-6
KINDS = {
    "AllReduce": "allreduce", "AllGather": "allgather", "ReduceScatter": "reducescatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "AllToAll": "alltoall", "Gather": "gather", "Scatter": "scatter",
}  # fmt: skip
_BYTES = {
    "ncclInt8": 1, "ncclUint8": 1, "ncclFloat8e4m3": 1, "ncclFloat8e5m2": 1, "ncclFloat16": 2, "ncclBfloat16": 2,
    "ncclInt32": 4, "ncclUint32": 4, "ncclFloat32": 4, "ncclInt64": 8, "ncclUint64": 8, "ncclFloat64": 8,
}  # fmt: skip
_PER_RANK = ("allgather", "reducescatter", "alltoall", "gather", "scatter")  # NCCL counts one rank's block
NOTE = "a profiler of NCCL shows nothing of computation: all collectives are taken to be waited for, none to be hidden"


# ---- the example plugin ----


def is_profile(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether NCCL's example profiler wrote these events."""
    return any(event.get("cat") == "COLL" and event.get("ph") == "b" for event in events)


Call = tuple[float, float, str, int, str]  # begin, end, kind, bytes as NCCL counts them, communicator


def read_profile(events: Sequence[Mapping[str, Any]]) -> dict[int, list[Call]]:
    """Return the calls of each rank in one file."""
    ends = {
        _name_of(event): event["ts"]
        for event in events if event.get("cat") == "COLL" and event.get("ph") == "e" and "ts" in event
    }  # fmt: skip
    calls: dict[int, list[Call]] = {}
    for number, event in enumerate(events):
        if event.get("cat") != "COLL" or event.get("ph") != "b":
            continue
        args, end = event.get("args", {}), ends.get(_name_of(event))
        kind, item = KINDS.get(str(event.get("name"))), _BYTES.get(str(args.get("Datatype")))
        rank, count = args.get("Rank"), args.get("Count")
        if kind is None or item is None or not _is_whole(rank) or not _is_whole(count) or "ts" not in event:
            raise Invalid(f"event {number}: a collective without its Rank, Count or Datatype, or of an unknown name")
        if end is not None and end >= event["ts"]:
            group = str(args.get("CommHash", ""))
            calls.setdefault(rank, []).append((event["ts"] * _US, end * _US, kind, count * item, group))
    return calls


def join_profiles(files: Sequence[Mapping[int, Sequence[Call]]]) -> list[RankTrace]:
    """Return the recordings of all ranks.

    The size of a communicator is not recorded: it is the number of ranks that use it in these files.
    """
    ranks: dict[int, list[Call]] = {}
    for file in files:
        for rank, calls in file.items():
            ranks.setdefault(rank, []).extend(calls)
    size = Counter(group for calls in ranks.values() for group in {call[4] for call in calls})
    recordings = []
    for rank, calls in ranks.items():
        groups = {group: ProcessGroup(group, size[group], ()) for *_, group in calls}
        collectives = [
            RankCall(kind, count * (size[group] if kind in _PER_RANK else 1), group, begin, begin, end, group, 0)
            for begin, end, kind, count, group in sorted(calls)
        ]
        recordings.append(_waited_for(rank, groups, collectives))
    return recordings


def _name_of(event: Mapping[str, Any]) -> tuple[object, str]:
    return event.get("pid"), repr(event.get("id"))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def _waited_for(rank: int, groups: Mapping[str, ProcessGroup], collectives: Sequence[RankCall]) -> RankTrace:
    span = (min(collective.start for collective in collectives), max(collective.end for collective in collectives))
    waits = [(collective.start, collective.end, number) for number, collective in enumerate(collectives)]
    return RankTrace(rank, "", groups, [span], collectives, waits, (), [NOTE])


# ---- the Inspector ----


class _Header(msgspec.Struct):
    rank: int
    n_ranks: int
    id: str = ""


class _About(msgspec.Struct):
    dump_timestamp_us: int = 0
    hostname: str = ""


class _Stamps(msgspec.Struct):
    coll_start_ts: int = 0


class _Performance(msgspec.Struct):
    coll: str
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_sn: int = 0
    event_trace_ts: _Stamps | None = None


class _Inspected(msgspec.Struct):
    header: _Header
    coll_perf: _Performance
    metadata: _About = msgspec.field(default_factory=_About)


def is_inspected(data: bytes) -> bool:
    return b'"coll_perf"' in data[:MAX_LINE]


def read_inspector(data: bytes) -> list[RankTrace]:
    """Read a log with a line for each collective; without time stamps they follow each other by their numbers."""
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) > MAX_LINES or len(data) < LEAST_LINE * (len(lines) - FEW_LINES):
        raise Unsupported(f"has {len(lines)} lines in {len(data)} bytes; at most {MAX_LINES} are read")
    by_rank: dict[int, list[_Inspected]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = decode(line, _Inspected)
        except Invalid as error:
            raise Invalid(f"line {number}: {error}") from None
        performance = record.coll_perf
        if (
            performance.coll not in KINDS
            or not 0 <= performance.coll_msg_size_bytes < 2**60
            or not 0 <= performance.coll_exec_time_us < 1e12
        ):
            raise Invalid(
                f"line {number}: {quote(performance.coll)}: an unknown collective, or of no possible size or time"
            )
        if not 0 <= record.header.rank < record.header.n_ranks < 2**22:
            raise Invalid(f"line {number}: rank {record.header.rank} of {record.header.n_ranks}")
        by_rank.setdefault(record.header.rank, []).append(record)
    if not by_rank:
        raise Invalid("has no collectives")
    return [_of_lines(rank, performance) for rank, performance in by_rank.items()]


def _of_lines(rank: int, lines: Sequence[_Inspected]) -> RankTrace:
    groups: dict[str, ProcessGroup] = {}
    collectives: list[RankCall] = []
    now = 0.0
    stamped = all(record.coll_perf.event_trace_ts is not None for record in lines)

    def order(record: _Inspected) -> int:
        stamps = record.coll_perf.event_trace_ts
        return stamps.coll_start_ts if stamped and stamps else record.coll_perf.coll_sn

    for record in sorted(lines, key=order):
        group = record.header.id
        groups.setdefault(group, ProcessGroup(group, record.header.n_ranks, ()))
        performance, stamps = record.coll_perf, record.coll_perf.event_trace_ts
        begin = max(now, stamps.coll_start_ts * _US) if stamped and stamps else now
        now = begin + performance.coll_exec_time_us * _US
        collectives.append(
            RankCall(KINDS[performance.coll], performance.coll_msg_size_bytes, group, begin, begin, now, group, 0)
        )
    return _waited_for(rank, groups, collectives)
