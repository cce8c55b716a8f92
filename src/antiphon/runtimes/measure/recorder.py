"""Record what the engine does at the processes of a measurement, on one clock, and write it as a trace.

Stages: the engine records sends, receives and folds (combinations) of every call in a ring of memory (engine/trace).
After the measurement, the call of median time is collected from all ranks (`Recorder.collect`), and its times are
converted to the first process's clock (`clock_offset`); `measured_trace` matches sends with receives and writes
Chrome's trace format, in which calls and folds are slices and messages are arrows.
"""

from __future__ import annotations

import base64
import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.cost.chrome import RANKS, RankWork, TracedMessage, TraceWriter, write_ranks
from antiphon.cost.trace import MAX_EVENTS
from antiphon.errors import Unsupported
from antiphon.runtimes.engine.native import Wire
from antiphon.runtimes.engine.trace import FOLD, MAX_RECORDS, RECEIVE, RECORD, SEND, Trace
from antiphon.runtimes.measure.loop import Peers

ROUNDS = 32  # exchanges by which clocks are compared


def clock_name() -> str:
    """Return a name of the clock. Processes on one running kernel and in one time namespace share it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return f"process {os.getpid()} of {os.uname().nodename}"


def clock_offset(
    peers: Peers, now: Callable[[], int] = time.monotonic_ns, name: str | None = None
) -> tuple[float, float]:
    """Return the nanoseconds by which this clock is ahead of the first process's, and the error bound.

    Both are 0 if all read one clock. Otherwise: no process leaves an exchange before all have entered it. So if this
    process entered at e by its clock, and the first left at l by its own, this clock is ahead by at least e - l. If the
    first entered at f and this one left at m, it is ahead by at most m - f. The tightest bounds of all rounds are used,
    assuming that the clocks run equally fast meanwhile. All processes must call this.
    """
    clock = clock_name() if name is None else name
    if len(set(peers.all(clock))) == 1:
        return 0.0, 0.0
    low, high = -float("inf"), float("inf")
    entered_at = left_at = first_entered = 0
    # Each round exchanges the times of the round before.
    for round_number in range(ROUNDS + 1):
        left_before, entered_before, first_before = left_at, entered_at, first_entered
        entered_at = now()
        (first_left, first_entered), *_ = peers.all([left_before, entered_at])
        left_at = now()
        if round_number:  # by now all times of the previous round are known
            low, high = max(low, entered_before - first_left), min(high, left_before - first_before)
    return (0.0, 0.0) if peers.first else ((low + high) / 2, (high - low) / 2)


Recording = dict[str, Any]  # of one rank: rank, turn (number of the run), ahead and error of its clock in ns, records


class Recorder:
    """The traces recorded at one process, by rank. `Measurement` (loop.py) calls `fit`, then `collect`."""

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        self.traces = traces

    def fit(self, calls: int) -> None:
        """Make room for this number of calls. Call it after the first call, which shows the records per call."""
        for trace in self.traces.values():
            trace.fit(calls)

    def collect(self, peers: Peers, run_seconds: Sequence[float], after: int) -> list[Recording]:
        """Return the records of all ranks in one call, the same at all processes.

        `run_seconds`: of each run. The call is the run of median time (the upper one of two) among those that all ranks
        still hold. `after`: the number of calls that were made after the last run, to check the result."""
        held_counts = peers.all([trace.count_complete() for trace in self.traces.values()])
        common = min(itertools.chain.from_iterable(held_counts))
        if not any(trace.calls for trace in self.traces.values()):
            raise Unsupported("nothing moves at this size, so there is nothing to trace")
        if common <= after:
            raise Unsupported(
                f"a run of more than {MAX_RECORDS // (after + 1)} operations at a rank is too long for a trace"
            )
        # The trace is a ring buffer: the first runs may be overwritten.
        order = sorted(
            range(max(len(run_seconds) + after - common, 0), len(run_seconds)), key=lambda run: run_seconds[run]
        )
        run = order[len(order) // 2]
        calls_since = after + len(run_seconds) - 1 - run  # that followed this run: `Trace.call` counts from the last
        ahead, error = clock_offset(peers)
        rows = [
            {"rank": rank, "turn": run, "ahead": ahead, "error": error,
             "records": _pack_records(trace.call(calls_since))}
            for rank, trace in self.traces.items()
        ]  # fmt: skip
        return [recording for process in peers.all(rows) for recording in process]


@contextmanager
def record_wires(wires: Mapping[int, Wire]) -> Iterator[Recorder | None]:
    """Record all calls over these wires (by rank) within the block; None without wires."""
    traces = {rank: Trace(wire) for rank, wire in wires.items()}
    try:
        yield Recorder(traces) if traces else None
    finally:
        for trace in traces.values():
            trace.stop()


def _pack_records(records: np.ndarray[Any, Any]) -> str:
    """Encode records as text, for an exchange in JSON."""
    return base64.b64encode(zlib.compress(records.tobytes(), 1)).decode("ascii")


def unpack_records(text: str) -> np.ndarray[Any, Any]:
    """Decode the records of a rank."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), RECORD)


