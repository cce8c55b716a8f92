"""The clusters of the parameterized-collectives paper (its section V): NCSA Delta and Argonne Polaris.

A node has four A100, each pair joined by four NVLinks, 100 GB/s each way (NVIDIA, HGX A100 4-GPU; ALCF's page on
Polaris shows NV4 for every pair). The paper writes "600 Gbps" for NVLink: NVIDIA's 600 GB/s are meant, both ways, per
GPU. A Slingshot 11 card carries 200 Gbit/s. The dragonfly between nodes stands as one switch: like the paper's
simulator, contention is looked for at devices and at cards, not inside the fabric.
"""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import Topology, both_ways, build
from antiphon.topologies.joined import Cards, connected, one_switch
from antiphon.topologies.links import NVLINK, nvlink
from antiphon.topologies.options import whole

SLINGSHOT = Fraction(25 * 10**9)


def delta(*, nodes: int = 16) -> Topology:
    """NCSA Delta: `nodes` nodes of four A100, one Slingshot card each, shared by all four."""
    return _machine("delta", nodes, 1)


def polaris(*, nodes: int = 16) -> Topology:
    """Argonne Polaris: `nodes` nodes of four A100, two Slingshot cards each; GPUs 0 and 1 share one, 2 and 3 the other
    (assumed)."""
    return _machine("polaris", nodes, 2)


def _machine(name: str, nodes: int, cards: int) -> Topology:
    whole(nodes, "nodes", 1, 100_000)
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    box = build("quad", 4, both_ways(pairs, nvlink(4)), places=[f"gpu{i}" for i in range(4)], unit=NVLINK)
    found = Cards(cards, SLINGSHOT, (0, 1, 2, 3), "slingshot")
    return connected(f"{name}:nodes={nodes}", box, nodes, found, one_switch(nodes, cards, "slingshot"))
