"""Trees of all roots, from those of one root per orbit (see planners/shared/orbits)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, dense, narrow, order_of, own, packed
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.orbits import Table
from antiphon.planners.shared.reach import Hop, Path
from antiphon.planners.trees.tree import Tree


@dataclass(frozen=True, eq=False)
class Forest:
    """`firsts`: trees of one root per orbit of these symmetries; all others are their images."""

    topology: Topology
    group: Table
    firsts: tuple[Tree, ...]

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """Every tree of every root."""
        return images(self.topology, self.group, self.firsts)


def images(topology: Topology, group: Table, trees: Sequence[Tree]) -> tuple[Tree, ...]:
    """Every tree of every root. O(hops of all trees)."""
    out = []
    for element in group:
        node, link = element[: topology.nodes].tolist(), (element[topology.nodes :] - topology.nodes).tolist()
        paths: dict[tuple[int, ...], tuple[int, ...]] = {}
        for tree in trees:
            hops = []
            for rank, hop in tree.hops:
                path = paths.get(hop.path)
                if path is None:
                    path = paths[hop.path] = tuple([link[x] for x in hop.path])
                hops.append((node[rank], Hop(node[hop.parent], path, hop.depth)))
            hops.sort(key=_rank)
            out.append(Tree(node[tree.root], tree.rate, tuple(hops)))
    return tuple(sorted(out, key=lambda tree: tree.root))


def _rank(hop: tuple[int, Hop]) -> int:
    return hop[0]


def spread_images(collective: Collective, forest: Forest) -> Schedule:
    """What `lay.spread` makes of all trees, in columns; every root has one block, which all that its trees reach want.
    O(n log n) in rows.
    """
    group, ranks = forest.group, forest.topology.ranks
    block_of = np.full(ranks, -1, np.int64)  # by root
    block_of[collective.relation.pre_rank] = collective.relation.pre_block
    many = np.zeros(collective.blocks, np.int64)  # trees of every block
    for tree in forest.firsts:
        many[block_of[group[:, tree.root]]] += 1
    base = np.cumsum(many) - many
    parts, whole = _parts(forest.firsts)
    share, rows = np.zeros(int(many.sum()), np.int64), []
    paths: dict[Path, int] = {}
    begun: Counter[int] = Counter()
    for tree, mine in zip(forest.firsts, parts, strict=True):
        chunk = base[block_of[group[:, tree.root]]] + begun[tree.root]
        begun[tree.root] += 1
        share[chunk] = mine
        rows.append(_rows(group, chunk, tree, paths))
    step, chunk, src, dst, element, path = (np.concatenate(some) for some in zip(*rows, strict=True))
    order = order_of(chunk * ranks + dst, len(share) * ranks)
    routes, route = _routes(forest, list(paths), (element * len(paths) + path)[order])
    block = np.repeat(np.arange(len(many)), many)
    before = np.cumsum(share) - share
    step, chunk, src, dst = (own(narrow(column[order])) for column in (step, chunk, src, dst))
    return Schedule(
        collective, Chunks(narrow(block), before - before[base[block]], share, whole), step, chunk, src, dst,
        own(np.full(len(order), COPY, np.uint8)), route=own(narrow(route)), routes=routes,
    )  # fmt: skip


def _parts(trees: Sequence[Tree]) -> tuple[list[int], int]:
    """Of every tree its share of what its root has, over one denominator."""
    whole: defaultdict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        whole[tree.root] += tree.rate
    shares = [tree.rate / whole[tree.root] for tree in trees]
    common = math.lcm(*(share.denominator for share in shares))
    return [share.numerator * (common // share.denominator) for share in shares], common


def _rows(group: Table, chunk: Longs, tree: Tree, paths: dict[Path, int]) -> tuple[Longs, ...]:
    """Step, chunk, ends, symmetry and path of all hops of all images of a tree, image by image."""
    hops = [(rank, hop.parent, hop.depth - 1, paths.setdefault(hop.path, len(paths))) for rank, hop in tree.hops]
    rank, parent, step, path = np.array(hops, np.int64).T
    every = np.repeat(np.arange(len(group)), len(hops))
    src, dst = group[:, parent].ravel(), group[:, rank].ravel()
    return np.tile(step, len(group)), chunk[every], src, dst, every, np.tile(path, len(group))


def _routes(forest: Forest, paths: Sequence[Path], way: Longs) -> tuple[Routes, Longs]:
    """The images of paths, each once, in the order in which rows take them; and which each row takes. `way`: of every
    row its symmetry * paths + path."""
    nodes, links = forest.topology.nodes, forest.topology.links
    longest = max(map(len, paths))
    padded = np.array([[*path, *[-1] * (longest - len(path))] for path in paths])
    image = np.full((len(forest.group), links + 1), -1, np.int64)
    image[:, :links] = forest.group[:, nodes : nodes + links] - nodes
    table = image[:, padded].reshape(-1, longest)
    key, bound = packed(*((column + 1, links + 1) for column in table.T))
    found, same = dense(key, bound)
    taken = same[way]
    first = np.full(len(found), len(way), np.int64)
    np.minimum.at(first, taken, np.arange(len(way)))
    order = np.argsort(first)
    place = np.empty(len(found), np.int64)
    place[order] = np.arange(len(found))
    one = np.empty(len(found), np.int64)
    one[same] = np.arange(len(same))
    kept = table[one[order]]
    inside = kept >= 0
    return Routes(np.cumsum([0, *inside.sum(axis=1)], dtype=np.int64), narrow(kept[inside])), place[taken]
