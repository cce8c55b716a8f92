"""Price each collective of a recorded job: by a table of plans, by measurements, or by a library's model.

Three sources have one method, `price(kind, nbytes, group, about)`. It returns the seconds of a collective of this kind
and size in process group number `group`, which `about` describes; None if the source has no price.

    ByPlans           by a cost model, for the plan of this kind, size and group; or, if the table was measured
                      (`tune --on`), the measured seconds that it claims
    ByMeasurements    by rows of `bench --json` or of nccl-tests
    ByLibrary         by the model of NCCL or RCCL, if the figures of these GPUs are known

Between measured sizes seconds are interpolated linearly, as latency + size / bandwidth is linear. Below the smallest
size, the seconds of the smallest are used; above the largest size, the bandwidth of the largest. Example: 20 us at 1 KB
and 60 us at 9 KB give 40 us at 5 KB, and 120 us at 18 KB.

A group of the job is priced among its own ranks: groups within a box are faster than groups across boxes. If a trace
does not name the ranks of a group, the first ranks of the machine stand for them.
"""

from __future__ import annotations

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
MAX_NBYTES, MAX_SECONDS = 2**60, 1e6  # of a measured row; more is no measurement
MAX_GROUPS = 16  # process groups for which plans are made, each with every collective
Call = tuple[str, int, int]  # kind, nbytes and group of the calls of a class
MakePlan = Callable[[str, Sequence[int], Sequence[int]], Plan | None]  # (kind, ranks, sizes) -> plan; None: no planner


@dataclass(frozen=True)
class Price:
    """The time of a collective."""

    seconds: float
    by: str  # its source, in words, for tables: planner, library or file, and the model
    rests_on: str  # the basis of the figures: MEASURED, or what the model is calibrated by, as in `cost.predict`


def members_of(group: ProcessGroup, machine: Topology) -> tuple[int, ...]:
    """Return the ranks of a process group on the machine: the first ones, if the traces do not name them.

    Raises Invalid if the machine has too few.
    """
    # one rank more than the machine has suffices for the error below
    members = group.members or tuple(range(min(group.size, machine.ranks + 1)))
    if max(members) >= machine.ranks:
        raise Invalid(
            f"the job has a rank {max(members)} in group {quote(group.name)}, and {machine.name} has {machine.ranks} "
            "ranks; give the machine that it ran on"
        )
    return members


