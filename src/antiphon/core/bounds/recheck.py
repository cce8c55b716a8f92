"""Recheck a witness alone: plain sums and shortest paths in whole numbers, with no code shared with the searches.

`proved_time` returns the time that a witness proves, in seconds if a block of weight 1 (its relative size) has one
byte, or raises Invalid. docs/bounds.md proves why each is a bound. The checks in short:

    cut         the stated weight is held only inside and needed outside; the stated capacity is that of the links out
    partition   every rank is in exactly one part, each part has a member; the capacity between the parts is as stated.
                Proved: `times` (how often all data must cross between parts) * weight / capacity
    LP dual     no price is negative. The cost of a link is the sum of its price and those of its shared limits, plus
                the potential of its head less that of its tail (potentials of switches; ranks have 0). No cost is
                negative, and on every link the lengths of all families (sets of needs, each with its link lengths) plus
                the crossings of all partitions (times their multipliers) sum to at most its cost. Proved: (sum of
                weight * shortest path + sum over partitions of multiplier * times * weight) / (sum of price *
                capacity); `witness.py` defines all terms
    joint dual  for every group of a joint collective an LP dual, all at the same prices; their numerators are added
    distance    distances grow by at most one per link into a rank, and a path attains them

Example: the cut {0} on a ring of 3 with allgather. The block of rank 0 is needed outside and held only inside: weight
1. Two links leave rank 0: capacity 2 c. The bound is 1 / (2 c) per unit of weight.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.abilities import abilities_of, switches_to_assign, switches_with_own_data
from antiphon.core.bounds.witness import Cut, Distance, Family, JointDual, LpDual, Partition, Witness
from antiphon.core.collective import Collective
from antiphon.core.columns import pair_keys, split_keys
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid

Need = tuple[int, tuple[int, ...], int]  # block, the ranks that hold the contribution, destination


def proved_time(topology: Topology, collective: Collective, witness: Witness | None) -> Fraction:
    """Return the time that a witness proves (see the module), checked from the topology and the collective alone."""
    if witness is None:
        return Fraction(0)
    if isinstance(witness, Cut):
        return _check_cut(topology, collective, witness)
    if isinstance(witness, Partition):
        _check_partition(topology, collective, witness)
        return witness.times * Fraction(witness.weight) / witness.capacity
    priced_capacity = sum(
        (price * topology.resources.bytes_per_second(r) for r, price in _prices(topology, witness).items()), Fraction(0)
    )
    _require(priced_capacity > 0, "all its prices are 0")
    if isinstance(witness, LpDual):
        return _check_dual(topology, collective, witness) / priced_capacity
    _require(len(collective.groups) == len(witness.groups), "it must have one dual per group")
    total, first = 0, 0
    # The blocks of the groups follow each other in the joint collective.
    for group, dual in zip(collective.groups, witness.groups, strict=True):
        group_weights = collective.weights[first : first + group.blocks]
        first += group.blocks
        # The blocks of the group weigh `scale` times as much here as in its own collective.
        scale = int(group_weights.sum()) // int(group.weights.sum())
        _require(
            bool(np.array_equal(group_weights, group.weights * scale)), "the weights of a group are not in proportion"
        )
        total += scale * _check_dual(topology, group, replace(dual, prices=witness.prices))
    return Fraction(total) / priced_capacity


def _prices(topology: Topology, witness: LpDual | JointDual) -> dict[int, int]:
    """Return the prices by resource (links, then shared limits), checked to exist and not to be negative."""
    count = topology.links + len(topology.limits)
    _require(all(0 <= r < count and p >= 0 for r, p in witness.prices), "a price is negative or names no resource")
    return dict(witness.prices)


def check_distance(topology: Topology, collective: Collective, proof: Distance) -> None:
    """Check that the need exists, and that its distance is `steps`: no less by `distances`, no more by `path`."""
    distance = np.array(proof.distances, np.int64)
    _require(len(distance) == topology.nodes, "its distances are not one per node")
    _require(bool(proof.holders) and 0 <= proof.rank < topology.ranks, "its ranks are out of range")
    _require(all(0 <= h < topology.ranks and distance[h] == 0 for h in proof.holders), "a holder is not at distance 0")
    _require(distance[proof.rank] == proof.steps, "its distances do not end at its steps")
    # A link into a rank takes a step, a link into a switch none.
    step_cost = (topology.link_dst < topology.ranks).astype(np.int64)
    _require(
        bool(np.all(distance[topology.link_dst] <= distance[topology.link_src] + step_cost)),
        "its distances skip along a link",
    )
    link_ends = set(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    path = proof.path
    _require(bool(path) and path[0] in proof.holders and path[-1] == proof.rank, "its path does not join its ranks")
    _require(all(hop in link_ends for hop in itertools.pairwise(path)), "its path uses a link that is not there")
    _require(sum(node < topology.ranks for node in path[1:]) == proof.steps, "its path takes another number of steps")
    all_but_rank = np.ones(topology.nodes, bool)
    all_but_rank[proof.rank] = False
    _require(
        _crossing_weight(collective, all_but_rank, needed=set(proof.holders)) > 0,
        f"rank {proof.rank} needs nothing that only ranks {list(proof.holders)} hold",
    )


def _require(condition: bool, failure: str) -> None:
    """Raise Invalid, with `failure` as the reason, unless the condition holds."""
    if not condition:
        raise Invalid(f"this bound's witness does not hold: {failure}; compute the bound anew")


def _crossing_weight(collective: Collective, inside: NDArray[np.bool_], needed: set[int] | None = None) -> int:
    """Return the weight of the blocks with data needed outside `inside` and held only inside.

    `needed`: count only data held by exactly these ranks.
    """
    assert collective.weights is not None
    relation = collective.relation
    block, rank = relation.pre_block, relation.pre_rank
    if np.any((block[1:] == block[:-1]) & (rank[1:] == rank[:-1])):  # values with several contributions
        return _crossing_rows(collective, set(np.flatnonzero(inside).tolist()), needed)
    # Identify each contribution by (block, id) in one integer; it is held inside if no holder is outside.
    datum = pair_keys(relation.pre_block, relation.pre_id)
    data, datum_index = np.unique(datum, return_inverse=True)
    held_inside = np.ones(len(data), bool)
    held_inside[datum_index[~inside[relation.pre_rank]]] = False
    if needed is not None:
        # Held by `needed` and no other rank: no holder outside the set, and as many distinct holders as the set has.
        other_holder = ~np.isin(relation.pre_rank, sorted(needed))
        held_inside[datum_index[other_holder]] = False
        holder_pairs = np.unique(datum_index * np.int64(collective.ranks) + relation.pre_rank) // collective.ranks
        held_inside &= np.bincount(holder_pairs, minlength=len(data)) == len(needed)
    wanted_outside = ~inside[relation.post_rank]
    has_datum_inside = np.zeros(collective.blocks, bool)
    block_inside, _ = split_keys(data[held_inside])
    has_datum_inside[block_inside] = True
    crossing = np.zeros(collective.blocks, bool)
    # Ranks that want all contributions (-1) first, as arrays; then those that want some, one by one.
    all_wanted, some_wanted = wanted_outside & (relation.post_want < 0), wanted_outside & (relation.post_want >= 0)
    crossing[relation.post_block[all_wanted]] = has_datum_inside[relation.post_block[all_wanted]]
    data_inside = set(zip(*(column.tolist() for column in split_keys(data[held_inside])), strict=True))
    for block, want in zip(relation.post_block[some_wanted], relation.post_want[some_wanted], strict=True):
        if any((int(block), number) in data_inside for number in relation.wants[want]):
            crossing[block] = True
    return int(collective.weights[crossing].sum())


def _crossing_rows(collective: Collective, inside: set[int], needed: set[int] | None) -> int:
    """Return `_crossing_weight` for values that begin with several contributions, need by need.

    Which holders are usable then depends on everything that the destination wants. `needed` as of `_crossing_weight`.
    """
    assert collective.weights is not None
    crossing = {
        block
        for block, holders, dst in _list_needs(collective)
        if dst not in inside and inside.issuperset(holders) and needed in (None, set(holders))
    }
    return sum(int(collective.weights[block]) for block in crossing)


def _node_mask(topology: Topology, nodes: Sequence[int]) -> NDArray[np.bool_]:
    """Return which nodes are in the list."""
    _require(all(0 <= node < topology.nodes for node in nodes), "it names a node that is not there")
    side = np.zeros(topology.nodes, bool)
    side[list(nodes)] = True
    return side


def _capacity_within_limits(
    topology: Topology, multiplicity: NDArray[np.int64], limits: Iterable[tuple[int, int]]
) -> Fraction:
    """Return the sum of link capacities, each times its `multiplicity`, with shared limits in place of their links.

    `limits`: (limit, count); the limit counts `count` times, and each of its links that many times less.
    """
    multiplicity = multiplicity.copy()
    total = Fraction(0)
    for limit, count in limits:
        _require(0 <= limit < len(topology.limits) and count > 0, "it names a shared limit that is not there")
        links = list(topology.limits[limit].links)
        multiplicity[links] = np.maximum(multiplicity[links] - count, 0)
        total += topology.limits[limit].bandwidth * count
    # `bincount` adds floats, which are exact for these small whole numbers
    sums = np.bincount(topology.link_type, weights=multiplicity, minlength=len(topology.types))
    return total + sum((int(n) * t.bandwidth for n, t in zip(sums, topology.types, strict=True)), Fraction(0))


def _check_cut(topology: Topology, collective: Collective, cut: Cut) -> Fraction:
    """Check a cut and return the time that it proves."""
    side = _node_mask(topology, cut.side)
    _require(_crossing_weight(collective, side) == cut.weight, "another weight must leave the cut")
    leaving = (side[topology.link_src] & ~side[topology.link_dst]).astype(np.int64)
    capacity = _capacity_within_limits(topology, leaving, [(limit, 1) for limit in cut.limits])
    _require(capacity == cut.capacity and capacity > 0, "the cut has another capacity")
    return cut.weight / capacity


def _count_crossings(topology: Topology, partition: Partition) -> NDArray[np.int64]:
    """Count the parts that each link leaves (or enters, or both)."""
    crossings = np.zeros(topology.links, np.int64)
    for part_nodes in partition.parts:
        side = _node_mask(topology, part_nodes)
        tail_inside, head_inside = side[topology.link_src], side[topology.link_dst]
        leaves, enters = tail_inside & ~head_inside, head_inside & ~tail_inside
        crossings += (
            leaves if partition.direction == "out" else enters if partition.direction == "in" else leaves | enters
        )
    return crossings


def _check_partition(topology: Topology, collective: Collective, partition: Partition) -> None:
    """Check that a partition holds every rank once, has a member per part and states its capacity.

    Switches that help (multicast or reduce for this collective) must be in it once, too. In direction "both",
    switches to which ranks send their own data as well may be in no part; `Partition` says why.
    """
    assert collective.weights is not None
    _require(collective.kind == "allreduce", "a partition bounds allreduce only")
    _require(partition.direction in ("out", "in", "both"), "its direction is neither out nor in nor both")
    _require(partition.weight == int(collective.weights[0]), "it has another weight")
    abilities = abilities_of(topology, collective)
    _require(partition.direction != "both" or len(partition.parts) > 2, "it has fewer than three parts")
    optional_switches = switches_with_own_data(topology, abilities) if partition.direction == "both" else set()
    combining_nodes = {*range(topology.ranks), *switches_to_assign(abilities, partition.direction)}
    assigned_nodes = [node for part_nodes in partition.parts for node in part_nodes if node in combining_nodes]
    # an optional switch must be in no part or in one
    each_once = sorted(assigned_nodes) == sorted(combining_nodes - (optional_switches - set(assigned_nodes)))
    expected = "every rank, and every switch that helps," if abilities else "every rank"
    _require(each_once, f"its parts do not hold {expected} exactly once")
    members = set(collective.members)
    _require(all(members & set(part_nodes) for part_nodes in partition.parts), "a part has no member of the collective")
    capacity = _capacity_within_limits(topology, _count_crossings(topology, partition), partition.limits)
    _require(capacity == partition.capacity and capacity > 0, "the partition has another capacity")


def _list_needs(collective: Collective) -> list[Need]:
    """Return every (block, holders, destination), without blocks of weight 0 and data already in place.

    A rank that begins with more than the destination wants is no holder: nothing is ever taken out of a value.
    """
    assert collective.weights is not None
    relation = collective.relation
    initial: dict[int, dict[int, list[int]]] = {}
    pre = zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True)
    for block, rank, name in pre:
        initial.setdefault(block, {}).setdefault(rank, []).append(name)
    needs = []
    usable: dict[tuple[int, int], list[tuple[int, ...]]] = {}  # distinct sets of holders, per block and want
    post = zip(relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True)
    for block, rank, want in post:
        if not collective.weights[block]:
            continue
        if (block, want) not in usable:
            usable[block, want] = _usable_holders(initial.get(block, {}), relation.wants[want] if want >= 0 else None)
        for holders in usable[block, want]:
            if not holders:
                raise Infeasible(f"nobody begins with all of block {block} in a form that rank {rank} can use")
            if rank not in holders:
                needs.append((block, holders, rank))
    return needs


def _usable_holders(initial: dict[int, list[int]], target: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Return the distinct sets of ranks that have a wanted contribution and begin with wanted contributions only.

    `initial`: rank -> contributions of its initial value. `target`: the wanted ones; None: all.
    """
    if target is None:
        target = sorted({name for names in initial.values() for name in names})
    allowed = {name: target.count(name) for name in set(target)}
    holders_of: dict[int, list[int]] = {name: [] for name in sorted(allowed)}
    for rank in sorted(initial):
        names = initial[rank]
        if all(names.count(name) <= allowed.get(name, 0) for name in names):
            for name in set(names):
                holders_of[name].append(rank)
    return sorted({tuple(ranks) for ranks in holders_of.values()})


