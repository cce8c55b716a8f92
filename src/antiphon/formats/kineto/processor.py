"""Read a rank that computes on a CPU from PyTorch's trace: its timeline is the thread that trains.

Output (`on_processor`): a `Recorded` with the rank's collectives, and the times in which the thread waited for each.
Stages:

    1. read the thread's events: innermost ones ("leaves") are computation, others enclose them (`_read_thread`)
    2. find when each call was executed: gloo does that in other threads, in the order of calls, so the k-th execution
       belongs to the k-th call (`_find_executions`); our backend records it in events of its own
       (`_find_own_executions`)
    3. find where the thread waited: our backend records that; for others it is a gap in computation that ends when the
       collective does, right after the call, or (DistributedDataParallel, DDP, which calls from hooks within the
       backward pass) after the backward pass

Times in a trace are microseconds, in a `Recorded` seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import RankCall, Recorded, Span
from antiphon.errors import Invalid
from antiphon.formats.kineto.calls import (
    Called,
    Event,
    Groups,
    args_of,
    both_sides,
    bytes_of,
    call_of,
    count_as_nccl_tests,
    is_call,
    kind_of,
)

_US = 1e-6
_LOOKED_AT = 512  # intervals of computation inspected before the recorded end of a collective
_LATE, _LATE_SHARE = 1000.0, 0.02  # us, or share of its time, by which the end of a collective may be recorded late
_HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_BACKWARD = "autograd::engine::evaluate_function"
_GRADIENT = ("torch::distributed::reducer::mul_out", "torch::distributed::reducer::copy_")
_CARRIED = ("gloo:", "ucc:", "mpi:")  # names of executions of calls, in threads of their own
_OURS, _WAIT, _DONE = "antiphon:", "antiphon:wait", "antiphon:done"
NO_CALLS = (
    "has no collectives in its steps; PyTorch's profiler shows those of gloo, NCCL and antiphon where it records "
    "shapes (record_shapes=True)"
)


@dataclass
class _Call:
    """A call and its execution, in microseconds. `end`: when the call returned; `hook`: it was made in a hook of DDP;
    `start`, `over`: of the execution, in thread `lane`; `carried`: its event."""

    event: Event
    end: float
    hook: bool
    start: float = 0.0
    over: float = 0.0
    lane: str = ""
    carried: Event = field(default_factory=dict)

    @property
    def at(self) -> float:
        begin: float = self.event["ts"]
        return begin


@dataclass
class _Thread:
    """What a thread does: computation leaf by leaf, calls, waits and ends that our backend recorded, and the ends of
    parts of the backward pass."""

    busy: list[Span] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    waits: list[Event] = field(default_factory=list)
    done: list[Event] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    gradients: list[tuple[float, int]] = field(default_factory=list)


def on_processor(
    slices: Sequence[Event], steps: Sequence[Span], rank: int, host: str, groups: Groups, size: int | None
) -> Recorded:
    """Return the recording of a rank. `slices`: events with a begin and an end; `steps`: of training, in seconds;
    `size`: ranks of the job, if known."""
    line = _read_thread(_thread_of(slices, steps), slices)
    if not steps and line.busy:
        steps = [(line.busy[0][0] * _US, max(end for _, end in line.busy) * _US)]
    _find_executions(line.calls, [e for e in slices if str(e.get("name", "")).startswith(_CARRIED)], line.busy)
    _find_own_executions(line)
    steps = _complete_steps(steps, line.calls)
    known_groups, notes = dict(groups) or {"0": ProcessGroup("0", size or 1, tuple(range(size or 1)))}, list[str]()
    collectives: list[RankCall] = []
    calls: list[_Call] = []
    for call in line.calls:
        step = _step_of(steps, call.at * _US)
        if step is None or not call.over:
            continue
        if _is_ours(call.event):
            collective = call_of(call.event, known_groups, size, notes)
        else:
            collective = _c10d_call(call, known_groups, notes)
        if collective is not None:
            due = _backward_over(line.backward, call.at, steps[step][1] / _US) * _US if call.hook else None
            ran = (call.at * _US, call.start * _US, call.over * _US)
            collectives.append(RankCall(*collective, *ran, call.lane, step, due, call.hook, call.end * _US))
            calls.append(call)
    if not collectives:
        raise Invalid(NO_CALLS)
    waits = [*_recorded_waits(line.waits, calls), *_inferred_waits(line.busy, calls, collectives)]
    gradients = [(at * _US, nbytes) for at, nbytes in line.gradients]
    return Recorded(rank, host, known_groups, steps, collectives, waits, gradients, notes, processor=True)


def _thread_of(slices: Sequence[Event], steps: Sequence[Span]) -> object:
    """Return the thread that trains: the one with the marks of steps, else the one with most events."""
    marks = [e for e in slices if str(e.get("name", "")).startswith("ProfilerStep#")] if steps else slices
    counts = Counter(e.get("tid") for e in marks if e.get("cat") in ("cpu_op", "user_annotation"))
    return counts.most_common(1)[0][0] if counts else None


def _complete_steps(steps: Sequence[Span], calls: Sequence[_Call]) -> list[Span]:
    """Drop trailing steps with calls whose execution is not recorded."""
    incomplete = {_step_of(steps, call.at * _US) for call in calls if not call.over}
    count = len(steps)
    while count and count - 1 in incomplete:
        count -= 1
    return list(steps[:count])


def _step_of(steps: Sequence[Span], at: float) -> int | None:
    """Return the number of the step that contains a moment, or None."""
    place = bisect_right(steps, (at, float("inf"))) - 1
    return place if place >= 0 and at <= steps[place][1] else None


def _is_ours(event: Event) -> bool:
    return str(event.get("name", "")).startswith(_OURS)


def _read_thread(thread: object, slices: Sequence[Event]) -> _Thread:
    """Read the events of a thread: innermost ones are computation."""
    line = _Thread()
    events = [e for e in slices if e.get("tid") == thread and e.get("cat") == "cpu_op"]
    # enclosing events; an event without inner events is computation
    stack: list[list[Any]] = []  # end, name, begin, whether something is within, whether it is within a hook

    def leave(now: float) -> None:
        """Take the events that are over by `now` from the stack."""
        while stack and stack[-1][0] <= now:
            end, name, begin, outer, _ = stack.pop()
            if not outer and not is_call(name):
                line.busy.append((begin, end))
            if name.startswith(_BACKWARD):
                line.backward.append(end)

    for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0.0))):
        name, end = str(event.get("name", "")), event["ts"] + event.get("dur", 0.0)
        leave(event["ts"])
        # calls within a DDP hook are due at the end of the backward pass
        hook = bool(stack) and stack[-1][4]
        if name in (_WAIT, _DONE):
            (line.waits if name == _WAIT else line.done).append(event)
        elif name.startswith((_OURS, "c10d::")) and kind_of(name) is not None:
            line.calls.append(_Call(event, end, hook))
        elif name in _GRADIENT:
            line.gradients.append((event["ts"], _tensor_bytes(event)))
        if stack and not is_call(name):
            stack[-1][3] = True
        stack.append([end, name, event["ts"], False, hook or name == _HOOK])
    leave(float("inf"))
    line.busy.sort()
    line.backward.sort()
    return line


def _list_argument(event: Event, key: str) -> Sequence[Any]:
    value = args_of(event).get(key)
    return value if isinstance(value, list) else []


def _tensor_bytes(event: Event) -> int:
    """Return the bytes of the first tensor of an event; of unknown types with 4 bytes per element."""
    types = _list_argument(event, "Input type")
    return both_sides("allreduce", _list_argument(event, "Input Dims"))[0] * (
        (bytes_of(types[0]) if types else None) or 4
    )


# ---- when calls ran ----


def _find_executions(calls: Sequence[_Call], carried: Sequence[Event], busy: Sequence[Span]) -> None:
    """Set begin and end of calls of other backends, whose threads take calls in the order in which they were made."""
    begins = [begin for begin, _ in busy]
    carriers = sorted(carried, key=lambda e: e["ts"])
    at = 0
    for call in (call for call in calls if not _is_ours(call.event)):
        # an execution cannot begin before its call: skip those of calls before the recording
        while at < len(carriers) and carriers[at]["ts"] < call.at:
            at += 1
        if at < len(carriers):
            carrier = call.carried = carriers[at]
            end = _estimate_end(busy, begins, call.at, carrier["ts"] + carrier.get("dur", 0.0))
            call.start, call.over, call.lane = min(carrier["ts"], end), end, str(carrier.get("tid"))
            at += 1


def _estimate_end(busy: Sequence[Span], begins: Sequence[float], called: float, reported_end: float) -> float:
    """Return when a collective was over: as recorded, or a little earlier, where computation went on after its longest
    gap. The thread that executes it may lose its core before it has recorded the end."""
    last = bisect_right(begins, reported_end)
    longest = (
        10 * (reported_end - busy[last - 1][1]) if last else 0.0
    )  # it must be far longer than the gap before the recorded end
    end, earliest = reported_end, max(called, reported_end - max(_LATE, _LATE_SHARE * (reported_end - called)))
    # go back over gaps in the computation, and take the longest one that ends late enough
    for place in range(last - 1, max(last - _LOOKED_AT, 0), -1):
        if begins[place] < earliest:
            break
        idle = begins[place] - max(busy[place - 1][1], called)
        if idle > longest:
            longest, end = idle, begins[place]
    return end


def _name_of(event: Event) -> tuple[str, str]:
    """Return the group and number that a call of our backend, its wait and its end have in common."""
    args = args_of(event)
    return str(args.get("Process Group Name", "")), str(args.get("call", ""))


def _find_own_executions(line: _Thread) -> None:
    """Set begin and end of our backend's calls, which record afterwards how long ago both were."""
    calls = {_name_of(call.event): call for call in line.calls if _is_ours(call.event)}
    for event in line.done:
        call, args = calls.get(_name_of(event)), args_of(event)
        ago = [args.get(key) for key in ("begun ns ago", "over ns ago")]
        if call is None:
            continue  # made before the profiler recorded
        if not all(isinstance(ns, int) and 0 <= ns < 2**60 for ns in ago):
            raise Invalid(f"{_DONE} at {event['ts']} us: does not show when its call was")
        begun, end = (max(event["ts"] - ns / 1000, call.at) for ns in ago if ns is not None)
        call.start, call.over, call.lane = begun, max(begun, end), _name_of(event)[0]


