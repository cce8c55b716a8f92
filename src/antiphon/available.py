"""What there is to choose from: planners, cost models, runtimes, formats and topologies, each as a list of rows."""

from antiphon.api.machines import formats, models, planners, runtimes, topologies

__all__ = ["formats", "models", "planners", "runtimes", "topologies"]