def _check_dual(topology: Topology, collective: Collective, dual: LpDual) -> int:
    """Check an LP dual and return what all its families and partitions cost: the numerator of the time (`LpDual`)."""
    assert collective.weights is not None
    resources = topology.resources
    abilities = abilities_of(topology, collective)
    _require(all(topology.ranks <= s < topology.nodes for s, _ in dual.potentials), "only switches have potentials")
    # More may leave a switch that multicasts than enters it, and less a switch that reduces.
    for switch, value in dual.potentials:
        ability = abilities.get(switch)
        wrong = ability is not None and ((ability.multicast and value < 0) or (ability.reduce and value > 0))
        _require(not wrong, "a switch that helps has a potential that its loads need not keep")
    price, potential = dict(dual.prices), dict(dual.potentials)
    src, dst = topology.link_src.tolist(), topology.link_dst.tolist()
    cost = []
    for link in range(topology.links):
        prices = price.get(link, 0) + sum(price.get(limit, 0) for limit in resources.limits_of(link))
        cost.append(prices + potential.get(dst[link], 0) - potential.get(src[link], 0))
    _require(min(cost, default=0) >= 0, "a link costs less than nothing")
    # unused_cost: per link its cost less the lengths and crossings so far. total: the numerator of the proved time.
    unused_cost, total = list(cost), 0
    for partition, multiplier in dual.partitions:
        _check_partition(topology, collective, partition)
        _require(multiplier >= 0, "a partition has a negative multiplier")
        crossings = _count_crossings(topology, partition)
        unused_cost = [x - multiplier * int(c) for x, c in zip(unused_cost, crossings, strict=True)]
        total += multiplier * partition.times * partition.weight
    needs = _list_needs(collective)
    for family in dual.families:
        lengths = dict(family.lengths) if family.lengths is not None else dict(enumerate(cost))
        _require(all(0 <= k < topology.links and x >= 0 for k, x in lengths.items()), "a length is out of range")
        for link, length in lengths.items():
            unused_cost[link] -= length
        total += _weighted_distances(topology, collective, needs, family, lengths)
    _require(min(unused_cost, default=0) >= 0, "its families pay more for a link than it costs")
    return total


