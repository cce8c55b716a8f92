"""Model parameters from measurements, with what the measurements do not tell said so.

rows = read_measured("times.csv")
found = fit_genmodel(rows, {"delta": 4.7e-11})
found.parameters["alpha"].value, found.w_t, found.combinations
genmodel_profile(found, "ethernet", bandwidth=1.25e9)

rows = read_round_trips("trips.csv")
loggp_profile(fit_loggp(rows), within="host")
"""

from antiphon.cost.fit._profiles import (
    genmodel_profile,
    left_out,
    loggp_left_out,
    loggp_level,
    loggp_profile,
    memory_profile,
)
from antiphon.cost.fit.genmodel import GenmodelFit, fit_genmodel
from antiphon.cost.fit.linear import Estimate
from antiphon.cost.fit.loggp import Break, LogGPFit, Regime, fit_loggp
from antiphon.cost.fit.loggp_tables import RoundTrip, read_round_trips, write_round_trips
from antiphon.cost.fit.memory import MemoryFit, fit_memory
from antiphon.cost.fit.plans import LEVELS, NAMES, Plan, plan_of
from antiphon.cost.fit.tables import Added, Measured, read_added, read_measured, write_added, write_measured

__all__ = [
    "LEVELS", "NAMES", "Added", "Break", "Estimate", "GenmodelFit", "LogGPFit", "Measured", "MemoryFit", "Plan",
    "Regime", "RoundTrip", "fit_genmodel", "fit_loggp", "fit_memory", "genmodel_profile", "left_out", "loggp_left_out",
    "loggp_level", "loggp_profile", "memory_profile", "plan_of", "read_added", "read_measured", "read_round_trips",
    "write_added", "write_measured", "write_round_trips",
]  # fmt: skip
