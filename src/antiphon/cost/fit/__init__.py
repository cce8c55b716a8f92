"""Model parameters fitted to measurements, with parameters that the data cannot determine marked.

In: tables of measured times (CSV). Out: estimates with their uncertainty, and a profile that models read:

rows = read_measured("times.csv")
fit = fit_genmodel(rows, {"delta": 4.7e-11})
fit.parameters["alpha"].value, fit.w_t, fit.combinations
genmodel_profile(fit, "ethernet", bandwidth=1.25e9)

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
from antiphon.cost.fit.linear import OPEN, Estimate
from antiphon.cost.fit.loggp import Break, LogGPFit, Regime, fit_loggp
from antiphon.cost.fit.loggp_radix import AtOnce, at_once
from antiphon.cost.fit.loggp_tables import (
    AT_ONCE,
    BURST,
    FAN_IN,
    FAN_OUT,
    PAIRS,
    RoundTrip,
    read_round_trips,
    write_round_trips,
)
from antiphon.cost.fit.memory import MemoryFit, fit_memory
from antiphon.cost.fit.plans import LEVELS, NAMES, Plan, plan_of
from antiphon.cost.fit.tables import Added, Measured, read_added, read_measured, write_added, write_measured

__all__ = [
    "AT_ONCE", "BURST", "FAN_IN", "FAN_OUT", "LEVELS", "NAMES", "OPEN", "PAIRS", "Added", "AtOnce", "Break",
    "Estimate", "GenmodelFit", "LogGPFit", "Measured", "MemoryFit", "Plan", "Regime", "RoundTrip", "at_once",
    "fit_genmodel", "fit_loggp", "fit_memory", "genmodel_profile", "left_out", "loggp_left_out", "loggp_level",
    "loggp_profile", "memory_profile", "plan_of", "read_added", "read_measured", "read_round_trips", "write_added",
    "write_measured", "write_round_trips",
]  # fmt: skip
