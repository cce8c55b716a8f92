"""The planner `shallow`: packed trees of bounded depth, shallow and fast ones together
(docs/planners/trees.md#shallow).

Input: a broadcast, reduce or allreduce with one root. Output: schedules along packed spanning trees out of that root,
the best ones for each message size.

A pipeline over trees of depth d takes about (d - 1 + slices) steps. Packings of deep trees reach the bound on bandwidth
but their pipeline fills slowly; shallow trees fill fast but may have a lower rate. The best mix depends on the message
size:

    1. for each depth from the least possible on, `pack_bounded` packs trees no deeper than that (bounded.py); forests
       that are not at least 1 % faster than a shallower one are dropped
    2. `choose_trees` keeps the trees that carry data in the best mix of all trees grown, by the linear program of
       shared/start_program.py: how much of the data starts in which step on which tree
    3. shared/pipelining.py cuts each forest's data into equal slices, or mixes all trees, each starting in any step
       with any amount, and picks the fastest for the size

Reduce is the broadcast of the reversed machine run backwards; allreduce is a reduce to the most central member, then
the broadcast from it, in one pipeline.

Example: a ring of 8 with unit links both ways. At depth 4 every tree needs both links of the root: rate 1. At depth 7
there are two trees, all around in either direction: rate 2.

A step lasts as long as its slowest path, so links with high latency are left out if the rate allows (`quick_links`).

In this file a forest is a packing of trees out of the one root, and a kind is one tree with all its images by the
machine's symmetries: data start on all images at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, reached_nodes
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.shared.pipelining import PipelineOptions, PipelinePlans, stage_plans
from antiphon.planners.shared.reach import Reach, find_center
from antiphon.planners.shared.rows import PiecesOrBest, UnevenSteps, machine_for_dual
from antiphon.planners.shared.start_program import ChunkClass, count_entries, distinct_kinds, merge_kinds, solve_starts
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.shared.uneven import Floats
from antiphon.planners.trees.bounded import BOUNDED, Hops, PricedTreeGrower, pack_bounded, symmetries_fixing_root
from antiphon.planners.trees.columns import check_reach, pack_lp
from antiphon.planners.trees.rounding import Rounding, rounded_trees
from antiphon.planners.trees.to_schedule import SymmetricTrees
from antiphon.planners.trees.trees import pack_trees

EXTRA_DEPTHS = (0, 1, 2, 3, 4, 5, 6)  # depths tried: the least possible plus these
EXTRA_DEPTHS_LARGE = (1, 3, 6)  # the same on more than BOUNDED.large_ranks ranks
NEAR_BOUND = Fraction(999, 1000)  # a forest that reaches this fraction of the bound ends the search for deeper ones
MIN_SPEEDUP = Fraction(101, 100)  # a deeper forest must be this much faster than a shallower one
MAX_ROUNDING_LOSS = Fraction(1, 1000)  # if rounding loses more of the rate ...
LARGE_DENOMINATOR = 16384  # ... this denominator is allowed ...
LARGE_DENOMINATOR_TREES = 128  # ... with up to this number of trees
COLUMNS_RANKS = 24  # up to this many ranks, column generation (columns.py) is tried for each depth, too
# Forests are also packed without symmetries if these seem to cost rate:
ASYMMETRIC_RANKS = 64  # up to this many ranks,
MOST_LOSSES = 2  # and until these packings were slower at this many depths in a row ...
LOSS_EFFORT = BOUNDED.max_effort // 10  # ... and this much effort (entries of cost matrices) is spent
# (ranks, fraction of the bound): a machine of at most this many ranks also gets the forest of planner `trees`, unless a
# bounded forest is that fast. Packing it may take a minute on 64 ranks
SLOW_FORESTS = ((32, Fraction(1)), (64, 1 / MIN_SPEEDUP), (BOUNDED.large_ranks, Fraction(9, 10)))
START_STEPS = 3  # `choose_trees` plans for this many times the depth of the deepest tree, in steps
MOST_ENTRIES = 100_000  # of the matrix of its linear program: some two CPU seconds
MIN_SHARE = 0.004  # fraction of the data that a tree must carry in that mix to be kept: every tree costs chunks
FLOAT_TOLERANCE = 1 + 1e-9  # factor within which floats count as equal


@dataclass(frozen=True, eq=False)
class _Forest:
    """An unpipelined schedule along packed trees.

    `packed`: the packing before rates were rounded. `depth`: of the deepest tree, in hops. `trees`: number of trees.
    `rate`: after rounding, in bytes/s. `method`: "hubs" (grown by bounded.py), "columns" (columns.py) or the `method`
    that `pack_trees` states.
    """

    schedule: Schedule
    packed: SymmetricTrees
    depth: int
    trees: int
    rate: Fraction
    method: str


@dataclass(frozen=True, eq=False)
class _Plans:
    """Forests, the fastest first, and the kinds of trees to be mixed, each as a schedule.

    The first `min_mixed` kinds form one fast forest. If a mix of all kinds is too large, at least these stay.
    """

    forests: list[_Forest]
    kinds: list[Schedule]
    min_mixed: int


Depth = Annotated[int | None, Option("maximum depth of the trees (default: several)", unit="hops", minimum=1)]


def shallow(
    request: Request, *, depth: Depth = None, pieces: PiecesOrBest = None, steps: UnevenSteps = None
) -> Iterator[Schedule]:
    """Yield schedules along forests of several depths, each near the greatest rate of its depth.

    `pieces`: take the fastest forest in this number of equal slices. `steps`: mix all kinds in this number of steps.
    With neither, take what is fastest for each size; without a size, yield several.
    """
    topology, collective = request.topology, request.collective
    if len(collective.roots) > 1:
        raise Unsupported("planner shallow: takes one root; use planner trees")
    bounds = bound(topology, collective)
    max_rate = bounds.without_help.bytes_per_second  # trees use no multicast or reduction in switches
    reversed_plan = collective.kind == "reduce"
    # links: the opposite of each link; None: directions differ, and `machine` is the reversed one
    machine, links = machine_for_dual(topology) if reversed_plan else (topology, None)
    # pack forests: for an allreduce in both directions; for a reduce those of the dual broadcast
    if collective.kind == "allreduce":
        plans = _plan_allreduce(request, depth, pieces is None)
    else:
        broadcast = dual(collective).collective if reversed_plan else collective
        check_reach(machine, [collective.roots[0]], collective.members, reversed_plan)
        plans = _choose_forests(
            machine, broadcast, max_rate or Fraction(0), depth, request.seed, with_kinds=pieces is None
        )
    forests = plans.forests
    search_facts: dict[str, Any] = {
        "forests": [
            {
                "depth": candidate.depth,
                "rate": str(candidate.rate / topology.unit),
                "trees": candidate.trees,
                "how": candidate.method,
            }
            for candidate in forests
        ]
    }
    pipelining = PipelineOptions("shallow", pieces, steps, request.sizes, request.profile)
    # pipeline them for each size; a reduce is then run backwards
    for candidate in stage_plans(
        PipelinePlans([candidate.schedule for candidate in forests], machine, plans.kinds, plans.min_mixed), pipelining
    ):
        schedule = (
            replace(invert(candidate.schedule, links), collective=collective) if reversed_plan else candidate.schedule
        )
        # `candidate.plan` is the index of its forest, or 0 for a mix. The fastest forest and mixes come again with the
        # user's `depth`; another forest comes again, as the fastest, with its own depth.
        max_depth = forests[candidate.plan].depth if candidate.plan else depth
        stated_options = {**({} if max_depth is None else {"depth": max_depth}), **candidate.options}
        provenance = {"planner": "shallow", "options": stated_options, "seed": request.seed, "found": search_facts}
        yield replace(schedule, provenance={**provenance, "bound": bounds.without_help.plan_json()})


def _plan_allreduce(request: Request, depth: int | None, with_kinds: bool) -> _Plans:
    """Plan an allreduce: reduce along a forest to the most central member, then broadcast along one from there.

    On machines whose links are equal in both directions both use the same forest. Otherwise each direction has its own
    forests, paired from the fastest on.
    """
    topology, collective = request.topology, request.collective
    root = find_center(Reach(topology), collective.members)
    broadcast = Collective("broadcast", collective.ranks, collective.members, (root,))
    reversed_machine, links = machine_for_dual(topology)
    plans: list[_Plans] = []
    # one set of forests if both directions are equal, otherwise one per direction
    for machine in [topology] if links is not None else [topology, reversed_machine]:
        check_reach(machine, [root], collective.members, machine is reversed_machine)
        max_rate = bound(machine, broadcast).without_help.bytes_per_second
        plans.append(_choose_forests(machine, broadcast, max_rate or Fraction(0), depth, request.seed, with_kinds))
    down_forests, up_forests = plans[0].forests, plans[-1].forests

    def reduce_then_broadcast(up_forest: Schedule, down_forest: Schedule) -> Schedule:
        """Return the allreduce that reduces up one forest, then broadcasts down another."""
        return replace(compose(invert(up_forest, links), down_forest), collective=collective)

    forests = []
    for number in range(max(len(down_forests), len(up_forests))):
        up_forest, down_forest = (
            direction[min(number, len(direction) - 1)] for direction in (up_forests, down_forests)
        )
        schedule = reduce_then_broadcast(up_forest.schedule, down_forest.schedule)
        rate = throughput(schedule, topology) or Fraction(0)
        forests.append(
            replace(down_forest, schedule=schedule, depth=max(up_forest.depth, down_forest.depth), rate=rate)
        )
    # a mix needs the same trees in both directions
    return _Plans(
        forests, [reduce_then_broadcast(kind, kind) for kind in plans[0].kinds if links is not None], plans[0].min_mixed
    )


def _choose_forests(
    machine: Topology, collective: Collective, max_rate: Fraction, depth: int | None, seed: int, with_kinds: bool = True
) -> _Plans:
    """Return the forests of a broadcast, each shallower and slower than the one before.

    `max_rate`: the rate in bytes/s that no broadcast exceeds, 0: unlimited. `with_kinds`: also the kinds to be mixed.
    """
    root = collective.roots[0]
    ranks = _spanned_ranks(machine, root, collective.members)
    grower = PricedTreeGrower(machine, root, ranks, symmetries_fixing_root(machine, root, collective.members, seed))
    forests: list[_Forest] = []
    symmetric_forests: list[SymmetricTrees] = []
    # packings of growing depth; keep those that are clearly faster than shallower ones
    for packed, method, symmetric in _pack_by_depth(grower, ranks, max_rate, depth):
        forest = _to_forest(machine, collective, packed, method)
        if not forests or forest.rate > forests[-1].rate * MIN_SPEEDUP:
            forests.append(forest)
        if symmetric is not None and (
            not symmetric_forests or symmetric.rate > symmetric_forests[-1].rate * MIN_SPEEDUP
        ):
            symmetric_forests.append(symmetric)
        if packed.rate >= max_rate * NEAR_BOUND:
            break
    if not forests:
        raise Unsupported(f"planner shallow: no tree reaches all ranks within depth {depth}; leave depth out")
    # kinds come from packings with equal rates for all images of a tree: if the fastest packing has unequal rates, add
    # the images that it lacks
    if grower.has_no_symmetry:
        symmetric_forests = [forest.packed for forest in forests]
    elif not symmetric_forests or symmetric_forests[-1].rate * MIN_SPEEDUP < forests[-1].rate:
        symmetric_forests.append(SymmetricTrees.of_trees(machine, forests[-1].packed.trees, grower.group))
    if not with_kinds:
        return _Plans(forests[::-1], kinds=[], min_mixed=1)
    *slower_forests, fastest_forest = symmetric_forests
    quick_forest = _without_slow_links(grower, ranks, fastest_forest, max_rate)
    kinds, min_mixed = _tree_kinds(collective, grower, [quick_forest or fastest_forest, *slower_forests[::-1]])
    return _Plans(forests[::-1], kinds, min_mixed)


def _without_slow_links(
    grower: PricedTreeGrower, ranks: Sequence[int], fastest: SymmetricTrees, max_rate: Fraction
) -> SymmetricTrees | None:
    """Return a forest as fast and as deep as `fastest` over links of low latency only, or None."""
    links = (
        quick_links(grower.topology, grower.root, ranks, float(max_rate)) if len(ranks) <= BOUNDED.large_ranks else None
    )
    if links is None:
        return None
    restricted = PricedTreeGrower(grower.topology, grower.root, ranks, grower.group, links)
    packing = pack_bounded(restricted, fastest.depth, float(max_rate))
    if packing is None or packing.rate < fastest.rate * NEAR_BOUND:
        return None
    grower.grown_trees.update(restricted.grown_trees)  # a mix may use these, too
    return packing


def _tree_kinds(
    collective: Collective, grower: PricedTreeGrower, symmetric_forests: Sequence[SymmetricTrees]
) -> tuple[list[Schedule], int]:
    """Return the kinds as schedules, and the number of kinds that form the fastest forest.

    The kinds of the fastest forest come first, then those that `choose_trees` picks, then those of the other forests.
    """
    representatives = [tree.hops for forest in symmetric_forests for tree in forest.representatives]
    fastest_count = len(symmetric_forests[0].representatives)
    # those grown last come first, as `choose_trees` leaves out the last candidates if there are too many
    candidates = [*representatives, *reversed(grower.grown_trees)]
    delayed = [late_hops for hops in candidates if (late_hops := delay_hops(hops)) != hops]
    chosen = choose_trees(grower, [*candidates, *delayed])
    kept_hops = [*representatives[:fastest_count], *chosen, *representatives[fastest_count:]]
    trees = SymmetricTrees.of_trees(
        grower.topology, [SpanningTree(grower.root, Fraction(1), hops) for hops in kept_hops], grower.group
    )
    return [trees.with_rates([tree]).to_schedule(collective) for tree in trees.representatives], fastest_count


def delay_hops(hops: Hops) -> Hops:
    """Return the same tree with every hop as late as possible, but the tree no deeper.

    The `depth` of a hop then states its step, from 1, which may be later than its distance from the root.
    A mix of both forms uses links that would idle at the ends of a pipeline: on a ring the shorter branch of a tree may
    carry its data at the beginning, at the end, or in part at both.
    """
    deepest = max(hop.depth for _, hop in hops)
    step: dict[int, int] = {}
    for rank, hop in sorted(hops, key=lambda item: -item[1].depth):
        last = step.setdefault(rank, deepest)
        step[hop.parent] = min(step.get(hop.parent, deepest), last - 1)
    return tuple((rank, replace(hop, depth=step[rank])) for rank, hop in hops)


def _spanned_ranks(machine: Topology, root: int, members: Sequence[int]) -> list[int]:
    """Return the ranks that trees shall span: the members, or all reachable ranks if some must relay."""
    # is there a tree over the members alone, at any prices?
    inside = PricedTreeGrower(machine, root, members)
    if inside.grow_priced(1 / inside.capacity, len(members)) is not None:
        return list(members)
    reached = reached_nodes(np.arange(machine.nodes) == root, machine.link_src, machine.link_dst)
    return np.flatnonzero(reached[: machine.ranks]).tolist()


def _pack_by_depth(
    grower: PricedTreeGrower, ranks: Sequence[int], max_rate: Fraction, depth: int | None
) -> Iterator[tuple[SymmetricTrees, str, SymmetricTrees | None]]:
    """Yield packings of growing depth, as (packing, method, packing with equal rates for all images of a tree).

    The last yield may be a packing of unbounded depth by planner `trees`, if `depth` is None and the others are slow.
    """
    machine, root = grower.topology, grower.root
    asymmetric = PricedTreeGrower(machine, root, ranks)
    goal_rate = float(max_rate)
    least_depth = next(
        depth_limit
        for depth_limit in range(1, len(ranks) + 1)
        if asymmetric.grow_priced(1 / asymmetric.capacity, depth_limit) is not None
    )
    losses = 0
    fastest_rate = Fraction(0)
    extra_depths = EXTRA_DEPTHS if len(ranks) <= BOUNDED.large_ranks else EXTRA_DEPTHS_LARGE
    depths = [least_depth + deeper for deeper in extra_depths]
    if depth is not None:  # up to there the same depths as without the option, so that results agree
        depths = [*(candidate_depth for candidate_depth in depths if candidate_depth < depth), depth]
    for depth_limit in sorted({min(candidate_depth, max(len(ranks) - 1, 1)) for candidate_depth in depths}):
        symmetric = best = pack_bounded(grower, depth_limit, goal_rate)
        if best is None:
            continue
        method = "hubs"
        try_asymmetric = losses < MOST_LOSSES or asymmetric.spent <= LOSS_EFFORT
        # equal rates for all images of a tree restrict the packing. Without this restriction a faster packing may be
        # found; its trees are then tried with equal rates
        if (
            best.rate < goal_rate * float(NEAR_BOUND)
            and not grower.has_no_symmetry
            and len(ranks) <= ASYMMETRIC_RANKS
            and try_asymmetric
        ):
            asymmetric_packing = pack_bounded(asymmetric, depth_limit, goal_rate)
            losses = losses + 1 if asymmetric_packing is not None and asymmetric_packing.rate < best.rate else 0
            if asymmetric_packing is not None and asymmetric_packing.rate > best.rate:
                symmetric = pack_bounded(grower, depth_limit, goal_rate, asymmetric_packing.representatives)
                assert symmetric is not None  # it has trees to start with
                # equal rates take more trees, all images of each: they must be clearly faster
                best = symmetric if symmetric.rate * NEAR_BOUND > asymmetric_packing.rate else asymmetric_packing
        # small machines: column generation, whose packing is optimal for this depth
        if best.rate < goal_rate * float(NEAR_BOUND) and len(ranks) <= COLUMNS_RANKS:
            exact = pack_lp(machine, {root: 1}, ranks, hops=depth_limit)
            if float(exact.rate) > best.rate:
                best, method = SymmetricTrees.of_trees(machine, exact.trees), "columns"
        fastest_rate = max(fastest_rate, best.rate)
        yield best, method, symmetric
        if grower.spent + asymmetric.spent >= BOUNDED.max_effort:
            break
    slow_rate = next(
        (max_rate * fraction for max_ranks, fraction in SLOW_FORESTS if len(ranks) <= max_ranks), Fraction(0)
    )
    if depth is None and (fastest_rate < slow_rate or not max_rate):  # max_rate 0: unlimited, so nothing was compared
        packed = pack_trees(machine, {root: 1}, ranks)
        yield SymmetricTrees.of_trees(machine, packed.trees), packed.method, None


def _to_forest(machine: Topology, collective: Collective, packed: SymmetricTrees, method: str) -> _Forest:
    """Return the packing with rounded shares, as a schedule."""
    representatives, rounding = _round_shares(machine, collective, packed, max_denominator=None)
    if rounding is not None and rounding.loss > MAX_ROUNDING_LOSS and len(representatives) <= LARGE_DENOMINATOR_TREES:
        representatives, _ = _round_shares(machine, collective, packed, LARGE_DENOMINATOR)
    trees = packed.with_rates(representatives)
    schedule = trees.to_schedule(collective)
    rate = throughput(schedule, machine) or Fraction(0)
    return _Forest(schedule, packed, depth=trees.depth, trees=len(trees), rate=rate, method=method)


def _round_shares(
    machine: Topology, collective: Collective, packed: SymmetricTrees, max_denominator: int | None
) -> tuple[tuple[SpanningTree, ...], Rounding | None]:
    """Return the packing's representatives at rounded rates, and the rounding."""
    return rounded_trees(
        packed.representatives, weight={collective.roots[0]: 1}, ends=collective.members, topology=machine,
        max_denominator=max_denominator, group=packed.group,
    )  # fmt: skip


