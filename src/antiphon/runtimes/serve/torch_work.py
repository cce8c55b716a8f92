"""PyTorch's work objects for calls in progress, and the worker threads that execute them.

`all_reduce(x, async_op=True)` returns at once with a work object; `work.wait()` returns when the call is done. A group
has one `Worker`, a thread that executes calls in order; each call is a `WorkerWork`. It holds `_end_lock` from creation
to the end of the call, so that acquiring this lock means waiting. Futures of PyTorch (`get_future`) run callbacks,
which may make calls or wait for them. So a `Pool` of other threads completes the futures: the worker never waits for
itself.
"""

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
from antiphon.runtimes.serve.torch_profiled import CallTimes, Profiled

if TYPE_CHECKING:  # the types that PyTorch declares do not fit what it calls

    class _Work: ...

else:
    _Work = dist.Work


class CollectiveFailed(AntiphonError, dist.DistBackendError):
    """A collective failed: a process has ended or is late, or the call was wrong."""

    exit_code = 1


class WaitTimedOut(CollectiveFailed):
    """A wait has timed out; the collective itself may still complete."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the collective was not done within {seconds:g} seconds")


class CpuWork(_Work):
    """Base of work objects on the CPU, where synchronizing with a stream means waiting."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        raise NotImplementedError

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()


def future_of(
    end: torch.futures.Future[None], get_result: Callable[[], list[torch.Tensor]]
) -> torch.futures.Future[list[torch.Tensor]]:
    """Return a future of the result of `get_result`, which is called once `end` is set.

    `get_result` raises the exceptions of the call. With set_exception instead, DDP would end the process.
    """
    return end.then(lambda _: get_result())


class WorkerWork(CpuWork):
    """A call that a worker executes by calling `do`. `wait` raises the exceptions of the call.

    `results`: the tensors that the call fills. `profiled`, `times`: where its begin and end are recorded.
    """

    def __init__(
        self,
        results: list[torch.Tensor],
        do: Callable[[], None],
        pool: Pool,
        profiled: Profiled | None = None,
        times: CallTimes | None = None,
    ) -> None:
        super().__init__()
        self._profiled, self._times = profiled, times  # of a call that a profiler has recorded
        self._results, self._do, self._pool = results, do, pool
        self._ended = False
        self._end_lock = threading.Lock()  # held until the end; a threading.Event takes as long as a small message
        self._end_lock.acquire()
        self._lock = threading.Lock()  # guards the end and the creation of the future
        self._error: BaseException | None = None
        self._end_future: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    # ---- for the worker ----

    def execute(self, done: Callable[[], None]) -> None:
        """Execute the call in the worker's thread. `done` is called before any wait ends."""
        raised: BaseException | None = None
        if self._times is not None:
            self._times.begin = time.perf_counter_ns()
        try:
            self._do()
        except BaseException as error:
            raised = error
        # before `end`: a waiting thread may then make the next call, which must not be queued behind this one
        done()
        self.end(raised)

    def execute_here(self) -> None:
        """Execute the call in the thread that makes it. Exceptions of signal handlers propagate to the caller."""
        if self._times is not None:
            self._times.begin = time.perf_counter_ns()
        try:
            self._do()
        except BaseException as error:
            self.end(error)
            if not isinstance(error, AntiphonError):
                raise
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Record the end of the call, release all waits, and complete the future if there is one."""
        # PyTorch expects its usual kinds of exceptions
        if error is not None and not isinstance(error, RuntimeError | ValueError | TypeError | MemoryError):
            error = CollectiveFailed(str(error) or type(error).__name__)
        if self._times is not None:
            self._times.end = time.perf_counter_ns()
        with self._lock:
            self._error = error
            del self._do  # and with it the tensors that only this call used
            self._ended = True
            end_future = self._end_future
        self._end_lock.release()
        if end_future is not None:  # callbacks of the future may wait for a collective: not in the worker
            self._pool.submit(lambda: end_future.set_result(None))

    # ---- for PyTorch ----

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end; a timeout of 0 means no limit. Raise the exception of the call, or WaitTimedOut."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not self._wait_profiled(seconds if seconds > 0 else -1):
            raise WaitTimedOut(seconds)
        if self._error is not None:
            raise self._error
        return True

    def _wait_profiled(self, seconds: float) -> bool:
        """Wait as `_wait_until_ended`, shown to the profiler that recorded the call, if any."""
        if self._profiled is None:
            return self._wait_until_ended(seconds)
        with self._profiled.waiting(self._times):
            ended = self._wait_until_ended(seconds)
        self._profiled.record_ended()  # all calls that have ended: not this one after a timeout
        return ended

    def _wait_until_ended(self, seconds: float) -> bool:
        """Wait for the end, at most these seconds (-1: forever). False after a timeout."""
        if not self._ended:
            if not self._end_lock.acquire(timeout=seconds):
                return False
            self._end_lock.release()  # for other waits
        return True

    def is_completed(self) -> bool:
        return self._ended

    def is_success(self) -> bool:
        return self._ended and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is None:
                self._end_future = torch.futures.Future()
                self._future = future_of(self._end_future, self._results_or_error)
                if self._ended:
                    self._end_future.set_result(None)
            return self._future

    def _results_or_error(self) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._results


class CoalescedWork(CpuWork):
    """Several works that complete as one, with the exception of the first work that failed."""

    def __init__(self, works: Sequence[Any], pool: Pool) -> None:
        super().__init__()
        self._works, self._pool = list(works), pool
        self._future_lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        end = time.monotonic() + seconds
        for work in self._works:
            try:
                # at least a microsecond, as 0 means no limit
                work.wait(timedelta(seconds=max(end - time.monotonic(), 1e-6)) if seconds > 0 else timedelta(0))
            except WaitTimedOut:
                raise WaitTimedOut(seconds) from None
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future that a thread of the pool completes, by waiting for all works."""
        with self._future_lock:
            if self._future is None:
                ready: torch.futures.Future[None] = torch.futures.Future()
                self._future = future_of(ready, self.result)  # in the pool's thread, `result` waits for all works
                self._pool.submit(lambda: ready.set_result(None))
            return self._future


