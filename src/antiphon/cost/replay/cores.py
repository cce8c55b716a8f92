"""Replay on hosts whose ranks share cores: concurrent work slows each other down.

With c cores, n ranks that compute and collectives that keep m more threads busy, everything proceeds at the rate min(1,
c / (n + m)). Recorded times include the slowdown by concurrent work; `alone` removes it, `follow` replays with the
slowdown by the work that is concurrent in the replay.

Example: two ranks compute for 1 s each on one core: both take 2 s. `alone` turns the recorded 2 s into 1 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, Item, Job
from antiphon.cost.replay.steps import Calls, Outcome, RankLine, begins, outcome, recorded
from antiphon.errors import Invalid, Unsupported

MOST_MOVES = 2**21  # items times ranks
_LEAST = 1e-12  # seconds: less counts as zero


def alone(job: Job, cores: int) -> Job:
    """Convert recorded durations to those with a core for each thread. O(n log n).

    `times`: when any activity begins or ends, ascending; `demand`: the number of threads from each time on; `rate`:
    their speed on the available cores; `done`: the work that each has completed since the first time. Two activities
    from 0 s on that share a core for 2 s, one of which runs alone for another second: times 0, 0, 2, 3, demand 2 from 0
    and 1 from 2, done 1 at 2 and 2 at 3.
    """
    callers = job.here
    spans = [(i.at, i.at + i.seconds, 1) for items in job.ranks.values() for i in items if i.what == WORK]
    spans += [(c.start, c.start + c.seconds, len(who)) for c, who in zip(job.calls, callers, strict=True)]
    times = np.array([time for begin, end, _ in spans for time in (begin, end)])
    change = np.array([sign * threads for _, _, threads in spans for sign in (1, -1)], float)
    order = np.argsort(times, kind="stable")
    times, demand = times[order], np.cumsum(change[order])
    rate = np.minimum(1.0, cores / np.maximum(demand, 1.0))
    done = np.concatenate([[0.0], np.cumsum(np.diff(times) * rate[:-1])])

    def work(begin: float, end: float) -> float:
        first, last = np.interp([begin, end], times, done)
        return float(last - first)

    ranks = {
        rank: [replace(i, seconds=work(i.at, i.at + i.seconds)) if i.what == WORK else i for i in items]
        for rank, items in job.ranks.items()
    }
    calls = [replace(c, seconds=work(c.start, c.start + c.seconds)) for c in job.calls]
    return replace(job, ranks=ranks, calls=calls)


def follow(job: Job, seconds: Sequence[float], cores: int, *, serial: bool = False) -> Outcome:
    """Replay like `steps.follow`, on that many shared cores.

    `seconds` and the job's work are durations with a core for each thread. O(items times simultaneous activities).
    """
    if sum(map(len, job.ranks.values())) * len(job.ranks) > MOST_MOVES:
        raise Unsupported("cores: too many ranks and moments for cores that are shared; give fewer steps, or no cores")
    lines = {rank: RankLine(items, 0.0) for rank, items in job.ranks.items()}
    calls, waited, now = Calls(job, serial), [0.0] * len(job.calls), 0.0
    same = recorded(job, seconds)
    work_left = dict(begins(job))  # rank -> seconds of work before its next item; at first, until it begins
    idle = set(work_left)  # ranks that have not begun: they need no core
    moving: dict[int, float] = {}
    blocked: dict[int, float] = {}
    while work_left or moving:
        demand = len(work_left) - len(idle) + sum(len(calls.here[call]) for call in moving)
        rate = min(1.0, cores / demand) if demand else 1.0
        until = [work if rank in idle else work / rate for rank, work in work_left.items()]
        step = min([*until, *(work / rate for work in moving.values())])
        now += step
        work_left = {rank: work - step * (1.0 if rank in idle else rate) for rank, work in work_left.items()}
        moving = {call: work - step * rate for call, work in moving.items()}
        ready = [rank for rank, work in work_left.items() if work <= _LEAST]
        may: list[int] = []
        for call in [call for call, work in moving.items() if work <= _LEAST]:
            del moving[call]
            woken, free = calls.done(call, now)
            may += free
            for rank in woken:
                waited[call] += now - blocked.pop(rank)
                ready.append(rank)
        for rank in ready:
            work_left.pop(rank, None)
            idle.discard(rank)
            may += _go_on(rank, lines[rank], now, work_left, blocked, calls, same)
        moving |= {call: seconds[call] for call in may}
    stuck = next((rank for rank, line in lines.items() if line.at < len(line.items)), None)
    if stuck is not None:
        raise Invalid(f"rank {stuck}: waits for a collective that another rank of these traces never calls")
    return outcome(job, [line.ends for line in lines.values()], waited, calls)


def _go_on(
    rank: int, line: RankLine, now: float, work_left: dict[int, float], blocked: dict[int, float], calls: Calls,
    same: Sequence[bool],
) -> list[int]:  # fmt: skip
    """Advance a rank until something takes time; return the collectives that may begin because of it."""
    may = []
    if not line.at:
        line.ends[0] = now
    while line.at < len(line.items):
        item: Item = line.items[line.at]
        if item.what == WAIT and calls.ends[item.call] is None:
            calls.sleepers[item.call].append(rank)
            blocked[rank] = now
            break
        line.at += 1
        if item.what == WORK and item.seconds > _LEAST and (item.call < 0 or same[item.call]):
            work_left[rank] = item.seconds
            break
        if item.what == CALL and calls.come(item.call, now):
            may.append(item.call)
        elif item.what == STEP:
            line.ends.append(now)
    return may
