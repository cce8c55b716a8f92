"""Compute lower bounds for NCCL's predicted times: none may be faster than the bound by the same figures.

NCCL's model describes a machine by a few numbers (layout.py): the bandwidths of a rank within its node and of a node's
network cards. If the machine has less bandwidth elsewhere, a time predicted from these numbers may be impossible. So
every prediction is compared with the lower bound by size of the same figures: the quickest path and the tightest cut of
the machine, with the hop latency and the share of bandwidth of the prediction's protocol. The bound here is without the
launch, which library.py adds to compare it with a prediction. A prediction below the bound is an error of the model on
this machine; library.py refuses it with both times.

Example: eight H100 on pcie8, a broadcast of 1 GB. Rings over eight links of 32 GB/s would take 38 ms; but the two
halves of the machine are joined by one link of 16 GB/s, which takes 76 ms by the same protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from antiphon.core.bounds import bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.topology import Topology
from antiphon.cost.bound_evaluator import BoundEvaluator, SecondsBySize
from antiphon.cost.nccl.calls import SIMPLE
from antiphon.cost.nccl.choice import COLLNET, COPIES, NVLS, NVLS_TREE, Costs, OptionPrice
from antiphon.cost.nccl.layout import NcclLayout
from antiphon.cost.nccl.link_figures import (
    LinkFigures,
    figures_by_protocol,
    links_of_hop,
    profile_by_kind,
    switched_figures,
)
from antiphon.cost.profile import Profile
from antiphon.errors import Infeasible, Invalid, Unsupported

# The bound of machines with more ranks takes too long: an alltoall's linear program 4 CPU seconds for 128 ranks, a
# minute for 512; other collectives 1 s for 512, 5 s for 1024.
MAX_RANKS, MAX_RANKS_ALLTOALL = 512, 128
ROUNDING = 1 - 1e-9  # a prediction is below the bound if it is less than this multiple of it
# cached bounds of each machine, by (kind, root)
_proofs: WeakKeyDictionary[Topology, dict[tuple[str, int], BoundEvaluator | None]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class ProvedFigures:
    """Lower bounds of a collective's time on a machine, by the figures of each algorithm and protocol of a library."""

    proofs: BoundEvaluator
    layout: NcclLayout
    costs: Costs
    _bounds: dict[object, SecondsBySize] = field(default_factory=dict)

    @cached_property
    def because(self) -> str:
        """Return the witness of the bandwidth bound, in words."""
        bound = self.proofs.bound
        weight = self.proofs.collective.buffer_weight
        return bound.witness.describe(self.proofs.topology, weight) if bound.witness is not None else ""

    def least_seconds(self, option: OptionPrice, nbytes: int, share: float | None = None) -> float:
        """Return the lower bound of this option in seconds, without its launch.

        `share`: the fraction of the links' bandwidth, if it is not the protocol's; latency then counts as 0.
        """
        # Symmetric kernels that multicast have NVLS as their "protocol".
        in_switches = option.algorithm in (NVLS, NVLS_TREE, COLLNET) or option.protocol == NVLS
        key = (in_switches, option.algorithm == COPIES, option.protocol, share)
        if key not in self._bounds:
            profile = (
                self._complete_profile(figures={}, share=share)
                if share is not None
                else self._profile_of(option, in_switches)
            )
            # without barriers: messages wait only for their data and links; unaided: switches only forward
            self._bounds[key] = self.proofs.without_barriers(profile, unaided=not in_switches)
        return self._bounds[key](nbytes)

    def _profile_of(self, option: OptionPrice, in_switches: bool) -> Profile:
        """Return the latencies and bandwidth shares of links by the figures of an option."""
        topology, costs, layout = self.proofs.topology, self.costs, self.layout
        try:
            by_protocol = figures_by_protocol(costs, layout, topology)
        except Unsupported:
            # Links within and between nodes have the same kind, so either's figures could apply. Without latencies and
            # with all of the bandwidth the bound holds in any case.
            return self._complete_profile(figures={}, share=None)
        near = [kind for kind, _ in layout.inner]
        figures = dict(by_protocol.get(option.protocol, {}))
        if option.algorithm == COPIES and costs.gpu.copies is not None:
            copies = costs.gpu.copies
            # the links of a hop, such as two through a switch, share its latency
            figures = dict.fromkeys(near, (copies.latency / links_of_hop(layout, topology), copies.share))
        elif in_switches and (switched := switched_figures(costs, layout, topology)) is not None:
            figures = {**figures, **switched}
            if option.algorithm == COLLNET:  # the share of the protocol, the latency of switches
                share = costs.gpu.share[SIMPLE]
                figures |= {kind: (figures[kind][0], share) for kind in near}
        return self._complete_profile(figures, share=None)

    def _complete_profile(self, figures: LinkFigures, share: float | None) -> Profile:
        """Return figures by kind of link (seconds of latency, share of the bandwidth) as a profile of all kinds.

        Kinds without figures get latency 0, as in the model of the library, and `share` (None: all) of their bandwidth.
        A latency of None (the machine's own) counts as 0, too, which leaves the bound valid.
        """
        kinds = {kind.kind for kind in self.proofs.topology.types}
        by_kind = {kind: figures.get(kind, (0.0, share or 1.0)) for kind in kinds}
        return profile_by_kind({kind: (latency or 0.0, factor) for kind, (latency, factor) in by_kind.items()})


def bound_evaluator(machine: Topology, kind: str, root: int) -> BoundEvaluator | None:
    """Return the bound of a collective among all ranks, computed once; None if nothing must move, or it takes too
    long."""
    proofs = _proofs.setdefault(machine, {})
    key = (kind, root if kind in ROOTED else 0)
    if key not in proofs:
        proofs[key] = _prove_bound(machine, *key)
    return proofs[key]


def _prove_bound(machine: Topology, kind: str, root: int) -> BoundEvaluator | None:
    """Compute the bound; see `bound_evaluator`."""
    if machine.ranks > (MAX_RANKS_ALLTOALL if kind == "alltoall" else MAX_RANKS):
        return None
    collective = Collective(kind, machine.ranks, roots=(root,) if kind in ROOTED else ())
    try:
        proofs = BoundEvaluator(machine, collective, bound(machine, collective))
    except (Infeasible, Invalid):  # the topology lacks links that are used, such as PCIe in a box of NVLinks
        return None
    return proofs if len(proofs.needs) else None
