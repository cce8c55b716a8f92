"""From any collective to the search: derive the collective to search, walk its frontier, convert the points.

The search handles collectives that only copy (spreading ones). Those that reduce are derived from these:

    what is requested            what is synthesized                              conversion
    broadcast, allgather, ...    itself                                           none
    reduce, reducescatter, ...   its inverse on the reversed machine              run backwards
    allreduce                    allgather                                        reducescatter + allgather, or sent
                                                                                  everywhere and added on arrival;
                                 then any allreduce at all (all_forms.py)         none

Searches run on a canonically renumbered instance (canonical.py), so equal problems have equal answers and share the
cache. Below, `work` is what was requested (`Problem`), `search` a search in canonical numbers, and `problem` translates
its results back (`CanonicalProblem`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import bound
from antiphon.core.ksync.certificate import AS_PLANNED, BEST_FOUND, COMPOSED
from antiphon.core.loads import pipelined_steps
from antiphon.core.loads import rounds as rounds_in
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.errors import EffortSpent, Unsupported
from antiphon.planners.synth.all_forms import SUM_LIMITS, AllForms
from antiphon.planners.synth.auto import Solved, decide_candidate
from antiphon.planners.synth.canonical import CanonicalProblem
from antiphon.planners.synth.effort_budget import UNIT, EffortBudget
from antiphon.planners.synth.frontier import USUAL_K, Limits, Point, find_frontier, usual_steps
from antiphon.planners.synth.points import (
    SUMMED,
    Conversion,
    build_certificate,
    conversion_for,
    has_halves,
    join_halves,
    schedule_at,
    send_everywhere,
)
from antiphon.planners.synth.problem import MOST_RANKS, Problem, Tell, refuse_many_ranks
from antiphon.planners.synth.search import SearchState
from antiphon.planners.synth.starts import (
    LEAST_EFFORT,
    STARTS,
    improve_starts,
    is_too_large,
    quick_schedules,
    starts_quickly,
)
from antiphon.planners.synth.task import schedule_of


def find_schedules(work: Problem, limits: Limits) -> Iterator[Schedule]:
    """Yield every point of the frontier as a schedule, when it is found.

    Of an allreduce: first points of two halves, and points that send every input everywhere; then better ones of every
    form.
    """
    effort = work.budget.left()
    is_searched = len(work.collective.members) <= MOST_RANKS or work.collective.ordered
    if not is_searched and (effort is None or effort >= LEAST_EFFORT):
        yield from _plan_quickly(work, limits)
        return
    conversion = conversion_for(work.topology, work.collective)
    search, problem = work.start_search(conversion)
    # lower bound on R / C, if switches neither multicast nor reduce, as in this search
    floor = bound(conversion.topology, conversion.collective).without_help.inverse
    max_steps = limits.steps if limits.steps is not None else usual_steps(search.instance.least_steps)
    if conversion.about in (COMPOSED, SUMMED):
        yield from _find_sums(work, search, problem, limits, max_steps)
        return
    spreading_limits = replace(limits, steps=max_steps)
    for canonical_point in _find_spreading(search, floor, spreading_limits, max_steps=limits.steps, tell=work.tell):
        point = problem.translate_point(canonical_point)
        schedule = schedule_at(point, work.topology, work.collective, conversion.about)
        assert schedule is not None
        yield with_certificate(schedule, point, conversion.about, limits.k)


def _plan_quickly(work: Problem, limits: Limits) -> Iterator[Schedule]:
    """Yield the plans of the quick planners that no earlier one beats, for machines that are not searched at all."""
    work.tell(f"more than {MOST_RANKS} ranks: the best plans of the planners {', '.join(STARTS)}")
    best: list[tuple[int, Fraction]] = []
    for name, schedule in quick_schedules(work.topology, work.collective, work.budget):
        steps, rounds = pipelined_steps(schedule), rounds_in(schedule, work.topology)
        ratio = Fraction(rounds, schedule.chunks_per_rank)
        is_allowed = (limits.steps is None or steps <= limits.steps) and (
            limits.k is None or rounds <= steps + limits.k
        )
        if is_allowed and not any(s <= steps and r <= ratio for s, r in best):
            best.append((steps, ratio))
            yield replace(schedule, provenance={"engine": name, "found": {"proof": BEST_FOUND}})
    if not best:
        refuse_many_ranks(work.collective)


def _find_sums(
    work: Problem, search: SearchState, problem: CanonicalProblem, limits: Limits, max_steps: int
) -> Iterator[Schedule]:
    """Yield the points of a collective of sums. Of an allreduce those of two halves come first; a part of the effort is
    for the search in every form.
    """
    floor = bound(work.topology, work.collective).without_help.inverse
    if not has_halves(work.collective) and not is_searched_in_all_forms(search):
        raise Unsupported(
            f"planner sccl: sums that are no two halves are searched on up to {SUM_LIMITS.max_ranks} ranks; use relay"
        )
    # where there are no halves, the other searches are only of bounds
    share = SUM_LIMITS.effort_share if has_halves(work.collective) else SUM_LIMITS.effort_share_point
    forms = start_all_forms(work, search, problem, share)
    best: dict[int, Fraction] = {}
    # The search in every form has a budget of its own: it runs, too, if the halves spend theirs, and the error follows.
    spent: EffortSpent | None = None
    try:
        for schedule, ratio in _find_halves(forms, limits, max_steps) if has_halves(work.collective) else ():
            best[schedule.steps] = min(ratio, best.get(schedule.steps, ratio))
            yield schedule
    except EffortSpent as error:
        spent = error
    if is_searched_in_all_forms(search):
        try:
            for point in forms.improve_points(floor, limits, max_steps, best):
                yield with_form(forms, point.schedule, (point.chunks, point.steps, point.rounds), point.engine)
        except EffortSpent:
            work.tell("the effort for the search in every form is spent; --effort gives more")
    if spent is not None:
        raise spent


def _find_halves(forms: AllForms, limits: Limits, max_steps: int) -> Iterator[tuple[Schedule, Fraction]]:
    """Yield allreduces made of allgathers, with their R / C.

    An allgather point serves twice: inputs sent everywhere, in as many steps; and as two halves, in twice as many.
    """
    work, search = forms.work, forms.search
    floor = bound(work.topology, search.instance.collective).without_help.inverse
    members, least_direct = len(work.collective.members), None  # least_direct: R / C of the last one sent everywhere
    # Two halves have twice the steps of the allgather that is searched. If the user limits no steps, `max_steps` is
    # that of the allgather itself.
    half_limits = replace(limits, steps=max(max_steps // 2, 1) if limits.steps is not None else max_steps)
    for canonical_point in _find_spreading(
        search, floor, half_limits, max_steps=limits.steps, tell=work.tell, halved=True
    ):
        point = forms.problem.translate_point(canonical_point)
        # From twice the least steps on, two halves take no more steps, and move less.
        if point.steps < 2 * search.instance.least_steps and point.steps <= max_steps:
            least_direct = Fraction(point.rounds, point.parts)
            yield (
                with_form(
                    forms,
                    send_everywhere(point, work.collective),
                    (point.chunks, point.steps, point.rounds),
                    point.engine,
                ),
                least_direct,
            )
        if 2 * point.steps <= max_steps or limits.steps is None:
            # an allreduce buffer has one block per member, so the same chunks count `members` times
            ratio = Fraction(2 * point.rounds, point.parts * members)
            if least_direct is None or ratio < least_direct:
                halves = halves_of(work, point)
                if halves is not None:
                    yield with_certificate(halves, point, COMPOSED, limits.k), ratio


def start_all_forms(work: Problem, search: SearchState, problem: CanonicalProblem, share: int) -> AllForms:
    """Return the search in every form, which has 1 / `share` of the effort as a budget of its own.

    Of a small effort, such as that of `tune`, it has more: with less than a unit it misses points on eight ranks.
    """
    effort = work.budget.effort
    if effort is not None:
        effort = max(effort // share, min(SUM_LIMITS.least_units * UNIT, effort // SUM_LIMITS.largest_share))
    return AllForms(work, search, problem, EffortBudget(effort, work.budget.until))


def is_searched_in_all_forms(search: SearchState) -> bool:
    """Return whether the machine is small enough for the search in every form."""
    return search.instance.ranks <= SUM_LIMITS.max_ranks


def _find_spreading(
    search: SearchState, floor: Fraction, limits: Limits, max_steps: int | None, tell: Tell, halved: bool = False
) -> Iterator[Point]:
    """Yield the frontier of a collective that copies.

    On a large machine, improved plans of other planners come first; if it is too large for the exact search, nothing
    follows them.

    `max_steps`: the maximum that was asked for, of two halves together if `halved`.
    """
    steps_limit = max_steps // 2 if max_steps and halved else max_steps  # of one half; None: no limit
    if limits.k is None and starts_quickly(search):
        any_start, too_large = False, is_too_large(search.instance)
        for start in improve_starts(search, floor, steps_limit, tell, spend_all=too_large):
            any_start = True
            yield start
        if any_start and too_large:
            tell("the machine is too large for the exact search")
            return
    yield from find_frontier(search, floor, limits, tell)


def halves_of(work: Problem, point: Point) -> Schedule | None:
    """Return an allreduce of two halves; the first is synthesized separately if the machine is not symmetric in
    direction.
    """
    schedule = schedule_at(point, work.topology, work.collective, COMPOSED)
    if schedule is not None:
        return schedule
    if is_too_large(point.instance):
        work.tell(f"the links differ by direction; no reducescatter for the allgather of {point.steps} steps")
        return None
    reversed_topology = reverse(work.topology)
    search, problem = work.start_search(Conversion(reversed_topology, point.instance.collective, AS_PLANNED))
    decided = decide_candidate(search, point.parts, point.steps, point.rounds, tell=work.tell, memory=work.memory)
    if not isinstance(decided, Solved):
        work.tell(f"no reducescatter of {point.steps} steps and {point.rounds} rounds was found; left out")
        return None
    reducescatter = schedule_of(problem.original, point.parts, problem.translate_moves(decided.moves))
    return join_halves(reducescatter, schedule_of(point.instance, point.parts, point.moves), work.collective)


def with_certificate(schedule: Schedule, point: Point, about: str, k: int | None) -> Schedule:
    """Attach engine, proof and the certificate, if any. It is self-explanatory data, so no prose is stored with it."""
    provenance: dict[str, Any] = {"engine": point.engine, "found": {"proof": point.proof}}
    if point.bound_proof is not None:
        provenance["certificate"] = build_certificate(point, about, USUAL_K if k is None else k)
    return replace(schedule, provenance=provenance)


def with_form(forms: AllForms, schedule: Schedule, figures: tuple[int, int, int], engine: str) -> Schedule:
    """Attach engine, proof and certificate to an allreduce of any form with this (C, S, R)."""
    certificate = None
    if is_searched_in_all_forms(forms.search):
        with contextlib.suppress(EffortSpent):
            certificate = forms.certificate_of(*figures)
    proof = BEST_FOUND if certificate is None else certificate["proof"]
    provenance: dict[str, Any] = {"engine": engine, "found": {"proof": proof}}
    return replace(schedule, provenance=provenance | ({} if certificate is None else {"certificate": certificate}))
