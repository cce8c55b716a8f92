"""Find a good chunk size by measuring: MIAD, multiplicative increase, additive decrease (Blink, section 4.2.1).

The caller runs its work with the size that the controller proposes and reports the time; after some rounds the
controller settles on one size. `runtimes/measure/bench.py` finds a number of pieces with it. Example with `factor` 2: 1
MB runs at 5 GB/s, 2 MB at 8, 4 MB at 9, and 8 MB at 7, which is far below the best (by more than 10 %). Now the size
decreases from 8 MB in steps of 512 KB (an eighth of the best size), until throughput falls again at sizes below 4 MB.
Then the three best sizes are run again.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from antiphon.errors import Invalid

FINALISTS = 3  # number of best sizes that are run again at the end
FINAL_ROUNDS = 3  # rounds of `repeats` runs that each of these has then had, including the first one
ALIGN = 256  # bytes; all sizes but the smallest and the largest are multiples of it


@dataclass
class Miad:
    """A controller that proposes the next chunk size from the speed of the last one, and settles on one.

    It uses no clock and no randomness.

        controller = Miad(smallest=1 << 20)
        while True:
            size = controller.next()
            controller.measured(seconds=run(size))     # always for the same data

    The size increases by `factor` as long as throughput rises. That ends after `patience` sizes in a row without a new
    best, or with one size whose throughput is far below the best. Then the size decreases by an eighth of the best size
    so far, down to the best size divided by `factor`, or until `patience` sizes below the best were no better. At the
    end the three sizes with the best medians are run again, twice as often, and the best of them is used. A size counts
    as better only if it is so by more than `tolerance`, so that noise does not drive the search. Each size is run
    `repeats` times and represented by its median.
    """

    smallest: int = 1 << 20  # bytes, as all sizes
    largest: int = 1 << 30
    factor: float = 2.0
    repeats: int = 5
    tolerance: float = 0.02  # of throughput, relative
    patience: int = 2
    settled: bool = field(default=False, init=False)  # True: the size that `next` returns is final
    medians: dict[int, float] = field(default_factory=dict, init=False)  # throughput by size, in runs per second

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.largest:
            raise Invalid(f"chunk sizes: expected 0 < smallest <= largest, got {self.smallest} and {self.largest}")
        if self.factor <= 1 or self.repeats < 1 or self.patience < 1 or not 0 <= self.tolerance < 1:
            raise Invalid(
                "chunk size control: factor must exceed 1, repeats and patience be at least 1, "
                "tolerance be from 0 to below 1"
            )
        self._size, self._runs = self.smallest, dict[int, list[float]]()
        self._final_sizes: list[int] | None = None  # the best sizes, once they are run again
        self._is_rising = True  # whether sizes still increase
        self._sizes_without_gain = 0  # sizes in a row without a new best
        # once sizes decrease: the step, and the smallest size to try
        self._decrement, self._min_size = 0, self.smallest

    def next(self) -> int:
        """Return the chunk size, in bytes, to use now."""
        return self._size

    @property
    def best(self) -> int:
        """Return the size with the best median so far; the first of equal ones."""
        best = self.smallest
        for size, speed in self.medians.items():
            if speed > self.medians[best] * (1 + self.tolerance):
                best = size
        return best

    def measured(self, *, seconds: float) -> None:
        """Report the time of a run with the size of `next`."""
        if not seconds > 0:
            raise Invalid(f"measured: expected seconds greater than 0, got {seconds}")
        if self.settled:
            return
        runs = self._runs.setdefault(self._size, [])
        runs.append(1 / seconds)
        if len(runs) % self.repeats:
            return
        before = self.medians.get(self.best) if self.medians else None
        speed = self.medians[self._size] = statistics.median(runs)
        if self._final_sizes is not None:
            self._run_final()
            return
        is_better = before is None or speed > before * (1 + self.tolerance)
        # by a tenth, or where measurements vary by more, by five tolerances
        is_far_below = before is not None and speed < before * (1 - max(0.1, 5 * self.tolerance))
        self._sizes_without_gain = 0 if is_better else self._sizes_without_gain + 1
        self._choose_next(is_far_below)

    def _choose_next(self, is_far_below: bool) -> None:
        """Choose the next size. `is_far_below`: the current one was measured to be far below the best."""
        size = self._size
        if self._is_rising:
            if not is_far_below and self._sizes_without_gain < self.patience and size < self.largest:
                self._size = min(self._round_above(size * self.factor, size), self.largest)
                return
            best = self.best  # from now on decrease, from one size above the best
            self._is_rising, self._sizes_without_gain = False, 0
            self._decrement = max(best // 8, ALIGN)
            self._min_size = max(self.smallest, int(best / self.factor))
            size = min(self._round_above(best * self.factor, best), size) if best < size else size
        if self._sizes_without_gain >= self.patience and size < self.best:
            self._run_final()
            return
        while size > self._min_size:
            size = max(self._round_above(size - self._decrement, above=0), self._min_size)
            if size not in self.medians:
                self._size = size
                return
        self._run_final()

    def _round_above(self, size: float, above: int) -> int:
        """Return a size as a multiple of ALIGN, rounded down, but greater than `above` (0: no such limit)."""
        return max(int(size) // ALIGN, above // ALIGN + 1 if above else 1) * ALIGN

    def _run_final(self) -> None:
        """Choose the next size to be run again, or finish."""
        if self._final_sizes is None:
            self._final_sizes = sorted(self.medians, key=lambda size: (-self.medians[size], size))[:FINALISTS]
        unfinished = [size for size in self._final_sizes if len(self._runs[size]) < FINAL_ROUNDS * self.repeats]
        if unfinished:
            self._size = unfinished[0]
        else:
            self._size = min(self._final_sizes, key=lambda size: (-self.medians[size], size))
            self.settled = True
