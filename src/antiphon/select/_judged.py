"""Several plans judged in order: the first thing wrong with any, and what was proved on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault
from antiphon.errors import Invalid
from antiphon.select.plans import check
from antiphon.select.proofs import prove


@dataclass(frozen=True)
class Judged:
    """`fault`: the first there is, with the plan it is of; None where all are right. `own`: whether the machine is the
    plans' own, so that their claims were judged, too. What was rechecked, what an engine alone
    vouches for, and what is only stated in the file, in words, where asked."""

    topology: Topology
    own: bool
    fault: Fault | None = None
    plan: Plan | None = None
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()


def judged(
    plans: Sequence[Plan], topology: Topology | None = None, *, proof: bool = False, op: str | None = None,
    dtype: str | None = None,
) -> Judged:  # fmt: skip
    """Verify plans with all that they claim; on another machine than their own, without. `proof`: recheck bounds and
    certificates from themselves alone, too. `op`, `dtype`: whether switches that combine can do so with these, too."""
    first = plans[0].topology
    machine = topology or first
    if machine.ranks != first.ranks:
        raise Invalid(
            f"the plan is for {first.name} with {first.ranks} ranks, but topology {machine.name} has {machine.ranks}"
        )
    proved: list[str] = []
    trusted: list[str] = []
    stated: list[str] = []
    for one in plans:
        own = machine == one.topology
        fault = check(one, machine, claims=own, op=op, dtype=dtype)
        if fault is None and proof:
            told = prove(one, machine, claims=own)
            fault, proved, trusted = told.fault, [*proved, *told.proved], [*trusted, *told.trusted]
            stated += told.stated
        if fault is not None:
            return Judged(machine, own, fault, one)
    return Judged(machine, machine == first, None, None, tuple(proved), tuple(trusted), tuple(stated))
