"""Accelerators that are joined directly: Google's TPUs, AWS's Trainium2, Intel's Gaudi 3. Latencies are assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.errors import Invalid, quote
from antiphon.options import parse_yes
from antiphon.topologies.links import GB
from antiphon.topologies.options import MAX_LISTED, check_link_count, parse_dimensions

HOP = 1e-6  # seconds, assumed, between neighbours
Pairs = list[tuple[int, int]]


def tpu_v4(*, dims: str | int = "4x4x4") -> Topology:
    """A slice of Google's TPU v4: chips in three dimensions, six links of 50 GB/s each way per chip (Jouppi et al.,
    "TPU v4", ISCA 2023).

    Every axis is a ring if all sizes are multiples of 4 (whole cubes of 4x4x4); else none is (Google Cloud, "TPU v4").
    Twisted tori are not drawn.
    """
    return _tpu_slice("tpu-v4", dims, axes=3, gigabytes=50)


def tpu_v5p(*, dims: str | int = "4x4x4") -> Topology:
    """A slice of Google's TPU v5p: chips in three dimensions, six links of 100 GB/s each way per chip (Google Cloud,
    "TPU v5p": 1200 GB/s both ways per chip).

    Axes are rings as for TPU v4 (the same page: slices of 4x4x4 and more have full tori).
    """
    return _tpu_slice("tpu-v5p", dims, axes=3, gigabytes=100)


def tpu_v6e(*, dims: str | int = "4x4") -> Topology:
    """A slice of Google's TPU v6e (Trillium): chips in two dimensions, four links of 100 GB/s each way per chip (Google
    Cloud, "TPU v6e": 800 GB/s both ways over 4 ports per chip, 256 chips in a pod of 16x16).

    An axis is a ring if it is as long as the pod's, 16 (assumed: a shorter slice cuts the ring open).
    """
    return _tpu_slice("tpu-v6e", dims, axes=2, gigabytes=100)


def _tpu_slice(name: str, dims: str | int, axes: int, gigabytes: int) -> Topology:
    """Return a slice of these sizes along at most `axes` axes; `gigabytes`: 10^9 bytes per second of a link, each way.

    With 3 axes (v4, v5p) all are rings or none is; with 2 (v6e) those of 16 chips are, as long as the pod.
    """
    sizes = parse_dimensions(name, dims, ranks=None)
    if len(sizes) > axes or (axes == 2 and max(sizes) > 16):
        limit = "2 sizes of at most 16" if axes == 2 else "3 sizes"
        raise Invalid(f"dims={quote(dims)}: {name} has at most {limit}, such as {'x'.join(['4'] * axes)}")
    whole_cubes = len(sizes) == 3 and not any(size % 4 for size in sizes)  # of 4x4x4 chips
    closed = [size == 16 if axes == 2 else whole_cubes for size in sizes]
    spec = f"{name}:dims={'x'.join(map(str, sizes))}"
    return _build_grid(spec, sizes, closed, [LinkType("ici", Fraction(gigabytes * GB), HOP)] * len(sizes))


def trn2(*, ultra: bool = False) -> Topology:
    """EC2's trn2.48xlarge: 16 Trainium2 in a torus of 4x4. ultra=true: the UltraServer, four of them, equal chips
    joined in rings.

    AWS Neuron, "Trainium2 Architecture": NeuronLink-v3 carries 1.28 TB/s both ways per chip, that is 640 GB/s each way;
    "Amazon EC2 Trn2 Architecture" shows the torus. 128 GB/s to each of four neighbours and 64 to each of two in other
    instances: SemiAnalysis, "Trainium2 Architecture & Networking" (2024); together they make the 640.
    """
    inner, outer = (LinkType("neuronlink", Fraction(gigabytes * GB), HOP) for gigabytes in (128, 64))
    if parse_yes(ultra, "ultra"):
        return _build_grid("trn2:ultra=true", (4, 4, 4), [True] * 3, [outer, inner, inner])  # axis 0: the instances
    return _build_grid("trn2", (4, 4), [True] * 2, [inner, inner])


def _build_grid(name: str, sizes: Sequence[int], closed: Sequence[bool], link_types: Sequence[LinkType]) -> Topology:
    """Return a grid: rank = position in row-major order. Per axis: `closed`, whether it is a ring; `link_types`."""
    rank_at = np.arange(math.prod(sizes)).reshape(sizes)
    check_link_count(2 * rank_at.ndim * rank_at.size, name, MAX_LISTED)
    links = []
    for axis, (size, is_ring, link_type) in enumerate(zip(sizes, closed, link_types, strict=True)):
        # all ranks but the last along the axis, and the next one of each
        lower, higher = (np.take(rank_at, range(start, start + size - 1), axis) for start in (0, 1))
        pairs: Pairs = list(zip(lower.ravel().tolist(), higher.ravel().tolist(), strict=True))
        if is_ring and size > 2:  # two are joined already
            ends = (np.take(rank_at, end, axis).ravel().tolist() for end in (size - 1, 0))
            pairs += zip(*ends, strict=True)
        links += both_ways(pairs, link_type)
    # there are at most three axes
    places = ["/".join(f"{axis}{i}" for axis, i in zip("xyz", point, strict=False)) for point in np.ndindex(*sizes)]
    return build(name, rank_at.size, links, places=places)


def gaudi3() -> Topology:
    """Intel's HLS-3: eight Gaudi 3, every two joined by three ports of 200 Gbit/s, 75 GB/s each way (Intel Gaudi
    documentation, "Network Configuration": 21 of 24 ports to the seven others, three out of the box)."""
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    kind = LinkType("ethernet", Fraction(75 * GB), HOP)
    return build("gaudi3", 8, both_ways(pairs, kind), places=[f"host0/gaudi{i}" for i in range(8)])
