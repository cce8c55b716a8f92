"""Lower bounds under a cost model: the gap of a plan divides its predicted time by such a bound of the same model.

Every model has assumptions of its own (a launch per call, protocols, barriers between steps), so a bound holds for one
model and one profile. `BOUNDS` has a function for each model whose bound is known; for the others there is no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from antiphon.core.bounds import Bound
from antiphon.core.bounds.by_size import SizeEvidence, bound_by_size, find_evidence, least_message_latency
from antiphon.core.bounds.latency_seconds import quickest_need
from antiphon.core.bounds.needs import Needs, needs_of
from antiphon.core.bounds.places import forwarding
from antiphon.core.bounds.repriced import seconds_per_byte
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.cost.profile import Profile, as_profile
from antiphon.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from antiphon.cost.nccl.model import ProtocolFigures

Seconds = Callable[[int], float]  # least seconds by nbytes


@dataclass(frozen=True, eq=False)
class ProvedLimits:
    """What is proved of a collective on a machine, to be evaluated with the figures of a model."""

    topology: Topology
    collective: Collective
    bound: Bound

    @cached_property
    def needs(self) -> Needs:
        return needs_of(self.collective)

    @cached_property
    def evidence(self) -> SizeEvidence:
        return find_evidence(self.topology, self.collective)

    @cached_property
    def unaided_evidence(self) -> SizeEvidence:
        """The evidence where switches only forward."""
        if self.bound.unaided is None:
            return self.evidence
        return find_evidence(forwarding(self.topology), self.collective)

    def barriers(self, profile: Profile, *, unaided: bool = False) -> Seconds:
        """Return the bound for schedules with barriers between steps (alpha-beta). `unaided`: switches only forward."""
        machine = profile.on(forwarding(self.topology) if unaided else self.topology)
        witness = (self.bound.without_help if unaided else self.bound).witness
        rate = float(seconds_per_byte(machine, self.collective, self.needs, witness))
        evidence = self.unaided_evidence if unaided else self.evidence
        return bound_by_size(machine, self.collective, self._latency(machine), rate, evidence).seconds

    def without_barriers(self, profile: Profile, *, unaided: bool = False, any_latency: bool = False) -> Seconds:
        """Return the bound for messages that only wait for their data and their links.

        Some link is busy as long as the bandwidth bound says, and the last message on it has its latency as well.
        `any_latency`: latencies are counted apart from the transfers, so both ends add up.
        """
        machine = profile.on(forwarding(self.topology) if unaided else self.topology)
        witness = (self.bound.without_help if unaided else self.bound).witness
        rate = float(seconds_per_byte(machine, self.collective, self.needs, witness))
        latency, message = self._latency(machine), least_message_latency(machine) if rate else 0.0
        if any_latency:
            return lambda nbytes: latency + rate * nbytes
        return lambda nbytes: max(latency, message + rate * nbytes)

    def _latency(self, machine: Topology) -> float:
        longest = quickest_need(machine, self.needs, self.bound.latency_witness)
        return longest.seconds if longest is not None else 0.0


def _alpha_beta(proofs: ProvedLimits, profile: Profile, options: Mapping[str, Any]) -> Seconds:
    return proofs.barriers(profile)


def _critical_path(proofs: ProvedLimits, profile: Profile, options: Mapping[str, Any]) -> Seconds:
    return proofs.without_barriers(profile)


def _calls(proofs: ProvedLimits, profile: Profile, options: Mapping[str, Any]) -> Seconds | None:
    """The launch once, and the least over the protocols: each has its own latency of a hop and share of the links."""
    from antiphon.cost.nccl.model import protocol_figures

    try:
        figures = protocol_figures(proofs.topology, proofs.collective.members, **options)
    except (Invalid, Unsupported):  # no figures for this machine: the model prices nothing here, either
        return None
    bounds = [_bound_by_protocols(proofs, each, options.get("by", "alpha-beta")) for each in figures]
    return lambda nbytes: min(bound(nbytes) for bound in bounds)


def _bound_by_protocols(proofs: ProvedLimits, figures: ProtocolFigures, by: str) -> Seconds:
    bound_of = proofs.barriers if by == "alpha-beta" else proofs.without_barriers
    # Where no figures of NVLS are known, schedules with help of switches are priced by the protocols, too.
    unaided = figures.switched is not None
    protocols = [bound_of(by_protocol, unaided=unaided) for by_protocol in figures.protocols]
    if figures.switched is not None and proofs.bound.unaided is not None:
        protocols.append(proofs.without_barriers(figures.switched, any_latency=True))

    def seconds(nbytes: int) -> float:
        rest = min(protocol(nbytes) for protocol in protocols)
        return figures.launch(rest) + rest

    return seconds


BOUNDS: Mapping[str, Callable[[ProvedLimits, Profile, Mapping[str, Any]], Seconds | None]] = {
    "alpha-beta": _alpha_beta,
    "sccl": _alpha_beta,  # rounds loads up
    "critical-path": _critical_path,
    "flows": _critical_path,  # links are shared, never faster
    "calls": _calls,
}


def model_bound(
    model: str, options: Mapping[str, Any], proofs: ProvedLimits, profile: Profile | None = None
) -> Seconds | None:
    """Return the least seconds by nbytes under a model, or None where no bound of it is known."""
    if model not in BOUNDS or not len(proofs.needs):
        return None
    return BOUNDS[model](proofs, as_profile(profile), options)
