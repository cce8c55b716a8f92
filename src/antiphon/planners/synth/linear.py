"""Solve the linear program over time (program.py) and prove its value exactly.

The linear program gives the least rounds per part (R / parts, parts being chunks per block) for a number of steps.
HiGHS solves it in floating point, which proves nothing. By LP duality, any feasible dual solution gives a lower bound,
which is easy to check exactly. A dual assigns each resource (bond or shared limit) and step a price, and each bond and
step a length for every destination of a multicast. The price of a copy must cover the lengths of all destinations that
it serves.
`_exact_duals` scales the float dual so that it is nearly integral and rounds it to integers: lengths down, prices up,
then up again where they do not cover the lengths. `core.ksync.dual.evaluate_dual` computes its bound in exact
arithmetic. Rounding can only weaken the bound, never make it wrong.

Example: allgather on a ring of 4 in many steps: price 1 on every directed link in every step. Each of the 4 * 3 foreign
chunks needs at least one link crossing, a round has room for 8, so R / C >= 12 / 8 = 3 / 2.

Entry points: `least_rounds` (the bound for a number of steps), `refute_rounds` (is this split, the rounds of each step,
impossible?), `split_rounds` (a split that the program admits, by mixed-integer programming) and `extreme_splits`
(splits with as many and as few rounds as possible in each step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.dual import PriceSplit, StepDual, StepInequality, evaluate_dual
from antiphon.errors import Invalid
from antiphon.planners.synth.effort_budget import LIMIT_REACHED, PIVOT_COLUMN, PROGRAM, mixed_price, nodes_for
from antiphon.planners.synth.program import StepProgram

Table = NDArray[np.int64]
Floats = NDArray[np.float64]
MOST_NODES = 2000  # search nodes of a mixed-integer program
_MOST_SCALE = 6000  # scales up to this are tried for one that makes the dual nearly integral
_FINE_SCALE = 10**7  # scale of the second attempt, where rounding hardly weakens the bound
_MOST_VALUES = 400  # distinct dual values; with more, only the fine scale is tried
_NOISE = 1e-7  # relative to the greatest dual value: less is the solver's error
_NEARLY_WHOLE = 1e-4  # scaled values this near to whole numbers are whole
_ROUNDING = 1e-3  # of scaled values: prices this little above a whole number, and lengths below it, become that
_SAME_BOUND = 1 - 1e-9  # an exact bound of at least this multiple of the float optimum equals it
_SIMPLEX_VARIABLES = 4000  # from this size on, HiGHS's interior-point method is faster than its simplex method


@dataclass(frozen=True, eq=False)
class Proved:
    """A dual with the bound that it proves. `price`: the effort spent on it, not a price of links.

    `worth`: in every algorithm, the sum over steps of rounds[s] * worth.round_price[s] is at least parts * worth.value.
    """

    dual: StepDual
    worth: StepInequality
    price: int = 0


def least_rounds(program: StepProgram) -> Proved:
    """Return a proof of the least R / parts of any algorithm with the program's number of steps."""
    return _find_dual(program, rounds=None)


def refute_rounds(program: StepProgram, rounds: Sequence[int]) -> Proved:
    """Return the strongest proof against these rounds per step; `worth.forbids`: whether it is conclusive."""
    return _find_dual(program, rounds)


def _find_dual(program: StepProgram, rounds: Sequence[int] | None) -> Proved:
    """Solve the program and return the strongest of its exact duals."""
    solution = _solve_program(program, rounds)
    best: Proved | None = None
    for dual in _exact_duals(program, solution):
        try:
            worth = evaluate_dual(program.instance, dual)
        except Invalid:  # rounding broke a rule of duals, such as that not all prices are 0
            continue
        if best is None or _dual_strength(worth, rounds) > _dual_strength(best.worth, rounds):
            best = Proved(dual, worth, PROGRAM + PIVOT_COLUMN * int(solution.nit) * program.variables)
        # as strong as the float optimum: a finer scale cannot improve it
        if float(_dual_strength(best.worth, rounds)) >= solution.fun * _SAME_BOUND:
            break
    if best is None:
        raise RuntimeError("no exact dual of the linear program was found")
    return best


def _dual_strength(worth: StepInequality, rounds: Sequence[int] | None) -> Fraction:
    """Return the bound that a dual proves: least R / parts, or with `rounds` the factor by which these must be
    stretched.
    """
    if rounds is None:
        return worth.rounds_per_part
    spent = sum((r * price for r, price in zip(rounds, worth.round_price, strict=True)), Fraction(0))
    return worth.value / spent if spent else Fraction(0)


