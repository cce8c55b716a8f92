"""Tuning for an MPI library that stays as it is: its own algorithms are the candidates, and beside them stands what the
best of ours would give."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Unsupported
from antiphon.registry import find, table
from antiphon.runtimes.engine.launch import launched, launcher, watch
from antiphon.runtimes.measure._choose_rows import Choice, best_at, ranges, score, unmeasured
from antiphon.runtimes.measure.case import Case, How, Row, Runnable
from antiphon.runtimes.measure.choose import Measured, MeasuredTuning, Races, Whose, tune_measured
from antiphon.runtimes.measure.library import Candidate, Library, candidates, library_here, read
from antiphon.runtimes.measure.race import ALIKE
from antiphon.runtimes.measure.rows import row_of
from antiphon.select import Listed
from antiphon.units import format_size

FEW = 2  # of ours at every size
OURS = 0.2  # of the time for all measurements
PATIENCE = 120.0  # seconds for an MPI to say what it is
CHOICE = Candidate("default")  # what the library chooses by itself


@dataclass(frozen=True, eq=False)
class Best:
    """What is best at a size: of ours, and of the library's. `row`: of its best, its own choice in the same rounds
    beside it."""

    ours: Choice
    algorithm: Candidate
    row: Mapping[str, Any]


def tune_library(wanted: Any, topology: Topology | str, **given: Any) -> MeasuredTuning | None:
    """As `tune_measured`, but what races at every size is the library's own algorithms: a race of them and of what it
    chooses by itself, and one of the `few` (2) best of ours with that same choice beside them. Entries are all
    left to the library ("served_by"), and claim as `library` which algorithm it should take: "default" where none is
    faster than its own choice by more than 2 %. Their schedule is the best of ours, with its times."""
    given.setdefault("few", FEW)
    on = given.get("on", "mpi")
    if not find("runtime", on).can.get("algorithms"):
        able = " or ".join(name for name, entry in table("runtime").items() if entry.can.get("algorithms"))
        raise Unsupported(f"--library-only: is for --on {able}; nothing is known of what --on {on} can choose")
    if given.get("deterministic"):
        raise Unsupported("--deterministic: the library's algorithms add in orders of their own; leave one of them out")
    return tune_measured(wanted, topology, races=LibraryRaces, **given)


def library_used(how: How) -> Library:
    """What MPI there is: this process's own where it is one of an MPI, else of one that is started."""
    if launched():
        from mpi4py import MPI

        return library_here(MPI)
    said: list[dict[str, Any]] = []
    command = [*launcher(how.mpiexec, 1), sys.executable, "-m", "antiphon.runtimes.measure.library"]
    watch(command, said.append, PATIENCE)
    if not said or "fault" in said[0]:
        raise Unsupported(said[0]["fault"] if said else "--library-only: the MPI did not say what it is")
    return read(said[0])


