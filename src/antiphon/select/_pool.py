"""Do many tasks: the first few in this process, what is left in worker processes, one per core.

A candidate that overruns its budget is stopped, one that kills its process costs only that process; both are
reported, and the rest goes on. What is found does not depend on where it was found.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from antiphon.select._task import BUDGET, CRASH, FAILED, TIMED_OUT, Context, Done, Message, Task, warm, work
from antiphon.select._worker import WARM

HEAD_START = 2.0  # seconds of work in this process before others are started: starting them takes about as long
START_LIMIT = 120.0  # seconds for a worker to get ready, and for a model to load or compile
BOUND_LIMIT = 120.0  # seconds for the bounds of a collective
LOOK_AGAIN = 1.0  # seconds until it is looked whether workers live that said nothing
Ready = Callable[[Task], Task]


def limit_of(context: Context, task: Task) -> float:
    """Seconds after which a task is stopped: a little more than a planner is given to stop by itself."""
    return BOUND_LIMIT if task.entry is None else 1.2 * context.budget * task.patience + 0.5


def overran(context: Context, task: Task) -> Done:
    what = f"stopped after {limit_of(context, task):.3g} s"
    more = f"; give it more with a greater budget (now {context.budget:g} s)" if task.entry is not None else ""
    return Done(task.index, TIMED_OUT, what + more, BUDGET)


def run_tasks(
    context: Context,
    tasks: Sequence[Task],
    workers: int,
    tell: Callable[[Message], None],
    ready: Ready = lambda task: task,
) -> None:
    """Do all tasks; `tell` hears, in this thread, of everything as it is found. workers=0: none but this process.

    Tasks that need no process of their own come first. Those of planners that are not built in, or that ask for it,
    always get one. `ready` may change a task at the moment it begins (its patience, by what was found meanwhile).
    """
    left = deque(sorted(tasks, key=lambda task: (task.entry is None, task.index)))  # candidates first
    if workers == 0 or _can_interrupt():
        with suppress(_OverrunError), _interrupted_after(START_LIMIT):
            warm(context)
        begin = time.monotonic()
        for _ in range(len(left)):
            if workers and time.monotonic() - begin > HEAD_START:
                break
            task = left.popleft()
            if workers and _apart(task):
                left.append(task)
                continue
            _here(context, ready(task), tell)
    if left:
        longest_first = sorted(left, key=lambda task: (task.entry is not None, task.index))  # bounds may take long
        _Pool(context, longest_first, tell, ready).run(min(workers, len(longest_first)))


def _apart(task: Task) -> bool:
    """Whether it must not share this process."""
    entry = task.entry
    return entry is not None and (not entry.where.startswith("antiphon.") or bool(entry.can.get("process")))


# ---- in this process ----


class _OverrunError(BaseException):
    """Not an Exception, so that no planner takes it for one of its own."""


def _can_interrupt() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is not None
    )


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Ends what is inside by _OverrunError. An alarm that somebody else has set is put back, less the time spent."""
    if not _can_interrupt():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _OverrunError

    begin = time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begin), 1e-3), interval)


def _here(context: Context, task: Task, tell: Callable[[Message], None]) -> None:
    done = False
    try:
        with _interrupted_after(limit_of(context, task)):
            for message in work(context, task):
                done = isinstance(message, Done)
                tell(message)
    except _OverrunError:
        if not done:
            tell(overran(context, task))


# ---- in worker processes ----


