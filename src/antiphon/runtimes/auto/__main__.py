"""The process apart that plans for a job: `python -m antiphon.runtimes.auto [KEPT]`.

Reads the question from its input, up to a line `end`, and writes one answer (serve/auto_kept), or "failed", a tab and
why. KEPT: the file in which the answer is kept; others for machines alike lie beside it. It may use all processors that
there are, for so many seconds of processor time as ANTIPHON_AUTO_BUDGET says, and has the least priority from the line
`lower` of its input on. It ends with the job: when its input does, or who started it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from antiphon.runtimes.auto.priority import apart, lower

_LOOK = 0.5  # seconds between two looks at who started this
_LAST = 2.0  # seconds to end in order


def main(kept: str = "") -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever prints something does not spoil the answer
    apart()
    question = _question()
    with suppress(OSError, AttributeError):  # process 0 may be bound to one, which is to be its own
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and that this
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    from antiphon.errors import Invalid
    from antiphon.runtimes.auto.answering import answer, budget

    with suppress(Invalid, OSError, ValueError):  # where what counts it from within is not heard
        resource.setrlimit(resource.RLIMIT_CPU, (most := int(2 * budget()) + 5, most))

    data = answer(question, Path(kept) if kept else None)
    with os.fdopen(out, "wb") as stream, suppress(BrokenPipeError):
        stream.write(data)
    return 0


def _question() -> str:
    text = b""
    while not text.endswith(b"\nend\n"):
        more = os.read(0, 1)  # and no more: what comes behind is for `_watch`
        if not more:
            os._exit(1)
        text += more
    return text.removesuffix(b"end\n").decode("ascii", "replace")


def _watch(parent: int) -> None:
    """Ends this process when the job has ended, however it did."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], _LOOK)
        if ready and not os.read(0, 4096):
            break
        if ready:
            lower(os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_LAST)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
