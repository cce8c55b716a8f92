"""What each collective of a recorded job would take: by a table, by what was measured, or as a library does it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.core.collective import KINDS
from antiphon.core.plan import Plan
from antiphon.core.reshape import keep
from antiphon.core.topology import Topology
from antiphon.cost import ProfileLike
from antiphon.cost import predict as price
from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import AntiphonError, Invalid, Unsupported, quote

MEASURED = "measured"
MOST_GROUPS = 16
Planned = Callable[[str, Sequence[int], Sequence[int]], Plan]  # of a kind, among ranks, for sizes


@dataclass(frozen=True)
class Price:
    """Seconds of a collective, who says so, and what that rests on: MEASURED, or as `cost.predict` tells it."""

    seconds: float
    by: str
    rests_on: str


def members_of(group: ProcessGroup, machine: Topology) -> tuple[int, ...]:
    """The ranks of the machine that a group is; where the traces do not tell, all, or the first ones; () where the
    first ones may be nearer to each other than it is."""
    found = group.members or tuple(range(min(group.size, machine.ranks + 1)))
    if max(found) >= machine.ranks:
        raise Invalid(
            f"the job has a rank {max(found)} in group {quote(group.name)}, and {machine.name} has {machine.ranks} "
            "ranks; give the machine that it ran on"
        )
    return () if group.apart and not group.members and group.size < machine.ranks else found


@dataclass
class ByPlans:
    """By the plans of a table (`plans`: of each kind one, for all ranks), and else by those that `planned` makes.
    `model`: empty for the usual one of each plan's machine and ranks. `by_claims`: a table that was measured tells
    itself what its plans take; what it leaves to the library is not known."""

    machine: Topology
    plans: Mapping[str, Plan]
    planned: Planned | None
    model: str
    profile: ProfileLike = None
    by_claims: bool = True
    sizes: Mapping[tuple[str, int], Sequence[int]] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[int, ...]], Plan | None] = field(default_factory=dict)
    _priced: dict[tuple[str, tuple[int, ...], int], Price | None] = field(default_factory=dict)

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """None where nothing plans it, or nobody knows where it is: it stays as it was."""
        if kind not in KINDS or about.size < 2:
            return None
        members = members_of(about, self.machine)
        if not members:
            return None
        key = (kind, members, nbytes)
        if key not in self._priced:
            self._priced[key] = self._price(kind, nbytes, group, members)
        return self._priced[key]

    def _price(self, kind: str, nbytes: int, group: int, members: tuple[int, ...]) -> Price | None:
        plan = self._plan(kind, group, members)
        if plan is None:
            return None
        entry = plan.at(nbytes)
        if entry.served_by:
            return None
        points = measured_of(plan) if self.by_claims else []
        if points:
            name = str(entry.claims.get("planner", "plan"))
            return Price(between(points, nbytes), f"{name}; as the table says that it was measured", MEASURED)
        row = price(plan, nbytes, model=self.model, profile=self.profile)[0]
        name = str(entry.claims.get("planner", entry.schedule.provenance.get("planner", "plan")))
        rests_on = str(row["rests_on"])
        return Price(row["seconds"], f"{name}; {row['note'] or '{model}, {rests_on}'.format(**row)}", rests_on)

    def _plan(self, kind: str, group: int, members: tuple[int, ...]) -> Plan | None:
        if kind in self.plans and members == self.plans[kind].collective.members:
            return self.plans[kind]
        if self.planned is None:
            return None
        pattern = (kind, members)
        if pattern not in self._known:
            if len(self._known) >= MOST_GROUPS * len(KINDS):
                raise Unsupported(
                    f"the job has more than {MOST_GROUPS} groups to plan for; give a --table, or fewer ranks"
                )
            self._known[pattern] = self.planned(kind, members, self.sizes.get((kind, group), ()))
        return self._known[pattern]


def measured_of(plan: Plan) -> list[tuple[int, float]]:
    """Sizes and seconds that the claims of a table tell which `tune --on` made."""
    found: dict[int, float] = {}
    for entry in plan.entries:
        told = entry.claims.get("measurements", [])
        for one in told if isinstance(told, list) else []:
            nbytes, seconds = (one.get("nbytes"), one.get("seconds")) if isinstance(one, dict) else (None, None)
            if (
                isinstance(nbytes, int)
                and isinstance(seconds, int | float)
                and 0 < nbytes < 2**60
                and 0 <= seconds < 1e6
            ):
                found[nbytes] = float(seconds)
    return sorted(found.items())


@dataclass
class ByMeasurements:
    """By rows of `bench` or `tune --on`, or of nccl-tests: seconds at some sizes, straight lines between them."""

    points: Mapping[str, Sequence[tuple[int, float]]]
    name: str

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        del group, about
        points = self.points.get(kind)
        return None if not points else Price(between(points, nbytes), f"measured, {self.name}", MEASURED)


def between(points: Sequence[tuple[int, float]], nbytes: int) -> float:
    """Seconds at a size: on the line between its neighbours; below the least as that, above the greatest by its
    bandwidth."""
    at = bisect_left(points, (nbytes, 0.0))
    if at == len(points):
        most, seconds = points[-1]
        return seconds * nbytes / most
    after, above = points[at]
    if at == 0 or after == nbytes:
        return above
    before, below = points[at - 1]
    return below + (above - below) * (nbytes - before) / (after - before)


def rows_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Of rows of `bench --json`: of each kind and size the fastest that is right, out of place where both are there."""
    best: dict[str, dict[int, tuple[bool, float]]] = {}
    for number, row in enumerate(rows):
        kind, nbytes, seconds = row.get("collective"), row.get("nbytes"), row.get("seconds")
        if kind not in KINDS or not isinstance(nbytes, int) or not isinstance(seconds, int | float):
            raise Invalid(f"rows[{number}]: expected collective, nbytes and seconds, as bench --json tells them")
        if not 0 < nbytes < 2**60 or not 0 <= seconds < 1e6:
            raise Invalid(f"rows[{number}]: {nbytes} bytes in {seconds} s")
        if row.get("correct", True) is not False:
            told = (bool(row.get("in_place", False)), float(seconds))
            best.setdefault(str(kind), {}).setdefault(nbytes, told)
            best[str(kind)][nbytes] = min(best[str(kind)][nbytes], told)
    return {kind: sorted((size, told[1]) for size, told in sizes.items()) for kind, sizes in best.items()}


