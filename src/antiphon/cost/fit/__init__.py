"""Model parameters from measurements, with what the measurements do not tell said so.

rows = read_measured("times.csv")
found = fit_genmodel(rows, {"delta": 4.7e-11})
found.parameters["alpha"].value, found.w_t, found.combinations
genmodel_profile(found, "ethernet", bandwidth=1.25e9)
"""

from antiphon.cost.fit._csv import Added, Measured, read_added, read_measured, write_added, write_measured
from antiphon.cost.fit._genmodel import GenmodelFit, fit_genmodel
from antiphon.cost.fit._linear import Estimate
from antiphon.cost.fit._memory import MemoryFit, fit_memory
from antiphon.cost.fit._plans import LEVELS, NAMES, Plan, plan_of
from antiphon.cost.fit._profiles import genmodel_profile, left_out, memory_profile

__all__ = [
    "LEVELS", "NAMES", "Added", "Estimate", "GenmodelFit", "Measured", "MemoryFit", "Plan", "fit_genmodel",
    "fit_memory", "genmodel_profile", "left_out", "memory_profile", "plan_of", "read_added", "read_measured",
    "write_added", "write_measured",
]  # fmt: skip
