"""What a process group tells of itself, to PyTorch and to programs that ask."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

if TYPE_CHECKING:  # PyTorch's own types fit neither all its versions nor what it passes

    class _Base:
        def __init__(self, rank: int, size: int) -> None: ...

else:
    _Base = dist.ProcessGroup

NAME = "antiphon"
DEVICES = ["cpu"]


class _Options(c10d.Backend.Options):
    """Made for whoever asks, so a copy is what it is itself."""

    def __deepcopy__(self, memo: Any) -> _Options:
        return self


class About(_Base):
    """Who knows its place, its names and its options; and how many calls it has begun (`_made`)."""

    _own: tuple[int, int]
    _places: list[int]
    _made: int
    _names: list[str]
    _store: Any
    _timeout: timedelta
    _worker: Any

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def name(self) -> str:
        return NAME

    def getRank(self) -> int:  # noqa: N802
        return self._own[0]

    def getSize(self) -> int:  # noqa: N802
        return self._own[1]

    def rank(self) -> int:
        return self._own[0]

    def size(self) -> int:
        return self._own[1]

    def getGroupName(self) -> str:  # noqa: N802
        return self._names[0]

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._names[0] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names[1]

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._names[1] = text

    @property
    def group_name(self) -> str:
        return self._names[0]

    @property
    def group_desc(self) -> str:
        return self._names[1]

    def _set_group_name(self, name: str) -> None:
        self._names[0] = name

    def _set_group_desc(self, text: str) -> None:
        self._names[1] = text

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    _set_default_timeout = set_timeout

    # ---- what those ask for who expect a backend behind the group: it is its own ----

    def _get_backend(self, _: Any) -> About:
        return self

    def _get_backend_name(self) -> str:
        return NAME

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device(name) for name in DEVICES]

    @property
    def options(self) -> Any:
        found = _Options(NAME, self._timeout)
        found.global_ranks_in_group, found.group_name = self._places, self._names[0]
        return found

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    def _set_sequence_number_for_group(self) -> None:
        self._made = 0

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives were called: the same at all processes where all called the same."""
        return self._made

    def _wait_for_pending_works(self) -> None:
        self._worker.submit([], lambda: None).wait()
