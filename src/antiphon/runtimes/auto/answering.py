"""Answer the question of a job: find its machine, then plans cached for an isomorphic machine, or plan.

Input: the question of process 0 (a text that describes all processes). Output: the bytes of an `AutoAnswer` with a book
of plans, or a line with the reason why there is none. Called by `python -m antiphon.runtimes.auto`. Stages: determine
the machine (`allocation`); look for plans of a machine that is the same up to numbering (`isomorphic`); else plan
(`planning`), stopped by a timer when the budget of processor time is spent; cache the result.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

from antiphon.core.files import is_ours
from antiphon.core.plan import Plan
from antiphon.errors import AntiphonError, Infeasible, Invalid, TimedOut
from antiphon.formats.probe.probed import Probed
from antiphon.runtimes.auto import isomorphic
from antiphon.runtimes.auto.allocation import find_allocation
from antiphon.runtimes.auto.planning import PredictedGain, book_of, plan_collectives
from antiphon.runtimes.serve.auto_question import ALIKE, PLANNED, AutoAnswer
from antiphon.runtimes.serve.book import encode_book
from antiphon.runtimes.serve.files import write_cache_file
from antiphon.units import format_seconds, parse_seconds

BUDGET, DEFAULT_BUDGET = "ANTIPHON_AUTO_BUDGET", 60.0  # CPU seconds
# seconds between signals once the budget is spent: a library may catch the exception that the first one raises
_SIGNAL_INTERVAL = 0.25


class _BudgetSpent(BaseException):
    """The budget is spent. Not an Exception, so that no planner catches it."""


def processor_budget() -> float:
    """Return the budget in seconds of processor time."""
    return parse_seconds(os.environ.get(BUDGET) or DEFAULT_BUDGET, BUDGET, bare=True)


def answer_question(question: str, cache_file: Path | None) -> bytes:
    """Return the bytes for the job: an answer, or the reason why there is none."""
    try:
        result = _find_answer(question, cache_file)
    except (AntiphonError, OSError) as error:
        return f"failed\t{' '.join(str(error).split())}\n".encode()
    except Exception as error:  # no user reads tracebacks here
        return f"failed\t{type(error).__name__}: {' '.join(str(error).split())}\n".encode()
    data = result.encode()
    if cache_file is not None:
        with suppress(OSError):
            write_cache_file(data, cache_file)
    return data


def _find_answer(question: str, cache_file: Path | None) -> AutoAnswer:
    """Return the answer: ALIKE (plans cached for an isomorphic machine) or PLANNED now."""
    probed = find_allocation(question)
    notes = [*probed.notes]
    folder = None if cache_file is None else cache_file.parent
    if folder is not None and folder.exists() and not is_ours(folder, folder=True):
        notes.append(f"{folder} is not trusted: others may write there")
    if cache_file is not None and cache_file.exists():  # the job has not been able to use it
        notes.append("planned anew: what was kept is damaged, or others may write there")
    cached = None
    if folder is not None:
        try:
            cached = isomorphic.find_plans(probed.machine, folder)
        except Invalid as error:
            notes.append(f"planned anew: {error}")
    if cached is not None:
        cached_plans, cached_gain = cached
        return _make_answer(probed, ALIKE, cached_plans, cached_gain, notes)
    plans, gain = _plan_within_budget(probed, notes)
    # `_plan_within_budget` notes that planning was stopped; incomplete plans are not for other jobs
    if folder is not None and not any("was stopped" in note for note in notes):
        with suppress(OSError):
            isomorphic.cache_plans(probed.machine, plans, gain, folder)
    return _make_answer(probed, PLANNED, plans, gain, notes)


def _make_answer(probed: Probed, how: str, plans: list[Plan], gain: str, notes: list[str]) -> AutoAnswer:
    return AutoAnswer(how, probed.machine.name, gain, "; ".join(notes), encode_book(book_of(plans)))


def _plan_within_budget(probed: Probed, notes: list[str]) -> tuple[list[Plan], str]:
    """Plan within the budget of processor time; return the plans made by then, and their predicted gains as text."""
    seconds = processor_budget()
    plans: list[Plan] = []
    gains: dict[str, PredictedGain] = {}

    def add(plan: Plan, gain: PredictedGain) -> None:
        plans.append(plan)
        gains.setdefault(gain.kind, gain)  # of several roots, the first's

    def raise_spent(number: int, frame: FrameType | None) -> None:
        raise _BudgetSpent

    usage = resource.getrusage(resource.RUSAGE_SELF)
    remaining = seconds - usage.ru_utime - usage.ru_stime
    previous_handler = signal.signal(signal.SIGVTALRM, raise_spent)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(remaining, 0.001), _SIGNAL_INTERVAL)  # 0 would disarm it
    try:
        plan_collectives(probed.machine, add)
    except _BudgetSpent:
        notes.append(f"planning was stopped after {format_seconds(seconds)} of processor time ({BUDGET})")
        if not plans:
            raise TimedOut(notes[-1]) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)
    if not plans:
        raise Infeasible(
            f"{probed.machine.name}: no plan is predicted to be faster than plain ways; all stays as it is"
        )
    return plans, ", ".join(map(str, gains.values()))
