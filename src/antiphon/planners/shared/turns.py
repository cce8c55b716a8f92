"""Symmetries that the places of ranks suggest: every box to the next one, every row of a grid, every card of a box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.planners.shared.places import nested_groups

Table = NDArray[np.int64]
MOST = 32  # tries, a labelling each


def turns(machine: Topology, colour: Sequence[int], roots: Sequence[int]) -> Iterator[Table]:
    """Permutations of all nodes that keep colours and take roots round, level by level of their places, the outermost
    first. Where a level cannot be turned as a whole (cards of a box in pairs, say), it is seen as levels within it.

    O(levels * links log links): with all roots told apart a canonical labelling is a refinement.
    """
    fans, seating = nested_groups(machine, roots)
    grid = np.array(seating).reshape(fans[::-1])
    known = _Named(machine, colour)
    for axis in range(grid.ndim):
        yield from known.turned(grid, axis)


class _Named:
    """A machine whose roots are told apart."""

    def __init__(self, machine: Topology, colour: Sequence[int]) -> None:
        self.machine, self.colour = machine, colour
        self.left = MOST

    def turned(self, grid: Table, axis: int) -> list[Table]:
        """Those that turn this axis; of the coarsest factors of its length that all can be turned. Empty where none."""
        count = grid.shape[axis]
        if count < 2:
            return []
        whole = self.extended(grid, np.roll(grid, -1, axis))
        if whole is not None:
            return [whole]
        for high in range(2, count):
            if count % high == 0:
                finer = grid.reshape(*grid.shape[:axis], high, count // high, *grid.shape[axis + 1 :])
                outer = self.turned(finer, axis)
                inner = self.turned(finer, axis + 1) if outer else []
                if inner:
                    return [*outer, *inner]
        return []

    def extended(self, grid: Table, images: Table) -> Table | None:
        """The symmetry of the machine that takes these ranks to those, if there is one."""
        colour = np.array(self.colour)
        if not self.left or not np.array_equal(colour[grid], colour[images]):
            return None
        self.left -= 1
        (here, key), (there, other) = (self._labelled(ranks) for ranks in (grid, images))
        if key != other:
            return None
        back = np.empty(len(there), np.int64)
        back[there] = np.arange(len(there))
        found: Table = back[here]
        return found

    def _labelled(self, ranks: Table) -> tuple[NDArray[np.int32], str]:
        """With these ranks numbered in this order."""
        told = list(self.colour)
        top = max(told) + 1
        for number, rank in enumerate(ranks.ravel().tolist()):
            told[rank] = top + number
        return canonical(self.machine, told)
