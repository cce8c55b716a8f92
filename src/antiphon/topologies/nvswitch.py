"""NVIDIA's boxes with NVSwitch: every GPU reaches every other at its full speed.

The switch chips of a box are drawn as one switch (per board): hardware spreads each transfer over all of them, so
they act as one, and a path between two GPUs is then unambiguous.
"""

from __future__ import annotations

from antiphon.core.topology import FORWARDS, Ability, Topology, both_ways, build
from antiphon.options import parse_yes
from antiphon.topologies.links import NVLINK, NVSWITCH_HOP, nvlink


def dgx2() -> Topology:
    """DGX-2: sixteen V100 on two boards, six NVLinks of 25 GB/s each way per GPU to the board's six NVSwitches.

    Each NVSwitch has eight NVLinks to its partner on the other board (NVIDIA, "NVSwitch and DGX-2", Hot Chips 2018),
    48 in all: as much as eight GPUs can send. Latency as _links.py says.
    """
    port, trunk = nvlink(6, latency=NVSWITCH_HOP), nvlink(48, latency=NVSWITCH_HOP)
    links = both_ways([(gpu, 16 + gpu // 8) for gpu in range(16)], port) + both_ways([(16, 17)], trunk)
    places = [f"host0/board{gpu // 8}/gpu{gpu}" for gpu in range(16)]
    places += [f"host0/board{board}/nvswitch" for board in range(2)]
    return build("dgx2", 16, links, switches=2, places=places, unit=NVLINK)


def dgx_a100() -> Topology:
    """DGX A100: eight A100, twelve NVLinks of 25 GB/s each way per GPU (600 GB/s both ways, A100 data sheet), two to
    each of six NVSwitches."""
    return _box("dgx-a100", 12)


def hgx_h100(*, sharp: bool = True) -> Topology:
    """HGX H100 (and DGX H100): eight H100, eighteen NVLinks of 25 GB/s each way per GPU (900 GB/s both ways, H100 data
    sheet) to four NVSwitches.

    Its NVSwitches, the third generation, multicast and reduce (NVLink SHARP; the first two, of DGX-2 and DGX A100, do
    not). No schedule here uses that, but bounds say where it would matter. sharp=false: where it is switched off.
    """
    if parse_yes(sharp, "sharp"):
        return _box("hgx-h100", 18, Ability(multicast=True, reduce=True))
    return _box("hgx-h100:sharp=false", 18)


def _box(name: str, nvlinks: int, ability: Ability = FORWARDS) -> Topology:
    links = both_ways([(gpu, 8) for gpu in range(8)], nvlink(nvlinks, latency=NVSWITCH_HOP))
    places = [*(f"host0/gpu{gpu}" for gpu in range(8)), "host0/nvswitch"]
    return build(name, 8, links, switches=1, places=places, unit=NVLINK, abilities=[ability])
