"""Constraints under construction as SMT-LIB text, the rounds of SCCL's problem among them, and z3 asked about them.

Text is read by z3 itself, many times faster than terms are made one by one. Every question has a context of its
own, so that an answer depends on nothing asked before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.errors import Missing
from antiphon.planners.sccl._task import Effort, Task

Model = dict[str, Any]  # values of what is declared


class Script:
    """What is declared and asserted. `refuted`: it is plain already that nothing satisfies it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refuted = False

    def declare(self, name: str, sort: str) -> str:
        self.lines.append(f"(declare-const {name} {sort})")
        return name

    def hold(self, formula: str) -> None:
        self.lines.append(f"(assert {formula})")

    def within(self, name: str, low: int, high: int) -> None:
        self.hold(f"(<= {low} {name} {high})")
        self.refuted |= low > high

    def either(self, literals: Sequence[str]) -> None:
        self.hold(any_of(literals))
        self.refuted |= not literals

    def one(self, literals: Sequence[str]) -> None:
        self.refuted |= not literals
        if literals:
            self.hold(f"((_ pbeq 1 {' '.join('1' * len(literals))}) {' '.join(literals)})")

    def at_most(self, literals: Sequence[str], count: int) -> None:
        if len(literals) > count:
            self.hold(f"((_ at-most {count}) {' '.join(literals)})")

    def ask(self, finite: bool, effort: Effort) -> tuple[Model | None, bool]:
        """A model, or None and whether there is none. `finite`: by z3's finite-domain solver, else by its core.

        Both go by the seed alone; what z3 takes for linear arithmetic unasked gives up stages by the clock.
        """
        if self.refuted:
            return None, True
        try:
            import z3
        except ImportError:
            raise Missing("the engines z3 and boolean need z3; get it with pip install 'antiphon[synth]'") from None
        context = z3.Context()
        solver = z3.SolverFor("QF_FD", ctx=context) if finite else z3.SimpleSolver(ctx=context)
        solver.set("random_seed", effort.seed)
        if effort.conflicts is not None:
            solver.set("max_conflicts", effort.conflicts)
        solver.from_string("\n".join(self.lines))
        answer = solver.check()
        if answer == z3.sat:
            model = solver.model()
            return {value.name(): model[value] for value in model.decls()}, False
        return None, bool(answer == z3.unsat)


def any_of(literals: Sequence[str]) -> str:
    return f"(or {' '.join(literals)} false)"


def declare_rounds(script: Script, task: Task) -> list[int]:
    """C6, the rounds of every step, at least one in each: r0, r1, ... where they are free. How many each may be."""
    if task.split is not None:
        script.refuted |= sum(task.split) > task.rounds
        return list(task.split)
    most = task.rounds - task.steps + 1
    script.refuted |= most < 1
    if most > 1:
        names = [script.declare(f"r{step}", "Int") for step in range(task.steps)]
        for name in names:
            script.within(name, 1, most)
        script.hold(f"(= (+ {' '.join(names)} 0) {task.rounds})")
    return [most] * task.steps


def bound_loads(script: Script, task: Task, most: Sequence[int], sends: Callable[[int, int], list[str]]) -> None:
    """C5: in every step a resource carries as many chunks as its rounds allow; `sends(arc, step)` are literals.

    With capacity b = p / q and free rounds r: q * sends + p * (how many of r < 2, ..., r < most hold) <= p * most.
    """
    arcs_of: dict[int, list[int]] = defaultdict(list)
    for arc, resource in zip(*(column.tolist() for column in task.instance.arcs.load), strict=True):
        arcs_of[resource].append(arc)
    for resource, arcs in sorted(arcs_of.items()):
        capacity = task.instance.capacity[resource]
        for step, rounds in enumerate(most):
            loading = [literal for arc in arcs for literal in sends(arc, step)]
            if task.split is not None or rounds == 1:
                script.at_most(loading, int(capacity * rounds))
            elif len(loading) > capacity:
                p, q = capacity.numerator, capacity.denominator
                spare = [f"(< r{step} {r})" for r in range(2, rounds + 1)]
                weights = " ".join([str(q)] * len(loading) + [str(p)] * len(spare))
                script.hold(f"((_ pble {p * rounds} {weights}) {' '.join(loading + spare)})")
