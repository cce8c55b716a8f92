"""A measured run as a trace: what the engine recorded at each rank, on one clock, as slices and arrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from antiphon.cost.chrome import RANKS, Page, Passage, RankWork, write_ranks
from antiphon.cost.trace import MOST_EVENTS
from antiphon.errors import Unsupported
from antiphon.runtimes.engine.trace import FOLD, RECEIVE, SEND
from antiphon.runtimes.measure.recorder import Told, unpacked


def measured_trace(told: Sequence[Told], title: str, about: Mapping[str, Any]) -> bytes:
    """The trace (docs/traces.md) of what all ranks told. It begins where the first of them began."""
    columns = {one["rank"]: _Rank(one) for one in sorted(told, key=lambda one: int(one["rank"]))}
    if sum(len(one.kind) for one in columns.values()) > MOST_EVENTS:
        raise Unsupported(
            f"a trace of more than {MOST_EVENTS} operations is too long for a viewer; take a smaller plan"
        )
    start = min(float(one.begin[0]) for one in columns.values())
    for one in columns.values():
        one.begin, one.end = (one.begin - start) / 1000, (one.end - start) / 1000
    error = max(one["error"] for one in told)
    page = Page(title, {**about, "run": told[0]["turn"] + 1, "clock_error_us": error / 1000})
    page.process(RANKS, "ranks")
    works = [work for rank, one in columns.items() for work in one.works(rank)]
    write_ranks(page, _passages(columns), works)
    return page.encode()


class _Rank:
    """The records of one rank, its call first, on the first process's clock in nanoseconds."""

    def __init__(self, told: Told) -> None:
        found = unpacked(told["records"])
        self.begin, self.end = (found[name].astype(np.float64) - told["ahead"] for name in ("begin", "end"))
        self.kind, self.peer, self.bytes = found["kind"], found["peer"], found["bytes"]
        self.channel, self.step = found["channel"], found["when"] // 2

    def messages(self, kind: int) -> dict[tuple[int, int], list[int]]:
        """By peer and channel, in the order in which they started."""
        found: dict[tuple[int, int], list[int]] = {}
        for row in np.flatnonzero(self.kind == kind).tolist():
            found.setdefault((int(self.peer[row]), int(self.channel[row])), []).append(row)
        return found

    def when(self, row: int) -> tuple[float, float]:
        return float(self.begin[row]), max(float(self.begin[row]), float(self.end[row]))

    def works(self, rank: int) -> list[RankWork]:
        found = [RankWork(rank, "call", "call", self.when(0), {"rank": rank})]
        for row in np.flatnonzero(self.kind == FOLD).tolist():
            facts = {"rank": rank, "step": int(self.step[row]), "bytes": int(self.bytes[row])}
            found.append(RankWork(rank, "fold", f"fold, step {facts['step']}", self.when(row), facts))
        return found


def _passages(columns: Mapping[int, _Rank]) -> list[Passage]:
    """Messages from one rank to another on one channel are received in the order in which they were sent. A receive
    that waited already when its message was sent begins there."""
    found = []
    received = {rank: one.messages(RECEIVE) for rank, one in columns.items()}
    for src, one in columns.items():
        for (dst, channel), rows in one.messages(SEND).items():
            for send, receive in zip(rows, received[dst].get((src, channel), ()), strict=True):
                sent, taken = one.when(send), columns[dst].when(receive)
                begin = min(max(taken[0], sent[0]), taken[1])
                facts = {"step": int(one.step[send]), "src": src, "dst": dst, "bytes": int(one.bytes[send])}
                if channel:
                    facts["channel"] = channel
                found.append(Passage(sent, (begin, taken[1]), facts))
    return found
