"""Planners that do what planners should not; worker processes import them from here."""

from __future__ import annotations

import os
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
        time.sleep(0.01)


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


def entry(name: str, *sweep: dict[str, Any]) -> Entry:
    can = {"collectives": ("allreduce", "allgather"), "topologies": "any", "options": (), "sweep": sweep or ({},)}
    return Entry(f"stubborn_planners:{name}", "does what it should not", can)
