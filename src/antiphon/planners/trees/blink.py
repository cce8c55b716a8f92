"""The planner `blink`: spanning trees packed as published (Wang et al., MLSys 2020; docs/planners/trees.md#blink).

Input: any collective but alltoall, on a machine of up to 64 ranks. Output: schedules along the trees that the published
method packs, for comparison with the exact packing of planner `trees`. By section of the paper:

    3.2, 3.3   trees on direct links by multiplicative weights; an integer program then chooses a few of them
    3.4        option `hybrid`: slower links (PCIe) carry a second set of trees; Equation 8 divides the data between
               the sets
    3.5        several servers: local reduces, an exchange between one rank of each, local broadcasts
    switches   (as in the DGX-2) one-hop trees: every GPU is the root of 1/n of the data and sends to all others

This file chooses between these cases; blink_packing.py holds the algorithms.

Example: a ring of 3 has three spanning trees, the paths that omit one link. The weights method takes them in turn, so
each ends near half a link's rate: 3/2 in total, used up and down by an allreduce.

Where the paper is silent (other switches, relaying ranks, several roots) the exact packing of planner `trees` is used,
and the plan's provenance states it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from typing import Annotated, Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import network_of
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import dual, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import Option
from antiphon.planners.shared.groups import ranks_by_host
from antiphon.planners.shared.pipelining import pipe_schedule
from antiphon.planners.shared.reach import reroot_tree
from antiphon.planners.shared.rows import PiecesOrBest
from antiphon.planners.shared.tree_schedules import Pair, SpanningTree, reduce_and_spread, spread_trees
from antiphon.planners.trees.blink_packing import (
    Blink,
    LinkSubset,
    blink_allreduce,
    blink_broadcast,
    links_within,
    one_hop_trees,
    split_by_rate,
    three_phases,
    with_link_kinds,
    with_links,
)
from antiphon.planners.trees.columns import pack_allreduce_lp
from antiphon.planners.trees.direct_links import directed_machine, undirected_machine
from antiphon.planners.trees.trees import FEWEST_TREES_MAX_RANKS, PackingTask, pack_allreduce, pack_trees, pairs_of

RUN_BACKWARDS = ("reduce", "gather", "reducescatter")  # planned as broadcast, scatter, allgather, then reversed
MOST_RANKS = 64
LEAST_EPSILON = Fraction(1, 200)  # iterations grow with 1 / epsilon^2: some seconds here


@dataclass(frozen=True)
class BlinkOptions:
    """The options of `blink` with their exact values; `nbytes`: the size for which a hybrid divides its data."""

    epsilon: float
    threshold: Fraction
    hybrid: bool
    t_dpa: Fraction  # seconds
    nbytes: int | None  # None: large data


@dataclass(frozen=True)
class TreeSet:
    """The trees over one set of links, in the link numbers of the whole machine, and their total rate in bytes/s.

    An allreduce has `pairs`, and `rate` is that of all its data. Other collectives have `trees`, and `rate` is that of
    every root's data. `method`: how they were packed, in words. `count`: number of trees, or of one root's trees.
    """

    rate: Fraction
    method: str
    count: int
    pairs: tuple[Pair, ...] = ()
    trees: tuple[SpanningTree, ...] = ()

    def scaled_to(self, rate: Fraction) -> TreeSet:
        """Return the trees with rates that sum to `rate`, over all pairs or for every root."""
        pairs = tuple(replace(pair, rate=pair.rate * rate / self.rate) for pair in self.pairs)
        trees = tuple(replace(tree, rate=tree.rate * rate / self.rate) for tree in self.trees)
        return replace(self, rate=rate, pairs=pairs, trees=trees)


Epsilon = Annotated[
    float,
    Option("how near the multiplicative weights come to the optimum (section 3.2); not 0 or 1", minimum=0, maximum=1),
]
Threshold = Annotated[
    float | str | Fraction,
    Option("how far from the optimum the integer program may stay for fewer trees (3.2.1)", minimum=0, maximum=1),
]
Hybrid = Annotated[bool, Option("slower links carry a set of trees of their own, divided by Equation 8 (section 3.4)")]
PeerAccess = Annotated[
    float, Option("with hybrid: how much later the slower links begin (T_dpa)", unit="seconds", minimum=0)
]


def blink(
    request: Request,
    *,
    pieces: PiecesOrBest = None,
    epsilon: Epsilon = 0.05,
    threshold: Threshold = Fraction(1, 20),
    hybrid: Hybrid = False,
    t_dpa: PeerAccess = 0.0,
) -> Iterator[Schedule]:
    """Yield the schedule along Blink's trees, pipelined in `pieces` slices (None: the best number for each size)."""
    if hybrid and len(request.sizes) > 1:  # the division depends on the size
        for nbytes in request.sizes:
            one_size = replace(request, nbytes=nbytes, also=())  # also: further sizes of the request
            yield from blink(one_size, pieces=pieces, epsilon=epsilon, threshold=threshold, hybrid=hybrid, t_dpa=t_dpa)
        return
    topology, collective = request.topology, request.collective
    if len(collective.members) > MOST_RANKS:
        raise Unsupported(f"planner blink takes up to {MOST_RANKS} ranks, not {len(collective.members)}; use trees")
    options = BlinkOptions(
        epsilon=float(_parse_share("epsilon", epsilon, LEAST_EPSILON)), threshold=_parse_share("threshold", threshold),
        hybrid=hybrid, t_dpa=_parse_seconds(t_dpa), nbytes=request.nbytes,
    )  # fmt: skip
    bounds = bound(topology, collective)
    # Blink's trees do not use switches that reduce or multicast: compare with the bound without them. `unaided` is
    # that bound, None if there are no such switches; `without_help` is it, or else `bounds` itself.
    bound_without_switches = bounds.without_help
    unpipelined, count, method = _plan_unpipelined(topology, collective, options)
    rate = throughput(unpipelined, topology)
    statement = {
        "rate": None if rate is None else str(rate / topology.unit),
        "optimal": rate == bounds.bytes_per_second,
        **({"optimal_without_switches": rate == bound_without_switches.bytes_per_second} if bounds.unaided else {}),
        "trees": count,
        "how": method,
    }
    # Provenance lists only options that differ from the defaults. `threshold` and `t_dpa` are listed as written by the
    # caller, so 0.05 is listed though it is 1/20.
    stated_options = {"epsilon": options.epsilon, "threshold": str(threshold), "hybrid": options.hybrid, "t_dpa": t_dpa}
    defaults = {"epsilon": 0.05, "threshold": "1/20", "hybrid": False, "t_dpa": 0.0}
    changed = {key: value for key, value in stated_options.items() if value != defaults[key]}
    for schedule in pipe_schedule(unpipelined, topology, pieces, request.sizes, request.profile):
        shown_options = {**changed, "pieces": int(schedule.pieces)}
        proof = {"bound": (bounds if rate == bounds.bytes_per_second else bound_without_switches).plan_json()}
        yield replace(schedule, provenance={"planner": "blink", "options": shown_options, "found": statement, **proof})


