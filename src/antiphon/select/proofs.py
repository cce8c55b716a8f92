"""Check plans: verify every schedule with all claims, and recheck proofs without trusting any solver.

A plan file may come from anywhere, so nothing in it is believed. What it states falls into three classes:

    proved     recomputed here: figures of a verified schedule; bounds, from witnesses (a cut, a partition), each
               checked by adding up a few capacities; certificates of SCCL's points, from rational dual vectors
    trusted    a solver reported it, and nothing in the plan proves it: "no such schedule exists", by a SAT solver
    stated     nothing can check it, such as the options with which a planner was called

`check`, `check_plans` and `check_failures` find the first fault; `prove` also lists the three classes in words.

Example: an allgather with certificate "optimal", (C, S, R) = (6, 3, 7). `verify` shows that the schedule is correct and
its point is (6, 3, 7). The certificate's dual vector shows that R / C >= 7/6 for any schedule of 3 steps: a weighted
sum of the constraints that every schedule meets. So the point is optimal, and no solver had to be run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound, conditions_text, recheck
from antiphon.core.interpret import order_of_combining
from antiphon.core.ksync.certificate import (
    AS_PLANNED,
    BEST_FOUND,
    COMPOSED,
    REVERSED,
    SUMS,
    Checked,
    certified_instance,
    check_certificate,
    least_rounds_per_part,
)
from antiphon.core.loads import pipelined_steps, rounds
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault, verify
from antiphon.cost import model_of, prepare
from antiphon.cost.bound_evaluator import BoundEvaluator, evidence_of
from antiphon.errors import AntiphonError, Invalid, TimedOut, quote
from antiphon.select.figures import figures_verified
from antiphon.select.plan_files import list_failures, load_failure, load_plans
from antiphon.select.provenance import (
    SAME_PREDICTION,
    certificate_of,
    check_origin,
    check_prediction,
    check_rate,
    findings_or_invalid,
    is_same,
    label_of,
    notes_of,
    rate_of,
    rate_text,
)
from antiphon.units import format_size, plural, range_text


@dataclass(frozen=True)
class Proofs:
    """The result of rechecking the proofs of a plan, as statements in words."""

    fault: Fault | None  # the first claim that does not hold
    proved: tuple[str, ...] = ()  # rechecked here
    trusted: tuple[str, ...] = ()  # a solver reported it; nothing proves it
    stated: tuple[str, ...] = ()  # the plan states it; nothing can check it


@dataclass(frozen=True)
class PlanVerdict:
    """The result of checking several plans. Fields without a comment: see `Proofs`."""

    topology: Topology  # the machine that they were checked on
    is_same_machine: bool  # `topology` is the machine that the plans name, so that their claims were checked, too
    fault: Fault | None = None
    plan: Plan | None = None  # the plan with the fault
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    dead: str = ""  # the failure that the plan with the fault is for
    failures: int = 0  # single failures that the file has plans for; these are checked only if no plan has a fault


def check_plans(
    plans: Sequence[Plan], topology: Topology | None = None, *, proof: bool = False, op: str | None = None,
    dtype: str | None = None,
) -> PlanVerdict:  # fmt: skip
    """Check plans in order, on a machine other than their own without their claims; stop at the first fault.

    `topology`: None for their own machine. The options are those of `check`; with `proof`, the proofs are rechecked and
    listed.
    """
    first = plans[0].topology
    machine = topology or first
    if machine.ranks != first.ranks:
        raise Invalid(
            f"the plan is for {first.name} with {first.ranks} ranks, but topology {machine.name} has {machine.ranks}"
        )
    proved: list[str] = []
    trusted: list[str] = []
    stated: list[str] = []
    for plan in plans:
        is_same_machine = machine == plan.topology
        fault = check(plan, machine, claims=is_same_machine, op=op, dtype=dtype)
        if fault is None and proof:
            proofs = prove(plan, machine, claims=is_same_machine)
            fault = proofs.fault
            proved += proofs.proved
            trusted += proofs.trusted
            stated += proofs.stated
        if fault is not None:
            return PlanVerdict(machine, is_same_machine, fault, plan)
    return PlanVerdict(
        machine,
        machine == first,
        fault=None,
        plan=None,
        proved=tuple(proved),
        trusted=tuple(trusted),
        stated=tuple(stated),
    )


def check_failures(
    verdict: PlanVerdict, path: str | os.PathLike[str], *, kinds: Collection[str] | None = None, proof: bool = False,
    op: str | None = None, dtype: str | None = None,
) -> PlanVerdict:  # fmt: skip
    """Check a file's plans for single failures: return `verdict` with their proofs, or the verdict on a wrong one.

    `kinds`: only the plans of these collectives; None: all.
    The plans of a class of failures are checked with their claims on the machine without its first failure. For the
    other failures of the class, only the schedules are verified, renumbered as at run time.
    """
    names = list_failures(path)
    for name, *names_alike in names if verdict.fault is None else ():
        plans = [plan for kind, plan in load_failure(path, name).items() if kinds is None or kind in kinds]
        if not plans:  # these collectives lost their root
            continue
        failure_verdict = check_plans(plans, proof=proof, op=op, dtype=dtype)
        if failure_verdict.fault is not None:
            return replace(failure_verdict, dead=name)
        verdict = replace(verdict, **{  # type: ignore[arg-type]
            key: tuple(dict.fromkeys(getattr(verdict, key) + getattr(failure_verdict, key)))
            for key in ("proved", "trusted", "stated")
        })  # fmt: skip
        for name_alike in names_alike:
            load_plans(path, dead=[name_alike])  # renumbers and verifies; raises on a fault
    return replace(verdict, failures=sum(map(len, names)))


def check(
    plan: Plan, topology: Topology, *, proof: bool = False, claims: bool = True, op: str | None = None,
    dtype: str | None = None,
) -> Fault | None:  # fmt: skip
    """Verify every schedule of a plan with all its claims.

    `proof`: recheck the bounds from their witnesses, and the certificates of its schedules, too. `op`, `dtype`: whether
    switches that combine support these.
    """
    bounds: Bound | None = None
    for entry in plan.entries:
        report = verify(entry.schedule, topology, entry.claims if claims else None, op=op, dtype=dtype)
        if report.fault is not None:
            return report.fault
        bounds = bounds or (bound(topology, plan.collective) if claims or proof else None)
        fault = _claim_fault(entry, topology, bounds) if claims and bounds is not None else None
        if fault is not None:
            return fault
    return prove(plan, topology, bounds, claims=claims).fault if proof else None


def _claim_fault(entry: Entry, topology: Topology, bounds: Bound) -> Fault | None:
    """Return the first claim that a verified schedule contradicts. Claims that are no figures are not checked."""
    schedule, claims = entry.schedule, entry.claims
    # The first three are what a plan may claim where `figures_verified` states nothing of them.
    figures: dict[str, Any] = {
        "assumes": [], "uses": [], "bandwidth_gap_without_switches": None,
        **figures_verified(schedule, topology, bounds),
    }  # fmt: skip
    if "rate" in claims:
        figures["rate"] = rate_text(schedule, topology)
    for key, value in figures.items():
        if key in claims and not is_same(claims[key], value):
            return Fault("claim", f"the plan claims {key} = {quote(claims[key])}, but it is {quote(value)}")
    if "order" in claims and claims["order"] != order_of_combining(schedule):
        return Fault("claim", "the plan claims an order in which every element is combined, but that is not so")
    return None


def prove(plan: Plan, topology: Topology, bounds: Bound | None = None, *, claims: bool = True) -> Proofs:
    """Recheck the bounds on the collective from their witnesses, and the certificate of every schedule that has one.

    `bounds`: computed here if None. `claims`: False on another machine than the plan's own, where its certificates
    prove nothing.
    """
    bounds = bounds or bound(topology, plan.collective)
    recheck(topology, plan.collective, bounds)
    name = f"{plan.collective.title} on {topology.name}"
    proved = [bounds_text(name, bounds.latency_steps, bounds.inverse)]
    if bounds.unaided is not None and bounds.unaided.inverse != bounds.inverse:  # if switches only forward
        condition = conditions_text(bounds.unaided.assumes)
        proved.append(f"{condition} R/C of {name} is {bounds.unaided.inverse} or more, by a witness")
    bound_figures = BoundEvaluator(topology, plan.collective, bounds)
    if claims and (stated_evidence := [e.claims["gap_evidence"] for e in plan.entries if "gap_evidence" in e.claims]):
        try:
            bound_figures.evidence.update(evidence_of(stated_evidence[0]))
        except Invalid as error:
            return Proofs(Fault("proof", str(error)))
    trusted: list[str] = []
    stated: list[str] = []
    for entry in plan.entries if claims else ():
        point = _schedule_point(entry.schedule, topology)
        label = _label(entry, topology)
        try:
            checked = recheck_certificate(entry.schedule, topology)
            rate_proofs = check_rate(entry.schedule, topology, bounds)
            check_origin(entry)  # which planner made it, and whether a library serves these sizes
            prediction = check_prediction(entry, topology, bound_figures)
            optimality = label_of(entry.schedule)
            claimed = entry.claims.get("optimality", optimality)
            if claimed != optimality:
                raise Invalid(f"certificate: the plan says {claimed!r}, its schedule {optimality!r}")
        except AntiphonError as error:
            return Proofs(Fault("proof", f"{label}: {error}"))
        proved += [*rate_proofs, *([f"{label}: {prediction}"] if prediction else [])]
        trusted += [f"{label}: {text}" for text in _unproved_texts(entry.schedule)]
        stated += [f"{label}: {text}" for text in notes_of(entry, prediction is not None)]
        if checked is None:
            continue
        proved.append(f"{label}: {_claims_text(checked.proved, point)}")
        if checked.trusted:
            trusted.append(f"{label}: {_claims_text(checked.trusted, point)}")
    try:
        proved += _check_ranges(plan, topology) if claims else []
    except AntiphonError as error:
        return Proofs(Fault("proof", str(error)))
    return Proofs(None, *(tuple(dict.fromkeys(texts)) for texts in (proved, trusted, stated)))


def bounds_text(name: str, steps: int, inverse: Fraction) -> str:
    """Return the proved bounds of a collective on a machine in words. `inverse`: of R/C."""
    return f"{name} takes {plural(steps, 'step')} or more, and R/C is {inverse} or more, by witnesses"


def _label(entry: Entry, topology: Topology) -> str:
    """Return the words that name an entry in statements: "4KiB to 16KiB, (C, S, R) = (6, 3, 7)"; no sizes for all."""
    sizes = f"{range_text(entry.start, entry.stop)}, " if entry.start or entry.stop is not None else ""
    return f"{sizes}(C, S, R) = {_schedule_point(entry.schedule, topology)}"


def list_unchecked(plan: Plan) -> list[str]:
    """Return the kinds of statements in a plan that `check` without `proof` does not check, in words."""
    kinds = {
        "predicted times": any("seconds" in entry.claims for entry in plan.entries),
        "certificates": any("certificate" in entry.schedule.provenance for entry in plan.entries),
        "planners' notes": any(notes_of(entry, is_predicted=True) for entry in plan.entries),
    }
    return [kind for kind, occurs in kinds.items() if occurs]


def _check_ranges(plan: Plan, topology: Topology) -> list[str]:
    """Predict anew that each entry which names a model but claims no seconds is the plan's fastest where it begins.

    So the ranges of a frontier's plan were chosen. Returns in words what holds; raises Invalid for the first failure.
    """
    texts = []
    by_model = [entry for entry in plan.entries if "model" in entry.claims and "seconds" not in entry.claims]
    for entry in by_model:
        model = entry.claims["model"]
        if not isinstance(model, str) or model != by_model[0].claims["model"]:
            raise Invalid(f"model: expected the name of one model for all ranges, got {quote(model)}; plan anew")
        model_of(model)  # raises Invalid for an unknown one
        if not entry.start:  # the size from which the first entry was compared is not in the file
            continue
        times = [float(prepare(model, other.schedule, topology)(entry.start).seconds) for other in plan.entries]
        point = _schedule_point(entry.schedule, topology)
        if times[plan.entries.index(entry)] > min(times) * (1 + SAME_PREDICTION):
            faster = _schedule_point(plan.entries[times.index(min(times))].schedule, topology)
            raise Invalid(
                f"{point}: model: by {model}, {faster} is faster at {format_size(entry.start)}, where this schedule's "
                "range begins; plan anew"
            )
        texts.append(
            f"{_label(entry, topology)}: fastest of the plan at {format_size(entry.start)} by the model `{model}`, "
            "predicted again"
        )
    return texts


def _unproved_texts(schedule: Schedule) -> list[str]:
    """Return what a planner of packed trees states that nothing in the plan proves.

    "few" says how few trees there are, such as "4 trees, the fewest: proved"; "best_of_its_kind" that no other packing
    of the kind that was searched has a higher rate.
    """
    stated = findings_or_invalid(schedule)
    if rate_of(schedule) is None:
        return []
    texts = [str(stated["few"])] if "proved" in str(stated.get("few", "")) else []
    if stated.get("best_of_its_kind") and not (stated.get("optimal") or stated.get("optimal_without_switches")):
        texts.append("no packing of trees is faster")
    return texts


# ---- certificates of synthesis: SCCL's k-synchronous schedules, with at most k rounds more than steps ----


def recheck_certificate(schedule: Schedule, topology: Topology) -> Checked | None:
    """Recheck the certificate of a verified schedule: that it holds, and is about this schedule. None: it has none.

    A certificate proves that a search missed nothing. Its "about" states what it is about: the collective as planned
    (AS_PLANNED); the same, proved by the links that each chunk of a sum must cross (SUMS); the dual collective
    on the machine with all links reversed (REVERSED); an allgather, which is one half of an allreduce (COMPOSED); or a
    broadcast or reduce that every allreduce contains.
    """
    certificate = certificate_of(schedule)
    if certificate is None:
        label = findings_or_invalid(schedule).get("proof", BEST_FOUND)
        if label != BEST_FOUND:
            raise Invalid(f"certificate: the schedule is called {quote(label)}, but the plan carries none; plan anew")
        return None
    try:
        checked = check_certificate(topology, schedule.collective, certificate)
    except TimedOut:  # says nothing of the certificate
        raise
    except AntiphonError as error:
        raise Invalid(str(error)) from None
    label = findings_or_invalid(schedule).get("proof", certificate["proof"])
    if label != certificate["proof"]:
        raise Invalid(f"certificate: proves {certificate['proof']!r}, but the schedule says {label!r}")
    _check_subject(schedule, topology, certificate)
    return _with_subject(checked, str(certificate["about"]))


def _check_subject(schedule: Schedule, topology: Topology, certificate: Mapping[str, Any]) -> None:
    """Raise Invalid if (C, S, R) of the certificate are not those of the schedule.

    Of an allreduce composed of two halves, the certificate is about one: its steps and rounds count twice, and the
    schedule may take fewer rounds, but not more.
    """
    collective, about = schedule.collective, certificate["about"]
    certified = certified_instance(topology, collective, about).collective
    # Chunks are per rank's input, which for the allgather is a share of the rank's input to the allreduce.
    halves = 2 if about == COMPOSED else 1
    share = len(collective.members) if about == COMPOSED else Fraction(collective.input_weight, certified.input_weight)
    chunks, steps, rounds_per_half = (int(certificate[key]) for key in ("chunks", "steps", "rounds"))
    used_rounds = rounds(schedule, topology)
    # SCCL counts at least one round per step; `used_rounds` counts none for an empty step.
    point = schedule.chunks_per_rank, schedule.steps, max(used_rounds, schedule.steps)
    certified_point = chunks * share, steps * halves, rounds_per_half * halves
    (*point_figures, point_rounds), (*certified_figures, certified_rounds) = point, certified_point
    if (
        point_figures != certified_figures
        or point_rounds > certified_rounds
        or (halves == 1 and point_rounds != certified_rounds)
    ):
        listed = ", ".join(str(value) for value in certified_point)
        raise Invalid(
            f"certificate: is about (C, S, R) = ({listed}), but the schedule is {_point_text(schedule, used_rounds)}"
        )


def least_ratio(schedule: Schedule, topology: Topology) -> Fraction | None:
    """Return the least R / C of any schedule with as many steps, by its certificate, which is not checked here.

    If the certificate is about halves: of any allgather with half as many steps. None if there is no certificate.
    """
    certificate = certificate_of(schedule)
    if certificate is None:
        return None
    instance = certified_instance(topology, schedule.collective, certificate["about"])
    collective = instance.collective if certificate["about"] == COMPOSED else schedule.collective
    about, steps, evidence = (certificate[key] for key in ("about", "steps", "least"))
    # a part is a chunk of a block of weight 1, so C is `input_weight` times their number
    return least_rounds_per_part(instance, about, steps, evidence) / collective.input_weight


_SUBJECT_TEXT = {
    AS_PLANNED: "",
    SUMS: "",
    REVERSED: "run backwards, with all links turned, it is: ",
    COMPOSED: "each half is an allgather, one of them run backwards (an allreduce of another form may be better): ",
}


def _with_subject(checked: Checked, about: str) -> Checked:
    """Return the texts; the first of each kind begins with what the certificate is about."""
    subject_text = _SUBJECT_TEXT.get(about, f"an allreduce contains a {about}: ")

    def add_subject(texts: tuple[str, ...]) -> tuple[str, ...]:
        return (subject_text + texts[0], *texts[1:]) if texts else ()

    return Checked(add_subject(checked.proved), add_subject(checked.trusted))


def _claims_text(texts: tuple[str, ...], point: str) -> str:
    """Return statements in one line; the point in them is the schedule itself."""
    return "; ".join(text.replace(f"(C, S, R) = {point} ", "this schedule ", 1) for text in texts)


def _schedule_point(schedule: Schedule, topology: Topology) -> str:
    """Return (C, S, R) of a schedule as text."""
    return _point_text(schedule, rounds(schedule, topology))


def _point_text(schedule: Schedule, used_rounds: int) -> str:
    """Return (C, S, R) as text; S as figures count it, with the steps of all pieces of a pipelined schedule."""
    return f"({schedule.chunks_per_rank}, {pipelined_steps(schedule)}, {used_rounds})"
