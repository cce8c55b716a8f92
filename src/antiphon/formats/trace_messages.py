"""Read the messages of a trace that `run --trace` or `predict --trace` wrote: when each was sent, and when it arrived.

Such a trace has an interval per message at its sender and one at its receiver (cost/chrome.py). The n-th interval of a
sender to a receiver and the n-th of that receiver from it are one message, because both are written in one order.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.core.files import name_of, read_buffers, read_bytes, reading
from antiphon.errors import Invalid, quote
from antiphon.formats.chrome import ChromeTrace

MAX_RANK = 2**16 - 1  # as two ranks and a step are packed into one number of 64 bits
HEAD_BYTES = 2**14  # of a file, in which the key of a trace's events is looked for
# Categories of intervals; "within": from a rank to itself, which has no interval of a receiver
_SENT, _ARRIVED = ("send", "within"), "receive"


@dataclass(frozen=True, eq=False)
class TracedMessages:
    """Messages in the order of their start, one element per message; times in seconds from the begin of the trace."""

    title: str
    about: Mapping[str, Any]  # what the trace states of itself: runs, seconds (median), clock_error_us
    nbytes: int  # of the call
    step: Longs
    src: Longs
    dst: Longs
    carried: Floats  # bytes
    start: Floats
    landed: Floats  # when the message has arrived
    critical: Longs  # numbers of the messages on the critical path, where the trace marks one

    @property
    def label(self) -> str:
        """Whether the times were measured, in a word."""
        return "measured" if self.about.get("runs") else "as traced"

    @property
    def measured_seconds(self) -> float | None:
        """The median time of the runs; None for a prediction."""
        seconds = self.about.get("seconds")
        return float(seconds) if self.about.get("runs") and isinstance(seconds, int | float) else None


def is_trace_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a regular file holds a trace in Chrome's format. Pipes, which can be read once only, hold none."""
    if not os.path.isfile(path):
        return False
    with reading(name_of(path)):
        return b'"traceEvents"' in next(read_buffers(path), b"")[:HEAD_BYTES]


def read_messages(path: str | os.PathLike[str]) -> TracedMessages:
    """Return the messages of a trace; raise Invalid if it holds none, or those of several traces that were merged."""
    name = name_of(path)
    with reading(name):
        return _messages_of(ChromeTrace(name, read_bytes(path)))


def _messages_of(trace: ChromeTrace) -> TracedMessages:
    """Match the intervals of senders and receivers, in the order in which the trace has them."""
    sent: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    arrived: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    processes = set()  # of Chrome's format: a trace has all its messages in one, with a track for each rank
    for number, event in enumerate(trace.events):
        if event["ph"] == "X" and event.get("cat") in (*_SENT, _ARRIVED):
            _check_message(event, number)
            pair = event["args"]["src"], event["args"]["dst"]
            (arrived if event["cat"] == _ARRIVED else sent)[pair].append(event)
            processes.add(event.get("pid", 0))
    if all(src == dst for src, dst in sent):
        raise Invalid(
            "holds no messages of `run --trace` or `predict --trace`; `antiphon replay` reads the traces of profilers"
        )
    if len(processes) > 1:
        raise Invalid("holds the messages of several traces; explore each alone")
    nbytes = trace.about.get("nbytes")
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 < nbytes < 2**60:
        raise Invalid(f"nbytes: expected a whole number of bytes, got {quote(nbytes)}")
    rows = []
    for (src, dst), events in sent.items():
        arrivals = arrived.pop((src, dst), []) if src != dst else events
        if len(arrivals) != len(events):
            raise Invalid(f"rank {src} sends {len(events)} messages to rank {dst}, which receives {len(arrivals)}")
        rows += [
            (send["ts"], max(send["ts"], arrival["ts"] + arrival.get("dur", 0)), src, dst, send["args"]["step"],
             send["args"]["bytes"], bool(send["args"].get("critical")))
            for send, arrival in zip(events, arrivals, strict=True)
        ]  # fmt: skip
    if arrived:
        raise Invalid("rank {} sends no messages to rank {}, which receives some".format(*next(iter(arrived))))
    columns = [np.array(column) for column in zip(*sorted(rows), strict=True)]
    start, landed = ((column - trace.start) * 1e-6 for column in columns[:2])
    senders, receivers, steps, carried, critical = columns[2:]
    return TracedMessages(
        trace.title, trace.about, nbytes, steps, senders, receivers, carried.astype(float), start, landed,
        np.flatnonzero(critical),
    )  # fmt: skip


def _check_message(event: Mapping[str, Any], number: int) -> None:
    """Raise Invalid if an interval does not say what was sent from where to where."""
    args = event.get("args", {})
    has_ranks = all(type(args.get(key)) is int and 0 <= args[key] <= MAX_RANK for key in ("src", "dst"))
    step, carried = args.get("step"), args.get("bytes")
    if not has_ranks or type(step) is not int or not 0 <= step < 2**31:
        raise Invalid(f"event {number}: a message needs its step, and src and dst, ranks from 0 to {MAX_RANK}")
    if type(carried) not in (int, float) or not 0 <= carried < 2**60:
        raise Invalid(f"event {number}: bytes: expected a number of bytes, got {quote(carried)}")
