"""Tuning by measuring: what the model holds to be best, and the classics, against each other and the library's own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut
from antiphon.run._bench_wanted import How, Measure, Wanted, first_on, measure_on
from antiphon.run._choose_rows import Choice, Row, best_at, entries, leaders, one_order
from antiphon.run._launch import launched
from antiphon.select import Listed, Tuning, save_plans, tune
from antiphon.units import format_size, parse_sizes

NBYTES, FACTOR = "1KB:16MB", 4
FEW = 4  # of the model's best at every size
AGAIN = 2  # of the best at every size that are measured once more
Measured = dict[int, dict[int, Row]]  # by size, and by number in the shortlist
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class MeasuredTuning:
    """The result: `plans` by collective, whose entries claim what was measured; `rows`: all measurements, those those
    that were made once more of the best (`again`) at the end; `tuning`: what the model said. `complete` is False where
    not all was measured, `interrupted` where that was because of Ctrl-C; `unmeasured`: of the measurements that were to
    be made, how many were not."""

    tuning: Tuning
    on: str
    plans: Mapping[str, Plan]
    rows: tuple[Row, ...]
    complete: bool
    interrupted: bool = False
    unmeasured: int = 0

    @property
    def plan(self) -> Plan:
        """The plan, where one collective was tuned."""
        if len(self.tuning.collectives) != 1:
            raise Invalid(f"{len(self.tuning.collectives)} collectives were tuned; take one of .plans by its name")
        return next(iter(self.plans.values()))

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """As JSON: what the entries of the plans claim, with the sizes from and to (null: no end)."""
        keys = (
            "planner",
            "options",
            "seconds",
            "reference_seconds",
            "ratio",
            "served_by",
            "measured",
            "at",
            "order",
            "measurements",
        )
        return [
            {"collective": kind, "from": entry.start, "to": entry.stop,
             **{key: entry.claims[key] for key in keys if key in entry.claims}}
            for kind, plan in self.plans.items() for entry in plan.entries
        ]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        about = {
            "topology": self.tuning.topology.name, "on": self.on, "complete": self.complete,
            "stopped": self.tuning.stopped, "unmeasured": self.unmeasured,
        }  # fmt: skip
        return {**about, "ranges": self.ranges, "rows": [dict(row) for row in self.rows]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plans: one collective as a plan, several as a table."""
        save_plans(path, self.plans, self.tuning.model, table=len(self.tuning.collectives) > 1)


def tune_measured(  # noqa: PLR0913
    wanted: str | Collective,
    topology: Topology | str,
    *,
    on: str = "mpi",
    nbytes: str = "",
    factor: int = FACTOR,
    few: int = FEW,
    dtype: str = "float32",
    op: str = "sum",
    iterations: int = 20,
    warmup: int = 3,
    limit: float = 600.0,
    mpiexec: str = "",
    compiler: str = "",
    scale: str = "",
    progress: Progress | None = None,
    **options: Any,
) -> MeasuredTuning | None:
    """`tune`, then measure: at each size of a ladder (`nbytes`, each `factor` times the last where it names
    no factor) the `few` best by the model, and the classics, in turn with the library's own collective. The best two
    are measured once more, and of that are the figures that the entries claim; where the library is at least as fast
    (ours takes 0.98 of its time or more) the entry claims "served_by": "library". Between two sizes a range ends at
    their geometric middle; below the least and above the greatest size measured the library serves.

    `limit`: seconds for all measurements; sizes that were not measured until then count as not asked for. `options`:
    those of `tune`; with `deterministic` the library is never chosen for what combines. Ctrl-C keeps what was found.
    Under mpiexec or srun
    only process 0 has a result, the others None.
    """
    ladder = parse_sizes(nbytes or NBYTES, usual=factor)
    how = How(iterations, warmup, 0, mpiexec, compiler, math.inf, scale)
    measure = measure_on(on)
    with first_on(on, mpiexec, compiler) as deciding:
        if not deciding:
            return None
        if launched():
            options["workers"] = "none"  # an MPI process should not start others of its kind
        found = tune(wanted, topology, nbytes=ladder, nccl=False, shortlist=few, progress=progress, **options)
        if not found.plans:
            raise NotFound(f"no planner could plan {wanted} on {found.topology.name}")
        work = _Work(found, ladder, few, how, measure, limit, progress, (data_type(dtype).name, op))
        return work.go(on, bool(options.get("deterministic")))


