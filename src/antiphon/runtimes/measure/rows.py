"""Run one schedule at several sizes, build rows of measurements (algbw, busbw), and look up what a runtime supports.

For an allreduce of 64 MiB among 8 ranks that takes 1 ms, algbw is 64 MiB / 1 ms = 67.1 GB/s, and busbw is that times
2 (8 - 1) / 8 = 117.4 GB/s: each rank's links had at least this bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import busbw_factor
from antiphon.core.transform import NO_CUTS, Cuts
from antiphon.errors import Unsupported
from antiphon.registry import find
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, Runtime, sizes_and_type
from antiphon.units import parse_size


def load_runtime(name: str) -> Runtime:
    """Return the runtime that is registered under this name."""
    instance: Runtime = find("runtime", name).load()()  # `load` returns the class
    return instance


def cuts_of(name: str) -> Cuts:
    """Return the number of pieces into which a runtime cuts a message if the schedule does not say."""
    return find("runtime", name).can.cuts or NO_CUTS


def has_in_place(name: str, kind: str) -> bool:
    """Return whether a runtime runs this collective in place."""
    kinds = find("runtime", name).can.in_place
    return kinds == "all" or kind in kinds


@contextmanager
def deciding_process(on: str, how: How, before: Callable[[], object] = lambda: None) -> Iterator[bool]:
    """Yield whether this process decides what runs with runtime `on`.

    In that process, first call `before`, which checks arguments, then the runtime's `ready`, which may compile and
    raises Missing if something is not installed. Plan in the with-block: then nothing is planned that cannot run.
    """
    runtime = load_runtime(on)
    with runtime.first() as deciding:
        if deciding:
            before()
            runtime.ready(how)
        yield deciding


def row_of(case: Case, collective: Collective, measured: Row, on: str) -> Row:
    """Return the row of a measured case: docs/bench.md defines the keys."""
    # As nccl-tests: count = elements of a block, algbw = nbytes / time, busbw = algbw times the collective's factor,
    # e.g. 2 (P - 1) / P.
    algbw = case.nbytes / measured["seconds"] if measured["seconds"] else 0.0
    return {
        "nbytes": case.nbytes, "count": case.unit, "dtype": case.dtype,
        "op": case.op if collective.combining else None, "in_place": case.in_place, "on": on,
        "seconds": measured["seconds"], "algbw": algbw, "busbw": algbw * busbw_factor(collective),
        **measured,
    }  # fmt: skip


def unit_for_size(nbytes: int, unit_bytes: int) -> int:
    """Return the unit of a call of this size, rounded down, but at least 1 if it has any bytes.

    `unit_bytes`: bytes of the largest buffer at unit 1.
    """
    return max(nbytes // unit_bytes, min(nbytes, 1))


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

    Under a launcher such as mpiexec only the first process has rows; the others get None. Raises Missing if something
    is not installed. `trace`: each row has `traced`, which `recorder.measured_trace` reads.
    """
    sizes, type_name = sizes_and_type(nbytes, dtype, op, repeat)
    collective, how = runnable.schedule.collective, how or How()
    unit_bytes = collective.buffer_weight * data_type(type_name).itemsize
    units = [unit_for_size(parse_size(size, "nbytes"), unit_bytes) for size in sizes]
    if in_place and not has_in_place(on, collective.kind):
        raise Unsupported(f"--on {on}: has no {collective.kind} in place; run it out of place")
    with deciding_process(on, how) as deciding:
        if not deciding:
            return None
        cases = [
            Case(
                program=0, ranks=runnable.ranks, unit=unit, nbytes=unit * unit_bytes, dtype=type_name, op=op,
                in_place=in_place, seed=seed, repeat=repeat, trace=trace,
            )
            for unit in units
        ]  # fmt: skip
        rows: dict[int, Row] = {}
        load_runtime(on).run([runnable], cases, how, rows.__setitem__)
    return [row_of(case, collective, rows[number], on) for number, case in enumerate(cases)]
