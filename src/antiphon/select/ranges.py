"""Choose the best candidate for every size, and merge equal choices into ranges: pure functions of times by size.

A tuning prices each candidate at the same sizes, say 1 KB, 2 KB, 4 KB, ... Its result is a few ranges of sizes with one
plan each, so neighbouring sizes should have the same winner wherever the times allow it.

    best_at_size      all candidates that are best at one size, up to the relative tolerance TIE
    choose_winners    one of them per size, such that the winner changes as rarely as possible
    merge_runs        runs of equal winners, as (winner, first size, last size)
    worth_keeping     the candidates that can still win, whose schedules must be kept in memory

`choose_winners` is greedy: keep the last winner while it is among the best; otherwise take the candidate that stays
among the best for longest. For intervals this greedy rule gives the fewest ranges (as in covering a line by intervals).

Example: times of three candidates at four sizes; candidate 2 ties with 0 at the second size and leads from there on.

    size         1 KB   2 KB   4 KB   8 KB
    0              10     20     50     90
    1              15     25     45     80
    2              12     20     30     40

Winners: 0, 0, 2, 2; ranges: 0 for 1 to 2 KB, 2 for 4 to 8 KB. Candidate 1 is best nowhere: its schedule is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

TIE = 1e-9  # times with at most this relative difference count as equal
MIN_TIME = 1e-30  # in place of a time of 0, which has no logarithm

Times = Sequence[float]  # seconds per size
Label = TypeVar("Label")  # anything that identifies a winner


class Key(NamedTuple):
    """The number of a candidate, and of one of the schedules that it has; the functions below compare both as one."""

    candidate: int
    variant: int


def best_at_size(times: Mapping[Key, Times], size: int) -> list[Key]:
    """Return the candidates that are best at the size with this index, in order of their numbers."""
    best = min(t[size] for t in times.values())
    return sorted(key for key, t in times.items() if t[size] <= best * (1 + TIE))


def choose_winners(times: Mapping[Key, Times]) -> list[Key]:
    """Return the best candidate for every size.

    Of several, the winner of the size before; else the one that remains among the best for most of the next sizes; of
    equal ones that with the lowest number.
    """
    sizes = len(next(iter(times.values())))
    best_at = [best_at_size(times, i) for i in range(sizes)]
    chosen: list[Key] = []
    for i, candidates in enumerate(best_at):
        if chosen and chosen[-1] in candidates:
            chosen.append(chosen[-1])
            continue

        # the first size at which the candidate is no longer among the best
        def end_of_lead(candidate: Key, i: int = i) -> int:
            return next((j for j in range(i, sizes) if candidate not in best_at[j]), sizes)

        chosen.append(min(candidates, key=lambda c: (-end_of_lead(c), c)))
    return chosen


def merge_runs(chosen: Sequence[Label]) -> list[tuple[Label, int, int]]:
    """Return (winner, index of its first size, index of its last size) for every run of equal winners."""
    spans: list[tuple[Label, int, int]] = []
    for i, candidate in enumerate(chosen):
        if i and candidate == chosen[i - 1]:
            _, first, _ = spans.pop()
        else:
            first = i
        spans.append((candidate, first, i))
    return spans


def worth_keeping(times: Mapping[Key, Times]) -> set[Key]:
    """Return the candidates that can still win if others are added: best at some size, and dominated by none.

    A candidate that an earlier one equals or beats at every size never wins.
    """
    sizes = range(len(next(iter(times.values()))))
    best_somewhere = sorted({key for size in sizes for key in best_at_size(times, size)})
    undominated: list[Key] = []
    for key in best_somewhere:
        if not any(all(a <= b for a, b in zip(times[other], times[key], strict=True)) for other in undominated):
            undominated.append(key)
    return set(undominated)


def fastest_few(times: Mapping[Key, Times], count: int) -> set[Key]:
    """Return the `count` best at every size; of equals those with the lowest numbers. `times` may be empty."""
    fastest: set[Key] = set()
    for size in range(len(next(iter(times.values()), ()))):
        fastest |= set(sorted(times, key=lambda key: (times[key][size], key))[:count])
    return fastest


def ends_of(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the least and the greatest value; None for both if a value is unknown."""
    numbers = [value for value in values if value is not None]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(values) else (None, None)


def best_order(times: Mapping[Key, Times], orders: Mapping[Key, str | None]) -> set[Key]:
    """Return the candidates that combine in one order: the order with the least geometric mean, over the sizes, of its
    best times.

    `orders`: by candidate the order in which its schedule combines; None for all if no order is required, which makes
    one group.
    """
    sizes = range(len(next(iter(times.values()))))
    groups: dict[str | None, set[Key]] = {}
    for key in sorted(times):
        groups.setdefault(orders[key], set()).add(key)

    def log_of_mean(keys: set[Key]) -> float:
        """Return the logarithm of the geometric mean, times the number of sizes, which is the same for all."""
        return math.fsum(math.log(max(min(times[key][size] for key in keys), MIN_TIME)) for size in sizes)

    return min(groups.values(), key=log_of_mean)