def choose_trees(grower: PricedTreeGrower, trees: Iterable[Hops]) -> list[Hops]:
    """Return the trees that carry data in the best mix of all, the one with the largest share of the data first.

    If the linear program would be too large, the last trees are left out.
    """
    link_latency = np.array([kind.latency for kind in grower.topology.types])[grower.topology.link_type]
    candidates = list(trees)
    classes = merge_kinds([_tree_class(grower, number, hops, link_latency) for number, hops in enumerate(candidates)])
    if not classes:
        return []
    deepest = max(tree_class.steps for tree_class in classes)
    steps, resource_kinds = START_STEPS * deepest, distinct_kinds(classes)
    fits_program = (
        np.cumsum([count_entries(tree_class, resource_kinds, steps, deepest) for tree_class in classes]) <= MOST_ENTRIES
    )
    fitting = [tree_class for tree_class, fits in zip(classes, fits_program.tolist(), strict=True) if fits]
    starts = solve_starts(fitting, resource_kinds, steps) if fitting else None
    if starts is None:
        return []
    # by number of the tree, which is `plan` of its class: its fraction of the data
    share = {tree_class.plan: float(tree_starts.sum()) for tree_class, tree_starts in zip(fitting, starts, strict=True)}
    return [candidates[plan] for plan in sorted(share, key=lambda plan: -share[plan]) if share[plan] > MIN_SHARE]


