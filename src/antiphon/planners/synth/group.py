"""Symmetries of an instance: renamings of the machine that take its resources to equal ones, its kinds to kinds.

A group is held as all its elements, each as permutations of nodes, bonds, arcs, resources and kinds. Groups too great
for that are replaced by some subgroup: whoever uses symmetry to search may use any part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

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
class Renamings:
    """Element e takes node n to nodes[e, n], and so for all else. Element 0 changes nothing."""

    nodes: Table
    bonds: Table
    arcs: Table
    resources: Table
    kinds: Table

    def __len__(self) -> int:
        return len(self.nodes)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Renamings:
        index = np.asarray(rows)
        return Renamings(*(table[index] for table in self._parts))

    @property
    def _parts(self) -> tuple[Table, ...]:
        return self.nodes, self.bonds, self.arcs, self.resources, self.kinds

    @property
    def _widths(self) -> tuple[int, ...]:
        return tuple(table.shape[1] for table in self._parts)


def orbits(images: Table) -> NDArray[np.int64]:
    """The least image of every point: equal for all of an orbit."""
    least_images: NDArray[np.int64] = images.min(axis=0)
    return least_images


def trivial(instance: Instance) -> Renamings:
    sizes = (
        instance.nodes, len(instance.bonds), len(instance.arcs), len(instance.capacity), len(instance.kinds),
    )  # fmt: skip
    return Renamings(*(np.arange(size)[None] for size in sizes))


def group_of(instance: Instance, seed: int = 0) -> Renamings:
    """All symmetries, or a subgroup of at most MOST elements.

    Elements are multiplied as what tells them apart, mostly permutations of nodes: O(MOST * generators * nodes), then
    O(elements * size of the instance).
    """
    none, shape = trivial(instance), _Shape(instance)
    permutations = [row for row in _generators(shape) if row is not None]
    if not permutations:
        return none
    generators = np.array(permutations)
    short = generators[:, : sum(shape.telling)]
    closure = _closure(short, shape.telling, MOST)
    if closure is None:
        chosen, closure = _part(short, shape.telling, seed)
        generators = np.array([shape.element_of(row) for row in chosen]).reshape(len(chosen), generators.shape[1])
    return _split(_written_out(closure, generators, none._widths), none._widths)


def subgroups(group: Renamings, parts: int, weights: Sequence[int], seed: int = 0) -> list[Renamings]:
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
    candidates: dict[frozenset[int], None] = {}
    for allowed in (keeps == 0, np.ones(len(group), bool)):
        best = 0
        for _ in range(_CLIMBS):
            for subgroup in _climb(group, number, allowed, chunks, rng):
                candidates.setdefault(subgroup)
                best = max(best, len(subgroup))
            if best == group.arcs.shape[1]:
                break  # no greater one keeps no arc in place
        if best > 1 and len(group) > 64:
            break
    alike: dict[tuple[object, ...], list[Renamings]] = {}
    for subgroup in candidates:
        elements = sorted(subgroup)
        kept_arcs = sorted(keeps[elements].tolist())
        arcs = len(np.unique(orbits(group.arcs[elements])))
        shared = arcs * len(elements) / max(group.arcs.shape[1], 1)
        alike.setdefault((shared, -len(elements), tuple(kept_arcs)), []).append(group.take(elements))
    ordered = [climbed for key in sorted(alike) for climbed in alike[key][:2]]  # most of the others are mirrored ones
    return [*ordered, trivial_one]


def _climb(
    group: Renamings, number: dict[bytes, int], allowed: NDArray[np.bool_], chunks: NDArray[np.int64],
    rng: np.random.Generator,
) -> Iterator[frozenset[int]]:  # fmt: skip
    """Ever greater subgroups of allowed elements, each from the one before by one element more."""
    keeps_kind = group.kinds == np.arange(group.kinds.shape[1])
    candidates = np.flatnonzero(allowed & (np.arange(len(group)) > 0))
    generators: list[int] = []
    have = frozenset([0])
    for element in rng.permutation(candidates)[:_TRIES].tolist():
        if element in have:
            continue
        closed = _inside(group, number, [*generators, element], allowed, keeps_kind, chunks)
        if closed is not None:
            generators.append(element)
            have = closed
            yield have
            if len(have) == group.arcs.shape[1]:
                return


def _inside(
    group: Renamings, number: dict[bytes, int], picked: Sequence[int], allowed: NDArray[np.bool_],
    kept: NDArray[np.bool_], chunks: NDArray[np.int64],
) -> frozenset[int] | None:  # fmt: skip
    """The subgroup that these elements generate, as numbers of elements; None where it will not do."""
    generated, fresh = {0}, [0]
    keeping = kept[0].astype(np.int64)
    while fresh:
        after = []
        for element in fresh:
            for generator in picked:
                other = number[group.nodes[generator][group.nodes[element]].tobytes()]
                if other in generated:
                    continue
                if not allowed[other]:
                    return None
                generated.add(other)
                after.append(other)
                keeping += kept[other]
                if np.any(keeping > chunks):
                    return None
        fresh = after
    return None if np.any(chunks % keeping) else frozenset(generated)


class _Shape:
    """An instance as tables to look images up in: built once, used for every element."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        ends = list(zip(instance.tail.tolist(), instance.head.tolist(), strict=True))
        self._bond = dict(zip(ends, range(len(ends)), strict=True))
        alone = len(self._bond) == len(ends)
        self.telling = (instance.nodes,) if alone else (instance.nodes, len(ends))  # what an element follows from
        self._paths = _padded(instance.arcs.paths, len(ends))
        self._arc = _numbers(self._paths)
        holders = _padded([kind.holders for kind in instance.kinds], instance.nodes)
        dests = _padded([kind.dests for kind in instance.kinds], instance.nodes)
        self._sides = np.sort(holders, axis=1), np.sort(dests, axis=1)
        self._kind = _numbers(np.hstack(self._sides))
        self._weights = np.array([kind.weight for kind in instance.kinds], np.int64)

    def element_of(self, short: Table) -> Table:
        """The whole permutation of one that is known to be a symmetry, from what tells it apart."""
        nodes, bonds = short[: self.instance.nodes], short[self.instance.nodes :]
        if len(self.telling) == 1:
            tails, heads = (nodes[ends].tolist() for ends in (self.instance.tail, self.instance.head))
            bonds = np.array([self._bond[pair] for pair in zip(tails, heads, strict=True)], np.int64)
        element = self.element(nodes, bonds)
        assert element is not None
        return element

    def element(self, nodes: Table, bonds: Table) -> Table | None:
        """The whole permutation, or None where limits, kinds or arcs do not go to such."""
        kinds = self._kinds(nodes)
        limits = self._limits(bonds) if kinds is not None else None
        arcs = _row_numbers(self._arc, np.append(bonds, len(bonds))[self._paths])
        if kinds is None or limits is None or arcs is None:  # of arcs, not all paths may be held
            return None
        return np.concatenate([nodes, bonds, arcs, bonds, limits, kinds])

    def _kinds(self, nodes: Table) -> Table | None:
        to = np.append(nodes, len(nodes))
        numbers = _row_numbers(self._kind, np.hstack([np.sort(to[side], axis=1) for side in self._sides]))
        return numbers if numbers is not None and np.array_equal(self._weights[numbers], self._weights) else None

    @cached_property
    def _alike(self) -> dict[tuple[Fraction, frozenset[int]], list[int]]:
        """The shared limits, by capacity and bonds."""
        instance, count = self.instance, len(self.instance.bonds)
        members: list[list[int]] = [[] for _ in instance.capacity]
        for bond, limits in enumerate(instance.limits_of):
            for limit in limits:
                members[limit].append(bond)
        by_shape: dict[tuple[Fraction, frozenset[int]], list[int]] = {}
        for limit in range(count, len(members)):
            by_shape.setdefault((instance.capacity[limit], frozenset(members[limit])), []).append(limit)
        return by_shape

    def _limits(self, bonds: Table) -> Table | None:
        count = len(bonds)
        out = np.zeros(len(self.instance.capacity) - count, np.int64)
        for (capacity, those), same in self._alike.items():
            target = self._alike.get((capacity, frozenset(bonds[sorted(those)].tolist())))
            if target is None or len(target) != len(same):
                return None
            out[np.array(same) - count] = target
        return out


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Table:
    out = np.full((len(rows), max(map(len, rows), default=0)), filler, np.int64)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def _numbers(rows: Table) -> dict[bytes, int]:
    return {row.tobytes(): i for i, row in enumerate(rows)}


