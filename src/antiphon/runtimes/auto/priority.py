"""The least priority, and short turns: whoever wakes up need not wait until a turn is over.

A process of priority 19 that runs keeps its processor for a whole turn, some milliseconds, whoever else wants it. Since
Linux 6.12 a process may say how long its turns shall be; before, the wish is passed over.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

VARIABLE, PRIORITY = "ANTIPHON_AUTO_PRIORITY", 19
TURN = 100_000  # nanoseconds, the shortest there is
_SYSTEM_CALL = {"x86_64": 314, "aarch64": 274, "ppc64le": 355, "riscv64": 274, "s390x": 345}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, priority, static priority, turn, deadline, period


def apart() -> None:
    """This process gets a session of its own: where the kernel shares processors out by sessions, what it takes would
    else be taken from its job."""
    with suppress(OSError):
        os.setsid()


def lower(process: int) -> None:
    """Of the first thread of a process; nothing where that cannot be."""
    told = os.environ.get(VARIABLE, "")
    priority = min(int(told), PRIORITY) if told.isdecimal() else PRIORITY
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, priority)
    with suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(str(priority), encoding="ascii")  # of its session
    number = _SYSTEM_CALL.get(platform.machine())
    if number is not None:
        wish = ctypes.create_string_buffer(_ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, priority, 0, TURN, 0, 0))
        ctypes.CDLL(None).syscall(number, process, wish, 0)
