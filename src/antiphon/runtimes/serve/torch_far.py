"""The group of PyTorch's own, of NCCL, that serves tensors which are not in the memory of the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


def devices() -> list[str]:
    """Those that the backend is for. Counting GPUs starts nothing on them, so processes may still be made by fork."""
    there = torch.backends.cuda.is_built() and torch.cuda.device_count() > 0
    return ["cpu", "cuda"] if there else ["cpu"]


class Far:
    """Calls by the names that backends have in PyTorch 2.13, which are not all those of process groups: the single ones
    are `_allgather_base` and `_reduce_scatter_base`; several at once are what is started between two marks.

    `later`: a work out of something to wait for.
    """

    def __init__(self, group: Any, later: Callable[[list[Any], Callable[[], None]], Any]) -> None:
        self.group, self._later = group, later

    def call(self, name: str, *arguments: Any) -> Any:
        """The last argument: the options, or None."""
        given = arguments[:-1] if arguments[-1] is None else arguments
        return getattr(self.group, name)(*given)

    def several(self, name: str, outputs: Sequence[Any], inputs: Sequence[Any], options: Any) -> Any:
        pairs = list(zip(outputs, inputs, strict=True))
        if len(pairs) == 1:
            return self.call(name, *pairs[0], options)
        together = self.start()
        works = [self.call(name, output, given, options) for output, given in pairs]
        return self.group._end_coalescing() if together else self._later(list(outputs), lambda: _wait_for(works))

    def start(self) -> bool:
        """What follows is one; False where the group has no such thing."""
        if self.group.supports_coalescing:
            self.group._start_coalescing()
        return bool(self.group.supports_coalescing)


def _wait_for(works: Sequence[Any]) -> None:
    for one in works:
        one.wait()


def nccl(store: Any, rank: int, size: int, timeout: Any) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
