"""The runtime `mpi`: processes of an MPI, beside its own collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import found_launcher, launched
from antiphon.runtimes.measure.case import Case, Heard, How, Row, Runnable, Runtime
from antiphon.runtimes.measure.mpi_job import first_process, require_mpi, run_cases


class Mpi(Runtime):
    """One launch for all, unless a launcher started this process."""

    def ready(self, how: How) -> None:
        require_mpi()
        if not launched():
            found_launcher(how.mpiexec)
        library("mpi", how.compiler)

    def first(self) -> AbstractContextManager[bool]:
        return first_process()

    def run(
        self,
        programs: Sequence[Runnable],
        cases: Sequence[Case],
        how: How,
        heard: Heard,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        def tell(row: Row) -> None:
            heard(int(row["case"]), {key: value for key, value in row.items() if key != "case"})

        run_cases(
            [one.data for one in programs], cases, mpiexec=how.mpiexec, compiler=how.compiler, timeout=how.timeout,
            progress=tell, enough=enough,
        )  # fmt: skip
