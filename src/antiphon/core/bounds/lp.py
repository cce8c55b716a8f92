"""Bounds by linear programming: fit the flows of a collective under one load per link; the dual, made exact, is the
witness.

    minimise T   over loads x and flows f
    such that    the flows of each family sum to at most x on every link      (families share loads: bytes are copied)
                 x <= capacity * T on every link, and summed over every shared limit
                 what enters a switch that only forwards leaves it again
                 loads cross each partition often enough                      (allreduce only)

A *family* is a set of needs whose bytes are distinct, so that their loads add up, such as everything that one rank must
receive (families.py). A *commodity* is a flow from one node to many, or from many to one; the flows of a family are
modelled as commodities.

Any schedule gives a feasible point, so the optimum is a lower bound. HiGHS solves it in floating point, which proves
nothing by itself. By duality any non-negative prices of links give a bound:

    T  >=  (sum over needs of weight * length of the shortest path)  /  (sum over links of price * capacity)

where each family has lengths of links of its own, and on every link the lengths of all families sum to at most its
price (`LpDual` has the full formula). So the float duals are rounded to whole numbers with small ratios: the cone of
duals is defined by small whole coefficients (capacities only normalise the duals), so its extreme rays tend to have
small integer entries. Link prices are raised to at least the sum of the lengths, and the result is evaluated exactly
(recheck.py).

Example: a broadcast of N bytes over two parallel paths of 1 and 2 GB/s. The optimal duals price the two links equally,
at 0.333 each. Rounded to 1 and 1, the prices times capacities sum to 3 GB/s, and the shortest path has length 1:
T >= N / (3 GB/s).

Input: needs grouped into families. Output: `BoundProgram.solve` returns the float optimum, `exact_witnesses` the
candidates `LpDual` for the exact recheck.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.families import Commodity, FamilyRows, commodities_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.witness import Family, LpDual, Partition
from antiphon.core.columns import Bools, Floats, Longs
from antiphon.core.portable import row_dot
from antiphon.core.topology import Topology

# A scale is the greatest price after rounding.
_MAX_SCALE = 5000  # scales 1, 2, ... below this are tried, until three make all prices nearly whole numbers
_MANY_PRICES = 1000  # with this many distinct prices, only scales below _FEW_SCALES are tried
_FEW_SCALES = 100
_FINE_SCALE = 10**11  # tried last: rounding changes prices by less than 1e-11 of the greatest
_SIMPLEX_VARIABLES = 3000  # from this size on, HiGHS's interior-point method is faster than its simplex method
_LOAD_TOLERANCE = 1e-7  # relative; loads of the solver are off by less


@dataclass(frozen=True, eq=False)
class MergedArcs:
    """Links that join the same nodes under the same shared limits, merged into one arc.

    `capacity`, `exact`: the summed capacity as float and as int, in units of `resources.scale` bytes per second.
    `limits`: per arc the numbers of its shared limits. `links`: per arc the links that were merged.
    """

    tail: Longs
    head: Longs
    capacity: NDArray[np.float64]
    exact: tuple[int, ...]
    limits: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.tail)


def arcs_of(topology: Topology) -> MergedArcs:
    """Merge the parallel links of a topology into arcs."""
    resources = topology.resources
    merged: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    for link, (a, b) in enumerate(ends):
        key = (a, b, tuple(sorted(limit - topology.links for limit in resources.limits_of(link))))
        merged.setdefault(key, []).append(link)
    total = [sum(map(resources.scaled_capacity, links)) for links in merged.values()]
    tail, head, limits = zip(*merged, strict=True)
    return MergedArcs(
        np.array(tail, np.int64), np.array(head, np.int64), np.array(total, float), tuple(total),
        limits,
        tuple(tuple(links) for links in merged.values()),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Solution:
    """A floating-point optimum: its time, the load of every arc, and the dual values from which a witness is made."""

    time: float
    load: NDArray[np.float64]  # per arc, in units of the program's greatest supply
    link_price: NDArray[np.float64]  # per arc
    limit_price: NDArray[np.float64]  # per shared limit
    lengths: NDArray[np.float64]  # families x arcs
    potentials: NDArray[np.float64]  # per switch
    multipliers: NDArray[np.float64]  # per partition


class JointSolution(NamedTuple):
    """The optimum of programs that share the links (joint.py): a solution for each, all with the same time.

    `weights[i] * groups[i].load` is the load of group i in weights of the joint collective.
    """

    groups: list[Solution]
    weights: list[float]


@dataclass(eq=False)
class BoundProgram:
    """The linear program of one collective on one machine; partitions may be added between solutions."""

    topology: Topology
    families: Sequence[FamilyRows]
    needs: Needs
    is_combining: Bools  # per node, whether it is a rank or a switch that combines or copies data (abilities.py)
    shared: bool = False  # whether other collectives use the links at the same time (joint.py)
    partitions: list[tuple[Partition, NDArray[np.float64]]] = field(default_factory=list)  # with crossings per arc

    def __post_init__(self) -> None:
        self.arcs = arcs_of(self.topology)
        self.commodities = commodities_of(self.families, self.needs)
        # A contribution with several holders starts at an extra node with a free arc to each of its holders.
        sets = sorted({i for c in self.commodities for kind, i in _all_ends(c) if kind == "set"})
        self._set_node = {number: self.topology.nodes + index for index, number in enumerate(sets)}
        free_arcs = [(self._set_node[s], rank) for s in sets for rank in self.needs.sets[s]]
        self._tail = np.concatenate([self.arcs.tail, np.array([a for a, _ in free_arcs], np.int64)])
        self._head = np.concatenate([self.arcs.head, np.array([b for _, b in free_arcs], np.int64)])
        self._nodes = self.topology.nodes + len(sets)

    def add_partition(self, partition: Partition, solution: Solution | None = None) -> bool:
        """Require that loads of `partition.times` times its weight cross a partition; return whether this was added.

        With `solution`, it is added only if the loads of that solution violate it by more than rounding. The loads of a
        solution are in units of the program's greatest supply, which here is the partition's weight: partitions are for
        an allreduce, in which all data go from one rank to another.
        """
        arcs = self.arcs
        crossings = count_crossings(arcs.tail, arcs.head, partition.parts, partition.direction, self.topology.nodes)
        is_listed = any(p.parts == partition.parts and p.direction == partition.direction for p, _ in self.partitions)
        if is_listed or (
            solution is not None and float(row_dot(crossings, solution.load)) > partition.times * (1 - _LOAD_TOLERANCE)
        ):
            return False
        self.partitions.append((partition, crossings))
        return True

    @property
    def _single(self) -> bool:
        """Whether there is one family, no partition, and no other collective: then loads equal the family's flow."""
        return len(self.families) == 1 and not self.partitions and not self.shared

    @property
    def size(self) -> int:
        """About the number of variables (`size_of`); solving costs a little more than linear in it."""
        return size_of(self.topology.links, len(self.commodities))

    def _flow_conservation(self) -> tuple[Any, NDArray[np.float64]]:
        """Return the equations of every flow: out minus in equals supply, at every node but its root."""
        import scipy.sparse as sp

        arcs = len(self._tail)
        incidence = sp.csr_array(
            (np.repeat([1.0, -1.0], arcs), (np.concatenate([self._tail, self._head]), np.tile(np.arange(arcs), 2))),
            shape=(self._nodes, arcs),
        )
        blocks, supplies = [], []
        for commodity in self.commodities:
            supply = np.zeros(self._nodes)
            for end, amount in commodity.ends:
                supply[self._node_number(end)] += -amount if commodity.forward else amount
            # Conservation at the root follows from that at all other nodes; dropping it keeps the rows independent.
            is_kept = np.arange(self._nodes) != self._node_number(commodity.root)
            blocks.append(incidence[is_kept])
            supplies.append(supply[is_kept])
        return sp.block_diag(blocks, format="csr"), np.concatenate(supplies)

    def _node_number(self, end: tuple[str, int]) -> int:
        """Return the node of an end: ("node", its number) or ("set", the number of a set of holders)."""
        kind, number = end
        return number if kind == "node" else self._set_node[number]

    def _switch_balance(self) -> Any:
        """Return the equations of loads at switches that only forward: in minus out is 0."""
        import scipy.sparse as sp

        arcs = len(self.arcs)
        ends = np.concatenate([self.arcs.head, self.arcs.tail])
        incidence = sp.csr_array(
            (np.repeat([1.0, -1.0], arcs), (ends, np.tile(np.arange(arcs), 2))), shape=(self.topology.nodes, arcs)
        )
        return incidence[np.flatnonzero(~self.is_combining)]

    def _limit_rows(self) -> tuple[Any, NDArray[np.float64]]:
        """Return which arcs count toward each shared limit, and the limits' capacities."""
        import scipy.sparse as sp

        resources, links = self.topology.resources, self.topology.links
        pairs = [(limit, arc) for arc, limits_on_arc in enumerate(self.arcs.limits) for limit in limits_on_arc]
        row, column = np.array(pairs, np.int64).reshape(-1, 2).T
        count = len(self.topology.limits)
        capacity = [resources.scaled_capacity(links + i) for i in range(count)]
        return sp.csr_array((np.ones(len(pairs)), (row, column)), shape=(count, len(self.arcs))), np.array(
            capacity, float
        )

    def _load_rows(self) -> tuple[tuple[Any, Any], tuple[Any, Floats]]:
        """Return the inequalities of loads and flows, as matrices with right-hand sides of "at most".

        First the flows of each family under the loads (the columns of loads and of flows; at most 0), then the loads
        that cross each partition often enough (the columns of loads, and the right-hand sides).
        """
        import scipy.sparse as sp

        arcs, count = len(self.arcs), len(self.commodities)
        family = np.array([c.family for c in self.commodities])
        membership = sp.csr_array((np.ones(count), (family, np.arange(count))), shape=(len(self.families), count))
        # The flow on the free arcs, which come last, counts as no load: the identity has rows for the other arcs only.
        flows_of_family = sp.kron(membership, sp.eye_array(arcs, len(self._tail), format="csr"), format="csr")
        load_of_family = sp.kron(np.ones((len(self.families), 1)), sp.eye_array(arcs), format="csr")
        crossing = np.array([crossings for _, crossings in self.partitions]).reshape(-1, arcs)
        minimum = np.array([-1.0 * p.times * p.weight for p, _ in self.partitions])
        return (-load_of_family, flows_of_family), (sp.csr_array(-crossing), minimum)

    def solve(self, time_scale: float) -> Solution | None:
        """Return the optimum by HiGHS, or None if it fails. `time_scale`: as of `solve_programs`."""
        solved = solve_programs([self], [1], time_scale)
        return None if solved is None else solved.groups[0]

    def _switch_potentials(self, duals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the dual value of every switch's balance; 0 for switches that combine or copy."""
        potentials = np.zeros(self.topology.switches)
        if len(duals):
            potentials[~self.is_combining[self.topology.ranks :]] = duals
        return potentials

    def exact_witnesses(self, solution: Solution) -> Iterator[LpDual]:
        """Yield exact witnesses rounded from the float duals, the simplest first."""
        dual_vectors = (solution.lengths.ravel(), solution.limit_price, solution.potentials, solution.multipliers)
        # One family: its lengths are the prices of links, and its balanced flow needs no potentials.
        if self._single:
            dual_vectors = (solution.link_price, solution.limit_price, solution.potentials[:0], solution.multipliers)
        for rounded in round_vectors(dual_vectors):
            witness = self._assemble_dual(*rounded)
            if witness.prices:
                yield witness

    def _assemble_dual(
        self, lengths: list[int], limits: list[int], potentials: list[int], multipliers: list[int]
    ) -> LpDual:
        """Build a witness from whole-number duals, with the least link prices that cover all lengths.

        `lengths`: per arc, family by family. `limits`, `potentials`, `multipliers`: as in `Solution`.
        """
        topology, arcs = self.topology, len(self.arcs)
        single = self._single
        limits = [max(v, 0) for v in limits]
        lengths = [max(v, 0) for v in lengths]
        price = lengths if single else self._required_prices(lengths, limits, potentials, multipliers)
        prices = [(link, p) for arc, p in enumerate(price) if p for link in self.arcs.links[arc]]
        prices += [(topology.links + i, p) for i, p in enumerate(limits) if p]
        families = []
        for number, family in enumerate(self.families):
            own_lengths = lengths[number * arcs : (number + 1) * arcs]
            pairs = tuple(sorted((link, v) for arc, v in enumerate(own_lengths) if v for link in self.arcs.links[arc]))
            if pairs or single:
                families.append(Family(family.kind, family.ranks, None if single else pairs))
        return LpDual(
            tuple(sorted(prices)),
            tuple(families),
            tuple((topology.ranks + i, v) for i, v in enumerate(potentials) if v),
            tuple((p, factor) for (p, _), factor in zip(self.partitions, multipliers, strict=True) if factor > 0),
        )

    def _required_prices(
        self, lengths: list[int], limits: list[int], potentials: list[int], multipliers: list[int]
    ) -> list[int]:
        """Return per arc the least price at which its cost covers the lengths of all families and all crossings.

        Parameters as of `_assemble_dual`.
        """
        ranks, arcs = self.topology.ranks, len(self.arcs)
        potential = [0] * ranks + potentials
        price = []
        for arc, (tail, head) in enumerate(zip(self.arcs.tail.tolist(), self.arcs.head.tolist(), strict=True)):
            # Dual feasibility: price + limits + potential(head) - potential(tail) >= lengths + crossings.
            min_price = sum(lengths[arc::arcs])  # the lengths of this arc in all families
            for (_, crossings), multiplier in zip(self.partitions, multipliers, strict=True):
                min_price += int(crossings[arc]) * max(multiplier, 0)
            min_price -= sum(limits[i] for i in self.arcs.limits[arc])
            price.append(max(0, min_price - potential[head] + potential[tail]))
        return price


def solve_programs(
    programs: Sequence[BoundProgram], scales: Sequence[int], time_scale: float, hop_weight: float = 0.0
) -> JointSolution | None:
    """Return the optimum of programs side by side, which share the links, or None if HiGHS fails.

    `scales`: the weight of a program's blocks in the joint collective per weight of their own. `time_scale`: the order
    of magnitude of T (a known bound), used as its unit, because capacities may differ by orders of magnitude.
    `hop_weight`: a weight at which short routes count, too, so that loads take no detour without need; the time may
    then exceed the optimum by about this fraction.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    merged_arcs = programs[0].arcs
    arcs = len(merged_arcs)
    flows = [program._flow_conservation() for program in programs]
    # Scale supplies to about 1 and T to about 1, so that HiGHS sees well-conditioned rows: the loads and flows of a
    # program are in units of its greatest supply. The greatest supply of program i, times scales[i], is
    # relative_supply[i] * unit.
    supply = [float(np.abs(right_side).max()) for _, right_side in flows]
    unit = max(s * scale for s, scale in zip(supply, scales, strict=True))
    relative_supply = [s * scale / unit for s, scale in zip(supply, scales, strict=True)]
    # All programs are of the same machine: the first has its arcs and limits.
    limit, limit_capacity = programs[0]._limit_rows()
    capacities = np.concatenate([merged_arcs.capacity, limit_capacity]) * (time_scale / unit)
    over_resources = sparse.vstack([sparse.eye_array(arcs), limit], format="csr")
    # Rows with a capacity above 1 are divided by it, so that no entry exceeds 1 and the entries of narrow links do not
    # vanish beside those of wide ones.
    divisor = np.maximum(capacities, 1)
    # Columns: T, then for every program its loads and its flows.
    columns = 1 + 2 * len(programs)
    upper: list[list[Any]] = [[sparse.csr_array(-np.minimum(capacities, 1)[:, None]), *[None] * (columns - 1)]]
    upper_right: list[Floats] = [np.zeros(len(capacities))]
    equal: list[list[Any]] = []
    equal_right: list[Floats] = []
    for i, (program, (conservation, right_side)) in enumerate(zip(programs, flows, strict=True)):
        load_column, own_columns = 1 + 2 * i, slice(1 + 2 * i, 3 + 2 * i)  # own: loads and flows of program i
        upper[0][load_column] = over_resources.multiply((1 / divisor * relative_supply[i])[:, None])
        # "At most" rows: flows of each family under the loads; loads that cross each partition often enough.
        (under_load, under_flow), (crossing, minimum) = program._load_rows()
        for entries in ([under_load, under_flow], [crossing, None]):
            row: list[Any] = [None] * columns
            row[own_columns] = entries
            upper.append(row)
        upper_right += [np.zeros(under_load.shape[0]), minimum / supply[i]]
        # A single family needs no rows for the balance of loads: its flow, which equals the loads, is balanced already.
        balance = program._switch_balance()[: 0 if program._single else None]
        for entries in ([None, conservation], [balance, None]):
            row = [None] * columns
            row[own_columns] = entries
            equal.append(row)
        equal_right += [right_side / supply[i], np.zeros(balance.shape[0])]
    # scipy needs a block in every column; T occurs in no equation, so its block is empty
    equal[0][0] = sparse.csr_array((flows[0][0].shape[0], 1))
    upper_rows, equal_rows = (sparse.block_array(rows, format="csr") for rows in (upper, equal))
    cost = np.full(upper_rows.shape[1], hop_weight / (arcs * len(programs)))
    cost[0] = 1
    result = linprog(
        cost, A_ub=upper_rows, b_ub=np.concatenate(upper_right), A_eq=equal_rows, b_eq=np.concatenate(equal_right),
        method=solver_for(upper_rows.shape[1]),
    )  # fmt: skip
    if result.status != 0:
        return None
    # The duals by block of rows: links and limits; then for every program its flows, and its partitions.
    prices = np.split(-result.ineqlin.marginals, np.cumsum([len(b) for b in upper_right])[:-1])
    values = np.split(-result.eqlin.marginals, np.cumsum([len(b) for b in equal_right])[:-1])
    link, limits = np.split(prices[0] / divisor, [arcs])
    time, first_load, solutions = float(result.x[0]) * time_scale, 1, []
    for i, program in enumerate(programs):
        # A price counts per scaled unit; the duals of a program's rows per unit of its own.
        lengths, multipliers = (prices[1 + 2 * i + k] / relative_supply[i] for k in (0, 1))
        potentials = program._switch_potentials(values[2 * i + 1] / relative_supply[i])
        load = result.x[first_load : first_load + arcs]
        first_load += arcs + flows[i][0].shape[1]
        solutions.append(Solution(time, load, link, limits, lengths.reshape(-1, arcs), potentials, multipliers))
    return JointSolution(solutions, [s * unit for s in relative_supply])


def round_vectors(vectors: Sequence[Floats]) -> Iterator[list[list[int]]]:
    """Yield whole numbers in nearly the proportions of all these values, the simplest first; nothing if all are 0."""
    values = np.concatenate(vectors)
    max_value = float(np.abs(values).max(initial=0.0))
    if not max_value > 0:
        return
    # Try small multiples first: they give simple witnesses. The fine rounding is always valid and almost optimal.
    for scale in [*_find_scales(values / max_value), _FINE_SCALE]:
        yield [[round(v) for v in (vector / max_value * scale).tolist()] for vector in vectors]


def count_crossings(
    tail: NDArray[Any], head: NDArray[Any], part_sets: Sequence[Sequence[int]], direction: str, nodes: int
) -> NDArray[np.float64]:
    """Count the parts that each arc leaves ("out"), enters ("in"), or either ("both")."""
    count = np.zeros(len(tail))
    for part_nodes in part_sets:
        side = np.zeros(nodes, bool)
        side[list(part_nodes)] = True
        leaves, enters = side[tail] & ~side[head], side[head] & ~side[tail]
        count += leaves if direction == "out" else enters if direction == "in" else leaves | enters
    return count


def _find_scales(values: NDArray[np.float64]) -> list[int]:
    """Return up to three scales that make all values nearly whole numbers, in ascending order."""
    distinct = np.unique(np.round(values, 10))  # the solver is less exact than 10 digits
    scales = []
    for scale in range(1, _MAX_SCALE if len(distinct) < _MANY_PRICES else _FEW_SCALES):
        scaled = distinct * scale
        # The tolerance allows for the solver's errors, which grow with the scale. It is no proof: each candidate is
        # evaluated exactly (recheck.py).
        if np.abs(scaled - np.round(scaled)).max() < 1e-6 * scale**0.5:
            scales.append(scale)
            if len(scales) == 3:
                break
    return scales


def _all_ends(commodity: Commodity) -> list[tuple[str, int]]:
    """Return the root and the other ends of a flow."""
    return [commodity.root, *(end for end, _ in commodity.ends)]


def solver_for(variables: int) -> str:
    """Return scipy's name of the HiGHS method for a program of this size."""
    return "highs-ds" if variables < _SIMPLEX_VARIABLES else "highs-ipm"


def size_of(links: int, commodities: int) -> int:
    """Return about the number of variables of a program: one load per link and one flow per link and commodity.

    `BoundProgram` has fewer where it merges parallel links, and a few more for the free arcs of its extra nodes.
    """
    return links * (commodities + 1)
