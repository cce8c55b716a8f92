"""Measuring schedules under MPI, beside the library's own collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from antiphon.core.program import encode
from antiphon.lower.program import both
from antiphon.run._bench_wanted import How, Row, Wanted
from antiphon.run._build import library
from antiphon.run._launch import found_launcher, launched
from antiphon.run._mpi_job import first_process, require_mpi, run_cases, taking_part
from antiphon.run._mpi_process import Case

SMALL, TOGETHER = 2**16, 5  # below so many bytes so many calls are timed together: starting is not as sharp as a call


def first() -> AbstractContextManager[bool]:
    return first_process()


def ready(mpiexec: str, compiler: str) -> None:
    """Missing without mpi4py, a launcher, or a compiler for its MPI."""
    require_mpi()
    if not launched():
        found_launcher(mpiexec)
    library("mpi", compiler)


def measure(
    wanted: Sequence[Wanted], how: How, heard: Callable[[Row | None], None], enough: Callable[[], bool] = lambda: False
) -> None:
    """See `Measure`. One launch for all."""
    programs: list[bytes] = []
    numbers: dict[int, tuple[int, bool]] = {}  # by schedule: its program, and whether that has a variant in place
    cases: list[Case | None] = []
    for one in wanted:
        if id(one.schedule) not in numbers:
            made = both(one.schedule)
            numbers[id(one.schedule)] = len(programs), len(made) > 1
            programs.append(encode(made))
        number, able = numbers[id(one.schedule)]
        cases.append(_case(one, how, number) if able or not one.in_place else None)
    left = iter(cases)

    def tell(row: Row) -> None:
        for case in left:
            if case is not None:
                heard({key: value for key, value in row.items() if key not in ("case", "messages", "scratch")})
                return
            heard(None)

    some = [case for case in cases if case is not None]
    rows = run_cases(
        programs, some, mpiexec=how.mpiexec, compiler=how.compiler, timeout=how.timeout, progress=tell, enough=enough
    )
    if len(rows) == len(some):
        for _ in left:
            heard(None)


def _case(one: Wanted, how: How, number: int) -> Case:
    return Case(
        number, taking_part(one.schedule), one.unit, one.nbytes, one.dtype, one.op, one.in_place, how.seed,
        repeat=how.iterations, warmup=how.warmup, inner=TOGETHER if one.nbytes < SMALL else 1,
    )  # fmt: skip
