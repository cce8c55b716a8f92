"""The runtime `nccl`: processes of an MPI, each with a GPU, by rounds of NCCL's messages.

MPI starts them, tells them of each other and counts them in; it carries none of the data.
"""

from __future__ import annotations

import ctypes

from antiphon.errors import Missing
from antiphon.runtimes.device.beside import path_of
from antiphon.runtimes.measure.case import How
from antiphon.runtimes.measure.mpi import Mpi


class Nccl(Mpi):
    """As under MPI, but for what carries the data."""

    target, driver, messages = "nccl_direct", "libcuda.so.1", "libnccl.so.2"

    def nccl(self) -> str:
        return path_of(self.messages)

    def ready(self, how: How) -> None:
        """Before anything is compiled: that takes half a minute."""
        needed = (
            (self.driver, "no driver for GPUs", "--on threads runs the kernel for GPUs on the processor"),
            (self.nccl(), "no NCCL", "pip install nvidia-nccl-cu13, or take your system's"),
        )  # fmt: skip
        for name, what, advice in needed:
            try:
                ctypes.CDLL(name)
            except OSError:
                raise Missing(f"--on nccl: this machine has {what} ({name} cannot be loaded); {advice}") from None
        super().ready(how)
