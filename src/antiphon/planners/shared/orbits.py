"""Find symmetries of a machine, so that planners need to plan only one root per orbit.

A symmetry is a permutation of the nodes, links and shared limits that keeps the machine the same. Input of
`free_group`: a machine, the demand of every root (its amount of data) and the sinks (ranks that receive). Output: a
group of symmetries that keep demands and sinks, as `Symmetries`, a row per symmetry. Each of them but the identity
moves every root: mathematicians say that the group acts freely on the roots. So the roots of an orbit are as many as
the symmetries, and each is the image of the first one by exactly one symmetry.

Why this helps: every symmetry takes a packing (of trees, or of paths) to another one that is as good, and so is the
mean of all images, which is symmetric. So there is an optimal packing in which each root's trees are images of those of
the first root of its orbit. A linear program then needs the trees of one root per orbit, and one row per orbit of
links or shared limits (`orbit_rows`).

Example: allgather on a 16 x 16 torus has 256 roots. The translations act freely, so one root is planned, and the 1,024
directed links are 4 rows.

How a large free group is found: start with a symmetry that moves all roots in cycles of equal length. Then extend the
group by symmetries that commute with all chosen ones, as long as no product keeps a root in place. Symmetries that
commute with s are the automorphisms of the machine with an extra link from each node to its image by s. Random
symmetries come from product replacement. With many roots random ones rarely work, so `find_rotations` first tries
rotations of the boxes, or of the rows of a grid, as the ranks' places suggest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.symmetry import automorphisms, canonical, link_map, orbit_labels
from antiphon.core.topology import LinkType, Topology
from antiphon.planners.shared.groups import nested_groups

Symmetries = NDArray[np.int64]  # a row per symmetry of a group
# where a symmetry takes each node, then each link, then each shared limit. All are numbered together: nodes first, then
# links (link l is number nodes + l), then limits. Some functions below use the part for nodes only.
Symmetry = NDArray[np.int64]
_FIRST_TRIES = 1500  # random symmetries examined for the first one chosen
_FURTHER_TRIES = 200  # and for each further one, which only extends the group
_MANY_ROOTS = 256  # with more roots, rotations that the ranks' places suggest are tried first
MOST_ROTATIONS = 32  # rotations tested by `find_rotations`, two canonical labellings each


def free_group(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], seed: int = 0) -> Symmetries:
    """Return a group of symmetries, as large as found, that keep demands and sinks and move every root.

    The first is the identity, the only one if there are no others. O(tries * size) and a few runs of BLISS, which finds
    automorphisms.
    """
    # symmetries compare the bandwidths of links only, not their latencies and kinds
    machine = replace(topology, types=tuple(LinkType("link", kind.bandwidth) for kind in topology.types))
    roots = np.array(sorted(r for r, d in demand.items() if d), np.int64)
    sink_set, ranks = set(sinks), topology.ranks
    roles: dict[tuple[int, bool], int] = {}
    color = [roles.setdefault((demand.get(n, 0), n in sink_set), len(roles)) for n in range(ranks)]
    # colors: symmetries take ranks only to ranks of equal role (demand, sink or not), and switches to switches
    color += [len(roles)] * topology.switches
    best = np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
    # many roots: first try rotations that the places suggest, which only cost a few canonical labellings. They
    # rotate the roots along the axes of one grid, so on the roots they commute; for all other nodes, links and limits
    # `_extend_group` checks it
    if len(roots) > _MANY_ROOTS:
        for element in _with_links(machine, find_rotations(machine, color, roots.tolist())):
            larger = _extend_group(best, element, roots, len(roots))
            best = best if larger is None else larger
        if len(best) == len(roots):
            return best
    generators = _commuting_symmetries(machine, color, chosen=[])
    max_order = _max_group_order(generators, roots)
    # begin with a symmetry of long cycles, which makes a large group at once; if that does not reach the bound, with
    # one of short cycles, which more symmetries commute with
    for longest in (True, False):
        if len(best) < max_order:
            larger_group = _grow_group(machine, color, generators, roots, max_order, longest, seed)
            best = larger_group if len(larger_group) > len(best) else best
    return best


def _grow_group(
    machine: Topology,
    color: list[int],
    generators: list[Symmetry],
    roots: Longs,
    max_order: int,
    longest: bool,
    seed: int,
) -> Symmetries:
    """Return a free group, extended step by step by the commuting symmetry that makes it largest.

    `generators`: of all symmetries. `max_order`: the most symmetries that a free group can have. `longest`: give the
    first symmetry cycles as long as possible (False: as short as possible). `seed`: of the random symmetries.
    """
    group = np.arange(machine.nodes + machine.links + len(machine.limits), dtype=np.int64)[None]
    chosen: list[Symmetry] = []
    while len(group) < max_order:
        rng = np.random.default_rng(seed + len(chosen))
        best_group: Symmetries | None = None
        best_element: Symmetry | None = None
        # the first symmetry is made to move all roots in cycles of one length
        for element in _random_symmetries(generators, rng, _FURTHER_TRIES if chosen else _FIRST_TRIES):
            power = element if chosen else _uniform_power(element, roots, longest)
            if power is None:
                continue
            larger = _extend_group(group, power, roots, max_order)
            if larger is not None and (best_group is None or len(larger) > len(best_group)):
                best_group, best_element = larger, power
                # with short cycles the first symmetry is taken as it comes: what counts is what commutes with it
                if len(larger) == max_order or not (longest or chosen):
                    break
        if best_group is None or best_element is None:
            break
        # go on among the symmetries that commute with all chosen ones
        group = best_group
        chosen.append(best_element)
        generators = _commuting_symmetries(machine, color, chosen) if len(group) < max_order else []
    return group


def _commuting_symmetries(machine: Topology, color: list[int], chosen: Sequence[Symmetry]) -> list[Symmetry]:
    """Return generators of the symmetries that commute with all of `chosen`."""
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
    return _with_links(machine, automorphisms(marked, color))


def _with_links(machine: Topology, symmetries: Iterable[NDArray[Any]]) -> list[Symmetry]:
    """Return symmetries of nodes with their images of links and limits, without those that do not fit the limits."""
    nodes, links = machine.nodes, machine.links
    limits: dict[tuple[Fraction, frozenset[int]], list[int]] = {}
    for number, limit in enumerate(machine.limits):
        limits.setdefault((limit.bandwidth, frozenset(limit.links)), []).append(number)
    out = []
    for permutation in symmetries:
        mapped = link_map(machine, permutation).astype(np.int64)
        limit_images = np.zeros(len(machine.limits), np.int64)
        # a limit's image is the limit on its links' images, of the same bandwidth
        for (bandwidth, limit_links), numbers in limits.items():
            images = limits.get((bandwidth, frozenset(mapped[list(limit_links)].tolist())))
            if images is None or len(images) != len(numbers):
                break  # the mapping of parallel links does not fit their limits
            limit_images[numbers] = images
        else:
            out.append(np.concatenate([permutation.astype(np.int64), nodes + mapped, nodes + links + limit_images]))
    return out


def _max_group_order(generators: Sequence[Symmetry], roots: Longs) -> int:
    """Return an upper bound on the size of a free group, which divides the size of every orbit of roots."""
    if not generators:
        return 1
    _, orbit_sizes = np.unique(orbit_labels(generators, len(generators[0]))[roots], return_counts=True)
    return math.gcd(*orbit_sizes.tolist())


def _random_symmetries(generators: Sequence[Symmetry], rng: np.random.Generator, tries: int) -> Iterator[Symmetry]:
    """Yield the generators, then `tries` random symmetries."""
    if not generators:
        return
    yield from generators
    # product replacement (Celler et al. 1995): multiply random pairs of a pool; the products become nearly uniform
    # (a pool of 8 or more, mixed 4 times its size before the first product is yielded: usual values)
    pool = [*generators]
    while len(pool) < 8:
        pool.append(pool[len(pool) % len(generators)])
    total, mixing = pool[0], 4 * len(pool)
    for trial in range(mixing + tries):
        a, b = rng.integers(0, len(pool), 2).tolist()
        if a != b:
            pool[a] = pool[b][pool[a]]  # the product: first pool[a], then pool[b]
            total = pool[a][total]
            if trial >= mixing:
                yield total


def _uniform_power(element: Symmetry, roots: Longs, longest: bool) -> Symmetry | None:
    """Return the power of the symmetry whose cycles of roots all have one length, the longest (or shortest) possible.

    None if only the identity is such a power.
    """
    lengths = set(_cycle_lengths(element, roots))
    gcd = math.gcd(*lengths)
    for length in range(gcd, 1, -1) if longest else range(2, gcd + 1):
        if gcd % length:
            continue
        # a cycle of length c becomes cycles of length c / gcd(c, times)
        times = math.lcm(*(c // length for c in lengths))
        if all(c // math.gcd(c, times) == length for c in lengths):
            return permutation_power(element, times)
    return None


def _cycle_lengths(element: Symmetry, roots: Longs) -> list[int]:
    """Return the lengths of the cycles of the roots. Pointer doubling: each takes the minimum over twice as many steps.

    >>> sorted(_cycle_lengths(np.array([1, 2, 0, 4, 3, 5]), np.array([0, 1, 2, 3, 4])))
    [2, 3]
    """
    step = np.searchsorted(roots, element[roots])
    least_root = np.arange(len(roots))  # by root: the least root of its cycle that was reached so far
    for _ in range(len(roots).bit_length()):
        least_root, step = np.minimum(least_root, least_root[step]), step[step]
    _, lengths = np.unique(least_root, return_counts=True)
    return lengths.tolist()


def permutation_power(element: Symmetry, times: int) -> Symmetry:
    """Return the permutation applied `times` times, by repeated squaring."""
    out = np.arange(len(element))
    while times:
        if times & 1:
            out = element[out]
        element, times = element[element], times // 2
    return out


def _extend_group(group: Symmetries, element: Symmetry, roots: Longs, max_order: int) -> Symmetries | None:
    """Return the group extended by a symmetry that commutes with it.

    None if it does not commute, if it is in the group, if some product keeps a root in place, or if there are more
    than `max_order`.
    """
    # group[:, element]: first `element`, then each of the group; element[group]: the other way round. If these differ,
    # the cosets together might be no group
    if not np.array_equal(group[:, element], element[group]):
        return None
    # append the cosets of element, element^2, ... until a power lies in the group
    members = {row.tobytes() for row in group}
    cosets, power = [group], element
    while power.tobytes() not in members:
        coset = group[:, power]
        if np.any(coset[:, roots] == roots) or len(group) * (len(cosets) + 1) > max_order:
            return None
        cosets.append(coset)
        power = element[power]
    return np.concatenate(cosets) if len(cosets) > 1 else None


def orbit_rows(topology: Topology, group: Symmetries) -> NDArray[np.int64]:
    """Return the number of the orbit of every link, then of every shared limit: its row in a linear program."""
    least_image = group[:, topology.nodes :].min(axis=0)  # equal for all of an orbit
    _, row = np.unique(least_image, return_inverse=True)
    return row.astype(np.int64)


def find_rotations(machine: Topology, color: Sequence[int], roots: Sequence[int]) -> Iterator[Symmetry]:
    """Yield symmetries of nodes that keep colors and rotate the roots at one level of their places, outermost first.

    On 4 boxes of 8 GPUs these take each box to the next, or each GPU to the next in its box. A level that cannot be
    rotated as a whole (8 GPUs that are joined in pairs) is divided into two levels. O(levels * links log links): as all
    roots are distinguished, canonical labelling is quick.
    """
    # the fan-ins of the levels, innermost first (8 GPUs in each of 4 boxes: [8, 4]), and the roots ordered by groups
    fan_ins, ordered_roots = nested_groups(machine, roots)
    grid = np.array(ordered_roots).reshape(fan_ins[::-1])  # axis 0: the outermost level
    labelled = _LabelledRoots(machine, color)
    for axis in range(grid.ndim):
        yield from labelled.rotate_axis(grid, axis)


class _LabelledRoots:
    """A machine whose roots get colors of their own, to test whether a permutation of the roots is a symmetry."""

    def __init__(self, machine: Topology, color: Sequence[int]) -> None:
        self.machine, self.color = machine, color
        self.tests_left = MOST_ROTATIONS

    def rotate_axis(self, grid: Longs, axis: int) -> list[Symmetry]:
        """Return the symmetry that rotates this axis of the grid of roots, or those that rotate factors of it; or [].

        If the axis cannot be rotated as a whole, its length is split into two factors, each rotated in turn.
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
                outer = self.rotate_axis(finer, axis)
                inner = self.rotate_axis(finer, axis + 1) if outer else []
                if inner:
                    return [*outer, *inner]
        return []

    def extend_to_symmetry(self, grid: Longs, images: Longs) -> Symmetry | None:
        """Return a symmetry of the machine that takes the roots of `grid` to those of `images`, if there is one."""
        color = np.array(self.color)
        if not self.tests_left or not np.array_equal(color[grid], color[images]):
            return None
        self.tests_left -= 1
        (label, key), (image_label, image_key) = (self._canonical_label(ranks) for ranks in (grid, images))
        if key != image_key:
            return None
        # equal canonical forms: `label` leads from the grid's machine to the form, `from_form` to that of the images
        from_form = np.empty(len(image_label), np.int64)
        from_form[image_label] = np.arange(len(image_label))
        symmetry: Symmetry = from_form[label]
        return symmetry

    def _canonical_label(self, ranks: Longs) -> tuple[NDArray[np.int32], str]:
        """Return the canonical labelling of the machine with these ranks in distinct colors, and the canonical form."""
        colors = list(self.color)
        first_color = max(colors) + 1
        for number, rank in enumerate(ranks.ravel().tolist()):
            colors[rank] = first_color + number
        return canonical(self.machine, colors)
