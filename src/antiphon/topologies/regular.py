"""Regular networks of any size, all links alike."""

from __future__ import annotations

import numpy as np

from antiphon.core.topology import MAX_NODES, LinkType, Topology
from antiphon.errors import Invalid
from antiphon.units import parse_bandwidth, parse_seconds

MOST_LINKS = 2**25


def _regular(
    name: str, ranks: int, src: np.ndarray, dst: np.ndarray, bandwidth: str | int, latency: str | float
) -> Topology:
    kind = LinkType("link", parse_bandwidth(bandwidth), parse_seconds(latency))
    return Topology(name, ranks, 0, src, dst, np.zeros(len(src), np.int32), (kind,))


def _check(ranks: object) -> None:
    if not isinstance(ranks, int) or not 2 <= ranks <= MAX_NODES:
        raise Invalid(f"ranks={ranks}: expected a whole number; a network needs at least 2 ranks, at most {MAX_NODES}")


def ring(*, ranks: int, bandwidth: str | int = "25GB/s", latency: str | float = "1us") -> Topology:
    """Rank i is linked with i-1 and i+1, both ways (two ranks: one link each way)."""
    _check(ranks)
    here = np.arange(ranks)
    nearby = [(here + 1) % ranks] if ranks == 2 else [(here + 1) % ranks, (here - 1) % ranks]
    src, dst = np.tile(here, len(nearby)), np.concatenate(nearby)
    return _regular(f"ring:ranks={ranks}", ranks, src, dst, bandwidth, latency)


def full(*, ranks: int, bandwidth: str | int = "25GB/s", latency: str | float = "1us") -> Topology:
    """A link from every rank to every other."""
    _check(ranks)
    if ranks * (ranks - 1) > MOST_LINKS:
        raise Invalid(f"ranks={ranks}: a full mesh of so many has {ranks * (ranks - 1)} links; at most {MOST_LINKS}")
    src, dst = np.divmod(np.arange(ranks * ranks), ranks)
    apart = src != dst
    return _regular(f"full:ranks={ranks}", ranks, src[apart], dst[apart], bandwidth, latency)
