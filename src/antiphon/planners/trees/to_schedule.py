"""From packed trees to schedules: every tree carries its share of the data.

Exact packings may have shares with denominators of many digits, but a schedule needs chunks of equal units. So
`rounded_trees` first puts the shares over one small denominator k, then rows are made of the trees:

    `spread_trees`                          broadcast or allgather
    `reduce_and_spread`                     allreduce: up to a root and down again
    `spread_images`, `Mirrored.to_schedule` the same for trees known only up to symmetry, computed in columns

Rounding: the shares of each root's trees become integers that sum to k, by largest remainders. Among denominators up to
the limit, those nearest to the exact shares are compared by the loads of links and shared limits; with few trees, units
are then moved off the fullest links. The loss of rate is computed exactly and reported.

Example: rates 1/3, 1/3, 1/3 need k = 3, nothing lost. Rates 0.501 and 0.499 become 1/2 and 1/2 with k = 2: the second
tree's links are loaded by 0.5 / 0.499, so 0.2 % of the rate is lost.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, dense, narrow, order_of, own, packed
from antiphon.core.portable import dot
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, REDUCE, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.orbits import Table, rows_of
from antiphon.planners.shared.routing import Hop, Path, hung_from
from antiphon.planners.shared.rows import Row, schedule_of

Leg = tuple[int, int, Path, int]
MOST = 1024
MOST_LOSS = Fraction(1, 200)  # without the option, double the denominator until no more than this is lost
HIGHEST = 2**20
TRIED = 64  # denominators whose loads are computed
EVENED = 8  # best ones that are improved, with few trees
MOST_PARTS, MOST_CELLS, MOST_MOVES = 256, 2**18, 100
BETTER = 1e-9  # relative time that a larger denominator must save
Item = TypeVar("Item", bound="Rated")


@dataclass(frozen=True)
class Tree:
    """Data flow from the root down, at `rate` bytes per second.

    `hops`: every rank but the root and how it is reached, by rank, relaying ranks included. If the tree is also used
    upwards (allreduce), every hop names its links back.
    """

    root: int
    rate: Fraction
    hops: tuple[tuple[int, Hop], ...]

    @property
    def depth(self) -> int:
        return max((hop.depth for _, hop in self.hops), default=0)


def spread_trees(collective: Collective, trees: Iterable[Tree]) -> Schedule:
    """Send every block from its source along that rank's trees to all ranks that need it. O(rows).

    Branches that lead to no such rank are pruned, so this serves a scatter, too.
    """
    relation = collective.relation
    source = dict(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    receivers: dict[int, set[int]] = defaultdict(set)
    for block, rank in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        receivers[block].add(rank)
    by_root = trees_by_root(trees)
    pruned: dict[tuple[int, frozenset[int]], list[list[tuple[int, Hop]]]] = {}
    shares: list[tuple[int, Fraction]] = []
    rows: list[Row] = []
    for block in range(collective.blocks):
        root, ends = source[block], frozenset(receivers[block])
        block_trees = by_root.get(root, []) if ends - {root} else []
        if (root, ends) not in pruned:
            pruned[root, ends] = [leading_to(dict(tree.hops), root, ends) for tree in block_trees]
        total = sum((tree.rate for tree in block_trees), Fraction(0))
        for tree, hops in zip(block_trees, pruned[root, ends], strict=True):
            rows += [(hop.depth - 1, len(shares), hop.parent, rank, COPY, hop.path) for rank, hop in hops]
            shares.append((block, tree.rate / total))
        if not block_trees:
            shares.append((block, Fraction(1)))
    return schedule_of(collective, shares, rows)


@dataclass(frozen=True)
class Pair:
    """Part of an allreduce: to the root along `up` and back along `down`.

    A leg of `up` is (rank, parent, links from the rank to its parent, depth), one of `down` the same with the links
    from the parent.
    """

    rate: Fraction
    up: tuple[Leg, ...]
    down: tuple[Leg, ...]

    @staticmethod
    def of_tree(tree: Tree) -> Pair:
        """Make a pair from an undirected tree whose hops have links back, hung from its middle."""
        hops = from_the_middle(tree).items()
        up = tuple((rank, hop.parent, hop.back, hop.depth) for rank, hop in hops)
        return Pair(tree.rate, up, tuple((rank, hop.parent, hop.path, hop.depth) for rank, hop in hops))

    @staticmethod
    def of_two_trees(rate: Fraction, into: Tree, out: Tree) -> Pair:
        """Pair two trees with one root; `into` is a tree out of the root on the reversed machine."""
        up = tuple((rank, hop.parent, hop.path[::-1], hop.depth) for rank, hop in into.hops)
        return Pair(rate, up, tuple((rank, hop.parent, hop.path, hop.depth) for rank, hop in out.hops))


def reduce_and_spread(collective: Collective, pairs: Sequence[Pair]) -> Schedule:
    """Make an allreduce: reduce every share up to a root, then copy it down again. O(rows)."""
    total = sum((pair.rate for pair in pairs), Fraction(0))
    rows: list[Row] = []
    for chunk, pair in enumerate(pairs):
        # a rank sends up as soon as its whole subtree has; the root starts down when all arrived
        deepest = max(depth for *_, depth in pair.up)
        rows += [(deepest - depth, chunk, rank, parent, REDUCE, path) for rank, parent, path, depth in pair.up]
        rows += [(deepest + depth - 1, chunk, parent, rank, COPY, path) for rank, parent, path, depth in pair.down]
    return schedule_of(collective, [(0, pair.rate / total) for pair in pairs], rows)


class Rated(Protocol):
    @property
    def rate(self) -> Fraction: ...


def refine_shares(lists: Sequence[Sequence[Item]]) -> list[tuple[Fraction, tuple[Item, ...]]]:
    """Align all lists by the common refinement of their rates, taken as shares of 1.

    At most as many portions as items, minus one for every list but the first.
    """
    ends = []
    for items in lists:
        total = sum((item.rate for item in items), Fraction(0))
        ends.append(list(accumulate(item.rate / total for item in items)))
    # sweep over [0, 1]: a portion ends where an item of any list ends
    refinement, at, position = [], [0] * len(lists), Fraction(0)
    while position < 1:
        next_end = min(list_ends[i] for list_ends, i in zip(ends, at, strict=True))
        refinement.append((next_end - position, tuple(items[i] for items, i in zip(lists, at, strict=True))))
        at = [i + (list_ends[i] == next_end) for list_ends, i in zip(ends, at, strict=True)]
        position = next_end
    return refinement


def from_the_middle(tree: Tree) -> dict[int, Hop]:
    """Return the same undirected tree, hung from the middle of a longest path: least deep. O(ranks)."""
    first = hung_from(tree.hops, tree.root)
    far_end = max(first, key=lambda rank: (first[rank].depth, -rank), default=tree.root)
    longest = hung_from(tree.hops, far_end)
    other_end = max(longest, key=lambda rank: (longest[rank].depth, -rank), default=far_end)
    longest_path = [other_end]
    while longest_path[-1] != far_end:
        longest_path.append(longest[longest_path[-1]].parent)
    return hung_from(tree.hops, longest_path[len(longest_path) // 2])


def trees_by_root(trees: Iterable[Tree]) -> dict[int, list[Tree]]:
    by_root: dict[int, list[Tree]] = defaultdict(list)
    for tree in trees:
        by_root[tree.root].append(tree)
    return by_root


def leading_to(hops: dict[int, Hop], root: int, ends: frozenset[int]) -> list[tuple[int, Hop]]:
    """Return the hops on the paths from the root to these ends."""
    reached = {root}
    for end in ends:
        rank = end
        while rank not in reached:
            reached.add(rank)
            rank = hops[rank].parent
    return [(rank, hops[rank]) for rank in sorted(reached - {root})]


@dataclass(frozen=True, eq=False)
class Forest:
    """`firsts`: trees of one root per orbit of these symmetries; all others are their images."""

    topology: Topology
    group: Table
    firsts: tuple[Tree, ...]

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """Every tree of every root."""
        return image_trees(self.topology, self.group, self.firsts)


@dataclass(frozen=True, eq=False)
class Mirrored:
    """Trees out of one root up to symmetry: each of `firsts` has the total rate of all its images.

    `elements`: per tree the symmetries that give its distinct images; they fix the root, and images have equal rates.
    """

    topology: Topology
    group: Table
    firsts: tuple[Tree, ...]
    elements: tuple[Longs, ...]

    @staticmethod
    def of_trees(topology: Topology, trees: Iterable[Tree], group: Table | None = None) -> Mirrored:
        """Group trees that are images of each other. `group` None: the identity only."""
        identity = np.arange(topology.nodes + topology.links + len(topology.limits))[None]
        symmetries = identity if group is None else group
        orbits: dict[bytes, tuple[Tree, Longs]] = {}
        for tree in trees:
            image_elements = _distinct_images(topology, symmetries, tree)
            key = min(image_elements)
            rate = tree.rate + (orbits[key][0].rate if key in orbits else 0)
            elements = np.array(sorted(image_elements.values())) if key not in orbits else orbits[key][1]
            orbits[key] = replace(orbits[key][0] if key in orbits else tree, rate=rate), elements
        firsts, orbit_elements = zip(*orbits.values(), strict=True) if orbits else ((), ())
        return Mirrored(topology, symmetries, firsts, orbit_elements)

    def __len__(self) -> int:
        return sum(map(len, self.elements))

    @property
    def rate(self) -> Fraction:
        return sum((tree.rate for tree in self.firsts), Fraction(0))

    @property
    def depth(self) -> int:
        return max((tree.depth for tree in self.firsts), default=0)

    @property
    def trees(self) -> tuple[Tree, ...]:
        """All trees, each at its own rate."""
        return tuple(
            replace(image, rate=tree.rate / len(elements))
            for tree, elements in zip(self.firsts, self.elements, strict=True)
            for image in image_trees(self.topology, self.group[elements], [tree])
        )

    def with_rates(self, firsts: Iterable[Tree]) -> Mirrored:
        """Return the same trees at other rates, without those missing from `firsts`."""
        rate = {tree.hops: tree.rate for tree in firsts}
        places = [at for at, tree in enumerate(self.firsts) if tree.hops in rate]
        rerated = tuple(replace(self.firsts[at], rate=rate[self.firsts[at].hops]) for at in places)
        return replace(self, firsts=rerated, elements=tuple(self.elements[at] for at in places))

    def to_schedule(self, collective: Collective) -> Schedule:
        """Return a broadcast along these trees, without branches that lead to no member. O(n log n) in rows."""
        if not self.firsts:
            return spread_trees(collective, ())
        exact = [tree.rate / len(at) / self.rate for tree, at in zip(self.firsts, self.elements, strict=True)]
        shares, denominator = _common_denominator(exact)
        if denominator >= MAX_DENOMINATOR:
            raise Unsupported(
                "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
            )
        ends, rows, count = frozenset(collective.members), [], 0
        paths: dict[Path, int] = {}
        for tree, elements in zip(self.firsts, self.elements, strict=True):
            pruned = replace(tree, hops=tuple(leading_to(dict(tree.hops), tree.root, ends)))
            rows.append(_image_rows(self.group, elements, count + np.arange(len(elements)), pruned, paths))
            count += len(elements)
        chunk_share = np.repeat(shares, [len(elements) for elements in self.elements])
        table = Chunks(np.zeros(count, np.int32), np.cumsum(chunk_share) - chunk_share, chunk_share, denominator)
        return _images_to_schedule(collective, table, rows, self.topology, self.group, list(paths))


def _distinct_images(topology: Topology, group: Table, tree: Tree) -> dict[bytes, int]:
    """Return the distinct images of a tree (encoded as each rank's parent and links), with the first symmetry that
    gives it.
    """
    longest = max(len(hop.path) for _, hop in tree.hops)
    hops = np.array([(rank, hop.parent, *hop.path, *[-1] * (longest - len(hop.path))) for rank, hop in tree.hops])
    image = np.full((len(group), topology.ranks, 1 + longest), -1, np.int32)
    every, at = np.arange(len(group))[:, None], group[:, hops[:, 0]]
    image[every, at, 0] = group[:, hops[:, 1]]
    for place, link in enumerate(hops.T[2:], 1):
        image[every, at, place] = np.where(link < 0, -1, group[:, topology.nodes + link] - topology.nodes)
    return {tree_image.tobytes(): number for number, tree_image in reversed(list(enumerate(image)))}


def image_trees(topology: Topology, group: Table, trees: Sequence[Tree]) -> tuple[Tree, ...]:
    """Return every image of these trees, sorted by root. O(hops of all trees)."""
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
            hops.sort(key=itemgetter(0))
            out.append(Tree(node[tree.root], tree.rate, tuple(hops)))
    return tuple(sorted(out, key=lambda tree: tree.root))


def spread_images(collective: Collective, forest: Forest) -> Schedule:
    """Return what `spread_trees` makes of all trees, computed in columns. Every root has one block, needed everywhere.

    O(n log n) in rows.
    """
    group, ranks = forest.group, forest.topology.ranks
    block_of = np.full(ranks, -1, np.int64)  # by root
    block_of[collective.relation.pre_rank] = collective.relation.pre_block
    trees_of_block = np.zeros(collective.blocks, np.int64)  # trees of every block
    for tree in forest.firsts:
        trees_of_block[block_of[group[:, tree.root]]] += 1
    base = np.cumsum(trees_of_block) - trees_of_block
    total = {
        root: sum((tree.rate for tree in trees), Fraction(0)) for root, trees in trees_by_root(forest.firsts).items()
    }
    shares, denominator = _common_denominator([tree.rate / total[tree.root] for tree in forest.firsts])
    share, rows = np.zeros(int(trees_of_block.sum()), np.int64), []
    paths: dict[Path, int] = {}
    begun: Counter[int] = Counter()
    for tree, tree_share in zip(forest.firsts, shares, strict=True):
        chunk = base[block_of[group[:, tree.root]]] + begun[tree.root]
        begun[tree.root] += 1
        share[chunk] = tree_share
        rows.append(_image_rows(group, np.arange(len(group)), chunk, tree, paths))
    block = np.repeat(np.arange(len(trees_of_block)), trees_of_block)
    before = np.cumsum(share) - share
    table = Chunks(narrow(block), before - before[base[block]], share, denominator)
    return _images_to_schedule(collective, table, rows, forest.topology, group, list(paths))


def _images_to_schedule(
    collective: Collective, table: Chunks, rows: Sequence[tuple[Longs, ...]], topology: Topology, group: Table,
    paths: Sequence[Path],
) -> Schedule:  # fmt: skip
    """Build the schedule from chunks and the rows of every tree's images (as `_image_rows` returns them)."""
    step, chunk, src, dst, element, path = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = order_of(chunk * topology.ranks + dst, len(table) * topology.ranks)
    routes, route = _image_routes(topology, group, paths, (element * len(paths) + path)[order])
    step, chunk, src, dst = (own(narrow(column[order])) for column in (step, chunk, src, dst))
    return Schedule(
        collective, table, step, chunk, src, dst, own(np.full(len(order), COPY, np.uint8)), route=own(narrow(route)),
        routes=routes,
    )  # fmt: skip


def _common_denominator(shares: Collection[Fraction]) -> tuple[list[int], int]:
    """Return the shares as integers over one denominator."""
    common = math.lcm(*(share.denominator for share in shares))
    return [share.numerator * (common // share.denominator) for share in shares], common


def _image_rows(group: Table, elements: Longs, chunk: Longs, tree: Tree, paths: dict[Path, int]) -> tuple[Longs, ...]:
    """Return step, chunk, ends, symmetry and path of all hops of a tree's images, image by image."""
    hops = [(rank, hop.parent, hop.depth - 1, paths.setdefault(hop.path, len(paths))) for rank, hop in tree.hops]
    rank, parent, step, path = np.array(hops, np.int64).T
    count = len(elements)
    src, dst = group[np.ix_(elements, parent)].ravel(), group[np.ix_(elements, rank)].ravel()
    every = np.repeat(np.arange(count), len(hops))
    return np.tile(step, count), chunk[every], src, dst, elements[every], np.tile(path, count)


def _image_routes(topology: Topology, group: Table, paths: Sequence[Path], row_path: Longs) -> tuple[Routes, Longs]:
    """Return the distinct images of paths in order of their first row, and the number of each row's image.

    `row_path`: per row its symmetry * len(paths) + path.
    """
    nodes, links = topology.nodes, topology.links
    longest = max(map(len, paths))
    padded = np.array([[*path, *[-1] * (longest - len(path))] for path in paths])
    image = np.full((len(group), links + 1), -1, np.int64)
    image[:, :links] = group[:, nodes : nodes + links] - nodes
    table = image[:, padded].reshape(-1, longest)
    key, bound = packed(*((column + 1, links + 1) for column in table.T))
    distinct, image_route = dense(key, bound)
    row_route = image_route[row_path]
    first = np.full(len(distinct), len(row_path), np.int64)
    np.minimum.at(first, row_route, np.arange(len(row_path)))
    order = np.argsort(first)
    place = np.empty(len(distinct), np.int64)
    place[order] = np.arange(len(distinct))
    representative = np.empty(len(distinct), np.int64)
    representative[image_route] = np.arange(len(image_route))
    links_of_route = table[representative[order]]
    inside = links_of_route >= 0
    return Routes(np.cumsum([0, *inside.sum(axis=1)], dtype=np.int64), narrow(links_of_route[inside])), place[row_route]


@dataclass(frozen=True)
class Part:
    """A tree's portion of its group's data: the `share` that goes along `links`; `weight`: the group's data relative
    to others.
    """

    group: Hashable
    share: Fraction
    weight: int
    links: tuple[int, ...]


@dataclass(frozen=True)
class Rounding:
    """Rounded shares: `counts` over `denominator`; `rate`: bytes per second of weight 1 that fit all links; `loss`:
    lost rate.
    """

    counts: tuple[int, ...]
    denominator: int
    rate: Fraction
    loss: Fraction

    def describe(self) -> str:
        lost = f"{float(self.loss):.2g} of the rate lost" if self.loss else "nothing lost"
        return f"shares rounded to 1/{self.denominator}, {lost}"


def denominator_of(option: object) -> int | None:
    """Check the option `denominator`."""
    if option is not None and (isinstance(option, bool) or not isinstance(option, int) or not 1 <= option <= HIGHEST):
        raise Invalid(f"option denominator: expected a whole number from 1 to {HIGHEST}, got {quote(option)}")
    return option


@dataclass(frozen=True, eq=False)
class Room:
    """What links and shared limits can carry, in bytes per second: `of[link]` are the places in `capacity` that a link
    loads.

    Under symmetries a place is an orbit, with the capacity available to a tree while all its images use it.
    """

    capacity: tuple[Fraction, ...]
    of: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_topology(topology: Topology, group: Table | None = None) -> Room:
        every = [topology.bandwidth(link) for link in range(topology.links)]
        every += [limit.bandwidth for limit in topology.limits]
        rows = np.arange(len(every)) if group is None else rows_of(topology, group)
        size, first = np.bincount(rows), np.unique(rows, return_index=True)[1]
        alike = 1 if group is None else len(group)
        capacity = [every[at] * n / alike for at, n in zip(first.tolist(), size.tolist(), strict=True)]
        of = [[row] for row in rows[: topology.links].tolist()]
        for limit, row in zip(topology.limits, rows[topology.links :].tolist(), strict=True):
            for link in limit.links:
                of[link].append(row)
        return Room(tuple(capacity), tuple(map(tuple, of)))


def round_shares(portions: Sequence[Part], room: Room, option: int | None = None) -> Rounding | None:
    """Round the shares; None where the exact ones have a denominator within the limit.

    `option`: maximum denominator; default 1024, or more where that loses over MOST_LOSS. O(TRIED * hops), twice that
    for each doubling.
    """
    max_denominator = option or MOST
    exact = math.lcm(*{portion.share.denominator for portion in portions})
    if exact <= max_denominator:
        return None
    loads = _RoundingLoads(portions, room)
    best = loads.seconds_per_byte(
        [portion.share.numerator * (exact // portion.share.denominator) for portion in portions], exact
    )
    while True:
        counts, denominator = loads.find_nearest(max_denominator)
        time = loads.seconds_per_byte(counts, denominator)
        loss = 1 - best / time
        if option is not None or loss <= MOST_LOSS or max_denominator >= HIGHEST:
            return Rounding(tuple(counts), denominator, 1 / time, loss)
        max_denominator *= 2


class _RoundingLoads:
    """The loads that portions put on links and shared limits, to compare denominators."""

    def __init__(self, portions: Sequence[Part], room: Room) -> None:
        from scipy.sparse import csr_array

        self._parts, self._room = portions, room
        self._capacity = room.capacity
        row, column, value = [], [], []
        for number, portion in enumerate(portions):
            for resource in (resource for link in portion.links for resource in room.of[link]):
                row.append(resource)
                column.append(number)
                value.append(portion.weight / float(self._capacity[resource]))
        self._matrix = csr_array((value, (row, column)), shape=(len(self._capacity), len(portions)))
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, portion in enumerate(portions):
            groups[portion.group].append(number)
        self._exact = np.array([float(portion.share) for portion in portions])
        self._group = np.zeros(len(portions), np.int64)
        for number, members in enumerate(groups.values()):
            self._group[members] = number
        # groups with equal shares round alike, so each pattern of shares is rounded once
        alike: dict[tuple[Fraction, ...], list[list[int]]] = defaultdict(list)
        for members in groups.values():
            alike[tuple(portions[number].share for number in members)].append(members)
        self._alike = [
            (np.array([float(share) for share in shares]), np.array(members)) for shares, members in alike.items()
        ]

    def seconds_per_byte(self, counts: Sequence[int], denominator: int) -> Fraction:
        """Return the least seconds per byte of weight 1, exactly."""
        crossed: dict[int, int] = defaultdict(int)
        for portion, count in zip(self._parts, counts, strict=True):
            amount = count * portion.weight
            for link in portion.links:
                crossed[link] += amount
        load: dict[int, int] = defaultdict(int)
        for link, amount in crossed.items():
            for resource in self._room.of[link]:
                load[resource] += amount
        return max(amount / (denominator * self._capacity[resource]) for resource, amount in load.items())

    def find_nearest(self, max_denominator: int) -> tuple[list[int], int]:
        """Return counts and denominator up to the maximum with the least loss (in floats); ties go to the smallest
        denominator.
        """
        by_distance = [
            (self._rounding_distance(denominator), denominator) for denominator in range(1, max_denominator + 1)
        ]
        attempts = []
        for _, denominator in sorted(by_distance)[:TRIED]:
            counts = self._round_all(denominator)
            attempts.append((float((self._matrix @ counts).max()) / denominator, denominator, counts))
        attempts.sort(key=lambda attempt: attempt[:2])
        if len(self._parts) <= MOST_PARTS and len(self._parts) * len(self._capacity) <= MOST_CELLS:
            attempts = [(*self._even_out(counts, denominator), counts) for _, denominator, counts in attempts[:EVENED]]
        least_time = min(time for time, *_ in attempts)
        near_best = [attempt for attempt in attempts if attempt[0] <= least_time * (1 + BETTER)]
        _, denominator, counts = min(near_best, key=lambda attempt: attempt[1])
        return [int(count) for count in counts], denominator

    def _even_out(self, counts: Longs, denominator: int) -> tuple[float, int]:
        """Improve `counts` in place: move units off the fullest link while that lowers it, or all excess loads.
        Return time and denominator.
        """
        use = self._matrix.toarray() / denominator
        load = dot(use, counts)
        target = (self._matrix @ self._exact).max()

        def worth(loads: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            return loads.max(axis=0), np.square(np.maximum(loads - target, 0)).sum(axis=0)

        for _ in range(MOST_MOVES):
            now = worth(load[:, None])
            best: tuple[float, float, int, int] = (float(now[0][0]), float(now[1][0]) * (1 - BETTER), -1, -1)
            for giver in np.flatnonzero((use[np.argmax(load)] > 0) & (counts > 0)).tolist():
                takers = np.flatnonzero(self._group == self._group[giver])
                full, over = worth((load - use[:, giver])[:, None] + use[:, takers])
                at = int(np.lexsort((over, full))[0])
                best = min(best, (float(full[at]), float(over[at]), giver, int(takers[at])))
            if best[2] < 0:
                break
            counts[best[2]] -= 1
            counts[best[3]] += 1
            load = dot(use, counts)
        return float(load.max()), denominator

    def _rounding_distance(self, denominator: int) -> float:
        """Return the distance of the rounded shares from the exact ones, summed over all portions."""
        return sum(
            float(np.abs(_largest_remainders(shares, denominator) / denominator - shares).sum()) * len(members)
            for shares, members in self._alike
        )

    def _round_all(self, denominator: int) -> Longs:
        counts = np.zeros(len(self._parts), np.int64)
        for shares, members in self._alike:
            counts[members] = _largest_remainders(shares, denominator)
        return counts


def _largest_remainders(shares: NDArray[np.float64], denominator: int) -> Longs:
    """Return integers near shares * denominator that sum to the denominator."""
    counts = np.floor(shares * denominator).astype(np.int64)
    order = np.argsort(counts - shares * denominator, kind="stable")
    counts[order[: denominator - int(counts.sum())]] += 1
    return counts


def parts_of(trees: Sequence[Tree], weight: Mapping[int, int], ends: Collection[int], side: str = "") -> list[Part]:
    """Return the portions of these trees: each root's trees carry its weight, without weights all share 1.

    Hops that lead to none of the `ends` are not used.
    """
    receivers = frozenset(ends)
    total: dict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        total[tree.root if weight else 0] += tree.rate
    portions = []
    for tree in trees:
        group = tree.root if weight else 0
        hops = leading_to(dict(tree.hops), tree.root, receivers)
        links = tuple(link for _, hop in hops for link in (*hop.path, *hop.back))
        portions.append(Part((side, group), tree.rate / total[group], weight.get(group, 1), links))
    return portions


def with_shares(trees: Sequence[Tree], rounding: Rounding | None, first: int = 0) -> tuple[Tree, ...]:
    """Return the trees with their counts (from `first` on) as rates, that is, shares per root; trees with 0 are
    dropped.
    """
    if rounding is None:
        return tuple(trees)
    counts = rounding.counts[first : first + len(trees)]
    return tuple(replace(tree, rate=Fraction(count)) for tree, count in zip(trees, counts, strict=True) if count)


def rounded_trees(
    trees: Sequence[Tree], weight: Mapping[int, int], ends: Collection[int], topology: Topology,
    max_denominator: int | None, group: Table | None = None,
) -> tuple[tuple[Tree, ...], Rounding | None]:  # fmt: skip
    """Round one set of trees and return it at rates that fit all links, with the rounding.

    `weight`: of each root (empty: all share one). `group`: the trees also represent their images by these symmetries.
    """
    portions = parts_of(trees, weight, ends)
    rounding = round_shares(portions, Room.of_topology(topology, group), max_denominator)
    if rounding is None:
        return tuple(trees), None
    unit = rounding.rate / rounding.denominator
    rates = [n * portion.weight * unit for n, portion in zip(rounding.counts, portions, strict=True)]
    return tuple(replace(tree, rate=rate) for tree, rate in zip(trees, rates, strict=True) if rate), rounding
