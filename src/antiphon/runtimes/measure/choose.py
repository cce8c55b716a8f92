"""Tuning by measuring: what the model holds to be best, and the classics, against each other and the library's own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut
from antiphon.runtimes.engine.launch import launched
from antiphon.runtimes.measure._choose_rows import best_at, entries, one_order
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.rows import can, cuts_of, first_on, row_of, runtime
from antiphon.select import Listed, Tuning, save_plans, tune
from antiphon.units import format_size, parse_sizes

NBYTES, FACTOR = "1KB:16MB", 4
FEW = 4  # of the model's best at every size
GRACE = 30.0  # seconds after the limit until a launch that hangs is ended; it should notice by itself
Measured = dict[int, dict[int, Row]]  # by size, and by number in the shortlist
Progress = Callable[[int, int, str], None]
Whose = tuple[str, int, int]  # the collective, the size, the number in the shortlist


@dataclass(frozen=True, eq=False)
class MeasuredTuning:
    """The result: `plans` by collective, whose entries claim what was measured; `rows`: all measurements;
    `tuning`: what the model said. `complete` is False where
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
            "over_library",
            "ties",
            "use",
            "served_by",
            "measured",
            "at",
            "order",
            "measurements",
            "library",
            "library_seconds",
            "library_over_default",
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
    races: type[Races] | None = None,
    **options: Any,
) -> MeasuredTuning | None:
    """`tune`, then measure: at each size of a ladder (`nbytes`, each `factor` times the last where it names no factor)
    the `few` best by the model, priced as the runtime sends them, and the classics, race: they run in turn, with the
    library's own collective among them, until it is certain which is fastest, or it is that they differ by less than
    2 %, or each has had 8 times `iterations`, or the time is over. Who surely is slower leaves early. The entries claim
    the winner's figures, and as `ties` who may be as fast; where the library is at least as fast (ours takes 0.98 of
    its time or more) the entry claims "served_by": "library". Between two sizes a range ends at their geometric middle;
    below the least and above the greatest size measured the library serves.

    `limit`: seconds for all measurements; sizes that were not measured until then count as not asked for. `options`:
    those of `tune`; with `deterministic` the library is never chosen for what combines. Ctrl-C keeps what was found.
    `races`: what is measured, if it is not this. Under mpiexec or srun
    only process 0 has a result, the others None.
    """
    ladder = parse_sizes(nbytes or NBYTES, usual=factor)
    how = How(mpiexec, compiler, math.inf, scale)
    how.refuse_unless(on, can(on)["options"])
    with first_on(on, how) as deciding:
        if not deciding:
            return None
        if launched():
            options["workers"] = "none"  # an MPI process should not start others of its kind
        found = tune(
            wanted,
            topology,
            nbytes=ladder,
            nccl=False,
            shortlist=few,
            cuts=cuts_of(on),
            in_switches=bool(can(on).get("in_switches")),
            progress=progress,
            **options,
        )
        if not found.plans:
            raise NotFound(f"no planner could plan {wanted} on {found.topology.name}")
        usual = Case(0, [], 0, 0, data_type(dtype).name, op, repeat=iterations, warmup=warmup)
        work = (races or Races)(found, ladder, few, on, how, limit, progress, usual)
        return work.go(bool(options.get("deterministic")))


