"""Best agreement between GenModel and published times over all parameters: a minimax fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.cost.genmodel.forms import Server, Terms, Tier, cps, hcps, rhd, ring

Cell = tuple[int, str]  # servers, plan
GENMODEL = ("alpha", "beta", "gamma", "delta", "epsilon")
PLAIN = GENMODEL[:3]
EXACT = 1e-9


@dataclass(frozen=True)
class MinimaxFit:
    """Non-negative parameters (seconds, seconds per float) that minimise the greatest relative error over all cells,
    that error, and the cells that attain it."""

    error: float
    parameters: dict[str, float]
    binding: tuple[Cell, ...]


def closed_form(plan: str, servers: int, floats: float, tier: Tier, server: Server) -> Terms:
    """The closed form of a plan; `floats` and what tier and server say per float."""
    named = {"CPS": cps, "Ring": ring, "RHD": rhd}
    if plan in named:
        return named[plan](servers, floats, tier, server)
    return hcps([int(fan) for fan in plan.split("x")], floats, tier, server)


def least_error(times: Mapping[Cell, float], floats: float, terms: tuple[str, ...], w_t: int) -> MinimaxFit:
    """A linear program: GenModel is linear in its parameters once w_t is fixed (section 3.4). O(cells * terms) data."""
    from scipy.optimize import linprog

    unit = {name: _unit_parameter(name, w_t) for name in terms}
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
    """One of the parameters 1, all others 0."""
    values = {name: 1.0}
    tier = Tier(values.get("alpha", 0.0), values.get("beta", 0.0), values.get("epsilon", 0.0), w_t)
    return tier, Server(values.get("gamma", 0.0), values.get("delta", 0.0))