def _weighted_distances(
    topology: Topology, collective: Collective, needs: list[Need], family: Family, lengths: dict[int, int]
) -> int:
    """Return the sum over the family's blocks of weight times the distance of the block's farthest need.

    `lengths`: by link; links not in it have length 0.
    """
    assert collective.weights is not None
    at, kind = family.at, family.of  # `at`: nothing for "all", one rank, or for a pair the only holder and destination
    selects: dict[str, Callable[[tuple[int, ...], int], bool]] = {
        "to": lambda holders, destination: (destination,) == at,
        "from": lambda holders, destination: holders == at,
        "pair": lambda holders, destination: (*holders, destination) == at,
        "all": lambda holders, destination: True,
    }
    _require(kind in selects, f"there is no family of kind {kind!r}")
    ranks_named = {"all": 0, "to": 1, "from": 1, "pair": 2}
    _require(len(at) == ranks_named[kind], "a family names a wrong number of ranks")
    family_needs = [(block, holders, dst) for block, holders, dst in needs if selects[kind](holders, dst)]
    is_backward = kind == "to"  # then one search from the destination along reversed links serves all holders
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    out: list[list[tuple[int, int]]] = [[] for _ in range(topology.nodes)]
    for link, (src, dst) in enumerate(ends):
        tail, head = (dst, src) if is_backward else (src, dst)
        out[tail].append((head, lengths.get(link, 0)))
    distances: dict[tuple[int, ...], list[int]] = {}
    longest: dict[int, int] = {}
    for block, holders, dst in family_needs:
        start = (dst,) if is_backward else holders
        if start not in distances:
            distances[start] = _shortest_lengths(out, start)
        length = min(distances[start][h] for h in holders) if is_backward else distances[start][dst]
        # nodes out of reach are farther than all lengths together (`_shortest_lengths`)
        _require(length <= sum(lengths.values()), "a need is out of reach")
        longest[block] = max(longest.get(block, 0), length)
    return sum(int(collective.weights[block]) * length for block, length in longest.items())


def _shortest_lengths(out: list[list[tuple[int, int]]], start: tuple[int, ...]) -> list[int]:
    """Return the distance of every node from the start nodes by Dijkstra's algorithm, in whole lengths.

    `out`: per node its links as (head, length).
    """
    # Unreachable nodes keep this value, which exceeds every path.
    distance = [sum(length for links in out for _, length in links) + 1] * len(out)
    for node in start:
        distance[node] = 0
    heap = [(0, node) for node in start]
    while heap:
        length, node = heapq.heappop(heap)
        if length > distance[node]:  # an outdated entry
            continue
        for head, link_length in out[node]:
            if length + link_length < distance[head]:
                distance[head] = length + link_length
                heapq.heappush(heap, (distance[head], head))
    return distance
