"""Make schedules of packed trees on symmetric machines, where only some trees are listed.

The other trees are images of these by symmetries. `spread_images` (trees of many roots) and
`SymmetricTrees.to_schedule` (of one root) return the schedules that `spread_trees` (shared/tree_schedules.py) returns
for all trees, but computed in NumPy columns, without a Python object per hop.

A symmetry is a permutation of the machine's nodes, links and limits that keeps the machine the same. A group of them
is stored as `Symmetries`, one row per symmetry: where it takes each node, then each link, then each limit.

Exact packings may have shares with denominators of many digits; rounding.py makes them small first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, as_int32, freeze, order_of, pack_columns, unique_inverse
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.orbits import Symmetries
from antiphon.planners.shared.reach import Hop, Path
from antiphon.planners.shared.tree_schedules import SpanningTree, leading_to, spread_trees, trees_by_root


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees of many roots on a symmetric machine.

    `representatives`: the trees of one root per orbit of `group` (roots that symmetries take to each other); the trees
    of all other roots are their images. Every symmetry gives each tree an image of its own, so the group must take a
    root to every root of its orbit exactly once, as `free_group` (orbits.py) ensures.
    """

    topology: Topology
    group: Symmetries
    representatives: tuple[SpanningTree, ...]

    @cached_property
    def trees(self) -> tuple[SpanningTree, ...]:
        """Every tree of every root."""
        return image_trees(self.topology, self.group, self.representatives)


@dataclass(frozen=True, eq=False)
class SymmetricTrees:
    """Trees out of one root on a symmetric machine; the symmetries keep the root in place.

    Of all images of a tree only one is listed in `representatives`. Its rate is that of all images together, which
    share it equally. `elements`: per representative the symmetries (rows of `group`) that give its distinct images.
    """

    topology: Topology
    group: Symmetries
    representatives: tuple[SpanningTree, ...]
    elements: tuple[Longs, ...]

    @staticmethod
    def of_trees(topology: Topology, trees: Iterable[SpanningTree], group: Symmetries | None = None) -> SymmetricTrees:
        """Group trees that are images of each other, and add missing images. `group` None: no symmetry."""
        identity = np.arange(topology.nodes + topology.links + len(topology.limits))[None]
        symmetries = identity if group is None else group
        orbits: dict[bytes, tuple[SpanningTree, Longs]] = {}
        for tree in trees:
            image_elements = _distinct_images(topology, symmetries, tree)
            key = min(image_elements)  # equal for all trees of an orbit
            if key in orbits:
                representative, elements = orbits[key]
                orbits[key] = replace(representative, rate=representative.rate + tree.rate), elements
            else:
                orbits[key] = tree, np.array(sorted(image_elements.values()))
        representatives, orbit_elements = zip(*orbits.values(), strict=True) if orbits else ((), ())
        return SymmetricTrees(topology, symmetries, representatives, orbit_elements)

    def __len__(self) -> int:
        """Return the number of trees, images included."""
        return sum(map(len, self.elements))

    @property
    def rate(self) -> Fraction:
        """Total rate of all trees, in bytes per second."""
        return sum((tree.rate for tree in self.representatives), Fraction(0))

    @property
    def depth(self) -> int:
        """Hops of the deepest tree."""
        return max((tree.depth for tree in self.representatives), default=0)

    @property
    def trees(self) -> tuple[SpanningTree, ...]:
        """All trees, each at its own rate."""
        return tuple(
            replace(image, rate=tree.rate / len(elements))
            for tree, elements in zip(self.representatives, self.elements, strict=True)
            for image in image_trees(self.topology, self.group[elements], [tree])
        )

    def with_rates(self, representatives: Iterable[SpanningTree]) -> SymmetricTrees:
        """Return the same trees at the rates of these representatives, without trees that are not among these."""
        rate = {tree.hops: tree.rate for tree in representatives}
        positions = [i for i, tree in enumerate(self.representatives) if tree.hops in rate]
        rerated = tuple(replace(self.representatives[i], rate=rate[self.representatives[i].hops]) for i in positions)
        return replace(self, representatives=rerated, elements=tuple(self.elements[i] for i in positions))

    def to_schedule(self, collective: Collective) -> Schedule:
        """Return a broadcast along these trees, without branches that lead to no member. O(n log n) in rows."""
        if not self.representatives:
            return spread_trees(collective, trees=())
        exact_shares = [
            tree.rate / len(elements) / self.rate
            for tree, elements in zip(self.representatives, self.elements, strict=True)
        ]
        shares, denominator = _common_denominator(exact_shares)
        if denominator >= MAX_DENOMINATOR:
            raise Unsupported(
                "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
            )
        # every image of every tree carries a chunk of its own
        ends, rows, count = frozenset(collective.members), [], 0
        paths: dict[Path, int] = {}
        for tree, elements in zip(self.representatives, self.elements, strict=True):
            pruned = replace(tree, hops=tuple(leading_to(dict(tree.hops), tree.root, ends)))
            rows.append(_image_rows(self.group, elements, count + np.arange(len(elements)), pruned, paths))
            count += len(elements)
        chunk_share = np.repeat(shares, [len(elements) for elements in self.elements])
        chunks = Chunks(np.zeros(count, np.int32), np.cumsum(chunk_share) - chunk_share, chunk_share, denominator)
        return _images_to_schedule(collective, chunks, rows, self.topology, self.group, list(paths))


