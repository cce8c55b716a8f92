"""Read the output of NCCL's profilers: the example plugin (Chrome's events, a file per rank) and Inspector (JSON
lines).

The result is a `RankTrace` per rank, from which cost/replay builds a recorded job. Both profilers record collectives,
but neither computation nor dependencies, so each rank is assumed to wait for every collective. The formats are those of
github.com/NVIDIA/nccl: ext-profiler/example (print_event.cc), ext-profiler/inspector (README.md).

Both count as NCCL's calls do, of allgather and its like one rank's block, which is converted to nbytes (`_nbytes`). In
the example plugin a call is a pair of events, b and e:

    {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 7, "pid": 1, "ts": 12.5,
     "args": {"Rank": 0, "Count": 1024, "Datatype": "ncclFloat32", "CommHash": 99}}
    {"name": "AllReduce", "cat": "COLL", "ph": "e", "id": 7, "pid": 1, "ts": 40.0}
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
from antiphon.formats.benchmark_log import MAX_MICROSECONDS

MAX_LINES = 2**20  # of a log of the Inspector
MAX_HEAD_BYTES = 2**16  # of a file, searched for a key that only the Inspector writes
# A log of more than FREE_LINES lines must have MIN_LINE_BYTES bytes per line, as real ones have: a file of millions of
# tiny lines is refused before any is parsed.
FREE_LINES = 2**10
MIN_LINE_BYTES = 60
_US = 1e-6  # seconds
KINDS = {
    "AllReduce": "allreduce", "AllGather": "allgather", "ReduceScatter": "reducescatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "AllToAll": "alltoall", "Gather": "gather", "Scatter": "scatter",
}  # fmt: skip
_ITEMSIZES = {
    "ncclInt8": 1, "ncclUint8": 1, "ncclFloat8e4m3": 1, "ncclFloat8e5m2": 1, "ncclFloat16": 2, "ncclBfloat16": 2,
    "ncclInt32": 4, "ncclUint32": 4, "ncclFloat32": 4, "ncclInt64": 8, "ncclUint64": 8, "ncclFloat64": 8,
}  # fmt: skip
# Collectives of which NCCL, and so both profilers, counts one rank's block, and nccl-tests the blocks of all ranks.
_PER_RANK = ("allgather", "reducescatter", "alltoall", "gather", "scatter")
NOTE = "a profiler of NCCL shows nothing of computation: all collectives are taken to be waited for, none to be hidden"


# ---- the example plugin ----


def is_profile(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether NCCL's example profiler wrote these events."""
    return any(event.get("cat") == "COLL" and event.get("ph") == "b" for event in events)


# Begin and end in seconds, kind, bytes as NCCL counts them (not nbytes, see `_nbytes`), communicator.
Call = tuple[float, float, str, int, str]


def read_profile(events: Sequence[Mapping[str, Any]]) -> dict[int, list[Call]]:
    """Return the calls of each rank in one file of the example plugin. Calls without an end are left out."""
    ends = {
        _event_key(event): event["ts"]
        for event in events if event.get("cat") == "COLL" and event.get("ph") == "e" and "ts" in event
    }  # fmt: skip
    calls: dict[int, list[Call]] = {}
    for number, event in enumerate(events):
        if event.get("cat") != "COLL" or event.get("ph") != "b":
            continue
        args, end = event.get("args", {}), ends.get(_event_key(event))
        kind, itemsize = KINDS.get(str(event.get("name"))), _ITEMSIZES.get(str(args.get("Datatype")))
        rank, count = args.get("Rank"), args.get("Count")
        if kind is None or itemsize is None or not _is_count(rank) or not _is_count(count) or "ts" not in event:
            raise Invalid(f"event {number}: a collective without its Rank, Count or Datatype, or of an unknown name")
        # else the recording ended before the call: the plugin then writes no end, or one before the begin
        if end is not None and end >= event["ts"]:
            group = str(args.get("CommHash", ""))
            calls.setdefault(rank, []).append((event["ts"] * _US, end * _US, kind, count * itemsize, group))
    return calls


def join_profiles(files: Sequence[Mapping[int, Sequence[Call]]]) -> list[RankTrace]:
    """Return the traces of all ranks, from the calls in each file.

    The number of ranks of a communicator is not recorded: it is the number of ranks that use it in these files.
    """
    ranks: dict[int, list[Call]] = {}
    for file in files:
        for rank, calls in file.items():
            ranks.setdefault(rank, []).extend(calls)
    group_ranks = Counter(group for calls in ranks.values() for group in {group for *_, group in calls})
    recordings = []
    for rank, calls in ranks.items():
        groups = {group: ProcessGroup(group, group_ranks[group]) for *_, group in calls}  # members are not recorded
        # A call runs from the moment at which it is called. Calls of a communicator run one after another, as those of
        # a lane do (replay/job.py). There is one training step.
        collectives = [
            RankCall(
                kind,
                _nbytes(kind, counted_bytes, group_ranks[group]),
                group,
                called=begin,
                start=begin,
                end=end,
                lane=group,
                step=0,
            )
            for begin, end, kind, counted_bytes, group in sorted(calls)
        ]
        recordings.append(_build_trace(rank, groups, collectives))
    return recordings