# ---- which collective ----


def _c10d_call(call: _Call, groups: Groups, notes: list[str]) -> Called:
    """Return the collective of a call of c10d: it records shapes, but no group, and no type of lists of tensors, which
    the event of the execution has."""
    kind = kind_of(str(call.event["name"])) or ""
    group = next(iter(groups))
    if len(groups) > 1:
        notes.append("calls of c10d do not name their group: all are taken to be of the first one")
    dims = _list_argument(call.event, "Input Dims")
    if not dims and kind != "barrier":
        raise Invalid(f"{call.event['name']} at {call.at} us: no shapes were recorded; record with record_shapes=True")
    types = [
        bytes_of(type_name) for event in (call.event, call.carried) for type_name in _list_argument(event, "Input type")
    ]
    item = next((type_name for type_name in types if type_name), None)
    if item is None and kind != "barrier":
        notes.append("some calls have no recorded data type: 4 bytes per element are assumed")
    nbytes = count_as_nccl_tests(kind, *both_sides(kind, dims), groups[group].size) * (item or 4)
    return kind, nbytes, group


# ---- where the thread waited ----


def _backward_over(ends: Sequence[float], call: float, limit: float) -> float:
    """Return when the backward pass is over that contains a call: the last end of a part before `limit`."""
    last = bisect_right(ends, limit)
    return max(ends[last - 1], call) if last else call


