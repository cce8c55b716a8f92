"""Collectives on NumPy arrays by the plans of a table, among processes of MPI or by sockets (docs/numpy.md)."""

from antiphon.api.running import comm as connect
from antiphon.deprecations import stay_callable

__all__ = ["connect"]

stay_callable(__name__)  # as the function antiphon.comm() of the previous version, with a warning
