"""What choosing the value of an option is worth: the best value per size, against the first one of the sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.cost.basis import together
from antiphon.select.candidates import Candidate
from antiphon.select.ranges import runs, winners
from antiphon.select.sweep import Value

Sweep = Mapping[str, tuple[Value, ...]]
Setting = tuple[tuple[str, Value], ...]  # the options swept, with the values of one candidate


@dataclass(frozen=True)
class Gain:
    """Of one planner: how many times faster than by its first setting it is by the best one for each size.

    `mean`: geometric, over the sizes; `most`: the greatest, which is at size `at`. `best`: (from, to, setting).
    `rests_on`: what the figures of all its settings do.
    """

    collective: str
    planner: str
    first: Setting
    mean: float
    most: float
    at: int
    best: tuple[tuple[int, int, Setting], ...]
    rests_on: str

    def as_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "planner": self.planner,
            "first": dict(self.first),
            "mean": self.mean,
            "most": self.most,
            "at": self.at,
            "rests_on": self.rests_on,
            "best": [{"from": start, "to": stop, "options": dict(setting)} for start, stop, setting in self.best],
        }


def settings(
    candidates: Sequence[Candidate], sweep: Sweep, sizes: Sequence[int]
) -> dict[str, dict[Setting, tuple[float, ...]]]:
    """Of one collective, by planner that was swept, and by setting in the order of the sweep: seconds per size (of
    several schedules that one setting gives the best). Settings that gave nothing are left out."""
    found: dict[str, dict[Setting, tuple[float, ...]]] = {}
    for c in candidates:
        for options in (c.options, *c.also):
            setting = tuple((key, options[key]) for key in sweep if key in options)
            if setting and c.seconds and c.may_win:
                mine = found.setdefault(c.planner, {})
                times = tuple(c.seconds[size] for size in sizes)
                mine[setting] = tuple(map(min, mine[setting], times)) if setting in mine else times
    return {planner: _in_order(sweep, mine) for planner, mine in found.items()}


def _in_order(sweep: Sweep, mine: Mapping[Setting, tuple[float, ...]]) -> dict[Setting, tuple[float, ...]]:
    place = {(key, type(v), v): i for key, values in sweep.items() for i, v in enumerate(values)}
    order = sorted(mine, key=lambda setting: [place.get((key, type(v), v), 0) for key, v in setting])
    return {setting: mine[setting] for setting in order}


def gains(candidates: Mapping[str, Sequence[Candidate]], sweep: Sweep, sizes: Sequence[int]) -> tuple[Gain, ...]:
    """By collective and planner; none where just one setting gave a schedule."""
    found = []
    for kind, ones in candidates.items() if sweep else ():
        for planner, mine in settings(ones, sweep, sizes).items():
            if len(mine) < 2:
                continue
            order = list(mine)
            chosen = winners({(i, 0): mine[setting] for i, setting in enumerate(order)})
            ratios = [_ratio(mine[order[0]][s], mine[order[key[0]]][s]) for s, key in enumerate(chosen)]
            best = tuple(
                (sizes[low], sizes[min(high + 1, len(sizes) - 1)], order[key[0]]) for key, low, high in runs(chosen)
            )
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            most = max(range(len(ratios)), key=lambda s: ratios[s])
            rests = together([c.rests_on[at] for c in ones if c.planner == planner for at in c.rests_on])
            found.append(Gain(kind, planner, order[0], mean, ratios[most], sizes[most], best, rests))
    return tuple(found)


def _ratio(first: float, best: float) -> float:
    return first / best if best > 0 and first > 0 else 1.0
