"""The latency-bandwidth frontier of a collective on a machine: every point, with proofs (docs/planners/sccl.md)."""

from antiphon.api.plans import frontier as find
from antiphon.deprecations import stay_callable
from antiphon.select import Frontier, FrontierPoint

__all__ = ["Frontier", "FrontierPoint", "find"]

stay_callable(__name__)  # as the function antiphon.frontier() of the previous version, with a warning
