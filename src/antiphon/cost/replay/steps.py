"""Replay a job with other times for its collectives: compute when everything happens, the longest path through its
graph.

Input: a `Job` (job.py) and seconds for every collective. Output: the time of each step and how long ranks waited for
each collective. Ranks advance through their items until they wait for a collective; a collective that becomes done
wakes the ranks that wait for it. Example: in job.py's example with 2 ms instead of 6 ms for `grads`, it runs from 12 to
14 ms, nobody waits for it, and the step takes 17 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, Item, Job
from antiphon.errors import Invalid


@dataclass
class Outcome:
    """`steps`: seconds of every step, of the slowest rank; `waited`: per collective how long ranks waited for it,
    averaged over the recorded ranks; `ends`: when it ended."""

    steps: list[float]
    waited: list[float]
    ends: list[float] = field(default_factory=list)

    @property
    def step(self) -> float:
        """The median time of a step."""
        return median(self.steps)


class RankLine:
    """The position of a rank in its items, and its time."""

    def __init__(self, items: Sequence[Item], begin: float) -> None:
        self.items, self.at, self.now = items, 0, begin
        self.ends = [begin]


def begins(job: Job) -> dict[int, float]:
    """Return when each rank began, as recorded, relative to the first."""
    first = {rank: items[0].at if items else 0.0 for rank, items in job.ranks.items()}
    earliest = min(first.values())
    return {rank: at - earliest for rank, at in first.items()}


def follow(job: Job, seconds: Sequence[float], *, serial: bool = False) -> Outcome:
    """Replay with `seconds` for every collective; one with its recorded time ends at each rank as recorded.

    `serial`: collectives of a group run one after another, as in our runtimes, independently of the recorded lanes.
    Raises Invalid if a rank waits for a collective that never begins. O(items).
    """
    begun = begins(job)
    lines = {rank: RankLine(items, begun[rank]) for rank, items in job.ranks.items()}
    calls, same = Calls(job, serial), recorded(job, seconds)
    waited = [0.0] * len(job.calls)
    todo = list(lines)
    while todo:
        rank = todo.pop()
        line = lines[rank]
        while line.at < len(line.items):
            item = line.items[line.at]
            if item.what == WORK:
                line.now += item.seconds if item.call < 0 or same[item.call] else 0.0
            elif item.what == CALL:
                may = [item.call] if calls.come(item.call, line.now) else []
                while may:
                    finished = may.pop()
                    woken, free = calls.done(finished, calls.ready[finished] + seconds[finished])
                    todo, may = todo + woken, may + free
            elif item.what == WAIT:
                end = calls.ends[item.call]
                if end is None:
                    calls.sleepers[item.call].append(rank)
                    break
                if same[item.call]:
                    end -= item.seconds
                waited[item.call] += max(end - line.now, 0.0)
                line.now = max(line.now, end)
            elif item.what == STEP:
                line.ends.append(line.now)
            line.at += 1
    stuck = next((rank for rank, line in lines.items() if line.at < len(line.items)), None)
    if stuck is not None:
        raise Invalid(f"rank {stuck}: waits for a collective that another rank of these traces never calls")
    return outcome(job, [line.ends for line in lines.values()], waited, calls)


def recorded(job: Job, seconds: Sequence[float]) -> list[bool]:
    """Return for every collective whether its time is the recorded one."""
    return [now == call.seconds for now, call in zip(seconds, job.calls, strict=True)]


def outcome(job: Job, ends: Sequence[Sequence[float]], waited: Sequence[float], calls: Calls) -> Outcome:
    """Summarise the ends of steps and the waits."""
    step_count = min(len(rank_ends) for rank_ends in ends) - 1
    steps = [max(rank_ends[k + 1] - rank_ends[k] for rank_ends in ends) for k in range(step_count)]
    mean = [total / max(len(callers), 1) for total, callers in zip(waited, calls.here, strict=True)]
    return Outcome(steps, mean, [end or 0.0 for end in calls.ends])


class Calls:
    """The state of all collectives, each of which begins when all its ranks have called it and its lane is free."""

    def __init__(self, job: Job, serial: bool) -> None:
        self.here = job.here
        self.missing = [len(ranks) for ranks in self.here]
        self.ready = [0.0] * len(job.calls)
        self.ends: list[float | None] = [None] * len(job.calls)
        self.sleepers: list[list[int]] = [[] for _ in job.calls]
        self.behind: list[list[int]] = [[] for _ in job.calls]
        for lane in _list_lanes(job, serial):
            for before, after in pairwise(lane):
                self.behind[before].append(after)
                self.missing[after] += 1

    def come(self, call: int, now: float) -> bool:
        """Satisfy one dependency of a collective (a rank, or an earlier collective); return whether it was the last."""
        self.ready[call] = max(self.ready[call], now)
        self.missing[call] -= 1
        return not self.missing[call]

    def done(self, call: int, now: float) -> tuple[list[int], list[int]]:
        """Finish a collective: return the ranks that go on because of it, and the collectives that may begin."""
        self.ends[call] = now
        woken, self.sleepers[call] = self.sleepers[call], []
        return woken, [after for after in self.behind[call] if self.come(after, now)]


def _list_lanes(job: Job, serial: bool) -> list[list[int]]:
    """List the collectives that run one after another."""
    if not serial:
        return [list(lane) for lanes in job.lanes.values() for lane in lanes]
    by_group: dict[tuple[int, int], list[int]] = {}
    for rank, items in job.ranks.items():
        for item in items:
            if item.what == CALL:
                by_group.setdefault((rank, job.calls[item.call].group), []).append(item.call)
    return list(by_group.values())
