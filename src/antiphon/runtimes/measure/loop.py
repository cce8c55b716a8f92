"""The one loop that measures: calls among processes, in turn with the library's own, every element checked."""

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
from antiphon.runtimes.measure.made_up import MadeUp
from antiphon.runtimes.measure.race import Race, Standing, compare

Array = NDArray[Any]
Call = Callable[[], None]
SPOILED = 77


class Together:
    """How the processes of a case know of each other; as it stands, for one that is alone."""

    first = True  # the process that tells

    def meet(self) -> float:
        """Wait for all; the moment at which all begin, by `time.monotonic`."""
        return time.monotonic()

    def all(self, value: Any) -> list[Any]:
        """The values of all processes, in their order: numbers, texts, lists."""
        return [value]

    def rest(self) -> None:
        """After a call: leave the processor to those that are not done."""

    def watch(self) -> None:
        """The run that comes next is one that others may count."""


class Seat:
    """The buffers of one rank for cases that differ in their program only."""

    def __init__(self, collective: Collective, rank: int, case: Case) -> None:
        self.case, self.collective, self.rank, self.dtype = case, collective, rank, data_type(case.dtype)
        self.data = MadeUp(collective, case.unit, self.dtype, case.op, case.in_place, case.seed).rank(rank)
        self.source = np.zeros(0 if case.in_place else self.data.sizes[0], self.dtype)
        self.target = np.zeros(self.data.sizes[1], self.dtype)
        self.fresh = np.zeros(self.data.sizes[1] if case.in_place else 0, self.dtype)
        self.data.fill(self.fresh if case.in_place else self.source)
        self.kept = self.source.copy()

    @property
    def given(self) -> Array | None:
        return None if self.case.in_place else self.source

    def refresh(self) -> None:
        """Before every call: what is replaced in place comes back."""
        if self.case.in_place:
            self.target[:] = self.fresh

    def spoil(self) -> None:
        self.target[:] = self.dtype.type(SPOILED)

    def wrong(self) -> int:
        """Elements that are not what they should be, the input's included."""
        return self.data.count_wrong(self.target) + int(np.count_nonzero(self.source != self.kept))

    def digest(self) -> str:
        return digest_of(block for _, block in self.data.outputs(self.target))


