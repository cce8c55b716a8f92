"""Tune by measuring: race the model's best schedules, the classic algorithms and the library's own collective.

Input: a request as of `tune`, and where to measure. `tune` finds the candidates by a cost model and keeps the best of
each size, with their schedules (the shortlist). A *job* is one start of all processes of a runtime. In one job, for
each size, the contestants run in turn (`race`) until the fastest is known or the time limit ends. The result
(`MeasuredTuning`) has ranges between the measured sizes, each with the fastest schedule or left to the library.
Example, with sizes 1 KB, 4 KB and 16 KB:

    1 KB     ring 12 us, trees 9 us, library 7 us        the library below 4 KB
    4 KB     ring 15 us, trees 10 us, library 12 us      trees from 4 KB to 8 KB (the geometric middle)
    16 KB    ring 20 us, trees 25 us, library 24 us      ring from 8 KB to 16 KB; nothing above was measured: library

The cores and the memory that a job gets can make one contestant twice as slow throughout the job. So winners that beat
the library race it again in `CONFIRMATIONS` more jobs, and the worst of all their results counts.

Where a combining order must be the same at all sizes (`deterministic`), the order is chosen first, by the product of
the best relative times over all sizes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeVar

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut
from antiphon.registry import find
from antiphon.runtimes.engine.launch import is_launched
from antiphon.runtimes.measure.case import Case, How, Row, Runnable, inner_of
from antiphon.runtimes.measure.race import MARGIN, beats_library
from antiphon.runtimes.measure.rows import cuts_of, deciding_process, load_runtime, row_of
from antiphon.select import Listed, Tuning, save_plans, tune
from antiphon.select.ranges import MIN_TIME
from antiphon.units import format_size, parse_sizes

NBYTES, FACTOR = "1KB:16MB", 4  # sizes that are measured, and the factor between them
FEW = 4  # contestants (schedules that race) per size that the model chooses, beside classic algorithms
CONFIRMATIONS = 3  # jobs in which winners race the library again
CONFIRM_SHARE = 0.06  # of the time limit for each of them; the first job gets the rest, 82 %
CONSECUTIVE = 4  # in these jobs: at least this many calls are timed as one
GRACE = 30.0  # seconds after the limit until a job that hangs is killed; normally it stops by itself
Measured = dict[int, dict[int, Row]]  # by size, and by number in the shortlist
Progress = Callable[[int, int, str], None]  # called with the number of measurements, their total, and a text


class Owner(NamedTuple):
    """What a case measures: the collective's kind, the size in bytes, the number in the shortlist."""

    kind: str
    size: int
    number: int


