"""Best agreement between GenModel and published times over all parameters: a minimax fit.

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

Cell = tuple[int, str]  # servers, plan
GENMODEL = ("alpha", "beta", "gamma", "delta", "epsilon")
PLAIN = GENMODEL[:3]
EXACT = 1e-9  # errors that differ by less are equal


@dataclass(frozen=True)
class MinimaxFit:
    """Non-negative parameters (seconds, seconds per float) that minimise the greatest relative error over all cells,
    that error, and the cells that attain it."""

    error: float
    parameters: dict[str, float]
    binding: tuple[Cell, ...]


def closed_form(plan: str, servers: int, floats: float, tier: Tier, server: Server) -> Terms:
    """Return the predicted time of a plan by its formula, by term; parameters of `tier` and `server` are per float."""
    named = {"CPS": cps, "Ring": ring, "RHD": rhd}
    if plan in named:
        return named[plan](servers, floats, tier, server)
    return hcps([int(fan) for fan in plan.split("x")], floats, tier, server)


def least_error(times: Mapping[Cell, float], floats: float, terms: tuple[str, ...], w_t: int) -> MinimaxFit:
    """Return the minimax fit of these terms. GenModel is linear in them once w_t is fixed (section 3.4)."""
    from scipy.optimize import linprog

    unit = {name: _unit_parameter(name, w_t) for name in terms}
    # predicted over measured, per cell and per unit of each parameter
    rows = [
        [getattr(closed_form(plan, n, floats, *unit[name]), name) / seconds for name in terms]
        for (n, plan), seconds in times.items()
    ]
    share = np.array(rows)
    scale = np.where(share.max(axis=0) > 0, share.max(axis=0), 1.0)
    share /= scale
    wide = np.ones((len(share), 1))
    solution = linprog(
        [0.0] * len(terms) + [1.0],
        A_ub=np.block([[share, -wide], [-share, -wide]]), b_ub=np.concatenate([wide, -wide])[:, 0],
    )  # fmt: skip
    off = np.abs(share @ solution.x[:-1] - 1)
    tight = tuple(cell for cell, error in zip(times, off.tolist(), strict=True) if error > solution.fun - EXACT)
    return MinimaxFit(float(solution.fun), dict(zip(terms, (solution.x[:-1] / scale).tolist(), strict=True)), tight)


def _unit_parameter(name: str, w_t: int) -> tuple[Tier, Server]:
    """Return a parameter set in which this parameter is 1 and all others are 0."""
    values = {name: 1.0}
    tier = Tier(values.get("alpha", 0.0), values.get("beta", 0.0), values.get("epsilon", 0.0), w_t)
    return tier, Server(values.get("gamma", 0.0), values.get("delta", 0.0))