def _tree_class(grower: PricedTreeGrower, number: int, hops: Hops, link_latency: Floats) -> ChunkClass:
    """Return a tree with all its images as a class of the linear program, with a single chunk.

    `link_latency`: seconds, by link.
    """
    steps = max(hop.depth for _, hop in hops)
    load, slowest = np.zeros((len(grower.capacity), steps)), np.zeros(steps)
    for step in range(steps):
        level_hops = [(rank, hop) for rank, hop in hops if hop.depth == step + 1]
        load[:, step] = grower.row_load(level_hops)
        slowest[step] = max(float(link_latency[list(hop.path)].sum()) for _, hop in level_hops)
    return ChunkClass(number, chunks=np.arange(1), load=load / grower.capacity[:, None], latency=slowest)


def quick_links(topology: Topology, root: int, ranks: Sequence[int], rate: float) -> Longs | None:
    """Return the fewest links of low latency with which every rank can receive at this rate; None if all are needed.

    The latency of a link is the least of any path between ranks that uses it. All links up to some latency are taken.
    """
    quickest = _least_latency(topology)
    usable = np.isfinite(quickest)  # links on no path between ranks have infinite latency
    latencies = np.unique(quickest[usable])
    too_low, sufficient = -1, len(latencies) - 1  # bisect, as more links never make a flow impossible
    while sufficient - too_low > 1:
        middle = (too_low + sufficient) // 2
        if has_flow(topology, root, ranks, np.flatnonzero(quickest <= latencies[middle] * FLOAT_TOLERANCE), rate):
            sufficient = middle
        else:
            too_low = middle
    selected = quickest <= latencies[sufficient] * FLOAT_TOLERANCE if len(latencies) else usable
    return None if (selected == usable).all() else np.flatnonzero(selected)


