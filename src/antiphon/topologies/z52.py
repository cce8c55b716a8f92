"""Gigabyte Z52: eight AMD MI50 in two xGMI islands of four, joined by PCIe (SCCL, Figure 3 and 5.1.2, 5.2.2).

Three GPUs of an island sit on one socket and one on the other: of the island 1, 4, 6, 7 that is GPU 1, of the island 0,
2, 3, 5 GPU 5. SCCL measured 33 GB/s over xGMI and 27 GB/s over PCIe 4.0 x16 (5.1.2). Its text names the members of the
islands only in part; the rings are those that RCCL lists for this box (rome_models.cc, model 23). Latencies are
assumed.
"""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.topologies.links import GB, XGMI_LATENCY

# bytes per second, each way
MEASURED_XGMI = Fraction(33 * GB)
MEASURED_PCIE = Fraction(27 * GB)
_PCIE_LATENCY = 1e-6  # assumed: through one host bridge

_XGMI_PAIRS = ((0, 2), (2, 5), (3, 5), (0, 3), (1, 4), (4, 6), (6, 7), (1, 7))
_LEFT_OUT = ((2, 5), (1, 7))  # dotted in SCCL's Figure 3: not used together with PCIe
_PCIE_PAIRS = (((1, 0), (1, 2), (1, 3)), ((5, 4), (5, 6), (5, 7)))  # per socket: its lone GPU with each of the others


def z52() -> Topology:
    """The ring that SCCL synthesizes on (5.2.2): GPUs 1 and 5 close two chains of xGMI links over PCIe.

    All links count as equally fast, as in the paper: 27 GB/s, as PCIe is the bottleneck. Which xGMI links are left out
    and where PCIe joins (1-2, 5-7) is assumed; every choice gives the same ring up to its numbering.
    """
    xgmi = LinkType("xgmi", MEASURED_PCIE, XGMI_LATENCY)
    pcie = LinkType("pcie", MEASURED_PCIE, _PCIE_LATENCY)
    used_pairs = [pair for pair in _XGMI_PAIRS if pair not in _LEFT_OUT]
    return build("z52", 8, both_ways(used_pairs, xgmi) + both_ways([(1, 2), (5, 7)], pcie), places=_gpu_places())


def z52_pcie() -> Topology:
    """The whole box: both xGMI rings, PCIe from GPU 1 to 0, 2, 3 and from GPU 5 to 4, 6, 7.

    PCIe is shared: in each socket all six directions together carry what one link does. In SCCL 5.2.2 this limit is
    written as its links and what they carry per round, ({(0,1),(1,0),(1,2),(2,1),(1,3),(3,1)}, 1).
    """
    xgmi, pcie = LinkType("xgmi", MEASURED_XGMI, XGMI_LATENCY), LinkType("pcie", MEASURED_PCIE, _PCIE_LATENCY)
    links = both_ways(_XGMI_PAIRS, xgmi)
    limits = []
    for socket, pairs in enumerate(_PCIE_PAIRS):
        first = len(links)
        links += both_ways(pairs, pcie)
        limits.append(SharedLimit(f"socket{socket} pcie", tuple(range(first, len(links))), MEASURED_PCIE))
    return build("z52-pcie", 8, links, limits=limits, places=_gpu_places(), unit=MEASURED_PCIE)


def _gpu_places() -> list[str]:
    return [f"host0/island{0 if gpu in (0, 2, 3, 5) else 1}/gpu{gpu}" for gpu in range(8)]
