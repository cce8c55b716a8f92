"""Repair a schedule for a degraded machine: keep the trees that still work, reattach the branches that do not.

Input: a schedule whose chunks move along trees, the machine that it was made for, and the machine with failures (or
other speeds). Output (`repair_trees`): a schedule for the degraded machine without pipelining, and the number of old
transfers that it keeps.

Nearly every schedule moves each chunk along trees: copies go down a tree from one rank to those that want the chunk,
sums go up a tree to one rank, and an allreduce does one after the other. A failure removes single hops. Each removed
hop leaves a branch without its root, and `_Trees.reattach` joins it to the tree again by the cheapest path of hops from
any rank of the tree to the branch. A path may enter the branch in its middle: then the ranks on the path change their
parents.

The price of a hop grows exponentially with the load of its links relative to what they may carry at the target rate
(multiplicative weights), so that reattached branches spread over the links. Afterwards `_Trees.balance` moves single
hops off the fullest links while they are above the target. Large chunks are split first (`_Forest.split`), since a
whole chunk more or less on a link is too coarse; of very many trees, some remain (thin_trees.py). All of this touches
few hops, so that it takes seconds where packing new trees takes minutes, and most transfers, their routes and their
steps stay what they were. Loads are floats, as they only steer choices; the verifier and the exact bound check the
result.

Example: a broadcast 0 > 1 > 2 > 3 on a ring of 4 whose link 1 > 2 fails. Ranks 2 and 3 are a branch without a root. The
only live hop into it is 0 > 3, so 3 becomes a child of 0 and 2 a child of 3; only 0 > 1 is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from antiphon.core import portable
from antiphon.core.collective import Collective
from antiphon.core.columns import AnyInts, Bools, Floats, Ints, Longs, as_int32, distinct, order_of, pair_keys, pointers
from antiphon.core.reshape import linked_ranks
from antiphon.core.routes import NO_ROUTES, Routes, resolve
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, Unsupported, quote
from antiphon.planners.shared.routing import find_paths
from antiphon.planners.shared.thin_trees import thin_trees
from antiphon.planners.shared.tree_schedules import part_exchanges


@dataclass(frozen=True)
class RepairLimits:
    """Thresholds of the repair. Chosen on degraded tori, DGX boxes and clusters of up to 512 ranks."""

    steepness: float = 200.0  # of prices: e^200 times more for twice the target load
    coarse_steepness: float = 40.0  # for more hops than `max_tries`: less exact, but balanced in fewer tries
    depth_price: float = 0.05  # of a hop's distance from the root, in units of the chunk's share of the narrowest link
    too_deep_factor: float = 2e4  # on `depth_price` for each hop beyond `_Trees.max_depth`
    max_detour_cost: float = 0.9  # a search ends once its open paths cost this fraction of the cheapest complete one
    max_detours: int = 64  # ranks of the branch that are searched in all, if a path is known by then
    max_chunk_load: float = 0.0125  # share of a link's target load that one chunk may be; larger chunks are split
    max_slices: int = 16  # of one chunk
    balanced_load: float = 1.002  # loads up to this multiple of the target are not balanced any further
    max_tries: int = 60000  # hops that balancing tries to move
    patience: int = 20000  # tries without a lower greatest load after which balancing ends, or as many as hops
    min_progress: float = 1e-3  # of the greatest relative load; less counts as a try without a lower load
    tries_per_link: int = 100  # before balancing turns to another link
    max_cells: int = 2**23  # trees times ranks: memory
    max_hops: int = 200_000  # of trees in one direction; of an allreduce with more, only some trees remain
    max_ranks: int = 1024  # the table of hops has a row per pair of ranks


LIMITS = RepairLimits()


@dataclass(frozen=True, eq=False)
class RepairedTrees:
    """A schedule without pipelining, and the number of the old schedule's `transfers` that it keeps."""

    schedule: Schedule
    kept_transfers: int
    transfers: int


