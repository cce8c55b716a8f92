"""Find which values, each used any number of times, add up to a wanted value: exact cover with repetition.

A value is a multiset of contributions (numbers of ranks' inputs). Depth-first search: choose the contribution that the
fewest fitting values contain, try each of these values, subtract it from the remainder, backtrack if none fits. Values
of a single contribution, the usual case, need no search.

Example: {a, b, b, c} from {a, b}, {b}, {b, c}: c is only in {b, c}; then {a, b} remains, which is a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from antiphon.errors import Unsupported

Value = tuple[int, ...]  # contributions in ascending order, each as often as it counts
MOST = 300_000  # maximum number of comparisons of a value with the remainder


def sum_of(want: Value, values: Sequence[Value]) -> dict[Value, int] | None:
    """Return how often each value is used; earlier ones are preferred. None if no sum of them is `want`.

    Raises Unsupported if the search takes too long.
    """
    room = Counter(want)
    usable = [value for value in dict.fromkeys(values) if Counter(value) <= room]
    if all(len(value) == 1 for value in usable):  # the usual case: nothing to search
        singles = {value[0] for value in usable}
        return {(name,): times for name, times in room.items()} if singles >= room.keys() else None
    having: dict[int, list[Value]] = {name: [v for v in usable if name in v] for name in room}
    chosen: list[Value] = []
    turns = [_fitting_values(room, having)]
    compared = 0
    while compared < MOST:
        value = next(turns[-1], None)
        if value is None:
            turns.pop()
            if not turns:
                return None
            room.update(chosen.pop())
            continue
        room.subtract(value)
        chosen.append(value)
        if not any(room.values()):
            return dict(Counter(chosen))
        turns.append(_fitting_values(room, having))
        compared += sum(len(having[name]) for name, times in room.items() if times)
    raise Unsupported(
        f"which of {len(usable)} values add up to {len(want)} contributions was not found in {MOST} comparisons; "
        "let ranks begin with single contributions"
    )


def _fitting_values(room: Counter[int], having: dict[int, list[Value]]) -> Iterator[Value]:
    """Return the candidates for the next value: those that fit and have the rarest contribution."""
    remaining = +room
    fitting = [[v for v in having[name] if Counter(v) <= remaining] for name in remaining]
    fewest: list[Value] = min(fitting, key=len)
    return iter(fewest)
