"""The native engine and the preload library, for an MPI (docs/mpi.md)."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import Unsupported, unknown
from antiphon.runtimes.engine.build import library


def build(what: str, compiler: str = "") -> Path:
    """The native engine for an MPI, compiled where that has not been done yet: where the library is."""
    if what == "nccl":
        raise Unsupported("build nccl is not there yet; antiphon build mpi is")
    if what != "mpi":
        raise unknown("library to build", what, ["mpi"])
    return library("mpi", compiler)
