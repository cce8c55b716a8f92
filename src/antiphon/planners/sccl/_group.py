"""Symmetries of an instance: renamings of the machine that take its resources to equal ones, its kinds to kinds.

A group is held as all its elements, each as permutations of nodes, bonds, arcs, resources and kinds. Groups too great
for that are replaced by some subgroup: whoever uses symmetry to search may use any part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.core.symmetry import automorphisms, link_map
from antiphon.core.topology import LinkType

Table = NDArray[np.int64]
MOST = 4096  # elements held
_TRIES = 600  # elements that one climb tries to add
_CLIMBS = 4
_WALKS = 400
_FEW = 512  # elements of a subgroup of a group too great to hold


@dataclass(frozen=True, eq=False)
class Group:
    """Element e takes node n to nodes[e, n], and so for all else. Element 0 changes nothing."""

    nodes: Table
    bonds: Table
    arcs: Table
    resources: Table
    kinds: Table

    def __len__(self) -> int:
        return len(self.nodes)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Group:
        index = np.asarray(rows)
        return Group(*(part[index] for part in self._parts))

    @property
    def _parts(self) -> tuple[Table, ...]:
        return self.nodes, self.bonds, self.arcs, self.resources, self.kinds

    @property
    def _widths(self) -> tuple[int, ...]:
        return tuple(part.shape[1] for part in self._parts)


def orbits(images: Table) -> NDArray[np.int64]:
    """The least image of every point: equal for all of an orbit."""
    found: NDArray[np.int64] = images.min(axis=0)
    return found


def trivial(instance: Instance) -> Group:
    sizes = (
        instance.nodes, len(instance.bonds), len(instance.arcs), len(instance.capacity), len(instance.kinds),
    )  # fmt: skip
    return Group(*(np.arange(size)[None] for size in sizes))


def group_of(instance: Instance, seed: int = 0) -> Group:
    """All symmetries, or a subgroup of at most MOST elements. O(MOST * generators * size of the instance)."""
    none = trivial(instance)
    found = [row for row in _generators(instance) if row is not None]
    if not found:
        return none
    generators = np.array(found)
    whole = _closure(generators, none._widths, MOST)
    if whole is None:
        whole = _part(generators, none, seed)
    return _split(whole, none._widths)


def subgroups(group: Group, parts: int, weights: Sequence[int], seed: int = 0) -> list[Group]:
    """Subgroups under which whole orbits of chunks can be alike, the likeliest to help first, the trivial one last.

    A subgroup will do if, for each kind, the elements that keep it are as many as divide its chunks: then every
    chunk can be another one's image under each of them. Those that keep no arc in place (but for the identity)
    come first: else a chunk and its image share that arc in the same step. Then the greater ones.

    Found by climbing: an element is added as long as what it generates will do. O(tries * size) products.
    """
    trivial_one = group.take([0])
    number = {row.tobytes(): e for e, row in enumerate(group.nodes)}
    if len(group) == 1 or len(number) < len(group):  # some elements differ in parallel bonds alone
        return [trivial_one]
    rng = np.random.default_rng(seed)
    chunks = parts * np.asarray(weights, np.int64)
    keeps = np.count_nonzero(group.arcs == np.arange(group.arcs.shape[1]), axis=1)
    found: dict[frozenset[int], None] = {}
    for allowed in (keeps == 0, np.ones(len(group), bool)):
        best = 0
        for _ in range(_CLIMBS):
            for subgroup in _climb(group, number, allowed, chunks, rng):
                found.setdefault(subgroup)
                best = max(best, len(subgroup))
            if best == group.arcs.shape[1]:
                break  # no greater one keeps no arc in place
        if best > 1 and len(group) > 64:
            break
    alike: dict[tuple[object, ...], list[Group]] = {}
    for subgroup in found:
        elements = sorted(subgroup)
        held = sorted(keeps[elements].tolist())
        arcs = len(np.unique(orbits(group.arcs[elements])))
        shared = arcs * len(elements) / max(group.arcs.shape[1], 1)
        alike.setdefault((shared, -len(elements), tuple(held)), []).append(group.take(elements))
    ordered = [one for key in sorted(alike) for one in alike[key][:2]]  # most of the others are mirrored ones
    return [*ordered, trivial_one]


def _climb(
    group: Group, number: dict[bytes, int], allowed: NDArray[np.bool_], chunks: NDArray[np.int64],
    rng: np.random.Generator,
) -> Iterator[frozenset[int]]:  # fmt: skip
    """Ever greater subgroups of allowed elements, each from the one before by one element more."""
    kept = group.kinds == np.arange(group.kinds.shape[1])
    candidates = np.flatnonzero(allowed & (np.arange(len(group)) > 0))
    generators: list[int] = []
    have = frozenset([0])
    for element in rng.permutation(candidates)[:_TRIES].tolist():
        if element in have:
            continue
        closed = _inside(group, number, [*generators, element], allowed, kept, chunks)
        if closed is not None:
            generators.append(element)
            have = closed
            yield have
            if len(have) == group.arcs.shape[1]:
                return


def _inside(
    group: Group, number: dict[bytes, int], picked: Sequence[int], allowed: NDArray[np.bool_],
    kept: NDArray[np.bool_], chunks: NDArray[np.int64],
) -> frozenset[int] | None:  # fmt: skip
    """The subgroup that these elements generate, as numbers of elements; None where it will not do."""
    seen, fresh = {0}, [0]
    keeping = kept[0].astype(np.int64)
    while fresh:
        after = []
        for element in fresh:
            for generator in picked:
                other = number[group.nodes[generator][group.nodes[element]].tobytes()]
                if other in seen:
                    continue
                if not allowed[other]:
                    return None
                seen.add(other)
                after.append(other)
                keeping += kept[other]
                if np.any(keeping > chunks):
                    return None
        fresh = after
    return None if np.any(chunks % keeping) else frozenset(seen)


def _generators(instance: Instance) -> Iterator[Table | None]:
    """Symmetries of the machine that generate all that keep each rank's part in the collective."""
    topology = instance.topology
    plain = tuple(LinkType("link", kind.bandwidth) for kind in topology.types)  # only capacity counts here
    roles: dict[tuple[tuple[int, ...], ...], int] = {}
    colour = []
    for node in range(instance.nodes):
        has = tuple(sorted(k.weight for k in instance.kinds if node in k.holders))
        wants = tuple(sorted(k.weight for k in instance.kinds if node in k.dests))
        colour.append(roles.setdefault((has, wants), len(roles)))
    bond_of = np.empty(topology.links, np.int64)
    for bond, links in enumerate(instance.bonds):
        bond_of[list(links)] = bond
    first = np.array([links[0] for links in instance.bonds], np.int64)
    machine = replace(topology, types=plain)
    for nodes in automorphisms(machine, colour):
        bonds = bond_of[link_map(machine, nodes)[first]]
        yield _element(instance, nodes.astype(np.int64), bonds)


