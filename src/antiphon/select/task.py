"""Try one candidate of `tune`, a planner with its options, in stages:

    plan_schedules    the planner yields schedules, for one size or several
    verify_schedule   each is verified, unless it has the rows of the schedule before it
    price_schedule    the cost model predicts its seconds at every size
    find_bounds       the lower bounds of a collective, once for all its candidates: a task of its own

`run_task` runs them and yields every result as a message (`Priced`, `LowerBounds`, and last `Done`), so that results
survive if the task is stopped later. It may run in this process or in a worker (`pool`).

No exception of a planner ends the tuning. It sets the status of the candidate: "refused" for an AntiphonError (this
planner does not support the request), "timed out" for a spent budget, "failed" for anything else.

Planners often yield equal schedules: pieces 1, 2, 4, ... of one schedule, or the same schedule for two options. A
`ScheduleCache` keeps the evaluations of schedules by fingerprint, and the rows of the schedule verified last.

Example: ring with pieces=4 after ring with pieces=1. Its rows are the same, so it need not be verified again, but its
time differs: it is priced at all sizes, and its evaluation is stored under the fingerprint of rows and pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.bounds.latency_seconds import Quickest, find_slowest_need
from antiphon.core.collective import Collective
from antiphon.core.interpret import order_of_combining
from antiphon.core.loads import claims, pieces_of, timeline
from antiphon.core.plan import check_plain
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import Cuts, unjoined
from antiphon.core.verify import verify
from antiphon.cost import Predictor, Profile, as_cut
from antiphon.cost.basis import basis_of
from antiphon.cost.bound_evaluator import BoundEvaluator, EvidenceByHelp
from antiphon.cost.model_bound import model_bound
from antiphon.cost.pieces import limit_pieces
from antiphon.cost.prediction import Simulator
from antiphon.errors import AntiphonError, EffortSpent, TimedOut
from antiphon.isolate import describe_error
from antiphon.registry import Entry, call, find
from antiphon.select.run_planner import run_planner
from antiphon.select.schedule_cache import (
    Evaluation,
    Prices,
    ScheduleCache,
    Times,
    add_pieces,
    digest_rows,
    verify_schedule,
)  # fmt: skip
from antiphon.select.uses import SWITCH_USE_UNSUPPORTED, uses_claim

OK, REFUSED, FAILED, TIMED_OUT, SKIPPED = "ok", "refused", "failed", "timed out", "skipped"
BUDGET, MEMORY, CRASH = "budget", "memory", "crash"  # causes that end a candidate early
OUT_OF_MEMORY = "it ran out of memory"
BEATEN = "others are as fast or faster at every size"
MAX_REASON = 500  # characters
# If many sizes are tuned, planners whose schedule depends on the size plan for some sizes only: the largest, and each
# that is at least SIZE_STEP times smaller than the previous one, down to MIN_PLANNED_SIZE bytes. For smaller sizes
# latency dominates, and one plan serves all. A plan that sets send times (`can.timed`) suits fewer sizes: its planner
# plans for sizes TIMED_SIZE_STEP apart, without a minimum.
SIZE_STEP, TIMED_SIZE_STEP = 16, 4
MIN_PLANNED_SIZE = 2**18
WARM_UP_PLANNERS = ("relay", "direct", "recursive-doubling")  # quick on a few ranks


@dataclass(frozen=True, eq=False)
class Context:
    """What all candidates share; a worker process gets it once."""

    topology: Topology
    collectives: Mapping[str, Collective]  # by kind
    model_name: str  # of the cost model, as the user wrote it, with its options
    model: Entry
    profile: Profile | None  # None: the nominal figures of the topology count
    sizes: tuple[int, ...]  # in bytes, ascending
    budget: float  # seconds of CPU time per candidate
    seed: int
    model_options: Mapping[str, Any] = field(default_factory=dict)  # those in `model_name`
    deterministic: bool = False  # determine the order in which each schedule combines values
    effort: float | None = None  # limit on the work of planners that search; None: their own default
    cuts: Cuts | None = None  # how the target runtime splits messages of schedules without pieces; None: not at all
    in_switches: bool = True  # whether the target runtime lets switches multicast and reduce

    def with_profile(self, topology: Topology) -> Topology:
        """Return the machine with the bandwidths and latencies of the profile, if there is one."""
        return topology if self.profile is None else self.profile.on(topology)


@dataclass(frozen=True, eq=False)
class Task:
    """Plan and price a collective by a planner with these options; without an entry: find the collective's bounds."""

    index: int  # position in the list of all tasks
    kind: str  # of collective
    planner: str = ""
    entry: Entry | None = None  # of the planner, in the table of planners
    options: Mapping[str, Any] = field(default_factory=dict)
    # Per group of planners (ledger.py) the least times by size of schedules that come earlier in the order of
    # candidates. A large schedule that is faster than none of these at any size is not priced; () prices all.
    rivals: tuple[Times, ...] = ()


