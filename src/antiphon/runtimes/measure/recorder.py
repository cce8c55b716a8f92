"""What the engine records at the processes of a measurement, handed over so that all of it is on one clock."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from antiphon.errors import Unsupported
from antiphon.runtimes.engine.native import Wire
from antiphon.runtimes.engine.trace import MOST, RECORD, Trace
from antiphon.runtimes.measure.clocks import offset
from antiphon.runtimes.measure.loop import Together

Told = dict[str, Any]  # of one rank: rank, turn, ahead and error of its clock in ns, records


class Recorder:
    """What is recorded at one process, by rank."""

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        self.traces = traces

    def fit(self, calls: int) -> None:
        """After the first call: from now on there is room for so many."""
        for one in self.traces.values():
            one.fit(calls)

    def told(self, together: Together, spent: Sequence[float], after: int) -> list[Told]:
        """Of all ranks what they recorded in one call: of those that took `spent` seconds the one whose time is told,
        the median or just above. `after`: how many came after the last of them. The same at all processes."""
        seen = together.all([one.kept() for one in self.traces.values()])
        kept = min(itertools.chain.from_iterable(seen))
        if not any(one.calls for one in self.traces.values()):
            raise Unsupported("nothing moves at this size, so there is nothing to trace")
        if kept <= after:
            raise Unsupported(f"a run of more than {MOST // (after + 1)} operations at a rank is too long for a trace")
        order = sorted(range(max(len(spent) + after - kept, 0), len(spent)), key=lambda turn: spent[turn])
        turn = order[len(order) // 2]
        ahead, error = offset(together)
        mine = [
            {"rank": rank, "turn": turn, "ahead": ahead, "error": error,
             "records": _packed(one.call(after + len(spent) - 1 - turn))}
            for rank, one in self.traces.items()
        ]  # fmt: skip
        return [rank for process in together.all(mine) for rank in process]


@contextmanager
def recording(wires: Mapping[int, Wire]) -> Iterator[Recorder | None]:
    """Records what runs over these wires, by rank, meanwhile; without any nothing, and there is no recorder."""
    traces = {rank: Trace(wire) for rank, wire in wires.items()}
    try:
        yield Recorder(traces) if traces else None
    finally:
        for one in traces.values():
            one.stop()


def _packed(records: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(zlib.compress(records.tobytes(), 1)).decode("ascii")


def unpacked(text: str) -> np.ndarray[Any, Any]:
    """The records that a rank told."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), RECORD)
