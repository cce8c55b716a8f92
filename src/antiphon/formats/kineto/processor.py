"""Read a rank that computes on a CPU from PyTorch's trace: its timeline is the thread that trains.

Output (`read_processor_rank`): a `RankTrace` with the rank's collectives, and the times in which the thread waited for
each. Stages:

    1. read the thread's events: innermost ones ("leaves") are computation, others enclose them (`_read_thread`)
    2. find when each call was executed: gloo does that in other threads, in the order of calls, so the k-th execution
       belongs to the k-th call (`_find_executions`); our backend records it in events of its own
       (`_find_own_executions`)
    3. find where the thread waited: our backend records that; for others it is a gap in computation that ends when the
       collective does, right after the call, or (DistributedDataParallel, DDP, which calls from hooks within the
       backward pass) after the backward pass

Times in a trace are microseconds, in a `RankTrace` seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import RankCall, RankTrace, Span
from antiphon.errors import Invalid
from antiphon.formats.kineto.calls import (
    CollectiveCall,
    Event,
    Groups,
    args_of,
    bytes_of,
    call_of,
    count_as_nccl_tests,
    count_sent_received,
    is_call,
    kind_of,
)

_US = 1e-6  # seconds
_MIN_GAP_RATIO = 10  # a gap must be this many times the one before the recorded end to count as the wait
_MAX_INSPECTED = 512  # intervals of computation inspected before the recorded end of a collective
# By how much the end of a collective may be recorded late: microseconds, or a share of its time if that is more
_MAX_DELAY_US, _MAX_DELAY_SHARE = 1000.0, 0.02
# The event within which DDP's hooks run, and the beginning of the names of all events of the backward pass
_HOOK_EVENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_BACKWARD = "autograd::engine::evaluate_function"
# Events in which DDP puts a gradient into its bucket
_GRADIENT = ("torch::distributed::reducer::mul_out", "torch::distributed::reducer::copy_")
_EXECUTIONS = ("gloo:", "ucc:", "mpi:")  # names of executions of calls, in threads of their own
_OUR_PREFIX, _WAIT_EVENT, _DONE_EVENT = "antiphon:", "antiphon:wait", "antiphon:done"
NO_CALLS = (
    "has no collectives in its steps; PyTorch's profiler shows those of gloo, NCCL and antiphon where it records "
    "shapes (record_shapes=True)"
)


@dataclass
class _Call:
    """A call of a collective in the training thread, and its execution. Times are in microseconds."""

    event: Event  # of the call
    returned: float  # when the call returned
    in_hook: bool  # whether a hook of DDP made it
    execution_start: float = 0.0
    execution_end: float = 0.0  # 0: no execution was found
    thread: str = ""  # the thread that executed it; of our backend the group's name: each group has one worker
    execution: Event = field(default_factory=dict)  # the event of the execution

    @property
    def called(self) -> float:
        """Return when the call was made."""
        begin: float = self.event["ts"]
        return begin


@dataclass(slots=True)
class _OpenEvent:
    """An event of the training thread that is not over yet, and encloses those that begin until then."""

    end: float
    name: str
    begin: float
    in_hook: bool  # whether it is a hook of DDP, or within one
    has_inner: bool = False  # whether it encloses events other than calls, waits and ends of calls (`is_call`)


@dataclass
class _Thread:
    """The activities of the training thread, in microseconds."""

    busy: list[Span] = field(default_factory=list)  # computation, one span for each innermost event
    calls: list[_Call] = field(default_factory=list)
    waits: list[Event] = field(default_factory=list)  # of our backend: the thread waits for a call
    done: list[Event] = field(default_factory=list)  # of our backend: a call is done
    backward: list[float] = field(default_factory=list)  # ends of the parts of the backward pass
    gradients: list[tuple[float, int]] = field(default_factory=list)  # when each was computed, and its bytes


def read_processor_rank(
    slices: Sequence[Event], steps: Sequence[Span], rank: int, host: str, groups: Groups, size: int | None
) -> RankTrace:
    """Return the trace of a rank.

    `slices`: events with a begin and an end. `steps`: begin and end of the training steps, in seconds. `groups`: the
    process groups that the trace lists, by key. `size`: ranks of the job, if known.
    """
    thread_log = _read_thread(_thread_of(slices, steps), slices)
    if not steps and thread_log.busy:
        first_begin, _ = thread_log.busy[0]
        steps = [(first_begin * _US, max(end for _, end in thread_log.busy) * _US)]
    _find_executions(
        thread_log.calls, [e for e in slices if str(e.get("name", "")).startswith(_EXECUTIONS)], thread_log.busy
    )
    _find_own_executions(thread_log)
    steps = _complete_steps(steps, thread_log.calls)
    # a trace that lists no groups gets one of all ranks
    known_groups, notes = dict(groups) or {"0": ProcessGroup("0", size or 1, tuple(range(size or 1)))}, list[str]()
    collectives: list[RankCall] = []
    calls: list[_Call] = []
    for call in thread_log.calls:
        step = _step_of(steps, call.called * _US)
        if step is None or not call.execution_end:
            continue
        if _is_our_call(call.event):
            collective = call_of(call.event, known_groups, size, notes)
        else:
            collective = _c10d_call(call, known_groups, notes)
        if collective is not None:
            # DDP needs the result of a call in a hook at the end of the backward pass; None: at the end of the step
            due = _backward_end(thread_log.backward, call.called, steps[step][1] / _US) * _US if call.in_hook else None
            collectives.append(
                RankCall(
                    *collective, called=call.called * _US, start=call.execution_start * _US,
                    end=call.execution_end * _US, lane=call.thread, step=step, due=due, bucket=call.in_hook,
                    returned=call.returned * _US,
                )
            )  # fmt: skip
            calls.append(call)
    if not collectives:
        raise Invalid(NO_CALLS)
    waits = [*_recorded_waits(thread_log.waits, calls), *_inferred_waits(thread_log.busy, calls, collectives)]
    gradients = [(at * _US, nbytes) for at, nbytes in thread_log.gradients]
    return RankTrace(
        rank, host, known_groups, steps=steps, calls=collectives, waits=waits, gradients=gradients, notes=notes,
        processor=True,
    )  # fmt: skip


def _thread_of(slices: Sequence[Event], steps: Sequence[Span]) -> object:
    """Return the thread that trains: the one with the marks of steps, else the one with most events."""
    marks = [e for e in slices if str(e.get("name", "")).startswith("ProfilerStep#")] if steps else slices
    counts = Counter(e.get("tid") for e in marks if e.get("cat") in ("cpu_op", "user_annotation"))
    return counts.most_common(1)[0][0] if counts else None


def _complete_steps(steps: Sequence[Span], calls: Sequence[_Call]) -> list[Span]:
    """Drop trailing steps with calls whose execution is not recorded."""
    incomplete = {_step_of(steps, call.called * _US) for call in calls if not call.execution_end}
    count = len(steps)
    while count and count - 1 in incomplete:
        count -= 1
    return list(steps[:count])


def _step_of(steps: Sequence[Span], moment: float) -> int | None:
    """Return the number of the step that contains a moment, or None."""
    index = bisect_right(steps, (moment, float("inf"))) - 1
    return index if index >= 0 and moment <= steps[index][1] else None


def _is_our_call(event: Event) -> bool:
    return str(event.get("name", "")).startswith(_OUR_PREFIX)


def _read_thread(thread: object, slices: Sequence[Event]) -> _Thread:
    """Read the events of a thread: innermost ones are computation."""
    thread_log = _Thread()
    events = [e for e in slices if e.get("tid") == thread and e.get("cat") == "cpu_op"]
    # The innermost last. An event without inner events is computation, also if it encloses calls: then for all of its
    # time, as what it does around them has no events of its own.
    stack: list[_OpenEvent] = []

    def leave(now: float) -> None:
        """Take the events that are over by `now` from the stack."""
        while stack and stack[-1].end <= now:
            over = stack.pop()
            # `is_call` also holds for the waits and ends that our backend records
            if not over.has_inner and not is_call(over.name):
                thread_log.busy.append((over.begin, over.end))
            if over.name.startswith(_BACKWARD):
                thread_log.backward.append(over.end)

    for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0.0))):
        name, end = str(event.get("name", "")), event["ts"] + event.get("dur", 0.0)
        leave(event["ts"])
        # calls within a DDP hook are due at the end of the backward pass
        in_hook = bool(stack) and stack[-1].in_hook
        if name in (_WAIT_EVENT, _DONE_EVENT):
            (thread_log.waits if name == _WAIT_EVENT else thread_log.done).append(event)
        elif name.startswith((_OUR_PREFIX, "c10d::")) and kind_of(name) is not None:
            thread_log.calls.append(_Call(event, end, in_hook))
        elif name in _GRADIENT:
            thread_log.gradients.append((event["ts"], _tensor_bytes(event)))
        if stack and not is_call(name):
            stack[-1].has_inner = True
        stack.append(_OpenEvent(end, name, event["ts"], in_hook or name == _HOOK_EVENT))
    leave(float("inf"))
    thread_log.busy.sort()
    thread_log.backward.sort()
    return thread_log


def _list_argument(event: Event, key: str) -> Sequence[Any]:
    """Return an argument of an event that is a list; [] if it is none."""
    value = args_of(event).get(key)
    return value if isinstance(value, list) else []


def _tensor_bytes(event: Event) -> int:
    """Return the bytes of the first tensor of an event; of unknown types with 4 bytes per element."""
    types = _list_argument(event, "Input type")
    # an allreduce sends its first tensor: so this is the number of elements of that
    sent, _ = count_sent_received("allreduce", _list_argument(event, "Input Dims"))
    return sent * ((bytes_of(types[0]) if types else None) or 4)


# ---- when calls ran ----


def _find_executions(calls: Sequence[_Call], executions: Sequence[Event], busy: Sequence[Span]) -> None:
    """Set begin and end of calls of other backends, whose threads take calls in the order in which they were made."""
    begins = [begin for begin, _ in busy]
    in_order = sorted(executions, key=lambda e: e["ts"])
    at = 0
    for call in (call for call in calls if not _is_our_call(call.event)):
        # an execution cannot begin before its call: skip those of calls before the recording
        while at < len(in_order) and in_order[at]["ts"] < call.called:
            at += 1
        if at < len(in_order):
            execution = call.execution = in_order[at]
            end = _estimate_end(busy, begins, call.called, execution["ts"] + execution.get("dur", 0.0))
            call.execution_start, call.execution_end = min(execution["ts"], end), end
            call.thread = str(execution.get("tid"))
            at += 1


def _estimate_end(busy: Sequence[Span], begins: Sequence[float], called: float, reported_end: float) -> float:
    """Return when a collective was over: as recorded, or a little earlier, where computation went on after its longest
    gap.

    The thread that executes it may lose its core before it has recorded the end. All times are in microseconds.
    """
    last = bisect_right(begins, reported_end)
    # only a gap that is much longer than the one before the recorded end counts
    longest = _MIN_GAP_RATIO * (reported_end - busy[last - 1][1]) if last else 0.0
    max_delay = max(_MAX_DELAY_US, _MAX_DELAY_SHARE * (reported_end - called))
    end, earliest = reported_end, max(called, reported_end - max_delay)
    # Go back over gaps in the computation, and take the longest one that ends late enough: in it the thread that trains
    # waited, until the collective was over.
    for place in range(last - 1, max(last - _MAX_INSPECTED, 0), -1):
        if begins[place] < earliest:
            break
        idle = begins[place] - max(busy[place - 1][1], called)
        if idle > longest:
            longest, end = idle, begins[place]
    return end


def _call_key(event: Event) -> tuple[str, str]:
    """Return (group, number), which a call of our backend, its wait and its end have in common."""
    args = args_of(event)
    return str(args.get("Process Group Name", "")), str(args.get("call", ""))


def _find_own_executions(thread_log: _Thread) -> None:
    """Set begin and end of our backend's calls, which record afterwards how long ago both were."""
    calls = {_call_key(call.event): call for call in thread_log.calls if _is_our_call(call.event)}
    for event in thread_log.done:
        call, args = calls.get(_call_key(event)), args_of(event)
        nanoseconds_ago = [args.get(key) for key in ("begun ns ago", "over ns ago")]
        if call is None:
            continue  # made before the profiler recorded
        if not all(isinstance(ns, int) and 0 <= ns < 2**60 for ns in nanoseconds_ago):
            raise Invalid(f"{_DONE_EVENT} at {event['ts']} us: does not show when its call was")
        begun, end = (max(event["ts"] - ns / 1000, call.called) for ns in nanoseconds_ago if ns is not None)
        call.thread, _ = _call_key(event)
        call.execution_start, call.execution_end = begun, max(begun, end)


