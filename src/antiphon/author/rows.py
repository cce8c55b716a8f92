"""Convert the transfers of a hand-written schedule to a `Schedule`: assign scratch slots and choose routes.

`WrittenRow` is a transfer of one chunk with its step and the user's line. `StepRows` collects the rows of one step and
reports conflicts: two writers of one place, unless all of them reduce the same chunk into it. `schedule_of` makes the
schedule: scratch of each rank becomes numbered slots, and where several paths lead from rank to rank the widest of the
shortest is the route. `explain_fault` translates a fault that verification reports into the user's lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from antiphon.author.layout import Layout, Place
from antiphon.author.lines import SourceLine, lines_text
from antiphon.author.timing import Move, PlaceKey
from antiphon.core.collective import Collective
from antiphon.core.routes import NO_ROUTES, Routes
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault
from antiphon.planners.shared.routing import find_paths


@dataclass(slots=True)
class WrittenRow:
    """A transfer of one chunk between two places, and the line that made it."""

    move: Move  # from `src` to `dst` as keys; a chunk's places in a rank's input and in its output have the same key
    chunk: int
    src: Place  # as the user wrote it, for messages and for its rank; `dst` likewise
    dst: Place
    line: SourceLine
    via: tuple[int, ...] | None  # links that the user named; None: choose them
    joint: int  # number of the row's joint; -1: none
    step: int = -1  # -1: not assigned yet


@dataclass(slots=True)
class StepRows:
    """Rows of one step under construction."""

    number: int  # of this group of rows, from 1
    step: int | None  # None: the earliest step that all rows allow, known once the group is complete
    until_next_step: bool  # True: the group lasts until the next `w.step()`; False: to the end of a `with` block
    rows: list[WrittenRow] = field(default_factory=list)
    # A row per place that is written; one is enough, since several writers of a place are reductions of the same chunk
    writers: dict[PlaceKey, WrittenRow] = field(default_factory=dict)

    def find_conflict(self, rows: Iterable[WrittenRow]) -> str:
        """Return why these rows cannot be in this step, "" if they can.

        Several rows may write one place only if all of them reduce the same chunk into it.
        """
        for row in rows:
            other = self.writers.get(row.move.dst)
            if other is not None and (row.move.copy or other.move.copy or row.chunk != other.chunk):
                return f"{other.line} writes {row.dst} in this step, too"
        return ""

    def add(self, rows: list[WrittenRow]) -> None:
        """Add rows that have passed `find_conflict`."""
        self.rows += rows
        self.writers.update((row.move.dst, row) for row in rows)


def schedule_of(
    rows: Sequence[WrittenRow], layout: Layout, collective: Collective, topology: Topology, **attributes: Any
) -> Schedule:
    """Return the schedule of these rows, in their order. `attributes`: further ones of `Schedule`."""
    slots = _assign_slots(rows, layout)
    route, routes = _find_routes(rows, topology)
    columns = [
        (row.step, row.chunk, row.src.rank, row.dst.rank, COPY if row.move.copy else REDUCE,
         slots[row.chunk, row.move.src], slots[row.chunk, row.move.dst], row.joint)
        for row in rows
    ]  # fmt: skip
    step, chunk, src, dst, op, src_slot, dst_slot, joint = np.array(columns, np.int32).reshape(-1, 8).T
    return Schedule(
        collective, layout.chunks, step=step, chunk=chunk, src=src, dst=dst, op=op.astype(np.uint8), route=route,
        src_slot=src_slot, dst_slot=dst_slot, routes=routes, joint=joint, **attributes,
    )  # fmt: skip


def _assign_slots(rows: Sequence[WrittenRow], layout: Layout) -> Mapping[tuple[int, PlaceKey], int]:
    """Return the slot of every (chunk, place): a schedule numbers a rank's copies of each chunk from 0 (cells).

    Inputs and outputs are slot 0. Scratch places of one rank and chunk get the slots from 1 on, by name and index; from
    0 on if the chunk has no place in the rank's input or output.
    """
    slots: dict[tuple[int, PlaceKey], int] = {}
    scratch: dict[tuple[int, int], set[PlaceKey]] = defaultdict(set)  # by (rank, chunk)
    for row in rows:
        for place in (row.move.src, row.move.dst):
            if place.scratch:
                scratch[place.rank, row.chunk].add(place)
            else:
                slots[row.chunk, place] = 0
    for (rank, chunk), places in scratch.items():
        first = 0 if layout.default_place(rank, chunk) is None else 1
        slots.update(((chunk, place), slot) for slot, place in enumerate(sorted(places), first))
    return slots


def _find_routes(rows: Sequence[WrittenRow], topology: Topology) -> tuple[np.ndarray[Any, Any], Routes]:
    """Return the number of every row's route, and the routes.

    A route is the links that the user named, else the widest of the shortest paths. -1: the row needs none, as it stays
    within a rank or the only direct link joins its ranks, or there is no path.
    """
    table: dict[tuple[int, ...], int] = {}  # number of each route, which is a tuple of links
    ends = ((row.src.rank, row.dst.rank) for row in rows if row.via is None)
    pairs = sorted({(src, dst) for src, dst in ends if src != dst})  # (sender, receiver) of rows without `via`
    route_of: dict[tuple[int, int], int] = {}
    if pairs:
        shortest = find_paths(topology, *np.array(pairs, np.int32).T)  # per pair: its links, `only_link`: a direct one
        unreachable = set(shortest.unreachable.tolist())  # verify reports these
        for number, pair in enumerate(pairs):
            if number not in unreachable and not shortest.only_link[number]:
                route_of[pair] = table.setdefault(shortest.table[number], len(table))
    route = [
        route_of.get((row.src.rank, row.dst.rank), -1) if row.via is None else table.setdefault(row.via, len(table))
        for row in rows
    ]
    return np.array(route, np.int32), Routes.of(table) if table else NO_ROUTES


def explain_fault(fault: Fault, rows: Sequence[WrittenRow], layout: Layout, block: SourceLine) -> str:
    """Return the message for a fault of verification, with the user's lines.

    If the fault has a step, it is a faulty transfer: the line is that of this transfer. If it has a chunk and the rank
    `dst` that wants it, a result is wrong: the lines are those that write it last. Otherwise the line is `block`, that
    of the user's `with antiphon.write(...)`.
    """
    error = f"the schedule is wrong: {fault.message}"
    if fault.step is not None:
        faulty_key = (fault.step, fault.chunk, fault.src, fault.dst)
        faulty_rows = [row for row in rows if (row.step, row.chunk, row.src.rank, row.dst.rank) == faulty_key]
        transfers = ", ".join(dict.fromkeys(f"{row.src} to {row.dst}" for row in faulty_rows))
        return f"{lines_text(row.line for row in faulty_rows)}: {error}; it is {transfers}"
    if fault.chunk is None or fault.dst is None:
        return f"{block}: {error}"
    place = layout.default_place(fault.dst, fault.chunk)
    result = PlaceKey(fault.dst, scratch="", number=fault.chunk)  # not in scratch: the chunk in the rank's output
    writers = [row for row in rows if row.move.dst == result]
    if not writers:
        return f"{block}: {error}; nothing in the block writes {place}"
    last = max(row.step for row in writers)
    lines = lines_text(row.line for row in writers if row.step == last)
    return f"{lines}: {error}; here {place} is written for the last time"
