"""Nominal bandwidths of links (bytes per second each way) by type of GPU and of link.

Tools print which links exist, but often not their speed, or a rounded one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from antiphon.topologies.links import GB, NVLINK, NVLINK1, NVLINK5, PCIE, XGMI3, XGMI4, XGMI5

# NVIDIA, "Ampere GA102 GPU Architecture": four links of 14.0625 GB/s each way per GPU.
NVLINK_GA102 = Fraction(140625, 10000) * GB
# AMD, data sheets of MI60 and MI100: 92 GB/s both ways per Infinity Fabric link.
XGMI2 = Fraction(46 * GB)

# PCI-SIG: lanes of 2.5 and 5 GT/s carry 8 of 10 bits, of 8 to 32 GT/s 128 of 130, of 64 GT/s 242 bytes of 256.
LANE = {  # GT/s of a PCIe lane -> its bytes per second
    Fraction(5, 2): Fraction(GB, 4), Fraction(5): Fraction(GB, 2),
    **{Fraction(2**gen): PCIE[gen] / 16 for gen in PCIE}, Fraction(64): Fraction(64 * GB, 8) * Fraction(242, 256),
}  # fmt: skip
WIDTHS = (1, 2, 4, 8, 12, 16, 32)  # lanes of a PCIe link

# InfiniBand Trade Association: Gbit/s of data per lane, 8 of 10 bits up to QDR, 64 of 66 above.
INFINIBAND = {
    "SDR": Fraction(2), "DDR": Fraction(4), "QDR": Fraction(8), "FDR10": Fraction(10),
    "FDR": Fraction(140625, 10000) * Fraction(64, 66), "EDR": Fraction(25), "HDR": Fraction(50), "NDR": Fraction(100),
    "XDR": Fraction(200),
}  # fmt: skip


@dataclass(frozen=True)
class GpuType:
    """A generation of GPUs, or a part of one.

    `name`: used where a tool reports only the generation. `link`: bandwidth of one NVLink or xGMI link. `links`: the
    greatest number of such links of a GPU; 0: it has none, and `link` is unused. `has_nvls`: whether switches of its
    generation multicast and reduce. `xgmi`: whether its links are xGMI.
    """

    name: str
    link: Fraction
    links: int
    pcie_generation: int
    has_nvls: bool = False
    xgmi: bool = False


# The columns of GpuType: name, link, links, pcie_generation
P100, V100, A100 = GpuType("P100", NVLINK1, 4, 3), GpuType("V100", NVLINK, 6, 3), GpuType("A100", NVLINK, 12, 4)
H100, B200 = GpuType("H100", NVLINK, 18, 5, has_nvls=True), GpuType("B200", NVLINK5, 18, 5, has_nvls=True)
TURING, GA102 = GpuType("Turing", NVLINK, 2, 3), GpuType("GA102", NVLINK_GA102, 4, 4)
# without NVLink; they also stand for other generations with this PCIe, such as A10 (ADA) and T4 (_PCIE3)
ADA = GpuType("Ada", NVLINK, 0, 4)
_PCIE3, _RTX50 = GpuType("Pascal", NVLINK, 0, 3), GpuType("RTX 50", NVLINK, 0, 5)
MI50, MI100 = GpuType("MI50", XGMI2, 2, 4, xgmi=True), GpuType("MI100", XGMI2, 3, 4, xgmi=True)
MI200, MI300 = GpuType("MI200", XGMI3, 8, 4, xgmi=True), GpuType("MI300X", XGMI4, 8, 5, xgmi=True)
MI350 = GpuType("MI350X", XGMI5, 8, 5, xgmi=True)

# Patterns of the names that tools print; the first that matches decides.
_NAMED: tuple[tuple[str, GpuType], ...] = (
    (r"P100", P100), (r"V100|TITAN V\b|GV100", V100), (r"A100|A800|A30\b", A100),
    (r"G?H[12]00|H800|H20\b|H100L", H100), (r"G?B[123]00", B200), (r"RTX 20[78]0|TITAN RTX|Quadro RTX", TURING),
    (r"RTX 3090|A40\b|RTX A[456][05]00|A6000|A5000", GA102), (r"RTX [34]0|L4\b|L40|A10|A16|A2\b", ADA),
    (r"RTX 50|RTX PRO", _RTX50), (r"T4\b|GTX|Tesla [KMCS][0-9]{2,4}|P40\b|P4\b", _PCIE3),
    (r"MI[56]0\b|Vega ?20|Radeon VII|gfx906", MI50), (r"MI100|gfx908", MI100), (r"MI2[15]0X?|MI200|gfx90a", MI200),
    (r"MI3[02][05][AX]?|gfx94[0-2]", MI300), (r"MI35[05]X?|gfx950", MI350),
)  # fmt: skip
# By vendor and device of PCIe (pci.ids), as the vendor's own tool calls the board.
_DEVICES = {
    "10de": {
        "15f9": "Tesla P100-SXM2-16GB", "1db1": "Tesla V100-SXM2-16GB", "1db4": "Tesla V100-PCIE-16GB",
        "1db5": "Tesla V100-SXM2-32GB", "1db6": "Tesla V100-PCIE-32GB", "1db8": "Tesla V100-SXM3-32GB",
        "20b0": "NVIDIA A100-SXM4-40GB", "20b2": "NVIDIA A100-SXM4-80GB", "20b5": "NVIDIA A100 80GB PCIe",
        "20f1": "NVIDIA A100-PCIE-40GB", "20f3": "NVIDIA A800-SXM4-80GB", "2324": "NVIDIA H800",
        "2329": "NVIDIA H20", "2330": "NVIDIA H100 80GB HBM3", "2331": "NVIDIA H100 PCIe", "2321": "NVIDIA H100 NVL",
        "2335": "NVIDIA H200", "233b": "NVIDIA H200 NVL", "2901": "NVIDIA B200", "2941": "NVIDIA GB200",
    },
    "1002": {
        "738c": "AMD Instinct MI100", "7408": "AMD Instinct MI250X", "740c": "AMD Instinct MI250X",
        "740f": "AMD Instinct MI210", "74a0": "AMD Instinct MI300A", "74a1": "AMD Instinct MI300X",
        "74a5": "AMD Instinct MI325X", "74b5": "AMD Instinct MI300X", "75a0": "AMD Instinct MI350X",
        "75a3": "AMD Instinct MI355X",
    },
}  # fmt: skip
# By compute capability of NVIDIA (90 is 9.0), and by AMD's generation (90a is gfx90a, as is RCCL's 910). The first or
# last of a type represents it in `generation_attribute`.
_SM = {60: P100, 61: _PCIE3, 62: _PCIE3, 70: V100, 72: V100, 75: TURING, 80: A100, 86: GA102, 87: GA102, 89: ADA,
       90: H100, 100: B200, 103: B200, 120: _RTX50}  # fmt: skip
_GCN = {"906": MI50, "908": MI100, "910": MI200, "90a": MI200, "940": MI300, "941": MI300, "942": MI300, "950": MI350}


def gpu_type_by_name(name: str) -> GpuType | None:
    """Return the type of a GPU by the name that tools show."""
    return next((gpu_type for pattern, gpu_type in _NAMED if re.search(pattern, name, re.IGNORECASE)), None)


def device_name(vendor: str, device: str) -> str:
    """Return the name of the board with these PCI identifiers, such as "0x10de" and "0x2330"; "" if unknown."""
    return _DEVICES.get(vendor.lower().removeprefix("0x"), {}).get(device.lower().removeprefix("0x"), "")


def gpu_type_by_capability(sm: int) -> GpuType | None:
    """Return the type by the compute capability that NCCL writes: 90."""
    return _SM.get(sm)


def gpu_type_by_generation(gcn: str) -> GpuType | None:
    """Return the type by RCCL's notation: 906, 910 or gfx942."""
    return _GCN.get(gcn.removeprefix("gfx"))


