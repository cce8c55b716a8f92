"""Cache the evaluations of schedules by a fingerprint of their rows.

The same schedule is often yielded several times: by two planners, by an option at its default value, by a sweep over
pieces. Verifying and pricing a large schedule takes seconds, its fingerprint (BLAKE2b over all columns) milliseconds.

Schedules with equal rows (transfers) and different pieces are verified once, but have different times:

    rows and pieces cached                       use the cached evaluation
    rows of the schedule that was verified last  only price it
    otherwise                                    verify and price it

A simulator limits the pieces of a schedule with many rows, so different pieces may get the same prediction: `prices`
has the results by the fingerprint with the pieces that are simulated.

Example: ring with pieces=1, ring with pieces=4, ring with pieces=1 again. The first is verified and priced, the second
only priced, the third is cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify

Times = tuple[float, ...]  # seconds by size


@dataclass(frozen=True, eq=False)
class Prices:
    """What the cost model predicts of a schedule. Tuples have one element per size."""

    seconds: Times
    bottlenecks: tuple[str, ...]
    terms: tuple[Mapping[str, float], ...]  # seconds by term of the cost model
    rests_on: tuple[str, ...]  # measurements that calibrate the prediction
    is_large: bool = False  # it is dropped unless it is the fastest so far at some size (ledger.py)

    def is_dropped(self, rivals: Sequence[Times]) -> bool:
        """Return whether the schedule is large, and at every size no faster than any rival; False without rivals."""
        return (
            self.is_large
            and bool(rivals)
            and all(a >= b for times in rivals for a, b in zip(self.seconds, times, strict=True))
        )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of verifying and pricing a schedule, whichever planner made it."""

    fingerprint: bytes  # equal for equal schedules
    prices: Prices
    figures: Mapping[str, Any]  # chunks, steps, rounds, transfers, ...
    seconds_per_byte: Fraction  # at zero latency
    # If switches multicast or reduce: seconds of the same schedule if they only forward; () if the model has none.
    unjoined_seconds: tuple[float, ...] = ()
    # In words, the order in which contributions are combined; None: not requested, or not the same for all elements.
    order: str | None = None

    @property
    def seconds(self) -> Times:
        """Return the predicted time at every size."""
        return self.prices.seconds


@dataclass
class ScheduleCache:
    """Evaluations by collective and fingerprint, and the schedule that was verified last.

    A worker process gets a copy, which then differs. Only one schedule is kept, since it may be large.
    """

    evaluations: dict[tuple[str, bytes], Evaluation] = field(default_factory=dict)
    # By collective and fingerprint with the pieces that are simulated. For models that are no simulators None is looked
    # up; nothing is stored by it.
    prices: dict[tuple[str, bytes] | None, Prices] = field(default_factory=dict)
    last_schedule: Schedule | None = None  # freed before another is verified, and before the cache goes to a process


def verify_schedule(cache: ScheduleCache, schedule: Schedule, topology: Topology) -> Schedule:
    """Return the schedule, verified. If the last one verified has the same rows, it is reused with these pieces.

    Pieces do not change the order of the transfers of a chunk, so the result of verification holds, and so do the loads
    that a schedule caches, which `replace` copies. The exception are switches that serve few joints at once: the number
    that meet at a switch depends on the pieces.
    """
    last = cache.last_schedule
    limits_joints = schedule.joint is not None and any(ability.at_once for ability in topology.abilities)
    if last is not None and not limits_joints and _rows_equal(last, schedule):
        return replace(last, pieces=schedule.pieces, provenance=schedule.provenance)
    cache.last_schedule = last = None
    verify(schedule, topology).or_raise()
    cache.last_schedule = schedule
    return schedule


def fingerprint(schedule: Schedule) -> bytes:
    """Return bytes that are equal for schedules with the same rows in the same order and the same pieces, by any
    planner. O(rows), 1 GB/s.
    """
    return add_pieces(digest_rows(schedule), schedule.pieces)


def digest_rows(schedule: Schedule) -> bytes:
    """Return bytes that are equal for schedules with the same rows in the same order."""
    digest = hashlib.blake2b(digest_size=16)
    for name, column in _columns_of(schedule).items():
        _add_column(digest, name, column)
    return digest.digest()


def add_pieces(rows: bytes, pieces: int | Longs) -> bytes:
    """Return the fingerprint of a schedule whose rows have this digest, in these pieces."""
    digest = hashlib.blake2b(rows, digest_size=16)
    _add_column(digest, "pieces", pieces)
    return digest.digest()


def _columns_of(schedule: Schedule) -> dict[str, Any]:
    """Return what schedules with the same rows have in common, by name."""
    chunks, routes = schedule.chunks, schedule.routes
    return {
        **schedule.columns(), "block": chunks.block, "offset": chunks.offset, "share": chunks.share,
        "denominator": chunks.denominator, "ptr": routes.ptr, "links": routes.links,
        "local": repr(schedule.local),  # work of ranks in their own memory
        "kind": repr(schedule.collective.key()),
    }  # fmt: skip


def _rows_equal(schedule: Schedule, other: Schedule) -> bool:
    """Return whether two schedules differ in pieces and provenance at most."""
    columns, other_columns = _columns_of(schedule), _columns_of(other)
    return columns.keys() == other_columns.keys() and all(
        column is other_columns[name] or np.array_equal(column, other_columns[name]) for name, column in columns.items()
    )


def _add_column(digest: Any, name: str, column: object) -> None:
    """Add a column or value to a hash."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        values = column
    else:
        text = repr(column.tolist() if isinstance(column, np.ndarray) else column)
        values = np.frombuffer(text.encode(), np.uint8)
    # name, type and size: without them, the same bytes divided otherwise among columns would have the same hash
    digest.update(f"{name} {values.dtype} {values.size} ".encode())
    digest.update(np.ascontiguousarray(values).data)
