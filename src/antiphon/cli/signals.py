"""What Ctrl-C and SIGTERM do to a command, from its first line to its last: one line, the exit code, no traceback.

While a command works they raise KeyboardInterrupt, so that what it has found is kept and what it has begun is ended.
Before and after that they end the process at once.
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
_SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_PATIENCE = 3  # signals, after which even a line that nobody reads is given up
_AGAIN = 0.01  # seconds after which a signal that could not be raised is tried again


class Signals:
    """Both signals of this process. `breaks`: whether they raise, or end the process at once."""

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
        """From now on; what somebody else has set (a shell's background job ignores Ctrl-C) stays."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, usual in _USUAL.items():
            there = signal.getsignal(number)
            early = getattr(there, "__module__", "") == "antiphon.cli.early_signals"  # while the command was loaded
            if there == usual or early:
                self._before[number] = signal.signal(number, self._come)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._lost

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before:
            sys.unraisablehook = self._hook

    def exit_code(self) -> int:
        return 128 + (self.first or signal.SIGINT)

    def said(self) -> str:
        return _SAID[signal.Signals(self.first or signal.SIGINT)]

    def tell(self, message: str) -> None:
        """The line that a command ends with; a signal that comes later adds no other."""
        self._telling = True  # not a mask: that of this thread keeps no other from taking the signal for it
        say(message)
        self._told = True
        self._telling = False

    def _come(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork that has not yet said what to do: its parent speaks
            os._exit(128 + number)
        if not self._again:
            self._times += 1
            self.first = self.first or number
        self._again = False
        if self._telling and self._times <= _PATIENCE:  # the line that is being written stands for this one, too
            return
        importing = _importing(frame)
        if not self.breaks or (importing and self._times > 1):
            if not self._told:
                self._telling = True
                with contextlib.suppress(OSError):  # print may have been in the middle of a line
                    os.write(2, f"antiphon: {self.said()}\n".encode())
            os._exit(self.exit_code())
        if importing:  # a library that is half loaded may make any error of it, or crash
            start_new_thread(self._later, (number,))
            return
        raise KeyboardInterrupt

    def _later(self, number: int) -> None:
        time.sleep(_AGAIN)
        self._again = True
        signal.pthread_kill(self._thread, number)  # a real one: it ends what the thread waits for

    def _lost(self, what: sys.UnraisableHookArgs) -> None:
        """What was raised where nobody could catch it (in __del__, in what a C library calls)."""
        if not self.first:
            self._hook(what)
        elif issubclass(what.exc_type, KeyboardInterrupt) and self._times == 1:
            start_new_thread(self._later, (self.first,))


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
