"""Speeds of links that machines are built from, each with its public source: bytes per second each way, and seconds.

Latencies are of an empty message between two neighbours; `..._HOP` is that of one link of a path through switches.
Latencies without a public figure are assumed and marked so: only the time of small messages depends on them.
"""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import LinkType

GB = 10**9

# NVIDIA, data sheets of Tesla P100 (160 GB/s over 4 links, both ways), V100 (300 over 6), A100 (600 over 12),
# H100 (900 over 18): so 20 GB/s each way per link of the first generation, 25 of the next three.
NVLINK1 = Fraction(20 * GB)
NVLINK = Fraction(25 * GB)
NVLINK5 = Fraction(50 * GB)  # HGX B200 data sheet: 1.8 TB/s both ways over 18 links
# 0.7 us from GPU to GPU, directly or through NVSwitch: measured by TACCL (NSDI 2023, Table 1) with V100.
# Other generations: assumed to be the same.
NVLINK_LATENCY = 7e-7
NVSWITCH_HOP = NVLINK_LATENCY / 2  # for each of the two links of a path through a switch

# AMD, MI250 in the ROCm documentation: 25 GT/s over 16 lanes = 50 GB/s each way per Infinity Fabric link.
# AMD, data sheets: 128 GB/s both ways per link of 32 GT/s (MI300X), so 64 GB/s each way; 153.6 (MI350X), so 76.8.
XGMI3 = Fraction(50 * GB)
XGMI4, XGMI5 = Fraction(64 * GB), Fraction(768 * GB, 10)
XGMI_LATENCY = 1e-6  # assumed

# PCI-SIG: 8, 16, 32 GT/s per lane, 128 of 130 bits are data, 16 lanes; each way.
PCIE = {gen: Fraction(rate * GB * 16 * 128, 130 * 8) for gen, rate in ((3, 8), (4, 16), (5, 32))}
PCIE_HOP = 5e-7  # assumed, of every link on the way

# 1.7 us from GPU to GPU over InfiniBand: TACCL (NSDI 2023, Table 1); halved, for there are two cables on the way.
IB_HOP = 8.5e-7
SWITCH_HOP = 1.3e-7  # a further switch on the way: "sub-130ns" in NVIDIA's data sheet of the QM8700


def nvlink(links: int, bandwidth: Fraction = NVLINK, latency: float = NVLINK_LATENCY) -> LinkType:
    """Return `links` parallel NVLinks of `bandwidth` bytes per second, used as one link."""
    return LinkType("nvlink", links * bandwidth, latency)


def xgmi(links: int, bandwidth: Fraction) -> LinkType:
    """Return `links` parallel Infinity Fabric links of `bandwidth` bytes per second, used as one link."""
    return LinkType("xgmi", links * bandwidth, XGMI_LATENCY)
