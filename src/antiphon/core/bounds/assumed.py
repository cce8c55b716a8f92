"""What a lower bound assumes if it holds only for machines whose switches merely forward.

On machines whose switches multicast or reduce, `bound` is computed twice: with their help, and unaided. The unaided
bound is valid on such a machine only for schedules that do not use these abilities. `assumed_conditions` lists the
conditions, and `conditions_text` puts them into words. Example: the unaided bound of an allreduce behind a reducing
switch has the condition "no reduction in switches", unless its proof is a cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.bounds.abilities import abilities_of
from antiphon.core.bounds.witness import Cut, Witness
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology

REDUCTION, MULTICAST = "no reduction in switches", "no multicast in switches"


def conditions_without_help(topology: Topology, collective: Collective) -> tuple[str, ...]:
    """Return the conditions "no ... in switches" for the operations of switches that can help this collective.

    A reduction helps only if something is combined, a multicast only if several ranks want the same block.
    """
    helps = abilities_of(topology, collective).values()
    reduces, multicasts = (
        any(getattr(ability, operation) for ability in helps) for operation in ("reduce", "multicast")
    )
    return (*([REDUCTION] if reduces else []), *([MULTICAST] if multicasts else []))


def assumed_conditions(topology: Topology, collective: Collective, witness: Witness | None) -> tuple[str, ...]:
    """Return the conditions under which the witness of a machine whose switches only forward also holds for this
    machine.

    A cut has none: data that must leave a set of nodes cross a link out of it at least once, even if they are copied or
    combined on the way. Without a witness there is no bound, and nothing is assumed.
    """
    return () if witness is None or isinstance(witness, Cut) else conditions_without_help(topology, collective)


def conditions_text(assumes: Sequence[str], form: str = "{}") -> str:
    """Return the conditions in words, placed in `form`: "without reduction or multicast in switches"; "" if there are
    none."""
    operations = [text.removeprefix("no ").removesuffix(" in switches") for text in assumes]
    return form.format(f"without {' or '.join(operations)} in switches") if operations else ""
