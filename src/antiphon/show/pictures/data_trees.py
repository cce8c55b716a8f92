"""Recover the trees along which chunks travel from the rows (transfers) of any schedule, to draw them.

The rows of a chunk form an out-tree if its data has one source (broadcast), an in-tree if it has one destination
(reduce), or both for an allreduce: rows up to the last reduction lead in, later rows out. If two ranks exchange their
sums in the last reduction, the one with the lower number is the root, and its row leads out. A `DataTree` is such a
tree with its arrows numbered by their distance from the root. Chunks that travel along the same tree are merged, and
their shares of the data added; the heaviest tree comes first. Data that follows no tree is shown by step instead.

Example: an allreduce on 3 ranks in a chain 1 - 0 - 2 with one chunk: rows 1 -> 0 and 2 -> 0 reduce, then 0 -> 1 and
0 -> 2 copy. Both halves are the same tree with root 0, so there is one `DataTree`, SAME_BOTH_WAYS, with the arrows
0 -> 1 and 0 -> 2, numbered 1, and all of the data. `data_trees_of` does this in O(rows log rows).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, distinct_pairs
from antiphon.core.routes import resolve
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, list_first

# shapes of a DataTree
OUT, IN, SAME_BOTH_WAYS, IN_AND_OUT, NO_TREE = "out", "in", "both", "in and out", "none"
MAX_TREES_OF_ALL_ROOTS = 12  # up to this many trees of several roots are drawn; of more, those of one root

Pair = tuple[int, int]  # parent, child
Via = tuple[int, ...]  # switches between two ranks
Row = tuple[int, int, int, int, Via]  # step, from, to, op, switches on the way


@dataclass(frozen=True)
class Arrow:
    """A transfer as drawn."""

    src: int
    dst: int
    number: int  # depth below the root (1 for the first), or without a tree the step, from 1 on
    inwards: bool = False  # towards the root; without a tree: it reduces
    via: tuple[int, ...] = ()  # switches on the way

    @property
    def parent(self) -> int:
        """The end that is nearer to the root."""
        return self.dst if self.inwards else self.src


@dataclass(frozen=True)
class DataTree:
    """How one part of the data travels.

    `shape`: out of a root (OUT), in to it (IN), both over the same hops (SAME_BOTH_WAYS, drawn outwards) or over
    different ones (IN_AND_OUT), or along no tree (NO_TREE): then `root` is -1 and the arrows are numbered by step.
    """

    shape: str
    root: int
    arrows: tuple[Arrow, ...]

    @property
    def depth(self) -> int:
        return max((arrow.number for arrow in self.arrows), default=0)


@dataclass(frozen=True)
class DataTrees:
    """The distinct trees, those with most data first.

    `trees`: each with its share of the data, share / `total`.
    `root`: the root whose trees these are; -1: those of all roots.
    `roots`: number of roots of the schedule.
    """

    trees: tuple[tuple[int, DataTree], ...]
    total: int
    root: int
    roots: int

    @property
    def has_one_of_roots(self) -> bool:
        """Whether the trees of a single root are here, and the schedule has others."""
        return self.root >= 0 and self.roots > 1


def data_trees_of(schedule: Schedule, topology: Topology, root: int | None = None) -> DataTrees:
    """Return the trees of a schedule; if there are many roots, those of `root`, or of the first. O(rows log rows).

    A collective with several blocks has several roots; one is drawn. An allreduce has one block; all of its
    trees are drawn, unless they are many.
    """
    shares = _sum_shares(schedule, _rows_by_chunk(schedule, topology), *_tree_ends(schedule.collective))
    roots = sorted({tree_root for tree_root, _ in shares})
    if root is not None and root not in roots:
        choices = list_first(roots, limit=12)
        raise Invalid(f"trees to be drawn: none has rank {root} as its root; choose among {choices}")
    distinct_trees = {tree for _, tree in shares}
    # many different roots would give too many pictures: show those of one root
    by_root = len(roots) > 1 and (schedule.collective.blocks > 1 or len(distinct_trees) > MAX_TREES_OF_ALL_ROOTS)
    drawn_root = root if root is not None else roots[0] if by_root else -1
    weight: dict[DataTree, int] = defaultdict(int)
    for (tree_root, tree), share in shares.items():
        if drawn_root in (-1, tree_root):
            weight[tree] += share
    total = sum(weight.values()) or 1
    # shares in lowest terms
    common = math.gcd(*weight.values()) or 1
    order = sorted(weight.items(), key=lambda item: -item[1])  # the greatest share first
    return DataTrees(tuple((share // common, tree) for tree, share in order), total // common, drawn_root, len(roots))


def _tree_ends(collective: Collective) -> tuple[str, dict[int, int]]:
    """Return whether trees go OUT of the rank that has a block or IN to the one that wants it; and by block that rank.

    IN_AND_OUT if neither is a single rank for every block (allreduce). If both are (alltoall), the side with fewer
    roots.
    """
    relation = collective.relation
    # blocks that exactly one rank has at the start (out-trees) or wants at the end (in-trees)
    holders = _single_ranks(relation.pre_block, relation.pre_rank)
    receivers = _single_ranks(relation.post_block, relation.post_rank)
    blocks = collective.blocks
    fits = [(direction, ends) for direction, ends in ((OUT, holders), (IN, receivers)) if len(ends) == blocks]

    def count_roots(fit: tuple[str, dict[int, int]]) -> int:
        _, ends = fit
        return len(set(ends.values()))

    # where both fit, the one with fewer roots
    return min(fits, key=count_roots, default=(IN_AND_OUT, {}))


def _single_ranks(block: Ints, rank: Ints) -> dict[int, int]:
    """Return the rank of every block that has exactly one in these rows."""
    ranks_of: dict[int, list[int]] = defaultdict(list)
    blocks_and_ranks = distinct_pairs(block, rank)
    for each_block, each_rank in zip(*(column.tolist() for column in blocks_and_ranks), strict=True):
        ranks_of[each_block].append(each_rank)
    return {block: ranks[0] for block, ranks in ranks_of.items() if len(ranks) == 1}


def _sum_shares(
    schedule: Schedule, rows: Sequence[Sequence[Row]], direction: str, root_of: Mapping[int, int]
) -> dict[tuple[int, DataTree], int]:
    """Return shares of the data by (root, tree). `direction`, `root_of`: the result of `_tree_ends`.

    Of blocks with a common root (a scatter's), chunks at the same offset are drawn as one tree, if they form one.
    """
    chunks, weights = schedule.chunks, schedule.collective.weights[schedule.chunks.block].tolist()
    chunks_at: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for chunk, (block, offset, share) in enumerate(
        zip(chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), strict=True)
    ):
        if rows[chunk]:
            chunks_at[root_of.get(block, -1), offset, share].append(chunk)
    shares: dict[tuple[int, DataTree], int] = defaultdict(int)
    for (root, _, share), chunk_group in chunks_at.items():
        # try to draw all chunks at the same offset as one tree, else each by itself
        merged = data_tree_of(direction, root, [row for chunk in chunk_group for row in rows[chunk]])
        if merged.shape != NO_TREE or len(chunk_group) == 1:
            shares[merged.root if root < 0 else root, merged] += share * sum(weights[chunk] for chunk in chunk_group)
            continue
        for chunk in chunk_group:
            tree = data_tree_of(direction, root, rows[chunk])
            shares[tree.root if root < 0 else root, tree] += share * weights[chunk]
    return shares


def _rows_by_chunk(schedule: Schedule, topology: Topology) -> list[list[Row]]:
    """Return the transfers of every chunk, without those between slots of a rank."""
    by_chunk: list[list[Row]] = [[] for _ in range(len(schedule.chunks))]
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    link_ends = topology.link_dst.tolist()
    # by number of a route: all links of it but the last end at a switch
    via = [tuple(link_ends[link] for link in resolved.table[route][:-1]) for route in range(len(resolved.table))]
    columns = (schedule.chunk, schedule.step, schedule.src, schedule.dst, schedule.op, resolved.route)
    for chunk, step, src, dst, op, route in zip(*(column.tolist() for column in columns), strict=True):
        if src != dst:
            by_chunk[chunk].append((step, src, dst, op, via[route]))
    return by_chunk


def data_tree_of(direction: str, root: int, rows: Sequence[Row]) -> DataTree:
    """Return the tree that these rows form.

    `direction`: OUT of the root, IN to it, or IN_AND_OUT for an allreduce: rows up to the last reduction lead in to the
    root, which is found here, later rows lead out.
    """
    # an allreduce has two phases; the last reduction ends the first
    reduction_steps = [step for step, _, _, op, _ in rows if op == REDUCE]
    last_reduction = max(reduction_steps, default=-1) if direction == IN_AND_OUT else -1
    # two ranks that exchange their sums in it: the lower one counts as the root, and its row to the other leads out. If
    # several pairs exchange sums, there is no tree
    last_pairs = {(src, dst) for step, src, dst, op, _ in rows if step == last_reduction and op == REDUCE}
    exchanges = [(src, dst) for src, dst in last_pairs if src < dst and (dst, src) in last_pairs]
    # hop (parent, child) -> the switches on it; where rows of a hop take different routes, the least of these
    into: dict[Pair, Via] = {}
    out: dict[Pair, Via] = {}
    for step, src, dst, _, via in rows:
        leads_out = step > last_reduction or [(src, dst)] == exchanges  # the latter for the only exchange
        if direction == IN or (direction == IN_AND_OUT and not leads_out):
            into[dst, src] = min(via, into.get((dst, src), via))
        else:
            out[src, dst] = min(via, out.get((src, dst), via))
    # the root of an allreduce is the only rank that is a parent and never a child
    if direction == IN_AND_OUT:
        top_ranks = {parent for parent, _ in into or out} - {child for _, child in into or out}
        root = min(top_ranks) if len(top_ranks) == 1 else -1
    # rank -> depth; None if the hops are not a tree below the root
    inward_depth, outward_depth = _tree_depths(root, into), _tree_depths(root, out)
    if inward_depth is None or outward_depth is None or root < 0:
        arrows_by_step = {Arrow(src, dst, step + 1, op == REDUCE, via) for step, src, dst, op, via in rows}
        return DataTree(NO_TREE, root=-1, arrows=tuple(sorted(arrows_by_step, key=_arrow_order)))
    # reduction and broadcast over the same links are drawn as one tree
    is_mirrored = into.keys() == out.keys() and all(via == out[pair][::-1] for pair, via in into.items())
    kind = SAME_BOTH_WAYS if is_mirrored else OUT if not into else IN if not out else IN_AND_OUT
    arrows = [Arrow(src, dst, outward_depth[dst], inwards=False, via=via) for (src, dst), via in out.items()]
    if not is_mirrored:
        arrows += [
            Arrow(child, parent, inward_depth[child], inwards=True, via=via) for (parent, child), via in into.items()
        ]
    return DataTree(kind, root, tuple(sorted(arrows, key=_arrow_order)))


def _arrow_order(arrow: Arrow) -> tuple[int, bool, int, int, Via]:
    return arrow.number, arrow.inwards, arrow.src, arrow.dst, arrow.via


def _tree_depths(root: int, pairs: Iterable[Pair]) -> Mapping[int, int] | None:
    """Return the depth of every rank below the root along pairs (parent, child); None if they are no tree."""
    children: dict[int, list[int]] = defaultdict(list)
    for parent, child in pairs:
        children[parent].append(child)
    depth_of, reached = {root: 0}, [root]
    # breadth-first; `reached` grows while it is iterated
    for rank in reached:
        for child in children[rank]:
            # reached twice: a cycle, or two parents
            if child in depth_of:
                return None
            depth_of[child] = depth_of[rank] + 1
            reached.append(child)
    # a tree has one edge less than nodes; otherwise some edges are not connected to the root
    return depth_of if len(depth_of) == sum(map(len, children.values())) + 1 else None