def _element(instance: Instance, nodes: Table, bonds: Table) -> Table | None:
    """The whole permutation, or None where limits, kinds or arcs do not go to such."""
    count = len(instance.bonds)
    known: dict[tuple[Fraction, frozenset[int]], list[int]] = {}
    members: list[list[int]] = [[] for _ in instance.capacity]
    for bond, limits in enumerate(instance.limits_of):
        for limit in limits:
            members[limit].append(bond)
    for limit in range(count, len(members)):
        known.setdefault((instance.capacity[limit], frozenset(members[limit])), []).append(limit)
    limits_to = np.zeros(len(members) - count, np.int64)
    for (capacity, those), same in known.items():
        target = known.get((capacity, frozenset(bonds[sorted(those)].tolist())))
        if target is None or len(target) != len(same):
            return None
        limits_to[np.array(same) - count] = target
    kinds = {(k.holders, k.dests): i for i, k in enumerate(instance.kinds)}
    kinds_to = np.zeros(len(kinds), np.int64)
    for i, kind in enumerate(instance.kinds):
        image = tuple(tuple(sorted(nodes[list(side)].tolist())) for side in (kind.holders, kind.dests))
        other = kinds.get((image[0], image[1]), -1)
        if other < 0 or instance.kinds[other].weight != kind.weight:
            return None
        kinds_to[i] = other
    number = {path: i for i, path in enumerate(instance.arcs.paths)}
    arcs_to = [number.get(tuple(bonds[list(path)].tolist()), -1) for path in instance.arcs.paths]
    if -1 in arcs_to:  # where not all paths are held, one may lead to one that is not
        return None
    return np.concatenate([nodes, bonds, np.array(arcs_to, np.int64), bonds, limits_to, kinds_to])


def _after(element: Table, rows: Table, widths: tuple[int, ...]) -> Table:
    out, at = np.empty_like(rows), 0
    for width in widths:
        out[:, at : at + width] = element[at : at + width][rows[:, at : at + width]]
        at += width
    return out


def _closure(generators: Table, widths: tuple[int, ...], most: int) -> Table | None:
    """Every product of these, the identity first; None if they are more than `most`."""
    identity = np.concatenate([np.arange(width) for width in widths])[None]
    seen = {identity.tobytes()}
    found, fresh = [identity], identity
    while len(fresh):
        new = []
        for generator in generators:
            for row in _after(generator, fresh, widths):
                if (name := row.tobytes()) not in seen:
                    seen.add(name)
                    new.append(row)
            if len(seen) > most:
                return None
        fresh = np.array(new, np.int64).reshape(-1, identity.shape[1])
        found.append(fresh)
    return np.concatenate(found)


def _part(generators: Table, none: Group, seed: int) -> Table:
    """A subgroup that moves ranks about as much as may be, with few elements: closures of random products."""
    rng = np.random.default_rng(seed)
    widths, nodes = none._widths, none.nodes.shape[1]
    pool = [*generators]
    goal = _orbit_count(generators[:, :nodes])
    best, fewest = np.hstack(none._parts), (nodes + 1, 0)
    settle = 10 * len(pool) + 50
    for trial in range(settle + _WALKS):  # product replacement: random elements of the whole group
        a, b = rng.integers(0, len(pool), 2)
        if a == b:
            continue
        pool[a] = _after(pool[b], pool[a][None], widths)[0]
        if trial < settle:
            continue
        chosen = np.array([pool[a]] if trial % 4 else [pool[a], pool[b]])
        moved = _orbit_count(chosen[:, :nodes])
        if moved < fewest[0]:
            closed = _closure(chosen, widths, _FEW)
            if closed is not None:
                best, fewest = closed, (moved, len(closed))
        if fewest[0] == goal:
            break
    return best


def _orbit_count(permutations: Table) -> int:
    """How many orbits of points these permutations have together."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = permutations.shape[1]
    ends = np.tile(np.arange(count), len(permutations)), permutations.ravel()
    joined = csr_array((np.ones(len(ends[0])), ends), shape=(count, count))
    return int(connected_components(joined, directed=False)[0])


def _split(rows: Table, widths: tuple[int, ...]) -> Group:
    return Group(*np.split(rows, np.cumsum(widths)[:-1], axis=1))
