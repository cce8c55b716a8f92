"""The emulated cluster: rate-limited links between network namespaces (docs/lab.md). Needs Linux and root."""

from antiphon.api.labs import command, cut, down, run, status, up
from antiphon.deprecations import stay_callable

__all__ = ["command", "cut", "down", "run", "status", "up"]

stay_callable(__name__)  # as the function antiphon.lab() of the previous version, with a warning
