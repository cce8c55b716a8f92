"""Traces of runs and predictions: made by simulation, put side by side, and read (docs/export.md)."""

from antiphon.api.costs import simulate
from antiphon.api.traces import Recording, merge, read

__all__ = ["Recording", "merge", "read", "simulate"]
