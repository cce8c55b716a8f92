"""Renumber a search problem (an `Instance`), and translate its proofs between numberings.

A proof is a dual (prices of links) or a refutation (a proof by resolution that a formula has no solution, see
`proof.py`). Certificates are cached by the isomorphism class of their problem: problems that differ only in numbering
share one, so a proof found for one numbering must be checkable for every other one. Only capacities count here: every
bond (a group of parallel links) becomes one link of its capacity in chunks per round; its links in the original machine
do not matter. Any bijection is sound: an algorithm or proof for one numbering is one for the other.

Example: in a ring of 4, relabelling node i as i + 1 (mod 4) maps the bond 0 -> 1 to the bond 1 -> 2. A dual with price
1 on bond 0 -> 1 becomes one with price 1 on bond 1 -> 2, and proves the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.dual import PriceSplit, StepDual
from antiphon.core.ksync.instance import Instance, Kind
from antiphon.core.topology import LinkType, SharedLimit, Topology
from antiphon.core.transform.renaming import relabel_collective
from antiphon.errors import Invalid

Table = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Naming:
    """A renumbering of an instance: node n becomes nodes[n], and likewise bonds, limits (0 is the first limit) and
    kinds of chunks. Chunks of a kind keep their numbers.
    """

    nodes: Table
    bonds: Table
    limits: Table
    kinds: Table

    @property
    def resources(self) -> Table:
        """The permutation of resources: bonds, then limits."""
        return np.concatenate([self.bonds, len(self.bonds) + self.limits])

    def inverse(self) -> Naming:
        return Naming(*(np.argsort(permutation) for permutation in (self.nodes, self.bonds, self.limits, self.kinds)))

    def path(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return a path of bonds, renumbered."""
        return tuple(self.bonds[list(path)].tolist())

    def as_json(self) -> dict[str, Any]:
        permutations = {"nodes": self.nodes, "bonds": self.bonds, "limits": self.limits, "kinds": self.kinds}
        return {key: permutation.tolist() for key, permutation in permutations.items()}

    @staticmethod
    def of_json(value: Mapping[str, Any], instance: Instance) -> Naming:
        """Read the permutations; raise Invalid if they do not fit this instance."""
        ranks, bonds = instance.ranks, len(instance.bonds)
        sizes = {
            "nodes": instance.nodes, "bonds": bonds, "limits": len(instance.capacity) - bonds,
            "kinds": len(instance.kinds),
        }  # fmt: skip
        permutations: dict[str, Table] = {}
        for key, size in sizes.items():
            row = value.get(key)
            if not isinstance(row, list) or any(type(x) is not int for x in row) or sorted(row) != list(range(size)):
                raise Invalid(f"certificate: its renaming of {key} is no permutation of {size}; plan anew")
            permutations[key] = np.array(row, np.int64)
        if ranks and int(permutations["nodes"][:ranks].max()) >= ranks:
            raise Invalid("certificate: its renaming of nodes takes a rank to a switch; plan anew")
        return Naming(**permutations)


def rename_instance(instance: Instance, naming: Naming) -> Instance:
    """Return the same problem, renumbered. O(links + limits + kinds * ranks)."""
    # Permutations map old to new; argsort inverts them where the new order is needed.
    nodes, old_bond = naming.nodes, np.argsort(naming.bonds)  # per new bond its old number
    tail, head = nodes[instance.tail[old_bond]], nodes[instance.head[old_bond]]
    count = len(old_bond)
    old_resource = np.concatenate([old_bond, count + np.argsort(naming.limits)])
    capacity = tuple(instance.capacity[r] for r in old_resource.tolist())
    new_number = naming.resources
    # `limits_of`: per bond its limits, by their numbers as resources
    limits_of = tuple(tuple(sorted(new_number[list(instance.limits_of[bond])].tolist())) for bond in old_bond.tolist())
    collective, block = relabel_collective(instance.collective, nodes[: instance.ranks])
    kinds = []
    for old in np.argsort(naming.kinds).tolist():
        kind = instance.kinds[old]
        holders, dests = (tuple(sorted(nodes[list(side)].tolist())) for side in (kind.holders, kind.dests))
        kinds.append(Kind(holders, dests, tuple(block[list(kind.blocks)].tolist()), kind.weights))
    # The relabelled machine is synthetic: one link per bond.
    machine = _bond_topology(instance, tail, head, capacity, limits_of)
    return Instance(
        machine, collective, bonds=tuple((i,) for i in range(count)), tail=machine.link_src, head=machine.link_dst,
        capacity=capacity, limits_of=limits_of, kinds=tuple(kinds),
    )  # fmt: skip


