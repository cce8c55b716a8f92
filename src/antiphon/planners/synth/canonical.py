"""One numbering for all problems that differ in numbers alone: what is found, and how long it takes, is the same.

Nodes, bonds, limits and, where need be, kinds of chunks become vertices of one coloured graph, drawn as a machine,
which core.symmetry numbers canonically. Of links only capacities count, of ranks their part in the collective.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.renaming import Naming, renamed, renamed_dual
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Link, LinkType, Topology, build
from antiphon.planners.synth.frontier import Point, Refuted
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.search import Impossible
from antiphon.planners.synth.task import Move

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Posed:
    """A problem as it was asked, the same in canonical numbers, and the way back."""

    asked: Instance
    instance: Instance
    back: Naming

    def moves(self, moves: Iterable[Move]) -> tuple[Move, ...]:
        kinds = self.back.kinds.tolist()
        return tuple((kinds[kind], chunk, self.back.path(path), step) for kind, chunk, path, step in moves)

    def proved(self, proved: Proved) -> Proved:
        return Proved(renamed_dual(proved.dual, self.back), proved.worth)

    def impossible(self, why: Impossible) -> Impossible:
        """A proof by resolution speaks of the clauses of one numbering: how that came of what was asked goes along."""
        resolution = why.resolution
        if resolution is not None:
            resolution = {**resolution, "naming": self.back.inverse().as_json()}
        return replace(why, duals=tuple(map(self.proved, why.duals)), resolution=resolution)

    def point(self, point: Point) -> Point:
        refuted = tuple(Refuted(lesser.parts, lesser.rounds, self.impossible(lesser.why)) for lesser in point.refuted)
        return replace(
            point, instance=self.asked, moves=self.moves(point.moves), least=self.proved(point.least), refuted=refuted
        )


def posed(instance: Instance) -> Posed:
    """One run of BLISS, of no polynomial bound but easy for machines; else O(size of the instance)."""
    naming = naming_of(instance)
    return Posed(instance, renamed(instance, naming), naming.inverse())


def naming_of(instance: Instance) -> Naming:
    """Alike problems, so renamed, are equal in all but the names of the machine, the blocks and the roots."""
    drawn = _Drawn(instance)
    names, _ = canonical(drawn.machine(), drawn.colours())
    ranks, label = instance.ranks, names.astype(np.int64)
    nodes = np.concatenate([label[:ranks], ranks + _places(label[ranks : instance.nodes])])
    limits = _places(label[list(drawn.limits)])
    bonds = _bond_names(instance, nodes, label[drawn.bonds])
    ends = [tuple(sorted(nodes[list(side)].tolist()) for side in (k.holders, k.dests)) for k in instance.kinds]
    order = sorted(range(len(ends)), key=ends.__getitem__)
    return Naming(nodes, bonds, limits, np.argsort(np.array(order, np.int64)))


def _places(label: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.argsort(np.argsort(label))


def _bond_names(instance: Instance, nodes: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.int64]:
    """By tail, head and capacity; bonds still alike then that limits bound by the labels of their vertices."""
    speeds = {c: i for i, c in enumerate(sorted(set(instance.capacity)))}
    speed = np.array([speeds[c] for c in instance.capacity[: len(instance.bonds)]], np.int64)
    order = np.lexsort((label, speed, nodes[instance.head], nodes[instance.tail]))
    return np.argsort(order)


class _Drawn:
    """The problem as a coloured machine: ranks, switches, then vertices for limits, for bonds under them, for kinds.

    Kinds are left out where the colours of ranks say it all: where ranks of one colour can change places at will.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._marks: list[tuple[Hashable, ...]] = []
        self._links: list[Link] = []
        count = len(instance.bonds)
        roles = _roles(instance)
        for role in roles:
            self._new("rank", role)
        for _ in range(instance.ranks, instance.nodes):
            self._new("switch")
        self.limits = [self._new("limit", capacity) for capacity in instance.capacity[count:]]
        self.bonds = np.zeros(count, np.int64)  # the vertex of a bond under limits
        for bond in range(count):
            self._bond(bond)
        if not _settled(instance, roles):
            far = LinkType("kind", self._links[0][2].bandwidth)
            for kind in instance.kinds:
                vertex = self._new("kind", kind.weight)
                self._links += [(rank, vertex, far) for rank in kind.holders]
                self._links += [(vertex, rank, far) for rank in kind.dests]

    def _new(self, *mark: Hashable) -> int:
        self._marks.append(mark)
        return len(self._marks) - 1

    def _bond(self, bond: int) -> None:
        instance = self._instance
        ends = int(instance.tail[bond]), int(instance.head[bond])
        kind = LinkType("link", instance.capacity[bond])
        if not instance.limits_of[bond]:
            self._links.append((*ends, kind))
            return
        vertex = self.bonds[bond] = self._new("bond", instance.capacity[bond])
        self._links += [(ends[0], vertex, kind), (vertex, ends[1], kind)]
        first = len(instance.bonds)
        self._links += [(vertex, self.limits[limit - first], kind) for limit in instance.limits_of[bond]]

    def machine(self) -> Topology:
        ranks = self._instance.ranks
        return build("drawn", ranks, self._links, switches=len(self._marks) - ranks)

    def colours(self) -> list[int]:
        """Numbers of the marks, the same for alike problems."""
        number = {mark: i for i, mark in enumerate(sorted(set(self._marks), key=repr))}
        return [number[mark] for mark in self._marks]


def _sides(instance: Instance) -> tuple[Bools, Bools]:
    """Kinds x ranks: who holds, who wants."""
    holds, wants = (np.zeros((len(instance.kinds), instance.ranks), bool) for _ in range(2))
    for number, kind in enumerate(instance.kinds):
        holds[number, list(kind.holders)] = True
        wants[number, list(kind.dests)] = True
    return holds, wants


def _roles(instance: Instance) -> list[Hashable]:
    """Per rank: the kinds it holds and those it wants, by their weights and how many hold and want them."""
    like = [(k.weight, len(k.holders), len(k.dests)) for k in instance.kinds]
    out: list[Hashable] = []
    for side in zip(*(side_rows.T for side_rows in _sides(instance)), strict=True):
        out.append(tuple(tuple(sorted(like[k] for k in np.flatnonzero(column).tolist())) for column in side))
    return out


def _settled(instance: Instance, roles: list[Hashable]) -> bool:
    """Whether the kinds stay the same when any two ranks of one role change places.

    Neighbours among those of one role will do: they make all. O(ranks * kinds), and what changes in O(ranks).
    """
    table = np.stack(_sides(instance), axis=1)  # kinds x sides x ranks
    weights = {row.tobytes(): kind.weight for row, kind in zip(table, instance.kinds, strict=True)}
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for rank, role in enumerate(roles):
        alike[role].append(rank)
    for same in alike.values():
        for a, b in itertools.pairwise(same):
            touched = np.flatnonzero((table[:, :, a] != table[:, :, b]).any(axis=1))
            swapped = table[touched]
            swapped[:, :, [a, b]] = swapped[:, :, [b, a]]
            for kind, row in zip(touched.tolist(), swapped, strict=True):
                if weights.get(row.tobytes()) != instance.kinds[kind].weight:
                    return False
    return True
