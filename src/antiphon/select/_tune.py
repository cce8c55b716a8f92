"""Every planner that can, over a range of sizes: the best for every size."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.plan import Entry as PlanEntry
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported
from antiphon.registry import find, table
from antiphon.select._plans import gaps
from antiphon.select._pool import run_tasks
from antiphon.select._ranges import Key, runs, winners, worth_keeping
from antiphon.select._task import OK, REFUSED, Context, Done, Found, Limits, Message, Task
from antiphon.select._tuning import Candidate, Limit, Loss, Range, Tuning
from antiphon.select._wish import collective, sizes_of

RINGS_AND_TREES = ("multi-ring", "double-binary-tree")
SENDS = ("direct", "pairwise")
BASELINES = {
    **dict.fromkeys(KINDS, (RINGS_AND_TREES, ("ring",))),
    **dict.fromkeys(("alltoall", "gather", "scatter"), (SENDS, ("ring",))),
}
Progress = Callable[[int, int, str], None]


def tune(  # noqa: PLR0913
    wanted: str | Collective,
    topology: Topology,
    *,
    nbytes: int | str | Sequence[int] = "1KB:1GB",
    model: str = "alpha-beta",
    planners: Sequence[str] = (),
    budget: float = 5.0,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    seed: int = 0,
    profile: Any = None,
    workers: int | None = None,
    against: Topology | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """The best schedule for every size, of all that the planners here can make; every one of them is verified.

    `wanted`: a collective, or "all" for the eight. `planners`: just these (what stands for NCCL is priced, too).
    `budget`: seconds for each candidate. `workers`: processes, by default one per core; 0: none. `against`: the
    whole machine, of which the topology is what is left: bounds before and after are told. `progress` hears the
    number of candidates done, their total, and what was done last. The result does not depend on `workers`.
    Ctrl-C ends it early with what was found. Time: that of the planners, with what exceeds a second spread over
    the workers; memory: the schedules that can still win, and one per worker.
    """
    span, sizes = sizes_of(nbytes)
    if not budget > 0:
        raise Invalid(f"budget: must be greater than 0 seconds, got {budget}")
    targets = _targets(wanted, topology, root, ranks)
    names = list(dict.fromkeys(planners)) or list(table("planner"))
    for name in names:
        find("planner", name)
    if against is not None and against.ranks != topology.ranks:
        raise Invalid(
            f"{against.name} has {against.ranks} ranks, {topology.name} {topology.ranks}; compare like with like"
        )
    context = Context(topology, targets, model, find("model", model), profile, sizes, budget, seed)
    ledger = _Ledger(context, _tasks(targets, names), set(names), progress)
    complete = True
    try:
        run_tasks(context, ledger.to_do, _cores() if workers is None else workers, ledger.hear)
    except KeyboardInterrupt:
        complete = False
    losses = _losses(context, ledger, against) if against is not None and complete else ()
    return ledger.close(span, losses, complete)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _targets(
    wanted: str | Collective, topology: Topology, root: int | None, ranks: Sequence[int] | None
) -> dict[str, Collective]:
    if isinstance(wanted, Collective):
        return {wanted.kind: wanted}
    if wanted != "all":
        found = collective(wanted, topology, root=root, ranks=ranks)
        return {found.kind: found}
    return {
        kind: collective(kind, topology, root=root if kind in ROOTED else None, ranks=ranks)
        for kind in ("allreduce", "allgather", "reducescatter", "alltoall", *ROOTED)
    }


def _tasks(targets: Mapping[str, Collective], names: Sequence[str]) -> list[Task]:
    """For every collective its bounds, then every planner that declares it, with each of its sweep of options."""
    tasks: list[Task] = []
    for kind in targets:
        tasks.append(Task(len(tasks), kind))
        compared = [n for group in BASELINES.get(kind, ()) for n in group if n not in names and n in table("planner")]
        for name in [*names, *compared]:
            entry = find("planner", name)
            sweep: Sequence[Mapping[str, Any]] = entry.can.get("sweep") or ({},)
            for options in sweep if kind in entry.can["collectives"] else ({},):
                tasks.append(Task(len(tasks), kind, name, entry, dict(options)))
    return tasks


def _able(task: Task) -> bool:
    return task.entry is None or task.kind in task.entry.can["collectives"]


class _Ledger:
    """What was found so far. Of the schedules it keeps only those that can still win."""

    def __init__(self, context: Context, tasks: Sequence[Task], names: set[str], progress: Progress | None) -> None:
        self.context, self.tasks, self.names, self.progress = context, tasks, names, progress
        self.bounds: dict[str, Bound] = {}
        self.found: dict[Key, Found] = {}
        self.ended: dict[int, Done] = {}
        self.schedules: dict[str, dict[Key, Schedule]] = {kind: {} for kind in context.collectives}
        for task in tasks:
            if not _able(task):
                assert task.entry is not None
                plans = ", ".join(task.entry.can["collectives"])
                self.ended[task.index] = Done(task.index, REFUSED, f"it does not plan {task.kind} (it plans {plans})")
        self.to_do = [task for task in tasks if _able(task)]
        self.total = len(self.to_do)
        self.done = 0

    def hear(self, message: Message) -> None:
        task = self.tasks[message.index]
        if isinstance(message, Limits):
            self.bounds[task.kind] = message.bound
        elif isinstance(message, Found):
            self._keep(task, message)
        else:
            self.ended[message.index] = message
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total, f"{task.kind}: {task.planner or 'bounds'}")

    def _keep(self, task: Task, found: Found) -> None:
        key = (found.index, found.variant)
        self.found[key] = replace(found, schedule=None)  # type: ignore[arg-type]
        if task.planner not in self.names:
            return
        kept = self.schedules[task.kind]
        kept[key] = found.schedule
        for other in kept.keys() - worth_keeping({k: self.found[k].seconds for k in kept}):
            del kept[other]

    # ---- the result ----

    def close(self, span: tuple[int, int], losses: Sequence[Loss], complete: bool) -> Tuning:
        context = self.context
        rows = {key: self._candidate(key) for key in sorted(self.found)}
        listed: list[Candidate] = []
        for task in self.tasks:
            if task.entry is not None:
                listed += [row for key, row in rows.items() if key[0] == task.index]
                end = self.ended.get(task.index)
                if end is not None and end.status != OK:
                    listed.append(Candidate(task.kind, task.planner, task.options, end.status, end.reason))
        limits = {k: Limit.of(b, context.topology, context.collectives[k]) for k, b in self.bounds.items()}
        empty = Tuning(
            context.topology, context.model_name, span, context.sizes, tuple(context.collectives), tuple(listed), (),
            limits, self._baselines(), {}, tuple(losses), complete,
        )  # fmt: skip
        ranges: list[Range] = []
        plans: dict[str, Plan] = {}
        for kind, kept in self.schedules.items():
            if kept:
                mine = self._ranges(kind, empty, rows)
                ranges += [r for _, r in mine]
                plans[kind] = self._plan(kind, mine)
        return replace(empty, ranges=tuple(ranges), plans=plans)

    def _candidate(self, key: Key) -> Candidate:
        found, task, sizes = self.found[key], self.tasks[key[0]], self.context.sizes
        why = zip(found.bottlenecks, found.terms, strict=True)
        return Candidate(
            task.kind, task.planner, self._options(key), OK, "", found.variant,
            dict(zip(sizes, found.seconds, strict=True)), dict(zip(sizes, why, strict=True)),
            found.figures, found.seconds_per_byte, task.planner in self.names,
        )  # fmt: skip

    def _options(self, key: Key) -> dict[str, Any]:
        """The options asked for; of several schedules of one planner call also those in which they differ."""
        task = self.tasks[key[0]]
        assert task.entry is not None
        alike = [found.made_with for other, found in self.found.items() if other[0] == key[0]]
        mine = self.found[key].made_with
        told = {k: v for k, v in mine.items() if k in task.entry.can["options"] and k not in task.options}
        return {**task.options, **{k: v for k, v in told.items() if any(a.get(k) != v for a in alike)}}

    def _baselines(self) -> dict[str, tuple[str, ...]]:
        """Who stands for NCCL: the first group of planners of which one could plan."""
        chosen: dict[str, tuple[str, ...]] = {}
        for kind in self.context.collectives:
            able = {self.tasks[index].planner for index, _ in self.found if self.tasks[index].kind == kind}
            groups = [tuple(n for n in group if n in able) for group in BASELINES.get(kind, ())]
            chosen[kind] = next((group for group in groups if group), ())
        return chosen

    def _ranges(self, kind: str, tuning: Tuning, rows: Mapping[Key, Candidate]) -> list[tuple[Key, Range]]:
        sizes, (low, high) = tuning.sizes, tuning.span
        chosen = runs(winners({key: self.found[key].seconds for key in self.schedules[kind]}))
        found = []
        for number, (key, first, last) in enumerate(chosen):
            at = sizes[last]
            seconds = rows[key].seconds[at]
            least = tuning.limits[kind].seconds(at) if kind in tuning.limits else 0.0
            nccl = tuning.baseline(kind, at)
            ends = (
                low if number == 0 else sizes[first],
                high if number == len(chosen) - 1 else sizes[last + 1],
            )
            gap = seconds / least if least else None
            speedup = nccl / seconds if nccl is not None and seconds else None
            found.append((key, Range(kind, *ends, at, rows[key], seconds, gap, speedup)))
        return found

    def _plan(self, kind: str, mine: Sequence[tuple[Key, Range]]) -> Plan:
        """The winners as a plan: the first holds for all smaller sizes, the last for all greater ones."""
        starts = [0, *(r.start for _, r in mine[1:])]
        stops = [*starts[1:], None]
        entries = []
        for (key, r), start, stop in zip(mine, starts, stops, strict=True):
            figures = dict(r.candidate.figures)
            if kind in self.bounds:
                figures |= gaps(figures, r.candidate.seconds_per_byte, self.bounds[kind])
            told = {k: v for k, v in r.as_json().items() if k not in ("collective", "from", "to")}
            claims = {**told, **figures, "model": self.context.model_name}
            entries.append(PlanEntry(start, stop, self.schedules[kind][key], claims))
        return Plan(self.context.topology, self.context.collectives[kind], tuple(entries))


def _losses(context: Context, ledger: _Ledger, whole: Topology) -> tuple[Loss, ...]:
    """Bounds on the whole machine, for all its ranks and for those that are left, beside those here."""
    rows = []
    for kind, target in context.collectives.items():
        if target.custom is None:
            everyone = Collective(kind, whole.ranks, (), target.roots)
            here = ledger.bounds.get(kind)
            left = Limit.of(here, context.topology, target) if here else None
            rows.append(Loss(kind, whole.name, _limit(whole, everyone), _limit(whole, target), left))
    return tuple(rows)


def _limit(topology: Topology, target: Collective) -> Limit | None:
    try:
        return Limit.of(bound(topology, target), topology, target)
    except (Invalid, Unsupported):
        return None