def digest_of(blocks: Iterable[Array]) -> str:
    """A checksum of what a process ends with."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.tobytes())
    return digest.hexdigest()


class TimedCall(ABC):
    """A call that takes its time itself, as Python takes longer than some calls."""

    @abstractmethod
    def measure(self, count: int) -> float:
        """Seconds of one of `count` calls, the same at all processes."""

    def __call__(self) -> None:
        self.measure(1)


class Heat:
    """Cases that are measured together at one process: `ours`, a call for each, and the library's own. `ready` is told
    before the clock starts which call comes. `recorder`: what records the calls of a case alone (traced.Recorder)."""

    def __init__(
        self, cases: Sequence[Case], seat: Any, ours: Sequence[Call], theirs: Call | None, together: Together,
        ready: Callable[[Call], None] = lambda call: None, recorder: Any = None,
    ) -> None:  # fmt: skip
        self.cases, self.case, self.seat, self.together = cases, cases[0], seat, together
        self.ours, self.theirs, self.ready, self.recorder = list(ours), theirs, ready, recorder

    def once(self, call: Call, inner: int = 1) -> float:
        """Seconds of one call, all starting together."""
        self.seat.refresh()
        self.ready(call)
        if isinstance(call, TimedCall):
            return call.measure(inner)
        began = self.together.meet()
        for _ in range(inner):
            call()
        spent = (time.monotonic() - began) / inner
        self.together.rest()
        return spent

    def checked(self, call: Call) -> int:
        """Elements that are wrong after a call into a spoiled buffer."""
        self.seat.spoil()
        self.once(call)
        return int(self.seat.wrong())

    def go(self, **more: Sequence[Any]) -> list[Row]:
        """The row of each case (`measured_row`), the same at all processes. `more`: of each case what this process adds
        to a sum over all. The first run and the last are checked; what was checked first counts as warmed up."""
        began = time.monotonic()
        everyone = [*self.ours, *([self.theirs] if self.theirs else [])]
        wrong = [self.checked(call) for call in everyone]
        if self.recorder is not None:
            self.recorder.fit(self.case.warmup + self.case.repeat + 1)
        for _ in range(self.case.warmup - 1):
            for call in everyone:
                self.once(call)
        spent, standings = self._alone() if self.case.race is None else self._race(began)
        digests = []
        for number, call in enumerate(self.ours):  # once more: buffers have been used before
            self.together.watch()
            wrong[number] = max(wrong[number], self.checked(call))
            digests.append(self.seat.digest() if self.case.digest else "")
        told = self.together.all([wrong, digests, list(more.values())])
        wrong = np.sum([one[0] for one in told], axis=0).tolist()
        rows = []
        for number in range(len(self.ours)):
            row = measured_row(spent[:, number], spent[:, -1] if self.theirs else None, wrong[number])
            row["reference_wrong"] = wrong[-1] if self.theirs else None
            if standings:
                one = standings[number]
                row |= {"over_best": one.ratio, "over_best_interval": [one.low, one.high], "tied": one.tied}
            if self.case.digest:
                row["digests"] = [one[1][number] for one in told]
            rows.append(row | {key: sum(one[2][i][number] for one in told) for i, key in enumerate(more)})
        if self.recorder is not None:  # of a case alone: its last call was checked, and those before are its runs
            rows[0]["traced"] = self.recorder.told(self.together, spent[:, 0].tolist(), 1)
        return rows

    def _alone(self) -> tuple[Array, list[Standing]]:
        """Ours and the library's, each first in turn."""
        spent = []
        for turn in range(self.case.repeat):
            spent.append(self._round([0], turn))
        return np.max(self.together.all(spent), axis=0), []

    def _race(self, began: float) -> tuple[Array, list[Standing]]:
        """Rounds until all is decided, or the time is over by the clock of the first process."""
        race = Race(len(self.ours), self.case.repeat)
        for turn in range(race.most if self.case.knockout else race.least):
            told = self.together.all([self._round(race.going, turn), time.monotonic() - began])
            slowest = np.max([one[0] for one in told], axis=0).tolist()
            race.add(slowest[: len(race.going)], slowest[-1] if self.theirs else None)
            if self.case.knockout and (race.decide() or told[0][1] > self.case.seconds):
                break
        return np.column_stack([race.times, *([race.theirs] if self.theirs else [])]), race.standings()

    def _round(self, going: Sequence[int], turn: int) -> list[float]:
        """Everyone once, each first in turn: seconds of those going, then the library's."""
        calls = [self.ours[number] for number in going] + ([self.theirs] if self.theirs else [])
        spent = [0.0] * len(calls)
        for place in range(len(calls)):
            number = (place + turn + 1) % len(calls)
            spent[number] = self.once(calls[number], self.case.inner)
        return spent


def measured_row(spent: Array, theirs: Array | None, wrong: int) -> Row:
    """What a measurement tells (docs/bench.md has the meaning of every key): medians and quartiles of what the slowest
    process took, and of ours over the library's in pairs."""
    ran = ~np.isnan(spent)
    seconds, quartiles = _middle(spent[ran])
    found: Row = {
        "seconds": seconds, "quartiles": quartiles, "least": float(spent[ran].min()), "most": float(spent[ran].max()),
        "runs": int(np.count_nonzero(ran)), "wrong": wrong, "correct": wrong == 0, "reference_seconds": None,
        "reference_quartiles": None, "reference_least": None, "reference_wrong": None, "over_library": None,
        "over_library_quartiles": None, "over_library_interval": None,
    }  # fmt: skip
    if theirs is not None:
        found["reference_seconds"], found["reference_quartiles"] = _middle(theirs)
        found["over_library"], found["over_library_quartiles"] = _middle(spent[ran] / theirs[ran])
        found["reference_least"] = float(theirs.min())
        low, _, high = compare(spent, theirs)
        found["over_library_interval"] = [low, high]
    return found


def _middle(values: Array) -> tuple[float, list[float]]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return middle, [low, high]
