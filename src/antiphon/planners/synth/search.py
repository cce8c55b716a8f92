"""State of the search on one machine and collective: symmetries, linear programs and proofs, each computed once.

A candidate is (parts, steps, rounds): chunks per block, steps S, rounds R in total. A split is the rounds of each step.
`SearchState` answers three questions about candidates, from cheap to expensive:

`check_bounds`          is the point impossible because of distance, or of the least R / parts of that many steps?
`check_all_splits`      is it impossible because every distribution of R rounds over S steps is? There are
                        C(R - 1, S - 1) distributions ("splits"). Each linear program that refutes one yields a dual
                        (prices per link and step, linear.py) that usually refutes many others.
`find_split`, `more_splits`  which splits does the linear program admit? Engines with a fixed split are much faster.

Example: 5 rounds in 3 steps have C(4, 2) = 6 splits, 1+1+3 to 3+1+1. If step 1 must move two chunks over one link, the
dual that refutes 1+1+3 also refutes 1+2+2 and 1+3+1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from antiphon.core.ksync.instance import Instance
from antiphon.errors import TimedOut
from antiphon.isolate import Lost, Stopped, can_fork, run_in_child
from antiphon.planners.synth import linear
from antiphon.planners.synth.cache import Cache, Question, fingerprint, make_question
from antiphon.planners.synth.effort_budget import BUDGET_SPENT, EffortBudget
from antiphon.planners.synth.group import SymmetryGroup, find_subgroups, group_of, trivial_group
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.program import StepProgram

MOST_SPLITS = 20000  # distributions of rounds over steps that a proof may enumerate


@dataclass(frozen=True)
class Impossible:
    """Why there is no algorithm with these parts, steps and rounds.

    `how`: "distance"; "rounds" (one dual forbids these rounds for these parts); "splits" (every distribution of the
    rounds over the steps is forbidden by some dual); "search" (an engine was exhaustive).
    `resolution`: a resolution proof as JSON, if one was requested.
    """

    how: str
    duals: tuple[Proved, ...] = ()
    resolution: dict[str, Any] | None = None


@dataclass(eq=False)
class SearchState:
    """What all engines share. Everything is computed on first use, charged to the budget, and cached.

    `programs`, `least_proofs`, `cuts` by number of steps: the linear program, the proof of the least rounds per part,
    and further duals.
    """

    instance: Instance
    seed: int = 0
    budget: EffortBudget = field(default_factory=EffortBudget)
    cache: Cache | None = None
    programs: dict[int, StepProgram] = field(default_factory=dict)
    least_proofs: dict[int, Proved] = field(default_factory=dict)
    cuts: dict[int, list[Proved]] = field(default_factory=dict)
    _groups: dict[int, list[SymmetryGroup]] = field(default_factory=dict)

    def run_solver(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a solver that may take long: if there is a CPU budget, in a child process that is killed at its end."""
        seconds = self.budget.seconds()
        if seconds is None or not can_fork():
            return function(*args)
        try:
            return run_in_child(function, *args, seconds=seconds)
        except Stopped:
            raise TimedOut(BUDGET_SPENT) from None
        except Lost as error:
            raise TimedOut(f"a solver failed: {error}") from None

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.instance)

    def cache_question(self, parts: int, steps: int, rounds: int) -> Question:
        """Return the cache key of a decision problem."""
        return make_question(self.instance, self._fingerprint, parts, steps, rounds, self.seed)

    @cached_property
    def group(self) -> SymmetryGroup:
        return group_of(self.instance, self.seed)

    @cached_property
    def trivial_group(self) -> SymmetryGroup:
        return trivial_group(self.instance)

    def subgroups_for(self, parts: int) -> list[SymmetryGroup]:
        """Return subgroups compatible with this number of parts, the largest first, the trivial one last."""
        if parts not in self._groups:
            weights = [kind.weight for kind in self.instance.kinds]
            self._groups[parts] = find_subgroups(self.group, parts, weights, self.seed)
        return self._groups[parts]

    def program_for(self, steps: int) -> StepProgram:
        """Return the linear program for this many steps."""
        if steps not in self.programs:
            self.budget.check()
            self.programs[steps] = StepProgram(self.instance, steps, self.group)
        return self.programs[steps]

    def prove_least(self, steps: int) -> Proved:
        """Return the least R / parts for this many steps, with its proof."""
        if steps not in self.least_proofs:
            self.least_proofs[steps] = linear.least_rounds(self.program_for(steps))
            self.budget.pay(self.least_proofs[steps].price)
        return self.least_proofs[steps]

    def least_ratio(self, steps: int) -> Fraction:
        """Return a lower bound on R / C of every algorithm with this many steps."""
        return self.prove_least(steps).worth.rounds_per_part / self.instance.input_weight

    def find_split(self, parts: int, steps: int, rounds: int) -> tuple[int, ...] | None:
        """Return a split that the linear program admits, or None if it admits none (or none was found).

        If only one split exists it is returned unchecked; `check_all_splits` checks it.
        """
        if rounds == steps:
            return (1,) * steps
        self.budget.check()
        per_step, price = self.run_solver(
            linear.split_rounds, self.program_for(steps), parts, rounds, self.budget.left()
        )
        self.budget.pay(price)
        if per_step is None:
            return None
        # the program minimized the total; give spare rounds to the last step
        spare = rounds - sum(per_step)
        return tuple(r + (spare if s == len(per_step) - 1 else 0) for s, r in enumerate(per_step))

    def check_bounds(self, parts: int, steps: int, rounds: int) -> Impossible | None:
        """Return a proof of impossibility by duals alone if a cheap one applies: distance, or too few rounds."""
        if steps < self.instance.least_steps:
            return Impossible("distance")
        # each step takes a round at least
        if rounds < steps or rounds < parts * self.prove_least(steps).worth.rounds_per_part:
            return Impossible("rounds", (self.prove_least(steps),))
        return None

    def check_all_splits(self, parts: int, steps: int, rounds: int) -> Impossible | tuple[int, ...] | None:
        """Return the first admitted split, Impossible if duals forbid all splits, or None if there are too many.

        Each dual forbids many splits at once, so few linear programs are solved.
        """
        if math.comb(rounds - 1, steps - 1) > MOST_SPLITS:
            return None
        cuts = self.cuts.setdefault(steps, [])
        used: dict[int, Proved] = {}
        for split in _list_compositions(rounds, steps):
            # reuse a dual from an earlier split before solving another program
            number = next((i for i, cut in enumerate(cuts) if cut.worth.forbids(split, parts)), None)
            if number is None:
                cut = linear.refute_rounds(self.program_for(steps), split)
                self.budget.pay(cut.price)
                if not cut.worth.forbids(split, parts):
                    return split
                cuts.append(cut)
                number = len(cuts) - 1
            used[number] = cuts[number]
        return Impossible("splits", tuple(used[i] for i in sorted(used)))

    def more_splits(self, parts: int, steps: int, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yield further admitted splits, first those nearest to the center of all, which leave most slack."""
        extremes, price = linear.extreme_splits(self.program_for(steps), parts, rounds)
        self.budget.pay(price)
        if not extremes:
            return
        # the mean of the extreme points approximates the center of the polytope
        middle = [sum(float(split[s]) for split in extremes) / len(extremes) for s in range(steps)]
        # per step the rounds to try: up to 1 beyond the whole numbers around the mean; only these if that is too much
        ranges = [range(max(1, math.floor(x) - 1), math.ceil(x) + 2) for x in middle]
        if math.prod(len(r) for r in ranges) > MOST_SPLITS:
            ranges = [range(max(1, math.floor(x)), math.ceil(x) + 1) for x in middle]
        candidates = [split for split in itertools.product(*ranges) if sum(split) == rounds]
        candidates.sort(key=lambda split: (sum((a - b) ** 2 for a, b in zip(split, middle, strict=True)), split))
        cuts = self.cuts.setdefault(steps, [])
        for candidate in candidates:
            if any(cut.worth.forbids(candidate, parts) for cut in cuts):
                continue
            cut = linear.refute_rounds(self.program_for(steps), candidate)
            self.budget.pay(cut.price)
            if cut.worth.forbids(candidate, parts):
                cuts.append(cut)
            else:
                yield candidate


def _list_compositions(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ordered sums of `count` positive integers that equal `total`."""
    for marks in itertools.combinations(range(1, total), count - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *marks, total)))
