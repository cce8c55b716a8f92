"""The loop of all measurements: time our calls and the library's in turn, synchronized, and check every element.

`Measurement` gets calls (functions without arguments: ours, and the library's), the buffers that they use, and `Peers`,
by which the processes of a case meet and exchange values. Each round times every call once, starting with a different
one, so that drift of the machine affects all alike; a time is that of the slowest process. Calls are checked before the
first round, and ours again after the last: outputs are spoiled first, so that a call that does nothing is noticed, and
every element is compared with `random_data`. In a race, rounds go on until the fastest case is certain (`race`).
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.runtimes.measure.case import Case, Row
from antiphon.runtimes.measure.race import Race, RaceStanding, compare
from antiphon.runtimes.measure.random_data import RandomData

Array = NDArray[Any]
Call = Callable[[], None]
SPOILED = 77  # written into output buffers before a call that is checked


class Peers:
    """How the processes of a case communicate. This base class is for a single process."""

    first = True  # whether this process reports

    def meet(self) -> float:
        """Wait for all; return the time at which all begin, by `time.monotonic`."""
        return time.monotonic()

    def all(self, value: Any) -> list[Any]:
        """Return the values (numbers, texts, lists) of all processes, in their order."""
        return [value]

    def rest(self) -> None:
        """After a call: leave the processor to processes that are not done."""

    def watch(self) -> None:
        """Before a run whose traffic may be counted."""


class RankBuffers:
    """The buffers of one rank for cases that differ in their program only."""

    def __init__(self, collective: Collective, rank: int, case: Case) -> None:
        self.case, self.collective, self.rank, self.dtype = case, collective, rank, data_type(case.dtype)
        self.data = RandomData(collective, case.unit, self.dtype, case.op, case.in_place, case.seed).rank(rank)
        sizes = self.data.sizes
        self.source = np.zeros(0 if case.in_place else sizes.input, self.dtype)
        self.target = np.zeros(sizes.output, self.dtype)
        self.first_input = np.zeros(sizes.output if case.in_place else 0, self.dtype)
        self.data.fill(self.first_input if case.in_place else self.source)
        self.source_copy = self.source.copy()

    @property
    def source_argument(self) -> Array | None:
        return None if self.case.in_place else self.source

    def refresh(self) -> None:
        """Restore, before a call in place, the input that the last call has overwritten."""
        if self.case.in_place:
            self.target[:] = self.first_input

    def spoil(self) -> None:
        """Overwrite the output. In place, `refresh` then restores the input: a call that does nothing leaves that."""
        self.target[:] = self.dtype.type(SPOILED)

    def wrong(self) -> int:
        """Return the number of wrong elements in the output, and of changed elements in the input."""
        return self.data.count_wrong(self.target) + int(np.count_nonzero(self.source != self.source_copy))

    def digest(self) -> str:
        return digest_of(block for _, block in self.data.outputs(self.target))


def digest_of(blocks: Iterable[Array]) -> str:
    """Return a checksum of the outputs of a process."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.tobytes())
    return digest.hexdigest()


class TimedCall(ABC):
    """A call that measures its own time: some calls take less time than Python needs to measure them."""

    @abstractmethod
    def measure(self, count: int) -> float:
        """Return the mean seconds of `count` calls, the same at all processes."""

    def __call__(self) -> None:
        self.measure(1)