def _parse_share(name: str, value: Any, minimum: Fraction = Fraction(0)) -> Fraction:
    """Return an option between 0 and 1 as an exact fraction; raises Invalid."""
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1 or share < minimum:
        between = f"from {float(minimum)} to below 1" if minimum else "between 0 and 1"
        raise Invalid(f"option {name}: expected a number {between}, such as 0.05, got {quote(value)}")
    return share


def _parse_seconds(value: Any) -> Fraction:
    """Return the option `t_dpa` as an exact number; raises Invalid."""
    try:
        seconds = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        seconds = Fraction(-1)
    if seconds < 0:
        raise Invalid(f"option t_dpa: expected seconds, 0 or more, such as 0.0002, got {quote(value)}")
    return seconds


def _plan_unpipelined(topology: Topology, collective: Collective, options: BlinkOptions) -> tuple[Schedule, int, str]:
    """Return the schedule without pipelining, its number of trees (over servers: parts of the data), and the method."""
    if len(collective.members) < 2:
        return spread_trees(collective, trees=()), 0, "nothing to move"
    # Combining collectives: plan the dual on the reversed machine, then run it backwards.
    if collective.kind in RUN_BACKWARDS:
        schedule, count, method = _plan_unpipelined(reverse(topology), dual(collective).collective, options)
        return replace(invert(schedule), collective=collective), count, method
    servers = ranks_by_host(topology, collective.members)
    if collective.kind == "allreduce":
        try:
            # servers that only direct links join: these are one set of links with those inside
            if len(servers) > 1 and topology.switches:
                return _three_phases(topology, collective, servers, options)
            sets = _tree_sets(topology, collective, options)
        except Unsupported:
            if options.hybrid:
                raise
            return _plan_exactly(topology, collective)
        pairs = [pair for tree_set in sets for pair in tree_set.pairs]
        return reduce_and_spread(collective, pairs), len(pairs), "; ".join(tree_set.method for tree_set in sets)
    sets = _tree_sets(topology, collective, options)
    schedule = spread_trees(collective, [tree for tree_set in sets for tree in tree_set.trees])
    return schedule, sum(tree_set.count for tree_set in sets), "; ".join(tree_set.method for tree_set in sets)