def has_flow(topology: Topology, root: int, ranks: Sequence[int], links: Longs, rate: float) -> bool:
    """Return whether each of these ranks alone could receive from the root at this rate (bytes/s) over these links."""
    import igraph

    ends = zip(topology.link_src[links].tolist(), topology.link_dst[links].tolist(), strict=True)
    graph = igraph.Graph(topology.nodes, list(ends), directed=True)
    capacity = [float(topology.bandwidth(link)) for link in links.tolist()]
    return all(graph.maxflow_value(root, rank, capacity) * FLOAT_TOLERANCE >= rate for rank in ranks if rank != root)


def _least_latency(topology: Topology) -> Floats:
    """Return by link the least latency of a path between ranks through switches that uses it.

    A rail, and a spine above it, which paths between rails use:

    >>> from antiphon.topologies import topology
    >>> rails = _least_latency(topology("cluster:box=hgx-h100,boxes=2,fabric=rail"))
    >>> sorted(set((rails * 1e9).round().tolist()))
    [700.0, 1700.0, 1960.0]
    """
    link_latency = np.array([kind.latency for kind in topology.types])[topology.link_type]
    return (
        _node_latency(topology, link_latency, is_backward=False)[topology.link_src]
        + link_latency
        + _node_latency(topology, link_latency, is_backward=True)[topology.link_dst]
    )


def _node_latency(topology: Topology, link_latency: Floats, is_backward: bool) -> Floats:
    """Return by node the least latency of a path there from a rank; `is_backward`: from there to a rank."""
    tail, head = (topology.link_dst, topology.link_src) if is_backward else (topology.link_src, topology.link_dst)
    latency = np.where(np.arange(topology.nodes) < topology.ranks, 0.0, np.inf)
    while True:
        lower = latency.copy()
        np.minimum.at(lower, head, latency[tail] + link_latency)
        if (lower == latency).all():
            return latency
        latency = lower
