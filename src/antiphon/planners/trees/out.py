"""Trees out of one or several roots to all members, by whichever engine suits the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.trees.both_ways import Directed, directed
from antiphon.planners.trees.columns import Packing, pack_lp, pack_orbits
from antiphon.planners.trees.fewest import fewest_broadcast
from antiphon.planners.trees.forest import forests
from antiphon.planners.trees.tree import Tree

FEW_RANKS = 16  # up to which the fewest trees are looked for


@dataclass(frozen=True)
class Packed:
    """Root r's trees carry demand[r] * rate in all. `how` they were found, `optimal`: no trees are faster; `few`: what
    is known of their number."""

    trees: tuple[Tree, ...]
    rate: Fraction
    how: str
    optimal: bool
    few: str | None = None


def out_of(
    topology: Topology, demand: Mapping[int, int], members: Sequence[int], loss: Fraction = Fraction(0), seed: int = 0
) -> Packed:
    """The fastest trees, then few and shallow ones. `loss`: the share of the rate given up to have fewer, which only
    one root of a small machine of direct links makes use of.
    """
    linked = {*topology.link_src.tolist(), *topology.link_dst.tolist()}
    whole = linked <= set(members)
    if len(demand) == 1:
        machine = _direct(topology, members) if whole and len(members) <= FEW_RANKS else None
        if machine is not None:
            (root,) = demand
            few = fewest_broadcast(machine, root, loss=loss)
            told = few.describe()
            return Packed(few.trees, few.rate / demand[root], "fewest trees", few.rate == few.optimum, told)
    else:
        symmetric = pack_orbits(topology, demand, members, seed=seed)
        if symmetric is not None and symmetric.proved:
            return _from(symmetric, "columns, by the machine's symmetries")
    cut = forests(topology, demand, members)
    if cut is not None:
        return Packed(tuple(cut[1]), cut[0], "Edmonds' forests, switches split off", True)
    return _from(pack_lp(topology, demand, members), "columns over logical pairs of ranks")


def _direct(topology: Topology, members: Sequence[int]) -> Directed | None:
    try:
        return directed(topology, members)
    except Unsupported:
        return None


def _from(packing: Packing, how: str) -> Packed:
    return Packed(packing.trees, packing.rate, how, packing.proved)