def _solve_program(program: StepProgram, rounds: Sequence[int] | None) -> Any:
    """Solve with HiGHS; with `rounds`, minimize the factor by which these rounds must be stretched."""
    from scipy.optimize import linprog
    from scipy.sparse import hstack

    steps, inequalities, equalities = program.steps, program.inequalities, program.equalities
    if rounds is not None:
        # Replace the r_s columns by one column t, the factor: r_s = t * rounds[s].
        stretch = inequalities[:, :steps] @ np.array(rounds, float)
        inequalities = hstack([stretch[:, None], inequalities[:, steps:]], format="csr")
        equalities = equalities[:, steps - 1 :]  # the columns of rounds are empty here; one of them serves for t
    cost = np.zeros(inequalities.shape[1])
    cost[: steps if rounds is None else 1] = 1.0
    method = "highs-ds" if inequalities.shape[1] < _SIMPLEX_VARIABLES else "highs-ipm"
    result = linprog(
        cost, A_ub=inequalities, b_ub=np.zeros(inequalities.shape[0]), A_eq=equalities, b_eq=program.equality_values,
        method=method,
    )  # fmt: skip
    if result.status != 0:
        raise RuntimeError(f"the linear program over {steps} steps failed: {result.message}")
    return result


def split_rounds(
    program: StepProgram, parts: int, limit: int | None = None, effort_left: int | None = None
) -> tuple[list[int] | None, int]:
    """Return the fewest integral rounds per step that the program admits (at least 1 each), and the effort spent.

    None if they exceed `limit`, or if MOST_NODES search nodes found none. `effort_left` limits the nodes; if that limit
    ended the search, all of it is the price.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    steps = program.steps
    cost, integrality, low = (np.zeros(program.variables) for _ in range(3))
    cost[:steps] = integrality[:steps] = low[:steps] = 1.0
    rows = [
        LinearConstraint(program.inequalities, -np.inf, 0.0),
        LinearConstraint(program.equalities, program.equality_values * parts, program.equality_values * parts),
    ]
    if limit is not None:
        rows.append(LinearConstraint(cost[None], -np.inf, limit + 0.5))  # rounds are whole; 0.5 leaves room for errors
    entries = program.inequalities.nnz + program.equalities.nnz
    nodes = nodes_for(effort_left, entries, MOST_NODES)
    result = milp(
        cost, constraints=rows, integrality=integrality, bounds=Bounds(low, np.inf), options={"node_limit": nodes}
    )
    price = mixed_price(entries, result.mip_node_count or 0)
    if result.status == LIMIT_REACHED and nodes < MOST_NODES:
        price = max(price, effort_left or 0)
    return None if result.x is None else [round(r) for r in result.x[:steps]], price


def extreme_splits(program: StepProgram, parts: int, rounds: int) -> tuple[list[Floats], int]:
    """Return real-valued splits of `rounds`: for every step one with the most and one with the fewest rounds in it;
    and the effort spent.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, vstack

    steps = program.steps
    total = np.zeros((1, program.variables))
    total[0, :steps] = 1.0
    low = np.zeros(program.variables)
    low[:steps] = 1.0
    equalities = vstack([program.equalities, csr_array(total)], format="csr")
    equality_values = np.concatenate([program.equality_values * parts, [rounds]])
    extremes, price = [], 0
    for s in range(steps):
        for sign in (1.0, -1.0):  # the fewest rounds of step s, then the most
            cost = np.zeros(program.variables)
            cost[s] = sign
            best = linprog(
                cost, A_ub=program.inequalities, b_ub=np.zeros(program.inequalities.shape[0]), A_eq=equalities,
                b_eq=equality_values, bounds=np.stack([low, np.full(len(low), np.inf)], axis=1), method="highs-ds",
            )  # fmt: skip
            price += PROGRAM + PIVOT_COLUMN * int(best.nit) * program.variables
            if best.status == 0:
                extremes.append(best.x[:steps])
    return extremes, price


def _exact_duals(program: StepProgram, solution: Any) -> list[StepDual]:
    """Return integral duals near the float one: at the smallest scale where it is nearly integral, then at a fine
    scale.
    """
    prices = _resource_prices(program, -solution.ineqlin.marginals)
    lengths_of = [_spread_lengths(program, number, solution) for number in range(len(program.orbits))]
    values = [prices.ravel()] + [table.ravel() for dual in lengths_of if dual is not None for table in dual]
    flat = np.concatenate(values)
    top = float(np.abs(flat).max(initial=0.0))
    # the smallest scale at which all values, relative to the greatest, are nearly whole
    distinct = np.unique(np.round(flat / top, 9)) if top else flat[:0]
    nonzero = distinct[np.abs(distinct) > _NOISE]
    scales = []
    if len(nonzero) and len(nonzero) < _MOST_VALUES:
        for scale in range(1, _MOST_SCALE):
            scaled = nonzero * scale
            if np.abs(scaled - np.round(scaled)).max() < _NEARLY_WHOLE:
                scales.append(float(scale))
                break
    return [
        _round_dual(program, prices / top, _divide_lengths(lengths_of, top), scale)
        for scale in [*scales, float(_FINE_SCALE)]
    ]