@dataclass(frozen=True, eq=False)
class MeasuredTuning:
    """The result of tuning by measurements.

    Attributes
    ----------
    tuning
        The result of the model, with all candidates.
    on
        The runtime on which they were measured.
    plans
        Plans by collective, whose entries claim the measured figures.
    rows
        All measurements.
    complete
        Whether everything was measured.
    interrupted
        Whether Ctrl-C prevented that.
    unmeasured
        Number of missing measurements.
    notes
        For logs: the runs compared, and those left out, with reasons.
    """

    tuning: Tuning
    on: str
    plans: Mapping[str, Plan]
    rows: tuple[Row, ...]
    complete: bool
    interrupted: bool = False
    unmeasured: int = 0
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan, where one collective was tuned."""
        if len(self.tuning.collectives) != 1:
            raise Invalid(f"{len(self.tuning.collectives)} collectives were tuned; take one of .plans by its name")
        return next(iter(self.plans.values()))

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """The claims of the entries of all plans as JSON, with the sizes from and to (null: no end).

        `at`: the size of these figures, in bytes. `seconds`: the schedule's time. `reference_seconds`: the time of the
        library's default in the race against it. `use`: "ours" or "library"; `served_by`: the library, if it serves.
        By `--library-only`, also: `library`: the library and its fastest algorithm. `library_seconds`: the time of this
        algorithm. `library_over_default`: its time over that of the library's default."""
        keys = (
            "planner", "options", "seconds", "reference_seconds", "over_library", "ties", "use", "served_by",
            "measured", "at", "order", "measurements", "library", "library_seconds", "library_over_default",
        )  # fmt: skip
        return [
            {"collective": kind, "from": entry.start, "to": entry.stop,
             **{key: entry.claims[key] for key in keys if key in entry.claims}}
            for kind, plan in self.plans.items() for entry in plan.entries
        ]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        facts = {
            "topology": self.tuning.topology.name, "on": self.on, "complete": self.complete,
            "stopped": self.tuning.stopped, "unmeasured": self.unmeasured,
        }  # fmt: skip
        facts |= {"notes": list(self.notes)} if self.notes else {}
        return {**facts, "ranges": self.ranges, "rows": [dict(row) for row in self.rows]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plans: one collective as a plan, several as a table."""
        save_plans(path, self.plans, self.tuning.model, table=len(self.tuning.collectives) > 1)


def tune_measured(  # noqa: PLR0913
    collective: str | Collective,
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
    library: str = "",
    progress: Progress | None = None,
    races: type[Races] | None = None,
    **options: Any,
) -> MeasuredTuning | None:
    """Tune by the model, then measure.

    At each of the sizes `nbytes` (in a range without a factor of its own: `factor` apart) the contestants race: the
    `few` best by the model, priced with the runtime's message sizes, and the classic algorithms. They run in turn, with
    the library's own collective, until it is certain which is fastest or that they differ by less than 2 %, or each has
    had 8 times `iterations` runs, or the time is over. Contestants that are surely slower are eliminated early.

    The entries claim the figures of the winner, and as `ties` the schedules that may be as fast. Where ours is not
    clearly faster than the library (see `race.MARGIN`) an entry claims "served_by": "library". A range ends at the
    geometric middle between two sizes. Below the smallest and above the largest size measured the library serves.

    `limit`: seconds for all measurements; sizes not measured by then are left out. `options`: of `tune`; with
    `deterministic` the library never serves collectives that combine. Ctrl-C keeps the results so far. `races`: a
    subclass that measures something else. `mpiexec`, `compiler`, `scale`, `library`: as in `How`; "" is the default.
    Under mpiexec or srun only process 0 has a result, the others None.
    """
    sizes = parse_sizes(nbytes or NBYTES, usual=factor)
    # (`_run_job` sets the timeout of each job)
    how = How(mpiexec=mpiexec, compiler=compiler, timeout=math.inf, scale=scale, library=library)
    how.refuse_unless(on, find("runtime", on).can.options)
    with deciding_process(on, how) as deciding:
        if not deciding:
            return None
        # the search by the model: candidates for the races, priced with the runtime's message sizes
        if is_launched():
            options["workers"] = "none"  # an MPI process should not start others of its kind
        tuning = tune(
            collective,
            topology,
            nbytes=sizes,
            nccl=False,  # no comparison with NCCL's predicted times: the library itself is measured
            shortlist=few,
            cuts=cuts_of(on),  # how the runtime cuts messages into pieces of its own
            in_switches=find("runtime", on).can.in_switches,
            progress=progress,
            **options,
        )
        if not tuning.plans:
            raise NotFound(f"no planner could plan {collective} on {tuning.topology.name}")
        default_case = Case(dtype=data_type(dtype).name, op=op, repeat=iterations, warmup=warmup)
        work = (races or Races)(tuning, sizes, few, on, how, limit, progress, default_case)
        return work.measure_and_choose(bool(options.get("deterministic")))


class Races:
    """The measurements of one tuning: a race for each collective and size. `default_case`: fields that all share."""

    confirms = True  # whether winners race the library again

    def __init__(
        self, tuning: Tuning, sizes: Sequence[int], few: int, on: str, how: How, limit: float,
        progress: Progress | None, default_case: Case,
    ) -> None:  # fmt: skip
        self.tuning, self.sizes, self.few, self.on, self.how = tuning, sizes, few, on, how
        self.progress, self.default_case = progress, default_case
        self.began, self.limit = time.monotonic(), limit
        self.rows: list[Row] = []
        self.complete = tuning.complete
        self.interrupted = not tuning.complete  # only Ctrl-C leaves the search by the model incomplete
        self.unmeasured = 0
        # an MPI process cannot launch others
        self.confirmations = CONFIRMATIONS if self.confirms and not is_launched() else 0

    def measure_and_choose(self, deterministic: bool) -> MeasuredTuning:
        """Measure everything, and choose a schedule or the library for every size."""
        tuning = self.tuning
        rows: dict[str, Measured] = {kind: {size: {} for size in self.sizes} for kind in tuning.plans}
        if deterministic:  # one order serves all sizes, so a winner that races again need not be the one that is chosen
            self.confirmations = 0
        self.measure(rows)
        self.confirm(rows)
        plans = {}
        for kind, kind_rows in rows.items():
            listed = tuning.shortlist[kind]
            # all sizes must combine in one order, so choose the order before the schedules
            order = choose_order(listed, kind_rows) if deterministic else None
            # the library combines in an order of its own
            library_may_serve = order is None or not tuning.plans[kind].collective.combining
            choices = [
                choose_best_at(size, listed, order, kind_rows[size], library_may_serve, self.case(kind, size).nbytes)
                for size in self.sizes
            ]
            plans[kind] = Plan(
                tuning.topology, tuning.plans[kind].collective, tuple(make_entries(choices, self.on, library_may_serve))
            )
        return MeasuredTuning(
            tuning, self.on, plans, tuple(self.rows), self.complete, self.interrupted, self.unmeasured
        )

    def contestants(self, kind: str, size: int) -> list[int]:
        """Return the contestants by their numbers in the shortlist, the best by the model first."""
        shortlist = self.tuning.shortlist[kind]
        ranking = sorted(range(len(shortlist)), key=lambda n: (shortlist[n].candidate.seconds[size], n))
        # classic algorithms race even if the model prefers others: they guard against model errors
        selected = set(ranking[: self.few]) | self._best_classics(shortlist, ranking)
        return [number for number in ranking if number in selected]

    @staticmethod
    def _best_classics(shortlist: Sequence[Listed], ranking: Sequence[int]) -> set[int]:
        """Return the best schedule of every classic planner. `ranking`: numbers of schedules, the fastest first."""
        from antiphon.select.libraries import CLASSICS

        best: dict[str, int] = {}
        for number in ranking:
            best.setdefault(shortlist[number].candidate.planner, number)
        return {number for planner, number in best.items() if planner in CLASSICS}

    def case(self, kind: str, size: int) -> Case:
        """Return the case of a size, rounded down to whole elements per block."""
        unit_bytes = self.tuning.plans[kind].collective.buffer_weight * data_type(self.default_case.dtype).itemsize
        unit = max(size // unit_bytes, 1)
        return replace(self.default_case, unit=unit, nbytes=unit * unit_bytes, inner=inner_of(unit * unit_bytes))

    def cases(self) -> tuple[list[Runnable], list[Case], list[Owner]]:
        """Return programs, cases, and per case the collective, the size, and the number in the shortlist.

        A race has all ranks that any of its contestants needs."""
        programs: list[Runnable] = []
        numbers: dict[tuple[str, int], int] = {}
        cases, owners = list[Case](), list[Owner]()
        # by size first: if time ends early, the small sizes of all collectives are done
        races = [(kind, size) for size in self.sizes for kind in self.tuning.plans]
        for race, (kind, size) in enumerate(races):
            contestants = self.contestants(kind, size)
            for number in contestants:
                if (kind, number) not in numbers:
                    numbers[kind, number] = len(programs)
                    programs.append(Runnable(self.tuning.shortlist[kind][number].schedule, self.tuning.topology))
            # every contestant runs on the union of ranks, so that all calls of a race synchronize alike
            ranks = sorted({rank for number in contestants for rank in programs[numbers[kind, number]].ranks})
            # an upper bound: most races end much earlier, and the deadline of the job counts, too
            race_seconds = self.limit / len(races)
            case = replace(self.case(kind, size), ranks=ranks, race=race, seconds=race_seconds)
            cases += [replace(case, program=numbers[kind, number]) for number in contestants]
            owners += [Owner(kind, size, number) for number in contestants]
        return programs, cases, owners

    def measure(self, rows: Mapping[str, Measured]) -> None:
        """Measure everything in one job, and add the rows to `rows`; those received count, however the job ends."""
        programs, cases, owners = self.cases()
        if not cases:
            return
        deadline = self._end_before(self.confirmations)
        done = self._run_job(programs, cases, owners, rows, deadline)
        self.complete = self.complete and done == len(cases)
        self.unmeasured += len(cases) - done

    def _end_before(self, confirmations: int) -> float:
        """Return the time (of time.monotonic) that leaves enough of the limit for this number of confirmations."""
        return self.began + self.limit * (1 - confirmations * CONFIRM_SHARE)

    def confirm(self, rows: Mapping[str, Measured]) -> None:
        """Measure the winners that beat the library again; `rows` keeps the row of the job that was worst for each."""
        for remaining in reversed(range(self.confirmations)):
            winners = [
                Owner(kind, size, best)
                for size in self.sizes
                for kind, by_size in rows.items()
                if (best := self._winner(by_size[size])) is not None
            ]
            if self.interrupted or not winners:
                return
            confirmation_rows: dict[str, Measured] = {kind: {size: {} for size in self.sizes} for kind in rows}
            programs, cases = self._confirmation_cases(winners)
            self._run_job(programs, cases, winners, confirmation_rows, self._end_before(remaining))
            for kind, size, number in winners:
                before, now = rows[kind][size][number], confirmation_rows[kind][size].get(number)
                if now is not None and now["over_library"] > before["over_library"]:
                    race_keys = ("over_best", "over_best_interval", "tied")  # from the race against the other schedules
                    rows[kind][size][number] = {**now, **{key: before[key] for key in race_keys}}

    def _confirmation_cases(self, winners: Sequence[Owner]) -> tuple[list[Runnable], list[Case]]:
        """Return the programs and cases of races of each winner with the library alone.

        The first race timed single calls on fresh data, these time consecutive ones.
        """
        programs, cases = list[Runnable](), list[Case]()
        seconds = CONFIRM_SHARE * self.limit / len(winners)
        for race, (kind, size, number) in enumerate(winners):
            program = Runnable(self.tuning.shortlist[kind][number].schedule, self.tuning.topology)
            case = self.case(kind, size)
            inner = max(case.inner, CONSECUTIVE)
            programs.append(program)
            cases.append(replace(case, program=race, ranks=program.ranks, race=race, seconds=seconds, inner=inner))
        return programs, cases

    @staticmethod
    def _winner(size_rows: Mapping[int, Row]) -> int | None:
        """Return the best schedule of a size by its number, None if it does not beat the library."""
        best = fastest_number(size_rows)
        return best if best is not None and surely_beats_library(size_rows[best]) else None

    def _run_job(
        self, programs: Sequence[Runnable], cases: Sequence[Case], owners: Sequence[Owner],
        rows: Mapping[str, Measured], deadline: float,
    ) -> int:  # fmt: skip
        """Measure cases in one job until `deadline` at most, and add their rows. Return their number."""
        done = 0

        def on_row(number: int, row: Row) -> None:
            nonlocal done
            done += 1
            self.add_row(owners[number], cases[number], row, rows, (done, len(cases)))

        try:
            if time.monotonic() < deadline:
                how = replace(self.how, timeout=deadline - time.monotonic() + GRACE)
                runtime = load_runtime(self.on)
                runtime.run(programs, cases, how, on_row, enough=lambda: time.monotonic() >= deadline)
        except KeyboardInterrupt:
            self.interrupted = True
        # the rows received so far count
        except TimedOut:
            pass
        return done

    def add_row(
        self, owner: Owner, case: Case, row: Row, rows: Mapping[str, Measured], done_of_total: tuple[int, int]
    ) -> None:
        """Add a measurement. `done_of_total`: the number of measurements so far, and of all."""
        kind, size, number = owner
        candidate = self.tuning.shortlist[kind][number].candidate
        if self.progress is not None:
            self.progress(*done_of_total, f"{kind} of {format_size(size)}: {candidate.planner} is measured")
        facts = {"collective": kind, "planner": candidate.planner, "options": dict(candidate.options)}
        self.rows.append({**facts, **row_of(case, self.tuning.plans[kind].collective, row, self.on)})
        # a wrong result is an error of ours, not a slow contestant
        if row["wrong"]:
            raise Infeasible(
                f"{kind} by {candidate.planner} at {format_size(size)}: {row['wrong']} elements were wrong; "
                "please report it"
            )
        rows[kind][size][number] = row


# ---- ranges by measurements ----

# A measurement. "over_best", "over_library": its time over that of the race's winner, and of the library (None: without
# one). "over_library_interval": the ends of the interval in which the latter is almost certainly.
AnyRow = Mapping[str, Any]
Item = TypeVar("Item")  # the result at a size: a SizeChoice here, a `Best` in library_choose


@dataclass(frozen=True, eq=False)
class SizeChoice:
    """The best schedule at a size. `listed`: the schedule, with its claims and the times that the model predicts.
    `row`: its measurement; None if the model chose. `measured_bytes`: the size that was
    measured: `nbytes` rounded to whole elements per block; 0: none. `ties`: schedules that may be as fast."""

    nbytes: int
    listed: Listed
    row: AnyRow | None
    library: bool = False  # it serves, as the schedule is not surely faster
    measured_bytes: int = 0
    ties: tuple[Listed, ...] = ()


def relative_time(row: AnyRow) -> float:
    """Return the time over that of the winner of the race."""
    return float(row["over_best"])


def fastest_number(rows: Mapping[int, AnyRow]) -> int | None:
    """Return the number of the schedule that was fastest, the lowest of equal ones; None if none was measured."""
    return min(rows, key=lambda number: (relative_time(rows[number]), number), default=None)


def surely_beats_library(row: AnyRow) -> bool:
    """Return whether the library took part, and the schedule is faster beyond the measurement's spread."""
    if row["over_library"] is None:
        return False
    _, high = row["over_library_interval"]
    return beats_library(row["over_library"], high)


def choose_best_at(
    nbytes: int,
    shortlist: Sequence[Listed],
    order: str | None,
    rows: Mapping[int, AnyRow],
    library_may_serve: bool,
    measured_bytes: int,
) -> SizeChoice:
    """Return the best of the schedules measured (`rows`: by number in the shortlist); else the model's choice.

    Only schedules that combine in `order`, if given. `library_may_serve`: it does if ours is not faster."""

    def is_allowed(listed: Listed) -> bool:
        return order is None or listed.claims.get("order") == order

    measured = {number: row for number, row in rows.items() if is_allowed(shortlist[number])}
    best = fastest_number(measured)
    if best is None:
        allowed = [listed for listed in shortlist if is_allowed(listed)]
        return SizeChoice(nbytes, min(allowed, key=lambda listed: listed.candidate.seconds[nbytes]), row=None)
    row = measured[best]
    ties = tuple(shortlist[n] for n, other in sorted(measured.items()) if n != best and other["tied"])
    # in doubt the library serves
    library = library_may_serve and row["over_library"] is not None and not surely_beats_library(row)
    return SizeChoice(nbytes, shortlist[best], row, library=library, measured_bytes=measured_bytes, ties=ties)


def choose_order(shortlist: Sequence[Listed], rows: Mapping[int, Mapping[int, AnyRow]]) -> str | None:
    """Return the order of combining with the smallest product of best times over the sizes.

    It must have been measured at all sizes at which anything was. `rows`: by size and number."""
    measured = [size_rows for size_rows in rows.values() if size_rows]
    costs: dict[str | None, float] = {}
    for order in dict.fromkeys(listed.claims.get("order") for listed in shortlist):
        relative_times_by_size = [
            [relative_time(row) for number, row in size_rows.items() if shortlist[number].claims.get("order") == order]
            for size_rows in measured
        ]
        # product of the best relative times, as a sum of logarithms (MIN_TIME: 0 has none); infinite if it was not
        # measured somewhere
        costs[order] = math.fsum(
            math.log(max(min(relative_times), MIN_TIME)) if relative_times else math.inf
            for relative_times in relative_times_by_size
        )
    return min(costs, key=lambda order: costs[order])


def make_entries(choices: Sequence[SizeChoice], on: str, library_may_serve: bool) -> list[Entry]:
    """Return ranges by measurements, or one by the model. `library_may_serve`: as for `make_ranges`."""
    measured = [choice for choice in choices if choice.row is not None]
    # without any measurement the library serves all sizes, or, where it may not, the model's choice at the largest
    if not measured:
        return [_unmeasured_entry(0, None, choices[-1].listed, library_may_serve)]
    if library_may_serve:
        measured = leave_to_library(measured)
    return make_ranges(
        measured,
        lambda choice: choice,
        lambda choice: choice.library,
        lambda group: _range_claims(group, on),
        library_may_serve,
        _range_boundary,
    )


def leave_to_library(choices: Sequence[SizeChoice]) -> list[SizeChoice]:
    """Let the library serve where ours beat it only because the library was slowed down at that moment.

    The scheduling of processes can slow down one contestant and not the other for seconds, which the median of pairs
    does not reveal. But a call of fewer bytes takes no longer than one of more: so compare the least times over all
    rounds at this size and all larger ones.
    """
    decided: list[SizeChoice] = []
    our_least = library_least = math.inf
    # from the largest size down: a minimum at a larger size is an upper bound for smaller ones
    for choice in reversed(choices):
        row = choice.row or {}
        if row.get("reference_seconds"):  # the library took part
            our_least, library_least = min(our_least, row["least"]), min(library_least, row["reference_least"])
        # MARGIN is below 1: ours must take less than this fraction of the library's time
        slower = library_least < math.inf and our_least >= MARGIN * library_least
        decided.append(replace(choice, library=choice.library or slower))
    return decided[::-1]


def _middle_size(before: SizeChoice, after: SizeChoice) -> int:
    # geometric mean, as times are compared on a logarithmic scale of sizes
    return math.isqrt(before.nbytes * after.nbytes)


def _range_boundary(before: SizeChoice, after: SizeChoice) -> int:
    """Return where the range of the larger size begins. The library serves all sizes between one of ours and one of
    the library's, as nothing shows that ours is faster there."""
    if before.library and not after.library:
        return _min_bytes(after)
    if after.library and not before.library:
        return _max_bytes(before) + 1
    return _middle_size(before, after)


def make_ranges(
    items: Sequence[Item],
    choice_of: Callable[[Item], SizeChoice],
    served_by: Callable[[Item], object],
    claims: Callable[[Sequence[Item]], dict[str, Any]],
    library_may_serve: bool = True,
    boundary: Callable[[SizeChoice, SizeChoice], int] = _middle_size,
) -> list[Entry]:
    """Return ranges from the smallest to the largest size measured.

    `choice_of`: the `SizeChoice` of an item. `served_by`: of an item, what serves its size, to be compared.
    Consecutive sizes with the same schedule and the same `served_by` form a range with these `claims`; `boundary`:
    where a range between two sizes ends. Outside of them the library serves; without `library_may_serve` the nearest of
    our schedules, as the library would combine in another order.
    """
    groups = [list(group) for _, group in groupby(items, lambda item: (id(choice_of(item).listed), served_by(item)))]
    choices = [choice_of(item) for item in items]
    smallest, largest = min(map(_min_bytes, choices)), max(map(_max_bytes, choices))
    # the end of each group of sizes is the start of the next
    middles = [boundary(choice_of(before[-1]), choice_of(after[0])) for before, after in pairwise(groups)]
    entries = [
        Entry(start, stop, choice_of(group[0]).listed.schedule, claims(group))
        for group, start, stop in zip(groups, [smallest, *middles], [*middles, largest + 1], strict=True)
    ]
    below, above = choices[0].listed, choices[-1].listed
    # nothing was measured below the smallest and above the largest size
    if smallest:
        entries.insert(0, _unmeasured_entry(0, smallest, below, library_may_serve))
    return [*entries, _unmeasured_entry(largest + 1, None, above, library_may_serve)]


def _unmeasured_entry(start: int, stop: int | None, listed: Listed, library_may_serve: bool) -> Entry:
    return Entry(start, stop, listed.schedule, unmeasured_claims(listed, library_may_serve))


# the size that was measured is rounded to whole elements, which may be below or above the size requested
def _min_bytes(choice: SizeChoice) -> int:
    return min(choice.nbytes, choice.measured_bytes or choice.nbytes)


def _max_bytes(choice: SizeChoice) -> int:
    return max(choice.nbytes, choice.measured_bytes)


def unmeasured_claims(listed: Listed, library_may_serve: bool = True) -> dict[str, Any]:
    """Return the claims of a range in which nothing was measured: those of the schedule, without a time."""
    return {**listed.claims, "measured": False, **_use_claims(library_may_serve)}


def _use_claims(library: bool) -> dict[str, str]:
    """Return the claims on whether the library serves a range, or our schedule. `served_by`: which library."""
    return {"use": "library", "served_by": LIBRARY} if library else {"use": "ours"}


def _range_claims(group: Sequence[SizeChoice], on: str) -> dict[str, Any]:
    """Return the claims of a range: the figures at its largest size measured, and all measurements."""
    keys = ("seconds", "reference_seconds", "over_library")
    measurements = [
        {"nbytes": choice.nbytes, **{key: choice.row[key] for key in keys}} for choice in group if choice.row
    ]
    claims = {**group[0].listed.claims, "measured": True, "at": group[-1].nbytes}
    claims |= {**{key: measurements[-1][key] for key in keys}, "measured_on": on, "measurements": measurements}
    claims["ties"] = [
        {"planner": tie.candidate.planner, "options": dict(tie.candidate.options)} for tie in group[-1].ties
    ]
    return {**claims, **_use_claims(group[0].library)}
