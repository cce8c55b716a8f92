"""Search the points of an allreduce among algorithms of every form (sums.py), and bound them from below.

Two halves, reducescatter and allgather, are one form of many, and often not the best: recursive doubling on a ring of 4
takes (C, S, R) = (2, 2, 2) where two halves take (8, 4, 6). Here each number of steps is searched for the least R / C.

    bounds      an allreduce brings each input to all ranks, as a broadcast does, and all inputs to each rank, as a
                reduce does: the least R / C of these in S steps (linear.py) bounds that of every allreduce in S steps
    trees       up to 10 ranks: prices at which all trees that an allreduce needs are too dear (tree_prices.py)
    sends       every chunk crosses a number of links in S steps; a solver refutes fewer, with a proof (certificate.py)
    candidates  (C, R) from that bound to the best known R / C: the tightest first, then by the number of chunks
    tries       one candidate under several symmetries: as two trees per chunk (tree_pairs.py) if links are nearly full,
                then as sums under a group that maps the algorithm to itself, and its subgroup that fixes a chunk
                (sums.Shape); the smallest encodings first, with one slot per rank, later with more
    turns       all numbers of steps again, with four times the conflicts and more symmetries, while effort is left

A point that meets a bound is optimal in every form, and its certificate is that of the bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.ksync.certificate import (
    AS_PLANNED,
    BEST_FOUND,
    BROADCAST_FROM,
    FOR_K,
    FORMAT,
    OPTIMAL,
    REDUCE_TO,
    SUMS,
    certified_instance,
    least_rounds_per_part,
)
from antiphon.core.ksync.cnf import Question, build_formula
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.trees import TreeDual, evaluate_tree_dual, is_bounded_by_trees
from antiphon.core.loads import rounds as rounds_in
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.transform.sums import SumRelation, sums_of
from antiphon.planners.synth.cache import fingerprint
from antiphon.planners.synth.canonical import CanonicalProblem
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.effort_budget import UNIT, EffortBudget
from antiphon.planners.synth.frontier import USUAL_K, Limits, list_candidates
from antiphon.planners.synth.group import SymmetryGroup, find_subgroups, orbits
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.points import Conversion, has_halves
from antiphon.planners.synth.problem import Problem
from antiphon.planners.synth.refute import find_refutation
from antiphon.planners.synth.sat import run_solver_in_slices
from antiphon.planners.synth.search import SearchState
from antiphon.planners.synth.sums import Shape, Sums, SumTarget, rename_sends, schedule_of_sends, solve_sums
from antiphon.planners.synth.task import Effort
from antiphon.planners.synth.tree_pairs import Image, list_images, solve_tree_pairs
from antiphon.planners.synth.tree_prices import bound_sends, price_pairs


@dataclass(frozen=True)
class SumLimits:
    """Effort and sizes of the search. Chosen on machines of 4 to 16 ranks."""

    first_size: int = 2**10  # size (`_size_of`) of encodings searched in turn 0; four times as much in every next turn
    max_size: int = 2**15  # largest size, if the effort is at most ...
    usual_units: int = 20  # ... this; with more effort, larger in proportion
    first_conflicts: int = 500  # of one try in turn 0; four times as many in every next turn
    first_failures: int = 6  # candidates of a number of steps that may fail in turn 0; twice as many in every next turn
    turns: int = 8
    first_shapes: int = 12  # symmetries tried in turn 0; twice as many in every next turn
    min_load: Fraction = Fraction(3, 4)  # share of the links' capacity from which on two trees per chunk are tried
    first_images: int = 1  # sets of images (tree_pairs.py) tried for these in turn 0; twice as many in every next turn
    alike: int = 3  # symmetries tried of those with equal figures
    max_slots: int = 3  # copies of a chunk per rank
    max_elements: int = 64  # elements of a subgroup; larger ones are left out
    pairs: int = 200  # random pairs of cyclic subgroups, each of which generates a subgroup to try
    max_ranks: int = 32  # machines of more ranks are not searched in every form
    effort_share: int = 18  # a frontier spends 1 / `effort_share` of its effort on this search, but at least ...
    least_units: int = 1  # ... this, if that is not more than 1 / `largest_share` of the effort
    largest_share: int = 8
    effort_share_point: int = 3  # a single point, or sums that are no two halves, spend 1 / `effort_share_point`
    max_roots: int = 16  # roots whose broadcasts and reduces bound the allreduce
    max_sends: int = 2**13  # inputs * steps * arcs up to which the links that a chunk crosses are bounded by a proof
    conflicts_of_proof: int = 10000  # for each number of links that such a proof tries
    max_refuted: int = 2  # better points that pairs of trees may refute


SUM_LIMITS = SumLimits()


@dataclass(eq=False)
class ContainedBroadcast:
    """A broadcast or reduce that every allreduce contains. `about`: its name in certificates."""

    about: str
    search: SearchState
    problem: CanonicalProblem


@dataclass(frozen=True)
class SumPoint:
    """An allreduce with its figures."""

    schedule: Schedule
    chunks: int
    steps: int
    rounds: int
    engine: str

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


# The number of a shape (or -1 - that of a set of images), the engine, its function, and the arguments between the
# instance and the effort
Try = tuple[int, str, Callable[..., Sums], tuple[Any, ...]]


@dataclass(eq=False)
class AllForms:
    """The search of an allreduce (or another collective of sums) in every form.

    `work`: what was requested. `search`: that of its allgather, which copies every input to all ranks that want it.
    `problem`: the map from the numbers of that search to the original ones. `budget`: its own, a share of that of
    `work`. `shapes`: by number of chunks, in the order in which they are tried.
    """

    work: Problem
    search: SearchState
    problem: CanonicalProblem
    budget: EffortBudget
    shapes: dict[int, list[Shape]] = field(default_factory=dict)
    refuted: set[tuple[int, int, int, int]] = field(default_factory=set)  # chunks, steps, rounds, number of a try
    # by steps: the bound on R / C and its proof, as `prove_sends` returns them
    least_sends: dict[int, tuple[Fraction, dict[str, Any]]] = field(default_factory=dict)
    tree_duals: dict[tuple[int, int, int], list[TreeDual]] = field(default_factory=dict)  # by chunks, steps, rounds

    @cached_property
    def sums(self) -> SumRelation:
        """Which inputs every rank wants, in the numbers of the machine."""
        sums = sums_of(self.work.collective)
        assert sums is not None
        return sums

    @cached_property
    def target(self) -> SumTarget:
        """The same in the numbers of the search."""
        number = np.argsort(self.problem.back.nodes).tolist()  # the inverse of `back`
        inputs = tuple(sorted(number[rank] for rank in self.sums.inputs))
        sources = {number[v]: frozenset(number[i] for i in ranks) for v, ranks in self.sums.sources.items()}
        return SumTarget(inputs, sources, tuple(number[rank] for rank in self.sums.order))

    # ---- bounds ----

    @cached_property
    def contained(self) -> list[ContainedBroadcast]:
        """The broadcasts and reduces that an allreduce contains; symmetric ones once."""
        work, contained, posed_before = self.work, list[ContainedBroadcast](), set[str]()
        directions = (
            (BROADCAST_FROM, work.topology, self.sums.broadcasts()),
            (REDUCE_TO, reverse(work.topology), self.sums.reduces()),
        )
        for about, machine, broadcasts in directions:
            for root, broadcast in itertools.islice(broadcasts.items(), SUM_LIMITS.max_roots):
                search, problem = replace(work, budget=self.budget).start_search(
                    Conversion(machine, broadcast, AS_PLANNED)
                )
                posed = fingerprint(search.instance)
                if posed not in posed_before:
                    posed_before.add(posed)
                    contained.append(ContainedBroadcast(f"{about}{root}", search, problem))
        return contained

    def tightest_broadcast(self, steps: int) -> tuple[Fraction, ContainedBroadcast] | None:
        """Return the greatest lower bound on R / C in this many steps, and the broadcast or reduce that proves it.

        None if one of them cannot be done in so few steps: then no allreduce can.
        """
        if any(steps < broadcast.search.instance.least_steps for broadcast in self.contained):
            return None
        return max(
            ((broadcast.search.least_ratio(steps), broadcast) for broadcast in self.contained), key=lambda pair: pair[0]
        )

    def certificate_of(self, chunks: int, steps: int, rounds: int) -> dict[str, Any] | None:
        """Return the certificate of a point; None if it has fewer steps than a bound allows, which no correct point
        has."""
        tightest = self.tightest_broadcast(steps)
        if tightest is None:
            return None
        ratio, broadcast = tightest
        proved: Proved = broadcast.problem.translate_proof(broadcast.search.prove_least(steps))
        about, evidence = broadcast.about, proved.dual.as_json()
        if Fraction(rounds, chunks) > ratio:
            sends_ratio, sends_evidence = self.prove_sends(steps)
            if sends_ratio > ratio:
                about, ratio, evidence = SUMS, sends_ratio, sends_evidence
        proof = OPTIMAL if Fraction(rounds, chunks) == ratio else BEST_FOUND
        refuted: list[dict[str, Any]] = []
        # Optimal for k if the few better points are all refuted. The refutations here are about sums, and a certificate
        # is about one problem: so there are none if the bound is that of a broadcast or reduce.
        if proof == BEST_FOUND and about == SUMS:
            # `parts`: with more chunks, R / C is below the bound for every R <= S + k
            all_better = Limits(k=USUAL_K, parts=math.floor((steps + USUAL_K) / ratio))
            better = list_candidates(steps, ratio, Fraction(rounds, chunks), weight=1, limits=all_better)
            points = list(itertools.islice(better, SUM_LIMITS.max_refuted + 1))
            are_few = len(points) <= SUM_LIMITS.max_refuted
            duals = [self.refute_by_trees(c, steps, r) for c, r in points] if are_few else []
            if are_few and all(duals):
                proof = FOR_K
                refuted = [
                    {"chunks": c, "rounds": r, "how": "duals", "duals": [dual.as_json() for dual in of_point]}
                    for (c, r), of_point in zip(points, duals, strict=True)
                ]
        return {
            "format": FORMAT, "about": about, "proof": proof, "k": USUAL_K,
            "chunks": chunks, "steps": steps, "rounds": rounds, "least": evidence, "refuted": refuted, "open": [],
        }  # fmt: skip

    def refute_by_trees(self, chunks: int, steps: int, rounds: int) -> list[TreeDual]:
        """Return duals of pairs of trees that together forbid a point (trees.py); none if that fails."""
        point = chunks, steps, rounds
        if point not in self.tree_duals:
            instance, self.tree_duals[point] = self.sums_instance, []
            crossings = rounds * sum(instance.capacity[: len(instance.bonds)])  # that all links carry
            # If links carry 2 n - 1 sends of every chunk, an algorithm need not be made of pairs of trees.
            if is_bounded_by_trees(instance, self.work.collective) and (2 * instance.ranks - 1) * chunks > crossings:
                self.work.tell(f"pairs of trees with C = {chunks}, S = {steps}, R = {rounds}: prices that forbid them")
                # `price`, here and below: the effort that a call spent, not a price of links
                duals, price = self.search.run_solver(price_pairs, instance, point, self.budget.left())
                self.tree_duals[point] = duals or []
                self.budget.pay(price)
        return self.tree_duals[point]

    def prove_sends(self, steps: int) -> tuple[Fraction, dict[str, Any]]:
        """Return a lower bound on R / C in S steps with its proof, the field `least` of a certificate: a dual of trees,
        or a number of links that every chunk crosses.

        (0, {}) if the bound of `tightest_broadcast` is as good, or the proof would be too large.
        """
        if steps in self.least_sends:
            return self.least_sends[steps]
        proved = self.least_sends[steps] = Fraction(0), {}
        tightest, instance = self.tightest_broadcast(steps), self.sums_instance
        size = len(instance.kinds) * steps * len(instance.arcs)  # every input is a kind
        if tightest is None or size > SUM_LIMITS.max_sends or not instance.arcs.exhaustive:
            return proved
        tightest_ratio, _ = tightest
        per_send = least_rounds_per_part(instance, SUMS, steps, {"sends": 1})  # if each chunk crosses one link
        run, effort = self.search.run_solver, Effort(SUM_LIMITS.conflicts_of_proof)
        if is_bounded_by_trees(instance, self.work.collective):
            dual, is_exact, price = run(bound_sends, instance, steps, self.budget.left())
            ratio = evaluate_tree_dual(instance, dual).rounds_per_part
            if ratio > tightest_ratio:
                proved = self.least_sends[steps] = ratio, dual.as_json()
            if is_exact:  # no solver can improve the bound, and no effort was spent
                return proved
            self.budget.pay(price)
        # Fewer sends than `lowest` are excluded already. Raise `sends` while a solver refutes that they suffice. Only
        # the last of these refutations needs a proof, so all are found without one. `shared`: the inputs of one
        # chunk may cross a link together, and `rounds` limits the links that they cross.
        proved_ratio, _ = proved
        lowest = sends = math.ceil(max(tightest_ratio, proved_ratio) / per_send)
        refuted = True
        while refuted:
            formula = build_formula(instance, Question(parts=1, steps=steps, rounds=sends, shared=True))
            clauses = Clauses(formula.variables, [list(clause) for clause in formula.clauses])
            satisfiable, price, _ = run(run_solver_in_slices, clauses, effort, "cadical", self.budget.left())
            self.budget.pay(price)
            refuted = satisfiable is False  # None: the effort did not suffice
            if refuted:
                sends += 1
        if sends > lowest:
            question = Question(parts=1, steps=steps, rounds=sends - 1, shared=True)
            # 0: the core of the proof is not solved again for a shorter one
            refutation, price = run(find_refutation, instance, question, Effort(), self.budget.left(), 0)
            self.budget.pay(price)
            if refutation is not None:
                proved = per_send * sends, {"sends": sends, "refutation": refutation.as_json()}
        self.least_sends[steps] = proved
        return proved

    @cached_property
    def sums_instance(self) -> Instance:
        """The problem of certificates about sums."""
        return certified_instance(self.work.topology, self.work.collective, SUMS)

    # ---- search ----

    @property
    def max_size(self) -> int:
        """The size up to which encodings are searched: more effort than usual searches larger ones."""
        effort = self.budget.effort or 0
        return max(SUM_LIMITS.max_size, SUM_LIMITS.max_size * effort // (SUM_LIMITS.usual_units * UNIT))

    def improve_points(
        self, floor: Fraction, limits: Limits, max_steps: int, best: dict[int, Fraction]
    ) -> Iterator[SumPoint]:
        """Yield points that beat the best known R / C of as many steps or fewer (`best`, updated), turn by turn.

        `floor`: the bandwidth bound on R / C. `limits`: k and the chunks of candidates. Raises EffortSpent or TimedOut.
        """
        for turn in range(SUM_LIMITS.turns):
            for steps in range(1, max_steps + 1):
                tightest = self.tightest_broadcast(steps)
                if tightest is None:
                    continue
                (tightest_ratio, _), (sends_ratio, _) = tightest, self.least_sends.get(steps, (floor, {}))
                lowest = max(tightest_ratio, floor, sends_ratio)
                known_ratio = min((ratio for s, ratio in best.items() if s <= steps), default=None)
                # proofs about sends cost much: not in turn 0, which may meet the other bounds
                if turn and (known_ratio is None or known_ratio > lowest):
                    sends_ratio, _ = self.prove_sends(steps)
                    lowest = max(lowest, sends_ratio)
                if known_ratio is not None and known_ratio <= lowest:
                    continue
                for point in self._search_steps(turn, steps, lowest, known_ratio, limits):
                    best[point.steps] = min(point.ratio, best.get(point.steps, point.ratio))
                    yield point

    def _search_steps(
        self, turn: int, steps: int, lowest: Fraction, known_ratio: Fraction | None, limits: Limits
    ) -> Iterator[SumPoint]:
        """Yield ever better points of this many steps: the tightest candidate first, then by the number of chunks.

        `lowest`: a lower bound on R / C. `known_ratio`: the least R / C so far, which points must beat; None: none yet.
        """
        candidates = list(list_candidates(steps, lowest, known_ratio, weight=1, limits=limits))
        failures = 0
        for chunks, rounds in [*candidates[:1], *sorted(candidates[1:])]:
            if known_ratio is not None and Fraction(rounds, chunks) >= known_ratio:
                continue
            point = self.find_point(turn, chunks, steps, rounds)
            if point is not None:
                known_ratio = point.ratio
                yield point
            elif failures == SUM_LIMITS.first_failures * 2**turn:
                break
            else:
                failures += 1

    def find_point(self, turn: int, chunks: int, steps: int, rounds: int) -> SumPoint | None:
        """Return an allreduce with these figures (or fewer steps and rounds), or None if this turn finds none."""
        effort = Effort(SUM_LIMITS.first_conflicts * 4**turn, seed=self.work.seed + turn)
        for number, engine, solve, arguments in self._list_tries(turn, chunks, steps, rounds):
            if (chunks, steps, rounds, number) in self.refuted:
                continue
            self.budget.check()
            self.work.tell(
                f"allreduces of any form with C = {chunks}, S = {steps}, R = {rounds}: {engine}, up to "
                f"{effort.conflicts} conflicts of the SAT solver"
            )
            answer: Sums = self.search.run_solver(solve, self.search.instance, *arguments, effort, self.budget.left())
            self.budget.pay(answer.price)
            if answer.sends is not None:
                return self._make_point(chunks, answer, engine)
            if answer.refuted:
                self.refuted.add((chunks, steps, rounds, number))
        return None

    def _list_tries(self, turn: int, chunks: int, steps: int, rounds: int) -> Iterator[Try]:
        """Yield what a turn tries: tree pairs where links are nearly full, then sums, each under some symmetries."""
        instance, max_size = self.search.instance, min(SUM_LIMITS.first_size * 4**turn, self.max_size)
        crossings = rounds * sum(instance.capacity[: len(instance.bonds)])  # that all links carry
        # two trees send a chunk 2 (n - 1) times
        if SUM_LIMITS.min_load * crossings <= 2 * (instance.ranks - 1) * chunks <= crossings:
            # a full set of images has variables for one chunk, each chunk beyond full sets its own: 3 per arc and step
            sets = [
                (number, images) for number, images in enumerate(self._image_sets) if len(images) <= chunks
                and sum(divmod(chunks, len(images))) * steps * len(instance.arcs) * 3 <= max_size
            ]  # fmt: skip
            for number, images in sets[: SUM_LIMITS.first_images * 2**turn]:
                yield -1 - number, "tree pairs", solve_tree_pairs, ((chunks, steps, rounds), images)
        shapes = [
            (number, shape) for number, shape in enumerate(self._list_shapes(chunks))
            if self._size_of(shape, steps) <= max_size and shape.slots <= turn + 1
        ]  # fmt: skip
        for number, shape in shapes[: SUM_LIMITS.first_shapes * 2**turn]:
            yield number, "sums", solve_sums, (self.target, (steps, rounds), shape)

    @cached_property
    def _image_sets(self) -> list[tuple[Image, ...]]:
        """Symmetries to try for tree pairs, the smallest encodings first; none if a rank takes no part, as tree pairs
        are of all ranks."""
        if not has_halves(self.work.collective) or len(self.target.inputs) < self.search.instance.ranks:
            return []
        subgroups_by_size: dict[int, list[list[int]]] = {}
        for subgroup in self._subgroups:
            subgroups_by_size.setdefault(len(subgroup), []).append(sorted(subgroup))
        subgroups = [s for alike in subgroups_by_size.values() for s in alike[: SUM_LIMITS.alike]]
        images = list_images(self.search.instance, self.search.group, subgroups)
        return sorted(images, key=lambda images: -len(images))

    def is_exhausted(self, chunks: int, steps: int, rounds: int) -> bool:
        """Return whether it is proved that no such allreduce exists with up to the maximum number of slots."""
        # a refutation under a symmetry says nothing of other algorithms
        numbers = [n for n, shape in enumerate(self._list_shapes(chunks)) if len(shape.group) == 1]
        return bool(numbers) and all((chunks, steps, rounds, number) in self.refuted for number in numbers)

    def _make_point(self, chunks: int, answer: Sums, engine: str) -> SumPoint:
        """Return the sends of an answer as a schedule in the original numbers, with its figures."""
        work, original = self.work, self.problem.original
        assert answer.sends is not None
        sends = rename_sends(answer.sends, self.problem.back)
        schedule = schedule_of_sends(original, work.collective, chunks, sends)
        rounds = max(rounds_in(schedule, work.topology), schedule.steps)  # may be fewer than were searched
        return SumPoint(schedule, chunks, schedule.steps, rounds, f"{engine} ({answer.solver})")

    # ---- symmetry ----

    def _size_of(self, shape: Shape, steps: int) -> int:
        """Estimate the size of an encoding; `first_size` and `max_size` limit it."""
        arcs, inputs = len(self.search.instance.arcs), len(self.target.inputs)
        return shape.orbits * steps * arcs * inputs * shape.slots**2 // len(shape.fixing)

    def _list_shapes(self, chunks: int) -> list[Shape]:
        """Return the symmetries to try for this many chunks, the smallest encodings first."""
        if chunks not in self.shapes:
            shapes_by_figures: dict[tuple[int, ...], list[Shape]] = {}
            # H = subgroup, K = fixing (sums.py): an orbit has |H| / |K| chunks, and orbits make up all chunks
            for subgroup, fixing in itertools.product(self._subgroups, self._subgroups):
                if not fixing <= subgroup or chunks % (len(subgroup) // len(fixing)):
                    continue
                elements = sorted(subgroup)
                group = self.search.group.take(elements)
                fixing_rows = tuple(elements.index(element) for element in sorted(fixing))
                # orbits of arcs under K and under H; the first figure of the key estimates the number of variables
                arcs = [len(np.unique(orbits(group.arcs[list(rows)]))) for rows in (fixing_rows, range(len(elements)))]
                key = (chunks * len(fixing) // len(subgroup) * arcs[0], -len(subgroup), *arcs)
                shapes_by_figures.setdefault(key, []).append(
                    Shape(group, fixing_rows, chunks * len(fixing) // len(subgroup))
                )
            # of those with equal figures most are alike up to renumbering: one of each kind first
            shapes_alike = [shapes for _, shapes in sorted(shapes_by_figures.items())]
            ordered = [shapes[n] for n in range(SUM_LIMITS.alike) for shapes in shapes_alike if n < len(shapes)]
            self.shapes[chunks] = [
                replace(shape, slots=slots) for slots in range(1, SUM_LIMITS.max_slots + 1) for shape in ordered
            ]
        return self.shapes[chunks]

    @cached_property
    def _subgroups(self) -> list[frozenset[int]]:
        """Subgroups of the machine's symmetries, each as the numbers of its elements: generated by one element or by
        two cyclic subgroups, and those of `find_subgroups`."""
        group = self.search.group
        number = {row.tobytes(): element for element, row in enumerate(group.nodes)}
        trivial = frozenset([0])
        # the order has no symmetry; some elements differ in parallel bonds alone, or change whose sums include an input
        is_kept = all(self.target.is_kept_by(row) for row in group.nodes.tolist())
        if self.target.order or len(number) < len(group) or not is_kept:
            return [trivial]
        rng = np.random.default_rng(self.work.seed)
        elements = rng.permutation(len(group))[: SUM_LIMITS.max_elements].tolist()
        cyclic = dict.fromkeys(_close(group, number, [element]) for element in elements)
        subgroups = {trivial: None, **cyclic}
        pairs = list(itertools.combinations(cyclic, 2))
        for place in rng.permutation(len(pairs))[: SUM_LIMITS.pairs].tolist():
            subgroups.setdefault(_close(group, number, sorted(pairs[place][0] | pairs[place][1])))
        # translations of grids and the like: large groups that move every arc
        for subgroup in find_subgroups(
            group, parts=1, weights=[kind.weight for kind in self.search.instance.kinds], seed=self.work.seed
        ):
            if len(subgroup) <= SUM_LIMITS.max_elements:
                subgroups.setdefault(frozenset(number[row.tobytes()] for row in subgroup.nodes))
        return [subgroup for subgroup in subgroups if subgroup]  # empty: too large (`_close`)


def _close(group: SymmetryGroup, number: dict[bytes, int], generators: list[int]) -> frozenset[int]:
    """Return the subgroup that these elements generate, as element numbers; empty if it is too large."""
    closed, fresh = {0}, [0]
    while fresh and len(closed) <= SUM_LIMITS.max_elements:
        element = fresh.pop()
        for generator in generators:
            product = number[group.nodes[generator][group.nodes[element]].tobytes()]
            if product not in closed:
                closed.add(product)
                fresh.append(product)
    return frozenset(closed) if len(closed) <= SUM_LIMITS.max_elements else frozenset()
