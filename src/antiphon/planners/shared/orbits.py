"""Planning on symmetric machines: what one source per orbit sends, all others are its images.

A subgroup of the machine's symmetries that moves every root (but for the identity) takes a packing (of trees, of
paths) to packings; their mean is a packing as good in which that of a root is the image of that of its orbit's first.
So a linear program needs the trees or paths of one root per orbit and one row per orbit of links and shared limits, and
its basic optima have as few of them per root as it has rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.symmetry import automorphisms, link_map
from antiphon.core.topology import LinkType, Topology
from antiphon.planners.shared.turns import turns

Table = NDArray[np.int64]
_TRIES = 1500  # random symmetries looked at for one that alone goes round all roots
_MORE = 200  # and for each further one
_MANY = 256  # roots beyond which those that places suggest are tried first: a walk at random hardly finds any


def free_group(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], seed: int = 0) -> Table:
    """Symmetries that keep demands and sinks, no two of which take a root to the same rank; the identity first.

    Each takes nodes, then links, then limits to such: columns node, nodes + link, nodes + links + limit. The more the
    better; found by a walk at random among all symmetries, then among those that commute with what is found; of many
    roots first those that take boxes, or rows of a grid, round. O(tries * size) and a few runs of BLISS.
    """
    machine = replace(topology, types=tuple(LinkType("link", kind.bandwidth) for kind in topology.types))
    roots = np.array(sorted(r for r, d in demand.items() if d), np.int64)
    wanted, ranks = set(sinks), topology.ranks
    roles: dict[tuple[int, bool], int] = {}
    colour = [roles.setdefault((demand.get(n, 0), n in wanted), len(roles)) for n in range(ranks)]
    colour += [len(roles)] * topology.switches
    best = np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
    if len(roots) > _MANY:
        for element in _whole(machine, turns(machine, colour, roots.tolist())):
            larger = _joined(best, element, roots, len(roots))
            best = best if larger is None else larger
        if len(best) == len(roots):
            return best
    all_of_them = _generators(machine, colour, [])
    most = _most(all_of_them, roots)
    for longest in (True, False):  # short first steps leave more to commute with
        if len(best) < most:
            found = _climb(machine, colour, all_of_them, roots, most, longest, seed)
            best = found if len(found) > len(best) else best
    return best


def _climb(
    machine: Topology, colour: list[int], generators: list[Table], roots: Table, most: int, longest: bool, seed: int
) -> Table:
    """Ever larger groups, each from the one before by the symmetry that makes it largest of those that commute."""
    group = np.arange(machine.nodes + machine.links + len(machine.limits), dtype=np.int64)[None]
    kept: list[Table] = []
    while len(group) < most:
        rng = np.random.default_rng(seed + len(kept))
        best: tuple[Table, Table] | None = None
        for element in _walk(generators, rng, _MORE if kept else _TRIES):
            power = element if kept else _even(element, roots, longest)
            if power is None:
                continue
            larger = _joined(group, power, roots, most)
            if larger is not None and (best is None or len(larger) > len(best[0])):
                best = larger, power
                if len(larger) == most or not (longest or kept):
                    break
        if best is None:
            break
        group = best[0]
        kept.append(best[1])
        generators = _generators(machine, colour, kept) if len(group) < most else []
    return group


def _generators(machine: Topology, colour: list[int], kept: Sequence[Table]) -> list[Table]:
    """Symmetries that commute with all of `kept`: those of the machine with a link from every node to its image."""
    nodes = machine.nodes
    marked = machine
    for number, element in enumerate(kept):
        moved = np.flatnonzero(element[:nodes] != np.arange(nodes))
        marked = replace(
            marked,
            link_src=np.append(marked.link_src, moved),
            link_dst=np.append(marked.link_dst, element[moved]),
            link_type=np.append(marked.link_type, np.full(len(moved), len(marked.types))),
            types=(*marked.types, LinkType(f"image{number}", machine.unit)),
        )
    return _whole(machine, automorphisms(marked, colour))


def _whole(machine: Topology, symmetries: Iterable[NDArray[Any]]) -> list[Table]:
    """Symmetries of nodes as such of links and limits, too."""
    nodes, links = machine.nodes, machine.links
    limits: dict[tuple[Fraction, frozenset[int]], list[int]] = {}
    for number, limit in enumerate(machine.limits):
        limits.setdefault((limit.bandwidth, frozenset(limit.links)), []).append(number)
    out = []
    for found in symmetries:
        mapped = link_map(machine, found).astype(np.int64)
        over = np.zeros(len(machine.limits), np.int64)
        for (bandwidth, those), numbers in limits.items():
            images = limits.get((bandwidth, frozenset(mapped[list(those)].tolist())))
            if images is None or len(images) != len(numbers):
                break  # parallel links went another way than their limits
            over[numbers] = images
        else:
            out.append(np.concatenate([found.astype(np.int64), nodes + mapped, nodes + links + over]))
    return out


def _most(generators: Sequence[Table], roots: Table) -> int:
    """No more than this can move all roots freely: what divides every orbit of roots."""
    if not generators:
        return 1
    return math.gcd(*np.unique(_orbits(generators)[roots], return_counts=True)[1].tolist())


def _orbits(generators: Sequence[Table]) -> Table:
    """Of each number the least that it can be taken to. [1, 2, 0, 3] and [0, 1, 2, 3] give [0, 0, 0, 3].

    Each takes over the least of its images, and theirs: a few rounds of O(size) for each generator. (SciPy's components
    do the same, but a job that waits for its plans waits longer for SciPy.)
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


