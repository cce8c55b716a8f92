"""Lower bounds on the rounds of every schedule of at most S steps, from prices of resources, checked in whole numbers.

A resource is a bond, which is a group of parallel links, or a shared limit. A *move* is one chunk over one bond in one
step. With r_s rounds in step s there are at most b_q * r_s moves over resource q in it, where b_q is the resource's
chunks per round. With prices P[q, s] >= 0 all moves therefore cost at most

    sum over s of r_s * B_s    with    B_s = sum over q of b_q * P[q, s].

On the other hand, a chunk with one destination travels along a path through time, so its moves cost at least as much as
the cheapest such path. For a chunk with several destinations, each destination d has lengths of its own, which sum over
all d to at most the prices, because a move that serves several destinations costs its price once. The chunk's moves
then cost at least the sum over d of the cheapest path to d under the lengths of d. A block of weight w is cut into
w * parts_per_unit chunks (instance.py). With V the sum of these costs over w chunks of every block:

    sum over s of r_s * B_s >= parts_per_unit * V,   and so   R / parts_per_unit >= V / max B_s.

These are the duals of SCCL's problem as a linear program over time. `evaluate_dual` evaluates and checks them and
shares no code with the search for them.

Two refinements. Prices may be shifted along switches by potentials, which cancel over every path. Moves that come too
early or too late to be useful need no price: a schedule can leave them out.

Example: ranks 0 and 1 joined by one link of capacity 1 each way, alltoall with one chunk each way, 1 step. Price 1 on
both links: B_0 = 2, each chunk's cheapest path costs 1, V = 2, so R >= 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance, Kind
from antiphon.errors import Invalid

IntArray = NDArray[np.int64]
FAR_COST = 2**62  # of a node that no path reaches; a path that costs as much counts as none, so no cost overflows
MAX_PRICE = 2**40  # the greatest price that is accepted: the cost of a move stays far below FAR_COST


@dataclass(frozen=True, eq=False)
class PriceSplit:
    """Lengths per destination for one kind of chunks with several destinations. They split the price of a move among
    the destinations.

    `rows`: (destination, bond, step, length), where a bond is a group of parallel links (instance.py).
    `potentials`: (switch, step, value); a path adds the value on entering the switch and subtracts it on leaving.
    """

    rows: IntArray
    potentials: IntArray


@dataclass(frozen=True, eq=False)
class StepDual:
    """Prices of resources in each step, which bound the rounds of every schedule of at most `steps` steps.

    `prices`: rows (resource, step, price); resources are numbered bonds first, then shared limits (instance.py).
    `price_splits`: kind -> its `PriceSplit`, for kinds with several destinations.
    `like`: kind k -> (kind j, bonds, nodes): k has the split of j, renamed by these permutations of bonds and nodes.
    Kinds that a symmetry of the machine maps to each other need only one split.
    """

    steps: int
    prices: IntArray
    price_splits: Mapping[int, PriceSplit]
    like: Mapping[int, tuple[int, tuple[int, ...], tuple[int, ...]]]

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "prices": self.prices.tolist(),
            # the name of `price_splits` in files
            "spreads": [[k, s.rows.tolist(), s.potentials.tolist()] for k, s in self.price_splits.items()],
            "like": [[k, j, list(bonds), list(nodes)] for k, (j, bonds, nodes) in self.like.items()],
        }

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> StepDual:
        try:
            return StepDual(
                int(value["steps"]),
                _read_rows(value["prices"], width=3),
                {
                    int(k): PriceSplit(_read_rows(rows, width=4), _read_rows(potentials, width=3))
                    for k, rows, potentials in value["spreads"]
                },
                {int(k): (int(j), tuple(map(int, b)), tuple(map(int, n))) for k, j, b, n in value["like"]},
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Invalid(f"certificate: a dual in it cannot be read ({error!r}); plan anew") from None


def _read_rows(rows: Sequence[Sequence[int]], width: int) -> IntArray:
    return np.array(rows, np.int64).reshape(-1, width)


@dataclass(frozen=True)
class StepInequality:
    """The inequality that a `StepDual` proves for every schedule: sum over steps s of rounds[s] * round_price[s] >=
    parts_per_unit * value.

    `round_price`: per step, the price of everything that one round of it can carry (B_s in the module's docstring).
    `value`: the least cost of all moves at one chunk per unit of weight (V).
    """

    round_price: tuple[Fraction, ...]
    value: int

    @property
    def rounds_per_part(self) -> Fraction:
        """The least R / parts_per_unit that is possible."""
        return self.value / max(self.round_price) if self.value else Fraction(0)

    def forbids(self, rounds: Sequence[int], parts_per_unit: int) -> bool:
        """Return whether no schedule can have these rounds in its steps and this many chunks per unit of weight."""
        price = sum((r * b for r, b in zip(rounds, self.round_price, strict=True)), Fraction(0))
        return price < parts_per_unit * self.value


def evaluate_dual(instance: Instance, dual: StepDual) -> StepInequality:
    """Return what this dual proves; raise Invalid if it breaks a rule. O(kinds * destinations * bonds * steps)."""
    steps, resources = dual.steps, len(instance.capacity)
    require(1 <= steps <= 10**4, "its steps are out of range")
    prices = np.zeros((resources, steps), np.int64)
    _fill_array(prices, dual.prices, "price")
    cost = bond_costs(instance, prices)
    round_price = prices_of_round(instance, prices)
    require(max(round_price) > 0, "all its prices are 0")
    value = 0
    # Kinds with one destination use the plain costs, so their paths depend on the holders only.
    costs_from: dict[tuple[int, ...], IntArray] = {}
    for number, kind in enumerate(instance.kinds):
        if len(kind.dests) > 1:
            # Several destinations: lengths per destination, which sum to at most the cost of each move.
            costs = _cheapest_paths(instance, kind.holders, _destination_lengths(instance, kind, number, dual, cost))
            path_costs = costs[np.arange(len(kind.dests)), list(kind.dests)]
        else:
            if kind.holders not in costs_from:
                costs_from[kind.holders] = _cheapest_paths(instance, kind.holders, cost[None])
            path_costs = costs_from[kind.holders][0, list(kind.dests)]
        require(bool(np.all(path_costs < FAR_COST)), "a destination is out of reach within its steps")
        value += kind.weight * int(path_costs.sum())  # the weight of all blocks of the kind
    return StepInequality(round_price, value)


def bond_costs(instance: Instance, prices: IntArray) -> IntArray:
    """Return the cost of a move by bond and step: the bond's price plus those of the shared limits that it loads.

    `prices`: by resource and step; bonds come first.
    """
    costs = prices[: len(instance.bonds)].copy()
    for bond, limits in enumerate(instance.limits_of):
        costs[bond] += prices[list(limits)].sum(axis=0)
    return costs


def prices_of_round(instance: Instance, prices: IntArray) -> tuple[Fraction, ...]:
    """Return B_s per step s: the price of everything that the resources can carry in one round of it."""
    return tuple(
        sum((b * int(p) for b, p in zip(instance.capacity, step_prices, strict=True) if p), Fraction(0))
        for step_prices in prices.T
    )


def _destination_lengths(instance: Instance, kind: Kind, number: int, dual: StepDual, cost: IntArray) -> IntArray:
    """Return the lengths of moves for each destination of a kind; check that they sum to at most the move's cost.

    `number`: of the kind. `cost`: by bond and step.
    """
    representative, bonds, nodes = dual.like.get(number, (number, (), ()))  # no entry: the kind has its own split
    split = dual.price_splits.get(representative)
    lengths = np.zeros((len(kind.dests), *cost.shape), np.int64)
    if split is None:  # lengths 0, which prove nothing about this kind
        return lengths
    rows, potentials = split.rows.copy(), split.potentials.copy()
    # The split is stored for one representative kind; relabel it by a permutation of bonds and nodes.
    if bonds:
        require(sorted(bonds) == list(range(len(cost))), "a renaming of bonds is no permutation")
        require(sorted(nodes) == list(range(instance.nodes)), "a renaming of nodes is no permutation")
        require(_in_range(rows[:, 0], instance.nodes) and _in_range(rows[:, 1], len(cost)), "a length is out of range")
        require(_in_range(potentials[:, 0], instance.nodes), "a potential is out of range")
        rows[:, 0], rows[:, 1] = np.array(nodes)[rows[:, 0]], np.array(bonds)[rows[:, 1]]
        potentials[:, 0] = np.array(nodes)[potentials[:, 0]]
    dest_index = np.full(instance.nodes, -1, np.int64)  # -1, which _fill_array refuses: no destination
    dest_index[list(kind.dests)] = np.arange(len(kind.dests))
    require(_in_range(rows[:, 0], instance.nodes), "a length is for a node that is not there")
    rows[:, 0] = dest_index[rows[:, 0]]
    _fill_array(lengths, rows, "length")
    potential = np.zeros((instance.nodes, cost.shape[1]), np.int64)
    require(bool(np.all(potentials[:, 0] >= instance.ranks)), "only switches have potentials")
    _fill_array(potential, potentials, "potential", signed=True)
    # A path adds the potential of a switch on entering and subtracts it on leaving: the cost of the path is unchanged.
    shifted_cost = cost + potential[instance.head] - potential[instance.tail]
    # Lengths of moves outside the useful time window are unlimited: no chunk needs these moves.
    useless = ~instance.useful_moves(kind, cost.shape[1])
    require(bool(np.all((lengths.sum(axis=0) <= shifted_cost) | useless)), "it shares out more than a move costs")
    return lengths


def _fill_array(array: IntArray, rows: IntArray, label: str, signed: bool = False) -> None:
    """Write rows (indices, value) into an array, checked for range. Of rows with the same indices the last counts.

    Values may be negative only if `signed`.
    """
    index, values = rows[:, :-1], rows[:, -1]
    inside = all(_in_range(index[:, i], size) for i, size in enumerate(array.shape))
    require(inside, f"a {label} is out of range")
    require(bool(np.all(np.abs(values) <= MAX_PRICE)), f"a {label} is too great")
    require(signed or bool(np.all(values >= 0)), f"a {label} is negative")
    array[tuple(index.T)] = values


def _in_range(values: NDArray[Any], count: int) -> bool:
    return bool(np.all((values >= 0) & (values < count)))


def _cheapest_paths(instance: Instance, holders: Sequence[int], lengths: IntArray) -> IntArray:
    """Return the cost of the cheapest path from the holders to every node within the steps, for each destination.

    `lengths`: (destination, bond, step); one entry if all destinations share the lengths.
    """
    ranks = instance.ranks
    cost = np.full((len(lengths), instance.nodes), FAR_COST, np.int64)
    cost[:, list(holders)] = 0
    into_rank = np.flatnonzero(instance.head < ranks)
    into_switch = np.flatnonzero(instance.head >= ranks)
    # Bellman-Ford per step: any number of hops through switches, then one hop into a rank. Waiting at a rank is free.
    for step in range(lengths.shape[2]):
        # Chunks do not stay in switches between steps.
        cost[:, ranks:] = FAR_COST
        for _ in range(instance.nodes - ranks):  # a path has at most as many hops as there are switches
            previous_cost = cost[:, ranks:].copy()
            _relax_bonds(cost, instance, into_switch, lengths[:, :, step])
            if np.array_equal(previous_cost, cost[:, ranks:]):
                break
        _relax_bonds(cost, instance, into_rank, lengths[:, :, step])
    return cost


def _relax_bonds(cost: IntArray, instance: Instance, bonds: NDArray[np.int64], length: IntArray) -> None:
    """Lower the costs of the heads of these bonds to the cost of their tails plus the length."""
    tails = cost[:, instance.tail[bonds]]
    arriving = np.where(tails < FAR_COST, tails + length[:, bonds], FAR_COST)
    # Column by column: several bonds may share a head, which plain fancy indexing would overwrite.
    for column, head in enumerate(instance.head[bonds].tolist()):
        np.minimum(cost[:, head], arriving[:, column], out=cost[:, head])


def require(holds: bool, failure: str) -> None:
    """Raise Invalid, with `failure` as the reason, unless a rule of duals holds."""
    if not holds:
        raise Invalid(f"certificate: its dual does not hold: {failure}; plan anew")
