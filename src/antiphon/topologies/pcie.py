"""Eight GPUs on a PCIe tree: the server pcie8, and the tree that DGX-1 has beside its NVLinks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from antiphon.core.topology import Link, LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import Invalid, quote
from antiphon.topologies.links import GB, PCIE, PCIE_HOP

BETWEEN_SOCKETS = Fraction(16 * GB)  # bytes/s each way: NCCL's figure for two AMD sockets (src/graph/topo.h)
SWITCHES = 6  # four of PCIe, then the host bridges of both sockets


def pcie8(*, gen: int = 4) -> Topology:
    """Eight GPUs, two on each PCIe switch, two switches on the host bridge of each of two sockets; PCIe gen= 3, 4 or 5.

    Every PCIe link has 16 lanes at its nominal speed (PCI-SIG), so two GPUs share their switch's uplink. Traffic
    between the sockets gets 16 GB/s each way (NCCL's figure). Everything that enters a host bridge together, from its
    two switches and from the other socket, is limited to two x16 links: peer traffic through a bridge is slower than
    through a switch (assumed).
    """
    if gen not in PCIE or isinstance(gen, bool):
        raise Invalid(f"gen={quote(gen)}: expected a generation of PCIe: 3, 4 or 5")
    links = pcie_links(gen)
    places = [f"host0/socket{gpu // 4}/gpu{gpu}" for gpu in range(8)] + switch_places()
    name = "pcie8" if gen == 4 else f"pcie8:gen={gen}"
    return build(name, 8, links, switches=SWITCHES, limits=pcie_limits(links, gen), places=places, unit=PCIE[gen])


def pcie_links(gen: int) -> list[Link]:
    """Return links of GPUs (0 to 7) with four switches (8 to 11), two GPUs each, and with two host bridges (12, 13)."""
    lanes = LinkType("pcie", PCIE[gen], PCIE_HOP)
    socket = LinkType("socket", BETWEEN_SOCKETS, PCIE_HOP)
    pairs = [(gpu, 8 + gpu // 2) for gpu in range(8)] + [(8 + s, 12 + s // 2) for s in range(4)]
    return both_ways(pairs, lanes) + both_ways([(12, 13)], socket)


def pcie_limits(links: Sequence[Link], gen: int) -> list[SharedLimit]:
    """Limit the traffic into each host bridge to two x16 links."""
    return bridge_limits(links, (12, 13), PCIE[gen])


def bridge_limits(links: Sequence[Link], bridges: Sequence[int], bandwidth: Fraction) -> list[SharedLimit]:
    """Limit the traffic into each of the nodes `bridges` to two links of `bandwidth` (bytes/s of the widest link)."""
    links_into = [tuple(i for i, (_, end, _) in enumerate(links) if end == bridge) for bridge in bridges]
    return [SharedLimit(f"bridge{number} in", ids, 2 * bandwidth) for number, ids in enumerate(links_into)]


def switch_places() -> list[str]:
    """Return the places of nodes 8 to 13."""
    return [f"host0/socket{s // 2}/pcie{s}" for s in range(4)] + [f"host0/socket{b}/bridge{b}" for b in (0, 1)]
