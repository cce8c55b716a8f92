"""Which candidate is best for which sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

TIE = 1e-9  # times this near to each other, relatively, count as equal

Key = tuple[int, int]  # number of the candidate, number of its schedule
Times = Sequence[float]
Label = TypeVar("Label")


def tied(times: Mapping[Key, Times], size: int) -> list[Key]:
    """The candidates that are best at the size with this index, in order of their numbers."""
    best = min(t[size] for t in times.values())
    return sorted(i for i, t in times.items() if t[size] <= best * (1 + TIE))


def winners(times: Mapping[Key, Times]) -> list[Key]:
    """The best candidate for every size. Of equals the one that was best for the size before, then the one
    that stays best for longest, then the one with the lowest number: so that ranges are few.
    """
    sizes = len(next(iter(times.values())))
    level = [tied(times, i) for i in range(sizes)]
    chosen: list[Key] = []
    for i, equals in enumerate(level):
        if chosen and chosen[-1] in equals:
            chosen.append(chosen[-1])
            continue

        def stays(candidate: Key, i: int = i) -> int:
            return next((j for j in range(i, sizes) if candidate not in level[j]), sizes)

        chosen.append(min(equals, key=lambda c: (-stays(c), c)))
    return chosen


def runs(chosen: Sequence[Label]) -> list[tuple[Label, int, int]]:
    """(winner, first size, last size), by index, of every run of equal winners."""
    found: list[tuple[Label, int, int]] = []
    for i, candidate in enumerate(chosen):
        if found and found[-1][0] == candidate:
            found[-1] = (candidate, found[-1][1], i)
        else:
            found.append((candidate, i, i))
    return found


def worth_keeping(times: Mapping[Key, Times]) -> set[Key]:
    """The candidates that can still win, whatever else comes: best somewhere, and not as good as nothing else.

    A candidate that an earlier one equals or beats at every size never wins.
    """
    somewhere = sorted({i for size in range(len(next(iter(times.values())))) for i in tied(times, size)})
    kept: list[Key] = []
    for i in somewhere:
        if not any(all(a <= b for a, b in zip(times[j], times[i], strict=True)) for j in kept):
            kept.append(i)
    return set(kept)


def nearest(times: Mapping[Key, Times], count: int) -> set[Key]:
    """The best so many at every size; of equals those with the lowest numbers."""
    found: set[Key] = set()
    for size in range(len(next(iter(times.values()), ()))):
        found |= set(sorted(times, key=lambda key: (times[key][size], key))[:count])
    return found


def best_order(times: Mapping[Key, Times], orders: Mapping[Key, str | None]) -> set[Key]:
    """Of the candidates those of one order of combining: the one whose best times are least, by the mean of their
    logarithms over the sizes; of equals that of the lowest number."""
    sizes = range(len(next(iter(times.values()))))
    groups: dict[str | None, set[Key]] = {}
    for key in sorted(times):
        groups.setdefault(orders[key], set()).add(key)

    def cost(keys: set[Key]) -> float:
        return math.fsum(math.log(max(min(times[key][size] for key in keys), 1e-30)) for size in sizes)

    return min(groups.values(), key=cost)
