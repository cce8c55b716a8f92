"""The learner of the C engine (native/learn.c, which explains it) as a Python object: MPI, PyTorch, NumPy
and the offline replay share one policy.

    learner = Learner(engine.library, programs=3)   # the library's own collective (0), the table's plan (1), another
    for every call:
        if (own := learner.report()) is not None:   # at the same calls at all processes
            learner.update(the maximum over all processes of each number of own)
        candidate = learner.begin()
        learner.end(seconds that the call took by this candidate, here)
"""

from __future__ import annotations

from ctypes import Structure, byref, c_double, c_int, c_int32, c_uint64
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import Invalid
from antiphon.runtimes.engine.functions import Functions, TransportFailed

# As in native/learn.h.
MAX_PROGRAMS = 6
PLANNED_SLICES = 4  # numbers of slices are stated in quarters of the planned number; 4: as planned
_ARMS = MAX_PROGRAMS + 2  # candidates at once: programs, and the chosen one with fewer and with more slices
_CHOICES = 16  # outcomes of searches that are kept
# Numbers that the processes exchange: a time per candidate, that of the exchange, and a digest of the choice with both
# signs, whose maxima are opposite only if all digests are equal.
_NUMBERS = _ARMS + 3
REASONS = (
    "first search", "calls took longer", "calls took less", "a probe was faster", "learned before",
    "calls of another size", "a process could not run another", "conditions are as before",
)  # fmt: skip
_NEVER = 1e9  # seconds of a call that was not timed


class CallCandidate(NamedTuple):
    """A way to make a call. `program` 0: the library; `slices`: quarters of the planned number."""

    program: int
    slices: int = PLANNED_SLICES


class Arm(NamedTuple):
    """A candidate's measurements: of the median times of a call the latest (`seconds`), the least and the greatest."""

    candidate: CallCandidate
    chosen: bool
    samples: int
    seconds: float
    low: float
    high: float


class LearnerChoice(NamedTuple):
    """The outcome of a search. `call`: the first by this candidate, from 1; `why`: of REASONS; `seconds`: of a call."""

    call: int
    candidate: CallCandidate
    why: str
    seconds: float


class _Candidate(Structure):
    _fields_ = [("program", c_int32), ("slices", c_int32)]


class _Choice(Structure):
    _fields_ = [
        ("call", c_uint64), ("candidate", _Candidate), ("why", c_int32), ("searches", c_int32), ("seconds", c_double),
    ]  # fmt: skip


class _Arm(Structure):
    _fields_ = [
        ("candidate", _Candidate), ("usable", c_int32), ("chosen", c_int32), ("samples", c_uint64),
        ("seconds", c_double), ("low", c_double), ("high", c_double),
    ]  # fmt: skip


class Learner:
    """One process's part in choosing among candidates for calls of one kind and size.

    `programs`: their number, with the library's, program 0. `first`: the program that serves the calls without
    learning. `library`: whether program 0 may be chosen. `sliced`: whether other numbers of slices are candidates."""

    def __init__(
        self, functions: Functions, programs: int, first: int = 1, library: bool = True, sliced: bool = True
    ) -> None:
        self._functions, self._handle = functions, 0
        self._handle = functions.ap_learner_open(programs, first, int(library), int(sliced)) or 0
        if not self._handle:
            raise Invalid(f"learner: expected 1 to {MAX_PROGRAMS} programs, got {programs}; the first is one of them")
        self._own, self._candidate, self._aligns = np.zeros(_NUMBERS), _Candidate(), c_int()
        self._own_address = self._own.ctypes.data
        self._time: Any = None  # a pointer to the place from which the engine reads the time of the call under way
        self.candidate = CallCandidate(first)  # of the last call; `first` before any

    def report(self) -> NDArray[np.float64] | None:
        """Return numbers; their maxima over all processes must be passed to `update` before this call. None for most
        calls, at all processes alike.
        """
        return self._own if self._functions.ap_learner_report(self._handle, self._own_address) else None

    def update(self, agreed: NDArray[np.float64], seconds: float = 0.0) -> None:
        """Take the maxima over all processes. `seconds`: how long the exchange took here."""
        self._functions.ap_learner_exchanged(self._handle, seconds)
        if not self._functions.ap_learner_update(self._handle, agreed.ctypes.data):
            raise TransportFailed("processes chose different plans while learning; run without ANTIPHON_LEARN")

    def begin(self) -> CallCandidate:
        """Return the candidate for the next call."""
        self._time = self._functions.ap_learner_begin(self._handle, byref(self._candidate), byref(self._aligns))
        self._time[0] = _NEVER
        self.candidate = _to_candidate(self._candidate)
        return self.candidate

    @property
    def aligns(self) -> bool:
        """Whether all processes should begin the call at the same time."""
        return bool(self._aligns.value)

    def end(self, seconds: float) -> None:
        """Report the call's duration."""
        self._time[0] = seconds

    def refuse(self) -> None:
        """Report that the candidate of `begin` cannot run at some process: it is not chosen again, unless it is the
        only one. All processes must call this for the same call."""
        self._functions.ap_learner_refuse(self._handle)

    def restart(self) -> None:
        """Forget the times: calls are of another size from now on. All processes must call this, too."""
        self._functions.ap_learner_restart(self._handle)

    def recall(self, arm: Arm) -> None:
        """Before the first call: start with what an earlier job learned."""
        earlier = _Arm(
            candidate=_Candidate(*arm.candidate), usable=1, chosen=arm.chosen, samples=arm.samples,
            seconds=arm.seconds, low=arm.low, high=arm.high,
        )  # fmt: skip
        self._functions.ap_learner_recall(self._handle, byref(earlier))

    def arms(self) -> list[Arm]:
        """Return the candidates that were measured."""
        rows = (_Arm * _ARMS)()
        count = self._functions.ap_learner_arms(self._handle, rows)
        return [
            Arm(_to_candidate(row.candidate), bool(row.chosen), row.samples, row.seconds, row.low, row.high)
            for row in rows[:count]
            if row.samples
        ]

    def choices(self) -> list[LearnerChoice]:
        """Return the outcomes of searches: the first one, and the latest ones."""
        rows = (_Choice * _CHOICES)()
        count = self._functions.ap_learner_choices(self._handle, rows)
        return [
            LearnerChoice(row.call + 1, _to_candidate(row.candidate), REASONS[row.why], row.seconds)
            for row in rows[:count]  # whose calls are counted from 0
        ]

    def __del__(self) -> None:
        if self._handle:
            self._functions.ap_learner_close(self._handle)


def _to_candidate(candidate: Any) -> CallCandidate:
    return CallCandidate(candidate.program, candidate.slices)