def _event_key(event: Mapping[str, Any]) -> tuple[object, str]:
    """Return what the begin and the end of a call have in common."""
    return event.get("pid"), repr(event.get("id"))


def _nbytes(kind: str, counted_bytes: int, ranks: int) -> int:
    """Return nbytes of a call among `ranks` processes, from the bytes that NCCL counts: of one block or of all."""
    return counted_bytes * (ranks if kind in _PER_RANK else 1)


def _is_count(value: object) -> bool:
    """Return whether it is a number of elements, or of a rank; products with it must fit into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def _build_trace(rank: int, groups: Mapping[str, ProcessGroup], collectives: Sequence[RankCall]) -> RankTrace:
    """Return the trace of a rank that waits for each collective, from the first begin to the last end."""
    span = (min(collective.start for collective in collectives), max(collective.end for collective in collectives))
    waits = [(collective.start, collective.end, position) for position, collective in enumerate(collectives)]
    return RankTrace(
        rank, host="", groups=groups, steps=[span], calls=collectives, waits=waits, gradients=(), notes=[NOTE]
    )


# ---- the Inspector ----

# Classes for the fields of a line, named as in the file. Those of `_Metadata` are only checked for their type.


class _Header(msgspec.Struct):
    """The process that recorded the call.

    `rank` alone identifies a process: where communicators of a job number its processes differently, calls of several
    processes are read as those of one.
    """

    rank: int  # in the communicator
    n_ranks: int  # of the communicator
    id: str = ""  # of the communicator


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int = 0
    hostname: str = ""


class _Stamps(msgspec.Struct):
    coll_start_ts: int = 0


class _Performance(msgspec.Struct):
    """The call: collective, bytes as NCCL counts them (see `_nbytes`), time, and its number in the communicator."""

    coll: str
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_sn: int = 0
    event_trace_ts: _Stamps | None = None


class _Record(msgspec.Struct):
    """One line of the log."""

    header: _Header
    coll_perf: _Performance
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


def is_inspector_log(data: bytes) -> bool:
    """Return whether NCCL's Inspector wrote this log."""
    return b'"coll_perf"' in data[:MAX_HEAD_BYTES]


def read_inspector(data: bytes) -> list[RankTrace]:
    """Return the trace of each rank in a log with a line per collective and rank.

    Without time stamps the collectives of a rank follow each other without gaps, in the order of their numbers
    (coll_sn).
    """
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) > MAX_LINES or len(data) < MIN_LINE_BYTES * (len(lines) - FREE_LINES):
        raise Unsupported(f"has {len(lines)} lines in {len(data)} bytes; at most {MAX_LINES} are read")
    by_rank: dict[int, list[_Record]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = decode(line, _Record)
        except Invalid as error:
            raise Invalid(f"line {number}: {error}") from None
        performance = record.coll_perf
        if (
            performance.coll not in KINDS
            or not 0 <= performance.coll_msg_size_bytes < 2**60
            or not 0 <= performance.coll_exec_time_us < MAX_MICROSECONDS
        ):
            raise Invalid(
                f"line {number}: {quote(performance.coll)}: an unknown collective, or of no possible size or time"
            )
        if not 0 <= record.header.rank < record.header.n_ranks < 2**22:
            raise Invalid(f"line {number}: rank {record.header.rank} of {record.header.n_ranks}")
        by_rank.setdefault(record.header.rank, []).append(record)
    if not by_rank:
        raise Invalid("has no collectives")
    return [_trace_of_records(rank, records) for rank, records in by_rank.items()]


def _trace_of_records(rank: int, records: Sequence[_Record]) -> RankTrace:
    """Return the trace of a rank from its lines. A collective begins no earlier than the one before it ends."""
    groups: dict[str, ProcessGroup] = {}
    collectives: list[RankCall] = []
    now = 0.0
    has_stamps = all(record.coll_perf.event_trace_ts is not None for record in records)

    def sort_key(record: _Record) -> int:
        stamps = record.coll_perf.event_trace_ts
        return stamps.coll_start_ts if has_stamps and stamps else record.coll_perf.coll_sn

    for record in sorted(records, key=sort_key):
        group = record.header.id
        groups.setdefault(group, ProcessGroup(group, record.header.n_ranks))  # members are not recorded
        performance, stamps = record.coll_perf, record.coll_perf.event_trace_ts
        begin = max(now, stamps.coll_start_ts * _US) if has_stamps and stamps else now
        now = begin + performance.coll_exec_time_us * _US
        kind = KINDS[performance.coll]
        nbytes = _nbytes(kind, performance.coll_msg_size_bytes, record.header.n_ranks)
        collectives.append(RankCall(kind, nbytes, group, called=begin, start=begin, end=now, lane=group, step=0))
    return _build_trace(rank, groups, collectives)