class Measurement:
    """Cases that are measured together, at one process: `ours`, a call for each, and the library's own.

    `ready` gets each call before its clock starts. `recorder`: records the calls of a single case (recorder.Recorder).
    `facts_of_outputs`: called after the last call of each case; what it returns is added to the case's row.
    """

    def __init__(
        self, cases: Sequence[Case], buffers: Any, ours: Sequence[Call], theirs: Call | None, peers: Peers,
        ready: Callable[[Call], None] = lambda call: None, recorder: Any = None,
        facts_of_outputs: Callable[[], Row] = dict,
    ) -> None:  # fmt: skip
        self.cases, self.case, self.buffers, self.peers = cases, cases[0], buffers, peers
        self.ours, self.theirs, self.ready, self.recorder = list(ours), theirs, ready, recorder
        self.facts_of_outputs = facts_of_outputs

    def time_call(self, call: Call, inner: int = 1) -> float:
        """Return the seconds of a call, or the mean of `inner` calls, that all processes begin at the same time."""
        self.buffers.refresh()
        self.ready(call)
        # The call measures itself: the clock below would include Python's own time.
        if isinstance(call, TimedCall):
            return call.measure(inner)
        began = self.peers.meet()
        for _ in range(inner):
            call()
        spent = (time.monotonic() - began) / inner
        self.peers.rest()
        return spent

    def count_wrong(self, call: Call) -> int:
        """Return the number of wrong elements after a call into a spoiled buffer."""
        self.buffers.spoil()
        self.time_call(call)
        return int(self.buffers.wrong())

    def run(self, **sums: Sequence[Any]) -> list[Row]:
        """Return the row of each case (`measured_row`), the same at all processes.

        `sums`: by key of a row, a number per case at this process; the row has the sum over all processes. The first
        run of each call, which is also its first warm-up, is checked, and the last one of each of ours."""
        began = time.monotonic()
        calls = [*self.ours, *([self.theirs] if self.theirs else [])]
        wrong = [self.count_wrong(call) for call in calls]
        if self.recorder is not None:
            # room for the calls that warm up (one was the check above), those that are timed (`inner` is 1 in a traced
            # case), and the last, which is checked
            self.recorder.fit(self.case.warmup + self.case.repeat + 1)
        # The check above was the first warm-up.
        for _ in range(self.case.warmup - 1):
            for call in calls:
                self.time_call(call)
        spent, standings = self._measure_alone() if self.case.race is None else self._measure_race(began)
        digests, output_facts = [], []
        for number, call in enumerate(self.ours):  # check again, with buffers that have been used
            self.peers.watch()
            wrong[number] = max(wrong[number], self.count_wrong(call))
            digests.append(self.buffers.digest() if self.case.digest else "")
            output_facts.append(self.facts_of_outputs())
        # Faults and sums are added over all processes, so that every process returns the same rows.
        results = self.peers.all([wrong, digests, list(sums.values())])
        wrong = np.sum([counts for counts, *_ in results], axis=0).tolist()
        rows = []
        for number in range(len(self.ours)):
            row = measured_row(spent[:, number], spent[:, -1] if self.theirs else None, wrong[number])
            row["reference_wrong"] = wrong[-1] if self.theirs else None
            if standings:
                standing = standings[number]
                row |= {"over_best": standing.ratio, "over_best_interval": [standing.low, standing.high]}
                row["tied"] = standing.tied
            if self.case.digest:
                row["digests"] = [all_digests[number] for _, all_digests, _ in results]
            row |= {key: sum(values[i][number] for *_, values in results) for i, key in enumerate(sums)}
            rows.append(row | output_facts[number])
        if self.recorder is not None:  # of a single case, whose last call was checked
            rows[0]["traced"] = self.recorder.collect(self.peers, spent[:, 0].tolist(), after=1)
        return rows

    def _measure_alone(self) -> tuple[Array, list[RaceStanding]]:
        """Time one case and the library; return seconds (rounds x calls, the library's last), and no standings."""
        spent = []
        for turn in range(self.case.repeat):
            spent.append(self._time_round([0], turn))
        return np.max(self.peers.all(spent), axis=0), []

    def _measure_race(self, began: float) -> tuple[Array, list[RaceStanding]]:
        """Time rounds until the race is decided, or has taken `case.seconds`; return seconds (NaN: no longer timed)."""
        # All processes see the same times and the clock of process 0, so they take the same decisions.
        race = Race(len(self.ours), self.case.repeat)
        for turn in range(race.max_rounds if self.case.knockout else race.min_rounds):
            results = self.peers.all([self._time_round(race.going, turn), time.monotonic() - began])
            slowest = np.max([spent for spent, _ in results], axis=0).tolist()
            race.add(slowest[: len(race.going)], slowest[-1] if self.theirs else None)
            (_, first_elapsed), *_ = results  # of process 0
            if self.case.knockout and (race.decide() or first_elapsed > self.case.seconds):
                break
        return np.column_stack([race.times, *([race.theirs] if self.theirs else [])]), race.standings()

    def _time_round(self, going: Sequence[int], turn: int) -> list[float]:
        """Time once each case still in the race (`going`) and the library; return the seconds, the library's last."""
        calls = [self.ours[number] for number in going] + ([self.theirs] if self.theirs else [])
        spent = [0.0] * len(calls)
        for position in range(len(calls)):
            # Rotate the order, so that each call comes first equally often.
            number = (position + turn + 1) % len(calls)
            spent[number] = self.time_call(calls[number], self.case.inner)
        return spent


def measured_row(spent: Array, theirs: Array | None, wrong: int) -> Row:
    """Return the row of a measurement (docs/bench.md defines the keys): medians and quartiles of the slowest process's
    time, and of the ratio of ours to the library's within rounds. `spent`, `theirs`: seconds by round; NaN in
    `spent` once the case was knocked out, whereas the library is timed in every round."""
    timed = ~np.isnan(spent)
    seconds, quartiles = _median_and_quartiles(spent[timed])
    row: Row = {
        "seconds": seconds, "quartiles": quartiles,
        "least": float(spent[timed].min()), "most": float(spent[timed].max()),
        "runs": int(np.count_nonzero(timed)), "wrong": wrong, "correct": wrong == 0, "reference_seconds": None,
        "reference_quartiles": None, "reference_least": None, "reference_wrong": None, "over_library": None,
        "over_library_quartiles": None, "over_library_interval": None,
    }  # fmt: skip
    if theirs is not None:
        row["reference_seconds"], row["reference_quartiles"] = _median_and_quartiles(theirs)
        row["over_library"], row["over_library_quartiles"] = _median_and_quartiles(spent[timed] / theirs[timed])
        row["reference_least"] = float(theirs.min())
        low, _, high = compare(spent, theirs)
        row["over_library_interval"] = [low, high]
    return row


def _median_and_quartiles(values: Array) -> tuple[float, list[float]]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return middle, [low, high]
