"""From a request to a verified plan: candidates, proofs, prices, the best for each size."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.select._frontier import Frontier, FrontierPoint, frontier
    from antiphon.select._gains import Gain, Setting, settings
    from antiphon.select._judged import Judged, judged
    from antiphon.select._table import TABLE, dump_tables, load_plans, save_plans
    from antiphon.select.candidates import Candidate, Range
    from antiphon.select.libraries import NOBODY
    from antiphon.select.limits import Limit
    from antiphon.select.losses import Damage, LinkLoss, Loss
    from antiphon.select.orders import SeveralOrders
    from antiphon.select.over import Tunings, tune_over
    from antiphon.select.plans import check, every_plan, figures_of, gaps, measure, plan, proof_of
    from antiphon.select.proofs import Proofs, prove
    from antiphon.select.putting import put_together
    from antiphon.select.sweep import read_sweep
    from antiphon.select.tuner import tune
    from antiphon.select.tuning import DEFINITIONS, Listed, Tuning
    from antiphon.select.uses import Without, uses_of, uses_text
    from antiphon.select.wish import collective, is_file, machine_of, sizes_of
else:  # loaded when somebody asks for them: who wants a machine alone needs a tenth of all this
    _FILES = {
        "_frontier": ("Frontier", "FrontierPoint", "frontier"),
        "_gains": ("Gain", "Setting", "settings"),
        "_judged": ("Judged", "judged"),
        "_table": ("TABLE", "dump_tables", "load_plans", "save_plans"),
        "candidates": ("Candidate", "Range"),
        "libraries": ("NOBODY",),
        "limits": ("Limit",),
        "losses": ("Damage", "LinkLoss", "Loss"),
        "orders": ("SeveralOrders",),
        "over": ("Tunings", "tune_over"),
        "plans": ("check", "every_plan", "figures_of", "gaps", "measure", "plan", "proof_of"),
        "proofs": ("Proofs", "prove"),
        "putting": ("put_together",),
        "sweep": ("read_sweep",),
        "tuner": ("tune",),
        "tuning": ("DEFINITIONS", "Listed", "Tuning"),
        "uses": ("Without", "uses_of", "uses_text"),
        "wish": ("collective", "is_file", "machine_of", "sizes_of"),
    }
    _FILE_OF = {name: file for file, names in _FILES.items() for name in names}

    def __getattr__(name):
        if name not in _FILE_OF:
            raise AttributeError(f"module 'antiphon.select' has no attribute {name!r}")
        return getattr(importlib.import_module(f"antiphon.select.{_FILE_OF[name]}"), name)


__all__ = [
    "DEFINITIONS",
    "NOBODY",
    "TABLE",
    "Candidate",
    "Damage",
    "Frontier",
    "FrontierPoint",
    "Gain",
    "Judged",
    "Limit",
    "LinkLoss",
    "Listed",
    "Loss",
    "Proofs",
    "Range",
    "Setting",
    "SeveralOrders",
    "Tuning",
    "Tunings",
    "Without",
    "check",
    "collective",
    "dump_tables",
    "every_plan",
    "figures_of",
    "frontier",
    "gaps",
    "is_file",
    "judged",
    "load_plans",
    "machine_of",
    "measure",
    "plan",
    "proof_of",
    "prove",
    "put_together",
    "read_sweep",
    "save_plans",
    "settings",
    "sizes_of",
    "tune",
    "tune_over",
    "uses_of",
    "uses_text",
]
