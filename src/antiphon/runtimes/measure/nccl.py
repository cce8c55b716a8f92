"""The runtime `nccl`: processes of an MPI, each with a GPU, by rounds of NCCL's messages.

MPI starts them, tells them of each other and counts them in; it carries none of the data.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from antiphon.errors import Missing
from antiphon.runtimes.device.beside import path_of
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import found_launcher, launched
from antiphon.runtimes.measure.case import Case, Heard, How, Row, Runnable, Runtime
from antiphon.runtimes.measure.mpi_job import first_process, require_mpi, run_cases

TARGET = "nccl_direct"


class Nccl(Runtime):
    """One launch for all, unless a launcher started this process."""

    driver, messages = "libcuda.so.1", "libnccl.so.2"

    def ready(self, how: How) -> None:
        """Before anything is compiled: that takes half a minute."""
        needed = (
            (self.driver, "no driver for GPUs", "--on threads runs the kernel for GPUs on the processor"),
            (path_of(self.messages), "no NCCL", "pip install nvidia-nccl-cu13, or take your system's"),
        )  # fmt: skip
        for name, what, advice in needed:
            try:
                ctypes.CDLL(name)
            except OSError:
                raise Missing(f"--on nccl: this machine has {what} ({name} cannot be loaded); {advice}") from None
        require_mpi()
        if not launched():
            found_launcher(how.mpiexec)
        library(TARGET, how.compiler)

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
            progress=tell, enough=enough, target=TARGET, nccl=path_of(self.messages),
        )  # fmt: skip
