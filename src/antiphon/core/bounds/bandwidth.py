"""The bandwidth bound of a collective: every search that applies, and the best witness kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter

import numpy as np

from antiphon.core.bounds.candidates import free_sides, limit_partitions, limit_sides, middle_sides, place_partitions
from antiphon.core.bounds.counting import crossing_blocks, cut_of, partition_of
from antiphon.core.bounds.cuts import Side, tightest_cut
from antiphon.core.bounds.families import COLLECT, SPREAD, UNICAST, FamilyRows, from_each, groups_of, to_each
from antiphon.core.bounds.lp import BoundProgram, Solution, size_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.network import Network, network_of
from antiphon.core.bounds.partition import weakest_partition
from antiphon.core.bounds.places import abilities_of, alone, in_switches, placed, places_for
from antiphon.core.bounds.recheck import proved_time
from antiphon.core.bounds.routing import even_spreads
from antiphon.core.bounds.witness import LpDual, Partition, Witness
from antiphon.core.collective import Collective
from antiphon.core.columns import Bools
from antiphon.core.topology import Topology

MOST_VARIABLES = 60_000  # of a linear program that is tried at all
_SIMPLEST = ("cut", "partition", "lp_dual")
CLOSE = 1e-9  # a dual this near to the float optimum is that optimum
_NEARLY = "(to 1 part in 10^9)"
_OPTIMUM = f"the optimum of the linear program {_NEARLY}"
_SEARCHED = 256  # ranks for whose part alone the tightest cut is searched
_OFFERED = 50  # cuts looked at closer, of those found
_JOINED = "values begin with several contributions, or want one twice: not known to be attainable"
_SPREAD = f"attained by spreading evenly over shortest paths {_NEARLY}"
_IN_HALVES = "attained by reducescatter, then allgather"
_PLACED = 256  # ranks beyond which partitions are first looked for by place
_HALVED = 2048  # ranks up to which cuts through the middle are tried
_OFFERED_HALVES = 4  # of them looked at closer
_STALLED = 3  # rounds without gain after which no more partitions are added


@dataclass(frozen=True)
class Proved:
    """A witness, the least time it proves (per weight over bytes/s), whether that is attainable, and why."""

    witness: Witness | None
    time: Fraction
    tight: bool | None
    note: str


class BandwidthSearch:
    """One topology and collective; keeps the best witness of all that are tried."""

    def __init__(self, topology: Topology, collective: Collective, needs: Needs) -> None:
        self.topology, self.collective, self.needs = topology, collective, needs
        self.network = network_of(topology)
        self.best: tuple[Fraction, Witness] | None = None
        self.inexact = False  # whether a linear program was tried, if it proves nothing
        self.whole = len(collective.members) == topology.ranks
        self.balanced = self.network.balanced
        self.helps = abilities_of(topology, collective)

    @property
    def places(self) -> Bools:
        """Per node whether data may be combined or copied there."""
        places = np.arange(self.topology.nodes) < self.topology.ranks
        places[list(self.helps)] = True
        return places

    def offer(self, witness: Witness) -> Fraction:
        """Evaluate a witness exactly, and keep it if it is the best, or as good and simpler."""
        time = proved_time(self.topology, self.collective, witness)
        if (
            self.best is None
            or time > self.best[0]
            or (time == self.best[0] and _SIMPLEST.index(witness.kind) < _SIMPLEST.index(self.best[1].kind))
        ):
            self.best = (time, witness)
        return time

    def offer_cut(self, side: Side) -> None:
        """Offer a cut unless it is plainly no better: rechecking costs more than looking."""
        cut = cut_of(self.topology, self.needs, side)
        if self.best is None or cut.weight / cut.capacity >= self.best[0]:
            self.offer(cut)

    def run(self) -> Proved:
        """The best bound found; never called tight where values begin joined (see Needs)."""
        proved = self._run()
        return replace(proved, tight=None, note=_JOINED) if self.needs.joined else proved

    def _run(self) -> Proved:
        kind = self.collective.kind
        if not len(self.needs):
            return Proved(None, Fraction(0), True, "nothing must move")
        if kind in SPREAD or kind in COLLECT:
            return self._spread()
        if kind == "allreduce":
            return self._allreduce()
        if kind in UNICAST:
            return self._unicast()
        return self._custom()

    def _proved(self, tight: bool | None, note: str) -> Proved:
        assert self.best is not None
        return Proved(self.best[1], self.best[0], tight, note)

    def _spread(self) -> Proved:
        """Broadcast and allgather; reduce and reducescatter are the same with all links turned round."""
        needs, collect = self.needs, self.collective.kind in COLLECT
        holders = needs.dst if collect else needs.holders
        blocks, first = np.unique(needs.block, return_index=True)
        weight: dict[tuple[int, ...], int] = {}
        for rank, w in zip(holders[first].tolist(), needs.weights[blocks].tolist(), strict=True):
            weight[(rank,)] = weight.get((rank,), 0) + w
        self._one_search(weight, self.collective.members, collect)
        if not self.topology.limits and self.balanced and self.whole:
            return self._proved(True, "attained by packing trees: all ranks take part, every switch is balanced")
        self._limit_cuts()
        solved = self._solve()
        if solved and self.whole and not self.helps:
            return self._proved(True, f"{_OPTIMUM}, attained by packing trees")
        if solved and self.helps:
            return self._proved(None, "switches may multicast or reduce: not known to be attainable")
        if solved:
            return self._proved(None, "ranks outside the group may relay: not known to be attainable")
        return self._proved(None, f"shared limits or unbalanced switches, {self._unsolved}")

    def _limit_cuts(self) -> None:
        """The cuts that shared limits suggest: the linear program may be too large, and a cut says more."""
        for side in limit_sides(self.topology):
            if crossing_blocks(self.needs, side).size:
                self.offer_cut(side)

    def _one_search(self, supply: dict[tuple[int, ...], int], sinks: Iterable[int], back: bool) -> None:
        network = self.network.reversed if back else self.network
        side, _ = tightest_cut(network, supply, list(sinks))
        self.offer_cut(~side if back else side)

    def _group_searches(self, groups: Sequence[FamilyRows]) -> None:
        """The tightest cut for what one rank needs, or for what one rank holds."""
        needs = self.needs
        cuts: list[tuple[Fraction, int, Side]] = []
        for group in self._narrowest([group for group in groups if group.of in ("to", "from")]):
            supply: dict[tuple[int, ...], int] = {}
            for row in group.rows.tolist():
                ends = needs.sets[int(needs.holders[row])] if group.of == "to" else (int(needs.dst[row]),)
                supply[ends] = supply.get(ends, 0) + int(needs.weights[needs.block[row]])
            back = group.of == "from"
            side, rate = tightest_cut(self.network.reversed if back else self.network, supply, list(group.at))
            cuts.append((rate, len(cuts), ~side if back else side))
        for _, _, side in sorted(cuts, key=itemgetter(0, 1))[:_OFFERED]:
            self.offer_cut(side)

    def _narrowest(self, groups: Sequence[FamilyRows]) -> Sequence[FamilyRows]:
        """The groups whose rank has the least capacity for what it needs or holds, where all would take too long."""
        if len(groups) <= _SEARCHED:
            return groups
        out, into = self.network.degrees()
        times = [
            float(self.needs.weights[self.needs.block[group.rows]].sum())
            / float((into if group.of == "to" else out)[group.at[0]])
            for group in groups
        ]
        return [groups[i] for i in np.argsort(times, kind="stable")[: -_SEARCHED - 1 : -1].tolist()]

    def _unicast(self) -> Proved:
        """Gather and scatter with one root are single flows; else even routing, then the linear program."""
        groups = _by_end(self.needs, self.collective.kind)
        self._group_searches(groups)
        if len(groups) == 1 and not self.topology.limits:
            return self._proved(True, "attained by a maximum flow")
        return self._concurrent()

    def _concurrent(self) -> Proved:
        self._limit_cuts()
        times = []
        for spread in even_spreads(self.topology, self.needs):
            self._offer_dual(spread.dual)
            times.append(spread.time / float(self.topology.resources.scale))
            if self._reached(times[-1]):
                return self._proved(True, _SPREAD)
        if self._solve():
            return self._proved(True, f"{_OPTIMUM}, attained by a concurrent flow")
        self._middle_cuts()
        if any(self._reached(time) for time in times):
            return self._proved(True, _SPREAD)
        return self._proved(None, f"the best of the cuts tried; {self._unsolved}")

    def _reached(self, time: float) -> bool:
        assert self.best is not None
        return time <= float(self.best[0]) * (1 + CLOSE)

    def _middle_cuts(self) -> None:
        """The cuts through the middle of grids and tori, and what halves other machines."""
        needs, ranks = self.needs, self.topology.ranks
        if ranks > _HALVED:
            return
        demand = np.zeros((ranks, ranks))
        alone = np.array([holders[0] if len(holders) == 1 else -1 for holders in needs.sets])[needs.holders]
        rows = alone >= 0
        np.add.at(demand, (alone[rows], needs.dst[rows]), needs.weights[needs.block[rows]])
        for side in middle_sides(self.topology, demand, _OFFERED_HALVES):
            self.offer_cut(side)

    def _custom(self) -> Proved:
        groups = groups_of(self.collective, self.needs)
        ends = [*groups, *_by_end(self.needs, self.collective.kind)]
        self._group_searches(ends)
        if len(groups) == 1 and groups[0].of == "all":
            return self._concurrent()
        self._solve()
        return self._proved(None, "a custom collective: not known to be attainable")

    def _solve(self) -> bool:
        """Offer the linear program's duals; whether the best witness is as good as its optimum."""
        groups = groups_of(self.collective, self.needs)
        flows = len(groups) if groups[0].of != "all" else len(np.unique(self.needs.holders))
        if size_of(self.topology.links, flows) > MOST_VARIABLES:
            return False
        program = BoundProgram(self.topology, groups, self.needs, self.places)
        self.inexact = True
        solution = program.solve(self._about)
        return solution is not None and self._offer_duals(program, solution)

    @property
    def _about(self) -> float:
        """The best bound so far, as programs count time."""
        assert self.best is not None
        return float(self.best[0] * self.topology.resources.scale)

    @property
    def _unsolved(self) -> str:
        return "its linear program was not solved exactly" if self.inexact else "too large for a linear program"

    def _offer_duals(self, program: BoundProgram, solution: Solution) -> bool:
        goal = solution.time / float(self.topology.resources.scale)
        assert self.best is not None
        for witness in program.witnesses(solution):
            if float(self.best[0]) >= goal * (1 - CLOSE):
                return True
            self._offer_dual(witness)
        return float(self.best[0]) >= goal * (1 - CLOSE)

    def _offer_dual(self, witness: LpDual) -> None:
        self.offer(witness)
        for side in free_sides(self.topology, witness):
            if crossing_blocks(self.needs, side).size:
                self.offer_cut(side)

    def _allreduce(self) -> Proved:
        members = self.collective.members
        weight: dict[tuple[int, ...], int] = {(members[0],): 1}
        for back in (False, True):
            self._one_search(weight, members, back)
        self._limit_cuts()
        free = not self.topology.limits
        self._both_ways()
        helped = in_switches(self.topology, self.collective, self.helps) if free and self.helps else None
        if helped is not None and helped[0] == self._proved(None, "").time:
            return self._proved(True, helped[1])
        if free and len(members) > _PLACED and self._by_places():
            return self._proved(True, _IN_HALVES)
        partitions = self._partitions(self.network) + self._limit_partitions()
        if free and self.whole and not self.topology.switches and self.network.symmetric:
            return self._proved(True, "attained by packing trees: all ranks take part, links are symmetric")
        if free and self.balanced:
            if self.whole and self._twice() == self._proved(None, "").time:
                return self._proved(True, _IN_HALVES)
            return self._proved(None, "not known to be attainable")
        self._allreduce_program(partitions)
        return self._proved(None, "not known to be attainable")

    def _by_places(self) -> bool:
        """Whether a partition that the places of ranks show proves a time that is attained: to search for the weakest
        takes a cut for every rank."""
        if not self.balanced or not self.whole or self.helps:
            return False
        for parts in place_partitions(self.topology):
            for direction in ("out", "in"):
                self.offer(partition_of(self.topology, self.collective, parts, direction))
        return self._twice() == self._proved(None, "").time

    def _partitions(self, network: Network) -> list[Partition]:
        """The weakest partitions of a network by capacity out and in, offered as witnesses."""
        partitions = []
        two_directions = self.topology.switches and not (network.symmetric and self._alike)
        for direction in ("out", "in") if two_directions else ("out",):
            turned = network if direction == "out" else network.reversed
            parts, _ = weakest_partition(turned, self.collective.members, places_for(self.helps, direction))
            partitions.append(partition_of(self.topology, self.collective, parts, direction))
            self.offer(partitions[-1])
        return partitions

    def _limit_partitions(self) -> list[Partition]:
        partitions = []
        for parts in limit_partitions(self.topology, self.collective.members):
            for direction in ("out", "in"):
                partitions.append(
                    partition_of(self.topology, self.collective, self._placed(parts, direction), direction)
                )
                self.offer(partitions[-1])
        return partitions

    @property
    def _alike(self) -> bool:
        """Whether what helps one way helps the other."""
        return all(ability.multicast == ability.reduce for ability in self.helps.values())

    def _placed(self, parts: Sequence[Sequence[int]], direction: str) -> list[list[int]]:
        return placed(self.network, places_for(self.helps, direction), parts)

    def _both_ways(self) -> None:
        parts = alone(self.topology, self.collective, self.network, self.helps)
        if parts:
            self.offer(partition_of(self.topology, self.collective, parts, "both"))

    def _twice(self) -> Fraction:
        """The time of a reducescatter, then an allgather, of equal parts: what an allreduce can surely do."""
        members = self.collective.members
        total = Fraction(0)
        for network in (self.network, self.network.reversed):
            _, rate = tightest_cut(network, {(m,): 1 for m in members}, members)
            total += 1 / (rate * len(members))
        weights = self.collective.weights
        assert weights is not None
        return total * int(weights[0]) / self.topology.resources.scale

    def _allreduce_program(self, partitions: list[Partition]) -> None:
        """Flows both ways between one rank and all others, and the partitions that the loads violate.

        Partitions are added a few rounds long; whatever the rounds, the duals of the last program are a
        bound.
        """
        groups = groups_of(self.collective, self.needs)
        if size_of(self.topology.links, len(groups)) > MOST_VARIABLES:
            return
        program = BoundProgram(self.topology, groups, self.needs, self.places)
        for partition in partitions:
            program.add(partition)
        solution, stalled = program.solve(self._about), 0
        while solution is not None and stalled < _STALLED and self._violated(program, solution):
            better = program.solve(self._about)
            if better is None:
                break
            stalled = 0 if better.time > solution.time * (1 + CLOSE) else stalled + 1
            solution = better
        if solution is not None:
            self._offer_duals(program, solution)

    def _violated(self, program: BoundProgram, solution: Solution) -> bool:
        """Add the partitions whose parts these loads serve too little; whether there was one."""
        arcs = program.arcs
        load = np.maximum(np.round(solution.load / max(solution.load.max(), 1e-300) * 2**30), 0).astype(np.int64)
        loaded = Network(self.topology.nodes, self.topology.ranks, arcs.tail, arcs.head, load)
        return sum(program.add(partition, solution) for partition in self._partitions(loaded)) > 0


def _by_end(needs: Needs, kind: str) -> list[FamilyRows]:
    """What each rank needs and what each rank holds; of a rooted collective, what concerns its roots only."""
    return [*(to_each(needs) if kind != "scatter" else ()), *(from_each(needs) if kind != "gather" else ())]