@dataclass(frozen=True, eq=False)
class Priced:
    """A message: a verified and priced schedule."""

    index: int  # of the task
    variant: int  # number of schedules that this call of the planner yielded before
    planner_options: Mapping[str, Any]  # the options that the planner reports, with its own choices
    schedule: Schedule
    evaluation: Evaluation


@dataclass(frozen=True, eq=False)
class LowerBounds:
    """A message: the lower bounds of a collective."""

    index: int  # of the task
    bound: Bound  # on the machine with its nominal bandwidths; plans claim it
    by_profile: Bound  # on the machine with the bandwidths of the profile; predicted times are compared with it
    latency: Quickest | None  # bound on latency in seconds, if known
    times: Mapping[int, float] | None = None  # size -> least seconds under the cost model; None: unknown
    evidence: EvidenceByHelp = field(default_factory=dict)  # the witnesses of `times`; {} by a profile


@dataclass(frozen=True)
class Done:
    """A message: the end of a task. Results until then count, even if it ended early."""

    index: int  # of the task
    status: str
    reason: str = ""  # of a status other than OK
    by: str = ""  # BUDGET, MEMORY or CRASH (of its process) if one of these ended it early


@dataclass(frozen=True)
class AtWork:
    """The tasks now running in worker processes, by index, with the CPU seconds that each has used so far."""

    tasks: tuple[tuple[int, float], ...]


Message = Priced | LowerBounds | Done


class _EndedError(Exception):
    """Raised to end a task with this status."""

    def __init__(self, status: str, reason: str, by: str = "") -> None:
        super().__init__(reason)
        self.status, self.by = status, by


class _UnpricedError(Exception):
    """The model does not price this schedule on this machine."""


def run_task(context: Context, cache: ScheduleCache, task: Task) -> Iterator[Message]:
    """Run a task: yield each result at once, then Done. No error of a planner or a model is raised."""
    try:
        if task.entry is None:
            yield find_bounds(context, task)
        else:
            yield from _try_planner(context, cache, task)
    except _EndedError as end:
        yield Done(task.index, end.status, one_line(str(end)), end.by)
    except MemoryError:
        yield Done(task.index, FAILED, OUT_OF_MEMORY, MEMORY)
    except (Exception, SystemExit) as error:  # the verifier or the model fails: the schedule is wrong
        yield Done(task.index, FAILED, error_text(error))
    else:
        yield Done(task.index, OK)


def _try_planner(context: Context, cache: ScheduleCache, task: Task) -> Iterator[Priced]:
    """Yield the planner's schedules, verified and priced. Those that the model refuses are reported at the end."""
    refusal, rivals = "", task.rivals
    for variant, schedule in enumerate(plan_schedules(context, task)):
        _check_identity(context, task, schedule)
        # another planner or option may have yielded an equal schedule before
        rows = digest_rows(schedule)
        digest = add_pieces(rows, schedule.pieces)
        evaluation = cache.evaluations.get((task.kind, digest))
        simulated_key = _simulated_key(context, task.kind, rows, schedule)
        # a large schedule whose times are known, and no faster than its rivals: neither verify nor evaluate it
        if evaluation is None and simulated_key in cache.prices and cache.prices[simulated_key].is_dropped(rivals):
            continue
        verified = schedule
        if evaluation is None:
            verified = verify_schedule(cache, schedule, context.topology)
            try:
                if not context.in_switches and uses_claim(verified):
                    raise _UnpricedError(f"planner {task.planner}: {SWITCH_USE_UNSUPPORTED}")
                prices = cache.prices.get(simulated_key) or price_schedule(context, verified, rivals)
            except _UnpricedError as error:
                refusal = refusal or str(error)
                continue
            if prices is None:  # large, and no faster than its rivals
                continue
            if simulated_key is not None:
                cache.prices[simulated_key] = prices
            evaluation = evaluate(context, digest, verified, prices)
            cache.evaluations[task.kind, digest] = evaluation
        # from now on this schedule is a rival of the later ones of the same call, too
        rivals = tuple(tuple(map(min, times, evaluation.seconds)) for times in rivals)
        yield Priced(task.index, variant, _planner_options(schedule), verified, evaluation)
    if refusal:
        raise _EndedError(REFUSED, refusal)


# ---- stage 1: plan ----


