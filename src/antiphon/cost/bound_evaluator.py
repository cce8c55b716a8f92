"""Evaluate the proved lower bound of a collective with the latencies and bandwidths of a cost model.

A witness (a cut, a path) proves a bound for any latencies and bandwidths; only its seconds depend on them.
`BoundEvaluator` keeps the witnesses. Its methods return the bound as a function from nbytes to least seconds under a
profile, for models with barriers between steps (no message of a step starts before the previous step has ended
everywhere) and without.

Example: a ring of 4 ranks, whose witnesses are a path of 3 us and a cut that takes 1.5 s per GB. Without barriers the
bound is max(3 us, 1 us + 1.5e-9 * nbytes), where 1 us is the latency of the last message over the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from antiphon.core.bounds import Bound
from antiphon.core.bounds.abilities import strip_abilities
from antiphon.core.bounds.by_size import (
    SizeEvidence,
    ViewEvidence,
    bound_by_size,
    find_evidence,
    least_message_latency,
)
from antiphon.core.bounds.latency_seconds import Quickest, find_slowest_need
from antiphon.core.bounds.needs import Needs, needs_of
from antiphon.core.bounds.repriced import seconds_per_byte
from antiphon.core.bounds.steps import KINDS
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid

EvidenceByHelp = dict[bool, SizeEvidence]  # False: for all schedules; True: for those whose switches only forward
SecondsBySize = Callable[[int], float]  # nbytes -> least seconds


@dataclass(frozen=True, eq=False)
class BoundEvaluator:
    """The proved lower bound of a collective on a machine, to be evaluated with the figures of a model.

    `evidence`: the witnesses of the bound by size that are known so far, of a plan file or by a search.
    """

    topology: Topology
    collective: Collective
    bound: Bound
    evidence: EvidenceByHelp = field(default_factory=dict)

    @cached_property
    def needs(self) -> Needs:
        """Return which blocks each rank needs from which ranks."""
        return needs_of(self.collective)

    def find_evidence(self, unaided: bool) -> SizeEvidence:
        """Return the witnesses of the bound by size, searched unless known. `unaided`: switches only forward, neither
        multicast nor reduce.
        """
        unaided = unaided and self.bound.without_help is not self.bound  # else no switch helps
        if unaided not in self.evidence:
            topology = strip_abilities(self.topology) if unaided else self.topology
            witness = (self.bound.without_help if unaided else self.bound).witness
            rate = seconds_per_byte(topology, self.collective, self.needs, witness)
            self.evidence[unaided] = find_evidence(topology, self.collective, float(rate))
        return self.evidence[unaided]

    def moving_seconds(self, profile: Profile, *, unaided: bool = False) -> SecondsBySize:
        """Return the bound by bandwidth alone. `unaided`: switches only forward, neither multicast nor reduce."""
        _, rate = self._machine_and_rate(profile, unaided)
        return lambda nbytes: rate * nbytes

    def with_barriers(self, profile: Profile, *, unaided: bool = False) -> SecondsBySize:
        """Return the bound under models with barriers between steps (alpha-beta). `unaided`: switches only forward."""
        machine, rate = self._machine_and_rate(profile, unaided)
        evidence = self.find_evidence(unaided)
        return bound_by_size(machine, self.collective, self._slowest_need(machine), rate, evidence).seconds

    def without_barriers(self, profile: Profile, *, unaided: bool = False, add_latency: bool = False) -> SecondsBySize:
        """Return the bound under models in which messages wait only for their data and their links.

        Some link is busy for the time of the bandwidth bound, and the last message on it also has its latency.
        `unaided`: switches only forward. `add_latency`: in the model latencies and transmissions do not overlap, so
        that both bounds add up.
        """
        machine, rate = self._machine_and_rate(profile, unaided)
        latency, last_message = self._latency(machine), least_message_latency(machine) if rate else 0.0
        if add_latency:
            return lambda nbytes: latency + rate * nbytes
        return lambda nbytes: max(latency, last_message + rate * nbytes)

    def _machine_and_rate(self, profile: Profile, unaided: bool) -> tuple[Topology, float]:
        """Return the machine with the profile's figures, and the bandwidth bound on it in seconds per byte."""
        machine = profile.on(strip_abilities(self.topology) if unaided else self.topology)
        witness = (self.bound.without_help if unaided else self.bound).witness
        return machine, float(seconds_per_byte(machine, self.collective, self.needs, witness))

    def _latency(self, machine: Topology) -> float:
        """Return the bound by latencies alone: seconds until the last rank can have what it needs."""
        slowest_need = self._slowest_need(machine)
        return slowest_need.seconds if slowest_need is not None else 0.0

    def _slowest_need(self, machine: Topology) -> Quickest | None:
        """Return, of all needs, each met by its quickest path, the one that takes longest; None: nothing must move."""
        return find_slowest_need(machine, self.needs, self.bound.latency_witness)


def evidence_to_json(evidence: EvidenceByHelp) -> list[dict[str, Any]]:
    """Return witnesses of the bound by size as plans carry them, under the claim `gap_evidence`."""
    return [{"unaided": unaided, **item.as_json()} for unaided, item in evidence.items()]


def evidence_of(value: object) -> EvidenceByHelp:
    """Read witnesses of the bound by size from their JSON; raise Invalid if they are none. What they prove is for
    `bound_by_size` to evaluate.
    """
    evidence: EvidenceByHelp = {}
    try:
        for item in msgspec.convert(value, list[dict[str, Any]]):
            views = [
                ViewEvidence(
                    msgspec.convert(view["hosts_of"], tuple[int, ...]),
                    tuple(msgspec.convert(witness, KINDS[witness["kind"]]) for witness in view["evidence"]),
                )
                for view in item["views"]
            ]
            if [bool(view.hosts_of) for view in views] not in ([False], [False, True]):
                raise TypeError("expected the machine, then its hosts")
            evidence[msgspec.convert(item["unaided"], bool)] = SizeEvidence(tuple(views))
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise Invalid(f"gap_evidence: cannot be read ({error}); plan anew") from None
    return evidence