def measured_trace(recordings: Sequence[Recording], title: str, about: Mapping[str, Any]) -> bytes:
    """Return the trace (docs/export.md) of the recordings of all ranks. It begins when the first of them began."""
    columns = {row["rank"]: _Rank(row) for row in sorted(recordings, key=lambda row: int(row["rank"]))}
    if sum(len(rank_records.kind) for rank_records in columns.values()) > MAX_EVENTS:
        raise Unsupported(f"a trace of more than {MAX_EVENTS} operations is too long for a viewer; take a smaller plan")
    start = min(float(rank_records.begin[0]) for rank_records in columns.values())
    for rank_records in columns.values():
        rank_records.begin = (rank_records.begin - start) / 1000  # microseconds
        rank_records.end = (rank_records.end - start) / 1000
    error = max(row["error"] for row in recordings)
    writer = TraceWriter(title, {**about, "run": recordings[0]["turn"] + 1, "clock_error_us": error / 1000})
    writer.add_process(RANKS, "ranks")
    works = [work for rank, rank_records in columns.items() for work in rank_records.list_work(rank)]
    write_ranks(writer, _match_messages(columns), works)
    return writer.encode()


class _Rank:
    """The records of one rank, its call first, in nanoseconds of the first process's clock."""

    def __init__(self, recording: Recording) -> None:
        records = unpack_records(recording["records"])
        self.begin, self.end = (records[name].astype(np.float64) - recording["ahead"] for name in ("begin", "end"))
        self.kind, self.peer, self.bytes = records["kind"], records["peer"], records["bytes"]
        # `when` is 2 s for messages of step s, and 2 s + 1 for its folds
        self.channel, self.step = records["channel"], records["when"] // 2

    def messages(self, kind: int) -> dict[tuple[int, int], list[int]]:
        """Return rows of this kind by (peer, channel), in the order in which they started."""
        rows_of: dict[tuple[int, int], list[int]] = {}
        for row in np.flatnonzero(self.kind == kind).tolist():
            rows_of.setdefault((int(self.peer[row]), int(self.channel[row])), []).append(row)
        return rows_of

    def interval(self, row: int) -> tuple[float, float]:
        """Return when a record begins and ends."""
        return float(self.begin[row]), max(float(self.begin[row]), float(self.end[row]))

    def list_work(self, rank: int) -> list[RankWork]:
        """Return the call and its folds as slices of the trace."""
        works = [RankWork(rank, "call", "call", self.interval(0), {"rank": rank})]
        for row in np.flatnonzero(self.kind == FOLD).tolist():
            facts = {"rank": rank, "step": int(self.step[row]), "bytes": int(self.bytes[row])}
            works.append(RankWork(rank, "fold", f"fold, step {facts['step']}", self.interval(row), facts))
        return works


def _match_messages(columns: Mapping[int, _Rank]) -> list[TracedMessage]:
    """Match sends with receives: the messages between two ranks on one channel arrive in the order of sending.

    A receive that was already waiting when its message was sent begins at the send."""
    traced_messages = []
    received = {rank: receiver.messages(RECEIVE) for rank, receiver in columns.items()}
    for src, sender in columns.items():
        for (dst, channel), rows in sender.messages(SEND).items():
            for send, receive in zip(rows, received[dst].get((src, channel), ()), strict=True):
                sent, received_at = sender.interval(send), columns[dst].interval(receive)
                # Clamp to the receive: clocks differ by up to the error bound.
                begin = min(max(received_at[0], sent[0]), received_at[1])
                facts = {"step": int(sender.step[send]), "src": src, "dst": dst, "bytes": int(sender.bytes[send])}
                if channel:
                    facts["channel"] = channel
                traced_messages.append(TracedMessage(sent, (begin, received_at[1]), facts))
    return traced_messages
