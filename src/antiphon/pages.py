"""Results as pages to look at."""

from antiphon.api.tuning import report

__all__ = ["report"]
