"""What was found so far, and the result of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.core.bounds import Bound
from antiphon.core.plan import Entry as PlanEntry
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.cost import Profile
from antiphon.cost.basis import CALIBRATED, NOT_CALIBRATED, together
from antiphon.cost.nccl.choice import NVLS, RING, taken
from antiphon.cost.nccl.library import MIN_SPEEDUP, Library, error_at
from antiphon.cost.nccl.proven import Proven
from antiphon.select.candidates import Candidate, Range
from antiphon.select.libraries import CLASSICS, baseline, groups_of
from antiphon.select.limits import Limit
from antiphon.select.losses import Damage, Loss
from antiphon.select.orders import SEVERAL_ORDERS
from antiphon.select.plans import gaps
from antiphon.select.ranges import TIE, Key, best_order, nearest, runs, winners, worth_keeping
from antiphon.select.sweep import Value
from antiphon.select.task import OK, REFUSED, AtWork, Context, Done, Limits, Message, Priced, Task
from antiphon.select.tuning import Listed, Tuning
from antiphon.select.uses import CANNOT, Without, needs_switches
from antiphon.units import format_seconds, format_size

AT_WORK = "still at work"  # begins what `progress` hears of candidates that are not done
HERE = "what NCCL would do here"  # where its ways are not known, and planners stand for it
RUNNERS_UP = 5  # candidates listed beside the best of a range
Progress = Callable[[int, int, str], None]


class Ledger:
    """What was found so far. Of the schedules it keeps only those that can still win.

    `names`: the planners that may win; `compare`: whether the others are there to be compared with; `shortlist`: how
    many of the best at every size are kept beside the winners, and the best of every classic; `library`: what tells
    NCCL's own choice, where the model has its figures.
    """

    def __init__(
        self, context: Context, tasks: Sequence[Task], names: set[str], progress: Progress | None,
        compare: bool = True, shortlist: int = 0, library: Library | None = None,
    ) -> None:  # fmt: skip
        self.library = library
        self.context, self.tasks, self.names, self.progress = context, tasks, names, progress
        self.compare, self.shortlist = compare, shortlist
        self.bounds: dict[str, Bound] = {}
        self.limits: dict[str, Limit] = {}
        self.found: dict[Key, Priced] = {}
        self.ended: dict[int, Done] = {}
        self.leads: dict[str, tuple[float, str]] = {}  # by collective the least time for the greatest size, and whose
        self.unordered: set[int] = set()  # tasks with a schedule that combines in several orders, where one is wanted
        self.schedules: dict[str, dict[Key, Schedule]] = {kind: {} for kind in context.collectives}
        for task in tasks:
            if task.entry is not None and task.kind not in task.entry.can["collectives"]:
                plans = ", ".join(task.entry.can["collectives"])
                self.ended[task.index] = Done(task.index, REFUSED, f"it does not plan {task.kind} (it plans {plans})")
            elif task.entry is not None and needs_switches(task.entry) and not context.in_switches:
                self.ended[task.index] = Done(task.index, REFUSED, f"planner {task.planner}: {CANNOT}")
        self.to_do = [task for task in tasks if task.index not in self.ended]
        self.total = len(self.to_do)
        self.done = 0

    def hear(self, message: Message | AtWork) -> None:
        if isinstance(message, AtWork):
            if self.progress is not None and message.tasks:
                workers = ", ".join(self._name_worker(*worker) for worker in message.tasks)
                self.progress(self.done, self.total, f"{AT_WORK}: {workers}")
            return
        task = self.tasks[message.index]
        if isinstance(message, Limits):
            context = self.context
            machine, target = context.seen(context.topology), context.collectives[task.kind]
            self.bounds[task.kind] = message.bound
            self.limits[task.kind] = Limit.of(message.seen, machine, target, message.latency)
            if self.library is not None:
                self.library.limits[task.kind] = Proven.of(message.bound, context.topology, target)
        elif isinstance(message, Priced):
            self._keep(task, message)
        else:
            self.ended[message.index] = self._judged(message)
            self.done += 1
            if self.progress is not None:
                self.progress(
                    self.done, self.total, f"{task.kind}: {task.planner or 'bounds'}{self._so_far(task.kind)}"
                )

    def _name_worker(self, index: int, seconds: float) -> str:
        """A candidate that is at work, such as "allreduce by trees pieces=4 (12 s of CPU time)"."""
        task = self.tasks[index]
        options = "".join(f" {key}={value}" for key, value in task.options.items())
        who = f"by {task.planner}{options}" if task.planner else "bounds"
        return f"{task.kind} {who} ({seconds:.0f} s of CPU time)"

    def _so_far(self, kind: str) -> str:
        """The best of a collective, for the greatest size."""
        if kind not in self.leads:
            return ""
        seconds, planner = self.leads[kind]
        size = self.context.sizes[-1]
        least = self.limits[kind].seconds(size) if kind in self.limits else 0.0
        gap = f", {seconds / least:.3f} times the bound" if least else ""
        return f" (best so far for {format_size(size)}: {planner}, {format_seconds(seconds)}{gap})"

    def _judged(self, end: Done) -> Done:
        """With one order wanted: a planner whose schedules all have several is refused."""
        alike = any(key[0] == end.index for key in self.found)
        return Done(end.index, REFUSED, SEVERAL_ORDERS) if end.index in self.unordered and not alike else end

    def _keep(self, task: Task, found: Priced) -> None:
        key = (found.index, found.variant)
        if self.context.deterministic and found.order is None and task.planner in self.names:
            self.unordered.add(found.index)
            return
        self.found[key] = replace(found, schedule=None)  # type: ignore[arg-type]
        if task.planner not in self.names:
            return
        self.leads[task.kind] = min(self.leads.get(task.kind, (math.inf, "")), (found.seconds[-1], task.planner))
        kept = self.schedules[task.kind]
        kept[key] = found.schedule
        for other in kept.keys() - self._wanted(kept):
            del kept[other]

    def _wanted(self, kept: Mapping[Key, Schedule]) -> set[Key]:
        """Those that can still win; with a shortlist also those that may turn out to be as good when measured."""
        found: set[Key] = set()
        for order in {self.found[key].order for key in kept}:  # one, unless orders count
            found |= self._wanted_of({key: self.found[key].seconds for key in kept if self.found[key].order == order})
        return found

    def _wanted_of(self, times: Mapping[Key, Sequence[float]]) -> set[Key]:
        wanted = worth_keeping(times)
        if self.shortlist:
            wanted |= nearest(times, self.shortlist)
            for name in CLASSICS:
                wanted |= nearest({key: t for key, t in times.items() if self.tasks[key[0]].planner == name}, 1)
        return wanted

    # ---- the result ----

    def close(
        self, span: tuple[int, int], losses: Sequence[Loss], damage: Damage | None, complete: bool,
        sweep: Mapping[str, tuple[Value, ...]],
    ) -> Tuning:  # fmt: skip
        context = self.context
        calls: dict[int, list[Priced]] = defaultdict(list)
        for key, found in self.found.items():
            calls[key[0]].append(found)
        rows = {key: self._candidate(key, calls, also) for key, also in self._distinct().items()}
        listed: list[Candidate] = []
        for task in self.tasks:
            if task.entry is not None:
                listed += [row for key, row in rows.items() if key[0] == task.index]
                end = self.ended.get(task.index)
                if end is not None and end.status != OK:
                    told = (task.kind, task.planner, task.options, end.status, end.reason)
                    listed.append(Candidate(*told, ended_by=end.by))
        unbound = {
            task.kind: end.reason or end.status for task in self.tasks
            if task.entry is None and (end := self.ended.get(task.index)) is not None and end.status != OK
        }  # fmt: skip
        limits = {kind: self.limits[kind] for kind in context.collectives if kind in self.limits}
        nccl = {kind: self._baseline(kind) for kind in context.collectives if self.compare}
        empty = Tuning(
            context.topology, context.model_name, span, context.sizes, tuple(context.collectives), tuple(listed), (),
            limits, {kind: names for kind, (names, _) in nccl.items()}, {}, tuple(losses), complete,
            name_of(context.profile),
            {kind: why for kind, (_, why) in nccl.items() if why and self.library is None}, damage, sweep,
            untried=sum(task.entry is not None and task.index not in self.ended for task in self.tasks),
            no_bound=unbound, library=self.library,
        )  # fmt: skip
        ranges: list[Range] = []
        plans: dict[str, Plan] = {}
        for kind, kept in self.schedules.items():
            if kept:
                mine = self._ranges(kind, empty, rows)
                ranges += [r for _, r in mine]
                plans[kind] = self._plan(kind, mine)
        short = {kind: self._short(kind, rows) for kind in plans} if self.shortlist else {}
        return replace(empty, ranges=tuple(ranges), plans=plans, shortlist=short)

    def _short(self, kind: str, rows: Mapping[Key, Candidate]) -> tuple[Listed, ...]:
        """What was kept, each schedule once, with what a plan claims of it."""
        listed: dict[bytes, Listed] = {}
        for key in sorted(self.schedules[kind]):
            if key in rows:
                row, found = rows[key], self.found[key]
                claims = {"planner": row.planner, "options": dict(row.options), "variant": row.variant}
                claims |= self._figures(kind, row) | self._order(key)
                listed.setdefault(found.mark, Listed(row, self.schedules[kind][key], claims))
        return tuple(listed.values())

    def _order(self, key: Key) -> dict[str, Any]:
        return {"order": self.found[key].order} if self.context.deterministic else {}

    def _figures(self, kind: str, candidate: Candidate) -> dict[str, Any]:
        figures = dict(candidate.figures)
        if kind in self.bounds:
            figures |= gaps(figures, candidate.seconds_per_byte, self.bounds[kind])
        return figures

    def _distinct(self) -> dict[Key, list[Key]]:
        """What was found, in order; of equal schedules of one planner only the first, with the others behind it."""
        first: dict[tuple[str, str, bytes], Key] = {}
        distinct: dict[Key, list[Key]] = {}
        for key in sorted(self.found):
            task = self.tasks[key[0]]
            leader = first.setdefault((task.kind, task.planner, self.found[key].mark), key)
            others = distinct.setdefault(leader, [])
            if leader[0] != key[0]:
                others.append(key)
        return distinct

    def _baseline(self, kind: str) -> tuple[tuple[str, ...], str]:
        able = {self.tasks[index].planner for index, _ in self.found if self.tasks[index].kind == kind}
        return baseline(kind, self.tasks, self.ended, able, groups_of(self.context.topology, kind))

    def _candidate(self, key: Key, calls: Mapping[int, Sequence[Priced]], also: Sequence[Key]) -> Candidate:
        found, task, sizes = self.found[key], self.tasks[key[0]], self.context.sizes
        why = zip(found.bottlenecks, found.terms, strict=True)
        others = {key[0]: dict(self.tasks[key[0]].options) for key in also}
        return Candidate(
            task.kind, task.planner, self._options(key, calls[key[0]]), OK, "", found.variant,
            dict(zip(sizes, found.seconds, strict=True)), dict(zip(sizes, why, strict=True)),
            dict(zip(sizes, found.rests_on, strict=True)), found.figures, found.seconds_per_byte,
            task.planner in self.names, tuple(others.values()),
            alone=dict(zip(sizes, found.alone, strict=False)),
        )  # fmt: skip

    def _options(self, key: Key, call: Sequence[Priced]) -> dict[str, Any]:
        """The options asked for; of several schedules of one planner call also those in which they differ."""
        task = self.tasks[key[0]]
        assert task.entry is not None
        mine = self.found[key].made_with
        told = {k: v for k, v in mine.items() if k in task.entry.can["options"] and k not in task.options}
        return {**task.options, **{k: v for k, v in told.items() if any(a.made_with.get(k) != v for a in call)}}

    def _ranges(self, kind: str, tuning: Tuning, rows: Mapping[Key, Candidate]) -> list[tuple[Key, Range]]:
        sizes = tuning.sizes
        times = {key: self.found[key].seconds for key in self.schedules[kind]}
        alike = best_order(times, {key: self.found[key].order for key in times})
        chosen = winners({key: times[key] for key in alike})
        served = [
            self._served_by(kind, times[key][i], tuning, size)
            for i, (key, size) in enumerate(zip(chosen, sizes, strict=True))
        ]
        found = []
        start = sizes[0]
        for (key, library), _, last in runs(list(zip(chosen, served, strict=True))):
            at = sizes[last]
            seconds = rows[key].seconds[at]
            least = tuning.limits[kind].seconds(at) if kind in tuning.limits else 0.0
            nccl = tuning.baseline(kind, at)
            stop = sizes[last + 1] if last + 1 < len(sizes) else sizes[-1]
            if last + 1 < len(sizes) and not library and served[last + 1]:
                stop = at + 1  # between a size of ours and one of the library's nothing is known to be faster
            ends, start = (start, stop), stop
            gap = seconds / least if least else None
            if gap is not None and abs(gap - 1) < TIE:  # rounded otherwise than the bound, and as fast
                gap = 1.0
            speedup = nccl / seconds if nccl is not None and seconds else None
            without = self._without(rows[key], rows, at)
            basis, units = self._basis(rows[key], at), self._units(rows[key])
            error = error_at(kind, at)
            beyond = None if error is None or speedup is None else speedup > 1 + error
            others = self._runners_up(rows[key], rows, at)
            told = Range(
                kind,
                *ends,
                at,
                rows[key],
                seconds,
                gap,
                speedup,
                without,
                *basis,
                *units,
                library,
                beyond,
                others,
                self.library.name if self.library is not None else "",
            )
            found.append((key, told))
        return found

    def _served_by(self, kind: str, seconds: float, tuning: Tuning, nbytes: int) -> str:
        """The library to leave a size to, as ours is not faster by its model; "" where it is, or no model is known."""
        if self.library is None or not self.compare or not seconds:
            return ""
        nccl = tuning.baseline(kind, nbytes)
        return "" if nccl is None or nccl / seconds >= MIN_SPEEDUP else self.library.name

    def _runners_up(self, best: Candidate, rows: Mapping[Key, Candidate], at: int) -> tuple[Candidate, ...]:
        """The next best at a size, for runtimes that cannot take the best; one that uses no switches is there."""
        others = [row for row in rows.values() if row.collective == best.collective and row.may_win and row is not best]
        order = sorted(others, key=lambda row: row.seconds[at])
        alone = [row for row in order if not row.uses][:1]
        return tuple(dict.fromkeys([*order[:RUNNERS_UP], *alone]))

    def _basis(self, mine: Candidate, at: int) -> tuple[str, str]:
        """What NCCL would choose, where that is known, and what its figures and ours rest on."""
        if self.library is None or not self.compare:
            alone = self.compare and CALIBRATED in mine.rests_on[at]
            return "", mine.rests_on[at] + (f"; {HERE} {NOT_CALIBRATED}" if alone else "")
        kind = mine.collective
        return self.library.at(kind, at)[0].name, together([mine.rests_on[at], self.library.brief(kind, at)])

    def _units(self, mine: Candidate) -> tuple[int | None, int | None]:
        """Multiprocessors that it takes at most, and how many there are: as many as NCCL for what does the like."""
        if self.library is None or self.library.costs.gpu.units is None:
            return None, None
        many = taken(self.library.costs, NVLS if mine.uses else RING)
        return many, None if many is None else self.library.costs.gpu.units.of

    def _without(self, mine: Candidate, rows: Mapping[Key, Candidate], at: int) -> Without | None:
        """What a runtime has at this size that lets no switches help; None where this one asks none to."""
        if not mine.uses:
            return None
        others = [row for row in rows.values() if row.collective == mine.collective and row.may_win and not row.uses]
        best = min(others, key=lambda row: row.seconds[at], default=None)
        if best is None:
            return Without(mine.alone.get(at))
        return Without(mine.alone.get(at), best.planner, best.options, best.seconds[at])

    def _plan(self, kind: str, mine: Sequence[tuple[Key, Range]]) -> Plan:
        """The winners as a plan: the first holds for all smaller sizes, the last for all greater ones."""
        starts = [0, *(r.start for _, r in mine[1:])]
        stops = [*starts[1:], None]
        entries = []
        for (key, r), start, stop in zip(mine, starts, stops, strict=True):
            figures = self._figures(kind, r.candidate)
            told = {k: v for k, v in r.as_json().items() if k not in ("collective", "from", "to")}
            claims = {**told, **figures, **self._order(key), "model": self.context.model_name}
            if self.context.profile is not None:
                claims["profile"] = name_of(self.context.profile)
            entries.append(PlanEntry(start, stop, self.schedules[kind][key], claims))
        return Plan(self.context.topology, self.context.collectives[kind], tuple(entries))


def name_of(profile: Profile | None) -> str | None:
    return None if profile is None else profile.name or "(unnamed)"
