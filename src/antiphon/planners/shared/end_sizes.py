"""Pipeline in equal pieces with smaller parts at both ends, which fill and drain the pipeline sooner.

A part here is a share of the whole message; the pieces are equal parts. The planner `compose` uses this.

Input: an unpipelined schedule and a message size. Output (`Pipeline.choose_sizes`, `to_schedule`): the number of equal
pieces (slices), the sizes of the parts before and behind them, and the schedule with a copy of all transfers per part.

While the first of n equal pieces is on its way through a schedule of S steps most links are idle, and again while the
last one is. If a few smaller parts go before and behind the equal pieces, those steps are shorter. The sizes solve a
small linear program: variables are the sizes and the lengths of steps; step t must last as long as each resource (link
or shared limit) needs for all parts that are under way in it. In the middle all steps are alike, so the program has
only as many pieces as the schedule has steps, and its size does not depend on n.

Example: a chain of 2 links, 1 second per unit each. n equal pieces take 1 + 1 / n seconds. With a part of 1 / (2n)
before and one behind, each of the n equal pieces is (n - 1) / n^2, and the time is 1 + (n - 1) / n^2 seconds: 1 / n^2
less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from antiphon.core.portable import convolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.planners.shared.pipelining import PIPELINING, find_least, max_pieces_for
from antiphon.planners.shared.start_program import undominated_rows
from antiphon.planners.shared.uneven import load_by_step

MOST_ENTRIES = 50_000  # of the linear program
DENOMINATORS = (32, 128, 512, 2048, 8192, 32768)  # tried in turn to round sizes
MAX_ROUNDING_LOSS = 1e-3  # fraction of the time that rounding may cost
LOAD_DECIMALS = 9  # loads that agree to this many decimals count as equal
ENDS = (0, 1, 2)  # parts at each end that are tried
MIN_GAIN_ENDS = 1.003  # another part at each end repeats all transfers, so it must be this much faster
MOST_END_ROWS = 2**23  # transfers of a schedule with parts at the ends


@dataclass(frozen=True)
class EndSizes:
    """The sizes of all parts, relative to their sum.

    `before`: the parts before the equal pieces, one starting per step; `middle`: all `pieces` equal pieces together;
    `behind`: the parts behind them. `time`: seconds per byte; `latency`: seconds.
    """

    before: tuple[int, ...]
    middle: int
    behind: tuple[int, ...]
    pieces: int
    time: float
    latency: float

    def seconds(self, nbytes: int) -> float:
        """Return the predicted time for a message size."""
        return self.time * nbytes + self.latency


class Pipeline:
    """An unpipelined schedule prepared for pipelining: its loads by resource and step, its latency by step."""

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        # `pieces` may also be an array, one number per chunk; pieces of the input are dropped
        is_unpipelined = isinstance(schedule.pieces, int) and schedule.pieces == 1
        self.schedule = schedule if is_unpipelined else replace(schedule, pieces=1)
        self.topology = topology
        self.steps = schedule.steps
        load, self.latency = load_by_step(self.schedule, topology, self.steps)
        self.load = load[undominated_rows(load, LOAD_DECIMALS)]

    @cached_property
    def full_rate_time(self) -> float:
        """Seconds per byte in the limit of many pieces."""
        return float(self.load.sum(axis=1).max(initial=0.0))

    def best_sizes(self, pieces: int, ends: int = 0) -> EndSizes:
        """Return the best sizes with `ends` parts at each end; if the program is too large or unsolved, with none."""
        fractions = self._solve_sizes(pieces, ends) if ends else None
        if fractions is None:
            return self._to_sizes(EndFractions(before=(), middle=1.0, behind=()), pieces)
        goal = self._seconds_per_byte(fractions, pieces)
        for denominator in DENOMINATORS:
            sizes = self._to_sizes(fractions.round_to(denominator), pieces)
            if sizes.time <= goal * (1 + MAX_ROUNDING_LOSS):
                break
        return sizes

    def choose_sizes(self, nbytes: int, pieces: int | None, ends: int | None) -> EndSizes | None:
        """Return the fastest sizes for the message; `pieces` or `ends` of None are chosen.

        Another part at the ends must make it MIN_GAIN_ENDS times faster. None if the requested `ends` are impossible.
        """
        if ends is not None:
            return self.sizes_with_ends(
                self.choose_pieces(nbytes, ends, self._max_pieces(ends)).pieces if pieces is None else pieces, ends
            )
        best: EndSizes | None = None
        # stop at the first number of end parts that is not clearly faster
        for end_count in ENDS:
            if best is not None and self._count_rows(end_count) > MOST_END_ROWS:
                break
            sizes = self.choose_pieces(nbytes, end_count) if pieces is None else self.best_sizes(pieces, end_count)
            if best is not None and sizes.seconds(nbytes) * MIN_GAIN_ENDS > best.seconds(nbytes):
                break
            best = sizes
        return best

    def sizes_with_ends(self, pieces: int, ends: int) -> EndSizes | None:
        """Return the sizes with exactly `ends` parts at each end, or None if that is impossible."""
        if ends and self._count_rows(ends) > MOST_END_ROWS:
            return None
        sizes = self.best_sizes(pieces, ends)
        return sizes if len(sizes.before) == ends else None

    def choose_pieces(self, nbytes: int, ends: int, max_pieces: int = PIPELINING.max_pieces) -> EndSizes:
        """Return sizes with the fastest number of pieces for the message, up to `max_pieces`.

        The time falls as pieces grow in number, then rises with latency.
        """

        @cache
        def sizes(pieces: int) -> EndSizes:
            """Return the best sizes with this number of pieces."""
            return self.best_sizes(pieces, ends)

        most_pieces = min(max_pieces, max_pieces_for(self.schedule, nbytes))
        return sizes(find_least(lambda pieces: sizes(pieces).seconds(nbytes), most_pieces))

    def _count_rows(self, ends: int) -> int:
        """Return the number of transfers with this many parts at each end: a copy of the schedule per part."""
        return (2 * ends + 1) * self.schedule.transfers

    @property
    def _entries_per_part(self) -> int:
        """An estimate of the entries of the linear program per part: in each step its loads, and the step's length."""
        return (len(self.load) + 1) * max(self.steps, 1)

    def _max_pieces(self, ends: int) -> int:
        """Return the most pieces that keep the linear program small enough; 1 if none does."""
        pieces = MOST_ENTRIES // self._entries_per_part - 2 * ends
        # from `steps` pieces on, the program has the same size for any number of pieces
        return PIPELINING.max_pieces if pieces >= self.steps or not ends else max(pieces, 1)

    def to_schedule(self, sizes: EndSizes) -> Schedule:
        """Return the schedule with a copy of all transfers per part; the equal pieces are one copy."""
        if not sizes.before and not sizes.behind:
            return replace(self.schedule, pieces=sizes.pieces)
        nonempty = [message_part for message_part in _list_parts(sizes) if message_part.size]
        first_start = nonempty[0].start
        copies = [
            replace(self.schedule, step=self.schedule.step + np.int32(start - first_start), pieces=pieces)
            for start, _, pieces in nonempty
        ]
        return merge(copies, [size for _, size, _ in nonempty])

    def _to_sizes(self, fractions: EndFractions, pieces: int) -> EndSizes:
        """Return sizes with their predicted time. `fractions`: whole numbers (of `round_to`, or the middle alone)."""
        before, behind = (tuple(int(size) for size in end) for end in (fractions.before, fractions.behind))
        time = self._seconds_per_byte(fractions, pieces)
        return EndSizes(before, int(fractions.middle), behind, pieces, time, self._latency_seconds(fractions, pieces))

    def _solve_sizes(self, pieces: int, ends: int) -> EndFractions | None:
        """Return the optimal sizes, or None if the linear program is too large, empty or unsolved.

        Variables: sizes of the parts before, of one equal piece, of the parts behind; then the lengths of steps, and
        that of a step in the middle.
        """
        import scipy.sparse as sp
        from scipy.optimize import linprog

        # more pieces than steps only repeat the middle step; its length counts as often in the objective
        shown_pieces = min(pieces, self.steps)
        if self._entries_per_part * (2 * ends + shown_pieces) > MOST_ENTRIES:
            return None
        part_starts = range(2 * ends + shown_pieces)  # a part starts in each step, until all have
        # by part the number of its size variable: all equal pieces share one
        size_index = [*range(ends), *[ends] * shown_pieces, *range(ends + 1, 2 * ends + 1)]
        load_rows, shown_steps, sizes = len(self.load), part_starts[-1] + self.steps, 2 * ends + 1
        max_load = float(self.load.max(initial=0.0))
        if not max_load:
            return None
        load_row, step = np.nonzero(self.load)
        # row (row of `load`, step): the load of all parts under way is at most the step's length
        rows = np.concatenate([load_row * shown_steps + step + start for start in part_starts])
        columns = np.repeat(size_index, len(load_row))
        values = np.tile(self.load[load_row, step] / max_load, len(part_starts))
        step_rows = np.arange(load_rows * shown_steps)
        # then, for a step in the middle, all of whose parts are equal pieces, a row per row of `load`; the last
        # variable is its length
        middle_rows = load_rows * shown_steps + np.arange(load_rows)
        entries = [
            (values, rows, columns),
            (-np.ones(len(step_rows)), step_rows, sizes + step_rows % shown_steps),
            (self.load.sum(axis=1) / max_load, middle_rows, np.full(load_rows, ends)),
            (-np.ones(load_rows), middle_rows, np.full(load_rows, sizes + shown_steps)),
        ]
        value, row, column = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
        shape = (load_rows * (shown_steps + 1), sizes + shown_steps + 1)
        upper = sp.coo_array((value, (row, column)), shape=shape)
        cost = np.zeros(sizes + shown_steps + 1)
        cost[sizes:-1], cost[-1] = 1, pieces - shown_pieces
        # all parts together are the whole message
        equal = np.zeros((1, len(cost)))
        equal[0, :sizes], equal[0, ends] = 1, pieces
        solution = linprog(
            cost, A_ub=upper.tocsr(), b_ub=np.zeros(upper.shape[0]), A_eq=equal, b_eq=[1.0], method="highs"
        )
        if solution.status != 0:
            return None
        size = np.maximum(solution.x[:sizes], 0.0).tolist()
        return EndFractions(tuple(size[:ends]), size[ends] * pieces, tuple(size[ends + 1 :]))

    def _seconds_per_byte(self, fractions: EndFractions, pieces: int) -> float:
        """Return the sum of the lengths of all steps, those in the middle counted as often as they repeat."""
        shown_pieces = min(pieces, self.steps)
        size = (
            np.array([*fractions.before, *[fractions.middle / pieces] * shown_pieces, *fractions.behind])
            / fractions.total
        )
        # by row of `load` and step: a part that starts in step s loads step s + i as the schedule loads its step i
        step_load = convolve(self.load, size) if len(self.load) else np.zeros((1, 1))
        return float(
            step_load.max(axis=0).sum()
            + (pieces - shown_pieces) * self.full_rate_time * fractions.middle / pieces / fractions.total
        )

    def _latency_seconds(self, fractions: EndFractions, pieces: int) -> float:
        """Return the latency of all steps: in each, that of the slowest path in use."""
        shown_pieces = min(pieces, self.steps)
        nonempty = np.array([*fractions.before, *[fractions.middle] * shown_pieces, *fractions.behind]) > 0
        slowest = np.zeros(len(nonempty) + self.steps - 1)
        for start in np.flatnonzero(nonempty).tolist():
            slowest[start : start + self.steps] = np.maximum(slowest[start : start + self.steps], self.latency)
        middle_latency = (pieces - shown_pieces) * self.latency.max(initial=0.0) if fractions.middle else 0.0
        return float(slowest.sum() + middle_latency)


@dataclass(frozen=True)
class EndFractions:
    """Sizes of parts before, of all equal pieces together, and of parts behind, in any unit."""

    before: tuple[float, ...]
    middle: float
    behind: tuple[float, ...]

    @property
    def total(self) -> float:
        """The sum of all sizes."""
        return sum(self.before) + self.middle + sum(self.behind)

    def round_to(self, denominator: int) -> EndFractions:
        """Round to integers that sum to `denominator`; the middle takes the remainder."""
        before, behind = (tuple(float(round(size * denominator)) for size in end) for end in (self.before, self.behind))
        return EndFractions(before, max(denominator - sum(before) - sum(behind), 0.0), behind)


class _Part(NamedTuple):
    """A part of the message: its first step, its size, and its number of pieces."""

    start: int
    size: int
    pieces: int


def _list_parts(sizes: EndSizes) -> Iterator[_Part]:
    """Yield all parts in the order of their first steps; all equal pieces together are one part."""
    yield from (_Part(start, size, pieces=1) for start, size in enumerate(sizes.before))
    begin = len(sizes.before)
    yield _Part(begin, sizes.middle, sizes.pieces)
    yield from (_Part(start, size, pieces=1) for start, size in enumerate(sizes.behind, begin + sizes.pieces))