# ---- which collective ----


def _c10d_call(call: _Call, groups: Groups, notes: list[str]) -> CollectiveCall:
    """Return the collective of a call of c10d, which records shapes, but no group.

    It records no type of lists of tensors either; the event of the execution has it.
    """
    kind = kind_of(str(call.event["name"])) or ""
    group = next(iter(groups))
    if len(groups) > 1:
        notes.append("calls of c10d do not name their group: all are taken to be of the first one")
    dims = _list_argument(call.event, "Input Dims")
    if not dims and kind != "barrier":
        raise Invalid(
            f"{call.event['name']} at {call.called} us: no shapes were recorded; record with record_shapes=True"
        )
    type_bytes = [
        bytes_of(type_name)
        for event in (call.event, call.execution)
        for type_name in _list_argument(event, "Input type")
    ]
    item_bytes = next((nbytes for nbytes in type_bytes if nbytes), None)
    if item_bytes is None and kind != "barrier":
        notes.append("some calls have no recorded data type: 4 bytes per element are assumed")
    nbytes = count_as_nccl_tests(kind, *count_sent_received(kind, dims), groups[group].size) * (item_bytes or 4)
    return CollectiveCall(kind, nbytes, group)


# ---- where the thread waited ----


def _backward_end(ends: Sequence[float], called: float, limit: float) -> float:
    """Return when the backward pass is over in which a call was made: the last of the `ends` of its parts before
    `limit`."""
    last = bisect_right(ends, limit)
    return max(ends[last - 1], called) if last else called


