"""Plans: make one, state its figures, check all that it claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.bounds.memory import reached_json
from antiphon.core.collective import Collective
from antiphon.core.interpret import order_of_combining
from antiphon.core.loads import claims, throughput, timeline
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request, silent
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import unjoined
from antiphon.core.verify import Fault, verify
from antiphon.cost import prepare
from antiphon.errors import AntiphonError, Infeasible, Invalid, NotFound, TimedOut, Unsupported, quote, unknown
from antiphon.isolate import GRACE, Lost, Say, Stopped, Terms, stream_job
from antiphon.registry import call, find, refuse_unless_able
from antiphon.select.libraries import CLASSICS
from antiphon.select.orders import SEVERAL_ORDERS, SeveralOrders, order_claimed
from antiphon.select.proofs import certified, label_of, prove, rate_of
from antiphon.select.provenance import is_same
from antiphon.select.uses import uses_of
from antiphon.select.wish import budget_of, collective, machine_of
from antiphon.units import parse_size

# Who is asked, and with which options, for one order of combining where no planner is named; relay goes everywhere.
USUAL = ("ring", "relay")  # where no planner is named, the first that plans such a collective
UNNAMED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((name, {}) for name in CLASSICS),
    ("relay", {"by": "tree", "trees": 1}),
)


def _gap(value: Fraction, least: Fraction) -> Fraction | None:
    """How many times the least; None where nothing is needed at all, and yet something is done."""
    return value / least if least else (None if value else Fraction(1))


def proof_of(bandwidth_gap: Fraction | None, latency_gap: Fraction | None) -> str | None:
    """Which bounds the schedule meets: "latency", "bandwidth", "both" or None (SCCL, Tables 4 and 5)."""
    met = (latency_gap == 1, bandwidth_gap == 1)
    return {(True, True): "both", (True, False): "latency", (False, True): "bandwidth"}.get(met)


def gaps(figures: Mapping[str, Any], seconds_per_byte: Fraction, limits: Bound) -> dict[str, Any]:
    """How far a verified schedule is from the bounds: bandwidth_gap, latency_gap, proof; and, where switches may help,
    bandwidth_gap_without_switches: from the bound of schedules that they do not help (less than 1 where they do)."""
    least = 1 / limits.bytes_per_second if limits.bytes_per_second else Fraction(0)
    bandwidth_gap = _gap(seconds_per_byte, least)
    alone = limits.without_switches if limits.unaided is not None else None
    latency_gap = _gap(Fraction(figures["steps"]), Fraction(limits.latency_steps))
    if any(gap is not None and gap < 1 for gap in (bandwidth_gap, latency_gap)):
        raise RuntimeError(f"a verified schedule beats its bound: {bandwidth_gap}, {latency_gap}")
    return {
        "bandwidth_gap": None if bandwidth_gap is None else float(bandwidth_gap),
        "latency_gap": None if latency_gap is None else float(latency_gap),
        "proof": proof_of(bandwidth_gap, latency_gap),
        **({"bandwidth_gap_without_switches": float(seconds_per_byte * alone)} if alone else {}),
    }


def measure(schedule: Schedule, topology: Topology, limits: Bound | None = None) -> dict[str, Any]:
    """Verify a schedule and state its figures beside the bounds: what a plan claims. `limits`: if known already."""
    verify(schedule, topology).or_raise()
    figures = dict(claims(schedule, topology))
    limits = limits or bound(topology, schedule.collective)
    figures |= gaps(figures, timeline(schedule, topology).total, limits)
    if uses := uses_of(schedule):
        figures["uses"] = list(uses)
    if rate_of(schedule) is not None:
        rate = throughput(schedule, topology)
        figures["rate"] = None if rate is None else str(rate / topology.unit)
    return figures


def plan(  # noqa: PLR0913
    wanted: Collective | str,
    topology: Topology | str,
    *,
    planner: str = "",
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    nbytes: int | None = None,
    budget: float | str | None = None,
    effort: float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    model: str | None = None,
    deterministic: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Plan:
    """Let a planner plan (ring, or relay for a custom collective, unless another is named). Every schedule it yields is
    verified; of several the best is kept: for `nbytes` the fastest by the model (alpha-beta, unless another is named),
    else that of least bandwidth gap, then latency gap.

    `deterministic`: only schedules that combine every element in one and the same order, as `tune` means it;
    SeveralOrders where the planner has none. With no planner named it is then the best of the classics that can, and of
    relay over one tree.
    `tell` hears what a planner that searches is doing; with it, Ctrl-C ends the search and keeps the best so far. What
    ended it the plan then claims as `stopped`: the `effort` that it counts, the same everywhere, or the `budget`: CPU
    seconds for planning, verifying, the bound and the model, in a process forked for it, which is then stopped;
    TimedOut where that has no plan yet."""
    if model is not None and nbytes is None:
        raise Invalid(f"model {model}: chooses the best for a size; give nbytes, too")
    task = _read_task(
        wanted, topology, planner=planner, root=root, ranks=ranks, nbytes=nbytes, budget=budget, effort=effort,
        seed=seed, options=options, deterministic=deterministic, tell=tell,
        model=None if nbytes is None else model or "alpha-beta",
    )  # fmt: skip
    best: tuple[_Rank, Plan] | None = None
    try:
        with closing(_rank_plans(task)) as ranked_plans:
            for rank, candidate in ranked_plans:
                if best is None or rank < best[0]:
                    best = (rank, candidate)
    except KeyboardInterrupt:
        if best is None or tell is None:
            raise
        tell("no more is tried: interrupted; the best so far is kept")
        return _stopped(best[1], "interrupted")
    except TimedOut as error:
        if best is None:
            raise
        return _stopped(best[1], str(error))
    assert best is not None
    return best[1]


def _stopped(made: Plan, why: str) -> Plan:
    """The best until then, which claims why nothing more was tried."""
    entry = made.entries[0]
    return replace(made, entries=(replace(entry, claims={**entry.claims, "stopped": why}),))


def _gaps_of(made: Plan) -> tuple[float, ...]:
    told = [made.entries[0].claims[key] for key in ("bandwidth_gap", "latency_gap")]
    return tuple(math.inf if gap is None else gap for gap in told)


def _seconds_of(made: Plan, nbytes: int, model: str) -> tuple[float, ...]:
    price = prepare(model, made.entries[0].schedule, made.topology)
    return (float(price(nbytes).seconds), *_gaps_of(made))


def every_plan(  # noqa: PLR0913
    wanted: Collective | str,
    topology: Topology | str,
    *,
    planner: str = "",
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    nbytes: int | None = None,
    budget: float | str | None = None,
    effort: float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    deterministic: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Plan]:
    """All that a planner yields, as it is found: every schedule verified, each as a plan of its own; at least one.
    `planner` and `deterministic` as for `plan`: then all that combine in one order.

    `tell` hears what a planner that searches is doing. After what was found EffortSpent where its `effort`
    ends it, TimedOut where the `budget`, CPU seconds, does."""
    task = _read_task(
        wanted, topology, planner=planner, root=root, ranks=ranks, nbytes=nbytes, budget=budget, effort=effort,
        seed=seed, options=options, deterministic=deterministic, tell=tell, model=None,
    )  # fmt: skip
    with closing(_rank_plans(task)) as ranked_plans:
        for _, candidate in ranked_plans:
            yield candidate


# ---- one planner's work, here or in a process with a budget ----


_Rank = tuple[float, ...]  # of several plans that with the least is kept


@dataclass(frozen=True)
class _PlanTask:
    """A request, who plans it ("": each of UNNAMED), and the model by which plans for its size are ranked."""

    request: Request
    planner: str
    options: Mapping[str, Any]
    deterministic: bool
    model: str | None  # None: ranked by their gaps


class _Stage(str):
    """What the process with the budget does now, in words."""

    __slots__ = ()


PLANNING, VERIFYING, BOUNDING = _Stage("planning"), _Stage("verifying a schedule"), _Stage("computing the bound")
RANKING = _Stage("predicting how long a plan takes")


def _read_task(  # noqa: PLR0913
    wanted: Collective | str, topology: Topology | str, *, planner: str, root: int | None, ranks: Sequence[int] | None,
    nbytes: int | None, budget: float | str | None, options: Mapping[str, Any] | None, deterministic: bool,
    tell: Callable[[str], None] | None, model: str | None, **how: Any,
) -> _PlanTask:  # fmt: skip
    topology = machine_of(topology)
    target = wanted if isinstance(wanted, Collective) else collective(wanted, topology, root=root, ranks=ranks)
    size = None if nbytes is None else parse_size(nbytes, "nbytes")
    seconds = None if budget is None else budget_of(budget)
    request = Request(topology, target, nbytes=size, budget=seconds, tell=tell or silent, **how)
    if deterministic and not planner:
        if options:
            raise Invalid("options are for a planner; name it, too")
        return _PlanTask(request, "", {}, deterministic, model)
    return _PlanTask(request, planner or _usual(target), options or {}, deterministic, model)


def _rank_plans(task: _PlanTask, enter: Callable[[str], None] = silent) -> Generator[tuple[_Rank, Plan], None, None]:
    """The verified plans of a task with their ranks, as they are found. `enter` hears every stage that begins."""
    if task.request.budget is not None and enter is silent:
        yield from _rank_within_budget(task)
        return
    if task.planner:
        plans = _of_planner(task.planner, task.request, task.options, task.deterministic, enter=enter)
    else:
        plans = _of_any(task.request, enter)
    for candidate in plans:
        if task.model is None or task.request.nbytes is None:
            yield _gaps_of(candidate), candidate
        else:
            enter(RANKING)
            yield _seconds_of(candidate, task.request.nbytes, task.model), candidate


def _rank_within_budget(task: _PlanTask) -> Generator[tuple[_Rank, Plan], None, None]:
    """The same from a process that is stopped at the end of the budget, whatever it is doing; then TimedOut."""
    request, stage, any_plan = task.request, PLANNING, False
    who = f"planner {task.planner}" if task.planner else "deterministic planners"
    terms = Terms[_PlanTask](_work_apart, seconds=lambda task: task.request.budget, grace=GRACE)
    try:
        with closing(stream_job(replace(task, request=replace(request, tell=silent)), terms)) as messages:
            for message in messages:
                if isinstance(message, _Stage):
                    stage = message
                elif isinstance(message, str):
                    request.tell(message)
                else:
                    any_plan = True
                    yield message
    except Stopped as stop:
        if any_plan:
            raise TimedOut(f"{who} was {stop}, while {stage}; give it more with --budget: it may find better") from None
        raise TimedOut(
            f"{who} was {stop}, while {stage}: no plan of {request.collective.kind} on {request.topology.name} until "
            "then; give it more with --budget, or name another planner"
        ) from None
    except Lost as error:
        raise NotFound(f"{who} failed: {error}") from None


def _work_apart(task: _PlanTask, say: Say) -> None:
    for ranked_plan in _rank_plans(replace(task, request=replace(task.request, tell=say)), enter=say):
        say(ranked_plan)


def _usual(target: Collective) -> str:
    return next(name for name in USUAL if target.kind in find("planner", name).can["collectives"])


def _of_planner(
    planner: str, request: Request, options: Mapping[str, Any], deterministic: bool, limits: Bound | None = None,
    enter: Callable[[str], None] = silent,
) -> Iterator[Plan]:  # fmt: skip
    """`limits`: if known already."""
    topology, target, entry = request.topology, request.collective, find("planner", planner)
    refuse_unless_able(planner, entry, target)
    known = entry.can["options"]
    for key in options:
        if key not in known:
            raise unknown(f"option of planner {planner}", key, known)
    made = found = False
    enter(PLANNING)
    for schedule in call("planner", planner, entry.load(), options, request):
        made = True
        if limits is None:
            enter(BOUNDING)
            limits = bound(topology, target)
        enter(VERIFYING)
        figures = measure(schedule, topology, limits)
        order = order_claimed(schedule) if deterministic else {}
        if order is None:
            continue
        if certified(schedule, topology) is not None:
            figures["optimality"] = label_of(schedule)
        found = True
        yield Plan(topology, target, (Entry(0, None, schedule, {"planner": planner, **figures, **order}),))
        enter(PLANNING)
    if not made:
        raise NotFound(f"planner {planner} found no schedule for {target.kind} on {topology.name}")
    if not found:
        raise SeveralOrders(f"planner {planner}: {SEVERAL_ORDERS}; name no planner, and the best that can is taken")


def _of_any(request: Request, enter: Callable[[str], None] = silent) -> Iterator[Plan]:
    """All that combine in one order, of those asked where no planner is named; who cannot plan this is passed over."""
    enter(BOUNDING)
    limits = bound(request.topology, request.collective)
    found = several = False
    refused: AntiphonError | None = None
    for name, options in UNNAMED:
        try:
            for made in _of_planner(name, request, options, deterministic=True, limits=limits, enter=enter):
                found = True
                yield made
        except SeveralOrders:
            several = True
        except (Infeasible, Invalid, NotFound, Unsupported) as error:
            refused = refused or error
    if not found and not several and refused is not None:
        raise refused
    if not found:
        raise SeveralOrders(
            f"none of {', '.join(name for name, _ in UNNAMED)} has a schedule for "
            f"{request.collective.kind} on {request.topology.name} that combines all data in one order; "
            "antiphon tune --deterministic asks all planners"
        )


def figures_of(plan: Plan) -> dict[str, Any]:
    """What `antiphon plan --json` says: the claims of the entry for the largest sizes, with what it is a plan for."""
    about = {"collective": plan.collective.kind, "topology": plan.topology.name}
    last = plan.entries[-1]
    found = last.schedule.provenance.get("found")
    told = {"found": dict(found)} if isinstance(found, Mapping) and found else {}
    claims = {"planner": None, **about, "assumes": [], "uses": [], "stopped": None, **last.claims}
    alone = _alone(plan, claims)
    return {**claims, **alone, **reached_json(last.schedule, plan.topology), **told, "verified": True}


def _alone(plan: Plan, claims: Mapping[str, Any]) -> dict[str, float]:
    """Of a plan that lets switches help, how far from the bound it is where a runtime cannot: with every row alone."""
    schedule, gap = plan.entries[-1].schedule, claims.get("bandwidth_gap")
    if not claims["uses"] or gap is None:
        return {}
    slower = timeline(unjoined(schedule), plan.topology).total / timeline(schedule, plan.topology).total
    return {"bandwidth_gap_alone": gap * float(slower)}


def check(
    plan: Plan, topology: Topology, *, proof: bool = False, claims: bool = True, op: str | None = None,
    dtype: str | None = None,
) -> Fault | None:  # fmt: skip
    """Verify every schedule of a plan with all it claims. `proof`: recheck the bounds from their witnesses, and the
    certificates of its schedules, too. `op`, `dtype`: whether switches that combine can do so with these."""
    limits: Bound | None = None
    for entry in plan.entries:
        report = verify(entry.schedule, topology, entry.claims if claims else None, op=op, dtype=dtype)
        if report.fault is not None:
            return report.fault
        limits = limits or (bound(topology, plan.collective) if claims or proof else None)
        fault = _claim_fault(entry, topology, limits) if claims and limits is not None else None
        if fault is not None:
            return fault
    return prove(plan, topology, limits, claims=claims).fault if proof else None


def _claim_fault(entry: Entry, topology: Topology, limits: Bound) -> Fault | None:
    """The first claim that is not what the schedule is. Claims that are no FIGURES are notes, which nothing checks."""
    schedule, claims = entry.schedule, entry.claims
    figures: dict[str, Any] = {
        "assumes": [], "uses": [], "bandwidth_gap_without_switches": None, **measure(schedule, topology, limits),
    }  # fmt: skip
    if "rate" in claims:
        rate = throughput(schedule, topology)
        figures["rate"] = None if rate is None else str(rate / topology.unit)
    for key, value in figures.items():
        if key in claims and not is_same(claims[key], value):
            return Fault("claim", f"the plan claims {key} = {quote(claims[key])}, but it is {quote(value)}")
    if "order" in claims and claims["order"] != order_of_combining(schedule):
        return Fault("claim", "the plan claims an order in which every element is combined, but that is not so")
    return None
