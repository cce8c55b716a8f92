"""A server whose GPUs are joined by PCIe alone."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.errors import Invalid, quote
from antiphon.topologies._links import GB, PCIE, PCIE_HOP

BETWEEN_SOCKETS = Fraction(16 * GB)  # each way: what NCCL reckons between two AMD sockets (src/graph/topo.h)


def pcie8(*, gen: int = 4) -> Topology:
    """Eight GPUs, two on each PCIe switch, two switches on the host bridge of each of two sockets; PCIe gen= 3, 4 or 5.

    Every PCIe link has 16 lanes at its nominal speed (PCI-SIG), so two GPUs share their switch's uplink. Traffic
    between the sockets gets 16 GB/s each way (NCCL's figure), and all that enters a host bridge together is
    limited to two x16 links: peer traffic through a bridge is slower than through a switch (assumed).
    """
    if gen not in PCIE or isinstance(gen, bool):
        raise Invalid(f"gen={quote(gen)}: expected a generation of PCIe: 3, 4 or 5")
    lanes = LinkType("pcie", PCIE[gen], PCIE_HOP)
    socket = LinkType("socket", BETWEEN_SOCKETS, PCIE_HOP)
    pairs = [(gpu, 8 + gpu // 2) for gpu in range(8)] + [(8 + s, 12 + s // 2) for s in range(4)]
    links = both_ways(pairs, lanes) + both_ways([(12, 13)], socket)
    into = {bridge: tuple(i for i, link in enumerate(links) if link[1] == bridge) for bridge in (12, 13)}
    limits = [SharedLimit(f"bridge{b - 12} in", found, 2 * PCIE[gen]) for b, found in into.items()]
    places = [f"host0/socket{gpu // 4}/gpu{gpu}" for gpu in range(8)]
    places += [f"host0/socket{s // 2}/pcie{s}" for s in range(4)] + [f"host0/socket{b}/bridge{b}" for b in (0, 1)]
    name = "pcie8" if gen == 4 else f"pcie8:gen={gen}"
    return build(name, 8, links, switches=6, limits=limits, places=places, unit=PCIE[gen])
