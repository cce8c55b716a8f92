"""Max-min fair rates of the flows in transit, recomputed only where they may change.

Rates are max-min fair if no flow can get more without taking from a flow of equal or lower rate (Bertsekas and
Gallager, Data Networks, section 6.5.2). Progressive filling computes them: raise all rates together until a link is
full; its flows are fixed at that rate; continue with the rest. `fill_rates` fixes all links that are locally tightest
in one round, which gives the same rates in fewer rounds.

Example: links A (capacity 1, flows 1 and 2) and B (capacity 3, flows 2 and 3). A offers 1/2 each, B 3/2 each. A is
tightest for both its flows: rates 1/2 and 1/2. Then B has 5/2 left for flow 3.

A flow that begins or ends can only affect flows connected to it through shared links in use, so `_find_touched`
searches this neighbourhood; beyond REACH hops all flows are recomputed, which gives the same result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.cost.flows.tables import FlowTables, Watch

EQUAL = 1 - 1e-12  # rates whose ratio exceeds this are equal
MAX_DENSE_RESOURCES = 4096  # links and limits up to which arrays over all of them are cheap
MIN_SEARCHED_FLOWS = 32  # up to this many flows, all are recomputed without searching for those affected
REACH = 6  # rounds of the search for affected flows before all are recomputed


class FlowsInTransit:
    """Flows in transit: their rates, remaining bytes, and the times at which they end if nothing changes.

    Arrays are per message, or per resource (link or limit) with a last element for "none", which pads the rows of
    `tables.uses` (the resources of each message). The event loop (run.py) calls `next_end` and `change_flows`. `watch`
    receives every changed load of a link or limit; None: nobody does.
    """

    def __init__(self, tables: FlowTables, nbytes: float, watch: Watch | None = None) -> None:
        self.tables, self.watch = tables, watch
        message_count, none = len(tables.messages), tables.resources
        self.remaining: Floats = tables.messages.share * nbytes
        self.remaining[(tables.uses == none).all(axis=1)] = 0.0  # no link to cross: a copy within a rank
        # bytes per second, and the moment (seconds) since which a flow has this rate
        self.rate, self.since = np.zeros(message_count), np.zeros(message_count)
        self.end = np.full(message_count, np.inf)  # when a flow ends at its present rate, in seconds
        self.bottleneck = np.full(message_count, none, np.int32)  # the link or limit that sets a flow's rate
        self.in_transit: Longs = np.zeros(0, np.int64)
        self.count = np.zeros(none + 1, np.int64)  # flows per resource; 0 for "none"
        self.all_resources: Longs = np.arange(none + 1)
        self.cost = np.append(tables.cost[:-1], 1e-300)  # the padding resource "none" never limits a flow
        # Per resource where incast is possible: the greatest number of its flows that have the same receiver.
        self.senders = np.zeros(none + 1, np.int64)
        # For incast, which slows a resource when many ranks send over it to one receiver: flows per (resource,
        # receiver), and per (resource, receiver, sender); see `Crowds`
        self.by_pair = np.zeros(tables.crowds.pairs + 1 if tables.crowds else 0, np.int64)
        self.by_sender = np.zeros(len(tables.crowds.sender_pair) if tables.crowds else 0, np.int64)
        # Per message: seconds lost to incast so far, and seconds lost per second at its current rate.
        self.lost, self.loss_rate = np.zeros(message_count), np.zeros(message_count)
        self.is_affected: Bools = np.zeros(none + 1, np.bool_)  # scratch space of `_find_touched`

    def next_end(self) -> float:
        """Return when the next flow ends; infinite if none is in transit."""
        return float(self.end[self.in_transit].min()) if len(self.in_transit) else np.inf

    def flows_ended(self, until: float) -> tuple[Longs, float]:
        """Return the flows that end by then, and when the last of them does (0.0 if there are none)."""
        ends = self.end[self.in_transit]
        chosen = ends <= until
        if not chosen.any():
            return self.in_transit[:0], 0.0
        return self.in_transit[chosen], float(ends[chosen].max())

    def change_flows(self, now: float, ended: Longs, begun: Longs) -> None:
        """Let flows end and begin at one moment, then update all affected rates."""
        if len(ended):
            if self.tables.crowds is not None:
                self.lost[ended] += self.loss_rate[ended] * (now - self.since[ended])
            self.rate[ended], self.remaining[ended], self.end[ended] = 0.0, 0.0, np.inf
            keep = np.isfinite(self.end[self.in_transit])
            self.in_transit = self.in_transit[keep]
        if len(begun):
            self.since[begun] = now
            self.in_transit = np.concatenate([self.in_transit, begun])
        freed, entered = self.tables.uses[ended].ravel(), self.tables.uses[begun].ravel()
        np.subtract.at(self.count, freed, 1)
        np.add.at(self.count, entered, 1)
        self.count[-1] = 0
        self._count_senders(ended, begun)
        touched = self._find_touched(freed, entered)
        if len(touched):
            self._update_rates(now, touched)
        if self.watch is not None:
            self._report_loads(now, np.concatenate([freed, entered]), touched)

    def seconds_per_byte(self, resources: Longs) -> Floats:
        """Return the cost of links and limits with their f current senders: beta + epsilon * max(f - w_t, 0)."""
        cost, crowds = self.cost[resources], self.tables.crowds
        if crowds is None:
            return cost
        # GenModel's incast: each sender beyond w_t adds epsilon seconds per byte.
        excess = np.maximum(self.senders[resources] - crowds.w_t[resources], 0)
        return np.asarray(cost + crowds.epsilon[resources] * excess)

    def _count_senders(self, ended: Longs, begun: Longs) -> None:
        """Update the numbers of senders per (resource, receiver), for incast."""
        crowds = self.tables.crowds
        if crowds is None:
            return
        if crowds.sender is None:  # at most one flow of a sender crosses a pair at a time: count flows
            np.subtract.at(self.by_pair, crowds.pair[ended].ravel(), 1)
            np.add.at(self.by_pair, crowds.pair[begun].ravel(), 1)
        else:
            np.subtract.at(self.by_sender, crowds.sender[ended].ravel(), 1)
            np.add.at(self.by_sender, crowds.sender[begun].ravel(), 1)
            self.by_pair = np.bincount(crowds.sender_pair[self.by_sender > 0], minlength=crowds.pairs + 1)
        self.senders[crowds.resource] = np.maximum.reduceat(self.by_pair[: crowds.pairs], crowds.first)

    def _find_touched(self, freed: NDArray[Any], entered: NDArray[Any]) -> Longs:
        """Return the flows whose rate may change: those connected to a change through flows and links in use.

        If the search goes on for more than REACH rounds, all flows are returned: exact, too, and cheaper than
        searching.
        """
        flows, uses, is_affected = self.in_transit, self.tables.uses, self.is_affected
        if len(flows) <= MIN_SEARCHED_FLOWS:
            return flows
        is_affected[:] = False
        is_affected[freed], is_affected[entered] = True, True
        is_affected &= self.count > 0
        previous_count = 0
        # Breadth-first search over flows and links, one layer per round.
        for _ in range(REACH):
            used_links = uses[flows]
            is_reached = is_affected[used_links].any(axis=1)
            reached_count = int(is_reached.sum())
            if reached_count == previous_count or reached_count == len(flows):
                return flows[is_reached]
            previous_count = reached_count
            is_affected[used_links[is_reached].ravel()] = True
            is_affected[-1] = False
        return flows

    def _update_rates(self, now: float, flows: Longs) -> None:
        """Assign new rates to `flows`, which share no link with any other flow; unchanged rates are not written."""
        rate, bottleneck = self.fill_rates(flows)
        old = self.rate[flows]
        # Flows whose rate stays the same keep their predicted end: fewer updates, and no drift by rounding.
        if self.tables.crowds is None:
            differs = np.abs(rate - old) > (1 - EQUAL) * rate
            flows, rate, old, bottleneck = flows[differs], rate[differs], old[differs], bottleneck[differs]
        else:
            self.lost[flows] += self.loss_rate[flows] * (now - self.since[flows])
            # The share of its time by which incast lengthens the transfer of a byte over the bottleneck.
            self.loss_rate[flows] = 1 - self.tables.cost[bottleneck] / self.seconds_per_byte(bottleneck)
        self.remaining[flows] = np.maximum(self.remaining[flows] - old * (now - self.since[flows]), 0.0)
        self.since[flows], self.rate[flows], self.bottleneck[flows] = now, rate, bottleneck
        self.end[flows] = now + self.remaining[flows] / rate

    def fill_rates(self, flows: Longs) -> tuple[Floats, Longs]:
        """Compute max-min fair rates by progressive filling, all local bottlenecks of a round at once.

        A link is a local bottleneck if, for each of its flows, no other link of the flow offers a smaller equal share.
        Its flows then have their final rate, as the shares of other links only rise when flows get their rates. O(uses)
        per round; the number of rounds is the length of the longest chain of bottlenecks that depend on each other.

        >>> from antiphon.core.example import machine, star
        >>> from antiphon.cost.flows.tables import prepare_tables
        >>> from antiphon.cost.profile import Profile
        >>> network = FlowsInTransit(prepare_tables(star(), machine(), Profile()), 1000)
        >>> network.fill_rates(np.array([0, 1]))
        (array([1.e+09, 1.e+09]), array([3, 1]))
        """
        used_links: NDArray[Any] = self.tables.uses[flows]
        none = self.tables.resources
        resources: Any = slice(None)
        # A large machine, few flows: renumber the links in use.
        if none > MAX_DENSE_RESOURCES and used_links.size < none:
            resources, used_links = np.unique(used_links, return_inverse=True)
            used_links = used_links.reshape(len(flows), -1)
        resource_numbers, width = self.all_resources[resources], used_links.shape[1]
        resource_count, is_padding = len(resource_numbers), resource_numbers == none
        capacity_left = 1 / self.seconds_per_byte(resource_numbers)
        users = np.bincount(used_links.ravel(), minlength=resource_count)
        users[is_padding] = 0
        rate, bottleneck = np.zeros(len(flows)), np.full(len(flows), none, np.int64)
        open_flows: Longs = np.arange(len(flows))
        # Each round settles a flow at least: the link that offers least of all is a bottleneck of all its flows.
        while len(open_flows):
            # Equal share of every link on every flow's path; the smallest of them limits the flow.
            offered = (capacity_left / np.maximum(users, 1))[used_links]
            smallest = offered.min(axis=1)
            # A link is a bottleneck when it is the smallest offer for every one of its flows.
            agreeing_flows = np.bincount(used_links[smallest[:, None] >= offered * EQUAL], minlength=resource_count)
            is_bottleneck = ((agreeing_flows == users) & (users > 0))[used_links]
            done = is_bottleneck.any(axis=1)
            settled, rates = open_flows[done], smallest[done]
            rate[settled] = rates
            bottleneck[settled] = resource_numbers[used_links[done, is_bottleneck[done].argmax(axis=1)]]
            if len(settled) == len(open_flows):
                break
            # Take the settled flows out: subtract their rates from the capacity of all links that they cross.
            flat = used_links[done].ravel()
            capacity_left -= np.bincount(flat, weights=np.repeat(rates, width), minlength=resource_count)
            users -= np.bincount(flat, minlength=resource_count)
            users[is_padding] = 0
            capacity_left[is_padding] = np.inf
            open_flows, used_links = open_flows[~done], used_links[~done]
        return rate, bottleneck

    def _report_loads(self, now: float, changed: Longs, touched: Longs) -> None:
        """Report the load (bytes per second) of every link whose flows or rates changed to `watch`."""
        assert self.watch is not None
        used_links = self.tables.uses[touched].ravel()
        resources = np.unique(np.concatenate([changed, used_links]))
        resources = resources[resources < self.tables.resources]
        load = np.bincount(
            used_links,
            weights=np.repeat(self.rate[touched], self.tables.uses.shape[1]),
            minlength=self.tables.resources + 1,
        )
        self.watch(now, resources, load[resources])