def generation_attribute(gpu_type: GpuType) -> dict[str, object]:
    """Return the attribute for the generation of a GPU in NCCL's XML: its first capability, or AMD's latest name."""
    if gpu_type.xgmi:
        return {"gcn": f"gfx{[gcn for gcn, other in _GCN.items() if other == gpu_type][-1]}"}
    return {"sm": next(sm for sm, other in _SM.items() if other == gpu_type)}


def nominal_speed(measured: Fraction) -> Fraction:
    """Return the data sheet's speed of an NVLink (bytes/s); tools show up to 7 % more (25.781 GB/s for 25).

    A speed that fits no data sheet is returned as it is.
    """
    nominal_speeds = (NVLINK_GA102, NVLINK1, NVLINK, NVLINK5)
    low, high = Fraction(999, 1000), Fraction(107, 100)  # rounded down, or up to 7 % more
    return next((speed for speed in nominal_speeds if speed * low <= measured <= speed * high), measured)


def pcie_speed(rate: str, width: str) -> Fraction | None:
    """Return bytes per second of a PCIe link as Linux writes it ("16.0 GT/s PCIe", "16"); None if either is unknown."""
    rate_match = re.match(r"\s*([0-9]{1,3}(?:\.[0-9])?)\s*GT/s", rate)
    lanes = int(width) if re.fullmatch(r"[0-9]{1,2}", width.strip()) else 0
    lane = LANE.get(Fraction(rate_match[1])) if rate_match else None
    return lane * lanes if lane and lanes else None


def nearest_pcie_speed(bytes_per_second: float) -> Fraction | None:
    """Return the exact speed of the PCIe link that a tool has rounded to this one; None if there is none."""
    fits = (lane * width for lane in LANE.values() for width in WIDTHS)
    # tools print three digits or more, and speeds differ by more
    return next((speed for speed in fits if abs(float(speed) - bytes_per_second) <= 1e-3 * bytes_per_second), None)


def cable_speed(cable: str) -> Fraction | None:
    """Return bytes per second of a cable such as 4xHDR (4 lanes of HDR); None if unknown."""
    match = re.fullmatch(r"([0-9]{1,2})x([A-Z0-9]{3,5})", cable.strip())
    lane = INFINIBAND.get(match[2]) if match else None
    return lane * int(match[1]) * GB / 8 if match and lane and int(match[1]) else None
