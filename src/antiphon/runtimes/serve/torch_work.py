"""What a collective under way is to PyTorch, and the threads that carry it out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from antiphon.errors import AntiphonError
from antiphon.runtimes.serve.torch_profiled import Moments, Profiled

if TYPE_CHECKING:

    class _Work: ...

else:
    _Work = dist.Work


class CollectiveFailed(AntiphonError, dist.DistBackendError):
    """A collective could not be carried out: a process is gone or late, or the call was wrong."""

    exit_code = 1


class NotYet(CollectiveFailed):
    """The time that who waits has given is over; it may be done later."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} was not done within {seconds:g} seconds")
        self.what = what


class Waited(_Work):
    """For PyTorch, what is asked of a device is waited for, too."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        raise NotImplementedError

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()


def promised(
    base: torch.futures.Future[None], find: Callable[[], list[torch.Tensor]]
) -> torch.futures.Future[list[torch.Tensor]]:
    """What `find` says once `base` is set. What it raises is raised in a callback: an exception that is set by
    set_exception ends the process in DDP."""
    return base.then(lambda _: find())


class WorkerWork(Waited):
    """A call that a worker carries out. What it raised is raised to whoever waits."""

    def __init__(
        self,
        results: list[torch.Tensor],
        do: Callable[[], None],
        pool: Pool,
        profiled: Profiled | None = None,
        moments: Moments | None = None,
    ) -> None:
        super().__init__()
        self._profiled, self._moments = profiled, moments  # of a call that a profiler has heard of
        self._results, self._do, self._pool = results, do, pool
        self._over = False
        self._under_way = threading.Lock()  # which is held until then: an event takes as long as a small message
        self._under_way.acquire()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._base: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    # ---- for the worker ----

    def carry_out(self, done: Callable[[], None]) -> None:
        """`done`: before anybody learns of it."""
        raised: BaseException | None = None
        if self._moments is not None:
            self._moments.begun = time.perf_counter_ns()
        try:
            self._do()
        except BaseException as error:
            raised = error
        done()
        self.end(raised)

    def carry_out_here(self) -> None:
        """By who makes it. What is no failure of the call he hears of at once: a handler of a signal has raised it."""
        if self._moments is not None:
            self._moments.begun = time.perf_counter_ns()
        try:
            self._do()
        except BaseException as error:
            self.end(error)
            if not isinstance(error, AntiphonError):
                raise
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, RuntimeError | ValueError | TypeError | MemoryError):
            error = CollectiveFailed(str(error) or type(error).__name__)
        if self._moments is not None:
            self._moments.over = time.perf_counter_ns()
        with self._lock:
            self._error = error
            del self._do  # and with it the tensors that only this call needed
            self._over = True
            base = self._base
        self._under_way.release()
        if base is not None:  # what hangs on the future may itself wait for a collective: not in the worker
            self._pool.submit(lambda: base.set_result(None))

    # ---- for PyTorch ----

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not self._waited(seconds if seconds > 0 else -1):
            raise NotYet("the collective", seconds)
        if self._error is not None:
            raise self._error
        return True

    def _waited(self, seconds: float) -> bool:
        if self._profiled is None:
            return self._ended(seconds)
        with self._profiled.waiting(self._moments):
            over = self._ended(seconds)
        self._profiled.tell()
        return over

    def _ended(self, seconds: float) -> bool:
        """Within so many; -1: whenever it is."""
        if not self._over:
            if not self._under_way.acquire(timeout=seconds):
                return False
            self._under_way.release()  # for others who wait
        return True

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is None:
                self._base = torch.futures.Future()
                self._future = promised(self._base, self._outcome)
                if self._over:
                    self._base.set_result(None)
            return self._future

    def _outcome(self) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._results


class Together(Waited):
    """Several works that complete as one. Its exception is that of the first work that failed."""

    def __init__(self, works: Sequence[Any], pool: Pool) -> None:
        super().__init__()
        self._works, self._pool = list(works), pool
        self._future_lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        own = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        end = time.monotonic() + own
        for one in self._works:
            try:
                one.wait(timedelta(seconds=max(end - time.monotonic(), 1e-6)) if own > 0 else timedelta(0))
            except NotYet as late:
                raise NotYet(late.what, own) from None
        return True

    def is_completed(self) -> bool:
        return all(one.is_completed() for one in self._works)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return next((error for one in self._works if (error := one.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for one in self._works for tensor in one.result()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future that a thread of the pool completes, by waiting for all works."""
        with self._future_lock:
            if self._future is None:
                base: torch.futures.Future[None] = torch.futures.Future()
                self._future = promised(base, self.result)
                self._pool.submit(lambda: base.set_result(None))
            return self._future


class Pool:
    """Threads for whatever hangs on futures: as many as there are that wait at one time."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._threads = 0

    def submit(self, do: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run, name="antiphon-futures", daemon=True).start()
        self._todo.put(do)

    def _run(self) -> None:
        while (do := self._todo.get()) is not None:
            do()
            del do
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)


class Worker:
    """One thread that carries out the calls of a group in the order in which they were made; from the first one on.

    A call that is waited for at once is carried out by who makes it, where none is before it: to hand it over and to
    hear that it is done takes as long as a small call. Others that come meanwhile wait their turn.
    """

    def __init__(self) -> None:
        self.pool = Pool()
        self._todo: queue.SimpleQueue[WorkerWork | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # of who carries out a call
        self._caller = 0  # the thread that carries out its own
        self._under_way = 0  # calls that are made and not done
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(
        self,
        results: list[torch.Tensor],
        do: Callable[[], None],
        profiled: Profiled | None = None,
        moments: Moments | None = None,
        at_once: bool = False,
    ) -> WorkerWork:
        """`at_once`: it is waited for."""
        work = WorkerWork(results, do, self.pool, profiled, moments)
        if self._caller == threading.get_ident():
            work.end(CollectiveFailed("a handler of a signal makes a call within a call of its thread"))
        elif not at_once or not self._carried_out_here(work):
            self._hand_over(work)
        return work

    def _carried_out_here(self, work: WorkerWork) -> bool:
        """Not where other calls are before it. A handler of a signal may raise after any call of a function, also one
        that takes or lets go of a lock: whatever has been done until then is undone."""
        here = False
        try:
            with self._lock:
                if not self._under_way and not self._closed:
                    self._under_way += 1
                    here = True
            if here:
                with self._turn:
                    self._caller = threading.get_ident()
                    work.carry_out_here()
        finally:
            if here:
                self._caller = 0
                with self._lock:
                    self._under_way -= 1
        return here

    def _hand_over(self, work: WorkerWork) -> None:
        with self._lock:
            if self._closed:
                work.end(CollectiveFailed("the process group has been destroyed"))
                return
            self._under_way += 1
            self._todo.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="antiphon", daemon=True)
                self._thread.start()

    def _done(self) -> None:
        with self._lock:
            self._under_way -= 1

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            with self._turn:
                work.carry_out(self._done)
            del work

    def close(self, patience: float) -> bool:
        """No further calls; those under way are waited for. Whether all are done."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._todo.put(None)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(patience)
        over = self._caller != threading.get_ident() and self._turn.acquire(timeout=patience)
        if over:  # no other thread carries out a call of its own, nor does this one, in a handler of a signal
            self._turn.release()
        self.pool.close()
        return over and (self._thread is None or not self._thread.is_alive())
