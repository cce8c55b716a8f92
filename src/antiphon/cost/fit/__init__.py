"""Fits of cost models to measured times; parameters that remain undetermined are marked.

Input: tables of measured times (CSV). Output: estimates with their uncertainty, and a profile that models read:

    rows = read_plan_times("times.csv")
    fit = fit_genmodel(rows, {"delta": 4.7e-11})  # seconds per byte, known from elsewhere
    fit.parameters["alpha"].value, fit.w_t, fit.combinations
    genmodel_profile(fit, "ethernet", bandwidth=1.25e9)

    rows = read_round_trips("trips.csv")
    loggp_profile(fit_loggp(rows), within="host")
"""

from antiphon.cost.fit._profiles import (
    genmodel_profile,
    list_missing_figures,
    list_missing_loggp_figures,
    loggp_level,
    loggp_profile,
    memory_profile,
)
from antiphon.cost.fit.genmodel import GenmodelFit, fit_genmodel
from antiphon.cost.fit.linear import UNDETERMINED, Estimate
from antiphon.cost.fit.loggp import LogGPFit, fit_loggp
from antiphon.cost.fit.loggp_radix import fit_simultaneous
from antiphon.cost.fit.loggp_tables import (
    BURST,
    FAN_IN,
    FAN_OUT,
    PAIRS,
    SIMULTANEOUS,
    RoundTrip,
    read_round_trips,
    write_round_trips,
)
from antiphon.cost.fit.lowering import (
    LoweringFit,
    LoweringTime,
    fit_lowering,
    read_lowering_times,
    write_lowering_times,
)
from antiphon.cost.fit.memory import MemoryFit, fit_memory
from antiphon.cost.fit.plans import plan_of
from antiphon.cost.fit.tables import (
    AdditionTime,
    PlanTime,
    read_addition_times,
    read_plan_times,
    write_addition_times,
    write_plan_times,
)
