"""Which candidate is best for which sizes: pure functions of their times by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

TIE = 1e-9  # times this near to each other, relatively, count as equal

Key = tuple[int, int]  # number of the candidate, number of its schedule
Times = Sequence[float]
Label = TypeVar("Label")


def best_at_size(times: Mapping[Key, Times], size: int) -> list[Key]:
    """The candidates that are best at the size with this index, in order of their numbers."""
    best = min(t[size] for t in times.values())
    return sorted(i for i, t in times.items() if t[size] <= best * (1 + TIE))


def winners(times: Mapping[Key, Times]) -> list[Key]:
    """The best candidate for every size. Of equals the one that was best for the size before, then the one
    that stays best for longest, then the one with the lowest number: so that ranges are few.
    """
    sizes = len(next(iter(times.values())))
    best_at = [best_at_size(times, i) for i in range(sizes)]
    chosen: list[Key] = []
    for i, candidates in enumerate(best_at):
        if chosen and chosen[-1] in candidates:
            chosen.append(chosen[-1])
            continue

        def end_of_lead(candidate: Key, i: int = i) -> int:
            return next((j for j in range(i, sizes) if candidate not in best_at[j]), sizes)

        chosen.append(min(candidates, key=lambda c: (-end_of_lead(c), c)))
    return chosen


def runs(chosen: Sequence[Label]) -> list[tuple[Label, int, int]]:
    """(winner, first size, last size), by index, of every run of equal winners."""
    spans: list[tuple[Label, int, int]] = []
    for i, candidate in enumerate(chosen):
        if spans and spans[-1][0] == candidate:
            spans[-1] = (candidate, spans[-1][1], i)
        else:
            spans.append((candidate, i, i))
    return spans


def worth_keeping(times: Mapping[Key, Times]) -> set[Key]:
    """The candidates that can still win, whatever else comes: best at some size, and dominated by none.

    A candidate that an earlier one equals or beats at every size never wins.
    """
    best_somewhere = sorted({i for size in range(len(next(iter(times.values())))) for i in best_at_size(times, size)})
    undominated: list[Key] = []
    for i in best_somewhere:
        if not any(all(a <= b for a, b in zip(times[j], times[i], strict=True)) for j in undominated):
            undominated.append(i)
    return set(undominated)


def nearest(times: Mapping[Key, Times], count: int) -> set[Key]:
    """The `count` best at every size; of equals those with the lowest numbers."""
    fastest: set[Key] = set()
    for size in range(len(next(iter(times.values()), ()))):
        fastest |= set(sorted(times, key=lambda key: (times[key][size], key))[:count])
    return fastest


def best_order(times: Mapping[Key, Times], orders: Mapping[Key, str | None]) -> set[Key]:
    """The candidates of one order of combining: the order with the least geometric mean of its best times over the
    sizes; of equals the one of the lowest number."""
    sizes = range(len(next(iter(times.values()))))
    groups: dict[str | None, set[Key]] = {}
    for key in sorted(times):
        groups.setdefault(orders[key], set()).add(key)

    def cost(keys: set[Key]) -> float:
        return math.fsum(math.log(max(min(times[key][size] for key in keys), 1e-30)) for size in sizes)

    return min(groups.values(), key=cost)
