"""The errors a user can meet. Each states the fault, its place and the fix, in one line."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# difflib's ratio from which a name is suggested: msccl is not suggested for nccl, nor piccl-xml for xml
NEAR = 0.7


class AntiphonError(Exception):
    """Base of all errors meant for users; `exit_code` is what the command line ends with."""

    exit_code = 2


class Invalid(AntiphonError):
    """Your input is wrong: the message states the place and the fix."""


class Unsupported(AntiphonError):
    """The input is valid, but this function or planner does not support it: the message names an alternative."""


class Infeasible(AntiphonError):
    """Proved impossible: the message names the bound that forbids it."""

    exit_code = 1


class TimedOut(AntiphonError):
    """The budget is spent. `best` is the best found so far, or None."""

    exit_code = 1

    def __init__(self, message: str, best: object = None) -> None:
        super().__init__(message)
        self.best = best


class EffortSpent(TimedOut):
    """The limit on effort is reached. Effort counts work, not time: the same request stops at the same point on every
    computer.
    """


class NotFound(AntiphonError):
    """Neither found nor proved impossible. `searched`: for each search a dictionary of JSON values with its outcome."""

    exit_code = 1

    def __init__(self, message: str, searched: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.searched = tuple(searched)


class Missing(AntiphonError):
    """Something must be installed or started first: the message states the command."""


class UnlikelyInput(UserWarning):
    """Your input is valid, but probably not what you meant: where it is, and what was likely intended."""


def warn_unlikely(message: str) -> None:
    """Issue a warning of one line. Python shows it; the command line prints it on stderr (`cli._app`)."""
    warnings.warn(" ".join(message.split()), UnlikelyInput, stacklevel=2)


def quote(name: object, limit: int = 60) -> str:
    """Return a name as it may stand in a one-line message, however odd or long it is."""
    try:
        text = " ".join(repr(name).splitlines())
    except Exception:  # the __repr__ of a user's object may raise anything
        text = f"an object of {type(name).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def list_first(items: Iterable[object], limit: int = 8) -> str:
    """Return the first items, separated by commas, and "..." if there are more.

    >>> list_first(range(5), limit=3)
    '0, 1, 2, ...'
    """
    texts = list(map(str, items))
    return ", ".join(texts if len(texts) <= limit else [*texts[:limit], "..."])


def unknown(label: str, name: object, known_names: Iterable[str], *, listed_by: str = "") -> Invalid:
    """Return the error for an unknown name: it suggests a similar name, if there is one, and lists the known names, or
    names the command that lists them (`listed_by`).
    """
    names = sorted(known_names)
    suggestion = near_miss(name, names) if isinstance(name, str) else None
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    known_text = f"{listed_by} shows all" if listed_by else f"known: {list_first(names, limit=30)}"
    return Invalid(f"unknown {label} {quote(name)}{hint} ({known_text})")


def near_miss(name: str, names: Sequence[str]) -> str | None:
    """Return the name that was most likely meant, or None.

    That is the same name in other case, else one that goes on behind it with a hyphen, else a close match by difflib,
    else a name of the same length that differs in one letter, as difflib rates short names too low.

    >>> [near_miss(name, ["allreduce", "nvls-tree", "nvls", "src"]) for name in ("Alreduce", "srk", "nccl", "NVLS")]
    ['allreduce', 'src', None, 'nvls']
    >>> near_miss("rccl", ["rccl-6"])
    'rccl-6'
    """
    name_of_lower = {spelling.lower(): spelling for spelling in names}
    word = name.lower()
    matches = [word] if word in name_of_lower else []
    matches += [spelling for spelling in name_of_lower if word and spelling.startswith(f"{word}-")]
    matches += difflib.get_close_matches(word, name_of_lower, n=1, cutoff=NEAR)
    matches += [
        spelling
        for spelling in name_of_lower
        if len(spelling) == len(word) and sum(map(str.__ne__, spelling, word)) == 1
    ]
    return name_of_lower[matches[0]] if matches else None
