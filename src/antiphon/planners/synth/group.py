"""Symmetries of an instance: permutations of the machine that map resources to equal ones and kinds to kinds.

An instance (core.ksync.instance) has nodes; bonds, which are parallel links; arcs, which are paths of bonds from rank
to rank; resources, which are bonds and shared limits; and kinds, which are blocks with equal holders and destinations.
A group is stored as all its elements, each a permutation of these five. It serves twice: linear programs are averaged
over the whole group (program.py), and SAT engines search solutions that are invariant under a subgroup, with variables
for one chunk per orbit only. Any subgroup is valid for either purpose, so groups with more than MOST elements are
replaced by a large subgroup.

    group_of         all symmetries: products of the machine's automorphisms (core.symmetry)
    find_subgroups   candidates for the SAT engines

For which subgroups can a solution be invariant? If k elements fix a kind and permute its chunks freely, its number of
chunks must be a multiple of k. And a non-identity element that fixes an arc makes a chunk and its image share the
arc in the same step, which costs capacity. So `find_subgroups` prefers large subgroups without fixed arcs, and grows
them greedily: it adds a random element as long as the generated subgroup stays admissible.

Example: allgather on a bidirectional ring of 8: the dihedral group has 16 elements. The 8 rotations fix no arc, so one
rank's chunks determine all others': an eighth of the variables.
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
MOST = 4096  # elements of a stored group
_TRIES = 600  # elements that growing one subgroup tries to add
_LARGE_GROUP = 64  # elements; in a larger group, subgroups that fix arcs are searched only if there are no others
_CLIMBS = 4  # subgroups grown from the identity, each in another random order
_WALKS = 400  # random elements tried by `_sample_subgroup`
_FEW = 512  # elements of the subgroup that replaces a group too large to store


@dataclass(frozen=True, eq=False)
class SymmetryGroup:
    """Element e maps node n to nodes[e, n]; likewise bonds, arcs, resources and kinds. Element 0 is the identity."""

    nodes: Table
    bonds: Table
    arcs: Table
    resources: Table
    kinds: Table

    def __len__(self) -> int:
        return len(self.nodes)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> SymmetryGroup:
        """Return the subset of these elements."""
        index = np.asarray(rows)
        return SymmetryGroup(*(table[index] for table in self._tables))

    @property
    def _tables(self) -> tuple[Table, ...]:
        return self.nodes, self.bonds, self.arcs, self.resources, self.kinds

    @property
    def _table_widths(self) -> tuple[int, ...]:
        return tuple(table.shape[1] for table in self._tables)


def orbits(images: Table) -> NDArray[np.int64]:
    """Return the smallest image of every point, a label that is equal exactly within an orbit."""
    least_images: NDArray[np.int64] = images.min(axis=0)
    return least_images


def trivial_group(instance: Instance) -> SymmetryGroup:
    """Return the group that has the identity alone."""
    sizes = (
        instance.nodes, len(instance.bonds), len(instance.arcs), len(instance.capacity), len(instance.kinds),
    )  # fmt: skip
    return SymmetryGroup(*(np.arange(size)[None] for size in sizes))


def group_of(instance: Instance, seed: int = 0) -> SymmetryGroup:
    """Return all symmetries, or a subgroup of at most MOST elements.

    Elements are multiplied in a short form that identifies them: the permutation of nodes, and of bonds if some are
    parallel. O(MOST * generators * nodes), then O(elements * size of the instance) to expand them to the long form,
    which permutes all five.
    """
    identity, tables = trivial_group(instance), _ImageTables(instance)
    permutations = [row for row in _find_generators(tables) if row is not None]
    if not permutations:
        return identity
    generators = np.array(permutations)
    short = generators[:, : sum(tables.short_widths)]
    # all products of the generators, if they are not too many; else those of a few well-chosen elements
    closure = _close_products(short, tables.short_widths, MOST)
    if closure is None:
        chosen, closure = _sample_subgroup(short, tables.short_widths, seed)
        generators = np.array([tables.element_of(row) for row in chosen]).reshape(len(chosen), generators.shape[1])
    return _split_columns(_expand_elements(closure, generators, identity._table_widths), identity._table_widths)


def find_subgroups(group: SymmetryGroup, parts: int, weights: Sequence[int], seed: int = 0) -> list[SymmetryGroup]:
    """Return subgroups under which a solution may be invariant, the most promising first, the trivial one last.

    A subgroup is admissible if, for each kind, the number of elements that fix the kind divides its number of chunks.
    Subgroups whose non-identity elements fix no arc come first, then larger ones. O(tries * size) products.
    """
    trivial = group.take([0])
    element_number = {row.tobytes(): e for e, row in enumerate(group.nodes)}
    if len(group) == 1 or len(element_number) < len(group):  # some elements differ in parallel bonds alone
        return [trivial]
    rng = np.random.default_rng(seed)
    chunks = parts * np.asarray(weights, np.int64)
    # number of arcs that each element fixes: 0 is best, as then whole orbits of arcs can be treated alike
    fixed_arcs = np.count_nonzero(group.arcs == np.arange(group.arcs.shape[1]), axis=1)
    candidates: dict[frozenset[int], None] = {}  # a set that keeps its order
    # first subgroups whose elements fix no arc, then any
    for allowed in (fixed_arcs == 0, np.ones(len(group), bool)):
        largest = 0
        for _ in range(_CLIMBS):
            for subgroup in _grow_subgroups(group, element_number, allowed, chunks, rng):
                candidates.setdefault(subgroup)
                largest = max(largest, len(subgroup))
            if largest == group.arcs.shape[1]:
                break  # subgroups that fix no arc have at most as many elements as there are arcs
        if largest > 1 and len(group) > _LARGE_GROUP:
            break
    by_figures: dict[tuple[object, ...], list[SymmetryGroup]] = {}
    for subgroup in candidates:
        elements = sorted(subgroup)
        fixed_counts = sorted(fixed_arcs[elements].tolist())
        arcs = len(np.unique(orbits(group.arcs[elements])))
        # 1 if no element but the identity fixes an arc: all orbits of arcs are then as large as the subgroup
        relative_orbits = arcs * len(elements) / max(group.arcs.shape[1], 1)
        by_figures.setdefault((relative_orbits, -len(elements), tuple(fixed_counts)), []).append(group.take(elements))
    # two of those with equal figures: further ones are mostly mirror images
    ordered = [candidate for figures in sorted(by_figures) for candidate in by_figures[figures][:2]]
    return [*ordered, trivial]


def _grow_subgroups(
    group: SymmetryGroup, element_number: dict[bytes, int], allowed: NDArray[np.bool_], chunks: NDArray[np.int64],
    rng: np.random.Generator,
) -> Iterator[frozenset[int]]:  # fmt: skip
    """Yield growing subgroups of allowed elements, each generated from the one before and one more element.

    `element_number`: by its permutation of nodes (as bytes), the number of an element. `chunks`: of each kind.
    """
    fixes_kind = group.kinds == np.arange(group.kinds.shape[1])
    candidates = np.flatnonzero(allowed & (np.arange(len(group)) > 0))
    generators: list[int] = []
    subgroup = frozenset([0])
    for element in rng.permutation(candidates)[:_TRIES].tolist():
        if element in subgroup:
            continue
        closed = _generate_subgroup(group, element_number, [*generators, element], allowed, fixes_kind, chunks)
        if closed is not None:
            generators.append(element)
            subgroup = closed
            yield subgroup
            if len(subgroup) == group.arcs.shape[1]:  # a larger one would fix an arc (see `find_subgroups`)
                return


def _generate_subgroup(
    group: SymmetryGroup, element_number: dict[bytes, int], generators: Sequence[int], allowed: NDArray[np.bool_],
    fixes_kind: NDArray[np.bool_], chunks: NDArray[np.int64],
) -> frozenset[int] | None:  # fmt: skip
    """Return the subgroup that these elements generate, as element numbers, or None if it is not admissible.

    `allowed`: by element. `fixes_kind`: by element and kind. `chunks`: by kind.
    """
    # breadth-first closure under left multiplication by the generators
    generated, fresh = {0}, [0]
    fixing = fixes_kind[0].astype(np.int64)  # per kind the number of generated elements that fix it
    while fresh:
        next_fresh = []
        for element in fresh:
            for generator in generators:
                other = element_number[group.nodes[generator][group.nodes[element]].tobytes()]
                if other in generated:
                    continue
                if not allowed[other]:
                    return None
                generated.add(other)
                next_fresh.append(other)
                # chunks are permuted freely, so an orbit has as many chunks of a kind as elements fix the kind
                fixing += fixes_kind[other]
                if np.any(fixing > chunks):
                    return None
        fresh = next_fresh
    return None if np.any(chunks % fixing) else frozenset(generated)


class _ImageTables:
    """Tables that find the image of each arc, kind and limit of an instance under a permutation of nodes and bonds."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        ends = list(zip(instance.tail.tolist(), instance.head.tolist(), strict=True))
        self._bond = dict(zip(ends, range(len(ends)), strict=True))  # (tail, head) -> bond, of parallel ones the last
        has_no_parallel_bonds = len(self._bond) == len(ends)
        # widths of the tables that determine an element
        self.short_widths = (instance.nodes,) if has_no_parallel_bonds else (instance.nodes, len(ends))
        # paths and sides of kinds as rows of equal length: the filler is a number that permutations map to itself
        self._paths = _pad_rows(instance.arcs.paths, len(ends))
        self._arc = _index_rows(self._paths)
        holders = _pad_rows([kind.holders for kind in instance.kinds], instance.nodes)
        dests = _pad_rows([kind.dests for kind in instance.kinds], instance.nodes)
        self._sides = np.sort(holders, axis=1), np.sort(dests, axis=1)
        self._kind = _index_rows(np.hstack(self._sides))
        self._weights = np.array([kind.weight for kind in instance.kinds], np.int64)

    def element_of(self, short: Table) -> Table:
        """Return the long form of a known symmetry from its short form."""
        nodes, bonds = short[: self.instance.nodes], short[self.instance.nodes :]
        if len(self.short_widths) == 1:
            tails, heads = (nodes[ends].tolist() for ends in (self.instance.tail, self.instance.head))
            bonds = np.array([self._bond[pair] for pair in zip(tails, heads, strict=True)], np.int64)
        element = self.complete_element(nodes, bonds)
        assert element is not None
        return element

    def complete_element(self, nodes: Table, bonds: Table) -> Table | None:
        """Return the long form, or None where limits, kinds or arcs are not mapped to existing ones."""
        kinds = self._map_kinds(nodes)
        limits = self._map_limits(bonds) if kinds is not None else None
        arcs = _row_numbers(self._arc, np.append(bonds, len(bonds))[self._paths])
        if kinds is None or limits is None or arcs is None:  # the instance may not hold all paths
            return None
        # the second `bonds`: resources are the bonds, then the limits
        return np.concatenate([nodes, bonds, arcs, bonds, limits, kinds])

    def _map_kinds(self, nodes: Table) -> Table | None:
        """Return the image of each kind, None if one has none of its weight."""
        to = np.append(nodes, len(nodes))
        # a kind is known by its holders and its destinations, both sorted
        numbers = _row_numbers(self._kind, np.hstack([np.sort(to[side], axis=1) for side in self._sides]))
        return numbers if numbers is not None and np.array_equal(self._weights[numbers], self._weights) else None

    @cached_property
    def _limits_by_shape(self) -> dict[tuple[Fraction, frozenset[int]], list[int]]:
        """Return the shared limits by capacity and bonds."""
        instance, count = self.instance, len(self.instance.bonds)
        members: list[list[int]] = [[] for _ in instance.capacity]
        for bond, limits in enumerate(instance.limits_of):
            for limit in limits:
                members[limit].append(bond)
        by_shape: dict[tuple[Fraction, frozenset[int]], list[int]] = {}
        for limit in range(count, len(members)):
            by_shape.setdefault((instance.capacity[limit], frozenset(members[limit])), []).append(limit)
        return by_shape

    def _map_limits(self, bonds: Table) -> Table | None:
        """Return the image of each shared limit, None if one has none."""
        count = len(bonds)
        out = np.zeros(len(self.instance.capacity) - count, np.int64)
        for (capacity, bonds_under), limits in self._limits_by_shape.items():
            images = self._limits_by_shape.get((capacity, frozenset(bonds[sorted(bonds_under)].tolist())))
            if images is None or len(images) != len(limits):
                return None
            # limits of equal capacity over the same bonds are interchangeable
            out[np.array(limits) - count] = images
        return out


