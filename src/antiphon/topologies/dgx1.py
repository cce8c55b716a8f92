"""NVIDIA DGX-1: eight GPUs in two fully linked quads, joined by four pairs (Blink, Figure 2; SCCL, Figure 1)."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import LinkType, Topology, both_ways, build

NVLINK2 = Fraction(25 * 10**9)  # bytes per second each way of one second-generation NVLink (NVIDIA V100 data sheet)
LATENCY = 7e-7  # seconds; measured on machines of this kind by TACCL (NSDI 2023, Table 1)

# pairs with two NVLinks, then pairs with one; numbered as the cloud instances with this board number them
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


def dgx1v() -> Topology:
    """DGX-1 with V100: six NVLinks per GPU, 25 GB/s each way per NVLink."""
    two, one = LinkType("nvlink", 2 * NVLINK2, LATENCY), LinkType("nvlink", NVLINK2, LATENCY)
    links = both_ways(_DOUBLE, two) + both_ways(_SINGLE, one)
    places = [f"host0/quad{gpu // 4}/gpu{gpu}" for gpu in range(8)]
    return build("dgx1v", 8, links, places=places, unit=NVLINK2)
