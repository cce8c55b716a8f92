"""Best agreement between GenModel and published times over all parameters: a minimax fit.

Sections are those of the GenModel and GenTree paper. Plans: CPS (co-located parameter servers), Ring, RHD (recursive
halving and doubling), and hierarchical CPS, written as the fan-in of each level: "6x2". Called by gentree.py.

Input: measured times by (servers, plan). Output: the non-negative parameters whose greatest relative error over all
times is least, and that error. If even this error is large, the published times contradict the model for any
parameters. For fixed w_t (the senders from which incast counts) each predicted time is linear in the parameters, so
this is a linear program: minimise e such that |predicted / measured - 1| <= e for every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.cost.genmodel.forms import Server, Terms, Tier, cps, hcps, rhd, ring

Cell = tuple[int, str]  # number of servers, plan
GENMODEL = ("alpha", "beta", "gamma", "delta", "epsilon")
PLAIN = GENMODEL[:3]  # the model without memory access (delta) and incast (epsilon)
ERROR_TOLERANCE = 1e-9  # relative errors that differ by less are equal: the solver rounds


@dataclass(frozen=True)
class MinimaxFit:
    """Non-negative parameters (seconds, seconds per float) that minimise the greatest relative error over all cells,
    that error, and the cells that attain it."""

    error: float
    parameters: dict[str, float]
    binding: tuple[Cell, ...]


def closed_form(plan: str, servers: int, floats: float, tier: Tier, server: Server) -> Terms:
    """Return the predicted time of a plan by its formula, by term; parameters of `tier` and `server` are per float."""
    formulas = {"CPS": cps, "Ring": ring, "RHD": rhd}
    if plan in formulas:
        return formulas[plan](servers, floats, tier, server)
    return hcps([int(fan) for fan in plan.split("x")], floats, tier, server)


def least_error(times: Mapping[Cell, float], floats: float, terms: tuple[str, ...], w_t: int) -> MinimaxFit:
    """Return the minimax fit of these terms. GenModel is linear in them once w_t is fixed (section 3.4)."""
    from scipy.optimize import linprog

    unit_parameters = {name: _unit_parameter(name, w_t) for name in terms}
    # (cells, terms): predicted / measured, for a value of 1 of each parameter; then columns scaled to at most 1
    ratios = np.array([
        [getattr(closed_form(plan, n, floats, *unit_parameters[name]), name) / seconds for name in terms]
        for (n, plan), seconds in times.items()
    ])  # fmt: skip
    scale = np.where(ratios.max(axis=0) > 0, ratios.max(axis=0), 1.0)
    ratios /= scale
    ones = np.ones((len(ratios), 1))
    # Unknowns: the scaled parameters, then e. Minimise e subject to ratios @ x - e <= 1 and -ratios @ x - e <= -1; by
    # default no unknown of linprog is negative.
    solution = linprog(
        [0.0] * len(terms) + [1.0],
        A_ub=np.block([[ratios, -ones], [-ratios, -ones]]), b_ub=np.concatenate([ones, -ones])[:, 0],
    )  # fmt: skip
    errors = np.abs(ratios @ solution.x[:-1] - 1).tolist()
    binding = tuple(c for c, error in zip(times, errors, strict=True) if error > solution.fun - ERROR_TOLERANCE)
    return MinimaxFit(float(solution.fun), dict(zip(terms, (solution.x[:-1] / scale).tolist(), strict=True)), binding)


def _unit_parameter(name: str, w_t: int) -> tuple[Tier, Server]:
    """Return a parameter set in which this parameter is 1 and all others are 0."""
    values = {name: 1.0}
    tier = Tier(values.get("alpha", 0.0), values.get("beta", 0.0), values.get("epsilon", 0.0), w_t)
    return tier, Server(values.get("gamma", 0.0), values.get("delta", 0.0))
