"""Decide one point (C, S, R): return its schedule, prove that none exists in any form, or report what was searched.

C is chunks per rank, S steps, R rounds. For collectives that only copy, and for their duals (reduce, reducescatter),
the search of engine `auto` is exhaustive: in any schedule, with any buffers, the transfers that the result depends on
form an algorithm as that engine searches them.

An allreduce is searched in three ways in turn (`_FORMS`), the quickest first:

    halves       reducescatter then allgather, each in S / 2 steps and R / 2 rounds
    everywhere   every input is sent to every rank (allgather) and added on arrival
    sums         every form: which inputs each cell includes (sums.py, all_forms.py)

A refutation must hold for every form. Two kinds do: the bounds of core/bounds, and bounds on the broadcasts and reduces
that every allreduce contains (all_forms.py).

Example: allreduce on the DGX-1 with C = 8, S = 4, R = 4 is found as halves of C = 1, S = 2, R = 2; (12, 4, 4) as sums.

Below, `work` is what was requested (`Problem`), `search` a search on the machine with nodes and links in canonical
numbers (canonical.py), and `problem` translates its results back (`CanonicalProblem`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import bound
from antiphon.core.ksync.certificate import BEST_FOUND, BROADCAST_FROM, COMPOSED, OPTIMAL, REVERSED
from antiphon.core.schedule import Schedule
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut
from antiphon.planners.synth._explain import explain_impossible
from antiphon.planners.synth.all_forms import SUM_LIMITS, AllForms
from antiphon.planners.synth.auto import TURN_LIMITS, decide_candidate
from antiphon.planners.synth.canonical import CanonicalProblem
from antiphon.planners.synth.frontier import Point
from antiphon.planners.synth.points import SUMMED, Conversion, conversion_for, has_halves, schedule_at, send_everywhere
from antiphon.planners.synth.problem import Problem
from antiphon.planners.synth.search import Impossible, SearchState
from antiphon.planners.synth.task import rounds_of
from antiphon.planners.synth.work import (
    halves_of,
    is_searched_in_all_forms,
    start_all_forms,
    with_certificate,
    with_form,
)

PointFigures = tuple[int, int, int]  # chunks per rank (in `_find_point` parts, that is chunks per block), steps, rounds
NONE, OPEN, UNFIT = "none exists", "not decided", "does not apply"  # outcomes of the search in one form


def one_point(work: Problem, chunks: int, steps: int, rounds: int) -> Schedule:
    """Return the schedule of just this point.

    Raises Infeasible with the bound that forbids it in every form, NotFound with what was searched if it was neither
    found nor refuted.
    """
    for name, value in (("chunks", chunks), ("steps", steps), ("rounds", rounds)):
        if value < 1:
            raise Invalid(f"{name}: expected a whole number from 1, got {value}")
    conversion = conversion_for(work.topology, work.collective)
    if conversion.about in (COMPOSED, SUMMED):
        return _find_sums(work, conversion, (chunks, steps, rounds))
    search, problem = work.start_search(conversion)
    weight = work.collective.input_weight
    if chunks % weight:
        raise Invalid(
            f"chunks: {work.collective.kind} among {len(work.collective.members)} ranks takes a multiple of {weight} "
            f"chunks per rank, got {chunks}"
        )
    try:
        point = _find_point(work, search, problem, (chunks // weight, steps, rounds))
    except Infeasible as error:
        if conversion.about != REVERSED:
            raise
        turned = f"a {conversion.collective.kind} of the machine with all links turned, run backwards"
        raise Infeasible(f"{work.collective.kind} is {turned}: {error}") from None
    schedule = schedule_at(point, work.topology, work.collective, conversion.about)
    assert schedule is not None  # only the halves of an allreduce can fail
    return with_certificate(schedule, point, conversion.about, k=None)


def _find_point(work: Problem, search: SearchState, problem: CanonicalProblem, requested: PointFigures) -> Point:
    """Return the point. Raises Infeasible with the proof that none exists, NotFound if it is undecided."""
    parts, steps, rounds = requested
    # One of three outcomes: moves, a refutation, or None where the effort did not suffice. `tell` receives lines of
    # progress; `memory`: bytes that a worker process may take.
    decided = decide_candidate(search, parts, steps, rounds, tell=work.tell, memory=work.memory)
    instance = search.instance
    chunks = parts * instance.input_weight
    form = {"form": "k-synchronous", "what": f"{chunks} equal chunks, {steps} steps, {rounds} rounds"}
    if isinstance(decided, Impossible):
        # refuted by integer flows alone (flow.py), which are exhaustive but leave no proof
        if decided.how == "search" and decided.resolution is None:
            why = "a solver went through all possibilities, but there is no proof of that which can be checked"
            raise NotFound(
                f"planner sccl found no C = {chunks}, S = {steps}, R = {rounds}: {why}",
                [{**form, "outcome": OPEN, "why": why}],
            )
        raise Infeasible(
            explain_impossible(problem.original, parts, steps, rounds, problem.translate_impossible(decided))
        )
    if decided is None:
        why = f"{TURN_LIMITS.turns} turns of all engines gave no answer"
        if not instance.arcs.exhaustive:
            why += "; of the many paths through switches only the shortest were looked at"
        raise NotFound(
            f"planner sccl neither found nor refuted C = {chunks}, S = {steps}, R = {rounds}: {why}; "
            "ask for more rounds, fewer chunks, or another seed",
            [{**form, "outcome": OPEN, "why": why}],
        )
    per_step = rounds_of(instance, decided.moves)
    used_steps, used_rounds = len(per_step), sum(per_step)  # it may take fewer than were asked for
    # Optimal if it meets the lower bound on R / C for its number of steps.
    proof = OPTIMAL if Fraction(used_rounds, chunks) == search.least_ratio(used_steps) else BEST_FOUND
    point = Point(
        instance, parts, used_steps, used_rounds, decided.moves, decided.engine, proof,
        bound_proof=search.prove_least(used_steps),
    )  # fmt: skip
    return problem.translate_point(point)


# ---- allreduce ----


def _find_sums(work: Problem, conversion: Conversion, requested: PointFigures) -> Schedule:
    """Return the schedule in the first form that has it: two halves or inputs sent everywhere (allreduce), sums."""
    chunks, steps, rounds = requested
    _raise_infeasible(_excluded_by_bounds(work, requested))
    search, problem = work.start_search(conversion)  # for an allreduce that of an allgather, for halves and everywhere
    forms = start_all_forms(work, search, problem, SUM_LIMITS.effort_share_point)
    searched: list[dict[str, Any]] = []
    forms_to_search = _FORMS if has_halves(work.collective) else _FORMS[-1:]
    for form, form_text, find_schedule in forms_to_search:
        # Asked once, after halves were not found: a linear program per contained broadcast costs more than finding
        # halves where there are some.
        if find_schedule == _as_everywhere or forms_to_search != _FORMS:
            _raise_infeasible(_excluded_by_broadcasts(forms, requested))
        try:
            result = find_schedule(forms, requested)
        except Infeasible as error:
            searched.append({"form": form, "what": form_text, "outcome": NONE, "why": str(error)})
        except (NotFound, TimedOut) as error:
            searched.append({"form": form, "what": form_text, "outcome": OPEN, "why": str(error)})
        else:
            if isinstance(result, Schedule):
                return result
            searched.append({"form": form, "what": form_text, "outcome": UNFIT, "why": result})
    attempts = "; ".join(f"as {attempt['form']} ({attempt['what']}): {attempt['why']}" for attempt in searched)
    raise NotFound(
        f"planner sccl found no {work.collective.kind} with C = {chunks}, S = {steps}, R = {rounds} "
        f"on {work.topology.name}, and nothing proves that there is none; {attempts}",
        searched,
    )


def _raise_infeasible(reasons: Iterator[str]) -> None:
    """Raise Infeasible with the first reason, if there is one."""
    why = next(reasons, None)
    if why is not None:
        raise Infeasible(why)


def _any_form(work: Problem) -> str:
    return f"{work.collective.kind} of any form on {work.topology.name}"


def _excluded_by_bounds(work: Problem, requested: PointFigures) -> Iterator[str]:
    """Yield in words which bounds exclude the requested point for an allreduce of any form."""
    chunks, steps, rounds = requested
    machine, target = work.topology, work.collective
    lower_bound = bound(machine, target).without_help  # switches neither multicast nor reduce in this search
    name = _any_form(work)
    # Three bounds for any form: R >= S, S >= the latency bound, R / C >= the bandwidth bound.
    if rounds < steps:
        yield f"no {name} has R below S: each of its {steps} steps takes a round or more"
    if steps < lower_bound.latency_steps and lower_bound.latency_witness is not None:
        _, _, why = lower_bound.latency_witness.describe(machine).partition(": ")  # without the kind of witness
        yield f"no {name} has S below {lower_bound.latency_steps}: {why}"
    if Fraction(rounds, chunks) < lower_bound.inverse and lower_bound.witness is not None:
        _, _, why = lower_bound.witness.describe(machine, target.buffer_weight).partition(": ")
        yield f"no {name} has R/C below {lower_bound.inverse} (asked: {Fraction(rounds, chunks)}): {why}"


def _excluded_by_broadcasts(forms: AllForms, requested: PointFigures) -> Iterator[str]:
    """Yield in words which broadcasts and reduces that an allreduce contains exclude the requested point."""
    chunks, steps, rounds = requested
    # the inputs of these broadcasts weigh 1, so their parts are chunks
    for broadcast in forms.contained:
        impossible = broadcast.search.check_bounds(*requested)
        if impossible is not None:
            explanation = explain_impossible(
                broadcast.problem.original, *requested, broadcast.problem.translate_impossible(impossible)
            )
            _, _, root = broadcast.about.rpartition(" ")  # `about` ends in the rank
            description = (
                f"brings all inputs to rank {root}, a broadcast from there on the machine with its links turned"
            )
            if broadcast.about.startswith(BROADCAST_FROM):
                description = f"brings the input of rank {root} to all, as a broadcast does"
            point = f"C = {chunks}, S = {steps}, R = {rounds}"
            yield f"no {_any_form(forms.work)} has {point}: it {description}, and {explanation}"
    ratio, evidence = forms.prove_sends(steps)
    if Fraction(rounds, chunks) < ratio:
        why = "the trees that bring all inputs to all ranks cost more than the links carry, by prices of links"
        if "sends" in evidence:
            why = f"every chunk crosses {evidence['sends']} links or more, by a proof by resolution"
        yield f"no {_any_form(forms.work)} with S = {steps} has R/C below {ratio}: {why}"
    elif duals := forms.refute_by_trees(chunks, steps, rounds):
        prices = f"{len(duals)} sets of prices of links" if len(duals) > 1 else "prices of links"
        yield (
            f"no {_any_form(forms.work)} has C = {chunks}, S = {steps}, R = {rounds}: each chunk goes up one tree and "
            f"down another, and by {prices} these pairs cost more than the links carry, however the rounds are dealt "
            "out"
        )


def _as_halves(forms: AllForms, requested: PointFigures) -> Schedule | str:
    """Return the allreduce as a reducescatter and an allgather, or why this form does not apply."""
    work, (chunks, steps, rounds) = forms.work, requested
    ranks = len(work.collective.members)
    # Each half moves blocks of C / P chunks in S / 2 steps and R / 2 rounds.
    if chunks % ranks or steps % 2 or rounds // 2 < steps // 2:
        return f"it needs C a multiple of {ranks}, S even, and R >= S"
    point = _find_point(work, forms.search, forms.problem, (chunks // ranks, steps // 2, rounds // 2))
    halves = halves_of(work, point)
    return "no reducescatter of as many rounds was found" if halves is None else (
        with_certificate(halves, point, COMPOSED, k=None))  # fmt: skip


def _as_everywhere(forms: AllForms, requested: PointFigures) -> Schedule:
    """Return the allreduce in which every input is sent to every rank, and added there."""
    # blocks of the allgather are inputs of the allreduce: parts are chunks per rank
    point = _find_point(forms.work, forms.search, forms.problem, requested)
    schedule = send_everywhere(point, forms.work.collective)
    return with_form(forms, schedule, (point.chunks, point.steps, point.rounds), point.engine)


def _as_sums(forms: AllForms, requested: PointFigures) -> Schedule | str:
    """Return the allreduce in any form, or why this is not tried."""
    chunks, steps, rounds = requested
    if not is_searched_in_all_forms(forms.search):
        return "it is tried on smaller machines"
    for turn in range(SUM_LIMITS.turns):
        point = forms.find_point(turn, chunks, steps, rounds)
        if point is not None:
            return with_form(forms, point.schedule, (point.chunks, point.steps, point.rounds), point.engine)
        if forms.is_exhausted(chunks, steps, rounds):
            raise Infeasible("a solver went through all of these")
    raise NotFound(f"not decided in {SUM_LIMITS.turns} turns")


_FORMS: tuple[tuple[str, str, Callable[[AllForms, PointFigures], Schedule | str]], ...] = (
    ("halves", "a reducescatter, then an allgather, each in half of the steps and rounds", _as_halves),
    ("everywhere", "every input sent everywhere and added there", _as_everywhere),
    ("sums", f"every form with up to {SUM_LIMITS.max_slots} partial sums of a chunk per rank", _as_sums),
)
