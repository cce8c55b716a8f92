"""What a call on a device is to PyTorch: streams wait for it, the host does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from antiphon.runtimes.serve.torch_streams import Held, Streams
from antiphon.runtimes.serve.torch_work import CollectiveFailed, Waited

_NAP = 0.0002  # seconds between two looks, where the host is told to wait


class DeviceWork(Waited):
    """A call that our stream was asked for. `fault`: what has gone wrong, or nothing; `give_up`: ends what is under
    way."""

    def __init__(
        self, streams: Streams, results: list[torch.Tensor], fault: Callable[[], str], give_up: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._streams, self.results = streams, results
        self._fault, self._give_up = fault, give_up
        self._mark: Any = None
        self._held: Held | None = None
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def begun(self, mark: Any, held: Held) -> None:
        """All of it has been asked for."""
        self._mark, self._held = mark, held

    def _asked(self) -> Any:
        if self._mark is None:
            raise CollectiveFailed("this call belongs to several that are not all made yet")
        return self._mark

    # ---- waiting ----

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """The caller's stream waits; with a timeout the host does, too, and what takes longer is given up."""
        seconds, mark = timeout.total_seconds(), self._asked()
        if why := self._fault():
            raise CollectiveFailed(why)
        if seconds > 0:
            end = time.monotonic() + seconds
            while not self._streams.reached(mark):
                if why := self._fault():
                    raise CollectiveFailed(why)
                if time.monotonic() > end:
                    self._give_up(f"a collective was not done within {seconds:g} seconds")
                    raise CollectiveFailed(f"the collective was not done within {seconds:g} seconds")
                time.sleep(_NAP)
        self._streams.behind(mark)
        if self._held is not None:
            self._streams.waited(self._held)
        return True

    # ---- asking ----

    def is_completed(self) -> bool:
        return bool(self._fault()) or (self._mark is not None and self._streams.reached(self._mark))

    def is_success(self) -> bool:
        return not self._fault() and self._mark is not None and self._streams.reached(self._mark)

    def exception(self) -> BaseException | None:
        why = self._fault()
        return CollectiveFailed(why) if why else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Done at once for the host; streams of whoever waits for it, or of what hangs on it, wait for the call."""
        with self._lock:
            if self._future is None:
                made: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[self._streams.device])
                side = self._streams.fresh()
                with self._streams.on(side):  # where nothing else is asked for, it tells of this call alone
                    self._streams.behind(self._asked())
                    made.set_result(self.results)
                self._future = made
            return self._future
