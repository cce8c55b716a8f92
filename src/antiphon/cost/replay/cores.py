"""Replay on one host whose ranks share cores, so that concurrent activities slow each other down.

With c cores, n ranks that compute, and collectives that keep m more threads busy, everything proceeds at the rate
min(1, c / (n + m)). Recorded times include the slowdown by concurrent work in the recording: `remove_slowdown`
removes it. `replay_job` replays with the slowdown by concurrent work in the replay.

Example: two ranks that need 1 s each compute on one core at the same time, and take 2 s. `remove_slowdown` turns the
recorded 2 s into 1 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, RecordedJob, TimelineItem
from antiphon.cost.replay.steps import (
    CollectiveStates,
    RankProgress,
    ReplayOutcome,
    begin_times,
    list_kept_times,
    make_outcome,
)
from antiphon.errors import Unsupported

MAX_WORK = 2**21  # items times ranks
_ZERO_SECONDS = 1e-12  # times of at most this count as zero


def remove_slowdown(job: RecordedJob, cores: int) -> RecordedJob:
    """Convert recorded durations to those with a core for each thread. O(n log n).

    Example: two activities begin at 0 s and share a core. One ends at 2 s, the other at 3 s. Then times are 0, 0, 2, 3;
    demand is 2 from 0 on and 1 from 2 on; an activity that runs all the time has done 1 s of work at 2 s, 2 s at 3 s.
    """
    callers = job.callers
    spans = [
        (i.recorded_at, i.recorded_at + i.seconds, 1) for items in job.ranks.values() for i in items if i.kind == WORK
    ]
    spans += [
        (c.start, c.start + c.seconds, len(caller_ranks)) for c, caller_ranks in zip(job.calls, callers, strict=True)
    ]
    # when any activity begins or ends, ascending, and the number of busy threads from then on
    times = np.array([time for begin, end, _ in spans for time in (begin, end)])
    change = np.array([sign * threads for _, _, threads in spans for sign in (1, -1)], float)
    order = np.argsort(times, kind="stable")
    times, demand = times[order], np.cumsum(change[order])
    rate = np.minimum(1.0, cores / np.maximum(demand, 1.0))
    # work that an activity which runs all the time has done until each of these times
    work_done = np.concatenate([[0.0], np.cumsum(np.diff(times) * rate[:-1])])

    def work(begin: float, end: float) -> float:
        first, last = np.interp([begin, end], times, work_done)
        return float(last - first)

    ranks = {
        rank: [
            replace(i, seconds=work(i.recorded_at, i.recorded_at + i.seconds)) if i.kind == WORK else i for i in items
        ]
        for rank, items in job.ranks.items()
    }
    calls = [replace(c, seconds=work(c.start, c.start + c.seconds)) for c in job.calls]
    return replace(job, ranks=ranks, calls=calls)


def replay_job(job: RecordedJob, seconds: Sequence[float], cores: int, *, serial: bool = False) -> ReplayOutcome:
    """Replay like `steps.replay_job`, on this number of shared cores.

    `seconds` and the job's work are durations with a core for each thread. O(items times simultaneous activities).
    """
    if sum(map(len, job.ranks.values())) * len(job.ranks) > MAX_WORK:
        raise Unsupported("cores: too many ranks and moments for cores that are shared; give fewer steps, or no cores")
    progress_of = {rank: RankProgress(items, begin=0.0) for rank, items in job.ranks.items()}
    calls, waited, now = CollectiveStates(job, serial), [0.0] * len(job.calls), 0.0
    keeps_recorded_time = list_kept_times(job, seconds)
    work_of_rank = dict(begin_times(job))  # rank -> seconds of work before its next item; at first, until it begins
    idle = set(work_of_rank)  # ranks that have not begun: they need no core
    work_of_running: dict[int, float] = {}  # collective that runs -> seconds of work that are left
    blocked: dict[int, float] = {}  # rank that waits for a collective -> since when
    while work_of_rank or work_of_running:
        # A collective that runs keeps a thread of each of its ranks busy.
        demand = len(work_of_rank) - len(idle) + sum(len(calls.callers[call]) for call in work_of_running)
        rate = min(1.0, cores / demand) if demand else 1.0
        seconds_left = [work if rank in idle else work / rate for rank, work in work_of_rank.items()]
        step = min([*seconds_left, *(work / rate for work in work_of_running.values())])
        now += step
        work_of_rank = {rank: work - step * (1.0 if rank in idle else rate) for rank, work in work_of_rank.items()}
        work_of_running = {call: work - step * rate for call, work in work_of_running.items()}
        ready = [rank for rank, work in work_of_rank.items() if work <= _ZERO_SECONDS]
        startable: list[int] = []
        for call in [call for call, work in work_of_running.items() if work <= _ZERO_SECONDS]:
            del work_of_running[call]
            woken, started = calls.finish(call, now)
            startable += started
            for rank in woken:
                waited[call] += now - blocked.pop(rank)
                ready.append(rank)
        for rank in ready:
            work_of_rank.pop(rank, None)
            idle.discard(rank)
            startable += _advance_rank(rank, progress_of[rank], now, work_of_rank, blocked, calls, keeps_recorded_time)
        work_of_running |= {call: seconds[call] for call in startable}
    return make_outcome(progress_of, waited, calls)


def _advance_rank(
    rank: int, progress: RankProgress, now: float, work_of_rank: dict[int, float], blocked: dict[int, float],
    calls: CollectiveStates, keeps_recorded_time: Sequence[bool],
) -> list[int]:  # fmt: skip
    """Advance a rank until something takes time; return the collectives that begin because of it."""
    startable = []
    if not progress.position:  # the rank begins now
        progress.ends[0] = now
    while progress.position < len(progress.items):
        item: TimelineItem = progress.items[progress.position]
        if item.kind == WAIT and calls.ends[item.call] is None:
            calls.waiting_ranks[item.call].append(rank)
            blocked[rank] = now
            break
        progress.position += 1
        if item.kind == WORK and item.seconds > _ZERO_SECONDS and (item.call < 0 or keeps_recorded_time[item.call]):
            work_of_rank[rank] = item.seconds
            break
        if item.kind == CALL and calls.meet_dependency(item.call, now):
            startable.append(item.call)
        elif item.kind == STEP:
            progress.ends.append(now)
    return startable