def _walk(generators: Sequence[Table], rng: np.random.Generator, tries: int) -> Iterator[Table]:
    """The generators, then random symmetries by product replacement."""
    if not generators:
        return
    yield from generators
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


def _even(element: Table, roots: Table, longest: bool) -> Table | None:
    """The power of it that takes all roots round in cycles of one length, as long (or as short) as can be."""
    lengths = set(_cycle_lengths(element, roots))
    common = math.gcd(*lengths)
    for length in range(common, 1, -1) if longest else range(2, common + 1):
        if common % length:
            continue
        times = math.lcm(*(c // length for c in lengths))
        if all(c // math.gcd(c, times) == length for c in lengths):
            return _power(element, times)
    return None


def _cycle_lengths(element: Table, roots: Table) -> list[int]:
    """Of the cycles of the roots, which it takes to roots. Each takes over the least that it comes by in twice as many
    steps as before.

    >>> sorted(_cycle_lengths(np.array([1, 2, 0, 4, 3, 5]), np.array([0, 1, 2, 3, 4])))
    [2, 3]
    """
    step = np.searchsorted(roots, element[roots])
    least = np.arange(len(roots))
    for _ in range(len(roots).bit_length()):
        least, step = np.minimum(least, least[step]), step[step]
    return np.unique(least, return_counts=True)[1].tolist()


def _power(element: Table, times: int) -> Table:
    out = np.arange(len(element))
    while times:
        if times & 1:
            out = element[out]
        element, times = element[element], times // 2
    return out


def _joined(group: Table, element: Table, roots: Table, most: int) -> Table | None:
    """The group together with a symmetry that commutes with it; None where that moves some root not, or is no more."""
    known = {row.tobytes() for row in group}
    parts, at = [group], element
    while at.tobytes() not in known:
        coset = group[:, at]
        if np.any(coset[:, roots] == roots) or len(group) * (len(parts) + 1) > most:
            return None
        parts.append(coset)
        at = element[at]
    return np.concatenate(parts) if len(parts) > 1 else None


def rows_of(topology: Topology, group: Table) -> NDArray[np.int64]:
    """The orbit of every link and limit."""
    least = group[:, topology.nodes :].min(axis=0)
    return np.unique(least, return_inverse=True)[1].astype(np.int64)
