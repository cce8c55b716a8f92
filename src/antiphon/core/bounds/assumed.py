"""What a bound without the help of switches takes for granted: that those which could multicast or reduce do not."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.bounds.places import abilities_of
from antiphon.core.bounds.witness import Cut, Witness
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology

REDUCTION, MULTICAST = "no reduction in switches", "no multicast in switches"


def helped(topology: Topology, collective: Collective) -> tuple[str, ...]:
    """What switches of this machine can do that this collective may have use for, as what is assumed without it.

    Nobody has use for a reduction where nothing is combined, nor for a multicast where no block is wanted by two.
    """
    helps = abilities_of(topology, collective).values()
    reduces, multicasts = (
        any(getattr(ability, operation) for ability in helps) for operation in ("reduce", "multicast")
    )
    return (*([REDUCTION] if reduces else []), *([MULTICAST] if multicasts else []))


def assumed(topology: Topology, collective: Collective, witness: Witness | None) -> tuple[str, ...]:
    """What the bound that this witness proves of a machine whose switches only forward assumes of this one.

    A cut assumes nothing: what must get out of a set of nodes crosses a link out of it at least once, however often it
    is copied or combined on the way.
    """
    return () if witness is None or isinstance(witness, Cut) else helped(topology, collective)


def without(assumes: Sequence[str], form: str = "{}") -> str:
    """Words for what is assumed, to stand in `form`: "without reduction or multicast in switches"; "" for nothing."""
    operations = [text.removeprefix("no ").removesuffix(" in switches") for text in assumes]
    return form.format(f"without {' or '.join(operations)} in switches") if operations else ""
