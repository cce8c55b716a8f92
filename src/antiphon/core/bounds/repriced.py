"""A proof of one machine, evaluated on another that differs in its bandwidths alone."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.counting import cut_of, partition_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.recheck import proved_time
from antiphon.core.bounds.witness import Cut, Partition, Witness
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology


def seconds_per_byte(machine: Topology, collective: Collective, needs: Needs, witness: Witness | None) -> Fraction:
    """Return the least seconds per byte of nbytes that a witness proves on this machine.

    The witness may have been found on a machine with other bandwidths: sets of nodes, partitions and prices prove
    something on both, though perhaps not the most.
    """
    if witness is None:
        return Fraction(0)
    if isinstance(witness, Cut):
        side = np.zeros(machine.nodes, bool)
        side[list(witness.side)] = True
        witness = cut_of(machine, needs, side)
    elif isinstance(witness, Partition):
        witness = partition_of(machine, collective, witness.parts, witness.direction)
    else:
        partitions = tuple(
            (partition_of(machine, collective, partition.parts, partition.direction), times)
            for partition, times in witness.partitions
        )
        witness = replace(witness, partitions=partitions)
    return proved_time(machine, collective, witness) / collective.buffer_weight