class _Worker:
    """A process, the thread that listens to it, and what it is busy with."""

    def __init__(self, number: int, context: bytes, inbox: queue.SimpleQueue[Any]) -> None:
        here = str(Path(__file__).parents[2])
        paths = [here, *(str(Path(p or ".").resolve()) for p in sys.path)]
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.number = number
        self.task: Task | None = None
        self.warm = False
        self.deadline = time.monotonic() + START_LIMIT
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from antiphon.select._worker import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **single, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
            start_new_session=True,  # a group of its own, which ends with all that a planner started
        )  # fmt: skip
        self.inbox = inbox
        threading.Thread(target=self._listen, daemon=True).start()
        self._write(context)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                self.inbox.put((self.number, True, pickle.load(self.process.stdout)))
        except Exception:  # it has ended, or what it wrote was cut short
            self.inbox.put((self.number, False, None))

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died: its listener says so
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def give(self, task: Task, limit: float) -> None:
        """`limit` holds once the worker is warm; until then it may take as long as to get ready."""
        self.task, self.deadline = task, time.monotonic() + (limit if self.warm else START_LIMIT)
        self._write(pickle.dumps(task))

    def kill(self) -> None:
        with suppress(OSError):  # nobody is left of the group
            os.killpg(self.process.pid, signal.SIGKILL)

    def how_it_ended(self) -> str:
        """In words; it may still live, having closed its pipe or sent what cannot be read."""
        try:
            code = self.process.wait(LOOK_AGAIN)
        except subprocess.TimeoutExpired:
            return "what its process sent could not be read"
        if code == -signal.SIGKILL:
            return f"its process ended by signal {-code}, as computers end what takes too much memory"
        return f"its process ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

    def end(self) -> None:
        self.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream is not None and stream is self.process.stdin:
                    stream.close()


class _Pool:
    def __init__(self, context: Context, tasks: Sequence[Task], tell: Callable[[Message], None], ready: Ready) -> None:
        self.context, self.left, self.tell, self.ready = context, deque(tasks), tell, ready
        self.packed = pickle.dumps(context)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.workers: dict[int, _Worker] = {}
        self.started = 0
        self.idle_deaths = 0

    def run(self, size: int) -> None:
        try:
            for _ in range(size):
                self._start()
            while self.workers:
                self._step()
        finally:
            for worker in self.workers.values():
                worker.end()

    def _start(self) -> None:
        self.workers[self.started] = _Worker(self.started, self.packed, self.inbox)
        self.started += 1

    def _step(self) -> None:
        """Hear one message, or find that a deadline has passed."""
        nearest = min(worker.deadline for worker in self.workers.values())
        try:
            number, alive, message = self.inbox.get(timeout=min(max(nearest - time.monotonic(), 0.001), LOOK_AGAIN))
        except queue.Empty:
            for quiet in self.workers.values():
                if quiet.process.poll() is not None:  # it has ended, but a child that it forked holds its pipe
                    quiet.kill()
            self._stop_late()
            return
        worker = self.workers.get(number)
        if worker is None:
            return  # stopped meanwhile
        if not alive:
            self._bury(worker)
        elif message is None:
            self._feed(worker)
        elif message == WARM:
            worker.warm = True
            if worker.task is not None:
                worker.deadline = time.monotonic() + limit_of(self.context, worker.task)
        else:
            self.tell(message)
            if isinstance(message, Done):
                self._feed(worker)
        self._stop_late()

    def _feed(self, worker: _Worker) -> None:
        worker.task = None
        if self.left:
            task = self.ready(self.left.popleft())
            worker.give(task, limit_of(self.context, task))
        else:
            del self.workers[worker.number]
            worker.end()

    def _stop_late(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self.workers.values() if w.deadline < now]:
            self._replace(worker, self._late(worker, worker.task) if worker.task is not None else None)

    def _late(self, worker: _Worker, task: Task) -> Done:
        """A process that never got ready has not begun with its task: no budget ended that."""
        if worker.warm:
            return overran(self.context, task)
        return Done(task.index, FAILED, f"its process was not ready within {START_LIMIT:g} s", CRASH)

    def _bury(self, worker: _Worker) -> None:
        how, task = worker.how_it_ended(), worker.task
        self._replace(worker, Done(task.index, FAILED, how, CRASH) if task is not None else None)

    def _replace(self, worker: _Worker, told: Done | None) -> None:
        del self.workers[worker.number]
        worker.end()
        if told is not None:
            self.tell(told)
        else:
            self.idle_deaths += 1
        if self.left and self.idle_deaths < 3:
            self._start()
        elif self.left and not self.workers:  # no worker ever gets ready here: better slowly than not at all
            while self.left:
                _here(self.context, self.ready(self.left.popleft()), self.tell)