class LibraryRaces(Races):
    """Two races for each collective and size: of ours, and of the library's algorithms."""

    def go(self, deterministic: bool) -> MeasuredTuning:
        found = self.found
        self.library = library_used(self.how)
        self.tried: dict[tuple[str, int], list[Candidate]] = {}
        self.theirs: dict[tuple[str, int], dict[int, Row]] = {}
        ours: dict[str, Measured] = {kind: {n: {} for n in self.ladder} for kind in found.plans}
        self.measure(ours)
        plans = {}
        for kind, mine in ours.items():
            seen = [best for size in self.ladder if (best := self._best(kind, size, mine[size])) is not None]
            entries = _entries(seen, found.shortlist[kind], self.library, self.on)
            plans[kind] = Plan(found.topology, found.plans[kind].collective, tuple(entries))
        return MeasuredTuning(found, self.on, plans, tuple(self.rows), self.complete, self.interrupted, self.unmeasured)

    def contestants(self, kind: str, size: int) -> list[int]:
        """Of ours what the model holds to be best."""
        shortlist = self.found.shortlist[kind]
        return sorted(range(len(shortlist)), key=lambda n: (shortlist[n].candidate.seconds[size], n))[: self.few]

    def cases(self) -> tuple[list[Runnable], list[Case], list[Whose]]:
        """Those of ours, and behind those of each size the library's, whose numbers go on from the shortlist's."""
        programs, mine, whose = super().cases()
        cases, owners = list[Case](), list[Whose]()
        for case, owner, later in zip(mine, whose, [*whose[1:], None], strict=True):
            cases.append(replace(case, race=2 * (case.race or 0), seconds=OURS * case.seconds))
            owners.append(owner)
            kind, size, _ = owner
            if later is not None and later[:2] == owner[:2]:
                continue
            members = list(self.found.plans[kind].collective.members)
            found = candidates(self.library, kind, len(members), case.nbytes)
            self.tried[kind, size] = [CHOICE, *found] if found else []
            share = (1 - OURS) * case.seconds
            theirs = replace(case, ranks=members, race=2 * (case.race or 0) + 1, seconds=share)
            for number, one in enumerate(self.tried[kind, size]):
                cases.append(replace(theirs, library=dict(one.settings)))
                owners.append((kind, size, len(self.found.shortlist[kind]) + number))
        return programs, cases, owners

    def heard(self, whose: Whose, case: Case, row: Row, rows: Mapping[str, Measured], at: tuple[int, int]) -> None:
        kind, size, number = whose
        number -= len(self.found.shortlist[kind])
        if number < 0:
            super().heard(whose, case, row, rows, at)
            return
        one = self.tried[kind, size][number]
        if self.progress is not None:
            self.progress(*at, f"{kind} of {format_size(size)}: the library's {one.name} is measured")
        if "refused" in row or row["wrong"]:
            return  # not one to choose
        told: Row = {"collective": kind, "planner": None, "options": {}, "algorithm": one.name, **one.parameters}
        self.rows.append({**told, **row_of(case, self.found.plans[kind].collective, row, self.on)})
        self.theirs.setdefault((kind, size), {})[number] = row

    def _best(self, kind: str, size: int, mine: Mapping[int, Row]) -> Best | None:
        """None where the library was not measured. Where there is one algorithm alone it is the library's choice."""
        ours = best_at(size, self.found.shortlist[kind], None, mine, True, self.case(kind, size).nbytes)
        theirs = self.theirs.get((kind, size), {})
        if theirs:
            number = min(theirs, key=lambda n: (score(theirs[n]), n))
            if 0 in theirs and score(theirs[0]) <= ALIKE:
                number = 0
            return Best(ours, self.tried[kind, size][number], theirs[number])
        if self.tried.get((kind, size)) == [] and ours.row is not None:
            return Best(ours, CHOICE, ours.row)
        return None


def _entries(seen: Sequence[Best], shortlist: Sequence[Listed], library: Library, on: str) -> list[Entry]:
    """Ranges between the sizes measured; all are the library's."""
    if not seen:
        if not shortlist:
            raise Infeasible("no schedule of ours to stand beside the library's")
        return [Entry(0, None, shortlist[0].schedule, unmeasured(shortlist[0]))]
    return ranges(seen, lambda best: best.ours, lambda best: best.algorithm, lambda group: _claims(group, library, on))


def _claims(group: Sequence[Best], library: Library, on: str) -> dict[str, Any]:
    told = [_size_row(best) for best in group]
    last = {key: value for key, value in told[-1].items() if key not in ("nbytes", "algorithm")}
    algorithm = group[0].algorithm
    return {
        **group[0].ours.listed.claims, **last, "measured": True, "at": group[-1].ours.nbytes, "measured_on": on,
        "measurements": told, "ties": [], "use": "library", "served_by": LIBRARY,
        "library": {**library.about, "algorithm": algorithm.name, "parameters": dict(algorithm.parameters)},
    }  # fmt: skip


def _size_row(best: Best) -> dict[str, Any]:
    """What was measured at one size. The library's own choice and its best took turns; ours and that choice did."""
    row, ours = best.row, best.ours.row or {}
    chosen = best.algorithm is not CHOICE  # its own choice is the reference, too
    return {
        "nbytes": best.ours.nbytes, "seconds": ours.get("seconds"), "over_library": ours.get("over_library"),
        "reference_seconds": row["reference_seconds"], "algorithm": str(best.algorithm.name),
        "library_seconds": row["seconds"] if chosen else row["reference_seconds"],
        "library_over_default": row["over_library"] if chosen else 1.0,
    }  # fmt: skip
