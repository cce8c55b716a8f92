"""Libraries for unmodified programs: the MPI preload (docs/mpi.md), the tuner plugin and the preload for NCCL
(docs/stock.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.errors import Invalid, Unsupported, unknown
from antiphon.runtimes.engine.build import MPI_PRELOAD, library
from antiphon.runtimes.engine.native import keep_tables

LIBRARIES = (MPI_PRELOAD, "nccl-tuner", "nccl-preload")


def build(name: str, compiler: str = "", tables: Sequence[str] = ()) -> Path:
    """Return the path of a library, compiled if necessary. `tables`: compile and cache them for jobs, too."""
    if name == "nccl":
        raise Unsupported("build nccl: NCCL takes no schedules; antiphon build nccl-tuner makes a tuner plugin for it")
    if name not in LIBRARIES:
        raise unknown("library to build", name, LIBRARIES)
    if tables and name != MPI_PRELOAD:
        raise Invalid(f"build {name} takes no tables; export --to nccl-tuner writes what it reads")
    path = library(name.replace("-", "_"), compiler)
    if tables:
        keep_tables(path, tables)
    return path
