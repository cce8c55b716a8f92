"""A server whose GPUs are joined by PCIe alone."""

from __future__ import annotations

from antiphon.core.topology import Topology, build
from antiphon.errors import Invalid, quote
from antiphon.topologies.links import PCIE
from antiphon.topologies.pcie_tree import SWITCHES, pcie_limits, pcie_links, switch_places


def pcie8(*, gen: int = 4) -> Topology:
    """Eight GPUs, two on each PCIe switch, two switches on the host bridge of each of two sockets; PCIe gen= 3, 4 or 5.

    Every PCIe link has 16 lanes at its nominal speed (PCI-SIG), so two GPUs share their switch's uplink. Traffic
    between the sockets gets 16 GB/s each way (NCCL's figure), and all that enters a host bridge together is
    limited to two x16 links: peer traffic through a bridge is slower than through a switch (assumed).
    """
    if gen not in PCIE or isinstance(gen, bool):
        raise Invalid(f"gen={quote(gen)}: expected a generation of PCIe: 3, 4 or 5")
    links = pcie_links(gen)
    places = [f"host0/socket{gpu // 4}/gpu{gpu}" for gpu in range(8)] + switch_places()
    name = "pcie8" if gen == 4 else f"pcie8:gen={gen}"
    return build(name, 8, links, switches=SWITCHES, limits=pcie_limits(links, gen), places=places, unit=PCIE[gen])
