"""The group of gloo that serves what no plan is for: made by those processes that need it, when they do."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class Late:
    """Its pairs of processes connect when they first have something for each other, so that nobody waits for others.

    Two that send and receive are enough. Most groups never need it, nor its threads and sockets."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._given, self._timeout = (store, rank, size), timeout
        self._lock = threading.Lock()
        self._group: Any = None

    def __call__(self) -> Any:
        with self._lock:  # the worker's thread and the program's may ask at one moment
            if self._group is None:
                options = dist.ProcessGroupGloo._Options()
                options._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=True)]
                options._timeout = self._timeout
                self._group = dist.ProcessGroupGloo(*self._given, options)
            return self._group
