"""Of all trees that were grown those that are worth beginning in steps.

A forest in equal pieces is judged by its rate alone, and of forests that are as fast one may leave links idle that
another needs while pipelines fill and empty. So all trees are held against each other by the linear program that says
how much begins in which step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from antiphon.planners.shared.begins import Class, Floats, begins, by_kinds, distinct, entries
from antiphon.planners.trees.bounded import Hops, Machine

TURNS = 3  # times the deepest: steps that trees are held against each other by
MOST_CELLS = 100_000  # of that program: some two CPU seconds
RARE = 0.004  # of the data: a tree that carries less is not worth its chunks


def chosen(machine: Machine, trees: Iterable[Hops]) -> list[Hops]:
    """Of these trees, the first of which count most, those that the best steps begin."""
    late = np.array([kind.latency for kind in machine.topology.types])[machine.topology.link_type]
    known = list(trees)
    classes = by_kinds([_class(machine, number, hops, late) for number, hops in enumerate(known)])
    if not classes:
        return []
    deepest = max(one.steps for one in classes)
    steps, kinds = TURNS * deepest, distinct(classes)
    room = np.cumsum([entries(one, kinds, steps, deepest) for one in classes]) <= MOST_CELLS
    some = [one for one, fits in zip(classes, room.tolist(), strict=True) if fits]
    found = begins(some, kinds, steps) if some else None
    if found is None:
        return []
    share = {one.plan: float(begun.sum()) for one, begun in zip(some, found, strict=True)}
    return [known[plan] for plan in sorted(share, key=lambda plan: -share[plan]) if share[plan] > RARE]


def _class(machine: Machine, number: int, hops: Hops, late: Floats) -> Class:
    """A tree with all its images, as a class of its own: a row is an orbit of links."""
    steps = max(hop.depth for _, hop in hops)
    load, slowest = np.zeros((len(machine.capacity), steps)), np.zeros(steps)
    for step in range(steps):
        mine = [(rank, hop) for rank, hop in hops if hop.depth == step + 1]
        load[:, step] = machine.load(mine)
        slowest[step] = max(float(late[list(hop.path)].sum()) for _, hop in mine)
    return Class(number, np.arange(1), load / machine.capacity[:, None], slowest)