def _recorded_waits(waits: Sequence[Event], calls: Sequence[_Call]) -> list[tuple[float, float, int]]:
    # our calls record their wait; it ends when the call does
    number = {_name_of(call.event): k for k, call in enumerate(calls) if _is_ours(call.event)}
    spans = []
    for event in waits:
        index = number.pop(_name_of(event), None)
        if index is not None:
            begin, end = event["ts"], calls[index].over
            spans.append((begin * _US, max(begin, end) * _US, index))
    return spans


def _inferred_waits(
    busy: Sequence[Span], calls: Sequence[_Call], collectives: Sequence[RankCall]
) -> list[tuple[float, float, int]]:
    """Return (begin, end, number) of waits for collectives of other backends: no computation until it was over."""
    begins = [begin for begin, _ in busy]
    spans = []
    for number, (call, collective) in enumerate(zip(calls, collectives, strict=True)):
        if _is_ours(call.event) and collective.due is None:
            continue  # its wait was recorded
        # the idle time before the end of the collective is the wait for it
        place = bisect_left(begins, call.over)  # the first leaf that begins once it was over
        idle = busy[place - 1][1] if place else 0.0
        after = call.at
        if idle > call.end:  # something was computed since the call: only DDP is known to wait later
            if collective.due is None or idle >= call.over or collective.due > call.over * _US:
                continue
            after = max(idle, collective.due / _US)
        elif call.end < call.over:
            after = call.end
        if after < call.over:
            spans.append((max(idle, after) * _US, call.over * _US, number))
    return spans
