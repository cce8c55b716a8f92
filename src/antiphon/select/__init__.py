"""From a request to a verified plan: candidates, proofs, predicted times, the best for each size.

Names come from the files listed below. `limits`: lower bounds, and the bandwidth that a degraded machine has lost.
`uses`: which schedules use multicast or reduction in switches.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.select._frontier import Frontier, FrontierPoint, frontier, make_point
    from antiphon.select.candidate import Candidate, ForwardingAlternatives, Range
    from antiphon.select.family import Tunings, tune_family
    from antiphon.select.figures import SeveralOrders, exact_rounds, figures_of, gaps, measure, proof_of
    from antiphon.select.frontier_file import (
        check_frontier,
        is_frontier_file,
        load_frontier,
        save_frontier,
    )
    from antiphon.select.libraries import NONE_CAN_PLAN
    from antiphon.select.limits import Damage, Limit, LinkLoss, Loss, compare_links, least_times
    from antiphon.select.parse_request import collective, is_file, machine_of, sizes_of
    from antiphon.select.plan_files import TABLE, choose_plan, dump_tables, load_plans, save_plans
    from antiphon.select.plans import every_plan, own_model, plan, put_together
    from antiphon.select.proofs import PlanVerdict, Proofs, check, check_failures, check_plans, list_unchecked, prove
    from antiphon.select.sweep import read_sweep
    from antiphon.select.tuner import tune, tune_failures
    from antiphon.select.tuning import DEFINITIONS, Gain, Listed, Setting, Tuning, settings
    from antiphon.select.uses import format_switch_uses, list_switch_uses
else:  # a file is imported when a name of it is first used: most programs need few of them
    _FILES = {
        "_frontier": ("Frontier", "FrontierPoint", "frontier", "make_point"),
        "candidate": ("Candidate", "ForwardingAlternatives", "Range"),
        "family": ("Tunings", "tune_family"),
        "figures": ("SeveralOrders", "exact_rounds", "figures_of", "gaps", "measure", "proof_of"),
        "frontier_file": ("check_frontier", "is_frontier_file", "load_frontier", "save_frontier"),
        "libraries": ("NONE_CAN_PLAN",),
        "limits": ("Damage", "Limit", "LinkLoss", "Loss", "compare_links", "least_times"),
        "parse_request": ("collective", "is_file", "machine_of", "sizes_of"),
        "plan_files": ("TABLE", "choose_plan", "dump_tables", "load_plans", "save_plans"),
        "plans": ("every_plan", "own_model", "plan", "put_together"),
        "proofs": ("PlanVerdict", "Proofs", "check", "check_plans", "check_failures", "list_unchecked", "prove"),
        "sweep": ("read_sweep",),
        "tuner": ("tune", "tune_failures"),
        "tuning": ("DEFINITIONS", "Gain", "Listed", "Setting", "Tuning", "settings"),
        "uses": ("format_switch_uses", "list_switch_uses"),
    }
    _FILE_OF = {name: file for file, names in _FILES.items() for name in names}

    def __getattr__(name):
        if name not in _FILE_OF:
            raise AttributeError(f"module 'antiphon.select' has no attribute {name!r}")
        return getattr(importlib.import_module(f"antiphon.select.{_FILE_OF[name]}"), name)


__all__ = [
    "DEFINITIONS", "NONE_CAN_PLAN", "TABLE", "Candidate", "Damage", "ForwardingAlternatives", "Frontier",
    "FrontierPoint", "Gain", "Limit", "LinkLoss", "Listed", "Loss", "PlanVerdict", "Proofs", "Range", "Setting",
    "SeveralOrders", "Tuning", "Tunings", "check", "check_failures", "check_frontier", "check_plans",
    "choose_plan", "collective", "compare_links", "dump_tables", "every_plan", "exact_rounds", "figures_of",
    "format_switch_uses", "frontier", "gaps", "is_file", "is_frontier_file", "least_times", "list_switch_uses",
    "list_unchecked", "load_frontier", "load_plans", "machine_of", "make_point", "measure", "own_model", "plan",
    "proof_of", "prove", "put_together", "read_sweep", "save_frontier", "save_plans", "settings", "sizes_of", "tune",
    "tune_failures", "tune_family",
]  # fmt: skip
