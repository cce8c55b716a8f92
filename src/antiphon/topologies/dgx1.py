"""NVIDIA DGX-1: eight GPUs in two fully linked quads, joined by four pairs (Blink, Figure 2; SCCL, Figure 1)."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import Topology, both_ways, build
from antiphon.options import parse_yes
from antiphon.topologies.links import NVLINK, NVLINK1, nvlink
from antiphon.topologies.pcie import SWITCHES, pcie_limits, pcie_links, switch_places

PCIE_GENERATION = 3  # of both models

# pairs with two NVLinks, then pairs with one; numbered as the cloud instances with this board number them
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))

# the same board as SCCL's implementation numbers it
_SCCL_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_SCCL_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))

# each quad complete, and i joined with i + 4
_P100 = tuple((a, b) for first in (0, 4) for a in range(first, first + 4) for b in range(a + 1, first + 4))
_P100 += tuple((a, a + 4) for a in range(4))

Pairs = tuple[tuple[int, int], ...]


def dgx1p(*, pcie: bool = False) -> Topology:
    """DGX-1 with P100: four NVLinks per GPU, 20 GB/s each way per NVLink (P100 data sheet).

    Each quad is fully linked and GPU i is joined with i+4; numbered as in Blink. The latency is taken from V100.
    pcie=true adds its PCIe 3 tree, as pcie8:gen=3 has it.
    """
    return _build_box("dgx1p", double=(), single=_P100, speed=NVLINK1, pcie=parse_yes(pcie, "pcie"))


def dgx1v(*, pcie: bool = False) -> Topology:
    """DGX-1 with V100: six NVLinks per GPU, 25 GB/s each way per NVLink (V100 data sheet).

    Eight pairs have two NVLinks, eight have one; numbered as on the p3.16xlarge cloud instance, and in Blink.
    pcie=true adds its PCIe 3 tree, as pcie8:gen=3 has it.
    """
    return _build_box("dgx1v", _DOUBLE, _SINGLE, NVLINK, parse_yes(pcie, "pcie"))


def dgx1v_sccl() -> Topology:
    """DGX-1 with V100, numbered as in SCCL's implementation: the double NVLinks are a cycle 0 1 3 2 6 7 5 4."""
    return _build_box("dgx1v_sccl", _SCCL_DOUBLE, _SCCL_SINGLE, NVLINK)


def _build_box(name: str, double: Pairs, single: Pairs, speed: Fraction, pcie: bool = False) -> Topology:
    """Return a box whose pairs of GPUs have two NVLinks (`double`) or one; `speed`: bytes/s of each, each way."""
    links = both_ways(double, nvlink(2, speed)) + both_ways(single, nvlink(1, speed))
    places = [f"host0/quad{gpu // 4}/gpu{gpu}" for gpu in range(8)]
    if not pcie:
        return build(name, 8, links, places=places, unit=speed)
    links += pcie_links(PCIE_GENERATION)
    return build(
        f"{name}:pcie=true", 8, links, switches=SWITCHES, limits=pcie_limits(links, PCIE_GENERATION),
        places=[*places, *switch_places()], unit=speed,
    )  # fmt: skip