def _row_numbers(numbers: dict[bytes, int], rows: Table) -> Table | None:
    """The number of every row; None where one has none."""
    row_numbers = [numbers.get(row.tobytes(), -1) for row in rows]
    return None if -1 in row_numbers else np.array(row_numbers, np.int64)


def _generators(shape: _Shape) -> Iterator[Table | None]:
    """Symmetries of the machine that generate all that keep each rank's part in the collective."""
    instance = shape.instance
    topology = instance.topology
    plain = tuple(LinkType("link", kind.bandwidth) for kind in topology.types)  # only capacity counts here
    bond_of = np.empty(topology.links, np.int64)
    for bond, links in enumerate(instance.bonds):
        bond_of[list(links)] = bond
    first = np.array([links[0] for links in instance.bonds], np.int64)
    machine = replace(topology, types=plain)
    for nodes in automorphisms(machine, _colours(instance)):
        bonds = bond_of[link_map(machine, nodes)[first]]
        yield shape.element(nodes.astype(np.int64), bonds)


def _colours(instance: Instance) -> list[int]:
    """Per node a number of its part in the collective: the weights of the kinds that it has, and of those it wants."""
    has: list[list[int]] = [[] for _ in range(instance.nodes)]
    wants: list[list[int]] = [[] for _ in range(instance.nodes)]
    for kind in instance.kinds:
        for ranks, side in ((kind.holders, has), (kind.dests, wants)):
            for rank in ranks:
                side[rank].append(kind.weight)
    roles: dict[tuple[tuple[int, ...], ...], int] = {}
    return [
        roles.setdefault((tuple(sorted(has[node])), tuple(sorted(wants[node]))), len(roles))
        for node in range(instance.nodes)
    ]


