"""Planners that do what planners should not; worker processes import them from here."""

from __future__ import annotations

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

from antiphon.core.schedule import Schedule
from antiphon.errors import TimedOut, Unsupported
from antiphon.planners.ring import ring
from antiphon.registry import Entry


def raises(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective)
    raise ZeroDivisionError("in the middle\nof things")


def refuses(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    raise Unsupported("planner refuses: never does anything")
    yield


def hangs(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective)
    while True:
        sum(range(1000))


def sleeps(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective)
    time.sleep(600)


def dies(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    os._exit(7)
    yield


def chatters(
    topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any
) -> Iterator[Schedule]:
    print("words on stdout")
    os.write(1, b"more words")
    yield from ring(topology, collective)


def lies(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    """All but the last transfer."""
    for made in ring(topology, collective):
        yield made.take(np.arange(made.transfers - 1))


def strange(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Any]:
    yield "a schedule"


def nothing(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ()


def late(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    (made,) = ring(topology, collective)
    raise TimedOut("the budget is spent", replace(made, provenance={}))
    yield


def exits(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective)
    sys.exit(3)


def interrupts(
    topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any
) -> Iterator[Schedule]:
    raise KeyboardInterrupt
    yield


def boasts(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    """What it says of itself is no plain value, and cannot be pickled either."""
    for made in ring(topology, collective):
        yield replace(made, provenance={"planner": "boasts", "how": lambda: None})


class Secret(Schedule):
    def __reduce__(self) -> Any:
        raise TypeError("not to be\x1b[31m told")


def hides(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    for made in ring(topology, collective):
        yield Secret(**{key: getattr(made, key) for key in made.__dataclass_fields__})


def colours(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    raise ValueError("\x1b[31mred\x1b[0m\x07 and\tblue \udc80\u202e")
    yield


def listens(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    if sys.stdin.read() or os.read(0, 1):
        raise ValueError("there was something to hear")
    yield from ring(topology, collective)


def parent(topology: Any, collective: Any, *, budget: Any, note: str, **options: Any) -> Iterator[Schedule]:
    """Starts a process that outlives it, notes its number, and hangs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(note, "w", encoding="ascii") as file:
        file.write(str(child.pid))
    yield from hangs(topology, collective, nbytes=None, profile=None, budget=None, seed=None)


def forks(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    """Dies, and leaves a child that holds all its pipes."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(9)
    yield


def lingers(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    """Works on something better, and hands over what it has when it is told to stop."""
    with contextlib.suppress(TimedOut):
        while True:
            sum(range(1000))
    yield from ring(topology, collective)


def half(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    """Says that its budget ended it, after something was found."""
    yield from ring(topology, collective)
    raise TimedOut("the budget is spent")


def starves(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective)
    raise MemoryError


def killed(topology: Any, collective: Any, *, nbytes: Any, profile: Any, budget: Any, seed: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective)
    os.kill(os.getpid(), signal.SIGKILL)


def eats(topology: Any, collective: Any, **options: Any) -> Iterator[Schedule]:
    """More and more memory, until there is none."""
    yield from ring(topology, collective)
    kept = []
    while True:
        kept.append(bytearray(2**26))


def anything(topology: Any, collective: Any, **options: Any) -> Iterator[Schedule]:
    yield from ring(topology, collective, seed=options["seed"])


def entry(name: str, *sweep: dict[str, Any]) -> Entry:
    can = {"collectives": ("allreduce", "allgather"), "topologies": "any", "options": (), "sweep": sweep or ({},)}
    return Entry(f"stubborn_planners:{name}", "does what it should not", can)
