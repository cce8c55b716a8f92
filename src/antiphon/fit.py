"""Parameters of cost models from what `antiphon.measure` measured (docs/fitting.md)."""

from antiphon.api.fitting import genmodel, loggp, memory
from antiphon.deprecations import stay_callable

__all__ = ["genmodel", "loggp", "memory"]

stay_callable(__name__)