def _after(element: Table, rows: Table, widths: Sequence[int]) -> Table:
    out, at = np.empty_like(rows), 0
    for width in widths:
        out[:, at : at + width] = element[at : at + width][rows[:, at : at + width]]
        at += width
    return out


Products = list[tuple[int, Table]]  # (generator, elements before it): each batch makes the elements that follow


def _closure(generators: Table, widths: Sequence[int], max_elements: int) -> Products | None:
    """How every product of these is made, the identity first; None if they are more than `most`."""
    identity = np.concatenate([np.arange(width) for width in widths])[None]
    known_elements = {identity.tobytes()}
    products: Products = []
    fresh, first = identity, 0
    while len(fresh):
        after: list[Table] = []
        for number, generator in enumerate(generators):
            images = _after(generator, fresh, widths)
            new = []
            for place, row in enumerate(images):
                if (name := row.tobytes()) not in known_elements:
                    known_elements.add(name)
                    new.append(place)
            if len(known_elements) > max_elements:
                return None
            if new:
                products.append((number, first + np.array(new)))
                after.append(images[new])
        first += len(fresh)
        fresh = np.concatenate(after) if after else identity[:0]
    return products


def _written_out(products: Products, generators: Table, widths: Sequence[int]) -> Table:
    """The elements that are made so, as whole permutations."""
    out = np.empty((1 + sum(len(before) for _, before in products), sum(widths)), np.int64)
    out[0] = np.concatenate([np.arange(width) for width in widths])
    at = 1
    for number, before in products:
        out[at : at + len(before)] = _after(generators[number], out[before], widths)
        at += len(before)
    return out


def _part(generators: Table, widths: Sequence[int], seed: int) -> tuple[Table, Products]:
    """A subgroup that moves ranks about as much as may be, with few elements: closures of random products.

    Returned are its generators and how its elements are made of them.
    """
    rng = np.random.default_rng(seed)
    nodes = widths[0]
    pool = [*generators]
    goal = _orbit_count(generators[:, :nodes])
    best: tuple[Table, Products] = generators[:0], []
    fewest = nodes + 1
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
        if moved < fewest:
            closed = _closure(chosen, widths, _FEW)
            if closed is not None:
                best, fewest = (chosen, closed), moved
        if fewest == goal:
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


def _split(rows: Table, widths: tuple[int, ...]) -> Renamings:
    return Renamings(*np.split(rows, np.cumsum(widths)[:-1], axis=1))