def _recorded_waits(waits: Sequence[Event], calls: Sequence[_Call]) -> list[tuple[float, float, int]]:
    """Return (begin, end, number) of the waits that our backend recorded; each ends when its call does."""
    number = {_call_key(call.event): k for k, call in enumerate(calls) if _is_our_call(call.event)}
    spans = []
    for event in waits:
        index = number.pop(_call_key(event), None)
        if index is not None:
            begin, end = event["ts"], calls[index].execution_end
            spans.append((begin * _US, max(begin, end) * _US, index))
    return spans


def _inferred_waits(
    busy: Sequence[Span], calls: Sequence[_Call], collectives: Sequence[RankCall]
) -> list[tuple[float, float, int]]:
    """Return (begin, end, number) of waits for collectives of other backends: gaps in computation that they end."""
    begins = [begin for begin, _ in busy]
    spans = []
    for number, (call, collective) in enumerate(zip(calls, collectives, strict=True)):
        if _is_our_call(call.event) and collective.due is None:
            continue  # its wait was recorded; DDP, whose calls in hooks have a due time, waits in its own code
        # the idle time before the end of the collective is the wait for it
        place = bisect_left(begins, call.execution_end)  # the first leaf that begins once it was over
        _, idle_from = busy[place - 1] if place else (0.0, 0.0)
        after = call.called  # of a call that returned when the collective was over: the thread waited within it
        if idle_from > call.returned:  # something was computed since the call: only DDP is known to wait later
            # No wait: the call is not of DDP, or the rank still computed when the collective was over, or that was over
            # before it was due.
            if collective.due is None or idle_from >= call.execution_end or collective.due > call.execution_end * _US:
                continue
            after = max(idle_from, collective.due / _US)
        elif call.returned < call.execution_end:  # nothing was computed after it: the thread waited for the result
            after = call.returned
        if after < call.execution_end:
            spans.append((max(idle_from, after) * _US, call.execution_end * _US, number))
    return spans
