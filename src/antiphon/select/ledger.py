"""Collect priced candidates and assemble the tuning result.

A candidate is a planner with its options; a task (task.py) tries it and sends its results as messages. Hundreds of
candidates may be priced, and one schedule may take a gigabyte. So the ledger keeps all evaluations (times by size,
which are small), but only those schedules that can still win. After each message it drops the schedules that are best
at no size, or that another equals or beats at every size (`ranges.worth_keeping`). With a shortlist it also keeps the
next best schedules, which may be faster when measured.

    receive    take a message of a task: bounds, a priced schedule, or the end of the task
    close      return the result: candidates, ranges of sizes with their winner, a plan per collective

Ranges: neighbouring sizes with the same winner are one range. A winner that is not faster than NCCL by more than the
error of NCCL's model is kept, but marked `served_by="nccl"`: use NCCL for these sizes.

Example: ring and trees, priced at 1 KB, 1 MB and 1 GB; trees wins the first two, ring the last. NCCL is as fast at 1
KB. The ranges are: from 1 KB trees, left to NCCL; from 1 MB trees; from 1 GB ring. Where our plan is used at one priced
size and the library at the next, our range ends right after its size: nothing shows that our plan is faster between.

With `deterministic`, all sizes must combine every element in one order: only those of the fastest order are eligible
(`ranges.best_order`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from antiphon.core.bounds import Bound
from antiphon.core.plan import Entry as PlanEntry
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.cost import Profile
from antiphon.cost.basis import CALIBRATED, NOT_CALIBRATED, join_bases
from antiphon.cost.bound_evaluator import BoundEvaluator, evidence_to_json
from antiphon.cost.nccl.accuracy import is_clearly_faster
from antiphon.cost.nccl.library import LibraryModel
from antiphon.errors import Unsupported, list_first
from antiphon.select.candidate import Candidate, ForwardingAlternatives, Range
from antiphon.select.figures import SEVERAL_ORDERS, gaps
from antiphon.select.libraries import CLASSICS, count_multiprocessors, find_baseline, list_stand_ins
from antiphon.select.limits import Damage, Limit, Loss
from antiphon.select.plan_files import OWN_PLANS
from antiphon.select.ranges import Key, best_order, choose_winners, ends_of, fastest_few, merge_runs, worth_keeping
from antiphon.select.schedule_cache import Evaluation, Times
from antiphon.select.sufficiency import UNNEEDED, Sufficiency
from antiphon.select.sweep import Value
from antiphon.select.task import BEATEN, OK, REFUSED, SKIPPED, AtWork, Context, Done, LowerBounds, Message, Priced, Task
from antiphon.select.tuning import Listed, Tuning
from antiphon.select.uses import SWITCH_USE_UNSUPPORTED, needs_switches
from antiphon.units import format_seconds, format_size

AT_WORK = "running"  # begins the progress lines about candidates that are not done
SHOWN_AT_WORK = 3  # candidates that a progress line names, those that take longest first
BEST_SO_FAR = "best so far"  # in progress lines once there is a result
NCCL_STAND_IN = "what NCCL would do here"  # in notes, if its choice is unknown and planners stand for it
RUNNERS_UP = 5  # candidates listed beside the best of a range
Progress = Callable[[int, int, str], None]  # (tasks done, their total, what is done now and the best so far)


class Ledger:
    """The results so far, by `Key`: index of the task as `candidate`, and number of its schedule as `variant`.

    Parameters
    ----------
    names
        The planners that may win. The other planners stand for NCCL: results are only compared with theirs.
    compare
        Whether to compare with NCCL at all.
    shortlist
        Keep this many of the best schedules at every size, and the best of every classic algorithm.
    library
        The model of NCCL's own choice, if its figures for this machine are known.
    may_skip
        Whether to skip candidates once the best plans reach the lower bound. Planners in `required`, and planners that
        stand for NCCL, are never skipped.
    may_drop
        Whether to drop large schedules that are faster than none before them, in the order of candidates, at any size.
    progress
        Receives every change (see `Progress`); None: nobody does.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self, context: Context, tasks: Sequence[Task], names: set[str], progress: Progress | None,
        compare: bool = True, shortlist: int = 0, library: LibraryModel | None = None, may_skip: bool = False,
        required: Collection[str] = (), may_drop: bool = False,
    ) -> None:  # fmt: skip
        self.library, self.may_skip, self.may_drop = library, may_skip, may_drop
        self.library_refused = ""
        self.context, self.tasks, self.names, self.progress = context, tasks, names, progress
        self.compare, self.shortlist = compare, shortlist
        # by collective; `bounds` on the machine as it is, which plans claim, `limits` with the figures of the profile
        self.bounds: dict[str, Bound] = {}
        self.limits: dict[str, Limit] = {}
        self.evaluations: dict[Key, Evaluation] = {}  # of all schedules so far, also those that cannot win
        self.planner_options: dict[Key, Mapping[str, Any]] = {}  # the options that the planner reports
        # by collective, those that can still win
        self.schedules: dict[str, dict[Key, Schedule]] = {kind: {} for kind in context.collectives}
        # by collective: the least time so far for the greatest size, and its planner; the least times so far by size
        self.leads: dict[str, tuple[float, str]] = {}
        self.fastest: dict[str, list[float]] = {}
        self.unordered: set[int] = set()  # tasks with a schedule that combines in several orders, if one is required
        self.ended: dict[int, Done] = {}  # by index of the task
        for task in tasks:  # one without an entry (its planner's, in the table of planners) computes bounds
            if task.entry is not None and task.kind not in task.entry.can.collectives:
                plans = ", ".join(task.entry.can.collectives)
                self.ended[task.index] = Done(task.index, REFUSED, f"it does not plan {task.kind} (it plans {plans})")
            elif task.entry is not None and needs_switches(task.entry) and not context.in_switches:
                self.ended[task.index] = Done(task.index, REFUSED, f"planner {task.planner}: {SWITCH_USE_UNSUPPORTED}")
        self.pending = [task for task in tasks if task.index not in self.ended]
        self.sufficiency = Sufficiency(self.pending, context.sizes, self._always_needed(required))
        self.total = len(self.pending)
        self.done = 0
        self.at_work: dict[int, float] = {}  # the tasks that run now, with the CPU seconds of each

    def _always_needed(self, required: Collection[str]) -> Callable[[Task], bool]:
        """Return the test for tasks that are never skipped: those of planners in `required` or that stand for NCCL.

        The latter: those beside `names`, and all stand-ins once NCCL's model is refused (`library_refused`).
        """
        return lambda task: (
            task.planner in required
            or task.planner not in self.names
            or bool(self.library_refused and task.planner in self._stand_ins)
        )

    @cached_property
    def _stand_ins(self) -> set[str]:
        """Return the planners whose schedules stand for NCCL's, if its model does not describe the machine."""
        kinds = self.context.collectives
        return {name for kind in kinds for group in list_stand_ins(self.context.topology, kind) for name in group}

    def _refuse_impossible_library(self, library: LibraryModel, kind: str) -> None:
        """Drop NCCL's model if it predicts less than the lower bound; schedules then stand for NCCL."""
        try:
            for nbytes in self.context.sizes:
                library.at(kind, nbytes)
        except Unsupported as refusal:
            self.library, self.library_refused = None, str(refusal)

    # ---- messages of the tasks ----

    def receive(self, message: Message | AtWork) -> None:
        """Take a message of a task, and report progress."""
        if isinstance(message, AtWork):
            straggler_first = sorted(message.tasks, key=lambda index_seconds: -index_seconds[1])
            self.at_work = dict(straggler_first)
            self._report_progress()
            return
        task = self.tasks[message.index]
        if isinstance(message, LowerBounds):
            context = self.context
            machine, target = context.with_profile(context.topology), context.collectives[task.kind]
            evidence, self.bounds[task.kind] = message.evidence, message.bound
            self.limits[task.kind] = Limit.of(
                message.by_profile, machine, target, latency=message.latency, model=context.model_name,
                times=message.times, evidence=evidence,
            )  # fmt: skip
            if self.library is not None:
                # from now on its predictions, which use no profile, must not be below the bound of the nominal machine
                self.library.prove(task.kind, BoundEvaluator(context.topology, target, message.bound, {**evidence}))
                self._refuse_impossible_library(self.library, task.kind)
        elif isinstance(message, Priced):
            if self.is_needed(task):
                self._add_priced(task, message)
        elif self.is_needed(task):
            self._end_task(task, message)
            self._skip_unneeded(task.kind)

    def is_needed(self, task: Task) -> bool:
        """Return whether the result of a task can still matter."""
        return self.sufficiency.is_needed(task)

    def _skip_unneeded(self, kind: str) -> None:
        """If the best plans of a collective reach its bound, end its other tasks and drop their results."""
        limit = self.limits.get(kind)
        if not self.may_skip or limit is None:
            return
        if not self.sufficiency.update(kind, limit, self.ended, self._times_of):  # True once: its best plans suffice
            return
        # also tasks that ended already: only their position in the order counts, not when they ended
        for task in self.pending:
            if task.kind == kind and not self.is_needed(task):
                for key in [key for key in self.evaluations if key.candidate == task.index]:
                    del self.evaluations[key], self.planner_options[key]
                    self.schedules[kind].pop(key, None)
                if task.index not in self.ended:
                    self.done += 1
                self.ended[task.index] = Done(task.index, SKIPPED, UNNEEDED)

    # ---- large schedules that are no faster than others ----

    def with_rivals(self, task: Task) -> Task:
        """Return the task with the least times so far of the schedules that come before it in the order of candidates.

        If the task may win, it is compared with all schedules that may win; if it may stand for NCCL, with those of its
        planner. A large schedule that is no faster at any size will not be in the result (`_drop_beaten`): it need not
        be priced, and its own times would not change what is fastest. Plans of the user's own are never dropped.
        """
        if task.entry is None or not self.may_drop or task.planner == OWN_PLANS:
            return task
        position = self.sufficiency.position
        earlier = [key for key in self.evaluations if position[key.candidate] < position[task.index]]
        return replace(task, rivals=self._find_rivals(task, earlier))

    def _find_rivals(self, task: Task, earlier: Sequence[Key]) -> tuple[Times, ...]:
        """Return the least times by size of each group of earlier schedules that large schedules of this task are
        compared with; zeros, which drop them all, if this task can neither win nor stand for NCCL.

        A large schedule is dropped if it is faster than no group at any size (`Prices.is_dropped`).
        """
        same_kind = [
            (self.tasks[key.candidate].planner, self.evaluations[key].seconds)
            for key in earlier
            if self.tasks[key.candidate].kind == task.kind
        ]
        groups = [{task.planner}] if self._may_stand_in(task) else []
        groups += [self.names] if task.planner in self.names else []
        nothing, no_chance = ((value,) * len(self.context.sizes) for value in (math.inf, 0.0))
        return tuple(  # `nothing` twice: `min` needs two arguments
            tuple(map(min, *(times for planner, times in same_kind if planner in names), nothing, nothing))
            for names in groups
        ) or (no_chance,)

    def _may_stand_in(self, task: Task) -> bool:
        """Return whether this planner may stand for NCCL: no planner that is preferred to it has a schedule.

        `list_stand_ins` returns groups of planners, the preferred group first.
        """
        if not self.compare or self.library is not None:
            return False
        planners = {self.tasks[index].planner for index, _ in self.evaluations if self.tasks[index].kind == task.kind}
        for group in list_stand_ins(self.context.topology, task.kind):
            if task.planner in group:
                return True
            if planners & set(group):
                return False
        return False

    def _drop_beaten(self) -> None:
        """Drop large schedules that are faster than none before them, in the order of candidates, at any size.

        A worker drops these itself if it knows the times of those before. But one may have been priced before they
        arrived; dropping it here makes the result independent of the order of arrival.
        """
        position = self.sufficiency.position
        ordered = sorted(self.evaluations, key=lambda key: (position[key.candidate], key.variant))
        large = [
            (i, key, self.tasks[key.candidate])
            for i, key in enumerate(ordered)
            if self.evaluations[key].prices.is_large
        ]
        rivals = {key: self._find_rivals(task, ordered[:i]) for i, key, task in large if task.planner != OWN_PLANS}
        beaten = [key for key, times in rivals.items() if self.evaluations[key].prices.is_dropped(times)]
        for key in beaten:
            del self.evaluations[key], self.planner_options[key]
            self.schedules[self.tasks[key.candidate].kind].pop(key, None)
        priced = {index for index, _ in self.evaluations}
        for index, done in self.ended.items():
            if done.status == OK and self.tasks[index].entry is not None and index not in priced:
                self.ended[index] = Done(index, SKIPPED, BEATEN)

    def _times_of(self, index: int) -> list[tuple[float, ...]]:
        """Return the seconds by size of the schedules of a task that may win.

        Schedules in which switches multicast or reduce do not count: even if one of them reaches the bound, the best
        plan whose switches only forward is still to be found, as the result lists it, too.
        """
        if self.tasks[index].planner not in self.names:
            return []
        own_evaluations = [evaluation for key, evaluation in self.evaluations.items() if key.candidate == index]
        return [evaluation.seconds for evaluation in own_evaluations if not evaluation.figures.get("uses")]

    def _worker_text(self, index: int, seconds: float) -> str:
        """Describe a candidate that is at work, such as "trees pieces=4 (12 CPU s)"."""
        options = "".join(f" {key}={value}" for key, value in self.tasks[index].options.items())
        return f"{self._task_text(self.tasks[index])}{options} ({seconds:.0f} CPU s)"

    def _task_text(self, task: Task) -> str:
        """Name a task by its planner, of several collectives also by its own: "allreduce by trees"."""
        if len(self.context.collectives) == 1:
            return task.planner or "bounds"
        return f"{task.kind} by {task.planner}" if task.planner else f"{task.kind} bounds"

    def _add_priced(self, task: Task, priced: Priced) -> None:
        """Add a priced schedule, and drop the schedules that can no longer win."""
        key = Key(priced.index, priced.variant)
        if self.context.deterministic and priced.evaluation.order is None and task.planner in self.names:
            self.unordered.add(priced.index)
            return
        self.evaluations[key], self.planner_options[key] = priced.evaluation, priced.planner_options
        if task.planner not in self.names:
            return
        lead = (priced.evaluation.seconds[-1], task.planner)
        self.leads[task.kind] = min(self.leads.get(task.kind, (math.inf, "")), lead)
        times = priced.evaluation.seconds
        self.fastest[task.kind] = list(map(min, self.fastest.get(task.kind, times), times))
        schedules = self.schedules[task.kind]
        schedules[key] = priced.schedule
        for loser in schedules.keys() - self._can_win_after_skipping(schedules):  # schedules are large
            del schedules[loser]

    def _can_win_after_skipping(self, schedules: Mapping[Key, Schedule]) -> set[Key]:
        """Return the schedules that can still win, even if the results of later candidates are dropped in the end.

        A candidate counts as skipped if the candidates before it reach the lower bound, even if it had ended by then.
        So a schedule must be kept if it could win among the candidates up to any one of them.
        """
        if not self.may_skip:
            return self._can_win(schedules)
        winners: set[Key] = set()
        position = self.sufficiency.position  # of a task, in the order in which tasks count
        for last in {position[index] for index, _ in schedules}:
            winners |= self._can_win({key: s for key, s in schedules.items() if position[key.candidate] <= last})
        return winners

    def _can_win(self, schedules: Mapping[Key, Schedule]) -> set[Key]:
        """Return the schedules that can still win; with a shortlist also the next best, by the model, at every size."""
        winners: set[Key] = set()
        for order in {self.evaluations[key].order for key in schedules}:  # all None, unless `deterministic`
            times = {key: e.seconds for key in schedules if (e := self.evaluations[key]).order == order}
            winners |= worth_keeping(times)
            if self.shortlist:
                winners |= fastest_few(times, self.shortlist)
                for name in CLASSICS:
                    winners |= fastest_few(
                        {key: t for key, t in times.items() if self.tasks[key.candidate].planner == name}, count=1
                    )
        return winners

    def _end_task(self, task: Task, done: Done) -> None:
        """Record the end of a task; refused if one order of combining is required, and no schedule of it has one."""
        any_kept = any(index == done.index for index, _ in self.evaluations)
        is_refused = done.index in self.unordered and not any_kept
        self.ended[done.index] = Done(done.index, REFUSED, SEVERAL_ORDERS) if is_refused else done
        self.done += 1
        self.at_work.pop(task.index, None)
        self._report_progress(task)

    def _report_progress(self, ended: Task | None = None) -> None:
        """Report who is at work, else what ended last; and the best so far, if it is all of one collective."""
        tasks = [self.tasks[index] for index in self.at_work] or ([] if ended is None else [ended])
        if self.progress is None or not tasks:
            return
        text = self._task_text(tasks[0])
        if self.at_work:
            workers = [self._worker_text(*worker) for worker in self.at_work.items()]
            text = f"{AT_WORK}: {list_first(workers, limit=SHOWN_AT_WORK)}"
        kinds = {task.kind for task in tasks}
        leads = self._lead_text(kinds.pop()) if len(kinds) == 1 else ""
        self.progress(self.done, self.total, text + leads)

    def _lead_text(self, kind: str) -> str:
        """Return in words the best schedule so far for the greatest size, with its gap, and the greatest gap of the
        fastest schedules at any size.
        """
        if kind not in self.leads:
            return ""
        seconds, planner = self.leads[kind]
        sizes = self.context.sizes
        distance = ""
        if kind in self.limits:
            gap_of = {size: self.limits[kind].gap(size, s) for size, s in zip(sizes, self.fastest[kind], strict=True)}
            gaps_by_size = {size: gap for size, gap in gap_of.items() if gap is not None}
            if sizes[-1] in gaps_by_size:
                # of equal gaps, that at the smallest size
                worst_size = max(gaps_by_size, key=lambda size: (gaps_by_size[size], -size))
                worst = f" ({gaps_by_size[worst_size]:.2f}x at {format_size(worst_size)})"
                distance = f", gap {gaps_by_size[sizes[-1]]:.2f}x{worst if worst_size != sizes[-1] else ''}"
        return f"; {BEST_SO_FAR} for {format_size(sizes[-1])}: {planner}, {format_seconds(seconds)}{distance}"

    # ---- the result ----

    def close(
        self, span: tuple[int, int], losses: Sequence[Loss], damage: Damage | None, complete: bool,
        sweep: Mapping[str, tuple[Value, ...]],
    ) -> Tuning:  # fmt: skip
        """Return the result.

        `span`: the least and the greatest size requested. `losses`, `damage`: what a degraded machine has lost, by
        collectives and by links (limits.py). `complete`: False if the tuning was interrupted. `sweep`: values of
        planner options to try (sweep.py).
        """
        context = self.context
        if self.may_drop:
            self._drop_beaten()
        rows = self._make_candidates()
        listed: list[Candidate] = []
        for task in self.tasks:
            if task.entry is not None:  # it is no task for bounds
                listed += [row for key, row in rows.items() if key.candidate == task.index]
                end = self.ended.get(task.index)
                if end is not None and end.status != OK:
                    listed.append(
                        Candidate(task.kind, task.planner, task.options, end.status, end.reason, ended_by=end.by)
                    )
        no_bound = {  # by collective, why its bounds are not known
            task.kind: end.reason or end.status for task in self.tasks
            if task.entry is None and (end := self.ended.get(task.index)) is not None and end.status != OK
        }  # fmt: skip
        limits = {kind: self.limits[kind] for kind in context.collectives if kind in self.limits}
        baselines = {kind: self._find_baseline(kind) for kind in context.collectives if self.compare}
        tuning = Tuning(
            context.topology, context.model_name, span, context.sizes, tuple(context.collectives),
            candidates=tuple(listed), ranges=(), limits=limits,
            baselines={kind: names for kind, (names, _) in baselines.items()}, plans={},
            losses=tuple(losses), complete=complete, profile=name_of(context.profile),
            no_speedup={kind: why for kind, (_, why) in baselines.items() if why and self.library is None},
            damage=damage, sweep=sweep,
            untried=sum(task.entry is not None and task.index not in self.ended for task in self.tasks),
            no_bound=no_bound, library=self.library, library_refused=self.library_refused,
        )  # fmt: skip
        ranges: list[Range] = []
        plans: dict[str, Plan] = {}
        for kind, schedules in self.schedules.items():
            if schedules:
                keyed_ranges = self._make_ranges(kind, tuning, rows)
                ranges += [r for _, r in keyed_ranges]
                plans[kind] = self._make_plan(kind, keyed_ranges)
        shortlist = {kind: self._list_shortlist(kind, rows) for kind in plans} if self.shortlist else {}
        return replace(tuning, ranges=tuple(ranges), plans=plans, shortlist=shortlist)

    def _make_candidates(self) -> dict[Key, Candidate]:
        """Return the candidates with a schedule, in order. Equal schedules of one planner are listed once, with the
        options of the others in `also`.
        """
        first: dict[tuple[str, str, bytes], Key] = {}  # the first by collective, planner, fingerprint
        repeats: dict[Key, list[Key]] = {}  # by the first of equal schedules, the equal ones of other calls
        calls: dict[int, list[Key]] = defaultdict(list)  # by task, its schedules: a task is one call of a planner
        for key in sorted(self.evaluations):
            task = self.tasks[key.candidate]
            calls[key.candidate].append(key)
            # an equal schedule of the same call adds nothing; one of another call adds its options to `also`
            leader = first.setdefault((task.kind, task.planner, self.evaluations[key].fingerprint), key)
            repeats.setdefault(leader, [])
            if leader.candidate != key.candidate:
                repeats[leader].append(key)
        return {
            key: self._make_candidate(key, calls[key.candidate], repeated_keys)
            for key, repeated_keys in repeats.items()
        }

    def _make_candidate(self, key: Key, call: Sequence[Key], repeated_keys: Sequence[Key]) -> Candidate:
        """Return a candidate. `call`: all schedules of its planner call; `repeated_keys`: equal ones of other calls."""
        evaluation, task, sizes = self.evaluations[key], self.tasks[key.candidate], self.context.sizes
        prices = evaluation.prices
        why = zip(prices.bottlenecks, prices.terms, strict=True)
        return Candidate(
            task.kind, task.planner, self._distinguishing_options(key, call), OK, reason="", variant=key.variant,
            seconds=dict(zip(sizes, evaluation.seconds, strict=True)), why=dict(zip(sizes, why, strict=True)),
            rests_on=dict(zip(sizes, prices.rests_on, strict=True)), figures=evaluation.figures,
            seconds_per_byte=evaluation.seconds_per_byte, may_win=task.planner in self.names,
            also=tuple({k.candidate: dict(self.tasks[k.candidate].options) for k in repeated_keys}.values()),
            # seconds if switches only forward; empty, hence strict=False, without joints or without such a price
            alone=dict(zip(sizes, evaluation.unjoined_seconds, strict=False)),
        )  # fmt: skip

    def _distinguishing_options(self, key: Key, call: Sequence[Key]) -> dict[str, Any]:
        """Return the options of the task; of several schedules of one planner call also those in which they differ."""
        task = self.tasks[key.candidate]
        assert task.entry is not None
        return dict(task.options) | {
            name: value for name, value in self.planner_options[key].items()
            if name in task.entry.options and name not in task.options
            and any(self.planner_options[sibling].get(name) != value for sibling in call)
        }  # fmt: skip

    def _find_baseline(self, kind: str) -> tuple[tuple[str, ...], str]:
        """Return the planners that stand for NCCL, and the reason if there are none ("" otherwise)."""
        planners = {self.tasks[index].planner for index, _ in self.evaluations if self.tasks[index].kind == kind}
        return find_baseline(kind, self.tasks, self.ended, planners, list_stand_ins(self.context.topology, kind))

    # ---- ranges ----

    def _make_ranges(self, kind: str, tuning: Tuning, rows: Mapping[Key, Candidate]) -> list[tuple[Key, Range]]:
        """Return the ranges of sizes of a collective, with the key of each winner."""
        sizes = tuning.sizes
        times = {key: self.evaluations[key].seconds for key in self.schedules[kind]}
        eligible = best_order(times, {key: self.evaluations[key].order for key in times})
        chosen = choose_winners({key: times[key] for key in eligible})
        # neighbouring sizes are one range if they have the same winner and are served by the same library or by ours
        libraries = [
            self._served_by(kind, times[key][i], tuning, size)
            for i, (key, size) in enumerate(zip(chosen, sizes, strict=True))
        ]
        ranges = []
        start = sizes[0]
        # a range goes up to the next range's first priced size; its figures are those at its greatest priced size
        for (key, library), first, last in merge_runs(list(zip(chosen, libraries, strict=True))):
            stop = sizes[last + 1] if last + 1 < len(sizes) else sizes[-1]  # the last range includes its stop
            if last + 1 < len(sizes) and not library and libraries[last + 1]:
                stop = sizes[last] + 1  # the library serves the next: nothing shows that ours is faster up to there
            priced = sizes[first : last + 1]
            ranges.append((key, self._make_range(kind, (start, stop), priced, rows[key], library, tuning, rows)))
            start = stop
        return ranges

    def _make_range(
        self, kind: str, ends: tuple[int, int], priced: Sequence[int], best: Candidate, served_by: str, tuning: Tuning,
        rows: Mapping[Key, Candidate],
    ) -> Range:  # fmt: skip
        """Return one range. `priced`: the sizes at which it was priced; the figures of a row are those at the last."""
        at = priced[-1]
        gaps_by_size = [tuning.gap(best, size) for size in priced]
        speedups = [tuning.speedup(best, size) for size in priced]
        least_speedup, largest_speedup = ends_of(speedups)
        error = self.library.error_at(kind, at) if self.library is not None else None  # relative; None: unknown
        over, rests_on = self._find_basis(best, at)
        sms, sms_of = count_multiprocessors(self.library, bool(best.uses))
        rivals = [row for row in rows.values() if row.collective == kind and row.may_win and row is not best]
        rivals.sort(key=lambda row: row.seconds[at])
        unaided = [row for row in rivals if not row.uses][:1]  # the best whose switches only forward is always listed
        start, stop = ends
        return Range(
            kind, start, stop, at=at, candidate=best, seconds=best.seconds[at], gap=gaps_by_size[-1],
            speedup=speedups[-1], gap_model="" if gaps_by_size[-1] is None else self.context.model_name,
            without=ForwardingAlternatives.of(best, unaided, at), over=over, rests_on=rests_on, sms=sms, sms_of=sms_of,
            served_by=served_by, error=error,
            runners_up=tuple(dict.fromkeys([*rivals[:RUNNERS_UP], *unaided])),
            reference=self.library.name if self.library is not None else "",
            library_gap=self._library_gap(kind, at, tuning.baseline(kind, at), tuning) if served_by else None,
            largest_gap=ends_of(gaps_by_size)[1], least_speedup=least_speedup, largest_speedup=largest_speedup,
        )  # fmt: skip

    def _library_gap(self, kind: str, nbytes: int, seconds: float | None, tuning: Tuning) -> float | None:
        """Return the gap of the library's choice, which takes `seconds`; None if one of them is unknown.

        The library's model has no barrier between steps (no rank waits for all messages of a step), so it may predict
        less than the bound under a model with barriers. Then the bound by the library's own figures is used.
        """
        limit = tuning.limits.get(kind)
        gap = limit.gap(nbytes, seconds) if limit is not None and seconds is not None else None
        if gap is not None and gap < 1 and self.library is not None:
            return self.library.gap(kind, nbytes)
        return gap

    def _served_by(self, kind: str, seconds: float, tuning: Tuning, nbytes: int) -> str:
        """Return the library that should serve a size because ours is not clearly faster by its model; "": use ours."""
        if self.library is None or not self.compare or not seconds:  # nothing is faster than 0 seconds
            return ""
        baseline_seconds = tuning.baseline(kind, nbytes)
        error = self.library.error_at(kind, nbytes)
        is_faster = baseline_seconds is None or is_clearly_faster(baseline_seconds / seconds, error)
        return "" if is_faster else self.library.name

    def _find_basis(self, best: Candidate, at: int) -> tuple[str, str]:
        """Return the algorithm that NCCL would choose, if known, and what its figures and ours are calibrated by."""
        if self.library is None or not self.compare:
            is_half_calibrated = self.compare and CALIBRATED in best.rests_on[at]
            return "", best.rests_on[at] + (f"; {NCCL_STAND_IN} {NOT_CALIBRATED}" if is_half_calibrated else "")
        kind = best.collective
        return self.library.choice(kind, at).name, join_bases([best.rests_on[at], self.library.brief(kind, at)])

    # ---- plans ----

    def _make_plan(self, kind: str, keyed_ranges: Sequence[tuple[Key, Range]]) -> Plan:
        """Return the winners as a plan: the first holds for all smaller sizes, the last for all greater ones."""
        starts = [0, *(r.start for _, r in keyed_ranges[1:])]
        stops = [*starts[1:], None]
        entries: list[PlanEntry] = []
        for (key, r), start, stop in zip(keyed_ranges, starts, stops, strict=True):
            # the plan has the collective, and its entry the sizes
            claims = {k: v for k, v in r.as_json().items() if k not in ("collective", "from", "to")}
            claims |= self._claimed_figures(kind, key, r.candidate) | {"model": self.context.model_name}
            claims["sizes"] = [size for size in self.context.sizes if r.start <= size <= r.at]
            if self.context.profile is not None:
                claims["profile"] = name_of(self.context.profile)
            elif not entries and kind in self.limits and self.limits[kind].evidence:  # once, for all gaps
                claims["gap_evidence"] = evidence_to_json(self.limits[kind].evidence)
            entries.append(PlanEntry(start, stop, self.schedules[kind][key], claims))
        return Plan(self.context.topology, self.context.collectives[kind], tuple(entries))

    def _list_shortlist(self, kind: str, rows: Mapping[Key, Candidate]) -> tuple[Listed, ...]:
        """Return the schedules that are still held, each once, with the claims that a plan makes of it."""
        listed: dict[bytes, Listed] = {}
        for key in sorted(self.schedules[kind]):
            if key in rows:  # without those that equal a listed one of the same planner
                row = rows[key]
                claims = {"planner": row.planner, "options": dict(row.options), "variant": row.variant}
                claims |= self._claimed_figures(kind, key, row)
                fingerprint = self.evaluations[key].fingerprint
                listed.setdefault(fingerprint, Listed(row, self.schedules[kind][key], claims))
        return tuple(listed.values())

    def _claimed_figures(self, kind: str, key: Key, candidate: Candidate) -> dict[str, Any]:
        """Return the figures that a plan claims of a schedule, with its gaps to the bounds."""
        figures = dict(candidate.figures)
        if kind in self.bounds:
            figures |= gaps(figures, candidate.seconds_per_byte, self.bounds[kind])
        if self.context.deterministic:
            figures["order"] = self.evaluations[key].order
        return figures


def name_of(profile: Profile | None) -> str | None:
    """Return the name by which results state a profile; None without one."""
    return None if profile is None else profile.name or "(unnamed)"