class MulticastDual(NamedTuple):
    """The dual values of a multicast. Heights are the potentials of ksync/dual.py."""

    lengths: Floats  # by destination, bond and step
    heights: Floats  # by node (0 but for switches) and step


def _divide_lengths(lengths_of: list[MulticastDual | None], top: float) -> list[MulticastDual | None]:
    """Return all lengths and heights divided by the greatest dual value."""
    return [None if dual is None else MulticastDual(dual.lengths / top, dual.heights / top) for dual in lengths_of]


def _resource_prices(program: StepProgram, duals: Floats) -> Floats:
    """Return the price of each resource in each step, spread evenly over orbits of resources."""
    # the first rows of the program bound loads, step by step, with one row per orbit (`StepProgram.load_row`)
    count = len(program.resources)
    per_orbit = duals[: count * program.steps].reshape(program.steps, count).T
    place = np.searchsorted(program.resources, program.resource_orbit)
    sizes = np.bincount(place, minlength=count)
    return np.asarray((per_orbit / sizes[:, None])[place])


def _spread_lengths(program: StepProgram, number: int, solution: Any) -> MulticastDual | None:
    """Return a multicast's lengths, averaged over the symmetries that fix it, and the heights of the switches (dual
    values of their flow conservation); None for other commodities.
    """
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
        dest_lengths = np.zeros((bonds, program.steps))
        dest_lengths[share.bond, share.step] = duals
        sizes = np.bincount(share.orbit_of, minlength=bonds)
        dest_lengths = dest_lengths[share.orbit_of] / sizes[share.orbit_of][:, None]  # bonds of an orbit share equally
        # the program has one destination per orbit; its image under a keeper gives another destination's lengths
        for element in range(len(keepers)):  # the image of a destination and a bond has the same length
            lengths[keepers.nodes[element, share.dest], keepers.bonds[element]] += dest_lengths
    heights = np.zeros((nodes, program.steps))
    node_orbit = keepers.nodes.min(axis=0)
    for owner, switch, step, row in program.switch_rows:
        if owner == number:
            members = np.flatnonzero(node_orbit == switch)
            heights[members, step] = -solution.eqlin.marginals[row] / len(members)
    # the program's dual values count all commodities of the orbit; each gets an equal share
    scale = len(orbit.members)
    return MulticastDual(lengths / (len(keepers) * scale), heights / scale)


def _round_dual(program: StepProgram, prices: Floats, lengths_of: list[MulticastDual | None], scale: float) -> StepDual:
    """Return an integral dual near these floats: lengths rounded down, prices up until they cover all lengths."""
    instance = program.instance
    integer_prices = np.ceil(np.maximum(prices, 0.0) * scale - _ROUNDING).astype(np.int64)
    price_splits: dict[int, PriceSplit] = {}
    # kind -> (the kind of `price_splits` that it is an image of, the image of every bond, the image of every node)
    like: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
    missing_price = np.zeros((len(instance.bonds), program.steps), np.int64)
    # of a bond: its own price and those of its limits
    cost = integer_prices[: len(instance.bonds)].copy()
    for bond, limits in enumerate(instance.limits_of):
        for limit in limits:
            cost[bond] += integer_prices[limit]
    for orbit, dual in zip(program.orbits, lengths_of, strict=True):
        if dual is None:
            continue
        lengths = np.floor(np.maximum(dual.lengths, 0.0) * scale + _ROUNDING).astype(np.int64)
        heights = np.round(dual.heights * scale).astype(np.int64)
        # dual feasibility of a copy on a bond: price + height(head) - height(tail) >= sum of the lengths that it serves
        need = lengths.sum(axis=0) - heights[instance.head] + heights[instance.tail]
        owner = program.commodities[orbit.commodity].kinds[0]  # a multicast is of a single kind
        price_splits[owner] = PriceSplit(_nonzero_entries(lengths), _nonzero_entries(heights))
        # moves that are of no use need no price (ksync/dual.py)
        need[~instance.useful_moves(instance.kinds[owner], program.steps)] = 0
        for member, element in orbit.members.items():
            bonds, nodes = program.group.bonds[element], program.group.nodes[element]
            missing_price[bonds] = np.maximum(missing_price[bonds], need - cost[bonds])
            kind = program.commodities[member].kinds[0]
            if kind != owner:
                like[kind] = (owner, tuple(bonds.tolist()), tuple(nodes.tolist()))
    integer_prices[: len(instance.bonds)] += np.maximum(missing_price, 0)
    return StepDual(program.steps, _nonzero_entries(integer_prices), price_splits, like)


def _nonzero_entries(table: Table) -> Table:
    """Return the nonzero entries of a table, one row of indices and value each."""
    place = np.argwhere(table)
    return np.column_stack([place, table[tuple(place.T)]]).astype(np.int64)