class Races:
    """The measurements of one tuning: a race for each collective and size."""

    def __init__(
        self, found: Tuning, ladder: Sequence[int], few: int, on: str, how: How, limit: float,
        progress: Progress | None, usual: Case,
    ) -> None:  # fmt: skip
        self.found, self.ladder, self.few, self.on, self.how = found, ladder, few, on, how
        self.progress, self.usual, self.limit = progress, usual, limit
        self.ends = time.monotonic() + limit
        self.rows: list[Row] = []
        self.complete = found.complete
        self.interrupted = not found.complete
        self.unmeasured = 0

    def go(self, deterministic: bool) -> MeasuredTuning:
        found = self.found
        rows: dict[str, Measured] = {kind: {n: {} for n in self.ladder} for kind in found.plans}
        self.measure(rows)
        plans = {}
        for kind, mine in rows.items():
            listed = found.shortlist[kind]
            order = one_order(listed, mine) if deterministic else None
            free = order is None or not found.plans[kind].collective.combining  # the library has an order of its own
            choices = [
                best_at(size, listed, order, mine[size], free, self.case(kind, size).nbytes) for size in self.ladder
            ]
            plans[kind] = Plan(found.topology, found.plans[kind].collective, tuple(entries(choices, self.on, free)))
        return MeasuredTuning(found, self.on, plans, tuple(self.rows), self.complete, self.interrupted, self.unmeasured)

    def contestants(self, kind: str, size: int) -> list[int]:
        """Their numbers in the shortlist, the likeliest first."""
        shortlist = self.found.shortlist[kind]
        order = sorted(range(len(shortlist)), key=lambda n: (shortlist[n].candidate.seconds[size], n))
        few = set(order[: self.few]) | self._classics(shortlist, order)
        return [number for number in order if number in few]

    @staticmethod
    def _classics(shortlist: Sequence[Listed], order: Sequence[int]) -> set[int]:
        """Of every classic planner its best at this size by the model."""
        from antiphon.select.libraries import CLASSICS

        best: dict[str, int] = {}
        for number in order:
            best.setdefault(shortlist[number].candidate.planner, number)
        return {number for planner, number in best.items() if planner in CLASSICS}

    def case(self, kind: str, size: int) -> Case:
        weight = self.found.plans[kind].collective.buffer_weight * data_type(self.usual.dtype).itemsize
        unit = max(size // weight, 1)
        return replace(self.usual, unit=unit, nbytes=unit * weight, inner=inner_of(unit * weight))

    def cases(self) -> tuple[list[Runnable], list[Case], list[Whose]]:
        """What races: programs, cases, and of each of these the collective, the size, and the number in the shortlist.

        A race has the ranks that any of its contestants needs."""
        programs: list[Runnable] = []
        numbers: dict[tuple[str, int], int] = {}
        cases, whose = list[Case](), list[Whose]()
        races = [(kind, size) for size in self.ladder for kind in self.found.plans]
        for race, (kind, size) in enumerate(races):
            some = self.contestants(kind, size)
            for number in some:
                if (kind, number) not in numbers:
                    numbers[kind, number] = len(programs)
                    programs.append(Runnable(self.found.shortlist[kind][number].schedule, self.found.topology))
            ranks = sorted({rank for number in some for rank in programs[numbers[kind, number]].ranks})
            case = replace(self.case(kind, size), ranks=ranks, race=race, seconds=self.limit / len(races))
            cases += [replace(case, program=numbers[kind, number]) for number in some]
            whose += [(kind, size, number) for number in some]
        return programs, cases, whose

    def measure(self, rows: Mapping[str, Measured]) -> None:
        """All in one launch; what comes is kept, whatever ends it."""
        programs, cases, whose = self.cases()
        done = 0

        def heard(number: int, row: Row) -> None:
            nonlocal done
            done += 1
            self.heard(whose[number], cases[number], row, rows, (done, len(cases)))

        try:
            if time.monotonic() < self.ends:
                how = replace(self.how, timeout=self.ends - time.monotonic() + GRACE)
                runtime(self.on).run(programs, cases, how, heard, lambda: time.monotonic() >= self.ends)
        except KeyboardInterrupt:
            self.interrupted = True
        except TimedOut:
            pass
        self.complete = self.complete and done == len(cases)
        self.unmeasured += len(cases) - done

    def heard(self, whose: Whose, case: Case, row: Row, rows: Mapping[str, Measured], at: tuple[int, int]) -> None:
        """A measurement; `at`: how many there are now, and of how many."""
        kind, size, listed = whose
        candidate = self.found.shortlist[kind][listed].candidate
        if self.progress is not None:
            self.progress(*at, f"{kind} of {format_size(size)}: {candidate.planner} is measured")
        told = {"collective": kind, "planner": candidate.planner, "options": dict(candidate.options)}
        self.rows.append({**told, **row_of(case, self.found.plans[kind].collective, row, self.on)})
        if row["wrong"]:
            raise Infeasible(
                f"{kind} by {candidate.planner} at {format_size(size)}: {row['wrong']} elements were wrong; "
                "please report it"
            )
        rows[kind][size][listed] = row