_ROW = re.compile(r"\s*([0-9]{1,18})\s+[0-9]+\s+\S+\s+\S+\s+-?[0-9]+\s+([0-9.]{1,18})\s+[0-9.]+\s+[0-9.]+\s")
_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "broadcast": "broadcast",
    "reduce": "reduce", "alltoall": "alltoall", "gather": "gather", "scatter": "scatter",
}  # fmt: skip


def printed(text: str, kind: str = "") -> dict[str, list[tuple[int, float]]]:
    """Of what nccl-tests (or rccl-tests) print: size, count, type, redop, root, time (us), algbw, busbw, ...; the
    program's name is in the lines before, where it was started by its path."""
    named = re.search(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall|gather|scatter)_perf\b", text)
    found = kind or (_NAMES[named[1]] if named else "")
    rows = [match for line in text.splitlines() if (match := _ROW.match(line))]
    if not rows:
        raise Invalid("has no rows as nccl-tests prints them, and is no JSON of bench")
    if not found:
        raise Invalid("does not tell its collective: keep the line in which the program (all_reduce_perf) was started")
    try:
        points = {int(row[1]): float(row[2]) / 1e6 for row in rows if int(row[1]) > 0}
    except ValueError:
        raise Invalid("a row has a time that is no number") from None
    return {found: sorted(points.items())}


@dataclass
class ByLibrary:
    """What NCCL or RCCL would take by its model, where the figures of these GPUs are known."""

    machine: Topology
    asked: str = ""
    _known: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        del group
        from antiphon.cost.nccl.choice import KINDS as PRICED

        if kind not in PRICED or about.size < 2:
            return None
        members = members_of(about, self.machine)
        library = self._library(members) if members else None
        if library is None:
            return None
        best = library.at(kind, nbytes)[0]
        by = f"{best.name}; {library.basis(kind, nbytes)}"
        return Price(best.seconds, by, library.brief(kind, nbytes))

    def _library(self, members: tuple[int, ...]) -> Any:
        from antiphon.cost.nccl.library import library, library_here

        if members not in self._known:
            whole = len(members) == self.machine.ranks
            try:
                part = self.machine if whole else keep(self.machine, members, name=self.machine.name).topology
                self._known[members] = library(self.asked, part) if self.asked else library_here(part)
            except AntiphonError:
                if self.asked:
                    raise
                self._known[members] = None
        return self._known[members]
