"""A worker process: reads its context, then tasks, from stdin, and writes what it finds to stdout, all pickled.

Started as a program of its own, not by multiprocessing: that would run the main program of the user again in
every worker, and a pool of it does not survive a worker that dies. Both ends are the same installation.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from typing import IO, Any


def serve() -> None:
    """Until stdin ends. What planners print goes to stderr, so that it cannot spoil the answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(sys.stdin.buffer, tasks), daemon=True)
        reader.start()
        context = tasks.get()
        from antiphon.select._task import work

        _send(answers, None)  # ready
        while True:
            for message in work(context, tasks.get()):
                _send(answers, message)


def _read(stream: IO[bytes], tasks: queue.SimpleQueue[Any]) -> None:
    """Hand over what comes; leave at once when the parent is gone, whatever a planner is doing."""
    try:
        while True:
            tasks.put(pickle.load(stream))
    except (EOFError, OSError):
        os._exit(0)


def _send(answers: IO[bytes], message: Any) -> None:
    pickle.dump(message, answers, protocol=pickle.HIGHEST_PROTOCOL)
    answers.flush()


if __name__ == "__main__":
    serve()
