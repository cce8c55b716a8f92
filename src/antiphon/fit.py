"""Parameters of cost models from what `antiphon.measure` measured (docs/fitting.md)."""

from antiphon.api.fitting import genmodel, loggp, lowering, memory
from antiphon.deprecations import stay_callable

__all__ = ["genmodel", "loggp", "lowering", "memory"]

stay_callable(__name__)  # as the function antiphon.fit() of the previous version, with a warning
