"""One candidate: a planner with its options. It plans, every schedule is verified, and only then priced."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.bounds.latency_seconds import Quickest, quickest
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.interpret import order_of_combining
from antiphon.core.loads import claims, timeline
from antiphon.core.plan import check_plain
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import Cuts, unjoined
from antiphon.core.verify import verify
from antiphon.cost import Predictor, Profile, as_cut
from antiphon.cost.basis import basis_of
from antiphon.errors import AntiphonError, EffortSpent, TimedOut
from antiphon.isolate import in_words
from antiphon.registry import Entry, call, find
from antiphon.select.mark import marks_of
from antiphon.select.uses import CANNOT, uses_of

OK, REFUSED, FAILED, TIMED_OUT = "ok", "refused", "failed", "timed out"
BUDGET, MEMORY, CRASH = "budget", "memory", "crash"  # what ended a candidate before it was done
OUT_OF_MEMORY = "it ran out of memory"
LONGEST_REASON = 500


@dataclass(frozen=True, eq=False)
class Context:
    """What all candidates share; a worker process gets it once.

    `model_name`: as it was asked for, with the options behind its name, which `model_options` holds.
    `known` holds what was found of schedules before, by collective and mark: a schedule that comes again (another
    planner's, or by options that say the default) is not verified and priced again. `last`: the rows that were verified
    last, and their mark: in other pieces they are as right, and what is known of their loads holds.
    """

    topology: Topology
    collectives: Mapping[str, Collective]
    model_name: str
    model: Entry
    profile: Profile | None
    sizes: tuple[int, ...]
    budget: float
    seed: int
    model_options: Mapping[str, Any] = field(default_factory=dict)
    known: dict[tuple[str, bytes], Priced] = field(default_factory=dict)
    last: list[tuple[bytes, Schedule]] = field(default_factory=list)
    deterministic: bool = False  # find out in which order each schedule combines
    effort: float | None = None
    cuts: Cuts | None = None  # how the runtime that it is for sends what has no pieces
    in_switches: bool = True  # whether that runtime can let switches multicast and combine

    def seen(self, topology: Topology) -> Topology:
        """The machine with what the profile says of its links."""
        return topology if self.profile is None else self.profile.on(topology)


@dataclass(frozen=True, eq=False)
class Task:
    """Plan and price a collective by a planner with these options; with no entry: find the collective's bounds."""

    index: int
    kind: str
    planner: str = ""
    entry: Entry | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Priced:
    """A verified schedule, priced: per size its seconds, its bottleneck, its terms and what these rest on."""

    index: int
    variant: int  # how many schedules this planner yielded before
    mark: bytes  # equal for equal schedules
    seconds: tuple[float, ...]
    bottlenecks: tuple[str, ...]
    terms: tuple[Mapping[str, float], ...]
    rests_on: tuple[str, ...]
    figures: Mapping[str, Any]
    seconds_per_byte: Fraction
    made_with: Mapping[str, Any]  # the options that the planner says it used
    schedule: Schedule
    alone: tuple[float, ...] = ()  # seconds with every row alone, where it lets switches help and the model prices that
    order: str | None = None  # by which every element is combined, where that was to be found out and is one


@dataclass(frozen=True, eq=False)
class Limits:
    """The bounds of a collective: on the machine, which plans claim, and on it with the profile, which times meet."""

    index: int
    bound: Bound
    seen: Bound
    latency: Quickest | None


@dataclass(frozen=True)
class Done:
    """The end of a task, and how it ended. `by`: BUDGET, MEMORY or CRASH (of its process), where one of these ended it
    before it was done; what it had found until then counts."""

    index: int
    status: str
    reason: str = ""
    by: str = ""


@dataclass(frozen=True)
class AtWork:
    """The tasks that other processes work on, by index, with the CPU seconds that each has used so far."""

    tasks: tuple[tuple[int, float], ...]


Message = Priced | Limits | Done


class _EndedError(Exception):
    def __init__(self, status: str, reason: str, by: str = "") -> None:
        super().__init__(reason)
        self.status, self.by = status, by


class _UnpricedError(Exception):
    """The model does not price this schedule on this machine."""


def work(context: Context, task: Task) -> Iterator[Message]:
    """Do a task: what it finds as it finds it, then Done. Nothing that a planner or a model raises escapes."""
    try:
        if task.entry is None:
            yield _limits(context, task)
        else:
            yield from _priced_schedules(context, task)
    except _EndedError as end:
        yield Done(task.index, end.status, one_line(str(end)), end.by)
    except MemoryError:
        yield Done(task.index, FAILED, OUT_OF_MEMORY, MEMORY)
    except (Exception, SystemExit) as error:  # of the verifier or the model: the schedule is wrong
        yield Done(task.index, FAILED, error_text(error))
    else:
        yield Done(task.index, OK)


APART, LEAST_PLANNED = 16, 2**18  # of many sizes those that some planners plan for: so far apart, and no smaller
WARMING = ("relay", "direct", "recursive-doubling")  # planners that are quick on a few ranks


def warm(context: Context) -> None:
    """Price something small first: what a model loads or compiles at its first calls is no candidate's fault.

    A few ranks that are near each other and a few that are far. Nothing that it raises matters here; it comes again
    where it is reported."""
    members = next(iter(context.collectives.values())).members
    some = tuple(sorted({*members[:4], *members[-4:]}))
    for name in WARMING:
        with suppress(Exception):
            target = Collective("allreduce", context.topology.ranks, some)
            made = call(
                "planner", name, find("planner", name).load(), {}, Request(context.topology, target, budget=1.0)
            )
            price = _prepared(context, next(iter(made)))
            for nbytes in (context.sizes[0], context.sizes[-1]):
                price(nbytes)


def _priced_schedules(context: Context, task: Task) -> Iterator[Priced]:
    """What the planner yields and the model prices; where it refuses some, the end says so."""
    unpriced = ""
    for variant, schedule in enumerate(_schedules(context, task)):
        try:
            yield _price(context, task, variant, schedule)
        except _UnpricedError as error:
            unpriced = unpriced or str(error)
    if unpriced:
        raise _EndedError(REFUSED, unpriced)


def _limits(context: Context, task: Task) -> Limits:
    target, seen = context.collectives[task.kind], context.seen(context.topology)
    found = bound(context.topology, target)
    by_profile = found if seen == context.topology else bound(seen, target)
    return Limits(task.index, found, by_profile, quickest(seen, needs_of(target), by_profile.latency_witness))


def _schedules(context: Context, task: Task) -> Iterator[Schedule]:
    """What the planner yields. Everything it raises becomes the end of the candidate."""
    assert task.entry is not None
    requests, refused, found = _requests(context, task), [], 0
    try:
        for request in requests:
            try:
                for schedule in call("planner", task.planner, task.entry.load(), task.options, request):
                    found += 1
                    yield schedule
            except EffortSpent:  # the same on every machine
                pass
            except TimedOut:
                raise
            except AntiphonError as error:
                refused.append(error)
        if len(refused) == len(requests):
            raise refused[0]
    except TimedOut as error:
        if isinstance(error.best, Schedule):
            yield error.best
        raise _EndedError(TIMED_OUT, str(error), BUDGET) from None
    except AntiphonError as error:
        raise _EndedError(REFUSED, str(error)) from None
    except MemoryError:
        raise _EndedError(FAILED, OUT_OF_MEMORY, MEMORY) from None
    except Exception as error:
        raise _EndedError(FAILED, error_text(error)) from None
    if not found:
        raise _EndedError(REFUSED, f"planner {task.planner} found no schedule")


def _requests(context: Context, task: Task) -> list[Request]:
    """For one size what is planned for it and what is for any: a planner chooses by a price of its own, and another
    model may find what it did not choose faster. The planners here do both at once; others are asked twice. For many
    sizes those that plan each size in another way (can["sizes"]) are asked for some of them, too."""
    assert task.entry is not None
    wanted: tuple[int | None, ...] = (*context.sizes, None)
    if len(context.sizes) > 1:  # what serves all of them comes first
        wanted = (None, *_apart(context.sizes)) if task.entry.can.get("sizes") else (None,)
    first = Request(
        context.topology, context.collectives[task.kind], profile=context.profile, budget=context.budget,
        seed=context.seed, effort=context.effort, nbytes=wanted[0], also=wanted[1:],
    )  # fmt: skip
    return [first] if task.entry.own else [replace(first, nbytes=nbytes, also=()) for nbytes in wanted]


def _apart(sizes: Sequence[int]) -> tuple[int, ...]:
    """The largest of these sizes, the largest that is 16 times smaller, and so on, down to what latency rules."""
    found: list[int] = []
    for size in sorted(sizes, reverse=True):
        if size >= LEAST_PLANNED and (not found or size * APART <= found[-1]):
            found.append(size)
    return tuple(found)


def one_line(text: str) -> str:
    """As it may stand on a terminal and on a page: one line, no control characters, no addresses, not too long."""
    plain = "".join(c for c in " ".join(text.split()) if c.isprintable())
    plain = re.sub(r" at 0x[0-9a-f]+", "", plain)  # the same words every time
    return plain if len(plain) <= LONGEST_REASON else plain[: LONGEST_REASON - 3] + "..."


def error_text(error: BaseException) -> str:
    return one_line(in_words(error))


def _price(context: Context, task: Task, variant: int, schedule: Schedule) -> Priced:
    """Verify, then price at every size; what is known already is not done again."""
    topology = context.topology
    if schedule.collective != context.collectives[task.kind]:
        verify(schedule, topology).or_raise()
        raise ValueError("the schedule is for another collective than the one asked for")
    check_plain(schedule.provenance, "provenance")
    own: dict[str, Any] = {"index": task.index, "variant": variant, "made_with": _made_with(schedule)}
    rows, mark = marks_of(schedule)
    if (task.kind, mark) in context.known:
        return replace(context.known[task.kind, mark], schedule=schedule, **own)
    schedule = _verified(context, rows, schedule)
    uses = uses_of(schedule)
    if uses and not context.in_switches:
        raise _UnpricedError(f"planner {task.planner}: {CANNOT}")
    price = _prepared(context, schedule)
    predicted = [price(nbytes) for nbytes in context.sizes]
    seconds = tuple(float(p.seconds) for p in predicted)
    if not all(math.isfinite(s) and s >= 0 for s in seconds):
        raise ValueError(f"model {context.model_name} predicts a time that is no finite number of seconds")
    found = Priced(
        mark=mark, seconds=seconds,
        bottlenecks=tuple(one_line(str(p.bottleneck)) for p in predicted),
        terms=tuple({one_line(str(k)): float(v) for k, v in p.terms.items()} for p in predicted),
        rests_on=tuple(one_line(basis_of(p, context.profile)) for p in predicted),
        figures={**claims(schedule, topology), **({"uses": list(uses)} if uses else {})},
        alone=_alone(context, schedule) if uses else (), seconds_per_byte=timeline(schedule, topology).total,
        schedule=schedule, order=order_of_combining(schedule) if context.deterministic else None, **own,
    )  # fmt: skip
    context.known[task.kind, mark] = replace(found, schedule=None)  # type: ignore[arg-type]
    return found


def _verified(context: Context, rows: bytes, schedule: Schedule) -> Schedule:
    """A schedule that is right. Its rows are those of the one before where these are the same in other pieces, in which
    each transfer of a chunk is still one after the other; only switches that join transfers may mind."""
    for known, before in context.last:
        if known == rows and schedule.joint is None:
            return replace(before, pieces=schedule.pieces, provenance=schedule.provenance)
    context.last.clear()
    verify(schedule, context.topology).or_raise()
    context.last.append((rows, schedule))
    return schedule


def _alone(context: Context, schedule: Schedule) -> tuple[float, ...]:
    """What a runtime takes for it that lets no switches help."""
    try:
        price = _prepared(context, unjoined(schedule))
        return tuple(float(price(nbytes).seconds) for nbytes in context.sizes)
    except _UnpricedError:
        return ()


def _prepared(context: Context, schedule: Schedule) -> Predictor:
    name = context.model_name.partition(":")[0]
    given = {"profile": context.profile, **context.model_options}

    def make(sent: Schedule) -> Predictor:
        made: Predictor = call("model", name, context.model.load(), given, sent, context.topology)
        return made

    try:
        return as_cut(make, schedule, context.cuts)
    except AntiphonError as error:
        why = str(error).removeprefix(f"model {name}").lstrip(": ")
        raise _UnpricedError(f"model {name} cannot price this on {context.topology.name}: {why}") from None


def _made_with(schedule: Schedule) -> dict[str, Any]:
    """The options in the provenance, as far as they are plain."""
    given = schedule.provenance.get("options")
    plain = given.items() if isinstance(given, Mapping) else ()
    return {k: one_line(v) if isinstance(v, str) else v for k, v in plain if isinstance(v, str | int | float)}
