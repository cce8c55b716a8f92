"""Recorded tunings: what `tune` computed for catalogue machines, shipped with a release so that it answers at once.

A recording holds the last message (`Done`: how it ended) of every task of a planner and the figures of every candidate;
of the schedules only those that can win. To replay one, the bounds are computed anew, with their witnesses, and the
ledger (ledger.py: it collects the messages of all tasks and makes the result) receives the recorded messages instead of
those of the planners. So the result is made by the same code and is the same, only sooner:

    tune("allreduce", "dgx1v")    the usual options, and a recording of just this request: replayed
    the same with effort=10       another request: planned
    another release of SciPy      the planners may choose otherwise: planned

The name of a recording hashes the request and everything that the answer depends on: our source text and the versions
of the libraries that solve and compare. Schedules are verified and priced again; a recording in which a figure differs,
or that lacks a schedule that wins, is ignored as if it were not there.

`python release/record_tunings.py` writes the recordings of a release.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from antiphon.core.cache import versions_of
from antiphon.core.files import read_bytes, write_bytes
from antiphon.core.plan import Entry, Plan
from antiphon.core.serialize import dumps, loads
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid
from antiphon.select.ledger import Ledger
from antiphon.select.ranges import Key
from antiphon.select.schedule_cache import Evaluation, ScheduleCache
from antiphon.select.task import Context, Done, Task, evaluate, price_schedule, run_task

SHIPPED = Path(__file__).parent / "recordings"
FORMAT = 1
MAX_BYTES = 2**26  # of a recording, decompressed
SAME_SECONDS = 1e-9  # relative: processors may differ in the last bits of a prediction


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A priced schedule."""

    index: int  # of the task that yielded it
    variant: int  # its number among the schedules of that task
    options: dict[str, Any]
    evaluation: Evaluation
    entry: int | None  # its number in the plan of its collective; None: it cannot win


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of a recording."""

    format: int
    rows: list[_Row]
    ends: list[Done]  # of every task of a planner, by index
    plans: dict[str, msgspec.Raw]  # by collective the schedules that can win, one entry each


def recording_name(context: Context, tasks: Sequence[Task]) -> str:
    """Return the file name of the recording of a request that has no profile, no `cuts` and no plans of the user.

    `cuts`: how a runtime cuts messages."""
    task_keys = [(task.index, task.kind, task.planner, sorted(task.options.items())) for task in tasks]
    collectives = [(kind, repr(collective.key())) for kind, collective in context.collectives.items()]
    settings = (
        context.model_name, context.sizes, context.budget, context.seed, context.effort, context.deterministic,
        context.in_switches,
    )  # fmt: skip
    text = repr((FORMAT, producer_versions(), dumps(context.topology), collectives, settings, task_keys))
    return f"{hashlib.sha256(text.encode()).hexdigest()}.json.gz"


@cache
def producer_versions() -> tuple[str, ...]:
    """Return what a tuning may depend on beyond the request."""
    return versions_of(Path(__file__).parents[1])


def write_recording(ledger: Ledger, path: Path) -> None:
    """Write the ledger of a complete tuning in which no candidate was stopped, after `Ledger.close`."""
    rows, plans = [], {}
    for kind, schedules in ledger.schedules.items():
        keys = sorted(schedules)
        # the ranges of sizes (0 to 1 byte, 1 to 2, ..., n on) only number the schedules, as a plan must have ranges
        entries = [
            Entry(i, i + 1 if i + 1 < len(keys) else None, schedules[key], claims={}) for i, key in enumerate(keys)
        ]
        entry_number = {key: i for i, key in enumerate(keys)}
        rows += [
            _Row(key.candidate, key.variant, dict(ledger.planner_options[key]), evaluation, entry_number.get(key))
            for key, evaluation in sorted(ledger.evaluations.items())
            if ledger.tasks[key.candidate].kind == kind
        ]
        if entries:
            plan = Plan(ledger.context.topology, ledger.context.collectives[kind], tuple(entries))
            plans[kind] = msgspec.Raw(dumps(plan))
    ends = [ledger.ended[index] for index in sorted(_planner_tasks(ledger))]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, msgspec.json.encode(_File(FORMAT, rows, ends, plans), enc_hook=str))  # fractions as texts


def replay(ledger: Ledger, path: Path) -> bool:
    """Let the ledger receive a recording. False: there is none, or it is not right, and the ledger is of no use."""
    try:
        # dec_hook: fractions are stored as texts
        file = msgspec.json.decode(read_bytes(path, MAX_BYTES), type=_File, dec_hook=lambda kind, text: kind(text))
        if file.format != FORMAT or {end.index for end in file.ends} != _planner_tasks(ledger):
            return False
        for row in file.rows:
            key = Key(row.index, row.variant)
            ledger.evaluations[key], ledger.planner_options[key] = row.evaluation, row.options
        _add_schedules(ledger, file)
    except (AntiphonError, msgspec.MsgspecError, LookupError, ValueError, RecursionError):
        return False
    for task in ledger.pending:
        if task.entry is None:
            for message in run_task(ledger.context, ScheduleCache(), task):
                ledger.receive(message)
    for end in file.ends:
        ledger.receive(end)
    return True


def _planner_tasks(ledger: Ledger) -> set[int]:
    """Return the indices of the tasks that try a planner; the others compute bounds."""
    return {task.index for task in ledger.pending if task.entry is not None}


def _add_schedules(ledger: Ledger, file: _File) -> None:
    """Give the ledger the schedules that can win, verified and priced again. Raises Invalid if a figure differs."""
    context = ledger.context
    plans = {kind: _read_plan(bytes(plan)) for kind, plan in file.plans.items()}
    for row in file.rows:
        if row.entry is None:
            continue
        kind, recorded = ledger.tasks[row.index].kind, row.evaluation
        schedule = plans[kind].entries[row.entry].schedule
        if schedule.collective != context.collectives[kind]:
            raise Invalid("the schedule is for another collective")
        verify(schedule, context.topology).or_raise()
        priced = price_schedule(context, schedule)
        recomputed = None if priced is None else evaluate(context, recorded.fingerprint, schedule, priced)
        if recomputed is None or not _is_same(recomputed, recorded):
            raise Invalid("a figure differs from that of its schedule")
        ledger.schedules[kind][Key(row.index, row.variant)] = schedule
    for key, evaluation in ledger.evaluations.items():
        task, prices = ledger.tasks[key.candidate], evaluation.prices
        columns = prices.seconds, prices.bottlenecks, prices.terms, prices.rests_on
        if {len(column) for column in columns} != {len(context.sizes)}:
            raise Invalid("the figures are for other sizes")
        times = [ledger.evaluations[winner].seconds for winner in ledger.schedules[task.kind]]
        # per size; times[0] again, as min needs two values. Without schedules: IndexError, which `replay` catches
        fastest = map(min, *times, times[0])
        # `names`: the planners whose schedules may win; the others stand for NCCL
        if task.planner in ledger.names and any(map(operator.lt, evaluation.seconds, fastest)):
            raise Invalid("the schedule of a winner is missing")


def _read_plan(data: bytes) -> Plan:
    plan = loads(data, "plan", warn=False)
    if not isinstance(plan, Plan):
        raise Invalid("it holds no plan")
    return plan


def _is_same(evaluation: Evaluation, recorded: Evaluation) -> bool:
    """Return whether two evaluations of a schedule are equal up to the last bits of times."""
    times = [(e.seconds, e.unjoined_seconds) for e in (evaluation, recorded)]
    return (
        evaluation.figures == recorded.figures
        and evaluation.seconds_per_byte == recorded.seconds_per_byte
        and all(
            np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=SAME_SECONDS, atol=0)
            for a, b in zip(*times, strict=True)
        )
    )
