"""An error that all processes of a group have at the same time is told by one of them, where nobody handles it."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

_SPEAKS = "_antiphon_speaks"
_FIRST = (
    0.5  # seconds that the silent ones wait: launchers end all others, also whoever speaks, when the first has ended
)


def told_once(error: Exception, speaks: bool) -> None:
    """Mark an error that is about to be raised everywhere. Where nothing catches it, the process that `speaks` tells it
    in one line and the others end silently, with the usual exit code; ANTIPHON_DEBUG=1 shows the tracebacks of all.

    The first process that torchrun started on a host speaks in any case: every host has a log of its own.
    """
    setattr(error, _SPEAKS, speaks or os.environ.get("LOCAL_RANK") == "0")
    if getattr(sys.excepthook, "__module__", "") != __name__:
        _put_before(sys.excepthook)


def _put_before(usual: object) -> None:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        speaks = getattr(error, _SPEAKS, None)
        if speaks is None or os.environ.get("ANTIPHON_DEBUG"):
            usual(kind, error, trace)  # type: ignore[operator]
        elif speaks:
            print(f"antiphon: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(_FIRST)

    sys.excepthook = hook
