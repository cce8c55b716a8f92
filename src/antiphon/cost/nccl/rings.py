"""The rings that NCCL finds over the links among a few GPUs without a switch.

NCCL sends around rings through all GPUs, each at the rate of one link, so what counts is not how many links a GPU has
but how many rings the links hold together. Links are alike both ways, and a ring is used both ways: twice the most
edge-disjoint Hamiltonian cycles. Where there is no ring, as among GPUs 1, 4, 5 and 6 of a DGX-1V (GPU 1 has a link to 5
alone), NCCL runs one ring over PCIe or host memory: half a link, as the paper on Blink has it (MLSys 2020, 5.1).

    GPUs 0 1 2 3 of a DGX-1V    two cycles   4 rings   100 GB/s
    GPUs 1 4 5 6                none         PCIe      12.5 GB/s

All cycles are listed (at most 2,520, through 8 GPUs), and an integer program takes the most that the links hold.
"""

from __future__ import annotations

import itertools

import numpy as np

from antiphon.core.topology import Topology

MAX_RANKS = 8
PCIE = 0.5  # of a link


def ring_bandwidth(node: Topology) -> float:
    """Return the bytes per second that a rank sends around all rings together; 0 where the links hold none."""
    width = np.zeros((node.ranks, node.ranks))
    np.add.at(width, (node.link_src, node.link_dst), [float(node.bandwidth(link)) for link in range(node.links)])
    units = np.floor(np.minimum(width, width.T) / float(node.unit) + 1e-9)
    if node.ranks == 2:
        return float(units[0, 1]) * float(node.unit)
    orders = (order for order in itertools.permutations(range(1, node.ranks)) if order[0] < order[-1])
    around = (list(itertools.pairwise((0, *order, 0))) for order in orders)
    cycles = [pairs for pairs in around if all(units[pair] for pair in pairs)]
    return 2 * _pack(cycles, units) * float(node.unit)


def _pack(cycles: list[list[tuple[int, int]]], units: np.ndarray) -> int:
    """Return the most cycles, each any number of times, that the links hold together."""
    from scipy.optimize import LinearConstraint, milp

    if not cycles:
        return 0
    pairs = [(a, b) for a, b in itertools.combinations(range(len(units)), 2) if units[a, b]]
    row = {pair: i for i, pair in enumerate(pairs)}
    load = np.zeros((len(pairs), len(cycles)))
    for column, cycle in enumerate(cycles):
        load[[row[min(pair), max(pair)] for pair in cycle], column] = 1
    held = LinearConstraint(load, ub=[units[pair] for pair in pairs])
    result = milp(-np.ones(len(cycles)), constraints=held, integrality=np.ones(len(cycles)))
    return round(-result.fun)
