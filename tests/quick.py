"""How much of a search the ordinary set makes; the whole is made with the slow ones (`make test-all`)."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SHARE = 12
ordinary = False  # set by conftest.py, by what pytest was asked for


def examples(count: int) -> int:
    """As `max_examples`: so many in all, a part of them in the ordinary set."""
    return max(count // SHARE, min(count, 6)) if ordinary else count


def some(cases: Sequence[T]) -> Sequence[T]:
    """All of them; every twelfth in the ordinary set."""
    return cases[::SHARE] if ordinary else cases


def crossed(first: Iterable[Any], second: Iterable[Any], every: int = 4) -> list[Any]:
    """For `parametrize`: each case with each of others, every fourth or so of these pairs in the ordinary set, along
    diagonals, so that each case is there with some; the rest, and what is marked so already, among the slow ones."""
    others, found = list(second), []
    for row, one in enumerate(first):
        for column, other in enumerate(others):
            values, marks = list[Any](), list[Any]()
            for case in (one, other):
                values += case.values if hasattr(case, "values") else case if isinstance(case, tuple) else (case,)
                marks += getattr(case, "marks", ())
            if (row + column) % every and not marks:
                marks = [pytest.mark.slow]
            found.append(pytest.param(*values, marks=marks))
    return found


def in_turn(cases: Iterable[Any], every: int = 4) -> list[Any]:
    """For `parametrize`: every fourth or so of the cases in the ordinary set, the others among the slow ones, as are
    those that are marked so already, which do not count."""
    found, number = [], 0
    for case in cases:
        known = hasattr(case, "values") and hasattr(case, "marks")
        values = case.values if known else case if isinstance(case, tuple) else (case,)
        marks = [*case.marks] if known else []
        if not marks:
            marks = [pytest.mark.slow] if number % every else []
            number += 1
        found.append(pytest.param(*values, marks=marks, id=case.id if known else None))
    return found
