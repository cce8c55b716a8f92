"""Join the traces of all ranks into a recorded job (`RecordedJob`). Each trace, of any file format, is a `RankTrace`.

Readers of trace formats produce one `RankTrace` per rank. `join` matches the collectives of the ranks (the k-th call of
a process group in a training step is the same collective at every rank). It aligns the clocks of hosts by the ends of
collectives. It turns each trace into a timeline of items (job.py): work, calls, waits, ends of steps.

Example: rank 0 calls a collective at 10 ms and rank 1 at 12 ms, and it ends at 18 ms. So the collective takes 6 ms,
from 12 ms on; rank 0's timeline has 10 ms of WORK, then CALL, then WORK until it waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from antiphon.cost.replay.job import (
    CALL,
    STEP,
    WAIT,
    WORK,
    Gradient,
    ProcessGroup,
    RecordedCollective,
    RecordedJob,
    TimelineItem,
)
from antiphon.errors import Invalid, quote

Span = tuple[float, float]  # begin and end, in seconds
MAX_GRADIENTS = 2**20  # more are ignored
_RETURN = -1  # a kind of mark beside the kinds of items: the rank returns from a call


@dataclass(frozen=True)
class RankCall:
    """One collective as one rank recorded it. Times are in seconds, by the clock of the rank's host."""

    kind: str  # "allreduce", ...
    nbytes: int  # as nccl-tests counts them
    group: str  # key of the process group
    called: float  # when the rank was ready for it
    start: float  # when it began to run at this rank
    end: float
    lane: str  # the stream or thread that ran it
    step: int  # the training step in which it was called
    due: float | None = None  # when the rank waits for it at the latest; None: at the end of the step
    bucket: bool = False  # whether it reduces a bucket of gradients of DDP
    returned: float | None = None  # when the rank returned from the call; None: at once


@dataclass(frozen=True)
class RankTrace:
    """The trace of one rank."""

    rank: int
    host: str  # ranks of one host have the same clock
    groups: Mapping[str, ProcessGroup]  # by key
    steps: Sequence[Span]  # training steps, at least one
    calls: Sequence[RankCall]
    waits: Sequence[tuple[float, float, int]] = ()  # begin, end, and position in `calls` of what the rank waited for
    gradients: Sequence[tuple[float, int]] = ()  # when each was computed, and its bytes
    notes: Sequence[str] = ()  # caveats, in words
    processor: bool = False  # whether it computed on a CPU and not on a GPU


def join(traces: Sequence[RankTrace]) -> RecordedJob:
    """Join the traces of ranks into a job; raise Invalid if they do not call the same collectives. O(n log n)."""
    by_rank = {trace.rank: trace for trace in sorted(traces, key=lambda trace: trace.rank)}
    if not by_rank:
        raise Invalid("the traces have no collective; record steps in which the job communicates")
    if len(by_rank) < len(traces):
        raise Invalid("two of the traces are of the same rank; pass one file for each rank")
    step_counts = {len(trace.steps) for trace in by_rank.values()}
    if len(step_counts) > 1:
        raise Invalid(
            f"the traces have {min(step_counts)} to {max(step_counts)} steps; record the same ones at all ranks"
        )
    group_numbers, groups = _collect_groups(by_rank)
    collectives, collective_of_call = _match_calls(by_rank)
    clock_ahead = _clock_offsets(by_rank, collectives)
    possible_begins = {rank: _list_possible_begins(trace) for rank, trace in by_rank.items()}
    recorded = [
        _build_collective(members, possible_begins, by_rank, group_numbers, clock_ahead) for members in collectives
    ]
    ranks = {
        rank: _build_timeline(trace, collective_of_call[rank], clock_ahead[rank], recorded)
        for rank, trace in by_rank.items()
    }
    steps = [
        max(trace.steps[k][1] - _step_begin(trace, k) for trace in by_rank.values()) for k in range(min(step_counts))
    ]
    notes = list(dict.fromkeys(note for trace in by_rank.values() for note in trace.notes))
    largest_group = max((group.size for group in groups), default=1)
    if len(by_rank) < largest_group:
        notes.append(
            f"traces of {len(by_rank)} of {largest_group} ranks: what these waited for the others counts as "
            "communication"
        )
    first = next(iter(by_rank.values()))  # its gradients stand for all ranks': DDP reduces the same ones at each
    job = RecordedJob(
        groups=groups,
        calls=recorded,
        ranks=ranks,
        lanes={rank: _list_lanes(trace, collective_of_call[rank]) for rank, trace in by_rank.items()},
        steps=steps,
        notes=notes,
    )
    job.check()
    gradients = _last_gradients(first, ranks[first.rank], clock_ahead[first.rank])
    return replace(job, gradients=gradients, processor=any(trace.processor for trace in by_rank.values()))


