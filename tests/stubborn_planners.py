"""Planners that do what planners should not; worker processes import them from here."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.errors import TimedOut, Unsupported
from antiphon.planners.classic.direct import direct
from antiphon.planners.rings.ring import ring
from antiphon.registry import Entry, PlannerCapabilities


def raises(request: Request) -> Iterator[Schedule]:
    yield from ring(request)
    raise ZeroDivisionError("in the middle\nof things")


def refuses(request: Request) -> Iterator[Schedule]:
    raise Unsupported("planner refuses: never does anything")
    yield


def hangs(request: Request) -> Iterator[Schedule]:
    yield from ring(request)
    while True:
        sum(range(1000))


def idles(request: Request) -> Iterator[Schedule]:
    while True:
        sum(range(1000))
    yield


def ignores_stops(request: Request) -> Iterator[Schedule]:
    """As what works in C for long: it does not hear that it is to stop."""
    yield from ring(request)
    while True:
        with contextlib.suppress(TimedOut):
            yield from idles(request)


def interrupts_who_asked(request: Request) -> Iterator[Schedule]:
    """As Ctrl-C does, in the middle of the work, when its first schedule has been taken."""
    yield from ring(request)
    time.sleep(0.2)
    os.kill(os.getppid(), signal.SIGINT)
    yield from hangs(request)


def sleeps(request: Request) -> Iterator[Schedule]:
    yield from ring(request)
    time.sleep(600)


def dies(request: Request) -> Iterator[Schedule]:
    os._exit(7)
    yield


def chatters(request: Request) -> Iterator[Schedule]:
    print("words on stdout")
    os.write(1, b"more words")
    yield from ring(request)


def lies(request: Request) -> Iterator[Schedule]:
    """All but the last transfer."""
    for made in ring(request):
        yield made.take(np.arange(made.transfers - 1))


def strange(request: Request) -> Iterator[Any]:
    yield "a schedule"


def nothing(request: Request) -> Iterator[Schedule]:
    yield from ()


def late(request: Request) -> Iterator[Schedule]:
    (made,) = ring(request)
    raise TimedOut("the budget is used up", replace(made, provenance={}))
    yield


def exits(request: Request) -> Iterator[Schedule]:
    yield from ring(request)
    sys.exit(3)


def interrupts(request: Request) -> Iterator[Schedule]:
    raise KeyboardInterrupt
    yield


def boasts(request: Request) -> Iterator[Schedule]:
    """What it says of itself is no plain value, and cannot be pickled either."""
    for made in ring(request):
        yield replace(made, provenance={"planner": "boasts", "how": lambda: None})


class Secret(Schedule):
    def __reduce__(self) -> Any:
        raise TypeError("not to be\x1b[31m told")


def hides(request: Request) -> Iterator[Schedule]:
    for made in ring(request):
        yield Secret(**{key: getattr(made, key) for key in made.__dataclass_fields__})


def colours(request: Request) -> Iterator[Schedule]:
    raise ValueError("\x1b[31mred\x1b[0m\x07 and\tblue \udc80\u202e")
    yield


def listens(request: Request) -> Iterator[Schedule]:
    if sys.stdin.read() or os.read(0, 1):
        raise ValueError("there was something to hear")
    yield from ring(request)


def parent(request: Request, *, note: str) -> Iterator[Schedule]:
    """Starts a process that outlives it, notes its number, and hangs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(note, "w", encoding="ascii") as file:
        file.write(str(child.pid))
    yield from hangs(request)


def forks(request: Request) -> Iterator[Schedule]:
    """Dies, and leaves a child that holds all its pipes."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(9)
    yield


def lingers(request: Request) -> Iterator[Schedule]:
    """Works on something better, and hands over what it has when it is told to stop."""
    with contextlib.suppress(TimedOut):
        while True:
            sum(range(1000))
    yield from ring(request)


def half(request: Request) -> Iterator[Schedule]:
    """Says that its budget ended it, after something was found."""
    yield from ring(request)
    raise TimedOut("the budget is used up")


def starves(request: Request) -> Iterator[Schedule]:
    yield from ring(request)
    raise MemoryError


def killed(request: Request) -> Iterator[Schedule]:
    yield from ring(request)
    os.kill(os.getpid(), signal.SIGKILL)


def eats(request: Request, *, memory: float) -> Iterator[Schedule]:
    """More and more memory, until there is none."""
    yield from ring(request)
    kept = []
    while True:
        kept.append(bytearray(2**26))


def picks(request: Request) -> Iterator[Schedule]:
    """For a size what it holds to be the best: a ring; none for a small one."""
    if request.nbytes is not None and request.nbytes < 10**4:
        raise Unsupported("planner picks: too small")
    yield from direct(request) if request.nbytes is None else ring(request)


def anything(request: Request, **options: Any) -> Iterator[Schedule]:
    yield from ring(request)


def entry(name: str, *sweep: dict[str, Any]) -> Entry:
    can = PlannerCapabilities(("allreduce", "allgather"), sweep=sweep or ({},))
    return Entry(f"stubborn_planners:{name}", "does what it should not", can)
