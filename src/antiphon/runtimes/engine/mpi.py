"""Libraries for programs that stay as they are: the native engine with the preload library for an MPI (docs/mpi.md),
and the tuner plugin for NCCL (docs/stock.md)."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import Unsupported, unknown
from antiphon.runtimes.engine.build import library

LIBRARIES = ("mpi", "nccl-tuner")


def build(what: str, compiler: str = "") -> Path:
    """The library, compiled where that has not been done yet: where it is."""
    if what == "nccl":
        raise Unsupported("build nccl is not there yet; antiphon build nccl-tuner tells a stock NCCL what to choose")
    if what not in LIBRARIES:
        raise unknown("library to build", what, LIBRARIES)
    return library(what.replace("-", "_"), compiler)
