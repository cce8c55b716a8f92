"""An answer to the question of a job: its machine, and plans that are kept for one like it, or made now."""

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
from antiphon.formats.probe.found import Probed
from antiphon.runtimes.auto import alike
from antiphon.runtimes.auto.allocation import allocation
from antiphon.runtimes.auto.planning import Gain, book_of, planned
from antiphon.runtimes.serve.auto_kept import ALIKE, PLANNED, Answer
from antiphon.runtimes.serve.book import encode_book
from antiphon.runtimes.serve.files import keep
from antiphon.units import format_seconds, parse_seconds

BUDGET, USUAL = "ANTIPHON_AUTO_BUDGET", 60.0
_AGAIN = 0.25  # seconds, where a library of Python's has swallowed the first


class _Spent(BaseException):
    """The budget is: nobody below takes it for a fault of his own."""


def budget() -> float:
    """Seconds of processor time."""
    return parse_seconds(os.environ.get(BUDGET) or USUAL, BUDGET, bare=True)


def answer(question: str, kept: Path | None) -> bytes:
    """What goes to the job: an answer, or why there is none."""
    try:
        made = _answer(question, kept)
    except (AntiphonError, OSError) as error:
        return f"failed\t{' '.join(str(error).split())}\n".encode()
    except Exception as error:  # nobody reads a traceback here
        return f"failed\t{type(error).__name__}: {' '.join(str(error).split())}\n".encode()
    data = made.encode()
    if kept is not None:
        with suppress(OSError):
            keep(data, kept)
    return data


def _answer(question: str, kept: Path | None) -> Answer:
    found = allocation(question)
    notes = [*found.notes]
    folder = None if kept is None else kept.parent
    if folder is not None and folder.exists() and not is_ours(folder, folder=True):
        notes.append(f"{folder} is not believed: others may write there")
    if kept is not None and kept.exists():  # whoever asks has looked there
        notes.append("planned anew: what was kept is damaged, or others may write there")
    before = None
    if folder is not None:
        try:
            before = alike.get(found.machine, folder)
        except Invalid as error:
            notes.append(f"planned anew: {error}")
    if before is not None:
        return _answer_of(found, ALIKE, before[0], before[1], notes)
    plans, gain = _planned(found, notes)
    if folder is not None and not any("was stopped" in note for note in notes):
        with suppress(OSError):
            alike.put(found.machine, plans, gain, folder)
    return _answer_of(found, PLANNED, plans, gain, notes)


def _answer_of(found: Probed, how: str, plans: list[Plan], gain: str, notes: list[str]) -> Answer:
    return Answer(how, found.machine.name, gain, "; ".join(notes), encode_book(book_of(plans)))


def _planned(found: Probed, notes: list[str]) -> tuple[list[Plan], str]:
    """Within the budget of processor time; what was found by then is used."""
    seconds = budget()
    plans: list[Plan] = []
    gains: dict[str, Gain] = {}

    def heard(plan: Plan, gain: Gain) -> None:
        plans.append(plan)
        gains.setdefault(gain.kind, gain)

    def spent(number: int, frame: FrameType | None) -> None:
        raise _Spent

    usage = resource.getrusage(resource.RUSAGE_SELF)
    left = seconds - usage.ru_utime - usage.ru_stime
    before = signal.signal(signal.SIGVTALRM, spent)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(left, 0.001), _AGAIN)
    try:
        planned(found.machine, heard)
    except _Spent:
        notes.append(f"planning was stopped after {format_seconds(seconds)} of processor time ({BUDGET})")
        if not plans:
            raise TimedOut(notes[-1]) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if not plans:
        raise Infeasible(f"{found.machine.name}: no plan is predicted to be faster than plain ways; all stays as it is")
    return plans, ", ".join(map(str, gains.values()))