def _step_begin(trace: RankTrace, step: int) -> float:
    """Return when the previous step ended: time between two steps belongs to the later one."""
    begin, _ = trace.steps[0]
    if step == 0:
        return begin
    _, previous_end = trace.steps[step - 1]
    return previous_end


def _collect_groups(by_rank: Mapping[int, RankTrace]) -> tuple[dict[str, int], list[ProcessGroup]]:
    """Return the process groups of all traces, and the number of each by its key."""
    group_numbers: dict[str, int] = {}
    groups: list[ProcessGroup] = []
    for trace in by_rank.values():
        for key, group in trace.groups.items():
            if key not in group_numbers:
                group_numbers[key] = len(groups)
                groups.append(group)
            elif groups[group_numbers[key]] != group:
                raise Invalid(f"group {quote(key)}: ranks list different members of it")
    return group_numbers, groups


def _match_calls(by_rank: Mapping[int, RankTrace]) -> tuple[list[dict[int, int]], dict[int, list[int]]]:
    """Return collectives as {rank: number of the call there}, and for every rank the collective of each of its calls.

    Calls of a group in a step are matched in order.
    """
    matches: dict[tuple[str, int, int], dict[int, int]] = {}
    for rank, trace in by_rank.items():
        counts: dict[tuple[str, int], int] = {}
        for number, call in enumerate(trace.calls):
            position = counts.get((call.group, call.step), 0)
            counts[call.group, call.step] = position + 1
            members = matches.setdefault((call.group, call.step, position), {})
            if members:
                other = next(iter(members))
                reference = by_rank[other].calls[members[other]]
                if (reference.kind, reference.nbytes) != (call.kind, call.nbytes):
                    raise Invalid(
                        f"step {call.step}, call {position} of group {quote(call.group)}: rank {other} calls "
                        f"{reference.kind} of {reference.nbytes} bytes, rank {rank} {call.kind} of {call.nbytes}"
                    )
            members[rank] = number
    collectives = list(matches.values())
    collective_of_call = {rank: [0] * len(trace.calls) for rank, trace in by_rank.items()}
    for collective, members in enumerate(collectives):
        for rank, number in members.items():
            collective_of_call[rank][number] = collective
    return collectives, collective_of_call


def _clock_offsets(by_rank: Mapping[int, RankTrace], collectives: Sequence[Mapping[int, int]]) -> dict[int, float]:
    """Return by how much each rank's clock is ahead of the first rank's.

    0 on the same host, else estimated from the ends of collectives, which are nearly simultaneous everywhere.
    """
    first = next(iter(by_rank))
    offsets = dict.fromkeys(by_rank, 0.0)
    for rank, trace in by_rank.items():
        common_calls = [members for members in collectives if first in members and rank in members]
        if trace.host != by_rank[first].host and common_calls:
            offsets[rank] = median(
                trace.calls[members[rank]].end - by_rank[first].calls[members[first]].end for members in common_calls
            )
    return offsets


def _build_collective(
    members: Mapping[int, int], possible_begins: Mapping[int, Sequence[float]], by_rank: Mapping[int, RankTrace],
    group_numbers: Mapping[str, int], clock_ahead: Mapping[int, float],
) -> RecordedCollective:  # fmt: skip
    """Return a collective. It lasts from when all its ranks had called it and had a free lane, until its last end.

    `members`: per rank the position in its calls. `possible_begins`: per rank when each of its calls could have begun.
    """
    start = max(possible_begins[rank][number] - clock_ahead[rank] for rank, number in members.items())
    end = max(by_rank[rank].calls[number].end - clock_ahead[rank] for rank, number in members.items())
    rank, number = next(iter(members.items()))
    call = by_rank[rank].calls[number]
    return RecordedCollective(
        call.kind, call.nbytes, group_numbers[call.group], seconds=max(end - start, 0.0), start=min(start, end),
        bucket=call.bucket,
    )  # fmt: skip


