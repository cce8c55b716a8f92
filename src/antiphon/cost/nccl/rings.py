"""The rings that NCCL finds over the links of a few GPUs without a switch.

NCCL sends around rings through all GPUs, each at the rate of one link, so a GPU's bandwidth is the number of rings that
the links can hold together, not the number of its links. Links are alike in both directions, and a ring is used in
both: twice the greatest number of edge-disjoint Hamiltonian cycles. If there is no ring, as among GPUs 1, 4, 5 and 6 of
a DGX-1V (GPU 1 has a link only to 5), NCCL runs one ring over PCIe or host memory: half a link, according to the paper
on Blink (MLSys 2020, 5.1).

    GPUs 0 1 2 3 of a DGX-1V    two cycles   4 rings   100 GB/s
    GPUs 1 4 5 6                none         PCIe      12.5 GB/s

All cycles are listed (at most 2,520, through 8 GPUs), and an integer program chooses the most that the links can hold.
"""

from __future__ import annotations

import itertools

import numpy as np

from antiphon.core.topology import Topology

MAX_RANKS = 8  # more GPUs have too many cycles
PCIE = 0.5  # bandwidth of the ring over PCIe, as a fraction of a link
ROUNDING = 1e-9  # links; added before links are rounded down to whole units, as quotients are inexact


def ring_bandwidth(node: Topology) -> float:
    """Return the bytes per second that a rank sends around all rings together; 0 if the links hold no ring.

    The caller (layout.py) has checked that the node has 2 to MAX_RANKS ranks; for 0 it takes PCIE of a link instead.
    """
    width = np.zeros((node.ranks, node.ranks))
    np.add.at(width, (node.link_src, node.link_dst), [float(node.bandwidth(link)) for link in range(node.links)])
    units = np.floor(np.minimum(width, width.T) / float(node.unit) + ROUNDING)
    if node.ranks == 2:  # a ring of two uses a link in both directions already, so reversing it gives no second ring
        return float(units[0, 1]) * float(node.unit)
    # every cycle from rank 0 on, in one of its two directions
    orders = (order for order in itertools.permutations(range(1, node.ranks)) if order[0] < order[-1])
    rings = (list(itertools.pairwise((0, *order, 0))) for order in orders)
    cycles = [pairs for pairs in rings if all(units[pair] for pair in pairs)]
    return 2 * _pack(cycles, units) * float(node.unit)  # each cycle is a ring in either direction


def _pack(cycles: list[list[tuple[int, int]]], units: np.ndarray) -> int:
    """Return the greatest number of cycles that fit the links together; a cycle may count several times.

    `units`: the rings that each pair's links can hold.
    """
    from scipy.optimize import LinearConstraint, milp

    if not cycles:
        return 0
    pairs = [(a, b) for a, b in itertools.combinations(range(len(units)), 2) if units[a, b]]
    row = {pair: i for i, pair in enumerate(pairs)}
    load = np.zeros((len(pairs), len(cycles)))
    for column, cycle in enumerate(cycles):
        load[[row[min(pair), max(pair)] for pair in cycle], column] = 1
    capacity = LinearConstraint(load, ub=[units[pair] for pair in pairs])
    result = milp(-np.ones(len(cycles)), constraints=capacity, integrality=np.ones(len(cycles)))
    return round(-result.fun)
