"""Show the calls of a group to PyTorch's profiler (docs/replay.md): which were made, when they ran, and waits for them.

A profiler records the thread that started it, but not the worker that executes calls. So the times of a call are
recorded by a later event of a recorded thread: at the next call, or at the end of a wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast

# names of events, which formats/kineto reads in a trace; the first is followed by the kind of the call
CALLED, WAIT, DONE = "antiphon:", "antiphon:wait", "antiphon:done"
_TYPES = {
    torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float64: "Double",
    torch.int32: "Int", torch.int64: "Long", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool",
}  # fmt: skip


def is_profiling() -> bool:
    """Return whether a profiler records this thread."""
    return bool(torch.autograd._profiler_enabled())


class CallTimes:
    """When a call began and ended, by `time.perf_counter_ns`; 0: not yet. Written by the thread that executes it."""

    __slots__ = ("begin", "call", "end")

    def __init__(self, call: int) -> None:
        self.call, self.begin, self.end = call, 0, 0


class Profiled:
    """The calls of a group while a profiler records: an event for each call, for each wait, and for each end of a call.

    `world_ranks`: ranks of the group's processes among all processes.
    """

    def __init__(self, size: int, world_ranks: Sequence[int]) -> None:
        self._group: dict[str, Any] = {"Group size": size, "Process Group Ranks": str(list(world_ranks))}
        self._lock = threading.Lock()
        self._unreported: deque[CallTimes] = deque()  # calls without an event of their end yet

    def record_call(
        self, kind: str, call: int, name: str, inputs: Sequence[Any], results: Sequence[Any]
    ) -> CallTimes | None:
        """Record call number `call` of process group `name`.

        Return None, at almost no cost, if no profiler records this thread.
        """
        if not is_profiling():
            return None
        self._group["Process Group Name"] = name
        self.record_ended()
        arguments = {
            "call": call,
            "Collective name": kind,
            "In msg nelems": sum(tensor.numel() for tensor in inputs),
            "Out msg nelems": sum(tensor.numel() for tensor in results),
            "dtype": _type_name([*inputs, *results]),
            **self._group,
        }
        with _make_event(CALLED + kind, arguments):
            times = CallTimes(call)
        with self._lock:
            self._unreported.append(times)
        return times

    def waiting(self, times: CallTimes | None) -> AbstractContextManager[Any]:
        """Return a context that records a wait for this call; it does nothing if no profiler records."""
        if times is None or not is_profiling():
            return nullcontext()
        return _make_event(WAIT, {"call": times.call, **self._group})

    def record_ended(self) -> None:
        """Record an event for each call that has ended, with how long ago it began and ended."""
        if not self._unreported or not is_profiling():
            return
        with self._lock:
            ended = [times for times in self._unreported if times.end]
            for times in ended:
                self._unreported.remove(times)
        for times in ended:
            now = time.perf_counter_ns()
            ago = {"begun ns ago": now - times.begin, "over ns ago": now - times.end}
            with _make_event(DONE, {"call": times.call, **ago, **self._group}):
                pass


def _make_event(name: str, arguments: Mapping[str, Any]) -> AbstractContextManager[Any]:
    event: AbstractContextManager[Any] = _RecordFunctionFast(name, [], dict(arguments))
    return event


def _type_name(tensors: Sequence[Any]) -> str:
    """Return the name of the type of the first tensor, as PyTorch's own traces have it."""
    if not tensors:
        return "Byte"  # as PyTorch records a barrier
    dtype = tensors[0].dtype
    return _TYPES.get(dtype, str(dtype).removeprefix("torch."))
