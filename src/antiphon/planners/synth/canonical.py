"""Renumber problems canonically, so that isomorphic problems have the same answer, effort and cache entry.

An instance (a machine and a collective, core.ksync.instance) becomes a graph with colored vertices, built as a
`Topology` because the symmetry code reads those. Its vertices are ranks and switches; a vertex per shared limit, and
per bond (parallel links) under a limit; and, where needed, a vertex per kind (blocks with equal holders and
destinations), joined to its holders and destinations. Colors encode capacities and the ranks' roles in the collective.
BLISS (core.symmetry) computes a canonical labelling of the graph: numbers of its vertices that are equal for isomorphic
graphs. Canonical numbers of nodes, bonds, limits and kinds follow from it.

`CanonicalProblem` holds the original instance, the renumbered one and the map between them. The search runs on the
renumbered one; its moves, proofs and points are translated back.

Example: a broadcast on a ring of 6 is the same problem for every root; canonically the root always gets the same
number.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.renaming import Naming, rename_instance, renamed_dual
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Link, LinkType, Topology, build
from antiphon.planners.synth.frontier import Point, Refuted
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.search import Impossible
from antiphon.planners.synth.task import Move

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CanonicalProblem:
    """The original problem, `instance` in canonical numbers, and the map `back` from these to the original numbers."""

    original: Instance
    instance: Instance
    back: Naming

    def translate_moves(self, moves: Iterable[Move]) -> tuple[Move, ...]:
        """Return the moves in the original numbers of kinds and bonds."""
        kinds = self.back.kinds.tolist()
        return tuple((kinds[kind], chunk, self.back.path(path), step) for kind, chunk, path, step in moves)

    def translate_proof(self, proved: Proved) -> Proved:
        return Proved(renamed_dual(proved.dual, self.back), proved.worth)

    def translate_impossible(self, why: Impossible) -> Impossible:
        """Translate a refutation. Resolution proofs refer to clauses of one numbering, so the renaming is attached
        to them.
        """
        resolution = why.resolution
        if resolution is not None:
            resolution = {**resolution, "naming": self.back.inverse().as_json()}
        return replace(why, duals=tuple(map(self.translate_proof, why.duals)), resolution=resolution)

    def translate_point(self, point: Point) -> Point:
        """Return a point of the frontier in the original numbers."""
        refuted = tuple(
            Refuted(candidate.parts, candidate.rounds, self.translate_impossible(candidate.why))
            for candidate in point.refuted
        )
        return replace(
            point,
            instance=self.original,
            moves=self.translate_moves(point.moves),
            bound_proof=None if point.bound_proof is None else self.translate_proof(point.bound_proof),
            refuted=refuted,
        )


def pose_canonically(instance: Instance) -> CanonicalProblem:
    """Renumber an instance. One run of BLISS (no polynomial bound, fast on machines), else O(size of the instance)."""
    naming = naming_of(instance)
    return CanonicalProblem(instance, rename_instance(instance, naming), naming.inverse())


def naming_of(instance: Instance) -> Naming:
    """Return the renaming. Isomorphic problems become equal except for names of machine, blocks and roots."""
    graph = _ColoredGraph(instance)
    # Canonical labels of a colored graph are equal for isomorphic problems.
    labels, _ = canonical(graph.to_topology(), graph.vertex_colors())
    ranks, label = instance.ranks, labels.astype(np.int64)
    # ranks and switches keep to their ranges of numbers; within a range by canonical label
    nodes = np.concatenate([label[:ranks], ranks + _positions_of(label[ranks : instance.nodes])])
    limits = _positions_of(label[list(graph.limits)])
    # a bond that is under no limit is no vertex; the label that it gets here decides nothing
    bonds = _bond_names(instance, nodes, label[graph.bonds])
    ends = [tuple(sorted(nodes[list(side)].tolist()) for side in (k.holders, k.dests)) for k in instance.kinds]
    order = sorted(range(len(ends)), key=ends.__getitem__)  # kinds by holders and destinations, in the new numbers
    # argsort inverts it: by old number of a kind, the new one
    return Naming(nodes, bonds, limits, np.argsort(np.array(order, np.int64)))


def _positions_of(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each label in sorted order: distinct labels become 0, 1, 2, ..."""
    return np.argsort(np.argsort(label))