def plan_schedules(context: Context, task: Task) -> Iterator[Schedule]:
    """Yield the planner's schedules. Anything that the planner raises becomes an `_EndedError` with a status."""
    assert task.entry is not None
    requests, refusals, any_schedule = _make_requests(context, task), [], False
    try:
        for request in requests:
            try:
                for schedule in run_planner(task.planner, task.entry, task.options, request):
                    any_schedule = True
                    yield schedule
            except EffortSpent:  # a normal end, the same on every computer
                pass
            except TimedOut:
                raise
            except AntiphonError as error:
                refusals.append(error)
        # a planner that refuses some sizes is still a candidate for the others
        if len(refusals) == len(requests):
            raise refusals[0]
    except TimedOut as error:
        # the best schedule until then is a candidate like any other
        if isinstance(error.best, Schedule):
            yield error.best
        raise _EndedError(TIMED_OUT, str(error), BUDGET) from None
    except AntiphonError as error:
        raise _EndedError(REFUSED, str(error)) from None
    except MemoryError:
        raise _EndedError(FAILED, OUT_OF_MEMORY, MEMORY) from None
    except Exception as error:
        raise _EndedError(FAILED, error_text(error)) from None
    if not any_schedule:
        raise _EndedError(REFUSED, f"planner {task.planner} found no schedule")


def _make_requests(context: Context, task: Task) -> list[Request]:
    """Return the requests to the planner: which sizes to plan for. Size None asks for a plan for any size.

    If one size is tuned: that size and None, since a planner chooses by estimates of its own, and the model may price
    the other plan lower. If many are tuned: None, and some of the sizes if the planner plans each size differently
    (`can.sizes`). Our own planners read all sizes from one request; planners of other packages get a request per size.
    """
    assert task.entry is not None
    sizes: tuple[int | None, ...] = (*context.sizes, None)
    if len(context.sizes) > 1:  # first the plan for any size
        smallest, step = (1, TIMED_SIZE_STEP) if task.entry.can.timed else (MIN_PLANNED_SIZE, SIZE_STEP)
        sizes = (None, *_spaced_sizes(context.sizes, smallest, step)) if task.entry.can.sizes else (None,)
    request = Request(
        context.topology, context.collectives[task.kind], profile=context.profile, budget=context.budget,
        seed=context.seed, effort=context.effort, nbytes=sizes[0], also=sizes[1:],  # also: further sizes
    )  # fmt: skip
    return [request] if task.entry.is_builtin else [replace(request, nbytes=nbytes, also=()) for nbytes in sizes]


def _spaced_sizes(sizes: Sequence[int], smallest: int, step: int) -> tuple[int, ...]:
    """Return the largest of these sizes, the largest that is `step` times smaller, and so on, down to `smallest`."""
    spaced: list[int] = []
    for size in sorted(sizes, reverse=True):
        if size >= smallest and (not spaced or size * step <= spaced[-1]):
            spaced.append(size)
    return tuple(spaced)


def _planner_options(schedule: Schedule) -> dict[str, Any]:
    """Return the options in the provenance that are plain values: those that the planner used."""
    options = schedule.provenance.get("options")
    items = options.items() if isinstance(options, Mapping) else ()
    return {k: one_line(v) if isinstance(v, str) else v for k, v in items if isinstance(v, str | int | float)}


# ---- stage 2: verify ----


def _check_identity(context: Context, task: Task, schedule: Schedule) -> None:
    """Raise an error if the schedule is for another collective, or its provenance cannot be written to a file."""
    if schedule.collective != context.collectives[task.kind]:
        verify(schedule, context.topology).or_raise()  # an error of the schedule itself says more
        raise ValueError("the schedule is for another collective than the one asked for")
    check_plain(schedule.provenance, "provenance")


# ---- stage 3: price ----


def _simulated_key(context: Context, kind: str, rows: bytes, schedule: Schedule) -> tuple[str, bytes] | None:
    """Return a key that is equal for schedules whose rows and pieces are the same to a simulator.

    None if the model is no simulator, if the runtime splits messages, or if switches multicast or reduce (such a
    schedule is verified for each number of pieces).
    `rows`: the digest of the schedule's rows.
    """
    if not context.model.can.limits_pieces or context.cuts is not None or schedule.joint is not None:
        return None
    limited, _ = limit_pieces(schedule)
    return kind, add_pieces(rows, pieces_of(limited))


