"""Runs plans: in this process, under MPI, under PyTorch, on the emulated cluster."""

from antiphon.deprecations import stay_callable

stay_callable(__name__)