def _distinct_images(topology: Topology, group: Symmetries, tree: SpanningTree) -> dict[bytes, int]:
    """Return the distinct images of a tree, each as a key of bytes (parents and links by rank), and a symmetry for
    each.

    The symmetry is the first that gives this image.
    """
    longest = max(len(hop.path) for _, hop in tree.hops)
    # a row per hop: rank, parent, then the links of the path, padded by -1
    hops = np.array([(rank, hop.parent, *hop.path, *[-1] * (longest - len(hop.path))) for rank, hop in tree.hops])
    image = np.full((len(group), topology.ranks, 1 + longest), -1, np.int32)
    # group[:, x]: the image of x by every symmetry
    element, rank = np.arange(len(group))[:, None], group[:, hops[:, 0]]
    image[element, rank, 0] = group[:, hops[:, 1]]
    for column, link in enumerate(hops.T[2:], 1):
        image[element, rank, column] = np.where(link < 0, -1, group[:, topology.nodes + link] - topology.nodes)
    return {tree_image.tobytes(): number for number, tree_image in reversed(list(enumerate(image)))}


def image_trees(topology: Topology, group: Symmetries, trees: Sequence[SpanningTree]) -> tuple[SpanningTree, ...]:
    """Return every image of these trees, sorted by root. O(hops of all trees)."""
    out = []
    for element in group:
        node, link = element[: topology.nodes].tolist(), (element[topology.nodes :] - topology.nodes).tolist()
        paths: dict[tuple[int, ...], tuple[int, ...]] = {}  # a path -> its image, which many hops share
        for tree in trees:
            hops = []
            for rank, hop in tree.hops:
                path = paths.get(hop.path)
                if path is None:
                    path = paths[hop.path] = tuple([link[x] for x in hop.path])
                hops.append((node[rank], Hop(node[hop.parent], path, hop.depth)))
            hops.sort(key=itemgetter(0))
            out.append(SpanningTree(node[tree.root], tree.rate, tuple(hops)))
    return tuple(sorted(out, key=lambda tree: tree.root))


def spread_images(collective: Collective, forest: Forest) -> Schedule:
    """Return the schedule that `spread_trees` makes of all trees, computed in NumPy columns. O(n log n) in rows.

    Every root must have exactly one block, which all members want.
    """
    group, ranks = forest.group, forest.topology.ranks
    block_of = np.full(ranks, -1, np.int64)  # by root
    block_of[collective.relation.pre_rank] = collective.relation.pre_block
    # chunks are numbered block by block: a block has one per tree of its root
    trees_of_block = np.zeros(collective.blocks, np.int64)  # trees of every block
    for tree in forest.representatives:
        trees_of_block[block_of[group[:, tree.root]]] += 1
    first_chunk = np.cumsum(trees_of_block) - trees_of_block  # first chunk of every block
    total = {
        root: sum((tree.rate for tree in trees), Fraction(0))
        for root, trees in trees_by_root(forest.representatives).items()
    }
    shares, denominator = _common_denominator([tree.rate / total[tree.root] for tree in forest.representatives])
    # chunks and rows of each tree and all its images at once
    share, rows = np.zeros(int(trees_of_block.sum()), np.int64), []
    paths: dict[Path, int] = {}
    numbered_chunks: Counter[int] = Counter()  # by root: chunks numbered so far
    for tree, tree_share in zip(forest.representatives, shares, strict=True):
        chunk = first_chunk[block_of[group[:, tree.root]]] + numbered_chunks[tree.root]
        numbered_chunks[tree.root] += 1
        share[chunk] = tree_share
        rows.append(_image_rows(group, np.arange(len(group)), chunk, tree, paths))
    block = np.repeat(np.arange(len(trees_of_block)), trees_of_block)
    offset = np.cumsum(share) - share
    chunks = Chunks(as_int32(block), offset - offset[first_chunk[block]], share, denominator)
    return _images_to_schedule(collective, chunks, rows, forest.topology, group, list(paths))


