"""The planner `relay`: trees over the links that exist, from rank to rank, for irregular machines.

Every rank that has data to spread sends them along a tree; ranks on the path forward them, members or not. So it
plans every collective on every connected machine: irregular allocations, machines with dead links. Collectives that
combine data are planned as their dual, which spreads data, and run backwards. Custom collectives are planned from their
relation alone, that is, from which rank has and wants what (blocks.py).

With one tree of shortest paths per source the number of steps is minimal for everything that needs no combining, but a
tree uses few of the links. Several trees, in pieces, share the data and use more of them (_many_trees.py). Where
latencies differ, the fewest hops need not be quickest. So a further plan leaves out every hop over which a block takes
longer than over a chain of other hops.

Example: allgather on a line 0 - 1 - 2: source 0's tree is 0 > 1 > 2, source 1's 1 > 0 and 1 > 2, source 2's 2 > 1 > 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, as_int32, distinct, order_of, pack_columns
from antiphon.core.loads import timeline
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Infeasible, Unsupported
from antiphon.options import Option
from antiphon.planners.relations._many_trees import ROUNDS, pack_trees
from antiphon.planners.relations.blocks import by_relation
from antiphon.planners.shared.reach import Path, Reach, drop_slow_hops, find_center, star_routes, suggest_planners
from antiphon.planners.shared.rows import PiecesOrBest
from antiphon.planners.shared.tree_schedules import Pair, count_trees_per_root, reduce_and_spread, spread_trees

SPREADING = ("broadcast", "scatter", "allgather", "alltoall")
# collectives that can share data over several trees, since each tree carries the same amount on all hops
SHARED = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
MAX_ROWS = 2**24  # transfers of a schedule
MAX_GROWN = 2**22  # sources times ranks up to which trees are grown rank by rank: a minute and a gigabyte
PIECES = (8, 32, 128, 512)  # default numbers of pieces for several trees


By = Annotated[
    str,
    Option(
        "allreduce on single trees: blocks: a reducescatter and an allgather; tree: a reduction to the most central "
        "member and a broadcast from it",
        choices=("blocks", "tree"),
    ),
]
Trees = Annotated[
    int | None,
    Option("1: only single trees of shortest paths; more: only up to this many trees (default: both)", minimum=1),
]


# a hop is left out if a block of this size takes longer over it than over a chain of other hops
Detours = Annotated[
    int | None,
    Option(
        "use no hop that takes a block of so many bytes longer than a chain of hops does, on single trees (default: "
        "the size of a block, beside plans that may use all hops)",
        minimum=0,
    ),
]
MAX_DETOUR_RANKS = 256  # ranks up to which detours are looked for: 0.2 s for each size


def relay(
    request: Request, *, by: By = "blocks", trees: Trees = None, pieces: PiecesOrBest = None, detours: Detours = None
) -> Iterator[Schedule]:
    """Yield a schedule on one tree of shortest paths per source. Then, where latencies differ, one without hops that
    take longer than detours. Last, if faster for large sizes, schedules on several trees per source that share the
    data, one for each number of pieces.

    O(ranks * (ranks + links)) to find the trees, 16 times that (`ROUNDS`) for several trees; a transfer per hop and
    block, or share of a block.
    """
    topology, collective = request.topology, request.collective
    time_to_beat = None
    by_option = {"by": by} if collective.kind == "allreduce" else {}
    single_options = {**by_option, "trees": 1, "pieces": pieces or 1}
    if collective.ordered:  # sums are formed rank by rank, in order
        if trees not in (None, 1) or detours is not None:
            raise Unsupported("planner relay: an ordered collective has one tree per sum; leave trees and detours out")
        ordered = by_relation(topology, collective)
        yield _with_provenance(replace(ordered, pieces=pieces or 1), {"trees": 1, "pieces": pieces or 1})
        return
    if detours is not None and (trees not in (None, 1) or collective.kind == "custom"):
        raise Unsupported(
            "planner relay: detours are for single trees, and not for custom collectives; leave the option detours out"
        )
    # one tree of shortest paths per source
    if trees in (None, 1) and detours is None:
        single_tree = replace(_plan_single(topology, collective, by), pieces=pieces or 1)
        yield _with_provenance(single_tree, single_options)
        time_to_beat = timeline(single_tree, topology).total  # seconds per byte of nbytes, without latencies
    # the same without hops that take longer than detours
    if trees in (None, 1) and collective.kind != "custom":
        sizes = _block_sizes(request, by) if detours is None else [detours]
        for block_bytes in sizes:
            detour_schedule = _plan_with_detours(topology, collective, by, block_bytes)
            if detour_schedule is not None:
                yield _with_provenance(
                    replace(detour_schedule, pieces=pieces or 1), {**single_options, "detours": block_bytes}
                )
            elif detours is not None:
                raise Unsupported(
                    f"planner relay: no chain of hops is faster than a single hop for blocks of {detours} bytes on "
                    f"{topology.name}; leave the option detours out"
                )
    if trees == 1 or detours is not None:
        return
    # several trees per source, by default at most one per round of growth
    several_trees = _plan_several(topology, collective, trees or ROUNDS) if collective.kind in SHARED else None
    if several_trees is None:
        if trees is not None:
            raise Unsupported(_explain_no_trees(topology, collective))
        return
    unpipelined, tree_count = several_trees
    for piece_count in (pieces,) if pieces is not None else PIECES:
        pipelined = replace(unpipelined, pieces=piece_count)
        if time_to_beat is None or timeline(pipelined, topology).total < time_to_beat:
            yield _with_provenance(pipelined, {"trees": tree_count, "pieces": piece_count})


def _with_provenance(schedule: Schedule, options: dict[str, Any]) -> Schedule:
    """State the planner and the options that reproduce the schedule."""
    return replace(schedule, provenance={"planner": "relay", "options": options})


def _explain_no_trees(topology: Topology, collective: Collective) -> str:
    """Return why there is no schedule on several trees."""
    if collective.kind not in SHARED:
        return f"planner relay: {collective.kind} is planned on one tree per source only; use trees=1"
    return f"planner relay: at most one tree per rank can be found on {topology.name}; use trees=1"


# ---- one tree per source ----

ReachOf = Callable[[Topology], Reach]


def _block_sizes(request: Request, by: str) -> list[int]:
    """Return the bytes of a block at every size planned for; 0 without a size: only latencies count.

    [], so that no detours are looked for, where all latencies are equal or the machine is large.
    """
    topology, collective = request.topology, request.collective
    if len({t.latency for t in topology.types}) == 1 or topology.ranks > MAX_DETOUR_RANKS:
        return []
    is_whole = collective.kind in ("broadcast", "reduce") or (collective.kind == "allreduce" and by == "tree")
    blocks = 1 if is_whole else len(collective.members)
    return list(dict.fromkeys((nbytes or 0) // blocks for nbytes in request.sizes))


def _plan_with_detours(topology: Topology, collective: Collective, by: str, block_bytes: int) -> Schedule | None:
    """Return the schedule on single trees without hops that a chain of hops beats; None if there is no such hop."""
    if topology.ranks > MAX_DETOUR_RANKS:
        raise Unsupported(
            f"planner relay: detours are looked for on up to {MAX_DETOUR_RANKS} ranks; leave the option out"
        )
    dropped = []

    def quick_hops(machine: Topology) -> Reach:
        """Return the hops that no chain of hops beats, and note whether any was dropped."""
        reach = Reach(machine)
        dropped.append(drop_slow_hops(reach, block_bytes))
        return reach

    schedule = _plan_single(topology, collective, by, quick_hops)
    return schedule if any(dropped) else None


def _plan_single(topology: Topology, collective: Collective, by: str, reach_of: ReachOf = Reach) -> Schedule:
    """Return the schedule on one tree of shortest paths per source, along the hops of `reach_of(machine)`."""
    if collective.kind == "custom":
        return by_relation(topology, collective)
    if collective.kind == "allreduce":
        return _plan_allreduce(topology, collective, by, reach_of)
    if collective.kind in SPREADING:
        return _plan_spread(reach_of(topology), collective)
    # the dual collective spreads data: plan it on the reversed machine, and run it backwards
    return invert(_plan_spread(reach_of(reverse(topology)), dual(collective).collective))


def _plan_spread(reach: Reach, collective: Collective) -> Schedule:
    """Send every block from its source to all ranks that want it, along the tree of that source."""
    relation, ranks = collective.relation, reach.topology.ranks
    source = np.zeros(collective.blocks, np.int64)  # by block, the rank that has it at first
    source[relation.pre_block] = relation.pre_rank
    block, receiver = relation.post_block.astype(np.int64), relation.post_rank.astype(np.int64)
    source_trees = _SourceTrees(reach, source[block], collective)
    tree = source_trees.tree[source[block]]
    unreachable = np.flatnonzero(source_trees.parent[tree, receiver] < 0)
    if unreachable.size:
        first, *_ = unreachable.tolist()
        raise Infeasible(
            f"planner relay: no links lead from rank {source[block[first]]} to rank {receiver[first]} of "
            f"{reach.topology.name}, not even by way of others; no planner can do that"
        )
    depth = source_trees.depth[tree, receiver]
    order = np.argsort(depth, kind="stable")
    # Level by level, the deepest first: a rank receives a block because it wants it, or because it forwards it to a
    # deeper rank. A key is block * ranks + receiver; each becomes one row.
    wanted_keys = (block * ranks + receiver)[order]
    begin = np.searchsorted(depth[order], np.arange(depth.max(initial=0) + 2))  # by depth, where its keys begin
    row_keys, row_count, forwarders = [np.zeros(0, np.int64)], 0, np.zeros(0, np.int64)
    for level in range(len(begin) - 2, 0, -1):
        reached = distinct(np.concatenate([wanted_keys[begin[level] : begin[level + 1]], forwarders]))
        row_keys.append(reached)
        row_count += len(reached)
        if row_count > MAX_ROWS:
            raise Unsupported(
                f"planner relay: more than {MAX_ROWS} transfers; "
                + suggest_planners(reach.topology, collective, "ring", "direct", "compose")
            )
        # the parents must have the block, too: they are receivers of the next level up
        forwarders = (
            reached // ranks * ranks + source_trees.parent[source_trees.tree[source[reached // ranks]], reached % ranks]
        )
    return _rows_to_schedule(source_trees, collective, source, np.concatenate(row_keys))


def _refuse_too_long(topology: Topology, collective: Collective, sources: int) -> None:
    """Raise Unsupported before trees are grown from too many sources."""
    if sources * topology.ranks > MAX_GROWN:
        raise Unsupported(
            f"planner relay: trees of {sources} ranks to {topology.ranks} take too long to be grown; "
            + suggest_planners(topology, collective, "ring", "direct", "compose")
        )


class _SourceTrees:
    """The trees of these sources, as tables with a row per source and a column per rank.

    `parent`: -1 if the rank is unreachable, the source for the source itself. `depth`: hops from the source. `path`:
    the number, in `paths`, of the path from the parent to the rank. `tree`: by rank, its row if it is a source.
    """

    def __init__(self, reach: Reach, sources: Longs, collective: Collective) -> None:
        ranks = collective.ranks
        distinct_sources, first = np.unique(sources, return_index=True)
        roots = distinct_sources[np.argsort(first)]  # in order of use: each tree avoids links that earlier ones used
        self.tree = np.zeros(ranks, np.int64)
        self.tree[roots] = np.arange(len(roots))
        self.parent, self.depth, self.path = (
            np.full((len(roots), ranks), initial, np.int32) for initial in (-1, 0, -1)
        )
        # if all ranks are one hop from every root: the paths to them, root by root
        direct_routes = None if reach.has_dropped else star_routes(reach.topology, roots)
        if direct_routes is not None:
            non_roots = np.arange(ranks) != roots[:, None]
            self.parent[:] = roots[:, None]
            self.depth[non_roots] = 1
            self.path[non_roots] = np.arange(len(direct_routes))
            self.paths = direct_routes
        else:
            _refuse_too_long(reach.topology, collective, len(roots))
            self.paths = self._grow(reach, roots.tolist())

    def _grow(self, reach: Reach, roots: list[int]) -> Routes:
        """Grow the trees one by one; return the paths that they use."""
        numbers: dict[Path, int] = {}
        for number, source in enumerate(roots):
            tree = reach.tree_from(source)
            hops = list(tree.values())
            at = np.fromiter(tree, np.int64, len(tree))
            self.parent[number, at] = [hop.parent for hop in hops]
            self.depth[number, at] = [hop.depth for hop in hops]
            self.path[number, at] = [numbers.setdefault(hop.path, len(numbers)) for hop in hops]
            self.parent[number, source] = source
        return Routes.of(numbers)


def _rows_to_schedule(source_trees: _SourceTrees, collective: Collective, source: Longs, rows: Longs) -> Schedule:
    """Build the schedule of `rows` (block * ranks + receiver), ordered by block, depth and receiver.

    >>> from antiphon.core.example import machine
    >>> schedule = _plan_spread(Reach(machine()), Collective("broadcast", 3, roots=(1,)))
    >>> schedule.step.tolist(), schedule.src.tolist(), schedule.dst.tolist()
    ([0, 1], [1, 0], [0, 2])
    """
    block, receiver = rows // collective.ranks, rows % collective.ranks
    depth = source_trees.depth[source_trees.tree[source[block]], receiver]
    # sort by block, depth and receiver, each with a bound of its values
    order = order_of(*pack_columns((block, collective.blocks), (depth, collective.ranks), (receiver, collective.ranks)))
    block, receiver, depth = block[order], receiver[order], depth[order]
    tree = source_trees.tree[source[block]]
    path_number, first, path = np.unique(source_trees.path[tree, receiver], return_index=True, return_inverse=True)
    # the routes that rows use, numbered in order of first use
    by_use = np.argsort(first)
    route_number = np.empty(len(path_number), np.int32)
    route_number[by_use] = np.arange(len(path_number))
    return Schedule(
        collective, cut(collective, parts=1), depth - 1, as_int32(block), source_trees.parent[tree, receiver],
        as_int32(receiver), np.full(len(rows), COPY, np.uint8), route=route_number[path],
        routes=source_trees.paths.take(path_number[by_use].astype(np.int64)),
    )  # fmt: skip


def _plan_allreduce(topology: Topology, collective: Collective, by: str, reach_of: ReachOf) -> Schedule:
    """Return an allreduce of two halves: a reducescatter and an allgather, or a reduction and a broadcast."""

    def half(kind: str, *roots: int) -> Collective:
        return Collective(kind, collective.ranks, collective.members, roots)

    if by == "blocks":
        first, second = half("reducescatter"), half("allgather")
    else:
        reach, members = reach_of(topology), collective.members
        # if all are neighbours of the first member, `find_center` grows no other tree
        if not reach.neighbours(members[0]).keys() >= {*members[1:]}:
            _refuse_too_long(topology, collective, len(members))
        center = find_center(reach, members)
        first, second = half("reduce", center), half("broadcast", center)
    return compose(_plan_single(topology, first, by, reach_of), _plan_single(topology, second, by, reach_of))


# ---- several trees per source ----


def _plan_several(topology: Topology, collective: Collective, max_trees: int) -> tuple[Schedule, int] | None:
    """Plan on several trees per source; return the schedule and the number of trees, or None if they cannot be
    grown.
    """
    if len(collective.members) < 2:
        return None
    if collective.kind == "allreduce":
        # one root: each tree serves for the reduction and for the broadcast
        trees = pack_trees(Reach(topology), collective.members[:1], collective.members, max_trees, duplex=True)
        return None if trees is None else (reduce_and_spread(collective, map(Pair.of_tree, trees)), len(trees))
    if collective.kind in SPREADING:
        return _spread_several(topology, collective, max_trees)
    dual_plan = _spread_several(reverse(topology), dual(collective).collective, max_trees)
    if dual_plan is None:
        return None
    dual_schedule, tree_count = dual_plan
    return invert(dual_schedule), tree_count


def _spread_several(topology: Topology, collective: Collective, max_trees: int) -> tuple[Schedule, int] | None:
    """Plan a collective that spreads data on several trees per source; return the schedule and the number of trees."""
    sources = np.unique(collective.relation.pre_rank).tolist()
    trees = pack_trees(Reach(topology), sources, collective.members, max_trees, duplex=False)
    return None if trees is None else (spread_trees(collective, trees), count_trees_per_root(trees))
