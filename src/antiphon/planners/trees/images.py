"""Trees and their images by symmetries (see planners/shared/orbits): those of all roots from the trees of one root per
orbit, and those out of one root that the symmetries keep."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, dense, narrow, order_of, own, packed
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.orbits import Table
from antiphon.planners.shared.reach import Hop, Path
from antiphon.planners.trees.lay import leading_to, spread
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


@dataclass(frozen=True, eq=False)
class Mirrored:
    """`firsts`: trees out of one root, each at the rate of all its images together. `taken`: of each the symmetries,
    which keep the root, that give its different images, which have equal rates."""

    topology: Topology
    group: Table
    firsts: tuple[Tree, ...]
    taken: tuple[Longs, ...]

    @staticmethod
    def of(topology: Topology, trees: Iterable[Tree], group: Table | None = None) -> Mirrored:
        """`group` None: the identity alone. Trees that are images of each other become one."""
        some = np.arange(topology.nodes + topology.links + len(topology.limits))[None] if group is None else group
        found: dict[bytes, tuple[Tree, Longs]] = {}
        for tree in trees:
            seen = _seen(topology, some, tree)
            known = min(seen)
            rate = tree.rate + (found[known][0].rate if known in found else 0)
            taken = np.array(sorted(seen.values())) if known not in found else found[known][1]
            found[known] = replace(found[known][0] if known in found else tree, rate=rate), taken
        return Mirrored(topology, some, tuple(one for one, _ in found.values()), tuple(at for _, at in found.values()))

    def __len__(self) -> int:
        return sum(map(len, self.taken))

    @property
    def rate(self) -> Fraction:
        return sum((tree.rate for tree in self.firsts), Fraction(0))

    @property
    def depth(self) -> int:
        return max((tree.depth for tree in self.firsts), default=0)

    @property
    def trees(self) -> tuple[Tree, ...]:
        """All of them, each at its own rate."""
        return tuple(
            replace(image, rate=tree.rate / len(taken))
            for tree, taken in zip(self.firsts, self.taken, strict=True)
            for image in images(self.topology, self.group[taken], [tree])
        )

    def rated(self, firsts: Iterable[Tree]) -> Mirrored:
        """The same trees at other rates; those that are not among them are left out."""
        rate = {tree.hops: tree.rate for tree in firsts}
        kept = [(tree, at) for tree, at in zip(self.firsts, self.taken, strict=True) if tree.hops in rate]
        return replace(
            self, firsts=tuple(replace(tree, rate=rate[tree.hops]) for tree, _ in kept),
            taken=tuple(at for _, at in kept),
        )  # fmt: skip

    def schedule(self, collective: Collective) -> Schedule:
        """A broadcast along them. What leads to nobody who wants anything is left out. O(n log n) in rows."""
        if not self.firsts:
            return spread(collective, ())
        rates = [tree.rate / len(at) for tree, at in zip(self.firsts, self.taken, strict=True)]
        parts, whole = _over_one(rates, self.rate)
        if whole >= MAX_DENOMINATOR:
            raise Unsupported(
                "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
            )
        ends, rows, count = frozenset(collective.members), [], 0
        paths: dict[Path, int] = {}
        for tree, taken in zip(self.firsts, self.taken, strict=True):
            kept = replace(tree, hops=tuple(leading_to(dict(tree.hops), tree.root, ends)))
            rows.append(_rows(self.group, taken, count + np.arange(len(taken)), kept, paths))
            count += len(taken)
        share = np.repeat(parts, [len(taken) for taken in self.taken])
        table = Chunks(np.zeros(count, np.int32), np.cumsum(share) - share, share, whole)
        return _schedule(collective, table, rows, self.topology, self.group, list(paths))


def _seen(topology: Topology, group: Table, tree: Tree) -> dict[bytes, int]:
    """Of every different image of a tree the first symmetry that gives it, by the image: of every rank its parent and
    the links to it."""
    longest = max(len(hop.path) for _, hop in tree.hops)
    hops = np.array([(rank, hop.parent, *hop.path, *[-1] * (longest - len(hop.path))) for rank, hop in tree.hops])
    image = np.full((len(group), topology.ranks, 1 + longest), -1, np.int32)
    every, at = np.arange(len(group))[:, None], group[:, hops[:, 0]]
    image[every, at, 0] = group[:, hops[:, 1]]
    for place, link in enumerate(hops.T[2:], 1):
        image[every, at, place] = np.where(link < 0, -1, group[:, topology.nodes + link] - topology.nodes)
    return {one.tobytes(): number for number, one in reversed(list(enumerate(image)))}


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
        rows.append(_rows(group, np.arange(len(group)), chunk, tree, paths))
    block = np.repeat(np.arange(len(many)), many)
    before = np.cumsum(share) - share
    table = Chunks(narrow(block), before - before[base[block]], share, whole)
    return _schedule(collective, table, rows, forest.topology, group, list(paths))


def _schedule(
    collective: Collective, table: Chunks, rows: Sequence[tuple[Longs, ...]], topology: Topology, group: Table,
    paths: Sequence[Path],
) -> Schedule:  # fmt: skip
    """Chunks, and of every tree the rows of its images, as `_rows` makes them."""
    step, chunk, src, dst, element, path = (np.concatenate(some) for some in zip(*rows, strict=True))
    order = order_of(chunk * topology.ranks + dst, len(table) * topology.ranks)
    routes, route = _routes(topology, group, paths, (element * len(paths) + path)[order])
    step, chunk, src, dst = (own(narrow(column[order])) for column in (step, chunk, src, dst))
    return Schedule(
        collective, table, step, chunk, src, dst, own(np.full(len(order), COPY, np.uint8)), route=own(narrow(route)),
        routes=routes,
    )  # fmt: skip


def _parts(trees: Sequence[Tree]) -> tuple[list[int], int]:
    """Of every tree its share of what its root has, over one denominator."""
    whole: defaultdict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        whole[tree.root] += tree.rate
    return _over_one([tree.rate / whole[tree.root] for tree in trees])


def _over_one(values: Collection[Fraction], of: Fraction = Fraction(1)) -> tuple[list[int], int]:
    """Parts of something, as whole numbers over one denominator."""
    shares = [value / of for value in values]
    common = math.lcm(*(share.denominator for share in shares))
    return [share.numerator * (common // share.denominator) for share in shares], common


def _rows(group: Table, taken: Longs, chunk: Longs, tree: Tree, paths: dict[Path, int]) -> tuple[Longs, ...]:
    """Step, chunk, ends, symmetry and path of all hops of the images of a tree by these symmetries, image by image."""
    hops = [(rank, hop.parent, hop.depth - 1, paths.setdefault(hop.path, len(paths))) for rank, hop in tree.hops]
    rank, parent, step, path = np.array(hops, np.int64).T
    many = len(taken)
    src, dst = group[np.ix_(taken, parent)].ravel(), group[np.ix_(taken, rank)].ravel()
    every = np.repeat(np.arange(many), len(hops))
    return np.tile(step, many), chunk[every], src, dst, taken[every], np.tile(path, many)


def _routes(topology: Topology, group: Table, paths: Sequence[Path], way: Longs) -> tuple[Routes, Longs]:
    """The images of paths, each once, in the order in which rows take them; and which each row takes. `way`: of every
    row its symmetry * paths + path."""
    nodes, links = topology.nodes, topology.links
    longest = max(map(len, paths))
    padded = np.array([[*path, *[-1] * (longest - len(path))] for path in paths])
    image = np.full((len(group), links + 1), -1, np.int64)
    image[:, :links] = group[:, nodes : nodes + links] - nodes
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
