"""Solving the program over time: least rounds, rounds step by step, and the exact dual that proves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.dual import Spread, StepDual, Worth, worth
from antiphon.errors import Invalid
from antiphon.planners.synth.program import StepProgram
from antiphon.planners.synth.purse import LIMIT_REACHED, PIVOT_COLUMN, PROGRAM, mixed_price, nodes_for

Table = NDArray[np.int64]
Floats = NDArray[np.float64]
MOST_NODES = 2000  # of a mixed-integer program
_MOST_SCALE = 6000
_FINE = 10**7


@dataclass(frozen=True, eq=False)
class Proved:
    """A dual with what it proves; `price`: what it took to find it (purse.py)."""

    dual: StepDual
    worth: Worth
    price: int = 0


def least_rounds(program: StepProgram) -> Proved:
    """A proof of the least R / parts of any algorithm of these steps."""
    return _proved(program, None)


def refute(program: StepProgram, rounds: Sequence[int]) -> Proved:
    """The strongest proof against so many rounds in each step: `worth.forbids` says whether it is one."""
    return _proved(program, rounds)


def _proved(program: StepProgram, rounds: Sequence[int] | None) -> Proved:
    solution = _solve(program, rounds)
    best: Proved | None = None
    for dual in _exact(program, solution):
        try:
            value = worth(program.instance, dual)
        except Invalid:
            continue
        if best is None or _strength(value, rounds) > _strength(best.worth, rounds):
            best = Proved(dual, value, PROGRAM + PIVOT_COLUMN * int(solution.nit) * program.variables)
        if float(_strength(best.worth, rounds)) >= solution.fun * (1 - 1e-9):
            break
    if best is None:
        raise RuntimeError("no exact dual came of the linear program")
    return best


def _strength(value: Worth, rounds: Sequence[int] | None) -> Fraction:
    if rounds is None:
        return value.rounds_per_part
    spent = sum((r * b for r, b in zip(rounds, value.budget, strict=True)), Fraction(0))
    return value.value / spent if spent else Fraction(0)


def _solve(program: StepProgram, rounds: Sequence[int] | None) -> Any:
    """HiGHS; with `rounds` given, by what factor they must be stretched."""
    from scipy.optimize import linprog
    from scipy.sparse import hstack

    steps, fits, equal = program.steps, program.fits, program.equal
    if rounds is not None:
        stretch = fits[:, :steps] @ np.array(rounds, float)
        fits = hstack([stretch[:, None], fits[:, steps:]], format="csr")
        equal = equal[:, steps - 1 :]  # the columns of rounds are empty here
    cost = np.zeros(fits.shape[1])
    cost[: steps if rounds is None else 1] = 1.0
    method = "highs-ds" if fits.shape[1] < 4000 else "highs-ipm"
    result = linprog(cost, A_ub=fits, b_ub=np.zeros(fits.shape[0]), A_eq=equal, b_eq=program.right, method=method)
    if result.status != 0:
        raise RuntimeError(f"the linear program over {steps} steps failed: {result.message}")
    return result


def split(
    program: StepProgram, parts: int, limit: int | None = None, effort_left: int | None = None
) -> tuple[list[int] | None, int]:
    """Whole rounds per step, as few as the program admits (at least one a step); None where they are over `limit`
    or none were found in MOST_NODES. And the price, of the effort that is `left`: all of it where that ended it.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    steps = program.steps
    cost, integrality, low = (np.zeros(program.variables) for _ in range(3))
    cost[:steps] = integrality[:steps] = low[:steps] = 1.0
    rows = [
        LinearConstraint(program.fits, -np.inf, 0.0),
        LinearConstraint(program.equal, program.right * parts, program.right * parts),
    ]
    if limit is not None:
        rows.append(LinearConstraint(cost[None], -np.inf, limit + 0.5))
    entries = program.fits.nnz + program.equal.nnz
    nodes = nodes_for(effort_left, entries, MOST_NODES)
    result = milp(
        cost, constraints=rows, integrality=integrality, bounds=Bounds(low, np.inf), options={"node_limit": nodes}
    )
    price = mixed_price(entries, result.mip_node_count or 0)
    if result.status == LIMIT_REACHED and nodes < MOST_NODES:
        price = max(price, effort_left or 0)
    return None if result.x is None else [round(r) for r in result.x[:steps]], price


