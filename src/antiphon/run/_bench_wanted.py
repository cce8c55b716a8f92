"""What is to be measured, and the grounds it can be measured on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import unknown

Row = dict[str, Any]
# Where data can really move: each is a module's function `measure`, with `ready`: what it needs is here, or Missing
# (and `first`: which process decides).
GROUNDS = {
    "mpi": "antiphon.run._bench_mpi",
    "torch": "antiphon.run._bench_torch",
    "lab": "antiphon.run._bench_lab",
}


@dataclass(frozen=True, eq=False)
class Wanted:
    """One schedule at one size, for this machine. `unit`: the elements of a block of weight 1, as in programs."""

    topology: Topology
    schedule: Schedule
    unit: int
    nbytes: int
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False


@dataclass(frozen=True)
class How:
    """`mpiexec`, `compiler`: as for `run --on mpi`; `scale`: as for `lab up`. `timeout`: seconds for all. `seed`:
    of the data."""

    iterations: int = 20
    warmup: int = 5
    seed: int = 0
    mpiexec: str = ""
    compiler: str = ""
    timeout: float = 600.0
    scale: str = ""


class Measure(Protocol):
    """Measures what is wanted, in order; `heard` gets a row for each as soon as it is there, None where there is no
    such thing (an alltoall of uneven counts in place). `enough` is asked before each whether to leave the rest out.

    Keys: seconds (median over iterations of what the slowest rank took) and quartiles [first, third]; wrong (elements
    of all ranks that are wrong, of the first and of the last run); of the library's own collective in the same run,
    in turn with ours, reference_seconds, reference_quartiles, reference_wrong; ratio and ratio_quartiles of the pairs,
    ours over theirs. All of these are None where the library has none. Optional: predicted_seconds, where the ground
    knows better than the model what it should take.
    """

    def __call__(
        self, wanted: Sequence[Wanted], how: How, heard: Callable[[Row | None], None], enough: Callable[[], bool]
    ) -> None: ...


def measure_on(ground: str) -> Measure:
    found: Measure = _module(ground).measure
    return found


@contextmanager
def first_on(ground: str, mpiexec: str = "", compiler: str = "") -> Iterator[bool]:
    """Whether this process is the one that decides what is run, within a `with`. What the ground needs is looked for
    first, so that nothing is planned where nothing can be measured: Missing says what is not here."""
    module = _module(ground)
    first: Callable[[], AbstractContextManager[bool]] = getattr(module, "first", lambda: nullcontext(True))
    with first() as deciding:
        if deciding:
            module.ready(mpiexec, compiler)
        yield deciding


def _module(ground: str) -> Any:
    if ground not in GROUNDS:
        raise unknown("--on", ground, GROUNDS)
    return importlib.import_module(GROUNDS[ground])
