"""Planning on symmetric machines: plan one source per orbit; all others are its images.

Take a subgroup of the machine's symmetries whose non-identity elements move every root (it acts freely on them). Each
element maps a packing (of trees, of paths) to another, and the mean of all images is as good, and symmetric: a root's
trees are images of those of its orbit's first root. So a linear program needs trees of one root per orbit, and one row
per orbit of links and shared limits; its basic optima then have few trees per root, too.

Example: allgather on a 16 x 16 torus has 256 roots. The translations act freely, so one root is planned, and the 1,024
directed links are 4 rows.

Finding a large free subgroup (`free_group`): start from a symmetry that moves all roots in cycles of equal length, then
extend by symmetries that commute with all chosen ones; the product is again a free group or is rejected. Commuting
symmetries are the automorphisms of the machine plus a link from each node to its image. Random elements come from
product replacement. With many roots random elements rarely work, so `find_turns` first tries rotations of boxes, or of
rows of a grid, as places suggest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.symmetry import automorphisms, canonical, link_map
from antiphon.core.topology import LinkType, Topology
from antiphon.planners.shared.groups import nested_groups

Table = NDArray[np.int64]
_TRIES = 1500  # random symmetries examined for the first element
_MORE = 200  # and for each further element
_MANY = 256  # roots beyond which symmetries suggested by places are tried first: random ones rarely succeed
MOST = 32  # canonical labellings per search for turns


def free_group(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], seed: int = 0) -> Table:
    """Return symmetries that keep demands and sinks and act freely on the roots; the identity first. The more the
    better.

    Each element maps nodes, then links, then limits: columns node, nodes + link, nodes + links + limit. O(tries * size)
    and a few runs of BLISS.
    """
    machine = replace(topology, types=tuple(LinkType("link", kind.bandwidth) for kind in topology.types))
    roots = np.array(sorted(r for r, d in demand.items() if d), np.int64)
    sink_set, ranks = set(sinks), topology.ranks
    roles: dict[tuple[int, bool], int] = {}
    colour = [roles.setdefault((demand.get(n, 0), n in sink_set), len(roles)) for n in range(ranks)]
    # ranks of equal role may be mapped to each other; switches have a color of their own
    colour += [len(roles)] * topology.switches
    best = np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
    # many roots: first try rotations that the places suggest, which cost only a few canonical labellings
    if len(roots) > _MANY:
        for element in _with_links(machine, find_turns(machine, colour, roots.tolist())):
            larger = _extend_group(best, element, roots, len(roots))
            best = best if larger is None else larger
        if len(best) == len(roots):
            return best
    all_of_them = _commuting_symmetries(machine, colour, [])
    max_order = _max_group_order(all_of_them, roots)
    for longest in (True, False):  # short cycles first leave more symmetries to commute with
        if len(best) < max_order:
            larger_group = _grow_group(machine, colour, all_of_them, roots, max_order, longest, seed)
            best = larger_group if len(larger_group) > len(best) else best
    return best


def _grow_group(
    machine: Topology,
    colour: list[int],
    generators: list[Table],
    roots: Table,
    max_order: int,
    longest: bool,
    seed: int,
) -> Table:
    """Extend a group step by step, each time by the commuting symmetry that makes it largest."""
    group = np.arange(machine.nodes + machine.links + len(machine.limits), dtype=np.int64)[None]
    chosen: list[Table] = []
    while len(group) < max_order:
        rng = np.random.default_rng(seed + len(chosen))
        best: tuple[Table, Table] | None = None
        for element in _random_symmetries(generators, rng, _MORE if chosen else _TRIES):
            power = element if chosen else _even_power(element, roots, longest)
            if power is None:
                continue
            larger = _extend_group(group, power, roots, max_order)
            if larger is not None and (best is None or len(larger) > len(best[0])):
                best = larger, power
                if len(larger) == max_order or not (longest or chosen):
                    break
        if best is None:
            break
        group = best[0]
        chosen.append(best[1])
        generators = _commuting_symmetries(machine, colour, chosen) if len(group) < max_order else []
    return group


def _commuting_symmetries(machine: Topology, colour: list[int], chosen: Sequence[Table]) -> list[Table]:
    """Return symmetries that commute with all of `chosen`: automorphisms of the machine plus a link from each node
    to its image.
    """
    nodes = machine.nodes
    marked = machine
    for number, element in enumerate(chosen):
        # an automorphism of the machine with these extra links preserves node > image, which means that it commutes
        moved = np.flatnonzero(element[:nodes] != np.arange(nodes))
        marked = replace(
            marked,
            link_src=np.append(marked.link_src, moved),
            link_dst=np.append(marked.link_dst, element[moved]),
            link_type=np.append(marked.link_type, np.full(len(moved), len(marked.types))),
            types=(*marked.types, LinkType(f"image{number}", machine.unit)),
        )
    return _with_links(machine, automorphisms(marked, colour))


def _with_links(machine: Topology, symmetries: Iterable[NDArray[Any]]) -> list[Table]:
    """Extend symmetries of nodes to links and limits."""
    nodes, links = machine.nodes, machine.links
    limits: dict[tuple[Fraction, frozenset[int]], list[int]] = {}
    for number, limit in enumerate(machine.limits):
        limits.setdefault((limit.bandwidth, frozenset(limit.links)), []).append(number)
    out = []
    for permutation in symmetries:
        mapped = link_map(machine, permutation).astype(np.int64)
        over = np.zeros(len(machine.limits), np.int64)
        # a limit's image is the limit on its links' images, of the same bandwidth
        for (bandwidth, those), numbers in limits.items():
            images = limits.get((bandwidth, frozenset(mapped[list(those)].tolist())))
            if images is None or len(images) != len(numbers):
                break  # the mapping of parallel links does not fit their limits
            over[numbers] = images
        else:
            out.append(np.concatenate([permutation.astype(np.int64), nodes + mapped, nodes + links + over]))
    return out


def _max_group_order(generators: Sequence[Table], roots: Table) -> int:
    """Return an upper bound on the order of a free group: the greatest common divisor of the sizes of the roots'
    orbits.
    """
    if not generators:
        return 1
    return math.gcd(*np.unique(_orbit_labels(generators)[roots], return_counts=True)[1].tolist())


def _orbit_labels(generators: Sequence[Table]) -> Table:
    """Return for each number the smallest in its orbit. [1, 2, 0, 3] and [0, 1, 2, 3] give [0, 0, 0, 3].

    Labels are propagated and doubled: a few rounds of O(size) per generator. (SciPy's connected components do the same,
    but importing SciPy delays jobs that wait for their plans.)
    """
    label = np.arange(len(generators[0]))
    while True:
        before = label
        for image in generators:
            label = np.minimum(label, label[image])
            label[image] = np.minimum(label[image], label)
        label = label[label]
        if np.array_equal(label, before):
            return label


def _random_symmetries(generators: Sequence[Table], rng: np.random.Generator, tries: int) -> Iterator[Table]:
    """Yield the generators, then random symmetries by product replacement."""
    if not generators:
        return
    yield from generators
    # product replacement (Celler et al. 1995): multiply random pairs of a pool; the products become nearly uniform
    pool = [*generators]
    while len(pool) < 8:
        pool.append(pool[len(pool) % len(generators)])
    total = pool[0]
    for trial in range(4 * len(pool) + tries):
        a, b = rng.integers(0, len(pool), 2).tolist()
        if a != b:
            pool[a] = pool[b][pool[a]]
            total = pool[a][total]
            if trial >= 4 * len(pool):
                yield total


def _even_power(element: Table, roots: Table, longest: bool) -> Table | None:
    """Return the power of the symmetry whose cycles of roots all have one length, as long (or as short) as possible."""
    lengths = set(_cycle_lengths(element, roots))
    common = math.gcd(*lengths)
    for length in range(common, 1, -1) if longest else range(2, common + 1):
        if common % length:
            continue
        # a cycle of length c becomes cycles of length c / gcd(c, times)
        times = math.lcm(*(c // length for c in lengths))
        if all(c // math.gcd(c, times) == length for c in lengths):
            return _permutation_power(element, times)
    return None


def _cycle_lengths(element: Table, roots: Table) -> list[int]:
    """Return the lengths of the cycles of the roots. Pointer doubling: each takes the minimum over twice as many steps.

    >>> sorted(_cycle_lengths(np.array([1, 2, 0, 4, 3, 5]), np.array([0, 1, 2, 3, 4])))
    [2, 3]
    """
    step = np.searchsorted(roots, element[roots])
    first_seen = np.arange(len(roots))
    for _ in range(len(roots).bit_length()):
        first_seen, step = np.minimum(first_seen, first_seen[step]), step[step]
    return np.unique(first_seen, return_counts=True)[1].tolist()


def _permutation_power(element: Table, times: int) -> Table:
    out = np.arange(len(element))
    while times:
        if times & 1:
            out = element[out]
        element, times = element[element], times // 2
    return out


def _extend_group(group: Table, element: Table, roots: Table, max_order: int) -> Table | None:
    """Return the group extended by a symmetry that commutes with it; None if that fixes a root or adds nothing."""
    members = {row.tobytes() for row in group}
    cosets, at = [group], element
    while at.tobytes() not in members:
        coset = group[:, at]
        # a free action: no element but the identity may fix a root
        if np.any(coset[:, roots] == roots) or len(group) * (len(cosets) + 1) > max_order:
            return None
        cosets.append(coset)
        at = element[at]
    return np.concatenate(cosets) if len(cosets) > 1 else None


def rows_of(topology: Topology, group: Table) -> NDArray[np.int64]:
    """Return the orbit of every link and limit."""
    first_image = group[:, topology.nodes :].min(axis=0)
    return np.unique(first_image, return_inverse=True)[1].astype(np.int64)


def find_turns(machine: Topology, colour: Sequence[int], roots: Sequence[int]) -> Iterator[Table]:
    """Yield node permutations that keep colors and rotate the roots, level by level of their places, the outermost
    first.

    Where a level cannot be rotated as a whole (cards of a box in pairs, say), it is divided into levels. O(levels *
    links log links): with all roots distinguished a canonical labelling is a refinement.
    """
    fans, seating = nested_groups(machine, roots)
    grid = np.array(seating).reshape(fans[::-1])
    labelled = _LabelledRoots(machine, colour)
    for axis in range(grid.ndim):
        yield from labelled.turn_axis(grid, axis)


class _LabelledRoots:
    """A machine whose roots are distinguished one by one."""

    def __init__(self, machine: Topology, colour: Sequence[int]) -> None:
        self.machine, self.colour = machine, colour
        self.left = MOST

    def turn_axis(self, grid: Table, axis: int) -> list[Table]:
        """Return the symmetries that rotate this axis, or the coarsest factors of its length that can all be
        rotated; [] if none.
        """
        count = grid.shape[axis]
        if count < 2:
            return []
        rotation = self.extend_to_symmetry(grid, np.roll(grid, -1, axis))
        if rotation is not None:
            return [rotation]
        for high in range(2, count):
            if count % high == 0:
                finer = grid.reshape(*grid.shape[:axis], high, count // high, *grid.shape[axis + 1 :])
                outer = self.turn_axis(finer, axis)
                inner = self.turn_axis(finer, axis + 1) if outer else []
                if inner:
                    return [*outer, *inner]
        return []

    def extend_to_symmetry(self, grid: Table, images: Table) -> Table | None:
        """Return the symmetry of the machine that maps `grid` to `images`, if there is one."""
        colour = np.array(self.colour)
        if not self.left or not np.array_equal(colour[grid], colour[images]):
            return None
        self.left -= 1
        (label, key), (image_label, other) = (self._canonical_label(ranks) for ranks in (grid, images))
        if key != other:
            return None
        # equal canonical forms: label maps grid's machine, back undoes the label of the images' machine
        back = np.empty(len(image_label), np.int64)
        back[image_label] = np.arange(len(image_label))
        symmetry: Table = back[label]
        return symmetry

    def _canonical_label(self, ranks: Table) -> tuple[NDArray[np.int32], str]:
        """Return the canonical labelling with these ranks numbered in this order."""
        colours = list(self.colour)
        top = max(colours) + 1
        for number, rank in enumerate(ranks.ravel().tolist()):
            colours[rank] = top + number
        return canonical(self.machine, colours)
