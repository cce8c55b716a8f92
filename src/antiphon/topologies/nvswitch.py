"""NVIDIA's boxes with NVSwitch: every GPU reaches every other at its full speed.

The switch chips of a box (of a board, in DGX-2) are modelled as one switch: hardware spreads each transfer over all of
them, so they act as one, and there is one path between two GPUs. Rank i is GPU i; the switches follow.
"""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import FORWARD_ONLY, Ability, Topology, both_ways, build
from antiphon.options import parse_yes
from antiphon.topologies.links import NVLINK, NVLINK5, NVSWITCH_HOP, nvlink

# What switches with NVLink SHARP (NVLS) can do: a GPU loads the combination of all GPUs' values from the switch (its
# own value crosses its link, too), or stores a value that the switch copies to all GPUs, itself included. A reduction
# ends at the GPU that loads it.
# Operators and types: PTX, multimem.ld_reduce, where minimum and maximum take integers and 16-bit floats only.
_MIN_MAX_TYPES = ("float16", "bfloat16", "int32", "uint32", "int64", "uint64")
NVLS = Ability(
    multicast=True, reduce=True, own=True, types=(*_MIN_MAX_TYPES, "float32", "float64"),
    operators=("sum", *(f"{op} of {dtype}" for op in ("min", "max") for dtype in _MIN_MAX_TYPES)),
)  # fmt: skip


def dgx2() -> Topology:
    """DGX-2: sixteen V100 on two boards, six NVLinks of 25 GB/s each way per GPU to the board's six NVSwitches.

    Each NVSwitch has eight NVLinks to its partner on the other board (NVIDIA, "NVSwitch and DGX-2", Hot Chips 2018),
    48 in all: as much as eight GPUs can send. Latency as links.py says.
    """
    port, trunk = nvlink(6, latency=NVSWITCH_HOP), nvlink(48, latency=NVSWITCH_HOP)
    # nodes 16 and 17: the switches of the boards
    links = both_ways([(gpu, 16 + gpu // 8) for gpu in range(16)], port) + both_ways([(16, 17)], trunk)
    places = [f"host0/board{gpu // 8}/gpu{gpu}" for gpu in range(16)]
    places += [f"host0/board{board}/nvswitch" for board in range(2)]
    return build("dgx2", 16, links, switches=2, places=places, unit=NVLINK)


def dgx_a100() -> Topology:
    """DGX A100: eight A100, twelve NVLinks of 25 GB/s each way per GPU (600 GB/s both ways, A100 data sheet), two to
    each of six NVSwitches."""
    return _build_switched("dgx-a100", _gpu_places(), 12, NVLINK)


def hgx_h100(*, sharp: bool = True) -> Topology:
    """HGX H100 (and DGX H100): eight H100, eighteen NVLinks of 25 GB/s each way per GPU (900 GB/s both ways, H100 data
    sheet) to four NVSwitches.

    Its NVSwitches, the third generation, multicast and reduce (NVLink SHARP; the first two, of DGX-2 and DGX A100, do
    not): see `nvls`. sharp=false: where it is switched off.
    """
    return _build_hgx("hgx-h100", sharp, NVLINK)


def hgx_h200(*, sharp: bool = True) -> Topology:
    """HGX H200 (and DGX H200): eight H200 on the board of HGX H100, 900 GB/s both ways per GPU (H200 data sheet)."""
    return _build_hgx("hgx-h200", sharp, NVLINK)


def hgx_b200(*, sharp: bool = True) -> Topology:
    """HGX B200 (and DGX B200): eight B200, eighteen NVLinks of 50 GB/s each way per GPU to two NVSwitches of the fourth
    generation (NVIDIA, HGX B200 data sheet: 1.8 TB/s both ways per GPU, 14.4 TB/s in all)."""
    return _build_hgx("hgx-b200", sharp, NVLINK5)


def gb200_nvl72(*, sharp: bool = True) -> Topology:
    """GB200 NVL72: a rack of 18 trays with four B200 each, eighteen NVLinks of 50 GB/s each way per GPU, one to each of
    18 NVSwitches in nine trays (NVIDIA, GB200 NVL72 data sheet: 1.8 TB/s both ways per GPU, 130 TB/s in all).

    Several racks: cluster:box=gb200-nvl72,boxes=4.
    """
    gpus = [f"host0/tray{gpu // 4}/gpu{gpu}" for gpu in range(72)]
    return _with_sharp("gb200-nvl72", sharp, gpus, NVLINK5)


def _build_hgx(name: str, sharp: bool, rate: Fraction) -> Topology:
    """Return a box of eight GPUs, as `_with_sharp` does."""
    return _with_sharp(name, sharp, _gpu_places(), rate)


def _with_sharp(name: str, sharp: bool, gpus: list[str], rate: Fraction) -> Topology:
    """Return a box with NVLink SHARP or, named "...:sharp=false", without. Its GPUs have eighteen NVLinks each.

    `gpus`: their places. `rate`: bytes/s of an NVLink, each way.
    """
    if parse_yes(sharp, "sharp"):
        return _build_switched(name, gpus, 18, rate, NVLS)
    return _build_switched(f"{name}:sharp=false", gpus, 18, rate)


def _build_switched(
    name: str, gpus: list[str], nvlinks: int, rate: Fraction, ability: Ability = FORWARD_ONLY
) -> Topology:
    """Return a box whose GPUs (`gpus`: their places) have `nvlinks` NVLinks each to one switch."""
    links = both_ways([(gpu, len(gpus)) for gpu in range(len(gpus))], nvlink(nvlinks, rate, NVSWITCH_HOP))
    places = [*gpus, "host0/nvswitch"]
    return build(name, len(gpus), links, switches=1, places=places, unit=rate, abilities=[ability])


def _gpu_places() -> list[str]:
    return [f"host0/gpu{gpu}" for gpu in range(8)]
