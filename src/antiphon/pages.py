"""Results as pages to look at."""

from antiphon.api.exploring import explore
from antiphon.api.tuning import report

__all__ = ["explore", "report"]
