"""Streams of a device, in the words that PyTorch has for every accelerator: all that our calls ask of a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch


class Streams:
    """Those of one device. Nothing here makes the host wait but `through` and `device_through`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: deque[Held] = deque()

    # ---- streams ----

    def current(self) -> Any:
        """That of the thread which calls."""
        return torch.accelerator.current_stream(self.device)

    def fresh(self) -> Any:
        return torch.Stream(device=self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What is asked for meanwhile is asked for there."""
        found: AbstractContextManager[Any] = stream
        return found

    def at_device(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = torch.accelerator.device_index(self.device.index)
        return found

    def pointer(self, stream: Any) -> int:
        """As the libraries of the device know it."""
        return int(stream.native_handle or 0)

    def captured(self) -> bool:
        """Whether the caller's stream is, into a graph."""
        return bool(self.current().is_capturing())

    # ---- events ----

    def before(self, ours: Any) -> None:
        """What is asked for on our stream from now on waits for all that the caller's was asked for."""
        ours.wait_event(self.current().record_event())

    def mark(self, ours: Any) -> Any:
        """The end of what our stream was asked for."""
        return ours.record_event()

    def behind(self, mark: Any) -> None:
        """What is asked for on the caller's stream from now on waits for that."""
        self.current().wait_event(mark)

    def reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def through(self, mark: Any) -> None:
        mark.synchronize()

    # ---- memory ----

    def hold(self, mark: Any, tensors: Sequence[Any]) -> Held:
        """Until the mark is reached nobody else gets their memory: who lets go of them need not wait for us.

        What is captured is in a graph, whose memory is the program's to keep, and its marks may not be asked."""
        held = Held(mark, self.current(), tensors)
        if not self.captured():
            self._held.append(held)
        return held

    def waited(self, held: Held) -> None:
        """The caller's stream waits for them. Where it is the one that they are of, what it does with their memory
        later comes later."""
        if held.stream == self.current():
            held.tensors = ()

    def let_go(self) -> None:
        """Of what is not needed any more. While a graph is captured nothing may be asked of any mark."""
        if self.captured():
            return
        while self._held and (not self._held[0].tensors or self.reached(self._held[0].mark)):
            self._held.popleft()

    def forget(self) -> None:
        self._held.clear()


@dataclass
class Held:
    """Tensors that were given from a stream, in use until a mark."""

    mark: Any
    stream: Any
    tensors: Sequence[Any]