def match_links(old: Topology, new: Topology) -> Ints:
    """Return for every link of `old` its number in `new`, -1 if it has none.

    Ranks correspond by number, switches by place. Parallel links correspond by kind, in order.
    """
    number = {place: node for node, place in enumerate(new.places) if node >= new.ranks}
    switches = [number.get(place, -1) for place in old.places[old.ranks :]]
    node = np.array([*range(old.ranks), *switches], np.int64)
    by_key: dict[tuple[int, int, str], list[int]] = {}  # (ends, kind) -> links of `new`, the first one last
    new_ends = zip(new.link_src.tolist(), new.link_dst.tolist(), new.link_type.tolist(), strict=True)
    for link, (a, b, kind) in enumerate(new_ends):
        by_key.setdefault((a, b, new.types[kind].kind), []).append(link)
    for links in by_key.values():
        links.reverse()
    matched = np.full(old.links, -1, np.int32)
    ends = zip(node[old.link_src].tolist(), node[old.link_dst].tolist(), old.link_type.tolist(), strict=True)
    for link, (a, b, kind) in enumerate(ends):
        candidates = by_key.get((a, b, old.types[kind].kind))
        if candidates:
            matched[link] = candidates.pop()
    return matched


def surviving_collective(collective: Collective, topology: Topology) -> tuple[Collective, Longs]:
    """Return the collective among the members that still have links, and by block of it the block of the old one."""
    if collective.ranks != topology.ranks:
        raise Invalid(
            f"repair: the plan is for {collective.ranks} ranks, {topology.name} has {topology.ranks}; degrade the "
            "plan's machine, so that ranks keep their numbers"
        )
    lost = sorted({*collective.members} - {*linked_ranks(topology)})
    if not lost:
        return collective, np.arange(collective.blocks)
    if collective.kind == "custom":
        raise Unsupported(f"repair: rank {lost[0]} has no links, and a custom collective is not reduced to fewer ranks")
    if any(root in lost for root in collective.roots):
        raise Infeasible(f"repair: the root of the {collective.kind} has no links on {topology.name}; choose another")
    members = tuple(rank for rank in collective.members if rank not in lost)
    if len(members) < 2:
        raise Infeasible(f"repair: only rank {quote(members[0]) if members else 'none'} has links on {topology.name}")
    reduced = Collective(collective.kind, collective.ranks, members, collective.roots)
    key = {ends: block for block, ends in enumerate(_block_ends(collective))}
    old_block = np.array([key[ends] for ends in _block_ends(reduced)], np.int64)
    return replace(reduced, weights=collective.weights[old_block]), old_block


def _block_ends(collective: Collective) -> list[tuple[int, int]]:
    """Return per block its only source and its only receiver, -1 where there are several. Both identify a block."""
    relation, blocks = collective.relation, collective.blocks
    ends = []
    for block, rank in ((relation.pre_block, relation.pre_rank), (relation.post_block, relation.post_rank)):
        single_rank = np.full(blocks, -1, np.int64)
        single_rank[block] = rank
        single_rank[np.bincount(block, minlength=blocks) > 1] = -1
        ends.append(single_rank.tolist())
    return list(zip(*ends, strict=True))


@dataclass(frozen=True, eq=False)
class _Hops:
    """Paths between ranks by which a chunk can move in one step: the old schedule's, and one or more per pair."""

    src: Ints
    dst: Ints
    table: Routes  # the links of every hop
    resources: Ints  # per hop the links and shared limits that it loads, padded by a resource without load
    into: tuple[Longs, Longs]  # CSR by receiver: offsets, hops
    out_of: tuple[Longs, Longs]  # CSR by sender

    @staticmethod
    def of(topology: Topology, src: Ints, dst: Ints, table: Routes) -> _Hops:
        """Return the table of these hops, followed by the links between ranks and a path for all other pairs."""
        ranks = np.array(linked_ranks(topology), np.int32)
        a, b = (side.ravel() for side in np.meshgrid(ranks, ranks, indexing="ij"))
        a, b = a[a != b], b[a != b]
        direct = np.flatnonzero((topology.link_src < topology.ranks) & (topology.link_dst < topology.ranks))
        sources, ends = [src, topology.link_src[direct]], [dst, topology.link_dst[direct]]
        table = table.join(Routes(np.arange(len(direct) + 1), as_int32(direct)))
        if topology.switches:
            paths = find_paths(topology, a, b)
            reached = np.setdiff1d(np.arange(len(a)), paths.unreachable)
            sources, ends = [*sources, a[reached]], [*ends, b[reached]]
            table = table.join(paths.table.take(reached))
        links = _padded(table.ptr, table.links)
        _, first_rows = np.unique(links, axis=0, return_index=True)
        first = np.sort(first_rows)  # equal paths once, the first of them
        source, end = (as_int32(np.concatenate(columns)[first]) for columns in (sources, ends))
        links, table = links[first], table.take(first)
        # beside its links, a hop loads their limits; the empty row at the end is that of the padding (link -1)
        link_limits = topology.resources
        limits = _padded(np.append(link_limits.limit_ptr, link_limits.limit_ptr[-1]), link_limits.limit_of)
        resources = np.concatenate([links, limits[links].reshape(len(links), -1)], axis=1)
        resources[resources < 0] = topology.links + len(topology.limits)
        into, out_of = ((pointers(x, topology.ranks), order_of(x, topology.ranks)) for x in (end, source))
        return _Hops(source, end, table, resources, into, out_of)


