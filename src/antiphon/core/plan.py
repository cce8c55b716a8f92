"""A plan: which verified schedule to use for which range of message sizes, and the claims about each.

A `Plan` is a topology, a collective and a list of `Entry` (range of sizes, schedule, claims) that covers every size
from 0 without gaps. Claims are plain JSON values such as the number of steps and the gap to the bound. This file checks
the form; that schedules are correct on the topology is checked by `verify`, and `serialize` reads and writes plan
files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from antiphon.core.choose import Call, SizeChooser
from antiphon.core.collective import Collective
from antiphon.core.display import Explorable
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote

MAX_NAMED = 4  # planners in the representation of a plan
MAX_NESTING = 32  # levels of lists and objects allowed in claims and provenance
# Values of the claim "served_by": the library that serves the sizes of an entry because our schedule is not faster.
# The library that programs use anyway, such as their MPI. It was faster when measured on this machine; with the claim
# "measured" false, it was not measured at these sizes.
LIBRARY = "library"
GPU_LIBRARIES = ("nccl", "rccl", "msccl")  # predicted to be faster on GPUs; MPI and gloo use the schedule all the same


@dataclass(frozen=True, eq=False)
class Entry:
    """The schedule for start <= nbytes < stop (None: no upper end) and its claims: plain JSON values.

    Claims are what scripts read: planner, chunks, steps, rounds, transfers, bandwidth_gap, proof, ...; exact numbers
    are strings like "7/6". Entries are equal if their ranges and claims are, and schedules differ at most in the order
    of rows and in provenance. `other`: for sizes of the range that `schedule` cannot cut into its chunks; writers of
    formats read it, files of plans do not have it.
    """

    start: int
    stop: int | None
    schedule: Schedule
    claims: Mapping[str, Any] = field(default_factory=dict)
    other: Entry | None = None

    def __post_init__(self) -> None:
        for label, value in (("from", self.start), ("to", self.stop)):  # the names of these fields in plan files
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**60):
                raise Invalid(f"{label}: expected a whole number of bytes from 0, got {quote(value)}")
        if self.stop is not None and self.stop <= self.start:
            raise Invalid(f"to: the range {self.start} to {self.stop} is empty; to must be greater than from")
        if not isinstance(self.schedule, Schedule):
            raise Invalid(f"schedule: expected a Schedule, got {quote(type(self.schedule).__name__)}")
        check_plain(self.claims, "claims")
        object.__setattr__(self, "claims", dict(self.claims))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Entry)
            and (self.start, self.stop) == (other.start, other.stop)
            and _as_json(self.claims) == _as_json(other.claims)
            and self.schedule.same_as(other.schedule)
        )

    def __hash__(self) -> int:
        return hash((self.start, self.stop, self.schedule.transfers))  # of the schedule only the number of transfers

    @property
    def served_by(self) -> str:
        """The library that serves these sizes: LIBRARY or one of GPU_LIBRARIES; "" if the schedule is to be used."""
        name = self.claims.get("served_by")
        return name if name == LIBRARY or name in GPU_LIBRARIES else ""


@dataclass(frozen=True, eq=False)
class Plan(Explorable):
    """Entries in ascending order that cover every size from 0 without gap or overlap.

    Checked here: the form, and that every schedule is for this collective and this many ranks. Whether schedules are
    correct on this topology is for `verify`, also after a plan was loaded.

    Plans are compared by value, so a plan equals what is read back from its file. The hash covers what is cheap to read
    (machine, collective, ranges, counts of transfers), so a plan can be a dictionary key.
    """

    topology: Topology
    collective: Collective
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        if self.collective.ranks != self.topology.ranks:
            raise Invalid(
                f"plan: the collective is for {self.collective.ranks} ranks, "
                f"the topology {quote(self.topology.name)} has {self.topology.ranks}"
            )
        if not self.entries:
            raise Invalid("plan: has no entries; give at least one schedule")
        if self.entries[0].start != 0:
            raise Invalid(f"entries[0]: begins at {self.entries[0].start} bytes; the first begins at 0")
        for i, entry in enumerate(self.entries):
            if entry.schedule.collective != self.collective:
                raise Invalid(f"entries[{i}]: its schedule is for another collective than the plan")
            end = self.entries[i + 1].start if i + 1 < len(self.entries) else None
            if entry.stop != end:
                ends = "without end" if entry.stop is None else f"at {entry.stop} bytes"
                should = "the last has no end" if end is None else f"entries[{i + 1}] begins at {end} bytes"
                raise Invalid(f"entries[{i}]: ends {ends}, but {should}; ranges follow each other without gap")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        planners = dict.fromkeys(str(entry.claims.get("planner", "unnamed")) for entry in self.entries)
        names = f"{', '.join(list(planners)[:MAX_NAMED])}{', ...' * (len(planners) > MAX_NAMED)}"
        ranges = f"{len(self.entries)} range{'s' * (len(self.entries) > 1)} of sizes"
        return f"Plan({self.collective.kind} on {self.topology.name[:80]}: {ranges}, by {names})"

    def _key(self) -> tuple[Topology, Collective, tuple[Entry, ...]]:
        return self.topology, self.collective, self.entries

    @staticmethod
    def of(topology: Topology, schedule: Schedule, claims: Mapping[str, Any] | None = None) -> Plan:
        """Return a plan of one schedule for all sizes."""
        return Plan(topology, schedule.collective, (Entry(start=0, stop=None, schedule=schedule, claims=claims or {}),))

    @cached_property
    def chooser(self) -> SizeChooser[Entry]:
        """Chooses the entry of a call by its size: `chooser.page(Call(kind, nbytes))` is an `Entry`."""
        chooser: SizeChooser[Entry] = SizeChooser()
        for entry in self.entries:
            chooser.add(entry, entry.start, entry.stop, self.collective.kind)
        return chooser

    def at(self, nbytes: int) -> Entry:
        """Return the entry for a size."""
        entry = self.chooser.page(Call(self.collective.kind, nbytes))
        if entry is None:
            raise Invalid(f"nbytes: must be 0 or more, got {quote(nbytes)}")
        return entry


def _as_json(item: Any) -> Any:
    """Return a plain value as it is read back from a JSON file: tuples become lists."""
    if isinstance(item, Mapping):
        return {key: _as_json(inner) for key, inner in item.items()}
    return [_as_json(inner) for inner in item] if isinstance(item, list | tuple) else item


def check_plain(value: object, label: str) -> None:
    """Raise Invalid for values that JSON cannot hold: other types, keys that are not text, NaN, infinity, deep nesting.

    Tuples pass, and come back from a file as lists.
    """
    if not isinstance(value, Mapping):
        raise Invalid(f"{label}: expected an object, got {quote(value)}")
    fault = _not_plain(value, depth=0)
    if fault is not None:
        path, problem = fault
        raise Invalid(f"{label}{path or ''}: {problem}")


def _not_plain(item: object, depth: int) -> tuple[str | None, str] | None:
    """Return (path, problem) of the first fault, or None.

    The path within `item` is "" for `item` itself, and None for too deep nesting, where it is too long to print.
    """
    if depth > MAX_NESTING:
        return None, f"nested deeper than {MAX_NESTING} levels"
    if item is None or type(item) in (bool, int, str):  # most items; a test for Mapping takes longer
        return None
    if isinstance(item, Mapping):
        for key, inner in item.items():
            if not isinstance(key, str):
                return "", f"its key {quote(key)} is not a text"
            if (fault := _not_plain(inner, depth + 1)) is not None:
                path, problem = fault
                return (None if path is None else f".{key}{path}"), problem
    elif isinstance(item, list | tuple):
        for i, inner in enumerate(item):
            if (fault := _not_plain(inner, depth + 1)) is not None:
                path, problem = fault
                return (None if path is None else f"[{i}]{path}"), problem
    elif isinstance(item, float):
        if not math.isfinite(item):
            return "", f"{item} is not a finite number"
    else:
        return "", f"{quote(item)} is not a plain JSON value"
    return None
