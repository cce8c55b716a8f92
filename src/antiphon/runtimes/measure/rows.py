"""Build rows of measurements (algbw, busbw), list what each runtime supports, and run one schedule at several sizes.

For an allreduce of 64 MiB among 8 ranks that takes 1 ms, algbw is 64 MiB / 1 ms = 67.1 GB/s, and busbw is that times
2 (8 - 1) / 8 = 117.4 GB/s: the bandwidth that each rank's links must have had, at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import busbw_factor
from antiphon.core.transform import NO_CUTS, Cuts
from antiphon.errors import Unsupported
from antiphon.registry import find
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, Runtime, sizes_and_type
from antiphon.units import parse_size


def load_runtime(name: str) -> Runtime:
    """Return a runtime of the table."""
    instance: Runtime = find("runtime", name).load()()
    return instance


def cuts_of(name: str) -> Cuts:
    """Return how a runtime cuts messages for which the schedule does not set the pieces."""
    return find("runtime", name).can.cuts or NO_CUTS


def has_in_place(name: str, kind: str) -> bool:
    """Return whether a runtime runs this collective in place."""
    able = find("runtime", name).can.in_place
    return able == "all" or kind in able


@contextmanager
def first_on(on: str, how: How, before: Callable[[], object] = lambda: None) -> Iterator[bool]:
    """Yield whether this process decides what runs.

    That process first calls `before`, then checks what the runtime needs (Missing), which may compile: so nothing is
    planned where nothing can be measured."""
    place = load_runtime(on)
    with place.first() as deciding:
        if deciding:
            before()
            place.ready(how)
        yield deciding


def row_of(case: Case, collective: Collective, measured: Row, on: str) -> Row:
    """Return the row of a measured case: docs/bench.md defines the keys."""
    # As nccl-tests: algbw = nbytes / time, busbw = algbw times the collective's factor, e.g. 2 (P - 1) / P.
    algbw = case.nbytes / measured["seconds"] if measured["seconds"] else 0.0
    return {
        "nbytes": case.nbytes, "count": case.unit, "dtype": case.dtype,
        "op": case.op if collective.combining else None, "in_place": case.in_place, "on": on,
        "seconds": measured["seconds"], "algbw": algbw, "busbw": algbw * busbw_factor(collective),
        **measured,
    }  # fmt: skip


def units_of(nbytes: int, weight: int) -> int:
    """Return the elements per weight of a message, at least one (if it has any bytes)."""
    return max(nbytes // weight, min(nbytes, 1))


def run_schedule(  # noqa: PLR0913
    on: str,
    runnable: Runnable,
    nbytes: int | str | Sequence[int | str],
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
    *,
    how: How | None = None,
    trace: bool = False,
) -> list[Row] | None:
    """Run a schedule on random data of each size and check every element: a row for each (docs/bench.md).

    Of processes that a launcher started, only the first has rows. Missing if the runtime lacks something it needs.
    `trace`: each row has `traced`, which `recorder.measured_trace` reads.
    """
    sizes, kind = sizes_and_type(nbytes, dtype, op, repeat)
    collective, how = runnable.schedule.collective, how or How()
    weight = collective.buffer_weight * data_type(kind).itemsize
    units = [units_of(parse_size(size, "nbytes"), weight) for size in sizes]
    if in_place and not has_in_place(on, collective.kind):
        raise Unsupported(f"--on {on}: has no {collective.kind} in place; run it out of place")
    with first_on(on, how) as deciding:
        if not deciding:
            return None
        usual = Case(0, runnable.ranks, 0, 0, kind, op, in_place, seed, repeat, trace=trace)
        cases = [replace(usual, unit=unit, nbytes=unit * weight) for unit in units]
        rows: dict[int, Row] = {}
        load_runtime(on).run([runnable], cases, how, rows.__setitem__)
    return [row_of(case, collective, rows[number], on) for number, case in enumerate(cases)]
