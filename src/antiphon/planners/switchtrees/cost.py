"""Predict the time of a switch's part of a plan by GenModel (Xiong et al. 2024, section 3.3), link by link of the tree.

Input: the rooted tree with the figures of its links, the message size, and what a switch might do (choose.py). Output:
seconds. The rules are those of model `genmodel`. A step takes alpha seconds. A link takes beta + epsilon * max(w - w_t,
0) seconds per byte of its load: w is the number of servers (ranks) that send to one receiver over it, and w_t the
number that it bears without incast. Servers take gamma and delta per byte for adding and for memory access.

Equal children, each with k servers that hold partial sums: k groups, with one server of each child, work at the same
time, each on 1/k of the data. The closed forms (cost/genmodel/forms.py) price one group. A link that k groups share
appears to each of them with k times the beta and k times the epsilon. Unequal children and gathering are priced
directly, by the load and the senders of every link.

The choice between plan types is more cautious about incast: it assumes that the excess senders of all k groups slow
the shared link, so it takes epsilon times k once more. That yields the plans of the paper's Table 6 at root switches
(8x2 instead of CPS). With k = 1, at a server's own link, both agree with Table 2 of the paper.

CPS is short for co-located parameter servers: every holder sends each block directly to its owner; ACPS is the same
among unequal children. RHD is recursive halving and doubling.

Example: 4 servers at one switch, 1 s per byte and link, no latency or incast: a reducescatter by CPS takes 3/4 s per
byte of nbytes, as each server sends 3 of the 4 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Longs
from antiphon.cost import Profile
from antiphon.cost.genmodel import forms as genmodel_forms
from antiphon.cost.genmodel.forms import Server, Tier
from antiphon.planners.switchtrees.assign import representatives
from antiphon.planners.switchtrees.tree import Direction, RootedTree
from antiphon.planners.switchtrees.types import CPS, RHD, RING, fans_of, name_of, steps_of

ServerMask = NDArray[np.bool_]  # by server, whether it holds partial sums; where it may be None, all do
SLACK = 1 - 1e-9  # times whose ratio is above this are equal; then the plan of fewer steps is taken


class PartCost:
    """Predicts the times of the parts of a plan for one message size. `kind`: of the collective."""

    def __init__(self, tree: RootedTree, profile: Profile, nbytes: float, kind: str) -> None:
        self.tree, self.nbytes, self.kind = tree, nbytes, kind
        self.server = Server(profile.gamma, profile.delta)
        self.halves = (kind != "allgather", kind != "reducescatter")  # (reducescatter, allgather) present

    def _servers_below(self, holds: ServerMask | None, node: int) -> tuple[slice, Longs]:
        """Return the nodes below a switch as a slice, and for each the number of servers at or below it that hold data.

        `holds`: None if all do.
        """
        # nodes are numbered depth first (RootedTree); node v has the servers low[v] to high[v] - 1 at or below it
        tree, inside = self.tree, slice(node + 1, int(self.tree.end[node]))
        if holds is None:
            return inside, tree.high[inside] - tree.low[inside]
        # prefix sums: holders among servers low..high-1 are count[high] - count[low]
        count = np.concatenate([[0], np.cumsum(holds)])
        return inside, count[tree.high[inside]] - count[tree.low[inside]]

    # ---- plan types of equal children ----

    def list_tiers(self, node: int, holds: ServerMask | None = None, *, add_excess: bool = False) -> list[Tier]:
        """Return the figures (`Tier`) of links below a switch as one of the parallel groups sees them, equal ones once.

        `add_excess`: the cautious assumption that the excess senders of all groups add up.
        """
        inside, holder_counts = self._servers_below(holds, node)
        alpha = float(self.tree.alpha[node])
        tiers: dict[Tier, None] = {}
        # upwards there is no incast: one sender per link
        for direction, incast in ((self.tree.down, 1), (self.tree.up, 0)):
            columns = [holder_counts, direction.beta[inside], direction.epsilon[inside] * incast, direction.w_t[inside]]
            # equal links give equal prices: each combination once
            rows = np.unique(np.stack([c[holder_counts > 0] for c in columns], axis=1), axis=0)
            for k, beta, epsilon, w_t in rows.tolist():
                tiers[Tier(alpha, k * beta, k * epsilon * (k if add_excess else 1), int(w_t))] = None
        return list(tiers)

    def best_type(
        self, node: int, count: int, holders: int, holds: ServerMask | None = None
    ) -> tuple[str, float, float]:
        """Return the plan type for equal children, its seconds, and those of the type that is fastest without caution.

        `count`: children; `holders`: servers per child that hold data. O(divisors^2 * tiers).
        """
        group_bytes, tiers = self.nbytes / holders, self.list_tiers(node, holds)
        plan_type, _ = self._fastest_type(count, group_bytes, self.list_tiers(node, holds, add_excess=True))
        _, seconds = self._fastest_type(count, group_bytes, tiers)
        return plan_type, self._price_type(plan_type, count, group_bytes, tiers), seconds

    def _fastest_type(self, count: int, group_bytes: float, tiers: Sequence[Tier]) -> tuple[str, float]:
        """Return the fastest plan type and its seconds; ties: the fewest steps. `group_bytes`: data of one group."""
        seconds, fans = self._best_factorization(count, group_bytes, tiers)
        options = [(seconds, len(fans), name_of(fans))]
        if count > 2:
            options += [
                (self._price_type(plan_type, count, group_bytes, tiers), steps_of(plan_type, count), plan_type)
                for plan_type in (RING, RHD)
            ]
        shortest = min(seconds for seconds, _, _ in options)
        _, plan_type = min((steps, plan_type) for seconds, steps, plan_type in options if seconds * SLACK <= shortest)
        return plan_type, shortest

    def _price_type(self, plan_type: str, count: int, group_bytes: float, tiers: Sequence[Tier]) -> float:
        """Return the seconds of a plan type by its closed form, at the slowest of these links."""
        if plan_type == RING:
            return max(genmodel_forms.ring(count, group_bytes, tier, self.server, self.kind).total for tier in tiers)
        if plan_type == RHD and count & (count - 1):
            # The form moves all data from and to servers beyond the largest power of two, in the first and last step.
            # Our plan has one step more per half, in which they get (or send) only their own blocks: add its alpha.
            allreduce_seconds = max(
                genmodel_forms.rhd(count, group_bytes, tier, self.server).total + 2 * tier.alpha for tier in tiers
            )
            return allreduce_seconds * sum(self.halves) / 2
        fans = fans_of(plan_type, count)
        return max(genmodel_forms.hcps(fans, group_bytes, tier, self.server, self.kind).total for tier in tiers)

    def _best_factorization(
        self, count: int, group_bytes: float, tiers: Sequence[Tier]
    ) -> tuple[float, tuple[int, ...]]:
        """Return the seconds and fan-ins of the fastest hierarchical CPS, over all factorizations of `count`."""
        divisors = [d for d in range(1, count + 1) if count % d == 0]
        # shortest path over divisors: an edge divisor -> product is a level of fan-in product / divisor
        best: dict[int, tuple[float, tuple[int, ...]]] = {1: (0.0, ())}
        for divisor in divisors:
            for product in divisors:
                if product <= divisor or product % divisor or divisor not in best:
                    continue
                # after levels whose fan-ins multiply to `divisor`, a server adds up 1 / divisor of the data
                step = self._price_type(CPS, product // divisor, group_bytes / divisor, tiers)
                seconds, fans = best[divisor]
                longer = seconds + step, (*fans, product // divisor)
                if product not in best or _is_better(longer, best[product]):
                    best[product] = longer
        return best[count]

    # ---- straight from the holders to the owners ----

    def price_direct(
        self, node: int, holder_counts: Sequence[int], owned: Sequence[float], holds: ServerMask | None = None
    ) -> float:
        """Return the seconds of ACPS: all holders send each block directly to its owner. O(nodes below).

        Child i's partial sums are on holder_counts[i] of its servers, and a fraction owned[i] of all blocks is owned
        there.
        """
        tree = self.tree
        inside, counts = self._servers_below(holds, node)
        child = np.repeat(np.arange(len(holder_counts)), [int(tree.end[c]) - c for c in tree.children[node]])
        holders_per_child, owned_shares = np.array(holder_counts, np.float64), np.array(owned, np.float64)
        other_children = len(holder_counts) - 1
        # fractions of nbytes per holder: sent, the blocks that no server of its child owns; received, its blocks from
        # all others
        out, into = (
            ((1 - owned_shares) / holders_per_child)[child],
            (other_children * owned_shares / holders_per_child)[child],
        )
        # How many send to one server at once. While reducing, an owner gets each of its blocks from one holder of every
        # other child: from `ratio` holders of a child, but at most one per block. In the allgather a holder gets blocks
        # from `ratio` owners of every other child. `blocks`: by child, the blocks of each of its owners, at least 1:
        # there are as many blocks as servers, and a child's share of them is divided among its holders.
        blocks = np.maximum(tree.servers * owned_shares / holders_per_child, 1)
        # [i, j]: holders in child j per owner in child i
        ratio = np.maximum(holders_per_child[None, :] / holders_per_child[:, None], 1)
        np.fill_diagonal(ratio, 0)
        reducing = np.minimum(ratio, blocks[:, None]).sum(axis=1)[child]
        spreading = ratio.sum(axis=1)[child]
        seconds = 0.0
        for present, sent, received, senders in zip(
            self.halves, (out, into), (into, out), (reducing, spreading), strict=True
        ):
            if present:
                # no incast upwards, as in list_tiers; optimistic where several holders of a child send to one owner
                up = self._slowest_link(tree.up, inside, counts * sent, np.zeros(len(counts)))
                down = self._slowest_link(tree.down, inside, counts * received, senders)
                seconds += float(tree.alpha[node]) + max(up, down)
        return seconds + self._price_combining(float(into.max(initial=0.0)), other_children + 1)

    def _slowest_link(self, direction: Direction, inside: slice, load: Floats, fan: Floats | Longs) -> float:
        """Return the seconds of the slowest link, in one direction, of the nodes in a slice.

        `load`: by node, the fraction of nbytes on its link; `fan`: the senders to one receiver over it.
        """
        # incast: beyond w_t senders at once, every further one costs epsilon per byte
        excess = np.maximum(fan - direction.w_t[inside], 0)
        return (
            float((load * (direction.beta[inside] + direction.epsilon[inside] * excess)).max(initial=0.0)) * self.nbytes
        )

    def _price_combining(self, received: float, fan: int) -> float:
        """Return the seconds that the busiest server takes to add up a fraction `received` of nbytes, `fan` values at
        once. 0 for an allgather.
        """
        if not self.halves[0] or fan < 2:
            return 0.0
        # of `fan` values fan - 1 are received; adding them up takes fan + 1 accesses to memory, one of them to write
        return received * self.nbytes * (self.server.gamma + self.server.delta * (fan + 1) / (fan - 1))

    def price_flat(self, node: int) -> float:
        """Return the seconds of co-located parameter servers among all servers below a switch. O(nodes below)."""
        inside, k = self._servers_below(holds=None, node=node)
        n = int(self.tree.high[node] - self.tree.low[node])
        if n < 2:
            return 0.0
        link_seconds = [
            self._slowest_link(direction, inside, k * (n - k) / n, senders)
            for direction, senders in ((self.tree.up, k), (self.tree.down, n - k))
        ]
        # one step: the longest latency below and the slowest link; over a link the k servers below it send to the
        # n - k others, all k to one receiver at once (incast upwards, too), and receive from them
        seconds = float(self.tree.alpha[node : self.tree.end[node]].max()) + max(link_seconds)
        return seconds * sum(self.halves) + self._price_combining((n - 1) / n, n)

    # ---- data rearrangement ----

    def price_gather(self, node: int, group_count: int, share: float, *, back: bool = False) -> float:
        """Return the seconds of data rearrangement: `group_count` servers below a node gather the data of all.

        Each server gives a fraction `share` of nbytes to the first of its group, and in the allgather gets it back.
        `back`: the reverse (`SwitchChoice.spread`): in the reducescatter the first of each group sends to its servers,
        the owners, and in the allgather they send to it. O(servers * depth).
        """
        low, high = int(self.tree.low[node]), int(self.tree.high[node])
        receivers = representatives(high - low, group_count) + low
        src = np.arange(low, high)
        moving = src != receivers
        src, receivers = src[moving], receivers[moving]
        # The reducescatter sends to the first of each group and the allgather from it; `back`: the other way round.
        seconds, halves = 0.0, self.halves[::-1] if back else self.halves
        for present, ends in zip(halves, ((src, receivers), (receivers, src)), strict=True):
            if present:
                seconds += self._price_moves(*ends, share)
        # The first of a group adds up its own data and those of the fan - 1 others; back, each owner adds what it
        # receives to what it has.
        fan = -(-(high - low) // group_count)
        return seconds + self._price_combining(share * (1 if back else fan - 1), 2 if back else fan)

    def _price_moves(self, src: Longs, dst: Longs, share: float) -> float:
        """Return the seconds of one step in which each src sends a fraction `share` of nbytes to its dst."""
        if not len(src):
            return 0.0
        tree, busiest = self.tree, 0.0
        latency = np.zeros(len(src))
        for direction, begin, other in ((tree.up, src, dst), (tree.down, dst, src)):
            # from this end of each row up the tree, until the other end is below the node, too
            node, rows = tree.leaf[begin], np.arange(len(src))
            while len(rows):
                not_met = (other[rows] < tree.low[node]) | (other[rows] >= tree.high[node])
                rows, node = rows[not_met], node[not_met]
                if not len(rows):
                    break
                latency[rows] += direction.latency[node]
                busiest = max(busiest, self._busiest_link(direction, node, dst[rows], share))
                node = tree.parent[node]
        return float(latency.max()) + busiest

    def _busiest_link(self, direction: Direction, nodes: Longs, dst: Longs, share: float) -> float:
        """Return the seconds of the busiest link. Row i sends `share` over the link above nodes[i], to dst[i]."""
        # by link and destination: number of senders over the link
        pairs, senders = np.unique(nodes * self.tree.servers + dst, return_counts=True)
        node, size = pairs // self.tree.servers, len(self.tree.parent)
        excess = np.zeros(size)
        np.maximum.at(excess, node, senders - direction.w_t[node])
        load = np.bincount(nodes, minlength=size)
        return float((load * (direction.beta + direction.epsilon * excess)).max()) * share * self.nbytes


def _is_better(first: tuple[float, tuple[int, ...]], second: tuple[float, tuple[int, ...]]) -> bool:
    """Return whether the first (seconds, fan-ins) is better: faster, else fewer steps, else larger first fan-ins.

    With large fan-ins first, the least memory is accessed.
    """
    # within the tolerance they count as equal, so that rounding never decides
    (seconds, fans), (other_seconds, other_fans) = first, second
    if not seconds * SLACK <= other_seconds <= seconds / SLACK:
        return seconds < other_seconds
    return (len(fans), [-fan for fan in fans]) < (len(other_fans), [-fan for fan in other_fans])