def _bond_topology(
    instance: Instance, tail: Table, head: Table, capacity: Sequence[Fraction], limits_of: Sequence[Sequence[int]]
) -> Topology:
    """Return a machine with one link per bond, whose bandwidth in units of 1 is its capacity in chunks per round."""
    count = len(tail)
    bonds_under: list[list[int]] = [[] for _ in capacity]  # per resource; only limits have any
    for bond, limits in enumerate(limits_of):
        for limit in limits:
            bonds_under[limit].append(bond)
    speeds = sorted(set(capacity[:count]))  # each becomes a type of link
    type_of_speed = {speed: i for i, speed in enumerate(speeds)}
    shared = [SharedLimit(f"limit{i}", tuple(bonds_under[i]), capacity[i]) for i in range(count, len(capacity))]
    return Topology(
        name=instance.topology.name, ranks=instance.ranks, switches=instance.nodes - instance.ranks,
        link_src=tail.astype(np.int32), link_dst=head.astype(np.int32),
        link_type=np.array([type_of_speed[c] for c in capacity[:count]], np.int32),
        types=tuple(LinkType("link", speed) for speed in speeds), limits=tuple(shared), unit=Fraction(1),
    )  # fmt: skip


def renamed_dual(dual: StepDual, naming: Naming) -> StepDual:
    """Translate a dual of an instance to `rename_instance(instance, naming)`, where it proves the same. Linear."""
    nodes, bonds, kinds = naming.nodes, naming.bonds, naming.kinds
    price_splits = {
        int(kinds[kind]): PriceSplit(
            _rename_rows(split.rows, (nodes, bonds)), _rename_rows(split.potentials, (nodes,))
        )
        for kind, split in dual.price_splits.items()
    }  # fmt: skip
    # `like` refers a kind to a symmetric one, with the permutations of bonds and nodes between them.
    like = {
        int(kinds[kind]): (
            int(kinds[other]),
            _conjugate_permutation(bonds, by_bonds),
            _conjugate_permutation(nodes, by_nodes),
        )
        for kind, (other, by_bonds, by_nodes) in dual.like.items()
    }
    prices = _rename_rows(dual.prices, (naming.resources,))
    return StepDual(dual.steps, prices, dict(sorted(price_splits.items())), dict(sorted(like.items())))


def _rename_rows(rows: Table, permutations: Sequence[Table]) -> Table:
    """Renumber the first columns of rows, and sort the rows.

    Node 0 becomes 2, node 1 becomes 0:

    >>> _rename_rows(np.array([[0, 5], [1, 6]]), [np.array([2, 0, 1])]).tolist()
    [[0, 6], [2, 5]]
    """
    renamed = rows.copy()
    for column, new_number in enumerate(permutations):
        renamed[:, column] = new_number[renamed[:, column]]
    return renamed[np.lexsort(renamed.T[::-1])]


def _conjugate_permutation(new_number: Table, permutation: Sequence[int]) -> tuple[int, ...]:
    """Renumber a permutation: if it mapped x to y, the result maps new_number[x] to new_number[y]."""
    renamed = np.zeros(len(permutation), np.int64)
    # Conjugation: permutation p becomes new_number * p * new_number^-1.
    renamed[new_number] = new_number[list(permutation)]
    return tuple(renamed.tolist())
