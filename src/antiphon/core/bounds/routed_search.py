"""Search for cuts over time on machines whose switches only forward, or whose links share limits.

`step_search.py` lets a flow to every rank use the whole capacity of a link, as if switches copied. Here what goes from
rank to rank is a variable, so that a link carries one copy for every receiver, and counts in its shared limits. For
routes r, amounts p(r, s) in step s, and wire times t_s:

    minimise t_1 + ... + t_N   such that  the routes over a link or limit carry at most its capacity times t_s,
                                          all data can reach every rank that needs them from rank to rank

Violated cuts join the program as in step_search.py; routes that the dual prices of links find too cheap join, too. By
symmetry the amounts may be equal for routes that are alike, so the program has one variable for each orbit of pairs of
ranks, not for each pair. Duals of cuts and capacities are the multipliers and prices of the evidence (`RoutedCuts`).

Example: a broadcast of n bytes from one of 4 ranks around a switch, in 2 steps. Of what leaves the root in step 1, each
other rank has only a third if all are to get equally much. So 2 steps take 3/2 of the time of n bytes on a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.step_search import MAX_ROUNDS, Condition, DataDelivery, TimedNetwork, cut_from_condition
from antiphon.core.bounds.steps import NO_ROUTE, RoutedCuts, pair_images, route_prices
from antiphon.core.columns import Floats, Longs
from antiphon.core.routes import out_links
from antiphon.core.symmetry import link_map, orbit_labels

SCALE = 2**24  # the greatest multiplier or price after rounding to whole numbers
TOLERANCE = 1e-7  # of the linear program: a route joins if its price is below what crosses by more
LINK_PRICE = 1e-9  # added per link: of equally cheap routes, the one with fewer links is taken


@dataclass(frozen=True)
class _Route:
    """A route for the pairs of ranks in an orbit. `loads`: by class of resources, what one byte over the route of every
    pair loads each of them, if routes alike share equally."""

    orbit: int
    loads: tuple[float, ...]


class RoutedSearch:
    """The search on one machine, for any number of steps."""

    def __init__(self, delivery: DataDelivery) -> None:
        self.delivery, self.topology = delivery, delivery.topology
        topology, ranks = self.topology, self.topology.ranks
        hops = route_prices(topology, np.ones(topology.links + len(topology.limits), np.int64)).ravel()
        self.pairs = np.flatnonzero(hops < NO_ROUTE)
        labels = orbit_labels(pair_images(delivery.symmetries, ranks), ranks * ranks)
        self.first, self.orbit, self.size = np.unique(labels[self.pairs], return_inverse=True, return_counts=True)
        self.classes = self._classify_resources()
        self.class_size = np.bincount(self.classes)
        scaled = [topology.resources.scaled_capacity(i) for i in range(len(self.classes))]
        self.unit = float(max(link_capacities(topology)))
        self.capacity = np.zeros(len(self.class_size))
        self.capacity[self.classes] = np.array(scaled, np.float64) / self.unit

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
        origin, end = divmod(int(self.first[orbit]), self.topology.ranks)
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
        return _Route(orbit, tuple((counts * self.size[orbit] / self.class_size).tolist()))

    def find_cuts(self, steps: int) -> RoutedCuts | None:
        """Return cuts over time that bound the wire time of any schedule of `steps` steps; None if there are none."""
        ranks = self.topology.ranks
        network = TimedNetwork(self.delivery, steps, ranks, self.pairs // ranks, self.pairs % ranks)
        conditions: list[Condition] = []
        even = np.ones(len(self.classes))
        routes = [self._cheapest_route(orbit, even) for orbit in range(len(self.first))]
        amounts, multipliers, prices = np.zeros((len(routes), steps)), np.zeros(0), np.zeros((len(self.classes), steps))
        for _ in range(MAX_ROUNDS):
            per_orbit = np.zeros((len(self.first), steps))
            np.add.at(per_orbit, [route.orbit for route in routes], amounts)
            if network.add_violated(per_orbit[self.orbit].T * self.delivery.total, conditions):
                if any(not condition.crossing.any() for condition in conditions):
                    return None  # some member cannot be reached in so few steps
            elif not self._add_routes(routes, conditions, multipliers, prices):
                break
            solution = self._solve(routes, conditions, steps)
            if solution is None:
                return None
            amounts, multipliers, prices = solution
        return self._to_evidence(steps, conditions, multipliers, prices) if conditions else None

    def _crossing(self, condition: Condition) -> Floats:
        """Return the number of pairs of each orbit that a cut separates, by orbit and step."""
        counts = [np.bincount(self.orbit[row], minlength=len(self.first)) for row in condition.crossing]
        return np.array(counts, np.float64).T

    def _solve(
        self, routes: list[_Route], conditions: list[Condition], steps: int
    ) -> tuple[Floats, Floats, Floats] | None:
        """Return the amounts by route and step, the multipliers of the conditions, and the price of each resource by
        step."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix, hstack, identity, kron, vstack

        each = identity(steps)
        loads = np.array([route.loads for route in routes]).T
        busy = hstack([kron(-self.capacity[:, None], each), kron(loads, each)])
        orbits = [route.orbit for route in routes]
        needed = [-self._crossing(condition)[orbits].ravel() for condition in conditions]
        weights = np.array([condition.weight for condition in conditions]) / self.delivery.total
        rows = vstack([busy, hstack([csr_matrix((len(needed), steps)), csr_matrix(np.array(needed))])])
        costs = np.concatenate([np.ones(steps), np.zeros(len(routes) * steps)])
        limits = np.concatenate([np.zeros(busy.shape[0]), -weights])
        solution: Any = linprog(costs, A_ub=rows.tocsr(), b_ub=limits, method="highs-ds")
        if solution.status:
            return None
        duals = -solution.ineqlin.marginals
        by_class = duals[: busy.shape[0]].reshape(-1, steps) / self.class_size[:, None]
        return solution.x[steps:].reshape(-1, steps), duals[busy.shape[0] :], by_class[self.classes]

    def _add_routes(
        self, routes: list[_Route], conditions: list[Condition], multipliers: Floats, prices: Floats
    ) -> bool:
        """Add the routes that cost less than what crosses between their ends pays; return whether there was one."""
        paid = sum(m * self._crossing(condition) for m, condition in zip(multipliers, conditions, strict=True))
        paid = paid / self.size[:, None]
        listed = set(routes)
        for step in range(prices.shape[1]):
            rounded = np.ceil(prices[:, step] * SCALE).astype(np.int64)
            cheapest = route_prices(self.topology, rounded).ravel()[self.first] / SCALE
            for orbit in np.flatnonzero(cheapest < paid[:, step] - TOLERANCE).tolist():
                routes.append(self._cheapest_route(orbit, prices[:, step]))
        routes[:] = [*dict.fromkeys(routes)]
        return len(routes) > len(listed)

    def _to_evidence(
        self, steps: int, conditions: list[Condition], multipliers: Floats, prices: Floats
    ) -> RoutedCuts | None:
        """Round multipliers and prices to whole numbers and build the evidence; None if no condition counts."""
        if not multipliers.max(initial=0.0) > 0:
            return None
        scale = SCALE / max(multipliers.max(), prices.max())
        # rounded such that prices still pay for all that crosses; the proof would count what they lack
        rounded = np.floor(multipliers * scale).astype(np.int64).tolist()
        cuts = [
            cut_from_condition(self.delivery, steps, condition, multiplier)
            for condition, multiplier in zip(conditions, rounded, strict=True)
            if multiplier > 0
        ]
        paid = np.ceil((np.maximum(prices, 0.0) + TOLERANCE) * scale).astype(np.int64).T
        by_step = paid[::-1] if self.delivery.collects else paid
        symmetries = tuple(tuple(image.tolist()) for image in self.delivery.symmetries)
        return RoutedCuts(steps, tuple(cuts), tuple(tuple(row) for row in by_step.tolist()), symmetries)
