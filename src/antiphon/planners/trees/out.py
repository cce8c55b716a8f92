"""Trees out of one or several roots to all members, by whichever engine suits the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.orbits import Table
from antiphon.planners.trees.both_ways import Directed, directed
from antiphon.planners.trees.columns import Packing, View, pack_lp, pack_orbits
from antiphon.planners.trees.fewest import fewest_broadcast
from antiphon.planners.trees.forest import forests
from antiphon.planners.trees.images import Forest
from antiphon.planners.trees.portions import at_full_rate, portioned
from antiphon.planners.trees.tree import Tree

FEW_RANKS = 16  # up to which the fewest trees are looked for
FEW_HOPS = 2**9  # ranks times roots up to which trees are packed one by one, where that is proved to be the fastest
MOST_HOPS = 2**18  # ranks times roots, or roots that no symmetry takes to each other

_TOO_MANY = (
    "planner trees: {} ranks, {} of them roots, of which no symmetry that was found takes {} to each other: too many; "
    "use compose, greedy or hierarchical-ring"
)


@dataclass(frozen=True)
class Packed:
    """Root r's trees carry demand[r] * rate in all. `how` they were found, `optimal`: no trees are faster; `few`: what
    is known of their number."""

    firsts: tuple[Tree, ...]
    rate: Fraction
    how: str
    optimal: bool
    few: str | None = None
    forest: Forest | None = None

    @property
    def trees(self) -> tuple[Tree, ...]:
        """All of them: `firsts`, or, by symmetries, these and their images."""
        return self.firsts if self.forest is None else self.forest.trees


def out_of(
    topology: Topology, demand: Mapping[int, int], members: Sequence[int], loss: Fraction = Fraction(0), seed: int = 0,
    group: Table | None = None,
) -> Packed:  # fmt: skip
    """The fastest trees, then few and shallow ones. `loss`: the share of the rate given up to have fewer, which only
    one root of a small machine of direct links makes use of. `group`: symmetries to see the machine by, if known.
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
        view = View.of(topology, demand, members, seed, group)
        many = len(members) * len(demand) > MOST_HOPS
        if many and len(view.roots) * len(members) > MOST_HOPS // FEW_RANKS:
            raise Unsupported(_TOO_MANY.format(len(members), len(demand), len(view.roots)))
        symmetric = pack_orbits(topology, demand, members, view)
        if symmetric is not None and (symmetric.proved or many):
            return _from(symmetric, "columns, by the machine's symmetries")
    cut = forests(topology, demand, members)
    if cut is not None:
        return Packed(tuple(cut[1]), cut[0], "Edmonds' forests, switches split off", True)
    if len(demand) * len(members) > FEW_HOPS and len(members) == topology.ranks:
        parted = portioned(topology, demand, (False,))
        if parted is not None:
            trees = at_full_rate(topology, parted.trees[False])
            rate = sum((tree.rate for tree in trees), Fraction(0)) / sum(demand.values())
            return Packed(trees, rate, "Edmonds' forests, parts of the links by cuts", False)
    return _from(pack_lp(topology, demand, members), "columns over logical pairs of ranks")


def _direct(topology: Topology, members: Sequence[int]) -> Directed | None:
    try:
        return directed(topology, members)
    except Unsupported:
        return None


def _from(packing: Packing, how: str) -> Packed:
    if len(packing.forest.group) == 1:
        return Packed(packing.trees, packing.rate, how, packing.proved)
    return Packed(packing.firsts, packing.rate, how, packing.proved, forest=packing.forest)
