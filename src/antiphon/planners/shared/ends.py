"""A pipeline of equal pieces with a few smaller parts before and behind it, which fill it and empty it sooner.

Equal pieces wait at both ends: while the first one is on its way, most links are idle, and again while the last one is.
Parts that grow at the beginning and shrink at the end wait less. How large they are is a small linear program over the
steps at both ends; in between all steps are alike, so it does not grow with the number of pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from antiphon.core.columns import Floats
from antiphon.core.loads import Loads, loads
from antiphon.core.portable import convolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.planners.shared.pieces import MOST, least_of, most_pieces

MOST_CELLS = 50_000  # of a linear program
WHOLE = (32, 128, 512, 2048, 8192, 32768)  # parts that sizes are whole numbers of
LOSS = 1e-3  # of the time, that rounding them may cost
NEAR = 9  # decimals by which loads are told apart
ENDS = (0, 1, 2)  # parts at each end that are tried
WORTH = 1.003  # every part has all transfers once more: that must be this much faster
MOST_ROWS = 2**23


@dataclass(frozen=True)
class Sizes:
    """What goes before the `pieces` equal ones, a part a step, in these all together, and behind them; in parts of the
    sum. Seconds per byte of nbytes, and of latency."""

    before: tuple[int, ...]
    middle: int
    behind: tuple[int, ...]
    pieces: int
    time: float
    latency: float

    def seconds(self, nbytes: int) -> float:
        return self.time * nbytes + self.latency


def latency_by_step(found: Loads, steps: int) -> Floats:
    """Of each of so many steps the seconds of the slowest way that is taken from then on; 0 where nothing begins."""
    late = np.zeros(steps)
    late[found.begins] = found.slowest
    return late


class Pipeline:
    """A schedule in one piece, and what it loads in each of its steps."""

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        whole = isinstance(schedule.pieces, int) and schedule.pieces == 1
        self.schedule = schedule if whole else replace(schedule, pieces=1)
        self.topology = topology
        self.steps = schedule.steps
        self.load = _loads(self.schedule, topology)
        self.latency = latency_by_step(loads(self.schedule, topology), self.steps)

    @cached_property
    def full(self) -> float:
        """Seconds per byte in ever finer pieces."""
        return float(self.load.sum(axis=1).max(initial=0.0))

    def sizes(self, pieces: int, ends: int = 0) -> Sizes:
        """The best with so many parts at each end; none, where the program would be too large or was not solved."""
        exact = self._solved(pieces, ends) if ends else None
        if exact is None:
            return self._told(Exact((), 1.0, ()), pieces)
        goal = self._time(exact, pieces)
        for whole in WHOLE:
            made = self._told(exact.rounded(whole), pieces)
            if made.time <= goal * (1 + LOSS):
                break
        return made

    def chosen(self, nbytes: int, pieces: int | None, ends: int | None) -> Sizes | None:
        """The fastest for the size, of what is not given: more parts at the ends as long as they are worth it. None,
        where so many parts at the ends as are given cannot be had."""
        if ends is not None:
            return self.given(self.best(nbytes, ends, self._room(ends)).pieces if pieces is None else pieces, ends)
        found: Sizes | None = None
        for number in ENDS:
            if found is not None and self._rows(number) > MOST_ROWS:
                break
            made = self.best(nbytes, number) if pieces is None else self.sizes(pieces, number)
            if found is not None and made.seconds(nbytes) * WORTH > found.seconds(nbytes):
                break
            found = made
        return found

    def given(self, pieces: int, ends: int) -> Sizes | None:
        """With just so many parts at each end; None, where they cannot be had."""
        if ends and self._rows(ends) > MOST_ROWS:
            return None
        made = self.sizes(pieces, ends)
        return made if len(made.before) == ends else None

    def best(self, nbytes: int, ends: int, most: int = MOST) -> Sizes:
        """With the number of pieces, up to `most`, that is fastest for the size: the time falls with it, then grows
        with latency."""

        @cache
        def sizes(pieces: int) -> Sizes:
            return self.sizes(pieces, ends)

        top = min(most, most_pieces(self.schedule, nbytes))
        return sizes(least_of(lambda pieces: sizes(pieces).seconds(nbytes), top))

    def _rows(self, ends: int) -> int:
        """Transfers, with every part at the ends."""
        return (2 * ends + 1) * self.schedule.transfers

    def _room(self, ends: int) -> int:
        """So many pieces at most leave a linear program that is small enough; 1, where none does."""
        few = MOST_CELLS // ((len(self.load) + 1) * max(self.steps, 1)) - 2 * ends
        return MOST if few >= self.steps or not ends else max(few, 1)

    def laid(self, sizes: Sizes) -> tuple[Schedule, Sizes]:
        """The schedule once for every part; those in the middle are one with pieces."""
        if not sizes.before and not sizes.behind:
            return replace(self.schedule, pieces=sizes.pieces), sizes
        some = [one for one in _parts(sizes) if one[1]]
        first = some[0][0]
        each = [
            replace(self.schedule, step=self.schedule.step + np.int32(start - first), pieces=pieces)
            for start, _, pieces in some
        ]
        return merge(each, [size for _, size, _ in some]), sizes

    def _told(self, exact: Exact, pieces: int) -> Sizes:
        before, behind = (tuple(int(size) for size in some) for some in (exact.before, exact.behind))
        time = self._time(exact, pieces)
        return Sizes(before, int(exact.middle), behind, pieces, time, self._latency(exact, pieces))

    def _solved(self, pieces: int, ends: int) -> Exact | None:
        """Variables: the parts before, one piece of the middle, the parts behind; then how long steps last."""
        import scipy.sparse as sp
        from scipy.optimize import linprog

        few = min(pieces, self.steps)
        if (len(self.load) + 1) * self.steps * (2 * ends + few) > MOST_CELLS:
            return None
        starts = [*range(ends), *range(ends, ends + few), *range(ends + few, 2 * ends + few)]
        which = [*range(ends), *[ends] * few, *range(ends + 1, 2 * ends + 1)]
        kinds, slots, sizes = len(self.load), starts[-1] + self.steps, 2 * ends + 1
        top = float(self.load.max(initial=0.0))
        if not top:
            return None
        kind, step = np.nonzero(self.load)
        rows = np.concatenate([kind * slots + step + start for start in starts])
        columns = np.repeat(which, len(kind))
        values = np.tile(self.load[kind, step] / top, len(starts))
        clock = np.arange(kinds * slots)
        middle = np.arange(kinds)  # a step in the middle, all of whose parts are equal pieces
        upper = sp.coo_array(
            (
                np.concatenate([values, -np.ones(len(clock)), self.load.sum(axis=1) / top, -np.ones(kinds)]),
                (
                    np.concatenate([rows, clock, kinds * slots + middle, kinds * slots + middle]),
                    np.concatenate(
                        [columns, sizes + clock % slots, np.full(kinds, ends), np.full(kinds, sizes + slots)]
                    ),
                ),
            ),
            shape=(kinds * (slots + 1), sizes + slots + 1),
        )
        cost = np.zeros(sizes + slots + 1)
        cost[sizes:-1], cost[-1] = 1, pieces - few
        equal = np.zeros((1, len(cost)))
        equal[0, :sizes], equal[0, ends] = 1, pieces
        found = linprog(cost, A_ub=upper.tocsr(), b_ub=np.zeros(upper.shape[0]), A_eq=equal, b_eq=[1.0], method="highs")
        if found.status != 0:
            return None
        size = np.maximum(found.x[:sizes], 0.0).tolist()
        return Exact(tuple(size[:ends]), size[ends] * pieces, tuple(size[ends + 1 :]))

    def _time(self, exact: Exact, pieces: int) -> float:
        """Seconds per byte: how long steps at the ends last, and as often as they come those in the middle."""
        few = min(pieces, self.steps)
        size = np.array([*exact.before, *[exact.middle / pieces] * few, *exact.behind]) / exact.total
        full = convolve(self.load, size) if len(self.load) else np.zeros((1, 1))
        return float(full.max(axis=0).sum() + (pieces - few) * self.full * exact.middle / pieces / exact.total)

    def _latency(self, exact: Exact, pieces: int) -> float:
        few = min(pieces, self.steps)
        there = np.array([*exact.before, *[exact.middle] * few, *exact.behind]) > 0
        slowest = np.zeros(len(there) + self.steps - 1)
        for start in np.flatnonzero(there).tolist():
            slowest[start : start + self.steps] = np.maximum(slowest[start : start + self.steps], self.latency)
        between = (pieces - few) * self.latency.max(initial=0.0) if exact.middle else 0.0
        return float(slowest.sum() + between)


@dataclass(frozen=True)
class Exact:
    """Sizes in parts of their sum, all of the middle as one."""

    before: tuple[float, ...]
    middle: float
    behind: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.before) + self.middle + sum(self.behind)

    def rounded(self, whole: int) -> Exact:
        """In whole numbers that add up to `whole`; the middle takes what is left."""
        before, behind = (tuple(float(round(size * whole)) for size in some) for some in (self.before, self.behind))
        return Exact(before, max(whole - sum(before) - sum(behind), 0.0), behind)


def _parts(sizes: Sizes) -> Iterator[tuple[int, int, int]]:
    """Of every part the step in which it begins, its size, and its pieces."""
    yield from ((start, size, 1) for start, size in enumerate(sizes.before))
    begin = len(sizes.before)
    yield begin, sizes.middle, sizes.pieces
    yield from ((start, size, 1) for start, size in enumerate(sizes.behind, begin + sizes.pieces))


def _loads(schedule: Schedule, topology: Topology) -> Floats:
    """Seconds per byte by kind of resource and step: those that are loaded alike are one, and none is there that is
    loaded no more than another in every step."""
    found, resources = loads(schedule, topology), topology.resources
    capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
    table = np.zeros((len(capacity), schedule.steps))
    table[found.resource, found.step] = found.load.astype(float) / float(found.scale)
    table /= capacity[:, None]
    top = table.max(initial=0.0)
    if not top:
        return np.zeros((0, schedule.steps))
    _, first = np.unique(np.round(table / top, NEAR), axis=0, return_index=True)
    some = table[first][np.argsort(-table[first].sum(axis=1), kind="stable")]
    kept: list[int] = []
    for row in range(len(some)):
        if some[row].any() and not (kept and (some[kept] >= some[row]).all(axis=1).any()):
            kept.append(row)
    return np.asarray(some[kept], np.float64)
