"""Evaluate a proof of a lower bound on a machine that differs only in its bandwidths from the one it was found for.

A cut, a partition or link prices name nodes and links, which exist on both machines; only capacities change. Example:
the cut {0} of a ring of 3 proves 1 / (2 links * 1 GB/s) per byte of rank 0's block; with links of 2 GB/s, half.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.counting import cut_of, partition_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.recheck import proved_time
from antiphon.core.bounds.witness import Cut, LpDual, Partition, Witness
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology


def seconds_per_byte(machine: Topology, collective: Collective, needs: Needs, witness: Witness | None) -> Fraction:
    """Return the least seconds per byte of nbytes that a witness proves on this machine.

    The witness may have been found for other bandwidths: it is valid on both machines, but another may prove more.
    """
    if witness is None:
        return Fraction(0)
    if isinstance(witness, Cut):
        side = np.zeros(machine.nodes, bool)
        side[list(witness.side)] = True
        witness = cut_of(machine, needs, side)
    elif isinstance(witness, Partition):
        witness = partition_of(machine, collective, witness.parts, witness.direction)
    elif isinstance(witness, LpDual):
        witness = _with_capacities(machine, collective, witness)
    else:
        pairs = zip(collective.groups, witness.groups, strict=True)
        witness = replace(witness, groups=tuple(_with_capacities(machine, group, dual) for group, dual in pairs))
    return proved_time(machine, collective, witness) / collective.buffer_weight


def _with_capacities(machine: Topology, collective: Collective, dual: LpDual) -> LpDual:
    """Return the dual with the capacities of its partitions on this machine."""
    partitions = tuple(
        (partition_of(machine, collective, partition.parts, partition.direction), multiplier)
        for partition, multiplier in dual.partitions
    )
    return replace(dual, partitions=partitions)
