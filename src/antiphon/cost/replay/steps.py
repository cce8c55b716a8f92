"""Replay a recorded job with other times for its collectives: compute when everything happens.

Input: a `RecordedJob` (job.py) and seconds for every collective. Output: the time of each training step, and how long
ranks waited for each collective. Ranks advance through their items until they wait for a collective; when a collective
ends, the ranks that wait for it go on. So times are those of longest paths through the graph of dependencies. A *lane*
is a stream or thread that runs the collectives of a rank one after another.

Example: in job.py's example with 2 ms instead of 6 ms for `grads`, it runs from 12 to 14 ms, no rank waits for it, and
the step takes 17 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, RecordedJob, TimelineItem
from antiphon.errors import Invalid


@dataclass
class ReplayOutcome:
    """The result of a replay, in seconds."""

    steps: list[float]  # per training step its duration, of the slowest rank
    waited: list[float]  # per collective how long ranks waited for it, averaged over the recorded ranks
    ends: list[float] = field(default_factory=list)  # per collective when it ended

    @property
    def step(self) -> float:
        """Return the median time of a step."""
        return median(self.steps)


class RankProgress:
    """How far a rank has advanced in its timeline."""

    def __init__(self, items: Sequence[TimelineItem], begin: float) -> None:
        self.items, self.position, self.now = items, 0, begin  # position: of the next item; now: in seconds
        self.ends = [begin]  # when the rank began, and when each of its steps ended


def begin_times(job: RecordedJob) -> dict[int, float]:
    """Return when each rank began, as recorded, relative to the first."""
    first = {rank: items[0].recorded_at if items else 0.0 for rank, items in job.ranks.items()}
    earliest = min(first.values())
    return {rank: at - earliest for rank, at in first.items()}


def replay_job(job: RecordedJob, seconds: Sequence[float], *, serial: bool = False) -> ReplayOutcome:
    """Replay with `seconds` for every collective. One that keeps its recorded time ends at each rank as recorded.

    `serial`: collectives of a group run one after another, as in our runtimes, independently of the recorded lanes.
    Raises Invalid if a rank waits for a collective that never begins. O(items).
    """
    begins = begin_times(job)
    progress_of = {rank: RankProgress(items, begins[rank]) for rank, items in job.ranks.items()}
    calls, keeps_recorded_time = CollectiveStates(job, serial), list_kept_times(job, seconds)
    waited = [0.0] * len(job.calls)  # per collective, the sum over ranks
    awake = list(progress_of)  # ranks that can advance
    while awake:
        rank = awake.pop()
        progress = progress_of[rank]
        while progress.position < len(progress.items):
            item = progress.items[progress.position]
            if item.kind == WORK:
                progress.now += item.seconds if item.call < 0 or keeps_recorded_time[item.call] else 0.0
            elif item.kind == CALL:
                # collectives that begin now: this one, and those on lanes that become free
                startable = [item.call] if calls.meet_dependency(item.call, progress.now) else []
                while startable:
                    finished = startable.pop()
                    woken, started = calls.finish(finished, calls.ready[finished] + seconds[finished])
                    awake, startable = awake + woken, startable + started
            elif item.kind == WAIT:
                end = calls.ends[item.call]
                if end is None:
                    calls.waiting_ranks[item.call].append(rank)
                    break
                if keeps_recorded_time[item.call]:
                    end -= item.seconds  # it was done so much earlier at this rank than at the last
                waited[item.call] += max(end - progress.now, 0.0)
                progress.now = max(progress.now, end)
            elif item.kind == STEP:
                progress.ends.append(progress.now)
            progress.position += 1
    return make_outcome(progress_of, waited, calls)


def list_kept_times(job: RecordedJob, seconds: Sequence[float]) -> list[bool]:
    """Return for every collective whether its time in the replay is the recorded one."""
    return [now == call.seconds for now, call in zip(seconds, job.calls, strict=True)]


def make_outcome(
    progress_of: Mapping[int, RankProgress], waited: Sequence[float], calls: CollectiveStates
) -> ReplayOutcome:
    """Return the result, or raise Invalid if a rank is not at its end.

    `waited`: per collective the waits, summed over ranks.
    """
    stuck = next((rank for rank, progress in progress_of.items() if progress.position < len(progress.items)), None)
    if stuck is not None:
        raise Invalid(f"rank {stuck}: waits for a collective that another rank of these traces never calls")
    ends = [progress.ends for progress in progress_of.values()]
    step_count = min(len(rank_ends) for rank_ends in ends) - 1
    steps = [max(rank_ends[k + 1] - rank_ends[k] for rank_ends in ends) for k in range(step_count)]
    mean_waits = [total / max(len(callers), 1) for total, callers in zip(waited, calls.callers, strict=True)]
    return ReplayOutcome(steps, mean_waits, [end or 0.0 for end in calls.ends])


class CollectiveStates:
    """The state of all collectives. Each begins when all its ranks have called it and its lanes are free."""

    def __init__(self, job: RecordedJob, serial: bool) -> None:
        self.callers = job.callers
        # per collective: the number of ranks, and of earlier collectives on its lanes, that it still waits for
        self.missing = [len(ranks) for ranks in self.callers]
        self.ready = [0.0] * len(job.calls)  # per collective: when the last of these was there
        self.ends: list[float | None] = [None] * len(job.calls)  # None: it has not ended
        self.waiting_ranks: list[list[int]] = [[] for _ in job.calls]  # ranks that wait for it
        self.successors: list[list[int]] = [[] for _ in job.calls]  # the next collectives on its lanes
        for lane in _list_lanes(job, serial):
            for before, after in pairwise(lane):
                self.successors[before].append(after)
                self.missing[after] += 1

    def meet_dependency(self, call: int, now: float) -> bool:
        """Satisfy one dependency of a collective (a rank, or an earlier collective); return whether it was the last."""
        self.ready[call] = max(self.ready[call], now)
        self.missing[call] -= 1
        return not self.missing[call]

    def finish(self, call: int, now: float) -> tuple[list[int], list[int]]:
        """End a collective: return the ranks that go on because of it, and the collectives that begin because of it."""
        self.ends[call] = now
        woken, self.waiting_ranks[call] = self.waiting_ranks[call], []
        return woken, [after for after in self.successors[call] if self.meet_dependency(after, now)]


def _list_lanes(job: RecordedJob, serial: bool) -> list[list[int]]:
    """List the collectives of each lane in order. `serial`: a lane for each rank and process group, not as recorded."""
    if not serial:
        return [list(lane) for lanes in job.lanes.values() for lane in lanes]
    by_group: dict[tuple[int, int], list[int]] = {}
    for rank, items in job.ranks.items():
        for item in items:
            if item.kind == CALL:
                by_group.setdefault((rank, job.calls[item.call].group), []).append(item.call)
    return list(by_group.values())
