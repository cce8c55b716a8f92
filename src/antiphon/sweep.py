"""Sweeps over machines, collectives, sizes and prices, and the store that keeps their plans (docs/have/fabric.md)."""

from antiphon.api.sweeping import get, run, tune
from antiphon.select.store import Answer, Store
from antiphon.sweeps.results import SweepResult

__all__ = ["Answer", "Store", "SweepResult", "get", "run", "tune"]
