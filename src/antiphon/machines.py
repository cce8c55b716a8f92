"""Machines made of others, and plans for whole families of them."""

from antiphon.api.machines import degrade, doctor
from antiphon.api.plans import recount, repair
from antiphon.api.tuning import tune_family
from antiphon.select import Tunings

__all__ = ["Tunings", "degrade", "doctor", "recount", "repair", "tune_family"]
