"""What a plan proves of itself, rechecked without any solver's word, and what only its planner says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound, recheck, without
from antiphon.core.ksync.certificate import BEST_FOUND, COMPOSED, TURNED, Checked, check_certificate, subject
from antiphon.core.ksync.dual import StepDual, worth
from antiphon.core.loads import rounds
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault
from antiphon.errors import AntiphonError, Invalid, quote
from antiphon.select.limits import Limit
from antiphon.select.provenance import check_origin, check_prediction, check_rate, found_of, notes_of


@dataclass(frozen=True)
class Proofs:
    """The first claim that does not hold, or None; what was rechecked, what an engine alone vouches for, and what is
    only stated in the file, in words."""

    fault: Fault | None
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()


def prove(plan: Plan, topology: Topology, limits: Bound | None = None, *, claims: bool = True) -> Proofs:
    """Recheck the bounds on the collective from their witnesses, and the certificate of every schedule that has one.

    `limits`: the bounds, if known already. `claims`: False on another machine than the plan's own, where its
    certificates say nothing.
    """
    limits = limits or bound(topology, plan.collective)
    recheck(topology, plan.collective, limits)
    name = f"{plan.collective.kind} on {topology.name}"
    few = limits.latency_steps
    proved = [f"{name} takes {few} steps or more, and R/C is {limits.inverse} or more, by witnesses"]
    if limits.unaided is not None and limits.unaided.inverse != limits.inverse:
        alone = without(limits.unaided.assumes)
        proved.append(f"{alone} R/C of {name} is {limits.unaided.inverse} or more, by a witness")
    limit = Limit.of(limits, topology, plan.collective)
    trusted: list[str] = []
    stated: list[str] = []
    for entry in plan.entries if claims else ():
        try:
            checked = certified(entry.schedule, topology)
            rated = check_rate(entry.schedule, topology, limits)
            check_origin(entry)
            predicted = check_prediction(entry, topology, limit)
            label = label_of(entry.schedule)
            told = entry.claims.get("optimality", label)
            if told != label:
                raise Invalid(f"certificate: the plan says {told!r}, its schedule {label!r}")
        except AntiphonError as error:
            return Proofs(Fault("proof", f"{_which(entry.schedule, topology)}: {error}"))
        which = _which(entry.schedule, topology)
        proved += [*rated, *([f"{which}: {predicted}"] if predicted else [])]
        trusted += [f"{which}: {text}" for text in _only_told(entry.schedule)]
        stated += [f"{which}: {text}" for text in notes_of(entry, predicted is not None)]
        if checked is None:
            continue
        proved.append(f"{which}: {_claims_text(checked.proved, which)}")
        if checked.trusted:
            trusted.append(f"{which}: {_claims_text(checked.trusted, which)}")
    return Proofs(None, *(tuple(dict.fromkeys(texts)) for texts in (proved, trusted, stated)))


def label_of(schedule: Schedule) -> str | None:
    """What the schedule says that it is proved to be; None where it claims nothing (best-found-in-budget does not)."""
    found = schedule.provenance.get("found")
    label = found.get("proof") if isinstance(found, Mapping) else None
    certificate = certificate_of(schedule)
    if label is None and certificate is not None:
        label = certificate.get("proof")
    return label if isinstance(label, str) and (label != BEST_FOUND or certificate is not None) else None


def rate_of(schedule: Schedule) -> str | None:
    """The rate that its planner states, in unit links: what ever finer pieces come near."""
    found = schedule.provenance.get("found")
    rate = found.get("rate") if isinstance(found, Mapping) else None
    return rate if isinstance(rate, str) else None


def _only_told(schedule: Schedule) -> list[str]:
    """What a planner of trees says that nothing in the plan proves."""
    found = found_of(schedule)
    if rate_of(schedule) is None:
        return []
    told = [str(found["few"])] if "proved" in str(found.get("few", "")) else []
    if found.get("best_of_its_kind") and not (found.get("optimal") or found.get("optimal_without_switches")):
        told.append("no packing of trees is faster")
    return told


def certificate_of(schedule: Schedule) -> Mapping[str, Any] | None:
    certificate = schedule.provenance.get("certificate")
    if certificate is not None and not isinstance(certificate, Mapping):
        raise Invalid("certificate: expected an object; plan anew")
    return certificate


def certified(schedule: Schedule, topology: Topology) -> Checked | None:
    """Recheck the certificate of a verified schedule: that it holds, and is about this schedule. None: it has none."""
    certificate = certificate_of(schedule)
    if certificate is None:
        label = found_of(schedule).get("proof", BEST_FOUND)
        if label != BEST_FOUND:
            raise Invalid(f"certificate: the schedule is called {quote(label)}, but the plan carries none; plan anew")
        return None
    try:
        checked = check_certificate(topology, schedule.collective, certificate)
    except AntiphonError as error:
        raise Invalid(str(error)) from None
    label = found_of(schedule).get("proof", certificate["proof"])
    if label != certificate["proof"]:
        raise Invalid(f"certificate: proves {certificate['proof']!r}, but the schedule says {label!r}")
    _is_about(schedule, topology, certificate)
    return _in_words(checked, str(certificate["about"]))


def _is_about(schedule: Schedule, topology: Topology, certificate: Mapping[str, Any]) -> None:
    """Its (C, S, R) are those of the schedule: of an allreduce, those of each half, which may take fewer rounds."""
    collective, about = schedule.collective, certificate["about"]
    spread = subject(topology, collective, about).collective
    halves = 2 if about == COMPOSED else 1
    share = len(collective.members) if about == COMPOSED else Fraction(collective.input_weight, spread.input_weight)
    chunks, steps, least = (int(certificate[key]) for key in ("chunks", "steps", "rounds"))
    used = rounds(schedule, topology)
    mine = schedule.chunks_per_rank, schedule.steps, max(used, schedule.steps)
    meant = chunks * share, steps * halves, least * halves
    if mine[:2] != meant[:2] or mine[2] > meant[2] or (halves == 1 and mine[2] != meant[2]):
        told = ", ".join(str(value) for value in meant)
        raise Invalid(f"certificate: is about (C, S, R) = ({told}), but the schedule is {_point(schedule, used)}")


def least_ratio(schedule: Schedule, topology: Topology) -> Fraction | None:
    """No schedule of as many steps has R / C below this, by its certificate, which is not checked again here.

    Where the certificate is about halves: no allgather of half as many steps. None where there is no certificate.
    """
    certificate = certificate_of(schedule)
    if certificate is None:
        return None
    instance = subject(topology, schedule.collective, certificate["about"])
    collective = instance.collective if certificate["about"] == COMPOSED else schedule.collective
    return worth(instance, StepDual.of_json(certificate["least"])).rounds_per_part / collective.input_weight


_ABOUT = {
    TURNED: "run backwards, with all links turned, it is: ",
    COMPOSED: "of its halves (an allreduce made otherwise may be better): ",
}


def _in_words(checked: Checked, about: str) -> Checked:
    """What they are about stands before the first of them."""
    start = _ABOUT.get(about, "")

    def told(texts: tuple[str, ...]) -> tuple[str, ...]:
        return (start + texts[0], *texts[1:]) if texts else ()

    return Checked(told(checked.proved), told(checked.trusted))


def _claims_text(texts: tuple[str, ...], which: str) -> str:
    return "; ".join(text.removeprefix(f"(C, S, R) = {which} ") for text in texts)


def _which(schedule: Schedule, topology: Topology) -> str:
    return _point(schedule, rounds(schedule, topology))


def _point(schedule: Schedule, used: int) -> str:
    return f"({schedule.chunks_per_rank}, {schedule.steps}, {used})"