@dataclass
class ByPlans:
    """Prices by plans. Sizes that a plan leaves to the library have no price."""

    machine: Topology
    plans: Mapping[str, Plan]  # by kind: those of a table, for the ranks that it is for
    make_plan: MakePlan | None  # makes plans for other ranks; None: these have no price
    model: str  # cost model; "": the default of each plan's machine
    profile: ProfileLike = None
    by_claims: bool = True  # use the measured times that a table claims
    sizes: Mapping[tuple[str, int], Sequence[int]] = field(default_factory=dict)  # (kind, group) -> sizes to plan for
    # plans that `make_plan` made, by kind and ranks
    _plans: dict[tuple[str, tuple[int, ...]], Plan | None] = field(default_factory=dict)
    _priced: dict[tuple[str, tuple[int, ...], int], Price | None] = field(default_factory=dict)  # kind, ranks, size

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """Return the price; None if there is no plan, or if the group has one rank only."""
        members = self._members(kind, about)
        if not members:
            return None
        # a job repeats few distinct calls: price each once
        key = (kind, members, nbytes)
        if key not in self._priced:
            self._priced[key] = self._price_by_plan(kind, nbytes, group, members)
        return self._priced[key]

    def _members(self, kind: str, about: ProcessGroup) -> tuple[int, ...]:
        """Return the ranks of a group; () if there is nothing to plan: another kind of call, or one rank only."""
        return members_of(about, self.machine) if kind in KINDS and about.size > 1 else ()

    def find_plan(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Plan | None:
        """Return the plan for a call; None if there is none, or it leaves the size to the library."""
        members = self._members(kind, about)
        plan = self._plan_for_group(kind, group, members) if members else None
        return None if plan is None or plan.at(nbytes).served_by else plan

    def _price_by_plan(self, kind: str, nbytes: int, group: int, members: tuple[int, ...]) -> Price | None:
        """Return the price by the plan for these ranks; None if there is none, or it leaves the size to the library."""
        plan = self._plan_for_group(kind, group, members)
        if plan is None:
            return None
        entry = plan.at(nbytes)
        if entry.served_by:
            return None
        points = measured_points(plan) if self.by_claims else []
        if points:
            name = str(entry.claims.get("planner", "plan"))
            return Price(
                interpolate_seconds(points, nbytes), f"{name}; as the table says that it was measured", MEASURED
            )
        (row,) = price(plan, nbytes, model=self.model, profile=self.profile)
        name = str(entry.claims.get("planner", entry.schedule.provenance.get("planner", "plan")))
        rests_on = str(row["rests_on"])
        return Price(row["seconds"], f"{name}; {row['note'] or '{model}, {rests_on}'.format(**row)}", rests_on)

    def _plan_for_group(self, kind: str, group: int, members: tuple[int, ...]) -> Plan | None:
        """Return the plan of the table, or one that `make_plan` makes; None if there is none."""
        # a plan of the table fits only its own ranks; for other ranks a plan is made, once per kind and ranks
        if kind in self.plans and members == self.plans[kind].collective.members:
            return self.plans[kind]
        if self.make_plan is None:
            return None
        pattern = (kind, members)
        if pattern not in self._plans:
            if len(self._plans) >= MAX_GROUPS * len(KINDS):
                raise Unsupported(
                    f"the job has more than {MAX_GROUPS} groups to plan for; give a --table, or fewer ranks"
                )
            self._plans[pattern] = self.make_plan(kind, members, self.sizes.get((kind, group), ()))
        return self._plans[pattern]


def measured_points(plan: Plan) -> list[tuple[int, float]]:
    """Return (size, seconds) as a plan claims that `tune --on` measured them; malformed rows are ignored."""
    points: dict[int, float] = {}
    for entry in plan.entries:
        rows = entry.claims.get("measurements", [])
        for row in rows if isinstance(rows, list) else []:
            nbytes, seconds = (row.get("nbytes"), row.get("seconds")) if isinstance(row, dict) else (None, None)
            if (
                isinstance(nbytes, int)
                and isinstance(seconds, int | float)
                and 0 < nbytes < MAX_NBYTES
                and 0 <= seconds < MAX_SECONDS
            ):
                points[nbytes] = float(seconds)
    return sorted(points.items())


@dataclass
class ByMeasurements:
    """Prices by measurements of `bench`, `tune --on` or nccl-tests, with linear interpolation."""

    points: Mapping[str, Sequence[tuple[int, float]]]  # by kind: (size, seconds), ascending
    name: str  # of the measurements, in words

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """Return the price for any group; None if this kind was not measured."""
        del group, about
        points = self.points.get(kind)
        return None if not points else Price(interpolate_seconds(points, nbytes), f"measured, {self.name}", MEASURED)


def interpolate_seconds(points: Sequence[tuple[int, float]], nbytes: int) -> float:
    """Return the seconds at a size by linear interpolation; below the smallest size its seconds, above the largest its
    bandwidth.
    """
    # the first point of this size or a larger one: no seconds are below 0.0
    next_point = bisect_left(points, (nbytes, 0.0))
    if next_point == len(points):
        largest, seconds = points[-1]
        return seconds * nbytes / largest
    size_above, seconds_above = points[next_point]
    if next_point == 0 or size_above == nbytes:
        return seconds_above
    size_below, seconds_below = points[next_point - 1]
    return seconds_below + (seconds_above - seconds_below) * (nbytes - size_below) / (size_above - size_below)


def fastest_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return by kind (size, seconds) of the fastest correct row of `bench --json`; out-of-place rows are preferred."""
    best: dict[str, dict[int, tuple[bool, float]]] = {}
    for number, row in enumerate(rows):
        kind, nbytes, seconds = row.get("collective"), row.get("nbytes"), row.get("seconds")
        if kind not in KINDS or not isinstance(nbytes, int) or not isinstance(seconds, int | float):
            raise Invalid(f"rows[{number}]: expected collective, nbytes and seconds, as bench --json prints them")
        if not 0 < nbytes < MAX_NBYTES or not 0 <= seconds < MAX_SECONDS:
            raise Invalid(f"rows[{number}]: {nbytes} bytes in {seconds} s")
        if row.get("correct", True) is not False:
            # pairs compare by their first element: out of place before in place, then the shorter time
            candidate = (bool(row.get("in_place", False)), float(seconds))
            by_size = best.setdefault(str(kind), {})
            by_size[nbytes] = min(by_size.get(nbytes, candidate), candidate)
    return {kind: sorted((size, seconds) for size, (_, seconds) in by_size.items()) for kind, by_size in best.items()}


@dataclass
class ByLibrary:
    """Prices by the model of NCCL or RCCL, if the figures of these GPUs are known."""

    machine: Topology
    name: str = ""  # of the library; "": the one whose figures are known
    _libraries: dict[tuple[int, ...], Any] = field(default_factory=dict)  # by ranks: their model, or None

    def price(self, kind: str, nbytes: int, group: int, about: ProcessGroup) -> Price | None:
        """Return the time that the library would take; None if its model has no figures."""
        del group
        from antiphon.cost.nccl.choice import KINDS as PRICED_KINDS

        if kind not in PRICED_KINDS or about.size < 2:
            return None
        library = self._library_for(members_of(about, self.machine))
        if library is None:
            return None
        try:
            best = library.choice(kind, nbytes)
        except AntiphonError:  # the model does not describe this machine
            if self.name:
                raise
            return None
        source_text = f"{best.name}; {library.basis(kind, nbytes)}"
        return Price(best.seconds, source_text, library.brief(kind, nbytes))

    def _library_for(self, members: tuple[int, ...]) -> Any:
        """Return the library's model for these ranks; None if it has no figures."""
        from antiphon.cost.nccl.library import library, library_here

        if members not in self._libraries:
            try:
                subset = self.machine
                if len(members) < subset.ranks:
                    subset = keep(subset, members, name=subset.name).topology
                self._libraries[members] = library(self.name, subset) if self.name else library_here(subset)
            except AntiphonError:
                if self.name:
                    raise
                self._libraries[members] = None
        return self._libraries[members]
