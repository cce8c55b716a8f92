"""Show the calls of a group to PyTorch's profiler (docs/replay.md): which were made, when they ran, and waits for them.

A profiler records the thread that started it, but not the worker that executes calls. So the times of a call are
recorded by a later event of a recorded thread: the next call, or the end of a wait.
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

CALLED, WAIT, DONE = "antiphon:", "antiphon:wait", "antiphon:done"
_TYPES = {
    torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float64: "Double",
    torch.int32: "Int", torch.int64: "Long", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool",
}  # fmt: skip


def is_profiling() -> bool:
    """Return whether a profiler records this thread."""
    return bool(torch.autograd._profiler_enabled())


class Moments:
    """When a call ran, in nanoseconds of `time.perf_counter_ns`. The thread that executes it writes them."""

    __slots__ = ("begun", "call", "over")

    def __init__(self, call: int) -> None:
        self.call, self.begun, self.over = call, 0, 0


class Profiled:
    """The calls of a group that a profiler has recorded."""

    def __init__(self, size: int, places: Sequence[int]) -> None:
        self._group: dict[str, Any] = {"Group size": size, "Process Group Ranks": str(list(places))}
        self._lock = threading.Lock()
        self._open: deque[Moments] = deque()

    def record_call(
        self, kind: str, call: int, name: str, inputs: Sequence[Any], results: Sequence[Any]
    ) -> Moments | None:
        """Record a call; None, at almost no cost, if no profiler records this thread."""
        if not is_profiling():
            return None
        self._group["Process Group Name"] = name
        self.record_ended()
        facts = {
            "call": call,
            "Collective name": kind,
            "In msg nelems": sum(tensor.numel() for tensor in inputs),
            "Out msg nelems": sum(tensor.numel() for tensor in results),
            "dtype": _type_name([*inputs, *results]),
            **self._group,
        }
        with _make_event(CALLED + kind, facts):
            moments = Moments(call)
        with self._lock:
            self._open.append(moments)
        return moments

    def waiting(self, moments: Moments | None) -> AbstractContextManager[Any]:
        if moments is None or not is_profiling():
            return nullcontext()
        return _make_event(WAIT, {"call": moments.call, **self._group})

    def record_ended(self) -> None:
        """Record how long ago calls that have ended began and ended."""
        if not self._open or not is_profiling():
            return
        with self._lock:
            ended = [moments for moments in self._open if moments.over]
            for moments in ended:
                self._open.remove(moments)
        for moments in ended:
            now = time.perf_counter_ns()
            begun, over = now - moments.begun, now - moments.over
            with _make_event(DONE, {"call": moments.call, "begun ns ago": begun, "over ns ago": over, **self._group}):
                pass


def _make_event(name: str, facts: Mapping[str, Any]) -> AbstractContextManager[Any]:
    event: AbstractContextManager[Any] = _RecordFunctionFast(name, [], dict(facts))
    return event


def _type_name(tensors: Sequence[Any]) -> str:
    """Return the name of the type of the first tensor, as PyTorch's own traces have it."""
    if not tensors:
        return "Byte"
    dtype = tensors[0].dtype
    return _TYPES.get(dtype, str(dtype).removeprefix("torch."))
