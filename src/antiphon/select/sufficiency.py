"""Decide which candidates of a tuning can be skipped because no plan can be noticeably faster than the best so far.

A candidate is a planner with its options, tried by a task. A tuning knows a lower bound by size under its own model. As
soon as the best plans are within `MIN_GAIN` of that bound at every size, the collective is closed: further candidates
cannot matter, and they are skipped or stopped.

Results must not depend on which worker was faster. So candidates have a fixed order (quick planners first), and only
that order counts: a collective is closed after the first candidate in the order that, together with those before it,
reaches the bound at every size. Results of later candidates are dropped, even if they arrived earlier.

Example: sizes 1KB and 1MB, bounds 2 us and 10 us; the order is direct (2 us, 14 us), ring (9 us, 10.02 us), sccl. After
direct 1MB is open; after ring both are within 0.5 %; sccl is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from antiphon.registry import effort_of_planner
from antiphon.select.limits import Limit
from antiphon.select.task import Task

MIN_GAIN = 1.005  # a plan that is faster by less than this factor is not worth looking for
# Factor of the expected effort of a task with options: these come later, as another planner usually gains more.
OPTIONS_FACTOR = 8.0
UNNEEDED = "the best plans are within 0.5 % of the lower bound at every size"
TimesOf = Callable[[int], Iterable[Sequence[float]]]  # index of a task -> seconds by size of each of its schedules


def expected_effort(task: Task) -> tuple[float, int]:
    """Return a sort key of tasks: the effort of the planner by its entry in the registry, then the index."""
    if task.entry is None:  # no planner, but a task that computes a bound: first, since it ends others
        return 0.0, task.index
    return effort_of_planner(task.planner, task.entry) * (OPTIONS_FACTOR if task.options else 1.0), task.index


class Sufficiency:
    """Which tasks are still needed.

    `required`: whether a task is always needed, such as those of planners that stand for NCCL.
    """

    def __init__(self, tasks: Sequence[Task], sizes: Sequence[int], required: Callable[[Task], bool]) -> None:
        self.sizes, self.required = sizes, required
        self.order: dict[str, list[Task]] = {}
        for task in sorted((task for task in tasks if task.entry is not None), key=expected_effort):
            self.order.setdefault(task.kind, []).append(task)
        # position of each task in the order of its collective
        self.position = {task.index: i for tasks in self.order.values() for i, task in enumerate(tasks)}
        self.counted = dict.fromkeys(self.order, 0)  # by collective: number of candidates counted, in order
        self.best = {kind: [math.inf] * len(sizes) for kind in self.order}  # least seconds by size of those counted
        self.last_position: dict[str, int] = {}  # by closed collective: position of the last candidate that counts

    def is_needed(self, task: Task) -> bool:
        """Return whether the result of a task can still matter."""
        if task.entry is None or task.kind not in self.last_position or self.required(task):
            return True
        return self.position[task.index] <= self.last_position[task.kind]

    def update(self, kind: str, limit: Limit | None, ended: Mapping[int, object], times_of: TimesOf) -> bool:
        """Count the candidates that have ended, in order; return whether that closes the collective.

        `limit`: the lower bound of the collective, None if not known yet; `ended`: the tasks that have ended, by index.
        """
        if kind not in self.order:  # no candidates
            return False
        # a model without bounds on time never closes a collective
        if limit is None or kind in self.last_position or not all(size in limit.times for size in self.sizes):
            return False
        order = self.order[kind]
        while self.counted[kind] < len(order) and order[self.counted[kind]].index in ended:
            for seconds in times_of(order[self.counted[kind]].index):
                self.best[kind] = [min(pair) for pair in zip(self.best[kind], seconds, strict=True)]
            if all(
                best <= limit.times[size] * MIN_GAIN for size, best in zip(self.sizes, self.best[kind], strict=True)
            ):
                self.last_position[kind] = self.counted[kind]
                return True
            self.counted[kind] += 1
        return False