def spans(program: StepProgram, parts: int, rounds: int) -> tuple[list[Floats], int]:
    """Real rounds per step that add up to `rounds`: for every step those with the most and the fewest in it. And the
    price."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, vstack

    steps = program.steps
    total = np.zeros((1, program.variables))
    total[0, :steps] = 1.0
    low = np.zeros(program.variables)
    low[:steps] = 1.0
    equal = vstack([program.equal, csr_array(total)], format="csr")
    right = np.concatenate([program.right * parts, [rounds]])
    extremes, price = [], 0
    for s in range(steps):
        for sign in (1.0, -1.0):
            cost = np.zeros(program.variables)
            cost[s] = sign
            best = linprog(
                cost, A_ub=program.fits, b_ub=np.zeros(program.fits.shape[0]), A_eq=equal, b_eq=right,
                bounds=np.stack([low, np.full(len(low), np.inf)], axis=1), method="highs-ds",
            )  # fmt: skip
            price += PROGRAM + PIVOT_COLUMN * int(best.nit) * program.variables
            if best.status == 0:
                extremes.append(best.x[:steps])
    return extremes, price


def _exact(program: StepProgram, solution: Any) -> list[StepDual]:
    """The float duals as whole numbers: by the least scales at which they are nearly whole, then finely."""
    prices = _prices(program, -solution.ineqlin.marginals)
    shared = [_lengths(program, number, solution) for number in range(len(program.orbits))]
    values = [prices.ravel()] + [table.ravel() for pair in shared if pair is not None for table in pair]
    flat = np.concatenate(values)
    top = float(np.abs(flat).max(initial=0.0))
    distinct = np.unique(np.round(flat / top, 9)) if top else flat[:0]
    small = distinct[np.abs(distinct) > 1e-7]
    scales = []
    if len(small) and len(small) < 400:
        for scale in range(1, _MOST_SCALE):
            scaled = small * scale
            if np.abs(scaled - np.round(scaled)).max() < 1e-4:
                scales.append(float(scale))
                break
    return [_rounded(program, prices / top, _over(shared, top), scale) for scale in [*scales, float(_FINE)]]


Pair = tuple[Floats, Floats]


def _over(shared: list[Pair | None], top: float) -> list[Pair | None]:
    return [None if pair is None else (pair[0] / top, pair[1] / top) for pair in shared]


def _prices(program: StepProgram, duals: Floats) -> Floats:
    """A price per resource and step, spread evenly over orbits of resources."""
    count = len(program.resources)
    per_orbit = duals[: count * program.steps].reshape(program.steps, count).T
    place = np.searchsorted(program.resources, program.resource_orbit)
    sizes = np.bincount(place, minlength=count)
    return np.asarray((per_orbit / sizes[:, None])[place])


def _lengths(program: StepProgram, number: int, solution: Any) -> Pair | None:
    """Lengths (dest, bond, step) of a commodity that spreads, averaged over what keeps it, and switch heights."""
    orbit = program.orbits[number]
    commodity = program.commodities[orbit.commodity]
    if not commodity.spreading:
        return None
    keepers = program.group.take(orbit.keepers)
    nodes, bonds = program.instance.nodes, len(program.instance.bonds)
    lengths = np.zeros((nodes, bonds, program.steps))
    for share in program.shares:
        if share.orbit != number:
            continue
        duals = -solution.ineqlin.marginals[share.first : share.first + len(share.bond)]
        alone = np.zeros((bonds, program.steps))
        alone[share.bond, share.step] = duals
        sizes = np.bincount(share.orbit_of, minlength=bonds)
        alone = alone[share.orbit_of] / sizes[share.orbit_of][:, None]
        for element in range(len(keepers)):  # image of (dest, bond): lengths go along
            lengths[keepers.nodes[element, share.dest], keepers.bonds[element]] += alone
    heights = np.zeros((nodes, program.steps))
    node_orbit = keepers.nodes.min(axis=0)
    for owner, switch, step, row in program.switch_rows:
        if owner == number:
            members = np.flatnonzero(node_orbit == switch)
            heights[members, step] = -solution.eqlin.marginals[row] / len(members)
    scale = len(orbit.members)
    return lengths / (len(keepers) * scale), heights / scale


def _rounded(program: StepProgram, prices: Floats, shared: list[Pair | None], scale: float) -> StepDual:
    """Whole numbers near these: lengths rounded down, and prices up so that they pay for all lengths."""
    instance = program.instance
    whole_prices = np.ceil(np.maximum(prices, 0.0) * scale - 1e-3).astype(np.int64)
    spreads: dict[int, Spread] = {}
    like: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
    lacking = np.zeros((len(instance.bonds), program.steps), np.int64)
    cost = whole_prices[: len(instance.bonds)].copy()
    for bond, limits in enumerate(instance.limits_of):
        for limit in limits:
            cost[bond] += whole_prices[limit]
    for orbit, pair in zip(program.orbits, shared, strict=True):
        if pair is None:
            continue
        lengths = np.floor(np.maximum(pair[0], 0.0) * scale + 1e-3).astype(np.int64)
        heights = np.round(pair[1] * scale).astype(np.int64)
        need = lengths.sum(axis=0) - heights[instance.head] + heights[instance.tail]
        owner = program.commodities[orbit.commodity].kinds[0]
        spreads[owner] = Spread(_sparse(lengths), _sparse(heights))
        need[~instance.useful(instance.kinds[owner], program.steps)] = 0
        for member, element in orbit.members.items():
            bonds, nodes = program.group.bonds[element], program.group.nodes[element]
            lacking[bonds] = np.maximum(lacking[bonds], need - cost[bonds])
            kind = program.commodities[member].kinds[0]
            if kind != owner:
                like[kind] = (owner, tuple(bonds.tolist()), tuple(nodes.tolist()))
    whole_prices[: len(instance.bonds)] += np.maximum(lacking, 0)
    return StepDual(program.steps, _sparse(whole_prices), spreads, like)


def _sparse(table: Table) -> Table:
    """The entries that are not 0, each as its place and its value."""
    place = np.argwhere(table)
    return np.column_stack([place, table[tuple(place.T)]]).astype(np.int64)
