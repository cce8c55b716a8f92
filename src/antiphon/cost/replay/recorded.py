"""A rank's trace independent of its format (`Recorded`), and the traces of all ranks joined into a `Job`.

Readers of trace formats produce one `Recorded` per rank. `join` matches the collectives of the ranks (the k-th call of
a group in a step is the same collective everywhere), aligns the clocks of hosts by the ends of collectives, and turns
each trace into a line of items: computation between calls, calls, waits, ends of steps.

Example: rank 0 calls a collective at 10 ms and rank 1 at 12 ms, and it ends at 18 ms: a collective of 6 ms from 12 on;
rank 0's line has 10 ms of work, CALL, then work until it waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, Collective, Gradient, Item, Job, ProcessGroup
from antiphon.errors import Invalid, quote

Span = tuple[float, float]  # begin and end, in seconds
MOST_GRADIENTS = 2**20  # more are ignored
_LEFT = -1  # a mark besides the kinds of items: the line leaves a call


@dataclass(frozen=True)
class Heard:
    """One collective at one rank, in seconds. `called`: when the rank's line allows it to begin; `start`, `end`: as it
    ran; `lane`: the stream or thread that ran it; `step`: in which it was called; `due`: when it is waited for at the
    latest (None: by the end of its step); `bucket`: DDP made it from gradients; `left`: when the line left the call
    itself (None: at once)."""

    kind: str
    nbytes: int
    group: str
    called: float
    start: float
    end: float
    lane: str
    step: int
    due: float | None = None
    bucket: bool = False
    left: float | None = None


@dataclass(frozen=True)
class Recorded:
    """The trace of one rank. `steps`: begin and end of each; `waits`: intervals in which it waited for a collective (by
    its number in `calls`); `processor`: it computed on a CPU, not on a GPU."""

    rank: int
    host: str
    groups: Mapping[str, ProcessGroup]
    steps: Sequence[Span]
    calls: Sequence[Heard]
    waits: Sequence[tuple[float, float, int]] = ()
    gradients: Sequence[tuple[float, int]] = ()  # when each was computed, and its bytes
    notes: Sequence[str] = ()
    processor: bool = False


def join(traces: Sequence[Recorded]) -> Job:
    """Join the traces of ranks into a job; raise Invalid if they do not call the same collectives. O(n log n)."""
    by_rank = {trace.rank: trace for trace in sorted(traces, key=lambda trace: trace.rank)}
    if not by_rank:
        raise Invalid("the traces have no collective")
    if len(by_rank) < len(traces):
        raise Invalid("two of the traces are of the same rank")
    step_counts = {len(trace.steps) for trace in by_rank.values()}
    if len(step_counts) > 1:
        raise Invalid(
            f"the traces have {min(step_counts)} to {max(step_counts)} steps; record the same ones at all ranks"
        )
    names, groups = _collect_groups(by_rank)
    matched, numbers = _match_calls(by_rank)
    ahead = _clock_offsets(by_rank, matched)
    begun = {rank: _possible_begins(trace) for rank, trace in by_rank.items()}
    calls = [_build_collective(who, begun, by_rank, names, ahead) for who in matched]
    ranks = {rank: _build_line(trace, numbers[rank], ahead[rank], calls) for rank, trace in by_rank.items()}
    steps = [
        max(trace.steps[k][1] - _step_begin(trace, k) for trace in by_rank.values()) for k in range(min(step_counts))
    ]
    notes = list(dict.fromkeys(note for trace in by_rank.values() for note in trace.notes))
    size = max((group.size for group in groups), default=1)
    if len(by_rank) < size:
        notes.append(
            f"traces of {len(by_rank)} of {size} ranks: what these waited for the others counts as communication"
        )
    first = next(iter(by_rank.values()))
    job = Job(
        groups, calls, ranks, {rank: _list_lanes(trace, numbers[rank]) for rank, trace in by_rank.items()}, steps, notes
    )
    job.check()
    gradients = _last_gradients(first, ranks[first.rank], ahead[first.rank])
    return replace(job, gradients=gradients, processor=any(trace.processor for trace in by_rank.values()))


def _step_begin(trace: Recorded, step: int) -> float:
    """Return when the previous step ended: time between two steps belongs to the later one."""
    return trace.steps[step - 1][1] if step else trace.steps[0][0]


def _collect_groups(by_rank: Mapping[int, Recorded]) -> tuple[dict[str, int], list[ProcessGroup]]:
    """Return the process groups of all traces, and the number of each by its key."""
    names: dict[str, int] = {}
    groups: list[ProcessGroup] = []
    for trace in by_rank.values():
        for key, group in trace.groups.items():
            if key not in names:
                names[key] = len(groups)
                groups.append(group)
            elif groups[names[key]] != group:
                raise Invalid(f"group {quote(key)}: ranks tell different members of it")
    return names, groups


def _match_calls(by_rank: Mapping[int, Recorded]) -> tuple[list[dict[int, int]], dict[int, list[int]]]:
    """Return collectives as {rank: number of the call there}, and for every rank the collective of each of its calls.

    Calls of a group in a step are matched in order.
    """
    matches: dict[tuple[str, int, int], dict[int, int]] = {}
    for rank, trace in by_rank.items():
        counts: dict[tuple[str, int], int] = {}
        for number, call in enumerate(trace.calls):
            place = counts.get((call.group, call.step), 0)
            counts[call.group, call.step] = place + 1
            who = matches.setdefault((call.group, call.step, place), {})
            if who:
                other = next(iter(who))
                same = by_rank[other].calls[who[other]]
                if (same.kind, same.nbytes) != (call.kind, call.nbytes):
                    raise Invalid(
                        f"step {call.step}, call {place} of group {quote(call.group)}: rank {other} calls {same.kind} "
                        f"of {same.nbytes} bytes, rank {rank} {call.kind} of {call.nbytes}"
                    )
            who[rank] = number
    matched = list(matches.values())
    numbers = {rank: [0] * len(trace.calls) for rank, trace in by_rank.items()}
    for which, who in enumerate(matched):
        for rank, number in who.items():
            numbers[rank][number] = which
    return matched, numbers


def _clock_offsets(by_rank: Mapping[int, Recorded], matched: Sequence[Mapping[int, int]]) -> dict[int, float]:
    """Return by how much each rank's clock is ahead of the first rank's.

    0 on the same host, else estimated from the ends of collectives, which are nearly simultaneous everywhere.
    """
    first = next(iter(by_rank))
    offsets = dict.fromkeys(by_rank, 0.0)
    for rank, trace in by_rank.items():
        shared = [who for who in matched if first in who and rank in who]
        if trace.host != by_rank[first].host and shared:
            offsets[rank] = median(trace.calls[w[rank]].end - by_rank[first].calls[w[first]].end for w in shared)
    return offsets


def _build_collective(who: Mapping[int, int], begun: Mapping[int, Sequence[float]], by_rank: Mapping[int, Recorded],
                names: Mapping[str, int], ahead: Mapping[int, float]) -> Collective:  # fmt: skip
    """Return a collective that lasts from when all ranks had called it with a free lane until its last end."""
    start = max(begun[rank][number] - ahead[rank] for rank, number in who.items())
    end = max(by_rank[rank].calls[number].end - ahead[rank] for rank, number in who.items())
    rank, number = next(iter(who.items()))
    call = by_rank[rank].calls[number]
    return Collective(call.kind, call.nbytes, names[call.group], max(end - start, 0.0), min(start, end), call.bucket)


def _possible_begins(trace: Recorded) -> list[float]:
    """Return when each call could have begun at this rank."""
    begun = [call.called for call in trace.calls]
    free: dict[str, float] = {}
    for number in sorted(range(len(begun)), key=lambda n: trace.calls[n].start):
        call = trace.calls[number]
        begun[number] = min(max(call.called, free.get(call.lane, call.called)), call.end)
        free[call.lane] = call.end
    return begun


def _list_lanes(trace: Recorded, numbers: Sequence[int]) -> list[list[int]]:
    """Return the collectives of each lane, in order of time."""
    lanes: dict[str, list[tuple[float, int]]] = {}
    for call, number in zip(trace.calls, numbers, strict=True):
        lanes.setdefault(call.lane, []).append((call.start, number))
    return [[number for _, number in sorted(lane)] for lane in lanes.values()]


def _build_line(trace: Recorded, numbers: Sequence[int], ahead: float, calls: Sequence[Collective]) -> list[Item]:
    """Return the items of a rank, from the beginning of its first step to the end of its last."""
    waits = {call for _, _, call in trace.waits}
    marks: list[tuple[float, int, int, float]] = []  # from, kind, call, until
    for number, call in enumerate(trace.calls):
        marks.append((call.called, CALL, number, call.called))
        if call.left is not None:
            marks.append((max(call.left, call.called), _LEFT, number, call.called))
        if number not in waits:
            due = max(trace.steps[call.step][1] if call.due is None else call.due, call.called, call.end)
            marks.append((due, WAIT, number, due))
    marks += [(begin, WAIT, number, end) for begin, end, number in trace.waits]
    marks += [(end, STEP, step, end) for step, (_, end) in enumerate(trace.steps)]
    now, items, within = trace.steps[0][0], [], -1
    for begin, kind, which, end in sorted(marks):
        if begin > now:
            items.append(Item(WORK, begin - now, within, at=now - ahead))
            now = begin
        within = (
            -1 if kind == _LEFT else numbers[which] if kind == CALL and trace.calls[which].left is not None else within
        )
        if kind == _LEFT:
            continue
        place = -1 if kind == STEP else numbers[which]
        early = calls[place].end - (trace.calls[which].end - ahead) if kind == WAIT else 0.0
        items.append(Item(kind, max(early, 0.0), place, now - ahead))
        now = max(now, end)
    if items and items[0].what != WORK:
        items.insert(0, Item(WORK, 0.0, at=trace.steps[0][0] - ahead))
    return items


def _last_gradients(trace: Recorded, items: Sequence[Item], ahead: float) -> list[Gradient]:
    """Return the gradients of the last step, each with the work that the rank had done in the step by then."""
    if not trace.gradients or len(trace.gradients) > MOST_GRADIENTS:
        return []
    begin, end = _step_begin(trace, len(trace.steps) - 1) - ahead, trace.steps[-1][1] - ahead
    work = [i for i in items if i.what == WORK and i.at + i.seconds > begin]
    gradients, done, place = list[Gradient](), 0.0, 0
    for moment, nbytes in sorted(trace.gradients):
        at = moment - ahead
        if not begin <= at <= end:
            continue
        while place < len(work) and work[place].at + work[place].seconds <= at:
            done += work[place].seconds - max(begin - work[place].at, 0.0)
            place += 1
        partial = max(at - max(work[place].at, begin), 0.0) if place < len(work) else 0.0
        gradients.append(Gradient(nbytes, done + partial))
    return gradients