def _pad_rows(rows: Sequence[Sequence[int]], filler: int) -> Table:
    """Return rows of different lengths as one table."""
    out = np.full((len(rows), max(map(len, rows), default=0)), filler, np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out


def _index_rows(rows: Table) -> dict[bytes, int]:
    return {row.tobytes(): i for i, row in enumerate(rows)}


def _row_numbers(numbers: dict[bytes, int], rows: Table) -> Table | None:
    """Return the number of every row; None if one has none."""
    row_numbers = [numbers.get(row.tobytes(), -1) for row in rows]
    return None if -1 in row_numbers else np.array(row_numbers, np.int64)


def _find_generators(tables: _ImageTables) -> Iterator[Table | None]:
    """Yield machine symmetries that generate all those preserving each rank's role in the collective.

    None in place of one that takes some limit, kind or path to none of the instance's.
    """
    instance = tables.instance
    topology = instance.topology
    # only capacity counts
    types_without_latency = tuple(LinkType("link", kind.bandwidth) for kind in topology.types)
    bond_of = np.empty(topology.links, np.int64)
    for bond, links in enumerate(instance.bonds):
        bond_of[list(links)] = bond
    # one link of every bond: where it goes, the bond goes
    first = np.array([links[0] for links in instance.bonds], np.int64)
    machine = replace(topology, types=types_without_latency)
    for nodes in automorphisms(machine, _color_nodes(instance)):
        bonds = bond_of[link_map(machine, nodes)[first]]
        yield tables.complete_element(nodes.astype(np.int64), bonds)


def _color_nodes(instance: Instance) -> list[int]:
    """Return per node a number for its role: the weights of the kinds that it holds and of those that it needs."""
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


def _apply_after(element: Table, rows: Table, widths: Sequence[int]) -> Table:
    """Return `element` after each row: every section of the permutation is composed separately.

    `widths`: lengths of the sections (nodes, bonds, arcs, resources, kinds; in the short form the first one or two).
    """
    out, at = np.empty_like(rows), 0
    for width in widths:
        out[:, at : at + width] = element[at : at + width][rows[:, at : at + width]]
        at += width
    return out


# (generator, elements): elements are numbered in order of creation, and each entry appends generator * element for all
# of its elements
Products = list[tuple[int, Table]]


def _close_products(generators: Table, widths: Sequence[int], max_elements: int) -> Products | None:
    """Return how to generate all products of these generators from the identity; None if more than `max_elements`."""
    identity = np.concatenate([np.arange(width) for width in widths])[None]
    known_elements = {identity.tobytes()}
    products: Products = []
    # breadth-first: every generator times the elements that are new since the last pass, which begin at number `first`
    fresh, first = identity, 0
    while len(fresh):
        after: list[Table] = []
        for number, generator in enumerate(generators):
            images = _apply_after(generator, fresh, widths)
            new = []
            for index, row in enumerate(images):
                if (key := row.tobytes()) not in known_elements:
                    known_elements.add(key)
                    new.append(index)
            if len(known_elements) > max_elements:
                return None
            if new:
                products.append((number, first + np.array(new)))
                after.append(images[new])
        first += len(fresh)
        fresh = np.concatenate(after) if after else identity[:0]
    return products


def _expand_elements(products: Products, generators: Table, widths: Sequence[int]) -> Table:
    """Return the elements of `products` in long form."""
    out = np.empty((1 + sum(len(before) for _, before in products), sum(widths)), np.int64)
    out[0] = np.concatenate([np.arange(width) for width in widths])
    at = 1
    for number, before in products:
        out[at : at + len(before)] = _apply_after(generators[number], out[before], widths)
        at += len(before)
    return out


def _sample_subgroup(generators: Table, widths: Sequence[int], seed: int) -> tuple[Table, Products]:
    """Return generators and products of a subgroup of at most _FEW elements with as few node orbits as possible: the
    best of the closures of random products.
    """
    rng = np.random.default_rng(seed)
    nodes = widths[0]
    pool = [*generators]
    goal = _orbit_count(generators[:, :nodes])
    best: tuple[Table, Products] = generators[:0], []
    fewest = nodes + 1
    burn_in = 10 * len(pool) + 50
    for trial in range(burn_in + _WALKS):  # product replacement: random elements, nearly uniform after `burn_in`
        a, b = rng.integers(0, len(pool), 2)
        if a == b:
            continue
        pool[a] = _apply_after(pool[b], pool[a][None], widths)[0]
        if trial < burn_in:
            continue
        # mostly cyclic subgroups, sometimes two generators
        chosen = np.array([pool[a]] if trial % 4 else [pool[a], pool[b]])
        orbit_count = _orbit_count(chosen[:, :nodes])
        if orbit_count < fewest:
            closed = _close_products(chosen, widths, _FEW)
            if closed is not None:
                best, fewest = (chosen, closed), orbit_count
        if fewest == goal:
            break
    return best


def _orbit_count(permutations: Table) -> int:
    """Return the number of orbits of points under these permutations together."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = permutations.shape[1]
    ends = np.tile(np.arange(count), len(permutations)), permutations.ravel()
    joined = csr_array((np.ones(len(ends[0])), ends), shape=(count, count))
    return int(connected_components(joined, directed=False)[0])


def _split_columns(rows: Table, widths: tuple[int, ...]) -> SymmetryGroup:
    return SymmetryGroup(*np.split(rows, np.cumsum(widths)[:-1], axis=1))