class Pool:
    """Threads for callbacks of futures: as many as wait at the same time."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._threads = 0

    def submit(self, do: Callable[[], None]) -> None:
        """Have a thread call `do` at once."""
        with self._lock:
            # an idle thread will take it; otherwise all threads are busy, perhaps waiting for each other
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run_queue, name="antiphon-futures", daemon=True).start()
        self._queue.put(do)

    def _run_queue(self) -> None:
        while (do := self._queue.get()) is not None:
            do()
            del do  # and with it the tensors that it holds, while this thread waits for the next
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End each thread once it has nothing to do."""
        for _ in range(self._threads):
            self._queue.put(None)


class Worker:
    """A thread, started by the first call, that executes the calls of a group in the order in which they are made.

    A call that is waited for at once runs in the thread that makes it if no other is queued: handing it over and
    waiting for the result would take as long as a small call. Calls made meanwhile are queued.
    """

    def __init__(self) -> None:
        self.pool = Pool()
        self._queue: queue.SimpleQueue[WorkerWork | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._executing = threading.Lock()  # held while a call is executed
        self._caller = 0  # identifier of the thread that executes its own call, 0 if none
        self._pending = 0  # calls that were made and are not done
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(
        self,
        results: list[torch.Tensor],
        do: Callable[[], None],
        profiled: Profiled | None = None,
        times: CallTimes | None = None,
        caller_waits: bool = False,
    ) -> WorkerWork:
        """Execute or queue a call. `caller_waits`: the caller waits for it."""
        work = WorkerWork(results, do, self.pool, profiled, times)
        # A signal handler makes this call while its thread executes another: it would wait for itself.
        if self._caller == threading.get_ident():
            work.end(CollectiveFailed("a handler of a signal makes a call within a call of its thread"))
        elif not caller_waits or not self._try_here(work):
            self._enqueue_work(work)
        return work

    def _try_here(self, work: WorkerWork) -> bool:
        """Execute the call here, unless other calls precede it. Return whether it was executed.

        A signal handler may raise after any function call, even one that acquires or releases a lock: then everything
        done so far is undone.
        """
        runs_here = False
        try:
            with self._lock:
                # nothing is queued or running: execute in this thread
                if not self._pending and not self._closed:
                    self._pending += 1
                    runs_here = True
            if runs_here:
                with self._executing:
                    self._caller = threading.get_ident()
                    work.execute_here()
        finally:
            if runs_here:
                self._caller = 0
                with self._lock:
                    self._pending -= 1
        return runs_here

    def _enqueue_work(self, work: WorkerWork) -> None:
        with self._lock:
            if self._closed:
                work.end(CollectiveFailed("the process group has been destroyed"))
                return
            self._pending += 1
            self._queue.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_queue, name="antiphon", daemon=True)
                self._thread.start()

    def _note_done(self) -> None:
        with self._lock:
            self._pending -= 1

    def _run_queue(self) -> None:
        while (work := self._queue.get()) is not None:
            with self._executing:
                work.execute(self._note_done)
            del work

    def close(self, timeout: float) -> bool:
        """Refuse further calls and wait for those under way, `timeout` seconds. Return whether all are done."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        # Wait for a call that another thread executes itself. (A signal handler that closes within a call of its own
        # thread would wait for itself.)
        ended = self._caller != threading.get_ident() and self._executing.acquire(timeout=timeout)
        if ended:
            self._executing.release()
        self.pool.close()
        return ended and (self._thread is None or not self._thread.is_alive())
