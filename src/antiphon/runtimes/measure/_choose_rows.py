"""Choosing by what was measured: the best schedule at each size, and ranges between the sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, TypeVar

from antiphon.core.plan import LIBRARY, Entry
from antiphon.runtimes.measure.race import MARGIN, beats_library
from antiphon.select import Listed

Row = Mapping[str, Any]
Seen = TypeVar("Seen")  # what was measured at a size


@dataclass(frozen=True, eq=False)
class Choice:
    """What is best at a size. `row`: what was measured; None: nothing was, and the model chose. `moved`: the bytes that
    were, the size in whole blocks. `ties`: who may be as fast."""

    nbytes: int
    listed: Listed
    row: Row | None
    library: bool = False  # serves, as the schedule is not surely faster
    moved: int = 0
    ties: tuple[Listed, ...] = ()


def score(row: Row) -> float:
    """Less is better, within a race: against the winner."""
    return float(row["over_best"])


def best_at(
    nbytes: int, shortlist: Sequence[Listed], order: str | None, rows: Mapping[int, Row], free: bool, moved: int
) -> Choice:
    """The best of those measured, which are told by number in the shortlist; where none was, the model's choice among
    those of the order. `free`: whether the library may serve where ours is not faster. `moved`: the bytes that were."""
    alike = {n: row for n, row in rows.items() if order is None or shortlist[n].claims.get("order") == order}
    if not alike:
        some = [one for one in shortlist if order is None or one.claims.get("order") == order]
        return Choice(nbytes, min(some, key=lambda one: one.candidate.seconds[nbytes]), None)
    best = min(alike, key=lambda number: (score(alike[number]), number))
    ties = tuple(shortlist[n] for n, row in sorted(alike.items()) if n != best and row["tied"])
    ratio, ends = alike[best]["over_library"], alike[best]["over_library_interval"]
    library = free and ratio is not None and not beats_library(ratio, ends[1])
    return Choice(nbytes, shortlist[best], alike[best], library, moved, ties)


def one_order(shortlist: Sequence[Listed], rows: Mapping[int, Mapping[int, Row]]) -> str | None:
    """The order of combining whose best times are least over the sizes; of orders only those measured at all sizes at
    which anything was. `rows`: by size and number."""
    measured = [mine for mine in rows.values() if mine]
    costs: dict[str | None, float] = {}
    for order in dict.fromkeys(one.claims.get("order") for one in shortlist):
        scores = [
            [score(row) for number, row in mine.items() if shortlist[number].claims.get("order") == order]
            for mine in measured
        ]
        costs[order] = math.fsum(math.log(max(min(one), 1e-30)) if one else math.inf for one in scores)
    return min(costs, key=lambda order: costs[order])


def entries(choices: Sequence[Choice], on: str, free: bool) -> list[Entry]:
    """Ranges by what was measured; where nothing was, all goes by the model's choice. `free`: as of `unmeasured`."""
    seen = [choice for choice in choices if choice.row is not None]
    if not seen:
        return [Entry(0, None, choices[-1].listed.schedule, unmeasured(choices[-1].listed, free))]
    if free:
        seen = leave_to_library(seen)
    return ranges(seen, lambda one: one, lambda one: one.library, lambda group: _claims(group, on), free, _boundary)


def leave_to_library(choices: Sequence[Choice]) -> list[Choice]:
    """The choices by size, with those left to the library that are faster only than what it took at that moment.

    How processes happen to be scheduled can slow down one contestant and not the other for seconds, so that the median
    of pairs is of no help. But a call of fewer bytes takes no longer than one of more: what counts is the least time of
    all rounds at a size and all greater ones.
    """
    found: list[Choice] = []
    ours = theirs = math.inf
    for choice in reversed(choices):
        row = choice.row or {}
        if row.get("reference_seconds"):
            ours, theirs = min(ours, row["least"]), min(theirs, row["reference_least"])
        slower = theirs < math.inf and ours >= MARGIN * theirs
        found.append(replace(choice, library=choice.library or slower))
    return found[::-1]


def _middle(before: Choice, after: Choice) -> int:
    return math.isqrt(before.nbytes * after.nbytes)


def _boundary(before: Choice, after: Choice) -> int:
    """Where the range of the greater size begins: what lies between a size of ours and one of the library's was not
    measured to be faster by ours, and is the library's."""
    if before.library and not after.library:
        return _least(after)
    if after.library and not before.library:
        return _most(before) + 1
    return _middle(before, after)


def ranges(
    seen: Sequence[Seen],
    ours: Callable[[Seen], Choice],
    served: Callable[[Seen], object],
    claims: Callable[[Sequence[Seen]], dict[str, Any]],
    free: bool = True,
    boundary: Callable[[Choice, Choice], int] = _middle,
) -> list[Entry]:
    """Ranges from the least size measured to the greatest; `boundary` tells where one between two sizes ends. Sizes
    in a row with the same schedule, `served` alike, are one range, of which `claims` tells.

    What lies outside was not measured, and is left to the library. Not `free`: there stands the nearest of ours, as the
    library would combine in another order.
    """
    groups = [list(group) for _, group in groupby(seen, lambda one: (id(ours(one).listed), served(one)))]
    choices = [ours(one) for one in seen]
    least, most = min(map(_least, choices)), max(map(_most, choices))
    middles = [boundary(ours(before[-1]), ours(after[0])) for before, after in pairwise(groups)]
    found = [
        Entry(start, stop, ours(group[0]).listed.schedule, claims(group))
        for group, start, stop in zip(groups, [least, *middles], [*middles, most + 1], strict=True)
    ]
    below, above = choices[0].listed, choices[-1].listed
    if least:
        found.insert(0, Entry(0, least, below.schedule, unmeasured(below, free)))
    return [*found, Entry(most + 1, None, above.schedule, unmeasured(above, free))]


def _least(choice: Choice) -> int:
    return min(choice.nbytes, choice.moved or choice.nbytes)


def _most(choice: Choice) -> int:
    return max(choice.nbytes, choice.moved)


def unmeasured(listed: Listed, free: bool = True) -> dict[str, Any]:
    """What is claimed where nothing was measured: of the schedule what it is, and no time."""
    return {**listed.claims, "measured": False, **_use(free)}


def _use(library: bool) -> dict[str, str]:
    """What a range says of who serves it."""
    return {"use": "library", "served_by": LIBRARY} if library else {"use": "ours"}


def _claims(group: Sequence[Choice], on: str) -> dict[str, Any]:
    """What is claimed of a range: the figures at its greatest size measured, and all measurements."""
    keys = ("seconds", "reference_seconds", "over_library")
    told = [{"nbytes": choice.nbytes, **{key: choice.row[key] for key in keys}} for choice in group if choice.row]
    claims = {**group[0].listed.claims, "measured": True, "at": group[-1].nbytes}
    claims |= {**{key: told[-1][key] for key in keys}, "measured_on": on, "measurements": told}
    claims["ties"] = [
        {"planner": one.candidate.planner, "options": dict(one.candidate.options)} for one in group[-1].ties
    ]
    return {**claims, **_use(group[0].library)}
