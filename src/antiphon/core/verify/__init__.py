"""The verifier: track every contribution to every cell of a schedule exactly.

Input: a schedule, a topology and optionally the claims of a plan. Output: a `Report` with the first fault, if any. A
schedule is right if it is legal (rows read cells that hold something, no two writes race, routes exist on the machine)
and if every rank ends with exactly the contributions that the collective demands: none missing, none added twice. The
verifier shares no code with planners or with the interpreter, so that its result can be trusted.

A cell is one rank's copy of a chunk. Chunks are independent, so they are verified in batches that fit the caches, by
the cheapest method that decides:

    quick.py    copies only, each cell written once: arrival times alone prove the batch right    linear
    trees.py    walk through the steps; if each partial sum is used once, counting contributions decides    linear
    sets.py     exact sets (or counts) of contributions for the remaining chunks    rows * contributions / 64

If the collective is `ordered`, ordered.py checks that nothing is combined out of order.

Example: an allreduce on 3 ranks. Rank 0 adds the values of 1 and 2: its cell counts 3 contributions, each partial sum
was used once, so the count 3 proves the set {0, 1, 2}. Had rank 1 sent its value twice and rank 2 none, the count would
be 3, too; but then a partial sum is used twice, and sets.py decides.

In a batch, the *owner* of a row or cell is the index of its chunk, and `post` lists the cells that must hold a result
at the end (layout.py).

Joints (multicast and reduction in switches) are checked separately (joined.py, branching.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from antiphon.core.columns import Longs, word_count
from antiphon.core.loads import claims as true_claims
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import joined, quick, sets, trees
from antiphon.core.verify.layout import ChunkRows, Demand, split_batches
from antiphon.core.verify.ordered import find_order_fault
from antiphon.core.verify.report import Fault, Report, row_fault
from antiphon.errors import list_first

__all__ = ["Fault", "Report", "find_order_fault", "verify"]

# Kind of fault of a row -> what the report says about it
_FAULT_TEXTS = {
    "empty": "reads a cell that holds nothing yet",
    "race": "meets another write to the same cell in the same step; several may write only if all reduce",
    "self": "reads and writes the same cell",
}


def verify(
    schedule: Schedule,
    topology: Topology,
    claims: Mapping[str, Any] | None = None,
    *,
    op: str | None = None,
    dtype: str | None = None,
) -> Report:
    """Check that the schedule is legal on this topology and that its result is exactly that of the collective.

    `claims` (steps, rounds, transfers, chunks, ...), if given, are recomputed and compared. `op`, `dtype`: also check
    that switches that combine can do so with this operator and this data type.
    """
    fault = _check_ranks(schedule, topology)
    if fault is None and (gap := schedule.chunks.find_gap(schedule.collective.weights)) is not None:
        why, chunk = gap
        fault = Fault("share", why, chunk=chunk)
    if fault is None:
        fault = _earliest_fault(_check_routes(schedule, topology, op, dtype), _check_data(schedule))
    if fault is None and schedule.collective.ordered:
        fault = find_order_fault(schedule)
    if fault is None and claims:
        fault = _check_claims(schedule, topology, claims)
    return Report(fault)


def _earliest_fault(*faults: Fault | None) -> Fault | None:
    """Return the earliest fault: by step (a fault of the final result has none and comes last), then chunk."""

    def step_and_chunk(fault: Fault) -> tuple[float, float]:
        return (inf if fault.step is None else fault.step), (inf if fault.chunk is None else fault.chunk)

    return min((fault for fault in faults if fault is not None), key=step_and_chunk, default=None)


def _check_ranks(schedule: Schedule, topology: Topology) -> Fault | None:
    """Check that the schedule and the topology have the same number of ranks."""
    if schedule.collective.ranks != topology.ranks:
        have = f"the schedule is for {schedule.collective.ranks} ranks, but topology {topology.name!r}"
        return Fault("topology", f"{have} has {topology.ranks}")
    return None


def _check_routes(schedule: Schedule, topology: Topology, op: str | None, dtype: str | None) -> Fault | None:
    """Check that every row has a path on the machine, and the joints."""
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    if not len(resolved.faulty_rows):
        return None if schedule.joint is None else joined.find_joint_fault(schedule, topology, resolved, op, dtype)
    rows = resolved.faulty_rows
    earliest, *_ = np.lexsort((rows, schedule.chunk[rows], schedule.step[rows])).tolist()
    return row_fault("route", schedule, int(rows[earliest]), resolved.faults[earliest])


def _check_data(schedule: Schedule) -> Fault | None:
    """Check, batch by batch, that cells hold what rows read and end with what the collective demands."""
    demand = Demand.of(schedule.collective)
    # The quick test is only valid where every cell needs a single contribution.
    is_single = not len(schedule.collective.relation.wants) and bool(
        (schedule.collective.contributions_per_block == 1).all()
    )
    is_single &= len(schedule.collective.relation.pre_block) == 0 or not _has_double_pre(demand)
    fault: Fault | None = None
    for batch in split_batches(schedule, demand):
        if not (is_single and quick.is_surely_right(batch)):
            fault = _earliest_fault(fault, _check_batch(schedule, batch))
    return fault


def _has_double_pre(demand: Demand) -> bool:
    """Return whether a cell begins with several contributions (custom relations only)."""
    block = np.repeat(np.arange(len(demand.pre_ptr) - 1), np.diff(demand.pre_ptr))
    return bool(((block[1:] == block[:-1]) & (demand.pre_rank[1:] == demand.pre_rank[:-1])).any())


def _check_batch(schedule: Schedule, batch: ChunkRows) -> Fault | None:
    """Check one batch by counting, and by exact sets for the chunks that counting cannot decide."""
    # No row may read the cell that it writes; report the earliest such row.
    self_rows = np.flatnonzero(batch.src == batch.dst)
    first = self_rows[np.lexsort((batch.owner[self_rows], batch.step[self_rows]))[:1]]
    self_faults = [row_fault("self", schedule, int(row), _FAULT_TEXTS["self"]) for row in batch.rows[first]]
    outcome = trees.walk_steps(batch)
    row_faults = [
        row_fault(kind, schedule, int(batch.rows[row]), _FAULT_TEXTS[kind]) for row, kind in outcome.faulty.values()
    ]
    if self_faults or row_faults:
        return _earliest_fault(*self_faults, *row_faults)
    return _check_outcome(schedule, batch, outcome)


def _check_outcome(schedule: Schedule, batch: ChunkRows, outcome: trees.WalkOutcome) -> Fault | None:
    """Check that every cell required at the end holds exactly its contributions: by count if that decides, else by
    exact sets."""
    collective = schedule.collective
    contribution_count = collective.contributions_per_block[schedule.chunks.block[batch.chunks]]
    # Counting does not decide where a partial sum is used twice or where only a subset is wanted.
    is_undecided = outcome.shared.copy()
    is_undecided[batch.post_owner[batch.post_want >= 0]] = True
    is_wrong = (outcome.count[batch.post] != contribution_count[batch.post_owner]) & ~is_undecided[batch.post_owner]
    # One wrong cell suffices, so exact sets are needed only if counting finds none.
    if not is_wrong.any() and is_undecided.any():
        for owners in _group_chunks(np.flatnonzero(is_undecided), batch, contribution_count):
            chunk_rows = batch.only(owners).compact()
            is_right = sets.holds_exactly(chunk_rows, collective.relation.wants)
            if not is_right.all():
                return _explain_cell(schedule, chunk_rows, int(np.flatnonzero(~is_right)[0]))
    # Explain the first wrong cell from exact sets of its chunk alone.
    if is_wrong.any():
        chunk_rows = batch.only(batch.post_owner[np.flatnonzero(is_wrong)[:1]]).compact()
        is_right = sets.holds_exactly(chunk_rows, collective.relation.wants)
        return _explain_cell(schedule, chunk_rows, int(np.flatnonzero(~is_right)[0]))
    return None


def _group_chunks(owners: Longs, batch: ChunkRows, contribution_count: Longs) -> list[Longs]:
    """Group chunks so that the exact state of a group stays below sets.MAX_STATE_BYTES.

    `owners`: the chunks, as indices into `batch.chunks`. `contribution_count`: per chunk of the batch.
    """
    rows, inputs = (np.bincount(owner, minlength=len(batch.chunks)) for owner in (batch.owner, batch.pre_owner))
    cells = 2 * rows + inputs  # at most: a row names two cells, an input one
    # State in bytes: cells times one bit per contribution, in words of 8 bytes.
    size = np.minimum(cells[owners], batch.cells) * word_count(contribution_count[owners]) * 8
    group_begins = np.flatnonzero(np.diff(np.cumsum(size) // sets.MAX_STATE_BYTES)) + 1
    return np.split(owners, group_begins)


def _explain_cell(schedule: Schedule, batch: ChunkRows, post: int) -> Fault:
    """Return the fault of a wrong final cell, `batch.post[post]`: its missing and surplus contributions, recounted."""
    owner, rank = int(batch.post_owner[post]), int(batch.post_rank[post])
    chunk = int(batch.chunks[owner])
    chunk_rows = batch.only(np.array([owner])).compact()
    row = int(np.flatnonzero(chunk_rows.post_rank == rank)[0])
    ids, per_chunk, max_count = sets.number_contributions(chunk_rows, schedule.collective.relation.wants)
    names = dict(zip(ids.tolist(), chunk_rows.pre_id.tolist(), strict=True))  # number in the chunk -> id
    want = chunk_rows.post_want[row]
    listed = schedule.collective.relation.wants[want] if want >= 0 else tuple(names.values())
    expected = Counter(listed) if want >= 0 else dict.fromkeys(names.values(), 1)
    missing: list[tuple[int, int]] = []
    surplus: list[tuple[int, int]] = []
    span, (contribution_count,) = sets.count_per_window(chunk_rows), per_chunk.tolist()  # of the single chunk
    # Count contributions window by window, so that the state stays small.
    for low in range(0, contribution_count, span):
        high = min(low + span, contribution_count)
        counts = sets.track_counts(chunk_rows, ids, low, high, max_count)[chunk_rows.post[row]]
        for number, times in enumerate(counts.tolist(), low):
            wanted_count = expected.get(names[number], 0)
            if times < wanted_count:
                missing.append((names[number], times))
            elif times > wanted_count:
                surplus.append((names[number], times))
    return Fault(
        "post", _outcome_text(rank, chunk, missing, surplus, schedule.collective.combining), chunk=chunk, dst=rank
    )


def _outcome_text(
    rank: int, chunk: int, missing: list[tuple[int, int]], surplus: list[tuple[int, int]], combining: bool
) -> str:
    """Describe a wrong final cell. `missing`, `surplus`: (contribution, how often it is there)."""

    def names_of(pairs: list[tuple[int, int]]) -> str:
        return list_first((name for name, _ in pairs), limit=5)

    contribution = "the contribution of rank" if combining else "the data of rank"
    clauses = []
    if missing:
        clauses.append(f"without {contribution} {names_of(missing)}")
    if surplus:
        clauses.append(f"with {contribution} {names_of(surplus)} more often than it should")
    return f"chunk {chunk}: rank {rank} ends {' and '.join(clauses)}"


def _check_claims(schedule: Schedule, topology: Topology, claims: Mapping[str, Any]) -> Fault | None:
    """Compare a plan's claims with the recomputed figures."""
    truth = true_claims(schedule, topology)
    for key, value in truth.items():
        if key in claims and claims[key] != value:
            return Fault("claim", f"the plan claims {key} = {claims[key]!r}, but it is {value!r}")
    return None
