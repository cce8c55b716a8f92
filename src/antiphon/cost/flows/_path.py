"""Trace the critical path of a flow simulation back from its last event.

Input: the recorded moments of a run. Output: seconds per term (latency alpha, bandwidth beta, incast epsilon, additions
gamma, memory access delta) that sum to the total time, and the messages on the path. Going back, a version (a cell's
value between two writes) was delayed by the last message that wrote it or by its rank's earlier work. A message was
delayed by the latest of the versions that it reads or by the previous message on its connection. `Moments` (run.py)
has per message when it was ready, began to move and was sent, the seconds lost to incast, and the link that set its
rate; per version when combining was possible, began (`combine`) and was complete (`written_at`), and the version that
its rank combined before it.

Example: 0 -> 1 -> 2, each 1 us latency and 2 us of bytes: from the final version at 6 us back to message 1 -> 2 (began
moving at 4), its latency (ready at 3), the version at rank 1, message 0 -> 1: alpha 2 us, beta 4 us.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.cost.flows.run import Moments
from antiphon.cost.flows.tables import FlowTables
from antiphon.cost.prediction import Hop

# Terms of a prediction: latency, bytes, incast, additions, memory access
TERMS = ("alpha", "beta", "epsilon", "gamma", "delta")


@dataclass
class Walk:
    """The walk back along the critical path, and what it adds up."""

    tables: FlowTables
    moments: Moments
    terms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TERMS, 0.0))
    path_messages: list[int] = field(default_factory=list)  # messages on the path, latest first
    delay: dict[int, float] = field(default_factory=dict)  # link or limit -> seconds in which it set a message's rate
    combining: dict[int, float] = field(default_factory=dict)  # rank -> seconds in which it combined
    greatest_latency: float = 0.0  # the greatest latency on the path, in seconds
    latency_count: int = 0  # messages whose latency is on the path

    def trace_back(self) -> Walk:
        """Trace from the end to the beginning. O(messages and versions on the path, their readers and writers)."""
        written_at = self.moments.written_at
        version = int(written_at.argmax()) if len(written_at) else -1
        while version >= 0:
            message, version = self._trace_version(version)
            while message >= 0:
                message, version = self._trace_message(message)
        return self

    def hops(self) -> list[Hop]:
        """Return the messages as (step, src, dst), in order of time."""
        sent = self.tables.messages
        at = self.path_messages[::-1]
        return list(zip(*(column[at].tolist() for column in (sent.step, sent.src, sent.dst)), strict=True))

    def _trace_version(self, version: int) -> tuple[int, int]:
        """Return what delayed writing this version: a message, or an earlier version; -1 for none."""
        moments, version_table, work = self.moments, self.tables.versions, self.tables.work
        # Split the seconds of combining into additions (gamma) and memory access (delta).
        spent = float(moments.written_at[version] - moments.combine[version])
        if spent > 0 and work is not None:
            adding = spent * float(work.adding[version] / work.seconds[version])
            self.terms["gamma"] += adding
            self.terms["delta"] += spent - adding
            rank = int(self.tables.rank[version])
            self.combining[rank] = self.combining.get(rank, 0.0) + spent
        # its rank was still combining another version
        if moments.combine[version] > moments.possible[version]:
            return -1, int(moments.before[version])
        of_row = self.tables.messages.of_row
        # rows that write this version, and rows that read the previous version of its cell (CSR: pointers, rows)
        (writer_ptr, writers), (reader_ptr, readers) = version_table.writers, version_table.readers
        rows = [writers[writer_ptr[version] : writer_ptr[version + 1]]]
        if not version_table.initial[version]:
            rows.append(readers[reader_ptr[version - 1] : reader_ptr[version]])
        messages = of_row[np.concatenate(rows)]
        if not len(messages):
            return -1, -1
        # the last message that it waited for is on the critical path
        last = int(messages[moments.sent[messages].argmax()])
        if not version_table.initial[version - 1] and moments.written_at[version - 1] > moments.sent[last]:
            return -1, version - 1
        return last, -1

    def _trace_message(self, message: int) -> tuple[int, int]:
        """Return what delayed this message: an earlier one on its connection, or a version that it reads."""
        moments, tables = self.moments, self.tables
        self.path_messages.append(message)
        moving, lost = float(moments.sent[message] - moments.begin[message]), float(moments.lost[message])
        self.terms["beta"] += moving - lost
        self.terms["epsilon"] += lost
        bottleneck = int(moments.bottleneck[message])
        self.delay[bottleneck] = self.delay.get(bottleneck, 0.0) + moving
        preceding = int(tables.preceding[message])
        alpha = float(tables.paths.alpha[message])
        # delayed by the previous message on the same connection, rather than by its own data
        if preceding >= 0 and moments.sent[preceding] > moments.ready[message] + alpha:
            return preceding, -1
        self.terms["alpha"] += float(moments.begin[message] - moments.ready[message])
        self.greatest_latency, self.latency_count = max(self.greatest_latency, alpha), self.latency_count + 1
        rows = tables.rows_of(message)
        read = tables.versions.read[rows]
        version = int(read[moments.written_at[read].argmax()])
        return -1, -1 if tables.versions.initial[version] else version
