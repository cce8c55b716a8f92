"""Call Antiphon on a system that has what Python has everywhere, and nothing that only POSIX has: for test_portable.py.

It stands for Windows: modules and names of `os`, `signal` and `select` that are missing there are removed before
Antiphon is imported; other packages, which bring their own Windows builds, are imported first. Prints a line per
command.
"""

import concurrent.futures.process  # noqa: F401
import ctypes
import importlib
import importlib.abc
import multiprocessing.pool  # noqa: F401
import os
import select
import signal
import subprocess
import sys
import tempfile  # noqa: F401
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

for other in ("numpy", "scipy.optimize", "scipy.sparse.csgraph", "igraph", "msgspec", "typer.main", "rich.progress",
              "pysat.solvers", "ml_dtypes"):  # fmt: skip
    importlib.import_module(other)
MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "posix", "readline", "curses")
# of the names in os and signal that are missing on Windows, those that Python's own modules do not use here
NAMES: dict[ModuleType, str] = {
    os: "fork forkpty posix_spawn posix_spawnp register_at_fork wait wait3 wait4 waitid WNOHANG killpg getpgid setpgid "
    "getpgrp setsid getsid geteuid getuid getegid getgid getgroups getresuid sched_getaffinity sched_setaffinity "
    "sched_yield nice getpriority getloadavg uname sysconf confstr fchmod fchown chown lchown mkfifo mknod openpty "
    "readv writev pread pwrite preadv pwritev sendfile statvfs fstatvfs set_blocking get_blocking O_NONBLOCK "
    "O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_NOCTTY O_SYNC eventfd memfd_create pidfd_open setns unshare pipe2",
    signal: "SIGALRM SIGVTALRM SIGPROF SIGKILL SIGCHLD SIGUSR1 SIGUSR2 SIGHUP SIGPIPE SIGTSTP SIGCONT SIGXCPU SIGQUIT "
    "setitimer getitimer ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF alarm pause pthread_kill pthread_sigmask sigwait "
    "siginterrupt",
    select: "poll epoll",
}  # fmt: skip


class Refusal(importlib.abc.MetaPathFinder):
    """Refuses to import modules that only POSIX has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} (only POSIX has it)", name=name)


def become_windows() -> None:
    sys.meta_path.insert(0, Refusal())
    for module in (os, signal):  # Python's own file for Windows does without, this one does not
        setattr(subprocess, module.__name__, SimpleNamespace(**vars(module)))
    for name in MODULES:
        sys.modules.pop(name, None)
    for module, names in NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    library = ctypes.CDLL.__init__

    def refuse_none(self: Any, name: Any, *arguments: Any, **options: Any) -> None:
        if name is None:
            raise TypeError("there is no library without a name")
        library(self, name, *arguments, **options)

    ctypes.CDLL.__init__ = refuse_none  # type: ignore[method-assign]


def main(folder: str) -> None:
    os.chdir(folder)
    become_windows()
    from antiphon.cli import run

    for line in sys.stdin.read().splitlines():
        code = run(line.split())
        print(f"== {code} {line}", flush=True)
    check_budgets()


def check_budgets() -> None:
    """Budgets hold without processes: with grace the job returns what it has, without it ends at once."""
    import time

    from antiphon.errors import TimedOut
    from antiphon.isolate import PoolTerms, Sent, Stopped, as_done, run_in_child, stream_job

    def spin(seconds: float, send: Callable[[str], None]) -> str:
        try:
            end = time.process_time() + seconds
            while time.process_time() < end:
                pass
        except TimedOut:
            send("the best so far")
        return "done"

    def ends(seconds: float, budget: float, grace: float) -> list[Any]:
        terms = PoolTerms[float](spin, seconds=lambda job: budget, grace=grace)
        events = [event for _, event in as_done([seconds], terms)]
        return [event.value if isinstance(event, Sent) else event.result for event in events]

    assert ends(0.01, 10, 2) == ["done"]
    message, end = ends(60, 0.05, 2)
    assert message == "the best so far"
    assert isinstance(end, Stopped)
    (end,) = ends(60, 0.05, 0)
    assert isinstance(end, Stopped)
    assert run_in_child(lambda: 7, seconds=5) == 7
    assert list(stream_job(1, PoolTerms[int](lambda job, send: send(job)))) == [1]
    print("budgets hold")


if __name__ == "__main__":
    main(sys.argv[1])
