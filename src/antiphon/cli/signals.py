"""End a command on Ctrl-C or SIGTERM with one line, the exit code, and no traceback, at any time.

While a command works (`raises_interrupt` is true), a signal raises KeyboardInterrupt: the command can print its result
so far and end the processes that it has started. Before and after that, a signal ends the process at once. A
KeyboardInterrupt is lost where nobody can catch it, in `__del__` or in a callback of a C library; then the signal is
sent again a moment later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from _thread import interrupt_main, start_new_thread
from collections.abc import Callable
from types import FrameType
from typing import Any

from antiphon.cli.streams import say

_DEFAULT_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_ENDED_BY = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# While the last line is printed, a signal ends the process only if more than this many came since the start: stderr may
# be a pipe that nobody reads, and then the line is never completed.
_MAX_SIGNALS = 3
_RETRY_SECONDS = 0.01  # seconds after which a signal that could not be raised is sent again


class Signals:
    """The handlers of both signals.

    `raises_interrupt`: whether a signal raises KeyboardInterrupt; otherwise it ends the process at once. The command
    line sets it.
    """

    def __init__(self) -> None:
        self.raises_interrupt = False
        self.first = 0  # the signal that came first
        self._count = 0  # signals so far, without those that this class sent again
        self._is_printing = False  # whether the last line is being printed
        self._is_printed = False  # whether it has been printed
        self._is_resent = False  # whether the next signal is one that this class sent again: then do not count it
        # those that made this object: the command's process and its main thread
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._previous: dict[int, Any] = {}  # signal -> the handler that ours replaced
        self._previous_hook: Callable[[sys.UnraisableHookArgs], Any] | None = None  # None: ours is not installed

    def install(self) -> None:
        """Install the handlers.

        They replace only Python's default handlers and those of `early_signals`. A signal that is ignored, as Ctrl-C is
        in a background job of a shell, remains ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in _DEFAULT_HANDLERS.items():
            current = signal.getsignal(number)
            is_early = getattr(current, "__module__", "") == "antiphon.cli.early_signals"
            if current == default or is_early:
                self._previous[number] = signal.signal(number, self._on_signal)
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable

    def restore(self) -> None:
        """Install the handlers again that were there before."""
        for number, before in self._previous.items():
            signal.signal(number, before)
        if self._previous_hook is not None:
            sys.unraisablehook, self._previous_hook = self._previous_hook, None

    def exit_code(self) -> int:
        return 128 + (self.first or signal.SIGINT)  # as shells report a signal

    def text(self) -> str:
        """Return "interrupted" or "terminated"."""
        return _ENDED_BY[signal.Signals(self.first or signal.SIGINT)]

    def print_last_line(self, message: str) -> None:
        """Print the last line of a command; a later signal adds no other line. `raises_interrupt` must be false."""
        self._is_printing = True  # a signal mask would not do: another thread might get the signal
        say(message)
        self._is_printed = True
        self._is_printing = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise KeyboardInterrupt, or end the process with one line."""
        if os.getpid() != self._process:  # a fork that has not set its own handler: its parent prints the line
            os._exit(128 + number)
        if not self._is_resent:
            self._count += 1
            self.first = self.first or number
        self._is_resent = False
        if self._is_printing and self._count <= _MAX_SIGNALS:
            return  # the line being printed is the answer to this signal, too
        is_importing = _is_importing(frame)
        # During an import nothing can be raised; a user who repeats the signal does not want to wait for its end.
        if not self.raises_interrupt or (is_importing and self._count > 1):
            if not (self._is_printing or self._is_printed):  # a second write would block as the first does
                self._is_printing = True
                with contextlib.suppress(OSError):
                    # not print: the signal may have interrupted one, whose lock this thread holds
                    os.write(2, f"antiphon: {self.text()}\n".encode())
            os._exit(self.exit_code())
        if is_importing:  # a half-loaded library may turn KeyboardInterrupt into any other error, or crash
            start_new_thread(self._resend, (number,))
            return
        raise KeyboardInterrupt

    def _resend(self, number: int) -> None:
        """Send the signal to the main thread again after a moment. Runs in a thread of its own."""
        time.sleep(_RETRY_SECONDS)
        self._is_resent = True
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._thread, number)  # a real signal: it interrupts a waiting system call
        else:
            interrupt_main(signal.Signals(number))

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Handle an exception that nobody could catch, raised in `__del__` or in a callback of a C library.

        `sys.unraisablehook` calls this. If it is the KeyboardInterrupt of the first signal, the signal is sent again; a
        user who sees no effect of a later one sends another. After a signal, other exceptions are not reported.
        """
        if not self.first:  # no signal yet: report the exception as Python does
            (self._previous_hook or sys.__unraisablehook__)(unraisable)
        elif issubclass(unraisable.exc_type, KeyboardInterrupt) and self._count == 1:
            start_new_thread(self._resend, (self.first,))


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import is on the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
