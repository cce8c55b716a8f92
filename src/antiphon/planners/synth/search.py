"""One machine and collective under search: its symmetries, programs over time and proofs, each found once."""

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
from antiphon.isolate import Lost, Stopped, apart, can_fork
from antiphon.planners.synth import linear
from antiphon.planners.synth.cache import Cache, Question, fingerprint, question
from antiphon.planners.synth.group import Renamings, group_of, subgroups, trivial
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.program import StepProgram
from antiphon.planners.synth.purse import TOO_LATE, Purse

MOST_SPLITS = 20000  # ways of dealing rounds out to steps that are gone through for a proof


@dataclass(frozen=True)
class Impossible:
    """Why there is no algorithm of so many parts, steps and rounds.

    `how`: "distance"; "rounds" (one dual forbids so few rounds for so many parts); "splits" (for every way of dealing
    the rounds out to the steps some dual forbids it); "search" (an engine went through everything).
    `resolution`: a proof by resolution, as JSON, where one was asked for.
    """

    how: str
    duals: tuple[Proved, ...] = ()
    resolution: dict[str, Any] | None = None


@dataclass(eq=False)
class Findings:
    """What engines need beyond the task. Everything is found when first asked for, paid for, and kept."""

    instance: Instance
    seed: int = 0
    purse: Purse = field(default_factory=Purse)
    cache: Cache | None = None
    programs: dict[int, StepProgram] = field(default_factory=dict)
    least: dict[int, Proved] = field(default_factory=dict)
    cuts: dict[int, list[Proved]] = field(default_factory=dict)  # further duals, per number of steps
    _groups: dict[int, list[Renamings]] = field(default_factory=dict)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a solver gives that may work long: where there is a budget in a process that ends with it."""
        seconds = self.purse.seconds()
        if seconds is None or not can_fork():
            return function(*args)
        try:
            return apart(function, *args, seconds=seconds)
        except Stopped:
            raise TimedOut(TOO_LATE) from None
        except Lost as error:
            raise TimedOut(f"a solver failed: {error}") from None

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.instance)

    def question(self, parts: int, steps: int, rounds: int) -> Question:
        """What the cache is asked."""
        return question(self.instance, self._fingerprint, parts, steps, rounds, self.seed)

    @cached_property
    def group(self) -> Renamings:
        return group_of(self.instance, self.seed)

    @cached_property
    def none(self) -> Renamings:
        return trivial(self.instance)

    def groups(self, parts: int) -> list[Renamings]:
        """Subgroups that suit so many parts, the greatest first, the trivial one last."""
        if parts not in self._groups:
            weights = [kind.weight for kind in self.instance.kinds]
            self._groups[parts] = subgroups(self.group, parts, weights, self.seed)
        return self._groups[parts]

    def program(self, steps: int) -> StepProgram:
        if steps not in self.programs:
            self.purse.check()
            self.programs[steps] = StepProgram(self.instance, steps, self.group)
        return self.programs[steps]

    def proved(self, steps: int) -> Proved:
        """The least R / parts in so many steps, with its proof."""
        if steps not in self.least:
            self.least[steps] = linear.least_rounds(self.program(steps))
            self.purse.pay(self.least[steps].price)
        return self.least[steps]

    def ratio(self, steps: int) -> Fraction:
        """No algorithm of so many steps has R / C below this."""
        return self.proved(steps).worth.rounds_per_part / self.instance.input_weight

    def split(self, parts: int, steps: int, rounds: int) -> tuple[int, ...] | None:
        """Rounds per step that the program admits; None where it admits none (or none was found).

        Where there is but one way, that; whether the program admits it, `all_splits_forbidden` tells.
        """
        if rounds == steps:
            return (1,) * steps
        self.purse.check()
        per_step, price = self.run(linear.split, self.program(steps), parts, rounds, self.purse.left())
        self.purse.pay(price)
        if per_step is None:
            return None
        spare = rounds - sum(per_step)
        return tuple(r + (spare if s == len(per_step) - 1 else 0) for s, r in enumerate(per_step))

    def forbidden(self, parts: int, steps: int, rounds: int) -> Impossible | None:
        """A proof by duals alone that there is none, if the cheap ones do: distance, or too few rounds."""
        if steps < self.instance.least_steps:
            return Impossible("distance")
        if rounds < steps or rounds < parts * self.proved(steps).worth.rounds_per_part:
            return Impossible("rounds", (self.proved(steps),))
        return None

    def all_splits_forbidden(self, parts: int, steps: int, rounds: int) -> Impossible | tuple[int, ...] | None:
        """Go through the splits until one is admitted (returned) or duals forbid them all; None if they are too many.

        Every dual found forbids many splits at once, so few linear programs are solved.
        """
        if math.comb(rounds - 1, steps - 1) > MOST_SPLITS:
            return None
        cuts = self.cuts.setdefault(steps, [])
        used: dict[int, Proved] = {}
        for rounds_of in _compositions(rounds, steps):
            number = next((i for i, cut in enumerate(cuts) if cut.worth.forbids(rounds_of, parts)), None)
            if number is None:
                cut = linear.refute(self.program(steps), rounds_of)
                self.purse.pay(cut.price)
                if not cut.worth.forbids(rounds_of, parts):
                    return rounds_of
                cuts.append(cut)
                number = len(cuts) - 1
            used[number] = cuts[number]
        return Impossible("splits", tuple(used[i] for i in sorted(used)))

    def more_splits(self, parts: int, steps: int, rounds: int) -> Iterator[tuple[int, ...]]:
        """Further splits that the program admits, those near the middle of all of them first: they leave most room."""
        ends, price = linear.spans(self.program(steps), parts, rounds)
        self.purse.pay(price)
        if not ends:
            return
        middle = [sum(float(e[s]) for e in ends) / len(ends) for s in range(steps)]
        near = [range(max(1, math.floor(x) - 1), math.ceil(x) + 2) for x in middle]
        if math.prod(len(r) for r in near) > MOST_SPLITS:
            near = [range(max(1, math.floor(x)), math.ceil(x) + 1) for x in middle]
        candidates = [s for s in itertools.product(*near) if sum(s) == rounds]
        candidates.sort(key=lambda split: (sum((a - b) ** 2 for a, b in zip(split, middle, strict=True)), split))
        cuts = self.cuts.setdefault(steps, [])
        for candidate in candidates:
            if any(cut.worth.forbids(candidate, parts) for cut in cuts):
                continue
            cut = linear.refute(self.program(steps), candidate)
            self.purse.pay(cut.price)
            if cut.worth.forbids(candidate, parts):
                cuts.append(cut)
            else:
                yield candidate


def _compositions(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ways of writing `total` as a sum of `count` whole numbers from 1."""
    for marks in itertools.combinations(range(1, total), count - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *marks, total)))
