"""The linear program of flows: how much of each demand goes over each link.

Input: a machine and its demands. A `RootDemand` is the data that one rank, the root, sends or receives. Each of its
ends is another rank, or a set of ranks that hold the same data and may each send them. Output: a `Flow`. Two linear
programs share variables and constraints:

    variables    amount of each demand on each link
    constraints  flow conservation at every node but the demand's root: what enters also leaves, or ends there
                 load of each row (link or shared limit) <= capacity * time
    minimize     the time (`solve_fastest`), or the number of hops within a given time (`solve_shortest`): a link into a
                 rank costs 1, into a switch 0.01

core.bounds gives a lower bound on the time. If a flow is known to attain it, only `solve_shortest` is needed; otherwise
`solve_fastest` finds the time first. On a symmetric machine only the demands of one root per orbit have
variables; those of the other roots flow along images of these flows. A row then is an orbit of links or limits, whose
capacity is that of all of them divided by the number of symmetries.

Example: rank 0 sends weight 1 to 3 over 1 or over 2, all links of capacity 1. The fastest flow takes 1/2 over each, in
time 1/2. Within time 1, both paths have two hops, so any division is as short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.planners.flows.demands import Demands, RootDemand
from antiphon.planners.shared.orbits import orbit_rows

Floats = NDArray[np.float64]
SLACK = 1e-8  # fraction of the time added, so that rounding in the solver does not make the program infeasible
SWITCH_COST = 0.01  # of a link into a switch; a link into a rank, where a message ends, costs 1
SIMPLEX_VARIABLES = 3000  # from this size on, HiGHS's interior-point method is faster than its simplex method


@dataclass(frozen=True, eq=False)
class Flow:
    """A flow. `amount[demand, link]`: the weight (of blocks) on each link. `time`: load over capacity of the fullest
    row, with capacities in units of `Resources.scale`.
    """

    amount: Floats
    time: float


class FlowProblem:
    """The linear programs of one machine and its demands.

    `row`: by link, then by shared limit, its row. `capacity`: by row. `order`: number of symmetries.
    """

    def __init__(self, topology: Topology, demands: Demands) -> None:
        self.topology, self.demands = topology, demands.demands
        self.order = len(demands.group)
        resources = topology.resources
        capacity = np.array([float(c) for c in resources.capacity])[resources.class_of]
        self.row = orbit_rows(topology, demands.group)
        self.capacity = np.bincount(self.row, weights=capacity) / self.order
        # a set of possible holders becomes an extra node, joined to each of them by a link of unlimited capacity
        ends = sorted({end for demand in self.demands for end, _ in demand.ends if len(end) > 1})
        self.set_node = {end: topology.nodes + i for i, end in enumerate(ends)}
        set_links = [(rank, node) for end, node in self.set_node.items() for rank in end]
        self.extra_rank = np.array([rank for rank, _ in set_links], np.int64)
        self.extra_node = np.array([node for _, node in set_links], np.int64)
        self.nodes = topology.nodes + len(ends)

    @property
    def links(self) -> int:
        """Number of links, with the extra ones to sets of holders."""
        return self.topology.links + len(self.extra_rank)

    @property
    def size(self) -> int:
        """Number of variables."""
        return self.links * len(self.demands)

    def ends_of(self, demand: RootDemand) -> tuple[Longs, Longs]:
        """Return the tails and heads of all links for a flow that leads away from the root.

        For a root that receives, all links are reversed. The extra links lead from holders to the node of their set.
        """
        src, dst = self.topology.link_src.astype(np.int64), self.topology.link_dst.astype(np.int64)
        if not demand.out:
            src, dst = dst, src
        return np.concatenate([src, self.extra_rank]), np.concatenate([dst, self.extra_node])

    def node_of(self, end: tuple[int, ...]) -> int:
        """Return the node of an end: its rank, or the extra node of a set of holders."""
        return end[0] if len(end) == 1 else self.set_node[end]

    def _conservation_rows(self) -> tuple[Any, Floats]:
        """Return the matrix and right-hand side of flow conservation, by demand and node."""
        import scipy.sparse as sp

        blocks, right = [], []
        for demand in self.demands:
            tail, head = self.ends_of(demand)
            links = np.arange(self.links)
            table = sp.csr_array(
                (np.repeat([-1.0, 1.0], self.links), (np.concatenate([tail, head]), np.tile(links, 2))),
                shape=(self.nodes, self.links),
            )
            # inflow - outflow = the weight that ends at the node
            ending = np.zeros(self.nodes)
            for end, weight in demand.ends:
                ending[self.node_of(end)] += weight
            keep = np.arange(self.nodes) != demand.root
            blocks.append(table[keep])
            right.append(ending[keep])
        return sp.block_diag(blocks, format="csr"), np.concatenate(right)

    def _rows_of_links(self) -> tuple[Longs, Longs]:
        """Return pairs (row, link): a link's load counts in the row of its own orbit, and in those of its limits."""
        link, resource = self.topology.resources.with_limits(np.arange(self.topology.links))
        return self.row[resource], link

    def _load_matrix(self) -> Any:
        """Return the matrix of loads: a row per row of the machine, a column per demand and link."""
        import scipy.sparse as sp

        row, link = self._rows_of_links()
        block = sp.csr_array((np.ones(len(row)), (row, link)), shape=(len(self.capacity), self.links))
        return sp.hstack([block] * len(self.demands), format="csr")

    def row_loads(self, amount: Floats) -> Floats:
        """Return the load of every row, for amounts by link (or by demand and link)."""
        row, link = self._rows_of_links()
        total = amount if amount.ndim == 1 else amount.sum(axis=0)
        load: Floats = np.bincount(row, weights=total[link], minlength=len(self.capacity)).astype(np.float64)
        return load

    def link_prices(self, price: Floats) -> Floats:
        """Return the price of a unit of weight on every link, from prices of rows."""
        row, link = self._rows_of_links()
        prices: Floats = np.bincount(link, weights=price[row], minlength=self.links).astype(np.float64)
        return prices

    def solve_fastest(self) -> Flow | None:
        """Return a flow of minimum time; None if the solver fails."""
        import scipy.sparse as sp

        equal, right = self._conservation_rows()
        loads = self._load_matrix()
        scale = float(right.max(initial=1.0))  # amounts are divided by it: coefficients near 1 help the solver
        # variables: amounts by demand and link, then the time; loads - time * capacity <= 0
        capacity = self.capacity / self.capacity.max()
        cost = np.zeros(loads.shape[1] + 1)
        cost[-1] = 1.0  # the time
        solution = _solve_program(
            cost,
            sp.hstack([loads, sp.csr_array(-capacity[:, None])], format="csr"),
            np.zeros(len(capacity)),
            sp.hstack([equal, sp.csr_array((equal.shape[0], 1))], format="csr"),
            right / scale,
        )
        if solution is None:
            return None
        return self._to_flow(solution[:-1] * scale, float(solution[-1]) * scale / self.capacity.max())

    def solve_shortest(self, time: float) -> Flow | None:
        """Return a flow with the fewest hops within this time; None if there is none."""
        import scipy.sparse as sp

        equal, right = self._conservation_rows()
        scale = float(right.max(initial=1.0))
        into_rank = self.topology.link_dst < self.topology.ranks
        cost = np.concatenate([np.where(into_rank, 1.0, SWITCH_COST), np.zeros(len(self.extra_rank))])
        capacity = self.capacity * (time * (1 + SLACK) / scale)
        # divide rows of wide links by their capacity, for coefficients near 1
        row_scale = np.maximum(capacity, 1.0)
        loads = self._load_matrix()
        solution = _solve_program(
            np.tile(cost, len(self.demands)),
            sp.diags_array(1 / row_scale) @ loads,
            capacity / row_scale,
            equal,
            right / scale,
        )
        return None if solution is None else self._to_flow(solution * scale, time)

    def _to_flow(self, values: Floats, time: float) -> Flow:
        """Return the solver's variables as a flow."""
        return Flow(values.reshape(len(self.demands), self.links), time)


def _solve_program(cost: Floats, upper: Any, limits: Floats, equal: Any, right: Floats) -> Floats | None:
    """Return x >= 0 of least cost with upper @ x <= limits and equal @ x = right; None if the solver fails."""
    from scipy.optimize import linprog

    solution = linprog(
        cost,
        A_ub=upper,
        b_ub=limits,
        A_eq=equal,
        b_eq=right,
        method="highs-ds" if len(cost) < SIMPLEX_VARIABLES else "highs-ipm",
    )
    return np.asarray(solution.x) if solution.status == 0 else None