def _padded(ptr: Longs, values: Ints) -> Ints:
    """Return the ragged rows of a CSR table as a matrix, padded by -1."""
    lengths = np.diff(ptr)
    matrix = np.full((len(lengths), max(int(lengths.max(initial=0)), 1)), -1, np.int32)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = values
    return matrix


class _Trees:
    """The trees of all chunks, as matrices by tree and rank, with the loads that they put on links and limits.

    `parent[t, v]`: where rank v of tree t gets the chunk from (or, if `up[t]`, sends its sum to); -1 if it is the root
    or not in the tree. `hop[t, v]`: by which hop. `needed[t, v]`: the rank must be in the tree; others may relay.
    `share[t]`: the tree's fraction of nbytes. `capacity`: by resource, in the same unit.
    """

    def __init__(self, hops: _Hops, forest: _Forest, share: Floats, capacity: Floats) -> None:
        self.hops, self.up, self.root, self.share, self.needed = hops, forest.up, forest.root, share, forest.needed
        self.hop = forest.hop.copy()
        parent = np.where(forest.up[:, None], hops.dst[self.hop], hops.src[self.hop])
        self.parent = np.where(self.hop >= 0, parent, -1)
        self.capacity = np.append(capacity, np.inf)  # fraction of nbytes that fits at the target rate; last: padding
        self.load = np.zeros(len(self.capacity))
        is_small = forest.hop.size <= LIMITS.max_tries
        self.steepness = LIMITS.steepness if is_small else LIMITS.coarse_steepness
        depth = max((int(_tops_and_depths(parents).depth.max()) for parents in self.parent), default=0)
        self.max_depth = depth + max(2, depth // 8)  # deeper trees take longer to fill
        tree, rank = np.nonzero(self.hop >= 0)
        np.add.at(self.load, hops.resources[self.hop[tree, rank]], share[tree][:, None])
        self._price, self._priced_share, self._stale = self.load, -1.0, list[AnyInts]()  # of `prices`

    def set_hop(self, tree: int, rank: int, hop: int) -> None:
        """Change the hop of a rank, -1 for none, and the loads."""
        old = self.hop[tree, rank]
        for number, change in ((old, -self.share[tree]), (hop, self.share[tree])):
            if number >= 0:
                np.add.at(self.load, self.hops.resources[number], change)
                self._stale.append(self.hops.resources[number])
        far_end = self.hops.dst if self.up[tree] else self.hops.src
        self.parent[tree, rank] = far_end[hop] if hop >= 0 else -1
        self.hop[tree, rank] = hop

    def joined(self, tree: int) -> Bools:
        """Return which ranks the tree joins to its root."""
        return np.asarray(_tops_and_depths(self.parent[tree]).top == self.root[tree])

    def prices(self, share: float) -> Floats:
        """Return the price of a share on every resource: how much it raises an exponential of the relative load. It
        is valid until the next call, which computes anew only what moves changed, unless the share is another one."""
        if share != self._priced_share:
            self._priced_share, self._price, self._stale = share, self.load.copy(), [np.arange(len(self.load))]
        changed = np.concatenate(self._stale)
        load, capacity, self._stale = self.load[changed], self.capacity[changed], [changed[:0]]
        # 1.0: the same from twice the target on, as larger exponentials would overflow
        before, after = (portable.exp(self.steepness * np.minimum(x / capacity - 1, 1.0)) for x in (load, load + share))
        # the small terms decide where nothing is full: they prefer paths of few (first term) and wide (second) links
        self._price[changed] = after - before + 1e-9 + 1e-3 * share / capacity
        return self._price

    def reattach(self, tree: int, rank: int) -> bool:
        """Join the branch whose root is `rank` to its tree by the cheapest path; return whether there is one.

        Dijkstra's search from `rank` over ranks that are cut off from the root, up to a hop from a rank that is not.
        """
        hops, (top, depth) = self.hops, _tops_and_depths(self.parent[tree])
        joined = top == self.root[tree]
        price = self.prices(float(self.share[tree]))
        height = int(depth[top == rank].max())  # of the branch, in hops
        too_deep = np.maximum(depth + height + 1 - self.max_depth, 0)
        depth_price = (depth + LIMITS.too_deep_factor * too_deep) * (
            LIMITS.depth_price * self.share[tree] / self.capacity.min()
        )
        ptr, order = hops.out_of if self.up[tree] else hops.into
        far_end = hops.dst if self.up[tree] else hops.src
        # by rank outside the tree: the price of its path to `rank`, the path's first hop, and the rank after that hop
        distance, next_hop, next_rank = np.full(len(top), np.inf), np.full(len(top), -1), np.full(len(top), -1)
        distance[rank], open_ranks = 0.0, ~joined
        # the cheapest path so far: its cost, its hop from the tree, and the rank that this hop leads to
        best, best_hop, best_rank, expansions = np.inf, -1, -1, 0
        while expansions < LIMITS.max_detours or best_hop < 0:
            expansions += 1
            current = int(np.argmin(np.where(open_ranks, distance, np.inf)))
            so_far = float(distance[current])
            if not open_ranks[current] or so_far >= LIMITS.max_detour_cost * best:
                break
            open_ranks[current] = False
            candidates = order[ptr[current] : ptr[current + 1]]
            ends = far_end[candidates]
            cost = so_far + price[hops.resources[candidates]].sum(axis=1)
            inside = joined[ends]
            if inside.any():
                with_depth = np.where(inside, cost + depth_price[ends], np.inf)
                cheapest = int(np.argmin(with_depth))
                if with_depth[cheapest] < best:
                    best, best_hop, best_rank = float(with_depth[cheapest]), int(candidates[cheapest]), current
            improved = np.flatnonzero(open_ranks[ends] & (cost < distance[ends]) & (cost < best))
            # the cheapest of parallel hops last, so that its assignment below is the one that stays
            improved = improved[np.argsort(-cost[improved], kind="stable")]
            distance[ends[improved]], next_hop[ends[improved]] = cost[improved], candidates[improved]
            next_rank[ends[improved]] = current
        if best_hop < 0:
            return False
        current = best_rank  # from the tree along the path: every rank receives from the one before
        self.set_hop(tree, current, best_hop)
        while current != rank:
            hop, current = int(next_hop[current]), int(next_rank[current])
            self.set_hop(tree, current, hop)
        self._prune(tree)
        return True

    def _prune(self, tree: int) -> None:
        """Remove relaying ranks that lead to no rank that needs the chunk."""
        while (relays := np.flatnonzero((self.hop[tree] >= 0) & ~self.needed[tree])).size:
            useless = np.setdiff1d(relays, self.parent[tree])
            for rank in useless.tolist():
                self.set_hop(tree, rank, hop=-1)
            if not useless.size:
                return

    def repair_tree(self, tree: int) -> None:
        """Reattach all branches of a tree that failures cut off; Infeasible if no path leads to one."""
        while True:
            cut_off = np.flatnonzero(self.needed[tree] & ~self.joined(tree))
            if not cut_off.size:
                return
            branch = int(cut_off[0])
            while self.parent[tree, branch] >= 0:
                branch = int(self.parent[tree, branch])
            if not self.reattach(tree, branch):
                a, b = (branch, self.root[tree]) if self.up[tree] else (self.root[tree], branch)
                raise Infeasible(f"repair: no links lead from rank {a} to rank {b} any more; no planner can do that")

    def balance(self) -> None:
        """Move hops off the links whose load is furthest above the target, as long as cheaper ones are found."""
        stuck: set[int] = set()  # links that no hop could be moved off since the last move
        tries, best, best_at = 0, np.inf, 0
        patience = min(LIMITS.patience, int((self.hop >= 0).sum()))
        while tries < min(LIMITS.max_tries, best_at + patience):
            relative = self.load / self.capacity
            if relative.max() < best - LIMITS.min_progress:
                best, best_at = float(relative.max()), tries
            relative[list(stuck)] = 0
            fullest = int(np.argmax(relative))
            if relative[fullest] <= LIMITS.balanced_load:
                return
            crossing = (self.hops.resources == fullest).any(axis=1)
            tree, rank = np.nonzero(crossing[self.hop] & (self.hop >= 0))
            # trees that cross the link most often first: if it is the only link of a rank, one crossing must stay
            crossings = np.bincount(tree, minlength=len(self.hop))[tree]
            moved = False
            for i in np.argsort(-crossings, kind="stable")[: LIMITS.tries_per_link].tolist():
                if self.load[fullest] / self.capacity[fullest] <= LIMITS.balanced_load:
                    break
                before = int(self.hop[tree[i], rank[i]])
                if before < 0 or not crossing[before]:  # changed by an earlier move
                    continue
                tries += 1
                self.set_hop(tree[i], rank[i], hop=-1)
                self.reattach(tree[i], rank[i])  # by the old hop if none is cheaper
                moved |= bool(self.hop[tree[i], rank[i]] != before)
            stuck = set() if moved else stuck | {fullest}


def repair_trees(schedule: Schedule, old: Topology, new: Topology, rate: Fraction | None) -> RepairedTrees:
    """Return the schedule repaired for the degraded machine `new`. Ranks without links leave the collective.

    `rate`: the lower bound in bytes per second, the target of balancing; None: only failed hops change. Raises
    Unsupported where chunks do not move along trees. O(trees * ranks) and the effort limit of balancing.
    """
    collective, old_block = surviving_collective(schedule.collective, new)
    if schedule.joint is not None or schedule.slots > 1 or schedule.local:
        raise Unsupported(
            "repair: a schedule with multicast, reduction in switches or several slots has no plain trees"
        )
    if new.ranks > LIMITS.max_ranks:
        raise Unsupported(f"repair: {new.ranks} ranks; up to {LIMITS.max_ranks} are repaired")
    transfers = schedule.transfers  # of the whole schedule, before some of very many trees are left out
    schedule = thin_trees(schedule, old, LIMITS.max_hops)
    matched = match_links(old, new)
    resolved = resolve(old, schedule.src, schedule.dst, schedule.route, schedule.routes)
    used_routes, first, row_route = np.unique(resolved.route, return_index=True, return_inverse=True)
    old_links = _padded(resolved.table.ptr, resolved.table.links)[used_routes]
    links = np.where(old_links < 0, -2, matched[old_links])  # -1: a link that is gone; -2: behind the last of a path
    alive = (links != -1).all(axis=1)
    surviving = Routes.of([[link for link in path if link >= 0] for path in links[alive].tolist()])
    hops = _Hops.of(new, schedule.src[first[alive]], schedule.dst[first[alive]], surviving)
    # `hops` has equal paths once: find each surviving route again by its links
    number = {key: hop for hop, key in enumerate(_link_keys(hops.table))}
    hop_of_route = np.full(len(used_routes), -1, np.int64)
    hop_of_route[alive] = [number[key] for key in _link_keys(surviving)]
    new_block = np.full(schedule.collective.blocks, -1, np.int64)
    new_block[old_block] = np.arange(len(old_block))
    forest = _read_trees(schedule, collective, new_block, hop_of_route[row_route])
    # by tree, its chunk's fraction of nbytes: without the blocks of lost ranks, nbytes holds fewer and larger blocks
    weights, total = schedule.chunks.weights(schedule.collective)
    growth = schedule.collective.buffer_weight / collective.buffer_weight
    share = np.array([float(Fraction(int(w), total)) for w in weights.tolist()])[forest.chunk] * growth
    resources = new.resources
    capacity = np.array(resources.capacity, np.float64)[resources.class_of] * float(resources.scale)
    slices = _count_slices(share, capacity, new.ranks, rate)
    forest = forest.split(slices)
    if len(forest.chunk) * new.ranks > LIMITS.max_cells:
        raise Unsupported(f"repair: {len(forest.chunk)} trees of {new.ranks} ranks are too many to repair")
    trees = _Trees(hops, forest, np.repeat(share / slices, slices), capacity / float(rate or 1))
    for tree in range(len(forest.chunk)):
        trees.repair_tree(tree)
    if rate is not None:
        trees.balance()
    kept_hops = (forest.hop == trees.hop) & (forest.hop >= 0)
    kept_transfers = int((kept_hops.sum(axis=1) / forest.slices).sum() + 0.5)  # rounded; slices count as fractions
    repaired = _to_schedule(schedule, collective, new_block, forest, trees, kept_hops, new)
    return RepairedTrees(repaired, kept_transfers, transfers)


def _link_keys(table: Routes) -> list[bytes]:
    """Return a key per path: equal for equal paths."""
    return [table.links[a:b].tobytes() for a, b in zip(table.ptr[:-1].tolist(), table.ptr[1:].tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class _Forest:
    """The trees of a schedule, one entry or row per tree.

    `up`: sums go up the tree to its root. `needed`, `hop`: trees x ranks, as in `_Trees`. `step`: trees x ranks, the
    step of the old row for this hop, -1 for none.
    """

    chunk: Longs  # of the old schedule
    up: Bools
    root: Longs  # rank
    needed: Bools
    hop: Ints
    step: Ints
    slices: Longs  # number of slices into which the tree's chunk is split
    slice_number: Longs  # of the slice that it carries

    def split(self, slices: Longs) -> _Forest:
        """Return the forest with each tree repeated for its chunk's slices."""
        tree = np.repeat(np.arange(len(self.chunk)), slices)
        number = np.arange(len(tree)) - np.repeat(np.cumsum(slices) - slices, slices)
        return _Forest(
            self.chunk[tree], self.up[tree], self.root[tree], self.needed[tree], self.hop[tree], self.step[tree],
            slices[tree], number,
        )  # fmt: skip


def _read_trees(schedule: Schedule, collective: Collective, new_block: Longs, row_hop: Longs) -> _Forest:
    """Return the trees of all chunks whose blocks remain; Unsupported if chunks do not move along trees.

    `new_block`: by old block its number in `collective`, or -1. `row_hop`: the hop of every row, -1 if it failed.
    """
    ranks, relation = collective.ranks, collective.relation
    needs, held = (np.zeros((collective.blocks, ranks), bool) for _ in range(2))
    held[relation.pre_block, relation.pre_rank] = True
    needs[relation.post_block, relation.post_rank] = True
    pairs = len(distinct(pair_keys(relation.pre_block, relation.pre_id)))
    if pairs != len(relation.pre_block) or (relation.post_want >= 0).any():
        raise Unsupported("repair: data that several ranks have, or that no rank gets in full, move along no trees")
    block = new_block[schedule.chunks.block]
    op, row_step = part_exchanges(schedule)
    # by direction, the rows as matrices by chunk and the rank that sends up or receives down: the step, the hop and the
    # other rank of the row; -1: the rank has no such row
    sides = []
    for direction, rank, ends in ((REDUCE, schedule.src, schedule.dst), (COPY, schedule.dst, schedule.src)):
        rows = np.flatnonzero(op == direction)
        cell = schedule.chunk[rows].astype(np.int64) * ranks + rank[rows]
        if len(np.unique(cell)) < len(cell):
            raise Unsupported("repair: chunks of this schedule do not move along trees: a rank sends or gets one twice")
        step, hop, other = (np.full((len(schedule.chunks), ranks), -1, np.int64) for _ in range(3))
        for matrix, column in ((step, row_step), (hop, row_hop), (other, ends)):
            matrix.flat[cell] = column[rows]
        sides.append((step, hop, other))
    forest: list[tuple[Longs, Bools, Longs, Bools, Longs, Longs]] = []
    sources, ends_wanted = held[block], needs[block]
    (step_up, _, parent), (_, _, parent_down) = sides
    root = _roots(sources, ends_wanted, step_up, parent)
    for up, (step, hop, other) in zip((True, False), sides, strict=True):
        _check_trees(step[block >= 0], other[block >= 0], root[block >= 0], up=up)
        needed = (sources if up else ends_wanted).copy()
        needed[np.arange(len(root)), root] = False
        chunks = np.flatnonzero((block >= 0) & (needed.any(axis=1) | (step >= 0).any(axis=1)))
        forest.append((chunks, np.full(len(chunks), up), root[chunks], needed[chunks], hop[chunks], step[chunks]))
    chunk, is_up, tree_root, needed, hop, step = (np.concatenate(column) for column in zip(*forest, strict=True))
    # only an allreduce has trees left whose root has no links any more: blocks from or for that rank alone are gone.
    # The first child of the root in the tree down becomes the root of both trees.
    is_member = np.logical_or(held.any(axis=0), needs.any(axis=0))
    lost = np.flatnonzero(np.logical_not(is_member[tree_root]))
    for number in np.unique(chunk[lost]).tolist():
        below = np.flatnonzero((parent_down[number] == root[number]) & is_member)
        new_root = int(below[0]) if below.size else int(np.flatnonzero(is_member)[0])
        trees = np.flatnonzero(chunk == number)
        tree_root[trees], hop[trees, new_root], needed[trees, new_root] = new_root, -1, False
    hop[np.arange(len(chunk)), tree_root] = -1
    return _Forest(chunk, is_up, tree_root, needed, as_int32(hop), as_int32(step), slices=np.ones(len(chunk), np.int64),
                   slice_number=np.zeros(len(chunk), np.int64))  # fmt: skip


def _roots(held: Bools, needs: Bools, step: Longs, other: Longs) -> Longs:
    """Return the root of every chunk: its only source, else its only receiver, else the rank that sums go up to."""
    receives = np.zeros_like(held)
    chunk, rank = np.nonzero(step >= 0)
    receives[chunk, other[chunk, rank]] = True
    top = receives & (step < 0)
    is_only_source, is_only_receiver = held.sum(axis=1) == 1, needs.sum(axis=1) == 1
    receiver_or_top = np.where(is_only_receiver, needs.argmax(axis=1), top.argmax(axis=1))
    return np.where(is_only_source, held.argmax(axis=1), receiver_or_top)


def _check_trees(step: Longs, other: Longs, root: Longs, *, up: bool) -> None:
    """Raise Unsupported unless steps rise along every path to the root (`up`) or from it: then there are no cycles."""
    chunk, rank = np.nonzero(step >= 0)
    parent = other[chunk, rank]
    rank_step, parent_step = step[chunk, rank], step[chunk, parent]
    ordered = parent_step > rank_step if up else (parent_step >= 0) & (parent_step < rank_step)
    if not (ordered | (parent == root[chunk])).all() or (step[np.arange(len(root)), root] >= 0).any():
        raise Unsupported("repair: chunks of this schedule do not move along trees")


def _count_slices(share: Floats, capacity: Floats, ranks: int, rate: Fraction | None) -> Longs:
    """Return the number of slices of each tree's chunk, so that a slice is a small share of a link's load."""
    if rate is None or not len(share):
        return np.ones(len(share), np.int64)
    relative = share * float(rate) / float(capacity.min())
    slices = np.minimum(np.ceil(relative / LIMITS.max_chunk_load), LIMITS.max_slices)
    slices = 2 ** np.ceil(np.log2(np.maximum(slices, 1))).astype(np.int64)
    while slices.sum() * ranks > LIMITS.max_cells and (slices > 1).any():
        slices = np.maximum(slices // 2, 1)
    return np.asarray(slices)


def _set_steps(trees: _Trees, forest: _Forest, kept_hops: Bools) -> Longs:
    """Return the step of every hop: that of the old row where the hop is kept, later if it must wait for another hop.

    Hops up start at the deepest ranks; a hop down follows the one into its parent. The tree down of a slice starts when
    its tree up is done.
    """
    step = np.where(kept_hops, forest.step, -1).astype(np.int64)
    changed: Bools = np.any((trees.hop >= 0) & ~kept_hops, axis=1)
    done: dict[tuple[int, int], int] = {}  # by chunk and slice, when the changed tree up is done
    for tree in np.argsort(~forest.up, kind="stable").tolist():
        key = int(forest.chunk[tree]), int(forest.slice_number[tree])
        if not changed[tree] and key not in done:
            continue
        parent, tree_step, root = trees.parent[tree].tolist(), step[tree].tolist(), int(trees.root[tree])
        order = np.argsort(_tops_and_depths(trees.parent[tree]).depth, kind="stable").tolist()
        if forest.up[tree]:
            ready = [0] * len(tree_step)
            for rank in reversed(order):
                if parent[rank] >= 0:
                    tree_step[rank] = max(tree_step[rank], ready[rank])
                    ready[parent[rank]] = max(ready[parent[rank]], tree_step[rank] + 1)
            done[key] = ready[root]
        else:
            tree_step[root] = done.get(key, 0) - 1
            if key not in done and forest.up.any():  # the tree up is as it was, and the old rows out of it follow it
                chunk, slice_number = key
                is_tree_up = (forest.chunk == chunk) & (forest.slice_number == slice_number) & forest.up
                tree_step[root] = int(step[is_tree_up].max(initial=-1))
            for rank in order:
                if parent[rank] >= 0:
                    tree_step[rank] = max(tree_step[rank], tree_step[parent[rank]] + 1)
            tree_step[root] = -1
        step[tree] = tree_step
    return step


class _Positions(NamedTuple):
    """For every rank the top of its tree or branch, and the number of hops from there."""

    top: Longs
    depth: Longs


def _tops_and_depths(parent: Ints) -> _Positions:
    """Return the positions of all ranks. Every round doubles how far each rank looks up: O(ranks log depth)."""
    top = np.where(parent < 0, np.arange(len(parent)), parent)
    depth = (parent >= 0).astype(np.int64)
    while (parent[top] >= 0).any():
        depth += depth[top]
        top = top[top]
    return _Positions(top, depth)


def _to_schedule(
    schedule: Schedule, collective: Collective, new_block: Longs, forest: _Forest, trees: _Trees, kept_hops: Bools,
    topology: Topology,
) -> Schedule:  # fmt: skip
    """Return the trees as a schedule in which slices of a chunk that move alike are one chunk again."""
    old, step = schedule.chunks, _set_steps(trees, forest, kept_hops)
    scale = int(forest.slices.max(initial=1))
    trees_of_slice: dict[tuple[int, int], list[int]] = {}  # by chunk and slice: a tree up, a tree down, or both
    for tree_number, key in enumerate(zip(forest.chunk.tolist(), forest.slice_number.tolist(), strict=True)):
        trees_of_slice.setdefault(key, []).append(tree_number)
    by_chunk: dict[int, dict[bytes, list[list[int]]]] = {}  # chunk -> hops and steps of a slice -> its equals' trees
    for (chunk, _), numbers in trees_of_slice.items():
        moves_of_slice = b"".join(trees.hop[t].tobytes() + step[t].tobytes() for t in numbers)
        by_chunk.setdefault(chunk, {}).setdefault(moves_of_slice, []).append(numbers)
    columns: list[tuple[int, int, int]] = []  # block, offset and share of every new chunk
    number = np.full(len(forest.chunk), -1, np.int64)  # by tree, its new chunk; -1: merged into an equal slice's
    for chunk in np.flatnonzero(new_block[old.block] >= 0).tolist():
        offset, share = int(old.offset[chunk]) * scale, int(old.share[chunk]) * scale
        groups = list(by_chunk.get(chunk, {b"": [[]]}).values())  # default: a chunk that never moves, as a slice
        count = sum(map(len, groups))
        for group in groups:
            number[group[0]] = len(columns)
            group_share = share * len(group) // count  # exact: `count`, a power of 2, divides `scale`
            columns.append((int(new_block[old.block[chunk]]), offset, group_share))
            offset += group_share
    tree, rank = np.nonzero((trees.hop >= 0) & (number >= 0)[:, None])
    hop, up = trees.hop[tree, rank], forest.up[tree]
    order = np.lexsort((rank, number[tree], step[tree, rank]))
    tree, rank, hop, up = tree[order], rank[order], hop[order], up[order]
    used_hops, route = np.unique(hop.astype(np.int64), return_inverse=True)
    routes: Routes | None = trees.hops.table.take(used_hops)
    pair = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    if not topology.switches and len(np.unique(pair)) == len(pair):  # every hop is the only link between its ranks
        routes = None
    block, offset_column, share_column = (np.array(column, np.int64) for column in zip(*columns, strict=True))
    return Schedule(
        collective, Chunks(as_int32(block), offset_column, share_column, old.denominator * scale),
        as_int32(step[tree, rank]), as_int32(number[tree]), trees.hops.src[hop], trees.hops.dst[hop],
        np.where(up, REDUCE, COPY).astype(np.uint8), route=None if routes is None else as_int32(route),
        routes=routes or NO_ROUTES,
    )  # fmt: skip
