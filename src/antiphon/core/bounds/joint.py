"""Bound the time of a joint collective: several groups at the same time, which share the links.

A group is one of the collectives that run at the same time (`Collective.groups`). `JointSearch` is called by `bound`.
The loads of different groups add up, since their data are different. So prices of links bound the time of all groups
together: what each group must pay at these prices is bounded on its own, as for a single collective (lp.py), and

    T  >=  (sum over groups of the least cost at the prices)  /  (sum over links of price * capacity)

Groups with links of their own may attain that already (`_is_attained_apart`): boxes at work at the same time, say.
Else the best prices come from one linear program: the programs of the groups side by side, joined by the rows of links
and shared limits.

    minimise T   such that   sum over groups of (scale * load) <= capacity * T on every link and shared limit,
                             the flows of each group fit under its loads,
                             the loads of each allreduce cross its partitions often enough (partition.py: sets of nodes,
                             between which all data must cross)

`scale`: the weight of a group's blocks in the joint collective per weight of their own. The witness is a `JointDual`:
the prices, and for every group an `LpDual` at these prices.

Example: pairs (0, 2) and (1, 3) of a ring of 4 exchange one block each. A pair alone sends half of its block each way
round: every link carries 1/2. Together the pairs load every link by 1, and equal prices prove that none can do better:
each of the 4 blocks travels 2 links, over 8 links of capacity 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.bandwidth import _OPTIMUM, CLOSE, BandwidthSearch, Proved, _families_by_end
from antiphon.core.bounds.candidates import place_partitions, reachable_nodes
from antiphon.core.bounds.counting import partition_of
from antiphon.core.bounds.families import COLLECT, SPREAD, UNICAST, families_of
from antiphon.core.bounds.lp import BoundProgram, JointSolution, count_crossings, round_vectors, solve_programs
from antiphon.core.bounds.needs import needs_of
from antiphon.core.bounds.witness import Family, JointDual, LpDual
from antiphon.core.collective import Collective
from antiphon.core.columns import Floats
from antiphon.core.reshape import keep
from antiphon.core.topology import Topology

MOST_VARIABLES = 40_000  # larger programs are not tried: on 64 ranks one takes minutes
_MAX_ROUNDS = 6  # linear programs solved while violated partitions are added


def group_scales(collective: Collective) -> list[int]:
    """Return, for every group of a joint collective, the weight of its blocks there per weight of their own (a whole
    number, as `Collective` makes them)."""
    blocks = zip(collective.groups, collective.group_blocks, strict=True)
    return [int(collective.weights[own].sum()) // int(group.weights.sum()) for group, own in blocks]


class JointProgram:
    """The linear program of all groups of a joint collective on one machine."""

    def __init__(self, topology: Topology, searches: Sequence[BandwidthSearch], scales: Sequence[int]) -> None:
        self.topology, self.scales = topology, scales
        self.programs = [  # per group
            BoundProgram(topology, families_of(s.collective, s.needs), s.needs, s.is_combining, shared=True)
            for s in searches
        ]
        self.arcs = self.programs[0].arcs

    def solve(self, time_scale: float, hop_weight: float = 0.0) -> JointSolution | None:
        """Return the optimum, or None if HiGHS fails; parameters as of `solve_programs`."""
        return solve_programs(self.programs, self.scales, time_scale, hop_weight)

    def exact_witnesses(self, solution: JointSolution) -> Iterator[JointDual]:
        """Yield exact witnesses rounded from the float duals, the simplest first, as `BoundProgram` does."""
        duals = itertools.chain.from_iterable((s.lengths.ravel(), s.potentials, s.multipliers) for s in solution.groups)
        for limits, *rounded in round_vectors([solution.groups[0].limit_price, *duals]):
            # zip over one iterator three times: (lengths, potentials, multipliers) of each group
            witness = self._round_dual(list(zip(*[iter(rounded)] * 3, strict=True)), [max(v, 0) for v in limits])
            if witness.prices:
                yield witness

    def _round_dual(self, duals: Sequence[tuple[list[int], ...]], limits: list[int]) -> JointDual:
        """Build a witness from whole-number duals of every group, with the least prices that cover each group.

        `duals`: per group lengths, potentials and multipliers. `limits`: the prices of shared limits. The loads of the
        groups add up, and all pay the same price for a link; so the greatest price that a group requires serves all.
        """
        price, groups = np.zeros(len(self.arcs), object), []
        for program, (rounded, potentials, multipliers) in zip(self.programs, duals, strict=True):
            lengths = [max(v, 0) for v in rounded]
            price = np.maximum(price, program._required_prices(lengths, limits, potentials, multipliers))
            dual = program._assemble_dual(lengths, limits, potentials, multipliers)
            groups.append(
                LpDual(prices=(), families=dual.families, potentials=dual.potentials, partitions=dual.partitions)
            )
        prices = [(link, int(p)) for arc, p in enumerate(price.tolist()) if p for link in self.arcs.links[arc]]
        prices += [(self.topology.links + i, p) for i, p in enumerate(limits) if p]
        return JointDual(tuple(sorted(prices)), tuple(groups))


class JointSearch(BandwidthSearch):
    """The search for a joint collective: cuts, partitions into ranks and into hosts, then the joint linear program."""

    def _search_by_kind(self) -> Proved:
        """Return the best bound with its witness, and whether it is attained."""
        if not len(self.needs):
            return Proved(witness=None, time=Fraction(0), tight=True, note="nothing must move")
        self.offer_simple_witnesses()
        if self._is_attained_apart():
            return self._conclude(tight=True, note="attained by the groups, each on links of its own")
        solved = self._solve_joint_program()
        if solved and {group.kind for group in self.collective.groups} <= {*UNICAST}:
            return self._conclude(tight=True, note=f"{_OPTIMUM}, attained by a concurrent flow")
        reason = "not known to be attainable" if solved else f"the best of the cuts tried; {self._unsolved}"
        return self._conclude(tight=None, note=f"several groups at the same time: {reason}")

    def _is_attained_apart(self) -> bool:
        """Return whether the groups attain the time of the best witness on links among their own ranks.

        A group's bound there must be tight, and no two groups may share a link or a limit. Then no program is needed.
        """
        resources = self.topology.resources
        is_used = np.zeros(len(resources.class_of), bool)
        for group, scale in zip(self.collective.groups, group_scales(self.collective), strict=True):
            # the machine of the group's ranks alone; `links`: the numbers of its links in the whole machine
            group_machine = keep(self.topology, group.members)
            links = np.array(group_machine.links, np.int64)
            _, resources_of_links = resources.with_limits(links)
            group_resources = np.unique(resources_of_links)
            # Each member must reach the first one (number 0 of the group's machine) and be reached from it.
            every_link = np.ones(group_machine.topology.links, bool)
            reached = [reachable_nodes(group_machine.topology, [0], every_link, back) for back in (False, True)]
            if is_used[group_resources].any() or not all(
                side[: group_machine.topology.ranks].all() for side in reached
            ):
                return False
            is_used[group_resources] = True
            roots = tuple(group_machine.number(root) for root in group.roots)
            # members=(): all ranks
            target = Collective(group.kind, len(group.members), members=(), roots=roots, weights=group.weights)
            proved = BandwidthSearch(group_machine.topology, target, needs_of(target)).find_best()
            if proved.tight is not True or proved.time * scale > self._best_time:
                return False
        return True

    def offer_simple_witnesses(self) -> Fraction:
        """Offer cuts, and the partitions into ranks and into hosts; return the time that the best of them proves.

        planners/compose/groups.py calls this and `find_loads`, too.
        """
        self._offer_family_cuts(_families_by_end(self.needs, self.collective.kind))
        self._offer_limit_cuts()
        self._offer_middle_cuts()
        partitions = place_partitions(self.topology)
        # [1:]: the first partition is into single ranks, whose cuts `_offer_family_cuts` has offered
        for part_nodes in (nodes for part_sets in partitions[1:] for nodes in part_sets):
            side = np.zeros(self.topology.nodes, bool)
            side[part_nodes] = True
            for cut_side in (side, ~side):
                self.offer_cut(cut_side)
        for direction in ("out", "in"):
            for part_sets in partitions:
                self._offer_joint_partition(part_sets, direction)
        return self._best_time

    def _offer_joint_partition(self, part_sets: Sequence[Sequence[int]], direction: str) -> None:
        """Offer the dual that prices every link by the number of parts that it leaves (or enters).

        Each group pays these prices. An allreduce pays for the transfers between its own parts; scatter, gather and
        alltoall pay for every part that data leave. Other kinds pay only if every part has one rank: for what each rank
        receives (or sends).
        """
        topology = self.topology
        crossings = count_crossings(topology.link_src, topology.link_dst, part_sets, direction, topology.nodes)
        prices = tuple((link, int(count)) for link, count in enumerate(crossings.tolist()) if count)
        one_rank_per_part = all(sum(node < topology.ranks for node in nodes) == 1 for nodes in part_sets)
        duals = []
        for group in self.collective.groups:
            families: list[Family] = []
            parts_with_member = [nodes for nodes in part_sets if not {*group.members}.isdisjoint(nodes)]
            # a partition must hold every rank, and each part a member; with abilities it must hold switches, too
            if group.kind == "allreduce" and len(parts_with_member) > 1 and not self.abilities:
                nodes_without_member = [node for nodes in part_sets if nodes not in parts_with_member for node in nodes]
                merged = [[*parts_with_member[0], *nodes_without_member], *parts_with_member[1:]]
                duals.append(
                    LpDual(
                        prices=(),
                        families=(),
                        potentials=(),
                        partitions=((partition_of(topology, group, merged, direction), 1),),
                    )
                )
                continue
            if group.kind in UNICAST:
                families = [Family("all", at=(), lengths=prices)]
            elif one_rank_per_part and group.kind in (SPREAD if direction == "in" else COLLECT):
                ends, kind = (topology.link_dst, "to") if direction == "in" else (topology.link_src, "from")
                families = [
                    Family(kind, (rank,), tuple((link, p) for link, p in prices if ends[link] == rank))
                    for rank in group.members
                ]
            duals.append(LpDual(prices=(), families=tuple(families)))
        if prices and any(dual.families or dual.partitions for dual in duals):
            self.offer_witness(JointDual(prices, tuple(duals)))

    def _solve_joint_program(self) -> bool:
        """Offer the joint program's duals; True if the best witness is then as good as its optimum."""
        solved = self._solve_with_partitions()
        if solved is None:
            return False
        program, solution = solved
        # in the unit of `_best_time`: weight over bytes per second
        goal = solution.groups[0].time / float(self.topology.resources.scale)
        for witness in program.exact_witnesses(solution):
            if float(self._best_time) >= goal * (1 - CLOSE):
                break
            self.offer_witness(witness)
        return float(self._best_time) >= goal * (1 - CLOSE)

    def _solve_with_partitions(self, hop_weight: float = 0.0) -> tuple[JointProgram, JointSolution] | None:
        """Return the joint program with the partitions that its optimum needs, and the optimum.

        None if it is too large, a group needs nothing, or the solver fails.

        `hop_weight`: as of `solve_programs`.
        """
        searches = [BandwidthSearch(self.topology, group, needs_of(group)) for group in self.collective.groups]
        if not all(len(search.needs) for search in searches):
            return None
        program = JointProgram(self.topology, searches, group_scales(self.collective))
        if sum(group_program.size for group_program in program.programs) > MOST_VARIABLES:
            return None
        self.program_tried = True
        is_allreduce = [group.kind == "allreduce" for group in self.collective.groups]
        allreduces = [(search, i) for i, search in enumerate(searches) if is_allreduce[i]]
        for search, i in allreduces:
            for partition in search._offer_partitions(search.network) + search._offer_limit_partitions():
                program.programs[i].add_partition(partition)
        solution = program.solve(self._time_scale, hop_weight)
        # Cutting planes, as for a single allreduce; each group has partitions of its own. Where the solver fails with
        # more of them, the last solution remains valid.
        for _ in range(_MAX_ROUNDS):
            added = solution is not None and sum(
                search._add_violated_partitions(program.programs[i], solution.groups[i]) for search, i in allreduces
            )
            if solution is None or not added:
                break
            solution = program.solve(self._time_scale, hop_weight) or solution
        return None if solution is None else (program, solution)

    def find_loads(self, hop_weight: float) -> Floats | None:
        """Return the load of every group (row) on every link in the optimum with short routes; None if too large.

        Call `offer_simple_witnesses` before: the best time scales the program.
        """
        solved = self._solve_with_partitions(hop_weight)
        if solved is None:
            return None
        program, solution = solved
        loads = np.zeros((len(solution.groups), self.topology.links))
        arcs, resources = program.arcs, self.topology.resources
        for arc, links in enumerate(arcs.links):
            for link in links:  # parallel links share the load of their arc by capacity (`exact`: that of the arc)
                share = resources.scaled_capacity(link) / arcs.exact[arc]
                loads[:, link] = [
                    w * s.load[arc] * share for w, s in zip(solution.weights, solution.groups, strict=True)
                ]
        return loads
