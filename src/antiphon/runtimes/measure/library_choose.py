"""Tune an unmodified MPI library: race its own algorithms, and show the gain that our best schedules would add.

`antiphon tune --library-only` calls `tune_library`; nccl_choose.py does the same with the settings of NCCL.

At every size each algorithm that the library can be set to use (by control variables, see `library`) takes turns with
the library's default. Our best schedules by the model do so in a race of their own. Only an algorithm that is faster
than the default beyond the noise (TIE_RATIO) is chosen. The result is a table that leaves every range to the library.
It names the algorithm to use, and beside it our best schedule with its time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Unsupported
from antiphon.registry import find, table
from antiphon.runtimes.engine.launch import is_launched, launcher_command, watch
from antiphon.runtimes.measure.case import Case, How, Row, Runnable
from antiphon.runtimes.measure.choose import (
    Measured,
    MeasuredTuning,
    Owner,
    Races,
    SizeChoice,
    choose_best_at,
    make_ranges,
    relative_time,
    tune_measured,
    unmeasured_claims,
)
from antiphon.runtimes.measure.library import Library, LibraryCandidate, candidates, library_here, read_library
from antiphon.runtimes.measure.race import TIE_RATIO
from antiphon.runtimes.measure.rows import row_of
from antiphon.select import Listed
from antiphon.units import format_size

FEW = 2  # number of our schedules that race at every size
OUR_SHARE = 0.2  # share of our races in the time for all measurements
TIMEOUT = 120.0  # seconds for an MPI to describe itself
DEFAULT = LibraryCandidate("default")  # the library's own choice


@dataclass(frozen=True, eq=False)
class Best:
    """Our best schedule and the library's best algorithm at a size. `row`: of the algorithm, racing the default."""

    ours: SizeChoice
    algorithm: LibraryCandidate
    row: Mapping[str, Any]


def tune_library(collective: Any, topology: Topology | str, **options: Any) -> MeasuredTuning | None:
    """Like `tune_measured`, but race the library's own algorithms at every size.

    There are two races per size, each with the library's default: its algorithms, and our `few` (default 2) best
    schedules. All entries of the plan are left to the library ("served_by"). Their claim `library` is the algorithm to
    use: "default" unless one is faster by more than 2 %. Their schedule is our best one, with its times."""
    options.setdefault("few", FEW)
    on = options.get("on", "mpi")
    if not find("runtime", on).can.algorithms:
        able = " or ".join(name for name, entry in table("runtime").items() if entry.can.algorithms)
        raise Unsupported(f"--library-only: is for --on {able}; nothing is known of what --on {on} can choose")
    if options.get("deterministic"):
        raise Unsupported("--deterministic: the library's algorithms add in orders of their own; leave one of them out")
    return tune_measured(collective, topology, **{"races": LibraryRaces, **options})


def library_used(how: How) -> Library:
    """Return the MPI of this process if a launcher started it, else that of a process started for it."""
    if is_launched():
        from mpi4py import MPI

        return library_here(MPI)
    rows: list[dict[str, Any]] = []
    command = [*launcher_command(how.mpiexec, count=1), sys.executable, "-m", "antiphon.runtimes.measure.library"]
    watch(command, rows.append, TIMEOUT)
    if not rows or "fault" in rows[0]:
        raise Unsupported(rows[0]["fault"] if rows else "--library-only: the MPI did not report its version")
    return read_library(rows[0])


