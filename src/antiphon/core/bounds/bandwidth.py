"""Search for the bandwidth bound of a collective: try every method that applies and keep the best witness.

The bound is the minimum time at zero latency. Every bound has a witness that proves it: a *cut* (weight that must leave
a set of nodes over the capacity out of it), a *partition* (allreduce only), a *dual* (link prices from a linear
program) or, for several process groups at the same time, a *joint dual* (joint.py). Which methods apply depends on the
kind of collective:

    broadcast, allgather       every rank needs the same data, so the tightest cut is the bound. By Edmonds (1973)
                               trees attain it if all ranks take part and switches are balanced
                               (as much bandwidth enters each as leaves it).
    reduce, reducescatter      the same with all links reversed
    scatter, gather, alltoall  each datum has one destination: a concurrent flow. Even routing over shortest paths often
                               attains a cut at once; otherwise the linear program decides.
    allreduce                  partitions: to gather the sum, parts - 1 transfers of everything must cross between the
                               parts; as many must cross to spread it.
    custom                     cuts for what each rank needs or holds, then the linear program.

Cheap candidates (cuts around limits, halves of a grid) come first: they are simple witnesses, and the linear program is
only tried up to MOST_VARIABLES. It runs in floating point; its duals are rounded to whole numbers and evaluated
exactly, so that rounding can weaken a bound but never make it wrong.

A row of `Needs` is a block, the set of its holders and a destination. The weight of a block is its relative size. A
switch *helps* if it multicasts or reduces for the collective. Times in this file are seconds if a block of weight 1 had
one byte. Networks and linear programs count capacity in units of
`topology.resources.scale` bytes per second, so their times must be divided by it.

Example: alltoall on a 4x4 torus of unit links. The cut through the middle separates 8 ranks from 8; each must send 8/16
of its data across, over 8 links each way. Even routing loads exactly these links evenly, so both are optimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from antiphon.core.bounds.abilities import (
    abilities_of,
    assign_to_parts,
    members_alone,
    switches_to_assign,
    time_in_switches,
)
from antiphon.core.bounds.candidates import free_sides, limit_partitions, limit_sides, middle_sides, place_partitions
from antiphon.core.bounds.counting import cut_of, partition_of
from antiphon.core.bounds.cuts import Side, tightest_cut
from antiphon.core.bounds.families import COLLECT, SPREAD, UNICAST, FamilyRows, families_of, from_each, to_each
from antiphon.core.bounds.lp import BoundProgram, Solution, size_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.network import Network, network_of
from antiphon.core.bounds.partition import weakest_partition
from antiphon.core.bounds.recheck import proved_time
from antiphon.core.bounds.routing import even_routings
from antiphon.core.bounds.witness import LpDual, Partition, Witness
from antiphon.core.collective import Collective
from antiphon.core.columns import Bools
from antiphon.core.topology import Topology

MOST_VARIABLES = 60_000  # larger linear programs are not tried
# Of witnesses with equal bounds, the kind that comes first here is kept
_SIMPLEST = ("cut", "partition", "lp_dual", "joint_dual")
CLOSE = 1e-9  # relative difference at which a dual counts as equal to the optimum in floating point
_NEARLY = "(to 1 part in 10^9)"
_OPTIMUM = f"the optimum of the linear program {_NEARLY}"
_SEARCHED_RANKS = 256  # for at most this many ranks the tightest cut for the rank's own needs is searched ...
_OFFERED_CUTS = 50  # ... and this many of the cuts found are evaluated exactly
# The notes that state why a bound is tight or not
_JOINED = "values begin with several contributions, or want one twice: not known to be attainable"
_SPREAD = f"attained by spreading evenly over shortest paths {_NEARLY}"
_IN_HALVES = "attained by reducescatter, then allgather"
_RANKS_BY_PLACE = 256  # with more ranks, the partitions into ranks and into hosts are tried before the exact search
_HALVED_RANKS = 2048  # up to this many ranks, cuts through the middle are tried ...
_OFFERED_HALVES = 4  # ... and this many of them are evaluated exactly
_STALLED_ROUNDS = 3  # after this many rounds without gain no more partitions are added


@dataclass(frozen=True)
class Proved:
    """A witness and the time that it proves.

    `time`: in the unit of the module. `tight`: True if schedules come as close to that time as one likes; None:
    unknown. `note`: why `tight` is what it is.
    """

    witness: Witness | None
    time: Fraction
    tight: bool | None
    note: str


class BestWitness(NamedTuple):
    """A witness with the time that it proves."""

    time: Fraction
    witness: Witness


class BandwidthSearch:
    """The search on one topology and collective; `best` is the best witness so far.

    For groups at the same time `JointSearch` (joint.py) overrides `_search_by_kind`.
    """

    def __init__(self, topology: Topology, collective: Collective, needs: Needs) -> None:
        self.topology, self.collective, self.needs = topology, collective, needs
        self.network = network_of(topology)
        self.best: BestWitness | None = None
        self.program_tried = False  # whether a linear program was small enough to be tried
        self.all_ranks = len(collective.members) == topology.ranks  # whether no rank is outside the group
        self.balanced = self.network.balanced
        self.abilities = abilities_of(topology, collective)

    @property
    def is_combining(self) -> Bools:
        """Per node whether data may be combined or copied there: ranks, and switches that help (abilities.py)."""
        is_combining = np.arange(self.topology.nodes) < self.topology.ranks
        is_combining[list(self.abilities)] = True
        return is_combining

    def offer_witness(self, witness: Witness) -> Fraction:
        """Evaluate a witness exactly, and keep it if it is better than the best, or as good and simpler."""
        time = proved_time(self.topology, self.collective, witness)
        if (
            self.best is None
            or time > self.best.time
            or (time == self.best.time and _SIMPLEST.index(witness.kind) < _SIMPLEST.index(self.best.witness.kind))
        ):
            self.best = BestWitness(time, witness)
        return time

    def offer_cut(self, side: Side) -> None:
        """Offer the cut around a set of nodes if it can improve the best witness: an exact evaluation costs more."""
        cut = cut_of(self.topology, self.needs, side)
        if not cut.weight:
            return
        time = cut.weight / cut.capacity
        # Large machines have thousands of equal cuts: after the first no other is simpler.
        if self.best is None or time > self.best.time or (time == self.best.time and self.best.witness.kind != "cut"):
            self.offer_witness(cut)

    def find_best(self) -> Proved:
        """Return the best bound; never called tight if values begin with several contributions (see Needs.joined)."""
        proved = self._search_by_kind()
        return replace(proved, tight=None, note=_JOINED) if self.needs.joined else proved

    def _search_by_kind(self) -> Proved:
        """Return the best bound by the methods for this kind of collective; see the docstring of the module."""
        kind = self.collective.kind
        if not len(self.needs):
            return Proved(witness=None, time=Fraction(0), tight=True, note="nothing must move")
        if kind in SPREAD or kind in COLLECT:
            return self._bound_spread()
        if kind == "allreduce":
            return self._bound_allreduce()
        if kind in UNICAST:
            return self._bound_unicast()
        return self._bound_custom()

    def _conclude(self, tight: bool | None, note: str) -> Proved:
        """Return the best witness with a statement about its tightness."""
        assert self.best is not None
        return Proved(self.best.witness, self.best.time, tight, note)

    @property
    def _best_time(self) -> Fraction:
        """The time that the best witness so far proves; every method offers a witness before it asks."""
        assert self.best is not None
        return self.best.time

    def _bound_spread(self) -> Proved:
        """Bound broadcast and allgather; reduce and reducescatter are the same with all links reversed."""
        needs, collect = self.needs, self.collective.kind in COLLECT
        # `needs.holders` is an index into `needs.sets`. For these kinds set i is (i,): the index is the rank.
        sources = needs.dst if collect else needs.holders
        blocks, first = np.unique(needs.block, return_index=True)
        supply: dict[tuple[int, ...], int] = {}
        for rank, w in zip(sources[first].tolist(), needs.weights[blocks].tolist(), strict=True):
            supply[(rank,)] = supply.get((rank,), 0) + w
        # Edmonds: for one set of sources, the minimum over sinks of the tightest cut is the bound.
        self._offer_tightest_cut(supply, self.collective.members, collect)
        # Balanced switches can be split off (Lovasz, Mader) without lowering any cut between ranks, so trees exist.
        if not self.topology.limits and self.balanced and self.all_ranks:
            return self._conclude(
                tight=True, note="attained by packing trees: all ranks take part, every switch is balanced"
            )
        self._offer_limit_cuts()
        solved = self._solve_program()
        if solved and self.all_ranks and not self.abilities:
            return self._conclude(tight=True, note=f"{_OPTIMUM}, attained by packing trees")
        if solved and self.abilities:
            return self._conclude(tight=None, note="switches may multicast or reduce: not known to be attainable")
        if solved:
            return self._conclude(tight=None, note="ranks outside the group may relay: not known to be attainable")
        return self._conclude(tight=None, note=f"shared limits or unbalanced switches, {self._unsolved}")

    def _offer_limit_cuts(self) -> None:
        """Offer the cuts around the links of each shared limit: simpler than a dual, and the linear program may be too
        large.
        """
        for side in limit_sides(self.topology):
            self.offer_cut(side)

    def _offer_tightest_cut(self, supply: dict[tuple[int, ...], int], sinks: Iterable[int], back: bool) -> Fraction:
        """Offer the tightest cut for `supply` (holders -> weight) that must reach all `sinks`; return its rate.

        The rate of a cut is its capacity, in units of `resources.scale`, per weight. `back`: search with all links
        reversed, as for collected data; the data then leave the set of nodes that does not hold the source of the
        search.
        """
        network = self.network.reversed if back else self.network
        side, rate = tightest_cut(network, supply, list(sinks))
        self.offer_cut(~side if back else side)
        return rate

    def _offer_family_cuts(self, families: Sequence[FamilyRows]) -> None:
        """Offer the tightest cut for each family: what one rank needs ("to"), or what others need of it ("from").

        Families "pair" (from one rank to another) and "all" (every need) are left to the linear program.
        """
        needs = self.needs
        cuts: list[tuple[Fraction, int, Side]] = []  # rate, number, side; of equal rates the first comes first
        for family in self._narrowest_families([family for family in families if family.kind in ("to", "from")]):
            # what one rank must send is searched on reversed links: from the destinations, as sources, to the rank
            supply: dict[tuple[int, ...], int] = {}
            for row in family.rows.tolist():
                ends = needs.sets[int(needs.holders[row])] if family.kind == "to" else (int(needs.dst[row]),)
                supply[ends] = supply.get(ends, 0) + int(needs.weights[needs.block[row]])
            back = family.kind == "from"
            side, rate = tightest_cut(self.network.reversed if back else self.network, supply, list(family.ranks))
            cuts.append((rate, len(cuts), ~side if back else side))
        # Rechecking costs more than searching, so evaluate only the most promising cuts exactly.
        for _, _, side in sorted(cuts, key=itemgetter(0, 1))[:_OFFERED_CUTS]:
            self.offer_cut(side)

    def _narrowest_families(self, families: Sequence[FamilyRows]) -> Sequence[FamilyRows]:
        """Return the families of the ranks with the least capacity for their data, at most `_SEARCHED_RANKS`."""
        if len(families) <= _SEARCHED_RANKS:
            return families
        out, into = self.network.node_capacities()
        times = [
            float(self.needs.weights[self.needs.block[family.rows]].sum())
            / float((into if family.kind == "to" else out)[family.ranks[0]])
            for family in families
        ]
        # the last `_SEARCHED_RANKS` in order of times, the greatest first
        return [families[i] for i in np.argsort(times, kind="stable")[: -_SEARCHED_RANKS - 1 : -1].tolist()]

    def _bound_unicast(self) -> Proved:
        """Bound gather, scatter and alltoall: with one root by a single flow, otherwise by a concurrent flow."""
        families = _families_by_end(self.needs, self.collective.kind)
        self._offer_family_cuts(families)
        if len(families) == 1 and not self.topology.limits:  # one root: a single flow
            return self._conclude(tight=True, note="attained by a maximum flow")
        return self._bound_concurrent_flow()

    def _bound_concurrent_flow(self) -> Proved:
        """Bound a collective in which every datum has one destination: even routing first, then the linear program."""
        self._offer_limit_cuts()
        times = []
        # A routing gives an upper bound; where it meets a witness, both are optimal and no program is needed.
        for routing in even_routings(self.topology, self.needs):
            self._offer_dual(routing.dual)
            times.append(routing.time / float(self.topology.resources.scale))
            if self._is_attained(times[-1]):
                return self._conclude(tight=True, note=_SPREAD)
        if self._solve_program():
            return self._conclude(tight=True, note=f"{_OPTIMUM}, attained by a concurrent flow")
        self._offer_middle_cuts()
        if any(self._is_attained(time) for time in times):
            return self._conclude(tight=True, note=_SPREAD)
        return self._conclude(tight=None, note=f"the best of the cuts tried; {self._unsolved}")

    def _is_attained(self, time: float) -> bool:
        """Whether this time of a routing meets the best bound."""
        assert self.best is not None
        return time <= float(self.best.time) * (1 + CLOSE)

    def _offer_middle_cuts(self) -> None:
        """Offer the cuts through the middle of grids and tori, and halves of other machines."""
        needs, ranks = self.needs, self.topology.ranks
        if ranks > _HALVED_RANKS:
            return
        demand = np.zeros((ranks, ranks))  # the weight that one rank (row) must send to another (column)
        sole_holder = np.array([holders[0] if len(holders) == 1 else -1 for holders in needs.sets])[needs.holders]
        rows = sole_holder >= 0
        np.add.at(demand, (sole_holder[rows], needs.dst[rows]), needs.weights[needs.block[rows]])
        for side in middle_sides(self.topology, demand, _OFFERED_HALVES):
            self.offer_cut(side)

    def _bound_custom(self) -> Proved:
        """Bound a custom collective: cuts per rank, then the linear program."""
        families = families_of(self.collective, self.needs)
        self._offer_family_cuts([*families, *_families_by_end(self.needs, self.collective.kind)])
        # "all" alone: bounded like scatter, gather and alltoall, by a concurrent flow, if that counts every need.
        if len(families) == 1 and families[0].kind == "all" and len(families[0].rows) == len(self.needs):
            return self._bound_concurrent_flow()
        self._solve_program()
        return self._conclude(tight=None, note="a custom collective: not known to be attainable")

    def _solve_program(self) -> bool:
        """Offer the linear program's duals; True if the best witness is then as good as its optimum."""
        families = families_of(self.collective, self.needs)
        # A family is one flow, to or from a rank. The family "all", then the only one, is one flow per set of holders.
        flows = len(families) if families[0].kind != "all" else len(np.unique(self.needs.holders))
        if size_of(self.topology.links, flows) > MOST_VARIABLES:
            return False
        program = BoundProgram(self.topology, families, self.needs, self.is_combining)
        self.program_tried = True
        # Only the dual of the optimum is used, and it is evaluated exactly.
        solution = program.solve(self._time_scale)
        return solution is not None and self._offer_duals(program, solution)

    @property
    def _time_scale(self) -> float:
        """The best bound so far, in the unit of time of linear programs: the order of magnitude of their optimum."""
        assert self.best is not None
        return float(self.best.time * self.topology.resources.scale)

    @property
    def _unsolved(self) -> str:
        return "its linear program was not solved exactly" if self.program_tried else "too large for a linear program"

    def _offer_duals(self, program: BoundProgram, solution: Solution) -> bool:
        """Offer the exact duals of a solution until one proves its float optimum.

        Return whether the best witness then proves it.
        """
        optimum = solution.time / float(self.topology.resources.scale)
        assert self.best is not None
        for witness in program.exact_witnesses(solution):
            # The best witness is as good as the float optimum: no dual can improve it.
            if float(self.best.time) >= optimum * (1 - CLOSE):
                return True
            self._offer_dual(witness)
        return float(self.best.time) >= optimum * (1 - CLOSE)

    def _offer_dual(self, witness: LpDual) -> None:
        """Offer a dual, and the cuts behind it if it has any: cuts are simpler witnesses."""
        self.offer_witness(witness)
        for side in free_sides(self.topology, witness):
            self.offer_cut(side)

    def _bound_allreduce(self) -> Proved:
        """Bound an allreduce: cuts, then partitions, then the linear program with violated partitions."""
        members = self.collective.members
        # Every set with some members but not all separates the first member from another one, in one direction. The
        # supply has weight 1, so that the rate of a cut is its capacity.
        supply: dict[tuple[int, ...], int] = {(members[0],): 1}
        least_capacity = min(self._offer_tightest_cut(supply, members, back) for back in (False, True))
        self._offer_limit_cuts()
        no_limits = not self.topology.limits
        self._offer_both_directions()
        in_switch = (
            time_in_switches(self.topology, self.collective, self.abilities) if no_limits and self.abilities else None
        )
        if in_switch is not None:
            switch_time, switch_note = in_switch
            if switch_time == self._best_time:
                return self._conclude(tight=True, note=switch_note)
        # On large machines the weakest partition is mostly "every rank alone" or "every host": if one of these is
        # attained, or links alone show that none is weaker, the exact search (a cut per rank) is not needed.
        is_large = len(members) > _RANKS_BY_PLACE
        if is_large and self._offer_place_partitions():
            return self._conclude(tight=True, note=_IN_HALVES)
        # `partitions` become rows of the linear program below.
        partitions = self._offer_limit_partitions()
        if not (is_large and self._is_weakest(least_capacity)):
            partitions = self._offer_partitions(self.network) + partitions
        if no_limits and self.all_ranks and not self.topology.switches and self.network.symmetric:
            return self._conclude(
                tight=True, note="attained by packing trees: all ranks take part, links are symmetric"
            )
        # the linear program serves machines with limits or unbalanced switches only
        if no_limits and self.balanced:
            if self.all_ranks and self._two_phase_time() == self._best_time:
                return self._conclude(tight=True, note=_IN_HALVES)
            return self._conclude(tight=None, note="not known to be attainable")
        self._offer_allreduce_duals(partitions)
        return self._conclude(tight=None, note="not known to be attainable")

    def _is_weakest(self, least_capacity: Fraction) -> bool:
        """Whether links alone show that no partition proves more than the best witness.

        `least_capacity`: that of the narrowest cut between the first member and another, in units of `resources.scale`.
        Of k parts, the k - 1 without the first member each have at least that capacity to or from the rest. So a
        partition proves at most 2 (k - 1) * weight / ((k - 1) * least_capacity) = 2 * weight / least_capacity.
        """
        weights = self.collective.weights
        assert self.best is not None
        assert weights is not None
        return self.best.time * least_capacity * self.topology.resources.scale >= 2 * int(weights[0])

    def _offer_place_partitions(self) -> bool:
        """Offer the partitions into ranks and into hosts; True if an allreduce attains the time that they prove."""
        if not self.all_ranks or self.abilities:
            return False
        for part_sets in place_partitions(self.topology):
            for direction in ("out", "in"):
                self.offer_witness(partition_of(self.topology, self.collective, part_sets, direction))
        if self.topology.limits or not self.balanced:
            return False
        return self._two_phase_time() == self._best_time

    def _offer_partitions(self, network: Network) -> list[Partition]:
        """Offer the weakest partitions of a network, by capacity out of and into the parts, and return them."""
        partitions = []
        # Without switches every link out of a part leads into another; on symmetric machines "in" mirrors "out".
        two_directions = self.topology.switches and not (network.symmetric and self._helps_both_ways)
        for direction in ("out", "in") if two_directions else ("out",):
            oriented = network if direction == "out" else network.reversed
            switches = switches_to_assign(self.abilities, direction)
            part_sets, _ = weakest_partition(oriented, self.collective.members, switches)
            partitions.append(partition_of(self.topology, self.collective, part_sets, direction))
            self.offer_witness(partitions[-1])
        return partitions

    def _offer_limit_partitions(self) -> list[Partition]:
        """Offer the partitions that shared limits suggest, and return them."""
        partitions = []
        for part_sets in limit_partitions(self.topology, self.collective.members):
            for direction in ("out", "in"):
                partitions.append(
                    partition_of(self.topology, self.collective, self._place_switches(part_sets, direction), direction)
                )
                self.offer_witness(partitions[-1])
        return partitions

    @property
    def _helps_both_ways(self) -> bool:
        """Whether every switch that helps both multicasts and reduces."""
        return all(ability.multicast == ability.reduce for ability in self.abilities.values())

    def _place_switches(self, part_sets: Sequence[Sequence[int]], direction: str) -> list[list[int]]:
        """Return the parts with each switch that helps added to one of them."""
        return assign_to_parts(self.network, switches_to_assign(self.abilities, direction), part_sets)

    def _offer_both_directions(self) -> None:
        """Offer the partition into single members that counts the capacity out of and into them together."""
        part_sets = members_alone(self.topology, self.collective, self.network, self.abilities)
        if part_sets:
            self.offer_witness(partition_of(self.topology, self.collective, part_sets, "both"))

    def _two_phase_time(self) -> Fraction:
        """Return the time of a reducescatter followed by an allgather of equal parts, which an allreduce can attain."""
        members = self.collective.members
        total = Fraction(0)
        # Each phase takes 1 / rate if a member's part weighs 1; it weighs 1 / members of the data.
        for network in (self.network, self.network.reversed):
            _, rate = tightest_cut(network, {(m,): 1 for m in members}, members)
            total += 1 / (rate * len(members))  # for data of weight 1; the block's weight follows below
        weights = self.collective.weights
        assert weights is not None
        return total * int(weights[0]) / self.topology.resources.scale

    def _offer_allreduce_duals(self, partitions: list[Partition]) -> None:
        """Offer the duals of a linear program with flows between one rank and all others, and with violated partitions.

        Partitions are added for a few rounds; after any number of rounds the duals of the last program are a bound.
        """
        families = families_of(self.collective, self.needs)
        if size_of(self.topology.links, len(families)) > MOST_VARIABLES:
            return
        program = BoundProgram(self.topology, families, self.needs, self.is_combining)
        for partition in partitions:
            program.add_partition(partition)
        solution, stalls = program.solve(self._time_scale), 0
        # Cutting planes: add partitions that the loads violate, until none is violated or the time stops growing.
        while solution is not None and stalls < _STALLED_ROUNDS and self._add_violated_partitions(program, solution):
            next_solution = program.solve(self._time_scale)
            if next_solution is None:
                break
            stalls = 0 if next_solution.time > solution.time * (1 + CLOSE) else stalls + 1
            solution = next_solution
        if solution is not None:
            self._offer_duals(program, solution)

    def _add_violated_partitions(self, program: BoundProgram, solution: Solution) -> bool:
        """Add the partitions that demand more than the sum of the loads across them. Return whether one was added."""
        arcs = program.arcs  # an arc of the linear program stands for all parallel links
        # The separation needs integers: scale the float loads so that the greatest is 2^30 (1e-300: all may be 0).
        load = np.maximum(np.round(solution.load / max(solution.load.max(), 1e-300) * 2**30), 0).astype(np.int64)
        load_network = Network(self.topology.nodes, self.topology.ranks, arcs.tail, arcs.head, load)
        # the sum, not `any`: all of them are added
        return sum(program.add_partition(partition, solution) for partition in self._offer_partitions(load_network)) > 0


def _families_by_end(needs: Needs, kind: str) -> list[FamilyRows]:
    """Return a family of needs per receiving rank, and one per holding rank; of a scatter or gather only those of its
    roots."""
    return [*(to_each(needs) if kind != "scatter" else ()), *(from_each(needs) if kind != "gather" else ())]
