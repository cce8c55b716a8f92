"""What a bound takes for granted: that switches which could multicast or reduce do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.core.bounds.witness import Cut, Witness
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology

REDUCTION, MULTICAST = "no reduction in switches", "no multicast in switches"


def helped(topology: Topology, collective: Collective) -> tuple[str, ...]:
    """What switches of this machine can do that this collective may have use for, as what is assumed without it.

    Nobody has use for a reduction where nothing is combined, nor for a multicast where no block is wanted by two.
    """
    reduces = topology.helpers.reduce and collective.combining
    multicasts = topology.helpers.multicast and _wanted_twice(collective)
    return (*([REDUCTION] if reduces else []), *([MULTICAST] if multicasts else []))


def assumed(topology: Topology, collective: Collective, witness: Witness | None) -> tuple[str, ...]:
    """What the bound that this witness proves assumes. A cut assumes nothing: what must get out of a set of nodes
    crosses a link out of it at least once, however often it is copied or combined on the way."""
    return () if witness is None or isinstance(witness, Cut) else helped(topology, collective)


def without(assumes: Sequence[str], form: str = "{}") -> str:
    """Words for what is assumed, to stand in `form`: "without reduction or multicast in switches"; "" for nothing."""
    things = [text.removeprefix("no ").removesuffix(" in switches") for text in assumes]
    return form.format(f"without {' or '.join(things)} in switches") if things else ""


def _wanted_twice(collective: Collective) -> bool:
    counts = np.bincount(collective.relation.post_block)
    return bool(np.any(counts > 1))