class LibraryRaces(Races):
    """Two races for each collective and size: of our schedules, and of the library's algorithms."""

    confirms = False  # no schedule of ours will serve
    measures_ours = True  # in races of their own

    def measure_and_choose(self, deterministic: bool) -> MeasuredTuning:
        tuning = self.tuning
        self.library = self.find_library()
        # by collective and size: the algorithms tried; their rows, by index in `tried`
        self.tried: dict[tuple[str, int], list[LibraryCandidate]] = {}
        self.library_rows: dict[tuple[str, int], dict[int, Row]] = {}
        ours: dict[str, Measured] = {kind: {size: {} for size in self.sizes} for kind in tuning.plans}
        self.measure(ours)
        plans = {}
        for kind, rows in ours.items():
            best_by_size = [
                best for size in self.sizes if (best := self._best_at_size(kind, size, rows[size])) is not None
            ]
            entries = library_entries(best_by_size, tuning.shortlist[kind], self.library.description, self.on)
            plans[kind] = Plan(tuning.topology, tuning.plans[kind].collective, tuple(entries))
        return MeasuredTuning(
            tuning, self.on, plans, tuple(self.rows), self.complete, self.interrupted, self.unmeasured
        )

    def find_library(self) -> Library:
        """Return the library whose algorithms race."""
        return library_used(self.how)

    def list_tried(self, kind: str, size: int, ranks: int, nbytes: int) -> list[int]:
        """Add algorithms to those tried at a size; return the numbers (indices in `tried`) of those that race now."""
        algorithms = candidates(self.library, kind, ranks, nbytes)
        self.tried[kind, size] = [DEFAULT, *algorithms] if algorithms else []
        return list(range(len(self.tried[kind, size])))

    def contestants(self, kind: str, size: int) -> list[int]:
        """Return our best schedules by the model."""
        shortlist = self.tuning.shortlist[kind]
        return sorted(range(len(shortlist)), key=lambda n: (shortlist[n].candidate.seconds[size], n))[: self.few]

    def cases(self) -> tuple[list[Runnable], list[Case], list[Owner]]:
        """Return our cases, and after those of each size the library's, numbered after the shortlist."""
        programs, own_cases, own_owners = super().cases()
        cases, owners = list[Case](), list[Owner]()
        for case, owner, next_owner in zip(own_cases, own_owners, [*own_owners[1:], None], strict=True):
            if self.measures_ours:  # our races have even numbers, the library's odd ones (`race` is set in all cases)
                cases.append(replace(case, race=2 * (case.race or 0), seconds=OUR_SHARE * case.seconds))
                owners.append(owner)
            kind, size = owner.kind, owner.size
            if next_owner is not None and (next_owner.kind, next_owner.size) == (kind, size):
                continue
            # after our last case of a collective and size: the cases of the library
            members = list(self.tuning.plans[kind].collective.members)
            share = (1 - OUR_SHARE) * case.seconds
            library_case = replace(case, ranks=members, race=2 * (case.race or 0) + 1, seconds=share)
            for number in self.list_tried(kind, size, len(members), case.nbytes):
                cases.append(replace(library_case, library=dict(self.tried[kind, size][number].settings)))
                owners.append(Owner(kind, size, len(self.tuning.shortlist[kind]) + number))
        return programs, cases, owners

    def add_row(
        self, owner: Owner, case: Case, row: Row, rows: Mapping[str, Measured], done_of_total: tuple[int, int]
    ) -> None:
        kind, size, number = owner
        number -= len(self.tuning.shortlist[kind])
        if number < 0:
            super().add_row(owner, case, row, rows, done_of_total)
            return
        algorithm = self.tried[kind, size][number]
        if self.progress is not None:
            self.progress(*done_of_total, f"{kind} of {format_size(size)}: the library's {algorithm.name} is measured")
        if "refused" in row or row["wrong"]:
            return  # cannot be chosen
        facts: Row = {
            "collective": kind,
            "planner": None,
            "options": {},
            "algorithm": algorithm.name,
            **algorithm.parameters,
        }
        self.rows.append({**facts, **row_of(case, self.tuning.plans[kind].collective, row, self.on)})
        self.add_library_row((kind, size), number, row)

    def add_library_row(self, key: tuple[str, int], number: int, row: Row) -> None:
        """Keep the row of an algorithm, by its number among those tried."""
        self.library_rows.setdefault(key, {})[number] = row

    def best_number(self, key: tuple[str, int]) -> int | None:
        """Return the index of the fastest algorithm; 0, the default, if that is as fast; None if none was measured."""
        rows = self.library_rows.get(key, {})
        number = min(rows, key=lambda n: (relative_time(rows[n]), n), default=None)
        if number and 0 in rows and relative_time(rows[0]) <= TIE_RATIO * relative_time(rows[number]):
            return 0
        return number

    def _best_at_size(self, kind: str, size: int, rows: Mapping[int, Row]) -> Best | None:
        """Return the best at a size; None if the library was not measured.

        If the library has no choice of algorithms, the time of its default is that of the race with our schedules.
        """
        measured_bytes = self.case(kind, size).nbytes
        ours = choose_best_at(
            size, self.tuning.shortlist[kind], order=None, rows=rows, library_may_serve=True,
            measured_bytes=measured_bytes,
        )  # fmt: skip
        number = self.best_number((kind, size))
        if number is not None:
            return Best(ours, self.tried[kind, size][number], self.library_rows[kind, size][number])
        if self.tried.get((kind, size)) == [] and ours.row is not None:
            return Best(ours, DEFAULT, ours.row)
        return None


def library_entries(
    best_by_size: Sequence[Best], shortlist: Sequence[Listed], library: Mapping[str, str], on: str
) -> list[Entry]:
    """Return ranges between the sizes measured, all left to the library. `library`: its name, version and file."""
    # nothing was measured, so the whole range is unmeasured
    if not best_by_size:
        if not shortlist:
            raise Infeasible("no schedule of ours to stand beside the library's")
        return [Entry(start=0, stop=None, schedule=shortlist[0].schedule, claims=unmeasured_claims(shortlist[0]))]
    return make_ranges(
        best_by_size,
        lambda best: best.ours,
        lambda best: best.algorithm,
        lambda group: _group_claims(group, library, on),
    )


def _group_claims(group: Sequence[Best], library: Mapping[str, str], on: str) -> dict[str, Any]:
    """Return the claims of a range of sizes with one algorithm; the figures are those of its last size."""
    measurements = [_size_row(best) for best in group]
    last = {key: value for key, value in measurements[-1].items() if key not in ("nbytes", "algorithm")}
    algorithm = group[0].algorithm
    return {
        **group[0].ours.listed.claims, **last, "measured": True, "at": group[-1].ours.nbytes, "measured_on": on,
        "measurements": measurements, "ties": [], "use": "library", "served_by": LIBRARY,
        "library": {**library, "algorithm": algorithm.name, "parameters": dict(algorithm.parameters)},
    }  # fmt: skip


def _size_row(best: Best) -> dict[str, Any]:
    """Return the measurements at one size. Both the library's best and ours took turns with its default."""
    row, ours = best.row, best.ours.row or {}
    chosen = best.algorithm is not DEFAULT  # the default is the reference, too
    return {
        "nbytes": best.ours.nbytes, "seconds": ours.get("seconds"), "over_library": ours.get("over_library"),
        "reference_seconds": row["reference_seconds"], "algorithm": str(best.algorithm.name),
        "library_seconds": row["seconds"] if chosen else row["reference_seconds"],
        "library_over_default": row["over_library"] if chosen else 1.0,
    }  # fmt: skip
