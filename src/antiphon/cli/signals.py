"""Ctrl-C and SIGTERM end a command with one line, the exit code, and no traceback, at any time.

While a command works (`breaks` is true) they raise KeyboardInterrupt, so that it can print its result so far and end
the processes that it has started. Before and after that they end the process at once. A KeyboardInterrupt can get lost
where nobody can catch it, in `__del__` or a callback of C; then the signal is sent again a moment later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from _thread import start_new_thread
from types import FrameType
from typing import Any

from antiphon.cli.streams import say

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_TEXT = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_MAX_SIGNALS = 3  # until then the last line is written to its end, even if its reader is stuck
_RETRY = 0.01  # seconds after which a signal that could not be raised is sent again


class Signals:
    """The handlers of both signals. `breaks`: whether they raise, or end the process at once."""

    def __init__(self) -> None:
        self.breaks = False
        self.first = 0  # the signal that came first
        self._times = 0
        self._telling = self._told = False
        self._again = False
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook

    def hear(self) -> None:
        """Install the handlers. Another handler than Python's stays: a shell's background job ignores Ctrl-C."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, usual in _USUAL.items():
            current = signal.getsignal(number)
            is_early = getattr(current, "__module__", "") == "antiphon.cli.early_signals"  # set while modules load
            if current == usual or is_early:
                self._before[number] = signal.signal(number, self._come)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._lost

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before:
            sys.unraisablehook = self._hook

    def exit_code(self) -> int:
        return 128 + (self.first or signal.SIGINT)

    def text(self) -> str:
        return _TEXT[signal.Signals(self.first or signal.SIGINT)]

    def tell(self, message: str) -> None:
        """Print the last line of a command; a later signal adds no other line."""
        self._telling = True  # a signal mask would not do: another thread might get the signal
        say(message)
        self._told = True
        self._telling = False

    def _come(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork that has not set its own handler: its parent prints the line
            os._exit(128 + number)
        if not self._again:
            self._times += 1
            self.first = self.first or number
        self._again = False
        if self._telling and self._times <= _MAX_SIGNALS:  # the line that is being written counts for this signal, too
            return
        importing = _importing(frame)
        if not self.breaks or (importing and self._times > 1):
            if not self._told:
                self._telling = True
                with contextlib.suppress(OSError):  # print may have been in the middle of a line
                    os.write(2, f"antiphon: {self.text()}\n".encode())
            os._exit(self.exit_code())
        if importing:  # a half-loaded library may turn it into any error, or crash
            start_new_thread(self._later, (number,))
            return
        raise KeyboardInterrupt

    def _later(self, number: int) -> None:
        time.sleep(_RETRY)
        self._again = True
        signal.pthread_kill(self._thread, number)  # a real signal: it interrupts a waiting system call

    def _lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Handle an exception that nobody could catch (raised in __del__, or in a callback of a C library)."""
        if not self.first:
            self._hook(unraisable)
        elif issubclass(unraisable.exc_type, KeyboardInterrupt) and self._times == 1:
            start_new_thread(self._later, (self.first,))


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
