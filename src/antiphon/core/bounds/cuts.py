"""Find the tightest cut exactly: the set of nodes with the least capacity out of it per weight that must leave it.

For an allgather every rank must receive all data, so for every set S that lacks some sink

    time >= weight held only in S / capacity out of S      (the weight of a block is its relative size)

The *rate* of a cut is capacity out of S / weight held only in S, so the tightest cut has the lowest rate. The lowest
rate over exponentially many sets is found by Newton's method (Dinkelbach 1967) with maximum flows. Let p/q be the
lowest rate so far. A super source feeds every holder with p times its weight, links have q times their capacity, and
one maximum flow per sink tests whether the full supply reaches it. If so, the sink is *served*, and no cut that
excludes it is tighter. If not, the minimum cut is tighter and gives the next, lower rate.

A sink served at one rate is served at every lower rate. So there is at most one flow per sink and two per improvement
(the test that fails, then its cut), plus one per switch that is tested first (`_try_switches`). Most sinks need no flow
at all: the links into them from served nodes suffice (`_next_sink`).

Example: allgather on 3 ranks, unit weights, links 0->1 of 1 and all others of 2. Cuts around single nodes: into rank 1
come 1 + 2 = 3 for a weight of 2, rate 3/2. At rate 3/2 (p = 3, q = 2) each holder is fed 3 and links carry 2 and 4;
every sink receives 9, so 3/2 is the minimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.maxflow import MaxFlows
from antiphon.core.bounds.network import Network
from antiphon.core.columns import SAFE_INT64

ROUNDING = 1e-9  # relative; greater than the error of the quotients that are compared

Supply = Mapping[tuple[int, ...], int]  # ranks that hold replicas of the same data -> weight of these data
Side = NDArray[np.bool_]  # per node whether it is on the source's side of a cut


def tightest_cut(network: Network, supply: Supply, sinks: Sequence[int]) -> tuple[Side, Fraction]:
    """Return the set that excludes some sink and has the lowest rate (capacity out / weight held inside), and the rate.

    Every sink must receive all of the supply, and be reachable. At most 3/2 * sinks + 2 * improvements maximum flows:
    one per sink, one for at most half as many switches, and two per improvement.
    """
    return _CutSearch(network, supply, sinks).find_cut()


class _CutSearch:
    """State of the search: the best cut so far, of rate p/q, and the nodes known to be served at that rate.

    The flow network has the machine's nodes, one node per set of replicas (`groups`: weight, holders) and a super
    source. At rate p/q a node is served if `need` = p * (total weight) can flow to it.
    """

    def __init__(self, network: Network, supply: Supply, sinks: Sequence[int]) -> None:
        self.network, self.supply = network, {k: int(w) for k, w in supply.items() if w}
        self.sinks = sorted(set(sinks))
        self.total = sum(self.supply.values())
        n = network.nodes
        self.sole_weight = [0] * n  # weight that only this node holds
        groups = [holders for holders in self.supply if len(holders) > 1]
        for holders, weight in self.supply.items():
            if len(holders) == 1:
                self.sole_weight[holders[0]] += weight
        self.groups = [(self.supply[holders], holders) for holders in groups]
        self.source = n + len(groups)
        self.served = np.zeros(n, bool)
        self.best: tuple[Fraction, Side] | None = None
        self._flows: MaxFlows | None = None
        self._capacities: list[int] = []  # of all arcs, scaled to whole numbers, in the order of `_flow_graph`

    def find_cut(self) -> tuple[Side, Fraction]:
        """Test sinks one by one until all are served at the rate of the best cut."""
        self._start_from_single_nodes()
        assert self.best is not None
        self._try_switches()
        while True:
            sink = self._next_sink()
            if sink is None:
                rate, side = self.best
                return side, rate
            self._test_sink(sink)

    def _start_from_single_nodes(self) -> None:
        """Take the first rate from the cuts around single nodes."""
        # Rates: capacity out of a node over the weight it alone holds, and capacity into a sink over what it lacks.
        out, into = self.network.node_capacities()
        n = self.network.nodes
        # With a single sink, the set {sink} lacks no sink and so is no cut.
        only_sink = self.sinks[0] if len(self.sinks) == 1 else None
        own_weights = {v: w for v, w in enumerate(self.sole_weight) if w and v != only_sink}
        lacked = {v: self.total - self.sole_weight[v] for v in self.sinks}
        for weight, holders in self.groups:
            for v in holders:
                if v in lacked:
                    lacked[v] -= weight
        best: tuple[Fraction, int, bool] | None = None
        for capacity, weights, all_but_node in ((out, own_weights, False), (into, lacked, True)):
            # Compare in floats first; only near ties are compared as fractions.
            float_rates = {v: int(capacity[v]) / w for v, w in weights.items() if w > 0}
            threshold = min(float_rates.values(), default=0.0) * (1 + ROUNDING)
            for node in [v for v, float_rate in float_rates.items() if float_rate <= threshold]:
                rate = Fraction(int(capacity[node]), weights[node])
                if best is None or rate < best[0]:
                    best = (rate, node, all_but_node)
        assert best is not None, "nothing must move"
        # The source's side is the node alone, or all nodes but the node (a sink).
        rate, node, all_but_node = best
        side = np.full(n, all_but_node)
        side[node] = not all_but_node
        self.best = (rate, side)
        self._rescale_capacities()

    def _rescale_capacities(self) -> None:
        """Set the capacities of all arcs for the current rate p/q: links times q, supplies times p, all whole
        numbers."""
        assert self.best is not None
        rate, _ = self.best
        p, q = rate.numerator, rate.denominator
        self.need = p * self.total
        links = [int(c) * q for c in self.network.capacity.tolist()]
        to_nodes = [self.need if s else p * w for s, w in zip(self.served.tolist(), self.sole_weight, strict=True)]
        to_groups = [p * w for w, _ in self.groups]
        to_holders = [self.need] * sum(len(holders) for _, holders in self.groups)  # as good as unbounded
        self._capacities = links + to_nodes + to_groups + to_holders  # in the order of the arcs in `_flow_graph`
        # No flow, and no sum in `_next_sink`, exceeds all arcs together; beyond int64, use Python integers. The test is
        # generous (four times as much): machines near the border are rare.
        exceeds_int64 = 4 * (self.need * (self.network.nodes + 1) + sum(links)) >= SAFE_INT64
        dtype: Any = object if exceeds_int64 else np.int64
        self._links = np.array(links, dtype)  # capacities of links
        self._feed = np.array(to_nodes, dtype)  # capacities of the arcs from the source to single nodes

    def _flow_graph(self) -> MaxFlows:
        """Build the flow network on first use. Arcs: links, source to nodes, source to groups, groups to holders."""
        if self._flows is None:
            n = self.network.nodes
            group_arcs = [(n + i, h) for i, (_, holders) in enumerate(self.groups) for h in holders]
            tail = self.network.tail.tolist() + [self.source] * (n + len(self.groups)) + [a for a, _ in group_arcs]
            head = self.network.head.tolist() + list(range(n + len(self.groups))) + [b for _, b in group_arcs]
            self._flows = MaxFlows(self.source + 1, tail, head)
        return self._flows

    def _next_sink(self) -> int | None:
        """Return the sink that is least likely to be served, or None if all are served.

        First mark as served the nodes that receive enough from served nodes directly or over one intermediate node. No
        flow is needed to see this: these paths share no arc but those from the source to served nodes. Each of these
        has capacity `need`, so no cut below `need` crosses it. Of the other sinks, return the one that receives least
        in this way. If it is served after all, it is far from the other served nodes and helps sinks that they do not
        reach.
        """
        sinks, tail, head = np.array(self.sinks, np.int64), self.network.tail, self.network.head
        while True:
            unserved = sinks[~self.served[sinks]]
            if not len(unserved):
                return None
            # A node's own supply plus what comes over one hop from served nodes, then over two hops.
            one_hop = self._feed.copy()
            from_served = self.served[tail]
            np.add.at(one_hop, head[from_served], np.minimum(self._links, self._feed[tail])[from_served])
            two_hops = self._feed.copy()
            np.add.at(two_hops, head, np.minimum(self._links, one_hop[tail]))
            newly_served = np.flatnonzero(~self.served & (two_hops >= self.need))
            if not newly_served.size:
                return int(unserved[int(np.argmin(two_hops[unserved]))])
            for node in newly_served.tolist():
                self._mark_served(node)

    def _mark_served(self, node: int) -> None:
        """Let a served node feed others: give it the full supply.

        This changes no cut of capacity below `need`, and only such cuts are looked for: they have every served node on
        the source's side, so the node's arc from the source does not cross them.
        """
        self.served[node] = True
        self._feed[node] = self.need
        self._capacities[len(self._links) + node] = self.need

    def _try_switches(self) -> None:
        """Test the switches that feed sinks first, if they are at most half as many as the sinks.

        Behind a served switch, sinks mostly need no flow of their own.
        """
        is_sink = np.zeros(self.network.nodes, bool)
        is_sink[self.sinks] = True
        feeding_switches = np.unique(self.network.tail[is_sink[self.network.head]])
        feeding_switches = feeding_switches[feeding_switches >= self.network.ranks]
        if len(feeding_switches) * 2 <= len(self.sinks):
            for switch in feeding_switches.tolist():
                if self._flow_graph().value(self._capacities, self.source, switch) >= self.need:
                    self._mark_served(switch)

    def _test_sink(self, sink: int) -> None:
        """Test by a maximum flow whether a sink is served at the current rate; if not, take the minimum cut as the best
        cut."""
        assert self.best is not None
        # Served at this rate: no tighter cut separates this sink.
        if self._flow_graph().value(self._capacities, self.source, sink) >= self.need:
            self._mark_served(sink)
            return
        _, inside = self._flow_graph().cut(self._capacities, self.source, sink)
        side = np.array(inside[: self.network.nodes])
        weight = sum(w for holders, w in self.supply.items() if all(side[h] for h in holders))
        # Newton step: the violated cut's own rate is lower. Sinks served before stay served.
        rate = Fraction(self.network.out_of(side), weight)
        assert rate < self.best[0]
        self.best = (rate, side)
        self._rescale_capacities()
