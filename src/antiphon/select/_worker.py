"""A worker process: reads its context, then tasks, from stdin, and writes what it finds to stdout, all pickled.

Started as a program of its own, not by multiprocessing: that would run the main program of the user again in
every worker, and a pool of it does not survive a worker that dies. Both ends are the same installation.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from contextlib import suppress
from typing import IO, Any

WARM = "warm"  # says that from now on only the task takes time


def serve() -> None:
    """Until stdin ends. Planners find stdin empty, and what they print goes to stderr: neither can spoil the talk."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    with os.fdopen(os.dup(0), "rb") as orders, os.fdopen(os.dup(1), "wb") as answers:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(orders, tasks), daemon=True)
        reader.start()
        context = tasks.get()
        _send(answers, None)  # ready
        task = tasks.get()
        _warm(context)
        _send(answers, WARM)
        while True:
            _do(context, task, answers)
            task = tasks.get()


def _warm(context: Any) -> None:
    from antiphon.select._task import warm

    with suppress(SystemExit):
        warm(context)


def _do(context: Any, task: Any, answers: IO[bytes]) -> None:
    """All that a task finds, and its end: also where it raises what ends processes, or finds what cannot be sent."""
    from antiphon.select._task import FAILED, MEMORY, OUT_OF_MEMORY, Done, told, work

    try:
        for message in work(context, task):
            try:
                data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                _send(answers, Done(task.index, FAILED, f"what it made cannot be handed over: {told(error)}"))
                return
            answers.write(data)
            answers.flush()
    except MemoryError:  # of what was found, on its way to the parent
        _send(answers, Done(task.index, FAILED, OUT_OF_MEMORY, MEMORY))
    except BaseException as error:
        _send(answers, Done(task.index, FAILED, told(error)))


def _read(stream: IO[bytes], tasks: queue.SimpleQueue[Any]) -> None:
    """Hand over what comes; leave at once when the parent is gone, whatever a planner is doing, with all it started.

    Likewise where a task cannot be read: the parent then starts another worker, and reports that task.
    """
    try:
        while True:
            tasks.put(pickle.load(stream))
    except Exception:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


def _send(answers: IO[bytes], message: Any) -> None:
    pickle.dump(message, answers, protocol=pickle.HIGHEST_PROTOCOL)
    answers.flush()


if __name__ == "__main__":
    serve()