def _list_possible_begins(trace: RankTrace) -> list[float]:
    """Return when each call could have begun at this rank: once it was called and its lane was free."""
    possible_begins = [call.called for call in trace.calls]
    lane_free_from: dict[str, float] = {}
    for number in sorted(range(len(possible_begins)), key=lambda n: trace.calls[n].start):
        call = trace.calls[number]
        possible_begins[number] = min(max(call.called, lane_free_from.get(call.lane, call.called)), call.end)
        lane_free_from[call.lane] = call.end
    return possible_begins


def _list_lanes(trace: RankTrace, collective_of_call: Sequence[int]) -> list[list[int]]:
    """Return the collectives of each lane, in order of time."""
    lanes: dict[str, list[tuple[float, int]]] = {}
    for call, number in zip(trace.calls, collective_of_call, strict=True):
        lanes.setdefault(call.lane, []).append((call.start, number))
    return [[number for _, number in sorted(lane)] for lane in lanes.values()]


def _build_timeline(
    trace: RankTrace, collective_of_call: Sequence[int], clock_ahead: float, collectives: Sequence[RecordedCollective]
) -> list[TimelineItem]:
    """Return the items of a rank, from the beginning of its first step to the end of its last.

    `collective_of_call`: per call of the rank, its position in `collectives`. `clock_ahead`: of the rank's clock.
    """
    waits = {call for _, _, call in trace.waits}
    # (begin, kind, number of the call or step, end); of marks at one time, sorting puts returns first and steps last
    marks: list[tuple[float, int, int, float]] = []
    for number, call in enumerate(trace.calls):
        marks.append((call.called, CALL, number, call.called))
        if call.returned is not None:
            returned = max(call.returned, call.called)
            marks.append((returned, _RETURN, number, returned))
        # Without a recorded wait the rank was not held up: it waits when it must at the latest, but not before the
        # recorded end.
        if number not in waits:
            due = max(trace.steps[call.step][1] if call.due is None else call.due, call.called, call.end)
            marks.append((due, WAIT, number, due))
    marks += [(begin, WAIT, number, end) for begin, end, number in trace.waits]
    marks += [(end, STEP, step, end) for step, (_, end) in enumerate(trace.steps)]
    # enclosing_call: the collective from whose call the rank has not yet returned, -1 if none
    now, items, enclosing_call = _step_begin(trace, step=0), [], -1
    for begin, kind, number, end in sorted(marks):
        if begin > now:
            items.append(TimelineItem(WORK, begin - now, enclosing_call, recorded_at=now - clock_ahead))
            now = begin
        if kind == _RETURN:
            enclosing_call = -1
            continue
        position = -1 if kind == STEP else collective_of_call[number]
        if kind == CALL and trace.calls[number].returned is not None:
            enclosing_call = position
        # how much earlier the collective ended at this rank than at its last; the replay (steps.py) subtracts it from
        # the end if the collective keeps its recorded time
        earlier_by = collectives[position].end - (trace.calls[number].end - clock_ahead) if kind == WAIT else 0.0
        items.append(TimelineItem(kind, max(earlier_by, 0.0), position, now - clock_ahead))
        now = max(now, end)
    # the replay begins a rank's timeline at `recorded_at` of its first item
    if items and items[0].kind != WORK:
        items.insert(0, TimelineItem(WORK, seconds=0.0, recorded_at=trace.steps[0][0] - clock_ahead))
    return items


def _last_gradients(trace: RankTrace, items: Sequence[TimelineItem], clock_ahead: float) -> list[Gradient]:
    """Return the gradients of the last step, each with the work that the rank had done in the step by then."""
    if not trace.gradients or len(trace.gradients) > MAX_GRADIENTS:
        return []
    begin, end = _step_begin(trace, len(trace.steps) - 1) - clock_ahead, trace.steps[-1][1] - clock_ahead
    work = [i for i in items if i.kind == WORK and i.recorded_at + i.seconds > begin]
    gradients, work_done, position = list[Gradient](), 0.0, 0
    for moment, nbytes in sorted(trace.gradients):
        at = moment - clock_ahead
        if not begin <= at <= end:
            continue
        while position < len(work) and work[position].recorded_at + work[position].seconds <= at:
            # without the part that lies before the step
            work_done += work[position].seconds - max(begin - work[position].recorded_at, 0.0)
            position += 1
        partial = max(at - max(work[position].recorded_at, begin), 0.0) if position < len(work) else 0.0
        gradients.append(Gradient(nbytes, work_done + partial))
    return gradients
