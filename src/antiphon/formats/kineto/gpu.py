"""Read a rank that computes on a GPU from PyTorch's trace: its timeline is the union of all its CUDA streams.

Output (`read_gpu_rank`): a `RankTrace` with the rank's collectives, and the times in which computation waited for each.
A trace has kernels with begin and end, and the launches of the processor that started them, joined by a correlation
number:

    processor   launch A   launch allreduce   launch B
    GPU stream 1   [--- A ---]                    [--- B ---]
    GPU stream 2              [--- allreduce ---]

The allreduce could have begun when A was done, since A was launched before it: that is its `called` time. The GPU was
idle from the end of A, and B begins within 20 us of the end of the allreduce: so the rank waited for it in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from antiphon.cost.replay.recorded import RankCall, RankTrace, Span
from antiphon.errors import Invalid
from antiphon.formats.kineto.calls import Event, Groups, args_of, call_of

_US = 1e-6  # seconds
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of events on the GPU
_LAUNCH = ("cuda_runtime", "cuda_driver", "hip_runtime")  # categories of launches by the processor
_LIBRARIES = ("nccl", "rccl", "mscclKernel", "ncclKernel")  # prefixes of the names of collectives' kernels
_MAX_RESUME_DELAY = 20.0  # us in which a kernel begins that waited for nothing but a collective


def read_gpu_rank(
    slices: Sequence[Event], steps: Sequence[Span], rank: int, host: str, groups: Groups, size: int | None
) -> RankTrace:
    """Return the trace of a rank.

    `slices`: events with a begin and an end. `steps`: begin and end of the training steps, in seconds. `groups`: the
    process groups that the trace lists, by key. `size`: ranks of the job, if known.

    A collective may begin when all kernels launched before it are done. Computation waited for a collective if the GPU
    was idle until the collective ended, and resumed right then.
    """
    gpu_events = sorted((e for e in slices if e.get("cat") in _WORK), key=lambda e: e["ts"])
    collective_kernels = [e for e in gpu_events if str(e.get("name", "")).startswith(_LIBRARIES)]
    compute_kernels = [e for e in gpu_events if not str(e.get("name", "")).startswith(_LIBRARIES)]
    if not collective_kernels:
        raise Invalid("has no collectives: no kernel of NCCL or RCCL ran in it")
    launched = {_correlation_of(e): float(e["ts"]) for e in slices if e.get("cat") in _LAUNCH}
    launched.pop(None, None)  # of launches without a correlation number
    busy = _join_spans([(e["ts"], e["ts"] + e.get("dur", 0.0)) for e in compute_kernels])
    completion = _CompletionTimes(compute_kernels, launched)
    # The processor marks steps; on the GPU a step is over when the kernels launched in it are done.
    spans = [
        (completion.at(begin, begin), completion.at(end, end)) for begin, end in ((b / _US, e / _US) for b, e in steps)
    ]
    step_ends = [end / _US for _, end in steps]
    if not spans:
        spans, step_ends = [(gpu_events[0]["ts"], max(e["ts"] + e.get("dur", 0.0) for e in gpu_events))], [float("inf")]
    first_step_begin = steps[0][0] / _US if steps else float("-inf")
    known_groups, notes = dict(groups), list[str]()
    calls: list[RankCall] = []
    for event in collective_kernels:
        launch = launched.get(_correlation_of(event), float(event["ts"]))
        step = bisect_left(step_ends, launch)
        collective = call_of(event, known_groups, size, notes)
        if collective is None or launch < first_step_begin or step >= len(step_ends):
            continue
        kind, nbytes, group = collective
        called = min(max(completion.at(launch, launch), launch), event["ts"])
        end = event["ts"] + event.get("dur", 0.0)
        calls.append(
            RankCall(
                kind, nbytes, group, called=called * _US, start=event["ts"] * _US, end=end * _US,
                lane=str(event.get("tid")), step=step,  # the "thread" of a GPU event is its stream
            )
        )  # fmt: skip
    if not calls:
        raise Invalid(
            "has no collectives in its steps, or its NCCL kernels lack the arguments Collective name and dtype"
        )
    return RankTrace(
        rank,
        host,
        known_groups,
        steps=[(b * _US, e * _US) for b, e in spans],
        calls=calls,
        waits=_find_waits(calls, busy),
        gradients=(),
        notes=notes,
    )


def _correlation_of(event: Event) -> int | None:
    """Return the number that a kernel shares with the call that launched it."""
    number = args_of(event).get("correlation")
    return number if isinstance(number, int) else None


class _CompletionTimes:
    """When the GPU has finished all the kernels that the processor launched before a moment.

    `launched`: by correlation number, when the processor launched the kernel; times are in microseconds.
    """

    def __init__(self, compute_kernels: Sequence[Event], launched: Mapping[int | None, float]) -> None:
        ends = sorted((launched.get(_correlation_of(e), e["ts"]), e["ts"] + e.get("dur", 0.0))
                      for e in compute_kernels)  # fmt: skip
        self.launches = [launch for launch, _ in ends]
        self.ends = list(accumulate((end for _, end in ends), max))

    def at(self, launch: float, default: float) -> float:
        """Return when all kernels launched until `launch` are done; `default` if there are none."""
        before = bisect_right(self.launches, launch)
        return self.ends[before - 1] if before else default


def _join_spans(spans: Sequence[Span]) -> list[Span]:
    """Merge spans that overlap; they are in the order of their begins."""
    merged: list[Span] = []
    for begin, end in spans:
        last_begin, last_end = merged[-1] if merged else (begin, begin)
        if merged and begin <= last_end:
            merged[-1] = (last_begin, max(last_end, end))
        else:
            merged.append((begin, end))
    return merged


def _find_waits(calls: Sequence[RankCall], busy: Sequence[Span]) -> list[tuple[float, float, int]]:
    """Return (begin, end, number of the collective) of the GPU's waits, in seconds; `busy`: computation, in us."""
    begins = [begin for begin, _ in busy]
    waits = []
    for number, call in enumerate(calls):
        end = call.end / _US
        resumed = bisect_right(begins, end)  # index of the first computation after the collective
        if resumed < len(busy) and begins[resumed] - end > _MAX_RESUME_DELAY:
            continue  # it went on later, so it waited for something else
        _, idle_from = busy[resumed - 1] if resumed else (0.0, call.called / _US)
        if idle_from < end:
            waits.append((max(idle_from * _US, call.called), call.end, number))
    return waits
