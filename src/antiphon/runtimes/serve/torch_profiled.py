"""What PyTorch's profiler hears of the calls of a group (docs/replay.md): which was made, when it ran, who waited.

A profiler hears the thread that it was started in, and those that carry on its work; what carries out calls is none of
these. So when a call ran is told by a later event of a thread that is heard: the next call, or the end of a wait.
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


def listening() -> bool:
    """Whether a profiler hears this thread."""
    return bool(torch.autograd._profiler_enabled())


class Moments:
    """When a call ran, in nanoseconds of `time.perf_counter_ns`; who carries it out writes them."""

    __slots__ = ("begun", "call", "over")

    def __init__(self, call: int) -> None:
        self.call, self.begun, self.over = call, 0, 0


class Profiled:
    """The calls of a group that a profiler has heard of."""

    def __init__(self, size: int, places: Sequence[int]) -> None:
        self._group: dict[str, Any] = {"Group size": size, "Process Group Ranks": str(list(places))}
        self._lock = threading.Lock()
        self._open: deque[Moments] = deque()

    def called(self, kind: str, call: int, name: str, given: Sequence[Any], results: Sequence[Any]) -> Moments | None:
        """Where nobody listens None, and next to nothing is done."""
        if not listening():
            return None
        self._group["Process Group Name"] = name
        self.tell()
        told = {
            "call": call,
            "Collective name": kind,
            "In msg nelems": sum(one.numel() for one in given),
            "Out msg nelems": sum(one.numel() for one in results),
            "dtype": _type(given, results),
            **self._group,
        }
        with _event(CALLED + kind, told):
            moments = Moments(call)
        with self._lock:
            self._open.append(moments)
        return moments

    def waiting(self, moments: Moments | None) -> AbstractContextManager[Any]:
        if moments is None or not listening():
            return nullcontext()
        return _event(WAIT, {"call": moments.call, **self._group})

    def tell(self) -> None:
        """Of those that are over how long ago they began and ended."""
        if not self._open or not listening():
            return
        with self._lock:
            done = [one for one in self._open if one.over]
            for one in done:
                self._open.remove(one)
        for one in done:
            now = time.perf_counter_ns()
            told = {"call": one.call, "begun ns ago": now - one.begun, "over ns ago": now - one.over, **self._group}
            with _event(DONE, told):
                pass


def _event(name: str, told: Mapping[str, Any]) -> AbstractContextManager[Any]:
    found: AbstractContextManager[Any] = _RecordFunctionFast(name, [], dict(told))
    return found


def _type(given: Sequence[Any], results: Sequence[Any]) -> str:
    one = next(iter([*given, *results]), None)
    return "Byte" if one is None else _TYPES.get(one.dtype, str(one.dtype).removeprefix("torch."))
