"""One candidate: a planner with its options. It plans, every schedule is verified, and only then priced."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.loads import claims, timeline
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, TimedOut
from antiphon.registry import Entry, call

OK, REFUSED, FAILED, TIMED_OUT = "ok", "refused", "failed", "timed out"


@dataclass(frozen=True, eq=False)
class Context:
    """What all candidates share; a worker process gets it once."""

    topology: Topology
    collectives: Mapping[str, Collective]
    model_name: str
    model: Entry
    profile: Any
    sizes: tuple[int, ...]
    budget: float
    seed: int


@dataclass(frozen=True, eq=False)
class Task:
    """Plan and price a collective by a planner with these options; with no entry: find the collective's bounds."""

    index: int
    kind: str
    planner: str = ""
    entry: Entry | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Found:
    """A verified schedule, priced: per size its seconds, its bottleneck and its terms."""

    index: int
    variant: int  # how many schedules this planner yielded before
    seconds: tuple[float, ...]
    bottlenecks: tuple[str, ...]
    terms: tuple[Mapping[str, float], ...]
    figures: Mapping[str, Any]
    seconds_per_byte: Fraction
    made_with: Mapping[str, Any]  # the options that the planner says it used
    schedule: Schedule


@dataclass(frozen=True, eq=False)
class Limits:
    """The bounds of a collective."""

    index: int
    bound: Bound


@dataclass(frozen=True)
class Done:
    """The end of a task, and how it ended."""

    index: int
    status: str
    reason: str = ""


Message = Found | Limits | Done


class _EndedError(Exception):
    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def work(context: Context, task: Task) -> Iterator[Message]:
    """Do a task: what it finds as it finds it, then Done. Nothing that a planner or a model raises escapes."""
    try:
        if task.entry is None:
            yield Limits(task.index, bound(context.topology, context.collectives[task.kind]))
        else:
            for variant, schedule in enumerate(_schedules(context, task)):
                yield _price(context, task, variant, schedule)
    except _EndedError as end:
        yield Done(task.index, end.status, str(end))
    except Exception as error:  # of the verifier or the model: the schedule is wrong, or cannot be priced
        yield Done(task.index, FAILED, _told(error))
    else:
        yield Done(task.index, OK)


def _schedules(context: Context, task: Task) -> Iterator[Schedule]:
    """What the planner yields. Everything it raises becomes the end of the candidate."""
    assert task.entry is not None
    given = {"nbytes": None, "profile": context.profile, "budget": context.budget, "seed": context.seed}
    found = 0
    try:
        made = call(
            "planner", task.planner, task.entry.load(), {**given, **task.options},
            context.topology, context.collectives[task.kind],
        )  # fmt: skip
        for found, schedule in enumerate(made, start=1):  # noqa: B007
            yield schedule
    except TimedOut as error:
        if isinstance(error.best, Schedule):
            yield error.best
        raise _EndedError(TIMED_OUT, str(error)) from None
    except AntiphonError as error:
        raise _EndedError(REFUSED, str(error)) from None
    except Exception as error:
        raise _EndedError(FAILED, _told(error)) from None
    if not found:
        raise _EndedError(REFUSED, f"planner {task.planner} found no schedule")


def _told(error: Exception) -> str:
    name = "" if isinstance(error, AntiphonError) else f"{type(error).__name__}: "
    return " ".join(f"{name}{error}".split())[:500]


def _price(context: Context, task: Task, variant: int, schedule: Schedule) -> Found:
    """Verify, then price at every size."""
    topology = context.topology
    verify(schedule, topology).or_raise()
    if schedule.collective != context.collectives[task.kind]:
        raise ValueError("the schedule is for another collective than the one asked for")
    price = context.model.load()(schedule, topology, profile=context.profile)
    predicted = [price(nbytes) for nbytes in context.sizes]
    seconds = tuple(float(p.seconds) for p in predicted)
    if not all(math.isfinite(s) and s >= 0 for s in seconds):
        raise ValueError(f"model {context.model_name} predicts a time that is no finite number of seconds")
    return Found(
        task.index, variant, seconds,
        tuple(str(p.bottleneck) for p in predicted),
        tuple({str(k): float(v) for k, v in p.terms.items()} for p in predicted),
        dict(claims(schedule, topology)), timeline(schedule, topology).total, _made_with(schedule), schedule,
    )  # fmt: skip


def _made_with(schedule: Schedule) -> dict[str, Any]:
    """The options in the provenance, as far as they are plain."""
    told = schedule.provenance.get("options")
    return {k: v for k, v in told.items() if isinstance(v, str | int | float)} if isinstance(told, Mapping) else {}
