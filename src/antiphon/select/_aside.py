"""A planner in a process of its own, heard while it works: it can be stopped at any moment, may crash, and its
memory has a limit. What it found until then is kept.

Started as a program, not forked: solvers that have run here do not survive a fork.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from antiphon.core.request import Request, silent
from antiphon.core.schedule import Schedule
from antiphon.errors import AntiphonError, TimedOut
from antiphon.registry import Entry, call, find
from antiphon.select._task import told

LATE = 0.5  # seconds that a planner may overrun its budget before it is stopped
GRACE = 2.0  # seconds to hand over what is half done, after being told to stop
NUDGE = 0.1  # seconds between two times of telling
GIB = 2**30
Tell = Callable[[str], None]


class Lost(Exception):
    """The process ended without saying that it is done; says how."""


def aside(planner: str, request: Request, options: Mapping[str, Any], *, memory: float | None) -> Iterator[Schedule]:
    """What a planner yields. After the request's budget TimedOut, on Ctrl-C KeyboardInterrupt: both after what was half
    done.

    `memory`: GiB beyond what the process takes at its start. Lost where the process dies.
    """
    entry, tell, seconds = find("planner", planner), request.tell, request.budget
    child = _Child(pickle.dumps((planner, entry, replace(request, tell=silent), dict(options), memory)))
    end: float | None = None
    try:
        while True:
            try:
                kind, value = child.hear(None if end is None else end - time.monotonic())
            except KeyboardInterrupt:
                yield from child.last_words(tell)
                raise
            if kind == "late":
                yield from child.last_words(tell)
                raise TimedOut("the budget is spent")
            if kind == "found":
                yield value
            elif kind == "tell":
                tell(value)
            elif kind == "ready":
                end = None if seconds is None else time.monotonic() + seconds + LATE
            elif kind == "raised":
                raise value
            elif kind == "done" and value:
                raise TimedOut("the budget is spent")
            elif kind == "broken":
                raise Lost(value)
            elif kind == "lost":
                raise Lost(child.how_it_ended())
            else:
                return
    finally:
        child.end()


class _Child:
    """The process, and the thread that listens to it."""

    def __init__(self, order: bytes) -> None:
        here = str(Path(__file__).parents[2])
        paths = dict.fromkeys([here, *(str(Path(p or ".").resolve()) for p in sys.path)])
        self.inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from antiphon.select._aside import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for us; and the group ends with all that a planner started
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died: its listener says so
            self.process.stdin.write(order)
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                self.inbox.put(pickle.load(self.process.stdout))
        except Exception:  # it has ended, or what it wrote was cut short
            self.inbox.put(("lost", None))

    def hear(self, seconds: float | None) -> tuple[str, Any]:
        try:
            return self.inbox.get(timeout=None if seconds is None else max(seconds, 0))
        except queue.Empty:
            return "late", None

    def last_words(self, tell: Tell) -> Iterator[Schedule]:
        """What is half done, where it is handed over at once; a second Ctrl-C ends the wait."""
        tell("stopping")
        end = time.monotonic() + GRACE
        with suppress(KeyboardInterrupt):
            while time.monotonic() < end:
                with suppress(OSError):
                    self.process.send_signal(signal.SIGTERM)
                kind, value = self.hear(NUDGE)
                if kind == "found":
                    yield value
                if kind not in ("late", "tell"):
                    return

    def how_it_ended(self) -> str:
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "what the planner's process sent could not be read"
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the planner's process ended {how}"

    def end(self) -> None:
        with suppress(OSError):  # nobody is left of the group
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()


# ---- in the process ----


def serve() -> None:
    """One order from stdin, its answers to stdout. What a planner prints goes to stderr, and stdin is empty to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(0), "rb") as orders, os.fdopen(os.dup(1), "wb") as answers:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        order = pickle.load(orders)
        threading.Thread(target=_leave_with_parent, args=(orders,), daemon=True).start()
        _work(_Voice(answers), *order)


def _leave_with_parent(orders: IO[bytes]) -> None:
    orders.read()  # ends when the parent does
    os.killpg(0, signal.SIGKILL)


class _Voice:
    """Sends whole messages: a stop that comes meanwhile waits, and is told again anyway."""

    def __init__(self, answers: IO[bytes]) -> None:
        self.answers = answers
        self.sending = False

    def say(self, kind: str, value: Any = None) -> None:
        data = pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL)  # before: half a message would spoil all
        self.sending = True
        try:
            self.answers.write(data)
            self.answers.flush()
        finally:
            self.sending = False

    def stop(self, number: int, frame: Any) -> None:
        if not self.sending:
            raise TimedOut("stopped")


def _work(
    voice: _Voice, planner: str, entry: Entry, request: Request, options: Mapping[str, Any], memory: float | None
) -> None:
    try:
        if memory is not None:
            _limit(memory)
        function = entry.load()
        request = replace(request, tell=lambda text: voice.say("tell", text))
        signal.signal(signal.SIGTERM, voice.stop)
        voice.say("ready")
        begin, seconds = time.monotonic(), request.budget
        for schedule in call("planner", planner, function, options, request):
            voice.say("found", schedule)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        voice.say("done", seconds is not None and time.monotonic() - begin >= seconds)
    except AntiphonError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        voice.say("raised", error)
    except MemoryError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        voice.say("raised", TimedOut(f"its {memory or 0:g} GiB of memory are spent"))
    except BaseException as error:  # told to the parent, which keeps what was found before
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        voice.say("broken", f"the planner failed: {told(error)}")


def _limit(gib: float) -> None:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + int(gib * GIB), resource.RLIM_INFINITY))