def _bond_names(instance: Instance, nodes: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return canonical numbers of bonds: by tail, head and capacity; ties (bonds under limits) by `label`."""
    capacity_rank = {c: i for i, c in enumerate(sorted(set(instance.capacity)))}
    rank_of_bond = np.array([capacity_rank[c] for c in instance.capacity[: len(instance.bonds)]], np.int64)
    order = np.lexsort((label, rank_of_bond, nodes[instance.head], nodes[instance.tail]))
    return np.argsort(order)


class _ColoredGraph:
    """The problem as a colored graph: ranks, switches, then vertices for limits, for bonds under them, and for kinds.

    Kinds are omitted if the colors of ranks determine them, that is if ranks of one color are interchangeable. Of an
    instance, `capacity` is in chunks per round, first of the bonds, then of the limits; `limits_of`: a bond's limits.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._colors: list[tuple[Hashable, ...]] = []  # per vertex its color
        self._links: list[Link] = []
        bond_count = len(instance.bonds)
        roles = _rank_roles(instance)
        for role in roles:
            self._add_vertex("rank", role)
        for _ in range(instance.ranks, instance.nodes):
            self._add_vertex("switch")
        self.limits = [self._add_vertex("limit", capacity) for capacity in instance.capacity[bond_count:]]
        self.bonds = np.zeros(bond_count, np.int64)  # the vertex of a bond under limits
        for bond in range(bond_count):
            self._add_bond(bond)
        if not _roles_determine_kinds(instance, roles):
            # Kinds become vertices: holders -> kind -> destinations.
            _, _, link_type = self._links[0]
            kind_link = LinkType("kind", link_type.bandwidth)  # any bandwidth: vertices of kinds have their own colors
            for kind in instance.kinds:
                vertex = self._add_vertex("kind", kind.weight)
                self._links += [(rank, vertex, kind_link) for rank in kind.holders]
                self._links += [(vertex, rank, kind_link) for rank in kind.dests]

    def _add_vertex(self, *color: Hashable) -> int:
        """Add a vertex of this color and return its number."""
        self._colors.append(color)
        return len(self._colors) - 1

    def _add_bond(self, bond: int) -> None:
        """Add a bond: a link, or a vertex if it is under limits."""
        instance = self._instance
        ends = int(instance.tail[bond]), int(instance.head[bond])
        link_type = LinkType("link", instance.capacity[bond])
        if not instance.limits_of[bond]:
            self._links.append((*ends, link_type))
            return
        # A bond under limits becomes a vertex of its own, joined with its ends and its limits.
        vertex = self.bonds[bond] = self._add_vertex("bond", instance.capacity[bond])
        self._links += [(ends[0], vertex, link_type), (vertex, ends[1], link_type)]
        first_limit = len(instance.bonds)  # limits are numbered after the bonds
        self._links += [(vertex, self.limits[limit - first_limit], link_type) for limit in instance.limits_of[bond]]

    def to_topology(self) -> Topology:
        """Return the graph as a topology whose vertices beyond the ranks are switches."""
        ranks = self._instance.ranks
        return build("graph", ranks, self._links, switches=len(self._colors) - ranks)

    def vertex_colors(self) -> list[int]:
        """Return a number per vertex, equal for corresponding vertices of isomorphic problems."""
        number = {color: i for i, color in enumerate(sorted(set(self._colors), key=repr))}
        return [number[color] for color in self._colors]


def _holds_and_wants(instance: Instance) -> tuple[Bools, Bools]:
    """Return two tables, kinds x ranks: which rank holds and which needs each kind."""
    holds, wants = (np.zeros((len(instance.kinds), instance.ranks), bool) for _ in range(2))
    for number, kind in enumerate(instance.kinds):
        holds[number, list(kind.holders)] = True
        wants[number, list(kind.dests)] = True
    return holds, wants


def _rank_roles(instance: Instance) -> list[Hashable]:
    """Return per rank the weights and numbers of holders and destinations of the kinds it holds and of those it
    needs.
    """
    figures = [(k.weight, len(k.holders), len(k.dests)) for k in instance.kinds]
    out: list[Hashable] = []
    holds, wants = _holds_and_wants(instance)
    for held_and_wanted in zip(holds.T, wants.T, strict=True):  # of each rank, a column of kinds each
        out.append(
            tuple(tuple(sorted(figures[k] for k in np.flatnonzero(kinds).tolist())) for kinds in held_and_wanted)
        )
    return out


def _roles_determine_kinds(instance: Instance, roles: list[Hashable]) -> bool:
    """Return whether the kinds are preserved when any two ranks of the same role are exchanged.

    Transpositions of neighbours suffice: they generate all permutations. O(ranks * kinds) plus the changed kinds.
    """
    table = np.stack(_holds_and_wants(instance), axis=1)  # kinds x sides x ranks
    weights = {row.tobytes(): kind.weight for row, kind in zip(table, instance.kinds, strict=True)}
    ranks_of_role: dict[Hashable, list[int]] = defaultdict(list)
    for rank, role in enumerate(roles):
        ranks_of_role[role].append(rank)
    for ranks in ranks_of_role.values():
        for a, b in itertools.pairwise(ranks):
            # Only kinds that treat the two ranks differently change; each must become another kind of the same weight.
            changed = np.flatnonzero((table[:, :, a] != table[:, :, b]).any(axis=1))
            swapped = table[changed]
            swapped[:, :, [a, b]] = swapped[:, :, [b, a]]
            for kind, row in zip(changed.tolist(), swapped, strict=True):
                if weights.get(row.tobytes()) != instance.kinds[kind].weight:
                    return False
    return True
