"""Libraries for unmodified programs: the MPI preload (docs/mpi.md) and the tuner plugin for NCCL (docs/stock.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.errors import Invalid, Unsupported, unknown
from antiphon.runtimes.engine.build import PRELOADED, library
from antiphon.runtimes.engine.native import keep_tables

LIBRARIES = (PRELOADED, "nccl-tuner")


def build(what: str, compiler: str = "", tables: Sequence[str] = ()) -> Path:
    """The library, compiled where that has not been done yet: where it is. `tables`: compiled, too, and kept beside it,
    where jobs look for them."""
    if what == "nccl":
        raise Unsupported("build nccl: NCCL takes no schedules; antiphon build nccl-tuner makes a tuner plugin for it")
    if what not in LIBRARIES:
        raise unknown("library to build", what, LIBRARIES)
    if tables and what != PRELOADED:
        raise Invalid(f"build {what} takes no tables; export --to nccl-tuner writes what it reads")
    path = library(what.replace("-", "_"), compiler)
    if tables:
        keep_tables(path, tables)
    return path
