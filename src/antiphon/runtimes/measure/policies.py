"""Compare policies that choose among candidates for each call, on recorded calls: what would each have cost?

A recording is a CSV file with a row per call and a column of seconds per candidate. The first candidate is the plan
that the table has; `the library` is the library's own collective, and ` xN` behind a name means N times as many slices:

    collective,nbytes,ring,ring x2,direct,the library
    allreduce,1000000,0.0101,0.0093,0.0122,0.0140
    ...

`antiphon replay --policy` prints them. A policy sees only the time of the candidate that it chose, as in a job, and
each collective and size has a policy of its own. Policies are compared with the best candidate in hindsight: that of
all calls, and that of each stretch of STRETCH calls, in which conditions hardly change. To add a policy, write a class
with the two methods of `Policy` and a line of POLICIES.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.core.files import name_of, read_bytes, reading
from antiphon.errors import Invalid, quote, unknown
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.functions import Functions
from antiphon.runtimes.engine.learned import read_learned
from antiphon.runtimes.engine.learner import MAX_PROGRAMS, PLANNED_SLICES, Arm, CallCandidate, Learner

LIBRARY = "the library"
STRETCH = 100  # calls
TRIAL_CALLS = 8  # as in the preloaded library without learning (native/preload_trial.c)


@dataclass(frozen=True)
class CallRecording:
    """The calls of one collective and size. `seconds`: a row per call, a column per candidate."""

    collective: str
    nbytes: int
    names: tuple[str, ...]
    seconds: NDArray[np.float64]


class Policy(Protocol):
    """Chooses the candidate of the next call by its column, and learns how long that took."""

    def choose(self) -> int: ...

    def record(self, seconds: float) -> None: ...


class Fixed:
    """The plan of the table, always."""

    def __init__(self, recording: CallRecording) -> None:
        del recording

    def choose(self) -> int:
        return 0

    def record(self, seconds: float) -> None:
        del seconds


class Trial:
    """The first calls by the plan and by the library in turn, then the one whose median was less."""

    def __init__(self, recording: CallRecording) -> None:
        self._columns = (0, recording.names.index(LIBRARY) if LIBRARY in recording.names else 0)
        self._times: list[float] = []

    def choose(self) -> int:
        if len(self._times) < TRIAL_CALLS:
            return self._columns[len(self._times) % 2]
        # the first call of each is warm-up
        plan_time, library_time = (median(self._times[2 + i : TRIAL_CALLS : 2]) for i in range(2))
        return self._columns[1 if library_time < plan_time else 0]

    def record(self, seconds: float) -> None:
        self._times.append(seconds)


class Bandit:
    """The learner of the engine (native/learn.c)."""

    def __init__(self, recording: CallRecording) -> None:
        names = recording.names
        programs = [LIBRARY, *dict.fromkeys(_split_name(name)[0] for name in names if name != LIBRARY)]
        if len(programs) > MAX_PROGRAMS:
            raise Invalid(f"policy bandit: {len(programs) - 1} plans; it chooses among at most {MAX_PROGRAMS - 1}")
        self._column = {CallCandidate(programs.index(p), s): i for i, (p, s) in enumerate(map(_split_name, names))}
        sliced = any(candidate.slices != PLANNED_SLICES for candidate in self._column)
        functions = Functions(library("threads"))
        # program 0 is the library; without learning the plan of the table serves (1), if there is one
        first = min(1, len(programs) - 1)
        self._learner = Learner(functions, len(programs), first, library=LIBRARY in names, sliced=sliced)

    def choose(self) -> int:
        while True:
            # in a job, the maximum of all processes' reports; here there is one
            if (own_report := self._learner.report()) is not None:
                self._learner.update(own_report)
            column = self._column.get(self._learner.begin())
            if column is not None:
                return column
            self._learner.refuse()  # this candidate was not recorded

    def record(self, seconds: float) -> None:
        self._learner.end(seconds)


class Prior(Bandit):
    """The learner, starting from what jobs on this machine or isomorphic ones have learned: file $ANTIPHON_LEARNED."""

    def __init__(self, recording: CallRecording) -> None:
        super().__init__(recording)
        path = os.environ.get("ANTIPHON_LEARNED", "")
        if not path:
            raise Invalid("policy prior: set ANTIPHON_LEARNED to a file of what was learned")
        candidates = {recording.names[column]: candidate for candidate, column in self._column.items()}
        for line in read_learned(path):
            is_recorded = line.collective == recording.collective and line.name in candidates
            # sizes between the same powers of two share a learner
            if is_recorded and line.nbytes.bit_length() == recording.nbytes.bit_length():
                times = line.samples, line.seconds, line.low, line.high
                self._learner.recall(Arm(candidates[line.name], bool(line.chosen), *times))


POLICIES: Mapping[str, Callable[[CallRecording], Policy]] = {
    "fixed": Fixed, "trial": Trial, "bandit": Bandit, "prior": Prior,
}  # fmt: skip


def _split_name(name: str) -> tuple[str, int]:
    """Return the program of a candidate, and its slices in quarters of the planned number."""
    program, separator, factor = name.rpartition(" x")
    try:
        slices = float(factor) * PLANNED_SLICES if separator else float(PLANNED_SLICES)
    except ValueError:
        return name, PLANNED_SLICES
    return (program, int(slices)) if separator and slices.is_integer() and slices > 0 else (name, PLANNED_SLICES)


def read_recordings(path: str | os.PathLike[str]) -> list[CallRecording]:
    """Read a file of recorded calls; Invalid, with the line, where it is wrong."""
    name = name_of(path)
    with reading(name):
        try:
            rows = list(csv.reader(io.StringIO(read_bytes(path).decode("utf-8"))))
        except (UnicodeDecodeError, csv.Error) as error:
            raise Invalid(f"not a CSV file: {error}") from None
        head, *calls = rows or [[]]
        if head[:2] != ["collective", "nbytes"] or len(head) < 3 or len(set(head)) < len(head):
            raise Invalid("line 1: expected collective,nbytes and a column per candidate, each with its own name")
        times: dict[tuple[str, int], list[list[float]]] = {}
        for number, row in enumerate(calls, 2):
            try:
                collective, size_text, *cells = row
                nbytes, seconds = int(size_text), [float(cell) for cell in cells]
                if len(row) != len(head) or not all(isfinite(s) and s > 0 for s in seconds) or nbytes < 0:
                    raise ValueError
            except ValueError:
                problem = "expected a collective, bytes, and seconds above 0 for each candidate"
                raise Invalid(f"line {number}: {problem}, got {quote(','.join(row))}") from None
            times.setdefault((collective, nbytes), []).append(seconds)
        if not times:
            raise Invalid("no call is recorded: expected a row per call below the head")
    return [CallRecording(*key, tuple(head[2:]), np.array(seconds)) for key, seconds in times.items()]


def compare_policies(recordings: Sequence[CallRecording], policies: Sequence[str]) -> dict[str, Any]:
    """Return the seconds and regrets of policies on recorded calls (keys: docs/replay.md)."""
    for policy in policies:
        if policy not in POLICIES:
            raise unknown("policy", policy, POLICIES)
    rows = []
    for recording in recordings:
        totals = recording.seconds.sum(axis=0)
        best = int(totals.argmin())
        starts = range(0, len(recording.seconds), STRETCH)
        stretches = sum(float(recording.seconds[i : i + STRETCH].sum(axis=0).min()) for i in starts)
        row: dict[str, Any] = {"collective": recording.collective, "nbytes": recording.nbytes}
        row |= {"calls": len(recording.seconds), "best": recording.names[best], "best_seconds": float(totals[best])}
        row |= {"stretch_seconds": stretches, "policies": []}
        for policy in policies:
            columns = _run_policy(POLICIES[policy](recording), recording)
            seconds = float(recording.seconds[np.arange(len(columns)), columns].sum())
            last = recording.names[columns[-1]]
            row["policies"].append(
                {"policy": policy, "seconds": seconds, "regret": seconds / stretches - 1,
                 "against_best": seconds / float(totals[best]) - 1, "last": last,
                 "switches": int(np.count_nonzero(np.diff(columns)))}
            )  # fmt: skip
        rows.append(row)
    return {"rows": rows, "stretch": STRETCH}


def _run_policy(policy: Policy, recording: CallRecording) -> NDArray[np.int64]:
    """Return the column that a policy chooses for each call."""
    columns = np.empty(len(recording.seconds), np.int64)
    for call, seconds in enumerate(recording.seconds):
        columns[call] = policy.choose()
        policy.record(float(seconds[columns[call]]))
    return columns
