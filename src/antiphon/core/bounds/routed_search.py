"""Search for cuts over time on machines whose switches only forward, or whose links share limits.

Such cuts prove a lower bound on the wire time of every schedule of N steps (steps.py); the search wants the best bound.

`step_search.py` lets a flow to every rank use the whole capacity of a link, as if switches copied. Here what goes from
rank to rank is a variable, so that a link carries one copy for every receiver, and counts in its shared limits. For
routes r, amounts p(r, s) in step s, and wire times t_s:

    minimise t_1 + ... + t_N   such that  the routes over a link or limit carry at most its capacity times t_s,
                                          all data can reach every rank that needs them from rank to rank

Violated cuts join the program as in step_search.py; routes that the dual prices of links find too cheap join, too. By
symmetry the amounts may be equal for routes that are alike, so the program has one variable for each orbit of pairs of
ranks, not for each pair. Duals of cuts and capacities are the multipliers and prices of the evidence (`RoutedCuts`).

Example: a broadcast of n bytes from one of 4 ranks around a switch, in 2 steps. Of what leaves the root in step 1, each
other rank has only a third if all are to get equally much. With the time of n bytes on a link as the unit, the steps
take at least 3/2 together. They do with 3/4 each: in step 1 every rank gets another quarter, in step 2 the three
quarters that it lacks, one from each of the root and the two others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.step_search import TINY, Condition, DataDelivery, Solution, StepSearch, cut_from_condition
from antiphon.core.bounds.steps import NO_ROUTE, RoutedCuts, pair_images, route_prices
from antiphon.core.columns import Floats, Longs
from antiphon.core.portable import matmul
from antiphon.core.routes import out_links
from antiphon.core.symmetry import link_map, orbit_labels

# The greatest multiplier or price of the evidence, which has whole numbers. In `_add_routes`: units per price of 1.
SCALE = 2**24
TOLERANCE = 1e-7  # error of the linear program's duals; a route joins if what cuts pay for it exceeds its price by more
LINK_PRICE = 1e-9  # added per link: of equally cheap routes, the one with fewer links is taken


@dataclass(frozen=True)
class _Route:
    """A route for the pairs of ranks in an orbit, each pair over its image of the route.

    `loads`: per class of resources, the bytes over each resource of the class if every pair sends one byte.
    """

    orbit: int
    loads: tuple[float, ...]


class RoutedSearch(StepSearch):
    """The search with routes. A point is the wire times, then the amounts by route and step.

    An amount is what each pair of the route's orbit sends over it, as a fraction of all data. Resources are the links,
    then the shared limits.
    """

    def __init__(self, delivery: DataDelivery) -> None:
        super().__init__(delivery)
        topology, ranks = self.topology, self.topology.ranks
        hops = route_prices(topology, np.ones(topology.links + len(topology.limits), np.int64)).ravel()
        self.pairs = np.flatnonzero(hops < NO_ROUTE)  # `route_prices` has NO_ROUTE from a rank to itself, too
        self.arcs = ranks, self.pairs // ranks, self.pairs % ranks  # the base class's network: an arc for each pair
        # a label is the number (a * ranks + b) of the orbit's first pair; `orbit`: per pair the number of its orbit
        labels = orbit_labels(pair_images(delivery.symmetries, ranks), ranks * ranks)
        self.first_pair, self.orbit, self.orbit_size = np.unique(
            labels[self.pairs], return_inverse=True, return_counts=True
        )
        self.classes = self._classify_resources()
        self.class_size = np.bincount(self.classes)
        # capacities (all in units of `resources.scale`) per widest link, which keeps the program well conditioned
        scaled = [topology.resources.scaled_capacity(i) for i in range(len(self.classes))]
        self.capacity = np.zeros(len(self.class_size))
        self.capacity[self.classes] = np.array(scaled, np.float64) / float(max(link_capacities(topology)))
        self.routes = [self._cheapest_route(orbit, np.ones(len(self.classes))) for orbit in range(len(self.first_pair))]

    def _classify_resources(self) -> Longs:
        """Return for every link, then every limit, the number of its class: links that are alike by symmetry; limits of
        equal bandwidth over links of equal classes."""
        topology = self.topology
        images = [link_map(topology, image).astype(np.int64) for image in self.delivery.symmetries]
        classes = np.unique(orbit_labels(images, topology.links), return_inverse=True)[1].tolist()
        limits = [(limit.bandwidth, tuple(sorted(classes[link] for link in limit.links))) for limit in topology.limits]
        number = {key: max(classes) + 1 + i for i, key in enumerate(sorted(set(limits)))}
        return np.array([*classes, *(number[key] for key in limits)], np.int64)

    @cached_property
    def limits_over(self) -> list[list[int]]:
        """Return for every link the resources that its load counts in: itself and its limits."""
        return [[link, *self.topology.resources.limits_of(link)] for link in range(self.topology.links)]

    def _cheapest_route(self, orbit: int, prices: Floats) -> _Route:
        """Return the cheapest route of the first pair of an orbit by price of each resource; of equals, the shorter."""
        origin, end = divmod(int(self.first_pair[orbit]), self.topology.ranks)
        cost = {link: sum(float(prices[i]) for i in over) for link, over in enumerate(self.limits_over)}
        best: dict[int, tuple[float, tuple[int, ...]]] = {origin: (0.0, ())}
        queue, out = [origin], out_links(self.topology)
        while queue:  # Bellman and Ford, through switches alone
            node = queue.pop(0)
            for link in out[node]:
                head, total = int(self.topology.link_dst[link]), best[node][0] + cost[link] + LINK_PRICE
                if (head == end or head >= self.topology.ranks) and total < best.get(head, (np.inf, ()))[0]:
                    best[head] = total, (*best[node][1], link)
                    if head != end:
                        queue.append(head)
        counts = np.zeros(len(self.class_size))
        for link in best[end][1]:
            np.add.at(counts, self.classes[self.limits_over[link]], 1.0)
        return _Route(orbit, tuple((counts * self.orbit_size[orbit] / self.class_size).tolist()))

    @property
    def loads(self) -> Floats:
        """Return what each route (column) loads each class of resources (row) with."""
        return np.array([route.loads for route in self.routes]).T

    def _first_point(self, steps: int) -> Floats:
        """Return a point at which next to nothing is sent, so that it violates conditions."""
        even = np.full((len(self.routes), steps), TINY / len(self.pairs) / steps)
        times = (matmul(self.loads, even) / self.capacity[:, None]).max(axis=0)
        return np.concatenate([times, even.ravel()])

    def _widths(self, point: Floats, steps: int) -> Floats:
        """Return the widths of the base class's arcs, which are pairs here: the weight of the data that each pair sends
        in each step, by step and pair."""
        per_orbit = np.zeros((len(self.first_pair), steps))
        amounts = point[steps:].reshape(-1, steps)
        # a point that was found before routes joined has no amounts for these
        np.add.at(per_orbit, [route.orbit for route in self.routes[: len(amounts)]], amounts)
        return per_orbit[self.orbit].T * self.delivery.total

    def _crossing(self, conditions: list[Condition]) -> Floats:
        """Return the number of pairs of each orbit that each cut separates, by condition, step and orbit."""
        by_pair = np.array([condition.crossing for condition in conditions], np.float64)
        in_order = np.argsort(self.orbit, kind="stable")
        first_of_orbit = np.searchsorted(self.orbit[in_order], np.arange(len(self.first_pair)))
        return np.add.reduceat(by_pair[:, :, in_order], first_of_orbit, axis=2)

    def _solve(self, conditions: list[Condition], steps: int) -> Solution | None:
        """Find the least wire times, and amounts by route, that meet the conditions; None if the solver fails."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix, hstack, identity, kron, vstack

        # Columns: wire times, amounts by route and step. Rows: loads by class and step within capacity, then cuts.
        each_step = identity(steps)
        busy = hstack([kron(-self.capacity[:, None], each_step), kron(self.loads, each_step)])
        crossing = self._crossing(conditions)[:, :, [route.orbit for route in self.routes]]
        needed = -crossing.transpose(0, 2, 1).reshape(len(conditions), -1)
        weights = np.array([condition.weight for condition in conditions]) / self.delivery.total
        rows = vstack([busy, hstack([csr_matrix((len(needed), steps)), csr_matrix(needed)])])
        costs = np.concatenate([np.ones(steps), np.zeros(len(self.routes) * steps)])
        right_side = np.concatenate([np.zeros(busy.shape[0]), -weights])
        solution: Any = linprog(costs, A_ub=rows.tocsr(), b_ub=right_side, method="highs-ds")
        if solution.status:
            return None
        duals = -solution.ineqlin.marginals
        by_class = duals[: busy.shape[0]].reshape(-1, steps) / self.class_size[:, None]  # shared by its resources
        duals = duals[busy.shape[0] :]
        binding = [condition for condition, dual in zip(conditions, duals, strict=True) if dual > 0]
        return Solution(solution.x, binding, duals[duals > 0], by_class[self.classes])

    def _add_routes(self, solution: Solution) -> bool:
        """Add the routes that cost less than the cuts between their ends pay; return whether there was one."""
        priced_crossing = solution.multipliers[:, None, None] * self._crossing(solution.binding)
        paid = priced_crossing.sum(axis=0).T / self.orbit_size[:, None]  # what cuts pay for a pair, by orbit and step
        listed = len(self.routes)
        for step in range(solution.prices.shape[1]):
            rounded = np.ceil(solution.prices[:, step] * SCALE).astype(np.int64)  # whole numbers add up exactly
            cheapest = route_prices(self.topology, rounded).ravel()[self.first_pair] / SCALE
            for orbit in np.flatnonzero(cheapest < paid[:, step] - TOLERANCE).tolist():
                self.routes.append(self._cheapest_route(orbit, solution.prices[:, step]))
        self.routes = [*dict.fromkeys(self.routes)]
        return len(self.routes) > listed

    def _to_evidence(self, solution: Solution, steps: int) -> RoutedCuts:
        """Round multipliers and prices to whole numbers and build the evidence."""
        scale = SCALE / max(solution.multipliers.max(), solution.prices.max())
        # Multipliers are rounded down and prices up, so that prices still pay for all that crosses: where they paid too
        # little, the proof would raise the price of the step and so lower the bound (`steps._prove_routed_cuts`).
        rounded = np.floor(solution.multipliers * scale).astype(np.int64).tolist()
        cuts = [
            cut_from_condition(self.delivery, steps, condition, multiplier)
            for condition, multiplier in zip(solution.binding, rounded, strict=True)
            if multiplier > 0
        ]
        prices = np.ceil((np.maximum(solution.prices, 0.0) + TOLERANCE) * scale).astype(np.int64).T  # by step
        by_step = prices[::-1] if self.delivery.collects else prices  # collected data were spread, backwards in time
        symmetries = tuple(tuple(image.tolist()) for image in self.delivery.symmetries)
        return RoutedCuts(steps, tuple(cuts), tuple(tuple(row) for row in by_step.tolist()), symmetries)
