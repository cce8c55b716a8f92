"""Find the weakest partition exactly: the least capacity between parts over (parts - 1).

An allreduce must combine everything across any partition of the ranks and bring the result back. Each of the two takes
at least parts - 1 transfers of all data between the parts, so the weakest partition bounds its time. This is
Cunningham's strength of a network (1985), for directed arcs and with switches: the capacity out of a part of ranks is
that of a minimum cut between it and the other ranks, with switches on either side.

That function of the part is submodular. So the greedy algorithm for its Dilworth truncation finds, for a fixed ratio,
the partition that minimises the sum over parts of (capacity out - ratio). It adds ranks one by one, and lets each merge
with the parts that a minimum cut puts on its side. A Newton iteration (Dinkelbach) wraps this: the ratio of the last
partition is the next one to test, until no partition has a lower one.

Example: two cliques of 4 ranks, links of capacity 3 between the ranks of a clique and 2 links each way of capacity 1
between the cliques. Single ranks: 2 * 4 * 3 * 3 + 4 = 76 capacity out over 7, about 10.9. The two cliques: 4 over 1 =
4, which is weaker and gives the bound.

Ranks outside the collective may relay: they belong to some part, and every assignment is tried if there are few.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.maxflow import MaxFlows
from antiphon.core.bounds.network import Network

Groups = list[list[int]]  # groups of ranks that stay in one part: a member and the relays assigned to it

MOST_ASSIGNMENTS = 256  # of relays to members: each costs a whole search, so above this only some are tried, ...
MAX_SAME_GROUP = 8  # ... among them those that put all relays into one group, for this many groups
MOST_MEMBERS = 16  # with more members, and switches that must be in a part, only one assignment is tried


def weakest_partition(
    network: Network, members: Sequence[int], switches: Sequence[int] = ()
) -> tuple[Groups, Fraction]:
    """Return sets of nodes that cover all ranks, each with a member, of least (sum of capacity out) / (sets - 1), and
    that ratio.

    `switches`: those that must be in exactly one set, as ranks are. If all ranks are members, or if relays can be
    assigned to them in at most 256 ways, the result is the minimum over all partitions; else it is the best one tried.
    O(members * Newton rounds) maximum flows per assignment.
    """
    # From here on, relays: other ranks and `switches`, each to be assigned to a member whose part it joins.
    non_members = {*range(network.ranks), *switches} - set(members)
    linked = {*network.tail.tolist(), *network.head.tolist()}
    best: tuple[Groups, Fraction] | None = None
    max_assignments = MOST_ASSIGNMENTS if not switches or len(members) <= MOST_MEMBERS else 0
    # Each assignment of relays gives a valid partition; the weakest of them is the best bound.
    for groups in _assign_relays(network, list(members), sorted(non_members & linked), max_assignments):
        groups[0] += sorted(non_members - linked)  # without links: nothing crosses, in whichever part they are
        merged, rate = _Strength(network, groups).find_weakest()
        if best is None or rate < best[1]:
            best = merged, rate
    assert best is not None
    return best


def _assign_relays(network: Network, members: list[int], relays: list[int], max_assignments: int) -> list[Groups]:
    """Return all assignments of relays to members, each as one group per member.

    If there are more than `max_assignments`: the assignment by widest connection, and those that put all relays into
    one of the first MAX_SAME_GROUP groups (these not if `max_assignments` is 0).
    """
    if len(members) ** len(relays) <= max_assignments:
        assignments = list(itertools.product(range(len(members)), repeat=len(relays)))
    else:
        owners = tie_to_members(network, members, relays)
        assignments = [tuple(owners[relay] for relay in relays)]
        same_groups = min(len(members), MAX_SAME_GROUP) if max_assignments else 0
        assignments += [(i,) * len(relays) for i in range(same_groups)]
    choices = []
    for assignment in assignments:
        groups = [[member] for member in members]
        for relay, owner in zip(relays, assignment, strict=True):
            groups[owner].append(relay)
        choices.append(groups)
    return choices


def tie_to_members(network: Network, members: list[int], relays: list[int]) -> dict[int, int]:
    """Return for each relay the position in `members` of the member with the widest connection to it.

    Grows a forest from the members over the widest arcs first; a relay that it does not reach gets position 0.
    """
    owner = {member: i for i, member in enumerate(members)}
    arcs = sorted(
        zip(network.capacity.tolist(), network.tail.tolist(), network.head.tolist(), strict=True), reverse=True
    )
    has_grown = True
    while has_grown:
        has_grown = False
        for _, tail, head in arcs:
            for a, b in ((tail, head), (head, tail)):
                if a in owner and b not in owner:
                    owner[b], has_grown = owner[a], True
                    break
            if has_grown:
                break
    return {relay: owner.get(relay, 0) for relay in relays}


class _Strength:
    """The search for one assignment of relays: a flow network on the nodes, a source and a sink.

    Arcs: the links, then ties of unbounded capacity that hold each group together, then one from the source to each
    group and one from each group to the sink.
    """

    def __init__(self, network: Network, groups: Groups) -> None:
        self.network, self.groups = network, groups
        self.first_nodes = [group[0] for group in groups]
        n = network.nodes
        self.source, self.sink = n, n + 1
        ties = [(a, b) for g in groups for x in g[1:] for a, b in ((g[0], x), (x, g[0]))]
        tail = network.tail.tolist() + [a for a, _ in ties] + [self.source] * len(groups) + self.first_nodes
        head = network.head.tolist() + [b for _, b in ties] + self.first_nodes + [self.sink] * len(groups)
        self.tie_count = len(ties)
        self.flows = MaxFlows(n + 2, tail, head)  # the nodes, a source and a sink
        self.capacities = [int(c) for c in network.capacity.tolist()]
        self.infinite = sum(self.capacities) + 1

    def find_weakest(self) -> tuple[Groups, Fraction]:
        """Newton iteration: test the ratio of the last partition until no partition has a lower one."""
        part_groups = [[i] for i in range(len(self.groups))]  # per part the numbers of its groups
        sides, total = self._partition_value(part_groups)
        # at least two groups, as an allreduce has at least two members: no division by 0
        ratio = Fraction(total, len(part_groups) - 1)
        while True:
            part_groups = self._most_violated(ratio)
            if len(part_groups) < 2:
                return sides, ratio
            candidate, total = self._partition_value(part_groups)
            if Fraction(total, len(part_groups) - 1) >= ratio:
                return sides, ratio
            sides, ratio = candidate, Fraction(total, len(part_groups) - 1)

    def _partition_value(self, part_groups: list[list[int]]) -> tuple[Groups, int]:
        """Return each part's nodes, with switches on the side that minimises capacity, and the summed capacity out.

        `part_groups`: per part the numbers of its groups.
        """
        sides, total = [], 0
        for group_numbers in part_groups:
            inside = set(group_numbers)
            # in the order of the arcs: links, ties, source to groups, groups to sink
            capacity = self.capacities + [self.infinite] * self.tie_count
            capacity += [self.infinite if i in inside else 0 for i in range(len(self.groups))]
            capacity += [0 if i in inside else self.infinite for i in range(len(self.groups))]
            _, side = self.flows.cut(capacity, self.source, self.sink)
            total += self.network.out_of(np.array(side[: self.network.nodes]))
            sides.append([node for node in range(self.network.nodes) if side[node]])
        return sides, total

    def _most_violated(self, ratio: Fraction) -> list[list[int]]:
        """Return the partition that minimises the sum of (capacity out - ratio), per part the numbers of its groups:
        greedy, one cut per group."""
        p, q = ratio.numerator, ratio.denominator
        count = len(self.groups)
        links = [c * q for c in self.capacities]
        price: list[int] = []  # per group: how much it raises the sum over parts of q * capacity out - p
        part_of = list(range(count))
        unbounded = self.infinite * q + p * count  # more than any cut without such arcs
        # Greedy (Dilworth truncation). Invariant: sum(price) is the least of the partitions of `added` groups.
        for added in range(count):
            # Groups of positive price hang on the source and those of negative price on the sink, so a cut around S has
            # the value (capacity out of S) - (sum of the prices in S) + sum(positive). Later groups are outside S.
            positive = [max(x, 0) for x in price]
            from_source = [*positive, unbounded] + [0] * (count - added - 1)
            to_sink = [max(-x, 0) for x in price] + [0] + [unbounded] * (count - added - 1)
            value, side = self.flows.cut(
                links + [unbounded] * self.tie_count + from_source + to_sink, self.source, self.sink
            )
            price.append(value - sum(positive) - p)
            # The minimum cut selects the existing parts that merge with group `added`.
            joined = {part_of[i] for i in range(added + 1) if side[self.first_nodes[i]]}
            for i in range(added + 1):
                if part_of[i] in joined:
                    part_of[i] = added
        return [[i for i in range(count) if part_of[i] == number] for number in sorted(set(part_of))]