def _plan_exactly(topology: Topology, collective: Collective) -> tuple[Schedule, int, str]:
    """Plan where neither direct links nor one-hop trees join the ranks, a case that the paper does not treat."""
    # the last method that `pack_allreduce` tries: trees in and out of common roots, or for many ranks two forests
    *_, packing = pack_allreduce(PackingTask(topology, collective))
    return packing.schedule, packing.count, packing.method


def _three_phases(
    topology: Topology, collective: Collective, servers: Sequence[Sequence[int]], options: BlinkOptions
) -> tuple[Schedule, int, str]:
    """Plan an allreduce over several servers (3.5)."""

    def pack_local(ranks: Sequence[int]) -> list[SpanningTree]:
        """Pack the undirected trees of one server, over the links inside it."""
        return pack_server(links_within(topology, _common_place(topology, ranks, collective.members)), ranks, options)

    schedule, count = three_phases(topology, collective, servers, pack_local)
    return schedule, count, f"three phases over {len(servers)} servers"


def _common_place(topology: Topology, ranks: Sequence[int], members: Sequence[int]) -> str:
    """Return the shortest place, such as box0, that contains all of these ranks (of one server) and no other member."""
    path = topology.places[ranks[0]].split("/")
    other_paths = [topology.places[rank].split("/") for rank in members if rank not in set(ranks)]
    # The shortest prefix that no other member shares.
    depth = next(d for d in range(1, len(path) + 1) if all(other[:d] != path[:d] for other in other_paths))
    return "/".join(path[:depth])


def _tree_sets(topology: Topology, collective: Collective, options: BlinkOptions) -> list[TreeSet]:
    """Return one or two sets of trees: over the kind of links with the greatest rate, and with `hybrid` over all
    others.

    With several servers and no `hybrid` all links form one set, as servers are joined by other kinds of links than the
    GPUs of a server.
    """
    if len(ranks_by_host(topology, collective.members)) > 1 and not options.hybrid:
        return [pack_subset(with_links(topology, np.ones(topology.links, bool)), collective, options)]
    main, other_links = _subsets_by_kind(topology, collective.members)
    first = pack_subset(main, collective, options)
    if not options.hybrid:
        return [first]
    if other_links is None:
        raise Unsupported(
            f"planner blink: hybrid needs a second kind of links that joins all ranks of {topology.name}; leave it out"
        )
    second = pack_subset(other_links, collective, options)
    # Equation 8: both sets finish at the same time; the slower one begins T_dpa later.
    # without a size: any amount of data, so large that the delay is negligible
    data = Fraction(options.nbytes) if options.nbytes else Fraction(1)
    delay = options.t_dpa if options.nbytes else Fraction(0)
    slow = split_by_rate(data, first.rate, second.rate, delay) / data
    # as rates the sets get their shares of the data: a schedule divides the data in proportion to rates
    return [first.scaled_to(1 - slow), second.scaled_to(slow)] if slow else [first]


def _subsets_by_kind(topology: Topology, members: Sequence[int]) -> tuple[LinkSubset, LinkSubset | None]:
    """Return the links of the kind over which a broadcast to the members is fastest, then all others.

    The others are None if they do not join all members. If no single kind joins them, all links form one set.
    """
    kinds = sorted({topology.types[i].kind for i in np.unique(topology.link_type).tolist()})
    rates = [(_broadcast_rate(with_link_kinds(topology, [kind]), members), kind) for kind in kinds]
    best, kind = max(rates)
    # no kind of link joins all members by itself
    if not best:
        return with_links(topology, np.ones(topology.links, bool)), None
    other_links = with_link_kinds(topology, [other for other in kinds if other != kind])
    return with_link_kinds(topology, [kind]), other_links if _broadcast_rate(other_links, members) else None


def _broadcast_rate(subset: LinkSubset, members: Sequence[int]) -> Fraction:
    """Return the greatest rate at which the first member could broadcast to all over these links; 0 if it cannot."""
    if not subset.links:
        return Fraction(0)
    # {holders of data: its amount}, then the ranks that want it
    _, rate = tightest_cut(network_of(subset.topology), {(members[0],): 1}, members[1:])
    return rate


def pack_subset(subset: LinkSubset, collective: Collective, options: BlinkOptions) -> TreeSet:
    """Pack trees for an allreduce, allgather, broadcast or scatter."""
    if collective.kind == "allreduce":
        return _pack_allreduce(subset, collective, options)
    if collective.kind == "allgather":
        return _pack_allgather(subset, collective, options)
    return _pack_from_root(subset, collective, options)


def undirected_trees(subset: LinkSubset, members: Sequence[int], options: BlinkOptions) -> Blink | None:
    """Return trees of direct symmetric links; None with switches or narrow limits, or where non-members must relay."""
    try:
        machine = undirected_machine(subset.topology, members)
    except (Unsupported, Invalid):
        return None
    return blink_allreduce(machine, epsilon=options.epsilon, threshold=options.threshold)


