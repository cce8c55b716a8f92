"""Find which values, each used any number of times, add up to a wanted value: exact cover with repetition.

A value is a multiset of contributions (numbers of ranks' inputs). Depth-first search: of the contributions that are
still missing, take the one that the fewest fitting values contain; try each of these values, subtract it from what is
missing, and backtrack if none fits. Values of a single contribution, the usual case, need no search.

Example: {a, b, b, c} from {a, b}, {b}, {b, c}: c is only in {b, c}; then {a, b} remains, which is a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from antiphon.errors import Unsupported

Value = tuple[int, ...]  # contributions in ascending order, each as often as it occurs
MOST_COMPARISONS = 300_000  # comparisons of a value with the missing contributions, after which the search gives up


def sum_of(want: Value, values: Sequence[Value]) -> dict[Value, int] | None:
    """Return how often each value is used; earlier values are preferred. None if no sum of values is `want`.

    Raises Unsupported if the search takes too long.
    """
    missing = Counter(want)
    usable = [value for value in dict.fromkeys(values) if Counter(value) <= missing]
    if all(len(value) == 1 for value in usable):  # the usual case: nothing to search
        singles = {value[0] for value in usable}
        return {(name,): times for name, times in missing.items()} if singles >= missing.keys() else None
    values_with: dict[int, list[Value]] = {name: [v for v in usable if name in v] for name in missing}
    chosen: list[Value] = []
    # depth-first with an explicit stack: candidates[i] yields the values not yet tried as addend i
    candidates = [_fitting_values(missing, values_with)]
    comparisons = 0
    while comparisons < MOST_COMPARISONS:
        value = next(candidates[-1], None)
        if value is None:
            candidates.pop()
            if not candidates:
                return None
            missing.update(chosen.pop())
            continue
        missing.subtract(value)
        chosen.append(value)
        if not any(missing.values()):
            return dict(Counter(chosen))
        candidates.append(_fitting_values(missing, values_with))
        comparisons += sum(len(values_with[name]) for name, times in missing.items() if times)
    raise Unsupported(
        f"which of {len(usable)} values add up to {len(want)} contributions was not found in {MOST_COMPARISONS} "
        "comparisons; let ranks begin with single contributions"
    )


def _fitting_values(missing: Counter[int], values_with: dict[int, list[Value]]) -> Iterator[Value]:
    """Return the candidates for the next value: those that fit and contain the missing contribution of fewest
    values.
    """
    remaining = +missing  # without contributions that are missing 0 times
    fitting = [[v for v in values_with[name] if Counter(v) <= remaining] for name in remaining]
    fewest: list[Value] = min(fitting, key=len)
    return iter(fewest)