class _Work:
    """The measurements of one tuning."""

    def __init__(
        self, found: Tuning, ladder: Sequence[int], few: int, how: How, measure: Measure, limit: float,
        progress: Progress | None, data: tuple[str, str],
    ) -> None:  # fmt: skip
        self.found, self.ladder, self.how, self.measure = found, ladder, how, measure
        self.few, self.progress, (self.dtype, self.op) = few, progress, data
        self.ends = time.monotonic() + limit
        self.rows: list[Row] = []
        self.complete = found.complete
        self.interrupted = not found.complete
        self.unmeasured = 0

    def go(self, on: str, deterministic: bool) -> MeasuredTuning:
        found = self.found
        jobs = sorted((job for kind in found.plans for job in self._jobs(kind)), key=lambda job: job[0])
        rows: dict[str, Measured] = {kind: {n: {} for n in self.ladder} for kind in found.plans}
        self._measure([(kind, size, number) for _, kind, size, number in jobs], rows)
        orders = {kind: self._order(kind, rows[kind]) if deterministic else None for kind in found.plans}
        chosen = {kind: self._chosen(kind, mine, orders[kind]) for kind, mine in self._again(rows, orders).items()}
        plans = {
            kind: Plan(
                found.topology,
                found.plans[kind].collective,
                tuple(entries(choices, on, self._free(kind, orders[kind]))),
            )
            for kind, choices in chosen.items()
        }
        return MeasuredTuning(found, on, plans, tuple(self.rows), self.complete, self.interrupted, self.unmeasured)

    def _jobs(self, kind: str) -> list[tuple[int, str, int, int]]:
        """(place in the model's order at this size, kind, size, number): so that the likeliest come first."""
        jobs = []
        shortlist = self.found.shortlist[kind]
        for size in self.ladder:
            order = sorted(range(len(shortlist)), key=lambda n: (shortlist[n].candidate.seconds[size], n))
            few = set(order[: self.few]) | self._classics(shortlist, order)
            jobs += [(place, kind, size, number) for place, number in enumerate(n for n in order if n in few)]
        return jobs

    @staticmethod
    def _classics(shortlist: Sequence[Listed], order: Sequence[int]) -> set[int]:
        """Of every classic planner its best at this size by the model."""
        from antiphon.select._baseline import CLASSICS

        best: dict[str, int] = {}
        for number in order:
            best.setdefault(shortlist[number].candidate.planner, number)
        return {number for planner, number in best.items() if planner in CLASSICS}

    def _wanted(self, kind: str, size: int, listed: Listed) -> Wanted:
        weight = self.found.plans[kind].collective.buffer_weight * data_type(self.dtype).itemsize
        unit = max(size // weight, 1)
        return Wanted(self.found.topology, listed.schedule, unit, unit * weight, self.dtype, self.op)

    def _measure(
        self,
        jobs: Sequence[tuple[str, int, int]],
        rows: Mapping[str, Mapping[int, dict[int, Row]]],
        again: bool = False,
    ) -> None:
        """All in one launch; what comes is kept, whatever ends it."""
        wanted = [self._wanted(kind, size, self.found.shortlist[kind][number]) for kind, size, number in jobs]
        left = iter(jobs)
        done = 0

        def heard(row: dict[str, Any] | None) -> None:
            nonlocal done
            done += 1
            kind, size, number = next(left)
            candidate = self.found.shortlist[kind][number].candidate
            if self.progress is not None:
                self.progress(done, len(jobs), f"{kind} of {format_size(size)}: {candidate.planner} is measured")
            if row is None:
                return
            told = {
                "collective": kind,
                "nbytes": size,
                "planner": candidate.planner,
                "options": dict(candidate.options),
            }
            self.rows.append({**told, **row, **({"again": True} if again else {})})
            if row["wrong"]:
                raise Infeasible(
                    f"{kind} by {candidate.planner} at {format_size(size)}: {row['wrong']} elements were wrong; "
                    "please report it"
                )
            rows[kind][size][number] = row

        if not wanted or time.monotonic() >= self.ends:
            self.complete = self.complete and not wanted
            self.unmeasured += len(wanted)
            return
        try:
            how = How(
                self.how.iterations,
                self.how.warmup,
                0,
                self.how.mpiexec,
                self.how.compiler,
                self._time(),
                self.how.scale,
            )
            self.measure(wanted, how, heard, lambda: time.monotonic() >= self.ends)
        except KeyboardInterrupt:
            self.interrupted, self.ends = True, 0.0  # no second round
        except TimedOut:
            pass
        self.complete = self.complete and done == len(jobs)
        self.unmeasured += len(jobs) - done

    def _time(self) -> float:
        """Until a launch that hangs is ended: a while after the limit, which it should notice by itself."""
        return max(self.ends - time.monotonic(), 0.0) + 30.0

    def _order(self, kind: str, rows: Mapping[int, Mapping[int, Row]]) -> str | None:
        return one_order(self.found.shortlist[kind], rows)

    def _again(self, rows: Mapping[str, Measured], orders: Mapping[str, str | None]) -> Mapping[str, Measured]:
        """The best few of each size once more, which then count: of many measurements the best is partly luck."""
        jobs = []
        alike: dict[str, Measured] = {}
        for kind, mine in rows.items():
            listed, order = self.found.shortlist[kind], orders[kind]
            alike[kind] = {
                size: {n: row for n, row in at.items() if order is None or listed[n].claims.get("order") == order}
                for size, at in mine.items()
            }
            jobs += [(kind, size, number) for size, at in alike[kind].items() for number in leaders(at, AGAIN)]
        more: dict[str, Measured] = {kind: {size: {} for size in self.ladder} for kind in rows}
        self._measure(jobs, more, again=True)
        return {kind: {size: more[kind][size] or at for size, at in mine.items()} for kind, mine in alike.items()}

    def _chosen(self, kind: str, rows: Measured, order: str | None) -> list[Choice]:
        free, listed = self._free(kind, order), self.found.shortlist[kind]
        return [
            best_at(size, listed, order, rows[size], free, self._wanted(kind, size, listed[0]).nbytes)
            for size in self.ladder
        ]

    def _free(self, kind: str, order: str | None) -> bool:
        """Whether calls may be left to the library, which combines in an order of its own."""
        return order is None or not self.found.plans[kind].collective.combining