class _ImageRows(NamedTuple):
    """The rows of all images of a tree, as columns."""

    step: Longs
    chunk: Longs
    src: Longs
    dst: Longs
    element: Longs  # the symmetry (row of the group) that gives the image
    path: Longs  # the number of the path of the original tree's hop


def _images_to_schedule(
    collective: Collective, chunks: Chunks, rows: Sequence[_ImageRows], topology: Topology, group: Symmetries,
    paths: Sequence[Path],
) -> Schedule:  # fmt: skip
    """Return the schedule with these chunks and the rows that `_image_rows` returned for every tree.

    `paths`: the distinct paths of the representatives, to which the rows refer by number.
    """
    step, chunk, src, dst, element, path = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = order_of(chunk * topology.ranks + dst, len(chunks) * topology.ranks)
    routes, route = _image_routes(topology, group, paths, (element * len(paths) + path)[order])
    step, chunk, src, dst = (freeze(as_int32(column[order])) for column in (step, chunk, src, dst))
    return Schedule(
        collective, chunks, step, chunk, src, dst, freeze(np.full(len(order), COPY, np.uint8)),
        route=freeze(as_int32(route)),
        routes=routes,
    )  # fmt: skip


def _common_denominator(shares: Collection[Fraction]) -> tuple[list[int], int]:
    """Return the shares as integers over one denominator."""
    denominator = math.lcm(*(share.denominator for share in shares))
    return [share.numerator * (denominator // share.denominator) for share in shares], denominator


def _image_rows(
    group: Symmetries, elements: Longs, chunk: Longs, tree: SpanningTree, paths: dict[Path, int]
) -> _ImageRows:
    """Return the rows of all hops of a tree's images, image by image.

    `elements`: a symmetry per image. `chunk`: the chunk that each image carries. The path of a row is the number in
    `paths` of the original hop's path; paths not yet in `paths` are added.
    """
    hops = [(rank, hop.parent, hop.depth - 1, paths.setdefault(hop.path, len(paths))) for rank, hop in tree.hops]
    rank, parent, step, path = np.array(hops, np.int64).T
    count = len(elements)
    src, dst = group[np.ix_(elements, parent)].ravel(), group[np.ix_(elements, rank)].ravel()
    image = np.repeat(np.arange(count), len(hops))
    return _ImageRows(np.tile(step, count), chunk[image], src, dst, elements[image], np.tile(path, count))


def _image_routes(
    topology: Topology, group: Symmetries, paths: Sequence[Path], row_path: Longs
) -> tuple[Routes, Longs]:
    """Return the distinct images of paths in order of their first row, and for each row the number of its image.

    `row_path`: per row (number of its symmetry) * len(paths) + (number of its path).
    """
    nodes, links = topology.nodes, topology.links
    longest = max(map(len, paths))
    # the links of every image of every path, as a row; -1 beyond the end
    padded = np.array([[*path, *[-1] * (longest - len(path))] for path in paths])
    image = np.full((len(group), links + 1), -1, np.int64)  # the last column is the image of -1
    image[:, :links] = group[:, nodes : nodes + links] - nodes
    links_of_image = image[:, padded].reshape(-1, longest)
    # number the distinct rows, then renumber them by their first use
    key, bound = pack_columns(*((column + 1, links + 1) for column in links_of_image.T))  # + 1: -1 becomes 0
    distinct, image_route = unique_inverse(key, bound)
    row_route = image_route[row_path]
    first = np.full(len(distinct), len(row_path), np.int64)
    np.minimum.at(first, row_route, np.arange(len(row_path)))
    order = np.argsort(first)
    new_number = np.empty(len(distinct), np.int64)
    new_number[order] = np.arange(len(distinct))
    # one row of `links_of_image` for each distinct route
    representative = np.empty(len(distinct), np.int64)
    representative[image_route] = np.arange(len(image_route))
    links_of_route = links_of_image[representative[order]]
    is_link = links_of_route >= 0
    routes = Routes(np.cumsum([0, *is_link.sum(axis=1)], dtype=np.int64), as_int32(links_of_route[is_link]))
    return routes, new_number[row_route]
