"""AMD's boxes: GPUs joined by Infinity Fabric (xGMI) links, without switches."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import Topology, both_ways, build
from antiphon.errors import Invalid, quote
from antiphon.topologies.links import XGMI3, XGMI4, XGMI5, xgmi

# For machines of 8 and of 16 ranks: number of parallel links -> the pairs of ranks that have as many. A rank is a
# compute die (GCD); an MI250 has two.
_EIGHT = {
    4: ((0, 1), (2, 3), (4, 5), (6, 7)),
    2: ((0, 6), (2, 4)),
    1: ((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)),
}
_SIXTEEN = {
    4: tuple((i, i + 1) for i in range(0, 16, 2)),
    2: ((0, 4), (3, 7), (8, 12), (11, 15)),
    1: (
        (0, 8), (1, 5), (1, 9), (1, 10), (2, 6), (2, 9), (2, 10), (3, 11), (4, 6), (5, 6), (5, 7),
        (9, 13), (10, 14), (12, 14), (13, 14), (13, 15),
    ),
}  # fmt: skip


def mi250(*, gcds: int = 16) -> Topology:
    """Eight AMD MI250 with two dies each (gcds=16), or four (gcds=8); a rank is a die, as for ROCm.

    50 GB/s each way per link (ROCm documentation, MI250). Four links join the dies of a package, up to two join
    dies of others: for 16 as in ForestColl's evaluation (arXiv:2402.06787), seven links per die; for 8 as RCCL lists
    it (rome_models.cc, model 71), the board of Frontier and LUMI. Latency assumed.
    """
    if gcds not in (8, 16):
        raise Invalid(f"gcds={quote(gcds)}: expected 16 (eight MI250) or 8 (four)")
    table = _EIGHT if gcds == 8 else _SIXTEEN
    links = [link for width, pairs in table.items() for link in both_ways(pairs, xgmi(width, XGMI3))]
    places = [f"host0/mi250.{die // 2}/gcd{die}" for die in range(gcds)]
    return build("mi250" if gcds == 16 else "mi250:gcds=8", gcds, links, places=places, unit=XGMI3)


def mi300x() -> Topology:
    """AMD MI300X platform: eight GPUs, each with one link of 64 GB/s each way to each of the seven others.

    AMD, MI300X data sheet: seven links of 128 GB/s both ways. Latency assumed.
    """
    return _eight_linked("mi300x", XGMI4)


def mi350x() -> Topology:
    """AMD MI350X platform: eight GPUs, each with one link of 76.8 GB/s each way to each of the seven others.

    AMD, MI350X platform data sheet: seven links of 153.6 GB/s both ways. MI355X has the same links. Latency assumed.
    """
    return _eight_linked("mi350x", XGMI5)


def _eight_linked(name: str, bandwidth: Fraction) -> Topology:
    """Return eight GPUs with a link of this bandwidth (bytes/s each way) between any two."""
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    places = [f"host0/gpu{gpu}" for gpu in range(8)]
    return build(name, 8, both_ways(pairs, xgmi(1, bandwidth)), places=places, unit=bandwidth)
