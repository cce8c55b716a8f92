"""Return, for each kind of link of a machine, its latency and share of bandwidth under a protocol of NCCL.

The model `calls` (model.py) turns them into a profile with which it prices schedules.

A hop within a node crosses one link, or two if ranks meet in a switch; a hop between nodes crosses one link on each
side of the network. So a link within a node has a hop's latency or half of it, and each link of the network half:

    h100, LL: hop 0.7 us, share 0.3   ->  nvlink: 0.35 us, 0.3 of 450 GB/s
    ib,   LL: hop 3 us,   share 0.3   ->  ib: 1.5 us, 0.3 of 50 GB/s

Links between switches of the network keep the latency that the topology states. A reduction and multicast in a node's
switches (NVLS) was measured as a whole; it crosses four links, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from antiphon.core.topology import Topology
from antiphon.cost.nccl.calls import PROTOCOLS, SIMPLE, CallFigures
from antiphon.cost.nccl.choice import Costs
from antiphon.cost.nccl.layout import NcclLayout, wires_of
from antiphon.cost.profile import Profile
from antiphon.errors import Unsupported

# Kind of link -> latency (None: the machine's own) and share of the bandwidth
LinkFigures = Mapping[str, tuple[float | None, float]]
NVLS_PASSES = 4  # links that a reduction in a node's switches and the multicast after it cross, one after another


def figures_by_protocol(costs: Costs, layout: NcclLayout, topology: Topology) -> dict[str, LinkFigures]:
    """Return by protocol the latency and bandwidth share of each kind of link."""
    gpu, network = costs.gpu, costs.network
    near, far, trunks = sort_kinds(layout, topology)
    links_per_hop = links_of_hop(layout, topology)
    return {
        protocol: {
            **dict.fromkeys(near, (gpu.hop[protocol] / links_per_hop, gpu.share[protocol])),
            **_network_figures(network, far, trunks, protocol),
        }
        for protocol in PROTOCOLS
        if protocol in gpu.hop and (network is None or protocol in network.hop)
    }


def links_of_hop(layout: NcclLayout, topology: Topology) -> int:
    """Return the number of links that a hop within a node crosses."""
    # A group with one rank per node has no links within nodes; then those of the machine count.
    return 2 if (layout if layout.local > 1 else wires_of(topology)).switched else 1


def switched_figures(costs: Costs, layout: NcclLayout, topology: Topology) -> LinkFigures | None:
    """Return the figures of links if switches reduce and multicast; None if none are known."""
    near, far, trunks = sort_kinds(layout, topology)
    nvls = costs.gpu.nvls
    if nvls is None:
        return None
    latency, share = nvls.latency / NVLS_PASSES, nvls.share
    return {**dict.fromkeys(near, (latency, share)), **_network_figures(costs.network, far, trunks, SIMPLE)}


def sort_kinds(layout: NcclLayout, topology: Topology) -> tuple[set[str], set[str], set[str]]:
    """Return the kinds of links within nodes (near), into or out of nodes (far), and between switches of the network.

    Kinds that a group (some ranks of the machine) lacks but may use are sorted as in the whole machine.
    """
    wires = wires_of(topology)
    near = {kind for kind, _ in layout.inner}
    far, trunks = set(layout.kinds), set(layout.trunks) - set(layout.kinds)
    if near & (far | trunks):
        names = ", ".join(sorted(near & (far | trunks)))
        raise Unsupported(
            f"model calls: links of kind {names} are within nodes and between them; give them names apart"
        )
    near |= {kind for kind, _ in wires.inner} - far - trunks
    far |= set(wires.kinds) - near - trunks
    return near, far, trunks | (set(wires.trunks) - near - far)


def _network_figures(network: CallFigures | None, kinds: set[str], trunks: set[str], protocol: str) -> LinkFigures:
    """Return half of a hop's latency for `kinds`, the links on each side of the network; trunks keep their own."""
    if network is None:
        return {}
    share = network.share[protocol]
    return {**dict.fromkeys(kinds, (network.hop[protocol] / 2, share)), **dict.fromkeys(trunks, (None, share))}


def profile_by_kind(by_kind: LinkFigures) -> Profile:
    """Return link figures as a profile."""
    return Profile(
        alpha={kind: latency for kind, (latency, _) in by_kind.items() if latency is not None},
        bandwidth_factor={kind: Fraction(share) for kind, (_, share) in by_kind.items()},
    )