def price_schedule(context: Context, schedule: Schedule, rivals: Sequence[Times] = ()) -> Prices | None:
    """Predict the seconds of a verified schedule at every size; None if it is large and no faster than `rivals`."""
    predict = _make_predictor(context, schedule)
    # simulating a large schedule takes long: first ask, by quick lower bounds, whether it can be faster anywhere
    is_large = False
    if isinstance(predict, Simulator) and predict.is_large:
        is_large = True
        # per rival and size: whether the schedule may take less than the rival's time there
        faster = (predict.takes_less(n, times[i]) for times in rivals for i, n in enumerate(context.sizes))
        if rivals and not any(faster):
            return None
    predictions = [predict(nbytes) for nbytes in context.sizes]
    seconds = tuple(float(p.seconds) for p in predictions)
    if not all(math.isfinite(s) and s >= 0 for s in seconds):
        raise ValueError(f"model {context.model_name} predicts a time that is no finite number of seconds")
    return Prices(
        seconds,
        bottlenecks=tuple(one_line(str(p.bottleneck)) for p in predictions),
        terms=tuple({one_line(str(k)): float(v) for k, v in p.terms.items()} for p in predictions),
        rests_on=tuple(one_line(basis_of(p, context.profile)) for p in predictions), is_large=is_large,
    )  # fmt: skip


def evaluate(context: Context, fingerprint: bytes, schedule: Schedule, prices: Prices) -> Evaluation:
    """Return the evaluation of a priced schedule, with its figures."""
    uses = uses_claim(schedule)
    return Evaluation(
        fingerprint, prices,
        figures={**claims(schedule, context.topology), **uses},
        seconds_per_byte=timeline(schedule, context.topology).total,
        unjoined_seconds=_price_unjoined(context, schedule) if uses else (),
        order=order_of_combining(schedule) if context.deterministic else None,
    )  # fmt: skip


def _make_predictor(context: Context, schedule: Schedule) -> Predictor:
    """Return the model prepared for a schedule, with messages split as the target runtime splits them."""
    name = context.model_name.partition(":")[0]
    options = {"profile": context.profile, **context.model_options}

    def prepare(sent: Schedule) -> Predictor:
        predictor: Predictor = call("model", name, context.model.load(), options, sent, context.topology)
        return predictor

    try:
        return as_cut(prepare, schedule, context.cuts)
    except AntiphonError as error:
        why = str(error).removeprefix(f"model {name}").lstrip(": ")
        raise _UnpricedError(f"model {name} cannot price this on {context.topology.name}: {why}") from None


def _price_unjoined(context: Context, schedule: Schedule) -> tuple[float, ...]:
    """Return seconds by size of the schedule without joints, so that switches only forward; () if the model does not
    price it.
    """
    try:
        predict = _make_predictor(context, unjoined(schedule))
        return tuple(float(predict(nbytes).seconds) for nbytes in context.sizes)
    except _UnpricedError:
        return ()


def warm_up(context: Context) -> None:
    """Price small schedules, so that the time to load and compile the model is not counted for the first candidate.

    The schedules are among the first and the last few ranks. An error here is not reported: the first candidate will
    raise it again.
    """
    members = next(iter(context.collectives.values())).members
    ends = tuple(sorted({*members[:4], *members[-4:]}))
    for name in WARM_UP_PLANNERS:
        with suppress(Exception):
            collective = Collective("allreduce", context.topology.ranks, ends)
            request = Request(context.topology, collective, budget=1.0)
            predict = _make_predictor(
                context, next(iter(call("planner", name, find("planner", name).load(), {}, request)))
            )
            for nbytes in (context.sizes[0], context.sizes[-1]):
                predict(nbytes)


# ---- the bounds of a collective ----


def find_bounds(context: Context, task: Task) -> LowerBounds:
    """Return the lower bounds of the task's collective."""
    collective, machine = context.collectives[task.kind], context.with_profile(context.topology)
    nominal = bound(context.topology, collective)
    by_profile = nominal if machine == context.topology else bound(machine, collective)
    proofs = BoundEvaluator(context.topology, collective, by_profile)
    lower_bound = model_bound(context.model_name.partition(":")[0], context.model_options, proofs, context.profile)
    times = None if lower_bound is None else {nbytes: lower_bound(nbytes) for nbytes in context.sizes}
    latency = find_slowest_need(machine, proofs.needs, by_profile.latency_witness)
    evidence = proofs.evidence if context.profile is None else {}
    return LowerBounds(task.index, nominal, by_profile, latency, times, evidence)


# ---- text ----


def one_line(text: str) -> str:
    """Return the text in one line of limited length, without control characters and memory addresses."""
    plain = "".join(c for c in " ".join(text.split()) if c.isprintable())
    plain = re.sub(r" at 0x[0-9a-f]+", "", plain)  # an address would differ from run to run
    return plain if len(plain) <= MAX_REASON else plain[: MAX_REASON - 3] + "..."


def error_text(error: BaseException) -> str:
    return one_line(describe_error(error))
