"""Allocations of GPUs in a box: all sets joined by links, one per isomorphism class (Blink, 2.1 and 5.2).

Two sets are isomorphic if renumbering takes the links of one to equally wide links of the other; then all results are
the same for both. They are recognized by the canonical form of the machine that consists of the set alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from antiphon.core.columns import reached_nodes
from antiphon.core.reshape import keep
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology

SIZES = range(3, 9)  # numbers of GPUs in Figures 14 to 17


@dataclass(frozen=True, eq=False)
class Allocation:
    """GPUs of a box that a job got."""

    gpus: tuple[int, ...]
    machine: Topology  # these GPUs with their links; GPU gpus[i] is rank i
    alike: int = 1  # number of sets of GPUs of the box whose machines are isomorphic to this one

    @property
    def name(self) -> str:
        return ",".join(map(str, self.gpus))


def allocation(box: Topology, gpus: Iterable[int]) -> Allocation:
    """Return the allocation of these GPUs."""
    chosen = tuple(sorted(gpus))
    return Allocation(chosen, keep(box, chosen).topology)


def unique_allocations(box: Topology, sizes: Iterable[int] = SIZES) -> tuple[Allocation, ...]:
    """Return one allocation per isomorphism class of sets whose links connect them: its first set, sorted by size."""
    # canonical form of a machine -> the first allocation with it, and the number of such allocations
    kinds: dict[str, tuple[Allocation, int]] = {}
    for size in sizes:
        for gpus in combinations(range(box.ranks), size):
            candidate = allocation(box, gpus)
            if is_joined(candidate.machine):
                key = canonical(candidate.machine).key
                first, alike = kinds.get(key, (candidate, 0))
                kinds[key] = first, alike + 1
    return tuple(Allocation(candidate.gpus, candidate.machine, alike) for candidate, alike in kinds.values())


def is_joined(machine: Topology) -> bool:
    """Return whether links lead from rank 0 to all ranks, without switches."""
    return bool(reached_nodes(np.arange(machine.ranks) == 0, machine.link_src, machine.link_dst).all())