def pack_server(subset: LinkSubset, members: Sequence[int], options: BlinkOptions) -> list[SpanningTree]:
    """Return a server's undirected trees: packed ones, or one-hop trees over its switches."""
    packing = undirected_trees(subset, members, options)
    trees = packing.trees if packing is not None else one_hop_trees(subset.topology, members)
    return [subset.map_tree(tree) for tree in trees]


def _pack_allreduce(subset: LinkSubset, collective: Collective, options: BlinkOptions) -> TreeSet:
    """Pack undirected trees; behind switches one-hop trees; otherwise, on few ranks, trees in to and out of roots."""
    members = collective.members
    packing = undirected_trees(subset, members, options)
    if packing is not None:
        pairs = tuple(Pair.of_tree(subset.map_tree(tree)) for tree in packing.trees)
        return TreeSet(packing.rate, _describe_packing(packing), len(pairs), pairs)
    try:
        trees = one_hop_trees(subset.topology, members)
    except Unsupported:
        trees = []
    # With shared limits, trees of equal rates may be far from the best; the linear program below counts limits.
    if trees and not subset.topology.limits:
        pairs = tuple(Pair.of_tree(subset.map_tree(tree)) for tree in trees)
        # One-hop trees have rate 1 each, as within a set only ratios matter; a hybrid divides data by bytes/s.
        schedule = reduce_and_spread(collective, [Pair.of_tree(tree) for tree in trees])
        rate = throughput(schedule, subset.topology) or Fraction(len(pairs))  # no rate: no data
        return TreeSet(Fraction(len(pairs)), "one-hop trees", len(pairs), pairs).scaled_to(rate)
    if len(members) > FEWEST_TREES_MAX_RANKS:
        raise Unsupported("planner blink: no one-hop trees, and too many ranks for trees in and out; use planner trees")
    in_and_out = pack_allreduce_lp(subset.topology, members)
    pairs = tuple(_in_whole_machine(subset, pair) for pair in pairs_of(in_and_out.trees_in, in_and_out.trees_out))
    return TreeSet(in_and_out.rate, "trees in and out with common roots", len(pairs), pairs)


def _in_whole_machine(subset: LinkSubset, pair: Pair) -> Pair:
    """Return a pair of trees in the whole machine's link numbers."""
    up = tuple((rank, parent, subset.map_path(path), depth) for rank, parent, path, depth in pair.up)
    return replace(pair, up=up, down=tuple((r, p, subset.map_path(path), depth) for r, p, path, depth in pair.down))


def _pack_allgather(subset: LinkSubset, collective: Collective, options: BlinkOptions) -> TreeSet:
    """Send every rank's block along all undirected trees, with that rank as their root."""
    packing = undirected_trees(subset, collective.members, options)
    if packing is None:
        return _pack_exactly(subset, collective)
    trees = tuple(
        replace(tree, root=root, hops=tuple(sorted(reroot_tree(tree.hops, root).items(), key=itemgetter(0))))
        for root in collective.members
        for tree in map(subset.map_tree, packing.trees)
    )
    return TreeSet(packing.rate, _describe_packing(packing), len(packing.trees), trees=trees)


def _pack_from_root(subset: LinkSubset, collective: Collective, options: BlinkOptions) -> TreeSet:
    """Pack directed trees for a broadcast or scatter."""
    if len(collective.roots) > 1:
        return _pack_exactly(subset, collective)
    try:
        # A single root on direct links is the paper's case; everything else is packed exactly.
        machine = directed_machine(subset.topology, collective.members)
        packing = blink_broadcast(machine, collective.roots[0], epsilon=options.epsilon, threshold=options.threshold)
    except (Unsupported, Invalid):
        return _pack_exactly(subset, collective)
    return TreeSet(
        packing.rate, _describe_packing(packing), len(packing.trees), trees=tuple(map(subset.map_tree, packing.trees))
    )


def _pack_exactly(subset: LinkSubset, collective: Collective) -> TreeSet:
    """Pack exactly what the published method omits: switches, several roots, relaying ranks."""
    roots = collective.roots if collective.kind in ("broadcast", "scatter") else collective.members
    packing = pack_trees(subset.topology, dict.fromkeys(roots, 1), collective.members)
    count = max(sum(tree.root == root for tree in packing.trees) for root in roots)
    return TreeSet(packing.rate, packing.method, count, trees=tuple(map(subset.map_tree, packing.trees)))


def _describe_packing(packing: Blink) -> str:
    """Return in words how trees were packed, for the provenance."""
    count = len(packing.trees)
    return f"multiplicative weights: {packing.packed} trees; integer program: {count}, weights {packing.weights}"
