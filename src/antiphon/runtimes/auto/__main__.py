"""The subprocess that plans for a job: `python -m antiphon.runtimes.auto [CACHE_FILE]`.

Reads the question from stdin, up to a line `end`, and writes one answer (serve/auto_question), or "failed", a tab and
the reason. CACHE_FILE: where the answer is cached; plans for isomorphic machines lie beside it. It may use all
processors, for ANTIPHON_AUTO_BUDGET seconds of processor time, and has the lowest priority after a line `lower` on
stdin. It ends with the job: when stdin or its parent process ends.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import select
import signal
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

VARIABLE = "ANTIPHON_AUTO_PRIORITY"  # in the environment: the nice value of this process
PRIORITY = 19  # its default, the lowest
TIME_SLICE = 100_000  # nanoseconds, the shortest possible
# the number of the system call sched_setattr by processor, and its argument, struct sched_attr
_SYSTEM_CALL = {"x86_64": 314, "aarch64": 274, "ppc64le": 355, "riscv64": 274, "s390x": 345}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, time slice, deadline, period
_POLL = 0.5  # seconds between two checks of the parent process
_END_TIMEOUT = 2.0  # seconds from SIGTERM, which lets `main` clean up, to _exit


def main(cache_file: str = "") -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    out = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not spoil the answer
    own_session()
    question = _read_question()
    # Rank 0 may be bound to one processor, and this process inherits that: undo it here.
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, which ends this process
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    from antiphon.errors import Invalid
    from antiphon.runtimes.auto.answering import answer_question, processor_budget

    # If the timer of the budget (answering.py) does not stop a solver, the kernel ends this process: after twice the
    # budget, and 5 seconds for starting with a small one.
    with suppress(Invalid, OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (limit := int(2 * processor_budget()) + 5, limit))

    data = answer_question(question, Path(cache_file) if cache_file else None)
    with os.fdopen(out, "wb") as stream, suppress(BrokenPipeError):
        stream.write(data)
    return 0


def _read_question() -> str:
    text = b""
    while not text.endswith(b"\nend\n"):
        byte = os.read(0, 1)  # byte by byte: what follows the line is for `_watch_parent`
        if not byte:
            os._exit(1)
        text += byte
    return text.removesuffix(b"end\n").decode("ascii", "replace")


def _watch_parent(parent: int) -> None:
    """End this process when the job has ended in any way; lower its priority at the line `lower` on stdin."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], _POLL)
        if ready and not os.read(0, 4096):
            break
        if ready:  # `lower`: nothing else comes
            lower_priority(os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_END_TIMEOUT)
    os._exit(1)


def own_session() -> None:
    """Give this process its own session: if the kernel divides processors by session, it would otherwise take the share
    of its job."""
    with suppress(OSError):
        os.setsid()


def lower_priority(process: int) -> None:
    """Give the first thread of a process, which does the planning, the lowest priority and short time slices.

    Each is done where the system supports it. The session's other threads are lowered by its autogroup alone.
    A process of nice 19 that runs keeps its processor for a whole slice of some milliseconds, even if others want it.
    Since Linux 6.12 a process may set the length of its slices; older kernels ignore that."""
    setting = os.environ.get(VARIABLE, "")
    priority = min(int(setting), PRIORITY) if setting.isdecimal() else PRIORITY
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, priority)
    with suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(str(priority), encoding="ascii")  # of the session
    number = _SYSTEM_CALL.get(platform.machine())
    if number is not None:
        attributes = ctypes.create_string_buffer(
            _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, priority, 0, TIME_SLICE, 0, 0)
        )
        ctypes.CDLL(None).syscall(number, process, attributes, 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
